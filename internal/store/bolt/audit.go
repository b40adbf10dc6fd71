package bolt

import (
	"context"
	"encoding/binary"
	"encoding/json"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
)

// auditHeadKey is where the newest entry that was ever appended is named.
var auditHeadKey = []byte("auditHead")

// appendAudit adds an entry to the chain, in the transaction of what it tells. A
// damaged log stops no act: the chain goes on from what is known of its end, and
// verifying tells.
func (s *Store) appendAudit(tx *bbolt.Tx, e audit.Entry) error {
	b := tx.Bucket(auditBucket)
	b.FillPercent = 0.95 // keys only grow
	head := writtenHead(tx)
	if last := lastEntry(tx); last.Seq > head.Seq {
		head = last
	}
	if e.Time.IsZero() {
		e.Time = s.now()
	}
	e = audit.Chain(head.Seq, head.Hash, e)
	if err := putJSON(b, binary.BigEndian.AppendUint64(nil, e.Seq), e); err != nil {
		return err
	}
	return putJSON(tx.Bucket(metaBucket), auditHeadKey, audit.Head{Seq: e.Seq, Hash: e.Hash})
}

// writtenHead is the newest entry that was appended, as far as that is known.
func writtenHead(tx *bbolt.Tx) audit.Head {
	var head audit.Head
	if _, err := getJSON(tx.Bucket(metaBucket), auditHeadKey, &head); err != nil {
		return audit.Head{}
	}
	return head
}

// lastEntry is the newest entry that is there; its hash is empty if the entry is
// damaged.
func lastEntry(tx *bbolt.Tx) audit.Head {
	k, v := tx.Bucket(auditBucket).Cursor().Last()
	if len(k) != 8 {
		return audit.Head{}
	}
	head := audit.Head{Seq: binary.BigEndian.Uint64(k)}
	var e audit.Entry
	if json.Unmarshal(v, &e) == nil {
		head.Hash = e.Hash
	}
	return head
}

// AppendAudit appends an entry that belongs to no other write. It shares its
// transaction with other calls, since refusals come in numbers.
func (s *Store) AppendAudit(ctx context.Context, e audit.Entry) error {
	return s.writer.do(ctx, func(b *batch) error {
		b.writes = true
		return s.appendAudit(b.tx, e)
	})
}

// AuditHead returns the newest entry that the log has, with an empty hash if that
// one is damaged, and the newest that was ever appended. They are the same unless
// entries were deleted.
func (s *Store) AuditHead(ctx context.Context) (last, written audit.Head, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		last, written = lastEntry(tx), writtenHead(tx)
		return nil
	})
	return last, written, err
}

// Audit returns at most size entries after number seq, oldest first. With a
// *audit.DamagedError it returns those before the damaged one.
func (s *Store) Audit(ctx context.Context, seq uint64, size int) ([]audit.Entry, error) {
	var list []audit.Entry
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		c := tx.Bucket(auditBucket).Cursor()
		for k, v := c.Seek(binary.BigEndian.AppendUint64(nil, seq+1)); k != nil && len(list) < size; k, v = c.Next() {
			var e audit.Entry
			if err := json.Unmarshal(v, &e); err != nil {
				return &audit.DamagedError{Seq: binary.BigEndian.Uint64(k)}
			}
			list = append(list, e)
		}
		return nil
	})
	return list, err
}
