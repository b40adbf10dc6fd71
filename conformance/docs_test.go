package conformance

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table of docs/conformance.md")

const (
	docsPage  = "../docs/conformance.md"
	docsBegin = "<!-- checks: go test ./conformance -run TestDocs -update -->\n"
	docsEnd   = "<!-- end of checks -->\n"
)

// The page's table is what the suite checks.
func TestDocs(t *testing.T) {
	var table strings.Builder
	for _, s := range sections() {
		fmt.Fprintf(&table, "\n### %s (`%s`)\n\n| Check | What must hold | Where the protocol says so |\n| --- | --- | --- |\n", s.Title, s.Name)
		for _, c := range s.checks {
			slow := ""
			if c.Slow {
				slow = " (`--slow`)"
			}
			fmt.Fprintf(&table, "| `%s`%s | %s | %s |\n", c.ID, slow, c.Requirement, c.Source)
		}
	}
	table.WriteString("\n")
	page, err := os.ReadFile(docsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), docsBegin)
	told, after, ok2 := strings.Cut(rest, docsEnd)
	if !ok || !ok2 {
		t.Fatalf("%s lacks %q or %q", docsPage, docsBegin, docsEnd)
	}
	if told == table.String() {
		return
	}
	if !*update {
		t.Fatal("docs/conformance.md is out of date: go test ./conformance -run TestDocs -update")
	}
	if err := os.WriteFile(docsPage, []byte(before+docsBegin+table.String()+docsEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
