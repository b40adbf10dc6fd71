package signer

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// ListAudiences implements signerv1.AdminServiceServer.
func (a *Admin) ListAudiences(ctx context.Context, req *signerv1.ListAudiencesRequest) (*signerv1.ListAudiencesResponse, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	list, err := a.cfg.Store.Audiences(ctx, i.URL)
	if err != nil {
		return nil, err
	}
	resp := &signerv1.ListAudiencesResponse{}
	for _, x := range list {
		resp.Audiences = append(resp.Audiences, audienceMessage(x))
	}
	return resp, nil
}

// SetAudience implements signerv1.AdminServiceServer.
func (a *Admin) SetAudience(ctx context.Context, req *signerv1.SetAudienceRequest) (*signerv1.Audience, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	origin, err := adminOrigin("origin", req.Origin)
	if err != nil {
		return nil, err
	}
	if err := adminText("audience", req.Audience, adminMaxAudience, true); err != nil {
		return nil, err
	}
	if strings.TrimSpace(req.Audience) != req.Audience {
		return nil, adminInvalid("audience", "begins or ends with a space: clients trim it and would ask for another")
	}
	if err := adminText("reason", req.Reason, adminMaxReason, false); err != nil {
		return nil, err
	}
	x := Audience{Issuer: i.URL, Origin: origin, Audience: req.Audience, SetAt: a.cfg.Now().UTC(), SetBy: adminCaller(ctx).Name}
	e := a.entry(ctx, "audience.set", i.URL, origin, req.Reason)
	e.Detail["audience"] = req.Audience
	err = a.cfg.Store.SetAudience(ctx, x, func(list []Audience) error { return fitsStatus(i.URL, list) }, e)
	if errors.Is(err, ErrExists) {
		return nil, a.audienceTaken(ctx, x)
	}
	var full *RegistryFullError
	if errors.As(err, &full) {
		return nil, adminRefuse(codes.FailedPrecondition, "REGISTRY_FULL", nil, "audience: %s", full)
	}
	if err := a.stands(ctx, err); err != nil {
		return nil, err
	}
	return audienceMessage(x), nil
}

// audienceTaken says which origin has the audience.
func (a *Admin) audienceTaken(ctx context.Context, x Audience) error {
	owner := "another origin"
	if list, err := a.cfg.Store.Audiences(ctx, x.Issuer); err == nil {
		for _, other := range list {
			if other.Audience == x.Audience {
				owner = other.Origin
			}
		}
	}
	return adminRefuse(codes.AlreadyExists, "ALREADY_EXISTS", map[string]string{"origin": owner},
		"audience: %s has the audience %q; two Providers never share one: remove it there first, or ask the Provider again", owner, x.Audience)
}

// RemoveAudience implements signerv1.AdminServiceServer.
func (a *Admin) RemoveAudience(ctx context.Context, req *signerv1.RemoveAudienceRequest) (*signerv1.RemoveAudienceResponse, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	origin, err := adminOrigin("origin", req.Origin)
	if err != nil {
		return nil, err
	}
	if err := adminText("reason", req.Reason, adminMaxReason, false); err != nil {
		return nil, err
	}
	err = a.cfg.Store.RemoveAudience(ctx, i.URL, origin, a.entry(ctx, "audience.remove", i.URL, origin, req.Reason))
	if errors.Is(err, ErrNotFound) {
		return nil, adminNotFound("issuer %s has no audience for %s", i.URL, origin)
	}
	if err := a.stands(ctx, err); err != nil {
		return nil, err
	}
	return &signerv1.RemoveAudienceResponse{}, nil
}

func audienceMessage(x Audience) *signerv1.Audience {
	return &signerv1.Audience{Issuer: x.Issuer, Origin: x.Origin, Audience: x.Audience, SetAt: adminStamp(x.SetAt), SetBy: x.SetBy}
}
