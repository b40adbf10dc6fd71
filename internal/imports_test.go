package internal_test

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/pactsigner/pactsigner/"

// mayImport is the house's table: what each part may import of ours. A part is
// the longest listed prefix of a package's path. Tests may import more.
var mayImport = map[string][]string{
	"cmd/signer":       {"internal/build", "internal/config", "internal/server", "internal/store", "signer", "custody", "rotation"},
	"cmd/pactctl":      {"agent", "agent/control", "agent/assistant", "sandbox", "sandbox/person", "conformance", "probe", "proto", "signer", "internal/build", "internal/config", "internal/server", "internal/audit", "jwks"},
	"internal/server":  {"internal/config", "internal/console", "internal/store", "internal/audit", "signer", "custody", "jwks", "rotation", "killswitch", "proto"},
	"internal/config":  {"signer", "rotation", "killswitch"},
	"internal/store":   {"signer", "rotation", "killswitch", "internal/audit"},
	"internal/audit":   {},
	"internal/console": {"signer", "proto"},
	"probe":            {"agent", "jwks", "proto"},
	"internal/build":   {},
	"internal/bubble":  {},
	"proto":            {},
	"internal/gateway": {},
	"signer":           {"custody", "jwks", "rotation", "killswitch", "proto", "internal/audit", "internal/gateway"},
	"custody":          {"jwks"},
	"jwks":             {},
	"rotation":         {"custody", "jwks"},
	"killswitch":       {"internal/audit"},
	"agent":            {"jwks"},
	"agent/control":    {"agent", "proto", "internal/gateway"},
	"agent/assistant":  {"agent"},
	"sandbox":          {"sandbox/person", "jwks"},
	"sandbox/person":   {},
	"conformance":      {"sandbox/person", "jwks"},
}

// part returns the part of the house that a package of ours belongs to.
func part(pkg string) string {
	for p := pkg; p != "."; p = path.Dir(p) {
		if _, ok := mayImport[p]; ok {
			return p
		}
	}
	return ""
}

// TestImports holds the imports to the table.
func TestImports(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours || name == "internal" || strings.HasPrefix(name, "test/") {
			continue
		}
		seen++
		from := part(name)
		if from == "" {
			t.Errorf("%s is in no part of the house: add it to the table, or move it", name)
			continue
		}
		allowed := map[string]bool{from: true}
		for _, to := range mayImport[from] {
			allowed[to] = true
		}
		for _, imp := range p.Imports {
			if to, ours := strings.CutPrefix(imp, module); ours && !allowed[part(to)] {
				t.Errorf("%s imports %s: %s may import only %v", name, to, from, mayImport[from])
			}
		}
	}
	if seen < 8 {
		t.Fatalf("go list found only %d packages of ours", seen)
	}
}

// TestBubbles holds tests to bubbles that the race detector survives.
func TestBubbles(t *testing.T) {
	guarded := 0
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && d.Name() == ".git" { // changes under whoever reads it
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") || filepath.Base(name) == "imports_test.go" {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		text := string(b)
		guarded += strings.Count(text, "bubble.Test(")
		if strings.Contains(text, "synctest.Test(") || strings.Contains(text, "rapid.SyncTest(") && !strings.Contains(text, "bubble.Guard(") {
			t.Errorf("%s begins a bubble by itself: use bubble.Test or bubble.Guard", name)
		}
		return nil
	})
	if err != nil || guarded == 0 {
		t.Errorf("%d bubbles: %v", guarded, err)
	}
}
