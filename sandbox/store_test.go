package sandbox

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// openStore opens a store and closes it with the test.
func openStore(t *testing.T, path string) *store {
	t.Helper()
	s, err := newStore(path, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// count is how many rows a table has.
func (s *store) count(t *testing.T, table string) (n int) {
	t.Helper()
	if err := s.view(t.Context(), func(x *tx) error {
		_, err := x.get("SELECT count(*) FROM "+table, nil, &n)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestStateFile: who may read it, and what makes it durable.
func TestStateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?c%20#d.db")
	s := openStore(t, path)
	if _, _, err := s.begin(t.Context(), party{brand: MarrowID}, "", "m", delegated{}, testStart); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal"} {
		info, err := os.Stat(path + suffix)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%q: %v, %v", suffix, info.Mode(), err)
		}
	}
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1"} {
		var got string
		if err := s.view(t.Context(), func(x *tx) error {
			_, err := x.get("PRAGMA "+pragma, nil, &got)
			return err
		}); err != nil || got != want {
			t.Errorf("%s is %s, want %s (%v)", pragma, got, want, err)
		}
	}
}

// TestStateThatCannotBe: New says which field, which file, and what to do.
func TestStateThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(content), mode), os.Chmod(path, mode)); err != nil { // whatever the umask
			t.Fatal(err)
		}
		return path
	}
	database := func(name, statements string) string {
		path := file(name, "", 0o600)
		db, err := sql.Open("sqlite", path)
		if err == nil {
			_, err = db.Exec(statements)
			err = errors.Join(err, db.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	used := filepath.Join(dir, "used.db")
	openStore(t, used)
	damaged := filepath.Join(dir, "damaged.db")
	s := openStore(t, damaged)
	if _, err := s.brandKey(t.Context(), LarklineID); err != nil {
		t.Fatal(err)
	}
	if err := s.view(t.Context(), func(x *tx) error {
		_, err := x.exec("UPDATE keys SET private = x'00'")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, says string }{
		"a folder":                {dir, "is not a file"},
		"in no folder":            {filepath.Join(dir, "none", "state.db"), "no such file"},
		"no database":             {file("text", strings.Repeat("no database ", 100), 0o600), "is not an SQLite database"},
		"for others to read":      {file("open.db", "", 0o640), "chmod 600"},
		"in use":                  {used, "another sandbox uses it"},
		"of another program":      {database("other.db", "CREATE TABLE x (y); PRAGMA user_version = 1"), "another program's"},
		"of another program, 2":   {database("other2.db", "PRAGMA application_id = 7"), "another program's"},
		"of a newer version":      {database("newer.db", "PRAGMA application_id = 0x50536278; PRAGMA user_version = 99"), "use a newer program"},
		"with a key that is none": {damaged, "the key of brand"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Config{State: c.path, PasswordMemory: 64})
			if err == nil {
				_ = s.Close()
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), c.says) || name != "with a key that is none" && (!strings.HasPrefix(err.Error(), "sandbox: State: ") || !strings.Contains(err.Error(), c.path)) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestStateIsOneSandboxes: whoever has opened a file has it, also one that was there and
// before anything is written.
func TestStateIsOneSandboxes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if err := openStore(t, path).close(); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, path)
	if second, err := newStore(path, Defaults()); err == nil || !strings.Contains(err.Error(), "another sandbox uses it") {
		if err == nil {
			_ = second.close()
		}
		t.Errorf("a second one: %v", err)
	}
	if _, err := s.brandKey(t.Context(), LarklineID); err != nil {
		t.Errorf("the first one: %v", err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	openStore(t, path)
}

// TestUndone: what a transaction did is gone if it fails or panics, and stays if it
// refuses.
func TestUndone(t *testing.T) {
	s := openStore(t, "")
	register := func(id string, end func() error) (err error) {
		defer func() {
			if recover() != nil {
				err = errStore
			}
		}()
		return s.update(t.Context(), func(x *tx) error {
			if _, err := x.exec("INSERT INTO keys (brand, private) VALUES (?, x'00')", id); err != nil {
				return err
			}
			return end()
		})
	}
	for id, c := range map[string]struct {
		end  func() error
		rows int
	}{
		"fails":   {func() error { return errStore }, 0},
		"panics":  {func() error { panic("here") }, 0},
		"refuses": {func() error { return errClosed }, 1},
		"works":   {func() error { return nil }, 1},
	} {
		if err := register(id, c.end); (err == nil) != (id == "works") {
			t.Errorf("%s: %v", id, err)
		}
		var n int
		if err := s.view(t.Context(), func(x *tx) error {
			_, err := x.get("SELECT count(*) FROM keys WHERE brand = ?", []any{id}, &n)
			return err
		}); err != nil || n != c.rows {
			t.Errorf("%s: %d rows, %v", id, n, err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.platform(t.Context(), "http://localhost"); !errors.Is(err, errStore) {
		t.Errorf("after close: %v", err)
	}
}
