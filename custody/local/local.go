// Package local keeps keys in a folder, encrypted at rest with age: the custody
// of a signer that runs alone.
//
//	identity.txt or identity.age   what everything else is encrypted to: an age
//	                               identity, as a file of mode 0600, or encrypted
//	                               under a passphrase
//	subject.age                    the subject key
//	keys/NAME.json, keys/NAME.age  a key's public and private half; a disabled
//	                               key has no private half
//	documents/NAME.json            a document: a line with its revision and
//	                               checksum, then its bytes (not secret)
//	lock                           held while a process has the folder open
//
// Every file is written whole to a temporary name, synced and renamed, so that a
// crash leaves the old file or the new one. Whoever can read identity.txt and the
// folder has the keys: encryption protects backups and stolen disks, not a host
// that is taken over. A removed private half is erased as far as the file system
// erases.
//
// Losing the folder loses the keys and, with the subject key, every subject. Back
// it up whole.
package local

import (
	"context"
	"crypto"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"filippo.io/age"

	"github.com/pactsigner/pactsigner/custody"
)

// ErrLocked: another process has the folder open.
var ErrLocked = errors.New("custody/local: the folder is in use by another process")

// Options say how a folder is opened. The zero value keeps the identity in a
// file of mode 0600 beside the keys.
type Options struct {
	// Passphrase, if set, encrypts the identity. A folder keeps the form that it
	// was made with: opening it in the other one is an error.
	Passphrase Passphrase

	// workFactor is the logarithm of scrypt's cost; zero leaves it to age. Tests
	// have no time for that.
	workFactor int
}

// Passphrase is a secret that prints as "[redacted]".
type Passphrase string

// String hides the passphrase.
func (Passphrase) String() string { return "[redacted]" }

// GoString hides the passphrase.
func (Passphrase) GoString() string { return "[redacted]" }

// Format hides the passphrase for every verb.
func (Passphrase) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[redacted]")) }

// MarshalText hides the passphrase from JSON and structured logs.
func (Passphrase) MarshalText() ([]byte, error) { return []byte("[redacted]"), nil }

// Keyring is an open folder. Safe for concurrent use.
type Keyring struct {
	dir        string
	lock       *os.File
	identity   age.Identity
	recipient  age.Recipient
	subjectKey []byte

	creating sync.Mutex // held while a key is made
	swapping sync.Mutex // held while a document is compared and written

	mu     sync.RWMutex // guards what follows
	keys   map[string]*key
	closed bool
}

// key is a key that is loaded. Signing holds mu for reading, so that when
// disabling returns no signature is on its way.
type key struct {
	record
	public crypto.PublicKey

	mu     sync.RWMutex
	signer crypto.Signer // nil: disabled
}

var _ custody.Keyring = (*Keyring)(nil)

// Open opens the folder, making it and its identity the first time. It refuses a
// folder that another process has open (ErrLocked), an identity file that others
// may read, and a folder that holds keys but not the identity to read them.
func Open(dir string, opts Options) (*Keyring, error) {
	for _, d := range []string{dir, filepath.Join(dir, keysDir), filepath.Join(dir, documentsDir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("custody/local: %w", err)
		}
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	k := &Keyring{dir: dir, lock: lock, keys: map[string]*key{}}
	if err := k.open(opts); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return k, nil
}

func (k *Keyring) open(opts Options) error {
	for _, d := range []string{k.dir, filepath.Join(k.dir, keysDir), filepath.Join(k.dir, documentsDir)} {
		if err := removeTemporary(d); err != nil {
			return err
		}
	}
	if err := k.openIdentity(opts); err != nil {
		return err
	}
	var err error
	if k.subjectKey, err = k.readSecret(filepath.Join(k.dir, subjectFile)); err != nil {
		return fmt.Errorf("custody/local: subject key: %w", err)
	}
	if len(k.subjectKey) != sha256.Size {
		return fmt.Errorf("custody/local: subject key: %s is damaged; restore it from a backup", subjectFile)
	}
	return k.finishDisabling()
}

// Close forgets the keys and lets another process open the folder. Afterwards
// every call fails with custody.ErrUnavailable.
func (k *Keyring) Close() error {
	// Whatever is being written is finished first.
	k.creating.Lock()
	defer k.creating.Unlock()
	k.swapping.Lock()
	defer k.swapping.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil
	}
	k.closed = true
	clear(k.keys)
	clear(k.subjectKey)
	if err := k.lock.Close(); err != nil {
		return fmt.Errorf("custody/local: %w", err)
	}
	return nil
}

// MAC implements [custody.Keyring].
func (k *Keyring) MAC(ctx context.Context, message []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("custody/local: %w", err)
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.closed {
		return nil, errClosed
	}
	h := hmac.New(sha256.New, k.subjectKey)
	h.Write(message)
	return h.Sum(nil), nil
}

var errClosed = fmt.Errorf("%w: the folder is closed", custody.ErrUnavailable)

// usable tells whether a call may go on.
func (k *Keyring) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("custody/local: %w", err)
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.closed {
		return errClosed
	}
	return nil
}

// unavailable marks an error of the file system or of a damaged file.
func unavailable(err error) error {
	return fmt.Errorf("%w: %w", custody.ErrUnavailable, err)
}
