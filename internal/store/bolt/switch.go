package bolt

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
)

// Entries and resumes are kept under their epoch and the hash of their JSON:
// what is there is never written again.

var (
	epochKey  = []byte("epoch")
	changeKey = []byte("change") // the random name of the last change
)

func putContent(b *bbolt.Bucket, epoch uint64, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("store: encode the switch: %w", err)
	}
	sum := sha256.Sum256(data)
	return b.Put(append(binary.BigEndian.AppendUint64(nil, epoch), sum[:]...), data)
}

func listContent[T any](b *bbolt.Bucket) ([]T, error) {
	var list []T
	err := b.ForEach(func(_, v []byte) error {
		var x T
		if err := json.Unmarshal(v, &x); err != nil {
			return fmt.Errorf("store: a damaged switch record: %w", err)
		}
		list = append(list, x)
		return nil
	})
	return list, err
}

func switchState(tx *bbolt.Tx) (killswitch.State, error) {
	meta := tx.Bucket(metaBucket)
	s := killswitch.State{Epoch: getUint(meta, epochKey), Change: string(meta.Get(changeKey))}
	var err error
	if s.Entries, err = listContent[killswitch.Entry](tx.Bucket(entriesBucket)); err != nil {
		return s, err
	}
	s.Resumes, err = listContent[killswitch.Resume](tx.Bucket(resumesBucket))
	return s, err
}

// State returns the whole switch.
func (s *Store) State(ctx context.Context) (killswitch.State, error) {
	var state killswitch.State
	err := s.view(ctx, func(tx *bbolt.Tx) (err error) {
		state, err = switchState(tx)
		return err
	})
	return state, err
}

// nextEpoch moves the epoch on, to floor at least.
func nextEpoch(tx *bbolt.Tx, floor uint64) (uint64, error) {
	epoch := killswitch.NextEpoch(getUint(tx.Bucket(metaBucket), epochKey), floor)
	return epoch, putEpoch(tx, epoch)
}

// putEpoch writes the epoch that a change leads to, and names the change.
func putEpoch(tx *bbolt.Tx, epoch uint64) error {
	meta := tx.Bucket(metaBucket)
	if err := meta.Put(changeKey, []byte(rand.Text())); err != nil {
		return err
	}
	return putUint(meta, epochKey, epoch)
}

// Enforce implements killswitch.Store. The file has one epoch, which Authorize
// reads in its own transaction.
func (s *Store) Enforce(context.Context, uint64) error { return nil }

// Kill adds an entry and returns the replicas registered when it was written.
func (s *Store) Kill(ctx context.Context, e killswitch.Entry, floor uint64, a audit.Entry) (killswitch.Entry, []killswitch.Replica, error) {
	if e.ID == "" {
		return e, nil, errors.New("store: a kill needs an id")
	}
	err := s.update(ctx, func(tx *bbolt.Tx) (err error) {
		if e.Epoch, err = nextEpoch(tx, floor); err != nil {
			return err
		}
		e.Time, e.Expires = s.now().Round(0), e.Expires.UTC().Round(0)
		if err := putContent(tx.Bucket(entriesBucket), e.Epoch, e); err != nil {
			return err
		}
		return s.appendAudit(tx, a)
	})
	if err != nil {
		return killswitch.Entry{}, nil, err
	}
	// Read after the epoch is visible: who has beaten on the old one is in it.
	replicas := s.fleet.list(s.now().Add(-s.opts.Registered))
	s.notify()
	return e, replicas, nil
}

// Resume adds a resume; killswitch.ErrChanged if the epoch is not seen.
func (s *Store) Resume(ctx context.Context, r killswitch.Resume, seen, floor uint64, a audit.Entry) (killswitch.Resume, error) {
	if r.ID == "" {
		return r, errors.New("store: a resume needs an id")
	}
	err := s.update(ctx, func(tx *bbolt.Tx) (err error) {
		if getUint(tx.Bucket(metaBucket), epochKey) != seen {
			return killswitch.ErrChanged
		}
		if r.Epoch, err = nextEpoch(tx, floor); err != nil {
			return err
		}
		r.Time, r.Entries = s.now().Round(0), slices.Compact(slices.Sorted(slices.Values(r.Entries)))
		if err := putContent(tx.Bucket(resumesBucket), r.Epoch, r); err != nil {
			return err
		}
		return s.appendAudit(tx, a)
	})
	if err != nil {
		return killswitch.Resume{}, err
	}
	s.notify()
	return r, nil
}

// Merge adds what other holds and the store lacks.
func (s *Store) Merge(ctx context.Context, other killswitch.State) (killswitch.State, error) {
	var state killswitch.State
	changed := false
	err := s.update(ctx, func(tx *bbolt.Tx) error {
		old, err := switchState(tx)
		if err != nil {
			return err
		}
		if state, changed = old.Absorb(other); !changed {
			state.Change = old.Change
			return nil
		}
		for _, e := range state.Entries {
			if err := putContent(tx.Bucket(entriesBucket), e.Epoch, e); err != nil {
				return err
			}
		}
		for _, r := range state.Resumes {
			if err := putContent(tx.Bucket(resumesBucket), r.Epoch, r); err != nil {
				return err
			}
		}
		if err := putEpoch(tx, state.Epoch); err != nil {
			return err
		}
		state.Change = string(tx.Bucket(metaBucket).Get(changeKey))
		return nil
	})
	if err != nil {
		return killswitch.State{}, err
	}
	if changed {
		s.notify()
	}
	return state, nil
}
