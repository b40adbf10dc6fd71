package sandbox

import (
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"
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

func (e *oauthError) write(w http.ResponseWriter) {
	status := http.StatusBadRequest
	if e.Code == "invalid_client" {
		status = http.StatusUnauthorized
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, status, typeJSON, e)
}

// parseForm reads a form-encoded body. No parameter may come twice (RFC 6749
// section 3.2).
func parseForm(contentType string, body []byte) (url.Values, *oauthError) {
	if mediaType(contentType) != "application/x-www-form-urlencoded" {
		return nil, oauthFail("invalid_request", "The body must be application/x-www-form-urlencoded")
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, oauthFail("invalid_request", "The body is not well-formed")
	}
	for name, values := range form {
		if len(values) > 1 {
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
func oauthForm(w http.ResponseWriter, r *http.Request, who caller) (url.Values, *oauthError) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, oauthFail("invalid_request", "The body is too large or was cut off")
	}
	form, refusal := parseForm(r.Header.Get("Content-Type"), body)
	if refusal == nil && form.Get("client_id") != who.issuer {
		refusal = oauthFail("invalid_client", "client_id must equal the personal-agent issuer")
	}
	return form, refusal
}

// authorizeDevice is the device authorization endpoint (RFC 8628 section 3.1).
func (s *Sandbox) authorizeDevice(w http.ResponseWriter, r *http.Request, b *business, who caller) {
	form, refusal := oauthForm(w, r, who)
	if refusal != nil {
		refusal.write(w)
		return
	}
	scopes, ok := b.pick(strings.Fields(form.Get("scope")))
	if !ok {
		oauthFail("invalid_scope", "Request scope ids listed on the Agent Card").write(w)
		return
	}
	if s.refuseSignIn(w) {
		return
	}
	if wait, _ := s.deviceLimit.take(limitKey(who), s.now()); wait > 0 {
		tooMany(w, wait)
		return
	}
	code := newSecret("dc_")
	interval, anyPace := s.faults.number("device-interval")
	auth := s.store.authorize(authorization{device: hashOf(code), party: party{b.ID, who}, scopes: scopes, anyPace: anyPace}, s.now())
	if !anyPace {
		interval = seconds(auth.interval)
	}
	answer := deviceAnswer{
		code, auth.userCode, s.signInLink(b, ""), s.signInLink(b, auth.userCode),
		max(1, int(s.params.DeviceCodeTTL/time.Second)), interval,
	}
	s.spoilDevice(&answer)
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, typeJSON, answer)
}

// seconds rounds up, to at least one.
func seconds(d time.Duration) int { return max(1, int(math.Ceil(d.Seconds()))) }

// token is the token endpoint.
func (s *Sandbox) token(w http.ResponseWriter, r *http.Request, b *business, who caller) {
	form, refusal := oauthForm(w, r, who)
	if refusal != nil {
		refusal.write(w)
		return
	}
	if s.refuseToken(w, form.Get("grant_type")) {
		return
	}
	now, p, next := s.now(), party{b.ID, who}, newSecret("rt_")
	var g grant
	var scopes []string
	switch form.Get("grant_type") {
	case grantDeviceCode:
		if form.Get("device_code") == "" {
			refusal = oauthFail("invalid_request", "device_code is missing")
			break
		}
		g, refusal = s.store.collect(hashOf(form.Get("device_code")), p, "a2agrant_"+newULID(now), hashOf(next), now)
	case grantRefresh:
		if form.Get("refresh_token") == "" {
			refusal = oauthFail("invalid_request", "refresh_token is missing")
			break
		}
		// A scope parameter may narrow what this access token is for (RFC 6749
		// section 6); the grant stays as it is.
		scopes = strings.Fields(form.Get("scope"))
		nextHash := hashOf(next)
		if _, keep := s.faults.take("refresh-keep"); keep {
			next, nextHash = "", ""
		}
		g, refusal = s.store.rotate(hashOf(form.Get("refresh_token")), p, nextHash, scopes, now)
	case "":
		refusal = oauthFail("invalid_request", "grant_type is missing")
	default:
		refusal = oauthFail("unsupported_grant_type", "Use a device code or a refresh token")
	}
	if refusal != nil {
		refusal.write(w)
		return
	}
	if len(scopes) == 0 {
		scopes = g.scopes
	}
	scopes = s.spoilScopes(scopes, form.Get("grant_type") == grantRefresh)
	if form.Get("grant_type") == grantDeviceCode {
		s.store.regrant(g.id, scopes)
	}
	claims := b.tokenClaims(g, scopes, now, s.tokenLife())
	s.spoilClaims(&claims)
	access, err := signJSON(b.key.tokens, claims)
	if err != nil {
		s.log.Error("no delegation token", "brand", b.ID, "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, typeJSON, struct {
		TokenType    string `json:"token_type"`
		AccessToken  string `json:"access_token"`
		RefreshToken string `json:"refresh_token,omitempty"`
		ExpiresIn    int64  `json:"expires_in"`
		Scope        string `json:"scope"`
	}{"Bearer", s.spoilSignature("grant-signature", access), next, claims.Expires - claims.IssuedAt, strings.Join(scopes, " ")})
}
