package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pactsigner/pactsigner/custody/vault"
)

// How often custody and the store are looked at: the deployment's record is read
// anew, so that what another replica changed takes effect here, and the outage of
// either is seen without a request that runs into it.
const (
	lookEvery = 3 * time.Second
	lookAgain = time.Second     // while one of them does not answer
	lookBound = 2 * time.Second // for one look
)

// downAfter is how many looks in a row must fail until a part counts as down: one
// may be a hiccup.
const downAfter = 2

// looks are how custody or the store was at the last looks.
type looks struct {
	mu     sync.Mutex
	err    error
	failed int
}

func (h *looks) note(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
	if err == nil {
		h.failed = 0
	} else {
		h.failed++
	}
}

// down says why the part does not answer, if it does not.
func (h *looks) down() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed < downAfter {
		return nil
	}
	return h.err
}

// watchParts looks at custody and the store until ctx ends.
func (s *Server) watchParts(ctx context.Context) {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		wait := lookEvery
		if s.look(ctx) != nil {
			wait = lookAgain
		}
		tick.Reset(wait)
	}
}

// look asks custody for the deployment's record, and the store for the time.
func (s *Server) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	var (
		both               sync.WaitGroup
		inCustody, inStore error
	)
	both.Go(func() { _, _, inCustody = s.keeper.refresh(ctx) })
	both.Go(func() { _, inStore = s.state.store.Now(ctx) })
	both.Wait()
	s.storeHealth.note(inStore)
	answer := inCustody
	if errors.Is(answer, errUninitialised) || errors.Is(answer, errInitialising) || errors.Is(answer, errRecordGone) {
		answer = nil // it did
	}
	s.custodyHealth.note(answer)
	return errors.Join(inCustody, inStore)
}

// custodyDown says why this replica cannot sign for want of custody. Keys that were
// unwrapped into memory sign on without it.
func (s *Server) custodyDown() error {
	if s.cfg.Custody.Kind != "vault" || s.cfg.Custody.Vault.Wrapped {
		return nil
	}
	if err := s.custodyHealth.down(); err != nil {
		return fmt.Errorf("custody does not answer: %w", err)
	}
	return nil
}

// tokenExpiry is when the login to Vault ends, if it does and there is one.
func (s *Server) tokenExpiry() (time.Time, bool) {
	v, ok := s.state.keyring.(*vault.Keyring)
	if !ok {
		return time.Time{}, false
	}
	at := v.Health().TokenExpires
	return at, !at.IsZero()
}
