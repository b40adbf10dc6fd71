package killswitch

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// A store whose epoch is far beyond what is known is not believed, custody does not
// learn of it, and throwing the switch leads out of it.
func TestDamagedEpoch(t *testing.T) {
	for _, damaged := range []uint64{MaxEpoch + 1, MaxEpoch + 1<<30, EpochCeiling - 1, EpochCeiling, epochLimit - 1, 1 << 52, math.MaxUint64} {
		bubble.Test(t, func(t *testing.T) {
			s, m, d := newTestSwitch()
			mustKill(t, s, Scope{Device, "i", "d"})
			r := newReplica(m, d, "r")
			r.run(t)
			wantCheck(t, r.Guard, "before", nil)
			m.mu.Lock()
			m.state.Epoch = damaged
			m.change()
			m.mu.Unlock()
			time.Sleep(10 * time.Second)
			wantCheck(t, r.Guard, "on the damaged store", ErrNoPermit)
			if err := r.Ready(); !errors.Is(err, ErrDamaged) {
				t.Fatalf("ready says %v", err)
			}
			if n := strings.Count(r.log.String(), "cannot have come to"); n != 1 {
				t.Fatalf("%d alarms, want 1: %s", n, r.log)
			}
			if high := d.high(t); high.Epoch != 1 {
				t.Fatalf("custody has epoch %d", high.Epoch)
			}
			res := mustKill(t, s, Scope{Kind: All})
			if !res.Durable {
				t.Fatalf("not durable: %v", res.NotDurable)
			}
			if b, err := s.Wait(t.Context(), res.Entry.Epoch, nil); err != nil || !b.Effective {
				t.Fatalf("barrier %+v, %v", b, err)
			}
			time.Sleep(2 * time.Second)
			wantCheck(t, r.Guard, "after the kill", errKilled)
			if live := d.high(t).Live(); len(live) != 2 {
				t.Fatalf("custody holds %+v", live)
			}
		})
	}
}

// The highest epoch that a store is believed with leaves room for the switch.
func TestHighestEpoch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, m, d := newTestSwitch()
		m.state.Epoch = MaxEpoch
		r := newReplica(m, d, "r")
		r.run(t)
		time.Sleep(2 * time.Second)
		for range 5 {
			res := mustKill(t, s, Scope{Kind: All})
			if b, err := s.Wait(t.Context(), res.Entry.Epoch, nil); err != nil || !b.Effective || len(b.Confirmed) != 1 || !res.Durable {
				t.Fatalf("barrier %+v, %v, durable %v", b, err, res.Durable)
			}
			wantCheck(t, r.Guard, "effective", errKilled)
		}
	})
}

func TestNextEpoch(t *testing.T) {
	for _, c := range []struct{ current, floor, want uint64 }{
		{0, 0, 1}, {4, 0, 5}, {4, 9, 9}, {9, 4, 10}, {MaxEpoch, 5, MaxEpoch + 1}, {EpochCeiling, 5, 5}, {math.MaxUint64, 0, 1},
	} {
		if got := NextEpoch(c.current, c.floor); got != c.want {
			t.Errorf("after %d, at least %d: %d, want %d", c.current, c.floor, got, c.want)
		}
	}
}

func TestStateCheck(t *testing.T) {
	for _, epoch := range []uint64{MaxEpoch, MaxEpoch + 1} {
		for _, s := range []State{{Epoch: epoch}, {Entries: []Entry{{Epoch: epoch}}}, {Resumes: []Resume{{Epoch: epoch}}}} {
			if err := s.Check(); (err == nil) != (epoch == MaxEpoch) || err != nil && !errors.Is(err, ErrDamaged) {
				t.Errorf("%+v: %v", s, err)
			}
		}
	}
}

// A kill that the store does not have reaches a replica through custody.
func TestCustodyIsListenedTo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		r := newReplica(m, d, "r")
		r.run(t)
		if err := d.highWater().Save(t.Context(), State{Epoch: 7, Entries: []Entry{{ID: "elsewhere", Scope: Scope{Kind: All}, Epoch: 7}}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(29 * time.Second)
		wantCheck(t, r.Guard, "before custody is asked again", nil)
		time.Sleep(2 * time.Second)
		wantCheck(t, r.Guard, "after it was asked", errKilled)
		if len(m.copied().Live()) != 1 {
			t.Fatal("the store was not told")
		}
		d.fail(errors.New("sealed"))
		time.Sleep(5 * time.Minute)
		wantCheck(t, r.Guard, "while custody is away", errKilled)
		if err := r.Ready(); err != nil {
			t.Fatalf("custody is away, ready says %v", err)
		}
	})
}

// A replica that has ended is waited for by nobody; not before its last delivery has ended.
func TestLeave(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, m, d := newTestSwitch()
		stays, leaves := newReplica(m, d, "stays"), newReplica(m, d, "leaves")
		stays.run(t)
		if err := leaves.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		inside, release := make(chan struct{}), make(chan struct{})
		delivered := make(chan error, 1)
		go func() {
			delivered <- leaves.Deliver(Target{}, 0, func() error { close(inside); <-release; return nil })
		}()
		<-inside
		left := make(chan error, 1)
		go func() { left <- leaves.Leave(t.Context()) }()
		synctest.Wait()
		wantCheck(t, leaves.Guard, "leaving", ErrNoPermit)

		first := mustKill(t, s, Scope{Device, "i", "d"})
		if len(first.Replicas) != 2 {
			t.Fatalf("while one delivers the registered are %v", first.Replicas)
		}
		time.AfterFunc(time.Second, func() { close(release) })
		start := time.Now()
		b, err := s.Wait(t.Context(), first.Entry.Epoch, nil)
		if err != nil || !b.Effective || time.Since(start) < time.Second || time.Since(start) > 1100*time.Millisecond {
			t.Fatalf("barrier %+v, %v after %v", b, err, time.Since(start))
		}
		if err := errors.Join(<-delivered, <-left); err != nil {
			t.Fatal(err)
		}
		wantCheck(t, leaves.Guard, "left", ErrNoPermit)
		if err := leaves.Refresh(t.Context()); !errors.Is(err, ErrNoPermit) {
			t.Fatalf("asking again after the end: %v", err)
		}

		start = time.Now()
		second := mustKill(t, s, Scope{Kind: All})
		b, err = s.Wait(t.Context(), second.Entry.Epoch, nil)
		if err != nil || !b.Effective || len(b.Confirmed) != 1 || len(b.Silent) != 0 || time.Since(start) > 100*time.Millisecond {
			t.Fatalf("barrier %+v, %v after %v", b, err, time.Since(start))
		}
	})
}
