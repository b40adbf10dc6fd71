package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// MasterName is what Sentinels call the master that they watch.
const MasterName = "pact"

// Sentinels watch a master and its copies, and promote a copy when it is gone.
type Sentinels struct {
	t     T
	procs []*process
	addrs []string
}

// StartSentinels starts n Sentinels on a master and waits until all know each
// other and the master's copies. They take a master for gone after one second.
func StartSentinels(t T, master *Redis, n int) *Sentinels {
	t.Helper()
	s := &Sentinels{t: t}
	path := find(t, "redis-sentinel", "the package redis-sentinel (6.2 or later)")
	for range n {
		port := FreePort(t, 0)
		file := filepath.Join(t.TempDir(), "sentinel.conf")
		conf := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %d %d\nsentinel down-after-milliseconds %s 1000\nsentinel failover-timeout %s 3000\nsentinel parallel-syncs %s 1\n",
			port, filepath.Dir(file), MasterName, master.port, n/2+1, MasterName, MasterName, MasterName)
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			t.Fatalf("servers: %v", err)
		}
		p := &process{t: t, name: "redis-sentinel", path: path, args: []string{file}}
		t.Cleanup(func() { p.end(syscall.SIGKILL) })
		p.start()
		s.procs = append(s.procs, p)
		s.addrs = append(s.addrs, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	for i, p := range s.procs {
		p.await(func() error {
			m, err := s.master(i)
			if err != nil {
				return err
			}
			// Copies come in step one after another.
			copies := strings.Count(master.info("replication"), "state=online")
			if m["num-other-sentinels"] != strconv.Itoa(n-1) || m["num-slaves"] != strconv.Itoa(copies) || m["flags"] != "master" {
				return fmt.Errorf("sentinel %d knows %s others and %s copies of a %s", i, m["num-other-sentinels"], m["num-slaves"], m["flags"])
			}
			return nil
		})
	}
	return s
}

// Addrs are the Sentinels' addresses.
func (s *Sentinels) Addrs() []string { return s.addrs }

// MasterAddr is the address of the master as the Sentinels know it.
func (s *Sentinels) MasterAddr() string {
	s.t.Helper()
	m, err := s.master(0)
	if err != nil {
		s.t.Fatalf("servers: sentinel: %v", err)
	}
	return net.JoinHostPort(m["ip"], m["port"])
}

// Failover makes them promote a copy, whether the master is gone or not, and
// waits until they agree on another one.
func (s *Sentinels) Failover() {
	s.t.Helper()
	before := s.MasterAddr()
	s.procs[0].await(func() error { return s.do(0, "SENTINEL", "FAILOVER", MasterName).Err() })
	s.AwaitFailover(before)
}

// AwaitFailover waits until all agree on a master other than before.
func (s *Sentinels) AwaitFailover(before string) {
	s.t.Helper()
	for i, p := range s.procs {
		p.await(func() error {
			m, err := s.master(i)
			if err != nil {
				return err
			}
			if now := net.JoinHostPort(m["ip"], m["port"]); now == before {
				return errors.New("the master is still " + before)
			}
			return nil
		})
	}
}

// Pause stops all of them in their tracks.
func (s *Sentinels) Pause() {
	for _, p := range s.procs {
		p.signal(syscall.SIGSTOP)
	}
}

// Resume lets them go on.
func (s *Sentinels) Resume() {
	for _, p := range s.procs {
		p.signal(syscall.SIGCONT)
	}
}

func (s *Sentinels) master(i int) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), startTimeout)
	defer cancel()
	c := redis.NewSentinelClient(s.options(i))
	defer c.Close()
	return c.Master(ctx, MasterName).Result()
}

func (s *Sentinels) do(i int, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), startTimeout)
	defer cancel()
	c := redis.NewClient(s.options(i))
	defer c.Close()
	return c.Do(ctx, args...)
}

// options reach a Sentinel. What was asked is waited for: a failover that is asked for
// once more is a second one.
func (s *Sentinels) options(i int) *redis.Options {
	return &redis.Options{Addr: s.addrs[i], MaxRetries: -1, PoolSize: 1, DialTimeout: startTimeout, ReadTimeout: startTimeout, WriteTimeout: startTimeout}
}
