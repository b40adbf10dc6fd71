package rotation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/jwks"
)

// Mirror tells the store of the newest schedule, so that replicas hear of it with
// their next permit. The store remembers the highest revision, and of one revision
// the document that came last.
//
// A change is mirrored before it is written to custody, and again after: from the
// first moment on no replica counts as fresh that does not have it, whatever
// happens to the one that made it. Without that a change that a crash hid would
// surprise the others later.
type Mirror interface {
	// Mirror returns nil once the store has the document so that a failover does not
	// lose it: replicas would take what it lost for the newest again.
	Mirror(ctx context.Context, issuer string, revision uint64, doc []byte) error
	// Mirrored returns the newest schedule that was mirrored; revision 0 if there is
	// none.
	Mirrored(ctx context.Context, issuer string) (revision uint64, doc []byte, err error)
}

// Fleet knows what the other replicas serve.
type Fleet interface {
	// Serving returns the live replicas that serve the revision or a newer one, and
	// those that do not.
	Serving(ctx context.Context, issuer string, revision uint64) (confirmed, missing []string, err error)
}

// Config says what a controller works with.
type Config struct {
	Issuer  string
	Params  Params
	Keyring custody.Keyring
	// Mirror is the store; nil if there is none.
	Mirror Mirror
	// SealMirror authenticates what is mirrored of a schedule that custody has, and
	// OpenMirror verifies it: a replica that holds its keys in memory then takes over
	// a newer schedule from the store while custody is away. SealMirror may answer nil:
	// it cannot. Both are nil where keys cannot be used without custody.
	SealMirror func(data []byte) []byte
	OpenMirror func(sealed []byte) ([]byte, error)
	// Fleet is asked before a key signs; nil if this is the only replica.
	Fleet Fleet
	// Replica is this replica's name in Fleet: it need not be asked.
	Replica string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets what changed and what failed; nil discards it.
	Log *slog.Logger
}

// Controller keeps an issuer's schedule: it makes and publishes keys when they are
// due, takes over what other replicas decided, and answers which key signs and
// what is published. Safe for concurrent use.
type Controller struct {
	cfg      Config
	document string // its name in custody
	slug     string // what its keys' names begin with
	base     time.Time

	view   atomic.Pointer[view]
	newest atomic.Pointer[observation]
	// When the view was last known to be the newest, in nanoseconds since base on
	// the monotonic clock: confirmed by the store, and loaded from custody.
	confirmed, loaded atomic.Int64
	degraded          atomic.Pointer[degraded]
	failing           atomic.Bool // the last Advance did
	wake              chan struct{}

	mu       sync.Mutex // one change at a time; guards what follows
	unmade   time.Time  // since when a revision is announced that custody lacks; or zero
	mirrored uint64
	disabled map[string]bool // by ref: done in custody
	asked    string          // the kid whose postponement was considered last
}

// observation is the newest revision as the store said it, and when.
type observation struct {
	revision uint64
	at       int64 // nanoseconds since base
}

// never is before any time since base.
const never = math.MinInt64

// New checks the configuration. The controller knows nothing until Start.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Params.Validate(); err != nil {
		return nil, err
	}
	if cfg.Keyring == nil {
		return nil, errors.New("rotation: Keyring is required")
	}
	u, err := url.Parse(cfg.Issuer)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("rotation: Issuer %q is not an absolute URL", cfg.Issuer)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("issuer", cfg.Issuer)
	c := &Controller{
		cfg:      cfg,
		slug:     slug(cfg.Issuer, u),
		base:     cfg.Now(),
		wake:     make(chan struct{}, 1),
		disabled: map[string]bool{},
	}
	c.document = documentName(cfg.Issuer, u)
	c.newest.Store(&observation{at: never})
	c.confirmed.Store(never)
	c.loaded.Store(never)
	return c, nil
}

// slug names an issuer where only letters, digits, dots and dashes go: its host for
// people, and a hash so that no two issuers share a name.
func slug(issuer string, u *url.URL) string {
	host := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, strings.ToLower(u.Host))
	sum := sha256.Sum256([]byte(issuer))
	return fmt.Sprintf("%.64s-%s", host, hex.EncodeToString(sum[:4]))
}

// DocumentName is the name in custody of an issuer's schedule.
func DocumentName(issuer string) (string, error) {
	u, err := url.Parse(issuer)
	if err != nil || u.Host == "" {
		return "", fmt.Errorf("rotation: issuer %q is not an absolute URL", issuer)
	}
	return documentName(issuer, u), nil
}

func documentName(issuer string, u *url.URL) string { return "schedule-" + slug(issuer, u) }

// Start loads the schedule, or makes it with its first key, and does what is due.
// It signs nothing before the first Observe of the schedule's revision. A schedule
// that is gone from custody, or older than the store knows it, is ErrRolledBack.
func (c *Controller) Start(ctx context.Context) error {
	if c.cfg.Mirror != nil {
		revision, _, err := c.cfg.Mirror.Mirrored(ctx, c.cfg.Issuer)
		if err != nil {
			return fmt.Errorf("rotation: asking the store for the schedule's revision: %w", err)
		}
		if revision > c.newest.Load().revision {
			c.newest.Store(&observation{revision, never})
		}
	}
	_, err := c.Advance(ctx)
	return err
}

// Run advances the schedule when something is due, or heard of, until ctx ends. It
// returns the context's error. Failures are logged, each once, and tried again.
func (c *Controller) Run(ctx context.Context) error {
	said := ""
	for {
		next, err := c.Advance(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && err.Error() != said:
			said = err.Error()
			c.cfg.Log.ErrorContext(ctx, "key schedule not advanced, trying again until it is", "error", err)
		case err == nil && said != "":
			said = ""
			c.cfg.Log.InfoContext(ctx, "key schedule is advanced again")
		}
		timer := time.NewTimer(max(next.Sub(c.cfg.Now()), 0))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-c.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// poke lets Run look now.
func (c *Controller) poke() {
	select {
	case c.wake <- struct{}{}:
	default: // it is about to
	}
}

// Observe tells the controller the newest revision that the store knows, as it
// comes with every permit. If that is the one it has, the schedule is fresh; if
// not, Run fetches or mirrors it.
func (c *Controller) Observe(newest uint64) {
	o := &observation{newest, c.elapsed(c.cfg.Now())}
	c.newest.Store(o)
	if v := c.view.Load(); v != nil && v.schedule.Revision == newest {
		c.confirmed.Store(o.at)
		return
	}
	c.poke()
}

func (c *Controller) elapsed(t time.Time) int64 { return int64(t.Sub(c.base)) }

// age returns how long ago a mark was set; the longest time if never.
func (c *Controller) age(now time.Time, mark int64) time.Duration {
	if mark == never {
		return math.MaxInt64
	}
	return time.Duration(c.elapsed(now) - mark)
}

// Signing returns the key that signs now. It allocates nothing and may be called
// for every token, after the permit that Observe came with. Errors are ErrNotFresh
// and ErrNoKey.
func (c *Controller) Signing() (Key, error) {
	now := c.cfg.Now()
	v := c.view.Load()
	if v == nil || c.age(now, c.confirmed.Load()) >= c.cfg.Params.Staleness {
		return Key{}, ErrNotFresh
	}
	m := v.at(now)
	if !m.signs {
		return Key{}, ErrNoKey
	}
	return m.signing, nil
}

// Ready tells why Signing fails, if it does.
func (c *Controller) Ready() error {
	if _, err := c.Signing(); err != nil {
		return fmt.Errorf("%w (issuer %s, revision %d, the store knows %d)", err, c.cfg.Issuer, c.Revision(), c.newest.Load().revision)
	}
	return nil
}

// Confirmed returns when the store last confirmed that this replica's schedule is the
// newest; false if it never did. Past the staleness bound from then nothing is signed.
func (c *Controller) Confirmed() (time.Time, bool) {
	mark := c.confirmed.Load()
	if mark == never {
		return time.Time{}, false
	}
	now := c.cfg.Now()
	return now.Add(-c.age(now, mark)), true
}

// Failing tells whether what was due could not be done the last time: custody or the
// store did not answer, refuse it, or went back. It is tried again.
func (c *Controller) Failing() bool { return c.failing.Load() }

// Revision returns the revision of the schedule that this replica goes by; zero
// before Start.
func (c *Controller) Revision() uint64 {
	if v := c.view.Load(); v != nil {
		return v.schedule.Revision
	}
	return 0
}

// Schedule returns the schedule that this replica goes by; the zero Schedule
// before Start. Its keys must not be changed.
func (c *Controller) Schedule() Schedule {
	if v := c.view.Load(); v != nil {
		return v.schedule
	}
	return Schedule{}
}

// KeySet returns the key set to serve now, for jwks.Handler. It changes exactly
// when the schedule says. A replica that cannot confirm its schedule serves it on
// for max-age after the staleness bound, with what is left of that as max-age, so
// that no copy outlives the bound; then it answers ErrNotFresh.
func (c *Controller) KeySet() (*jwks.Document, error) {
	m, d, err := c.serve()
	if d != nil {
		return &d.keys, nil
	}
	if err != nil {
		return nil, err
	}
	return &m.keys, nil
}

// Discovery returns the OpenID Connect discovery document to serve now, under the
// same rules as KeySet.
func (c *Controller) Discovery() (*jwks.Document, error) {
	m, d, err := c.serve()
	if d != nil {
		return &d.discovery, nil
	}
	if err != nil {
		return nil, err
	}
	return &m.discovery, nil
}

// degraded are the documents of a replica that is past the staleness bound, for
// the second in which they were made.
type degraded struct {
	view            *view
	left            time.Duration // whole seconds
	keys, discovery jwks.Document
}

// serve returns the moment to serve from, or, past the staleness bound, documents
// made for it.
func (c *Controller) serve() (*moment, *degraded, error) {
	now := c.cfg.Now()
	v := c.view.Load()
	mark := max(c.confirmed.Load(), c.loaded.Load())
	age := c.age(now, mark)
	switch {
	case v == nil || age >= c.cfg.Params.Staleness+c.cfg.Params.MaxAge:
		return nil, nil, ErrNotFresh
	case age <= c.cfg.Params.Staleness:
		return v.at(now), nil, nil
	}
	left := (c.cfg.Params.Staleness + c.cfg.Params.MaxAge - age).Truncate(time.Second)
	if left <= 0 {
		return nil, nil, ErrNotFresh // HTTP has no shorter life to give a copy
	}
	if d := c.degraded.Load(); d != nil && d.view == v && d.left == left {
		return nil, d, nil
	}
	d := &degraded{view: v, left: left}
	var err error
	if d.keys, d.discovery, err = v.stale(now.Add(-age), now); err != nil {
		return nil, nil, err
	}
	d.keys.MaxAge, d.discovery.MaxAge = left, left
	c.degraded.Store(d)
	return nil, d, nil
}
