package signer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/jwks"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// assertionVectors is the form of assertions.json.
type assertionVectors struct {
	Given struct {
		Endpoint string                `json:"endpoint"`
		Enrolled []*signerv1.PublicJwk `json:"enrolled"`
		Now      Seconds               `json:"now"`
	} `json:"given"`
	Cases []struct {
		Name      string `json:"name"`
		Assertion string `json:"assertion"`
		Want      string `json:"want"`
	} `json:"cases"`
}

// eachVectorFile runs test on testdata/assertions.json and on the file of that
// name in every directory that PACT_VECTORS lists.
func eachVectorFile(t *testing.T, test func(t *testing.T, v assertionVectors)) {
	t.Helper()
	for i, dir := range append([]string{"testdata"}, filepath.SplitList(os.Getenv("PACT_VECTORS"))...) {
		data, err := os.ReadFile(filepath.Join(dir, "assertions.json"))
		if i > 0 && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var v assertionVectors
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		if len(v.Cases) == 0 || len(v.Given.Enrolled) == 0 {
			t.Fatalf("%s: nothing to prove", dir)
		}
		t.Run(filepath.Base(dir), func(t *testing.T) { test(t, v) })
	}
}

// Seconds are Unix seconds in a vector file: whole, however they are written.
type Seconds int64

func (s *Seconds) UnmarshalJSON(data []byte) error {
	var f float64
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	if *s = Seconds(f); float64(*s) != f {
		return errors.New("not whole seconds")
	}
	return nil
}

// Time is the moment.
func (s Seconds) Time() time.Time { return time.Unix(int64(s), 0) }

func TestSeconds(t *testing.T) {
	for _, written := range []string{"1800000000", "1800000000.0", "1.8e9"} {
		var s Seconds
		if err := json.Unmarshal([]byte(written), &s); err != nil || s.Time().Unix() != 1800000000 {
			t.Errorf("%s: %d, %v", written, s, err)
		}
	}
}

// NamesReplay says whether a case is, by its name, of an assertion that was used
// before: there the guard against replay is not fresh.
func NamesReplay(name string) bool {
	words := strings.FieldsFunc(strings.ToLower(name), func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') })
	before := ""
	for _, w := range words {
		switch {
		case strings.HasPrefix(w, "replay"), w == "again", w == "twice", w == "reuse", w == "reused",
			w == "use" && (before == "second" || before == "re"):
			return true
		case w == "used" && before != "jwk" && before != "jku" && before != "x5u" && before != "x5c": // a member of the header
			return true
		}
		before = w
	}
	return false
}

func TestNamesReplay(t *testing.T) {
	for _, name := range []string{
		"replay", "replayed", "good-replayed", "same-jti-again", "presented twice", "Reused_JTI", "re-use", "reuse", "jti-used", "already-used", "second-use", "a-second-use",
	} {
		if !NamesReplay(name) {
			t.Errorf("%s is of a first use", name)
		}
	}
	for _, name := range []string{"good", "second-device", "second-user", "against-another-endpoint", "unused", "jwk-used", "no-jti", "use"} {
		if NamesReplay(name) {
			t.Errorf("%s is of a second use", name)
		}
	}
}

func TestAssertionVectors(t *testing.T) {
	eachVectorFile(t, func(t *testing.T, v assertionVectors) {
		keys := map[string]*ecdsa.PublicKey{}
		for _, k := range v.Given.Enrolled {
			_, key, err := pointOf(k)
			if err != nil {
				t.Fatal(err)
			}
			keys[k.Kid] = key
		}
		for _, c := range v.Cases {
			t.Run(c.Name, func(t *testing.T) {
				used := map[[2]string]bool{} // key and jti: the guard against replay
				present := func() (string, error) {
					a, err := parseAssertion(c.Assertion)
					if err != nil || keys[a.thumbprint] == nil {
						return "unauthorized", err
					}
					if err := a.verify([]string{v.Given.Endpoint}, keys[a.thumbprint], v.Given.Now.Time()); err != nil {
						return "unauthorized", err
					}
					use := [2]string{a.thumbprint, a.jti}
					if used[use] {
						return "unauthorized", errors.New("it was used before")
					}
					used[use] = true
					return "ok", nil
				}
				if NamesReplay(c.Name) && c.Want == "unauthorized" {
					if verdict, err := present(); verdict != "ok" {
						t.Errorf("the first use: %s (%v)", verdict, err)
					}
				}
				if verdict, err := present(); verdict != c.Want {
					t.Errorf("got %s (%v), want %s", verdict, err, c.Want)
				}
			})
		}
	})
}

// testKey signs assertions whose parts a test chooses.
type testKey struct {
	key        *ecdsa.PrivateKey
	thumbprint string
}

func newTestKey(t interface{ Fatal(...any) }) testKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	thumbprint, err := jwks.Thumbprint(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return testKey{key, thumbprint}
}

func (k testKey) compact(t interface{ Fatal(...any) }, header, claims string) string {
	signed := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	digest := sha256.Sum256([]byte(signed))
	signature, err := custody.SignDigest(k.key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

const testEndpoint = "https://pa.example.com/pact/sign"

func (k testKey) header() map[string]any {
	return map[string]any{"alg": "ES256", "kid": k.thumbprint, "typ": "pact-device+jwt"}
}

func (k testKey) claims(now int64) map[string]any {
	return map[string]any{"iss": k.thumbprint, "aud": testEndpoint, "iat": now, "exp": now + 60, "jti": "j"}
}

func jsonOf(t interface{ Fatal(...any) }, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// accepted is the whole decision on an assertion by k.
func (k testKey) accepted(compact string, now time.Time) bool {
	a, err := parseAssertion(compact)
	return err == nil && a.thumbprint == k.thumbprint && a.verify([]string{testEndpoint}, &k.key.PublicKey, now) == nil
}

// What an assertion may and may not be, one change at a time.
func TestAssertionForm(t *testing.T) {
	k, other := newTestKey(t), newTestKey(t)
	const now = 1_795_000_000
	for _, c := range []struct {
		name   string
		header map[string]any
		claims map[string]any
		want   bool
	}{
		{name: "as it should be", want: true},
		{name: "typ in capitals", header: map[string]any{"typ": "PACT-Device+JWT"}, want: true},
		{name: "typ with a prefix", header: map[string]any{"typ": "application/pact-device+jwt"}},
		{name: "typ a list", header: map[string]any{"typ": []string{"pact-device+jwt"}}},
		{name: "jwk beside", header: map[string]any{"jwk": map[string]string{"kty": "EC"}, "x5u": "https://x.example.com", "jku": 1}, want: true},
		{name: "crit", header: map[string]any{"crit": []string{"exp"}}},
		{name: "crit empty", header: map[string]any{"crit": []string{}}},
		{name: "alg none", header: map[string]any{"alg": "none"}},
		{name: "alg HS256", header: map[string]any{"alg": "HS256"}},
		{name: "kid another", header: map[string]any{"kid": other.thumbprint}},
		{name: "kid and iss another", header: map[string]any{"kid": other.thumbprint}, claims: map[string]any{"iss": other.thumbprint}},
		{name: "no kid", header: map[string]any{"kid": nil}},
		{name: "iss another", claims: map[string]any{"iss": other.thumbprint}},
		{name: "iss a list", claims: map[string]any{"iss": []string{k.thumbprint}}},
		{name: "aud a list", claims: map[string]any{"aud": []string{testEndpoint}}},
		{name: "aud with a slash", claims: map[string]any{"aud": testEndpoint + "/"}},
		{name: "aud in capitals", claims: map[string]any{"aud": strings.ToUpper(testEndpoint)}},
		{name: "aud with a port", claims: map[string]any{"aud": "https://pa.example.com:443/pact/sign"}},
		{name: "aud the origin", claims: map[string]any{"aud": "https://pa.example.com"}},
		{name: "unknown claim", claims: map[string]any{"x": 1, "nbf": now + 1000}, want: true},
		{name: "iat a fraction", claims: map[string]any{"iat": now - 0.5}},
		{name: "exp a fraction", claims: map[string]any{"exp": now + 59.5}},
		{name: "iat a string", claims: map[string]any{"iat": "1795000000"}},
		{name: "iat null", claims: map[string]any{"iat": nil}},
		{name: "exp enormous", claims: map[string]any{"exp": json.Number("1e300")}},
		{name: "exp written as a power", claims: map[string]any{"exp": json.Number("1.79500006e9")}},
		{name: "iat negative", claims: map[string]any{"iat": -1, "exp": 59}},
		{name: "lives 0 s", claims: map[string]any{"exp": now}},
		{name: "lives -1 s", claims: map[string]any{"exp": now - 1}},
		{name: "lives 1 s", claims: map[string]any{"exp": now + 1}, want: true},
		{name: "lives 61 s", claims: map[string]any{"exp": now + 61}},
		{name: "jti empty", claims: map[string]any{"jti": ""}},
		{name: "jti a number", claims: map[string]any{"jti": 1}},
		{name: "jti of 256 bytes", claims: map[string]any{"jti": strings.Repeat("é", 128)}, want: true},
		{name: "jti of 258 bytes", claims: map[string]any{"jti": strings.Repeat("é", 129)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			header, claims := k.header(), k.claims(now)
			maps.Copy(header, c.header)
			maps.Copy(claims, c.claims)
			if got := k.accepted(k.compact(t, jsonOf(t, header), jsonOf(t, claims)), time.Unix(now, 0)); got != c.want {
				t.Errorf("accepted: %v, want %v", got, c.want)
			}
		})
	}
	header, claims := jsonOf(t, k.header()), jsonOf(t, k.claims(now))
	good := k.compact(t, header, claims)
	for name, compact := range map[string]string{
		"repeated claim":       k.compact(t, header, strings.Replace(claims, "{", `{"jti":"j",`, 1)),
		"repeated in header":   k.compact(t, strings.Replace(header, "{", `{"alg":"ES256",`, 1), claims),
		"claims in a list":     k.compact(t, header, "["+claims+"]"),
		"something after":      k.compact(t, header, claims+"{}"),
		"claim in capitals":    k.compact(t, header, strings.Replace(claims, `"jti"`, `"JTI"`, 1)),
		"padded":               good + "=",
		"a part more":          good + ".",
		"a line break":         strings.Replace(good, ".", ".\n", 1),
		"signature cut":        good[:len(good)-4],
		"no kid at all":        k.compact(t, `{"alg":"ES256","typ":"pact-device+jwt"}`, claims),
		"no iat at all":        k.compact(t, header, strings.Replace(claims, `"iat"`, `"iax"`, 1)),
		"signature of another": other.compact(t, header, claims),
		"empty":                "",
	} {
		if k.accepted(compact, time.Unix(now, 0)) {
			t.Errorf("%s: accepted", name)
		}
	}
}

// At any time an assertion is good exactly while iat <= now + 30 s and
// now < exp + 30 s and it lives 1 to 60 s.
func TestAssertionTimes(t *testing.T) {
	k := newTestKey(t)
	rapid.Check(t, func(t *rapid.T) {
		now := rapid.Int64Range(1_000_000_000, 4_000_000_000).Draw(t, "now")
		iat := now + rapid.Int64Range(-120, 60).Draw(t, "iat")
		life := rapid.Int64Range(-5, 70).Draw(t, "life")
		claims := k.claims(now)
		claims["iat"], claims["exp"] = iat, iat+life
		want := life >= 1 && life <= 60 && iat <= now+30 && now < iat+life+30
		if got := k.accepted(k.compact(t, jsonOf(t, k.header()), jsonOf(t, claims)), time.Unix(now, 0)); got != want {
			t.Fatalf("iat %+d, life %d: accepted %v, want %v", iat-now, life, got, want)
		}
	})
}

// Errors do not hold what was sent, and none but our own are returned.
func FuzzAssertion(f *testing.F) {
	k := newTestKey(f)
	good := k.compact(f, jsonOf(f, k.header()), jsonOf(f, k.claims(1_795_000_000)))
	f.Add(good)
	for _, header := range []string{`{"alg":"ES256"}`, `{"alg":"none","typ":"pact-device+jwt"}`, `{"alg":"ES256","crit":["x"]}`, `[]`} {
		f.Add(k.compact(f, header, `{"iat":1e3}`))
	}
	f.Add("..")
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, compact string) {
		a, err := parseAssertion(compact)
		if err != nil {
			if !errors.Is(err, errAssertion) {
				t.Fatalf("%v is not errAssertion", err)
			}
			return
		}
		if a.jti == "" || len(a.jti) > maxJTI || len(a.thumbprint) != thumbprintLength {
			t.Fatalf("accepted %+v", a)
		}
		if err := a.verify([]string{testEndpoint}, &k.key.PublicKey, time.Unix(1_795_000_000, 0)); err == nil && compact != good {
			// ECDSA signatures can be changed without the key (S to -S), the rest cannot.
			if compact[:strings.LastIndexByte(compact, '.')] != good[:strings.LastIndexByte(good, '.')] {
				t.Fatalf("accepted %q, which nobody signed", compact)
			}
		} else if err != nil && !errors.Is(err, errAssertion) {
			t.Fatalf("%v is not errAssertion", err)
		}
	})
}
