package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// LoadOptions say how a fleet is loaded.
type LoadOptions struct {
	// Rate is how many requests are sent a second, over all replicas alike,
	// whether they are answered or not.
	Rate     int
	Callers  []*Caller
	Audience string
	// Policies are the verifiers; nil: all of [Policies].
	Policies []Policy
	// NoReplays: no assertion is used again at another replica. A store that is
	// split in two cannot tell.
	NoReplays bool
}

// Load sends requests to every replica, and has every token verified.
type Load struct {
	fleet     *Fleet
	options   LoadOptions
	verifiers []*verifier
	working   sync.WaitGroup // requests and verifications
	stop      chan struct{}
	stopped   chan struct{} // closed when no more is sent

	mu        sync.Mutex
	endpoints []*endpoint
	open      map[int]opened // requests that wait for their answer
	sent      int
	records   []Record
	phases    []phase
	kills     []window
	problems  []problem
	tally     map[string]*Verified
	jtis      map[string]string // who got it
	subjects  map[string]string // of a caller
}

// opened is a request that waits.
type opened struct {
	at      time.Time
	replica *Replica
}

// phase is a named part of a run.
type phase struct {
	name  string
	from  time.Time
	allow []int // statuses that a good request may have besides 200, 403 and 503
}

// window is a kill of everything.
type window struct {
	thrown, effective time.Time // zero effective: nobody has said so
	lifting, lifted   time.Time // zero: not yet
}

// problem is a rule that was broken.
type problem struct {
	at   time.Time
	what string
}

// Verified counts a verifier's verdicts.
type Verified struct {
	Tokens, Failed, Undecided int
	First                     string // why the first one failed
}

// StartLoad begins to load the fleet. End it with Stop.
func (f *Fleet) StartLoad(t T, o LoadOptions) *Load {
	t.Helper()
	if o.Policies == nil {
		o.Policies = Policies(f.Scale)
	}
	o.Callers = slices.Clone(o.Callers)
	l := &Load{
		fleet: f, options: o,
		stop: make(chan struct{}), stopped: make(chan struct{}),
		open:  map[int]opened{},
		tally: map[string]*Verified{}, jtis: map[string]string{}, subjects: map[string]string{},
	}
	for _, p := range o.Policies {
		// Times in tokens are whole seconds, however they are scaled.
		leeway := max(30*time.Second/time.Duration(f.Scale), time.Second)
		l.verifiers = append(l.verifiers, &verifier{policy: p, load: l, leeway: leeway})
		l.tally[p.Name] = &Verified{}
	}
	for _, r := range f.Replicas {
		l.Join(t, r)
	}
	l.Phase("begin")
	go l.run()
	t.Cleanup(func() { l.end() })
	return l
}

// Join also sends requests to a replica that was added.
func (l *Load) Join(t T, r *Replica) {
	t.Helper()
	e := l.fleet.endpoint(t, r)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endpoints = append(l.endpoints, e)
}

func (l *Load) all() []*endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.endpoints)
}

// Phase begins a named part of the run. allow are statuses that good requests may
// have in it, besides 200, 503 and, around a kill, 403.
func (l *Load) Phase(name string, allow ...int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phases = append(l.phases, phase{name, time.Now(), allow})
}

func (l *Load) run() {
	defer close(l.stopped)
	tick := time.NewTicker(time.Second / time.Duration(l.options.Rate))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		endpoints := l.all()
		e := endpoints[n%len(endpoints)]
		rq := l.request(n / len(endpoints))
		other := endpoints[(n+1)%len(endpoints)]
		l.working.Go(func() {
			if n%17 != 3 || l.options.NoReplays || other == e || rq.op != "sign" || rq.want != Good || !rq.caller.Device() {
				l.one(e, rq)
				return
			}
			rq.assertion = rq.caller.authorization(l.fleet.Issuer + "/pact/sign")
			if l.one(e, rq).Status == 200 {
				rq.want = Replayed
				l.one(other, rq)
			}
		})
	}
}

// request is the nth request that a replica gets: most are signs, by each caller
// on each face in turn.
func (l *Load) request(n int) request {
	l.mu.Lock()
	callers := l.options.Callers
	l.mu.Unlock()
	rq := request{face: REST, caller: callers[n%len(callers)], op: "sign", want: Good, audience: l.options.Audience}
	if n/len(callers)%2 == 1 {
		rq.face = GRPC
	}
	switch n % 37 { // prime, so that everything meets everything
	case 5, 23:
		rq.op = "status"
	case 11:
		if rq.caller.Device() {
			rq.op = "enroll"
		}
	case 17:
		rq.want, rq.caller = Forged, &Caller{Name: "forger", Credential: fmt.Sprintf("not-a-credential-%d", n)}
	case 29:
		rq.want, rq.audience = Unregistered, "nobody has registered this"
	case 31:
		rq.want = Malformed
	}
	return rq
}

// one makes a request and looks at what came back.
func (l *Load) one(e *endpoint, rq request) Record {
	l.mu.Lock()
	id := l.sent
	l.sent++
	l.open[id] = opened{time.Now(), e.replica}
	l.mu.Unlock()
	rec := e.do(rq)
	token := rec.Token.raw
	rec.Token.raw = ""

	l.mu.Lock()
	delete(l.open, id)
	l.records = append(l.records, rec)
	l.remember(rec)
	l.mu.Unlock()
	if token != "" {
		l.verify(token, rec)
	}
	return rec
}

// remember holds an answer against those before it.
func (l *Load) remember(rec Record) {
	if rec.Status == 200 && rec.Subject != "" {
		if was, known := l.subjects[rec.Caller]; !known {
			l.subjects[rec.Caller] = rec.Subject
		} else if was != rec.Subject {
			l.problem(rec.Sent, "%s had the subject %s and has now %s", rec.Caller, was, rec.Subject)
		}
	}
	if rec.Token.JTI != "" {
		if other, seen := l.jtis[rec.Token.JTI]; seen {
			l.problem(rec.Sent, "%s and %s got the same jti", rec.Caller, other)
		}
		l.jtis[rec.Token.JTI] = rec.Caller
	}
}

// verify has every verifier look at a token, now and, if it lives for seconds only,
// at another moment of its life.
func (l *Load) verify(token string, rec Record) {
	received := rec.Sent.Add(rec.Took)
	for _, v := range l.verifiers {
		l.working.Go(func() {
			l.verdict(v, token, rec, received)
			over := time.Unix(rec.Token.Expires, 0).Add(v.leeway)
			if left := time.Until(over); left > 0 && left < 20*time.Second {
				later := time.NewTimer(randomUpTo(left))
				defer later.Stop()
				select {
				case <-later.C:
					l.verdict(v, token, rec, received)
				case <-l.stopped:
				}
			}
		})
	}
}

func (l *Load) verdict(v *verifier, token string, rec Record, received time.Time) {
	err := v.verify(token, l.options.Audience, received)
	over := time.Unix(rec.Token.Expires, 0).Add(v.leeway)
	l.mu.Lock()
	defer l.mu.Unlock()
	tally := l.tally[v.policy.Name]
	switch {
	case err == nil:
		tally.Tokens++
	case err == errUndecided || time.Now().After(over):
		tally.Undecided++ // a verifier would not accept it any more, whatever the key
	default:
		tally.Tokens++
		tally.Failed++
		if tally.First == "" {
			tally.First = fmt.Sprintf("token of %s from replica %d, %v after it was asked for: %v", rec.Caller, rec.Replica, time.Since(rec.Sent).Round(time.Millisecond), err)
		}
	}
}

// violate records a rule that was broken.
func (l *Load) violate(at time.Time, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problem(at, format, args...)
}

func (l *Load) problem(at time.Time, format string, args ...any) {
	l.problems = append(l.problems, problem{at, fmt.Sprintf(format, args...)})
}

// Stay lets the load go on for a time.
func (l *Load) Stay(d time.Duration) {
	end := time.NewTimer(d)
	defer end.Stop()
	select {
	case <-end.C:
	case <-l.stopped:
	}
}

// MeasureKill throws a kill of everything over gRPC and lifts it again, and returns
// how long it took from the call until the answer that it is effective.
func (l *Load) MeasureKill(ctx context.Context, admin signerv1.AdminServiceClient) (time.Duration, error) {
	scope := &signerv1.Scope{Kind: "all"}
	began := time.Now()
	n := l.thrown(began)
	killed, err := admin.Kill(ctx, &signerv1.KillRequest{Scope: scope, Reason: "measure"})
	if err != nil {
		return 0, err
	}
	stream, err := admin.WaitKill(ctx, &signerv1.WaitKillRequest{Epoch: killed.Entry.Epoch})
	if err != nil {
		return 0, err
	}
	for effective := false; !effective; {
		b, err := stream.Recv()
		if err != nil {
			return 0, err
		}
		effective = b.Effective
	}
	at := time.Now()
	l.effective(n, at)
	l.lifting()
	_, err = admin.Resume(ctx, &signerv1.ResumeRequest{Scope: scope, EntryIds: []string{killed.Entry.Id}, Reason: "measured"})
	l.lifted()
	return at.Sub(began), err
}

// Kill throws a kill of everything by pactctl, via a replica. From the line that
// says that it is effective until Resume no token may be issued.
func (l *Load) Kill(t T, via *Replica, line func(string)) Kill {
	t.Helper()
	n := l.thrown(time.Now())
	var k Kill
	var err error
	Eventually(t, Patience, "a kill", func() bool { // an operator who is told to try again does
		k, err = l.fleet.ThrowKill(via, line, "--all")
		if err != nil {
			t.Logf("%v", err)
		}
		return err == nil
	})
	l.effective(n, k.Effective)
	return k
}

// Resume lifts everything by pactctl.
func (l *Load) Resume(t T, via *Replica) {
	t.Helper()
	l.lifting()
	l.fleet.MustPactctl(t, via, "resume", "--all", "--reason", "test")
	l.lifted()
}

// thrown begins the window of a kill and returns its number.
func (l *Load) thrown(at time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kills = append(l.kills, window{thrown: at})
	return len(l.kills) - 1
}

func (l *Load) effective(n int, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kills[n].effective = at
}

func (l *Load) lifting() { l.close(func(w *window) *time.Time { return &w.lifting }) }

func (l *Load) lifted() { l.close(func(w *window) *time.Time { return &w.lifted }) }

// close sets a time of every window that does not have it yet.
func (l *Load) close(end func(*window) *time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for i := range l.kills {
		if at := end(&l.kills[i]); at.IsZero() {
			*at = now
		}
	}
}

// end stops sending and waits until all is answered and verified.
func (l *Load) end() {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	<-l.stopped
	l.working.Wait()
	for _, e := range l.all() {
		e.close()
	}
}

// Replace sends the requests of one caller as another from now on.
func (l *Load) Replace(was, now *Caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.options.Callers = slices.Clone(l.options.Callers)
	for i, c := range l.options.Callers {
		if c == was {
			l.options.Callers[i] = now
		}
	}
}

// ByReplica tells how the good signs of the whole run were answered by one replica.
func (l *Load) ByReplica(replica int) map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[int]int{}
	for _, rec := range l.records {
		if rec.Replica == replica && rec.Op == "sign" && rec.Want == Good {
			counts[rec.Status]++
		}
	}
	return counts
}
