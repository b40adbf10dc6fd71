package agent_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
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

// seconds are Unix seconds in a vector file: a JSON number of whole seconds,
// however it is written.
type seconds int64

func (s *seconds) UnmarshalJSON(data []byte) error {
	var f float64
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	if *s = seconds(f); float64(*s) != f {
		return errors.New("not whole seconds")
	}
	return nil
}

func (s seconds) time() time.Time { return time.Unix(int64(s), 0) }

// TestSeconds covers the spellings of given.now.
func TestSeconds(t *testing.T) {
	for _, written := range []string{"1800000000", "1800000000.0", "1.8e9"} {
		var s seconds
		if err := json.Unmarshal([]byte(written), &s); err != nil || s.time().Unix() != 1800000000 {
			t.Errorf("%s: %d, %v", written, s, err)
		}
	}
	if err := json.Unmarshal([]byte("1.5"), new(seconds)); err == nil {
		t.Error("half a second passes")
	}
}

// atLeastOne fails on a vector file without cases: it would prove nothing.
func atLeastOne(t *testing.T, n int) {
	t.Helper()
	if n == 0 {
		t.Fatal("no cases")
	}
}
