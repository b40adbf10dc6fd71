package killswitch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// replica is a guard under test. Its wall clock can be set.
type replica struct {
	*Guard
	wall atomic.Int64 // ns that its wall clock is ahead
	log  *bytes.Buffer
}

func newReplica(m Store, d *documents, name string) *replica {
	r := &replica{log: new(bytes.Buffer)}
	start := time.Now()
	r.Guard = NewGuard(GuardConfig{
		Store: m, HighWater: d.highWater(), Replica: name,
		Now:       func() time.Time { return time.Now().Round(0).Add(time.Duration(r.wall.Load())) },
		Monotonic: func() time.Duration { return time.Since(start) },
		Log:       slog.New(slog.NewTextHandler(r.log, nil)),
	})
	return r
}

// run runs the guard until the test ends.
func (r *replica) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
}

func wantCheck(t *testing.T, g *Guard, what string, want error) {
	t.Helper()
	_, err := g.Check(Target{})
	var killed *KilledError
	switch {
	case want == nil && err == nil, want == errKilled && errors.As(err, &killed), want != nil && errors.Is(err, want):
	default:
		t.Fatalf("%s: check gave %v, want %v", what, err, want)
	}
}

var errKilled = errors.New("killed")

func TestPermitLifetime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMemory()
		r := newReplica(m, new(documents), "r")
		wantCheck(t, r.Guard, "before the first permit", ErrNoPermit)
		if r.Ready() == nil {
			t.Fatal("ready without a permit")
		}
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantCheck(t, r.Guard, "at once", nil)
		if err := r.Ready(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3*time.Second - 1)
		wantCheck(t, r.Guard, "just before 3 s", nil)
		time.Sleep(time.Nanosecond)
		wantCheck(t, r.Guard, "after 3 s", ErrNoPermit)
		if err := r.Deliver(Target{}, 0, func() error { t.Error("delivered"); return nil }); !errors.Is(err, ErrNoPermit) {
			t.Fatalf("deliver gave %v", err)
		}

		// The permit counts from before the store was asked.
		m.delay = func(context.Context, string) error { time.Sleep(400 * time.Millisecond); return nil }
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2200*time.Millisecond - 1)
		wantCheck(t, r.Guard, "just before 3 s from asking", nil)
		time.Sleep(time.Nanosecond)
		wantCheck(t, r.Guard, "3 s from asking", ErrNoPermit)
	})
}

func TestPermitIsRenewed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMemory()
		var away atomic.Bool
		m.delay = func(ctx context.Context, _ string) error {
			if away.Load() {
				return over(ctx)
			}
			return nil
		}
		r := newReplica(m, new(documents), "r")
		r.run(t)
		for range 100 {
			wantCheck(t, r.Guard, "while the store answers", nil)
			time.Sleep(300 * time.Millisecond)
		}
		away.Store(true)
		time.Sleep(4 * time.Second)
		wantCheck(t, r.Guard, "4 s without the store", ErrNoPermit)
		if err := r.Ready(); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("ready says %v", err)
		}
		away.Store(false)
		time.Sleep(2 * time.Second)
		wantCheck(t, r.Guard, "after the store came back", nil)
		if p := r.Permit(); !p.Valid || p.Err != nil || p.Age > time.Second {
			t.Fatalf("permit is %+v", p)
		}
	})
}

// A guard that is not scheduled loses its permit, whatever it believes.
func TestPausedGuard(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMemory()
		r := newReplica(m, new(documents), "r")
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := NewSwitch(SwitchConfig{Store: m, HighWater: new(documents).highWater()})
		start := time.Now()
		res := mustKill(t, s, Scope{Kind: All})
		wantCheck(t, r.Guard, "the guard does not know yet", nil)
		b, err := s.Wait(t.Context(), res.Entry.Epoch, nil)
		if err != nil || !b.Effective || len(b.Silent) != 1 || len(b.Confirmed) != 0 {
			t.Fatalf("barrier %+v, %v", b, err)
		}
		if took := time.Since(start); took != 3150*time.Millisecond {
			t.Fatalf("the barrier took %v, want 3.15 s", took)
		}
		wantCheck(t, r.Guard, "effective", ErrNoPermit)
	})
}

func TestClockJump(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newReplica(newMemory(), new(documents), "r")
		for _, jump := range []time.Duration{1001 * time.Millisecond, -1001 * time.Millisecond} {
			if err := r.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := r.wall.Load()
			r.wall.Add(int64(jump) / 2)
			wantCheck(t, r.Guard, "half a jump", nil)
			r.wall.Store(before + int64(jump))
			wantCheck(t, r.Guard, "a jump", ErrNoPermit)
			if err := r.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantCheck(t, r.Guard, "a permit from after it", nil)
		}
		// A machine that slept: the wall clock went on, the monotonic one did not.
		r.wall.Add(int64(2 * time.Hour))
		wantCheck(t, r.Guard, "after sleep", ErrNoPermit)
	})
}

func TestClockOffset(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			skew   time.Duration
			ready  bool
			permit bool
		}{
			{4900 * time.Millisecond, true, true},
			{-4900 * time.Millisecond, true, true},
			{5100 * time.Millisecond, false, true},
			{-5100 * time.Millisecond, false, true},
			{19900 * time.Millisecond, false, true},
			{20100 * time.Millisecond, false, false},
			{-20100 * time.Millisecond, false, false},
			{0, true, true},
		} {
			m := newMemory()
			r := newReplica(m, new(documents), "r")
			if err := r.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			m.skew = c.skew
			err := r.Refresh(t.Context())
			if (err == nil) != c.permit || (r.Ready() == nil) != c.ready {
				t.Errorf("%v off: refresh %v, ready %v", c.skew, err, r.Ready())
			}
			if _, err := r.Check(Target{}); (err == nil) != c.permit {
				t.Errorf("%v off: check %v", c.skew, err)
			}
			m.skew = 0
			if err := r.Refresh(t.Context()); err != nil || r.Ready() != nil {
				t.Errorf("after %v: refresh %v, ready %v", c.skew, err, r.Ready())
			}
			wantCheck(t, r.Guard, "clocks agree again", nil)
		}
	})
}

// An answer that took long is not a clock that is off.
func TestClockOffsetOfSlowAnswer(t *testing.T) {
	for _, c := range []struct{ asked, answered, store, want time.Duration }{
		{0, 10, 5, 0}, {0, 10, 0, 0}, {0, 10, 10, 0}, {0, 10, 12, -2}, {5, 10, 1, 4},
	} {
		got := clockOffset(reading{wall: int64(c.asked)}, reading{wall: int64(c.answered)}, time.Unix(0, int64(c.store)))
		if got != c.want {
			t.Errorf("asked %d, answered %d, store %d: %d, want %d", c.asked, c.answered, c.store, got, c.want)
		}
	}
}

func TestStoreBelowCustody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		lost := State{Epoch: 9, Entries: []Entry{{ID: "lost", Scope: Scope{Kind: All}, Epoch: 8}}}
		if err := d.highWater().Save(t.Context(), lost); err != nil {
			t.Fatal(err)
		}
		d.err = errors.New("sealed")
		r := newReplica(m, d, "r")
		regressions := 0
		r.cfg.OnRegression = func() { regressions++ }
		if err := r.Refresh(t.Context()); !errors.Is(err, d.err) {
			t.Fatalf("without custody a first permit: %v", err)
		}
		wantCheck(t, r.Guard, "custody unknown", ErrNoPermit)
		d.err = nil
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantCheck(t, r.Guard, "custody merged", errKilled)
		if len(m.state.Live()) != 1 || m.state.Epoch < 9 {
			t.Fatalf("the store holds %+v", m.state)
		}
		if n := strings.Count(r.log.String(), "level=ERROR"); n != 1 || regressions != 1 {
			t.Fatalf("%d alarms and %d regressions, want 1: %s", n, regressions, r.log)
		}
		if live := r.Live(); live[All] != 1 || len(live) != 1 {
			t.Errorf("it enforces %v", live)
		}
		// A store at custody's epoch raises no alarm.
		calm := newReplica(m, d, "calm")
		if err := calm.Refresh(t.Context()); err != nil || strings.Contains(calm.log.String(), "ERROR") {
			t.Fatalf("%v, %s", err, calm.log)
		}
	})
}

// A store that comes back from an older copy is merged into, not believed, even
// when it has since moved past the epoch that replicas know.
func TestStoreRolledBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, moved := range []uint64{0, 1, 5} {
			m, d := newMemory(), new(documents)
			s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
			mustKill(t, s, Scope{Device, "i", "d"})
			old := Merge(m.state, State{})
			mustKill(t, s, Scope{Kind: All})
			r := newReplica(m, d, "r")
			if err := r.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			m.state = old
			m.state.Epoch += moved
			if moved == 1 {
				m.state.Epoch += 5 // above what the replica knows
			}
			if err := r.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantCheck(t, r.Guard, "after the roll back", errKilled)
			if len(m.state.Live()) != 2 || !strings.Contains(r.log.String(), "level=ERROR") {
				t.Fatalf("the store holds %+v; log %s", m.state, r.log)
			}
			if r.known.Epoch != m.state.Epoch {
				t.Fatalf("the replica enforces epoch %d, the store is at %d", r.known.Epoch, m.state.Epoch)
			}
		}
	})
}

// A store that is refused before a permit is a regression too, each of them one, and what
// is known stays known: by a replica that runs, and by one that starts on it.
func TestRefusedStoreIsARegression(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
		mustKill(t, s, Scope{Device, "i", "d"})
		old := Merge(m.state, State{})
		mustKill(t, s, Scope{Kind: All})
		custody := &refusal{HighWater: d.highWater()}
		regressions := map[string]int{}
		join := func(name string) *replica {
			r := newReplica(m, d, name)
			r.cfg.HighWater = custody
			r.cfg.OnRegression = func() { regressions[name]++ }
			return r
		}
		running, late := join("running"), join("late")
		if err := running.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		back := fmt.Errorf("%w, as custody says", ErrWentBack)
		for n, c := range []struct {
			state   State
			refused error
		}{{old, back}, {State{Epoch: 70}, back}, {State{}, back}, {old, errors.New("custody is sealed")}} {
			m.state, m.lineage, custody.err = c.state, fmt.Sprint("went back ", n), c.refused
			epoch := running.Permit().Epoch
			refused := func(epoch uint64) {
				t.Helper()
				for name, r := range map[string]*replica{"running": running, "late": late} {
					if err := r.Refresh(t.Context()); !errors.Is(err, c.refused) {
						t.Fatalf("%s: %v", name, err)
					}
					wantCheck(t, r.Guard, name, ErrNoPermit)
					if p := r.Permit(); !p.Lacking || p.Epoch != epoch || fmt.Sprint(r.Live()) != "map[all:1 device:1]" || regressions[name] != n+1 {
						t.Fatalf("store %d, %s: it knows epoch %d, not %d, and %v, after %d regressions", n, name, p.Epoch, epoch, r.Live(), regressions[name])
					}
				}
			}
			refused(epoch)
			refused(epoch)
			if errors.Is(c.refused, ErrWentBack) { // an act in custody meanwhile
				epoch++
				if err := custody.Save(t.Context(), State{Epoch: epoch}); err != nil {
					t.Fatal(err)
				}
				refused(epoch)
			}
			custody.err = nil // somebody accepted the store
			for name, r := range map[string]*replica{"running": running, "late": late} {
				if err := r.Refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
				wantCheck(t, r.Guard, name, errKilled)
				if live := r.Live(); fmt.Sprint(live) != "map[all:1 device:1]" || regressions[name] != n+1 {
					t.Fatalf("store %d was accepted, %s: it knows %v, after %d regressions", n, name, live, regressions[name])
				}
			}
			for _, r := range []*replica{running, late} { // both at the merged epoch
				if err := r.Refresh(t.Context()); err != nil || r.Permit().Epoch != m.state.Epoch || r.Permit().Lacking {
					t.Fatalf("%v, %+v, the store is at %d", err, r.Permit(), m.state.Epoch)
				}
			}
		}
	})
}

// refusal is a custody that knows something against the store.
type refusal struct {
	HighWater
	err error
}

func (r *refusal) Load(ctx context.Context) (State, error) {
	s, err := r.HighWater.Load(ctx)
	return s, errors.Join(err, r.err)
}

func TestStateFromACopyIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMemory()
		m.state.Epoch = 3
		stale := staleReads{m, State{Epoch: 2}}
		r := newReplica(stale, new(documents), "r")
		if err := r.Refresh(t.Context()); err == nil {
			t.Fatal("a state older than the grant was enforced")
		}
		wantCheck(t, r.Guard, "stale state", ErrNoPermit)
	})
}

type staleReads struct {
	*memory
	state State
}

func (s staleReads) State(context.Context) (State, error) { return s.state, nil }

func TestKillReachesReplicas(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			m, d := newMemory(), new(documents)
			m.quiet = quiet
			s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
			replicas := []*replica{newReplica(m, d, "a"), newReplica(m, d, "b"), newReplica(m, d, "c")}
			for _, r := range replicas {
				r.run(t)
			}
			time.Sleep(300 * time.Millisecond)
			start := time.Now()
			res := mustKill(t, s, Scope{Kind: All})
			if len(res.Replicas) != 3 {
				t.Fatalf("registered %v", res.Replicas)
			}
			var reports []Barrier
			b, err := s.Wait(t.Context(), res.Entry.Epoch, func(b Barrier) { reports = append(reports, b) })
			if err != nil || !b.Effective || len(b.Confirmed) != 3 || len(b.Silent) != 0 {
				t.Fatalf("barrier %+v, %v", b, err)
			}
			took := time.Since(start)
			if limit := 50 * time.Millisecond; !quiet && took > limit || took > time.Second+limit {
				t.Fatalf("the barrier took %v", took)
			}
			if b.At.Before(b.Written) || b.At.After(time.Now()) || !b.Written.Equal(start) {
				t.Fatalf("written %v, effective %v, now %v", b.Written, b.At, time.Now())
			}
			if last := reports[len(reports)-1]; !last.Effective || !last.same(b) {
				t.Fatalf("the last report was %+v", last)
			}
			synctest.Wait()
			for _, r := range replicas {
				wantCheck(t, r.Guard, "effective", errKilled)
				if p := r.Permit(); p.Epoch != 1 || p.Reported != 1 || !p.Valid {
					t.Fatalf("permit %+v", p)
				}
			}
			// Resumable by anybody, who has not seen the kill.
			start = time.Now()
			b, err = NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()}).Wait(t.Context(), 1, nil)
			if err != nil || !b.Effective || len(b.Confirmed) != 3 || time.Since(start) != 0 {
				t.Fatalf("resumed: %+v, %v after %v", b, err, time.Since(start))
			}
			r, err := s.Resume(t.Context(), ResumeRequest{Scope{Kind: All}, []string{res.Entry.ID}, "over", "ann"})
			if err != nil {
				t.Fatal(err)
			}
			if b, err := s.Wait(t.Context(), r.Resume.Epoch, nil); err != nil || len(b.Confirmed) != 3 {
				t.Fatalf("resume: %+v, %v", b, err)
			}
			for _, r := range replicas {
				wantCheck(t, r.Guard, "resumed", nil)
			}
			if _, err := s.Wait(t.Context(), 99, nil); !errors.Is(err, ErrUnknownEpoch) {
				t.Fatalf("an epoch that never was: %v", err)
			}
			// Long after, the moment is still known.
			time.Sleep(time.Hour)
			b, err = NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()}).Wait(t.Context(), 1, nil)
			if err != nil || !b.Effective || b.At.Sub(b.Written) > 3150*time.Millisecond {
				t.Fatalf("long after: %+v, %v", b, err)
			}
		})
	}
}

// A delivery that passed under an older state holds up the report, and nothing
// else.
func TestDeliveryHoldsUpTheReport(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		r := newReplica(m, d, "r")
		r.run(t)
		inside, release := make(chan struct{}), make(chan struct{})
		var delivered atomic.Bool
		go func() {
			err := r.Deliver(Target{Issuer: "i", Device: "d"}, 0, func() error {
				close(inside)
				<-release
				delivered.Store(true)
				return nil
			})
			if err != nil {
				t.Errorf("deliver: %v", err)
			}
		}()
		<-inside
		s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
		first := mustKill(t, s, Scope{Device, "i", "d"})
		synctest.Wait()
		second := mustKill(t, s, Scope{Device, "i", "another"})
		time.Sleep(2 * time.Second)
		if got := m.reported("r"); got != 0 {
			t.Fatalf("epoch %d was reported over a delivery from before it", got)
		}
		refused := func() error { t.Error("delivered"); return nil }
		var killed *KilledError
		if err := r.Deliver(Target{Issuer: "i", Device: "d"}, 0, refused); !errors.As(err, &killed) {
			t.Fatalf("a delivery after the kill: %v", err)
		}
		wrote := false
		if err := r.Deliver(Target{Issuer: "i", Device: "third"}, 2, func() error { wrote = true; return nil }); err != nil || !wrote {
			t.Fatalf("a delivery out of scope: %v", err)
		}
		if err := r.Deliver(Target{}, 3, refused); !errors.Is(err, ErrNoPermit) {
			t.Fatalf("a delivery of an epoch that is not known here: %v", err)
		}
		own := errors.New("broken pipe")
		if err := r.Deliver(Target{}, 2, func() error { return own }); err != own {
			t.Fatalf("the transport's error came back as %v", err)
		}
		wantCheck(t, r.Guard, "permits go on", nil)
		// One that passed under the first kill holds up the second only.
		between, third := make(chan struct{}), Target{Issuer: "i", Device: "third"}
		go r.Deliver(third, 2, func() error { <-between; return nil })
		synctest.Wait()
		last := mustKill(t, s, Scope{Device, "i", "third"})
		synctest.Wait()
		close(release)
		synctest.Wait()
		if got := m.reported("r"); got != second.Entry.Epoch {
			t.Fatalf("epoch %d is reported, want %d", got, second.Entry.Epoch)
		}
		second = last
		close(between)
		synctest.Wait()
		if got := m.reported("r"); got != second.Entry.Epoch || !delivered.Load() {
			t.Fatalf("after it was done epoch %d is reported", got)
		}
		b, err := s.Wait(t.Context(), first.Entry.Epoch, nil)
		if err != nil || len(b.Confirmed) != 1 {
			t.Fatalf("barrier %+v, %v", b, err)
		}
	})
}

func TestRefreshIsShared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMemory()
		var beats atomic.Int32
		m.delay = func(_ context.Context, call string) error {
			if call == "beat" {
				beats.Add(1)
				time.Sleep(50 * time.Millisecond)
			}
			return nil
		}
		r := newReplica(m, new(documents), "r")
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		beats.Store(0)
		time.Sleep(time.Millisecond)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				if err := r.Refresh(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := beats.Load(); n != 4 { // two, each before and after
			t.Fatalf("a hundred refreshes made %d steps, want those of two beats", n)
		}
		// One who leaves does not decide for the others.
		ctx := leaveAfter(t.Context(), 10*time.Millisecond)
		wg.Go(func() {
			if err := r.Refresh(ctx); !errors.Is(err, context.Canceled) && err != nil {
				t.Errorf("who left got %v", err)
			}
		})
		wg.Go(func() {
			time.Sleep(time.Millisecond)
			if err := r.Refresh(t.Context()); err != nil {
				t.Errorf("who stayed got %v", err)
			}
		})
		wg.Wait()
	})
}

func TestExpiry(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		m.skew = 2 * time.Second // the store's clock decides
		replicas := []*replica{newReplica(m, d, "a"), newReplica(m, d, "b"), newReplica(m, d, "c")}
		for _, r := range replicas {
			r.run(t)
		}
		s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
		expires := m.now().Add(10 * time.Second)
		for _, scope := range []Scope{{Kind: All}, {Kind: Issuer, Issuer: "i"}} {
			if _, err := s.Kill(t.Context(), Entry{Scope: scope, Reason: "drill", Actor: "ann", Expires: expires}); err != nil {
				t.Fatal(err)
			}
		}
		lasting := mustKill(t, s, Scope{Device, "i", "d"})
		for m.now().Before(expires) {
			synctest.Wait()
			for _, r := range replicas {
				wantCheck(t, r.Guard, "before the expiry", errKilled)
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		for _, r := range replicas {
			wantCheck(t, r.Guard, "after the expiry", nil)
			if _, err := r.Check(Target{Issuer: "i", Device: "d"}); err == nil {
				t.Fatal("an entry without expiry ceased")
			}
			if strings.Contains(r.log.String(), "level=WARN") {
				t.Fatalf("lifting was not quiet: %s", r.log)
			}
		}
		state := m.copied()
		if len(state.Entries) != 3 || len(state.Resumes) != 2 {
			t.Fatalf("history is %+v", state)
		}
		for i, r := range state.Resumes {
			if r.Actor != "signer" || r.Reason != "expired" || len(r.Entries) != 1 {
				t.Fatalf("resume %+v", r)
			}
			if a := m.audit[3+i]; a.Action != "resume" || a.Actor != "signer" || a.Detail["entries"] != r.Entries[0] {
				t.Fatalf("audited %+v", a)
			}
		}
		if live := d.high(t).Live(); len(live) != 1 || live[0].ID != lasting.Entry.ID {
			t.Fatalf("custody holds %+v", live)
		}
	})
}

func TestGrantIsToldFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMemory()
		var g *Guard
		told := 0
		g = NewGuard(GuardConfig{
			Store: m, HighWater: new(documents).highWater(), Replica: "r", Version: "v9",
			Revisions: func() map[string]uint64 { return map[string]uint64{"i": 7} },
			Ready:     func() bool { return false },
			OnGrant: func(grant Grant) {
				told++
				wantCheck(t, g, "before the grant was told", ErrNoPermit)
				if grant.Time.IsZero() {
					t.Error("an empty grant")
				}
			},
		})
		if err := g.Refresh(t.Context()); err != nil || told != 1 {
			t.Fatalf("%v, told %d times", err, told)
		}
		if b := m.replicas["r"].Beat; b.Version != "v9" || b.Ready || b.Revisions["i"] != 7 || b.Time.IsZero() {
			t.Fatalf("the replica said %+v", b)
		}
	})
}

func TestView(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
		mustKill(t, s, Scope{Audience, "i", "a"})
		r := newReplica(m, d, "r")
		if _, err := r.View(); !errors.Is(err, ErrNoPermit) {
			t.Fatalf("a view without a permit: %v", err)
		}
		if err := (View{}).Killed(Target{}); !errors.Is(err, ErrNoPermit) {
			t.Fatalf("the zero view says %v", err)
		}
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		v, err := r.View()
		if err != nil || v.Epoch() != 1 {
			t.Fatalf("view of epoch %d, %v", v.Epoch(), err)
		}
		var killed *KilledError
		if err := v.Killed(Target{Issuer: "i", Audience: "a"}); !errors.As(err, &killed) {
			t.Fatalf("the killed audience: %v", err)
		}
		if err := v.Killed(Target{Issuer: "i", Subject: "s", Device: "d"}); err != nil {
			t.Fatalf("the caller: %v", err)
		}
	})
}

func TestCheckAllocatesNothing(t *testing.T) {
	m, d := newMemory(), new(documents)
	s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
	mustKill(t, s, Scope{Device, "i", "d"})
	g := NewGuard(GuardConfig{Store: m, HighWater: d.highWater(), Replica: "r", Params: Params{Permit: time.Hour}})
	if err := g.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	target := Target{Issuer: "i", Audience: "a", Subject: "s", Device: "another", Credential: "c"}
	write := func() error { return nil }
	if n := testing.AllocsPerRun(1000, func() {
		epoch, err := g.Check(target)
		if err != nil || g.Deliver(target, epoch, write) != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("check and deliver allocate %v times", n)
	}
}

func BenchmarkCheckAndDeliver(b *testing.B) {
	m, d := newMemory(), new(documents)
	g := NewGuard(GuardConfig{Store: m, HighWater: d.highWater(), Replica: "r", Params: Params{Permit: time.Hour}})
	if err := g.Refresh(b.Context()); err != nil {
		b.Fatal(err)
	}
	target := Target{Issuer: "i", Audience: "a", Subject: "s", Device: "d"}
	write := func() error { return nil }
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			epoch, err := g.Check(target)
			if err != nil || g.Deliver(target, epoch, write) != nil {
				b.Fatal(err)
			}
		}
	})
}
