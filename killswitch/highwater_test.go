package killswitch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// fat is a device's kill with the longest reason.
func fat(i int) Entry {
	return Entry{
		ID: fmt.Sprintf("fat%05d", i), Scope: Scope{Device, "https://issuer.example", fmt.Sprintf("%043d", i)},
		Reason: strings.Repeat("r", maxReason), Actor: "ops", Epoch: uint64(i + 1),
	}
}

func fats(n int) State {
	var s State
	for i := range n {
		s.Entries = append(s.Entries, fat(i))
	}
	return Merge(s, State{})
}

// sizes are the documents' sizes, the first one first.
func (d *documents) sizes() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	var sizes []int
	for i := range len(d.held) {
		sizes = append(sizes, len(d.held[d.highWater().part(i)].data))
	}
	return sizes
}

// A record that outgrows a document goes on in others, and shrinks again when entries
// are lifted.
func TestHighWaterGrows(t *testing.T) {
	d := new(documents)
	h := d.highWater()
	s := fats(1000)
	for i := 100; i <= len(s.Entries); i += 100 {
		part := State{Epoch: uint64(i), Entries: s.Entries[:i]}
		if err := h.Save(t.Context(), part); err != nil {
			t.Fatalf("%d entries: %v", i, err)
		}
		if got := d.high(t); !got.equal(part) {
			t.Fatalf("%d entries came back as %d, epoch %d", i, len(got.Entries), got.Epoch)
		}
	}
	if sizes := d.sizes(); len(sizes) < 5 || slices.Max(sizes) > narrowRoom {
		t.Fatalf("documents of %d bytes", sizes)
	}
	resume := Resume{ID: "r", Epoch: 3000}
	for _, e := range s.Entries[:990] {
		resume.Entries = append(resume.Entries, e.ID)
	}
	lifted := State{Epoch: 3000, Resumes: []Resume{resume}}
	if err := h.Save(t.Context(), lifted); err != nil {
		t.Fatal(err)
	}
	if got := d.high(t); len(got.Entries) != 10 || len(got.Live()) != 10 || got.Epoch != 3000 {
		t.Fatalf("%d entries, %d live, epoch %d", len(got.Entries), len(got.Live()), got.Epoch)
	}
	total := 0
	for _, n := range d.sizes() {
		total += n
	}
	if total > 50_000 {
		t.Fatalf("after the resume the documents have %d bytes", total)
	}
}

// What stops most is recorded also when there is no room for more devices, and what has
// no room is named.
func TestHighWaterFull(t *testing.T) {
	d := new(documents)
	h := d.highWater()
	h.smaller = 20
	s := NewSwitch(SwitchConfig{Store: newMemory(), HighWater: h})
	var full *FullError
	if err := h.Save(t.Context(), fats(400)); !errors.As(err, &full) || len(full.Left) == 0 {
		t.Fatalf("saving more than there is room for: %v", err)
	}
	recorded := len(d.high(t).Entries)
	if recorded < 200 || recorded+len(full.Left) != 400 {
		t.Fatalf("%d entries are recorded, %d left out", recorded, len(full.Left))
	}
	for i := range 24 {
		scope := Scope{Kind: All}
		if i%2 > 0 {
			scope = Scope{Kind: Issuer, Issuer: "https://issuer.example"}
		}
		if r := mustKill(t, s, scope); !r.Durable || !slices.ContainsFunc(d.high(t).Entries, func(e Entry) bool { return e.ID == r.Entry.ID }) {
			t.Fatalf("kill %d of %s is not durable: %v", i, scope, r.NotDurable)
		}
	}
	r, err := s.Kill(t.Context(), Entry{Scope: Scope{Device, "https://issuer.example", "d"}, Reason: strings.Repeat("r", maxReason), Actor: "ops"})
	if err != nil || r.Durable || !errors.As(r.NotDurable, &full) {
		t.Fatalf("a device's kill without room: %v, durable %v, %v", err, r.Durable, r.NotDurable)
	}
}

// One entry that no document can hold keeps none out that can be held.
func TestHighWaterOversized(t *testing.T) {
	s, m, d := newTestSwitch()
	huge := fat(0)
	huge.Reason = strings.Repeat("x", 300_000)
	m.state = State{Epoch: 1, Entries: []Entry{huge}}
	for _, scope := range []Scope{{Kind: All}, {Device, "i", "d"}} {
		if r := mustKill(t, s, scope); !r.Durable {
			t.Fatalf("%s: %v", scope, r.NotDurable)
		}
	}
	if got := d.high(t); len(got.Entries) != 2 || len(d.held) != 1 {
		t.Fatalf("custody holds %d entries in %d documents", len(got.Entries), len(d.held))
	}
}

// A record that lacks one of its documents is not taken for the whole.
func TestHighWaterLacksADocument(t *testing.T) {
	d := new(documents)
	if err := d.highWater().Save(t.Context(), fats(400)); err != nil {
		t.Fatal(err)
	}
	delete(d.held, "kill-switch-1")
	if _, err := d.highWater().Load(t.Context()); err == nil || !strings.Contains(err.Error(), "kill-switch-1") {
		t.Fatalf("loading gave %v", err)
	}
}

// A writer that ended before it came to the first document is in nobody's way, and what
// it wrote is not lost.
func TestHighWaterUnfinishedWriter(t *testing.T) {
	d := new(documents)
	h := d.highWater()
	if err := h.Save(t.Context(), fats(100)); err != nil {
		t.Fatal(err)
	}
	before := d.held["kill-switch"]
	late := fats(300)
	if err := h.Save(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	d.held["kill-switch"] = before
	theirs, err := h.loadPart(t.Context(), 1)
	if err != nil || len(theirs.State.Entries) == 0 {
		t.Fatalf("the other document holds %d entries, %v", len(theirs.State.Entries), err)
	}
	ours := fats(200)
	if err := h.Save(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	if got, want := d.high(t), Merge(theirs.State, ours); !got.equal(want) {
		t.Fatalf("%d entries, want %d", len(got.Entries), len(want.Entries))
	}
}

// moody documents run a function before each call.
type moody struct {
	*documents
	mood func(call string)
}

func (m moody) Load(ctx context.Context, name string) (uint64, []byte, error) {
	if m.mood("load"); ctx.Err() != nil {
		return 0, nil, ctx.Err()
	}
	return m.documents.Load(ctx, name)
}

func (m moody) Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error) {
	if m.mood("swap"); ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return m.documents.Swap(ctx, name, expect, data)
}

// Whatever writers do at the same time, and where they break off, what a Save has
// returned for is in every Load that begins later, and nothing comes back that was lifted.
func TestHighWaterConcurrently(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := new(documents)
		h := d.highWater()
		h.smaller = 100
		base := fats(rapid.IntRange(0, 8).Draw(rt, "base"))
		if err := h.Save(context.Background(), base); err != nil {
			rt.Fatal(err)
		}
		breakOff := rapid.Int64Range(0, 20).Draw(rt, "break off")
		var (
			mu     sync.Mutex
			saved  = base
			lifted = make(map[string]bool) // or may be
			all    sync.WaitGroup
			errs   []error
		)
		check := func() {
			mu.Lock()
			want := Merge(saved, State{})
			mu.Unlock()
			got, err := h.Load(context.Background())
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			}
			for _, e := range want.Live() {
				if !lifted[e.ID] && !slices.Contains(got.Entries, e) {
					errs = append(errs, fmt.Errorf("%s is lost", e.ID))
				}
			}
			for _, e := range got.Live() {
				for _, r := range want.Resumes {
					if slices.Contains(r.Entries, e.ID) {
						errs = append(errs, fmt.Errorf("%s is live again", e.ID))
					}
				}
			}
		}
		for w := range 3 {
			var calls atomic.Int64
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			h := h
			h.Documents = moody{d, func(string) {
				if calls.Add(1) == breakOff && w == 0 {
					cancel()
				}
			}}
			all.Go(func() {
				for i := range 4 {
					var s State
					if i%2 == 0 {
						for j := range 2 {
							s.Entries = append(s.Entries, fat(100*(w+1)+10*i+j))
						}
					} else if n := len(base.Entries); n > 0 {
						id := base.Entries[(w*37+i)%n].ID
						mu.Lock()
						lifted[id] = true
						mu.Unlock()
						s.Resumes = []Resume{{ID: fmt.Sprint("r", w, i), Entries: []string{id}, Epoch: uint64(9000 + 10*w + i)}}
					}
					s = Merge(s, State{})
					if err := h.Save(ctx, s); err != nil {
						if w != 0 {
							mu.Lock()
							defer mu.Unlock()
							errs = append(errs, err)
						}
						return
					}
					mu.Lock()
					saved = Merge(saved, s)
					mu.Unlock()
					check()
				}
			})
		}
		all.Wait()
		check()
		if len(errs) > 0 {
			rt.Fatal(errors.Join(errs...))
		}
	})
}
