package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// merge puts src over dest. A map over a list changes the items that it names
// by number.
func merge(path string, src, dest map[string]any) error {
	for key, value := range src {
		merged, err := mergeValue(join(path, key), value, dest[key])
		if err != nil {
			return err
		}
		dest[key] = merged
	}
	return nil
}

func mergeValue(path string, src, dest any) (any, error) {
	from, ok := src.(map[string]any)
	if !ok {
		return src, nil
	}
	numbered := len(from) > 0
	for key := range from {
		numbered = numbered && isNumber(key)
	}
	switch to := dest.(type) {
	case map[string]any:
		return to, merge(path, from, to)
	case []any:
		return mergeItems(path, from, to)
	case string: // a list set as a whole before
		if numbered {
			return nil, fmt.Errorf("%s is set as a whole and by its items; do one of them", path)
		}
	case nil:
		if numbered {
			return mergeItems(path, from, nil)
		}
	}
	to := make(map[string]any)
	return to, merge(path, from, to)
}

func mergeItems(path string, from map[string]any, to []any) (any, error) {
	for _, key := range slices.SortedFunc(maps.Keys(from), comparePart) {
		i, err := strconv.Atoi(key)
		if err != nil || i > len(to) {
			return nil, fmt.Errorf("%s.%s: the list has %d items; name one of them, or %d to append", path, key, len(to), len(to))
		}
		if i == len(to) {
			to = append(to, nil)
		}
		if to[i], err = mergeValue(join(path, key), from[key], to[i]); err != nil {
			return nil, err
		}
	}
	return to, nil
}
