package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/killswitch"
)

// recordError: custody answers, and has no record that this replica may go by.
type recordError struct{ problem string }

func (e *recordError) Error() string { return e.problem }

// Unwrap makes it one that callers answer with 503.
func (e *recordError) Unwrap() error { return custody.ErrUnavailable }

var (
	errUninitialised = &recordError{"the deployment is not initialised: run `signer init` once, with this configuration"}
	errInitialising  = &recordError{"`signer init` was begun and has not finished: run it again, with this configuration"}
	errRecordGone    = &recordError{"the deployment's record is gone from custody: restore custody from its backup"}
	errRecordOther   = &recordError{"the record in custody is another deployment's than this replica began with: point it at the right custody, or restart it if custody was made anew"}
)

// answered tells whether custody gave that answer, which one that is away does not.
func answered(err error) bool {
	return err == nil || errors.As(err, new(*recordError)) || errors.As(err, new(*otherConfigError))
}

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
	wrong atomic.Pointer[error] // why what is known must not be gone by any more; nil: it may be
	gone  atomic.Int32          // how many looks in a row found no record
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

// usable says why nothing may be signed by what is known: custody was heard to have
// it no more, or to have a record that this replica is not of. Custody that is away says
// nothing, and what was known stays. So it is also where keys are used from memory and
// sign on without a Vault: that is for one that does not answer. A Vault that answers and
// lacks the record was emptied, or is not the deployment's: what else it had is unknown,
// which keys were disabled and what was killed among it.
func (k *keeper) usable() error {
	if wrong := k.wrong.Load(); wrong != nil {
		return *wrong
	}
	return nil
}

// refresh reads the record and goes by it. With an error what was known stays, though
// it may be of no use, see usable.
func (k *keeper) refresh(ctx context.Context) (deployment, uint64, error) {
	d, rev, err := k.read(ctx)
	if !errors.Is(err, errRecordGone) {
		k.gone.Store(0)
	}
	switch {
	case err == nil:
		d, rev = k.adopt(d, rev)
		k.wrong.Store(nil)
	case errors.Is(err, errRecordGone) && k.gone.Add(1) < downAfter: // one may be a hiccup, as in looks
	case answered(err) && k.known.Load() != nil:
		k.wrong.Store(&err)
	}
	return d, rev, err
}

// read reads the record, and refuses one that is none to go by.
func (k *keeper) read(ctx context.Context) (deployment, uint64, error) {
	d, rev, err := loadDeployment(ctx, k.keyring)
	if err != nil {
		return d, rev, err
	}
	known := k.known.Load()
	switch {
	case rev == 0 && known != nil:
		return d, rev, errRecordGone
	case rev == 0:
		return d, rev, errUninitialised
	case known != nil && rev < known.revision && d.Store == known.Store:
		return d, rev, nil // adopt goes by the newer one
	case d.State != ready:
		return d, rev, errInitialising
	case known != nil && known.Store != "" && !known.had(d.Store) && !d.had(known.Store):
		return d, rev, errRecordOther
	}
	if k.fits != nil {
		return d, rev, k.fits(d)
	}
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

// changes bounds how often a change is made anew because somebody else made one. It is
// in vain where custody went back: the newest record that is known is not there.
const changes = 32

// change swaps the record for what change makes of it, on the newest one.
func (k *keeper) change(ctx context.Context, change func(*deployment) error) (deployment, error) {
	for try := 1; ; try++ {
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
		if errors.Is(err, custody.ErrConflict) && try < changes && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return d, err
		}
		k.adopt(d, rev)
		return d, nil
	}
}

// ownHighWater is the switch's record in custody, as long as that is this deployment's:
// what is stopped here is no other's concern, and what another stopped is not ours.
type ownHighWater struct {
	killswitch.HighWater
	keeper *keeper
}

// Load implements killswitch.HighWater.
func (h ownHighWater) Load(ctx context.Context) (killswitch.State, error) {
	if err := h.keeper.usable(); errors.Is(err, errRecordOther) {
		return killswitch.State{}, err
	}
	return h.HighWater.Load(ctx)
}

// Save implements killswitch.HighWater. It looks anew: what it wrote into another
// deployment's custody, that one would go by.
func (h ownHighWater) Save(ctx context.Context, s killswitch.State) error {
	if _, _, err := h.keeper.refresh(ctx); errors.Is(err, errRecordOther) {
		return err
	}
	return h.HighWater.Save(ctx, s)
}
