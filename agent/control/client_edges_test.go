package control_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// counting is a peer that counts what a client asks it for beyond the operation itself.
type counting struct {
	*peer
	scope            control.Scope // of the connection; empty: it does not say
	signIns, decided atomic.Int32
}

func (p *counting) GetSettings(ctx context.Context, req *agentv1.GetSettingsRequest) (*agentv1.Settings, error) {
	if p.scope != "" {
		if err := grpc.SetHeader(ctx, metadata.Pairs("pact-scope", string(p.scope))); err != nil {
			return nil, err
		}
	}
	return p.peer.GetSettings(ctx, req)
}

func (p *counting) GetSignIn(context.Context, *agentv1.GetSignInRequest) (*agentv1.SignIn, error) {
	p.signIns.Add(1)
	return &agentv1.SignIn{Authorization: "signin-1", Link: "https://login.example.com/device", LinkOrigin: "https://login.example.com"}, nil
}

func (p *counting) WaitAuthorization(_ *agentv1.WaitAuthorizationRequest, ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
	return ss.Send(resultOf("done"))
}

func (p *counting) DecideApproval(_ *agentv1.DecideApprovalRequest, ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
	p.decided.Add(1)
	return ss.Send(resultOf("done"))
}

func (p *counting) GetApproval(context.Context, *agentv1.GetApprovalRequest) (*agentv1.Approval, error) {
	return &agentv1.Approval{Id: "approval-1", State: "sent"}, nil
}

func resultOf(status string) *agentv1.OperationUpdate {
	return &agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Result{Result: &agentv1.Result{
		Status: status, Authorization: &agentv1.Authorization{Id: "signin-1", State: "granted"},
	}}}
}

// TestLinkIsNotAskedFor (DA-14, AD-2): the link of a sign-in that is waited for is the
// owner's: a task does not ask for it, and a connection that may not have it neither.
func TestLinkIsNotAskedFor(t *testing.T) {
	task := agent.TaskCaller(owner, &agent.Task{ID: "task-1", Source: agent.SourceOwner, Mode: agent.ModeAct, Human: agent.HumanInteractive}, agent.DefaultNetwork())
	for name, test := range map[string]struct {
		who   agent.Caller
		scope control.Scope
		shown int32
	}{
		"the owner":                    {surfaceCaller, control.ScopeAdmin, 1},
		"the owner, at an older agent": {surfaceCaller, "", 1},
		"one who operates":             {surfaceCaller, control.ScopeOperator, 1},
		"one who reads":                {surfaceCaller, control.ScopeRead, 0},
		"one who writes":               {surfaceCaller, control.ScopeWrite, 0},
		"an assistant":                 {surfaceCaller, control.ScopeAssistant, 0},
		"a task of the owner's":        {task, control.ScopeAdmin, 0},
		"a task, at an older agent":    {task, "", 0},
	} {
		p := &counting{peer: &peer{}, scope: test.scope}
		c := dialPeer(t, p)
		shown := int32(0)
		test.who.SignIn = func(context.Context, agent.SignIn) error {
			shown++
			return nil
		}
		r, err := c.WaitAuthorization(t.Context(), test.who, "signin-1")
		if err != nil || r.Status != agent.StatusDone || p.signIns.Load() != test.shown || shown != test.shown {
			t.Errorf("%s: %+v, %v; asked for %d times, shown %d times", name, r, err, p.signIns.Load(), shown)
		}
	}
}

// TestLateYes (AP-1): what is answered once a question has ended is no answer: it was
// decided elsewhere, or nobody did in time, or whoever is asked has left, and nothing of it reaches the agent.
func TestLateYes(t *testing.T) {
	expired := &agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Result{Result: &agentv1.Result{
		Status: string(agent.StatusExpired), Reason: string(agent.ReasonApprovalExpired),
	}}}
	for name, ends := range map[string]struct {
		leaves  bool
		result  *agentv1.OperationUpdate
		status  agent.Status
		decided bool
	}{
		"decided elsewhere": {false, resultOf("replied"), agent.StatusReplied, true},
		"decided by nobody": {false, expired, agent.StatusExpired, false},
		"interrupted":       {true, nil, agent.StatusApprovalRequired, false},
	} {
		for _, yes := range []bool{true, false} {
			asked := make(chan struct{})
			ctx, interrupt := context.WithCancel(t.Context())
			p := &counting{peer: &peer{send: func(ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
				if md, _ := metadata.FromIncomingContext(ss.Context()); md.Get("pact-outcome") != nil {
					return ss.Send(resultOf(string(agent.StatusApprovalRequired)))
				}
				err := ss.Send(&agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Approval{Approval: &agentv1.Approval{Id: "approval-1", State: "pending", Digest: "d"}}})
				if err != nil {
					return err
				}
				<-asked
				if ends.leaves {
					interrupt()
					<-ss.Context().Done()
					return ss.Context().Err()
				}
				return ss.Send(ends.result)
			}}}
			c := dialPeer(t, p)
			who := surfaceCaller
			who.Human = agent.HumanInteractive
			var cause error
			who.Approve = func(ctx context.Context, _ agent.ApprovalRequest) (bool, error) {
				close(asked)
				<-ctx.Done()
				cause = context.Cause(ctx)
				return yes, nil
			}
			r, err := c.Send(ctx, who, agent.SendRequest{})
			if err != nil || r.Status != ends.status {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			if errors.Is(cause, agent.ErrDecided) != ends.decided {
				t.Errorf("%s: the question ended for %v", name, cause)
			}
			// What was sent before is there before this is.
			if _, err := c.Decide(t.Context(), who, agent.Decision{ID: "approval-2"}); err != nil {
				t.Error(err)
			}
			if n := p.decided.Load(); n != 1 {
				t.Errorf("%s: a late answer (%v) was sent", name, yes)
			}
			interrupt()
		}
	}
}
