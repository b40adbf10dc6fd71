package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Policy is how a verifier caches the key set.
type Policy struct {
	Name string
	// HonoursMaxAge: a copy is kept for its max-age; else for Keep.
	HonoursMaxAge bool
	Keep          time.Duration // 0: for ever
	// Refetch is how often an unknown kid makes it fetch again; 0: never.
	Refetch time.Duration
}

// Policies are three kinds of verifiers seen in the field, scaled:
//
//   - one that honours max-age and never refetches for an unknown kid
//   - one that keeps its copy until a kid is unknown, and then refetches, but not
//     more often than every 30 s
//   - one that keeps its copy for 10 minutes whatever max-age says, and never
//     refetches for an unknown kid
//
// The first two need only the shortest lead; the third needs one of 10 minutes
// more than that.
func Policies(scale int) []Policy {
	n := time.Duration(scale)
	return []Policy{
		{Name: "honours max-age", HonoursMaxAge: true},
		{Name: "refetches for an unknown kid every 30 s", Refetch: 30 * time.Second / n},
		{Name: "keeps 10 min", Keep: 10 * time.Minute / n},
	}
}

// errUndecided: no replica served a key set while the token lived, so that a real
// verifier would have answered "try again".
var errUndecided = errors.New("no key set could be fetched")

// verifier verifies tokens by its own copy of the key set.
type verifier struct {
	policy Policy
	load   *Load
	leeway time.Duration

	mu      sync.Mutex
	keys    map[string]jose.JSONWebKey
	until   time.Time // the copy's end; zero: for ever
	fetched time.Time // when the last fetch began
}

// key returns the key of a kid as the verifier's policy finds it.
func (v *verifier) key(kid string, until time.Time) (jose.JSONWebKey, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if v.keys == nil || !v.until.IsZero() && now.After(v.until) {
		if err := v.fetch(until); err != nil {
			return jose.JSONWebKey{}, err
		}
	}
	k, ok := v.keys[kid]
	if !ok && v.policy.Refetch > 0 && now.Sub(v.fetched) >= v.policy.Refetch {
		if err := v.fetch(until); err != nil {
			return jose.JSONWebKey{}, err
		}
		k, ok = v.keys[kid]
	}
	if !ok {
		return k, fmt.Errorf("kid %s is unknown; the copy is %v old", kid, time.Since(v.fetched).Round(time.Millisecond))
	}
	return k, nil
}

// fetch gets a key set from a random replica, from another if it has none, and
// goes on until a time.
func (v *verifier) fetch(until time.Time) error {
	for {
		replicas := v.load.all()
		for _, i := range mathrand.Perm(len(replicas)) {
			began := time.Now()
			keys, maxAge, err := v.load.keySet(replicas[i])
			if err != nil {
				continue // the load has recorded what is wrong
			}
			v.keys, v.fetched, v.until = keys, began, time.Time{}
			switch {
			case v.policy.HonoursMaxAge:
				v.until = time.Now().Add(maxAge)
			case v.policy.Keep > 0:
				v.until = time.Now().Add(v.policy.Keep)
			}
			return nil
		}
		if time.Now().After(until) {
			return errUndecided
		}
		pause(50 * time.Millisecond)
	}
}

// pause waits between two tries.
func pause(d time.Duration) { <-time.After(d) }

// patience bounds how long a verifier tries to get a key set for a token.
const patience = 5 * time.Second

// verify checks a token as a Provider does that received it at a time.
func (v *verifier) verify(token, audience string, received time.Time) error {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256, jose.RS256})
	if err != nil {
		return err
	}
	key, err := v.key(parsed.Headers[0].KeyID, time.Now().Add(patience))
	if err != nil {
		return err
	}
	var c struct {
		Iss string `json:"iss"`
		Sub string `json:"sub"`
		Aud any    `json:"aud"`
		Jti string `json:"jti"`
		Iat int64  `json:"iat"`
		Exp int64  `json:"exp"`
	}
	if err := parsed.Claims(key, &c); err != nil {
		return err
	}
	switch {
	case c.Iss != v.load.fleet.Issuer:
		return fmt.Errorf("issuer %q", c.Iss)
	case c.Aud != audience:
		return fmt.Errorf("audience %v", c.Aud)
	case c.Sub == "" || len(c.Sub) > 256 || c.Jti == "":
		return errors.New("no sub or no jti")
	case c.Exp <= c.Iat || c.Exp-c.Iat > 300:
		return fmt.Errorf("lives from %d to %d", c.Iat, c.Exp)
	case received.Add(v.leeway).Before(time.Unix(c.Iat, 0)):
		return fmt.Errorf("issued at %d, %v ahead", c.Iat, time.Unix(c.Iat, 0).Sub(received))
	case received.Add(-v.leeway).After(time.Unix(c.Exp, 0)):
		return fmt.Errorf("expired at %d, %v ago", c.Exp, received.Sub(time.Unix(c.Exp, 0)))
	}
	return nil
}

// keySet fetches a replica's key set, and records what the contract does not allow.
func (l *Load) keySet(e *endpoint) (keys map[string]jose.JSONWebKey, maxAge time.Duration, err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.replica.Public+"/.well-known/jwks.json", nil)
	if err != nil {
		return nil, 0, err
	}
	req.Host = strings.TrimPrefix(l.fleet.Issuer, "http://")
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, 0, err // a real verifier tries again, and so does ours
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, 0, err
	}
	bad := func(format string, args ...any) error {
		err := fmt.Errorf("key set of replica %d: "+format, append([]any{e.replica.Index}, args...)...)
		l.violate(began, "%v", err)
		return err
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		return nil, 0, errors.New("503")
	default:
		return nil, 0, bad("status %d", resp.StatusCode)
	}
	if resp.Header.Get("Etag") == "" || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
		return nil, 0, bad("no ETag, or not for everybody")
	}
	age, found := strings.CutPrefix(resp.Header.Get("Cache-Control"), "public, max-age=")
	seconds, err := strconv.Atoi(age)
	if !found || err != nil || seconds < 1 || seconds > 300 {
		return nil, 0, bad("Cache-Control %q", resp.Header.Get("Cache-Control"))
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(body, &set); err != nil || len(set.Keys) == 0 || len(set.Keys) > 8 {
		return nil, 0, bad("%d keys, %v", len(set.Keys), err)
	}
	keys = make(map[string]jose.JSONWebKey, len(set.Keys))
	for _, k := range set.Keys {
		keys[k.KeyID] = k
	}
	return keys, time.Duration(seconds) * time.Second, nil
}
