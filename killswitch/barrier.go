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

// maxRecent is how many changes a Switch remembers.
const maxRecent = 64

// Barrier is how far a change has come.
type Barrier struct {
	Epoch   uint64
	Written time.Time // when it was written, by the store's clock
	// Effective: no request in scope passes its final check any more, on any
	// replica. At is by the store's clock the latest moment at which that
	// became so; before that, the moment at which it will if nothing is Unsettled.
	Effective bool
	At        time.Time
	Confirmed []string // replicas that have reported the epoch
	Silent    []string // registered, and have not
	// Unsettled, unless nil, is what the store itself still lacks, whatever replicas
	// report and however long it takes: copies have not acknowledged the change, or a
	// part of it that authorises requests has not heard of the epoch.
	Unsettled error
}

// barrier is one wait.
type barrier struct {
	Barrier
	change     State         // what is waited for, with nothing else in it
	known      string        // the Change of the state that it was seen in; empty: in none
	needs      uint64        // the epoch that replicas must report
	registered []string      // see look
	ago        time.Duration // how long before from it was written, by the store's clock
	from       time.Time     // by the local clock: the only one that counts from then on, for the store's may be set
	late       bool          // the bound had passed when the wait began
	settled    bool
	settledAt  time.Time // by the store's clock; zero if long ago
	newest     time.Time // report, by the store's clock
}

// since is how long ago the change was written.
func (b *barrier) since() time.Duration { return b.ago + time.Since(b.from) }

// now is the store's clock, as far as the local one tells.
func (b *barrier) now() time.Time { return b.Written.Add(b.since()) }

// Wait waits until the change made in epoch is effective: the store has it to stay
// and enforces it everywhere, and every replica that was registered has reported it
// or Params.Bound has passed since it was written, after which no permit from before
// can be valid. It can be called at any time and on any machine. A change that the
// store has lost is put back first, and counts as written then. report, which may be
// nil, is called with each change. An error comes with the barrier as it stood.
func (s *Switch) Wait(ctx context.Context, epoch uint64, report func(Barrier)) (Barrier, error) {
	b, err := s.begin(ctx, epoch)
	for told := false; err != nil && !errors.Is(err, ErrUnknownEpoch); told = true {
		// Without the store's word nothing is effective, and asking again is all.
		if b.Unsettled = err; report != nil && !told {
			report(b.Barrier)
		}
		select {
		case <-ctx.Done():
			return b.Barrier, fmt.Errorf("wait for epoch %d: %w", epoch, errors.Join(ctx.Err(), err))
		case <-time.After(s.cfg.Params.BarrierPoll):
		}
		b, err = s.begin(ctx, epoch)
	}
	if err != nil {
		return b.Barrier, fmt.Errorf("wait for epoch %d: %w", epoch, err)
	}
	settling, stop := context.WithCancel(ctx)
	defer stop()
	settlements := make(chan settlement)
	go s.settle(settling, b.change, b.known, settlements)

	bound := s.cfg.Params.Bound()
	deadline := time.NewTimer(bound - b.since())
	defer deadline.Stop()
	poll := time.NewTicker(s.cfg.Params.BarrierPoll)
	defer poll.Stop()
	var told *Barrier
	for {
		select { // before a look, which may take long
		case x := <-settlements:
			if b.take(x, bound) {
				deadline.Reset(bound)
			}
		default:
		}
		if err := s.look(ctx, b, bound); err != nil && ctx.Err() != nil {
			return b.Barrier, ctx.Err() // a store that does not answer otherwise only makes it slower
		}
		b.decide(bound)
		if report != nil && (told == nil || !b.same(*told)) {
			last := b.Barrier
			told = &last
			report(last)
		}
		if b.Effective {
			s.tell(b)
			return b.Barrier, nil
		}
		select {
		case <-ctx.Done():
			return b.Barrier, ctx.Err()
		case <-deadline.C:
		case <-poll.C:
		case x := <-settlements:
			if b.take(x, bound) {
				deadline.Reset(bound)
			}
		}
	}
}

// tell tells OnBarrier of a change that was seen to become effective. Several may wait
// for one.
func (s *Switch) tell(b *barrier) {
	if s.cfg.OnBarrier == nil || b.late {
		return
	}
	s.mu.Lock()
	known := s.told[b.Epoch]
	if len(s.told) >= maxRecent {
		delete(s.told, slices.Min(slices.Collect(maps.Keys(s.told))))
	}
	s.told[b.Epoch] = true
	s.mu.Unlock()
	if !known {
		s.cfg.OnBarrier(b.At.Sub(b.Written), b.reported())
	}
}

// reported says whether every replica has. A store that knows of none may have
// forgotten them: then time decides.
func (b *barrier) reported() bool { return len(b.Silent) == 0 && len(b.Confirmed) > 0 }

// begin finds the change of an epoch: in the store, or if that has lost it among
// those made here, or in custody.
func (s *Switch) begin(ctx context.Context, epoch uint64) (*barrier, error) {
	b := &barrier{Barrier: Barrier{Epoch: epoch}, needs: epoch}
	state, err := s.cfg.Store.State(ctx)
	if err != nil {
		return b, err
	}
	now, err := s.cfg.Store.Now(ctx)
	if err != nil {
		return b, err
	}
	made := s.made(epoch)
	b.change, b.known, b.registered = state.at(epoch), state.Change, made.registered
	if b.change.size() == 0 {
		b.change, b.known = made.change, ""
	}
	if b.change.size() == 0 && s.cfg.HighWater != nil {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Params.Custody)
		defer cancel()
		high, err := s.cfg.HighWater.Load(ctx)
		if err != nil {
			return b, fmt.Errorf("the store has nothing of that epoch, and custody cannot be asked: %w", err)
		}
		b.change = high.at(epoch)
	}
	if b.change.size() == 0 {
		return b, fmt.Errorf("%w: %d (the newest is %d)", ErrUnknownEpoch, epoch, state.Epoch)
	}
	b.Written = b.change.written()
	b.ago, b.from = max(now.Sub(b.Written), 0), time.Now()
	bound := s.cfg.Params.Bound()
	b.At, b.late = b.Written.Add(bound), b.ago >= bound
	return b, nil
}

// take learns what an attempt to settle came to. It returns true if the time begins
// anew: until now permits may have been granted without the change.
func (b *barrier) take(x settlement, bound time.Duration) bool {
	b.Unsettled = x.err
	if x.put {
		now := b.now()
		b.Written, b.ago, b.from, b.late = now, 0, time.Now(), false
		b.At, b.needs, b.registered = now.Add(bound), x.epoch, nil
		b.Confirmed, b.Silent = nil, nil
	}
	if b.settled = x.err == nil; b.settled && !b.late {
		b.settledAt = b.now()
	}
	return x.put
}

// decide says whether the change is effective, and since when.
func (b *barrier) decide(bound time.Duration) {
	reported := b.reported()
	if !b.settled || !reported && b.since() < bound {
		return
	}
	b.Effective = true
	if reported && b.newest.Before(b.At) {
		b.At = b.newest
	}
	for _, t := range []time.Time{b.Written, b.settledAt} {
		if b.At.Before(t) {
			b.At = t
		}
	}
}

// settlement is what an attempt to settle a change in the store came to.
type settlement struct {
	put   bool   // the store may have lacked the change until now
	epoch uint64 // of the store's state that has it, if put
	err   error  // what is still lacking
}

// settle makes sure that the store has the change to stay and enforces its epoch
// everywhere, and tells of each attempt until one succeeds. known is the Change of
// the state that the change was seen in.
func (s *Switch) settle(ctx context.Context, change State, known string, out chan<- settlement) {
	pause := time.NewTicker(5 * s.cfg.Params.BarrierPoll)
	defer pause.Stop()
	for {
		var x settlement
		state, err := s.merge(ctx, change)
		if err == nil { // an epoch that was spread cannot be taken back
			err = state.believable(change.highest())
		}
		if err != nil {
			x.err = fmt.Errorf("the store has not confirmed the change: %w", err)
		} else {
			x.put, x.epoch, known = state.Change != known, state.Epoch, state.Change
			if err := s.enforce(ctx, state.Epoch); err != nil {
				x.err = fmt.Errorf("the store does not yet enforce the epoch everywhere: %w", err)
			}
		}
		select {
		case out <- x:
		case <-ctx.Done():
			return
		}
		if x.err == nil {
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Switch) merge(ctx context.Context, change State) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Params.Call)
	defer cancel()
	return s.cfg.Store.Merge(ctx, change)
}

func (s *Switch) enforce(ctx context.Context, epoch uint64) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Params.Call)
	defer cancel()
	return s.cfg.Store.Enforce(ctx, epoch)
}

// look reads the replicas' reports. registered are the replicas known to have
// been there when the change was written; nil if that is not known here, and
// then they are those that the store has seen since they could have been.
func (s *Switch) look(ctx context.Context, b *barrier, bound time.Duration) error {
	// A look must not hold up the end.
	patience := min(s.cfg.Params.Call, max(bound-b.since(), s.cfg.Params.BarrierPoll))
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	replicas, err := s.cfg.Store.Replicas(ctx, b.since()+s.cfg.Params.Registered)
	if err != nil {
		return err
	}
	confirmed := make(map[string]bool)
	for _, name := range b.registered {
		confirmed[name] = false
	}
	b.newest = time.Time{}
	for _, r := range replicas {
		// One that has ended is no news, unless it was there.
		if _, was := confirmed[r.Replica]; was || b.registered == nil && r.Epoch != Gone {
			confirmed[r.Replica] = r.Epoch >= b.needs
			if r.Seen.After(b.newest) {
				b.newest = r.Seen
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
	return nil
}

func (b Barrier) same(o Barrier) bool {
	return b.Effective == o.Effective && slices.Equal(b.Confirmed, o.Confirmed) && slices.Equal(b.Silent, o.Silent) &&
		fmt.Sprint(b.Unsettled) == fmt.Sprint(o.Unsettled)
}

// at is the change made in epoch, with nothing else; empty if there was none.
func (s State) at(epoch uint64) State {
	out := State{Epoch: epoch}
	for _, e := range s.Entries {
		if e.Epoch == epoch {
			out.Entries = append(out.Entries, e)
		}
	}
	for _, r := range s.Resumes {
		if r.Epoch == epoch {
			out.Resumes = append(out.Resumes, r)
		}
	}
	return out
}

// written is when the newest of a state's acts was written.
func (s State) written() (t time.Time) {
	for _, e := range s.Entries {
		if e.Time.After(t) {
			t = e.Time
		}
	}
	for _, r := range s.Resumes {
		if r.Time.After(t) {
			t = r.Time
		}
	}
	return t
}

// remember keeps what a wait needs that is not in the store.
func (s *Switch) remember(change State, registered []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.recent) >= maxRecent {
		delete(s.recent, slices.Min(slices.Collect(maps.Keys(s.recent))))
	}
	s.recent[change.Epoch] = recent{change, registered}
}

func (s *Switch) made(epoch uint64) recent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recent[epoch]
}
