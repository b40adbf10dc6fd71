package control

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// samePeer reports whether a connection is this user's, as the kernel has it.
func samePeer(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	same := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		same = err == nil && int64(cred.Uid) == int64(os.Geteuid())
	})
	return err == nil && same
}
