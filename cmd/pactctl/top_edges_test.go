package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// damaged is a signer whose audit log is.
type damaged struct {
	signerv1.AdminServiceClient
	reason string
}

func (damaged) FleetStatus(context.Context, *signerv1.FleetStatusRequest, ...grpc.CallOption) (*signerv1.FleetStatusResponse, error) {
	return topPicture().fleet, nil
}

func (damaged) ListKeys(context.Context, *signerv1.ListKeysRequest, ...grpc.CallOption) (*signerv1.ListKeysResponse, error) {
	return &signerv1.ListKeysResponse{}, nil
}

func (damaged) GetActivity(context.Context, *signerv1.GetActivityRequest, ...grpc.CallOption) (*signerv1.GetActivityResponse, error) {
	return &signerv1.GetActivityResponse{}, nil
}

func (damaged) GetState(context.Context, *signerv1.GetStateRequest, ...grpc.CallOption) (*signerv1.StoreState, error) {
	return &signerv1.StoreState{}, nil
}

func (d damaged) ListAudit(context.Context, *signerv1.ListAuditRequest, ...grpc.CallOption) (*signerv1.ListAuditResponse, error) {
	s, err := status.New(codes.DataLoss, "the audit log is damaged").WithDetails(&errdetails.ErrorInfo{Reason: d.reason, Domain: "signer.pact"})
	if err != nil {
		return nil, err
	}
	return nil, &callError{words: s.Message(), status: s}
}

// A damaged audit log does not take the fleet out of sight; another failure is told.
func TestTopOfADamagedLog(t *testing.T) {
	for reason, seen := range map[string]bool{"AUDIT_DAMAGED": true, "UNAVAILABLE": false} {
		w := &watcher{operator: &operator{AdminServiceClient: damaged{reason: reason}}, now: time.Now}
		if p, err := w.look(t.Context()); (err == nil) != seen || seen && len(p.fleet.Replicas) != 3 {
			t.Errorf("%s: %v, %v", reason, p, err)
		}
	}
}

// That no replica is known is nothing good.
func TestTopWithoutReplicas(t *testing.T) {
	first := topView{picture: &picture{fleet: &signerv1.FleetStatusResponse{}}, zone: time.UTC}.head()[0]
	if words := first.plain(); !strings.Contains(words, "0 of 0 replicas READY") {
		t.Errorf("it says %q", words)
	}
	for _, part := range first {
		if part.look == goodLook {
			t.Errorf("%q is green", part.text)
		}
	}
}

// An interval that makes a picture of long ago look like one of now is refused, as is
// one that does nothing but ask.
func TestTopInterval(t *testing.T) {
	for _, interval := range []string{"999ms", "1h0m1s"} {
		cmd := newTopCmd(&app{})
		cmd.SetArgs([]string{"--interval", interval})
		cmd.SetErr(io.Discard)
		cmd.SetOut(io.Discard)
		cmd.GroupID = ""
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "say 1s to 1h") {
			t.Errorf("%s: %v", interval, err)
		}
	}
}
