package sandbox

import (
	"sync"
	"time"
)

// store is the state of a sandbox, in memory. Each method is one transaction, and
// what it returns are copies. Secrets are kept as their hash.
type store struct {
	params Params

	mu             sync.Mutex
	platforms      map[string]platform // by issuer
	conversations  map[string]*conversation
	unheard        map[opening]string // id of the conversation
	receipts       map[receiptOwner]receipt
	authorizations map[string]*authorization // by user code
	devices        map[string]*authorization // by hash of the device code
	grants         map[string]*grant
	refreshes      map[string]*refresh // by hash of the refresh token
	assertions     tickets
	sessions       tickets
}

func newStore(p Params) *store {
	return &store{
		params:         p,
		platforms:      map[string]platform{},
		conversations:  map[string]*conversation{},
		unheard:        map[opening]string{},
		receipts:       map[receiptOwner]receipt{},
		authorizations: map[string]*authorization{},
		devices:        map[string]*authorization{},
		grants:         map[string]*grant{},
		refreshes:      map[string]*refresh{},
		assertions:     tickets{},
		sessions:       tickets{},
	}
}

// party is a user of a personal agent at a brand: what conversations and grants
// belong to.
type party struct {
	brand string
	caller
}

// Outcomes of a registration.
type platformOutcome int

const (
	platformCreated platformOutcome = iota
	platformSame
	platformConflict
)

// register enters a platform, or returns the one that is registered alike.
func (s *store) register(p platform) (platform, platformOutcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.platforms[p.Issuer]; ok {
		if old.Name != p.Name || old.JWKSURI != p.JWKSURI {
			return platform{}, platformConflict
		}
		return old, platformSame
	}
	for _, other := range s.platforms {
		if other.Name == p.Name {
			return platform{}, platformConflict
		}
	}
	s.platforms[p.Issuer] = p
	return p, platformCreated
}

func (s *store) platform(issuer string) (platform, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.platforms[issuer]
	return p, ok
}

// visit is a user who is signed in on a brand's pages, on the way to a consent:
// the code is "" while they still have to type it.
type visit struct {
	brand, user, userCode string
}

// tickets are values that can be had once, by a secret, for a time.
type tickets map[string]ticket

type ticket struct {
	visit   visit
	expires time.Time
}

// give keeps v behind a new secret.
func (s *store) give(t tickets, v visit, ttl time.Duration, now time.Time) (secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for hash, old := range t {
		if !now.Before(old.expires) {
			delete(t, hash)
		}
	}
	secret = newSecret("")
	t[hashOf(secret)] = ticket{v, now.Add(ttl)}
	return secret
}

// take returns what is behind a secret, the first time.
func (s *store) take(t tickets, secret string, now time.Time) (visit, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hash := hashOf(secret)
	got, ok := t[hash]
	delete(t, hash)
	if !ok || !now.Before(got.expires) {
		return visit{}, false
	}
	return got.visit, true
}
