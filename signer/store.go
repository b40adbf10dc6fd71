package signer

import (
	"context"
	"errors"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
)

// CallerKind is how a caller authenticates.
type CallerKind string

// The kinds of caller.
const (
	DeviceCaller     CallerKind = "device"
	CredentialCaller CallerKind = "credential"
)

// Hash is a SHA-256: what is stored of a secret or a jti.
type Hash [32]byte

// Device is an enrolled device key.
type Device struct {
	Issuer        string    `json:"issuer"`
	Thumbprint    string    `json:"thumbprint"`
	Subject       string    `json:"subject"`
	Point         []byte    `json:"point"` // X || Y, 64 bytes; immutable under its thumbprint
	EnrolledAt    time.Time `json:"enrolledAt"`
	LastSignedAt  time.Time `json:"lastSignedAt,omitzero"` // precise to a minute
	InvalidatedAt time.Time `json:"invalidatedAt,omitzero"`
	Reason        string    `json:"reason,omitempty"` // of the invalidation
}

// Credential is a principal's bearer secret, of which only the hash is kept.
type Credential struct {
	Issuer    string    `json:"issuer"`
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Principal string    `json:"principal"` // random, immutable: the subject is derived from it
	Subject   string    `json:"subject"`
	Hash      Hash      `json:"hash"`
	CreatedAt time.Time `json:"createdAt"`
	RotatedAt time.Time `json:"rotatedAt,omitzero"`
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	RevokedAt time.Time `json:"revokedAt,omitzero"`
	Reason    string    `json:"reason,omitempty"` // of the revocation
}

// EnrollmentToken lets one device enrol in mode token.
type EnrollmentToken struct {
	Issuer     string    `json:"issuer"`
	ID         string    `json:"id"`
	Note       string    `json:"note,omitempty"`
	Hash       Hash      `json:"hash"`
	CreatedAt  time.Time `json:"createdAt"`
	ExpiresAt  time.Time `json:"expiresAt"`
	RevokedAt  time.Time `json:"revokedAt,omitzero"`
	Thumbprint string    `json:"thumbprint,omitempty"` // the device that it was bound to
}

// Audience is one line of the registry.
type Audience struct {
	Issuer   string    `json:"issuer"`
	Origin   string    `json:"origin"`
	Audience string    `json:"audience"`
	SetAt    time.Time `json:"setAt"`
	SetBy    string    `json:"setBy"`
}

// Limit is a token bucket (GCRA): Rate per second, with a burst of Burst. The
// zero Limit does not limit.
type Limit struct {
	Rate  float64
	Burst int
}

// Authorization is the question that every authenticated call asks of the
// store, once.
type Authorization struct {
	Issuer string
	Kind   CallerKind
	// Thumbprint names a device whose proof has been verified.
	Thumbprint string
	// JTI is the hash of the proof's jti, used up by this call, for 240 s.
	JTI Hash
	// Secret is the hash of a credential.
	Secret Hash
	// Epoch is the switch epoch that the caller of the store enforces.
	Epoch uint64
	// Limit is charged to this caller once the caller is accepted.
	Limit Limit
	// Sign: this call means to sign; the device's LastSignedAt is kept.
	Sign bool
}

// Authorized is the caller as the store knows it at that moment.
type Authorized struct {
	Kind    CallerKind
	ID      string // thumbprint or credential id
	Subject string
}

// Enrolment asks the store to make a device known.
type Enrolment struct {
	Device Device
	// JTI is the hash of the proof's jti.
	JTI Hash
	// Token is the hash of the enrolment token, and NeedToken says that the mode asks for one.
	Token     Hash
	NeedToken bool
	Epoch     uint64
	// Cap is the most devices that the issuer may have; 0 is no cap.
	Cap int
}

// Page asks for at most Size records after the one whose key is After.
type Page struct {
	Size  int
	After string
}

var (
	// ErrNotFound: no such record.
	ErrNotFound = errors.New("not found")
	// ErrExists: the record is there and is another one.
	ErrExists = errors.New("already exists")
	// ErrStaleEpoch: the switch has moved on; learn its state and ask again.
	ErrStaleEpoch = errors.New("the kill switch has moved on")
	// ErrFull: the issuer's cap is reached.
	ErrFull = errors.New("the cap is reached")
)

// RefusedError says, to the operator and the audit log only, why the store does
// not accept a caller. The caller is told "unauthorized".
type RefusedError struct {
	// Why: unknown, invalidated, revoked, expired, replayed, token_missing,
	// token_unknown, token_spent, token_expired, token_revoked.
	Why string
}

func (e *RefusedError) Error() string { return "caller refused: " + e.Why }

// LimitedError says that a caller must wait.
type LimitedError struct {
	RetryAfter time.Duration
}

func (e *LimitedError) Error() string { return "rate limited" }

// Store keeps the signer's records. Safe for concurrent use; what it returned
// nil for is durable. Acts are written in one transaction with their audit
// entry. An error other than those named by a method means that the state is
// unknown, and the caller answers 503.
type Store interface {
	// Authorize decides on one authenticated call in one round trip, in this
	// order: epoch (ErrStaleEpoch, nothing changed), record and jti
	// (*RefusedError), limit (*LimitedError, returned together with the
	// Authorized).
	Authorize(ctx context.Context, a Authorization) (Authorized, error)

	// Device returns a device; ErrNotFound.
	Device(ctx context.Context, issuer, thumbprint string) (Device, error)
	// Enroll stores a device once and returns what is stored, which for a known
	// thumbprint is the existing record. ErrStaleEpoch, *RefusedError, ErrFull.
	Enroll(ctx context.Context, e Enrolment) (Device, error)
	// Devices lists devices by thumbprint, and the key of the next page.
	Devices(ctx context.Context, issuer string, p Page) ([]Device, string, error)
	// Invalidate ends a device key for good; a thumbprint that was never
	// enrolled is recorded as invalidated too. Idempotent: the first time and
	// reason stay.
	Invalidate(ctx context.Context, issuer, thumbprint, reason string, a audit.Entry) (Device, error)

	// PutCredential writes a new credential; ErrExists if the name or the hash
	// is another active credential's.
	PutCredential(ctx context.Context, c Credential, a audit.Entry) error
	// Credential returns a credential by id; ErrNotFound.
	Credential(ctx context.Context, issuer, id string) (Credential, error)
	// Credentials lists credentials by id, and the key of the next page.
	Credentials(ctx context.Context, issuer string, p Page) ([]Credential, string, error)
	// UpdateCredential changes a credential in place; change may refuse. The
	// old hash stops being accepted. ErrNotFound, ErrExists.
	UpdateCredential(ctx context.Context, issuer, id string, change func(*Credential) error, a audit.Entry) (Credential, error)

	// PutEnrollmentToken writes a new token.
	PutEnrollmentToken(ctx context.Context, t EnrollmentToken, a audit.Entry) error
	// EnrollmentTokens lists tokens by id, and the key of the next page.
	EnrollmentTokens(ctx context.Context, issuer string, p Page) ([]EnrollmentToken, string, error)
	// RevokeEnrollmentToken ends a token. Idempotent. ErrNotFound.
	RevokeEnrollmentToken(ctx context.Context, issuer, id string, at time.Time, a audit.Entry) (EnrollmentToken, error)

	// AudiencesRevision changes with every change of any registry, before that
	// change is acknowledged. It costs next to nothing.
	AudiencesRevision() uint64
	// Audiences lists the registry of an issuer by origin.
	Audiences(ctx context.Context, issuer string) ([]Audience, error)
	// SetAudience maps an origin. ErrExists if another origin has the audience;
	// check is called with the registry as it would become and may refuse.
	SetAudience(ctx context.Context, a Audience, check func([]Audience) error, e audit.Entry) error
	// RemoveAudience forgets an origin. ErrNotFound.
	RemoveAudience(ctx context.Context, issuer, origin string, e audit.Entry) error

	// AppendAudit appends an entry that belongs to no other write.
	AppendAudit(ctx context.Context, e audit.Entry) error
	// Audit returns at most size entries after number seq, oldest first. With a
	// *audit.DamagedError it returns those before the damaged one.
	Audit(ctx context.Context, seq uint64, size int) ([]audit.Entry, error)

	// Counts returns how many devices and credentials an issuer has.
	Counts(ctx context.Context, issuer string) (devices, credentials uint64, err error)
	// Now returns the store's clock.
	Now(ctx context.Context) (time.Time, error)
}
