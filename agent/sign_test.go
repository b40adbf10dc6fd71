package agent_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"sync"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/jwks"
)

// testKey signs compact JWS with any header that a test wants.
type testKey struct {
	kid  string
	alg  jose.SignatureAlgorithm
	priv crypto.Signer
}

var newKeys = sync.OnceValue(func() [2]testKey {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return [2]testKey{{"ec", jose.ES256, ec}, {"rsa", jose.RS256, r}}
})

func ecKey() testKey  { return newKeys()[0] }
func rsaKey() testKey { return newKeys()[1] }

func keySet() jwks.Set {
	var set jwks.Set
	for _, k := range newKeys() {
		set.Keys = append(set.Keys, jwks.Key{ID: k.kid, Algorithm: k.alg, Public: k.priv.Public()})
	}
	return set
}

// sign returns a compact JWS; header nil is alg and kid.
func (k testKey) sign(t testing.TB, header map[string]any, payload any) string {
	t.Helper()
	if header == nil {
		header = map[string]any{"alg": k.alg, "kid": k.kid}
	}
	encode := func(v any) string {
		data, raw := v.([]byte)
		if !raw {
			var err error
			if data, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		return base64.RawURLEncoding.EncodeToString(data)
	}
	input := encode(header) + "." + encode(payload)
	sum := sha256.Sum256([]byte(input))
	der, err := k.priv.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if k.alg == jose.ES256 {
		r, s, err := ecdsaParts(der)
		if err != nil {
			t.Fatal(err)
		}
		der = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	}
	return input + "." + base64.RawURLEncoding.EncodeToString(der)
}

// ecdsaParts reads SEQUENCE { INTEGER r, INTEGER s } with short lengths.
func ecdsaParts(der []byte) (r, s *big.Int, err error) {
	n := int(der[3])
	r = new(big.Int).SetBytes(der[4 : 4+n])
	s = new(big.Int).SetBytes(der[4+n+2:])
	return r, s, nil
}

// with returns base with changes; a nil value deletes.
func with(base, changes map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range base {
		out[k] = v
	}
	for k, v := range changes {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = v
		}
	}
	return out
}
