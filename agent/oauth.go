package agent

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// The OAuth errors that the rules name (DA-5..DA-8, GR-6).
const (
	oauthPending      = "authorization_pending"
	oauthSlowDown     = "slow_down"
	oauthDenied       = "access_denied"
	oauthExpired      = "expired_token"
	oauthInvalidGrant = "invalid_grant"
	oauthInvalidScope = "invalid_scope"
)

const grantTypeDevice = "urn:ietf:params:oauth:grant-type:device_code"

// oauth posts a form to one of a business's OAuth endpoints. It carries a PA-JWT
// and the issuer as client_id; after a plain 401 it is tried once more with a
// fresh token, for nothing ran (SG-9). The provider must be ready at this time
// (PO-7).
func (a *Agent) oauth(ctx context.Context, who *acting, b *business, purpose egress.Purpose, endpoint string, form url.Values) (egress.Response, error) {
	return a.oauthIf(ctx, who, b, purpose, endpoint, form, func(context.Context) error { return nil })
}

// oauthIf is oauth that asks may as the last thing before each request: what is
// sent may be good for one use, and the tokens that go with it take their time.
func (a *Agent) oauthIf(ctx context.Context, who *acting, b *business, purpose egress.Purpose, endpoint string, form url.Values, may func(context.Context) error) (egress.Response, error) {
	audience, _, err := a.readyProvider(ctx, who, b.Card.Origin)
	if err != nil {
		return egress.Response{}, err
	}
	form.Set("client_id", who.id.Issuer)
	for fresh := false; ; fresh = true {
		token, reused, err := a.paToken(ctx, who, audience, fresh)
		if err != nil {
			return egress.Response{}, err
		}
		if err := may(ctx); err != nil {
			return egress.Response{}, err
		}
		resp, err := a.do(ctx, egress.Request{
			Purpose: purpose, Method: "POST", URL: endpoint,
			Header: http.Header{
				"Authorization": {"Bearer " + token.Reveal()},
				"Content-Type":  {"application/x-www-form-urlencoded"},
			},
			Body: []byte(form.Encode()),
		})
		if err != nil {
			return egress.Response{}, err
		}
		if resp.Status != http.StatusUnauthorized || oauthError(resp.Body) != "" {
			return resp, nil
		}
		a.tokenRefused(ctx, who, audience, reused)
		if fresh {
			return egress.Response{}, refuse(StatusBlocked, ReasonIdentityRejected, "%s does not accept our identity for audience %q", b.Card.Origin, audience)
		}
	}
}

// oauthError is the error code of an OAuth answer, short and redacted; empty if it
// has none.
func oauthError(body []byte) string {
	o, err := parseObject(body)
	if err != nil {
		return ""
	}
	return RedactText(truncate((&reader{}).text(o, "", "error", false), maxOAuthCode))
}

// seconds reads a whole or decimal number of seconds.
func (r *reader) seconds(o object, name string, required bool) (time.Duration, bool) {
	v, ok := r.member(o, "", name, required, '0', "a number of seconds")
	if !ok {
		return 0, false
	}
	var f float64
	if err := json.Unmarshal(v, &f); err != nil || f < 0 || math.IsNaN(f) {
		r.add(r.reason, name, "must be a number of seconds")
		return 0, false
	}
	return time.Duration(min(f, maxWait.Seconds()) * float64(time.Second)), true
}

// deviceResponse is the answer of the device authorization endpoint (RFC 8628
// section 3.2).
type deviceResponse struct {
	authorizationSecret
	ExpiresIn   time.Duration
	Interval    time.Duration
	HasInterval bool
}

// readDeviceResponse reads it; an empty required member is an error. The links
// are not judged here.
func readDeviceResponse(body []byte) (deviceResponse, error) {
	r := &reader{reason: ReasonConsentRejected}
	var d deviceResponse
	o, err := parseObject(body)
	if err != nil {
		return d, refuse(StatusFailed, ReasonConsentRejected, "the business's answer is %v", err)
	}
	d.DeviceCode = r.text(o, "", "device_code", true)
	d.UserCode = r.text(o, "", "user_code", true)
	d.VerificationURI = r.text(o, "", "verification_uri", true)
	d.VerificationURIComplete = r.text(o, "", "verification_uri_complete", false)
	for _, m := range []struct{ name, text string }{
		{"device_code", d.DeviceCode}, {"user_code", d.UserCode},
		{"verification_uri", d.VerificationURI}, {"verification_uri_complete", d.VerificationURIComplete},
	} {
		if len(m.text) > maxSignInText { // each is looked for in all that the business says
			r.add(r.reason, m.name, "has more than %d characters", maxSignInText)
		}
	}
	d.ExpiresIn, _ = r.seconds(o, "expires_in", true)
	d.Interval, d.HasInterval = r.seconds(o, "interval", false)
	if len(r.problems) > 0 {
		return d, refuse(StatusFailed, ReasonConsentRejected, "the business's answer cannot be used: %s", problemText(r.problems))
	}
	return d, nil
}

// tokenResponse is the answer of a token endpoint (RFC 6749 section 5.1).
type tokenResponse struct {
	AccessToken  Secret
	RefreshToken Secret
	ExpiresIn    time.Duration // 0: not given
	Scope        string
}

// readTokenResponse reads it. Without scope it is the one asked for (RFC 6749
// section 5.1). The error wraps ErrGrantRefused.
func readTokenResponse(body []byte, asked []string) (tokenResponse, error) {
	r := &reader{reason: ReasonGrantRefused}
	var t tokenResponse
	o, err := parseObject(body)
	if err != nil {
		r.add(r.reason, "", "the answer is %v", err)
		return t, &GrantRefusedError{r.problems}
	}
	if typ := r.text(o, "", "token_type", true); typ != "" && !strings.EqualFold(typ, "Bearer") {
		r.add(r.reason, "token_type", "must be Bearer")
	}
	t.AccessToken = Secret(r.text(o, "", "access_token", true))
	t.RefreshToken = Secret(r.text(o, "", "refresh_token", false))
	t.ExpiresIn, _ = r.seconds(o, "expires_in", false)
	t.Scope = strings.Join(asked, " ")
	if _, ok := o.get("scope"); ok {
		t.Scope = r.text(o, "", "scope", false)
	}
	if len(r.problems) > 0 {
		return t, &GrantRefusedError{r.problems}
	}
	return t, nil
}

// expires is when the token ends: by its own word, or by the response's if that
// is sooner.
func (t tokenResponse) expires(d Delegation, now time.Time) time.Time {
	if t.ExpiresIn > 0 {
		if at := now.Add(t.ExpiresIn); at.Before(d.ExpiresAt) {
			return at
		}
	}
	return d.ExpiresAt
}
