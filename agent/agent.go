// Package agent is a complete PACT personal agent as a library: it enrols with a
// signer, discovers businesses, gets the owner's consent, sends messages and
// judges the receipts, and keeps all of it in a durable journal.
//
// What it promises: nothing leaves for a business before every gate of Send has
// passed and the message is on disk; a message whose fate is unknown is never
// sent again by itself; no token, code, link or credential appears in anything it
// returns, logs or keeps in the clear. What it does not do: decide for the owner.
// Approvals and sign-ins are asked for through the Caller that every call takes,
// and a business's words are data, never instructions.
//
// The pure rules (what a card, token, receipt or message is worth) are functions
// that need no Agent: [ParseCard], [CheckMetadata], [EffectOf], [VerifyReceipt]
// and so on. Rule ids (SG-1 …) refer to the rules of the product.
package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sync/singleflight"

	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/jwks"
)

// Egress is the way to the network; *egress.Client is the real one.
type Egress interface {
	Do(ctx context.Context, req egress.Request) (egress.Response, error)
}

// Config is what an Agent is made of.
type Config struct {
	// Dir is the profile's folder: it holds the key of the secrets, if no keyring
	// does. It is made, of mode 0700, if it does not exist. Required.
	Dir string
	// Store is the journal. The caller closes it after the agent. Required.
	Store Store
	// Key says where a new profile's key is kept; the zero value is KeyAuto.
	Key KeySource
	// Network makes the way to the network for a rule set and a policy, which must
	// both be obeyed at every hop. nil makes an egress.Client.
	Network func(URLRules, egress.Policy) Egress
	// Now is the clock; nil is time.Now. Waits run on timers of package time.
	Now func() time.Time
	// Params are the durations; the zero value is Defaults().
	Params Params
	// Scale is what Params were scaled by; it bounds the network's timeouts too.
	Scale int
	// Development admits loopback addresses (UR-2), beside what the profile says.
	Development bool
	// DisabledByEnv is PACT_DISABLED=1 (PO-1).
	DisabledByEnv bool
	// Policy is the administrator's, asked anew at every gate and every hop (PO-7);
	// an error switches PACT off. nil is DefaultPolicy.
	Policy func() (Policy, error)
}

// Agent is one running personal agent on a profile. Several may run on the same
// profile, in one process or many. Safe for concurrent use.
type Agent struct {
	cfg     Config
	store   Store
	changes *changes
	params  Params
	box     *box
	keys    *jwks.Cache
	tokens  tokenCache
	status  statusCache
	runtime string       // names this Agent as a holder of leases
	lock    *flock.Flock // says that it lives (RS-3); nil: there are no locks here

	notices  []string // of Open
	mu       sync.Mutex
	settings settings
	network  Egress

	refreshing singleflight.Group // by grant and network profile (GR-5)
	work       sync.WaitGroup     // what goes on after its caller left
	inputs     sync.Map           // tasks that ask their owner something (DA-13)
}

// Open opens the agent of a profile and recovers what a crash left behind
// (RS-1..RS-4). A profile whose key is gone is opened with a new one: Notices and
// Status tell what was lost. Errors wrap ErrProfileKey if the key cannot be had now.
func Open(cfg Config) (*Agent, error) {
	if cfg.Dir == "" {
		return nil, errors.New("agent: Dir is required: name the profile's folder")
	}
	if cfg.Store == nil {
		return nil, errors.New("agent: Store is required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	clock := cfg.Now
	cfg.Now = func() time.Time { return clock().Truncate(time.Microsecond) } // as stores keep it
	if cfg.Params.TurnLease == 0 {
		cfg.Params = Defaults().Scaled(cfg.Scale)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a := &Agent{cfg: cfg, changes: &changes{now: cfg.Now}, params: cfg.Params}
	a.store = &toldStore{cfg.Store, a.changes}
	a.hold()
	a.tokens.init()
	if err := a.loadSettings(); err != nil {
		a.letGo()
		return nil, fmt.Errorf("agent: %w", err)
	}
	a.connect()
	a.keys = &jwks.Cache{Now: cfg.Now, Fetch: a.fetchKeys, TTL: cfg.Params.KeysTTL, RefetchEvery: cfg.Params.KeysRefetch}
	// With a damaged store Doctor must be able to say so; nothing is sent, for every
	// operation recovers first.
	if err := a.recover(context.Background()); err != nil && !errors.Is(err, ErrDamaged) {
		a.Close()
		return nil, fmt.Errorf("agent: recover: %w", err)
	}
	return a, nil
}

// changeSettings changes the profile's settings and what follows from them.
func (a *Agent) changeSettings(tx Tx, change func(*settings)) (*settings, error) {
	s, err := get[settings](tx, "", settingsID)
	if err != nil {
		return nil, err
	}
	change(s)
	return s, put(tx, s)
}

// adopt takes over settings that were stored, unless later ones are known.
func (a *Agent) adopt(s *settings) {
	a.mu.Lock()
	if s.Revision < a.settings.Revision {
		a.mu.Unlock()
		return
	}
	changed := a.settings.Development != s.Development
	a.settings = *s
	a.mu.Unlock()
	if changed {
		a.connect()
	}
}

// connect makes the network for the present rules.
func (a *Agent) connect() {
	network := a.newNetwork(a.rules())
	a.mu.Lock()
	old := a.network
	a.network = network
	a.mu.Unlock()
	closeNetwork(old)
}

func (a *Agent) newNetwork(rules URLRules) Egress {
	if a.cfg.Network != nil {
		return a.cfg.Network(rules, a.mayContact)
	}
	return egress.New(egress.Config{Rules: rules, Policy: a.mayContact, Scale: a.cfg.Scale})
}

func closeNetwork(n Egress) {
	if c, ok := n.(interface{ Close() }); ok {
		c.Close()
	}
}

// Close ends the agent. Operations must have ended; a refresh whose caller left is
// waited for, for what it brings must not be lost (GR-5). Sign-ins stay pending
// (DA-17).
func (a *Agent) Close() {
	a.work.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	closeNetwork(a.network)
	a.letGo()
}

// Rules are the URL rules in force.
func (a *Agent) Rules() URLRules {
	return a.rules()
}

func (a *Agent) rules() URLRules {
	a.mu.Lock()
	defer a.mu.Unlock()
	return URLRules{Development: a.cfg.Development || a.settings.Development}
}

func (a *Agent) currentSettings() settings {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.settings
}

func (a *Agent) do(ctx context.Context, req egress.Request) (egress.Response, error) {
	a.mu.Lock()
	n := a.network
	a.mu.Unlock()
	return n.Do(ctx, req)
}

// now is the time, in UTC: views carry it to surfaces in other zones.
func (a *Agent) now() time.Time { return a.cfg.Now().UTC() }

// fetchKeys gets a key set for the cache (MD-7).
func (a *Agent) fetchKeys(ctx context.Context, u string) ([]byte, error) {
	resp, err := a.do(ctx, egress.Request{Purpose: egress.JWKS, Method: "GET", URL: u})
	if err != nil {
		return nil, err
	}
	if resp.Status != 200 {
		return nil, fmt.Errorf("the key set answers HTTP %d", resp.Status)
	}
	return resp.Body, nil
}

// wait sleeps until at. The error is the context's cause.
func (a *Agent) wait(ctx context.Context, at time.Time) error {
	d := at.Sub(a.now())
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// newID returns a fresh id that says what it is of.
func newID(of string) string { return of + "-" + strings.ToLower(rand.Text()[:16]) }
