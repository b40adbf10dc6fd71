package conformance

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// clock is a time that only waiting moves on: for the sandbox and the suite alike.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
	return ctx.Err()
}

// testLogins are two users of the sandbox.
var testLogins = [2]Login{
	{Email: "robin@example.com", Password: "correct horse"},
	{Email: "kim@example.com", Password: "battery staple"},
}

// world is a running sandbox, and the suite's config for it.
type world struct {
	sandbox *sandbox.Sandbox
	ready   sandbox.Ready
	cfg     Config
}

// newWorld starts a sandbox of Larkline and Marrow.
func newWorld(t *testing.T, change ...func(*sandbox.Config)) *world {
	t.Helper()
	c := &clock{t: time.Date(2026, 11, 30, 9, 0, 0, 250_000_000, time.UTC)}
	sc := sandbox.Config{
		Now: c.now, PasswordMemory: 8,
		Accounts: []sandbox.Account{
			{ID: "lark-4471", Name: "Robin", Login: testLogins[0]},
			{ID: "lark-9000", Name: "Kim", Login: testLogins[1]},
		},
	}
	for _, f := range change {
		f(&sc)
	}
	s, err := sandbox.New(sc)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{sandbox: s, ready: s.Ready()}
	w.cfg = Config{
		Audience: w.ready.Audience, Login: testLogins[0], Other: testLogins[1],
		Closes: "Goodbye", Now: c.now, Sleep: c.sleep, Slow: true, Timeout: unhurried,
	}
	for _, b := range w.ready.Brands {
		w.cfg.Cards = append(w.cfg.Cards, b.Card)
	}
	w.cfg.Asks = testAsks
	return w
}

// testAsks are messages to Larkline that need a permission each.
var testAsks = []Ask{
	{Scope: "flights:upcoming:read", Text: "What are my upcoming flights?"},
	{Scope: "flights:history:read", Text: "Show my past flights"},
	{Scope: "flights:rebook", Text: "Please rebook my next flight"},
	{Scope: "flights:cancel", Text: "Please cancel my next flight"},
}

// run runs the checks and tells those that did not pass.
func (w *world) run(t *testing.T, only ...string) (results []Result, bad []string) {
	t.Helper()
	cfg := w.cfg
	cfg.Only = only
	results, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Status != Passed {
			bad = append(bad, r.ID+" "+string(r.Status)+": "+r.Detail)
		}
	}
	return results, bad
}

// A sandbox that behaves passes everything, and nothing is left out.
func TestSandboxPasses(t *testing.T) {
	w := newWorld(t)
	results, bad := w.run(t)
	if len(bad) > 0 {
		t.Errorf("a good sandbox:\n%s", strings.Join(bad, "\n"))
	}
	if len(results) != len(Checks()) {
		t.Errorf("%d results of %d checks", len(results), len(Checks()))
	}
}

// Each check passes also when it is the only one.
func TestEachCheckAlone(t *testing.T) {
	w := newWorld(t)
	for _, c := range Checks() {
		t.Run(c.ID, func(t *testing.T) {
			if _, bad := w.run(t, c.ID); len(bad) > 0 {
				t.Error(bad[0])
			}
		})
	}
}

// Each brand alone passes what applies to it: the bookshop Identity, the airline both.
func TestOneCard(t *testing.T) {
	w := newWorld(t)
	cards := w.cfg.Cards
	for i, delegated := range []bool{true, false} {
		w.cfg.Cards = cards[i : i+1]
		results, _ := w.run(t)
		for _, r := range results {
			want := Passed
			if r.Delegated && !delegated {
				want = NotRun
			}
			if r.Status != want {
				t.Errorf("%s with card %d: %s: %s; want %s", r.ID, i, r.Status, r.Detail, want)
			}
		}
	}
}

// A Provider that wants its issuers registered gets them registered.
func TestRegisters(t *testing.T) {
	w := newWorld(t, func(c *sandbox.Config) { c.Issuers = &sandbox.Issuers{Registered: true, Local: true} })
	results, bad := w.run(t)
	if len(bad) > 0 {
		t.Errorf("with registration:\n%s", strings.Join(bad, "\n"))
	}
	for _, r := range results {
		if r.ID == "auth-accepted" && !strings.Contains(r.Detail, "had to register at /api/platforms") {
			t.Errorf("it does not say that it registered: %q", r.Detail)
		}
	}
}

// With one issuer that may call, what needs the second is not run, and nothing fails.
func TestOneIssuer(t *testing.T) {
	var results []Result
	for tries := 1; ; tries++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, func(c *sandbox.Config) {
			c.Issuers = &sandbox.Issuers{Listed: []sandbox.Issuer{{Issuer: "http://" + address}}, Local: true}
		})
		w.cfg.Issuers[0].Listen = address
		if results, err = Run(t.Context(), w.cfg); err == nil {
			break
		}
		// Somebody else may have got the port meanwhile.
		if !strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) || tries == 5 {
			t.Fatal(err)
		}
	}
	foreign := 0
	for _, r := range results {
		if r.Status == Failed {
			t.Errorf("%s: %s", r.ID, r.Detail)
		}
		if strings.Contains(r.Detail, "second issuer") {
			foreign++
		}
	}
	if foreign < 3 {
		t.Errorf("only %d results miss the second issuer", foreign)
	}
}

// A Provider whose login is on its own origin, and one whose every turn needs a grant,
// are as good.
func TestOtherwise(t *testing.T) {
	w := newWorld(t, func(c *sandbox.Config) { c.OneOrigin = true })
	if _, bad := w.run(t); len(bad) > 0 {
		t.Errorf("on one origin:\n%s", strings.Join(bad, "\n"))
	}
	w = newWorld(t)
	w.cfg.Cards = w.cfg.Cards[:1]
	if err := w.sandbox.SetFaults("step-up-first"); err != nil {
		t.Fatal(err)
	}
	if _, bad := w.run(t); len(bad) > 0 {
		t.Errorf("where every turn needs a grant:\n%s", strings.Join(bad, "\n"))
	}
}

// What the suite cannot do it says, instead of failing a Provider for it.
func TestNotRun(t *testing.T) {
	w := newWorld(t)
	w.cfg.Login, w.cfg.Other, w.cfg.Closes, w.cfg.Slow = person.Login{}, person.Login{}, "", false
	results, _ := w.run(t)
	reasons := map[string]string{}
	for _, r := range results {
		switch r.Status {
		case Failed:
			t.Errorf("%s failed: %s", r.ID, r.Detail)
		case NotRun:
			reasons[r.ID] = r.Detail
		}
	}
	for id, want := range map[string]string{
		"message-closed":  "message that ends a conversation",
		"token-expired":   "slow checks",
		"token-response":  "sign in",
		"receipt-present": "sign in",
	} {
		if !strings.Contains(reasons[id], want) {
			t.Errorf("%s is not run because %q, not of %q", id, reasons[id], want)
		}
	}
}

// A Provider that does not answer, or has no card, fails card-served, and nothing else
// is tried for long.
func TestNobodyThere(t *testing.T) {
	hangs := make(chan struct{})
	for name, h := range map[string]http.HandlerFunc{
		"hangs":   func(_ http.ResponseWriter, r *http.Request) { <-hangs },
		"refuses": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"no card": http.NotFound,
		"drops":   func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				h(w, r)
			}))
			defer srv.Close()
			timeout := unhurried
			if name == "hangs" {
				defer close(hangs)
				timeout = 50 * time.Millisecond
			}
			results, err := Run(t.Context(), Config{Cards: []string{srv.URL}, Audience: "a", Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				want := NotRun
				if r.ID == "card-served" {
					want = Failed
				}
				if r.Status != want || r.Detail == "" {
					t.Errorf("%s: %s: %s; want %s", r.ID, r.Status, r.Detail, want)
				}
			}
			if n := asked.Load(); n > 3 {
				t.Errorf("%d requests were made", n)
			}
		})
	}
}

// So it does with many cards, and messages that are looked up in them first.
func TestNobodyThereForMany(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer srv.Close()
	cfg := Config{Audience: "a", Asks: testAsks, Only: []string{"card-served"}}
	for range 21 {
		cfg.Cards = append(cfg.Cards, srv.URL)
	}
	if results, err := Run(t.Context(), cfg); err != nil || results[0].Status != Failed {
		t.Errorf("%v: %v", results, err)
	}
}

// A card that no brand is known of by its URL is told what its scopes are asked by.
func TestBrandOfAnotherURL(t *testing.T) {
	one, two, alone := Ask{"a", "One"}, Ask{"b", "Two"}, Brand{Asks: []Ask{{"c", "Three"}}, Closes: "Enough"}
	r := &run{cfg: Config{Brands: map[string]Brand{"1": {Asks: []Ask{one, two}, Closes: "Bye"}, "2": {Closes: "Enough"}, "3": alone}}}
	for _, c := range []struct {
		url, scope, want string
	}{{"3", "a", "[{c Three}] Enough"}, {"4", "a", "[{a One}] Bye"}, {"4", "c", "[{c Three}] Enough"}, {"4", "d", "[] "}} {
		b := r.brand(&card{url: c.url, scopes: []Scope{{ID: c.scope}}})
		if got := fmt.Sprint(b.Asks, " ", b.Closes); got != c.want {
			t.Errorf("%s with %s: %s; want %s", c.url, c.scope, got, c.want)
		}
	}
}

// After three requests without an answer nothing more is asked.
func TestSilence(t *testing.T) {
	var asked atomic.Int32
	w := behind(t, func(*http.Request, *httptest.ResponseRecorder) {
		if asked.Add(1) > 5 {
			panic(http.ErrAbortHandler)
		}
	})
	results, _ := w.run(t, "routes", "messages", "receipts")
	failed := 0
	for _, r := range results {
		if r.Status == Failed {
			failed++
		}
	}
	last := results[len(results)-1]
	if failed == 0 || failed > maxSilence || asked.Load() > 5+maxSilence || last.Status != NotRun || !strings.Contains(last.Detail, "not answered") {
		t.Errorf("%d failed; the last, %s, is %s: %s", failed, last.ID, last.Status, last.Detail)
	}
}

// A config that cannot work is refused with the field's name.
func TestConfig(t *testing.T) {
	good := Config{Cards: []string{"https://brand.example/card"}, Audience: "a"}
	for field, change := range map[string]func(*Config){
		"Cards":          func(c *Config) { c.Cards = nil },
		"Cards:":         func(c *Config) { c.Cards = []string{"brand.example"} },
		"Audience":       func(c *Config) { c.Audience = "" },
		"Only":           func(c *Config) { c.Only = []string{"nothing"} },
		"Timeout":        func(c *Config) { c.Timeout = -1 },
		"Issuers[1].URL": func(c *Config) { c.Issuers[1].URL = "https://agent.example/" },
		"Issuers[0].L":   func(c *Config) { c.Issuers[0].Listen = "nowhere" },
	} {
		c := good
		change(&c)
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A run that is interrupted ends with what it has.
func TestInterrupted(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.cfg.Report = func(r Result) {
		if r.ID == "card-fields" {
			cancel()
		}
	}
	results, err := Run(ctx, w.cfg)
	if err == nil || len(results) == 0 || results[len(results)-1].ID != "card-fields" {
		t.Errorf("%d results, %v", len(results), err)
	}
}

// Every check has an id of its own, a requirement that fits a line, and a source.
func TestChecks(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Sections() {
		seen[s.Name] = true
	}
	for _, c := range Checks() {
		if seen[c.ID] {
			t.Errorf("%s is there twice", c.ID)
		}
		seen[c.ID] = true
		if c.Requirement == "" || c.Source == "" || len([]rune(c.Requirement)) > 49 || strings.HasSuffix(c.Requirement, ".") {
			t.Errorf("%s: %q (%s): a requirement is of 1 to 49 characters, so that a line holds it", c.ID, c.Requirement, c.Source)
		}
	}
}
