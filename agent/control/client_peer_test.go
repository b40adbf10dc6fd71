package control_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// peer answers as no agent of this version does.
type peer struct {
	agentv1.UnimplementedAgentServiceServer
	grants func(token string) (*agentv1.ListGrantsResponse, error)
	send   func(grpc.ServerStreamingServer[agentv1.OperationUpdate]) error

	signIn, wait  func(context.Context) error
	authorization *agentv1.Authorization
}

func (p *peer) GetSignIn(ctx context.Context, _ *agentv1.GetSignInRequest) (*agentv1.SignIn, error) {
	return nil, p.signIn(ctx)
}

func (p *peer) WaitAuthorization(_ *agentv1.WaitAuthorizationRequest, ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
	return p.wait(ss.Context())
}

func (p *peer) GetAuthorization(context.Context, *agentv1.GetAuthorizationRequest) (*agentv1.Authorization, error) {
	return p.authorization, nil
}

func (p *peer) GetSettings(context.Context, *agentv1.GetSettingsRequest) (*agentv1.Settings, error) {
	return &agentv1.Settings{}, nil
}

func (p *peer) ListGrants(_ context.Context, req *agentv1.ListGrantsRequest) (*agentv1.ListGrantsResponse, error) {
	return p.grants(req.PageToken)
}

func (p *peer) SendMessage(_ *agentv1.SendMessageRequest, ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
	return p.send(ss)
}

// dialPeer is a client of a peer, on the owner's socket.
func dialPeer(t *testing.T, p agentv1.AgentServiceServer) *control.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "pact")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	agentv1.RegisterAgentServiceServer(s, p)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	c, err := control.Dial(t.Context(), "unix:"+path, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func refusedBecause(code codes.Code, reason, field string) error {
	st, err := status.New(code, "refused").WithDetails(&errdetails.ErrorInfo{Domain: "agent.pact", Reason: reason, Metadata: map[string]string{"field": field}})
	if err != nil {
		return err
	}
	return st.Err()
}

var surfaceCaller = agent.Caller{Principal: owner, Origin: agent.OriginOwnerCLI, Human: agent.HumanNone}

// TestListThatChanges: a list whose place is gone is begun anew, and not for ever.
func TestListThatChanges(t *testing.T) {
	calls, moves := 0, 2
	p := &peer{grants: func(token string) (*agentv1.ListGrantsResponse, error) {
		calls++
		if calls > 100 {
			t.Fatal("it is asked for ever")
		}
		if token == "" {
			return &agentv1.ListGrantsResponse{Grants: []*agentv1.Grant{{Id: "g-1"}}, NextPageToken: "after g-1"}, nil
		}
		if moves != 0 {
			moves--
			return nil, refusedBecause(codes.InvalidArgument, "INVALID_REQUEST", "page_token")
		}
		return &agentv1.ListGrantsResponse{Grants: []*agentv1.Grant{{Id: "g-2"}}}, nil
	}}
	c := dialPeer(t, p)
	list, err := c.Grants(t.Context(), surfaceCaller)
	if err != nil || len(list) != 2 || list[0].ID != "g-1" || list[1].ID != "g-2" {
		t.Errorf("%+v, %v", list, err)
	}
	moves = -1
	if list, err := c.Grants(t.Context(), surfaceCaller); err == nil || list != nil {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestOddOperations: what an agent of another version, or a broken one, makes of an
// operation is told as what it is.
func TestOddOperations(t *testing.T) {
	result := func(status string) *agentv1.OperationUpdate {
		return &agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Result{Result: &agentv1.Result{Status: status}}}
	}
	for name, test := range map[string]struct {
		send func(grpc.ServerStreamingServer[agentv1.OperationUpdate]) error
		want string // of the result, or in the error
		ok   bool
	}{
		"an update of a kind that is new": {func(ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
			return errors.Join(ss.Send(&agentv1.OperationUpdate{}), ss.Send(result("replied")))
		}, "replied", true},
		"no result": {func(grpc.ServerStreamingServer[agentv1.OperationUpdate]) error { return nil }, "without a result", false},
		"an effect that is new": {func(ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
			u := result("replied")
			u.GetResult().Effect = "destroy"
			return ss.Send(u)
		}, "effect", false},
		"a refusal that is new": {func(grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
			return refusedBecause(codes.FailedPrecondition, "WEATHER", "")
		}, "refused", false},
		"a failure": {func(grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
			return refusedBecause(codes.Internal, "INTERNAL", "")
		}, "its log says why", false},
	} {
		c := dialPeer(t, &peer{send: test.send})
		r, err := c.Send(t.Context(), surfaceCaller, agent.SendRequest{})
		if test.ok && (err != nil || string(r.Status) != test.want) || !test.ok && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// TestInterruptedAndForgotten (CV-16): that nothing was sent is said only if the agent
// that was asked never began.
func TestInterruptedAndForgotten(t *testing.T) {
	for name, test := range map[string]struct {
		heard   bool // an update came
		outcome error
		status  agent.Status
	}{
		"never begun":                    {false, refusedBecause(codes.NotFound, "NOT_FOUND", "pact-outcome"), agent.StatusCancelled},
		"begun, and forgotten":           {true, refusedBecause(codes.NotFound, "NOT_FOUND", "pact-outcome"), ""},
		"given up before any result":     {true, status.Error(codes.Canceled, "context canceled"), agent.StatusCancelled},
		"of something that is not there": {true, refusedBecause(codes.NotFound, "NOT_FOUND", ""), agent.StatusCancelled},
		"failed":                         {true, refusedBecause(codes.Internal, "INTERNAL", ""), ""},
		"the agent stops":                {false, refusedBecause(codes.Unavailable, "STOPPING", ""), ""},
		"of other authority":             {true, refusedBecause(codes.PermissionDenied, "SCOPE_REQUIRED", ""), agent.StatusBlocked},
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		var ids []string
		p := &peer{send: func(ss grpc.ServerStreamingServer[agentv1.OperationUpdate]) error {
			md, _ := metadata.FromIncomingContext(ss.Context())
			if asked := md.Get("pact-outcome"); asked != nil {
				ids = append(ids, asked...)
				return test.outcome
			}
			ids = append(ids, md.Get("pact-operation")...)
			if !test.heard {
				interrupt()
			} else if err := ss.Send(&agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Progress{Progress: &agentv1.Progress{Kind: "sending"}}}); err != nil {
				return err
			}
			<-ss.Context().Done()
			return ss.Context().Err()
		}}
		c := surfaceCaller
		c.Progress = func(agent.Event) { interrupt() }
		client := dialPeer(t, p)
		r, err := client.Send(ctx, c, agent.SendRequest{})
		if r.Status != test.status || (err == nil) != (test.status != "") {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if len(ids) != 2 || ids[0] == "" || ids[0] != ids[1] {
			t.Errorf("%s: ids %q", name, ids)
		}
		if err != nil && !strings.Contains(err.Error(), "look before you repeat it") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
