package console

import (
	"math"
	"slices"
	"time"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// phase is what a key is for a while.
type phase struct {
	word     string // published, signs or retiring; the class too
	from, to time.Time
}

// never is the end of what has no planned end.
var never = time.Unix(1<<40, 0)

// lane is a key's row in the picture.
type lane struct {
	kid, algorithm string
	phases         []phase
	revoked        time.Time
}

func (l lane) begin() time.Time {
	if len(l.phases) == 0 {
		return l.revoked
	}
	return l.phases[0].from
}

func (l lane) end() time.Time {
	if len(l.phases) == 0 {
		return l.revoked
	}
	return l.phases[len(l.phases)-1].to
}

// laneOf reads a key's phases from its times.
func laneOf(k *signerv1.Key) lane {
	l := lane{kid: k.Kid, algorithm: k.Algorithm, revoked: timeOf(k.RevokedAt)}
	last := func(t time.Time) time.Time { // not after the revocation
		if t.IsZero() {
			t = never
		}
		if !l.revoked.IsZero() && l.revoked.Before(t) {
			t = l.revoked
		}
		return t
	}
	publish, sign := timeOf(k.PublishAt), last(timeOf(k.SignAt))
	retire, remove := last(timeOf(k.RetireAt)), last(timeOf(k.RemoveAt))
	add := func(word string, from, to time.Time) {
		from, to = from.Truncate(time.Second), to.Truncate(time.Second) // as they are shown
		if from.Before(to) {
			l.phases = append(l.phases, phase{word, from, to})
		}
	}
	add("published", publish, earliest(sign, remove))
	add("signs", sign, retire)
	add("retiring", retire, remove)
	return l
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// How many events are shown before now and after it. The rest is in the table.
const eventsBefore, eventsAfter = 3, 4

// timeline is what an issuer's picture shows: the events nearest to now, and the
// keys that are anything between the first and the last of them.
type timeline struct {
	now    time.Time
	events []time.Time
	lanes  []lane
	hidden int // keys that are in the table only
}

func newTimeline(keys []*signerv1.Key, now time.Time) timeline {
	t := timeline{now: now}
	var lanes []lane
	seen := map[int64]bool{}
	for _, k := range keys {
		l := laneOf(k)
		lanes = append(lanes, l)
		for _, p := range l.phases {
			for _, at := range []time.Time{p.from, p.to} {
				if at.Before(never.Add(-time.Second)) && !seen[at.Unix()] {
					seen[at.Unix()] = true
					t.events = append(t.events, at)
				}
			}
		}
	}
	slices.SortFunc(t.events, time.Time.Compare)
	past := 0
	for past < len(t.events) && !t.events[past].After(now) {
		past++
	}
	t.events = t.events[max(0, past-eventsBefore):min(len(t.events), past+eventsAfter)]
	for _, l := range lanes {
		if len(l.phases) == 0 || len(t.events) > 0 && (l.end().Before(t.events[0]) || l.begin().After(t.events[len(t.events)-1])) {
			t.hidden++
			continue
		}
		t.lanes = append(t.lanes, l)
	}
	return t
}

// axis puts times on a line: events in their order, with room for a label between
// any two, and more where more time passes. It is not to scale: keys sign for a month
// and change places within minutes.
type axis struct {
	first, last float64 // its ends: before the first event, after the last
	events      []time.Time
	at          []float64 // of the events
	now         float64
}

// newAxis makes one from first to last. room is what a label takes.
func newAxis(events []time.Time, now time.Time, first, last, room float64) axis {
	a := axis{first: first, last: last, events: events}
	// The open ends are half as wide as a gap is at least, but hold now with its label.
	gaps := make([]float64, len(events)+1)
	var weights, fixed float64
	weight := make([]float64, len(gaps))
	for i := range gaps {
		switch {
		case i == 0 || i == len(events):
			gaps[i], weight[i] = room*0.6, 1
			if holds(events, i, now) {
				gaps[i], weight[i] = room*1.1, 2
				if i > 0 {
					weight[i] += math.Log1p(now.Sub(events[i-1]).Minutes())
				}
			}
		default:
			gaps[i], weight[i] = room, 1+math.Log1p(events[i].Sub(events[i-1]).Minutes())
			if holds(events, i, now) {
				gaps[i] = room * 1.3
			}
		}
		fixed += gaps[i]
		weights += weight[i]
	}
	spare := (last - first) - fixed
	x := first
	for i := range gaps {
		width := gaps[i]
		if spare > 0 {
			width += spare * weight[i] / weights
		} else {
			width *= (last - first) / fixed
		}
		if holds(events, i, now) {
			part := 0.5
			if i > 0 && i < len(events) {
				part = now.Sub(events[i-1]).Seconds() / events[i].Sub(events[i-1]).Seconds()
			}
			a.now = x + width*min(0.8, max(0.2, part))
		}
		x += width
		if i < len(events) {
			a.at = append(a.at, x)
		}
	}
	return a
}

// holds tells whether now is in the gap before event i.
func holds(events []time.Time, i int, now time.Time) bool {
	return (i == 0 || !events[i-1].After(now)) && (i == len(events) || events[i].After(now))
}

// of is where a time is; what is beyond the events is at an end.
func (a axis) of(t time.Time) float64 {
	i, found := slices.BinarySearchFunc(a.events, t, time.Time.Compare)
	switch {
	case found:
		return a.at[i]
	case i == 0:
		return a.first
	case i == len(a.events):
		return a.last
	}
	return a.at[i] // between two only if the time is none of the events: then the next
}

// wide is the picture for screens: time runs to the right.
func (t timeline) wide(id, title, desc string) *picture {
	const left, right, top, row = 132, 12, 44, 54
	p := &picture{ID: id, Title: title, Desc: desc, Class: "wide-picture", Width: 960}
	bottom := top + row*float64(len(t.lanes))
	p.Height = bottom + 46
	a := newAxis(t.events, t.now, left, p.Width-right, 82)
	for i, l := range t.lanes {
		y := top + row*float64(i)
		if i > 0 {
			p.line("rule", 0, y, p.Width-right, y)
		}
		for _, ph := range l.phases {
			from, to := a.of(ph.from), a.of(ph.to)
			if height, lift := heightOf(ph.word); to > from {
				p.rect("bar "+ph.word, from, y+26+lift, to-from, height, 3)
			}
		}
	}
	p.rect("planned", a.now, top, p.Width-right-a.now, bottom-top, 0)
	for i, at := range a.at {
		p.line("tick", at, top-4, at, bottom+6)
		p.text("time", "middle", at, bottom+22, clockText(a.events[i]))
		p.text("date", "middle", at, bottom+38, dayText(a.events[i], t.now))
	}
	p.line("now", a.now, 24, a.now, bottom+6)
	for i, l := range t.lanes {
		y := top + row*float64(i)
		p.text("kid", "start", 0, y+24, shortKID(l.kid))
		p.text("date", "start", 0, y+42, l.algorithm)
		for _, ph := range l.phases {
			from, to := a.of(ph.from), a.of(ph.to)
			if to > from {
				p.text("word", "start", from+5, y+19, wordOf(ph, t.now))
			}
		}
		if !l.revoked.IsZero() {
			x := a.of(l.revoked.Truncate(time.Second))
			p.cross("cross", x, y+34, 7)
			p.text("word revoked", "start", min(x+12, p.Width-right-50), y+39, "revoked")
		}
	}
	p.text("now-text", "middle", min(max(a.now, left), p.Width-right-56), 16, "now "+clockText(t.now))
	return p
}

// narrow is the picture for phones: time runs down, and keys stand side by side.
func (t timeline) narrow(id, title, desc string) *picture {
	const left, top = 78, 40
	lanes := t.lanes
	if len(lanes) > 3 {
		lanes = lanes[len(lanes)-3:]
	}
	p := &picture{ID: id, Title: title, Desc: desc, Class: "narrow-picture", Width: 320}
	bottom := top + 62*float64(len(t.events)+2)
	p.Height = bottom + 4
	a := newAxis(t.events, t.now, top, bottom, 46)
	row := (p.Width - left) / float64(max(1, len(lanes)))
	for i, l := range lanes {
		x := left + row*float64(i)
		for _, ph := range l.phases {
			from, to := a.of(ph.from), a.of(ph.to)
			if width, lift := heightOf(ph.word); to > from {
				p.rect("bar "+ph.word, x+lift, from, width, to-from, 3)
			}
		}
	}
	p.rect("planned", left-6, a.now, p.Width-left+6, bottom-a.now, 0)
	for i, at := range a.at {
		p.line("tick", left-6, at, p.Width, at)
		p.text("time", "start", 0, at+1, clockText(a.events[i]))
		p.text("date", "start", 0, at+16, dayText(a.events[i], t.now))
	}
	p.line("now", left-6, a.now, p.Width, a.now)
	for i, l := range lanes {
		x := left + row*float64(i)
		p.text("kid", "start", x, 14, shortKID(l.kid))
		p.text("date", "start", x, 30, l.algorithm)
		for _, ph := range l.phases {
			from, to := a.of(ph.from), a.of(ph.to)
			if to > from {
				p.text("word", "start", x+20, from+17, wordOf(ph, t.now))
			}
		}
		if !l.revoked.IsZero() {
			y := a.of(l.revoked.Truncate(time.Second))
			p.cross("cross", x+8, y, 7)
			p.text("word revoked", "start", x+20, y+17, "revoked")
		}
	}
	p.text("now-text", "start", 0, a.now+4, "now")
	return p
}

// heightOf is how thick a phase is drawn, and how far from the lane's top: a key that
// signs is the thickest, so that colours are not needed.
func heightOf(word string) (height, lift float64) {
	switch word {
	case "signs":
		return 16, 0
	case "published":
		return 14, 1
	}
	return 5, 5.5
}

// wordOf says what a key is in a phase: what has not begun is to be.
func wordOf(p phase, now time.Time) string {
	switch {
	case p.word == "signs" && p.from.After(now):
		return "will sign"
	case p.word == "signs" && !p.to.After(now):
		return "signed"
	}
	return p.word
}

func clockText(t time.Time) string { return t.UTC().Format("15:04:05") }

// dayText is the label under the clock.
func dayText(t, now time.Time) string {
	if t.UTC().Year() != now.UTC().Year() {
		return t.UTC().Format("2 Jan 2006")
	}
	return t.UTC().Format("2 Jan")
}
