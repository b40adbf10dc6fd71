package bolt

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
)

// appendAudit adds an entry to the chain, in the transaction of what it tells.
func (s *Store) appendAudit(tx *bbolt.Tx, e audit.Entry) error {
	b := tx.Bucket(auditBucket)
	b.FillPercent = 0.95 // keys only grow
	var head audit.Entry
	if _, v := b.Cursor().Last(); v != nil {
		if err := json.Unmarshal(v, &head); err != nil {
			return fmt.Errorf("store: a damaged audit entry: %w", err)
		}
	}
	if e.Time.IsZero() {
		e.Time = s.now()
	}
	e = audit.Chain(head.Seq, head.Hash, e)
	return putJSON(b, binary.BigEndian.AppendUint64(nil, e.Seq), e)
}

// AppendAudit appends an entry that belongs to no other write. It shares its
// transaction with other calls, since refusals come in numbers.
func (s *Store) AppendAudit(ctx context.Context, e audit.Entry) error {
	return s.writer.do(ctx, func(b *batch) error {
		b.writes = true
		return s.appendAudit(b.tx, e)
	})
}

// Audit returns at most size entries after number seq, oldest first.
func (s *Store) Audit(ctx context.Context, seq uint64, size int) ([]audit.Entry, error) {
	var list []audit.Entry
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		c := tx.Bucket(auditBucket).Cursor()
		for k, v := c.Seek(binary.BigEndian.AppendUint64(nil, seq+1)); k != nil && len(list) < size; k, v = c.Next() {
			var e audit.Entry
			if err := json.Unmarshal(v, &e); err != nil {
				return fmt.Errorf("store: a damaged audit entry: %w", err)
			}
			list = append(list, e)
		}
		return nil
	})
	return list, err
}
