package killswitch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
)

// Documents is what DocumentHighWater needs of the place that keeps the keys:
// named documents with compare-and-swap.
type Documents interface {
	// Load returns a document and its revision.
	Load(ctx context.Context, name string) (revision uint64, data []byte, err error)
	// Swap writes the document if its revision is still expect, 0 if there is none.
	Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error)
}

// DocumentHighWater keeps the high-water record: the epoch, the live entries, and the
// newest resumes. Resumes tell a store that comes back from an old copy which of its
// entries are lifted; one that is not kept is not told, and its entry must be lifted
// again.
//
// The record is the document Name, and once that is full also Name-1, Name-2 and so on.
// The first has the epoch, the resumes and what stops most. An entry stays in the
// document that it is in, or moves from the first to another that is written before:
// who reads the first one first misses nothing while it moves.
type DocumentHighWater struct {
	Documents Documents
	Name      string
	NotFound  error // what Load's error wraps if there is no such document
	Conflict  error // what Swap's error wraps if the revision was another

	smaller int // tests: how much less a document holds; 0: nothing
}

// KeepResumes is how many resumes a high-water record holds at most.
const KeepResumes = 256

// What a record holds at most, in bytes and documents. The room that narrow entries
// leave is there for those that stop everything, or an issuer.
const (
	resumesRoom = 64_000
	narrowRoom  = 192_000
	wideRoom    = 256_000
	frameRoom   = 256 // what is around them
	maxParts    = 32  // besides the first
)

// FullError says that the high-water record is full. What was to be saved is there, but
// for some entries.
type FullError struct {
	Left []string // their ids
}

func (e *FullError) Error() string {
	return fmt.Sprintf("killswitch: the high-water record is full: %d live entries have no room in it", len(e.Left))
}

// highWaterFormat is the newest format of the record that this version knows. A record
// of a single document has format 1.
const highWaterFormat = 2

type highWaterRecord struct {
	Format    int   `json:"format"`
	MinReader int   `json:"minReader"`
	State     State `json:"state"`
	Parts     int   `json:"parts,omitempty"` // how many documents there are besides the first
}

// highWaterPart is a document of the record as it was read; revision 0 if it is not there.
type highWaterPart struct {
	revision uint64
	highWaterRecord
}

// Load returns the recorded state.
func (h DocumentHighWater) Load(ctx context.Context) (State, error) {
	parts, err := h.load(ctx)
	if err != nil {
		return State{}, err
	}
	return union(parts)
}

// Save merges s into the record; *FullError if some entries have no room there.
func (h DocumentHighWater) Save(ctx context.Context, s State) error {
	for {
		parts, err := h.load(ctx)
		if err == nil {
			err = h.save(ctx, parts, s)
		}
		if h.Conflict != nil && errors.Is(err, h.Conflict) && ctx.Err() == nil {
			continue
		}
		return err
	}
}

// save writes the documents that differ. The first is the last, for it says how many
// there are.
func (h DocumentHighWater) save(ctx context.Context, parts []highWaterPart, s State) error {
	var (
		next   State
		places [][]Entry
		left   []Entry
	)
	for {
		recorded, err := union(parts)
		if err != nil {
			return err
		}
		if next = compact(Merge(recorded, s), h.room(resumesRoom)); next.highest() >= epochLimit {
			return fmt.Errorf("%w: epoch %d is not saved", ErrDamaged, next.highest())
		}
		more := false
		if places, left, more = h.place(parts, next); !more || len(parts) > maxParts {
			break
		}
		// A writer who did not come to the first document may have left one.
		p, err := h.loadPart(ctx, len(parts))
		if err != nil {
			return err
		}
		parts = append(parts, p)
	}
	for i, p := range slices.Backward(parts) {
		r := highWaterRecord{Format: highWaterFormat, MinReader: highWaterFormat, State: State{Entries: places[i]}}
		if i == 0 {
			r.State.Epoch, r.State.Resumes, r.Parts = next.Epoch, next.Resumes, len(parts)-1
			if r.Parts == 0 {
				r.Format, r.MinReader = 1, 1
			}
		}
		r.State = Merge(r.State, State{})
		if p.revision != 0 && p.Parts == r.Parts && p.State.equal(r.State) {
			continue
		}
		if err := h.swap(ctx, i, p, r); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		e := new(FullError)
		for _, l := range left {
			e.Left = append(e.Left, l.ID)
		}
		return e
	}
	return nil
}

func (h DocumentHighWater) swap(ctx context.Context, i int, old highWaterPart, next highWaterRecord) error {
	if old.Format > highWaterFormat {
		return fmt.Errorf("killswitch: high-water record has format %d, this version writes %d: upgrade it", old.Format, highWaterFormat)
	}
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("killswitch: encode the high-water record: %w", err)
	}
	if _, err := h.Documents.Swap(ctx, h.part(i), old.revision, data); err != nil {
		return fmt.Errorf("killswitch: swap the high-water record: %w", err)
	}
	return nil
}

// part is the name of a document, counted from the first, 0.
func (h DocumentHighWater) part(i int) string {
	if i == 0 {
		return h.Name
	}
	return fmt.Sprintf("%s-%d", h.Name, i)
}

// load reads all documents, the first one first.
func (h DocumentHighWater) load(ctx context.Context) ([]highWaterPart, error) {
	first, err := h.loadPart(ctx, 0)
	if err != nil {
		return nil, err
	}
	if first.Parts < 0 || first.Parts > maxParts {
		return nil, fmt.Errorf("killswitch: high-water record has %d parts", first.Parts)
	}
	parts := make([]highWaterPart, 1+first.Parts)
	parts[0] = first
	errs := make([]error, len(parts))
	var loading sync.WaitGroup
	for i := 1; i < len(parts); i++ {
		loading.Go(func() {
			if parts[i], errs[i] = h.loadPart(ctx, i); errs[i] == nil && parts[i].revision == 0 {
				errs[i] = fmt.Errorf("killswitch: the high-water record lacks its document %s", h.part(i))
			}
		})
	}
	loading.Wait()
	return parts, errors.Join(errs...)
}

func (h DocumentHighWater) loadPart(ctx context.Context, i int) (highWaterPart, error) {
	rev, data, err := h.Documents.Load(ctx, h.part(i))
	if h.NotFound != nil && errors.Is(err, h.NotFound) {
		return highWaterPart{}, nil
	}
	if err != nil {
		return highWaterPart{}, fmt.Errorf("killswitch: load the high-water record: %w", err)
	}
	r, err := decodeHighWater(data)
	return highWaterPart{rev, r}, err
}

func decodeHighWater(data []byte) (highWaterRecord, error) {
	var r highWaterRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("killswitch: high-water record: %w", err)
	}
	if r.Format < 1 || r.MinReader < 1 || r.MinReader > highWaterFormat {
		return r, fmt.Errorf("killswitch: high-water record has format %d for readers of %d on, this version reads up to %d", r.Format, r.MinReader, highWaterFormat)
	}
	r.State = Merge(r.State, State{})
	return r, nil
}

// union is what documents hold together.
func union(parts []highWaterPart) (State, error) {
	var s State
	for _, p := range parts {
		s.Epoch = max(s.Epoch, p.State.Epoch)
		s.Entries = append(s.Entries, p.State.Entries...)
		s.Resumes = append(s.Resumes, p.State.Resumes...)
	}
	s = Merge(s, State{})
	if s.Epoch >= epochLimit {
		return State{}, fmt.Errorf("%w: custody has epoch %d", ErrDamaged, s.Epoch)
	}
	return s, nil
}

// place says which entries of next each document is to hold, and which have no room;
// more if one more document would help.
func (h DocumentHighWater) place(parts []highWaterPart, next State) (places [][]Entry, left []Entry, more bool) {
	places = make([][]Entry, len(parts))
	sizes := make([]int, len(parts))
	for i := range sizes {
		sizes[i] = frameRoom
	}
	for _, r := range next.Resumes {
		sizes[0] += encodedSize(r)
	}
	rest := make(map[Entry]bool, len(next.Entries))
	for _, e := range next.Entries {
		rest[e] = true
	}
	for i, p := range parts {
		for _, e := range p.State.Entries {
			if i > 0 && rest[e] {
				delete(rest, e)
				places[i] = append(places[i], e)
				sizes[i] += encodedSize(e)
			}
		}
	}
	for _, wide := range []bool{true, false} {
		room := h.room(narrowRoom)
		if wide {
			room = h.room(wideRoom)
		}
		for _, e := range next.Entries {
			if !rest[e] || wide != e.Scope.wide() {
				continue
			}
			size := encodedSize(e)
			i := slices.IndexFunc(sizes, func(have int) bool { return have+size <= room })
			if i < 0 {
				left = append(left, e)
				more = more || frameRoom+size <= room
				continue
			}
			places[i] = append(places[i], e)
			sizes[i] += size
		}
	}
	return places, left, more
}

func (h DocumentHighWater) room(full int) int { return full / max(h.smaller, 1) }

// wide tells a scope that stops an issuer or more.
func (s Scope) wide() bool {
	switch s.Kind {
	case Audience, Subject, Device, Credential:
		return false
	}
	return true
}

// compact drops lifted entries, and all but the newest resumes that have room.
func compact(s State, room int) State {
	s.Entries = s.Live()
	size, keep := 0, s.Resumes[:0:0]
	for _, r := range slices.Backward(s.Resumes) {
		if n := encodedSize(r); len(keep) < KeepResumes && size+n <= room {
			size += n
			keep = append(keep, r)
		}
	}
	slices.Reverse(keep)
	s.Resumes = keep
	return s
}

// encodedSize is what an entry or a resume takes in a document. One that JSON cannot
// hold, such as the year 10000, fits in none.
func encodedSize(v any) int {
	data, err := json.Marshal(v)
	if err != nil {
		return math.MaxInt32
	}
	return len(data) + 1
}

// equal compares states that Merge has returned.
func (s State) equal(o State) bool {
	return s.Epoch == o.Epoch && slices.Equal(s.Entries, o.Entries) &&
		slices.EqualFunc(s.Resumes, o.Resumes, func(a, b Resume) bool { return compareResumes(a, b) == 0 })
}
