package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A file that may be read and not written is refused as the store is opened.
func TestOpenRefusesWhatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o444); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if os.Geteuid() == 0 { // who may write everything: this thread, which ends here, is somebody else
			runtime.LockOSThread()
			const nobody = 65534
			if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
				t.Error(errno)
				return
			}
		}
		if _, err := place(path); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), path) {
			t.Errorf("a file of mode 0444: %v", err)
		}
	}()
	<-done
}

// A store that is opened a second time by its own process keeps the locks of the first,
// without which another process takes the write-ahead log for left behind.
func TestOpenedTwiceStaysLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	first, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // not before the end, for the same reason
	held := func() bool {
		lock := unix.Flock_t{Type: unix.F_WRLCK} // that another could not have now
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
			t.Fatal(err)
		}
		return lock.Type != unix.F_UNLCK
	}
	if !held() {
		t.Fatal("the open store holds no lock on its file")
	}
	second, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if !held() {
		t.Error("opened twice it holds no lock on its file")
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if !held() {
		t.Error("closed once again it holds no lock on its file")
	}
}
