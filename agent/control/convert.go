package control

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// A view of the agent and its message have the same members in JSON, and each becomes
// the other through that: what a surface prints of one is what it prints of the
// other, and a member that one of them has alone is an error and not a loss.

// messagePtr is the pointer to a message type.
type messagePtr[M any] interface {
	*M
	proto.Message
}

// messageOf is the message of a view.
func messageOf[M any, P messagePtr[M]](view any) (P, error) {
	m := P(new(M))
	doc, err := json.Marshal(view, jsontext.AllowInvalidUTF8(true)) // no message may hold it
	if err == nil {
		err = protojson.Unmarshal(doc, m)
	}
	if err != nil {
		return nil, fmt.Errorf("write a %T as a %s: %w", view, m.ProtoReflect().Descriptor().Name(), err)
	}
	return m, nil
}

// messagesOf are the messages of views.
func messagesOf[M any, P messagePtr[M], V any](views []V) ([]P, error) {
	out := make([]P, len(views))
	for i, v := range views {
		m, err := messageOf[M, P](v)
		if err != nil {
			return nil, err
		}
		out[i] = m
	}
	return out, nil
}

// viewOf is the view of a message. What the control plane alone tells is left out.
func viewOf[V any](m proto.Message) (V, error) {
	var v V
	if s, ok := m.(*agentv1.Status); ok && s.Process != nil {
		s = proto.CloneOf(s)
		s.Process, m = nil, s
	}
	doc, err := protojson.Marshal(m)
	if err == nil {
		err = json.Unmarshal(doc, &v, json.RejectUnknownMembers(true))
	}
	if err != nil {
		return v, fmt.Errorf("read a %s as a %T: %w", m.ProtoReflect().Descriptor().Name(), v, err)
	}
	return v, nil
}

// viewsOf are the views of messages; none are an empty list, as the agent gives it.
func viewsOf[V any, M proto.Message](messages []M) ([]V, error) {
	out := make([]V, len(messages))
	for i, m := range messages {
		v, err := viewOf[V](m)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// approvalView is what is to be decided, as a view.
func approvalView(r agent.ApprovalRequest) agent.ApprovalView {
	v := agent.ApprovalView{
		ID: r.ID, BusinessName: r.Business, Destination: r.Destination, Message: r.Message, Effect: r.Effect,
		Permissions: r.Scopes, Digest: r.Digest, Exceeds: r.Exceeds, TokenPermissions: r.TokenScopes,
		Changed: r.Changed, SentBefore: r.SentBefore,
	}
	for _, s := range r.Scopes {
		v.Scopes = append(v.Scopes, s.ID)
	}
	return v
}

// approvalRequest is a view as it is shown to who decides.
func approvalRequest(v agent.ApprovalView) agent.ApprovalRequest {
	return agent.ApprovalRequest{
		ID: v.ID, Business: v.BusinessName, Destination: v.Destination, Message: v.Message, Effect: v.Effect,
		Scopes: v.Permissions, Digest: v.Digest, Exceeds: v.Exceeds, TokenScopes: v.TokenPermissions,
		Changed: v.Changed, SentBefore: v.SentBefore,
	}
}

// signInMessage writes a sign-in's link and code out, member by member: nothing else
// reveals them.
func signInMessage(s agent.SignIn) (*agentv1.SignIn, error) {
	scopes, err := messagesOf[agentv1.Scope](s.Scopes)
	if err != nil {
		return nil, err
	}
	return &agentv1.SignIn{
		Authorization: s.Authorization, Business: s.Business, Link: s.Link.Reveal(), UserCode: s.UserCode.Reveal(),
		LinkOrigin: s.LinkOrigin, Matches: s.Matches, CardUrl: s.CardURL, CardChain: s.CardChain,
		InterfaceOrigin: s.InterfaceOrigin, AsOrigin: s.ASOrigin, Scopes: scopes, Purpose: s.Purpose,
		Expires: timestamppb.New(s.Expires),
	}, nil
}

// signInView is the way back.
func signInView(m *agentv1.SignIn) (agent.SignIn, error) {
	scopes, err := viewsOf[agent.Scope](m.Scopes)
	if err != nil {
		return agent.SignIn{}, err
	}
	return agent.SignIn{
		Authorization: m.Authorization, Business: m.Business, Link: agent.Secret(m.Link), UserCode: agent.Secret(m.UserCode),
		LinkOrigin: m.LinkOrigin, Matches: m.Matches, CardURL: m.CardUrl, CardChain: m.CardChain,
		InterfaceOrigin: m.InterfaceOrigin, ASOrigin: m.AsOrigin, Scopes: scopes, Purpose: m.Purpose,
		Expires: m.Expires.AsTime(),
	}, nil
}
