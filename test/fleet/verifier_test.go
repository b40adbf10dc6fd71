package fleet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// publisher serves the key sets that a test sets.
type publisher struct {
	mu      sync.Mutex
	kids    []string
	maxAge  int
	fetches int
}

func (p *publisher) set(kids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kids = kids
}

func (p *publisher) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetches++
	var set jose.JSONWebKeySet
	for _, kid := range p.kids {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: kid})
	}
	w := httptest.NewRecorder()
	w.Header().Set("ETag", `"x"`)
	w.Header().Set("Access-Control-Allow-Origin", "*")
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", p.maxAge))
	err := json.NewEncoder(w).Encode(set)
	return w.Result(), err
}

// Each verifier finds a new key when its policy lets it, and not before.
func TestVerifiers(t *testing.T) {
	for i, c := range []struct {
		after time.Duration // the new key was published, the copy being 1 s old
		finds bool
	}{
		{299 * time.Second, true}, // max-age is 300
		{30 * time.Second, true},  // at most every 30 s
		{599 * time.Second, true}, // 10 minutes
		{297 * time.Second, false},
		{28 * time.Second, false},
		{597 * time.Second, false},
	} {
		policy := Policies(1)[i%3]
		t.Run(fmt.Sprintf("%s, %v", policy.Name, c.after), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := &publisher{maxAge: 300}
				l := recorded()
				l.fleet.Issuer = "http://issuer.localhost"
				l.endpoints = []*endpoint{{replica: l.fleet.Replicas[0], http: &http.Client{Transport: p}}}
				v := &verifier{policy: policy, load: l}
				p.set("old")
				if _, err := v.key("old", time.Now()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				p.set("old", "new")
				time.Sleep(c.after + time.Millisecond)
				if _, err := v.key("new", time.Now()); (err == nil) != c.finds {
					t.Errorf("the new key: %v", err)
				}
				if want := map[bool]int{false: 1, true: 2}[c.finds]; p.fetches != want {
					t.Errorf("%d fetches, want %d", p.fetches, want)
				}
			})
		})
	}
}

// A key set that the contract does not allow is a broken rule.
func TestKeySetRules(t *testing.T) {
	p := &publisher{maxAge: 301}
	l := recorded()
	l.phases = []phase{{name: "begin", from: time.Now()}}
	e := &endpoint{replica: l.fleet.Replicas[0], http: &http.Client{Transport: p}}
	if _, _, err := l.keySet(e); err == nil {
		t.Error("max-age=301 was taken")
	}
	p.maxAge = 300
	if _, _, err := l.keySet(e); err == nil {
		t.Error("an empty key set was taken")
	}
	if said := strings.Join(l.Stop().Broken, "\n"); !strings.Contains(said, "max-age=301") || !strings.Contains(said, "0 keys") {
		t.Errorf("said %q", said)
	}
}
