package signer

import (
	"context"
	"net/http"

	"google.golang.org/grpc"

	"github.com/pactsigner/pactsigner/internal/gateway"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// inProcess is the service behind its interceptors, for callers in this process.
func (a *Admin) inProcess() *gateway.Service {
	return &gateway.Service{
		Desc: &signerv1.AdminService_ServiceDesc, Impl: a,
		Unary: a.unary, Stream: a.stream, Invalid: adminInvalid,
	}
}

// newREST serves the REST routes of gateway.yaml. Each request passes the same
// interceptors as on gRPC.
func (a *Admin) newREST() (http.Handler, error) {
	return gateway.REST{
		Service: a.inProcess(),
		Register: func(ctx context.Context, mux *gateway.Mux, conn grpc.ClientConnInterface) error {
			return signerv1.RegisterAdminServiceHandlerClient(ctx, mux, signerv1.NewAdminServiceClient(conn))
		},
		Admit: func(r *http.Request) error {
			if _, ok := a.authenticate(r.Header.Values("Authorization")); ok {
				return nil
			}
			_, err := a.admit(r.Context(), "")
			a.cfg.Observe("", err)
			return err
		},
		Realm: "admin", MaxBody: adminMaxBody, AnswerHeaders: []string{NotDurableHeader},
	}.Handler()
}
