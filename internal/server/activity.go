package server

import (
	"context"
	"crypto/rand"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pactsigner/pactsigner/signer"
)

// activity counts what this replica answers to sign requests, and tells the store,
// so that the whole fleet's last two hours can be looked at on any replica.
//
// A request costs one atomic addition. Once a second what was added goes to the
// minute that it is by the store's clock: since the last permit, ours tells only how
// much time has passed, so that a clock that is off or is set moves nothing.
type activity struct {
	signed, refused, failed atomic.Uint64

	replica, run string
	now          func() time.Time

	mu      sync.Mutex
	known   bool      // the store's clock is: until then ours is taken for it
	since   time.Time // by the store's clock
	base    time.Time // the store's clock
	at      time.Time // ours, when the store's was base
	seen    signer.ActivityCounts
	minutes map[int64]signer.ActivityCounts
	recent  []reading // of the last ten seconds, the oldest first
	ended   bool
}

// reading is what had been counted at a time of our clock.
type reading struct {
	at     time.Time
	counts signer.ActivityCounts
}

const (
	activitySample = time.Second
	activityRecent = 10 * time.Second
	activityBound  = time.Second // for one call of the store
	// activityAlone is how often a signer that has its store for itself writes it: only
	// its restart reads that, and a crash may lose it.
	activityAlone = time.Minute
)

// newActivity begins to count. now need not be right, but must be monotonic.
func newActivity(replica string, now func() time.Time) *activity {
	at := now()
	return &activity{
		replica: replica, run: rand.Text(), now: now,
		since: at.Round(0), base: at.Round(0), at: at,
		minutes: make(map[int64]signer.ActivityCounts),
		recent:  []reading{{at: at}},
	}
}

// count counts a request; only sign requests are. It takes no lock and does not
// allocate.
func (a *activity) count(method, result string) {
	if a == nil || method != methodSign {
		return
	}
	switch result {
	case "ok":
		a.signed.Add(1)
	case "invalid_request", "unauthorized", "disabled", "not_found", "audience_not_registered", "rate_limited":
		a.refused.Add(1)
	case "cancelled": // got no answer, and is nobody's failure
	default:
		a.failed.Add(1)
	}
}

// tell takes in the store's clock, as a permit brings it.
func (a *activity) tell(store time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.now()
	if !a.known {
		a.known, a.since = true, store.Add(-at.Sub(a.at))
	}
	a.base, a.at = store, at
}

// sample gives what was counted since the last time to the present minute.
func (a *activity) sample() {
	at := a.now()
	store := a.base.Add(at.Sub(a.at))
	total := signer.ActivityCounts{Signed: a.signed.Load(), Refused: a.refused.Load(), Failed: a.failed.Load()}
	if more := total.Less(a.seen); more != (signer.ActivityCounts{}) {
		minute := signer.ActivityMinuteOf(store)
		a.minutes[minute] = a.minutes[minute].Add(more)
		a.seen = total
	}
	oldest, newest := signer.ActivityMinuteOf(store.Add(-signer.ActivityKept)), signer.ActivityMinuteOf(store.Add(signer.ActivityKept))
	maps.DeleteFunc(a.minutes, func(m int64, _ signer.ActivityCounts) bool { return m < oldest || m > newest })
	if at.Sub(a.recent[len(a.recent)-1].at) >= activitySample/2 { // not for each look of a person
		a.recent = append(a.recent, reading{at, total})
	}
	for len(a.recent) > 1 && at.Sub(a.recent[1].at) >= activityRecent {
		a.recent = a.recent[1:]
	}

}

// read returns what was counted until now.
func (a *activity) read() signer.Activity {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sample()
	first := a.recent[0]
	return signer.Activity{
		Replica: a.replica, Run: a.run, Since: a.since, Ended: a.ended,
		Recent: a.seen.Less(first.counts), Span: a.now().Sub(first.at),
		Minutes: maps.Clone(a.minutes),
	}
}

// record tells the store what was counted. What it does not take is told the next
// time.
func (a *activity) record(ctx context.Context, store signer.ActivityStore) error {
	data, err := a.read().Encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, activityBound)
	defer cancel()
	return store.PutActivity(ctx, a.run, data)
}

// keep samples until ctx ends, and tells the store every so often and at the end. An
// outage of the store is in the log already.
func (a *activity) keep(ctx context.Context, store signer.ActivityStore, every time.Duration) {
	tick := time.NewTicker(activitySample)
	defer tick.Stop()
	told := a.now().Add(-every) // peers hear of it at once
	for {
		select {
		case <-ctx.Done():
			a.end(context.WithoutCancel(ctx), store)
			return
		case <-tick.C:
		}
		a.mu.Lock()
		a.sample()
		a.mu.Unlock()
		if at := a.now(); at.Sub(told) >= every {
			_ = a.record(ctx, store)
			told = at
		}
	}
}

// end counts no more and tells the store for the last time.
func (a *activity) end(ctx context.Context, store signer.ActivityStore) {
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	_ = a.record(ctx, store) // the minutes since the last time are lost if it fails
}
