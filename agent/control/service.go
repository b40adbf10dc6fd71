package control

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// The methods that answer at once. Each is the agent's own, for the caller that the
// call has; what a caller may do was looked at before.

// answer is the message of what the agent says.
func answer[M any, P messagePtr[M], V any](view V, err error) (P, error) {
	if err != nil {
		return nil, err
	}
	return messageOf[M, P](view)
}

// GetStatus implements agentv1.AgentServiceServer.
func (s *Server) GetStatus(ctx context.Context, _ *agentv1.GetStatusRequest) (*agentv1.Status, error) {
	m, err := answer[agentv1.Status](s.agent.Status(ctx, s.as(ctx)))
	if err == nil {
		who, _ := callerOf(ctx)
		m.Process = &agentv1.Process{
			Version: s.cfg.Version, Started: timestamppb.New(s.started), TimeScale: int32(s.cfg.TimeScale), Scope: string(who.shown()),
		}
	}
	return m, err
}

// GetSettings implements agentv1.AgentServiceServer.
func (s *Server) GetSettings(ctx context.Context, _ *agentv1.GetSettingsRequest) (*agentv1.Settings, error) {
	return answer[agentv1.Settings](s.agent.Policy(ctx, s.as(ctx)))
}

// UpdateSettings implements agentv1.AgentServiceServer.
func (s *Server) UpdateSettings(ctx context.Context, req *agentv1.UpdateSettingsRequest) (*agentv1.Settings, error) {
	c, change := s.as(ctx), agent.SettingsChange{Enabled: req.Enabled}
	if req.Preference != nil {
		p := agent.Preference(*req.Preference)
		change.Preference = &p
	}
	if err := s.agent.ChangeSettings(ctx, c, change); err != nil {
		return nil, err
	}
	return answer[agentv1.Settings](s.agent.Policy(ctx, c))
}

// ListProviders implements agentv1.AgentServiceServer.
func (s *Server) ListProviders(ctx context.Context, req *agentv1.ListProvidersRequest) (*agentv1.ListProvidersResponse, error) {
	views, err := s.agent.Providers(ctx, s.as(ctx))
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf[agentv1.Provider]("providers", views, func(v agent.ProviderView) string { return v.Source + " " + v.Origin }, req)
	return &agentv1.ListProvidersResponse{Providers: page, NextPageToken: next}, err
}

// SetProvider implements agentv1.AgentServiceServer.
func (s *Server) SetProvider(ctx context.Context, req *agentv1.SetProviderRequest) (*agentv1.Provider, error) {
	return answer[agentv1.Provider](s.agent.AddProvider(ctx, s.as(ctx), req.Origin, req.Audience, req.Label))
}

// RemoveProvider implements agentv1.AgentServiceServer.
func (s *Server) RemoveProvider(ctx context.Context, req *agentv1.RemoveProviderRequest) (*agentv1.RemoveProviderResponse, error) {
	return &agentv1.RemoveProviderResponse{}, s.agent.RemoveProvider(ctx, s.as(ctx), req.Origin)
}

// SetCredential implements agentv1.AgentServiceServer.
func (s *Server) SetCredential(ctx context.Context, req *agentv1.SetCredentialRequest) (*agentv1.Identity, error) {
	return answer[agentv1.Identity](s.agent.Enroll(ctx, s.as(ctx), agent.EnrollRequest{
		SignerURL: req.SignerUrl, Issuer: req.Issuer, Credential: agent.Secret(req.Credential), Deployment: agent.Deployment(req.Deployment),
	}))
}

// EnrollDeviceKey implements agentv1.AgentServiceServer.
func (s *Server) EnrollDeviceKey(ctx context.Context, req *agentv1.EnrollDeviceKeyRequest) (*agentv1.Identity, error) {
	return answer[agentv1.Identity](s.agent.Enroll(ctx, s.as(ctx), agent.EnrollRequest{
		SignerURL: req.SignerUrl, Issuer: req.Issuer, Token: agent.Secret(req.EnrollmentToken), Deployment: agent.Deployment(req.Deployment),
	}))
}

// ListBusinesses implements agentv1.AgentServiceServer.
func (s *Server) ListBusinesses(ctx context.Context, req *agentv1.ListBusinessesRequest) (*agentv1.ListBusinessesResponse, error) {
	views, err := s.agent.Businesses(ctx, s.as(ctx))
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf[agentv1.Business]("businesses", views, func(v agent.BusinessView) string { return v.ID }, req)
	return &agentv1.ListBusinessesResponse{Businesses: page, NextPageToken: next}, err
}

// DiscoverBusiness implements agentv1.AgentServiceServer.
func (s *Server) DiscoverBusiness(ctx context.Context, req *agentv1.DiscoverBusinessRequest) (*agentv1.Business, error) {
	return answer[agentv1.Business](s.agent.Discover(ctx, s.as(ctx), agent.DiscoverRequest{Domain: req.Domain, CardURL: req.CardUrl, Refresh: req.Refresh}))
}

// ListConversations implements agentv1.AgentServiceServer.
func (s *Server) ListConversations(ctx context.Context, req *agentv1.ListConversationsRequest) (*agentv1.ListConversationsResponse, error) {
	views, err := s.agent.Conversations(ctx, s.as(ctx))
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf[agentv1.Conversation]("conversations", views, func(v agent.ConversationView) string { return v.ID }, req)
	return &agentv1.ListConversationsResponse{Conversations: page, NextPageToken: next}, err
}

// GetConversation implements agentv1.AgentServiceServer.
func (s *Server) GetConversation(ctx context.Context, req *agentv1.GetConversationRequest) (*agentv1.Conversation, error) {
	return answer[agentv1.Conversation](s.agent.Conversation(ctx, s.as(ctx), req.Id))
}

// GetTranscript implements agentv1.AgentServiceServer.
func (s *Server) GetTranscript(ctx context.Context, req *agentv1.GetTranscriptRequest) (*agentv1.Transcript, error) {
	return answer[agentv1.Transcript](s.agent.Transcript(ctx, s.as(ctx), req.Conversation))
}

// ListAuthorizations implements agentv1.AgentServiceServer.
func (s *Server) ListAuthorizations(ctx context.Context, req *agentv1.ListAuthorizationsRequest) (*agentv1.ListAuthorizationsResponse, error) {
	views, err := s.agent.Authorizations(ctx, s.as(ctx))
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf[agentv1.Authorization]("authorizations", views, func(v agent.AuthorizationView) string { return v.ID }, req)
	return &agentv1.ListAuthorizationsResponse{Authorizations: page, NextPageToken: next}, err
}

// GetAuthorization implements agentv1.AgentServiceServer.
func (s *Server) GetAuthorization(ctx context.Context, req *agentv1.GetAuthorizationRequest) (*agentv1.Authorization, error) {
	return answer[agentv1.Authorization](s.agent.Authorization(ctx, s.as(ctx), req.Id))
}

// GetAuthorizationStatus implements agentv1.AgentServiceServer.
func (s *Server) GetAuthorizationStatus(ctx context.Context, req *agentv1.GetAuthorizationStatusRequest) (*agentv1.AuthorizationStatus, error) {
	c := s.as(ctx)
	if wait := req.Wait.AsDuration(); wait > 0 {
		bounded, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if _, err := s.agent.AwaitAuthorization(bounded, c, req.Id); err != nil && bounded.Err() == nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
	}
	v, err := s.agent.Authorization(ctx, c, req.Id)
	if err != nil {
		return nil, err
	}
	return &agentv1.AuthorizationStatus{
		Id: v.ID, State: v.State, Reason: v.Reason, Text: agent.SettledText(v.State, v.Reason), Deadline: timestamppb.New(v.Deadline),
	}, nil
}

// GetSignIn implements agentv1.AgentServiceServer.
func (s *Server) GetSignIn(ctx context.Context, req *agentv1.GetSignInRequest) (*agentv1.SignIn, error) {
	v, err := s.agent.ShowSignIn(ctx, s.as(ctx), req.Id)
	if err != nil {
		return nil, err
	}
	return signInMessage(v)
}

// CancelAuthorization implements agentv1.AgentServiceServer.
func (s *Server) CancelAuthorization(ctx context.Context, req *agentv1.CancelAuthorizationRequest) (*agentv1.Authorization, error) {
	return answer[agentv1.Authorization](s.agent.CancelAuthorization(ctx, s.as(ctx), req.Id))
}

// ListGrants implements agentv1.AgentServiceServer.
func (s *Server) ListGrants(ctx context.Context, req *agentv1.ListGrantsRequest) (*agentv1.ListGrantsResponse, error) {
	views, err := s.agent.Grants(ctx, s.as(ctx))
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf[agentv1.Grant]("grants", views, func(v agent.GrantView) string { return v.ID }, req)
	return &agentv1.ListGrantsResponse{Grants: page, NextPageToken: next}, err
}

// DisconnectGrant implements agentv1.AgentServiceServer.
func (s *Server) DisconnectGrant(ctx context.Context, req *agentv1.DisconnectGrantRequest) (*agentv1.Disconnection, error) {
	return answer[agentv1.Disconnection](s.agent.Disconnect(ctx, s.as(ctx), req.Id))
}

// ListReceipts implements agentv1.AgentServiceServer.
func (s *Server) ListReceipts(ctx context.Context, req *agentv1.ListReceiptsRequest) (*agentv1.ListReceiptsResponse, error) {
	views, err := s.agent.Receipts(ctx, s.as(ctx))
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf[agentv1.Receipt]("receipts", views, func(v agent.ReceiptView) string { return v.ID }, req)
	return &agentv1.ListReceiptsResponse{Receipts: page, NextPageToken: next}, err
}

// GetReceipt implements agentv1.AgentServiceServer.
func (s *Server) GetReceipt(ctx context.Context, req *agentv1.GetReceiptRequest) (*agentv1.Receipt, error) {
	return answer[agentv1.Receipt](s.agent.Receipt(ctx, s.as(ctx), req.Id))
}

// VerifyReceipt implements agentv1.AgentServiceServer.
func (s *Server) VerifyReceipt(ctx context.Context, req *agentv1.VerifyReceiptRequest) (*agentv1.Receipt, error) {
	return answer[agentv1.Receipt](s.agent.VerifyStoredReceipt(ctx, s.as(ctx), req.Id))
}

// ListReviews implements agentv1.AgentServiceServer.
func (s *Server) ListReviews(ctx context.Context, req *agentv1.ListReviewsRequest) (*agentv1.ListReviewsResponse, error) {
	views, err := s.agent.Reviews(ctx, s.as(ctx), req.All)
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf[agentv1.Review](filtered("reviews", req.All), views, func(v agent.ReviewItem) string { return v.ID }, req)
	return &agentv1.ListReviewsResponse{Reviews: page, NextPageToken: next}, err
}

// GetReview implements agentv1.AgentServiceServer.
func (s *Server) GetReview(ctx context.Context, req *agentv1.GetReviewRequest) (*agentv1.Review, error) {
	return answer[agentv1.Review](s.agent.Review(ctx, s.as(ctx), req.Id))
}

// AcknowledgeEvidence implements agentv1.AgentServiceServer.
func (s *Server) AcknowledgeEvidence(ctx context.Context, req *agentv1.AcknowledgeEvidenceRequest) (*agentv1.Review, error) {
	return answer[agentv1.Review](s.agent.Acknowledge(ctx, s.as(ctx), req.Id))
}

// ListApprovals implements agentv1.AgentServiceServer.
func (s *Server) ListApprovals(ctx context.Context, req *agentv1.ListApprovalsRequest) (*agentv1.ListApprovalsResponse, error) {
	views, err := s.agent.Approvals(ctx, s.as(ctx), req.All)
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf[agentv1.Approval](filtered("approvals", req.All), views, func(v agent.ApprovalView) string { return v.ID }, req)
	return &agentv1.ListApprovalsResponse{Approvals: page, NextPageToken: next}, err
}

// GetApproval implements agentv1.AgentServiceServer.
func (s *Server) GetApproval(ctx context.Context, req *agentv1.GetApprovalRequest) (*agentv1.Approval, error) {
	return answer[agentv1.Approval](s.agent.Approval(ctx, s.as(ctx), req.Id))
}

// RunDoctor implements agentv1.AgentServiceServer.
func (s *Server) RunDoctor(ctx context.Context, _ *agentv1.RunDoctorRequest) (*agentv1.RunDoctorResponse, error) {
	views, err := s.agent.Doctor(ctx, s.as(ctx))
	if err != nil {
		return nil, err
	}
	checks, err := messagesOf[agentv1.Check](views)
	return &agentv1.RunDoctorResponse{Checks: checks}, err
}

var _ agentv1.AgentServiceServer = (*Server)(nil)
