package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// document is a YAML document being read, strictly: what is not known, missing or of
// another type is a problem, told with its line and path. Problems quote no value
// that might be a password.
type document struct {
	name     string // of the file
	problems []problem
}

type problem struct {
	line  int
	about string
}

// place is a value of a document and how it is reached. A field of this type, in a
// struct that is read, gets where the struct is.
type place struct {
	doc  *document
	node *yaml.Node
	path string // brands[0].scopes[1]; "" for the whole document
}

// fail notes what is wrong with a value, and the fix.
func (p place) fail(format string, args ...any) {
	about := fmt.Sprintf(format, args...)
	if p.path != "" {
		about = p.path + ": " + about
	}
	p.doc.problems = append(p.doc.problems, problem{p.node.Line, about})
}

// key is the value of a key, or, if it is missing, the place where it should be.
func (p place) key(name string) place {
	below := place{p.doc, p.node, join(p.path, name)}
	for i := 0; p.node.Kind == yaml.MappingNode && i < len(p.node.Content); i += 2 {
		if p.node.Content[i].Value == name {
			below.node = plain(p.node.Content[i+1])
		}
	}
	return below
}

// item is the value at an index of a list.
func (p place) item(i int) place {
	return place{p.doc, plain(p.node.Content[i]), p.path + "[" + strconv.Itoa(i) + "]"}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// plain is what an alias stands for.
func plain(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// maxProblems is how many are told at once.
const maxProblems = 20

// FileError is what is wrong in a configuration file: one mistake or more, each with
// the file's name, mostly the line, and the fix.
type FileError struct{ Mistakes []string }

// Error has a line for each mistake.
func (e *FileError) Error() string { return strings.Join(e.Mistakes, "\n") }

// err is what was wrong, in the order of the lines; nil if nothing was.
func (d *document) err() error {
	slices.SortStableFunc(d.problems, func(a, b problem) int { return a.line - b.line })
	if len(d.problems) == 0 {
		return nil
	}
	e := &FileError{}
	for i, p := range d.problems {
		if i == maxProblems {
			e.Mistakes = append(e.Mistakes, fmt.Sprintf("%s: and %d more", d.name, len(d.problems)-i))
			break
		}
		e.Mistakes = append(e.Mistakes, fmt.Sprintf("%s:%d: %s", d.name, p.line, p.about))
	}
	return e
}

// unreadable: the document as a whole is none.
func (d *document) unreadable(why string) error {
	return &FileError{Mistakes: []string{d.name + ": " + why}}
}

// readYAML reads a document that is one mapping, or empty, into a struct whose
// fields say their key in a tag.
func readYAML(name string, data []byte, into any) error {
	d := &document{name: name}
	dec := yaml.NewDecoder(bytes.NewReader(plainJSON(data)))
	root := yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode, Tag: "!!map", Line: 1}}}
	if err := dec.Decode(&root); err != nil && !errors.Is(err, io.EOF) {
		return d.unreadable(err.Error())
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return d.unreadable("there is more than one document: keep one")
	}
	// The library knows aliases that contain themselves, or stand for too much.
	if err := root.Decode(new(any)); err != nil && usesAliases(&root) {
		return d.unreadable(err.Error())
	}
	at := place{d, root.Content[0], ""}
	at.read(reflect.ValueOf(into).Elem())
	return d.err()
}

func usesAliases(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, usesAliases)
}

var jsonEscapes = regexp.MustCompile(`\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\.`)

// plainJSON rewrites what JSON allows in a string and the YAML library does not know:
// \/ and surrogate pairs. Lines stay where they are.
func plainJSON(data []byte) []byte {
	if !jsontext.Value(data).IsValid() {
		return data
	}
	return jsonEscapes.ReplaceAllFunc(data, func(escape []byte) []byte {
		switch {
		case string(escape) == `\/`:
			return []byte("/")
		case len(escape) < 12:
			return escape
		}
		high, _ := strconv.ParseUint(string(escape[2:6]), 16, 16) // the expression says so
		low, _ := strconv.ParseUint(string(escape[8:12]), 16, 16)
		return []byte(string(utf16.DecodeRune(rune(high), rune(low))))
	})
}

// selfReader is a type that reads itself.
type selfReader interface{ readFrom(p place) }

// readInto reads a mapping into a struct, whatever reader the struct itself has.
func readInto[T any](p place, into *T) { p.readStruct(reflect.ValueOf(into).Elem()) }

// read puts the value at p into v.
func (p place) read(v reflect.Value) {
	if self, ok := v.Addr().Interface().(selfReader); ok {
		self.readFrom(p)
		return
	}
	switch into := v.Addr().Interface().(type) {
	case *time.Duration:
		*into = p.duration()
		return
	case *string:
		*into, _ = p.text()
		return
	case *bool:
		if p.node.ShortTag() != "!!bool" || p.node.Decode(into) != nil {
			p.fail("write true or false")
		}
		return
	case *int:
		if p.node.ShortTag() != "!!int" || p.node.Decode(into) != nil {
			p.fail("write a whole number")
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		p.read(v.Elem())
	case reflect.Slice:
		if p.node.Kind != yaml.SequenceNode {
			p.fail("write a list")
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(p.node.Content), len(p.node.Content)))
		for i := range p.node.Content {
			p.item(i).read(v.Index(i))
		}
	case reflect.Struct:
		p.readStruct(v)
	default:
		panic("sandbox: a field of a type that no reader knows: " + v.Type().String())
	}
}

func (p place) readStruct(v reflect.Value) {
	fields := map[string]reflect.Value{}
	var keys []string
	for f, field := range v.Fields() {
		if key := f.Tag.Get("yaml"); key != "" {
			fields[key], keys = field, append(keys, key)
		} else if f.Type == reflect.TypeFor[place]() {
			field.Set(reflect.ValueOf(p))
		}
	}
	p.eachKey(func(key, value place) {
		if field, ok := fields[key.node.Value]; ok {
			value.read(field)
			return
		}
		key.fail("there is no such key%s", instead(key.node.Value, keys))
	})
}

// eachKey goes through a mapping; each key must be text and come once.
func (p place) eachKey(visit func(key, value place)) {
	if p.node.Kind != yaml.MappingNode {
		p.fail("write a mapping of keys and values")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(p.node.Content); i += 2 {
		name := plain(p.node.Content[i])
		at := place{p.doc, name, join(p.path, name.Value)}
		switch {
		case name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str" && name.ShortTag() != "!!merge":
			place{p.doc, name, p.path}.fail("a key must be text")
		case seen[name.Value]:
			at.fail("the key appears twice: keep one")
		case plain(p.node.Content[i+1]).ShortTag() == "!!null":
			at.fail("it has no value: give one, or leave the key out")
		default:
			seen[name.Value] = true
			visit(at, place{p.doc, plain(p.node.Content[i+1]), at.path})
		}
	}
}

// text is the text at p. Nobody means an empty one.
func (p place) text() (string, bool) {
	if p.node.Kind != yaml.ScalarNode || p.node.ShortTag() != "!!str" {
		p.fail("write text, in quotes if it looks like a number or a date")
		return "", false
	}
	if p.node.Value == "" {
		p.fail("it is empty: give it a text, or leave it out")
		return "", false
	}
	return p.node.Value, true
}

func (p place) duration() time.Duration {
	d, err := time.ParseDuration(p.node.Value)
	if p.node.Kind != yaml.ScalarNode || p.node.ShortTag() != "!!str" || err != nil || d <= 0 {
		p.fail("write a duration above zero with its unit, such as 90s or 1h30m")
		return 0
	}
	return d
}

// instead says which keys there are, or which one was meant.
func instead(key string, keys []string) string {
	for _, k := range keys {
		if distance(strings.ToLower(key), strings.ToLower(k)) <= min(2, len(k)/2) {
			return "; did you mean " + k + "?"
		}
	}
	return "; here are " + strings.Join(keys, ", ")
}

// distance is how many letters must be put in, left out or changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := left
			if a[i] != b[j] {
				change++
			}
			left = row[j+1]
			row[j+1] = min(change, left+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// arguments are a program and what it is given, which can be empty texts.
type arguments []string

func (a *arguments) readFrom(p place) {
	if p.node.Kind != yaml.SequenceNode {
		p.fail("write a list")
		return
	}
	for i, node := range p.node.Content {
		if i > 0 && node.Kind == yaml.ScalarNode && node.ShortTag() == "!!str" && node.Value == "" {
			*a = append(*a, "")
			continue
		}
		text, _ := p.item(i).text()
		*a = append(*a, text)
	}
}
