package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/agent"
)

// TestRedactText covers RD-2.
func TestRedactText(t *testing.T) {
	const jwt = "eyJhbGciOiJFUzI1NiJ9.eyJhIjoxfQ.c2lnbg"
	for text, want := range map[string]string{
		"Bearer abc.def":                   "Bearer [redacted]",
		`Authorization: "Bearer abc", x`:   `Authorization: "Bearer [redacted]", x`,
		"PACT-Device " + jwt:               "PACT-Device [redacted]",
		"got " + jwt + " back":             "got [redacted] back",
		jwt[:32]:                           "[redacted]",
		"a=1&device_code=dc&b":             "a=1&device_code=[redacted]&b",
		"refresh_token=x y":                "refresh_token=[redacted] y",
		"access_token=x":                   "access_token=[redacted]",
		"assertion=x":                      "assertion=[redacted]",
		"?code=x&state=y":                  "?code=[redacted]&state=y",
		"a=b&code=x":                       "a=b&code=[redacted]",
		"zip code=12":                      "zip code=12",
		"dc_0123456789ab":                  "[redacted]",
		"at_0123456789a":                   "at_0123456789a",
		"_rt_0123456789abcdefgh_":          "[redacted]",
		"see __at_0123456789abcdefgh__":    "see [redacted]",
		"leaves_at_0123456789abcdefgh":     "leaves_at_0123456789abcdefgh",
		"_" + jwt + "_":                    "[redacted]",
		"pact_agent_ABCDEFGHIJKLMN23.":     "[redacted].",
		"T=_pact_cred_ABCDEFGHIJKLMN23ab_": "T=[redacted]_",
		"my_pact_agent_ABCDEFGHIJKLMN23":   "my_pact_agent_ABCDEFGHIJKLMN23",
		"the pact_agent_configuration":     "the pact_agent_configuration",
		"_Bearer abc.def_":                 "_Bearer [redacted]",
		"to=x%3Fuser_code%3DABCD-EF%26x":   "to=x%3Fuser_code%3D[redacted]",
		"x%253Fuser_code%253DABCD":         "x%253Fuser_code%253D[redacted]",
		`{"access_token": "a\"b", "n": 1}`: `{"access_token": [redacted], "n": 1}`,
		"Your flight SK 318 is on time.":   "Your flight SK 318 is on time.",
	} {
		if got := agent.RedactText(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`([a-z ?&=%3D."_-]|Bearer |code=|eyJabcdef\.|user_code){0,12}`).Draw(t, "text")
		once := agent.RedactText(s)
		if twice := agent.RedactText(once); twice != once {
			t.Fatalf("not idempotent: %q, %q", once, twice)
		}
	})
}

// TestRedact covers RD-1 and RD-3.
func TestRedact(t *testing.T) {
	const in = `{
		"authorization": "x", "Authorization": 1, "X-A2A-User-Delegation": "x", "access_token": "x", "refreshToken": "x",
		"id_token": "x", "device_code": "x", "userCode": "x", "verification_uri_complete": "x",
		"pact.verificationUriComplete": "x", "assertion": "x", "jws": "x", "credential": {"a": "x"}, "privateJwk": {"d": "x"},
		"password": "x", "client_secret": "x", "token": ["x"], "user": "kept", "tokenUrl": "kept", "verification_uri": "kept",
		"list": [{"secret": "x", "text": "Bearer x"}],
		"pact.receipt": {"claims": {"user": "x", "pa": "kept"}, "more": [{"user": "x"}]},
		"claims": {"user": "x"}
	}`
	var v any
	if err := json.Unmarshal([]byte(in), &v); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]any{"decoded": v, "raw": []byte(in), "typed": json.RawMessage(in)} {
		out, err := json.Marshal(agent.Redact(v))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), `"x"`) || strings.Contains(string(out), "Bearer x") || strings.Contains(string(out), ":1") {
			t.Errorf("%s: a secret is left: %s", name, out)
		}
		if got := strings.Count(string(out), `"kept"`); got != 4 {
			t.Errorf("%s: %d of 4 kept: %s", name, got, out)
		}
	}
	h := http.Header{"Authorization": {"x"}, "Set-Cookie": {"x"}, "Accept": {"kept"}, "Link": {"<a?code=x>"}}
	if out := fmt.Sprint(agent.Redact(h)); strings.Contains(out, "x]") || strings.Contains(out, "code=x") || !strings.Contains(out, "kept") {
		t.Errorf("header: %s", out)
	}
	if got := agent.Redact(errors.New("Bearer x")); got != "Bearer [redacted]" {
		t.Errorf("error: %v", got)
	}

	deep := any("kept")
	for range 13 {
		deep = []any{deep}
	}
	if out := fmt.Sprint(agent.Redact(deep)); !strings.Contains(out, "[redacted]") || strings.Contains(out, "kept") {
		t.Errorf("RD-3: %s", out)
	}
	if out := fmt.Sprint(agent.Redact(deep.([]any)[0])); !strings.Contains(out, "kept") {
		t.Errorf("RD-3: nesting of 12 is lost: %s", out)
	}
}

// TestSecretsPrintRedacted covers SG-14 for every way to print.
func TestSecretsPrintRedacted(t *testing.T) {
	token, err := agent.CheckSignResponse(signResponse(t, nil), signWant, signNow)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{agent.Secret("hunter2"), token, &token, struct{ S agent.Secret }{"hunter2"}} {
		var log strings.Builder
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		for _, out := range []string{
			fmt.Sprint(v), fmt.Sprintf("%v %+v %#v %s %q %x", v, v, v, v, v, v), log.String(), string(data),
		} {
			if strings.Contains(out, "hunter2") || strings.Contains(out, "eyJ") || strings.Contains(out, "68756e74657232") || strings.Contains(out, token.Reveal()[40:60]) {
				t.Errorf("%T prints %s", v, out)
			}
		}
	}
	if agent.Secret("hunter2").Reveal() != "hunter2" || !strings.HasPrefix(token.Reveal(), "eyJ") {
		t.Error("nothing reveals the secret")
	}
}
