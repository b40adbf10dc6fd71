package signer

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// CreateEnrollmentToken implements signerv1.AdminServiceServer.
func (a *Admin) CreateEnrollmentToken(ctx context.Context, req *signerv1.CreateEnrollmentTokenRequest) (*signerv1.CreateEnrollmentTokenResponse, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	if err := adminText("note", req.Note, adminMaxNote, false); err != nil {
		return nil, err
	}
	lasts, err := adminDuration("expires_in", req.ExpiresIn, enrollmentTokenMaxTTL)
	if err != nil {
		return nil, err
	}
	if lasts == 0 {
		lasts = enrollmentTokenTTL
	}
	now, err := a.cfg.Store.Now(ctx)
	if err != nil {
		return nil, err
	}
	secret := NewEnrollmentToken()
	t := EnrollmentToken{
		Issuer: i.URL, ID: adminNewID(), Note: req.Note, Hash: secret.Hash(),
		CreatedAt: now.UTC(), ExpiresAt: now.Add(lasts).UTC(),
	}
	e := a.entry(ctx, "enrollment_token.create", i.URL, t.ID, "")
	e.Detail["expires"] = t.ExpiresAt.Format(time.RFC3339)
	if t.Note != "" {
		e.Detail["note"] = t.Note
	}
	if err := a.stands(ctx, a.cfg.Store.PutEnrollmentToken(ctx, t, e)); err != nil {
		return nil, err
	}
	return &signerv1.CreateEnrollmentTokenResponse{Info: enrollmentTokenMessage(t, now), Token: secret.Reveal()}, nil
}

// ListEnrollmentTokens implements signerv1.AdminServiceServer.
func (a *Admin) ListEnrollmentTokens(ctx context.Context, req *signerv1.ListEnrollmentTokensRequest) (*signerv1.ListEnrollmentTokensResponse, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	page, err := adminPageOf(req.PageSize, req.PageToken)
	if err != nil {
		return nil, err
	}
	now, err := a.cfg.Store.Now(ctx)
	if err != nil {
		return nil, err
	}
	list, next, err := a.cfg.Store.EnrollmentTokens(ctx, i.URL, page)
	if err != nil {
		return nil, err
	}
	resp := &signerv1.ListEnrollmentTokensResponse{NextPageToken: next}
	for _, t := range list {
		resp.Tokens = append(resp.Tokens, enrollmentTokenMessage(t, now))
	}
	return resp, nil
}

// RevokeEnrollmentToken implements signerv1.AdminServiceServer.
func (a *Admin) RevokeEnrollmentToken(ctx context.Context, req *signerv1.RevokeEnrollmentTokenRequest) (*signerv1.EnrollmentToken, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	if err := adminText("id", req.Id, adminMaxName, true); err != nil {
		return nil, err
	}
	if err := adminText("reason", req.Reason, adminMaxReason, false); err != nil {
		return nil, err
	}
	now, err := a.cfg.Store.Now(ctx)
	if err != nil {
		return nil, err
	}
	t, err := a.cfg.Store.RevokeEnrollmentToken(ctx, i.URL, req.Id, now.UTC(), a.entry(ctx, "enrollment_token.revoke", i.URL, req.Id, req.Reason))
	if errors.Is(err, ErrNotFound) {
		return nil, adminNotFound("issuer %s has no enrolment token %s", i.URL, adminShorten(req.Id, 64))
	}
	if err := a.stands(ctx, err); err != nil {
		return nil, err
	}
	if t.Thumbprint != "" {
		return nil, adminRefuse(codes.FailedPrecondition, "ALREADY_USED", map[string]string{"thumbprint": t.Thumbprint},
			"id: device %s has used this token already: end the device with pactctl devices invalidate", t.Thumbprint)
	}
	return enrollmentTokenMessage(t, now), nil
}

func enrollmentTokenMessage(t EnrollmentToken, now time.Time) *signerv1.EnrollmentToken {
	m := &signerv1.EnrollmentToken{
		Issuer: t.Issuer, Id: t.ID, Note: t.Note, State: "unused",
		CreatedAt: adminStamp(t.CreatedAt), ExpiresAt: adminStamp(t.ExpiresAt), Thumbprint: t.Thumbprint,
	}
	switch {
	case t.Thumbprint != "":
		m.State = "used"
	case !t.RevokedAt.IsZero():
		m.State = "revoked"
	case !t.ExpiresAt.After(now):
		m.State = "expired"
	}
	return m
}
