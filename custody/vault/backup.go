package vault

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"filippo.io/age"
	"filippo.io/age/armor"
)

const (
	backupKind    = "pact-signer-subject-key"
	pendingSuffix = ".pending"
	// maxBackup is far above the size of a backup.
	maxBackup = 1 << 20
)

// subjectBackup is the subject key outside Vault, as it is encrypted.
type subjectBackup struct {
	Format int    `json:"format"`
	Kind   string `json:"kind"`
	Prefix string `json:"prefix"`
	Check  string `json:"check"`
	Key    []byte `json:"key"`
}

// checkInput is what the check value is a MAC of. No subject is derived from it:
// what those are derived from begins with a length.
const checkInput = "pact-subject-check/1"

// checkValue tells subject keys apart and nothing about them. mac is the MAC of
// checkInput.
func checkValue(mac []byte) string {
	sum := sha256.Sum256(mac)
	return hex.EncodeToString(sum[:8])
}

func checkValueOf(key []byte) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(checkInput))
	return checkValue(h.Sum(nil))
}

// writeBackup writes the key's backup to a file beside the one that the operator
// named. It is renamed to that once Vault is known to have the key: so whatever is
// interrupted, the key in Vault has a backup, and no backup is overwritten.
func writeBackup(file, prefix string, key []byte, to []age.Recipient) (pending string, err error) {
	b := subjectBackup{Format: format, Kind: backupKind, Prefix: prefix, Check: checkValueOf(key), Key: key}
	plain, err := json.Marshal(b)
	if err != nil {
		return "", err
	}
	defer clear(plain)
	var text bytes.Buffer
	fmt.Fprintf(&text, `# Backup of the subject key of the PACT signer with prefix %s.
# Without it, losing Vault changes every caller's subject. With it and its age
# identity, anybody can compute them: keep both offline, and apart.
# Restore: signer vault bootstrap --restore-subject-key FILE --identity AGE-IDENTITY-FILE
# By hand: grep -v '^#' FILE | age -d -i AGE-IDENTITY-FILE
# check: %s
`, prefix, b.Check)
	armored := armor.NewWriter(&text)
	w, err := age.Encrypt(armored, to...)
	if err != nil {
		return "", err
	}
	if _, err := w.Write(plain); err != nil {
		return "", err
	}
	if err := errors.Join(w.Close(), armored.Close()); err != nil {
		return "", err
	}
	pending = file + "." + b.Check + pendingSuffix
	return pending, writeNew(pending, text.Bytes())
}

// settleBackup gives the backup with a check value the name that the operator
// wants, and reports whether there is one. It overwrites nothing: a link fails if
// there is a file.
func settleBackup(file, check string) (bool, error) {
	pending := file + "." + check + pendingSuffix
	linkErr := os.Link(pending, file)
	if linkErr != nil && !errors.Is(linkErr, fs.ErrExist) && !errors.Is(linkErr, fs.ErrNotExist) {
		return false, linkErr
	}
	text, err := readLimited(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	match := checkLine.FindSubmatch(text)
	switch {
	case match == nil:
		return false, fmt.Errorf("%s is no backup of a subject key: name another file", file)
	case string(match[1]) != check:
		return false, fmt.Errorf("%s is the backup of another subject key (check value %s, Vault's has %s): name another file", file, match[1], check)
	}
	kept, err := readLimited(pending)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if !bytes.Equal(kept, text) {
		return false, fmt.Errorf("%s should be what %s is, and is not: move it away", file, pending)
	}
	if err := os.Remove(pending); err != nil {
		return false, err
	}
	return true, syncDir(filepath.Dir(file))
}

// unsettledBackups lists what interrupted attempts left beside a backup's file.
func unsettledBackups(file string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	var left []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(file)+".") && strings.HasSuffix(e.Name(), pendingSuffix) {
			left = append(left, filepath.Join(filepath.Dir(file), e.Name()))
		}
	}
	return left, nil
}

// checkLine tells a backup's check value in clear.
var checkLine = regexp.MustCompile(`(?m)^# check: ([0-9a-f]{16})$`)

// readBackup decrypts a backup and checks that it is what it says.
func readBackup(file, prefix string, with []age.Identity) ([]byte, error) {
	text, err := readLimited(file)
	if err != nil {
		return nil, err
	}
	var armored bytes.Buffer
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("#")) {
			armored.Write(line)
		}
	}
	r, err := age.Decrypt(armor.NewReader(&armored), with...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxBackup))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer clear(plain)
	var b subjectBackup
	if err := json.Unmarshal(plain, &b); err != nil || b.Kind != backupKind || b.Format != format {
		// The cause could quote the key.
		return nil, fmt.Errorf("%s holds no backup of a subject key that this version reads", file)
	}
	switch {
	case len(b.Key) != sha256.Size || checkValueOf(b.Key) != b.Check:
		return nil, fmt.Errorf("%s is damaged: its key has another check value", file)
	case b.Prefix != prefix:
		return nil, fmt.Errorf("%s is the backup for prefix %s, not %s", file, b.Prefix, prefix)
	}
	return b.Key, nil
}

// writeNew makes a file of mode 0600, durably. It overwrites none.
func writeNew(file string, data []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(file))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func readLimited(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxBackup))
}
