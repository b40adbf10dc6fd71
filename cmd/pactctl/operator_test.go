package main

import (
	"context"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
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

// Over https the server's certificate is verified, against --ca-file if given.
func TestOperateTLS(t *testing.T) {
	g := grpc.NewServer()
	signerv1.RegisterAdminServiceServer(g, keysService{t: t})
	s := httptest.NewUnstartedServer(g)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.pem")
	for path, content := range map[string][]byte{
		token: []byte("pact_admin_x\n"),
		ca:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	a, stdout, stderr := testApp("", false)
	if code := a.run(context.Background(), []string{"keys", "--server", s.URL, "--token-file", token, "--ca-file", ca}); code != 0 || !strings.Contains(stdout.String(), testKid) {
		t.Errorf("with the CA: %d %s %s", code, stdout, stderr)
	}
	a, _, stderr = testApp("", false)
	if code := a.run(context.Background(), []string{"keys", "--server", s.URL, "--token-file", token}); code != exitFailed || !strings.Contains(stderr.String(), "certificate") {
		t.Errorf("without: %d %s", code, stderr)
	}
	a, _, stderr = testApp("", false)
	if code := a.run(context.Background(), []string{"keys", "--server", s.URL, "--token-file", token, "--ca-file", token}); code != exitFailed || !strings.Contains(stderr.String(), "holds no PEM certificate") {
		t.Errorf("with something else: %d %s", code, stderr)
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
