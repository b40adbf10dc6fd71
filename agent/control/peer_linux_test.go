package control

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pactsigner/pactsigner/agent"
)

// A token goes to no other user's process: who has the other end of the connection is
// asked of the kernel first.
func TestPeers(t *testing.T) {
	if !littleEndian {
		return // the tables below are of a machine that is
	}
	tcp := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   1: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65534        0 2 1 0 100 0 0 10 0
   2: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65534        0 4 1 0 100 0 0 10 0
   3: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000    40        0 2 1 0 100 0 0 10 0
   4: 0100007F:1F91 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 3 1 0 100 0 0 10 0
   5: 0100007F:9C40 0100007F:1F91 01 00000000:00000000 00:00000000 00000000    50        0 3 1 0 100 0 0 10 0
   6: 0100007F:1F91 0100007F:9C41 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0 100 0 0 10 0
   7: 0100007F:1F93 0100007F:9C40 05 00000000:00000000 00:00000000 00000000    60        0 9 1 0 100 0 0 10 0
   8: 0100007F:1F93 0100007F:9C41 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0 100 0 0 10 0
   9: 0100007F
  10: zz:zz 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65534        0 4 1 0 100 0 0 10 0
`
	tcp6 := `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:1F95 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000    33        0 1 1 0 100 0 0 10 0
   1: 0000000000000000FFFF00000100007F:1F92 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000    34        0 1 1 0 100 0 0 10 0
   2: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000    35        0 1 1 0 100 0 0 10 0
   3: 00000000000000000000000000000000:1F94 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000    36        0 1 1 0 100 0 0 10 0
   4: 0000000000000000FFFF00000100007F:1F94 0000000000000000FFFF00000100007F:9C40 01 00000000:00000000 00:00000000 00000000    37        0 1 1 0 100 0 0 10 0
`
	const here = "127.0.0.1:40000"
	for _, c := range []struct {
		here, there string
		want        []int
	}{
		{here, "127.0.0.1:8080", []int{1000}}, // whoever else listens at all addresses
		{here, "127.0.0.2:8080", []int{65534}},
		{here, "127.0.0.1:8081", []int{1000}},               // accepted
		{"127.0.0.1:40001", "127.0.0.1:8081", []int{65534}}, // not yet
		{"127.0.0.1:40002", "127.0.0.1:8081", []int{65534}},
		{here, "127.0.0.1:8082", []int{34}},
		{here, "127.0.0.1:8083", []int{60}}, // accepted, and no listener any more
		{"127.0.0.1:40001", "127.0.0.1:8083", nil},
		{here, "127.0.0.1:8084", []int{37}},
		{"127.0.0.1:40001", "127.0.0.1:8084", []int{36}},
		{"[::1]:40000", "[::1]:8085", []int{33}},
		{"[::1]:40000", "[::1]:8080", []int{35}},
		{"[::1]:40000", "[::1]:8081", nil}, // 0.0.0.0 is of the other family
		{here, "127.0.0.1:8086", nil},
	} {
		var p peers
		for _, table := range []string{tcp, tcp6} {
			p.read(strings.NewReader(table), netip.MustParseAddrPort(c.here), netip.MustParseAddrPort(c.there))
		}
		if got := p.users(); !slices.Equal(got, c.want) {
			t.Errorf("from %s to %s: users %v, want %v", c.here, c.there, got, c.want)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if othersListen(nc) {
		t.Error("what this user listens at is taken for another's")
	}
}

// Where another user's process listens, or has accepted the connection and listens no
// more, nothing is sent. A thread of this process is
// another user where that can be had.
func TestOthersPort(t *testing.T) {
	if os.Geteuid() != 0 {
		return // TestPeers tells what is made of the kernel's answer
	}
	port, accept, accepted, done := make(chan int), make(chan struct{}), make(chan error, 1), make(chan struct{})
	defer close(done)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			port <- 0 // not here
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
		}
		if err == nil {
			err = unix.Listen(fd, 4)
		}
		at, _ := unix.Getsockname(fd)
		inet, ok := at.(*unix.SockaddrInet4)
		if err != nil || !ok {
			t.Errorf("listen: %v", err)
			port <- 0
			return
		}
		port <- inet.Port
		<-accept
		var conns []int
		for range 2 { // of the first nobody hears any more
			var nfd int
			if nfd, _, err = unix.Accept(fd); err != nil {
				break
			}
			conns = append(conns, nfd)
		}
		accepted <- errors.Join(err, unix.Close(fd))
		<-done
		for _, nfd := range conns {
			_ = unix.Close(nfd)
		}
	}()
	at := <-port
	if at == 0 {
		return
	}
	_, err := Dial(t.Context(), fmt.Sprintf("http://127.0.0.1:%d", at), agent.Secret(TokenPrefix+"x"))
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "another user's process listens there") {
		t.Errorf("dialled: %v", err)
	}
	nc, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", at))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if !othersListen(nc) {
		t.Error("before it is accepted it is not another's")
	}
	close(accept)
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if !othersListen(nc) {
		t.Error("once nobody listens any more it is not another's")
	}
}
