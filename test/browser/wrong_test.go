package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/storage"
)

// A request runs out while its page is open: nothing is allowed any more, at
// whichever page the person is.
func TestExpired(t *testing.T) {
	t.Parallel()
	for at, steps := range map[string]func(w *world, b *tab, late func()){
		"login": func(w *world, b *tab, late func()) {
			late()
			w.finishSignIn(b)
			b.press("Continue")
			b.at("Nobody waits for this any more")
		},
		"signed in": func(w *world, b *tab, late func()) {
			w.finishSignIn(b)
			late()
			b.press("Continue")
			b.at("This page has run out")
		},
		"consent": func(w *world, b *tab, late func()) {
			w.finishSignIn(b)
			b.press("Continue")
			b.at(consentHeading)
			late()
			b.press("Allow")
			b.at("This page has run out")
		},
	} {
		t.Run(at, func(t *testing.T) {
			w, b := newWorld(t), newTab(t)
			r := w.ask(everything)
			b.visit(r.Link)
			steps(w, b, func() { w.clock.advance(time.Hour) })
			w.wantRefused(r, "expired_token")
		})
	}
}

// A link that was changed leads nowhere, and least of all elsewhere.
func TestTamperedLink(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the browser was sent to another website")
	}))
	t.Cleanup(elsewhere.Close)
	w, b := newWorld(t), newTab(t)
	r := w.ask(everything)
	login, query, _ := strings.Cut(r.Link, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	honest := values.Get("return_to")
	for _, changed := range []string{
		"", honest + "x", honest + "&scope=all", strings.Replace(honest, "/consent", "/connected", 1),
		elsewhere.URL, elsewhere.URL + "/consent?user_code=" + r.UserCode, "//" + strings.TrimPrefix(elsewhere.URL, "http://"),
		strings.Replace(honest, "http://", "http://"+strings.TrimPrefix(elsewhere.URL, "http://")+"/@", 1), "javascript:alert(1)",
	} {
		if status := b.visit(login + "?return_to=" + url.QueryEscape(changed)); status != http.StatusBadRequest {
			t.Errorf("return_to %q: status %d", changed, status)
		}
		b.at("This link does not work")
	}
	// Somebody else's code: nobody waits for it.
	code := strings.Replace(honest, r.UserCode, "BBBB-BBBB", 1)
	w.signIn(b, login+"?return_to="+url.QueryEscape(code))
	b.press("Continue")
	b.at("Nobody waits for this any more")
	w.wantRefused(r, "authorization_pending")
}

// A page of another website posts a form to ours: nothing happens.
func TestForeignForm(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(everything)
	_, query, _ := strings.Cut(r.Link, "?")
	values, _ := url.ParseQuery(query)
	form := fmt.Sprintf(`<!doctype html><title>Elsewhere</title><form method="post" action="%s"><input type="hidden" name="return_to" value="%s">`+
		`<input type="hidden" name="email" value="%s"><input type="hidden" name="password" value="%s"><button>Win</button></form>`,
		strings.Split(r.Link, "?")[0], values.Get("return_to"), robin.Email, robin.Password)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		rw.Header().Set("Content-Security-Policy", "img-src 'none'")
		_, _ = rw.Write([]byte(form))
	}))
	t.Cleanup(elsewhere.Close)
	for _, origin := range []string{elsewhere.URL, "data:text/html," + url.PathEscape(form)} {
		b.visit(origin)
		if status := b.press("Win"); status != http.StatusForbidden {
			t.Errorf("status %d", status)
		}
		b.at("Sent from another website")
	}
}

// A page of ours is shown in no frame.
func TestNoFrame(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(everything)
	outer := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		rw.Header().Set("Content-Security-Policy", "img-src 'none'")
		_, _ = fmt.Fprintf(rw, `<!doctype html><title>Elsewhere</title><iframe src="%s"></iframe>`, r.Link)
	}))
	t.Cleanup(outer.Close)
	b.visit(outer.URL)
	frames := do(b, page.GetFrameTree, cdp.Empty{}).FrameTree.ChildFrames
	if len(frames) != 1 {
		t.Fatalf("%d frames", len(frames))
	}
	if f := frames[0].Frame; !strings.HasPrefix(f.URL, "chrome-error:") || !strings.HasPrefix(f.UnreachableURL, r.Link) {
		t.Errorf("the frame shows %s", f.URL)
	}
	b.objects("frame-ancestors") // the page refuses to be framed
}

// Signing in and allowing leave nothing behind in the browser, and need nothing.
func TestNoCookies(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	r := w.ask(scopeUpcoming)
	w.open(b, r.Link)
	b.press("Allow")
	b.at("Access allowed")
	if cookies := do(b, storage.GetCookies, storage.GetCookiesParams{}).Cookies; len(cookies) > 0 {
		t.Errorf("%d cookies", len(cookies))
	}
	if kept := eval[int](b, "localStorage.length + sessionStorage.length"); kept > 0 {
		t.Errorf("%d items in the browser's storage", kept)
	}
	w.wantGranted(r, scopeUpcoming)
}
