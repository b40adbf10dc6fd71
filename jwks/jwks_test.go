package jwks

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

var testKeys = sync.OnceValue(func() (k struct {
	ec, ec2 *ecdsa.PrivateKey
	p384    *ecdsa.PrivateKey
	rsa     *rsa.PrivateKey
	weak    *rsa.PublicKey
}) {
	k.ec = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	k.ec2 = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	k.p384 = must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	k.rsa = must(rsa.GenerateKey(rand.Reader, 2048))
	n := new(big.Int).Lsh(big.NewInt(1), 1023)
	k.weak = &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 65537}
	return k
})

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// jwk renders a key as JSON and then changes members: a nil value removes one.
func jwk(t *testing.T, key any, change map[string]any) string {
	t.Helper()
	raw, err := jose.JSONWebKey{Key: key}.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	for k, v := range change {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	out, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestThumbprintRFC7638(t *testing.T) {
	// RFC 7638 section 3.1.
	var k jose.JSONWebKey
	err := k.UnmarshalJSON([]byte(`{"kty":"RSA","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw","e":"AQAB"}`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Thumbprint(k.Key)
	if err != nil || got != "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs" {
		t.Fatalf("got %q, %v", got, err)
	}
	if _, err := Thumbprint(&testKeys().p384.PublicKey); err == nil {
		t.Error("a P-384 key got a thumbprint")
	}
}

// MD-7: which keys of a set are left out.
func TestParseKeepsUsableKeysOnly(t *testing.T) {
	k := testKeys()
	ec, rs := &k.ec.PublicKey, &k.rsa.PublicKey
	cases := []struct {
		name string
		jwk  string
		want jose.SignatureAlgorithm // empty: left out
	}{
		{"ec", jwk(t, ec, map[string]any{"kid": "a"}), jose.ES256},
		{"rsa", jwk(t, rs, map[string]any{"kid": "a"}), jose.RS256},
		{"no kid", jwk(t, ec, nil), jose.ES256},
		{"use sig", jwk(t, ec, map[string]any{"use": "sig"}), jose.ES256},
		{"use enc", jwk(t, ec, map[string]any{"use": "enc"}), ""},
		{"use empty", jwk(t, ec, map[string]any{"use": ""}), ""},
		{"use null", strings.Replace(jwk(t, ec, map[string]any{"use": "X"}), `"X"`, "null", 1), ""},
		{"alg matches", jwk(t, ec, map[string]any{"alg": "ES256"}), jose.ES256},
		{"alg of another kind", jwk(t, ec, map[string]any{"alg": "RS256"}), ""},
		{"alg PS256", jwk(t, rs, map[string]any{"alg": "PS256"}), ""},
		{"alg a number", jwk(t, rs, map[string]any{"alg": 1}), ""},
		{"kid a number", jwk(t, ec, map[string]any{"kid": 1}), ""},
		{"unknown members", jwk(t, ec, map[string]any{"x5t": "zz", "nice": []int{1}}), jose.ES256},
		{"broken certificate is not looked at", jwk(t, ec, map[string]any{"x5c": []string{"no"}, "x5u": "http://x"}), jose.ES256},
		{"private ec", jwk(t, k.ec, nil), ""},
		{"private rsa", jwk(t, k.rsa, nil), ""},
		{"empty d", jwk(t, ec, map[string]any{"d": ""}), ""},
		{"symmetric", `{"kty":"oct","k":"c2VjcmV0"}`, ""},
		{"P-384", jwk(t, &k.p384.PublicKey, nil), ""},
		{"P-384 that says P-256", jwk(t, &k.p384.PublicKey, map[string]any{"crv": "P-256"}), ""},
		{"not on the curve", jwk(t, ec, map[string]any{"x": base64.RawURLEncoding.EncodeToString(make([]byte, 32))}), ""},
		{"RSA 1024", jwk(t, k.weak, nil), ""},
		{"okp", `{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`, ""},
		{"no kty", jwk(t, ec, map[string]any{"kty": nil}), ""},
		{"not an object", `"key"`, ""},
		{"null", `null`, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			set, err := Parse([]byte(`{"keys":[` + c.jwk + `],"other":1}`))
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				if len(set.Keys) != 0 {
					t.Fatalf("kept %+v", set.Keys)
				}
				return
			}
			if len(set.Keys) != 1 || set.Keys[0].Algorithm != c.want {
				t.Fatalf("got %+v, want one key for %s", set.Keys, c.want)
			}
		})
	}
}

// MD-7: what is no key set, and that 16 keys are the most.
func TestParseRefuses(t *testing.T) {
	ec := jwk(t, &testKeys().ec.PublicKey, nil)
	for name, doc := range map[string]string{
		"empty":                "",
		"array":                "[]",
		"null":                 "null",
		"no keys":              "{}",
		"keys null":            `{"keys":null}`,
		"keys an object":       `{"keys":{}}`,
		"keys twice":           `{"keys":[],"keys":[]}`,
		"member twice in key":  `{"keys":[{"kty":"EC","kty":"EC"}]}`,
		"trailing text":        `{"keys":[]} x`,
		"seventeen keys":       `{"keys":[` + strings.Repeat(ec+",", 16) + ec + `]}`,
		"seventeen unusable":   `{"keys":[` + strings.Repeat("{},", 16) + `{}]}`,
		"keys in another case": `{"Keys":[]}`,
	} {
		if _, err := Parse([]byte(doc)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if set, err := Parse([]byte(`{"keys":[` + strings.Repeat(ec+",", 15) + ec + `]}`)); err != nil || len(set.Keys) != 16 {
		t.Errorf("sixteen keys: %d, %v", len(set.Keys), err)
	}
}

// MD-7: without a kid only the one key for the algorithm is found.
func TestFind(t *testing.T) {
	k := testKeys()
	a := Key{"a", jose.ES256, &k.ec.PublicKey}
	b := Key{"b", jose.RS256, &k.rsa.PublicKey}
	c := Key{"c", jose.ES256, &k.ec2.PublicKey}
	cases := []struct {
		keys []Key
		kid  string
		alg  jose.SignatureAlgorithm
		want string
	}{
		{[]Key{a, b}, "a", jose.ES256, "a"},
		{[]Key{a, b}, "a", jose.RS256, ""},
		{[]Key{a, b}, "b", jose.RS256, "b"},
		{[]Key{a, b}, "x", jose.ES256, ""},
		{[]Key{a, b}, "", jose.ES256, "a"},
		{[]Key{a, b}, "", jose.RS256, "b"},
		{[]Key{a, b, c}, "", jose.ES256, ""},
		{nil, "", jose.ES256, ""},
	}
	for _, c := range cases {
		got, ok := Set{c.keys}.Find(c.kid, c.alg)
		if ok != (c.want != "") || ok && got.ID != c.want {
			t.Errorf("Find(%q, %s) = %q, %v; want %q", c.kid, c.alg, got.ID, ok, c.want)
		}
	}
}

func TestMarshal(t *testing.T) {
	k := testKeys()
	keys := []Key{{"a", jose.ES256, &k.ec.PublicKey}, {"b", jose.RS256, &k.rsa.PublicKey}}
	doc, err := Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	set, err := Parse(doc)
	if err != nil || len(set.Keys) != 2 {
		t.Fatalf("%+v, %v", set, err)
	}
	for i, got := range set.Keys {
		if got.ID != keys[i].ID || got.Algorithm != keys[i].Algorithm || !got.Public.(interface{ Equal(crypto.PublicKey) bool }).Equal(keys[i].Public) {
			t.Errorf("key %d came back as %+v", i, got)
		}
	}
	var raw struct{ Keys []map[string]any }
	if err := json.Unmarshal(doc, &raw); err != nil {
		t.Fatal(err)
	}
	for i, members := range []string{"alg crv kid kty use x y", "alg e kid kty n use"} {
		if len(raw.Keys[i]) != len(strings.Fields(members)) {
			t.Errorf("key %d has other members than %s: %v", i, members, raw.Keys[i])
		}
		for _, m := range strings.Fields(members) {
			if _, ok := raw.Keys[i][m]; !ok {
				t.Errorf("key %d lacks %s", i, m)
			}
		}
	}
	many := make([]Key, MaxKeys+1)
	for i := range many {
		many[i] = Key{fmt.Sprint(i), jose.ES256, &k.ec.PublicKey}
	}
	for name, keys := range map[string][]Key{
		"none":          nil,
		"private":       {{"a", jose.ES256, k.ec}},
		"no id":         {{"", jose.ES256, &k.ec.PublicKey}},
		"wrong alg":     {{"a", jose.RS256, &k.ec.PublicKey}},
		"weak":          {{"a", jose.RS256, k.weak}},
		"no key at all": {{"a", jose.ES256, nil}},
		"nil pointer":   {{"a", jose.ES256, (*ecdsa.PublicKey)(nil)}},
		"too many":      many,
	} {
		if doc, err := Marshal(keys); err == nil {
			t.Errorf("%s: rendered %s", name, doc)
		}
	}
}

func FuzzParse(f *testing.F) {
	k := testKeys()
	doc, err := Marshal([]Key{{"a", jose.ES256, &k.ec.PublicKey}, {"b", jose.RS256, &k.rsa.PublicKey}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(doc)
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","x":"","y":""},{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AA"},null,1,"x",[]]}`))
	f.Add([]byte(`{"keys":null}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		set, err := Parse(doc)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if len(set.Keys) > MaxKeys {
			t.Fatalf("%d keys", len(set.Keys))
		}
		for _, k := range set.Keys {
			if alg, err := algorithmOf(k.Public); err != nil || alg != k.Algorithm {
				t.Fatalf("unusable key kept: %+v, %v", k, err)
			}
			if k.ID == "" {
				continue
			}
			if _, err := Marshal([]Key{k}); err != nil {
				t.Fatalf("a parsed key does not render: %v", err)
			}
		}
	})
}
