package jwks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

var (
	// ErrUnknownKey: the set has no usable key of that id and algorithm, also
	// after the refetch that was permitted.
	ErrUnknownKey = errors.New("jwks: unknown key")
	// ErrUnavailable: the set could not be had, so nothing is known of the key.
	ErrUnavailable = errors.New("jwks: key set unavailable")
)

// Defaults of [Cache] (MD-7).
const (
	DefaultCacheSize    = 64
	DefaultCacheTTL     = 10 * time.Minute
	DefaultRefetchEvery = 30 * time.Second
)

// Cache looks keys up in key sets by URL as MD-7 wants it: Size sets, the least
// recently used leaves first; a set is used for TTL; an unknown kid fetches again
// at most once in RefetchEvery, counted from the last such fetch of that URL.
// Concurrent lookups of one URL share a fetch. Safe for concurrent use; set the
// fields before the first call and leave them.
type Cache struct {
	// Fetch gets the document. It bounds its own time and size (TR: 10 s, 64 KiB)
	// and checks the URL. Required.
	Fetch func(ctx context.Context, url string) ([]byte, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Size, TTL and RefetchEvery; zero takes the default.
	Size         int
	TTL          time.Duration
	RefetchEvery time.Duration

	mu   sync.Mutex
	sets *simplelru.LRU[string, *entry]
}

// entry is the state of one URL. Whoever holds turn may change it.
type entry struct {
	turn chan struct{} // of capacity 1: a mutex that a context can leave

	attempts uint64 // fetches made, to see that somebody else made one meanwhile
	set      Set
	at       time.Time // of the last good fetch; zero: none
	err      error     // of the last fetch
	unknown  time.Time // of the last fetch for an unknown kid; zero: none
}

// Key returns the key of that id and algorithm in the set at url. Without kid it
// returns the set's only key for alg. Errors wrap [ErrUnknownKey],
// [ErrUnavailable] or the context's.
func (c *Cache) Key(ctx context.Context, url, kid string, alg jose.SignatureAlgorithm) (Key, error) {
	e, attempts := c.entry(url)
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return Key{}, fmt.Errorf("jwks: %w", context.Cause(ctx))
	}

	fetched := false
	if now := c.now(); e.at.IsZero() || now.Sub(e.at) >= orDefault(c.TTL, DefaultCacheTTL) || now.Before(e.at) {
		// The fetch that this call waited for counts as its own, failed or not.
		if c.peek(e) == attempts {
			c.fetch(ctx, e, url)
		}
		if e.err != nil {
			return Key{}, e.err
		}
		fetched = true
	}
	if k, ok := e.set.Find(kid, alg); ok {
		return k, nil
	}
	// A set read just now, or a token that names no key, gains nothing by a fetch.
	if !fetched && kid != "" {
		now := c.now()
		if e.unknown.IsZero() || now.Sub(e.unknown) >= orDefault(c.RefetchEvery, DefaultRefetchEvery) || now.Before(e.unknown) {
			before := e.unknown
			e.unknown = now
			if c.fetch(ctx, e, url); ctx.Err() != nil {
				e.unknown = before // a caller that left used up nobody's turn
			}
		}
		if e.err != nil {
			return Key{}, e.err
		}
		if k, ok := e.set.Find(kid, alg); ok {
			return k, nil
		}
	}
	return Key{}, fmt.Errorf("%w: kid %.64q for %s", ErrUnknownKey, kid, alg)
}

// fetch gets the set. The old one stays for known keys if that fails.
func (c *Cache) fetch(ctx context.Context, e *entry, url string) {
	doc, err := c.Fetch(ctx, url)
	var set Set
	if err == nil {
		set, err = Parse(doc)
	}
	if ctx.Err() == nil { // else it says nothing to those who wait
		c.mu.Lock()
		e.attempts++
		c.mu.Unlock()
	}
	if err != nil {
		e.err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		return
	}
	e.set, e.at, e.err = set, c.now(), nil
}

func (c *Cache) entry(url string) (*entry, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sets == nil {
		// NewLRU fails only for a size under one.
		c.sets, _ = simplelru.NewLRU[string, *entry](max(1, orDefault(c.Size, DefaultCacheSize)), nil)
	}
	e, ok := c.sets.Get(url)
	if !ok {
		e = &entry{turn: make(chan struct{}, 1)}
		c.sets.Add(url, e)
	}
	return e, e.attempts
}

func (c *Cache) peek(e *entry) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.attempts
}

func (c *Cache) now() time.Time {
	if c.Now == nil {
		return time.Now()
	}
	return c.Now()
}

func orDefault[T int | time.Duration](v, d T) T {
	if v == 0 {
		return d
	}
	return v
}
