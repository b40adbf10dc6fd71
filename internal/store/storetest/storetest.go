// Package storetest is what every store must do. It runs the same cases against
// each implementation of the stores that the signer and the kill switch declare.
package storetest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// Store is what is tested.
type Store interface {
	signer.Store
	signer.StateStore
	killswitch.Store
	signer.ActivityStore
	Close() error
}

// Backend is one place where a store keeps its data, empty at first.
type Backend struct {
	// Open opens a store over the data that the last one, which was closed, left.
	Open func(t testing.TB) Store
	// OpenSecond opens one more store over the data of one that is open; nil where
	// that cannot be.
	OpenSecond func(t testing.TB) Store
	// Advance moves the store's clock.
	Advance func(d time.Duration)
	// Fresh opens a store that records may be imported into, and Adopt lets it serve
	// once they were. Nil: Open does, and it serves at once.
	Fresh func(t testing.TB) Store
	Adopt func(t testing.TB, s Store)
}

// Run runs all cases, each on a backend of its own.
func Run(t *testing.T, newBackend func(t testing.TB) Backend) {
	t.Helper()
	for _, suite := range []struct {
		name  string
		cases []testCase
	}{
		{"Signer", signerCases},
		{"KillSwitch", switchCases},
		{"Transfer", transferCases},
		{"Activity", activityCases},
		{"Fleet", fleetCases},
	} {
		t.Run(suite.name, func(t *testing.T) {
			for _, c := range suite.cases {
				t.Run(c.name, func(t *testing.T) {
					h := &harness{T: t, backend: newBackend(t), newBackend: newBackend, ctx: t.Context()}
					if suite.name == "Fleet" && h.backend.OpenSecond == nil {
						return // one process at a time has the data
					}
					h.Store = h.backend.Open(t)
					t.Cleanup(func() { h.Store.Close() })
					c.run(h)
				})
			}
		})
	}
}

type testCase struct {
	name string
	run  func(h *harness)
}

// harness is one case's store.
type harness struct {
	*testing.T
	Store
	backend    Backend
	newBackend func(t testing.TB) Backend
	ctx        context.Context
	jtis       int
}

const (
	issuer = "https://pa.example.com"
	other  = "https://other.example.com"
)

// reopen closes the store and opens it again over the same data.
func (h *harness) reopen() {
	h.Helper()
	if err := h.Store.Close(); err != nil {
		h.Fatalf("close: %v", err)
	}
	h.Store = h.backend.Open(h.T)
}

func (h *harness) ok(err error) {
	h.Helper()
	if err != nil {
		h.Fatalf("unexpected error: %v", err)
	}
}

func (h *harness) now() time.Time {
	h.Helper()
	now, err := h.Store.Now(h.ctx)
	h.ok(err)
	return now
}

func (h *harness) epoch() uint64 {
	h.Helper()
	s, err := h.State(h.ctx)
	h.ok(err)
	return s.Epoch
}

func hash(s string) signer.Hash { return sha256.Sum256([]byte(s)) }

// freshJTI is a jti that was not used before.
func (h *harness) freshJTI() signer.Hash {
	h.jtis++
	return hash(fmt.Sprintf("fresh jti %d", h.jtis))
}

func act(action string) audit.Entry {
	return audit.Entry{Actor: "tester", Action: action, Issuer: issuer, Reason: "testing"}
}

func (h *harness) enrolment(thumbprint string) signer.Enrolment {
	point := make([]byte, 64)
	copy(point, thumbprint)
	return signer.Enrolment{
		Device: signer.Device{
			Issuer: issuer, Thumbprint: thumbprint, Subject: "pa_" + thumbprint, Point: point, EnrolledAt: h.now(),
		},
		JTI:   h.freshJTI(),
		Epoch: h.epoch(),
	}
}

func (h *harness) enroll(thumbprint string) signer.Device {
	h.Helper()
	d, err := h.Enroll(h.ctx, h.enrolment(thumbprint))
	h.ok(err)
	return d
}

// call is a device's call with a fresh jti.
func (h *harness) call(thumbprint string) signer.Authorization {
	return signer.Authorization{
		Issuer: issuer, Kind: signer.DeviceCaller, Thumbprint: thumbprint, JTI: h.freshJTI(), Epoch: h.epoch(), Sign: true,
	}
}

// bearer is a credential's call.
func (h *harness) bearer(secret string) signer.Authorization {
	return signer.Authorization{Issuer: issuer, Kind: signer.CredentialCaller, Secret: hash(secret), Epoch: h.epoch(), Sign: true}
}

func credential(id, name, secret string) signer.Credential {
	return signer.Credential{
		Issuer: issuer, ID: id, Name: name, Principal: "principal of " + id, Subject: "pa_" + id, Hash: hash(secret),
	}
}
