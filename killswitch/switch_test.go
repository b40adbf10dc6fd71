package killswitch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

func newTestSwitch() (*Switch, *memory, *documents) {
	m, d := newMemory(), new(documents)
	return NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()}), m, d
}

func mustKill(t *testing.T, s *Switch, scope Scope) KillResult {
	t.Helper()
	r, err := s.Kill(t.Context(), Entry{Scope: scope, Reason: "testing", Actor: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestKill(t *testing.T) {
	s, m, d := newTestSwitch()
	m.replicas["r1"] = Replica{Beat: Beat{Replica: "r1"}, Seen: m.now()}
	scope := Scope{Device, "https://pa.example.com", "thumb"}
	expires := m.now().Add(time.Hour)
	r, err := s.Kill(t.Context(), Entry{ID: "mine", Epoch: 99, Scope: scope, Reason: "stolen", Actor: "ann", Expires: expires})
	if err != nil {
		t.Fatal(err)
	}
	if r.Entry.ID == "mine" || r.Entry.ID == "" || r.Entry.Epoch != 1 || !r.Durable || r.NotDurable != nil || fmt.Sprint(r.Replicas) != "[r1]" {
		t.Fatalf("kill gave %+v", r)
	}
	a := m.audit[0]
	if a.Action != "kill" || a.Actor != "ann" || a.Reason != "stolen" || a.Issuer != scope.Issuer ||
		a.Target != "device thumb of https://pa.example.com" || a.Detail["entry"] != r.Entry.ID || a.Detail["expires"] == "" {
		t.Fatalf("audited %+v", a)
	}
	if high := d.high(t); high.Epoch != 1 || len(high.Live()) != 1 {
		t.Fatalf("custody holds %+v", high)
	}
	live, err := s.Live(t.Context())
	if err != nil || len(live) != 1 || live[0].ID != r.Entry.ID {
		t.Fatalf("live: %+v, %v", live, err)
	}
}

func TestKillInvalid(t *testing.T) {
	s, m, _ := newTestSwitch()
	for name, e := range map[string]Entry{
		"scope":   {Reason: "r", Actor: "a"},
		"reason":  {Scope: Scope{Kind: All}, Reason: " \n", Actor: "a"},
		"actor":   {Scope: Scope{Kind: All}, Reason: "r"},
		"expires": {Scope: Scope{Kind: All}, Reason: "r", Actor: "a", Expires: m.now()},
	} {
		_, err := s.Kill(t.Context(), e)
		var invalid *InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%s: got %v, want an InvalidError", name, err)
		}
	}
	if m.state.Epoch != 0 || len(m.audit) != 0 {
		t.Error("an invalid kill left something")
	}
}

// A kill stands without custody, and its epoch is above custody's.
func TestKillAndCustody(t *testing.T) {
	s, m, d := newTestSwitch()
	if err := d.highWater().Save(t.Context(), State{Epoch: 41}); err != nil {
		t.Fatal(err)
	}
	if r := mustKill(t, s, Scope{Kind: All}); r.Entry.Epoch != 42 {
		t.Fatalf("epoch %d, want 42", r.Entry.Epoch)
	}
	sealed := errors.New("sealed")
	d.err = sealed
	r := mustKill(t, s, Scope{Kind: All})
	if r.Durable || !errors.Is(r.NotDurable, sealed) || r.Entry.Epoch != 43 || len(m.state.Live()) != 2 {
		t.Fatalf("a kill without custody gave %+v", r)
	}
	resumed, err := s.Resume(t.Context(), ResumeRequest{Scope{Kind: All}, []string{m.state.Entries[0].ID, r.Entry.ID}, "over", "ann"})
	if err != nil || resumed.Durable || !errors.Is(resumed.NotDurable, sealed) {
		t.Fatalf("a resume without custody gave %+v, %v", resumed, err)
	}
	d.err = nil
	if r := mustKill(t, s, Scope{Kind: All}); !r.Durable || len(d.high(t).Live()) != 1 {
		t.Fatalf("after custody came back %+v, custody holds %+v", r, d.high(t))
	}
}

func TestKillOutlivesItsCaller(t *testing.T) {
	s, m, d := newTestSwitch()
	ctx, cancel := context.WithCancel(t.Context())
	m.delay = func(_ context.Context, call string) error {
		if call == "kill" && m.state.Epoch > 0 {
			cancel()
		}
		return nil
	}
	r, err := s.Kill(ctx, Entry{Scope: Scope{Kind: All}, Reason: "r", Actor: "a"})
	if err != nil || !r.Durable || d.high(t).Epoch != 1 {
		t.Fatalf("got %+v, %v; custody holds %+v", r, err, d.high(t))
	}
}

func TestResume(t *testing.T) {
	const iss = "https://pa.example.com"
	all, issuer, device := Scope{Kind: All}, Scope{Kind: Issuer, Issuer: iss}, Scope{Device, iss, "thumb"}
	for _, c := range []struct {
		name    string
		scope   Scope
		name_   []int // indices of: all, issuer, device, device again
		extra   []string
		unnamed []int
		notLive []string
		lifts   bool
	}{
		{name: "everything", scope: all, name_: []int{0, 1, 2, 3}, lifts: true},
		{name: "everything but one", scope: all, name_: []int{0, 1, 3}, unnamed: []int{2}},
		{name: "issuer is its own entries only", scope: issuer, name_: []int{1}, lifts: true},
		{name: "issuer and a device of it", scope: issuer, name_: []int{1, 2}, notLive: []string{"2"}},
		{name: "device", scope: device, name_: []int{2, 3, 3}, lifts: true},
		{name: "half a device", scope: device, name_: []int{3}, unnamed: []int{2}},
		{name: "nothing named", scope: device, unnamed: []int{2, 3}},
		{name: "not an entry", scope: device, name_: []int{2, 3}, extra: []string{"nope"}, notLive: []string{"nope"}},
		{name: "nothing there", scope: Scope{Subject, iss, "s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, m, d := newTestSwitch()
			var ids []string
			for _, scope := range []Scope{all, issuer, device, device} {
				ids = append(ids, mustKill(t, s, scope).Entry.ID)
			}
			req := ResumeRequest{Scope: c.scope, Reason: "over", Actor: "ann", EntryIDs: c.extra}
			for _, i := range c.name_ {
				req.EntryIDs = append(req.EntryIDs, ids[i])
			}
			r, err := s.Resume(t.Context(), req)
			if c.lifts {
				if err != nil || !r.Durable || r.Resume.Epoch != 5 {
					t.Fatalf("got %+v, %v", r, err)
				}
				for _, e := range m.state.Live() {
					if c.scope == all || e.Scope == c.scope {
						t.Fatalf("%+v is still live", e)
					}
				}
				if got, want := len(d.high(t).Live()), len(m.state.Live()); got != want {
					t.Fatalf("custody holds %d live entries, the store %d", got, want)
				}
				return
			}
			var re *ResumeError
			if !errors.As(err, &re) {
				t.Fatalf("got %v, want a ResumeError", err)
			}
			var want []string
			for _, i := range c.unnamed {
				want = append(want, ids[i])
			}
			var got []string
			for _, e := range re.Unnamed {
				got = append(got, e.ID)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("unnamed %v, want %v", got, want)
			}
			for i, n := range c.notLive {
				if n == "2" {
					c.notLive[i] = ids[2]
				}
			}
			if fmt.Sprint(re.NotLive) != fmt.Sprint(c.notLive) {
				t.Errorf("not live %v, want %v", re.NotLive, c.notLive)
			}
			if len(m.state.Live()) != 4 {
				t.Error("something was lifted")
			}
		})
	}
}

// An entry that comes in while a resume is decided is not lifted unseen.
func TestResumeSeesWhatCameMeanwhile(t *testing.T) {
	s, m, _ := newTestSwitch()
	first := mustKill(t, s, Scope{Kind: All})
	raced := false
	m.delay = func(_ context.Context, call string) error {
		if call == "resume" && !raced {
			raced = true
			m.mu.Lock()
			defer m.mu.Unlock()
			m.state.Epoch++
			m.state.Entries = append(m.state.Entries, Entry{ID: "late", Scope: Scope{Kind: All}, Epoch: m.state.Epoch})
		}
		return nil
	}
	_, err := s.Resume(t.Context(), ResumeRequest{Scope{Kind: All}, []string{first.Entry.ID}, "over", "ann"})
	var re *ResumeError
	if !errors.As(err, &re) || len(re.Unnamed) != 1 || re.Unnamed[0].ID != "late" {
		t.Fatalf("got %v, want the late entry as unnamed", err)
	}
	if _, err := s.Resume(t.Context(), ResumeRequest{Scope{Kind: All}, []string{first.Entry.ID, "late"}, "over", "ann"}); err != nil {
		t.Fatal(err)
	}
}

func TestHighWaterMergesOnConflict(t *testing.T) {
	d := new(documents)
	h := d.highWater()
	entry := func(id string, epoch uint64) State {
		return State{Epoch: epoch, Entries: []Entry{{ID: id, Scope: Scope{Kind: All}, Epoch: epoch}}}
	}
	if s, err := h.Load(t.Context()); err != nil || s.size() != 0 || s.Epoch != 0 {
		t.Fatalf("before anything was saved: %+v, %v", s, err)
	}
	d.before = func() {
		if err := h.Save(t.Context(), entry("theirs", 5)); err != nil {
			t.Error(err)
		}
	}
	if err := h.Save(t.Context(), entry("ours", 3)); err != nil {
		t.Fatal(err)
	}
	if s := d.high(t); s.Epoch != 5 || len(s.Entries) != 2 {
		t.Fatalf("custody holds %+v", s)
	}
	rev := d.held[h.Name].revision
	if err := h.Save(t.Context(), entry("ours", 3)); err != nil || d.held[h.Name].revision != rev {
		t.Fatalf("saving what is there: %v, revision %d, was %d", err, d.held[h.Name].revision, rev)
	}
}

func TestHighWaterIsBounded(t *testing.T) {
	d := new(documents)
	var s State
	for i := range uint64(1000) {
		id := fmt.Sprint(i)
		s.Entries = append(s.Entries, Entry{ID: id, Scope: Scope{Kind: All}, Epoch: 2*i + 1})
		if i != 7 {
			s.Resumes = append(s.Resumes, Resume{ID: "r" + id, Entries: []string{id}, Epoch: 2*i + 2})
		}
	}
	if err := d.highWater().Save(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	high := d.high(t)
	if live := high.Live(); len(live) != 1 || live[0].ID != "7" || len(high.Entries) != 1 {
		t.Fatalf("%d entries, live: %+v", len(high.Entries), live)
	}
	if len(high.Resumes) != KeepResumes || high.Resumes[0].Epoch < 1000 || high.Epoch != 2000 {
		t.Fatalf("%d resumes, the oldest of epoch %d, epoch %d", len(high.Resumes), high.Resumes[0].Epoch, high.Epoch)
	}
}

func FuzzHighWaterRecord(f *testing.F) {
	f.Add([]byte(`{"format":1,"minReader":1,"state":{"epoch":3,"entries":[{"id":"a","scope":{"kind":"all"},"epoch":2}],"resumes":[{"id":"r","entries":["b"],"epoch":3}]}}`))
	f.Add([]byte(`{"format":2,"minReader":2}`))
	f.Add([]byte(`{"format":9,"minReader":1,"state":{"epoch":18446744073709551615}}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeHighWater(data)
		if err != nil {
			return
		}
		if r.MinReader > highWaterFormat {
			t.Fatal("read a record that this version must not read")
		}
		if again := Merge(r.State, State{}); !again.equal(r.State) {
			t.Fatal("what was read is not normal")
		}
		d := new(documents)
		err = d.highWater().Save(t.Context(), r.State)
		if r.State.Epoch >= epochLimit && errors.Is(err, ErrDamaged) && len(d.held) == 0 {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, want := d.high(t), compact(r.State, resumesRoom); !got.equal(want) {
			t.Fatalf("%+v came back as %+v", want, got)
		}
	})
}
