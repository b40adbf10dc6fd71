package killswitch

import (
	"cmp"
	"slices"
	"time"
)

// Merge returns everything that a or b holds, ordered by epoch, and the higher
// epoch. It is a union of sets: commutative, associative and idempotent. Two
// entries are the same only if all their fields are; of two that differ and
// share an id both stay, and a resume of the id lifts both.
func Merge(a, b State) State {
	out := State{
		Epoch:   max(a.Epoch, b.Epoch),
		Entries: make([]Entry, 0, len(a.Entries)+len(b.Entries)),
		Resumes: make([]Resume, 0, len(a.Resumes)+len(b.Resumes)),
	}
	for _, s := range []State{a, b} {
		for _, e := range s.Entries {
			out.Entries = append(out.Entries, e.normal())
			out.Epoch = max(out.Epoch, e.Epoch)
		}
		for _, r := range s.Resumes {
			out.Resumes = append(out.Resumes, r.normal())
			out.Epoch = max(out.Epoch, r.Epoch)
		}
	}
	slices.SortFunc(out.Entries, compareEntries)
	out.Entries = slices.CompactFunc(out.Entries, func(a, b Entry) bool { return a == b })
	slices.SortFunc(out.Resumes, compareResumes)
	out.Resumes = slices.CompactFunc(out.Resumes, func(a, b Resume) bool { return compareResumes(a, b) == 0 })
	return out
}

// Absorb returns what a store that holds s holds after it has merged other, and
// whether that differs from s. It does if other holds an entry or resume that s
// lacks, or has a higher epoch. The new epoch is then above that of each of the
// two that lacked something, so that nobody who knows only s, or only other,
// can believe to know the result.
func (s State) Absorb(other State) (State, bool) {
	mine, theirs := Merge(s, State{}), Merge(other, State{})
	next := Merge(mine, theirs)
	if next.size() == mine.size() && theirs.Epoch <= mine.Epoch {
		return mine, false
	}
	if next.size() > mine.size() {
		next.Epoch = max(next.Epoch, mine.Epoch+1)
	}
	if next.size() > theirs.size() {
		next.Epoch = max(next.Epoch, theirs.Epoch+1)
	}
	return next, true
}

func (s State) size() int { return len(s.Entries) + len(s.Resumes) }

// Live returns the entries that no resume has lifted, oldest first. They are
// enforced, also past their expiry: that is when a replica writes the resume.
func (s State) Live() []Entry {
	lifted := make(map[string]bool)
	for _, r := range s.Resumes {
		for _, id := range r.Entries {
			lifted[id] = true
		}
	}
	var live []Entry
	for _, e := range s.Entries {
		if !lifted[e.ID] {
			live = append(live, e)
		}
	}
	return live
}

// Expired returns the live entries whose expiry has come at now, a time of the
// store's clock.
func (s State) Expired(now time.Time) []Entry {
	return slices.DeleteFunc(s.Live(), func(e Entry) bool {
		return e.Expires.IsZero() || e.Expires.After(now)
	})
}

// normal returns e as its JSON would bring it back, so that == compares it.
func (e Entry) normal() Entry {
	e.Time, e.Expires = e.Time.UTC().Round(0), e.Expires.UTC().Round(0)
	return e
}

func (r Resume) normal() Resume {
	r.Time = r.Time.UTC().Round(0)
	r.Entries = slices.Clone(r.Entries)
	slices.Sort(r.Entries)
	r.Entries = slices.Compact(r.Entries)
	return r
}

func compareEntries(a, b Entry) int {
	return cmp.Or(
		cmp.Compare(a.Epoch, b.Epoch),
		cmp.Compare(a.ID, b.ID),
		cmp.Compare(a.Scope.Kind, b.Scope.Kind),
		cmp.Compare(a.Scope.Issuer, b.Scope.Issuer),
		cmp.Compare(a.Scope.Value, b.Scope.Value),
		cmp.Compare(a.Reason, b.Reason),
		cmp.Compare(a.Actor, b.Actor),
		a.Time.Compare(b.Time),
		a.Expires.Compare(b.Expires),
	)
}

func compareResumes(a, b Resume) int {
	return cmp.Or(
		cmp.Compare(a.Epoch, b.Epoch),
		cmp.Compare(a.ID, b.ID),
		slices.Compare(a.Entries, b.Entries),
		cmp.Compare(a.Reason, b.Reason),
		cmp.Compare(a.Actor, b.Actor),
		a.Time.Compare(b.Time),
	)
}
