package server

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/store/bolt"
)

// auditHead keeps the audit log's head in the deployment's record. It implements
// signer.AuditHead.
type auditHead struct {
	keyring custody.Keyring
	store   *bolt.Store

	mu       sync.Mutex // one record at a time: those who wait find theirs recorded
	recorded uint64     // the newest number that is known to be in custody
}

// Record implements signer.AuditHead. It never lowers what is recorded.
func (h *auditHead) Record(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		last, _, err := h.store.AuditHead(ctx)
		if err != nil {
			return fmt.Errorf("read the audit log's head: %w", err)
		}
		if last.Seq <= h.recorded {
			return nil
		}
		d, rev, err := loadDeployment(ctx, h.keyring)
		if err == nil && rev == 0 {
			err = fmt.Errorf("the deployment's record: %w", custody.ErrNotFound)
		}
		if err != nil {
			return err
		}
		if last.Seq > d.AuditHead.Seq {
			d.AuditHead = last
			_, err = saveDeployment(ctx, h.keyring, rev, d)
		}
		if err == nil {
			h.recorded = d.AuditHead.Seq
		}
		if !errors.Is(err, custody.ErrConflict) {
			return err
		}
	}
}

// Heads implements signer.AuditHead: what custody knows, and what the store itself
// does.
func (h *auditHead) Heads(ctx context.Context) ([]audit.Head, error) {
	d, _, err := loadDeployment(ctx, h.keyring)
	if err != nil {
		return nil, err
	}
	_, written, err := h.store.AuditHead(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the audit log's head: %w", err)
	}
	return []audit.Head{d.AuditHead, written}, nil
}

// checkAuditHead compares the store with the entry that custody has recorded, and
// records the newest one. A store without it is from before it was written: it is
// refused, or accepted with enrolment closed.
func checkAuditHead(ctx context.Context, store *bolt.Store, d *deployment, accept bool) error {
	last, _, err := store.AuditHead(ctx)
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	have := last
	if d.AuditHead.Seq > 0 && d.AuditHead.Seq < last.Seq {
		list, err := store.Audit(ctx, d.AuditHead.Seq-1, 1)
		var damaged *audit.DamagedError
		switch {
		case errors.As(err, &damaged):
			have = audit.Head{Seq: damaged.Seq}
		case err != nil:
			return fmt.Errorf("cannot be read: %w", err)
		default:
			have = audit.Head{Seq: list[0].Seq, Hash: list[0].Hash}
		}
	}
	if d.AuditHead.Seq > 0 && have != d.AuditHead {
		if !accept {
			return fmt.Errorf("went back: its audit log does not have entry %d as custody recorded it (the newest is %d), so invalidations, revocations and audiences may be undone. Restore the newer store. If it is lost, `signer init --accept-rolled-back-store`, with the same --data or --config, takes this one as it is and closes enrolment; or move this one away, and `signer init --accept-lost-store`, likewise, makes an empty one", d.AuditHead.Seq, last.Seq)
		}
		d.EnrolmentClosed = true
	}
	d.AuditHead = last
	return nil
}
