package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// print writes a command's result to stdout: v as indented JSON with
// --output json, else what text writes. v is a Go value with JSON tags or what
// messageJSON returns; its shape is a promise to scripts.
func (a *app) print(v any, text func(p *printer)) error {
	if a.output == "json" {
		b, err := json.Marshal(v, jsontext.WithIndent("  "), json.Deterministic(true))
		if err != nil {
			return fmt.Errorf("encode the result: %w", err)
		}
		_, err = fmt.Fprintf(a.stdout, "%s\n", escaped(b))
		return err
	}
	p := a.printer(a.stdout)
	text(p)
	return p.err
}

// escaped is a JSON document with every character escaped that would steer a
// terminal, or turn what is read there around.
func escaped(doc []byte) []byte {
	out := make([]byte, 0, len(doc))
	for _, r := range string(doc) { // in a document other than blanks they are in strings alone
		if r == '\n' || unicode.IsPrint(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, u := range utf16.AppendRune(nil, r) {
			out = fmt.Appendf(out, `\u%04x`, u)
		}
	}
	return out
}

// note writes a sentence for people to stderr, where it does not mix with results.
func (a *app) note(format string, args ...any) {
	a.aside().say(0, format, args...)
}

// aside is a printer to stderr: it breaks lines if a person reads there, and shortens
// nothing.
func (a *app) aside() *printer {
	p := a.printer(a.stderr)
	p.width = 0
	if a.person || a.redraw > 0 {
		p.width = columns
	}
	return p
}

// printer writes text for people. The first error stays in err.
type printer struct {
	w     io.Writer
	now   time.Time
	zone  *time.Location
	width int // 0: not a terminal, shorten nothing
	hints hints
	err   error
}

func (a *app) printer(w io.Writer) *printer {
	return &printer{w: w, now: a.now(), zone: a.zone, width: a.width, hints: a.hints}
}

// line writes one line. Control characters in it, which may come from others,
// are replaced. The format, which is ours, gets the flags of its commands.
func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, strings.TrimRight(clean(strings.ReplaceAll(fmt.Sprintf(p.hints.format(format), args...), unbroken, " ")), " "))
	}
}

// columns is what lines for people are broken at.
const columns = 80

// say writes a sentence, on a terminal broken at 80 columns between words, all
// lines indented alike. It writes nothing if there are no words.
func (p *printer) say(indent int, format string, args ...any) {
	if s := fmt.Sprintf(p.hints.format(format), args...); s != "" {
		p.labelled(strings.Repeat(" ", indent), s)
	}
}

// labelled writes a value after a label, on a terminal broken as in hanging.
func (p *printer) labelled(label, value string) {
	if p.width == 0 {
		p.line("%s%s", label, value)
		return
	}
	p.hanging(label, value)
}

// table writes rows under headings, in columns two spaces apart. On a terminal
// the last cell of a row is shortened to fit; cells before it never are: if there
// is no room for them each row becomes labelled lines.
func (p *printer) table(head []string, rows [][]string) {
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(clean(cell))))
		}
	}
	left := 0
	for _, w := range widths[:len(widths)-1] {
		left += w + 2
	}
	if p.width > 0 && p.width < left+min(widths[len(widths)-1], shortest) {
		for n, row := range rows {
			if n > 0 {
				p.line("")
			}
			var pairs []string
			for i, cell := range row {
				pairs = append(pairs, strings.ToLower(head[i]), cell)
			}
			p.fields(pairs...)
		}
		return
	}
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	write := func(row []string) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = clean(cell)
		}
		if last := len(cells) - 1; p.width > 0 {
			cells[last] = shorten(cells[last], p.width-left)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t")) // into memory: cannot fail
	}
	write(head)
	for _, row := range rows {
		write(row)
	}
	tw.Flush()
	for line := range strings.Lines(b.String()) {
		p.line("%s", strings.TrimSuffix(line, "\n"))
	}
}

// shortest is the least that a table shortens a cell to.
const shortest = 20

// fields writes label and value pairs, one a line, on a terminal more if it is too
// long; pairs with an empty value are left out.
func (p *printer) fields(pairs ...string) {
	wide := 0
	for i := 0; i < len(pairs); i += 2 {
		wide = max(wide, len(pairs[i]))
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			p.labelled(fmt.Sprintf("%-*s  ", wide, pairs[i]), pairs[i+1])
		}
	}
}

// text shortens free text to what is left of the line after indent columns.
func (p *printer) text(s string, indent int) string {
	if p.width > indent+8 {
		return shorten(s, p.width-indent)
	}
	return s
}

// The layouts of times for people. Programs get RFC 3339.
const (
	toMinute = "2006-01-02 15:04"
	toSecond = "2006-01-02 15:04:05"
	toMilli  = "2006-01-02 15:04:05.000"
	ofDay    = "15:04:05"
)

// clock is a local time with the zone's abbreviation or offset. "" if t is zero.
func (p *printer) clock(t time.Time, layout string) string {
	if t.IsZero() {
		return ""
	}
	return t.In(p.zone).Format(layout + " MST")
}

// at is a time as people read it: local, with how far away it is. "" if t is zero.
func (p *printer) at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s (%s)", p.clock(t, toSecond), p.ago(t))
}

// ago is how far away a time is: "3m ago", "in 27d". "" if t is zero.
func (p *printer) ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := p.now.Sub(t).Round(time.Second)
	switch {
	case d == 0:
		return "now"
	case d < 0:
		return "in " + span(-d)
	}
	return span(d) + " ago"
}

// span is a duration in its largest sensible unit, rounded to the nearest whole.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d.Round(time.Second) < time.Minute:
		return fmt.Sprintf("%ds", d.Round(time.Second)/time.Second)
	case d.Round(time.Minute) < time.Hour:
		return fmt.Sprintf("%dm", d.Round(time.Minute)/time.Minute)
	case d.Round(time.Hour) < 2*day:
		return fmt.Sprintf("%dh", d.Round(time.Hour)/time.Hour)
	}
	return fmt.Sprintf("%dd", d.Round(day)/day)
}

// or is s, or other if s is empty.
func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// plural is "1 thing" or "3 things".
func plural[N int | uint32 | uint64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// clean replaces characters that would steer a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case !unicode.IsPrint(r):
			return '\uFFFD'
		}
		return r
	}, s)
}

// shorten cuts s to n characters, the last of which then is an ellipsis.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// paragraph writes free text after indent spaces, broken at 80 columns between
// words.
func (p *printer) paragraph(s string, indent int) {
	p.hanging(strings.Repeat(" ", indent), s)
}

// hanging writes free text after a label, broken as in paragraph, all lines as far
// in as the first.
func (p *printer) hanging(label, s string) {
	indent := len([]rune(label))
	for _, row := range wrap(s, columns-indent) {
		p.line("%s%s", label, row)
		label = strings.Repeat(" ", indent)
	}
}

// wrap breaks text between words into rows of at most n characters, or one word.
func wrap(s string, n int) []string {
	var rows []string
	row := ""
	for _, word := range strings.Fields(s) {
		switch {
		case row == "":
			row = word
		case len([]rune(row))+1+len([]rune(word)) > n:
			rows, row = append(rows, row), word
		default:
			row += " " + word
		}
	}
	if row != "" {
		rows = append(rows, row)
	}
	return rows
}

// raw writes one line exactly as it is. It is for secrets, which are not to be
// altered.
func (p *printer) raw(s string) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, s)
	}
}
