package agent_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// vectors decodes testdata/name and the file of that name in every directory
// that PACT_VECTORS lists, and runs test on each.
func vectors[T any](t *testing.T, name string, test func(t *testing.T, file T)) {
	t.Helper()
	dirs := append([]string{"testdata"}, filepath.SplitList(os.Getenv("PACT_VECTORS"))...)
	for i, dir := range dirs {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if i > 0 && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var file T
		if err := json.Unmarshal(data, &file); err != nil {
			t.Fatalf("%s: %v", filepath.Join(dir, name), err)
		}
		t.Run(filepath.Base(dir), func(t *testing.T) { test(t, file) })
	}
}

// atLeastOne fails on a vector file without cases: it would prove nothing.
func atLeastOne(t *testing.T, n int) {
	t.Helper()
	if n == 0 {
		t.Fatal("no cases")
	}
}
