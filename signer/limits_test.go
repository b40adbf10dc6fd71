package signer_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// The product's limits, as the contract's clients meet them: 2/s with a burst of
// 120 for a caller, over sign and status and both faces, and who waits as told is
// served.
func TestCallerLimit(t *testing.T) {
	w := newContractWorld(t, func(c *worldConfig) { c.issuers[0].CallerLimit = signer.Limit{Rate: 2, Burst: 120} })
	for kind, c := range w.callers() {
		for i := range 120 {
			path, body, call := "/pact/sign", goodSign, w.plainREST
			if i%3 == 1 {
				path, body = "/pact/status", goodStatus
			}
			if i%2 == 1 {
				call = w.rpc
			}
			if r := call(path, body, c.auth(path)); r.status != http.StatusOK {
				t.Fatalf("%s, call %d: %+v", kind, i+1, r)
			}
		}
		for name, call := range w.faces() {
			for _, path := range []string{"/pact/sign", "/pact/status"} {
				body := map[string]string{"/pact/sign": goodSign, "/pact/status": goodStatus}[path]
				r := call(path, body, c.auth(path))
				r.refused(t, 429, "rate_limited")
				if r.retry != 1 {
					t.Errorf("%s: Retry-After %d, want 1", name, r.retry)
				}
			}
		}
		w.advance(time.Second)
		for i, want := range []int{200, 200, 429} {
			if r := w.rest("/pact/sign", goodSign, c.auth("/pact/sign")); r.status != want {
				t.Errorf("%s, call %d a second later: %+v", kind, i+1, r)
			}
		}
	}
}

// 1/s with a burst of 30 for an address; a forged X-Forwarded-For changes nothing.
func TestEnrollLimitOfTheProduct(t *testing.T) {
	w := newContractWorld(t, func(c *worldConfig) { c.issuers[0].EnrollLimit = signer.Limit{Rate: 1, Burst: 30} })
	d := newDevice(t)
	for i := range 30 {
		if r := w.rest("/pact/enroll", w.enrolment(d), "", "X-Forwarded-For", "192.0.2."+string(rune('0'+i%10))); r.status != http.StatusOK {
			t.Fatalf("enrolment %d: %+v", i+1, r)
		}
	}
	r := w.rest("/pact/enroll", w.enrolment(d), "", "X-Forwarded-For", "192.0.2.77")
	r.refused(t, 429, "rate_limited")
	if r.retry != 1 {
		t.Errorf("Retry-After %d, want 1", r.retry)
	}
	// On gRPC it is the same address and the same bucket.
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-forwarded-for", "192.0.2.78")
	jwk := d.jwk(t)
	text := func(name string) string { return jwk[name].(string) }
	m, err := w.grpc.Enroll(ctx, &signerv1.EnrollRequest{
		PublicJwk: &signerv1.PublicJwk{Kty: "EC", Crv: "P-256", X: text("x"), Y: text("y"), Kid: text("kid")},
		Proof:     d.assertion(t, w.base+"/pact/enroll", w.clock.now()),
	})
	rpcReply(t, m, err).refused(t, 429, "rate_limited")
	// A proof that fails is refused as that first, and a body that is malformed before it.
	bad := strings.Replace(w.enrolment(d), `"proof":"`, `"proof":"x`, 1)
	w.rest("/pact/enroll", bad, "").refused(t, 401, "unauthorized")
	w.rest("/pact/enroll", "{}", "").refused(t, 400, "invalid_request")
	w.advance(time.Second)
	for i, want := range []int{200, 429} {
		if r := w.rest("/pact/enroll", w.enrolment(d), ""); r.status != want {
			t.Errorf("enrolment %d a second later: %+v", i+1, r)
		}
	}
}

// Enrolments that fail are limited like every other failed proof.
func TestFailedEnrolmentsAreLimited(t *testing.T) {
	w := newContractWorld(t, func(c *worldConfig) {
		c.proofs = signer.Limit{Rate: 1, Burst: 3}
		c.issuers[0].Enrolment = signer.EnrolToken
	})
	unknown := "Bearer " + signer.NewEnrollmentToken().Reveal() // the store's to refuse
	for _, auth := range []string{"", "Bearer nonsense", unknown} {
		w.rest("/pact/enroll", w.enrolment(newDevice(t)), auth).refused(t, 401, "unauthorized")
	}
	for _, call := range w.faces() {
		call("/pact/enroll", w.enrolment(newDevice(t)), unknown).refused(t, 429, "rate_limited")
		call("/pact/sign", goodSign, "").refused(t, 429, "rate_limited")
	}
}
