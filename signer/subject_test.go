package signer_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/signer"
)

// macKey is a subject key that is known.
type macKey []byte

func (k macKey) MAC(_ context.Context, message []byte) ([]byte, error) {
	h := hmac.New(sha256.New, k)
	h.Write(message)
	return h.Sum(nil), nil
}

// These were computed by another implementation of
// design.md, Subjects, under the key 00 01 … 1f.
func TestSubjectsAreForEver(t *testing.T) {
	key := make(macKey, 32)
	for i := range key {
		key[i] = byte(i)
	}
	const thumbprint = "a2f_VJ3xyZ10FagVpkVZyj78AEgt1AdpR5i_2uHwnQ4"
	derive := func(kind signer.CallerKind, issuer, id string) string {
		s, err := signer.DeriveSubject(t.Context(), key, kind, issuer, id)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if got := derive(signer.DeviceCaller, "https://pa.example.com", thumbprint); got != "pa_ml4d27b5js6ngbu6n3uosjelrepq3utg" {
		t.Errorf("device: %s", got)
	}
	if got := derive(signer.CredentialCaller, "https://pa.example.com", "principal-1"); got != "pa_y5hltk7rzeiib7ipbob7sie7lcorzdmh" {
		t.Errorf("credential: %s", got)
	}
	// No part runs into the next.
	seen := map[string]bool{}
	for _, parts := range [][2]string{{"https://a", "bc"}, {"https://ab", "c"}, {"https://abc", ""}} {
		seen[derive(signer.DeviceCaller, parts[0], parts[1])] = true
		seen[derive(signer.CredentialCaller, parts[0], parts[1])] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d different subjects, want 6", len(seen))
	}
	if _, err := signer.DeriveSubject(t.Context(), shortMAC{}, signer.DeviceCaller, "https://a", "b"); err == nil {
		t.Error("a MAC of 19 bytes made a subject")
	}
}

type shortMAC struct{}

func (shortMAC) MAC(context.Context, []byte) ([]byte, error) { return make([]byte, 19), nil }

const fixedIssuer = "https://pa.example.com"

// reopened runs test on a world over the folder, and closes it.
func reopened(t *testing.T, name, dir string, test func(t *testing.T, w *contractWorld)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		test(t, newContractWorld(t, func(c *worldConfig) {
			c.dir = dir
			c.issuers[0].URL = fixedIssuer
		}))
	})
}

// An assertion that was used stays used, whatever restarts; devices and subjects
// stay too.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	d := newDevice(t)
	var auth, subject string
	reopened(t, "before", dir, func(t *testing.T, w *contractWorld) {
		r := w.rest("/pact/enroll", w.enrolment(d), "")
		if subject = r.text("subject"); r.status != http.StatusOK || subject == "" {
			t.Fatalf("%+v", r)
		}
		auth = "PACT-Device " + d.assertion(t, w.base+"/pact/sign", w.clock.now())
		if r := w.rest("/pact/sign", goodSign, auth); r.status != http.StatusOK {
			t.Fatalf("%+v", r)
		}
	})
	reopened(t, "after", dir, func(t *testing.T, w *contractWorld) {
		for _, call := range w.faces() {
			call("/pact/sign", goodSign, auth).refused(t, 401, "unauthorized")
		}
		r := w.rest("/pact/sign", goodSign, "PACT-Device "+d.assertion(t, w.base+"/pact/sign", w.clock.now()))
		if _, claims := w.token(r.text("token")); claims["sub"] != subject {
			t.Errorf("sub %v, want %s", claims["sub"], subject)
		}
	})
}

// The same key has the same subject after any loss of the store.
func TestSubjectOutlivesTheStore(t *testing.T) {
	dir := t.TempDir()
	d := newDevice(t)
	var subjects []string
	enrol := func(t *testing.T, w *contractWorld) {
		r := w.rest("/pact/enroll", w.enrolment(d), "")
		if r.status != http.StatusOK {
			t.Fatalf("%+v", r)
		}
		subjects = append(subjects, r.text("subject"))
	}
	reopened(t, "first", dir, enrol)
	if err := os.Remove(filepath.Join(dir, "store.db")); err != nil {
		t.Fatal(err)
	}
	reopened(t, "second", dir, func(t *testing.T, w *contractWorld) {
		w.rest("/pact/sign", goodSign, "PACT-Device "+d.assertion(t, w.base+"/pact/sign", w.clock.now())).refused(t, 401, "unauthorized")
		enrol(t, w)
	})
	if len(subjects) != 2 || subjects[0] != subjects[1] {
		t.Errorf("subjects %q", subjects)
	}
}

// A rotated credential has another secret and the same subject.
func TestRotatedCredential(t *testing.T) {
	w := newContractWorld(t)
	c := w.credentialCaller()
	before := w.rest("/pact/status", "{}", c.auth(""))
	secret := signer.NewCredential()
	if _, err := w.store.UpdateCredential(t.Context(), w.issuer, c.id, func(c *signer.Credential) error {
		c.Hash, c.RotatedAt = secret.Hash(), w.clock.now()
		return nil
	}, audit.Entry{Action: "test"}); err != nil {
		t.Fatal(err)
	}
	for _, call := range w.faces() {
		call("/pact/status", "{}", c.auth("")).refused(t, 401, "unauthorized")
		call("/pact/status", "{}", "Bearer "+mistyped(secret.Reveal())).refused(t, 401, "unauthorized")
		call("/pact/status", "{}", "Bearer "+secret.Reveal()[:len(secret.Reveal())-1]).refused(t, 401, "unauthorized")
	}
	if r := w.rest("/pact/status", "{}", "Bearer "+secret.Reveal()); r.body != before.body || r.text("subject") != c.subject {
		t.Errorf("got %s, before %s", r.body, before.body)
	}
}
