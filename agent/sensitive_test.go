package agent_test

import (
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
)

func TestSensitiveVectors(t *testing.T) {
	type file struct {
		Cases []struct{ Text, Want string }
	}
	vectors(t, "sensitive.json", func(t *testing.T, f file) {
		atLeastOne(t, len(f.Cases))
		for _, c := range f.Cases {
			t.Run(c.Text, func(t *testing.T) {
				got := "ok"
				if _, found := agent.Sensitive(c.Text); found {
					got = "refused"
				}
				if got != c.Want {
					t.Errorf("got %s, want %s", got, c.Want)
				}
			})
		}
	})
}

// TestSensitive covers AD-10 and AD-11 at their edges. The secrets are made up.
func TestSensitive(t *testing.T) {
	n := func(s string, times int) string { return strings.Repeat(s, times) }
	for text, want := range map[string]bool{
		"-----BEGIN PRIVATE KEY-----":           true,
		"-----BEGIN RSA PRIVATE KEY-----":       true,
		"-----BEGIN PGP PRIVATE KEY BLOCK-----": true,
		"-----BEGIN PUBLIC KEY-----":            false,
		"-----BEGIN CERTIFICATE-----":           false,
		"sk-" + n("a", 16):                      true,
		"key pk-" + n("a", 20) + ".":            true,
		"rk-" + n("0", 16):                      true,
		"sk-" + n("a", 15):                      false,
		"desk-" + n("a", 16):                    false,
		"AKIA" + n("A", 15):                     false,
		"ghp_" + n("a", 30):                     true,
		"gho_" + n("a", 30):                     true,
		"ghp_" + n("a", 29):                     false,
		"xoxb-1":                                true,
		"xoxo kisses":                           false,
		"password=x":                            true,
		"Passcode : 1":                          true,
		"PWD:x":                                 true,
		`{"password": "x"}`:                     true,
		"password：x":                            true,
		"password: ":                            false,
		"I forgot my password":                  false,
		"4242424242424242":                      true,
		"4242-4242-4242-4242":                   true,
		"4242–4242–4242–4242":                   true,
		"4242\u200b4242\ufe0f4242\u034f4242":    true,
		"4\u03322424242\u033242424242":          true,
		"pass\u2060word: x":                     true,
		"Bear\u200ber " + n("a", 30):            true,
		"４２４２ ４２４２ ４２４２ ４２４２": true,
		"4242424242424241":                         false,
		"4242  4242  4242  4242":                   false, // two spaces: four runs
		"424242424242":                             false, // 12
		"378282246310005":                          true,  // 15
		"4000000000006":                            true,  // 13
		"42424242424242424242":                     false, // 20
		"card4242424242424242x":                    true,
		"xAKIA" + n("A", 16):                       false,
		"aws_AKIA" + n("A", 16):                    true,
		"Authorization: bearer abc":                true,
		"authorization=bearer abc":                 true,
		"Bearer abc":                               true,
		"BEARER abc":                               true,
		"The bearer of this ticket":                false,
		"It goes to the bearer tomorrow.":          false,
		"the bearer certificate":                   false,
		"use bearer abcdefg1":                      true,
		"use bearer abc-defg":                      true,
		"use bearer abcdef1":                       false,
		"use bearer " + n("a", 20):                 true,
		"use bearer " + n("a", 19):                 false,
		"sk_" + n("a", 16):                         true,
		"pk_" + n("a", 16):                         true,
		"rk_" + n("a", 16):                         true,
		"eyJhbGciOiJFUzI1NiJ9.eyJhIjoxfQ.c2lnbg":   true,
		"see https://brand.example/cb?code=123":    true,
		"see https://brand.example/cb?x=1&code=12": true,
		"the code=1234 for the gate":               false,
		"code=1234":                                true,
		"code=1234&state=x":                        true,
		"state=x&code=1234":                        true,
		"discount_code=SAVE10":                     false,
		"user_code=ABCD-EFGH":                      true,
		"use pact_admin_" + n("A", 52):             true,
		"set pact_admin_configuration":             false,
		"rt_" + n("a", 12):                         true,
		"rt_" + n("a", 11):                         false,
		"start_" + n("a", 12):                      false,
		"format_string_with_many_parts":            false,
		"user_code%3DABCD":                         true,
		"www.example.com/path.to.page":             false,
		"provider.example.com":                     false,
		"Flight SK 318 on 2026-11-18 at 10:26":     false,
		"":                                         false,
	} {
		reason, found := agent.Sensitive(text)
		if found != want {
			t.Errorf("%q: found %v (%s), want %v", text, found, reason, want)
		}
		if found && (reason == "" || strings.Contains(text, reason)) {
			t.Errorf("%q: reason %q", text, reason)
		}
	}
}
