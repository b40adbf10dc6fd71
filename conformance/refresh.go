package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

var refreshChecks = []check{
	{Check{ID: "refresh-works", Requirement: "a refresh brings a token of the same grant", Source: fromDelegation + ", step 4"}, insist(checkRefreshWorks)},
	{Check{ID: "refresh-rotates", Requirement: "a refresh brings a new refresh token", Source: fromDelegation + ", step 4"}, checkRefreshRotates},
	{Check{ID: "refresh-reused", Requirement: "a spent refresh token is invalid_grant", Source: fromDelegation + ", step 4"}, checkRefreshReused},
	{Check{ID: "refresh-unknown", Requirement: "an unknown refresh token is invalid_grant", Source: fromDelegation + ", step 4"}, checkRefreshUnknown},
	{Check{ID: "refresh-foreign", Requirement: "a refresh token is of no use to another issuer", Source: fromDelegation + ", step 4"}, checkRefreshForeign},
}

// rotating is a grant for the refresh checks alone, and its refresh token of now.
type rotating struct {
	card    *card
	grant   *grant
	current string
	err     error
}

func (r *run) refresh(ctx context.Context, c *card, p party, token string) (*answer, error) {
	return r.requestToken(ctx, c.refreshURL, p, url.Values{"grant_type": {grantRefresh}, "refresh_token": {token}})
}

// narrow is a grant of less than was asked for: of all scopes but the last, if the card
// has several.
func (r *run) narrow(ctx context.Context) (*rotating, error) {
	if r.rotating == nil {
		made := &rotating{}
		var p party
		if made.card, p, made.err = r.agent(ctx); made.err == nil {
			all := made.card.scopeIDs()
			if made.grant, made.err = r.obtain(ctx, made.card, p, r.cfg.Login, all, all[:max(1, len(all)-1)]); made.err == nil {
				made.current = made.grant.Refresh
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.rotating = made
	}
	if r.rotating.err != nil {
		return nil, lacking("no grant was to be had", r.rotating.err)
	}
	return r.rotating, nil
}

// refreshable is such a grant with a refresh token that is good.
func (r *run) refreshable(ctx context.Context) (*rotating, error) {
	g, err := r.narrow(ctx)
	if err == nil && g.grant.Refresh == "" {
		return nil, notRun("the Provider gives no refresh tokens, and need not")
	}
	return g, err
}

// rotate refreshes once. What was current is spent after it.
func (r *run) rotate(ctx context.Context, g *rotating) (tokens, *answer, error) {
	a, err := r.refresh(ctx, g.card, g.grant.party, g.current)
	if err != nil {
		return tokens{}, nil, err
	}
	var t tokens
	if a.status != http.StatusOK || a.object(&t) != nil || t.Access == "" {
		r.rotating = nil // of no more use
		return tokens{}, nil, a.not("200 with tokens, for the refresh token is good")
	}
	if t.Refresh != "" {
		g.current = t.Refresh
	}
	return t, a, nil
}

func checkRefreshWorks(ctx context.Context, r *run) error {
	g, err := r.refreshable(ctx)
	if err != nil {
		return err
	}
	c, m, err := r.metadata(ctx)
	if err != nil {
		return err
	}
	before, err := r.judgeToken(ctx, c, m, g.grant.party, g.grant.tokens)
	if err != nil {
		return notRun("the grant's first token is not as it must be: see token-claims")
	}
	t, a, err := r.rotate(ctx, g)
	if err != nil {
		return err
	}
	if judgeTokens(g.grant.answer) == nil { // else token-response says so
		if err := judgeTokens(a); err != nil {
			return err
		}
	}
	after, err := r.judgeToken(ctx, c, m, g.grant.party, t)
	if err != nil {
		return err
	}
	var f findings
	if after.GrantID != before.GrantID {
		f.add("", errors.New("grant_id of the refreshed token is another: must stay"))
	}
	if after.Subject != before.Subject {
		f.add("", errors.New("sub of the refreshed token is another: must stay"))
	}
	if more := beyond(scopeSet(t.Scope), scopeSet(g.grant.Scope)); len(more) > 0 {
		f.add("", fmt.Errorf("scope has %s, which the grant has not: may only be less", listed(more)))
	}
	return f.err()
}

func checkRefreshRotates(ctx context.Context, r *run) error {
	g, err := r.refreshable(ctx)
	if err != nil {
		return err
	}
	spent := g.current
	t, _, err := r.rotate(ctx, g)
	switch {
	case err != nil:
		return lacking("the grant could not be refreshed: see refresh-works", err)
	case t.Refresh == "":
		return errors.New("the refresh brings no refresh token: must rotate")
	case t.Refresh == spent:
		return errors.New("the refresh brings the same refresh token again: must rotate")
	}
	if _, _, err := r.rotate(ctx, g); err != nil {
		return fmt.Errorf("with the new refresh token: %w", err)
	}
	return nil
}

func checkRefreshReused(ctx context.Context, r *run) error {
	g, err := r.refreshable(ctx)
	if err != nil {
		return err
	}
	spent := g.current
	if _, _, err := r.rotate(ctx, g); err != nil {
		return lacking("the grant could not be refreshed", err)
	}
	r.rotating = nil // reuse may end the whole grant
	a, err := r.refresh(ctx, g.card, g.grant.party, spent)
	if err != nil {
		return err
	}
	return a.oauth("invalid_grant")
}

func checkRefreshUnknown(ctx context.Context, r *run) error {
	g, err := r.refreshable(ctx)
	if err != nil {
		return err
	}
	a, err := r.refresh(ctx, g.card, g.grant.party, unknownCode)
	if err != nil {
		return err
	}
	return a.oauth("invalid_grant")
}

func checkRefreshForeign(ctx context.Context, r *run) error {
	other, err := r.second(ctx)
	if err != nil {
		return err
	}
	g, err := r.refreshable(ctx)
	if err != nil {
		return err
	}
	r.rotating = nil // another's try may end it
	a, err := r.refresh(ctx, g.card, party{other, g.grant.sub}, g.current)
	if err != nil {
		return err
	}
	if err := a.wants(http.StatusBadRequest, http.StatusUnauthorized); err != nil {
		return fmt.Errorf("%w, for it is another issuer's", err)
	}
	if code, _ := a.oauthCode(); strings.TrimSpace(code) == "" && a.status == http.StatusBadRequest {
		return a.not("an OAuth error")
	}
	return nil
}
