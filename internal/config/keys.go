package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// walk calls leaf with the path of every key below type t.
func walk(path string, t reflect.Type, leaf func(string)) {
	switch t.Kind() {
	case reflect.Struct:
		for f := range t.Fields() {
			walk(join(path, f.Tag.Get("yaml")), f.Type, leaf)
		}
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Struct {
			leaf(path)
		}
		walk(join(path, "#"), t.Elem(), leaf)
	default:
		leaf(path)
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// checkKeys refuses keys of a layer that the type does not have.
func checkKeys(where, path string, v any, t reflect.Type) error {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			below, known := fieldType(t, name)
			if !known {
				return fmt.Errorf("%s: unknown key %s%s", where, join(path, name), suggestion(t, name))
			}
			if err := checkKeys(where, join(path, name), v[name], below); err != nil {
				return err
			}
		}
	case []any:
		if t.Kind() != reflect.Slice {
			return fmt.Errorf("%s: %s is not a list", where, path)
		}
		for i, item := range v {
			if err := checkKeys(where, join(path, strconv.Itoa(i)), item, t.Elem()); err != nil {
				return err
			}
		}
	case map[any]any:
		return fmt.Errorf("%s: %s has a key that is not text", where, path)
	case nil:
	default:
		if t.Kind() == reflect.Struct {
			return fmt.Errorf("%s: %s: wants a mapping", where, path)
		}
	}
	return nil
}

func fieldType(t reflect.Type, name string) (reflect.Type, bool) {
	switch t.Kind() {
	case reflect.Struct:
		for f := range t.Fields() {
			if f.Tag.Get("yaml") == name {
				return f.Type, true
			}
		}
	case reflect.Slice:
		return t.Elem(), isNumber(name)
	}
	return nil, false
}

func suggestion(t reflect.Type, name string) string {
	if t.Kind() == reflect.Slice {
		return "; a list's items are named by number, from 0"
	}
	if t.Kind() != reflect.Struct {
		return ""
	}
	var known []string
	for f := range t.Fields() {
		tag := f.Tag.Get("yaml")
		if strings.EqualFold(tag, name) {
			return "; did you mean " + tag + "?"
		}
		known = append(known, tag)
	}
	return "; known here: " + strings.Join(known, ", ")
}
