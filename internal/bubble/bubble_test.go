package bubble_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// TestTimers has timers of a bubble run by its root and by who receives from them at the
// same moment, many times: unguarded, on two processors, the race detector crashes.
func TestTimers(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(before)
	for range 100 {
		t.Run("", func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						for range 100 {
							late := time.NewTimer(time.Millisecond)
							time.Sleep(time.Millisecond)
							<-late.C
						}
					})
					wg.Go(func() {
						for range 100 {
							ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
							<-ctx.Done()
							cancel()
						}
					})
				}
				wg.Wait()
			})
		})
	}
	if n := runtime.GOMAXPROCS(0); n != 2 {
		t.Errorf("%d processors are left", n)
	}
}
