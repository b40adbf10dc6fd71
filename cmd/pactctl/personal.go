package main

import (
	"context"

	"github.com/pactsigner/pactsigner/agent"
)

// personal is the agent that a command works with: one in this process, or the
// running one behind its control plane.
type personal interface {
	Acknowledge(context.Context, agent.Caller, string) (agent.ReviewItem, error)
	AddProvider(ctx context.Context, c agent.Caller, origin, audience, label string) (agent.ProviderView, error)
	Approval(context.Context, agent.Caller, string) (agent.ApprovalView, error)
	Approvals(ctx context.Context, c agent.Caller, all bool) ([]agent.ApprovalView, error)
	Authorizations(context.Context, agent.Caller) ([]agent.AuthorizationView, error)
	Authorize(context.Context, agent.Caller, agent.AuthorizeRequest) (agent.Result, error)
	Businesses(context.Context, agent.Caller) ([]agent.BusinessView, error)
	CancelAuthorization(context.Context, agent.Caller, string) (agent.AuthorizationView, error)
	Conversation(context.Context, agent.Caller, string) (agent.ConversationView, error)
	Conversations(context.Context, agent.Caller) ([]agent.ConversationView, error)
	Decide(context.Context, agent.Caller, agent.Decision) (agent.Result, error)
	Disconnect(context.Context, agent.Caller, string) (agent.DisconnectView, error)
	Discover(context.Context, agent.Caller, agent.DiscoverRequest) (agent.BusinessView, error)
	Doctor(context.Context, agent.Caller) ([]agent.Check, error)
	Enroll(context.Context, agent.Caller, agent.EnrollRequest) (agent.IdentityView, error)
	Grants(context.Context, agent.Caller) ([]agent.GrantView, error)
	Policy(context.Context, agent.Caller) (agent.PolicyView, error)
	Providers(context.Context, agent.Caller) ([]agent.ProviderView, error)
	Receipt(context.Context, agent.Caller, string) (agent.ReceiptView, error)
	Receipts(context.Context, agent.Caller) ([]agent.ReceiptView, error)
	Reconcile(context.Context, agent.Caller, agent.ReconcileRequest) (agent.Result, error)
	RemoveProvider(ctx context.Context, c agent.Caller, origin string) error
	Review(context.Context, agent.Caller, string) (agent.ReviewItem, error)
	Reviews(ctx context.Context, c agent.Caller, all bool) ([]agent.ReviewItem, error)
	Send(context.Context, agent.Caller, agent.SendRequest) (agent.Result, error)
	SetEnabled(ctx context.Context, c agent.Caller, on bool) error
	SetPreference(context.Context, agent.Caller, agent.Preference) error
	Status(context.Context, agent.Caller) (agent.StatusView, error)
	Transcript(context.Context, agent.Caller, string) (agent.Transcript, error)
	VerifyStoredReceipt(context.Context, agent.Caller, string) (agent.ReceiptView, error)
	WaitAuthorization(context.Context, agent.Caller, string) (agent.Result, error)
}
