package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/signer"
)

// hashed is what the bucket hashes keeps of a credential under its hash, so
// that a call needs one look-up and no JSON:
//
//	flags (1: revoked), expiry in ms since 1970 or 0 (8), length of the id (2), id, subject
type hashed struct {
	revoked     bool
	expires     int64
	id, subject []byte // valid as long as the transaction
}

const revokedFlag = 1

func hashedOf(v []byte) (h hashed, found bool, err error) {
	if v == nil {
		return h, false, nil
	}
	if len(v) < 11 || len(v) < 11+int(binary.BigEndian.Uint16(v[9:])) {
		return h, true, errors.New("store: a damaged credential record")
	}
	n := int(binary.BigEndian.Uint16(v[9:]))
	return hashed{v[0]&revokedFlag != 0, int64(binary.BigEndian.Uint64(v[1:])), v[11 : 11+n], v[11+n:]}, true, nil
}

func (h hashed) expired(now time.Time) bool { return h.expires != 0 && now.UnixMilli() >= h.expires }

func hashedValue(c signer.Credential) []byte {
	v := make([]byte, 1, 11+len(c.ID)+len(c.Subject))
	if !c.RevokedAt.IsZero() {
		v[0] |= revokedFlag
	}
	var expires int64
	if !c.ExpiresAt.IsZero() {
		expires = max(c.ExpiresAt.UnixMilli(), 1)
	}
	v = binary.BigEndian.AppendUint64(v, uint64(expires))
	v = binary.BigEndian.AppendUint16(v, uint16(len(c.ID)))
	return append(append(v, c.ID...), c.Subject...)
}

func getCredential(tx *bbolt.Tx, issuer, id string) (c signer.Credential, err error) {
	found, err := getJSON(tx.Bucket(credentialsBucket), key(issuer, id), &c)
	if err == nil && !found {
		err = signer.ErrNotFound
	}
	return c, err
}

// putCredential writes c where old, which is zero for a new one, was.
func (s *Store) putCredential(tx *bbolt.Tx, old, c signer.Credential) error {
	if len(c.ID) > maxName || len(c.Name) > maxName || len(c.Subject) > maxName {
		return fmt.Errorf("store: id, name or subject of a credential is longer than %d bytes", maxName)
	}
	now := s.now()
	names, hashes := tx.Bucket(namesBucket), tx.Bucket(hashesBucket)
	nameKey, hashKey := key(c.Issuer, c.Name), key(c.Issuer, string(c.Hash[:]))
	if c.RevokedAt.IsZero() {
		holder, err := getCredential(tx, c.Issuer, string(names.Get(nameKey)))
		if err != nil && !errors.Is(err, signer.ErrNotFound) {
			return err
		}
		if err == nil && holder.ID != c.ID && active(holder, now) {
			return fmt.Errorf("credential name %q: %w", c.Name, signer.ErrExists)
		}
		if err := names.Put(nameKey, []byte(c.ID)); err != nil {
			return err
		}
	}
	if h, found, err := hashedOf(hashes.Get(hashKey)); err != nil {
		return err
	} else if found && string(h.id) != c.ID {
		return fmt.Errorf("credential hash: %w", signer.ErrExists)
	}
	if old.ID != "" && old.Hash != c.Hash {
		if err := hashes.Delete(key(c.Issuer, string(old.Hash[:]))); err != nil {
			return err
		}
	}
	if err := hashes.Put(hashKey, hashedValue(c)); err != nil {
		return err
	}
	was, is := old.ID != "" && old.RevokedAt.IsZero(), c.RevokedAt.IsZero()
	if was != is {
		n := 1
		if was {
			n = -1
		}
		if err := add(tx, credentialCount(c.Issuer), n); err != nil {
			return err
		}
	}
	return putJSON(tx.Bucket(credentialsBucket), key(c.Issuer, c.ID), c)
}

func active(c signer.Credential, now time.Time) bool {
	return c.RevokedAt.IsZero() && (c.ExpiresAt.IsZero() || c.ExpiresAt.After(now))
}

// PutCredential writes a new credential; ErrExists if its id is taken, or its
// name by an active credential, or its hash by any.
func (s *Store) PutCredential(ctx context.Context, c signer.Credential, a audit.Entry) error {
	return s.update(ctx, func(tx *bbolt.Tx) error {
		if tx.Bucket(credentialsBucket).Get(key(c.Issuer, c.ID)) != nil {
			return fmt.Errorf("credential id %q: %w", c.ID, signer.ErrExists)
		}
		if err := s.putCredential(tx, signer.Credential{}, c); err != nil {
			return err
		}
		return s.appendAudit(tx, a)
	})
}

// Credential returns a credential by id; ErrNotFound.
func (s *Store) Credential(ctx context.Context, issuer, id string) (signer.Credential, error) {
	var c signer.Credential
	err := s.view(ctx, func(tx *bbolt.Tx) (err error) {
		c, err = getCredential(tx, issuer, id)
		return err
	})
	return c, err
}

// Credentials lists credentials by id.
func (s *Store) Credentials(ctx context.Context, issuer string, p signer.Page) ([]signer.Credential, string, error) {
	var list []signer.Credential
	next, err := listJSON(ctx, s, credentialsBucket, issuer, p, &list)
	return list, next, err
}

// UpdateCredential changes a credential in place. What identifies it (issuer,
// id, principal, subject) cannot change.
func (s *Store) UpdateCredential(ctx context.Context, issuer, id string, change func(*signer.Credential) error, a audit.Entry) (signer.Credential, error) {
	var c signer.Credential
	err := s.update(ctx, func(tx *bbolt.Tx) error {
		old, err := getCredential(tx, issuer, id)
		if err != nil {
			return err
		}
		c = old
		if err := change(&c); err != nil {
			return err
		}
		if c.Issuer != old.Issuer || c.ID != old.ID || c.Principal != old.Principal || c.Subject != old.Subject {
			return errors.New("store: issuer, id, principal and subject of a credential never change")
		}
		if err := s.putCredential(tx, old, c); err != nil {
			return err
		}
		return s.appendAudit(tx, a)
	})
	if err != nil {
		return signer.Credential{}, err
	}
	return c, nil
}
