package bolt

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

var _ signer.StateStore = (*Store)(nil)

// Export calls yield with everything that the file holds, all of one moment.
func (s *Store) Export(ctx context.Context, yield func(signer.Record) error) error {
	next := func(r signer.Record) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return yield(r)
	}
	return s.view(ctx, func(tx *bbolt.Tx) error {
		state, err := switchState(tx)
		if err != nil {
			return err
		}
		if err := next(signer.Record{Switch: &state}); err != nil {
			return err
		}
		for _, list := range []struct {
			bucket []byte
			record func(k, v []byte) (signer.Record, error)
		}{
			{schedulesBucket, exportSchedule},
			{audiencesBucket, func(_, v []byte) (r signer.Record, err error) { return r, json.Unmarshal(v, &r.Audience) }},
			{credentialsBucket, func(_, v []byte) (r signer.Record, err error) { return r, json.Unmarshal(v, &r.Credential) }},
			{tokensBucket, func(_, v []byte) (r signer.Record, err error) { return r, json.Unmarshal(v, &r.EnrollmentToken) }},
			{devicesBucket, func(k, v []byte) (r signer.Record, err error) {
				d, err := decodeDevice(tx, k, v)
				r.Device = &d
				return r, err
			}},
			{auditBucket, func(k, v []byte) (r signer.Record, err error) {
				if json.Unmarshal(v, &r.Audit) != nil && len(k) == 8 {
					err = &audit.DamagedError{Seq: binary.BigEndian.Uint64(k)}
				}
				return r, err
			}},
		} {
			err := tx.Bucket(list.bucket).ForEach(func(k, v []byte) error {
				r, err := list.record(k, v)
				if err != nil {
					return fmt.Errorf("store: a damaged record in %s: %w", list.bucket, err)
				}
				return next(r)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func exportSchedule(k, v []byte) (signer.Record, error) {
	if len(v) < 8 {
		return signer.Record{}, errors.New("its revision is missing")
	}
	return signer.Record{Schedule: &signer.MirroredSchedule{
		Issuer: string(k), Revision: binary.BigEndian.Uint64(v), Document: slices.Clone(v[8:]),
	}}, nil
}

// Import puts records into a file that has none: signer.ErrNotEmpty. It is one
// transaction, whose pages are in memory until it ends. A switch and schedules that
// are there already, since a running signer keeps them there, are merged with.
func (s *Store) Import(ctx context.Context, next func() (signer.Record, error)) error {
	err := s.update(ctx, func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{devicesBucket, credentialsBucket, tokensBucket, audiencesBucket, auditBucket} {
			if k, _ := tx.Bucket(name).Cursor().First(); k != nil {
				return fmt.Errorf("store: %s: %w", name, signer.ErrNotEmpty)
			}
			tx.Bucket(name).FillPercent = 0.9 // records come in the order of their keys
		}
		in := importing{store: s, tx: tx}
		for {
			if err := ctx.Err(); err != nil {
				return err
			}
			r, err := next()
			if errors.Is(err, io.EOF) {
				return in.end()
			}
			if err != nil {
				return err
			}
			if err := in.put(r); err != nil {
				return fmt.Errorf("store: import: %w", err)
			}
		}
	})
	if err != nil {
		return err
	}
	s.registries.Add(1)
	s.notify()
	return nil
}

// importing is an import that is under way.
type importing struct {
	store *Store
	tx    *bbolt.Tx
	kills killswitch.State
	head  audit.Head
}

// put writes one record and what goes with it.
func (i *importing) put(r signer.Record) error {
	switch {
	case r.Device != nil:
		return i.device(*r.Device)
	case r.Credential != nil:
		return i.credential(*r.Credential)
	case r.EnrollmentToken != nil:
		t := *r.EnrollmentToken
		if err := i.once(tokensBucket, key(t.Issuer, t.ID)); err != nil {
			return err
		}
		if err := i.tx.Bucket(tokenHashesBucket).Put(key(t.Issuer, string(t.Hash[:])), []byte(t.ID)); err != nil {
			return err
		}
		return putJSON(i.tx.Bucket(tokensBucket), key(t.Issuer, t.ID), t)
	case r.Audience != nil:
		k := key(r.Audience.Issuer, r.Audience.Origin)
		if err := i.once(audiencesBucket, k); err != nil {
			return err
		}
		return putJSON(i.tx.Bucket(audiencesBucket), k, r.Audience)
	case r.Switch != nil:
		if err := r.Switch.Check(); err != nil {
			return err
		}
		i.kills = killswitch.Merge(i.kills, *r.Switch)
		return nil
	case r.Schedule != nil:
		b, k := i.tx.Bucket(schedulesBucket), []byte(r.Schedule.Issuer)
		if v := b.Get(k); len(v) >= 8 && binary.BigEndian.Uint64(v) > r.Schedule.Revision {
			return nil
		}
		return b.Put(k, append(binary.BigEndian.AppendUint64(nil, r.Schedule.Revision), r.Schedule.Document...))
	case r.Audit != nil:
		if r.Audit.Seq != i.head.Seq+1 || r.Audit.PreviousHash != i.head.Hash {
			return fmt.Errorf("audit entry %d does not follow entry %d", r.Audit.Seq, i.head.Seq)
		}
		i.head = audit.Head{Seq: r.Audit.Seq, Hash: r.Audit.Hash}
		return putJSON(i.tx.Bucket(auditBucket), binary.BigEndian.AppendUint64(nil, r.Audit.Seq), r.Audit)
	}
	return errors.New("a record is none")
}

// once refuses a record whose key is taken.
func (i *importing) once(bucket, k []byte) error {
	if i.tx.Bucket(bucket).Get(k) != nil {
		return fmt.Errorf("%s: one record comes twice", bucket)
	}
	return nil
}

func (i *importing) device(d signer.Device) error {
	k := key(d.Issuer, d.Thumbprint)
	if err := i.once(devicesBucket, k); err != nil {
		return err
	}
	if len(d.Subject) > maxName || len(d.Thumbprint) > maxName {
		return fmt.Errorf("thumbprint or subject is longer than %d bytes", maxName)
	}
	if err := putDevice(i.tx, d); err != nil {
		return err
	}
	if !d.LastSignedAt.IsZero() {
		if err := putUint(i.tx.Bucket(signedBucket), k, uint64(d.LastSignedAt.Unix())); err != nil {
			return err
		}
	}
	if !d.InvalidatedAt.IsZero() {
		return nil
	}
	if d.LastSignedAt.IsZero() { // its time to sign goes on
		if err := i.tx.Bucket(unsignedBucket).Put(unsignedKey(d.EnrolledAt, k), nil); err != nil {
			return err
		}
	}
	return add(i.tx, deviceCount(d.Issuer), 1)
}

func (i *importing) credential(c signer.Credential) error {
	k, hashKey, nameKey := key(c.Issuer, c.ID), key(c.Issuer, string(c.Hash[:])), key(c.Issuer, c.Name)
	if err := errors.Join(i.once(credentialsBucket, k), i.once(hashesBucket, hashKey)); err != nil {
		return err
	}
	if len(c.ID) > maxName || len(c.Name) > maxName || len(c.Subject) > maxName {
		return fmt.Errorf("id, name or subject of a credential is longer than %d bytes", maxName)
	}
	if err := i.tx.Bucket(hashesBucket).Put(hashKey, hashedValue(c)); err != nil {
		return err
	}
	if c.RevokedAt.IsZero() {
		// Several may have had the name, one after the other.
		names, now := i.tx.Bucket(namesBucket), i.store.now()
		holder, err := getCredential(i.tx, c.Issuer, string(names.Get(nameKey)))
		if err != nil && !errors.Is(err, signer.ErrNotFound) {
			return err
		}
		if err != nil || !active(holder, now) {
			if err := names.Put(nameKey, []byte(c.ID)); err != nil {
				return err
			}
		}
		if err := add(i.tx, credentialCount(c.Issuer), 1); err != nil {
			return err
		}
	}
	return putJSON(i.tx.Bucket(credentialsBucket), k, c)
}

// end writes what was gathered.
func (i *importing) end() error {
	have, err := switchState(i.tx)
	if err != nil {
		return err
	}
	if state, changed := have.Absorb(i.kills); changed {
		for _, e := range state.Entries {
			if err := putContent(i.tx.Bucket(entriesBucket), e.Epoch, e); err != nil {
				return err
			}
		}
		for _, r := range state.Resumes {
			if err := putContent(i.tx.Bucket(resumesBucket), r.Epoch, r); err != nil {
				return err
			}
		}
		if err := putEpoch(i.tx, state.Epoch); err != nil {
			return err
		}
	}
	return putJSON(i.tx.Bucket(metaBucket), auditHeadKey, i.head)
}
