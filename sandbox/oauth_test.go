package sandbox

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/jwks"
)

// keys are what the metadata's jwks_uri gives.
func (w *world) asKeys() jwks.Set {
	w.t.Helper()
	meta := w.do(http.MethodGet, w.url(LarklineID, "oauth/.well-known/oauth-authorization-server"), "").json(w.t)
	set, err := jwks.Parse(w.do(http.MethodGet, text(w.t, meta, "jwks_uri"), "").body)
	if err != nil {
		w.t.Fatal(err)
	}
	return set
}

// verified returns the payload and type of a JWS by the brand.
func (w *world) verified(compact string) ([]byte, string) {
	w.t.Helper()
	token, err := jwks.ParseCompact(compact, jose.ES256, jose.RS256)
	if err != nil {
		w.t.Fatal(err)
	}
	key, ok := w.asKeys().Find(token.KeyID, token.Algorithm)
	if !ok {
		w.t.Fatalf("kid %q is not in the brand's JWKS", token.KeyID)
	}
	payload, err := token.Verify(key.Public)
	if err != nil {
		w.t.Fatal(err)
	}
	return payload, token.Type
}

func TestDelegationTokenClaims(t *testing.T) {
	w := newWorld(t)
	resp := w.grant(0, scopeHistory+" "+scopeUpcoming)
	if resp["scope"] != scopeUpcoming+" "+scopeHistory || resp["expires_in"] != 3600.0 || resp["token_type"] != "Bearer" {
		t.Errorf("response %v", resp)
	}
	payload, typ := w.verified(text(t, resp, "access_token"))
	var c tokenClaims
	if err := json.Unmarshal(payload, &c, json.RejectUnknownMembers(true)); err != nil {
		t.Fatal(err)
	}
	now := w.clock.now().Unix()
	want := tokenClaims{
		ClientID: w.issuer.url, Scope: scopeUpcoming + " " + scopeHistory, GrantID: c.GrantID,
		Issuer: w.url(LarklineID, "oauth"), Audience: strings.TrimSuffix(w.url(LarklineID, ""), "/"),
		Subject: "lark-4471", IssuedAt: now, Expires: now + 3600,
	}
	if c != want || !strings.HasPrefix(c.GrantID, "a2agrant_") || typ != "at+jwt" {
		t.Errorf("%s %+v, want %+v", typ, c, want)
	}
}

func TestReceiptVerifies(t *testing.T) {
	w := newWorld(t)
	resp := w.grant(0, scopeUpcoming+" "+scopeRebook)
	var grantID string
	for _, tc := range []struct {
		text   string
		scopes []string
		tool   string
		hash   bool
	}{
		{"hello", []string{}, "", false},
		{"Show my upcoming flights", []string{scopeUpcoming}, "list_upcoming_trips", false},
		{"Rebook me onto LK 318", []string{scopeRebook}, "rebook_flight", true},
		{"Is LK 204 on time?", []string{}, "flight_status", true},
	} {
		t.Run(tc.text, func(t *testing.T) {
			w.t = t
			a := w.say(LarklineID, newUUID(), "", tc.text, text(t, resp, "access_token"))
			w.reply(a)
			var out struct {
				Message struct {
					Metadata struct {
						Receipt struct {
							JWS    string        `json:"jws"`
							Claims receiptClaims `json:"claims"`
						} `json:"pact.receipt"`
					} `json:"metadata"`
				} `json:"message"`
			}
			if err := json.Unmarshal(a.body, &out); err != nil {
				t.Fatal(err)
			}
			rec := out.Message.Metadata.Receipt
			payload, typ := w.verified(rec.JWS)
			if claims, err := json.Marshal(rec.Claims); err != nil || string(claims) != string(payload) {
				t.Errorf("payload %s, claims %s (%v)", payload, claims, err)
			}
			c := rec.Claims
			if typ != "pact-receipt+jws" || c.User != "lark-4471" || c.PA != w.issuer.url ||
				c.Brand+"/" != w.url(LarklineID, "") || c.Time != "2026-11-29T14:58:20.945Z" {
				t.Errorf("%s %+v", typ, c)
			}
			if grantID == "" {
				grantID = c.GrantID
			}
			if c.GrantID != grantID || !strings.HasPrefix(c.GrantID, "a2agrant_") {
				t.Errorf("grant %q, was %q", c.GrantID, grantID)
			}
			if strings.Join(c.ScopesUsed, " ") != strings.Join(tc.scopes, " ") || c.ScopesUsed == nil || c.Actions == nil {
				t.Errorf("scopes used %v, want %v", c.ScopesUsed, tc.scopes)
			}
			switch {
			case tc.tool == "" && len(c.Actions) > 0:
				t.Errorf("actions %v", c.Actions)
			case tc.tool != "" && (len(c.Actions) != 1 || c.Actions[0].Tool != tc.tool || (c.Actions[0].ArgsHash != "") != tc.hash):
				t.Errorf("actions %v, want %s", c.Actions, tc.tool)
			}
		})
	}
}

func TestDeviceRequestErrors(t *testing.T) {
	w := newWorld(t)
	endpoint := w.url(LarklineID, "oauth/device_authorization")
	id := url.QueryEscape(w.issuer.url)
	for _, tc := range []struct {
		name, body, contentType string
		status                  int
		code                    string
	}{
		{"no scope", "client_id=" + id, formType, 400, "invalid_scope"},
		{"empty scope", "scope=&client_id=" + id, formType, 400, "invalid_scope"},
		{"one too many", "scope=flights:cancel+nope&client_id=" + id, formType, 400, "invalid_scope"},
		{"no client", "scope=flights:cancel", formType, 401, "invalid_client"},
		{"another client", "scope=flights:cancel&client_id=https://x.example", formType, 401, "invalid_client"},
		{"client twice", "scope=flights:cancel&client_id=" + id + "&client_id=" + id, formType, 400, "invalid_request"},
		{"JSON", `{"client_id":"x"}`, "Content-Type: application/json", 400, "invalid_request"},
		{"bad escape", "scope=%zz", formType, 400, "invalid_request"},
		{"too large", "scope=" + strings.Repeat("a", maxBody), formType, 400, "invalid_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.t = t
			w.wantOAuthError(w.call(http.MethodPost, endpoint, tc.body, tc.contentType), tc.status, tc.code)
		})
	}
	w.t = t
	d := w.device(scopeCancel + " " + scopeCancel)
	if d["interval"] != 3.0 || d["expires_in"] != 600.0 || !strings.HasPrefix(text(t, d, "device_code"), "dc_") {
		t.Errorf("%v", d)
	}
	if code := text(t, d, "user_code"); parseUserCode(code) != code || len(code) != 9 {
		t.Errorf("user code %q", code)
	}
}

// TestDeviceCodeStates walks a device code through its life on an injected clock.
func TestDeviceCodeStates(t *testing.T) {
	w := newWorld(t)
	d := w.device(scopeUpcoming)
	link := text(t, d, "verification_uri_complete")
	pending := func(code string) {
		t.Helper()
		w.wantOAuthError(w.poll(d["device_code"]), 400, code)
	}
	pending("authorization_pending")
	w.clock.advance(3*time.Second - time.Millisecond)
	pending("slow_down") // from now on 8 s
	w.clock.advance(8*time.Second - time.Millisecond)
	pending("slow_down") // 13 s
	w.clock.advance(13 * time.Second)
	pending("authorization_pending")

	// Another user or issuer, or another brand's endpoint, has no use for the code.
	w.subject = "someone-else"
	pending("invalid_grant")
	w.subject = "user-7f3a"
	w.wantOAuthError(w.poll("dc_nope"), 400, "invalid_grant")
	w.wantOAuthError(w.oauth("token", "grant_type", grantDeviceCode), 400, "invalid_request")
	w.wantOAuthError(w.oauth("token", "device_code", "dc_nope"), 400, "invalid_request")
	w.wantOAuthError(w.oauth("token", "grant_type", "client_credentials"), 400, "unsupported_grant_type")
	w.wantOAuthError(w.oauth("token", "grant_type", "password", "client_id", "x"), 401, "invalid_client")

	if _, err := w.person(0).AllowAll(t.Context(), link); err != nil {
		t.Fatal(err)
	}
	if a := w.poll(d["device_code"]); a.status != 200 { // also at once: it is not pending
		t.Fatalf("%d %s", a.status, a.body)
	}
	pending("invalid_grant") // used

	d = w.device(scopeUpcoming)
	if c, err := w.person(0).Deny(t.Context(), text(t, d, "verification_uri_complete")); err != nil || c.Approved {
		t.Fatal(c, err)
	}
	pending("access_denied")
	pending("access_denied")

	d = w.device(scopeUpcoming)
	w.clock.advance(600*time.Second - time.Millisecond)
	pending("authorization_pending")
	w.clock.advance(time.Millisecond)
	pending("expired_token")
	if _, err := w.person(0).AllowAll(t.Context(), text(t, d, "verification_uri_complete")); err == nil {
		t.Error("consent to an expired request")
	}

	d = w.device(scopeUpcoming)
	if _, err := w.person(0).AllowAll(t.Context(), text(t, d, "verification_uri_complete")); err != nil {
		t.Fatal(err)
	}
	w.clock.advance(600 * time.Second)
	pending("expired_token") // approved, but nobody came
}

func TestOneCodeGivesOneGrant(t *testing.T) {
	w := newWorld(t)
	d := w.device(scopeUpcoming)
	if _, err := w.person(0).AllowAll(t.Context(), text(t, d, "verification_uri_complete")); err != nil {
		t.Fatal(err)
	}
	form := url.Values{"client_id": {w.issuer.url}, "grant_type": {grantDeviceCode}, "device_code": {text(t, d, "device_code")}}
	won := 0
	for _, a := range w.together(8, http.MethodPost, w.url(LarklineID, "oauth/token"), func(int) string { return form.Encode() },
		formType, "Authorization: Bearer "+w.token()) {
		if a.status == 200 {
			won++
		} else {
			w.wantOAuthError(a, 400, "invalid_grant")
		}
	}
	if won != 1 {
		t.Errorf("%d polls got a token", won)
	}
}

func TestRefreshRotatesAndReuseRevokes(t *testing.T) {
	w := newWorld(t)
	first := w.grant(0, scopeUpcoming+" "+scopeHistory)
	refresh := func(token any, extra ...string) answer {
		return w.oauth("token", append([]string{"grant_type", grantRefresh, "refresh_token", token.(string)}, extra...)...)
	}
	works := func(resp map[string]any) int {
		return w.say(LarklineID, newUUID(), "", "Show my upcoming flights", text(t, resp, "access_token")).status
	}
	w.wantOAuthError(refresh("rt_nope"), 400, "invalid_grant")
	w.wantOAuthError(w.oauth("token", "grant_type", grantRefresh), 400, "invalid_request")
	w.subject = "someone-else"
	w.wantOAuthError(refresh(first["refresh_token"]), 400, "invalid_grant")
	w.subject = "user-7f3a"
	w.wantOAuthError(refresh(first["refresh_token"], "scope", scopeCancel), 400, "invalid_scope")

	w.clock.advance(time.Hour)
	if got := works(first); got != 401 {
		t.Fatalf("an expired token: %d", got)
	}
	a := refresh(first["refresh_token"], "scope", scopeHistory)
	if a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	second := a.json(t)
	if second["scope"] != scopeHistory || second["refresh_token"] == first["refresh_token"] {
		t.Errorf("%v", second)
	}
	a = refresh(second["refresh_token"])
	third := a.json(t)
	if third["scope"] != scopeUpcoming+" "+scopeHistory || works(third) != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	w.wantOAuthError(refresh(first["refresh_token"]), 400, "invalid_grant")
	if got := works(third); got != 401 {
		t.Errorf("after the reuse its access token gives %d", got)
	}
	w.wantOAuthError(refresh(third["refresh_token"]), 400, "invalid_grant")
}

func TestGrantEndsAndTokensWithIt(t *testing.T) {
	w := newWorld(t)
	first := w.grant(0, scopeUpcoming)
	w.clock.advance(Defaults().GrantTTL - 10*time.Minute)
	a := w.oauth("token", "grant_type", grantRefresh, "refresh_token", text(t, first, "refresh_token"))
	if got := a.json(t)["expires_in"]; got != 600.0 {
		t.Errorf("expires_in %v near the end of the grant", got)
	}
	w.clock.advance(10 * time.Minute)
	next := text(t, a.json(t), "refresh_token")
	w.wantOAuthError(w.oauth("token", "grant_type", grantRefresh, "refresh_token", next), 400, "invalid_grant")
	w.grant(0, scopeUpcoming) // sweeps
	if n := w.sandbox.store.count(t, "grants"); n != 1 {
		t.Errorf("%d grants kept", n)
	}
	if n := w.sandbox.store.count(t, "refreshes"); n != 1 {
		t.Errorf("%d refresh tokens kept", n)
	}
}

func TestBadDelegationTokens(t *testing.T) {
	w := newWorld(t)
	good := text(t, w.grant(0, scopeUpcoming), "access_token")
	payload, _ := w.verified(good)
	var claims map[string]any
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	lark := w.sandbox.business(LarklineID)
	receiptTyped, err := signJSON(lark.key.receipts, claims)
	if err != nil {
		t.Fatal(err)
	}
	resign := func(change func(map[string]any), header map[jose.HeaderKey]any, b *business) string {
		if err := json.Unmarshal(payload, &claims); err != nil {
			t.Fatal(err)
		}
		change(claims)
		key := newKey(t, jose.ES256)
		if b != nil {
			compact, err := signJSON(b.key.tokens, claims)
			if err != nil {
				t.Fatal(err)
			}
			return compact
		}
		return sign(t, key, claims, header)
	}
	set := func(name string, v any) string {
		return resign(func(c map[string]any) { c[name] = v }, nil, lark)
	}
	parts := strings.Split(good, ".")
	for name, header := range map[string]string{
		"good":             "Bearer " + good,
		"same, resigned":   "Bearer " + resign(func(map[string]any) {}, nil, lark),
		"no scheme":        good,
		"empty":            "",
		"cut":              "Bearer " + parts[0] + "." + parts[1],
		"altered":          "Bearer " + parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{}`)) + "." + parts[2],
		"somebody's key":   "Bearer " + resign(func(map[string]any) {}, map[jose.HeaderKey]any{"typ": "at+jwt"}, nil),
		"a receipt":        "Bearer " + receiptTyped,
		"a PA-JWT":         "Bearer " + w.token(),
		"another brand":    "Bearer " + set("aud", w.url(MarrowID, "")),
		"another AS":       "Bearer " + set("iss", w.ready.Provider),
		"another client":   "Bearer " + set("client_id", "https://x.example"),
		"another user":     "Bearer " + set("sub", "lark-9000"),
		"another grant":    "Bearer " + set("grant_id", "a2agrant_x"),
		"expired":          "Bearer " + set("exp", w.clock.now().Unix()),
		"more scopes":      "Bearer " + set("scope", scopeUpcoming+" "+scopeCancel),
		"a claim mistyped": "Bearer " + set("scope", []string{scopeUpcoming}),
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			body := `{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"Show my upcoming flights"}]}}`
			a := w.call(http.MethodPost, w.url(LarklineID, "message:send"), body, "X-A2A-User-Delegation: "+header)
			if name == "good" || name == "same, resigned" {
				w.reply(a)
				return
			}
			if a.status != 401 || a.header.Get("WWW-Authenticate") != `Bearer realm="a2a", error="invalid_token"` || len(a.body) > 0 {
				t.Errorf("%d %v %s", a.status, a.header, a.body)
			}
		})
	}
	w.t = t
	if a := w.say(MarrowID, "m1", "", "hello", good); a.status != 401 {
		t.Errorf("at a brand without delegation: %d", a.status)
	}
	w.subject = "someone-else"
	if a := w.say(LarklineID, "m1", "", "hello", good); a.status != 401 {
		t.Errorf("in another user's hands: %d", a.status)
	}
}

func TestContextBelongsToOneUserOfTheBrand(t *testing.T) {
	w := newWorld(t)
	robin := text(t, w.grant(0, scopeUpcoming), "access_token")
	kim := text(t, w.grant(1, scopeUpcoming), "access_token")
	context, _ := w.reply(w.say(LarklineID, "m1", "", "hello", ""))
	w.reply(w.say(LarklineID, "m2", context, "Show my upcoming flights", robin))
	w.reply(w.say(LarklineID, "m3", context, "hello", "")) // undelegated may go on
	w.wantError(w.say(LarklineID, "m4", context, "Show my upcoming flights", kim), 400, "INVALID_PARAMS", "")
	w.wantError(w.say(LarklineID, "m2", context, "Show my upcoming flights", ""), 400, "INVALID_PARAMS", "")
	w.reply(w.say(LarklineID, "m2", context, "Show my upcoming flights", robin))
}

// TestStepUp: nothing runs without the scope, and after consent the message does.
func TestStepUp(t *testing.T) {
	w := newWorld(t)
	context, _ := w.reply(w.say(LarklineID, "m1", "", "hello", ""))
	read := text(t, w.grant(0, scopeUpcoming), "access_token")
	_, before := w.reply(w.say(LarklineID, "m2", context, "Show my upcoming flights", read))

	links := map[string]bool{}
	for range 2 { // the same message too: it was not answered, and the link is fresh
		a := w.say(LarklineID, "m3", context, "Cancel my next flight", read)
		task := dig(t, a.json(t), "task")
		if a.status != 200 || text(t, task, "status", "state") != "TASK_STATE_AUTH_REQUIRED" || text(t, task, "contextId") != context {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if text(t, task, "metadata", "pact.missingScopes", "0") != scopeCancel {
			t.Errorf("%v", task)
		}
		links[text(t, task, "metadata", "pact.verificationUriComplete")] = true
	}
	if len(links) != 2 {
		t.Errorf("links %v", links)
	}
	if _, still := w.reply(w.say(LarklineID, "m4", context, "Show my upcoming flights", read)); still != before {
		t.Errorf("something ran: %s", still)
	}
	cancel := text(t, w.grant(0, scopeUpcoming+" "+scopeCancel), "access_token")
	if _, said := w.reply(w.say(LarklineID, "m3", context, "Cancel my next flight", cancel)); !strings.HasPrefix(said, "Cancelled.") {
		t.Errorf("%s", said)
	}
	if _, now := w.reply(w.say(LarklineID, "m5", context, "Show my upcoming flights", read)); now == before || !strings.Contains(now, "cancelled") {
		t.Errorf("nothing changed: %s", now)
	}
}

// TestStepUpLinkIsCollected: consent behind a step-up's own link answers the next
// device request that asks for no more, once.
func TestStepUpLinkIsCollected(t *testing.T) {
	w := newWorld(t)
	a := w.say(LarklineID, "m1", "", "Show my past flights", "")
	link := text(t, a.json(t), "task", "metadata", "pact.verificationUriComplete")
	if c, err := w.person(0).AllowAll(t.Context(), link); err != nil || len(c.Asked) != 1 || c.Asked[0].Text != "View your past flights" {
		t.Fatal(c, err)
	}
	w.wantOAuthError(w.poll(w.device(scopeUpcoming)["device_code"]), 400, "authorization_pending")
	w.subject = "someone-else"
	w.wantOAuthError(w.poll(w.device(scopeHistory)["device_code"]), 400, "authorization_pending")
	w.subject = "user-7f3a"
	got := w.poll(w.device(scopeHistory)["device_code"])
	if got.status != 200 || got.json(t)["scope"] != scopeHistory {
		t.Fatalf("%d %s", got.status, got.body)
	}
	w.wantOAuthError(w.poll(w.device(scopeHistory)["device_code"]), 400, "authorization_pending")
}

func TestOldRequestsAreForgotten(t *testing.T) {
	w := newWorld(t)
	d := w.device(scopeUpcoming)
	w.clock.advance(2*Defaults().DeviceCodeTTL + time.Second)
	w.device(scopeUpcoming)
	w.wantOAuthError(w.poll(d["device_code"]), 400, "invalid_grant")
	if n := w.sandbox.store.count(t, "authorizations"); n != 1 {
		t.Errorf("%d requests kept", n)
	}
}
