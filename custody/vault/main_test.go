package vault

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/pactsigner/pactsigner/test/servers"
)

// sharedVault is one Vault for all tests that neither stop nor seal it, change its
// mounts, nor use another prefix than their own.
func sharedVault(t *testing.T) *servers.Vault {
	t.Helper()
	shared.start.Do(func() { shared.vault = servers.StartVault(&shared, servers.VaultOptions{}) })
	return shared.vault
}

var shared sharedT

func TestMain(m *testing.M) {
	code := m.Run()
	shared.end()
	os.Exit(code)
}

// sharedT is the test that the shared Vault belongs to: all of them.
type sharedT struct {
	start    sync.Once
	vault    *servers.Vault
	cleanups []func()
}

func (*sharedT) Helper()                           {}
func (*sharedT) Logf(string, ...any)               {}
func (*sharedT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*sharedT) Context() context.Context          { return context.Background() }
func (s *sharedT) Cleanup(f func())                { s.cleanups = append(s.cleanups, f) }

func (s *sharedT) TempDir() string {
	dir, err := os.MkdirTemp("", "vault")
	if err != nil {
		s.Fatalf("%v", err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *sharedT) end() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}
