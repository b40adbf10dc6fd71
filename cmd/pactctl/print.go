package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

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
		_, err = fmt.Fprintf(a.stdout, "%s\n", b)
		return err
	}
	p := a.printer(a.stdout)
	text(p)
	return p.err
}

// note writes a line for people to stderr, where it does not mix with results.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.stderr, clean(fmt.Sprintf(format, args...)))
}

// printer writes text for people. The first error stays in err.
type printer struct {
	w     io.Writer
	now   time.Time
	zone  *time.Location
	width int // 0: not a terminal, shorten nothing
	err   error
}

func (a *app) printer(w io.Writer) *printer {
	return &printer{w: w, now: a.now(), zone: a.zone, width: a.width}
}

// line writes one line. Control characters in it, which may come from others,
// are replaced.
func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, strings.TrimRight(clean(fmt.Sprintf(format, args...)), " "))
	}
}

// table writes rows under headings, in columns two spaces apart. On a terminal
// the last cell of a row is shortened to fit; cells before it never are.
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
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	write := func(row []string) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = clean(cell)
		}
		if last := len(cells) - 1; p.width > left+8 {
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

// fields writes label and value pairs, one a line; pairs with an empty value
// are left out.
func (p *printer) fields(pairs ...string) {
	wide := 0
	for i := 0; i < len(pairs); i += 2 {
		wide = max(wide, len(pairs[i]))
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			p.line("%-*s  %s", wide, pairs[i], pairs[i+1])
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

// at is a time as people read it: local, with how far away it is. "" if t is zero.
func (p *printer) at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s (%s)", t.In(p.zone).Format("2006-01-02 15:04:05"), p.ago(t))
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

// span is a duration in its largest sensible unit.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
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
	pad, row := label, ""
	for _, word := range strings.Fields(s) {
		if row != "" && indent+len([]rune(row))+1+len([]rune(word)) > 80 {
			p.line("%s%s", pad, row)
			pad, row = strings.Repeat(" ", indent), ""
		}
		if row != "" {
			row += " "
		}
		row += word
	}
	if row != "" {
		p.line("%s%s", pad, row)
	}
}

// raw writes one line exactly as it is. It is for secrets, which are not to be
// altered.
func (p *printer) raw(s string) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, s)
	}
}
