package vault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// fakeVault answers batches after a while with the digests as signatures. It
// watches how many calls are under way.
type fakeVault struct {
	took func(key string) time.Duration
	fail func(call int) error // nil: never

	mu       sync.Mutex
	calls    []fakeCall
	inFlight map[string]int
	total    int
	broken   []string // rules that were broken
}

type fakeCall struct {
	key   string
	at    time.Time
	items []*item
}

func newFakeVault(took time.Duration) *fakeVault {
	return &fakeVault{took: func(string) time.Duration { return took }, inFlight: map[string]int{}}
}

func (f *fakeVault) send(ctx context.Context, q *queue, batch []*item) error {
	f.mu.Lock()
	n := len(f.calls)
	f.calls = append(f.calls, fakeCall{q.key.name, time.Now(), slices.Clone(batch)})
	f.inFlight[q.key.name]++
	f.total++
	if f.inFlight[q.key.name] > 2 || f.total > 16 || len(batch) > 64 || len(batch) == 0 {
		f.broken = append(f.broken, fmt.Sprintf("call %d: %d of its queue, %d in all, %d items", n, f.inFlight[q.key.name], f.total, len(batch)))
	}
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 2*time.Second {
		f.broken = append(f.broken, fmt.Sprintf("call %d has no bound of 2 s", n))
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.inFlight[q.key.name]--
		f.total--
	}()

	select {
	case <-time.After(f.took(q.key.name)):
	case <-ctx.Done():
		return &callError{kind: custody.ErrUnavailable, cause: ctx.Err(), reason: "slow"}
	}
	if f.fail != nil {
		if err := f.fail(n); err != nil {
			return err
		}
	}
	for _, it := range batch {
		it.signature = slices.Clone(it.digest[:])
	}
	return nil
}

// running is how many calls are under way.
func (f *fakeVault) running() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total
}

func (f *fakeVault) check(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.broken {
		t.Error(b)
	}
}

func (f *fakeVault) sizes() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var sizes []int
	for _, c := range f.calls {
		sizes = append(sizes, len(c.items))
	}
	return sizes
}

func newTestQueue(name string) *queue { return &queue{key: &signingKey{name: name}} }

func digestOf(n int) []byte { return fmt.Appendf(nil, "%032d", n) }

// signers starts n callers and returns a function that waits for them.
func signers(ctx context.Context, s *scheduler, q *queue, n int) (wait func() []error) {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			signature, err := s.sign(ctx, q, digestOf(i))
			if err == nil && string(signature) != string(digestOf(i)) {
				err = errors.New("somebody else's signature")
			}
			errs[i] = err
		})
	}
	return func() []error { wg.Wait(); return errs }
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("caller %d: %v", i, err)
		}
	}
}

func TestQueueLoneItemNeverWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFakeVault(10 * time.Millisecond)
		s := newScheduler(f.send)
		defer s.close()
		q := newTestQueue("a")
		for range 3 {
			started := time.Now()
			noErrors(t, signers(t.Context(), s, q, 1)())
			if took := time.Since(started); took != 10*time.Millisecond {
				t.Errorf("took %v, the call alone takes 10 ms", took)
			}
		}
		f.check(t)
	})
}

func TestQueueGathersWhileBusy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFakeVault(10 * time.Millisecond)
		s := newScheduler(f.send)
		defer s.close()
		q := newTestQueue("a")
		// One by one, so that the first two find free slots.
		first := signers(t.Context(), s, q, 1)
		synctest.Wait()
		second := signers(t.Context(), s, q, 1)
		synctest.Wait()
		rest := signers(t.Context(), s, q, 150)
		synctest.Wait()
		if got := f.sizes(); !slices.Equal(got, []int{1, 1}) {
			t.Fatalf("batches %v while two calls are under way, want two of 1", got)
		}
		for _, wait := range []func() []error{first, second, rest} {
			noErrors(t, wait())
		}
		if got := f.sizes(); !slices.Equal(got, []int{1, 1, 64, 64, 22}) {
			t.Errorf("batches %v, want 1 1 64 64 22", got)
		}
		f.check(t)
	})
}

func TestQueueSixteenInAllInTurns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFakeVault(0)
		var ended time.Duration
		f.took = func(key string) time.Duration {
			if len(key) == 1 {
				return 500 * time.Millisecond
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			ended += time.Millisecond // so that slots become free one by one
			return 10*time.Millisecond + ended
		}
		s := newScheduler(f.send)
		defer s.close()
		var waits []func() []error
		start := func(name string, n int) {
			waits = append(waits, signers(t.Context(), s, newTestQueue(name), n))
			synctest.Wait()
		}
		for i := range 8 { // they take all sixteen slots
			start(fmt.Sprint("busy", i), 2)
		}
		if n := f.running(); n != 16 {
			t.Fatalf("%d calls under way, want 16", n)
		}
		start("x", 640) // ten calls' worth
		start("y", 1)
		start("z", 70)
		if n := f.running(); n != 16 {
			t.Fatalf("%d calls under way, want 16", n)
		}
		for _, wait := range waits {
			noErrors(t, wait())
		}
		var order []string
		for _, c := range f.calls[16:] {
			order = append(order, fmt.Sprint(c.key, len(c.items)))
		}
		if want := []string{"x64", "y1", "z64", "x64", "z6"}; !slices.Equal(order[:5], want) {
			t.Errorf("order %v, want %v first", order, want)
		}
		f.check(t)
	})
}

func TestQueueFull(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFakeVault(time.Second)
		s := newScheduler(f.send)
		defer s.close()
		q := newTestQueue("a")
		accepted := signers(t.Context(), s, q, 2+1024)
		synctest.Wait()
		started := time.Now()
		_, err := s.sign(t.Context(), q, digestOf(0))
		if !errors.Is(err, custody.ErrUnavailable) || time.Since(started) != 0 {
			t.Errorf("one more: %v after %v, want ErrUnavailable at once", err, time.Since(started))
		}
		other := newTestQueue("b")
		noErrors(t, signers(t.Context(), s, other, 1)()) // its own queue has room
		noErrors(t, accepted())
		f.check(t)
	})
}

func TestQueueCallerLeaves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFakeVault(time.Second)
		s := newScheduler(f.send)
		defer s.close()
		q := newTestQueue("a")
		ctx, leave := context.WithCancel(t.Context())
		dispatched := signers(ctx, s, q, 2)
		synctest.Wait()
		waiting := signers(ctx, s, q, 1024)
		synctest.Wait()
		leave()
		started := time.Now()
		for _, err := range append(dispatched(), waiting()...) {
			if !errors.Is(err, context.Canceled) || errors.Is(err, custody.ErrUnavailable) {
				t.Fatalf("a caller that left: %v, want context.Canceled", err)
			}
		}
		if took := time.Since(started); took != 0 {
			t.Errorf("leaving took %v", took)
		}
		noErrors(t, signers(t.Context(), s, q, 1)())
		if got := f.sizes(); !slices.Equal(got, []int{1, 1, 1}) {
			t.Errorf("batches %v: items of callers that left were sent", got)
		}
		if q.waiting != 0 || q.head != nil || q.tail != nil {
			t.Errorf("%d items are left in the queue", q.waiting)
		}
		f.check(t)
	})
}

func TestQueueRefusesHopelessDeadlines(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFakeVault(500 * time.Millisecond)
		s := newScheduler(f.send)
		defer s.close()
		q := newTestQueue("a")
		within := func(d time.Duration) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			started := time.Now()
			_, err := s.sign(ctx, q, digestOf(1))
			return time.Since(started), err
		}
		for range 3 {
			noErrors(t, signers(t.Context(), s, q, 1)())
		}
		// Nothing is under way: Vault may have become fast, so it is asked.
		if took, err := within(300 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, custody.ErrUnavailable) || took != 300*time.Millisecond {
			t.Errorf("idle: %v after %v, want the deadline", err, took)
		}
		synctest.Wait()
		busy := signers(t.Context(), s, q, 1)
		synctest.Wait()
		if took, err := within(300 * time.Millisecond); !errors.Is(err, custody.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || took != 0 {
			t.Errorf("busy: %v after %v, want ErrUnavailable at once", err, took)
		}
		if _, err := within(900 * time.Millisecond); err != nil {
			t.Errorf("with time enough: %v", err)
		}
		noErrors(t, busy())

		fast := newFakeVault(time.Millisecond) // the same queue, another pace
		s.send = fast.send
		for range recentCalls/2 + 1 {
			noErrors(t, signers(t.Context(), s, q, 1)())
		}
		busy = signers(t.Context(), s, q, 1)
		synctest.Wait()
		if _, err := within(300 * time.Millisecond); err != nil {
			t.Errorf("when Vault is fast again: %v", err)
		}
		noErrors(t, busy())
		f.check(t)
	})
}

func TestQueueCallIsBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFakeVault(time.Hour)
		s := newScheduler(f.send)
		defer s.close()
		started := time.Now()
		for _, err := range signers(t.Context(), s, newTestQueue("a"), 3)() {
			if !errors.Is(err, custody.ErrUnavailable) {
				t.Errorf("%v, want ErrUnavailable", err)
			}
		}
		if took := time.Since(started); took != 4*time.Second { // the third waited for the first two
			t.Errorf("three items took %v, want two calls of 2 s", took)
		}
		if len(f.calls) != 3 {
			t.Errorf("%d calls; one that took all its time is not tried again", len(f.calls))
		}
		f.check(t)
	})
}

func TestQueueRetriesOnce(t *testing.T) {
	for name, test := range map[string]struct {
		fails []error
		calls int
		want  error
	}{
		"connection":   {[]error{&callError{kind: custody.ErrUnavailable}}, 2, nil},
		"rate limit":   {[]error{&callError{status: 429, kind: custody.ErrUnavailable}}, 2, nil},
		"sealed":       {[]error{&callError{status: 503, kind: custody.ErrUnavailable}}, 2, nil},
		"sealed twice": {[]error{&callError{status: 503, kind: custody.ErrUnavailable}, &callError{status: 503, kind: custody.ErrUnavailable}}, 2, custody.ErrUnavailable},
		"internal":     {[]error{&callError{status: 500, kind: custody.ErrUnavailable}}, 1, custody.ErrUnavailable},
		"forbidden":    {[]error{&callError{status: 403, kind: custody.ErrUnavailable}}, 1, custody.ErrUnavailable},
		"disabled":     {[]error{custody.ErrDisabled}, 1, custody.ErrDisabled},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFakeVault(time.Millisecond)
				f.fail = func(call int) error {
					if call < len(test.fails) {
						return test.fails[call]
					}
					return nil
				}
				s := newScheduler(f.send)
				defer s.close()
				started := time.Now()
				_, err := s.sign(t.Context(), newTestQueue("a"), digestOf(1))
				if !errors.Is(err, test.want) || len(f.calls) != test.calls {
					t.Errorf("%v after %d calls, want %v after %d", err, len(f.calls), test.want, test.calls)
				}
				if test.calls == 2 && time.Since(started) < retryPause/2 {
					t.Error("the second try did not pause")
				}
				f.check(t)
			})
		})
	}
}

// A second try is for those who still wait.
func TestQueueRetryDropsThoseWhoLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFakeVault(10 * time.Millisecond)
		f.fail = func(call int) error {
			if call < 2 {
				return &callError{status: 503, kind: custody.ErrUnavailable}
			}
			return nil
		}
		s := newScheduler(f.send)
		defer s.close()
		q := newTestQueue("a")
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Millisecond)
		defer cancel()
		leaves := signers(ctx, s, q, 1)
		synctest.Wait()
		stays := signers(t.Context(), s, q, 1)
		leaves()
		noErrors(t, stays())
		if len(f.calls) != 3 {
			t.Errorf("%d calls, want 3: nobody waits for the first any more", len(f.calls))
		}
		f.check(t)
	})
}

func TestQueueClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFakeVault(time.Hour)
		s := newScheduler(f.send)
		var waits []func() []error
		for i := range 10 { // more than the slots
			waits = append(waits, signers(t.Context(), s, newTestQueue(fmt.Sprint(i)), 100))
			synctest.Wait()
		}
		started := time.Now()
		s.close()
		for _, wait := range waits {
			for _, err := range wait() {
				if !errors.Is(err, custody.ErrUnavailable) {
					t.Fatalf("%v, want ErrUnavailable", err)
				}
			}
		}
		if _, err := s.sign(t.Context(), newTestQueue("late"), digestOf(1)); !errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("after close: %v, want ErrUnavailable", err)
		}
		if took := time.Since(started); took != 0 {
			t.Errorf("closing took %v", took)
		}
	})
}

// TestQueueProperties lets random callers with random deadlines meet a Vault of
// random speed, and checks what always holds.
func TestQueueProperties(t *testing.T) {
	type caller struct {
		queue    int
		arrives  time.Duration
		patience time.Duration // 0: without a deadline
		cancels  bool          // it leaves by itself, and has no deadline
	}
	rapid.Check(t, func(rt *rapid.T) {
		queues := rapid.IntRange(1, 20).Draw(rt, "queues")
		callers := make([]caller, rapid.IntRange(1, 600).Draw(rt, "callers"))
		spread := rapid.IntRange(0, 200).Draw(rt, "spread")
		for i := range callers {
			callers[i] = caller{
				queue:    rapid.IntRange(0, queues-1).Draw(rt, "queue"),
				arrives:  time.Duration(rapid.IntRange(0, spread).Draw(rt, "arrives")) * time.Millisecond,
				patience: time.Duration(rapid.SampledFrom([]int{0, 0, 5, 50, 500, 3000}).Draw(rt, "patience")) * time.Millisecond,
				cancels:  rapid.Bool().Draw(rt, "cancels"),
			}
		}
		speeds := rapid.SliceOfN(rapid.SampledFrom([]int{1, 10, 100, 1500, 5000}), 1, 10).Draw(rt, "speeds")
		failures := rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 429, 503, 500}), 1, 10).Draw(rt, "failures")
		var broken []string
		bubble.Test(t, func(t *testing.T) {
			f := newFakeVault(0)
			calls := 0
			f.took = func(string) time.Duration {
				f.mu.Lock()
				defer f.mu.Unlock()
				calls++
				return time.Duration(speeds[calls%len(speeds)]) * time.Millisecond
			}
			f.fail = func(call int) error {
				if status := failures[call%len(failures)]; status != 0 {
					return &callError{status: status, kind: custody.ErrUnavailable}
				}
				return nil
			}
			s := newScheduler(f.send)
			defer s.close()
			all := make([]*queue, queues)
			for i := range all {
				all[i] = newTestQueue(fmt.Sprint(i))
			}
			complain := func(format string, args ...any) {
				f.mu.Lock()
				defer f.mu.Unlock()
				broken = append(broken, fmt.Sprintf(format, args...))
			}
			var wg sync.WaitGroup
			for i, c := range callers {
				wg.Go(func() {
					time.Sleep(c.arrives)
					ctx, cancel := context.WithCancel(t.Context())
					switch {
					case c.patience > 0 && c.cancels:
						defer time.AfterFunc(c.patience, cancel).Stop()
					case c.patience > 0:
						ctx, cancel = context.WithTimeout(ctx, c.patience)
					}
					defer cancel()
					arrived := time.Now()
					signature, err := s.sign(ctx, all[c.queue], digestOf(i))
					switch took := time.Since(arrived); {
					case err == nil && string(signature) != string(digestOf(i)):
						complain("caller %d has somebody else's signature", i)
					case err != nil && !errors.Is(err, custody.ErrUnavailable) && !errors.Is(err, context.Canceled):
						complain("caller %d: %v", i, err)
					case errors.Is(err, context.Canceled) && !(c.cancels && c.patience > 0):
						complain("caller %d did not leave: %v", i, err)
					case c.patience > 0 && took > c.patience:
						complain("caller %d was kept for %v, beyond %v", i, took, c.patience)
					}
				})
			}
			// Nobody waits while there is a slot.
			watching, stop := context.WithCancel(t.Context())
			wg2 := sync.WaitGroup{}
			wg2.Go(func() {
				for watching.Err() == nil {
					time.Sleep(time.Millisecond / 2)
					s.mu.Lock()
					for _, q := range all {
						if q.waiting > 0 && q.inFlight < maxPerQueue && s.inFlight < maxInFlight {
							complain("queue %s: %d wait though a slot is free", q.key.name, q.waiting)
						}
						if q.waiting > maxWaiting || q.waiting < 0 {
							complain("queue %s: %d wait", q.key.name, q.waiting)
						}
					}
					s.mu.Unlock()
				}
			})
			wg.Wait()
			stop()
			wg2.Wait()
			f.mu.Lock()
			broken = append(broken, f.broken...)
			sent := map[*item]int{}
			for _, c := range f.calls {
				for _, it := range c.items {
					if sent[it]++; sent[it] > 2 {
						broken = append(broken, "an item was sent more than twice")
					}
				}
			}
			f.mu.Unlock()
		})
		if len(broken) > 0 {
			rt.Fatalf("%d rules broken, first: %s", len(broken), broken[0])
		}
	})
}
