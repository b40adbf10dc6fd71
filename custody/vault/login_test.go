package vault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/test/servers"
)

// authVault is a Vault that only logs in, without a network. Its tokens live for
// lease, and are renewed until maxLife.
type authVault struct {
	mu      sync.Mutex
	lease   time.Duration // 0: for ever
	maxLife time.Duration // 0: no end
	fixed   bool          // tokens cannot be renewed
	down    bool          // connections fail
	refuse  int           // status of logins and lookups, if not 0
	forbid  bool          // all other calls are 403, whoever makes them
	secret  string        // the credential that it takes

	tokens   map[string]*authToken
	logins   []time.Time // attempts
	mount    string      // of the last one
	renewals []time.Time
	calls    int // others
}

type authToken struct{ made, expires time.Time }

func newAuthVault(lease, maxLife time.Duration) *authVault {
	return &authVault{lease: lease, maxLife: maxLife, tokens: map[string]*authToken{}, secret: "s3cret-id"}
}

func (v *authVault) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.down {
		return nil, errors.New("connection refused")
	}
	status, body := v.answer(r)
	return &http.Response{
		StatusCode: status, Header: http.Header{}, Request: r, ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

func (v *authVault) answer(r *http.Request) (int, string) {
	now := time.Now()
	token := v.tokens[r.Header.Get("X-Vault-Token")]
	alive := token != nil && (token.expires.IsZero() || now.Before(token.expires))
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/login"):
		v.mount = strings.TrimSuffix(strings.TrimPrefix(path, "/v1/auth/"), "/login")
		v.logins = append(v.logins, now)
		body, _ := io.ReadAll(r.Body)
		if v.refuse != 0 || !bytes.Contains(body, []byte(v.secret)) {
			return max(v.refuse, 400), `{"errors":["invalid role or secret ID"]}`
		}
		name := fmt.Sprintf("hvs.token%d", len(v.logins))
		v.tokens[name] = &authToken{made: now}
		return 200, v.grant(name, v.tokens[name])
	case strings.HasSuffix(path, "/lookup-self"):
		v.logins = append(v.logins, now)
		if v.refuse != 0 || !alive {
			return max(v.refuse, 403), `{"errors":["bad token"]}`
		}
		ttl := 0
		if !token.expires.IsZero() {
			ttl = int(token.expires.Sub(now) / time.Second)
		}
		return 200, fmt.Sprintf(`{"data":{"ttl":%d,"creation_ttl":%d,"renewable":%t}}`, ttl, v.lease/time.Second, !v.fixed)
	case strings.HasSuffix(path, "/renew-self"):
		v.renewals = append(v.renewals, now)
		if !alive || v.fixed {
			return 403, `{"errors":["bad token"]}`
		}
		return 200, v.grant(r.Header.Get("X-Vault-Token"), token)
	default:
		v.calls++
		if !alive || v.forbid {
			return 403, `{"errors":["permission denied"]}`
		}
		return 200, `{"data":{"a":"b"}}`
	}
}

func (v *authVault) grant(name string, token *authToken) string {
	lease := v.lease
	if v.maxLife > 0 {
		lease = min(lease, v.maxLife-time.Since(token.made))
	}
	lease = lease.Truncate(time.Second)
	if lease > 0 {
		token.expires = time.Now().Add(lease)
	}
	return fmt.Sprintf(`{"auth":{"client_token":%q,"lease_duration":%d,"renewable":%t}}`, name, lease/time.Second, !v.fixed)
}

func (v *authVault) set(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change()
}

func (v *authVault) loginCount() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.logins)
}

func (v *authVault) revokeAll() { v.set(func() { clear(v.tokens) }) }

// approle opens a client that logs in to v, and what it logs.
func (v *authVault) approle(t *testing.T) (*client, *safeBuffer) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "role"), "r0le-id")
	write(t, filepath.Join(dir, "secret"), v.secret)
	return v.open(t, Auth{Method: "approle", RoleIDFile: filepath.Join(dir, "role"), SecretIDFile: filepath.Join(dir, "secret")})
}

func (v *authVault) open(t *testing.T, auth Auth) (*client, *safeBuffer) {
	t.Helper()
	log := &safeBuffer{}
	c, err := newClientOver(Config{Addresses: []string{"http://vault:8200"}, Auth: auth, Log: slog.New(slog.NewTextHandler(log, nil))}, v)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.close()
		for _, secret := range []string{"s3cret-id", "r0le-id", "hvs.", "jwt-of"} {
			if log.contains(secret) {
				t.Errorf("the log has %q", secret)
			}
		}
	})
	return c, log
}

func get(t *testing.T, c *client) error {
	t.Helper()
	_, err := c.call(t.Context(), "GET", "any/thing", nil)
	if err != nil && !errors.Is(err, custody.ErrUnavailable) {
		t.Errorf("call: %v, want ErrUnavailable", err)
	}
	return err
}

func TestLoginRenews(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := newAuthVault(time.Hour, 0)
		c, _ := v.approle(t)
		started := time.Now()
		for time.Since(started) < 24*time.Hour {
			if err := get(t, c); err != nil {
				t.Fatalf("after %v: %v", time.Since(started), err)
			}
			time.Sleep(time.Minute)
		}
		if v.loginCount() != 1 {
			t.Errorf("%d logins in a day, want 1: the token is renewed", v.loginCount())
		}
		if n := len(v.renewals); n < 24 || n > 40 {
			t.Errorf("%d renewals of an hour in a day, want about 36", n)
		}
		last := started
		for _, at := range v.renewals {
			if part := at.Sub(last).Hours(); part < 0.59 || part > 0.71 {
				t.Errorf("renewed after %v of an hour, want two thirds or so", at.Sub(last))
			}
			last = at
		}
		s, err := c.login.state()
		if err != nil || !s.at.Equal(started) || time.Until(s.expires) < 17*time.Minute || time.Until(s.expires) > time.Hour {
			t.Errorf("%v since %v until %v, at %v: %v", s, s.at, s.expires, time.Now(), err)
		}
	})
}

// A token that nears its end is replaced, though Vault goes on renewing it for
// ever less.
func TestLoginBeforeTheEnd(t *testing.T) {
	for name, fixed := range map[string]bool{"renewable": false, "batch token": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				v := newAuthVault(time.Hour, 3*time.Hour)
				v.fixed = fixed
				c, _ := v.approle(t)
				started := time.Now()
				for time.Since(started) < 24*time.Hour {
					if err := get(t, c); err != nil {
						t.Fatalf("after %v: %v", time.Since(started), err)
					}
					if left := time.Until(c.tokenExpires()); left < 10*time.Minute {
						t.Fatalf("after %v: only %v left", time.Since(started), left)
					}
					time.Sleep(time.Minute)
				}
				if n := v.loginCount(); n < 8 || n > 45 {
					t.Errorf("%d logins in a day", n)
				}
				if v.calls != 24*60 {
					t.Errorf("%d calls for %d: some were 403", v.calls, 24*60)
				}
			})
		})
	}
}

func TestLoginForEver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := newAuthVault(0, 0)
		v.tokens["hvs.root"] = &authToken{}
		file := filepath.Join(t.TempDir(), "token")
		write(t, file, "hvs.root")
		c, _ := v.open(t, Auth{Method: "token", TokenFile: file})
		for range 10 {
			if err := get(t, c); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		if v.loginCount() != 1 || len(v.renewals) != 0 || !c.tokenExpires().IsZero() {
			t.Errorf("%d lookups, %d renewals, expires %v", v.loginCount(), len(v.renewals), c.tokenExpires())
		}
	})
}

// Callers that a 403 meets together make one login together.
func TestLoginAfterRevocation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := newAuthVault(time.Hour, 0)
		c, _ := v.approle(t)
		if err := get(t, c); err != nil {
			t.Fatal(err)
		}
		v.revokeAll()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if err := get(t, c); err != nil {
					t.Errorf("after the revocation: %v", err)
				}
			})
		}
		wg.Wait()
		if v.loginCount() != 2 {
			t.Errorf("%d logins, want 2", v.loginCount())
		}
	})
}

// A policy that forbids a call does not become a login per call.
func TestLoginForbidden(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := newAuthVault(time.Hour, 0)
		v.forbid = true
		c, _ := v.approle(t)
		for range 600 * 10 { // ten minutes
			if err := get(t, c); err == nil {
				t.Fatal("a forbidden call succeeds")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := v.loginCount(); n < 5 || n > 40 {
			t.Errorf("%d logins in ten minutes of 403", n)
		}
		v.set(func() { v.forbid = false })
		if err := get(t, c); err != nil {
			t.Errorf("allowed again: %v", err)
		}
	})
}

func TestLoginWhileVaultIsAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := newAuthVault(time.Hour, 0)
		v.down = true
		c, _ := v.approle(t)
		started := time.Now()
		for time.Since(started) < time.Hour {
			at := time.Now()
			if err := get(t, c); err == nil {
				t.Fatal("a call succeeds without a Vault")
			}
			if took := time.Since(at); took > 0 {
				t.Fatalf("a call without a Vault that answers took %v", took)
			}
			time.Sleep(time.Second)
		}
		v.set(func() { v.down = false })
		time.Sleep(longestPause)
		if err := get(t, c); err != nil {
			t.Errorf("Vault is back: %v", err)
		}

		// A session survives an outage that is shorter than it.
		v.set(func() { v.down = true })
		time.Sleep(50 * time.Minute)
		v.set(func() { v.down = false })
		if err := get(t, c); err != nil {
			t.Errorf("Vault is back: %v", err)
		}
		if v.loginCount() != 1 {
			t.Errorf("%d logins, want 1", v.loginCount())
		}
		time.Sleep(longestPause)
		if left := time.Until(c.tokenExpires()); left < 59*time.Minute {
			t.Errorf("not renewed when Vault was back: %v left", left)
		}
		// And a longer one ends with a login.
		v.set(func() { v.down = true })
		time.Sleep(2 * time.Hour)
		if err := get(t, c); err == nil {
			t.Error("a call succeeds without a Vault")
		}
		v.set(func() { v.down = false })
		time.Sleep(longestPause)
		if err := get(t, c); err != nil {
			t.Errorf("Vault is back: %v", err)
		}
	})
}

// Vault locks a role that is tried with a wrong secret id too often.
func TestLoginRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := newAuthVault(time.Hour, 0)
		c, log := v.approle(t)
		if err := get(t, c); err != nil {
			t.Fatal(err)
		}
		v.set(func() { v.secret = "another" })
		v.revokeAll()
		for range 60 * 60 {
			if err := get(t, c); err == nil {
				t.Fatal("a call succeeds")
			}
			time.Sleep(time.Second)
		}
		if n := v.loginCount(); n < 30 || n > 160 {
			t.Errorf("%d logins in an hour, want one a minute or so", n)
		}
		if got := log.count("no login to Vault"); got != 1 {
			t.Errorf("%d log lines about one reason", got)
		}
		write(t, c.login.auth.SecretIDFile, "another")
		time.Sleep(watchFiles)
		synctest.Wait()
		if err := get(t, c); err != nil {
			t.Errorf("with the new secret id: %v", err)
		}
	})
}

func TestLoginTokenFileChanges(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := newAuthVault(time.Hour, time.Hour)
		v.tokens["hvs.one"] = &authToken{expires: time.Now().Add(time.Hour)}
		file := filepath.Join(t.TempDir(), "token")
		write(t, file, "hvs.one")
		c, _ := v.open(t, Auth{Method: "token", TokenFile: file})
		if err := get(t, c); err != nil {
			t.Fatal(err)
		}
		v.set(func() { v.tokens["hvs.two"] = &authToken{expires: time.Now().Add(time.Hour)} })
		write(t, file, "hvs.two")
		time.Sleep(watchFiles)
		synctest.Wait()
		if s, err := c.login.state(); err != nil || s.token != "hvs.two" {
			t.Errorf("the new token is not used: %v, %v", s, err)
		}
		// A broken file does not take away the token in use.
		write(t, file, "no\x00token")
		time.Sleep(watchFiles)
		if err := get(t, c); err != nil {
			t.Errorf("with a broken file: %v", err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if err := get(t, c); err == nil {
			t.Error("a dead token still works")
		}
		v.set(func() { v.tokens["hvs.three"] = &authToken{expires: time.Now().Add(time.Hour)} })
		write(t, file, "hvs.three")
		time.Sleep(watchFiles)
		synctest.Wait()
		if err := get(t, c); err != nil {
			t.Errorf("with the third token: %v", err)
		}
	})
}

func TestLoginWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		hung := roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		file := filepath.Join(t.TempDir(), "token")
		write(t, file, "hvs.one")
		c, err := newClientOver(Config{Addresses: []string{"http://vault:8200"}, Auth: Auth{Method: "token", TokenFile: file}}, hung)
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		started := time.Now()
		_, err = c.call(ctx, "GET", "any/thing", nil)
		if !errors.Is(err, custody.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(started) != 300*time.Millisecond {
			t.Errorf("%v after %v, want both errors after 300 ms", err, time.Since(started))
		}
		leaving, leave := context.WithCancel(t.Context())
		leave()
		if _, err = c.call(leaving, "GET", "any/thing", nil); !errors.Is(err, context.Canceled) || errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("a caller that left: %v, want context.Canceled alone", err)
		}
	})
}

func TestLoginClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := newAuthVault(time.Hour, 0)
		c, _ := v.approle(t)
		if err := get(t, c); err != nil {
			t.Fatal(err)
		}
		c.close()
		if err := get(t, c); err == nil {
			t.Error("a call succeeds after close")
		}
		if _, err := c.login.again(t.Context(), session{}); err == nil {
			t.Error("a login succeeds after close")
		}
	})
}

func TestLoginConfig(t *testing.T) {
	for _, auth := range []Auth{{}, {Method: "ldap"}, {Method: "token"}, {Method: "approle"}, {Method: "kubernetes"}} {
		if _, err := newClientOver(Config{Addresses: []string{"http://vault:8200"}, Auth: auth}, nil); err == nil {
			t.Errorf("%+v is accepted", auth)
		}
	}
	if _, err := newClient(Config{Auth: Auth{Method: "token", TokenFile: "x"}}); err == nil {
		t.Error("no address is accepted")
	}
	if _, err := newClient(Config{Addresses: []string{"https://vault"}, CAFile: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a missing CA file is accepted")
	}
}

func TestSessionHidesToken(t *testing.T) {
	s := session{number: 7, token: "hvs.secret"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if text := fmt.Sprintf(format, s); strings.Contains(text, "hvs.secret") {
			t.Errorf("%s prints %s", format, text)
		}
	}
	if text, err := json.Marshal(map[string]any{"session": s}); err != nil || strings.Contains(string(text), "hvs.secret") {
		t.Errorf("JSON: %s, %v", text, err)
	}
}

type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The service account's token is replaced by Kubernetes again and again; each
// login takes the newest.
func TestLoginKubernetes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := newAuthVault(time.Hour, 0)
		v.secret = `{"jwt":"jwt-of-pod-1","role":"signer"}`
		file := filepath.Join(t.TempDir(), "jwt")
		write(t, file, "jwt-of-pod-1")
		c, _ := v.open(t, Auth{Method: "kubernetes", Mount: "cluster-a", Role: "signer", JWTFile: file})
		if err := get(t, c); err != nil {
			t.Fatal(err)
		}
		write(t, file, "jwt-of-pod-2")
		time.Sleep(10 * watchFiles)
		if v.loginCount() != 1 || v.mount != "cluster-a" {
			t.Errorf("%d logins at %s; a new file alone is no reason for one", v.loginCount(), v.mount)
		}
		v.set(func() { v.secret = `{"jwt":"jwt-of-pod-2","role":"signer"}` })
		v.revokeAll()
		if err := get(t, c); err != nil {
			t.Errorf("after a revocation: %v", err)
		}
	})
}

// A login of few calls ends with a 403 that says nothing; the alarm and the error do.
func TestLoginOfFewUses(t *testing.T) {
	f := startFixture(t, servers.VaultOptions{})
	for name, method := range map[string]func(t *testing.T) Config{
		"approle": func(t *testing.T) Config { return f.deployment(t, map[string]any{"token_num_uses": 5}) },
		"token": func(t *testing.T) Config {
			cfg := f.deployment(t, nil)
			made := f.write(t, "auth/token/create", map[string]any{"policies": []string{cfg.Prefix}, "num_uses": 6, "ttl": "1h"})
			cfg.Auth = Auth{Method: "token", TokenFile: filepath.Join(t.TempDir(), "token")}
			write(t, cfg.Auth.TokenFile, made.Auth.ClientToken)
			return cfg
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := method(t)
			log := &safeBuffer{}
			cfg.Log = slog.New(slog.NewTextHandler(log, nil))
			k := openKeyring(t, cfg)
			var err error
			for range 50 { // a few logins' worth, until the next one has to wait
				if _, err = k.MAC(t.Context(), nil); err != nil {
					break
				}
			}
			if !errors.Is(err, custody.ErrUnavailable) || !strings.Contains(err.Error(), "good for 5 calls and no more") {
				t.Errorf("when the calls are used up: %v", err)
			}
			if !log.contains("level=ERROR") || !log.contains("token_num_uses=0") {
				t.Error("no alarm")
			}
		})
	}
}
