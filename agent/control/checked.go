package control

import (
	"context"
	"strings"

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

// AddProvider is [agent.Agent.AddProvider].
func (a Checked) AddProvider(ctx context.Context, who agent.Caller, origin, audience, label string) (agent.ProviderView, error) {
	if err := checked(ctx, providerRequest(origin, audience, label)); err != nil {
		return agent.ProviderView{}, err
	}
	return a.Agent.AddProvider(ctx, who, origin, audience, label)
}

// RemoveProvider is [agent.Agent.RemoveProvider].
func (a Checked) RemoveProvider(ctx context.Context, who agent.Caller, origin string) error {
	if err := checked(ctx, &agentv1.RemoveProviderRequest{Origin: origin}); err != nil {
		return err
	}
	return a.Agent.RemoveProvider(ctx, who, origin)
}

func checked(ctx context.Context, req proto.Message) error {
	err := checkUTF8(req)
	if err == nil {
		err = checkRequest(req)
	}
	return fromStatus(context.WithoutCancel(ctx), "", err)
}

func sendRequest(req agent.SendRequest) *agentv1.SendMessageRequest {
	return &agentv1.SendMessageRequest{
		Business: req.Business, Message: req.Message, Effect: req.Effect, Scopes: scopeSet(req.Scopes), Conversation: req.Conversation,
	}
}

func reconcileRequest(req agent.ReconcileRequest) *agentv1.ReconcileRequest {
	return &agentv1.ReconcileRequest{Business: req.Business, Conversation: req.Conversation}
}

func authorizeRequest(req agent.AuthorizeRequest) *agentv1.StartAuthorizationRequest {
	return &agentv1.StartAuthorizationRequest{Business: req.Business, Scopes: scopeSet(req.Scopes), Purpose: req.Purpose}
}

func discoverRequest(req agent.DiscoverRequest) *agentv1.DiscoverBusinessRequest {
	return &agentv1.DiscoverBusinessRequest{Domain: req.Domain, CardUrl: req.CardURL, Refresh: req.Refresh}
}

func providerRequest(origin, audience, label string) *agentv1.SetProviderRequest {
	return &agentv1.SetProviderRequest{Origin: origin, Audience: strings.TrimSpace(audience), Label: strings.TrimSpace(label)}
}

// scopeSet is permissions as the agent itself reads them: each once.
func scopeSet(scopes []string) []string { return agent.ScopeSet(strings.Join(scopes, " ")) }
