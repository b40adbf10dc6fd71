// Package signer is the signing service: it authenticates devices and
// credentials, mints their PA-JWTs with keys that custody holds, and lets
// operators run it.
//
// [Service] is the contract for personal agents, [Admin] the one for operators.
// What they keep is behind [Store]. A request is answered in this order, and the
// first that applies decides: malformed; kill of everything or of the issuer;
// authentication; kill of the subject, device or credential; rate limit;
// registration of the audience; kill of the audience. State that cannot be
// confirmed is answered with 503 and never with a signature.
//
// The package holds no private key, and its logs, errors and audit entries hold
// no credential and no token.
package signer

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// Config configures a Service. Store, Guard, Keyring and Issuers are required.
type Config struct {
	Store   Store
	Guard   *killswitch.Guard
	Keyring custody.Keyring
	Issuers []Issuer
	// TrustedProxies are networks whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix
	// SignDeadline bounds one call; after it the answer is 503. The schedules
	// count on it: none of theirs may be shorter. Default: 5 s.
	SignDeadline time.Duration
	// FailedProofs is per address: how many requests may fail authentication
	// before failing is answered with 429. Good ones are not held up by it.
	// Default: 10/s with a burst of 600.
	FailedProofs Limit
	// KeyCache is how many device keys are kept in memory. Default: 50,000.
	KeyCache int
	// Now is this replica's clock. Default: time.Now.
	Now func() time.Time
	// Log gets a line for each token and the causes of failures. Default:
	// slog.Default.
	Log *slog.Logger
	// Observer is told what is done. Default: nobody is.
	Observer Observer
}

// Service is the contract's SignerService. Callers reach it through Handler on
// HTTP and through Register on gRPC. Safe for concurrent use.
type Service struct {
	signerv1.UnimplementedSignerServiceServer

	cfg     Config
	issuers []*issuer
	byHost  map[string]*issuer

	devices  *lru.Cache[deviceID, *ecdsa.PublicKey]
	enrols   *addressLimiter
	failures *addressLimiter
	refusals *refusalLog
	handler  http.Handler
}

// deviceID names a device's key, which is immutable under it.
type deviceID struct{ issuer, thumbprint string }

// New checks the configuration and returns the service.
func New(cfg Config) (*Service, error) {
	for _, f := range []struct {
		missing bool
		name    string
	}{
		{cfg.Store == nil, "Store"}, {cfg.Guard == nil, "Guard"},
		{cfg.Keyring == nil, "Keyring"}, {len(cfg.Issuers) == 0, "Issuers"},
	} {
		if f.missing {
			return nil, fmt.Errorf("signer: %s is required", f.name)
		}
	}
	if cfg.SignDeadline == 0 {
		cfg.SignDeadline = 5 * time.Second
	}
	if cfg.FailedProofs == (Limit{}) {
		cfg.FailedProofs = Limit{Rate: 10, Burst: 600}
	}
	if cfg.KeyCache == 0 {
		cfg.KeyCache = 50_000
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Observer == nil {
		cfg.Observer = silent{}
	}
	devices, err := lru.New[deviceID, *ecdsa.PublicKey](cfg.KeyCache)
	if err != nil {
		return nil, fmt.Errorf("signer: KeyCache: %w", err)
	}
	s := &Service{
		cfg: cfg, byHost: map[string]*issuer{}, devices: devices,
		enrols: newAddressLimiter(cfg.Now), failures: newAddressLimiter(cfg.Now),
		refusals: newRefusalLog(cfg.Store, cfg.Log),
	}
	for _, i := range cfg.Issuers {
		if err := i.validate(); err != nil {
			return nil, fmt.Errorf("signer: %w", err)
		}
		is := newIssuer(i, cfg.Store)
		hosts, err := is.hosts()
		if err != nil {
			return nil, fmt.Errorf("signer: %w", err)
		}
		for _, h := range hosts {
			if other, taken := s.byHost[h]; taken && other != is {
				return nil, fmt.Errorf("signer: issuers %s and %s share the host %s", other.URL, is.URL, h)
			}
			s.byHost[h] = is
		}
		s.issuers = append(s.issuers, is)
	}
	if s.handler, err = s.newHandler(); err != nil {
		return nil, fmt.Errorf("signer: %w", err)
	}
	return s, nil
}

// call is what a face knows of a request.
type call struct {
	issuer        *issuer
	address       netip.Addr
	authorization []string

	malformed error     // what is wrong with a REST body
	outgoing  *outgoing // set by the service; nil: the answer may go out as it is
}

// outgoing is what a face must ask the switch as an answer goes out. If it is
// refused then, the answer is thrown away.
type outgoing struct {
	op     operation
	target killswitch.Target
	epoch  uint64     // under which the answer was made
	who    Authorized // whose it is; zero for an enrolment
	sent   func()     // called once it is on its way
}

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

var errNoFace = errors.New("the service was called without one of its faces")

func callOf(ctx context.Context) (*call, error) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c, nil
	}
	return nil, unavailable(errNoFace)
}

// Sign implements signerv1.SignerServiceServer.
func (s *Service) Sign(ctx context.Context, req *signerv1.SignRequest) (_ *signerv1.SignResponse, err error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	ctx, ended := s.cfg.Observer.Call(ctx, "sign", c.issuer.URL)
	defer func() { ended(err) }()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.SignDeadline)
	defer cancel()
	if err := checkSign(req); err != nil {
		return nil, err
	}
	who, epoch, err := s.authenticate(ctx, c, opSign)
	if err != nil {
		return nil, err
	}
	registry, err := c.issuer.audiences.current(ctx)
	if err != nil {
		return nil, s.failed(ctx, opSign, err)
	}
	if _, ok := registry.origins[req.Audience]; !ok {
		return nil, s.refuse(ctx, c, who, opSign, &Refusal{Reason: ReasonAudienceNotRegistered})
	}
	target := targetOf(c.issuer.URL, who)
	target.Audience = req.Audience
	if _, err := s.cfg.Guard.Check(target); err != nil {
		return nil, s.refuse(ctx, c, who, opSign, refusalOf(err))
	}
	token, minted, err := s.mint(ctx, c.issuer, who.Subject, req.Audience)
	if err != nil {
		return nil, s.failed(ctx, opSign, err)
	}
	c.outgoing = &outgoing{op: opSign, target: target, epoch: epoch, who: who, sent: func() {
		s.cfg.Observer.Issued(c.issuer.URL, who.Kind)
		s.cfg.Log.LogAttrs(context.WithoutCancel(ctx), slog.LevelInfo, "issued",
			slog.String("issuer", c.issuer.URL), slog.String(string(who.Kind), who.ID), slog.String("audience", req.Audience),
			slog.String("kid", minted.kid), slog.String("jti", minted.jti), slog.Time("expires", minted.expires))
	}}
	return &signerv1.SignResponse{Token: token, Nonce: req.Nonce}, nil
}

// Status implements signerv1.SignerServiceServer.
func (s *Service) Status(ctx context.Context, _ *signerv1.StatusRequest) (_ *signerv1.StatusResponse, err error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	ctx, ended := s.cfg.Observer.Call(ctx, "status", c.issuer.URL)
	defer func() { ended(err) }()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.SignDeadline)
	defer cancel()
	who, _, err := s.authenticate(ctx, c, opStatus)
	if err != nil {
		return nil, err
	}
	registry, err := c.issuer.audiences.current(ctx)
	if err != nil {
		return nil, s.failed(ctx, opStatus, err)
	}
	view, err := s.cfg.Guard.View()
	if err != nil {
		return nil, s.failed(ctx, opStatus, err)
	}
	resp := &signerv1.StatusResponse{
		Issuer: c.issuer.URL, Subject: who.Subject,
		Disabled:  view.Killed(targetOf(c.issuer.URL, who)) != nil,
		Audiences: make(map[string]string, len(registry.origins)),
	}
	for audience, origin := range registry.origins {
		if !view.AudienceKilled(c.issuer.URL, audience) {
			resp.Audiences[origin] = audience
		}
	}
	return resp, nil
}

// Enroll implements signerv1.SignerServiceServer.
func (s *Service) Enroll(ctx context.Context, req *signerv1.EnrollRequest) (_ *signerv1.EnrollResponse, err error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	ctx, ended := s.cfg.Observer.Call(ctx, "enroll", c.issuer.URL)
	defer func() { ended(err) }()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.SignDeadline)
	defer cancel()
	point, key, err := pointOf(req.PublicJwk)
	if err != nil {
		return nil, invalid(err.Error())
	}
	if req.Proof == "" {
		return nil, invalid("proof: is missing")
	}
	everything := killswitch.Target{Issuer: c.issuer.URL}
	epoch, err := s.cfg.Guard.Check(everything)
	if err != nil {
		return nil, s.failed(ctx, opEnroll, err)
	}
	e, err := s.proveEnrolment(c, req, key)
	if err != nil {
		return nil, s.rejected(ctx, c, opEnroll, unauthorized(err))
	}
	if wait, ok := s.enrols.take(c.address, c.issuer.EnrollLimit); !ok {
		s.cfg.Observer.Limited(LimitEnroll)
		return nil, s.failed(ctx, opEnroll, limited(wait))
	}
	subject, err := DeriveSubject(ctx, s.cfg.Keyring, DeviceCaller, c.issuer.URL, req.PublicJwk.Kid)
	if err != nil {
		return nil, s.failed(ctx, opEnroll, err)
	}
	e.Device = Device{Issuer: c.issuer.URL, Thumbprint: req.PublicJwk.Kid, Subject: subject, Point: point}
	e.Epoch, e.Cap = epoch, c.issuer.DeviceCap
	stored, err := s.enroll(ctx, e)
	if err != nil {
		return nil, s.rejected(ctx, c, opEnroll, err)
	}
	if stored.Subject != subject {
		// A subject never changes: the record is right, and the subject key is not
		// the one that the record was made under.
		s.cfg.Log.LogAttrs(ctx, slog.LevelError, "a device's recorded subject is not the derived one: has the subject key changed?",
			slog.String("issuer", c.issuer.URL), slog.String("device", stored.Thumbprint))
	}
	c.outgoing = &outgoing{op: opEnroll, target: everything, epoch: epoch}
	return &signerv1.EnrollResponse{Subject: stored.Subject, Issuer: c.issuer.URL}, nil
}

// proveEnrolment verifies what can be verified without asking anybody: that the
// caller has the key and, by the issuer's mode, something that may be a token.
func (s *Service) proveEnrolment(c *call, req *signerv1.EnrollRequest, key *ecdsa.PublicKey) (e Enrolment, err error) {
	switch c.issuer.mode() {
	case EnrolOpen:
	case EnrolToken:
		e.NeedToken = true
		if e.Token, err = enrollmentToken(c.authorization); err != nil {
			return e, err
		}
	default:
		return e, errClosed
	}
	proof, err := parseAssertion(req.Proof)
	if err != nil {
		return e, err
	}
	if proof.thumbprint != req.PublicJwk.Kid {
		return e, fmt.Errorf("%w: it is not by the key that enrols", errAssertion)
	}
	e.JTI = proof.jtiHash()
	return e, proof.verify(c.issuer.endpoints[opEnroll], key, s.cfg.Now())
}

var errClosed = errors.New("enrolment is closed")

// enrollmentToken finds the token of an enrolment in mode token. Clients may send
// an assertion beside it, which is not looked at.
func enrollmentToken(authorization []string) (Hash, error) {
	kind, value, err := authorizationOf(slices.DeleteFunc(slices.Clone(authorization), isDeviceAuthorization))
	if err != nil {
		return Hash{}, err
	}
	if kind != bearerScheme {
		return Hash{}, errNoAuthorization
	}
	token, err := ParseEnrollmentToken(value)
	if err != nil {
		return Hash{}, fmt.Errorf("enrolment token: %w", err)
	}
	return token.Hash(), nil
}

// enroll stores a device, learning the switch's state anew if need be.
func (s *Service) enroll(ctx context.Context, e Enrolment) (Device, error) {
	d, err := s.cfg.Store.Enroll(ctx, e)
	if !errors.Is(err, ErrStaleEpoch) {
		return d, err
	}
	if err := s.cfg.Guard.Refresh(ctx); err != nil {
		return d, err
	}
	if e.Epoch, err = s.cfg.Guard.Check(killswitch.Target{Issuer: e.Device.Issuer}); err != nil {
		return d, err
	}
	return s.cfg.Store.Enroll(ctx, e)
}

// targetOf is what the switch is asked about a caller.
func targetOf(issuer string, who Authorized) killswitch.Target {
	t := killswitch.Target{Issuer: issuer, Subject: who.Subject}
	if who.Kind == DeviceCaller {
		t.Device = who.ID
	} else {
		t.Credential = who.ID
	}
	return t
}

// recovered makes a panic, which is a fault of ours, a refusal of one call.
func (s *Service) recovered(ctx context.Context, refuse func(*Refusal)) {
	if p := recover(); p != nil {
		s.cfg.Log.LogAttrs(ctx, slog.LevelError, "a call panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		refuse(unavailable(errPanic))
	}
}

var errPanic = errors.New("a call panicked")

// deliver asks the switch about the answer to c for the last time and calls
// write, which hands it to the transport. A refusal means that it was thrown away
// and write not called; the error of write is its own.
func (s *Service) deliver(ctx context.Context, c *call, write func()) *Refusal {
	o := c.outgoing
	if o == nil {
		write()
		return nil
	}
	err := s.cfg.Guard.Deliver(o.target, o.epoch, func() error {
		write()
		return nil
	})
	if err != nil {
		return s.refuse(ctx, c, o.who, o.op, refusalOf(err))
	}
	return nil
}

// failed logs what the caller is not told, and returns the refusal.
func (s *Service) failed(ctx context.Context, op operation, err error) *Refusal {
	r := refusalOf(err)
	level := slog.LevelDebug
	if r.Reason == ReasonUnavailable && !errors.Is(err, context.Canceled) {
		level = slog.LevelWarn
	}
	s.cfg.Log.LogAttrs(ctx, level, "refused", slog.String("operation", string(op)), slog.String("reason", string(r.Reason)), slog.Any("err", err))
	return r
}
