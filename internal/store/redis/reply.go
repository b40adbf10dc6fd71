package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// exec sends a pipeline. If a server greets a new connection with an error, as when
// the password is wrong, the client puts that on no command and each would pass for
// one without a reply: it is put on all.
func exec(ctx context.Context, pipe redis.Pipeliner) error {
	cmds, err := pipe.Exec(ctx)
	if err == nil {
		return nil
	}
	for _, cmd := range cmds {
		if cmd.Err() != nil {
			return err
		}
	}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

// Replies of scripts are lists of integers and strings; numbers that may exceed
// what Lua keeps exactly come as strings.

func list(reply any) ([]any, error) {
	l, ok := reply.([]any)
	if !ok {
		return nil, fmt.Errorf("redis: a script returned %T, not a list", reply)
	}
	return l, nil
}

// listOf is a list of n elements or more.
func listOf(n int, reply any) ([]any, error) {
	l, err := list(reply)
	if err == nil && len(l) < n {
		err = errAnswer
	}
	return l, err
}

func (s *Store) runList(ctx context.Context, sc *script, slot string, keys []string, args ...any) ([]any, error) {
	reply, err := s.run(ctx, sc, slot, keys, args...)
	if err != nil {
		return nil, err
	}
	return list(reply)
}

// text is a string or an integer as a string; "" for nil.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	}
	return ""
}

func parseUint(v any) (uint64, error) {
	n, err := strconv.ParseUint(text(v), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("redis: a script returned %q, not a number", text(v))
	}
	return n, nil
}

// parseTime is a time as seconds and microseconds.
func parseTime(sec, usec any) (time.Time, error) {
	a, err := strconv.ParseInt(text(sec), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("redis: a script returned %q, not a time", text(sec))
	}
	b, err := strconv.ParseInt(text(usec), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("redis: a script returned %q, not a time", text(usec))
	}
	return time.Unix(a, b*1000).UTC(), nil
}
