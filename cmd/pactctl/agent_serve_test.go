package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

// lockedBuffer is a buffer that a program writes to while a test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// served is an agent that runs for a bench's profile.
type served struct {
	servingAgent
	log  *lockedBuffer // its stderr
	stop func() int    // ends it as SIGTERM does; its exit code
}

// serve runs pactctl agent serve in this process until it is stopped, or the test ends.
func (b *bench) serve(args ...string) *served {
	b.t.Helper()
	out, in := io.Pipe()
	s := &served{log: &lockedBuffer{}}
	a := &app{stdin: strings.NewReader(""), stdout: in, stderr: s.log, now: time.Now, zone: time.UTC}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		code := a.run(ctx, append([]string{"agent", "serve", "--profile", b.profile, "-o", "json"}, args...))
		in.Close()
		ended <- code
	}()
	s.stop = sync.OnceValue(func() int { cancel(); return <-ended })
	b.t.Cleanup(func() { s.stop() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s.servingAgent)
	}
	if err != nil {
		b.t.Fatalf("agent serve: %v, exit %d\n%s", err, s.stop(), s.log)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // it says no more
	return s
}

// token makes a token, in a file.
func (b *bench) token(scope string) (file string) {
	b.t.Helper()
	file = filepath.Join(b.t.TempDir(), scope+".token")
	b.json(false, 0, "agent", "tokens", "create", "--name", scope, "--scope", scope, "--out", file)
	return file
}

// agentCommands are the commands that a running agent answers.
func agentCommands() []string {
	var out []string
	var walk func(cmd *cobra.Command, ofAgent bool)
	walk = func(cmd *cobra.Command, ofAgent bool) {
		ofAgent = ofAgent || cmd.GroupID == groupAgent
		for _, sub := range cmd.Commands() {
			walk(sub, ofAgent)
		}
		if ofAgent && !cmd.HasSubCommands() && cmd.Flag("remote") != nil {
			out = append(out, strings.TrimPrefix(cmd.CommandPath(), "pactctl "))
		}
	}
	walk(newRootCmd(&app{}), false)
	return out
}

// step is a command that was run, and what came of it.
type step struct {
	line           string
	code           int
	stdout, stderr string
}

// transcript is what ran, and how.
type transcript struct {
	b     *bench
	flags []string // that say which agent is meant
	steps []step
}

// run runs a command that must end with a code.
func (s *transcript) run(code int, human bool, stdin string, args ...string) string {
	s.b.t.Helper()
	got, stdout, stderr := s.b.run(human, stdin, append(args, s.flags...)...)
	if got != code {
		s.b.t.Fatalf("%q %q: exit %d, want %d\n%s%s", args, s.flags, got, code, stdout, stderr)
	}
	there := strings.NewReplacer(s.b.profile, "PROFILE")
	s.steps = append(s.steps, step{strings.Join(args, " "), got, there.Replace(stdout), there.Replace(stderr)})
	return stdout
}

// member runs a command with -o json, and returns a member of what it prints.
func (s *transcript) member(path string, code int, human bool, args ...string) string {
	s.b.t.Helper()
	var v any
	if err := json.Unmarshal([]byte(s.run(code, human, "", append(args, "-o", "json")...)), &v); err != nil {
		s.b.t.Fatalf("%q: %v", args, err)
	}
	for part := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[part]
		case []any:
			if part != "0" || len(x) == 0 {
				s.b.t.Fatalf("%q: no %s", args, path)
			}
			v = x[0]
		}
	}
	id, ok := v.(string)
	if !ok {
		s.b.t.Fatalf("%q: %s is %v", args, path, v)
	}
	return id
}

// read runs what changes nothing, as text and as JSON; known ids are of what is there.
func (s *transcript) read(business, conversation, receipt, signIn, approval string) {
	s.b.t.Helper()
	for _, c := range []struct {
		code int
		line string
	}{
		{0, "status"}, {0, "doctor"}, {0, "providers list"}, {0, "policy show"}, {0, "discover " + business}, {0, "grants"}, {0, "grants list"},
		{0, "conversations list"}, {0, "conversations show " + conversation}, {1, "conversations show c-none"},
		{0, "receipts list"}, {0, "receipts show " + receipt}, {1, "receipts show r-none"},
		{1, "receipts verify"}, {0, "receipts verify " + receipt}, {1, "receipts verify r-aaaaaaaaaaaaaaaa"},
		{0, "authorization list"}, {0, "authorization status " + signIn}, {1, "authorization status signin-none"},
		{0, "authorization wait " + signIn}, {1, "authorization wait signin-none"}, {0, "authorization cancel " + signIn}, {1, "authorization cancel signin-none"},
		{1, "disconnect grant-none --yes"},
		{0, "review list"}, {0, "review list --all"}, {1, "review show r-none"}, {1, "review acknowledge r-none"},
		{0, "approvals list"}, {0, "approvals list --all"}, {0, "approvals show " + approval}, {1, "approvals show approval-none"},
		{1, "approvals approve " + approval + " --yes"}, {1, "approvals deny approval-none"},
		{1, "reconcile"}, {1, "reconcile c-none"}, {1, "discover nosuchbusiness"}, {1, "discover b-0000000000000000"},
		{1, "authorize " + business + " --scope nonsense"}, {2, "authorize " + business},
		{1, "send --business " + business + " --message " + strings.Repeat("x", 4001)}, {1, "send --business " + business + " --message Show --scope nonsense"},
		{1, "send --business b-0000000000000000 --message Show"}, {2, "send --business " + business},
		{1, "providers add nonsense --audience x"}, {1, "providers remove https://provider.example"},
		{2, "policy prefer nonsense"}, {1, "enroll --signer http://127.0.0.1:1"}, {2, "enroll"},
	} {
		now := s.b.now
		if c.line == "doctor" { // which compares the clock with the signer's
			s.b.now = nil
		}
		s.run(c.code, false, "", strings.Fields(c.line)...)
		s.run(c.code, false, "", append(strings.Fields(c.line), "-o", "json")...)
		s.b.now = now
	}
}

// act does all that a profile is for, from its first day on.
func (s *transcript) act(faults func(...string)) {
	s.b.t.Helper()
	air, books := s.b.box.Brands[0].Card, s.b.box.Brands[1].Card
	person := func(code int, args ...string) { s.b.t.Helper(); s.run(code, true, "", args...) }
	script := func(code int, args ...string) { s.b.t.Helper(); s.run(code, false, "", args...) }

	script(0, "status")
	script(1, "doctor")
	script(0, "enroll", "--signer", s.b.signer)
	script(0, "policy", "off")
	script(1, "discover", air)
	script(0, "policy", "on")
	script(0, "policy", "prefer", "require-pact", "-o", "json")
	script(0, "providers", "add", s.b.box.Provider, "--audience", s.b.box.Audience, "--label", "The box")
	script(0, "providers", "list")
	script(0, "providers", "remove", s.b.box.Provider)
	script(0, "discover", air)
	script(0, "discover", books, "-o", "json")
	script(0, "send", "--business", books, "--message", "Do you have Woolf?")
	s.run(0, false, "Where is Woolf?\n\nAnd Joyce?\n/quit\n", "chat", books)
	s.run(0, false, "Where is Woolf?\n", "chat", books, "-o", "json")

	// A sign-in that is begun off a terminal and waited for on one.
	inspect := []string{"send", "--business", air, "--message", "Show my upcoming flights"}
	signIn := s.member("authorization.id", 3, false, inspect...)
	script(3, "authorization", "status", signIn)
	script(3, "authorization", "wait", signIn, "--timeout", "2s", "-o", "json")
	person(0, "authorization", "wait", signIn)
	s.member("evidence.receipt", 0, false, inspect...)
	person(0, inspect...)
	person(0, "authorize", air, "--scope", "flights:history:read", "--purpose", "to look back")
	script(0, "authorization", "cancel", s.member("authorization.id", 3, false, "authorize", air, "--scope", "flights:cancel"))

	// What needs the owner's word: later, at once, and denied.
	change := func(flight string) []string {
		return []string{"send", "--business", air, "--message", "Rebook me onto " + flight, "--scope", "flights:rebook"}
	}
	approval := s.member("approval.id", 3, false, change("LK 318")...)
	script(3, change("LK 318")...)
	script(0, "approvals", "list")
	script(0, "approvals", "show", approval, "-o", "json")
	script(3, "approvals", "approve", approval)
	person(0, "approvals", "approve", approval)
	person(0, change("LK 204")...)
	conversation := s.member("conversation", 0, false, append(change("LK 318"), "--yes")...)
	script(0, "approvals", "deny", s.member("approval.id", 3, false, change("LK 204")...))
	script(0, "approvals", "list", "--all")

	// An answer that is lost, and evidence that is bad.
	faults("drop-after*1")
	script(1, append(change("LK 204"), "--conversation", conversation, "--yes", "-o", "json")...)
	script(0, "review", "show", s.member("reviews.0.id", 0, false, "review", "list"))
	script(1, change("LK 318")...)
	script(3, "reconcile")
	person(0, "reconcile")
	faults("receipt-bit*1")
	script(0, append(change("LK 318"), "--yes")...)
	review := s.member("reviews.0.id", 0, false, "review", "list")
	script(1, append(change("LK 204"), "--yes")...)
	script(3, "review", "acknowledge", review)
	person(0, "review", "acknowledge", review)
	script(0, append(change("LK 204"), "--yes")...)
	script(1, "receipts", "verify")

	// What is refused for what it holds (CP-3).
	long, many := strings.Repeat("x", 201), []string{}
	for n := range 21 {
		many = append(many, "--scope", fmt.Sprint("a", n))
	}
	for _, line := range [][]string{
		{"send", "--business", air, "--message", " "},
		{"send", "--business", air, "--message", "gr\xfc\xdfe"},
		{"send", "--business", air, "--message", "Hello?", "--scope", "a b"},
		{"send", "--business", air, "--message", "Hello?", "--scope", long},
		{"send", "--business", air, "--message", "Hello?", "--conversation", long},
		append([]string{"send", "--business", air, "--message", "Hello?"}, many...),
		append([]string{"authorize", air}, many...),
		{"send", "--business", air, "--message", "Hello?", "--scope", "a, b"},
		{"authorize", air, "--scope", "a b"},
		{"authorize", long, "--scope", "a"},
		{"send", "--business", long, "--message", "Hello?"},
		{"send", "--business", "nobody", "--message", ""},
		{"reconcile", "--business", long},
		{"providers", "add", "https://provider.example", "--audience", strings.Repeat("x", 513)},
		{"providers", "add", "https://provider.example", "--audience", " "},
		{"providers", "add", "https://\xff.example", "--audience", "a"},
		{"providers", "add", "https://provider.example/" + strings.Repeat("x", 2048), "--audience", "a"},
		{"providers", "remove", "\xff"},
		{"discover", "https://air.example/" + strings.Repeat("x", 2048)},
	} {
		for _, format := range []string{"text", "json"} {
			script(1, append(slices.Clone(line), "-o", format)...)
		}
	}

	grant := s.member("grants.0.id", 0, false, "grants")
	script(3, "disconnect", grant)
	person(0, "disconnect", grant)
	script(0, "grants")
	script(0, "conversations", "list", "-o", "json")
	script(0, "status", "-o", "json")
}

// sameForAll are what differs between two profiles, or two moments, and is the same for all that.
var sameForAll = []struct {
	find *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`pa_[a-z2-7]{20,}`), "SUBJECT"},
	{regexp.MustCompile(`\b(c|m|r|grant|signin|approval|op)-[a-z2-7]{16}\b`), "$1-ID"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "SHA256"},
	{regexp.MustCompile(`(%3D|\b)[A-Z]{4}-[A-Z]{4}\b`), "CODE"},
	{regexp.MustCompile(`(thumbprint\S*  ?"?)[A-Za-z0-9_-]{43}`), "${1}THUMBPRINT"},
	{regexp.MustCompile(` --(profile|remote|remote-token-file) \S+`), ""}, // of the commands that are named: each its own
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)? UTC`), "TIME"},
	{regexp.MustCompile(`\bin \d+[smhd]\b|\b\d+[smhd] ago\b|\bnow\b`), "AWAY"},
}

func alike(s string) string {
	for _, r := range sameForAll {
		s = r.find.ReplaceAllString(s, r.with)
	}
	return s
}

// firstChange shows where two texts part.
func firstChange(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d:\n  %s\n  in its own process:\n  %s\n", i+1, g[i], w[i])
		}
	}
	if len(w) != len(g) {
		return fmt.Sprintf("it ends after %d lines, in its own process after %d\n", len(g), len(w))
	}
	return ""
}

// Every command of the agent prints the same, and ends the same, in its own process, through the
// socket of the running agent and with --remote on a loopback address.
func TestSameThroughARunningAgent(t *testing.T) {
	b := newBench(t)
	b.json(false, 0, "audiences", "set", b.box.Provider, b.box.Audience)
	control := filepath.Join(t.TempDir(), "control.token")
	if err := os.WriteFile(control, []byte(b.box.Control.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	faults := func(specs ...string) {
		t.Helper()
		a, stdout, stderr := testApp("", false)
		args := []string{"sandbox", "faults", "set", "--url", b.box.Control.URL, "--token-file", control}
		if code := a.run(t.Context(), append(args, specs...)); code != 0 {
			t.Fatalf("faults: exit %d\n%s%s", code, stdout, stderr)
		}
	}
	ran := map[string]bool{}
	note := func(steps []step) {
		for _, s := range steps {
			words := strings.Fields(s.line)
			for n := range words {
				ran[strings.Join(words[:n+1], " ")] = true
			}
		}
	}
	same := func(want, got []step, how string, alike func(string) string) {
		t.Helper()
		if len(want) != len(got) {
			t.Fatalf("%s: %d steps, want %d", how, len(got), len(want))
		}
		for i, w := range want {
			g := got[i]
			if g.code != w.code || alike(g.stdout) != alike(w.stdout) || alike(g.stderr) != alike(w.stderr) {
				t.Errorf("%s: pactctl %s: exit %d, in its own process %d\n%s%s", how, shorten(g.line, 100), g.code, w.code, firstChange(alike(w.stdout), alike(g.stdout)), firstChange(alike(w.stderr), alike(g.stderr)))
			}
		}
	}

	b.json(false, 0, "status") // which makes the profile, and says so
	own := &transcript{b: b}
	own.act(faults)
	note(own.steps)
	mine := b.profile

	b.profile = filepath.Join(t.TempDir(), "p")
	s := b.serve()
	there := &transcript{b: b}
	there.act(faults)
	same(own.steps, there.steps, "the running agent", alike)
	if log := s.log.String(); strings.Count(log, "method=SendMessage") < 10 {
		t.Errorf("the running agent did not do it:\n%s", log)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("agent serve: exit %d\n%s", code, s.log)
	}

	// What is kept is told as it is, byte by byte.
	b.profile = mine
	moment := time.Now()
	b.now = func() time.Time { return moment }
	id := func(path string, args ...string) string {
		t.Helper()
		return (&transcript{b: b}).member(path, 0, false, args...)
	}
	business := id("conversations.0.business", "conversations", "list")
	conversation := id("conversations.0.id", "conversations", "list")
	receipt := id("receipts.0.id", "receipts", "list")
	signIn := id("authorizations.0.id", "authorization", "list")
	approval := id("approvals.0.id", "approvals", "list", "--all")
	own = &transcript{b: b}
	own.read(business, conversation, receipt, signIn, approval)
	note(own.steps)
	rechecked := regexp.MustCompile(`"rechecked": "[^"]*"|"recheckedBy": "[^"]*"|(?m)^rechecked .*\n(by .*\n)?`) // each time that it is verified
	exact := func(s string) string { return rechecked.ReplaceAllString(s, "") }

	token := b.token("admin")
	s = b.serve("--listen", "127.0.0.1:0")
	for how, flags := range map[string][]string{
		"the running agent": nil,
		"--remote unix":     {"--remote", "unix:" + s.Socket},
		"--remote http":     {"--remote", s.Listen, "--remote-token-file", token},
	} {
		there := &transcript{b: b, flags: flags}
		there.read(business, conversation, receipt, signIn, approval)
		same(own.steps, there.steps, how, exact)
	}
	for _, name := range agentCommands() {
		if !ran[name] && !slices.Contains([]string{"receipts export", "agent status", "mcp"}, name) { // which have tests of their own
			t.Errorf("pactctl %s was not compared", name)
		}
	}
}

// One agent runs for a profile; what it leaves behind is gone.
func TestServeOnce(t *testing.T) {
	b := &bench{t: t, profile: filepath.Join(t.TempDir(), "p")}
	s := b.serve()
	code, stdout, stderr := b.run(false, "", "agent", "serve")
	if code != 1 || stdout != "" || !strings.Contains(stderr, fmt.Sprintf("already (pid %d): use that, or stop it first", os.Getpid())) {
		t.Errorf("a second one: exit %d\n%s%s", code, stdout, stderr)
	}
	if v := b.json(false, 0, "agent", "status"); v["running"] != true || v["socket"] != s.Socket || v["pid"] != float64(os.Getpid()) || v["timeScale"] != 1.0 || v["listen"] != nil {
		t.Errorf("status %v", v)
	}
	if code, stdout, stderr := b.run(false, "", "agent", "status"); code != 0 || !strings.HasPrefix(stdout, "The agent runs: pid ") || stderr != "" {
		t.Errorf("status: exit %d\n%s%s", code, stdout, stderr)
	}
	// The socket is what another profile's agent does not get.
	other := &bench{t: t, profile: filepath.Join(t.TempDir(), "p")}
	if code, stdout, stderr := other.run(false, "", "agent", "serve", "--socket", s.Socket); code != 1 || stdout != "" || !strings.Contains(stderr, "a running agent answers there") {
		t.Errorf("another's socket: exit %d\n%s%s", code, stdout, stderr)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit %d\n%s", code, s.log)
	}
	for _, name := range []string{serveFile, serveSocket} {
		if _, err := os.Lstat(filepath.Join(b.profile, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
	if v := b.json(false, 1, "agent", "status"); v["running"] != false || v["profile"] != b.profile {
		t.Errorf("status %v", v)
	}
	if code, _, stderr := b.run(false, "", "agent", "status"); code != 1 || !strings.Contains(stderr, "start one with pactctl agent serve") {
		t.Errorf("status: exit %d\n%s", code, stderr)
	}
	if code, _, stderr := b.run(false, "", "grants"); code != 0 || stderr != "" {
		t.Errorf("grants: exit %d\n%s", code, stderr)
	}
}

// What an agent tells of itself counts only while it runs, also where another agent has
// its socket now.
func TestServeLeftBehind(t *testing.T) {
	b := newBench(t)
	b.json(false, 0, "enroll", "--signer", b.signer)
	s := b.serve()
	if code := s.stop(); code != 0 {
		t.Fatalf("exit %d\n%s", code, s.log)
	}
	other := &bench{t: t, profile: filepath.Join(t.TempDir(), "p")}
	there := other.serve()
	s.Socket = there.Socket
	if err := s.write(); err != nil { // as after a kill
		t.Fatal(err)
	}
	if v := b.json(false, 0, "status"); v["ready"] != true {
		t.Errorf("another agent was asked: %v", v)
	}
	if strings.Contains(there.log.String(), "GetStatus") {
		t.Errorf("another agent was asked:\n%s", there.log)
	}
	b.json(false, 1, "agent", "status")
	if s = b.serve(); s.Socket == there.Socket {
		t.Error("it has another's socket")
	}
}

// What an agent cannot be started with is told before anything listens.
func TestServeRefused(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 110))
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"time scale":         {[]string{"--time-scale", "0"}, exitUsage, "--time-scale 0 is not from 1 to 3600"},
		"an empty socket":    {[]string{"--socket", ""}, exitUsage, "--socket is empty"},
		"an empty address":   {[]string{"--listen", " "}, exitUsage, "--listen is empty"},
		"another machine":    {[]string{"--listen", "192.0.2.1:0"}, exitUsage, "of this machine's own"},
		"everywhere":         {[]string{"--listen", ":0"}, exitUsage, "of this machine's own"},
		"no address":         {[]string{"--listen", "8795"}, exitUsage, "of this machine's own"},
		"a folder of others": {[]string{"--socket", filepath.Join(open, "a.sock")}, exitFailed, "others can write to the folder " + open},
		"no folder":          {[]string{"--socket", filepath.Join(open, "none", "a.sock")}, exitFailed, "no such file"},
		"a file in the way":  {[]string{"--socket", file}, exitFailed, "a file that is no socket"},
		"too long a path":    {[]string{"--socket", long}, exitFailed, "name a shorter one with --socket"},
		"a remote":           {[]string{"--remote", "unix:/x"}, exitUsage, "unknown flag: --remote"},
		"one argument":       {[]string{"now"}, exitUsage, `"now"`},
		"a profile too long": {nil, exitFailed, "name a shorter one with --socket"},
	} {
		t.Run(name, func(t *testing.T) {
			profile := filepath.Join(t.TempDir(), "p")
			if name == "a profile too long" {
				profile = long + "er"
			}
			a, stdout, stderr := testApp("", false)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // of one that is not refused
			defer cancel()
			code := a.run(ctx, append([]string{"agent", "serve", "--profile", profile}, c.args...))
			if code != c.code || stdout.Len() > 0 || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("exit %d, want %d and %q\n%s%s", code, c.code, c.says, stdout, stderr)
			}
			if _, err := os.Lstat(filepath.Join(profile, serveFile)); err == nil {
				t.Error("it says that it runs")
			}
		})
	}
}

// A running agent that cannot be reached, or does not take the caller, is told in words;
// nothing then happens in the command's own process.
func TestRemoteThatDoesNotAnswer(t *testing.T) {
	b := &bench{t: t, profile: filepath.Join(t.TempDir(), "p")}
	read := b.token("read")
	s := b.serve("--listen", "127.0.0.1:0")
	bad := filepath.Join(t.TempDir(), "bad")
	const secret = "pact_agent_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	if err := os.WriteFile(bad, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		code int
		says string
		args []string
	}{
		{"read", 0, "", []string{"grants", "--remote", s.Listen, "--remote-token-file", read}},
		{"read on the socket", 0, "", []string{"grants", "--remote", "unix:" + s.Socket, "--remote-token-file", read}},
		{"more than read", 1, "scope_required", []string{"policy", "off", "--remote", s.Listen, "--remote-token-file", read}},
		{"more than read on the socket", 1, "scope_required", []string{"policy", "off", "--remote", "unix:" + s.Socket, "--remote-token-file", read}},
		{"a wrong token", 1, "does not accept the token", []string{"grants", "--remote", s.Listen, "--remote-token-file", bad}},
		{"a wrong token on the socket", 1, "does not accept the token", []string{"grants", "--remote", "unix:" + s.Socket, "--remote-token-file", bad}},
		{"nothing there", 1, "no agent answers at http://127.0.0.1:1: start it with pactctl agent serve", []string{"grants", "--remote", "http://127.0.0.1:1", "--remote-token-file", read}},
		{"another development", 2, "start it so, pactctl agent serve --development", []string{"grants", "--development"}},
		{"the status of one", 0, "", []string{"agent", "status", "--remote", s.Listen, "--remote-token-file", read}},
	} {
		code, stdout, stderr := b.run(false, "", c.args...)
		if code != c.code || !strings.Contains(stderr, c.says) || strings.Contains(stdout+stderr, secret) || (code == 0) != (stdout != "") {
			t.Errorf("%s: exit %d\n%s%s", c.name, code, stdout, stderr)
		}
	}
	if v := b.json(false, 1, "policy", "off", "--remote", s.Listen, "--remote-token-file", read); v["status"] != "blocked" || v["reason"] != "scope_required" {
		t.Errorf("more than read: %v", v)
	}
	b.json(false, 0, "agent", "tokens", "revoke", "read", "--yes")
	if code, _, stderr := b.run(false, "", "grants", "--remote", s.Listen, "--remote-token-file", read); code != 1 || !strings.Contains(stderr, "does not accept the token") {
		t.Errorf("a revoked token: exit %d\n%s", code, stderr)
	}
	s.stop()
	if code, stdout, stderr := b.run(false, "", "grants", "--remote", "unix:"+s.Socket); code != 1 || stdout != "" || !strings.Contains(stderr, "is the agent running?") {
		t.Errorf("stopped: exit %d\n%s%s", code, stdout, stderr)
	}
}

// AP-1, AP-4, CL-2: who cannot give the owner's word is not asked for it: what they ask for
// waits for who can, on a terminal too.
func TestAskingWithAToken(t *testing.T) {
	b := newBench(t)
	air := b.box.Brands[0].Card
	b.json(false, 0, "enroll", "--signer", b.signer)
	b.json(false, 0, "audiences", "set", b.box.Provider, b.box.Audience)
	b.json(true, 0, "authorize", air, "--scope", "flights:rebook")
	token := b.token("operator")
	s := b.serve("--listen", "127.0.0.1:0")
	there := []string{"--remote", s.Listen, "--remote-token-file", token}
	// terminal runs a command with the token, and says yes to all.
	terminal := func(args ...string) (code int, stderr string) {
		t.Helper()
		a, stdout, out := testApp(strings.Repeat("y\n", 3), true)
		code = a.run(t.Context(), append(args, there...))
		if stdout.Len() > 0 || strings.Contains(out.String(), "Send it?") || strings.Contains(out.String(), "--yes") {
			t.Errorf("%q: exit %d\n%s%s", args, code, stdout, out)
		}
		return code, out.String()
	}
	code, stderr := terminal("send", "--business", air, "--scope", "flights:rebook", "--message", "Rebook me onto LK 318")
	waiting := b.json(false, 0, "approvals", "list")["approvals"].([]any)
	if code != 3 || len(waiting) != 1 {
		t.Fatalf("exit %d, %v\n%s", code, waiting, stderr)
	}
	id := waiting[0].(map[string]any)["id"].(string)
	if !strings.HasSuffix(stderr, ": go on with: pactctl approvals approve "+id+", as the owner (the token used here has the scope operator)\n") || !strings.Contains(stderr, "\n  Rebook me onto LK 318\n") {
		t.Errorf("told\n%s", stderr)
	}
	if code, stderr := terminal("approvals", "approve", id); code != 1 || !strings.Contains(stderr, "scope_required: to approve needs the scope admin, and the token used here has operator") {
		t.Errorf("approve with the token: exit %d\n%s", code, stderr)
	}
	if v := b.json(false, 1, append([]string{"approvals", "approve", id, "--yes"}, there...)...); v["reason"] != "scope_required" {
		t.Errorf("approve with the token: %v", v)
	}
	if v := b.json(false, 0, "approvals", "approve", id, "--yes"); v["status"] != "replied" {
		t.Errorf("approve %v", v)
	}
	if code, stderr := terminal("demo"); code != 1 || !strings.Contains(stderr, "the token has the scope operator, and the demo does what takes admin") {
		t.Errorf("demo: exit %d\n%s", code, stderr)
	}
}

// PO-1: where PACT_DISABLED switches PACT off, an agent that does not know of it is not
// used. A receipt leaves the profile in the command's own process alone (CP-4).
func TestNotThroughTheRunningAgent(t *testing.T) {
	b := &bench{t: t, profile: filepath.Join(t.TempDir(), "p")}
	s := b.serve()
	before := s.log.String()
	if code, stdout, stderr := b.run(false, "", "receipts", "export", "r-none"); code != 1 || stdout != "" || !strings.Contains(stderr, "pactctl receipts list lists them") {
		t.Errorf("export: exit %d\n%s%s", code, stdout, stderr)
	}
	t.Setenv("PACT_DISABLED", "1")
	if v := b.json(false, 1, "discover", "larkline.example"); v["reason"] != "disabled_by_env" {
		t.Errorf("discover %v", v)
	}
	if code, stdout, _ := b.run(false, "", "policy", "show"); code != 0 || !strings.Contains(stdout, "PACT_DISABLED      set: off\n") {
		t.Errorf("policy show: exit %d\n%s", code, stdout)
	}
	if now := s.log.String(); now != before {
		t.Errorf("the running agent was asked:\n%s", now)
	}
	t.Setenv("PACT_DISABLED", "")
	if code, stdout, _ := b.run(false, "", "policy", "show"); code != 0 || !strings.Contains(stdout, "PACT_DISABLED      not set\n") || s.log.String() == before {
		t.Errorf("policy show: exit %d\n%s", code, stdout)
	}
}

// CL-2, DA-17: an interrupted wait ends the same through a running agent, which goes on with
// the sign-in by itself.
func TestInterruptedThroughARunningAgent(t *testing.T) {
	b := newBench(t)
	b.json(false, 0, "enroll", "--signer", b.signer)
	b.json(false, 0, "audiences", "set", b.box.Provider, b.box.Audience)
	// interrupted runs a command on a terminal until a link is on it.
	interrupted := func(args ...string) (code int, stdout, stderr, link string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		links := make(chan string, 1)
		term := &terminal{onLink: func(link string) { links <- link; cancel() }}
		var out bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: term, now: time.Now, zone: time.UTC, person: true}
		code = a.run(ctx, append(args, "--profile", b.profile))
		select {
		case link = <-links:
		default:
			t.Fatalf("%q: no link: exit %d\n%s%s", args, code, out.String(), term)
		}
		return code, out.String(), unhinted(term.String(), []string{"--profile", b.profile}), link
	}
	authorize := []string{"authorize", b.box.Brands[0].Card, "--scope", "flights:upcoming:read"}
	code, stdout, stderr, _ := interrupted(authorize...)
	id := b.json(false, 0, "authorization", "list")["authorizations"].([]any)[0].(map[string]any)["id"].(string)
	goOn := "pactctl: stopped waiting; go on with: pactctl authorization wait " + id + "\n"
	if code != exitInterrupted || stdout != "" || !strings.HasSuffix(stderr, goOn) {
		t.Fatalf("in its own process: exit %d\n%s%s", code, stdout, stderr)
	}
	b.serve()
	for _, args := range [][]string{{"authorization", "wait", id}, authorize} {
		code, stdout, stderr, link := interrupted(args...)
		if code != exitInterrupted || stdout != "" || !strings.HasSuffix(stderr, goOn) {
			t.Errorf("%q: exit %d\n%s%s", args, code, stdout, stderr)
		}
		if v := b.json(false, 3, "authorization", "status", id); v["state"] != "pending" {
			t.Errorf("%q: %v", args, v)
		}
		if args[0] != "authorize" {
			continue
		}
		if _, err := (person.Person{Login: b.box.Login}).AllowAll(t.Context(), link); err != nil {
			t.Fatal(err)
		}
	}
	if v := b.json(false, 0, "authorization", "wait", id); v["status"] != "done" {
		t.Errorf("wait %v", v)
	}
	b.json(false, 0, "authorization", "status", id)
}
