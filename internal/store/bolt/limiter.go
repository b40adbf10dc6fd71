package bolt

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/pactsigner/pactsigner/signer"
)

// limiter holds callers' token buckets by the generic cell rate algorithm: per
// caller the time at which its bucket will be full again. A caller whose bucket
// is full is not remembered. Only authenticated callers get here, so a bucket
// costs a caller a signature. All is lost, and so refilled, on a restart.
type limiter struct {
	now    func() time.Duration // since the store was opened
	seed   maphash.Seed
	shards [64]limiterShard
}

type limiterShard struct {
	mu    sync.Mutex
	full  map[caller]time.Duration // since the store was opened
	sweep int                      // forget full buckets at this size
}

type caller struct {
	kind       signer.CallerKind
	issuer, id string
}

const minSweep = 64

func newLimiter(now func() time.Duration) *limiter {
	l := &limiter{now: now, seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i] = limiterShard{full: make(map[caller]time.Duration), sweep: minSweep}
	}
	return l
}

// take charges one call, or says how long to wait until it would pass.
func (l *limiter) take(c caller, limit signer.Limit) (wait time.Duration, ok bool) {
	if limit.Rate <= 0 || limit.Burst <= 0 {
		return 0, true
	}
	each := time.Duration(float64(time.Second) / limit.Rate)
	burst := each * time.Duration(limit.Burst)

	s := &l.shards[maphash.Comparable(l.seed, c)%uint64(len(l.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.now()
	full := max(s.full[c], now) + each
	if wait := full - now - burst; wait > 0 {
		return wait, false
	}
	s.full[c] = full
	if len(s.full) >= s.sweep {
		for c, full := range s.full {
			if full <= now {
				delete(s.full, c)
			}
		}
		s.sweep = max(2*len(s.full), minSweep)
	}
	return 0, true
}
