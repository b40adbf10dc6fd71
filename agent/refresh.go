package agent

import (
	"bytes"
	"cmp"
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
	result := make(chan error, 1)
	a.work.Go(func() { result <- (<-done).Err }) // Close waits for it
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// refresh refreshes, or waits for whoever does. The wait is bounded: one refresh
// takes less than its lease.
func (a *Agent) refresh(ctx context.Context, who *acting, b *business, old *grant) error {
	owner := a.runtime + "/" + newID("refresh")
	until := a.now().Add(2 * a.params.RefreshLease)
	for {
		err := a.tryRefresh(ctx, who, b, old, owner)
		if ReasonOf(err) != ReasonLeaseLost {
			return err
		}
		// Somebody else refreshes. The lease ends if they died.
		if !a.now().Before(until) {
			return refuse(StatusFailed, ReasonReconnect, "another program renews the permission and does not come to an end: try again later, or end that program")
		}
		if err := a.wait(ctx, a.now().Add(a.params.RefreshCheck)); err != nil {
			return err
		}
	}
}

// tryRefresh refreshes under the lease, if the grant still is as it was. It refuses
// with ReasonLeaseLost if somebody else has the lease.
func (a *Agent) tryRefresh(ctx context.Context, who *acting, b *business, old *grant, owner string) error {
	d, refreshToken, err := a.openGrant(ctx, who.principal, old.ID)
	if err != nil || !d.grant.TokenExpires.Equal(old.TokenExpires) {
		return err // the winner's token is used, the spent one never sent again
	}
	r := &refreshing{a: a, who: who, b: b, d: d, token: refreshToken, owner: owner}
	if err := r.maySpend(ctx); err != nil {
		return fmt.Errorf("refresh lease: %w", err)
	}
	defer r.release()
	// Whoever loses the lease sees so before each request; what one in flight brings
	// is taken all the same.
	return whileLeased(ctx, a.params.RefreshLease, r.renew, func(context.Context) error { return r.run(ctx) })
}

// refreshing is one refresh under its lease.
type refreshing struct {
	a     *Agent
	who   *acting
	b     *business
	d     *delegation // as it was when the lease was taken
	token Secret      // its refresh token
	owner string
}

func (r *refreshing) run(ctx context.Context) error {
	a := r.a
	if r.d.unchecked != nil { // its refresh token is spent: what it brought comes first
		return r.keep(ctx, r.d.unchecked)
	}
	// PO-7: policy and readiness count now, not when the send began.
	if err := a.availability(ctx, r.who.principal); err != nil {
		return err
	}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {r.token.Reveal()}}
	resp, err := a.oauthIf(ctx, r.who, r.b, egress.Token, r.b.Card.RefreshURL, form, r.maySpend)
	if err != nil {
		if reason := ReasonOf(err); reason != "" {
			return err
		}
		return refuseErr(StatusFailed, ReasonReconnect, err)
	}
	if resp.Status != http.StatusOK {
		code := oauthError(resp.Body)
		if code == oauthInvalidGrant && resp.Status < http.StatusInternalServerError { // GR-6
			return r.end(ctx, ReasonRefreshRejected, refuse(StatusNeedsUserAction, ReasonReconnect, "the business ended the permission: sign in again"))
		}
		return refuse(StatusFailed, ReasonReconnect, "the business does not renew the permission now (HTTP %d %s)", resp.Status, code)
	}
	if _, err := readTokenResponse(resp.Body, r.d.grant.Scopes); err != nil { // no word of the token endpoint's
		return refuse(StatusFailed, ReasonReconnect, "the business's answer to the renewal cannot be read")
	}
	unchecked, err := r.keepUnchecked(ctx, resp.Body)
	if err != nil {
		return err
	}
	return r.keep(ctx, unchecked)
}

// current reads the grant and its tokens, and refuses if they are not those that
// this refresh began with (GR-5).
func (r *refreshing) current(tx Tx) (*grant, grantSecret, error) {
	var s grantSecret
	g, err := get[grant](tx, r.who.principal, r.d.grant.ID)
	switch {
	case err != nil:
		return nil, s, err
	case g.State != grantActive: // disconnected meanwhile: no token is sent, or kept
		return nil, s, refuse(StatusNeedsUserAction, ReasonReconnect, "the permission is %s: sign in again", g.State)
	}
	if err := r.a.box.get(tx, g.ID, grantPurpose(g), &s); err != nil {
		return nil, s, err
	}
	if s.RefreshToken != r.token.Reveal() || !g.TokenExpires.Equal(r.d.grant.TokenExpires) || !r.d.unchecked.same(s.Unchecked) {
		return nil, s, refuse(StatusFailed, ReasonLeaseLost, "another program renewed the permission")
	}
	return g, s, nil
}

func (u *uncheckedTokens) same(v *uncheckedTokens) bool {
	return u == v || u != nil && v != nil && bytes.Equal(u.Response, v.Response)
}

// maySpend takes or renews the lease, if the refresh token may still be sent.
func (r *refreshing) maySpend(ctx context.Context) error {
	return r.a.store.Update(quietly(ctx), func(tx Tx) error {
		g, _, err := r.current(tx)
		if err != nil {
			return err
		}
		return r.lease(tx, g)
	})
}

// renew renews the lease, whatever the refresh has done to the grant by now.
func (r *refreshing) renew(ctx context.Context) error {
	return r.a.store.Update(quietly(ctx), func(tx Tx) error {
		g, err := get[grant](tx, r.who.principal, r.d.grant.ID)
		if err != nil {
			return err
		}
		return r.lease(tx, g)
	})
}

func (r *refreshing) lease(tx Tx, g *grant) error {
	if err := r.ours(g); err != nil {
		return err
	}
	g.lease(r.owner, r.a.now().Add(r.a.params.RefreshLease))
	return put(tx, g)
}

func (r *refreshing) ours(g *grant) error {
	if r.a.leased(&g.Head, r.owner) {
		return refuse(StatusFailed, ReasonLeaseLost, "another program renews the permission")
	}
	return nil
}

// release gives the lease back; if that fails it ends by itself.
func (r *refreshing) release() {
	_ = r.a.store.Update(quietly(context.Background()), func(tx Tx) error {
		g, err := get[grant](tx, r.who.principal, r.d.grant.ID)
		if err != nil || g.LeaseOwner != r.owner {
			return err
		}
		g.release()
		return put(tx, g)
	})
}

// end ends the grant because of cause, unless another program's refresh goes on or
// brought other tokens.
func (r *refreshing) end(ctx context.Context, reason Reason, cause error) error {
	err := r.a.store.Update(ctx, func(tx Tx) error {
		g, _, err := r.current(tx)
		if err != nil {
			return err
		}
		if err := r.ours(g); err != nil {
			return err
		}
		return endGrant(tx, g, grantInvalid, reason, r.a.now())
	})
	return cmp.Or(err, cause)
}

// keepUnchecked seals what a refresh brought before it is checked: the keys for
// that may not be to be had now, and the refresh token is spent.
func (r *refreshing) keepUnchecked(ctx context.Context, body []byte) (*uncheckedTokens, error) {
	unchecked := &uncheckedTokens{Response: body, Received: r.a.now()}
	err := r.a.store.Update(quietly(ctx), func(tx Tx) error {
		g, s, err := r.current(tx)
		if err != nil {
			return err
		}
		s.Unchecked = unchecked
		return r.a.box.put(tx, g.ID, grantPurpose(g), s)
	})
	r.d.unchecked = unchecked
	return unchecked, err
}

// keep checks what a refresh brought (GR-7), as of when it came, and commits token
// and row together, if they are as they were.
func (r *refreshing) keep(ctx context.Context, unchecked *uncheckedTokens) error {
	a, d, b, now := r.a, r.d, r.b, unchecked.Received
	t, err := readTokenResponse(unchecked.Response, d.grant.Scopes)
	var got Delegation
	if err == nil {
		want := DelegationWant{Issuer: b.Metadata.Issuer, InterfaceURL: b.Card.InterfaceURL, ClientID: r.who.id.Issuer, Scope: t.Scope}
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
		return r.end(ctx, reason, &Refusal{StatusNeedsUserAction, reason, "the renewed permission was refused: sign in again", err})
	}
	if t.RefreshToken == "" {
		t.RefreshToken = r.token
	}
	return a.store.Update(ctx, func(tx Tx) error {
		g, _, err := r.current(tx)
		if err != nil {
			return err
		}
		g.Scopes, g.TokenExpires = got.Scopes, t.expires(got, now)
		if err := a.box.put(tx, g.ID, grantPurpose(g), grantSecret{AccessToken: t.AccessToken.Reveal(), RefreshToken: t.RefreshToken.Reveal(), Subject: got.Subject}); err != nil {
			return err
		}
		return put(tx, g)
	})
}
