package control

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// Checked is an agent in this process that refuses what the running one's control plane
// refuses (CP-3), in the same words: what a command prints does not depend on which of
// the two it works with.
type Checked struct{ *agent.Agent }

// Send is [agent.Agent.Send].
func (a Checked) Send(ctx context.Context, who agent.Caller, req agent.SendRequest) (agent.Result, error) {
	if err := checked(ctx, sendRequest(req)); err != nil {
		return asResult(agent.Result{}, err)
	}
	return a.Agent.Send(ctx, who, req)
}

// Reconcile is [agent.Agent.Reconcile].
func (a Checked) Reconcile(ctx context.Context, who agent.Caller, req agent.ReconcileRequest) (agent.Result, error) {
	if err := checked(ctx, reconcileRequest(req)); err != nil {
		return asResult(agent.Result{}, err)
	}
	return a.Agent.Reconcile(ctx, who, req)
}

// Authorize is [agent.Agent.Authorize].
func (a Checked) Authorize(ctx context.Context, who agent.Caller, req agent.AuthorizeRequest) (agent.Result, error) {
	if err := checked(ctx, authorizeRequest(req)); err != nil {
		return asResult(agent.Result{}, err)
	}
	return a.Agent.Authorize(ctx, who, req)
}

// Discover is [agent.Agent.Discover].
func (a Checked) Discover(ctx context.Context, who agent.Caller, req agent.DiscoverRequest) (agent.BusinessView, error) {
	if err := checked(ctx, discoverRequest(req)); err != nil {
		return agent.BusinessView{}, err
	}
	return a.Agent.Discover(ctx, who, req)
}

func checked(ctx context.Context, req proto.Message) error {
	err := checkUTF8(req)
	if err == nil {
		err = checkRequest(req)
	}
	return fromStatus(ctx, "here", err)
}

func sendRequest(req agent.SendRequest) *agentv1.SendMessageRequest {
	return &agentv1.SendMessageRequest{
		Business: req.Business, Message: req.Message, Effect: req.Effect, Scopes: req.Scopes, Conversation: req.Conversation,
	}
}

func reconcileRequest(req agent.ReconcileRequest) *agentv1.ReconcileRequest {
	return &agentv1.ReconcileRequest{Business: req.Business, Conversation: req.Conversation}
}

func authorizeRequest(req agent.AuthorizeRequest) *agentv1.StartAuthorizationRequest {
	return &agentv1.StartAuthorizationRequest{Business: req.Business, Scopes: req.Scopes, Purpose: req.Purpose}
}

func discoverRequest(req agent.DiscoverRequest) *agentv1.DiscoverBusinessRequest {
	return &agentv1.DiscoverBusinessRequest{Domain: req.Domain, CardUrl: req.CardURL, Refresh: req.Refresh}
}
