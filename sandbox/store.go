package sandbox

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// errStore marks what the database could not do. Nothing of the transaction has
// happened then, and whoever called is told no more than that it is our failure.
var errStore = errors.New("state")

// store is the state of a sandbox: one SQLite database, in a file or in memory, for
// this process alone. Each method is one transaction, durable when it returns
// (synchronous=FULL). An error that is not errStore's is a refusal: it was decided,
// and what was recorded with it stays.
//
// What a person does on the pages within minutes is in memory, and lost at a restart.
type store struct {
	params Params
	db     *sql.DB
	lax    func(ctx context.Context, fault string) bool // never, unless the sandbox sets it
	user   func(id string) bool                         // it has an account: all do, unless the sandbox sets it
	turns  turns

	mu       sync.Mutex // held by a transaction
	conn     *sql.Conn
	stmts    map[string]*sql.Stmt
	underWay map[string]int // turns by conversation

	pages                sync.Mutex // guards what follows
	assertions, sessions tickets
}

// newStore opens the database file, of mode 0600, or one in memory if path is "".
func newStore(path string, p Params) (*store, error) {
	source, pragmas := ":memory:", url.Values{"_pragma": {"foreign_keys(ON)"}}
	if path != "" {
		if err := privateFile(path); err != nil {
			return nil, err
		}
		// In EXCLUSIVE mode the first write locks the file until Close.
		pragmas["_pragma"] = append(pragmas["_pragma"], "locking_mode(EXCLUSIVE)", "journal_mode(WAL)", "synchronous(FULL)")
		source = (&url.URL{Scheme: "file", OmitHost: true, Path: path}).String()
	}
	db, err := sql.Open("sqlite", source+"?"+pragmas.Encode())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := &store{
		params: p, db: db, lax: func(context.Context, string) bool { return false }, user: func(string) bool { return true },
		stmts: map[string]*sql.Stmt{}, underWay: map[string]int{}, assertions: tickets{}, sessions: tickets{},
	}
	ctx := context.Background()
	if s.conn, err = db.Conn(ctx); err == nil {
		err = s.lock(ctx)
	}
	if err == nil {
		err = s.migrate(ctx)
	}
	var failed *sqlite.Error
	if errors.As(err, &failed) && failed.Code()&0xff == lib.SQLITE_BUSY {
		err = errors.New("another sandbox uses it: stop that one, or name another file")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", cmp.Or(path, source), err), s.close())
	}
	return s, nil
}

// lock makes sure that nobody else has the database.
func (s *store) lock(ctx context.Context) error {
	return s.view(ctx, func(t *tx) error {
		_, err := t.exec("BEGIN EXCLUSIVE")
		if err == nil {
			_, err = t.exec("COMMIT")
		}
		return err
	})
}

// privateFile makes the file if it is missing. One that we cannot use stays as it is:
// SQLite overwrites what is shorter than a page.
func privateFile(path string) error {
	if err := CheckState(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err // it names the path
	}
	return f.Close()
}

// close closes the database, after the transaction under way.
func (s *store) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, stmt := range s.stmts {
		errs = append(errs, stmt.Close())
	}
	s.stmts = nil
	if s.conn != nil {
		if err := s.conn.Close(); !errors.Is(err, sql.ErrConnDone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, s.db.Close())...)
}

// tx is a transaction, or a single statement of view.
type tx struct {
	ctx context.Context
	*store
}

// view runs fn, which reads with one statement.
func (s *store) view(ctx context.Context, fn func(*tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A transaction is short, and not torn apart by a caller that goes away.
	return fn(&tx{context.WithoutCancel(ctx), s})
}

// update runs fn in a transaction that is undone if the error is errStore's, or if
// fn panics.
func (s *store) update(ctx context.Context, fn func(*tx) error) error {
	return s.view(ctx, func(t *tx) (err error) {
		if _, err := t.exec("BEGIN"); err != nil {
			return err
		}
		undo := true
		defer func() {
			if undo {
				if _, failed := t.exec("ROLLBACK"); failed != nil {
					err = errors.Join(err, failed)
				}
			}
		}()
		if err = fn(t); errors.Is(err, errStore) {
			return err
		}
		if _, failed := t.exec("COMMIT"); failed != nil {
			return failed
		}
		undo = false
		return err
	})
}

// prepare returns the statement of a text. The texts are few: values are arguments.
func (t *tx) prepare(text string) (*sql.Stmt, error) {
	if stmt, ok := t.stmts[text]; ok {
		return stmt, nil
	}
	if t.stmts == nil {
		return nil, fmt.Errorf("%w: %w", errStore, sql.ErrConnDone)
	}
	stmt, err := t.conn.PrepareContext(t.ctx, text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errStore, err)
	}
	t.stmts[text] = stmt
	return stmt, nil
}

// exec runs a statement and tells how many rows it changed.
func (t *tx) exec(text string, args ...any) (changed int64, err error) {
	stmt, err := t.prepare(text)
	if err != nil {
		return 0, err
	}
	res, err := stmt.ExecContext(t.ctx, args...)
	if err == nil {
		changed, err = res.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errStore, err)
	}
	return changed, nil
}

// get reads the first row.
func (t *tx) get(text string, args []any, into ...any) (found bool, err error) {
	stmt, err := t.prepare(text)
	if err != nil {
		return false, err
	}
	switch err = stmt.QueryRowContext(t.ctx, args...).Scan(into...); {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%w: %w", errStore, err)
	}
	return true, nil
}

// each reads all rows; row is called with what scans one.
func (t *tx) each(text string, args []any, row func(scan func(...any) error) error) error {
	stmt, err := t.prepare(text)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(t.ctx, args...)
	if err != nil {
		return fmt.Errorf("%w: %w", errStore, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return fmt.Errorf("%w: %w", errStore, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("%w: %w", errStore, err)
	}
	return nil
}

// party is a user of a personal agent at a brand: what conversations and grants
// belong to.
type party struct {
	brand string
	caller
}

// columns are the party's values, for brand, issuer and subject, with more behind.
func (p party) columns(more ...any) []any {
	return append([]any{p.brand, p.issuer, p.subject}, more...)
}

// Outcomes of a registration.
type platformOutcome int

const (
	platformCreated platformOutcome = iota
	platformSame
	platformConflict
	platformFull
)

// maxPlatforms bounds how many can register: none is forgotten.
const maxPlatforms = 10_000

const selectPlatform = "SELECT id, name, issuer, jwks_uri, enabled FROM platforms WHERE "

func (p *platform) fields() []any { return []any{&p.ID, &p.Name, &p.Issuer, &p.JWKSURI, &p.Enabled} }

// register enters a platform, or returns the one that is registered alike.
func (s *store) register(ctx context.Context, p platform) (kept platform, outcome platformOutcome, err error) {
	err = s.update(ctx, func(t *tx) error {
		known, err := t.get(selectPlatform+"issuer = ? OR name = ?", []any{p.Issuer, p.Name}, kept.fields()...)
		switch {
		case err != nil:
			return err
		case known && kept.Issuer == p.Issuer && kept.Name == p.Name && kept.JWKSURI == p.JWKSURI:
			outcome = platformSame
			return nil
		case known:
			kept, outcome = platform{}, platformConflict
			return nil
		}
		var n int
		if _, err := t.get("SELECT count(*) FROM platforms", nil, &n); err != nil {
			return err
		}
		if n >= maxPlatforms {
			outcome = platformFull
			return nil
		}
		kept = p
		_, err = t.exec("INSERT INTO platforms (id, name, issuer, jwks_uri, enabled) VALUES (?, ?, ?, ?, ?)",
			p.ID, p.Name, p.Issuer, p.JWKSURI, p.Enabled)
		return err
	})
	return kept, outcome, err
}

func (s *store) platform(ctx context.Context, issuer string) (p platform, known bool, err error) {
	err = s.view(ctx, func(t *tx) error {
		known, err = t.get(selectPlatform+"issuer = ?", []any{issuer}, p.fields()...)
		return err
	})
	return p, known, err
}

// brandKey is the private key of a brand's authorization server. It is made the
// first time, and stays: tokens and receipts outlive a restart.
func (s *store) brandKey(ctx context.Context, brand string) (key *ecdsa.PrivateKey, err error) {
	err = s.update(ctx, func(t *tx) error {
		var der []byte
		known, err := t.get("SELECT private FROM keys WHERE brand = ?", []any{brand}, &der)
		if err != nil {
			return err
		}
		if known {
			private, err := x509.ParsePKCS8PrivateKey(der)
			var ok bool
			if key, ok = private.(*ecdsa.PrivateKey); !ok || key.Curve != elliptic.P256() {
				return errors.Join(fmt.Errorf("%w: the key of brand %q is none", errStore, brand), err)
			}
			return nil
		}
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err == nil {
			der, err = x509.MarshalPKCS8PrivateKey(key)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errStore, err)
		}
		_, err = t.exec("INSERT INTO keys (brand, private) VALUES (?, ?)", brand, der)
		return err
	})
	return key, err
}

// visit is a user who is signed in on a brand's pages, on the way to a consent:
// the code is "" while they still have to type it.
type visit struct {
	brand, user, userCode string
	typed                 bool // the user code, by the user
	wrongCodes            int  // that they typed
}

// tickets are values that can be had once, by a secret, for a time.
type tickets map[string]ticket

type ticket struct {
	visit   visit
	expires time.Time
}

// give keeps v behind a new secret.
func (s *store) give(t tickets, v visit, ttl time.Duration, now time.Time) (secret string) {
	s.pages.Lock()
	defer s.pages.Unlock()
	for hash, old := range t {
		if !now.Before(old.expires) {
			delete(t, hash)
		}
	}
	secret = newSecret("")
	t[hashOf(secret)] = ticket{v, now.Add(ttl)}
	return secret
}

// take returns what is behind a secret, the first time.
func (s *store) take(t tickets, secret string, now time.Time) (visit, bool) {
	s.pages.Lock()
	defer s.pages.Unlock()
	hash := hashOf(secret)
	got, ok := t[hash]
	delete(t, hash)
	if !ok || !now.Before(got.expires) {
		return visit{}, false
	}
	return got.visit, true
}
