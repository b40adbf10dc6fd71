package fleet

import (
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Report is what came of a run.
type Report struct {
	Phases []PhaseReport
	// Longest is the longest that a request was open which the test did not keep
	// from being answered.
	Longest time.Duration
	// AfterEffective is how many requests that were sent after a kill was printed
	// effective got 200.
	AfterEffective int
	Verified       map[string]Verified
	// Broken are the rules that were broken, the first of each kind in full.
	Broken []string
}

// PhaseReport counts the answers to the signs of callers that may which were sent
// in a phase.
type PhaseReport struct {
	Name   string
	Counts map[int]int // by status; 0: no answer, from a replica that the test kept from it
	Took   time.Duration
}

// String is the counts in words.
func (p PhaseReport) String() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(p.Counts)) {
		if status == 0 {
			continue
		}
		parts = append(parts, fmt.Sprintf("%d × %d", p.Counts[status], status))
	}
	if n := p.Counts[0]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d × none", n))
	}
	return p.Name + ": " + strings.Join(parts, ", ")
}

// FailedVerifications is how often a verifier refused a token that it should not.
func (r Report) FailedVerifications() (n int) {
	for _, v := range r.Verified {
		n += v.Failed
	}
	return n
}

// Check fails the test for everything that was broken.
func (r Report) Check(t interface{ Errorf(string, ...any) }) {
	for _, b := range r.Broken {
		t.Errorf("%s", b)
	}
}

// lateAnswer is how long after a replica was let go, or a switch lifted, its callers
// may still feel it.
const lateAnswer = 5 * time.Second

// Stop ends the load and reports.
func (l *Load) Stop() Report {
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	r := Report{Verified: map[string]Verified{}}
	broken := kinds{}
	for i, p := range l.phases {
		end := time.Now()
		if i+1 < len(l.phases) {
			end = l.phases[i+1].from
		}
		r.Phases = append(r.Phases, PhaseReport{Name: p.name, Counts: map[int]int{}, Took: end.Sub(p.from)})
	}
	for _, rec := range l.records {
		away := l.fleet.Replicas[rec.Replica].wasAway(rec.Sent, rec.Sent.Add(rec.Took))
		phase := l.phaseAt(rec.Sent)
		if rec.Want == Good && rec.Op == "sign" {
			r.Phases[phase].Counts[rec.Status]++
		}
		if !away {
			r.Longest = max(r.Longest, rec.Took)
		}
		if l.afterEffective(rec) {
			r.AfterEffective++
			broken.add("a token after effective", "%s", l.describe(rec))
		}
		switch {
		case rec.Status == 0 && away:
		case rec.Status == 0:
			broken.add("no answer", "%s: %s", l.describe(rec), rec.Problem)
		case rec.Problem != "":
			broken.add("an answer that is not the contract's", "%s: %s", l.describe(rec), rec.Problem)
		case !l.allowed(rec):
			broken.add(fmt.Sprintf("%d for a %s request", rec.Status, rec.Want), "%s", l.describe(rec))
		case rec.Took > l.fleet.Deadline+slack && !away:
			broken.add("open longer than the deadline", "%s", l.describe(rec))
		}
	}
	for _, p := range l.problems {
		broken.add("", "%s (in phase %s)", p.what, l.phases[l.phaseAt(p.at)].name)
	}
	for name, v := range l.tally {
		r.Verified[name] = *v
		if v.Failed > 0 {
			broken.add("", "the verifier that %s refused %d of %d tokens: %s", name, v.Failed, v.Tokens, v.First)
		}
	}
	r.Broken = broken.list()
	return r
}

// kinds are broken rules by kind, each with the first one and how many there were.
type kinds struct {
	order []string
	first map[string]string
	count map[string]int
}

func (k *kinds) add(kind, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if kind == "" {
		kind = what
	}
	if k.first == nil {
		k.first, k.count = map[string]string{}, map[string]int{}
	}
	if k.count[kind]++; k.count[kind] == 1 {
		k.order = append(k.order, kind)
		k.first[kind] = what
	}
}

func (k *kinds) list() (list []string) {
	for _, kind := range k.order {
		switch {
		case kind == k.first[kind]:
			list = append(list, kind)
		default:
			list = append(list, fmt.Sprintf("%s, %d times: first %s", kind, k.count[kind], k.first[kind]))
		}
	}
	return list
}

func (l *Load) describe(rec Record) string {
	p := l.phases[l.phaseAt(rec.Sent)]
	return fmt.Sprintf("%s %s by %s at replica %d, %v into phase %q, answered %d after %v",
		rec.Face, rec.Op, rec.Caller, rec.Replica, rec.Sent.Sub(p.from).Round(time.Millisecond), p.name, rec.Status, rec.Took.Round(time.Millisecond))
}

// phaseAt is the number of the phase at a time.
func (l *Load) phaseAt(at time.Time) int {
	for i := len(l.phases) - 1; i > 0; i-- {
		if !at.Before(l.phases[i].from) {
			return i
		}
	}
	return 0
}

// afterEffective tells whether a request got what the kill switch forbids: it was
// sent after the kill was printed effective, and before anybody began to lift it.
func (l *Load) afterEffective(rec Record) bool {
	if rec.Status != 200 || rec.Op == "status" { // status tells that the switch is on
		return false
	}
	for _, k := range l.kills {
		if !k.effective.IsZero() && rec.Sent.After(k.effective) && (k.lifting.IsZero() || rec.Sent.Before(k.lifting)) {
			return true
		}
	}
	return false
}

// killed tells whether a kill can have been in force at any time of a request.
func (l *Load) killed(rec Record) bool {
	for _, k := range l.kills {
		if rec.Sent.Add(rec.Took).After(k.thrown) && (k.lifted.IsZero() || rec.Sent.Before(k.lifted.Add(lateAnswer))) {
			return true
		}
	}
	return false
}

// allowed tells whether the contract allows the status of such a request.
func (l *Load) allowed(rec Record) bool {
	if rec.Status == 503 {
		return true
	}
	if rec.Status == 403 {
		return l.killed(rec) && (rec.Op == "sign" || rec.Op == "enroll" && rec.Want == Good)
	}
	switch rec.Want {
	case Forged, Replayed:
		return rec.Status == 401 || rec.Status == 429
	case Unregistered:
		return rec.Status == 422 || l.also(rec)
	case Malformed:
		return rec.Status == 400
	}
	return rec.Status == 200 || l.also(rec)
}

// also tells whether the phase in which a request was sent or answered allows its
// status.
func (l *Load) also(rec Record) bool {
	for _, at := range []time.Time{rec.Sent, rec.Sent.Add(rec.Took)} {
		if slices.Contains(l.phases[l.phaseAt(at)].allow, rec.Status) {
			return true
		}
	}
	return false
}

// Settle waits until every replica that the test leaves alone has answered all good
// signs with 200 for a while, and returns how long after from the last other answer
// was asked for; 0 if there was none.
func (l *Load) Settle(t T, from time.Time, within time.Duration) time.Duration {
	t.Helper()
	const quiet = 1500 * time.Millisecond
	var last time.Time
	settled := false
	defer func() {
		for _, e := range l.all() {
			if !settled && !e.replica.Away() {
				t.Logf("replica %d: %v", e.replica.Index, e.replica.Ready())
			}
		}
	}()
	Eventually(t, within, "every replica signs again", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		now := time.Now()
		since := now.Add(-quiet)
		if from.After(since) {
			return false
		}
		for _, o := range l.open {
			if o.at.Before(now.Add(-quiet/2)) && !o.replica.Away() {
				return false
			}
		}
		last = time.Time{}
		well := map[int]int{}
		for i := len(l.records) - 1; i >= 0; i-- {
			rec := l.records[i]
			if rec.Sent.Before(from) {
				if rec.Sent.Before(from.Add(-l.fleet.Deadline - slack)) {
					break
				}
				continue
			}
			if rec.Op != "sign" || rec.Want != Good {
				continue
			}
			switch {
			case rec.Status == 200 && rec.Sent.After(since):
				well[rec.Replica]++
			case rec.Status != 200 && rec.Sent.After(last) && !l.fleet.Replicas[rec.Replica].Away():
				last = rec.Sent
			}
		}
		if last.After(since) {
			return false
		}
		for _, e := range l.endpoints {
			if !e.replica.Away() && well[e.replica.Index] < 5 {
				return false
			}
		}
		return true
	})
	settled = true
	if last.IsZero() {
		return 0
	}
	return last.Sub(from)
}

// Last tells how the good signs that were sent in the last while were answered.
func (l *Load) Last(d time.Duration) map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[int]int{}
	since := time.Now().Add(-d)
	for i := len(l.records) - 1; i >= 0; i-- {
		rec := l.records[i]
		if rec.Sent.Before(since.Add(-l.fleet.Deadline - slack)) {
			break
		}
		if rec.Sent.After(since) && rec.Op == "sign" && rec.Want == Good {
			counts[rec.Status]++
		}
	}
	return counts
}

// KIDs are the keys that tokens of the run were signed with, in the order in which
// they were first seen.
func (l *Load) KIDs() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kids []string
	for _, rec := range l.records {
		if kid := rec.Token.KID; kid != "" && !slices.Contains(kids, kid) {
			kids = append(kids, kid)
		}
	}
	return kids
}

func randomUpTo(d time.Duration) time.Duration { return mathrand.N(d) }
