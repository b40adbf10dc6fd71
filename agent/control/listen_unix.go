//go:build unix

package control

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// hasOwners: files have owners here, and sockets their user.
const hasOwners = true

// OwnFile reports a file or folder that belongs to the user of this process.
func OwnFile(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(st.Uid) == int64(os.Geteuid())
}

// refusesConnections reports whether nobody listens on a socket any more.
func refusesConnections(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
