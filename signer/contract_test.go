package signer_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// eachFaceAndCaller runs a test for both faces and both kinds of caller, each in
// a world of its own.
func eachFaceAndCaller(t *testing.T, change func(*worldConfig), test func(t *testing.T, w *contractWorld, call face, c caller)) {
	for _, faceName := range []string{"rest", "grpc"} {
		for _, kind := range []string{"device", "credential"} {
			t.Run(faceName+"/"+kind, func(t *testing.T) {
				w := newContractWorld(t, change)
				c := w.deviceCaller
				if kind == "credential" {
					c = w.credentialCaller
				}
				test(t, w, w.faces()[faceName], c())
			})
		}
	}
}

func asIs(*worldConfig) {}

// Every status of protocol.md's table, in both senses: who gets it and what it says.
func TestContract(t *testing.T) {
	eachFaceAndCaller(t, asIs, func(t *testing.T, w *contractWorld, call face, c caller) {
		sign := func() reply { return call("/pact/sign", goodSign, c.auth("/pact/sign")) }
		r := sign()
		if r.status != http.StatusOK || r.text("nonce") != "n-1" {
			t.Fatalf("%+v", r)
		}
		header, claims := w.token(r.text("token"))
		if len(header) != 3 || header["alg"] != "ES256" || header["typ"] != "JWT" || header["kid"] == "" {
			t.Errorf("header %v", header)
		}
		now := w.clock.now().Unix()
		if len(claims) != 6 || claims["iss"] != w.issuer || claims["sub"] != c.subject || claims["aud"] != providerAudience ||
			fmt.Sprintf("%v %v", claims["iat"], claims["exp"]) != fmt.Sprintf("%d %d", now, now+120) || len(claims["jti"].(string)) < 22 {
			t.Errorf("claims %v", claims)
		}
		if _, again := w.token(sign().text("token")); again["jti"] == claims["jti"] {
			t.Error("two tokens have one jti")
		}

		r = call("/pact/status", goodStatus, c.auth("/pact/status"))
		if r.status != http.StatusOK || r.text("issuer") != w.issuer || r.text("subject") != c.subject || !strings.Contains(r.body, providerAudience) {
			t.Errorf("status: %+v", r)
		}

		call("/pact/sign", `{"audience":"","nonce":"n"}`, c.auth("/pact/sign")).refused(t, 400, "invalid_request")
		call("/pact/sign", `{"audience":"a","nonce":"`+strings.Repeat("é", 257)+`"}`, c.auth("/pact/sign")).refused(t, 400, "invalid_request")
		call("/pact/sign", `{"audience":"`+strings.Repeat("a", 513)+`","nonce":"n"}`, c.auth("/pact/sign")).refused(t, 400, "invalid_request")
		if r := call("/pact/sign", `{"audience":"`+providerAudience+`","nonce":"`+strings.Repeat("é", 256)+`"}`, c.auth("/pact/sign")); r.status != 200 {
			t.Errorf("a nonce of 256 characters: %+v", r)
		}
		for _, auth := range []string{"", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer " + strings.Repeat("x", 20), "Bearer short", "PACT-Device x", c.auth("/pact/enroll") + "x"} {
			call("/pact/sign", goodSign, auth).refused(t, 401, "unauthorized")
			call("/pact/status", goodStatus, auth).refused(t, 401, "unauthorized")
		}
		call("/pact/sign", `{"audience":"https://other.example.com","nonce":"n"}`, c.auth("/pact/sign")).refused(t, 422, "audience_not_registered")

		w.store.broken.Store(true)
		sign().refused(t, 503, "unavailable")
		call("/pact/status", goodStatus, c.auth("/pact/status")).refused(t, 503, "unavailable")
		w.store.broken.Store(false)

		epoch := w.kill(c.kind, c.id)
		w.refresh()
		sign().refused(t, 403, "disabled")
		if r := call("/pact/status", goodStatus, c.auth("/pact/status")); r.status != 200 || !strings.Contains(strings.ReplaceAll(r.body, " ", ""), `"disabled":true`) {
			t.Errorf("status under a kill of epoch %d: %+v", epoch, r)
		}
	})
}

// design.md, Order of refusals: the first that applies is answered.
func TestContractOrder(t *testing.T) {
	const audience = "https://killed.example.com"
	limited := func(c *worldConfig) { c.issuers[0].CallerLimit = signer.Limit{Rate: 0.5, Burst: 1} }
	eachFaceAndCaller(t, limited, func(t *testing.T, w *contractWorld, call face, c caller) {
		const unregistered = `{"audience":"` + audience + `","nonce":"n"}`
		sign := func(body, auth string) reply { return call("/pact/sign", body, auth) }
		ours := func() string { return c.auth("/pact/sign") }
		wait := func() { w.advance(2 * time.Second) }

		w.kill(killswitch.Audience, audience)
		w.refresh()
		sign(unregistered, ours()).refused(t, 422, "audience_not_registered")
		r := sign(unregistered, ours())
		r.refused(t, 429, "rate_limited")
		if r.retry != 2 {
			t.Errorf("to be tried again after %d s, and one request is free after 2", r.retry)
		}
		wait()
		if err := w.store.SetAudience(t.Context(), signer.Audience{Issuer: w.issuer, Origin: audience, Audience: audience},
			func([]signer.Audience) error { return nil }, audit.Entry{Action: "test"}); err != nil {
			t.Fatal(err)
		}
		sign(unregistered, ours()).refused(t, 403, "disabled")
		sign(unregistered, ours()).refused(t, 429, "rate_limited")
		call("/pact/status", goodStatus, c.auth("/pact/status")).refused(t, 429, "rate_limited")
		wait()
		if r := call("/pact/status", goodStatus, c.auth("/pact/status")); r.status != 200 || strings.Contains(r.body, audience) || !strings.Contains(r.body, providerAudience) {
			t.Errorf("a killed audience is listed: %+v", r)
		}

		w.kill(killswitch.Subject, c.subject)
		w.refresh()
		sign(goodSign, ours()).refused(t, 403, "disabled") // though the limit is reached
		sign(goodSign, "Bearer "+strings.Repeat("x", 20)).refused(t, 401, "unauthorized")
		sign(`{"audience":"","nonce":""}`, "").refused(t, 400, "invalid_request")

		w.kill(killswitch.All, "")
		w.refresh()
		sign(goodSign, "").refused(t, 403, "disabled")
		call("/pact/status", goodStatus, "").refused(t, 401, "unauthorized")
		sign(`{"audience":"","nonce":""}`, "").refused(t, 400, "invalid_request")
	})
}

// A kill of the issuer too stops everything of it, and enrolment with it.
func TestContractKilledIssuer(t *testing.T) {
	w := newContractWorld(t)
	callers := w.callers()
	w.kill(killswitch.Issuer, "")
	w.refresh()
	for name, call := range w.faces() {
		call("/pact/enroll", w.enrolment(newDevice(t)), "").refused(t, 403, "disabled")
		for kind, c := range callers {
			call("/pact/sign", goodSign, c.auth("/pact/sign")).refused(t, 403, "disabled")
			r := call("/pact/status", goodStatus, c.auth("/pact/status"))
			if r.status != 200 || !strings.Contains(r.body, "true") || !strings.Contains(r.body, providerAudience) {
				t.Errorf("%s, %s: %+v", name, kind, r)
			}
		}
	}
}

// An invalidated device, a revoked and an expired credential are 401.
func TestContractEndedCallers(t *testing.T) {
	w := newContractWorld(t)
	callers := w.callers()
	for _, call := range w.faces() {
		for _, c := range callers {
			if r := call("/pact/sign", goodSign, c.auth("/pact/sign")); r.status != 200 {
				t.Fatalf("%+v", r)
			}
		}
	}
	d, c := callers["device"], callers["credential"]
	if _, err := w.store.Invalidate(t.Context(), w.issuer, d.id, "lost", audit.Entry{Action: "test"}); err != nil {
		t.Fatal(err)
	}
	revoke := func(c *signer.Credential) error { c.RevokedAt = w.clock.now(); return nil }
	if _, err := w.store.UpdateCredential(t.Context(), w.issuer, c.id, revoke, audit.Entry{Action: "test"}); err != nil {
		t.Fatal(err)
	}
	expiring := w.credentialCaller()
	if _, err := w.store.UpdateCredential(t.Context(), w.issuer, expiring.id,
		func(c *signer.Credential) error { c.ExpiresAt = w.clock.now().Add(time.Minute); return nil }, audit.Entry{Action: "test"}); err != nil {
		t.Fatal(err)
	}
	if r := w.rest("/pact/sign", goodSign, expiring.auth("")); r.status != 200 {
		t.Errorf("before it expires: %+v", r)
	}
	w.advance(time.Minute)
	for _, call := range w.faces() {
		for _, c := range []caller{d, c, expiring} {
			call("/pact/sign", goodSign, c.auth("/pact/sign")).refused(t, 401, "unauthorized")
			call("/pact/status", goodStatus, c.auth("/pact/status")).refused(t, 401, "unauthorized")
		}
	}
}

// An assertion is for one operation, whichever face it comes by, and good once.
func TestContractAssertionIsForOneUse(t *testing.T) {
	w := newContractWorld(t)
	c := w.deviceCaller()
	for name, call := range w.faces() {
		auth := c.auth("/pact/status")
		call("/pact/sign", goodSign, auth).refused(t, 401, "unauthorized")
		if r := call("/pact/status", goodStatus, auth); r.status != 200 {
			t.Errorf("%s: a refused assertion was used up: %+v", name, r)
		}
		for _, other := range w.faces() {
			other("/pact/status", goodStatus, auth).refused(t, 401, "unauthorized")
		}
		call("/pact/sign", goodSign, "PACT-Device "+newDevice(t).assertion(t, w.base+"/pact/sign", w.clock.now())).refused(t, 401, "unauthorized")
	}
	// Schemes are compared without case.
	if r := w.rest("/pact/sign", goodSign, strings.Replace(c.auth("/pact/sign"), "PACT-Device", "pact-DEVICE", 1)); r.status != 200 {
		t.Errorf("%+v", r)
	}
}

// Of many uses of one assertion at one instant, over both faces, one is right.
func TestContractRace(t *testing.T) {
	w := newContractWorld(t)
	c := w.deviceCaller()
	auth := c.auth("/pact/sign")
	var (
		ready, done sync.WaitGroup
		signed      atomic.Int64
		begin       = make(chan struct{})
	)
	for i := range 50 {
		call := w.plainREST
		if i%2 == 1 {
			call = w.rpc
		}
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-begin
			r := call("/pact/sign", goodSign, auth)
			if r.status == 200 {
				signed.Add(1)
			} else {
				r.refused(t, 401, "unauthorized")
			}
		})
	}
	ready.Wait()
	close(begin)
	done.Wait()
	if n := signed.Load(); n != 1 {
		t.Errorf("%d of 50 uses of one assertion were answered 200", n)
	}
}

// A kill that the replica has not heard of stops the next request all the same:
// the store knows a newer epoch.
func TestContractStaleEpoch(t *testing.T) {
	eachFaceAndCaller(t, asIs, func(t *testing.T, w *contractWorld, call face, c caller) {
		w.kill(c.kind, c.id)
		call("/pact/sign", goodSign, c.auth("/pact/sign")).refused(t, 403, "disabled")
		w.kill(killswitch.All, "")
		call("/pact/enroll", w.enrolment(newDevice(t)), "").refused(t, 403, "disabled")
	})
	t.Run("another caller", func(t *testing.T) { // goes on, by the new epoch
		w := newContractWorld(t)
		callers := w.callers()
		w.kill(killswitch.Credential, callers["credential"].id)
		d := callers["device"]
		if r := w.rest("/pact/sign", goodSign, d.auth("/pact/sign")); r.status != 200 {
			t.Errorf("%+v", r)
		}
		w.kill(killswitch.Audience, "https://other.example.com")
		if r := w.rest("/pact/enroll", w.enrolment(newDevice(t)), ""); r.status != 200 {
			t.Errorf("%+v", r)
		}
	})
}

// A token made while the switch fell is thrown away.
func TestContractKillDuringSignature(t *testing.T) {
	eachFaceAndCaller(t, asIs, func(t *testing.T, w *contractWorld, call face, c caller) {
		for _, scope := range []killswitch.Scope{
			{Kind: c.kind, Value: c.id}, {Kind: killswitch.Subject, Value: c.subject}, {Kind: killswitch.Audience, Value: providerAudience}, {Kind: killswitch.All},
		} {
			var signed []byte
			w.keyring.watch(func(ctx context.Context, name string, digest []byte) ([]byte, error) {
				w.kill(scope.Kind, scope.Value)
				w.refresh()
				var err error
				signed, err = w.keyring.Keyring.Sign(ctx, name, digest)
				return signed, err
			})
			call("/pact/sign", goodSign, c.auth("/pact/sign")).refused(t, 403, "disabled")
			if signed == nil {
				t.Errorf("%s: refused before the signature: this proves nothing", scope.Kind)
			}
			live, err := w.kills.Live(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, e := range live {
				ids = append(ids, e.ID)
			}
			if _, err := w.kills.Resume(t.Context(), killswitch.ResumeRequest{Scope: killswitch.Scope{Kind: killswitch.All}, EntryIDs: ids, Reason: "test", Actor: "test"}); err != nil {
				t.Fatal(err)
			}
			w.refresh()
		}
	})
}

// Without a permit, or with a key schedule that is not confirmed, nothing is signed.
func TestContractUnknownState(t *testing.T) {
	w := newContractWorld(t)
	callers := w.callers()
	w.clock.offset.Add(int64(3 * time.Second)) // the permit's life
	for _, call := range w.faces() {
		for _, c := range callers {
			call("/pact/sign", goodSign, c.auth("/pact/sign")).refused(t, 503, "unavailable")
			call("/pact/status", goodStatus, c.auth("/pact/status")).refused(t, 503, "unavailable")
		}
		call("/pact/enroll", w.enrolment(newDevice(t)), "").refused(t, 503, "unavailable")
	}
	w.refresh()
	w.keyring.watch(func(context.Context, string, []byte) ([]byte, error) {
		return nil, errors.New("sealed")
	})
	for _, call := range w.faces() {
		for _, c := range callers {
			call("/pact/sign", goodSign, c.auth("/pact/sign")).refused(t, 503, "unavailable")
		}
	}
}

// A signature that does not come in time, or does not verify, is 503.
func TestContractSignatures(t *testing.T) {
	for name, sign := range map[string]func(context.Context, *watchedKeyring, string, []byte) ([]byte, error){
		"never": func(ctx context.Context, _ *watchedKeyring, _ string, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"late": func(ctx context.Context, k *watchedKeyring, name string, digest []byte) ([]byte, error) {
			<-ctx.Done()
			return k.Keyring.Sign(context.WithoutCancel(ctx), name, digest)
		},
		"wrong": func(context.Context, *watchedKeyring, string, []byte) ([]byte, error) {
			return make([]byte, 64), nil
		},
		"panic": func(context.Context, *watchedKeyring, string, []byte) ([]byte, error) {
			panic("a fault")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newContractWorld(t, func(c *worldConfig) { c.deadline = 20 * time.Millisecond })
			if name == "wrong" {
				w = newContractWorld(t)
			}
			c := w.credentialCaller()
			w.keyring.watch(func(ctx context.Context, kid string, digest []byte) ([]byte, error) {
				return sign(ctx, w.keyring, kid, digest)
			})
			for range 3 { // not only the first signature of a key
				for _, call := range w.faces() {
					call("/pact/sign", goodSign, c.auth("")).refused(t, 503, "unavailable")
				}
			}
			w.keyring.watch(w.keyring.Keyring.Sign)
			if name == "wrong" {
				if r := w.rest("/pact/sign", goodSign, c.auth("")); r.status != 200 {
					t.Errorf("once custody is right again: %+v", r)
				}
			}
		})
	}
}

// RS256 issuers sign with RS256.
func TestContractRS256(t *testing.T) {
	w := newContractWorld(t, func(c *worldConfig) { c.algorithm = jose.RS256 })
	for name, call := range w.faces() {
		c := w.deviceCaller()
		header, _ := w.token(call("/pact/sign", goodSign, c.auth("/pact/sign")).text("token"))
		if header["alg"] != "RS256" {
			t.Errorf("%s: %v", name, header)
		}
	}
}

// What may be said of a token is in the log, and no secret is.
func TestContractLog(t *testing.T) {
	w := newContractWorld(t)
	var secrets []string
	for _, call := range w.faces() {
		for _, c := range w.callers() {
			auth := c.auth("/pact/sign")
			r := call("/pact/sign", `{"audience":"`+providerAudience+`","nonce":"nonce-to-be-kept"}`, auth)
			_, claims := w.token(r.text("token"))
			for _, want := range []string{`"msg":"issued"`, c.id, claims["jti"].(string)} {
				if !strings.Contains(w.log.String(), want) {
					t.Errorf("the log lacks %q", want)
				}
			}
			_, secret, _ := strings.Cut(auth, " ")
			secrets = append(secrets, r.text("token"), secret)
			call("/pact/sign", goodSign, auth[:len(auth)-1]) // refused
			call("/pact/sign", `{"audience":"x","nonce":"nonce-to-be-kept"}`, c.auth("/pact/sign"))
		}
	}
	for _, s := range append(secrets, "nonce-to-be-kept") {
		if len(s) < 16 {
			t.Fatalf("%q is no secret", s)
		}
		// The last part of a JWS, and the last characters of a credential.
		if strings.Contains(w.log.String(), s[len(s)-16:]) {
			t.Errorf("the log holds a secret: %s", s)
		}
	}
}

// Refusals to callers that are known come into the audit log, but few of them.
func TestContractRefusalsAreAudited(t *testing.T) {
	w := newContractWorld(t)
	c := w.credentialCaller()
	refused := func() (n int) {
		entries, err := w.store.Audit(t.Context(), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Action == "refused" {
				n++
				if e.Actor != "credential:"+c.id || e.Issuer != w.issuer || e.Detail["reason"] != "AUDIENCE_NOT_REGISTERED" {
					t.Errorf("%+v", e)
				}
			}
		}
		return n
	}
	unregistered := func() {
		w.rest("/pact/sign", `{"audience":"x","nonce":"n"}`, c.auth("")).refused(t, 422, "audience_not_registered")
		w.rest("/pact/sign", goodSign, "").refused(t, 401, "unauthorized")
	}
	for range 5 {
		unregistered()
	}
	if n := refused(); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
	w.advance(time.Minute)
	unregistered()
	if n := refused(); n != 2 {
		t.Errorf("%d entries a minute later, want 2", n)
	}
}

// A change of the registry counts from the next request on.
func TestContractRegistryChanges(t *testing.T) {
	w := newContractWorld(t)
	c := w.credentialCaller()
	body := `{"audience":"aud-2","nonce":"n"}`
	for _, call := range w.faces() {
		call("/pact/sign", body, c.auth("")).refused(t, 422, "audience_not_registered")
	}
	yes := func([]signer.Audience) error { return nil }
	if err := w.store.SetAudience(t.Context(), signer.Audience{Issuer: w.issuer, Origin: "https://two.example.com", Audience: "aud-2"}, yes, audit.Entry{Action: "test"}); err != nil {
		t.Fatal(err)
	}
	for _, call := range w.faces() {
		if r := call("/pact/sign", body, c.auth("")); r.status != 200 {
			t.Errorf("%+v", r)
		}
	}
	if err := w.store.RemoveAudience(t.Context(), w.issuer, "https://two.example.com", audit.Entry{Action: "test"}); err != nil {
		t.Fatal(err)
	}
	for _, call := range w.faces() {
		call("/pact/sign", body, c.auth("")).refused(t, 422, "audience_not_registered")
	}
	// Status lists them, and says so in full when there is nothing to list.
	if err := w.store.RemoveAudience(t.Context(), w.issuer, providerOrigin, audit.Entry{Action: "test"}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`{"issuer":%q,"subject":%q,"disabled":false,"audiences":{}}`, w.issuer, c.subject)
	if r := w.rest("/pact/status", "{}", c.auth("")); r.body != want {
		t.Errorf("got %s, want %s", r.body, want)
	}
}

// Issuers are told apart by host, and share nothing.
func TestContractSeveralIssuers(t *testing.T) {
	w := newContractWorld(t, func(c *worldConfig) {
		c.issuers = append(c.issuers, signer.Issuer{
			URL: "http://localhost:PORT", SignerURLs: []string{"http://localhost:PORT", "https://sign.b.example.com/"}, Enrolment: signer.EnrolClosed,
		})
	})
	c := w.deviceCaller()
	_, port, _ := strings.Cut(w.address, ":")
	for host, want := range map[string]int{
		w.address: 200, "localhost:" + port: 401, "LOCALHOST:" + port: 401, "sign.b.example.com": 401, "sign.b.example.com:443": 401,
		"sign.b.example.com:8443": 404, "127.0.0.1": 404, "other.example.com": 404,
	} {
		r := w.rest("/pact/sign", goodSign, c.auth("/pact/sign"), "Host", host)
		if r.status != want {
			t.Errorf("Host %q: %d, want %d: %s", host, r.status, want, r.body)
		}
	}
	w.rest("/pact/enroll", w.enrolment(newDevice(t)), "", "Host", "sign.b.example.com").refused(t, 401, "unauthorized")
	for authority, want := range map[string]int{"127.0.0.1:1": 200, "localhost": 401, "sign.b.example.com:8788": 401, "other.example.com": 400} {
		client := w.dial(grpcAuthority(authority))
		m, err := client.Sign(withAuthorization(c.auth("/pact/sign")), &signerv1.SignRequest{Audience: providerAudience, Nonce: "n"})
		if r := rpcReply(t, m, err); r.status != want {
			t.Errorf("authority %q: %+v, want %d", authority, r, want)
		}
	}
	// An assertion may name any of its issuer's URLs.
	d := newDevice(t)
	if _, err := w.store.Enroll(t.Context(), enrolmentOf(t, "http://localhost:"+port, d, w)); err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"http://localhost:" + port, "https://sign.b.example.com"} {
		r := w.rest("/pact/sign", goodSign, "PACT-Device "+d.assertion(t, base+"/pact/sign", w.clock.now()), "Host", "localhost:"+port)
		if r.status != 200 {
			t.Errorf("%s: %+v", base, r)
		}
	}
}
