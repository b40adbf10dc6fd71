package probe

import (
	"context"
	"math/rand/v2"
	"time"
)

// afterFailure is the longest interval after a round that failed: a connection that was
// lost once must not count for long, and alerts wait for several rounds.
const afterFailure = time.Minute

// Loop makes a round every interval, less or more by up to a tenth so that probers
// do not keep step, until ctx ends; the first one at once. After a round that failed
// the interval is at most a minute. A round that takes longer than the interval delays
// the next and stops nothing. each gets every report but that of a round that ctx cut
// off.
func (p *Probe) Loop(ctx context.Context, interval time.Duration, each func(Report)) {
	for ctx.Err() == nil {
		start := time.Now()
		report := p.Round(ctx)
		if ctx.Err() != nil {
			return
		}
		each(report)
		wait := interval
		if !report.OK() {
			wait = min(wait, afterFailure)
		}
		tenth := wait / 10
		next := wait - tenth + time.Duration(rand.Int64N(int64(2*tenth)+1))
		if !pause(ctx, max(next-time.Since(start), tenth)) {
			return
		}
	}
}
