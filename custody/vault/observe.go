package vault

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"
)

// Observer is told of the calls to Vault, for metrics and traces. Its methods are
// called for every one of them, by several at a time: they must return at once.
type Observer interface {
	// Call is told that a request to one of Vault's servers begins. The request gets
	// the context that Call returns, and ended is called with its outcome. Both are one of
	// a few words, see below.
	Call(ctx context.Context, operation string) (_ context.Context, ended func(result string))
	// Batch is told that so many signatures are about to be asked for in one request,
	// by the callers with these contexts. The request's context is a descendant of the
	// one that Batch returns, and ended is called after it.
	Batch(ctx context.Context, size int, callers iter.Seq[context.Context]) (_ context.Context, ended func())
	// Full is told that a signature was refused because too many wait for Vault, or
	// because Vault takes longer than its caller has.
	Full()
}

// The operations that an [Observer] is told of.
const (
	opSign     = "sign"     // a batch of signatures
	opHMAC     = "hmac"     // a subject
	opEncrypt  = "encrypt"  // to wrap a key
	opDecrypt  = "decrypt"  // to unwrap one
	opKey      = "key"      // to make, describe or disable a key of transit
	opDocument = "document" // in KV
	opLogin    = "login"
	opRenew    = "renew"  // of the login
	opLookup   = "lookup" // of a token that was given
	opOther    = "other"
)

// The results.
const (
	resultOK          = "ok"
	resultNotFound    = "not_found"
	resultRefused     = "refused"     // another 4xx: not allowed, or wrong
	resultSealed      = "sealed"      // 503, in so many words
	resultUnavailable = "unavailable" // 429, and 3xx or 5xx for another reason
	resultUnreachable = "unreachable" // there was no answer
	resultCancelled   = "cancelled"   // the caller left
)

// operationOf tells what a request is for by its path, in which names of ours and of
// mounts are.
func operationOf(path string) string {
	for _, o := range [...]struct{ part, operation string }{
		{"/login", opLogin}, {"/renew-self", opRenew}, {"/lookup-self", opLookup},
		{"/sign/", opSign}, {"/hmac/", opHMAC}, {"/encrypt/", opEncrypt}, {"/decrypt/", opDecrypt},
		{"/keys/", opKey}, {"/data/", opDocument}, {"/metadata/", opDocument},
	} {
		if strings.Contains(path, o.part) {
			return o.operation
		}
	}
	return opOther
}

// resultOf names how a request ended.
func resultOf(ctx context.Context, err error) string {
	var e *callError
	switch {
	case err == nil:
		return resultOK
	case errors.Is(ctx.Err(), context.Canceled):
		return resultCancelled
	case !errors.As(err, &e) || e.status == 0:
		return resultUnreachable
	case e.sealed():
		return resultSealed
	case e.status == http.StatusNotFound:
		return resultNotFound
	case e.status >= 400 && e.status < 500 && e.status != http.StatusTooManyRequests:
		return resultRefused
	default:
		return resultUnavailable
	}
}

// sealed reports whether Vault says that it is.
func (e *callError) sealed() bool {
	return e.status == http.StatusServiceUnavailable && strings.Contains(e.reason, "sealed")
}

// silent is nobody who wants to know.
type silent struct{}

func (silent) Call(ctx context.Context, _ string) (context.Context, func(string)) {
	return ctx, func(string) {}
}

func (silent) Batch(ctx context.Context, _ int, _ iter.Seq[context.Context]) (context.Context, func()) {
	return ctx, func() {}
}

func (silent) Full() {}

// Sealed reports whether Vault's last answer was that it is sealed.
func (k *Keyring) Sealed() bool { return k.client.sealed.Load() }

// Queued is how many signatures wait to be asked for.
func (k *Keyring) Queued() int {
	t := k.transit
	t.mu.RLock()
	defer t.mu.RUnlock()
	t.scheduler.mu.Lock()
	defer t.scheduler.mu.Unlock()
	n := 0
	for _, key := range t.keys {
		n += key.queue.waiting
	}
	return n
}
