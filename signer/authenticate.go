package signer

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"strings"

	"github.com/pactsigner/pactsigner/killswitch"
)

// The authorization schemes, in lower case.
const (
	bearerScheme = "bearer"
	deviceScheme = "pact-device"
)

var (
	errNoAuthorization = errors.New("no authorization")
	errTwoCredentials  = errors.New("more than one authorization")
)

// authorizationOf reads the one Authorization value of a request. Schemes are
// compared without case (RFC 9110 section 11.1).
func authorizationOf(values []string) (scheme, value string, err error) {
	switch len(values) {
	case 0:
		return "", "", errNoAuthorization
	case 1:
	default:
		return "", "", errTwoCredentials
	}
	scheme, value, ok := strings.Cut(values[0], " ")
	value = strings.Trim(value, " ")
	if !ok || value == "" {
		return "", "", errNoAuthorization
	}
	return strings.ToLower(scheme), value, nil
}

// isDeviceAuthorization says whether a value is an assertion.
func isDeviceAuthorization(value string) bool {
	scheme, _, _ := strings.Cut(value, " ")
	return strings.EqualFold(scheme, deviceScheme)
}

// authenticate says who calls, and the switch epoch under which that was decided:
// kill of all or of the issuer, the caller's proof, one question to the store,
// kill of the caller, its rate limit. For status a kill refuses nothing.
func (s *Service) authenticate(ctx context.Context, c *call, op operation) (Authorized, uint64, error) {
	epoch, err := s.admit(c, op)
	if err != nil {
		return Authorized{}, 0, s.failed(ctx, op, err)
	}
	ask, err := s.prove(ctx, c, op)
	if err != nil {
		return Authorized{}, 0, s.rejected(ctx, c, op, err)
	}
	ask.Issuer, ask.Limit, ask.Sign = c.issuer.URL, c.issuer.CallerLimit, op == opSign
	ask.Epoch = epoch
	who, err := s.cfg.Store.Authorize(ctx, ask)
	if errors.Is(err, ErrStaleEpoch) {
		if err = s.cfg.Guard.Refresh(ctx); err == nil {
			if epoch, err = s.admit(c, op); err == nil {
				ask.Epoch = epoch
				who, err = s.cfg.Store.Authorize(ctx, ask)
			}
		}
	}
	var limit *LimitedError
	if err != nil && !errors.As(err, &limit) {
		return Authorized{}, 0, s.rejected(ctx, c, op, err)
	}
	if op != opStatus {
		if _, err := s.cfg.Guard.Check(targetOf(c.issuer.URL, who)); err != nil {
			return Authorized{}, 0, s.refuse(ctx, c, who, op, refusalOf(err))
		}
	}
	if limit != nil {
		s.cfg.Observer.Limited(LimitCaller)
		return Authorized{}, 0, s.refuse(ctx, c, who, op, limited(limit.RetryAfter))
	}
	return who, epoch, nil
}

// admit asks the switch about everything and the issuer, and for the permit.
func (s *Service) admit(c *call, op operation) (uint64, error) {
	epoch, err := s.cfg.Guard.Check(killswitch.Target{Issuer: c.issuer.URL})
	var killed *killswitch.KilledError
	if op == opStatus && errors.As(err, &killed) {
		return epoch, nil
	}
	return epoch, err
}

// prove verifies what can be verified without changing anything, and returns the
// question for the store.
func (s *Service) prove(ctx context.Context, c *call, op operation) (Authorization, error) {
	scheme, value, err := authorizationOf(c.authorization)
	if err != nil {
		return Authorization{}, unauthorized(err)
	}
	switch scheme {
	case bearerScheme:
		secret, err := ParseCredential(value)
		if err != nil {
			return Authorization{}, unauthorized(err)
		}
		return Authorization{Kind: CredentialCaller, Secret: secret.Hash()}, nil
	case deviceScheme:
		a, err := parseAssertion(value)
		if err != nil {
			return Authorization{}, unauthorized(err)
		}
		key, err := s.deviceKey(ctx, c.issuer.URL, a.thumbprint)
		if errors.Is(err, ErrNotFound) {
			return Authorization{}, unauthorized(err)
		}
		if err != nil {
			return Authorization{}, err
		}
		if err := a.verify(c.issuer.endpoints[op], key, s.cfg.Now()); err != nil {
			return Authorization{}, unauthorized(err)
		}
		return Authorization{Kind: DeviceCaller, Thumbprint: a.thumbprint, JTI: a.jtiHash()}, nil
	}
	return Authorization{}, unauthorized(errNoAuthorization)
}

// deviceKey returns a device's key, which is immutable: a copy is always right.
func (s *Service) deviceKey(ctx context.Context, issuer, thumbprint string) (*ecdsa.PublicKey, error) {
	id := deviceID{issuer, thumbprint}
	if key, ok := s.devices.Get(id); ok {
		return key, nil
	}
	stored, err := s.cfg.Store.Device(ctx, issuer, thumbprint)
	if err != nil {
		return nil, err
	}
	if len(stored.Point) == 0 { // invalidated before it ever enrolled
		return nil, ErrNotFound
	}
	key, err := publicKey(stored.Point)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", thumbprint, err)
	}
	s.devices.Add(id, key)
	return key, nil
}

// rejected charges the address of a caller that was not accepted. Only those who
// fail are limited so: a guesser must not shut out the callers who share its
// address.
func (s *Service) rejected(ctx context.Context, c *call, op operation, err error) *Refusal {
	s.tell(err)
	r := s.failed(ctx, op, err)
	if r.Reason == ReasonUnauthorized {
		if wait, ok := s.failures.take(c.address, s.cfg.FailedProofs); !ok {
			s.cfg.Observer.Limited(LimitFailedProof)
			return limited(wait)
		}
	}
	return r
}

// refuse records a refusal to a caller that was authenticated.
func (s *Service) refuse(ctx context.Context, c *call, who Authorized, op operation, r *Refusal) *Refusal {
	if who.ID != "" && r.Reason != ReasonUnavailable {
		s.refusals.add(ctx, s.cfg.Now(), c.issuer.URL, who, op, r)
	}
	return s.failed(ctx, op, r)
}
