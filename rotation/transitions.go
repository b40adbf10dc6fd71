package rotation

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// NewKey is a key that a transition may put on the schedule.
type NewKey struct {
	KID       string
	Algorithm jose.SignatureAlgorithm
	Ref       string
	Seq       uint64
}

// with returns a copy of s that also has the key.
func (s Schedule) with(k NewKey, publishAt, signAt time.Time) Schedule {
	s.Keys = append(slices.Clone(s.Keys), Key{
		KID: k.KID, Algorithm: k.Algorithm, Ref: k.Ref, PublishAt: stamp(publishAt), SignAt: stamp(signAt),
	})
	s.Seq = max(s.Seq, k.Seq)
	return s
}

// fresh returns a copy of s that also has the key, which is to sign as soon as
// every replica serves it: published by every replica's clock, also one behind.
func (s Schedule) fresh(p Params, k NewKey, now time.Time) Schedule {
	s = s.with(k, now.Add(-2*p.Skew), time.Time{})
	s.Keys[len(s.Keys)-1].MadeAt = stamp(now)
	return s
}

// stamp is a time as documents hold it: on the wall clock, in UTC.
func stamp(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.Round(0).UTC()
}

// First makes the schedule of a new issuer: one key, published at once, which
// signs once every replica serves it (see Confirm).
func First(issuer string, p Params, now time.Time, k NewKey) Schedule {
	return Schedule{Format: format, MinReader: format, Issuer: issuer}.fresh(p, k, now)
}

// Rotate publishes the key now and lets it sign after the lead. A *TooEarlyError
// refuses a rotation while another key is on its way, or while the key set is full.
func (s Schedule) Rotate(p Params, now time.Time, k NewKey) (Schedule, error) {
	if next, ok := s.Next(now); ok {
		at := next.SignAt
		if at.IsZero() {
			at = next.PublishAt.Add(p.ConfirmWithin())
		}
		return s, &TooEarlyError{KID: next.KID, At: at}
	}
	return s.with(k, now, now.Add(p.Lead)).settle(p, now).capped(now)
}

// Emergency revokes the compromised key now. If that leaves no key to sign, k is
// published and signs once every replica serves it; if the compromised key was the
// next one, k takes its place after the lead; otherwise k is not used.
func (s Schedule) Emergency(p Params, now time.Time, compromised string, k NewKey) (Schedule, error) {
	i := s.index(compromised)
	if i < 0 {
		return s, fmt.Errorf("%w: %s", ErrUnknownKey, compromised)
	}
	if !s.Keys[i].RevokedAt.IsZero() {
		return s, fmt.Errorf("%w: %s", ErrRevoked, compromised)
	}
	next, planned := s.Next(now)
	s.Keys = slices.Clone(s.Keys)
	s.Keys[i].RevokedAt = stamp(now)
	if _, signs := s.Signing(now); signs {
		if planned && next.KID == compromised {
			s = s.with(k, now, now.Add(p.Lead))
		}
	} else if !s.waiting() {
		s = s.fresh(p, k, now)
	}
	return s.settle(p, now).capped(now)
}

// Withdraw revokes every key now and publishes k, which signs once every replica
// serves it.
func (s Schedule) Withdraw(p Params, now time.Time, k NewKey) (Schedule, error) {
	s.Keys = slices.Clone(s.Keys)
	for i := range s.Keys {
		if s.StateOf(s.Keys[i].KID, now) != Removed && s.Keys[i].RevokedAt.IsZero() {
			s.Keys[i].RevokedAt = stamp(now)
		}
	}
	return s.fresh(p, k, now).settle(p, now), nil
}

// waiting tells whether a key waits to be served everywhere.
func (s Schedule) waiting() bool {
	return slices.ContainsFunc(s.Keys, func(k Key) bool { return k.SignAt.IsZero() && k.RevokedAt.IsZero() })
}

// Confirm lets the keys sign that waited to be served by every replica, which the
// caller has made sure of: at once if no key signs, else after the lead.
func (s Schedule) Confirm(p Params, now time.Time) Schedule {
	s.Keys = slices.Clone(s.Keys)
	for i, k := range s.Keys {
		if !k.SignAt.IsZero() || !k.RevokedAt.IsZero() {
			continue
		}
		at := now
		if _, signs := s.Signing(now); signs {
			at = latest(now.Add(p.Freeze()), k.PublishAt.Add(p.Lead))
		}
		// By a clock that is behind, it still comes after its publication and after
		// the revoked key whose place it takes.
		at = latest(at, k.PublishAt)
		for _, before := range s.line() {
			if !before.RevokedAt.IsZero() {
				at = latest(at, before.SignAt)
			}
		}
		s.Keys[i].SignAt = stamp(at)
	}
	return s.settle(p, now)
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// FreezeAt returns from when the key's SignAt stands.
func (k Key) FreezeAt(p Params) time.Time { return k.SignAt.Add(-p.Freeze()) }

// Postpone moves the SignAt of the next key to a later time. After the freeze it
// answers a *FrozenError.
func (s Schedule) Postpone(p Params, now time.Time, kid string, until time.Time) (Schedule, error) {
	next, ok := s.Next(now)
	if !ok || next.KID != kid || next.SignAt.IsZero() {
		return s, fmt.Errorf("%w: %s is not the next to sign", ErrUnknownKey, kid)
	}
	if !now.Before(next.FreezeAt(p)) {
		return s, &FrozenError{KID: kid, At: next.FreezeAt(p)}
	}
	if !until.After(next.SignAt) {
		return s, fmt.Errorf("%w: a key is only postponed to a later time", ErrInvalidRequest)
	}
	s.Keys = slices.Clone(s.Keys)
	s.Keys[s.index(kid)].SignAt = stamp(until)
	return s.settle(p, now), nil
}

// Prune drops the keys that left the key set Keep ago. It returns false if there
// are none.
func (s Schedule) Prune(p Params, now time.Time) (Schedule, bool) {
	// Whoever took over last says who signs, revoked or not.
	var last string
	for _, k := range s.line() {
		if !k.SignAt.After(now) {
			last = k.KID
		}
	}
	kept := slices.DeleteFunc(slices.Clone(s.Keys), func(k Key) bool {
		gone := earliest(k.RevokedAt, k.RemoveAt)
		return k.KID != last && !gone.IsZero() && !gone.Add(p.Keep).After(now)
	})
	if len(kept) == len(s.Keys) {
		return s, false
	}
	s.Keys = kept
	return s, true
}

// settle sets when keys leave: an overlap after their successor takes over. What
// already happened stays as it was.
func (s Schedule) settle(p Params, now time.Time) Schedule {
	line := s.line()
	for i, k := range line {
		var removeAt time.Time
		if i+1 < len(line) {
			if next := line[i+1]; next.SignAt.After(now) || k.RemoveAt.IsZero() {
				removeAt = next.SignAt.Add(p.Overlap)
			} else {
				removeAt = k.RemoveAt
			}
		}
		s.Keys[s.index(k.KID)].RemoveAt = removeAt
	}
	return s
}

// capped refuses a schedule that publishes too many keys at once.
func (s Schedule) capped(now time.Time) (Schedule, error) {
	published := s.Published(now)
	if len(published) <= MaxKeys {
		return s, nil
	}
	var first Key // to leave
	for _, k := range published {
		if !k.RemoveAt.IsZero() && (first.KID == "" || k.RemoveAt.Before(first.RemoveAt)) {
			first = k
		}
	}
	return s, &TooEarlyError{KID: first.KID, At: first.RemoveAt}
}
