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

	"github.com/go-json-experiment/json"
	"golang.org/x/crypto/chacha20poly1305"
)

// errSecretLost: a secret is missing or does not open (GR-6, GR-10).
var errSecretLost = errors.New("the secret is missing or cannot be opened")

// box seals secrets with XChaCha20-Poly1305 under the profile's key. What a
// secret is for is authenticated with it: a secret moved to another place, or
// asked for under another signer (SG-4), does not open.
type box struct {
	aead     cipher.AEAD
	accounts []byte // key of account bindings (GR-1)
}

// newBox makes the box of a profile's key.
func newBox(master []byte) (*box, error) {
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

// keyCheckPurpose is what the settings' KeyCheck is sealed for.
const keyCheckPurpose = "key-check"

// check makes settings tell later whether a key is this one.
func (b *box) check(s *settings) (err error) {
	s.KeyCheck, err = b.seal(keyCheckPurpose, "ok")
	return err
}

// fits reports whether the settings' secrets are sealed with this key.
func (b *box) fits(s *settings) bool {
	var ok string
	return b.open(keyCheckPurpose, s.KeyCheck, &ok) == nil
}

// current is an error that wraps ErrProfileKey if the profile has another key by
// now: what this process would seal nobody could open, and what it cannot open is
// not lost.
func (b *box) current(tx Tx) error {
	s, err := get[settings](tx, "", settingsID)
	if err != nil {
		return err
	}
	if !b.fits(s) {
		return fmt.Errorf("%w: it was replaced while this program ran: start it again", ErrProfileKey)
	}
	return nil
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
	if err := b.current(tx); err != nil {
		return err
	}
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
	if err := b.open(purpose, sealed, v); err != nil {
		if err := b.current(tx); err != nil { // not lost: ours is the wrong key
			return err
		}
		return err
	}
	return nil
}

// account names an account at a business without saying which (GR-1): the
// plain hash of a subject could be guessed.
func (b *box) account(issuer, subject string) string {
	mac := hmac.New(sha256.New, b.accounts)
	fmt.Fprintf(mac, "%d:%s%s", len(issuer), issuer, subject)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}
