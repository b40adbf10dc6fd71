// Package custody says who holds the private keys.
//
// A Keyring creates keys, gives out public halves, signs digests and keeps the
// small documents that must live as long as the keys do (the key schedule, the
// kill switch's high-water record). Private halves never leave it.
//
// The conformance suite that every implementation passes is in
// custody/custodytest.
package custody

import (
	"context"
	"crypto"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
)

var (
	// ErrNotFound: the keyring has no key or document of that name.
	ErrNotFound = errors.New("custody: not found")
	// ErrConflict: a document's revision is not the expected one. Somebody
	// else swapped it; load it and decide again.
	ErrConflict = errors.New("custody: document was changed by somebody else")
	// ErrDisabled: the key was disabled and will never sign again.
	ErrDisabled = errors.New("custody: key is disabled")
	// ErrMismatch: the keyring has a key of that name for another algorithm.
	ErrMismatch = errors.New("custody: the key exists for another algorithm")
	// ErrInvalid: the call cannot be right, whenever it is made (a digest of the
	// wrong size, an empty name, an algorithm that is neither ES256 nor RS256).
	ErrInvalid = errors.New("custody: invalid argument")
	// ErrUnavailable: the keyring cannot answer now (sealed, closed, out of
	// reach, over its limits). The caller answers 503 and may try again.
	ErrUnavailable = errors.New("custody: unavailable")
	// ErrDeleted: there was a document of that name, and somebody else deleted it. It
	// wraps ErrUnavailable: it may be brought back.
	ErrDeleted = fmt.Errorf("%w: deleted", ErrUnavailable)
)

// Keyring holds one deployment's keys. Safe for concurrent use. Every error
// wraps one of this package's errors or the context's.
type Keyring interface {
	// Create makes the named key, or adopts it if a key of that name and
	// algorithm exists: calling it twice makes one key. alg is ES256 or RS256.
	// ErrMismatch if the name has another algorithm, ErrDisabled if its key is.
	Create(ctx context.Context, name string, alg jose.SignatureAlgorithm) (crypto.PublicKey, error)

	// Public returns the public half of a key and its algorithm. It works for
	// a disabled key too.
	Public(ctx context.Context, name string) (crypto.PublicKey, jose.SignatureAlgorithm, error)

	// Sign signs a SHA-256 digest and returns the signature as JWS wants it
	// (RFC 7518 section 3: R || S of 64 bytes for ES256, PKCS #1 v1.5 for RS256).
	Sign(ctx context.Context, name string, digest []byte) ([]byte, error)

	// Disable makes the named key unable to sign for good. Idempotent.
	Disable(ctx context.Context, name string) error

	// MAC returns HMAC-SHA-256 of message under the subject key, which is made
	// with the keyring and never rotated.
	MAC(ctx context.Context, message []byte) ([]byte, error)

	// Load returns the named document; ErrNotFound if it was never written.
	Load(ctx context.Context, name string) (Document, error)

	// Swap writes the named document if its revision is still expect (0: it
	// does not exist yet) and returns the new revision, which is greater. When
	// Swap returns nil the document is durable.
	Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error)
}

// Document is a stored document and the revision to name in Swap.
type Document struct {
	Revision uint64
	Data     []byte
}
