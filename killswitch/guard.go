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
	// OnRegression is called once for each time that the store is found to lack switch
	// state which this replica or custody knows: it came back from an older copy, or
	// empty. It is over with the next permit. Nil: the log alone tells.
	OnRegression func()
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
	wake  chan struct{}         // a beat is wanted now
	doubt atomic.Bool           // custody is to be compared with again
	heard atomic.Pointer[State] // custody's record, as it was read meanwhile

	beating chan struct{} // holds one token: the right to beat
	// What follows is touched only by the holder of the token.
	known    State  // every entry that must not be lost: enforced, or from custody; set by know
	compared bool   // known holds custody's record
	lineage  string // of the store's data that custody's record was compared with
	loaded   bool   // known is the state that the store had under change
	change   string //
	index    *index // of known
	inForce  *index // the one that permits were last given for
	lacking  bool   // the store was found to lack what is known, and was not whole since
	alarmed  string // the damage of the store, as it was told last
	left     bool   // for good
	started  time.Duration
	outcome  error     // of the last beat
	pending  []drain   // states whose older deliveries may still be under way, oldest first
	reported uint64    // the epoch that the next beat reports
	granted  time.Time // the store's clock in the last grant
	offset   time.Duration
	failing  bool

	status     atomic.Pointer[PermitInfo]
	told       atomic.Pointer[view]   // what is known, in force or not, for people and metrics
	recorded   atomic.Pointer[string] // the change whose state custody is known to have
	unrecorded bool                   // touched by one chore at a time
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
	g.know(State{})
	g.recorded.Store(new(string))
	return g
}

// Run keeps the permit alive until ctx ends, writes the resumes of entries whose
// expiry has come, and records in custody what it enforces, should whoever changed
// it not have been able to. Now and then it reads what custody knows: a store that
// nobody else writes to any more has no news. It returns nil.
func (g *Guard) Run(ctx context.Context) error {
	var (
		working sync.WaitGroup
		busy    atomic.Bool
	)
	defer working.Wait()
	listening := time.NewTicker(g.cfg.Params.Compare)
	defer listening.Stop()
	timer := time.NewTimer(g.cfg.Params.Poll)
	defer timer.Stop()
	for {
		changed := g.cfg.Store.Changed()
		timer.Reset(g.cfg.Params.Poll)
		if c := g.beatAndLook(ctx); (len(c.due) > 0 || c.record) && busy.CompareAndSwap(false, true) {
			working.Go(func() {
				defer busy.Store(false)
				g.expire(ctx, c.due, c.state.Epoch)
				g.record(ctx, c)
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-changed:
		case <-g.wake:
		case <-listening.C:
			if busy.CompareAndSwap(false, true) {
				working.Go(func() {
					defer busy.Store(false)
					g.listen(ctx)
				})
			}
		}
	}
}

// listen reads custody's record for the next beat. It is not worth a word if custody
// is away: what is known goes on.
func (g *Guard) listen(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Params.Custody)
	defer cancel()
	if high, err := g.cfg.HighWater.Load(ctx); err == nil {
		g.heard.Store(&high)
		g.beatSoon()
	}
}

// chores are what a beat found to do, and the state that it found.
type chores struct {
	state  State
	change string
	due    []Entry // to resume
	record bool    // custody may lack the state
}

// beatAndLook beats, and returns what there is to do.
func (g *Guard) beatAndLook(ctx context.Context) chores {
	if g.Refresh(ctx) != nil {
		return chores{} // kept in PermitInfo and logged when it began
	}
	select {
	case g.beating <- struct{}{}:
		defer func() { <-g.beating }()
		return chores{g.known, g.change, g.known.Expired(g.granted), g.change != *g.recorded.Load()}
	case <-ctx.Done():
		return chores{}
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

// asks bounds how often one beat asks for a permit because the switch changed
// while it looked.
const asks = 3

// beat gets a permit for the newest state. Only one that was granted on exactly the
// state that is enforced counts, by epoch and change: the two may be read from
// different servers while a failover is under way.
func (g *Guard) beat(ctx context.Context) error {
	if g.left {
		return fmt.Errorf("%w: this replica has ended", ErrNoPermit)
	}
	if g.doubt.Swap(false) {
		g.compared = false
	}
	if high := g.heard.Swap(nil); high != nil {
		if high.Epoch < g.known.Epoch {
			g.RecordAgain() // it was restored from an older copy, or made anew
		}
		g.learn(*high)
	}
	if !g.compared { // before the store is asked: custody's record may say which store is ours
		if err := g.compare(ctx); err != nil {
			return err
		}
	}
	for range asks {
		asked := g.clock()
		grant, err := g.ask(ctx, asked)
		if errors.Is(err, ErrUnknownStore) {
			g.compared = false // another store may have been accepted meanwhile
		}
		if err != nil {
			return fmt.Errorf("ask for a permit: %w", err)
		}
		if grant.Epoch < g.known.Epoch { // told even if custody is away, or refuses the store
			g.regressed("store_epoch", grant.Epoch)
		}
		if grant.Lineage != g.lineage {
			// The data may lack what another had, or go back further than anybody
			// can mend: the permit that rests on the other ends here. Asked for now,
			// custody knows of all that was recorded before this data was in use.
			g.view.Store(nil)
			if err := g.compare(ctx); err != nil {
				return err
			}
			g.lineage = grant.Lineage
		}
		if err := g.believe(ctx, grant.Epoch); err != nil {
			return err
		}
		if !g.loaded || grant.Epoch != g.known.Epoch || grant.Change != g.change {
			if err := g.install(ctx, grant); err != nil {
				return err
			}
		}
		if grant.Epoch == g.known.Epoch && grant.Change == g.change {
			g.permit(asked)
			return nil
		}
	}
	return errors.New("the switch's state is not the one that permits are granted on")
}

// ask beats once and looks at the clocks.
func (g *Guard) ask(ctx context.Context, asked reading) (Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Params.Call)
	defer cancel()
	for len(g.pending) > 0 && g.pending[0].gen.drained.Load() {
		g.reported = g.pending[0].epoch
		g.pending = g.pending[1:]
	}
	b := Beat{
		Replica: g.cfg.Replica, Version: g.cfg.Version, Epoch: g.reported, Ready: true, Time: time.Unix(0, asked.wall),
	}
	if g.cfg.Revisions != nil {
		b.Revisions = g.cfg.Revisions()
	}
	if g.cfg.Ready != nil {
		b.Ready = g.cfg.Ready()
	}
	grant, err := g.cfg.Store.Beat(ctx, b)
	if err != nil {
		return grant, err
	}
	g.granted = grant.Time
	g.offset = clockOffset(asked, g.clock(), grant.Time)
	if g.offset.Abs() > g.cfg.Params.ClockStop {
		g.view.Store(nil)
		return grant, fmt.Errorf("%w: the clock is %s", ErrNoPermit, offsetWords(g.offset))
	}
	if g.cfg.OnGrant != nil {
		g.cfg.OnGrant(grant)
	}
	return grant, nil
}

// compare learns what custody holds. Without custody's word a store that was not
// compared gets this replica to sign nothing: it may lack a kill.
func (g *Guard) compare(ctx context.Context) error {
	if g.cfg.HighWater == nil {
		return errors.New("killswitch: the guard has no high-water record to compare with")
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Params.Custody)
	defer cancel()
	high, err := g.cfg.HighWater.Load(ctx)
	back := errors.Is(err, ErrWentBack)
	if err == nil || back {
		g.learn(high)
	}
	if back && g.known.Epoch > 0 {
		g.regressed("err", err)
	}
	if err != nil {
		return fmt.Errorf("load the high-water record: %w", err)
	}
	g.compared = true
	return nil
}

// learn adds to what must not be lost.
func (g *Guard) learn(high State) {
	next := Merge(g.known, high)
	if !next.equal(g.known) {
		g.know(next)
		g.loaded = false // the store is asked whether it has it
	}
}

// know sets what is known. It goes on being told, and counted, whatever the store says
// later: until somebody lifts it, it is in force wherever anything is signed.
func (g *Guard) know(s State) {
	g.known, g.index = s, newIndex(s)
	g.told.Store(&view{index: g.index, epoch: s.Epoch})
}

// regressed raises the alarm that the store lacks what is known, once until it is whole
// again.
func (g *Guard) regressed(how ...any) {
	if g.lacking {
		return
	}
	g.lacking = true
	g.view.Store(nil)
	g.cfg.Log.Error("the store has lost switch state that this replica or custody knows: nothing is signed on it before that is merged back",
		append(how, "known_epoch", g.known.Epoch)...)
	if g.cfg.OnRegression != nil {
		g.cfg.OnRegression()
	}
}

// believe refuses an epoch of the store's that is damage. Custody may know why it is as
// high.
func (g *Guard) believe(ctx context.Context, epoch uint64) error {
	err := believable(epoch, g.known.Epoch)
	if err == nil {
		return nil
	}
	if custody := g.compare(ctx); custody != nil {
		return errors.Join(err, custody)
	}
	if err = believable(epoch, g.known.Epoch); err == nil {
		return nil
	}
	if told := fmt.Sprint("damaged ", epoch); told != g.alarmed {
		g.alarmed = told
		g.cfg.Log.Error("the store's switch has an epoch that it cannot have come to: nothing is signed on it; throw the switch, which gives it the next epoch, or restore the store",
			"store_epoch", epoch, "known_epoch", g.known.Epoch)
	}
	return err
}

// install makes the store's state the known one, if the grant says that it is
// another. A store that lacks something known is merged into, not believed.
func (g *Guard) install(ctx context.Context, grant Grant) error {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Params.Call)
	defer cancel()
	s, err := g.cfg.Store.State(ctx)
	if err != nil {
		return fmt.Errorf("load the switch's state: %w", err)
	}
	if s.Epoch < grant.Epoch {
		return fmt.Errorf("the switch's state is of epoch %d, the permit of %d: the store answers from a copy", s.Epoch, grant.Epoch)
	}
	if err := g.believe(ctx, s.highest()); err != nil {
		return err
	}
	if _, lost := s.Absorb(g.known); lost {
		g.regressed("store_epoch", s.Epoch)
		if s, err = g.cfg.Store.Merge(ctx, g.known); err != nil {
			return fmt.Errorf("merge known switch state into the store: %w", err)
		}
		if _, lost := s.Absorb(g.known); lost {
			return errors.New("the store has not taken the switch state merged into it")
		}
	}
	g.change, g.loaded = s.Change, true
	g.know(Merge(s, State{}))
	return nil
}

// permit puts the known state in force, on a permit that was asked for then.
func (g *Guard) permit(asked reading) {
	g.lacking = false
	g.view.Store(&view{index: g.index, epoch: g.known.Epoch, asked: asked})
	if g.inForce == g.index {
		return
	}
	g.inForce = g.index
	g.pending = append(g.pending, drain{g.known.Epoch, g.gate.retire(g.beatSoon)})
}

// Leave gives the permit up for good, waits until the last delivery has ended, and tells
// the store with a last beat, so that no barrier waits for this replica. If it fails they
// wait, as for one that was killed.
func (g *Guard) Leave(ctx context.Context) error {
	select {
	case g.beating <- struct{}{}:
		defer func() { <-g.beating }()
	case <-ctx.Done():
		return ctx.Err()
	}
	g.left = true
	g.view.Store(nil)
	drained := make(chan struct{})
	g.pending = append(g.pending, drain{Gone, g.gate.retire(func() { close(drained) })})
	select {
	case <-drained:
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, p := range g.pending { // older ones
		if !p.gen.drained.Load() {
			return errors.New("killswitch: a delivery is still under way")
		}
	}
	b := Beat{Replica: g.cfg.Replica, Version: g.cfg.Version, Epoch: Gone, Time: time.Unix(0, g.clock().wall)}
	if _, err := g.cfg.Store.Beat(ctx, b); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// Doubt makes the next beat, which comes within Poll, compare the store with custody's
// record again before it renews the permit. It is for who finds a part of the store that
// is not ours, which beats may not meet.
func (g *Guard) Doubt() { g.doubt.Store(true) }

// RecordAgain makes Run record in custody what is enforced, though that was done before.
// It is for who finds that custody has lost what it was told.
func (g *Guard) RecordAgain() { g.recorded.Store(new(string)) }

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
	if len(due) == 0 {
		return
	}
	floor, _ := nextEpoch(ctx, g.cfg.HighWater, g.cfg.Params) // goes on without custody
	for _, e := range due {
		call, cancel := context.WithTimeout(ctx, g.cfg.Params.Call)
		r := Resume{ID: newID(), Entries: []string{e.ID}, Reason: reason, Actor: actor}
		r, err := g.cfg.Store.Resume(call, r, seen, floor, audit.Entry{
			Actor: actor, Action: "resume", Issuer: e.Scope.Issuer, Target: e.Scope.String(), Reason: reason,
			Detail: map[string]string{"entries": e.ID},
		})
		cancel()
		if err != nil && !errors.Is(err, ErrUnacknowledged) {
			if !errors.Is(err, ErrChanged) && ctx.Err() == nil {
				g.cfg.Log.Warn("an expired kill switch entry could not be lifted yet", "entry", e.ID, "err", err)
			}
			return
		}
		seen = r.Epoch
		g.cfg.Log.Info("an expired kill switch entry was lifted", "entry", e.ID, "scope", e.Scope.String())
	}
}

// record saves the state in custody. What fails is tried again with the next beat.
func (g *Guard) record(ctx context.Context, c chores) {
	if !c.record {
		return
	}
	call, cancel := context.WithTimeout(ctx, g.cfg.Params.Custody)
	defer cancel()
	err := g.cfg.HighWater.Save(call, c.state)
	if full := new(FullError); errors.As(err, &full) {
		g.cfg.Log.Error("custody's record of the switch is full: some entries would not outlive a loss of the store; lift those that are not needed any more",
			"entries", len(full.Left))
		err = nil // it takes more only after another change
	}
	if failing := err != nil; failing != g.unrecorded && ctx.Err() == nil {
		g.unrecorded = failing
		if failing {
			g.cfg.Log.Warn("the switch's state is not yet recorded in custody", "epoch", c.state.Epoch, "err", err)
		} else {
			g.cfg.Log.Info("the switch's state is recorded in custody again", "epoch", c.state.Epoch)
		}
	}
	if err == nil {
		g.recorded.Store(&c.change)
	}
}

// clockOffset is how far our clock is ahead of the store's, at least: an answer that
// may have been given at the right time is not off. Negative: it is behind.
func clockOffset(asked, answered reading, store time.Time) time.Duration {
	at := store.UnixNano()
	switch {
	case at < asked.wall:
		return time.Duration(asked.wall - at)
	case at > answered.wall:
		return time.Duration(answered.wall - at)
	}
	return 0
}

// offsetWords says which way the clock must be set.
func offsetWords(offset time.Duration) string {
	side := "ahead of"
	if offset < 0 {
		side = "behind"
	}
	return fmt.Sprintf("%v %s the store's", offset.Abs().Round(time.Millisecond), side)
}
