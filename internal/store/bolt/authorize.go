package bolt

import (
	"context"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/signer"
)

// Authorize decides on one authenticated call. A device's jti is on disk when it
// returns; a credential's call only reads.
func (s *Store) Authorize(ctx context.Context, a signer.Authorization) (signer.Authorized, error) {
	var (
		who signer.Authorized
		err error
	)
	switch a.Kind {
	case signer.DeviceCaller:
		err = s.writer.do(ctx, func(b *batch) (err error) {
			who, err = s.authorizeDevice(b, a)
			return err
		})
	case signer.CredentialCaller:
		err = s.view(ctx, func(tx *bbolt.Tx) (err error) {
			who, err = s.authorizeCredential(tx, a)
			return err
		})
	default:
		err = refuse("unknown")
	}
	if err != nil {
		return signer.Authorized{}, err
	}
	if wait, ok := s.limits.take(caller{who.Kind, a.Issuer, who.ID}, a.Limit); !ok {
		return who, &signer.LimitedError{RetryAfter: wait}
	}
	return who, nil
}

func (s *Store) authorizeDevice(b *batch, a signer.Authorization) (signer.Authorized, error) {
	// Another epoch, also a higher one: one of the two does not know all.
	if a.Epoch != b.epoch {
		return signer.Authorized{}, refusal{signer.ErrStaleEpoch}
	}
	k := key(a.Issuer, a.Thumbprint)
	d, found, err := stateOf(b.tx.Bucket(devicesBucket).Get(k))
	switch {
	case err != nil:
		return signer.Authorized{}, refusal{err}
	case !found:
		return signer.Authorized{}, refusal{refuse("unknown")}
	case d.invalidated:
		return signer.Authorized{}, refusal{refuse("invalidated")}
	case !s.seen.use(b, jtiOf(a.Issuer, a.Thumbprint, a.JTI)):
		return signer.Authorized{}, refusal{refuse("replayed")}
	}
	who := signer.Authorized{Kind: signer.DeviceCaller, ID: a.Thumbprint, Subject: string(d.subject)}
	if a.Sign {
		if err := markSigned(b, k); err != nil {
			return signer.Authorized{}, err
		}
	}
	return who, nil
}

func (s *Store) authorizeCredential(tx *bbolt.Tx, a signer.Authorization) (signer.Authorized, error) {
	if a.Epoch != getUint(tx.Bucket(metaBucket), epochKey) {
		return signer.Authorized{}, signer.ErrStaleEpoch
	}
	c, found, err := hashedOf(tx.Bucket(hashesBucket).Get(key(a.Issuer, string(a.Secret[:]))))
	switch {
	case err != nil:
		return signer.Authorized{}, err
	case !found:
		return signer.Authorized{}, refuse("unknown")
	case c.revoked:
		return signer.Authorized{}, refuse("revoked")
	case c.expired(s.opts.Now()):
		return signer.Authorized{}, refuse("expired")
	}
	return signer.Authorized{Kind: signer.CredentialCaller, ID: string(c.id), Subject: string(c.subject)}, nil
}

func refuse(why string) error { return &signer.RefusedError{Why: why} }
