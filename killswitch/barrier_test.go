package killswitch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// TestBarrierProperty drives several replicas over one store whose answers are
// late, lost and cut off, with replicas that are not scheduled for a while and
// deliveries that take their time, throws kills and waits for them. Once a kill
// is said to be effective no delivery in its scope may begin anywhere.
func TestBarrierProperty(t *testing.T) {
	bubble.Guard(t)
	confirmedAll, byTime, delivered := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(rt, "replicas")
		var faults []fault
		for i := range n {
			faults = append(faults, fault{
				latency: time.Duration(rapid.IntRange(0, 1500).Draw(rt, fmt.Sprint("latency ", i))) * time.Millisecond,
				loss:    rapid.IntRange(0, 60).Draw(rt, fmt.Sprint("loss ", i)),
				cutAt:   time.Duration(rapid.IntRange(0, 20_000).Draw(rt, fmt.Sprint("cut ", i))) * time.Millisecond,
				cutFor:  time.Duration(rapid.IntRange(0, 10_000).Draw(rt, fmt.Sprint("cut for ", i))) * time.Millisecond,
				pauseAt: time.Duration(rapid.IntRange(0, 20_000).Draw(rt, fmt.Sprint("pause ", i))) * time.Millisecond,
				write:   time.Duration(rapid.IntRange(0, 3000).Draw(rt, fmt.Sprint("write ", i))) * time.Millisecond,
			})
		}
		quiet := rapid.Bool().Draw(rt, "quiet")
		kills := rapid.IntRange(1, 3).Draw(rt, "kills")
		gap := time.Duration(rapid.IntRange(0, 4000).Draw(rt, "gap")) * time.Millisecond
		rapid.SyncTest(rt, func(rt *rapid.T) {
			c, d, w := barrierRun(rt, faults, quiet, kills, gap)
			confirmedAll, byTime, delivered = confirmedAll+c, byTime+d, delivered+w
		})
	})
	if confirmedAll == 0 || byTime == 0 || delivered == 0 {
		t.Fatalf("the runs were one-sided: %d confirmed by all, %d by time, %d deliveries", confirmedAll, byTime, delivered)
	}
}

// fault is what goes wrong for one replica.
type fault struct {
	latency       time.Duration // of each half of a call, at most
	loss          int           // percent
	cutAt, cutFor time.Duration // no answer at all
	pauseAt       time.Duration // for 6 s its loop is not scheduled
	write         time.Duration // of a delivery, at most
}

func barrierRun(rt *rapid.T, faults []fault, quiet bool, kills int, gap time.Duration) (confirmed, byTime, delivered int) {
	const scopes = 3
	m, d := newMemory(), new(documents)
	m.quiet = quiet
	start := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	var effective [scopes]atomic.Bool
	var violation atomic.Pointer[string]
	var writes atomic.Int32
	target := func(i int) Target { return Target{Issuer: "i", Device: fmt.Sprint(i)} }
	for i, f := range faults {
		r := newReplica(faulty{memory: m, fault: f, start: start, seed: uint64(i)}, d, fmt.Sprint(i))
		wg.Go(func() { r.Run(ctx) })
		for scope := range scopes {
			wg.Go(func() {
				for k := 0; ctx.Err() == nil; k++ {
					epoch, err := r.Check(target(scope))
					if err == nil {
						pause(ctx, f.write/2, uint64(k)) // the signature
						_ = r.Deliver(target(scope), epoch, func() error {
							writes.Add(1)
							if effective[scope].Load() {
								s := fmt.Sprintf("replica %s began to deliver in scope %d at %v, after the kill was effective", r.cfg.Replica, scope, time.Since(start))
								violation.Store(&s)
							}
							pause(ctx, f.write, uint64(k))
							return nil
						})
					}
					pause(ctx, 70*time.Millisecond, uint64(k+scope))
				}
			})
		}
	}

	s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
	pause(ctx, 5*time.Second, uint64(len(faults)))
	for scope := range kills {
		written := time.Now()
		res, err := s.Kill(ctx, Entry{Scope: Scope{Device, "i", fmt.Sprint(scope)}, Reason: "r", Actor: "a"})
		if err != nil {
			rt.Fatalf("kill: %v", err)
		}
		waiter := s
		if scope == 1 { // resumed elsewhere, later
			time.Sleep(gap)
			waiter = NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
		}
		b, err := waiter.Wait(ctx, res.Entry.Epoch, nil)
		if err != nil || !b.Effective {
			rt.Fatalf("wait: %+v, %v", b, err)
		}
		effective[scope].Store(true)
		if took := time.Since(written) - gap; took > 3150*time.Millisecond {
			rt.Fatalf("effective only after %v", took)
		}
		if len(b.Silent) == 0 && len(b.Confirmed) > 0 {
			confirmed++
		} else {
			byTime++
		}
		time.Sleep(gap)
	}
	time.Sleep(10 * time.Second)
	if v := violation.Load(); v != nil {
		rt.Fatal(*v)
	}
	return confirmed, byTime, int(writes.Load())
}

// pause sleeps for a part of limit that depends on n.
func pause(ctx context.Context, limit time.Duration, n uint64) {
	part := time.Duration((n*2654435761)%1000+1) * limit / 1000
	select {
	case <-time.After(part):
	case <-ctx.Done():
	}
}

// over waits until ctx has ended and returns why.
func over(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// leaveAfter returns a context that is cancelled after d.
func leaveAfter(ctx context.Context, d time.Duration) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	time.AfterFunc(d, cancel)
	return ctx
}

// faulty is the store as a replica with that fault reaches it.
type faulty struct {
	*memory
	fault fault
	start time.Time
	seed  uint64
}

var errLost = errors.New("lost")

func (f faulty) half(ctx context.Context, n uint64) error {
	since := time.Since(f.start)
	if p := f.fault.pauseAt; since >= p && since < p+time.Second {
		time.Sleep(6 * time.Second) // not even its context can end this
	}
	if c := f.fault.cutAt; since >= c && since < c+f.fault.cutFor {
		return over(ctx)
	}
	mix := (uint64(since) + f.seed*7919 + n*104729) * 2654435761 >> 7
	pause(ctx, f.fault.latency, mix)
	if int(mix%100) < f.fault.loss {
		return errLost
	}
	return ctx.Err()
}

func (f faulty) Beat(ctx context.Context, b Beat) (Grant, error) {
	if err := f.half(ctx, 1); err != nil {
		return Grant{}, err
	}
	g, err := f.memory.Beat(context.WithoutCancel(ctx), b)
	if err != nil {
		return g, err
	}
	return g, f.half(ctx, 2)
}

func (f faulty) State(ctx context.Context) (State, error) {
	if err := f.half(ctx, 3); err != nil {
		return State{}, err
	}
	s, err := f.memory.State(context.WithoutCancel(ctx))
	if err != nil {
		return s, err
	}
	return s, f.half(ctx, 4)
}

// A store whose reports cannot be read does not make a kill effective later.
func TestBarrierWithoutReports(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		s := NewSwitch(SwitchConfig{Store: m, HighWater: d.highWater()})
		m.delay = func(ctx context.Context, call string) error {
			if call == "replicas" {
				return over(ctx)
			}
			return nil
		}
		newReplica(m, d, "r").run(t)
		res := mustKill(t, s, Scope{Kind: All})
		start := time.Now()
		b, err := s.Wait(t.Context(), res.Entry.Epoch, nil)
		if err != nil || !b.Effective {
			t.Fatalf("barrier %+v, %v", b, err)
		}
		if took := time.Since(start); took < 3150*time.Millisecond || took > 3170*time.Millisecond {
			t.Fatalf("took %v", took)
		}
		ctx := leaveAfter(t.Context(), time.Second)
		res = mustKill(t, s, Scope{Kind: All})
		if b, err := s.Wait(ctx, res.Entry.Epoch, nil); !errors.Is(err, context.Canceled) || b.Effective {
			t.Fatalf("a wait that was left: %+v, %v", b, err)
		}
	})
}

// Nobody registered may mean that the store forgot: time decides.
func TestBarrierWithNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, _, _ := newTestSwitch()
		res := mustKill(t, s, Scope{Kind: All})
		start := time.Now()
		b, err := s.Wait(t.Context(), res.Entry.Epoch, nil)
		if err != nil || !b.Effective || time.Since(start) != 3150*time.Millisecond || !b.At.Equal(time.Now()) {
			t.Fatalf("barrier %+v, %v after %v", b, err, time.Since(start))
		}
	})
}

// A store clock that is set while a barrier waits changes nothing.
func TestBarrierAndStoreClock(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		bubble.Test(t, func(t *testing.T) {
			s, m, _ := newTestSwitch()
			m.replicas["dead"] = Replica{Beat: Beat{Replica: "dead"}, Seen: m.now()}
			res := mustKill(t, s, Scope{Kind: All})
			start := time.Now()
			go func() {
				time.Sleep(time.Second)
				m.mu.Lock()
				m.skew = skew
				m.mu.Unlock()
			}()
			b, err := s.Wait(t.Context(), res.Entry.Epoch, nil)
			if err != nil || time.Since(start) != 3150*time.Millisecond || len(b.Silent) != 1 {
				t.Fatalf("barrier %+v, %v after %v", b, err, time.Since(start))
			}
		})
	}
}

func TestParams(t *testing.T) {
	p := Defaults()
	if p.Bound() != 3150*time.Millisecond {
		t.Errorf("the bound is %v", p.Bound())
	}
	if s := p.Scaled(1); s != p {
		t.Errorf("scaled by 1: %+v", s)
	}
	if s := p.Scaled(2); s.Permit != 1500*time.Millisecond || s.Poll != 500*time.Millisecond || s.Registered != 5*time.Second || s.ClockStop != p.ClockStop {
		t.Errorf("scaled by 5: %+v", s)
	}
	if s := p.Scaled(600); s.Poll != 250*time.Millisecond || s.Permit != 750*time.Millisecond || s.Registered != 2500*time.Millisecond {
		t.Errorf("scaled by 600: %+v", s)
	}
	if got := (Params{}).orDefaults(); got != p {
		t.Errorf("the zero params become %+v", got)
	}
}

// silentStore does not answer its first questions for the state.
type silentStore struct {
	Store
	silent int
}

func (s *silentStore) State(ctx context.Context) (State, error) {
	if s.silent > 0 {
		s.silent--
		return State{}, errors.New("away")
	}
	return s.Store.State(ctx)
}

// A store that is away when a wait begins is asked again, and that is said.
func TestWaitBeginsWithoutTheStore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, d := newMemory(), new(documents)
		k := mustKill(t, NewSwitch(SwitchConfig{Store: store, HighWater: d.highWater()}), Scope{Kind: All})
		s := NewSwitch(SwitchConfig{Store: &silentStore{store, 3}, HighWater: d.highWater()})
		var told []Barrier
		b, err := s.Wait(t.Context(), k.Entry.Epoch, func(b Barrier) { told = append(told, b) })
		if err != nil || !b.Effective {
			t.Fatalf("%+v, %v", b, err)
		}
		if first := told[0]; first.Unsettled == nil || first.Effective || first.Epoch != k.Entry.Epoch {
			t.Errorf("first it said %+v", first)
		}
		ctx := leaveAfter(t.Context(), time.Second)
		s = NewSwitch(SwitchConfig{Store: &silentStore{store, 1 << 30}, HighWater: d.highWater()})
		if _, err := s.Wait(ctx, k.Entry.Epoch, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a store that stays away: %v", err)
		}
	})
}
