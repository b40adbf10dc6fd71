package server

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/jwks"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// requestIDHeader carries the id under which a request is in the log. Ids are
// ours: what a caller sends is not used.
const requestIDHeader = "X-Request-Id"

type requestIDKey struct{}

func withRequestID(ctx context.Context) (context.Context, string) {
	id := rand.Text()
	return context.WithValue(ctx, requestIDKey{}, id), id
}

// contextHandler adds the request's id, and that of its trace, to what is logged with
// its context.
type contextHandler struct{ slog.Handler }

func (h contextHandler) Handle(ctx context.Context, r slog.Record) error {
	id, identified := ctx.Value(requestIDKey{}).(string)
	of, traced := traceID(ctx)
	if identified || traced {
		r = r.Clone()
	}
	if identified {
		r.AddAttrs(slog.String("request_id", id))
	}
	if traced {
		r.AddAttrs(slog.String("trace_id", of))
	}
	return h.Handler.Handle(ctx, r)
}

func (h contextHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return contextHandler{h.Handler.WithAttrs(attrs)}
}

func (h contextHandler) WithGroup(name string) slog.Handler {
	return contextHandler{h.Handler.WithGroup(name)}
}

// The methods that metrics know; every path and RPC is one of them.
const (
	methodSign      = "sign"
	methodStatus    = "status"
	methodEnroll    = "enroll"
	methodJWKS      = "jwks"
	methodDiscovery = "discovery"
	methodOther     = "other"
)

func methodOfPath(path string) string {
	switch path {
	case "/pact/sign":
		return methodSign
	case "/pact/status":
		return methodStatus
	case "/pact/enroll":
		return methodEnroll
	case jwks.WellKnownPath:
		return methodJWKS
	case jwks.DiscoveryPath:
		return methodDiscovery
	}
	return methodOther
}

func methodOfRPC(full string) string {
	switch strings.TrimPrefix(full, "/pact.signer.v1.SignerService/") {
	case "Sign":
		return methodSign
	case "Status":
		return methodStatus
	case "Enroll":
		return methodEnroll
	}
	return methodOther
}

// resultOfStatus names an HTTP status as the contract does.
func resultOfStatus(code int) string {
	switch code {
	case http.StatusOK, http.StatusNotModified, http.StatusNoContent:
		return "ok"
	case http.StatusBadRequest:
		return "invalid_request"
	case http.StatusUnauthorized:
		return "unauthorized"
	case http.StatusForbidden:
		return "disabled"
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return "not_found"
	case http.StatusUnprocessableEntity:
		return "audience_not_registered"
	case http.StatusTooManyRequests:
		return "rate_limited"
	case http.StatusServiceUnavailable:
		return "unavailable"
	}
	return "other"
}

// resultOfError names a gRPC outcome by its reason, as on REST.
func resultOfError(err error) string {
	if err == nil {
		return "ok"
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			switch info.Reason {
			case "INVALID_REQUEST", "UNAUTHORIZED", "DISABLED", "AUDIENCE_NOT_REGISTERED", "RATE_LIMITED", "UNAVAILABLE":
				return strings.ToLower(info.Reason)
			}
		}
	}
	return "other"
}

// patience is how long a caller has no cause to leave: signing that takes longer is what
// PactSignerSlow calls slow, and its callers' leaving counts as our failure.
const patience = 500 * time.Millisecond

// resultOfLeaving names what could not be done for a caller who left: ctx has ended, and
// parts that were asked with it failed for that alone.
func resultOfLeaving(ctx context.Context, result string, took time.Duration) string {
	if result == "unavailable" && ctx.Err() != nil && took < patience {
		return "cancelled"
	}
	return result
}

// timedBody remembers when it was read, since a caller may take its time to send it.
type timedBody struct {
	io.ReadCloser
	read time.Time
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read = time.Now()
	return n, err
}

// recorder remembers the status of a response.
type recorder struct {
	http.ResponseWriter
	code int
}

func (r *recorder) WriteHeader(code int) {
	if r.code == 0 && code >= 200 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// streamed is a recorder that gRPC can answer to.
type streamed struct{ *recorder }

// FlushError is for http.ResponseController.
func (s streamed) FlushError() error { return http.NewResponseController(s.ResponseWriter).Flush() }

// Flush implements http.Flusher.
func (s streamed) Flush() { _ = s.FlushError() }

var recorders = sync.Pool{New: func() any { return new(recorder) }}

// observeHTTP counts and times the requests of the public face, and gives those
// of the contract an id. A key set costs no allocation here.
func (m *metrics) observeHTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		var body *timedBody
		rec := recorders.Get().(*recorder)
		rec.ResponseWriter, rec.code = w, 0
		method := methodOfPath(r.URL.Path)
		var span trace.Span
		if r.Method == http.MethodPost {
			ctx, id := withRequestID(r.Context())
			w.Header().Set(requestIDHeader, id)
			r, span = m.tracing.rootHTTP(r.WithContext(ctx), "POST", method, id)
			body = &timedBody{r.Body, began}
			r.Body = body
		}
		if method == methodSign {
			m.inFlight.Inc()
		}
		defer func() {
			code := rec.code
			rec.ResponseWriter = nil
			recorders.Put(rec)
			if body != nil {
				began = body.read
			}
			took := time.Since(began)
			result := resultOfLeaving(r.Context(), resultOfStatus(code), took)
			m.request("rest", method, result, took)
			switch method {
			case methodSign:
				m.inFlight.Dec()
			case methodJWKS:
				m.keySet(code)
			}
			endRequest(span, result, code)
		}()
		next.ServeHTTP(rec, r)
	})
}

// observeUnary does the same for the gRPC face. Its callers bring deadlines, and one who
// waits no longer has left as on REST: parts are told that the call is cancelled, not that
// they are late.
func (m *metrics) observeUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	began := time.Now()
	ctx, id := withRequestID(ctx)
	if _, ok := ctx.Deadline(); ok {
		waits, leave := context.WithCancel(context.WithoutCancel(ctx))
		defer leave()
		defer context.AfterFunc(ctx, leave)()
		ctx = waits
	}
	// The header is a convenience: a transport that takes none is not an error.
	_ = grpc.SetHeader(ctx, metadata.Pairs(strings.ToLower(requestIDHeader), id))
	method := methodOfRPC(info.FullMethod)
	ctx, span := m.tracing.rootGRPC(ctx, method, id)
	if method == methodSign {
		m.inFlight.Inc()
		defer m.inFlight.Dec()
	}
	resp, err := next(ctx, req)
	took := time.Since(began)
	result := resultOfLeaving(ctx, resultOfError(err), took)
	m.request("grpc", method, result, took)
	endRequest(span, result, 0)
	return resp, err
}

// identify gives the requests of the admin face an id, and traces them. Their paths name
// callers and are in no span.
func (m *metrics) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, id := withRequestID(r.Context())
		w.Header().Set(requestIDHeader, id)
		r = r.WithContext(ctx)
		if m.tracing == nil {
			next.ServeHTTP(w, r)
			return
		}
		method := "REST"
		if name, ok := adminRPC(r.URL.Path); ok {
			method = name
		}
		r, span := m.tracing.rootHTTP(r, "admin", method, id)
		rec := &recorder{ResponseWriter: w}
		next.ServeHTTP(streamed{rec}, r)
		endRequest(span, resultOfStatus(rec.code), rec.code)
	})
}

// adminRPC is the method that a path of gRPC calls, if it is one of the admin service's.
func adminRPC(path string) (string, bool) {
	name, ok := strings.CutPrefix(path, "/"+signerv1.AdminService_ServiceDesc.ServiceName+"/")
	if !ok {
		return "", false
	}
	for _, m := range signerv1.AdminService_ServiceDesc.Methods {
		if m.MethodName == name {
			return name, true
		}
	}
	for _, s := range signerv1.AdminService_ServiceDesc.Streams {
		if s.StreamName == name {
			return name, true
		}
	}
	return "", false
}

// endStreams ends streams, such as a health watch, when stop is closed: a
// graceful stop would wait for them for ever.
func endStreams(stop <-chan struct{}) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		ctx, cancel := context.WithCancel(ss.Context())
		defer cancel()
		finished := make(chan struct{})
		defer close(finished)
		go func() {
			select {
			case <-stop:
				cancel()
			case <-finished:
			}
		}()
		return next(srv, stream{ss, ctx})
	}
}

type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }
