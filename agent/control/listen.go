package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
)

// Listener is where the control plane is reached: a unix socket of the profile's
// owner, or a loopback address.
type Listener struct {
	net.Listener
	// owner: who connects is the profile's owner, whose user alone can.
	owner  bool
	target string
}

// Target is what Dial takes to reach it.
func (l *Listener) Target() string { return l.target }

// ListenLoopback listens on a loopback address, such as 127.0.0.1:0. Callers need a
// token there.
func ListenLoopback(addr string) (*Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: want host:port, such as 127.0.0.1:0", addr)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() || ip.Zone() != "" {
		return nil, fmt.Errorf("listen address %q: the control plane listens on this machine alone: say 127.0.0.1:%s", addr, port)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("listen: %w; free the port or choose another", err)
	}
	return &Listener{Listener: l, target: "http://" + l.Addr().String()}, nil
}

// MaxSocketPath is the longest path that a socket can be bound at.
func MaxSocketPath() int {
	if runtime.GOOS == "linux" {
		return 107
	}
	return 103
}

// ListenUnix listens on a unix socket that this user alone can open: of mode 0600,
// in a folder that nobody else can change. A socket left behind there is replaced,
// one that is answered is not; who calls it holds what keeps a second one from doing
// the same at the same time. Closing it removes the socket.
func ListenUnix(path string) (*Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	dir := filepath.Dir(path)
	if err := ownFolder(dir); err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if err := noneAnswers(path); err != nil {
		return nil, err
	}
	// It is bound in a folder that nobody else can enter, and moved when it has its
	// mode, so that at no time anybody else can open it.
	private, err := os.MkdirTemp(dir, ".*")
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer os.RemoveAll(private)
	first := filepath.Join(private, "s")
	if longest := max(len(first), len(path)); longest > MaxSocketPath() {
		return nil, fmt.Errorf("socket %s: its path is %d bytes too long for a socket: name a shorter one with --socket", path, longest-MaxSocketPath())
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: first, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // by the name that it was bound at
	err = os.Chmod(first, 0o600)
	if err == nil {
		err = os.Rename(first, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	u := &unixListener{UnixListener: l, path: path}
	if u.info, err = os.Lstat(path); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return &Listener{Listener: u, owner: true, target: "unix:" + path}, nil
}

// noneAnswers refuses a path where something is that is no socket left behind.
func noneAnswers(path string) error {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("socket %s: there is a file that is no socket: name another with --socket", path)
	}
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = c.Close() // nothing was said on it
		return fmt.Errorf("socket %s: a running agent answers there: end that one, or name another socket with --socket", path)
	case refusesConnections(err):
		return nil
	}
	return fmt.Errorf("socket %s: it cannot be told whether a running agent has it: %w", path, err)
}

// unixListener takes connections of this user alone.
type unixListener struct {
	*net.UnixListener
	path  string
	info  fs.FileInfo // of the socket that is ours
	close sync.Once
}

// Accept implements [net.Listener].
func (l *unixListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if samePeer(c) {
			return c, nil
		}
		_ = c.Close() // another user's
	}
}

// Close implements [net.Listener].
func (l *unixListener) Close() (err error) {
	l.close.Do(func() {
		// Removed first: what was not accepted yet fails, and nobody comes after.
		if now, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(now, l.info) {
			err = os.Remove(l.path)
		}
		err = errors.Join(err, l.UnixListener.Close())
	})
	return err
}
