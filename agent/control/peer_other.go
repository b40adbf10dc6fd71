//go:build !linux

package control

import "net"

// othersListen cannot tell here.
func othersListen(*net.TCPAddr) bool { return false }
