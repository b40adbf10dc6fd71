package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/pactsigner/pactsigner/internal/config"
)

// tracing makes spans of requests and sends them to a collector. Nil: off, which costs
// a comparison. Attributes hold fixed words, configured issuers, numbers and the
// request's id: no token, no caller, no address.
//
// A request's span is the root, or goes on with its caller's trace if that is trusted.
// Below it are only spans of what is done for that request: what the replica does by
// itself, several times a second, is in no trace.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	trust    bool
	exporter *toldExporter
}

// exportTimeout bounds one attempt to send spans, and exportPatience all attempts for
// one batch. What the collector does not take by then is dropped.
const (
	exportTimeout  = 5 * time.Second
	exportPatience = 15 * time.Second
)

// newTracing starts to trace; nil if it is off. The collector need not be there.
func newTracing(ctx context.Context, c config.Tracing, version, replica string, m *metrics, log *slog.Logger) (*tracing, error) {
	if !c.Enabled() {
		return nil, nil
	}
	forgetEnvironment()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("a word of the library that traces", "err", err) }))
	exporter, err := newExporter(ctx, c)
	if err != nil {
		return nil, err
	}
	told := newToldExporter(exporter, m, log)
	p := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(told),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "pact-signer"),
			attribute.String("service.version", version),
			attribute.String("service.instance.id", replica),
		)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(c.SampleRatio))),
		sdktrace.WithRawSpanLimits(sdktrace.NewSpanLimits()),
	)
	return &tracing{p, p.Tracer("github.com/pactsigner/pactsigner"), c.TrustParent, told}, nil
}

// forgetEnvironment unsets the process's OTEL_ variables, which platforms set in every
// container and the libraries would read: some win over what is named here, and one that
// cannot be read is written to standard error, be it a header that is a secret. The
// resource's stays: it is how a pod says where it runs.
func forgetEnvironment() {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OTEL_") && name != "OTEL_RESOURCE_ATTRIBUTES" {
			_ = os.Unsetenv(name) // fails for no name that is set
		}
	}
}

// newExporter makes what sends spans.
func newExporter(ctx context.Context, c config.Tracing) (sdktrace.SpanExporter, error) {
	headers, err := c.Headers()
	if err != nil {
		return nil, err
	}
	secure, err := tracingTLS(c)
	if err != nil {
		return nil, err
	}
	address, path := c.Target()
	if c.Protocol == "http" {
		if path == "" {
			path = "/v1/traces"
		}
		o := []otlptracehttp.Option{
			otlptracehttp.WithEndpoint(address), otlptracehttp.WithURLPath(path), otlptracehttp.WithHeaders(headers),
			otlptracehttp.WithCompression(otlptracehttp.GzipCompression), otlptracehttp.WithTimeout(exportTimeout),
			otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: time.Second, MaxInterval: exportTimeout, MaxElapsedTime: exportPatience}),
		}
		if c.Insecure {
			o = append(o, otlptracehttp.WithInsecure())
		} else {
			o = append(o, otlptracehttp.WithTLSClientConfig(secure))
		}
		e, err := otlptracehttp.New(ctx, o...)
		return e, wrapTracing(err)
	}
	o := []otlptracegrpc.Option{
		otlptracegrpc.WithEndpoint(address), otlptracegrpc.WithHeaders(headers),
		otlptracegrpc.WithCompressor("gzip"), otlptracegrpc.WithTimeout(exportTimeout),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: true, InitialInterval: time.Second, MaxInterval: exportTimeout, MaxElapsedTime: exportPatience}),
	}
	if c.Insecure {
		o = append(o, otlptracegrpc.WithInsecure())
	} else {
		o = append(o, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(secure)))
	}
	e, err := otlptracegrpc.New(ctx, o...)
	return e, wrapTracing(err)
}

func wrapTracing(err error) error {
	if err != nil {
		return fmt.Errorf("tracing.endpoint: %w", err)
	}
	return nil
}

func tracingTLS(c config.Tracing) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("tracing.caFile: %w", err)
	}
	t.RootCAs = x509.NewCertPool()
	if !t.RootCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New("tracing.caFile: holds no certificate in PEM")
	}
	return t, nil
}

// toldExporter counts spans, and tells the log when the collector stops or begins to
// take them. It returns no error: the library would write that to standard error.
type toldExporter struct {
	sdktrace.SpanExporter
	m   *metrics
	log *slog.Logger

	patience context.Context // sending ends with it
	giveUp   context.CancelFunc
	ended    chan struct{} // closed when nothing is sent any more

	mu      sync.Mutex
	failing bool
}

func newToldExporter(to sdktrace.SpanExporter, m *metrics, log *slog.Logger) *toldExporter {
	e := &toldExporter{SpanExporter: to, m: m, log: log, ended: make(chan struct{})}
	e.patience, e.giveUp = context.WithCancel(context.Background())
	return e
}

// Shutdown implements sdktrace.SpanExporter.
func (e *toldExporter) Shutdown(ctx context.Context) error {
	defer close(e.ended)
	return e.SpanExporter.Shutdown(ctx)
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *toldExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.patience, cancel)()
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.m.spans[err == nil].Add(float64(len(spans)))
	e.mu.Lock()
	defer e.mu.Unlock()
	if failing := err != nil; failing != e.failing {
		e.failing = failing
		if failing {
			e.log.Warn("the collector of tracing.endpoint takes no traces: they are dropped", "err", err)
		} else {
			e.log.Info("the collector of tracing.endpoint takes traces again")
		}
	}
	return nil
}

// shutdown sends what is left, as long as ctx lets it, and ends the connection.
func (t *tracing) shutdown(ctx context.Context) {
	if t == nil {
		return
	}
	_ = t.provider.Shutdown(ctx) // what was not sent is counted and logged
	t.exporter.giveUp()
	select {
	case <-t.exporter.ended:
	case <-time.After(lastWait):
	}
}

// rootHTTP begins the span of a request of a listener; nil if tracing is off.
func (t *tracing) rootHTTP(r *http.Request, listener, method, id string) (*http.Request, trace.Span) {
	if t == nil {
		return r, nil
	}
	ctx, span := t.root(r.Context(), listener+" "+method, propagation.HeaderCarrier(r.Header), id)
	return r.WithContext(ctx), span
}

// rootGRPC does the same for a call.
func (t *tracing) rootGRPC(ctx context.Context, method, id string) (context.Context, trace.Span) {
	if t == nil {
		return ctx, nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return t.root(ctx, "gRPC "+method, grpcHeaders(md), id)
}

func (t *tracing) root(ctx context.Context, name string, parent propagation.TextMapCarrier, id string) (context.Context, trace.Span) {
	if t.trust {
		ctx = propagation.TraceContext{}.Extract(ctx, parent)
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.String("pact.request_id", id)))
}

// child begins a span of something that a part does for a request; nil if tracing is
// off or the request is not traced.
func (t *tracing) child(ctx context.Context, part, operation string) (context.Context, trace.Span) {
	if t == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, nil
	}
	return t.tracer.Start(ctx, part+" "+operation, trace.WithAttributes(attribute.String("pact.operation", operation)))
}

// batch begins the span of what is done for several requests at once: of the first that
// is traced, with links to the others.
func (t *tracing) batch(ctx context.Context, size int, callers iter.Seq[context.Context]) (context.Context, trace.Span) {
	if t == nil {
		return ctx, nil
	}
	var first trace.Span
	var links []trace.Link
	for caller := range callers {
		switch span := trace.SpanFromContext(caller); {
		case !span.IsRecording():
		case first == nil:
			first = span
		default:
			links = append(links, trace.Link{SpanContext: span.SpanContext()})
		}
	}
	if first == nil {
		return ctx, nil
	}
	return t.tracer.Start(trace.ContextWithSpan(ctx, first), "custody batch", trace.WithLinks(links...),
		trace.WithAttributes(attribute.Int("pact.batch_size", size)))
}

// endSpan ends a span, which may be nil, with how it went.
func endSpan(span trace.Span, result string) {
	if span == nil {
		return
	}
	span.SetAttributes(attribute.String("pact.result", result))
	switch result {
	case "ok":
	case "failed", "unavailable", "unreachable", "sealed", "other":
		span.SetStatus(codes.Error, result)
	}
	span.End()
}

// endRequest ends the span of a request.
func endRequest(span trace.Span, result string, httpStatus int) {
	if span != nil && httpStatus != 0 {
		span.SetAttributes(attribute.Int("http.response.status_code", httpStatus))
	}
	endSpan(span, result)
}

// traceID is the id of the trace that ctx belongs to, if there is one.
func traceID(ctx context.Context) (string, bool) {
	sc := trace.SpanContextFromContext(ctx)
	return sc.TraceID().String(), sc.IsValid()
}

// grpcHeaders are a call's metadata, for what a caller says of its trace.
type grpcHeaders metadata.MD

// Get implements propagation.TextMapCarrier.
func (h grpcHeaders) Get(key string) string {
	if v := metadata.MD(h).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (h grpcHeaders) Set(key, value string) { metadata.MD(h).Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (h grpcHeaders) Keys() []string {
	keys := make([]string, 0, len(h))
	for k := range h {
		keys = append(keys, k)
	}
	return keys
}
