package browser

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
)

// realSigner is a signer, embedded, whose hour is half a minute.
type realSigner struct {
	t     *testing.T
	admin string
	token string
}

func startSigner(t *testing.T) *realSigner {
	t.Helper()
	cfg := config.Default()
	cfg.Data = t.TempDir()
	for _, l := range []*config.Listener{&cfg.Listeners.Public, &cfg.Listeners.GRPC, &cfg.Listeners.Admin, &cfg.Listeners.Ops} {
		l.Address = "127.0.0.1:0"
	}
	cfg.Development.TimeScale = 120
	s, err := server.New(cfg, server.Options{Version: "1.4.0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	t.Cleanup(cancel)
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end, cancel := context.WithTimeout(context.Background(), stepTimeout)
		defer cancel()
		if err := s.Shutdown(end); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	select {
	case <-s.Ready():
	case <-ctx.Done():
		t.Fatal("the signer is not ready")
	}
	token, err := os.ReadFile(s.Info().AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	return &realSigner{t: t, admin: s.Info().Admin, token: strings.TrimSpace(string(token))}
}

// call is an operator's, on REST.
func (s *realSigner) call(path string, request any) map[string]any {
	s.t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.admin+path, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(answer, &got); err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %d %s (%v)", path, resp.StatusCode, answer, err)
	}
	return got
}

// until reads the page again and again until it says so.
func (s *realSigner) until(b *tab, said string) {
	s.t.Helper()
	b.await("page that says "+said, func() bool {
		b.visit(s.admin + "/?refresh=off")
		return strings.Contains(b.read(), said)
	})
}

// A real signer's rotation, emergency and kill are on its page while they happen.
func TestConsoleOfSigner(t *testing.T) {
	t.Parallel()
	s, b := startSigner(t), newTab(t)
	signInAsOperator(b, s.admin, s.token)
	s.until(b, "The one replica that the store knows is ready") // its permits are short here
	b.at("Nothing is stopped")
	b.reads("1 of 1")
	if strings.Contains(b.read(), s.token) {
		t.Error("the page has the token")
	}
	examine(t, b, "console-real-calm", false)

	next, _ := s.call("/v1/keys:rotate", map[string]any{"reason": "drill"})["kid"].(string)
	s.until(b, "Rotation in progress: the next key is published")
	b.reads(next)
	b.reads("rotate")
	for _, p := range picture(b, "console-real-published") {
		t.Error(p)
	}
	s.until(b, "Rotation in progress: the old key is retiring")
	b.reads("Key " + next[:8] + "… signs")
	for _, p := range picture(b, "console-real-retiring") {
		t.Error(p)
	}
	began := time.Now()
	s.until(b, "Calm")
	t.Logf("the old key left %v later", time.Since(began).Round(time.Second))

	s.call("/v1/keys:rotate", map[string]any{"reason": "stolen", "emergency": true, "compromisedKid": next})
	s.until(b, "Emergency: a key was revoked")
	b.at("Attention needed")
	b.reads("Key " + next[:8] + "… was revoked")
	examine(t, b, "console-real-emergency", false)

	s.call("/v1/kill", map[string]any{"scope": map[string]any{"kind": "audience", "value": "a2a-air"}, "reason": "they asked"})
	s.call("/v1/kill", map[string]any{"scope": map[string]any{"kind": "all"}, "reason": "<b>stolen</b> laptop"})
	s.until(b, "Everything is stopped")
	b.at("Everything is stopped")
	b.reads("2 stops in force")
	b.reads("<b>stolen</b> laptop")
	b.reads("the audience a2a-air")
	examine(t, b, "console-real-stopped", false)
}
