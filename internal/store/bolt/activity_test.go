package bolt

import (
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/signer"
)

// What was told too long ago, and what is damaged, leaves the file: runs come and go for years.
func TestActivityLeavesTheFile(t *testing.T) {
	c := newClock()
	s, err := Open(filepath.Join(t.TempDir(), "signer.db"), Options{Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	in := func() (runs []string) {
		err := s.view(t.Context(), func(tx *bbolt.Tx) error {
			return tx.Bucket(activityBucket).ForEach(func(k, _ []byte) error { runs = append(runs, string(k)); return nil })
		})
		if err != nil {
			t.Fatal(err)
		}
		return runs
	}
	put := func(run string) {
		if err := s.PutActivity(t.Context(), run, []byte("data")); err != nil {
			t.Fatal(err)
		}
	}
	put("old")
	err = s.update(t.Context(), func(tx *bbolt.Tx) error { return tx.Bucket(activityBucket).Put([]byte("damaged"), []byte("short")) })
	if err != nil {
		t.Fatal(err)
	}
	c.advance(signer.ActivityKept)
	put("kept")
	if got := in(); !slices.Equal(got, []string{"kept", "old"}) {
		t.Errorf("the file has %q", got)
	}
	c.advance(1)
	put("new")
	if got := in(); !slices.Equal(got, []string{"kept", "new"}) {
		t.Errorf("the file has %q", got)
	}
}
