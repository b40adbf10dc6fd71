//go:build unix

package control

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ownFolder refuses a folder that another user can change.
func ownFolder(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is no folder", dir)
	case !ok || int64(st.Uid) != int64(os.Geteuid()):
		return fmt.Errorf("the folder %s is another user's: name a socket in one of your own", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others can write to the folder %s: chmod go-w it, or name a socket in another", dir)
	}
	return nil
}

// refusesConnections reports whether nobody listens on a socket any more.
func refusesConnections(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
