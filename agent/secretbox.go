package agent

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"golang.org/x/crypto/chacha20poly1305"
)

// ErrProfileKey: the key file of a profile is missing or not the one that its
// secrets were sealed with.
var ErrProfileKey = errors.New("the profile's key does not open its secrets")

// errSecretLost: a secret is missing or does not open (GR-6, GR-10).
var errSecretLost = errors.New("the secret is missing or cannot be opened")

// keyFile is the file, of mode 0600, that holds the profile's key.
const keyFile = "profile.key"

// box seals secrets with XChaCha20-Poly1305 under the profile's key. What a
// secret is for is authenticated with it: a secret moved to another place, or
// asked for under another signer (SG-4), does not open.
type box struct {
	aead     cipher.AEAD
	accounts []byte // key of account bindings (GR-1)
}

// openBox reads the key file of a profile; if there is none it is made, unless
// the profile has secrets already.
func openBox(dir string, fresh bool) (*box, error) {
	path := filepath.Join(dir, keyFile)
	master, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if !fresh {
			return nil, fmt.Errorf("%w: %s is missing: restore it, or start a new profile", ErrProfileKey, path)
		}
		master, err = makeKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("profile key: %w", err)
	}
	if len(master) != chacha20poly1305.KeySize {
		return nil, fmt.Errorf("%w: %s is damaged: restore it, or start a new profile", ErrProfileKey, path)
	}
	sealing, err := hkdf.Key(sha256.New, master, nil, "pact-agent/1 secrets", chacha20poly1305.KeySize)
	if err != nil {
		return nil, fmt.Errorf("profile key: %w", err)
	}
	accounts, err := hkdf.Key(sha256.New, master, nil, "pact-agent/1 accounts", sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("profile key: %w", err)
	}
	aead, err := chacha20poly1305.NewX(sealing)
	if err != nil {
		return nil, fmt.Errorf("profile key: %w", err)
	}
	return &box{aead, accounts}, nil
}

// makeKey writes a new key whole or not at all; if another process was first,
// its key is the one.
func makeKey(path string) ([]byte, error) {
	f, err := os.CreateTemp(filepath.Dir(path), keyFile+".*") // of mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	key := make([]byte, chacha20poly1305.KeySize)
	rand.Read(key)
	_, err = f.Write(key)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		_ = dir.Sync() // some file systems cannot; the link is made all the same
		dir.Close()
	}
	return os.ReadFile(path)
}

// seal encrypts v's JSON for a purpose.
func (b *box) seal(purpose string, v any) ([]byte, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("seal a secret: %w", err)
	}
	nonce := make([]byte, b.aead.NonceSize(), b.aead.NonceSize()+len(plain)+b.aead.Overhead())
	rand.Read(nonce)
	return b.aead.Seal(nonce, nonce, plain, []byte(purpose)), nil
}

// open decrypts what seal made for the same purpose. Errors wrap errSecretLost.
func (b *box) open(purpose string, sealed []byte, v any) error {
	n := b.aead.NonceSize()
	if len(sealed) < n {
		return errSecretLost
	}
	plain, err := b.aead.Open(nil, sealed[:n], sealed[n:], []byte(purpose))
	if err != nil {
		return errSecretLost
	}
	if json.Unmarshal(plain, v) != nil {
		return errSecretLost
	}
	return nil
}

// put seals a secret and stores it under id.
func (b *box) put(tx Tx, id, purpose string, v any) error {
	sealed, err := b.seal(purpose, v)
	if err != nil {
		return err
	}
	return tx.PutSecret(id, sealed)
}

// get reads the secret that put stored. Errors wrap errSecretLost.
func (b *box) get(tx Tx, id, purpose string, v any) error {
	sealed, err := tx.Secret(id)
	if errors.Is(err, ErrNotFound) {
		return errSecretLost
	}
	if err != nil {
		return err
	}
	return b.open(purpose, sealed, v)
}

// account names an account at a business without saying which (GR-1): the
// plain hash of a subject could be guessed.
func (b *box) account(issuer, subject string) string {
	mac := hmac.New(sha256.New, b.accounts)
	fmt.Fprintf(mac, "%d:%s%s", len(issuer), issuer, subject)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}
