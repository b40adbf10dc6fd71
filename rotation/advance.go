package rotation

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/jwks"
)

const (
	// attempts bounds how often a change is decided anew because somebody else
	// swapped the document first.
	attempts = 8
	// skipped bounds how many names are passed over in search of one for a new key.
	skipped = 32
)

// Advance does what is due now and returns when to call it again. Run calls it;
// tests with a clock of their own do so directly.
func (c *Controller) Advance(ctx context.Context) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.decide(ctx, func(ctx context.Context, v *view) (bool, error) { return c.step(ctx, v) })
	if err == nil {
		err = c.tidy(ctx)
	}
	if ctx.Err() == nil {
		c.failing.Store(err != nil)
	}
	return c.nextAdvance(err), err
}

// decide loads the schedule and calls step until that changes nothing more. Losing
// a swap to somebody else is normal: the decision is made anew on their document.
func (c *Controller) decide(ctx context.Context, step func(context.Context, *view) (changed bool, err error)) error {
	var err error
	for range attempts {
		if err := c.load(ctx); err != nil {
			return err
		}
		mirrored := c.mirror(ctx)
		var changed bool
		changed, err = step(ctx, c.view.Load())
		switch {
		case errors.Is(err, custody.ErrConflict):
		case err != nil:
			return errors.Join(err, mirrored)
		case !changed:
			return mirrored
		}
	}
	return err
}

// load takes over the document in custody. There is no view afterwards only if
// there is no document yet.
func (c *Controller) load(ctx context.Context) error {
	started := c.cfg.Now()
	doc, err := c.cfg.Keyring.Load(ctx, c.document)
	v, newest := c.view.Load(), c.newest.Load().revision
	switch {
	case errors.Is(err, custody.ErrNotFound) && v == nil && newest <= 1: // 1: its maker died before it was written
		return c.unused(ctx)
	case errors.Is(err, custody.ErrNotFound):
		return fmt.Errorf("%w: the document %s is gone, of which revision %d was in use; restore custody from its backup", ErrRolledBack, c.document, max(newest, c.Revision()))
	case err != nil:
		return errors.Join(fmt.Errorf("rotation: loading the schedule: %w", err), c.adoptMirrored(ctx))
	case v == nil || doc.Revision != v.document.Revision:
		if err := c.adopt(ctx, doc, nil); err != nil {
			return err
		}
	}
	switch revision := c.Revision(); {
	case revision+1 < newest:
		return fmt.Errorf("%w: to revision %d, the store knows %d; restore the newer custody", ErrRolledBack, revision, newest)
	case revision+1 == newest: // announced, and about to be written, or never
		if c.unmade.IsZero() {
			c.unmade = started
		}
	default:
		c.unmade = time.Time{}
		c.loaded.Store(c.elapsed(started))
	}
	return nil
}

// unused refuses to begin anew where custody has a second key: a schedule made it.
// The first alone was made before its schedule was written, or is adopted again.
func (c *Controller) unused(ctx context.Context) error {
	second := c.ref(2)
	switch _, _, err := c.cfg.Keyring.Public(ctx, second); {
	case errors.Is(err, custody.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("rotation: looking for key %s: %w", second, err)
	}
	return fmt.Errorf("%w: the document %s is gone, by which key %s was made; restore custody from its backup", ErrRolledBack, c.document, second)
}

// ref is the name in custody of the issuer's key of that number.
func (c *Controller) ref(seq uint64) string { return ref(c.slug, seq) }

func ref(slug string, seq uint64) string { return fmt.Sprintf("%s-%d", slug, seq) }

// adopt makes a document the one that this replica goes by, unless it has a newer
// one. known are public halves, by ref, that custody need not be asked for.
func (c *Controller) adopt(ctx context.Context, doc custody.Document, known map[string]crypto.PublicKey) error {
	s, err := parse(doc.Data)
	if err != nil {
		return err
	}
	if err := s.check(c.cfg.Issuer); err != nil {
		return err
	}
	if v := c.view.Load(); v != nil {
		if s.Revision < v.schedule.Revision || s.Revision == v.schedule.Revision && !bytes.Equal(doc.Data, v.document.Data) {
			return fmt.Errorf("%w: from revision %d to %d", ErrRolledBack, v.schedule.Revision, s.Revision)
		}
		all := maps.Clone(v.publics)
		maps.Copy(all, known)
		known = all
	}
	now := c.cfg.Now()
	// A stale replica serves for a while what would have left by the clock.
	since := now.Add(-c.cfg.Params.Staleness - c.cfg.Params.MaxAge)
	publics, err := publicKeys(ctx, c.cfg.Keyring, s, known, since)
	if err != nil {
		return err
	}
	v, err := newView(s, doc, publics, now)
	if err != nil {
		return err
	}
	c.view.Store(v)
	if o := c.newest.Load(); s.Revision == o.revision {
		c.confirmed.Store(o.at)
	}
	return nil
}

// mirror tells the store of the document, if it may not know it.
func (c *Controller) mirror(ctx context.Context) error {
	v := c.view.Load()
	if c.cfg.Mirror == nil || v == nil {
		return nil
	}
	revision := v.schedule.Revision
	if c.mirrored == revision && c.newest.Load().revision >= revision {
		return nil
	}
	data, err := c.copyOf(v)
	if err != nil {
		return err
	}
	if err := c.cfg.Mirror.Mirror(ctx, c.cfg.Issuer, revision, data); err != nil {
		return fmt.Errorf("rotation: mirroring the schedule: %w", err)
	}
	c.mirrored = revision
	return nil
}

// commit announces a changed document, swaps it in and goes by it. The next load
// finds out what happened if the swap's outcome is unknown. A change that cannot be
// announced is not made, unless it is urgent: a revocation does not wait for the
// store.
func (c *Controller) commit(ctx context.Context, v *view, s Schedule, urgent bool, what string, attributes ...any) error {
	var expect uint64
	s.Revision = 1
	if v != nil {
		expect, s.Revision = v.document.Revision, v.schedule.Revision+1
	}
	data, err := s.render()
	if err != nil {
		return err
	}
	if err := s.check(c.cfg.Issuer); err != nil {
		return err // nobody could read it
	}
	if c.cfg.Mirror != nil {
		if err := c.cfg.Mirror.Mirror(ctx, c.cfg.Issuer, s.Revision, data); err != nil && !urgent {
			return fmt.Errorf("rotation: announcing a change, nothing was changed: %w", err)
		}
	}
	revision, err := c.cfg.Keyring.Swap(ctx, c.document, expect, data)
	if err != nil {
		return fmt.Errorf("rotation: writing the schedule: %w", err)
	}
	if err := c.adopt(ctx, custody.Document{Revision: revision, Data: data}, nil); err != nil {
		return err
	}
	c.loaded.Store(c.elapsed(c.cfg.Now()))
	c.cfg.Log.InfoContext(ctx, what, append([]any{"revision", s.Revision}, attributes...)...)
	return nil
}

// create makes the next key in custody, or adopts the one that an earlier attempt
// made before it failed: names are numbered. A name that holds something else (a
// key for the other algorithm, a disabled one) is passed over.
func (c *Controller) create(ctx context.Context, s Schedule, alg jose.SignatureAlgorithm) (NewKey, error) {
	for seq := s.Seq + 1; seq <= s.Seq+skipped; seq++ {
		ref := c.ref(seq)
		pub, err := c.cfg.Keyring.Create(ctx, ref, alg)
		if errors.Is(err, custody.ErrMismatch) || errors.Is(err, custody.ErrDisabled) {
			continue
		}
		if err != nil {
			return NewKey{}, fmt.Errorf("rotation: making a key: %w", err)
		}
		kid, err := jwks.Thumbprint(pub)
		if err != nil {
			return NewKey{}, fmt.Errorf("rotation: making a key: %w", err)
		}
		return NewKey{KID: kid, Algorithm: alg, Ref: ref, Seq: seq}, nil
	}
	return NewKey{}, fmt.Errorf("rotation: custody holds %d unusable keys after number %d of %s", skipped, s.Seq, c.slug)
}

// algorithm is what the next key signs with if nobody says otherwise: that of the
// key whose place it takes.
func (c *Controller) algorithm(s Schedule, compromised string) jose.SignatureAlgorithm {
	if k, ok := s.Key(compromised); ok {
		return k.Algorithm
	}
	if line := s.line(); len(line) > 0 {
		return line[len(line)-1].Algorithm
	}
	if len(s.Keys) > 0 {
		return s.Keys[len(s.Keys)-1].Algorithm
	}
	return c.cfg.Params.Algorithm
}

// step makes one change that is due, if any.
func (c *Controller) step(ctx context.Context, v *view) (bool, error) {
	now, p := c.cfg.Now(), c.cfg.Params
	if v == nil {
		k, err := c.create(ctx, Schedule{}, p.Algorithm)
		if err != nil {
			return false, err
		}
		return true, c.commit(ctx, nil, First(c.cfg.Issuer, p, now, k), false, "key schedule made", "kid", k.KID)
	}
	s := v.schedule
	next, planned := s.Next(now)
	switch at, ok := s.RotateAt(p, now); {
	case ok && !now.Before(at):
		k, err := c.create(ctx, s, c.algorithm(s, ""))
		if err != nil {
			return false, err
		}
		changed, err := s.Rotate(p, now, k)
		if early := (*TooEarlyError)(nil); errors.As(err, &early) {
			return false, nil // the key set is full; nextAdvance waits
		}
		if err != nil {
			return false, err
		}
		return true, c.commit(ctx, v, changed, false, "next key published", "kid", k.KID)
	case planned && next.SignAt.IsZero():
		served, err := c.served(ctx, v)
		if err != nil || !served && now.Before(next.PublishAt.Add(p.ConfirmWithin())) {
			return false, err
		}
		return true, c.commit(ctx, v, s.Confirm(p, now), false, "key confirmed", "kid", next.KID)
	case planned && c.cfg.Fleet != nil && c.asked != next.KID+next.SignAt.String() &&
		!now.Before(c.askAt(next)) && now.Before(next.FreezeAt(p)):
		served, err := c.served(ctx, v)
		if err != nil {
			return false, err
		}
		c.asked = next.KID + next.SignAt.String()
		if served {
			return false, nil
		}
		changed, err := s.Postpone(p, now, next.KID, next.SignAt.Add(p.Freeze()))
		if err != nil {
			return false, err
		}
		return true, c.commit(ctx, v, changed, false, "next key postponed: a replica does not serve it yet", "kid", next.KID)
	}
	if !c.unmade.IsZero() && (now.Sub(c.unmade) >= p.grace() || c.alone(ctx)) {
		return true, c.commit(ctx, v, s, false, "an announced change was never made: passed over")
	}
	if pruned, ok := s.Prune(p, now); ok && c.allDisabled(s, pruned) {
		return true, c.commit(ctx, v, pruned, false, "old keys dropped from the schedule")
	}
	return false, nil
}

// askAt is when the fleet is asked whether it serves the next key: while its
// SignAt may still be put off.
func (c *Controller) askAt(next Key) time.Time {
	return next.FreezeAt(c.cfg.Params).Add(-c.cfg.Params.FreezeMargin)
}

// served tells whether every live replica serves v.
func (c *Controller) served(ctx context.Context, v *view) (bool, error) {
	if c.cfg.Fleet == nil {
		return true, nil
	}
	_, missing, err := c.cfg.Fleet.Serving(ctx, c.cfg.Issuer, v.schedule.Revision)
	if err != nil {
		return false, fmt.Errorf("rotation: asking the fleet: %w", err)
	}
	return !slices.ContainsFunc(missing, func(name string) bool { return name != c.cfg.Replica }), nil
}

// alone tells whether no other replica lives that could be about to write.
func (c *Controller) alone(ctx context.Context) bool {
	if c.cfg.Fleet == nil {
		return true
	}
	confirmed, missing, err := c.cfg.Fleet.Serving(ctx, c.cfg.Issuer, 0)
	return err == nil && !slices.ContainsFunc(append(confirmed, missing...), func(name string) bool { return name != c.cfg.Replica })
}

// tidy disables in custody the keys that never sign again.
func (c *Controller) tidy(ctx context.Context) error {
	s, now := c.Schedule(), c.cfg.Now()
	for _, k := range s.Keys {
		if state := s.StateOf(k.KID, now); state != Removed && state != Revoked || c.disabled[k.Ref] {
			continue
		}
		if err := c.cfg.Keyring.Disable(ctx, k.Ref); err != nil && !errors.Is(err, custody.ErrNotFound) {
			return fmt.Errorf("rotation: disabling key %s: %w", k.KID, err)
		}
		c.disabled[k.Ref] = true
		c.cfg.Log.DebugContext(ctx, "key is disabled in custody", "kid", k.KID) // also if it was before: custody does not tell
	}
	maps.DeleteFunc(c.disabled, func(ref string, _ bool) bool {
		return !slices.ContainsFunc(s.Keys, func(k Key) bool { return k.Ref == ref })
	})
	return nil
}

// allDisabled tells whether the keys that pruning drops are done with in custody.
func (c *Controller) allDisabled(before, after Schedule) bool {
	for _, k := range before.Keys {
		if _, kept := after.Key(k.KID); !kept && !c.disabled[k.Ref] {
			return false
		}
	}
	return true
}

// nextAdvance returns when something is due next.
func (c *Controller) nextAdvance(err error) time.Time {
	now, p := c.cfg.Now(), c.cfg.Params
	v := c.view.Load()
	if err != nil || v == nil {
		return now.Add(p.Poll)
	}
	s := v.schedule
	// Looking now and then finds what was written while the store could not be told.
	wake := now.Add(max(p.Staleness/2, p.Poll))
	if !c.unmade.IsZero() {
		wake = earliest(wake, now.Add(p.Poll))
	}
	for _, t := range s.transitions() {
		if t.After(now) {
			wake = earliest(wake, t)
		}
	}
	if at, ok := s.RotateAt(p, now); ok {
		wake = earliest(wake, latest(at, now.Add(p.Poll)))
	}
	if next, ok := s.Next(now); ok {
		if next.SignAt.IsZero() {
			wake = earliest(wake, now.Add(p.Poll))
		} else if at := c.askAt(next); at.After(now) {
			wake = earliest(wake, at)
		}
	}
	return wake
}
