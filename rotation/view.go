package rotation

import (
	"context"
	"crypto"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/jwks"
)

// view is a schedule with everything that a request asks of it worked out
// beforehand. It never changes.
type view struct {
	schedule Schedule
	document custody.Document // as custody has it
	moments  []moment
	publics  map[string]crypto.PublicKey // by ref, of the keys not yet gone
}

// moment is what holds from a time until the next moment.
type moment struct {
	at        time.Time
	signing   Key
	signs     bool
	keys      jwks.Document
	discovery jwks.Document
}

// at returns the moment that holds at t. It allocates nothing.
func (v *view) at(t time.Time) *moment {
	for i := len(v.moments) - 1; i > 0; i-- {
		if !t.Before(v.moments[i].at) {
			return &v.moments[i]
		}
	}
	// A clock that was set back stays with the oldest moment worked out.
	return &v.moments[0]
}

// newView works out what holds from now on.
func newView(s Schedule, doc custody.Document, publics map[string]crypto.PublicKey, now time.Time) (*view, error) {
	v := &view{schedule: s, document: doc, publics: publics}
	times := s.transitions()
	// The last transition that has passed holds now.
	past := 0
	for past+1 < len(times) && !times[past+1].After(now) {
		past++
	}
	for i, t := range times[past:] {
		published := s.Published(t)
		if len(published) == 0 && i == 0 && len(times[past:]) > 1 {
			continue // everything was revoked; by this clock the fresh key comes soon
		}
		keys, discovery, err := v.documents(published)
		if err != nil {
			return nil, err
		}
		signing, signs := s.Signing(t)
		v.moments = append(v.moments, moment{t, signing, signs, keys, discovery})
	}
	return v, nil
}

// documents renders the key set and the discovery document for keys.
func (v *view) documents(keys []Key) (set, discovery jwks.Document, err error) {
	public := make([]jwks.Key, len(keys))
	algs := make([]jose.SignatureAlgorithm, len(keys))
	for i, k := range keys {
		public[i] = jwks.Key{ID: k.KID, Algorithm: k.Algorithm, Public: v.publics[k.Ref]}
		algs[i] = k.Algorithm
	}
	if set, err = jwks.NewDocument(public); err == nil {
		discovery, err = jwks.Discovery(v.schedule.Issuer, algs...)
	}
	if err != nil {
		return set, discovery, fmt.Errorf("%w: %w", ErrDocument, err)
	}
	return set, discovery, nil
}

// stale is what a replica serves that has heard nothing since a time: keys that
// would leave by the clock stay, for their leaving may have been put off.
func (v *view) stale(since, now time.Time) (set, discovery jwks.Document, err error) {
	m := v.at(now)
	if keys := v.schedule.publishedSince(since, now); !slices.Equal(keys, v.schedule.Published(now)) {
		return v.documents(keys)
	}
	return m.keys, m.discovery, nil
}

// publicKeys fetches the public halves, by ref, of the keys that are or will be
// published, and refuses one that is not what the schedule says. Those of known
// are not fetched again.
func publicKeys(ctx context.Context, k custody.Keyring, s Schedule, known map[string]crypto.PublicKey, since time.Time) (map[string]crypto.PublicKey, error) {
	publics := map[string]crypto.PublicKey{}
	for _, key := range s.Keys {
		if !key.RevokedAt.IsZero() || !key.RemoveAt.IsZero() && !key.RemoveAt.After(since) {
			continue
		}
		pub, ok := known[key.Ref]
		if !ok {
			var err error
			if pub, _, err = k.Public(ctx, key.Ref); err != nil {
				return nil, fmt.Errorf("rotation: key %s: %w", key.KID, err)
			}
		}
		kid, err := jwks.Thumbprint(pub)
		if err != nil {
			return nil, fmt.Errorf("%w: key %s: %w", ErrDocument, key.KID, err)
		}
		if kid != key.KID {
			return nil, fmt.Errorf("%w: custody's key %s is %s, the schedule says %s", ErrDocument, key.Ref, kid, key.KID)
		}
		publics[key.Ref] = pub
	}
	return publics, nil
}
