package server

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/pactsigner/pactsigner/custody/local"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/signer"
)

// NewAdminToken makes an admin token and the item of the configuration that
// lets it in. The token is a secret and is kept nowhere.
func NewAdminToken(name, role string) (token string, item config.AdminToken, err error) {
	token, hash := signer.NewAdminToken()
	item = config.AdminToken{Name: name, Role: role, Hash: signer.FormatAdminTokenHash(hash)}
	return token, item, item.Validate()
}

// adminTokens are everybody who may call the admin listener; first is the hash of
// the first token, if there is one.
func adminTokens(first string, more []config.AdminToken) ([]signer.AdminToken, error) {
	items := more
	if first != "" {
		items = append([]config.AdminToken{{Name: config.InitialToken, Role: signer.RoleAdmin.String(), Hash: first}}, more...)
	}
	tokens := make([]signer.AdminToken, 0, len(items))
	for _, item := range items {
		role, err := signer.ParseRole(item.Role)
		if err != nil {
			return nil, fmt.Errorf("admin token %s: %w", item.Name, err)
		}
		hash, err := signer.ParseAdminTokenHash(item.Hash)
		if err != nil {
			return nil, fmt.Errorf("admin token %s: %w", item.Name, err)
		}
		tokens = append(tokens, signer.AdminToken{Name: item.Name, Role: role, Hash: hash})
	}
	return tokens, nil
}

func adminTokenFile(cfg config.Config) string { return filepath.Join(cfg.Data, "admin-token") }

// tokenState is what became of the first admin token.
type tokenState int

const (
	tokenKept  tokenState = iota // the file holds it
	tokenMade                    // made just now
	tokenGone                    // the file was removed
	tokenOther                   // the file holds something else
)

// note says what needs attention.
func (t tokenState) note() string {
	const renew = "stop the signer and run `signer init --new-admin-token` with the same --data or --config, which ends the old one"
	switch t {
	case tokenGone:
		return "the admin token's file was removed; the token still works for whoever has it. To make a new one, " + renew
	case tokenOther:
		return "the admin token's file does not hold the current token. To make a new one, " + renew
	}
	return ""
}

// noteShared is the same of a deployment with replicas. They serve on with it, and
// nobody need have the file.
func (t tokenState) noteShared() string {
	if t == tokenGone || t == tokenOther {
		return "the first admin token was made before. To make a new one, which ends the old one, run `signer init --new-admin-token`"
	}
	return ""
}

// ensureAdminToken makes the first admin token if there is none, or if asked
// to. The file is durable before its hash is recorded, so that no crash leaves a
// hash whose token nobody has seen.
func ensureAdminToken(file string, d *deployment, renew bool) (tokenState, error) {
	content, err := os.ReadFile(file)
	there := err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return tokenGone, fmt.Errorf("admin token: %w", err)
	}
	token := string(bytes.TrimSpace(content))
	switch {
	case renew || d.AdminToken == "" && !there:
		token, hash := signer.NewAdminToken()
		if err := writeSecret(file, token+"\n"); err != nil {
			return tokenGone, fmt.Errorf("admin token: %w", err)
		}
		d.AdminToken = signer.FormatAdminTokenHash(hash)
		return tokenMade, nil
	case d.AdminToken == "": // a first start ended between the file and the record
		if !adminTokenForm.MatchString(token) {
			return tokenOther, fmt.Errorf("admin token: %s holds something else; move it away", file)
		}
		if err := os.Chmod(file, 0o600); err != nil {
			return tokenOther, fmt.Errorf("admin token: %w", err)
		}
		d.AdminToken = hashOf(token)
		return tokenMade, nil
	case !there:
		return tokenGone, nil
	case hashOf(token) != d.AdminToken:
		return tokenOther, nil
	}
	return tokenKept, nil
}

// adminTokenForm is that of the tokens that signer.NewAdminToken makes.
var adminTokenForm = regexp.MustCompile(`^pact_admin_[A-Z2-7]{52}$`)

func hashOf(token string) string {
	return signer.FormatAdminTokenHash(sha256.Sum256([]byte(token)))
}

// writeSecret writes a file that only its owner can read, whole or not at all.
func writeSecret(file, content string) error {
	dir := filepath.Dir(file)
	tmp, err := os.CreateTemp(dir, filepath.Base(file)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.WriteString(content)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// readPassphrase reads a passphrase file: its first line, without the line end.
func readPassphrase(file string) (local.Passphrase, error) {
	line, err := readSecret("custody.passphraseFile", file)
	return local.Passphrase(line), err
}
