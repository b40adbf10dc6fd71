package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// nested returns the setting as the nested map that a file would give.
func (s Setting) nested() map[string]any {
	var v any = s.Value
	parts := strings.Split(s.Path, ".")
	for _, part := range slices.Backward(parts) {
		v = map[string]any{part: v}
	}
	return v.(map[string]any)
}

// readEnviron picks our settings out of an environment, ordered so that the
// items of a list come in the order of their numbers, and the name of the file.
func readEnviron(environ []string) (settings []Setting, file string, err error) {
	names := envNames()
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		rest, ours := strings.CutPrefix(name, EnvPrefix)
		if !ours || value == "" || injected.MatchString(rest) {
			continue
		}
		if name == EnvFile {
			file = value
			continue
		}
		var numbers []string
		parts := strings.Split(rest, "_")
		for i, p := range parts {
			if isNumber(p) {
				numbers = append(numbers, p)
				parts[i] = "#"
			}
		}
		path, known := names[strings.Join(parts, "_")]
		if !known {
			return nil, "", fmt.Errorf("environment: %s names no key; remove it, or see `signer config keys` for those that exist", name)
		}
		for _, n := range numbers {
			path = strings.Replace(path, "#", n, 1)
		}
		settings = append(settings, Setting{path, value})
	}
	slices.SortStableFunc(settings, func(a, b Setting) int {
		return slices.CompareFunc(strings.Split(a.Path, "."), strings.Split(b.Path, "."), comparePart)
	})
	return settings, file, nil
}

// injected matches what Kubernetes adds to the environment for services whose
// names begin with ours.
var injected = regexp.MustCompile(`(^|_)(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

func comparePart(a, b string) int {
	if isNumber(a) && isNumber(b) && len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// Keys lists every key as a dotted path, with "#" for the number of a list's
// item, and the name of its environment variable.
func Keys() map[string]string {
	keys := make(map[string]string)
	walk("", reflect.TypeFor[Config](), func(path string) {
		keys[path] = EnvPrefix + envName(path)
	})
	return keys
}

// envNames maps what follows EnvPrefix to a key's path.
func envNames() map[string]string {
	names := make(map[string]string)
	walk("", reflect.TypeFor[Config](), func(path string) { names[envName(path)] = path })
	return names
}

func envName(path string) string {
	var b strings.Builder
	var last rune
	for _, r := range path {
		switch {
		case r == '.':
			r = '_'
		case unicode.IsUpper(r) && unicode.IsLower(last):
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
		last = r
	}
	return b.String()
}
