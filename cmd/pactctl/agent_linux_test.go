package main

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/sandbox"
)

var countingDown = regexp.MustCompile(` Waiting for the sign-in at Larkline Air, (10:00|09:5\d) left`)

// onTerminal is a bench's person in front of a real terminal.
func (b *bench) onTerminal(answers ...string) sitting {
	return sitting{
		columns: 80, lines: 50, answers: answers,
		env: append(os.Environ(), "PACT_PROFILE="+b.profile, "TZ=UTC", "TERM=xterm", "PACT_KEYRING=off", "GORACE=atexit_sleep_ms=0"),
		onLink: func(link string) {
			if _, err := (sandbox.Person{Login: b.box.Login}).AllowAll(context.Background(), link); err != nil {
				b.t.Errorf("sign in: %v", err)
			}
		},
	}
}

// CL-2, CL-3, DA-13, DA-17: link and code are on a terminal alone, and a wait that is not to
// be, or is over, leaves the sign-in pending and ends with exit code 3.
func TestSignInOnATerminal(t *testing.T) {
	b := newBench(t)
	air := b.box.Brands[0].Card
	b.json(false, 0, "enroll", "--signer", b.signer)
	b.json(false, 0, "audiences", "set", b.box.Provider, b.box.Audience)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
	code, stdout, stderr := b.run(false, "", "authorization", "wait", id, "--timeout", "100ms", "-o", "json")
	hidden("off a terminal", stdout+stderr)
	if code != 3 {
		t.Errorf("off a terminal: exit %d\n%s%s", code, stdout, stderr)
	}
	code, terminal, _ = absent.run(ctx, t, append(authorize, "--timeout", "2s")...)
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
	code, terminal, _ = b.onTerminal().run(ctx, t, "send", "--business", air, "--message", "Rebook me onto LK 318", "--exit-on-input")
	if code != 3 || strings.Contains(terminal, "[y/N]") {
		t.Errorf("--exit-on-input: exit %d\n%s", code, terminal)
	}
}
