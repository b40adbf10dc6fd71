package agent_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
)

// value reads one value out of the database, behind the agent's back.
func (w *world) value(query string) string {
	w.t.Helper()
	db, err := openDatabase(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	var s string
	if err := db.QueryRow(query).Scan(&s); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return s
}

// want expects one value of the database.
func (w *world) want(query, value string) {
	w.t.Helper()
	if got := w.value(query); got != value {
		w.t.Errorf("%s: %q, want %q", query, got, value)
	}
}

const (
	otherProvider = "https://other.example.com"
	otherCard     = otherProvider + "/a2a/air/.well-known/agent-card.json"
	otherAudience = "aud-other"
)

// other is a business at another provider, which the signer has an audience for.
// Its tokens name the first one: it is for turns without delegation.
func (w *world) other() *business {
	b := newBusiness(w.t)
	rename := strings.NewReplacer(provider, otherProvider)
	w.signer.set(func(s *signerStandIn) { s.audiences[otherProvider] = otherAudience })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[otherProvider] = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		b.ServeHTTP(rec, r)
		for k, v := range rec.Header() {
			rw.Header()[k] = v
		}
		rw.WriteHeader(rec.Code)
		_, _ = rw.Write([]byte(rename.Replace(rec.Body.String())))
	})
	return b
}

// intercept answers requests of a host whose path ends so, until it returns false.
func (w *world) intercept(host, path string, answer func(http.ResponseWriter, *http.Request) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	inner := w.hosts[host]
	w.hosts[host] = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, path) || !answer(rw, r) {
			inner.ServeHTTP(rw, r)
		}
	})
}

// hooked is the network with something before it.
type hooked struct {
	agent.Egress
	hook func(context.Context, egress.Request) (egress.Response, error, bool)
}

func (h hooked) Do(ctx context.Context, req egress.Request) (egress.Response, error) {
	if resp, err, done := h.hook(ctx, req); done {
		return resp, err
	}
	return h.Egress.Do(ctx, req)
}

// openHooked is open with a hook before the network.
func (w *world) openHooked(hook func(context.Context, egress.Request) (egress.Response, error, bool)) *agent.Agent {
	w.t.Helper()
	store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { store.Close() })
	cfg := w.config
	cfg.Dir, cfg.Store = w.dir, store
	cfg.Network = func(rules agent.URLRules, policy egress.Policy) agent.Egress {
		return hooked{&wire{w, rules, policy}, hook}
	}
	a, err := agent.Open(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(a.Close)
	return a
}
