// Package bubble runs tests in bubbles of testing/synctest.
//
// Under the race detector they run on one processor. All timers of a bubble share one
// context of the detector, and Go 1.26 lets two processors use it at once: one that runs
// the timers that are due, and one that receives from a timer's channel that nobody had
// waited for. That breaks the context, and the detector crashes or reports races that are
// none (golang/go#78156). It finds on one processor what it finds on two, since it goes by
// what happens before what.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// Test is synctest.Test, safe under the race detector.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	Guard(t)
	synctest.Test(t, f)
}

var guarded struct {
	sync.Mutex
	tests, processors int
}

// Guard makes bubbles that t begins by other means safe under the race detector, until t
// ends.
func Guard(t testing.TB) {
	if !raced {
		return
	}
	guarded.Lock()
	defer guarded.Unlock()
	if guarded.tests++; guarded.tests == 1 {
		guarded.processors = runtime.GOMAXPROCS(1)
	}
	t.Cleanup(func() {
		guarded.Lock()
		defer guarded.Unlock()
		if guarded.tests--; guarded.tests == 0 {
			runtime.GOMAXPROCS(guarded.processors)
		}
	})
}
