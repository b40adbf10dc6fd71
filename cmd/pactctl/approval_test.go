package main

import (
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
)

// AP-2: what is decided on is shown whole, on any terminal and off one.
func TestApprovalIsWhole(t *testing.T) {
	long := strings.Repeat("Rebook me, and do it at once, then say so. ", 93)[:3998] + " x"
	words := "0123456789" + strings.Repeat("y", 300)
	for name, width := range map[string]int{"40 columns": 40, "80 columns": 80, "no terminal": 0} {
		t.Run(name, func(t *testing.T) {
			a, stdout, stderr := testApp("", width > 0)
			a.redraw, a.width = width, width
			p := &profile{app: a}
			p.showApproval(agent.ApprovalRequest{
				ID: "approval-1", Business: "Larkline Air", Destination: "https://provider.example.com/a2a/01M8F2XW4QK7Z3V9TB5RC0HARK/message:send",
				Message: long, Effect: agent.EffectChange, Digest: strings.Repeat("0123456789abcdef", 4),
				Scopes: []agent.Scope{{ID: "flights:rebook", Description: "Move a booking to another flight " + words}},
			})
			got := stderr.String()
			_, message, _ := strings.Cut(got, "Message:\n")
			message, again, _ := strings.Cut(message, "\n\n")
			message += "\n"
			back := ""
			for line := range strings.Lines(message) {
				row, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "  ")
				if n := len(row) + 2; !ok || width > 0 && n > width {
					t.Errorf("a row of %d columns: %q", n, line)
				}
				if width > 0 && len(back)+width-2 < len(long) { // blanks at a row's end do not show
					row += strings.Repeat(" ", width-2-len(row))
				}
				back += row
			}
			if back != long {
				t.Errorf("the message is not shown whole: %d characters of %d\n%s", len(back), len(long), message)
			}
			for _, part := range []string{"1 line and 4000 characters", "Larkline Air", "/message:send", "change", "flights:rebook", "approval-1", strings.Repeat("0123456789abcdef", 4)} {
				if !strings.Contains(strings.Join(strings.Fields(again), " "), part) {
					t.Errorf("after the message: no %q\n%s", part, again)
				}
			}
			flat := strings.Join(strings.Fields(got), " ")
			for _, part := range []string{
				"To Larkline Air, at https://provider.example.com/a2a/01M8F2XW4QK7Z3V9TB5RC0HARK/message:send", "Effect: change",
				"flights:rebook Move a booking to another flight " + words, "SHA-256: " + strings.Repeat("0123456789abcdef", 4),
			} {
				if !strings.Contains(flat, part) {
					t.Errorf("%q is not shown:\n%s", part, got)
				}
			}
			if strings.Contains(got, "…") || stdout.Len() > 0 {
				t.Errorf("shortened, or on stdout:\n%s%s", got, stdout)
			}
		})
	}
}

// AP-2: no character of a message hides, steers the terminal or turns others round.
func TestApprovalHidesNothing(t *testing.T) {
	a, _, stderr := testApp("", true)
	p := &profile{app: a}
	p.showApproval(agent.ApprovalRequest{
		Message: "pay 1\u202e00 now\x1b[2J\ta\rb\u200bc\u00a0d\u3164e\u2028f\ng\ufe0fh\u180bi\U000e0100j\u034fk\u17b4l\u2800m\U000e0041n\n" +
			"o\u0300\u0301\u0302\u0303\u0334\u0489p\u0300\nnext", Effect: agent.EffectChange,
		Scopes: []agent.Scope{{ID: "pay\u2066", Description: "see\u202d more"}},
	})
	for _, want := range []string{
		"\n  pay 1<U+202E>00 now<U+001B>[2J<U+0009>a<U+000D>b<U+200B>c<U+00A0>d<U+3164>e<U+2028>f\n" +
			"  g<U+FE0F>h<U+180B>i<U+E0100>j<U+034F>k<U+17B4>l<U+2800>m<U+E0041>n\n" +
			"  o\u0300\u0301\u0302\u0303<U+0334><U+0489>p\u0300\n  next\n",
		"\n  pay<U+2066>  see<U+202D> more\n",
		"\nIt has characters that do not show, or many blanks or empty lines; they stand in\nit in <...>.\n",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("%q is missing in\n%s", want, stderr)
		}
	}
	a, _, stderr = testApp("", true)
	(&profile{app: a}).showApproval(agent.ApprovalRequest{Message: "Größe 42, 航空 é?"})
	if got := stderr.String(); !strings.HasSuffix(got, "\nMessage:\n  Größe 42, 航空 é?\n") {
		t.Errorf("got %q", got)
	}
}

// AP-2: nothing in a message moves the rest of it out of sight, or what stands before it.
func TestApprovalStaysInSight(t *testing.T) {
	a, _, stderr := testApp("", true)
	p := &profile{app: a}
	p.showApproval(agent.ApprovalRequest{
		Message: "Cancel all my flights." + strings.Repeat("\n", 3900) + "Rebook me\n\n\nonto" + strings.Repeat(" ", 2000) + "LK 318" + strings.Repeat("\t", 21) + "\n" + strings.Repeat(" \n", 3),
	})
	const want = "\n  Cancel all my flights.\n  <3899 empty lines>\n  Rebook me\n\n\n  onto<2000 blanks>LK 318<21 x U+0009>\n  <4 empty lines>\nIt has characters"
	if got := stderr.String(); !strings.Contains(got, want) || strings.Contains(got, "Once more") {
		t.Errorf("got %q", got)
	}
	a, _, stderr = testApp("", true)
	(&profile{app: a}).showApproval(agent.ApprovalRequest{ID: "approval-1", Business: "Larkline Air", Effect: agent.EffectChange, Message: strings.Repeat("x\n", 41)})
	if _, again, _ := strings.Cut(stderr.String(), "42 lines and 82 characters"); !strings.Contains(again, "Larkline Air") || !strings.Contains(again, "none\n") {
		t.Errorf("got %q", stderr)
	}
}
