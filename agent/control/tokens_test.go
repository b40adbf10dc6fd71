package control

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// clock is a time that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// CP-4: a token's secret is shown once, to who makes it; the profile keeps its hash.
func TestTokens(t *testing.T) {
	ctx := t.Context()
	file := filepath.Join(t.TempDir(), "agent.db")
	store, err := sqlite.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	at := &clock{now: time.Date(2026, 3, 4, 5, 30, 0, 0, time.UTC)}
	tokens := NewTokens(store, "owner", at.Now)

	v, secret, err := tokens.Create(ctx, CreateToken{Name: "ops", Scope: ScopeOperator, ExpiresIn: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if v.State != TokenActive || v.Name != "ops" || v.Scope != ScopeOperator || !v.Expires.Equal(at.now.Add(24*time.Hour)) || !v.Created.Equal(at.now) {
		t.Errorf("the token is %+v", v)
	}
	if s := secret.Reveal(); !strings.HasPrefix(s, TokenPrefix) || len(s) < len(TokenPrefix)+52 {
		t.Errorf("the secret has %d characters", len(s))
	}
	if secret.String() != agent.Redacted {
		t.Error("the secret prints")
	}
	_, other, err := tokens.Create(ctx, CreateToken{Name: "other", Scope: ScopeRead})
	if err != nil || other == secret {
		t.Fatalf("another token: %v", err)
	}

	accepted := func(secret agent.Secret) bool {
		t.Helper()
		_, err := tokens.accept(ctx, secret.Reveal())
		if err != nil && !errors.Is(err, errNoToken) {
			t.Fatal(err)
		}
		return err == nil
	}
	if got, err := tokens.accept(ctx, secret.Reveal()); err != nil || got.ID != v.ID || got.Scope != ScopeOperator {
		t.Errorf("accept: %+v, %v", got, err)
	}
	for _, wrong := range []string{"", TokenPrefix, secret.Reveal() + "A", strings.ToLower(secret.Reveal()), secret.Reveal()[1:], v.ID, tokenHash(secret.Reveal())} {
		if accepted(agent.Secret(wrong)) {
			t.Error("a wrong token is accepted")
		}
	}
	if NewTokens(store, "another", at.Now).stands(ctx, v.ID) == nil { // ID-7
		t.Error("another principal has the token")
	}

	// The last use is kept to the hour, not before it was made, and written at most once in one.
	list, err := tokens.List(ctx)
	if err != nil || len(list) != 2 {
		t.Fatalf("list %+v, %v", list, err)
	}
	for _, l := range list {
		if l.Name == "ops" && !l.LastUsed.Equal(l.Created) || l.Name == "other" && !l.LastUsed.IsZero() {
			t.Errorf("last use of %s: %v", l.Name, l.LastUsed)
		}
	}

	// It ends by itself at its time, exactly.
	at.pass(24*time.Hour - 1)
	if !accepted(secret) {
		t.Error("not accepted just before it expires")
	}
	at.pass(1)
	if accepted(secret) || tokens.stands(ctx, v.ID) == nil {
		t.Error("accepted when it has expired")
	}
	if list, err = tokens.List(ctx); err != nil || list[len(list)-1].State != TokenExpired {
		t.Errorf("list of an expired one %+v, %v", list, err)
	}

	// One that is revoked ends at once, for good; again, it changes nothing.
	if !accepted(other) {
		t.Fatal("the other token is not accepted")
	}
	revoked, err := tokens.Revoke(ctx, "other")
	if err != nil || revoked.State != TokenRevoked || !revoked.Revoked.Equal(at.now) {
		t.Errorf("revoke %+v, %v", revoked, err)
	}
	if accepted(other) {
		t.Error("accepted when it is revoked")
	}
	at.pass(time.Minute)
	if again, err := tokens.Revoke(ctx, revoked.ID); err != nil || again != revoked {
		t.Errorf("revoked again %+v, %v", again, err)
	}
	if _, err := tokens.Revoke(ctx, "nobody"); !errors.Is(err, agent.ErrNotFound) {
		t.Errorf("revoke of none: %v", err)
	}

	// A name in the records stays one token's, and what cannot be is refused.
	for name, c := range map[string]CreateToken{
		"name of one that is revoked": {Name: "other", Scope: ScopeRead},
		"no name":                     {Scope: ScopeRead},
		"name with a space":           {Name: "a b", Scope: ScopeRead},
		"long name":                   {Name: strings.Repeat("a", 65), Scope: ScopeRead},
		"no scope":                    {Name: "x"},
		"unknown scope":               {Name: "x", Scope: "root"},
		"ended already":               {Name: "x", Scope: ScopeRead, ExpiresIn: -1},
		"lives too long":              {Name: "x", Scope: ScopeRead, ExpiresIn: 367 * 24 * time.Hour},
	} {
		if _, secret, err := tokens.Create(ctx, c); err == nil || secret != "" {
			t.Errorf("%s: %v", name, err)
		}
	}

	for _, f := range []string{file, file + "-wal"} {
		content, err := os.ReadFile(f)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, s := range []agent.Secret{secret, other} {
			if strings.Contains(string(content), strings.TrimPrefix(s.Reveal(), TokenPrefix)) {
				t.Errorf("%s holds a token", filepath.Base(f))
			}
		}
	}
}

// A record that cannot be read accepts nobody.
func TestDamagedToken(t *testing.T) {
	w := newServer(t)
	for _, data := range []string{`{`, `{"name":"x"}`, `{"name":"x","scope":"root","expires":"2999-01-01T00:00:00Z"}`, `{"name":"","scope":"admin","expires":"2999-01-01T00:00:00Z"}`} {
		err := w.store.Update(t.Context(), func(tx agent.Tx) error {
			if err := tx.Delete(agent.KindToken, "owner", "token-x"); err != nil {
				return err
			}
			return tx.Put(agent.KindToken, agent.Record{
				Head: agent.Head{ID: "token-x", Principal: "owner", Key: tokenHash(TokenPrefix + "x"), State: TokenActive}, Data: []byte(data),
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		code, _, body := w.rest(w.unix, "GET", "/v1/grants", "", "Authorization", "Bearer "+TokenPrefix+"x")
		if reason, _ := infoOf(restStatus(t, body)); code != 500 || reason != codeDamaged {
			t.Errorf("with a record %s: %d %s", data, code, body)
		}
	}
}

// A token that is revoked by another process ends at once: for new calls, and for a
// stream that is open.
func TestRevokedTokenHearsNothingMore(t *testing.T) {
	w := newServer(t)
	elsewhere := NewTokens(w.store, "owner", nil)
	client := agentv1.NewAgentServiceClient(w.conn(w.loopback))
	ctx, cancel := context.WithCancel(withHeaders(t.Context(), "authorization", "Bearer "+w.secrets[ScopeRead]))
	defer cancel()
	events, err := client.WatchEvents(ctx, &agentv1.WatchEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := events.Recv(); err != nil || e.Kind != string(agent.KindWatching) {
		t.Fatalf("first event %v, %v", e, err)
	}
	if _, err := elsewhere.Revoke(t.Context(), "read"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ListGrants(ctx, &agentv1.ListGrantsRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a call by a revoked token: %v", err)
	}
	owner := agentv1.NewAgentServiceClient(w.conn(w.unix))
	if _, err := owner.SetProvider(t.Context(), &agentv1.SetProviderRequest{Origin: "https://p.example.com", Audience: "pact:p"}); err != nil {
		t.Fatal(err)
	}
	if e, err := events.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stream of a revoked token: %v, %v", e, err)
	}
}
