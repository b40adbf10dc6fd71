package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// inTime fails the test if f, which may open a pipe, does not come back; then it is
// helped out.
func inTime(t *testing.T, pipe string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Errorf("it waits for the pipe %s", pipe)
		if w, err := os.OpenFile(pipe, os.O_RDWR, 0); err == nil {
			w.Close()
		}
		<-done
	}
}

// RS-3: in the folder of the locks only files that can be one are looked at, and
// nothing else is removed; a link in its place leads to what is not ours, and then the
// time of a lease is what counts.
func TestRunFolderOfOthers(t *testing.T) {
	dir, docs := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(docs, "live-thesis.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(docs, filepath.Join(dir, "run")); err != nil {
		t.Fatal(err)
	}
	a := &Agent{cfg: Config{Dir: dir}}
	a.hold()
	files, err := os.ReadDir(docs)
	if err != nil || len(files) != 1 || a.lock != nil || !strings.HasPrefix(a.runtime, "run-") || !a.alive("live-thesis/x") {
		t.Errorf("by a link: %v, %v; runtime %s", files, err, a.runtime)
	}

	run := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(run, 0o700); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(run, "live-pipe.lock")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"live-folder.lock", "live-link.lock", "live-pipe.lock", "live-x.txt", "live-x.new", "thesis.lock", "thesis.txt"}
	for _, name := range want[3:] {
		if err := os.WriteFile(filepath.Join(run, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(run, "live-folder.lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(docs, "live-thesis.lock"), filepath.Join(run, "live-link.lock")); err != nil {
		t.Fatal(err)
	}
	b := &Agent{cfg: Config{Dir: filepath.Dir(run)}}
	inTime(t, pipe, b.hold)
	if b.lock == nil {
		t.Fatal("no lock")
	}
	inTime(t, pipe, func() {
		for _, name := range []string{"live-folder", "live-link", "live-pipe"} {
			if alive, known := b.life(name + "/x"); !alive || known { // in doubt
				t.Errorf("%s: alive %v, known %v", name, alive, known)
			}
		}
	})
	b.letGo()
	files, err = os.ReadDir(run)
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	if slices.Sort(want); err != nil || !slices.Equal(names, want) {
		t.Errorf("left %v, %v", names, err)
	}
	if _, err := os.Stat(filepath.Join(docs, "live-thesis.lock")); err != nil {
		t.Error(err)
	}
}

// SG-14: a pipe in the place of the key file is no key, and is not waited for.
func TestKeyFileIsAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), keyFile)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	inTime(t, path, func() {
		if _, err := readKeyFile(path); !errors.Is(err, ErrProfileKey) || !strings.Contains(err.Error(), path) {
			t.Error(err)
		}
	})
}

// RS-3: a holder of leases is dead when the lock of its name is free or gone, and
// only then; files of the dead are removed.
func TestRuntimeLocks(t *testing.T) {
	dir := t.TempDir()
	open := func() *Agent {
		a := &Agent{cfg: Config{Dir: dir}}
		a.hold()
		if a.lock == nil || !strings.HasPrefix(a.runtime, "live-") {
			t.Fatalf("runtime %q without a lock", a.runtime)
		}
		return a
	}
	a, b := open(), open()
	left := func() (names []string) {
		files, err := os.ReadDir(filepath.Join(dir, "run"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			names = append(names, f.Name())
		}
		return names
	}
	for owner, want := range map[string]bool{
		a.runtime + "/turn-1":    true,
		b.runtime + "/turn-1":    true,
		"live-gone/turn-1":       false,
		"run-earlier/turn-1":     true,
		"gone":                   true,
		`live-\..\..\x/turn-1`:   false,
		"live-" + "/" + "turn-1": false,
	} {
		if a.alive(owner) != want {
			t.Errorf("%s is alive: %v", owner, !want)
		}
	}
	if len(left()) != 2 {
		t.Errorf("files %v", left())
	}
	b.letGo()
	b.letGo()
	if a.alive(b.runtime + "/turn-1") {
		t.Error("b has let go and is alive")
	}
	// What a kill leaves, on its name and before it had one.
	for _, name := range []string{"live-killed.lock", "live-young.lock.new"} {
		if err := os.WriteFile(filepath.Join(dir, "run", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if a.alive("live-killed/x") || len(left()) != 2 {
		t.Errorf("the killed one is alive, or left: %v", left())
	}
	c := open()
	if len(left()) != 2 {
		t.Errorf("files %v", left())
	}
	timed := &Agent{cfg: Config{Dir: dir}, runtime: "run-x"}
	if !timed.alive("live-gone/x") {
		t.Error("one without locks judges by them")
	}
	a.letGo()
	c.letGo()
	if len(left()) != 0 {
		t.Errorf("files %v", left())
	}
}

// RS-3: those that start and those that clear up at the same moment never take
// one another for dead.
func TestRuntimesStartTogether(t *testing.T) {
	dir := t.TempDir()
	agents := make([]*Agent, 40)
	var all sync.WaitGroup
	for i := range agents {
		all.Go(func() {
			agents[i] = &Agent{cfg: Config{Dir: dir}}
			agents[i].hold()
		})
	}
	all.Wait()
	for _, a := range agents {
		if a.lock == nil {
			t.Fatal("one has no lock")
		}
		for _, b := range agents {
			if !a.alive(b.runtime + "/x") {
				t.Fatalf("%s takes %s for dead", a.runtime, b.runtime)
			}
		}
	}
	for _, a := range agents {
		a.letGo()
	}
}
