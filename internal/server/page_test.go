package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// visitor looks at the operator's page as a browser does.
type visitor struct {
	t      *testing.T
	client *http.Client
}

func newVisitor(t *testing.T) visitor {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return visitor{t, &http.Client{Jar: jar, Transport: &http.Transport{}}}
}

func (v visitor) read(resp *http.Response, err error) string {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return string(body)
}

func (v visitor) look(s *Server) string {
	v.t.Helper()
	return v.read(v.client.Get(s.Info().Admin + "/"))
}

func (v visitor) signIn(s *Server, token string) string {
	v.t.Helper()
	return v.read(v.client.PostForm(s.Info().Admin+"/sign-in", url.Values{"token": {token}}))
}

func (v visitor) headed(page, want string) {
	v.t.Helper()
	if !strings.Contains(page, ">"+want+"</h1>") {
		v.t.Fatalf("not headed %q:\n%s", want, page)
	}
}

// A session of the operator's page is one at every replica, ends with the token, and is
// good for nothing but the page. Without the store the page tells that.
func TestPageOfFleet(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{})
	redis, a, b, token := pair(t, v)
	look := newVisitor(t)
	look.headed(look.look(a), "Sign in")
	page := look.signIn(a, token)
	for _, s := range []*Server{a, b} {
		eventually(t, func() string { // permits are short here
			page = look.look(s)
			for _, want := range []string{">Nothing is stopped</h1>", "All 2 replicas", a.replica, b.replica} {
				if !strings.Contains(page, want) {
					return "no " + want + " on the page of " + s.replica
				}
			}
			return ""
		})
	}
	if strings.Contains(page, token) || strings.Contains(page, "at this replica only") {
		t.Error("the page has the token, or the session is of one replica")
	}
	resp, err := look.client.Get(a.Info().Admin + "/v1/fleet")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("with the session the admin service answers %d", resp.StatusCode)
	}
	a.mustOperate(t, token, "POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "all"}, "reason": "drill"})
	eventually(t, func() string {
		if !strings.Contains(look.look(b), ">Everything is stopped</h1>") {
			return "the page does not say that everything is stopped"
		}
		return ""
	})

	redis.Stop()
	page = look.look(b)
	look.headed(page, "Not known: the switch cannot be read")
	if strings.Contains(page, "Nothing is stopped") || !strings.Contains(page, "Kill switch: Unknown") {
		t.Errorf("without its store the page says:\n%s", page)
	}
	redis.Start()
	eventually(t, func() string {
		if !strings.Contains(look.look(b), ">Everything is stopped</h1>") {
			return "the page does not find the store again"
		}
		return ""
	})

	if _, err := Init(t.Context(), a.cfg, InitOptions{ShowAdminToken: true, NewAdminToken: true}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Server{a, b} {
		eventually(t, func() string {
			if strings.Contains(look.look(s), ">Everything is stopped</h1>") {
				return "the session outlives its token"
			}
			return ""
		})
	}
}

// The page stands beside the admin service, and takes nothing from it.
func TestPageBesideService(t *testing.T) {
	s := launch(t, testConfig(t))
	look := newVisitor(t)
	look.headed(look.look(s), "Sign in")
	for path, want := range map[string]int{"/": 200, "/sign-in": 200, "/sign-out": 200, "/v1/fleet": 401, "/favicon.ico": 401, "/x": 401} {
		resp, err := look.client.Get(s.Info().Admin + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	secret, err := s.pageSecret(t.Context())
	if err != nil || len(secret) != 32 {
		t.Fatalf("%d bytes, %v", len(secret), err)
	}
	if again, err := s.pageSecret(t.Context()); err != nil || string(again) != string(secret) {
		t.Error("another secret each time")
	}
}

// Until the first token is known the page says so, and lets those of the configuration
// in.
func TestPageBeforeFirstToken(t *testing.T) {
	configured, hash := signer.NewAdminToken()
	for _, more := range [][]signer.AdminToken{nil, {{Name: "night", Role: signer.RoleViewer, Hash: hash}}} {
		s := launch(t, testConfig(t))
		f, err := newAdminFace(s.operators.config, more)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.servePage(nil, func(context.Context) ([]byte, error) { return nil, fmt.Errorf("custody is away") }); err != nil {
			t.Fatal(err)
		}
		ask := func(path, token string) (int, string) {
			r := httptest.NewRequest("GET", path, nil)
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			w := httptest.NewRecorder()
			f.ServeHTTP(w, r)
			return w.Code, w.Body.String()
		}
		code, page := ask("/", "")
		if !strings.Contains(page, "The first admin token is not known yet") || (code == 503) != (more == nil) {
			t.Errorf("%d configured: %d %s", len(more), code, page)
		}
		if code, page = ask("/", configured); (code == 200 && strings.Contains(page, "Nothing is stopped")) != (more != nil) {
			t.Errorf("%d configured, with a token: %d %s", len(more), code, page)
		}
		if code, _ = ask("/v1/fleet", "another"); code != 503 {
			t.Errorf("the service answers %d", code)
		}
		first, firstHash := signer.NewAdminToken()
		if err := f.learn(signer.FormatAdminTokenHash(firstHash)); err != nil {
			t.Fatal(err)
		}
		if code, page = ask("/", first); code != 200 || !strings.Contains(page, "Nothing is stopped") {
			t.Errorf("%d configured, once it is known: %d %s", len(more), code, page)
		}
	}
}
