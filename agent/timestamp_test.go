package agent

import (
	"testing"
	"time"
)

// TestTimestamp covers RFC 3339 where package time is more lenient, and stricter.
func TestTimestamp(t *testing.T) {
	at := time.Date(2016, 12, 31, 23, 59, 59, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"2016-12-31T23:59:59Z":                      at,
		"2016-12-31t23:59:59z":                      at,
		"2016-12-31T23:59:59.25Z":                   at.Add(250 * time.Millisecond),
		"2016-12-31T23:59:59.12345678901234567890Z": at.Add(123456789),
		"2016-12-31T23:59:59-00:00":                 at,
		"2017-01-01T23:29:59+23:30":                 at,
		"2016-12-31T23:59:60Z":                      at.Add(time.Second),
		"2016-12-31T23:59:60.5Z":                    at.Add(1500 * time.Millisecond),
		"2017-01-01T01:29:60+01:30":                 at.Add(time.Second),
		"9999-12-31T23:59:59Z":                      time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		"0000-12-31T23:59:59-00:01":                 time.Date(1, 1, 1, 0, 0, 59, 0, time.UTC),
	} {
		if got, ok := parseTimestamp(s); !ok || !got.Equal(want) {
			t.Errorf("%s: %v, %v, want %v", s, got, ok, want)
		}
	}
	for _, s := range []string{
		"", "2016-12-31", "2016-12-31T23:59:59", "2016-12-31T23:59Z", "2016-12-31 23:59:59Z", "2016-12-31T23:59:59,5Z", "2016-12-31T23:59:59.Z",
		"2016-12-31T3:59:59Z", "2016-1-31T23:59:59Z", "2016-12-31T24:00:00Z", "2016-12-31T23:60:00Z", "2016-02-30T00:00:00Z", "2016-13-01T00:00:00Z",
		"2016-12-31T23:59:59+24:00", "2016-12-31T23:59:59+00:60", "2016-12-31T23:59:59+0100", "2016-12-31T23:59:59 Z", " 2016-12-31T23:59:59Z", "2016-12-31T23:59:59Z\n",
		"12016-12-31T23:59:59Z", "-2016-12-31T23:59:59Z", "２016-12-31T23:59:59Z",
		"2016-12-31T23:59:61Z", "2016-12-31T23:58:60Z", "2016-12-30T23:59:60Z", "2016-12-31T23:59:60+01:00",
		"9999-12-31T23:59:60Z", "9999-12-31T23:59:59-00:01", "0001-01-01T00:00:00+00:01", "0000-12-31T23:59:59Z", "0000-01-01T00:00:00+23:59",
	} {
		if got, ok := parseTimestamp(s); ok {
			t.Errorf("%q is %v", s, got)
		}
	}
}

// TestSameJSON covers what the copy of a receipt's claims may look like (EV-2).
func TestSameJSON(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":[true,null,"x"]}`, ` { "b" : [ true, null, "\u0078" ], "a" : 1.0 } `, true},
		{`1`, `1.0`, true}, {`100`, `1e2`, true}, {`100`, `1000E-1`, true}, {`-0`, `0.00`, true}, {`0.5`, `5e-1`, true}, {`-1.50`, `-15e-1`, true},
		{`9007199254740993`, `9007199254740993.0`, true},
		{`9007199254740993`, `9007199254740992`, false},
		{`1`, `-1`, false}, {`1`, `10`, false}, {`0.1`, `0.01`, false}, {`1`, `"1"`, false}, {`0`, `false`, false}, {`null`, `0`, false},
		{`[1,2]`, `[2,1]`, false}, {`{"a":1}`, `{"a":1,"b":null}`, false}, {`{"a":{"b":1}}`, `{"a":{"b":2}}`, false},
		{`1e400`, `1e400`, false},
		{`1e99999999999999999999`, `1e99999999999999999999`, false},
		{`{"a":1,"a":1}`, `{"a":1}`, false}, {`"\ud800"`, `"\ud800"`, false}, {`1 1`, `1`, false}, {``, ``, false},
	} {
		if sameJSON([]byte(c.a), []byte(c.b)) != c.same || sameJSON([]byte(c.b), []byte(c.a)) != c.same {
			t.Errorf("%s and %s: want same %v", c.a, c.b, c.same)
		}
	}
}
