package conformance

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// members reads the members of a JSON object and notes what is wrong with them. It
// quotes no value: some are secret.
type members struct {
	findings
	all map[string]jsontext.Value
}

func readMembers(raw jsontext.Value) (*members, error) {
	m := &members{}
	if raw.Kind() != '{' || json.Unmarshal(raw, &m.all) != nil {
		return nil, fmt.Errorf("not a JSON object without repeated members")
	}
	return m, nil
}

func (m *members) has(name string) bool { _, ok := m.all[name]; return ok }

func (m *members) wrong(name, format string, args ...any) {
	m.add("", fmt.Errorf(name+" "+format, args...))
}

// text is a string; a required one is not empty.
func (m *members) text(name string, required bool) string {
	raw, ok := m.all[name]
	var s string
	switch {
	case !ok && required:
		m.wrong(name, "is missing")
	case ok && (raw.Kind() != '"' || json.Unmarshal(raw, &s) != nil):
		m.wrong(name, "is not a string")
	case ok && required && strings.TrimSpace(s) == "":
		m.wrong(name, "is empty")
	}
	return s
}

// integer is a whole number.
func (m *members) integer(name string, required bool) int64 {
	raw, ok := m.all[name]
	if !ok {
		if required {
			m.wrong(name, "is missing")
		}
		return 0
	}
	var f float64
	if raw.Kind() != '0' || json.Unmarshal(raw, &f) != nil || f != math.Trunc(f) || math.Abs(f) > 1<<52 {
		m.wrong(name, "is not a whole number")
		return 0
	}
	return int64(f)
}

// texts is an array of strings.
func (m *members) texts(name string, required bool) []string {
	raw, ok := m.all[name]
	var list []string
	switch {
	case !ok && required:
		m.wrong(name, "is missing")
	case ok && (raw.Kind() != '[' || json.Unmarshal(raw, &list) != nil):
		m.wrong(name, "is not an array of strings")
	}
	return list
}

// scopeSet reads an OAuth scope string as a set: sorted, each once.
func scopeSet(scope string) []string { return setOf(strings.Fields(scope)) }

func setOf(ids []string) []string { return slices.Compact(slices.Sorted(slices.Values(ids))) }

func sameSet(a, b []string) bool { return slices.Equal(setOf(a), setOf(b)) }

// beyond are the ids that the set lacks.
func beyond(ids, set []string) []string {
	return slices.DeleteFunc(setOf(ids), func(id string) bool { return slices.Contains(set, id) })
}

// listed names scopes in a finding.
func listed(ids []string) string {
	if len(ids) == 0 {
		return "none"
	}
	return clip(strings.Join(ids, " "))
}
