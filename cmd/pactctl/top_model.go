package main

import (
	"context"
	"time"

	tea "charm.land/bubbletea/v2"
)

// topModel is what pactctl top shows on a terminal, and what keys do to it.
type topModel struct {
	ctx      context.Context
	look     func(context.Context) (*picture, error)
	now      func() time.Time
	zone     *time.Location
	interval time.Duration
	count    int // looks until the end; 0: no end
	looks    int // that have ended

	picture *picture
	err     error // of the last look, if it failed: the picture is older

	paused, help, looking bool
	issuer                int
	turn                  int // of the wait: a look that is due in an earlier turn is not any more
	width, height         int
	interrupted           bool
}

type (
	lookedMsg struct {
		picture *picture
		err     error
	}
	dueMsg    struct{ turn int }
	secondMsg struct{}
)

// topIntervals are what + and - choose from.
var topIntervals = []time.Duration{1 * time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute}

// newTopModel begins with a first picture.
func newTopModel(ctx context.Context, look func(context.Context) (*picture, error), first *picture, now func() time.Time, zone *time.Location, interval time.Duration) topModel {
	return topModel{ctx: ctx, look: look, now: now, zone: zone, interval: interval, picture: first, looks: 1}
}

// Init implements tea.Model.
func (m topModel) Init() tea.Cmd {
	if m.looks == m.count {
		return tea.Quit
	}
	return tea.Batch(m.wait(), everySecond())
}

// everySecond draws anew, for what tells an age.
func everySecond() tea.Cmd {
	return tea.Tick(time.Second, func(time.Time) tea.Msg { return secondMsg{} })
}

// wait makes the next look due.
func (m topModel) wait() tea.Cmd {
	turn := m.turn
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return dueMsg{turn} })
}

func (m topModel) lookNow() tea.Cmd {
	return func() tea.Msg {
		p, err := m.look(m.ctx)
		return lookedMsg{p, err}
	}
}

// Update implements tea.Model.
func (m topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case secondMsg:
		return m, everySecond()
	case dueMsg:
		if msg.turn == m.turn && !m.paused && !m.looking {
			m.looking = true
			return m, m.lookNow()
		}
	case lookedMsg:
		m.looking = false
		m.looks++
		if m.err = msg.err; msg.err == nil && !m.paused { // the picture of a pause stands still
			m.picture = msg.picture
		}
		if m.looks == m.count {
			return m, tea.Quit
		}
		m.turn++
		return m, m.wait()
	case tea.KeyPressMsg:
		return m.key(msg.String())
	}
	return m, nil
}

func (m topModel) key(key string) (tea.Model, tea.Cmd) {
	switch key {
	case "ctrl+c":
		m.interrupted = true
		return m, tea.Quit
	case "q", "Q":
		return m, tea.Quit
	case "?", "h":
		m.help = !m.help
	case "esc":
		m.help = false
	case "i", "tab":
		if n := len(m.picture.fleet.Issuers); n > 0 {
			m.issuer = (m.issuer + 1) % n
		}
	case "p", "space":
		if m.paused = !m.paused; !m.paused && !m.looking {
			m.looking = true
			return m, m.lookNow()
		}
	case "+", "=":
		return m.pace(1)
	case "-", "_":
		return m.pace(-1)
	}
	return m, nil
}

// pace makes the interval longer or shorter, by steps of topIntervals.
func (m topModel) pace(step int) (tea.Model, tea.Cmd) {
	next := m.interval
	for i := range topIntervals {
		if step > 0 && topIntervals[i] > m.interval {
			next = topIntervals[i]
			break
		}
		if d := topIntervals[len(topIntervals)-1-i]; step < 0 && d < m.interval {
			next = d
			break
		}
	}
	m.interval = next
	if m.paused || m.looking {
		return m, nil
	}
	m.turn++
	return m, m.wait()
}

// View implements tea.Model.
func (m topModel) View() tea.View {
	v := tea.NewView(m.draw())
	v.AltScreen = true
	v.WindowTitle = "pactctl top"
	return v
}

// draw fits the picture to the terminal.
func (m topModel) draw() string {
	t := topView{
		picture: m.picture, zone: m.zone, width: max(m.width, 1), height: max(m.height, 1),
		issuer: m.issuer, live: true, paused: m.paused, help: m.help, interval: m.interval,
	}
	if m.err != nil {
		t.stale, t.err = m.now().Sub(m.picture.at), m.err
	}
	return t.styled()
}
