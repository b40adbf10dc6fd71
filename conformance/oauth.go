package conformance

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

var oauthChecks = []check{
	{Check{ID: "device-response", Requirement: "a sign-in starts with codes, links and times", Source: fromDelegation + ", step 1"}, insist(checkDeviceResponse)},
	{Check{ID: "oauth-auth", Requirement: "each OAuth call needs a PA-JWT, else 401", Source: fromDelegation}, checkOAuthAuth},
	{Check{ID: "oauth-client", Requirement: "client_id is the issuer, else 401 invalid_client", Source: fromDelegation}, checkOAuthClient},
	{Check{ID: "oauth-scope", Requirement: "a scope that is not on the card is invalid_scope", Source: fromDelegation + ", step 1"}, checkOAuthScope},
	{Check{ID: "oauth-grant-type", Requirement: "another grant type is unsupported_grant_type", Source: fromDelegation + ", step 4"}, checkOAuthGrantType},
	{Check{ID: "oauth-errors", Requirement: "errors are 400 and JSON with error", Source: fromDelegation}, checkOAuthErrors},
}

const (
	grantDevice  = "urn:ietf:params:oauth:grant-type:device_code"
	grantRefresh = "refresh_token"
)

// device is the answer to the start of a sign-in.
type device struct {
	party   party
	answer  *answer
	started time.Time

	Code      string `json:"device_code"`
	UserCode  string `json:"user_code"`
	URI       string `json:"verification_uri"`
	Complete  string `json:"verification_uri_complete"`
	ExpiresIn int64  `json:"expires_in"`
	Interval  *int64 `json:"interval"`
}

// requestDevice asks for a sign-in.
func (r *run) requestDevice(ctx context.Context, c *card, p party, scopes ...string) (*answer, error) {
	return r.callOAuth(ctx, c.deviceURL, r.tokenOf(p), url.Values{"client_id": {p.issuer.url}, "scope": {strings.Join(scopes, " ")}})
}

// callOAuth posts a form to an OAuth endpoint, unless that left the last ones without
// an answer.
func (r *run) callOAuth(ctx context.Context, address, token string, form url.Values) (*answer, error) {
	if r.silentAt[address] >= maxEndpointSilence {
		return nil, notRun("%s was not answered: see device-response and token-response", r.short(address))
	}
	before := r.silence
	a, err := r.form(ctx, address, token, form)
	if r.silentAt == nil {
		r.silentAt = map[string]int{}
	}
	if r.silence > before {
		r.silentAt[address]++
	} else {
		r.silentAt[address] = 0
	}
	return a, err
}

// startDevice starts a sign-in. What is wrong with the answer, beyond a code that can
// be polled with, is device-response's to tell.
func (r *run) startDevice(ctx context.Context, c *card, p party, scopes ...string) (*device, error) {
	a, err := r.requestDevice(ctx, c, p, scopes...)
	if err != nil {
		return nil, err
	}
	if err := a.wants(http.StatusOK); err != nil {
		return nil, err
	}
	d := &device{party: p, answer: a, started: r.now()}
	if err := a.object(d); err != nil {
		return nil, err
	}
	if d.Code == "" {
		return nil, a.not("200 with a device_code")
	}
	return d, nil
}

// begun is a sign-in of its own, for all scopes of the card.
func (r *run) begun(ctx context.Context) (*card, *device, error) {
	c, p, err := r.agent(ctx)
	if err != nil {
		return nil, nil, err
	}
	d, err := r.startDevice(ctx, c, p, c.scopeIDs()...)
	return c, d, lacking("no sign-in could be started", err)
}

// undecided is a code that no user decides about, made once.
func (r *run) undecided(ctx context.Context) (*card, *device, error) {
	if r.waiting == nil && r.waitingErr == nil {
		_, d, err := r.begun(ctx)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		r.waiting, r.waitingErr = d, err
	}
	if r.waitingErr != nil {
		return nil, nil, r.waitingErr
	}
	c, err := r.delegated(ctx)
	return c, r.waiting, err
}

func checkDeviceResponse(ctx context.Context, r *run) error {
	c, p, err := r.agent(ctx)
	if err != nil {
		return err
	}
	delete(r.silentAt, c.deviceURL) // it is about just that
	a, err := r.requestDevice(ctx, c, p, c.scopeIDs()...)
	if err != nil {
		return err
	}
	if err := a.wants(http.StatusOK); err != nil {
		return err
	}
	if err := r.judgeDevice(a.body); err != nil {
		return fmt.Errorf("%s: %w", a.asked, err)
	}
	return a.isJSON()
}

// judgeDevice looks at the start of a sign-in (RFC 8628 section 3.2).
func (r *run) judgeDevice(body []byte) error {
	m, err := readMembers(body)
	if err != nil {
		return err
	}
	m.text("device_code", true)
	m.text("user_code", true)
	for _, name := range []string{"verification_uri", "verification_uri_complete"} {
		// RFC 8628 section 3.2: the complete one may be left out.
		if u := m.text(name, name == "verification_uri"); u != "" {
			if reason := r.refuseURL(u); reason != "" {
				m.wrong(name, "%s", reason)
			}
		}
	}
	expires := m.integer("expires_in", true)
	if expires <= 0 && m.has("expires_in") {
		m.wrong("expires_in", "is not more than 0")
	}
	interval := int64(defaultInterval / time.Second)
	if m.has("interval") {
		if interval = m.integer("interval", false); interval <= 0 {
			m.wrong("interval", "is not more than 0")
		}
	}
	if expires > 0 && interval >= expires {
		m.wrong("interval", "is %d s, and the code lives %d s: nobody can poll in time", interval, expires)
	}
	return m.err()
}

// oauthCall is a good call of an OAuth endpoint.
type oauthCall struct {
	what string
	url  string
	as   party
	form url.Values
}

// oauthCalls are the calls that every OAuth rule is about: for a code that nobody
// decides, and for a refresh token if one is to be had.
func (r *run) oauthCalls(ctx context.Context) ([]oauthCall, error) {
	c, d, err := r.undecided(ctx)
	if err != nil {
		return nil, err
	}
	calls := []oauthCall{
		{"the start of a sign-in", c.deviceURL, d.party, url.Values{"scope": {c.scopes[0].ID}}},
		{"a poll", c.tokenURL, d.party, url.Values{"grant_type": {grantDevice}, "device_code": {d.Code}}},
	}
	g, err := r.refreshable(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		r.remark("a refresh was not tried: %v", err)
	default:
		calls = append(calls, oauthCall{"a refresh", c.refreshURL, g.grant.party, url.Values{"grant_type": {grantRefresh}, "refresh_token": {g.current}}})
	}
	for _, good := range calls {
		good.form.Set("client_id", good.as.issuer.url)
	}
	return calls, nil
}

// badly makes such a call that must be refused.
func (r *run) badly(ctx context.Context, bad oauthCall, token string) (*answer, error) {
	a, err := r.callOAuth(ctx, bad.url, token, bad.form)
	if err == nil && a.status == http.StatusOK && bad.form.Has("refresh_token") {
		r.rotating = nil // it is spent
	}
	return a, err
}

func checkOAuthAuth(ctx context.Context, r *run) error {
	calls, err := r.oauthCalls(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, call := range calls {
		for _, bad := range []struct{ what, token string }{
			{"without a PA-JWT", ""},
			{"with a PA-JWT of a wrong signature", tampered(r.tokenOf(call.as))},
		} {
			a, err := r.badly(ctx, call, bad.token)
			if err == nil {
				err = a.challenges(challengeIdentity)
			}
			f.add(call.what+" "+bad.what, err)
		}
	}
	return f.err()
}

func checkOAuthClient(ctx context.Context, r *run) error {
	calls, err := r.oauthCalls(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, call := range calls {
		call.form.Set("client_id", r.issuers[1].url)
		a, err := r.badly(ctx, call, r.tokenOf(call.as))
		if err == nil {
			err = a.oauth("invalid_client")
		}
		f.add(call.what+" with another issuer's client_id", err)
		call.form.Del("client_id")
		if a, err = r.badly(ctx, call, r.tokenOf(call.as)); err == nil {
			// RFC 6749 section 5.2 has a code of its own for a parameter that is missing.
			err = a.oauth("invalid_client", "invalid_request")
		}
		f.add(call.what+" without client_id", err)
	}
	return f.err()
}

// noScope is no scope of any card.
const noScope = "conformance:no-such-scope"

func checkOAuthScope(ctx context.Context, r *run) error {
	c, p, err := r.agent(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, bad := range []struct {
		what   string
		scopes []string
	}{
		{"an unknown scope", []string{noScope}},
		{"an unknown scope beside one of the card", []string{c.scopes[0].ID, noScope}},
	} {
		a, err := r.requestDevice(ctx, c, p, bad.scopes...)
		if err == nil {
			err = a.oauth("invalid_scope")
		}
		f.add(bad.what, err)
	}
	return f.err()
}

func checkOAuthGrantType(ctx context.Context, r *run) error {
	c, p, err := r.agent(ctx)
	if err != nil {
		return err
	}
	a, err := r.requestToken(ctx, c.tokenURL, p, url.Values{"grant_type": {"client_credentials"}})
	if err != nil {
		return err
	}
	return a.oauth("unsupported_grant_type")
}

func checkOAuthErrors(ctx context.Context, r *run) error {
	c, p, err := r.agent(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, bad := range []struct {
		what string
		ask  func() (*answer, error)
	}{
		{"an unknown scope", func() (*answer, error) { return r.requestDevice(ctx, c, p, noScope) }},
		{"another grant type", func() (*answer, error) {
			return r.requestToken(ctx, c.tokenURL, p, url.Values{"grant_type": {"client_credentials"}})
		}},
		{"an unknown device_code", func() (*answer, error) { return r.poll(ctx, c, p, unknownCode) }},
		{"an unknown refresh_token", func() (*answer, error) { return r.refresh(ctx, c, p, unknownCode) }},
	} {
		a, err := bad.ask()
		if err == nil {
			err = judgeOAuthError(a)
		}
		f.add(bad.what, err)
	}
	return f.err()
}

// judgeOAuthError looks at the form of an error (RFC 6749 section 5.2).
func judgeOAuthError(a *answer) error {
	m, err := readMembers(a.body)
	if err != nil {
		return fmt.Errorf("%s: %s: the body is %w", a.asked, a.summary(), err)
	}
	m.text("error", true)
	m.text("error_description", false)
	if err := m.err(); err != nil {
		return fmt.Errorf("%s: %s: %w", a.asked, a.summary(), err)
	}
	if code, _ := a.oauthCode(); a.status != oauthStatus(code) {
		return a.not(fmt.Sprintf("%d for %s", oauthStatus(code), clip(code)))
	}
	return a.isJSON()
}

// isJSON is nil if the answer says that it is JSON, as all of OAuth's do.
func (a *answer) isJSON() error {
	if t := a.mediaType(); t != "application/json" {
		return fmt.Errorf("%s: %d of %q: must be application/json", a.asked, a.status, clip(t))
	}
	return nil
}
