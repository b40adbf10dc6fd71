package signer_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// A client that knows protocol.md and a JOSE library, and nothing of ours: it
// enrols, signs and verifies with the key set that it fetches.
func TestPeersClient(t *testing.T) {
	for _, alg := range []jose.SignatureAlgorithm{jose.ES256, jose.RS256} {
		t.Run(string(alg), func(t *testing.T) {
			w := newContractWorld(t, func(c *worldConfig) { c.algorithm, c.start = alg, time.Now() })
			w.advance(time.Since(w.clock.now())) // an RSA key may have taken long
			d := newDevice(t)
			post := func(path, auth string, body any) map[string]any {
				t.Helper()
				b, err := json.Marshal(body)
				if err != nil {
					t.Fatal(err)
				}
				req, err := http.NewRequest(http.MethodPost, w.base+path, strings.NewReader(string(b)))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				if auth != "" {
					req.Header.Set("Authorization", auth)
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				raw, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				var m map[string]any
				if err := json.Unmarshal(raw, &m); err != nil || resp.StatusCode != http.StatusOK {
					t.Fatalf("%s: %s %s", path, resp.Status, raw)
				}
				return m
			}
			enrolled := post("/pact/enroll", "", map[string]any{"publicJwk": d.jwk(t), "proof": d.assertion(t, w.base+"/pact/enroll", time.Now())})
			signed := post("/pact/sign", "PACT-Device "+d.assertion(t, w.base+"/pact/sign", time.Now()), map[string]any{"audience": providerAudience, "nonce": "abc"})
			if len(enrolled) != 2 || len(signed) != 2 || signed["nonce"] != "abc" {
				t.Fatalf("enrolled %v, signed %d members", enrolled, len(signed))
			}

			resp, err := http.Get(fmt.Sprint(enrolled["issuer"], "/.well-known/jwks.json"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var keys jose.JSONWebKeySet
			if err := json.NewDecoder(resp.Body).Decode(&keys); err != nil {
				t.Fatal(err)
			}
			jws, err := jose.ParseSignedCompact(signed["token"].(string), []jose.SignatureAlgorithm{jose.ES256, jose.RS256})
			if err != nil {
				t.Fatal(err)
			}
			header := jws.Signatures[0].Protected
			if header.Algorithm != string(alg) || header.ExtraHeaders[jose.HeaderType] != "JWT" {
				t.Errorf("header %+v", header)
			}
			key := keys.Key(header.KeyID)
			if len(key) != 1 || key[0].Algorithm != string(alg) || key[0].Use != "sig" || !key[0].IsPublic() {
				t.Fatalf("kid %q: %d keys", header.KeyID, len(key))
			}
			payload, err := jws.Verify(key[0])
			if err != nil {
				t.Fatal(err)
			}
			var claims struct {
				Iss, Sub, Aud, Jti string
				Iat, Exp           int64
			}
			d1 := json.NewDecoder(strings.NewReader(string(payload)))
			d1.DisallowUnknownFields()
			if err := d1.Decode(&claims); err != nil {
				t.Fatal(err)
			}
			now := time.Now().Unix()
			if claims.Iss != enrolled["issuer"] || claims.Sub != enrolled["subject"] || claims.Aud != providerAudience ||
				claims.Exp-claims.Iat != 120 || claims.Iat > now+30 || claims.Iat < now-30 || len(claims.Jti) < 22 {
				t.Errorf("claims %+v", claims)
			}
		})
	}
}
