package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/jwks"
)

const fromToken = "PA-JWT"

var identityChecks = []check{
	{Check{ID: "auth-accepted", Requirement: "a good ES256 token is taken, also more than once", Source: fromToken}, insist(checkAuthAccepted)},
	{Check{ID: "auth-rs256", Requirement: "a good RS256 token is taken", Source: fromToken}, checkAuthRS256},
	{Check{ID: "auth-missing", Requirement: "without a token: 401", Source: fromToken}, checkAuthMissing},
	{Check{ID: "auth-malformed", Requirement: "what is no bearer JWT: 401", Source: fromToken}, checkAuthMalformed},
	{Check{ID: "auth-signature", Requirement: "a signature that does not verify: 401", Source: fromToken}, refused(signatureCases)},
	{Check{ID: "auth-algorithm", Requirement: "another algorithm than ES256 and RS256: 401", Source: fromToken}, refused(algorithmCases)},
	{Check{ID: "auth-kid", Requirement: "a kid that is not in the JWKS: 401", Source: fromToken}, refused(kidCases)},
	{Check{ID: "auth-audience", Requirement: "another aud than the one given out: 401", Source: fromToken}, refused(audienceCases)},
	{Check{ID: "auth-issuer", Requirement: "an iss that is not the issuer's exactly: 401", Source: fromToken}, refused(issuerCases)},
	{Check{ID: "auth-subject", Requirement: "a sub that is not of 1 to 256 characters: 401", Source: fromToken}, checkAuthSubject},
	{Check{ID: "auth-future", Requirement: "an iat more than 30 s ahead: 401", Source: fromToken}, refused(futureCases)},
	{Check{ID: "auth-expired", Requirement: "an exp more than 30 s ago: 401", Source: fromToken}, refused(expiredCases)},
	{Check{ID: "auth-lifetime", Requirement: "exp - iat over 300 s, or no exp or iat: 401", Source: fromToken}, checkAuthLifetime},
	{Check{ID: "auth-challenge", Requirement: "a 401 has exactly Bearer realm=\"a2a\", no A2A body", Source: fromToken}, checkAuthChallenge},
	{Check{ID: "auth-rotation", Requirement: "a key new in the JWKS is taken within 35 s", Source: fromToken}, checkAuthRotation},
}

// tasks asks GET tasks, which takes a PA-JWT and changes nothing.
func (r *run) tasks(ctx context.Context, c *card, token string) (*answer, error) {
	return r.do(ctx, call{method: http.MethodGet, url: c.interfaceURL + "/tasks", token: token})
}

// accepted is the first issuer, whose good tokens are taken: what needs that is not
// run otherwise.
func (r *run) accepted(ctx context.Context) (*issuer, error) { return r.acceptedIssuer(ctx, 0) }

// second is the other issuer.
func (r *run) second(ctx context.Context) (*issuer, error) {
	if _, err := r.accepted(ctx); err != nil {
		return nil, err
	}
	return r.acceptedIssuer(ctx, 1)
}

func (r *run) acceptedIssuer(ctx context.Context, n int) (*issuer, error) {
	if r.admitted[n] == nil {
		err := r.admit(ctx, n)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.admitted[n] = &err
	}
	switch err := *r.admitted[n]; {
	case err == nil:
		return r.issuers[n], nil
	case errors.Is(err, errNotRun):
		return nil, err
	case n == 0:
		return nil, notRun("the Provider takes no PA-JWT of the suite: see auth-accepted")
	default:
		return nil, notRun("the Provider takes no PA-JWT of a second issuer, %s", r.issuers[n].url)
	}
}

// admit finds out whether an issuer's good token is taken, and registers the issuer
// where it is not.
func (r *run) admit(ctx context.Context, n int) error {
	c, err := r.identity(ctx)
	if err != nil {
		return err
	}
	i := r.issuers[n]
	a, err := r.tasks(ctx, c, r.token(i))
	if err != nil || a.status == http.StatusOK {
		return err
	}
	if a.status == http.StatusUnauthorized {
		registered, rerr := r.register(ctx, c, i)
		if rerr != nil {
			return rerr
		}
		if registered {
			r.remark("%s had to register at %s first", i.url, platformsPath)
			if a, err = r.tasks(ctx, c, r.token(i)); err != nil {
				return err
			}
		}
	}
	if a.status == http.StatusOK {
		return nil
	}
	return fmt.Errorf("%w%s", a.not("200 for a good PA-JWT"), r.whyRefused(a, i))
}

// whyRefused guesses at why a good token is refused.
func (r *run) whyRefused(a *answer, i *issuer) string {
	if date, err := http.ParseTime(a.header.Get("Date")); err == nil {
		if off := date.Sub(r.now()); off.Abs() > maxSkew {
			return fmt.Sprintf("; its Date is %v off the time here", off)
		}
	}
	if i.timesRead() == 0 {
		return fmt.Sprintf("; it never read %s%s: perhaps it cannot reach it, or does not admit the issuer", i.url, jwks.WellKnownPath)
	}
	return "; it did read the issuer's keys: perhaps it gave out another audience (--audience)"
}

const platformsPath = "/api/platforms"

// register enters an issuer as the reference Provider has it; false if the Provider
// knows no such thing.
func (r *run) register(ctx context.Context, c *card, i *issuer) (bool, error) {
	u, err := url.Parse(c.interfaceURL)
	if err != nil || u.Host == "" {
		return false, nil
	}
	at := u.Scheme + "://" + u.Host + platformsPath
	body, err := json.Marshal(map[string]string{"name": "conformance-" + newID(), "jwksUri": i.url + jwks.WellKnownPath})
	if err != nil {
		return false, fmt.Errorf("conformance: %w", err)
	}
	a, err := r.do(ctx, call{
		method: http.MethodPost, url: at, contentType: "application/json", body: body,
		token: r.token(i, claim("sub", i.url), claim("aud", at)),
	})
	if err != nil {
		return false, err
	}
	return a.status == http.StatusOK || a.status == http.StatusCreated, nil
}
