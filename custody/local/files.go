package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pactsigner/pactsigner/custody"
)

const (
	lockFile = "lock"
	// temporary starts the name of a file that is being written; no other file's
	// name starts so, because fileName escapes a leading dot.
	temporary = ".tmp-"
	// maxName bounds an escaped name, so that it fits a file name with its ending.
	maxName = 200
)

// lockFolder takes the folder for this process. The kernel lets go of it when
// the process ends, however it ends.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("custody/local: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("%w: %s", ErrLocked, dir)
		} else {
			err = fmt.Errorf("custody/local: locking %s: %w", dir, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// writeFile replaces a file so that after a crash there is the old one or the
// new one, and when it returns nil the new one is durable.
func writeFile(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, temporary+"*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreMissing(os.Remove(f.Name())))
		}
	}()
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// removeFile removes a file durably; one that is not there is removed.
func removeFile(path string) error {
	if err := ignoreMissing(os.Remove(path)); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeTemporary removes what a killed process was writing.
func removeTemporary(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("custody/local: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), temporary) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("custody/local: %w", err)
			}
		}
	}
	return nil
}

// fileName spells a name with the characters that every file system keeps apart:
// lower-case letters, digits, "-", "_" and inner dots; other bytes become =XX.
func fileName(name string) (string, error) {
	if name == "" {
		return "", fmt.Errorf("%w: a name is required", custody.ErrInvalid)
	}
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_', c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02x", c)
		}
	}
	if b.Len() > maxName {
		return "", fmt.Errorf("%w: the name %.40q… is too long", custody.ErrInvalid, name)
	}
	return b.String(), nil
}
