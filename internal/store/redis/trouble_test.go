package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// A server whose memory is full takes no new records, as a whole or not at all; it
// still takes kills and what ends somebody's access.
func TestMemoryFull(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	populate(t, s)
	ctx := t.Context()
	a := signer.Audience{Issuer: testIssuer, Origin: "https://x.example.com", Audience: "pact:x"}
	if err := s.SetAudience(ctx, a, nil, acting("set audience", "x")); err != nil {
		t.Fatal(err)
	}
	before := verifiedLog(t, s)
	r.Do("CONFIG", "SET", "maxmemory", "100kb")

	a.Origin, a.Audience = "https://y.example.com", "pact:y"
	added := signer.Credential{Issuer: testIssuer, ID: "id2", Name: "name2", Principal: "p", Subject: "pa_x", Hash: secretOf(2)}
	for what, grow := range map[string]func() error{
		"a device's sign":     func() error { _, err := s.Authorize(ctx, byDevice(1, rand.Int())); return err },
		"a credential's sign": func() error { _, err := s.Authorize(ctx, byCredential(1)); return err },
		"an enrolment":        func() error { _, err := s.Enroll(ctx, enrolment(3)); return err },
		"an enrolment under a cap": func() error {
			e := enrolment(3)
			e.Cap = 100
			_, err := s.Enroll(ctx, e)
			return err
		},
		"a credential": func() error { return s.PutCredential(ctx, added, acting("create credential", "2")) },
		"a token": func() error {
			return s.PutEnrollmentToken(ctx, signer.EnrollmentToken{Issuer: testIssuer, ID: "t2", Hash: nth("token", 2), ExpiresAt: time.Now().Add(time.Hour)}, acting("create token", "2"))
		},
		"an audience":    func() error { return s.SetAudience(ctx, a, nil, acting("set audience", "y")) },
		"an audit entry": func() error { return s.AppendAudit(ctx, acting("refuse", "")) },
	} {
		if err := grow(); !errors.Is(err, ErrMemoryFull) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if log := verifiedLog(t, s); len(log) != len(before) || intents(t, r) != 0 {
		t.Errorf("what was refused left %+v and %d intents", log[len(before):], intents(t, r))
	}
	if d, c, err := s.Counts(ctx, testIssuer); err != nil || d != 1 || c != 1 {
		t.Errorf("%d devices and %d credentials count, %v", d, c, err)
	}

	e, seen, err := s.Kill(ctx, killAll("k"), 0, acting("kill", "k"))
	if err != nil || e.Epoch != 1 || e.Time.IsZero() || len(seen) != 0 {
		t.Fatalf("a kill gives %+v, %+v, %v", e, seen, err)
	}
	if g := beat(t, s, "a"); g.Epoch != 1 {
		t.Fatalf("granted %+v", g)
	}
	for what, end := range map[string]func() error{
		"enforce": func() error { return s.Enforce(ctx, 1) },
		"merge":   func() error { _, err := s.Merge(ctx, killswitch.State{Epoch: 2}); return err },
		"an invalidation": func() error {
			_, err := s.Invalidate(ctx, testIssuer, thumb(1), "lost", acting("end", "device"))
			return err
		},
		"a revocation": func() error {
			_, err := s.UpdateCredential(ctx, testIssuer, "id1", func(c *signer.Credential) error { c.RevokedAt = time.Now(); return nil }, acting("end", "credential"))
			return err
		},
		"a token's revocation": func() error {
			_, err := s.RevokeEnrollmentToken(ctx, testIssuer, "token", time.Now(), acting("end", "token"))
			return err
		},
		"an audience's end": func() error {
			return s.RemoveAudience(ctx, testIssuer, "https://x.example.com", acting("end", "audience"))
		},
	} {
		if err := end(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.Resume(ctx, killswitch.Resume{ID: "r", Entries: []string{"k"}}, stateOf(t, s).Epoch, 0, acting("resume", "r")); err != nil {
		t.Errorf("a resume: %v", err)
	}
	log := verifiedLog(t, s)[len(before):]
	if count(log, "kill", "k") != 1 || count(log, "resume", "r") != 1 || len(log) != 6 {
		t.Errorf("the log got %+v", log)
	}
	if _, err := s.Authorize(ctx, byDevice(1, rand.Int())); !errors.Is(err, ErrMemoryFull) {
		t.Errorf("a sign by the device that was ended: %v", err)
	}
	r.Do("CONFIG", "SET", "maxmemory", "0")
	for what, call := range map[string]signer.Authorization{"invalidated": byDevice(1, rand.Int()), "revoked": byCredential(1)} {
		call.Epoch = stateOf(t, s).Epoch
		_, err := s.Authorize(ctx, call)
		var refused *signer.RefusedError
		if !errors.As(err, &refused) || refused.Why != what {
			t.Errorf("afterwards a sign gives %v, want %s", err, what)
		}
	}
}

// An import for which there is no memory is repeated once there is.
func TestImportIntoFullMemory(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := unmarked(t, onServer(r))
	r.Do("CONFIG", "SET", "maxmemory", "100kb")
	if err := s.Import(t.Context(), from(few(), nil)); !errors.Is(err, ErrMemoryFull) {
		t.Fatalf("an import gives %v", err)
	}
	r.Do("CONFIG", "SET", "maxmemory", "0")
	if err := s.Import(t.Context(), from(few(), nil)); err != nil {
		t.Fatal(err)
	}
}

// A server that speaks of a cluster to a store that knows of none is an error.
func TestClusterTakenForStandalone(t *testing.T) {
	s := unmarked(t, onServer(servers.StartRedis(t, servers.RedisOptions{Args: []string{"--cluster-enabled", "yes"}})))
	for what, ask := range every(s) {
		var refused *signer.RefusedError
		if err := ask(t.Context()); err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), "CLUSTERDOWN") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// However the copies are, a kill waits for them once.
func TestKillsWithoutCopies(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	o := onServer(r)
	s := marked(t, o)
	o.Acks = 1
	if _, _, err := s.Kill(t.Context(), killAll("first"), 0, acting("kill", "first")); err != nil { // the script is there
		t.Fatal(err)
	}
	const n = 8
	var running sync.WaitGroup
	for i := range n {
		one := unmarked(t, o)
		var waits atomic.Int32
		one.single.AddHook(waitHook{&links{}, &waits})
		id := fmt.Sprint("k", i)
		running.Go(func() {
			e, _, err := one.Kill(context.WithValue(t.Context(), ofTheCaller{}, true), killAll(id), 0, acting("kill", id))
			if !errors.Is(err, killswitch.ErrUnacknowledged) || e.ID != id || e.Epoch == 0 {
				t.Errorf("a kill gives %+v, %v", e, err)
			}
			if waits := waits.Load(); waits != 1 {
				t.Errorf("it waited %d times", waits)
			}
		})
	}
	running.Wait()
	if live := stateOf(t, s).Live(); len(live) != 1+n {
		t.Fatalf("%d kills stand", len(live))
	}
	eventually(t, "the log", func() error {
		log := verifiedLog(t, s)
		interrupted := func(e audit.Entry) bool { return e.Detail["outcome"] != "" }
		if len(log) != 1+n || slices.ContainsFunc(log, interrupted) || intents(t, r) != 0 {
			return fmt.Errorf("it is %+v", log)
		}
		return nil
	})
}

// waitHook counts the waits for copies that keep a caller.
type waitHook struct {
	*links
	waits *atomic.Int32
}

type ofTheCaller struct{}

func (h waitHook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		waits := slices.ContainsFunc(cmds, func(c goredis.Cmder) bool { return c.Name() == "wait" })
		if waits && ctx.Value(ofTheCaller{}) != nil {
			h.waits.Add(1)
		}
		return next(ctx, cmds)
	}
}

// Connections to a server that is no master, or none yet, are given up.
func TestConnectionsToNoMaster(t *testing.T) {
	sign := func(s *Store) error { _, err := s.Authorize(t.Context(), byDevice(1, rand.Int())); return err }
	check := func(s *Store) error {
		err := s.CheckServer(t.Context())
		var refused *ConfigError
		if errors.As(err, &refused) {
			t.Errorf("what is no master is judged: %v", err)
		}
		return err
	}
	for name, c := range map[string]struct {
		demote, promote func(r *servers.Redis)
		ask             func(s *Store) error
	}{
		"without its master": {
			func(r *servers.Redis) {
				r.Do("CONFIG", "SET", "replica-serve-stale-data", "no")
				r.Do("REPLICAOF", "127.0.0.1", "1")
			},
			func(r *servers.Redis) { r.Do("REPLICAOF", "NO", "ONE") },
			sign,
		},
		"read only": {
			func(r *servers.Redis) { r.Do("REPLICAOF", "127.0.0.1", "1") },
			func(r *servers.Redis) { r.Do("REPLICAOF", "NO", "ONE") },
			sign,
		},
		"asked for its settings": {
			func(r *servers.Redis) { r.Do("REPLICAOF", "127.0.0.1", "1") },
			func(r *servers.Redis) { r.Do("REPLICAOF", "NO", "ONE") },
			check,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := servers.StartRedis(t, servers.RedisOptions{})
			s := marked(t, onServer(r))
			enroll(t, s, 1)
			clients := func() (ids []string) {
				for line := range strings.SplitSeq(r.Do("CLIENT", "LIST", "TYPE", "normal").(string), "\n") {
					if id, rest, ok := strings.Cut(line, " "); ok && !strings.Contains(rest, "cmd=client") {
						ids = append(ids, id)
					}
				}
				return ids
			}
			// all makes the pool look at every connection that it has.
			all := func() {
				t.Helper()
				for range poolSize {
					c := s.single.Conn()
					defer c.Close()
					if err := c.Ping(t.Context()).Err(); err != nil {
						t.Fatal(err)
					}
				}
			}
			all()
			before := clients()
			if len(before) < poolSize {
				t.Fatalf("there are %d connections", len(before))
			}
			c.demote(r)
			if err := c.ask(s); err == nil {
				t.Fatal("it went well")
			}
			c.promote(r)
			if err := c.ask(s); err != nil {
				t.Fatalf("on a master again: %v", err)
			}
			all()
			for _, id := range clients() {
				if slices.Contains(before, id) {
					t.Fatalf("of %v, %s is one from before", clients(), id)
				}
			}
		})
	}
}

// Lanes that nobody uses end; no call is lost in them.
func TestLanesEnd(t *testing.T) {
	s := unmarked(t, onServer(servers.StartRedis(t, servers.RedisOptions{})))
	s.lanes.idle = time.Millisecond
	if err := s.Mark(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	enroll(t, s, 1)
	lanes := func() int {
		s.lanes.mu.RLock()
		defer s.lanes.mu.RUnlock()
		return len(s.lanes.to)
	}
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() {
			pause := time.NewTicker(2 * time.Millisecond)
			defer pause.Stop()
			for j := range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				if _, err := s.Authorize(ctx, byDevice(1, 1000*i+j)); err != nil {
					t.Errorf("authorize: %v", err)
				}
				cancel()
				<-pause.C
			}
		})
	}
	running.Wait()
	eventually(t, "the end of the lanes", func() error {
		if n := lanes(); n > 0 {
			return fmt.Errorf("lanes to %d servers", n)
		}
		return nil
	})
	if _, err := s.Authorize(t.Context(), byDevice(1, rand.Int())); err != nil || lanes() > 1 {
		t.Fatalf("afterwards there are lanes to %d servers, %v", lanes(), err)
	}
}

// A cluster's masters are asked at the same time: one that does not answer keeps
// nothing from the others.
func TestEnforceBesidesADeadMaster(t *testing.T) {
	cluster := servers.StartCluster(t, 3, 0)
	for _, n := range cluster.Nodes { // which go on serving their slots meanwhile
		n.Do("CONFIG", "SET", "cluster-node-timeout", "600000")
	}
	s := marked(t, Options{Mode: Cluster, Addrs: cluster.Addrs(), timeouts: defaultTimeouts})
	for i, dead := range cluster.Nodes {
		epoch := fmt.Sprint(i + 1)
		dead.Pause()
		err := s.Enforce(t.Context(), uint64(i+1))
		if err == nil {
			t.Fatal("all have the epoch")
		}
		for slot, n := range tagsByNode(t, s, cluster) {
			if n == dead {
				continue
			}
			if got := n.Do("HGET", s.markerKey(slot), "epoch"); got != epoch {
				t.Fatalf("slot %s has epoch %v, want %s", slot, got, epoch)
			}
		}
		dead.Resume()
		eventually(t, "the rest", func() error { return s.Enforce(t.Context(), uint64(i+1)) })
	}
}

// What a master ran counts as acknowledged only if its copies have it, also if other
// invocations in the same pipeline belong elsewhere.
func TestUnacknowledgedBesideAMovedSlot(t *testing.T) {
	cluster := servers.StartCluster(t, 3, 0)
	o := Options{Mode: Cluster, Addrs: cluster.Addrs()}
	marked(t, o)
	o.Acks = 1
	s := unmarked(t, o)
	master, err := s.node(t.Context(), tagNames[0])
	if err != nil {
		t.Fatal(err)
	}
	asks := []invocation{{slot: tagNames[0], args: []any{1}}}
	for _, slot := range tagNames {
		if n, err := s.node(t.Context(), slot); err != nil {
			t.Fatal(err)
		} else if n != master {
			asks = append(asks, invocation{slot: slot, args: []any{1}})
			break
		}
	}
	for name, c := range map[string]struct {
		which        []int
		acknowledged bool
	}{
		"one ran, one did not": {[]int{0, 1}, false},
		"none ran":             {[]int{1}, true},
	} {
		replies := make([]reply, len(asks))
		again, err := s.runOn(t.Context(), &part{node: master, which: c.which}, enforceScript, testID, asks, replies, true)
		if !slices.Equal(again, []int{1}) || (err == nil) != c.acknowledged || err != nil && !errors.Is(err, ErrNotAcknowledged) {
			t.Errorf("%s: %v is to be run elsewhere, %v", name, again, err)
		}
	}
	if _, err := s.runEach(t.Context(), enforceScript, asks, true); !errors.Is(err, ErrNotAcknowledged) {
		t.Errorf("all in all: %v", err)
	}
}

// tagsByNode is some tags of each of a cluster's masters.
func tagsByNode(t *testing.T, s *Store, c *servers.Cluster) map[string]*servers.Redis {
	t.Helper()
	of, many := make(map[string]*servers.Redis), make(map[*servers.Redis]int)
	for _, slot := range tagNames {
		n, err := s.node(t.Context(), slot)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(c.Nodes, func(r *servers.Redis) bool { return r.Addr() == n.Options().Addr })
		if i < 0 {
			t.Fatalf("no node is at %s", n.Options().Addr)
		}
		if node := c.Nodes[i]; many[node] < 5 {
			many[node]++
			of[slot] = node
		}
	}
	return of
}

// sending tells of what is sent.
type sending struct {
	*links
	told chan struct{}
}

func (h sending) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		h.told <- struct{}{}
		return next(ctx, cmds)
	}
}

// Whoever leaves is let go at once, also if what was asked is on its way.
func TestLeavingWhatIsUnderWay(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	proxy := servers.NewProxy(t, server.Addr())
	s := marked(t, Options{Addrs: []string{proxy.Addr()}})
	populate(t, s)
	sent := make(chan struct{}, 1000)
	s.single.AddHook(sending{&links{}, sent})
	proxy.Hang()
	defer proxy.Heal()
	for what, ask := range every(s) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ask(ctx) }()
		<-sent
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
