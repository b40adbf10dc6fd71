package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

const (
	provider = "https://provider.example"
	audience = "pact-audience-1"
)

func (o operator) setAudience() {
	o.t.Helper()
	o.must("PUT", "/v1/audiences", map[string]any{"origin": provider, "audience": audience})
}

// One process, seen by an operator, a probe and a client that know nothing but
// the printed line and the contract.
func TestServe(t *testing.T) {
	data := filepath.Join(t.TempDir(), "made", "by", "serve")
	p := start(t, "--data", data)
	if len(p.info.Issuers) != 1 || p.info.Issuers[0] != p.info.Public || !strings.HasPrefix(p.info.Public, "http://127.0.0.1:") {
		t.Fatalf("the embedded issuer is not the public URL: %s", p.line)
	}
	if _, _, err := net.SplitHostPort(p.info.GRPC); err != nil {
		t.Fatalf("grpc %q is not host:port", p.info.GRPC)
	}

	t.Run("admin token file", func(t *testing.T) {
		stat, err := os.Stat(p.info.AdminTokenFile)
		if err != nil || stat.Mode().Perm() != 0o600 {
			t.Fatalf("%v, %v", stat, err)
		}
		if dir, err := os.Stat(data); err != nil || dir.Mode().Perm() != 0o700 {
			t.Fatalf("data folder: %v, %v", dir, err)
		}
		fleet := p.operator().must("GET", "/v1/fleet", nil)
		if replicas := list(t, fleet, "replicas"); len(replicas) != 1 || replicas[0]["ready"] != true {
			t.Errorf("replicas: %v", replicas)
		}
		wrong := p.operator()
		wrong.token += "x"
		if code, _, _ := wrong.call("GET", "/v1/fleet", nil); code != 401 {
			t.Errorf("a wrong token: %d", code)
		}
		if strings.Contains(p.logs.String(), p.adminToken()) {
			t.Error("the token is in the log")
		}
	})

	t.Run("enrol, sign, verify", func(t *testing.T) {
		p.operator().setAudience()
		c, d := client{t: t, base: p.info.Public}, newDevice(t)
		subject := c.enroll(d)
		if again := c.enroll(d); again != subject {
			t.Errorf("enrolled again: %s, was %s", again, subject)
		}
		answer := c.must(200, "/pact/status", c.as(d, "/pact/status"), map[string]any{})
		if answer["issuer"] != p.info.Public || answer["subject"] != subject || answer["disabled"] != false ||
			fmt.Sprint(answer["audiences"]) != fmt.Sprint(map[string]any{provider: audience}) {
			t.Errorf("status: %v", answer)
		}
		token := c.sign(d, audience)
		claims := verify(t, c.keySet(), token)
		if claims["iss"] != p.info.Public || claims["sub"] != subject || claims["aud"] != audience || claims["exp"].(float64)-claims["iat"].(float64) != 120 {
			t.Errorf("claims: %v", claims)
		}
		if strings.Contains(p.logs.String(), token) {
			t.Error("the token is in the log")
		}
		c.must(422, "/pact/sign", c.as(d, "/pact/sign"), map[string]any{"audience": "another", "nonce": "n"})
		c.must(400, "/pact/sign", c.as(d, "/pact/sign"), map[string]any{"audience": audience, "nonce": "n", "sub": "me"})
		c.must(401, "/pact/sign", c.as(newDevice(t), "/pact/sign"), map[string]any{"audience": audience, "nonce": "n"})
		once := c.as(d, "/pact/status")
		c.must(200, "/pact/status", once, map[string]any{})
		c.must(401, "/pact/status", once, map[string]any{})
	})

	t.Run("credential", func(t *testing.T) {
		made := p.operator().must("POST", "/v1/credentials", map[string]any{"name": "laptop"})
		c := client{t: t, base: p.info.Public}
		answer := c.must(200, "/pact/sign", "Bearer "+text(t, made, "credential"), map[string]any{"audience": audience, "nonce": "n"})
		claims := verify(t, c.keySet(), text(t, answer, "token"))
		if info := made["info"].(map[string]any); claims["sub"] != info["subject"] {
			t.Errorf("sub %v, created with %v", claims["sub"], info["subject"])
		}
		c.must(401, "/pact/sign", "Bearer "+text(t, made, "credential")+"x", map[string]any{"audience": audience, "nonce": "n"})
	})

	t.Run("grpc", func(t *testing.T) {
		conn, err := grpc.NewClient(p.info.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx := context.Background()
		c, d := client{t: t, base: p.info.Public}, newDevice(t)
		service := signerv1.NewSignerServiceClient(conn)
		jwk := d.jwk()
		enrolled, err := service.Enroll(ctx, &signerv1.EnrollRequest{
			PublicJwk: &signerv1.PublicJwk{Kty: jwk["kty"], Crv: jwk["crv"], X: jwk["x"], Y: jwk["y"], Kid: jwk["kid"]},
			Proof:     d.assertion(t, p.info.Public+"/pact/enroll"),
		})
		if err != nil {
			t.Fatal(err)
		}
		as := metadata.AppendToOutgoingContext(ctx, "authorization", c.as(d, "/pact/sign"))
		signed, err := service.Sign(as, &signerv1.SignRequest{Audience: audience, Nonce: "n"})
		if err != nil {
			t.Fatal(err)
		}
		if claims := verify(t, c.keySet(), signed.Token); claims["sub"] != enrolled.Subject {
			t.Errorf("sub %v, enrolled as %s", claims["sub"], enrolled.Subject)
		}
		if _, err := service.Sign(as, &signerv1.SignRequest{Audience: audience, Nonce: "n"}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("a replayed assertion: %v", err)
		}
		health, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "pact.signer.v1.SignerService"})
		if err != nil || health.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health: %v %v", health, err)
		}
	})

	t.Run("admin over grpc on the same port", func(t *testing.T) {
		_, address, _ := strings.Cut(p.info.Admin, "://")
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		admin := signerv1.NewAdminServiceClient(conn)
		if _, err := admin.FleetStatus(context.Background(), &signerv1.FleetStatusRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("without a token: %v", err)
		}
		ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+p.adminToken())
		fleet, err := admin.FleetStatus(ctx, &signerv1.FleetStatusRequest{})
		if err != nil || len(fleet.Issuers) != 1 || !fleet.Issuers[0].Ready {
			t.Errorf("%v %v", fleet, err)
		}
	})

	t.Run("kill and resume", func(t *testing.T) {
		o, c, d := p.operator(), client{t: t, base: p.info.Public}, newDevice(t)
		c.enroll(d)
		killed := o.must("POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "all"}, "reason": "drill"})
		entry := killed["entry"].(map[string]any)
		o.waitEffective(text(t, entry, "epoch"))
		c.must(403, "/pact/sign", c.as(d, "/pact/sign"), map[string]any{"audience": audience, "nonce": "n"})
		if answer := c.must(200, "/pact/status", c.as(d, "/pact/status"), map[string]any{}); answer["disabled"] != true {
			t.Errorf("status: %v", answer)
		}
		o.must("POST", "/v1/resume", map[string]any{"scope": map[string]any{"kind": "all"}, "reason": "over", "entryIds": []string{text(t, entry, "id")}})
		eventually(t, "signing again", func() bool {
			code, _, err := c.post("/pact/sign", c.as(d, "/pact/sign"), map[string]any{"audience": audience, "nonce": "n"})
			return err == nil && code == 200
		})
	})

	t.Run("ops", func(t *testing.T) {
		if code, body := get(t, p.info.Ops+"/livez"); code != 200 || string(body) != "ok\n" {
			t.Errorf("/livez: %d %s", code, body)
		}
		if code, body := get(t, p.info.Ops+"/readyz"); code != 200 || string(body) != "{\"ready\":true}\n" {
			t.Errorf("/readyz: %d %s", code, body)
		}
		code, body := get(t, p.info.Ops+"/metrics")
		if code != 200 {
			t.Fatalf("/metrics: %d", code)
		}
		for _, want := range []string{
			`pact_signer_requests_total{face="rest",method="sign",result="ok"}`,
			`pact_signer_requests_total{face="rest",method="sign",result="audience_not_registered"}`,
			`pact_signer_requests_total{face="grpc",method="sign",result="unauthorized"}`,
			`pact_signer_request_duration_seconds_count{face="rest",method="jwks"}`,
			`pact_signer_key_transition_timestamp_seconds{issuer="` + p.info.Public + `",key="current"}`,
			`pact_signer_published_keys{issuer="` + p.info.Public + `"} 1`,
			"pact_signer_permit_remaining_seconds ",
			"pact_signer_switch_epoch ",
			"pact_signer_ready 1",
		} {
			if !strings.Contains(string(body), want) {
				t.Errorf("no metric %s", want)
			}
		}
		if code, _ := get(t, p.info.Ops+"/debug/pprof/"); code != 404 {
			t.Errorf("pprof: %d", code)
		}
	})

	t.Run("another host is not found", func(t *testing.T) {
		c := client{t: t, base: "http://other.example", at: p.info.Public}
		code, _, _ := c.post("/pact/status", "", map[string]any{})
		if code != 404 {
			t.Errorf("status %d", code)
		}
	})
	p.stop()
}

// waitEffective waits for the barrier of a kill's epoch.
func (o operator) waitEffective(epoch string) {
	o.t.Helper()
	req, err := http.NewRequest(http.MethodGet, o.base+"/v1/kill/"+epoch+":wait", nil)
	if err != nil {
		o.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+o.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		o.t.Fatal(err)
	}
	defer resp.Body.Close()
	stream, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || !bytes.Contains(bytes.ReplaceAll(stream, []byte(" "), nil), []byte(`"effective":true`)) {
		o.t.Fatalf("barrier of %s: %d %s %v", epoch, resp.StatusCode, stream, err)
	}
}

// eventually asks again until it is so; every question is a round trip.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !so(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within two minutes", what)
		}
	}
}

// What was acknowledged is there after a restart, and what was used up stays so.
func TestRestart(t *testing.T) {
	data, address := t.TempDir(), ownAddress()
	p := start(t, "--data", data, "--public", address)
	c, d, o := client{t: t, base: p.info.Public}, newDevice(t), p.operator()
	o.setAudience()
	subject := c.enroll(d)
	credential := text(t, o.must("POST", "/v1/credentials", map[string]any{"name": "laptop"}), "credential")
	token := c.sign(d, audience)
	keys := c.keySet()
	spent := c.as(d, "/pact/status")
	c.must(200, "/pact/status", spent, map[string]any{})
	victim := newDevice(t)
	c.enroll(victim)
	o.must("POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "device", "value": victim.thumbprint}, "reason": "lost"})
	adminToken := o.token
	p.stop()

	q := start(t, "--data", data, "--public", address) // the same command line: the same port, and so the same issuer
	if q.info.Public != p.info.Public || q.info.AdminTokenFile != p.info.AdminTokenFile {
		t.Fatalf("started again as %s, was %s", q.line, p.line)
	}
	if q.adminToken() != adminToken {
		t.Error("the admin token is another")
	}
	if again := c.keySet(); len(again.Keys) != 1 || again.Keys[0].KeyID != keys.Keys[0].KeyID {
		t.Errorf("key set %v, was %v", again, keys)
	}
	verify(t, c.keySet(), token)
	c.must(401, "/pact/status", spent, map[string]any{})
	if answer := c.must(200, "/pact/status", c.as(d, "/pact/status"), map[string]any{}); answer["subject"] != subject {
		t.Errorf("subject %v, was %s", answer["subject"], subject)
	}
	c.must(200, "/pact/sign", "Bearer "+credential, map[string]any{"audience": audience, "nonce": "n"})
	c.must(403, "/pact/sign", c.as(victim, "/pact/sign"), map[string]any{"audience": audience, "nonce": "n"})
	q.stop()
}

func TestSeveralIssuers(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "signer.yaml")
	if err := os.WriteFile(file, []byte(`
issuers:
  - url: https://a.example
    enrolment: open
  - url: https://b.example
    signerUrls: [https://signer.b.example]
    enrolment: open
    algorithm: RS256
    tokenTTL: 60s
  - url: https://c.example
    enrolment: closed
`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "--config", file, "--data", filepath.Join(dir, "data"))
	if !slices.Equal(p.info.Issuers, []string{"https://a.example", "https://b.example", "https://c.example"}) {
		t.Fatalf("issuers %v", p.info.Issuers)
	}
	o, d := p.operator(), newDevice(t)
	a := client{t: t, base: "https://a.example", at: p.info.Public}
	b := client{t: t, base: "https://signer.b.example", at: p.info.Public}
	for _, issuer := range p.info.Issuers {
		o.must("PUT", "/v1/audiences", map[string]any{"issuer": issuer, "origin": provider, "audience": audience})
	}
	subjectA, subjectB := a.enroll(d), b.enroll(d)
	if subjectA == subjectB {
		t.Error("one key has the same subject at two issuers")
	}
	claims := verify(t, a.keySet(), a.sign(d, audience))
	if claims["iss"] != "https://a.example" || claims["sub"] != subjectA {
		t.Errorf("claims %v", claims)
	}
	token := b.sign(d, audience)
	claims = verify(t, client{t: t, base: "https://b.example", at: p.info.Public}.keySet(), token)
	if claims["iss"] != "https://b.example" || claims["sub"] != subjectB || claims["exp"].(float64)-claims["iat"].(float64) != 60 {
		t.Errorf("claims %v", claims)
	}
	if set := a.keySet(); len(set.Keys) != 1 || set.Keys[0].Algorithm != "ES256" {
		t.Errorf("key set of a: %v", set)
	}
	// An assertion for one issuer's signer is of no use at another's.
	a.must(401, "/pact/sign", b.as(d, "/pact/sign"), map[string]any{"audience": audience, "nonce": "n"})
	c := client{t: t, base: "https://c.example", at: p.info.Public}
	c.must(401, "/pact/enroll", "", c.enrolment(newDevice(t)))
	// A kill of one issuer leaves the others alone.
	killed := o.must("POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "issuer", "value": "https://a.example"}, "reason": "drill"})
	o.waitEffective(text(t, killed["entry"].(map[string]any), "epoch"))
	a.must(403, "/pact/sign", a.as(d, "/pact/sign"), map[string]any{"audience": audience, "nonce": "n"})
	b.sign(d, audience)
	p.stop()
}

// inFlight begins a POST on a connection of its own, sends the first half of its
// body and returns once the server is at work on it.
func inFlight(t *testing.T, base, path, authorization, first string, length int) (net.Conn, *bufio.Reader) {
	t.Helper()
	_, address, _ := strings.Cut(base, "://")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nContent-Type: application/json\r\nAuthorization: %s\r\nExpect: 100-continue\r\n\r\n",
		path, address, length, authorization)
	r := bufio.NewReader(conn)
	// The server asks for the body when its handler reads it.
	line, err := r.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("%q, %v", line, err)
	}
	if line, err = r.ReadString('\n'); err != nil || line != "\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	fmt.Fprint(conn, first)
	return conn, r
}

// A request that is under way when the signer is told to stop is answered, and
// readiness goes first.
func TestGracefulStop(t *testing.T) {
	p := start(t, "--data", t.TempDir(), "--set", "drainTimeout=5m")
	c, d := client{t: t, base: p.info.Public}, newDevice(t)
	p.operator().setAudience()
	c.enroll(d)
	const body = `{"audience": "` + audience + `", "nonce": "in flight"}`
	conn, r := inFlight(t, p.info.Public, "/pact/sign", c.as(d, "/pact/sign"), body[:10], len(body))

	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "not ready", func() bool {
		code, body := get(t, p.info.Ops+"/readyz")
		return code == 503 && bytes.Contains(body, []byte("stopping"))
	})
	eventually(t, "no new connections", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.info.Public, "http://"))
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	fmt.Fprint(conn, body[10:])
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || !bytes.Contains(answer, []byte("in flight")) {
		t.Fatalf("the request in flight: %d %s %v", resp.StatusCode, answer, err)
	}
	if err := p.wait(); err != nil {
		t.Fatalf("stopped with %v\n%s", err, p.logs)
	}
}

// A second signal does not wait.
func TestSecondSignal(t *testing.T) {
	p := start(t, "--data", t.TempDir(), "--set", "drainTimeout=5m")
	// A request that never ends holds the first signal up.
	inFlight(t, p.info.Public, "/pact/status", "Bearer "+rand.Text(), "{", 10)
	p.cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, "not ready", func() bool { code, _ := get(t, p.info.Ops+"/readyz"); return code == 503 })
	p.cmd.Process.Signal(syscall.SIGINT)
	var exit *exec.ExitError
	if err := p.wait(); !errors.As(err, &exit) || exit.ExitCode() != exitFailure {
		t.Fatalf("ended with %v", err)
	}
}

// Two signers never share a data folder or a port.
func TestStartRefused(t *testing.T) {
	p := start(t, "--data", t.TempDir())
	_, address, _ := strings.Cut(p.info.Public, "://")
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"folder in use":  {[]string{"--data", filepath.Dir(p.info.AdminTokenFile)}, exitFailure, "in use"},
		"port in use":    {[]string{"--data", t.TempDir(), "--public", address}, exitFailure, "listeners.public.address"},
		"unknown key":    {[]string{"--set", "colour=red"}, exitUsage, "colour"},
		"unknown flag":   {[]string{"--colour", "red"}, exitUsage, "colour"},
		"an argument":    {[]string{"red"}, exitUsage, "red"},
		"unknown output": {[]string{"-o", "xml"}, exitUsage, "json"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := command(freePorts(c.args)...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(string(out), c.want) {
				t.Errorf("%v, printed %s", err, out)
			}
		})
	}
	p.stop()
}
