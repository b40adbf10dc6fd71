package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/test/servers"
)

// asks are calls of every kind: acknowledged, in a lane, in every slot, and none of
// scripts.
func asks(s *Store) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"a beat":      func(ctx context.Context) error { _, err := s.Beat(ctx, killswitch.Beat{Replica: "a"}); return err },
		"a sign":      func(ctx context.Context) error { _, err := s.Authorize(ctx, byDevice(1, rand.Int())); return err },
		"the switch":  func(ctx context.Context) error { _, err := s.State(ctx); return err },
		"enforce":     func(ctx context.Context) error { return s.Enforce(ctx, 0) },
		"the mark":    func(ctx context.Context) error { _, err := s.Identity(ctx); return err },
		"the setting": s.CheckServer,
	}
}

// A login that the server refuses is said to be that, and where it is configured.
func TestRefusedLogin(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	grant(r)
	r.Do("ACL", "SETUSER", "limited", "on", ">p", "~*", "&*", "+@all", "-evalsha", "-info")
	plain := onServer(r)
	populate(t, marked(t, plain))
	for name, c := range map[string]struct {
		user, password string
		want           error
		says           string
	}{
		"a wrong password":     {"pact", "hunter2", ErrLogin, "store.redis.passwordFile"},
		"a user unknown there": {"nobody", "hunter2", ErrLogin, "store.redis.username"},
		"a needless password":  {"", "hunter2", nil, ""},
		"a user that may less": {"limited", "p", ErrForbidden, "signer redis acl"},
	} {
		o := plain
		o.Username, o.Password = c.user, c.password
		for what, ask := range asks(unmarked(t, o)) {
			err := ask(t.Context())
			if c.want == nil { // the server lets everybody in, whatever they say
				if err != nil && !errors.Is(err, ErrLogin) {
					t.Errorf("%s: %s: %v", name, what, err)
				}
				continue
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
}

// A server that wants a login from who has none says so for every call. No connection
// gets further than HELLO: the server would cut off a longer command, and why is often
// not there to be read any more.
func TestMissingLogin(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	grant(r)
	r.Do("CONFIG", "SET", "requirepass", "secret of redis")
	for what, ask := range asks(unmarked(t, onServer(r))) {
		if err := ask(t.Context()); !errors.Is(err, ErrLogin) {
			t.Errorf("without a password: %s: %v", what, err)
		}
	}
	c := redis.NewClient(&redis.Options{Addr: r.Addr(), Protocol: 2, DisableIdentity: true, Username: "pact", Password: "secret of redis"})
	defer c.Close()
	seen, err := c.Info(t.Context(), "errorstats", "commandstats").Result()
	if err != nil || !strings.Contains(seen, "errorstat_NOAUTH") {
		t.Errorf("what the server counted: %q, %v", seen, err)
	}
	for line := range strings.FieldsSeq(seen) {
		if strings.HasPrefix(line, "cmdstat_") && !strings.HasPrefix(line, "cmdstat_hello:") && strings.Contains(line, "rejected_calls=") && !strings.Contains(line, "rejected_calls=0,") {
			t.Errorf("without a password: %s", line)
		}
	}
}

// Nor does a cluster, of which the client first asks who has which slots.
func TestMissingLoginOfACluster(t *testing.T) {
	cluster := servers.StartCluster(t, 3, 0)
	for _, n := range cluster.Nodes {
		n.Do("CONFIG", "SET", "requirepass", "secret of redis")
	}
	for what, ask := range asks(unmarked(t, Options{Mode: Cluster, Addrs: cluster.Addrs()})) {
		if err := ask(t.Context()); !errors.Is(err, ErrLogin) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A server that cannot be talked to is named, with the setting that may be wrong.
func TestUnreached(t *testing.T) {
	plain := servers.StartRedis(t, servers.RedisOptions{})
	secure, other := servers.StartRedis(t, servers.RedisOptions{TLS: true}), servers.StartRedis(t, servers.RedisOptions{TLS: true})
	sentinels := servers.StartSentinels(t, plain, 3)
	for name, c := range map[string]struct {
		o       Options
		setting string
		at      string
	}{
		"no TLS there":        {Options{Addrs: []string{plain.Addr()}, TLS: other.TLSConfig()}, "store.redis.tls.enabled", plain.Addr()},
		"TLS there":           {Options{Addrs: []string{secure.Addr()}}, "store.redis.tls.enabled", secure.Addr()},
		"another authority":   {Options{Addrs: []string{secure.Addr()}, TLS: other.TLSConfig()}, "store.redis.tls.caFile", secure.Addr()},
		"nobody there":        {Options{Addrs: []string{"127.0.0.1:1"}}, "", "127.0.0.1:1"},
		"no master's name":    {Options{Mode: Sentinel, MasterName: "nobody", Addrs: sentinels.Addrs()}, "store.redis.masterName", ""},
		"no sentinels there":  {Options{Mode: Sentinel, MasterName: "pact", Addrs: []string{"127.0.0.1:1"}}, "", "127.0.0.1:1"},
		"a cluster's no more": {Options{Mode: Cluster, Addrs: []string{"127.0.0.1:1"}}, "", "127.0.0.1:1"},
	} {
		c.o.timeouts = defaultTimeouts
		s := unmarked(t, c.o)
		for _, what := range []string{"a beat", "the setting"} {
			eventually(t, name+": "+what, func() error { // sentinels may need longer than a call
				err := asks(s)[what](t.Context())
				if err == nil || !strings.Contains(err.Error(), c.setting) || !strings.Contains(err.Error(), c.at) {
					return fmt.Errorf("it is %w", errors.Join(errors.New("not said"), err))
				}
				return nil
			})
		}
	}
}

// A password that is exchanged is taken by the next connection.
func TestExchangedPassword(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	grant(r)
	password := new(atomic.Value)
	password.Store("secret of redis")
	o := onServer(r)
	o.Credentials = func(context.Context) (string, string, error) { return "pact", password.Load().(string), nil }
	s := marked(t, o)
	populate(t, s)

	r.Do("ACL", "SETUSER", "pact", "resetpass", ">another")
	r.Do("CLIENT", "KILL", "USER", "pact")
	eventually(t, "a refusal", func() error {
		if err := asks(s)["a beat"](t.Context()); !errors.Is(err, ErrLogin) {
			return errors.Join(errors.New("not refused"), err)
		}
		return nil
	})
	password.Store("another")
	for what, ask := range asks(s) {
		eventually(t, what, func() error { return ask(t.Context()) })
	}
}

// The kill switch and the operators' calls know a store that is not the deployment's.
func TestUnknownStore(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	marked(t, onServer(r))
	s := unmarked(t, onServer(r))
	for id, want := range map[string]error{"another": ErrForeign, "": ErrUnmarked} {
		s.Expect(id)
		_, err := s.State(t.Context())
		if !errors.Is(err, want) || !errors.Is(err, killswitch.ErrUnknownStore) {
			t.Errorf("the store of %q: %v", id, err)
		}
	}
}
