package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// Send is [agent.Agent.Send].
func (c *Client) Send(ctx context.Context, who agent.Caller, req agent.SendRequest) (agent.Result, error) {
	m := sendRequest(req)
	m.Confirmed = who.Confirmed && who.Task == nil
	m.WaitForApproval, m.WaitForSignIn = c.staysFor(who)
	return c.operate(ctx, who, agentv1.AgentService_SendMessage_FullMethodName, m)
}

// Reconcile is [agent.Agent.Reconcile].
func (c *Client) Reconcile(ctx context.Context, who agent.Caller, req agent.ReconcileRequest) (agent.Result, error) {
	m := reconcileRequest(req)
	m.Confirmed = who.Confirmed && who.Task == nil
	m.WaitForApproval, m.WaitForSignIn = c.staysFor(who)
	return c.operate(ctx, who, agentv1.AgentService_Reconcile_FullMethodName, m)
}

// Authorize is [agent.Agent.Authorize].
func (c *Client) Authorize(ctx context.Context, who agent.Caller, req agent.AuthorizeRequest) (agent.Result, error) {
	m := authorizeRequest(req)
	_, m.WaitForSignIn = c.staysFor(who)
	return c.operate(ctx, who, agentv1.AgentService_StartAuthorization_FullMethodName, m)
}

// Decide is [agent.Agent.Decide]. That the owner decided in a dialog is kept of the
// caller's Actor (DialogActor) on the agent's own socket.
func (c *Client) Decide(ctx context.Context, who agent.Caller, d agent.Decision) (agent.Result, error) {
	approval, signIn := c.staysFor(who)
	return c.operate(ctx, who, agentv1.AgentService_DecideApproval_FullMethodName, &agentv1.DecideApprovalRequest{
		Id: d.ID, Decision: decision(d.Approve), Digest: d.Digest, WaitForApproval: approval, WaitForSignIn: signIn,
	})
}

func decision(approve bool) string {
	if approve {
		return "approve"
	}
	return "deny"
}

// WaitAuthorization is [agent.Agent.WaitAuthorization]. A link that the caller may not
// see is not shown; its end is waited for all the same.
func (c *Client) WaitAuthorization(ctx context.Context, who agent.Caller, id string) (agent.Result, error) {
	if who.SignIn != nil && who.Task == nil && c.SignsIn() {
		if err := c.showSignIn(ctx, who, id); err != nil && ctx.Err() == nil {
			return agent.Result{}, err
		}
	}
	who.SignIn = nil // once is enough
	wait := func(ctx context.Context) (agent.Result, error) {
		return c.operate(ctx, who, agentv1.AgentService_WaitAuthorization_FullMethodName, &agentv1.WaitAuthorizationRequest{Id: id})
	}
	if r, err := wait(ctx); err == nil && r.Authorization != nil || ctx.Err() == nil {
		return r, err
	}
	// Interrupted: what it is now is its result, and the agent waits on by itself.
	now, done := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer done()
	v, err := c.Authorization(now, who, id)
	switch {
	case err != nil:
		return asResult(agent.Result{}, err)
	case v.State != "pending":
		return wait(now)
	}
	r := agent.Result{Status: agent.StatusNeedsUserAction, Reason: agent.ReasonSignInPending, Business: v.Business, Authorization: &v}
	return c.givenUp(ctx, who, r)
}

// staysFor tells what of the owner the caller can wait for: an answer that the
// connection may not give is not asked for.
func (c *Client) staysFor(who agent.Caller) (approval, signIn bool) {
	human := who.Human
	if who.Task != nil {
		human = who.Task.Human
	}
	asks := human == agent.HumanInteractive
	return asks && who.Approve != nil && c.Decides(), asks && who.SignIn != nil && c.SignsIn()
}

// showSignIn shows a sign-in's link to the owner, if it is still pending and theirs to
// see. Whoever waits for its end is told what became of it.
func (c *Client) showSignIn(ctx context.Context, who agent.Caller, id string) error {
	m, err := invoke(ctx, c, metadata.MD{}, rpc.GetSignIn, &agentv1.GetSignInRequest{Id: id})
	switch {
	case agent.ReasonOf(err) != "" || errors.Is(err, agent.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	s, err := signInView(m)
	if err != nil {
		return err
	}
	return who.SignIn(ctx, s)
}

// patience is how long the running agent may take to end an operation whose caller
// left, before the caller leaves without a word of it.
const patience = 10 * time.Second

// operation is one call that streams how it goes on.
type operation struct {
	c    *Client
	who  agent.Caller
	id   string
	rpc  string // full name of its method
	req  proto.Message
	task metadata.MD

	ctx   context.Context // the caller's
	leave context.CancelCauseFunc

	question *question
	on       *conn // that it was asked for on; nil: it was not yet
	opened   int64
	heard    bool // of it: it was begun
}

// operate runs an operation: it answers for the owner by the caller's functions, and
// returns how it ended. As with an [agent.Agent], what the agent refuses is a result,
// and an error is one of a callback, of the connection or of the agent itself.
func (c *Client) operate(ctx context.Context, who agent.Caller, method string, req proto.Message) (agent.Result, error) {
	md, err := c.task(who)
	if err != nil {
		return asResult(agent.Result{}, err)
	}
	name, dialog := strings.CutPrefix(strings.TrimSpace(who.Actor), DialogActor)
	if dialog && method == agentv1.AgentService_DecideApproval_FullMethodName && c.bearer() == "" && checkName("", name) == nil {
		md.Set(dialogHeader, headerName(name))
	}
	running, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	o := &operation{c: c, who: who, id: uuid.NewString(), rpc: method, req: req, task: md, ctx: ctx, leave: leave}
	r, err := o.run(running)
	o.question.end(nil)
	switch failed := context.Cause(running); {
	case err == nil:
		return r, nil
	case ctx.Err() != nil && (o.on == nil || method == agentv1.AgentService_WaitAuthorization_FullMethodName): // nothing was asked for
		return agent.Result{Status: agent.StatusCancelled, Reason: agent.ReasonUserCancelled}, nil
	case ctx.Err() != nil:
		return o.left()
	case failed != nil: // a function of the caller's
		_, _ = o.outcome() // it is over when this returns, or goes on without the caller
		return r, failed
	}
	return asResult(r, err)
}

// asResult is a refusal as the result that it is.
func asResult(r agent.Result, err error) (agent.Result, error) {
	var refusal *agent.Refusal
	if !errors.As(err, &refusal) {
		return r, err
	}
	r.Status, r.Reason, r.Detail = refusal.Status, refusal.Reason, refusal.Text()
	return r, nil
}

// answers are those of a call that streams.
type answers struct {
	grpc.ClientStream
	on *conn
}

// stream begins the call; key is what its id means.
func (o *operation) stream(ctx context.Context, key string) (answers, error) {
	if err := checkUTF8(o.req); err != nil { // no message may hold it
		return answers{}, fromStatus(ctx, o.c.target, err)
	}
	on, err := o.c.conn()
	if err != nil {
		return answers{}, err
	}
	md := o.task.Copy()
	md.Set(key, o.id)
	s, err := on.NewStream(o.c.outgoing(ctx, md), &grpc.StreamDesc{ServerStreams: true}, o.rpc)
	if err == nil {
		if key == operationKey {
			o.on, o.opened = on, on.opened.Load()
		}
		if err = s.SendMsg(o.req); err == io.EOF { // its cause comes with the first answer
			err = nil
		}
	}
	if err == nil {
		err = s.CloseSend()
	}
	if err != nil {
		return answers{}, o.c.failed(ctx, on, err)
	}
	return answers{s, on}, nil
}

// run follows the operation to its result.
func (o *operation) run(ctx context.Context) (agent.Result, error) {
	s, err := o.stream(ctx, operationKey)
	if err != nil {
		return agent.Result{}, err
	}
	for {
		u := new(agentv1.OperationUpdate)
		if err := s.RecvMsg(u); err == io.EOF {
			return agent.Result{}, fmt.Errorf("the agent at %s ended the operation without a result: its log says why", o.c.target)
		} else if err != nil {
			return agent.Result{}, o.c.failed(ctx, s.on, err)
		}
		o.heard = true
		cause := agent.ErrDecided // it goes on: whoever was asked, the answer is there
		switch r := u.GetResult(); {
		case r.GetStatus() == string(agent.StatusApprovalRequired):
			cause = agent.ErrStopping // nobody decided
		case r.GetReason() == string(agent.ReasonApprovalExpired):
			cause = context.DeadlineExceeded // nor in time
		}
		o.question.end(cause)
		o.question = nil
		if m := u.GetResult(); m != nil {
			return viewOf[agent.Result](m)
		}
		if err := o.update(ctx, u); err != nil {
			o.leave(err)
			return agent.Result{}, err
		}
	}
}

// update tells the caller how it goes on.
func (o *operation) update(ctx context.Context, u *agentv1.OperationUpdate) error {
	switch m := u.Update.(type) {
	case *agentv1.OperationUpdate_Progress:
		e, err := viewOf[agent.Event](m.Progress)
		if err == nil && o.who.Progress != nil {
			o.who.Progress(e)
		}
		return err
	case *agentv1.OperationUpdate_Confirmed:
		v, err := viewOf[agent.ApprovalView](m.Confirmed)
		if err == nil && o.who.Shown != nil {
			o.who.Shown(approvalRequest(v))
		}
		return err
	case *agentv1.OperationUpdate_Approval:
		v, err := viewOf[agent.ApprovalView](m.Approval)
		if err == nil && o.who.Approve != nil {
			o.ask(ctx, approvalRequest(v))
		}
		return err
	case *agentv1.OperationUpdate_Authorization:
		if o.who.SignIn != nil {
			return o.c.showSignIn(ctx, o.who, m.Authorization.GetId())
		}
	}
	return nil // of a newer agent: nothing that this one has to answer
}

// question is the owner being asked.
type question struct {
	stop  context.CancelCauseFunc
	ended chan struct{}
}

// end takes a question back for a cause, and waits until nobody is asked any more.
func (q *question) end(cause error) {
	if q != nil {
		q.stop(cause)
		<-q.ended
	}
}

// ask asks the owner while the operation is watched: it may be decided elsewhere
// first. The answer is the owner's word, also where a task asked.
func (o *operation) ask(ctx context.Context, req agent.ApprovalRequest) {
	ctx, stop := context.WithCancelCause(ctx)
	o.question = &question{stop, make(chan struct{})}
	go func(q *question) {
		defer close(q.ended)
		ok, err := o.who.Approve(ctx, req)
		if err == nil && ctx.Err() == nil {
			err = o.decide(ctx, agent.Decision{ID: req.ID, Approve: ok, Digest: req.Digest})
		}
		if err != nil && ctx.Err() == nil {
			o.leave(err)
		}
	}(o.question)
}

// decide gives the owner's word. One that came too late is none: the operation itself
// tells what became of it.
func (o *operation) decide(ctx context.Context, d agent.Decision) error {
	owner := agent.Caller{Principal: o.who.Principal, Origin: agent.OriginOwnerCLI, Human: agent.HumanNone}
	r, err := o.c.Decide(ctx, owner, d)
	if err == nil && r.Status == agent.StatusDone || ctx.Err() != nil {
		return nil
	}
	v, again := o.c.Approval(ctx, owner, d.ID)
	switch {
	case again != nil || v.State != agent.ApprovalPending:
		return nil
	case err == nil:
		err = &agent.Refusal{Status: r.Status, Reason: r.Reason, Detail: r.Detail}
	}
	return fmt.Errorf("the decision was not taken: %w", err)
}

// left is how an operation ended whose caller left: as the running agent has it. Of one
// that goes on without them it tells that its outcome is not known.
func (o *operation) left() (agent.Result, error) {
	r, err := o.outcome()
	var refusal *agent.Refusal
	switch {
	case errors.Is(err, agent.ErrNotFound): // nothing was begun, or what it is about is not there
		return agent.Result{Status: agent.StatusCancelled, Reason: agent.ReasonUserCancelled}, nil
	case errors.As(err, &refusal):
		return asResult(r, err)
	case err != nil:
		return r, fmt.Errorf("stopped waiting, and the agent at %s did not tell how it ended: look before you repeat it: %w", o.c.target, err)
	}
	return o.c.givenUp(o.ctx, o.who, r)
}

// givenUp ends the sign-in that an operation was interrupted in, if the owner gave it
// up rather than the program stopped (DA-8, DA-17).
func (c *Client) givenUp(ctx context.Context, who agent.Caller, r agent.Result) (agent.Result, error) {
	z := r.Authorization
	if z == nil || r.Reason != agent.ReasonSignInPending || !errors.Is(context.Cause(ctx), agent.ErrAborted) {
		return r, nil
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer done()
	v, err := c.CancelAuthorization(ctx, who, z.ID)
	if err != nil {
		return r, err
	}
	r.Status, r.Reason, r.Detail, r.Authorization = agent.StatusCancelled, agent.ReasonUserCancelled, "the sign-in ended: it was given up", &v
	return r, nil
}

// mayHaveBegun reports whether the operation may have been begun though the agent that
// is asked on a connection does not know it.
func (o *operation) mayHaveBegun(on *conn) bool {
	return o.heard || o.on != on || o.opened != on.opened.Load()
}

// errNotTold: the agent does not know the operation any more.
var errNotTold = errors.New("it is another process, or has forgotten it")

// outcome asks how the operation ended. It begins nothing. Errors wrap
// [agent.ErrNotFound] if it was not begun at all.
func (o *operation) outcome() (agent.Result, error) {
	ctx, done := context.WithTimeout(context.WithoutCancel(o.ctx), patience)
	defer done()
	s, err := o.stream(ctx, outcomeKey)
	if err != nil {
		return agent.Result{}, err
	}
	u := new(agentv1.OperationUpdate)
	err = s.RecvMsg(u)
	switch _, meta := infoOf(status.Convert(err)); {
	case meta["field"] == outcomeKey && o.mayHaveBegun(s.on):
		return agent.Result{}, errNotTold
	case givenUpThere(err) && ctx.Err() == nil: // before it had a result
		return agent.Result{Status: agent.StatusCancelled, Reason: agent.ReasonUserCancelled}, nil
	case err != nil && err != io.EOF:
		return agent.Result{}, o.c.failed(ctx, s.on, err)
	case u.GetResult() == nil:
		return agent.Result{}, errors.New("it has no result")
	}
	return viewOf[agent.Result](u.GetResult())
}

// givenUpThere reports whether an operation ended at the agent because its caller left,
// or their time was over.
func givenUpThere(err error) bool {
	return status.Code(err) == codes.Canceled || status.Code(err) == codes.DeadlineExceeded
}
