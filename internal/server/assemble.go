package server

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/pactsigner/pactsigner/custody/vault"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/store/bolt"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/rotation"
	"github.com/pactsigner/pactsigner/signer"
)

// storeOptions are the store's durations at this configuration's pace.
func (s *Server) storeOptions() bolt.Options {
	return bolt.Options{Registered: s.switchParams.Registered}
}

// assemble makes the parts and wires them; nothing runs yet.
func (s *Server) assemble(ctx context.Context) error {
	if err := s.makeKeys(ctx); err != nil {
		return err
	}
	var highWater killswitch.HighWater = ownHighWater{highWater(s.state.keyring), s.keeper}
	atStart := highWater
	if s.state.shared != nil {
		atStart = &gate{HighWater: highWater, keeper: s.keeper, store: s.state.shared}
	}
	observed := &observedStore{s.state.store, s.metrics}
	keyring := &observedKeyring{s.state.keyring, s.metrics}
	s.guard = killswitch.NewGuard(killswitch.GuardConfig{
		Store:        observed,
		HighWater:    atStart,
		Now:          s.now,
		Replica:      s.replica,
		Version:      s.version,
		Params:       s.switchParams,
		Revisions:    s.revisions,
		Ready:        func() bool { return s.mayServe() == nil },
		OnGrant:      s.observe,
		OnRegression: s.metrics.regressed.Inc,
		Log:          s.log,
	})
	s.metrics.registry.MustRegister(collector{s})
	s.metrics.serve(s.info.Issuers)

	issuers := s.signerIssuers()
	proxies := make([]netip.Prefix, len(s.cfg.TrustedProxies))
	for i, cidr := range s.cfg.TrustedProxies {
		proxies[i] = netip.MustParsePrefix(cidr) // validated
	}
	var store signer.Store = observed
	if s.state.shared != nil {
		store = &doubting{Store: store, doubt: s.guard.Doubt}
	}
	var err error
	s.service, err = signer.New(signer.Config{
		Store:          store,
		Guard:          s.guard,
		Keyring:        rightKeyring{keyring, s.keeper, s.subject},
		Issuers:        issuers,
		TrustedProxies: proxies,
		SignDeadline:   s.signDeadline(),
		Now:            s.now,
		Log:            s.log,
		Observer:       s.metrics,
	})
	if err != nil {
		return err
	}
	if err := s.assembleAdmin(highWater, issuers); err != nil {
		return err
	}
	s.publicServer = s.public.httpServer(s.metrics.observeHTTP(s.service.Handler()), requestTimeout, s.log)
	s.adminServer = s.admin.httpServer(s.metrics.identify(s.operators), adminTimeout, s.log)
	s.adminServer.Protocols = bothVersions()
	s.opsServer = s.ops.httpServer(s.opsHandler(), requestTimeout, s.log)
	s.assembleGRPC()
	return nil
}

// assembleAdmin makes the operators' service.
func (s *Server) assembleAdmin(highWater killswitch.HighWater, issuers []signer.Issuer) error {
	more, err := adminTokens("", s.cfg.Admin.Tokens)
	if err != nil {
		return err
	}
	s.heads = s.auditHead()
	observed := &observedStore{s.state.store, s.metrics}
	cfg := signer.AdminConfig{
		Store: observed,
		Switch: killswitch.NewSwitch(killswitch.SwitchConfig{
			Store: observed, HighWater: highWater, Params: s.switchParams, OnBarrier: s.metrics.barrier,
		}),
		AuditHead: s.heads,
		State: &adminState{
			keeper: s.keeper, kind: s.cfg.Store.Kind, store: s.state.store, shared: s.state.shared,
			issuers: s.info.Issuers, behind: s.heads.behind.Load, now: s.now,
		},
		Guard:      s.guard,
		Ready:      s.mayServe,
		LongestTTL: s.longestTTL(),
		KillParams: s.switchParams,
		Fleet:      observed,
		Activities: observed,
		Activity:   s.activity.read,
		Keyring:    rightKeyring{s.state.keyring, s.keeper, s.subject},
		Issuers:    issuers,
		Now:        s.now,
		Version:    s.version,
		Replica:    s.replica,
		Log:        s.log,
		Observe:    s.metrics.adminCall,
	}
	if s.operators, err = newAdminFace(cfg, more); err != nil {
		return err
	}
	if err := s.operators.servePage(s.issuers, s.pageSecret); err != nil {
		return err
	}
	s.keeper.changed = s.recordChanged
	if d, ok := s.keeper.current(); ok {
		return s.operators.learn(d.AdminToken)
	}
	return nil
}

// auditHead records the audit log's head in custody. Where the store has copies, a
// permit that is granted after the head was read shows that they have it too.
func (s *Server) auditHead() *auditHead {
	h := &auditHead{keyring: s.state.keyring, store: s.state.store, id: s.keeper.storeID}
	if s.cfg.Store.Kind == "redis" && s.cfg.Store.Redis.Acks > 0 {
		h.acknowledged = s.guard.Refresh
	}
	h.behind.Store(true)
	return h
}

// recordChanged goes along with what the deployment's record says anew.
func (s *Server) recordChanged(from, to deployment) {
	if err := s.operators.learn(to.AdminToken); err != nil {
		s.log.Error("the first admin token's hash in custody is of no use", "err", err)
	}
	switch {
	case to.EnrolmentClosed && !from.EnrolmentClosed:
		s.log.Warn("enrolment is closed for every issuer, because the store was lost or went back: who was invalidated is not known any more. `pactctl state open-enrolment` ends that")
	case from.EnrolmentClosed && !to.EnrolmentClosed:
		s.log.Info("enrolment is as configured again")
	}
	for _, is := range to.Retired {
		was := from.retirement(is.URL)
		if was == nil && from.Store != "" {
			s.log.Info("an issuer is retired", "issuer", is.URL)
		}
		if is.Done && (was == nil || !was.Done) {
			s.heads.behind.Store(true) // who retired it wrote into the audit log
		}
	}
	if from.Store != "" && from.Store != to.Store {
		s.log.Warn("the deployment has another store", "before", from.Store, "now", to.Store)
	}
}

// longestTTL is how long a token may live that any replica made: others may be
// configured to make them last longer. Zero: only this process makes any.
func (s *Server) longestTTL() time.Duration {
	if s.state.shared == nil {
		return 0
	}
	return rotation.Params{TokenTTL: config.MaxTokenTTL}.Scaled(s.cfg.Development.TimeScale).TokenTTL
}

// signDeadline is the shortest of the schedules': their overlaps count on it.
func (s *Server) signDeadline() time.Duration {
	shortest := s.issuers[0].params.SignDeadline
	for _, is := range s.issuers {
		shortest = min(shortest, is.params.SignDeadline)
	}
	return shortest
}

// makeKeys makes every issuer's controller. That of an embedded signer loads its
// schedule, or makes it.
func (s *Server) makeKeys(ctx context.Context) error {
	observed := &observedStore{s.state.store, s.metrics}
	for i := range s.issuers {
		is := &s.issuers[i]
		is.params = is.RotationParams().Scaled(s.cfg.Development.TimeScale)
		config := rotation.Config{
			Issuer:  is.url,
			Params:  is.params,
			Keyring: s.state.keyring,
			Mirror:  observed,
			Fleet:   observed,
			Replica: s.replica,
			Now:     s.now,
			Log:     s.log,
		}
		if v, ok := s.state.keyring.(*vault.Keyring); ok && s.cfg.Custody.Vault.Wrapped {
			config.SealMirror, config.OpenMirror = v.SealMirror, v.OpenMirror
		}
		keys, err := rotation.New(config)
		if err != nil {
			return fmt.Errorf("keys of %s: %w", is.url, err)
		}
		is.keys = keys
		if !s.cfg.Embedded() {
			continue
		}
		if err := keys.Start(ctx); err != nil {
			return fmt.Errorf("keys of %s: %w", is.url, err)
		}
	}
	return nil
}

// startKeysOf loads an issuer's schedule, or makes it, as soon as custody and the
// store answer.
func (s *Server) startKeysOf(ctx context.Context, is issuer) {
	if !s.awaitDeployment(ctx) {
		return
	}
	said, started := "", time.Now()
	for {
		err := is.keys.Start(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if err.Error() != said && time.Since(started) > quietStart {
			said = err.Error()
			s.log.Warn("the key schedule cannot be loaded yet, trying again until it can", "issuer", is.url, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(is.params.Poll):
		}
	}
}

// awaitDeployment waits until it is known which store is the right one, and that this
// replica's issuers are the deployment's.
func (s *Server) awaitDeployment(ctx context.Context) bool {
	tick := time.NewTicker(readySoon)
	defer tick.Stop()
	for {
		if _, known := s.keeper.current(); known {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// revisions are the schedules that this replica serves.
func (s *Server) revisions() map[string]uint64 {
	m := make(map[string]uint64, len(s.issuers))
	for _, is := range s.issuers {
		m[is.url] = is.keys.Revision()
	}
	return m
}

// observe passes on what a permit brings: the newest revisions to the schedules, and
// the store's clock to what counts by it.
func (s *Server) observe(g killswitch.Grant) {
	s.activity.tell(g.Time)
	for _, is := range s.issuers {
		is.keys.Observe(g.Revisions[is.url])
	}
}

// assembleGRPC makes the gRPC face: the contract, health and reflection.
func (s *Server) assembleGRPC() {
	options := append(s.service.ServerOptions(s.metrics.observeUnary),
		grpc.ChainStreamInterceptor(endStreams(s.draining)),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(headerTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveInterval, MaxConnectionIdle: idleTimeout}),
	)
	if s.grpc.certificate != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.grpc.certificate.tlsConfig())))
	}
	s.grpcServer = grpc.NewServer(options...)
	s.service.Register(s.grpcServer)
	s.health = health.NewServer()
	s.setHealth(false)
	healthpb.RegisterHealthServer(s.grpcServer, s.health)
	reflection.Register(s.grpcServer)
}

// setHealth tells the gRPC health service whether this replica is ready.
func (s *Server) setHealth(ready bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthpb.HealthCheckResponse_SERVING
	}
	for _, service := range []string{"", signerv1.SignerService_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(service, status)
	}
}

// signerIssuers are the issuers as the services know them.
func (s *Server) signerIssuers() []signer.Issuer {
	issuers := make([]signer.Issuer, len(s.issuers))
	for i, is := range s.issuers {
		issuers[i] = signer.Issuer{
			URL:          is.url,
			SignerURLs:   is.signerURLs,
			TokenTTL:     is.params.TokenTTL,
			Enrolment:    signer.Mode(is.Enrolment),
			Closed:       s.keeper.enrolmentClosed,
			CallerLimit:  limit(is.Limits.Caller),
			EnrollLimit:  limit(is.Limits.Enroll),
			DeviceCap:    is.MaxDevices,
			Keys:         is.keys,
			KeySetMaxAge: is.params.MaxAge,
		}
	}
	return issuers
}

// limit is a limit as the services know it: a rate of 0 does not limit.
func limit(l config.Limit) signer.Limit {
	if l.Rate == 0 {
		return signer.Limit{}
	}
	return signer.Limit{Rate: l.Rate, Burst: l.Burst}
}
