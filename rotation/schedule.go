// Package rotation decides which keys an issuer publishes and which one signs.
//
// A [Schedule] is a document. What to publish and what to sign with at a time are
// pure functions of it, and so is every change: a rotation, an emergency, a
// postponement. A [Controller] keeps the document in custody, where
// compare-and-swap lets one replica win, makes keys when they are due and has the
// answers ready for every request.
//
// The promise: whatever key one replica signs with is in the key set that every
// other serves, has been for as long as verifiers cache, and stays until every
// token it signed has expired everywhere. It holds while clocks are off by no more
// than [Params].Skew; after an emergency the fresh key alone is exempt from the
// wait. A replica that cannot confirm its schedule stops signing.
package rotation

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MaxKeys is how many keys may be published at once.
const MaxKeys = 8

// format is the newest document format that this code knows; a document says in
// minReader what it takes to read it.
const format = 1

// State is what a key is at a time.
type State string

// The states, in their order. A key can be revoked in any of them.
const (
	Pending   State = "pending"   // not yet published
	Published State = "published" // in the key set, does not sign yet
	Signing   State = "signing"   // signs, until its successor does
	Retiring  State = "retiring"  // signs no more, stays until its tokens are gone
	Removed   State = "removed"   // has left the key set
	Revoked   State = "revoked"   // left it at once
)

// Key is one key of a schedule.
type Key struct {
	KID       string                  `json:"kid"` // RFC 7638 thumbprint
	Algorithm jose.SignatureAlgorithm `json:"alg"`
	Ref       string                  `json:"ref"` // its name in custody
	// PublishAt is from when it is in the key set. A key that is needed at once has
	// it before MadeAt, so that replicas whose clocks are behind serve it too.
	PublishAt time.Time `json:"publishAt"`
	// MadeAt, unless zero, is when such a key was really made.
	MadeAt time.Time `json:"madeAt,omitzero"`
	// SignAt is when it takes over; zero: once every replica serves it.
	SignAt time.Time `json:"signAt,omitzero"`
	// RemoveAt is when it leaves the key set; zero: not planned, for it has no
	// successor yet.
	RemoveAt time.Time `json:"removeAt,omitzero"`
	// RevokedAt, unless zero, took it out at once, whatever the clock says.
	RevokedAt time.Time `json:"revokedAt,omitzero"`
}

// Schedule says which keys an issuer publishes and which one signs, now and
// later. It is data: whoever has the document knows the answer for every time.
// Methods leave it as it is and return a changed one.
type Schedule struct {
	Format    int    `json:"format"`
	MinReader int    `json:"minReader"`
	Issuer    string `json:"issuer"`
	// Revision grows by one with every change. It is the store's and the fleet's
	// word for "which schedule"; custody counts for itself.
	Revision uint64 `json:"revision"`
	// Seq is the number of the newest key; custody's name ends in it.
	Seq uint64 `json:"seq"`
	// Keys in the order in which they were made, those of the past included for a
	// while.
	Keys []Key `json:"keys"`
}

// Signing returns the key that signs at t: the one that took over last. It
// returns false if that one is revoked and no other has taken over since.
func (s Schedule) Signing(t time.Time) (Key, bool) {
	var signer Key
	found := false
	for _, k := range s.line() {
		if k.SignAt.After(t) {
			break
		}
		signer, found = k, true
	}
	return signer, found && signer.RevokedAt.IsZero()
}

// line returns the keys that take over from one another, in order of SignAt. A
// key that was revoked before its turn never took over.
func (s Schedule) line() []Key {
	var line []Key
	for _, k := range s.Keys {
		if !k.SignAt.IsZero() && (k.RevokedAt.IsZero() || k.RevokedAt.After(k.SignAt)) {
			line = append(line, k)
		}
	}
	slices.SortStableFunc(line, func(a, b Key) int { return a.SignAt.Compare(b.SignAt) })
	return line
}

// Published returns the keys that are in the key set at t, in the schedule's
// order.
func (s Schedule) Published(t time.Time) []Key { return s.publishedSince(t, t) }

// publishedSince returns the keys that are in the key set at t or left it, by
// time, after since.
func (s Schedule) publishedSince(since, t time.Time) []Key {
	var keys []Key
	for _, k := range s.Keys {
		if k.RevokedAt.IsZero() && !k.PublishAt.After(t) && (k.RemoveAt.IsZero() || k.RemoveAt.After(since)) {
			keys = append(keys, k)
		}
	}
	return keys
}

// Key returns the key of that kid.
func (s Schedule) Key(kid string) (Key, bool) {
	i := s.index(kid)
	if i < 0 {
		return Key{}, false
	}
	return s.Keys[i], true
}

func (s Schedule) index(kid string) int {
	return slices.IndexFunc(s.Keys, func(k Key) bool { return k.KID == kid })
}

// StateOf returns what the key is at t; Removed if the schedule no longer has it.
func (s Schedule) StateOf(kid string, t time.Time) State {
	k, ok := s.Key(kid)
	switch {
	case !ok:
		return Removed
	case !k.RevokedAt.IsZero():
		return Revoked
	case k.PublishAt.After(t):
		return Pending
	case !k.RemoveAt.IsZero() && !k.RemoveAt.After(t):
		return Removed
	case k.SignAt.IsZero() || k.SignAt.After(t):
		return Published
	}
	if signer, ok := s.Signing(t); ok && signer.KID == kid {
		return Signing
	}
	return Retiring
}

// RetireAt returns when the key stops signing: its successor's SignAt, or its
// revocation. It returns false if neither is planned.
func (s Schedule) RetireAt(kid string) (time.Time, bool) {
	if k, ok := s.Key(kid); ok && !k.RevokedAt.IsZero() {
		return k.RevokedAt, true
	}
	line := s.line()
	i := slices.IndexFunc(line, func(k Key) bool { return k.KID == kid })
	if i < 0 || i+1 == len(line) {
		return time.Time{}, false
	}
	return line[i+1].SignAt, true
}

// Next returns the key that is to sign next: planned for after t, or waiting to
// be served everywhere (SignAt zero).
func (s Schedule) Next(t time.Time) (Key, bool) {
	for _, k := range s.Keys {
		if k.SignAt.IsZero() && k.RevokedAt.IsZero() {
			return k, true
		}
	}
	for _, k := range s.line() {
		if k.SignAt.After(t) && k.RevokedAt.IsZero() {
			return k, true
		}
	}
	return Key{}, false
}

// RotateAt returns when the next key is to be published so that it signs when the
// period has passed. It returns false while a next key is planned already, and if
// the period is zero.
func (s Schedule) RotateAt(p Params, now time.Time) (time.Time, bool) {
	line := s.line()
	if _, planned := s.Next(now); planned || len(line) == 0 || p.Period == 0 {
		return time.Time{}, false
	}
	return line[len(line)-1].SignAt.Add(p.Period - p.Lead), true
}

// DueAt returns when another key must take over by the period. It returns false if the
// period is zero, and while no key signs.
func (s Schedule) DueAt(p Params, now time.Time) (time.Time, bool) {
	k, signs := s.Signing(now)
	return k.SignAt.Add(p.Period), signs && p.Period > 0
}

// Postponed tells whether the next key waits for longer than its lead: for replicas
// that do not serve it yet. Of a key that is needed at once that is any wait.
func (s Schedule) Postponed(p Params, now time.Time) bool {
	k, planned := s.Next(now)
	return planned && (k.SignAt.IsZero() || !now.Before(k.PublishAt.Add(p.Lead)))
}

// PublishedAt is when the key joined, or joins, the key set, as people count it.
func (k Key) PublishedAt() time.Time { return latest(k.PublishAt, k.MadeAt) }

// transitions returns the times at which what is published or signs changes, in
// order.
func (s Schedule) transitions() []time.Time {
	var times []time.Time
	for _, k := range s.Keys {
		for _, t := range []time.Time{k.PublishAt, k.SignAt, k.RemoveAt} {
			if !t.IsZero() && k.RevokedAt.IsZero() {
				times = append(times, t)
			}
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return slices.CompactFunc(times, time.Time.Equal)
}

// check tells why a schedule that was read must not be used.
func (s Schedule) check(issuer string) error {
	if s.Issuer != issuer {
		return fmt.Errorf("%w: it is of issuer %q, not %q", ErrDocument, s.Issuer, issuer)
	}
	seen := map[string]bool{}
	for _, k := range s.Keys {
		switch {
		case k.KID == "" || k.Ref == "" || k.PublishAt.IsZero():
			return fmt.Errorf("%w: a key lacks kid, ref or publishAt", ErrDocument)
		case k.Algorithm != jose.ES256 && k.Algorithm != jose.RS256:
			return fmt.Errorf("%w: key %s is for %q", ErrDocument, k.KID, k.Algorithm)
		case seen["kid "+k.KID] || seen["ref "+k.Ref]:
			return fmt.Errorf("%w: key %s is there twice", ErrDocument, k.KID)
		case !k.SignAt.IsZero() && k.SignAt.Before(k.PublishAt):
			return fmt.Errorf("%w: key %s signs before it is published", ErrDocument, k.KID)
		}
		seen["kid "+k.KID], seen["ref "+k.Ref] = true, true
	}
	for i, k := range s.line() {
		next := s.line()[i:]
		if len(next) > 1 && k.RevokedAt.IsZero() && (k.RemoveAt.IsZero() || k.RemoveAt.Before(next[1].SignAt)) {
			return fmt.Errorf("%w: key %s leaves before its successor signs", ErrDocument, k.KID)
		}
		if len(next) == 1 && !k.RemoveAt.IsZero() {
			return fmt.Errorf("%w: key %s leaves and has no successor", ErrDocument, k.KID)
		}
	}
	if !slices.ContainsFunc(s.Keys, func(k Key) bool { return k.RevokedAt.IsZero() && k.RemoveAt.IsZero() }) {
		return fmt.Errorf("%w: it would leave the key set empty", ErrDocument)
	}
	return nil
}

// parse reads a document. Members that this version does not know are refused
// unless the document says that it can do without.
func parse(data []byte) (Schedule, error) {
	var s Schedule
	if err := json.Unmarshal(data, &s); err != nil {
		return Schedule{}, fmt.Errorf("%w: %w", ErrDocument, err)
	}
	if s.Format < 1 || s.MinReader < 1 || s.Revision < 1 {
		return Schedule{}, fmt.Errorf("%w: it has no format or revision", ErrDocument)
	}
	if s.MinReader > format {
		return Schedule{}, fmt.Errorf("%w: it needs a reader of format %d, this one knows %d", ErrNewerFormat, s.MinReader, format)
	}
	if s.Format <= format {
		var strict Schedule
		if err := json.Unmarshal(data, &strict, json.RejectUnknownMembers(true)); err != nil {
			return Schedule{}, fmt.Errorf("%w: %w", ErrDocument, err)
		}
	}
	return s, nil
}

// render writes the document.
func (s Schedule) render() ([]byte, error) {
	if s.Format > format {
		return nil, fmt.Errorf("%w: format %d, this one writes %d", ErrNewerFormat, s.Format, format)
	}
	s.Format, s.MinReader = format, format
	data, err := json.Marshal(s, jsontext.Multiline(true))
	if err != nil {
		return nil, fmt.Errorf("rotation: %w", err)
	}
	return data, nil
}

// earliest returns the earlier of two times, of which zero is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func byTime(a, b Event) int {
	return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(rank(a.Kind), rank(b.Kind)))
}
