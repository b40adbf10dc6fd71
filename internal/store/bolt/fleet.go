package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/killswitch"
)

// fleet is the replicas that have beaten since the file was opened.
type fleet struct {
	mu       sync.Mutex
	replicas map[string]killswitch.Replica
}

// maxReplicas bounds what is remembered of replicas that are gone.
const maxReplicas = 1024

// list returns the replicas seen at since or later, by name.
func (f *fleet) list(since time.Time) []killswitch.Replica {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []killswitch.Replica
	for _, r := range f.replicas {
		if !r.Seen.Before(since) {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b killswitch.Replica) int { return strings.Compare(a.Replica, b.Replica) })
	return list
}

// Beat records the replica and returns what its permit rests on.
func (s *Store) Beat(ctx context.Context, b killswitch.Beat) (killswitch.Grant, error) {
	if b.Replica == "" {
		return killswitch.Grant{}, errors.New("store: a beat needs the replica's name")
	}
	b.Revisions = maps.Clone(b.Revisions)
	f := &s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	// First be known, then read the epoch: a kill that this misses has not read
	// the replicas yet.
	now := s.now()
	f.replicas[b.Replica] = killswitch.Replica{Beat: b, Seen: now}
	if len(f.replicas) > maxReplicas {
		maps.DeleteFunc(f.replicas, func(_ string, r killswitch.Replica) bool {
			return now.Sub(r.Seen) > s.opts.Registered
		})
	}
	g := killswitch.Grant{Time: now, Revisions: make(map[string]uint64)}
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		g.Epoch, g.Change = getUint(meta, epochKey), string(meta.Get(changeKey))
		return tx.Bucket(schedulesBucket).ForEach(func(k, v []byte) error {
			if len(v) >= 8 {
				g.Revisions[string(k)] = binary.BigEndian.Uint64(v)
			}
			return nil
		})
	})
	if err != nil {
		return killswitch.Grant{}, err
	}
	return g, nil
}

// Replicas lists the replicas seen within the last liveFor.
func (s *Store) Replicas(ctx context.Context, liveFor time.Duration) ([]killswitch.Replica, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.fleet.list(s.now().Add(-liveFor)), nil
}

// Serving tells which live replicas serve at least that revision of an issuer's
// schedule, and which do not or have not said.
func (s *Store) Serving(ctx context.Context, issuer string, revision uint64) (confirmed, missing []string, err error) {
	replicas, err := s.Replicas(ctx, s.opts.Registered)
	for _, r := range replicas {
		switch {
		case r.Epoch == killswitch.Gone:
		case r.Revisions[issuer] >= revision:
			confirmed = append(confirmed, r.Replica)
		default:
			missing = append(missing, r.Replica)
		}
	}
	return confirmed, missing, err
}

// Mirror keeps the newest schedule of an issuer, whose revision each grant
// tells. An older one than is there changes nothing; of one revision the document
// that came last is kept.
func (s *Store) Mirror(ctx context.Context, issuer string, revision uint64, doc []byte) error {
	changed := false
	err := s.update(ctx, func(tx *bbolt.Tx) error {
		b := tx.Bucket(schedulesBucket)
		if v := b.Get([]byte(issuer)); len(v) >= 8 {
			have := binary.BigEndian.Uint64(v)
			if have > revision || have == revision && bytes.Equal(v[8:], doc) {
				return nil
			}
			changed = have < revision
		} else {
			changed = true
		}
		return b.Put([]byte(issuer), append(binary.BigEndian.AppendUint64(nil, revision), doc...))
	})
	if err == nil && changed {
		s.notify()
	}
	return err
}

// Mirrored returns the newest schedule mirrored; revision 0 if there is none.
func (s *Store) Mirrored(ctx context.Context, issuer string) (revision uint64, doc []byte, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		if v := tx.Bucket(schedulesBucket).Get([]byte(issuer)); len(v) >= 8 {
			revision, doc = binary.BigEndian.Uint64(v), slices.Clone(v[8:])
		}
		return nil
	})
	return revision, doc, err
}
