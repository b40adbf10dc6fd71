package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// refreshOnce refreshes a grant's token (GR-5). Callers in this process share
// one; another process's is waited for by its lease. It returns nil also if
// somebody else did it: the caller reads the grant again.
func (a *Agent) refreshOnce(ctx context.Context, who *acting, b *business, old *grant) error {
	n, err := networkOf(ctx)
	if err != nil {
		return err
	}
	done := a.refreshing.DoChan(who.principal+"\x00"+old.ID+"\x00"+n.Name, func() (any, error) {
		// A spent refresh token must be followed up: one caller's leaving must not
		// lose the answer.
		return nil, a.refresh(context.WithoutCancel(ctx), who, b, old)
	})
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *Agent) refresh(ctx context.Context, who *acting, b *business, old *grant) error {
	grantID := old.ID
	owner := a.runtime + "/" + newID("refresh")
	for {
		mine, err := a.leaseRefresh(ctx, who.principal, grantID, owner)
		if err != nil || mine {
			if err != nil {
				return err
			}
			break
		}
		// Somebody else refreshes. The lease ends if they died.
		if err := a.wait(ctx, a.now().Add(a.params.RefreshCheck)); err != nil {
			return err
		}
		d, _, err := a.openGrant(ctx, who.principal, grantID)
		if err != nil {
			return err
		}
		if !d.grant.TokenExpires.Equal(old.TokenExpires) {
			return nil
		}
	}
	defer a.releaseRefresh(who.principal, grantID, owner)

	d, refreshToken, err := a.openGrant(ctx, who.principal, grantID)
	if err != nil {
		return err
	}
	if !d.grant.TokenExpires.Equal(old.TokenExpires) {
		return nil // the winner was here before us: its token is used, the spent one never sent again
	}
	if d.unchecked != nil { // its refresh token is spent: what it brought comes first
		return a.keepRefreshed(ctx, who, b, d, refreshToken)
	}
	// PO-7: policy and readiness count now, not when the send began.
	if err := a.availability(ctx, who.principal); err != nil {
		return err
	}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {refreshToken.Reveal()}}
	resp, err := a.oauth(ctx, who, b, egress.Token, b.Card.RefreshURL, form)
	if err != nil {
		if r := ReasonOf(err); r != "" {
			return err
		}
		return refuseErr(StatusFailed, ReasonReconnect, err)
	}
	if resp.Status != http.StatusOK {
		code := oauthError(resp.Body)
		if code == oauthInvalidGrant { // GR-6
			err := a.endGrantByID(ctx, who.principal, grantID, grantInvalid, ReasonRefreshRejected)
			return errors.Join(refuse(StatusNeedsUserAction, ReasonReconnect, "the business ended the permission: sign in again"), err)
		}
		return refuse(StatusFailed, ReasonReconnect, "the business does not renew the permission now (HTTP %d %s)", resp.Status, code)
	}
	if err := a.keepUnchecked(ctx, who, d, resp.Body); err != nil {
		return err
	}
	return a.keepRefreshed(ctx, who, b, d, refreshToken)
}

// keepUnchecked seals what a refresh brought before it is checked: the keys for
// that may not be to be had now, and the refresh token is spent.
func (a *Agent) keepUnchecked(ctx context.Context, who *acting, d *delegation, body []byte) error {
	d.unchecked = &uncheckedTokens{Response: body, Received: a.now()}
	return a.store.Update(ctx, func(tx Tx) error {
		g, err := get[grant](tx, who.principal, d.grant.ID)
		if err != nil {
			return err
		}
		if g.State != grantActive { // disconnected meanwhile: the tokens are not kept
			return refuse(StatusNeedsUserAction, ReasonReconnect, "the permission is %s: sign in again", g.State)
		}
		var s grantSecret
		if err := a.box.get(tx, g.ID, grantPurpose(g), &s); err != nil {
			return err
		}
		s.Unchecked = d.unchecked
		return a.box.put(tx, g.ID, grantPurpose(g), s)
	})
}

// keepRefreshed checks what a refresh brought (GR-7), as of when it came, and
// commits token and row together under the row's revision.
func (a *Agent) keepRefreshed(ctx context.Context, who *acting, b *business, d *delegation, refreshToken Secret) error {
	now := d.unchecked.Received
	t, err := readTokenResponse(d.unchecked.Response, d.grant.Scopes)
	var got Delegation
	if err == nil {
		want := DelegationWant{Issuer: b.Metadata.Issuer, InterfaceURL: b.Card.InterfaceURL, ClientID: who.id.Issuer, Scope: t.Scope}
		got, err = CheckDelegationToken(ctx, t.AccessToken.Reveal(), want, CacheKeys(a.keys, b.Metadata.JWKSURI), now)
	}
	reason := ReasonGrantRefused
	switch {
	case err != nil && !errors.Is(err, ErrGrantRefused): // no keys to check it with
		return refuseErr(StatusFailed, ReasonReconnect, err)
	case err != nil:
	case got.Subject != d.subject.Reveal() || got.GrantID != d.grant.GrantID:
		err = errors.New("the renewed token is of another account or grant")
	case !covers(d.grant.Scopes, got.Scopes):
		reason, err = ReasonRefreshWidened, errors.New("the renewed token has permissions that the owner did not grant")
	}
	if err != nil {
		// The old refresh token is spent, the new token is not to be had.
		end := a.endGrantByID(ctx, who.principal, d.grant.ID, grantInvalid, reason)
		return errors.Join(&Refusal{StatusNeedsUserAction, reason, "the renewed permission was refused: sign in again", err}, end)
	}
	if t.RefreshToken == "" {
		t.RefreshToken = refreshToken
	}
	return a.store.Update(ctx, func(tx Tx) error {
		g, err := get[grant](tx, who.principal, d.grant.ID)
		if err != nil {
			return err
		}
		if g.State != grantActive { // disconnected meanwhile: the token is not kept
			return refuse(StatusNeedsUserAction, ReasonReconnect, "the permission is %s: sign in again", g.State)
		}
		g.Scopes, g.TokenExpires = got.Scopes, t.expires(got, now)
		if err := a.box.put(tx, g.ID, grantPurpose(g), grantSecret{AccessToken: t.AccessToken.Reveal(), RefreshToken: t.RefreshToken.Reveal(), Subject: got.Subject}); err != nil {
			return err
		}
		return put(tx, g)
	})
}

// leaseRefresh takes the lease of a refresh, if nobody holds it.
func (a *Agent) leaseRefresh(ctx context.Context, principal, grantID, owner string) (mine bool, err error) {
	err = a.store.Update(ctx, func(tx Tx) error {
		g, err := get[grant](tx, principal, grantID)
		if err != nil || a.leased(&g.Head, owner) {
			return err
		}
		g.lease(owner, a.now().Add(a.params.RefreshLease))
		mine = true
		return put(tx, g)
	})
	if err != nil {
		return false, fmt.Errorf("refresh lease: %w", err)
	}
	return mine, nil
}

// releaseRefresh gives the lease back; if that fails it ends by itself.
func (a *Agent) releaseRefresh(principal, grantID, owner string) {
	_ = a.store.Update(context.Background(), func(tx Tx) error {
		g, err := get[grant](tx, principal, grantID)
		if err != nil || g.LeaseOwner != owner {
			return err
		}
		g.release()
		return put(tx, g)
	})
}
