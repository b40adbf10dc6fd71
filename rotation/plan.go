package rotation

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Request asks for a change of the schedule.
type Request struct {
	// Algorithm of the new key; empty keeps the one of the key that signs.
	Algorithm jose.SignatureAlgorithm
	// Emergency revokes Compromised (required with it) at once and, where a key is
	// missing then, publishes a fresh one.
	Emergency   bool
	Compromised string
	// Withdraw revokes every key at once and publishes a fresh one.
	Withdraw bool
}

func (r Request) validate() error {
	switch {
	case r.Algorithm != "" && r.Algorithm != jose.ES256 && r.Algorithm != jose.RS256:
		return fmt.Errorf("%w: algorithm %q is neither ES256 nor RS256", ErrInvalidRequest, r.Algorithm)
	case r.Emergency && r.Withdraw:
		return fmt.Errorf("%w: emergency and withdraw exclude each other", ErrInvalidRequest)
	case r.Emergency && r.Compromised == "":
		return fmt.Errorf("%w: an emergency names the compromised key", ErrInvalidRequest)
	case !r.Emergency && r.Compromised != "":
		return fmt.Errorf("%w: only an emergency names a compromised key", ErrInvalidRequest)
	}
	return nil
}

// apply is the transition that the request asks for.
func (r Request) apply(s Schedule, p Params, now time.Time, k NewKey) (Schedule, error) {
	switch {
	case r.Emergency:
		return s.Emergency(p, now, r.Compromised, k)
	case r.Withdraw:
		return s.Withdraw(p, now, k)
	default:
		return s.Rotate(p, now, k)
	}
}

// EventKind is what happens to a key.
type EventKind string

// The kinds of event, in the order in which they are shown at one time.
const (
	EventRevoke  EventKind = "revoke"
	EventPublish EventKind = "publish"
	EventSign    EventKind = "sign"
	EventRetire  EventKind = "retire"
	EventRemove  EventKind = "remove"
	// EventAcceptedUntil is the worst case until which a verifier can accept tokens
	// of a revoked key.
	EventAcceptedUntil EventKind = "accepted-until"
)

func rank(k EventKind) int {
	return slices.Index([]EventKind{EventRevoke, EventPublish, EventSign, EventRetire, EventRemove, EventAcceptedUntil}, k)
}

// Event is a line of a timeline.
type Event struct {
	Time   time.Time
	KID    string // empty for a key that does not exist yet
	Kind   EventKind
	Detail string
}

// Plan is what a request does, or did.
type Plan struct {
	Events    []Event // in order of time
	Notes     []string
	KID       string                  // the new key; empty if there is none, or none yet
	Algorithm jose.SignatureAlgorithm // of the new key; empty if none is needed
	Revision  uint64                  // of the schedule that holds it; the present one for a plan
}

// rsaCost is how many ES256 signatures a core makes in the time of one with RS256
// at 2048 bits.
const rsaCost = 30

// timeline tells what differs between two schedules.
func timeline(p Params, now time.Time, before, after Schedule, alone bool) []Event {
	var events []Event
	add := func(t time.Time, kid string, kind EventKind, detail string) {
		events = append(events, Event{Time: t, KID: kid, Kind: kind, Detail: detail})
	}
	for _, k := range after.Keys {
		old, known := before.Key(k.KID)
		if !known {
			add(k.PublishedAt(), k.KID, EventPublish, fmt.Sprintf("a new %s key joins the key set", k.Algorithm))
		}
		if !k.RevokedAt.IsZero() {
			if old.RevokedAt.IsZero() {
				add(k.RevokedAt, k.KID, EventRevoke, "leaves the key set and never signs again")
				add(k.RevokedAt.Add(p.RevokedAcceptedFor()), k.KID, EventAcceptedUntil,
					"a verifier that fetched the key set just before may accept its tokens, forged ones too, until its copy expires")
			}
			continue
		}
		switch {
		case k.SignAt.Equal(old.SignAt) && known:
		case k.SignAt.IsZero() && alone:
			add(now, k.KID, EventSign, "at once")
		case k.SignAt.IsZero():
			add(now.Add(p.ConfirmWithin()), k.KID, EventSign, "as soon as every replica serves it, at the latest then")
		default:
			add(k.SignAt, k.KID, EventSign, "takes over")
		}
		if retire, ok := after.RetireAt(k.KID); ok {
			if was, had := before.RetireAt(k.KID); !had || !was.Equal(retire) {
				add(retire, k.KID, EventRetire, "its successor takes over; its tokens stay good")
			}
		}
		if !k.RemoveAt.IsZero() && !k.RemoveAt.Equal(old.RemoveAt) {
			add(k.RemoveAt, k.KID, EventRemove, "its last token has expired; leaves the key set")
		}
	}
	slices.SortStableFunc(events, byTime)
	return events
}

// notes are what an operator should know of a change to another algorithm.
func notes(p Params, before, after jose.SignatureAlgorithm, req Request, used bool) []string {
	var notes []string
	if used && after == jose.RS256 {
		notes = append(notes,
			fmt.Sprintf("RS256 costs about %d times as much as ES256 per signature: expect that much less capacity on the same cores.", rsaCost),
			"An issuer that signs RS256 cannot register itself with a Provider: that takes ES256.")
	}
	if used && before != after {
		notes = append(notes, fmt.Sprintf("Tokens change from %s to %s when the new key signs; Providers must accept both until the old key is removed.", before, after))
	}
	if req.Emergency || req.Withdraw {
		notes = append(notes, "Verifiers that keep a key set longer than its max-age can accept the revoked key for as long as they do.")
		if !used {
			notes = append(notes, "No new key is needed: the key that signs is another one.")
		}
	} else {
		notes = append(notes, fmt.Sprintf("Verifiers that neither refetch on an unknown kid nor at least every %v will refuse the new key at first.", p.Lead))
	}
	return notes
}
