package browser

import (
	"cmp"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/sandbox"
)

// states are every page in every state: how it comes up, and how it is headed.
var states = []struct {
	name    string
	heading string
	show    func(w *world, b *tab)
	// title is whose title it shares; its own if empty.
	title string
	with  func(*sandbox.Config)
}{
	{name: "login", heading: "Sign in", show: func(w *world, b *tab) { b.visit(w.ask(everything).Link) }},
	{name: "login-wrong-password", heading: "Sign in", show: func(w *world, b *tab) {
		b.visit(w.ask(everything).Link)
		w.tryPassword(b, "not it")
	}},
	{name: "login-too-often", heading: "Sign in", show: func(w *world, b *tab) {
		b.visit(w.ask(everything).Link)
		for range 50 {
			if w.tryPassword(b, "not it") == http.StatusTooManyRequests {
				return
			}
		}
		w.t.Fatal("passwords can be tried without end")
	}},
	{name: "signed-in", heading: "You are signed in", show: func(w *world, b *tab) { w.signIn(b, w.ask(everything).Link) }},
	{name: "code", heading: "Enter your code", show: func(w *world, b *tab) {
		w.signIn(b, w.ask(everything).Page)
		b.press("Continue")
	}},
	{name: "code-wrong", heading: "Enter your code", show: func(w *world, b *tab) {
		w.signIn(b, w.ask(everything).Page)
		b.press("Continue")
		b.write("Code", "BCDF")
		b.press("Continue")
	}},
	{name: "consent", heading: consentHeading, show: func(w *world, b *tab) { w.open(b, w.ask(everything).Link) }},
	{name: "consent-one", title: "consent", heading: consentHeading, show: func(w *world, b *tab) {
		w.register("the-most-helpful-assistant-of-them-all-whose-name-has-no-end")
		w.open(b, w.ask(scopeUpcoming).Link)
	}},
	{name: "consent-long-words", heading: consentHeading, with: longWinded, show: func(w *world, b *tab) { w.open(b, w.ask(everything).Link) }},
	{name: "approved", heading: "Access allowed", show: func(w *world, b *tab) { w.grant(b, everything) }},
	{name: "denied", heading: "Nothing was allowed", show: func(w *world, b *tab) {
		w.open(b, w.ask(everything).Link)
		b.press("Don’t allow")
	}},
	{name: "answered-approved", heading: "You have answered already", show: func(w *world, b *tab) { w.answerTwice(b, "Allow") }},
	{name: "answered-denied", heading: "You have answered already", show: func(w *world, b *tab) { w.answerTwice(b, "Don’t allow") }},

	{name: "error-link", heading: "This link does not work", show: func(w *world, b *tab) { b.visit(w.ask(everything).Link + "x") }},
	{name: "error-used", heading: "This page was used already", show: func(w *world, b *tab) {
		w.open(b, w.ask(everything).Link)
		b.reload()
	}},
	{name: "error-late", heading: "This page has run out", show: func(w *world, b *tab) {
		w.signIn(b, w.ask(everything).Link)
		w.clock.advance(time.Hour)
		b.press("Continue")
	}},
	{name: "error-nobody-waits", heading: "Nobody waits for this any more", show: func(w *world, b *tab) {
		b.visit(w.ask(everything).Link)
		w.clock.advance(time.Hour)
		w.finishSignIn(b)
		b.press("Continue")
	}},
	{name: "error-not-asked", heading: "Nobody asked for this", show: func(w *world, b *tab) {
		w.open(b, w.ask(scopeUpcoming).Link)
		eval[any](b, `void (document.querySelector("[name=scope]").value = "flights:cancel")`)
		b.press("Allow")
	}},
	{name: "error-form", heading: "This form could not be read", show: func(w *world, b *tab) {
		w.signIn(b, w.ask(everything).Link)
		eval[any](b, `document.querySelector("[name=assertion]").remove()`)
		b.press("Continue")
	}},
	{name: "error-address", heading: "This address is not complete", show: func(w *world, b *tab) {
		b.visit(w.ready.Provider + "/a2a/" + sandbox.LarklineID + "/oauth/connected")
	}},
	{name: "error-elsewhere", heading: "Sent from another website", show: func(w *world, b *tab) {
		b.visit("data:text/html,<!doctype html><title>Elsewhere</title><form method=post action=" + strings.Split(w.ask(everything).Link, "?")[0] + "><button>Win</button></form>")
		b.press("Win")
	}},

	{name: "owner-login", heading: "Log in", show: func(w *world, b *tab) { b.visit(w.ready.Owner.URL) }},
	{name: "owner-login-wrong-password", heading: "Log in", show: func(w *world, b *tab) {
		b.visit(w.ready.Owner.URL)
		b.write("Owner’s password", "not it")
		b.press("Log in")
	}},
	{name: "owner-empty", heading: "What users allowed", show: func(w *world, b *tab) { w.openOwner(b) }},
	{name: "owner-list", heading: "What users allowed", show: func(w *world, b *tab) {
		w.use(w.grant(b, everything))
		w.grant(b, scopeUpcoming)
		w.openOwner(b)
	}},
	{name: "owner-grant", heading: "Grant at Larkline Air", show: func(w *world, b *tab) {
		w.use(w.grant(b, everything))
		w.openOwner(b)
		b.follow("Larkline Air")
	}},
	{name: "owner-receipts", title: "owner-grant", heading: "Grant at Larkline Air", show: func(w *world, b *tab) {
		w.use(w.grant(b, everything))
		w.openOwner(b)
		b.follow("Larkline Air")
		eval[any](b, `document.querySelectorAll("details").forEach((d) => { d.open = true })`)
	}},
	{name: "owner-long-words", heading: "What users allowed", title: "owner-list", with: longWinded, show: func(w *world, b *tab) {
		w.grant(b, everything)
		w.openOwner(b)
	}},
	{name: "owner-revoke", heading: "Revoke this grant?", show: func(w *world, b *tab) {
		w.grant(b, everything)
		w.openOwner(b)
		b.follow("Larkline Air")
		b.follow("Revoke…")
	}},
	{name: "owner-revoked", heading: "Grant at Larkline Air", show: func(w *world, b *tab) {
		w.grant(b, everything)
		w.openOwner(b)
		b.follow("Larkline Air")
		b.follow("Revoke…")
		b.press("Revoke")
	}},
	{name: "owner-error", heading: "There is no such grant", show: func(w *world, b *tab) {
		w.openOwner(b)
		b.visit(w.ready.Owner.URL + "/grants/a2agrant_01M8F2XW4QK7Z3V9TB5RC0NONE")
	}},
}

// answerTwice answers once more with the same page, as a click on a page does that
// Chromium kept.
func (w *world) answerTwice(b *tab, decision string) {
	w.t.Helper()
	w.open(b, w.ask(everything).Link)
	session := eval[string](b, `document.querySelector("[name=session]").value`)
	b.press(decision)
	w.open(b, w.ask(everything).Link)
	eval[any](b, `void (document.querySelector("[name=session]").value = "`+session+`")`)
	b.press(decision)
	if decision == "Allow" {
		b.reads("You allowed access with this page.")
	} else {
		b.reads("Nothing was allowed with this page.")
	}
}

// tryPassword is a login that may fail.
func (w *world) tryPassword(b *tab, password string) int {
	w.t.Helper()
	b.write("Email", robin.Email)
	b.write("Password", password)
	return b.press("Sign in")
}

// TestPages looks at every page in every state. Each has a title of its own.
func TestPages(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	titles := map[string]string{}
	for _, s := range states {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w, b := newWorld(t, s.with), newTab(t)
			s.show(w, b)
			b.at(s.heading)
			for _, p := range look(b, s.name) {
				t.Error(p)
			}
			title, owner := b.focus().Title, cmp.Or(s.title, s.name)
			mu.Lock()
			defer mu.Unlock()
			if other, ok := titles[title]; ok && other != owner {
				t.Errorf("the title %q is that of %s too", title, other)
			}
			titles[title] = owner
		})
	}
}

// longWinded makes the airline one of long words, and of a language with other
// letters.
func longWinded(c *sandbox.Config) {
	air := sandbox.Larkline(c.Now())
	air.Name = "Überlandflugverkehrsgesellschaftsvereinigung Люфтганза"
	for i := range air.Scopes {
		air.Scopes[i].Description = strings.Repeat("Buchungsänderungsbestätigungsbenachrichtigung", i+1) + " & <b>more</b> of it"
	}
	air.NotShared = []string{strings.Repeat("Zahlungsverkehr", 12)}
	c.Brands = []sandbox.Brand{air}
}
