package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/audit"
)

// auditHead keeps the audit log's head in the deployment's record. It implements
// signer.AuditHead.
type auditHead struct {
	keyring custody.Keyring
	store   records
	id      func() string // of the store that is the right one; nil: it stays the same
	// acknowledged returns nil once the store's copies have what was written before
	// the call; nil: it has none.
	acknowledged func(ctx context.Context) error

	// behind: custody may lack an act. It is so at the start, for what a process that
	// has ended could not record.
	behind atomic.Bool

	mu       sync.Mutex // one record at a time: those who wait find theirs recorded
	recorded uint64     // the newest number that is known to be in custody
	in       string     // of which store's log
}

// errLogWentBack: the log that is to be recorded lacks what was recorded before.
var errLogWentBack = errors.New("the audit log lacks the entry that custody recorded: the store went back")

// Record implements signer.AuditHead. It never lowers what is recorded, and records
// nothing that a failover of the store could lose: custody would hold the store for
// rolled back then.
func (h *auditHead) Record(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.record(ctx)
	h.behind.Store(err != nil)
	return err
}

func (h *auditHead) record(ctx context.Context) error {
	if h.id != nil && h.id() != h.in { // another log, which begins anew
		h.recorded, h.in = 0, h.id()
	}
	for {
		last, _, err := h.store.AuditHead(ctx)
		if err != nil {
			return fmt.Errorf("read the audit log's head: %w", err)
		}
		if last.Seq <= h.recorded {
			return nil
		}
		if err := h.secured(ctx, last); err != nil {
			return err
		}
		d, rev, err := loadDeployment(ctx, h.keyring)
		if err == nil && rev == 0 {
			err = fmt.Errorf("the deployment's record: %w", custody.ErrNotFound)
		}
		if err != nil {
			return err
		}
		if h.id != nil && d.Store != h.in {
			return errLogWentBack // its loss was accepted meanwhile
		}
		if last.Seq > d.AuditHead.Seq {
			have, err := entryAt(ctx, h.store, d.AuditHead, last)
			if err != nil {
				return err
			}
			if have != d.AuditHead {
				return errLogWentBack
			}
			d.AuditHead = last
			_, err = saveDeployment(ctx, h.keyring, rev, d)
			if errors.Is(err, custody.ErrConflict) {
				continue
			}
			if err != nil {
				return err
			}
		}
		h.recorded = d.AuditHead.Seq
		return nil
	}
}

// secured returns nil once no failover can take the entry away.
func (h *auditHead) secured(ctx context.Context, last audit.Head) error {
	if h.acknowledged == nil {
		return nil
	}
	if err := h.acknowledged(ctx); err != nil {
		return fmt.Errorf("the audit log's head is not yet safe from a failover: %w", err)
	}
	newest, _, err := h.store.AuditHead(ctx) // of the store that acknowledged
	if err != nil {
		return fmt.Errorf("read the audit log's head: %w", err)
	}
	have, err := entryAt(ctx, h.store, last, newest)
	if err == nil && have != last {
		err = errLogWentBack
	}
	return err
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
func checkAuditHead(ctx context.Context, store records, d *deployment, accept bool) error {
	last, _, err := store.AuditHead(ctx)
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	have, err := entryAt(ctx, store, d.AuditHead, last)
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	if have != d.AuditHead {
		if !accept {
			return fmt.Errorf("went back: its audit log does not have entry %d as custody recorded it (the newest is %d), so invalidations, revocations and audiences may be undone. Restore the newer store. If it is lost, `signer init --accept-rolled-back-store`, with the same --data or --config, takes this one as it is and closes enrolment; or move this one away, and `signer init --accept-lost-store`, likewise, makes an empty one", d.AuditHead.Seq, last.Seq)
		}
		d.EnrolmentClosed = true
	}
	d.AuditHead = last
	return nil
}
