// Package audit defines the hash-chained log of administrative acts and of
// refusals to authenticated callers. Stores append entries; anybody can verify
// an exported log with Verify.
package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Entry is one act. Seq, PreviousHash and Hash are set by Chain.
type Entry struct {
	Seq    uint64    `json:"seq"`
	Time   time.Time `json:"time"`
	Actor  string    `json:"actor"`
	Action string    `json:"action"`
	Issuer string    `json:"issuer,omitempty"`
	Target string    `json:"target,omitempty"`
	Reason string    `json:"reason,omitempty"`
	// Detail never holds a secret.
	Detail       map[string]string `json:"detail,omitempty"`
	PreviousHash string            `json:"previousHash"`
	Hash         string            `json:"hash"`
}

// Chain returns e as the successor of the entry with number seq and hash head
// (0 and "" at the start of a log).
func Chain(seq uint64, head string, e Entry) Entry {
	e.Seq = seq + 1
	e.Time = e.Time.UTC().Truncate(time.Millisecond)
	e.PreviousHash = head
	e.Hash = e.digest()
	return e
}

// digest is the SHA-256 of the entry's JSON without its hash. It covers the
// previous hash, and so all that came before.
func (e Entry) digest() string {
	e.Hash = ""
	b, err := json.Marshal(e) // struct order is fixed, map keys are sorted
	if err != nil {
		panic("audit: an Entry always encodes: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Head names the newest entry of a log. Whoever keeps it notices when the newest
// entries are gone, which the chain itself cannot tell.
type Head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// ErrBroken is wrapped by Verifier for an entry that does not fit.
var ErrBroken = errors.New("audit: chain is broken")

// DamagedError says which entry of a stored log cannot be read.
type DamagedError struct{ Seq uint64 }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("audit: entry %d is damaged and cannot be read", e.Seq)
}

// Verifier checks a log entry by entry, oldest first. The zero value is ready.
type Verifier struct {
	Entries uint64 // how many entries fit so far
	Head    string // hash of the last one

	heads []Head
}

// Expect makes the log's recorded heads part of what is checked: their entries
// must be there, as they were. Call it before the first Add; the zero Head expects
// nothing.
func (v *Verifier) Expect(heads ...Head) { v.heads = append(v.heads, heads...) }

// End says what is missing after the last entry was added.
func (v *Verifier) End() error {
	for _, h := range v.heads {
		if h.Seq > v.Entries {
			return fmt.Errorf("%w after entry %d: entries up to number %d were written, and are gone", ErrBroken, v.Entries, h.Seq)
		}
	}
	return nil
}

// Add checks that e follows the entries added before it.
func (v *Verifier) Add(e Entry) error {
	switch {
	case e.Seq != v.Entries+1:
		return fmt.Errorf("%w at entry %d: expected number %d", ErrBroken, e.Seq, v.Entries+1)
	case e.PreviousHash != v.Head:
		return fmt.Errorf("%w at entry %d: it does not follow entry %d", ErrBroken, e.Seq, v.Entries)
	case e.Hash != e.digest():
		return fmt.Errorf("%w at entry %d: its content was changed", ErrBroken, e.Seq)
	}
	for _, h := range v.heads {
		if h.Seq == e.Seq && h.Hash != e.Hash {
			return fmt.Errorf("%w at entry %d: another entry was written under this number", ErrBroken, e.Seq)
		}
	}
	v.Entries, v.Head = e.Seq, e.Hash
	return nil
}
