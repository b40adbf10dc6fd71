package main

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// glass is a terminal without one: it keeps what was written, and shows what a person
// would see.
type glass struct {
	mu  sync.Mutex
	raw bytes.Buffer
}

func (g *glass) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.raw.Write(p)
}

// String is what stands on it.
func (g *glass) String() string { return onGlass(g.written()) }

func (g *glass) written() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.raw.String()
}

// onGlass is the text that stands on a terminal in the end.
func onGlass(written string) string {
	var out []string
	for line := range strings.SplitSeq(strings.ReplaceAll(written, "\r\n", "\n"), "\n") {
		var row []string // what each column begins
		at := 0
		for _, r := range line {
			if r == '\r' {
				at = 0
				continue
			}
			n := cells(r)
			for len(row) < at+n {
				row = append(row, "")
			}
			for i := range n {
				row[at+i] = ""
			}
			row[at] = string(r)
			at += n
		}
		out = append(out, strings.TrimRight(strings.Join(row, ""), " "))
	}
	return strings.Join(out, "\n")
}

// On a terminal one line tells what is waited for and for how long still, is drawn
// over, and is gone before anything else is printed.
func TestWaitingOnATerminal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var g glass
		a := &app{stdout: &g, stderr: &g, now: time.Now, zone: time.UTC, person: true, redraw: 60}
		p := &profile{app: a, waiting: newWaiting(a)}
		p.progress(agent.Event{Kind: agent.EventConsent, Business: "Larkline \x1b[2JAir", Until: time.Now().Add(30 * time.Minute)})
		if g.written() != "" {
			t.Errorf("a short wait is told too: %q", g.written())
		}
		time.Sleep(1100 * time.Millisecond)
		if got := g.String(); !strings.HasSuffix(got, " Waiting for the sign-in at Larkline \uFFFD[2JAir, 29:59 left") {
			t.Errorf("got %q", got)
		}
		time.Sleep(29*time.Minute + 50*time.Second)
		if got := g.String(); !strings.HasSuffix(got, ", 00:09 left") || strings.Contains(got, "\n") {
			t.Errorf("got %q", got)
		}
		a.note("Something else.")
		if got := g.String(); got != "Something else.\n" {
			t.Errorf("got %q", got)
		}
		time.Sleep(drawEvery)
		p.progress(agent.Event{Kind: agent.EventSending, Business: strings.Repeat("航空", 40)})
		time.Sleep(drawEvery)
		if _, got, _ := strings.Cut(g.String(), "\n"); !strings.HasSuffix(got, " Waiting for the answer of "+strings.Repeat("航空", 7)+"航") { // 58 columns of 59
			t.Errorf("got %q", got)
		}
		time.Sleep(64 * time.Second)
		if _, got, _ := strings.Cut(g.String(), "\n"); !strings.HasSuffix(got, "航空, 01:04 so far") {
			t.Errorf("got %q", got)
		}
		// While a person is asked, nothing is drawn.
		p.progress(agent.Event{Kind: agent.EventApproval})
		fmt.Fprint(a.stderr, "Send it? [y/N] ")
		time.Sleep(time.Minute)
		if got := g.String(); got != "Something else.\nSend it? [y/N]" {
			t.Errorf("got %q", got)
		}
		fmt.Fprint(a.stderr, "y\n")
		// When the time is over it is the answer that is waited for.
		p.progress(agent.Event{Kind: agent.EventWaiting, Business: "Air", Detail: "the business limits requests", Until: time.Now().Add(time.Second)})
		time.Sleep(drawEvery + time.Millisecond)
		if got := g.String(); !strings.Contains(got, " Air limits requests; asking again at 00:") || !strings.HasSuffix(got, "00:01 left") {
			t.Errorf("got %q", got)
		}
		time.Sleep(3 * time.Second)
		if got := g.String(); !strings.HasSuffix(got, " Waiting for the answer of Air, 00:02 so far") {
			t.Errorf("got %q", got)
		}
		p.waiting.close()
		if got := g.String(); got != "Something else.\nSend it? [y/N] y\n" || a.stderr != &g || a.stdout != &g {
			t.Errorf("got %q", got)
		}
		if raw := g.written(); strings.Contains(raw, "\x1b") {
			t.Errorf("control sequences: %q", raw)
		}
	})
}

// Elsewhere there is one plain line for each thing that is waited for, however long.
func TestWaitingElsewhere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var g glass
		a := &app{stdout: &g, stderr: &g, now: time.Now, zone: time.UTC}
		p := &profile{app: a, waiting: newWaiting(a)}
		end := time.Now().Add(5 * time.Minute)
		p.progress(agent.Event{Kind: agent.EventSending, Business: "Air"})
		for range 20 {
			p.progress(agent.Event{Kind: agent.EventPolling, Business: "Air", Until: end})
			time.Sleep(5 * time.Second)
		}
		p.progress(agent.Event{Kind: agent.EventWaiting, Business: "Air", Detail: "the business limits requests", Until: end})
		p.progress(agent.Event{Kind: agent.EventWaiting, Detail: "the business has no answer yet", Until: end})
		p.progress(agent.Event{Kind: agent.EventRefreshing, Business: "Air"})
		p.waiting.close()
		want := "Waiting for the answer of Air.\nWaiting for the sign-in at Air until 00:05:00 UTC.\nAir limits requests; asking again at 00:05:00 UTC.\n" +
			"The business has no answer yet; asking again at 00:05:00 UTC.\nRenewing the permission at Air.\n"
		if got := g.written(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
