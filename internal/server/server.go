// Package server assembles a signer: custody, store, key rotation, kill switch,
// the services and their four listeners, from one configuration.
//
// A Server holds no global state, but that tracing takes OTEL_ variables out of the
// process and the tracing library's errors into its own log: a process may run
// several, each with its own data folder and ports. Start returns once everything listens; Ready tells when
// it may sign. Shutdown lets requests in flight finish and leaves nothing half
// written; killed at any moment instead, what was acknowledged is there at the
// next start.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/rotation"
	"github.com/pactsigner/pactsigner/signer"
)

// Options are what a configuration does not hold. The zero value works.
type Options struct {
	// Version is reported to operators; empty is "dev".
	Version string
	// Log gets the log; nil discards it.
	Log *slog.Logger
}

// Info is where a running server can be reached.
type Info struct {
	Public         string   `json:"public"` // URL
	GRPC           string   `json:"grpc"`   // host:port
	Admin          string   `json:"admin"`  // URL
	Ops            string   `json:"ops"`    // URL
	Issuers        []string `json:"issuers"`
	AdminTokenFile string   `json:"adminTokenFile"` // absolute; empty where `signer init` wrote none
	// Notes say what a person should know.
	Notes []string `json:"-"`
}

// Server is one signer. Use New, Start and Shutdown, once each, in that order.
type Server struct {
	cfg          config.Config
	version      string
	replica      string
	log          *slog.Logger
	now          func() time.Time
	switchParams killswitch.Params
	metrics      *metrics
	activity     *activity

	public, grpc, admin, ops *face
	issuers                  []issuer
	state                    *state
	keeper                   *keeper
	guard                    *killswitch.Guard
	service                  *signer.Service
	info                     Info
	operators                *adminFace
	custodyHealth            looks
	storeHealth              looks
	subject                  *subjectKey
	settings                 settings // of the store's servers
	heads                    *auditHead
	saidHead                 string // by catchUp to the log

	publicServer, adminServer, opsServer *http.Server
	grpcServer                           *grpc.Server
	health                               *health.Server

	serving    bool               // Start succeeded
	background sync.WaitGroup     // what runs until stop
	stop       context.CancelFunc // ends background
	ready      chan struct{}      // closed when it may sign for the first time
	draining   chan struct{}      // closed when it was told to stop
	failed     chan struct{}      // closed when a part failed for good
	failure    error              // set before failed is closed
	failOnce   sync.Once
	shutdown   sync.Once
	result     error // of the shutdown
}

// issuer is an issuer with its URLs resolved and its keys.
type issuer struct {
	config.Issuer
	url        string
	signerURLs []string
	params     rotation.Params // scaled
	keys       *rotation.Controller
}

// New checks a configuration. It opens nothing.
func New(cfg config.Config, o Options) (*Server, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:          cfg,
		version:      o.Version,
		replica:      cfg.Replica,
		now:          clock(cfg.Development.ClockOffset),
		switchParams: killswitch.Defaults().Scaled(float64(cfg.Development.TimeScale)),
		ready:        make(chan struct{}),
		draining:     make(chan struct{}),
		failed:       make(chan struct{}),
		stop:         func() {},
	}
	if s.version == "" {
		s.version = "dev"
	}
	if s.replica == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "signer"
		}
		s.replica = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), strings.ToLower(rand.Text()[:8]))
	}
	s.log = slog.New(slog.DiscardHandler)
	if o.Log != nil {
		s.log = slog.New(contextHandler{o.Log.Handler()})
	}
	s.activity = newActivity(s.replica, s.now)
	s.metrics = newMetrics(s.version)
	s.metrics.activity = s.activity
	return s, nil
}

// clock is time.Now, off by a constant. The monotonic reading stays.
func clock(off time.Duration) func() time.Time {
	return func() time.Time { return time.Now().Add(off) }
}

// Start binds the listeners, opens the state and serves. An embedded signer makes
// its state if need be. With a store that replicas share, neither that nor Vault
// need be there: everything is answered with 503 until both are, and the store is
// the one that custody knows. After an error nothing runs and nothing is open.
func (s *Server) Start(ctx context.Context) error {
	err := s.start(ctx)
	if err != nil {
		s.stop()
		s.background.Wait()
		err = errors.Join(err, s.release())
	}
	return err
}

func (s *Server) start(ctx context.Context) error {
	if err := s.listen(ctx); err != nil {
		return err
	}
	s.resolveIssuers()
	tracing, err := newTracing(ctx, s.cfg.Tracing, s.version, s.replica, s.metrics, s.log)
	if err != nil {
		return err
	}
	s.metrics.tracing = tracing
	if err := s.open(ctx); err != nil {
		return err
	}
	if err := s.keepPort(); err != nil {
		return err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	if err := s.assemble(ctx); err != nil {
		return err
	}
	s.run(background)
	s.serve()
	s.serving = true
	s.report()
	return nil
}

// open opens custody and the store.
func (s *Server) open(ctx context.Context) error {
	if s.cfg.Embedded() {
		state, err := openState(ctx, s.cfg, openOptions{store: s.storeOptions(), vault: vaultObserver{s.metrics}}, s.log)
		if err != nil {
			return err
		}
		s.state = state
		s.keeper = &keeper{keyring: state.keyring, fits: func(d deployment) error { return d.servesNone(s.info.Issuers) }}
		if _, _, err = s.keeper.refresh(ctx); err != nil {
			return err
		}
		s.subject = &subjectKey{keyring: state.keyring, keeper: s.keeper, log: s.log}
		if err := s.subject.compare(ctx); err != nil && s.cfg.Custody.Kind == "local" {
			return err
		}
		return nil // a Vault is asked again
	}
	keyring, err := openKeyring(s.cfg, s.log, vaultObserver{s.metrics})
	if err != nil {
		return err
	}
	s.state = &state{keyring: keyring}
	store, err := openShared(s.cfg, s.switchParams, s.log)
	if err != nil {
		return err
	}
	s.state.store, s.state.shared = store, store
	s.keeper = &keeper{keyring: keyring, expect: store.Expect, fits: func(d deployment) error {
		return d.fits(s.info.Issuers, keysOf(s.cfg))
	}}
	s.subject = &subjectKey{keyring: keyring, keeper: s.keeper, log: s.log}
	return nil
}

// listen binds all four sockets, so that a port that is taken is known first.
func (s *Server) listen(ctx context.Context) error {
	public := s.cfg.Listeners.Public
	if port, err := s.rememberedPort(); err != nil {
		return err
	} else if port != "" {
		host, _, _ := net.SplitHostPort(public.Address) // validated
		again := public
		again.Address = net.JoinHostPort(host, port)
		f, err := listen(ctx, "public", again)
		if err == nil {
			s.public = f
		} else if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	for _, l := range []struct {
		name   string
		config config.Listener
		face   **face
	}{
		{"public", public, &s.public},
		{"grpc", s.cfg.Listeners.GRPC, &s.grpc},
		{"admin", s.cfg.Listeners.Admin, &s.admin},
		{"ops", s.cfg.Listeners.Ops, &s.ops},
	} {
		if *l.face != nil {
			continue
		}
		f, err := listen(ctx, l.name, l.config)
		if err != nil {
			return err
		}
		*l.face = f
	}
	return nil
}

// resolveIssuers gives the issuer without a URL that of the public listener.
func (s *Server) resolveIssuers() {
	s.info = Info{
		Public:         s.public.url,
		GRPC:           hostPort(s.grpc.url),
		Admin:          s.admin.url,
		Ops:            s.ops.url,
		AdminTokenFile: adminTokenFile(s.cfg),
	}
	if _, err := os.Stat(s.info.AdminTokenFile); err != nil && !s.cfg.Embedded() {
		s.info.AdminTokenFile = ""
	}
	for _, c := range s.cfg.Issuers {
		is := issuer{Issuer: c, url: c.URL, signerURLs: c.SignerURLs}
		if is.url == "" {
			is.url = s.public.url
		}
		if len(is.signerURLs) == 0 {
			is.signerURLs = []string{is.url}
		}
		s.issuers = append(s.issuers, is)
		s.info.Issuers = append(s.info.Issuers, is.url)
	}
}

func hostPort(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	return rest
}

// run starts what works in the background until stop.
func (s *Server) run(ctx context.Context) {
	keep := func(what string, run func(context.Context) error) {
		s.background.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				s.fail(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	keep("kill switch", s.guard.Run)
	for _, is := range s.issuers {
		keep("rotation of "+is.url, func(ctx context.Context) error {
			if !s.cfg.Embedded() {
				s.startKeysOf(ctx, is)
			}
			return is.keys.Run(ctx)
		})
	}
	if s.watched() {
		s.background.Go(func() { s.watchParts(ctx) })
	}
	s.background.Go(func() { s.watchReadiness(ctx) })
	s.background.Go(func() { s.keepCertificates(ctx) })
	store := &observedStore{s.state.store, s.metrics}
	s.background.Go(func() { s.activity.keep(ctx, store, s.activityEvery()) })
}

// activityEvery is how often the store is told what this replica did.
func (s *Server) activityEvery() time.Duration {
	if s.state.shared == nil {
		return activityAlone
	}
	return signer.ActivityEvery
}

// serve starts the listeners.
func (s *Server) serve() {
	start := func(f *face, run func() error) {
		s.background.Go(func() {
			if err := run(); err != nil {
				s.fail(err)
			}
		})
	}
	start(s.public, func() error { return s.public.serveHTTP(s.publicServer) })
	start(s.admin, func() error { return s.admin.serveHTTP(s.adminServer) })
	start(s.ops, func() error { return s.ops.serveHTTP(s.opsServer) })
	start(s.grpc, func() error {
		if err := s.grpcServer.Serve(s.grpc.Listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("listener grpc: %w", err)
		}
		return nil
	})
}

// report tells the log what there is to know at a start.
func (s *Server) report() {
	if note := s.state.token.note(); note != "" {
		s.info.Notes = append(s.info.Notes, note)
	}
	if s.cfg.Embedded() && s.keeper.enrolmentClosed() {
		s.info.Notes = append(s.info.Notes, "enrolment is closed for every issuer, because the store was lost or went back: who was invalidated is not known any more. `signer init --open-enrolment`, with the same --data or --config, ends that.")
	}
	for _, note := range s.info.Notes {
		s.log.Warn(note)
	}
	s.log.Info("listening", "version", s.version, "replica", s.replica, "public", s.info.Public, "grpc", s.info.GRPC,
		"admin", s.info.Admin, "ops", s.info.Ops, "issuers", s.info.Issuers, "admin_token_file", s.info.AdminTokenFile)
}

// fail ends the server: a part of it failed for good.
func (s *Server) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = err
		close(s.failed)
	})
}

// How often readiness is looked at before it is reached and after, and how long
// nothing is said about it at a start.
const (
	readySoon  = 10 * time.Millisecond
	readyLater = 500 * time.Millisecond
	quietStart = 2 * time.Second
)

// watchReadiness tells Ready and the gRPC health service.
func (s *Server) watchReadiness(ctx context.Context) {
	tick := time.NewTicker(readySoon)
	defer tick.Stop()
	started, first, said := s.now(), true, "starting"
	reported := false
	for {
		why := strings.Join(s.unready(), "; ")
		if ready := why == ""; ready != reported {
			reported = ready
			s.background.Go(func() { _ = s.guard.Refresh(ctx) }) // tells the fleet; it is tried again anyway
		}
		if why == "" && first {
			first, said = false, why
			s.log.Info("ready") // before what Ready lets others say
			close(s.ready)
			tick.Reset(readyLater)
		}
		switch {
		case why == said || first && s.now().Sub(started) < quietStart:
		case why == "":
			said = why
			s.log.Info("ready")
		default:
			said = why
			s.log.Warn("not ready", "why", why)
		}
		s.setHealth(why == "")
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Ready is closed when the server may sign for the first time.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Failed is closed when a part of the server failed for good; Shutdown returns
// the failure.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// Info tells where the server is reached. It is complete once Start returned.
func (s *Server) Info() Info { return s.info }

// Shutdown stops the server: it is not ready from now on, requests in flight
// finish, and everything is closed. When ctx ends first, the requests that are
// left are cut off; what they wrote is whole all the same. A server that was not
// started, or failed to, has nothing to stop.
func (s *Server) Shutdown(ctx context.Context) error {
	if !s.serving {
		return nil
	}
	s.shutdown.Do(func() { s.result = s.drain(ctx) })
	return s.result
}

func (s *Server) drain(ctx context.Context) error {
	close(s.draining)
	s.health.Shutdown()
	s.log.Info("draining")
	s.stopServing(ctx)
	flushed := s.flushTraces(ctx)
	defer func() { <-flushed }()
	s.stop()
	s.leave(ctx)
	err := s.stopParts(ctx)
	select {
	case <-s.failed:
		err = errors.Join(s.failure, err)
	default:
	}
	s.log.Info("stopped")
	return err
}

// flushTraces sends what was traced, beside the rest of the end. A collector that does
// not take it in what is left of the time has had it.
func (s *Server) flushTraces(ctx context.Context) <-chan struct{} {
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		ctx, cancel := context.WithTimeout(ctx, exportTimeout)
		defer cancel()
		s.metrics.tracing.shutdown(ctx)
	}()
	return flushed
}

// leave tells the fleet that this replica signs nothing any more, so that no kill
// waits for it.
func (s *Server) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.switchParams.Call)
	defer cancel()
	if err := s.guard.Leave(ctx); err != nil {
		s.log.Info("the store could not be told that this replica stops: for a while it counts as one", "err", err)
	}
}

// stopServing lets requests finish, and cuts off those that do not in time. Some
// of the time is for what comes after.
func (s *Server) stopServing(ctx context.Context) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/4))
		defer cancel()
	}
	var serving sync.WaitGroup
	for _, h := range []*http.Server{s.publicServer, s.adminServer} {
		serving.Go(func() { s.stopHTTP(ctx, h) })
	}
	serving.Go(func() {
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.grpcServer.GracefulStop()
		}()
		select {
		case <-stopped:
		case <-ctx.Done():
			s.grpcServer.Stop()
			<-stopped
		}
	})
	serving.Wait()
}

// lastWait is how long parts may take to stop once the time for it is up.
const lastWait = time.Second

var errHung = errors.New("a call to custody or the store did not return: it was left behind")

// stopParts ends the background and closes the state. A call that custody or the
// store never answers does not hold up the end of the process.
func (s *Server) stopParts(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		s.stopHTTP(ctx, s.opsServer)
		s.background.Wait()
		done <- s.release()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(lastWait):
	}
	select { // both may be so by the time that a paused process sees either
	case err := <-done:
		return err
	default:
		return errHung
	}
}

func (s *Server) stopHTTP(ctx context.Context, h *http.Server) {
	if h.Shutdown(ctx) != nil { // time is up
		s.log.Warn("requests were cut off")
		_ = h.Close() // what is left of it is a closed listener
	}
}

// release closes what is open.
func (s *Server) release() error {
	var errs []error
	for _, f := range []*face{s.public, s.grpc, s.admin, s.ops} {
		if f != nil {
			if err := f.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	if s.state != nil {
		errs = append(errs, s.state.close())
	}
	if !s.serving { // else the end has done it
		ctx, cancel := context.WithTimeout(context.Background(), lastWait)
		defer cancel()
		s.metrics.tracing.shutdown(ctx)
	}
	return errors.Join(errs...)
}
