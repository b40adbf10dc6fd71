package agent_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// business is an airline with delegation, by protocol.md; what it answers can be
// changed.
type business struct {
	t   *testing.T
	mu  sync.Mutex
	key key

	card, metadata map[string]any
	cardHeader     http.Header

	user        string
	device      map[string]any // the device response
	granted     []string       // nil: pending
	denied      bool
	polls       []func(w http.ResponseWriter) // answers before the normal one, in order
	tokenLife   time.Duration
	claims      func(map[string]any) // changes delegation tokens
	response    func(map[string]any) // changes token responses
	refreshed   int
	failRefresh int      // HTTP status instead of an answer
	refresh     string   // the refresh token that is good
	scopes      []string // of the grant
	noRefresh   bool     // refresh answers bring no new refresh token
	receipt     func(claims, envelope map[string]any)
	answer      func(t turn) (int, any) // nil: the normal one; a nil body drops the connection
	turns       []turn
	contexts    int
	tokens      map[string]bool // PA tokens seen
	singleUse   bool
	noKeys      bool          // the key set answers 503
	hold        chan struct{} // a message waits for it, if not nil
	revoked     []string
	deviceReqs  []url.Values
}

// turn is a message as the business got it.
type turn struct {
	id, context, text, token, delegation string
	scopes                               []string
	n                                    int
}

func newBusiness(t *testing.T) *business {
	b := &business{t: t, key: newKey(t), user: "cust-1", tokenLife: time.Hour, tokens: map[string]bool{}, cardHeader: http.Header{}}
	b.card = map[string]any{
		"name": "Air", "description": "Flights.", "version": "1",
		"supportedInterfaces": []any{map[string]any{"url": iface, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}},
		"capabilities":        map[string]any{"streaming": false, "pushNotifications": false, "extendedAgentCard": false},
		"securitySchemes": map[string]any{
			"pa": map[string]any{"httpAuthSecurityScheme": map[string]any{"scheme": "Bearer", "bearerFormat": "JWT"}},
			"user": map[string]any{"oauth2SecurityScheme": map[string]any{
				"oauth2MetadataUrl": oauthBase + "/metadata",
				"flows": map[string]any{"deviceCode": map[string]any{
					"deviceAuthorizationUrl": oauthBase + "/device", "tokenUrl": oauthBase + "/token",
					"scopes": map[string]any{"trips:read": "View your trips", "trips:cancel": "Cancel your trips", "trips:history": "View past trips"},
				}},
			}},
		},
		"securityRequirements": []any{
			map[string]any{"schemes": map[string]any{"pa": map[string]any{"list": []any{}}}},
			map[string]any{"schemes": map[string]any{"pa": map[string]any{"list": []any{}}, "user": map[string]any{"list": []any{}}}},
		},
		"defaultInputModes": []any{"text/plain"}, "defaultOutputModes": []any{"text/plain"},
		"skills": []any{map[string]any{"id": "trips", "name": "Trips", "description": "Your trips.", "tags": []any{"trip"}}},
	}
	b.metadata = map[string]any{
		"issuer": oauthBase, "device_authorization_endpoint": oauthBase + "/device",
		"token_endpoint": oauthBase + "/token", "jwks_uri": oauthBase + "/jwks",
	}
	b.device = map[string]any{
		"device_code": "dc_secret_device_code", "user_code": "ABCD-EFGH",
		"verification_uri":          "https://login.air.example.com/device",
		"verification_uri_complete": "https://login.air.example.com/device?user_code=ABCD-EFGH",
		"expires_in":                600, "interval": 5,
	}
	return b
}

// set changes the business.
func (b *business) set(f func(*business)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b)
}

// allow is the user's consent.
func (b *business) allow(scopes ...string) {
	b.set(func(b *business) { b.granted = nonNil(scopes) })
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func (b *business) sent() []turn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.turns)
}

func (b *business) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/a2a/air")
	switch path {
	case "/.well-known/agent-card.json":
		for k, v := range b.cardHeader {
			w.Header()[k] = v
		}
		respond(w, 200, b.card)
		return
	case "/oauth/metadata":
		respond(w, 200, b.metadata)
		return
	case "/oauth/jwks", "/oauth/keys":
		if b.noKeys {
			w.WriteHeader(503)
			return
		}
		respond(w, 200, string(b.key.set()))
		return
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || b.singleUse && b.tokens[token] {
		w.Header().Set("WWW-Authenticate", `Bearer realm="a2a"`)
		w.WriteHeader(401)
		return
	}
	b.tokens[token] = true
	switch path {
	case "/oauth/device":
		_ = r.ParseForm()
		b.deviceReqs = append(b.deviceReqs, r.PostForm)
		b.granted = nil
		respond(w, 200, b.device)
	case "/oauth/token":
		_ = r.ParseForm()
		if r.PostForm.Get("client_id") != signerURL {
			respond(w, 401, `{"error":"invalid_client"}`)
			return
		}
		b.token(w, r.PostForm)
	case "/oauth/revoke":
		_ = r.ParseForm()
		b.revoked = append(b.revoked, r.PostForm.Get("token_type_hint"))
		w.WriteHeader(200)
	case "/message:send":
		b.message(w, r, token)
	default:
		w.WriteHeader(404)
	}
}

func (b *business) token(w http.ResponseWriter, form url.Values) {
	oauthError := func(code string) { respond(w, 400, map[string]any{"error": code}) }
	switch form.Get("grant_type") {
	case "refresh_token":
		b.refreshed++
		if b.failRefresh != 0 {
			oauthAnswer(b.failRefresh, "server_error")(w)
			return
		}
		if form.Get("refresh_token") != b.refresh {
			oauthError("invalid_grant")
			return
		}
		b.issue(w, b.scopes)
	default:
		if len(b.polls) > 0 {
			next := b.polls[0]
			b.polls = b.polls[1:]
			next(w)
			return
		}
		switch {
		case b.denied:
			oauthError("access_denied")
		case b.granted == nil:
			oauthError("authorization_pending")
		default:
			b.scopes = b.granted
			b.issue(w, b.scopes)
		}
	}
}

func oauthAnswer(status int, code string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { respond(w, status, map[string]any{"error": code}) }
}

func (b *business) issue(w http.ResponseWriter, scopes []string) {
	claims := map[string]any{
		"iss": oauthBase, "aud": iface, "sub": b.user, "client_id": signerURL, "scope": strings.Join(scopes, " "),
		"grant_id": "g-1", "iat": time.Now().Unix(), "exp": time.Now().Add(b.tokenLife).Unix(),
	}
	if b.claims != nil {
		b.claims(claims)
	}
	resp := map[string]any{
		"token_type": "Bearer", "access_token": b.key.sign(claims),
		"expires_in": int(b.tokenLife.Seconds()), "scope": strings.Join(scopes, " "),
	}
	if !b.noRefresh {
		b.refresh = "rt_" + rand.Text()
		resp["refresh_token"] = b.refresh
	}
	if b.response != nil {
		b.response(resp)
	}
	respond(w, 200, resp)
}

func (b *business) message(w http.ResponseWriter, r *http.Request, token string) {
	var req struct {
		Message struct {
			ID      string `json:"messageId"`
			Context string `json:"contextId"`
			Parts   []struct {
				Text string `json:"text"`
			} `json:"parts"`
		} `json:"message"`
	}
	var body bytes.Buffer
	_, _ = body.ReadFrom(r.Body)
	if err := json.Unmarshal(body.Bytes(), &req); err != nil {
		b.t.Errorf("message: %v", err)
	}
	t := turn{
		id: req.Message.ID, context: req.Message.Context, text: req.Message.Parts[0].Text, token: token,
		delegation: strings.TrimPrefix(r.Header.Get("X-A2A-User-Delegation"), "Bearer "), n: len(b.turns),
	}
	if t.delegation != "" {
		var c struct {
			Scope string `json:"scope"`
		}
		payload, _ := base64.RawURLEncoding.DecodeString(strings.Split(t.delegation, ".")[1])
		_ = json.Unmarshal(payload, &c)
		t.scopes = strings.Fields(c.Scope)
	}
	b.turns = append(b.turns, t)
	if hold := b.hold; hold != nil {
		b.mu.Unlock()
		<-hold
		b.mu.Lock()
		panic(http.ErrAbortHandler)
	}
	if b.answer != nil {
		if status, v := b.answer(t); status != 0 {
			if v == nil {
				panic(http.ErrAbortHandler)
			}
			if h, ok := v.(http.Header); ok {
				for k, e := range h {
					w.Header()[k] = e
				}
				w.WriteHeader(status)
				return
			}
			respond(w, status, v)
			return
		}
	}
	respond(w, 200, b.normal(t))
}

// normal is a reply, with a receipt if the turn is delegated.
func (b *business) normal(t turn) map[string]any {
	ctx := t.context
	if ctx == "" {
		b.contexts++
		ctx = fmt.Sprintf("ctx-%d", b.contexts)
	}
	m := map[string]any{"messageId": rand.Text(), "contextId": ctx, "role": "ROLE_AGENT", "parts": []any{map[string]any{"text": "Answer to: " + t.text}}}
	if t.delegation != "" {
		claims := map[string]any{
			"grantId": "g-1", "user": b.user, "pa": signerURL, "brand": iface, "scopesUsed": t.scopes[:1],
			"actions": []any{map[string]any{"tool": "trips"}}, "ts": time.Now().UTC().Format(time.RFC3339Nano), "n": t.id,
		}
		delete(claims, "n")
		envelope := map[string]any{}
		if b.receipt != nil {
			b.receipt(claims, envelope)
		}
		if envelope["claims"] == nil {
			envelope["claims"] = claims
		}
		if envelope["jws"] == nil {
			envelope["jws"] = b.key.sign(claims)
		}
		if envelope["none"] == nil {
			m["metadata"] = map[string]any{"pact.receipt": envelope}
		}
	}
	return map[string]any{"message": m}
}

func header(name, value string) http.Header { return http.Header{name: {value}} }

// stepUp is a task that waits for consent.
func stepUp(ctx string, missing ...string) map[string]any {
	return map[string]any{"task": map[string]any{
		"id": "t-1", "contextId": ctx,
		"status":   map[string]any{"state": "TASK_STATE_AUTH_REQUIRED", "message": map[string]any{"role": "ROLE_AGENT", "parts": []any{map[string]any{"text": "Please sign in."}}}},
		"metadata": map[string]any{"pact.missingScopes": missing, "pact.verificationUriComplete": "https://evil.example.net/x"},
	}}
}

func a2aError(code int, reason, message string) map[string]any {
	return map[string]any{"error": map[string]any{"code": code, "status": "INVALID_ARGUMENT", "message": message,
		"details": []any{map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "a2a-protocol.org"}}}}
}
