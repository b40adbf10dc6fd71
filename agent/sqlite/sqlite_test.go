package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStoreConformance(t *testing.T) {
	testStore(t, func(t *testing.T) (agent.Store, func() agent.Store) {
		path := filepath.Join(t.TempDir(), "agent.db")
		return open(t, path), func() agent.Store { return open(t, path) }
	})
}

// testStore is what every agent.Store must do. again opens the same store a
// second time, as another process would.
func testStore(t *testing.T, open func(t *testing.T) (s agent.Store, again func() agent.Store)) {
	ctx := t.Context()
	at := time.Date(2026, 11, 29, 12, 0, 0, 123456000, time.UTC)
	record := func(principal, id string, change func(*agent.Record)) agent.Record {
		r := agent.Record{Data: []byte(`{}`)}
		r.ID, r.Principal, r.Created = id, principal, at
		if change != nil {
			change(&r)
		}
		return r
	}
	update := func(t *testing.T, s agent.Store, fn func(agent.Tx) error) {
		t.Helper()
		if err := s.Update(ctx, fn); err != nil {
			t.Fatal(err)
		}
	}
	read := func(t *testing.T, s agent.Store, kind agent.Kind, principal, id string) (r agent.Record, err error) {
		t.Helper()
		err = s.View(ctx, func(tx agent.Tx) error { r, err = tx.Get(kind, principal, id); return err })
		return r, err
	}

	t.Run("every kind keeps what it was given", func(t *testing.T) {
		s, again := open(t)
		for _, kind := range agent.Kinds() {
			want := record("alice", "1", func(r *agent.Record) {
				r.Business, r.Conversation, r.Key, r.State = "b", "c", "k", "active"
				r.LeaseOwner, r.LeaseUntil = "me", at.Add(time.Minute)
				r.Data = []byte(`{"a":1}`)
			})
			update(t, s, func(tx agent.Tx) error { return tx.Put(kind, want) })
			want.Revision = 1
			for _, s := range []agent.Store{s, again()} {
				got, err := read(t, s, kind, "alice", "1")
				if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: got %v, %v; want %v", kind, got, err, want)
				}
			}
		}
	})

	t.Run("unknown kinds are refused", func(t *testing.T) {
		s, _ := open(t)
		err := s.Update(ctx, func(tx agent.Tx) error {
			return tx.Put("secrets; DROP TABLE grants", record("alice", "1", nil))
		})
		if err == nil {
			t.Error("stored")
		}
	})

	t.Run("ID-7 records of another principal are not found", func(t *testing.T) {
		s, _ := open(t)
		update(t, s, func(tx agent.Tx) error { return tx.Put(agent.KindGrant, record("alice", "1", nil)) })
		if _, err := read(t, s, agent.KindGrant, "bob", "1"); !errors.Is(err, agent.ErrNotFound) {
			t.Errorf("bob reads alice's grant: %v", err)
		}
		_ = s.View(ctx, func(tx agent.Tx) error {
			for q, want := range map[*agent.Query]int{
				{Principal: "bob"}: 0, {Principal: "alice"}: 1, {AllPrincipals: true}: 1, {}: 0,
			} {
				if got, err := tx.Find(agent.KindGrant, *q); err != nil || len(got) != want {
					t.Errorf("%+v: %d records, %v; want %d", *q, len(got), err, want)
				}
			}
			return nil
		})
	})

	t.Run("CV-3 a revision is replaced once", func(t *testing.T) {
		s, again := open(t)
		other := again()
		r := record("alice", "1", nil)
		update(t, s, func(tx agent.Tx) error { return tx.Put(agent.KindMessage, r) })
		r.Revision = 1
		r.State = "sending"
		update(t, other, func(tx agent.Tx) error { return tx.Put(agent.KindMessage, r) })
		r.State = "failed"
		for name, r := range map[string]agent.Record{"a spent revision": r, "a second insert": record("alice", "1", nil)} {
			if err := s.Update(ctx, func(tx agent.Tx) error { return tx.Put(agent.KindMessage, r) }); !errors.Is(err, agent.ErrConflict) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got, _ := read(t, s, agent.KindMessage, "alice", "1"); got.State != "sending" || got.Revision != 2 {
			t.Errorf("got %s at revision %d", got.State, got.Revision)
		}
	})

	t.Run("keys are unique per kind and principal", func(t *testing.T) {
		s, _ := open(t)
		keyed := func(principal, id string) agent.Record {
			return record(principal, id, func(r *agent.Record) { r.Key = "k" })
		}
		update(t, s, func(tx agent.Tx) error {
			return errors.Join(tx.Put(agent.KindReceipt, keyed("alice", "1")), tx.Put(agent.KindReceipt, keyed("bob", "2")),
				tx.Put(agent.KindMessage, keyed("alice", "1")),
				tx.Put(agent.KindReceipt, record("alice", "3", nil)), tx.Put(agent.KindReceipt, record("alice", "4", nil)))
		})
		if err := s.Update(ctx, func(tx agent.Tx) error { return tx.Put(agent.KindReceipt, keyed("alice", "9")) }); !errors.Is(err, agent.ErrConflict) {
			t.Errorf("a key twice: %v", err)
		}
	})

	t.Run("find", func(t *testing.T) {
		s, _ := open(t)
		update(t, s, func(tx agent.Tx) error {
			for i, state := range []string{"a", "b", "c", "a"} {
				r := record("alice", fmt.Sprint(i), func(r *agent.Record) {
					r.State, r.Business, r.Conversation = state, fmt.Sprint("b", i%2), fmt.Sprint("c", i/2)
					r.Created = at.Add(time.Duration(i/2) * time.Hour) // two and two at once
				})
				if err := tx.Put(agent.KindMessage, r); err != nil {
					return err
				}
			}
			return nil
		})
		for name, c := range map[string]struct {
			q    agent.Query
			want string
		}{
			"newest first": {agent.Query{}, "3 2 1 0"},
			"limit":        {agent.Query{Limit: 2}, "3 2"},
			"offset":       {agent.Query{Offset: 1}, "2 1 0"},
			"both":         {agent.Query{Offset: 1, Limit: 2}, "2 1"},
			"beyond":       {agent.Query{Offset: 4}, ""},
			"states":       {agent.Query{States: []string{"a", "c"}}, "3 2 0"},
			"business":     {agent.Query{Business: "b1"}, "3 1"},
			"conversation": {agent.Query{Conversation: "c0", States: []string{"b"}}, "1"},
			"none":         {agent.Query{Key: "x"}, ""},
		} {
			c.q.Principal = "alice"
			var ids []string
			if err := s.View(ctx, func(tx agent.Tx) error {
				rs, err := tx.Find(agent.KindMessage, c.q)
				for _, r := range rs {
					ids = append(ids, r.ID)
				}
				return err
			}); err != nil || strings.Join(ids, " ") != c.want {
				t.Errorf("%s: %v, %v; want %s", name, ids, err, c.want)
			}
		}
	})

	t.Run("GR-5 a failed update changes nothing", func(t *testing.T) {
		s, _ := open(t)
		boom := errors.New("boom")
		err := s.Update(ctx, func(tx agent.Tx) error {
			return errors.Join(tx.Put(agent.KindGrant, record("alice", "1", nil)), tx.PutSecret("s", []byte("x")), boom)
		})
		if !errors.Is(err, boom) {
			t.Fatal(err)
		}
		if _, err := read(t, s, agent.KindGrant, "alice", "1"); !errors.Is(err, agent.ErrNotFound) {
			t.Errorf("the record stayed: %v", err)
		}
		_ = s.View(ctx, func(tx agent.Tx) error {
			if _, err := tx.Secret("s"); !errors.Is(err, agent.ErrNotFound) {
				t.Errorf("the secret stayed: %v", err)
			}
			return nil
		})
	})

	t.Run("secrets", func(t *testing.T) {
		s, again := open(t)
		update(t, s, func(tx agent.Tx) error {
			return errors.Join(tx.PutSecret("s", []byte("one")), tx.PutSecret("s", []byte("two")), tx.PutSecret("gone", []byte("x")), tx.DeleteSecret("gone"), tx.DeleteSecret("never"))
		})
		_ = again().View(ctx, func(tx agent.Tx) error {
			if got, err := tx.Secret("s"); err != nil || string(got) != "two" {
				t.Errorf("got %q, %v", got, err)
			}
			if _, err := tx.Secret("gone"); !errors.Is(err, agent.ErrNotFound) {
				t.Error(err)
			}
			return nil
		})
	})

	t.Run("delete", func(t *testing.T) {
		s, _ := open(t)
		update(t, s, func(tx agent.Tx) error {
			return errors.Join(tx.Put(agent.KindProvider, record("alice", "1", nil)), tx.Put(agent.KindProvider, record("bob", "1", nil)),
				tx.Delete(agent.KindProvider, "alice", "1"), tx.Delete(agent.KindProvider, "alice", "never"))
		})
		if _, err := read(t, s, agent.KindProvider, "alice", "1"); !errors.Is(err, agent.ErrNotFound) {
			t.Error(err)
		}
		if _, err := read(t, s, agent.KindProvider, "bob", "1"); err != nil {
			t.Error(err)
		}
	})

	t.Run("a context that ended starts nothing", func(t *testing.T) {
		s, _ := open(t)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		ran := false
		if err := s.Update(ended, func(agent.Tx) error { ran = true; return nil }); !errors.Is(err, context.Canceled) || ran {
			t.Errorf("%v, ran %v", err, ran)
		}
	})

	t.Run("CV-3 one of many takes a lease", func(t *testing.T) {
		s, again := open(t)
		update(t, s, func(tx agent.Tx) error { return tx.Put(agent.KindConversation, record("alice", "1", nil)) })
		stores := []agent.Store{s, again()}
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for i := range 8 {
			wg.Go(func() {
				err := stores[i%2].Update(ctx, func(tx agent.Tx) error {
					r, err := tx.Get(agent.KindConversation, "alice", "1")
					if err != nil {
						return err
					}
					if r.LeaseOwner != "" {
						return agent.ErrConflict
					}
					r.LeaseOwner, r.LeaseUntil = fmt.Sprint(i), at
					return tx.Put(agent.KindConversation, r)
				})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				} else if !errors.Is(err, agent.ErrConflict) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won != 1 {
			t.Errorf("%d took the lease", won)
		}
	})
}

func TestTheFileIsPrivateAndInWALMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent with space?.db")
	s := open(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %o", info.Mode().Perm())
	}
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2"} {
		var got string
		if err := s.db.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %s, %v", pragma, got, err)
		}
	}
}

func TestPanicRollsBack(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"))
	func() {
		defer func() { _ = recover() }()
		_ = s.Update(t.Context(), func(tx agent.Tx) error {
			if err := tx.PutSecret("s", []byte("x")); err != nil {
				t.Error(err)
			}
			panic("boom")
		})
	}()
	if err := s.Update(t.Context(), func(tx agent.Tx) error {
		if _, err := tx.Secret("s"); !errors.Is(err, agent.ErrNotFound) {
			t.Errorf("the secret stayed: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// CL-1: a damaged file is found, by a look at all of it.
func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("a new store: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	var page, size int64
	err = errors.Join(db.QueryRow("SELECT rootpage FROM sqlite_schema WHERE name = 'receipts_state'").Scan(&page),
		db.QueryRow("PRAGMA page_size").Scan(&size), db.Close())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(make([]byte, size), (page-1)*size)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(path); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Check(t.Context()); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a damaged store: %v", err)
	}
}

// What is written goes where the file was opened, or nowhere: one that was removed, or that
// another has the place of, is written to no more.
func TestInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	write := func() error { return s.Update(t.Context(), func(agent.Tx) error { return nil }) }
	if err := errors.Join(s.InPlace(), write()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	for _, there := range []bool{false, true} {
		if there {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := write(); !errors.Is(err, ErrGone) || !errors.Is(s.InPlace(), ErrGone) {
			t.Errorf("another there %v: %v", there, err)
		}
	}
	if err := errors.Join(os.Rename(path+".old", path), s.InPlace(), write()); err != nil {
		t.Errorf("put back: %v", err)
	}

	t.Chdir(t.TempDir())
	named, err := Open("agent.db")
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	t.Chdir(t.TempDir())
	if err := named.Update(t.Context(), func(agent.Tx) error { return nil }); err != nil {
		t.Errorf("the process went elsewhere: %v", err)
	}
}
