package servers_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pactsigner/pactsigner/test/servers"
)

func TestRedis(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	r.Do("SET", "a", "1")
	r.Stop()
	r.Start()
	if got := r.Do("GET", "a"); got != "1" {
		t.Errorf("after a restart a is %v", got)
	}
	r.Wipe()
	if n := r.Do("DBSIZE"); n != int64(0) {
		t.Errorf("after a wipe it holds %v keys", n)
	}
}

func TestRedisTLS(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{TLS: true})
	if got := r.Do("PING"); got != "PONG" {
		t.Errorf("PING over TLS: %v", got)
	}
	plain := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1})
	defer plain.Close()
	if err := plain.Ping(t.Context()).Err(); err == nil {
		t.Error("it answers without TLS")
	}
}

func TestSentinels(t *testing.T) {
	master := servers.StartRedis(t, servers.RedisOptions{})
	copied := servers.StartRedis(t, servers.RedisOptions{ReplicaOf: master})
	s := servers.StartSentinels(t, master, 3)
	if got := s.MasterAddr(); got != master.Addr() {
		t.Fatalf("the master is %s, want %s", got, master.Addr())
	}
	master.Kill()
	s.AwaitFailover(master.Addr())
	if got := s.MasterAddr(); got != copied.Addr() {
		t.Errorf("after the master's end it is %s, want %s", got, copied.Addr())
	}
}

func TestCluster(t *testing.T) {
	c := servers.StartCluster(t, 3, 1)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	defer client.Close()
	for _, key := range []string{"{b00}", "{b01}", "{b02}", "{b03}"} {
		if err := client.Set(t.Context(), key, "x", 0).Err(); err != nil {
			t.Errorf("SET %s: %v", key, err)
		}
	}
}

func TestVault(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{Audit: true})
	put := func() error {
		_, err := v.Client().Logical().WriteWithContext(t.Context(), "cubbyhole/a", map[string]any{"b": "c"})
		return err
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	v.Seal()
	if put() == nil {
		t.Error("a sealed Vault takes writes")
	}
	v.Unseal()
	v.Restart()
	if err := put(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func TestVaultTLS(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{TLS: true})
	if health, err := v.Client().Sys().HealthWithContext(t.Context()); err != nil || health.Sealed {
		t.Errorf("health over TLS: %+v, %v", health, err)
	}
}

func TestProxy(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	p := servers.NewProxy(t, r.Addr())
	c := redis.NewClient(&redis.Options{
		Addr: p.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, DialTimeout: time.Minute, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
	})
	defer c.Close()
	ping := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return c.Ping(ctx).Err()
	}
	if err := ping(time.Minute); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if ping(time.Minute) == nil {
		t.Error("a cut connection answers")
	}
	p.Heal()
	if err := ping(time.Minute); err != nil {
		t.Errorf("healed: %v", err)
	}
	p.Hang()
	if ping(200*time.Millisecond) == nil {
		t.Error("a hung connection answers")
	}
	p.Heal()
	if err := ping(time.Minute); err != nil {
		t.Errorf("healed again: %v", err)
	}
}

// A port that was given out is not given again, to another process neither, though
// nobody listens there; nor is the one above it that was asked for with it.
func TestFreePortIsKept(t *testing.T) {
	port := servers.FreePort(t, 1)
	for _, n := range []int{port, port + 1} {
		if l, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", n)); err == nil {
			l.Close()
			t.Errorf("port %d is not marked", n)
		}
	}
}
