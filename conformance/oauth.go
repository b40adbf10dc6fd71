package conformance

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

var oauthChecks = []check{
	{Check{ID: "device-response", Requirement: "a sign-in starts with codes, links and times", Source: fromDelegation + ", step 1"}, checkDeviceResponse},
	{Check{ID: "oauth-auth", Requirement: "each OAuth call needs a PA-JWT, else 401", Source: fromDelegation}, checkOAuthAuth},
	{Check{ID: "oauth-client", Requirement: "client_id is the issuer, else 401 invalid_client", Source: fromDelegation}, checkOAuthClient},
	{Check{ID: "oauth-form", Requirement: "what is not form-encoded is refused", Source: fromDelegation}, checkOAuthForm},
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
	return r.oauthCall(ctx, c.deviceURL, r.tokenOf(p), url.Values{"client_id": {p.issuer.url}, "scope": {strings.Join(scopes, " ")}})
}

// oauthCall posts a form to an OAuth endpoint, unless that left the last ones without
// an answer.
func (r *run) oauthCall(ctx context.Context, address, token string, form url.Values) (*answer, error) {
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

// undecided is a code that no user decides about, made once.
func (r *run) undecided(ctx context.Context) (*card, *device, error) {
	c, p, err := r.agent(ctx)
	if err != nil {
		return nil, nil, err
	}
	if r.waiting == nil && r.waitingErr == nil {
		d, err := r.startDevice(ctx, c, p, c.scopeIDs()...)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		r.waiting, r.waitingErr = d, lacking("no sign-in could be started", err)
	}
	return c, r.waiting, r.waitingErr
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

// oauthCalls are the calls that every OAuth rule is about, as good ones but for the
// token and what a case changes.
func (d *device) oauthCalls(c *card) []struct {
	url  string
	form url.Values
} {
	return []struct {
		url  string
		form url.Values
	}{
		{c.deviceURL, url.Values{"client_id": {d.party.issuer.url}, "scope": {c.scopes[0].ID}}},
		{c.tokenURL, url.Values{"client_id": {d.party.issuer.url}, "grant_type": {grantDevice}, "device_code": {d.Code}}},
	}
}

func checkOAuthAuth(ctx context.Context, r *run) error {
	c, d, err := r.undecided(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, call := range d.oauthCalls(c) {
		for _, bad := range []struct{ what, token string }{
			{"without a PA-JWT", ""},
			{"with a PA-JWT of a wrong signature", tampered(r.tokenOf(d.party))},
		} {
			a, err := r.oauthCall(ctx, call.url, bad.token, call.form)
			if err == nil {
				err = a.challenges(challengeIdentity)
			}
			f.add(bad.what, err)
		}
	}
	return f.err()
}

func checkOAuthClient(ctx context.Context, r *run) error {
	c, d, err := r.undecided(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, call := range d.oauthCalls(c) {
		call.form.Set("client_id", r.issuers[1].url)
		a, err := r.oauthCall(ctx, call.url, r.tokenOf(d.party), call.form)
		if err == nil {
			err = a.oauth("invalid_client")
		}
		f.add("another issuer's client_id", err)
		call.form.Del("client_id")
		if a, err = r.oauthCall(ctx, call.url, r.tokenOf(d.party), call.form); err == nil {
			// RFC 6749 section 5.2 has a code of its own for a parameter that is missing.
			err = a.oauth("invalid_client", "invalid_request")
		}
		f.add("no client_id", err)
	}
	return f.err()
}

func checkOAuthForm(ctx context.Context, r *run) error {
	c, d, err := r.undecided(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, good := range d.oauthCalls(c) {
		members := map[string]string{}
		for name := range good.form {
			members[name] = good.form.Get(name)
		}
		body, err := json.Marshal(members)
		if err != nil {
			return fmt.Errorf("conformance: %w", err)
		}
		a, err := r.do(ctx, call{
			method: http.MethodPost, url: good.url, token: r.tokenOf(d.party), contentType: "application/json", body: body,
		})
		if err == nil {
			code, _ := a.oauthCode() // empty if there is none
			if a.status < 400 || a.status > 499 || code == "authorization_pending" || code == "slow_down" {
				err = a.not("invalid_request, for the body is not form-encoded")
			}
		}
		f.add("the parameters as JSON", err)
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
