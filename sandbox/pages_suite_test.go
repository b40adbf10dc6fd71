package sandbox

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// suitePost sends a request as a published suite does: no cookies, no headers but
// Content-Type, no redirect followed.
func suitePost(t *testing.T, address string, form url.Values) (status int, location, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "User-Agent": nil}
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Header.Get("Set-Cookie") != "" {
		t.Errorf("%s sets a cookie", address)
	}
	return resp.StatusCode, resp.Header.Get("Location"), string(page)
}

// match is what the pattern's groups found first in a page.
func match(t *testing.T, pattern, page string) []string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("no %s in %s", pattern, page)
	}
	return found[1:]
}

// TestPagesAsASuiteReadsThem plays the user with patterns only, at the sign-in link
// and the addresses that the contract names.
func TestPagesAsASuiteReadsThem(t *testing.T) {
	for _, origins := range []string{"two origins", "one origin"} {
		for _, tc := range []struct {
			name, decision string
			tick           func(offered []string) []string
			status         string
			granted        string
		}{
			{"allow all", "allow", func(o []string) []string { return o }, "approved", scopeUpcoming + " " + scopeRebook},
			{"allow some", "allow", func(o []string) []string { return o[1:] }, "approved", scopeRebook},
			{"allow nothing", "allow", func([]string) []string { return nil }, "denied", ""},
			{"deny", "deny", func(o []string) []string { return o }, "denied", ""},
		} {
			t.Run(origins+"/"+tc.name, func(t *testing.T) {
				w := newWorld(t, func(c *Config) { c.OneOrigin = origins == "one origin" })
				d := w.device(scopeUpcoming + " " + scopeRebook)
				link := text(t, d, "verification_uri_complete")
				got := match(t, `^(https?://[^/?]+)/login\?return_to=([^&]+)$`, link)
				returnTo, err := url.QueryUnescape(got[1])
				if err != nil {
					t.Fatal(err)
				}
				status, _, page := suitePost(t, got[0]+"/login", url.Values{
					"return_to": {returnTo}, "email": {testAccounts[0].Email}, "password": {testAccounts[0].Password},
				})
				if status != http.StatusOK {
					t.Fatalf("login: %d %s", status, page)
				}
				const form = `<form\b[^>]*\baction="(https?://[^"&]+)"[^>]*>`
				consent := match(t, form, page)[0]
				assertion := match(t, form+`\s*<input\b[^>]*\btype="hidden"[^>]*\bname="assertion"[^>]*\bvalue="([A-Za-z0-9_-]+)"`, page)[1]
				status, _, page = suitePost(t, consent, url.Values{"assertion": {assertion}})
				if status != http.StatusOK {
					t.Fatalf("assertion: %d %s", status, page)
				}
				answerTo := match(t, form, page)[0]
				session := match(t, form+`\s*<input\b[^>]*\btype="hidden"[^>]*\bname="session"[^>]*\bvalue="([A-Za-z0-9_-]+)"`, page)[1]
				var offered []string
				for _, box := range regexp.MustCompile(`<input\b[^>]*\btype="checkbox"[^>]*\bname="scope"[^>]*\bvalue="([^"]+)"`).FindAllStringSubmatch(page, -1) {
					offered = append(offered, box[1])
				}
				if !slices.Equal(offered, []string{scopeUpcoming, scopeRebook}) {
					t.Fatalf("boxes %q", offered)
				}
				for _, decision := range []string{"allow", "deny"} {
					match(t, `<button\b[^>]*\bname="decision"[^>]*\bvalue="(`+decision+`)"`, page)
				}
				status, location, page := suitePost(t, answerTo, url.Values{"session": {session}, "decision": {tc.decision}, "scope": tc.tick(offered)})
				if status != http.StatusSeeOther {
					t.Fatalf("answer: %d %s", status, page)
				}
				if got := match(t, `/connected\?[^#]*&status=(approved|denied)$`, location)[0]; got != tc.status {
					t.Errorf("status=%s, want %s", got, tc.status)
				}
				a := w.poll(d["device_code"])
				if tc.status == "denied" {
					w.wantOAuthError(a, 400, "access_denied")
				} else if got := text(t, a.json(t), "scope"); got != tc.granted {
					t.Errorf("granted %q, want %q", got, tc.granted)
				}
			})
		}
	}
}
