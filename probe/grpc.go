package probe

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net/url"

	"github.com/go-json-experiment/json"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// reasons are the contract's refusals on gRPC, and their status on REST.
var reasons = map[string]int{
	"INVALID_REQUEST": 400, "UNAUTHORIZED": 401, "DISABLED": 403, "AUDIENCE_NOT_REGISTERED": 422, "RATE_LIMITED": 429, "UNAVAILABLE": 503,
}

// refusalGRPC is an error of the gRPC face.
type refusalGRPC struct{ *status.Status }

func (s refusalGRPC) reason() string {
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == "signer.pact" {
			return info.Reason
		}
	}
	return ""
}

// String tells the error in few words.
func (s refusalGRPC) String() string {
	if why := s.reason(); why != "" {
		return fmt.Sprintf("%v %s", s.Code(), why)
	}
	return fmt.Sprintf("%v, which is not in the signer's words (%s)", s.Code(), s.Message())
}

// signGRPC asks for a token over gRPC and verifies it.
func (r *round) signGRPC(ctx context.Context, t target) verdict {
	if r.unknown != "" {
		return leftOut("%s", r.unknown)
	}
	u, err := url.Parse(r.cfg.Signer)
	if err != nil {
		return failed("", "%v", err)
	}
	transport := insecure.NewCredentials()
	if t.scheme == "https" || t.scheme == "" && u.Scheme == "https" {
		transport = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: r.cfg.RootCAs})
	}
	conn, err := grpc.NewClient("dns:///"+t.address, grpc.WithTransportCredentials(transport), grpc.WithAuthority(u.Host), grpc.WithUserAgent("pactctl-probe"))
	if err != nil {
		return failed("", "%v", err)
	}
	defer conn.Close()
	authorization, err := r.authorization(pathSign)
	if err != nil {
		return failed("", "%v", err)
	}
	call, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	nonce := rand.Text()
	r.secret(authorization)
	resp, err := signerv1.NewSignerServiceClient(conn).Sign(metadata.AppendToOutgoingContext(call, "authorization", authorization),
		&signerv1.SignRequest{Audience: r.cfg.Audience, Nonce: nonce})
	if err != nil {
		said := refusalGRPC{status.Convert(err)}
		if said.reason() == "" {
			return failed(remedyReach, "%v", said)
		}
		r.answered.Store(true)
		return signAnswered(reasons[said.reason()], said)
	}
	r.answered.Store(true)
	body, err := json.Marshal(map[string]string{"token": resp.Token, "nonce": resp.Nonce})
	if err != nil {
		return failed("", "%v", err)
	}
	kid, err := r.verifies(ctx, body, nonce)
	if err != nil {
		return failed("", "%v", err)
	}
	return passed("key %s", kid)
}
