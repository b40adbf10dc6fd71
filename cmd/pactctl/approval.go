package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pactsigner/pactsigner/agent"
)

// showApproval shows the whole of what is decided (AP-2): nothing is shortened, and
// no character hides.
func (p *profile) showApproval(req agent.ApprovalRequest) {
	p.shown = req.ID
	printApproval(p.app.aside(), req, p.app.redraw)
}

// printApproval writes an approval whole; the message is broken at width columns, and
// not at all if that is 0.
func printApproval(pr *printer, req agent.ApprovalRequest, width int) {
	pr.line("")
	if at := req.SentBefore; !at.IsZero() {
		pr.say(0, "This was sent %s, and its outcome is unknown. If the business got it then, it answers as it did; if not, it carries it out now.", pr.clock(at, toSecond))
	}
	if req.Changed {
		pr.line("This differs from what was approved before.")
	}
	pr.say(0, "To %s, at %s", agent.WrittenOut(req.Business), agent.WrittenOut(req.Destination))
	pr.line("Effect: %s", req.Effect)
	printScopes(pr, "Permissions:", req.Scopes)
	if req.Exceeds {
		printScopes(pr, "The token that goes with it can do more than this needs:", req.TokenScopes)
	}
	pr.line("SHA-256: %s", req.Digest)
	pr.line("Message:")
	n := 0
	lines := agent.WrittenOutLines(req.Message)
	for _, line := range lines {
		n += len(rows(line, columns-2))
		for _, row := range rows(line, width-2) {
			pr.line("  %s", row)
		}
	}
	if strings.Join(lines, "\n") != req.Message {
		pr.say(0, "It has characters that do not show, or many blanks or empty lines; they stand in it in <...>.")
	}
	if n > manyRows {
		printAgain(pr, req)
	}
}

// manyRows is how much of a message moves what stands before it out of sight.
const manyRows = 40

// printAgain writes what a long message has moved out of sight.
func printAgain(pr *printer, req agent.ApprovalRequest) {
	ids := func(scopes []agent.Scope) string {
		var out []string
		for _, s := range scopes {
			out = append(out, agent.WrittenOut(s.ID))
		}
		return strings.Join(out, " ")
	}
	pr.line("")
	pr.say(0, "That message has %s and %s. Once more, what it is about:",
		plural(strings.Count(req.Message, "\n")+1, "line"), plural(utf8.RuneCountInString(req.Message), "character"))
	can := ""
	if req.Exceeds {
		can = ids(req.TokenScopes)
	}
	pr.fields(
		"to", agent.WrittenOut(req.Business),
		"at", agent.WrittenOut(req.Destination),
		"effect", req.Effect.String(),
		"permissions", or(ids(req.Scopes), "none"),
		"its token can", can,
		"approval", req.ID,
		"SHA-256", req.Digest,
	)
}

// requestOf is what was to be decided on, of the record of it.
func requestOf(v agent.ApprovalView) agent.ApprovalRequest {
	return agent.ApprovalRequest{
		ID: v.ID, Business: v.BusinessName, Destination: v.Destination, Message: v.Message, Effect: v.Effect, Scopes: v.Permissions,
		Exceeds: v.Exceeds, TokenScopes: v.TokenPermissions, Digest: v.Digest, Changed: v.Changed, SentBefore: v.SentBefore,
	}
}

// rows breaks a line after every n columns, so that all of it stays indented; n
// below 1 leaves it whole.
func rows(line string, n int) []string {
	if n < 1 {
		return []string{line}
	}
	var out []string
	for {
		row, _ := fit(line, max(n, 2)) // the widest character has two
		out = append(out, row)
		if line = line[len(row):]; line == "" {
			return out
		}
	}
}

func printScopes(p *printer, title string, scopes []agent.Scope) {
	if len(scopes) == 0 {
		p.line("%s none", title)
		return
	}
	p.line("%s", title)
	wide := 0
	for _, s := range scopes {
		wide = max(wide, len([]rune(agent.WrittenOut(s.ID))))
	}
	for _, s := range scopes {
		p.labelled(fmt.Sprintf("  %-*s  ", min(wide, columns/2), agent.WrittenOut(s.ID)), agent.WrittenOut(or(s.Description, "-"))+cutShort(s))
	}
}

// cutShort says that a description is longer than what is kept of it.
func cutShort(s agent.Scope) string {
	if s.Cut == nil {
		return ""
	}
	return " … (the card says more)"
}
