package signer

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// readBody reads a body, which is read or refused as malformed.
func readBody(t *testing.T, body []byte, m any) bool {
	t.Helper()
	err := unmarshalRequest(body, m)
	var r *Refusal
	if err != nil && (!errors.As(err, &r) || r.Reason != ReasonInvalidRequest) {
		t.Fatalf("%v is not INVALID_REQUEST", err)
	}
	return err == nil
}

// sameMeaning holds what was read against what another decoder reads, and against
// what is read of it written anew.
func sameMeaning(t *testing.T, body []byte, want map[string]any, got, again proto.Message) {
	t.Helper()
	var other any
	if err := json.Unmarshal(body, &other); err != nil {
		t.Fatalf("accepted %q: %v", body, err)
	}
	written, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	canonical, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	if string(written) != string(canonical) {
		t.Fatalf("%q was read as %s", body, written)
	}
	if !readBody(t, written, again) || !proto.Equal(got, again) {
		t.Fatalf("%q is %v, and written anew %v", body, got, again)
	}
}

func FuzzSignBody(f *testing.F) {
	for _, s := range []string{
		`{"audience":"a","nonce":"n"}`, `{ "nonce" : "\u00e9\ud83d\ude00" , "audience":"\u0000" }`, `{}`, `{"audience":"a","audience":"b"}`,
		`{"audience":null,"nonce":"n"}`, `{"audience":"a","nonce":1}`, `{"audience":"a","nonce":"n","iss":"x"}`, `[]`, `"`, "{\"nonce\":\"\xff\"}",
		`{"audience":"\ud800","nonce":"n"}`, `{"audience":"a","nonce":"n"} {}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if readBody(t, body, new(signerv1.StatusRequest)) && strings.Trim(string(body), " \t\r\n{}") != "" {
			t.Fatalf("status accepted %q", body)
		}
		var m signerv1.SignRequest
		if !readBody(t, body, &m) || checkSign(&m) != nil {
			return
		}
		sameMeaning(t, body, map[string]any{"audience": m.Audience, "nonce": m.Nonce}, &m, new(signerv1.SignRequest))
	})
}

func FuzzEnrollBody(f *testing.F) {
	k := newTestKey(f)
	point, err := k.key.PublicKey.Bytes()
	if err != nil {
		f.Fatal(err)
	}
	jwk := map[string]any{
		"kty": "EC", "crv": "P-256", "kid": k.thumbprint, "alg": "ES256", "use": "sig",
		"x": strictBase64.EncodeToString(point[1:33]), "y": strictBase64.EncodeToString(point[33:]),
	}
	good := jsonOf(f, map[string]any{"publicJwk": jwk, "proof": "a.b.c"})
	f.Add([]byte(good))
	for _, r := range [][2]string{
		{`"use":"sig"`, `"use":"enc"`}, {`"use":"sig"`, `"d":"AAAA"`}, {`"use":"sig"`, `"use":null`}, {`"alg":"ES256",`, ""}, {`"kid"`, `"Kid"`},
		{`"kty":"EC"`, `"kty":"EC","kty":"EC"`}, {`"proof":"a.b.c"`, `"proof":""`}, {`"proof":"a.b.c"`, `"proof":"p","sub":"x"`},
		{`"y":"`, `"y":"A`}, {`{"proof"`, `{"public_jwk":{},"proof"`},
	} {
		f.Add([]byte(strings.Replace(good, r[0], r[1], 1)))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var m signerv1.EnrollRequest
		if !readBody(t, body, &m) {
			return
		}
		point, key, err := pointOf(m.PublicJwk)
		if err != nil || m.Proof == "" {
			return
		}
		if thumbprint, err := publicKey(point); err != nil || !thumbprint.Equal(key) || len(point) != 64 {
			t.Fatalf("%q: the point is not the key's", body)
		}
		want := map[string]any{"kty": "EC", "crv": "P-256", "x": m.PublicJwk.X, "y": m.PublicJwk.Y, "kid": m.PublicJwk.Kid}
		if m.PublicJwk.Alg != nil {
			want["alg"] = "ES256"
		}
		if m.PublicJwk.Use != nil {
			want["use"] = "sig"
		}
		sameMeaning(t, body, map[string]any{"publicJwk": want, "proof": m.Proof}, &m, new(signerv1.EnrollRequest))
	})
}

func FuzzAuthorization(f *testing.F) {
	credential, token := NewCredential().Reveal(), NewEnrollmentToken().Reveal()
	for _, s := range []string{
		"", "Bearer", "Bearer ", " Bearer x", "bearer " + credential, "Bearer  " + credential + " ", "Bearer " + token, "BEARER a b",
		"PACT-Device a.b.c", "pact-device", "Basic dXNlcjpwYXNz", "Bearer\t" + credential, "Bearer " + strings.Repeat("é", 16),
	} {
		f.Add(s, "")
		f.Add(s, "PACT-Device a.b.c")
	}
	f.Fuzz(func(t *testing.T, value, beside string) {
		if _, _, err := authorizationOf([]string{value, beside}); err == nil {
			t.Fatal("accepted two")
		}
		scheme, rest, err := authorizationOf([]string{value})
		if err == nil {
			again, same, err := authorizationOf([]string{scheme + " " + rest})
			if err != nil || again != scheme || same != rest || rest == "" || !strings.Contains(value, rest) {
				t.Fatalf("%q is %q, %q, and written anew %q, %q, %v", value, scheme, rest, again, same, err)
			}
			if s, err := ParseCredential(rest); err == nil && s.Reveal() != rest {
				t.Fatalf("%q was changed", rest)
			}
		}
		alone, errAlone := enrollmentToken([]string{value})
		if errAlone == nil && scheme != bearerScheme {
			t.Fatalf("%q gave an enrolment token", value)
		}
		both, errBoth := enrollmentToken([]string{beside, value})
		if isDeviceAuthorization(beside) && (errAlone == nil) != (errBoth == nil) || errAlone == nil && errBoth == nil && alone != both {
			t.Fatalf("%q beside %q: %v, alone %v", value, beside, errBoth, errAlone)
		}
	})
}
