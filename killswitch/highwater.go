package killswitch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Documents is what DocumentHighWater needs of the place that keeps the keys:
// named documents with compare-and-swap.
type Documents interface {
	// Load returns a document and its revision.
	Load(ctx context.Context, name string) (revision uint64, data []byte, err error)
	// Swap writes the document if its revision is still expect, 0 if there is none.
	Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error)
}

// DocumentHighWater keeps the high-water record as one document: the epoch, the
// live entries, and the newest resumes. Resumes tell a store that comes back
// from an old copy which of its entries are lifted; one that is older than the
// newest KeepResumes is not told, and its entry must be lifted again.
type DocumentHighWater struct {
	Documents Documents
	Name      string
	NotFound  error // what Load's error wraps if there is no such document
	Conflict  error // what Swap's error wraps if the revision was another
}

// KeepResumes is how many resumes a high-water record holds at most.
const KeepResumes = 256

// highWaterFormat is the newest format of the record that this version knows,
// and the oldest whose readers understand what it writes.
const highWaterFormat = 1

type highWaterRecord struct {
	Format    int   `json:"format"`
	MinReader int   `json:"minReader"`
	State     State `json:"state"`
}

// Load returns the recorded state.
func (h DocumentHighWater) Load(ctx context.Context) (State, error) {
	_, r, err := h.load(ctx)
	return r.State, err
}

// Save merges s into the record.
func (h DocumentHighWater) Save(ctx context.Context, s State) error {
	for {
		rev, old, err := h.load(ctx)
		if err != nil {
			return err
		}
		if old.Format > highWaterFormat {
			return fmt.Errorf("killswitch: high-water record has format %d, this version writes %d: upgrade it", old.Format, highWaterFormat)
		}
		next := compact(Merge(old.State, s))
		if rev != 0 && next.equal(old.State) {
			return nil
		}
		data, err := json.Marshal(highWaterRecord{highWaterFormat, highWaterFormat, next})
		if err != nil {
			return fmt.Errorf("killswitch: encode the high-water record: %w", err)
		}
		_, err = h.Documents.Swap(ctx, h.Name, rev, data)
		if h.Conflict != nil && errors.Is(err, h.Conflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("killswitch: swap the high-water record: %w", err)
		}
		return nil
	}
}

func (h DocumentHighWater) load(ctx context.Context) (uint64, highWaterRecord, error) {
	rev, data, err := h.Documents.Load(ctx, h.Name)
	if h.NotFound != nil && errors.Is(err, h.NotFound) {
		return 0, highWaterRecord{}, nil
	}
	if err != nil {
		return 0, highWaterRecord{}, fmt.Errorf("killswitch: load the high-water record: %w", err)
	}
	r, err := decodeHighWater(data)
	return rev, r, err
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

// compact drops lifted entries and all but the newest resumes.
func compact(s State) State {
	s.Entries = s.Live()
	if n := len(s.Resumes) - KeepResumes; n > 0 {
		s.Resumes = slices.Clone(s.Resumes[n:])
	}
	return s
}

// equal compares states that Merge has returned.
func (s State) equal(o State) bool {
	return s.Epoch == o.Epoch && slices.Equal(s.Entries, o.Entries) &&
		slices.EqualFunc(s.Resumes, o.Resumes, func(a, b Resume) bool { return compareResumes(a, b) == 0 })
}
