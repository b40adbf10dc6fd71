package conformance

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// A run goes as near to this machine as its cards are, and no nearer: by name or by
// address, for what a Provider names and for its pages.
func TestReach(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer srv.Close()
	here, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	far, near := "https://brand.example/card", "http://localhost:"+here.Port()+"/card"
	for _, c := range []struct {
		card        string
		development bool
		goes        bool
	}{{far, false, false}, {far, true, true}} {
		asked = 0
		cfg := Config{Cards: []string{c.card}, Audience: "a", Development: c.development}
		if _, err := cfg.complete(); err != nil {
			t.Fatal(err)
		}
		r, err := newRun(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		for _, target := range []string{srv.URL, near} {
			_, err := r.do(t.Context(), call{method: http.MethodGet, url: target})
			if (err == nil) != c.goes || err != nil && (!errors.Is(err, errNotRun) || !strings.Contains(err.Error(), "--development")) {
				t.Errorf("card %s, development %v: %s: %v", c.card, c.development, target, err)
			}
			_, err = r.user(testLogins[0], "").Open(t.Context(), target)
			if err = r.pageError(t.Context(), err); (err == nil) != c.goes || err != nil && !errors.Is(err, errNotRun) {
				t.Errorf("card %s, development %v: page %s: %v", c.card, c.development, target, err)
			}
		}
		if (asked > 0) != c.goes || r.silence != 0 {
			t.Errorf("card %s, development %v: %d requests came, %d unanswered", c.card, c.development, asked, r.silence)
		}
	}
	// A card's own name may lead anywhere the first time; what else is near is so from
	// then on.
	transport := &http.Transport{}
	limit(transport, []string{near})
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := transport.DialContext(ended, "tcp", "localhost:"+here.Port()); err == nil { // which is not the first time
		t.Error("a dial that had ended went on")
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	for _, step := range []struct {
		url  string
		goes bool
	}{{srv.URL, false}, {near, true}, {srv.URL, true}} {
		resp, err := client.Get(step.url)
		if (err == nil) != step.goes {
			t.Errorf("%s: %v", step.url, err)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
	}
}

// All answers 429 of a run together are waited for two minutes; a route that answers
// nothing else is asked no more.
func TestPatience(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Header().Set("Retry-After", "20")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer srv.Close()
	r, clock := newTestRun(t)
	started := clock.now()
	var last error
	for range 5 {
		for _, path := range []string{"/a", "/b"} {
			_, last = r.do(t.Context(), call{method: http.MethodGet, url: srv.URL + path})
			var busy *busyError
			if !errors.As(last, &busy) || !errors.Is(last, errNotRun) {
				t.Fatalf("%v", last)
			}
		}
	}
	if waited := clock.now().Sub(started); waited != maxWaited || asked != 3*2+2*2 {
		t.Errorf("waited %v for %d requests: %v", waited, asked, last)
	}
}
