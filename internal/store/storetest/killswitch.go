package storetest

import (
	"fmt"
	"sync"
	"time"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

var switchCases = []testCase{
	{"kill and resume", killAndResume},
	{"epochs of acts at the same time", killRace},
	{"resume on another epoch", resumeChanged},
	{"merge", merge},
	{"beats", beats},
	{"a kill knows who beat before it", killSeesBeats},
	{"changed", changed},
	{"changes have names", changeNames},
	{"enforce", enforce},
}

func entry(id string, scope killswitch.Scope) killswitch.Entry {
	return killswitch.Entry{ID: id, Scope: scope, Reason: "testing", Actor: "tester"}
}

var everything = killswitch.Scope{Kind: killswitch.All}

// same says whether two states hold the same.
func same(a, b killswitch.State) bool {
	_, more := a.Absorb(b)
	_, less := b.Absorb(a)
	return !more && !less && len(a.Entries) == len(b.Entries) && len(a.Resumes) == len(b.Resumes)
}

func (h *harness) state() killswitch.State {
	h.Helper()
	s, err := h.State(h.ctx)
	h.ok(err)
	return s
}

// isNow says whether t is the store's time, which may have gone on since.
func (h *harness) isNow(t time.Time) bool {
	h.Helper()
	passed := h.now().Sub(t)
	return passed >= 0 && passed < 30*time.Second
}

func (h *harness) wantLive(ids ...string) {
	h.Helper()
	live := mapped(h.state().Live(), func(e killswitch.Entry) string { return e.ID })
	if fmt.Sprint(live) != fmt.Sprint(ids) {
		h.Fatalf("live are %v, want %v", live, ids)
	}
}

func killAndResume(h *harness) {
	if s := h.state(); s.Epoch != 0 || len(s.Entries)+len(s.Resumes) != 0 {
		h.Fatalf("a new store's switch is %+v", s)
	}
	e := entry("one", killswitch.Scope{Kind: killswitch.Device, Issuer: issuer, Value: "thumb"})
	e.Expires = h.now().Add(time.Hour)
	first, replicas, err := h.Kill(h.ctx, e, 0, act("kill"))
	h.ok(err)
	if first.Epoch != 1 || !h.isNow(first.Time) || !first.Expires.Equal(e.Expires) || first.Scope != e.Scope || len(replicas) != 0 {
		h.Fatalf("kill gave %+v and %v", first, replicas)
	}
	second, _, err := h.Kill(h.ctx, entry("two", everything), 10, act("kill"))
	h.ok(err)
	if second.Epoch != 10 {
		h.Fatalf("a kill with floor 10 has epoch %d", second.Epoch)
	}
	third, _, err := h.Kill(h.ctx, entry("three", everything), 5, act("kill"))
	h.ok(err)
	if third.Epoch != 11 {
		h.Fatalf("a kill with floor 5 after epoch 10 has epoch %d", third.Epoch)
	}
	h.wantLive("one", "two", "three")
	r, err := h.Resume(h.ctx, killswitch.Resume{ID: "r", Entries: []string{"two", "one"}, Reason: "over", Actor: "tester"}, 11, 20, act("resume"))
	h.ok(err)
	if r.Epoch != 20 || !h.isNow(r.Time) {
		h.Fatalf("resume gave %+v", r)
	}
	h.wantLive("three")
	before := h.state()
	h.reopen()
	h.wantLive("three")
	if after := h.state(); !same(before, after) || len(after.Entries) != 3 || after.Epoch != 20 {
		h.Fatalf("after a restart the switch is %+v, was %+v", after, before)
	}
	all := h.wholeAudit()
	if len(all) != 4 || all[0].Action != "kill" || all[3].Action != "resume" {
		h.Fatalf("the audit log is %+v", all)
	}
	if _, _, err := h.Kill(h.ctx, entry("", everything), 0, act("kill")); err == nil {
		h.Fatal("a kill without an id was taken")
	}
}

func killRace(h *harness) {
	const n = 30
	epochs := make([]uint64, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			e, _, err := h.Kill(h.ctx, entry(fmt.Sprint("id", i), everything), 0, act("kill"))
			if err != nil {
				h.Errorf("kill: %v", err)
			}
			epochs[i] = e.Epoch
		})
	}
	wg.Wait()
	seen := make(map[uint64]bool)
	for _, e := range epochs {
		if seen[e] {
			h.Fatalf("two kills have epoch %d", e)
		}
		seen[e] = true
	}
	if s := h.state(); s.Epoch != n || len(s.Live()) != n {
		h.Fatalf("after %d kills the epoch is %d and %d entries are live", n, s.Epoch, len(s.Live()))
	}
}

func resumeChanged(h *harness) {
	first, _, err := h.Kill(h.ctx, entry("one", everything), 0, act("kill"))
	h.ok(err)
	_, _, err = h.Kill(h.ctx, entry("two", everything), 0, act("kill"))
	h.ok(err)
	r := killswitch.Resume{ID: "r", Entries: []string{"one"}, Reason: "over", Actor: "tester"}
	_, err = h.Resume(h.ctx, r, first.Epoch, 0, act("resume"))
	h.wantIs(err, killswitch.ErrChanged)
	_, err = h.Resume(h.ctx, r, h.epoch()+1, 0, act("resume"))
	h.wantIs(err, killswitch.ErrChanged)
	h.wantLive("one", "two")
	if h.epoch() != 2 || len(h.wholeAudit()) != 2 {
		h.Fatal("a resume that failed left something")
	}
	// Of many on the same epoch one wins.
	var won int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			r := r
			r.ID = fmt.Sprint("r", i)
			if _, err := h.Resume(h.ctx, r, 2, 0, act("resume")); err == nil {
				mu.Lock()
				won++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if won != 1 {
		h.Fatalf("%d resumes of one epoch were taken", won)
	}
}

func merge(h *harness) {
	at := h.now()
	foreign := killswitch.State{
		Epoch: 7,
		Entries: []killswitch.Entry{
			{ID: "x", Scope: everything, Reason: "r", Actor: "a", Time: at, Epoch: 6},
			{ID: "y", Scope: killswitch.Scope{Kind: killswitch.Issuer, Issuer: issuer}, Reason: "r", Actor: "a", Time: at, Epoch: 3},
		},
		Resumes: []killswitch.Resume{{ID: "z", Entries: []string{"y"}, Reason: "r", Actor: "a", Time: at, Epoch: 7}},
	}
	_, _, err := h.Kill(h.ctx, entry("own", everything), 0, act("kill"))
	h.ok(err)
	before := h.state()
	want, _ := before.Absorb(foreign)
	got, err := h.Merge(h.ctx, foreign)
	h.ok(err)
	if !same(got, want) || got.Epoch <= 7 {
		h.Fatalf("merge gave %+v, want %+v", got, want)
	}
	h.wantLive("own", "x")
	again, err := h.Merge(h.ctx, foreign)
	h.ok(err)
	if !same(again, want) {
		h.Fatalf("merging again gave %+v", again)
	}
	_, err = h.Merge(h.ctx, killswitch.State{})
	h.ok(err)
	h.reopen()
	if s := h.state(); !same(s, want) {
		h.Fatalf("after a restart the switch is %+v, want %+v", s, want)
	}
	g, err := h.Beat(h.ctx, killswitch.Beat{Replica: "a"})
	h.ok(err)
	if g.Epoch != want.Epoch {
		h.Fatalf("a beat got epoch %d, want %d", g.Epoch, want.Epoch)
	}
	higher, err := h.Merge(h.ctx, killswitch.State{Epoch: 100})
	h.ok(err)
	if higher.Epoch < 100 {
		h.Fatalf("merging epoch 100 gave %d", higher.Epoch)
	}
}

func beats(h *harness) {
	g, err := h.Beat(h.ctx, killswitch.Beat{Replica: "a", Version: "v1", Epoch: 0, Revisions: map[string]uint64{issuer: 4}, Ready: true, Time: h.now()})
	h.ok(err)
	if g.Epoch != 0 || !h.isNow(g.Time) {
		h.Fatalf("granted %+v", g)
	}
	h.backend.Advance(4 * time.Second)
	_, err = h.Beat(h.ctx, killswitch.Beat{Replica: "b"})
	h.ok(err)
	h.backend.Advance(2 * time.Second)
	names := func(liveFor time.Duration) string {
		h.Helper()
		list, err := h.Replicas(h.ctx, liveFor)
		h.ok(err)
		return fmt.Sprint(mapped(list, func(r killswitch.Replica) string { return r.Replica }))
	}
	if a, b := names(time.Minute), names(5*time.Second); a != "[a b]" || b != "[b]" {
		h.Fatalf("replicas of a minute are %s, of 5 s %s", a, b)
	}
	list, err := h.Replicas(h.ctx, time.Minute)
	h.ok(err)
	a := list[0]
	if a.Version != "v1" || !a.Ready || a.Revisions[issuer] != 4 || !h.isNow(a.Seen.Add(6*time.Second)) {
		h.Fatalf("replica a is %+v", a)
	}
	e, registered, err := h.Kill(h.ctx, entry("one", everything), 0, act("kill"))
	h.ok(err)
	if len(registered) != 2 {
		h.Fatalf("the kill saw %v", registered)
	}
	for held, n := false, 0; !held; n++ { // again, if the machine was busy and a's time is over
		told, seen := e.Epoch, h.now()
		g, err = h.Beat(h.ctx, killswitch.Beat{Replica: "a", Epoch: told})
		h.ok(err)
		if g.Epoch != told {
			h.Fatalf("granted epoch %d after a kill in %d", g.Epoch, told)
		}
		h.backend.Advance(seen.Add(9 * time.Second).Sub(h.now()))
		e, registered, err = h.Kill(h.ctx, entry(fmt.Sprint("two", n), everything), 0, act("kill"))
		h.ok(err)
		if held = h.now().Before(seen.Add(10 * time.Second)); held && (len(registered) != 1 || registered[0].Replica != "a" || registered[0].Epoch != told) {
			h.Fatalf("9 s after a's last beat, and 11 s after b's, a kill saw %+v", registered)
		}
	}
}

func killSeesBeats(h *harness) {
	const n = 50
	grants := make([]killswitch.Grant, n)
	var registered map[string]bool
	var epoch uint64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			var err error
			if grants[i], err = h.Beat(h.ctx, killswitch.Beat{Replica: fmt.Sprint(i)}); err != nil {
				h.Errorf("beat: %v", err)
			}
		})
	}
	wg.Go(func() {
		<-start
		e, replicas, err := h.Kill(h.ctx, entry("one", everything), 0, act("kill"))
		if err != nil {
			h.Errorf("kill: %v", err)
		}
		epoch, registered = e.Epoch, make(map[string]bool)
		for _, r := range replicas {
			registered[r.Replica] = true
		}
	})
	close(start)
	wg.Wait()
	for i, g := range grants {
		if g.Epoch < epoch && !registered[fmt.Sprint(i)] {
			h.Fatalf("replica %d was granted epoch %d, and the kill in %d did not see it", i, g.Epoch, epoch)
		}
	}
}

func changed(h *harness) {
	wait := func(what string, c <-chan struct{}) {
		h.Helper()
		select {
		case <-c:
		case <-time.After(time.Minute):
			h.Fatalf("%s was not announced", what)
		}
	}
	a, b := h.Changed(), h.Changed()
	_, _, err := h.Kill(h.ctx, entry("one", everything), 0, act("kill"))
	h.ok(err)
	wait("a kill", a)
	wait("a kill, to the second who waits,", b)
	a = h.Changed()
	_, err = h.Resume(h.ctx, killswitch.Resume{ID: "r", Entries: []string{"one"}, Reason: "r", Actor: "a"}, 1, 0, act("resume"))
	h.ok(err)
	wait("a resume", a)
	a = h.Changed()
	_, err = h.Merge(h.ctx, killswitch.State{Epoch: 9})
	h.ok(err)
	wait("a merge", a)
}

// changeNames: the name of the last change goes with beats, states and merges, and
// is another one after each change.
func changeNames(h *harness) {
	seen := map[string]bool{}
	lineage := ""
	look := func(what string, isNew bool) {
		h.Helper()
		g, err := h.Beat(h.ctx, killswitch.Beat{Replica: "a"})
		h.ok(err)
		s := h.state()
		if g.Change != s.Change || g.Epoch != s.Epoch {
			h.Fatalf("%s: granted change %q of epoch %d, the state has %q of %d", what, g.Change, g.Epoch, s.Change, s.Epoch)
		}
		if (g.Change == "") != (g.Epoch == 0) || seen[g.Change] == isNew {
			h.Fatalf("%s: the change of epoch %d is %q", what, g.Epoch, g.Change)
		}
		if len(seen) > 0 && g.Lineage != lineage {
			h.Fatalf("%s: the lineage is %q, was %q", what, g.Lineage, lineage)
		}
		seen[g.Change], lineage = true, g.Lineage
	}
	look("at first", true)
	e, _, err := h.Kill(h.ctx, entry("one", everything), 0, act("kill"))
	h.ok(err)
	look("a kill", true)
	if s := h.state(); !same(s, killswitch.State{Epoch: 1, Entries: []killswitch.Entry{e}}) {
		h.Fatalf("the kill was told as %+v, and is kept as %+v", e, s.Entries)
	}
	look("nothing", false)
	r := killswitch.Resume{ID: "r", Entries: []string{"one"}, Reason: "over", Actor: "tester"}
	_, err = h.Resume(h.ctx, r, 99, 0, act("resume"))
	h.wantIs(err, killswitch.ErrChanged)
	look("a resume that failed", false)
	r, err = h.Resume(h.ctx, r, 1, 0, act("resume"))
	h.ok(err)
	look("a resume", true)
	if s := h.state(); !same(s, killswitch.State{Epoch: 2, Entries: []killswitch.Entry{e}, Resumes: []killswitch.Resume{r}}) {
		h.Fatalf("the resume was told as %+v, and is kept as %+v", r, s.Resumes)
	}
	// A kill that was lost is thrown again under its id; both stay if it was not lost.
	e.Epoch, e.Time = 0, time.Time{}
	_, _, err = h.Kill(h.ctx, e, 0, act("kill"))
	h.ok(err)
	look("a kill again", true)
	if s := h.state(); len(s.Entries) != 2 {
		h.Fatalf("of two kills with one id %+v is kept", s.Entries)
	}
	for _, isNew := range []bool{true, false} {
		s, err := h.Merge(h.ctx, killswitch.State{Epoch: 9})
		h.ok(err)
		look("a merge", isNew)
		if !seen[s.Change] || s.Change != h.state().Change {
			h.Fatalf("a merge answered with change %q, the state has %q", s.Change, h.state().Change)
		}
	}
	_, _, err = h.Kill(h.ctx, entry("two", everything), 40, act("kill"))
	h.ok(err)
	look("a kill with a floor", true)
}

// enforce: nothing is authorised on an older epoch once Enforce has answered.
func enforce(h *harness) {
	h.ok(h.Enforce(h.ctx, 0))
	var calls []signer.Authorization
	for i := range 20 {
		thumbprint := fmt.Sprint("device", i)
		h.enroll(thumbprint)
		calls = append(calls, h.call(thumbprint))
	}
	e, _, err := h.Kill(h.ctx, entry("one", everything), 0, act("kill"))
	h.ok(err)
	for range 2 {
		h.ok(h.Enforce(h.ctx, e.Epoch))
		for _, call := range calls {
			_, err := h.Authorize(h.ctx, call)
			h.wantIs(err, signer.ErrStaleEpoch)
		}
	}
	for _, call := range calls {
		call.Epoch = e.Epoch
		_, err := h.Authorize(h.ctx, call)
		h.ok(err)
	}
}
