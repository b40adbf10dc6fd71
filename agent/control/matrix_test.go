package control

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// sample is a request of each method that is good, and that a new profile answers at
// once: by a refusal of the agent's or with nothing. Those that are not here are empty.
var sample = map[string]proto.Message{
	"UpdateSettings":         &agentv1.UpdateSettingsRequest{Preference: proto.String("prefer-pact")},
	"SetProvider":            &agentv1.SetProviderRequest{Origin: "https://p.example.com", Audience: "pact:p"},
	"RemoveProvider":         &agentv1.RemoveProviderRequest{Origin: "https://p.example.com"},
	"SetCredential":          &agentv1.SetCredentialRequest{SignerUrl: "http://127.0.0.1:1", Credential: "pact-credential-0123456789"},
	"EnrollDeviceKey":        &agentv1.EnrollDeviceKeyRequest{SignerUrl: "http://127.0.0.1:1"},
	"DiscoverBusiness":       &agentv1.DiscoverBusinessRequest{Domain: "air.example.com"},
	"SendMessage":            &agentv1.SendMessageRequest{Business: "air.example.com", Message: "Show my bookings", Effect: "inspect"},
	"Reconcile":              &agentv1.ReconcileRequest{Business: "air.example.com", Conversation: "conversation-1"},
	"GetConversation":        &agentv1.GetConversationRequest{Id: "conversation-1"},
	"GetTranscript":          &agentv1.GetTranscriptRequest{Conversation: "conversation-1"},
	"StartAuthorization":     &agentv1.StartAuthorizationRequest{Business: "air.example.com", Scopes: []string{"bookings:read"}},
	"GetAuthorization":       &agentv1.GetAuthorizationRequest{Id: "signin-1"},
	"GetAuthorizationStatus": &agentv1.GetAuthorizationStatusRequest{Id: "signin-1"},
	"WaitAuthorization":      &agentv1.WaitAuthorizationRequest{Id: "signin-1"},
	"GetSignIn":              &agentv1.GetSignInRequest{Id: "signin-1"},
	"CancelAuthorization":    &agentv1.CancelAuthorizationRequest{Id: "signin-1"},
	"DisconnectGrant":        &agentv1.DisconnectGrantRequest{Id: "grant-1"},
	"GetReceipt":             &agentv1.GetReceiptRequest{Id: "receipt-1"},
	"VerifyReceipt":          &agentv1.VerifyReceiptRequest{Id: "receipt-1"},
	"GetReview":              &agentv1.GetReviewRequest{Id: "receipt-1"},
	"AcknowledgeEvidence":    &agentv1.AcknowledgeEvidenceRequest{Id: "receipt-1"},
	"GetApproval":            &agentv1.GetApprovalRequest{Id: "approval-1"},
	"DecideApproval":         &agentv1.DecideApprovalRequest{Id: "approval-1", Decision: "deny"},
}

// message makes a message of the service by its name.
func message(t *testing.T, name protoreflect.Name) proto.Message {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName("pact.agent.v1." + protoreflect.FullName(name))
	if err != nil {
		t.Fatal(err)
	}
	return mt.New().Interface()
}

// descriptor is a method's.
func descriptor(t *testing.T, name string) protoreflect.MethodDescriptor {
	t.Helper()
	d := agentv1.File_pact_agent_v1_agent_proto.Services().ByName("AgentService").Methods().ByName(protoreflect.Name(name))
	if d == nil {
		t.Fatalf("the service has no method %s", name)
	}
	return d
}

// request is the sample of a method.
func request(t *testing.T, m Method) proto.Message {
	t.Helper()
	if s, ok := sample[m.Name]; ok {
		return proto.Clone(s)
	}
	return message(t, descriptor(t, m.Name).Input().Name())
}

// callGRPC calls a method over gRPC and returns the error that it ends with. Of a
// stream that has no end only the first answer is read.
func callGRPC(t *testing.T, c grpc.ClientConnInterface, m Method, req proto.Message, headers ...string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), headers...))
	defer cancel()
	full := "/pact.agent.v1.AgentService/" + m.Name
	out := message(t, descriptor(t, m.Name).Output().Name())
	if !m.Stream {
		return c.Invoke(ctx, full, req, out)
	}
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{StreamName: m.Name, ServerStreams: true}, full)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(req); err != nil && err != io.EOF { // RecvMsg has the error then
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		if err := stream.RecvMsg(out); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if m.Name == "WatchEvents" {
			return nil
		}
	}
}

// callREST calls a method over REST and returns the status that it ends with, made of
// the answer: that of HTTP, and the google.rpc.Status of the first line.
func callREST(t *testing.T, w *serverWorld, l *Listener, m Method, req proto.Message, headers ...string) (int, *status.Status) {
	t.Helper()
	verb, path, _ := strings.Cut(m.REST, " ")
	fields := req.ProtoReflect().Descriptor().Fields()
	body := proto.Clone(req)
	for i := range fields.Len() {
		f := fields.Get(i)
		if in := "{" + string(f.Name()) + "}"; strings.Contains(path, in) {
			path = strings.Replace(path, in, req.ProtoReflect().Get(f).String(), 1)
			body.ProtoReflect().Clear(f)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var content io.Reader
	if verb == "POST" {
		data, err := protojson.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		content = strings.NewReader(string(data))
	}
	r, err := http.NewRequestWithContext(ctx, verb, "http://127.0.0.1"+path, content)
	if err != nil {
		t.Fatal(err)
	}
	if verb == "POST" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := w.http(l).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	st := status.New(codes.OK, "")
	if resp.StatusCode != http.StatusOK {
		st = restStatus(t, line)
	} else if line == "" || !jsontext.Value(line).IsValid() {
		t.Errorf("%s: the answer is no JSON", m.Name)
	}
	return resp.StatusCode, st
}

// restStatus reads the body of a refusal.
func restStatus(t *testing.T, body string) *status.Status {
	t.Helper()
	st := status.New(codes.OK, "").Proto()
	if err := protojson.Unmarshal([]byte(body), st); err != nil {
		t.Fatalf("a refusal is %q: %v", body, err)
	}
	return status.FromProto(st)
}

// matrixCaller is a caller of the matrix: what it sends, and what it may do.
type matrixCaller struct {
	name    string
	headers []string
	// scope is what it has on the owner's socket and on loopback; empty: it is nobody.
	unix, loopback Scope
	task           bool
}

// may is the table, apart from the code: which methods a scope may call.
func (c matrixCaller) may(m Method, unix bool) codes.Code {
	scope := c.loopback
	if unix {
		scope = c.unix
	}
	order := []Scope{ScopeRead, ScopeWrite, ScopeOperator, ScopeAdmin}
	switch {
	case scope == "":
		return codes.Unauthenticated
	case scope == ScopeAssistant || c.task: // it may read, discover, send and reconcile
		asks := m.Name == "SendMessage" || m.Name == "Reconcile"
		if scope == ScopeAssistant {
			scope = ScopeOperator
		}
		if !asks && m.Scope != ScopeRead && m.Scope != ScopeWrite {
			return codes.PermissionDenied
		}
	}
	if slices.Index(order, scope) < slices.Index(order, m.Scope) {
		return codes.PermissionDenied
	}
	return codes.OK
}

// CP-1, CP-2, AD-2, AD-3: every method × every caller × both faces × both listeners.
func TestPermissionMatrix(t *testing.T) {
	w := newServer(t)
	bearer := func(s string) []string { return []string{"authorization", "Bearer " + s} }
	callers := []matrixCaller{
		{name: "none", unix: ScopeAdmin},
		{name: "narrowed owner", headers: []string{"pact-task", "trip"}, unix: ScopeAdmin, task: true},
		{name: "bad token", headers: bearer(TokenPrefix + strings.Repeat("A", 52))},
		{name: "token without prefix", headers: bearer("x")},
		{name: "empty authorization", headers: []string{"authorization", ""}},
		{name: "other scheme", headers: []string{"authorization", "Basic b3duZXI6"}},
		{name: "bad token in a task", headers: append(bearer("x"), "pact-task", "trip")},
	}
	for _, s := range Scopes() {
		callers = append(callers,
			matrixCaller{name: string(s), headers: bearer(w.secrets[s]), unix: s, loopback: s},
			matrixCaller{name: "narrowed " + string(s), headers: append(bearer(w.secrets[s]), "pact-task", "trip"), unix: s, loopback: s, task: true},
		)
	}
	for _, l := range []*Listener{w.unix, w.loopback} {
		conn := w.conn(l)
		for _, c := range callers {
			for _, m := range Methods() {
				want := c.may(m, l.owner)
				name := fmt.Sprintf("%s by %s on %s", m.Name, c.name, strings.SplitN(l.target, ":", 2)[0])

				st, _ := status.FromError(callGRPC(t, conn, m, request(t, m), c.headers...))
				checkAdmission(t, name+" over gRPC", want, st, m)

				code, rest := callREST(t, w, l, m, request(t, m), c.headers...)
				checkAdmission(t, name+" over REST", want, rest, m)
				if http := map[codes.Code]int{codes.Unauthenticated: 401, codes.PermissionDenied: 403}[want]; http != 0 && code != http {
					t.Errorf("%s over REST: HTTP %d, want %d", name, code, http)
				}
				// Both faces give the same answer, in the same words, but where the first call
				// has done what the second asks for.
				if m.Name == "RemoveProvider" && want == codes.OK {
					continue
				}
				if st.Code() != rest.Code() || st.Code() != codes.OK && st.Message() != rest.Message() {
					t.Errorf("%s: gRPC says %s %q, REST %s %q", name, st.Code(), st.Message(), rest.Code(), rest.Message())
				}
			}
		}
	}
	text := w.log.String()
	for s, secret := range w.secrets {
		if strings.Contains(text, secret) {
			t.Errorf("the log has the token of scope %s", s)
		}
	}
	for _, want := range []string{"actor=owner method=GetStatus", `actor="token read"`, `actor="owner task trip"`, "actor=nobody", "reason=SCOPE_REQUIRED"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log does not tell of %s", want)
		}
	}
	if strings.Contains(text, "pact-credential-0123456789") || strings.Contains(text, "Show my bookings") {
		t.Error("the log has what was asked")
	}
}

// checkAdmission compares how a call ended with what the caller may do.
func checkAdmission(t *testing.T, name string, want codes.Code, st *status.Status, m Method) {
	t.Helper()
	reason, meta := infoOf(st)
	switch {
	case want == codes.Unauthenticated && (st.Code() != want || reason != codeUnauthenticated):
		t.Errorf("%s: %s %s %q, want unauthenticated", name, st.Code(), reason, st.Message())
	case want == codes.PermissionDenied && (st.Code() != want || reason != codeScope || meta["scope"] != string(m.Scope)):
		t.Errorf("%s: %s %s %v %q, want the scope %s required", name, st.Code(), reason, meta, st.Message(), m.Scope)
	case want != codes.OK:
	case st.Code() == codes.OK:
	case reason == codeRefused, reason == codeNotFound: // of the agent's own accord
	default:
		t.Errorf("%s: %s %s %q, want it admitted", name, st.Code(), reason, st.Message())
	}
}

// AP-5, CP-2: a pre-confirmation counts from an admin alone, outside any task. From
// others it is refused, and nothing is asked of the agent.
func TestConfirmedFromAdminAlone(t *testing.T) {
	w := newServer(t)
	for _, m := range Methods() {
		if m.Name != "SendMessage" && m.Name != "Reconcile" {
			continue
		}
		req := request(t, m)
		req.ProtoReflect().Set(req.ProtoReflect().Descriptor().Fields().ByName("confirmed"), protoreflect.ValueOfBool(true))
		for _, l := range []*Listener{w.unix, w.loopback} {
			conn := w.conn(l)
			for _, s := range Scopes() {
				for _, task := range []bool{false, true} {
					headers := []string{"authorization", "Bearer " + w.secrets[s]}
					if task {
						headers = append(headers, "pact-task", "trip")
					}
					want := codes.PermissionDenied
					if s == ScopeAdmin && !task {
						want = codes.OK
					}
					if got := status.Code(callGRPC(t, conn, m, req, headers...)); got != want {
						t.Errorf("%s confirmed by %s (task: %v) over gRPC: %s, want %s", m.Name, s, task, got, want)
					}
					if _, st := callREST(t, w, l, m, req, headers...); st.Code() != want {
						t.Errorf("%s confirmed by %s (task: %v) over REST: %s, want %s", m.Name, s, task, st.Code(), want)
					}
				}
			}
		}
		if got := status.Code(callGRPC(t, w.conn(w.unix), m, req)); got != codes.OK {
			t.Errorf("%s confirmed by the owner: %s", m.Name, got)
		}
		if got := status.Code(callGRPC(t, w.conn(w.unix), m, req, "pact-task", "trip")); got != codes.PermissionDenied {
			t.Errorf("%s confirmed by a task of the owner: %s", m.Name, got)
		}
	}
}

// The table of methods is the contract: its methods, in its order, with the scopes
// that its comments name and the routes of gateway.yaml.
func TestMethodsAreTheContract(t *testing.T) {
	proto, err := os.ReadFile("../../proto/pact/agent/v1/agent.proto")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("../../proto/pact/agent/v1/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var routes struct {
		HTTP struct {
			Rules []struct{ Selector, Get, Post, Body string }
		}
	}
	if err := yaml.Unmarshal(raw, &routes); err != nil {
		t.Fatal(err)
	}
	service := agentv1.File_pact_agent_v1_agent_proto.Services().ByName("AgentService").Methods()
	if service.Len() != len(methods) || len(routes.HTTP.Rules) != len(methods) {
		t.Fatalf("the service has %d methods, gateway.yaml %d, the table %d", service.Len(), len(routes.HTTP.Rules), len(methods))
	}
	comment := regexp.MustCompile(`(?s)((?:  //[^\n]*\n)+)  rpc (\w+)\(`)
	scopes := map[string]string{}
	last := regexp.MustCompile(`\b(read|write|operator|admin)(; never (?:to|by) a task)?\.$`)
	for _, m := range comment.FindAllStringSubmatch(string(proto), -1) {
		text := strings.Join(strings.Fields(strings.ReplaceAll(m[1], "//", "")), " ")
		if end := last.FindStringSubmatch(text); end != nil {
			scopes[m[2]] = end[1]
		}
	}
	for i, m := range methods {
		d, rule := service.Get(i), routes.HTTP.Rules[i]
		if string(d.Name()) != m.Name || d.IsStreamingServer() != m.Stream || d.IsStreamingClient() {
			t.Errorf("method %d is %s in the service (stream: %v), %s in the table (stream: %v)", i, d.Name(), d.IsStreamingServer(), m.Name, m.Stream)
		}
		route := strings.TrimSpace("GET " + rule.Get)
		if rule.Post != "" {
			route = "POST " + rule.Post
		}
		if rule.Selector != "pact.agent.v1.AgentService."+m.Name || route != m.REST {
			t.Errorf("%s: gateway.yaml has %s %s, the table %s", m.Name, rule.Selector, route, m.REST)
		}
		if scopes[m.Name] != string(m.Scope) {
			t.Errorf("%s: agent.proto says %q, the table %q", m.Name, scopes[m.Name], m.Scope)
		}
	}
}
