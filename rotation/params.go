package rotation

import (
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Params are the times of a key schedule. [Defaults] has them all; Validate tells
// which are too small to keep the invariant.
type Params struct {
	// Algorithm of the first key: ES256 or RS256. Later keys keep the algorithm of
	// the one before unless a request says otherwise.
	Algorithm jose.SignatureAlgorithm
	// Period is how long a key signs before the next one takes over by itself;
	// zero rotates by command only. The default of 30 days keeps rotation an
	// everyday event, and is rare enough for verifiers whose operators copy keys
	// by hand.
	Period time.Duration
	// Lead is how long a key is published before it signs, at least MinLead.
	// Verifiers that do not refetch on an unknown kid need as long as they cache.
	Lead time.Duration
	// Overlap is how long a key stays published after its successor took over, at
	// least MinOverlap.
	Overlap time.Duration

	// TokenTTL is the longest life of a token.
	TokenTTL time.Duration
	// MaxAge is how long a copy of the key set may be kept.
	MaxAge time.Duration
	// Staleness is how long a replica may sign by a document that nobody has
	// confirmed to be the newest.
	Staleness time.Duration
	// Skew is how far a replica's clock may be off.
	Skew time.Duration
	// Leeway is how long after its expiry a verifier may accept a token.
	Leeway time.Duration
	// SignDeadline is the longest time from choosing a key to the token's delivery.
	SignDeadline time.Duration
	// Refetch is how often a verifier fetches for an unknown kid.
	Refetch time.Duration
	// FreezeMargin is added to the time before SignAt in which nothing but an
	// emergency changes it.
	FreezeMargin time.Duration

	// Keep is how long a removed or revoked key stays in the document, to be shown.
	Keep time.Duration
	// Poll is how often a controller tries again what did not work, or asks again
	// whether the fleet serves a key that is needed at once.
	Poll time.Duration
}

// Defaults returns the parameters of a deployment that has no special needs.
func Defaults() Params {
	return Params{
		Algorithm:    jose.ES256,
		Period:       30 * 24 * time.Hour,
		Lead:         time.Hour,
		Overlap:      time.Hour,
		TokenTTL:     120 * time.Second,
		MaxAge:       300 * time.Second,
		Staleness:    60 * time.Second,
		Skew:         5 * time.Second,
		Leeway:       30 * time.Second,
		SignDeadline: 5 * time.Second,
		Refetch:      30 * time.Second,
		FreezeMargin: 10 * time.Second,
		Keep:         7 * 24 * time.Hour,
		Poll:         time.Second,
	}
}

// least is the shortest Staleness and SignDeadline of a scaled schedule: a replica
// has its schedule confirmed a few times a second at best, and a busy machine does
// not sign faster for it.
const least = time.Second

// Scaled divides every duration by n, for demonstrations and tests, but leaves
// Staleness and SignDeadline a second each. Validate tells whether Lead and Overlap
// are still long enough. n under 2 changes nothing.
func (p Params) Scaled(n int) Params {
	if n < 2 {
		return p
	}
	staleness, deadline := min(p.Staleness, least), min(p.SignDeadline, least)
	for _, d := range []*time.Duration{
		&p.Period, &p.Lead, &p.Overlap, &p.TokenTTL, &p.MaxAge, &p.Staleness, &p.Skew,
		&p.Leeway, &p.SignDeadline, &p.Refetch, &p.FreezeMargin, &p.Keep, &p.Poll,
	} {
		*d /= time.Duration(n)
	}
	p.Staleness, p.SignDeadline = max(p.Staleness, staleness), max(p.SignDeadline, deadline)
	return p
}

// MinLead is the shortest safe Lead: the last copy of a key set without the new
// key has expired everywhere, with one refetch to spare. A max-age under a second
// counts as one, for HTTP cannot say less.
func (p Params) MinLead() time.Duration {
	return max(p.MaxAge, time.Second) + p.Staleness + p.Skew + p.Refetch
}

// MinOverlap is the shortest safe Overlap: the last token of the old key has
// expired for every verifier.
func (p Params) MinOverlap() time.Duration {
	return p.TokenTTL + p.Leeway + 2*p.Skew + p.SignDeadline + p.Staleness
}

// Freeze is how long before SignAt the schedule stands still: every replica that
// may still sign knows of any change made earlier.
func (p Params) Freeze() time.Duration {
	return p.Staleness + 2*p.Skew + p.FreezeMargin
}

// ConfirmWithin is how long a key that is needed at once waits for replicas that
// do not say whether they serve it. A replica silent for longer may neither sign
// nor count as ready.
func (p Params) ConfirmWithin() time.Duration { return p.Staleness + p.Skew }

// grace is how long an announced change may take to be written before another
// replica takes its place.
func (p Params) grace() time.Duration { return 5 * p.Poll }

// RevokedAcceptedFor is how long after a revocation a verifier that keeps to
// max-age can accept tokens of the revoked key, forged ones included: a replica
// that had not heard of it yet served the old key set for the staleness bound, and
// that copy is kept for max-age.
func (p Params) RevokedAcceptedFor() time.Duration {
	return p.Staleness + max(p.MaxAge, time.Second) + p.Skew
}

// ParamError is a parameter that would break the schedule's invariant.
type ParamError struct {
	Field string        // as in Params
	Got   time.Duration //
	Min   time.Duration // the smallest value that is allowed
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("rotation: %s is %v; it must be at least %v", e.Field, e.Got, e.Min)
}

// Validate tells which parameter is wrong. A duration that is too small is a
// *ParamError.
func (p Params) Validate() error {
	if p.Algorithm != jose.ES256 && p.Algorithm != jose.RS256 {
		return fmt.Errorf("rotation: Algorithm is %q; use ES256 or RS256", p.Algorithm)
	}
	for _, f := range []struct {
		name     string
		got, min time.Duration
	}{
		{"TokenTTL", p.TokenTTL, 1},
		{"MaxAge", p.MaxAge, 1},
		{"Staleness", p.Staleness, 1},
		{"Skew", p.Skew, 0},
		{"Leeway", p.Leeway, 0},
		{"SignDeadline", p.SignDeadline, 0},
		{"Refetch", p.Refetch, 0},
		{"FreezeMargin", p.FreezeMargin, 0},
		{"Keep", p.Keep, 0},
		{"Poll", p.Poll, 1},
		{"Lead", p.Lead, max(p.MinLead(), p.Freeze()+p.FreezeMargin)},
		{"Overlap", p.Overlap, p.MinOverlap()},
	} {
		if f.got < f.min {
			return &ParamError{f.name, f.got, f.min}
		}
	}
	if p.Period != 0 && p.Period < p.Lead {
		return &ParamError{"Period", p.Period, p.Lead}
	}
	return nil
}
