package jwks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// origin is a key-set server whose keys a test changes.
type origin struct {
	mu    sync.Mutex
	kids  []string
	fail  error
	delay time.Duration
	calls int
}

func (o *origin) fetch(ctx context.Context, _ string) ([]byte, error) {
	o.mu.Lock()
	o.calls++
	kids, fail, delay := o.kids, o.fail, o.delay
	o.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if fail != nil {
		return nil, fail
	}
	keys := make([]Key, len(kids))
	for i, kid := range kids {
		keys[i] = Key{kid, jose.ES256, &testKeys().ec.PublicKey}
	}
	return Marshal(keys)
}

func (o *origin) set(kids ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kids = kids
}

func (o *origin) want(t *testing.T, calls int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls != calls {
		t.Fatalf("%d fetches, want %d", o.calls, calls)
	}
}

// clocked makes a cache of o and the function that moves its clock.
func clocked(o *origin) (*Cache, func(time.Duration)) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &Cache{Fetch: o.fetch, Now: func() time.Time { return now }}, func(d time.Duration) { now = now.Add(d) }
}

func look(t *testing.T, c *Cache, kid string, want error) {
	t.Helper()
	k, err := c.Key(t.Context(), "https://x", kid, jose.ES256)
	if !errors.Is(err, want) || want == nil && (err != nil || kid != "" && k.ID != kid) {
		t.Fatalf("Key(%q) = %q, %v; want %v", kid, k.ID, err, want)
	}
}

// MD-7: an unknown kid fetches once in 30 s, counted from the last such fetch.
func TestCacheRefetchesForUnknownKidAtMostEvery30s(t *testing.T) {
	o := &origin{kids: []string{"a"}}
	c, advance := clocked(o)
	look(t, c, "a", nil)
	look(t, c, "a", nil)
	o.want(t, 1)

	o.set("a", "b")
	advance(time.Second)
	look(t, c, "b", nil) // the first unknown kid may fetch at once
	o.want(t, 2)

	o.set("a", "b", "c")
	advance(29 * time.Second)
	look(t, c, "c", ErrUnknownKey)
	look(t, c, "c", ErrUnknownKey)
	o.want(t, 2)
	advance(time.Second) // 30 s after the last fetch for an unknown kid
	look(t, c, "c", nil)
	o.want(t, 3)
	look(t, c, "d", ErrUnknownKey)
	o.want(t, 3)
}

func TestCacheFetchesOnceForAColdUnknownKid(t *testing.T) {
	o := &origin{kids: []string{"a"}}
	c := &Cache{Fetch: o.fetch}
	look(t, c, "x", ErrUnknownKey)
	o.want(t, 1)
	look(t, c, "", nil)
	o.want(t, 1)
	o.set("a", "b")
	look(t, c, "b", nil) // the cold fetch was not for an unknown kid
	o.want(t, 2)
	look(t, c, "", ErrUnknownKey) // two keys, none named; no fetch would help
	o.want(t, 2)
}

// MD-7: a set is used for ten minutes.
func TestCacheTTL(t *testing.T) {
	o := &origin{kids: []string{"a"}}
	c, advance := clocked(o)
	look(t, c, "a", nil)
	o.set("b")
	advance(10*time.Minute - time.Nanosecond)
	look(t, c, "a", nil)
	o.want(t, 1)
	advance(time.Nanosecond)
	look(t, c, "a", ErrUnknownKey)
	o.want(t, 2)
}

func TestCacheUnavailable(t *testing.T) {
	o := &origin{kids: []string{"a"}, fail: errors.New("down")}
	c, advance := clocked(o)
	look(t, c, "a", ErrUnavailable)
	o.fail = nil
	look(t, c, "a", nil) // a failure is not kept
	o.want(t, 2)

	o.fail = errors.New("down")
	look(t, c, "b", ErrUnavailable)
	o.want(t, 3)
	look(t, c, "b", ErrUnavailable) // still nothing is known of b, and no fetch is due
	o.want(t, 3)
	look(t, c, "a", nil) // the old set serves known keys
	advance(10 * time.Minute)
	look(t, c, "a", ErrUnavailable) // and not for ever
}

func TestCacheBadDocumentIsUnavailable(t *testing.T) {
	c := &Cache{Fetch: func(context.Context, string) ([]byte, error) { return []byte("<html>"), nil }}
	look(t, c, "a", ErrUnavailable)
}

func TestCacheSharesAFetch(t *testing.T) {
	for _, fail := range []error{nil, errors.New("down")} {
		bubble.Test(t, func(t *testing.T) {
			o := &origin{kids: []string{"a"}, delay: time.Second, fail: fail}
			c := &Cache{Fetch: o.fetch}
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					_, err := c.Key(t.Context(), "https://x", "a", jose.ES256)
					if (err == nil) != (fail == nil) {
						t.Errorf("got %v", err)
					}
				})
			}
			wg.Wait()
			o.want(t, 1)
		})
	}
}

func TestCacheCallerThatLeavesHarmsNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o := &origin{kids: []string{"a"}, delay: time.Second}
		c := &Cache{Fetch: o.fetch}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Key(ctx, "https://x", "a", jose.ES256); !errors.Is(err, context.Canceled) {
				t.Errorf("the one that left: %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() { look(t, c, "a", nil) })
		synctest.Wait()
		cancel()
		wg.Wait()
		o.want(t, 1) // the one that stayed has what was begun before

		// Nor does it use up the fetch for an unknown kid.
		o.set("a", "b")
		ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := c.Key(ctx, "https://x", "b", jose.ES256); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		look(t, c, "b", nil)
	})
}

func TestCacheForgetsTheLeastRecentlyUsed(t *testing.T) {
	calls := map[string]int{}
	o := &origin{kids: []string{"a"}}
	c := &Cache{Size: 2, Fetch: func(ctx context.Context, url string) ([]byte, error) {
		calls[url]++
		return o.fetch(ctx, url)
	}}
	for _, url := range []string{"1", "2", "1", "3", "1", "2"} {
		if _, err := c.Key(t.Context(), url, "a", jose.ES256); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(calls); got != "map[1:1 2:2 3:1]" {
		t.Error(got)
	}
}

// Callers that hang up while their key is looked for make one fetch, not one each.
func TestCacheFetchesOnceForThoseWhoHangUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o := &origin{kids: []string{"a"}}
		c := &Cache{Fetch: o.fetch}
		look(t, c, "a", nil)
		o.delay = 100 * time.Millisecond
		for range 60 { // for 60 times 1 ms, and then some
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := c.Key(ctx, "https://x", "b", jose.ES256); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v", err)
			}
			cancel()
		}
		time.Sleep(time.Second)
		look(t, c, "b", ErrUnknownKey)
		o.want(t, 2)
	})
}

// While an unknown kid is looked for, who uses a known one waits for nothing.
func TestCacheKnownKidWaitsForNoFetch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o := &origin{kids: []string{"a"}}
		c := &Cache{Fetch: o.fetch}
		look(t, c, "a", nil)
		o.delay = 10 * time.Second
		var wg sync.WaitGroup
		wg.Go(func() { look(t, c, "b", ErrUnknownKey) })
		synctest.Wait()
		start := time.Now()
		look(t, c, "a", nil)
		look(t, c, "", nil)
		if waited := time.Since(start); waited > 0 {
			t.Errorf("waited %v", waited)
		}
		wg.Wait()
		o.want(t, 2)
	})
}

// Sets that cannot be had take no place, and a set that lost its place is not
// looked at more often for unknown kids.
func TestCacheUnderManyURLs(t *testing.T) {
	calls := map[string]int{}
	o := &origin{kids: []string{"a"}}
	c := &Cache{Size: 2, Now: func() time.Time { return time.Unix(0, 0) }, Fetch: func(ctx context.Context, url string) ([]byte, error) {
		calls[url]++
		if url[0] == 'j' {
			return nil, errors.New("junk")
		}
		return o.fetch(ctx, url)
	}}
	at := func(url, kid string, want error) {
		t.Helper()
		if _, err := c.Key(t.Context(), url, kid, jose.ES256); !errors.Is(err, want) {
			t.Fatalf("%s at %s: %v, want %v", kid, url, err, want)
		}
	}
	at("victim", "a", nil)
	for i := range 64 {
		at(fmt.Sprint("junk", i), "a", ErrUnavailable)
	}
	at("victim", "a", nil)
	if calls["victim"] != 1 {
		t.Fatalf("%d fetches: sets that are none took its place", calls["victim"])
	}
	at("victim", "b", ErrUnknownKey)
	for _, url := range []string{"other 1", "other 2", "other 3"} {
		at(url, "a", nil)
		at(url, "b", ErrUnknownKey)
	}
	at("victim", "a", nil)
	at("victim", "b", ErrUnknownKey)
	if calls["victim"] != 3 {
		t.Errorf("%d fetches: one at first, one for b, one since others took its place", calls["victim"])
	}
}

// A fetch that was refused before anybody was asked uses up nothing.
func TestCacheNotAsked(t *testing.T) {
	o := &origin{kids: []string{"a"}}
	c, _ := clocked(o)
	look(t, c, "a", nil)
	o.fail = fmt.Errorf("no room: %w", ErrNotAsked)
	look(t, c, "b", ErrUnavailable)
	look(t, c, "b", ErrNotAsked)
	o.fail = nil
	o.set("a", "b")
	look(t, c, "b", nil)
	look(t, c, "c", ErrUnknownKey)
	o.want(t, 4)
}
