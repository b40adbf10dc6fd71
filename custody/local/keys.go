package local

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/custody"
)

const keysDir = "keys"

// format is the newest file format that this code knows; a file says in
// minReader what it takes to read it.
const format = 1

// record is the public half of a key as stored in keys/NAME.json.
type record struct {
	Format    int                     `json:"format"`
	MinReader int                     `json:"minReader"`
	Algorithm jose.SignatureAlgorithm `json:"alg"`
	Public    []byte                  `json:"public"` // PKIX
	Disabled  bool                    `json:"disabled,omitzero"`
}

// Create implements [custody.Keyring]. The private half is written first: a key
// that a crash left without its public half is adopted by the next Create.
func (k *Keyring) Create(ctx context.Context, name string, alg jose.SignatureAlgorithm) (crypto.PublicKey, error) {
	k.creating.Lock()
	defer k.creating.Unlock()
	switch e, err := k.key(ctx, name); {
	case err == nil:
		e.mu.RLock()
		defer e.mu.RUnlock()
		switch {
		case e.Algorithm != alg:
			return nil, fmt.Errorf("%w: key %s is for %s", custody.ErrMismatch, name, e.Algorithm)
		case e.signer == nil:
			return nil, fmt.Errorf("%w: %s", custody.ErrDisabled, name)
		default:
			return e.public, nil
		}
	case !errors.Is(err, custody.ErrNotFound):
		return nil, err
	}

	privatePath, publicPath, err := k.keyPaths(name)
	if err != nil {
		return nil, err
	}
	signer, err := k.readPrivate(privatePath)
	if errors.Is(err, fs.ErrNotExist) {
		signer, err = k.makePrivate(privatePath, alg)
	}
	if err != nil {
		return nil, fmt.Errorf("custody/local: key %s: %w", name, err)
	}
	if got := algorithmOf(signer); got != alg {
		return nil, fmt.Errorf("%w: key %s is for %s", custody.ErrMismatch, name, got)
	}
	public, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return nil, unavailable(err)
	}
	e := &key{
		record: record{Format: format, MinReader: format, Algorithm: alg, Public: public},
		public: signer.Public(),
		signer: signer,
	}
	if err := writeRecord(publicPath, e.record); err != nil {
		return nil, err
	}
	if _, err := k.remember(name, e); err != nil {
		return nil, err
	}
	return e.public, nil
}

// Public implements [custody.Keyring].
func (k *Keyring) Public(ctx context.Context, name string) (crypto.PublicKey, jose.SignatureAlgorithm, error) {
	e, err := k.key(ctx, name)
	if err != nil {
		return nil, "", err
	}
	return e.public, e.Algorithm, nil
}

// Sign implements [custody.Keyring].
func (k *Keyring) Sign(ctx context.Context, name string, digest []byte) ([]byte, error) {
	e, err := k.key(ctx, name)
	if err != nil {
		return nil, err
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.signer == nil {
		return nil, fmt.Errorf("%w: %s", custody.ErrDisabled, name)
	}
	return custody.SignDigest(e.signer, digest)
}

// Disable implements [custody.Keyring]: the key is marked, then its private half
// removed. A crash in between is finished by the next Open.
func (k *Keyring) Disable(ctx context.Context, name string) error {
	k.creating.Lock()
	defer k.creating.Unlock()
	e, err := k.key(ctx, name)
	if err != nil {
		return err
	}
	privatePath, publicPath, err := k.keyPaths(name)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.signer = nil // whatever happens next, this process signs no more with it
	r := e.record
	r.Disabled = true
	if err := writeRecord(publicPath, r); err != nil {
		return err
	}
	if err := removeFile(privatePath); err != nil {
		return unavailable(err)
	}
	return nil
}

// key returns a key, loading it the first time.
func (k *Keyring) key(ctx context.Context, name string) (*key, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("custody/local: %w", err)
	}
	k.mu.RLock()
	e, closed := k.keys[name], k.closed
	k.mu.RUnlock()
	switch {
	case closed:
		return nil, errClosed
	case e != nil:
		return e, nil
	}
	e, err := k.load(name)
	if err != nil {
		return nil, err
	}
	return k.remember(name, e)
}

// remember keeps a key for later calls, and returns the one that is kept already
// if another call was faster: a key's state has one place.
func (k *Keyring) remember(name string, e *key) (*key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, errClosed
	}
	if kept := k.keys[name]; kept != nil {
		return kept, nil
	}
	k.keys[name] = e
	return e, nil
}

func (k *Keyring) load(name string) (*key, error) {
	privatePath, publicPath, err := k.keyPaths(name)
	if err != nil {
		return nil, err
	}
	e := &key{}
	if e.record, err = readRecord(publicPath); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: key %s", custody.ErrNotFound, name)
		}
		return nil, unavailable(err)
	}
	if e.public, err = x509.ParsePKIXPublicKey(e.Public); err != nil {
		return nil, unavailable(fmt.Errorf("key %s: %w", name, err))
	}
	if e.Disabled {
		return e, nil
	}
	if e.signer, err = k.readPrivate(privatePath); err != nil {
		return nil, unavailable(fmt.Errorf("key %s: %w", name, err))
	}
	public, ok := e.public.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(e.signer.Public()) || algorithmOf(e.signer) != e.Algorithm {
		return nil, unavailable(fmt.Errorf("key %s: its private and public halves do not belong together", name))
	}
	return e, nil
}

func (k *Keyring) makePrivate(path string, alg jose.SignatureAlgorithm) (crypto.Signer, error) {
	signer, err := custody.GenerateKey(alg)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return nil, unavailable(err)
	}
	defer clear(der)
	if err := k.writeSecret(path, der); err != nil {
		return nil, unavailable(err)
	}
	return signer, nil
}

func (k *Keyring) readPrivate(path string) (crypto.Signer, error) {
	der, err := k.readSecret(path)
	if err != nil {
		return nil, unavailable(err)
	}
	defer clear(der)
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, unavailable(errors.New("the private half is damaged"))
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok || algorithmOf(signer) == "" {
		return nil, unavailable(errors.New("the private half is of an unknown kind"))
	}
	return signer, nil
}

func algorithmOf(signer crypto.Signer) jose.SignatureAlgorithm {
	switch signer.(type) {
	case *ecdsa.PrivateKey:
		return jose.ES256
	case *rsa.PrivateKey:
		return jose.RS256
	default:
		return ""
	}
}

// finishDisabling removes the private halves that a crash left beside the mark.
func (k *Keyring) finishDisabling() error {
	entries, err := os.ReadDir(filepath.Join(k.dir, keysDir))
	if err != nil {
		return fmt.Errorf("custody/local: %w", err)
	}
	for _, entry := range entries {
		base, isPrivate := strings.CutSuffix(entry.Name(), ".age")
		if !isPrivate {
			continue
		}
		path := filepath.Join(k.dir, keysDir, base)
		r, err := readRecord(path + ".json")
		switch {
		case errors.Is(err, fs.ErrNotExist): // Create was interrupted; adopted later
		case err != nil:
			return fmt.Errorf("custody/local: %w", err)
		case r.Disabled:
			if err := removeFile(path + ".age"); err != nil {
				return fmt.Errorf("custody/local: %w", err)
			}
		}
	}
	return nil
}

func (k *Keyring) keyPaths(name string) (private, public string, err error) {
	base, err := fileName(name)
	if err != nil {
		return "", "", err
	}
	path := filepath.Join(k.dir, keysDir, base)
	return path + ".age", path + ".json", nil
}

func writeRecord(path string, r record) error {
	text, err := json.Marshal(r, jsontext.Multiline(true))
	if err != nil {
		return unavailable(err)
	}
	if err := writeFile(path, append(text, '\n')); err != nil {
		return unavailable(err)
	}
	return nil
}

func readRecord(path string) (record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, fmt.Errorf("%s is damaged: %w", path, err)
	}
	if r.MinReader > format {
		return record{}, fmt.Errorf("%s was written by a newer version (format %d, this one reads %d)", path, r.MinReader, format)
	}
	return r, nil
}
