package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// grantPurpose is what a grant's secret is sealed for.
func grantPurpose(g *grant) string { return "grant\x00" + g.Principal + "\x00" + g.ID }

// endGrant takes a grant out of use and deletes its tokens (GR-11).
func endGrant(tx Tx, g *grant, state string, reason Reason, now time.Time) error {
	g.State, g.Reason, g.Ended = state, reason, now
	g.release()
	if err := put(tx, g); err != nil {
		return err
	}
	return tx.DeleteSecret(g.ID)
}

// endGrantsOf invalidates every active grant of a business (DI-6).
func endGrantsOf(tx Tx, principal, businessID string, reason Reason, now time.Time) error {
	grants, err := find[grant](tx, Query{Principal: principal, Business: businessID, States: []string{grantActive}})
	if err != nil {
		return err
	}
	for _, g := range grants {
		if err := endGrant(tx, g, grantInvalid, reason, now); err != nil {
			return err
		}
	}
	return nil
}

// endGrantByID ends a grant that is still active.
func (a *Agent) endGrantByID(ctx context.Context, principal, id, state string, reason Reason) error {
	return a.store.Update(ctx, func(tx Tx) error {
		g, err := get[grant](tx, principal, id)
		if err != nil || g.State != grantActive {
			return err
		}
		return endGrant(tx, g, state, reason, a.now())
	})
}

// activeGrants are the grants of GR-1's key that are in use, newest first. One
// whose 30 days are over is none, also before it is swept (GR-2).
func activeGrants(tx Tx, who *acting, b *business, now time.Time) ([]*grant, error) {
	all, err := find[grant](tx, Query{Principal: who.principal, Business: b.ID, States: []string{grantActive}})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(g *grant) bool {
		return g.Binding != who.binding.ID || g.InterfaceURL != b.Card.InterfaceURL || g.ASIssuer != b.Metadata.Issuer ||
			g.stateAt(now) != grantActive
	}), nil
}

// covering chooses the grant for a set of permissions (GR-3): the one with the
// fewest scopes, the newest of equals. account, if known, is the one that the
// context runs as: another's token would be refused there. nil: none covers.
func covering(grants []*grant, required []string, account string) *grant {
	var best *grant
	for _, g := range grants { // newest first
		if covers(g.Scopes, required) && (account == "" || g.Account == account) && (best == nil || len(g.Scopes) < len(best.Scopes)) {
			best = g
		}
	}
	return best
}

func covers(have, need []string) bool {
	return !slices.ContainsFunc(need, func(s string) bool { return !slices.Contains(have, s) })
}

// union is the sorted set of both.
func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

// storeGrant keeps a checked token as a new grant (GR-1, GR-10), and lets it
// supersede what it covers of the same account (GR-4).
func (a *Agent) storeGrant(tx Tx, who *acting, b *business, t tokenResponse, d Delegation, now time.Time) (*grant, error) {
	g := &grant{
		Head:         Head{ID: newID("grant"), Principal: who.principal, Business: b.ID, State: grantActive, Created: now},
		Binding:      who.binding.ID,
		InterfaceURL: b.Card.InterfaceURL,
		ASIssuer:     b.Metadata.Issuer,
		Account:      a.box.account(b.Metadata.Issuer, d.Subject),
		GrantID:      d.GrantID,
		Scopes:       d.Scopes,
		TokenExpires: t.expires(d, now),
		Expires:      now.Add(a.params.GrantLife),
	}
	secret := grantSecret{AccessToken: t.AccessToken.Reveal(), RefreshToken: t.RefreshToken.Reveal(), Subject: d.Subject}
	if err := a.box.put(tx, g.ID, grantPurpose(g), secret); err != nil {
		return nil, err
	}
	older, err := activeGrants(tx, who, b, now)
	if err != nil {
		return nil, err
	}
	for _, o := range older {
		if o.Account == g.Account && covers(g.Scopes, o.Scopes) {
			if err := endGrant(tx, o, grantSuperseded, ReasonNewerGrant, now); err != nil {
				return nil, err
			}
		}
	}
	return g, put(tx, g)
}

// delegation is a delegation token ready to be sent.
type delegation struct {
	grant   *grant
	token   Secret
	subject Secret // the user's id at the business

	unchecked *uncheckedTokens // of a refresh whose end is open; nil: none
}

// delegationFor is the token of a grant, refreshed if it is about to end (GR-5).
// If the refresh left the grant with other scopes, the caller covers anew (GR-7).
// Errors are *Refusal, the context's or of the store; nothing was sent to the
// business's agent.
func (a *Agent) delegationFor(ctx context.Context, c Caller, who *acting, b *business, grantID string) (*delegation, error) {
	// Twice if what an earlier refresh left unchecked has ended by now.
	for _, left := range []time.Duration{a.params.RefreshAt, 0} {
		d, refreshToken, err := a.openGrant(ctx, who.principal, grantID)
		if err != nil || d.grant.TokenExpires.Sub(a.now()) > left {
			return d, err
		}
		if refreshToken == "" {
			break
		}
		c.tell(Event{Kind: EventRefreshing, Business: b.Card.Name})
		if err := a.refreshOnce(ctx, who, b, d.grant); err != nil {
			return nil, err
		}
	}
	d, _, err := a.openGrant(ctx, who.principal, grantID)
	if err != nil {
		return nil, err
	}
	// Near the end of a grant a token may live less than RefreshAt from the start.
	if a.now().Before(d.grant.TokenExpires) {
		return d, nil
	}
	err = a.endGrantByID(ctx, who.principal, grantID, grantExpired, ReasonLapsed)
	return nil, cmp.Or(err, refuse(StatusNeedsUserAction, ReasonReconnect, "the permission has ended: sign in again"))
}

// openGrant reads an active grant and its tokens. A row without its secret is
// unusable (GR-6, GR-10).
func (a *Agent) openGrant(ctx context.Context, principal, id string) (*delegation, Secret, error) {
	var g *grant
	var s grantSecret
	err := a.store.View(ctx, func(tx Tx) (err error) {
		if g, err = get[grant](tx, principal, id); err != nil {
			return err
		}
		return a.box.get(tx, g.ID, grantPurpose(g), &s)
	})
	switch {
	case g != nil && g.stateAt(a.now()) != grantActive:
		return nil, "", refuse(StatusNeedsUserAction, ReasonReconnect, "the permission is %s: sign in again", g.stateAt(a.now()))
	case errors.Is(err, errSecretLost):
		err := a.endGrantByID(ctx, principal, id, grantInvalid, ReasonSecretMissing)
		return nil, "", cmp.Or(err, refuse(StatusNeedsUserAction, ReasonReconnect, "the permission's token is lost: sign in again"))
	case err != nil:
		return nil, "", fmt.Errorf("read the grant: %w", err)
	}
	return &delegation{g, Secret(s.AccessToken), Secret(s.Subject), s.Unchecked}, Secret(s.RefreshToken), nil
}

// GrantView is a grant as a surface shows it; it holds no token and not the
// account.
type GrantView struct {
	ID           string    `json:"id"`
	Business     string    `json:"business"`
	BusinessName string    `json:"businessName"` // untrusted
	InterfaceURL string    `json:"interfaceUrl"`
	State        string    `json:"state"`
	Reason       Reason    `json:"reason,omitzero"`
	Scopes       []string  `json:"scopes"`
	Created      time.Time `json:"created"`
	TokenExpires time.Time `json:"tokenExpires,omitzero"`
	Expires      time.Time `json:"expires"`
	Ended        time.Time `json:"ended,omitzero"`
	EndedBy      string    `json:"endedBy,omitzero"` // who disconnected it
}

func (a *Agent) grantView(g *grant, name string) GrantView {
	return GrantView{
		ID: g.ID, Business: g.Business, BusinessName: name, InterfaceURL: g.InterfaceURL,
		State: g.stateAt(a.now()), Reason: g.Reason, Scopes: nonNil(g.Scopes),
		Created: g.Created, TokenExpires: g.TokenExpires, Expires: g.Expires, Ended: g.Ended, EndedBy: g.EndedBy,
	}
}

// Grants lists a principal's grants, newest first; ended ones too.
func (a *Agent) Grants(ctx context.Context, c Caller) ([]GrantView, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	out := []GrantView{}
	err := a.store.View(ctx, func(tx Tx) error {
		grants, err := find[grant](tx, Query{Principal: c.Principal})
		if err != nil {
			return err
		}
		names := nameCache{}
		for _, g := range grants {
			out = append(out, a.grantView(g, names.of(tx, g.Principal, g.Business)))
		}
		return nil
	})
	return out, err
}

// nameCache reads the names of businesses once each.
type nameCache map[string]string

func (n nameCache) of(tx Tx, principal, id string) string {
	name, ok := n[id]
	if !ok {
		if b, err := get[business](tx, principal, id); err == nil {
			name = b.Card.Name
		}
		n[id] = name
	}
	return name
}

// DisconnectView says what a disconnect did (GR-9).
type DisconnectView struct {
	Grant GrantView `json:"grant"`
	// RevokedAtBusiness: the business confirmed that the tokens are dead. If not,
	// they may work there until they expire.
	RevokedAtBusiness bool   `json:"revokedAtBusiness"`
	Detail            string `json:"detail,omitzero"` // why not
}

// Disconnect deletes a grant's tokens here, and revokes them at the business if
// its metadata has an endpoint for it (GR-9; RFC 7009). It takes the owner, or a
// task that may act. Errors wrap ErrNotFound.
func (a *Agent) Disconnect(ctx context.Context, c Caller, grantID string) (DisconnectView, error) {
	if err := c.check(); err != nil {
		return DisconnectView{}, err
	}
	if err := c.mayAct("disconnect a permission"); err != nil { // AD-2, AD-4
		return DisconnectView{}, err
	}
	var g *grant
	var b *business
	var s grantSecret
	err := a.store.Update(withActor(ctx, c), func(tx Tx) (err error) {
		if g, err = get[grant](tx, c.Principal, grantID); err != nil {
			return err
		}
		if b, err = get[business](tx, c.Principal, g.Business); err != nil {
			return err
		}
		if g.State != grantActive {
			return nil
		}
		if err := a.box.get(tx, g.ID, grantPurpose(g), &s); err != nil && !errors.Is(err, errSecretLost) {
			return err
		}
		g.EndedBy = c.actor()
		return endGrant(tx, g, grantDisconnected, ReasonOwnerEnded, a.now())
	})
	if err != nil {
		return DisconnectView{}, fmt.Errorf("disconnect %s: %w", grantID, err)
	}
	v := DisconnectView{Grant: a.grantView(g, b.Card.Name)}
	switch {
	case s.AccessToken == "":
		v.Detail = "there was no token left to revoke"
	case b.Metadata.RevocationEndpoint == "":
		v.Detail = "the business has no way to revoke it: the token works there until it expires"
	default:
		if s.Unchecked != nil { // these are in force at the business
			if t, err := readTokenResponse(s.Unchecked.Response, nil); err == nil {
				s.AccessToken, s.RefreshToken = t.AccessToken.Reveal(), or(t.RefreshToken.Reveal(), s.RefreshToken)
			}
		}
		if err := a.revoke(ctx, c, b, s); err != nil {
			v.Detail = "the business did not confirm that it revoked it: " + RedactText(err.Error())
		} else {
			v.RevokedAtBusiness = true
		}
	}
	return v, nil
}

// revoke revokes the refresh token, then the access token.
func (a *Agent) revoke(ctx context.Context, c Caller, b *business, s grantSecret) error {
	ctx = withNetwork(ctx, c)
	who, err := a.identified(ctx, c.Principal, false)
	if err != nil {
		return err
	}
	for _, t := range []struct{ hint, token string }{{"refresh_token", s.RefreshToken}, {"access_token", s.AccessToken}} {
		if t.token == "" {
			continue
		}
		form := url.Values{"token": {t.token}, "token_type_hint": {t.hint}}
		resp, err := a.oauth(ctx, who, b, egress.Token, b.Metadata.RevocationEndpoint, form)
		if err != nil {
			return err
		}
		if resp.Status != http.StatusOK {
			return fmt.Errorf("the business answers HTTP %d", resp.Status)
		}
	}
	return nil
}
