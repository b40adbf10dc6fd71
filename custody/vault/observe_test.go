package vault

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// told is an observer that counts.
type told struct {
	mu     sync.Mutex
	counts map[string]int
}

func (o *told) add(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[what]++
}

type askedFor struct{}

func (o *told) Call(ctx context.Context, operation string) (context.Context, func(string)) {
	return ctx, func(result string) { o.add(operation + " " + result) }
}

func (o *told) Batch(ctx context.Context, size int, callers iter.Seq[context.Context]) (context.Context, func()) {
	names := ""
	for caller := range callers {
		names += fmt.Sprint(caller.Value(askedFor{}))
	}
	return ctx, func() { o.add(fmt.Sprintf("batch of %d for %s", size, names)) }
}

func (o *told) Full() { o.add("full") }

// Every request to Vault is told, with what it was for and how it ended.
func TestObserver(t *testing.T) {
	for _, c := range []struct {
		method, path string
		status       int
		body, want   string
		sealed       bool
	}{
		{"POST", "transit/sign/p-a", 200, `{}`, "sign ok", false},
		{"POST", "transit/hmac/p-subject", 200, `{}`, "hmac ok", false},
		{"POST", "transit/encrypt/p-wrap", 500, `{"errors":["broken"]}`, "encrypt unavailable", false},
		{"POST", "transit/decrypt/p-wrap", 400, `{"errors":["no"]}`, "decrypt refused", false},
		{"GET", "transit/keys/p-a", 404, `{"errors":[]}`, "key not_found", false},
		{"POST", "transit/keys/p-a/rotate", 429, `{"errors":["slow down"]}`, "key unavailable", false},
		{"GET", "secret/data/p/documents/x", 503, `{"errors":["Vault is sealed"]}`, "document sealed", true},
		{"GET", "secret/metadata/p/documents/x", 503, `{"errors":["no leader"]}`, "document unavailable", false},
		{"POST", "auth/token/renew-self", 200, `{}`, "renew ok", false},
		{"GET", "sys/health", 200, `{}`, "other ok", false},
	} {
		o := &told{counts: map[string]int{}}
		client := unauthenticated(t, func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "lookup-self") {
				return response(r, 200, `{"data":{"ttl":0}}`), nil
			}
			return response(r, c.status, c.body), nil
		}, "http://one")
		if _, err := client.login.session(t.Context()); err != nil {
			t.Fatal(err)
		}
		client.told = o
		_, _ = client.send(t.Context(), c.method, c.path, "hvs.test", nil)
		if !maps.Equal(o.counts, map[string]int{c.want: 1}) || client.sealed.Load() != c.sealed {
			t.Errorf("%s: told %v, sealed %v; want %s, %v", c.path, o.counts, client.sealed.Load(), c.want, c.sealed)
		}
	}
}

// Of a request without an answer it is told whether its caller left; neither says
// whether Vault is sealed.
func TestObserverWithoutAnAnswer(t *testing.T) {
	o := &told{counts: map[string]int{}}
	ctx, leave := context.WithCancel(t.Context())
	client := unauthenticated(t, func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "lookup-self") {
			return response(r, 200, `{"data":{"ttl":0}}`), nil
		}
		if strings.Contains(r.URL.Path, "/hmac/") {
			leave()
		}
		return nil, errors.New("connection refused")
	}, "http://one")
	if _, err := client.login.session(t.Context()); err != nil {
		t.Fatal(err)
	}
	client.told = o
	client.sealed.Store(true)
	_, _ = client.send(ctx, "POST", "transit/sign/p-a", "hvs.test", nil)
	_, _ = client.send(ctx, "POST", "transit/hmac/p-a", "hvs.test", nil)
	if !maps.Equal(o.counts, map[string]int{"sign unreachable": 1, "hmac cancelled": 1}) || !client.sealed.Load() {
		t.Errorf("told %v, sealed %v", o.counts, client.sealed.Load())
	}
}

// A batch is told with those who wait for it.
func TestObserverOfABatch(t *testing.T) {
	o := &told{counts: map[string]int{}}
	v := &signingVault{}
	tr, _ := v.transit(t)
	k, err := tr.key(t.Context(), "pact-signer-a")
	if err != nil {
		t.Fatal(err)
	}
	tr.client.told = o
	var batch []*item
	for i := range 3 {
		batch = append(batch, &item{ctx: context.WithValue(t.Context(), askedFor{}, i), digest: sha256.Sum256([]byte{byte(i)})})
	}
	if err := tr.signBatch(t.Context(), k.queue, batch); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(o.counts, map[string]int{"sign ok": 1, "batch of 3 for 012": 1}) {
		t.Errorf("told %v", o.counts)
	}
}

// One too many is told, and counted out of those who wait.
func TestObserverOfAFullQueue(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFakeVault(time.Second)
		full := 0
		tr := &transit{scheduler: newScheduler(f.send), keys: map[string]*signingKey{}}
		tr.scheduler.full = func() { full++ }
		defer tr.scheduler.close()
		q := newTestQueue("a")
		tr.keys["a"] = &signingKey{queue: q}
		k := &Keyring{transit: tr}
		accepted := signers(t.Context(), tr.scheduler, q, 2+1024)
		synctest.Wait()
		if n := k.Queued(); n != 1024 {
			t.Errorf("%d wait, want 1024", n)
		}
		if _, err := tr.scheduler.sign(t.Context(), q, digestOf(0)); !errors.Is(err, custody.ErrUnavailable) || full != 1 {
			t.Errorf("one more: %v, told %d times", err, full)
		}
		noErrors(t, accepted())
		if n := k.Queued(); n != 0 || full != 1 {
			t.Errorf("%d wait, told %d times", n, full)
		}
	})
}
