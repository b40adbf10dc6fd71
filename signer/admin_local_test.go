package signer_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// A caller in the process has the role that is vouched for, and no more; its name is
// the actor of what it does.
func TestAdminAs(t *testing.T) {
	w := newAdminWorld(t, "https://a.example")
	viewer, ok := w.service.Bearer([]string{"Bearer " + w.tokens[signer.RoleViewer]})
	if !ok || viewer.Role != signer.RoleViewer || viewer.Name != "viewer@test" {
		t.Fatalf("the viewer's token: %v, %t", viewer, ok)
	}
	for _, bad := range [][]string{nil, {""}, {"Bearer x"}, {w.tokens[signer.RoleViewer]}, {"Bearer " + w.tokens[signer.RoleViewer], "Bearer x"}} {
		if _, ok := w.service.Bearer(bad); ok {
			t.Errorf("taken: %q", bad)
		}
	}
	operator, ok := w.service.Token("operator@test")
	if _, unknown := w.service.Token("nobody"); !ok || unknown || operator.Role != signer.RoleOperator {
		t.Fatalf("the operator's token: %v, %t", operator, ok)
	}

	ctx := context.Background()
	kill := &signerv1.KillRequest{Scope: &signerv1.Scope{Kind: "all"}, Reason: "drill"}
	if _, err := w.service.As(viewer).FleetStatus(ctx, &signerv1.FleetStatusRequest{}); err != nil {
		t.Errorf("a viewer cannot look: %v", err)
	}
	if _, err := w.service.As(viewer).Kill(ctx, kill); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a viewer stops: %v", err)
	}
	if e := w.lastAct(); e.Actor != "viewer@test" || e.Action != "admin.refused" {
		t.Errorf("audit: %v", e)
	}
	if _, err := w.service.As(operator).Kill(ctx, kill); err != nil {
		t.Errorf("an operator cannot stop: %v", err)
	}
	if e := w.lastAct(); e.Actor != "operator@test" || e.Action != "kill" {
		t.Errorf("audit: %v", e)
	}
	stream, err := w.service.As(viewer).WaitKill(ctx, &signerv1.WaitKillRequest{Epoch: 1})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Errorf("a viewer cannot wait: %v", err)
	}
	// Nobody is vouched for: then it is as for any caller without a token, whatever the
	// call says.
	with := metadata.AppendToOutgoingContext(ctx, "x", "y")
	if _, err := w.service.As(signer.AdminToken{}).FleetStatus(with, &signerv1.FleetStatusRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("nobody may look: %v", err)
	}
}
