package sandbox

import (
	"bytes"
	"crypto"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/jwks"
)

func verifies(t *testing.T, compact string, key crypto.PublicKey) bool {
	t.Helper()
	token, err := jwks.ParseCompact(compact, jose.ES256)
	if err != nil {
		t.Fatal(err)
	}
	_, err = token.Verify(key)
	return err == nil
}

// receipt are the words of the receipt of a delegated turn.
func (m *misbehaving) receipt() string {
	m.last = m.current
	var out struct {
		Message struct {
			Metadata *struct {
				Receipt struct {
					JWS    string         `json:"jws"`
					Claims *receiptClaims `json:"claims"`
				} `json:"pact.receipt"`
			} `json:"metadata"`
		} `json:"message"`
	}
	a := m.say(LarklineID, newUUID(), "", "Show my upcoming flights", m.access)
	if err := json.Unmarshal(a.body, &out); err != nil {
		m.t.Fatal(err)
	}
	if out.Message.Metadata == nil {
		return "none"
	}
	rec := out.Message.Metadata.Receipt
	m.current = rec.JWS
	token, err := jwks.ParseCompact(rec.JWS, jose.ES256)
	if err != nil {
		m.t.Fatal(err)
	}
	var signed receiptClaims
	if err := json.Unmarshal(token.Unverified(), &signed); err != nil {
		m.t.Fatal(err)
	}
	if strings.HasPrefix(signed.GrantID, "a2agrant_") && signed.GrantID == m.grantID {
		signed.GrantID = "mine"
	} else {
		signed.GrantID = "another"
	}
	_, known := m.asKeys().Find(token.KeyID, jose.ES256)
	beside := "none"
	if rec.Claims != nil {
		claims, err := json.Marshal(rec.Claims)
		if err != nil {
			m.t.Fatal(err)
		}
		beside = fmt.Sprint(bytes.Equal(claims, token.Unverified()))
	}
	return fmt.Sprintf("signed %v known %v beside %s again %v %+v", m.signed(rec.JWS), known, beside, m.current == m.last, signed)
}

// TestEverySwitch: each changes what a raw client sees, as it says; it is over
// after its count, and when it is cleared.
func TestEverySwitch(t *testing.T) {
	m := newMisbehaving(t)
	site, provider := m.sandbox.brandURL, m.ready.Provider
	const none = `{"error":"`
	rows := []struct {
		spec  string
		probe func(*misbehaving) string
		want  string // in what is seen
	}{
		{"card-token-origin", (*misbehaving).card, `"tokenUrl":"` + site + `/a2a/` + LarklineID + `/oauth/token"`},
		{"card-device-origin=https://x.example/d", (*misbehaving).card, `"deviceAuthorizationUrl":"https://x.example/d"`},
		{"card-scope-text=flights:upcoming:read:Cancel: everything", (*misbehaving).card, `"flights:upcoming:read":"Cancel: everything"`},
		{"card-name=Air = 2*2 Fun", (*misbehaving).card, `"name":"Air = 2*2 Fun"`},
		{"card-second-scheme", (*misbehaving).card, `{"schemes":{"platformJwtToo":{"list":[]}}}`},
		{"card-no-provider", (*misbehaving).card, `"protocolVersion":"1.0"}],"version":"0.1.0"`},
		{"card-malformed", (*misbehaving).card, "is JSON: false"},
		{"card-max-age=7", (*misbehaving).card, "Cache-Control:public, max-age=7 "},
		{"card-no-store", (*misbehaving).card, "Cache-Control:no-store "},
		{"metadata-jwks-origin", (*misbehaving).metadata, `"jwks_uri":"` + site},
		{"metadata-issuer-origin", (*misbehaving).metadata, `"issuer":"` + site},
		{"metadata-token-slash", (*misbehaving).metadata, `/oauth/token/"`},
		{"metadata-status=404", (*misbehaving).metadata, "404 "},
		{"device-uri=javascript:alert(1)", (*misbehaving).signIn, `"verification_uri":"javascript:alert(1)"`},
		{"device-complete-uri=http://10.0.0.1/", (*misbehaving).signIn, `"verification_uri_complete":"http://10.0.0.1/"`},
		{"device-no-complete", (*misbehaving).signIn, `oauth%2Fconsent"}`},
		{"device-interval=0", (*misbehaving).signIn, `"interval":0`},
		{"device-expires=5", (*misbehaving).signIn, `"expires_in":5`},
		{"device-429=90", (*misbehaving).signIn, "429 Retry-After:90 "},
		{"device-error=unauthorized_client", (*misbehaving).signIn, none + `unauthorized_client"`},
		{"poll-slow-down", (*misbehaving).poll, none + `slow_down"`},
		{"poll-429=90", (*misbehaving).poll, "429 Retry-After:90 "},
		{"poll-status=500", (*misbehaving).poll, "500 Content-Type:application/json Cache-Control:no-store " + none + `server_error"`},
		{"poll-pending", (*misbehaving).poll, none + `authorization_pending"`},
		{"poll-error=access_denied", (*misbehaving).poll, none + `access_denied"`},
		{"grant-aud=https://x.example", (*misbehaving).poll, "https://x.example"},
		{"grant-client-id=https://y.example", (*misbehaving).poll, "https://y.example"},
		{"grant-iss=https://z.example", (*misbehaving).poll, "https://z.example"},
		{"grant-scope", (*misbehaving).poll, "flights:upcoming:read sandbox:not-asked-for"},
		{"grant-signature", (*misbehaving).poll, "signed false"},
		{"grant-extra=flights:cancel", (*misbehaving).poll, "flights:upcoming:read flights:cancel"},
		{"access-ttl=30", (*misbehaving).refresh, "flights:upcoming:read flights:rebook30 true token"},
		{"refresh-narrow=flights:rebook", (*misbehaving).refresh, "no-store flights:upcoming:read3600"},
		{"refresh-wide=flights:cancel", (*misbehaving).refresh, "flights:rebook flights:cancel"},
		{"refresh-keep", (*misbehaving).refresh, "again 200"},
		{"refresh-error=invalid_grant", (*misbehaving).refresh, none + `invalid_grant"`},
		{"identity-401", (*misbehaving).identity, `401 Www-Authenticate:Bearer realm="a2a"  401`},
		{"replay-401", (*misbehaving).identity, `200 Content-Type:application/a2a+json  401`},
		{"delegation-401", (*misbehaving).delegation, `401 Www-Authenticate:Bearer realm="a2a", error="invalid_token"`},
		{"drop-before", (*misbehaving).send, "no answer; no answer; took 0s ran 0"},
		{"status=502", (*misbehaving).send, "502 not JSON; 502 not JSON; took 0s ran 0"},
		{"too-many=90", (*misbehaving).send, "429 Retry-After:90 "},
		{"still-running", (*misbehaving).send, "Send another message"},
		{"no-reply", (*misbehaving).send, "There is no reply yet"},
		{"drop-after", (*misbehaving).send, "no answer; 200 "},
		{"slow=1", (*misbehaving).send, "took 2s ran 1"},
		{"envelope-bare", (*misbehaving).failure, `{"error":{"code":404,"status":"NOT_FOUND","message":"Task not found: x"}}`},
		{"reply-role-user", (*misbehaving).send, "ROLE_USER"},
		{"reply-context", (*misbehaving).send, "context another"},
		{"reply-no-context", (*misbehaving).send, "context none"},
		{"reply-json", (*misbehaving).send, "200 Content-Type:application/json "},
		{"reply-garbage", (*misbehaving).send, "not JSON"},
		{"step-up-first", (*misbehaving).hello, "[flights:upcoming:read] link " + site},
		{"step-up-no-message-id", (*misbehaving).stepUp, "messageId false"},
		{"step-up-no-link", (*misbehaving).stepUp, "link  messageId true"},
		{"step-up-link=javascript:alert(1)", (*misbehaving).stepUp, "link javascript:alert(1)"},
		{"step-up-more=flights:cancel", (*misbehaving).stepUp, "[flights:upcoming:read flights:cancel]"},
		{"step-up-again", (*misbehaving).stepUp, "then 200"},
		{"receipt-bit", (*misbehaving).receipt, "signed false known true beside true"},
		{"receipt-envelope", (*misbehaving).receipt, "signed true known true beside false"},
		{"receipt-replay", (*misbehaving).receipt, "signed true known true beside true again true"},
		{"receipt-scope", (*misbehaving).receipt, "signed true known true beside true again false {GrantID:mine User:lark-4471 PA:" + m.issuer.url + " Brand:" + provider + "/a2a/" + LarklineID + " ScopesUsed:[flights:upcoming:read flights:history:read]"},
		{"receipt-late", (*misbehaving).receipt, "Time:2026-11-29T15:04:20.945Z"},
		{"receipt-unknown-kid", (*misbehaving).receipt, "signed false known false beside true"},
		{"receipt-none", (*misbehaving).receipt, "none"},
		{"receipt-form", (*misbehaving).receipt, "Time:}"},
		{"receipt-grant", (*misbehaving).receipt, "GrantID:another"},
		{"receipt-user", (*misbehaving).receipt, "User:lark-4471-other"},
		{"receipt-no-claims", (*misbehaving).receipt, "beside none"},
		{"jwks-down", (*misbehaving).keys, "503 "},
	}
	all := Misbehaviours()
	if len(rows) != len(all) {
		t.Errorf("%d rows for %d switches", len(rows), len(all))
	}
	for i, tc := range rows {
		t.Run(tc.spec, func(t *testing.T) {
			m.t = t
			if name, _, _ := strings.Cut(tc.spec, "="); i >= len(all) || name != all[i].Name {
				t.Errorf("row %d is not in the order of the table", i)
			}
			before := tc.probe(m)
			if strings.Contains(before, tc.want) {
				t.Errorf("without the switch %q is seen too, in %s", tc.want, before)
			}
			m.on(tc.spec)
			seen := tc.probe(m)
			if !strings.Contains(seen, tc.want) {
				t.Errorf("saw %s\nwithout %s", seen, tc.want)
			}
			if active := m.sandbox.faults.active(); len(active) != 1 || active[0] != tc.spec {
				t.Errorf("active %q", active)
			}
			m.on()
			if after := tc.probe(m); after != before {
				t.Errorf("after it was cleared: %s\nbefore: %s", after, before)
			}
			m.on(tc.spec + "*1")
			tc.probe(m)
			if active := m.sandbox.faults.active(); len(active) != 0 {
				t.Errorf("still active %q", active)
			}
			if after := tc.probe(m); after != before {
				t.Errorf("after it was used up: %s\nbefore: %s", after, before)
			}
		})
	}
}

func TestMisbehaveSaysWhatIsWrong(t *testing.T) {
	m := newMisbehaving(t)
	m.on("receipt-none")
	for spec, why := range map[string]string{
		"poll-slowdown":             "near it are poll-slow-down, poll-429",
		"nonsense":                  "--list",
		"":                          "--list",
		"=x":                        "--list",
		"receipt-bit=1":             "it takes no value; write receipt-bit",
		"receipt-bit*0":             "*1 to *1000000",
		"receipt-bit*9999999999999": "*1 to *1000000",
		"receipt-bit*":              "no such switch",
		"grant-aud":                 "write grant-aud=TEXT",
		"grant-aud=*2":              "write grant-aud=TEXT",
		"slow=-1":                   "SECONDS must be 0 to 1000000",
		"slow=1.5":                  "SECONDS must be",
		"slow=007":                  "SECONDS must be",
		"status=99":                 "STATUS must be 200 to 599",
		"poll-error=a b":            "CODE must be printable",
		"step-up-first=":            "write step-up-first=SCOPE",
		"step-up-more=\"":           "SCOPE must be printable",
		"card-scope-text=x":         "write card-scope-text=SCOPE:TEXT",
		"card-scope-text=x:y":       "no card here has that scope",
		"card-name=\xff":            "not UTF-8",
		"jwks-down*2":               "twice",
	} {
		err := m.sandbox.Misbehave("jwks-down", spec)
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), fmt.Sprintf("%q", spec)) {
			t.Errorf("%q: %v, want %q", spec, err, why)
		}
	}
	if active := m.sandbox.faults.active(); len(active) != 1 || active[0] != "receipt-none" {
		t.Errorf("a bad spec changed what is on: %q", active)
	}
}

// Calls and changes of what is on go together.
func TestMisbehaveWhileServing(t *testing.T) {
	m := newMisbehaving(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if err := m.sandbox.Misbehave("replay-401", "card-name=x*3", "receipt-replay", "envelope-bare", "no-reply"); err != nil {
					t.Error(err)
				}
				m.sandbox.Executed()
				if err := m.sandbox.Misbehave(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	bearer := "Authorization: Bearer " + m.token()
	body := func(i int) string {
		return fmt.Sprintf(`{"message":{"messageId":"m%d","role":"ROLE_USER","parts":[{"text":"hello"}]}}`, i)
	}
	m.together(20, http.MethodPost, m.url(LarklineID, "message:send"), body, bearer, "X-A2A-User-Delegation: Bearer "+m.access)
	m.together(20, http.MethodGet, m.url(LarklineID, ".well-known/agent-card.json"), func(int) string { return "" })
	wg.Wait()
}
