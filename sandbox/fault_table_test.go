package sandbox

import (
	"bytes"
	"crypto"
	"fmt"
	"net/http"
	"regexp"
	"slices"
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
func (m *faulty) receipt() string {
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

// faultRow is a fault and what it changes in what a raw client sees.
type faultRow struct {
	spec  string
	probe func(*faulty) string
	want  string // in what is seen
}

// try tries a fault: it is seen while it is on; it is over after its count, and
// when it is cleared; by header it is for the request that names it; without its ARG
// it does something too, as with the default.
func (row faultRow) try(t *testing.T, m *faulty) {
	m.t = t
	before := row.probe(m)
	if strings.Contains(before, row.want) {
		t.Errorf("without the fault %q is seen too, in %s", row.want, before)
	}
	m.on(row.spec)
	seen := row.probe(m)
	if !strings.Contains(seen, row.want) {
		t.Errorf("saw %s\nwithout %s", seen, row.want)
	}
	if active := m.sandbox.faults.active(); len(active) != 1 || active[0] != row.spec {
		t.Errorf("active %q", active)
	}
	m.on()
	if after := row.probe(m); after != before {
		t.Errorf("after it was cleared: %s\nbefore: %s", after, before)
	}
	m.on(row.spec + "*1")
	row.probe(m)
	if active := m.sandbox.faults.active(); len(active) != 0 {
		t.Errorf("still active %q", active)
	}
	if after := row.probe(m); after != before {
		t.Errorf("after it was used up: %s\nbefore: %s", after, before)
	}
	plain := m.client.Transport
	m.client.Transport = withFault{plain, row.spec}
	if seen := row.probe(m); !strings.Contains(seen, row.want) {
		t.Errorf("by header: saw %s\nwithout %s", seen, row.want)
	}
	m.client.Transport = plain
	if after := row.probe(m); after != before {
		t.Errorf("after requests that had the header: %s\nbefore: %s", after, before)
	}
	name, _, _ := strings.Cut(row.spec, "=")
	f := faultNamed(t, name)
	if f.Value == "" || f.Value == valueSeconds && strings.HasSuffix(name, "slow") { // the default is long
		return
	}
	m.on(name)
	alone := row.probe(m)
	if alone == before {
		t.Errorf("without its ARG it does nothing: %s", alone)
	}
	if f.Default != "" {
		m.on(name + "=" + f.Default)
		if said := row.probe(m); said != alone {
			t.Errorf("alone: %s\nwith the default: %s", alone, said)
		}
	}
	m.on()
}

// withFault has every request name a fault.
type withFault struct {
	http.RoundTripper
	spec string
}

func (f withFault) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(FaultHeader, f.spec)
	return f.RoundTripper.RoundTrip(r)
}

func faultNamed(t *testing.T, name string) Fault {
	t.Helper()
	i := slices.IndexFunc(Faults(), func(f Fault) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no fault %s", name)
	}
	return Faults()[i]
}

// Each line of the list fits 80 columns, names the ARG and what it is if left out,
// and is there once.
func TestFaultsAreListedWell(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Faults() {
		if seen[f.Name] || seen[f.About] {
			t.Errorf("%s: its name or line is there twice", f.Name)
		}
		seen[f.Name], seen[f.About] = true, true
		if len(f.Name) > 24 || len([]rune(f.About)) > 54 || !regexp.MustCompile(`^[a-z0-9-]+$`).MatchString(f.Name) {
			t.Errorf("%s is long: %d and %d", f.Name, len(f.Name), len([]rune(f.About)))
		}
		if strings.HasSuffix(f.About, ".") || f.About == "" || strings.Contains(f.About, "(allowed)") && !strings.HasSuffix(f.About, " (allowed)") {
			t.Errorf("%s: %q", f.Name, f.About)
		}
		word := f.Value
		if strings.Contains(word, "|") {
			word = "KIND"
		}
		if f.Value != "" && !strings.Contains(f.About, word+" (") {
			t.Errorf("%s: %q does not name %s", f.Name, f.About, word)
		}
		if f.Default == "" || f.Default == strangeScope {
			continue
		}
		if !strings.Contains(f.About, word+" ("+f.Default+")") {
			t.Errorf("%s: %q does not tell the default %s", f.Name, f.About, f.Default)
		}
		if err := checkValue(f, f.Default); err != nil {
			t.Errorf("%s: default: %v", f.Name, err)
		}
	}
}

// Each fault changes what a raw client sees, as it says.
func TestEveryFault(t *testing.T) {
	m := newFaulty(t)
	site, provider := m.sandbox.brandURL, m.ready.Provider
	const none = `{"error":"`
	rows := []faultRow{
		{"card-token-origin", (*faulty).card, `"tokenUrl":"` + site + `/a2a/` + LarklineID + `/oauth/token"`},
		{"card-device-origin=https://x.example/d", (*faulty).card, `"deviceAuthorizationUrl":"https://x.example/d"`},
		{"card-scope-text=flights:upcoming:read:Cancel: everything", (*faulty).card, `"flights:upcoming:read":"Cancel: everything"`},
		{"card-name=Air = 2*2 Fun", (*faulty).card, `"name":"Air = 2*2 Fun"`},
		{"card-second-scheme", (*faulty).card, `{"schemes":{"platformJwtToo":{"list":[]}}}`},
		{"card-no-provider", (*faulty).card, `"protocolVersion":"1.0"}],"version":"0.1.0"`},
		{"card-max-age=7", (*faulty).card, "Cache-Control:public, max-age=7 "},
		{"card-no-store", (*faulty).card, "Cache-Control:no-store "},
		{"metadata-jwks-origin", (*faulty).metadata, `"jwks_uri":"` + site},
		{"metadata-issuer-origin", (*faulty).metadata, `"issuer":"` + site},
		{"metadata-token-slash", (*faulty).metadata, `/oauth/token/"`},
		{"device-uri=javascript:alert(1)", (*faulty).signIn, `"verification_uri":"javascript:alert(1)"`},
		{"device-complete-uri=http://10.0.0.1/", (*faulty).signIn, `"verification_uri_complete":"http://10.0.0.1/"`},
		{"device-no-complete", (*faulty).signIn, `oauth%2Fconsent"}`},
		{"device-interval=0", (*faulty).signIn, `"interval":0`},
		{"device-expires=5", (*faulty).signIn, `"expires_in":5`},
		{"device-429=90", (*faulty).signIn, "429 Retry-After:90 "},
		{"device-error=unauthorized_client", (*faulty).signIn, none + `unauthorized_client"`},
		{"poll-slow-down", (*faulty).poll, none + `slow_down"`},
		{"poll-429=90", (*faulty).poll, "429 Retry-After:90 "},
		{"poll-status=500", (*faulty).poll, "500 Content-Type:application/json Cache-Control:no-store " + none + `server_error"`},
		{"poll-pending", (*faulty).poll, none + `authorization_pending"`},
		{"poll-error=access_denied", (*faulty).poll, none + `access_denied"`},
		{"grant-aud=https://x.example", (*faulty).poll, "https://x.example"},
		{"grant-client-id=https://y.example", (*faulty).poll, "https://y.example"},
		{"grant-iss=https://z.example", (*faulty).poll, "https://z.example"},
		{"grant-scope", (*faulty).poll, "flights:upcoming:read flights:history:read"},
		{"grant-signature", (*faulty).poll, "signed false"},
		{"grant-extra=flights:cancel", (*faulty).poll, "flights:upcoming:read flights:cancel"},
		{"access-ttl=30", (*faulty).refresh, "flights:upcoming:read flights:rebook30 true token"},
		{"refresh-narrow=flights:rebook", (*faulty).refresh, "Bearer flights:upcoming:read3600"},
		{"refresh-wide=flights:cancel", (*faulty).refresh, "flights:rebook flights:cancel"},
		{"refresh-wide", (*faulty).refresh, "flights:rebook flights:history:read"},
		{"refresh-keep", (*faulty).refresh, "again 200"},
		{"refresh-error=invalid_grant", (*faulty).refresh, none + `invalid_grant"`},
		{"identity-401", (*faulty).identity, `401 Www-Authenticate:Bearer realm="a2a"  401`},
		{"replay-401", (*faulty).identity, `200 Content-Type:application/a2a+json  401`},
		{"delegation-401", (*faulty).delegation, `401 Www-Authenticate:Bearer realm="a2a", error="invalid_token"`},
		{"drop-before", (*faulty).send, "no answer; no answer; late false ran 0"},
		{"too-many=90", (*faulty).send, "429 Retry-After:90 "},
		{"still-running", (*faulty).send, "Send another message"},
		{"no-reply", (*faulty).send, "There is no reply yet"},
		{"drop-after", (*faulty).send, "no answer; 200 "},
		{"envelope-bare", (*faulty).failure, `{"error":{"code":404,"status":"NOT_FOUND","message":"Task not found: x"}}`},
		{"reply-role-user", (*faulty).send, "ROLE_USER"},
		{"reply-context", (*faulty).send, "context another"},
		{"reply-no-context", (*faulty).send, "context none"},
		{"reply-json", (*faulty).send, "200 Content-Type:application/json "},
		{"step-up-first", (*faulty).hello, "[flights:upcoming:read] TASK_STATE_AUTH_REQUIRED link " + site},
		{"step-up-no-message-id", (*faulty).stepUp, "messageId false"},
		{"step-up-no-link", (*faulty).stepUp, "link  messageId true"},
		{"step-up-link=javascript:alert(1)", (*faulty).stepUp, "link javascript:alert(1)"},
		{"step-up-more=flights:cancel", (*faulty).stepUp, "[flights:upcoming:read flights:cancel]"},
		{"step-up-scopes-text", (*faulty).stepUp, "json flights:upcoming:read TASK_STATE_AUTH_REQUIRED"},
		{"step-up-again", (*faulty).stepUp, "then 200"},
		{"receipt-bit", (*faulty).receipt, "signed false known true beside true"},
		{"receipt-envelope", (*faulty).receipt, "signed true known true beside false"},
		{"receipt-replay", (*faulty).receipt, "signed true known true beside true again true"},
		{"receipt-scope", (*faulty).receipt, "signed true known true beside true again false {GrantID:mine User:lark-4471 PA:" + m.issuer.url + " Brand:" + provider + "/a2a/" + LarklineID + " ScopesUsed:[flights:upcoming:read flights:history:read]"},
		{"receipt-late", (*faulty).receipt, "Time:2026-11-29T15:04:20.945Z"},
		{"receipt-unknown-kid", (*faulty).receipt, "signed false known false beside true"},
		{"receipt-none", (*faulty).receipt, "none"},
		{"receipt-form", (*faulty).receipt, "Time:}"},
		{"receipt-grant", (*faulty).receipt, "GrantID:another"},
		{"receipt-user", (*faulty).receipt, "User:lark-4471-other"},
		{"receipt-no-claims", (*faulty).receipt, "beside none"},
		{"jwks-down", (*faulty).keys, "503 "},
		{"card-skill-bare", (*faulty).card, `"skills":[{"id":"talk","name":"","description":"","tags":[]}]`},
		{"card-no-skills", (*faulty).card, `"skills":[]`},
		{"card-no-interface", (*faulty).card, `"supportedInterfaces":[]`},
		{"card-interface-version=2.0", (*faulty).card, `"protocolVersion":"2.0"`},
		{"card-interface-url=/a2a/x", (*faulty).card, `"url":"/a2a/x","protocolBinding"`},
		{"card-two-interfaces", (*faulty).card, LarklineID + `/v2","protocolBinding":"HTTP+JSON","protocolVersion":"1.0"}]`},
		{"card-tenant", (*faulty).card, `"tenant":"tenant"`},
		{"card-extension", (*faulty).card, `"extensions":[{"uri":"https://elsewhere.example/extension","required":true}]`},
		{"card-identity-basic", (*faulty).card, `"scheme":"Basic"`},
		{"card-identity-not-alone", (*faulty).card, `"securityRequirements":[{"schemes":{"platformJwt":{"list":[]},"another":{"list":[]}}}]`},
		{"card-streaming", (*faulty).card, `"streaming":true`},
		{"card-no-requirement", (*faulty).card, `"securityRequirements":[{"schemes":{"platformJwt":{"list":[]}}}]`},
		{"card-no-scopes", (*faulty).card, `"scopes":{}`},
		{"card-no-metadata-url", (*faulty).card, `}}}}},"securityRequirements"`},
		{"card-metadata-origin", (*faulty).card, `"oauth2MetadataUrl":"` + site + `/a2a/`},
		{"metadata-device-other", (*faulty).metadata, `/oauth/device_authorization/v2"`},
		{"jwks-private", (*faulty).keys, "ours with d"},
		{"jwks-twice", (*faulty).keys, "ours ours"},
		{"key-dropped", (*faulty).keys, "another"},
		{"key-early", (*faulty).poll, "signed false by another"},
		{"key-rollover", (*faulty).poll, "signed true by another"},
		{"device-foreign", (*faulty).signIn, `"verification_uri":"https://elsewhere.example/login","verification_uri_complete":"https://elsewhere.example/login?user_code=CODE"`},
		{"token-type", (*faulty).poll, "mac"},
		{"no-retry-after", (*faulty).send, "429 not JSON"},
		{"reply-crossed", (*faulty).twoTalks, "context another"},
		{"reply-previous", (*faulty).twoTalks, "This is Larkline Air"},
		{"step-up-foreign", (*faulty).stepUp, "link https://elsewhere.example/login"},
		{"step-up-state", (*faulty).stepUp, "TASK_STATE_INPUT_REQUIRED"},
		{"step-up-loop", (*faulty).stepUp, "then 200"},
		{"step-up-creep", (*faulty).stepUp, "then 200 Content-Type:application/a2a+json [flights:history:read]"},
		{"receipt-early", (*faulty).receipt, "Time:2026-11-29T14:52:20.945Z"},
		{"receipt-pa", (*faulty).receipt, "PA:https://elsewhere.example "},
		{"receipt-brand", (*faulty).receipt, "Brand:https://elsewhere.example/a2a/"},
	}
	rows = append(rows, transportRows()...)
	tried := map[string]bool{}
	for _, row := range rows {
		name, _, _ := strings.Cut(row.spec, "=")
		tried[name] = true
		t.Run(row.spec, func(t *testing.T) { row.try(t, m) })
	}
	for _, f := range faultTable {
		if !tried[f.Name] {
			t.Errorf("nothing tries %s", f.Name)
		}
	}
}

func TestSetFaultsSaysWhatIsWrong(t *testing.T) {
	m := newFaulty(t)
	m.on("receipt-none")
	for spec, why := range map[string]string{
		"poll-slowdown":             "did you mean poll-slow-down?",
		"poll-unknown":              "near it are poll-slow-down, poll-429",
		"slwo":                      "did you mean slow?",
		"nonsense":                  "pactctl sandbox faults shows all",
		"":                          "pactctl sandbox faults shows all",
		"=x":                        "pactctl sandbox faults shows all",
		"receipt-bit=1":             "it takes no ARG; write receipt-bit",
		"receipt-bit*0":             "*1 to *1000000",
		"receipt-bit*9999999999999": "*1 to *1000000",
		"receipt-bit*":              "no such fault",
		"grant-aud=*2":              "write grant-aud=TEXT, or grant-aud alone",
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
		err := m.sandbox.SetFaults("jwks-down", spec)
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), fmt.Sprintf("%q", spec)) {
			t.Errorf("%q: %v, want %q", spec, err, why)
		}
	}
	if active := m.sandbox.faults.active(); len(active) != 1 || active[0] != "receipt-none" {
		t.Errorf("a bad spec changed what is on: %q", active)
	}
}

// Calls and changes of what is on go together.
func TestSetFaultsWhileServing(t *testing.T) {
	m := newFaulty(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if err := m.sandbox.SetFaults("replay-401", "card-name=x*3", "receipt-replay", "envelope-bare", "no-reply"); err != nil {
					t.Error(err)
				}
				m.sandbox.Executed()
				if err := m.sandbox.SetFaults(); err != nil {
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
