package fleet

import (
	"strings"
	"testing"
	"time"
)

// recorded is a load with one replica whose requests are made up.
func recorded() *Load {
	f := &Fleet{Replicas: []*Replica{{}}, Deadline: 5 * time.Second}
	l := &Load{fleet: f, stop: make(chan struct{}), stopped: make(chan struct{}), tally: map[string]*Verified{}}
	close(l.stopped)
	return l
}

// The checker finds what the contract does not allow, and nothing else.
func TestChecker(t *testing.T) {
	start := time.Now().Add(-time.Minute)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	killed := window{thrown: at(10), effective: at(12), lifting: at(20), lifted: at(21)}
	sign := func(sent float64, status int) Record {
		return Record{Sent: at(sent), Took: 100 * time.Millisecond, Op: "sign", Want: Good, Status: status, Face: REST}
	}
	with := func(r Record, change func(*Record)) Record {
		change(&r)
		return r
	}
	for _, c := range []struct {
		name   string
		record Record
		broken string // part of what is said; empty: nothing is
	}{
		{"a token", sign(1, 200), ""},
		{"unavailable", sign(1, 503), ""},
		{"a token between the kill and effective", sign(11, 200), ""},
		{"a token after effective", sign(12.1, 200), "after effective"},
		{"an enrolment after effective", with(sign(13, 200), func(r *Record) { r.Op = "enroll" }), "after effective"},
		{"status after effective", with(sign(13, 200), func(r *Record) { r.Op = "status" }), ""},
		{"a token while the kill is lifted", sign(20.5, 200), ""},
		{"disabled by the kill", sign(13, 403), ""},
		{"disabled without a kill", sign(5, 403), "403 for a good request"},
		{"disabled long after", sign(40, 403), "403 for a good request"},
		{"status is never disabled", with(sign(13, 403), func(r *Record) { r.Op = "status" }), "403 for a good request"},
		{"unauthorized", sign(1, 401), "401 for a good request"},
		{"unauthorized where it is expected", sign(50, 401), ""},
		{"not documented", sign(1, 500), "500 for a good request"},
		{"forged and refused", with(sign(1, 401), func(r *Record) { r.Want = Forged }), ""},
		{"forged and accepted", with(sign(1, 200), func(r *Record) { r.Want = Forged }), "200 for a forged request"},
		{"replayed and refused", with(sign(1, 401), func(r *Record) { r.Want = Replayed }), ""},
		{"replayed and accepted", with(sign(1, 200), func(r *Record) { r.Want = Replayed }), "200 for a replayed request"},
		{"malformed and accepted", with(sign(1, 200), func(r *Record) { r.Want = Malformed }), "200 for a malformed request"},
		{"unregistered", with(sign(1, 422), func(r *Record) { r.Want = Unregistered }), ""},
		{"unregistered and accepted", with(sign(1, 200), func(r *Record) { r.Want = Unregistered }), "200 for a unregistered request"},
		{"a body that is not the contract's", with(sign(1, 503), func(r *Record) { r.Problem = "no Retry-After" }), "not the contract's"},
		{"no answer", sign(1, 0), "no answer"},
		{"no answer from a paused replica", sign(31, 0), ""},
		{"late", with(sign(1, 503), func(r *Record) { r.Took = 9 * time.Second }), "longer than the deadline"},
		{"late from a paused replica", with(sign(29, 503), func(r *Record) { r.Took = 9 * time.Second }), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := recorded()
			l.phases = []phase{{name: "begin", from: start}, {name: "lost", from: at(49), allow: []int{401}}}
			l.kills = []window{killed}
			l.fleet.Replicas[0].away = []span{{at(30), at(35)}}
			l.records = []Record{c.record}
			said := strings.Join(l.Stop().Broken, "\n")
			if c.broken == "" && said != "" || !strings.Contains(said, c.broken) {
				t.Errorf("said %q, want %q", said, c.broken)
			}
		})
	}
}

// A jti that comes twice, and a subject that changes, are broken rules.
func TestCheckerRemembers(t *testing.T) {
	l := recorded()
	l.phases = []phase{{name: "begin", from: time.Now()}}
	l.jtis, l.subjects = map[string]string{}, map[string]string{}
	for _, r := range []Record{
		{Caller: "a", Status: 200, Op: "sign", Want: Good, Subject: "pa_1", Token: Token{JTI: "x"}},
		{Caller: "b", Status: 200, Op: "sign", Want: Good, Subject: "pa_2", Token: Token{JTI: "x"}},
		{Caller: "a", Status: 200, Op: "sign", Want: Good, Subject: "pa_3", Token: Token{JTI: "y"}},
	} {
		r.Sent = time.Now()
		l.remember(r)
	}
	said := strings.Join(l.Stop().Broken, "\n")
	for _, want := range []string{"b and a got the same jti", "a had the subject pa_1 and has now pa_3"} {
		if !strings.Contains(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
	}
}
