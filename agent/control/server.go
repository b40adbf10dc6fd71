// Package control is the control plane of a running personal agent: the service of
// proto/pact/agent/v1 over gRPC and REST, on a unix socket of the profile's owner and
// on loopback addresses, and the client that programs reach it with.
//
// What it promises: a caller does what its scope allows (Methods says what that is)
// and nothing else, whatever it sends; a call narrowed to a task acts as that task,
// and never as the owner; no answer holds a token, a device code, a credential or a
// signed receipt, and GetSignIn alone holds a link. What it does not do: protect the
// profile from the user that it belongs to, whose socket opens to all their programs.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/gateway"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// Timeouts and sizes of the listeners. Answers take as long as operations do, so that
// there is no timeout for them.
const (
	headTimeout    = 5 * time.Second
	bodyTimeout    = 15 * time.Second
	idleTimeout    = 2 * time.Minute
	pingAfter      = 30 * time.Second // without a word from a connection of HTTP/2
	writeTimeout   = 10 * time.Second // for a reader to take a part of an answer
	stopTimeout    = 15 * time.Second // for operations to end once they are cancelled
	maxHead        = 16 << 10
	maxBody        = 128 << 10
	maxConcurrency = 250             // calls at once on a connection
	maxConns       = 256             // connections at once on a loopback address: the owner's socket has no such bound
	moment         = 5 * time.Second // for a connection of theirs to show a token that counts, and to go when it does no more
)

// Config is what a Server is made of.
type Config struct {
	// Agent does the work. The caller closes it after Serve has returned. Required.
	Agent *agent.Agent
	// Store holds the tokens; it is the agent's own. Required.
	Store agent.Store
	// Principal is on whose behalf everything is done. Required.
	Principal string
	// Version says what program this is.
	Version string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// TimeScale is what the agent's durations are divided by; 0 is 1.
	TimeScale int
	// Log gets a line per call, and the causes of failures. nil is slog.Default.
	Log *slog.Logger
}

// Server is the control plane of one agent. Safe for concurrent use.
type Server struct {
	agentv1.UnimplementedAgentServiceServer

	cfg      Config
	agent    *agent.Agent
	tokens   *Tokens
	outcomes *outcomes
	started  time.Time
	grpc     *grpc.Server
	rest     http.Handler

	maxConns            int // as the constants of these names
	moment, bodyTimeout time.Duration

	mu       sync.Mutex
	stopping bool
	calls    map[*call]bool // under way
	byToken  map[pool]int   // how many of calls, and of requests, by their token
	ended    sync.Cond      // a call has ended
}

// New checks the configuration and returns a server.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Agent == nil:
		return nil, errors.New("control: Agent is required")
	case cfg.Store == nil:
		return nil, errors.New("control: Store is required")
	case cfg.Principal == "":
		return nil, errors.New("control: Principal is required")
	case cfg.TimeScale < 0:
		return nil, errors.New("control: TimeScale is negative")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.TimeScale == 0 {
		cfg.TimeScale = 1
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	s := &Server{
		cfg: cfg, agent: cfg.Agent, tokens: NewTokens(cfg.Store, cfg.Principal, cfg.Now), outcomes: newOutcomes(cfg.Now),
		started: cfg.Now().UTC().Truncate(time.Microsecond), calls: map[*call]bool{}, byToken: map[pool]int{},
		maxConns: maxConns, moment: moment, bodyTimeout: bodyTimeout,
	}
	s.ended.L = &s.mu
	s.grpc = grpc.NewServer(
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream), grpc.MaxRecvMsgSize(maxBody),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return noSuchMethod("no method has this name") }),
	)
	agentv1.RegisterAgentServiceServer(s.grpc, s)
	var err error
	if s.rest, err = s.newREST(); err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	return s, nil
}

// newREST serves the routes of gateway.yaml through the interceptors of gRPC.
func (s *Server) newREST() (http.Handler, error) {
	return gateway.REST{
		Service: &gateway.Service{
			Desc: &agentv1.AgentService_ServiceDesc, Impl: s, Unary: s.unary, Stream: s.stream, Invalid: invalid,
		},
		Register: func(ctx context.Context, mux *gateway.Mux, conn grpc.ClientConnInterface) error {
			return agentv1.RegisterAgentServiceHandlerClient(ctx, mux, agentv1.NewAgentServiceClient(conn))
		},
		Admit: s.admitREST,
		Realm: "agent", MaxBody: maxBody, BodyTimeout: s.bodyTimeout,
		Malformed: func(error) error {
			return invalid("body", "is malformed, or has an unknown or repeated member or one of the wrong type")
		},
		NoMethod: noSuchMethod,
	}.Handler()
}

// Handler serves gRPC and REST. owner says that who reaches it is the profile's owner,
// as on their socket; else each call takes a token. Its http.Server needs HTTP/2
// enabled for gRPC.
func (s *Server) Handler(owner bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Who calls is told by the request as it came: what the gateway passes on of it
		// may be less.
		c, err := s.identify(r, owner)
		if err == nil {
			var out func()
			if out, err = s.enter(r.Context(), c); err == nil {
				defer out()
			}
		}
		if errors.Is(err, errGone) {
			panic(http.ErrAbortHandler) // a moment too late
		}
		ctx := context.WithValue(r.Context(), refusedKey{}, err)
		if err != nil { // its connection ends when it has its answer
			w.Header().Set("Connection", "close")
		} else {
			ctx = context.WithValue(ctx, callerKey{}, c)
		}
		r = r.WithContext(ctx)
		p := &patient{w, http.NewResponseController(w)}
		defer p.end()
		w = p
		if r.ProtoMajor != 2 || !isGRPC(r) {
			s.rest.ServeHTTP(w, r)
			return
		}
		if err == nil {
			r.Body, err = s.whole(w, r)
		}
		if err != nil {
			s.log(ctx, r.URL.Path, "", s.cfg.Now(), err)
			refuseGRPC(w, err)
			return
		}
		s.grpc.ServeHTTP(w, r)
	})
}

// patient is an answer whose reader may take its time, and not for ever: a part of it
// that is not taken within writeTimeout ends it.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (p *patient) begin() { _ = p.control.SetWriteDeadline(time.Now().Add(writeTimeout)) }
func (p *patient) done()  { _ = p.control.SetWriteDeadline(time.Time{}) }

// end bounds what is written after the handler has returned. On HTTP/1 net/http lifts
// that when all is written.
func (p *patient) end() { p.begin() }

// Write implements [http.ResponseWriter].
func (p *patient) Write(b []byte) (int, error) {
	p.begin()
	defer p.done()
	return p.ResponseWriter.Write(b)
}

// Flush implements [http.Flusher].
func (p *patient) Flush() {
	p.begin()
	defer p.done()
	_ = p.control.Flush()
}

// Unwrap is for [http.ResponseController].
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Serve serves until ctx ends, and keeps going meanwhile what waits (agent.Tend). It
// then refuses what is new, cancels what goes on with agent.ErrStopping, so that it
// stays to be gone on with, and returns nil when all of it has ended.
func (s *Server) Serve(ctx context.Context, listeners ...*Listener) error {
	if len(listeners) == 0 {
		return errors.New("control: nothing to listen on")
	}
	tending, stopTending := context.WithCancelCause(context.WithoutCancel(ctx))
	failed := make(chan error, len(listeners)+1)
	var work sync.WaitGroup
	work.Go(func() {
		err := s.agent.Tend(tending, agent.Tending{Caller: agent.Caller{
			Principal: s.cfg.Principal, Actor: "agent", Origin: agent.OriginOwnerCLI, Human: agent.HumanOutOfBand, Progress: s.tended,
		}})
		if err != nil {
			failed <- fmt.Errorf("tend what waits: %w", err)
		}
	})
	servers := make([]*http.Server, len(listeners))
	for i, l := range listeners {
		servers[i] = s.httpServer(l.owner)
		work.Go(func() {
			var on net.Listener = l
			if !l.owner {
				on = newDoor(l, s.maxConns, s.moment, s.tokenStands)
			}
			if err := servers[i].Serve(on); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("%s: %w", l.target, err)
			}
		})
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	s.stop(bounded)
	for _, server := range servers {
		if server.Shutdown(bounded) != nil {
			_ = server.Close()
		}
	}
	stopTending(agent.ErrStopping)
	work.Wait()
	return err
}

// stop refuses new calls, cancels those under way, and waits for them.
func (s *Server) stop(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	for c := range s.calls {
		c.cancel(agent.ErrStopping)
	}
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended.Broadcast()
	})()
	for len(s.calls) > 0 && ctx.Err() == nil {
		s.ended.Wait()
	}
	if n := len(s.calls); n > 0 {
		s.cfg.Log.Warn("stopping: calls are left behind that do not end", slog.Int("calls", n))
	}
}

func (s *Server) httpServer(owner bool) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: s.Handler(owner), Protocols: protocols, ConnContext: withVisitor, ConnState: noteState,
		// Over HTTP/2 the deadline of an answer only asks for its end, which a peer that
		// reads nothing never takes: its connection ends.
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxConcurrency, WriteByteTimeout: writeTimeout, SendPingTimeout: pingAfter},
		ReadHeaderTimeout: headTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHead,
		ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
}

// tended logs what Tend tells: at length only what went wrong.
func (s *Server) tended(e agent.Event) {
	if e.Kind == agent.EventTending {
		s.cfg.Log.Warn("tending", slog.String("error", e.Detail))
		return
	}
	s.cfg.Log.Debug("tending", slog.String("kind", string(e.Kind)))
}
