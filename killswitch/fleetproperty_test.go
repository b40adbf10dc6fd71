package killswitch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// TestFleetProperty drives three replicas over one store that fails over, loses what
// was not acknowledged, is split in two, or is cut off, with custody coming and
// going, and throws, lifts and lets expire kills meanwhile. No delivery in scope
// begins once a kill is effective; every kill that was acknowledged, or that custody
// has, is enforced until it is lifted; and in the end all agree.
func TestFleetProperty(t *testing.T) {
	bubble.Guard(t)
	var total fleetCounts
	rapid.Check(t, func(rt *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) fleetEvent {
			return fleetEvent{
				what: rapid.SampledFrom([]string{
					"kill", "kill", "kill", "brief kill", "resume", "resume", "failover", "failover", "split", "attach", "attach",
					"copies", "copies", "custody", "custody", "shard", "shard", "cut", "cut", "pause", "stop", "start", "start", "quiet",
				}).Draw(rt, "what"),
				who:   rapid.IntRange(0, fleetSize-1).Draw(rt, "who"),
				scope: rapid.IntRange(0, fleetScopes-1).Draw(rt, "scope"),
				after: time.Duration(rapid.IntRange(0, 5000).Draw(rt, "after")) * time.Millisecond,
			}
		}), 10, 40).Draw(rt, "events")
		slow := time.Duration(rapid.IntRange(0, 300).Draw(rt, "slow")) * time.Millisecond
		rapid.SyncTest(rt, func(rt *rapid.T) { newFleet(rt, slow).play(events, &total) })
	})
	if total.writes == 0 || total.effective == 0 || total.lost == 0 || total.unacknowledged == 0 || total.lifted == 0 {
		t.Fatalf("the runs were one-sided: %+v", total)
	}
	t.Logf("%+v", total)
}

const (
	fleetSize   = 3
	fleetScopes = 3
)

type fleetEvent struct {
	what       string
	who, scope int
	after      time.Duration // pause before it
}

type fleetCounts struct{ writes, effective, lost, unacknowledged, lifted int }

// fleet is the world of one run.
type fleet struct {
	rt       *rapid.T
	c        *cluster
	d        *documents
	slow     time.Duration
	members  [fleetSize]*member
	started  int
	waits    sync.WaitGroup
	writes   atomic.Int64
	violated atomic.Pointer[string]

	mu        sync.Mutex
	standing  map[string]Entry // kills that must hold, by id: none of them was lifted
	effective map[string]bool  // of them
	counts    fleetCounts
}

// member is one process: a replica, its switch, and its way to the store.
type member struct {
	*replica
	*Switch
	client *client
	stop   context.CancelFunc
	done   sync.WaitGroup
	frozen atomic.Int64 // until then it is not scheduled, in ns since 1970
}

// thaw sleeps while the process is not scheduled.
func (m *member) thaw() {
	for left := time.Duration(1); left > 0; {
		left = time.Duration(m.frozen.Load() - time.Now().UnixNano())
		time.Sleep(left)
	}
}

// schedule is the store as a process calls it that may not be scheduled.
type scheduled struct {
	*client
	m *member
}

func (s scheduled) Beat(ctx context.Context, b Beat) (Grant, error) {
	s.m.thaw()
	g, err := s.client.Beat(ctx, b)
	s.m.thaw()
	return g, err
}

func (s scheduled) State(ctx context.Context) (State, error) {
	st, err := s.client.State(ctx)
	s.m.thaw()
	return st, err
}

func newFleet(rt *rapid.T, slow time.Duration) *fleet {
	f := &fleet{
		rt: rt, c: newCluster(), d: new(documents), slow: slow,
		standing: make(map[string]Entry), effective: make(map[string]bool),
	}
	for i := range f.members {
		f.start(i)
	}
	return f
}

func scopeOf(i int) Scope { return Scope{Device, "i", fmt.Sprint(i)} }

// start starts a process with nothing in memory.
func (f *fleet) start(i int) {
	f.started++
	m := &member{client: &client{c: f.c, slow: f.slow}}
	store := scheduled{m.client, m}
	m.replica = newReplica(store, f.d, fmt.Sprintf("r%d.%d", i, f.started))
	m.Switch = NewSwitch(SwitchConfig{Store: m.client, HighWater: f.d.highWater()})
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	f.members[i] = m
	m.done.Go(func() { m.Run(ctx) })
	for scope := range fleetScopes {
		m.done.Go(func() { f.deliver(ctx, m, scope) })
	}
}

// deliver signs and hands out tokens in a scope.
func (f *fleet) deliver(ctx context.Context, m *member, scope int) {
	target := Target{Issuer: "i", Device: fmt.Sprint(scope)}
	for n := uint64(1); ctx.Err() == nil; n++ {
		pause(ctx, 400*time.Millisecond, n+uint64(scope))
		m.thaw()
		epoch, err := m.Check(target)
		if err != nil || m.client.authorize(ctx, epoch) != nil {
			continue
		}
		pause(ctx, 700*time.Millisecond, n) // the signature
		m.thaw()
		_ = m.Deliver(target, epoch, func() error {
			f.writes.Add(1)
			f.mu.Lock()
			for id := range f.effective {
				if e := f.standing[id]; e.Scope == scopeOf(scope) {
					s := fmt.Sprintf("%s began to deliver in scope %d, in which %+v is effective", m.replica.cfg.Replica, scope, e)
					f.violated.CompareAndSwap(nil, &s)
				}
			}
			f.mu.Unlock()
			pause(ctx, 400*time.Millisecond, n)
			return nil
		})
	}
}

func (f *fleet) halt(i int) {
	if m := f.members[i]; m != nil {
		m.stop()
		m.done.Wait()
		f.members[i] = nil
	}
}

func (f *fleet) play(events []fleetEvent, total *fleetCounts) {
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		cancel()
		f.waits.Wait()
		for i := range f.members {
			f.halt(i)
		}
	}()
	time.Sleep(2 * time.Second)
	for _, e := range events {
		time.Sleep(e.after)
		f.one(ctx, e)
		if v := f.violated.Load(); v != nil {
			f.rt.Fatal(*v)
		}
	}
	f.heal()
	time.Sleep(30 * time.Second)
	if v := f.violated.Load(); v != nil {
		f.rt.Fatal(*v)
	}
	f.agree()
	f.mu.Lock() // somebody may still wait
	defer f.mu.Unlock()
	f.counts.writes = int(f.writes.Load())
	total.writes += f.counts.writes
	total.effective += f.counts.effective
	total.lost += f.counts.lost
	total.unacknowledged += f.counts.unacknowledged
	total.lifted += f.counts.lifted
}

func (f *fleet) one(ctx context.Context, e fleetEvent) {
	m := f.members[e.who]
	switch e.what {
	case "failover", "split": // after a split some stay with the old master
		before := f.c.failover()
		f.c.set(func() { f.counts.lost += before.state.size() - f.c.synced.state.size() })
		for i, m := range f.members {
			if m != nil && e.what == "split" && i <= e.scope {
				f.c.set(func() {
					if m.client.at == nil {
						m.client.at = before
					}
				})
			}
		}
	case "copies":
		f.c.set(func() { f.c.away = !f.c.away })
	case "shard":
		f.c.set(func() { f.c.shard = !f.c.shard })
	case "custody":
		f.d.mu.Lock()
		if f.d.err == nil {
			f.d.err = errors.New("sealed")
		} else {
			f.d.err = nil
		}
		f.d.mu.Unlock()
	case "start":
		if m == nil {
			f.start(e.who)
		}
	case "quiet":
		time.Sleep(10 * time.Second)
	}
	if m == nil {
		return
	}
	switch e.what {
	case "kill":
		f.kill(ctx, m, e.scope, time.Time{})
	case "brief kill":
		f.kill(ctx, m, e.scope, time.Now().Add(8*time.Second))
	case "resume":
		f.resume(ctx, m, e.scope)
	case "attach":
		m.client.attach(nil)
	case "cut":
		f.c.set(func() { m.client.cut = !m.client.cut })
	case "pause":
		m.frozen.Store(time.Now().Add(8 * time.Second).UnixNano())
	case "stop":
		f.halt(e.who)
	}
}

func (f *fleet) kill(ctx context.Context, m *member, scope int, expires time.Time) {
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	res, err := m.Switch.Kill(call, Entry{Scope: scopeOf(scope), Reason: "r", Actor: "a", Expires: expires})
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if res.Unacknowledged != nil {
		f.counts.unacknowledged++
	}
	if expires.IsZero() && (res.Unacknowledged == nil || res.Durable) {
		f.standing[res.Entry.ID] = res.Entry
	}
	f.waits.Go(func() {
		// It is waited for by another machine as well as by this one.
		b, err := m.Switch.Wait(ctx, res.Entry.Epoch, nil)
		if err != nil || !b.Effective {
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.counts.effective++
		if _, ok := f.standing[res.Entry.ID]; ok {
			f.effective[res.Entry.ID] = true
		}
	})
}

// resume lifts what is live in a scope. From before that on nothing of it need hold.
func (f *fleet) resume(ctx context.Context, m *member, scope int) {
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	live, err := m.Switch.Live(call)
	if err != nil {
		return
	}
	req := ResumeRequest{Scope: scopeOf(scope), Reason: "r", Actor: "a"}
	f.mu.Lock()
	for _, e := range live {
		if e.Scope == req.Scope {
			req.EntryIDs = append(req.EntryIDs, e.ID)
			delete(f.standing, e.ID)
			delete(f.effective, e.ID)
		}
	}
	f.mu.Unlock()
	if _, err := m.Switch.Resume(call, req); err == nil {
		f.counts.lifted++
	}
}

// heal ends everything that is wrong.
func (f *fleet) heal() {
	f.d.fail(nil)
	f.c.set(func() { f.c.away, f.c.shard = false, false })
	for i, m := range f.members {
		if m == nil {
			f.start(i)
			continue
		}
		m.client.attach(nil)
		f.c.set(func() { m.client.cut = false })
	}
}

// agree checks that everybody enforces the store's state, and custody has it.
func (f *fleet) agree() {
	var store State
	f.c.set(func() { store = f.c.master.clone().state })
	live := make(map[string]bool)
	for _, e := range store.Live() {
		live[e.ID] = true
		if !e.Expires.IsZero() {
			f.rt.Fatalf("%+v is still live", e)
		}
	}
	f.mu.Lock()
	standing := maps.Clone(f.standing)
	f.mu.Unlock()
	for id, e := range standing {
		if !live[id] {
			f.rt.Fatalf("%+v was acknowledged, never lifted, and is not live", e)
		}
	}
	high, err := f.d.highWater().Load(context.Background())
	if err != nil {
		f.rt.Fatal(err)
	}
	if more, changed := store.Absorb(high); changed {
		f.rt.Fatalf("custody has what the store lacks: %+v, the store %+v, custody %+v", more, store, high)
	}
	if len(high.Live()) != len(live) {
		f.rt.Fatalf("custody has %d live entries, the store %d", len(high.Live()), len(live))
	}
	for _, m := range f.members {
		if p := m.Permit(); !p.Valid || p.Err != nil || p.Epoch != store.Epoch || p.Reported != store.Epoch {
			f.rt.Fatalf("%s has %+v, the store is at %d", m.replica.cfg.Replica, p, store.Epoch)
		}
		for scope := range fleetScopes {
			_, err := m.Check(Target{Issuer: "i", Device: fmt.Sprint(scope)})
			want := slices.ContainsFunc(store.Live(), func(e Entry) bool { return e.Scope == scopeOf(scope) })
			if errors.As(err, new(*KilledError)) != want {
				f.rt.Fatalf("%s says %v of scope %d", m.replica.cfg.Replica, err, scope)
			}
		}
	}
}
