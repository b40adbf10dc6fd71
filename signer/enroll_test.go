package signer_test

import (
	"context"
	"encoding/base64"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/signer"
)

func prefixes(t testing.TB, list string) (out []netip.Prefix) {
	t.Helper()
	for _, s := range strings.Fields(list) {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func grpcAuthority(s string) grpc.DialOption { return grpc.WithAuthority(s) }

func withAuthorization(value string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "authorization", value)
}

// enrolmentOf is what the service would ask the store for a device.
func enrolmentOf(t testing.TB, issuer string, d device, w *contractWorld) signer.Enrolment {
	t.Helper()
	point, err := d.key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	subject, err := signer.DeriveSubject(t.Context(), w.keyring, signer.DeviceCaller, issuer, d.thumbprint)
	if err != nil {
		t.Fatal(err)
	}
	epoch, err := w.guard.Check(killTarget(issuer))
	if err != nil {
		t.Fatal(err)
	}
	return signer.Enrolment{Device: signer.Device{Issuer: issuer, Thumbprint: d.thumbprint, Subject: subject, Point: point[1:]}, Epoch: epoch}
}

// Enrolling is idempotent, whatever Authorization a client sends beside.
func TestEnrollOpen(t *testing.T) {
	w := newContractWorld(t)
	d := newDevice(t)
	want, err := signer.DeriveSubject(t.Context(), w.keyring, signer.DeviceCaller, w.issuer, d.thumbprint)
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range w.faces() {
		for _, auth := range []string{
			"", "PACT-Device " + d.assertion(t, w.base+"/pact/enroll", w.clock.now()), "PACT-Device nonsense", "Bearer nonsense",
		} {
			r := call("/pact/enroll", w.enrolment(d), auth)
			if r.status != http.StatusOK || r.text("subject") != want || r.text("issuer") != w.issuer {
				t.Errorf("%s: %+v, want %s", name, r, want)
			}
		}
	}
	if devices, _, err := w.store.Counts(t.Context(), w.issuer); err != nil || devices != 1 {
		t.Errorf("%d devices, %v", devices, err)
	}
	body := w.enrolment(d)
	if r := w.rest("/pact/enroll", body, ""); r.status != 200 {
		t.Errorf("%+v", r)
	}
	w.rest("/pact/enroll", body, "").refused(t, 401, "unauthorized") // the proof is used up
	if _, err := w.store.Invalidate(t.Context(), w.issuer, d.thumbprint, "lost", audit.Entry{Action: "test"}); err != nil {
		t.Fatal(err)
	}
	for _, call := range w.faces() {
		call("/pact/enroll", w.enrolment(d), "").refused(t, 401, "unauthorized")
	}
}

// The subject of a record wins, and that it is another one is said aloud.
func TestEnrollRecordedSubjectWins(t *testing.T) {
	w := newContractWorld(t)
	d := newDevice(t)
	e := enrolmentOf(t, w.issuer, d, w)
	e.Device.Subject = "pa_from_before"
	if _, err := w.store.Enroll(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if r := w.rest("/pact/enroll", w.enrolment(d), ""); r.text("subject") != "pa_from_before" {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(w.log.String(), "has the subject key changed?") {
		t.Error("no alarm")
	}
	r := w.rest("/pact/sign", goodSign, "PACT-Device "+d.assertion(t, w.base+"/pact/sign", w.clock.now()))
	if _, claims := w.token(r.text("token")); claims["sub"] != "pa_from_before" {
		t.Errorf("%v", claims)
	}
}

// Only the listed members, each of its form, and a proof by that key.
func TestEnrollKeys(t *testing.T) {
	w := newContractWorld(t, func(c *worldConfig) { c.issuers[0].EnrollLimit = signer.Limit{} })
	d, other := newDevice(t), newDevice(t)
	proof := func(d device, change ...func(map[string]any)) string {
		return d.assertion(t, w.base+"/pact/enroll", w.clock.now(), change...)
	}
	with := func(change func(jwk map[string]any)) string {
		jwk := maps.Clone(d.jwk(t))
		change(jwk)
		return object(t, map[string]any{"publicJwk": jwk, "proof": proof(d)})
	}
	if r := w.rest("/pact/enroll", with(func(m map[string]any) { delete(m, "alg"); delete(m, "use") }), ""); r.status != 200 {
		t.Errorf("without alg and use: %+v", r)
	}
	x := d.jwk(t)["x"].(string)
	raw, err := base64.RawURLEncoding.DecodeString(x)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(map[string]any){
		"private":      func(m map[string]any) { m["d"] = x },
		"unknown":      func(m map[string]any) { m["key_ops"] = []string{"verify"} },
		"case":         func(m map[string]any) { m["KTY"] = "EC" },
		"kty":          func(m map[string]any) { m["kty"] = "RSA" },
		"crv":          func(m map[string]any) { m["crv"] = "P-384" },
		"alg":          func(m map[string]any) { m["alg"] = "ES384" },
		"alg null":     func(m map[string]any) { m["alg"] = nil },
		"use":          func(m map[string]any) { m["use"] = "enc" },
		"no kid":       func(m map[string]any) { delete(m, "kid") },
		"another kid":  func(m map[string]any) { m["kid"] = other.thumbprint },
		"no x":         func(m map[string]any) { delete(m, "x") },
		"x is padded":  func(m map[string]any) { m["x"] = x + "=" },
		"x is longer":  func(m map[string]any) { m["x"] = base64.RawURLEncoding.EncodeToString(append([]byte{0}, raw...)) },
		"x is shorter": func(m map[string]any) { m["x"] = base64.RawURLEncoding.EncodeToString(raw[1:]) },
		"not on curve": func(m map[string]any) { m["x"] = m["y"] },
		"x: stray bit": func(m map[string]any) {
			m["x"] = x[:42] + string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[indexIn(x[42])|1])
		},
		"x with break": func(m map[string]any) { m["x"] = x[:10] + "\n" + x[10:] },
	} {
		t.Run(name, func(t *testing.T) { w.rest("/pact/enroll", with(change), "").refused(t, 400, "invalid_request") })
	}
	for name, p := range map[string]string{
		"another key":      proof(other),
		"another endpoint": d.assertion(t, w.base+"/pact/sign", w.clock.now()),
		"too old":          proof(d, func(c map[string]any) { c["iat"], c["exp"] = w.clock.now().Unix()-120, w.clock.now().Unix()-60 }),
		"nonsense":         "a.b.c",
	} {
		t.Run(name, func(t *testing.T) {
			for _, call := range w.faces() {
				call("/pact/enroll", object(t, map[string]any{"publicJwk": d.jwk(t), "proof": p}), "").refused(t, 401, "unauthorized")
			}
		})
	}
}

func indexIn(c byte) int {
	return strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", c)
}

// mistyped is a secret with its last character changed.
func mistyped(secret string) string {
	last := "0"
	if strings.HasSuffix(secret, last) {
		last = "1"
	}
	return secret[:len(secret)-1] + last
}

// Mode token: one device for each token. Mode closed: none.
func TestEnrollModes(t *testing.T) {
	w := newContractWorld(t, func(c *worldConfig) { c.issuers[0].Enrolment = signer.EnrolToken })
	newToken := func(id string) string {
		secret := signer.NewEnrollmentToken()
		if err := w.store.PutEnrollmentToken(t.Context(), signer.EnrollmentToken{
			Issuer: w.issuer, ID: id, Hash: secret.Hash(), CreatedAt: w.clock.now(), ExpiresAt: w.clock.now().Add(time.Hour),
		}, audit.Entry{Action: "test"}); err != nil {
			t.Fatal(err)
		}
		return secret.Reveal()
	}
	for name, call := range w.faces() {
		d, token := newDevice(t), newToken(name)
		for _, auth := range []string{"", "Bearer " + mistyped(token), "Bearer " + signer.NewEnrollmentToken().Reveal(), "Basic " + token,
			"PACT-Device " + d.assertion(t, w.base+"/pact/enroll", w.clock.now())} {
			call("/pact/enroll", w.enrolment(d), auth).refused(t, 401, "unauthorized")
		}
		first := call("/pact/enroll", w.enrolment(d), "Bearer "+token)
		if first.status != 200 {
			t.Errorf("%s: %+v", name, first)
		}
		if again := call("/pact/enroll", w.enrolment(d), "Bearer "+token); again.body != first.body {
			t.Errorf("%s: the same device again: %+v", name, again)
		}
		call("/pact/enroll", w.enrolment(newDevice(t)), "Bearer "+token).refused(t, 401, "unauthorized")
	}
	// An assertion beside the token changes nothing.
	d := newDevice(t)
	r := w.rest("/pact/enroll", w.enrolment(d), "Bearer "+newToken("beside"), "Authorization", "PACT-Device "+d.assertion(t, w.base+"/pact/enroll", w.clock.now()))
	if r.status != 200 {
		t.Errorf("%+v", r)
	}
	token := newToken("late")
	w.advance(time.Hour)
	w.rest("/pact/enroll", w.enrolment(newDevice(t)), "Bearer "+token).refused(t, 401, "unauthorized")

	w = newContractWorld(t, func(c *worldConfig) { c.issuers[0].Enrolment = signer.EnrolClosed })
	for _, call := range w.faces() {
		call("/pact/enroll", w.enrolment(newDevice(t)), "").refused(t, 401, "unauthorized")
	}
}

// Enrolment is limited per address, and what it waits for is true.
func TestEnrollLimit(t *testing.T) {
	w := newContractWorld(t, func(c *worldConfig) {
		c.issuers[0].EnrollLimit = signer.Limit{Rate: 0.5, Burst: 3}
		c.proxies = "127.0.0.0/8"
	})
	d := newDevice(t)
	enroll := func(forwarded string) reply {
		return w.rest("/pact/enroll", w.enrolment(d), "", "X-Forwarded-For", forwarded)
	}
	for range 3 {
		if r := enroll("2001:db8::1"); r.status != 200 {
			t.Fatalf("%+v", r)
		}
	}
	r := enroll("2001:db8::2") // the same /64
	r.refused(t, 429, "rate_limited")
	if r := enroll("2001:db8:0:1::1"); r.status != 200 {
		t.Errorf("another /64: %+v", r)
	}
	if r := enroll("2001:db8::1, 192.0.2.1, 127.0.0.1"); r.status != 200 {
		t.Errorf("another address, behind one more proxy: %+v", r)
	}
	if r.retry != 2 {
		t.Errorf("to come back after %d s, want 2", r.retry)
	}
	w.advance(time.Duration(r.retry) * time.Second)
	if r := enroll("2001:db8::1"); r.status != 200 {
		t.Errorf("after waiting as told: %+v", r)
	}
	// The whole burst from one address on gRPC, too.
	for range 3 {
		w.rpc("/pact/enroll", w.enrolment(d), "")
	}
	w.rpc("/pact/enroll", w.enrolment(d), "").refused(t, 429, "rate_limited")
}

// Nobody can try secrets without end, and what is tried costs callers nothing.
func TestFailedProofsAreLimited(t *testing.T) {
	w := newContractWorld(t, func(c *worldConfig) {
		c.proofs = signer.Limit{Rate: 1, Burst: 4}
		c.proxies = "127.0.0.0/8"
		c.issuers[0].CallerLimit = signer.Limit{Rate: 1, Burst: 1}
	})
	d := w.deviceCaller()
	bad := "PACT-Device " + newDevice(t).assertion(t, w.base+"/pact/sign", w.clock.now())
	spoilt := d.auth("/pact/status") // by the device, for something else
	for _, auth := range []string{bad, spoilt, "", "Bearer " + strings.Repeat("x", 20)} {
		w.rest("/pact/sign", goodSign, auth, "X-Forwarded-For", "192.0.2.7").refused(t, 401, "unauthorized")
	}
	w.rest("/pact/sign", goodSign, bad, "X-Forwarded-For", "192.0.2.7").refused(t, 429, "rate_limited")
	if r := w.rest("/pact/sign", goodSign, d.auth("/pact/sign"), "X-Forwarded-For", "192.0.2.7"); r.status != 200 {
		t.Errorf("a good caller on the guesser's address: %+v", r)
	}
	w.rest("/pact/sign", goodSign, bad, "X-Forwarded-For", "192.0.2.8").refused(t, 401, "unauthorized")
	w.advance(time.Second)
	w.rest("/pact/sign", goodSign, bad, "X-Forwarded-For", "192.0.2.7").refused(t, 401, "unauthorized")
}

// An issuer that has as many devices as it may have takes no more, and keeps
// those that it has.
func TestEnrollCap(t *testing.T) {
	w := newContractWorld(t, func(c *worldConfig) { c.issuers[0].DeviceCap = 1 })
	d := newDevice(t)
	for _, call := range w.faces() {
		if r := call("/pact/enroll", w.enrolment(d), ""); r.status != 200 {
			t.Errorf("%+v", r)
		}
		call("/pact/enroll", w.enrolment(newDevice(t)), "").refused(t, 429, "rate_limited")
	}
}
