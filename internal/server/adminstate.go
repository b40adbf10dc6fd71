package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/store/redis"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// adminState does what operators do to the store as a whole. It implements
// signer.AdminState. The deployment's record in custody is what decides: what is
// changed there takes effect on every replica.
type adminState struct {
	keeper  *keeper
	kind    string
	store   records
	shared  shared      // the same store; nil if it is this process's own
	issuers []string    // that are configured
	behind  func() bool // custody may lack acts
	now     func() time.Time
}

// finding is what custody and the store come to.
type finding struct {
	deployment deployment
	status     signer.StateStatus
}

// Status implements signer.AdminState.
func (a *adminState) Status(ctx context.Context) (signer.StateStatus, error) {
	f, err := a.find(ctx)
	if ctx.Err() != nil {
		return f.status, ctx.Err()
	}
	if err != nil {
		f.status.Condition, f.status.Problem = signer.StateUnknown, err.Error()
		f.status.Remedy = "it goes on by itself once custody and the store answer; see /readyz and the signer's log"
	}
	return f.status, nil
}

// find asks custody and the store. An error means that one of them cannot answer.
func (a *adminState) find(ctx context.Context) (finding, error) {
	d, _, err := a.keeper.refresh(ctx)
	if known, ok := a.keeper.current(); ok && err != nil {
		d = known
	}
	f := finding{deployment: d}
	f.status = signer.StateStatus{
		Condition: signer.StateOK, Kind: a.kind, Store: d.Store, CustodyHead: d.AuditHead, EnrolmentClosed: d.EnrolmentClosed,
	}
	if errors.Is(err, errUninitialised) || errors.Is(err, errInitialising) {
		f.status.Condition, f.status.Problem = signer.StateUninitialised, "custody and the store have not been joined to a deployment"
		f.status.Remedy = err.Error()
		return f, nil
	}
	if err != nil {
		return f, err
	}
	set := func(c *conditionError) {
		f.status.Condition, f.status.Problem, f.status.Remedy = c.condition, c.problem, c.remedy
	}
	f.status.Found = d.Store // an embedded store was opened by its id
	if a.shared != nil {
		found, err := a.shared.Identity(ctx)
		if err != nil {
			return f, fmt.Errorf("store: %w", err)
		}
		f.status.Found = found.ID
		switch {
		case found.ID == "":
			set(storeCondition(d, redis.ErrUnmarked))
			return f, nil
		case found.ID != d.Store:
			set(storeCondition(d, redis.ErrForeign))
			if d.had(found.ID) {
				f.status.Remedy = fmt.Sprintf("it is from before its loss was accepted, or an acceptance was interrupted: restore the newer store, or take this one as it is with `pactctl state accept-loss --store %s`, which closes enrolment", d.Store)
			}
			return f, nil
		case found.Tags < storeTags:
			set(storeCondition(d, redis.ErrUnmarked))
		}
	}
	last, _, err := a.store.AuditHead(ctx)
	if err != nil {
		return f, fmt.Errorf("store: %w", err)
	}
	f.status.StoreHead = last
	have, err := entryAt(ctx, a.store, d.AuditHead, last)
	if err != nil {
		return f, fmt.Errorf("store: %w", err)
	}
	if f.status.Condition != signer.StateOK {
		return f, nil
	}
	if have != d.AuditHead {
		set(rolledBack(d, last))
		return f, nil
	}
	if last.Seq > d.AuditHead.Seq && a.behind() { // or it was recorded meanwhile
		if d, _, err = a.keeper.refresh(ctx); err != nil {
			return f, err
		}
		f.deployment, f.status.CustodyHead = d, d.AuditHead
	}
	if last.Seq > d.AuditHead.Seq && a.behind() {
		f.status.Problem = fmt.Sprintf("custody does not have the last %d of the audit log's entries yet: if the store went back by them now, or an export without them was imported, nobody would notice", last.Seq-d.AuditHead.Seq)
		f.status.Remedy = "they are recorded without you as soon as that is possible; the signer's log says what hinders it"
	}
	return f, nil
}

// Export implements signer.AdminState.
func (a *adminState) Export(ctx context.Context, w io.Writer) error {
	f, err := a.find(ctx)
	if err != nil {
		return err
	}
	if f.status.Condition != signer.StateOK && f.status.Condition != signer.StateRolledBack {
		return refuseState(signer.StateUnsupported, "%s: there is nothing to export", f.status.Problem)
	}
	_, err = signer.WriteState(ctx, w, f.deployment.Store, a.now(), a.store)
	return err
}

// AcceptLoss implements signer.AdminState. The store gets another id, first in
// custody, together with the closing of enrolment, and then its mark: interrupted in
// between it is still lost, and is accepted again under its new id. What a lost store
// still holds is removed: without the rest nobody could see or revoke it.
func (a *adminState) AcceptLoss(ctx context.Context, storeID, actor, reason string) error {
	if a.shared == nil {
		return refuseState(signer.StateUnsupported, "an embedded signer looks at its store when it starts: stop it, and run `signer init --accept-lost-store` or `--accept-rolled-back-store`")
	}
	f, err := a.find(ctx)
	if err != nil {
		return err
	}
	switch {
	case f.status.Condition == signer.StateUninitialised:
		return refuseState(signer.StateNotLost, "%s", f.status.Remedy)
	case storeID != f.deployment.Store:
		return a.otherStore(f.deployment)
	case f.status.Condition == signer.StateOK:
		return refuseState(signer.StateNotLost, "the store is well: it bears its mark, and has every act that custody recorded")
	}
	if err := a.mayTake(ctx, f); err != nil {
		return err
	}
	mark := func(ctx context.Context, id string) error { return a.shared.Mark(ctx, id) }
	head := f.status.StoreHead
	if f.status.Condition == signer.StateLost {
		head = audit.Head{}
		mark = func(ctx context.Context, id string) error {
			return a.shared.MarkEmpty(ctx, id, append(f.deployment.GivenUp[:], storeID)...)
		}
	}
	id, err := a.giveUp(ctx, storeID, head, true)
	if err != nil {
		return err
	}
	if err := marked(mark(ctx, id)); err != nil {
		return err
	}
	return a.log(ctx, audit.Entry{
		Actor: actor, Action: "state.accept_loss", Target: storeID, Reason: reason,
		Detail: map[string]string{"condition": string(f.status.Condition), "store": id},
	})
}

// log puts an act that stands into the audit log.
func (a *adminState) log(ctx context.Context, e audit.Entry) error {
	e.Time = a.now()
	if err := a.store.AppendAudit(ctx, e); err != nil && !errors.Is(err, killswitch.ErrUnacknowledged) {
		return fmt.Errorf("it is done, but not in the audit log: %w", err)
	}
	return nil
}

// mayTake refuses to mark a store that another deployment may still use, or that no
// replica would serve from.
func (a *adminState) mayTake(ctx context.Context, f finding) error {
	if f.status.Condition == signer.StateForeign && !f.deployment.had(f.status.Found) {
		return refuseState(signer.StateNotEmpty, "the store bears a mark that was never this deployment's (%s): it is not taken over. Point store.redis at an empty Redis or choose another store.redis.prefix, and accept the loss then", f.status.Found)
	}
	var wrong *redis.ConfigError
	switch err := a.shared.CheckServer(ctx); {
	case errors.As(err, &wrong):
		return refuseState(signer.StateUnsupported, "%v", err)
	case err != nil:
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// giveUp gives the store another id in custody, and says which entry its log must
// have.
func (a *adminState) giveUp(ctx context.Context, storeID string, head audit.Head, close bool) (id string, err error) {
	id = rand.Text()
	_, err = a.keeper.change(ctx, func(d *deployment) error {
		if d.Store == id { // written, and the answer was lost
			return nil
		}
		if d.Store != storeID {
			return a.otherStore(*d)
		}
		d.give(id)
		d.AuditHead = head
		d.EnrolmentClosed = d.EnrolmentClosed || close
		return nil
	})
	return id, err
}

// marked says whether a store has the id that custody knows it by from now on. Copies
// that lag behind will have it: no replica serves before they do.
func marked(err error) error {
	if err != nil && !errors.Is(err, killswitch.ErrUnacknowledged) {
		return fmt.Errorf("mark the store: %w", err)
	}
	return nil
}

// Import implements signer.AdminState. A store that replicas share loses its mark as
// the import begins, and gets another id once the records are there: interrupted before
// that it is lost, and takes the same file again.
func (a *adminState) Import(ctx context.Context, r io.Reader, actor, acceptStore string) (signer.ImportResult, error) {
	file, err := signer.ReadState(r)
	if err != nil {
		return signer.ImportResult{}, err
	}
	defer func() { _ = file.Close() }() // a copy that is gone with the process at the latest
	f, err := a.find(ctx)
	if err != nil {
		return signer.ImportResult{}, err
	}
	closes, err := a.mayImport(ctx, f, file, acceptStore)
	if err != nil {
		return signer.ImportResult{}, err
	}
	retired := f.deployment.retiredIssuers()
	result := signer.ImportResult{Store: f.deployment.Store, File: file.Summary, LeftOut: file.Summary.Of(retired)}
	act := audit.Entry{
		Time: a.now(), Actor: actor, Action: "state.import", Target: file.Summary.Store,
		Detail: map[string]string{"records": strconv.FormatUint(file.Summary.Records, 10), "sha256": file.Summary.SHA256},
	}
	if result.LeftOut > 0 {
		act.Detail["left_out"] = strconv.FormatUint(result.LeftOut, 10)
	}
	records := file.Records(act, retired)
	if a.shared != nil && acceptStore != "" { // which gives up what the store holds
		err = a.shared.ImportOver(ctx, f.status.Found, records)
	} else {
		err = a.store.Import(ctx, records)
	}
	if errors.Is(err, signer.ErrNotEmpty) {
		return result, a.notEmpty(f.deployment)
	}
	if err != nil {
		return result, fmt.Errorf("import: %w", err)
	}
	if a.shared != nil {
		if result.Store, err = a.giveUp(ctx, f.deployment.Store, file.Summary.AuditHead, closes); err == nil {
			err = marked(a.shared.Mark(ctx, result.Store))
		}
	} else {
		_, err = a.keeper.change(ctx, func(d *deployment) error {
			d.AuditHead, d.EnrolmentClosed = file.Summary.AuditHead, d.EnrolmentClosed || closes
			return nil
		})
	}
	result.EnrolmentClosed = a.keeper.enrolmentClosed()
	return result, err
}

// mayImport says whether the file may be imported, and whether enrolment closes.
func (a *adminState) mayImport(ctx context.Context, f finding, file *signer.StateFile, acceptStore string) (closes bool, err error) {
	switch {
	case f.status.Condition == signer.StateUninitialised:
		return false, refuseState(signer.StateUnsupported, "%s", f.status.Remedy)
	case acceptStore != "" && acceptStore != f.deployment.Store:
		return false, a.otherStore(f.deployment)
	}
	closes, err = file.Check(signer.ImportCheck{
		Issuers: a.issuers, Retired: f.deployment.retiredIssuers(), Store: f.deployment.Store, Head: f.deployment.AuditHead, Accept: acceptStore != "",
	})
	if err != nil || a.shared == nil {
		return closes, err
	}
	if acceptStore != "" && !closes { // what custody has not recorded yet is forgotten too
		whole, err := file.Holds(f.status.StoreHead)
		if err != nil {
			return false, err
		}
		closes = !whole
	}
	return closes, a.mayTake(ctx, f)
}

// notEmpty refuses records for a store that has some.
func (a *adminState) notEmpty(d deployment) error {
	if a.shared == nil {
		return refuseState(signer.StateNotEmpty, "the store has records: import into an empty one. To make one: stop the signer, move its store away, and run `signer init --accept-lost-store`")
	}
	return refuseState(signer.StateNotEmpty, "the store has records: they are replaced if you give them up by naming the store (--accept-loss %s)", d.Store)
}

func (a *adminState) otherStore(d deployment) error {
	return refuseState(signer.StateOtherStore, "the store that custody knows is %s: name it, once `pactctl state status` has shown you how it is", d.Store)
}

// had says whether the store once bore this id.
func (d deployment) had(id string) bool {
	return id != "" && (id == d.Store || slices.Contains(d.GivenUp[:], id))
}

// OpenEnrolment implements signer.AdminState.
func (a *adminState) OpenEnrolment(ctx context.Context, actor string) error {
	opened := false
	_, err := a.keeper.change(ctx, func(d *deployment) error {
		opened = d.EnrolmentClosed
		d.EnrolmentClosed = false
		return nil
	})
	if errors.Is(err, errUninitialised) || errors.Is(err, errInitialising) {
		return refuseState(signer.StateUnsupported, "%v", err)
	}
	if err != nil || !opened {
		return err
	}
	return a.log(ctx, audit.Entry{Actor: actor, Action: "state.open_enrolment", Target: a.keeper.storeID()})
}

func refuseState(reason, format string, args ...any) error {
	return &signer.StateError{Reason: reason, Problem: fmt.Sprintf(format, args...)}
}

var _ signer.AdminState = (*adminState)(nil)
