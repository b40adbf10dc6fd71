package sandbox

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
)

// TestWhoMayCall walks which issuers may call and register, and where their keys are
// sought.
func TestWhoMayCall(t *testing.T) {
	const pa, local, secure = "https://pa.example", "http://127.0.0.1:4312", "https://localhost:4312"
	const wellKnown = "/.well-known/jwks.json"
	any, registered := Issuers{Any: true}, Issuers{Registered: true}
	list := Issuers{Listed: []Issuer{{Issuer: pa}, {"https://two.example", "https://keys.example/set"}}}
	with := func(is Issuers) Issuers { is.Local = true; return is }
	for _, tc := range []struct {
		name             string
		issuers          Issuers
		issuer           string
		keys, registered string // where the keys are, without and with a registration at /r; "" if it may not call
		register         bool
	}{
		{"nobody said", Issuers{}, pa, "", pa + "/r", true},
		{"nobody said", Issuers{}, local, "", "", false},
		{"nobody said", Issuers{}, secure, "", "", false},
		{"local", with(Issuers{}), pa, "", pa + "/r", true},
		{"local", with(Issuers{}), local, local + wellKnown, local + "/r", true},
		{"local", with(Issuers{}), secure, secure + wellKnown, secure + "/r", true},
		{"any", any, pa, pa + wellKnown, pa + "/r", true},
		{"any", any, "https://10.0.0.1", "https://10.0.0.1" + wellKnown, "https://10.0.0.1/r", true}, // and no connection
		{"any", any, local, "", "", false},
		{"any", any, secure, "", "", false},
		{"any", any, "http://pa.example", "", "", false},
		{"any", any, pa + "/", "", "", false},
		{"any", any, "https://user@pa.example", "", "", false},
		{"any", any, "", "", "", false},
		{"any and local", with(any), local, local + wellKnown, local + "/r", true},
		{"registered", registered, pa, "", pa + "/r", true},
		{"registered and local", with(registered), local, "", local + "/r", true},
		{"list", list, pa, pa + wellKnown, pa + "/r", true},
		{"list", list, "https://two.example", "https://keys.example/set", "https://keys.example/set", true},
		{"list", list, "https://three.example", "", "", false},
		{"list and local", with(list), local, "", "", false},
	} {
		for have, want := range map[string]string{"": tc.keys, tc.issuer + "/r": tc.registered} {
			got, err := tc.issuers.keys(tc.issuer, have)
			if got != want || (err == nil) != (want != "") {
				t.Errorf("%s: %q, registered %q: %q, %v; want %q", tc.name, tc.issuer, have, got, err, want)
			}
		}
		if err := tc.issuers.mayRegister(tc.issuer); (err == nil) != tc.register {
			t.Errorf("%s: %q registers: %v, want %v", tc.name, tc.issuer, err, tc.register)
		}
	}
	for why, bad := range map[string]Issuers{
		"only one of Any":           {Any: true, Registered: true},
		"Registered and Listed can": {Any: true, Listed: list.Listed},
		"use an origin":             {Listed: []Issuer{{Issuer: pa + "/"}}},
		"use https":                 {Listed: []Issuer{{Issuer: "http://pa.example"}}},
		"allowed first":             {Listed: []Issuer{{Issuer: local}}},
		"is not an absolute":        {Listed: []Issuer{{pa, "keys"}}},
		"twice":                     {Listed: []Issuer{{Issuer: pa}, {Issuer: pa}}},
	} {
		if _, err := New(Config{Issuers: &bad, PasswordMemory: 64}); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "Issuers") {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// A list of issuers is all there is: others neither call nor register, and keys come
// from where the list says.
func TestListedIssuers(t *testing.T) {
	listed, other := newIssuer(t), newIssuer(t)
	listed.serve = map[string]func() any{"/elsewhere": listed.jwks}
	w := newWorld(t, func(c *Config) {
		c.Issuers = &Issuers{Local: true, Listed: []Issuer{{listed.url, listed.url + "/elsewhere"}}}
	})
	register := func() answer {
		c := w.claims()
		c["sub"], c["aud"] = w.issuer.url, w.ready.Provider+platformsPath
		body := `{"name":"my-pa","jwksUri":"` + w.issuer.url + `/.well-known/jwks.json"}`
		return w.do(http.MethodPost, w.ready.Provider+platformsPath, body, "Content-Type: application/json", "Authorization: Bearer "+sign(t, w.issuer.keys[0], c, nil))
	}
	w.issuer = listed
	if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != 200 {
		t.Errorf("a listed issuer: %d", a.status)
	}
	w.issuer = other
	if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != 401 {
		t.Errorf("another issuer: %d", a.status)
	}
	if a := register(); a.status != 401 || a.header.Get("WWW-Authenticate") != `Bearer realm="platforms"` {
		t.Errorf("another issuer registers: %d %s", a.status, a.body)
	}
	if n := other.fetches.Load(); n != 0 {
		t.Errorf("%d calls to an issuer that may not call", n)
	}
}

// Where the well-known place answers with something else than keys, the OpenID
// configuration is looked at.
func TestDiscoveryBehindAPage(t *testing.T) {
	w := newWorld(t)
	w.issuer.change(func() {
		w.issuer.serve = map[string]func() any{
			"/.well-known/jwks.json": func() any { return "a page for everything" },
			"/keys":                  w.issuer.jwks,
			"/.well-known/openid-configuration": func() any {
				return map[string]any{"issuer": w.issuer.url, "jwks_uri": w.issuer.url + "/keys", "response_types_supported": []string{"id_token"}}
			},
		}
	})
	for range 2 {
		if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != 200 {
			t.Fatalf("status %d", a.status)
		}
	}
	if n := w.issuer.fetches.Load(); n != 3 {
		t.Errorf("%d fetches for one set found by discovery, want 3", n)
	}
}

// A key set that cannot be had is not asked for with every call, and is found again.
func TestFailuresAreKeptBriefly(t *testing.T) {
	w := newWorld(t)
	good := w.issuer.serve
	w.issuer.change(func() { w.issuer.serve = nil })
	want := func(status int, fetches int64) {
		t.Helper()
		if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != status {
			t.Fatalf("status %d, want %d", a.status, status)
		}
		if n := w.issuer.fetches.Load(); n != fetches {
			t.Fatalf("%d fetches, want %d", n, fetches)
		}
	}
	want(401, 2) // the set, and the OpenID configuration
	want(401, 2)
	w.issuer.change(func() { w.issuer.serve = good })
	w.clock.advance(Defaults().KeySetRetry - time.Millisecond)
	want(401, 2)
	w.clock.advance(time.Millisecond)
	want(200, 3)
	want(200, 3)
}

// An issuer whose JWKS does not answer keeps nobody else waiting.
func TestDeadIssuerBlocksNobody(t *testing.T) {
	w := newWorld(t)
	called, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	dead := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if calls.Add(1) == 1 {
			close(called)
		}
		<-release
	}))
	defer dead.Close()
	key := newKey(t, jose.ES256)
	claims := w.claims()
	claims["iss"] = dead.URL
	token := sign(t, key, claims, nil)
	done := make(chan answer, 1)
	go func() {
		a, err := w.try(http.MethodGet, w.url(MarrowID, "tasks"), "", "Authorization: Bearer "+token)
		if err != nil {
			t.Error(err)
		}
		done <- a
	}()
	<-called
	if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != 200 {
		t.Errorf("another issuer meanwhile: %d", a.status)
	}
	select {
	case a := <-done:
		t.Errorf("the dead one was answered %d before its JWKS was", a.status)
	default:
	}
	close(release)
	if a := <-done; a.status != 401 {
		t.Errorf("the dead one: %d", a.status)
	}
}

// Retry-After is true: a second earlier it is too early, then it is not. A call that
// is refused uses up nothing.
func TestRetryAfterIsTrue(t *testing.T) {
	for _, tc := range []struct {
		name         string
		user, issuer Limit
		others       int // calls of another user first
	}{
		{"user", Limit{Every: 7 * time.Second, Burst: 2}, Limit{Every: time.Millisecond, Burst: 1000}, 0},
		{"issuer", Limit{Every: time.Millisecond, Burst: 1000}, Limit{Every: 11 * time.Second, Burst: 4}, 2},
		{"both", Limit{Every: 3500 * time.Millisecond, Burst: 2}, Limit{Every: 9 * time.Second, Burst: 2}, 0},
		{"both, the user's longer", Limit{Every: 9 * time.Second, Burst: 2}, Limit{Every: 3500 * time.Millisecond, Burst: 2}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) {
				c.Params = Defaults()
				c.Params.UserLimit, c.Params.IssuerLimit = tc.user, tc.issuer
			})
			call := func() answer { return w.call(http.MethodGet, w.url(MarrowID, "tasks"), "") }
			w.subject = "another"
			for range tc.others {
				call()
			}
			w.subject = "user-7f3a"
			for i := range 2 {
				if a := call(); a.status != 200 {
					t.Fatalf("call %d: %d", i, a.status)
				}
			}
			for range 3 { // asking in vain makes it no later
				a := call()
				wait, err := time.ParseDuration(a.header.Get("Retry-After") + "s")
				if a.status != 429 || err != nil {
					t.Fatalf("%d, Retry-After %q", a.status, a.header.Get("Retry-After"))
				}
				w.clock.advance(wait - time.Second)
				if a := call(); a.status != 429 {
					t.Fatalf("after %v - 1s: %d", wait, a.status)
				}
				w.clock.advance(time.Second)
				if a := call(); a.status != 200 {
					t.Fatalf("after %v: %d, Retry-After %q", wait, a.status, a.header.Get("Retry-After"))
				}
			}
			w.issuer, w.subject = newIssuer(t), "user-7f3a"
			if a := call(); a.status != 200 {
				t.Errorf("another issuer: %d", a.status)
			}
		})
	}
}

// The Provider serves the login where the brands have no origin of their own.
func TestOneOrigin(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.OneOrigin = true })
	for i, b := range w.ready.Brands {
		if want := w.url([]string{LarklineID, MarrowID}[i], ".well-known/agent-card.json"); b.Card != want {
			t.Errorf("card at %s, want %s", b.Card, want)
		}
	}
	a := w.oauth("device_authorization", "scope", scopeHistory)
	if link := text(t, a.json(t), "verification_uri_complete"); !strings.HasPrefix(link, w.ready.Provider+"/login?return_to=") {
		t.Errorf("sign in at %s", link)
	}
	if got := w.grant(1, scopeHistory); got["scope"] != scopeHistory {
		t.Errorf("granted %v", got["scope"])
	}
	single := newWorld(t, func(c *Config) { c.OneOrigin, c.Brands = true, []Brand{Larkline(testStart)} })
	if got, want := single.ready.Brands[0].Card, single.ready.Provider+"/.well-known/agent-card.json"; got != want {
		t.Errorf("card at %s, want %s", got, want)
	}
	if a := single.do(http.MethodGet, single.ready.Brands[0].Card, ""); a.status != 200 {
		t.Errorf("card: %d", a.status)
	}
	two := newWorld(t)
	if a := two.do(http.MethodGet, two.ready.Provider+"/login", ""); a.status != 404 {
		t.Errorf("login at the Provider beside the brands' domain: %d", a.status)
	}
	if _, err := New(Config{OneOrigin: true, BrandListen: "127.0.0.1:0"}); err == nil || !strings.Contains(err.Error(), "BrandListen") {
		t.Errorf("a listener for nothing: %v", err)
	}
}

// The ready line tells what there is to sign in and to try with, and prints no
// password of its own accord.
func TestReadyTellsWhatToTry(t *testing.T) {
	s, err := New(Config{PasswordMemory: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := s.Ready()
	if len(r.Others) != 1 || r.Others[0].Email == r.Login.Email || r.Others[0].Password == r.Login.Password || len(r.Others[0].Password) < 16 {
		t.Errorf("others: %v", r.Others)
	}
	if r.Owner.URL != r.Provider+"/owner" || !s.ownerPassword.fits(r.Owner.Password) || s.ownerPassword.fits(r.Login.Password) {
		t.Errorf("owner: %v", r.Owner)
	}
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"others":[{"email":"sam@example.com","password":"` + r.Others[0].Password, `"owner":{"url":"` + r.Owner.URL + `","password":"` + r.Owner.Password,
		`"asks":[{"scope":"` + scopeUpcoming + `","text":"Show my upcoming flights."}`, `"closes":"Goodbye."`,
	} {
		if !strings.Contains(string(line), want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
	for _, printed := range []string{r.Owner.String(), r.Owner.GoString(), r.Owner.LogValue().String()} {
		if strings.Contains(printed, r.Owner.Password) {
			t.Errorf("the password in %s", printed)
		}
	}
}

// What a brand says to ask does need that permission, and what closes closes.
func TestAsksAndCloses(t *testing.T) {
	w := newWorld(t)
	for _, b := range w.ready.Brands {
		for i, ask := range b.Asks {
			v := w.say(b.ID, "ask-"+string(rune('a'+i)), "", ask.Text, "").json(t)
			if got := text(t, v, "task", "metadata", "pact.missingScopes", "0"); got != ask.Scope {
				t.Errorf("%q needs %s, not %s", ask.Text, got, ask.Scope)
			}
		}
		contextID, _ := w.reply(w.say(b.ID, "bye-"+b.ID, "", b.Closes, ""))
		w.wantError(w.say(b.ID, "again", contextID, "Hello?", ""), 400, "UNSUPPORTED_OPERATION", "")
	}
}

// A brand that asks first answers no turn without a delegation, and others as ever.
func TestStepUpFirst(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		b := Larkline(testStart)
		b.StepUpFirst = []string{scopeHistory}
		c.Brands = []Brand{b, Marrow()}
	})
	v := w.say(LarklineID, "m-1", "", "Hello", "").json(t)
	if got := text(t, v, "task", "metadata", "pact.missingScopes", "0"); got != scopeHistory {
		t.Errorf("asks for %s", got)
	}
	contextID := text(t, v, "task", "contextId")
	token := w.grant(0, scopeUpcoming)["access_token"].(string)
	if _, said := w.reply(w.say(LarklineID, "m-2", contextID, "Hello", token)); !strings.Contains(said, "Larkline") {
		t.Errorf("said %q", said)
	}
	if _, err := New(Config{Brands: []Brand{{ID: "a", Name: "A", Description: "A", Respond: Marrow().Respond, StepUpFirst: []string{"x"}}}}); err == nil || !strings.Contains(err.Error(), "StepUpFirst") {
		t.Errorf("a scope that is not there: %v", err)
	}
}
