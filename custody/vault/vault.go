// Package vault keeps keys and documents in HashiCorp Vault, for a signer that
// runs in several replicas.
//
// # Two modes
//
// In mode transit, the default, private keys never leave Vault: every signature
// is a call to transit/sign, many of them in one batch.
//
// In mode wrapped ([Config.Wrapped]) this process generates the private keys,
// keeps them in Vault's KV store encrypted under a transit key, and signs with
// them in its own memory: ten times as fast, and it goes on while Vault is away.
// The price is that whoever reads this process's memory has the keys. Go can not
// promise to erase what it held: garbage collection copies and frees as it likes,
// so forgetting a key here means to keep no reference, not to overwrite it.
//
// Keys of one mode are not seen by the other. Both keep documents in KV version 2
// and derive subjects with one HMAC key that never leaves Vault.
//
// # Safe use
//
// Prepare Vault with [Bootstrap] (signer vault bootstrap) and keep the backup of
// the subject key: without it, losing Vault means that every caller's subject
// changes. Give the signer the policy that [Policy] renders and nothing else;
// [Check] tells what is missing and what is too much. Two deployments must not
// share a prefix.
//
// Nobody else should write below the prefix. A document that was deleted is not
// taken for one that was never written: calls fail and say how to restore it.
// Only deleting all of its metadata, which the policy forbids the signer, makes
// Vault forget that it existed.
//
// # What it does not do
//
// It does not unseal Vault, renew certificates, or copy keys from one Vault to
// another: replicate or snapshot Vault itself. Whatever Vault does (sealed, in
// standby, slow, restarted, token revoked), calls fail within their deadline with
// custody.ErrUnavailable, and work again afterwards without a restart.
package vault

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
)

// Defaults of [Config].
const (
	DefaultTransit = "transit"
	DefaultKV      = "secret"
	DefaultPrefix  = "pact-signer"
)

// Config says which Vault, how to log in, and where in it keys and documents are.
type Config struct {
	// Addresses of one Vault, tried in turn. https, unless on loopback.
	Addresses []string
	// Namespace is for Vault Enterprise; empty elsewhere.
	Namespace string
	// CAFile holds the PEM certificates that Vault's own must chain to; empty: the
	// system's.
	CAFile string
	// Auth says how to log in.
	Auth Auth
	// Transit and KV are the mounts. Defaults: transit and secret. KV must be
	// version 2.
	Transit, KV string
	// Prefix starts the names of this deployment's keys and documents, so that
	// several deployments may share the mounts. Of two that do, neither prefix may
	// be the other's beginning up to a dash: a rule for a-* is one for a-b-* too.
	// Default: pact-signer.
	Prefix string
	// Wrapped chooses the mode; see the package's documentation.
	Wrapped bool

	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets what an operator should know; nil: nobody does. It never gets a
	// token or a key.
	Log *slog.Logger
	// Observer is told of every call to Vault; nil: nobody is.
	Observer Observer
}

// Auth says how to log in to Vault. Secrets are read from files again at every
// login, so that they can be replaced while the signer runs.
type Auth struct {
	// Method is token, approle or kubernetes.
	Method string
	// Mount of the method, if it is not at the method's own name.
	Mount string
	// TokenFile holds the token (token).
	TokenFile string
	// RoleIDFile and SecretIDFile hold the role's id and a secret id (approle).
	RoleIDFile, SecretIDFile string
	// Role is the role's name (kubernetes).
	Role string
	// JWTFile is the service account's token (kubernetes); default: where
	// Kubernetes mounts it.
	JWTFile string
}

// prefixes are what fits transit's names and one segment of a path.
var prefixes = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// mounts may have several segments.
var mounts = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)

// complete returns the configuration with its defaults, or says what is wrong.
func (c Config) complete() (Config, error) {
	if c.Transit == "" {
		c.Transit = DefaultTransit
	}
	if c.KV == "" {
		c.KV = DefaultKV
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case !prefixes.MatchString(c.Prefix):
		return c, fmt.Errorf("custody/vault: prefix %q: use a-z, 0-9, - and _, at most 63", c.Prefix)
	case !mounts.MatchString(c.Transit):
		return c, fmt.Errorf("custody/vault: transit mount %q: write its path without slashes around it", c.Transit)
	case !mounts.MatchString(c.KV):
		return c, fmt.Errorf("custody/vault: kv mount %q: write its path without slashes around it", c.KV)
	case c.KV == c.Transit:
		return c, errors.New("custody/vault: transit and kv are two mounts")
	}
	return c, nil
}

// The names in transit that are not signing keys.
func (c Config) subjectKey() string { return c.Prefix + "-subject" }
func (c Config) wrapKey() string    { return c.Prefix + "-wrap" }

// Keyring keeps keys and documents in Vault. Make it with [Open].
type Keyring struct {
	client  *client
	closing sync.Once
	// keys is where private keys are used: in Vault, or in this process.
	keys interface {
		Create(ctx context.Context, name string, alg jose.SignatureAlgorithm) (crypto.PublicKey, error)
		Public(ctx context.Context, name string) (crypto.PublicKey, jose.SignatureAlgorithm, error)
		Sign(ctx context.Context, name string, digest []byte) ([]byte, error)
		Disable(ctx context.Context, name string) error
	}
	transit   *transit // MAC in both modes
	wrapped   *wrapped // nil in mode transit
	documents *documents
}

var _ custody.Keyring = (*Keyring)(nil)

// Open makes a keyring. It does not wait for Vault: until that answers and the
// login succeeds, calls fail with custody.ErrUnavailable.
func Open(cfg Config) (*Keyring, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	c, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	mount := &kvMount{path: cfg.KV}
	k := &Keyring{
		client:    c,
		transit:   newTransit(cfg, c, mount),
		documents: &documents{client: c, mount: mount, folder: cfg.Prefix + "/" + documentsFolder},
	}
	k.keys = k.transit
	if cfg.Wrapped {
		k.wrapped = newWrapped(cfg, c, mount)
		k.keys = k.wrapped
	}
	return k, nil
}

// Close ends the login and forgets the keys. Afterwards every call fails.
func (k *Keyring) Close() error {
	k.closing.Do(func() {
		if k.wrapped != nil {
			k.wrapped.close()
		}
		k.transit.close()
		k.client.close()
	})
	return nil
}

// TokenExpires is when the login to Vault ends unless it is renewed; zero: never, or
// there was none yet.
func (k *Keyring) TokenExpires() time.Time { return k.client.tokenExpires() }

// TokenLease is how long that login is good for from its start, or from when it is
// renewed; 0 as with TokenExpires.
func (k *Keyring) TokenLease() time.Duration { return k.client.tokenLease() }

// Create implements [custody.Keyring].
func (k *Keyring) Create(ctx context.Context, name string, alg jose.SignatureAlgorithm) (crypto.PublicKey, error) {
	return k.keys.Create(ctx, name, alg)
}

// Public implements [custody.Keyring].
func (k *Keyring) Public(ctx context.Context, name string) (crypto.PublicKey, jose.SignatureAlgorithm, error) {
	return k.keys.Public(ctx, name)
}

// Sign implements [custody.Keyring].
func (k *Keyring) Sign(ctx context.Context, name string, digest []byte) ([]byte, error) {
	return k.keys.Sign(ctx, name, digest)
}

// Disable implements [custody.Keyring].
func (k *Keyring) Disable(ctx context.Context, name string) error {
	return k.keys.Disable(ctx, name)
}

// MAC implements [custody.Keyring], in Vault in both modes.
func (k *Keyring) MAC(ctx context.Context, message []byte) ([]byte, error) {
	return k.transit.MAC(ctx, message)
}

// SubjectCheck returns a value that tells this subject key from others, and
// nothing else about it.
func (k *Keyring) SubjectCheck(ctx context.Context) (string, error) {
	mac, err := k.transit.MAC(ctx, []byte(checkInput))
	if err != nil {
		return "", err
	}
	return checkValue(mac), nil
}

// Load implements [custody.Keyring].
func (k *Keyring) Load(ctx context.Context, name string) (custody.Document, error) {
	return k.documents.Load(ctx, name)
}

// Swap implements [custody.Keyring].
func (k *Keyring) Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error) {
	return k.documents.Swap(ctx, name, expect, data)
}
