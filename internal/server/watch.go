package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pactsigner/pactsigner/custody/vault"
	"github.com/pactsigner/pactsigner/internal/store/redis"
)

// How often custody and the store are looked at: the deployment's record is read
// anew, so that what another replica changed takes effect here, and the outage of
// either is seen without a request that runs into it.
const (
	lookEvery = 3 * time.Second
	lookAgain = time.Second     // while one of them does not answer
	lookBound = 2 * time.Second // for one look
	// compareEvery is how often the subject key is compared, and the settings of the
	// store's servers are checked.
	compareEvery = 30 * time.Second
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

// watched says whether custody or the store can be away while this process runs.
func (s *Server) watched() bool { return !s.cfg.Embedded() || s.cfg.Custody.Kind == "vault" }

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
		err := s.look(ctx)
		s.compare(ctx)
		if err != nil {
			wait = lookAgain
		} else if s.guard.Ready() == nil { // the store is the right one
			s.catchUp(ctx)
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
	both.Go(func() { _, inStore = (&observedStore{s.state.store, s.metrics}).Now(ctx) })
	both.Wait()
	s.storeHealth.note(inStore)
	switch {
	case errors.Is(inCustody, errRecordGone) && s.keeper.usable() == nil:
		// It may be a hiccup, the next look tells: custody is what it was before.
	case answered(inCustody): // keeper.usable tells whether with the right record
		s.custodyHealth.note(nil)
	default:
		s.custodyHealth.note(inCustody)
	}
	if errors.Is(inCustody, errRecordGone) {
		// Whoever makes the deployment anew there finds what is stopped. A custody that is
		// another deployment's is told nothing.
		s.guard.RecordAgain()
	}
	if inCustody != nil { // the acts of any replica may be missing there
		s.heads.behind.Store(true)
		s.subject.doubtful()
	}
	return errors.Join(inCustody, inStore)
}

// compare makes sure that the subject key and the store's servers are still what they
// must be. What was wrong is looked at more often, and so is what could not be asked.
func (s *Server) compare(ctx context.Context) {
	if _, known := s.keeper.current(); !known {
		return
	}
	every := compareEvery / time.Duration(max(s.cfg.Development.TimeScale, 1))
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	var both sync.WaitGroup
	if s.subject.due(every) {
		both.Go(func() { _ = s.subject.compare(ctx) }) // usable tells
	}
	if s.state.shared != nil && s.settings.due(every) {
		both.Go(func() { s.settings.note(s.state.shared.CheckServer(ctx), s.log) })
	}
	both.Wait()
}

// settings are what the settings of the store's servers were found to be.
type settings struct {
	mu      sync.Mutex
	checked time.Time
	err     *redis.ConfigError // what makes them no store for a signer
}

func (c *settings) wrong() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return nil
	}
	return c.err
}

func (c *settings) due(every time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil || time.Since(c.checked) >= every
}

// note takes in what CheckServer said. A server that did not answer changes nothing.
func (c *settings) note(err error, log *slog.Logger) {
	var wrong *redis.ConfigError
	if !errors.As(err, &wrong) && err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.err
	c.checked, c.err = time.Now(), wrong
	switch {
	case wrong != nil && (before == nil || *before != *wrong):
		log.Error("a setting of the store's server makes it forget what it was told", "err", wrong)
	case wrong == nil && before != nil:
		log.Info("the settings of the store's servers are right again")
	}
}

// catchUp records in custody the acts that could not be recorded when they were
// done, here or on a replica that has ended.
func (s *Server) catchUp(ctx context.Context) {
	if !s.heads.behind.Load() {
		return
	}
	bound, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	err := s.heads.Record(bound)
	if ctx.Err() != nil {
		return
	}
	said := ""
	if err != nil {
		said = err.Error()
	}
	switch {
	case said == s.saidHead:
	case err != nil:
		s.log.Warn("the audit log's head cannot be recorded in custody yet, trying again until it can", "err", err)
	default:
		s.log.Info("the audit log's head is recorded in custody again")
	}
	s.saidHead = said
}

// custodyDown says why this replica cannot sign for want of custody. Keys that were
// unwrapped into memory sign on without it.
func (s *Server) custodyDown() error {
	if s.cfg.Custody.Kind != "vault" || s.cfg.Custody.Vault.Wrapped {
		return nil
	}
	if err := s.custodyHealth.down(); err != nil {
		if v, ok := s.state.keyring.(*vault.Keyring); ok && v.Sealed() { // what was asked for then does not matter
			return errors.New("custody does not answer: Vault is sealed")
		}
		return fmt.Errorf("custody does not answer: %w", err)
	}
	return nil
}
