package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/signer"
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
	if got := counted(m); got != want {
		t.Errorf("counted:%s", got)
	}
}

// counted are the requests that were, as metrics say it.
func counted(m *metrics) string {
	w := httptest.NewRecorder()
	m.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	got := "\n"
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "pact_signer_requests_total{") && !strings.HasSuffix(line, " 0\n") {
			got += line
		}
	}
	return got
}

// A caller who leaves at once is no failure of ours, on neither face; one who left
// because nothing came is. How long it took to send the request is not counted.
func TestWhoLeaves(t *testing.T) {
	for name, waited := range map[string]time.Duration{"cancelled": patience - 1, "unavailable": patience} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := newMetrics("test")
				m.activity = newActivity("r", time.Now)
				ctx, leave := context.WithCancel(t.Context())
				slow := iotest.OneByteReader(slowly{strings.NewReader("{}")})
				m.observeHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					time.AfterFunc(waited, leave)
					<-r.Context().Done()
					w.WriteHeader(http.StatusServiceUnavailable)
				})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/pact/sign", slow))

				ctx, leave = context.WithTimeout(t.Context(), waited)
				defer leave()
				away, err := status.New(codes.Unavailable, "no").WithDetails(&errdetails.ErrorInfo{Reason: "UNAVAILABLE"})
				if err != nil {
					t.Fatal(err)
				}
				_, _ = m.observeUnary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/pact.signer.v1.SignerService/Sign"}, func(ctx context.Context, _ any) (any, error) {
					<-ctx.Done()
					if !errors.Is(ctx.Err(), context.Canceled) {
						t.Errorf("a caller that waits no longer is %v", ctx.Err())
					}
					return nil, away.Err()
				})
				want := fmt.Sprintf(`
pact_signer_requests_total{face="grpc",method="sign",result="%[1]s"} 1
pact_signer_requests_total{face="rest",method="sign",result="%[1]s"} 1
`, name)
				if got := counted(m); got != want {
					t.Errorf("counted:%s", got)
				}
				failed := map[string]uint64{"cancelled": 0, "unavailable": 2}[name]
				if got := m.activity.read().Recent; got != (signer.ActivityCounts{Failed: failed}) {
					t.Errorf("activity %+v", got)
				}
			})
		})
	}
}

// slowly is a second late with each read.
type slowly struct{ io.Reader }

func (s slowly) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return s.Reader.Read(p)
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
