package browser

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pactsigner/pactsigner/sandbox"
)

// What is done twice: each page works once, nothing of a second time counts, and
// the page says what became of the first.

// A reload sends the assertion once more. The way on is to sign in again.
func TestReloadOfConsent(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(scopeUpcoming)
	w.open(b, r.Link)
	if status := b.reload(); status != http.StatusBadRequest {
		t.Errorf("status %d", status)
	}
	b.at("This page was used already")
	w.wantRefused(r, "authorization_pending")
	b.follow("Sign in again")
	w.finishSignIn(b)
	b.press("Continue")
	b.at(consentHeading)
	b.press("Allow")
	w.wantGranted(r, scopeUpcoming)
}

// The last page says what its address says, as often as one likes.
func TestReloadOfLastPage(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(scopeUpcoming)
	w.open(b, r.Link)
	b.press("Allow")
	b.at("Access allowed")
	if status := b.reload(); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	b.at("Access allowed")
	w.wantGranted(r, scopeUpcoming)
}

// The back button after each page. A page that was posted Chromium posts again
// only when asked to.
func TestBackToLogin(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(scopeUpcoming)
	w.signIn(b, r.Link)
	if !b.back() {
		t.Fatal("the login is gone")
	}
	w.finishSignIn(b)
	b.press("Continue")
	b.press("Allow")
	b.at("Access allowed")
	w.wantGranted(r, scopeUpcoming)
}

func TestBackToSignedIn(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(scopeUpcoming)
	w.open(b, r.Link)
	if !b.back() {
		b.reload() // posts the password again
	}
	b.at("You are signed in")
	b.press("Continue")
	b.at(consentHeading)
	b.press("Allow")
	b.at("Access allowed")
	w.wantGranted(r, scopeUpcoming)
}

func TestBackToConsent(t *testing.T) {
	t.Parallel()
	for decision, last := range map[string]string{"Allow": "Access allowed", "Don’t allow": "Nothing was allowed"} {
		t.Run(decision, func(t *testing.T) {
			w, b := newWorld(t), newTab(t)
			r := w.ask(everything)
			w.open(b, r.Link)
			b.press(decision)
			b.at(last)
			if b.back() {
				t.Error("Chromium kept the page")
			}
			b.reload()
			b.at("This page was used already")
			b.follow("Sign in again")
			w.finishSignIn(b)
			b.press("Continue")
			if decision == "Allow" {
				b.at("Access allowed")
				w.wantGranted(r, everything)
			} else {
				b.at("Nobody waits for this any more")
				w.wantRefused(r, "access_denied")
			}
		})
	}
}

// A second tab with the same link: the first answer counts.
func TestSecondTab(t *testing.T) {
	t.Parallel()
	w, first := newWorld(t), newTab(t)
	r := w.ask(everything)
	w.open(first, r.Link)
	second := first.another()
	w.open(second, r.Link)
	third := first.another()
	w.signIn(third, r.Link)

	second.click("checkbox", sayCancel)
	second.press("Allow")
	second.at("Access allowed")
	first.press("Don’t allow")
	first.at("Nobody waits for this any more")
	third.press("Continue")
	third.at("Access allowed")
	w.wantGranted(r, scopeUpcoming+" "+scopeHistory+" "+scopeRebook)
}

// A double click on each button sends the page twice before the first answer is
// there. What the person then sees is true, and leads on.
func TestDoubleSubmit(t *testing.T) {
	t.Parallel()
	for name, decision := range map[string]string{"allow": "Allow", "deny": "Don’t allow"} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			w, b := newWorld(t, g.front), newTab(t)
			g.open(w.sandbox.Provider())
			r := w.ask(scopeUpcoming)
			w.signIn(b, r.Link)

			g.pressTwice(b, "Continue")
			// One of the two had the assertion.
			if b.heading() == "This page was used already" {
				b.follow("Sign in again")
				w.finishSignIn(b)
				b.press("Continue")
			}
			b.at(consentHeading)

			g.pressTwice(b, decision)
			allowed := decision == "Allow"
			switch last := b.heading(); {
			case last == "You have answered already":
				b.reads(map[bool]string{true: "You allowed access with this page", false: "Nothing was allowed with this page"}[allowed])
			case last != map[bool]string{true: "Access allowed", false: "Nothing was allowed"}[allowed]:
				t.Errorf("the page is headed %q", last)
			}
			if allowed {
				w.wantGranted(r, scopeUpcoming)
			} else {
				w.wantRefused(r, "access_denied")
			}
		})
	}
}

// gate is a server in front of a sandbox's Provider that holds the first of two
// posted forms back until the second is there.
type gate struct {
	server *httptest.Server

	mu      sync.Mutex
	handler http.Handler
	missing int
	full    chan struct{} // closed when no form is missing
}

func newGate(t *testing.T) *gate {
	g := &gate{full: make(chan struct{})}
	close(g.full)
	g.server = httptest.NewServer(g)
	t.Cleanup(g.server.Close)
	return g
}

// front makes the gate the Provider's address.
func (g *gate) front(c *sandbox.Config) { c.PublicURL = g.server.URL }

func (g *gate) open(h http.Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handler = h
}

// awaited tells how many forms are missing.
func (g *gate) awaited() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.missing
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	handler := g.handler
	held := g.missing > 0 && r.Method == http.MethodPost
	if held {
		if g.missing--; g.missing == 0 {
			close(g.full)
		}
	}
	full := g.full
	g.mu.Unlock()
	if held {
		// The browser gives the first up when it sends the second. It still reaches the
		// sandbox, as it does in the field.
		select {
		case <-full:
		case <-r.Context().Done():
		}
		r = r.WithContext(context.WithoutCancel(r.Context()))
	}
	handler.ServeHTTP(w, r)
}

// pressTwice clicks a button once more after what the first click sent is there.
// The page that comes up is the second's.
func (g *gate) pressTwice(b *tab, name string) {
	b.t.Helper()
	g.mu.Lock()
	g.missing, g.full = 2, make(chan struct{})
	g.mu.Unlock()
	// The first page load is given up, which is an error to who waits for one: the
	// new page is known by the mark that it does not bear.
	eval[bool](b, `document.pressedTwice = true`)
	x, y := b.center(b.element("button", name))
	b.clickAt(x, y)
	b.await("form at the gate", func() bool { return g.awaited() < 2 })
	b.clickAt(x, y)
	b.await("page after "+name, func() bool {
		// While Chromium changes pages it has none to ask: an error is "not yet".
		ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
		defer cancel()
		there, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`!document.pressedTwice && document.readyState === "complete"`))
		return err == nil && there
	})
}
