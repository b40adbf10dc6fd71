package vault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/test/servers"
)

// Whatever happens to Vault: calls end within their deadline with ErrUnavailable,
// and work again afterwards, with the same keyring.
func TestOutages(t *testing.T) {
	f := startFixture(t, servers.VaultOptions{})
	cfg := f.deployment(t, nil)
	log := &safeBuffer{}
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	k := openKeyring(t, cfg)
	mustCreate(t, k, "a", jose.ES256)

	works := func(t *testing.T) {
		t.Helper()
		awaitSuccess(t, "signing again", func() error { return signOnce(t, k, "a") })
	}
	fails := func(t *testing.T) {
		t.Helper()
		for range 3 {
			if err := signOnce(t, k, "a"); err == nil {
				t.Fatal("it signs")
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		started := time.Now()
		_, create := k.Create(ctx, "b", jose.ES256)
		_, _, public := k.Public(ctx, "a")
		_, mac := k.MAC(ctx, nil)
		for name, err := range map[string]error{"Create": create, "Public": public, "MAC": mac, "Disable": k.Disable(ctx, "b")} {
			if !errors.Is(err, custody.ErrUnavailable) {
				t.Errorf("%s: %v, want ErrUnavailable", name, err)
			}
		}
		if took := time.Since(started); took > 5*time.Second { // without the deadline, five calls of 2 s
			t.Errorf("the calls with one deadline of 1 s took %v", took)
		}
	}

	for _, test := range []struct {
		name        string
		break_, fix func(t *testing.T)
	}{
		{"Sealed", func(*testing.T) { f.Seal() }, func(*testing.T) { f.Unseal() }},
		{"Stopped", func(*testing.T) { f.Stop() }, func(*testing.T) { f.Start() }},
		{"Killed", func(*testing.T) { f.Kill() }, func(*testing.T) { f.Start() }},
		{"Paused", func(*testing.T) { f.Pause() }, func(*testing.T) { f.Resume() }},
		{"PolicyTakenAway", func(t *testing.T) {
			f.write(t, "sys/policies/acl/"+cfg.Prefix, map[string]any{"policy": `path "x" { capabilities = ["read"] }`})
		}, func(t *testing.T) {
			policy, err := Policy(cfg)
			if err != nil {
				t.Fatal(err)
			}
			f.write(t, "sys/policies/acl/"+cfg.Prefix, map[string]any{"policy": policy})
		}},
		{"RateLimited", func(t *testing.T) {
			f.write(t, "sys/quotas/rate-limit/all", map[string]any{"path": "transit/", "rate": 0.01, "interval": "1m", "block_interval": "1m"})
			for signOnce(t, k, "a") == nil { // until the first tokens are used up
			}
		}, func(t *testing.T) {
			if _, err := f.root.Logical().Delete("sys/quotas/rate-limit/all"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			works(t)
			test.break_(t)
			fails(t)
			test.fix(t)
			works(t)
		})
	}

	t.Run("RestartedUnderLoad", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = signOnce(t, k, "a")
				}
			})
		}
		f.Restart()
		stop()
		wg.Wait()
		works(t)
	})

	t.Run("TokenRevoked", func(t *testing.T) {
		works(t)
		s, err := k.client.login.state()
		if err != nil {
			t.Fatal(err)
		}
		f.write(t, "auth/token/revoke", map[string]any{"token": s.token})
		if err := signsWell(t, k, "a"); err != nil {
			t.Errorf("the first call after the revocation does not log in again: %v", err)
		}
	})

	t.Run("StartsWithoutVault", func(t *testing.T) {
		f.Stop()
		late := openKeyring(t, cfg)
		if err := signOnce(t, late, "a"); err == nil {
			t.Error("it signs without Vault")
		}
		f.Start()
		awaitSuccess(t, "signing when Vault is there", func() error { return signOnce(t, late, "a") })
		works(t)
	})

	for _, file := range []string{cfg.Auth.RoleIDFile, cfg.Auth.SecretIDFile} {
		secret, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if log.contains(strings.TrimSpace(string(secret))) || log.contains("hvs.") {
			t.Error("the log has a secret")
		}
	}
}

// A token whose end comes is replaced before callers notice.
func TestShortLivedLogins(t *testing.T) {
	f := startFixture(t, servers.VaultOptions{})
	for name, role := range map[string]map[string]any{
		"renewed":     {"token_ttl": "12s"},
		"max ttl":     {"token_ttl": "12s", "token_max_ttl": "18s"},
		"batch token": {"token_ttl": "12s", "token_type": "batch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := openKeyring(t, f.deployment(t, role))
			mustCreate(t, k, "a", jose.ES256)
			ctx, cancel := context.WithTimeout(t.Context(), 27*time.Second)
			defer cancel()
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			first, err := k.client.login.state()
			if err != nil {
				t.Fatal(err)
			}
			var last session
			for range tick.C {
				if ctx.Err() != nil {
					break
				}
				if _, err := k.Sign(t.Context(), "a", digestOf(1)); err != nil {
					t.Fatal(err)
				}
				if last, err = k.client.login.state(); err != nil {
					t.Fatalf("the token expires at %v: %v", k.TokenExpires(), err)
				}
			}
			if renewed := name == "renewed"; renewed != last.at.Equal(first.at) {
				t.Errorf("logged in at %v, and after 27 s at %v", first.at, last.at)
			}
			if !k.TokenExpires().After(first.expires) {
				t.Error("the token was not prolonged")
			}
			if lease := k.TokenLease(); lease != 12*time.Second {
				t.Errorf("a whole lease is %v", lease)
			}
		})
	}
}

func TestTLS(t *testing.T) {
	f := startFixture(t, servers.VaultOptions{TLS: true})
	cfg := f.deployment(t, nil)
	k := openKeyring(t, cfg)
	mustCreate(t, k, "a", jose.ES256)
	if err := signsWell(t, k, "a"); err != nil {
		t.Error(err)
	}
	cfg.CAFile = ""
	if err := signOnce(t, openKeyring(t, cfg), "a"); err == nil {
		t.Error("a certificate of an unknown CA is accepted")
	}
}

// With several addresses, the first that answers is used, and then stays.
func TestAddresses(t *testing.T) {
	f := startFixture(t, servers.VaultOptions{})
	deployed := f.deployment(t, nil)
	mustCreate(t, openKeyring(t, deployed), "a", jose.ES256)
	for name, first := range map[string]func(t *testing.T) string{
		"closed": func(t *testing.T) string {
			p := servers.NewProxy(t, strings.TrimPrefix(f.Addr, "http://"))
			p.Cut()
			return "http://" + p.Addr()
		},
		"sealed": func(t *testing.T) string { return answering(t, 503, `{"errors":["Vault is sealed"]}`) },
		"standby": func(t *testing.T) string {
			return answering(t, 500, `{"errors":["local node not active but active cluster node not found"]}`)
		},
		"gateway":  func(t *testing.T) string { return answering(t, 502, `<html>`) },
		"redirect": func(t *testing.T) string { return answering(t, 307, "http://127.0.0.1:1") },
		"circle": func(t *testing.T) string {
			var s *httptest.Server
			s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, s.URL+r.URL.Path, http.StatusTemporaryRedirect)
			}))
			t.Cleanup(s.Close)
			return s.URL
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := deployed
			cfg.Addresses = []string{first(t), f.Addr}
			k := openKeyring(t, cfg)
			loggedIn(t, k)
			for range 3 {
				if err := signOnce(t, k, "a"); err != nil {
					t.Error(err)
				}
			}
			if n := k.client.current.Load(); n != 1 {
				t.Errorf("server %d is asked first, want the one that answers", n)
			}
		})
	}

	t.Run("hangs", func(t *testing.T) {
		p := servers.NewProxy(t, strings.TrimPrefix(f.Addr, "http://"))
		cfg := deployed
		cfg.Addresses = []string{"http://" + p.Addr(), f.Addr}
		k := openKeyring(t, cfg)
		loggedIn(t, k)
		if err := signOnce(t, k, "a"); err != nil {
			t.Fatal(err)
		}
		p.Hang()
		awaitSuccess(t, "signing by the other address", func() error { return signOnce(t, k, "a") })
		if n := k.client.current.Load(); n != 1 {
			t.Errorf("server %d is asked first, want the one that answers", n)
		}
		p.Heal()
	})

	t.Run("goes away and comes back", func(t *testing.T) {
		one, two := servers.NewProxy(t, strings.TrimPrefix(f.Addr, "http://")), servers.NewProxy(t, strings.TrimPrefix(f.Addr, "http://"))
		cfg := deployed
		cfg.Addresses = []string{"http://" + one.Addr(), "http://" + two.Addr()}
		k := openKeyring(t, cfg)
		loggedIn(t, k)
		for _, p := range []*servers.Proxy{one, two, one} {
			p.Cut()
			if err := signOnce(t, k, "a"); err != nil {
				t.Error(err)
			}
			p.Heal()
		}
		one.Cut()
		two.Cut()
		if err := signOnce(t, k, "a"); err == nil {
			t.Error("it signs without any address")
		}
	})
}

// What may have been done is not done twice, unless that is harmless.
func TestNotTwice(t *testing.T) {
	for _, test := range []struct {
		method, path string
		status       int // 0: the connection breaks
		asked        []string
	}{
		{"GET", "secret/data/x", 0, []string{"one", "two"}},
		{"LIST", "secret/metadata/x", 0, []string{"one", "two"}},
		{"POST", "transit/sign/x", 0, []string{"one", "two"}},
		{"POST", "secret/data/x", 0, []string{"one"}},
		{"POST", "secret/data/x", 502, []string{"one"}},
		{"POST", "secret/data/x", 503, []string{"one", "two"}},
		{"DELETE", "secret/data/x", 504, []string{"one"}},
		{"POST", "secret/data/x", 308, []string{"one", "two"}},
		{"GET", "secret/data/x", 504, []string{"one", "two"}},
		{"GET", "secret/data/x", 400, []string{"one"}},
		{"GET", "secret/data/x", 429, []string{"one"}},
		{"GET", "secret/data/x", 500, []string{"one"}},
	} {
		t.Run(fmt.Sprintf("%s %s %d", test.method, test.path, test.status), func(t *testing.T) {
			var asked []string
			c := unauthenticated(t, func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/lookup-self") {
					return response(r, 200, `{"data":{"ttl":0}}`), nil
				}
				asked = append(asked, r.URL.Hostname())
				if r.URL.Hostname() == "two" {
					return response(r, 200, `{}`), nil
				}
				if test.status == 0 {
					return nil, io.ErrUnexpectedEOF
				}
				return response(r, test.status, `{"errors":["no"]}`), nil
			}, "http://one", "http://two")
			_, err := c.send(t.Context(), test.method, test.path, "token", nil)
			if fmt.Sprint(asked) != fmt.Sprint(test.asked) {
				t.Errorf("asked %v, want %v (error %v)", asked, test.asked, err)
			}
			// The next call goes elsewhere in any case, if the server is to blame.
			if elsewhere(err) && c.current.Load() != 1 {
				t.Errorf("server %d is asked next", c.current.Load())
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		status int
		body   string
		want   error
		not    error
	}{
		{400, `{"errors":["bad"]}`, custody.ErrInvalid, nil},
		{403, `{"errors":["permission denied"]}`, custody.ErrUnavailable, nil},
		{403, `{"errors":["1 error occurred:\n\t* permission denied\n\n"]}`, custody.ErrUnavailable, nil},
		{404, `{"errors":[]}`, custody.ErrNotFound, nil},
		{404, `{"data":{"data":null,"metadata":{"version":3}}}`, custody.ErrNotFound, nil},
		{404, `{"errors":["no handler for route \"x\". route entry not found."]}`, custody.ErrUnavailable, custody.ErrNotFound},
		{404, `<html>404</html>`, custody.ErrUnavailable, custody.ErrNotFound},
		{404, `{"message":"no Route matched with those values"}`, custody.ErrUnavailable, custody.ErrNotFound}, // a proxy's
		{404, `{}`, custody.ErrUnavailable, custody.ErrNotFound},
		{404, `null`, custody.ErrUnavailable, custody.ErrNotFound},
		{405, `{"errors":["unsupported operation"]}`, custody.ErrUnavailable, nil},
		{412, `{"errors":["required index state not present"]}`, custody.ErrUnavailable, nil},
		{429, `{"errors":["request path \"x\": rate limit quota exceeded"]}`, custody.ErrUnavailable, nil},
		{500, `{"errors":["internal error"]}`, custody.ErrUnavailable, nil},
		{503, `{"errors":["Vault is sealed"]}`, custody.ErrUnavailable, nil},
		{503, strings.Repeat("x", 1<<20), custody.ErrUnavailable, nil},
		{308, ``, custody.ErrUnavailable, nil},
		{204, ``, nil, nil},
		{200, `{"data":`, custody.ErrUnavailable, nil},
		{200, `{"data":"` + strings.Repeat("x", maxResponse) + `"}`, custody.ErrUnavailable, nil},
	} {
		c := unauthenticated(t, func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/lookup-self") {
				return response(r, 200, `{"data":{"ttl":0}}`), nil
			}
			return response(r, test.status, test.body), nil
		}, "http://one")
		secret, err := c.call(t.Context(), "GET", "any/thing", nil)
		if !errors.Is(err, test.want) || test.not != nil && errors.Is(err, test.not) {
			t.Errorf("%d %.80s: %v, want %v", test.status, test.body, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%d: an error of several lines: %q", test.status, err)
		}
		if err != nil && len(err.Error()) > 2*maxReason {
			t.Errorf("%d: an error of %d bytes", test.status, len(err.Error()))
		}
		if test.status == 404 && strings.Contains(test.body, "version") && (secret == nil || secret.Data["metadata"] == nil) {
			t.Errorf("what Vault remembers of a deleted document is lost: %v", secret)
		}
	}
}

// An answer is not read without end, whatever its status: the library reads the body
// of an error by itself.
func TestEndlessAnswers(t *testing.T) {
	for _, status := range []int{200, 400, 403, 404, 429, 500, 502, 503} {
		var asked, longest atomic.Int64
		c := unauthenticated(t, func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/lookup-self") {
				return response(r, 200, `{"data":{"ttl":0}}`), nil
			}
			asked.Add(1)
			answer := response(r, status, "")
			answer.ContentLength = -1
			answer.Body = io.NopCloser(&endless{longest: &longest})
			return answer, nil
		}, "http://one")
		_, err := c.call(t.Context(), "GET", "any/thing", nil)
		if !errors.Is(err, custody.ErrUnavailable) || !strings.Contains(err.Error(), "longer than") {
			t.Errorf("%d: %v, want ErrUnavailable because of the length", status, err)
		}
		if n := longest.Load(); asked.Load() == 0 || n < maxResponse || n > 2*maxResponse {
			t.Errorf("%d: %d bytes of an answer were read", status, n)
		}
	}

	t.Run("login", func(t *testing.T) {
		var longest atomic.Int64
		c := unauthenticated(t, func(r *http.Request) (*http.Response, error) {
			answer := response(r, 500, "")
			answer.ContentLength = -1
			answer.Body = io.NopCloser(&endless{longest: &longest})
			return answer, nil
		}, "http://one")
		if _, err := c.call(t.Context(), "GET", "any/thing", nil); !errors.Is(err, custody.ErrUnavailable) || !strings.Contains(err.Error(), "longer than") {
			t.Errorf("%v, want ErrUnavailable because of the length", err)
		}
		if n := longest.Load(); n < maxResponse || n > 2*maxResponse {
			t.Errorf("%d bytes of an answer were read", n)
		}
	})
}

// endless is a body that goes on for far longer than anybody should read, and keeps
// count. It has an end, so that whoever reads on does not take all memory.
type endless struct {
	read    int64
	longest *atomic.Int64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.read > 16*maxResponse {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = 'x'
	}
	e.read += int64(len(p))
	e.longest.Store(max(e.longest.Load(), e.read))
	return len(p), nil
}

// The environment of the process has no say: VAULT_TOKEN would go to every call.
func TestEnvironmentIsIgnored(t *testing.T) {
	t.Setenv("VAULT_TOKEN", "hvs.environment")
	t.Setenv("VAULT_NAMESPACE", "environment")
	t.Setenv("VAULT_HEADERS", `{"X-Environment":"x"}`)
	t.Setenv("VAULT_WRAP_TTL", "60")
	t.Setenv("VAULT_ADDR", "http://environment")
	t.Setenv("VAULT_RATE_LIMIT", "1:1")
	t.Setenv("VAULT_MAX_RETRIES", "5")
	var calls atomic.Int64
	c := unauthenticated(t, func(r *http.Request) (*http.Response, error) {
		calls.Add(1)
		var text bytes.Buffer
		if err := r.Header.Write(&text); err != nil {
			return nil, err
		}
		if strings.Contains(text.String(), "nvironment") || r.Header.Get("X-Vault-Wrap-TTL") != "" || r.URL.Hostname() != "one" {
			t.Errorf("%s %s", r.URL, &text)
		}
		return response(r, 503, `{"errors":["Vault is sealed"]}`), nil
	}, "http://one")
	calls.Store(0)
	for range 20 {
		_, _ = c.send(t.Context(), "GET", "any/thing", "", nil)
	}
	if n := calls.Load(); n > 22 { // the login may ask too
		t.Errorf("%d requests for 20 calls: something retries", n)
	}
}

func TestNamespace(t *testing.T) {
	c := unauthenticated(t, func(r *http.Request) (*http.Response, error) {
		if got := r.Header.Get("X-Vault-Namespace"); got != "team/a" {
			t.Errorf("namespace %q", got)
		}
		return response(r, 200, `{"data":{"ttl":0}}`), nil
	}, "http://one")
	if _, err := c.call(t.Context(), "GET", "any/thing", nil); err != nil {
		t.Error(err)
	}
}

func TestCallIsBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := unauthenticated(t, func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/lookup-self") {
				return response(r, 200, `{"data":{"ttl":0}}`), nil
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, "http://one")
		defer c.close()
		started := time.Now()
		_, err := c.call(t.Context(), "GET", "any/thing", nil)
		if took := time.Since(started); took != 2*time.Second || !errors.Is(err, custody.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v, want ErrUnavailable after 2 s; the caller set no deadline", err, took)
		}
	})
}

// unauthenticated opens a client over a function, with a token that it must take.
func unauthenticated(t *testing.T, f func(r *http.Request) (*http.Response, error), addresses ...string) *client {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	write(t, file, "hvs.test")
	c, err := newClientOver(Config{Addresses: addresses, Namespace: "team/a", Auth: Auth{Method: "token", TokenFile: file}}, roundTripper(f))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

func response(r *http.Request, status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{}, Request: r, ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

// answering is the address of a server that always says the same.
func answering(t *testing.T, status int, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status == http.StatusTemporaryRedirect {
			w.Header().Set("Location", body+r.URL.Path)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// safeBuffer is a buffer for a log that several goroutines write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) contains(text string) bool { return s.count(text) > 0 }

func (s *safeBuffer) count(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.b.String(), text)
}
