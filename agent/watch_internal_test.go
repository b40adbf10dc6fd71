package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// fakeStore commits what its transaction function does, or nothing.
type fakeStore struct {
	Store
	records map[string]Record
	fail    error
}

func (s *fakeStore) Update(_ context.Context, fn func(Tx) error) error {
	if err := fn(fakeTx{s: s}); err != nil {
		return err
	}
	return s.fail
}

type fakeTx struct {
	Tx
	s *fakeStore
}

func (t fakeTx) Put(_ Kind, r Record) error { t.s.records[r.ID] = r; return nil }

func (t fakeTx) Get(_ Kind, _, id string) (Record, error) {
	r, ok := t.s.records[id]
	if !ok {
		return r, ErrNotFound
	}
	return r, nil
}

func (t fakeTx) Delete(_ Kind, _, id string) error { delete(t.s.records, id); return nil }

// told is what the updates of a store tell alice.
func told(t *testing.T, s *fakeStore, updates func(store *toldStore)) (out []string) {
	t.Helper()
	a := &Agent{changes: &changes{now: time.Now}, cfg: Config{Now: time.Now}}
	done := errors.New("done")
	err := a.Watch(t.Context(), Caller{Principal: "alice"}, func(c Change) error {
		switch c.Kind {
		case KindWatching:
			updates(&toldStore{s, a.changes})
			a.changes.publish(t.Context(), []change{{kind: "end"}})
			return nil
		case "end":
			return done
		}
		out = append(out, fmt.Sprintf("%s %s %s %v", c.Kind, c.ID, c.State, c.Deleted))
		return nil
	})
	if !errors.Is(err, done) {
		t.Errorf("%v", err)
	}
	return out
}

// What was not committed is not told; of one record only the last change of an
// update is; bookkeeping, what starts, tokens and other principals' are not.
func TestWhatIsTold(t *testing.T) {
	ctx := t.Context()
	of := func(id, state string) Record {
		return Record{Head: Head{ID: id, Principal: "alice", State: state}}
	}
	update := func(ctx context.Context, s *toldStore, fn func(Tx) error) { _ = s.Update(ctx, fn) }
	store := &fakeStore{records: map[string]Record{}}
	got := told(t, store, func(s *toldStore) {
		update(ctx, s, func(tx Tx) error { return errors.Join(tx.Put(KindGrant, of("g", "active")), errors.New("rolled back")) })
		store.fail = errors.New("commit")
		update(ctx, s, func(tx Tx) error { return tx.Put(KindGrant, of("g", "active")) })
		store.fail = nil
		update(quietly(ctx), s, func(tx Tx) error { return tx.Put(KindAuthorization, of("z", "pending")) })
		update(ctx, s, func(tx Tx) error { return tx.Put(KindAuthorization, of("z", authorizationStarting)) })
		update(ctx, s, func(tx Tx) error { return tx.Delete(KindAuthorization, "alice", "z") })
		update(ctx, s, func(tx Tx) error { return tx.Put(KindToken, of("t", "active")) })
		update(ctx, s, func(tx Tx) error { return tx.Put(KindGrant, Record{Head: Head{ID: "b", Principal: "bob"}}) })
		update(ctx, s, func(tx Tx) error { return tx.Delete(KindGrant, "alice", "none") })
		update(ctx, s, func(tx Tx) error {
			return errors.Join(tx.Put(KindGrant, of("g", "active")), tx.Put(KindMessage, of("m", "sending")), tx.Put(KindGrant, of("g", "expired")))
		})
		update(ctx, s, func(tx Tx) error { return tx.Delete(KindMessage, "alice", "m") })
	})
	want := []string{"messages m sending false", "grants g expired false", "messages m sending true"}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

// A watcher that falls behind is told what it can still be told, and that it did;
// others are not kept waiting.
func TestWatcherLags(t *testing.T) {
	a := &Agent{changes: &changes{now: time.Now}, cfg: Config{Now: time.Now}}
	n := 0
	err := a.Watch(t.Context(), Caller{Principal: "alice"}, func(c Change) error {
		if c.Kind == KindWatching {
			for range 2 * watchBuffer {
				a.changes.publish(t.Context(), []change{{kind: KindGrant}})
			}
			return nil
		}
		n++
		return nil
	})
	if !errors.Is(err, ErrLagging) || n != watchBuffer {
		t.Errorf("after %d changes: %v", n, err)
	}
	if len(a.changes.told) != 0 {
		t.Errorf("%d are still told", len(a.changes.told))
	}
}
