package servers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The versions that programs are kept under are those that are built.
func TestProgramVersions(t *testing.T) {
	for _, p := range Programs {
		mod, err := os.ReadFile(filepath.Join("..", "..", p.Folder, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		pkg := p.Package
		if pkg == "." {
			pkg = "github.com/hashicorp/vault"
		}
		found := false
		for line := range strings.Lines(string(mod)) {
			module, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(strings.TrimPrefix(line, "require")), " "), " ")
			if strings.HasPrefix(pkg+"/", module+"/") && strings.HasPrefix(rest+" ", "v"+p.Version+" ") {
				found = true
			}
		}
		if !found {
			t.Errorf("%s/go.mod does not require %s at v%s", p.Folder, pkg, p.Version)
		}
	}
}
