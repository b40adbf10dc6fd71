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
	// ErrNotAsked is for a [Cache.Fetch] to wrap that had to refuse before it asked
	// for the set: the refetch that was permitted still is.
	ErrNotAsked = errors.New("the key set was not asked for")
)

// Defaults of [Cache] (MD-7).
const (
	DefaultCacheSize    = 64
	DefaultCacheTTL     = 10 * time.Minute
	DefaultRefetchEvery = 30 * time.Second
)

const (
	// fetchTimeout ends a fetch that does not bound its own time.
	fetchTimeout = 30 * time.Second
	// lookoutsPerSet is how many URLs it is remembered of when an unknown kid was
	// looked for there, for each set that is kept: those that a set's place was taken
	// from by others are still not asked more often.
	lookoutsPerSet = 16
)

// Cache looks keys up in key sets by URL as MD-7 wants it: Size sets, the least
// recently used leaves first; a set is used for TTL; an unknown kid fetches again
// at most once in RefetchEvery, counted from the last such fetch of that URL, also
// if its set has left since. Concurrent lookups of one URL share a fetch, which goes
// on if they leave; who finds its key in a set that is in date waits for none. Safe
// for concurrent use; set the fields before the first call and leave them.
type Cache struct {
	// Fetch gets the document. It bounds its own time and size (TR: 10 s, 64 KiB)
	// and checks the URL. Its context has the values of the first caller's and is not
	// cancelled with it. Required.
	Fetch func(ctx context.Context, url string) ([]byte, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Size, TTL and RefetchEvery; zero takes the default.
	Size         int
	TTL          time.Duration
	RefetchEvery time.Duration

	mu       sync.Mutex
	sets     *simplelru.LRU[string, datedSet]
	lookouts *simplelru.LRU[string, lookout]
	fetches  map[string]*fetch // that are under way
}

// datedSet is a key set and when it was had.
type datedSet struct {
	Set
	at time.Time
}

// lookout is the last fetch of a URL for an unknown kid, and its error, if no set
// was had since.
type lookout struct {
	at  time.Time
	err error
}

// fetch is one that is under way. set and err are its outcome once done is closed.
type fetch struct {
	done       chan struct{}
	forUnknown bool // a kid that the set in date lacks

	set Set
	err error
}

// Key returns the key of that id and algorithm in the set at url. Without kid it
// returns the set's only key for alg. Errors wrap [ErrUnknownKey],
// [ErrUnavailable] or the context's.
func (c *Cache) Key(ctx context.Context, url, kid string, alg jose.SignatureAlgorithm) (Key, error) {
	for {
		k, f, mine, err := c.look(ctx, url, kid, alg)
		if f == nil {
			return k, err
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return Key{}, fmt.Errorf("jwks: %w", context.Cause(ctx))
		}
		// The fetch that this call waited for counts as its own, failed or not.
		if f.err != nil {
			return Key{}, f.err
		}
		if k, ok := f.set.Find(kid, alg); ok {
			return k, nil
		}
		// A set read just now, or a token that names no key, gains nothing by a fetch.
		// One that somebody began before may be older than the key.
		if mine || f.forUnknown || kid == "" {
			return Key{}, unknownKey(kid, alg)
		}
	}
}

func unknownKey(kid string, alg jose.SignatureAlgorithm) error {
	return fmt.Errorf("%w: kid %.64q for %s", ErrUnknownKey, kid, alg)
}

// look finds a key in the set in date. Where that cannot tell, it returns the fetch
// to wait for, and whether this call began it.
func (c *Cache) look(ctx context.Context, url, kid string, alg jose.SignatureAlgorithm) (k Key, f *fetch, mine bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sets == nil {
		// NewLRU fails only for a size under one.
		size := max(1, orDefault(c.Size, DefaultCacheSize))
		c.sets, _ = simplelru.NewLRU[string, datedSet](size, nil)
		c.lookouts, _ = simplelru.NewLRU[string, lookout](size*lookoutsPerSet, nil)
		c.fetches = map[string]*fetch{}
	}
	now := c.now()
	set, inDate := c.sets.Get(url)
	inDate = inDate && within(set.at, now, orDefault(c.TTL, DefaultCacheTTL))
	if inDate {
		if k, ok := set.Find(kid, alg); ok {
			return k, nil, false, nil
		}
		if kid == "" {
			return Key{}, nil, false, unknownKey(kid, alg)
		}
	}
	if f, ok := c.fetches[url]; ok {
		return Key{}, f, false, nil
	}
	if inDate {
		last, ok := c.lookouts.Get(url)
		if ok && within(last.at, now, orDefault(c.RefetchEvery, DefaultRefetchEvery)) {
			if last.err != nil {
				return Key{}, nil, false, last.err
			}
			return Key{}, nil, false, unknownKey(kid, alg)
		}
		c.lookouts.Add(url, lookout{at: now})
	}
	f = &fetch{done: make(chan struct{}), forUnknown: inDate}
	c.fetches[url] = f
	// The caller may leave: others wait for the same set, or will want it.
	go c.run(context.WithoutCancel(ctx), url, f)
	return Key{}, f, true, nil
}

// run gets the set. The old one stays for known keys if that fails.
func (c *Cache) run(ctx context.Context, url string, f *fetch) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	doc, err := c.Fetch(ctx, url)
	if err == nil {
		f.set, err = Parse(doc)
	}
	if err != nil {
		f.err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if f.err == nil {
		c.sets.Add(url, datedSet{f.set, c.now()})
	}
	if last, ok := c.lookouts.Peek(url); ok && (f.err == nil || f.forUnknown) {
		c.lookouts.Add(url, lookout{last.at, f.err})
		if errors.Is(f.err, ErrNotAsked) {
			c.lookouts.Remove(url)
		}
	}
	delete(c.fetches, url)
	close(f.done)
}

// within tells whether less than d has passed from then to now. A clock that went
// back says nothing.
func within(then, now time.Time, d time.Duration) bool {
	return now.Sub(then) < d && !now.Before(then)
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
