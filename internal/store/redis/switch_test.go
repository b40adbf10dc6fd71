package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

const (
	testIssuer = "https://pa.example.com"
	testID     = "deployment-1"
)

// patient are the timeouts of a store whose servers answer, however busy the machine is.
// Where one hangs, or copies that acknowledge are slow, a test has others.
var patient = timeouts{net: 30 * time.Second, call: time.Minute, ack: defaultTimeouts.ack}

// unmarked opens a store that expects testID, and is patient unless o says otherwise.
func unmarked(t testing.TB, o Options) *Store {
	t.Helper()
	if o.timeouts == (timeouts{}) {
		o.timeouts = patient
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.Expect(testID)
	return s
}

// marked opens a store over data that it marks.
func marked(t testing.TB, o Options) *Store {
	t.Helper()
	s := unmarked(t, o)
	eventually(t, "mark", func() error { return s.Mark(t.Context(), testID) }) // copies may be slow at first
	return s
}

// acknowledged is o for a store whose copies acknowledge, however busy the machine is.
func acknowledged(o Options) Options {
	o.timeouts = patient
	o.timeouts.ack = patient.net / 2
	return o
}

func onServer(r *servers.Redis) Options { return Options{Addrs: []string{r.Addr()}} }

// eventually waits until try returns nil.
func eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

func killAll(id string) killswitch.Entry {
	return killswitch.Entry{ID: id, Scope: killswitch.Scope{Kind: killswitch.All}, Reason: "testing", Actor: "tester"}
}

func acting(action, target string) audit.Entry {
	return audit.Entry{Actor: "tester", Action: action, Target: target, Reason: "testing"}
}

func beat(t testing.TB, s *Store, replica string) killswitch.Grant {
	t.Helper()
	g, err := s.Beat(t.Context(), killswitch.Beat{Replica: replica, Ready: true})
	if err != nil {
		t.Fatalf("beat: %v", err)
	}
	return g
}

func stateOf(t testing.TB, s *Store) killswitch.State {
	t.Helper()
	state, err := s.State(t.Context())
	if err != nil {
		t.Fatalf("state: %v", err)
	}
	return state
}

// verifiedLog returns the whole audit log, whose chain and heads are in order.
func verifiedLog(t testing.TB, s *Store) []audit.Entry {
	t.Helper()
	last, written, err := s.AuditHead(t.Context())
	if err != nil {
		t.Fatalf("audit head: %v", err)
	}
	var v audit.Verifier
	v.Expect(last, written)
	var all []audit.Entry
	for {
		page, err := s.Audit(t.Context(), uint64(len(all)), 100)
		if err != nil {
			t.Fatalf("audit: %v", err)
		}
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			if err := v.Add(e); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, page...)
	}
	if err := v.End(); err != nil {
		t.Fatal(err)
	}
	return all
}

func count(log []audit.Entry, action, target string) (n int) {
	for _, e := range log {
		if e.Action == action && e.Target == target {
			n++
		}
	}
	return n
}

func intents(t testing.TB, r *servers.Redis) int64 {
	t.Helper()
	return r.Do("HLEN", "pact:{g}:intents").(int64)
}

// Whatever has become of the audit log, a kill stands. Its audit entry waits until
// the log takes it.
func TestNothingWrongWithTheAuditLogStopsAKill(t *testing.T) {
	for name, c := range map[string]struct {
		damage, repair []any
		lost           bool // entries of before are gone
	}{
		"head is gone":          {damage: []any{"DEL", "pact:{g}:head"}},
		"head is something":     {damage: []any{"SET", "pact:{g}:head", "x"}, repair: []any{"DEL", "pact:{g}:head"}},
		"head is nonsense":      {damage: []any{"HSET", "pact:{g}:head", "seq", "x", "hash", "y"}},
		"log is gone":           {damage: []any{"DEL", "pact:{g}:log"}, lost: true},
		"log is something":      {damage: []any{"SET", "pact:{g}:log", "x"}, repair: []any{"DEL", "pact:{g}:log"}, lost: true},
		"newest entry is gone":  {damage: []any{"XDEL", "pact:{g}:log", "2-0"}, lost: true},
		"newest is unreadable":  {damage: []any{"XADD", "pact:{g}:log", "3-0", "e", "garbage"}, lost: true},
		"intents are something": {damage: []any{"SET", "pact:{g}:intents", "x"}, repair: []any{"DEL", "pact:{g}:intents"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := servers.StartRedis(t, servers.RedisOptions{})
			s := marked(t, onServer(r))
			for i := range 2 {
				if err := s.AppendAudit(t.Context(), acting("before", fmt.Sprint(i))); err != nil {
					t.Fatal(err)
				}
			}
			beat(t, s, "a")
			r.Do(c.damage...)
			e, replicas, err := s.Kill(t.Context(), killAll("one"), 0, acting("kill", "one"))
			if err != nil || e.Epoch != 1 || len(replicas) != 1 {
				t.Fatalf("kill gave %+v, %v, %v", e, replicas, err)
			}
			if live := stateOf(t, s).Live(); len(live) != 1 || live[0].ID != "one" {
				t.Fatalf("live are %v", live)
			}
			if c.repair != nil {
				r.Do(c.repair...)
			}
			eventually(t, "the kill's audit entry", func() error {
				beat(t, s, "a")
				log, err := s.Audit(t.Context(), 0, 100)
				var damaged *audit.DamagedError
				if errors.As(err, &damaged) {
					log, err = s.Audit(t.Context(), damaged.Seq, 100)
				}
				if err != nil {
					return err
				}
				if n := count(log, "kill", "one"); n != 1 {
					return fmt.Errorf("it is in the log %d times: %v", n, log)
				}
				return nil
			})
			if err := s.AppendAudit(t.Context(), acting("after", "")); err != nil {
				t.Fatal(err)
			}
			if !c.lost {
				if log := verifiedLog(t, s); len(log) != 4 {
					t.Fatalf("the log is %+v", log)
				}
			}
		})
	}
}

// Kills are one script: others that append to the log all the time hold none up,
// and each is in the log once.
func TestKillsBesideRefusals(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 3 {
		other := unmarked(t, onServer(r))
		for range 4 {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					if err := other.AppendAudit(ctx, acting("refused", fmt.Sprint(i))); err != nil && ctx.Err() == nil {
						t.Errorf("append: %v", err)
					}
				}
			})
		}
	}
	const kills = 50
	for i := range kills {
		id := fmt.Sprint("kill", i)
		if _, _, err := s.Kill(t.Context(), killAll(id), 0, acting("kill", id)); err != nil {
			t.Errorf("kill: %v", err)
		}
	}
	cancel()
	wg.Wait()
	if err := s.finishIntents(t.Context()); err != nil {
		t.Fatal(err)
	}
	log := verifiedLog(t, s)
	for i := range kills {
		id := fmt.Sprint("kill", i)
		if n := count(log, "kill", id); n != 1 {
			t.Errorf("kill %s is %d times in the log", id, n)
		}
	}
	if len(log) == kills {
		t.Error("there were no refusals in the log")
	}
	t.Logf("%d entries", len(log))
}

// A kill whose caller leaves right after the script is in the log all the same:
// any replica's beat sees to it.
func TestABeatFinishesTheAuditOfAKill(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	r.Do("HSET", "pact:{g}:intents", "x", `1700000000 done {"actor":"tester","action":"kill","target":"gone"}`)
	beat(t, s, "a")
	eventually(t, "the entry", func() error {
		if log := verifiedLog(t, s); count(log, "kill", "gone") != 1 || log[0].Detail["outcome"] != "" {
			return fmt.Errorf("the log is %+v", log)
		}
		return nil
	})
	if n := intents(t, r); n != 0 {
		t.Fatalf("%d intents are left", n)
	}
}

func TestMergeOfStatesWithPreciseTimes(t *testing.T) {
	s := marked(t, onServer(servers.StartRedis(t, servers.RedisOptions{})))
	at := time.Date(2026, 5, 4, 3, 2, 1, 123456789, time.UTC)
	before := time.Date(1960, 5, 4, 3, 2, 1, 987654321, time.UTC)
	other := killswitch.State{
		Epoch: 9,
		Entries: []killswitch.Entry{
			{ID: "x", Scope: killswitch.Scope{Kind: killswitch.Device, Issuer: testIssuer, Value: "ü \"quoted\" \x7f"}, Reason: "ein Grund: <&>\n", Actor: "a", Time: at, Expires: at.Add(time.Hour), Epoch: 3},
			{ID: "x", Scope: killswitch.Scope{Kind: killswitch.All}, Actor: "b", Time: before, Epoch: 4},
			{ID: "y", Scope: killswitch.Scope{Kind: killswitch.All}, Epoch: 5},
		},
		Resumes: []killswitch.Resume{{ID: "z", Entries: []string{"x", "y"}, Time: at, Epoch: 9}, {ID: "w", Epoch: 2}},
	}
	if _, err := s.Merge(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	got := stateOf(t, s)
	if next, changed := got.Absorb(other); changed || len(got.Entries) != 3 || len(got.Resumes) != 2 {
		t.Fatalf("the store holds %+v, and would take %+v", got, next)
	}
}

// Of replicas that merge different things at the same time none is lost, and every
// change has a name of its own.
func TestMergesAtTheSameTime(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	var wg sync.WaitGroup
	for i := range 10 {
		o := unmarked(t, onServer(r))
		wg.Go(func() {
			_, err := o.Merge(t.Context(), killswitch.State{Epoch: 5, Entries: []killswitch.Entry{
				{ID: fmt.Sprint(i), Scope: killswitch.Scope{Kind: killswitch.All}, Epoch: 5},
			}})
			if err != nil {
				t.Errorf("merge: %v", err)
			}
		})
	}
	wg.Wait()
	state := stateOf(t, s)
	if len(state.Entries) != 10 || state.Epoch < 14 {
		t.Fatalf("the state is %+v", state)
	}
	names := map[string]bool{state.Change: true}
	for range 3 {
		merged, err := s.Merge(t.Context(), killswitch.State{Epoch: stateOf(t, s).Epoch + 1})
		if err != nil || names[merged.Change] {
			t.Fatalf("a merge gave %+v, %v", merged, err)
		}
		names[merged.Change] = true
		if g := beat(t, s, "a"); g.Change != merged.Change || g.Epoch != merged.Epoch {
			t.Fatalf("after a merge to %+v a beat was granted %+v", merged, g)
		}
	}
	e, _, err := s.Kill(t.Context(), killAll("k"), 0, acting("kill", "k"))
	if g := beat(t, s, "a"); err != nil || names[g.Change] || g.Change != stateOf(t, s).Change {
		t.Fatalf("after kill %+v, %v a beat was granted %+v", e, err, g)
	}
}

func TestEpochsStayWhereScriptsCountExactly(t *testing.T) {
	s := marked(t, onServer(servers.StartRedis(t, servers.RedisOptions{})))
	for _, epoch := range []uint64{1 << 60, killswitch.EpochCeiling} {
		if _, err := s.Merge(t.Context(), killswitch.State{Epoch: epoch}); !errors.Is(err, killswitch.ErrDamaged) {
			t.Errorf("a merge of epoch %d gives %v", epoch, err)
		}
	}
	const high = killswitch.EpochCeiling - 3
	if _, err := s.Merge(t.Context(), killswitch.State{Epoch: high}); err != nil {
		t.Fatal(err)
	}
	e, _, err := s.Kill(t.Context(), killAll("k"), 0, acting("kill", "k"))
	if err != nil || e.Epoch != high+1 || stateOf(t, s).Epoch != e.Epoch {
		t.Fatalf("kill gave %+v, %v", e, err)
	}
}

// What one store changes another one's Changed tells, also over a connection that
// was lost meanwhile.
func TestChangedBetweenStores(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	a, b := marked(t, onServer(r)), unmarked(t, onServer(r))
	closed := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s was not announced", what)
		}
	}
	closed("the first subscription", b.Changed())
	c := b.Changed()
	if _, _, err := a.Kill(t.Context(), killAll("one"), 0, acting("kill", "one")); err != nil {
		t.Fatal(err)
	}
	closed("a kill", c)
	c = b.Changed()
	if err := a.Mirror(t.Context(), testIssuer, 3, []byte("doc")); err != nil {
		t.Fatal(err)
	}
	closed("a schedule", c)
	c = b.Changed()
	r.Do("CLIENT", "KILL", "TYPE", "pubsub")
	closed("a connection made anew", c)
	c = b.Changed()
	if _, err := a.Merge(t.Context(), killswitch.State{Epoch: 9}); err != nil {
		t.Fatal(err)
	}
	closed("a merge", c)
}

func TestSchedules(t *testing.T) {
	s := marked(t, onServer(servers.StartRedis(t, servers.RedisOptions{})))
	want := func(revision uint64, doc string) {
		t.Helper()
		rev, got, err := s.Mirrored(t.Context(), testIssuer)
		if err != nil || rev != revision || string(got) != doc {
			t.Fatalf("mirrored is %d %q, %v, want %d %q", rev, got, err, revision, doc)
		}
		if g := beat(t, s, "a"); g.Revisions[testIssuer] != revision {
			t.Fatalf("a grant names revision %d, want %d", g.Revisions[testIssuer], revision)
		}
	}
	want(0, "")
	for _, m := range []struct {
		revision uint64
		doc      string
		after    uint64
		have     string
	}{
		{3, "three", 3, "three"},
		{2, "two", 3, "three"},
		{3, "\x00three\xff again", 3, "\x00three\xff again"},
		{10, "ten", 10, "ten"},
		{9, "nine", 10, "ten"},
	} {
		if err := s.Mirror(t.Context(), testIssuer, m.revision, []byte(m.doc)); err != nil {
			t.Fatal(err)
		}
		want(m.after, m.have)
	}
	if rev, _, err := s.Mirrored(t.Context(), "https://other.example.com"); err != nil || rev != 0 {
		t.Fatalf("another issuer's schedule is %d, %v", rev, err)
	}
	beatServing := func(replica string, revision uint64) {
		t.Helper()
		_, err := s.Beat(t.Context(), killswitch.Beat{Replica: replica, Revisions: map[string]uint64{testIssuer: revision}})
		if err != nil {
			t.Fatal(err)
		}
	}
	beatServing("a", 10)
	beatServing("b", 9)
	beatServing("c", 11)
	confirmed, missing, err := s.Serving(t.Context(), testIssuer, 10)
	if fmt.Sprint(confirmed, missing, err) != "[a c] [b] <nil>" {
		t.Fatalf("serving: %v, %v, %v", confirmed, missing, err)
	}
}

// Replicas have a new name each time they start: what they leave is removed.
func TestHeartbeatsOfTheGoneAreRemoved(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	var offset atomicDuration
	o := onServer(r)
	o.Offset = offset.load
	s := marked(t, o)
	for i := range 200 {
		beat(t, s, fmt.Sprint("old", i))
	}
	offset.add(forgotten + time.Second)
	for range 5 {
		beat(t, s, "new")
	}
	if beats, seen := r.Do("HLEN", "pact:{g}:beats"), r.Do("ZCARD", "pact:{g}:seen"); beats != int64(1) || seen != int64(1) {
		t.Fatalf("%v and %v heartbeats are left", beats, seen)
	}
}

// A damaged heartbeat hides no replica from a kill.
func TestDamagedHeartbeat(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	beat(t, s, "a")
	r.Do("HSET", "pact:{g}:beats", "a", "garbage")
	_, replicas, err := s.Kill(t.Context(), killAll("one"), 0, acting("kill", "one"))
	if err != nil || len(replicas) != 1 || replicas[0].Replica != "a" || replicas[0].Epoch != 0 {
		t.Fatalf("the kill saw %+v, %v", replicas, err)
	}
	r.Do("SET", "pact:{g}:seen", "x")
	if _, _, err := s.Kill(t.Context(), killAll("two"), 0, acting("kill", "two")); err != nil {
		t.Fatal(err)
	}
}

// A store that was wiped grants nothing, and no caller is unknown to it.
func TestWiped(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	beat(t, s, "a")
	r.Wipe()
	for name, call := range map[string]func() error{
		"beat": func() error {
			_, err := s.Beat(t.Context(), killswitch.Beat{Replica: "a"})
			return err
		},
		"authorize": func() error {
			_, err := s.Authorize(t.Context(), signer.Authorization{Issuer: testIssuer, Kind: signer.CredentialCaller, Sign: true})
			return err
		},
		"state":  func() error { _, err := s.State(t.Context()); return err },
		"kill":   func() error { _, _, err := s.Kill(t.Context(), killAll("k"), 0, audit.Entry{}); return err },
		"merge":  func() error { _, err := s.Merge(t.Context(), killswitch.State{Epoch: 4}); return err },
		"append": func() error { return s.AppendAudit(t.Context(), acting("x", "")) },
		"audit":  func() error { _, _, err := s.AuditHead(t.Context()); return err },
		"mirror": func() error { return s.Mirror(t.Context(), testIssuer, 1, nil) },
	} {
		err := call()
		if !errors.Is(err, ErrUnmarked) {
			t.Errorf("%s of a wiped store: %v, want ErrUnmarked", name, err)
		}
		if name == "beat" && !errors.Is(err, killswitch.ErrUnknownStore) {
			t.Errorf("a beat of a wiped store: %v, which does not make a guard ask custody again", err)
		}
	}
	if err := s.Mark(t.Context(), "another"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Beat(t.Context(), killswitch.Beat{Replica: "a"}); !errors.Is(err, ErrForeign) || !errors.Is(err, killswitch.ErrUnknownStore) {
		t.Errorf("a beat of another deployment's store: %v, want ErrForeign", err)
	}
	if keys := r.Do("KEYS", "pact:*:beats"); len(keys.([]any)) != 0 {
		t.Errorf("a refused beat left %v", keys)
	}
}

// After a restart all is there, and the answers come from other data as far as a
// guard can tell.
func TestRestart(t *testing.T) {
	for name, end := range map[string]func(*servers.Redis){
		"in order": (*servers.Redis).Stop,
		"at once":  (*servers.Redis).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := servers.StartRedis(t, servers.RedisOptions{Args: []string{"--appendfsync", "always"}})
			s := marked(t, onServer(r))
			first := beat(t, s, "a")
			if again := beat(t, s, "a"); again.Lineage != first.Lineage || first.Lineage == "" {
				t.Fatalf("two beats came from %q and %q", first.Lineage, again.Lineage)
			}
			if _, _, err := s.Kill(t.Context(), killAll("one"), 0, acting("kill", "one")); err != nil {
				t.Fatal(err)
			}
			if err := s.Mirror(t.Context(), testIssuer, 4, []byte("doc")); err != nil {
				t.Fatal(err)
			}
			_, err := s.Enroll(t.Context(), signer.Enrolment{
				Device: signer.Device{Issuer: testIssuer, Thumbprint: "thumb", Subject: "pa_thumb", Point: make([]byte, 64)}, Epoch: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			call := signer.Authorization{Issuer: testIssuer, Kind: signer.DeviceCaller, Thumbprint: "thumb", JTI: signer.Hash{1}, Epoch: 1, Sign: true}
			if _, err := s.Authorize(t.Context(), call); err != nil {
				t.Fatal(err)
			}
			before, log := stateOf(t, s), verifiedLog(t, s)
			end(r)
			if _, err := s.Beat(t.Context(), killswitch.Beat{Replica: "a"}); err == nil {
				t.Fatal("a server that is down granted a permit")
			}
			r.Start()
			var g killswitch.Grant
			eventually(t, "a beat after the restart", func() (err error) {
				g, err = s.Beat(t.Context(), killswitch.Beat{Replica: "a"})
				return err
			})
			if g.Lineage == first.Lineage || g.Epoch != 1 || g.Change != before.Change || g.Revisions[testIssuer] != 4 {
				t.Fatalf("after the restart of %+v the grant is %+v", before, g)
			}
			after := stateOf(t, s)
			if _, changed := before.Absorb(after); changed || len(after.Live()) != 1 || len(verifiedLog(t, s)) != len(log) {
				t.Fatalf("after the restart the switch is %+v", after)
			}
			var refused *signer.RefusedError
			if _, err := s.Authorize(t.Context(), call); !errors.As(err, &refused) || refused.Why != "replayed" {
				t.Fatalf("after the restart a jti can be used again: %v", err)
			}
		})
	}
}

func TestTLS(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{TLS: true})
	o := onServer(r)
	o.TLS = r.TLSConfig()
	s := marked(t, o)
	c := s.Changed()
	if _, _, err := s.Kill(t.Context(), killAll("one"), 0, acting("kill", "one")); err != nil {
		t.Fatal(err)
	}
	<-c
	if g := beat(t, s, "a"); g.Epoch != 1 {
		t.Fatalf("granted %+v", g)
	}
	if err := s.CheckServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	plain := unmarked(t, onServer(r))
	if _, err := plain.Beat(t.Context(), killswitch.Beat{Replica: "a"}); err == nil {
		t.Fatal("without TLS there was a grant")
	}
	wrong := onServer(r)
	wrong.TLS = servers.StartRedis(t, servers.RedisOptions{TLS: true}).TLSConfig()
	if _, err := unmarked(t, wrong).Beat(t.Context(), killswitch.Beat{Replica: "a"}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Fatalf("another authority's certificate: %v", err)
	}
}

// An epoch far ahead, which leaves no room above it, is not spread: not by an import, a
// merge or a sign; and a kill leads out of it.
func TestDamagedEpoch(t *testing.T) {
	for _, damaged := range []string{"4503599627370497", "18446744073709551615", fmt.Sprint(uint64(killswitch.EpochCeiling)), "nan", "-7", "x"} {
		t.Run(damaged, func(t *testing.T) {
			r := servers.StartRedis(t, servers.RedisOptions{})
			s := marked(t, onServer(r))
			populate(t, s)
			before, _, err := s.Kill(t.Context(), killAll("before"), 0, acting("kill", "before"))
			if err != nil {
				t.Fatal(err)
			}
			secret := secretOf(1)
			tag := tagOf(testIssuer, string(secret[:]))
			for _, slot := range []string{globalSlot, tag} {
				r.Do("HSET", s.markerKey(slot), "epoch", damaged, "change", "damaged")
			}
			if _, err := strconv.ParseUint(damaged, 10, 64); err == nil {
				if state := stateOf(t, s); fmt.Sprint(state.Epoch) != damaged {
					t.Fatalf("the switch is %+v", state)
				}
				if g := beat(t, s, "a"); fmt.Sprint(g.Epoch) != damaged {
					t.Fatalf("granted %+v", g)
				}
				if _, err := s.Merge(t.Context(), killswitch.State{Epoch: 5}); !errors.Is(err, killswitch.ErrDamaged) {
					t.Fatalf("a merge gives %v", err)
				}
			}
			a := byCredential(1)
			a.Epoch = before.Epoch
			if _, err := s.Authorize(t.Context(), a); err == nil && damaged != "-7" {
				t.Error("a sign in a slot with that epoch went well")
			}
			e, _, err := s.Kill(t.Context(), killAll("k"), before.Epoch+1, acting("kill", "k"))
			if err != nil || e.Epoch != before.Epoch+1 {
				t.Fatalf("a kill gives %+v, %v", e, err)
			}
			if err := s.Enforce(t.Context(), e.Epoch); err != nil {
				t.Fatal(err)
			}
			if g, state := beat(t, s, "a"), stateOf(t, s); g.Epoch != e.Epoch || state.Epoch != e.Epoch || len(state.Entries) != 2 {
				t.Fatalf("granted %+v on %+v", g, state)
			}
			a.Epoch = e.Epoch
			if _, err := s.Authorize(t.Context(), a); err != nil {
				t.Fatalf("a sign afterwards: %v", err)
			}
			a.Epoch--
			if _, err := s.Authorize(t.Context(), a); !errors.Is(err, signer.ErrStaleEpoch) {
				t.Fatalf("a sign on the epoch before: %v", err)
			}
		})
	}
}

// Whoever has ended neither serves a schedule nor keeps it from being served.
func TestServingWithoutTheGone(t *testing.T) {
	s := marked(t, onServer(servers.StartRedis(t, servers.RedisOptions{})))
	beat(t, s, "a")
	if _, err := s.Beat(t.Context(), killswitch.Beat{Replica: "b", Epoch: killswitch.Gone}); err != nil {
		t.Fatal(err)
	}
	confirmed, missing, err := s.Serving(t.Context(), testIssuer, 1)
	if err != nil || len(confirmed) != 0 || fmt.Sprint(missing) != "[a]" {
		t.Errorf("confirmed are %v, missing %v, %v", confirmed, missing, err)
	}
}
