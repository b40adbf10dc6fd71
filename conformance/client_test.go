package conformance

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// newTestRun is a run with nobody to check, on a clock of its own.
func newTestRun(t *testing.T) (*run, *clock) {
	t.Helper()
	c := &clock{t: time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)}
	cfg := Config{Cards: []string{"http://127.0.0.1:9/"}, Audience: "a", Now: c.now, Sleep: c.sleep}
	if _, err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	r, err := newRun(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r, c
}

// A 429 is waited for as it says, twice, and not for long.
func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		after  []string // of the answers before a 200
		waited time.Duration
		wrong  string
	}{
		{nil, 0, ""},
		{[]string{"3", "5"}, 8 * time.Second, ""},
		{[]string{"Mon, 30 Nov 2026 09:00:20 GMT"}, 20 * time.Second, ""},
		{[]string{"Mon, 30 Nov 2026 08:00:00 GMT"}, 0, ""},
		{[]string{"1", "1", "1"}, 2 * time.Second, "still 429 after 2 waits"},
		{[]string{"61"}, 0, "the suite waits 1m0s at most"},
		{[]string{""}, 0, "must be seconds or a date"},
		{[]string{"1.5"}, 0, "must be seconds or a date"},
		{[]string{"-1"}, 0, "must be seconds or a date"},
		{[]string{"99999999999"}, 0, "must be seconds or a date"},
	} {
		r, clock := newTestRun(t)
		asked := 0
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked++; asked > len(c.after) {
				return
			}
			w.Header().Set("Retry-After", c.after[asked-1])
			w.WriteHeader(http.StatusTooManyRequests)
		}))
		started := clock.now()
		a, err := r.do(t.Context(), call{method: http.MethodGet, url: srv.URL})
		srv.Close()
		switch {
		case c.wrong == "" && (err != nil || a.status != http.StatusOK):
			t.Errorf("%q: %v", c.after, err)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%q: %v; want %q", c.after, err, c.wrong)
		}
		if waited := clock.now().Sub(started); waited != c.waited {
			t.Errorf("%q: waited %v, want %v", c.after, waited, c.waited)
		}
	}
}

// Redirects are not followed, and errors do not repeat a URL's query.
func TestNoSecretInErrors(t *testing.T) {
	r, _ := newTestRun(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "/gone?code=secret", http.StatusFound)
			return
		}
		panic(http.ErrAbortHandler)
	}))
	defer srv.Close()
	a, err := r.do(t.Context(), call{method: http.MethodGet, url: srv.URL + "/away?code=secret"})
	if err != nil || a.status != http.StatusFound {
		t.Fatalf("%v", err)
	}
	if text := a.not("200").Error(); strings.Contains(text, "secret") || !strings.Contains(text, "/away: 302 to another address: must be 200") {
		t.Error(text)
	}
	_, err = r.do(t.Context(), call{method: http.MethodPost, url: srv.URL + "/gone?code=secret", token: "secret", delegation: "secret", body: []byte("secret")})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

// What an agent does not follow is told.
func TestRefuseURL(t *testing.T) {
	r, _ := newTestRun(t)
	for raw, want := range map[string]string{
		"https://brand.example/a":   "",
		"http://127.0.0.1:8080/a":   "",
		"http://localhost/a":        "",
		"http://[::1]:80/a":         "",
		"http://brand.example/a":    "is http",
		"":                          "is missing",
		"/a":                        "is not absolute",
		"javascript:alert(1)":       "is not absolute",
		"https://u@brand.example/":  "user-info",
		"https://brand.example/#a":  "fragment",
		"ftp://brand.example/a":     "is not https",
		"https://brand.example/%zz": "does not parse",
	} {
		if got := r.refuseURL(raw); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
	r.cfg.Development = false
	if got := r.refuseURL("http://127.0.0.1:8080/a"); got == "" {
		t.Error("http on loopback is taken outside development")
	}
}

// A card is read as far as it goes: a wrong member spoils no other.
func TestCardRead(t *testing.T) {
	c := &card{answer: &answer{asked: "GET card", status: http.StatusOK, body: []byte(`{
		"name": "Brand", "version": 1, "skills": {"id": "a"}, "more": [],
		"supportedInterfaces": [
			{"url": "https://a.example/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
			{"url": "https://a.example/old", "protocolBinding": "HTTP+JSON", "protocolVersion": "0.3"},
			{"url": "https://a.example/a2a/1", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}],
		"securitySchemes": {"any": {"oauth2SecurityScheme": {"oauth2MetadataUrl": "https://a.example/m", "flows": {"deviceCode": {
			"deviceAuthorizationUrl": "https://a.example/d", "tokenUrl": "https://a.example/t", "scopes": {"z": "Last", "a": "First"}}}}}}
	}`)}}
	if err := c.parse(); err != nil {
		t.Fatal(err)
	}
	if c.name != "Brand" || c.interfaceURL != "https://a.example/a2a/1" || c.ambiguous || !slices.Equal(c.wrong, []string{"version", "skills"}) {
		t.Errorf("%+v", c)
	}
	if !c.delegated || c.refreshURL != "https://a.example/t" || !slices.Equal(c.scopes, []Scope{{"z", "Last"}, {"a", "First"}}) {
		t.Errorf("delegation of %+v", c)
	}
	if nowhere, err := c.unknownBrand(); err != nil || nowhere != "https://a.example/a2a/no-such-brand" {
		t.Errorf("%s, %v", nowhere, err)
	}
	for _, bad := range []string{`[]`, ``, `{`, `{"a":1,"a":2}`} {
		if err := (&card{answer: &answer{status: http.StatusOK, body: []byte(bad)}}).parse(); err == nil {
			t.Errorf("%q is taken for a card", bad)
		}
	}
}
