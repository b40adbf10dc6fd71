package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/custodytest"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// replicated is a master, two copies and three Sentinels.
type replicated struct {
	nodes     []*servers.Redis
	sentinels *servers.Sentinels
}

func startReplicated(t *testing.T) *replicated {
	t.Helper()
	master := servers.StartRedis(t, servers.RedisOptions{})
	r := &replicated{nodes: []*servers.Redis{master}}
	for range 2 {
		r.nodes = append(r.nodes, servers.StartRedis(t, servers.RedisOptions{ReplicaOf: master}))
	}
	r.sentinels = servers.StartSentinels(t, master, 3)
	return r
}

func (r *replicated) options(acks int) Options {
	return Options{Mode: Sentinel, Addrs: r.sentinels.Addrs(), MasterName: servers.MasterName, Acks: acks, timeouts: defaultTimeouts}
}

// master is the node that the Sentinels call so.
func (r *replicated) master(t testing.TB) *servers.Redis {
	t.Helper()
	at := r.sentinels.MasterAddr()
	i := slices.IndexFunc(r.nodes, func(n *servers.Redis) bool { return n.Addr() == at })
	if i < 0 {
		t.Fatalf("the master is at %s, which is no node", at)
	}
	return r.nodes[i]
}

// cutCopies makes the master's writes reach no copy any more.
func cutCopies(master *servers.Redis) {
	master.Do("ACL", "SETUSER", "default", "-psync", "-sync")
	master.Do("CLIENT", "KILL", "TYPE", "replica")
}

// awaitPermit waits until the store grants permits.
func awaitPermit(t testing.TB, s *Store) killswitch.Grant {
	t.Helper()
	var g killswitch.Grant
	eventually(t, "a beat", func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		g, err = s.Beat(ctx, killswitch.Beat{Replica: "a"})
		return err
	})
	return g
}

// awaitOther waits until the store grants permits from other data than before: the
// old master may answer for a while.
func awaitOther(t testing.TB, s *Store, before killswitch.Grant) killswitch.Grant {
	t.Helper()
	var g killswitch.Grant
	eventually(t, "a beat of the new master", func() error {
		if g = awaitPermit(t, s); g.Lineage == before.Lineage {
			return errors.New("it comes from the old one")
		}
		return nil
	})
	return g
}

// keyring gives the high-water record its documents.
type keyring struct{ custody.Keyring }

func (k keyring) Load(ctx context.Context, name string) (uint64, []byte, error) {
	d, err := k.Keyring.Load(ctx, name)
	return d.Revision, d.Data, err
}

func highWater() killswitch.DocumentHighWater {
	return killswitch.DocumentHighWater{
		Documents: keyring{custodytest.NewMemory()}, Name: "high-water", NotFound: custody.ErrNotFound, Conflict: custody.ErrConflict,
	}
}

func guardOf(s *Store, high killswitch.HighWater) *killswitch.Guard {
	return killswitch.NewGuard(killswitch.GuardConfig{Store: s, HighWater: high, Replica: "guarded", Log: s.opts.Log})
}

func wantKilled(t testing.TB, g *killswitch.Guard, by string) {
	t.Helper()
	_, err := g.Check(killswitch.Target{Issuer: testIssuer})
	var killed *killswitch.KilledError
	if !errors.As(err, &killed) || by != "" && killed.Entry != by {
		t.Fatalf("a check gives %v, want it killed by %q", err, by)
	}
}

func liveIDs(s killswitch.State) string {
	var ids []string
	for _, e := range s.Live() {
		ids = append(ids, e.ID)
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// While the master changes there are no permits; then there are again, from other
// data, and what was acknowledged is there.
func TestFailoverWhileBeating(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(r *replicated, master *servers.Redis){
		"the master is killed":  func(r *replicated, m *servers.Redis) { m.Kill(); r.sentinels.AwaitFailover(m.Addr()) },
		"the master is demoted": func(r *replicated, _ *servers.Redis) { r.sentinels.Failover() },
		"the master is paused":  func(r *replicated, m *servers.Redis) { m.Pause(); r.sentinels.AwaitFailover(m.Addr()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReplicated(t)
			s := marked(t, r.options(1))
			if err := s.CheckServer(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := awaitPermit(t, s)
			if _, _, err := unmarked(t, acknowledged(r.options(1))).Kill(t.Context(), killAll("one"), 0, acting("kill", "one")); err != nil {
				t.Fatal(err)
			}
			fail(r, r.master(t))
			after := awaitOther(t, s, before)
			if after.Epoch != 1 || after.Change == "" || liveIDs(stateOf(t, s)) != "one" {
				t.Fatalf("after the failover a beat got %+v", after)
			}
			if log := verifiedLog(t, s); count(log, "kill", "one") != 1 {
				t.Fatalf("the log is %+v", log)
			}
			// The switch works as before.
			c := s.Changed()
			eventually(t, "a kill after the failover", func() error {
				_, _, err := s.Kill(t.Context(), killAll("two"), 0, acting("kill", "two"))
				return err
			})
			select {
			case <-c:
			case <-time.After(30 * time.Second):
				t.Fatal("a kill after the failover was not announced")
			}
		})
	}
}

// A failover that loses a kill: whoever knows it brings it back, with an epoch that
// neither side had, also if its epoch has been given to another kill since.
func TestFailoverThatLosesAKill(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		acks    int
		custody bool // custody knows of the kill, else a guard does
		other   bool // another kill gets its epoch
	}{
		"known to a guard":               {},
		"known to a guard, epoch reused": {other: true},
		"known to custody":               {acks: 1, custody: true},
		"known to custody, epoch reused": {acks: 1, custody: true, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReplicated(t)
			s := marked(t, r.options(c.acks))
			high := highWater()
			g := guardOf(s, high)
			if err := g.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Check(killswitch.Target{Issuer: testIssuer}); err != nil {
				t.Fatal(err)
			}
			first := awaitPermit(t, s)
			master := r.master(t)
			cutCopies(master)
			e, _, err := s.Kill(t.Context(), killAll("lost"), 0, acting("kill", "lost"))
			if c.acks > 0 && !errors.Is(err, killswitch.ErrUnacknowledged) || c.acks == 0 && err != nil || e.ID != "lost" || e.Epoch != 1 || e.Time.IsZero() {
				t.Fatalf("a kill that no copy gets gives %+v, %v", e, err)
			}
			if c.acks > 0 {
				if _, err := s.Beat(t.Context(), killswitch.Beat{Replica: "a"}); !errors.Is(err, killswitch.ErrUnacknowledged) {
					t.Fatalf("a beat that no copy gets: %v", err)
				}
			}
			if c.custody {
				if err := high.Save(t.Context(), stateOf(t, s)); err != nil {
					t.Fatal(err)
				}
			} else {
				if err := g.Refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
				wantKilled(t, g, "lost")
			}
			master.Kill()
			r.sentinels.AwaitFailover(master.Addr())
			grant := awaitOther(t, s, first)
			if grant.Epoch != 0 || liveIDs(stateOf(t, s)) != "" {
				t.Fatalf("nothing was lost: %+v", stateOf(t, s))
			}
			want := "lost"
			if c.other {
				var other killswitch.Entry
				eventually(t, "another kill", func() (err error) {
					other, _, err = s.Kill(t.Context(), killAll("other"), 0, acting("kill", "other"))
					return err
				})
				if other.Epoch != e.Epoch {
					t.Fatalf("the other kill has epoch %d", other.Epoch)
				}
				want = "lost other"
			}
			eventually(t, "a permit of the guard", func() error { return g.Refresh(t.Context()) })
			wantKilled(t, g, "")
			state := stateOf(t, s)
			if liveIDs(state) != want || state.Epoch < e.Epoch || c.other && state.Epoch <= e.Epoch {
				t.Fatalf("after the merge the store holds %+v", state)
			}
			for _, got := range state.Entries {
				if got.ID == "lost" && got != e {
					t.Fatalf("the kill came back as %+v, was %+v", got, e)
				}
			}
			if after := awaitPermit(t, s); after.Epoch != state.Epoch || after.Change != state.Change {
				t.Fatalf("a beat got %+v of %+v", after, state)
			}
		})
	}
}

// A master that its copies have left still answers whoever can reach it, but gives
// no permit. Made a copy, it takes nothing at all.
func TestSplitBrain(t *testing.T) {
	t.Parallel()
	old := servers.StartRedis(t, servers.RedisOptions{})
	copies := []*servers.Redis{
		servers.StartRedis(t, servers.RedisOptions{ReplicaOf: old}), servers.StartRedis(t, servers.RedisOptions{ReplicaOf: old}),
	}
	on := func(r *servers.Redis) Options { return Options{Addrs: []string{r.Addr()}, Acks: 1} }
	marked(t, Options{Addrs: []string{old.Addr()}, Acks: 2}) // both copies have it
	here := unmarked(t, on(old))
	before := awaitPermit(t, here)
	host, port, _ := strings.Cut(copies[0].Addr(), ":")
	copies[0].Do("REPLICAOF", "NO", "ONE")
	copies[1].Do("REPLICAOF", host, port)
	there := unmarked(t, on(copies[0]))
	if g := awaitPermit(t, there); g.Lineage == before.Lineage {
		t.Fatal("both sides have one lineage")
	}
	eventually(t, "the copies to leave", func() error {
		if info := fmt.Sprint(old.Do("INFO", "replication")); !strings.Contains(info, "connected_slaves:0") {
			return errors.New(info)
		}
		return nil
	})
	for range 3 {
		if _, err := here.Beat(t.Context(), killswitch.Beat{Replica: "a"}); !errors.Is(err, ErrNotAcknowledged) {
			t.Fatalf("a beat of the deserted master: %v", err)
		}
	}
	if err := guardOf(here, highWater()).Refresh(t.Context()); !errors.Is(err, killswitch.ErrUnacknowledged) {
		t.Fatalf("a guard of the deserted master: %v", err)
	}
	if e, _, err := here.Kill(t.Context(), killAll("here"), 0, acting("kill", "here")); !errors.Is(err, killswitch.ErrUnacknowledged) || e.Epoch != 1 {
		t.Fatalf("a kill on the deserted master: %+v, %v", e, err)
	}
	old.Do("REPLICAOF", host, port)
	eventually(t, "the old master to be a copy", func() error {
		if info := fmt.Sprint(old.Do("INFO", "replication")); !strings.Contains(info, "master_link_status:up") {
			return errors.New(info)
		}
		return nil
	})
	for name, call := range map[string]func() error{
		"beat": func() error {
			_, err := here.Beat(t.Context(), killswitch.Beat{Replica: "a"})
			return err
		},
		"kill":   func() error { _, _, err := here.Kill(t.Context(), killAll("k"), 0, acting("kill", "k")); return err },
		"state":  func() error { _, err := here.State(t.Context()); return err },
		"append": func() error { return here.AppendAudit(t.Context(), acting("x", "")) },
		"authorize": func() error {
			_, err := here.Authorize(t.Context(), signer.Authorization{Issuer: testIssuer, Kind: signer.CredentialCaller, Sign: true})
			return err
		},
	} {
		var refused *signer.RefusedError
		if err := call(); err == nil || errors.As(err, &refused) {
			t.Errorf("%s on a copy: %v", name, err)
		}
	}
	awaitPermit(t, there)
}

// In a cluster a kill is in one shard, and enforced by the others once it has been
// spread to them.
func TestClusterEnforces(t *testing.T) {
	t.Parallel()
	cluster := servers.StartCluster(t, 3, 0)
	o := Options{Mode: Cluster, Addrs: cluster.Addrs()}
	s := marked(t, o)
	if err := s.CheckServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask := func(epoch uint64) (stale, unknown, failed int) {
		t.Helper()
		for i := range 300 {
			_, err := s.Authorize(t.Context(), signer.Authorization{
				Issuer: testIssuer, Kind: signer.CredentialCaller, Secret: signer.Hash([]byte(fmt.Sprintf("%032d", i))), Epoch: epoch, Sign: true,
			})
			var refused *signer.RefusedError
			switch {
			case errors.Is(err, signer.ErrStaleEpoch):
				stale++
			case errors.As(err, &refused):
				unknown++
			default:
				failed++
			}
		}
		return
	}
	if stale, unknown, failed := ask(0); stale+failed > 0 || unknown != 300 {
		t.Fatalf("before a kill %d calls are stale and %d fail", stale, failed)
	}
	other := unmarked(t, o)
	<-other.Changed() // subscribed
	c := other.Changed()
	e, _, err := s.Kill(t.Context(), killAll("one"), 0, acting("kill", "one"))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatal("the kill was not announced")
	}
	if g := beat(t, other, "b"); g.Epoch != e.Epoch {
		t.Fatalf("granted %+v", g)
	}
	if err := other.Enforce(t.Context(), e.Epoch); err != nil {
		t.Fatal(err)
	}
	if stale, unknown, failed := ask(0); unknown+failed > 0 || stale != 300 {
		t.Fatalf("once enforced, %d calls on the old epoch go through and %d fail", unknown, failed)
	}
	if stale, unknown, failed := ask(e.Epoch); stale+failed > 0 || unknown != 300 {
		t.Fatalf("once enforced, %d calls on the new epoch are stale and %d fail", stale, failed)
	}

	// A shard that is down enforces nothing yet: nobody may say so.
	var down *servers.Redis
	for _, n := range cluster.Nodes {
		if slot := n.Do("CLUSTER", "KEYSLOT", s.key(globalSlot, "m")); !serves(t, n, slot.(int64)) {
			down = n
		}
	}
	e, _, err = s.Kill(t.Context(), killAll("two"), 0, acting("kill", "two"))
	if err != nil {
		t.Fatal(err)
	}
	down.Stop()
	if err := s.Enforce(t.Context(), e.Epoch); err == nil {
		t.Fatal("enforced with a shard that is down")
	}
	down.Start()
	cluster.AwaitOK(t)
	eventually(t, "enforced once the shard is back", func() error { return s.Enforce(t.Context(), e.Epoch) })
	if stale, unknown, failed := ask(e.Epoch - 1); unknown+failed > 0 || stale != 300 {
		t.Fatalf("once enforced, %d calls on the old epoch go through and %d fail", unknown, failed)
	}
}

// serves says whether a node serves a slot.
func serves(t testing.TB, n *servers.Redis, slot int64) bool {
	t.Helper()
	me := fmt.Sprint(n.Do("CLUSTER", "MYID"))
	for line := range strings.SplitSeq(fmt.Sprint(n.Do("CLUSTER", "NODES")), "\n") {
		f := strings.Fields(line)
		if len(f) < 9 || f[0] != me {
			continue
		}
		for _, r := range f[8:] {
			var from, to int64
			if n, _ := fmt.Sscanf(r, "%d-%d", &from, &to); n == 2 && slot >= from && slot <= to {
				return true
			}
		}
	}
	return false
}

// A merge says of a change that is there whether the copies have it: the killswitch
// asks so whether a kill is there to stay.
func TestMergeOfWhatIsThere(t *testing.T) {
	t.Parallel()
	master := servers.StartRedis(t, servers.RedisOptions{})
	servers.StartRedis(t, servers.RedisOptions{ReplicaOf: master})
	o := Options{Addrs: []string{master.Addr()}, Acks: 1}
	s := marked(t, acknowledged(o))
	if _, err := s.Merge(t.Context(), killswitch.State{}); err != nil {
		t.Fatalf("nothing, into a switch at rest: %v", err)
	}
	if _, _, err := s.Kill(t.Context(), killAll("k"), 0, acting("kill", "k")); err != nil {
		t.Fatal(err)
	}
	state := stateOf(t, s)
	same := func(when string, acknowledged bool) {
		t.Helper()
		got, err := s.Merge(t.Context(), state)
		if (err == nil) != acknowledged || err != nil && !errors.Is(err, killswitch.ErrUnacknowledged) {
			t.Fatalf("%s a merge gives %v", when, err)
		}
		if got.Change != state.Change || got.Epoch != state.Epoch || liveIDs(got) != "k" {
			t.Fatalf("%s a merge made %+v of %+v", when, got, state)
		}
	}
	same("with its copy", true)
	cutCopies(master)
	s = unmarked(t, o)
	same("without its copy", false)
	if now := stateOf(t, s); now.Change != state.Change || now.Epoch != state.Epoch {
		t.Fatalf("merges of what was there made %+v of %+v", now, state)
	}
	master.Do("REPLICAOF", "127.0.0.1", "1") // demoted
	if _, err := s.Merge(t.Context(), state); err == nil || errors.Is(err, killswitch.ErrUnacknowledged) {
		t.Fatalf("a demoted master gives %v", err)
	}
}
