package server

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/internal/config"
)

// testConfig is an embedded signer on free ports.
func testConfig(t *testing.T) config.Config {
	t.Helper()
	c := config.Default()
	c.Data = t.TempDir()
	c.Listeners = config.Listeners{
		Public: config.Listener{Address: "127.0.0.1:0"},
		GRPC:   config.Listener{Address: "127.0.0.1:0"},
		Admin:  config.Listener{Address: "127.0.0.1:0"},
		Ops:    config.Listener{Address: "127.0.0.1:0"},
	}
	c, err := c.Complete()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func open(t *testing.T, c config.Config, o openOptions) (*state, error) {
	t.Helper()
	s, err := openState(context.Background(), c, o)
	if err == nil {
		t.Cleanup(func() { s.close() })
	}
	return s, err
}

func mustOpen(t *testing.T, c config.Config, o openOptions) *state {
	t.Helper()
	s, err := open(t, c, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func refused(t *testing.T, c config.Config, want string) {
	t.Helper()
	if _, err := open(t, c, openOptions{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("opened with %v, want %q", err, want)
	}
}

// A store that is gone is not taken for a new deployment.
func TestLostStore(t *testing.T) {
	c := testConfig(t)
	mustOpen(t, c, openOptions{}).close()
	if err := os.Remove(c.Store.Path); err != nil {
		t.Fatal(err)
	}
	refused(t, c, "--accept-lost-store")
	s := mustOpen(t, c, openOptions{acceptLostStore: true})
	if !s.deployment.EnrolmentClosed {
		t.Error("enrolment is not closed")
	}
	s.close()
	s = mustOpen(t, c, openOptions{})
	if !s.deployment.EnrolmentClosed || s.deployment.State != ready {
		t.Errorf("after a restart: %+v", s.deployment)
	}
	s.close()
	s = mustOpen(t, c, openOptions{openEnrolment: true})
	if s.deployment.EnrolmentClosed {
		t.Error("enrolment is still closed")
	}
}

// Nor are keys that are gone: every subject would change.
func TestLostCustody(t *testing.T) {
	c := testConfig(t)
	mustOpen(t, c, openOptions{}).close()
	if err := os.RemoveAll(c.Custody.Dir); err != nil {
		t.Fatal(err)
	}
	refused(t, c, "restore that folder")
	if err := os.Mkdir(c.Custody.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	refused(t, c, "restore the folder")
}

// A first start that ended anywhere goes on.
func TestInterruptedFirstStart(t *testing.T) {
	ctx := context.Background()
	t.Run("before the store", func(t *testing.T) {
		c := testConfig(t)
		s := mustOpen(t, c, openOptions{})
		_, rev, err := loadDeployment(ctx, s.keyring)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := saveDeployment(ctx, s.keyring, rev, deployment{Format: 1, MinReader: 1, State: initialising}); err != nil {
			t.Fatal(err)
		}
		s.close()
		for _, file := range []string{c.Store.Path, adminTokenFile(c)} {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		s = mustOpen(t, c, openOptions{})
		if s.deployment.State != ready || s.deployment.EnrolmentClosed || s.token != tokenMade {
			t.Errorf("%+v, token %v", s.deployment, s.token)
		}
	})
	t.Run("after the token's file", func(t *testing.T) {
		c := testConfig(t)
		s := mustOpen(t, c, openOptions{})
		token, err := os.ReadFile(adminTokenFile(c))
		if err != nil {
			t.Fatal(err)
		}
		hash := s.deployment.AdminToken
		_, rev, err := loadDeployment(ctx, s.keyring)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := saveDeployment(ctx, s.keyring, rev, deployment{Format: 1, MinReader: 1, State: initialising}); err != nil {
			t.Fatal(err)
		}
		s.close()
		s = mustOpen(t, c, openOptions{})
		again, err := os.ReadFile(adminTokenFile(c))
		if err != nil || string(again) != string(token) || s.deployment.AdminToken != hash {
			t.Errorf("the token is another: %v", err)
		}
	})
	t.Run("something else in the token's place", func(t *testing.T) {
		c := testConfig(t)
		if err := os.WriteFile(adminTokenFile(c), []byte("my notes\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, c, "holds something else")
	})
}

func TestNewerDeployment(t *testing.T) {
	ctx := context.Background()
	c := testConfig(t)
	s := mustOpen(t, c, openOptions{})
	_, rev, err := loadDeployment(ctx, s.keyring)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := saveDeployment(ctx, s.keyring, rev, deployment{Format: 2, MinReader: 2, State: ready}); err != nil {
		t.Fatal(err)
	}
	s.close()
	refused(t, c, "use a newer version")
}

func TestTokenFileWithAnotherToken(t *testing.T) {
	c := testConfig(t)
	mustOpen(t, c, openOptions{}).close()
	if err := os.WriteFile(adminTokenFile(c), []byte("pact_admin_other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, c, openOptions{})
	if s.token != tokenOther || !strings.Contains(s.token.note(), "--new-admin-token") {
		t.Errorf("token %v: %s", s.token, s.token.note())
	}
}

func TestPassphraseFile(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		content string
		ok      bool
	}{
		"line":           {"correct horse\n", true},
		"no line end":    {"correct horse", true},
		"windows":        {"correct horse\r\n", true},
		"empty":          {"", false},
		"empty line":     {"\n", false},
		"two lines":      {"a\nb\n", false},
		"trailing blank": {"correct horse\n\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := readPassphrase(file)
			if (err == nil) != c.ok || c.ok && string(p) != "correct horse" {
				t.Errorf("read %d bytes, %v", len(p), err)
			}
			if err != nil && !strings.Contains(err.Error(), "custody.passphraseFile") {
				t.Errorf("%v does not name the key", err)
			}
		})
	}
}
