package rotation

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
)

// A retired issuer's keys never sign again, whether its schedule has them or not; those
// of other issuers do. Whatever interrupts it, it is called again.
func TestRetire(t *testing.T) {
	r := newRig(t).start()
	if _, err := r.Rotate(t.Context(), Request{}); err != nil {
		t.Fatal(err)
	}
	r.at(time.Second)
	unwritten := r.ref(3) // its maker died before it wrote the schedule
	other := "issuer.other-1"
	for _, name := range []string{unwritten, other} {
		if _, err := r.keyring.Create(t.Context(), name, jose.ES256); err != nil {
			t.Fatal(err)
		}
	}
	refs := []string{unwritten}
	for _, k := range r.Schedule().Keys {
		refs = append(refs, k.Ref)
	}
	if len(refs) != 3 {
		t.Fatalf("the schedule has the keys %v", refs[1:])
	}
	r.keyring.fail = custody.ErrUnavailable
	if _, err := Retire(t.Context(), r.keyring, issuer); !errors.Is(err, custody.ErrUnavailable) {
		t.Fatalf("without custody: %v", err)
	}
	r.keyring.fail = nil
	for range 2 {
		if n, err := Retire(t.Context(), r.keyring, issuer); err != nil || n != 3 {
			t.Fatalf("%d keys, %v", n, err)
		}
	}
	for _, ref := range refs {
		if _, err := r.keyring.Sign(t.Context(), ref, make([]byte, 32)); !errors.Is(err, custody.ErrDisabled) {
			t.Errorf("%s signs: %v", ref, err)
		}
	}
	if _, err := r.keyring.Sign(t.Context(), other, make([]byte, 32)); err != nil {
		t.Errorf("another issuer's key: %v", err)
	}
	if names := r.keyring.Keys(); slices.Contains(names, r.ref(4)) {
		t.Errorf("it made a key: %v", names)
	}
	if n, err := Retire(t.Context(), r.keyring, "https://never.example.com"); err != nil || n != 0 {
		t.Errorf("an issuer that never was: %d keys, %v", n, err)
	}
}

// A schedule that cannot be read says nothing of keys: nothing is called done.
func TestRetireWithBadSchedule(t *testing.T) {
	r := newRig(t).start()
	doc, err := r.keyring.Load(t.Context(), r.document)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.keyring.Memory.Swap(t.Context(), r.document, doc.Revision, []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, err := Retire(t.Context(), r.keyring, issuer); !errors.Is(err, ErrDocument) {
		t.Errorf("retired by it: %v", err)
	}
	if _, err := Retire(t.Context(), r.keyring, "old"); err == nil {
		t.Error("a name that is no URL was retired")
	}
}
