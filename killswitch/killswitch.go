// Package killswitch stops issuing. It holds the switch's state (a set of
// entries and resumes that merges and is never overwritten), the permit by
// which a replica may sign at all, and the barrier that tells when a kill is
// effective on every replica.
//
// What it promises: a request whose authorisation in the store comes after a
// kill was declared effective gets no token in scope, and none passes the final
// check after that. It does not recall tokens that are already out.
package killswitch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
)

// Kind is what a scope names.
type Kind string

// The kinds of scope, from widest to narrowest.
const (
	All        Kind = "all"
	Issuer     Kind = "issuer"
	Audience   Kind = "audience"
	Subject    Kind = "subject"
	Device     Kind = "device"
	Credential Kind = "credential"
)

// Scope is what an entry stops. For All both strings are empty; for Issuer,
// Issuer is set and Value empty; for the rest both are set.
type Scope struct {
	Kind   Kind   `json:"kind"`
	Issuer string `json:"issuer,omitempty"`
	Value  string `json:"value,omitempty"`
}

// Validate tells what is wrong with a scope, naming the field.
func (s Scope) Validate() error {
	switch s.Kind {
	case All:
		if s.Issuer != "" || s.Value != "" {
			return errors.New("scope: kind all takes no issuer and no value")
		}
	case Issuer:
		if s.Issuer == "" || s.Value != "" {
			return errors.New("scope: kind issuer takes an issuer and no value")
		}
	case Audience, Subject, Device, Credential:
		if s.Issuer == "" || s.Value == "" {
			return fmt.Errorf("scope: kind %s needs an issuer and a value", s.Kind)
		}
	default:
		return fmt.Errorf("scope: unknown kind %q (all, issuer, audience, subject, device or credential)", s.Kind)
	}
	return nil
}

// String names the scope as people read it.
func (s Scope) String() string {
	switch s.Kind {
	case All:
		return "all"
	case Issuer:
		return "issuer " + s.Issuer
	default:
		return fmt.Sprintf("%s %s of %s", s.Kind, s.Value, s.Issuer)
	}
}

// Entry is one thrown switch.
type Entry struct {
	ID      string    `json:"id"`
	Scope   Scope     `json:"scope"`
	Reason  string    `json:"reason"`
	Actor   string    `json:"actor"`
	Time    time.Time `json:"time"`             // set by the store, by its clock
	Expires time.Time `json:"expires,omitzero"` // zero: until resumed
	Epoch   uint64    `json:"epoch"`            // set by the store
}

// Resume lifts entries by id.
type Resume struct {
	ID      string    `json:"id"`
	Entries []string  `json:"entries"`
	Reason  string    `json:"reason"`
	Actor   string    `json:"actor"`
	Time    time.Time `json:"time"`  // set by the store, by its clock
	Epoch   uint64    `json:"epoch"` // set by the store
}

// State is everything that was ever thrown and lifted, and the epoch, which
// grows by at least one with each of them.
type State struct {
	Epoch   uint64   `json:"epoch"`
	Entries []Entry  `json:"entries"`
	Resumes []Resume `json:"resumes"`
	// Change is the Grant.Change that this state goes with, as Store.State read
	// both at one moment. It is the store's alone: recorded nowhere else, and
	// empty in what Merge and Absorb return.
	Change string `json:"-"`
}

// Beat is what a replica says of itself when it asks for a permit.
type Beat struct {
	Replica   string            // unique per process
	Version   string            //
	Epoch     uint64            // the epoch that it enforces, with nothing older on its way out; or Gone
	Revisions map[string]uint64 // schedule revision that it serves, by issuer
	Ready     bool              //
	Time      time.Time         // its wall clock
}

// Replica is a registered replica as the store knows it.
type Replica struct {
	Beat
	Seen time.Time // the store's clock at its last beat
}

// Grant is the store's answer to a beat.
type Grant struct {
	Epoch     uint64            // the switch epoch
	Revisions map[string]uint64 // newest schedule revision mirrored, by issuer
	Time      time.Time         // the store's clock
	// Lineage names the data that the store answers from: it is another one once a
	// copy that may lack the newest writes has taken over, or the data was loaded
	// anew. Empty where that cannot happen while the store is open.
	Lineage string
	// Change is the random name of the switch's last change, empty before the
	// first. The same epoch with another change is another state: a store that
	// lost a change may have given its epoch to the next one.
	Change string
}

// Store keeps the switch between replicas. Every error that is not named here
// means that the state is unknown: nothing may be signed on it.
type Store interface {
	// Beat records the replica and returns what its permit rests on. It must
	// reach the store that accepts writes, never a copy.
	Beat(ctx context.Context, b Beat) (Grant, error)
	// State returns the whole state, with its Change.
	State(ctx context.Context) (State, error)
	// Kill adds an entry, gives it the next epoch (see NextEpoch) and the
	// store's time, appends the audit entry in the same transaction and returns
	// the replicas registered at that moment: every beat that was granted an
	// older epoch comes from one of them or from a replica that has been silent
	// for longer than a permit lasts. With ErrUnacknowledged its results are valid.
	Kill(ctx context.Context, e Entry, floor uint64, a audit.Entry) (Entry, []Replica, error)
	// Resume adds a resume, with the next epoch (see NextEpoch), the store's
	// time and its audit entry. The caller has checked its entries against seen, the epoch it
	// decided on: the store answers ErrChanged if its epoch is another. With
	// ErrUnacknowledged its result is valid.
	Resume(ctx context.Context, r Resume, seen, floor uint64, a audit.Entry) (Resume, error)
	// Merge adds what other holds and the store lacks, with the epoch that
	// State.Absorb gives, and returns what the store then holds, with its Change. It
	// is acknowledged like a kill, also if nothing was lacking: nil means that the
	// copies hold all of it. With ErrUnacknowledged its result is valid.
	Merge(ctx context.Context, other State) (State, error)
	// Enforce returns nil once no authorisation by this store can succeed with an
	// epoch older than the given one. A store that keeps one epoch for all callers
	// returns at once. It is repeatable, and an error says what is not yet reached.
	// The epoch is never lowered by it.
	Enforce(ctx context.Context, epoch uint64) error
	// Replicas lists the replicas seen within the last liveFor.
	Replicas(ctx context.Context, liveFor time.Duration) ([]Replica, error)
	// Changed returns a channel that is closed, or receives, once something
	// that a Grant holds changes after this call; polling remains the backstop.
	Changed() <-chan struct{}
	// Now returns the store's clock.
	Now(ctx context.Context) (time.Time, error)
}

// HighWater keeps the newest state where it lives as long as the keys do.
// custody documents implement it. An error of Load keeps a replica from signing if
// it has not compared the store's data with the record yet; so it may also say that
// custody knows something against the store.
type HighWater interface {
	// Load returns the zero State if none was ever saved. The State counts also with
	// an error that wraps ErrWentBack.
	Load(ctx context.Context) (State, error)
	// Save merges, and never lowers. *FullError says what has no room; the rest is saved.
	Save(ctx context.Context, s State) error
}

var (
	// ErrChanged: the switch changed since the caller looked; look again.
	ErrChanged = errors.New("killswitch: the switch was changed meanwhile")
	// ErrNoPermit: the replica cannot prove the switch's state. Answer 503.
	ErrNoPermit = errors.New("killswitch: no valid permit")
	// ErrUnknownStore: the store does not bear the mark by which custody knows it, or
	// its mark is not known yet. Stores wrap it; the guard then asks custody again,
	// which may name another one by now.
	ErrUnknownStore = errors.New("killswitch: the store is not the one that custody knows")
	// ErrWentBack: the store lacks what custody recorded: it came back from an older
	// copy, or empty. What checks that beside HighWater.Load wraps it.
	ErrWentBack = errors.New("killswitch: the store went back")
	// ErrUnacknowledged: a change stands on the store's master, and its copies
	// have not confirmed it: a failover now could lose it. Stores wrap it.
	ErrUnacknowledged = errors.New("killswitch: the store's copies have not acknowledged the change")
)

// KilledError says which entry stopped a request. Answer 403.
type KilledError struct {
	Scope Scope
	Entry string // id
}

func (e *KilledError) Error() string {
	return fmt.Sprintf("killswitch: %s is stopped by %s", e.Scope.Kind, e.Entry)
}
