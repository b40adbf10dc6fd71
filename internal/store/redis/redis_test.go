package redis

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/store/storetest"
	"github.com/pactsigner/pactsigner/test/servers"
)

func TestConformance(t *testing.T) {
	t.Run("Standalone", func(t *testing.T) {
		server := servers.StartRedis(t, servers.RedisOptions{})
		conforms(t, Options{Addrs: []string{server.Addr()}}, server)
	})
	t.Run("Cluster", func(t *testing.T) {
		cluster := servers.StartCluster(t, 3, 0)
		conforms(t, Options{Mode: Cluster, Addrs: cluster.Addrs()}, cluster.Nodes...)
	})
}

// conforms runs the suite, each case under a prefix of its own.
func conforms(t *testing.T, o Options, nodes ...*servers.Redis) {
	cases := 0
	storetest.Run(t, func(t testing.TB) storetest.Backend {
		cases++
		var offset atomicDuration
		o := o
		o.Prefix, o.Offset, o.Log = fmt.Sprintf("pact:case%d", cases), offset.load, slog.New(slog.DiscardHandler)
		o.timeouts = patient
		id := fmt.Sprintf("deployment %d", cases)
		open := func(t testing.TB) storetest.Store {
			t.Helper()
			s, err := Open(o)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			s.Expect(id)
			return s
		}
		s := open(t).(*Store)
		if err := s.Mark(t.Context(), id); err != nil {
			t.Fatalf("mark: %v", err)
		}
		s.Close()
		return storetest.Backend{
			Open: open, OpenSecond: open,
			Fresh: func(t testing.TB) storetest.Store {
				t.Helper()
				o.Prefix += "fresh"
				return open(t)
			},
			Adopt: func(t testing.TB, s storetest.Store) {
				t.Helper()
				if err := s.(*Store).Mark(t.Context(), id); err != nil {
					t.Fatalf("mark: %v", err)
				}
			},
			Advance: func(d time.Duration) {
				offset.add(d)
				for _, n := range nodes {
					age(n, o.Prefix, d)
				}
			},
		}
	})
}

// age makes what expires under a prefix do so earlier. It is quick: the server's
// clock goes on meanwhile.
func age(server *servers.Redis, prefix string, d time.Duration) {
	server.Do("EVAL", `
		for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':{*')) do
			local left = redis.call('PTTL', key)
			if left > 0 then redis.call('PEXPIRE', key, left - ARGV[2]) end
		end`, 0, prefix, d.Milliseconds())
}
