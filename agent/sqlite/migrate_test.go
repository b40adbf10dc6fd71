package sqlite

import (
	"bytes"
	"database/sql"
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

//go:embed testdata/schema-1.sql
var schema1 string

// script makes a database file, as another version of the program did.
func script(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
}

// schemaOf is what a database consists of, by name.
func schemaOf(t *testing.T, s *Store) map[string]string {
	t.Helper()
	rows, err := s.db.Query("SELECT name, coalesce(sql, '') FROM sqlite_schema")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			t.Fatal(err)
		}
		out[name] = strings.Join(strings.Fields(text), " ")
	}
	return out
}

// CV-2, RS-1: a profile of an earlier version is opened with all that is in it,
// and is then as one that was made now; opening it again changes nothing.
func TestMigrate(t *testing.T) {
	old := filepath.Join(t.TempDir(), "old.db")
	script(t, old, schema1)
	made := schemaOf(t, open(t, filepath.Join(t.TempDir(), "new.db")))
	for range 2 {
		s := open(t, old)
		got := schemaOf(t, s)
		if len(got) != len(made) {
			t.Errorf("%d tables and indexes, and %d in a new one", len(got), len(made))
		}
		for name, text := range made {
			if got[name] != text {
				t.Errorf("%s is %q, and %q in a new one", name, got[name], text)
			}
		}
		var version int
		if err := s.db.QueryRow("PRAGMA user_version").Scan(&version); err != nil || version != len(migrations) {
			t.Errorf("version %d, %v", version, err)
		}
		err := s.View(t.Context(), func(tx agent.Tx) error {
			r, err := tx.Get(agent.KindGrant, "alice", "grant-1")
			sealed, secretErr := tx.Secret("grant-1")
			if r.State != "active" || r.Revision != 3 || r.LeaseOwner != "run-1/refresh-1" || string(r.Data) != `{"GrantID":"g-1"}` || string(sealed) != "sealed" ||
				!r.Created.Equal(time.UnixMicro(1795953600123456)) {
				t.Errorf("%+v, %q", r, sealed)
			}
			return errors.Join(err, secretErr)
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A file that cannot be used is refused with the reason, and nothing in it changes.
func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, path string)
		want string
	}{
		"a newer version": {func(t *testing.T, path string) { script(t, path, schema1, "PRAGMA user_version = 99") }, "its version 99 is newer than this program knows"},
		"half a schema":   {func(t *testing.T, path string) { script(t, path, "CREATE TABLE grants (id TEXT)") }, "migrate to version 1"},
		"something else": {func(t *testing.T, path string) {
			if err := os.WriteFile(path, bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a database"},
		"a folder": {func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "is a directory"},
	} {
		path := filepath.Join(t.TempDir(), "agent.db")
		c.make(t, path)
		before := contents(path)
		s, err := Open(path)
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if after := contents(path); after != before {
			t.Errorf("%s: it was\n%s\nand is\n%s", name, before, after)
		}
	}
}

// contents is what is in a file: of a database its schema, version and grants.
func contents(path string) string {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	var all string
	if err := db.QueryRow(`SELECT group_concat(name || ' ' || coalesce(sql, '')) || (SELECT user_version FROM pragma_user_version) || (SELECT coalesce(group_concat(id), '') FROM grants) FROM sqlite_schema`).Scan(&all); err != nil {
		data, _ := os.ReadFile(path)
		return string(data)
	}
	return all
}

// CV-3: programs that start on a new profile at the same moment all get it.
func TestOpenTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	stores := make([]*Store, 8)
	var all sync.WaitGroup
	for i := range stores {
		all.Go(func() {
			s, err := Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			stores[i] = s
		})
	}
	all.Wait()
	for _, s := range stores {
		if s == nil {
			continue
		}
		if err := errors.Join(s.Check(t.Context()), s.Close()); err != nil {
			t.Error(err)
		}
	}
}
