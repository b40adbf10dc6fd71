package server

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/store/redis"
)

// The configurations and the Redis user that the operators' page shows are right.
func TestOperatingPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(examples) < 2 {
		t.Fatalf("only %d configurations were found", len(examples))
	}
	for _, e := range examples {
		file := filepath.Join(t.TempDir(), "signer.yaml")
		if err := os.WriteFile(file, e[1], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load(config.Source{File: file}); err != nil {
			t.Errorf("%v\n%s", err, e[1])
		}
	}
	if user := "ACL SETUSER signer on >PASSWORD " + redis.ACL + "\n"; !strings.Contains(string(page), user) {
		t.Errorf("the page has not the user's rights as they are: %s", user)
	}
}
