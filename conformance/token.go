package conformance

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

var tokenChecks = []check{
	{Check{ID: "token-pending", Requirement: "before the user decides: authorization_pending", Source: fromDelegation + ", step 3"}, insist(checkTokenPending)},
	{Check{ID: "token-pace", Requirement: "a poll that waits as told is not slow_down", Source: fromDelegation + ", step 3"}, checkTokenPace},
	{Check{ID: "token-denied", Requirement: "after a no: access_denied", Source: fromDelegation + ", step 3"}, checkTokenDenied},
	{Check{ID: "token-response", Requirement: "tokens have type, life and scope, and no-store", Source: fromDelegation + ", step 3"}, insist(checkTokenResponse)},
	{Check{ID: "token-scope", Requirement: "scope is what the user granted", Source: fromDelegation + ", step 3"}, checkTokenScope},
	{Check{ID: "token-claims", Requirement: "the token's claims and signature are right", Source: fromDelegation}, checkTokenClaims},
	{Check{ID: "token-used", Requirement: "a used code is invalid_grant", Source: fromDelegation + ", step 3"}, checkTokenUsed},
	{Check{ID: "token-unknown", Requirement: "an unknown code is invalid_grant", Source: fromDelegation + ", step 3"}, checkTokenUnknown},
	{Check{ID: "token-foreign", Requirement: "a code is of no use to another issuer", Source: fromDelegation + ", step 3"}, checkTokenForeign},
	{Check{ID: "token-expired", Requirement: "after expires_in: expired_token", Source: fromDelegation + ", step 3", Slow: true}, checkTokenExpired},
}

// tokens are what the token endpoint gives, as far as it can be read.
type tokens struct {
	Type      string `json:"token_type"`
	Access    string `json:"access_token"`
	Refresh   string `json:"refresh_token"`
	ExpiresIn int64  `json:"expires_in"`
	Scope     string `json:"scope"`
}

// unknownCode is a code that no Provider gave out.
const unknownCode = "conformance-no-such-code"

const (
	defaultInterval = 5 * time.Second // RFC 8628 section 3.2
	slowDown        = 5 * time.Second // RFC 8628 section 3.5
	maxPolls        = 4
	// maxFruitless is how long may be waited for a code that stays undecided, before
	// what needs one is not run.
	maxFruitless = 10 * time.Second
)

// requestToken calls the token endpoint.
func (r *run) requestToken(ctx context.Context, at string, p party, form url.Values) (*answer, error) {
	form.Set("client_id", p.issuer.url)
	return r.callOAuth(ctx, at, r.tokenOf(p), form)
}

func (r *run) poll(ctx context.Context, c *card, p party, code string) (*answer, error) {
	return r.requestToken(ctx, c.tokenURL, p, url.Values{"grant_type": {grantDevice}, "device_code": {code}})
}

// pace is how long to wait between polls.
func (d *device) pace() time.Duration {
	if d.Interval == nil || *d.Interval <= 0 {
		return defaultInterval
	}
	return time.Duration(*d.Interval) * time.Second
}

// aLittle keeps a wait on the safe side of the Provider's clock.
const aLittle = 500 * time.Millisecond

// collect polls until the answer is more than to wait, a few times.
func (r *run) collect(ctx context.Context, c *card, d *device) (*answer, error) {
	return r.pollFor(ctx, c, d, "authorization_pending", "slow_down")
}

// collectOnce polls until it is not told to slow down: for when nothing may come.
func (r *run) collectOnce(ctx context.Context, c *card, d *device) (*answer, error) {
	return r.pollFor(ctx, c, d, "slow_down")
}

// pollFor polls as long as one of these errors comes, a few times, and after a second
// slow_down no more.
func (r *run) pollFor(ctx context.Context, c *card, d *device, until ...string) (*answer, error) {
	if r.fruitless >= maxFruitless {
		return nil, notRun("a code that was decided stays undecided, or is always polled too early: see token-pace and token-response")
	}
	wait, slowed := d.pace()+aLittle, false
	for polls := 1; ; polls++ {
		a, err := r.poll(ctx, c, d.party, d.Code)
		if err != nil {
			return nil, err
		}
		code, _ := a.oauthCode() // empty if there is none
		if !slices.Contains(until, code) {
			r.fruitless = 0
			return a, nil
		}
		slow := code == "slow_down"
		if polls == maxPolls || slow && slowed {
			return a, nil
		}
		if slowed = slow; slow {
			wait += slowDown
		}
		if err := r.sleep(ctx, wait); err != nil {
			return nil, err
		}
		r.fruitless += wait
	}
}

func checkTokenPending(ctx context.Context, r *run) error {
	c, d, err := r.begun(ctx)
	if err != nil {
		return err
	}
	a, err := r.collectOnce(ctx, c, d)
	if err != nil {
		return err
	}
	return a.oauth("authorization_pending")
}

func checkTokenPace(ctx context.Context, r *run) error {
	c, d, err := r.begun(ctx)
	if err != nil {
		return err
	}
	wait := d.pace() + aLittle
	slow := false
	for range 2 { // the second one is early
		a, err := r.poll(ctx, c, d.party, d.Code)
		if err == nil {
			err = a.oauth("authorization_pending", "slow_down")
		}
		if err != nil {
			return err
		}
		if code, _ := a.oauthCode(); code == "slow_down" {
			slow = true
			wait += slowDown
		}
	}
	if !slow {
		return nil // a Provider need not mind
	}
	if left := d.started.Add(time.Duration(d.ExpiresIn) * time.Second).Sub(r.cfg.Now()); left <= wait {
		return notRun("the code lives for %v more, and the next poll may come in %v", max(0, left).Round(time.Second), wait)
	}
	if err := r.sleep(ctx, wait); err != nil {
		return err
	}
	a, err := r.poll(ctx, c, d.party, d.Code)
	if err != nil {
		return err
	}
	if err := a.oauth("authorization_pending"); err != nil {
		return fmt.Errorf("after a wait of %v: %w", wait, err)
	}
	return nil
}

func checkTokenDenied(ctx context.Context, r *run) error {
	c, d, page, err := r.signedIn(ctx)
	if err != nil {
		return err
	}
	if err := r.press(ctx, page, "deny"); err != nil {
		return err
	}
	var f findings
	a, err := r.collect(ctx, c, d)
	if err == nil {
		err = a.oauth("access_denied")
	}
	f.add("deny", err)
	if c, d, page, err = r.signedIn(ctx); err != nil {
		return err
	}
	if err := r.press(ctx, page, "allow"); err != nil {
		return err
	}
	if a, err = r.collectOnce(ctx, c, d); err == nil && a.status == http.StatusOK {
		var t tokens
		if err = a.object(&t); err == nil && len(scopeSet(t.Scope)) > 0 {
			err = fmt.Errorf("%s: 200 with %s: must be access_denied, for nothing was granted", a.asked, listed(scopeSet(t.Scope)))
		}
	}
	f.add("allow with nothing ticked", err)
	return f.err()
}

func checkTokenResponse(ctx context.Context, r *run) error {
	c, d, page, err := r.signedIn(ctx)
	if err != nil {
		return err
	}
	if err := r.press(ctx, page, "allow", c.scopeIDs()...); err != nil {
		return err
	}
	delete(r.silentAt, c.tokenURL) // it is about just these
	r.fruitless = 0
	a, err := r.collect(ctx, c, d)
	if err != nil {
		return err
	}
	if err := a.wants(http.StatusOK); err != nil {
		return fmt.Errorf("after the user allowed it: %w", err)
	}
	if err := judgeTokens(a); err != nil {
		return err
	}
	if !strings.Contains(strings.ToLower(strings.Join(a.header.Values("Cache-Control"), ",")), "no-store") {
		return fmt.Errorf("%s: 200: it may be cached: must have Cache-Control: no-store (RFC 6749 section 5.1)", a.asked)
	}
	return nil
}

// judgeTokens looks at the answer that brings tokens.
func judgeTokens(a *answer) error {
	m, err := readMembers(a.body)
	if err != nil {
		return fmt.Errorf("%s: %w", a.asked, err)
	}
	// RFC 6749 section 7.1: without case.
	if kind := m.text("token_type", true); kind != "" && !strings.EqualFold(kind, "Bearer") {
		m.wrong("token_type", "is not Bearer")
	}
	m.text("access_token", true)
	if m.has("refresh_token") {
		m.text("refresh_token", true)
	}
	if n := m.integer("expires_in", true); n <= 0 && m.has("expires_in") {
		m.wrong("expires_in", "is not more than 0")
	}
	m.text("scope", true)
	if err := m.err(); err != nil {
		return fmt.Errorf("%s: 200: %w", a.asked, err)
	}
	return a.isJSON()
}

func checkTokenScope(ctx context.Context, r *run) error {
	c, p, err := r.agent(ctx)
	if err != nil {
		return err
	}
	all := c.scopeIDs()
	var f findings
	for _, ticked := range [][]string{all[:1], all} {
		p.sub = newParty(p.issuer).sub
		g, err := r.obtain(ctx, c, p, r.cfg.Login, all, ticked)
		if err != nil {
			return lacking("no grant was to be had", err)
		}
		if !sameSet(strings.Fields(g.Scope), ticked) {
			f.add("", fmt.Errorf("asked for %s, ticked %s: scope is %s, must be what was granted", listed(all), listed(ticked), listed(scopeSet(g.Scope))))
		}
		if len(all) == 1 {
			break
		}
	}
	return f.err()
}

func checkTokenClaims(ctx context.Context, r *run) error {
	g, err := r.fullGrant(ctx)
	if err != nil {
		return err
	}
	c, m, err := r.metadata(ctx)
	if err != nil {
		return err
	}
	if _, err = r.judgeToken(ctx, c, m, g.party, g.tokens); err != nil {
		return err
	}
	narrow, err := r.narrow(ctx)
	if err != nil {
		return err
	}
	if _, err := r.judgeToken(ctx, c, m, narrow.grant.party, narrow.grant.tokens); err != nil {
		return fmt.Errorf("asked for all, ticked %s: %w", listed(narrow.grant.ticked), err)
	}
	return nil
}

// tokenClaims are what a delegation token says.
type tokenClaims struct {
	Subject string `json:"sub"`
	GrantID string `json:"grant_id"`
	Scope   string `json:"scope"`
	Expires int64  `json:"exp"`
}

// judgeToken checks a delegation token against the answer that brought it.
func (r *run) judgeToken(ctx context.Context, c *card, m *metadata, p party, t tokens) (tokenClaims, error) {
	payload, err := r.verify(ctx, t.Access)
	if err != nil {
		return tokenClaims{}, fmt.Errorf("access_token: %w", err)
	}
	claims, err := judgeClaims(payload, tokenWant{m.Issuer, c.interfaceURL, p.issuer.url, t.Scope, r.now()})
	if err != nil {
		return tokenClaims{}, fmt.Errorf("access_token: %w", err)
	}
	return claims, nil
}

// tokenWant is what a delegation token must say.
type tokenWant struct {
	issuer, audience, client, scope string
	now                             time.Time
}

// maxSkew is what clocks may differ by.
const maxSkew = 30 * time.Second

func judgeClaims(payload []byte, want tokenWant) (tokenClaims, error) {
	m, err := readMembers(payload)
	if err != nil {
		return tokenClaims{}, fmt.Errorf("the payload is %w", err)
	}
	for _, claim := range []struct{ name, want, what string }{
		{"iss", want.issuer, "the metadata's issuer"},
		{"aud", want.audience, "the interface URL"},
		{"client_id", want.client, "the agent's issuer"},
	} {
		if got := m.text(claim.name, true); got != "" && got != claim.want {
			m.wrong(claim.name, "is not %s", claim.what)
		}
	}
	claims := tokenClaims{Subject: m.text("sub", true), GrantID: m.text("grant_id", true), Scope: m.text("scope", true)}
	if !sameSet(strings.Fields(claims.Scope), strings.Fields(want.scope)) {
		m.wrong("scope", "is %s, and the answer says %s", listed(scopeSet(claims.Scope)), listed(scopeSet(want.scope)))
	}
	issued, expires := m.integer("iat", true), m.integer("exp", true)
	if issued > want.now.Add(maxSkew).Unix() {
		m.wrong("iat", "is more than %v ahead", maxSkew)
	}
	if m.has("exp") && expires <= want.now.Add(-maxSkew).Unix() {
		m.wrong("exp", "is past")
	}
	claims.Expires = expires
	return claims, m.err()
}

func checkTokenUsed(ctx context.Context, r *run) error {
	c, p, err := r.agent(ctx)
	if err != nil {
		return err
	}
	// A grant of its own: a used code that comes again may end it (RFC 6749 section 4.1.2).
	g, err := r.obtain(ctx, c, p, r.cfg.Login, c.scopeIDs(), c.scopeIDs())
	if err != nil {
		return lacking("no grant was to be had", err)
	}
	a, err := r.poll(ctx, c, g.party, g.device.Code)
	if err != nil {
		return err
	}
	return a.oauth("invalid_grant")
}

func checkTokenUnknown(ctx context.Context, r *run) error {
	c, p, err := r.agent(ctx)
	if err != nil {
		return err
	}
	a, err := r.poll(ctx, c, p, unknownCode)
	if err != nil {
		return err
	}
	return a.oauth("invalid_grant")
}

func checkTokenForeign(ctx context.Context, r *run) error {
	other, err := r.second(ctx)
	if err != nil {
		return err
	}
	c, d, page, err := r.signedIn(ctx)
	if err != nil {
		return err
	}
	if err := r.press(ctx, page, "allow", c.scopeIDs()...); err != nil {
		return err
	}
	a, err := r.poll(ctx, c, party{other, d.party.sub}, d.Code)
	if err != nil {
		return err
	}
	if err := a.wants(http.StatusBadRequest, http.StatusUnauthorized); err != nil {
		return fmt.Errorf("another issuer's poll with the code: %w", err)
	}
	return nil
}

// maxLife is how long a slow check waits for a thing to expire.
const maxLife = 2 * time.Hour

// shortLife is how long anybody waits for that. It has room for the skew.
const shortLife = maxSkew + 30*time.Second

// outlive waits until a moment has passed.
func (r *run) outlive(ctx context.Context, what string, until time.Time) error {
	wait := until.Sub(r.cfg.Now())
	if !r.cfg.Slow && wait > shortLife {
		return notRun("%s lives for longer than %v, and slow checks were not asked for (--slow)", what, shortLife)
	}
	if wait > maxLife {
		return notRun("%s lives for %v, and the suite waits %v at most", what, wait.Round(time.Second), maxLife)
	}
	return r.cfg.Sleep(ctx, max(0, wait))
}

func checkTokenExpired(ctx context.Context, r *run) error {
	c, d, err := r.begun(ctx)
	if err != nil {
		return err
	}
	if d.ExpiresIn <= 0 {
		return notRun("the code has no expires_in: see device-response")
	}
	if err := r.outlive(ctx, "the code", d.started.Add(time.Duration(d.ExpiresIn)*time.Second+2*time.Second)); err != nil {
		return err
	}
	a, err := r.poll(ctx, c, d.party, d.Code)
	if err != nil {
		return err
	}
	return a.oauth("expired_token")
}
