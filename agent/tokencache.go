package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// tokenCache holds PA-JWTs by identity, audience and network profile (SG-7).
type tokenCache struct {
	mu         sync.Mutex
	generation uint64 // moved by clear: what was fetched before is not kept
	tokens     map[string]cachedToken
	singleUse  map[string]bool // audiences whose providers refuse a second use (SG-9)
	flight     *singleflight.Group
}

type cachedToken struct {
	token   PAToken
	fetched time.Time
}

func (c *tokenCache) init() {
	c.tokens, c.singleUse, c.flight = map[string]cachedToken{}, map[string]bool{}, new(singleflight.Group)
}

// clear drops all tokens (SG-8), those in flight too.
func (c *tokenCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	clear(c.tokens)
	c.flight = new(singleflight.Group)
}

// oneUse records that a provider refused a cached token (SG-9).
func (c *tokenCache) oneUse(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.singleUse[key] = true
	delete(c.tokens, key)
}

// get returns a token and whether it was used before. Concurrent callers share
// one sign; fresh asks for one of the caller's own.
func (c *tokenCache) get(ctx context.Context, p Params, now func() time.Time, key string, fresh bool, sign func(context.Context) (PAToken, error)) (token PAToken, reused bool, err error) {
	c.mu.Lock()
	if fresh || c.singleUse[key] {
		c.mu.Unlock()
		token, err = sign(ctx)
		return token, false, err
	}
	at := now()
	if t, ok := c.tokens[key]; ok && at.Sub(t.fetched) < p.TokenReuse && t.token.ExpiresAt.Sub(at) > p.TokenReserve && !at.Before(t.fetched) {
		c.mu.Unlock()
		return t.token, true, nil
	}
	flight, generation := c.flight, c.generation
	c.mu.Unlock()

	done := flight.DoChan(key, func() (any, error) {
		// One caller that leaves takes nothing from the others.
		fetched := now()
		token, err := sign(context.WithoutCancel(ctx))
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.generation == generation {
			c.tokens[key] = cachedToken{token, fetched}
		}
		return token, nil
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return PAToken{}, false, r.Err
		}
		return r.Val.(PAToken), r.Shared, nil
	case <-ctx.Done():
		return PAToken{}, false, context.Cause(ctx)
	}
}

// statusCache keeps the last good status of a signer, by identity and network
// profile (SG-10).
type statusCache struct {
	mu     sync.Mutex
	of     map[string]cachedStatus
	anew   map[string]time.Time // when it was last asked for a refusal's sake
	flight singleflight.Group
}

type cachedStatus struct {
	status  signerStatus
	fetched time.Time
}

func (c *statusCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of = nil
}

// askAnewEvery is how often at most a signer is asked anew in a StatusTTL for refusals
// that go by what it said before: four times a second.
const askAnewEvery = 240

// mayAskAnew reports whether what is kept of a signer's status is not of just now, so
// that what it would refuse is worth asking anew (PR-4), and takes down that it is.
func (a *Agent) mayAskAnew(ctx context.Context, id *identity) bool {
	n, err := networkOf(ctx)
	if err != nil {
		return false
	}
	key, now := id.cacheKey()+"\x00"+n.Name, a.now()
	c := &a.status
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, then := range []time.Time{c.of[key].fetched, c.anew[key]} {
		if age := now.Sub(then); age >= 0 && age < a.params.StatusTTL/askAnewEvery {
			return false
		}
	}
	if c.anew == nil {
		c.anew = map[string]time.Time{}
	}
	c.anew[key] = now
	return true
}

// signerStatusOf asks the signer, or takes an answer younger than StatusTTL. A
// disabled signer is an answer, and clears the tokens (SG-8).
func (a *Agent) signerStatusOf(ctx context.Context, id *identity, refresh bool) (signerStatus, error) {
	n, err := networkOf(ctx)
	if err != nil {
		return signerStatus{}, err
	}
	c := &a.status
	key := id.cacheKey() + "\x00" + n.Name
	c.mu.Lock()
	kept, ok := c.of[key]
	c.mu.Unlock()
	if age := a.now().Sub(kept.fetched); !refresh && ok && age >= 0 && age < a.params.StatusTTL {
		return kept.status, nil
	}
	done := c.flight.DoChan(key, func() (any, error) {
		return a.askStatus(context.WithoutCancel(ctx), id, key)
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return signerStatus{}, r.Err
		}
		return r.Val.(signerStatus), nil
	case <-ctx.Done():
		return signerStatus{}, context.Cause(ctx)
	}
}

func (a *Agent) askStatus(ctx context.Context, id *identity, key string) (signerStatus, error) {
	client, err := a.signer(ctx, id)
	if err != nil {
		return signerStatus{}, err
	}
	fetched := a.now()
	s, err := client.status(ctx)
	if err != nil {
		a.afterSignerError(err)
		return signerStatus{}, err
	}
	if s.Disabled {
		a.tokens.clear()
		a.status.clear()
		return s, nil
	}
	c := &a.status
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]cachedStatus{}
	}
	c.of[key] = cachedStatus{s, fetched}
	return s, nil
}

// afterSignerError is SG-8: a signer that is disabled or does not accept us has
// no good tokens either.
func (a *Agent) afterSignerError(err error) {
	switch ReasonOf(err) {
	case ReasonSignerDisabled, ReasonCredentialRejected:
		a.tokens.clear()
		a.status.clear()
	}
}

// tokenKey is what a PA-JWT is kept by (SG-7).
func (who *acting) tokenKey(ctx context.Context, audience string) (string, error) {
	n, err := networkOf(ctx)
	if err != nil {
		return "", err
	}
	return who.id.cacheKey() + "\x00" + who.binding.Subject + "\x00" + audience + "\x00" + n.Name, nil
}

// paToken returns a PA-JWT for an audience (SG-6..SG-9), and whether it was used
// before. An error means that nothing was sent to the business.
func (a *Agent) paToken(ctx context.Context, who *acting, audience string, fresh bool) (PAToken, bool, error) {
	key, err := who.tokenKey(ctx, audience)
	if err != nil {
		return PAToken{}, false, err
	}
	token, reused, err := a.tokens.get(ctx, a.params, a.now, key, fresh, func(ctx context.Context) (PAToken, error) {
		client, err := a.signer(ctx, who.id)
		if err != nil {
			return PAToken{}, err
		}
		body, nonce, err := client.sign(ctx, audience)
		if err != nil {
			a.afterSignerError(err)
			return PAToken{}, err
		}
		want := SignWant{Issuer: who.id.Issuer, Audience: audience, Nonce: nonce, Subject: who.binding.Subject}
		return CheckSignResponse(body, want, a.now())
	})
	var changed *SubjectChangedError
	switch {
	case errors.As(err, &changed): // ID-5
		if err := a.subjectChanged(ctx, who.principal, who.binding.ID, changed.Got); err != nil {
			return PAToken{}, false, err
		}
		return PAToken{}, false, refuse(StatusBlocked, ReasonIdentityChanged, "the signer now signs for another subject: grants and conversations of the old one are ended")
	case errors.Is(err, ErrInvalidToken):
		return PAToken{}, false, refuseErr(StatusBlocked, ReasonInvalidToken, err)
	}
	return token, reused, err
}

// tokenRefused is SG-9: after a plain 401 a cached token's provider gets fresh
// ones from now on.
func (a *Agent) tokenRefused(ctx context.Context, who *acting, audience string, reused bool) {
	a.tokens.clear() // SG-8: an identity 401
	if key, err := who.tokenKey(ctx, audience); reused && err == nil {
		a.tokens.oneUse(key)
	}
}
