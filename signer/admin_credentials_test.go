package signer_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// authorized asks the store whether a secret is accepted, and for whom.
func (w *adminWorld) authorized(issuer, secret string) (subject string, ok bool) {
	w.t.Helper()
	epoch, err := w.guard.Check(killTarget(issuer))
	if err != nil {
		w.t.Fatal(err)
	}
	a, err := w.store.Authorize(ctx, signer.Authorization{
		Issuer: issuer, Kind: signer.CredentialCaller, Secret: sha256.Sum256([]byte(secret)), Epoch: epoch,
	})
	return a.Subject, err == nil
}

func TestAdminCredentials(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	c := w.admin()
	made, err := c.CreateCredential(ctx, &signerv1.CreateCredentialRequest{Name: "ci", ExpiresIn: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	info, secret := made.Info, made.Credential
	if info.Id == "" || info.Name != "ci" || info.State != "active" || info.Issuer != issuerA || !strings.HasPrefix(info.Subject, "pa_") || len(info.Subject) != 35 {
		t.Errorf("info: %v", info)
	}
	if d := info.ExpiresAt.AsTime().Sub(info.CreatedAt.AsTime()); d != time.Hour {
		t.Errorf("expires after %v", d)
	}
	if n := len(secret); n < 16 || n > 4096 {
		t.Errorf("the secret has %d characters", n)
	}
	if subject, ok := w.authorized(issuerA, secret); !ok || subject != info.Subject {
		t.Errorf("the credential is accepted: %v, as %s", ok, subject)
	}
	if e := w.lastAct(); e.Action != "credential.create" || e.Target != info.Id || e.Detail["name"] != "ci" || e.Detail["expires"] == "" {
		t.Errorf("audit: %v", e)
	}

	// A name is unique among the active ones.
	if _, err := c.CreateCredential(ctx, &signerv1.CreateCredentialRequest{Name: "ci"}); status.Code(err) != codes.AlreadyExists || refusal(err).Reason != "ALREADY_EXISTS" {
		t.Errorf("same name: %v", err)
	}

	// A rotation keeps id, subject and expiry, and ends the old secret.
	rotated, err := c.RotateCredential(ctx, &signerv1.RotateCredentialRequest{Id: info.Id, Reason: "yearly"})
	if err != nil {
		t.Fatal(err)
	}
	if rotated.Info.Id != info.Id || rotated.Info.Subject != info.Subject || !rotated.Info.ExpiresAt.AsTime().Equal(info.ExpiresAt.AsTime()) || rotated.Info.RotatedAt == nil || rotated.Credential == secret {
		t.Errorf("rotated: %v", rotated.Info)
	}
	if _, ok := w.authorized(issuerA, secret); ok {
		t.Error("the old secret is still accepted")
	}
	if subject, ok := w.authorized(issuerA, rotated.Credential); !ok || subject != info.Subject {
		t.Errorf("the new secret is accepted: %v, as %s", ok, subject)
	}
	if e := w.lastAct(); e.Action != "credential.rotate" || e.Reason != "yearly" {
		t.Errorf("audit: %v", e)
	}

	// A revocation is for good, and repeated changes nothing.
	for _, reason := range []string{"left", "left again"} {
		gone, err := c.RevokeCredential(ctx, &signerv1.RevokeCredentialRequest{Id: info.Id, Reason: reason})
		if err != nil || gone.State != "revoked" || gone.Reason != "left" || gone.RevokedAt == nil {
			t.Errorf("revoke: %v, %v", gone, err)
		}
	}
	if _, ok := w.authorized(issuerA, rotated.Credential); ok {
		t.Error("a revoked secret is accepted")
	}
	if _, err := c.RotateCredential(ctx, &signerv1.RotateCredentialRequest{Id: info.Id}); refusal(err).Reason != "REVOKED" {
		t.Errorf("rotate a revoked one: %v", err)
	}
	if again, err := c.CreateCredential(ctx, &signerv1.CreateCredentialRequest{Name: "ci"}); err != nil || again.Info.Subject == info.Subject {
		t.Errorf("the name is free again, for another subject: %v, %v", again, err)
	}
	for _, call := range []func() error{
		func() error {
			_, err := c.RotateCredential(ctx, &signerv1.RotateCredentialRequest{Id: "nope"})
			return err
		},
		func() error {
			_, err := c.RevokeCredential(ctx, &signerv1.RevokeCredentialRequest{Id: "nope"})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.NotFound {
			t.Errorf("unknown id: %v", err)
		}
	}

	// No secret is anywhere but in the answer.
	for _, s := range []string{secret, rotated.Credential} {
		if strings.Contains(fmt.Sprint(w.trail()), s) || strings.Contains(w.log.String(), s) {
			t.Error("a secret is in the audit log or the log")
		}
	}
	if list, err := c.ListCredentials(ctx, &signerv1.ListCredentialsRequest{}); err != nil || len(list.Credentials) != 2 {
		t.Errorf("list: %v, %v", list, err)
	}
}

func TestAdminOwnCredential(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	c := w.admin()
	own := "my own secret, of 36 characters....!"
	own = strings.ReplaceAll(own, " ", "-")
	made, err := c.CreateCredential(ctx, &signerv1.CreateCredentialRequest{Name: "own", Credential: own})
	if err != nil || made.Credential != own {
		t.Fatalf("own secret: %v, %v", made, err)
	}
	if subject, ok := w.authorized(issuerA, own); !ok || subject != made.Info.Subject {
		t.Errorf("own secret is accepted: %v", ok)
	}
	if _, err := c.CreateCredential(ctx, &signerv1.CreateCredentialRequest{Name: "other", Credential: own}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the same secret twice: %v", err)
	}
	if _, err := c.RotateCredential(ctx, &signerv1.RotateCredentialRequest{Id: made.Info.Id, Credential: own}); refusal(err).Reason != "INVALID_REQUEST" {
		t.Errorf("rotated to itself: %v", err)
	}
	for name, req := range map[string]*signerv1.CreateCredentialRequest{
		"short":      {Name: "x", Credential: "fifteen-chars.."},
		"long":       {Name: "x", Credential: strings.Repeat("x", 4097)},
		"space":      {Name: "x", Credential: "a secret with spaces"},
		"line break": {Name: "x", Credential: "a-secret-with-a-line\nbreak"},
		"not ASCII":  {Name: "x", Credential: "ein-geheimnis-für-uns"},
		"no name":    {Credential: own + "x"},
		"long name":  {Name: strings.Repeat("x", 129)},
		"expiry":     {Name: "x", ExpiresIn: durationpb.New(-time.Hour)},
	} {
		_, err := c.CreateCredential(ctx, req)
		if refusal(err).Reason != "INVALID_REQUEST" {
			t.Errorf("%s: %v", name, err)
		}
		if req.Credential != "" && strings.Contains(fmt.Sprint(err), req.Credential) {
			t.Errorf("%s: the refusal holds the secret", name)
		}
	}
}

// Lists are whole when paged through, however small the pages.
func TestAdminPaging(t *testing.T) {
	w := newAdminWorld(t, issuerA, issuerB)
	c := w.admin()
	want := map[string]bool{}
	for n := range 7 {
		made, err := c.CreateCredential(ctx, &signerv1.CreateCredentialRequest{Issuer: issuerA, Name: fmt.Sprint("c", n)})
		if err != nil {
			t.Fatal(err)
		}
		want[made.Info.Id] = true
	}
	if _, err := c.CreateCredential(ctx, &signerv1.CreateCredentialRequest{Issuer: issuerB, Name: "c0"}); err != nil {
		t.Fatal(err) // another issuer's names are its own
	}
	for size := range uint32(9) {
		got := map[string]bool{}
		for req := (&signerv1.ListCredentialsRequest{Issuer: issuerA, PageSize: size}); ; {
			resp, err := c.ListCredentials(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			if size > 0 && len(resp.Credentials) > int(size) {
				t.Errorf("page size %d: got %d", size, len(resp.Credentials))
			}
			for _, x := range resp.Credentials {
				got[x.Id] = true
			}
			if req.PageToken = resp.NextPageToken; req.PageToken == "" {
				break
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("page size %d: got %v", size, got)
		}
	}
	if _, err := c.ListCredentials(ctx, &signerv1.ListCredentialsRequest{Issuer: issuerA, PageSize: 1001}); refusal(err).Reason != "INVALID_REQUEST" {
		t.Errorf("page size 1001: %v", err)
	}
	if _, err := c.ListAudit(ctx, &signerv1.ListAuditRequest{PageToken: "x"}); refusal(err).Reason != "INVALID_REQUEST" {
		t.Errorf("audit page token: %v", err)
	}
}

func TestAdminEnrollmentTokens(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	c := w.admin()
	made, err := c.CreateEnrollmentToken(ctx, &signerv1.CreateEnrollmentTokenRequest{Note: "Ada's phone"})
	if err != nil || made.Token == "" || made.Info.State != "unused" || made.Info.Note != "Ada's phone" {
		t.Fatalf("create: %v, %v", made, err)
	}
	if d := made.Info.ExpiresAt.AsTime().Sub(made.Info.CreatedAt.AsTime()); d != 24*time.Hour {
		t.Errorf("expires after %v", d)
	}
	if e := w.lastAct(); e.Action != "enrollment_token.create" || e.Target != made.Info.Id || e.Detail["note"] != "Ada's phone" || strings.Contains(e.String(), made.Token) {
		t.Errorf("audit: %v", e)
	}
	for _, d := range []time.Duration{-time.Second, 30*24*time.Hour + 1} {
		if _, err := c.CreateEnrollmentToken(ctx, &signerv1.CreateEnrollmentTokenRequest{ExpiresIn: durationpb.New(d)}); refusal(err).Reason != "INVALID_REQUEST" {
			t.Errorf("%v: %v", d, err)
		}
	}
	gone, err := c.RevokeEnrollmentToken(ctx, &signerv1.RevokeEnrollmentTokenRequest{Id: made.Info.Id, Reason: "wrong person"})
	if err != nil || gone.State != "revoked" {
		t.Errorf("revoke: %v, %v", gone, err)
	}
	if e := w.lastAct(); e.Action != "enrollment_token.revoke" || e.Reason != "wrong person" {
		t.Errorf("audit: %v", e)
	}
	if _, err := c.RevokeEnrollmentToken(ctx, &signerv1.RevokeEnrollmentTokenRequest{Id: "nope"}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown: %v", err)
	}
	list, err := c.ListEnrollmentTokens(ctx, &signerv1.ListEnrollmentTokensRequest{})
	if err != nil || len(list.Tokens) != 1 || list.Tokens[0].State != "revoked" {
		t.Errorf("list: %v, %v", list, err)
	}

	// One that a device has used is not revoked: the device is what there is to end.
	used, err := c.CreateEnrollmentToken(ctx, &signerv1.CreateEnrollmentTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	epoch, err := w.guard.Check(killTarget(issuerA))
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.store.Enroll(ctx, signer.Enrolment{
		Device: signer.Device{Issuer: issuerA, Thumbprint: thumbprint, Subject: "pa_x", Point: make([]byte, 64), EnrolledAt: time.Now()},
		JTI:    sha256.Sum256([]byte("jti")), Token: sha256.Sum256([]byte(used.Token)), NeedToken: true, Epoch: epoch,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.RevokeEnrollmentToken(ctx, &signerv1.RevokeEnrollmentTokenRequest{Id: used.Info.Id})
	if refusal(err).Reason != "ALREADY_USED" || refusal(err).Metadata["thumbprint"] != thumbprint {
		t.Errorf("used: %v", err)
	}
	if d, err := c.GetDevice(ctx, &signerv1.GetDeviceRequest{Thumbprint: thumbprint}); err != nil || d.State != "active" || d.LastSignedAt != nil {
		t.Errorf("device: %v, %v", d, err)
	}
}

// An expired credential says so, frees its name, and is rotated only with a new end.
func TestAdminExpiredCredential(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	c := w.admin()
	made, err := c.CreateCredential(ctx, &signerv1.CreateCredentialRequest{Name: "ci", ExpiresIn: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	w.ahead.Store(int64(2 * time.Hour))
	list, err := c.ListCredentials(ctx, &signerv1.ListCredentialsRequest{})
	if err != nil || list.Credentials[0].State != "expired" {
		t.Errorf("list: %v, %v", list, err)
	}
	if _, err := c.RotateCredential(ctx, &signerv1.RotateCredentialRequest{Id: made.Info.Id}); refusal(err).Metadata["field"] != "expires_in" {
		t.Errorf("rotated without a new end: %v", err)
	}
	again, err := c.RotateCredential(ctx, &signerv1.RotateCredentialRequest{Id: made.Info.Id, ExpiresIn: durationpb.New(time.Hour)})
	if err != nil || again.Info.State != "active" || again.Info.Subject != made.Info.Subject {
		t.Errorf("rotated: %v, %v", again, err)
	}
}
