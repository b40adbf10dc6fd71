package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/pactsigner/pactsigner/custody"
)

var (
	errUninitialised = errors.New("the deployment is not initialised: run `signer init` once, with this configuration")
	errInitialising  = errors.New("`signer init` was begun and has not finished: run it again, with this configuration")
	errRecordGone    = errors.New("the deployment's record is gone from custody: restore custody from its backup")
)

// keeper goes by the deployment's record, which is in custody: which store is the
// right one, whether enrolment is closed, and who has the first admin token. What
// another replica changes is taken over when the record is read again; closed
// enrolment and the id of a new store are one record, so that no replica takes the
// store with enrolment still open.
type keeper struct {
	keyring custody.Keyring
	expect  func(id string)          // tells the store; nil: it was opened by its id
	fits    func(d deployment) error // refuses one that this replica is not of; nil: never
	changed func(from, to deployment)

	mu    sync.Mutex // one change at a time
	known atomic.Pointer[knownDeployment]
}

type knownDeployment struct {
	deployment
	revision uint64
}

// current is the record as it was last read.
func (k *keeper) current() (deployment, bool) {
	if known := k.known.Load(); known != nil {
		return known.deployment, true
	}
	return deployment{}, false
}

// enrolmentClosed says whether nobody may enrol, which is so until the record has
// been read.
func (k *keeper) enrolmentClosed() bool {
	d, ok := k.current()
	return !ok || d.EnrolmentClosed
}

// storeID is the id of the store that is the right one; "" if not known.
func (k *keeper) storeID() string {
	d, _ := k.current()
	return d.Store
}

// refresh reads the record and goes by it. With an error what was known stays.
func (k *keeper) refresh(ctx context.Context) (deployment, uint64, error) {
	d, rev, err := loadDeployment(ctx, k.keyring)
	if err != nil {
		return d, rev, err
	}
	switch known := k.known.Load(); {
	case rev == 0 && known != nil:
		return d, rev, errRecordGone
	case rev == 0:
		return d, rev, errUninitialised
	case d.State != ready:
		return d, rev, errInitialising
	}
	if k.fits != nil {
		if err := k.fits(d); err != nil {
			return d, rev, err
		}
	}
	d, rev = k.adopt(d, rev)
	return d, rev, nil
}

// adopt goes by a record that was read or written, unless a newer one is known: a
// standby of custody's may answer from the past.
func (k *keeper) adopt(d deployment, rev uint64) (deployment, uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var before deployment
	if known := k.known.Load(); known != nil {
		if rev < known.revision {
			return known.deployment, known.revision
		}
		before = known.deployment
	}
	k.known.Store(&knownDeployment{d, rev})
	if k.expect != nil { // the closing of enrolment is known by now
		k.expect(d.Store)
	}
	if k.changed != nil && !d.equal(before) {
		k.changed(before, d)
	}
	return d, rev
}

// change swaps the record for what change makes of it, on the newest one.
func (k *keeper) change(ctx context.Context, change func(*deployment) error) (deployment, error) {
	for {
		d, rev, err := k.refresh(ctx)
		if err != nil {
			return d, err
		}
		before := d
		if err := change(&d); err != nil {
			return d, err
		}
		if d.equal(before) {
			return d, nil
		}
		rev, err = saveDeployment(ctx, k.keyring, rev, d)
		if errors.Is(err, custody.ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return d, err
		}
		k.adopt(d, rev)
		return d, nil
	}
}
