// Package custodytest is the conformance suite that every custody.Keyring must
// pass, and a keyring in memory for the tests of others.
package custodytest

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
)

// Run runs the suite. fresh makes an empty backing store and returns the function
// that opens a keyring over it; each call of that may close what the one before
// returned, as a restart would.
func Run(t *testing.T, fresh func(t *testing.T) (open func() custody.Keyring)) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, func() custody.Keyring){
		"CreateIsIdempotent": createIsIdempotent,
		"CreateConcurrently": createConcurrently,
		"SignVerifies":       signVerifies,
		"SignConcurrently":   signConcurrently,
		"Disable":            disable,
		"NotFound":           notFound,
		"Invalid":            invalid,
		"Documents":          documents,
		"DocumentNames":      documentNames,
		"SwapConcurrently":   swapConcurrently,
		"MAC":                mac,
		"Context":            contexts,
	} {
		t.Run(name, func(t *testing.T) { test(t, fresh(t)) })
	}
	t.Run("SubjectKeysDiffer", func(t *testing.T) {
		a, b := fresh(t)(), fresh(t)()
		if bytes.Equal(macOf(t, a, "x"), macOf(t, b, "x")) {
			t.Error("two keyrings have the same subject key")
		}
	})
}

var algorithms = []jose.SignatureAlgorithm{jose.ES256, jose.RS256}

func nameFor(alg jose.SignatureAlgorithm) string { return "key-" + strings.ToLower(string(alg)) }

func create(t *testing.T, k custody.Keyring, name string, alg jose.SignatureAlgorithm) crypto.PublicKey {
	t.Helper()
	pub, err := k.Create(t.Context(), name, alg)
	for n := 0; n < 9 && errors.Is(err, custody.ErrUnavailable); n++ { // an RSA key may take a busy machine longer than a call is given
		pub, err = k.Create(t.Context(), name, alg)
	}
	if err != nil {
		t.Fatalf("Create(%s, %s): %v", name, alg, err)
	}
	return pub
}

func equal(a, b crypto.PublicKey) bool {
	e, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && e.Equal(b)
}

func createIsIdempotent(t *testing.T, open func() custody.Keyring) {
	k := open()
	for _, alg := range algorithms {
		name := nameFor(alg)
		first := create(t, k, name, alg)
		if again := create(t, k, name, alg); !equal(first, again) {
			t.Errorf("%s: a second Create made another key", alg)
		}
		k = open()
		if adopted := create(t, k, name, alg); !equal(first, adopted) {
			t.Errorf("%s: Create after reopening made another key", alg)
		}
		pub, gotAlg, err := k.Public(t.Context(), name)
		if err != nil || !equal(pub, first) || gotAlg != alg {
			t.Errorf("%s: Public = %T, %s, %v", alg, pub, gotAlg, err)
		}
		if other := create(t, k, name+"-2", alg); equal(first, other) {
			t.Errorf("%s: two names share a key", alg)
		}
	}
	create(t, k, "es", jose.ES256)
	if _, err := k.Create(t.Context(), "es", jose.RS256); !errors.Is(err, custody.ErrMismatch) {
		t.Errorf("Create for another algorithm: %v, want ErrMismatch", err)
	}
}

func createConcurrently(t *testing.T, open func() custody.Keyring) {
	k := open()
	pubs := make([]crypto.PublicKey, 8)
	var wg sync.WaitGroup
	for i := range pubs {
		wg.Go(func() {
			pub, err := k.Create(t.Context(), "one", jose.ES256)
			if err != nil {
				t.Errorf("Create: %v", err)
			}
			pubs[i] = pub
		})
	}
	wg.Wait()
	for _, pub := range pubs {
		if !equal(pub, pubs[0]) {
			t.Fatal("concurrent calls of Create made several keys")
		}
	}
}

// verifies checks a signature as JWS defines it (RFC 7518 sections 3.3 and 3.4).
func verifies(pub crypto.PublicKey, digest, signature []byte) bool {
	switch pub := pub.(type) {
	case *ecdsa.PublicKey:
		return len(signature) == 64 &&
			ecdsa.Verify(pub, digest, new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:]))
	case *rsa.PublicKey:
		return pub.N.BitLen() >= custody.RSABits && rsa.VerifyPKCS1v15(pub, crypto.SHA256, digest, signature) == nil
	default:
		return false
	}
}

func signVerifies(t *testing.T, open func() custody.Keyring) {
	k := open()
	pubs := map[jose.SignatureAlgorithm]crypto.PublicKey{}
	for _, alg := range algorithms {
		pubs[alg] = create(t, k, nameFor(alg), alg)
	}
	for range 2 {
		for _, alg := range algorithms {
			for i := range 8 {
				digest := sha256.Sum256([]byte{byte(i)})
				signature, err := k.Sign(t.Context(), nameFor(alg), digest[:])
				if err != nil || !verifies(pubs[alg], digest[:], signature) {
					t.Fatalf("%s: the signature does not verify (error %v)", alg, err)
				}
			}
		}
		k = open()
	}
}

func signConcurrently(t *testing.T, open func() custody.Keyring) {
	k := open()
	var wg sync.WaitGroup
	for i := range 8 {
		name := fmt.Sprintf("c%d", i%2)
		pub := create(t, k, name, jose.ES256)
		wg.Go(func() {
			for n := range 16 {
				digest := sha256.Sum256([]byte{byte(i), byte(n)})
				signature, err := k.Sign(t.Context(), name, digest[:])
				if err != nil || !verifies(pub, digest[:], signature) {
					t.Errorf("the signature does not verify (error %v)", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func disable(t *testing.T, open func() custody.Keyring) {
	k := open()
	digest := sha256.Sum256(nil)
	pub := create(t, k, "gone", jose.ES256)
	stays := create(t, k, "stays", jose.ES256)
	for range 2 {
		if err := k.Disable(t.Context(), "gone"); err != nil {
			t.Fatalf("Disable: %v", err)
		}
	}
	for _, when := range []string{"at once", "after reopening"} {
		if _, err := k.Sign(t.Context(), "gone", digest[:]); !errors.Is(err, custody.ErrDisabled) {
			t.Errorf("Sign %s: %v, want ErrDisabled", when, err)
		}
		if got, alg, err := k.Public(t.Context(), "gone"); err != nil || !equal(got, pub) || alg != jose.ES256 {
			t.Errorf("Public %s: %T, %s, %v", when, got, alg, err)
		}
		if _, err := k.Create(t.Context(), "gone", jose.ES256); !errors.Is(err, custody.ErrDisabled) {
			t.Errorf("Create %s: %v, want ErrDisabled", when, err)
		}
		if signature, err := k.Sign(t.Context(), "stays", digest[:]); err != nil || !verifies(stays, digest[:], signature) {
			t.Errorf("another key %s: %v", when, err)
		}
		k = open()
	}
}

func notFound(t *testing.T, open func() custody.Keyring) {
	k := open()
	digest := sha256.Sum256(nil)
	_, _, public := k.Public(t.Context(), "none")
	_, sign := k.Sign(t.Context(), "none", digest[:])
	_, load := k.Load(t.Context(), "none")
	for name, err := range map[string]error{"Public": public, "Sign": sign, "Load": load, "Disable": k.Disable(t.Context(), "none")} {
		if !errors.Is(err, custody.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
}

func invalid(t *testing.T, open func() custody.Keyring) {
	k := open()
	create(t, k, "a", jose.ES256)
	_, algorithm := k.Create(t.Context(), "b", jose.HS256)
	_, nameless := k.Create(t.Context(), "", jose.ES256)
	_, short := k.Sign(t.Context(), "a", []byte("short"))
	_, document := k.Swap(t.Context(), "", 0, nil)
	for name, err := range map[string]error{"algorithm": algorithm, "no name": nameless, "digest": short, "document without name": document} {
		if !errors.Is(err, custody.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func documents(t *testing.T, open func() custody.Keyring) {
	k := open()
	ctx := t.Context()
	data := []byte("{\"a\": 1,\n \"b\": \"\xff\x00\"}\n")
	if _, err := k.Swap(ctx, "doc", 7, data); !errors.Is(err, custody.ErrConflict) {
		t.Fatalf("Swap of a document that does not exist: %v", err)
	}
	r1, err := k.Swap(ctx, "doc", 0, data)
	if err != nil || r1 == 0 {
		t.Fatalf("first Swap: %d, %v", r1, err)
	}
	if _, err := k.Swap(ctx, "doc", 0, []byte("x")); !errors.Is(err, custody.ErrConflict) {
		t.Errorf("second creation: %v", err)
	}
	k = open()
	if d, err := k.Load(ctx, "doc"); err != nil || d.Revision != r1 || !bytes.Equal(d.Data, data) {
		t.Errorf("Load: revision %d, %q, %v", d.Revision, d.Data, err)
	}
	r2, err := k.Swap(ctx, "doc", r1, []byte("two"))
	if err != nil || r2 <= r1 {
		t.Fatalf("second Swap: %d after %d, %v", r2, r1, err)
	}
	if _, err := k.Swap(ctx, "doc", r1, []byte("three")); !errors.Is(err, custody.ErrConflict) {
		t.Errorf("Swap of an old revision: %v", err)
	}
	if d, err := k.Load(ctx, "doc"); err != nil || d.Revision != r2 || string(d.Data) != "two" {
		t.Errorf("Load: revision %d, %q, %v", d.Revision, d.Data, err)
	}
}

func documentNames(t *testing.T, open func() custody.Keyring) {
	k := open()
	names := []string{"a", "A", "a.b", "a-b", "schedule-https-pa.example.com", "..", ".hidden", "a b", "a:b", "ü"}
	for i, name := range names {
		if _, err := k.Swap(t.Context(), name, 0, []byte{byte(i)}); err != nil {
			t.Errorf("Swap %q: %v", name, err)
		}
	}
	k = open()
	for i, name := range names {
		if d, err := k.Load(t.Context(), name); err != nil || !bytes.Equal(d.Data, []byte{byte(i)}) {
			t.Errorf("Load %q: %v, %v", name, d.Data, err)
		}
	}
}

func swapConcurrently(t *testing.T, open func() custody.Keyring) {
	k := open()
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			switch _, err := k.Swap(t.Context(), "doc", 0, []byte{byte(i)}); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, custody.ErrConflict):
				t.Errorf("Swap: %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 8 swaps from the same revision won", won.Load())
	}
}

func macOf(t *testing.T, k custody.Keyring, message string) []byte {
	t.Helper()
	sum, err := k.MAC(t.Context(), []byte(message))
	if err != nil || len(sum) != sha256.Size {
		t.Fatalf("MAC: %d bytes, %v", len(sum), err)
	}
	return sum
}

func mac(t *testing.T, open func() custody.Keyring) {
	k := open()
	a, b := macOf(t, k, "a"), macOf(t, k, "b")
	if bytes.Equal(a, b) {
		t.Error("two messages have one MAC")
	}
	k = open()
	if !bytes.Equal(a, macOf(t, k, "a")) {
		t.Error("the MAC changed with a restart")
	}
}

func contexts(t *testing.T, open func() custody.Keyring) {
	k := open()
	create(t, k, "a", jose.ES256)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	digest := sha256.Sum256(nil)
	_, sign := k.Sign(ctx, "a", digest[:])
	_, made := k.Create(ctx, "b", jose.ES256)
	_, swap := k.Swap(ctx, "doc", 0, nil)
	for name, err := range map[string]error{"Sign": sign, "Create": made, "Swap": swap} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", name, err)
		}
	}
	if _, err := k.Load(t.Context(), "doc"); !errors.Is(err, custody.ErrNotFound) {
		t.Errorf("a cancelled Swap wrote: %v", err)
	}
}
