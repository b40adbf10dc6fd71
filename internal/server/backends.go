package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/local"
	"github.com/pactsigner/pactsigner/custody/vault"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/store/redis"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/rotation"
	"github.com/pactsigner/pactsigner/signer"
)

// keyring is an open custody.
type keyring interface {
	custody.Keyring
	Close() error
}

// records is an open store.
type records interface {
	signer.Store
	signer.StateStore
	killswitch.Store
	rotation.Mirror
	rotation.Fleet
	signer.ActivityStore
	AuditHead(ctx context.Context) (last, written audit.Head, err error)
	Now(ctx context.Context) (time.Time, error)
	Close() error
}

// shared is a store that replicas share. It serves nobody until it is told which
// marker it must bear, and only then if it does.
type shared interface {
	records
	Expect(id string)
	Identity(ctx context.Context) (redis.Identity, error)
	Mark(ctx context.Context, id string) error
	MarkEmpty(ctx context.Context, id string, former ...string) error
	ImportOver(ctx context.Context, id string, next func() (signer.Record, error)) error
	CheckServer(ctx context.Context) error
}

// openKeyring opens custody. A Vault need not be there yet; told learns of its calls,
// if it is not nil.
func openKeyring(cfg config.Config, log *slog.Logger, told vault.Observer) (keyring, error) {
	if cfg.Custody.Kind == "vault" {
		c := VaultConfig(cfg, log)
		c.Observer = told
		k, err := vault.Open(c)
		if err != nil {
			return nil, fmt.Errorf("custody: %w", err)
		}
		return k, nil
	}
	passphrase, err := readPassphrase(cfg.Custody.PassphraseFile)
	if err != nil {
		return nil, err
	}
	k, err := local.Open(cfg.Custody.Dir, local.Options{Passphrase: passphrase})
	if err != nil {
		return nil, fmt.Errorf("custody: %w", err)
	}
	return k, nil
}

// VaultConfig is what a configuration says of Vault.
func VaultConfig(cfg config.Config, log *slog.Logger) vault.Config {
	v := cfg.Custody.Vault
	return vault.Config{
		Addresses: v.Addresses, Namespace: v.Namespace, CAFile: v.CAFile,
		Auth: vault.Auth{
			Method: v.Auth.Method, Mount: v.Auth.Mount, TokenFile: v.Auth.TokenFile,
			RoleIDFile: v.Auth.RoleIDFile, SecretIDFile: v.Auth.SecretIDFile,
			Role: v.Auth.Role, JWTFile: v.Auth.JWTFile,
		},
		Transit: v.Transit, KV: v.KV, Prefix: v.Prefix, Wrapped: v.Wrapped, Log: log,
	}
}

// openShared opens the store that replicas share. It need not be there yet.
func openShared(cfg config.Config, params killswitch.Params, log *slog.Logger) (shared, error) {
	r := cfg.Store.Redis
	o := redis.Options{
		Mode: r.Mode, Addrs: r.Addresses, MasterName: r.MasterName,
		Username: r.Username, SentinelUsername: r.SentinelUsername,
		Prefix: r.Prefix, Acks: r.Acks, Registered: params.Registered, Log: log,
	}
	var err error
	if o.Password, err = readSecret("store.redis.passwordFile", r.PasswordFile); err != nil {
		return nil, err
	}
	if r.PasswordFile != "" {
		o.Credentials = func(context.Context) (user, password string, err error) {
			password, err = readSecret("store.redis.passwordFile", r.PasswordFile)
			return r.Username, password, err
		}
	}
	if o.SentinelPassword, err = readSecret("store.redis.sentinelPasswordFile", r.SentinelPasswordFile); err != nil {
		return nil, err
	}
	if o.TLS, err = redisTLS(r.TLS); err != nil {
		return nil, err
	}
	return redis.Open(o)
}

// redisTLS is how connections to Redis are protected; nil: not at all.
func redisTLS(c config.RedisTLS) (*tls.Config, error) {
	if !c.Enabled {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("store.redis.tls.caFile: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("store.redis.tls.caFile: holds no certificate in PEM")
		}
	}
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("store.redis.tls: certificate: %w", err)
		}
		t.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

// readSecret reads a file that holds one line: a secret.
func readSecret(key, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	line, rest, _ := bytes.Cut(content, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) == 0 || len(bytes.TrimSpace(rest)) > 0 {
		return "", fmt.Errorf("%s: put the secret on one line and nothing else in the file", key)
	}
	return string(line), nil
}
