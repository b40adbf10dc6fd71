package sandbox

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/jwks"
)

// register registers the world's issuer with a key set at a path of its origin.
func (w *world) register(name, path string) answer {
	w.t.Helper()
	address := w.ready.Provider + platformsPath
	claims := w.claims()
	claims["sub"], claims["aud"] = w.issuer.url, address
	body := fmt.Sprintf(`{"name":%q,"jwksUri":%q}`, name, w.issuer.url+path)
	return w.do(http.MethodPost, address, body, "Content-Type: application/json", "Authorization: Bearer "+sign(w.t, w.issuer.keys[0], claims, nil))
}

// Nobody has the sandbox ask for paths at will: a failure holds for the origin, an
// address and an origin have their limits, and a query is never sent.
func TestRegistrationsAskRarely(t *testing.T) {
	w := newWorld(t)
	w.issuer.change(func() { w.issuer.serve = nil })
	if a := w.register("my-pa", "/jwks?admin=1"); a.status != 400 || string(a.body) == "" {
		t.Errorf("a query: %d %s", a.status, a.body)
	}
	if a := w.register("my-pa", "/jwks?"); a.status != 400 {
		t.Errorf("an empty query: %d", a.status)
	}
	if n := w.issuer.fetches.Load(); n != 0 {
		t.Fatalf("%d fetches with a query", n)
	}
	limit := Defaults().RegisterLimit
	for i := range 300 {
		want := 401
		if i >= limit.Burst {
			want = 429
		}
		a := w.register("my-pa", fmt.Sprint("/probe/", i))
		if a.status != want || want == 429 && a.header.Get("Retry-After") != "5" {
			t.Fatalf("registration %d: %d, want %d, Retry-After %q", i, a.status, want, a.header.Get("Retry-After"))
		}
	}
	if n := w.issuer.fetches.Load(); n != 1 {
		t.Errorf("%d fetches for 300 registrations, want 1", n)
	}
	w.clock.advance(max(limit.Every, Defaults().KeySetRetry))
	if a := w.register("my-pa", "/probe/again"); a.status != 401 {
		t.Errorf("after Retry-After: %d", a.status)
	}
	if n := w.issuer.fetches.Load(); n != 2 {
		t.Errorf("%d fetches, want 2", n)
	}
}

// limits.register is a key of the file.
func TestRegisterLimitOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sandbox.yaml")
	if err := os.WriteFile(file, []byte("limits: {register: {every: 90s, burst: 3}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := LoadConfig(file, nil)
	if want := (Limit{Every: 90 * time.Second, Burst: 3}); err != nil || c.Params.RegisterLimit != want {
		t.Errorf("%v, %v", c.Params.RegisterLimit, err)
	}
}

// What others name beside it keeps no issuer from its well-known place, nor does an
// address keep another one.
func TestRegistrationLimits(t *testing.T) {
	p := Defaults()
	p.RegisterLimit = Limit{Every: 10 * time.Second, Burst: 2}
	g := newRegistrations(p)
	const origin = "https://pa.example"
	for i, tc := range []struct {
		peer, url string
		wait      time.Duration
	}{
		{"a", origin + "/1", 0},
		{"b", origin + "/2", 0},
		{"c", origin + "/3", 10 * time.Second},
		{"c", origin + jwks.WellKnownPath, 0}, // what was refused used up nothing
		{"c", "https://two.example/1", 0},
		{"c", "https://three.example/1", 10 * time.Second},
		{"d", origin + jwks.WellKnownPath, 0},
	} {
		if got := g.admit(tc.peer, tc.url, testStart); got != tc.wait {
			t.Errorf("%d: %s for %s waits %v, want %v", i, tc.peer, tc.url, got, tc.wait)
		}
	}
	g.remember(origin+"/1", testStart, errBusy)
	for url, want := range map[string]bool{origin + "/2": true, origin + jwks.WellKnownPath: false, "https://two.example/1": false} {
		if got := g.remembered(url, testStart.Add(p.KeySetRetry-1)); (got != nil) != want {
			t.Errorf("%s: %v", url, got)
		}
	}
	if err := g.remembered(origin+"/2", testStart.Add(p.KeySetRetry)); err != nil {
		t.Errorf("later: %v", err)
	}
}

// Where a list says where an issuer's keys are, it registers with those or not at all.
func TestRegistrationOfAListedIssuer(t *testing.T) {
	listed := newIssuer(t)
	listed.serve["/listed"], listed.serve["/other"] = listed.jwks, listed.jwks
	w := newWorld(t, func(c *Config) {
		c.Issuers = &Issuers{Local: true, Listed: []Issuer{{listed.url, listed.url + "/listed"}}}
	})
	w.issuer = listed
	if a := w.register("my-pa", "/other"); a.status != 409 {
		t.Errorf("with other keys: %d %s", a.status, a.body)
	}
	for range 2 {
		if a := w.register("my-pa", "/listed"); a.status != 200 {
			t.Errorf("with the keys of the list: %d %s", a.status, a.body)
		}
	}
}
