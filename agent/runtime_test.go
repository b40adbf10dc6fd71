package agent

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

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
