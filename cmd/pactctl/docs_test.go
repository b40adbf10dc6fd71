package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const agentPage = "../../docs/agent.md"

// Every status, reason, verdict, issue and code that package agent, or its control plane, can answer
// with is in a table of docs/agent.md, and nothing else is.
func TestDocsCodes(t *testing.T) {
	page, err := os.ReadFile(agentPage)
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_N]+)` \\| ").FindAllStringSubmatch(string(page), -1) {
		if told[m[1]] && !slices.Contains(twofold, m[1]) {
			t.Errorf("%s is told twice", m[1])
		}
		told[m[1]] = true
	}
	codes := codesIn(t, "../../agent")
	codes = append(codes, codesIn(t, "../../agent/egress")...)
	codes = append(codes, codesIn(t, "../../agent/control")...)
	if len(codes) < 100 {
		t.Errorf("only %d codes were found", len(codes))
	}
	for _, c := range codes {
		if !told[c] {
			t.Errorf("%s is not told", c)
		}
		told[c] = true
	}
	for c := range told {
		if !slices.Contains(codes, c) && c != "http_N" {
			t.Errorf("%s is told, and no code of package agent", c)
		}
	}
}

// twofold are codes of two kinds, such as a status and a reason.
var twofold = []string{"local_approval_required", "expired", "secret_missing"}

// codesIn finds the values of constants named Reason…, Issue…, Status…, Verdict… or of type Code,
// and of outcomes that are spelt where they are made.
func codesIn(t *testing.T, dir string) (codes []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	add := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && s != "" {
				codes = append(codes, s)
			}
		}
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				kind, _ := n.Type.(*ast.Ident)
				for i, name := range n.Names {
					if i < len(n.Values) && (coded.MatchString(name.Name) || kind != nil && (kind.Name == "Code" || kind.Name == "Reason")) {
						add(n.Values[i])
					}
				}
			case *ast.AssignStmt: // on the way to an outcome
				if name, ok := n.Lhs[0].(*ast.Ident); ok && name.Name == "reason" {
					add(n.Rhs[0])
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Reason" {
					add(n.Value)
				}
			}
			return true
		})
	}
	return codes
}

var coded = regexp.MustCompile(`^(Reason|reason|Issue|Status|Verdict)[A-Z]`)

// Every variable of the environment that pactctl reads is told.
func TestDocsVariables(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	pages := ""
	for _, name := range []string{agentPage, "../../docs/operations.md"} {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pages += string(page)
	}
	found := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`os\.Getenv\("(PACT_\w+)"\)`).FindAllStringSubmatch(string(source), -1) {
			if found++; !strings.Contains(pages, "`"+m[1]+"`") {
				t.Errorf("%s reads %s, which is not told", name, m[1])
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d were found", found)
	}
}

// Every command that the pages name is one, and so is every flag that goes with it.
func TestDocsCommands(t *testing.T) {
	a, _, _ := testApp("", false)
	root, found := newRootCmd(a), 0
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(pages, "../../README.md", "../../deploy/systemd/pactctl-agent.service") {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(page), "\\\n", " ") // a command that goes on in the next line
		for _, m := range regexp.MustCompile(`(?m)(?:\x60|^\s*|\$ |\$\(|-- /|=%h/\.local/bin/)pactctl ([a-z][^\x60\n|)]*)`).FindAllStringSubmatch(text, -1) {
			found++
			line, _, _ := strings.Cut(m[1], " #")
			words := strings.Fields(line)
			n := slices.IndexFunc(words, func(w string) bool { return !regexp.MustCompile(`^[a-z][a-z-]*(\|[a-z]+)?$`).MatchString(w) })
			if n < 0 {
				n = len(words)
			}
			path := slices.Clone(words[:n])
			path[n-1], _, _ = strings.Cut(path[n-1], "|") // policy on|off
			cmd, rest, err := root.Find(path)
			if err != nil || len(rest) > 0 && cmd.HasSubCommands() {
				t.Errorf("%s: pactctl %s is no command", name, strings.Join(path, " "))
				continue
			}
			for _, w := range words[n:] {
				flag, ok := strings.CutPrefix(w, "--")
				if flag, _, _ = strings.Cut(strings.TrimRight(flag, ",.;)"), "="); ok && cmd.InheritedFlags().Lookup(flag) == nil && cmd.Flags().Lookup(flag) == nil { // the first has the second know its own
					t.Errorf("%s: %s has no --%s", name, cmd.CommandPath(), flag)
				}
			}
		}
	}
	if found < 60 {
		t.Errorf("only %d commands were found", found)
	}
}

// The user's service starts the program where the page has it installed.
func TestDocsService(t *testing.T) {
	page, err := os.ReadFile("../../docs/control-plane.md")
	if err != nil {
		t.Fatal(err)
	}
	unit, err := os.ReadFile("../../deploy/systemd/pactctl-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	starts := regexp.MustCompile(`(?m)^ExecStart=%h/(\S+) agent serve$`).FindStringSubmatch(string(unit))
	if starts == nil || !strings.Contains(string(page), "/bin/pactctl ~/"+starts[1]+"\n") {
		t.Errorf("the unit starts %q, and the page does not install that", starts)
	}
}
