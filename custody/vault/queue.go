package vault

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pactsigner/pactsigner/custody"
)

const (
	// maxInFlight is how many signing calls are under way at once, of all queues.
	maxInFlight = 16
	// maxPerQueue is how many of them one queue may have.
	maxPerQueue = 2
	// maxBatch is how many signatures one call asks for.
	maxBatch = 64
	// maxWaiting is how many callers a queue holds; to more it says no at once.
	maxWaiting = 1024
	// recentCalls is how many calls the median is taken of.
	recentCalls = 15
	// retryPause is the pause, about, before a call is tried once more.
	retryPause = 60 * time.Millisecond
)

// scheduler shares the calls to Vault among the queues, which take turns. It holds
// no item back to wait for company: whoever finds a free slot goes at once, and
// what gathers while no slot is free goes together when one is.
type scheduler struct {
	// send asks for a batch. It sets signature or err of every item, or returns an
	// error that goes for all of them.
	send func(ctx context.Context, q *queue, batch []*item) error
	full func() // called for an item that is refused; nil: nobody wants to know

	stopped context.Context // every call's context ends with it
	stop    context.CancelFunc
	calls   sync.WaitGroup

	mu       sync.Mutex
	inFlight int
	turns    []*queue // those that have waiting items and a free slot of their own
}

// queue is one key's. The scheduler's mutex guards everything but key.
type queue struct {
	key *signingKey

	head, tail *item // waiting
	waiting    int
	inFlight   int
	inTurn     bool // it is in turns
	took       []time.Duration
	median     time.Duration // of took; 0: no calls yet
}

// item is one signature that a caller waits for.
type item struct {
	ctx        context.Context // its caller's, for the observer
	digest     [sha256.Size]byte
	next, prev *item
	waiting    bool // in its queue
	left       bool // its caller does not wait any more

	done      chan struct{} // closed when what follows is set
	signature []byte
	err       error
}

func newScheduler(send func(ctx context.Context, q *queue, batch []*item) error) *scheduler {
	s := &scheduler{send: send}
	s.stopped, s.stop = context.WithCancel(context.Background())
	return s
}

// close ends the calls that are under way and waits for them. Items that still
// wait, and later ones, are refused.
func (s *scheduler) close() {
	s.mu.Lock()
	s.stop()
	for _, q := range s.turns {
		q.refuse()
	}
	s.mu.Unlock()
	s.calls.Wait()
}

// sign waits for the signature of a digest.
func (s *scheduler) sign(ctx context.Context, q *queue, digest []byte) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	it := &item{ctx: ctx, done: make(chan struct{})}
	copy(it.digest[:], digest)
	if err := s.enter(ctx, q, it); err != nil {
		if err != errClosed && s.full != nil {
			s.full()
		}
		return nil, err
	}
	select {
	case <-it.done:
		return it.signature, it.err
	case <-ctx.Done():
		s.leave(q, it)
		return nil, contextError(ctx)
	}
}

// enter puts an item in its queue, unless there is no point in it.
func (s *scheduler) enter(ctx context.Context, q *queue, it *item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped.Err() != nil {
		return errClosed
	}
	if q.waiting >= maxWaiting {
		return fmt.Errorf("%w: %d signatures wait for Vault already", custody.ErrUnavailable, q.waiting)
	}
	// A queue without a call under way lets everybody in: only a call can find out
	// that Vault is fast again.
	if deadline, ok := ctx.Deadline(); ok && q.inFlight > 0 && time.Until(deadline) < q.median {
		return fmt.Errorf("%w: Vault takes %v, which is more than is left", custody.ErrUnavailable, q.median)
	}
	q.push(it)
	s.offer(q)
	s.dispatch()
	return nil
}

// leave takes a caller's item back. If it is under way already, its result will be
// dropped.
func (s *scheduler) leave(q *queue, it *item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it.left = true
	if it.waiting {
		q.remove(it)
	}
}

// offer gives a queue a turn if it can use one.
func (s *scheduler) offer(q *queue) {
	if q.waiting > 0 && q.inFlight < maxPerQueue && !q.inTurn {
		q.inTurn = true
		s.turns = append(s.turns, q)
	}
}

// dispatch starts as many calls as there are slots and work for.
func (s *scheduler) dispatch() {
	for s.inFlight < maxInFlight && len(s.turns) > 0 {
		q := s.turns[0]
		s.turns[0] = nil
		s.turns = s.turns[1:]
		q.inTurn = false
		batch := q.take()
		if len(batch) == 0 { // they all left
			continue
		}
		q.inFlight++
		s.inFlight++
		s.offer(q) // behind the others
		s.calls.Go(func() { s.run(q, batch) })
	}
}

// run makes one call, lets the next one go and hands out its results.
func (s *scheduler) run(q *queue, batch []*item) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(s.stopped, callTimeout)
	err := s.send(ctx, q, batch)
	if transient(err) && s.worthRetrying(ctx, q) {
		if batch = s.stay(batch); len(batch) > 0 {
			err = s.send(ctx, q, batch)
		}
	}
	switch {
	case err != nil && s.stopped.Err() != nil:
		err = errClosed
	case err != nil && ctx.Err() != nil: // the call's end, not that of any caller's patience
		err = fmt.Errorf("%w: Vault did not sign within %v", custody.ErrUnavailable, callTimeout)
	}
	cancel()
	s.end(q, time.Since(started))
	for _, it := range batch {
		if err != nil {
			it.signature, it.err = nil, err
		}
		close(it.done)
	}
}

// end counts a call out and lets the next one go. Whoever has its result does not find
// it under way any more.
func (s *scheduler) end(q *queue, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.record(took)
	q.inFlight--
	s.inFlight--
	if s.stopped.Err() != nil {
		q.refuse()
		return
	}
	s.offer(q)
	s.dispatch()
}

// worthRetrying waits a little and reports whether a second try fits into the
// call's time.
func (s *scheduler) worthRetrying(ctx context.Context, q *queue) bool {
	pause := jitter(retryPause)
	s.mu.Lock()
	need := pause + q.median
	s.mu.Unlock()
	if deadline, _ := ctx.Deadline(); time.Until(deadline) < need {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stay drops the items whose callers left.
func (s *scheduler) stay(batch []*item) []*item {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(batch, func(it *item) bool { return it.left })
}

func (q *queue) push(it *item) {
	it.waiting, it.prev = true, q.tail
	if q.tail == nil {
		q.head = it
	} else {
		q.tail.next = it
	}
	q.tail = it
	q.waiting++
}

func (q *queue) remove(it *item) {
	if it.prev == nil {
		q.head = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		q.tail = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.waiting, it.prev, it.next = false, nil, nil
	q.waiting--
}

// take removes the longest waiting items, as many as fit one call.
func (q *queue) take() []*item {
	batch := make([]*item, 0, min(q.waiting, maxBatch))
	for len(batch) < maxBatch && q.head != nil {
		it := q.head
		q.remove(it)
		batch = append(batch, it)
	}
	return batch
}

// refuse lets everybody who waits go, because the scheduler is closed.
func (q *queue) refuse() {
	for it := q.head; it != nil; it = q.head {
		q.remove(it)
		it.err = errClosed
		close(it.done)
	}
}

// record takes the time of one more call into the median.
func (q *queue) record(took time.Duration) {
	if len(q.took) == recentCalls {
		q.took = append(q.took[:0], q.took[1:]...)
	}
	q.took = append(q.took, took)
	sorted := slices.Sorted(slices.Values(q.took))
	q.median = sorted[len(sorted)/2]
}

// errClosed: the keyring was closed.
var errClosed = fmt.Errorf("%w: the keyring is closed", custody.ErrUnavailable)
