package sandbox

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

// verdict is an answer's status and why it refuses: the challenge, the reason or
// the OAuth error.
func verdict(a answer) string {
	var v struct {
		Error any `json:"error"`
	}
	_ = json.Unmarshal(a.body, &v) // often no JSON
	said := fmt.Sprint(a.status)
	if challenge := a.header.Get("WWW-Authenticate"); challenge != "" {
		said += " " + challenge
	}
	switch e := v.Error.(type) {
	case string:
		said += " " + e
	case map[string]any:
		if details, ok := e["details"].([]any); ok && len(details) > 0 {
			said += fmt.Sprint(" ", details[0].(map[string]any)["reason"])
		}
	}
	return said
}

const refused = `401 Bearer realm="a2a"`

// tasks is what GET tasks says with these headers.
func (m *faulty) tasks(headers ...string) string {
	m.t.Helper()
	return verdict(m.do(http.MethodGet, m.url(LarklineID, "tasks"), "", headers...))
}

func (m *faulty) tasksWith(token string) string { return m.tasks("Authorization: Bearer " + token) }

// claiming is what a PA-JWT gets that has one claim otherwise.
func claiming(name string, value func(*faulty) any) func(*faulty) string {
	return func(m *faulty) string {
		claims := m.claims()
		claims[name] = value(m)
		return m.tasksWith(sign(m.t, m.issuer.keys[0], claims, nil))
	}
}

// timed is what a PA-JWT gets that is made and ends so many seconds from now.
func timed(issued, expires int64) func(*faulty) string {
	return func(m *faulty) string {
		claims, now := m.claims(), m.clock.now().Unix()
		claims["iat"], claims["exp"] = now+issued, now+expires
		return m.tasksWith(sign(m.t, m.issuer.keys[0], claims, nil))
	}
}

// headed is what a PA-JWT gets that has one header member otherwise.
func headed(name jose.HeaderKey, value any) func(*faulty) string {
	return func(m *faulty) string {
		return m.tasksWith(sign(m.t, m.issuer.keys[0], m.claims(), map[jose.HeaderKey]any{name: value}))
	}
}

// anonymous is what a request without a PA-JWT gets.
func anonymous(method, path, body string) func(*faulty) string {
	return func(m *faulty) string { return verdict(m.do(method, m.ready.Provider+path, body)) }
}

// called is what a call with a good PA-JWT gets.
func called(method, path, body string, headers ...string) func(*faulty) string {
	return func(m *faulty) string { return verdict(m.call(method, m.ready.Provider+path, body, headers...)) }
}

// sent is what a message with these members gets.
func sent(members string) func(*faulty) string {
	return called(http.MethodPost, larkline+"message:send", `{"message":{`+members+`}}`)
}

// posted is what an OAuth call gets.
func posted(endpoint string, form ...string) func(*faulty) string {
	return func(m *faulty) string { return verdict(m.oauth(endpoint, form...)) }
}

const (
	larkline = "/a2a/" + LarklineID + "/"
	nobrand  = "/a2a/01NOSUCHBRAND/"
	sentence = `"parts":[{"text":"hello"}]`
)

// withoutSignature is a PA-JWT of alg none.
func (m *faulty) withoutSignature() string {
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT","kid":"` + m.issuer.keys[0].KeyID + `"}`))
	return header + "." + strings.Split(m.token(), ".")[1] + "."
}

// bent is a JWT with one bit of its signature changed.
func (m *faulty) bent(compact string) string {
	at := strings.LastIndexByte(compact, '.') + 1
	sig, err := base64.RawURLEncoding.DecodeString(compact[at:])
	if err != nil {
		m.t.Fatal(err)
	}
	sig[0] ^= 1
	return compact[:at] + base64.RawURLEncoding.EncodeToString(sig)
}

// delegatedBy is what a delegation token gets beside a good PA-JWT.
func (m *faulty) delegatedBy(token string) string {
	return verdict(m.say(LarklineID, newUUID(), "", "hello", token))
}

// asking starts a sign-in and has a person come as far as the consent page.
func (m *faulty) asking(scopes string) (device map[string]any, consent *person.Page) {
	m.t.Helper()
	device = m.device(scopes)
	consent, err := m.person(0).SignIn(m.t.Context(), text(m.t, device, "verification_uri_complete"))
	if err != nil {
		m.t.Fatal(err)
	}
	return device, consent
}

// answered is what the last page says of a consent, and which scope is given then.
func (m *faulty) answered(asked, decision string, ticked ...string) string {
	m.t.Helper()
	device, consent := m.asking(asked)
	last, err := consent.Answer(m.t.Context(), decision, ticked...)
	if err != nil {
		m.t.Fatal(err)
	}
	said := cmp.Or(last.URL.Query().Get("status"), fmt.Sprint(last.Status))
	if a := m.world.poll(device["device_code"]); a.status == http.StatusOK {
		return said + " " + text(m.t, a.json(m.t), "scope")
	}
	return said
}

// idOf is the grant_id of the token in an answer of the token endpoint.
func (m *faulty) idOf(a map[string]any) string {
	m.t.Helper()
	payload, _ := m.verified(text(m.t, a, "access_token"))
	var c tokenClaims
	if err := json.Unmarshal(payload, &c); err != nil {
		m.t.Fatal(err)
	}
	return c.GrantID
}

// as does something as another subject of the issuer.
func (m *faulty) as(subject string, do func() string) string {
	mine := m.subject
	m.subject = subject
	defer func() { m.subject = mine }()
	return do()
}

// twice are the statuses of a form that is posted twice.
func (m *faulty) twice(p *person.Page, values url.Values) string {
	m.t.Helper()
	var statuses []int
	for range 2 {
		next, err := p.Post(m.t.Context(), values)
		if err != nil {
			m.t.Fatal(err)
		}
		statuses = append(statuses, next.Status)
	}
	return strings.Trim(fmt.Sprint(statuses), "[]")
}

// decided is what a poll hears after a decision on what user-7f3a's agent asked.
func (m *faulty) decided(decision string, ticked ...string) string {
	m.t.Helper()
	var device map[string]any
	m.as("user-7f3a", func() string {
		var consent *person.Page
		device, consent = m.asking(both)
		if _, err := consent.Answer(m.t.Context(), decision, ticked...); err != nil {
			m.t.Fatal(err)
		}
		return ""
	})
	return verdict(m.world.poll(device["device_code"]))
}

func (m *faulty) refreshed(token string) string {
	return verdict(m.oauth("token", "grant_type", grantRefresh, "refresh_token", token))
}

func (m *faulty) stepUpTask() (missing, link string) {
	m.t.Helper()
	task := m.say(LarklineID, newUUID(), "", "Show my upcoming flights", "").json(m.t)
	return fmt.Sprint(dig(m.t, task, "task", "metadata", "pact.missingScopes")), text(m.t, task, "task", "metadata", "pact.verificationUriComplete")
}

const both = scopeUpcoming + " " + scopeRebook

// latePoll is how long a device code is said to live, and what a poll after ten minutes
// hears.
func (m *faulty) latePoll() string {
	device := m.device(both)
	m.clock.advance(10 * time.Minute)
	return fmt.Sprint(device["expires_in"], ": ", verdict(m.world.poll(device["device_code"])))
}

// lateTurn is how long a delegation token is said to live, and what a turn after two
// hours gets.
func (m *faulty) lateTurn() string {
	given := m.grant(0, both)
	m.clock.advance(2 * time.Hour)
	return fmt.Sprint(given["expires_in"], ": ", m.delegatedBy(text(m.t, given, "access_token")))
}

// saidAgain says something in a new context, and the same messageId again by what asks
// does: is the second answer the first?
func (m *faulty) saidAgain(access string, asks func(id, context string) answer) string {
	m.t.Helper()
	id := newUUID()
	first := m.say(LarklineID, id, "", "hello", access)
	context, _ := m.reply(first)
	again := asks(id, context)
	return fmt.Sprint(verdict(again), " ", string(again.body) == string(first.body))
}

// issuedAt is what a PA-JWT gets that has this iat, or none.
func issuedAt(iat any) func(*faulty) string {
	return func(m *faulty) string {
		claims := m.claims()
		if claims["iat"] = iat; iat == nil {
			delete(claims, "iat")
		}
		return m.tasksWith(sign(m.t, m.issuer.keys[0], claims, nil))
	}
}

// withoutJWT is what an OAuth call without a PA-JWT gets.
func (m *faulty) withoutJWT(endpoint string, form ...string) string {
	values := url.Values{"client_id": {m.issuer.url}}
	for i := 0; i < len(form); i += 2 {
		values.Set(form[i], form[i+1])
	}
	return verdict(m.post(m.url(LarklineID, "oauth/"+endpoint), values))
}

// answerKind is what a message that needs a permission is answered with.
func (m *faulty) answerKind(access string) string {
	a := m.say(LarklineID, newUUID(), "", "Show my upcoming flights", access).json(m.t)
	if _, ok := a["task"]; ok {
		return "task"
	}
	return text(m.t, a, "message", "parts", "0", "text")[:8]
}

// laxRow is a fault, what is seen while the rule holds, and while the fault breaks it.
type laxRow struct {
	spec        string
	probe       func(*faulty) string
	rule, broke string
}

var laxRows = []laxRow{
	{"brand-unknown-200", anonymous("GET", nobrand+".well-known/agent-card.json", ""), "404", "200"},

	{"no-rs256", func(m *faulty) string {
		if len(m.issuer.keys) == 1 {
			m.issuer.change(func() { m.issuer.keys = append(m.issuer.keys, newKey(m.t, jose.RS256)) })
			m.clock.advance(time.Hour) // the JWKS is read again
		}
		return m.tasksWith(sign(m.t, m.issuer.keys[1], m.claims(), nil))
	}, "200", refused},
	{"lax-no-token", anonymous("GET", larkline+"tasks", ""), refused, "200"},
	{"lax-no-token", func(m *faulty) string {
		body := `{"message":{"messageId":"a","role":"ROLE_USER",` + sentence + `}}`
		return verdict(m.do("POST", m.url(LarklineID, "message:send"), body, "X-A2A-User-Delegation: Bearer "+m.access))
	}, refused, "200"},
	{"lax-scheme", func(m *faulty) string { return m.tasks("Authorization: Basic " + m.token()) }, refused, "200"},
	{"lax-signature", func(m *faulty) string { return m.tasksWith(m.bent(m.token())) }, refused, "200"},
	{"lax-algorithm", func(m *faulty) string { return m.tasksWith(m.withoutSignature()) }, refused, "200"},
	{"lax-kid", headed("kid", "another"), refused, "200"},
	{"lax-kid", headed("kid", ""), refused, "200"},
	{"lax-type", headed("typ", "pact-device+jwt"), refused, "200"},
	{"lax-audience", claiming("aud", func(m *faulty) any { return m.ready.Provider }), refused, "200"},
	{"lax-audience-prefix", claiming("aud", func(m *faulty) any { return m.sandbox.audience + "/x" }), refused, "200"},
	{"lax-audience-prefix", claiming("aud", func(m *faulty) any { return m.sandbox.audience[:len(m.sandbox.audience)-1] }), refused, "200"},
	{"lax-issuer", claiming("iss", func(m *faulty) any { return m.issuer.url + "/" }), refused, "200"},
	{"lax-subject", claiming("sub", func(*faulty) any { return strings.Repeat("u", 257) }), refused, "200"},
	{"lax-subject", claiming("sub", func(*faulty) any { return "" }), refused, "200"},
	{"lax-iat", issuedAt(nil), refused, "200"},
	{"lax-iat", issuedAt("1790000000"), refused, "200"},
	{"lax-future", timed(90, 120), refused, "200"},
	{"lax-expired", timed(-120, -90), refused, "200"},
	{"lax-lifetime", timed(0, 301), refused, "200"},
	{"challenge-none", anonymous("GET", larkline+"tasks", ""), refused, "401"},
	{"challenge-realm", anonymous("GET", larkline+"tasks", ""), refused, `401 Bearer realm="other"`},
	{"challenge-body", anonymous("GET", larkline+"tasks", ""), refused, refused + " UNAUTHENTICATED"},
	{"jwks-sticky", func(m *faulty) string {
		key := newKey(m.t, jose.ES256)
		m.issuer.change(func() { m.issuer.keys = append(m.issuer.keys, key) })
		m.clock.advance(30 * time.Second)
		return m.tasksWith(sign(m.t, key, m.claims(), nil))
	}, "200", refused},

	{"route-unknown-401", anonymous("GET", larkline+"nothing", ""), "404", refused},
	{"route-unknown-body", anonymous("GET", larkline+"nothing", ""), "404", "404 TASK_NOT_FOUND"},
	{"route-method-401", anonymous("PUT", larkline+"tasks", ""), "405", refused},
	{"auth-late", anonymous("POST", larkline+"message:send", "{"), refused, "400 INVALID_PARAMS"},
	{"brand-early", anonymous("POST", nobrand+"message:send", "{}"), refused, "404"},
	{"brand-unknown-400", called("GET", nobrand+"tasks", ""), "404", "400 INVALID_PARAMS"},
	{"tasks-shape", func(m *faulty) string {
		return string(m.call("GET", m.url(LarklineID, "tasks"), "").body)
	}, `{"tasks":[],"nextPageToken":"","pageSize":50,"totalSize":0}`, "[]"},
	{"lax-page-size", called("GET", larkline+"tasks?pageSize=101", ""), "400 INVALID_PARAMS", "200"},
	{"lax-page-size", called("GET", larkline+"tasks?pageSize=%zz", ""), "400 INVALID_PARAMS", "200"},
	{"lax-page-size-digits", called("GET", larkline+"tasks?pageSize=10abc", ""), "400 INVALID_PARAMS", "200"},
	{"lax-page-size-digits", called("GET", larkline+"tasks?pageSize=%zz", ""), "400 INVALID_PARAMS", "200"},
	{"strict-query", called("GET", larkline+"tasks?status=x", ""), "200", "400 INVALID_PARAMS"},
	{"lax-task", called("GET", larkline+"tasks/abc", ""), "404 TASK_NOT_FOUND", "200"},
	{"lax-task", called("POST", larkline+"tasks/abc:cancel", ""), "404 TASK_NOT_FOUND", "200"},
	{"unsupported-501", called("POST", larkline+"message:stream", "{}"), "400 UNSUPPORTED_OPERATION", "501"},
	{"push-404", called("DELETE", larkline+"tasks/a/pushNotificationConfigs/b", ""), "400 PUSH_NOTIFICATION_NOT_SUPPORTED", "404"},
	{"strict-version", called("GET", larkline+"tasks", ""), "200", "400 INVALID_PARAMS"},
	{"strict-content-type", sent(`"messageId":"a","role":"ROLE_USER",` + sentence), "200", "415"},

	{"context-fixed", func(m *faulty) string {
		last := m.context
		m.context, _ = m.reply(m.say(LarklineID, newUUID(), "", "hello", ""))
		return fmt.Sprint(m.context == last)
	}, "false", "true"},
	{"run-again", func(m *faulty) string {
		id, ran := newUUID(), len(m.sandbox.Executed())
		one := m.say(LarklineID, id, m.context, "hello", "")
		two := m.say(LarklineID, id, m.context, "hello", "")
		return fmt.Sprint(one.status, two.status, len(m.sandbox.Executed())-ran, string(one.body) == string(two.body))
	}, "200 200 1 true", "200 200 2 false"},
	{"repeat-anywhere", func(m *faulty) string {
		return m.saidAgain("", func(id, _ string) answer { return m.say(LarklineID, id, "", "hello", "") })
	}, "200 false", "200 true"},
	{"repeat-anywhere", func(m *faulty) string {
		return m.saidAgain("", func(id, _ string) answer { return m.say(LarklineID, id, m.context, "hello", "") })
	}, "200 false", "200 true"},
	{"repeat-foreign", func(m *faulty) string {
		return m.saidAgain("", func(id, _ string) (a answer) {
			m.as("another", func() string { a = m.say(LarklineID, id, "", "hello", ""); return "" })
			return a
		})
	}, "200 false", "200 true"},
	{"repeat-foreign", func(m *faulty) string {
		return m.saidAgain("", func(id, context string) (a answer) {
			m.as("another", func() string { a = m.say(LarklineID, id, context, "hello", ""); return "" })
			return a
		})
	}, "400 INVALID_PARAMS false", "200 true"},
	{"reply-to-anyone", func(m *faulty) string {
		other := text(m.t, m.world.grant(1, both), "access_token")
		return m.saidAgain(m.access, func(id, context string) answer { return m.say(LarklineID, id, context, "hello", other) })
	}, "400 INVALID_PARAMS false", "200 true"},
	{"reply-to-anyone", func(m *faulty) string {
		return m.saidAgain(m.access, func(id, context string) answer { return m.say(LarklineID, id, context, "hello", "") })
	}, "400 INVALID_PARAMS false", "200 true"},
	{"lax-context", func(m *faulty) string { return verdict(m.say(LarklineID, newUUID(), newUUID(), "hello", "")) }, "400 INVALID_PARAMS", "200"},
	{"lax-context", func(m *faulty) string {
		return m.as("another", func() string { return verdict(m.say(LarklineID, newUUID(), m.context, "hello", "")) })
	}, "400 INVALID_PARAMS", "200"},
	{"context-tells", func(m *faulty) string {
		return m.as("another", func() string {
			return text(m.t, m.say(LarklineID, newUUID(), m.context, "hello", "").json(m.t), "error", "message")
		})
	}, "Unknown contextId", "The contextId is another caller's"},
	{"lax-message-id", sent(`"role":"ROLE_USER",` + sentence), "400 INVALID_PARAMS", "200"},
	{"lax-role", sent(`"messageId":"a","role":"ROLE_AGENT",` + sentence), "400 INVALID_PARAMS", "200"},
	{"lax-blank", sent(`"messageId":"a","role":"ROLE_USER","parts":[{"text":" "}]`), "400 INVALID_PARAMS", "200"},
	{"lax-parts", sent(`"messageId":"a","role":"ROLE_USER","parts":[{"data":{}}]`), "400 CONTENT_TYPE_NOT_SUPPORTED", "200"},
	{"lax-part-members", sent(`"messageId":"a","role":"ROLE_USER","parts":[{"text":"hello","kind":"text"}]`), "400 INVALID_PARAMS", "200"},
	{"strict-part", sent(`"messageId":"a","role":"ROLE_USER","parts":[{"text":"hello","metadata":{}}]`), "200", "400 INVALID_PARAMS"},
	{"strict-members", sent(`"messageId":"a","role":"ROLE_USER","kind":"message",` + sentence), "200", "400 INVALID_PARAMS"},
	{"lax-task-id", sent(`"messageId":"a","role":"ROLE_USER","taskId":"t",` + sentence), "404 TASK_NOT_FOUND", "200"},
	{"closed-open", func(m *faulty) string {
		context, _ := m.reply(m.say(LarklineID, newUUID(), "", "Goodbye", ""))
		return verdict(m.say(LarklineID, newUUID(), context, "hello", ""))
	}, "400 UNSUPPORTED_OPERATION", "200"},
	{"envelope-code", func(m *faulty) string {
		return fmt.Sprint(dig(m.t, m.call("GET", m.url(LarklineID, "tasks/x"), "").json(m.t), "error", "code"))
	}, "404", "500"},
	{"envelope-domain", func(m *faulty) string {
		return text(m.t, m.call("GET", m.url(LarklineID, "tasks/x"), "").json(m.t), "error", "details", "0", "domain")
	}, "a2a-protocol.org", "errors.example"},
	{"envelope-json", func(m *faulty) string {
		return m.call("GET", m.url(LarklineID, "tasks/x"), "").header.Get("Content-Type")
	}, typeA2A, typeJSON},

	{"lax-oauth-auth", func(m *faulty) string {
		form := url.Values{"client_id": {m.issuer.url}, "scope": {scopeUpcoming}}
		return verdict(m.post(m.url(LarklineID, "oauth/device_authorization"), form))
	}, refused, "200"},
	{"lax-oauth-auth", func(m *faulty) string {
		return m.withoutJWT("token", "grant_type", grantRefresh, "refresh_token", text(m.t, m.grant(0, both), "refresh_token"))
	}, refused, "200"},
	{"lax-oauth-auth", func(m *faulty) string {
		device, consent := m.asking(both)
		if _, err := consent.Answer(m.t.Context(), "allow", scopeRebook); err != nil {
			m.t.Fatal(err)
		}
		return m.withoutJWT("token", "grant_type", grantDeviceCode, "device_code", text(m.t, device, "device_code"))
	}, refused, "200"},
	{"lax-refresh-auth", func(m *faulty) string {
		return m.withoutJWT("token", "grant_type", grantRefresh, "refresh_token", text(m.t, m.grant(0, both), "refresh_token"))
	}, refused, "200"},
	{"lax-refresh-auth", func(m *faulty) string {
		token := text(m.t, m.grant(0, both), "refresh_token")
		return verdict(m.oauth("token", "client_id", "https://other.example", "grant_type", grantRefresh, "refresh_token", token))
	}, "401 invalid_client", "200"},
	{"lax-client", posted("device_authorization", "client_id", "https://other.example", "scope", scopeUpcoming), "401 invalid_client", "200"},
	{"lax-form", func(m *faulty) string {
		form := url.Values{"client_id": {m.issuer.url}, "scope": {scopeUpcoming, scopeUpcoming}}
		return verdict(m.call("POST", m.url(LarklineID, "oauth/device_authorization"), form.Encode(), formType))
	}, "400 invalid_request", "200"},
	{"lax-form", func(m *faulty) string {
		form := url.Values{"client_id": {m.issuer.url}, "scope": {scopeUpcoming}}
		return verdict(m.call("POST", m.url(LarklineID, "oauth/device_authorization"), form.Encode(), "Content-Type: text/plain"))
	}, "400 invalid_request", "200"},
	{"lax-form", func(m *faulty) string {
		body := `{"client_id":"` + m.issuer.url + `","scope":"` + scopeUpcoming + `"}`
		return verdict(m.call("POST", m.url(LarklineID, "oauth/device_authorization"), body, "Content-Type: application/json"))
	}, "400 invalid_request", "200"},
	{"lax-scope", posted("device_authorization", "scope", "no:such:scope"), "400 invalid_scope", "200"},
	{"lax-grant-type", posted("token", "grant_type", "password", "device_code", "x"), "400 unsupported_grant_type", "400 invalid_grant"},
	{"oauth-error-status", posted("token", "grant_type", "password"), "400 unsupported_grant_type", "500 unsupported_grant_type"},
	{"oauth-error-status=200", posted("token", "grant_type", "password"), "400 unsupported_grant_type", "200 unsupported_grant_type"},
	{"oauth-cacheable", func(m *faulty) string {
		return m.oauth("token", "grant_type", "password").header.Get("Cache-Control")
	}, "no-store", "max-age=300"},

	{"assertion-reuse", func(m *faulty) string {
		signedIn, err := m.person(0).LogIn(m.t.Context(), text(m.t, m.device(both), "verification_uri_complete"))
		if err != nil {
			m.t.Fatal(err)
		}
		return m.twice(signedIn, signedIn.Values)
	}, "200 400", "200 200"},
	{"session-reuse", func(m *faulty) string {
		device, consent := m.asking(both)
		for _, decision := range []string{"deny", "allow"} {
			if _, err := consent.Answer(m.t.Context(), decision, scopeRebook); err != nil {
				m.t.Fatal(err)
			}
		}
		return verdict(m.world.poll(device["device_code"]))
	}, "400 access_denied", "200"},
	{"consent-missing-scope", func(m *faulty) string {
		_, consent := m.asking(both)
		return fmt.Sprint(len(consent.Boxes), consent.Asks(scopeRebook))
	}, "2 true", "1 false"},
	{"lax-password", func(m *faulty) string {
		guess := m.person(0)
		guess.Password = "not the password"
		consent, err := guess.AllowAll(m.t.Context(), text(m.t, m.device(both), "verification_uri_complete"))
		return fmt.Sprint(consent.Approved, err == nil)
	}, "false false", "true true"},
	{"lax-consent", func(m *faulty) string {
		return m.answered(scopeUpcoming, "allow", scopeUpcoming, scopeCancel)
	}, "400", "approved " + scopeUpcoming + " " + scopeCancel},
	{"nothing-allowed", func(m *faulty) string { return m.answered(both, "allow") }, "denied", "approved " + both},
	{"grant-all", func(m *faulty) string { return m.answered(both, "allow", scopeRebook) }, "approved " + scopeRebook, "approved " + both},
	{"grant-less", func(m *faulty) string { return m.answered(both, "allow", scopeUpcoming, scopeRebook) }, "approved " + both, "approved " + scopeUpcoming},
	{"consent-skipped", func(m *faulty) string { return verdict(m.world.poll(m.device(both)["device_code"])) }, "400 authorization_pending", "200"},
	{"denied-pending", func(m *faulty) string { return m.decided("deny") }, "400 access_denied", "400 authorization_pending"},
	{"code-reuse", func(m *faulty) string {
		device, consent := m.asking(both)
		if _, err := consent.Answer(m.t.Context(), "allow", scopeRebook); err != nil {
			m.t.Fatal(err)
		}
		m.world.poll(device["device_code"])
		return verdict(m.world.poll(device["device_code"]))
	}, "400 invalid_grant", "200"},
	{"unknown-pending", func(m *faulty) string { return verdict(m.world.poll("dc_unknown")) }, "400 invalid_grant", "400 authorization_pending"},
	{"lax-code", func(m *faulty) string {
		return m.as("another", func() string { return m.decided("allow", scopeRebook) })
	}, "400 invalid_grant", "200"},
	{"code-immortal", (*faulty).latePoll, "600: 400 expired_token", "5: 400 authorization_pending"},
	{"code-immortal=7", (*faulty).latePoll, "600: 400 expired_token", "7: 400 authorization_pending"},
	{"grant-no-id", func(m *faulty) string { return fmt.Sprint(m.idOf(m.grant(0, both)) != "") }, "true", "false"},
	{"refresh-reuse", func(m *faulty) string {
		token := text(m.t, m.grant(0, both), "refresh_token")
		m.refreshed(token)
		return m.refreshed(token)
	}, "400 invalid_grant", "200"},
	{"lax-refresh", func(m *faulty) string { return m.refreshed("rt_unknown") }, "400 invalid_grant", "200"},
	{"lax-refresh-party", func(m *faulty) string {
		token := text(m.t, m.grant(0, both), "refresh_token")
		return m.as("another", func() string { return m.refreshed(token) })
	}, "400 invalid_grant", "200"},
	{"refresh-burn", func(m *faulty) string {
		token := text(m.t, m.grant(0, both), "refresh_token")
		return m.as("another", func() string { return m.refreshed(token) }) + ", then " + m.refreshed(token)
	}, "400 invalid_grant, then 200", "400 invalid_grant, then 400 invalid_grant"},
	{"refresh-grant", func(m *faulty) string {
		first := m.grant(0, both)
		next := m.oauth("token", "grant_type", grantRefresh, "refresh_token", text(m.t, first, "refresh_token")).json(m.t)
		return fmt.Sprint(m.idOf(next) == m.idOf(first))
	}, "true", "false"},

	{"lax-delegation", func(m *faulty) string { return m.delegatedBy(m.bent(m.access)) }, refused + `, error="invalid_token"`, "200"},
	{"delegation-challenge", func(m *faulty) string { return m.delegatedBy("x") }, refused + `, error="invalid_token"`, refused},
	{"lax-delegation-party", func(m *faulty) string {
		return m.as("another", func() string { return m.delegatedBy(m.access) })
	}, refused + `, error="invalid_token"`, "200"},
	{"lax-delegation-expired", (*faulty).lateTurn, "3600: " + refused + `, error="invalid_token"`, "5: 200"},
	{"lax-delegation-expired=7", (*faulty).lateTurn, "3600: " + refused + `, error="invalid_token"`, "7: 200"},
	{"lax-context-user", func(m *faulty) string {
		context, _ := m.reply(m.say(LarklineID, newUUID(), "", "hello", m.access))
		other := text(m.t, m.world.grant(1, both), "access_token")
		return verdict(m.say(LarklineID, newUUID(), context, "hello", other))
	}, "400 INVALID_PARAMS", "200"},

	{"scopes-unenforced", func(m *faulty) string { return m.answerKind("") }, "task", "You have"},
	{"scopes-unenforced", func(m *faulty) string {
		return m.answerKind(text(m.t, m.grant(0, scopeRebook), "access_token"))
	}, "task", "You have"},
	{"step-up-unknown", func(m *faulty) string {
		missing, _ := m.stepUpTask()
		return missing
	}, "[" + scopeUpcoming + "]", "[" + strangeScope + "]"},
	{"step-up-unknown=a:b", func(m *faulty) string {
		missing, _ := m.stepUpTask()
		return missing
	}, "[" + scopeUpcoming + "]", "[a:b]"},
	{"step-up-stale", func(m *faulty) string {
		_, one := m.stepUpTask()
		_, two := m.stepUpTask()
		return fmt.Sprint(one == two)
	}, "false", "true"},
}

// TestLaxFaults: each breaks the rule that it says, while it is on and as often as
// it is to; without it the rule holds.
func TestLaxFaults(t *testing.T) {
	for _, tc := range laxRows {
		t.Run(tc.spec, func(t *testing.T) {
			m := newFaulty(t)
			see := func(when, want string) {
				t.Helper()
				if got := tc.probe(m); got != want {
					t.Errorf("%s: %s, want %s", when, got, want)
				}
			}
			see("without it", tc.rule)
			m.on(tc.spec)
			see("with it", tc.broke)
			m.on()
			see("after it", tc.rule)
			m.on(tc.spec + "*1")
			see("once", tc.broke)
			if active := m.sandbox.faults.active(); len(active) != 0 {
				t.Errorf("still on: %q", active)
			}
			see("after once", tc.rule)
		})
	}
}

// A token that says more than the user allowed is good for it.
func TestWideTokensAreTaken(t *testing.T) {
	for _, spec := range []string{"grant-extra", "grant-scope", "refresh-wide"} {
		m := newFaulty(t)
		m.on(spec)
		given := m.grant(0, scopeRebook)
		if spec == "refresh-wide" {
			given = m.oauth("token", "grant_type", grantRefresh, "refresh_token", text(t, given, "refresh_token")).json(t)
		}
		if got := m.answerKind(text(t, given, "access_token")); got != "You have" {
			t.Errorf("%s: %s", spec, got)
		}
	}
}

func TestLaxFaultsHaveRows(t *testing.T) {
	for _, f := range laxFaults {
		if !slices.ContainsFunc(laxRows, func(row laxRow) bool {
			name, _, _ := strings.Cut(row.spec, "=")
			return name == f.Name
		}) {
			t.Errorf("%s has no row", f.Name)
		}
	}
}
