package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// withHeaders adds metadata to a call: pairs of key and value.
func withHeaders(ctx context.Context, headers ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, headers...)
}

// A server that stops ends what is open, refuses what is new, and lets nothing go on.
func TestStop(t *testing.T) {
	w := newServer(t)
	client := agentv1.NewAgentServiceClient(w.conn(w.unix))
	events, err := client.WatchEvents(t.Context(), &agentv1.WatchEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Recv(); err != nil {
		t.Fatal(err)
	}
	w.end()
	if _, err := events.Recv(); status.Code(err) != codes.Unavailable || reasonOf(status.Convert(err)) != codeStopping {
		t.Errorf("a watch when the agent stops: %v", err)
	}
	if _, err := client.ListGrants(t.Context(), &agentv1.ListGrantsRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a call when the agent has stopped: %v", err)
	}
	if c, err := net.Dial("unix", strings.TrimPrefix(w.unix.Target(), "unix:")); err == nil {
		_ = c.Close()
		t.Error("the socket answers when the agent has stopped")
	}
	if len(w.server.calls) != 0 {
		t.Errorf("%d calls go on", len(w.server.calls))
	}
	if strings.Contains(w.log.String(), "level=ERROR") {
		t.Errorf("the log: %s", w.log)
	}
}

// What comes while the agent stops is refused by a reason that says so.
func TestStopping(t *testing.T) {
	w := newServer(t)
	conn := w.conn(w.unix)
	w.server.stop(t.Context())
	for _, m := range Methods() {
		st, _ := status.FromError(callGRPC(t, conn, m, request(t, m)))
		if st.Code() != codes.Unavailable || reasonOf(st) != codeStopping {
			t.Errorf("%s: %s %s", m.Name, st.Code(), st.Message())
		}
		if code, st := callREST(t, w, w.unix, m, request(t, m)); code != 503 || reasonOf(st) != codeStopping {
			t.Errorf("%s over REST: %d %s", m.Name, code, st.Message())
		}
	}
	// Who may not call it learns that first.
	m, _ := methodOf("SetProvider")
	if got := status.Code(callGRPC(t, conn, m, request(t, m), "authorization", "Bearer "+w.secrets[ScopeRead])); got != codes.PermissionDenied {
		t.Errorf("without the scope: %s", got)
	}
}

// A panic ends its call alone, and the log says where it was and not what of.
func TestPanic(t *testing.T) {
	w := newServer(t)
	ctx := context.WithValue(t.Context(), callerKey{}, caller{actor: "owner", scope: ScopeAdmin})
	_, err := w.server.unary(ctx, &agentv1.ListGrantsRequest{}, unaryInfo("ListGrants"), func(context.Context, any) (any, error) {
		panic("pact-credential-0123456789")
	})
	if status.Code(err) != codes.Internal || reasonOf(status.Convert(err)) != codeInternal {
		t.Errorf("a call that panics: %v", err)
	}
	if text := w.log.String(); !strings.Contains(text, "call panicked") || strings.Contains(text, "pact-credential") {
		t.Errorf("the log: %s", text)
	}
	if len(w.server.calls) != 0 {
		t.Error("the call goes on")
	}
}

// The log names the methods that there are, and repeats nothing that a caller wrote.
func TestLogOfUnknownMethods(t *testing.T) {
	w := newFuzzServer(t)
	const wrote = "pact-credential-0123456789"
	for _, token := range []string{"", "Bearer " + w.secrets[ScopeRead]} {
		for _, kind := range []string{"application/grpc", "application/json"} {
			for _, path := range []string{"/" + wrote, "/pact.agent.v1.AgentService/" + wrote, "/v1/" + wrote + "?" + wrote} {
				r := httptest.NewRequest("POST", path, strings.NewReader("\x00\x00\x00\x00\x00"))
				r.ProtoMajor, r.Host = 2, "127.0.0.1"
				r.Header.Set("Content-Type", kind)
				if token != "" {
					r.Header.Set("Authorization", token)
				}
				w.server.Handler(false).ServeHTTP(httptest.NewRecorder(), r)
			}
		}
	}
	text := w.log.String()
	if strings.Contains(text, wrote) {
		t.Errorf("it has what was sent: %s", text)
	}
	for _, want := range []string{"actor=nobody method=unknown code=Unauthenticated", `actor="token read" method=unknown code=Unimplemented`} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not tell of %s: %s", want, text)
		}
	}
}

// A call that no face has identified is nobody's.
func TestUnidentifiedCall(t *testing.T) {
	w := newServer(t)
	_, err := w.server.unary(t.Context(), &agentv1.ListGrantsRequest{}, unaryInfo("ListGrants"), func(context.Context, any) (any, error) {
		t.Error("it is made")
		return nil, nil
	})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("%v", err)
	}
	ctx := context.WithValue(t.Context(), callerKey{}, caller{actor: "owner", scope: ScopeAdmin})
	if _, err := w.server.unary(ctx, &agentv1.ListGrantsRequest{}, unaryInfo("GetEverything"), nil); status.Code(err) != codes.Unimplemented || reasonOf(status.Convert(err)) != codeNoMethod {
		t.Errorf("a method that is not in the table: %v", err)
	}
}

// AD-2, AD-3, CP-2: whose origin a call has, and what records call it.
func TestCallersOfTheAgent(t *testing.T) {
	w := newServer(t)
	for _, c := range []struct {
		caller caller
		origin agent.CallerOrigin
		actor  string
		task   string
	}{
		{caller{actor: "owner", scope: ScopeAdmin}, agent.OriginOwnerCLI, "owner", ""},
		{caller{actor: "token a", scope: ScopeAdmin}, agent.OriginOwnerCLI, "token a", ""},
		{caller{actor: "token o", scope: ScopeOperator}, agent.OriginOwnerCLI, "token o", ""},
		{caller{actor: "token w", scope: ScopeWrite}, agent.OriginGateway, "token w", ""},
		{caller{actor: "token r", scope: ScopeRead}, agent.OriginGateway, "token r", ""},
		{caller{actor: "token b", scope: ScopeAssistant, inTask: true}, agent.OriginOwner, "token b", "assistant:token b:"},
		{caller{actor: "owner", scope: ScopeAdmin, inTask: true, task: "trip"}, agent.OriginOwner, "owner task trip", "assistant:owner:trip"},
	} {
		got := w.server.as(context.WithValue(t.Context(), callerKey{}, c.caller))
		if got.Origin != c.origin || got.Actor != c.actor || got.Confirmed || got.Approve != nil || got.SignIn != nil {
			t.Errorf("%+v acts as %+v", c.caller, got)
		}
		switch {
		case c.task == "" && got.Task != nil, c.task != "" && (got.Task == nil || got.Task.ID != c.task):
			t.Errorf("%+v acts in the task %+v", c.caller, got.Task)
		case got.Task != nil && (got.Task.Source != agent.SourceOwner || got.Task.Mode != agent.ModeAct || got.Task.Human != agent.HumanOutOfBand || got.Task.Parent != ""):
			t.Errorf("%+v acts in the task %+v", c.caller, got.Task)
		}
	}
	if got := w.server.as(t.Context()); got.Origin != agent.OriginGateway {
		t.Errorf("nobody acts as %+v", got)
	}
}

func TestNewRefuses(t *testing.T) {
	w := newFuzzServer(t)
	for name, cfg := range map[string]Config{
		"Agent":     {Store: w.store, Principal: "owner"},
		"Store":     {Agent: w.agent, Principal: "owner"},
		"Principal": {Agent: w.agent, Store: w.store},
		"TimeScale": {Agent: w.agent, Store: w.store, Principal: "owner", TimeScale: -1},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.server.Serve(t.Context()); err == nil {
		t.Error("serves nowhere")
	}
}

func unaryInfo(method string) *grpc.UnaryServerInfo {
	return &grpc.UnaryServerInfo{FullMethod: "/pact.agent.v1.AgentService/" + method}
}

// Who reads events too slowly is told that some are lost, and to read all anew.
func TestLaggingWatch(t *testing.T) {
	st := status.Convert(watchEnded(fmt.Errorf("watch: %w by more than 1024 changes", agent.ErrLagging)))
	if st.Code() != codes.Aborted || reasonOf(st) != codeLagging {
		t.Errorf("it ends with %s %s", st.Code(), st.Message())
	}
	if other := errors.New("x"); watchEnded(other) != other || watchEnded(nil) != nil {
		t.Error("another end is another error")
	}
}

// AP-1: a caller that waits for the owner's word has none itself: what asks it waits
// until that is given elsewhere, and says no.
func TestWaitingApprovesNothing(t *testing.T) {
	w := newFuzzServer(t)
	err := w.store.Update(t.Context(), func(tx agent.Tx) error {
		return tx.Put(agent.KindApproval, agent.Record{
			Head: agent.Head{ID: "approval-x", Principal: "owner", State: agent.ApprovalPending}, Data: []byte(`{}`),
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := errors.New("decided elsewhere")
	for _, c := range []caller{{actor: "owner", scope: ScopeAdmin}, {actor: "owner", scope: ScopeAdmin, inTask: true}} {
		ctx, decide := context.WithCancelCause(context.WithValue(t.Context(), callerKey{}, c))
		u := w.server.newUpdates(ctx, decide, func(m *agentv1.OperationUpdate) error {
			if m.GetApproval() == nil {
				t.Errorf("told %v", m)
			}
			decide(elsewhere)
			return nil
		})
		yes, err := u.caller(w.server.as(ctx), asked{waitForApproval: true}).Approve(ctx, agent.ApprovalRequest{ID: "approval-x"})
		if yes || !errors.Is(err, elsewhere) {
			t.Errorf("%s: %v, %v", c.name(), yes, err)
		}
		if err := u.end(nil); err != nil {
			t.Error(err)
		}
	}
}

// The status says what its caller may do: in a task, no more than an assistant.
func TestScopeIsTold(t *testing.T) {
	w := newFuzzServer(t)
	for _, c := range []struct {
		caller caller
		want   Scope
	}{
		{caller{scope: ScopeAdmin}, ScopeAdmin},
		{caller{scope: ScopeRead}, ScopeRead},
		{caller{scope: ScopeAssistant, inTask: true}, ScopeAssistant},
		{caller{scope: ScopeAdmin, inTask: true}, ScopeAssistant},
		{caller{scope: ScopeRead, inTask: true}, ScopeRead},
	} {
		m, err := w.server.GetStatus(context.WithValue(t.Context(), callerKey{}, c.caller), &agentv1.GetStatusRequest{})
		if err != nil || m.Process.GetScope() != string(c.want) {
			t.Errorf("%+v: %s, %v", c.caller, m.GetProcess().GetScope(), err)
		}
	}
}
