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
}

// Switch is the operator's side: it throws and lifts entries and waits until
// they are effective. Safe for concurrent use.
type Switch struct {
	cfg SwitchConfig

	mu     sync.Mutex
	recent map[uint64][]string // replicas registered at kills made here, by epoch
}

// NewSwitch returns an operator's side.
func NewSwitch(cfg SwitchConfig) *Switch {
	cfg.Params = cfg.Params.orDefaults()
	return &Switch{cfg: cfg, recent: make(map[uint64][]string)}
}

// KillResult is a kill that stands. It is effective once Wait says so.
type KillResult struct {
	Entry    Entry
	Replicas []string // registered when it was written
	// Durable says that custody knows of it, so that it outlives a loss of the
	// store. If not, NotDurable says why.
	Durable    bool
	NotDurable error
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
	e, replicas, err := s.cfg.Store.Kill(ctx, e, floor, a)
	if err != nil {
		return KillResult{}, fmt.Errorf("kill: %w", err)
	}
	res := KillResult{Entry: e}
	for _, r := range replicas {
		res.Replicas = append(res.Replicas, r.Replica)
	}
	slices.Sort(res.Replicas)
	s.remember(e.Epoch, res.Replicas)
	res.NotDurable = s.save(ctx, highErr)
	res.Durable = res.NotDurable == nil
	return res, nil
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

// ResumeResult is a resume that stands; Durable is as for KillResult.
type ResumeResult struct {
	Resume     Resume
	Durable    bool
	NotDurable error
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
	const tries = 5 // others change the switch rarely; the answer is ErrChanged then
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
		if err != nil {
			return ResumeResult{}, fmt.Errorf("resume: %w", err)
		}
		highErr = s.save(ctx, highErr)
		return ResumeResult{Resume: r, Durable: highErr == nil, NotDurable: highErr}, nil
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

// floor is the lowest epoch that the next act may have, given what custody
// knows. An act goes on without custody; the error is for the operator then.
func (s *Switch) floor(ctx context.Context) (uint64, error) {
	if s.cfg.HighWater == nil {
		return 0, errors.New("there is no high-water record")
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Params.Custody)
	defer cancel()
	high, err := s.cfg.HighWater.Load(ctx)
	if err != nil {
		return 0, fmt.Errorf("load the high-water record: %w", err)
	}
	return high.Epoch + 1, nil
}

// save records the store's state in custody, also when the operator has left.
// If custody was away a moment ago it is not waited for again.
func (s *Switch) save(ctx context.Context, away error) error {
	if away != nil {
		return away
	}
	return saveHighWater(context.WithoutCancel(ctx), s.cfg.Store, s.cfg.HighWater, s.cfg.Params)
}

func saveHighWater(ctx context.Context, store Store, high HighWater, p Params) error {
	ctx, cancel := context.WithTimeout(ctx, p.Custody)
	defer cancel()
	state, err := store.State(ctx)
	if err != nil {
		return fmt.Errorf("read the state to record: %w", err)
	}
	if err := high.Save(ctx, state); err != nil {
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
