package browser

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/storage"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pactsigner/pactsigner/internal/console"
	"github.com/pactsigner/pactsigner/internal/console/consoletest"
	"github.com/pactsigner/pactsigner/signer"
)

// consoleTime is when made-up fleets are looked at.
var consoleTime = time.Date(2026, 11, 30, 3, 12, 40, 0, time.UTC)

// openConsole serves the operator's page of a made-up fleet.
func openConsole(t *testing.T, service *consoletest.Service) string {
	t.Helper()
	c, err := console.New(console.Config{
		Admin:   func() (console.Admin, bool) { return service, true },
		Issuers: []console.Issuer{{URL: consoletest.Issuer, Period: 30 * 24 * time.Hour, Lead: time.Hour}},
		Replica: "pact-signer-7d9f-a", Version: "1.4.0",
		Secret: func(context.Context) ([]byte, error) { return make([]byte, 32), nil }, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return consoleTime },
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	return srv.URL
}

// signInAsOperator signs in and has the page hold still.
func signInAsOperator(b *tab, address, token string) {
	b.t.Helper()
	b.visit(address)
	b.at("Sign in")
	b.write("Admin token", token)
	b.press("Sign in")
	b.follow("Hold still")
}

// consoleStates are the page in every state that a fleet can be in: how it is headed,
// and what it must say.
var consoleStates = []struct {
	name, heading string
	fleet         func() *consoletest.Service
	says          []string
}{
	{"calm", "Nothing is stopped", func() *consoletest.Service { return consoletest.Calm(consoleTime) }, []string{
		"30 Nov 2026 03:12:40 UTC by replica pact-signer-7d9f-a", "All 3 replicas", "The next key is published at 19 Dec 03:12:40 UTC (in 19 days)", "184,223", "found again",
		"Last 60 min: 88,968 signed, 120 refused, 0 failed.", "Every replica that the store knows has reported it.",
	}},
	{"rotation-published", "Nothing is stopped", func() *consoletest.Service { return consoletest.Published(consoleTime, 27*time.Minute) }, []string{
		"Rotation in progress: the next key is published", "Key Tz81bYwQ… takes over from 9f3KQm2v… at 30 Nov 03:39:40 UTC (in 27 min).", "Replicas that serve it: 3 of 3.",
	}},
	{"rotation-retiring", "Nothing is stopped", func() *consoletest.Service { return consoletest.Retiring(consoleTime, 18*time.Minute) }, []string{
		"Rotation in progress: the old key is retiring", "Key 9f3KQm2v… leaves the key set at 30 Nov 03:54:40 UTC (in 42 min).",
	}},
	{"rotation-postponed", "Attention needed", func() *consoletest.Service { return consoletest.Postponed(consoleTime) }, []string{
		"the rotation is postponed by 80 s", "only 2 of 3 replicas serve the next key", "pact-signer-7d9f-c serves schedule 11",
	}},
	{"emergency", "No key signs for 1 issuer", func() *consoletest.Service { return consoletest.Emergency(consoleTime) }, []string{
		"was revoked at 30 Nov 03:12:31 UTC (9 s ago)", "waits to sign until every replica serves it: 2 of 3 do",
	}},
	{"revoked", "Attention needed", func() *consoletest.Service { return consoletest.Revoked(consoleTime) }, []string{
		"Emergency: a key was revoked", "was revoked 40 min ago",
	}},
	{"stopped-all", "Everything is stopped", func() *consoletest.Service {
		s := consoletest.Calm(consoleTime)
		s.Throw(4*time.Minute, "all", "", "", "key material seen on a shared disk, INC-2207", 0)
		return s
	}, []string{
		"No issuer of this deployment issues any token", "30 Nov 03:08:40 UTC (4 min ago)", "ops@example.com", "key material seen on a shared disk, INC-2207", "Stopped by the kill switch",
	}},
	{"stopped-narrow", "Signing, but for 2 stops", func() *consoletest.Service {
		s := consoletest.Calm(consoleTime)
		s.Throw(3*time.Hour, "device", "k3JwT0sYbQ8rXvLm2NcZ5uHaEoPiDfGtKjVqWxRyA1B", consoletest.Issuer, "lost phone, ticket 4711", 24*time.Hour)
		s.Throw(11*time.Minute, "audience", "a2a-air-7f31", consoletest.Issuer, "provider asked us to hold", 0)
		return s
	}, []string{
		"Everybody and everything else gets tokens", "the device k3JwT0sYbQ8rXvLm2NcZ5uHaEoPiDfGtKjVqWxRyA1B of https://pa.example.com", "the audience a2a-air-7f31", "in 21 h",
	}},
	{"several-issuers", "Nothing is stopped", func() *consoletest.Service {
		s := consoletest.Calm(consoleTime)
		s.AddOther()
		return s
	}, []string{"https://agents.example.org", "1 of the keys is in the table only", "RS256"}},
	{"issuer-stopped", "1 issuer stopped", func() *consoletest.Service {
		s := consoletest.Calm(consoleTime)
		s.AddOther()
		s.Throw(90*time.Minute, "issuer", consoletest.Other, "", "retired", 0)
		return s
	}, []string{"the issuer https://agents.example.org: it issues no token", "The switch does not stop the other issuers"}},
	{"replica-silent", "Attention needed", func() *consoletest.Service {
		s := consoletest.Calm(consoleTime)
		s.Silence()
		return s
	}, []string{"pact-signer-7d9f-c is silent for 8 s: its permit has run out, so it signs nothing", "pact-signer-64bb-x is gone"}},
	{"store-away", "Not known: the switch cannot be read", func() *consoletest.Service {
		s := consoletest.Calm(consoleTime)
		s.StoreAway()
		return s
	}, []string{"Do not take this for calm", "Kill switch: Unknown", "connection refused", "by this replica’s own clock"}},
	{"activity-missing", "Nothing is stopped", func() *consoletest.Service {
		s := consoletest.Calm(consoleTime)
		s.Activity = nil
		return s
	}, []string{"Not available. This signer does not tell."}},
}

// closely are the states that are looked at in all sizes where nobody asks for
// pictures: between them they have every part of the page.
var closely = map[string]bool{"emergency": true, "stopped-narrow": true, "several-issuers": true, "store-away": true}

// Each state of a fleet is shown as what it is, on a page that anybody can read.
func TestConsole(t *testing.T) {
	t.Parallel()
	for _, s := range consoleStates {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			b := newTab(t)
			signInAsOperator(b, openConsole(t, s.fleet()), consoletest.ViewerToken)
			b.at(s.heading)
			for _, said := range s.says {
				b.reads(said)
			}
			examine(t, b, "console-"+s.name, closely[s.name])
		})
	}
}

// examine holds a page to what it is held to in all sizes, or in two.
func examine(t *testing.T, b *tab, name string, close bool) {
	t.Helper()
	var problems []string
	if close || screenshots != "" {
		problems = look(b, name)
	} else {
		problems = append(listen(b), measure(b)...)
		b.resize(sizes[2])
		problems = append(problems, measure(b)...)
		b.resize(sizes[0])
	}
	for _, p := range problems {
		t.Error(p)
	}
}

// Who has no session is asked for a token, and told nothing else; a session can do
// nothing but look, and ends with the sign-out or the token.
func TestConsoleSignIn(t *testing.T) {
	t.Parallel()
	b, service := newTab(t), consoletest.Calm(consoleTime)
	address := openConsole(t, service)
	b.visit(address)
	b.at("Sign in")
	if strings.Contains(b.read(), consoletest.Issuer) {
		t.Errorf("who is not signed in reads:\n%s", b.read())
	}
	examine(t, b, "console-sign-in", true)

	b.write("Admin token", "not it")
	if status := b.press("Sign in"); status != http.StatusUnauthorized {
		t.Errorf("a wrong token: status %d", status)
	}
	b.at("Sign in")
	b.reads("This token is not accepted")
	examine(t, b, "console-sign-in-refused", true)
	// By keyboard: after a token that is refused the field has the focus.
	b.write("Admin token", "not it")
	b.press("Sign in")
	b.await("field that has the focus", func() bool { // Chromium gives it after the page is there
		return eval[bool](b, `document.activeElement?.name === "token"`)
	})
	b.keys(consoletest.AdminToken)
	if status := b.pressKey(kb.Enter); status != http.StatusOK {
		t.Errorf("after the sign-in: status %d", status)
	}
	b.at("Nothing is stopped")
	b.reads("Signed in as initial (admin) until 30 Nov 04:12:40 UTC")
	if b.address() != address+"/" || strings.Contains(b.read(), consoletest.AdminToken) {
		t.Errorf("at %s:\n%s", b.address(), b.read())
	}
	if service.Roles[signer.RoleAdmin] || !service.Roles[signer.RoleViewer] {
		t.Errorf("the page asks as %v", service.Roles)
	}
	for _, c := range do(b, storage.GetCookies, storage.GetCookiesParams{}).Cookies {
		if !c.HTTPOnly || c.SameSite != "Strict" || !c.Session || c.Path != "/" || strings.Contains(c.Value, consoletest.AdminToken) {
			t.Errorf("the cookie %s: HttpOnly %t, SameSite %s, of the session %t, path %s", c.Name, c.HTTPOnly, c.SameSite, c.Session, c.Path)
		}
	}

	b.follow("Hold still")
	b.press("Sign out")
	b.at("Sign in")
	if cookies := do(b, storage.GetCookies, storage.GetCookiesParams{}).Cookies; len(cookies) > 0 {
		t.Errorf("%d cookies are left after the sign-out", len(cookies))
	}

	signInAsOperator(b, address, consoletest.ViewerToken)
	service.Tokens = nil // withdrawn
	b.reload()
	b.at("Sign in")
	b.reads("your token was changed or withdrawn")
	for range 20 {
		b.write("Admin token", "not it either")
		if b.press("Sign in") == http.StatusTooManyRequests {
			b.reads("Too many tokens from your address were refused")
			examine(t, b, "console-sign-in-too-many", false)
			return
		}
	}
	t.Error("tokens can be tried without end")
}

// The page reads again by itself, unless it is told to hold still.
func TestConsoleRefreshes(t *testing.T) {
	t.Parallel()
	b, service := newTab(t), consoletest.Calm(consoleTime)
	signInAsOperator(b, openConsole(t, service), consoletest.ViewerToken)
	b.follow("Read every 10 s")
	b.at("Nothing is stopped")
	service.Throw(time.Second, "all", "", "", "drill", 0)
	b.await("page that says what happened meanwhile", func() bool {
		// While Chromium changes pages it has none to ask: an error is "not yet".
		ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
		defer cancel()
		heading, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.querySelector("h1")?.innerText ?? ""`))
		return err == nil && heading == "Everything is stopped"
	})
}

// A form of another website signs nobody in, and nobody may put the page into a frame.
func TestConsoleElsewhere(t *testing.T) {
	t.Parallel()
	b, service := newTab(t), consoletest.Calm(consoleTime)
	address := openConsole(t, service)
	b.visit("data:text/html,<!doctype html><title>Elsewhere</title><form method=post action=" + address + "/sign-in><input type=hidden name=token value=" + consoletest.ViewerToken + "><button>Win</button></form>")
	if status := b.press("Win"); status != http.StatusForbidden {
		t.Errorf("status %d", status)
	}
	b.at("This was refused")
	examine(t, b, "console-elsewhere", false)
	if cookies := do(b, storage.GetCookies, storage.GetCookiesParams{}).Cookies; len(cookies) > 0 {
		t.Errorf("%d cookies", len(cookies))
	}
}
