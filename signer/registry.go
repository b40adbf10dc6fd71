package signer

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
)

// maxStatus keeps a status response within the 32 KiB that clients read, with
// room for the issuer and the subject.
const maxStatus = 30 << 10

// registry is an issuer's audience registry as the sign path reads it: a copy
// that is read anew whenever the store says that a registry has changed.
type registry struct {
	store  Store
	issuer string

	copy    atomic.Pointer[registryCopy]
	reading sync.Mutex
}

type registryCopy struct {
	revision uint64
	origins  map[string]string // audience to origin
}

// current returns the registry as it stood at this call or later.
func (r *registry) current(ctx context.Context) (*registryCopy, error) {
	if c := r.copy.Load(); c != nil && c.revision == r.store.AudiencesRevision() {
		return c, nil
	}
	r.reading.Lock()
	defer r.reading.Unlock()
	revision := r.store.AudiencesRevision() // before the read: a change in between is read again
	if c := r.copy.Load(); c != nil && c.revision == revision {
		return c, nil
	}
	list, err := r.store.Audiences(ctx, r.issuer)
	if err != nil {
		return nil, fmt.Errorf("read the audience registry: %w", err)
	}
	c := &registryCopy{revision: revision, origins: make(map[string]string, len(list))}
	for _, a := range list {
		c.origins[a.Audience] = a.Origin
	}
	r.copy.Store(c)
	return c, nil
}

// fitsStatus refuses a registry whose status response clients could not read.
func fitsStatus(issuer string, list []Audience) error {
	m := make(map[string]string, len(list))
	for _, a := range list {
		m[a.Origin] = a.Audience
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("audiences: %w", err)
	}
	if n := len(b) + len(issuer); n > maxStatus {
		return &RegistryFullError{Issuer: issuer, Bytes: n, Max: maxStatus}
	}
	return nil
}

// RegistryFullError: with one audience more, clients could no longer read the
// answer to status.
type RegistryFullError struct {
	Issuer     string
	Bytes, Max int
}

func (e *RegistryFullError) Error() string {
	return fmt.Sprintf("the audience registry of %s would take %d bytes, and clients read %d: remove an audience that is no longer used", e.Issuer, e.Bytes, e.Max)
}
