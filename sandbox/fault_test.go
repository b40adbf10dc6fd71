package sandbox

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// faulty is a world in which all faults can be seen: what a raw client gets
// is put in words that are the same each time, but for a fault.
type faulty struct {
	*world
	access  string // a delegation token for scopeUpcoming and scopeRebook
	grantID string // of access
	context string // an undelegated conversation with Larkline
	current string // JWS of the latest receipt
	last    string // and of the one before

	mu    sync.Mutex
	held  time.Duration // for how long answers were held back, in all
	leave func()        // has the client leave whose answer is held back; nil: it has all the time
}

// hold is the timer of the sandbox: no time passes while an answer is held back.
func (m *faulty) hold(d time.Duration) *time.Timer {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leave != nil {
		m.leave()
		return time.NewTimer(forever)
	}
	m.held += d
	return time.NewTimer(0)
}

// heldFor is for how long answers were held back so far.
func (m *faulty) heldFor() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
}

// leaving says how a client leaves whose answer is held back.
func (m *faulty) leaving(leave func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leave = leave
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	m := &faulty{world: newWorld(t, func(c *Config) {
		c.Params, c.FaultHeader = Defaults(), true
		c.Params.DeviceLimit.Burst, c.Params.UserLimit.Burst, c.Params.IssuerLimit.Burst = 10000, 10000, 10000
	})}
	m.sandbox.timer = m.hold
	m.access = text(t, m.grant(0, scopeUpcoming+" "+scopeRebook), "access_token")
	claims, _ := m.verified(m.access)
	var c tokenClaims
	if err := json.Unmarshal(claims, &c); err != nil {
		t.Fatal(err)
	}
	m.grantID = c.GrantID
	m.context, _ = m.reply(m.say(LarklineID, newUUID(), "", "hello", ""))
	return m
}

func (m *faulty) on(specs ...string) {
	m.t.Helper()
	if err := m.sandbox.SetFaults(specs...); err != nil {
		m.t.Fatal(err)
	}
}

// words are an answer's status and headers that count, and v without what is
// different each time.
func words(a answer, v ...any) string {
	s := fmt.Sprint(a.status)
	for _, h := range []string{"Content-Type", "Cache-Control", "Retry-After", "Www-Authenticate"} {
		if got := a.header.Get(h); got != "" {
			s += " " + h + ":" + got
		}
	}
	return s + " " + fmt.Sprint(v...)
}

func (m *faulty) card() string {
	a := m.do(http.MethodGet, m.url(LarklineID, ".well-known/agent-card.json"), "")
	return words(a, string(a.body), " is JSON: ", jsontext.Value(a.body).IsValid())
}

func (m *faulty) metadata() string {
	a := m.do(http.MethodGet, m.url(LarklineID, "oauth/.well-known/oauth-authorization-server"), "")
	return words(a, string(a.body))
}

func (m *faulty) keys() string {
	a := m.do(http.MethodGet, m.url(LarklineID, "oauth/jwks.json"), "")
	var set struct {
		Keys []map[string]string `json:"keys"`
	}
	_ = json.Unmarshal(a.body, &set) // there may be none
	var keys []string
	for _, key := range set.Keys {
		keys = append(keys, m.whose(key["kid"]))
		if key["d"] != "" {
			keys = append(keys, "with d")
		}
	}
	return words(a, keys)
}

// whose says whether a key is the one that Larkline has without faults.
func (m *faulty) whose(kid string) string {
	if kid == m.sandbox.business(LarklineID).key.id {
		return "ours"
	}
	return "another"
}

func (m *faulty) signIn() string {
	a := m.oauth("device_authorization", "scope", scopeUpcoming)
	if a.status != http.StatusOK {
		return words(a, string(a.body))
	}
	v := a.json(m.t)
	code := text(m.t, v, "user_code")
	delete(v, "device_code")
	delete(v, "user_code")
	line, _ := json.Marshal(v, json.Deterministic(true))
	return words(a, strings.ReplaceAll(string(line), code, "CODE"))
}

// tokenWords are those of an answer of the token endpoint.
func tokenWords(m *faulty, a answer) string {
	if a.status != http.StatusOK {
		return words(a, string(a.body))
	}
	v := a.json(m.t)
	var c tokenClaims
	parts := strings.Split(text(m.t, v, "access_token"), ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err := cmp.Or(err, json.Unmarshal(payload, &c)); err != nil {
		m.t.Fatal(err)
	}
	access := text(m.t, v, "access_token")
	return words(a, v["token_type"], " ", v["scope"], v["expires_in"], v["refresh_token"] != nil, " token ",
		c.ClientID, c.Issuer, c.Audience, c.Scope, c.Expires-c.IssuedAt, " signed ", m.signed(access), " by ", m.whose(kidOf(m.t, access)))
}

// kidOf is the kid of a JWS.
func kidOf(t *testing.T, compact string) string {
	t.Helper()
	var h struct {
		Kid string `json:"kid"`
	}
	parts := strings.Split(compact, ".")
	header, err := base64.RawURLEncoding.DecodeString(parts[0])
	if err := cmp.Or(err, json.Unmarshal(header, &h)); err != nil {
		t.Fatal(err)
	}
	return h.Kid
}

// signed tells whether a published key signed a JWS.
func (m *faulty) signed(compact string) bool {
	key, ok := m.asKeys().Find(kidOf(m.t, compact), "ES256")
	return ok && verifies(m.t, compact, key.Public)
}

// poll is the first poll of a sign-in that the user has allowed.
func (m *faulty) poll() string { return tokenWords(m, m.polled()) }

func (m *faulty) polled() answer {
	d := m.device(scopeUpcoming)
	if _, err := m.person(0).AllowAll(m.t.Context(), text(m.t, d, "verification_uri_complete")); err != nil {
		m.t.Fatal(err)
	}
	return m.world.poll(d["device_code"])
}

// refresh refreshes twice with the same token.
func (m *faulty) refresh() string {
	resp := m.grant(0, scopeUpcoming+" "+scopeRebook)
	token := text(m.t, resp, "refresh_token")
	first := m.oauth("token", "grant_type", grantRefresh, "refresh_token", token)
	again := m.oauth("token", "grant_type", grantRefresh, "refresh_token", token)
	return tokenWords(m, first) + " again " + fmt.Sprint(again.status)
}

// identity uses a PA-JWT twice.
func (m *faulty) identity() string {
	said, auth := "", "Authorization: Bearer "+m.token()
	for range 2 {
		said += words(m.do(http.MethodGet, m.url(LarklineID, "tasks"), "", auth)) + " "
	}
	return said
}

func (m *faulty) delegation() string {
	a := m.say(LarklineID, newUUID(), "", "hello", m.access)
	return words(a)
}

// send sends a message without delegation, and the same again; whether the answers
// came a second late each, and how often it ran.
func (m *faulty) send() string {
	held, ran, id := m.heldFor(), len(m.sandbox.Executed()), newUUID()
	body := `{"message":{"messageId":"` + id + `","contextId":"` + m.context + `","role":"ROLE_USER","parts":[{"text":"Is LK 204 on time?"}]}}`
	said := ""
	for range 2 {
		a, err := m.try(http.MethodPost, m.url(LarklineID, "message:send"), body, "Authorization: Bearer "+m.token())
		if err != nil {
			said += "no answer; "
			continue
		}
		said += words(a, m.messageWords(a.body)) + "; "
	}
	for _, x := range m.sandbox.Executed()[ran:] {
		if x.Brand != LarklineID || x.MessageID != id || x.Text != "Is LK 204 on time?" || !slices.Equal(x.Tools, []string{"flight_status"}) || !x.Time.Equal(m.clock.now()) {
			m.t.Errorf("executed %+v", x)
		}
	}
	return said + fmt.Sprint("late ", m.heldFor()-held >= 2*time.Second, " ran ", len(m.sandbox.Executed())-ran)
}

func (m *faulty) messageWords(body []byte) string {
	var v struct {
		Error   any `json:"error"`
		Message struct {
			Role      string     `json:"role"`
			ContextID string     `json:"contextId"`
			Parts     []textPart `json:"parts"`
		} `json:"message"`
	}
	if json.Unmarshal(body, &v) != nil {
		return "not JSON"
	}
	context := "another"
	switch v.Message.ContextID {
	case "":
		context = "none"
	case m.context:
		context = "same"
	}
	return fmt.Sprint(v.Error, v.Message.Role, " context ", context, v.Message.Parts)
}

// twoTalks speaks in a new conversation and then in the one of always.
func (m *faulty) twoTalks() string {
	m.say(LarklineID, newUUID(), "", "hello", "")
	return m.messageWords(m.say(LarklineID, newUUID(), m.context, "Is LK 204 on time?", "").body)
}

// failure is an A2A error.
func (m *faulty) failure() string {
	a := m.call(http.MethodGet, m.url(LarklineID, "tasks/x"), "")
	return words(a, string(a.body))
}

// stepUp is a turn that lacks permission, and then the same turn with it.
func (m *faulty) stepUp() string {
	a := m.say(LarklineID, newUUID(), "", "Show my upcoming flights", "")
	m.context = text(m.t, a.json(m.t), "task", "contextId")
	said := m.taskWords(a)
	return said + " then " + m.taskWords(m.say(LarklineID, newUUID(), m.context, "Show my upcoming flights", m.access))
}

// hello is a turn that needs no permission.
func (m *faulty) hello() string {
	return m.taskWords(m.say(LarklineID, newUUID(), "", "hello", ""))
}

func (m *faulty) taskWords(a answer) string {
	task, ok := a.json(m.t)["task"]
	if !ok {
		return "no step-up"
	}
	link, _ := dig(m.t, task, "metadata", "pact.verificationUriComplete").(string)
	if at := strings.Index(link, "user_code"); at >= 0 {
		link = link[:at]
	}
	return words(a, dig(m.t, task, "metadata", "pact.missingScopes"), " ", dig(m.t, task, "status", "state"), " link ", link,
		" messageId ", dig(m.t, task, "status", "message", "messageId") != nil)
}
