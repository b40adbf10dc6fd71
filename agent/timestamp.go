package agent

import (
	"regexp"
	"strings"
	"time"
)

// timestamp is RFC 3339's date-time, with the ranges that package time does not
// hold: two digits each, a dot before a fraction, offsets up to 23:59.
var timestamp = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:(\d\d)(?:\.\d+)?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)$`)

const leapSecond = "60"

// parseTimestamp reads an RFC 3339 time, in its lower-case form too. A leap
// second, which can only be the last one of a month of UTC (RFC 3339 section
// 5.7), is the second after the one before it. In UTC it must be of the years 1 to
// 9999, so that it can be written down again.
func parseTimestamp(s string) (time.Time, bool) {
	s = strings.ToUpper(s)
	at := timestamp.FindStringSubmatchIndex(s)
	if at == nil {
		return time.Time{}, false
	}
	leap := s[at[2]:at[3]] == leapSecond
	if leap {
		s = s[:at[2]] + "59" + s[at[3]:]
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, false
	}
	if leap {
		t = t.Add(time.Second)
		if next := t.UTC(); next.Day() != 1 || next.Hour() != 0 || next.Minute() != 0 {
			return time.Time{}, false
		}
	}
	year := t.UTC().Year()
	return t, year >= 1 && year <= 9999
}
