package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/gofrs/flock"
)

// The files of a running agent in its profile's folder. The lock is held for as long
// as it runs: the system gives it back whatever a process dies of, so that what the
// other two say counts only while it is held.
const (
	serveLock   = "serve.lock"
	serveFile   = "serve.json" // a servingAgent
	serveSocket = "agent.sock" // if --socket says no other
)

// servingAgent is what a running agent tells of itself.
type servingAgent struct {
	PID       int       `json:"pid"`
	Version   string    `json:"version"`
	Started   time.Time `json:"started"`
	Profile   string    `json:"profile"`
	TimeScale int       `json:"timeScale"`
	Socket    string    `json:"socket,omitzero"` // its path; empty: it is not ready
	Listen    string    `json:"listen,omitzero"` // http://HOST:PORT
}

// A command looks at the lock for a moment, and that must not keep an agent from
// starting.
const (
	serveLockWait  = 250 * time.Millisecond
	serveLockRetry = 25 * time.Millisecond
)

// lockServe makes this process the one that serves a profile.
func lockServe(ctx context.Context, dir string) (*flock.Flock, error) {
	l := flock.New(filepath.Join(dir, serveLock), flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o600))
	wait, cancel := context.WithTimeout(ctx, serveLockWait)
	defer cancel()
	ok, err := l.TryLockContext(wait, serveLockRetry)
	switch {
	case ok:
		return l, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("lock the profile for serving: %w", err)
	}
	who := ""
	if s, err := readServing(dir); err == nil {
		who = fmt.Sprintf(" (pid %d)", s.PID)
	}
	return nil, fmt.Errorf("an agent runs for the profile %s already%s: use that, or stop it first", dir, who)
}

// serving returns what runs for a profile; nil: nothing does.
func serving(dir string) (*servingAgent, error) {
	path := filepath.Join(dir, serveLock)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--profile: %w", err)
	}
	l := flock.New(path, flock.SetFlag(os.O_RDONLY))
	free, err := l.TryRLock() // shared, so that commands do not see each other
	if err != nil {
		return nil, fmt.Errorf("--profile: %w", err)
	}
	if free {
		return nil, l.Unlock()
	}
	s, err := readServing(dir)
	if errors.Is(err, fs.ErrNotExist) { // it has only begun, or just ended
		return nil, nil
	}
	return s, err
}

func readServing(dir string) (*servingAgent, error) {
	b, err := os.ReadFile(filepath.Join(dir, serveFile))
	if err != nil {
		return nil, fmt.Errorf("read what the running agent tells: %w", err)
	}
	s := &servingAgent{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s is damaged (stop the agent that runs for this profile, and start it again): %w", filepath.Join(dir, serveFile), err)
	}
	return s, nil
}

// write tells it.
func (s *servingAgent) write() error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("tell where the agent is: %w", err)
	}
	if err := replaceFile(filepath.Join(s.Profile, serveFile), append(b, '\n')); err != nil {
		return fmt.Errorf("tell where the agent is: %w", err)
	}
	return nil
}

// runningAt is the target of the agent that runs for a profile; empty if none does, or
// none that is ready.
func runningAt(dir string) (string, error) {
	s, err := serving(dir)
	if err != nil || s == nil || s.Socket == "" {
		return "", err
	}
	if _, err := os.Stat(s.Socket); errors.Is(err, fs.ErrNotExist) { // it is about to end
		return "", nil
	}
	return unixTarget + s.Socket, nil
}

// forget takes back what it tells.
func (s *servingAgent) forget() error {
	if err := os.Remove(filepath.Join(s.Profile, serveFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}
