package browser

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/sandbox"
)

// Both forms of a sandbox: the login on the brands' own domain, and all on one
// origin.
var origins = map[string]func(*sandbox.Config){
	"two origins": nil,
	"one origin":  func(c *sandbox.Config) { c.OneOrigin = true },
}

func TestApproveAll(t *testing.T) {
	t.Parallel()
	for name, form := range origins {
		t.Run(name, func(t *testing.T) {
			w, b := newWorld(t, form), newTab(t)
			r := w.ask(everything)
			w.wantRefused(r, "authorization_pending")
			w.open(b, r.Link)
			b.reads(r.UserCode)
			b.reads(w.issuer)
			for _, said := range []string{sayUpcoming, sayHistory, sayRebook, sayCancel} {
				b.reads(said)
			}
			b.press("Allow")
			b.at("Access allowed")
			got := w.wantGranted(r, everything)
			if status, said := w.say("Show my upcoming flights", got.AccessToken); status != http.StatusOK || !strings.Contains(said, "upcoming flights") {
				t.Errorf("with the grant the airline answers %d %q", status, said)
			}
		})
	}
}

func TestApproveSome(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(scopeUpcoming + " " + scopeRebook + " " + scopeCancel)
	w.open(b, r.Link)
	if strings.Contains(b.read(), sayHistory) {
		t.Error("the page lists a permission that nobody asked for")
	}
	b.click("checkbox", sayRebook)
	b.click("checkbox", sayCancel)
	b.click("checkbox", sayCancel) // and back again
	b.press("Allow")
	b.at("Access allowed")
	w.wantGranted(r, scopeUpcoming+" "+scopeCancel)
}

func TestDeny(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(everything)
	w.open(b, r.Link)
	b.press("Don’t allow")
	b.at("Nothing was allowed")
	w.wantRefused(r, "access_denied")
}

// Allow with nothing ticked is no.
func TestNothingTicked(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(scopeUpcoming)
	w.open(b, r.Link)
	b.click("checkbox", sayUpcoming)
	b.press("Allow")
	b.at("Nothing was allowed")
	w.wantRefused(r, "access_denied")
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(scopeUpcoming)
	b.visit(r.Link)
	b.write("Email", robin.Email)
	b.write("Password", "not it")
	if status := b.press("Sign in"); status != http.StatusForbidden {
		t.Errorf("status %d", status)
	}
	b.reads("Email or password is not right")
	// The email is still there, the password is not.
	b.write("Password", robin.Password)
	b.press("Sign in")
	b.at("You are signed in")
	b.press("Continue")
	b.press("Allow")
	w.wantGranted(r, scopeUpcoming)
}

// A code is typed when the link does not hold it: a wrong one is asked for again,
// in lower case and without the dash it is right.
func TestCodeByHand(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(scopeUpcoming)
	w.signIn(b, r.Page)
	b.press("Continue")
	b.at("Enter your code")
	b.write("Code", "not a code")
	b.press("Continue")
	b.at("Enter your code")
	b.reads("a code has eight letters")
	b.write("Code", "BCDF-GHJK")
	b.press("Continue")
	b.at("Enter your code")
	b.reads("Nothing waits for this code")
	b.write("Code", " "+strings.ToLower(strings.ReplaceAll(r.UserCode, "-", ""))+" ")
	b.press("Continue")
	b.at(consentHeading)
	b.reads(r.UserCode)
	b.press("Allow")
	b.at("Access allowed")
	w.wantGranted(r, scopeUpcoming)
}
