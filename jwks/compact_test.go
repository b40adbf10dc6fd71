package jwks

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

// signed makes a compact JWS with go-jose, which is not the code under test.
func signed(t testing.TB, alg jose.SignatureAlgorithm, key any, header map[jose.HeaderKey]any, payload string) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, &jose.SignerOptions{ExtraHeaders: header})
	if err != nil {
		t.Fatal(err)
	}
	jws, err := s.Sign([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return must(jws.CompactSerialize())
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func TestCompactRoundTrip(t *testing.T) {
	k := testKeys()
	for _, c := range []struct {
		alg       jose.SignatureAlgorithm
		key, pub  any
		otherKind any
	}{
		{jose.ES256, k.ec, &k.ec.PublicKey, &k.rsa.PublicKey},
		{jose.RS256, k.rsa, &k.rsa.PublicKey, &k.ec.PublicKey},
	} {
		compact := signed(t, c.alg, c.key, map[jose.HeaderKey]any{"kid": "a", "typ": "JWT", "jku": "https://x"}, `{"iss":"x"}`)
		tok, err := ParseCompact(compact, jose.ES256, jose.RS256)
		if err != nil {
			t.Fatal(err)
		}
		if tok.Algorithm != c.alg || tok.KeyID != "a" || !tok.HasKeyID || tok.Type != "JWT" || !tok.HasType {
			t.Errorf("header read as %s %q %q", tok.Algorithm, tok.KeyID, tok.Type)
		}
		if string(tok.Unverified()) != `{"iss":"x"}` {
			t.Errorf("payload %q", tok.Unverified())
		}
		payload, err := tok.Verify(c.pub)
		if err != nil || string(payload) != `{"iss":"x"}` {
			t.Errorf("Verify: %q, %v", payload, err)
		}
		for name, pub := range map[string]any{
			"other key": &k.ec2.PublicKey, "other kind": c.otherKind, "private": c.key, "nil": nil, "weak": k.weak, "P-384": &k.p384.PublicKey,
		} {
			if payload, err := tok.Verify(pub); !errors.Is(err, ErrSignature) || payload != nil {
				t.Errorf("%s %s: %q, %v", c.alg, name, payload, err)
			}
		}
	}
}

func TestVerifyRefusesChangedTokens(t *testing.T) {
	k := testKeys()
	compact := signed(t, jose.ES256, k.ec, nil, `{"a":1}`)
	parts := strings.Split(compact, ".")
	sig := must(base64.RawURLEncoding.DecodeString(parts[2]))
	sig[10] ^= 1
	for name, changed := range map[string]string{
		"payload":   parts[0] + "." + b64(`{"a":2}`) + "." + parts[2],
		"header":    b64(`{"alg":"ES256","x":1}`) + "." + parts[1] + "." + parts[2],
		"one bit":   parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(sig),
		"short":     parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(sig[:63]),
		"long":      parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(append(sig, 0)),
		"all zeros": parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64)),
	} {
		tok, err := ParseCompact(changed, jose.ES256)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := tok.Verify(&k.ec.PublicKey); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// MD-6: the forms that are no token.
func TestParseCompactRefuses(t *testing.T) {
	good := []string{b64(`{"alg":"ES256"}`), b64("{}"), b64("sig")}
	join := func(parts ...string) string { return strings.Join(parts, ".") }
	header := func(h string) string { return join(b64(h), good[1], good[2]) }
	if _, err := ParseCompact(join(good...), jose.ES256); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	for name, compact := range map[string]string{
		"empty":              "",
		"two parts":          join(good[:2]...),
		"four parts":         join(good[0], good[1], good[2], good[2]),
		"empty header":       join("", good[1], good[2]),
		"empty payload":      join(good[0], "", good[2]),
		"empty signature":    join(good[0], good[1], ""),
		"padded":             join(good[0], good[1], "AAA="),
		"standard alphabet":  join(good[0], good[1], "ab+/"),
		"stray bits":         join(good[0], good[1], "AB"),
		"impossible length":  join(good[0], good[1], "A"),
		"line break":         join(good[0], good[1], "AA\nAA"),
		"carriage return":    join(good[0], "e30\r", good[2]),
		"leading space":      " " + join(good...),
		"json serialization": `{"payload":"e30","protected":"","signature":""}`,
		"header no json":     header(`alg`),
		"header an array":    header(`["ES256"]`),
		"header null":        header(`null`),
		"header twice":       header(`{"alg":"ES256"}{}`),
		"alg twice":          header(`{"alg":"none","alg":"ES256"}`),
		"other member twice": header(`{"alg":"ES256","a":1,"a":2}`),
		"alg in other case":  header(`{"Alg":"ES256"}`),
		"alg lower":          header(`{"alg":"es256"}`),
		"alg none":           header(`{"alg":"none"}`),
		"alg HS256":          header(`{"alg":"HS256"}`),
		"alg not asked for":  header(`{"alg":"RS256"}`),
		"alg an array":       header(`{"alg":["ES256"]}`),
		"no alg":             header(`{"kid":"a"}`),
		"crit":               header(`{"alg":"ES256","crit":["exp"]}`),
		"crit empty":         header(`{"alg":"ES256","crit":[]}`),
		"crit null":          header(`{"alg":"ES256","crit":null}`),
		"kid a number":       header(`{"alg":"ES256","kid":1}`),
		"kid null":           header(`{"alg":"ES256","kid":null}`),
		"typ a number":       header(`{"alg":"ES256","typ":1}`),
		"typ null":           header(`{"alg":"ES256","typ":null}`),
		"invalid utf-8":      header("{\"alg\":\"ES256\",\"a\":\"\xff\"}"),
	} {
		tok, err := ParseCompact(compact, jose.ES256)
		if !errors.Is(err, ErrInvalid) || tok != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseCompact(join(good...)); !errors.Is(err, ErrInvalid) {
		t.Errorf("no algorithm allowed: %v", err)
	}
}

// MD-6: jwk, jku and x5u are ignored.
func TestHeaderKeysAreNeverUsed(t *testing.T) {
	k := testKeys()
	// A token that brings its own key along verifies under that key only if the
	// caller trusts it anyway.
	compact := signed(t, jose.ES256, k.ec2, map[jose.HeaderKey]any{"jwk": map[string]string{"kty": "nonsense"}}, "{}")
	tok, err := ParseCompact(compact, jose.ES256)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tok.Verify(&k.ec.PublicKey); !errors.Is(err, ErrSignature) {
		t.Errorf("got %v", err)
	}
}

// Without crit a b64 member is one more unknown member (RFC 7797 section 6):
// what is signed is the encoded payload, and nothing else verifies.
func TestB64MeansNothing(t *testing.T) {
	k := testKeys()
	input := b64(`{"alg":"ES256","b64":false}`) + "." + b64("{}")
	sign := func(over string) string {
		sum := sha256.Sum256([]byte(over))
		r, s, err := ecdsa.Sign(rand.Reader, k.ec, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
	}
	if _, err := must(ParseCompact(input+"."+sign(input), jose.ES256)).Verify(&k.ec.PublicKey); err != nil {
		t.Error(err)
	}
	bare := sign(b64(`{"alg":"ES256","b64":false}`) + ".{}")
	if _, err := must(ParseCompact(input+"."+bare, jose.ES256)).Verify(&k.ec.PublicKey); !errors.Is(err, ErrSignature) {
		t.Errorf("bare payload: %v", err)
	}
}

func TestTokenPrintsRedacted(t *testing.T) {
	tok := must(ParseCompact(signed(t, jose.ES256, testKeys().ec, nil, `{"secret":"hunter2"}`), jose.ES256))
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "tok", tok)
	for _, s := range []string{
		fmt.Sprint(tok), fmt.Sprintf("%+v %#v %s %q %x %d", tok, tok, tok, tok, tok, tok), string(must(json.Marshal(tok))), log.String(),
	} {
		if !strings.Contains(s, "[redacted]") || strings.Contains(s, "hunter2") || strings.Contains(s, "eyJ") {
			t.Errorf("printed %s", s)
		}
	}
}

func FuzzParseCompact(f *testing.F) {
	k := testKeys()
	f.Add(signed(f, jose.ES256, k.ec, map[jose.HeaderKey]any{"kid": "a", "typ": "JWT"}, "{}"))
	f.Add(signed(f, jose.RS256, k.rsa, nil, "{}"))
	f.Add("a.b.c")
	f.Add(b64(`{"alg":"none"}`) + ".e30.")
	f.Add(b64(`{"alg":"ES256","crit":[]}`) + ".e30.AA")
	f.Fuzz(func(t *testing.T, compact string) {
		tok, err := ParseCompact(compact, jose.ES256, jose.RS256)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		// One token has one spelling.
		again := strings.SplitN(compact, ".", 2)[0] + "." +
			base64.RawURLEncoding.EncodeToString(tok.payload) + "." + base64.RawURLEncoding.EncodeToString(tok.signature)
		if again != compact {
			t.Fatalf("%q was read, its parts spell %q", compact, again)
		}
		// Whatever we accept, go-jose accepts under the same key.
		if payload, err := tok.Verify(&k.ec.PublicKey); err == nil {
			jws, err := jose.ParseSignedCompact(compact, []jose.SignatureAlgorithm{jose.ES256})
			if err != nil {
				t.Fatal(err)
			}
			if theirs, err := jws.Verify(&k.ec.PublicKey); err != nil || string(theirs) != string(payload) {
				t.Fatalf("go-jose: %q, %v", theirs, err)
			}
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	k := testKeys()
	compact := signed(b, jose.ES256, k.ec, map[jose.HeaderKey]any{"kid": "a", "typ": "JWT"}, `{"iss":"https://pa.example.com","sub":"x"}`)
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = ParseCompact(compact, jose.ES256)
		}
	})
	b.Run("parse and verify", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := must(ParseCompact(compact, jose.ES256)).Verify(&k.ec.PublicKey); err != nil {
				b.Fatal(err)
			}
		}
	})
}
