package rotation

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/custodytest"
	"github.com/pactsigner/pactsigner/jwks"
)

// The invariant of this package, over random schedules, delays, crashes,
// postponements and skews, in virtual time: several replicas share a keyring and a
// store, each with its own clock and its own outages, and sign whenever they
// think they may. Verifiers fetch the key set from any replica and keep it as
// long as it says; half of them refetch on an unknown kid, at most every 30 s.
//
// The times are the shortest that Validate allows, so that nothing but the
// formulas holds the invariant.

const (
	invariantTick  = 2500 * time.Millisecond
	invariantTicks = 800 // 33 minutes
)

type world struct {
	t        *rapid.T
	p        Params
	now      time.Time // true time
	keyring  *custodytest.Memory
	newest   uint64
	mirrored []byte // of that revision
	kept     struct {
		newest   uint64
		mirrored []byte
	} // what the store has acknowledged, and falls back to when it forgets
	wrapped  bool // replicas take over what is sealed in the store
	replicas []*replica
	verifier []*verifier
	tokens   []token
	// Keys that signed before their lead had passed: after an emergency, and the
	// first. Their tokens may fail until every copy without them has expired.
	exempt map[string]time.Time
	sets   map[string][]string // kids by ETag: parsing is slow
	signed int
	checks int
	stats  *invariantStats

	parsed   Schedule // the newest document, and custody's revision of it
	parsedAs uint64
}

// replica is one process, and what is broken around it.
type replica struct {
	*Controller // nil while it is down
	w           *world
	name        string
	skew        time.Duration
	custodyDown bool
	storeDown   bool
	slow        int // calls that are late
	deaf        int // calls of the store whose answer is lost
	lostSwap    bool
	dieIn       int // calls of custody until it is killed; 0: it lives
	died        bool
	next        time.Time // by its clock: when to advance
	beat        time.Time // true time of its last beat
	reported    uint64    // revision in that beat
}

type token struct {
	kid     string
	expires time.Time // true time at which no verifier accepts it any more
}

type verifier struct {
	refetches bool
	keeps     time.Duration // every copy, at least
	kids      []string
	expires   time.Time
	refetched time.Time
}

var errStore = errors.New("store away")

var errKilled = fmt.Errorf("%w: the process was killed", custody.ErrUnavailable)

// shared is the shared keyring as one replica reaches it.
type shared struct {
	custody.Keyring
	r *replica
}

// late lets a call take the longest that it may.
func (r *replica) late(limit time.Duration) {
	if r.slow > 0 {
		r.slow--
		r.w.now = r.w.now.Add(limit)
	}
}

// invariantStats say what the runs went through.
type invariantStats struct{ postponed, sealed, forgotten, deaf, stubborn int }

func (s shared) reach() error {
	s.r.late(2 * time.Second)
	if s.r.dieIn > 0 {
		if s.r.dieIn--; s.r.dieIn == 0 {
			s.r.died = true
		}
	}
	if s.r.custodyDown || s.r.died {
		return errKilled
	}
	return nil
}

func (s shared) Load(ctx context.Context, name string) (custody.Document, error) {
	if err := s.reach(); err != nil {
		return custody.Document{}, err
	}
	return s.Keyring.Load(ctx, name)
}

func (s shared) Create(ctx context.Context, name string, alg jose.SignatureAlgorithm) (crypto.PublicKey, error) {
	if err := s.reach(); err != nil {
		return nil, err
	}
	return s.Keyring.Create(ctx, name, alg)
}

func (s shared) Public(ctx context.Context, name string) (crypto.PublicKey, jose.SignatureAlgorithm, error) {
	if err := s.reach(); err != nil {
		return nil, "", err
	}
	return s.Keyring.Public(ctx, name)
}

func (s shared) Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error) {
	if err := s.reach(); err != nil {
		return 0, err
	}
	revision, err := s.Keyring.Swap(ctx, name, expect, data)
	if err != nil {
		return 0, err
	}
	if s.r.lostSwap {
		s.r.lostSwap = false
		s.r.w.stats.deaf++
		return 0, custody.ErrUnavailable
	}
	return revision, s.reach() // it may die of having written
}

func (s shared) Disable(ctx context.Context, name string) error {
	if err := s.reach(); err != nil {
		return err
	}
	return s.Keyring.Disable(ctx, name)
}

// Mirror implements Mirror as one replica reaches the store.
func (r *replica) Mirror(_ context.Context, _ string, revision uint64, doc []byte) error {
	r.late(time.Second)
	if r.storeDown || r.died {
		return errStore
	}
	w := r.w
	if revision >= w.newest {
		w.newest, w.mirrored = revision, doc
	}
	if r.deaf > 0 {
		r.deaf--
		return errStore
	}
	w.kept.newest, w.kept.mirrored = w.newest, w.mirrored
	return nil
}

// Mirrored implements Mirror.
func (r *replica) Mirrored(context.Context, string) (uint64, []byte, error) {
	r.late(time.Second)
	if r.storeDown || r.died {
		return 0, nil, errStore
	}
	return r.w.newest, r.w.mirrored, nil
}

// Serving implements Fleet: replicas whose last beat is recent are live.
func (r *replica) Serving(_ context.Context, _ string, revision uint64) (confirmed, missing []string, err error) {
	r.late(time.Second)
	if r.storeDown || r.died {
		return nil, nil, errStore
	}
	for _, q := range r.w.replicas {
		switch {
		case r.w.now.Sub(q.beat) > 10*time.Second:
		case q.reported >= revision:
			confirmed = append(confirmed, q.name)
		default:
			missing = append(missing, q.name)
		}
	}
	return confirmed, missing, nil
}

func (r *replica) clock() time.Time { return r.w.now.Add(r.skew) }

// boot starts the process anew.
func (r *replica) boot() {
	r.skew = time.Duration(rapid.Int64Range(-int64(r.w.p.Skew), int64(r.w.p.Skew)).Draw(r.w.t, "skew"))
	r.died, r.dieIn, r.slow, r.deaf, r.lostSwap = false, 0, 0, 0, false
	cfg := Config{
		Issuer: issuer, Params: r.w.p, Keyring: shared{r.w.keyring, r}, Mirror: r, Fleet: r, Replica: r.name, Now: r.clock,
		Log: slog.New(r.w.stats),
	}
	if r.w.wrapped {
		cfg.SealMirror, cfg.OpenMirror = seal, unseal
	}
	c, err := New(cfg)
	if err != nil {
		r.w.t.Fatal(err)
	}
	r.Controller, r.next = c, r.clock()
}

// work is what a process does by itself: its beat and Observe, and Advance when it
// is due or was told.
func (r *replica) work() {
	if r.Controller == nil {
		return
	}
	if !r.storeDown {
		r.beat, r.reported = r.w.now, r.Revision()
		r.Observe(r.w.newest)
	}
	told := false
	select {
	case <-r.wake:
		told = true
	default:
	}
	if told || !r.next.After(r.clock()) {
		// Errors are outages; Run would log them.
		r.next, _ = r.Advance(context.Background())
	}
	if !r.storeDown && !r.died {
		r.reported = r.Revision()
		r.Observe(r.w.newest)
	}
	if r.died {
		r.Controller = nil
	}
}

func (w *world) kids(doc *jwks.Document) []string {
	kids, ok := w.sets[doc.ETag]
	if !ok {
		kids = kidsOf(w.t, doc)
		w.sets[doc.ETag] = kids
	}
	return kids
}

// schedule is the newest document.
func (w *world) schedule() Schedule {
	doc, err := w.keyring.Load(context.Background(), "schedule-"+slugOfIssuer)
	if err != nil {
		return Schedule{}
	}
	if doc.Revision != w.parsedAs {
		if w.parsed, err = parse(doc.Data); err != nil {
			w.t.Fatal(err)
		}
		w.parsedAs = doc.Revision
	}
	return w.parsed
}

var slugOfIssuer = func() string {
	c, err := New(Config{Issuer: issuer, Params: Defaults(), Keyring: custodytest.NewMemory()})
	if err != nil {
		panic(err)
	}
	return c.slug
}()

func (w *world) disturb() {
	r := w.replicas[rapid.IntRange(0, len(w.replicas)-1).Draw(w.t, "replica")]
	switch rapid.SampledFrom([]string{
		"slow", "slow", "deaf", "deaf", "forget", "forget", "leave behind", "leave behind",
		"rotate", "rotate", "rotate", "custody", "custody", "store", "store", "kill", "kill", "boot", "boot", "boot", "heal", "emergency", "withdraw",
	}).Draw(w.t, "what") {
	case "rotate":
		w.change(r, Request{})
	case "emergency":
		s := w.schedule()
		if len(s.Keys) > 0 && !r.storeDown && w.rare() {
			kid := s.Keys[rapid.IntRange(0, len(s.Keys)-1).Draw(w.t, "key")].KID
			w.change(r, Request{Emergency: true, Compromised: kid})
		}
	case "withdraw":
		if !r.storeDown && w.rare() {
			w.change(r, Request{Withdraw: true})
		}
	case "slow":
		r.slow = rapid.IntRange(1, 6).Draw(w.t, "slow")
	case "deaf":
		r.lostSwap = true
		w.change(r, Request{})
	case "leave behind": // another one, which the next key waits for
		w.replicas[rapid.IntRange(0, len(w.replicas)-1).Draw(w.t, "behind")].custodyDown = true
		w.change(r, Request{})
	case "forget":
		r.deaf = 1
		w.change(r, Request{})
		if w.kept.newest < w.newest {
			w.newest, w.mirrored = w.kept.newest, w.kept.mirrored
			w.stats.forgotten++
		}
	case "custody":
		r.custodyDown = !r.custodyDown
	case "store":
		r.storeDown = !r.storeDown
	case "kill":
		r.dieIn = rapid.IntRange(1, 6).Draw(w.t, "dieIn")
	case "boot":
		if r.Controller == nil {
			r.boot()
		}
	case "heal":
		for _, r := range w.replicas {
			r.custodyDown, r.storeDown = false, false
		}
	}
}

func (w *world) rare() bool { return rapid.IntRange(0, 3).Draw(w.t, "rarely") == 0 }

func (w *world) change(r *replica, req Request) {
	if r.Controller == nil {
		return
	}
	_, err := r.Rotate(context.Background(), req)
	var early *TooEarlyError
	if err != nil && !errors.Is(err, custody.ErrUnavailable) && !errors.Is(err, errStore) && !errors.As(err, &early) && !errors.Is(err, ErrRevoked) &&
		!errors.Is(err, ErrUnknownKey) && !errors.Is(err, ErrRolledBack) && !errors.Is(err, ErrDocument) {
		// ErrDocument: there is none yet.
		w.t.Fatalf("Rotate(%+v): %v", req, err)
	}
	if r.died {
		r.Controller = nil
	}
}

// excused tells whether a key's tokens may fail to verify now.
func (w *world) excused(s Schedule, kid string) bool {
	k, ok := s.Key(kid)
	if ok && !k.RevokedAt.IsZero() {
		return true
	}
	if until, ok := w.exempt[kid]; ok && w.now.Before(until) {
		return true
	}
	// Written, signing early, and not seen here before.
	if ok && (k.SignAt.IsZero() || k.SignAt.Sub(k.PublishAt) < w.p.Lead) {
		if _, seen := w.exempt[kid]; !seen {
			w.exempt[kid] = w.now.Add(w.p.Staleness + w.p.MaxAge + w.keeps() + 2*w.p.Skew)
			return true
		}
	}
	return false
}

// keeps is the longest that a verifier keeps a copy against its max-age.
func (w *world) keeps() time.Duration {
	return slices.MaxFunc(w.verifier, func(a, b *verifier) int { return cmp.Compare(a.keeps, b.keeps) }).keeps
}

// sign lets every replica sign that thinks it may.
func (w *world) sign() {
	s := w.schedule()
	for _, r := range w.replicas {
		if r.Controller == nil {
			continue
		}
		k, err := r.Signing()
		if err != nil {
			continue
		}
		w.signed++
		delay := w.p.SignDeadline // the token is made at the last moment
		w.tokens = append(w.tokens, token{k.KID, w.now.Add(delay + w.p.TokenTTL + w.p.Leeway + r.skew)})
		if w.excused(s, k.KID) {
			continue
		}
		for _, q := range w.replicas {
			if q.Controller == nil {
				continue
			}
			doc, err := q.KeySet()
			if err != nil {
				continue
			}
			if n := len(w.kids(doc)); n == 0 || n > MaxKeys {
				w.t.Fatalf("%s publishes %d keys", q.name, n)
			}
			w.checks++
			if !slices.Contains(w.kids(doc), k.KID) {
				w.t.Fatalf("%v: %s signs with %s (%s), %s serves %v at revision %d of %d\n%+v", w.now.Sub(t0), r.name, k.KID,
					s.StateOf(k.KID, w.now), q.name, w.kids(doc), q.Revision(), w.newest, s.Keys)
			}
		}
	}
}

// fetch gets the key set from one replica, as a load balancer would choose it.
func (w *world) fetch(v *verifier) bool {
	start := rapid.IntRange(0, len(w.replicas)-1).Draw(w.t, "served by")
	for i := range w.replicas {
		q := w.replicas[(start+i)%len(w.replicas)]
		if q.Controller == nil {
			continue
		}
		doc, err := q.KeySet()
		if err != nil {
			continue
		}
		age := w.p.MaxAge
		if doc.MaxAge > 0 {
			age = min(age, doc.MaxAge)
		}
		v.kids, v.expires = w.kids(doc), w.now.Add(max(age, v.keeps))
		return true
	}
	return false
}

// verify lets every verifier check one token of every key that is out.
func (w *world) verify() {
	s := w.schedule()
	w.tokens = slices.DeleteFunc(w.tokens, func(t token) bool { return !t.expires.After(w.now) })
	kids := map[string]bool{}
	for _, t := range w.tokens {
		kids[t.kid] = true
	}
	for i, v := range w.verifier {
		if !w.now.Before(v.expires) && !w.fetch(v) {
			continue // nobody serves a key set; the verifier knows nothing
		}
		for _, kid := range slices.Sorted(maps.Keys(kids)) {
			ok := slices.Contains(v.kids, kid)
			if !ok && v.refetches && w.now.Sub(v.refetched) >= w.p.Refetch {
				v.refetched = w.now
				w.fetch(v)
				ok = slices.Contains(v.kids, kid)
			}
			if !ok && !w.excused(s, kid) {
				w.t.Fatalf("%v: verifier %d (refetches: %v) refuses a token of %s (%s), it knows %v\n%+v",
					w.now.Sub(t0), i, v.refetches, kid, s.StateOf(kid, w.now), v.kids, s.Keys)
			}
			w.checks++
		}
	}
}

// calm lets all outages end and checks that the fleet comes back to one opinion.
func (w *world) calm() {
	for _, r := range w.replicas {
		r.custodyDown, r.storeDown, r.dieIn, r.slow, r.deaf, r.lostSwap = false, false, 0, 0, 0, false
		if r.Controller == nil {
			r.boot()
		}
	}
	for range 60 {
		w.now = w.now.Add(invariantTick)
		for _, r := range w.replicas {
			r.work()
		}
		w.sign()
		w.verify()
	}
	for range 2 { // what somebody did in the last moment
		for _, r := range w.replicas {
			r.work()
		}
	}
	for _, r := range w.replicas {
		if err := r.Ready(); err != nil {
			_, cause := r.Advance(context.Background())
			w.t.Fatalf("%s does not recover: %v; it says %v\n%+v", r.name, err, cause, w.schedule())
		}
		if r.Revision() != w.replicas[0].Revision() {
			w.t.Fatalf("%s is at revision %d, %s at %d", r.name, r.Revision(), w.replicas[0].name, w.replicas[0].Revision())
		}
	}
}

// SG-13: whatever happens, each token verifies by the keys that were published when
// it was signed, as long as it lives: a key is published before it signs and kept after.
func TestInvariant(t *testing.T) {
	p := Defaults()
	p.Lead, p.Overlap = p.MinLead(), p.MinOverlap()
	p.Period = 12 * time.Minute
	p.Keep = 10 * time.Minute
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	stats := &invariantStats{}
	signed, checks := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{t: rt, p: p, now: t0, keyring: custodytest.NewMemory(), exempt: map[string]time.Time{}, sets: map[string][]string{}, stats: stats}
		w.wrapped = rapid.Bool().Draw(rt, "wrapped")
		for i := range rapid.IntRange(1, 3).Draw(rt, "replicas") {
			w.replicas = append(w.replicas, &replica{w: w, name: fmt.Sprint("r", i)})
		}
		for i := range 4 {
			w.verifier = append(w.verifier, &verifier{refetches: i%2 == 1})
		}
		if rapid.Bool().Draw(rt, "stubborn") {
			const keeps = 10 * time.Minute
			w.verifier = append(w.verifier, &verifier{keeps: keeps})
			// It may fetch last from a replica that serves what it has for as long as
			// others may keep that.
			w.p.Lead = keeps + w.p.MinLead()
			w.p.Period = w.p.Lead + 4*time.Minute
			stats.stubborn++
		}
		for _, r := range w.replicas {
			r.boot()
		}
		quiet := 0
		for range invariantTicks {
			w.now = w.now.Add(invariantTick)
			if quiet--; quiet < 0 {
				w.disturb()
				quiet = rapid.IntRange(0, 60).Draw(rt, "quiet")
			}
			for _, r := range w.replicas {
				r.work()
			}
			w.sign()
			w.verify()
		}
		w.calm()
		signed += w.signed
		checks += w.checks
	})
	if signed == 0 || checks == 0 || stats.postponed == 0 || stats.sealed == 0 || stats.forgotten == 0 || stats.deaf == 0 || stats.stubborn == 0 {
		t.Fatalf("the runs were one-sided: %d tokens, %d checks, %+v", signed, checks, *stats)
	}
	t.Logf("%d tokens, %d checks, %+v", signed, checks, *stats)
}

// Enabled, Handle, WithAttrs and WithGroup implement slog.Handler: controllers say what
// they do.
func (s *invariantStats) Enabled(context.Context, slog.Level) bool { return true }

func (s *invariantStats) Handle(_ context.Context, r slog.Record) error {
	switch {
	case strings.HasPrefix(r.Message, "next key postponed"):
		s.postponed++
	case strings.HasPrefix(r.Message, "key schedule taken over from the store"):
		s.sealed++
	}
	return nil
}

func (s *invariantStats) WithAttrs([]slog.Attr) slog.Handler { return s }
func (s *invariantStats) WithGroup(string) slog.Handler      { return s }
