package signer

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/pactsigner/pactsigner/internal/audit"
)

// How refusals to authenticated callers are sampled, so that none of them can
// fill the audit log.
const (
	refusalEvery = time.Minute
	maxRefusals  = 10_000          // callers and reasons that are remembered
	refusalBound = 5 * time.Second // for writing one
)

// refusalLog writes refusals to the audit log, at most one a minute for a caller
// and a reason.
type refusalLog struct {
	store Store
	log   *slog.Logger

	mu   sync.Mutex
	last *simplelru.LRU[refusalKey, time.Time]
}

type refusalKey struct {
	issuer string
	kind   CallerKind
	id     string
	reason Reason
}

func newRefusalLog(store Store, log *slog.Logger) *refusalLog {
	last, err := simplelru.NewLRU[refusalKey, time.Time](maxRefusals, nil)
	if err != nil {
		panic("signer: " + err.Error()) // the size is positive
	}
	return &refusalLog{store: store, log: log, last: last}
}

// due says whether a refusal is to be written, and remembers that it was.
func (l *refusalLog) due(k refusalKey, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, ok := l.last.Get(k); ok && now.Sub(last).Abs() < refusalEvery {
		return false
	}
	l.last.Add(k, now)
	return true
}

// add writes a refusal, also of a caller who leaves to avoid that. That it cannot be
// written changes nothing for the caller, who is refused anyway.
func (l *refusalLog) add(ctx context.Context, now time.Time, issuer string, who Authorized, op operation, r *Refusal) {
	if !l.due(refusalKey{issuer, who.Kind, who.ID, r.Reason}, now) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refusalBound)
	defer cancel()
	err := l.store.AppendAudit(ctx, audit.Entry{
		Time: now, Actor: string(who.Kind) + ":" + who.ID, Action: "refused", Issuer: issuer, Target: string(op),
		Detail: map[string]string{"reason": string(r.Reason)},
	})
	if err != nil {
		l.log.LogAttrs(ctx, slog.LevelWarn, "a refusal could not be written to the audit log", slog.Any("err", err))
	}
}
