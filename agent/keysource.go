package agent

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/zalando/go-keyring"
	"golang.org/x/crypto/chacha20poly1305"
)

// KeySource says where the key of a new profile is kept; a profile that exists
// keeps to what it recorded.
type KeySource string

// The sources.
const (
	// KeyAuto is the operating system's keyring where there is one, else a key file.
	KeyAuto KeySource = ""
	// KeyFile is a file in the profile's folder, of mode 0600. The keyring is never
	// asked, not even for a profile whose key is there.
	KeyFile KeySource = "file"
	// KeyKeyring is the keyring alone: without one there is no profile, and one
	// whose key is in a file is not opened.
	KeyKeyring KeySource = "keyring"
)

// ErrProfileKey: the profile's key cannot be had now, or is not safe where it is.
// Nothing is lost; the text says what to do. (A key that is really gone is no
// error: see StatusView.KeyLost.)
var ErrProfileKey = errors.New("the profile's key cannot be used")

// errKeyAbsent: there is no key where it was.
var errKeyAbsent = errors.New("the profile's key is missing")

// errKeyringSilent: the keyring did not answer in time.
var errKeyringSilent = errors.New("it does not answer; perhaps it is locked")

const (
	// keyFile is the file that holds the profile's key, if no keyring does.
	keyFile = "profile.key"
	// keyringService is what the keyring files our keys under, by account.
	keyringService = "pactsigner-agent"
	// keyringTimeout bounds each call: a locked keyring asks the person, and who
	// runs a command may not be there. It is the keyring's pace, so no scale changes it.
	keyringTimeout = 5 * time.Second
)

// readKey reads the key from where the settings say that it is. Errors wrap
// errKeyAbsent or ErrProfileKey.
func readKey(dir string, s *settings) ([]byte, error) {
	if s.KeySource == KeyKeyring {
		return keyringGet(s.KeyAccount)
	}
	return readKeyFile(filepath.Join(dir, keyFile))
}

func readKeyFile(path string) ([]byte, error) {
	info, err := os.Stat(path) // before it is opened: a pipe would wait
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errKeyAbsent
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProfileKey, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no regular file: put the key's file back in its place", ErrProfileKey, path)
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errKeyAbsent
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProfileKey, err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProfileKey, err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("%w: %s has mode %04o, so others than you can use it: chmod 600 %[2]s", ErrProfileKey, path, mode)
	}
	key, err := io.ReadAll(io.LimitReader(f, chacha20poly1305.KeySize+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProfileKey, err)
	}
	if len(key) != chacha20poly1305.KeySize {
		return nil, fmt.Errorf("%w: %s is damaged: restore it; or delete it, and with it all sign-ins and permissions of the profile", ErrProfileKey, path)
	}
	return key, nil
}

// makeKeyFile writes a new key whole or not at all; if another process was first,
// its key is the one.
func makeKeyFile(path string) ([]byte, error) {
	f, err := os.CreateTemp(filepath.Dir(path), keyFile+".*") // of mode 0600
	if err != nil {
		return nil, fmt.Errorf("profile key: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(newKey())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, fmt.Errorf("profile key: %w", err)
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("profile key: %w", err)
	}
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		_ = dir.Sync() // some file systems cannot; the link is made all the same
		dir.Close()
	}
	return readKeyFile(path)
}

func newKey() []byte {
	key := make([]byte, chacha20poly1305.KeySize)
	rand.Read(key)
	return key
}

// keyringHere reports whether there can be a keyring. Without a bus of the
// session the library would start one, which nobody asked for.
func keyringHere() bool {
	switch runtime.GOOS {
	case "darwin", "windows":
		return true
	}
	if bus := os.Getenv("DBUS_SESSION_BUS_ADDRESS"); bus != "" {
		return !strings.HasPrefix(bus, "autolaunch:")
	}
	// Where the library looks, whatever XDG_RUNTIME_DIR says.
	info, err := os.Stat(fmt.Sprintf("/run/user/%d/bus", os.Getuid()))
	return err == nil && info.Mode()&fs.ModeSocket != 0
}

// keyringSet keeps a key under an account and reads it again: a keyring that
// does not give back what it took is none. Errors wrap ErrProfileKey.
func keyringSet(account string, key []byte) error {
	if !keyringHere() {
		return fmt.Errorf("%w: there is no keyring here, for there is no session bus", ErrProfileKey)
	}
	text := base64.StdEncoding.EncodeToString(key)
	got, err := bounded(func() (string, error) {
		if err := keyring.Set(keyringService, account, text); err != nil {
			return "", err
		}
		return keyring.Get(keyringService, account)
	})
	if err == nil && got != text {
		err = errors.New("it gives back something else than it was given")
	}
	if err != nil {
		keyringDelete(account) // it may have taken it all the same
		return fmt.Errorf("%w: the keyring: %w", ErrProfileKey, err)
	}
	return nil
}

// keyringGet is the key of an account. Errors wrap errKeyAbsent or ErrProfileKey.
func keyringGet(account string) ([]byte, error) {
	const fix = "unlock the keyring, or run this in the desktop session that it belongs to"
	if !keyringHere() {
		return nil, fmt.Errorf("%w: it is in the keyring, and there is no session bus to reach one by: %s", ErrProfileKey, fix)
	}
	text, err := bounded(func() (string, error) { return keyring.Get(keyringService, account) })
	if errors.Is(err, keyring.ErrNotFound) {
		return nil, errKeyAbsent
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the keyring: %w: %s", ErrProfileKey, err, fix)
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != chacha20poly1305.KeySize {
		return nil, fmt.Errorf("%w: the keyring's entry %s of %s is damaged: restore it; or delete it, and with it all sign-ins and permissions of the profile", ErrProfileKey, account, keyringService)
	}
	return key, nil
}

// keyringDelete removes an entry that nothing was sealed with; if that fails it
// stays, and opens nothing.
func keyringDelete(account string) {
	_, _ = bounded(func() (string, error) { return "", keyring.Delete(keyringService, account) })
}

// bounded ends a call that does not come back. The call itself goes on; nothing
// waits for it.
func bounded(call func() (string, error)) (string, error) {
	type answer struct {
		text string
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		text, err := call()
		done <- answer{text, err}
	}()
	t := time.NewTimer(keyringTimeout)
	defer t.Stop()
	select {
	case a := <-done:
		return a.text, a.err
	case <-t.C:
		return "", errKeyringSilent
	}
}
