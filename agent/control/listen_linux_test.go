package control

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Another user's connection is closed before anything is read of it, though the
// socket's mode let it in. A thread of this process is another user where that can
// be had; elsewhere the mode alone is there to see (TestListenUnix).
func TestOtherUsersAreClosed(t *testing.T) {
	dir, err := os.MkdirTemp("", "open") // others cannot come into a test's own folder
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, open := range []string{dir, path} {
		if err := os.Chmod(open, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	accepted := make(chan net.Conn, 2)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	if os.Geteuid() == 0 {
		others := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				others <- nil // not here
				return
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err == nil {
				defer unix.Close(fd)
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
			}
			if err != nil {
				others <- err
				return
			}
			if n, err := unix.Read(fd, make([]byte, 1)); n != 0 && err == nil {
				t.Error("another user is answered")
			}
			others <- nil
		}()
		if err := <-others; err != nil {
			t.Fatal(err)
		}
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mine := <-accepted
	if _, err := mine.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("the first that is accepted is not this user's: %v", err)
	}
	_ = mine.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if c, more := <-accepted; more {
		t.Errorf("another connection is accepted: %v", c.RemoteAddr())
	}
}
