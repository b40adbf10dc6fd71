package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// CheckFiles tells which of the files that a valid configuration names cannot be
// used, each with its key. Those that a login to Vault needs may come later, written
// by an agent beside the signer: they count only if logins is true.
func (c Config) CheckFiles(logins bool) error {
	var v problems
	secret := func(key, file string) {
		if content, err := readIfNamed(file); err != nil {
			v.add(key, "%v", err)
		} else if file != "" && len(content) == 0 {
			v.add(key, "%s is empty", file)
		}
	}
	authority := func(key, file string) {
		if content, err := readIfNamed(file); err != nil {
			v.add(key, "%v", err)
		} else if file != "" && !x509.NewCertPool().AppendCertsFromPEM(content) {
			v.add(key, "%s holds no certificate in PEM", file)
		}
	}
	pair := func(key, cert, keyFile string) {
		if cert == "" {
			return
		}
		if _, err := tls.LoadX509KeyPair(cert, keyFile); err != nil {
			v.add(key, "certFile and keyFile: %v", err)
		}
	}
	for _, l := range []struct {
		key string
		Listener
	}{{"public", c.Listeners.Public}, {"grpc", c.Listeners.GRPC}, {"admin", c.Listeners.Admin}, {"ops", c.Listeners.Ops}} {
		pair("listeners."+l.key, l.CertFile, l.KeyFile)
	}
	if c.Custody.Kind == "vault" {
		vault := c.Custody.Vault
		authority("custody.vault.caFile", vault.CAFile)
		for _, f := range vault.Auth.files() {
			if logins {
				secret("custody.vault.auth."+f[0], f[1])
			}
		}
	} else {
		secret("custody.passphraseFile", c.Custody.PassphraseFile)
	}
	if redis := c.Store.Redis; c.Store.Kind == "redis" {
		secret("store.redis.passwordFile", redis.PasswordFile)
		secret("store.redis.sentinelPasswordFile", redis.SentinelPasswordFile)
		authority("store.redis.tls.caFile", redis.TLS.CAFile)
		pair("store.redis.tls", redis.TLS.CertFile, redis.TLS.KeyFile)
	}
	if c.Tracing.Enabled() {
		authority("tracing.caFile", c.Tracing.CAFile)
		if _, err := c.Tracing.Headers(); err != nil {
			v = append(v, err)
		}
	}
	return errors.Join(v...)
}

// files are the keys and files of a method.
func (a VaultAuth) files() [][2]string {
	switch a.Method {
	case "token":
		return [][2]string{{"tokenFile", a.TokenFile}}
	case "approle":
		return [][2]string{{"roleIdFile", a.RoleIDFile}, {"secretIdFile", a.SecretIDFile}}
	default:
		return [][2]string{{"jwtFile", a.JWTFile}}
	}
}

func readIfNamed(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	return content, nil
}
