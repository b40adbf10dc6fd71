package killswitch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
)

// memory is a store whose latency and failures a test decides.
type memory struct {
	mu       sync.Mutex
	state    State
	replicas map[string]Replica
	audit    []audit.Entry
	changed  chan struct{}
	lineage  string
	changes  int                                          // how many changes there were: their names
	quiet    bool                                         // announces nothing: replicas must poll
	skew     time.Duration                                // of the store's clock
	delay    func(ctx context.Context, call string) error // before and after each step
}

func newMemory() *memory {
	return &memory{replicas: make(map[string]Replica), changed: make(chan struct{})}
}

func (m *memory) now() time.Time { return time.Now().Add(m.skew) }

// step runs f at one moment between two delays.
func (m *memory) step(ctx context.Context, call string, f func() error) error {
	if m.delay != nil {
		if err := m.delay(ctx, call); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	err := f()
	m.mu.Unlock()
	if err == nil && m.delay != nil {
		err = m.delay(ctx, call)
	}
	return err
}

// reported is the epoch in a replica's last beat.
func (m *memory) reported(name string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.replicas[name].Epoch
}

// copied is the state at this moment.
func (m *memory) copied() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Merge(m.state, State{})
}

// whole is a copy of the state with its change.
func (m *memory) whole() State {
	s := Merge(m.state, State{})
	s.Change = m.state.Change
	return s
}

// change names the change that was just made, and announces it.
func (m *memory) change() {
	m.changes++
	m.state.Change = fmt.Sprint("change ", m.changes)
	if !m.quiet {
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

func (m *memory) Beat(ctx context.Context, b Beat) (g Grant, err error) {
	err = m.step(ctx, "beat", func() error {
		m.replicas[b.Replica] = Replica{Beat: b, Seen: m.now()}
		g = Grant{Epoch: m.state.Epoch, Time: m.now(), Lineage: m.lineage, Change: m.state.Change}
		return nil
	})
	return g, err
}

func (m *memory) State(ctx context.Context) (s State, err error) {
	err = m.step(ctx, "state", func() error { s = m.whole(); return nil })
	return s, err
}

func (m *memory) Kill(ctx context.Context, e Entry, floor uint64, a audit.Entry) (Entry, []Replica, error) {
	var list []Replica
	err := m.step(ctx, "kill", func() error {
		m.state.Epoch = NextEpoch(m.state.Epoch, floor)
		e.Epoch, e.Time = m.state.Epoch, m.now()
		m.state.Entries = append(m.state.Entries, e)
		m.audit = append(m.audit, a)
		list = slices.Collect(maps.Values(m.replicas))
		m.change()
		return nil
	})
	return e, list, err
}

func (m *memory) Resume(ctx context.Context, r Resume, seen, floor uint64, a audit.Entry) (Resume, error) {
	err := m.step(ctx, "resume", func() error {
		if m.state.Epoch != seen {
			return ErrChanged
		}
		m.state.Epoch = NextEpoch(m.state.Epoch, floor)
		r.Epoch, r.Time = m.state.Epoch, m.now()
		m.state.Resumes = append(m.state.Resumes, r)
		m.audit = append(m.audit, a)
		m.change()
		return nil
	})
	return r, err
}

func (m *memory) Merge(ctx context.Context, other State) (s State, err error) {
	err = m.step(ctx, "merge", func() error {
		if next, changed := m.state.Absorb(other); changed {
			m.state = next
			m.change()
		}
		s = m.whole()
		return nil
	})
	return s, err
}

func (m *memory) Enforce(context.Context, uint64) error { return nil }

func (m *memory) Replicas(ctx context.Context, liveFor time.Duration) (list []Replica, err error) {
	err = m.step(ctx, "replicas", func() error {
		for _, r := range m.replicas {
			if m.now().Sub(r.Seen) <= liveFor {
				list = append(list, r)
			}
		}
		return nil
	})
	return list, err
}

func (m *memory) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *memory) Now(context.Context) (time.Time, error) { return m.now(), nil }

// documents are custody's documents.
type documents struct {
	mu     sync.Mutex
	held   map[string]document
	err    error  // answer this
	before func() // runs once, before the next swap
}

type document struct {
	revision uint64
	data     []byte
}

var (
	errNoDocument = errors.New("no document")
	errConflict   = errors.New("conflict")
	errTooLarge   = errors.New("too large")
)

// fail lets everything fail from now on; nil lets it work again.
func (d *documents) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *documents) Load(_ context.Context, name string) (uint64, []byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return 0, nil, d.err
	}
	doc, ok := d.held[name]
	if !ok {
		return 0, nil, errNoDocument
	}
	return doc.revision, slices.Clone(doc.data), nil
}

func (d *documents) Swap(_ context.Context, name string, expect uint64, data []byte) (uint64, error) {
	if f := d.before; f != nil {
		d.before = nil
		f()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.err != nil:
		return 0, d.err
	case expect != d.held[name].revision:
		return 0, errConflict
	case len(data) > 256_000:
		return 0, errTooLarge
	case d.held == nil:
		d.held = make(map[string]document)
	}
	d.held[name] = document{expect + 1, slices.Clone(data)}
	return expect + 1, nil
}

func (d *documents) highWater() DocumentHighWater {
	return DocumentHighWater{Documents: d, Name: "kill-switch", NotFound: errNoDocument, Conflict: errConflict}
}

// high is what custody holds.
func (d *documents) high(t testing.TB) State {
	t.Helper()
	s, err := d.highWater().Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}
