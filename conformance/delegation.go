package conformance

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

var delegationChecks = []check{
	{Check{ID: "delegation-accepted", Requirement: "a turn with a good delegation token is answered", Source: fromDelegation}, checkDelegationAccepted},
	{Check{ID: "delegation-signature", Requirement: "a token of a wrong signature is 401 invalid_token", Source: fromDelegation}, checkDelegationSignature},
	{Check{ID: "delegation-foreign", Requirement: "a token is of no use to another issuer", Source: fromDelegation}, checkDelegationForeign},
	{Check{ID: "delegation-alone", Requirement: "a delegation token without a PA-JWT is 401", Source: fromDelegation}, checkDelegationAlone},
	{Check{ID: "delegation-user", Requirement: "a context of one brand user refuses another", Source: fromDelegation}, checkDelegationUser},
	{Check{ID: "delegation-expired", Requirement: "an expired token is 401 invalid_token", Source: fromDelegation, Slow: true}, checkDelegationExpired},
}

// delegatedSend sends a text under a grant, as the party that has it.
func (r *run) delegatedSend(ctx context.Context, c *card, g *grant, s say) (*answer, error) {
	s.token, s.delegation = r.tokenOf(g.party), g.Access
	return r.send(ctx, c, s)
}

// granted is the card with delegation and a grant of all its scopes.
func (r *run) granted(ctx context.Context) (*card, *grant, error) {
	c, err := r.delegated(ctx)
	if err != nil {
		return nil, nil, err
	}
	g, err := r.fullGrant(ctx)
	return c, g, err
}

func checkDelegationAccepted(ctx context.Context, r *run) error {
	c, g, err := r.granted(ctx)
	if err != nil {
		return err
	}
	a, err := r.delegatedSend(ctx, c, g, say{text: greeting})
	if err != nil {
		return err
	}
	_, err = a.reply()
	return err
}

func checkDelegationSignature(ctx context.Context, r *run) error {
	c, g, err := r.granted(ctx)
	if err != nil {
		return err
	}
	forged, err := forgeries(g.Access)
	if err != nil {
		return err
	}
	forged = append(forged, forgery{"a PA-JWT in its place", r.tokenOf(g.party)}, forgery{"no JWT at all", "conformance"})
	var f findings
	for _, bad := range forged {
		a, err := r.send(ctx, c, say{token: r.tokenOf(g.party), delegation: bad.token, text: greeting})
		if err == nil {
			err = a.challenges(challengeDelegation)
		}
		f.add(bad.what, err)
	}
	return f.err()
}

// forgery is a token that must not be taken.
type forgery struct{ what, token string }

// forgeries make bad tokens of a good one.
func forgeries(good string) ([]forgery, error) {
	parts := strings.Split(good, ".")
	if len(parts) != 3 {
		return nil, notRun("the access_token is not a JWT: see token-claims")
	}
	var head, claims map[string]any
	for i, into := range []*map[string]any{&head, &claims} {
		b, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(b, into) != nil {
			return nil, notRun("the access_token is not a JWT: see token-claims")
		}
	}
	stranger, err := newES256()
	if err != nil {
		return nil, err
	}
	unsigned := token{map[string]any{"alg": "none", "typ": "JWT"}, claims, func(string) []byte { return nil }}
	head["alg"] = string(stranger.alg)
	other := token{head, claims, stranger.sign}
	later := token{head, map[string]any{}, stranger.sign}
	for name, value := range claims {
		later.claims[name] = value
	}
	later.claims["exp"] = 1 << 33
	return []forgery{
		{"one bit of the signature changed", tampered(good)},
		{"signed by another key under the same kid", other.compact()},
		{"exp changed after the signature", strings.Join([]string{parts[0], strings.Split(later.compact(), ".")[1], parts[2]}, ".")},
		{"alg none", unsigned.compact()},
	}, nil
}

func checkDelegationForeign(ctx context.Context, r *run) error {
	other, err := r.second(ctx)
	if err != nil {
		return err
	}
	c, g, err := r.granted(ctx)
	if err != nil {
		return err
	}
	a, err := r.send(ctx, c, say{token: r.tokenOf(party{other, g.sub}), delegation: g.Access, text: greeting})
	if err != nil {
		return err
	}
	if err := a.unauthorized(); err != nil {
		return fmt.Errorf("with another issuer's PA-JWT: %w", err)
	}
	// client_id ties the token to the issuer. To the user ties it what the Provider
	// knows of the grant, and the protocol demands no such thing of it.
	if a, err = r.send(ctx, c, say{token: r.tokenOf(newParty(g.issuer)), delegation: g.Access, text: greeting}); err != nil {
		return err
	}
	if a.status == http.StatusOK {
		r.remark("another user of the same issuer can use the token too: no rule of the protocol forbids it, but a grant is one user's")
	}
	return nil
}

func checkDelegationAlone(ctx context.Context, r *run) error {
	c, g, err := r.granted(ctx)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"message": map[string]any{
		"messageId": newUUID(), "role": "ROLE_USER", "parts": []any{map[string]any{"text": greeting}},
	}})
	if err != nil {
		return fmt.Errorf("conformance: %w", err)
	}
	a, err := r.sendBody(ctx, c, "", g.Access, body)
	if err != nil {
		return err
	}
	return a.unauthorized()
}

func checkDelegationUser(ctx context.Context, r *run) error {
	if r.cfg.Other.Email == "" {
		return notRun("it needs a second user's login")
	}
	c, g, err := r.granted(ctx)
	if err != nil {
		return err
	}
	said := newUUID()
	a, err := r.delegatedSend(ctx, c, g, say{text: greeting, messageID: said})
	if err != nil {
		return err
	}
	first, err := a.reply()
	if err != nil {
		return lacking("there is no delegated turn", err)
	}
	other, err := r.obtain(ctx, c, g.party, r.cfg.Other, c.scopeIDs(), c.scopeIDs())
	if err != nil {
		return lacking("no grant of the second user was to be had", err)
	}
	if sameUser(g.Access, other.Access) {
		return notRun("both logins are the same user of the brand")
	}
	var f findings
	for _, t := range []struct {
		what string
		say  say
	}{
		{"another message", say{text: greeting, contextID: first.ContextID}},
		{"the message that was answered there", say{text: greeting, contextID: first.ContextID, messageID: said}},
	} {
		a, err := r.delegatedSend(ctx, c, other, t.say)
		if err == nil {
			err = a.refuses(invalidParams)
		}
		f.add(t.what, err)
	}
	return f.err()
}

// sameUser tells whether two delegation tokens are of the same sub, if they say so.
func sameUser(one, other string) bool {
	a, b := unverified(one), unverified(other)
	return a.Subject != "" && a.Subject == b.Subject
}

// unverified reads what a token says, without asking whether it may.
func unverified(compact string) (claims tokenClaims) {
	if parts := strings.Split(compact, "."); len(parts) == 3 {
		if b, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
			_ = json.Unmarshal(b, &claims) // what is there
		}
	}
	return claims
}

func checkDelegationExpired(ctx context.Context, r *run) error {
	c, p, err := r.agent(ctx)
	if err != nil {
		return err
	}
	g, err := r.obtain(ctx, c, p, r.cfg.Login, c.scopeIDs(), c.scopeIDs())
	if err != nil {
		return lacking("no grant was to be had", err)
	}
	expires := unverified(g.Access).Expires
	if expires == 0 {
		return notRun("the token has no exp: see token-claims")
	}
	if err := r.outlive(ctx, "the token", time.Unix(expires, 0).Add(maxSkew+time.Second)); err != nil {
		return err
	}
	a, err := r.delegatedSend(ctx, c, g, say{text: greeting})
	if err != nil {
		return err
	}
	return a.challenges(challengeDelegation)
}
