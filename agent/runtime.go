package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
)

// runFolder is the folder of a profile in which every Agent on it holds the lock
// of a file of its own, for as long as it lives: the system gives a lock back
// whatever a process dies of.
const runFolder = "run"

// The file of a runtime is named by it and lockSuffix, and newSuffix until it is
// locked.
const (
	lockSuffix = ".lock"
	newSuffix  = ".new"
)

// What the names of runtimes begin with. Only one of the first kind is ever
// proven dead: by its lock. Of the others, where the file system has no locks or an
// earlier version ran, the time of a lease is all that is known.
const (
	runtimeLocked = "live"
	runtimeTimed  = "run"
)

// hold names this Agent as a holder of leases, and takes the lock that goes with
// the name. What dead ones left in the folder is removed.
func (a *Agent) hold() {
	a.runtime = newID(runtimeTimed)
	dir := filepath.Join(a.cfg.Dir, runFolder)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return
	}
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() { // a link leads to what is not ours
		return
	}
	for range 10 { // another may take a file away while it is not locked yet
		id := newID(runtimeLocked)
		if l := lockNew(a.lockPath(id)); l != nil {
			a.runtime, a.lock = id, l
			break
		}
	}
	if a.lock == nil {
		return
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, f := range files {
		if lockName(f.Name()) {
			lockHeld(filepath.Join(dir, f.Name()))
		}
	}
}

// lockName reports whether a file can be one of lockNew's.
func lockName(name string) bool {
	return strings.HasPrefix(name, runtimeLocked+"-") && (strings.HasSuffix(name, lockSuffix) || strings.HasSuffix(name, lockSuffix+newSuffix))
}

func (a *Agent) lockPath(runtime string) string {
	return filepath.Join(a.cfg.Dir, runFolder, runtime+lockSuffix)
}

// lockNew makes a file that is locked from the moment it has its name on. nil if
// it cannot be, also where a second holder would be let in.
func lockNew(path string) *flock.Flock {
	fresh := path + newSuffix
	l := flock.New(fresh, flock.SetFlag(os.O_CREATE|os.O_RDWR))
	if ok, err := l.TryLock(); ok && err == nil {
		second := flock.New(fresh, flock.SetFlag(os.O_RDONLY))
		let, err := second.TryRLock()
		if !let && err == nil && os.Rename(fresh, path) == nil {
			return l
		}
		_ = second.Unlock()
		_ = l.Unlock()
	}
	_ = os.Remove(fresh)
	return nil
}

// lockHeld reports whether somebody holds the lock of a file, and whether that is
// known rather than in doubt. A file whose lock nobody holds is removed; names are
// never used again, so that it stays so.
func lockHeld(path string) (held, known bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrNotExist)
	}
	if !info.Mode().IsRegular() { // nothing of ours; and to open a pipe would wait
		return true, false
	}
	l := flock.New(path, flock.SetFlag(os.O_RDONLY))
	free, err := l.TryRLock() // shared, so that two who look at once see the same
	switch {
	case err != nil:
		return !errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrNotExist)
	case !free:
		return true, true
	}
	_ = os.Remove(path)
	_ = l.Unlock()
	return false, true
}

// letGo gives the lock back: what this Agent still holds leases of is free.
func (a *Agent) letGo() {
	if a.lock == nil {
		return
	}
	kept := os.Remove(a.lockPath(a.runtime))
	_ = a.lock.Unlock()
	if kept != nil { // a system that removes no open file
		_ = os.Remove(a.lockPath(a.runtime))
	}
}

// alive reports whether the holder of a lease may still be at work (RS-3). Only
// a lock that is free, or gone, proves the contrary; in doubt the lease's time
// counts.
func (a *Agent) alive(owner string) bool {
	alive, _ := a.life(owner)
	return alive
}

// life is alive, and whether that is known rather than in doubt.
func (a *Agent) life(owner string) (alive, known bool) {
	runtime, _, _ := strings.Cut(owner, "/")
	switch {
	case runtime == a.runtime:
		return true, true
	case a.lock == nil || !strings.HasPrefix(runtime, runtimeLocked+"-") || filepath.Base(runtime) != runtime:
		return true, false
	}
	return lockHeld(a.lockPath(runtime))
}

// held reports whether somebody works on a record: the lease runs, and its
// holder is not proven dead. One that ends later than any lease can, and whose
// holder is not known to live, is of a clock that was wrong, and over.
func (a *Agent) held(h *Head) bool {
	left := h.LeaseUntil.Sub(a.now())
	if h.LeaseOwner == "" || left <= 0 {
		return false
	}
	alive, known := a.life(h.LeaseOwner)
	return alive && (known || left <= a.params.farthestLease())
}

// leased reports whether somebody other than owner does.
func (a *Agent) leased(h *Head, owner string) bool { return h.LeaseOwner != owner && a.held(h) }
