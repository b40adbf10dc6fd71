package sandbox

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"go.yaml.in/yaml/v3"
)

// everything is a configuration file with all that a file can say, but a command.
const everything = `
publicUrl: https://provider.example
listen: 127.0.0.1:0
brandUrl: https://kestrel.example
brandListen: 127.0.0.1:0
ownerListen: "[::1]:0"
audience: urn:example:kestrel
state: state/sandbox.db
issuers:
  - https://pa.example
  - issuer: http://localhost:8787
    jwksUri: http://localhost:8787/keys
allowInsecureLocalIssuers: true
accounts:
  - {id: u-1, name: Ada, email: ada@example.com, password: correct horse}
  - {id: u-2, email: bo@example.com, passwordFile: bo.password}
owner:
  passwordFile: owner.password
faultHeader: true
faults: [slow=1*2, card-name=K]
limits:
  issuer: {every: 1s, burst: 10}
  user: {burst: 5}
  device: {every: 2s}
times:
  deviceInterval: 1s
  tokenTTL: 10m
  keySetRetry: 2s
brands:
  - id: kestrel
    name: Kestrel Cycles
    description: Repairs bicycles.
    capability:
      id: repair
      name: Repairs
      description: Books a repair.
      tags: [bicycle, repair]
      examples: ["Is my bicycle ready?"]
    stepUpFirst: repairs:read
    scopes:
      - {id: "repairs:read", description: See your repairs}
      - {id: "repairs:book", description: Book a repair}
      - {id: "about", description: Know your name}
    notShared: [Your address.]
    asks:
      - {scope: "repairs:read", text: "Is it ready?"}
    closes: bye
    replies:
      - match: (?i)\bready\b
        needs: ["repairs:read"]
        text: It is ready.
        actions: [{tool: find_repair, args: {b: [2, 1.0, null], "a": {"é": true}}}]
      - match: ^bye
        text: Goodbye.
        close: true
      - text: We repair bicycles.
  - builtin: larkline
    stepUpFirst: true
  - id: plain
    name: Plain
    description: Says little.
    capability: say-little
    scopes: {z: Last letter, a: First letter}
`

func write(t testing.TB, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// parseConfig reads a file's content, as LoadConfig does.
func parseConfig(file, dir string, data []byte, log *slog.Logger) (Config, error) {
	return new(fileConfig).parse(file, dir, data, log, false)
}

// load loads a file that lies beside two password files.
func load(t testing.TB, content string) (Config, string, error) {
	t.Helper()
	dir := write(t, map[string]string{"sandbox.yaml": content, "bo.password": "battery staple\n", "owner.password": "owner's own", "short": "short\n"})
	cfg, err := LoadConfig(filepath.Join(dir, "sandbox.yaml"), nil)
	return cfg, dir, err
}

func TestConfigFileSaysEverything(t *testing.T) {
	c, dir, err := load(t, everything)
	if err != nil {
		t.Fatal(err)
	}
	p := Defaults()
	p.IssuerLimit, p.UserLimit.Burst, p.DeviceLimit.Every = Limit{time.Second, 10}, 5, 2*time.Second
	p.DeviceInterval, p.TokenTTL, p.KeySetRetry = time.Second, 10*time.Minute, 2*time.Second
	for what, got := range map[string][2]any{
		"origins":  {[]string{c.PublicURL, c.Listen, c.BrandURL, c.BrandListen, c.OwnerListen}, []string{"https://provider.example", "127.0.0.1:0", "https://kestrel.example", "127.0.0.1:0", "[::1]:0"}},
		"audience": {c.Audience, "urn:example:kestrel"},
		"state":    {c.State, filepath.Join(dir, "state", "sandbox.db")},
		"issuers":  {*c.Issuers, Issuers{Local: true, Listed: []Issuer{{Issuer: "https://pa.example"}, {"http://localhost:8787", "http://localhost:8787/keys"}}}},
		"accounts": {[]any{c.Accounts[0].ID, c.Accounts[0].Name, c.Accounts[0].Login.Password, c.Accounts[1].Name, c.Accounts[1].Login.Password}, []any{"u-1", "Ada", "correct horse", "bo@example.com", "battery staple"}},
		"owner":    {c.OwnerPassword, "owner's own"},
		"faults":   {c.Faults, []string{"slow=1*2", "card-name=K"}},
		"header":   {[]bool{c.FaultHeader, c.OneOrigin}, []bool{true, false}},
		"params":   {c.Params, p},
		"skill":    {c.Brands[0].Skills, []Skill{{"repair", "Repairs", "Books a repair.", []string{"bicycle", "repair"}, []string{"Is my bicycle ready?"}}}},
		"scopes":   {c.Brands[0].scopeIDs(), []string{"repairs:read", "repairs:book", "about"}},
		"the rest": {[]any{c.Brands[0].NotShared, c.Brands[0].Asks, c.Brands[0].Closes, c.Brands[0].StepUpFirst}, []any{[]string{"Your address."}, []Ask{{"repairs:read", "Is it ready?"}}, "bye", []string{"repairs:read"}}},
		"built in": {[]any{c.Brands[1].ID, c.Brands[1].StepUpFirst}, []any{LarklineID, c.Brands[1].scopeIDs()}},
		"in short": {[]any{c.Brands[2].Skills, c.Brands[2].Scopes}, []any{[]Skill{{"say-little", "Plain", "Says little.", []string{"say", "little"}, nil}}, []Scope{{"z", "Last letter"}, {"a", "First letter"}}}},
	} {
		if !reflect.DeepEqual(got[0], got[1]) {
			t.Errorf("%s: %+v, want %+v", what, got[0], got[1])
		}
	}
	c.PasswordMemory, c.State = 64, ""
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The same in JSON is the same, also as JSON may write it.
func TestConfigFileInJSON(t *testing.T) {
	var v any
	if err := yaml.Unmarshal([]byte(everything), &v); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("/", `\/`, `"publicUrl"`, "\n\t\"publicUrl\"", "Repairs bicycles", `\ud83d\udeb2 repairs\\u0041`).Replace(string(data))
	inJSON, _, err := load(t, text)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	inYAML, _, err := load(t, everything)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := inJSON.Brands[0].Description, "🚲 repairs\\u0041."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if inJSON.PublicURL != inYAML.PublicURL || !reflect.DeepEqual(inJSON.Issuers, inYAML.Issuers) || inJSON.Params != inYAML.Params || !reflect.DeepEqual(inJSON.Brands[0].Scopes, inYAML.Brands[0].Scopes) {
		t.Errorf("%+v is not %+v", inJSON, inYAML)
	}
}

// What a file leaves out is as without a file, but for the login's place and who may
// call.
func TestConfigFileDefaults(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "{}"} {
		c, _, err := load(t, content)
		if err != nil {
			t.Fatalf("%q: %v", content, err)
		}
		c.Log = nil
		if want := (Config{OneOrigin: true, Issuers: &Issuers{}, Params: Defaults()}); !reflect.DeepEqual(c, want) {
			t.Errorf("%q: %+v", content, c)
		}
	}
	for content, want := range map[string]Issuers{
		"issuers: any": {Any: true}, "issuers: registered\nallowInsecureLocalIssuers: true": {Registered: true, Local: true},
		"allowInsecureLocalIssuers: true": {Local: true},
	} {
		if c, _, err := load(t, content); err != nil || !reflect.DeepEqual(*c.Issuers, want) {
			t.Errorf("%q: %+v, %v", content, c.Issuers, err)
		}
	}
	if c, _, err := load(t, "publicUrl: http://127.0.0.1:8900\nbrandUrl: http://127.0.0.1:8900"); err != nil || !c.OneOrigin || c.BrandURL != "" {
		t.Errorf("one origin said twice: %+v, %v", c, err)
	}
}

// Every mistake is told with line, path and fix.
func TestConfigFileMistakes(t *testing.T) {
	brand := func(lines string) string {
		return "brands:\n  - id: a\n    name: A\n    description: It is A.\n    " + strings.ReplaceAll(lines, "\n", "\n    ") + "\n"
	}
	for _, tc := range []struct{ content, want string }{
		{"a: [", `sandbox.yaml: yaml: line 1: `},
		{"[]", `:1: write a mapping`},
		{"a: 1\n---\na: 2", `more than one document`},
		{"audience: &x [*x]", `contains itself`},
		{"publicURL: https://p.example", `:1: publicURL: there is no such key; did you mean publicUrl?`},
		{"\nsomething: 1", `:2: something: there is no such key; here are publicUrl, listen, `},
		{"audience: a\naudience: b", `:2: audience: the key appears twice`},
		{"audience:", `:1: audience: it has no value`},
		{"audience: 5", `:1: audience: write text, in quotes`},
		{"audience: [a]", `:1: audience: write text`},
		{"5: a", `:1: a key must be text`},
		{"faultHeader: yes", `:1: faultHeader: write true or false`},
		{"faults: slow", `:1: faults: write a list`},
		{"faults:\n  - slow\n  - slwo", `:3: faults[1]: "slwo": `},
		{"publicUrl: https://p.example/", `:1: publicUrl: "https://p.example/": use an origin`},
		{"publicUrl: http://p.example", `:1: publicUrl: "http://p.example": agents refuse it`},
		{"publicUrl: http://127.0.0.1:0", `:1: publicUrl: `},
		{"brandUrl: ftp://x", `:1: brandUrl: `},
		{"listen: 8791", `:1: listen: write text`},
		{"listen: localhost", `:1: listen: "localhost": write HOST:PORT`},
		{"brandListen: x", `:1: brandListen: `},
		{"publicUrl: https://p.example\nownerListen: 0.0.0.0:8793", `:2: ownerListen: "0.0.0.0:8793": write HOST:PORT with a loopback address`},
		{"publicUrl: https://p.example\naudience: https://p.example/a2a/a\n" + brand(""), `:2: audience: it is the interface URL of the brand "a": choose another, such as https://p.example/a2a`},
		{"audience: http://127.0.0.1:8791/a2a/a\n" + brand(""), `:1: audience: it is the interface URL of the brand "a": choose another, such as http://127.0.0.1:8791/a2a`},
		{"listen: 127.0.0.1:9000\naudience: http://127.0.0.1:9000/a2a/" + MarrowID, `:2: audience: it is the interface URL of the brand "` + MarrowID + `"`},
		{"audience: ''", `:1: audience: it is empty: give it a text, or leave it out`},
		{"brands: []", `:1: brands: the list is empty: list one, or leave the key out, which means Larkline Air and Marrow Books`},
		{"accounts: []", `:1: accounts: the list is empty: list one, or leave the key out, which means Robin and Sam`},
		{"issuers: none", `:1: issuers: write any, registered, or a list`},
		{"issuers: []", `:1: issuers: the list is empty: list an issuer, or write any or registered`},
		{"issuers:\n  - https://pa.example/", `:2: issuers[0]: "https://pa.example/": use an origin`},
		{"issuers: [https://pa.example, http://pa.example]", `:1: issuers[1]: "http://pa.example": use https`},
		{"issuers: ['http://localhost:8787']", `:1: issuers[0]: "http://localhost:8787": http issuers on this machine must be allowed first: set allowInsecureLocalIssuers: true`},
		{"issuers:\n  - {issuer: https://pa.example, jwksUri: /keys}", `:2: issuers[0]: "https://pa.example": its JWKS "/keys" is not`},
		{"issuers:\n  - {jwksURI: https://pa.example/keys}", `:2: issuers[0].jwksURI: there is no such key; did you mean jwksUri?`},
		{"issuers: [https://pa.example, https://pa.example]", `:1: issuers[1]: "https://pa.example" is listed before`},
		{"allowInsecureLocalIssuers: 1", `:1: allowInsecureLocalIssuers: write true or false`},
		{"accounts:\n  - {id: a, email: a@b.example, password: long enough}\n  - {id: a, email: A@b.example, password: long enough}", `:3: accounts[1].id: "a" is taken`},
		{"accounts:\n  - {id: a, email: a@b.example, password: long enough}\n  - {id: b, email: A@b.example, password: long enough}", `:3: accounts[1].email: "a@b.example" is taken`},
		{"accounts:\n  - {id: a, password: long enough}", `:2: accounts[0].email: it is missing`},
		{"accounts:\n  - {id: a, email: robin, password: long enough}", `:2: accounts[0].email: "robin": write an address, such as robin@example.com`},
		{"accounts:\n  - {id: a, email: a@b.example, passwordFile: .}", `is a directory: name a file that holds a password of 8 to 256 bytes`},
		{"accounts:\n  - {id: a, email: a@b.example}", `:2: accounts[0]: give a password, or a passwordFile, of 8 to 256 bytes`},
		{"accounts:\n  - {id: a, email: a@b.example, passwordFile: nowhere}", `nowhere: no such file or directory: name a file that holds a password of 8 to 256 bytes, and that you may read`},
		{"accounts:\n  - {id: a, email: a@b.example, passwordFile: short}", `:2: accounts[0].passwordFile: `},
		{"accounts:\n  - {id: a, email: a@b.example, password: long enough, passwordFile: bo.password}", `:2: accounts[0].passwordFile: password says it too`},
		{"owner: {password: 12345678}", `:1: owner.password: write text, in quotes`},
		{"owner: {}", `:1: owner: give a password`},
		{"limits: {user: {burst: 0}}", `:1: limits.user.burst: must be at least 1`},
		{"limits: {user: {burst: 1.5}}", `:1: limits.user.burst: write a whole number`},
		{"limits: {users: {burst: 1}}", `:1: limits.users: there is no such key; did you mean user?`},
		{"limits: {login: {every: 5}}", `:1: limits.login.every: write a duration`},
		{"times: {tokenTTL: -5s}", `:1: times.tokenTTL: write a duration above zero`},
		{"times: {tokenTTL: 2h}", `:1: times.tokenTTL: a delegation token may live for 1s to 1h0m0s`},
		{"times: {leeway: 31s}", `:1: times.leeway: the protocol allows at most 30s`},
		{"times: {keysetTTL: 1s}", `:1: times.keysetTTL: there is no such key; did you mean keySetTTL?`},
		{"brands: {}", `:1: brands: write a list`},
		{"brands:\n  - larkline", `:2: brands[0]: write a mapping`},
		{"brands:\n  - {name: A, description: A}", `:2: brands[0].id: it is missing`},
		{"brands:\n  - id: a b\n    name: A\n    description: A", `:2: brands[0].id: "a b": use 1-64 letters`},
		{"brands:\n  - {id: a, description: A}", `:2: brands[0].name: it is missing`},
		{"brands:\n  - {id: a, name: A}", `:2: brands[0].description: it is missing`},
		{brand("") + "  - {id: a, name: A, description: A}\n", `:6: brands[1].id: "a" is taken by a brand before`},
		{"brands:\n  - builtin: larkine", `:2: brands[0].builtin: "larkine": larkline and marrow are built in`},
		{"brands:\n  - builtin: ''", `:2: brands[0].builtin: `},
		{"brands:\n  - builtin: marrow\n    name: Mine", `:3: brands[0].name: a built-in brand brings its own`},
		{"brands: [{builtin: marrow}, {builtin: marrow}]", `:1: brands[1].id: "` + MarrowID + `" is taken`},
		{brand("capability: []"), `:5: brands[0].capability: write the id of a skill`},
		{brand("capability: {name: A}"), `:5: brands[0].capability.id: it is missing`},
		{brand("scopes:\n- {id: a, description: A}\n- {id: a, description: B}"), `:7: brands[0].scopes[1].id: "a" is taken by a scope before`},
		{brand("scopes:\n- {id: a, description: A}\n- {ID: b, description: B}"), `:7: brands[0].scopes[1].ID: there is no such key; did you mean id?`},
		{brand("scopes:\n- {id: 'a b', description: A}"), `:6: brands[0].scopes[0].id: "a b": a scope is printable ASCII`},
		{brand("scopes: [{id: a}]"), `:5: brands[0].scopes[0].description: it is missing`},
		{brand("scopes: {a: 5}"), `:5: brands[0].scopes.a: write text`},
		{brand("scopes: a"), `:5: brands[0].scopes: write a list`},
		{brand("stepUpFirst: true"), `:5: brands[0].stepUpFirst: the brand has no scopes to ask for`},
		{brand("scopes: {read: R}\nstepUpFirst: raed"), `:6: brands[0].stepUpFirst: "raed" is not a scope of the brand; did you mean read?`},
		{brand("stepUpFirst: [read]"), `:5: brands[0].stepUpFirst: write true, false, or`},
		{brand("asks: [{scope: read, text: Read}]"), `:5: brands[0].asks[0].scope: the brand has no scopes: give it scopes, or leave this out`},
		{brand("scopes: {read: R}\nasks: [{scope: raed, text: Read}]"), `:6: brands[0].asks[0].scope: "raed" is not a scope of the brand; did you mean read?`},
		{brand("notShared: [Nothing.]"), `:5: brands[0].notShared: the brand has no scopes, and so no consent page`},
		{brand("replies:\n- {text: A, actions: [{tool: a}]}"), `:6: brands[0].replies[0].actions: the brand has no scopes, and so no receipts`},
		{brand("replies:\n- {text: A}\n- {match: b, text: B}"), `:6: brands[0].replies[0]: without match it fits everything, and replies[1] is never reached: move it to the end`},
		{brand("scopes: {read: R}\nasks: [{scope: read}]"), `:6: brands[0].asks[0].text: it is missing`},
		{brand("replies:\n- {match: '(', text: A}"), `:6: brands[0].replies[0].match: error parsing regexp: missing closing ): ` + "`(`: mend it (https://golang.org/s/re2syntax"},
		{brand("replies:\n- {match: a}"), `:6: brands[0].replies[0].text: it is missing`},
		{brand("replies:\n- {text: A, needs: [read]}"), `:6: brands[0].replies[0].needs[0]: the brand has no scopes`},
		{brand("scopes: {read: R}\nreplies:\n- {text: A, needs: [read, read]}"), `:7: brands[0].replies[0].needs[1]: "read" is needed already`},
		{brand("replies:\n- {text: A, actions: [{args: 1}]}"), `:6: brands[0].replies[0].actions[0].tool: it is missing`},
		{brand("replies:\n- {text: A, actions: [{tool: a, args: .inf}]}"), `:6: brands[0].replies[0].actions[0].args: it cannot be said in JSON, which has text for keys, and neither .nan nor .inf: write text in quotes`},
		{brand("replies: [{text: A}]\ncommand: {argv: [cat]}"), `:6: brands[0].command: replies answers too`},
		{brand("command: {argv: []}"), `:5: brands[0].command.argv: name the program`},
		{brand(`command: {argv: ["", x]}`), `:5: brands[0].command.argv[0]: it is empty`},
		{brand("command: {timeout: 5s}"), `:5: brands[0].command.argv: name the program`},
		{brand("command: cat"), `:5: brands[0].command: write a mapping`},
		{brand("command: {argv: [./no-such-program]}"), `:5: brands[0].command.argv[0]: there is no file "./no-such-program" in /`},
		{brand("command: {argv: [no-such-program]}"), `:5: brands[0].command.argv[0]: there is no program "no-such-program" in PATH: name a file`},
		{brand("command: {argv: [./bo.password]}"), `:5: brands[0].command.argv[0]: "./bo.password" is not executable: chmod +x it`},
		{brand("command: {argv: [cat], dir: nowhere}"), `:5: brands[0].command.dir: `},
		{brand("command: {argv: [cat], timeout: 1h}"), `:5: brands[0].command.timeout: may be at most 5m0s`},
	} {
		_, _, err := load(t, tc.content)
		if err == nil || !strings.Contains(err.Error(), "sandbox.yaml") || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s\n  %v\n  want %s", tc.content, err, tc.want)
		}
	}
}

// All mistakes are told at once, in the order of the file, and no password with them.
func TestConfigFileTellsAll(t *testing.T) {
	_, _, err := load(t, "faults: [nosuch]\nowner: {password: sesame}\naccounts:\n  - {id: a, password: hunter2}\n")
	lines := strings.Split(err.Error(), "\n")
	for i, want := range []string{`:1: faults[0]: "nosuch"`, ":2: owner: give", ":4: accounts[0].email", ":4: accounts[0]: give"} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Errorf("line %d of %v, want %s", i, err, want)
		}
	}
	_, _, typed := load(t, "owner: {password: [sesame]}\naccounts:\n  - {password: {hunter2: 1}}\n")
	for _, said := range []string{err.Error(), typed.Error()} {
		if strings.Contains(said, "hunter2") || strings.Contains(said, "sesame") {
			t.Errorf("a password in %v", said)
		}
	}
	_, _, err = load(t, "faults: ["+strings.Repeat("x, ", 50)+"]")
	if n := strings.Count(err.Error(), "\n"); n != maxProblems || !strings.Contains(err.Error(), "and 30 more") {
		t.Errorf("%d lines: %v", n, err)
	}
}

func TestConfigFileIsBounded(t *testing.T) {
	if _, _, err := load(t, "#"+strings.Repeat("x", maxConfigFile)); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("%v", err)
	}
	if _, err := LoadConfig(filepath.Join(t.TempDir(), "nowhere"), nil); err == nil {
		t.Error("no file, no error")
	}
	if _, err := LoadConfig(t.TempDir(), nil); err == nil {
		t.Error("a directory, no error")
	}
}

// Whoever can write the file says which programs run here; whoever can read it has its
// passwords.
func TestConfigFileOfOthers(t *testing.T) {
	const secret, plain = "owner: {password: correct horse}\n", "owner: {passwordFile: owner.password}\n"
	for _, tc := range []struct {
		content string
		mode    os.FileMode
		err     string
		warns   bool
	}{
		{secret, 0o600, "", false}, {secret, 0o644, "", true}, {secret, 0o640, "", true}, {plain, 0o644, "", false},
		{"accounts: [{id: a, email: a@b, password: long enough}]", 0o604, "", true},
		{plain, 0o646, "everybody can write it (mode 0646), and it says which programs run: chmod o-w it", false},
	} {
		dir := write(t, map[string]string{"sandbox.yaml": tc.content, "owner.password": "owner's own"})
		file := filepath.Join(dir, "sandbox.yaml")
		if err := os.Chmod(file, tc.mode); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		_, err := LoadConfig(file, slog.New(slog.NewTextHandler(&log, nil)))
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%o: %v, want %q", tc.mode, err, tc.err)
		}
		if warned := strings.Contains(log.String(), "others can read it: chmod 600 it"); warned != tc.warns || strings.Contains(log.String(), "horse") {
			t.Errorf("%o: log %q", tc.mode, log.String())
		}
	}
}

// The documentation's examples load, and those of whole brands answer.
func TestDocumentedConfiguration(t *testing.T) {
	page, err := os.ReadFile("../docs/sandbox.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	var examples, scripts []string
	for block := range strings.SplitSeq("\n"+string(page), "\n```") {
		lang, body, _ := strings.Cut(block, "\n")
		switch name, ok := strings.CutPrefix(lang, "sh "); {
		case lang == "yaml":
			examples = append(examples, body+"\n")
		case lang == "sh":
			scripts = append(scripts, body+"\n")
		case ok:
			files[name] = body + "\n"
		}
	}
	if len(examples) < 3 || len(files) < 1 || len(scripts) < 1 {
		t.Fatalf("%d examples, %d files, %d scripts", len(examples), len(files), len(scripts))
	}
	for _, example := range examples {
		dir := write(t, files)
		for name := range files {
			if err := os.Chmod(filepath.Join(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, script := range scripts {
			cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		file := filepath.Join(dir, "sandbox.yaml")
		if err := os.WriteFile(file, []byte(example), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		cfg, err := LoadConfig(file, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Errorf("%v\n%s", err, example)
			continue
		}
		cfg.Listen, cfg.PublicURL, cfg.PasswordMemory = "127.0.0.1:0", "", 64
		s, err := New(cfg)
		if err != nil {
			t.Errorf("%v\n%s", err, example)
			continue
		}
		for _, b := range s.brands {
			for _, ask := range b.Asks {
				turn := Turn{Issuer: "https://pa.example", Subject: "s", ContextID: "c", Text: ask.Text, At: testStart}
				reply, err := b.Respond(t.Context(), turn)
				if err != nil || len(reply.Missing) == 0 {
					t.Errorf("%s: %q: %+v, %v: %s", b.Name, ask.Text, reply, err, log.String())
				}
				turn.User, turn.Scopes = "u", b.scopeIDs()
				reply, err = b.Respond(t.Context(), turn)
				if err == nil {
					err = b.check(turn, reply)
				}
				if err != nil || !strings.Contains(strings.Join(reply.Used, " "), ask.Scope) {
					t.Errorf("%s: %q with permission: %+v, %v: %s", b.Name, ask.Text, reply, err, log.String())
				}
			}
			if b.Closes != "" {
				if reply, err := b.Respond(t.Context(), Turn{User: "u", Text: b.Closes, Scopes: b.scopeIDs(), At: testStart}); err != nil || !reply.Close {
					t.Errorf("%s: %q: %+v, %v", b.Name, b.Closes, reply, err)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
