package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Problem is one thing that is wrong with a document from outside.
type Problem struct {
	Reason string `json:"reason"`          // the rule's code, for decisions
	Field  string `json:"field,omitempty"` // where, as a path of member names
	Detail string `json:"detail"`          // what, for people; no secrets
}

func (p Problem) String() string {
	if p.Field == "" {
		return fmt.Sprintf("%s: %s", p.Reason, p.Detail)
	}
	return fmt.Sprintf("%s: %s: %s", p.Reason, p.Field, p.Detail)
}

func problemText(problems []Problem) string {
	s := make([]string, len(problems))
	for i, p := range problems {
		s[i] = p.String()
	}
	return strings.Join(s, "; ")
}

// object is a JSON object in its own order. Names are compared exactly.
type object []member

type member struct {
	name  string
	value jsontext.Value
}

var (
	errEmpty     = errors.New("empty")
	errNotObject = errors.New("not a JSON object")
)

// parseObject reads one JSON object and nothing after it. Repeated members and
// invalid UTF-8 anywhere inside are errors.
func parseObject(data []byte) (object, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errEmpty
	}
	if !jsontext.Value(data).IsValid() {
		return nil, errors.New("not valid JSON, or a member is repeated")
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return nil, errNotObject
	}
	o := object{}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		m := member{name: name.String()}
		v, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		m.value = v.Clone()
		o = append(o, m)
	}
	return o, nil
}

// get returns the member of that name; null counts as absent.
func (o object) get(name string) (jsontext.Value, bool) {
	for _, m := range o {
		if m.name == name {
			return m.value, m.value.Kind() != 'n'
		}
	}
	return nil, false
}

// null reports a member that is there and null.
func (o object) null(name string) bool {
	v, ok := o.get(name)
	return v != nil && !ok
}

// reader reads typed members out of objects and collects what is wrong.
type reader struct {
	reason   string // the code of a missing or mistyped member
	most     int    // entries of an array; more make it malformed. 0: any number
	problems []Problem
	count    int // of what is wrong, listed or not
	more     int // not listed, which problems[note] says
	note     int
}

// maxProblems is how many problems are listed. One of a reason that is not among
// them is listed all the same: reasons decide.
const maxProblems = 50

func (r *reader) add(reason, field, format string, args ...any) {
	r.count++
	if len(r.problems) >= maxProblems && slices.ContainsFunc(r.problems, func(p Problem) bool { return p.Reason == reason }) {
		if r.more++; r.more == 1 {
			r.note = len(r.problems)
			r.problems = append(r.problems, Problem{Reason: reason})
		}
		r.problems[r.note].Detail = fmt.Sprintf("%d more problems are not listed", r.more)
		return
	}
	// Field and detail may quote the business (RD-4).
	r.problems = append(r.problems, Problem{reason, RedactText(truncate(field, maxScopeID)), RedactText(truncate(fmt.Sprintf(format, args...), maxDescription))})
}

func (r *reader) member(o object, path, name string, required bool, kind jsontext.Kind, what string) (jsontext.Value, bool) {
	v, ok := o.get(name)
	if !ok {
		if required {
			r.add(r.reason, path+name, "required, and missing")
		}
		return nil, false
	}
	if k := v.Kind(); k != kind && !(kind == 't' && k == 'f') {
		r.add(r.reason, path+name, "must be %s", what)
		return nil, false
	}
	return v, true
}

// text reads a string; a required one must not be empty.
func (r *reader) text(o object, path, name string, required bool) string {
	v, ok := r.member(o, path, name, required, '"', "a string")
	if !ok {
		return ""
	}
	s := unquote(v)
	if required && strings.TrimSpace(s) == "" {
		r.add(r.reason, path+name, "required, and empty")
	}
	return s
}

func (r *reader) flag(o object, path, name string) bool {
	v, ok := r.member(o, path, name, false, 't', "true or false")
	return ok && v.Kind() == 't'
}

func (r *reader) object(o object, path, name string, required bool) (object, bool) {
	v, ok := r.member(o, path, name, required, '{', "an object")
	if !ok {
		return nil, false
	}
	sub, err := parseObject(v)
	return sub, err == nil
}

func (r *reader) list(o object, path, name string, required bool) ([]jsontext.Value, bool) {
	v, ok := r.member(o, path, name, required, '[', "an array")
	if !ok {
		return nil, false
	}
	var out []jsontext.Value
	if err := json.Unmarshal(v, &out); err != nil {
		return nil, false
	}
	if r.tooMany(len(out), path+name) {
		return nil, false
	}
	return out, true
}

// tooMany holds an array, or an object that is a list by its names, to its number
// of entries.
func (r *reader) tooMany(n int, field string) bool {
	if r.most == 0 || n <= r.most {
		return false
	}
	r.add(r.reason, field, "has %d entries, and %d are read at most", n, r.most)
	return true
}

func (r *reader) objects(o object, path, name string, required bool) []object {
	list, _ := r.list(o, path, name, required)
	out := make([]object, 0, len(list))
	for i, v := range list {
		sub, err := parseObject(v)
		if err != nil {
			r.add(r.reason, fmt.Sprintf("%s%s[%d]", path, name, i), "must be an object")
		}
		out = append(out, sub)
	}
	return out
}

func (r *reader) texts(o object, path, name string, required bool) []string {
	list, ok := r.list(o, path, name, required)
	if !ok {
		return nil
	}
	out := make([]string, 0, len(list))
	for i, v := range list {
		if v.Kind() != '"' {
			r.add(r.reason, fmt.Sprintf("%s%s[%d]", path, name, i), "must be a string")
			continue
		}
		out = append(out, unquote(v))
	}
	return out
}

// integer reads a whole number written as one.
func (r *reader) integer(o object, path, name string) (int64, bool) {
	v, ok := r.member(o, path, name, true, '0', "a whole number")
	if !ok {
		return 0, false
	}
	var n int64
	if err := json.Unmarshal(v, &n); err != nil {
		r.add(r.reason, path+name, "must be a whole number")
		return 0, false
	}
	return n, true
}

func unquote(v jsontext.Value) string {
	s, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(s)
}

// canonical returns the RFC 8785 form of a JSON value.
func canonical(v jsontext.Value) (jsontext.Value, error) {
	c := v.Clone()
	if err := c.Canonicalize(); err != nil {
		return nil, err
	}
	return c, nil
}

// sameJSON reports whether two JSON values say the same: members may be in
// another order, strings and numbers written in another way. Numbers are compared
// exactly, not as the doubles that they may be read as. What a double cannot hold
// at all, and what is not strict JSON, is the same as nothing.
func sameJSON(a, b jsontext.Value) bool {
	var x, y any
	if json.Unmarshal(a, &x, exactNumbers) != nil || json.Unmarshal(b, &y, exactNumbers) != nil {
		return false
	}
	return reflect.DeepEqual(x, y)
}

// exactNumber is a number's one spelling: its significant digits, and the power
// of ten of the last one.
type exactNumber struct {
	digits string // with its sign; empty for zero
	power  int
}

// exactNumbers decodes numbers into any as exactNumber.
var exactNumbers = json.WithUnmarshalers(json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *any) error {
	if dec.PeekKind() != '0' {
		return errors.ErrUnsupported
	}
	raw, err := dec.ReadValue()
	if err != nil {
		return err
	}
	*v, err = exact(string(raw))
	return err
}))

func exact(number string) (exactNumber, error) {
	if _, err := strconv.ParseFloat(number, 64); err != nil {
		return exactNumber{}, err
	}
	number, negative := strings.CutPrefix(number, "-")
	mantissa, exponent := number, "0"
	if i := strings.IndexAny(number, "eE"); i >= 0 {
		mantissa, exponent = number[:i], number[i+1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	significant := strings.TrimRight(digits, "0")
	if significant == "" {
		return exactNumber{}, nil
	}
	power, err := strconv.Atoi(exponent)
	if err != nil {
		return exactNumber{}, err
	}
	power += len(digits) - len(significant) - len(fraction)
	if negative {
		significant = "-" + significant
	}
	return exactNumber{significant, power}, nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// clean makes a business's text safe to show on a line of its own: no control
// characters, nothing that turns the reading direction or that nobody sees, at most
// limit characters. It stays untrusted (RD-4).
func clean(s string, limit int) string {
	s = strings.Map(func(c rune) rune {
		switch {
		case unicode.IsControl(c):
			return ' '
		case invisible(c):
			return -1
		}
		return c
	}, s)
	return truncate(strings.TrimSpace(s), limit)
}

// safe is clean for what is shown or kept, where a business may echo a secret that
// it got: redacted too (RD-2).
func safe(s string, limit int) string { return truncate(RedactText(clean(s, limit)), limit) }

// truncate keeps the first limit characters.
func truncate(s string, limit int) string {
	n := 0
	for i := range s {
		if n == limit {
			return s[:i]
		}
		n++
	}
	return s
}
