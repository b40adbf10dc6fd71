package bolt

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/signer"
)

// seen is the jtis used within the replay window. On disk they are a log: one
// record per transaction, keyed by time, of all jtis that it used up. In memory
// they are a set, which is what is asked.
//
// Its clock is steady: it starts at the wall clock or the newest record,
// whichever is later, and then runs with the time elapsed. So a wall clock that
// is set back, even between two starts, makes jtis be kept longer, never shorter.
type seen struct {
	set    map[jti]struct{}
	base   time.Time
	last   time.Time
	window time.Duration
}

// jti is a hash of issuer, thumbprint and the jti's hash. 128 bits suffice: who
// finds two of a kind has made both with one key, and gets one of them refused.
type jti [16]byte

func jtiOf(issuer, thumbprint string, h signer.Hash) jti {
	d := sha256.New()
	io.WriteString(d, issuer)
	d.Write([]byte{0})
	io.WriteString(d, thumbprint)
	d.Write([]byte{0})
	d.Write(h[:])
	return jti(d.Sum(nil)[:len(jti{})])
}

// sweepRecords is how many records one transaction forgets at most. It writes
// one, so the log cannot grow past its window for long.
const sweepRecords = 64

func loadSeen(tx *bbolt.Tx, now time.Time, window time.Duration) (*seen, error) {
	s := &seen{set: make(map[jti]struct{}), base: now, window: window}
	err := tx.Bucket(jtisBucket).ForEach(func(k, v []byte) error {
		if at := recordTime(k); at.After(s.base) {
			s.base = at
		}
		s.each(v, func(j jti) { s.set[j] = struct{}{} })
		return nil
	})
	s.last = s.base
	return s, err
}

// use marks a jti as used up by the batch, and says whether it was not before.
// If the batch then fails it stays marked: nobody can know what is on disk.
func (s *seen) use(b *batch, j jti) bool {
	if _, used := s.set[j]; used {
		return false
	}
	s.set[j] = struct{}{}
	b.jtis = append(b.jtis, j[:]...)
	b.writes = true
	return true
}

// log writes the batch's record. sweep has set the time.
func (s *seen) log(b *batch) error {
	if len(b.jtis) == 0 {
		return nil
	}
	bucket := b.tx.Bucket(jtisBucket)
	bucket.FillPercent = 0.95 // keys only grow
	seq, err := bucket.NextSequence()
	if err != nil {
		return err
	}
	k := binary.BigEndian.AppendUint64(nil, uint64(s.last.UnixNano()))
	return bucket.Put(binary.BigEndian.AppendUint64(k, seq), b.jtis)
}

// sweep moves the clock and forgets what has left the window.
func (s *seen) sweep(b *batch, elapsed time.Duration) error {
	if now := s.base.Add(elapsed); now.After(s.last) {
		s.last = now
	}
	bucket := b.tx.Bucket(jtisBucket)
	var old [][]byte
	c := bucket.Cursor()
	for k, v := c.First(); k != nil && len(old) < sweepRecords && s.last.Sub(recordTime(k)) >= s.window; k, v = c.Next() {
		s.each(v, func(j jti) { delete(s.set, j) })
		old = append(old, bytes.Clone(k))
	}
	for _, k := range old {
		if err := bucket.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

func (s *seen) each(record []byte, f func(jti)) {
	for ; len(record) >= len(jti{}); record = record[len(jti{}):] {
		f(jti(record[:len(jti{})]))
	}
}

func recordTime(k []byte) time.Time {
	if len(k) < 8 {
		return time.Time{}
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(k)))
}
