// Package sqlite is the agent's durable store: one SQLite database in WAL mode,
// with synchronous=FULL so that what Update returned for survives a power cut,
// shared safely by several processes. It knows records, leases and sealed bytes,
// and nothing of what they mean; package agent decides inside transactions.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/pactsigner/pactsigner/agent"
)

// busyTimeout is how long a transaction waits for another process's.
const busyTimeout = 10 * time.Second

// Store implements [agent.Store].
type Store struct {
	db          *sql.DB
	read, write *lane
	path        string
	info        os.FileInfo // of the file that is open
}

// ErrGone is the error when the store's file is not where it was opened: it was
// removed, or another is in its place.
var ErrGone = errors.New("the file of the agent's store is gone, or another is in its place: what is written would be lost")

var _ agent.Store = (*Store)(nil)

// lane is a connection for one transaction at a time, with its statements kept
// prepared. Two write transactions in one process so never wait for each other
// inside SQLite, which polls.
type lane struct {
	begin string

	mu    sync.Mutex
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
}

// Open opens the database file, of mode 0600, and migrates it. A file of a newer
// version than this program knows is an error.
func Open(path string) (*Store, error) {
	path, err := filepath.Abs(path) // of the folder that this process is in now
	if err != nil {
		return nil, fmt.Errorf("open the agent's store: %w", err)
	}
	info, err := place(path)
	if err != nil {
		return nil, fmt.Errorf("open the agent's store: %w", err)
	}
	dsn := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: url.Values{"_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		"journal_mode(WAL)", "synchronous(FULL)", "secure_delete(ON)",
	}}.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("open the agent's store: %w", err)
	}
	s := &Store{db: db, path: path, info: info, read: &lane{begin: "BEGIN"}, write: &lane{begin: "BEGIN IMMEDIATE"}}
	for _, l := range []*lane{s.write, s.read} {
		if l.conn, err = connect(db); err != nil {
			return nil, errors.Join(fmt.Errorf("open the agent's store %s: %w", path, err), s.Close())
		}
		l.stmts = map[string]*sql.Stmt{}
	}
	if err := s.migrate(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the agent's store %s: %w", path, err), s.Close())
	}
	return s, nil
}

// place makes the file if there is none, and refuses one that cannot be written: SQLite
// would open it, and fail at the first write.
func place(path string) (os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err = mayWrite(path); errors.Is(err, fs.ErrNotExist) { // a link to where nothing is yet
			f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		}
	}
	if err == nil && f != nil {
		err = f.Close()
	}
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		err = &os.PathError{Op: "open", Path: path, Err: syscall.EISDIR}
	}
	return info, err
}

// connect opens a connection. SQLite does not wait by itself where another
// process puts a new file into WAL mode at the same moment.
func connect(db *sql.DB) (*sql.Conn, error) {
	for deadline := time.Now().Add(busyTimeout); ; {
		conn, err := db.Conn(context.Background())
		var failed *sqlite.Error
		if err == nil || !errors.As(err, &failed) || failed.Code()&0xff != lib.SQLITE_BUSY || time.Now().After(deadline) {
			return conn, err
		}
		<-time.After(10 * time.Millisecond)
	}
}

// Close closes the database, after transactions under way.
func (s *Store) Close() error {
	var errs []error
	for _, l := range []*lane{s.write, s.read} {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, stmt := range l.stmts {
			errs = append(errs, stmt.Close())
		}
		l.stmts = nil
		if l.conn != nil {
			errs = append(errs, l.conn.Close())
		}
	}
	return errors.Join(append(errs, s.db.Close())...)
}

// View implements [agent.Store].
func (s *Store) View(ctx context.Context, fn func(agent.Tx) error) error {
	return s.read.transact(ctx, fn)
}

// InPlace returns ErrGone if what is written does not come to where the store was
// opened.
func (s *Store) InPlace() error {
	now, err := os.Stat(s.path)
	if err != nil || !os.SameFile(now, s.info) {
		return fmt.Errorf("%s: %w", s.path, ErrGone)
	}
	return nil
}

// Update implements [agent.Store]. It refuses to write into a file that nobody finds
// again: nothing is to be sent that is not on disk.
func (s *Store) Update(ctx context.Context, fn func(agent.Tx) error) error {
	if err := s.InPlace(); err != nil {
		return err
	}
	return s.write.transact(ctx, fn)
}

// Check looks the whole file over for damage (PRAGMA quick_check), and at what
// makes it durable. The error says what is wrong.
func (s *Store) Check(ctx context.Context) error {
	return s.View(ctx, func(t agent.Tx) error {
		for _, want := range []struct{ pragma, value string }{
			{"quick_check(1)", "ok"}, {"journal_mode", "wal"}, {"synchronous", "2"},
		} {
			var got string
			tx := t.(*tx)
			if err := tx.conn.QueryRowContext(tx.ctx, "PRAGMA "+want.pragma).Scan(&got); err != nil {
				return fmt.Errorf("agent store: %s: %w", want.pragma, err)
			}
			if got != want.value {
				return fmt.Errorf("agent store: %s: %s", want.pragma, strings.Join(strings.Fields(got), " "))
			}
		}
		return nil
	})
}

// transact runs fn between BEGIN and COMMIT. A context that ends later does not
// tear a transaction apart: it is short, and it is whole or not at all.
func (l *lane) transact(ctx context.Context, fn func(agent.Tx) error) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t := &tx{context.WithoutCancel(ctx), l}
	if err := t.exec(l.begin); err != nil {
		return fmt.Errorf("agent store: begin: %w", err)
	}
	done := false
	defer func() {
		if !done { // fn failed, or panicked
			if rollback := t.exec("ROLLBACK"); rollback != nil {
				err = errors.Join(err, fmt.Errorf("agent store: roll back: %w", rollback))
			}
		}
	}()
	if err := fn(t); err != nil {
		return err
	}
	if err := t.exec("COMMIT"); err != nil {
		return fmt.Errorf("agent store: commit: %w", err)
	}
	done = true
	return nil
}

type tx struct {
	ctx context.Context
	*lane
}

// prepare returns the statement of a text. The texts are few: values are always
// arguments.
func (t *tx) prepare(text string) (*sql.Stmt, error) {
	if s, ok := t.stmts[text]; ok {
		return s, nil
	}
	if t.stmts == nil {
		return nil, sql.ErrConnDone
	}
	s, err := t.conn.PrepareContext(t.ctx, text)
	if err != nil {
		return nil, err
	}
	t.stmts[text] = s
	return s, nil
}

// table is the name of a kind's table; an unknown kind is refused, so that no
// text from elsewhere ever becomes SQL.
func table(kind agent.Kind) (string, error) {
	if !slices.Contains(agent.Kinds(), kind) {
		return "", fmt.Errorf("agent store: no kind %q", kind)
	}
	return string(kind), nil
}

const columns = "id, principal, business, conversation, key, state, revision, created, lease_owner, lease_until, data"

func (t *tx) Get(kind agent.Kind, principal, id string) (agent.Record, error) {
	rs, err := t.query(kind, "WHERE principal = ? AND id = ?", principal, id)
	if err != nil {
		return agent.Record{}, err
	}
	if len(rs) == 0 {
		return agent.Record{}, fmt.Errorf("%s %q: %w", kind, id, agent.ErrNotFound)
	}
	return rs[0], nil
}

func (t *tx) Find(kind agent.Kind, q agent.Query) ([]agent.Record, error) {
	var where []string
	var args []any
	and := func(column, value string) {
		if value != "" {
			where, args = append(where, column+" = ?"), append(args, value)
		}
	}
	if !q.AllPrincipals {
		where, args = append(where, "principal = ?"), append(args, q.Principal)
	}
	and("business", q.Business)
	and("conversation", q.Conversation)
	and("key", q.Key)
	if len(q.States) > 0 {
		where = append(where, "state IN (?"+strings.Repeat(", ?", len(q.States)-1)+")")
		for _, s := range q.States {
			args = append(args, s)
		}
	}
	clause := ""
	if len(where) > 0 {
		clause = "WHERE " + strings.Join(where, " AND ")
	}
	clause += " ORDER BY created DESC, rowid DESC"
	if q.Limit > 0 || q.Offset > 0 {
		limit := q.Limit
		if limit == 0 {
			limit = -1 // all
		}
		clause, args = clause+" LIMIT ? OFFSET ?", append(args, limit, q.Offset)
	}
	return t.query(kind, clause, args...)
}

func (t *tx) query(kind agent.Kind, clause string, args ...any) ([]agent.Record, error) {
	name, err := table(kind)
	if err != nil {
		return nil, err
	}
	stmt, err := t.prepare("SELECT " + columns + " FROM " + name + " " + clause)
	if err != nil {
		return nil, fmt.Errorf("agent store: read %s: %w", kind, err)
	}
	rows, err := stmt.QueryContext(t.ctx, args...)
	if err != nil {
		return nil, fmt.Errorf("agent store: read %s: %w", kind, err)
	}
	defer rows.Close()
	var out []agent.Record
	for rows.Next() {
		var r agent.Record
		var key sql.NullString
		var created, until int64
		if err := rows.Scan(&r.ID, &r.Principal, &r.Business, &r.Conversation, &key, &r.State,
			&r.Revision, &created, &r.LeaseOwner, &until, &r.Data); err != nil {
			return nil, fmt.Errorf("agent store: read %s: %w", kind, err)
		}
		r.Key, r.Created, r.LeaseUntil = key.String, readTime(created), readTime(until)
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("agent store: read %s: %w", kind, err)
	}
	return out, nil
}

func (t *tx) Put(kind agent.Kind, r agent.Record) error {
	name, err := table(kind)
	if err != nil {
		return err
	}
	if r.ID == "" {
		return fmt.Errorf("agent store: a record of %s needs an id", kind)
	}
	key := sql.NullString{String: r.Key, Valid: r.Key != ""}
	var res sql.Result
	if r.Revision == 0 {
		res, err = t.run("INSERT INTO "+name+" ("+columns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			r.ID, r.Principal, r.Business, r.Conversation, key, r.State, 1, writeTime(r.Created),
			r.LeaseOwner, writeTime(r.LeaseUntil), r.Data)
	} else {
		res, err = t.run("UPDATE "+name+` SET business = ?, conversation = ?, key = ?, state = ?,
			revision = revision + 1, lease_owner = ?, lease_until = ?, data = ?
			WHERE principal = ? AND id = ? AND revision = ?`,
			r.Business, r.Conversation, key, r.State, r.LeaseOwner, writeTime(r.LeaseUntil), r.Data,
			r.Principal, r.ID, r.Revision)
	}
	var failed *sqlite.Error
	if errors.As(err, &failed) && failed.Code()&0xff == lib.SQLITE_CONSTRAINT {
		return fmt.Errorf("%s %q: %w", kind, r.ID, agent.ErrConflict)
	}
	if err != nil {
		return fmt.Errorf("agent store: write %s: %w", kind, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("agent store: write %s: %w", kind, err)
	}
	if n != 1 {
		return fmt.Errorf("%s %q: %w", kind, r.ID, agent.ErrConflict)
	}
	return nil
}

func (t *tx) Delete(kind agent.Kind, principal, id string) error {
	name, err := table(kind)
	if err != nil {
		return err
	}
	return t.exec("DELETE FROM "+name+" WHERE principal = ? AND id = ?", principal, id)
}

func (t *tx) Secret(id string) ([]byte, error) {
	var sealed []byte
	stmt, err := t.prepare("SELECT sealed FROM secrets WHERE id = ?")
	if err == nil {
		err = stmt.QueryRowContext(t.ctx, id).Scan(&sealed)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("secret: %w", agent.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("agent store: read a secret: %w", err)
	}
	return sealed, nil
}

func (t *tx) PutSecret(id string, sealed []byte) error {
	return t.exec("INSERT INTO secrets (id, sealed) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET sealed = excluded.sealed", id, sealed)
}

func (t *tx) DeleteSecret(id string) error {
	return t.exec("DELETE FROM secrets WHERE id = ?", id)
}

func (t *tx) exec(statement string, args ...any) error {
	if _, err := t.run(statement, args...); err != nil {
		return fmt.Errorf("agent store: write: %w", err)
	}
	return nil
}

func (t *tx) run(statement string, args ...any) (sql.Result, error) {
	stmt, err := t.prepare(statement)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(t.ctx, args...)
}

// Times are microseconds since 1970; the zero time is 0.
func writeTime(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func readTime(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
