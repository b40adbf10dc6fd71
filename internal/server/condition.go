package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/store/redis"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// conditionError says why a store is not served from, and what to do about it.
type conditionError struct {
	condition signer.StateCondition
	problem   string
	remedy    string
	err       error
}

func (e *conditionError) Error() string {
	if e.remedy == "" {
		return e.problem
	}
	return e.problem + ": " + e.remedy
}

func (e *conditionError) Unwrap() error { return e.err }

// storeCondition tells what an error that a store answered with means for a
// deployment that goes by d; nil for any other error.
func storeCondition(d deployment, err error) *conditionError {
	accept := fmt.Sprintf("if it is lost, `pactctl state accept-loss --store %s`", d.Store)
	switch {
	case errors.Is(err, redis.ErrUnmarked):
		return &conditionError{signer.StateLost, "the store bears no mark of its deployment: it was wiped, in whole or in part, or is another one",
			"point store.redis at the right one, restore its backup, or `pactctl state import` an export; " + accept + " takes an empty one and closes enrolment", err}
	case errors.Is(err, redis.ErrForeign):
		return &conditionError{signer.StateForeign, "the store bears another mark: it belongs to another deployment, or is from before its loss was accepted",
			"point store.redis at the right one, or restore its newer backup; if that is lost, use an empty Redis or another store.redis.prefix, and then `pactctl state accept-loss --store " + d.Store + "`, which closes enrolment", err}
	}
	return nil
}

// rolledBack is the condition of a store that lacks what custody recorded.
func rolledBack(d deployment, last audit.Head) *conditionError {
	return &conditionError{signer.StateRolledBack,
		fmt.Sprintf("the store went back: its audit log does not have entry %d as custody recorded it (the newest is %d), so invalidations, revocations and audiences may be undone", d.AuditHead.Seq, last.Seq),
		fmt.Sprintf("restore the newer store; if it is lost, `pactctl state accept-loss --store %s` takes this one as it is and closes enrolment", d.Store), nil}
}

// gate lets the kill switch's guard go on with the store only if it is the one
// that custody knows, and has what custody recorded. The guard asks at its start
// and whenever the store may answer from other data than before: it loads the
// high-water record then.
type gate struct {
	killswitch.HighWater
	keeper *keeper
	store  shared
}

// Load implements killswitch.HighWater.
func (g *gate) Load(ctx context.Context) (killswitch.State, error) {
	d, _, err := g.keeper.refresh(ctx)
	if err != nil {
		return killswitch.State{}, err
	}
	if err := checkShared(ctx, g.store, d); err != nil {
		return killswitch.State{}, err
	}
	return g.HighWater.Load(ctx)
}

// checkShared says what is wrong with a store that must be d's.
func checkShared(ctx context.Context, store shared, d deployment) error {
	last, _, err := store.AuditHead(ctx)
	if c := storeCondition(d, err); c != nil {
		return c
	}
	if err != nil {
		return fmt.Errorf("read the audit log's head: %w", err)
	}
	have, err := entryAt(ctx, store, d.AuditHead, last)
	if err != nil {
		return err
	}
	if have != d.AuditHead {
		return rolledBack(d, last)
	}
	found, err := store.Identity(ctx)
	if err != nil {
		return fmt.Errorf("read the store's marks: %w", err)
	}
	if found.Tags < storeTags { // a part of a cluster was lost
		return storeCondition(d, redis.ErrUnmarked)
	}
	return store.CheckServer(ctx)
}

// entryAt returns the entry that the log, whose newest is last, has in the place
// of head.
func entryAt(ctx context.Context, store signer.Store, head, last audit.Head) (audit.Head, error) {
	switch {
	case head.Seq == 0:
		return head, nil // any log has the beginning
	case head.Seq >= last.Seq:
		return last, nil
	}
	list, err := store.Audit(ctx, head.Seq-1, 1)
	var damaged *audit.DamagedError
	switch {
	case errors.As(err, &damaged):
		return audit.Head{Seq: damaged.Seq}, nil
	case err != nil:
		return audit.Head{}, fmt.Errorf("read entry %d of the audit log: %w", head.Seq, err)
	case len(list) == 0:
		return audit.Head{}, nil
	}
	return audit.Head{Seq: list[0].Seq, Hash: list[0].Hash}, nil
}
