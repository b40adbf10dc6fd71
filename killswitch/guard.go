package killswitch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
)

// GuardConfig configures a replica's side of the switch.
type GuardConfig struct {
	Store     Store     // required
	HighWater HighWater // required
	Replica   string    // required, unique per process
	Version   string
	Params    Params // zero fields: Defaults
	// Now is the wall clock; nil is time.Now.
	Now func() time.Time
	// Monotonic is a clock that never jumps; nil takes the monotonic reading of
	// Now's times, or the wall clock itself where they have none.
	Monotonic func() time.Duration
	// Revisions tells which schedule revision this replica serves, by issuer;
	// nil reports none.
	Revisions func() map[string]uint64
	// Ready is what the replica reports of itself; nil is always ready.
	Ready func() bool
	// OnGrant is called with every answer of the store, before the permit that
	// rests on it is used.
	OnGrant func(Grant)
	// Log gets the alarms; nil discards them.
	Log *slog.Logger
}

// Guard decides whether this replica may sign. Safe for concurrent use. Until
// Run or Refresh has got a first permit everything is refused.
type Guard struct {
	cfg   GuardConfig
	clock func() reading
	view  atomic.Pointer[view]
	gate  *gate
	wake  chan struct{} // a beat is wanted now

	beating chan struct{} // holds one token: the right to beat
	// What follows is touched only by the holder of the token.
	known    State // every entry that must not be lost: enforced, or from custody
	compared bool  // known holds custody's record
	loaded   bool  // known is enforced
	started  time.Duration
	outcome  error     // of the last beat
	pending  []drain   // states whose older deliveries may still be under way, oldest first
	reported uint64    // the epoch that the next beat reports
	granted  time.Time // the store's clock in the last grant
	offset   time.Duration
	failing  bool

	status atomic.Pointer[PermitInfo]
}

// reading is both clocks at one instant; wall in nanoseconds since 1970.
type reading struct {
	wall int64
	mono time.Duration
}

// view is what Check answers from: a state and the permit to use it.
type view struct {
	index *index
	epoch uint64
	asked reading // before the permit was asked for
}

// drain is a state that was installed and the deliveries from before it.
type drain struct {
	epoch uint64
	gen   *generation
}

// NewGuard returns a guard without a permit.
func NewGuard(cfg GuardConfig) *Guard {
	cfg.Params = cfg.Params.orDefaults()
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	g := &Guard{cfg: cfg, gate: newGate(), wake: make(chan struct{}, 1), beating: make(chan struct{}, 1)}
	start := cfg.Now()
	g.clock = func() reading {
		t := cfg.Now()
		return reading{t.UnixNano(), t.Sub(start)}
	}
	if cfg.Monotonic != nil {
		g.clock = func() reading { return reading{cfg.Now().UnixNano(), cfg.Monotonic()} }
	}
	g.status.Store(&PermitInfo{})
	return g
}

// Run keeps the permit alive until ctx ends, and writes the resumes of entries
// whose expiry has come. It returns nil.
func (g *Guard) Run(ctx context.Context) error {
	var (
		expiring sync.WaitGroup
		busy     atomic.Bool
	)
	defer expiring.Wait()
	timer := time.NewTimer(g.cfg.Params.Poll)
	defer timer.Stop()
	for {
		changed := g.cfg.Store.Changed()
		timer.Reset(g.cfg.Params.Poll)
		if due, seen := g.beatAndLook(ctx); len(due) > 0 && busy.CompareAndSwap(false, true) {
			expiring.Go(func() {
				defer busy.Store(false)
				g.expire(ctx, due, seen)
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-changed:
		case <-g.wake:
		}
	}
}

// beatAndLook beats, and returns the entries to resume and the epoch at which
// they were seen.
func (g *Guard) beatAndLook(ctx context.Context) ([]Entry, uint64) {
	if g.Refresh(ctx) != nil {
		return nil, 0 // kept in PermitInfo and logged when it began
	}
	select {
	case g.beating <- struct{}{}:
		defer func() { <-g.beating }()
		return g.known.Expired(g.granted), g.known.Epoch
	case <-ctx.Done():
		return nil, 0
	}
}

// Refresh asks the store now, and returns when the newest state is enforced.
// Calls that wait for the same answer share it. An error means that the permit
// was not renewed; an older one may still be valid.
func (g *Guard) Refresh(ctx context.Context) error {
	called := g.clock().mono
	select {
	case g.beating <- struct{}{}:
		defer func() { <-g.beating }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if g.started > called {
		return g.outcome // asked after this call began: as good as asking again
	}
	g.started = g.clock().mono
	err := g.beat(ctx)
	if err != nil && ctx.Err() != nil {
		g.started = 0 // this caller left; that says nothing to the others
		return ctx.Err()
	}
	if failing := err != nil; failing != g.failing {
		g.failing = failing
		if failing {
			g.cfg.Log.Warn("the signing permit could not be renewed", "err", err)
		} else {
			g.cfg.Log.Info("the signing permit is renewed again")
		}
	}
	g.outcome = err
	g.publish(err)
	return err
}

func (g *Guard) beat(ctx context.Context) error {
	if err := g.compare(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Params.Call)
	defer cancel()

	for len(g.pending) > 0 && g.pending[0].gen.drained.Load() {
		g.reported = g.pending[0].epoch
		g.pending = g.pending[1:]
	}
	b := Beat{Replica: g.cfg.Replica, Version: g.cfg.Version, Epoch: g.reported, Ready: true}
	if g.cfg.Revisions != nil {
		b.Revisions = g.cfg.Revisions()
	}
	if g.cfg.Ready != nil {
		b.Ready = g.cfg.Ready()
	}
	asked := g.clock()
	b.Time = time.Unix(0, asked.wall)
	grant, err := g.cfg.Store.Beat(ctx, b)
	if err != nil {
		return fmt.Errorf("ask for a permit: %w", err)
	}
	answered := g.clock()
	g.granted = grant.Time
	g.offset = clockOffset(asked, answered, grant.Time)
	if g.offset.Abs() > g.cfg.Params.ClockStop {
		g.view.Store(nil)
		return fmt.Errorf("%w: the clock is %v off the store's", ErrNoPermit, g.offset)
	}
	if g.cfg.OnGrant != nil {
		g.cfg.OnGrant(grant)
	}
	if g.loaded && grant.Epoch == g.known.Epoch {
		v := g.view.Load()
		if v == nil { // taken away over the clock
			v = &view{index: newIndex(g.known), epoch: g.known.Epoch}
		}
		g.view.Store(&view{index: v.index, epoch: v.epoch, asked: asked})
		return nil
	}
	return g.install(ctx, grant, asked)
}

// compare learns once what custody holds.
func (g *Guard) compare(ctx context.Context) error {
	if g.compared {
		return nil
	}
	if g.cfg.HighWater == nil {
		return errors.New("killswitch: the guard has no high-water record to compare with")
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Params.Custody)
	defer cancel()
	high, err := g.cfg.HighWater.Load(ctx)
	if err != nil {
		return fmt.Errorf("load the high-water record: %w", err)
	}
	g.known, g.compared = Merge(high, State{}), true
	return nil
}

// install enforces the store's state, which the grant says is another than the
// known one. A store that lacks something known is merged into, not believed.
func (g *Guard) install(ctx context.Context, grant Grant, asked reading) error {
	s, err := g.cfg.Store.State(ctx)
	if err != nil {
		return fmt.Errorf("load the switch's state: %w", err)
	}
	if s.Epoch < grant.Epoch {
		return fmt.Errorf("the switch's state is of epoch %d, the permit of %d: the store answers from a copy", s.Epoch, grant.Epoch)
	}
	if _, lost := s.Absorb(g.known); lost {
		g.cfg.Log.Error("the store has lost switch state that this replica or custody knows: merging it back",
			"store_epoch", s.Epoch, "known_epoch", g.known.Epoch)
		if s, err = g.cfg.Store.Merge(ctx, g.known); err != nil {
			return fmt.Errorf("merge known switch state into the store: %w", err)
		}
		if _, lost := s.Absorb(g.known); lost {
			return errors.New("the store has not taken the switch state merged into it")
		}
	}
	g.known, g.loaded = Merge(s, State{}), true
	g.view.Store(&view{index: newIndex(g.known), epoch: g.known.Epoch, asked: asked})
	g.pending = append(g.pending, drain{g.known.Epoch, g.gate.retire(g.beatSoon)})
	return nil
}

// beatSoon makes Run beat at once.
func (g *Guard) beatSoon() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// expire writes the resumes of entries past their expiry. Of several replicas
// that try, one wins; the others find the epoch changed, and the entries lifted
// when they look again.
func (g *Guard) expire(ctx context.Context, due []Entry, seen uint64) {
	const reason, actor = "expired", "signer"
	for _, e := range due {
		call, cancel := context.WithTimeout(ctx, g.cfg.Params.Call)
		r := Resume{ID: newID(), Entries: []string{e.ID}, Reason: reason, Actor: actor}
		r, err := g.cfg.Store.Resume(call, r, seen, 0, audit.Entry{
			Actor: actor, Action: "resume", Issuer: e.Scope.Issuer, Target: e.Scope.String(), Reason: reason,
			Detail: map[string]string{"entries": e.ID},
		})
		cancel()
		if err != nil {
			if !errors.Is(err, ErrChanged) && ctx.Err() == nil {
				g.cfg.Log.Warn("an expired kill switch entry could not be lifted yet", "entry", e.ID, "err", err)
			}
			return
		}
		seen = r.Epoch
		g.cfg.Log.Info("an expired kill switch entry was lifted", "entry", e.ID, "scope", e.Scope.String())
	}
	if err := saveHighWater(ctx, g.cfg.Store, g.cfg.HighWater, g.cfg.Params); err != nil {
		g.cfg.Log.Warn("lifted entries are not yet recorded in custody", "err", err)
	}
}

// clockOffset is how far the store's clock is from ours, at least: an answer
// that may have been given at the right time is not off.
func clockOffset(asked, answered reading, store time.Time) time.Duration {
	at := store.UnixNano()
	switch {
	case at < asked.wall:
		return time.Duration(at - asked.wall)
	case at > answered.wall:
		return time.Duration(at - answered.wall)
	}
	return 0
}
