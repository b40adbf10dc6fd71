package agent_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// memberNames are the names of a JSON object, sorted.
func memberNames(t *testing.T, body string) string {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(body), &o); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return strings.Join(sorted(o), " ")
}

func sorted[V any](m map[string]V) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// claimsOf reads the payload of a compact token, unverified.
func claimsOf(t *testing.T, compact string) map[string]any {
	t.Helper()
	parts := strings.Split(compact, ".")
	if len(parts) != 3 {
		t.Fatalf("not a token: %d parts", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

// SG-1, SG-2, SG-3: what a call of the signer says, and nothing else.
func TestSignerCalls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		time.Sleep(5 * time.Minute)
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		want := map[string]string{signerURL + "/pact/enroll": "proof publicJwk", signerURL + "/pact/status": "", signerURL + "/pact/sign": "audience nonce"}
		nonces, jtis, seen := map[string]bool{}, map[string]bool{}, map[string]int{}
		for _, r := range w.calls(egress.Signer) {
			names, ok := want[r.url]
			if got := memberNames(t, r.body); !ok || got != names {
				t.Errorf("%s was sent %q", r.url, got)
			}
			seen[r.url]++
			var body struct{ Audience, Nonce, Proof string }
			if err := json.Unmarshal([]byte(r.body), &body); err != nil {
				t.Fatal(err)
			}
			assertion, device := strings.CutPrefix(r.header.Get("Authorization"), "PACT-Device ")
			switch {
			case strings.HasSuffix(r.url, "/enroll"):
				assertion = body.Proof
			case !device:
				t.Errorf("%s: not by the device", r.url)
			case strings.HasSuffix(r.url, "/sign"):
				if body.Audience != audience || body.Nonce == "" || nonces[body.Nonce] {
					t.Errorf("sign %+v", body)
				}
				nonces[body.Nonce] = true
			}
			c := claimsOf(t, assertion)
			jti, _ := c["jti"].(string)
			if c["aud"] != r.url || c["exp"].(float64)-c["iat"].(float64) != 60 || int64(c["iat"].(float64)) != r.at.Unix() || jti == "" || jtis[jti] {
				t.Errorf("%s: assertion %v", r.url, c)
			}
			jtis[jti] = true
		}
		if len(seen) != 3 || seen[signerURL+"/pact/sign"] != 2 {
			t.Errorf("calls %v", seen)
		}
	})
}

// SG-3: a credential has 16 to 4096 characters, and no other is tried.
func TestCredentialLength(t *testing.T) {
	for n, good := range map[int]bool{15: false, 16: true, 4096: true, 4097: false} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.signer.credential = strings.Repeat("c", n)
			_, err := w.open().Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL, Credential: agent.Secret(w.signer.credential)})
			if (err == nil) != good || (len(w.calls(egress.Signer)) > 0) != good {
				t.Errorf("%d characters: %v after %d calls", n, err, len(w.calls(egress.Signer)))
			}
		})
	}
}

// SG-4: the signer's URL alone, or the issuer alone, turned to another makes the
// credential unusable; it is sent to nobody.
func TestChangedSignerOrIssuer(t *testing.T) {
	const evil = "https://evil.example.net"
	for _, field := range []string{"SignerURL", "Issuer"} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.hosts[evil] = w.signer
			w.signer.credential = "credential-0123456789"
			a := w.open()
			if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL, Credential: "credential-0123456789"}); err != nil {
				t.Fatal(err)
			}
			w.edit(fmt.Sprintf(`UPDATE identities SET data = CAST(json_set(CAST(data AS TEXT), '$.%s', '%s') AS BLOB)`, field, evil))
			before := len(w.calls(egress.Signer))
			w.send(w.open(), owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonIdentityKeyRejected)
			if n := len(w.calls(egress.Signer)); n != before {
				t.Errorf("%s: the credential was sent: %s", field, w.calls(egress.Signer)[before].url)
			}
		})
	}
}

// SG-5: what each answer to sign means.
func TestSignerAnswers(t *testing.T) {
	type answer struct {
		status int
		body   string
		reason string
	}
	answers := []answer{
		{403, `{"error":"disabled"}`, agent.ReasonSignerDisabled},
		{403, ``, agent.ReasonSignerDisabled},
		{401, `{"error":"unauthorized"}`, agent.ReasonCredentialRejected},
		{404, `{"error":"audience_not_registered"}`, agent.ReasonAudienceUnknown},
		{422, `{"error":"audience_not_registered"}`, agent.ReasonAudienceUnknown},
		{404, `{"error":"not_found"}`, agent.ReasonSignerUnavailable},
		{422, `<html>`, agent.ReasonSignerUnavailable},
		{400, `{"error":"audience_not_registered"}`, agent.ReasonSignerUnavailable},
		{201, `{}`, agent.ReasonSignerUnavailable},
		{302, ``, agent.ReasonSignerUnavailable},
		{429, `{"error":"rate_limited"}`, agent.ReasonSignerUnavailable},
		{500, ``, agent.ReasonSignerUnavailable},
		{503, `{"error":"unavailable"}`, agent.ReasonSignerUnavailable},
	}
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		var now answer
		w.intercept(signerURL, "/pact/sign", func(rw http.ResponseWriter, _ *http.Request) bool {
			respond(rw, now.status, now.body)
			return true
		})
		for _, now = range answers {
			t.Log(now.status, now.body)
			w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, now.reason)
		}
		if n := len(w.calls(egress.Message)); n != 0 {
			t.Errorf("%d messages", n)
		}
	})
}

// SG-7: a token of 300 s is used until it is 240 s old, though 60 s are left then.
func TestTokenReuseByAge(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.signer.change = func(c, _ map[string]any) { c["exp"] = c["iat"].(int64) + 300 }
		a := w.enrolled()
		start := time.Now()
		for _, c := range []struct {
			at     time.Duration
			signed int
		}{{0, 1}, {239 * time.Second, 1}, {240 * time.Second, 2}} {
			time.Sleep(time.Until(start.Add(c.at)))
			w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
			if n, _ := w.signer.counts(); n != c.signed {
				t.Errorf("at %v: %d signed, want %d", c.at, n, c.signed)
			}
		}
	})
}

// SG-7, ID-8, PR-1: a token is for one provider's audience: it is never shown to
// another, whichever was asked for first.
func TestTokensByAudience(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		other := w.other()
		a := w.enrolled()
		for range 2 {
			w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
			w.send(a, owner(), agent.SendRequest{Business: otherCard, Message: "Show"}, agent.StatusReplied, "")
		}
		for want, turns := range map[string][]turn{audience: w.biz.sent(), otherAudience: other.sent()} {
			if len(turns) != 2 {
				t.Errorf("%s: %d turns", want, len(turns))
			}
			for _, u := range turns {
				if c := claimsOf(t, u.token); c["aud"] != want || c["sub"] != "pa_alice" {
					t.Errorf("%s was shown %v", want, c)
				}
			}
		}
		if n, _ := w.signer.counts(); n != 2 {
			t.Errorf("%d signed", n)
		}
	})
}

// SG-8: an identity 401 at one provider, and a new credential, drop the tokens
// for every provider.
func TestWholeTokenCacheIsCleared(t *testing.T) {
	for name, happen := range map[string]func(*world, *agent.Agent){
		"a 401 elsewhere": func(w *world, a *agent.Agent) {
			w.biz.set(func(b *business) {
				b.answer = func(turn) (int, any) { return 401, http.Header{"Www-Authenticate": {`Bearer realm="a2a"`}} }
			})
			w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonIdentityRejected)
		},
		"enrolled anew": func(w *world, a *agent.Agent) {
			if _, err := a.Enroll(w.t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL}); err != nil {
				w.t.Fatal(err)
			}
		},
		"nothing": func(*world, *agent.Agent) {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				other := w.other()
				a := w.enrolled()
				w.send(a, owner(), agent.SendRequest{Business: otherCard, Message: "Show"}, agent.StatusReplied, "")
				happen(w, a)
				w.send(a, owner(), agent.SendRequest{Business: otherCard, Message: "Show"}, agent.StatusReplied, "")
				turns := other.sent()
				if same := turns[0].token == turns[1].token; same != (name == "nothing") {
					t.Errorf("the same token: %v", same)
				}
			})
		})
	}
}

// SG-10: only a success is kept: a signer that is back is asked at once.
func TestFailedStatusIsNotKept(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.signer.set(func(s *signerStandIn) { s.fail = 503 })
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonSignerUnavailable)
		w.signer.set(func(s *signerStandIn) { s.fail = 0 })
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		_, before := w.signer.counts()
		if _, err := a.Status(t.Context(), owner()); err != nil {
			t.Fatal(err)
		}
		if _, after := w.signer.counts(); after != before+1 {
			t.Error("status did not ask anew")
		}
	})
}

// SG-14: no device key lies in the clear, and no view tells it.
func TestDeviceKeyIsEncrypted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		s, err := a.Status(t.Context(), owner())
		if err != nil {
			t.Fatal(err)
		}
		jwk := regexp.MustCompile(`"d"\s*:`) // without the colon, ciphertext may have it
		// What every PKCS #8 key on P-256 begins with, as bytes and as base64.
		pkcs8 := []byte("\x30\x81\x87\x02\x01\x00\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01")
		texts := map[string][]byte{"status": fmt.Appendf(marshal(s), "%+v", s)}
		err = filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				texts[path], err = os.ReadFile(path)
			}
			return err
		})
		if err != nil || len(texts) < 2 {
			t.Fatalf("%d files, %v", len(texts)-1, err)
		}
		for where, text := range texts {
			if bytes.Contains(text, pkcs8) || bytes.Contains(text, []byte("MIGHAgEAMBMGByqGSM49")) || jwk.Match(text) {
				t.Errorf("%s holds a private key", where)
			}
		}
	})
}
