package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

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

// Is tells the guard of a store that lacks what custody recorded.
func (e *conditionError) Is(target error) bool {
	return target == killswitch.ErrWentBack && (e.condition == signer.StateRolledBack || e.condition == signer.StateLost)
}

// storeCondition tells what an error that a store answered with means for a
// deployment that goes by d; nil for any other error.
func storeCondition(d deployment, err error) *conditionError {
	accept := fmt.Sprintf("if it is lost, `pactctl state accept-loss --store %s`", d.Store)
	switch {
	case errors.Is(err, redis.ErrUnmarked):
		return &conditionError{signer.StateLost, "the store bears no mark of its deployment: it was wiped, in whole or in part, or is another one",
			"point store.redis at the right one, restore its backup, or `pactctl state import` an export; " + accept + " removes what is left in it but kills, goes on with an empty one and closes enrolment", err}
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
	asked  atomic.Bool // and answered before
}

// Load implements killswitch.HighWater. The guard's first question comes before it
// has asked the store, only to learn which one is right. It asks again before the first
// permit, when it has heard from which data the store answers: only then is the store
// looked at. What does not depend on each other is read at the same time, since all
// of it together must be done before a permit could run out. The record counts also if
// the store is refused.
func (g *gate) Load(ctx context.Context) (killswitch.State, error) {
	var (
		loading   sync.WaitGroup
		high      killswitch.State
		highError error
	)
	loading.Go(func() { high, highError = g.HighWater.Load(ctx) })
	d, _, err := g.keeper.refresh(ctx)
	if err == nil && g.asked.Load() {
		err = checkShared(ctx, g.store, d)
	}
	loading.Wait()
	if err = cmp.Or(err, highError); err == nil {
		g.asked.Store(true)
	}
	return high, err
}

// checkShared says what is wrong with a store that must be d's.
func checkShared(ctx context.Context, store shared, d deployment) error {
	var (
		all                sync.WaitGroup
		log, marks, server error
	)
	all.Go(func() { log = checkLog(ctx, store, d) })
	all.Go(func() { marks = checkMarks(ctx, store, d) })
	all.Go(func() { server = store.CheckServer(ctx) })
	all.Wait()
	return cmp.Or(log, marks, server)
}

// checkLog says whether the store's audit log lacks what custody recorded.
func checkLog(ctx context.Context, store shared, d deployment) error {
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
	return nil
}

// checkMarks says whether a part of the store lacks its mark.
func checkMarks(ctx context.Context, store shared, d deployment) error {
	found, err := store.Identity(ctx)
	if err != nil {
		return fmt.Errorf("read the store's marks: %w", err)
	}
	if found.Tags < storeTags { // a part of a cluster was lost
		return storeCondition(d, redis.ErrUnmarked)
	}
	return nil
}

// doubting is a store that has the guard look at its marks when a caller meets a part
// that lacks its own: the guard's beats do not come by there.
type doubting struct {
	signer.Store
	doubt func()
}

func (s *doubting) note(err error) {
	if errors.Is(err, redis.ErrUnmarked) || errors.Is(err, redis.ErrForeign) {
		s.doubt()
	}
}

// Authorize implements signer.Store.
func (s *doubting) Authorize(ctx context.Context, a signer.Authorization) (signer.Authorized, error) {
	who, err := s.Store.Authorize(ctx, a)
	s.note(err)
	return who, err
}

// Device implements signer.Store.
func (s *doubting) Device(ctx context.Context, issuer, thumbprint string) (signer.Device, error) {
	d, err := s.Store.Device(ctx, issuer, thumbprint)
	s.note(err)
	return d, err
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
