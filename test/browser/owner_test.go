package browser

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/storage"
)

// openOwner logs in to the owner's page.
func (w *world) openOwner(b *tab) {
	w.t.Helper()
	b.visit(w.ready.Owner.URL)
	b.at("Log in")
	b.write("Owner’s password", ownerPassword)
	b.press("Log in")
	b.at("What users allowed")
}

// grant has a person allow everything that is asked for.
func (w *world) grant(b *tab, scopes string) tokens {
	w.t.Helper()
	r := w.ask(scopes)
	w.open(b, r.Link)
	b.press("Allow")
	b.at("Access allowed")
	return w.wantGranted(r, scopes)
}

// use has the agent do something under a grant, which gives receipts.
func (w *world) use(got tokens) {
	w.t.Helper()
	for _, text := range []string{"Show my upcoming flights", "Rebook me onto LK 318", "Hello"} {
		if status, said := w.say(text, got.AccessToken); status != http.StatusOK || said == "" {
			w.t.Fatalf("%q: status %d, %q", text, status, said)
		}
		w.clock.advance(time.Second)
	}
}

// The owner looks at a grant and its receipts, and revokes it: then the agent's
// tokens are refused.
func TestOwner(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	got := w.grant(b, scopeUpcoming+" "+scopeRebook)
	w.use(got)

	// Nobody gets there without the password.
	b.visit(w.ready.Owner.URL + "/grants/x")
	b.at("Log in")
	b.write("Owner’s password", "not it")
	if status := b.press("Log in"); status != http.StatusForbidden {
		t.Errorf("status %d", status)
	}
	b.reads("The password is not right")
	w.openOwner(b)
	for _, c := range do(b, storage.GetCookies, storage.GetCookiesParams{}).Cookies {
		if !c.HTTPOnly || c.SameSite != "Strict" || !c.Session || c.Path != "/owner" {
			t.Errorf("the cookie %s: HttpOnly %t, SameSite %s, of the session %t, path %s", c.Name, c.HTTPOnly, c.SameSite, c.Session, c.Path)
		}
	}

	for _, said := range []string{w.issuer, "Robin", sayUpcoming, sayRebook, "Active"} {
		b.reads(said)
	}
	if strings.Contains(b.read(), sayCancel) {
		t.Error("the list has a permission that was not given")
	}
	b.follow("Larkline Air")
	b.at("Grant at Larkline Air")
	for _, said := range []string{"3 receipts", "list_upcoming_trips", "rebook_flight", scopeUpcoming, scopeRebook} {
		b.reads(said)
	}

	b.follow("Revoke…")
	b.at("Revoke this grant?")
	b.follow("Keep it")
	b.at("Grant at Larkline Air")
	if status, _ := w.say("Show my upcoming flights", got.AccessToken); status != http.StatusOK {
		t.Fatalf("after a look at the question the agent is refused: status %d", status)
	}
	b.follow("Revoke…")
	b.press("Revoke")
	b.at("Grant at Larkline Air")
	b.reads("Revoked")
	if status, _ := w.say("Show my upcoming flights", got.AccessToken); status != http.StatusUnauthorized {
		t.Errorf("after the revocation the agent gets status %d, not 401", status)
	}
	var refreshed tokens
	w.postForm("oauth/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {got.RefreshToken}}, &refreshed)
	if refreshed.Error != "invalid_grant" || refreshed.AccessToken != "" {
		t.Errorf("after the revocation a refresh gets error %q", refreshed.Error)
	}
	// Once more changes nothing.
	b.back()
	b.press("Revoke")
	b.at("Grant at Larkline Air")
	b.reads("Revoked")

	b.press("Log out")
	b.at("Log in")
	b.visit(w.ready.Owner.URL)
	b.at("Log in")
	if cookies := do(b, storage.GetCookies, storage.GetCookiesParams{}).Cookies; len(cookies) > 0 {
		t.Errorf("%d cookies are left after the logout", len(cookies))
	}
}

// The owner's whole way with the keyboard.
func TestOwnerByKeyboard(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	got := w.grant(b, scopeUpcoming)
	b.visit(w.ready.Owner.URL)
	b.tabTo("textbox Owner’s password")
	b.typed(ownerPassword)
	b.pressKey(enter)
	b.tabTo("link Larkline Air")
	b.pressKey(enter)
	b.tabTo("link Revoke…")
	b.pressKey(enter)
	b.at("Revoke this grant?")
	b.tabTo("button Revoke")
	b.pressKey(space)
	b.reads("Revoked")
	if status, _ := w.say("Show my upcoming flights", got.AccessToken); status != http.StatusUnauthorized {
		t.Errorf("after the revocation the agent gets status %d, not 401", status)
	}
}

// A login ends by itself, and a form of it with it.
func TestOwnerSessionEnds(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	w.grant(b, scopeUpcoming)
	w.openOwner(b)
	b.follow("Larkline Air")
	b.follow("Revoke…")
	w.clock.advance(2 * time.Hour)
	b.press("Revoke")
	b.at("Log in")
	w.openOwner(b)
	b.reads("Active")
}

// The owner's page is for a browser on this machine that came by its own name for
// it: with another Host there is nothing.
func TestOwnerOfThisMachineOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for host, want := range map[string]int{
		"": http.StatusOK, "localhost": http.StatusOK, "[::1]:80": http.StatusOK,
		"provider.example": http.StatusNotFound, "127.0.0.1.nip.example:8080": http.StatusNotFound, "192.168.0.4": http.StatusNotFound, "localhost.example": http.StatusNotFound,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.ready.Owner.URL+"/login", nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			req.Host = host
		}
		resp, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("with Host %q: status %d, want %d", host, resp.StatusCode, want)
		}
	}
}
