package signer

import (
	"context"
	"errors"
	"io"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
)

// Record is one record of a store, as it is moved between stores. Exactly one
// field is set. None holds a secret: of secrets stores keep the hashes.
type Record struct {
	Device          *Device          `json:"device,omitzero"`
	Credential      *Credential      `json:"credential,omitzero"`
	EnrollmentToken *EnrollmentToken `json:"enrollmentToken,omitzero"`
	Audience        *Audience        `json:"audience,omitzero"`
	// Switch is the kill switch, or a part of it: several are merged.
	Switch   *killswitch.State `json:"switch,omitzero"`
	Schedule *MirroredSchedule `json:"schedule,omitzero"`
	Audit    *audit.Entry      `json:"audit,omitzero"`
}

// issuer is whose record it is; "" for what is the deployment's.
func (r Record) issuer() string {
	switch {
	case r.Device != nil:
		return r.Device.Issuer
	case r.Credential != nil:
		return r.Credential.Issuer
	case r.EnrollmentToken != nil:
		return r.EnrollmentToken.Issuer
	case r.Audience != nil:
		return r.Audience.Issuer
	case r.Schedule != nil:
		return r.Schedule.Issuer
	}
	return ""
}

// MirroredSchedule is the copy of an issuer's key schedule that the store keeps.
type MirroredSchedule struct {
	Issuer   string `json:"issuer"`
	Revision uint64 `json:"revision"`
	Document []byte `json:"document"`
}

// StateStore is a store whose whole content can be taken out and put into
// another. Not moved are the memory of used jtis, rate limits and heartbeats.
type StateStore interface {
	// Export calls yield with every record, the entries of the audit log among
	// them oldest first and without a gap. What is written meanwhile may be
	// missing, but for the audit log and the switch there is one moment that they
	// are from. An error of yield ends it. *audit.DamagedError if an entry
	// cannot be read.
	Export(ctx context.Context, yield func(Record) error) error
	// Import puts the records of next, which ends with io.EOF, into a store that
	// nothing is kept in: ErrNotEmpty. They come back from every method as they were.
	// Until Import returns nil none of them is visible; if it does not, it may be
	// called again with the same records or others. A store that replicas share may
	// bear the mark that it must have, if there is no record and no audit entry: it
	// loses the mark, and Mark gives it the next one. Its ImportOver also takes a
	// store that has records, given up by the id that it bears.
	Import(ctx context.Context, next func() (Record, error)) error
}

// ErrNotEmpty: records are imported only where there are none.
var ErrNotEmpty = errors.New("the store has records already")

// StateCondition is what custody's record of the store and the store itself come to.
type StateCondition string

// The conditions of a store. In every one but StateOK the signer answers 503.
const (
	StateOK            StateCondition = "ok"
	StateLost          StateCondition = "lost"          // the store has no marker: it was wiped, or is another
	StateForeign       StateCondition = "foreign"       // the store has another deployment's marker, or an older one
	StateRolledBack    StateCondition = "rolled_back"   // the store lacks audit entries that custody recorded
	StateUninitialised StateCondition = "uninitialised" // nobody has run signer init
	StateUnknown       StateCondition = "unknown"       // custody or the store cannot be asked now
)

// StateStatus is what is known of the deployment's store.
type StateStatus struct {
	Condition StateCondition
	// Kind of the store: bolt or redis.
	Kind string
	// Store is the id that custody knows the store by; it is what an acceptance
	// names. Found is the id that the store bears, empty if none.
	Store, Found string
	// Problem says what is wrong, and Remedy what to do; empty if all is well.
	Problem, Remedy string
	// CustodyHead is the newest audit entry that custody recorded, StoreHead the
	// newest that the store has.
	CustodyHead, StoreHead audit.Head
	// EnrolmentClosed: every issuer's enrolment is closed until somebody opens it.
	EnrolmentClosed bool
}

// ImportResult is what was imported.
type ImportResult struct {
	// Store is the id that the store has from now on.
	Store string
	// File says what was in the file, StateFile.Summary.
	File StateSummary
	// LeftOut is how many of these records were left out, because their issuers are
	// retired.
	LeftOut uint64
	// EnrolmentClosed: every issuer's enrolment is closed until somebody opens it.
	EnrolmentClosed bool
}

// AdminState does what operators do to the store as a whole. Its refusals are
// *StateError and *StateFileError; after any other error the outcome is unknown
// and the call may be repeated.
type AdminState interface {
	// Status tells how the store is. It fails only with ctx: what cannot be asked
	// makes the condition StateUnknown.
	Status(ctx context.Context) (StateStatus, error)
	// Export writes the store's content as a state file, by WriteState.
	Export(ctx context.Context, w io.Writer) error
	// Import reads a state file by ReadState, so that nothing is written unless all
	// of it is whole, asks StateFile.Check whether it fits, and puts its records into
	// the store: one without records or, if replicas share it, one that acceptStore
	// gives up by naming the id that custody knows, whose records are removed and whose
	// kill switch is merged. The audit entry state.import becomes visible together with
	// the records: StateFile.Records takes it.
	Import(ctx context.Context, r io.Reader, actor, acceptStore string) (ImportResult, error)
	// AcceptLoss gives up a store that is lost, foreign or rolled back, named by the
	// id that custody knows. The store that is configured takes its place. A lost one,
	// which bears no mark in one part of it or in all, is emptied, but for its kill
	// switch; the others stay as they are. One that bears the mark of another deployment
	// is refused. Enrolment closes. Its audit entry is state.accept_loss.
	AcceptLoss(ctx context.Context, storeID, actor, reason string) error
	// OpenEnrolment ends what AcceptLoss closed: issuers go back to the mode that is
	// configured. Idempotent. Its audit entry is state.open_enrolment.
	OpenEnrolment(ctx context.Context, actor string) error
}

// StateError is a refusal of AdminState.
type StateError struct {
	// Reason is one of the constants below.
	Reason string
	// Problem says what is wrong and what to do about it, without a secret.
	Problem string
}

func (e *StateError) Error() string { return e.Problem }

// The reasons of a StateError.
const (
	StateNotEmpty      = "STORE_NOT_EMPTY"      // import: there are records, and no acceptance
	StateOtherStore    = "OTHER_STORE"          // the id named is not the one that custody knows
	StateNotLost       = "STORE_NOT_LOST"       // accept-loss: the store is well
	StateOtherFile     = "FILE_OF_OTHER_STORE"  // import: exported from another store, or for other issuers
	StateFileBehind    = "FILE_BEHIND_CUSTODY"  // import: the log lacks what custody recorded
	StateUnsupported   = "UNSUPPORTED"          // this kind of store cannot do it while the signer runs
	StateNotConfigured = "STATE_NOT_CONFIGURED" // the signer has no AdminState
)
