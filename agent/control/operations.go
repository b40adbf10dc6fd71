package control

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// The methods that tell how an operation goes on. A caller who leaves ends their
// operation, as one at a terminal does; a sign-in that it waited for goes on, and so does
// what is on its way to a business by then (agent.Leaving).

// asked is what a caller says of how an operation may go on.
type asked struct {
	confirmed       bool
	waitForApproval bool
	waitForSignIn   bool
}

// teller is who is told of an operation.
type teller struct {
	send   func(*agentv1.OperationUpdate) error
	goesOn func(*agentv1.OperationUpdate) // its result as long as it goes on without them; nil: nobody asks
}

// operate runs an operation of the agent and tells its caller how it goes on.
func (s *Server) operate(ss grpc.ServerStreamingServer[agentv1.OperationUpdate], req proto.Message, how asked, run func(context.Context, agent.Caller) (agent.Result, error)) error {
	ctx := ss.Context()
	who, _ := callerOf(ctx)
	if how.confirmed && !who.confirms() {
		if who.inTask {
			return scopeRequired(ScopeAdmin, "confirmed: only the owner confirms, outside any task; this call is by %s", who.name())
		}
		return scopeRequired(ScopeAdmin, "confirmed: needs the scope %s, and %s has %s", ScopeAdmin, who.actor, who.scope)
	}
	return s.outcomes.serve(ctx, who, req, ss.Send, func(ctx context.Context, to teller) error {
		return s.run(ctx, to, how, run)
	})
}

// run is one operation, whose updates are told.
func (s *Server) run(ctx context.Context, to teller, how asked, run func(context.Context, agent.Caller) (agent.Result, error)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	u := s.newUpdates(ctx, stop, to.send)
	defer func() { _ = u.end(nil) }() // also if run panics; it has no more to say than err
	running, ended := agent.Leaving(staysOf(ctx), ctx, func(r agent.Result) {
		if m, err := updateOf(r); err == nil && to.goesOn != nil {
			to.goesOn(m)
		}
	})
	defer ended()
	result, err := run(running, u.caller(s.as(ctx), how))
	if err != nil {
		return err
	}
	m, err := updateOf(result)
	if err != nil {
		return err
	}
	return u.end(m)
}

func updateOf(r agent.Result) (*agentv1.OperationUpdate, error) {
	m, err := messageOf[agentv1.Result](r)
	return &agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Result{Result: m}}, err
}

// maxUnread is how many updates a caller may be behind.
const maxUnread = 64

// updates tells the caller of an operation how it goes on. The operation does not wait
// for who reads them: one that holds a turn must not hang on a slow reader.
type updates struct {
	s      *Server
	ctx    context.Context
	stop   context.CancelCauseFunc // ends the operation
	unread chan *agentv1.OperationUpdate
	ended  chan struct{}
	err    error // of the first that could not be sent; after ended

	mu   sync.Mutex
	over bool // end was called: unread takes nothing more from tell
}

func (s *Server) newUpdates(ctx context.Context, stop context.CancelCauseFunc, send func(*agentv1.OperationUpdate) error) *updates {
	u := &updates{s: s, ctx: ctx, stop: stop, unread: make(chan *agentv1.OperationUpdate, maxUnread), ended: make(chan struct{})}
	go func() {
		defer close(u.ended)
		for m := range u.unread {
			if u.err != nil && m.GetResult() == nil {
				continue
			}
			if err := send(m); err != nil && u.err == nil {
				u.err = err
				stop(err)
			}
		}
	}()
	return u
}

// tell tells an update. Who is too slow, or whose token is not accepted any more, is
// told nothing, and their operation ends: it tells that it sends before it does.
func (u *updates) tell(m *agentv1.OperationUpdate) error {
	err := u.s.accepted(u.ctx)
	if status.Code(err) == codes.Unauthenticated {
		u.stop(errTokenOver)
	}
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return errOver
	}
	select {
	case u.unread <- m:
		return nil
	default:
		u.stop(errSlow)
		return errSlow
	}
}

// errSlow is why the operation of a caller ends that does not read.
var errSlow = statusOf(codes.Aborted, codeLagging, nil, fmt.Sprintf("the caller is more than %d updates behind: the operation was left", maxUnread))

// errOver is what is told too late to be told.
var errOver = errors.New("the operation has ended")

// end tells the result, if there is one, and waits until all is told or cannot be. Only
// the first one counts.
func (u *updates) end(result *agentv1.OperationUpdate) error {
	u.mu.Lock()
	first := !u.over
	u.over = true
	u.mu.Unlock()
	if first {
		if result != nil {
			u.unread <- result
		}
		close(u.unread)
	}
	<-u.ended
	return u.err
}

// caller is who acts, with what is told to the caller put where the agent asks the
// owner. That an update cannot be sent changes nothing: the call ends then, and the
// operation with it.
func (u *updates) caller(c agent.Caller, how asked) agent.Caller {
	c.Progress = func(e agent.Event) {
		if m, err := messageOf[agentv1.Progress](e); err == nil {
			_ = u.tell(&agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Progress{Progress: m}})
		}
	}
	plain := c
	if how.confirmed {
		c.Confirmed = true
		c.Shown = func(r agent.ApprovalRequest) {
			if m, err := messageOf[agentv1.Approval](approvalView(r)); err == nil {
				_ = u.tell(&agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Confirmed{Confirmed: m}})
			}
		}
	}
	if how.waitForApproval || how.waitForSignIn {
		c = waits(c)
	}
	if how.waitForApproval {
		c.Approve = func(ctx context.Context, r agent.ApprovalRequest) (bool, error) {
			v, err := u.s.agent.Approval(ctx, plain, r.ID)
			if err != nil {
				return false, err
			}
			m, err := messageOf[agentv1.Approval](v)
			if err == nil {
				err = u.tell(&agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Approval{Approval: m}})
			}
			if err != nil {
				return false, err
			}
			<-ctx.Done() // until it is decided by DecideApproval
			return false, context.Cause(ctx)
		}
	}
	if how.waitForSignIn {
		c.SignIn = func(ctx context.Context, in agent.SignIn) error {
			v, err := u.s.agent.Authorization(ctx, plain, in.Authorization)
			if err != nil {
				return err
			}
			m, err := messageOf[agentv1.Authorization](v)
			if err != nil {
				return err
			}
			return u.tell(&agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Authorization{Authorization: m}})
		}
	}
	return c
}

// SendMessage implements agentv1.AgentServiceServer.
func (s *Server) SendMessage(req *agentv1.SendMessageRequest, ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
	return s.operate(ss, req, asked{req.Confirmed, req.WaitForApproval, req.WaitForSignIn}, func(ctx context.Context, c agent.Caller) (agent.Result, error) {
		return s.agent.Send(ctx, c, agent.SendRequest{
			Business: req.Business, Message: req.Message, Effect: req.Effect, Scopes: req.Scopes, Conversation: req.Conversation,
		})
	})
}

// Reconcile implements agentv1.AgentServiceServer.
func (s *Server) Reconcile(req *agentv1.ReconcileRequest, ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
	return s.operate(ss, req, asked{req.Confirmed, req.WaitForApproval, req.WaitForSignIn}, func(ctx context.Context, c agent.Caller) (agent.Result, error) {
		return s.agent.Reconcile(ctx, c, agent.ReconcileRequest{Business: req.Business, Conversation: req.Conversation})
	})
}

// StartAuthorization implements agentv1.AgentServiceServer.
func (s *Server) StartAuthorization(req *agentv1.StartAuthorizationRequest, ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
	return s.operate(ss, req, asked{waitForSignIn: req.WaitForSignIn}, func(ctx context.Context, c agent.Caller) (agent.Result, error) {
		return s.agent.Authorize(ctx, c, agent.AuthorizeRequest{Business: req.Business, Scopes: req.Scopes, Purpose: req.Purpose})
	})
}

// WaitAuthorization implements agentv1.AgentServiceServer.
func (s *Server) WaitAuthorization(req *agentv1.WaitAuthorizationRequest, ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
	// What became of it is asked of the sign-in itself: nothing is kept of who waits.
	return s.run(ss.Context(), teller{send: ss.Send}, asked{}, func(ctx context.Context, c agent.Caller) (agent.Result, error) {
		return s.agent.AwaitAuthorization(ctx, c, req.Id)
	})
}

// DecideApproval implements agentv1.AgentServiceServer.
func (s *Server) DecideApproval(req *agentv1.DecideApprovalRequest, ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
	return s.operate(ss, req, asked{false, req.WaitForApproval, req.WaitForSignIn}, func(ctx context.Context, c agent.Caller) (agent.Result, error) {
		return s.agent.Decide(ctx, c, agent.Decision{ID: req.Id, Approve: req.Decision == "approve", Digest: req.Digest})
	})
}

// WatchEvents implements agentv1.AgentServiceServer.
func (s *Server) WatchEvents(_ *agentv1.WatchEventsRequest, ss grpc.ServerStreamingServer[agentv1.ChangeEvent]) error {
	ctx := ss.Context()
	return watchEnded(s.agent.Watch(ctx, s.as(ctx), func(change agent.Change) error {
		m, err := messageOf[agentv1.ChangeEvent](change)
		if err != nil {
			return err
		}
		return ss.Send(m)
	}))
}

// watchEnded is the error that a watch ends with.
func watchEnded(err error) error {
	if errors.Is(err, agent.ErrLagging) {
		return statusOf(codes.Aborted, codeLagging, nil, "changes came faster than they were read: watch again, and read all anew")
	}
	return err
}
