package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Whatever is asked for, labels come from a small set.
func TestLabelsAreBounded(t *testing.T) {
	m := newMetrics("test")
	codesByPath := map[string]int{"/pact/sign": 200, "/.well-known/jwks.json": 304, "/" + strings.Repeat("x", 1000): 418, "/pact/enroll": 429}
	h := m.observeHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(codesByPath[r.URL.Path]) }))
	for path := range codesByPath {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, nil))
	}
	reason := func(s string) error {
		st, err := status.New(codes.PermissionDenied, "no").WithDetails(&errdetails.ErrorInfo{Reason: s})
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	for method, err := range map[string]error{
		"/pact.signer.v1.SignerService/Sign":   reason("DISABLED"),
		"/pact.signer.v1.SignerService/Status": reason("SOMETHING_NEW"),
		"/other.Service/Call":                  errors.New("broken"),
	} {
		_, _ = m.observeUnary(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: method},
			func(context.Context, any) (any, error) { return nil, err })
	}
	const want = `
pact_signer_requests_total{face="grpc",method="other",result="other"} 1
pact_signer_requests_total{face="grpc",method="sign",result="disabled"} 1
pact_signer_requests_total{face="grpc",method="status",result="other"} 1
pact_signer_requests_total{face="rest",method="enroll",result="rate_limited"} 1
pact_signer_requests_total{face="rest",method="jwks",result="ok"} 1
pact_signer_requests_total{face="rest",method="other",result="other"} 1
pact_signer_requests_total{face="rest",method="sign",result="ok"} 1
`
	w := httptest.NewRecorder()
	m.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	got := "\n"
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "pact_signer_requests_total{") && !strings.HasSuffix(line, " 0\n") {
			got += line
		}
	}
	if got != want {
		t.Errorf("counted:%s", got)
	}
}

// What is logged for a request carries the id that its answer names.
func TestRequestID(t *testing.T) {
	var out strings.Builder
	log := slog.New(contextHandler{slog.NewTextHandler(&out, nil)}).With("a", "b")
	h := newMetrics("test").observeHTTP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		log.InfoContext(r.Context(), "hello")
	}))
	r := httptest.NewRequest(http.MethodPost, "/pact/sign", nil)
	r.Header.Set(requestIDHeader, "chosen by the caller")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	id := w.Header().Get(requestIDHeader)
	if len(id) < 20 || !strings.Contains(out.String(), "a=b request_id="+id) {
		t.Errorf("answered with id %q, logged %s", id, out.String())
	}
}

// Counting a key set's request allocates nothing.
func TestKeySetCostsNothing(t *testing.T) {
	h := newMetrics("test").observeHTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	r := httptest.NewRequest(http.MethodGet, "/.well-known/jwks.json", nil)
	w := &nothing{}
	h.ServeHTTP(w, r)
	if n := testing.AllocsPerRun(100, func() { h.ServeHTTP(w, r) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

type nothing struct{}

func (*nothing) Header() http.Header         { return nil }
func (*nothing) Write(b []byte) (int, error) { return len(b), nil }
func (*nothing) WriteHeader(int)             {}
