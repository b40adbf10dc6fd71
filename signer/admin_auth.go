package signer

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/internal/gateway"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// adminRoles is the least role for each method; admin.proto says the same at
// each. A method that is not here is refused.
var adminRoles = map[string]Role{
	"FleetStatus":           RoleViewer,
	"GetActivity":           RoleViewer,
	"ListKeys":              RoleViewer,
	"GetKeySet":             RoleViewer,
	"RotateKey":             RoleAdmin,
	"Kill":                  RoleOperator,
	"WaitKill":              RoleViewer,
	"KillStatus":            RoleViewer,
	"Resume":                RoleOperator,
	"ListDevices":           RoleViewer,
	"GetDevice":             RoleViewer,
	"InvalidateDevice":      RoleOperator,
	"CreateCredential":      RoleAdmin,
	"ListCredentials":       RoleViewer,
	"RotateCredential":      RoleAdmin,
	"RevokeCredential":      RoleOperator,
	"ListAudiences":         RoleViewer,
	"SetAudience":           RoleAdmin,
	"RemoveAudience":        RoleAdmin,
	"RegisterProvider":      RoleAdmin,
	"CreateEnrollmentToken": RoleOperator,
	"ListEnrollmentTokens":  RoleViewer,
	"RevokeEnrollmentToken": RoleOperator,
	"ListAudit":             RoleViewer,
	"VerifyAudit":           RoleViewer,
	"GetState":              RoleViewer,
	"ExportState":           RoleAdmin,
	"ImportState":           RoleAdmin,
	"AcceptLoss":            RoleAdmin,
	"OpenEnrolment":         RoleAdmin,
}

var adminTokenName = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,64}$`)

// adminCheckTokens refuses tokens that could be confused with one another.
func adminCheckTokens(tokens []AdminToken) error {
	names, hashes := map[string]bool{}, map[Hash]bool{}
	for _, t := range tokens {
		switch {
		case !adminTokenName.MatchString(t.Name):
			return fmt.Errorf("admin: token name %q: want 1 to 64 characters of a-z, A-Z, 0-9, ., _, - and @", t.Name)
		case t.Name == "signer":
			return errors.New(`admin: token name "signer" is the signer's own in the audit log`)
		case names[t.Name]:
			return fmt.Errorf("admin: there are two tokens named %s", t.Name)
		case t.Role < RoleViewer || t.Role > RoleAdmin:
			return fmt.Errorf("admin: token %s has no role", t.Name)
		case t.Hash == Hash{}:
			return fmt.Errorf("admin: token %s has no hash", t.Name)
		case hashes[t.Hash]:
			return fmt.Errorf("admin: token %s has the hash of another", t.Name)
		}
		names[t.Name], hashes[t.Hash] = true, true
	}
	return nil
}

// authenticate finds the token of an Authorization value, in constant time for
// all that do not match.
func (a *Admin) authenticate(authorization []string) (AdminToken, bool) {
	if len(authorization) != 1 {
		return AdminToken{}, false
	}
	scheme, secret, ok := strings.Cut(authorization[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || secret == "" {
		return AdminToken{}, false
	}
	hash := sha256.Sum256([]byte(secret))
	var found AdminToken
	for _, t := range a.cfg.Tokens {
		if subtle.ConstantTimeCompare(hash[:], t.Hash[:]) == 1 {
			found = t
		}
	}
	return found, found.Role != 0
}

type adminCallerKey struct{}

// adminCaller is who makes the call.
func adminCaller(ctx context.Context) AdminToken {
	t, _ := ctx.Value(adminCallerKey{}).(AdminToken)
	return t
}

// admit authenticates a call and checks its role.
func (a *Admin) admit(ctx context.Context, fullMethod string) (context.Context, error) {
	t, ok := ctx.Value(adminVouchedKey{}).(AdminToken)
	if !ok {
		t, ok = a.authenticate(metadata.ValueFromIncomingContext(ctx, "authorization"))
	}
	if !ok {
		return ctx, adminRefuse(codes.Unauthenticated, "UNAUTHENTICATED", nil, "the admin token is missing or not accepted: send \"authorization: Bearer <admin token>\"")
	}
	ctx = context.WithValue(ctx, adminCallerKey{}, t)
	method := adminMethod(fullMethod)
	need, known := adminRoles[method]
	if known && t.Role >= need {
		return ctx, nil
	}
	e := a.entry(ctx, "admin.refused", "", method, "")
	e.Detail["role"], e.Detail["needs"] = t.Role.String(), need.String()
	if err := a.stands(ctx, a.cfg.Store.AppendAudit(ctx, e)); err != nil {
		return ctx, a.failure(ctx, fullMethod, err)
	}
	return ctx, adminRefuse(codes.PermissionDenied, "ROLE_TOO_LOW", map[string]string{"role": t.Role.String(), "needs": need.String()},
		"%s needs the role %s, and token %s has %s", method, need, t.Name, t.Role)
}

// adminMethod is a method's name without its service.
func adminMethod(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

// unary is the interceptor of every call that is no stream.
func (a *Admin) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() { a.cfg.Observe(adminMethod(info.FullMethod), err) }()
	defer a.recovered(ctx, info.FullMethod, &err)
	if ctx, err = a.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	if err := adminRefuseUnknown(req); err != nil {
		return nil, err
	}
	resp, err = handler(ctx, req)
	a.recordHead(ctx, info.FullMethod, err == nil)
	if err != nil {
		return nil, a.failure(ctx, info.FullMethod, err)
	}
	return resp, nil
}

// stream is the interceptor of every stream.
func (a *Admin) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	ctx := ss.Context()
	defer func() { a.cfg.Observe(adminMethod(info.FullMethod), err) }()
	defer a.recovered(ctx, info.FullMethod, &err)
	if ctx, err = a.admit(ctx, info.FullMethod); err != nil {
		return err
	}
	err = handler(srv, &gateway.ServerStream{
		ServerStream: ss, Ctx: ctx, Check: func(m proto.Message) error { return adminRefuseUnknown(m) },
	})
	a.recordHead(ctx, info.FullMethod, err == nil)
	if err != nil {
		return a.failure(ctx, info.FullMethod, err)
	}
	return nil
}

// recovered turns a panic into an error, so that one call cannot end the signer.
func (a *Admin) recovered(ctx context.Context, method string, err *error) {
	if p := recover(); p != nil {
		a.cfg.Log.LogAttrs(ctx, slog.LevelError, "admin call panicked", slog.String("method", method),
			slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		*err = adminRefuse(codes.Internal, "INTERNAL", nil, "the signer failed on this call; its log says how")
	}
}

// adminRefuseUnknown refuses what a newer client may send and this signer would
// ignore.
func adminRefuseUnknown(req any) error {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	if at := gateway.Unknown(m.ProtoReflect()); at != nil {
		return adminInvalid(string(at.Descriptor().Name()), "has a field that this signer does not know; is it older than its client?")
	}
	return nil
}

var _ signerv1.AdminServiceServer = (*Admin)(nil)
