//go:build unix

package control

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Nobody but the profile's user opens the socket: its mode and folder see to that.
func TestListenUnix(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	if l.Target() != "unix:"+path {
		t.Errorf("target %s", l.Target())
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("in its folder: %v, %v", files, err)
	}
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-accepted; err != nil {
		t.Errorf("accept: %v", err)
	}

	if _, err := ListenUnix(path); err == nil || !strings.Contains(err.Error(), "answers") {
		t.Errorf("a second one at a socket that answers: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("closed, the socket is there: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// A socket that a crash left is replaced; and one that took the place of ours is not
// removed with ours.
func TestListenUnixAfterACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other's socket: %v", err)
	}
}

func TestListenUnixRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.db")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil { // whatever the umask
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, says string }{
		"a file that is no socket":       {file, "no socket"},
		"a folder that others write to":  {filepath.Join(open, "s"), "chmod"},
		"no folder":                      {filepath.Join(file, "s"), "socket"},
		"a folder that is not there":     {filepath.Join(open, "no", "s"), "socket"},
		"a path too long for any socket": {filepath.Join(t.TempDir(), strings.Repeat("s", 120)), "too long"},
	} {
		if l, err := ListenUnix(c.path); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

// What others could have put in the socket's place gets nothing.
func TestCheckSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "pact") // short, as the path of a socket must be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "agent.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := checkSocket(path); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkSocket(file); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file: %v", err)
	}
	for mode, good := range map[os.FileMode]bool{0o777: false, 0o720: false, 0o777 | os.ModeSticky: false, 0o755: true, 0o700: true} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := checkSocket(path); (err == nil) != good || err != nil && !strings.Contains(err.Error(), "chmod go-w "+dir) {
			t.Errorf("folder of mode %v: %v", mode, err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		return // nobody else can give a file away
	}
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if err := checkSocket(path); err == nil || !strings.Contains(err.Error(), "the folder "+dir+" is another user's") {
		t.Errorf("a foreign folder: %v", err)
	}
	if err := os.Chown(path, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if err := checkSocket(path); err == nil || !strings.Contains(err.Error(), "belongs to another user: nothing is sent to it") {
		t.Errorf("a foreign socket: %v", err)
	}
}

func TestListenLoopback(t *testing.T) {
	for _, addr := range []string{"", "0.0.0.0:0", ":0", "[::]:0", "10.0.0.1:0", "example.com:0", "127.0.0.1", "unix:/s"} {
		if l, err := ListenLoopback(addr); err == nil {
			t.Errorf("%q: listens on %s", addr, l.Target())
		}
	}
	for _, addr := range []string{"127.0.0.1:0", "localhost:0"} {
		l, err := ListenLoopback(addr)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(l.Target(), "http://127.0.0.1:") || l.owner {
			t.Errorf("%s: %+v", addr, l)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
