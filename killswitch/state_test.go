package killswitch

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// states draws from few ids, so that they meet.
func states() *rapid.Generator[State] {
	id := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	at := rapid.Custom(func(t *rapid.T) time.Time {
		return testTime.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "s")) * time.Second)
	})
	entries := rapid.Custom(func(t *rapid.T) Entry {
		e := Entry{ID: id.Draw(t, "id"), Epoch: rapid.Uint64Range(1, 5).Draw(t, "epoch"), Time: at.Draw(t, "time"), Reason: "r", Actor: "a"}
		e.Scope = rapid.SampledFrom([]Scope{{Kind: All}, {Kind: Issuer, Issuer: "i"}, {Kind: Device, Issuer: "i", Value: "d"}}).Draw(t, "scope")
		if rapid.Bool().Draw(t, "expires") {
			e.Expires = at.Draw(t, "expiry")
		}
		return e
	})
	resumes := rapid.Custom(func(t *rapid.T) Resume {
		return Resume{ID: id.Draw(t, "id"), Epoch: rapid.Uint64Range(1, 5).Draw(t, "epoch"), Time: at.Draw(t, "time"),
			Entries: rapid.SliceOfN(id, 1, 3).Draw(t, "entries")}
	})
	return rapid.Custom(func(t *rapid.T) State {
		return State{
			Epoch:   rapid.Uint64Range(0, 6).Draw(t, "epoch"),
			Entries: rapid.SliceOfN(entries, 0, 4).Draw(t, "entries"),
			Resumes: rapid.SliceOfN(resumes, 0, 3).Draw(t, "resumes"),
		}
	})
}

func TestMergeIsASemilattice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := states().Draw(t, "a"), states().Draw(t, "b"), states().Draw(t, "c")
		ab := Merge(a, b)
		if !ab.equal(Merge(b, a)) {
			t.Fatal("not commutative")
		}
		if !Merge(ab, c).equal(Merge(a, Merge(b, c))) {
			t.Fatal("not associative")
		}
		if !Merge(ab, ab).equal(ab) || !Merge(ab, a).equal(ab) {
			t.Fatal("not idempotent")
		}
		for _, s := range []State{a, b} {
			for _, e := range s.Entries {
				if !slices.Contains(ab.Entries, e.normal()) {
					t.Fatalf("entry %+v is lost", e)
				}
			}
			for _, r := range s.Resumes {
				if !slices.ContainsFunc(ab.Resumes, func(x Resume) bool { return compareResumes(x, r.normal()) == 0 }) {
					t.Fatalf("resume %+v is lost", r)
				}
			}
			if ab.Epoch < s.Epoch {
				t.Fatal("the epoch fell")
			}
		}
	})
}

func TestMergeSurvivesJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Merge(states().Draw(t, "s"), State{})
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back State
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatal(err)
		}
		if more, changed := s.Absorb(back); changed || !more.equal(s) {
			t.Fatalf("%+v came back as %+v", s, back)
		}
	})
}

// Whoever knows an epoch and the state that went with it can tell from the
// epoch alone that a merge has added something to it.
func TestAbsorbMovesTheEpoch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := Merge(states().Draw(t, "a"), State{}), Merge(states().Draw(t, "b"), State{})
		next, changed := a.Absorb(b)
		set := Merge(a, b)
		if next.size() != set.size() {
			t.Fatal("not the union")
		}
		for _, s := range []State{a, b} {
			if changed && next.size() > s.size() && next.Epoch <= s.Epoch {
				t.Fatalf("epoch %d holds more than %+v", next.Epoch, s)
			}
			if next.Epoch < s.Epoch {
				t.Fatal("the epoch fell")
			}
		}
		if news := set.size() > a.size() || b.Epoch > a.Epoch; changed != news || changed == next.equal(a) {
			t.Fatalf("changed is %v for %+v and %+v", changed, a, next)
		}
		if again, changed := next.Absorb(b); changed || !again.equal(next) {
			t.Fatal("absorbing twice changes something")
		}
	})
}

func TestLiveAndExpired(t *testing.T) {
	s := State{
		Entries: []Entry{
			{ID: "for good", Epoch: 1},
			{ID: "an hour", Epoch: 2, Expires: testTime.Add(time.Hour)},
			{ID: "lifted", Epoch: 3, Expires: testTime},
			{ID: "a minute", Epoch: 4, Expires: testTime.Add(time.Minute)},
		},
		Resumes: []Resume{{ID: "r", Entries: []string{"lifted", "not yet known"}, Epoch: 5}},
	}
	ids := func(entries []Entry) string {
		var list []string
		for _, e := range entries {
			list = append(list, e.ID)
		}
		return fmt.Sprint(list)
	}
	if got := ids(s.Live()); got != "[for good an hour a minute]" {
		t.Errorf("live: %s", got)
	}
	for after, want := range map[time.Duration]string{
		0: "[]", time.Minute - 1: "[]", time.Minute: "[a minute]", time.Hour: "[an hour a minute]",
	} {
		if got := ids(s.Expired(testTime.Add(after))); got != want {
			t.Errorf("expired after %v: %s, want %s", after, got, want)
		}
	}
	s.Entries = append(s.Entries, Entry{ID: "not yet known", Epoch: 1})
	if got := ids(s.Live()); got != "[for good an hour a minute]" {
		t.Errorf("an entry whose resume came first is live: %s", got)
	}
	if len(s.Entries) != 5 {
		t.Error("history lost an entry")
	}
}

func TestScopeValidate(t *testing.T) {
	for s, ok := range map[Scope]bool{
		{}:                                          false,
		{Kind: All}:                                 true,
		{Kind: All, Issuer: "i"}:                    false,
		{Kind: All, Value: "v"}:                     false,
		{Kind: Issuer}:                              false,
		{Kind: Issuer, Issuer: "i"}:                 true,
		{Kind: Issuer, Issuer: "i", Value: "v"}:     false,
		{Kind: Device, Issuer: "i"}:                 false,
		{Kind: Device, Value: "v"}:                  false,
		{Kind: Device, Issuer: "i", Value: "v"}:     true,
		{Kind: Subject, Issuer: "i", Value: "v"}:    true,
		{Kind: Audience, Issuer: "i", Value: "v"}:   true,
		{Kind: Credential, Issuer: "i", Value: "v"}: true,
		{Kind: "planet", Issuer: "i", Value: "v"}:   false,
	} {
		if err := s.Validate(); (err == nil) != ok {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestIndex(t *testing.T) {
	full := Target{Issuer: "i", Audience: "a", Subject: "s", Device: "d", Credential: "c"}
	kill := func(scopes ...Scope) State {
		var s State
		for i, scope := range scopes {
			s.Entries = append(s.Entries, Entry{ID: fmt.Sprint("e", i), Scope: scope, Epoch: uint64(i + 1)})
		}
		return s
	}
	for _, c := range []struct {
		name   string
		state  State
		target Target
		want   string
	}{
		{"nothing", State{}, full, ""},
		{"all", kill(Scope{Kind: All}), Target{}, "e0"},
		{"issuer", kill(Scope{Kind: Issuer, Issuer: "i"}), full, "e0"},
		{"another issuer", kill(Scope{Kind: Issuer, Issuer: "j"}), full, ""},
		{"issuer not asked", kill(Scope{Kind: Issuer, Issuer: "i"}), Target{}, ""},
		{"audience", kill(Scope{Audience, "i", "a"}), full, "e0"},
		{"subject", kill(Scope{Subject, "i", "s"}), full, "e0"},
		{"device", kill(Scope{Device, "i", "d"}), full, "e0"},
		{"credential", kill(Scope{Credential, "i", "c"}), full, "e0"},
		{"another's device", kill(Scope{Device, "j", "d"}), full, ""},
		{"not asked", kill(Scope{Device, "i", "d"}), Target{Issuer: "i", Subject: "d", Audience: "d", Credential: "d"}, ""},
		{"widest first", kill(Scope{Audience, "i", "a"}, Scope{Device, "i", "d"}, Scope{Kind: Issuer, Issuer: "i"}), full, "e2"},
		{"audience last", kill(Scope{Audience, "i", "a"}, Scope{Device, "i", "d"}), full, "e1"},
		{"oldest of a scope", kill(Scope{Device, "i", "d"}, Scope{Device, "i", "d"}), full, "e0"},
		{"unknown kind stops all", kill(Scope{"planet", "i", "d"}), Target{}, "e0"},
		{"lifted", Merge(kill(Scope{Kind: All}), State{Resumes: []Resume{{ID: "r", Entries: []string{"e0"}}}}), full, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if k := newIndex(c.state).killed(c.target); k != nil {
				got = k.Entry
			}
			if got != c.want {
				t.Fatalf("killed by %q, want %q", got, c.want)
			}
		})
	}
}
