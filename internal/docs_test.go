package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every claim of the threat model names tests, and each of them exists.
func TestSecurityPage(t *testing.T) {
	page := read(t, "../docs/security.md")
	claims, found := 0, 0
	before, _, ok := strings.Cut(page, "\n## Out of scope")
	if !ok {
		t.Fatal("the page does not say what is out of scope")
	}
	tests := testsIn{}
	for _, item := range regexp.MustCompile(`(?m)^- \*\*`).Split(before, -1)[1:] {
		claim, _, _ := strings.Cut(item, "**")
		item, _, _ = strings.Cut(item, "\n\n")
		_, names, ok := strings.Cut(item, "\n  Tests: ")
		named := namedTest.FindAllStringSubmatch(names, -1)
		if claims++; !ok || len(named) == 0 {
			t.Errorf("no test is named for: %s", claim)
		}
		if len(named) != strings.Count(names, "`")/2 {
			t.Errorf("not each of these is a test, written as package.Test: %s", names)
		}
	}
	for _, m := range namedTest.FindAllStringSubmatch(page, -1) {
		if found++; !tests.has(t, m[1], m[2]) {
			t.Errorf("there is no test %s in %s", m[2], m[1])
		}
	}
	if claims < 50 || found < 100 {
		t.Errorf("only %d claims and %d tests were found", claims, found)
	}
}

// What the pages link to in the repository is there, and so are the headings.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, "../README.md", "../CONTRIBUTING.md", "../SECURITY.md") {
		for _, m := range regexp.MustCompile(`\]\(([^)#:\s]*)(#[^)\s]*)?\)`).FindAllStringSubmatch(read(t, page), -1) {
			found++
			file := page
			if m[1] != "" {
				file = filepath.Join(filepath.Dir(page), filepath.FromSlash(m[1]))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if m[2] != "" && !slices.Contains(anchors(read(t, file)), m[2]) {
				t.Errorf("%s links to %s%s, which is no heading", page, m[1], m[2])
			}
		}
	}
	if found < 60 {
		t.Errorf("only %d links were found", found)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors are the links to a page's headings.
func anchors(page string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		slug := strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")
		all = append(all, "#"+regexp.MustCompile(`[^\p{L}\p{N}_-]`).ReplaceAllString(slug, ""))
	}
	return all
}

// namedTest is a test as the page writes it: its package's folder, and its name.
var namedTest = regexp.MustCompile("`([a-z][a-z0-9/]*)\\.((?:Test|Fuzz)[A-Z]\\w*)`")

// testsIn are the names of the tests in folders that were read.
type testsIn map[string]map[string]bool

func (in testsIn) has(t *testing.T, dir, name string) bool {
	t.Helper()
	if in[dir] == nil {
		in[dir] = map[string]bool{}
		files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(dir), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
					in[dir][f.Name.Name] = true
				}
			}
		}
	}
	return in[dir][name]
}
