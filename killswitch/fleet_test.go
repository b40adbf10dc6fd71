package killswitch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// cluster is a store with copies. What they have not acknowledged is lost when one
// of them takes over; the old master goes on answering those who have not noticed.
type cluster struct {
	mu       sync.Mutex
	master   *node
	lineages int
	names    int  // of changes
	away     bool // the copies: nothing is acknowledged
	shard    bool // a part that authorises cannot be told of an epoch
	bare     bool // writes are not acknowledged, and nobody asks for it
	synced   contents
	changed  chan struct{}
}

// contents are what is copied.
type contents struct {
	state    State
	replicas map[string]Replica
	enforced uint64
}

func (c contents) clone() contents {
	s := Merge(c.state, State{})
	s.Change = c.state.Change
	return contents{s, maps.Clone(c.replicas), c.enforced}
}

type node struct {
	contents
	lineage string
}

func newCluster() *cluster {
	c := &cluster{changed: make(chan struct{}), synced: contents{replicas: map[string]Replica{}}}
	c.failover()
	return c
}

// failover lets a copy take over. Whoever is attached to the old master stays there.
func (c *cluster) failover() *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.master
	c.lineages++
	c.master = &node{c.synced.clone(), fmt.Sprint("lineage ", c.lineages)}
	c.away = false
	return old
}

func (c *cluster) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// client is the store as one process reaches it.
type client struct {
	c    *cluster
	at   *node // nil: the present master
	cut  bool
	slow time.Duration // each half of a call
}

var errCut = errors.New("connection refused")

// call runs f on the node that the client is attached to. For a write the error says
// whether the copies have it.
func (cl *client) call(ctx context.Context, write bool, f func(n *node) error) error {
	pause := func() error {
		select {
		case <-time.After(cl.slow):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := pause(); err != nil {
		return err
	}
	c := cl.c
	c.mu.Lock()
	n := cl.at
	if n == nil {
		n = c.master
	}
	if cl.cut {
		c.mu.Unlock()
		return errCut
	}
	before := n.state.Change
	err := f(n)
	if err == nil && write {
		switch {
		case n != c.master || c.away && !c.bare:
			err = fmt.Errorf("0 of 1 copies: %w", ErrUnacknowledged)
		case !c.away:
			c.synced = n.clone()
		}
		if n.state.Change != before && n == c.master {
			close(c.changed)
			c.changed = make(chan struct{})
		}
	}
	c.mu.Unlock()
	if waited := pause(); err == nil {
		err = waited
	}
	return err
}

func (c *cluster) rename(s *State) {
	c.names++
	s.Change = fmt.Sprint("change ", c.names)
}

func (cl *client) Beat(ctx context.Context, b Beat) (g Grant, err error) {
	err = cl.call(ctx, true, func(n *node) error {
		n.replicas[b.Replica] = Replica{Beat: b, Seen: time.Now()}
		g = Grant{Epoch: n.state.Epoch, Time: time.Now(), Lineage: n.lineage, Change: n.state.Change}
		return nil
	})
	return g, err
}

func (cl *client) State(ctx context.Context) (s State, err error) {
	err = cl.call(ctx, false, func(n *node) error { s = n.clone().state; return nil })
	return s, err
}

func (cl *client) Kill(ctx context.Context, e Entry, floor uint64, _ audit.Entry) (out Entry, list []Replica, err error) {
	err = cl.call(ctx, true, func(n *node) error {
		n.state.Epoch = NextEpoch(n.state.Epoch, floor)
		e.Epoch, e.Time = n.state.Epoch, time.Now().Round(0)
		n.state.Entries = append(n.state.Entries, e)
		cl.c.rename(&n.state)
		list = slices.Collect(maps.Values(n.replicas))
		return nil
	})
	return e, list, err
}

func (cl *client) Resume(ctx context.Context, r Resume, seen, floor uint64, _ audit.Entry) (Resume, error) {
	err := cl.call(ctx, true, func(n *node) error {
		if n.state.Epoch != seen {
			return ErrChanged
		}
		n.state.Epoch = NextEpoch(n.state.Epoch, floor)
		r.Epoch, r.Time = n.state.Epoch, time.Now().Round(0)
		n.state.Resumes = append(n.state.Resumes, r)
		cl.c.rename(&n.state)
		return nil
	})
	return r, err
}

func (cl *client) Merge(ctx context.Context, other State) (s State, err error) {
	err = cl.call(ctx, true, func(n *node) error {
		if next, changed := n.state.Absorb(other); changed {
			n.state = next
			cl.c.rename(&n.state)
		}
		s = n.clone().state
		return nil
	})
	return s, err
}

func (cl *client) Enforce(ctx context.Context, epoch uint64) error {
	return cl.call(ctx, true, func(n *node) error {
		if cl.c.shard {
			return errors.New("shard b17 does not answer")
		}
		n.enforced = max(n.enforced, epoch)
		return nil
	})
}

func (cl *client) Replicas(ctx context.Context, liveFor time.Duration) (list []Replica, err error) {
	err = cl.call(ctx, false, func(n *node) error {
		for _, r := range n.replicas {
			if time.Since(r.Seen) <= liveFor {
				list = append(list, r)
			}
		}
		return nil
	})
	return list, err
}

func (cl *client) Now(ctx context.Context) (now time.Time, err error) {
	err = cl.call(ctx, false, func(*node) error { now = time.Now(); return nil })
	return now, err
}

func (cl *client) Changed() <-chan struct{} {
	cl.c.mu.Lock()
	defer cl.c.mu.Unlock()
	return cl.c.changed
}

// authorize is what a sign does in the store.
func (cl *client) authorize(ctx context.Context, epoch uint64) error {
	return cl.call(ctx, false, func(n *node) error {
		if epoch < n.enforced {
			return errors.New("stale epoch")
		}
		n.enforced = epoch
		return nil
	})
}

func (cl *client) attach(n *node) { cl.c.set(func() { cl.at = n }) }

// wantKilled checks a guard for a scope of its own.
func wantKilled(t *testing.T, r *replica, what string, scope Scope, want bool) {
	t.Helper()
	_, err := r.Check(Target{Issuer: scope.Issuer, Device: scope.Value})
	if errors.As(err, new(*KilledError)) != want || err != nil && !want {
		t.Fatalf("%s: check gave %v", what, err)
	}
}

// A kill that a failover took from the store comes back from custody before a
// replica that never heard of it gets its next permit.
func TestLineageIsComparedWithCustody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, d := newCluster(), new(documents)
		r, s := newReplica(&client{c: c}, d, "r"), NewSwitch(SwitchConfig{Store: &client{c: c}, HighWater: d.highWater()})
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.set(func() { c.away = true })
		if res := mustKill(t, s, Scope{Device, "i", "d"}); !errors.Is(res.Unacknowledged, ErrUnacknowledged) || !res.Durable {
			t.Fatalf("a kill without copies gave %+v", res)
		}
		c.failover()
		sealed := errors.New("sealed")
		d.fail(sealed)
		time.Sleep(time.Second)
		if err := r.Refresh(t.Context()); !errors.Is(err, sealed) {
			t.Fatalf("another lineage without custody's word: %v", err)
		}
		wantCheck(t, r.Guard, "the permit that rests on other data", ErrNoPermit)
		if err := r.Ready(); !errors.Is(err, sealed) || !errors.Is(r.Permit().Err, sealed) {
			t.Fatalf("ready says %v, the permit %v", err, r.Permit().Err)
		}
		d.fail(nil)
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantKilled(t, r, "compared", Scope{Device, "i", "d"}, true)
		if len(c.master.state.Live()) != 1 {
			t.Fatalf("the store holds %+v", c.master.state)
		}
	})
}

// The same lineage does not need custody.
func TestCustodyAwayChangesNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, d := newCluster(), new(documents)
		cl := &client{c: c}
		r := newReplica(cl, d, "r")
		r.run(t)
		d.fail(errors.New("sealed"))
		s := NewSwitch(SwitchConfig{Store: cl, HighWater: d.highWater()})
		for i := range 100 {
			scope := Scope{Device, "i", fmt.Sprint(i)}
			mustKill(t, s, scope)
			time.Sleep(time.Minute)
			wantKilled(t, r, "while custody is away", scope, true)
			wantKilled(t, r, "while custody is away", Scope{Value: "another"}, false)
		}
		// What was thrown meanwhile is recorded when it is back, without a hand.
		d.fail(nil)
		time.Sleep(2 * time.Second)
		if n := len(d.high(t).Live()); n != 100 {
			t.Fatalf("custody holds %d entries", n)
		}
	})
}

// Two kills that got the same epoch, one before and one after a failover.
func TestSameEpochAnotherChange(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMemory()
		r := newReplica(m, new(documents), "r")
		m.state = State{Epoch: 1, Change: "x", Entries: []Entry{{ID: "a", Scope: Scope{Device, "i", "a"}, Epoch: 1}}}
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.state = State{Epoch: 1, Change: "y", Entries: []Entry{{ID: "b", Scope: Scope{Device, "i", "b"}, Epoch: 1}}}
		time.Sleep(time.Second)
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantKilled(t, r, "the store's", Scope{Device, "i", "b"}, true)
		wantKilled(t, r, "the lost one", Scope{Device, "i", "a"}, true)
		if len(m.state.Live()) != 2 || m.state.Epoch != 2 {
			t.Fatalf("the store holds %+v", m.state)
		}
	})
}

// Beats that reach one server and reads that reach another, of the same epoch.
func TestStateOfAnotherServerIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMemory()
		m.state = State{Epoch: 3, Change: "x"}
		for _, other := range []State{{Epoch: 3, Change: "y"}, {Epoch: 4, Change: "z"}} {
			r := newReplica(staleReads{m, other}, new(documents), "r")
			if err := r.Refresh(t.Context()); err == nil {
				t.Fatalf("a permit for change %q on the state of %q", m.state.Change, other.Change)
			}
			wantCheck(t, r.Guard, "the state of another server", ErrNoPermit)
		}
	})
}

type failingMerge struct {
	Store
	err *error
}

func (f failingMerge) Merge(ctx context.Context, s State) (State, error) {
	if *f.err != nil {
		return State{}, *f.err
	}
	return f.Store.Merge(ctx, s)
}

func TestMergeThatFailsLetsNobodySign(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		high := State{Epoch: 2, Entries: []Entry{{ID: "a", Scope: Scope{Device, "i", "a"}, Epoch: 2}}}
		if err := d.highWater().Save(t.Context(), high); err != nil {
			t.Fatal(err)
		}
		failure := fmt.Errorf("merge: %w", ErrUnacknowledged)
		r := newReplica(failingMerge{m, &failure}, d, "r")
		for range 3 {
			if err := r.Refresh(t.Context()); !errors.Is(err, failure) || !errors.Is(r.Ready(), failure) {
				t.Fatalf("a merge that failed: %v, ready says %v", err, r.Ready())
			}
			wantCheck(t, r.Guard, "not merged", ErrNoPermit)
			time.Sleep(time.Second)
		}
		if n := strings.Count(r.log.String(), "level=ERROR"); n != 1 {
			t.Fatalf("one loss gave %d alarms: %s", n, r.log)
		}
		failure = nil
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantKilled(t, r, "merged", Scope{Device, "i", "a"}, true)
	})
}

// A store that is not the one that custody knows may have become so since.
func TestUnknownStoreAsksCustodyAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, d := newMemory(), new(documents)
		var marked atomic.Bool
		marked.Store(true)
		m.delay = func(_ context.Context, call string) error {
			if call == "beat" && !marked.Load() {
				return fmt.Errorf("marker abc: %w", ErrUnknownStore)
			}
			return nil
		}
		high := &countingHighWater{HighWater: d.highWater()}
		g := NewGuard(GuardConfig{Store: m, HighWater: high, Replica: "r"})
		if err := g.Refresh(t.Context()); err != nil || high.loads != 1 {
			t.Fatalf("%v, custody was asked %d times", err, high.loads)
		}
		marked.Store(false)
		for i := range 3 {
			time.Sleep(time.Second)
			if err := g.Refresh(t.Context()); !errors.Is(err, ErrUnknownStore) || high.loads != 1+i {
				t.Fatalf("%v, custody was asked %d times", err, high.loads)
			}
		}
		time.Sleep(time.Second)
		high.err = errors.New("rolled back: its audit log lacks entry 7")
		if err := g.Refresh(t.Context()); !errors.Is(err, high.err) || !errors.Is(g.Ready(), high.err) {
			t.Fatalf("%v, ready says %v", err, g.Ready())
		}
		marked.Store(true)
		time.Sleep(time.Second)
		if err := g.Refresh(t.Context()); !errors.Is(err, high.err) {
			t.Fatalf("signs on a store that custody speaks against: %v", err)
		}
		high.err = nil
		time.Sleep(time.Second)
		if err := g.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

type countingHighWater struct {
	HighWater
	loads int
	err   error
}

func (c *countingHighWater) Load(ctx context.Context) (State, error) {
	c.loads++
	if c.err != nil {
		return State{}, c.err
	}
	return c.HighWater.Load(ctx)
}

// The first permit of a replica that starts while a barrier waits is for the new
// epoch, and the barrier does not wait for it.
func TestReplicaStartsDuringABarrier(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, d := newCluster(), new(documents)
		old := newReplica(&client{c: c}, d, "old")
		old.run(t)
		silent := newReplica(&client{c: c}, d, "silent")
		if err := silent.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := NewSwitch(SwitchConfig{Store: &client{c: c}, HighWater: d.highWater()})
		res := mustKill(t, s, Scope{Device, "i", "d"})
		var young *replica
		b, err := s.Wait(t.Context(), res.Entry.Epoch, func(b Barrier) {
			if young == nil {
				young = newReplica(&client{c: c}, d, "young")
				wantCheck(t, young.Guard, "before its first permit", ErrNoPermit)
				if err := young.Refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
				if young.Permit().Epoch != res.Entry.Epoch {
					t.Fatalf("the first permit is for epoch %d", young.Permit().Epoch)
				}
				wantKilled(t, young, "its first permit", res.Entry.Scope, true)
			}
		})
		if err != nil || fmt.Sprint(b.Confirmed) != "[old]" || fmt.Sprint(b.Silent) != "[silent]" {
			t.Fatalf("barrier %+v, %v", b, err)
		}
	})
}

// What a paused process, or a machine that slept, has in its hands when it goes on
// is refused at the last moment.
func TestPausedDelivery(t *testing.T) {
	for name, pause := range map[string]func(r *replica){
		"stopped":             func(r *replica) { time.Sleep(time.Minute) },
		"just over a permit":  func(r *replica) { time.Sleep(3 * time.Second) },
		"slept":               func(r *replica) { r.wall.Add(int64(time.Minute)) },
		"slept for a moment":  func(r *replica) { r.wall.Add(int64(1001 * time.Millisecond)) },
		"its clock went back": func(r *replica) { r.wall.Add(-int64(time.Minute)) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newReplica(newMemory(), new(documents), "r")
				if err := r.Refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
				epoch, err := r.Check(Target{Issuer: "i"})
				if err != nil {
					t.Fatal(err)
				}
				pause(r)
				err = r.Deliver(Target{Issuer: "i"}, epoch, func() error { t.Error("delivered"); return nil })
				if !errors.Is(err, ErrNoPermit) {
					t.Fatalf("deliver gave %v", err)
				}
			})
		})
	}
}

// A kill is not effective while a part of the store may authorise on an older epoch,
// whoever has confirmed and however long it takes.
func TestBarrierWaitsForTheStore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, d := newCluster(), new(documents)
		newReplica(&client{c: c}, d, "r").run(t)
		s := NewSwitch(SwitchConfig{Store: &client{c: c}, HighWater: d.highWater()})
		c.shard = true
		res := mustKill(t, s, Scope{Kind: All})
		var said []string
		time.AfterFunc(5*time.Second, func() { c.set(func() { c.shard = false }) })
		b, err := s.Wait(t.Context(), res.Entry.Epoch, func(b Barrier) { said = append(said, fmt.Sprint(b.Unsettled)) })
		if err != nil || !b.Effective || b.Unsettled != nil || len(b.Confirmed) != 1 {
			t.Fatalf("barrier %+v, %v", b, err)
		}
		if took := b.At.Sub(b.Written); took < 5*time.Second || took > 6*time.Second {
			t.Fatalf("effective after %v", took)
		}
		if !slices.ContainsFunc(said, func(s string) bool {
			return s == "the store does not yet enforce the epoch everywhere: shard b17 does not answer"
		}) {
			t.Fatalf("it said %q", said)
		}
		if c.master.enforced != res.Entry.Epoch {
			t.Fatalf("the store enforces %d", c.master.enforced)
		}
	})
}

// A kill that the old master took after a copy had taken over, and that custody got
// after the replicas there had compared: nobody misses it but the barrier.
func TestKillOnADemotedMaster(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, d := newCluster(), new(documents)
		r := newReplica(&client{c: c}, d, "r")
		r.run(t)
		operator := &client{c: c}
		operator.attach(c.failover())
		time.Sleep(2 * time.Second) // the replica has found the new one
		s := NewSwitch(SwitchConfig{Store: operator, HighWater: d.highWater()})
		scope := Scope{Device, "i", "d"}
		res := mustKill(t, s, scope)
		if res.Unacknowledged == nil || !res.Durable {
			t.Fatalf("kill gave %+v", res)
		}
		time.AfterFunc(20*time.Second, func() {
			wantKilled(t, r, "on the new master", scope, false)
			operator.attach(nil)
		})
		waiters := []*Switch{s, NewSwitch(SwitchConfig{Store: &client{c: c}, HighWater: d.highWater()})}
		for i, w := range waiters {
			b, err := w.Wait(t.Context(), res.Entry.Epoch, nil)
			if err != nil || !b.Effective || len(b.Confirmed) != 1 {
				t.Fatalf("waiter %d: barrier %+v, %v", i, b, err)
			}
			wantKilled(t, r, "effective", scope, true)
		}
	})
}

// The same, and whoever waits is on the new master: the kill is put back from
// custody, and its time begins anew.
func TestWaitPutsALostKillBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, d := newCluster(), new(documents)
		silent := newReplica(&client{c: c}, d, "silent")
		operator := &client{c: c}
		operator.attach(c.failover())
		if err := silent.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := NewSwitch(SwitchConfig{Store: operator, HighWater: d.highWater()})
		res := mustKill(t, s, Scope{Device, "i", "d"})
		time.Sleep(time.Minute)
		if err := silent.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantKilled(t, silent, "not yet put back", res.Entry.Scope, false)
		start := time.Now()
		b, err := NewSwitch(SwitchConfig{Store: &client{c: c}, HighWater: d.highWater()}).Wait(t.Context(), res.Entry.Epoch, nil)
		if err != nil || !b.Effective || fmt.Sprint(b.Silent) != "[silent]" {
			t.Fatalf("barrier %+v, %v", b, err)
		}
		if took := time.Since(start); took != 3150*time.Millisecond || !b.At.Equal(time.Now()) {
			t.Fatalf("effective after %v, at %v", took, b.At.Sub(start))
		}
		wantCheck(t, silent.Guard, "its permit", ErrNoPermit)
	})
}

// A kill that a failover takes before custody has it is thrown again.
func TestLostKillIsThrownAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, d := newCluster(), new(documents)
		r := newReplica(&client{c: c}, d, "r")
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.bare = true
		c.away = true
		d.before = func() { // custody is about to learn of it
			c.failover()
			if err := r.Refresh(t.Context()); err != nil {
				t.Error(err)
			}
		}
		s := NewSwitch(SwitchConfig{Store: &client{c: c}, HighWater: d.highWater()})
		res := mustKill(t, s, Scope{Kind: All})
		if res.Entry.Epoch != 2 || !res.Durable || fmt.Sprint(res.Replicas) != "[r]" || len(c.master.state.Live()) != 1 {
			t.Fatalf("kill gave %+v, the store holds %+v", res, c.master.state)
		}
		r.run(t)
		b, err := s.Wait(t.Context(), res.Entry.Epoch, nil)
		if err != nil || len(b.Confirmed) != 1 {
			t.Fatalf("barrier %+v, %v", b, err)
		}
		wantCheck(t, r.Guard, "effective", errKilled)
		if _, err := s.Resume(t.Context(), ResumeRequest{Scope{Kind: All}, []string{res.Entry.ID}, "over", "ann"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		wantCheck(t, r.Guard, "resumed", nil)
	})
}

func TestResumeUnacknowledged(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, d := newCluster(), new(documents)
		s := NewSwitch(SwitchConfig{Store: &client{c: c}, HighWater: d.highWater()})
		res := mustKill(t, s, Scope{Kind: All})
		c.away = true
		r, err := s.Resume(t.Context(), ResumeRequest{Scope{Kind: All}, []string{res.Entry.ID}, "over", "ann"})
		if err != nil || !errors.Is(r.Unacknowledged, ErrUnacknowledged) || !r.Durable || len(d.high(t).Resumes) != 1 {
			t.Fatalf("resume gave %+v, %v", r, err)
		}
		ctx := leaveAfter(t.Context(), 5*time.Second)
		b, err := s.Wait(ctx, r.Resume.Epoch, nil)
		if !errors.Is(err, context.Canceled) || b.Effective || !errors.Is(b.Unsettled, ErrUnacknowledged) {
			t.Fatalf("barrier %+v, %v", b, err)
		}
	})
}

// Who finds a part of the store that is not ours has the guard compare it with custody
// again, once.
func TestDoubt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		high := &countingHighWater{HighWater: new(documents).highWater()}
		g := NewGuard(GuardConfig{Store: newMemory(), HighWater: high, Replica: "r"})
		for want := 1; want <= 2; want++ {
			for range 2 {
				time.Sleep(time.Second)
				if err := g.Refresh(t.Context()); err != nil || high.loads != want {
					t.Fatalf("%v, custody was asked %d times, want %d", err, high.loads, want)
				}
			}
			g.Doubt()
		}
		high.err = errors.New("a part of the store bears no mark")
		time.Sleep(time.Second)
		if err := g.Refresh(t.Context()); !errors.Is(err, high.err) {
			t.Fatalf("renewed the permit: %v", err)
		}
	})
}
