package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Change says that a record changed; it holds no secrets. Read the record anew to
// know how.
type Change struct {
	Time         time.Time `json:"time"`
	Kind         Kind      `json:"kind"`
	ID           string    `json:"id"` // a provider's is its origin
	Business     string    `json:"business,omitzero"`
	Conversation string    `json:"conversation,omitzero"`
	State        string    `json:"state,omitzero"`
	Actor        string    `json:"actor,omitzero"` // of the call that changed it; empty: the agent by itself
	Deleted      bool      `json:"deleted,omitzero"`
}

// KindWatching is the kind of the first Change of a watch: from it on nothing is
// missed.
const KindWatching Kind = "watching"

// ErrLagging: a watcher is too slow, and changes were lost for it. Watch again and
// read all anew.
var ErrLagging = errors.New("the watcher fell behind")

// watchBuffer is how many changes a watcher may be behind.
const watchBuffer = 1024

// Watch tells each change that this Agent makes to the caller's records, and to the
// profile's settings, in the order in which they were committed. It is told by the
// calling goroutine, until ctx ends, whose cause it returns then, or each returns an
// error, which it returns. Errors wrap ErrLagging.
func (a *Agent) Watch(ctx context.Context, c Caller, each func(Change) error) error {
	if err := c.check(); err != nil {
		return err
	}
	changes, lagging := make(chan Change, watchBuffer), false
	stop := a.changes.subscribe(func(ch change) {
		if lagging || ch.quiet || ch.kind == KindToken || ch.Principal != c.Principal && ch.Principal != "" {
			return
		}
		select {
		case changes <- ch.public():
		default:
			lagging = true
			close(changes)
		}
	})
	defer stop()
	if err := each(Change{Time: a.now(), Kind: KindWatching}); err != nil {
		return err
	}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		select {
		case <-ctx.Done():
		case ch, more := <-changes:
			if !more {
				return fmt.Errorf("watch: %w by more than %d changes", ErrLagging, watchBuffer)
			}
			if err := each(ch); err != nil {
				return err
			}
		}
	}
}

// change is a record as it was stored or deleted.
type change struct {
	Head
	kind    Kind
	deleted bool
	quiet   bool // bookkeeping that no surface shows
	time    time.Time
	actor   string
}

func (c change) of(kind Kind, principal, id string) bool {
	return c.kind == kind && c.Principal == principal && c.ID == id
}

func (c change) public() Change {
	p := Change{
		Time: c.time, Kind: c.kind, ID: c.ID, Business: c.Business, Conversation: c.Conversation, State: c.State,
		Actor: c.actor, Deleted: c.deleted,
	}
	if c.kind == KindProvider { // by what it is shown and removed
		p.ID, p.State, p.Deleted = c.Key, "", c.deleted || c.State == providerRemoved
	}
	return p
}

// changes tells what was changed by the updates of one Agent, after they were
// committed and in that order.
type changes struct {
	now func() time.Time

	order sync.Mutex // held from before an update until it is told
	mu    sync.Mutex
	told  map[*func(change)]bool
}

// subscribe calls f with each change from now on, until stop. f must not block.
func (c *changes) subscribe(f func(change)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		c.told = map[*func(change)]bool{}
	}
	c.told[&f] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.told, &f)
	}
}

// poke is a channel that holds something once a change was made of which match
// says so.
func (c *changes) poke(match func(change) bool) (poked <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	stop = c.subscribe(func(x change) {
		if match(x) {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	})
	return ch, stop
}

// publish tells the changes of one update.
func (c *changes) publish(ctx context.Context, all []change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, actor := c.now(), actorOf(ctx)
	for _, ch := range all {
		ch.time, ch.actor, ch.quiet = now, actor, ch.quiet || isQuiet(ctx, ch.kind)
		for f := range c.told {
			(*f)(ch)
		}
	}
}

// toldStore is a Store whose committed updates are told.
type toldStore struct {
	Store
	changes *changes
}

func (s *toldStore) Update(ctx context.Context, fn func(Tx) error) error {
	s.changes.order.Lock()
	defer s.changes.order.Unlock()
	var made []change
	err := s.Store.Update(ctx, func(tx Tx) error {
		t := &toldTx{Tx: tx}
		err := fn(t)
		made = t.made
		return err
	})
	if err == nil && len(made) > 0 {
		s.changes.publish(ctx, made)
	}
	return err
}

// toldTx takes down what an update changes.
type toldTx struct {
	Tx
	made []change
}

func (t *toldTx) Put(kind Kind, r Record) error {
	err := t.Tx.Put(kind, r)
	if err == nil {
		t.changed(change{Head: r.Head, kind: kind})
	}
	return err
}

func (t *toldTx) Delete(kind Kind, principal, id string) error {
	r, err := t.Get(kind, principal, id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err == nil {
		err = t.Tx.Delete(kind, principal, id)
	}
	if err == nil {
		t.changed(change{Head: r.Head, kind: kind, deleted: true})
	}
	return err
}

// changed takes a change down; only the last one of a record counts. A sign-in that
// is only starting is never shown.
func (t *toldTx) changed(c change) {
	c.quiet = c.kind == KindAuthorization && c.State == authorizationStarting
	t.made = append(slices.DeleteFunc(t.made, func(o change) bool { return o.of(c.kind, c.Principal, c.ID) }), c)
}

type actorKey struct{}

// withActor puts who acts into the context of a call, for those who watch what it
// changes: every public method that changes something begins with it, or with
// withNetwork.
func withActor(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, actorKey{}, c.actor())
}

// byItself says that what follows the agent does by itself, whoever called.
func byItself(ctx context.Context) context.Context {
	return context.WithValue(ctx, actorKey{}, "")
}

func actorOf(ctx context.Context) string {
	actor, _ := ctx.Value(actorKey{}).(string)
	return actor
}

type quietKey struct{}

// quietly says that an update is bookkeeping: it renews a lease or notes when to
// poll next. Those who watch are not told.
// Of some kinds, it is so only of the records of those.
func quietly(ctx context.Context, kinds ...Kind) context.Context {
	return context.WithValue(ctx, quietKey{}, kinds)
}

func isQuiet(ctx context.Context, kind Kind) bool {
	kinds, quiet := ctx.Value(quietKey{}).([]Kind)
	return quiet && (len(kinds) == 0 || slices.Contains(kinds, kind))
}

// follow looks at a record now and whenever it may have changed, until look is done
// or fails: after each change that this Agent makes, at once, and every RefreshCheck
// for those of others. The error is look's, or the context's cause.
func (a *Agent) follow(ctx context.Context, kind Kind, principal, id string, look func() (done bool, err error)) error {
	changed, stop := a.changes.poke(func(c change) bool { return c.of(kind, principal, id) })
	defer stop()
	t := time.NewTicker(max(a.params.RefreshCheck, 1))
	defer t.Stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-t.C:
		}
	}
}
