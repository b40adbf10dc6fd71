package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// This file is a client written from the contract alone: net/http and a JOSE
// library, nothing of the signer's.

// device is a personal agent's key.
type device struct {
	key        *ecdsa.PrivateKey
	thumbprint string
}

func newDevice(t testing.TB) *device {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := (&jose.JSONWebKey{Key: key.Public()}).Thumbprint(crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return &device{key, base64.RawURLEncoding.EncodeToString(sum)}
}

// assertion proves the key to one endpoint, once.
func (d *device) assertion(t testing.TB, endpoint string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: d.key, KeyID: d.thumbprint}},
		(&jose.SignerOptions{}).WithType("pact-device+jwt"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	compact, err := jwt.Signed(signer).Claims(map[string]any{
		"iss": d.thumbprint, "aud": endpoint, "iat": now.Unix(), "exp": now.Unix() + 60, "jti": rand.Text(),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return compact
}

// jwk is the public half as enrol wants it.
func (d *device) jwk() map[string]string {
	point, err := d.key.PublicKey.Bytes() // 0x04 || X || Y
	if err != nil {
		panic(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	return map[string]string{"kty": "EC", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:]), "kid": d.thumbprint, "alg": "ES256", "use": "sig"}
}

// client calls one signer URL, at an address that may be another.
type client struct {
	t    testing.TB
	base string // signer URL: what assertions name
	at   string // where to connect; empty: base
}

// post sends a JSON body and returns status and body; an error is the
// connection's.
func (c client) post(path, authorization string, body any) (int, map[string]any, error) {
	c.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	at := c.at
	if at == "" {
		at = c.base
	}
	req, err := http.NewRequest(http.MethodPost, at+path, bytes.NewReader(data))
	if err != nil {
		c.t.Fatal(err)
	}
	_, req.Host, _ = strings.Cut(c.base, "://")
	req.Header.Set("Content-Type", "application/json")
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	return do(req)
}

func do(req *http.Request) (int, map[string]any, error) {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	var answer map[string]any
	if err := json.Unmarshal(data, &answer); err != nil {
		return resp.StatusCode, nil, fmt.Errorf("status %d, body %q: %w", resp.StatusCode, data, err)
	}
	return resp.StatusCode, answer, nil
}

// must fails the test unless the call was answered with the status.
func (c client) must(want int, path, authorization string, body any) map[string]any {
	c.t.Helper()
	code, answer, err := c.post(path, authorization, body)
	if err != nil || code != want {
		c.t.Fatalf("POST %s: %d %v %v, want %d", path, code, answer, err, want)
	}
	return answer
}

func (c client) enrolment(d *device) map[string]any {
	return map[string]any{"publicJwk": d.jwk(), "proof": d.assertion(c.t, c.base+"/pact/enroll")}
}

// enroll enrols a device and returns its subject.
func (c client) enroll(d *device) string {
	c.t.Helper()
	return text(c.t, c.must(200, "/pact/enroll", "", c.enrolment(d)), "subject")
}

// as is the Authorization of a device for one call.
func (c client) as(d *device, path string) string {
	return "PACT-Device " + d.assertion(c.t, c.base+path)
}

// sign returns a PA-JWT for the audience.
func (c client) sign(d *device, audience string) string {
	c.t.Helper()
	nonce := rand.Text()
	answer := c.must(200, "/pact/sign", c.as(d, "/pact/sign"), map[string]any{"audience": audience, "nonce": nonce})
	if answer["nonce"] != nonce {
		c.t.Fatalf("the nonce came back as %v", answer["nonce"])
	}
	return text(c.t, answer, "token")
}

// keySet fetches the issuer's key set.
func (c client) keySet() jose.JSONWebKeySet {
	c.t.Helper()
	at := c.at
	if at == "" {
		at = c.base
	}
	req, err := http.NewRequest(http.MethodGet, at+"/.well-known/jwks.json", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	_, req.Host, _ = strings.Cut(c.base, "://")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	var set jose.JSONWebKeySet
	if err := json.NewDecoder(resp.Body).Decode(&set); err != nil || resp.StatusCode != 200 {
		c.t.Fatalf("key set: %d %v", resp.StatusCode, err)
	}
	return set
}

// verify checks a token against a key set and returns its claims.
func verify(t testing.TB, set jose.JSONWebKeySet, token string) map[string]any {
	t.Helper()
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256, jose.RS256})
	if err != nil {
		t.Fatal(err)
	}
	keys := set.Key(parsed.Headers[0].KeyID)
	if len(keys) != 1 {
		t.Fatalf("%d keys in the set have the id %q", len(keys), parsed.Headers[0].KeyID)
	}
	var claims map[string]any
	if err := parsed.Claims(keys[0], &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

// operator calls the admin listener's REST face.
type operator struct {
	t     testing.TB
	base  string
	token string
}

func (p *process) operator() operator { return operator{p.t, p.info.Admin, p.adminToken()} }

func (o operator) call(method, path string, body any) (int, map[string]any, error) {
	o.t.Helper()
	var r io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			o.t.Fatal(err)
		}
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, o.base+path, r)
	if err != nil {
		o.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+o.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return do(req)
}

// must fails the test unless the call succeeds.
func (o operator) must(method, path string, body any) map[string]any {
	o.t.Helper()
	code, answer, err := o.call(method, path, body)
	if err != nil || code != 200 {
		o.t.Fatalf("%s %s: %d %v %v", method, path, code, answer, err)
	}
	return answer
}

// text is a non-empty string member of an answer.
func text(t testing.TB, answer map[string]any, member string) string {
	t.Helper()
	s, _ := answer[member].(string)
	if s == "" {
		t.Fatalf("%v has no %s", answer, member)
	}
	return s
}

// list is a member of an answer that is a list of objects.
func list(t testing.TB, answer map[string]any, member string) []map[string]any {
	t.Helper()
	items, ok := answer[member].([]any)
	if !ok {
		t.Fatalf("%v has no list %s", answer, member)
	}
	objects := make([]map[string]any, len(items))
	for i, item := range items {
		objects[i], _ = item.(map[string]any)
	}
	return objects
}
