package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"database/sql"
)

// What a start would say of the state file, a check says, and leaves everything as it
// is.
func TestCheckState(t *testing.T) {
	dir := write(t, map[string]string{"text": strings.Repeat("not a database ", 20), "short": "x", "empty": "", "open": ""})
	if err := os.Chmod(filepath.Join(dir, "open"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := newStore(filepath.Join(dir, "ours"), Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	for name, statement := range map[string]string{"theirs": "CREATE TABLE t (a)", "newer": "PRAGMA application_id = 0x50536278; PRAGMA user_version = 99"} {
		other, err := sql.Open("sqlite", filepath.Join(dir, name))
		if err == nil {
			_, err = other.Exec(statement)
		}
		if err = errors.Join(err, other.Close(), os.Chmod(filepath.Join(dir, name), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	entries := func() (names string) {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			names += e.Name() + " "
		}
		return names
	}
	before := entries()
	for name, why := range map[string]string{
		"new": "", "empty": "", "ours": "",
		"nowhere/new": "no such file or directory: make that directory for it, or name another",
		"text/new":    "not a directory",
		"":            "is not a file: name one",
		"text":        "is not an SQLite database: name another file",
		"short":       "is not an SQLite database: name another file",
		"newer":       "use a newer program",
		"theirs":      "is another program's database: name a new file",
		"open":        "others can open it (mode 0644), and it holds keys: chmod 600 it",
	} {
		path := filepath.Join(dir, name)
		err := CheckState(path)
		if (err == nil) != (why == "") || err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want %q", name, err, why)
		}
		if after := entries(); after != before {
			t.Errorf("%q: %s, before %s", name, after, before)
		}
		s, failed := newStore(path, Defaults()) // it agrees
		if (failed == nil) != (err == nil) {
			t.Errorf("%q: the check says %v, the start %v", name, err, failed)
		}
		if failed == nil {
			if err := s.close(); err != nil {
				t.Error(err)
			}
		}
		before = entries()
	}
	if os.Geteuid() == 0 { // whom nothing keeps out
		return
	}
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o700) // or it cannot be removed
	if err := CheckState(filepath.Join(dir, "newer")); err == nil {
		t.Error("a directory that cannot be written")
	}
}

func TestCheckConfigLooksAtTheState(t *testing.T) {
	dir := write(t, map[string]string{"sandbox.yaml": "listen: 127.0.0.1:0\nstate: nowhere/state.db\n"})
	file := filepath.Join(dir, "sandbox.yaml")
	if _, err := CheckConfig(file, nil); err == nil || !strings.HasPrefix(err.Error(), file+":2: state: "+dir+"/nowhere/state.db cannot be made: ") {
		t.Errorf("%v", err)
	}
	if _, err := LoadConfig(file, nil); err != nil { // a flag may say another
		t.Error(err)
	}
}
