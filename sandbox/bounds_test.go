package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// insert adds n rows to a table of a store, with values that depend on the row.
func (s *store) insert(t *testing.T, n int, into string, values func(i int) []any) {
	t.Helper()
	if err := s.update(t.Context(), func(x *tx) error {
		for i := range n {
			if _, err := x.exec("INSERT INTO "+into, values(i)...); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// has tells whether a row is there.
func (s *store) has(t *testing.T, table, id string) (found bool) {
	t.Helper()
	if err := s.view(t.Context(), func(x *tx) (err error) {
		var one int
		found, err = x.get("SELECT 1 FROM "+table+" WHERE id = ?", []any{id}, &one)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// fill adds n conversations of an issuer's, the first used first.
func (s *store) fill(t *testing.T, issuer string, n int) {
	t.Helper()
	s.insert(t, n, "conversations (id, brand, issuer, subject, used) VALUES (?, ?, ?, 'u', ?)", func(i int) []any {
		return []any{fmt.Sprint(issuer, " ", i), MarrowID, issuer, instant{testStart.Add(time.Duration(i))}}
	})
}

// openAs begins a conversation of an issuer's; its turn is under way.
func (s *store) openAs(t *testing.T, issuer string, at time.Time) string {
	t.Helper()
	id, _, err := s.begin(t.Context(), party{MarrowID, caller{issuer, "u"}}, "", "m", delegated{}, at)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestIdleConversationsMakeRoom: an issuer's own first, and beyond what all may have
// those of the issuer that has the most.
func TestIdleConversationsMakeRoom(t *testing.T) {
	const a, b, c = "https://a.example", "https://b.example", "https://c.example"
	s, later := openStore(t, ""), testStart.Add(time.Hour)
	s.fill(t, b, 10)
	s.fill(t, a, maxConversations)
	s.openAs(t, a, later)
	if s.has(t, "conversations", a+" 0") || !s.has(t, "conversations", a+" 1") || !s.has(t, "conversations", b+" 0") {
		t.Error("it was not the issuer's own idlest that made room")
	}
	s.fill(t, c, allConversations-maxConversations-10)
	s.openAs(t, b, later)
	if s.has(t, "conversations", a+" 1") || !s.has(t, "conversations", a+" 2") || !s.has(t, "conversations", b+" 0") || !s.has(t, "conversations", c+" 0") {
		t.Error("it was not the idlest of the issuer with the most that made room")
	}
	if n := s.count(t, "conversations"); n != allConversations {
		t.Errorf("%d conversations", n)
	}
}

// TestTurnKeepsItsConversation: whatever others open meanwhile, a turn can be settled;
// a message that was never answered goes after those that were.
func TestTurnKeepsItsConversation(t *testing.T) {
	const issuer = "https://a.example"
	s := openStore(t, "")
	running := s.openAs(t, issuer, testStart.Add(-time.Hour))
	dead := s.openAs(t, issuer, testStart.Add(-2*time.Hour))
	s.ended(dead) // without settle
	s.fill(t, issuer, maxConversations-2)
	s.openAs(t, issuer, testStart.Add(time.Hour))
	if s.has(t, "conversations", issuer+" 0") || !s.has(t, "conversations", dead) || !s.has(t, "conversations", running) {
		t.Error("the idlest that was answered did not go first")
	}
	if err := s.update(t.Context(), func(x *tx) error { // now none is answered
		_, err := x.exec("INSERT INTO messages (conversation, id) SELECT id, 'x' FROM conversations")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.openAs(t, issuer, testStart.Add(time.Hour))
	s.openAs(t, issuer, testStart.Add(time.Hour))
	if s.has(t, "conversations", dead) || s.has(t, "conversations", issuer+" 1") || !s.has(t, "conversations", issuer+" 2") {
		t.Error("the idlest that nobody answers any more did not go next")
	}
	if err := s.settle(t.Context(), outcome{brand: MarrowID, conversation: running, messageID: "m", body: []byte("{}"), at: testStart}); err != nil {
		t.Errorf("the turn under way lost its conversation: %v", err)
	}
	if n := s.count(t, "conversations"); n != maxConversations {
		t.Errorf("%d conversations", n)
	}
}

// TestTurnsUnderWayAreCounted: as long as they last.
func TestTurnsUnderWayAreCounted(t *testing.T) {
	brand, s := Marrow(), (*Sandbox)(nil)
	answer, counted := brand.Respond, 0
	brand.Respond = func(ctx context.Context, turn Turn) (Reply, error) {
		s.store.mu.Lock()
		counted = s.store.underWay[turn.ContextID]
		s.store.mu.Unlock()
		if turn.Text == "fail" {
			return Reply{}, errors.New("failed")
		}
		return answer(ctx, turn)
	}
	w := newWorld(t, func(c *Config) { c.Brands = []Brand{brand} })
	s = w.sandbox
	in, _ := w.reply(w.say(MarrowID, "m1", "", "hello", ""))
	for _, text := range []string{"hello", "fail"} {
		counted = 0
		w.say(MarrowID, text, in, text, "")
		if counted != 1 || len(s.store.underWay) != 0 {
			t.Errorf("%s: %d during the turn, %v after it", text, counted, s.store.underWay)
		}
	}
}

// TestLongConversationIsClosed: its replies stay.
func TestLongConversationIsClosed(t *testing.T) {
	w := newWorld(t)
	first := w.say(MarrowID, "m0", "", "hello", "")
	in, _ := w.reply(first)
	w.sandbox.store.insert(t, maxMessages-2, "messages (conversation, id, reply) VALUES (?, ?, x'7b7d')", func(i int) []any { return []any{in, fmt.Sprint("x", i)} })
	w.reply(w.say(MarrowID, "last", in, "hello", ""))
	w.wantError(w.say(MarrowID, "more", in, "hello", ""), 400, "UNSUPPORTED_OPERATION", "Context is closed")
	if again := w.say(MarrowID, "m0", in, "hello", ""); string(again.body) != string(first.body) {
		t.Errorf("stored %s, first %s", again.body, first.body)
	}
}

// TestMessageIDIsShort: in characters.
func TestMessageIDIsShort(t *testing.T) {
	w := newWorld(t)
	w.reply(w.say(MarrowID, strings.Repeat("é", maxMessageID), "", "hello", ""))
	w.wantError(w.say(MarrowID, strings.Repeat("é", maxMessageID+1), "", "hello", ""), 400, "INVALID_PARAMS", "messageId must have at most 256 characters")
	if n := w.sandbox.store.count(t, "messages"); n != 1 {
		t.Errorf("%d messages", n)
	}
}

// TestPendingRequestsAreBound: the oldest link of a step-up goes before a device's code,
// the party's own first, then the issuer's, and then those of whose issuer has the most.
func TestPendingRequestsAreBound(t *testing.T) {
	const issuer, other = "https://a.example", "https://b.example"
	ask := func(s *store, device, issuer, subject string) authorization {
		t.Helper()
		a, err := s.authorize(t.Context(), authorization{device: device, party: party{LarklineID, caller{issuer, subject}}, scopes: []string{scopeUpcoming}}, testStart)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	waits := func(s *store, a authorization) bool {
		t.Helper()
		_, waits, err := s.undecided(t.Context(), LarklineID, a.userCode, testStart)
		if err != nil {
			t.Fatal(err)
		}
		return waits
	}
	decide := func(s *store, a authorization, granted ...string) {
		t.Helper()
		if waited, err := s.decide(t.Context(), LarklineID, a.userCode, "robin", granted, testStart); err != nil || !waited {
			t.Fatal(waited, err)
		}
	}
	fill := func(s *store, issuer string, n int) {
		t.Helper()
		s.insert(t, n, `authorizations (user_code, device, brand, issuer, subject, scopes, expires, interval, polled, any_pace, state, user, granted)
			VALUES (?, ?, 'x', ?, ?, '[]', ?, 0, 0, 0, 0, '', '[]')`, func(i int) []any {
			return []any{fmt.Sprint(issuer, i), fmt.Sprint(issuer, i), issuer, fmt.Sprint("x", i), instant{testStart.Add(time.Minute)}}
		})
	}

	s := openStore(t, "")
	theirs, allowed := ask(s, "", issuer, "v"), ask(s, "", issuer, "u")
	decide(s, allowed, scopeUpcoming)
	if collected := ask(s, "d", issuer, "u"); collected.state != authApproved {
		t.Fatalf("%+v", collected)
	}
	code, first, second := ask(s, "d0", issuer, "u"), ask(s, "", issuer, "u"), ask(s, "", issuer, "u")
	for i := range maxPending - 3 {
		ask(s, fmt.Sprint("d", i+1), issuer, "u")
	}
	if !waits(s, first) {
		t.Error("a link went too early")
	}
	ask(s, "", issuer, "u")
	if waits(s, first) || !waits(s, second) || !waits(s, code) || !waits(s, theirs) {
		t.Error("it was not the party's oldest link that made room")
	}
	ask(s, "e0", issuer, "u")
	ask(s, "e1", issuer, "u")
	if waits(s, second) || !waits(s, code) || !waits(s, theirs) {
		t.Error("it was not a link that made room")
	}
	ask(s, "e2", issuer, "u")
	if waits(s, code) || !waits(s, theirs) {
		t.Error("without links it was not the party's oldest code that made room")
	}

	s = openStore(t, "")
	code, theirs = ask(s, "d", issuer, "u"), ask(s, "", other, "u")
	no := ask(s, "n", issuer, "n")
	decide(s, no)
	link := ask(s, "", issuer, "v")
	fill(s, issuer, maxAuthorizations-3)
	ask(s, "", issuer, "w")
	if waits(s, link) || !waits(s, code) || !waits(s, theirs) {
		t.Error("it was not the issuer's oldest link that made room")
	}
	for i := 0; s.count(t, "authorizations") < allAuthorizations; i++ {
		fill(s, fmt.Sprint("https://", i, ".example"), min(maxAuthorizations-100, allAuthorizations-s.count(t, "authorizations")))
	}
	ask(s, "", other, "u")
	ask(s, "", other, "u")
	if n := s.count(t, "authorizations"); n != allAuthorizations || !waits(s, theirs) || waits(s, code) {
		t.Errorf("%d requests; it was not the issuer with the most that made room", n)
	}
	var refusal *oauthError
	if _, err := s.collect(t.Context(), "n", no.party, "g", "r", testStart); !errors.As(err, &refusal) || refusal.Code != "access_denied" {
		t.Errorf("what was decided went before what waits: %v", err)
	}
}

// TestApprovedBefore: a request that consent behind a step-up's link has answered.
func TestApprovedBefore(t *testing.T) {
	s, p := openStore(t, ""), party{LarklineID, caller{"https://a.example", "u"}}
	ask := func(device string) authorization {
		a, err := s.authorize(t.Context(), authorization{device: device, party: p, scopes: []string{scopeUpcoming}}, testStart)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	want := func(a authorization, brand, user string, at time.Time, want bool) {
		t.Helper()
		if got, err := s.approved(t.Context(), brand, a.userCode, user, at); got != want || err != nil {
			t.Errorf("%s: %v, %v", user, got, err)
		}
	}
	link := ask("")
	want(link, LarklineID, "robin", testStart, false)
	if _, err := s.decide(t.Context(), LarklineID, link.userCode, "robin", link.scopes, testStart); err != nil {
		t.Fatal(err)
	}
	before := ask("d")
	want(before, LarklineID, "robin", testStart, true)
	want(before, LarklineID, "kim", testStart, false)
	want(before, MarrowID, "robin", testStart, false)
	want(before, LarklineID, "robin", before.expires, false)
	want(ask("d2"), LarklineID, "robin", testStart, false)
	if _, err := s.collect(t.Context(), "d", p, "g", "r", testStart); err != nil {
		t.Fatal(err)
	}
	want(before, LarklineID, "robin", testStart, false)
}

// TestPlatformsAreBound: beyond, nobody new registers; who did is known.
func TestPlatformsAreBound(t *testing.T) {
	w := newWorld(t)
	register := func() answer {
		now := w.clock.now().Unix()
		token := sign(t, w.issuer.keys[0], map[string]any{
			"iss": w.issuer.url, "sub": w.issuer.url, "aud": w.ready.Provider + platformsPath, "iat": now, "exp": now + 60, "jti": newUUID(),
		}, nil)
		return w.do(http.MethodPost, w.ready.Provider+platformsPath, `{"name":"`+strings.ReplaceAll(strings.TrimPrefix(w.issuer.url, "http://127.0.0.1:"), ".", "-")+`","jwksUri":"`+w.issuer.url+`/.well-known/jwks.json"}`,
			"Authorization: Bearer "+token, "Content-Type: application/json")
	}
	w.sandbox.store.insert(t, maxPlatforms-1, "platforms (issuer, id, name, jwks_uri, enabled) VALUES (?, ?, ?, '', 1)", func(i int) []any {
		n := fmt.Sprint("filled-", i)
		return []any{n, n, n}
	})
	for _, want := range []int{http.StatusCreated, http.StatusOK} {
		if a := register(); a.status != want {
			t.Fatalf("%d %s, want %d", a.status, a.body, want)
		}
	}
	w.issuer = newIssuer(t)
	w.wantPlain(register(), http.StatusServiceUnavailable, "unavailable")
	if n := w.sandbox.store.count(t, "platforms"); n != maxPlatforms {
		t.Errorf("%d platforms", n)
	}
}

// wantPlain checks an error of the platforms' kind.
func (w *world) wantPlain(a answer, status int, code string) {
	w.t.Helper()
	if a.status != status || text(w.t, a.json(w.t), "error") != code {
		w.t.Errorf("%d %s, want %d %s", a.status, a.body, status, code)
	}
}

// TestExecutionsAreBound: in bytes too, and what is kept keeps nothing else.
func TestExecutionsAreBound(t *testing.T) {
	var few, large executions
	for i := range maxExecutions + 1 {
		few.add(MarrowID, message{id: fmt.Sprint(i)}, Reply{}, testStart)
		if n := len(few.list); n < min(i+1, maxExecutions/2) || n > maxExecutions || few.list[n-1].MessageID != fmt.Sprint(i) {
			t.Fatalf("%d of %d, the last %+v", n, i+1, few.list[n-1])
		}
	}
	long := strings.Repeat("x", 250<<10)
	for i := range 400 {
		large.add(MarrowID, message{id: fmt.Sprint(i), text: long}, Reply{Actions: []Action{{Tool: long}}}, testStart)
		sum := 0
		for _, x := range large.list {
			sum += len(x.Text) + len(x.Tools[0])
		}
		if sum > maxExecutionBytes || sum < min(i+1, 8)*2*len(long) || sum > large.bytes {
			t.Fatalf("%d bytes, counted %d, after %d", sum, large.bytes, i+1)
		}
	}
}
