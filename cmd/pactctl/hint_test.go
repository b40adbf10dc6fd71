package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

// What is pasted from a text of ours works with the agent that the command worked with.
func TestHints(t *testing.T) {
	a, _, _ := testApp("", false)
	root := newRootCmd(a)
	profile, remote := [2]string{"profile", shellQuoted("/my profile")}, [2]string{"remote", "desk"}
	for _, c := range []struct {
		hints      hints
		text, want string
	}{
		{hints{root: root}, "pactctl status", "pactctl status"},
		{hints{root: root, given: [][2]string{profile}}, "approve it with pactctl approvals approve approval-1, or pactctl review", "approve it with pactctl approvals approve --profile '/my profile' approval-1, or pactctl review --profile '/my profile'"},
		{hints{root: root, given: [][2]string{profile}}, "its operator: pactctl audiences set ORIGIN; pactctl keys list; pactctl; a pactctlx status", "its operator: pactctl audiences set ORIGIN; pactctl keys list; pactctl; a pactctlx status"},
		{hints{root: root, given: [][2]string{profile}}, `the business says "run pactctl policy off": pactctl doctor`, `the business says "run pactctl policy off": pactctl doctor --profile '/my profile'`},
		{hints{root: root, given: [][2]string{profile}}, "pactctl agent serve --profile DIR", "pactctl agent serve --profile DIR"},
		{hints{root: root, given: [][2]string{profile}}, "start one with pactctl agent serve.", "start one with pactctl agent serve --profile '/my profile'."},
		{hints{root: root, given: [][2]string{remote, {"remote-token-file", "t"}}, serve: serveThere("http://127.0.0.1:8795")}, "pactctl grants; pactctl agent serve; pactctl agent tokens create", "pactctl grants --remote desk --remote-token-file t; pactctl agent serve --listen 127.0.0.1:8795; pactctl agent tokens create"},
		{hints{root: root, serve: serveThere("unix:/p/agent.sock")}, "Start it with: pactctl agent serve", "Start it with: pactctl agent serve --profile /p"},
		{hints{root: root, serve: serveThere("unix:/run/x y.sock")}, "pactctl agent serve", "pactctl agent serve --socket '/run/x y.sock'"},
	} {
		if got := c.hints.text(c.text); got != c.want || c.hints.text(got) != got {
			t.Errorf("%q:\n got %q\nwant %q", c.text, got, c.want)
		}
	}
	a, stdout, _ := testApp("", true)
	a.width, a.hints = columns, hints{root: root, given: [][2]string{{"profile", "'/my 100% own profile'"}}}
	a.printer(a.stdout).say(0, "This line is broken at its eightieth column, and not in a command: pactctl authorization list. %s", "pactctl status")
	const want = "This line is broken at its eightieth column, and not in a command:\npactctl authorization list --profile '/my 100% own profile'. pactctl status\n"
	if got := stdout.String(); got != want {
		t.Errorf("on a terminal: %q", got)
	}
	if got := shellQuoted("it's"); got != `'it'\''s'` {
		t.Errorf("quoted: %s", got)
	}
}

// A hint of a command, pasted, finds what that command left; also in JSON, and with a name
// that a shell would take apart.
func TestHintPasted(t *testing.T) {
	b := newBench(t)
	b.profile = filepath.Join(t.TempDir(), "my profile")
	b.json(false, 0, "enroll", "--signer", b.signer)
	b.json(false, 0, "audiences", "set", b.box.Provider, b.box.Audience)
	run := func(args ...string) (int, string, string) {
		a, stdout, stderr := testApp("", false)
		a.now = time.Now
		code := a.run(t.Context(), append(args, "--profile", b.profile))
		return code, stdout.String(), stderr.String()
	}
	code, _, stderr := run("send", "--business", b.box.Brands[0].Card, "--message", "Cancel my next flight")
	_, hint, _ := strings.Cut(stderr, "approve it with pactctl ")
	hint, _, _ = strings.Cut(hint, ", or")
	id, ok := strings.CutPrefix(hint, "approvals approve --profile '"+b.profile+"' ")
	if code != exitAct || !ok {
		t.Fatalf("exit %d\n%s", code, stderr)
	}
	a, stdout, errs := testApp("", false)
	a.now = time.Now
	if code := a.run(t.Context(), []string{"approvals", "show", "--profile", b.profile, id}); code != 0 || !strings.Contains(stdout.String(), "Cancel my next flight") {
		t.Errorf("pasted: exit %d\n%s%s", code, stdout, errs)
	}
	if code, stdout, stderr := run("status"); code != 0 || !strings.Contains(stdout, "pactctl approvals list --profile '"+b.profile+"'") {
		t.Errorf("status: exit %d\n%s%s", code, stdout, stderr)
	}
	run("policy", "off")
	if code, stdout, stderr := run("status", "-o", "json"); code != 0 || !strings.Contains(stdout, "pactctl policy on --profile '"+b.profile+"'") {
		t.Errorf("JSON: exit %d\n%s%s", code, stdout, stderr)
	}
}

// What is read on another terminal names the profile that the environment chose here.
func TestHintsElsewhere(t *testing.T) {
	a, _, _ := testApp("", false)
	a.hints.root = newRootCmd(a)
	for _, chosen := range []string{"", "PACT_PROFILE", "XDG_DATA_HOME"} {
		t.Setenv("PACT_PROFILE", "")
		t.Setenv("XDG_DATA_HOME", "")
		want := "pactctl review"
		if chosen != "" {
			t.Setenv(chosen, t.TempDir())
			want += " --profile /data/pactctl/agent"
		}
		p := &profile{app: a}
		if got := p.hintsElsewhere(place{dir: "/data/pactctl/agent"}).text("pactctl review"); got != want {
			t.Errorf("%s: %s", chosen, got)
		}
	}
}

// What a business says names no command of ours, whatever is in it.
func TestHintInABusinessWords(t *testing.T) {
	a, _, _ := testApp("", false)
	a.hints = hints{root: newRootCmd(a), given: [][2]string{{"profile", "p"}}}
	p := &profile{app: a}
	for status, want := range map[agent.Status]string{agent.StatusFailed: "pactctl policy off", agent.StatusBlocked: "pactctl policy off --profile p"} {
		if err := p.resultErrorWith(agent.Result{Status: status, Reason: "x", Detail: "pactctl policy off"}, ""); !strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("%s: %v", status, err)
		}
	}
}

// PO-6: a policy that is named for one command is not set aside by an agent that runs.
func TestPoliciesOfACommand(t *testing.T) {
	b := &bench{t: t, profile: filepath.Join(t.TempDir(), "p")}
	named := filepath.Join(t.TempDir(), "policies.json")
	if err := os.WriteFile(named, []byte(`{"pact": {"blockedProviders": ["*.example"]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(filepath.Dir(named), "other.json")
	stop := b.serve().stop
	for _, file := range []string{named, other} {
		t.Setenv("PACT_POLICIES", file)
		if code, stdout, stderr := b.run(false, "", "policy", "show"); code != exitUsage || stdout != "" || !strings.Contains(stderr, "does not read "+file) {
			t.Errorf("%s: exit %d\n%s%s", file, code, stdout, stderr)
		}
	}
	stop()
	t.Setenv("PACT_POLICIES", named)
	b.serve()
	if code, stdout, stderr := b.run(false, "", "policy", "show"); code != 0 || !strings.Contains(stdout, "*.example") {
		t.Errorf("an agent that reads it: exit %d\n%s%s", code, stdout, stderr)
	}
	t.Setenv("PACT_POLICIES", other)
	if code, _, stderr := b.run(false, "", "policy", "show"); code != exitUsage || !strings.Contains(stderr, "does not read "+other) {
		t.Errorf("another file: exit %d\n%s", code, stderr)
	}
}

// An agent whose profile was removed writes nothing any more, and stops; what was put in
// its place it leaves alone.
func TestServeProfileGone(t *testing.T) {
	b := &bench{t: t, profile: filepath.Join(t.TempDir(), "p")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, _, stderr := testApp("", false)
	ready, out := newReady()
	a.stdout = out
	ended := make(chan int, 1)
	go func() { ended <- a.run(ctx, []string{"agent", "serve", "--profile", b.profile}) }()
	select {
	case <-ready:
	case code := <-ended:
		t.Fatalf("exit %d\n%s", code, stderr)
	}
	if err := os.Rename(b.profile, b.profile+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(b.profile, 0o700); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(b.profile, serveFile)
	if err := os.WriteFile(kept, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := &bench{t: t, profile: b.profile + ".old"}
	if code, _, stderr := old.run(false, "", "policy", "off", "--remote", "unix:"+filepath.Join(old.profile, serveSocket)); code == 0 {
		t.Errorf("it writes where nobody finds it: %s", stderr)
	}
	if code := <-ended; code != exitFailed || !strings.Contains(stderr.String(), "is gone, or another is in its place") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what is there now is another's: %v", err)
	}
}

// newReady tells once something was written.
func newReady() (<-chan struct{}, *readyWriter) {
	w := &readyWriter{ready: make(chan struct{})}
	return w.ready, w
}

type readyWriter struct {
	once  bool
	ready chan struct{}
}

func (w *readyWriter) Write(b []byte) (int, error) {
	if !w.once {
		w.once = true
		close(w.ready)
	}
	return len(b), nil
}

// A bare environment makes no profile where nobody looks for one.
func TestNoPlaceForAProfile(t *testing.T) {
	for name, c := range map[string]struct{ home, data, says string }{
		"nothing is set":  {"", "", "neither HOME nor XDG_DATA_HOME"},
		"a relative path": {t.TempDir(), "data", "no absolute path"},
	} {
		contextsOf(t, "")
		t.Setenv("HOME", c.home)
		t.Setenv("XDG_DATA_HOME", c.data)
		a, stdout, stderr := testApp("", false)
		if code := a.run(t.Context(), []string{"status"}); code != exitUsage || stdout.Len() > 0 || !strings.Contains(stderr.String(), c.says) || !strings.Contains(stderr.String(), "--profile DIR") {
			t.Errorf("%s: exit %d\n%s%s", name, code, stdout, stderr)
		}
	}
}

// A token file with anything else in it is told by its name.
func TestTokenFileWithMore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bom.token")
	for _, text := range []string{"\ufeffpact_agent_x", "pact\xff", "a b", "", "a\nb"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readToken("remote token", file); err == nil || !strings.Contains(err.Error(), file+" does not hold one token on one line") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
