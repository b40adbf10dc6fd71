package rotation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
)

// Plan tells what the request would do now, and changes nothing.
func (c *Controller) Plan(ctx context.Context, req Request) (Plan, error) {
	if err := req.validate(); err != nil {
		return Plan{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.load(ctx); err != nil {
		return Plan{}, err
	}
	v := c.view.Load()
	if v == nil {
		return Plan{}, fmt.Errorf("%w: there is none yet", ErrDocument)
	}
	now := c.cfg.Now()
	after, alg, err := c.sketch(v.schedule, req, now)
	if err != nil {
		return Plan{}, err
	}
	plan := c.plan(ctx, now, v.schedule, after, req, NewKey{KID: placeholder, Algorithm: alg}, v.schedule.Revision)
	plan.KID = ""
	for i := range plan.Events {
		if plan.Events[i].KID == placeholder {
			plan.Events[i].KID = ""
		}
	}
	return plan, nil
}

// placeholder stands for a key that does not exist yet. No thumbprint looks so.
const placeholder = "?"

// sketch applies the request with a placeholder for its new key, and returns the
// algorithm that the key is to have.
func (c *Controller) sketch(s Schedule, req Request, now time.Time) (Schedule, jose.SignatureAlgorithm, error) {
	alg := req.Algorithm
	if alg == "" {
		alg = c.algorithm(s, req.Compromised)
	}
	after, err := req.apply(s, c.cfg.Params, now, NewKey{KID: placeholder, Ref: placeholder, Algorithm: alg})
	return after, alg, err
}

func (c *Controller) plan(ctx context.Context, now time.Time, before, after Schedule, req Request, k NewKey, revision uint64) Plan {
	_, used := after.Key(k.KID)
	plan := Plan{
		Events:   timeline(c.cfg.Params, now, before, after, c.alone(ctx)),
		Notes:    notes(c.cfg.Params, c.algorithm(before, req.Compromised), k.Algorithm, req, used),
		Revision: revision,
	}
	if used {
		plan.KID, plan.Algorithm = k.KID, k.Algorithm
	}
	return plan
}

// Rotate does what the request asks, and tells what it did. After an emergency or
// a withdrawal the new key signs once every replica serves it: before Rotate
// returns if this is the only one, else Run sees to it. Errors are those of the
// transitions (*TooEarlyError, ErrUnknownKey, ErrRevoked), ErrInvalidRequest,
// custody's and the store's; after the latter nothing was changed.
func (c *Controller) Rotate(ctx context.Context, req Request) (Plan, error) {
	if err := req.validate(); err != nil {
		return Plan{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.poke()
	var before Schedule
	var k NewKey
	var at time.Time
	done := false
	err := c.decide(ctx, func(ctx context.Context, v *view) (bool, error) {
		if v == nil {
			return false, fmt.Errorf("%w: there is none yet", ErrDocument)
		}
		if !done {
			before = v.schedule
			var err error
			if k, at, err = c.change(ctx, v, req); err != nil {
				return false, err
			}
			done = true
			return true, nil
		}
		// Close the gap of an emergency at once, if no other replica is in the way.
		if next, ok := v.schedule.Next(c.cfg.Now()); ok && next.SignAt.IsZero() {
			return c.step(ctx, v)
		}
		return false, nil
	})
	if err == nil && !done {
		err = fmt.Errorf("rotation: the schedule changed %d times meanwhile: %w", attempts, custody.ErrConflict)
	}
	if !done {
		if (req.Emergency || req.Withdraw) && errors.Is(err, custody.ErrUnavailable) {
			err = fmt.Errorf("rotation: NOTHING was revoked, for custody is away; the kill switch stops the issuer without it: %w", err)
		}
		return Plan{}, err
	}
	// What went wrong after the change was written is tried again by Run.
	if err != nil {
		c.cfg.Log.WarnContext(ctx, "key schedule changed, not yet settled", "error", err)
	}
	return c.plan(ctx, at, before, c.Schedule(), req, k, c.Revision()), nil
}

// change makes the key that the request needs, writes the changed schedule, and
// tells as of when.
func (c *Controller) change(ctx context.Context, v *view, req Request) (NewKey, time.Time, error) {
	now := c.cfg.Now()
	after, alg, err := c.sketch(v.schedule, req, now)
	if err != nil {
		return NewKey{}, now, err
	}
	k := NewKey{Algorithm: alg}
	if _, needed := after.Key(placeholder); needed {
		if k, err = c.create(ctx, v.schedule, alg); err != nil {
			return NewKey{}, now, err
		}
		// Making a key takes time, and the lead counts from its publication.
		now = c.cfg.Now()
		if after, err = req.apply(v.schedule, c.cfg.Params, now, k); err != nil {
			return NewKey{}, now, err
		}
	}
	what := "next key published"
	if req.Emergency || req.Withdraw {
		what = "keys revoked"
	}
	return k, now, c.commit(ctx, v, after, req.Emergency || req.Withdraw, what, "kid", k.KID, "compromised", req.Compromised)
}
