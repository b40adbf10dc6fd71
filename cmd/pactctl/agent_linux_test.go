package main

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

var countingDown = regexp.MustCompile(` Waiting for the sign-in at Larkline Air, (10:00|0[5-9]:\d\d) left`)

// onTerminal is a bench's person in front of a real terminal.
func (b *bench) onTerminal(answers ...string) sitting {
	return sitting{
		columns: 80, lines: 50, answers: answers,
		env: append(os.Environ(), "PACT_PROFILE="+b.profile, "TZ=UTC", "TERM=xterm", "PACT_KEYRING=off", "GORACE=atexit_sleep_ms=0"),
		onLink: func(link string) {
			if _, err := (person.Person{Login: b.box.Login}).AllowAll(context.Background(), link); err != nil {
				b.t.Errorf("sign in: %v", err)
			}
		},
	}
}

// A second interrupt ends what does not hear the first one.
func TestInterruptedTwice(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// What a shell runs in the background ignores interrupts, and so do its children.
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, os.Interrupt)
	defer signal.Stop(heard)
	cmd := exec.CommandContext(ctx, "pactctl", "receipts", "verify", "-")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write(make([]byte, 1<<17)); err != nil { // more than a pipe holds: it reads
		t.Error(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how is in ProcessState
	}()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for n := 0; ; {
		select {
		case <-again.C:
			_ = cmd.Process.Signal(os.Interrupt) // it may just have ended
			n++
			continue
		case <-ended:
		}
		if s := cmd.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGINT || n < 2 {
			t.Errorf("after %d interrupts: %v", n, cmd.ProcessState)
		}
		return
	}
}

// CL-2, CL-3, DA-13, DA-17: link and code are on a terminal alone, and a wait that is not to
// be, or is over, leaves the sign-in pending and ends with exit code 3.
func TestSignInOnATerminal(t *testing.T) {
	b := newBench(t)
	air := b.box.Brands[0].Card
	b.json(false, 0, "enroll", "--signer", b.signer)
	b.json(false, 0, "audiences", "set", b.box.Provider, b.box.Audience)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	authorize := []string{"authorize", air, "--scope", "flights:upcoming:read"}
	hidden := func(what, text string) {
		t.Helper()
		for _, part := range []string{"login?", "user_code", "Open  ", "Code  "} {
			if strings.Contains(text, part) {
				t.Errorf("%s: the link or its code shows:\n%s", what, text)
			}
		}
	}
	absent := b.onTerminal()
	absent.onLink = nil
	code, terminal, _ := absent.run(ctx, t, append(authorize, "--exit-on-input")...)
	hidden("--exit-on-input", terminal)
	if code != 3 || !strings.Contains(terminal, "pactctl authorization wait ") {
		t.Errorf("--exit-on-input: exit %d\n%s", code, terminal)
	}
	pending := b.json(false, 0, "authorization", "list")["authorizations"].([]any)[0].(map[string]any)
	id := pending["id"].(string)
	if v := b.json(false, 3, "authorization", "status", id); v["state"] != "pending" {
		t.Errorf("status %v", v)
	}
	code, stdout, stderr := b.run(false, "", "authorization", "wait", id, "--timeout", "2s", "-o", "json")
	hidden("off a terminal", stdout+stderr)
	if code != 3 {
		t.Errorf("off a terminal: exit %d\n%s%s", code, stdout, stderr)
	}
	code, terminal, _ = absent.run(ctx, t, append(authorize, "--timeout", "10s")...)
	if code != 3 || !strings.Contains(terminal, "Open  http") || !countingDown.MatchString(terminal) ||
		!strings.HasSuffix(onGlass(terminal), "business_consent_required: go on with: pactctl authorization wait "+id+"\n") {
		t.Errorf("--timeout: exit %d\n%s\n%s", code, onGlass(terminal), terminal)
	}

	// The link is on the terminal also where the result goes elsewhere, and only there.
	present := b.onTerminal()
	present.pipe = true
	code, terminal, piped := present.run(ctx, t, "authorization", "wait", id, "-o", "json")
	hidden("the pipe", piped)
	if code != 0 || !strings.Contains(terminal, "Open  http") || !strings.Contains(piped, `"status": "done"`) {
		t.Errorf("wait: exit %d\n%s%s", code, terminal, piped)
	}
	if v := b.json(false, 0, "authorization", "status", id); v["state"] != "granted" {
		t.Errorf("status %v", v)
	}

	// AP-1, AP-4: a change is asked about on the terminal, and what is not y is no; what
	// was typed before the question is no answer.
	hasty := b.onTerminal("n")
	hasty.ahead = "y\n"
	code, terminal, _ = hasty.run(ctx, t, "send", "--business", air, "--message", "Rebook me onto LK 318", "--scope", "flights:upcoming:read")
	if code != 1 || !strings.Contains(terminal, "denied: local_approval_denied") {
		t.Errorf("declined: exit %d\n%s", code, terminal)
	}
	grant := b.json(false, 0, "grants")["grants"].([]any)[0].(map[string]any)["id"].(string)
	hasty = b.onTerminal("n")
	hasty.ahead = "y\n"
	code, terminal, _ = hasty.run(ctx, t, "disconnect", grant)
	if v := b.json(false, 0, "grants")["grants"].([]any)[0].(map[string]any); code != 1 || v["state"] != "active" || !strings.Contains(terminal, "declined: nothing was done") {
		t.Errorf("declined: exit %d, %v\n%s", code, v, terminal)
	}
	code, terminal, _ = b.onTerminal().run(ctx, t, "send", "--business", air, "--message", "Rebook me onto LK 318", "--exit-on-input")
	if code != 3 || strings.Contains(terminal, "[y/N]") {
		t.Errorf("--exit-on-input: exit %d\n%s", code, terminal)
	}
}
