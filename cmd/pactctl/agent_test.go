package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// bench is a signer and a business to run agent commands against.
type bench struct {
	t       *testing.T
	info    server.Info
	signer  string
	box     sandbox.Ready
	profile string
	now     func() time.Time // of the commands; nil: the true one
}

func newBench(t *testing.T) *bench {
	t.Helper()
	cfg := config.Default()
	cfg.Data = t.TempDir()
	for _, l := range []*config.Listener{&cfg.Listeners.Public, &cfg.Listeners.GRPC, &cfg.Listeners.Admin, &cfg.Listeners.Ops} {
		l.Address = "127.0.0.1:0"
	}
	s, err := server.New(cfg, server.Options{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	<-s.Ready()
	params := sandbox.Defaults()
	params.DeviceInterval = time.Second
	box, err := sandbox.New(sandbox.Config{PasswordMemory: 64, Params: params})
	if err != nil {
		t.Fatal(err)
	}
	box.Start()
	t.Cleanup(func() { box.Close() })
	return &bench{t: t, info: s.Info(), signer: s.Info().Public, box: box.Ready(), profile: filepath.Join(t.TempDir(), "profile")}
}

// terminal is a person's: it reads what is asked, and acts on a sign-in link.
type terminal struct {
	mu     sync.Mutex
	text   bytes.Buffer
	onLink func(link string)
	onWait func()    // a wait for a sign-in begins
	answer io.Writer // stdin
}

var linkLine = regexp.MustCompile(`(?m)^Open  (\S+)$`)

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.text.Write(p)
	if m := linkLine.FindSubmatch(p); m != nil && t.onLink != nil {
		go t.onLink(string(m[1]))
	}
	if bytes.HasPrefix(p, []byte("Waiting for the sign-in at ")) && t.onWait != nil {
		t.onWait()
	}
	if bytes.HasSuffix(p, []byte("[y/N] ")) && t.answer != nil {
		go func() { _, _ = io.WriteString(t.answer, "y\n") }()
	}
	return n, err
}

func (t *terminal) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// run runs a command line; off a terminal if human is false.
func (b *bench) run(human bool, stdin string, args ...string) (code int, stdout, stderr string) {
	b.t.Helper()
	in, answers := io.Pipe()
	defer answers.Close()
	term := &terminal{answer: answers, onLink: func(link string) {
		if _, err := (person.Person{Login: b.box.Login}).AllowAll(context.Background(), link); err != nil {
			b.t.Errorf("sign in: %v", err)
		}
	}}
	var out bytes.Buffer
	a := &app{stdin: in, stdout: &out, stderr: term, now: time.Now, zone: time.UTC, person: human}
	if b.now != nil {
		a.now = b.now
	}
	if !human {
		a.stdin = strings.NewReader(stdin)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	if args[0] == "audiences" {
		args = append(args, "--server", b.info.Admin, "--token-file", b.info.AdminTokenFile)
	} else if !slices.Contains(args, "--remote") {
		args = append(args, "--profile", b.profile)
	}
	code = a.run(ctx, args)
	return code, unhinted(out.String(), args), unhinted(term.String(), args)
}

// unhinted is what a command printed without the flags by which it chose its agent, in
// the commands that it named.
func unhinted(text string, args []string) string {
	for i, arg := range args[:len(args)-1] {
		if slices.Contains(agentFlags, strings.TrimPrefix(arg, "--")) {
			text = strings.ReplaceAll(text, " "+arg+" "+shellQuoted(args[i+1]), "")
		}
	}
	return text
}

// json runs a command that must end with a code, and decodes its output.
func (b *bench) json(person bool, want int, args ...string) map[string]any {
	b.t.Helper()
	code, stdout, stderr := b.run(person, "", append(args, "-o", "json")...)
	var v map[string]any
	if err := json.Unmarshal([]byte(stdout), &v); code != want || err != nil {
		b.t.Fatalf("%v: exit %d, want %d (%v)\n%s%s", args, code, want, err, stdout, stderr)
	}
	return v
}

func TestAgentCommands(t *testing.T) {
	b := newBench(t)
	air, books := b.box.Brands[0].Card, b.box.Brands[1].Card

	if v := b.json(false, 0, "status"); v["ready"] != false || v["reason"] != "disabled_in_settings" {
		t.Errorf("status %v", v)
	}
	v := b.json(false, 0, "enroll", "--signer", b.signer)
	if v["issuer"] != b.signer || v["development"] != true || !strings.HasPrefix(v["subject"].(string), "pa_") {
		t.Errorf("enroll %v", v)
	}
	if v := b.json(false, 0, "status"); v["ready"] != true {
		t.Errorf("status %v", v)
	}
	// No audience is known; then one that the signer does not sign for.
	if v := b.json(false, 1, "send", "--business", books, "--message", "Do you have Woolf?"); v["reason"] != "audience_not_configured" || !strings.Contains(v["detail"].(string), "pactctl audiences set "+b.box.Provider+" AUDIENCE") {
		t.Errorf("without audience: %v", v)
	}
	b.json(false, 0, "providers", "add", b.box.Provider, "--audience", b.box.Audience)
	if v := b.json(false, 1, "send", "--business", books, "--message", "Do you have Woolf?"); v["reason"] != "audience_not_registered" {
		t.Errorf("unregistered: %v", v)
	}
	b.json(false, 0, "audiences", "set", b.box.Provider, b.box.Audience)
	if v := b.json(false, 0, "discover", air); v["name"] != "Larkline Air" || v["supported"] != true {
		t.Errorf("discover %v", v)
	}
	if v := b.json(false, 0, "send", "--business", books, "--message", "Do you have Woolf?"); v["status"] != "replied" || v["evidence"] != nil {
		t.Errorf("identity turn %v", v)
	}

	// CL-3: off a terminal there is no link, and the exit code is 3.
	code, stdout, stderr := b.run(false, "", "send", "--business", air, "--message", "Show my upcoming flights", "-o", "json")
	if code != 3 || !strings.Contains(stdout, `"needs_user_action"`) || strings.Contains(stdout+stderr, "login?") || strings.Contains(stdout+stderr, "user_code") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	// On one the link is on stderr, and the command goes on once the person is through.
	code, stdout, stderr = b.run(true, "", "send", "--business", air, "--message", "Show my upcoming flights", "-o", "json")
	if code != 0 || !strings.Contains(stdout, `"verified"`) || strings.Contains(stdout, "login?") || !strings.Contains(stderr, "Open  http") {
		t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
	}

	// AP-2, AP-4: a change is shown whole and asked about.
	change := []string{"send", "--business", air, "--message", "Rebook me onto LK 318", "--scope", "flights:rebook"}
	if v := b.json(false, 3, change...); v["reason"] != "local_approval_required" || v["approval"].(map[string]any)["message"] != "Rebook me onto LK 318" {
		t.Errorf("approval %v", v)
	}
	code, stdout, stderr = b.run(false, "", append(change, "--yes")...)
	for _, part := range []string{"Effect: change", "/message:send", "flights:rebook", "SHA-256: ", "  Rebook me onto LK 318", "Confirmed by --yes"} {
		if !strings.Contains(stderr, part) {
			t.Errorf("%q is not shown:\n%s", part, stderr)
		}
	}
	if code != 3 { // it needs a sign-in for flights:rebook
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = b.run(true, "", change...)
	if code != 0 || !strings.Contains(stdout, "The business signed for what it says it did.") || !strings.Contains(stderr, "Send it? [y/N]") {
		t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
	}

	checked := b.json(false, 0, "receipts", "verify")["receipts"].([]any)
	if len(checked) != 2 {
		t.Errorf("receipts %v", checked)
	}
	for _, r := range checked {
		if r := r.(map[string]any); r["verdict"] != "verified" || r["recheck"].(map[string]any)["verdict"] != "verified" {
			t.Errorf("receipt %v", r)
		}
	}
	grants := b.json(false, 0, "grants")["grants"].([]any)
	id := grants[0].(map[string]any)["id"].(string)
	code, stdout, stderr = b.run(false, "", "disconnect", id)
	if code != 3 || stdout != "" || !strings.Contains(stderr, "This ends "+id+" at b-") || !strings.Contains(stderr, "answer with --yes") {
		t.Errorf("disconnect unasked: exit %d\n%s%s", code, stdout, stderr)
	}
	if v := b.json(false, 0, "grants")["grants"].([]any)[0].(map[string]any); v["state"] != "active" {
		t.Errorf("disconnected unasked: %v", v)
	}
	if v := b.json(false, 0, "disconnect", id, "--yes"); v["grant"].(map[string]any)["state"] != "disconnected" {
		t.Errorf("disconnect %v", v)
	}
	code, stdout, stderr = b.run(false, "", "disconnect", id) // nothing is left to ask about
	if code != 0 || !strings.Contains(stdout, "had been disconnected already") {
		t.Errorf("disconnect again: exit %d\n%s%s", code, stdout, stderr)
	}
	conversations := b.json(false, 0, "conversations", "list")["conversations"].([]any)
	for _, args := range [][]string{
		{"conversations", "show", conversations[0].(map[string]any)["id"].(string)},
		{"conversations", "list"}, {"grants"}, {"receipts", "list"}, {"authorization", "list"}, {"providers", "list"}, {"status"}, {"discover", air},
		{"receipts", "show", b.json(false, 0, "receipts", "list")["receipts"].([]any)[0].(map[string]any)["id"].(string)},
	} {
		if code, stdout, stderr := b.run(false, "", args...); code != 0 || strings.Count(stdout, "\n") < 1 || stderr != "" {
			t.Errorf("%v: exit %d\n%s%s", args, code, stdout, stderr)
		}
	}
	// AP-1: --yes is no standing approval.
	if code, stdout, stderr := b.run(false, "Rebook me\n", "chat", air, "--yes"); code != 2 || stdout != "" || !strings.Contains(stderr, "--yes") {
		t.Errorf("chat --yes: exit %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = b.run(false, "Where is Woolf?\n\nAnd Joyce?\n/quit\n", "chat", books)
	if code != 0 || len(strings.TrimSpace(stdout)) == 0 {
		t.Errorf("chat: exit %d\n%s%s", code, stdout, stderr)
	}
}
