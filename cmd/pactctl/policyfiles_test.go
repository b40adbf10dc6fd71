package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// PO-6: the files of the machine and of the profile may be missing, the one that
// PACT_POLICIES names not; and it can only narrow.
func TestPolicyFiles(t *testing.T) {
	dir := t.TempDir()
	machine, named := filepath.Join(dir, "machine.json"), filepath.Join(dir, "named.json")
	if p, err := policiesOf("", machine)(); err != nil || !p.Enabled {
		t.Errorf("no file: %+v, %v", p, err)
	}
	read := policiesOf(named, machine)
	if _, err := read(); err == nil || !strings.Contains(err.Error(), "PACT_POLICIES") || !strings.Contains(err.Error(), named) {
		t.Errorf("the named file is missing: %v", err)
	}
	for path, doc := range map[string]string{machine: `{"pact":{"enabled":false}}`, named: `{"pact":{"enabled":true}}`} {
		if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := read(); err != nil || p.Enabled {
		t.Errorf("the named file widens: %+v, %v", p, err)
	}
}
