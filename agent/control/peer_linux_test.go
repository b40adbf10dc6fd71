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

// A token goes to no other user's process: who listens is asked of the kernel first.
func TestListeners(t *testing.T) {
	if !littleEndian {
		return // the tables below are of a machine that is
	}
	tcp := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   1: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65534        0 2 1 0 100 0 0 10 0
   2: 0100007F:1F91 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 3 1 0 100 0 0 10 0
   3: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65534        0 4 1 0 100 0 0 10 0
   4: 0100007F
   5: zz:zz 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65534        0 4 1 0 100 0 0 10 0
`
	tcp6 := `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000    33        0 1 1 0 100 0 0 10 0
   1: 0000000000000000FFFF00000100007F:1F92 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000    34        0 1 1 0 100 0 0 10 0
`
	for _, c := range []struct {
		table, at string
		want      []int
	}{
		{tcp, "127.0.0.1:8080", []int{1000}},
		{tcp, "127.0.0.2:8080", []int{65534}},
		{tcp, "127.0.0.1:8081", []int{65534}},
		{tcp, "127.0.0.1:8082", nil},
		{tcp6, "[::1]:8080", []int{33}},
		{tcp6, "127.0.0.1:8080", nil},
		{tcp6, "127.0.0.1:8082", []int{34}},
		{"", "127.0.0.1:8080", nil},
	} {
		if got := listeners(strings.NewReader(c.table), netip.MustParseAddrPort(c.at)); !slices.Equal(got, c.want) {
			t.Errorf("at %s: users %v, want %v", c.at, got, c.want)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if othersListen(l.Addr().(*net.TCPAddr)) {
		t.Error("what this user listens at is taken for another's")
	}
}

// Where another user's process listens, nothing is sent. A thread of this process is
// another user where that can be had.
func TestOthersPort(t *testing.T) {
	if os.Geteuid() != 0 {
		return // TestListeners tells what is made of the kernel's answer
	}
	port, done := make(chan int), make(chan struct{})
	defer close(done)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			port <- 0 // not here
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err == nil {
			defer unix.Close(fd)
			err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
		}
		if err == nil {
			err = unix.Listen(fd, 1)
		}
		at, _ := unix.Getsockname(fd)
		inet, ok := at.(*unix.SockaddrInet4)
		if err != nil || !ok {
			t.Errorf("listen: %v", err)
			port <- 0
			return
		}
		port <- inet.Port
		<-done
	}()
	at := <-port
	if at == 0 {
		return
	}
	_, err := Dial(t.Context(), fmt.Sprintf("http://127.0.0.1:%d", at), agent.Secret(TokenPrefix+"x"))
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "another user's process listens there") {
		t.Errorf("dialled: %v", err)
	}
}
