//go:build unix

package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// mayWrite tells whether this process may read and write a file. It does not open it:
// closing that again would drop the locks that the process holds on the file if it has
// the same store open (POSIX locks are a process's, not a descriptor's).
func mayWrite(path string) error {
	if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	return nil
}
