package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// The header of an SQLite database (https://sqlite.org/fileformat.html section 1.3).
const (
	sqliteMagic         = "SQLite format 3\x00"
	sqliteUserVersion   = 60 // where it is
	sqliteApplicationID = 68
	sqliteHeader        = 100
)

// CheckState tells why a file cannot be Config.State; nil if it can, unless another
// sandbox uses it by then. It makes and changes nothing.
func CheckState(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := mayMakeIn(filepath.Dir(path)); err != nil {
			return fmt.Errorf("%s cannot be made: %w: make that directory for it, or name another", path, err)
		}
		return nil
	}
	if err != nil {
		return err // it names the path
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file: name one", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s: others can open it (mode %04o), and it holds keys: chmod 600 it", path, info.Mode().Perm())
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: name a file that you may write", err)
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, sqliteHeader)
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.EOF) { // an empty one is made into a database
		return nil
	}
	if n < sqliteHeader || string(head[:len(sqliteMagic)]) != sqliteMagic {
		return fmt.Errorf("%s is not an SQLite database: name another file", path)
	}
	if _, err := os.Stat(path + "-wal"); err == nil { // what has changed is there
		return nil
	}
	switch id, version := binary.BigEndian.Uint32(head[sqliteApplicationID:]), binary.BigEndian.Uint32(head[sqliteUserVersion:]); {
	case id != applicationID:
		return fmt.Errorf("%s is another program's database: name a new file", path)
	case int64(version) > int64(len(migrations)):
		return fmt.Errorf("%s: its version %d is newer than this program knows (%d): use a newer program", path, version, len(migrations))
	}
	return nil
}

func mayMakeIn(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	}
	return mayWrite(dir)
}
