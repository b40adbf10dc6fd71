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
	if err := s.startKeys(ctx); err != nil {
		return err
	}
	highWater := highWater(s.state.keyring)
	s.guard = killswitch.NewGuard(killswitch.GuardConfig{
		Store:     s.state.store,
		HighWater: highWater,
		Replica:   s.replica,
		Version:   s.version,
		Params:    s.switchParams,
		Revisions: s.revisions,
		Ready:     s.keysReady,
		OnGrant:   s.observe,
		Log:       s.log,
	})
	s.metrics.registry.MustRegister(collector{s})

	issuers := s.signerIssuers()
	proxies := make([]netip.Prefix, len(s.cfg.TrustedProxies))
	for i, cidr := range s.cfg.TrustedProxies {
		proxies[i] = netip.MustParsePrefix(cidr) // validated
	}
	var err error
	s.service, err = signer.New(signer.Config{
		Store:          s.state.store,
		Guard:          s.guard,
		Keyring:        s.state.keyring,
		Issuers:        issuers,
		TrustedProxies: proxies,
		SignDeadline:   s.signDeadline(),
		Log:            s.log,
	})
	if err != nil {
		return err
	}
	tokens, err := adminTokens(s.state.deployment.AdminToken, s.cfg.Admin.Tokens)
	if err != nil {
		return err
	}
	admin, err := signer.NewAdmin(signer.AdminConfig{
		Store: s.state.store,
		Switch: killswitch.NewSwitch(killswitch.SwitchConfig{
			Store: s.state.store, HighWater: highWater, Params: s.switchParams,
		}),
		AuditHead:  &auditHead{keyring: s.state.keyring, store: s.state.store},
		Guard:      s.guard,
		KillParams: s.switchParams,
		Fleet:      s.state.store,
		Keyring:    s.state.keyring,
		Issuers:    issuers,
		Tokens:     tokens,
		Version:    s.version,
		Replica:    s.replica,
		Log:        s.log,
	})
	if err != nil {
		return err
	}
	s.publicServer = s.public.httpServer(s.metrics.observeHTTP(s.service.Handler()), requestTimeout, s.log)
	s.adminServer = s.admin.httpServer(identify(admin.Handler()), adminTimeout, s.log)
	s.adminServer.Protocols = bothVersions()
	s.opsServer = s.ops.httpServer(s.opsHandler(), requestTimeout, s.log)
	s.assembleGRPC()
	return nil
}

// signDeadline is the shortest of the schedules': their overlaps count on it.
func (s *Server) signDeadline() time.Duration {
	shortest := s.issuers[0].params.SignDeadline
	for _, is := range s.issuers {
		shortest = min(shortest, is.params.SignDeadline)
	}
	return shortest
}

// startKeys makes or loads every issuer's schedule.
func (s *Server) startKeys(ctx context.Context) error {
	for i := range s.issuers {
		is := &s.issuers[i]
		is.params = is.RotationParams().Scaled(s.cfg.Development.TimeScale)
		keys, err := rotation.New(rotation.Config{
			Issuer:  is.url,
			Params:  is.params,
			Keyring: s.state.keyring,
			Mirror:  s.state.store,
			Fleet:   s.state.store,
			Replica: s.replica,
			Now:     s.now,
			Log:     s.log,
		})
		if err != nil {
			return fmt.Errorf("keys of %s: %w", is.url, err)
		}
		if err := keys.Start(ctx); err != nil {
			return fmt.Errorf("keys of %s: %w", is.url, err)
		}
		is.keys = keys
	}
	return nil
}

// revisions are the schedules that this replica serves.
func (s *Server) revisions() map[string]uint64 {
	m := make(map[string]uint64, len(s.issuers))
	for _, is := range s.issuers {
		m[is.url] = is.keys.Revision()
	}
	return m
}

// observe passes the newest revisions, which a permit brings, to the schedules.
func (s *Server) observe(g killswitch.Grant) {
	for _, is := range s.issuers {
		is.keys.Observe(g.Revisions[is.url])
	}
}

func (s *Server) keysReady() bool {
	for _, is := range s.issuers {
		if is.keys.Ready() != nil {
			return false
		}
	}
	return true
}

// assembleGRPC makes the gRPC face: the contract, health and reflection.
func (s *Server) assembleGRPC() {
	options := append(s.service.ServerOptions(s.metrics.observeUnary),
		grpc.ChainStreamInterceptor(endStreams(s.draining)),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(headerTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveInterval, MaxConnectionIdle: idleTimeout}),
	)
	if s.grpc.tls != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.grpc.tls)))
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
			CallerLimit:  limit(is.Limits.Caller),
			EnrollLimit:  limit(is.Limits.Enroll),
			DeviceCap:    is.MaxDevices,
			Keys:         is.keys,
			KeySetMaxAge: is.params.MaxAge,
		}
		if s.state.deployment.EnrolmentClosed {
			issuers[i].Enrolment = signer.EnrolClosed
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
