package agent

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter caps a Retry-After that a send obeys (TR-7); a consent poll
// has no cap (DA-6).
const MaxRetryAfter = 120 * time.Second

// ParseRetryAfter reads a Retry-After header (TR-7; RFC 9110 section 10.2.3):
// whole seconds, or an HTTP date. A longer wait than limit becomes limit; a
// limit of 0 is none. It is false for what is negative, past or unreadable:
// take the default wait then.
func ParseRetryAfter(value string, now time.Time, limit time.Duration) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	var wait time.Duration
	if value != "" && strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(maxWait/time.Second) {
			seconds = int64(maxWait / time.Second)
		}
		wait = time.Duration(seconds) * time.Second
	} else {
		at, err := http.ParseTime(value)
		if err != nil || at.Before(now) {
			return 0, false
		}
		wait = min(at.Sub(now), maxWait)
	}
	if limit > 0 {
		wait = min(wait, limit)
	}
	return wait, true
}

// maxWait keeps the arithmetic of those who add to a wait from overflowing.
const maxWait = 366 * 24 * time.Hour
