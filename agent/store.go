package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
)

// Errors of a Store.
var (
	// ErrNotFound: no such record, for that principal (ID-7).
	ErrNotFound = errors.New("not found")
	// ErrConflict: the record changed since it was read, or exists already, or
	// its key is taken.
	ErrConflict = errors.New("changed meanwhile")
	// ErrDamaged: a record cannot be read as what it is.
	ErrDamaged = errors.New("the profile's store is damaged: see pactctl doctor")
)

// Store is the agent's durable journal. Its transactions are serializable, also
// between processes on one profile, and durable when Update returns: what must
// be on disk before the network is used is written in an Update before it.
// agent/sqlite is the implementation. Transactions are short and never nested.
type Store interface {
	// View runs fn on one consistent snapshot.
	View(ctx context.Context, fn func(Tx) error) error
	// Update runs fn in a write transaction: all of it is committed if fn
	// returns nil, else nothing. Another process's transaction is waited for.
	Update(ctx context.Context, fn func(Tx) error) error
	Close() error
}

// storeChecker is a Store that can look itself over for damage.
type storeChecker interface {
	Check(ctx context.Context) error
}

// Tx is a transaction; it must not be used after its function returned.
type Tx interface {
	// Get reads one record. Errors wrap ErrNotFound.
	Get(kind Kind, principal, id string) (Record, error)
	// Find lists records, newest first.
	Find(kind Kind, q Query) ([]Record, error)
	// Put inserts a record (Revision 0) or replaces the stored revision
	// Revision, and stores it as Revision+1. Errors wrap ErrConflict.
	Put(kind Kind, r Record) error
	// Delete removes a record, if it exists.
	Delete(kind Kind, principal, id string) error

	// Secret reads sealed bytes. Errors wrap ErrNotFound.
	Secret(id string) ([]byte, error)
	PutSecret(id string, sealed []byte) error
	DeleteSecret(id string) error
}

// Kind names a table of records.
type Kind string

// The kinds.
const (
	KindSettings      Kind = "settings"
	KindIdentity      Kind = "identities"
	KindBinding       Kind = "bindings"
	KindProvider      Kind = "providers"
	KindBusiness      Kind = "businesses"
	KindGrant         Kind = "grants"
	KindAuthorization Kind = "authorizations"
	KindConversation  Kind = "conversations"
	KindMessage       Kind = "messages"
	KindReceipt       Kind = "receipts"
	KindBlock         Kind = "blocks"
	KindApproval      Kind = "approvals"
	KindToken         Kind = "tokens" // of the control plane
)

// Kinds lists all of them.
func Kinds() []Kind {
	return []Kind{
		KindSettings, KindIdentity, KindBinding, KindProvider, KindBusiness, KindGrant,
		KindAuthorization, KindConversation, KindMessage, KindReceipt, KindBlock,
		KindApproval, KindToken,
	}
}

// Head is what the store knows of a record: what it is found by, its state, its
// revision and its lease. Times are stored to the microsecond, in UTC.
type Head struct {
	ID           string
	Principal    string
	Business     string // id of the business it belongs to, if any
	Conversation string // id of the conversation it belongs to, if any
	Key          string // unique per kind and principal; empty: none
	State        string
	Revision     int64 // 0: not stored yet
	Created      time.Time
	LeaseOwner   string // who works on it, while LeaseUntil is ahead
	LeaseUntil   time.Time
}

// lease takes or renews the lease.
func (h *Head) lease(owner string, until time.Time) { h.LeaseOwner, h.LeaseUntil = owner, until }

// release gives the lease up.
func (h *Head) release() { h.LeaseOwner, h.LeaseUntil = "", time.Time{} }

// Record is a head and the rest as JSON.
type Record struct {
	Head
	Data []byte
}

// Query chooses records: those that match every field that is not empty.
type Query struct {
	Principal     string // required, except with AllPrincipals
	AllPrincipals bool   // for recovery only (ID-7)
	Business      string
	Conversation  string
	Key           string
	States        []string
	Offset        int // how many of the newest are left out
	Limit         int // 0: all
}

// entity is a typed record.
type entity interface {
	head() *Head
	kind() Kind
}

func (h *Head) head() *Head { return h }

// typed is a pointer to an entity type.
type typed[T any] interface {
	*T
	entity
}

// get reads a typed record.
func get[T any, P typed[T]](tx Tx, principal, id string) (*T, error) {
	v := new(T)
	r, err := tx.Get(P(v).kind(), principal, id)
	if err != nil {
		return nil, err
	}
	return v, decode(P(v), r)
}

// find lists typed records, newest first.
func find[T any, P typed[T]](tx Tx, q Query) ([]*T, error) {
	kind := P(new(T)).kind()
	rs, err := tx.Find(kind, q)
	if err != nil {
		return nil, err
	}
	out := make([]*T, len(rs))
	for i, r := range rs {
		out[i] = new(T)
		if err := decode(P(out[i]), r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// findOne is the newest record that matches, or ErrNotFound.
func findOne[T any, P typed[T]](tx Tx, q Query) (*T, error) {
	q.Limit = 1
	vs, err := find[T, P](tx, q)
	if err != nil {
		return nil, err
	}
	if len(vs) == 0 {
		return nil, fmt.Errorf("%s: %w", P(new(T)).kind(), ErrNotFound)
	}
	return vs[0], nil
}

// put stores a typed record at its revision, and moves the revision on.
func put(tx Tx, e entity) error {
	data, err := json.Marshal(e, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encode %s: %w", e.kind(), err)
	}
	h := e.head()
	if err := tx.Put(e.kind(), Record{*h, data}); err != nil {
		return err
	}
	h.Revision++
	return nil
}

func decode(e entity, r Record) error {
	if err := json.Unmarshal(r.Data, e); err != nil {
		// What the record holds is not for messages; the place is.
		var at *json.SemanticError
		if errors.As(err, &at) && at.JSONPointer != "" {
			return fmt.Errorf("%w: %s %s cannot be read at %s", ErrDamaged, e.kind(), r.ID, truncate(string(at.JSONPointer), maxScopeID))
		}
		return fmt.Errorf("%w: %s %s cannot be read", ErrDamaged, e.kind(), r.ID)
	}
	*e.head() = r.Head
	return nil
}

// readable is an error that wraps ErrDamaged if a record of whatever kind cannot be
// read.
func readable(tx Tx) error {
	return cmp.Or(
		canFind[settings](tx), canFind[identity](tx), canFind[binding](tx), canFind[provider](tx), canFind[business](tx), canFind[grant](tx),
		canFind[authorization](tx), canFind[conversation](tx), canFind[message](tx), canFind[receipt](tx), canFind[block](tx),
		canFind[approval](tx),
	)
}

func canFind[T any, P typed[T]](tx Tx) error {
	_, err := find[T, P](tx, Query{AllPrincipals: true})
	return err
}
