package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	grantDeviceCode = "urn:ietf:params:oauth:grant-type:device_code" // RFC 8628 section 3.4
	grantRefresh    = "refresh_token"
)

// oauthError is an error response of RFC 6749 section 5.2.
type oauthError struct {
	Code        string `json:"error"`
	Description string `json:"error_description,omitempty"`
}

func oauthFail(code, about string) *oauthError { return &oauthError{code, about} }

// Error is for whoever returns the refusal as an error.
func (e *oauthError) Error() string { return e.Code + ": " + e.Description }

// failOAuth answers with the refusal that err is. What is none is our failure: it is
// logged, and the caller is told no more than that.
func (s *Sandbox) failOAuth(w http.ResponseWriter, err error) {
	var refusal *oauthError
	if errors.As(err, &refusal) && !errors.Is(err, errStore) {
		refusal.write(w)
		return
	}
	s.log.Error("request failed", "error", err)
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusInternalServerError, typeJSON, oauthFail("server_error", "Try again later"))
}

func (e *oauthError) write(w http.ResponseWriter) {
	status := http.StatusBadRequest
	if e.Code == "invalid_client" {
		status = http.StatusUnauthorized
	}
	if spoiled, ok := w.(*spoiledErrors); ok {
		status = spoiled.oauthStatus(status)
	}
	noStore(w)
	writeJSON(w, status, typeJSON, e)
}

// noStore forbids to keep an answer (RFC 6749 section 5.1).
func noStore(w http.ResponseWriter) {
	if spoiled, ok := w.(*spoiledErrors); ok && spoiled.hit("oauth-cacheable") {
		w.Header().Set("Cache-Control", "max-age=300")
		return
	}
	w.Header().Set("Cache-Control", "no-store")
}

// parseForm reads a form-encoded body. No parameter may come twice (RFC 6749
// section 3.2), unless broken says that a fault lets it.
func parseForm(contentType string, body []byte, broken func(fault string) bool) (url.Values, *oauthError) {
	if mediaType(contentType) != "application/x-www-form-urlencoded" {
		if !broken("lax-form") {
			return nil, oauthFail("invalid_request", "The body must be application/x-www-form-urlencoded")
		}
		var members map[string]string
		if json.Unmarshal(body, &members) == nil {
			form := url.Values{}
			for name, value := range members {
				form.Set(name, value)
			}
			return form, nil
		}
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, oauthFail("invalid_request", "The body is not well-formed")
	}
	for name, values := range form {
		if len(values) > 1 && !broken("lax-form") {
			return nil, oauthFail("invalid_request", "A parameter is repeated: "+printable(name))
		}
	}
	return form, nil
}

// printable keeps what an error_description may hold (RFC 6749 section 5.2).
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, s[:min(len(s), 40)])
}

// oauthForm reads the form of an authenticated OAuth call, and checks that the
// client is who it says.
func (s *Sandbox) oauthForm(w http.ResponseWriter, r *http.Request, who caller) (url.Values, *oauthError) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, oauthFail("invalid_request", "The body is too large or was cut off")
	}
	form, refusal := parseForm(r.Header.Get("Content-Type"), body, s.broken(r.Context()))
	if refusal == nil && form.Get("client_id") != who.issuer && !who.nobody() &&
		!(form.Get("grant_type") == grantRefresh && s.faults.hit(r.Context(), "lax-refresh-auth")) && !s.faults.hit(r.Context(), "lax-client") {
		refusal = oauthFail("invalid_client", "client_id must equal the personal-agent issuer")
	}
	return form, refusal
}

// authorizeDevice is the device authorization endpoint (RFC 8628 section 3.1).
func (s *Sandbox) authorizeDevice(w http.ResponseWriter, r *http.Request, b *business, who caller) {
	ctx := r.Context()
	form, refusal := s.oauthForm(w, r, who)
	if refusal != nil {
		refusal.write(w)
		return
	}
	scopes, ok := b.pick(strings.Fields(form.Get("scope")))
	if !ok && s.faults.hit(ctx, "lax-scope") {
		if ok = true; len(scopes) == 0 {
			scopes = b.scopeIDs()
		}
	}
	if !ok {
		oauthFail("invalid_scope", "Request scope ids listed on the Agent Card").write(w)
		return
	}
	if s.refuseSignIn(ctx, w) {
		return
	}
	if wait, _ := s.deviceLimit.take(limitKey(who), s.now()); wait > 0 {
		tooMany(w, wait)
		return
	}
	code := newSecret("dc_")
	interval, anyPace := s.faults.number(ctx, "device-interval")
	auth, err := s.store.authorize(ctx, authorization{device: hashOf(code), party: party{b.ID, who}, scopes: scopes, anyPace: anyPace}, s.now())
	if err != nil {
		s.failOAuth(w, err)
		return
	}
	if s.faults.hit(ctx, "consent-skipped") {
		if _, err := s.store.decide(ctx, b.ID, auth.userCode, s.accounts[0].id, scopes, s.now()); err != nil {
			s.failOAuth(w, err)
			return
		}
	}
	if !anyPace {
		interval = seconds(auth.interval)
	}
	answer := deviceAnswer{
		code, auth.userCode, s.signInLink(b, ""), s.signInLink(b, auth.userCode),
		max(1, int(s.params.DeviceCodeTTL/time.Second)), interval,
	}
	s.spoilDevice(ctx, &answer)
	noStore(w)
	writeJSON(w, http.StatusOK, typeJSON, answer)
}

// seconds rounds up, to at least one.
func seconds(d time.Duration) int { return max(1, int(math.Ceil(d.Seconds()))) }

// token is the token endpoint.
func (s *Sandbox) token(w http.ResponseWriter, r *http.Request, b *business, who caller) {
	ctx := r.Context()
	form, refusal := s.oauthForm(w, r, who)
	if refusal != nil {
		refusal.write(w)
		return
	}
	grantType := form.Get("grant_type")
	if grantType != grantDeviceCode && grantType != grantRefresh && s.faults.hit(ctx, "lax-grant-type") {
		grantType = grantDeviceCode
	}
	if s.refuseToken(ctx, w, grantType) {
		return
	}
	got, err := s.redeem(ctx, grantType, form, party{b.ID, who})
	if err != nil {
		s.failOAuth(w, err)
		return
	}
	answer, err := s.issue(ctx, b, got)
	if err != nil {
		s.failOAuth(w, err)
		return
	}
	noStore(w)
	writeJSON(w, http.StatusOK, typeJSON, answer)
}

// redeemed is what a device code or a refresh token gives.
type redeemed struct {
	grant
	at        time.Time
	scopes    []string // of the access token
	refreshed bool
	next      string // refresh token
}

// redeem takes a device code or a refresh token. Refusals are oauthErrors.
func (s *Sandbox) redeem(ctx context.Context, grantType string, form url.Values, p party) (got redeemed, err error) {
	got = redeemed{at: s.now(), next: newSecret("rt_")}
	switch grantType {
	case grantDeviceCode:
		code := form.Get("device_code")
		if code == "" {
			return redeemed{}, oauthFail("invalid_request", "device_code is missing")
		}
		got.grant, err = s.store.collect(ctx, hashOf(code), p, "a2agrant_"+newULID(got.at), hashOf(got.next), got.at)
	case grantRefresh:
		token := form.Get("refresh_token")
		if token == "" {
			return redeemed{}, oauthFail("invalid_request", "refresh_token is missing")
		}
		// A scope parameter may narrow what this access token is for (RFC 6749
		// section 6); the grant stays as it is.
		got.refreshed, got.scopes = true, strings.Fields(form.Get("scope"))
		nextHash := hashOf(got.next)
		if s.faults.hit(ctx, "refresh-keep") {
			got.next, nextHash = "", ""
		}
		got.grant, err = s.store.rotate(ctx, hashOf(token), p, nextHash, got.scopes, got.at)
	case "":
		return redeemed{}, oauthFail("invalid_request", "grant_type is missing")
	default:
		return redeemed{}, oauthFail("unsupported_grant_type", "Use a device code or a refresh token")
	}
	if len(got.scopes) == 0 {
		got.scopes = got.grant.scopes
	}
	return got, err
}

// tokenAnswer is what the token endpoint gives (RFC 6749 section 5.1).
type tokenAnswer struct {
	TokenType    string `json:"token_type"`
	AccessToken  string `json:"access_token"`
	RefreshToken string `json:"refresh_token,omitempty"`
	ExpiresIn    int64  `json:"expires_in"`
	Scope        string `json:"scope"`
}

// issue signs a delegation token, with what the faults make of it.
func (s *Sandbox) issue(ctx context.Context, b *business, got redeemed) (tokenAnswer, error) {
	scopes := s.spoilScopes(ctx, b, got.scopes, got.refreshed)
	if !containsAll(got.grant.scopes, scopes) { // or the brand would not take the token
		if err := s.store.regrant(ctx, got.id, scopes); err != nil {
			return tokenAnswer{}, err
		}
	}
	claims := b.tokenClaims(got.grant, scopes, got.at, s.tokenLife(ctx))
	s.spoilClaims(ctx, b, &claims, got.refreshed)
	key, err := s.signingKey(ctx, b)
	if err != nil {
		return tokenAnswer{}, fmt.Errorf("brand %s: no key: %w", b.ID, err)
	}
	access, err := signJSON(key.tokens, claims)
	if err != nil {
		return tokenAnswer{}, fmt.Errorf("brand %s: no delegation token: %w", b.ID, err)
	}
	return tokenAnswer{
		s.tokenType(ctx), s.spoilSignature(ctx, "grant-signature", access), got.next,
		claims.Expires - claims.IssuedAt, strings.Join(scopes, " "),
	}, nil
}
