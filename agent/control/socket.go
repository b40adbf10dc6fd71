package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

var errNoOwners = errors.New("this system has no sockets of one user: use a loopback address and a token")

// checkSocket refuses a socket that others than this user could have put where it is:
// what is sent to it are the owner's messages.
func checkSocket(path string) error {
	info, err := os.Stat(path)
	switch {
	case !hasOwners:
		return errNoOwners
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w at unix:%s: there is no socket %[2]s: is the agent running? Start it with: pactctl agent serve", ErrUnreachable, path)
	case err != nil:
		return fmt.Errorf("socket %s: %w", path, errors.Unwrap(err))
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is no socket", path)
	case !OwnFile(info):
		return fmt.Errorf("socket %s belongs to another user: nothing is sent to it", path)
	}
	if err := ownFolder(filepath.Dir(path)); err != nil {
		return fmt.Errorf("others than you can put another socket in place of %s: nothing is sent to it: %w", path, err)
	}
	return nil
}

// ownFolder refuses a folder that another user can change.
func ownFolder(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case !hasOwners:
		return errNoOwners
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is no folder", dir)
	case !OwnFile(info):
		return fmt.Errorf("the folder %s is another user's: have the socket in one of your own", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others can write to the folder %s: chmod go-w %[1]s, or have the socket in another", dir)
	}
	return nil
}
