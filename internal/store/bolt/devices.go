package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/signer"
)

// A device's value is what every call needs, then the whole record as JSON:
//
//	flags (1: invalidated), length of the subject (2 bytes), subject, JSON
//
// LastSignedAt is in the bucket signed, so that signing rewrites eight bytes.
type deviceState struct {
	invalidated bool
	subject     []byte // valid as long as the transaction
	record      []byte
}

const invalidatedFlag = 1

// maxName bounds what callers can make the store keep as a key.
const maxName = 1024

var errDamagedDevice = errors.New("store: a damaged device record")

func stateOf(v []byte) (d deviceState, found bool, err error) {
	if v == nil {
		return d, false, nil
	}
	if len(v) < 3 {
		return d, true, errDamagedDevice
	}
	n := int(binary.BigEndian.Uint16(v[1:]))
	if len(v) < 3+n {
		return d, true, errDamagedDevice
	}
	return deviceState{v[0]&invalidatedFlag != 0, v[3 : 3+n], v[3+n:]}, true, nil
}

func getDevice(tx *bbolt.Tx, k []byte) (d signer.Device, found bool, err error) {
	v := tx.Bucket(devicesBucket).Get(k)
	if v == nil {
		return d, false, nil
	}
	d, err = decodeDevice(tx, k, v)
	return d, true, err
}

func decodeDevice(tx *bbolt.Tx, k, v []byte) (d signer.Device, err error) {
	state, _, err := stateOf(v)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(state.record, &d); err != nil {
		return d, errDamagedDevice
	}
	if at := getUint(tx.Bucket(signedBucket), k); at != 0 {
		d.LastSignedAt = time.Unix(int64(at), 0).UTC()
	}
	return d, nil
}

func putDevice(tx *bbolt.Tx, d signer.Device) error {
	d.LastSignedAt = time.Time{}
	record, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("store: encode a device: %w", err)
	}
	v := make([]byte, 1, 3+len(d.Subject)+len(record))
	if !d.InvalidatedAt.IsZero() {
		v[0] |= invalidatedFlag
	}
	v = binary.BigEndian.AppendUint16(v, uint16(len(d.Subject)))
	v = append(v, d.Subject...)
	return tx.Bucket(devicesBucket).Put(key(d.Issuer, d.Thumbprint), append(v, record...))
}

// markSigned keeps when a device last signed, to the minute.
func markSigned(b *batch, k []byte) error {
	bucket := b.tx.Bucket(signedBucket)
	last, now := getUint(bucket, k), uint64(b.now.Unix())
	if last != 0 && now < last+60 {
		return nil
	}
	b.writes = true
	return putUint(bucket, k, now)
}

// Device returns a device; ErrNotFound.
func (s *Store) Device(ctx context.Context, issuer, thumbprint string) (signer.Device, error) {
	var d signer.Device
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		var found bool
		var err error
		d, found, err = getDevice(tx, key(issuer, thumbprint))
		if err == nil && !found {
			return signer.ErrNotFound
		}
		return err
	})
	return d, err
}

// Devices lists devices by thumbprint.
func (s *Store) Devices(ctx context.Context, issuer string, p signer.Page) ([]signer.Device, string, error) {
	var list []signer.Device
	var next string
	err := s.view(ctx, func(tx *bbolt.Tx) (err error) {
		next, err = page(tx.Bucket(devicesBucket), issuer, p, func(k, v []byte) error {
			d, err := decodeDevice(tx, k, v)
			list = append(list, d)
			return err
		})
		return err
	})
	return list, next, err
}

// Enroll stores a device once. A known thumbprint gets its record back, whatever
// else the enrolment says; in mode token also then only with a token that is
// bound to it or to nobody.
func (s *Store) Enroll(ctx context.Context, e signer.Enrolment) (signer.Device, error) {
	var stored signer.Device
	err := s.writer.do(ctx, func(b *batch) (err error) {
		stored, err = s.enroll(b, e)
		return err
	})
	if err != nil {
		return signer.Device{}, err
	}
	return stored, nil
}

func (s *Store) enroll(b *batch, e signer.Enrolment) (signer.Device, error) {
	if e.Epoch != b.epoch {
		return signer.Device{}, refusal{signer.ErrStaleEpoch}
	}
	d := e.Device
	if len(d.Subject) > maxName || len(d.Thumbprint) > maxName {
		return signer.Device{}, refusal{fmt.Errorf("store: thumbprint or subject is longer than %d bytes", maxName)}
	}
	k := key(d.Issuer, d.Thumbprint)
	stored, known, err := getDevice(b.tx, k)
	if err != nil {
		return signer.Device{}, refusal{err}
	}
	if known && !stored.InvalidatedAt.IsZero() {
		return signer.Device{}, refusal{refuse("invalidated")}
	}
	var token *signer.EnrollmentToken // to bind
	if e.NeedToken {
		if token, err = checkToken(b.tx, d, e.Token, b.now); err != nil {
			return signer.Device{}, refusal{err}
		}
	}
	if !known && e.Cap > 0 && getUint(b.tx.Bucket(countsBucket), deviceCount(d.Issuer)) >= uint64(e.Cap) {
		return signer.Device{}, refusal{signer.ErrFull}
	}
	if !s.seen.use(b, jtiOf(d.Issuer, d.Thumbprint, e.JTI)) {
		return signer.Device{}, refusal{refuse("replayed")}
	}
	if token != nil {
		token.Thumbprint = d.Thumbprint
		if err := putJSON(b.tx.Bucket(tokensBucket), key(token.Issuer, token.ID), token); err != nil {
			return signer.Device{}, err
		}
	}
	if known {
		return stored, nil
	}
	if d.EnrolledAt.IsZero() {
		d.EnrolledAt = b.now
	}
	d.LastSignedAt, d.InvalidatedAt, d.Reason = time.Time{}, time.Time{}, ""
	if err := putDevice(b.tx, d); err != nil {
		return signer.Device{}, err
	}
	if err := b.tx.Bucket(unsignedBucket).Put(unsignedKey(b.now, k), nil); err != nil {
		return signer.Device{}, err
	}
	return d, add(b.tx, deviceCount(d.Issuer), 1)
}

// Invalidate ends a device key for good, also one that was never enrolled.
func (s *Store) Invalidate(ctx context.Context, issuer, thumbprint, reason string, a audit.Entry) (signer.Device, error) {
	var d signer.Device
	err := s.update(ctx, func(tx *bbolt.Tx) error {
		var known bool
		var err error
		d, known, err = getDevice(tx, key(issuer, thumbprint))
		if err != nil {
			return err
		}
		if known && !d.InvalidatedAt.IsZero() {
			return s.appendAudit(tx, a) // asked again: recorded, changes nothing
		}
		if known {
			if err := add(tx, deviceCount(issuer), -1); err != nil {
				return err
			}
		} else {
			d = signer.Device{Issuer: issuer, Thumbprint: thumbprint}
		}
		d.InvalidatedAt, d.Reason = s.now(), reason
		if err := putDevice(tx, d); err != nil {
			return err
		}
		return s.appendAudit(tx, a)
	})
	return d, err
}

// unsignedKey orders enrolled devices by the time at which they did.
func unsignedKey(at time.Time, device []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(at.Unix())), device...)
}

// sweepDevices is how many enrolments one transaction looks back at.
const sweepDevices = 16

// sweepUnsigned removes devices that have not signed within the time given to
// them. Their subject is derived: enrolling again gives the same.
func (s *Store) sweepUnsigned(b *batch) error {
	bucket := b.tx.Bucket(unsignedBucket)
	limit := b.now.Add(-s.opts.NeverSigned).Unix()
	var old [][]byte
	c := bucket.Cursor()
	for k, _ := c.First(); len(k) > 8 && len(old) < sweepDevices && int64(binary.BigEndian.Uint64(k)) <= limit; k, _ = c.Next() {
		old = append(old, bytes.Clone(k))
	}
	for _, k := range old {
		device := k[8:]
		b.writes = true
		if err := bucket.Delete(k); err != nil {
			return err
		}
		if getUint(b.tx.Bucket(signedBucket), device) != 0 {
			continue
		}
		d, found, err := getDevice(b.tx, device)
		if err != nil || !found || !d.InvalidatedAt.IsZero() {
			continue // a damaged record is for who asks for it, not for the sweep
		}
		if err := b.tx.Bucket(devicesBucket).Delete(device); err != nil {
			return err
		}
		if err := add(b.tx, deviceCount(d.Issuer), -1); err != nil {
			return err
		}
	}
	return nil
}

func deviceCount(issuer string) []byte     { return key(issuer, "devices") }
func credentialCount(issuer string) []byte { return key(issuer, "credentials") }

func add(tx *bbolt.Tx, counter []byte, n int) error {
	b := tx.Bucket(countsBucket)
	return putUint(b, counter, uint64(max(int64(getUint(b, counter))+int64(n), 0)))
}

// Counts returns how many devices and credentials are in force: not invalidated
// and not revoked.
func (s *Store) Counts(ctx context.Context, issuer string) (devices, credentials uint64, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		b := tx.Bucket(countsBucket)
		devices, credentials = getUint(b, deviceCount(issuer)), getUint(b, credentialCount(issuer))
		return nil
	})
	return devices, credentials, err
}
