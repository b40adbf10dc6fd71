package signer_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// observer counts what it is told.
type observer struct {
	mu   sync.Mutex
	told map[string]int
}

type observedKey struct{}

func (o *observer) add(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told[what]++
}

func (o *observer) read() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.told)
}

func (o *observer) take() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = make(map[string]int)
}

func (o *observer) Call(ctx context.Context, operation, issuer string) (context.Context, func(error)) {
	o.add(operation + " begins")
	return context.WithValue(ctx, observedKey{}, operation), func(err error) { o.add(fmt.Sprintf("%s ends, failed: %v", operation, err != nil)) }
}

func (o *observer) Issued(issuer string, caller signer.CallerKind) {
	o.add("issued to a " + string(caller))
}
func (o *observer) Limited(limit signer.LimitKind) { o.add("limit " + string(limit)) }
func (o *observer) Replayed()                      { o.add("replayed") }

// Each event of a call is told once, on both faces, and custody is asked with the
// context that the observer gave.
func TestObserver(t *testing.T) {
	o := &observer{told: make(map[string]int)}
	w := newContractWorld(t, func(c *worldConfig) {
		c.observer = o
		c.issuers[0].CallerLimit = signer.Limit{Rate: 0.001, Burst: 3}
		c.issuers[0].EnrollLimit = signer.Limit{Rate: 0.001, Burst: 3}
		c.issuers[0].DeviceCap = 2
		c.proofs = signer.Limit{Rate: 0.001, Burst: 2}
	})
	w.keyring.watch(func(ctx context.Context, name string, digest []byte) ([]byte, error) {
		if ctx.Value(observedKey{}) != "sign" {
			t.Error("custody is asked with another context")
		}
		return w.keyring.Keyring.Sign(ctx, name, digest)
	})
	device, credential := w.deviceCaller(), w.credentialCaller()
	o.take()
	// A token counts as issued once it is on its way, which its caller may see first.
	step := func(what string, want map[string]int) {
		t.Helper()
		patience, tick := time.After(time.Minute), time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for !maps.Equal(o.read(), want) {
			select {
			case <-patience:
				t.Fatalf("%s: told %v, want %v", what, o.read(), want)
			case <-tick.C:
			}
		}
		o.take()
	}
	good := func(caller string) map[string]int {
		return map[string]int{"sign begins": 1, "sign ends, failed: false": 1, "issued to a " + caller: 1}
	}
	bad := func(operation string, more ...string) map[string]int {
		m := map[string]int{operation + " begins": 1, operation + " ends, failed: true": 1}
		for _, what := range more {
			m[what]++
		}
		return m
	}

	once := device.auth("/pact/sign")
	w.plainREST("/pact/sign", goodSign, once)
	step("a device", good("device"))
	w.plainREST("/pact/sign", goodSign, once)
	step("the same proof", bad("sign", "replayed"))
	w.rpc("/pact/sign", goodSign, credential.auth("/pact/sign"))
	step("a credential on gRPC", good("credential"))
	w.rpc("/pact/status", goodStatus, credential.auth("/pact/status"))
	step("status", map[string]int{"status begins": 1, "status ends, failed: false": 1})

	w.plainREST("/pact/sign", goodSign, credential.auth("/pact/sign"))
	step("the last of the burst", good("credential"))
	if r := w.plainREST("/pact/sign", goodSign, credential.auth("/pact/sign")); r.status != http.StatusTooManyRequests {
		t.Fatalf("a fourth call: %+v", r)
	}
	step("a limit", bad("sign", "limit caller"))

	w.plainREST("/pact/sign", goodSign, "Bearer nobody")
	step("the second failed proof", bad("sign"))
	w.plainREST("/pact/sign", goodSign, "Bearer nobody")
	step("one too many", bad("sign", "limit failed_proof"))

	w.plainREST("/pact/enroll", w.enrolment(newDevice(t)), "")
	step("the last device", map[string]int{"enroll begins": 1, "enroll ends, failed: false": 1})
	w.plainREST("/pact/enroll", w.enrolment(newDevice(t)), "")
	step("a device too many", bad("enroll", "limit devices"))
	w.plainREST("/pact/enroll", w.enrolment(newDevice(t)), "")
	step("an enrolment too many", bad("enroll", "limit enroll"))

	other := w.credentialCaller()
	w.kill(killswitch.Audience, providerAudience)
	w.refresh()
	w.plainREST("/pact/sign", goodSign, other.auth("/pact/sign"))
	step("a killed audience", bad("sign"))
}
