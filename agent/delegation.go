package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/jwks"
)

// ReasonGrantRefused is the code of a delegation token that DA-11 refuses.
const ReasonGrantRefused = "grant_refused"

// ErrGrantRefused: the business granted something that is not what was asked;
// nothing of it is stored (DA-11).
var ErrGrantRefused = errors.New(ReasonGrantRefused)

// GrantRefusedError says what is wrong with a delegation token; it is
// ErrGrantRefused.
type GrantRefusedError struct{ Problems []Problem }

func (e *GrantRefusedError) Error() string { return problemText(e.Problems) }

// Is makes errors.Is(err, ErrGrantRefused) true.
func (e *GrantRefusedError) Is(target error) bool { return target == ErrGrantRefused }

// DelegationWant is what a delegation token must match.
type DelegationWant struct {
	Issuer       string // of the authorization server, from its metadata
	InterfaceURL string // as the card states it (UR-7)
	ClientID     string // the PA issuer
	Scope        string // the token response's scope, ids with spaces between
}

// Delegation is what a delegation token says, after DA-11.
type Delegation struct {
	Subject             string   // the user's id at the business
	GrantID             string   //
	Scopes              []string // sorted, each once
	IssuedAt, ExpiresAt time.Time
}

// CheckDelegationToken accepts a delegation token only if all of DA-11 holds,
// its signature under the authorization server's keys included. The error is a
// *GrantRefusedError, or wraps jwks.ErrUnavailable or the context's if the keys
// could not be had.
func CheckDelegationToken(ctx context.Context, compact string, want DelegationWant, keys KeyFinder, now time.Time) (Delegation, error) {
	r := &reader{reason: ReasonGrantRefused}
	jws, err := jwks.ParseCompact(compact, tokenAlgorithms...)
	if err != nil {
		r.add(r.reason, "", "%v", err)
		return Delegation{}, &GrantRefusedError{r.problems}
	}
	d := r.delegation(jws.Unverified(), want, now)
	if len(r.problems) > 0 {
		return Delegation{}, &GrantRefusedError{r.problems}
	}
	if keys == nil {
		return Delegation{}, fmt.Errorf("delegation token: no keys to verify it with: %w", jwks.ErrUnavailable)
	}
	key, err := keys.Key(ctx, jws.KeyID, jws.Algorithm)
	switch {
	case errors.Is(err, jwks.ErrUnknownKey):
		r.add(r.reason, "kid", "the authorization server has no such key")
		return Delegation{}, &GrantRefusedError{r.problems}
	case err != nil:
		return Delegation{}, fmt.Errorf("delegation token: %w", err)
	}
	if _, err := jws.Verify(key.Public); err != nil {
		r.add(r.reason, "", "the signature does not verify")
		return Delegation{}, &GrantRefusedError{r.problems}
	}
	return d, nil
}

func (r *reader) delegation(payload []byte, want DelegationWant, now time.Time) Delegation {
	o, err := parseObject(payload)
	if err != nil {
		r.add(r.reason, "", "the payload is %v", err)
		return Delegation{}
	}
	for _, c := range []struct{ name, want, what string }{
		{"iss", want.Issuer, "the authorization server's issuer"},
		{"aud", want.InterfaceURL, "the interface URL"},
		{"client_id", want.ClientID, "the personal agent's issuer"},
	} {
		if got := r.text(o, "", c.name, true); got != "" && got != c.want {
			r.add(r.reason, c.name, "is not %s", c.what)
		}
	}
	d := Delegation{
		Subject: r.text(o, "", "sub", true),
		GrantID: r.text(o, "", "grant_id", true),
		Scopes:  ScopeSet(r.text(o, "", "scope", false)),
	}
	if !slices.Equal(d.Scopes, ScopeSet(want.Scope)) {
		r.add(r.reason, "scope", "is not the set that the response states")
	}
	d.IssuedAt, d.ExpiresAt = r.lifetime(o, "", now, 0)
	return d
}

// ScopeSet splits an OAuth scope string into its ids, sorted, each once.
func ScopeSet(scope string) []string {
	ids := strings.Fields(scope)
	slices.Sort(ids)
	return slices.Compact(ids)
}
