package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/gateway"
)

// refusedKey holds the error by which a request was refused before its method is known.
type refusedKey struct{}

// admitREST refuses a REST request whose caller is not accepted, before it is read.
func (s *Server) admitREST(r *http.Request) error {
	if err, _ := r.Context().Value(refusedKey{}).(error); err != nil {
		s.log(r.Context(), "", "", s.cfg.Now(), err)
		return err
	}
	if (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.ContentLength != 0 {
		return invalid("body", "goes with no %s", r.Method)
	}
	return nil
}

func isGRPC(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// call is one under way.
type call struct {
	cancel context.CancelCauseFunc
}

// pool are the calls of a token that are counted together: its streams, which may wait
// for long, its answers, and apart from both what ends a wait or asks how it ended.
type pool struct {
	token string // its id; empty: the owner, on their socket
	kind  string
}

func poolOf(ctx context.Context, c caller, m Method) pool {
	kind := "answers"
	if m.Stream {
		kind = "streams"
	}
	switch m.Name {
	case "SendMessage", "Reconcile", "StartAuthorization": // which have outcomes
		if metadata.ValueFromIncomingContext(ctx, outcomeKey) != nil {
			kind = "decisions"
		}
	case "DecideApproval":
		kind = "decisions"
	}
	return pool{c.token, kind}
}

// maxCalls bounds the calls under way of one token and pool: whoever has it must not be
// able to use the agent up. The owner's socket has no such bound.
const maxCalls = 32

// maxRequests bounds the requests under way of one token, of which some may not have come
// whole: it leaves room for those that are refused, beside the calls of all pools.
const maxRequests = 4 * maxCalls

// enter takes the place of a request, before it is read; out gives it up. The error is
// errGone, or the answer.
func (s *Server) enter(ctx context.Context, c caller) (out func(), err error) {
	if err := letIn(ctx, c); err != nil {
		return nil, err
	}
	of := pool{c.token, "requests"}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.token != "" && s.byToken[of] >= maxRequests {
		return nil, tooManyRequests(c.actor)
	}
	s.byToken[of]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.release(of)
	}, nil
}

// release counts one less of a pool. It is called with s.mu held.
func (s *Server) release(of pool) {
	if s.byToken[of]--; s.byToken[of] <= 0 {
		delete(s.byToken, of)
	}
}

// tokenCheck is how often the token of a call that goes on is looked at.
const tokenCheck = 500 * time.Millisecond

// errTokenOver is the cause by which a call ends whose token was revoked or is over.
// What it waits for is the owner's, and stays.
var errTokenOver = fmt.Errorf("the token is not accepted any more: %w", agent.ErrStopping)

// begin admits a call: who may call what, while the agent does not stop. end is
// called when the call has ended.
func (s *Server) begin(ctx context.Context, full string) (_ context.Context, end func(), err error) {
	if err, _ := ctx.Value(refusedKey{}).(error); err != nil {
		return ctx, nil, err
	}
	c, ok := callerOf(ctx)
	if !ok {
		return ctx, nil, unauthenticated()
	}
	m, known := methodOf(full)
	switch {
	case known && c.dialog != "" && m.Name != "DecideApproval":
		return ctx, nil, invalid(dialogHeader, "goes with DecideApproval alone")
	case known && c.may(m):
	case known && c.inTask && !m.Task:
		return ctx, nil, scopeRequired(m.Scope, "%s is for the owner alone, outside any task; this call is by %s", m.Name, c.name())
	case known:
		return ctx, nil, scopeRequired(m.Scope, "%s needs the scope %s, and %s has %s", m.Name, m.Scope, c.actor, c.scope)
	default:
		return ctx, nil, noSuchMethod("no method has this name")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return ctx, nil, stopping()
	}
	of := poolOf(ctx, c, m)
	if c.token != "" && s.byToken[of] >= maxCalls {
		return ctx, nil, tooManyCalls(c.actor)
	}
	// What is on its way goes on without a caller that leaves, and ends when the agent
	// stops or their token is over.
	stays, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	ctx, leave := context.WithCancelCause(context.WithValue(ctx, staysKey{}, stays))
	mine := &call{func(cause error) {
		cancel(cause)
		leave(cause)
	}}
	s.calls[mine] = true
	var guard sync.WaitGroup
	if c.token != "" {
		s.byToken[of]++
		guard.Go(func() { s.guard(stays, mine) })
	}
	return ctx, func() {
		mine.cancel(nil)
		guard.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calls, mine)
		s.release(of)
		s.ended.Broadcast()
	}, nil
}

type staysKey struct{}

// staysOf is the context of a call that does not end with its caller's.
func staysOf(ctx context.Context) context.Context {
	if stays, ok := ctx.Value(staysKey{}).(context.Context); ok {
		return stays
	}
	return context.WithoutCancel(ctx)
}

// guard ends a call whose token is revoked, by whatever process, or is over.
func (s *Server) guard(ctx context.Context, c *call) {
	t := time.NewTicker(tokenCheck)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if status.Code(s.accepted(ctx)) == codes.Unauthenticated {
			c.cancel(errTokenOver)
			return
		}
	}
}

// accepted looks at the caller's token again.
func (s *Server) accepted(ctx context.Context) error {
	c, _ := callerOf(ctx)
	if c.token == "" {
		return nil
	}
	err := s.tokens.stands(context.WithoutCancel(ctx), c.token)
	if tokenIsOver(err) {
		return unauthenticated()
	}
	return err
}

// tokenStands reports whether a token is still good, or that cannot be told.
func (s *Server) tokenStands(id string) bool {
	return !tokenIsOver(s.tokens.stands(context.Background(), id))
}

// tokenIsOver reports whether that is why a token does not stand.
func tokenIsOver(err error) bool {
	return errors.Is(err, errNoToken) || errors.Is(err, agent.ErrNotFound)
}

// unary is the interceptor of every call that is no stream.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	began := s.cfg.Now()
	defer func() { s.log(ctx, info.FullMethod, target(req), began, err) }()
	defer s.recovered(ctx, info.FullMethod, &err)
	ctx, end, err := s.begin(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := checkRequest(req.(proto.Message)); err != nil {
		return nil, err
	}
	c, _ := callerOf(ctx)
	_ = grpc.SetHeader(ctx, metadata.Pairs(scopeKey, string(c.shown()))) // the client's Dial reads it
	if resp, err = handler(ctx, req); err != nil {
		return nil, s.told(ctx, info.FullMethod, err)
	}
	if err := s.accepted(ctx); err != nil {
		return nil, s.told(ctx, info.FullMethod, err)
	}
	if resp, err = s.withheld(ctx, resp.(proto.Message)); err != nil {
		return nil, s.told(ctx, info.FullMethod, err)
	}
	return resp, nil
}

// stream is the interceptor of every stream.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	began, id := s.cfg.Now(), ""
	ctx := ss.Context()
	defer func() { s.log(ctx, info.FullMethod, id, began, err) }()
	defer s.recovered(ctx, info.FullMethod, &err)
	ctx, end, err := s.begin(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	defer end()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err = handler(srv, &watched{s, stop, &gateway.ServerStream{ServerStream: ss, Ctx: ctx, Check: func(m proto.Message) error {
		id = target(m)
		return checkRequest(m)
	}}})
	if err != nil {
		return s.told(ctx, info.FullMethod, err)
	}
	return nil
}

// watched is a stream whose caller's token is looked at before each answer: one that
// was revoked hears nothing more, and what it asked for does not go on. An operation
// tells that it sends before it does.
type watched struct {
	s    *Server
	stop context.CancelCauseFunc
	*gateway.ServerStream
}

// SendMsg implements [grpc.ServerStream].
func (w *watched) SendMsg(m any) error {
	if err := w.s.accepted(w.Ctx); err != nil {
		w.stop(errTokenOver)
		return err
	}
	answer, err := w.s.withheld(w.Ctx, m.(proto.Message))
	if err != nil {
		return err
	}
	return w.ServerStream.SendMsg(answer)
}

// told is the answer to an error of a call. Its cause is in the log, if the answer
// does not say it.
func (s *Server) told(ctx context.Context, full string, err error) error {
	if errors.Is(context.Cause(ctx), errTokenOver) || status.Code(s.accepted(ctx)) == codes.Unauthenticated {
		return unauthenticated()
	}
	if _, ok := status.FromError(err); !ok && errors.Is(context.Cause(ctx), agent.ErrStopping) && errors.Is(err, context.Canceled) {
		return stopping()
	}
	answer := toStatus(err)
	if st, _ := status.FromError(answer); reasonOf(st) == codeInternal {
		m, _ := methodOf(full)
		s.cfg.Log.LogAttrs(ctx, slog.LevelError, "call failed", slog.String("method", m.Name),
			slog.String("error", agent.RedactText(err.Error())))
	}
	return s.withheldError(ctx, answer)
}

func reasonOf(st *status.Status) string {
	reason, _ := infoOf(st)
	return reason
}

// recovered turns a panic into an error, so that one call cannot end the agent. What
// panicked may hold a secret, and only where it did is logged.
func (s *Server) recovered(ctx context.Context, full string, err *error) {
	if p := recover(); p != nil {
		m, _ := methodOf(full)
		s.cfg.Log.LogAttrs(ctx, slog.LevelError, "call panicked", slog.String("method", m.Name),
			slog.String("stack", string(debug.Stack())))
		*err = toStatus(errors.New("panic"))
	}
}

// log tells of a call: who, what, on which record, and how it ended; nothing of what
// was asked or answered.
func (s *Server) log(ctx context.Context, full, id string, began time.Time, err error) {
	c, ok := callerOf(ctx)
	actor := c.name()
	if !ok {
		actor = "nobody"
	}
	m, _ := methodOf(full)
	st := status.Convert(err)
	attrs := []slog.Attr{slog.String("actor", actor), slog.String("method", m.Name)}
	if id != "" {
		attrs = append(attrs, slog.String("id", id))
	}
	attrs = append(attrs, slog.String("code", st.Code().String()))
	if reason := reasonOf(st); reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	attrs = append(attrs, slog.Int64("ms", s.cfg.Now().Sub(began).Milliseconds()))
	s.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "call", attrs...)
}

// anID is the form of the ids that the agent gives: whatever else was sent as one may
// be anything.
var anID = regexp.MustCompile(`^[a-z]{1,20}-[a-z0-9]{6,40}$`)

// target is the id of the record that a request is about, if it names one.
func target(req any) string {
	m, ok := req.(proto.Message)
	if !ok {
		return ""
	}
	for _, name := range []string{"id", "conversation"} {
		f := m.ProtoReflect().Descriptor().Fields().ByTextName(name)
		if f == nil {
			continue
		}
		if id := m.ProtoReflect().Get(f).String(); anID.MatchString(id) {
			return id
		}
	}
	return ""
}
