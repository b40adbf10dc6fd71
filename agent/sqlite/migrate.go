package sqlite

import (
	"context"
	"fmt"
	"strings"

	"github.com/pactsigner/pactsigner/agent"
)

// migrations are run in order, each in a transaction of its own; the database's
// user_version is how many it has had. A migration that was released is never
// changed.
var migrations = []string{
	recordTables(
		"settings", "identities", "bindings", "providers", "businesses", "grants",
		"authorizations", "conversations", "messages", "receipts", "blocks",
	) + `CREATE TABLE secrets (id TEXT PRIMARY KEY, sealed BLOB NOT NULL) STRICT;`,
	recordTables("approvals", "tokens"),
}

// recordTables makes a table of records per name. What a record is found by,
// its state and its lease are columns; the rest is JSON.
func recordTables(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, `CREATE TABLE %[1]s (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX %[1]s_business ON %[1]s (principal, business, created);
CREATE INDEX %[1]s_conversation ON %[1]s (principal, conversation, created);
CREATE INDEX %[1]s_state ON %[1]s (state);
`, name)
	}
	return b.String()
}

// migrate brings the database to the newest version.
func (s *Store) migrate() error {
	for {
		more := false
		err := s.Update(context.Background(), func(t agent.Tx) error {
			tx := t.(*tx)
			var version int
			if err := tx.conn.QueryRowContext(tx.ctx, "PRAGMA user_version").Scan(&version); err != nil {
				return fmt.Errorf("read its version: %w", err)
			}
			if version > len(migrations) {
				return fmt.Errorf("its version %d is newer than this program knows (%d): use a newer program", version, len(migrations))
			}
			if version == len(migrations) {
				return nil
			}
			more = true
			if _, err := tx.conn.ExecContext(tx.ctx, migrations[version]); err != nil { // many statements
				return fmt.Errorf("migrate to version %d: %w", version+1, err)
			}
			_, err := tx.conn.ExecContext(tx.ctx, fmt.Sprintf("PRAGMA user_version = %d", version+1))
			return err
		})
		if err != nil || !more {
			return err
		}
	}
}
