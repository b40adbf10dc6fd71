package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// deadlines is an answer's writer that notes the read deadlines that are set.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// A body has its time to come, and an operation takes longer: the deadline is lifted
// before the service is called. A caller that is not admitted is answered before that,
// and on HTTP/1 not kept until its body has come.
func TestBodyTimeout(t *testing.T) {
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	called, refuse := 0, false
	h, err := REST{
		Service: &Service{
			Desc: &agentv1.AgentService_ServiceDesc, Impl: agentv1.UnimplementedAgentServiceServer{},
			Unary: func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
				called++
				if n := len(w.set); n != 2 || w.set[0].IsZero() || !w.set[1].IsZero() {
					t.Errorf("the deadlines are %v when the service is called", w.set)
				}
				return new(agentv1.Provider), nil
			},
			Invalid: func(field, format string, args ...any) error {
				return status.Error(codes.InvalidArgument, field+": "+fmt.Sprintf(format, args...))
			},
		},
		Register: func(ctx context.Context, mux *Mux, conn grpc.ClientConnInterface) error {
			return agentv1.RegisterAgentServiceHandlerClient(ctx, mux, agentv1.NewAgentServiceClient(conn))
		},
		Admit: func(*http.Request) error {
			if refuse {
				return status.Error(codes.Unauthenticated, "who are you?")
			}
			return nil
		},
		Realm: "test", MaxBody: 100, BodyTimeout: time.Minute,
	}.Handler()
	if err != nil {
		t.Fatal(err)
	}
	post := func() {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/providers", strings.NewReader(`{"origin":"https://p.example.com"}`))
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(w, r)
	}
	post()
	if called != 1 || w.Code != 200 {
		t.Errorf("called %d times: %d %s", called, w.Code, w.Body)
	}

	w, refuse = &deadlines{ResponseRecorder: httptest.NewRecorder()}, true
	post()
	if called != 1 || w.Code != 401 || len(w.set) != 0 || w.Header().Get("Connection") != "close" || w.Header().Get("WWW-Authenticate") != `Bearer realm="test"` {
		t.Errorf("called %d times: %d %v, deadlines %v", called, w.Code, w.Header(), w.set)
	}
}
