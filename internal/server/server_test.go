package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/pactsigner/pactsigner/internal/config"
)

// launch starts a server, waits until it is ready and stops it with the test.
func launch(t *testing.T, c config.Config) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := New(c, Options{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // its time begins here, however long the test took
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	select {
	case <-s.Ready():
	case <-s.Failed():
		t.Fatalf("failed: %v", s.Shutdown(ctx))
	case <-ctx.Done():
		t.Fatalf("not ready: %v", s.unready())
	}
	return s
}

func fetch(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// Several servers run in one process, each with issuers and keys of its own,
// and leave nothing behind.
func TestSeveralServers(t *testing.T) {
	before := goleak.IgnoreCurrent()
	client := &http.Client{Transport: &http.Transport{}}
	func() {
		a, b := launch(t, testConfig(t)), launch(t, testConfig(t))
		if a.Info().Public == b.Info().Public || a.replica == b.replica {
			t.Fatalf("%+v and %+v", a.Info(), b.Info())
		}
		_, keysA := fetch(t, client, a.Info().Issuers[0]+"/.well-known/jwks.json")
		_, keysB := fetch(t, client, b.Info().Issuers[0]+"/.well-known/jwks.json")
		if keysA == keysB || !strings.Contains(keysA, `"kid"`) {
			t.Errorf("key sets %s and %s", keysA, keysB)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for range 2 { // the second does nothing
			for _, s := range []*Server{a, b} {
				if err := s.Shutdown(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		// What it had is free again.
		again := a.cfg
		launch(t, again).Shutdown(ctx)
	}()
	client.CloseIdleConnections()
	goleak.VerifyNone(t, before)
}

func TestNotStarted(t *testing.T) {
	before := goleak.IgnoreCurrent()
	ctx := context.Background()
	s, err := New(testConfig(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := testConfig(t)
	c.Listeners.Ops.Address = taken.Addr().String() // the last to be bound
	s, err = New(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(ctx); err == nil || !strings.Contains(err.Error(), "listeners.ops.address") {
		t.Fatalf("started with %v", err)
	}
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", s.public.Addr().String()); err == nil {
		t.Error("the public listener is open still")
	}
	goleak.VerifyNone(t, before)
	if _, err := New(config.Config{}, Options{}); err == nil {
		t.Error("an empty configuration was taken")
	}
}

// certificateFiles writes a certificate for 127.0.0.1.
func certificateFiles(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(cert)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return certFile, keyFile, pool
}

// Every face can speak TLS, and then speaks nothing else.
func TestTLS(t *testing.T) {
	certFile, keyFile, pool := certificateFiles(t)
	c := testConfig(t)
	for _, l := range []*config.Listener{&c.Listeners.Public, &c.Listeners.GRPC, &c.Listeners.Admin, &c.Listeners.Ops} {
		l.CertFile, l.KeyFile = certFile, keyFile
	}
	s := launch(t, c)
	info := s.Info()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	if !strings.HasPrefix(info.Issuers[0], "https://127.0.0.1:") {
		t.Errorf("issuer %s", info.Issuers[0])
	}
	for url, want := range map[string]int{
		info.Public + "/.well-known/jwks.json": 200,
		info.Ops + "/readyz":                   200,
		info.Admin + "/v1/fleet":               401,
	} {
		if code, body := fetch(t, client, url); code != want {
			t.Errorf("%s: %d %s", url, code, body)
		}
	}
	conn, err := grpc.NewClient(info.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	health, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil || health.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%v %v", health, err)
	}
	plain := strings.Replace(info.Admin, "https://", "http://", 1)
	if code, body := fetch(t, client, plain+"/v1/fleet"); code != 400 {
		t.Errorf("without TLS: %d %s", code, body)
	}
	c.Listeners.Public.CertFile = filepath.Join(t.TempDir(), "none.pem")
	if s, err := New(c, Options{}); err != nil {
		t.Error(err)
	} else if err := s.Start(context.Background()); err == nil || !strings.Contains(err.Error(), "listeners.public") {
		t.Errorf("started with %v", err)
	}
}

// A health watch does not hold up a stop, and hears of it.
func TestWatchEndsWithStop(t *testing.T) {
	s := launch(t, testConfig(t))
	conn, err := grpc.NewClient(s.Info().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch, err := healthpb.NewHealthClient(conn).Watch(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if state, err := watch.Recv(); err != nil || state.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("%v %v", state, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Error("the stop was held up")
	}
	for { // not serving, perhaps, and then the end
		if _, err := watch.Recv(); err != nil {
			break
		}
	}
}

// After the time for draining is up, what is left is cut off and the state is
// closed all the same.
func TestDrainIsBounded(t *testing.T) {
	s := launch(t, testConfig(t))
	conn, err := net.Dial("tcp", s.public.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /pact/status HTTP/1.1\r\nHost: "+s.public.Addr().String()+
		"\r\nContent-Type: application/json\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the connection ended with %v", err)
	}
	launch(t, s.cfg)
}

// Readiness names what is missing.
func TestUnready(t *testing.T) {
	c := testConfig(t)
	c.Development.TimeScale = 10 // permits are short
	s := launch(t, c)
	ops := s.opsHandler()
	ask := func() (int, string) {
		w := httptest.NewRecorder()
		ops.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return w.Code, w.Body.String()
	}
	eventually(t, func() string { // a permit that ran out on a busy machine is taken anew
		if code, body := ask(); code != 200 || body != "{\"ready\":true}\n" {
			return fmt.Sprintf("%d %s", code, body)
		}
		return ""
	})
	if err := s.state.store.Close(); err != nil { // the permit runs out
		t.Fatal(err)
	}
	eventually(t, func() string {
		if code, body := ask(); code != 503 || !strings.Contains(body, "kill switch: ") {
			return fmt.Sprintf("%d %s", code, body)
		}
		return ""
	})
	if code, _ := fetch(t, http.DefaultClient, s.Info().Public+"/livez"); code != 200 {
		t.Errorf("/livez: %d", code)
	}
	s.state.store = nil // closed above
}

func TestAuthority(t *testing.T) {
	bound := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8787}
	web := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443}
	for _, c := range []struct {
		configured string
		bound      net.Addr
		scheme     string
		want       string
	}{
		{"127.0.0.1:0", bound, "http", "127.0.0.1:8787"},
		{"LocalHost:8787", bound, "http", "localhost:8787"},
		{":8787", bound, "http", "127.0.0.1:8787"},
		{"0.0.0.0:8787", bound, "http", "127.0.0.1:8787"},
		{"[::]:8787", bound, "http", "[::1]:8787"},
		{"[::1]:0", bound, "https", "[::1]:8787"},
		{"[::1]:443", web, "https", "[::1]"},
		{"127.0.0.1:443", web, "https", "127.0.0.1"},
		{"127.0.0.1:443", web, "http", "127.0.0.1:443"},
	} {
		if got := authority(c.configured, c.bound, c.scheme); got != c.want {
			t.Errorf("%s bound to %v over %s: %s, want %s", c.configured, c.bound, c.scheme, got, c.want)
		}
	}
}
