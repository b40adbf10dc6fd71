package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/sandbox"
)

const kestrel = `
listen: 127.0.0.1:0
audience: urn:of:the:file
faults: [card-name=Of the file]
accounts:
  - {id: u-1, email: ada@example.com, password: correct horse}
owner: {password: of the file}
brands:
  - {id: kestrel, name: Kestrel Cycles, description: Repairs bicycles., replies: [{text: Hello.}]}
`

func sandboxFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sandbox.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// startSandbox runs pactctl sandbox until the test ends, and returns its ready line.
func startSandbox(t *testing.T, args ...string) (ready sandbox.Ready) {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	a, _, stderr := testApp("", false)
	out, stdout := io.Pipe()
	a.stdout = stdout
	code := make(chan int, 1)
	go func() {
		code <- a.run(ctx, append([]string{"sandbox", "--quiet", "-o", "json"}, args...))
		stdout.Close()
	}()
	t.Cleanup(func() {
		interrupt()
		if got := <-code; got != 0 {
			t.Errorf("exit code %d: %s", got, stderr)
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		interrupt()
		t.Fatalf("%v: %s", err, stderr)
	}
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatal(err)
	}
	return ready
}

func cardName(t *testing.T, card string) string {
	t.Helper()
	resp, err := http.Get(card)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		Name string `json:"name"`
	}
	if err := json.UnmarshalRead(resp.Body, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Name
}

// A file says what is served, at one origin; flags go before it.
func TestSandboxOfAFile(t *testing.T) {
	file := sandboxFile(t, kestrel)
	r := startSandbox(t, "--config", file)
	if len(r.Brands) != 1 || r.Brands[0].Card != r.Provider+"/.well-known/agent-card.json" || r.Audience != "urn:of:the:file" ||
		r.Login.Email != "ada@example.com" || r.Login.Password != "correct horse" || len(r.Others) > 0 || r.Owner.Password != "of the file" {
		t.Errorf("%+v", r)
	}
	if got := cardName(t, r.Brands[0].Card); got != "Of the file" {
		t.Errorf("the card says %q", got)
	}

	owner, state := filepath.Join(t.TempDir(), "owner"), filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(owner, []byte("of the flag\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = startSandbox(t, "--config", file, "--audience", "urn:of:the:flag", "--owner-password-file", owner, "--state", state,
		"--fault", "card-name=Of the flag", "--brand-listen", "127.0.0.1:0")
	if r.Audience != "urn:of:the:flag" || r.Owner.Password != "of the flag" || strings.HasPrefix(r.Brands[0].Card, r.Provider) {
		t.Errorf("%+v", r)
	}
	if got := cardName(t, r.Brands[0].Card); got != "Of the flag" {
		t.Errorf("the card says %q", got)
	}
	if info, err := os.Stat(state); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("state: %v, %v", info, err)
	}
}

// The owner's page is told where it is: beside a Provider of this machine, else apart,
// where the flag says before the file.
func TestSandboxOwnerListens(t *testing.T) {
	file := sandboxFile(t, kestrel+"publicUrl: https://provider.example\nownerListen: '[::1]:0'\n")
	for _, tc := range []struct{ args, url string }{
		{"--config " + sandboxFile(t, kestrel), "/owner"},
		{"--config " + file, "http://[::1]:"},
		{"--config " + file + " --owner-listen 127.0.0.1:0", "http://127.0.0.1:"},
		{"--listen 127.0.0.1:0 --public-url https://provider.example", "http://127.0.0.1:"},
	} {
		r := startSandbox(t, strings.Fields(tc.args)...)
		if tc.url == "/owner" {
			tc.url = r.Provider + tc.url
		}
		if !strings.HasPrefix(r.Owner.URL, tc.url) || !strings.HasSuffix(r.Owner.URL, "/owner") {
			t.Errorf("%s: %s", tc.args, r.Owner)
		}
		resp, err := http.Get(r.Owner.URL + "/login")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", tc.args, resp.StatusCode)
		}
	}
	a, stdout, stderr := testApp("", false)
	if code := a.run(t.Context(), []string{"sandbox", "--listen", "127.0.0.1:0", "--owner-listen", ":8793"}); code == 0 || stdout.Len() > 0 ||
		!strings.Contains(stderr.String(), `OwnerListen: ":8793": write HOST:PORT with a loopback address`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestSandboxFileCheck(t *testing.T) {
	file := sandboxFile(t, kestrel)
	a, stdout, stderr := testApp("", false)
	if code := a.run(t.Context(), []string{"sandbox", "--config", file, "--check"}); code != 0 || stdout.String() != file+" is sound.\n" {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	a, stdout, stderr = testApp("", false)
	if code := a.run(t.Context(), []string{"sandbox", "-o", "json", "--config", file, "--check"}); code != 0 || !strings.Contains(stdout.String(), `"sound": true`) {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	a, stdout, stderr = testApp("", false) // a flag goes before the file
	elsewhere := filepath.Join(t.TempDir(), "state.db")
	if code := a.run(t.Context(), []string{"sandbox", "--config", sandboxFile(t, "state: nowhere/state.db"), "--state", elsewhere, "--check"}); code != 0 {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	bad := sandboxFile(t, "brands:\n  - {id: kestrel, name: K, descrption: Repairs bicycles.}\n")
	for args, why := range map[string]string{
		"--check":                      "name it with --config",
		"--config " + bad:              "sandbox.yaml:2: brands[0].descrption: there is no such key; did you mean description?",
		"--config " + bad + " --check": "sandbox.yaml:2: ",
		"--config " + sandboxFile(t, "state: nowhere/state.db") + " --check":                      "sandbox.yaml:1: state: ",
		"--config " + sandboxFile(t, "audience: http://127.0.0.1:8791/a2a/"+sandbox.MarrowID):     "sandbox.yaml:1: audience: it is the interface URL",
		"--check --fault slwo --config " + file:                                                   `--fault: sandbox: fault "slwo": there is no such fault; did you mean slow?`,
		"--check --state nowhere/state.db --config " + file:                                       "--state: ",
		"--check --owner-listen 0.0.0.0:8793 --config " + file:                                    "OwnerListen",
		"--check --public-url http://127.0.0.1:1/ --config " + file:                               "PublicURL",
		"--check --listen 127.0.0.1:4 --audience http://127.0.0.1:4/a2a/kestrel --config " + file: "Audience must not be an interface URL",
		"--config nowhere.yaml":                                                       "--config: sandbox: configuration file: open nowhere.yaml",
		"--owner-password-file nowhere":                                               "--owner-password-file: ",
		"--config " + sandboxFile(t, "listen: ':0'"):                                  "--public-url",
		"--config " + sandboxFile(t, "listen: 127.0.0.1:0\nbrandListen: '0.0.0.0:0'"): "--brand-url",
	} {
		a, stdout, stderr := testApp("", false)
		if code := a.run(t.Context(), append([]string{"sandbox"}, strings.Fields(args)...)); code != exitUsage || !strings.Contains(stderr.String(), why) || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
}

// A file's mistakes come one on a line, and the end points to no flag.
func TestSandboxFileMistakesByLine(t *testing.T) {
	file := sandboxFile(t, "audience: ''\nbrand: []\n")
	a, _, stderr := testApp("", false)
	code := a.run(t.Context(), []string{"sandbox", "--config", file})
	want := "pactctl: " + file + ":1: audience: it is empty: give it a text, or leave it out\n" +
		"pactctl: " + file + ":2: brand: there is no such key; did you mean brands?\n"
	if code != exitUsage || stderr.String() != want {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestSandboxAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a, _, stderr := testApp("", false)
	code := a.run(t.Context(), []string{"sandbox", "--listen", taken.Addr().String()})
	if code != exitFailed || !strings.Contains(stderr.String(), "end what listens there, or say another with --listen") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// Where it listens follows from what is said of it.
func TestSandboxListens(t *testing.T) {
	for _, tc := range []struct {
		name          string
		file, said    sandbox.Config
		changed       string
		listen, brand string
	}{
		{"nothing said", sandbox.Config{}, sandbox.Config{}, "", sandboxListen, sandboxBrandListen},
		{"a flag", sandbox.Config{}, sandbox.Config{Listen: "127.0.0.2:1"}, "listen", "127.0.0.2:1", "127.0.0.2:0"},
		{"a loopback origin", sandbox.Config{PublicURL: "http://localhost:81", OneOrigin: true}, sandbox.Config{}, "", "localhost:81", ""},
		{"without a port", sandbox.Config{PublicURL: "http://[::1]", OneOrigin: true}, sandbox.Config{}, "", "[::1]:80", ""},
		{"behind a proxy", sandbox.Config{PublicURL: "https://p.example", OneOrigin: true}, sandbox.Config{}, "", sandboxListen, ""},
		{"the flag's origin", sandbox.Config{PublicURL: "http://127.0.0.1:81", OneOrigin: true}, sandbox.Config{PublicURL: "http://127.0.0.1:82"}, "public-url", "127.0.0.1:82", ""},
		{"two origins", sandbox.Config{PublicURL: "http://127.0.0.1:81", BrandURL: "http://127.0.0.1:82"}, sandbox.Config{}, "", "127.0.0.1:81", "127.0.0.1:82"},
		{"a second by flag", sandbox.Config{PublicURL: "http://127.0.0.1:81", OneOrigin: true}, sandbox.Config{BrandURL: "http://127.0.0.1:82"}, "brand-url", "127.0.0.1:81", "127.0.0.1:82"},
	} {
		cfg := tc.file
		err := overrideSandbox(&cfg, tc.said, func(flag string) bool { return flag == tc.changed })
		if err != nil || cfg.Listen != tc.listen || cfg.BrandListen != tc.brand || cfg.OneOrigin != (tc.brand == "") {
			t.Errorf("%s: %q and %q, %v, %v; want %q and %q", tc.name, cfg.Listen, cfg.BrandListen, cfg.OneOrigin, err, tc.listen, tc.brand)
		}
	}
}
