package probe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
	"github.com/pactsigner/pactsigner/probe"
)

// world is a real embedded signer with the audiences of a probe.
type world struct {
	server *server.Server
	issuer string
	token  string // of an admin
	device *probe.Device
}

// newWorld starts a signer that ends with the test.
func newWorld(t *testing.T, change ...func(*config.Config)) *world {
	t.Helper()
	c := config.Default()
	c.Data = t.TempDir()
	for _, l := range []*config.Listener{&c.Listeners.Public, &c.Listeners.GRPC, &c.Listeners.Admin, &c.Listeners.Ops} {
		l.Address = "127.0.0.1:0"
	}
	is := config.DefaultIssuer()
	is.Enrolment = "open"
	is.Limits = config.Limits{} // many probes of one device
	c.Issuers = []config.Issuer{is}
	for _, f := range change {
		f(&c)
	}
	s, err := server.New(c, server.Options{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ending, cancel := context.WithTimeout(context.Background(), time.Minute) // its own: the test may have taken longer
		defer cancel()
		if err := s.Shutdown(ending); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case <-ctx.Done():
		t.Fatal("the signer did not become ready")
	}
	token, err := os.ReadFile(s.Info().AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{server: s, issuer: s.Info().Issuers[0], token: strings.TrimSpace(string(token))}
	if w.device, err = probe.OpenDevice(filepath.Join(t.TempDir(), "state")); err != nil {
		t.Fatal(err)
	}
	w.operate(t, "PUT", "/v1/audiences", map[string]any{"origin": "https://probe.invalid", "audience": probe.DefaultAudience})
	w.operate(t, "PUT", "/v1/audiences", map[string]any{"origin": "https://killed.probe.invalid", "audience": probe.DefaultKilledAudience})
	w.kill(t, "audience", probe.DefaultKilledAudience)
	return w
}

// operate makes an admin call.
func (w *world) operate(t *testing.T, method, path string, body any) map[string]any {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, w.server.Info().Admin+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %d %s %v", method, path, resp.StatusCode, answer, err)
	}
	got := map[string]any{}
	if err := json.Unmarshal(answer, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// kill throws the switch; an embedded signer enforces it when it has answered.
func (w *world) kill(t *testing.T, kind, value string) {
	t.Helper()
	scope := map[string]any{"kind": kind}
	if value != "" {
		scope["value"] = value
	}
	w.operate(t, "POST", "/v1/kill", map[string]any{"scope": scope, "reason": "test"})
}

// credential makes one.
func (w *world) credential(t *testing.T) *probe.Credential {
	t.Helper()
	return probe.NewCredential(w.operate(t, "POST", "/v1/credentials", map[string]any{"name": "probe"})["credential"].(string))
}

// config is a probe of the world's device.
func (w *world) config() probe.Config {
	return probe.Config{
		Issuer: w.issuer, Device: w.device, KilledAudience: probe.DefaultKilledAudience,
		Deadline: 20 * time.Second, Timeout: 20 * time.Second, // the machine may be busy
	}
}

func (w *world) public() string { return hostPort(w.issuer) }

func hostPort(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	return rest
}

// round makes one round.
func round(t *testing.T, c probe.Config) probe.Report {
	t.Helper()
	p, err := probe.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p.Round(t.Context())
}

// ended are the checks that ended so, in the order of the report.
func ended(r probe.Report, o probe.Outcome) []string {
	list := []string{}
	for _, c := range r.Checks {
		if c.Outcome == o {
			list = append(list, c.Check)
		}
	}
	return list
}

// wants demands that exactly these checks failed.
func wants(t *testing.T, r probe.Report, failed ...string) {
	t.Helper()
	order := probe.Checks()
	slices.SortFunc(failed, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
	if got := ended(r, probe.Failed); !slices.Equal(got, failed) {
		t.Errorf("failed: %q, want %q", got, failed)
		for _, c := range r.Checks {
			t.Logf("%+v", c)
		}
	}
}

// find returns a check's result.
func find(t *testing.T, r probe.Report, check string) probe.Result {
	t.Helper()
	for _, c := range r.Checks {
		if c.Check == check {
			return c
		}
	}
	t.Fatalf("there is no check %s", check)
	return probe.Result{}
}

// exchange is a request and how the real signer answers it.
type exchange struct {
	*http.Request
	body   []byte
	asks   map[string]any // the body
	answer *httptest.ResponseRecorder
}

// breaker answers instead of the signer, if it returns true.
type breaker func(w http.ResponseWriter, x *exchange) bool

// proxy stands before a signer and breaks something. It returns host:port.
func (w *world) proxy(t *testing.T, f breaker) string {
	t.Helper()
	s := httptest.NewServer(w.broken(t, f))
	t.Cleanup(s.Close)
	return hostPort(s.URL)
}

// front ends TLS before the signer, with a certificate for example.com and what is
// below it.
func (w *world) front(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(w.broken(t, nil))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients turn away
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// broken is the signer, but for what f breaks.
func (w *world) broken(t *testing.T, f breaker) http.Handler {
	t.Helper()
	to, err := url.Parse(w.server.Info().Public)
	if err != nil {
		t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = to.Scheme, to.Host, r.In.Host
	}}
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		x := &exchange{Request: r, body: body, asks: map[string]any{}, answer: httptest.NewRecorder()}
		_ = json.Unmarshal(body, &x.asks) // what is not JSON asks for nothing
		in := r.Clone(r.Context())
		in.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(x.answer, in)
		if f != nil && f(out, x) {
			return
		}
		for name, values := range x.answer.Header() {
			out.Header()[name] = values
		}
		out.Header().Del("Content-Length")
		out.WriteHeader(x.answer.Code)
		out.Write(x.answer.Body.Bytes())
	})
}
