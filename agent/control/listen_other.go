//go:build !unix

package control

import (
	"errors"
	"net"
)

// ownFolder refuses: who can reach a socket is not known to be its owner alone here.
func ownFolder(string) error {
	return errors.New("this system has no sockets of one user: use --listen and a token")
}

func refusesConnections(error) bool { return false }

func samePeer(*net.UnixConn) bool { return false }
