package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

// screen narrates a demo to a person: one line for each step, in 80 columns.
type screen struct {
	app *app
	err error

	name  string   // of the step under way
	notes []string // what it wants to say beside its line
}

const (
	screenName   = 8  // columns of a step's name
	screenDetail = 58 // and of what it proved
)

// quiet: the result is for a program.
func (s *screen) quiet() bool { return s.app.output == "json" }

// terminal: lines can be written over.
func (s *screen) terminal() bool { return s.app.width > 0 && !s.quiet() }

// write prints by a printer of its own, unless the demo is quiet.
func (s *screen) write(text func(p *printer)) {
	if s.quiet() || s.err != nil {
		return
	}
	p := s.app.printer(s.app.stdout)
	text(p)
	s.err = p.err
}

// raw writes control sequences, on a terminal only.
func (s *screen) raw(format string, args ...any) {
	if s.terminal() && s.err == nil {
		_, s.err = fmt.Fprintf(s.app.stdout, format, args...)
	}
}

func (s *screen) intro() {
	s.write(func(p *printer) {
		p.line("A signer, a business and a personal agent, over real sockets of this machine.")
		p.line("Every duration of theirs is divided by %d: a minute takes a second.", demoScale)
		p.line("")
	})
}

// begin shows that a step is under way; busy says what it waits for.
func (s *screen) begin(name string) {
	s.name, s.notes = name, nil
	s.busy("…")
}

func (s *screen) busy(what string) {
	s.raw("\r\x1b[K· %-*s  %s", screenName, s.name, clean(what))
}

// clear takes the line of the step under way off the screen.
func (s *screen) clear() { s.raw("\r\x1b[K") }

// note is a line below that of the step under way.
func (s *screen) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// end is the line of a step.
func (s *screen) end(name, detail string, took time.Duration, ok bool) {
	s.clear()
	mark, indent := "ok  ", "     "
	switch {
	case s.terminal() && ok:
		mark, indent = "✓", "    "
	case s.terminal():
		mark, indent = "✗", "    "
	case !ok:
		mark = "FAIL"
	}
	s.write(func(p *printer) {
		if !ok {
			p.line("%s %-*s  %-*s %5.2fs", mark, screenName, name, screenDetail, "not proved", took.Seconds())
			p.paragraph(detail, len([]rune(indent)))
			return
		}
		p.line("%s %-*s  %-*s %5.2fs", mark, screenName, name, screenDetail, detail, took.Seconds())
		for _, n := range s.notes {
			p.line("%s%s", indent, p.text(n, len(indent)))
		}
	})
}

// listing lists the receipts, oldest first, and what each is worth.
func (s *screen) listing(receipts []agent.ReceiptView, verdicts []receiptLine) {
	s.write(func(p *printer) {
		p.line("")
		if len(receipts) == 0 {
			return
		}
		rows := make([][]string, len(receipts))
		for i, r := range receipts {
			var did []string
			for _, action := range r.Actions {
				did = append(did, action.Tool)
			}
			rows[i] = []string{r.ID, string(verdicts[i].Verdict), or(strings.Join(r.ScopesUsed, " "), "-"), or(strings.Join(did, " "), "-")}
		}
		p.table([]string{"RECEIPT", "VERDICT", "SCOPES USED", "ACTIONS"}, rows)
		p.line("")
	})
}

// summary says that all is proved, and what to do next.
func (s *screen) summary(proofs, steps, receipts int, took time.Duration, removed string) {
	s.write(func(p *printer) {
		p.line("%d proofs in %d steps, %s verified, in %.1fs.",
			proofs, steps, plural(receipts, "receipt"), took.Seconds())
		p.line("%s", removed)
		p.line("")
		p.line("Next:")
		p.fields(
			"  signer serve", "a signer that stays",
			"  pactctl sandbox", "a business to try it against; says how to go on",
			"  pactctl demo --browser", "the same, and you sign in",
			"  pactctl agent serve", "an agent that stays; pactctl demo --help says how to prove it",
		)
	})
}
