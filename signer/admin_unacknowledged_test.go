package signer_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/store/bolt"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// unacknowledged is a store that does every act, and whose copies acknowledge none.
type unacknowledged struct{ *bolt.Store }

func alone(err error) error {
	if err == nil {
		err = fmt.Errorf("0 of 1 copies: %w", killswitch.ErrUnacknowledged)
	}
	return err
}

func (u unacknowledged) Invalidate(ctx context.Context, issuer, thumbprint, reason string, e audit.Entry) (signer.Device, error) {
	d, err := u.Store.Invalidate(ctx, issuer, thumbprint, reason, e)
	return d, alone(err)
}

func (u unacknowledged) PutCredential(ctx context.Context, c signer.Credential, e audit.Entry) error {
	return alone(u.Store.PutCredential(ctx, c, e))
}

func (u unacknowledged) UpdateCredential(ctx context.Context, issuer, id string, change func(*signer.Credential) error, e audit.Entry) (signer.Credential, error) {
	c, err := u.Store.UpdateCredential(ctx, issuer, id, change, e)
	return c, alone(err)
}

func (u unacknowledged) PutEnrollmentToken(ctx context.Context, t signer.EnrollmentToken, e audit.Entry) error {
	return alone(u.Store.PutEnrollmentToken(ctx, t, e))
}

func (u unacknowledged) RevokeEnrollmentToken(ctx context.Context, issuer, id string, at time.Time, e audit.Entry) (signer.EnrollmentToken, error) {
	t, err := u.Store.RevokeEnrollmentToken(ctx, issuer, id, at, e)
	return t, alone(err)
}

func (u unacknowledged) SetAudience(ctx context.Context, x signer.Audience, check func([]signer.Audience) error, e audit.Entry) error {
	return alone(u.Store.SetAudience(ctx, x, check, e))
}

func (u unacknowledged) RemoveAudience(ctx context.Context, issuer, origin string, e audit.Entry) error {
	return alone(u.Store.RemoveAudience(ctx, issuer, origin, e))
}

func (u unacknowledged) AppendAudit(ctx context.Context, e audit.Entry) error {
	return alone(u.Store.AppendAudit(ctx, e))
}

// with replaces the world's store and audit head as the service knows them.
func (w *adminWorld) with(store signer.Store, head signer.AuditHead) {
	w.t.Helper()
	cfg := signer.AdminConfig{
		Store: store, Switch: killswitch.NewSwitch(killswitch.SwitchConfig{
			Store: w.store, HighWater: killswitch.DocumentHighWater{Documents: keyringDocuments{w.keyring}, Name: "switch", NotFound: custody.ErrNotFound, Conflict: custody.ErrConflict},
		}),
		AuditHead: head, Guard: w.guard, Fleet: w.store, State: w.state, Keyring: w.keyring, Issuers: w.issuers,
		Version: "test", Replica: "r1", Log: slog.New(slog.NewTextHandler(w.log, nil)),
	}
	for _, role := range []signer.Role{signer.RoleViewer, signer.RoleAdmin} {
		secret, hash := signer.NewAdminToken()
		w.tokens[role] = secret
		cfg.Tokens = append(cfg.Tokens, signer.AdminToken{Name: role.String() + "@test", Role: role, Hash: hash})
	}
	admin, err := signer.NewAdmin(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.handler = admin.Handler()
	w.serve(0)
}

// An act that the store's copies have not acknowledged is answered with its result,
// and with a header that says what that means; a refusal is one as ever.
func TestUnacknowledgedActs(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	w.with(unacknowledged{w.store}, nil)
	said := func(header http.Header) bool {
		return strings.Contains(header.Get(signer.NotDurableHeader), "the copies of the store have not acknowledged it")
	}
	act := func(method, path, body string) []byte {
		t.Helper()
		code, header, answer := w.rest(w.tokens[signer.RoleAdmin], method, path, body)
		if code != 200 || !said(header) {
			t.Errorf("%s %s: %d %s, header %q", method, path, code, answer, header.Get(signer.NotDurableHeader))
		}
		return answer
	}
	act("POST", "/v1/devices/"+strings.Repeat("A", 43)+":invalidate", `{"reason":"lost"}`)
	if !strings.Contains(string(act("POST", "/v1/credentials", `{"name":"batch"}`)), "pact_") {
		t.Error("a new credential's secret was not shown: nobody can use it")
	}
	list, _, err := w.store.Credentials(t.Context(), issuerA, signer.Page{Size: 10})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d credentials, %v", len(list), err)
	}
	act("POST", "/v1/credentials/"+list[0].ID+":rotate", `{}`)
	act("POST", "/v1/credentials/"+list[0].ID+":revoke", `{}`)
	act("POST", "/v1/enrollment-tokens", `{}`)
	tokens, _, err := w.store.EnrollmentTokens(t.Context(), issuerA, signer.Page{Size: 10})
	if err != nil || len(tokens) != 1 {
		t.Fatalf("%d enrolment tokens, %v", len(tokens), err)
	}
	act("POST", "/v1/enrollment-tokens/"+tokens[0].ID+":revoke", `{}`)
	act("PUT", "/v1/audiences", `{"origin":"https://provider.example","audience":"a"}`)
	act("DELETE", "/v1/audiences?origin=https://provider.example", "")
	act("POST", "/v1/keys:rotate", `{}`)
	if code, header, answer := w.rest(w.tokens[signer.RoleAdmin], "POST", "/v1/credentials/nobody:revoke", `{}`); code != 404 || said(header) {
		t.Errorf("a refusal: %d %s", code, answer)
	}
	if code, _, answer := w.rest(w.tokens[signer.RoleViewer], "POST", "/v1/credentials", `{"name":"x"}`); code != 403 {
		t.Errorf("a viewer's act: %d %s", code, answer)
	}
}

// late is custody that lets its deadline pass.
type late struct{ signer.AuditHead }

func (late) Record(context.Context) error { return nil }

func (late) Heads(ctx context.Context) ([]audit.Head, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("%w: no answer in time: %w", custody.ErrUnavailable, ctx.Err())
}

// Custody that lets a call's deadline pass is away: 503, and it is named.
func TestCustodyLate(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	w.with(w.store, late{})
	handler := w.handler
	w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second) // custody is come to before, on a busy machine too
		defer cancel()
		handler.ServeHTTP(rw, r.WithContext(ctx))
	})
	w.serve(0)
	code, _, answer := w.rest(w.tokens[signer.RoleAdmin], "GET", "/v1/audit:verify", "")
	if code != 503 || !strings.Contains(string(answer), "custody") {
		t.Errorf("%d %s", code, answer)
	}
}
