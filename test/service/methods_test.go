package service

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// office is a world with a running agent in which every method has something to work
// on.
type office struct {
	*world
	*serving
	t     *testing.T
	owner face
	n     int
}

// text is a new one each time.
func (o *office) text(format string) string {
	o.n++
	return fmt.Sprintf(format, o.n)
}

// ask sends an inspection with a permission and returns how it ended.
func (o *office) ask() *agentv1.Result {
	o.t.Helper()
	r := result(o.t, o.owner, "SendMessage", &agentv1.SendMessageRequest{
		Business: o.card, Message: o.text("Show trip %d"), Effect: "inspect", Scopes: []string{mayRead},
	})
	if r.Status != "replied" {
		o.t.Fatalf("an inspection: %v", r)
	}
	return r
}

// pendingSignIn begins a sign-in for what nobody allows here.
func (o *office) pendingSignIn() string {
	o.t.Helper()
	r := result(o.t, o.owner, "StartAuthorization", &agentv1.StartAuthorizationRequest{Business: o.card, Scopes: []string{mayPast}})
	if r.GetAuthorization().GetState() != "pending" {
		o.t.Fatalf("a sign-in: %v", r)
	}
	return r.Authorization.Id
}

// approval asks for a change that takes the owner's word.
func (o *office) approval() *agentv1.Approval {
	o.t.Helper()
	r := result(o.t, o.owner, "SendMessage", &agentv1.SendMessageRequest{
		Business: o.card, Message: o.text("Cancel booking X%d"), Effect: "change", Scopes: []string{mayRead},
	})
	if r.Status != "local_approval_required" || r.GetApproval().GetId() == "" {
		o.t.Fatalf("a change: %v", r)
	}
	return r.Approval
}

// review has a business reply without a receipt.
func (o *office) review() *agentv1.Review {
	o.t.Helper()
	o.faults("receipt-none*1")
	o.ask()
	o.faults()
	for _, v := range one[*agentv1.ListReviewsResponse](o.t, o.owner, "ListReviews", &agentv1.ListReviewsRequest{}).Reviews {
		if v.Kind == "evidence" {
			return v
		}
	}
	o.t.Fatal("nothing to review")
	return nil
}

// grant is an active one, which is made if there is none.
func (o *office) grant() string {
	o.t.Helper()
	for _, g := range one[*agentv1.ListGrantsResponse](o.t, o.owner, "ListGrants", &agentv1.ListGrantsRequest{}).Grants {
		if g.State == "active" {
			return g.Id
		}
	}
	op := begin(o.t, o.owner, "StartAuthorization", &agentv1.StartAuthorizationRequest{Business: o.card, Scopes: []string{mayRead}, WaitForSignIn: true})
	z := op.until("the sign-in", func(u *agentv1.OperationUpdate) bool { return u.GetAuthorization() != nil }).GetAuthorization()
	o.allow(z.Id)
	r := op.result()
	if r.GetGrant().GetState() != "active" {
		o.t.Fatalf("a sign-in: %v", r)
	}
	return r.Grant.Id
}

// allow signs in at the business.
func (o *office) allow(authorization string) {
	o.t.Helper()
	s := one[*agentv1.SignIn](o.t, o.owner, "GetSignIn", &agentv1.GetSignInRequest{Id: authorization})
	if err := o.world.signIn(s.Link); err != nil {
		o.t.Fatal(err)
	}
}

// method is a way to call one, and what must come of it.
type method struct {
	name    string
	scope   string // the least that may
	request func(o *office) proto.Message
	holds   func(last proto.Message) bool
	first   bool // its stream goes on: one answer is enough
}

func replied(m proto.Message) bool { return ended(m, "replied") }

func ended(m proto.Message, status string) bool {
	u, ok := m.(*agentv1.OperationUpdate)
	return ok && u.GetResult().GetStatus() == status
}

// methods are all, those last that end what others need.
func methods() []method {
	plain := func(m proto.Message) func(*office) proto.Message { return func(*office) proto.Message { return m } }
	return []method{
		{name: "GetStatus", scope: "read", request: plain(&agentv1.GetStatusRequest{}),
			holds: func(m proto.Message) bool {
				v := m.(*agentv1.Status)
				return v.Ready && v.Identity.GetIssuer() == issuer.URL && v.Process.GetTimeScale() == timeScale
			}},
		{name: "GetSettings", scope: "read", request: plain(&agentv1.GetSettingsRequest{}),
			holds: func(m proto.Message) bool { return m.(*agentv1.Settings).Available }},
		{name: "UpdateSettings", scope: "admin", request: plain(&agentv1.UpdateSettingsRequest{Preference: proto.String("require-pact")}),
			holds: func(m proto.Message) bool { return m.(*agentv1.Settings).Preference == "require-pact" }},
		{name: "ListProviders", scope: "read", request: plain(&agentv1.ListProvidersRequest{}),
			holds: func(m proto.Message) bool { return len(m.(*agentv1.ListProvidersResponse).Providers) > 0 }},
		{name: "SetProvider", scope: "admin", request: func(o *office) proto.Message {
			return &agentv1.SetProviderRequest{Origin: o.text("https://p%d.example"), Audience: o.text("audience-%d")}
		}, holds: func(m proto.Message) bool { return strings.HasPrefix(m.(*agentv1.Provider).Audience, "audience-") }},
		{name: "RemoveProvider", scope: "admin", request: func(o *office) proto.Message {
			origin := o.text("https://p%d.example")
			one[*agentv1.Provider](o.t, o.owner, "SetProvider", &agentv1.SetProviderRequest{Origin: origin, Audience: o.text("audience-%d")})
			return &agentv1.RemoveProviderRequest{Origin: origin}
		}},
		{name: "DiscoverBusiness", scope: "write", request: func(o *office) proto.Message {
			return &agentv1.DiscoverBusinessRequest{CardUrl: o.card}
		}, holds: func(m proto.Message) bool { return m.(*agentv1.Business).Name == "Trips" }},
		{name: "ListBusinesses", scope: "read", request: plain(&agentv1.ListBusinessesRequest{}),
			holds: func(m proto.Message) bool { return len(m.(*agentv1.ListBusinessesResponse).Businesses) == 1 }},
		{name: "SendMessage", scope: "operator", request: func(o *office) proto.Message {
			return &agentv1.SendMessageRequest{Business: o.card, Message: o.text("Show trip %d"), Scopes: []string{mayRead}}
		}, holds: replied},
		{name: "Reconcile", scope: "operator", request: func(o *office) proto.Message {
			o.grant()
			r := result(o.t, o.owner, "SendMessage", &agentv1.SendMessageRequest{Business: o.card, Message: o.text("Show trip %d"), Scopes: []string{mayRead}})
			o.faults("drop-after*1")
			r = result(o.t, o.owner, "SendMessage", &agentv1.SendMessageRequest{
				Business: o.card, Message: o.text("Show trip %d"), Scopes: []string{mayRead}, Conversation: r.Conversation,
			})
			o.faults()
			return &agentv1.ReconcileRequest{Business: o.card, Conversation: r.Conversation}
		}, holds: replied},
		{name: "ListConversations", scope: "read", request: plain(&agentv1.ListConversationsRequest{}),
			holds: func(m proto.Message) bool { return len(m.(*agentv1.ListConversationsResponse).Conversations) > 0 }},
		{name: "GetConversation", scope: "read", request: func(o *office) proto.Message {
			return &agentv1.GetConversationRequest{Id: o.ask().Conversation}
		}, holds: func(m proto.Message) bool { return len(m.(*agentv1.Conversation).Messages) > 0 }},
		{name: "GetTranscript", scope: "read", request: func(o *office) proto.Message {
			return &agentv1.GetTranscriptRequest{Conversation: o.ask().Conversation}
		}, holds: func(m proto.Message) bool {
			turns := m.(*agentv1.Transcript).Turns
			return len(turns) > 0 && turns[len(turns)-1].Reply.GetUntrusted()
		}},
		{name: "StartAuthorization", scope: "operator", request: func(o *office) proto.Message {
			return &agentv1.StartAuthorizationRequest{Business: o.card, Scopes: []string{mayPast}, Purpose: "to see"}
		}, holds: func(m proto.Message) bool { return ended(m, "needs_user_action") }},
		{name: "ListAuthorizations", scope: "read", request: plain(&agentv1.ListAuthorizationsRequest{}),
			holds: func(m proto.Message) bool { return len(m.(*agentv1.ListAuthorizationsResponse).Authorizations) > 0 }},
		{name: "GetAuthorization", scope: "read", request: func(o *office) proto.Message {
			return &agentv1.GetAuthorizationRequest{Id: o.pendingSignIn()}
		}, holds: func(m proto.Message) bool { return m.(*agentv1.Authorization).State == "pending" }},
		{name: "GetAuthorizationStatus", scope: "read", request: func(o *office) proto.Message {
			return &agentv1.GetAuthorizationStatusRequest{Id: o.pendingSignIn()}
		}, holds: func(m proto.Message) bool { return m.(*agentv1.AuthorizationStatus).State == "pending" }},
		{name: "GetSignIn", scope: "operator", request: func(o *office) proto.Message {
			return &agentv1.GetSignInRequest{Id: o.pendingSignIn()}
		}, holds: func(m proto.Message) bool { return strings.Contains(m.(*agentv1.SignIn).Link, "user_code") }},
		{name: "CancelAuthorization", scope: "operator", request: func(o *office) proto.Message {
			return &agentv1.CancelAuthorizationRequest{Id: o.pendingSignIn()}
		}, holds: func(m proto.Message) bool { return m.(*agentv1.Authorization).State == "cancelled" }},
		{name: "WaitAuthorization", scope: "read", request: func(o *office) proto.Message { // it has ended
			id := o.pendingSignIn()
			one[*agentv1.Authorization](o.t, o.owner, "CancelAuthorization", &agentv1.CancelAuthorizationRequest{Id: id})
			return &agentv1.WaitAuthorizationRequest{Id: id}
		}, holds: func(m proto.Message) bool { return ended(m, "cancelled") }},
		{name: "ListReceipts", scope: "read", request: plain(&agentv1.ListReceiptsRequest{}),
			holds: func(m proto.Message) bool { return len(m.(*agentv1.ListReceiptsResponse).Receipts) > 0 }},
		{name: "GetReceipt", scope: "read", request: func(o *office) proto.Message {
			return &agentv1.GetReceiptRequest{Id: o.ask().Evidence.Receipt}
		}, holds: func(m proto.Message) bool { return m.(*agentv1.Receipt).Verdict == "verified" }},
		{name: "VerifyReceipt", scope: "operator", request: func(o *office) proto.Message {
			return &agentv1.VerifyReceiptRequest{Id: o.ask().Evidence.Receipt}
		}, holds: func(m proto.Message) bool { return m.(*agentv1.Receipt).Recheck.GetVerdict() == "verified" }},
		{name: "ListApprovals", scope: "read", request: func(o *office) proto.Message {
			o.approval()
			return &agentv1.ListApprovalsRequest{}
		}, holds: func(m proto.Message) bool { return len(m.(*agentv1.ListApprovalsResponse).Approvals) > 0 }},
		{name: "GetApproval", scope: "read", request: func(o *office) proto.Message {
			return &agentv1.GetApprovalRequest{Id: o.approval().Id}
		}, holds: func(m proto.Message) bool {
			v := m.(*agentv1.Approval)
			return v.State == "pending" && strings.HasPrefix(v.Message, "Cancel booking X") && v.Digest != "" && v.Destination != "" && v.Effect == "change"
		}},
		{name: "DecideApproval", scope: "admin", request: func(o *office) proto.Message {
			v := o.approval()
			return &agentv1.DecideApprovalRequest{Id: v.Id, Decision: "approve", Digest: v.Digest}
		}, holds: replied},
		{name: "ListReviews", scope: "read", request: func(o *office) proto.Message {
			o.review()
			return &agentv1.ListReviewsRequest{}
		}, holds: func(m proto.Message) bool { return len(m.(*agentv1.ListReviewsResponse).Reviews) > 0 }},
		{name: "GetReview", scope: "read", request: func(o *office) proto.Message {
			return &agentv1.GetReviewRequest{Id: o.review().Id}
		}, holds: func(m proto.Message) bool { return m.(*agentv1.Review).Verdict == "missing" }},
		{name: "AcknowledgeEvidence", scope: "operator", request: func(o *office) proto.Message {
			return &agentv1.AcknowledgeEvidenceRequest{Id: o.review().Id}
		}, holds: func(m proto.Message) bool { return !m.(*agentv1.Review).Open }},
		{name: "RunDoctor", scope: "operator", request: plain(&agentv1.RunDoctorRequest{}),
			holds: func(m proto.Message) bool { return len(m.(*agentv1.RunDoctorResponse).Checks) > 3 }},
		{name: "WatchEvents", scope: "read", first: true, request: plain(&agentv1.WatchEventsRequest{}),
			holds: func(m proto.Message) bool { return m.(*agentv1.ChangeEvent).Kind == "watching" }},
		{name: "ListGrants", scope: "read", request: plain(&agentv1.ListGrantsRequest{}),
			holds: func(m proto.Message) bool { return len(m.(*agentv1.ListGrantsResponse).Grants) > 0 }},
		{name: "DisconnectGrant", scope: "operator", request: func(o *office) proto.Message {
			return &agentv1.DisconnectGrantRequest{Id: o.grant()}
		}, holds: func(m proto.Message) bool { return m.(*agentv1.Disconnection).Grant.GetState() == "disconnected" }},
		{name: "EnrollDeviceKey", scope: "admin", request: plain(&agentv1.EnrollDeviceKeyRequest{SignerUrl: issuer.URL}),
			holds: func(m proto.Message) bool { return m.(*agentv1.Identity).Mode == "device" }},
		{name: "SetCredential", scope: "admin", request: func(o *office) proto.Message {
			return &agentv1.SetCredentialRequest{SignerUrl: issuer.URL, Credential: o.credential()}
		}, holds: func(m proto.Message) bool { return m.(*agentv1.Identity).Mode == "credential" }},
	}
}

// credential makes one at the signer, as its operator.
func (o *office) credential() string {
	o.t.Helper()
	file := filepath.Join(o.home, o.text("credential-%d"))
	code, stdout, stderr := o.pactctl("credentials", "create", "--server", issuer.Admin, "--token-file", issuer.Token,
		"--name", fmt.Sprintf("%s-%d", filepath.Base(o.home), o.n)+o.text("-%d"), "--out", file)
	if code != 0 {
		o.t.Fatalf("credentials create: exit %d\n%s%s", code, stdout, stderr)
	}
	return o.secret(file)
}

func (o *office) secret(file string) string {
	o.t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		o.t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// token makes a token of a scope for the running agent.
func (o *office) token(scope string) string {
	o.t.Helper()
	file := filepath.Join(o.home, "token-"+scope)
	code, stdout, stderr := o.pactctl("agent", "tokens", "create", "--name", "the-"+scope, "--scope", scope, "--out", file)
	if code != 0 {
		o.t.Fatalf("tokens create: exit %d\n%s%s", code, stdout, stderr)
	}
	return o.secret(file)
}

// CP-1: every method works over the socket for its owner, and over the loopback
// address with a token of its least scope; with the scope below it is refused, and
// without any.
func TestEveryMethod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allows(mayRead)
	s := w.serve("--listen", "127.0.0.1:0")
	o := &office{world: w, serving: s, t: t, owner: s.owner()}

	below := map[string]string{"read": "", "write": "read", "operator": "write", "admin": "operator"}
	tokens := map[string]string{"": ""}
	for scope := range below {
		tokens[scope] = o.token(scope)
	}
	type way struct {
		name  string
		owner face
		with  func(token string) face
	}
	host := strings.TrimPrefix(s.Listen, "http://")
	ways := []way{
		{"gRPC", o.owner, func(token string) face { return s.grpc(host, token) }},
		{"REST", s.restOwner(), func(token string) face { return s.rest(token) }},
	}
	done := map[string]bool{}
	for _, m := range methods() {
		done[m.name] = true
		works := func(what string, f face) {
			t.Helper()
			req := m.request(o)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			all, err := f.call(ctx, m.name, req, func(proto.Message) bool { return !m.first })
			if err != nil || len(all) == 0 || m.holds != nil && !m.holds(all[len(all)-1]) {
				last := ""
				if len(all) > 0 {
					last = protojson.Format(all[len(all)-1])
				}
				t.Errorf("%s %s: %d answers, %v\n%s", m.name, what, len(all), err, last)
			}
		}
		for _, way := range ways {
			req := m.request(o)
			for _, less := range []string{below[m.scope], ""} {
				want := "SCOPE_REQUIRED"
				if less == "" {
					want = "UNAUTHENTICATED"
				}
				_, err := way.with(tokens[less]).call(t.Context(), m.name, req, func(proto.Message) bool { return false })
				if codeOf(err) != want {
					t.Errorf("%s over %s with scope %q: %v, want %s", m.name, way.name, less, err, want)
				}
			}
			works("over "+way.name+" and the socket", way.owner)
			works("over "+way.name+" with scope "+m.scope, way.with(tokens[m.scope]))
		}
	}
	for i := range service.Methods().Len() {
		if name := string(service.Methods().Get(i).Name()); !done[name] {
			t.Errorf("%s is not called", name)
		}
	}
	for _, token := range tokens {
		if token != "" && strings.Contains(s.log.String(), token) {
			t.Error("a token is in the log")
		}
	}
}
