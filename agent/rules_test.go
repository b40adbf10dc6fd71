package agent_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

var updateRules = flag.Bool("update", false, "rewrite the tests column of RULES.md")

// rulePackages are where tests cite rules: agent's own, what it is built on, and
// what is built on it.
var rulePackages = map[string]string{
	".": "", "egress": "egress.", "sqlite": "sqlite.", "control": "control.", "assistant": "assistant.",
	"../cmd/pactctl": "pactctl.", "../test/service": "service.",
	"../jwks": "jwks.", "../rotation": "rotation.", "../internal/config": "config.", "../signer": "signer.",
}

var (
	// A citation is one rule or a range of them: DA-3, DA-3..DA-6, UR-1…4.
	citation = regexp.MustCompile(`\b(SG|ID|PR|UR|TR|DI|MD|PO|AD|AP|DA|GR|CV|EV|RS|RD|CL|CP|S18)-(\d+)(?:\s?(?:\.\.\.?|…|–)\s?(?:([A-Z][A-Z0-9]+)-)?(\d+))?`)
	ruleRow  = regexp.MustCompile(`^\| ((?:SG|ID|PR|UR|TR|DI|MD|PO|AD|AP|DA|GR|CV|EV|RS|RD|CL|CP|S18)-\d+) \| (.*) \| (.*) \|$`)
)

// cited lists the rules that a comment cites.
func cited(text string) []string {
	var out []string
	for _, m := range citation.FindAllStringSubmatch(text, -1) {
		first, _ := strconv.Atoi(m[2])
		last := first
		if m[4] != "" && (m[3] == "" || m[3] == m[1]) {
			last, _ = strconv.Atoi(m[4])
		}
		for n := first; n <= last; n++ {
			out = append(out, fmt.Sprintf("%s-%d", m[1], n))
		}
	}
	return out
}

// citations maps each rule to the tests that cite it, in their comment or in one
// inside them.
func citations(t *testing.T) map[string][]string {
	t.Helper()
	tests := map[string]map[string]bool{}
	for dir, prefix := range rulePackages {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no tests in %s: %v", dir, err)
		}
		for _, path := range files {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range file.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") && !strings.HasPrefix(fn.Name.Name, "Fuzz") {
					continue
				}
				for _, group := range file.Comments {
					if group != fn.Doc && (group.Pos() < fn.Pos() || group.End() > fn.End()) {
						continue
					}
					for _, rule := range cited(group.Text()) {
						if tests[rule] == nil {
							tests[rule] = map[string]bool{}
						}
						tests[rule][prefix+fn.Name.Name] = true
					}
				}
			}
		}
	}
	out := map[string][]string{}
	for rule, names := range tests {
		out[rule] = slices.Sorted(maps.Keys(names))
	}
	return out
}

// TestRules holds RULES.md to the tests: each rule is cited by one at least, no
// test cites a rule that there is not, and the table says so.
func TestRules(t *testing.T) {
	const path = "RULES.md"
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	by := citations(t)
	known, last := map[string]bool{}, map[string]int{}
	var out bytes.Buffer
	for line := range strings.Lines(string(old)) {
		m := ruleRow.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			out.WriteString(line)
			continue
		}
		rule, statement := m[1], m[2]
		family, number, _ := strings.Cut(rule, "-")
		if n, _ := strconv.Atoi(number); n != last[family]+1 {
			t.Errorf("%s follows %s-%d", rule, family, last[family])
		} else {
			last[family] = n
		}
		known[rule] = true
		if n := utf8.RuneCountInString(statement); n == 0 || n > 100 {
			t.Errorf("%s: a statement of %d characters", rule, n)
		}
		if len(by[rule]) == 0 {
			t.Errorf("%s: no test cites it", rule)
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", rule, statement, strings.Join(by[rule], ", "))
	}
	if len(known) == 0 {
		t.Fatal("RULES.md has no rules")
	}
	for _, rule := range slices.Sorted(maps.Keys(by)) {
		if !known[rule] {
			t.Errorf("%s cite %s, which RULES.md does not have", strings.Join(by[rule], ", "), rule)
		}
	}
	if bytes.Equal(out.Bytes(), old) {
		return
	}
	if !*updateRules {
		t.Fatal("RULES.md is out of date: go test ./agent/ -run TestRules -update")
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestCited covers how rules may be cited.
func TestCited(t *testing.T) {
	for text, want := range map[string]string{
		"DA-3, DA-5: x": "DA-3 DA-5", "DA-3..DA-6": "DA-3 DA-4 DA-5 DA-6", "UR-1…4": "UR-1 UR-2 UR-3 UR-4", "(AP-1..2)": "AP-1 AP-2",
		"TR-9–TR-10": "TR-9 TR-10", "S18-2": "S18-2", "section 18, ES256 and P-256, RFC-3, XSG-1": "", "EV-1.": "EV-1", "EV-4..EV-": "EV-4", "GR-5": "GR-5",
		"AD-1..DA-3": "AD-1",
	} {
		if got := strings.Join(cited(text), " "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
