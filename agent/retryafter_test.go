package agent_test

import (
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

// TestRetryAfter covers TR-7, and DA-6's wait without a cap.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 18, 10, 26, 40, 0, time.UTC)
	for _, c := range []struct {
		value string
		limit time.Duration
		want  time.Duration
		ok    bool
	}{
		{"5", agent.MaxRetryAfter, 5 * time.Second, true},
		{" 5 ", agent.MaxRetryAfter, 5 * time.Second, true},
		{"0", agent.MaxRetryAfter, 0, true},
		{"120", agent.MaxRetryAfter, 120 * time.Second, true},
		{"121", agent.MaxRetryAfter, 120 * time.Second, true},
		{"3600", 0, time.Hour, true},
		{"99999999999999999999", agent.MaxRetryAfter, 120 * time.Second, true},
		{"99999999999999999999", 0, 366 * 24 * time.Hour, true},
		{"-1", agent.MaxRetryAfter, 0, false},
		{"+5", agent.MaxRetryAfter, 0, false},
		{"1.5", agent.MaxRetryAfter, 0, false},
		{"5s", agent.MaxRetryAfter, 0, false},
		{"0x5", agent.MaxRetryAfter, 0, false},
		{"٥", agent.MaxRetryAfter, 0, false},
		{"", agent.MaxRetryAfter, 0, false},
		{"soon", agent.MaxRetryAfter, 0, false},
		{"Wed, 18 Nov 2026 10:27:00 GMT", agent.MaxRetryAfter, 20 * time.Second, true},
		{"Wednesday, 18-Nov-26 10:27:00 GMT", agent.MaxRetryAfter, 20 * time.Second, true},
		{"Wed Nov 18 10:27:00 2026", agent.MaxRetryAfter, 20 * time.Second, true},
		{"Wed, 18 Nov 2026 11:27:00 GMT", agent.MaxRetryAfter, 120 * time.Second, true},
		{"Wed, 18 Nov 2026 11:26:40 GMT", 0, time.Hour, true},
		{"Wed, 18 Nov 2026 10:26:39 GMT", agent.MaxRetryAfter, 0, false},
		{"Wed, 18 Nov 9999 10:26:39 GMT", 0, 366 * 24 * time.Hour, true},
		{"2026-11-18T10:27:00Z", agent.MaxRetryAfter, 0, false},
	} {
		got, ok := agent.ParseRetryAfter(c.value, now, c.limit)
		if got != c.want || ok != c.ok {
			t.Errorf("%q limit %v: %v %v, want %v %v", c.value, c.limit, got, ok, c.want, c.ok)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"5", "-1", "Wed, 18 Nov 2026 10:27:00 GMT", "99999999999999999999", ""} {
		f.Add(s, int64(1795000000))
	}
	f.Fuzz(func(t *testing.T, value string, unix int64) {
		wait, ok := agent.ParseRetryAfter(value, time.Unix(unix%(1<<33), 0), agent.MaxRetryAfter)
		if wait < 0 || wait > agent.MaxRetryAfter || !ok && wait != 0 {
			t.Fatalf("%q: %v %v", value, wait, ok)
		}
	})
}
