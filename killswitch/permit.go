package killswitch

import (
	"fmt"
	"maps"
	"time"
)

// Check says whether a request on t may go on, and under which epoch. ErrNoPermit
// if this replica cannot know, *KilledError if a live entry covers t. It takes
// one atomic load and a few map lookups, and allocates nothing.
func (g *Guard) Check(t Target) (epoch uint64, err error) {
	v := g.view.Load()
	if !g.valid(v) {
		return 0, ErrNoPermit
	}
	if k := v.index.killed(t); k != nil {
		return v.epoch, k
	}
	return v.epoch, nil
}

// Deliver checks t for the last time and calls write, which hands the response
// to the transport, with nothing in between. epoch is what Check returned
// before the work was done. The replica does not report a newer state to the
// store while a delivery that passed under an older one is in write. If the
// check refuses, write is not called and the error is Check's.
func (g *Guard) Deliver(t Target, epoch uint64, write func() error) error {
	gen := g.gate.enter()
	defer gen.leave()
	now, err := g.Check(t)
	if err != nil {
		return err
	}
	if now < epoch {
		return ErrNoPermit // the work rests on a state that this replica does not know
	}
	return write()
}

// View is the switch at one moment, for an answer that asks it several
// questions.
type View struct {
	index *index
	epoch uint64
}

// View returns the current state; ErrNoPermit if this replica cannot know it.
func (g *Guard) View() (View, error) {
	v := g.view.Load()
	if !g.valid(v) {
		return View{}, ErrNoPermit
	}
	return View{v.index, v.epoch}, nil
}

// Epoch is the epoch of the view's state.
func (v View) Epoch() uint64 { return v.epoch }

// Killed returns the *KilledError of the widest live entry that covers t, or
// nil. The zero View answers ErrNoPermit.
func (v View) Killed(t Target) error {
	if v.index == nil {
		return ErrNoPermit
	}
	if k := v.index.killed(t); k != nil {
		return k
	}
	return nil
}

// AudienceKilled says whether a live entry covers just this audience of an issuer,
// whatever wider ones there are.
func (v View) AudienceKilled(issuer, audience string) bool {
	return v.index != nil && v.index.audiences[name{issuer, audience}] != nil
}

// valid says whether the permit of v still holds. Both clocks count: the
// monotonic one may stand still while the machine sleeps, the wall clock may be
// set.
func (g *Guard) valid(v *view) bool {
	if v == nil {
		return false
	}
	now := g.clock()
	age := now.mono - v.asked.mono
	jump := time.Duration(now.wall-v.asked.wall) - age
	return age >= 0 && age < g.cfg.Params.Permit && jump.Abs() <= g.cfg.Params.ClockJump
}

// PermitInfo describes the permit, for people and metrics.
type PermitInfo struct {
	Valid    bool
	Epoch    uint64        // the newest that is known, from the store or custody: it never falls
	Reported uint64        // the newest epoch that no delivery is older than
	Age      time.Duration // since the permit was asked for
	Offset   time.Duration // our clock less the store's, as far as it is certain
	Lacking  bool          // the store was found to lack what is known, and gave no permit since
	Err      error         // of the last attempt to renew it
}

// publish keeps what only the holder of the beat may read.
func (g *Guard) publish(err error) {
	g.status.Store(&PermitInfo{Reported: g.reported, Offset: g.offset, Lacking: g.lacking, Err: err})
}

// Permit describes the current permit.
func (g *Guard) Permit() PermitInfo {
	info := *g.status.Load()
	info.Epoch = g.told.Load().epoch
	if v := g.view.Load(); v != nil {
		info.Valid = g.valid(v)
		info.Age = g.clock().mono - v.asked.mono
	}
	return info
}

// Live counts the live entries that this replica knows, from the store or custody, by
// kind. A store that lost some takes none away; and without a permit nothing is signed,
// whatever they stop. One of a kind that this version does not know stops everything,
// and counts as All.
func (g *Guard) Live() map[Kind]int { return maps.Clone(g.told.Load().index.live) }

// Ready says why this replica should get no traffic: it has no permit, or its
// clock is off by more than ClockWarn.
func (g *Guard) Ready() error {
	p := g.Permit()
	switch {
	case !p.Valid && p.Err != nil:
		return fmt.Errorf("%w: %w", ErrNoPermit, p.Err)
	case !p.Valid:
		return ErrNoPermit
	case p.Offset.Abs() > g.cfg.Params.ClockWarn:
		return fmt.Errorf("killswitch: the clock is %s, more than %v", offsetWords(p.Offset), g.cfg.Params.ClockWarn)
	}
	return nil
}
