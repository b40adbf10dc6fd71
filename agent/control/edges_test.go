package control

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/sqlite"
)

// CV-16, CP-2: who has too many operations loses the oldest of their own, and nobody else
// one of theirs, as many as they may have.
func TestOutcomesOfWhoHasTooMany(t *testing.T) {
	o := newOutcomes(time.Now)
	mine, theirs := outcomeCall{o, t, "token a", "token-a"}, outcomeCall{o, t, "token b", "token-b"}
	for i := range maxOutcomes {
		for _, c := range []outcomeCall{mine, theirs} {
			if _, err := c.serve(t.Context(), replies("replied"), operationKey, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := theirs.serve(t.Context(), replies("replied"), operationKey, "one-more"); err != nil {
		t.Fatal(err)
	}
	for i := range maxOutcomes {
		if sent, err := mine.serve(t.Context(), mine.nothing, outcomeKey, fmt.Sprint(i)); err != nil || len(sent) != 1 {
			t.Errorf("what became of %d: %v, %v", i, sent, err)
		}
	}
	if sent, err := theirs.serve(t.Context(), theirs.nothing, outcomeKey, "0"); err == nil {
		t.Errorf("the oldest of who has too many: %v", sent)
	}
}

// CP-2: a request with two tokens is nobody's, though each of them is good.
func TestTwoTokens(t *testing.T) {
	w := newServer(t)
	read, admin := "Bearer "+w.secrets[ScopeRead], "Bearer "+w.secrets[ScopeAdmin]
	for _, l := range []*Listener{w.unix, w.loopback} {
		if code, _, body := w.rest(l, "GET", "/v1/grants", "", "Authorization", read); code != 200 {
			t.Errorf("one token: %d %s", code, body)
		}
		for _, second := range []string{read, admin, ""} {
			for _, both := range [][]string{{read, second}, {second, read}} {
				code, _, body := w.rest(l, "GET", "/v1/grants", "", "Authorization", both[0], "Authorization", both[1])
				if reason, _ := infoOf(restStatus(t, body)); code != 401 || reason != codeUnauthenticated {
					t.Errorf("two tokens at %s: %d %s", l.target, code, body)
				}
			}
		}
	}
}

// DA-15, RD-4: what belongs to a sign-in is taken out of the names in a map too, and of
// what is in it.
func TestNamesInAMapAreWithheld(t *testing.T) {
	m := &errdetails.ErrorInfo{Metadata: map[string]string{"trips ABCD-EFGH": "yes", "detail": "enter ABCD-EFGH"}}
	mapTexts(m.ProtoReflect(), "", func(_, text string) string { return strings.ReplaceAll(text, "ABCD-EFGH", agent.Redacted) })
	if len(m.Metadata) != 2 || m.Metadata["trips "+agent.Redacted] != "yes" || m.Metadata["detail"] != "enter "+agent.Redacted {
		t.Errorf("got %v", m.Metadata)
	}
}

// CP-4: that a token is used is written down once in an hour, however often it is.
func TestUseIsWrittenOnceAnHour(t *testing.T) {
	store, err := sqlite.Open(filepath.Join(t.TempDir(), "agent.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	at := &clock{now: time.Date(2026, 3, 4, 5, 30, 0, 0, time.UTC)}
	tokens := NewTokens(store, "owner", at.Now)
	v, secret, err := tokens.Create(t.Context(), CreateToken{Name: "ops", Scope: ScopeRead})
	if err != nil {
		t.Fatal(err)
	}
	written := func() (revision int64) {
		t.Helper()
		for range 3 {
			if _, err := tokens.accept(t.Context(), secret.Reveal()); err != nil {
				t.Fatal(err)
			}
		}
		err := store.View(t.Context(), func(tx agent.Tx) error {
			r, err := tx.Get(agent.KindToken, "owner", v.ID)
			revision = r.Revision
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	first := written()
	at.pass(touchEvery / 4)
	if now := written(); now != first {
		t.Errorf("within the hour: revision %d, before %d", now, first)
	}
	at.pass(touchEvery)
	if now := written(); now != first+1 {
		t.Errorf("an hour later: revision %d, before %d", now, first)
	}
}
