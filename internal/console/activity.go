package console

import (
	"fmt"
	"math"
	"time"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// tally is what was done in some minutes.
type tally struct{ signed, refused, failed uint64 }

func (t *tally) add(m *signerv1.ActivityMinute) {
	t.signed += m.Signed
	t.refused += m.Refused
	t.failed += m.Failed
}

func (t tally) String() string {
	return fmt.Sprintf("%s signed, %s refused, %s failed", number(t.signed), number(t.refused), number(t.failed))
}

// lately is how many of the last minutes are told by themselves.
const lately = 5

// sums adds up all minutes, and the last few.
func sums(minutes []*signerv1.ActivityMinute) (all, last tally) {
	for i, m := range minutes {
		all.add(m)
		if i >= len(minutes)-lately {
			last.add(m)
		}
	}
	return all, last
}

// fiveMinutes are the rows of the table that says what the bars say.
func fiveMinutes(minutes []*signerv1.ActivityMinute) (from []time.Time, sum []tally) {
	for i, m := range minutes {
		if i%lately == 0 {
			from, sum = append(from, timeOf(m.Start)), append(sum, tally{})
		}
		sum[len(sum)-1].add(m)
	}
	return from, sum
}

// bars is the picture of the minutes: what was signed, and under it, on a scale of
// its own, what was not.
func bars(minutes []*signerv1.ActivityMinute, narrow bool, id, title, desc string) *picture {
	p := &picture{ID: id, Title: title, Desc: desc, Class: "wide-picture", Width: 960}
	left, every := 62.0, 10
	if narrow {
		p.Class, p.Width, left, every = "narrow-picture", 320, 44, 30
	}
	const top, high, gap, low, right = 26, 96, 34, 44, 8
	base, ground := top+float64(high), top+high+gap+float64(low)
	p.Height = ground + 26
	var most, worst uint64
	for _, m := range minutes {
		most, worst = max(most, m.Signed), max(worst, m.Refused+m.Failed)
	}
	step := (p.Width - left - right) / float64(max(1, len(minutes)))
	thick := math.Max(step-math.Min(3, step*0.25), 1)
	p.text("word", "start", 0, 14, "signed per minute")
	p.text("word", "start", 0, base+gap-8, "refused and failed per minute")
	for _, panel := range []struct {
		at, height float64
		most       uint64
	}{{base, high, most}, {ground, low, worst}} {
		if panel.most > 0 {
			p.line("rule", left, panel.at-panel.height, p.Width-right, panel.at-panel.height)
			p.text("date", "end", left-6, panel.at-panel.height+5, short(panel.most))
		}
		if panel.most == 0 {
			p.text("date", "start", left+8, panel.at-8, "none")
		}
		p.line("base", left, panel.at, p.Width-right, panel.at)
		p.text("date", "end", left-6, panel.at+4, "0")
	}
	part := func(n, of uint64, height float64) float64 {
		if n == 0 {
			return 0
		}
		return math.Max(2, height*float64(n)/float64(of))
	}
	for i, m := range minutes {
		x, running := left+step*float64(i), ""
		if i == len(minutes)-1 {
			running = " running"
		}
		h := part(m.Signed, most, high)
		p.rect("signed"+running, x, base-h, thick, h, 0)
		f, r := part(m.Failed, worst, low), part(m.Refused, worst, low)
		p.rect("failed"+running, x, ground-f, thick, f, 0)
		p.rect("refused"+running, x, ground-f-r, thick, r, 0)
		if at := timeOf(m.Start).UTC(); at.Minute()%every == 0 && x > left+8 && x < p.Width-right-12 {
			p.line("tick", x, ground, x, ground+5)
			p.text("time", "middle", x, ground+20, at.Format("15:04"))
		}
	}
	return p
}

// short writes a number in at most five characters.
func short(n uint64) string {
	switch {
	case n < 10_000:
		return number(n)
	case n < 10_000_000:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprintf("%dM", n/1_000_000)
}
