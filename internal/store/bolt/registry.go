package bolt

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/signer"
)

// listJSON appends a page of an issuer's records to list.
func listJSON[T any](ctx context.Context, s *Store, bucket []byte, issuer string, p signer.Page, list *[]T) (next string, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) (err error) {
		next, err = page(tx.Bucket(bucket), issuer, p, func(_, v []byte) error {
			var r T
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("store: a damaged record: %w", err)
			}
			*list = append(*list, r)
			return nil
		})
		return err
	})
	return next, err
}

// PutEnrollmentToken writes a new token; ErrExists if its id or hash is taken.
func (s *Store) PutEnrollmentToken(ctx context.Context, t signer.EnrollmentToken, a audit.Entry) error {
	return s.update(ctx, func(tx *bbolt.Tx) error {
		tokens, hashes := tx.Bucket(tokensBucket), tx.Bucket(tokenHashesBucket)
		k, hashKey := key(t.Issuer, t.ID), key(t.Issuer, string(t.Hash[:]))
		if tokens.Get(k) != nil || hashes.Get(hashKey) != nil {
			return fmt.Errorf("enrolment token %q: %w", t.ID, signer.ErrExists)
		}
		if err := putJSON(tokens, k, t); err != nil {
			return err
		}
		if err := hashes.Put(hashKey, []byte(t.ID)); err != nil {
			return err
		}
		return s.appendAudit(tx, a)
	})
}

// EnrollmentTokens lists tokens by id.
func (s *Store) EnrollmentTokens(ctx context.Context, issuer string, p signer.Page) ([]signer.EnrollmentToken, string, error) {
	var list []signer.EnrollmentToken
	next, err := listJSON(ctx, s, tokensBucket, issuer, p, &list)
	return list, next, err
}

// RevokeEnrollmentToken ends a token. Idempotent; ErrNotFound.
func (s *Store) RevokeEnrollmentToken(ctx context.Context, issuer, id string, at time.Time, a audit.Entry) (signer.EnrollmentToken, error) {
	var t signer.EnrollmentToken
	err := s.update(ctx, func(tx *bbolt.Tx) error {
		found, err := getJSON(tx.Bucket(tokensBucket), key(issuer, id), &t)
		if err != nil {
			return err
		}
		if !found {
			return signer.ErrNotFound
		}
		if t.RevokedAt.IsZero() {
			t.RevokedAt = at
			if err := putJSON(tx.Bucket(tokensBucket), key(issuer, id), t); err != nil {
				return err
			}
		}
		return s.appendAudit(tx, a)
	})
	return t, err
}

// checkToken says whether a token lets d enrol, and returns it if it is yet to
// be bound. One that is bound to d does so even after its expiry: what expires
// is the right to enrol a first time.
func checkToken(tx *bbolt.Tx, d signer.Device, hash signer.Hash, now time.Time) (*signer.EnrollmentToken, error) {
	if hash == (signer.Hash{}) {
		return nil, refuse("token_missing")
	}
	id := tx.Bucket(tokenHashesBucket).Get(key(d.Issuer, string(hash[:])))
	if id == nil {
		return nil, refuse("token_unknown")
	}
	var t signer.EnrollmentToken
	found, err := getJSON(tx.Bucket(tokensBucket), key(d.Issuer, string(id)), &t)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, refuse("token_unknown")
	case !t.RevokedAt.IsZero():
		return nil, refuse("token_revoked")
	case t.Thumbprint == d.Thumbprint:
		return nil, nil
	case t.Thumbprint != "":
		return nil, refuse("token_spent")
	case !t.ExpiresAt.After(now):
		return nil, refuse("token_expired")
	}
	return &t, nil
}

// audiences reads an issuer's whole registry, which is small: it must fit a
// status response.
func audiences(tx *bbolt.Tx, issuer string) ([]signer.Audience, error) {
	var list []signer.Audience
	prefix := key(issuer, "")
	c := tx.Bucket(audiencesBucket).Cursor()
	for k, v := c.Seek(prefix); hasPrefix(k, prefix); k, v = c.Next() {
		var a signer.Audience
		if err := json.Unmarshal(v, &a); err != nil {
			return nil, fmt.Errorf("store: a damaged audience: %w", err)
		}
		list = append(list, a)
	}
	return list, nil
}

// AudiencesRevision counts the changes of registries since the file was opened.
func (s *Store) AudiencesRevision() uint64 { return s.registries.Load() }

// Audiences lists the registry of an issuer by origin.
func (s *Store) Audiences(ctx context.Context, issuer string) ([]signer.Audience, error) {
	var list []signer.Audience
	err := s.view(ctx, func(tx *bbolt.Tx) (err error) {
		list, err = audiences(tx, issuer)
		return err
	})
	return list, err
}

// SetAudience maps an origin; ErrExists if another origin has the audience.
func (s *Store) SetAudience(ctx context.Context, a signer.Audience, check func([]signer.Audience) error, e audit.Entry) error {
	defer s.registries.Add(1)
	return s.update(ctx, func(tx *bbolt.Tx) error {
		list, err := audiences(tx, a.Issuer)
		if err != nil {
			return err
		}
		for _, other := range list {
			if other.Audience == a.Audience && other.Origin != a.Origin {
				return fmt.Errorf("audience %q belongs to %s: %w", a.Audience, other.Origin, signer.ErrExists)
			}
		}
		at, found := slices.BinarySearchFunc(list, a.Origin, func(x signer.Audience, origin string) int {
			return strings.Compare(x.Origin, origin)
		})
		if found {
			list[at] = a
		} else {
			list = slices.Insert(list, at, a)
		}
		if check != nil {
			if err := check(list); err != nil {
				return err
			}
		}
		if err := putJSON(tx.Bucket(audiencesBucket), key(a.Issuer, a.Origin), a); err != nil {
			return err
		}
		return s.appendAudit(tx, e)
	})
}

// RemoveAudience forgets an origin; ErrNotFound.
func (s *Store) RemoveAudience(ctx context.Context, issuer, origin string, e audit.Entry) error {
	defer s.registries.Add(1)
	return s.update(ctx, func(tx *bbolt.Tx) error {
		b, k := tx.Bucket(audiencesBucket), key(issuer, origin)
		if b.Get(k) == nil {
			return signer.ErrNotFound
		}
		if err := b.Delete(k); err != nil {
			return err
		}
		return s.appendAudit(tx, e)
	})
}
