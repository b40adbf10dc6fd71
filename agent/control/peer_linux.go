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

// othersListen reports whether another user's process, and not root's, listens where a
// connection on loopback leads: a token sent there would be theirs. What the kernel does not tell
// here is not known to be another's.
func othersListen(at *net.TCPAddr) bool {
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		users := listeners(f, at.AddrPort())
		_ = f.Close()
		if slices.ContainsFunc(users, func(uid int) bool { return uid != os.Geteuid() && uid != 0 }) {
			return true
		}
	}
	return false
}

// listeners are the users of the sockets in a table of the kernel's that listen at an
// address, or at all of the machine's.
func listeners(table io.Reader, at netip.AddrPort) (users []int) {
	const local, state, uid, listen = 1, 3, 7, "0A"
	for lines := bufio.NewScanner(table); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) <= uid || fields[state] != listen {
			continue
		}
		ip, port, _ := strings.Cut(fields[local], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		if err != nil || uint16(n) != at.Port() {
			continue
		}
		user, err := strconv.Atoi(fields[uid])
		if a, ok := kernelAddr(ip); err == nil && ok && (a.IsUnspecified() || a == at.Addr().Unmap()) {
			users = append(users, user)
		}
	}
	return users
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
