package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/test/servers"
)

func TestCheckServer(t *testing.T) {
	for name, c := range map[string]struct {
		args    []string
		acks    int
		setting string // refused for it
	}{
		"as it should be":          {},
		"evicts":                   {args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, setting: "maxmemory-policy"},
		"evicts what expires":      {args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"}, setting: "maxmemory-policy"},
		"would evict, has no end":  {args: []string{"--maxmemory-policy", "allkeys-lru"}},
		"has an end":               {args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "noeviction"}},
		"keeps nothing":            {args: []string{"--appendonly", "no", "--save", ""}, setting: "appendonly"},
		"keeps snapshots only":     {args: []string{"--appendonly", "no", "--save", "60 1"}, setting: "appendonly"},
		"has no copy for the acks": {acks: 1, setting: "replicas"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := onServer(servers.StartRedis(t, servers.RedisOptions{Args: c.args}))
			o.Acks = c.acks
			err := unmarked(t, o).CheckServer(t.Context())
			if c.setting == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var refused *ConfigError
			if !errors.As(err, &refused) || refused.Setting != c.setting || refused.Server != o.Addrs[0] || refused.Fix == "" {
				t.Fatalf("got %v, want it refused for %s", err, c.setting)
			}
		})
	}
}

// What acknowledges must be a majority, with the master.
func TestCheckServerCountsCopies(t *testing.T) {
	master := servers.StartRedis(t, servers.RedisOptions{})
	for copies, want := range []map[int]string{
		{0: "", 1: "replicas"},
		{0: "store.redis.acks", 1: "", 2: "replicas"},
		{0: "store.redis.acks", 1: "", 2: ""},
		{1: "store.redis.acks", 2: "", 3: ""},
	} {
		if copies > 0 {
			servers.StartRedis(t, servers.RedisOptions{ReplicaOf: master})
		}
		for acks, setting := range want {
			o := onServer(master)
			o.Acks = acks
			s := unmarked(t, o)
			eventually(t, fmt.Sprintf("%d copies and %d acks", copies, acks), func() error { // copies are not in step at once
				err := s.CheckServer(t.Context())
				var refused *ConfigError
				if setting == "" && err == nil || errors.As(err, &refused) && refused.Setting == setting {
					return nil
				}
				return fmt.Errorf("got %w, want it refused for %q", err, setting)
			})
		}
	}
}

func TestCheckServerOfACluster(t *testing.T) {
	cluster := servers.StartCluster(t, 3, 0)
	s := unmarked(t, Options{Mode: Cluster, Addrs: cluster.Addrs()})
	if err := s.CheckServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	cluster.Nodes[1].Do("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-random")
	var refused *ConfigError
	if err := s.CheckServer(t.Context()); !errors.As(err, &refused) || refused.Server != cluster.Nodes[1].Addr() {
		t.Fatalf("one master evicts: %v", err)
	}
}

func TestVersions(t *testing.T) {
	for version, old := range map[string]bool{
		"6.0.16": true, "5.0.7": true, "6.2.0": false, "6.2.14": false, "7.0.15": false, "10.1.2": false, "": true, "x.y": true, "255.255.255": false,
	} {
		if olderThan62(version) != old {
			t.Errorf("version %q: older than 6.2 is %v", version, !old)
		}
	}
}

// grant makes a user with the rule of ACL.
func grant(r *servers.Redis) {
	args := []any{"ACL", "SETUSER", "pact", "on", ">secret of redis"}
	for rule := range strings.FieldsSeq(ACL) {
		args = append(args, rule)
	}
	r.Do(args...)
}

// The whole suite passes for a user with the rule, who can do no harm elsewhere.
func TestACL(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	grant(r)
	o := onServer(r)
	o.Username, o.Password = "pact", "secret of redis"
	conforms(t, o, r)
	s := marked(t, o)
	if err := s.CheckServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Identity(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]any{
		{"FLUSHALL"}, {"KEYS", "*"}, {"CONFIG", "GET", "*"}, {"EVAL", "return 1", 0}, {"GET", "other"}, {"SET", "other", "x"},
		{"PUBLISH", "other", "x"}, {"SHUTDOWN"}, {"REPLICAOF", "NO", "ONE"}, {"ACL", "LIST"}, {"SCRIPT", "FLUSH"}, {"DEBUG", "SLEEP", "0"},
	} {
		if err := s.single.Do(t.Context(), command...).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Errorf("the user may do %v: %v", command, err)
		}
	}
	o.Password = "another"
	if _, err := unmarked(t, o).Beat(t.Context(), killswitch.Beat{Replica: "a"}); err == nil || strings.Contains(err.Error(), o.Password) {
		t.Errorf("a beat with a wrong password: %v", err)
	}
}

// A prefix with characters that patterns know stands for itself.
func TestACLOfAPrefix(t *testing.T) {
	if ACLFor("pact") != ACL {
		t.Errorf("for the default: %s", ACLFor("pact"))
	}
	r := servers.StartRedis(t, servers.RedisOptions{})
	args := []any{"ACL", "SETUSER", "limited", "on", ">p"}
	for rule := range strings.FieldsSeq(ACLFor("p*ct")) {
		args = append(args, rule)
	}
	r.Do(args...)
	o := onServer(r)
	o.Username, o.Password, o.Prefix = "limited", "p", "p*ct"
	populate(t, marked(t, o))
	o.Prefix = "pact"
	if _, err := unmarked(t, o).Identity(t.Context()); !errors.Is(err, ErrForbidden) {
		t.Errorf("another prefix: %v", err)
	}
}

func TestACLInACluster(t *testing.T) {
	cluster := servers.StartCluster(t, 3, 0)
	for _, n := range cluster.Nodes {
		grant(n)
	}
	s := marked(t, Options{Mode: Cluster, Addrs: cluster.Addrs(), Username: "pact", Password: "secret of redis"})
	if err := s.CheckServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-s.Changed()
	c := s.Changed()
	e, _, err := s.Kill(t.Context(), killAll("one"), 0, acting("kill", "one"))
	if err != nil {
		t.Fatal(err)
	}
	<-c
	if err := s.Enforce(t.Context(), e.Epoch); err != nil {
		t.Fatal(err)
	}
	if g := beat(t, s, "a"); g.Epoch != e.Epoch {
		t.Fatalf("granted %+v", g)
	}
	var denied []string
	for _, n := range cluster.Nodes { // what was tried in vain, without being told
		c := goredis.NewClient(&goredis.Options{Addr: n.Addr()})
		defer c.Close()
		log, err := c.ACLLog(context.Background(), 10).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range log {
			denied = append(denied, l.Object)
		}
	}
	if len(denied) > 0 {
		t.Errorf("denied were %v", denied)
	}
}
