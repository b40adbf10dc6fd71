package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/vault"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/test/servers"
)

const (
	fleetIssuer   = "http://issuer.localhost"
	fleetProvider = "https://provider.example"
	fleetAudience = "https://provider.example/agents"
)

// onRedis is a signer on a Redis, with keys of its own, at a pace for tests.
func onRedis(t *testing.T, addr string) config.Config {
	t.Helper()
	c := config.Default()
	c.Data = t.TempDir()
	c.Listeners = config.Listeners{
		Public: config.Listener{Address: "127.0.0.1:0"},
		GRPC:   config.Listener{Address: "127.0.0.1:0"},
		Admin:  config.Listener{Address: "127.0.0.1:0"},
		Ops:    config.Listener{Address: "127.0.0.1:0"},
	}
	c.Store.Kind, c.Store.Redis.Addresses = "redis", []string{addr}
	is := config.DefaultIssuer()
	is.URL, is.Enrolment = fleetIssuer, "open"
	c.Issuers = []config.Issuer{is}
	c.Development.TimeScale = 4
	c, err := c.Complete()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// onVault has the keys of c in a Vault, under a prefix of its own.
func onVault(t *testing.T, c config.Config, v *servers.Vault, wrapped bool) config.Config {
	t.Helper()
	dir := t.TempDir()
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte(v.RootToken), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Custody.Kind = "vault"
	c.Custody.Vault.Addresses = []string{v.Addr}
	c.Custody.Vault.Prefix = fmt.Sprintf("p%d", prefixes.Add(1))
	c.Custody.Vault.Wrapped = wrapped
	c.Custody.Vault.Auth = config.VaultAuth{Method: "token", TokenFile: tokenFile}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	bootstrap(t, c, v, vault.BootstrapOptions{BackupFile: filepath.Join(dir, "subject.age"), BackupTo: []age.Recipient{identity.Recipient()}})
	return c
}

// bootstrap prepares a Vault for c.
func bootstrap(t *testing.T, c config.Config, v *servers.Vault, o vault.BootstrapOptions) {
	t.Helper()
	client := v.Client()
	client.SetClientTimeout(3 * time.Minute) // Vault makes an RSA key of 4096 bits
	if _, err := vault.Bootstrap(t.Context(), client, VaultConfig(c, nil), o); err != nil {
		t.Fatal(err)
	}
}

var prefixes atomic.Int64

// run starts a server, which need not become ready, and stops it with the test.
func run(t *testing.T, c config.Config) *Server {
	t.Helper()
	s, err := New(c, Options{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return s
}

func (s *Server) awaitReady(t *testing.T) {
	t.Helper()
	eventually(t, func() string { return strings.Join(s.unready(), "; ") })
}

// eventually waits until what says that nothing is missing any more.
func eventually(t *testing.T, missing func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		what := missing()
		if what == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still: %s", what)
		case <-tick.C:
		}
	}
}

// unreadyBecause waits until readiness is refused for that reason, on the listener
// too, while the process is live.
func (s *Server) unreadyBecause(t *testing.T, want string) {
	t.Helper()
	eventually(t, func() string {
		code, body := fetch(t, http.DefaultClient, s.Info().Ops+"/readyz")
		if code == 503 && strings.Contains(body, want) {
			return ""
		}
		return fmt.Sprintf("/readyz says %d %s, not %q", code, body, want)
	})
	if code, _ := fetch(t, http.DefaultClient, s.Info().Ops+"/livez"); code != 200 {
		t.Errorf("/livez: %d", code)
	}
}

// late reports that a store or Vault did not answer in time, as on a busy machine.
func late(err error) bool {
	var timeout net.Error
	return errors.Is(err, custody.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// mustInit makes the deployment, and returns the admin token.
func mustInit(t *testing.T, c config.Config) string {
	t.Helper()
	var result InitResult
	o := InitOptions{ShowAdminToken: true}
	eventually(t, func() string { // by a store or Vault that is late on a busy machine it is cut off, and run again
		var err error
		result, err = Init(t.Context(), c, o)
		if err == nil {
			return ""
		}
		if !late(err) {
			t.Fatal(err)
		}
		o.NewAdminToken = true // nobody has seen one that it may have recorded
		return err.Error()
	})
	if !result.NewAdminToken || result.AdminToken == "" || result.AdminTokenFile != "" {
		t.Fatalf("init: %+v", result)
	}
	return result.AdminToken
}

// ask sends a request to one of the server's faces and returns the answer.
func ask(t *testing.T, method, base, path, host, authorization string, body any) (int, http.Header, map[string]any) {
	t.Helper()
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, base+path, content)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+authorization)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("%s %s: %d: %v", method, path, resp.StatusCode, err)
	}
	return resp.StatusCode, resp.Header, answer
}

// operate makes an admin call.
func (s *Server) operate(t *testing.T, token, method, path string, body any) (int, map[string]any) {
	t.Helper()
	code, _, answer := ask(t, method, s.Info().Admin, path, "", token, body)
	return code, answer
}

func (s *Server) mustOperate(t *testing.T, token, method, path string, body any) map[string]any {
	t.Helper()
	code, answer := s.operate(t, token, method, path, body)
	if code != 200 {
		t.Fatalf("%s %s: %d %v", method, path, code, answer)
	}
	return answer
}

// acceptLoss gives up the store as it was. What a store that is late cuts off is asked for
// again, under the id that is right by then.
func (s *Server) acceptLoss(t *testing.T, token, reason string) {
	t.Helper()
	cut := false
	eventually(t, func() string {
		state := s.mustOperate(t, token, "GET", "/v1/state", nil)
		if cut && state["condition"] == "ok" {
			return ""
		}
		code, answer := s.operate(t, token, "POST", "/v1/state:accept-loss", map[string]any{"store": state["store"], "reason": reason})
		if cut = code == 503; cut {
			return fmt.Sprint(answer)
		}
		if code != 200 {
			t.Fatalf("the loss is accepted with %d %v", code, answer)
		}
		return ""
	})
}

// letIn registers the audience and makes a credential.
func (s *Server) letIn(t *testing.T, token string) string {
	t.Helper()
	s.mustOperate(t, token, "PUT", "/v1/audiences", map[string]any{"origin": fleetProvider, "audience": fleetAudience})
	return s.mustOperate(t, token, "POST", "/v1/credentials", map[string]any{"name": "batch"})["credential"].(string)
}

// sign asks for a token, and tells when to come back if there is none.
func (s *Server) sign(t *testing.T, credential string) (code int, token, retry string) {
	t.Helper()
	host := strings.TrimPrefix(fleetIssuer, "http://")
	code, header, answer := ask(t, "POST", s.Info().Public, "/pact/sign", host, credential, map[string]any{"audience": fleetAudience, "nonce": "n"})
	token, _ = answer["token"].(string)
	return code, token, header.Get("Retry-After")
}

// noTokens demands that nothing is signed, and that callers are asked to come back.
func (s *Server) noTokens(t *testing.T, credential string) {
	t.Helper()
	eventually(t, func() string {
		if code, _, retry := s.sign(t, credential); code != 503 || retry == "" {
			return fmt.Sprintf("sign answers %d, Retry-After %q", code, retry)
		}
		return ""
	})
}

// answers asks for a token until the answer is no 503, which who was held up for longer
// than a permit lasts gives, and returns its status.
func (s *Server) answers(t *testing.T, credential string) (code int) {
	t.Helper()
	eventually(t, func() string {
		if code, _, _ = s.sign(t, credential); code == 503 {
			return "sign answers 503"
		}
		return ""
	})
	return code
}

// signs waits until a token is signed, and returns it.
func (s *Server) signs(t *testing.T, credential string) string {
	t.Helper()
	var token string
	eventually(t, func() string {
		var code int
		if code, token, _ = s.sign(t, credential); code != 200 {
			return fmt.Sprintf("sign answers %d", code)
		}
		return ""
	})
	return token
}

// keySet is what the server publishes; empty if it answers 503.
func (s *Server) keySet(t *testing.T) jose.JSONWebKeySet {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.Info().Public+"/.well-known/jwks.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = strings.TrimPrefix(fleetIssuer, "http://")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var set jose.JSONWebKeySet
	if resp.StatusCode == 200 {
		if err := json.NewDecoder(resp.Body).Decode(&set); err != nil {
			t.Fatal(err)
		}
	}
	return set
}

// verifies checks a token under a key set.
func verifies(t *testing.T, token string, set jose.JSONWebKeySet) {
	t.Helper()
	signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	keys := set.Key(signed.Signatures[0].Protected.KeyID)
	if len(keys) != 1 {
		t.Fatalf("the key set has %d keys of id %s", len(keys), signed.Signatures[0].Protected.KeyID)
	}
	if _, err := signed.Verify(keys[0]); err != nil {
		t.Error(err)
	}
}

// enrolment is the mode in force.
func (s *Server) enrolment(t *testing.T, token string) string {
	t.Helper()
	issuers := s.mustOperate(t, token, "GET", "/v1/fleet", nil)["issuers"].([]any)
	return issuers[0].(map[string]any)["enrolment"].(string)
}
