package rotation

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/custodytest"
	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/jwks"
)

// store is the part of a store that a controller sees.
type store struct {
	revision uint64
	doc      string
	fail     error
}

func (s *store) Mirror(_ context.Context, _ string, revision uint64, doc []byte) error {
	if s.fail != nil {
		return s.fail
	}
	if revision >= s.revision {
		s.revision, s.doc = revision, string(doc)
	}
	return nil
}

func (s *store) Mirrored(context.Context, string) (uint64, []byte, error) {
	return s.revision, []byte(s.doc), s.fail
}

// faulty is a keyring that a test breaks.
type faulty struct {
	*custodytest.Memory
	fail     error            // of everything
	onSwap   func()           // called before a swap, once
	swapFail error            // returned by Swap after it was done
	foreign  crypto.PublicKey // returned by Public
}

func (f *faulty) Load(ctx context.Context, name string) (custody.Document, error) {
	if f.fail != nil {
		return custody.Document{}, f.fail
	}
	return f.Memory.Load(ctx, name)
}

func (f *faulty) Public(ctx context.Context, name string) (crypto.PublicKey, jose.SignatureAlgorithm, error) {
	if f.fail != nil {
		return nil, "", f.fail
	}
	pub, alg, err := f.Memory.Public(ctx, name)
	if f.foreign != nil {
		pub = f.foreign
	}
	return pub, alg, err
}

func (f *faulty) Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error) {
	if f.fail != nil {
		return 0, f.fail
	}
	if before := f.onSwap; before != nil {
		f.onSwap = nil
		before()
	}
	revision, err := f.Memory.Swap(ctx, name, expect, data)
	if err == nil && f.swapFail != nil {
		return 0, f.swapFail
	}
	return revision, err
}

// rig is a controller with everything around it in a test's hands.
type rig struct {
	*Controller
	t       *testing.T
	keyring *faulty
	store   *store
	now     time.Time
	fleet   Fleet
	params  Params
	seals   bool // what it mirrors
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, keyring: &faulty{Memory: custodytest.NewMemory()}, store: &store{}, now: t0, params: Defaults()}
}

// boot makes a controller over the rig's state, as a restart would.
func (r *rig) boot() *rig {
	r.t.Helper()
	cfg := Config{
		Issuer: issuer, Params: r.params, Keyring: r.keyring, Mirror: r.store, Fleet: r.fleet, Replica: "me",
		Now: func() time.Time { return r.now },
	}
	if r.seals {
		cfg.SealMirror, cfg.OpenMirror = seal, unseal
	}
	c, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Controller = c
	return r
}

func (r *rig) start() *rig {
	r.t.Helper()
	if err := r.boot().Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.Observe(r.store.revision)
	return r
}

// at moves the clock to a time after t0, with a permit and the work that is due.
func (r *rig) at(after time.Duration) {
	r.t.Helper()
	r.now = t0.Add(after)
	r.Observe(r.store.revision)
	if _, err := r.Advance(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.Observe(r.store.revision)
}

func (r *rig) signingKID() string {
	k, err := r.Signing()
	if err != nil {
		return err.Error()
	}
	return k.KID
}

func kidsOf(t interface{ Fatal(...any) }, doc *jwks.Document) []string {
	set, err := jwks.Parse(doc.Body)
	if err != nil {
		t.Fatal(err)
	}
	var kids []string
	for _, k := range set.Keys {
		kids = append(kids, k.ID)
	}
	return kids
}

func (r *rig) published() []string {
	r.t.Helper()
	doc, err := r.KeySet()
	if err != nil {
		r.t.Fatal(err)
	}
	return kidsOf(r.t, doc)
}

func TestStartMakesAndAdopts(t *testing.T) {
	r := newRig(t).start()
	first, err := r.Signing()
	if err != nil {
		t.Fatal(err)
	}
	if got := r.published(); !slices.Equal(got, []string{first.KID}) {
		t.Errorf("published %v", got)
	}
	if r.store.revision != r.Revision() || !strings.Contains(r.store.doc, first.KID) {
		t.Errorf("the store has revision %d of %d", r.store.revision, r.Revision())
	}
	if err := r.Ready(); err != nil {
		t.Error(err)
	}
	revision := r.Revision()
	r.start() // a restart
	if again := r.signingKID(); again != first.KID || r.Revision() != revision || len(r.keyring.Keys()) != 1 {
		t.Errorf("after a restart %s signs at revision %d with keys %v", again, r.Revision(), r.keyring.Keys())
	}
	pub, _, err := r.keyring.Memory.Public(t.Context(), first.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if kid, err := jwks.Thumbprint(pub); err != nil || kid != first.KID {
		t.Errorf("kid %s, thumbprint %s, %v", first.KID, kid, err)
	}
}

func TestNothingIsSignedBeforeTheStoreConfirms(t *testing.T) {
	r := newRig(t).boot()
	if _, err := r.Signing(); !errors.Is(err, ErrNotFresh) {
		t.Errorf("before Start: %v", err)
	}
	if _, err := r.KeySet(); !errors.Is(err, ErrNotFresh) {
		t.Errorf("before Start: %v", err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Signing(); !errors.Is(err, ErrNotFresh) {
		t.Errorf("before Observe: %v", err)
	}
	r.published() // the document was just loaded: it may be served
	r.Observe(r.Revision())
	if _, err := r.Signing(); err != nil {
		t.Error(err)
	}
}

func TestStalenessBound(t *testing.T) {
	r := newRig(t).start()
	p := r.params
	doc, err := r.KeySet()
	if err != nil {
		t.Fatal(err)
	}
	r.now = t0.Add(p.Staleness - 1)
	if err := r.Ready(); err != nil {
		t.Error(err)
	}
	r.now = t0.Add(p.Staleness)
	if err := r.Ready(); !errors.Is(err, ErrNotFresh) {
		t.Errorf("at the bound: %v", err)
	}
	for _, c := range []struct{ after, left time.Duration }{
		{60 * time.Second, 0}, // the handler's own max-age
		{60*time.Second + 1, 299 * time.Second},
		{160 * time.Second, 200 * time.Second},
		{359 * time.Second, time.Second},
	} {
		r.now = t0.Add(c.after)
		got, err := r.KeySet()
		if err != nil || got.MaxAge != c.left || got.ETag != doc.ETag {
			t.Errorf("after %v: %+v, %v", c.after, got, err)
			continue
		}
		if _, err := r.Discovery(); err != nil {
			t.Error(err)
		}
	}
	for _, after := range []time.Duration{359*time.Second + 1, 360 * time.Second, time.Hour} {
		r.now = t0.Add(after)
		if _, err := r.KeySet(); !errors.Is(err, ErrNotFresh) {
			t.Errorf("after %v: %v", after, err)
		}
	}
	r.Observe(r.Revision())
	if err := r.Ready(); err != nil {
		t.Errorf("fresh again: %v", err)
	}
}

func TestAnotherRevisionIsNotFresh(t *testing.T) {
	r := newRig(t).start()
	for _, newest := range []uint64{r.Revision() + 1, r.Revision() - 1, 0} {
		r.at(0)
		r.now = t0.Add(r.params.Staleness)
		r.Observe(newest)
		if err := r.Ready(); !errors.Is(err, ErrNotFresh) {
			t.Errorf("the store knows %d, this replica %d: %v", newest, r.Revision(), err)
		}
	}
}

func TestRotateThroughTheController(t *testing.T) {
	r := newRig(t).start()
	old := r.signingKID()
	dry, err := r.Plan(t.Context(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	if dry.KID != "" || len(r.keyring.Keys()) != 1 || dry.Revision != r.Revision() {
		t.Errorf("the plan made %q, custody has %v", dry.KID, r.keyring.Keys())
	}
	plan, err := r.Rotate(t.Context(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	if plan.KID == "" || plan.KID == old || plan.Algorithm != jose.ES256 || plan.Revision != r.Revision() {
		t.Errorf("%+v", plan)
	}
	timeline := func(p Plan) string {
		var b strings.Builder
		for _, e := range p.Events {
			name := map[string]string{old: "old", plan.KID: "new", "": "new"}[e.KID]
			fmt.Fprintf(&b, "%v %s %s; ", e.Time.Sub(t0), e.Kind, name)
		}
		return b.String()
	}
	want := "0s publish new; 1h0m0s sign new; 1h0m0s retire old; 2h0m0s remove old; "
	if got := timeline(plan); got != want {
		t.Errorf("timeline %s, want %s", got, want)
	}
	if got := timeline(dry); got != want {
		t.Errorf("planned %s, want %s", got, want)
	}
	var early *TooEarlyError
	if _, err := r.Plan(t.Context(), Request{}); !errors.As(err, &early) || !early.At.Equal(t0.Add(time.Hour)) {
		t.Errorf("planning a second: %v", err)
	}
	if _, err := r.Rotate(t.Context(), Request{}); !errors.As(err, &early) {
		t.Errorf("a second: %v", err)
	}
	if len(r.keyring.Keys()) != 2 {
		t.Errorf("a refused rotation made a key: %v", r.keyring.Keys())
	}

	both := []string{old, plan.KID}
	for _, c := range []struct {
		after   time.Duration
		signing string
		set     []string
	}{
		{0, old, both},
		{time.Hour - 1, old, both},
		{time.Hour, plan.KID, both},
		{2*time.Hour - 1, plan.KID, both},
		{2 * time.Hour, plan.KID, []string{plan.KID}},
	} {
		// Exactly at the time, without anything having been advanced.
		r.now = t0.Add(c.after)
		r.Observe(r.store.revision)
		if got := r.signingKID(); got != c.signing {
			t.Errorf("at +%v %s signs", c.after, got)
		}
		if got := r.published(); !slices.Equal(got, c.set) {
			t.Errorf("at +%v published %v", c.after, got)
		}
	}
	ref := r.Schedule().Keys[0].Ref
	if _, err := r.keyring.Sign(t.Context(), ref, make([]byte, 32)); err != nil {
		t.Errorf("the removed key before Advance: %v", err)
	}
	r.at(2 * time.Hour)
	if _, err := r.keyring.Sign(t.Context(), ref, make([]byte, 32)); !errors.Is(err, custody.ErrDisabled) {
		t.Errorf("the removed key in custody: %v", err)
	}
	r.at(2*time.Hour + r.params.Keep)
	if _, ok := r.Schedule().Key(old); ok {
		t.Error("the removed key is still in the document")
	}
}

func TestAlgorithmChange(t *testing.T) {
	r := newRig(t).start()
	plan, err := r.Plan(t.Context(), Request{Algorithm: jose.RS256})
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(plan.Notes, " "); plan.Algorithm != jose.RS256 || !strings.Contains(text, "30 times") || !strings.Contains(text, "register") {
		t.Errorf("%s: %s", plan.Algorithm, text)
	}
	if _, err := r.Rotate(t.Context(), Request{Algorithm: jose.RS256}); err != nil {
		t.Fatal(err)
	}
	doc, err := r.Discovery()
	if err != nil || !strings.Contains(string(doc.Body), `["ES256","RS256"]`) {
		t.Errorf("discovery %v", err)
	}
	r.at(time.Hour)
	if k, err := r.Signing(); err != nil || k.Algorithm != jose.RS256 {
		t.Errorf("%s signs, %v", k.Algorithm, err)
	}
	r.at(2 * time.Hour)
	if doc, err := r.Discovery(); err != nil || !strings.Contains(string(doc.Body), `["RS256"]`) {
		t.Errorf("discovery %v", err)
	}
	// The algorithm stays until somebody changes it.
	if plan, err := r.Plan(t.Context(), Request{}); err != nil || plan.Algorithm != jose.RS256 {
		t.Errorf("next is %s, %v", plan.Algorithm, err)
	}
	if plan, err := r.Plan(t.Context(), Request{Algorithm: jose.ES256}); err != nil || plan.Algorithm != jose.ES256 {
		t.Errorf("back to %s, %v", plan.Algorithm, err)
	}
}

func TestAutomaticRotation(t *testing.T) {
	r := newRig(t).start()
	p := r.params
	for n := 1; n <= 3; n++ {
		old := r.signingKID()
		due := time.Duration(n)*p.Period - p.Lead
		r.now = t0.Add(due - 1)
		next, err := r.Advance(t.Context())
		if err != nil || next.After(t0.Add(due)) && next.After(r.now.Add(p.Poll)) {
			t.Fatalf("would look again at +%v, %v", next.Sub(t0), err)
		}
		if len(r.published()) != 1 {
			t.Fatal("published too early")
		}
		r.at(due)
		if len(r.published()) != 2 || r.signingKID() != old {
			t.Fatalf("not published when due")
		}
		r.at(due + p.Lead)
		if r.signingKID() == old {
			t.Fatal("the next key does not sign when the period has passed")
		}
		r.at(due + p.Lead + p.Overlap)
	}
}

func TestEmergencyOnTheOnlyReplica(t *testing.T) {
	r := newRig(t).start()
	old := r.signingKID()
	plan, err := r.Rotate(t.Context(), Request{Emergency: true, Compromised: old})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.signingKID(); got != plan.KID || got == old {
		t.Errorf("%s signs", got)
	}
	if got := r.published(); !slices.Equal(got, []string{plan.KID}) {
		t.Errorf("published %v", got)
	}
	kinds := map[EventKind]time.Duration{}
	for _, e := range plan.Events {
		kinds[e.Kind] = e.Time.Sub(t0)
	}
	if len(kinds) != 4 || kinds[EventRevoke] != 0 || kinds[EventPublish] != 0 || kinds[EventSign] != 0 || kinds[EventAcceptedUntil] != r.params.RevokedAcceptedFor() {
		t.Errorf("timeline %v", kinds)
	}
	r.at(0)
	if _, err := r.keyring.Sign(t.Context(), r.Schedule().Keys[0].Ref, make([]byte, 32)); !errors.Is(err, custody.ErrDisabled) {
		t.Errorf("the revoked key in custody: %v", err)
	}
	if _, err := r.Rotate(t.Context(), Request{Emergency: true, Compromised: old}); !errors.Is(err, ErrRevoked) {
		t.Errorf("again: %v", err)
	}
	withdrawn, err := r.Rotate(t.Context(), Request{Withdraw: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.published(); !slices.Equal(got, []string{withdrawn.KID}) || r.signingKID() != withdrawn.KID {
		t.Errorf("after withdrawing published %v", got)
	}
}

func TestEmergencyAsksOnlyTheOthers(t *testing.T) {
	r := newRig(t)
	r.fleet = &missing{names: []string{"me"}}
	r.start()
	plan, err := r.Rotate(t.Context(), Request{Emergency: true, Compromised: r.signingKID()})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.signingKID(); got != plan.KID {
		t.Errorf("%s signs", got)
	}
	for _, e := range plan.Events {
		if e.Kind == EventSign && !e.Time.Equal(t0) {
			t.Errorf("signs at %v", e.Time)
		}
	}
}

// TestConcurrentUse is for the race detector: requests go on while the schedule
// changes.
func TestConcurrentUse(t *testing.T) {
	mirror := &store{}
	c, err := New(Config{Issuer: issuer, Params: Defaults(), Keyring: custodytest.NewMemory(), Mirror: mirror})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c.Observe(c.Revision())
				if _, err := c.Signing(); err != nil && !errors.Is(err, ErrNoKey) {
					t.Errorf("Signing: %v", err)
				}
				if doc, err := c.KeySet(); err != nil || len(doc.Body) == 0 {
					t.Errorf("KeySet: %v", err)
				}
			}
		})
	}
	for range 5 {
		if _, err := c.Rotate(t.Context(), Request{Withdraw: true}); err != nil {
			t.Error(err)
		}
		if _, err := c.Advance(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

func TestRequestsThatContradictThemselves(t *testing.T) {
	r := newRig(t).start()
	for _, req := range []Request{
		{Algorithm: "HS256"}, {Emergency: true}, {Compromised: "x"}, {Emergency: true, Compromised: "x", Withdraw: true}, {Withdraw: true, Compromised: "x"},
	} {
		if _, err := r.Rotate(t.Context(), req); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("%+v: %v", req, err)
		}
		if _, err := r.Plan(t.Context(), req); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("plan %+v: %v", req, err)
		}
	}
	if _, err := r.Rotate(t.Context(), Request{Emergency: true, Compromised: "nobody"}); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("unknown key: %v", err)
	}
}

// missing is a fleet in which some replicas do not serve the newest revision.
type missing struct{ names []string }

func (m *missing) Serving(context.Context, string, uint64) ([]string, []string, error) {
	return []string{"me"}, m.names, nil
}

func TestFreshKeyWaitsForTheOtherReplicas(t *testing.T) {
	fleet := &missing{}
	r := newRig(t)
	r.fleet = fleet
	r.start()
	old := r.signingKID()
	fleet.names = []string{"other"}
	plan, err := r.Rotate(t.Context(), Request{Emergency: true, Compromised: old})
	if err != nil {
		t.Fatal(err)
	}
	wait := r.params.ConfirmWithin()
	if e := plan.Events[len(plan.Events)-2]; e.Kind != EventSign || !e.Time.Equal(t0.Add(wait)) {
		t.Errorf("planned %+v", plan.Events)
	}
	r.at(time.Second)
	if _, err := r.Signing(); !errors.Is(err, ErrNoKey) {
		t.Fatalf("while another replica does not serve the key: %v", err)
	}
	fleet.names = []string{"me"} // which need not be asked
	r.at(2 * time.Second)
	if got := r.signingKID(); got != plan.KID {
		t.Fatalf("%s signs", got)
	}

	// A replica that stays silent holds it up no longer than it may sign itself.
	fleet.names = []string{"other"}
	plan, err = r.Rotate(t.Context(), Request{Withdraw: true})
	if err != nil {
		t.Fatal(err)
	}
	r.at(2*time.Second + wait)
	if got := r.signingKID(); got != plan.KID {
		t.Errorf("%s signs after %v", got, wait)
	}
}

func TestNextKeyIsPostponedOnlyBeforeTheFreeze(t *testing.T) {
	fleet := &missing{}
	r := newRig(t)
	r.fleet = fleet
	r.start()
	old := r.signingKID()
	plan, err := r.Rotate(t.Context(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	p := r.params
	ask := p.Lead - p.Freeze() - p.FreezeMargin
	fleet.names = []string{"other"}
	r.at(ask - 1)
	if k, _ := r.Schedule().Key(plan.KID); !k.SignAt.Equal(t0.Add(p.Lead)) {
		t.Fatal("postponed too early")
	}
	r.at(ask)
	k, _ := r.Schedule().Key(plan.KID)
	if !k.SignAt.Equal(t0.Add(p.Lead + p.Freeze())) {
		t.Fatalf("signs at +%v", k.SignAt.Sub(t0))
	}
	fleet.names = nil
	r.at(ask + p.Freeze())
	fleet.names = []string{"other"} // too late: the question was asked and answered
	r.at(ask + p.Freeze() + p.FreezeMargin)
	r.at(p.Lead)
	if r.signingKID() != old {
		t.Error("the postponed key signs")
	}
	r.at(p.Lead + p.Freeze())
	if r.signingKID() != plan.KID {
		t.Error("the postponed key does not sign in time")
	}
}

func TestLosingASwapCreatesNothingThatIsPublished(t *testing.T) {
	r := newRig(t).start()
	other := &rig{t: t, keyring: &faulty{Memory: r.keyring.Memory}, store: r.store, now: t0, params: r.params}
	other.start()
	var won Plan
	r.keyring.onSwap = func() {
		var err error
		if won, err = other.Rotate(t.Context(), Request{}); err != nil {
			t.Error(err)
		}
	}
	var early *TooEarlyError
	if _, err := r.Rotate(t.Context(), Request{}); !errors.As(err, &early) || early.KID != won.KID {
		t.Fatalf("the loser: %v", err)
	}
	if r.Revision() != other.Revision() || !slices.Equal(r.published(), other.published()) {
		t.Error("the loser did not take over the winner's schedule")
	}
	if names := r.keyring.Keys(); len(names) != 2 {
		t.Errorf("custody has %v", names)
	}
}

func TestAnAutomaticRotationThatLosesASwapIsDone(t *testing.T) {
	r := newRig(t).start()
	other := &rig{t: t, keyring: &faulty{Memory: r.keyring.Memory}, store: r.store, now: t0, params: r.params}
	other.start()
	due := r.params.Period - r.params.Lead
	r.keyring.onSwap = func() { other.at(due) }
	r.at(due)
	if !slices.Equal(r.published(), other.published()) || len(r.published()) != 2 || len(r.keyring.Keys()) != 2 {
		t.Errorf("published %v and %v, custody has %v", r.published(), other.published(), r.keyring.Keys())
	}
}

func TestCrashes(t *testing.T) {
	boom := fmt.Errorf("%w: killed", custody.ErrUnavailable)
	t.Run("before the first document", func(t *testing.T) {
		r := newRig(t).boot()
		r.keyring.onSwap = func() { panic("crash") }
		func() {
			defer func() { _ = recover() }()
			_ = r.Start(t.Context())
		}()
		if len(r.keyring.Keys()) != 1 {
			t.Fatalf("custody has %v", r.keyring.Keys())
		}
		r.start()
		if k, err := r.Signing(); err != nil || !slices.Equal(r.keyring.Keys(), []string{k.Ref}) {
			t.Errorf("the key was not adopted: %v, custody has %v", err, r.keyring.Keys())
		}
	})
	t.Run("before the swap", func(t *testing.T) {
		r := newRig(t).start()
		r.keyring.onSwap = func() { panic("crash") }
		func() {
			defer func() { _ = recover() }()
			_, _ = r.Rotate(t.Context(), Request{})
		}()
		r.start()
		if len(r.published()) != 1 {
			t.Fatal("published without a document")
		}
		if _, err := r.Rotate(t.Context(), Request{}); err != nil || len(r.keyring.Keys()) != 2 {
			t.Errorf("%v, custody has %v", err, r.keyring.Keys())
		}
	})
	t.Run("before the swap, then another algorithm", func(t *testing.T) {
		r := newRig(t).start()
		r.keyring.onSwap = func() { panic("crash") }
		func() {
			defer func() { _ = recover() }()
			_, _ = r.Rotate(t.Context(), Request{})
		}()
		r.start()
		plan, err := r.Rotate(t.Context(), Request{Algorithm: jose.RS256})
		if err != nil || len(r.keyring.Keys()) != 3 || len(r.published()) != 2 {
			t.Errorf("%+v, %v, custody has %v", plan, err, r.keyring.Keys())
		}
	})
	t.Run("after the swap", func(t *testing.T) {
		r := newRig(t).start()
		r.keyring.swapFail = boom
		if _, err := r.Rotate(t.Context(), Request{}); !errors.Is(err, custody.ErrUnavailable) {
			t.Fatal(err)
		}
		r.keyring.swapFail = nil
		r.at(time.Second) // finds out that it was written
		if len(r.published()) != 2 || r.store.revision != r.Revision() {
			t.Errorf("published %v at revision %d", r.published(), r.Revision())
		}
	})
	t.Run("between announcement and swap", func(t *testing.T) {
		r := newRig(t)
		r.fleet = &missing{}
		r.start()
		kid, revision := r.signingKID(), r.Revision()
		r.keyring.onSwap = func() { panic("crash") }
		func() {
			defer func() { _ = recover() }()
			_, _ = r.Rotate(t.Context(), Request{})
		}()
		if r.store.revision != revision+1 {
			t.Fatalf("the store knows %d", r.store.revision)
		}
		// Somebody else sees an announcement that nothing follows, waits whether its
		// maker lives, and makes the number his.
		r.fleet = &missing{names: []string{"other"}}
		r.boot()
		r.Observe(r.store.revision)
		if _, err := r.Advance(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Signing(); !errors.Is(err, ErrNotFresh) || r.Revision() != revision {
			t.Fatalf("at revision %d: %v", r.Revision(), err)
		}
		r.at(r.params.grace())
		if r.signingKID() != kid || r.Revision() != revision+1 || len(r.published()) != 1 {
			t.Errorf("%s signs at revision %d, published %v", r.signingKID(), r.Revision(), r.published())
		}
	})
	t.Run("between announcement and swap, of the only replica", func(t *testing.T) {
		r := newRig(t).start()
		r.keyring.onSwap = func() { panic("crash") }
		func() {
			defer func() { _ = recover() }()
			_, _ = r.Rotate(t.Context(), Request{})
		}()
		r.boot()
		r.at(0)
		if err := r.Ready(); err != nil {
			t.Error(err)
		}
	})
	t.Run("between the first announcement and the first document", func(t *testing.T) {
		r := newRig(t).boot()
		r.keyring.onSwap = func() { panic("crash") }
		func() {
			defer func() { _ = recover() }()
			_ = r.Start(t.Context())
		}()
		r.boot()
		r.Observe(r.store.revision)
		if err := r.Start(t.Context()); err != nil || r.store.revision == 0 {
			t.Fatalf("%v, the store knows %d", err, r.store.revision)
		}
		r.at(0)
		if err := r.Ready(); err != nil {
			t.Error(err)
		}
	})
	t.Run("store away", func(t *testing.T) {
		r := newRig(t).start()
		kid, revision := r.signingKID(), r.Revision()
		r.store.fail = errors.New("store away")
		if _, err := r.Rotate(t.Context(), Request{}); !errors.Is(err, r.store.fail) || r.Revision() != revision {
			t.Errorf("a change that others cannot hear of: %v, at revision %d", err, r.Revision())
		}
		// A revocation does not wait.
		if _, err := r.Rotate(t.Context(), Request{Emergency: true, Compromised: kid}); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(r.published(), kid) {
			t.Error("the revoked key is published")
		}
		if _, err := r.Advance(t.Context()); err == nil {
			t.Error("a failed mirror is not reported")
		}
		r.store.fail = nil
		r.at(time.Second)
		if r.store.revision != r.Revision() || r.signingKID() == kid {
			t.Errorf("the store has %d of %d", r.store.revision, r.Revision())
		}
	})
}

func TestDocumentsThatAreRefused(t *testing.T) {
	t.Run("kid is not the thumbprint", func(t *testing.T) {
		r := newRig(t).start()
		foreign, err := r.keyring.Create(t.Context(), "foreign", jose.ES256)
		if err != nil {
			t.Fatal(err)
		}
		r.boot()
		r.keyring.foreign = foreign
		if err := r.Start(t.Context()); !errors.Is(err, ErrDocument) {
			t.Errorf("got %v", err)
		}
		if _, err := r.KeySet(); !errors.Is(err, ErrNotFresh) {
			t.Errorf("served: %v", err)
		}
	})
	t.Run("lower revision", func(t *testing.T) {
		r := newRig(t)
		if err := r.boot().Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		old := []byte(r.store.doc)
		if _, err := r.Rotate(t.Context(), Request{}); err != nil {
			t.Fatal(err)
		}
		before := r.Revision()
		r.keyring.Memory = custodytest.NewMemory() // restored from before everything
		if _, err := r.Advance(t.Context()); !errors.Is(err, ErrRolledBack) {
			t.Errorf("gone: %v", err)
		}
		if _, err := r.keyring.Swap(t.Context(), r.document, 0, old); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Advance(t.Context()); !errors.Is(err, ErrRolledBack) || r.Revision() != before {
			t.Errorf("lower: %v, now at %d", err, r.Revision())
		}
	})
	t.Run("lower than the store knows", func(t *testing.T) {
		r := newRig(t).start()
		r.boot()
		r.Observe(r.store.revision + 2)
		if err := r.Start(t.Context()); !errors.Is(err, ErrRolledBack) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("lost in custody, known to the store", func(t *testing.T) {
		r := newRig(t).boot()
		r.Observe(4)
		if err := r.Start(t.Context()); !errors.Is(err, ErrRolledBack) || len(r.keyring.Keys()) != 0 {
			t.Errorf("got %v, custody has %v", err, r.keyring.Keys())
		}
	})
	t.Run("lost in custody, mirrored", func(t *testing.T) {
		r := newRig(t).start()
		kept := r.keyring.Memory
		r.keyring.Memory = custodytest.NewMemory()
		if err := r.boot().Start(t.Context()); !errors.Is(err, ErrRolledBack) || !strings.Contains(err.Error(), "restore") {
			t.Errorf("got %v", err)
		}
		if len(r.keyring.Keys()) != 0 {
			t.Errorf("custody has %v", r.keyring.Keys())
		}
		r.keyring.Memory = kept
		r.start()
	})
	t.Run("lost in custody and not mirrored, but a second key is there", func(t *testing.T) {
		r := newRig(t).boot()
		for _, n := range []uint64{1, 2} {
			if _, err := r.keyring.Create(t.Context(), r.ref(n), jose.ES256); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Start(t.Context()); !errors.Is(err, ErrRolledBack) || !strings.Contains(err.Error(), "restore") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("older than the store knows, at a start", func(t *testing.T) {
		r := newRig(t).start()
		r.store.revision += 2
		if err := r.boot().Start(t.Context()); !errors.Is(err, ErrRolledBack) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("custody away", func(t *testing.T) {
		r := newRig(t).start()
		kid := r.signingKID()
		r.keyring.fail = custody.ErrUnavailable
		next, err := r.Advance(t.Context())
		if !errors.Is(err, custody.ErrUnavailable) || !next.Equal(t0.Add(r.params.Poll)) {
			t.Errorf("%v, again at %v", err, next)
		}
		if r.signingKID() != kid {
			t.Error("what is known is no longer used")
		}
	})
}

func TestNewRefuses(t *testing.T) {
	good := Config{Issuer: issuer, Params: Defaults(), Keyring: custodytest.NewMemory()}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"Keyring": func(c *Config) { c.Keyring = nil },
		"Issuer":  func(c *Config) { c.Issuer = "pa.example.com" },
		"Lead":    func(c *Config) { c.Params.Lead = time.Second },
	} {
		bad := good
		spoil(&bad)
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTwoIssuersShareNothing(t *testing.T) {
	keyring := custodytest.NewMemory()
	for _, url := range []string{"https://pa-1.example.com", "https://pa.1.example.com", "http://127.0.0.1:1", "http://127.0.0.1-1"} {
		c, err := New(Config{Issuer: url, Params: Defaults(), Keyring: keyring})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Observe(c.Revision())
		if err := c.Ready(); err != nil || c.Schedule().Issuer != url {
			t.Errorf("%s: %v", url, err)
		}
	}
	if names := keyring.Keys(); len(names) != 4 || !strings.HasSuffix(names[0], "-1") {
		t.Errorf("custody has %v", names)
	}
}

func TestSigningAllocatesNothing(t *testing.T) {
	r := newRig(t).start()
	if _, err := r.Rotate(t.Context(), Request{}); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = r.Signing() }); n != 0 {
		t.Errorf("Signing: %v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = r.KeySet() }); n != 0 {
		t.Errorf("KeySet: %v allocations", n)
	}
	r.now = t0.Add(2 * r.params.Staleness)
	if n := testing.AllocsPerRun(100, func() { _, _ = r.KeySet() }); n != 0 {
		t.Errorf("KeySet past the staleness bound: %v allocations", n)
	}
}

// TestRun lets Run work by itself: it wakes for what is due and for what it hears
// of.
func TestRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := Defaults().Scaled(60)
		p.Period = 10 * time.Minute
		mirror := &store{}
		keyring := custodytest.NewMemory()
		c, err := New(Config{Issuer: issuer, Params: p, Keyring: keyring, Mirror: mirror})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		signs := c.Schedule().Keys[0].SignAt
		for n := 1; n <= 2; n++ {
			for _, step := range []struct {
				at   time.Time
				keys int
			}{
				{signs.Add(time.Duration(n)*p.Period - p.Lead - time.Millisecond), 1},
				{signs.Add(time.Duration(n)*p.Period - p.Lead + time.Millisecond), 2},
				{signs.Add(time.Duration(n)*p.Period + p.Overlap + time.Millisecond), 1},
			} {
				<-time.After(time.Until(step.at))
				synctest.Wait()
				c.Observe(c.Revision())
				doc, err := c.KeySet()
				if err != nil {
					t.Fatal(err)
				}
				if kids := kidsOf(t, doc); len(kids) != step.keys {
					t.Errorf("at +%v published %v", step.at.Sub(signs), kids)
				}
			}
		}
		// Somebody else's change is taken over when the store tells of it.
		other, err := New(Config{Issuer: issuer, Params: p, Keyring: keyring, Mirror: mirror})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Rotate(t.Context(), Request{}); err != nil {
			t.Fatal(err)
		}
		c.Observe(other.Revision())
		synctest.Wait()
		if c.Revision() != other.Revision() {
			t.Errorf("at revision %d, not %d", c.Revision(), other.Revision())
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestRunSaysAFailureOnce: a schedule that cannot be advanced is logged when that
// begins, when it changes and when it ends.
func TestRunSaysAFailureOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		keyring := &faulty{Memory: custodytest.NewMemory()}
		c, err := New(Config{Issuer: issuer, Params: Defaults(), Keyring: keyring, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		log.Reset()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		for _, fail := range []error{custody.ErrUnavailable, custody.ErrNotFound, nil} {
			synctest.Wait()
			c.mu.Lock()
			keyring.fail = fail
			c.mu.Unlock()
			<-time.After(10 * time.Minute)
		}
		cancel()
		<-done
		if failed, ended := strings.Count(log.String(), "not advanced"), strings.Count(log.String(), "advanced again"); failed != 2 || ended != 1 {
			t.Errorf("said %d times that it failed, %d that it did not:\n%s", failed, ended, log.String())
		}
	})
}

// A key that is needed at once is published by clocks that are behind too, and
// shown with the time at which it was made.
func TestFreshKeysAreShownAsMade(t *testing.T) {
	r := newRig(t).start()
	first := r.Schedule().Keys[0]
	if !first.PublishedAt().Equal(t0) || !first.PublishAt.Equal(t0.Add(-2*r.params.Skew)) {
		t.Errorf("%+v", first)
	}
	plan, err := r.Rotate(t.Context(), Request{Emergency: true, Compromised: first.KID})
	if err != nil {
		t.Fatal(err)
	}
	fresh, _ := r.Schedule().Key(plan.KID)
	if !fresh.PublishedAt().Equal(r.now) || fresh.PublishAt.Equal(r.now) {
		t.Errorf("%+v", fresh)
	}
}
