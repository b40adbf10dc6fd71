package sandbox

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// durable is a world whose sandbox can start again on its state, under the same
// origins.
type durable struct {
	*world
	cfg                 Config
	provider, brandSite atomic.Pointer[http.Handler]
}

func newDurable(t *testing.T, change ...func(*Config)) *durable {
	t.Helper()
	c := &clock{t: testStart}
	d := &durable{world: &world{t: t, clock: c, issuer: newIssuer(t), subject: "user-7f3a"}}
	front := func(h *atomic.Pointer[http.Handler]) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*h.Load()).ServeHTTP(w, r) }))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	d.cfg = Config{
		Now: c.now, Accounts: testAccounts, PasswordMemory: 64, State: filepath.Join(t.TempDir(), "state.db"),
		PublicURL: front(&d.provider), BrandURL: front(&d.brandSite),
	}
	for _, f := range change {
		f(&d.cfg)
	}
	d.client = &http.Client{
		Transport:     &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(d.client.CloseIdleConnections)
	d.start()
	t.Cleanup(func() {
		if err := d.sandbox.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

func (d *durable) start() {
	d.t.Helper()
	s, err := New(d.cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	provider, brandSite := s.Provider(), s.BrandSite()
	d.provider.Store(&provider)
	d.brandSite.Store(&brandSite)
	d.sandbox, d.ready = s, s.Ready()
}

func (d *durable) restart() {
	d.t.Helper()
	if err := d.sandbox.Close(); err != nil {
		d.t.Fatal(err)
	}
	d.start()
}

// TestStateSurvivesARestart, kind by kind: each begins something and returns what must
// hold afterwards.
func TestStateSurvivesARestart(t *testing.T) {
	for _, kind := range []struct {
		name string
		test func(w *durable) (afterwards func())
	}{
		{"a stored reply", func(w *durable) func() {
			first := w.say(MarrowID, "m1", "", "hello", "")
			in, _ := w.reply(first)
			return func() {
				if again := w.say(MarrowID, "m1", in, "hello", ""); !bytes.Equal(first.body, again.body) {
					w.t.Errorf("%s, before %s", again.body, first.body)
				}
				if n := len(w.sandbox.Executed()); n != 0 {
					w.t.Errorf("%d turns ran again", n)
				}
				w.wantError(w.say(LarklineID, "m2", in, "hello", ""), 400, "INVALID_PARAMS", "Unknown contextId")
				if same, _ := w.reply(w.say(MarrowID, "m2", in, "hello", "")); same != in {
					w.t.Errorf("in %s, not %s", same, in)
				}
			}
		}},
		{"a closed context", func(w *durable) func() {
			in, _ := w.reply(w.say(MarrowID, "m1", "", "goodbye", ""))
			return func() {
				w.wantError(w.say(MarrowID, "m2", in, "hello", ""), 400, "UNSUPPORTED_OPERATION", "Context is closed")
			}
		}},
		{"an idle context", func(w *durable) func() {
			in, _ := w.reply(w.say(MarrowID, "m1", "", "hello", ""))
			w.clock.advance(Defaults().ContextIdle / 2)
			return func() {
				w.clock.advance(Defaults().ContextIdle / 2)
				w.wantError(w.say(MarrowID, "m2", in, "hello", ""), 400, "UNSUPPORTED_OPERATION", "Context is closed")
			}
		}},
		{"a context that nobody was told of", func(w *durable) func() {
			if err := w.sandbox.SetFaults("no-reply*1"); err != nil {
				w.t.Fatal(err)
			}
			w.wantError(w.say(MarrowID, "m1", "", "hello", ""), 400, "INVALID_PARAMS", "")
			return func() {
				w.reply(w.say(MarrowID, "m1", "", "hello", ""))
				if n := len(w.sandbox.Executed()); n != 0 {
					w.t.Errorf("%d turns ran again", n)
				}
			}
		}},
		{"the user that a context ran as", func(w *durable) func() {
			robin := text(w.t, w.grant(0, scopeUpcoming), "access_token")
			kim := text(w.t, w.grant(1, scopeUpcoming), "access_token")
			in, _ := w.reply(w.say(LarklineID, "m1", "", "Show my upcoming flights", robin))
			return func() {
				w.wantError(w.say(LarklineID, "m2", in, "Show my upcoming flights", kim), 400, "INVALID_PARAMS", "")
				w.reply(w.say(LarklineID, "m2", in, "Show my upcoming flights", robin))
			}
		}},
		{"what the brand remembers", func(w *durable) func() {
			token := text(w.t, w.grant(0, scopeUpcoming+" "+scopeCancel), "access_token")
			w.reply(w.say(LarklineID, "m1", "", "Cancel my next flight", token))
			_, before := w.reply(w.say(LarklineID, "m2", "", "Show my upcoming flights", token))
			return func() {
				_, after := w.reply(w.say(LarklineID, "m3", "", "Show my upcoming flights", token))
				if after != before || strings.Count(after, ", cancelled") != 1 {
					w.t.Errorf("%s\nbefore: %s", after, before)
				}
			}
		}},
		{"a token, a receipt's key", func(w *durable) func() {
			token := text(w.t, w.grant(0, scopeUpcoming), "access_token")
			a := w.say(LarklineID, "m1", "", "Show my upcoming flights", token)
			jws := text(w.t, a.json(w.t), "message", "metadata", "pact.receipt", "jws")
			return func() {
				w.verified(jws)
				w.verified(token)
				w.reply(w.say(LarklineID, "m2", "", "Show my upcoming flights", token))
			}
		}},
		{"a receipt under its grant", func(w *durable) func() {
			g := w.grant(0, scopeUpcoming)
			a := w.say(LarklineID, "m1", "", "Show my upcoming flights", text(w.t, g, "access_token"))
			in, _ := w.reply(a)
			return func() {
				grants, err := w.sandbox.store.grantList(w.t.Context(), w.clock.now())
				if err != nil || len(grants) != 1 {
					w.t.Fatal(grants, err)
				}
				got := grants[0]
				if got.brand != LarklineID || got.issuer != w.issuer.url || got.subject != w.subject || got.user != "lark-4471" ||
					!slices.Equal(got.scopes, []string{scopeUpcoming}) || !got.made.Equal(testStart) ||
					!got.expires.Equal(testStart.Add(Defaults().GrantTTL)) || !got.revoked.IsZero() || !got.lastUsed.Equal(testStart) {
					w.t.Errorf("%+v", got)
				}
				receipts, err := w.sandbox.store.grantReceipts(w.t.Context(), got.id)
				if err != nil || len(receipts) != 1 {
					w.t.Fatal(receipts, err)
				}
				r := receipts[0]
				if r.contextID != in || r.messageID != "m1" || !r.at.Equal(testStart) || !slices.Equal(r.tools, []string{"list_upcoming_trips"}) ||
					!slices.Equal(r.scopesUsed, []string{scopeUpcoming}) || r.jws != text(w.t, a.json(w.t), "message", "metadata", "pact.receipt", "jws") {
					w.t.Errorf("%+v", r)
				}
			}
		}},
		{"a revoked grant", func(w *durable) func() {
			g := w.grant(0, scopeUpcoming)
			if held, err := w.sandbox.store.revoke(w.t.Context(), w.grantID(g), w.clock.now()); err != nil || !held {
				w.t.Fatal(held, err)
			}
			return func() { w.wantEnded(g) }
		}},
		{"a refresh token, and the reuse of one", func(w *durable) func() {
			first := text(w.t, w.grant(0, scopeUpcoming), "refresh_token")
			second := w.oauth("token", "grant_type", grantRefresh, "refresh_token", first).json(w.t)
			return func() {
				third := w.oauth("token", "grant_type", grantRefresh, "refresh_token", text(w.t, second, "refresh_token"))
				if third.status != http.StatusOK {
					w.t.Fatalf("%d %s", third.status, third.body)
				}
				w.wantOAuthError(w.oauth("token", "grant_type", grantRefresh, "refresh_token", first), 400, "invalid_grant")
				w.wantEnded(third.json(w.t))
			}
		}},
		{"a request for consent", func(w *durable) func() {
			d := w.device(scopeUpcoming + " " + scopeRebook)
			w.wantOAuthError(w.poll(d["device_code"]), 400, "authorization_pending")
			return func() {
				w.wantOAuthError(w.poll(d["device_code"]), 400, "slow_down")
				if c, err := w.person(0).AllowAll(w.t.Context(), text(w.t, d, "verification_uri_complete")); err != nil || len(c.Asked) != 2 {
					w.t.Fatal(c, err)
				}
				if a := w.poll(d["device_code"]); a.status != http.StatusOK || a.json(w.t)["scope"] != scopeUpcoming+" "+scopeRebook {
					w.t.Errorf("%d %s", a.status, a.body)
				}
			}
		}},
		{"a consent not collected", func(w *durable) func() {
			a := w.say(LarklineID, "m1", "", "Show my past flights", "")
			link := text(w.t, a.json(w.t), "task", "metadata", "pact.verificationUriComplete")
			if _, err := w.person(0).AllowAll(w.t.Context(), link); err != nil {
				w.t.Fatal(err)
			}
			return func() {
				if a := w.poll(w.device(scopeHistory)["device_code"]); a.status != http.StatusOK {
					w.t.Errorf("%d %s", a.status, a.body)
				}
			}
		}},
		{"a denial and a used code", func(w *durable) func() {
			no, used := w.device(scopeUpcoming), w.device(scopeUpcoming)
			if _, err := w.person(0).Deny(w.t.Context(), text(w.t, no, "verification_uri_complete")); err != nil {
				w.t.Fatal(err)
			}
			if _, err := w.person(0).AllowAll(w.t.Context(), text(w.t, used, "verification_uri_complete")); err != nil {
				w.t.Fatal(err)
			}
			w.poll(used["device_code"])
			return func() {
				w.wantOAuthError(w.poll(no["device_code"]), 400, "access_denied")
				w.wantOAuthError(w.poll(used["device_code"]), 400, "invalid_grant")
			}
		}},
		{"a registered platform", func(w *durable) func() {
			register := func() answer {
				now := w.clock.now().Unix()
				token := sign(w.t, w.issuer.keys[0], map[string]any{
					"iss": w.issuer.url, "sub": w.issuer.url, "aud": w.ready.Provider + platformsPath, "iat": now, "exp": now + 60, "jti": newUUID(),
				}, nil)
				return w.do(http.MethodPost, w.ready.Provider+platformsPath, `{"name":"my-pa","jwksUri":"`+w.issuer.url+`/.well-known/jwks.json"}`,
					"Authorization: Bearer "+token, "Content-Type: application/json")
			}
			first := register()
			if first.status != http.StatusCreated {
				w.t.Fatalf("%d %s", first.status, first.body)
			}
			return func() {
				if again := register(); again.status != http.StatusOK || !bytes.Equal(again.body, first.body) {
					w.t.Errorf("%d %s, before %s", again.status, again.body, first.body)
				}
			}
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			w := newDurable(t)
			afterwards := kind.test(w)
			w.restart()
			afterwards()
		})
	}
}

// grantID is that of a token response.
func (w *world) grantID(token map[string]any) string {
	w.t.Helper()
	payload, _ := w.verified(text(w.t, token, "access_token"))
	var claims tokenClaims
	if err := json.Unmarshal(payload, &claims); err != nil {
		w.t.Fatal(err)
	}
	return claims.GrantID
}

// wantEnded checks that the grant of a token response gives nothing any more.
func (w *world) wantEnded(token map[string]any) {
	w.t.Helper()
	a := w.say(LarklineID, newUUID(), "", "Show my upcoming flights", text(w.t, token, "access_token"))
	if a.status != http.StatusUnauthorized || a.header.Get("WWW-Authenticate") != `Bearer realm="a2a", error="invalid_token"` {
		w.t.Errorf("the token of an ended grant: %d %v", a.status, a.header)
	}
	w.wantOAuthError(w.oauth("token", "grant_type", grantRefresh, "refresh_token", text(w.t, token, "refresh_token")), 400, "invalid_grant")
}

// TestRevokedAtOnce: what the owner revokes gives nothing from then on.
func TestRevokedAtOnce(t *testing.T) {
	w := newWorld(t)
	store, now := w.sandbox.store, w.clock.now()
	g, other := w.grant(0, scopeUpcoming), w.grant(1, scopeUpcoming)
	for _, want := range []bool{true, false} { // the second time there is nothing to revoke
		if held, err := store.revoke(t.Context(), w.grantID(g), now); err != nil || held != want {
			t.Errorf("%v, %v", held, err)
		}
	}
	if held, err := store.revoke(t.Context(), "a2agrant_none", now); err != nil || held {
		t.Errorf("an unknown grant: %v, %v", held, err)
	}
	w.wantEnded(g)
	w.reply(w.say(LarklineID, "m1", "", "Show my upcoming flights", text(t, other, "access_token")))
	grants, err := store.grantList(t.Context(), now)
	if err != nil || len(grants) != 2 || grants[0].user != "lark-9000" || !grants[1].revoked.Equal(now) {
		t.Errorf("%+v, %v", grants, err)
	}
	if grants, err = store.grantList(t.Context(), now.Add(Defaults().GrantTTL)); err != nil || grants != nil {
		t.Errorf("expired ones: %+v, %v", grants, err)
	}
}

// TestCrashDuringATurn: a message that was reserved and not answered when the process
// died is never run again.
func TestCrashDuringATurn(t *testing.T) {
	crashed := filepath.Join(t.TempDir(), "state.db")
	var original string
	brand := Marrow()
	answer := brand.Respond
	brand.Respond = func(ctx context.Context, turn Turn) (Reply, error) {
		if turn.Text == "crash" { // what a process that dies here leaves behind
			for _, suffix := range []string{"", "-wal"} {
				state, err := os.ReadFile(original + suffix)
				if err == nil {
					err = os.WriteFile(crashed+suffix, state, 0o600)
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
		return answer(ctx, turn)
	}
	w := newDurable(t, func(c *Config) { c.Brands, original = []Brand{brand}, c.State })
	before := w.say(MarrowID, "m1", "", "hello", "")
	in, _ := w.reply(before)
	w.reply(w.say(MarrowID, "m2", in, "crash", ""))

	w.cfg.State = crashed
	w.restart()
	for range 2 {
		w.wantError(w.say(MarrowID, "m2", in, "crash", ""), 400, "INVALID_PARAMS", errNoReply.message)
	}
	if again := w.say(MarrowID, "m1", in, "hello", ""); !bytes.Equal(again.body, before.body) {
		t.Errorf("the reply before: %s", again.body)
	}
	w.reply(w.say(MarrowID, "m3", in, "hello", ""))
}

// TestStoreFailures: what cannot be stored or looked up is our failure, told as such
// and nothing more; nothing that was signed gets out.
func TestStoreFailures(t *testing.T) {
	const send, sent = "Cancel my next flight", `{"error":{"code":500,"status":"INTERNAL","message":"Internal error",`
	const failed = `{"error":"server_error","error_description":"Try again later"}`
	type attempt func(w *world) (broken string, act func() answer)
	allowed := func(w *world) map[string]any {
		d := w.device(scopeCancel)
		if _, err := w.person(0).AllowAll(w.t.Context(), text(w.t, d, "verification_uri_complete")); err != nil {
			w.t.Fatal(err)
		}
		return d
	}
	for name, c := range map[string]struct {
		attempt
		body string
	}{
		"who calls": {func(w *world) (string, func() answer) {
			return "platforms", func() answer { return w.call(http.MethodGet, w.url(MarrowID, "tasks"), "") }
		}, sent},
		"a registration": {func(w *world) (string, func() answer) {
			now := w.clock.now().Unix()
			token := sign(w.t, w.issuer.keys[0], map[string]any{
				"iss": w.issuer.url, "sub": w.issuer.url, "aud": w.ready.Provider + platformsPath, "iat": now, "exp": now + 60, "jti": "1",
			}, nil)
			return "platforms", func() answer {
				return w.do(http.MethodPost, w.ready.Provider+platformsPath, `{"name":"my-pa","jwksUri":"`+w.issuer.url+`/.well-known/jwks.json"}`,
					"Authorization: Bearer "+token, "Content-Type: application/json")
			}
		}, failed},
		"a delegation": {func(w *world) (string, func() answer) {
			token := text(w.t, w.grant(0, scopeCancel), "access_token")
			return "grants", func() answer { return w.say(LarklineID, "m1", "", send, token) }
		}, sent},
		"a conversation": {func(w *world) (string, func() answer) {
			return "conversations", func() answer { return w.say(MarrowID, "m1", "", "hello", "") }
		}, sent},
		"a reservation": {func(w *world) (string, func() answer) {
			return "messages", func() answer { return w.say(MarrowID, "m1", "", "hello", "") }
		}, sent},
		"what the brand remembers": {func(w *world) (string, func() answer) {
			token := text(w.t, w.grant(0, scopeCancel), "access_token")
			return "memories", func() answer { return w.say(LarklineID, "m1", "", send, token) }
		}, sent},
		"a receipt": {func(w *world) (string, func() answer) {
			token := text(w.t, w.grant(0, scopeCancel), "access_token")
			return "receipts", func() answer { return w.say(LarklineID, "m1", "", send, token) }
		}, sent},
		"a step-up": {func(w *world) (string, func() answer) {
			return "authorizations", func() answer { return w.say(LarklineID, "m1", "", send, "") }
		}, sent},
		"a sign-in start": {func(w *world) (string, func() answer) {
			return "authorizations", func() answer { return w.oauth("device_authorization", "scope", scopeCancel) }
		}, failed},
		"a poll": {func(w *world) (string, func() answer) {
			d := allowed(w)
			return "authorizations", func() answer { return w.poll(d["device_code"]) }
		}, failed},
		"a grant": {func(w *world) (string, func() answer) {
			d := allowed(w)
			return "refreshes", func() answer { return w.poll(d["device_code"]) }
		}, failed},
		"a refresh": {func(w *world) (string, func() answer) {
			token := text(w.t, w.grant(0, scopeCancel), "refresh_token")
			return "refreshes", func() answer { return w.oauth("token", "grant_type", grantRefresh, "refresh_token", token) }
		}, failed},
		"a consent page": {func(w *world) (string, func() answer) {
			link := text(w.t, w.device(scopeCancel), "verification_uri_complete")
			action, _, assertion := firstForm(w.t, w.login(link, testAccounts[0].Email, testAccounts[0].Password))
			return "authorizations", func() answer { return w.post(action, url.Values{"assertion": {assertion}}) }
		}, "<!doctype html>"},
		"a decision": {func(w *world) (string, func() answer) {
			action, _, session := firstForm(w.t, w.consentPage(text(w.t, w.device(scopeCancel), "verification_uri_complete")))
			return "authorizations", func() answer {
				return w.post(action, url.Values{"session": {session}, "decision": {"allow"}, "scope": {scopeCancel}})
			}
		}, "<!doctype html>"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			table, act := c.attempt(w)
			if err := w.sandbox.store.view(t.Context(), func(x *tx) error {
				_, err := x.exec("DROP TABLE " + table)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			a := act()
			if a.status != http.StatusInternalServerError || !bytes.HasPrefix(a.body, []byte(c.body)) || bytes.Contains(a.body, []byte(table)) {
				t.Errorf("%d %s", a.status, a.body)
			}
			for _, signed := range []string{"access_token", "pact.receipt", "eyJ"} {
				if bytes.Contains(a.body, []byte(signed)) {
					t.Errorf("%q got out: %s", signed, a.body)
				}
			}
		})
	}
}

// TestMemoryOfATurn: a brand remembers each of its users, however they come, and
// nobody without a delegation.
func TestMemoryOfATurn(t *testing.T) {
	var got, leave jsontext.Value
	brand := Larkline(testStart)
	brand.Respond = func(_ context.Context, turn Turn) (Reply, error) {
		got = turn.Memory
		r := Reply{Text: "well", Memory: leave}
		if turn.Text == "step up" {
			r.Missing = []string{scopeCancel}
		}
		return r, nil
	}
	other := brand
	other.ID = "OTHER"
	w := newWorld(t, func(c *Config) { c.Brands = []Brand{brand, other} })
	robin, kim := text(t, w.grant(0, scopeUpcoming), "access_token"), text(t, w.grant(1, scopeUpcoming), "access_token")
	w.subject = "another-agent"
	elsewhere := text(t, w.grant(0, scopeUpcoming), "access_token")
	n := 0
	for _, turn := range []struct {
		subject, token, text, leave, want string
	}{
		{"user-7f3a", robin, "x", `{"n":1}`, ""},
		{"user-7f3a", robin, "x", "", `{"n":1}`},
		{"user-7f3a", kim, "x", `{"n":2}`, ""},
		{"user-7f3a", "", "x", `{"n":3}`, ""},
		{"user-7f3a", robin, "step up", `{"n":4}`, `{"n":1}`},
		{"another-agent", elsewhere, "x", `{"n":5}`, `{"n":1}`},
		{"user-7f3a", robin, "x", "", `{"n":5}`},
		{"user-7f3a", kim, "x", "", `{"n":2}`},
	} {
		n++
		w.subject, leave = turn.subject, nil
		if turn.leave != "" {
			leave = jsontext.Value(turn.leave)
		}
		if a := w.say(LarklineID, newUUID(), "", turn.text, turn.token); a.status != http.StatusOK || string(got) != turn.want {
			t.Errorf("turn %d: %d, memory %s, want %s", n, a.status, got, turn.want)
		}
	}
	w.subject = "user-7f3a"
	for _, leave = range []jsontext.Value{jsontext.Value("{"), jsontext.Value(`"` + strings.Repeat("x", maxMemory) + `"`)} {
		w.wantError(w.say(LarklineID, newUUID(), "", "x", robin), 500, "INTERNAL", "Internal error")
	}
	leave = nil
	if w.say(LarklineID, newUUID(), "", "x", robin); string(got) != `{"n":5}` {
		t.Errorf("a memory that is none was kept: %s", got)
	}
}

// TestOneTurnOfAUserAtATime: turns of one user do not run into each other, in
// whatever conversations; those of others do not wait for them.
func TestOneTurnOfAUserAtATime(t *testing.T) {
	var running, most atomic.Int64
	entered, goOn := make(chan struct{}, 20), make(chan struct{})
	brand := Larkline(testStart)
	brand.Respond = func(_ context.Context, turn Turn) (Reply, error) {
		if turn.Text == "wait" {
			entered <- struct{}{}
			<-goOn
			return Reply{Text: "waited"}, nil
		}
		var sum int
		if turn.Memory != nil {
			if err := json.Unmarshal(turn.Memory, &sum); err != nil {
				return Reply{}, err
			}
		}
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		memory, err := json.Marshal(sum + 1)
		return Reply{Text: string(memory), Memory: memory}, err
	}
	w := newWorld(t, func(c *Config) { c.Brands = []Brand{brand} })
	robin, kim := text(t, w.grant(0, scopeUpcoming), "access_token"), text(t, w.grant(1, scopeUpcoming), "access_token")
	address, headers := w.url(LarklineID, "message:send"), []string{"Authorization: Bearer " + w.token(), "X-A2A-User-Delegation: Bearer " + robin}
	w.together(20, http.MethodPost, address, func(int) string {
		return `{"message":{"messageId":"` + newUUID() + `","role":"ROLE_USER","parts":[{"text":"count"}]}}`
	}, headers...)
	if _, said := w.reply(w.say(LarklineID, "m", "", "count", robin)); said != "21" || most.Load() != 1 {
		t.Errorf("counted %s, and %d at once", said, most.Load())
	}

	waiting := make(chan error, 1)
	go func() {
		_, err := w.try(http.MethodPost, address, `{"message":{"messageId":"w","role":"ROLE_USER","parts":[{"text":"wait"}]}}`, headers...)
		waiting <- err
	}()
	<-entered
	if _, said := w.reply(w.say(LarklineID, "m", "", "count", kim)); said != "1" {
		t.Errorf("the other user hears %s", said)
	}
	if _, said := w.reply(w.say(LarklineID, "m2", "", "count", "")); said != "1" {
		t.Errorf("nobody hears %s", said)
	}
	close(goOn)
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if n := len(w.sandbox.store.turns.running); n != 0 {
		t.Errorf("%d queues left", n)
	}
}

// TestOneTurnOfAContextAtATime: a turn waits for the one before it, and does not run
// if that closed the context; its messageId is free again then.
func TestOneTurnOfAContextAtATime(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	var ran atomic.Int64
	brand := Marrow()
	brand.Respond = func(_ context.Context, turn Turn) (Reply, error) {
		ran.Add(1)
		if turn.Text == "close" {
			close(entered)
			<-goOn
		}
		return Reply{Text: "well", Close: turn.Text == "close"}, nil
	}
	w := newWorld(t, func(c *Config) { c.Brands = []Brand{brand} })
	in, _ := w.reply(w.say(MarrowID, "m1", "", "hello", ""))
	address, header := w.url(MarrowID, "message:send"), "Authorization: Bearer "+w.token()
	send := func(id, text string) <-chan answer {
		got := make(chan answer, 1)
		go func() {
			a, err := w.try(http.MethodPost, address, `{"message":{"messageId":"`+id+`","contextId":"`+in+`","role":"ROLE_USER","parts":[{"text":"`+text+`"}]}}`, header)
			if err != nil {
				t.Error(err)
			}
			got <- a
		}()
		return got
	}
	closing := send("m2", "close")
	<-entered
	waiting := send("m3", "hello")
	for w.sandbox.store.count(t, "messages") < 3 && t.Context().Err() == nil {
		runtime.Gosched()
	}
	close(goOn)
	w.reply(<-closing)
	w.wantError(<-waiting, 400, "UNSUPPORTED_OPERATION", "Context is closed")
	w.wantError(w.say(MarrowID, "m3", in, "hello", ""), 400, "UNSUPPORTED_OPERATION", "Context is closed")
	if n := ran.Load(); n != 2 {
		t.Errorf("%d turns ran", n)
	}
}

// TestBrandsKeyIsItsOwn: another brand has another key, and a restart without the
// state another one too.
func TestBrandsKeyIsItsOwn(t *testing.T) {
	w := newDurable(t, func(c *Config) {
		other := Larkline(testStart)
		other.ID = "OTHER"
		c.Brands = []Brand{Larkline(testStart), other}
	})
	kid := func() string { return w.sandbox.business(LarklineID).key.id }
	first := kid()
	if first == w.sandbox.business("OTHER").key.id {
		t.Error("two brands share a key")
	}
	w.restart()
	if kid() != first {
		t.Error("the key changed with the restart")
	}
	w.cfg.State = ""
	w.restart()
	if kid() == first {
		t.Error("the key is not of the state")
	}
}
