package killswitch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
)

// maxReason is the longest reason, in bytes.
const maxReason = 1024

// SwitchConfig configures the operator's side of the switch.
type SwitchConfig struct {
	Store     Store     // required
	HighWater HighWater // required
	Params    Params    // zero fields: Defaults
	// OnBarrier is called once for each change that a Wait saw become effective, with
	// how long that took by the store's clock, and whether every replica had reported
	// it; otherwise it was the bound that passed. A Wait that begins after the bound
	// does not know. Nil: nobody is told.
	OnBarrier func(took time.Duration, reported bool)
}

// Switch is the operator's side: it throws and lifts entries and waits until
// they are effective. Safe for concurrent use.
type Switch struct {
	cfg SwitchConfig

	mu     sync.Mutex
	recent map[uint64]recent // changes made here, by epoch
	told   map[uint64]bool   // to OnBarrier
}

// recent is a change that was made here.
type recent struct {
	change     State    // with nothing else in it
	registered []string // replicas, at that moment; nil if not known
}

// NewSwitch returns an operator's side.
func NewSwitch(cfg SwitchConfig) *Switch {
	cfg.Params = cfg.Params.orDefaults()
	return &Switch{cfg: cfg, recent: make(map[uint64]recent), told: make(map[uint64]bool)}
}

// KillResult is a kill that stands. It is effective once Wait says so.
type KillResult struct {
	Entry    Entry
	Replicas []string // registered when it was written
	// Durable says that custody knows of it, so that it outlives a loss of the
	// store. If not, NotDurable says why.
	Durable    bool
	NotDurable error
	// Unacknowledged, unless nil, wraps ErrUnacknowledged or says why the kill could
	// not be seen in the store again: the store alone may lose it. Wait waits until
	// it is acknowledged.
	Unacknowledged error
}

// Kill throws a switch. Scope, Reason and Actor are required, Expires is
// optional, the rest is set here and by the store. An error means that the kill
// may not stand; look at Live and try again.
func (s *Switch) Kill(ctx context.Context, e Entry) (KillResult, error) {
	if err := e.Scope.Validate(); err != nil {
		return KillResult{}, &InvalidError{err}
	}
	if err := validateAct(e.Reason, e.Actor); err != nil {
		return KillResult{}, err
	}
	if !e.Expires.IsZero() {
		now, err := s.cfg.Store.Now(ctx)
		if err != nil {
			return KillResult{}, fmt.Errorf("kill: %w", err)
		}
		if !e.Expires.After(now) {
			return KillResult{}, &InvalidError{errors.New("expires: is not in the future")}
		}
	}
	e.ID = newID()
	a := audit.Entry{
		Actor: e.Actor, Action: "kill", Issuer: e.Scope.Issuer, Target: e.Scope.String(), Reason: e.Reason,
		Detail: map[string]string{"entry": e.ID},
	}
	if !e.Expires.IsZero() {
		a.Detail["expires"] = e.Expires.UTC().Format(time.RFC3339)
	}
	floor, highErr := s.floor(ctx)
	res, err := s.throw(ctx, e, floor, a, highErr)
	if err != nil {
		return KillResult{}, fmt.Errorf("kill: %w", err)
	}
	// A failover may have lost it before custody had it, and then no replica misses
	// it. It is thrown again, under a new epoch, until the store has it afterwards.
	ctx = context.WithoutCancel(ctx)
	for try := 1; try < tries && s.lost(ctx, res.Entry); try++ {
		again, err := s.throw(ctx, res.Entry, res.Entry.Epoch+1, a, highErr)
		if err != nil {
			res.Unacknowledged = fmt.Errorf("the store lost the kill, and throwing it again failed: %w", err)
			break
		}
		res = again
	}
	return res, nil
}

// tries bounds how often an act is repeated that others are in the way of.
const tries = 5

// throw writes an entry and records it in custody.
func (s *Switch) throw(ctx context.Context, e Entry, floor uint64, a audit.Entry, highErr error) (KillResult, error) {
	e, replicas, err := s.cfg.Store.Kill(ctx, e, floor, a)
	res := KillResult{Entry: e}
	if errors.Is(err, ErrUnacknowledged) {
		res.Unacknowledged, err = err, nil
	}
	if err != nil {
		return res, err
	}
	for _, r := range replicas {
		if r.Epoch != Gone {
			res.Replicas = append(res.Replicas, r.Replica)
		}
	}
	slices.Sort(res.Replicas)
	change := State{Epoch: e.Epoch, Entries: []Entry{e}}
	s.remember(change, res.Replicas)
	res.NotDurable = s.save(ctx, change, highErr)
	res.Durable = res.NotDurable == nil
	return res, nil
}

// lost tells whether the store says that it does not hold the entry.
func (s *Switch) lost(ctx context.Context, e Entry) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Params.Call)
	defer cancel()
	state, err := s.cfg.Store.State(ctx)
	return err == nil && !state.has(State{Entries: []Entry{e}})
}

// has tells whether s holds the acts of a change.
func (s State) has(change State) bool {
	for _, e := range change.Entries {
		if !slices.ContainsFunc(s.Entries, func(x Entry) bool { return x.ID == e.ID && x.Epoch == e.Epoch }) {
			return false
		}
	}
	for _, r := range change.Resumes {
		if !slices.ContainsFunc(s.Resumes, func(x Resume) bool { return x.ID == r.ID && x.Epoch == r.Epoch }) {
			return false
		}
	}
	return true
}

// ResumeRequest lifts the live entries of a scope. EntryIDs are those that the
// operator was shown: they must be all of the scope's, and nothing else.
type ResumeRequest struct {
	// Scope: All covers every live entry of any scope; every other scope covers
	// the entries of exactly that scope.
	Scope    Scope
	EntryIDs []string
	Reason   string
	Actor    string
}

// ResumeResult is a resume that stands; the rest is as for KillResult. One that is
// lost stops more than the operator wants, never less.
type ResumeResult struct {
	Resume         Resume
	Durable        bool
	NotDurable     error
	Unacknowledged error
}

// Resume lifts entries. *ResumeError if the named entries are not exactly the
// live ones of the scope; nothing is lifted then.
func (s *Switch) Resume(ctx context.Context, req ResumeRequest) (ResumeResult, error) {
	if err := req.Scope.Validate(); err != nil {
		return ResumeResult{}, &InvalidError{err}
	}
	if err := validateAct(req.Reason, req.Actor); err != nil {
		return ResumeResult{}, err
	}
	floor, highErr := s.floor(ctx)
	var last error
	for range tries {
		state, err := s.cfg.Store.State(ctx)
		if err != nil {
			return ResumeResult{}, fmt.Errorf("resume: %w", err)
		}
		if err := req.covers(state); err != nil {
			return ResumeResult{}, err
		}
		ids := slices.Sorted(slices.Values(req.EntryIDs))
		r := Resume{ID: newID(), Entries: slices.Compact(ids), Reason: req.Reason, Actor: req.Actor}
		r, err = s.cfg.Store.Resume(ctx, r, state.Epoch, floor, audit.Entry{
			Actor: r.Actor, Action: "resume", Issuer: req.Scope.Issuer, Target: req.Scope.String(), Reason: r.Reason,
			Detail: map[string]string{"entries": strings.Join(r.Entries, " ")},
		})
		if errors.Is(err, ErrChanged) {
			last = err
			continue
		}
		res := ResumeResult{Resume: r}
		if errors.Is(err, ErrUnacknowledged) {
			res.Unacknowledged, err = err, nil
		}
		if err != nil {
			return ResumeResult{}, fmt.Errorf("resume: %w", err)
		}
		change := State{Epoch: r.Epoch, Resumes: []Resume{r}}
		s.remember(change, nil)
		res.NotDurable = s.save(ctx, change, highErr)
		res.Durable = res.NotDurable == nil
		return res, nil
	}
	return ResumeResult{}, fmt.Errorf("resume: %w", last)
}

// covers says how the named entries differ from the live ones of the scope.
func (req ResumeRequest) covers(s State) error {
	named := make(map[string]bool, len(req.EntryIDs))
	for _, id := range req.EntryIDs {
		named[id] = true
	}
	var e ResumeError
	for _, l := range s.Live() {
		if req.Scope.Kind != All && l.Scope != req.Scope {
			continue
		}
		if !named[l.ID] {
			e.Unnamed = append(e.Unnamed, l)
		}
		delete(named, l.ID)
	}
	for id := range named {
		e.NotLive = append(e.NotLive, id)
	}
	slices.Sort(e.NotLive)
	if len(e.Unnamed) > 0 || len(e.NotLive) > 0 || len(req.EntryIDs) == 0 {
		e.Scope = req.Scope
		return &e
	}
	return nil
}

// Live returns the entries that are enforced, oldest first.
func (s *Switch) Live(ctx context.Context) ([]Entry, error) {
	state, err := s.History(ctx)
	return state.Live(), err
}

// History returns everything that was ever thrown and lifted, oldest first.
func (s *Switch) History(ctx context.Context) (State, error) {
	state, err := s.cfg.Store.State(ctx)
	if err != nil {
		return State{}, fmt.Errorf("switch state: %w", err)
	}
	return Merge(state, State{}), nil
}

// nextEpoch is the lowest epoch that the next act may have, given what custody
// knows. An act goes on without custody; the error is for the operator then.
func nextEpoch(ctx context.Context, h HighWater, p Params) (uint64, error) {
	if h == nil {
		return 0, errors.New("there is no high-water record")
	}
	ctx, cancel := context.WithTimeout(ctx, p.Custody)
	defer cancel()
	high, err := h.Load(ctx)
	if err != nil {
		return 0, fmt.Errorf("load the high-water record: %w", err)
	}
	return high.Epoch + 1, nil
}

// floor is nextEpoch, above all that a store holds whose own epoch is damaged and does
// not count.
func (s *Switch) floor(ctx context.Context) (uint64, error) {
	var (
		asking sync.WaitGroup
		sane   uint64
	)
	asking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Params.Call)
		defer cancel()
		state, err := s.cfg.Store.State(ctx)
		if err == nil && state.Epoch >= EpochCeiling && state.highestAct() < EpochCeiling {
			sane = state.highestAct()
		}
	})
	floor, err := nextEpoch(ctx, s.cfg.HighWater, s.cfg.Params)
	asking.Wait()
	return max(floor, sane+1), err
}

// save records a change in custody, and what else the store has, also when the
// operator has left. If custody was away a moment ago it is not waited for again.
func (s *Switch) save(ctx context.Context, change State, away error) error {
	if away != nil {
		return away
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Params.Custody)
	defer cancel()
	state, err := s.cfg.Store.State(ctx)
	switch {
	case err != nil || state.highest() >= epochLimit:
		state = change // all that is known
	case !state.has(change): // lost already
		state = Merge(state, change)
	}
	err = s.cfg.HighWater.Save(ctx, state)
	var full *FullError
	if errors.As(err, &full) && !slices.ContainsFunc(change.Entries, func(e Entry) bool { return slices.Contains(full.Left, e.ID) }) {
		return nil // others have no room
	}
	if err != nil {
		return fmt.Errorf("save the high-water record: %w", err)
	}
	return nil
}

// InvalidError says which argument of an act is wrong.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return "killswitch: " + e.Err.Error() }
func (e *InvalidError) Unwrap() error { return e.Err }

// ResumeError says how the entries named in a resume differ from what the scope
// holds. With both lists empty there was nothing to lift.
type ResumeError struct {
	Scope   Scope
	Unnamed []Entry  // live in the scope, and not named: the operator has not seen them
	NotLive []string // named, and not live in the scope
}

func (e *ResumeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "killswitch: nothing was lifted of %s: ", e.Scope)
	switch {
	case len(e.Unnamed) == 0 && len(e.NotLive) == 0:
		b.WriteString("no live entry covers it")
	case len(e.Unnamed) > 0:
		ids := make([]string, len(e.Unnamed))
		for i, u := range e.Unnamed {
			ids[i] = u.ID
		}
		fmt.Fprintf(&b, "it also holds %s", strings.Join(ids, ", "))
	}
	if len(e.NotLive) > 0 {
		if len(e.Unnamed) > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "not live in it: %s", strings.Join(e.NotLive, ", "))
	}
	return b.String()
}

func validateAct(reason, actor string) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return &InvalidError{errors.New("reason: is required")}
	case len(reason) > maxReason:
		return &InvalidError{fmt.Errorf("reason: is longer than %d bytes", maxReason)}
	case actor == "":
		return &InvalidError{errors.New("actor: is required")}
	}
	return nil
}

// newID returns 80 random bits.
func newID() string { return strings.ToLower(rand.Text()[:16]) }
