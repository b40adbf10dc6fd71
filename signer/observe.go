package signer

import (
	"context"
	"errors"
)

// Observer is told what a Service does, for metrics and traces. Its methods are called
// on the way of requests, by many at a time: they must return at once.
type Observer interface {
	// Call is told that the service begins with a call of the contract: sign, status or
	// enroll. What the call asks of the store and of custody it asks with the context
	// that Call returns, and ended is called with the error that it ends with.
	Call(ctx context.Context, operation string, issuer string) (_ context.Context, ended func(error))
	// Issued is told that a token is on its way to a caller.
	Issued(issuer string, caller CallerKind)
	// Limited is told that a limit refused a call.
	Limited(limit LimitKind)
	// Replayed is told that a proof was refused because its jti was used before.
	Replayed()
}

// LimitKind is which limit refused a call.
type LimitKind string

// The limits.
const (
	LimitCaller      LimitKind = "caller"       // Issuer.CallerLimit
	LimitEnroll      LimitKind = "enroll"       // Issuer.EnrollLimit
	LimitFailedProof LimitKind = "failed_proof" // Config.FailedProofs
	LimitDevices     LimitKind = "devices"      // Issuer.DeviceCap
)

// silent is nobody who wants to know.
type silent struct{}

func (silent) Call(ctx context.Context, _, _ string) (context.Context, func(error)) {
	return ctx, ignore
}
func (silent) Issued(string, CallerKind) {}
func (silent) Limited(LimitKind)         {}
func (silent) Replayed()                 {}

func ignore(error) {}

// tell tells the observer why a caller was not accepted.
func (s *Service) tell(err error) {
	var refused *RefusedError
	switch {
	case errors.As(err, &refused) && refused.Why == "replayed":
		s.cfg.Observer.Replayed()
	case errors.Is(err, ErrFull):
		s.cfg.Observer.Limited(LimitDevices)
	}
}
