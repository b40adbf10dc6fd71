package control

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// rpc stands for the generated client where one of its methods is named.
type rpc = agentv1.AgentServiceClient

// Status is [agent.Agent.Status].
func (c *Client) Status(ctx context.Context, who agent.Caller) (agent.StatusView, error) {
	return fetch[agent.StatusView](ctx, c, who, rpc.GetStatus, &agentv1.GetStatusRequest{})
}

// Policy is [agent.Agent.Policy].
func (c *Client) Policy(ctx context.Context, who agent.Caller) (agent.PolicyView, error) {
	return fetch[agent.PolicyView](ctx, c, who, rpc.GetSettings, &agentv1.GetSettingsRequest{})
}

// SetEnabled is [agent.Agent.SetEnabled].
func (c *Client) SetEnabled(ctx context.Context, who agent.Caller, on bool) error {
	return c.update(ctx, who, &agentv1.UpdateSettingsRequest{Enabled: &on})
}

// SetPreference is [agent.Agent.SetPreference].
func (c *Client) SetPreference(ctx context.Context, who agent.Caller, p agent.Preference) error {
	return c.update(ctx, who, &agentv1.UpdateSettingsRequest{Preference: proto.String(string(p))})
}

func (c *Client) update(ctx context.Context, who agent.Caller, req *agentv1.UpdateSettingsRequest) error {
	_, err := fetch[agent.PolicyView](ctx, c, who, rpc.UpdateSettings, req)
	return err
}

// Providers is [agent.Agent.Providers].
func (c *Client) Providers(ctx context.Context, who agent.Caller) ([]agent.ProviderView, error) {
	return list[agent.ProviderView](ctx, c, who, rpc.ListProviders, func(token string) *agentv1.ListProvidersRequest {
		return &agentv1.ListProvidersRequest{PageSize: maxPage, PageToken: token}
	}, (*agentv1.ListProvidersResponse).GetProviders)
}

// AddProvider is [agent.Agent.AddProvider].
func (c *Client) AddProvider(ctx context.Context, who agent.Caller, origin, audience, label string) (agent.ProviderView, error) {
	return fetch[agent.ProviderView](ctx, c, who, rpc.SetProvider, providerRequest(origin, audience, label))
}

// RemoveProvider is [agent.Agent.RemoveProvider].
func (c *Client) RemoveProvider(ctx context.Context, who agent.Caller, origin string) error {
	_, err := fetch[struct{}](ctx, c, who, rpc.RemoveProvider, &agentv1.RemoveProviderRequest{Origin: origin})
	return err
}

// Enroll is [agent.Agent.Enroll].
func (c *Client) Enroll(ctx context.Context, who agent.Caller, req agent.EnrollRequest) (agent.IdentityView, error) {
	if req.Credential != "" {
		return fetch[agent.IdentityView](ctx, c, who, rpc.SetCredential, &agentv1.SetCredentialRequest{
			SignerUrl: req.SignerURL, Issuer: req.Issuer, Credential: req.Credential.Reveal(), Deployment: string(req.Deployment),
		})
	}
	return fetch[agent.IdentityView](ctx, c, who, rpc.EnrollDeviceKey, &agentv1.EnrollDeviceKeyRequest{
		SignerUrl: req.SignerURL, Issuer: req.Issuer, EnrollmentToken: req.Token.Reveal(), Deployment: string(req.Deployment),
	})
}

// Businesses is [agent.Agent.Businesses].
func (c *Client) Businesses(ctx context.Context, who agent.Caller) ([]agent.BusinessView, error) {
	return list[agent.BusinessView](ctx, c, who, rpc.ListBusinesses, func(token string) *agentv1.ListBusinessesRequest {
		return &agentv1.ListBusinessesRequest{PageSize: maxPage, PageToken: token}
	}, (*agentv1.ListBusinessesResponse).GetBusinesses)
}

// Discover is [agent.Agent.Discover].
func (c *Client) Discover(ctx context.Context, who agent.Caller, req agent.DiscoverRequest) (agent.BusinessView, error) {
	return fetch[agent.BusinessView](ctx, c, who, rpc.DiscoverBusiness, discoverRequest(req))
}

// Conversations is [agent.Agent.Conversations].
func (c *Client) Conversations(ctx context.Context, who agent.Caller) ([]agent.ConversationView, error) {
	return list[agent.ConversationView](ctx, c, who, rpc.ListConversations, func(token string) *agentv1.ListConversationsRequest {
		return &agentv1.ListConversationsRequest{PageSize: maxPage, PageToken: token}
	}, (*agentv1.ListConversationsResponse).GetConversations)
}

// Conversation is [agent.Agent.Conversation].
func (c *Client) Conversation(ctx context.Context, who agent.Caller, id string) (agent.ConversationView, error) {
	return fetch[agent.ConversationView](ctx, c, who, rpc.GetConversation, &agentv1.GetConversationRequest{Id: id})
}

// Transcript is [agent.Agent.Transcript].
func (c *Client) Transcript(ctx context.Context, who agent.Caller, conversation string) (agent.Transcript, error) {
	return fetch[agent.Transcript](ctx, c, who, rpc.GetTranscript, &agentv1.GetTranscriptRequest{Conversation: conversation})
}

// Authorizations is [agent.Agent.Authorizations].
func (c *Client) Authorizations(ctx context.Context, who agent.Caller) ([]agent.AuthorizationView, error) {
	return list[agent.AuthorizationView](ctx, c, who, rpc.ListAuthorizations, func(token string) *agentv1.ListAuthorizationsRequest {
		return &agentv1.ListAuthorizationsRequest{PageSize: maxPage, PageToken: token}
	}, (*agentv1.ListAuthorizationsResponse).GetAuthorizations)
}

// Authorization is [agent.Agent.Authorization].
func (c *Client) Authorization(ctx context.Context, who agent.Caller, id string) (agent.AuthorizationView, error) {
	return fetch[agent.AuthorizationView](ctx, c, who, rpc.GetAuthorization, &agentv1.GetAuthorizationRequest{Id: id})
}

// CancelAuthorization is [agent.Agent.CancelAuthorization].
func (c *Client) CancelAuthorization(ctx context.Context, who agent.Caller, id string) (agent.AuthorizationView, error) {
	return fetch[agent.AuthorizationView](ctx, c, who, rpc.CancelAuthorization, &agentv1.CancelAuthorizationRequest{Id: id})
}

// Grants is [agent.Agent.Grants].
func (c *Client) Grants(ctx context.Context, who agent.Caller) ([]agent.GrantView, error) {
	return list[agent.GrantView](ctx, c, who, rpc.ListGrants, func(token string) *agentv1.ListGrantsRequest {
		return &agentv1.ListGrantsRequest{PageSize: maxPage, PageToken: token}
	}, (*agentv1.ListGrantsResponse).GetGrants)
}

// Disconnect is [agent.Agent.Disconnect].
func (c *Client) Disconnect(ctx context.Context, who agent.Caller, grantID string) (agent.DisconnectView, error) {
	return fetch[agent.DisconnectView](ctx, c, who, rpc.DisconnectGrant, &agentv1.DisconnectGrantRequest{Id: grantID})
}

// Receipts is [agent.Agent.Receipts].
func (c *Client) Receipts(ctx context.Context, who agent.Caller) ([]agent.ReceiptView, error) {
	return list[agent.ReceiptView](ctx, c, who, rpc.ListReceipts, func(token string) *agentv1.ListReceiptsRequest {
		return &agentv1.ListReceiptsRequest{PageSize: maxPage, PageToken: token}
	}, (*agentv1.ListReceiptsResponse).GetReceipts)
}

// Receipt is [agent.Agent.Receipt].
func (c *Client) Receipt(ctx context.Context, who agent.Caller, id string) (agent.ReceiptView, error) {
	return fetch[agent.ReceiptView](ctx, c, who, rpc.GetReceipt, &agentv1.GetReceiptRequest{Id: id})
}

// VerifyStoredReceipt is [agent.Agent.VerifyStoredReceipt].
func (c *Client) VerifyStoredReceipt(ctx context.Context, who agent.Caller, id string) (agent.ReceiptView, error) {
	return fetch[agent.ReceiptView](ctx, c, who, rpc.VerifyReceipt, &agentv1.VerifyReceiptRequest{Id: id})
}

// Reviews is [agent.Agent.Reviews].
func (c *Client) Reviews(ctx context.Context, who agent.Caller, all bool) ([]agent.ReviewItem, error) {
	return list[agent.ReviewItem](ctx, c, who, rpc.ListReviews, func(token string) *agentv1.ListReviewsRequest {
		return &agentv1.ListReviewsRequest{All: all, PageSize: maxPage, PageToken: token}
	}, (*agentv1.ListReviewsResponse).GetReviews)
}

// Review is [agent.Agent.Review].
func (c *Client) Review(ctx context.Context, who agent.Caller, id string) (agent.ReviewItem, error) {
	return fetch[agent.ReviewItem](ctx, c, who, rpc.GetReview, &agentv1.GetReviewRequest{Id: id})
}

// Acknowledge is [agent.Agent.Acknowledge].
func (c *Client) Acknowledge(ctx context.Context, who agent.Caller, id string) (agent.ReviewItem, error) {
	return fetch[agent.ReviewItem](ctx, c, who, rpc.AcknowledgeEvidence, &agentv1.AcknowledgeEvidenceRequest{Id: id})
}

// Approvals is [agent.Agent.Approvals].
func (c *Client) Approvals(ctx context.Context, who agent.Caller, all bool) ([]agent.ApprovalView, error) {
	return list[agent.ApprovalView](ctx, c, who, rpc.ListApprovals, func(token string) *agentv1.ListApprovalsRequest {
		return &agentv1.ListApprovalsRequest{All: all, PageSize: maxPage, PageToken: token}
	}, (*agentv1.ListApprovalsResponse).GetApprovals)
}

// Approval is [agent.Agent.Approval].
func (c *Client) Approval(ctx context.Context, who agent.Caller, id string) (agent.ApprovalView, error) {
	return fetch[agent.ApprovalView](ctx, c, who, rpc.GetApproval, &agentv1.GetApprovalRequest{Id: id})
}

// Doctor is [agent.Agent.Doctor].
func (c *Client) Doctor(ctx context.Context, who agent.Caller) ([]agent.Check, error) {
	md, err := c.task(who)
	if err != nil {
		return nil, err
	}
	m, err := invoke(ctx, c, md, rpc.RunDoctor, &agentv1.RunDoctorRequest{})
	if err != nil {
		return nil, err
	}
	return viewsOf[agent.Check](m.Checks)
}
