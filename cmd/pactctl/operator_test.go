package main

import (
	"context"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/probe"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// keysService answers ListKeys to one token.
type keysService struct {
	signerv1.UnimplementedAdminServiceServer
	t *testing.T
}

func (s keysService) ListKeys(ctx context.Context, _ *signerv1.ListKeysRequest) (*signerv1.ListKeysResponse, error) {
	if got := metadata.ValueFromIncomingContext(ctx, "authorization"); len(got) != 1 || got[0] != "Bearer pact_admin_x" {
		s.t.Errorf("authorization: %q", got)
	}
	return &signerv1.ListKeysResponse{Keys: []*signerv1.Key{{Issuer: testIssuer, Kid: testKid}}}, nil
}

// adminServer serves an admin API over TLS. It returns its URL, and files with the
// admin token and the certificate.
func adminServer(t *testing.T, api signerv1.AdminServiceServer) (url, token, ca string) {
	g := grpc.NewServer()
	signerv1.RegisterAdminServiceServer(g, api)
	s := httptest.NewUnstartedServer(g)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	dir := t.TempDir()
	token, ca = filepath.Join(dir, "token"), filepath.Join(dir, "ca.pem")
	for path, content := range map[string][]byte{
		token: []byte("pact_admin_x\n"),
		ca:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s.URL, token, ca
}

// Over https the server's certificate is verified, against --ca-file if given.
func TestOperateTLS(t *testing.T) {
	url, token, ca := adminServer(t, keysService{t: t})
	a, stdout, stderr := testApp("", false)
	if code := a.run(context.Background(), []string{"keys", "--server", url, "--token-file", token, "--ca-file", ca}); code != 0 || !strings.Contains(stdout.String(), testKid) {
		t.Errorf("with the CA: %d %s %s", code, stdout, stderr)
	}
	a, _, stderr = testApp("", false)
	if code := a.run(context.Background(), []string{"keys", "--server", url, "--token-file", token}); code != exitFailed || !strings.Contains(stderr.String(), "certificate") {
		t.Errorf("without: %d %s", code, stderr)
	}
	a, _, stderr = testApp("", false)
	if code := a.run(context.Background(), []string{"keys", "--server", url, "--token-file", token, "--ca-file", token}); code != exitFailed || !strings.Contains(stderr.String(), "holds no PEM certificate") {
		t.Errorf("with something else: %d %s", code, stderr)
	}
}

// revokedService answers an emergency, after which no key signs, and is interrupted
// when the keys are looked at.
type revokedService struct {
	signerv1.UnimplementedAdminServiceServer
	interrupt func()
}

func (revokedService) RotateKey(_ context.Context, req *signerv1.RotateKeyRequest) (*signerv1.RotateKeyResponse, error) {
	return &signerv1.RotateKeyResponse{Issuer: testIssuer, Algorithm: "ES256", Kid: testKid, Revision: 4}, nil
}

func (s revokedService) ListKeys(context.Context, *signerv1.ListKeysRequest) (*signerv1.ListKeysResponse, error) {
	s.interrupt()
	return &signerv1.ListKeysResponse{Keys: []*signerv1.Key{
		// This replica has not heard of the revocation yet.
		{Issuer: testIssuer, Kid: testDevice, State: "signing"},
		{Issuer: testIssuer, Kid: testKid, State: "pending"},
	}}, nil
}

// Whoever interrupts the wait of an emergency is told what was done.
func TestRotateInterrupted(t *testing.T) {
	for _, output := range []string{"text", "json"} {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		url, token, ca := adminServer(t, revokedService{interrupt: cancel})
		a, stdout, stderr := testApp("", false)
		code := a.run(ctx, []string{"rotate", "--emergency", "--compromised", testDevice, "--yes", "-o", output, "--server", url, "--token-file", token, "--ca-file", ca})
		if code != exitInterrupted {
			t.Errorf("%s: exit code %d", output, code)
		}
		want := "Key " + testDevice + " is revoked (revision 4).\n"
		if output == "json" {
			want = `"revision": 4,`
		}
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("%s: stdout is %q", output, stdout)
		}
		if want := "key " + testDevice + " is revoked (revision 4), but it is not known whether a key signs; see pactctl keys: interrupted\n"; !strings.HasSuffix(stderr.String(), want) {
			t.Errorf("%s: stderr is %q", output, stderr)
		}
	}
}

// lonelyService does acts that the store's copies do not acknowledge.
type lonelyService struct {
	signerv1.UnimplementedAdminServiceServer
}

func (lonelyService) InvalidateDevice(ctx context.Context, req *signerv1.InvalidateDeviceRequest) (*signerv1.Device, error) {
	return &signerv1.Device{Thumbprint: req.Thumbprint}, grpc.SetHeader(ctx, metadata.Pairs(signer.NotDurableHeader, "It is done, but may be lost.", signer.NotDurableHeader, "Nor is it in custody."))
}

func (lonelyService) KillStatus(context.Context, *signerv1.KillStatusRequest) (*signerv1.KillStatusResponse, error) {
	return &signerv1.KillStatusResponse{Entries: []*signerv1.KillEntry{{Id: "e1", Scope: &signerv1.Scope{Kind: "all"}}}}, nil
}

func (lonelyService) Resume(ctx context.Context, req *signerv1.ResumeRequest) (*signerv1.ResumeResponse, error) {
	return &signerv1.ResumeResponse{Epoch: 2, EntryIds: req.EntryIds, DurableInCustody: true}, grpc.SetHeader(ctx, metadata.Pairs(signer.NotDurableHeader, "They are lifted, but may not stay so."))
}

// What the signer says of an act that could be lost is printed, beside the result.
func TestOperateNotDurable(t *testing.T) {
	url, token, ca := adminServer(t, lonelyService{})
	for _, test := range []struct{ act, out, said string }{
		{"devices invalidate " + testDevice, "can neither sign nor enrol", "It is done, but may be lost.\n"},
		{"resume --all --reason over", "Lifted e1", "They are lifted, but may not stay so.\n"},
	} {
		a, stdout, stderr := testApp("", false)
		code := a.run(t.Context(), append(strings.Fields(test.act), "--yes", "--server", url, "--token-file", token, "--ca-file", ca))
		if code != 0 || !strings.Contains(stdout.String(), test.out) || !strings.HasSuffix(stderr.String(), test.said) {
			t.Errorf("%s: %d %q %q", test.act, code, stdout, stderr)
		}
	}
}

// retiredService stops everything, and has the probe's kills of an issuer that it serves
// and of one that it does not.
type retiredService struct {
	signerv1.UnimplementedAdminServiceServer
	killed []string
}

func (*retiredService) KillStatus(context.Context, *signerv1.KillStatusRequest) (*signerv1.KillStatusResponse, error) {
	probes := func(id, issuer string) *signerv1.KillEntry {
		return &signerv1.KillEntry{Id: id, Scope: &signerv1.Scope{Kind: "audience", Value: probe.DefaultKilledAudience, Issuer: issuer}, Reason: signer.ProbeReason}
	}
	return &signerv1.KillStatusResponse{Entries: []*signerv1.KillEntry{
		{Id: "e1", Scope: &signerv1.Scope{Kind: "all"}}, probes("e2", "https://old.example.com"), probes("e3", testIssuer),
	}}, nil
}

func (*retiredService) Resume(_ context.Context, req *signerv1.ResumeRequest) (*signerv1.ResumeResponse, error) {
	return &signerv1.ResumeResponse{Epoch: 2, EntryIds: req.EntryIds, DurableInCustody: true}, nil
}

func (s *retiredService) Kill(_ context.Context, req *signerv1.KillRequest) (*signerv1.KillResponse, error) {
	if req.Scope.Issuer != testIssuer {
		s, err := status.New(codes.InvalidArgument, "not one of this deployment").WithDetails(&errdetails.ErrorInfo{Reason: "INVALID_REQUEST", Domain: "signer.pact"})
		if err != nil {
			return nil, err
		}
		return nil, s.Err()
	}
	s.killed = append(s.killed, req.Scope.Issuer)
	return &signerv1.KillResponse{}, nil
}

// Lifting everything throws the probe's kills again, but not those of an issuer that is
// served no more.
func TestResumeAllRetired(t *testing.T) {
	service := &retiredService{}
	url, token, ca := adminServer(t, service)
	a, stdout, stderr := testApp("", false)
	code := a.run(t.Context(), []string{"resume", "--all", "--reason", "over", "--yes", "--server", url, "--token-file", token, "--ca-file", ca})
	if code != 0 || !slices.Equal(service.killed, []string{testIssuer}) || strings.Count(stdout.String(), "is killed again") != 1 {
		t.Errorf("%d %q %q, killed %q", code, stdout, stderr, service.killed)
	}
}

// An interrupt during a call ends the program with 130.
func TestOperateInterrupted(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("pact_admin_x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a, _, stderr := testApp("", false)
	if code := a.run(ctx, []string{"keys", "--server", "http://127.0.0.1:1", "--token-file", token}); code != exitInterrupted || stderr.String() != "pactctl: interrupted\n" {
		t.Errorf("got %d %q", code, stderr)
	}
}
