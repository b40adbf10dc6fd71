package killswitch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// ErrUnknownEpoch: no kill or resume was made in that epoch.
var ErrUnknownEpoch = errors.New("killswitch: nothing was thrown or lifted in that epoch")

// maxRecent is how many kills a Switch keeps the replicas of.
const maxRecent = 64

// Barrier is how far a change has come.
type Barrier struct {
	Epoch   uint64
	Written time.Time // when it was written, by the store's clock
	// Effective: no request in scope passes its final check any more, on any
	// replica. At is by the store's clock the latest moment at which that
	// became so; before that, the moment at which it will.
	Effective bool
	At        time.Time
	Confirmed []string // replicas that have reported the epoch
	Silent    []string // registered, and have not
}

// Wait waits until the change made in epoch is effective: every replica that
// was registered has reported it, or Params.Bound has passed since it was
// written, after which no permit from before can be valid. It can be called at
// any time and on any machine. report, which may be nil, is called with each
// change. An error comes with the barrier as it stood.
func (s *Switch) Wait(ctx context.Context, epoch uint64, report func(Barrier)) (Barrier, error) {
	b := Barrier{Epoch: epoch}
	state, err := s.cfg.Store.State(ctx)
	if err != nil {
		return b, fmt.Errorf("wait for epoch %d: %w", epoch, err)
	}
	now, err := s.cfg.Store.Now(ctx)
	if err != nil {
		return b, fmt.Errorf("wait for epoch %d: %w", epoch, err)
	}
	var ok bool
	if b.Written, ok = state.written(epoch); !ok {
		return b, fmt.Errorf("%w: %d (the newest is %d)", ErrUnknownEpoch, epoch, state.Epoch)
	}
	bound := s.cfg.Params.Bound()
	b.At = b.Written.Add(bound)

	// From here on only the local clock counts: the store's may be set.
	elapsed := min(max(now.Sub(b.Written), 0), bound)
	began := time.Now()
	deadline := time.NewTimer(bound - elapsed)
	defer deadline.Stop()
	poll := time.NewTicker(s.cfg.Params.BarrierPoll)
	defer poll.Stop()
	registered := s.registered(epoch)
	for first := true; ; first = false {
		before := b
		since := max(now.Sub(b.Written), 0) + time.Since(began)
		patience := max(bound-elapsed-time.Since(began), s.cfg.Params.BarrierPoll)
		if err := s.look(ctx, &b, registered, since, patience); err != nil && ctx.Err() != nil {
			return b, ctx.Err() // a store that does not answer otherwise only makes it slower
		}
		b.Effective = b.Effective || elapsed+time.Since(began) >= bound
		if report != nil && (first || !b.same(before)) {
			report(b)
		}
		if b.Effective {
			return b, nil
		}
		select {
		case <-ctx.Done():
			return b, ctx.Err()
		case <-deadline.C:
		case <-poll.C:
		}
	}
}

// look reads the replicas' reports. registered are the replicas known to have
// been there when the change was written; nil if that is not known here, and
// then they are those that the store has seen since they could have been.
func (s *Switch) look(ctx context.Context, b *Barrier, registered []string, since, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, min(patience, s.cfg.Params.Call))
	defer cancel()
	replicas, err := s.cfg.Store.Replicas(ctx, since+s.cfg.Params.Registered)
	if err != nil {
		return err
	}
	confirmed := make(map[string]bool)
	for _, name := range registered {
		confirmed[name] = false
	}
	var newest time.Time
	for _, r := range replicas {
		if _, was := confirmed[r.Replica]; was || registered == nil {
			confirmed[r.Replica] = r.Epoch >= b.Epoch
			if r.Seen.After(newest) {
				newest = r.Seen
			}
		}
	}
	b.Confirmed, b.Silent = nil, nil
	for _, name := range slices.Sorted(maps.Keys(confirmed)) {
		if confirmed[name] {
			b.Confirmed = append(b.Confirmed, name)
		} else {
			b.Silent = append(b.Silent, name)
		}
	}
	// A store that knows of no replica may have forgotten them: then time decides.
	if len(b.Silent) == 0 && len(b.Confirmed) > 0 {
		b.Effective = true
		if newest.Before(b.At) {
			b.At = newest
		}
		if b.At.Before(b.Written) {
			b.At = b.Written
		}
	}
	return nil
}

func (b Barrier) same(o Barrier) bool {
	return b.Effective == o.Effective && slices.Equal(b.Confirmed, o.Confirmed) && slices.Equal(b.Silent, o.Silent)
}

// written is the time of the change made in epoch.
func (s State) written(epoch uint64) (time.Time, bool) {
	for _, e := range s.Entries {
		if e.Epoch == epoch {
			return e.Time, true
		}
	}
	for _, r := range s.Resumes {
		if r.Epoch == epoch {
			return r.Time, true
		}
	}
	return time.Time{}, false
}

func (s *Switch) remember(epoch uint64, replicas []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.recent) >= maxRecent {
		delete(s.recent, slices.Min(slices.Collect(maps.Keys(s.recent))))
	}
	s.recent[epoch] = replicas
}

func (s *Switch) registered(epoch uint64) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recent[epoch]
}
