package main

import (
	"os"
	"path/filepath"
	"testing"
)

// An agent that is about to end has given its socket back already: a command does not ask
// it then, and does not fail of it.
func TestRunningAt(t *testing.T) {
	dir := t.TempDir()
	s := &servingAgent{Profile: dir, Socket: filepath.Join(dir, serveSocket)}
	at := func(when, want string) {
		t.Helper()
		if got, err := runningAt(dir); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", when, got, err, want)
		}
	}
	at("before it was ever served", "")
	lock, err := lockServe(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	at("as it begins", "")
	if err := s.write(); err != nil {
		t.Fatal(err)
	}
	at("as it ends", "")
	if err := os.WriteFile(s.Socket, nil, 0o600); err != nil { // it is the path that counts here
		t.Fatal(err)
	}
	at("as it runs", unixTarget+s.Socket)
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	at("after it was killed", "")
}
