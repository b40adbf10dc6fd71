package bolt

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
)

// writer runs the calls that write for every request. When it is free it takes
// all that wait, up to a batch, runs them in one transaction and answers them
// when that is on disk. A lone call waits for nobody.
type writer struct {
	store *Store
	queue chan *call
	once  sync.Once
	quit  chan struct{} // closed: take no more
	done  chan struct{} // closed: nothing will be answered any more
}

// call is one waiting call.
type call struct {
	ctx context.Context
	// run checks, then writes. If it returns a refusal it has written nothing;
	// any other error undoes the whole batch.
	run   func(*batch) error
	state atomic.Int32 // waiting, taken or left
	done  chan error   // holds one answer
}

const (
	waiting = iota
	taken
	left
)

// batch is one transaction of the writer.
type batch struct {
	tx     *bbolt.Tx
	now    time.Time
	epoch  uint64
	writes bool // something was written: commit
	jtis   []byte
}

// refusal wraps an error that concerns its own call only.
type refusal struct{ err error }

func (r refusal) Error() string { return r.err.Error() }

func newWriter(s *Store) *writer {
	w := &writer{
		store: s,
		queue: make(chan *call, s.opts.Queue),
		quit:  make(chan struct{}),
		done:  make(chan struct{}),
	}
	go w.loop()
	return w
}

// do runs run in the writer and returns when what it wrote is durable. A caller
// whose context ends is not run if it has not been yet.
func (w *writer) do(ctx context.Context, run func(*batch) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := &call{ctx: ctx, run: run, done: make(chan error, 1)}
	select {
	case <-w.quit:
		return ErrClosed
	default:
	}
	select {
	case w.queue <- c:
	default:
		return ErrBusy
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		c.state.CompareAndSwap(waiting, left)
		return ctx.Err()
	case <-w.done:
		select {
		case err := <-c.done: // answered while the writer stopped
			return err
		default:
			return ErrClosed
		}
	}
}

func (w *writer) stop() {
	w.once.Do(func() { close(w.quit) })
	<-w.done
}

func (w *writer) loop() {
	defer close(w.done)
	calls := make([]*call, 0, w.store.opts.Batch)
	for {
		select {
		case <-w.quit:
			return
		case c := <-w.queue:
			calls = append(calls[:0], c)
		}
		// Who is about to ask is let go first, for as long as more do; when nobody
		// is, that takes no time.
		for before := 0; before < len(calls) && len(calls) < cap(calls); {
			before = len(calls)
			runtime.Gosched()
			calls = w.take(calls)
		}
		w.commit(calls)
		clear(calls)
	}
}

// take appends the calls that wait, as far as there is room.
func (w *writer) take(calls []*call) []*call {
	for len(calls) < cap(calls) {
		select {
		case c := <-w.queue:
			calls = append(calls, c)
		default:
			return calls
		}
	}
	return calls
}

// commit runs the calls in one transaction and answers each.
func (w *writer) commit(calls []*call) {
	results := make([]error, len(calls))
	err := w.transact(calls, results)
	for i, c := range calls {
		switch r, own := results[i].(refusal); {
		case own && err == nil:
			c.done <- r.err
		case c.state.Load() == left:
			c.done <- c.ctx.Err()
		default:
			c.done <- err
		}
	}
}

func (w *writer) transact(calls []*call, results []error) error {
	tx, err := w.store.db.Begin(true)
	if err != nil {
		return closed(fmt.Errorf("store: begin: %w", err))
	}
	defer tx.Rollback() // does nothing after a commit
	b := &batch{tx: tx, now: w.store.now(), epoch: getUint(tx.Bucket(metaBucket), epochKey)}
	if err := w.store.sweep(b); err != nil {
		return fmt.Errorf("store: sweep: %w", err)
	}
	for i, c := range calls {
		if c.ctx.Err() != nil || !c.state.CompareAndSwap(waiting, taken) {
			c.state.Store(left)
			continue
		}
		err := c.run(b)
		if _, own := err.(refusal); own {
			results[i] = err
		} else if err != nil {
			return err
		}
	}
	if !b.writes {
		return nil
	}
	if err := w.store.seen.log(b); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("store: commit: %w", err)
	}
	return nil
}

// sweep forgets a bounded number of records whose time has come.
func (s *Store) sweep(b *batch) error {
	if err := s.seen.sweep(b, s.elapsed()); err != nil {
		return err
	}
	return s.sweepUnsigned(b)
}
