package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
)

// A file that was cut is refused wherever it ends, and no fault kills the process.
func TestTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "signer.db")
	s := open(t, path, Options{})
	for i := range 100 {
		enroll(t, s, strings.Repeat("t", 100)+string(rune('a'+i)))
	}
	s.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 79, 80, 1024, 4096, 8192, 8193, 12288, 16384} {
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path, Options{})
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "backup") {
			t.Errorf("%d of %d bytes: %v", size, len(whole), err)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, path, Options{})
}

// A file that lies about its size does not kill the process either.
func TestFaultIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "signer.db")
	open(t, path, Options{}).Close()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{InitialMmapSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := os.Truncate(path, 8192); err != nil { // while it is mapped
		t.Fatal(err)
	}
	err = guarded(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			tx.Bucket(metaBucket).Get(formatKey)
			return nil
		})
	})
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
}

func TestID(t *testing.T) {
	dir := t.TempDir()
	path, old := filepath.Join(dir, "signer.db"), filepath.Join(dir, "old.db")
	refused := func(path string, opts Options, want error) {
		t.Helper()
		if s, err := Open(path, opts); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
			if err == nil {
				s.Close()
			}
		}
	}
	refused(path, Options{ID: "a"}, ErrUnmarked)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error("a file was made")
	}
	open(t, path, Options{ID: "a", Make: true}).Close()
	open(t, path, Options{ID: "a"}).Close()
	refused(path, Options{ID: "b"}, ErrForeign)
	refused(path, Options{ID: "b", Make: true}, ErrForeign)
	open(t, old, Options{}).Close()
	refused(old, Options{ID: "a"}, ErrUnmarked)
	open(t, old, Options{ID: "a", Make: true}).Close()
	open(t, old, Options{ID: "a"})
}

// The log's end is known when entries are gone or damaged, and acts go on.
func TestAuditHead(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		tamper  func(b *bbolt.Bucket) error
		last    uint64
		hash    bool
		damaged uint64
	}{
		"whole":        {func(*bbolt.Bucket) error { return nil }, 3, true, 0},
		"tail deleted": {func(b *bbolt.Bucket) error { return b.Delete(seqKey(3)) }, 2, true, 0},
		"all deleted": {func(b *bbolt.Bucket) error {
			return errors.Join(b.Delete(seqKey(1)), b.Delete(seqKey(2)), b.Delete(seqKey(3)))
		}, 0, false, 0},
		"damaged end": {func(b *bbolt.Bucket) error { return b.Put(seqKey(3), []byte("{")) }, 3, false, 3},
		"damaged":     {func(b *bbolt.Bucket) error { return b.Put(seqKey(2), []byte("{")) }, 3, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{})
			for range 3 {
				if err := s.AppendAudit(ctx, audit.Entry{Action: "test"}); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.db.Update(func(tx *bbolt.Tx) error { return c.tamper(tx.Bucket(auditBucket)) }); err != nil {
				t.Fatal(err)
			}
			last, written, err := s.AuditHead(ctx)
			if err != nil || last.Seq != c.last || (last.Hash != "") != c.hash || written.Seq != 3 || written.Hash == "" {
				t.Errorf("last %+v, written %+v, %v", last, written, err)
			}
			list, err := s.Audit(ctx, 0, 10)
			var damaged *audit.DamagedError
			if errors.As(err, &damaged) != (c.damaged > 0) || damaged != nil && (damaged.Seq != c.damaged || len(list) != int(c.damaged)-1) {
				t.Errorf("%d entries, %v", len(list), err)
			}
			if err := s.AppendAudit(ctx, audit.Entry{Action: "test"}); err != nil {
				t.Fatal(err)
			}
			if last, written, err := s.AuditHead(ctx); err != nil || last.Seq != 4 || last != written {
				t.Errorf("then last %+v, written %+v, %v", last, written, err)
			}
		})
	}
}

func seqKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
