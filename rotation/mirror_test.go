package rotation

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/custodytest"
)

var errSeal = errors.New("not sealed by us")

func seal(data []byte) []byte {
	h := hmac.New(sha256.New, []byte("beside the private keys"))
	h.Write(data)
	return append(h.Sum(nil), data...)
}

func unseal(sealed []byte) ([]byte, error) {
	if len(sealed) < sha256.Size || !bytes.Equal(seal(sealed[sha256.Size:]), sealed) {
		return nil, errSeal
	}
	return sealed[sha256.Size:], nil
}

// wrappedRigs are two replicas of one deployment that hold their keys in memory, each
// with its own way to custody.
func wrappedRigs(t *testing.T) (a, b *rig) {
	a = newRig(t)
	a.seals = true
	a.start()
	b = newRig(t)
	b.seals = true
	b.keyring, b.store = &faulty{Memory: a.keyring.Memory}, a.store
	return a, b.start()
}

// While custody is away for hours a replica goes on by the schedule that its permits
// confirm: the next key takes over when it is due. What needs custody fails, and says
// so.
func TestSigningOutlivesCustody(t *testing.T) {
	r, _ := wrappedRigs(t)
	old := r.signingKID()
	plan, err := r.Rotate(t.Context(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	r.at(time.Second)
	away := errors.Join(custody.ErrUnavailable, errors.New("sealed"))
	r.keyring.fail = away
	revision := r.Revision()
	for after := time.Minute; after <= 6*time.Hour; after += time.Minute {
		r.now = t0.Add(after)
		r.Observe(r.store.revision)
		if _, err := r.Advance(t.Context()); !errors.Is(err, custody.ErrUnavailable) {
			t.Fatalf("after %v: advance gave %v", after, err)
		}
		want := old
		if after >= r.params.Lead {
			want = plan.KID
		}
		if got := r.signingKID(); got != want {
			t.Fatalf("after %v: %s signs, want %s", after, got, want)
		}
		if err := r.Ready(); err != nil {
			t.Fatalf("after %v: %v", after, err)
		}
		if kids := r.published(); !slices.Contains(kids, plan.KID) || slices.Contains(kids, old) != (after < r.params.Lead+r.params.Overlap) {
			t.Fatalf("after %v: %v are published", after, kids)
		}
	}
	for _, req := range []Request{{Emergency: true, Compromised: plan.KID}, {Withdraw: true}, {}} {
		_, err := r.Rotate(t.Context(), req)
		if !errors.Is(err, custody.ErrUnavailable) || strings.Contains(err.Error(), "NOTHING was revoked") != (req != Request{}) {
			t.Errorf("%+v without custody: %v", req, err)
		}
	}
	if r.Revision() != revision || r.store.revision != revision || r.signingKID() != plan.KID {
		t.Errorf("revision is %d and %d in the store, was %d; %s signs", r.Revision(), r.store.revision, revision, r.signingKID())
	}
	// Without the store nobody confirms the schedule.
	r.now = r.now.Add(r.params.Staleness)
	if _, err := r.Signing(); !errors.Is(err, ErrNotFresh) {
		t.Errorf("without permits: %v", err)
	}
	r.keyring.fail = nil
	r.at(7 * time.Hour)
	if r.signingKID() != plan.KID {
		t.Errorf("%s signs after custody came back", r.signingKID())
	}
}

// What one replica changed the moment before custody went away, the others take over
// from the store.
func TestScheduleFromTheStoreWhileCustodyIsAway(t *testing.T) {
	a, b := wrappedRigs(t)
	b.keyring.fail = custody.ErrUnavailable
	a.at(time.Second)
	plan, err := a.Rotate(t.Context(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	b.now = a.now
	b.Observe(b.store.revision)
	if _, err := b.Advance(t.Context()); !errors.Is(err, custody.ErrUnavailable) {
		t.Fatalf("advance gave %v", err)
	}
	if b.Revision() != a.Revision() || !slices.Contains(b.published(), plan.KID) {
		t.Fatalf("revision %d, want %d; %v are published", b.Revision(), a.Revision(), b.published())
	}
	b.now = b.now.Add(b.params.Staleness)
	b.Observe(b.store.revision)
	if err := b.Ready(); err != nil {
		t.Fatal(err)
	}
	b.keyring.fail = nil
	b.at(2 * time.Minute)
	b.at(b.params.Lead + time.Second)
	if b.signingKID() != plan.KID {
		t.Fatalf("%s signs, want %s", b.signingKID(), plan.KID)
	}
}

// The store is not believed: it may hold what was only announced, an old schedule
// under a new number, or anything.
func TestStoreIsNotBelievedWhileCustodyIsAway(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *store, old string)
		want  error
	}{
		"announced":                     {func(s *store, _ string) { data, _ := unseal([]byte(s.doc)); s.doc = string(data) }, errSeal},
		"changed":                       {func(s *store, _ string) { s.doc = s.doc[:len(s.doc)-2] + " }" }, errSeal},
		"nothing":                       {func(s *store, _ string) { s.doc = "" }, errSeal},
		"an old one under a new number": {func(s *store, old string) { s.doc = old }, ErrDocument},
		"another number":                {func(s *store, _ string) { s.revision++ }, ErrDocument},
		"an old one":                    {func(s *store, old string) { s.doc, s.revision = old, s.revision-1 }, custody.ErrUnavailable},
		"not a schedule":                {func(s *store, _ string) { s.doc = string(seal([]byte(`{"document":"e30="}`))) }, ErrDocument},
		"not JSON":                      {func(s *store, _ string) { s.doc = string(seal([]byte(`{`))) }, ErrDocument},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := wrappedRigs(t)
			b.keyring.fail = custody.ErrUnavailable
			old, revision := a.store.doc, b.Revision()
			if _, err := a.Rotate(t.Context(), Request{}); err != nil {
				t.Fatal(err)
			}
			newest := a.store.revision
			c.spoil(a.store, old)
			b.Observe(newest)
			if _, err := b.Advance(t.Context()); !errors.Is(err, c.want) || !errors.Is(err, custody.ErrUnavailable) {
				t.Errorf("advance gave %v, want %v", err, c.want)
			}
			b.now = b.now.Add(b.params.Staleness)
			b.Observe(newest)
			if b.Revision() != revision || b.Ready() == nil {
				t.Errorf("revision %d, was %d; ready says %v", b.Revision(), revision, b.Ready())
			}
		})
	}
	// Without OpenMirror it is not even asked.
	r := newRig(t).start()
	other := newRig(t)
	other.keyring, other.store = &faulty{Memory: r.keyring.Memory}, r.store
	other.start()
	other.keyring.fail = custody.ErrUnavailable
	if _, err := r.Rotate(t.Context(), Request{}); err != nil {
		t.Fatal(err)
	}
	other.Observe(other.store.revision)
	if _, err := other.Advance(t.Context()); !errors.Is(err, custody.ErrUnavailable) || other.Revision() == r.Revision() {
		t.Errorf("advance gave %v, revision %d", err, other.Revision())
	}
}

// A replica whose keyring cannot seal yet mirrors the bare document, and seals it
// when it can.
func TestSealingIsOptional(t *testing.T) {
	s := &store{}
	able := false
	c, err := New(Config{
		Issuer: issuer, Params: Defaults(), Keyring: custodytest.NewMemory(), Mirror: s, Now: func() time.Time { return t0 },
		SealMirror: func(data []byte) []byte {
			if !able {
				return nil
			}
			return seal(data)
		},
		OpenMirror: unseal,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := parse([]byte(s.doc)); err != nil {
		t.Errorf("mirrored without a seal: %v", err)
	}
	able = true
	if _, err := c.Rotate(t.Context(), Request{}); err != nil {
		t.Fatal(err)
	}
	if _, err := unseal([]byte(s.doc)); err != nil {
		t.Errorf("mirrored with a seal: %v", err)
	}
}
