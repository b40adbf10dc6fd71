package sandbox

import (
	"context"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
)

//go:embed schema.sql
var schema string

// migrations are run in order; the database's user_version is how many it has had.
// A migration that was released is never changed.
var migrations = []string{schema}

// applicationID marks our databases (PRAGMA application_id): "PSbx".
const applicationID = 0x50536278

// migrate brings the database to the newest version.
func (s *store) migrate(ctx context.Context) error {
	return s.update(ctx, func(t *tx) error {
		var id, version, tables int
		for pragma, into := range map[string]*int{"PRAGMA application_id": &id, "PRAGMA user_version": &version, "SELECT count(*) FROM sqlite_schema": &tables} {
			if _, err := t.get(pragma, nil, into); err != nil {
				return err
			}
		}
		switch {
		case id != applicationID && (id != 0 || version != 0 || tables != 0):
			return fmt.Errorf("%w: it is another program's database; name a new file", errStore)
		case version > len(migrations):
			return fmt.Errorf("%w: its version %d is newer than this program knows (%d): use a newer program", errStore, version, len(migrations))
		}
		for ; version < len(migrations); version++ {
			if _, err := s.conn.ExecContext(t.ctx, migrations[version]); err != nil { // many statements
				return fmt.Errorf("%w: migrate to version %d: %w", errStore, version+1, err)
			}
			if _, err := s.conn.ExecContext(t.ctx, fmt.Sprintf("PRAGMA user_version = %d; PRAGMA application_id = %d", version+1, applicationID)); err != nil {
				return fmt.Errorf("%w: migrate to version %d: %w", errStore, version+1, err)
			}
		}
		return nil
	})
}

// list is a list of strings in a column.
type list []string

// Value implements [driver.Valuer].
func (l list) Value() (driver.Value, error) {
	text, err := json.Marshal([]string(l))
	return string(text), err
}

// Scan implements [database/sql.Scanner].
func (l *list) Scan(v any) error {
	text, ok := v.(string)
	if !ok {
		return errors.New("a list is no text")
	}
	return json.Unmarshal([]byte(text), (*[]string)(l))
}

// instant is a time in a column.
type instant struct{ time.Time }

// Value implements [driver.Valuer].
func (i instant) Value() (driver.Value, error) {
	if i.IsZero() {
		return int64(0), nil
	}
	return i.UnixNano(), nil
}

// Scan implements [database/sql.Scanner].
func (i *instant) Scan(v any) error {
	ns, ok := v.(int64)
	if !ok {
		return errors.New("a time is no number")
	}
	i.Time = time.Time{}
	if ns != 0 {
		i.Time = time.Unix(0, ns).UTC()
	}
	return nil
}
