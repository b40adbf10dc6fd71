package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What another user's process listens at is sent nothing, though the socket's file is
// this user's by now. A thread of this process is another user where that can be had.
func TestOthersSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		return // TestCheckSocket tells what is made of a file that is another's
	}
	dir, err := os.MkdirTemp("", "open") // others cannot come into a test's own folder
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	listens, heard, dialled := make(chan error, 1), make(chan error, 1), make(chan struct{})
	errNotHere := errors.New("no thread can be another user here")
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			listens <- errNotHere
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 4))
		}
		if listens <- err; err != nil {
			return
		}
		<-dialled
		conn, _, err := unix.Accept(fd)
		if err == nil {
			defer unix.Close(conn)
			var n int
			if n, err = unix.Read(conn, make([]byte, 100)); n > 0 {
				err = fmt.Errorf("%d bytes came", n)
			}
		}
		heard <- err
	}()
	if err := <-listens; errors.Is(err, errNotHere) {
		return
	} else if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(path, os.Geteuid(), -1), os.Chmod(path, 0o600), os.Chmod(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	c, err := Dial(t.Context(), "unix:"+path, "")
	if err == nil {
		_ = c.Close()
	}
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "another user's process listens there") {
		t.Errorf("dialled: %v", err)
	}
	close(dialled)
	if err := <-heard; err != nil {
		t.Error(err)
	}
}
