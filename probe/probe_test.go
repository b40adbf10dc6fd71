package probe_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/probe"
)

// A healthy signer passes every check, also in a hurry.
func TestHealthy(t *testing.T) {
	w := newWorld(t, func(c *config.Config) { c.Development.TimeScale = 4 })
	c := w.config()
	c.ConnectTo = "http://" + w.public()
	c.Replicas = []string{w.public(), strings.Replace(w.public(), "127.0.0.1", "localhost", 1)}
	c.GRPC = w.server.Info().GRPC
	c.Schedule = func(context.Context) (probe.Schedule, error) { return w.schedule(t), nil }
	r := round(t, c)
	wants(t, r)
	if got := ended(r, probe.Passed); !slices.Equal(got, probe.Checks()) {
		t.Errorf("passed: %q", got)
	}
	if !r.OK() || !r.Answered || r.Issuer != w.issuer {
		t.Errorf("%+v", r)
	}
	if d := find(t, r, probe.CheckReplicas).Detail; d != "2 replicas agree with the public URL" && d != "3 replicas agree with the public URL" { // ::1
		t.Error(d)
	}
}

// schedule is what operators are told.
func (w *world) schedule(t *testing.T) probe.Schedule {
	s := probe.Schedule{Revision: 3, Replicas: map[string]uint64{"a": 3}}
	s.JWKS = []byte(w.operate(t, "GET", "/v1/jwks", nil)["jwks"].(string))
	for _, k := range w.operate(t, "GET", "/v1/keys", nil)["keys"].([]any) {
		key := k.(map[string]any)
		at, err := time.Parse(time.RFC3339, key["signAt"].(string))
		if err != nil {
			t.Error(err)
		}
		s.Keys = append(s.Keys, probe.Key{ID: key["kid"].(string), State: key["state"].(string), SignAt: at})
	}
	return s
}

// With a credential the checks of assertions are left out, and it is said so.
func TestCredential(t *testing.T) {
	w := newWorld(t)
	c := w.config()
	c.Device, c.Credential = nil, w.credential(t)
	c.GRPC = w.server.Info().GRPC
	r := round(t, c)
	wants(t, r)
	want := []string{probe.CheckReplayed, probe.CheckEndpoint, probe.CheckAlgNone, probe.CheckExpired, probe.CheckTampered}
	if got := ended(r, probe.LeftOut); !slices.Equal(got, want) {
		t.Errorf("left out: %q", got)
	}
	c.Credential = probe.NewCredential("one that never was there")
	r = round(t, c)
	wants(t, r, probe.CheckStatus)
	if d := find(t, r, probe.CheckStatus); !strings.Contains(d.Detail, "401 unauthorized") || !strings.Contains(d.Remedy, "revoked") {
		t.Errorf("%+v", d)
	}
}

// Where devices need a token, it is used once, and probing goes on without it.
func TestEnrolmentToken(t *testing.T) {
	w := newWorld(t, func(c *config.Config) { c.Issuers[0].Enrolment = "token" })
	c := w.config()
	wants(t, round(t, c), probe.CheckEnroll, probe.CheckStatus)
	c.EnrollmentToken = probe.NewCredential(w.operate(t, "POST", "/v1/enrollment-tokens", map[string]any{})["token"].(string))
	wants(t, round(t, c))
	for _, later := range []*probe.Credential{c.EnrollmentToken, nil, probe.NewCredential("pact_enroll_that_expired_long_ago")} {
		c.EnrollmentToken = later
		r := round(t, c)
		wants(t, r)
		if got := find(t, r, probe.CheckEnroll); got.Outcome != probe.LeftOut || !strings.HasPrefix(got.Detail, "the device is known") {
			t.Errorf("%+v", got)
		}
	}
	// A refusal in somebody else's words is one all the same.
	c.EnrollmentToken = nil
	c.ConnectTo = w.proxy(t, only(enrollPath, fail(http.StatusUnauthorized)))
	wants(t, round(t, c), probe.CheckEnroll)
}

// What was sent stands in no report, also if what answers sends it back.
func TestEcho(t *testing.T) {
	w := newWorld(t)
	c := w.config()
	c.EnrollmentToken = probe.NewCredential("pact_enroll_" + strings.Repeat("SECRET", 20))
	var mu sync.Mutex
	var sent []string
	c.ConnectTo = w.proxy(t, func(out http.ResponseWriter, x *exchange) bool {
		said := map[string]any{"issuer": x.Header.Get("Authorization"), "subject": x.Header.Get("Authorization") + strings.Repeat("x", 5000)}
		mu.Lock()
		defer mu.Unlock()
		if _, authorization, ok := strings.Cut(x.Header.Get("Authorization"), " "); ok {
			sent = append(sent, authorization)
		}
		if x.URL.Path == statusPath && len(sent) > 1 {
			said["issuer"] = w.issuer
		}
		return give(out, http.StatusOK, said)
	})
	for _, credential := range []*probe.Credential{nil, probe.NewCredential("pact_" + strings.Repeat("SECRET", 10))} {
		if credential != nil {
			c.Device, c.EnrollmentToken, c.Credential = nil, nil, credential
		}
		r := round(t, c)
		said := fmt.Sprintf("%+v", r)
		if !strings.Contains(said, "[redacted]") {
			t.Error(said)
		}
		for _, c := range r.Checks {
			if len(c.Detail) > 2000 {
				t.Errorf("%s: %d bytes", c.Check, len(c.Detail))
			}
		}
		for _, s := range sent {
			if strings.Contains(said, s) || strings.Contains(said, "SECRET") {
				t.Errorf("%q stands in %s", s, said)
			}
		}
	}
}

// Rounds leave one device, and one entry in the audit log for each refusal that is
// written there.
func TestLeavesLittle(t *testing.T) {
	w := newWorld(t)
	c := w.config()
	var ahead time.Duration // of the signer's clock, however long the rounds take
	c.Now = func() time.Time { return time.Now().Add(ahead) }
	p, err := probe.New(c)
	if err != nil {
		t.Fatal(err)
	}
	refusals := func() int {
		return strings.Count(fmt.Sprint(w.operate(t, "GET", "/v1/audit", nil)), "action:refused")
	}
	for range 3 {
		ahead += 2 * time.Second
		wants(t, p.Round(t.Context()))
	}
	if n := refusals(); n != 2 {
		t.Errorf("%d refusals in the audit log", n)
	}
	if n := len(w.operate(t, "GET", "/v1/devices", nil)["devices"].([]any)); n != 1 {
		t.Errorf("%d devices", n)
	}
	r := p.Round(t.Context())
	if at := find(t, r, probe.CheckKilled).At; !at.Before(r.At) {
		t.Errorf("killed_audience does not stand since before: %v", at)
	}
	if at := find(t, r, probe.CheckAlgNone).At; at.Before(r.At) {
		t.Errorf("alg_none stands since %v", at)
	}
}

// Of a result that stands nothing is left once status shows that it is not so any more,
// and a failure is asked for again at once.
func TestStandsNoLonger(t *testing.T) {
	w := newWorld(t)
	p, err := probe.New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	wants(t, p.Round(t.Context()))
	entries := w.operate(t, "GET", "/v1/kill", nil)["entries"].([]any)
	scope := map[string]any{"kind": "audience", "value": probe.DefaultKilledAudience}
	w.operate(t, "POST", "/v1/resume", map[string]any{"scope": scope, "entryIds": []any{entries[0].(map[string]any)["id"]}, "reason": "test"})
	r := p.Round(t.Context())
	wants(t, r, probe.CheckKilled)
	if d := find(t, r, probe.CheckKilled).Remedy; !strings.Contains(d, "pactctl probe setup") {
		t.Error(d)
	}
	w.kill(t, "audience", probe.DefaultKilledAudience)
	wants(t, p.Round(t.Context()))
}

// What the kill switch covers cannot be told from what is refused for another reason:
// sign alone fails, and says why.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	c := w.config()
	wants(t, round(t, c))
	w.kill(t, "all", "")
	r := round(t, c)
	wants(t, r, probe.CheckEnroll, probe.CheckSign)
	if d := find(t, r, probe.CheckSign).Detail; !strings.Contains(d, "403 disabled: the kill switch") {
		t.Error(d)
	}
	if got := find(t, r, probe.CheckEndpoint); got.Outcome != probe.LeftOut || !strings.Contains(got.Detail, "kill switch") {
		t.Errorf("%+v", got)
	}
	if got := find(t, r, probe.CheckMember); got.Outcome != probe.Passed { // 400 comes first
		t.Errorf("%+v", got)
	}
}

// The gRPC face is judged by itself.
func TestGRPC(t *testing.T) {
	w := newWorld(t)
	c := w.config()
	c.GRPC = "127.0.0.1:1"
	wants(t, round(t, c), probe.CheckSignGRPC)
	c.GRPC = w.public() // REST
	r := round(t, c)
	wants(t, r, probe.CheckSignGRPC)
	if d := find(t, r, probe.CheckSignGRPC).Detail; !strings.Contains(d, "not in the signer's words") {
		t.Error(d)
	}
	w.kill(t, "audience", probe.DefaultAudience)
	c.GRPC = w.server.Info().GRPC
	r = round(t, c)
	wants(t, r, probe.CheckSign, probe.CheckSignGRPC)
	if d := find(t, r, probe.CheckSignGRPC).Detail; !strings.Contains(d, "PermissionDenied DISABLED: the kill switch covers") {
		t.Error(d)
	}
}

// A clock that is off is named.
func TestClock(t *testing.T) {
	w := newWorld(t)
	c := w.config()
	c.Now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	r := round(t, c)
	wants(t, r, probe.CheckEnroll, probe.CheckStatus)
	if d := find(t, r, probe.CheckStatus).Detail; !strings.Contains(d, "ahead of the signer's") {
		t.Error(d)
	}
}

// Without anybody there, all that is said is that.
func TestNobody(t *testing.T) {
	w := newWorld(t)
	c := w.config()
	c.ConnectTo, c.GRPC = "127.0.0.1:1", "127.0.0.1:1"
	c.Replicas, c.Settle = []string{"127.0.0.1:1"}, time.Nanosecond
	r := round(t, c)
	wants(t, r, probe.CheckEnroll, probe.CheckStatus, probe.CheckJWKS, probe.CheckReplicas)
	if r.Answered {
		t.Error("somebody answered")
	}
}

// The socket goes where it is told to, over TLS too; who answers there must be who
// the URL names.
func TestTLS(t *testing.T) {
	w := newWorld(t, func(c *config.Config) {
		c.Issuers[0].URL = "https://pa.example.net"
	})
	front := w.front(t)
	c := w.config()
	c.Replicas = []string{"http://" + hostPort(w.server.Info().Public)}
	c.GRPC = "http://" + w.server.Info().GRPC
	c.ConnectTo = "http://" + hostPort(w.server.Info().Public)
	wants(t, round(t, c))

	reached := []string{probe.CheckEnroll, probe.CheckStatus, probe.CheckJWKS}
	c.ConnectTo, c.GRPC, c.Replicas = hostPort(front.URL), "", nil
	r := round(t, c)
	wants(t, r, reached...)
	if d := find(t, r, probe.CheckStatus).Detail; !strings.Contains(d, "certificate") {
		t.Error(d)
	}
	c.RootCAs = x509.NewCertPool()
	c.RootCAs.AddCert(front.Certificate())
	r = round(t, c)
	wants(t, r, reached...)
	if d := find(t, r, probe.CheckStatus).Detail; !strings.Contains(d, "pa.example.net") {
		t.Error(d)
	}
	c.ConnectTo = hostPort(w.server.Info().Public)
	r = round(t, c)
	wants(t, r, reached...)
	if d := find(t, r, probe.CheckStatus).Detail; !strings.Contains(d, "no TLS is spoken there") {
		t.Error(d)
	}
}

// A certificate for the issuer's own name, from a private authority, will do.
func TestPrivateCA(t *testing.T) {
	w := newWorld(t, func(c *config.Config) { c.Issuers[0].URL = "https://example.com" })
	front := w.front(t)
	c := w.config()
	c.ConnectTo, c.Replicas = hostPort(front.URL), []string{hostPort(front.URL)}
	c.RootCAs = x509.NewCertPool()
	c.RootCAs.AddCert(front.Certificate())
	wants(t, round(t, c))
}

// A configuration is refused by the name of its field.
func TestConfigErrors(t *testing.T) {
	device := &probe.Device{}
	good := probe.Config{Issuer: "https://pa.example.com", Device: device}
	if _, err := probe.New(good); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*probe.Config){
		"Issuer":         func(c *probe.Config) { c.Issuer = "pa.example.com" },
		"Signer":         func(c *probe.Config) { c.Signer = "https://pa.example.com/" },
		"Credential":     func(c *probe.Config) { c.Device = nil },
		"KilledAudience": func(c *probe.Config) { c.KilledAudience = probe.DefaultAudience },
		"ConnectTo":      func(c *probe.Config) { c.ConnectTo = "host" },
		"Replicas":       func(c *probe.Config) { c.Replicas = []string{"ftp://a:1"} },
		"GRPC":           func(c *probe.Config) { c.GRPC = "a:0" },
		"Deadline":       func(c *probe.Config) { c.Deadline = time.Minute },
		"Settle":         func(c *probe.Config) { c.Settle = -1 },
	} {
		c := good
		change(&c)
		if _, err := probe.New(c); err == nil || !strings.HasPrefix(err.Error(), "probe: "+field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// The device's key is made once, for nobody else, and is the same afterwards; one in
// a Secret will do.
func TestDeviceKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	first, err := probe.OpenDevice(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := probe.OpenDevice(dir)
	if err != nil || second.Thumbprint() != first.Thumbprint() || len(first.Thumbprint()) != 43 {
		t.Errorf("%v, %q and %q", err, first.Thumbprint(), second.Thumbprint())
	}
	file := filepath.Join(dir, "device.key")
	for path, want := range map[string]fs.FileMode{dir: 0o700 | fs.ModeDir, file: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
	if s := fmt.Sprintf("%v %+v %#v %s", first, first, first, probe.NewCredential("secret")); strings.Contains(s, "secret") || strings.Contains(s, first.Thumbprint()) {
		t.Error(s)
	}
	for mode, ok := range map[fs.FileMode]bool{0o440: true, 0o400: true, 0o644: false, 0o604: false} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := probe.OpenDevice(dir); (err == nil) != ok {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := probe.OpenDevice(dir); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Error(err)
	}
}

// A round that is cut off ends at once.
func TestCutOff(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan struct{})
	c := w.config()
	c.ConnectTo = w.proxy(t, func(_ http.ResponseWriter, x *exchange) bool {
		close(hung)
		<-x.Context().Done()
		return true
	})
	c.Timeout = time.Hour
	p, err := probe.New(c)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Loop(ctx, time.Hour, func(r probe.Report) { t.Errorf("reported %+v", r) })
	}()
	<-hung
	cancel()
	<-done
}
