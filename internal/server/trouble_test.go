package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/vault/api"
	"github.com/prometheus/client_golang/prometheus"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/test/servers"
)

// What alerts wait for is told when it is so: of a replica whose clock is ahead, whose
// login ends, whose enrolment is closed, and whose Vault goes away.
func TestMetricsOfTrouble(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{})
	c := onVault(t, onRedis(t, servers.StartRedis(t, servers.RedisOptions{}).Addr()), v, false)
	login, err := v.Client().Auth().Token().Create(&api.TokenCreateRequest{Policies: []string{"root"}, TTL: "1h"})
	if err != nil {
		t.Fatal(err)
	}
	c.Custody.Vault.Auth.TokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(c.Custody.Vault.Auth.TokenFile, []byte(login.Auth.ClientToken), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := mustInit(t, c)
	proxy := servers.NewProxy(t, strings.TrimPrefix(v.Addr, "http://"))
	c.Custody.Vault.Addresses = []string{"http://" + proxy.Addr()}
	c.Development.ClockOffset = 3 * time.Second
	s := run(t, c)
	s.awaitReady(t)
	tells := func(name, labels string, least, most float64) {
		t.Helper()
		eventually(t, func() string {
			if got := s.scrape(t).value(name, labels); got < least || got > most {
				return fmt.Sprintf("%s{%s} is %v, want %v to %v", name, labels, got, least, most)
			}
			return ""
		})
	}
	now, gauges := float64(time.Now().Unix()), s.metrics.gauges
	tells("clock_offset_seconds", "", 2.5, 3.5) // ahead of the store's
	remaining := -1.0
	eventually(t, func() string {
		least := s.guard.Permit()
		collector{s}.replica(gauges, func(d *prometheus.Desc, v float64, _ ...string) {
			if d == gauges.permit {
				remaining = v
			}
		})
		most := s.guard.Permit()
		if whole := s.switchParams.Permit; most.Age < least.Age || remaining < (whole-most.Age).Seconds() || remaining > (whole-least.Age).Seconds() {
			return fmt.Sprintf("%v of a permit of %v is %v s", least.Age, whole, remaining)
		}
		return ""
	})
	tells("custody_token_expiry_timestamp_seconds", "", now+3000, now+3700)
	tells("custody_token_lease_seconds", "", 3000, 3600)
	tells("audit_head_behind", "", 0, 0)

	if _, err := s.keeper.change(t.Context(), func(d *deployment) error { d.EnrolmentClosed = true; return nil }); err != nil {
		t.Fatal(err)
	}
	tells("enrolment_closed", "", 1, 1)

	s.mustOperate(t, admin, "POST", "/v1/keys:rotate", map[string]any{"reason": "test"})
	is := s.issuers[0]
	is.params.Lead = -time.Hour // the turn of the next key was long ago
	postponed := -1.0
	collector{s}.keys(is, gauges, func(d *prometheus.Desc, v float64, _ ...string) {
		if d == gauges.postponed {
			postponed = v
		}
	})
	if postponed != 1 {
		t.Errorf("rotation_postponed is %v", postponed)
	}

	signs, ok := is.keys.Schedule().Signing(s.now())
	if !ok {
		t.Fatal("no key signs")
	}
	proxy.Hang()
	ctx, leave := context.WithCancel(t.Context())
	for i := range 200 {
		go func() {
			digest := sha256.Sum256([]byte{byte(i)})
			_, _ = s.state.keyring.Sign(ctx, signs.Ref, digest[:])
		}()
	}
	tells("custody_queued", "", 1, 200)
	leave()

	proxy.Cut()
	s.mustOperate(t, admin, "POST", "/v1/devices/"+strings.Repeat("A", 43)+":invalidate", map[string]any{"reason": "stolen"})
	tells("audit_head_behind", "", 1, 1)
	if _, err := is.keys.Advance(t.Context()); err == nil {
		t.Fatal("the key schedule was read from a Vault that is away")
	}
	tells("rotation_failing", is.url, 1, 1)
}

// What an operator asked for and was refused is no failure of the signer's.
func TestAdminResults(t *testing.T) {
	m := newMetrics("test")
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		m.adminCall(code.String(), status.Error(code, ""))
	}
	w := httptest.NewRecorder()
	m.handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, failed := range []codes.Code{codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss} {
		if want := fmt.Sprintf(`pact_signer_admin_requests_total{method=%q,result="failed"} 1`, failed); !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s is not counted as failed", failed)
		}
	}
	if n := strings.Count(w.Body.String(), `result="refused"} 1`); n != 10 {
		t.Errorf("%d of 10 codes are counted as refused", n)
	}
}

func (a answers) Mirror(context.Context, string, uint64, []byte) error { return a.err }

// A mirrored schedule and Vault's full queue count where the page says.
func TestPartsCountApart(t *testing.T) {
	m := newMetrics("test")
	if err := (&observedStore{answers{}, m}).Mirror(t.Context(), "", 1, nil); err != nil {
		t.Fatal(err)
	}
	vaultObserver{m}.Full()
	w := httptest.NewRecorder()
	m.handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`pact_signer_store_request_duration_seconds_count{operation="schedule",result="ok"} 1`, `pact_signer_limits_hit_total{limit="queue"} 1`,
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

// A span is an error where the signer or what it stands on failed, not where a caller was refused.
func TestSpansThatFailed(t *testing.T) {
	for result, want := range map[string]otelcodes.Code{
		"failed": otelcodes.Error, "unavailable": otelcodes.Error, "unreachable": otelcodes.Error, "sealed": otelcodes.Error, "other": otelcodes.Error,
		"ok": otelcodes.Unset, "refused": otelcodes.Unset, "unauthorized": otelcodes.Unset, "rate_limited": otelcodes.Unset, "cancelled": otelcodes.Unset,
	} {
		spans := tracetest.NewSpanRecorder()
		_, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test").Start(t.Context(), "call")
		endSpan(span, result)
		if got := spans.Ended()[0].Status().Code; got != want {
			t.Errorf("%s is %v, want %v", result, got, want)
		}
	}
}

// Each listener serves its exchanged certificate, without anybody's doing.
func TestEveryCertificateIsRenewed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &Server{log: slog.New(slog.DiscardHandler)}
		before := map[*face]*tls.Certificate{}
		exchange := func() {}
		for name, f := range map[string]**face{"public": &s.public, "grpc": &s.grpc, "admin": &s.admin, "ops": &s.ops} {
			certFile, keyFile, _ := certificateFiles(t)
			c, err := loadCertificate(config.Listener{CertFile: certFile, KeyFile: keyFile})
			if err != nil {
				t.Fatal(err)
			}
			*f = &face{name: name, certificate: c}
			before[*f] = c.current.Load()
			rest := exchange
			exchange = func() {
				rest()
				laterCert, laterKey, _ := certificateFiles(t)
				copyFile(t, laterCert, certFile)
				copyFile(t, laterKey, keyFile)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		go s.keepCertificates(ctx)
		exchange()
		time.Sleep(renewEvery)
		synctest.Wait()
		for f, old := range before {
			if f.certificate.current.Load().Leaf.Equal(old.Leaf) {
				t.Errorf("%s still serves the certificate before", f.name)
			}
		}
		stop()
	})
}

// No listener speaks a TLS before 1.2.
func TestNoOldTLS(t *testing.T) {
	certFile, keyFile, pool := certificateFiles(t)
	c := testConfig(t)
	for _, l := range []*config.Listener{&c.Listeners.Public, &c.Listeners.GRPC, &c.Listeners.Admin, &c.Listeners.Ops} {
		l.CertFile, l.KeyFile = certFile, keyFile
	}
	s := launch(t, c)
	for _, f := range []*face{s.public, s.grpc, s.admin, s.ops} {
		for version, spoken := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true} {
			conn, err := tls.Dial("tcp", f.Addr().String(), &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS10, MaxVersion: version, NextProtos: []string{"h2"}})
			if (err == nil) != spoken {
				t.Errorf("%s: %s: %v", f.name, tls.VersionName(version), err)
			}
			if err == nil {
				conn.Close()
			}
		}
	}
}
