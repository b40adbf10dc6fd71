package redis

import (
	"sync/atomic"
	"time"
)

// atomicDuration is how far a test has moved the store's clock.
type atomicDuration struct{ n atomic.Int64 }

func (d *atomicDuration) load() time.Duration { return time.Duration(d.n.Load()) }

func (d *atomicDuration) add(by time.Duration) { d.n.Add(int64(by)) }
