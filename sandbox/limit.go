package sandbox

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// limitedKeys is how many callers a limiter remembers; one that it forgot
// starts anew.
const limitedKeys = 16384

// limiter holds a token bucket for each key.
type limiter struct {
	limit   Limit
	buckets *lru.Cache[string, *rate.Limiter]
}

func newLimiter(l Limit) *limiter {
	// New fails only for a size under one.
	buckets, _ := lru.New[string, *rate.Limiter](limitedKeys)
	return &limiter{limit: l, buckets: buckets}
}

// take uses up one call of key. If none is left it says how long to wait. The
// call can be given back, for the same time, with back.
func (l *limiter) take(key string, now time.Time) (wait time.Duration, back func()) {
	fresh := rate.NewLimiter(rate.Every(l.limit.Every), l.limit.Burst)
	b, ok, _ := l.buckets.PeekOrAdd(key, fresh)
	if !ok {
		b = fresh
	} else {
		l.buckets.Get(key) // it was used just now
	}
	r := b.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait, func() { r.CancelAt(now) }
}

// call is one of a key, to be taken from a limiter.
type call struct {
	of  *limiter
	key string
}

// takeAll uses up all calls, or none of them if one has none left: then it says how
// long to wait until all have one. They can be given back together, with back.
func takeAll(now time.Time, calls ...call) (wait time.Duration, back func()) {
	var backs []func()
	for _, c := range calls {
		w, b := c.of.take(c.key, now)
		if w == 0 {
			backs = append(backs, b)
		}
		wait = max(wait, w)
	}
	back = func() {
		for _, b := range backs {
			b()
		}
	}
	if wait > 0 {
		back()
	}
	return wait, back
}

// tooMany answers 429 with a Retry-After that is true: whole seconds, rounded up.
func tooMany(w http.ResponseWriter, wait time.Duration) {
	w.Header().Set("Retry-After", retryAfter(wait))
	w.WriteHeader(http.StatusTooManyRequests)
}

func retryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
}
