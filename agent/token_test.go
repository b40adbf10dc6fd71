package agent_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

func TestTokenVectors(t *testing.T) {
	type file struct {
		Given struct {
			Issuer, Audience, Nonce, Subject string
			Now                              seconds
		}
		Cases []struct {
			Name     string
			Response json.RawMessage
			Want     string
		}
	}
	vectors(t, "tokens.json", func(t *testing.T, f file) {
		atLeastOne(t, len(f.Cases))
		g := f.Given
		want := agent.SignWant{Issuer: g.Issuer, Audience: g.Audience, Subject: g.Subject, Nonce: g.Nonce}
		for _, c := range f.Cases {
			t.Run(c.Name, func(t *testing.T) {
				got := "ok"
				if _, err := agent.CheckSignResponse(c.Response, want, g.Now.time()); errors.Is(err, agent.ErrInvalidToken) {
					got = "invalid_token"
				} else if err != nil {
					t.Fatalf("untyped error %v", err)
				}
				if got != c.Want {
					t.Errorf("got %s, want %s", got, c.Want)
				}
			})
		}
	})
}

var (
	signNow    = time.Unix(1795000000, 0)
	signWant   = agent.SignWant{Issuer: "https://pa.example.com", Audience: "aud-1", Subject: "pa_1", Nonce: "n-1"}
	signClaims = map[string]any{
		"iss": "https://pa.example.com", "aud": "aud-1", "sub": "pa_1", "jti": "j", "iat": 1795000000, "exp": 1795000120,
	}
)

func signResponse(t testing.TB, changes map[string]any) []byte {
	body, err := json.Marshal(map[string]any{"token": ecKey().sign(t, nil, with(signClaims, changes)), "nonce": "n-1"})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// TestSignResponse covers SG-6 beyond the vectors, each limit at its edge.
func TestSignResponse(t *testing.T) {
	long := strings.Repeat("ä", 256)
	for _, c := range []struct {
		name    string
		changes map[string]any
		want    agent.SignWant
		field   string // of the first problem; empty: accepted
	}{
		{"as-is", nil, signWant, ""},
		{"subject-not-known-yet", map[string]any{"sub": "other"}, agent.SignWant{Issuer: signWant.Issuer, Audience: "aud-1", Nonce: "n-1"}, ""},
		{"subject-of-256", map[string]any{"sub": long}, agent.SignWant{Issuer: signWant.Issuer, Audience: "aud-1", Nonce: "n-1", Subject: long}, ""},
		{"subject-of-257", map[string]any{"sub": long + "x"}, agent.SignWant{Issuer: signWant.Issuer, Audience: "aud-1", Nonce: "n-1"}, "token.sub"},
		{"subject-a-number", map[string]any{"sub": 1}, signWant, "token.sub"},
		{"no-jti", map[string]any{"jti": nil}, signWant, ""},
		{"life-300", map[string]any{"exp": 1795000300}, signWant, ""},
		{"life-301", map[string]any{"exp": 1795000301}, signWant, "token.exp"},
		{"iat-30-ahead", map[string]any{"iat": 1795000030}, signWant, ""},
		{"iat-31-ahead", map[string]any{"iat": 1795000031}, signWant, "token.iat"},
		{"exp-now", map[string]any{"iat": 1794999900, "exp": 1795000000}, signWant, "token.exp"},
		{"exp-in-a-second", map[string]any{"iat": 1794999900, "exp": 1795000001}, signWant, ""},
		{"iat-a-string", map[string]any{"iat": "1795000000"}, signWant, "token.iat"},
		{"exp-fractional", map[string]any{"exp": json.RawMessage("1795000100.5")}, signWant, "token.exp"},
		{"exp-with-exponent", map[string]any{"exp": json.RawMessage("1.7950001e9")}, signWant, "token.exp"},
		{"exp-huge", map[string]any{"exp": json.RawMessage("9223372036854775807")}, signWant, "token.exp"},
		{"iat-negative", map[string]any{"iat": -9223372036854775808}, signWant, "token.exp"},
		{"iat-missing", map[string]any{"iat": nil}, signWant, "token.iat"},
		{"iss-missing", map[string]any{"iss": nil}, signWant, "token.iss"},
		{"iss-in-upper-case", map[string]any{"iss": "https://PA.example.com"}, signWant, "token.iss"},
		{"aud-missing", map[string]any{"aud": nil}, signWant, "token.aud"},
		{"jti-null", map[string]any{"jti": json.RawMessage("null")}, signWant, "token.jti"},
	} {
		t.Run(c.name, func(t *testing.T) {
			token, err := agent.CheckSignResponse(signResponse(t, c.changes), c.want, signNow)
			if c.field == "" {
				if err != nil || token.Issuer != signWant.Issuer || token.ExpiresAt.Before(signNow) || token.KeyID != "ec" || token.Algorithm != "ES256" {
					t.Fatalf("%#v, %v", token, err)
				}
				return
			}
			var e *agent.TokenError
			if !errors.As(err, &e) || e.Problems[0].Field != c.field {
				t.Fatalf("%v, want a problem with %s", err, c.field)
			}
		})
	}
}

// TestSignResponseForm covers the answer around the token.
func TestSignResponseForm(t *testing.T) {
	good := string(signResponse(t, nil))
	for name, body := range map[string]string{
		"empty": "", "array": "[]", "no-token": `{"nonce":"n-1"}`, "token-a-number": `{"nonce":"n-1","token":1}`,
		"no-nonce":          strings.Replace(good, `"nonce":"n-1",`, "", 1),
		"nonce-null":        strings.Replace(good, `"n-1"`, "null", 1),
		"nonce-repeated":    strings.Replace(good, `"nonce":"n-1"`, `"nonce":"n-1","nonce":"n-1"`, 1),
		"padded":            strings.Replace(good, `"}`, `=="}`, 1),
		"four-parts":        strings.Replace(good, `"}`, `.x"}`, 1),
		"repeated-claim":    `{"nonce":"n-1","token":"` + ecKey().sign(t, nil, []byte(`{"iss":"https://pa.example.com","iss":"https://pa.example.com","aud":"aud-1","sub":"pa_1","iat":1795000000,"exp":1795000120}`)) + `"}`,
		"payload-no-object": `{"nonce":"n-1","token":"` + ecKey().sign(t, nil, "x") + `"}`,
		"crit":              `{"nonce":"n-1","token":"` + ecKey().sign(t, map[string]any{"alg": "ES256", "crit": []any{"x"}, "x": 1}, signClaims) + `"}`,
		"kid-a-number":      `{"nonce":"n-1","token":"` + ecKey().sign(t, map[string]any{"alg": "ES256", "kid": 1}, signClaims) + `"}`,
	} {
		if _, err := agent.CheckSignResponse([]byte(body), signWant, signNow); !errors.Is(err, agent.ErrInvalidToken) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "eyJ") {
			t.Errorf("%s: the error shows the token: %v", name, err)
		}
	}
	if _, err := agent.CheckSignResponse([]byte(strings.Replace(good, "{", `{"x":1,`, 1)), signWant, signNow); err != nil {
		t.Errorf("an unknown member: %v", err)
	}
}

// TestSubjectChanged covers ID-5: told apart only if the rest is right.
func TestSubjectChanged(t *testing.T) {
	_, err := agent.CheckSignResponse(signResponse(t, map[string]any{"sub": "pa_2"}), signWant, signNow)
	var e *agent.SubjectChangedError
	if !errors.As(err, &e) || e.Known != "pa_1" || e.Got != "pa_2" || !errors.Is(err, agent.ErrInvalidToken) {
		t.Errorf("%v", err)
	}
	_, err = agent.CheckSignResponse(signResponse(t, map[string]any{"sub": "pa_2", "aud": "x"}), signWant, signNow)
	if errors.As(err, &e) || !errors.Is(err, agent.ErrInvalidToken) {
		t.Errorf("a bad token counts as a changed subject: %v", err)
	}
}

func FuzzSignResponse(f *testing.F) {
	f.Add(signResponse(f, nil))
	f.Add([]byte(`{"token":"a.b.c","nonce":"n-1"}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		token, err := agent.CheckSignResponse(body, signWant, signNow)
		if err != nil {
			if !errors.Is(err, agent.ErrInvalidToken) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if token.Subject != "pa_1" || token.Audience != "aud-1" || token.ExpiresAt.Sub(token.IssuedAt) > 5*time.Minute || token.Reveal() == "" {
			t.Fatalf("accepted %#v", token)
		}
	})
}
