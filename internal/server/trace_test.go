package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // what exporters send
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/internal/config"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// collector is an OpenTelemetry collector that keeps what it gets.
type otelCollector struct {
	collectorpb.UnimplementedTraceServiceServer
	address, caFile string

	mu       sync.Mutex
	spans    []*tracepb.Span
	resource map[string]string
	headers  map[string]string
	path     string
}

// Export implements the collector's service.
func (c *otelCollector) Export(ctx context.Context, req *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	c.take(req, func(name string) string { return strings.Join(md.Get(name), ",") })
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *otelCollector) take(req *collectorpb.ExportTraceServiceRequest, header func(string) string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = map[string]string{"authorization": header("authorization")}
	c.resource = make(map[string]string)
	for _, r := range req.ResourceSpans {
		for _, a := range r.Resource.Attributes {
			c.resource[a.Key] = a.Value.GetStringValue()
		}
		for _, s := range r.ScopeSpans {
			c.spans = append(c.spans, s.Spans...)
		}
	}
}

func (c *otelCollector) got() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// collectGRPC is one that is spoken to by gRPC.
func collectGRPC(t *testing.T) *otelCollector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &otelCollector{address: l.Addr().String()}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return c
}

// collectHTTP is one that is spoken to by HTTP over TLS.
func collectHTTP(t *testing.T) *otelCollector {
	t.Helper()
	c := &otelCollector{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body, err := io.ReadAll(unzipped)
		req := new(collectorpb.ExportTraceServiceRequest)
		if err == nil {
			err = proto.Unmarshal(body, req)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		c.path = r.URL.Path
		c.mu.Unlock()
		c.take(req, r.Header.Get)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(server.Close)
	c.address = server.Listener.Addr().String()
	c.caFile = filepath.Join(t.TempDir(), "ca.pem")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(c.caFile, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// traced starts a server whose log goes to the buffer; stop ends it.
func traced(t *testing.T, c config.Config, log *lockedBuffer) (s *Server, stop func()) {
	t.Helper()
	s, err := New(c, Options{Version: "test", Log: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	}
	t.Cleanup(stop)
	s.awaitReady(t)
	return s, stop
}

// lockedBuffer is a log in memory.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// path is the chain of names from the root to a span, within what was collected.
func path(spans []*tracepb.Span, s *tracepb.Span) string {
	for _, parent := range spans {
		if bytes.Equal(parent.SpanId, s.ParentSpanId) {
			return path(spans, parent) + " > " + s.Name
		}
	}
	return s.Name
}

// attributesOf are a span's, as text.
func attributesOf(s *tracepb.Span) map[string]string {
	all := make(map[string]string)
	for _, a := range s.Attributes {
		all[a.Key] = a.Value.GetStringValue()
		if a.Value.GetStringValue() == "" {
			all[a.Key] = fmt.Sprint(a.Value.GetIntValue())
		}
	}
	return all
}

// A sign is one trace, from the listener to Redis and Vault, which is all out when the
// server has stopped; and it tells nobody who signed what.
func TestTraceOfASign(t *testing.T) {
	collector := collectGRPC(t)
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onVault(t, onRedis(t, redis.Addr()), servers.StartVault(t, servers.VaultOptions{}), false)
	c.Tracing = config.Tracing{Endpoint: collector.address, Protocol: "grpc", Insecure: true, SampleRatio: 1}
	c.Development.TimeScale = 1 // who is held up for a second keeps its permit: a 503 has spans too
	admin := mustInit(t, c)
	var log lockedBuffer
	s, stop := traced(t, c, &log)
	credential := s.letIn(t, admin)
	token := s.signs(t, credential)
	conn, err := grpc.NewClient(s.Info().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+credential)
	var wg sync.WaitGroup
	for range 16 { // some share a batch
		wg.Go(func() {
			if _, err := signerv1.NewSignerServiceClient(conn).Sign(ctx, &signerv1.SignRequest{Audience: fleetAudience, Nonce: "the-nonce"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	operator, err := grpc.NewClient(hostPort(s.Info().Admin), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	if _, err := signerv1.NewAdminServiceClient(operator).KillStatus(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+admin),
		new(signerv1.KillStatusRequest)); err != nil {
		t.Errorf("an operator on gRPC: %v", err)
	}
	stop()

	spans := collector.got()
	if !slices.ContainsFunc(spans, func(s *tracepb.Span) bool { return path(spans, s) == "admin KillStatus > store switch" }) {
		t.Error("no trace of the operator's call")
	}
	paths := make(map[string]int)
	links, batched := 0, int64(0)
	for _, span := range spans {
		p := path(spans, span)
		if !strings.HasPrefix(p, "admin ") { // letIn
			paths[p]++
		}
		if span.Name == "custody batch" {
			links += len(span.Links)
			for _, a := range span.Attributes {
				if a.Key == "pact.batch_size" {
					batched += a.Value.GetIntValue()
				}
			}
		}
		for key, value := range attributesOf(span) {
			if !slices.Contains([]string{"http.response.status_code", "pact.request_id", "pact.result", "pact.operation", "pact.issuer", "pact.batch_size"}, key) {
				t.Errorf("span %s has %s=%q", span.Name, key, value)
			}
		}
		text := span.String()
		for what, secret := range map[string]string{"the credential": credential, "a token": token, "an audience": fleetAudience, "a nonce": "the-nonce", "the admin token": admin, "an address": "127.0.0.1"} {
			if strings.Contains(text, secret) {
				t.Errorf("span %s tells %s", span.Name, what)
			}
		}
	}
	batches := 0
	for p, n := range paths {
		if strings.HasSuffix(p, " > custody batch") {
			batches += n
		}
	}
	for p, n := range map[string]int{
		"POST sign": 1, "POST sign > signer sign": 1,
		"POST sign > signer sign > store authorize":                           1,
		"POST sign > signer sign > custody sign":                              1,
		"POST sign > signer sign > custody sign > custody batch > vault sign": 1,
		"gRPC sign": 16, "gRPC sign > signer sign": 16, "gRPC sign > signer sign > store authorize": 16, "gRPC sign > signer sign > custody sign": 16,
	} {
		if paths[p] != n {
			t.Errorf("%d spans of %s, want %d", paths[p], p, n)
		}
	}
	if batched != 17 || batches+links != 17 {
		t.Errorf("%d batches with %d signatures, and %d links", batches, batched, links)
	}
	for p := range paths { // nothing that the replica does by itself
		if !strings.HasPrefix(p, "POST sign") && !strings.HasPrefix(p, "gRPC sign") {
			t.Errorf("a trace of %s", p)
		}
	}
	if collector.resource["service.name"] != "pact-signer" || collector.resource["service.version"] != "test" || collector.resource["service.instance.id"] != s.replica {
		t.Errorf("the resource is %v", collector.resource)
	}
	found := 0
	for line := range strings.Lines(log.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if entry["msg"] != "issued" {
			continue
		}
		for _, span := range spans {
			if id, ok := attributesOf(span)["pact.request_id"]; ok && id == entry["request_id"] && fmt.Sprintf("%x", span.TraceId) == entry["trace_id"] {
				found++
			}
		}
	}
	if found != 17 {
		t.Errorf("%d of 17 tokens are in the log with their trace", found)
	}
	if sent := s.metrics.catalogValue(t, "pact_signer_trace_spans_total", "sent"); int(sent) != len(spans) {
		t.Errorf("%v spans were counted, %d came", sent, len(spans))
	}
}

// By HTTP over TLS, with a header from a file. A caller's trace is gone on with only
// where callers are trusted.
func TestTraceOverHTTP(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, trust := range []bool{false, true} {
		t.Run(fmt.Sprint("trust ", trust), func(t *testing.T) {
			collector := collectHTTP(t)
			headers := filepath.Join(t.TempDir(), "headers")
			if err := os.WriteFile(headers, []byte("Authorization: Bearer collector-secret\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			c := testConfig(t)
			c.Tracing = config.Tracing{
				Endpoint: collector.address + "/otlp/v1/traces", Protocol: "http", CAFile: collector.caFile, HeadersFile: headers,
				SampleRatio: map[bool]float64{false: 1, true: 0}[trust], TrustParent: trust,
			}
			var log lockedBuffer
			s, stop := traced(t, c, &log)
			for _, header := range []string{parent, ""} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", s.Info().Public+"/pact/status", strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				if header != "" {
					req.Header.Set("Traceparent", header)
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
			}
			stop()
			names := make(map[string]int)
			for _, span := range collector.got() {
				names[span.Name]++
				if ours := fmt.Sprintf("%x", span.TraceId) != "0af7651916cd43dd8448eb211c80319c"; ours == trust {
					t.Errorf("span %s is of trace %x", span.Name, span.TraceId)
				}
			}
			want := map[string]int{"POST status": 2, "signer status": 2}
			if trust { // what nobody asked for is not sampled
				want = map[string]int{"POST status": 1, "signer status": 1}
			}
			if !maps.Equal(names, want) {
				t.Errorf("spans %v, want %v", names, want)
			}
			if collector.headers["authorization"] != "Bearer collector-secret" || collector.path != "/otlp/v1/traces" {
				t.Errorf("posted to %s with %v", collector.path, collector.headers)
			}
			if strings.Contains(log.String(), "collector-secret") {
				t.Error("the header is in the log")
			}
		})
	}
}

// What the environment says to OpenTelemetry's libraries neither moves spans nor stops
// the signer, and no header of it comes out.
func TestTraceIsNotWhatTheEnvironmentSays(t *testing.T) {
	for name, value := range map[string]string{
		"ENDPOINT": "http://127.0.0.1:1/elsewhere", "INSECURE": "true", "PROTOCOL": "http/json", "COMPRESSION": "none", "TIMEOUT": "1",
		"HEADERS": "Authorization: Bearer environment-secret", "TRACES_HEADERS": "authorization=of the environment", "CERTIFICATE": collectHTTP(t).caFile,
	} {
		t.Setenv("OTEL_EXPORTER_OTLP_"+name, value)
	}
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=signer-0,service.name=other,broken")
	environment := os.Environ()
	for protocol, collector := range map[string]*otelCollector{"grpc": collectGRPC(t), "http": collectHTTP(t)} {
		t.Run(protocol, func(t *testing.T) {
			for _, v := range environment {
				if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OTEL_") {
					t.Setenv(name, value)
				}
			}
			c := testConfig(t)
			c.Tracing = config.Tracing{Endpoint: collector.address, Protocol: protocol, Insecure: protocol == "grpc", CAFile: collector.caFile, SampleRatio: 1}
			var log lockedBuffer
			s, stop := traced(t, c, &log)
			resp, err := http.Post(s.Info().Public+"/pact/status", "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			stop()
			if n := len(collector.got()); n != 2 {
				t.Errorf("%d spans came, want 2: %s", n, log.String())
			}
			if collector.headers["authorization"] != "" || protocol == "http" && collector.path != "/v1/traces" {
				t.Errorf("sent to %s with %v", collector.path, collector.headers)
			}
			if collector.resource["k8s.pod.name"] != "signer-0" || collector.resource["service.name"] != "pact-signer" {
				t.Errorf("the resource is %v", collector.resource)
			}
			if !strings.Contains(log.String(), "missing value") {
				t.Errorf("the log does not tell what is wrong with the resource's attributes: %s", log.String())
			}
		})
	}
}

// A collector that is away holds up neither requests nor the end, and is told of once.
func TestTraceToNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // takes connections, and never answers
	c := testConfig(t)
	c.Tracing = config.Tracing{Endpoint: l.Addr().String(), Protocol: "grpc", Insecure: true, SampleRatio: 1}
	var log lockedBuffer
	s, _ := traced(t, c, &log)
	if code, body := fetch(t, http.DefaultClient, s.Info().Public+"/.well-known/jwks.json"); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	resp, err := http.Post(s.Info().Public+"/pact/status", "application/json", strings.NewReader("{}"))
	if err != nil || resp.StatusCode != 401 {
		t.Fatalf("%v %v", resp, err)
	}
	resp.Body.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if failed := s.metrics.catalogValue(t, "pact_signer_trace_spans_total", "failed"); failed != 2 {
		t.Errorf("%v spans failed, want 2", failed)
	}
	if n := strings.Count(log.String(), "takes no traces"); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// Tracing that is off costs nothing.
func TestNoTraceCostsNothing(t *testing.T) {
	m := newMetrics("test")
	ctx := t.Context()
	r := httptest.NewRequest(http.MethodPost, "/pact/sign", nil)
	operations := []string{storeAuthorize, storeDevice}
	i := 0
	if n := testing.AllocsPerRun(100, func() {
		i++
		operation := operations[i%2]
		ctx, span := m.tracing.child(ctx, "store", operation)
		endSpan(span, "ok")
		ctx, span = m.tracing.rootGRPC(ctx, operation, "id")
		endSpan(span, "ok")
		_, span = m.tracing.rootHTTP(r, "POST", operation, "id")
		endRequest(span, "ok", 200)
		_, ended := m.Call(ctx, operation, "issuer")
		ended(nil)
		m.Issued("issuer", signer.DeviceCaller)
		_, c := (&observedStore{m: m}).begin(ctx, operation)
		c.end(ctx, nil)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// catalogValue is that of a counter with one label.
func (m *metrics) catalogValue(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, metric := range f.Metric {
			if f.GetName() == name && metric.Label[0].GetValue() == label {
				return metric.Counter.GetValue()
			}
		}
	}
	return -1
}
