package local

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
)

const (
	plainIdentity     = "identity.txt"
	encryptedIdentity = "identity.age"
	subjectFile       = "subject.age"
)

// openIdentity reads the folder's identity, or makes it if the folder is new.
func (k *Keyring) openIdentity(opts Options) error {
	passphrase := opts.Passphrase
	plain, encrypted := filepath.Join(k.dir, plainIdentity), filepath.Join(k.dir, encryptedIdentity)
	hasPlain, err := exists(plain)
	if err != nil {
		return err
	}
	hasEncrypted, err := exists(encrypted)
	if err != nil {
		return err
	}
	switch {
	case hasPlain && hasEncrypted:
		return fmt.Errorf("custody/local: %s holds both %s and %s; keep the one that belongs to its keys", k.dir, plainIdentity, encryptedIdentity)
	case hasEncrypted && passphrase == "":
		return fmt.Errorf("custody/local: the keys in %s need a passphrase", k.dir)
	case hasPlain && passphrase != "":
		return fmt.Errorf("custody/local: the keys in %s are under %s, not under a passphrase; open them without one", k.dir, plainIdentity)
	case hasEncrypted:
		return k.readIdentity(encrypted, passphrase)
	case hasPlain:
		return k.readIdentity(plain, "")
	default:
		return k.makeIdentity(opts)
	}
}

func (k *Keyring) readIdentity(path string, passphrase Passphrase) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("custody/local: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("custody/local: others may read %s (mode %04o); make it 0600", path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("custody/local: %w", err)
	}
	if passphrase != "" {
		scrypt, err := age.NewScryptIdentity(string(passphrase))
		if err != nil {
			return fmt.Errorf("custody/local: passphrase: %w", err)
		}
		if text, err = decrypt(text, scrypt); err != nil {
			return fmt.Errorf("custody/local: %s does not open with this passphrase: %w", path, err)
		}
	}
	identity, err := age.ParseX25519Identity(strings.TrimSpace(string(text)))
	if err != nil {
		// The cause could quote the file.
		return fmt.Errorf("custody/local: %s holds no age identity; restore it from a backup", path)
	}
	k.identity, k.recipient = identity, identity.Recipient()
	return nil
}

// makeIdentity makes the subject key and then the identity: a folder with an
// identity is complete. What a crash in between leaves is made anew, for nothing
// was ever derived from it.
func (k *Keyring) makeIdentity(opts Options) error {
	for _, d := range []string{keysDir, documentsDir} {
		entries, err := os.ReadDir(filepath.Join(k.dir, d))
		if err != nil {
			return fmt.Errorf("custody/local: %w", err)
		}
		if len(entries) > 0 {
			return fmt.Errorf("custody/local: %s holds %s but neither %s nor %s to read them; restore it from a backup", k.dir, d, plainIdentity, encryptedIdentity)
		}
	}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return fmt.Errorf("custody/local: %w", err)
	}
	k.identity, k.recipient = identity, identity.Recipient()
	subjectKey := make([]byte, sha256.Size)
	if _, err := rand.Read(subjectKey); err != nil {
		return fmt.Errorf("custody/local: %w", err)
	}
	if err := k.writeSecret(filepath.Join(k.dir, subjectFile), subjectKey); err != nil {
		return fmt.Errorf("custody/local: subject key: %w", err)
	}
	text, name := []byte(identity.String()+"\n"), plainIdentity
	if opts.Passphrase != "" {
		scrypt, err := age.NewScryptRecipient(string(opts.Passphrase))
		if err != nil {
			return fmt.Errorf("custody/local: passphrase: %w", err)
		}
		if opts.workFactor > 0 {
			scrypt.SetWorkFactor(opts.workFactor)
		}
		if text, err = encrypt(text, scrypt); err != nil {
			return fmt.Errorf("custody/local: %w", err)
		}
		name = encryptedIdentity
	}
	return writeFile(filepath.Join(k.dir, name), text)
}

// writeSecret writes a file that only the identity opens.
func (k *Keyring) writeSecret(path string, secret []byte) error {
	sealed, err := encrypt(secret, k.recipient)
	if err != nil {
		return err
	}
	return writeFile(path, sealed)
}

func (k *Keyring) readSecret(path string) ([]byte, error) {
	sealed, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	secret, err := decrypt(sealed, k.identity)
	if err != nil {
		return nil, fmt.Errorf("%s does not open with this folder's identity: %w", path, err)
	}
	return secret, nil
}

func encrypt(plain []byte, to age.Recipient) ([]byte, error) {
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, to)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return sealed.Bytes(), nil
}

func decrypt(sealed []byte, with age.Identity) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(sealed), with)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func exists(path string) (bool, error) {
	switch _, err := os.Stat(path); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	default:
		return false, fmt.Errorf("custody/local: %w", err)
	}
}
