package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/term"
	"golang.org/x/text/width"

	"github.com/pactsigner/pactsigner/agent"
)

// waiting tells what is waited for, and for how long still: on a terminal in one
// line that is drawn over, and gone before anything else is printed; elsewhere in
// plain lines, one for each thing. It draws with carriage returns and blanks alone:
// no colours, no control sequences.
type waiting struct {
	app            *app
	stdout, stderr io.Writer // those of the app

	mu    sync.Mutex
	what  string // "": nothing is waited for
	since time.Time
	until time.Time
	then  string // what is waited for after that
	frame int
	drawn int // columns that stand on the terminal

	end, ended chan struct{} // of the drawing
}

const (
	drawEvery = 250 * time.Millisecond
	frames    = `-\|/`
)

// redrawable is how wide a terminal is whose last line can be drawn over, or 0.
func redrawable(f *os.File) int {
	w, _, err := term.GetSize(int(f.Fd()))
	if err != nil || os.Getenv("TERM") == "dumb" {
		return 0
	}
	return w
}

// newWaiting begins to tell. While it does, what the app prints goes through it.
func newWaiting(a *app) *waiting {
	w := &waiting{app: a, stdout: a.stdout, stderr: a.stderr}
	if a.redraw == 0 {
		return w
	}
	a.stdout, a.stderr = &clearing{w, w.stdout}, &clearing{w, w.stderr}
	w.end, w.ended = make(chan struct{}), make(chan struct{})
	go w.draw()
	return w
}

// close ends it, and leaves no trace.
func (w *waiting) close() {
	if w.end == nil {
		return
	}
	close(w.end)
	<-w.ended
	w.app.stdout, w.app.stderr = w.stdout, w.stderr
}

// set says what is waited for from now on; the zero time is no bound, and the empty
// text nothing. plain is the line for where none can be drawn over; empty: none.
func (w *waiting) set(what string, until time.Time, plain string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.what != what {
		w.since = w.app.now()
	}
	said := w.what == what && w.until.Equal(until)
	w.what, w.until, w.then = what, until, ""
	switch {
	case w.end != nil:
		if what == "" {
			w.clear()
		}
	case !said && plain != "":
		w.app.note("%s", plain)
	}
}

// after says what is waited for once the bound of set is over.
func (w *waiting) after(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.then = what
}

func (w *waiting) draw() {
	defer close(w.ended)
	t := time.NewTicker(drawEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			w.mu.Lock()
			w.redraw()
			w.mu.Unlock()
		case <-w.end:
			w.mu.Lock()
			w.clear()
			w.mu.Unlock()
			return
		}
	}
}

// redraw draws the line anew. An error of the terminal is that of whoever prints next.
func (w *waiting) redraw() {
	if w.what == "" {
		return
	}
	if w.then != "" && !w.app.now().Before(w.until) {
		w.what, w.since, w.until, w.then = w.then, w.until, time.Time{}, ""
	}
	left := ""
	if d := w.until.Sub(w.app.now()); d > 0 {
		left = ", " + countdown(d) + " left"
	} else if d := w.app.now().Sub(w.since).Truncate(time.Second); w.until.IsZero() && d > 0 {
		left = ", " + countdown(d) + " so far"
	}
	line, n := fit(string(frames[w.frame%len(frames)])+" "+clean(w.what), w.app.redraw-1-len(left))
	line, n = line+left, n+len(left)
	w.frame++
	fmt.Fprintf(w.stderr, "\r%s%s", line, strings.Repeat(" ", max(0, w.drawn-n)))
	w.drawn = max(n, w.drawn)
}

// clear takes the line off the terminal.
func (w *waiting) clear() {
	if w.drawn > 0 {
		fmt.Fprintf(w.stderr, "\r%s\r", strings.Repeat(" ", w.drawn))
		w.drawn = 0
	}
}

// clearing is a way to a terminal that the line is cleared from first.
type clearing struct {
	line *waiting
	to   io.Writer
}

// Write implements io.Writer.
func (c *clearing) Write(b []byte) (int, error) {
	c.line.mu.Lock()
	defer c.line.mu.Unlock()
	c.line.clear()
	return c.to.Write(b)
}

// countdown is a duration as 04:09, rounded up: it is 00:00 when it is over.
func countdown(d time.Duration) string {
	s := int((d + time.Second - 1) / time.Second)
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}

// fit cuts a text to n columns of a terminal, and tells how many it takes.
func fit(s string, n int) (string, int) {
	used := 0
	for i, r := range s {
		c := cells(r)
		if used+c > n {
			return s[:i], used
		}
		used += c
	}
	return s, used
}

// cells is how many columns of a terminal a character takes.
func cells(r rune) int {
	switch k := width.LookupRune(r).Kind(); {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case k == width.EastAsianWide || k == width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// progress tells what the agent does. What the owner should know later too is a line
// that stays.
func (p *profile) progress(e agent.Event) {
	w := p.waiting
	if w == nil {
		return
	}
	name := or(e.Business, "the business")
	none := time.Time{}
	switch e.Kind {
	case agent.EventStepUp:
		p.idle()
		p.app.note("%s needs permission for this: %s", name, e.Detail)
	case agent.EventDiscovering:
		w.set("Reading the card of "+name, none, "")
	case agent.EventIntroducing, agent.EventSending:
		what := "Waiting for the answer of " + name
		w.set(what, none, what+".")
	case agent.EventVerifying:
		w.set("Verifying what "+name+" signed", none, "")
	case agent.EventRefreshing:
		what := "Renewing the permission at " + name
		w.set(what, none, what+".")
	case agent.EventWaiting:
		why, _ := strings.CutPrefix(e.Detail, "the business ")
		what := or(e.Business, "The business") + " " + why + "; asking again at " + p.app.aside().clock(e.Until, ofDay)
		w.set(what, e.Until, what+".")
		w.after("Waiting for the answer of " + name)
	case agent.EventConsent, agent.EventPolling, agent.EventElsewhere:
		what, plain := "Waiting for the sign-in at "+name, ""
		if p.signIn == "" {
			plain = what + " until " + p.app.aside().clock(e.Until, ofDay) + "."
		}
		w.set(what, e.Until, plain)
	default: // a person is asked
		p.idle()
	}
}

// idle says that nothing is waited for now.
func (p *profile) idle() {
	if p.waiting != nil {
		p.waiting.set("", time.Time{}, "")
	}
}
