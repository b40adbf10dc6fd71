package rotation

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrNotFresh: nobody has confirmed within the staleness bound that this
	// replica's schedule is the newest. It signs nothing. Answer 503.
	ErrNotFresh = errors.New("rotation: the key schedule is not confirmed to be the newest")
	// ErrNoKey: no key may sign now, because the last one was revoked and its
	// successor is not yet served everywhere. Answer 503.
	ErrNoKey = errors.New("rotation: no key may sign yet")
	// ErrUnknownKey: the schedule has no key of that kid.
	ErrUnknownKey = errors.New("rotation: the schedule has no such key")
	// ErrRevoked: the key is revoked already.
	ErrRevoked = errors.New("rotation: the key is revoked already")
	// ErrInvalidRequest: a Request contradicts itself.
	ErrInvalidRequest = errors.New("rotation: invalid request")
	// ErrRolledBack: custody's document is older than one this replica knows. The
	// keyring was restored from a backup or answers from a copy.
	ErrRolledBack = errors.New("rotation: the key schedule in custody went back")
	// ErrDocument: the document is not a schedule that may be used: damaged, of
	// another issuer, or with a kid that is not its key's thumbprint.
	ErrDocument = errors.New("rotation: the key schedule cannot be used")
	// ErrNewerFormat: a newer version wrote the document; this one must not write
	// it, or not even use it.
	ErrNewerFormat = errors.New("rotation: the key schedule was written by a newer version")
)

// TooEarlyError refuses a rotation that would take the lead from a key.
type TooEarlyError struct {
	KID string    // the key that must sign, or leave, first
	At  time.Time // when the rotation will do
}

func (e *TooEarlyError) Error() string {
	return fmt.Sprintf("rotation: too early: key %s is still on its way; try again at %s", e.KID, e.At.UTC().Format(time.RFC3339))
}

// FrozenError refuses a change of a SignAt that replicas may already rely on.
type FrozenError struct {
	KID string
	At  time.Time // since when it is frozen
}

func (e *FrozenError) Error() string {
	return fmt.Sprintf("rotation: the time at which key %s signs is frozen since %s", e.KID, e.At.UTC().Format(time.RFC3339))
}
