package control

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// othersListen reports whether another user's process, and not root's, is at the other
// end of a connection on loopback: a token sent there would be theirs. What the kernel
// does not tell here is not known to be another's.
func othersListen(nc net.Conn) bool {
	here, ok := nc.LocalAddr().(*net.TCPAddr)
	there, too := nc.RemoteAddr().(*net.TCPAddr)
	if !ok || !too {
		return false
	}
	var p peers
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		p.read(f, here.AddrPort(), there.AddrPort())
		_ = f.Close()
	}
	return slices.ContainsFunc(p.users(), func(uid int) bool { return uid != os.Geteuid() && uid != 0 })
}

// peers are the users of the sockets at the other end of a connection.
type peers struct {
	accepted []int // that is the connection: its listener may be gone
	exact    []int // that listen at the address
	all      []int // that listen at all addresses of the machine
}

// users are those that the connection is with: who has accepted it, else who may.
func (p peers) users() []int {
	switch {
	case p.accepted != nil:
		return p.accepted
	case p.exact != nil:
		return p.exact
	}
	return p.all
}

// read reads a table of the kernel's for a connection from here to there. Listeners come
// first in it: a connection that nobody has accepted by then had its listener there.
func (p *peers) read(table io.Reader, here, there netip.AddrPort) {
	const local, remote, state, uid, inode, listen = 1, 2, 3, 7, 9, "0A"
	there, here = netip.AddrPortFrom(there.Addr().Unmap(), there.Port()), netip.AddrPortFrom(here.Addr().Unmap(), here.Port())
	for lines := bufio.NewScanner(table); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) <= inode {
			continue
		}
		at, ok := kernelAddrPort(fields[local])
		user, err := strconv.Atoi(fields[uid])
		if !ok || err != nil || at.Port() != there.Port() {
			continue
		}
		a := at.Addr()
		switch from, ok := kernelAddrPort(fields[remote]); {
		case fields[state] == listen && a == there.Addr():
			p.exact = append(p.exact, user)
		case fields[state] == listen && a.IsUnspecified() && (a.Is6() || there.Addr().Is4()):
			p.all = append(p.all, user)
		case fields[state] != listen && at == there && ok && from == here && fields[inode] != "0": // else nobody has it yet, or any more
			p.accepted = append(p.accepted, user)
		}
	}
}

// kernelAddrPort reads an address with its port.
func kernelAddrPort(text string) (netip.AddrPort, bool) {
	ip, port, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	a, ok := kernelAddr(ip)
	return netip.AddrPortFrom(a, uint16(n)), ok && err == nil
}

// kernelAddr reads an address as those tables have it: words of four bytes, each in
// the machine's order.
func kernelAddr(text string) (netip.Addr, bool) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw)%4 != 0 {
		return netip.Addr{}, false
	}
	if littleEndian {
		for word := range slices.Chunk(raw, 4) {
			slices.Reverse(word)
		}
	}
	a, ok := netip.AddrFromSlice(raw)
	return a.Unmap(), ok
}

// littleEndian is the machine's order of bytes.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1
