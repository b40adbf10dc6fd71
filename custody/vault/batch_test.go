package vault

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// signingVault has one key in memory. distort may change its results.
type signingVault struct {
	t       *testing.T
	mu      sync.Mutex // held while it answers
	key     *ecdsa.PrivateKey
	distort func(results []map[string]any) []map[string]any
}

func (v *signingVault) answer(r *http.Request) (*http.Response, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case strings.HasSuffix(r.URL.Path, "/lookup-self"):
		return response(r, 200, `{"data":{"ttl":0}}`), nil
	case r.Method == http.MethodGet:
		der, err := x509.MarshalPKIXPublicKey(v.key.Public())
		if err != nil {
			return nil, err
		}
		text := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
		body, err := json.Marshal(map[string]any{"data": map[string]any{
			"type": "ecdsa-p256", "latest_version": 1, "keys": map[string]any{"1": map[string]any{"public_key": text}},
		}})
		return response(r, 200, string(body)), err
	}
	var asked struct {
		KeyVersion int              `json:"key_version"`
		Prehashed  bool             `json:"prehashed"`
		Hash       string           `json:"hash_algorithm"`
		Signature  string           `json:"signature_algorithm"`
		Marshaling string           `json:"marshaling_algorithm"`
		Batch      []map[string]any `json:"batch_input"`
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		v.t.Errorf("the request is not JSON: %v: %s", err, body)
	}
	if asked.KeyVersion != 1 || !asked.Prehashed || asked.Hash != "sha2-256" || asked.Signature != "pkcs1v15" || asked.Marshaling != "jws" {
		v.t.Errorf("asked for %s", body)
	}
	var results []map[string]any
	for _, item := range asked.Batch {
		digest, err := base64.StdEncoding.DecodeString(item["input"].(string))
		if err != nil {
			v.t.Errorf("input %v: %v", item["input"], err)
		}
		signature, err := custody.SignDigest(v.key, digest)
		if err != nil {
			return nil, err
		}
		results = append(results, map[string]any{
			"signature": "vault:v1:" + base64.RawURLEncoding.EncodeToString(signature), "key_version": 1, "reference": item["reference"],
		})
	}
	if v.distort != nil {
		results = v.distort(results)
	}
	text, err := json.Marshal(map[string]any{"data": map[string]any{"batch_results": results}})
	return response(r, 200, string(text)), err
}

// transit returns one over v, and what it logs.
func (v *signingVault) transit(t *testing.T) (*transit, *safeBuffer) {
	t.Helper()
	v.t = t
	var err error
	if v.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	log := &safeBuffer{}
	cfg, err := Config{Log: slog.New(slog.NewTextHandler(log, nil))}.complete()
	if err != nil {
		t.Fatal(err)
	}
	tr := newTransit(cfg, unauthenticated(t, v.answer, "http://one"), nil)
	t.Cleanup(tr.close)
	return tr, log
}

func (v *signingVault) batch(t *testing.T, tr *transit, n int) []*item {
	t.Helper()
	k, err := tr.key(t.Context(), "pact-signer-a")
	if err != nil {
		t.Fatal(err)
	}
	var batch []*item
	for i := range n {
		batch = append(batch, &item{digest: sha256.Sum256([]byte{byte(i)})})
	}
	if err := tr.signBatch(t.Context(), k.queue, batch); err != nil {
		for _, it := range batch {
			it.err = err
		}
	}
	return batch
}

func TestBatchBadItemFailsAlone(t *testing.T) {
	v := &signingVault{distort: func(results []map[string]any) []map[string]any {
		delete(results[1], "signature")
		results[1]["error"] = "unable to decode input"
		return results
	}}
	tr, _ := v.transit(t)
	for i, it := range v.batch(t, tr, 3) {
		if i == 1 {
			if !errors.Is(it.err, custody.ErrUnavailable) || it.signature != nil {
				t.Errorf("item 1: %v", it.err)
			}
		} else if it.err != nil || !verifySignature(v.key.Public(), it.digest[:], it.signature) {
			t.Errorf("item %d: %v", i, it.err)
		}
	}
}

// An answer that does not match the question item by item gives nobody anything.
func TestBatchThatDoesNotMatch(t *testing.T) {
	for name, distort := range map[string]func(r []map[string]any) []map[string]any{
		"one missing":        func(r []map[string]any) []map[string]any { return r[:2] },
		"one more":           func(r []map[string]any) []map[string]any { return append(r, r[0]) },
		"none":               func([]map[string]any) []map[string]any { return nil },
		"another order":      func(r []map[string]any) []map[string]any { slices.Reverse(r); return r },
		"no references":      func(r []map[string]any) []map[string]any { delete(r[2], "reference"); return r },
		"one twice":          func(r []map[string]any) []map[string]any { r[1] = r[0]; return r },
		"nothing in one":     func(r []map[string]any) []map[string]any { delete(r[1], "signature"); return r },
		"both in one":        func(r []map[string]any) []map[string]any { r[1]["error"] = "x"; return r },
		"of another call":    func(r []map[string]any) []map[string]any { r[0]["reference"] = "99.0"; return r },
		"a number as a name": func(r []map[string]any) []map[string]any { r[0]["reference"] = 0; return r },
	} {
		t.Run(name, func(t *testing.T) {
			v := &signingVault{distort: distort}
			tr, log := v.transit(t)
			for i, it := range v.batch(t, tr, 3) {
				if !errors.Is(it.err, custody.ErrUnavailable) {
					t.Errorf("item %d: %v, want ErrUnavailable", i, it.err)
				}
			}
			if !log.contains("level=ERROR") {
				t.Error("no alarm")
			}
		})
	}
}

func TestBatchStrictSignatures(t *testing.T) {
	for name, change := range map[string]func(s string) string{
		"version 2":    func(s string) string { return strings.Replace(s, "v1", "v2", 1) },
		"version 11":   func(s string) string { return strings.Replace(s, "v1", "v11", 1) },
		"no prefix":    func(s string) string { return strings.TrimPrefix(s, "vault:v1:") },
		"padded":       func(s string) string { return s + "==" },
		"standard":     func(s string) string { return s[:20] + "+/" + s[22:] },
		"short":        func(s string) string { return s[:len(s)-4] },
		"long":         func(s string) string { return s + "AAAA" },
		"line break":   func(s string) string { return s[:20] + "\n" + s[20:] },
		"empty":        func(string) string { return "vault:v1:" },
		"trailing bit": func(s string) string { return s[:len(s)-1] + "B" },
		"other bytes":  func(s string) string { return "vault:v1:" + strings.Repeat("A", len(s)-len("vault:v1:")) },
	} {
		t.Run(name, func(t *testing.T) {
			v := &signingVault{distort: func(r []map[string]any) []map[string]any {
				r[0]["signature"] = change(r[0]["signature"].(string))
				return r
			}}
			tr, log := v.transit(t)
			batch := v.batch(t, tr, 2)
			if !errors.Is(batch[0].err, custody.ErrUnavailable) || batch[0].signature != nil {
				t.Errorf("%v, want ErrUnavailable", batch[0].err)
			}
			if batch[1].err != nil {
				t.Errorf("the other item: %v", batch[1].err)
			}
			if !log.contains("level=ERROR") {
				t.Error("no alarm")
			}
		})
	}
}

// The first signature of a key and login is verified, later ones now and then, and
// all after one was wrong.
func TestBatchVerifies(t *testing.T) {
	wrong := false
	v := &signingVault{}
	v.distort = func(r []map[string]any) []map[string]any {
		if wrong { // each by the digest of another item
			first := r[0]["signature"]
			for i := range len(r) - 1 {
				r[i]["signature"] = r[i+1]["signature"]
			}
			r[len(r)-1]["signature"] = first
		}
		return r
	}
	tr, log := v.transit(t)
	delivered := func() (n int) {
		for _, it := range v.batch(t, tr, 64) {
			if it.err == nil {
				n++
			}
		}
		return n
	}
	if n := delivered(); n != 64 || log.contains("level=ERROR") {
		t.Fatalf("%d of 64 right signatures are delivered", n)
	}
	k, err := tr.key(t.Context(), "pact-signer-a")
	if err != nil {
		t.Fatal(err)
	}
	if k.verified.Load() != 1 {
		t.Errorf("verified under login %d, want 1", k.verified.Load())
	}

	wrong = true
	calls := 0
	for delivered() == 64 { // not chosen for a check yet
		if calls++; calls > 100 {
			t.Fatal("6400 wrong signatures and none was found")
		}
	}
	if n := delivered(); n != 0 {
		t.Errorf("%d wrong signatures are delivered after one was found", n)
	}
	if !log.contains("level=ERROR") {
		t.Error("no alarm")
	}

	// A new login starts with a check.
	k.suspect.Store(false)
	k.verified.Store(0)
	if n := delivered(); n != 0 {
		t.Errorf("%d wrong signatures are delivered after a new login", n)
	}
}

func TestBatchBody(t *testing.T) {
	batch := make([]*item, maxBatch)
	for i := range batch {
		batch[i] = &item{digest: sha256.Sum256([]byte{byte(i)})}
	}
	body := appendBatch(nil, 1<<64-1, batch)
	var read map[string]any
	if err := json.Unmarshal(body, &read); err != nil || len(read["batch_input"].([]any)) != maxBatch {
		t.Fatalf("%v: %s", err, body)
	}
	if n := testing.AllocsPerRun(100, func() { appendBatch(nil, 1<<64-1, batch) }); n != 1 {
		t.Errorf("%v allocations for a batch, want 1", n)
	}
}

func TestParsePublic(t *testing.T) {
	encode := func(key any) string {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	}
	p256, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	large, _ := rsa.GenerateKey(rand.Reader, 2048)
	for _, test := range []struct {
		text string
		alg  jose.SignatureAlgorithm
		ok   bool
	}{
		{encode(p256.Public()), jose.ES256, true},
		{encode(large.Public()), jose.RS256, true},
		{encode(p256.Public()), jose.RS256, false},
		{encode(large.Public()), jose.ES256, false},
		{encode(p384.Public()), jose.ES256, false},
		{"", jose.ES256, false},
		{"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", jose.ES256, false},
	} {
		if _, err := parsePublic(test.text, test.alg); (err == nil) != test.ok {
			t.Errorf("%s as %s: %v", test.text, test.alg, err)
		}
	}
}

// FuzzParseBatch holds that whatever is accepted is what was asked for.
func FuzzParseBatch(f *testing.F) {
	f.Add([]byte(`{"data":{"batch_results":[{"signature":"vault:v1:AA","key_version":1,"reference":"7.0"},{"key_version":0,"error":"x","reference":"7.1"}]}}`), 2)
	f.Add([]byte(`{"data":{"batch_results":[]}}`), 0)
	f.Add([]byte(`{"data":{"batch_results":null}}`), 1)
	f.Add([]byte(`{"data":{"batch_results":[{"signature":"a","signature":"b","reference":"7.0"}]}}`), 1)
	f.Add([]byte(`{"errors":["x"]}`), 1)
	f.Add([]byte(`[]`), 1)
	f.Fuzz(func(t *testing.T, answer []byte, n int) {
		n = max(0, min(n, maxBatch))
		results, err := parseBatch(answer, 7, n)
		if err != nil {
			return
		}
		if len(results) != n {
			t.Fatalf("%d results for %d items", len(results), n)
		}
		for i, r := range results {
			if r.Reference != fmt.Sprintf("7.%d", i) || (r.Signature == "") == (r.Error == "") {
				t.Fatalf("result %d: %+v", i, r)
			}
		}
	})
}

// FuzzParseSignature holds that a signature has one spelling.
func FuzzParseSignature(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	large := &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 2047), E: 65537}
	f.Add("vault:v1:"+base64.RawURLEncoding.EncodeToString(make([]byte, 64)), false)
	f.Add("vault:v1:"+base64.RawURLEncoding.EncodeToString(make([]byte, 256)), true)
	f.Add("vault:v2:AAAA", false)
	f.Add("vault:v1:AA\nAA", false)
	f.Fuzz(func(t *testing.T, text string, forRSA bool) {
		var public crypto.PublicKey = key.Public()
		want := 64
		if forRSA {
			public, want = large, 256
		}
		signature, err := parseSignature(text, public)
		if err != nil {
			return
		}
		if len(signature) != want || "vault:v1:"+base64.RawURLEncoding.EncodeToString(signature) != text {
			t.Fatalf("%q is accepted as %d bytes", text, len(signature))
		}
	})
}

// FuzzParseHMAC holds the same of an HMAC.
func FuzzParseHMAC(f *testing.F) {
	f.Add("vault:v1:" + base64.StdEncoding.EncodeToString(make([]byte, 32)))
	f.Add("vault:v1:" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{255}, 31)))
	f.Add("vault:v2:AAAA")
	f.Add("vault:v1:AA\r\nAA")
	f.Fuzz(func(t *testing.T, text string) {
		mac, err := parseHMAC(text)
		if err != nil {
			return
		}
		if len(mac) != sha256.Size || "vault:v1:"+base64.StdEncoding.EncodeToString(mac) != text {
			t.Fatalf("%q is accepted as %x", text, mac)
		}
	})
}

// A key that was replaced is found out by a refusal, and by the review without any.
func TestReplacedKeyIsFoundOut(t *testing.T) {
	another := func(v *signingVault) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			v.t.Fatal(err)
		}
		v.key = key
	}
	digest := make([]byte, sha256.Size)
	t.Run("refusal", func(t *testing.T) {
		v := &signingVault{}
		tr, _ := v.transit(t)
		v.batch(t, tr, 1)
		v.distort = func(r []map[string]any) []map[string]any {
			another(v)
			delete(r[0], "signature")
			r[0]["error"] = "signing key not found"
			return r
		}
		v.batch(t, tr, 1)
		v.distort = nil
		calls := tr.calls.Load()
		if _, err := tr.Sign(t.Context(), "a", digest); !errors.Is(err, custody.ErrUnavailable) || tr.calls.Load() != calls {
			t.Errorf("%v after %d more calls, want ErrUnavailable after none", err, tr.calls.Load()-calls)
		}
	})
	t.Run("review", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			v := &signingVault{}
			tr, log := v.transit(t)
			v.batch(t, tr, 1)
			v.mu.Lock()
			another(v)
			v.mu.Unlock()
			time.Sleep(reviewEvery)
			synctest.Wait()
			if !log.contains("another key than before") {
				t.Error("no alarm")
			}
			if _, err := tr.Sign(t.Context(), "a", digest); !errors.Is(err, custody.ErrUnavailable) {
				t.Errorf("%v, want ErrUnavailable", err)
			}
		})
	})
}
