package signer

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// CreateCredential implements signerv1.AdminServiceServer.
func (a *Admin) CreateCredential(ctx context.Context, req *signerv1.CreateCredentialRequest) (*signerv1.CreateCredentialResponse, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	if err := adminText("name", req.Name, adminMaxName, true); err != nil {
		return nil, err
	}
	lasts, err := adminDuration("expires_in", req.ExpiresIn, adminMaxDuration)
	if err != nil {
		return nil, err
	}
	secret, err := adminCredentialSecret(req.Credential)
	if err != nil {
		return nil, err
	}
	now, err := a.cfg.Store.Now(ctx)
	if err != nil {
		return nil, err
	}
	c := Credential{
		Issuer: i.URL, ID: adminNewID(), Name: req.Name, Principal: adminNewID() + adminNewID(),
		Hash: secret.Hash(), CreatedAt: now.UTC(),
	}
	if lasts > 0 {
		c.ExpiresAt = now.Add(lasts).UTC()
	}
	if c.Subject, err = DeriveSubject(ctx, a.cfg.Keyring, CredentialCaller, i.URL, c.Principal); err != nil {
		return nil, err
	}
	e := a.entry(ctx, "credential.create", i.URL, c.ID, "")
	e.Detail["name"], e.Detail["subject"] = c.Name, c.Subject
	adminExpiry(e.Detail, c)
	if err := a.stands(ctx, a.cfg.Store.PutCredential(ctx, c, e)); err != nil {
		return nil, adminCredentialError(i, c.ID, err)
	}
	return &signerv1.CreateCredentialResponse{Info: credentialMessage(c, now), Credential: secret.Reveal()}, nil
}

// RotateCredential implements signerv1.AdminServiceServer. Without expires_in the
// expiry stays as it is.
func (a *Admin) RotateCredential(ctx context.Context, req *signerv1.RotateCredentialRequest) (*signerv1.CreateCredentialResponse, error) {
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
	lasts, err := adminDuration("expires_in", req.ExpiresIn, adminMaxDuration)
	if err != nil {
		return nil, err
	}
	secret, err := adminCredentialSecret(req.Credential)
	if err != nil {
		return nil, err
	}
	now, err := a.cfg.Store.Now(ctx)
	if err != nil {
		return nil, err
	}
	e := a.entry(ctx, "credential.rotate", i.URL, req.Id, req.Reason)
	c, err := a.cfg.Store.UpdateCredential(ctx, i.URL, req.Id, func(c *Credential) error {
		switch {
		case !c.RevokedAt.IsZero():
			return adminRefuse(codes.FailedPrecondition, "REVOKED", nil, "id: credential %s is revoked for good: create another", c.ID)
		case c.Hash == secret.Hash():
			return adminInvalid("credential", "is the present one: a rotation needs another")
		case lasts > 0:
			c.ExpiresAt = now.Add(lasts).UTC()
		case !c.ExpiresAt.IsZero() && !c.ExpiresAt.After(now):
			return adminInvalid("expires_in", "is required: credential %s has expired", c.ID)
		}
		c.Hash, c.RotatedAt = secret.Hash(), now.UTC()
		return nil
	}, e)
	if err := a.stands(ctx, err); err != nil {
		return nil, adminCredentialError(i, req.Id, err)
	}
	return &signerv1.CreateCredentialResponse{Info: credentialMessage(c, now), Credential: secret.Reveal()}, nil
}

// RevokeCredential implements signerv1.AdminServiceServer. Again it changes nothing:
// the first time and reason stay.
func (a *Admin) RevokeCredential(ctx context.Context, req *signerv1.RevokeCredentialRequest) (*signerv1.Credential, error) {
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
	c, err := a.cfg.Store.UpdateCredential(ctx, i.URL, req.Id, func(c *Credential) error {
		if c.RevokedAt.IsZero() {
			c.RevokedAt, c.Reason = now.UTC(), req.Reason
		}
		return nil
	}, a.entry(ctx, "credential.revoke", i.URL, req.Id, req.Reason))
	if err := a.stands(ctx, err); err != nil {
		return nil, adminCredentialError(i, req.Id, err)
	}
	return credentialMessage(c, now), nil
}

// ListCredentials implements signerv1.AdminServiceServer.
func (a *Admin) ListCredentials(ctx context.Context, req *signerv1.ListCredentialsRequest) (*signerv1.ListCredentialsResponse, error) {
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
	list, next, err := a.cfg.Store.Credentials(ctx, i.URL, page)
	if err != nil {
		return nil, err
	}
	resp := &signerv1.ListCredentialsResponse{NextPageToken: next}
	for _, c := range list {
		resp.Credentials = append(resp.Credentials, credentialMessage(c, now))
	}
	return resp, nil
}

// adminCredentialError puts a refusal of the store into words.
func adminCredentialError(i Issuer, id string, err error) error {
	switch {
	case errors.Is(err, ErrNotFound):
		return adminNotFound("id: issuer %s has no credential %s: see pactctl credentials list", i.URL, adminShorten(id, 64))
	case errors.Is(err, ErrExists):
		return adminRefuse(codes.AlreadyExists, "ALREADY_EXISTS", nil,
			"name or credential: an active credential of %s has the same; choose another, or revoke that one", i.URL)
	}
	return err
}

// adminExpiry notes an expiry in an audit entry's detail.
func adminExpiry(detail map[string]string, c Credential) {
	if !c.ExpiresAt.IsZero() {
		detail["expires"] = c.ExpiresAt.Format(time.RFC3339)
	}
}

func credentialMessage(c Credential, now time.Time) *signerv1.Credential {
	m := &signerv1.Credential{
		Issuer: c.Issuer, Id: c.ID, Name: c.Name, Subject: c.Subject, State: "active", Reason: c.Reason,
		CreatedAt: adminStamp(c.CreatedAt), ExpiresAt: adminStamp(c.ExpiresAt), RevokedAt: adminStamp(c.RevokedAt), RotatedAt: adminStamp(c.RotatedAt),
	}
	switch {
	case !c.RevokedAt.IsZero():
		m.State = "revoked"
	case !c.ExpiresAt.IsZero() && !c.ExpiresAt.After(now):
		m.State = "expired"
	}
	return m
}

// adminCredentialSecret is the operator's own secret, or a generated one. Its errors
// never hold it.
func adminCredentialSecret(own string) (Secret, error) {
	if own == "" {
		return NewCredential(), nil
	}
	if n := len([]rune(own)); n < 16 || n > 4096 {
		return Secret{}, adminInvalid("credential", "has %d characters: 16 to 4096, or none for a generated one", n)
	}
	if strings.ContainsFunc(own, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Secret{}, adminInvalid("credential", "may hold only visible ASCII characters, no spaces: it travels in an HTTP header")
	}
	secret, err := ParseCredential(own)
	if err != nil {
		return Secret{}, adminInvalid("credential", "looks like a generated one with a typing error: give another, or none")
	}
	return secret, nil
}
