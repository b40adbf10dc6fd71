package bolt

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/signer"
)

var _ signer.ActivityStore = (*Store)(nil)

// activityBucket holds what runs told of what they did: the time it came in
// microseconds, and what it is. A file from before this version has none until
// somebody tells something, and older versions leave it alone.
var activityBucket = []byte("activity")

// PutActivity keeps what a run of the signer told of what it did.
func (s *Store) PutActivity(ctx context.Context, run string, data []byte) error {
	return s.update(ctx, func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(activityBucket)
		if err != nil {
			return err
		}
		now := s.now()
		var gone [][]byte
		err = b.ForEach(func(k, v []byte) error {
			if len(v) < 8 || now.Sub(activityTime(v)) > signer.ActivityKept {
				gone = append(gone, slices.Clone(k))
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, k := range gone {
			if err := b.Delete(k); err != nil {
				return err
			}
		}
		return b.Put([]byte(run), append(binary.BigEndian.AppendUint64(nil, uint64(now.UnixMicro())), data...))
	})
}

// Activities returns what runs of the signer told, and the store's clock.
func (s *Store) Activities(ctx context.Context) ([]signer.ActivityRecord, time.Time, error) {
	var found []signer.ActivityRecord
	now := s.now()
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		b := tx.Bucket(activityBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			if len(v) < 8 { // damaged: it counts as not told
				return nil
			}
			if at := activityTime(v); now.Sub(at) <= signer.ActivityKept {
				found = append(found, signer.ActivityRecord{Run: string(k), At: at, Data: slices.Clone(v[8:])})
			}
			return nil
		})
	})
	return found, now, err
}

func activityTime(v []byte) time.Time {
	return time.UnixMicro(int64(binary.BigEndian.Uint64(v))).UTC()
}
