package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/jwks"
)

// hanging is a server that answers nothing before release.
func hanging(t *testing.T) (url string, called <-chan struct{}, release func()) {
	t.Helper()
	calls, held := make(chan struct{}, 64), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		calls <- struct{}{}
		<-held
	}))
	release = sync.OnceFunc(func() { close(held) })
	t.Cleanup(func() { release(); srv.Close() })
	return srv.URL, calls, release
}

// An issuer's headers are not read without end.
func TestFetchedHeadersAreBounded(t *testing.T) {
	iss := newIssuer(t)
	set, err := json.Marshal(iss.jwks())
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int]bool{1 << 10: true, 2 * fetchHeaderLimit: false} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("x", size))
			_, _ = w.Write(set)
		}))
		f := newKeyFetcher(time.Now, Defaults())
		if _, err := f.keySet(t.Context(), srv.URL+"/jwks"); (err == nil) != want {
			t.Errorf("a header of %d bytes: %v", size, err)
		}
		f.close()
		srv.Close()
	}
}

// Two key sets of an origin are read at once, and sixteen in all. What there is no room
// for is refused at once, and not held against the issuer.
func TestFetchesAtOnce(t *testing.T) {
	f := newKeyFetcher(time.Now, Defaults())
	defer f.close()
	var reads sync.WaitGroup
	var free []func()
	read := func(url string) { reads.Go(func() { _, _ = f.keySet(context.Background(), url) }) }
	for range fetchesAtOnce / fetchesOfOrigin {
		url, called, release := hanging(t)
		free = append(free, release)
		for i := range fetchesOfOrigin {
			read(fmt.Sprint(url, "/", i))
			<-called
		}
		if len(free) == 1 {
			if _, err := f.keySet(t.Context(), url+"/another"); !errors.Is(err, errBusy) {
				t.Fatalf("a third of one origin: %v", err)
			}
		}
	}
	iss := newIssuer(t)
	keys := iss.url + jwks.WellKnownPath
	if _, err := f.keySet(t.Context(), keys); !errors.Is(err, errBusy) || iss.fetches.Load() > 0 {
		t.Fatalf("one more: %v", err)
	}
	for _, release := range free {
		release()
	}
	reads.Wait()
	if _, err := f.keySet(t.Context(), keys); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if f.running != 0 || len(f.of) != 0 {
		t.Errorf("%d run, of %v", f.running, f.of)
	}
}

// Closing ends what is read, whatever its caller wants.
func TestCloseEndsFetches(t *testing.T) {
	f := newKeyFetcher(time.Now, Defaults())
	url, called, _ := hanging(t)
	done := make(chan error, 1)
	go func() {
		_, err := f.keySet(context.Background(), url)
		done <- err
	}()
	<-called
	f.close()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Callers of an issuer that there is no room for are refused, and told when to come
// back where the protocol has words for it. Others call on.
func TestNoRoomForKeySets(t *testing.T) {
	w := newWorld(t)
	known := w.issuer
	if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != 200 {
		t.Fatalf("status %d", a.status)
	}
	for i := range fetchesAtOnce {
		if !w.sandbox.fetcher.enter(fmt.Sprint(i)) {
			t.Fatal("no room")
		}
	}
	if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != 200 {
		t.Errorf("a known issuer: %d", a.status)
	}
	next := newKey(t, jose.ES256)
	known.change(func() { known.keys = append(known.keys, next) })
	withNext := func() int {
		return w.do(http.MethodGet, w.url(MarrowID, "tasks"), "", "Authorization: Bearer "+sign(t, next, w.claims(), nil)).status
	}
	if got := withNext(); got != 401 {
		t.Errorf("its next key: %d", got)
	}
	w.issuer = newIssuer(t)
	if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != 401 || a.header.Get("WWW-Authenticate") != identityChallenge {
		t.Errorf("another issuer: %d", a.status)
	}
	if a := w.register("my-pa", jwks.WellKnownPath); a.status != 503 || a.header.Get("Retry-After") != "10" {
		t.Errorf("another issuer registers: %d, Retry-After %q", a.status, a.header.Get("Retry-After"))
	}
	if n := w.issuer.fetches.Load(); n != 0 {
		t.Errorf("%d fetches", n)
	}
	for i := range fetchesAtOnce {
		w.sandbox.fetcher.leave(fmt.Sprint(i))
	}
	if a := w.register("my-pa", jwks.WellKnownPath); a.status != 201 {
		t.Errorf("with room again: %d", a.status)
	}
	w.issuer = known
	if got := withNext(); got != 200 {
		t.Errorf("the next key of the known one, with room again: %d", got)
	}
}

// However many issuers call, a key set that was had stays until it may be asked for
// again: nobody can have an issuer asked more often than that.
func TestManyIssuersTakeNobodysPlace(t *testing.T) {
	c := &clock{t: testStart}
	p := Defaults()
	f := newKeyFetcher(c.now, p)
	defer f.close()
	iss := newIssuer(t)
	set, err := json.Marshal(iss.jwks())
	if err != nil {
		t.Fatal(err)
	}
	reads := map[string]int{}
	cache := &jwks.Cache{Now: c.now, Size: keptSets, RefetchEvery: p.KeySetRefetch, Fetch: func(_ context.Context, url string) ([]byte, error) {
		if !f.enter(url) {
			return nil, errBusy
		}
		defer f.leave(url)
		reads[url]++
		return set, nil
	}}
	look := func(url, kid string) error {
		_, err := cache.Key(t.Context(), url, kid, jose.ES256)
		return err
	}
	kid := iss.keys[0].KeyID
	if err := look("victim", kid); err != nil {
		t.Fatal(err)
	}
	const steps = 100
	refused := 0
	for i := range steps {
		for j := range 30 {
			if err := look(fmt.Sprint(i, " ", j), kid); errors.Is(err, errBusy) {
				refused++
			}
		}
		c.advance(p.KeySetRefetch / steps)
	}
	if err := look("victim", kid); err != nil || reads["victim"] != 1 {
		t.Errorf("%d reads, %v", reads["victim"], err)
	}
	if refused == 0 || refused > 30*steps-keptSets/2 {
		t.Errorf("%d of %d refused", refused, 30*steps)
	}
}
