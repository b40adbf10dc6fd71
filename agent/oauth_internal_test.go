package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// DA-2, DA-3: whatever a device endpoint answers, what is taken from it is whole.
func FuzzDeviceResponse(f *testing.F) {
	f.Add([]byte(`{"device_code":"d","user_code":"u","verification_uri":"https://x.example","expires_in":600,"interval":5}`))
	f.Add([]byte(`{"device_code":"d","user_code":"u","verification_uri":"https://x.example","expires_in":1e300}`))
	f.Add([]byte(`{"device_code":"d","device_code":"e","user_code":"u","verification_uri":"x","expires_in":-1}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := readDeviceResponse(body)
		if err != nil {
			if ReasonOf(err) != ReasonConsentRejected {
				t.Errorf("reason of %v", err)
			}
			return
		}
		if d.DeviceCode == "" || d.UserCode == "" || d.VerificationURI == "" || d.ExpiresIn < 0 || d.Interval < 0 || d.ExpiresIn > maxWait || d.Interval > maxWait {
			t.Errorf("took %+v", d)
		}
	})
}

// DA-15: what would be looked for in all that a business says has an end.
func TestSignInTextsHaveAnEnd(t *testing.T) {
	for _, name := range []string{"device_code", "user_code", "verification_uri", "verification_uri_complete"} {
		for n, want := range map[int]Reason{maxSignInText: "", maxSignInText + 1: ReasonConsentRejected} {
			answer := map[string]any{"device_code": "d", "user_code": "u", "verification_uri": "https://x.example", "expires_in": 600}
			answer[name] = strings.Repeat("x", n)
			body, err := json.Marshal(answer)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := readDeviceResponse(body); ReasonOf(err) != want {
				t.Errorf("%s of %d characters: %v", name, n, err)
			}
		}
	}
}

// DA-11, GR-7: the same of a token endpoint; an error holds nothing of the answer.
func FuzzTokenResponse(f *testing.F) {
	f.Add([]byte(`{"token_type":"Bearer","access_token":"secret-a","refresh_token":"secret-r","expires_in":3600,"scope":"a b"}`))
	f.Add([]byte(`{"token_type":"mac","access_token":"secret-a"}`))
	f.Add([]byte(`{"token_type":"bearer","access_token":"secret-a","scope":7}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := readTokenResponse(body, []string{"asked"})
		if err != nil {
			if !errors.Is(err, ErrGrantRefused) || strings.Contains(err.Error(), "secret-") {
				t.Errorf("error %v", err)
			}
			return
		}
		if r.AccessToken == "" || r.ExpiresIn < 0 || r.ExpiresIn > maxWait {
			t.Errorf("took %+v", r)
		}
	})
}

// SG-1, SG-5: a signer's status that cannot be read is a signer that is not there.
func FuzzSignerStatus(f *testing.F) {
	f.Add([]byte(`{"issuer":"https://pa.example.com","subject":"s","disabled":false,"audiences":{"https://p.example":"a"}}`))
	f.Add([]byte(`{"issuer":"https://pa.example.com","disabled":"no"}`))
	f.Add([]byte(`{"issuer":"i","audiences":{"not an origin":"a","https://p.example":7}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c := &signerClient{url: "https://pa.example.com", now: time.Now, credential: "credential",
			do: func(context.Context, egress.Request) (egress.Response, error) {
				return egress.Response{Status: 200, Body: body}, nil
			}}
		s, err := c.status(t.Context())
		if err != nil {
			if ReasonOf(err) != ReasonSignerUnavailable {
				t.Errorf("reason of %v", err)
			}
			return
		}
		if s.Issuer == "" {
			t.Error("no issuer")
		}
		for origin, aud := range s.Audiences {
			if originOf(origin) != origin || aud == "" {
				t.Errorf("audience %q of %q", aud, origin)
			}
		}
	})
}
