package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the list of keys in docs/configuration.md")

const (
	docsPage  = "../../docs/configuration.md"
	docsBegin = "<!-- keys: go test ./internal/config -run TestDocs -update -->\n"
	docsEnd   = "<!-- end of keys -->\n"
	docsWidth = 132
)

// The page's list of keys is what the types say, with the defaults as they are.
func TestDocs(t *testing.T) {
	b := readBook(t)
	var list strings.Builder
	b.section(&list, "", nil, reflect.TypeFor[Config]())
	if !reflect.DeepEqual(b.told, Keys()) {
		for key := range Keys() {
			if _, ok := b.told[key]; !ok {
				t.Errorf("%s is not told", key)
			}
		}
		t.Fatal("what is told and what can be set differ")
	}
	for flag, key := range b.flags {
		if _, ok := b.told[key]; !ok {
			t.Errorf("--%s sets %s, which is no key", flag, key)
		}
	}
	page := readPage(t)
	before, rest, ok := strings.Cut(page, docsBegin)
	told, after, ok2 := strings.Cut(rest, docsEnd)
	if !ok || !ok2 {
		t.Fatalf("%s lacks %q or %q", docsPage, docsBegin, docsEnd)
	}
	keys := regexp.MustCompile("\n{3,}").ReplaceAllString(list.String(), "\n\n")
	if told == keys {
		return
	}
	if !*update {
		t.Fatal("docs/configuration.md is out of date: go test ./internal/config -run TestDocs -update")
	}
	if err := os.WriteFile(docsPage, []byte(before+docsBegin+keys+docsEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Each of the page's examples is a configuration that a signer takes.
func TestDocsExamples(t *testing.T) {
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readPage(t), -1)
	if len(examples) < 5 {
		t.Fatalf("only %d examples were found", len(examples))
	}
	for _, e := range examples {
		c, err := Load(Source{File: write(t, e[1])})
		if err != nil {
			t.Errorf("%v\n%s", err, e[1])
			continue
		}
		if reflect.DeepEqual(c, complete(t)) {
			t.Errorf("it changes nothing:\n%s", e[1])
		}
	}
}

func complete(t *testing.T) Config {
	t.Helper()
	c, err := Load(Source{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func readPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(docsPage)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// book is what the list of keys is made of.
type book struct {
	t     *testing.T
	doc   map[string]map[string]string // by type and field: its comment
	flags map[string]string            // the key by the flag
	told  map[string]string            // the variable by the key, as Keys has it
}

func readBook(t *testing.T) *book {
	t.Helper()
	b := &book{t: t, doc: map[string]map[string]string{}, flags: map[string]string{}, told: map[string]string{}}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, "../../cmd/signer/config.go") {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok && file.Name.Name == "config" {
					b.doc[n.Name.Name] = comments(s)
				}
			case *ast.ValueSpec:
				if n.Names[0].Name == "namedFlags" {
					b.readFlags(n.Values[0].(*ast.CompositeLit))
				}
			}
			return true
		})
	}
	if len(b.flags) < 10 {
		t.Fatalf("only %d flags were found", len(b.flags))
	}
	return b
}

// comments are the fields' comments by name. One that tells of two fields, such as
// certificate and key, is that of both.
func comments(s *ast.StructType) map[string]string {
	found, last := map[string]string{}, ""
	for _, f := range s.Fields.List {
		if f.Doc != nil {
			last = strings.Join(strings.Fields(f.Doc.Text()), " ")
		}
		found[f.Names[0].Name] = last
	}
	return found
}

func (b *book) readFlags(list *ast.CompositeLit) {
	for _, item := range list.Elts {
		is := map[string]string{}
		for _, e := range item.(*ast.CompositeLit).Elts {
			kv := e.(*ast.KeyValueExpr)
			if text, ok := kv.Value.(*ast.BasicLit); ok {
				is[kv.Key.(*ast.Ident).Name], _ = strconv.Unquote(text.Value)
			}
		}
		b.flags[is["name"]] = is["key"]
	}
}

// section writes a type's own keys, then a section for each part below it. The
// parts of one kind, such as the four listeners, are told together; names are
// theirs.
func (b *book) section(out *strings.Builder, path string, names []string, typ reflect.Type) {
	var parts []reflect.StructField
	for f := range typ.Fields() {
		if part(f.Type) != nil {
			parts = append(parts, f)
			continue
		}
		b.key(out, join(path, f.Tag.Get("yaml")), names, typ, f)
	}
	for len(parts) > 0 {
		first := parts[0]
		other := func(f reflect.StructField) bool { return f.Type != first.Type }
		same := slices.DeleteFunc(slices.Clone(parts), other)
		parts = slices.DeleteFunc(parts, func(f reflect.StructField) bool { return !other(f) })
		at := join(path, first.Tag.Get("yaml"))
		if len(same) > 1 {
			at = join(path, "*")
		}
		fmt.Fprintf(out, "\n%s `%s`\n\n", strings.Repeat("#", min(4, 3+strings.Count(at, "."))), at)
		if len(same) == 1 {
			paragraph(out, "", b.comment(typ, first))
		}
		var names []string
		for _, f := range same {
			if len(same) > 1 {
				names = append(names, f.Tag.Get("yaml"))
				paragraph(out, "- ", b.comment(typ, f))
			}
		}
		if len(same) > 1 {
			out.WriteString("\nEach has:\n")
		}
		out.WriteString("\n")
		if first.Type.Kind() == reflect.Slice {
			at = join(at, "#")
		}
		b.section(out, at, names, part(first.Type))
	}
}

// part is the type of what is below a field, nil if the field is a key.
func part(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

// comment is what a field's comment says, with keys in place of Go's names.
func (b *book) comment(typ reflect.Type, f reflect.StructField) string {
	text := b.doc[typ.Name()][f.Name]
	if text == "" {
		b.t.Errorf("%s.%s has no comment", typ.Name(), f.Name)
	}
	for g := range typ.Fields() {
		key := "`" + g.Tag.Get("yaml") + "`"
		text = regexp.MustCompile(`^`+g.Name+`\b`).ReplaceAllString(text, key)
		if camel.MatchString(g.Name) {
			text = regexp.MustCompile(`\b`+g.Name+`\b`).ReplaceAllString(text, key)
		}
	}
	return text
}

// camel matches a name that is no word of English, nor letters that stand for some.
var camel = regexp.MustCompile(`[a-z][A-Z]|[A-Z][A-Z][a-z]{2}`)

// key writes one key: how else it can be set, its default, its meaning.
func (b *book) key(out *strings.Builder, path string, names []string, typ reflect.Type, f reflect.StructField) {
	text, said := b.comment(typ, f), ""
	if m := theDefault.FindStringSubmatchIndex(text); m != nil {
		said = text[m[2]:m[3]]
		text = strings.TrimSpace(text[:m[0]] + " " + text[m[1]:])
	}
	if rest, ok := strings.CutPrefix(text, "`"+f.Tag.Get("yaml")+"` "); ok && !strings.HasPrefix(rest, "and ") {
		text = strings.TrimPrefix(strings.TrimPrefix(rest, "is "), "are ")
	}
	actual := b.actual(path)
	switch {
	case said == "" || said == "none":
		said = actual
	case actual != "" && !strings.Contains(said, " ") && said != actual:
		b.t.Errorf("%s: its comment says %s, and the default is %s", path, said, actual)
	}
	if !strings.ContainsAny(said, " ,`") && said != "" {
		said = "`" + said + "`"
	}
	how := kind(f.Type)
	if said != "" {
		how += ", default " + said
	}
	if names != nil { // as each of them has it
		var each []string
		for _, name := range names {
			if value := b.actual(strings.ReplaceAll(path, "*", name)); value != "" {
				each = append(each, "`"+value+"`")
			}
		}
		if each != nil {
			how += ", defaults " + strings.Join(each, ", ")
		}
	}
	for _, flag := range slices.Sorted(maps.Keys(b.flags)) {
		if matches(path, b.flags[flag]) {
			how += ", `--" + flag + "`"
		}
	}
	b.tell(path)
	paragraph(out, "- ", "**`"+path+"`** ("+how+"; `"+EnvPrefix+envName(path)+"`): "+text)
}

// theDefault is the sentence of a comment that tells it.
var theDefault = regexp.MustCompile(` ?\bDefault: (.+?)\.(?: |$)`)

// tell notes that a key was told, or those that stand behind a "*".
func (b *book) tell(path string) {
	for key, variable := range Keys() {
		if matches(path, key) {
			b.told[key] = variable
		}
	}
}

// matches says that key is path, where "*" is any one part, or an item of its list.
func matches(path, key string) bool {
	p, k := strings.Split(path, "."), strings.Split(strings.TrimSuffix(key, ".#"), ".")
	return slices.EqualFunc(p, k, func(p, k string) bool { return p == k || p == "*" })
}

// actual is a key's default as it is written in a file, "" for none, and for what
// hangs on the machine or on other keys.
func (b *book) actual(path string) string {
	if strings.Contains(path, "*") || path == "data" {
		return ""
	}
	v := reflect.ValueOf(Default())
	for name := range strings.SplitSeq(path, ".") {
		switch {
		case name == "#" && v.Type() == reflect.TypeFor[[]Issuer]():
			v = reflect.ValueOf(DefaultIssuer())
		case name == "#":
			return ""
		default:
			for f, value := range v.Fields() {
				if f.Tag.Get("yaml") == name {
					v = value
					break
				}
			}
		}
	}
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		return duration(time.Duration(v.Int()))
	case v.Kind() == reflect.Bool, v.Kind() == reflect.Int, v.Kind() == reflect.Float64:
		return fmt.Sprint(v)
	case v.IsZero():
		return ""
	}
	return fmt.Sprint(v)
}

// duration writes 720h, where Go has 720h0m0s.
func duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	if s == "2m" { // as everybody writes it
		s = "120s"
	}
	return s
}

func kind(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t.Kind() == reflect.Slice:
		return "list"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int, t.Kind() == reflect.Float64:
		return "number"
	}
	return "text"
}

// paragraph writes text in lines, the first of which begins with a mark.
func paragraph(out *strings.Builder, mark, text string) {
	indent, line := strings.Repeat(" ", len(mark)), mark
	for i, word := range strings.Fields(text) {
		if i > 0 && len([]rune(line))+1+len([]rune(word)) > docsWidth {
			out.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		} else if i > 0 {
			line += " "
		}
		line += word
	}
	out.WriteString(line + "\n")
}
