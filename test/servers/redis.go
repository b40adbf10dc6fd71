package servers

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

const redisPackage = "the package redis-server (6.2 or later)"

// RedisOptions say what kind of Redis to start. The zero value is one server that
// keeps an append-only file, which outlives the server but not the machine, and evicts
// nothing: one that has the disk confirm what it writes stands still while that is busy.
type RedisOptions struct {
	// Args are further settings, as on the command line; they win.
	Args []string
	// ReplicaOf makes it a copy of another one.
	ReplicaOf *Redis
	// TLS makes it speak TLS only. CAFile and TLSConfig tell how to reach it.
	TLS bool
	// Port is where it listens; 0 is a free one.
	Port int
}

// Redis is a running redis-server.
type Redis struct {
	t    T
	p    *process
	port int
	dir  string
	pki  *pki
}

// StartRedis starts a redis-server and waits until it answers.
func StartRedis(t T, o RedisOptions) *Redis {
	t.Helper()
	if o.Port == 0 {
		o.Port = FreePort(t, 0)
	}
	return startRedis(t, o)
}

func startRedis(t T, o RedisOptions) *Redis {
	t.Helper()
	r := &Redis{t: t, port: o.Port, dir: t.TempDir()}
	args := []string{
		"--bind", "127.0.0.1", "--dir", r.dir, "--save", "", "--appendonly", "yes", "--appendfsync", "no",
		"--maxmemory-policy", "noeviction", "--daemonize", "no", "--repl-diskless-sync-delay", "0",
		"--enable-debug-command", "local",
	}
	if o.TLS {
		r.pki = newPKI(t)
		args = append(args, "--port", "0", "--tls-port", strconv.Itoa(o.Port), "--tls-cert-file", r.pki.cert, "--tls-key-file", r.pki.key,
			"--tls-ca-cert-file", r.pki.ca, "--tls-auth-clients", "no")
	} else {
		args = append(args, "--port", strconv.Itoa(o.Port))
	}
	if o.ReplicaOf != nil {
		args = append(args, "--replicaof", "127.0.0.1", strconv.Itoa(o.ReplicaOf.port))
	}
	r.p = &process{t: t, name: "redis-server", path: find(t, "redis-server", redisPackage), args: append(args, o.Args...)}
	t.Cleanup(r.Kill)
	r.Start()
	if o.ReplicaOf != nil {
		r.p.await(func() error {
			if info := r.info("replication"); !strings.Contains(info, "master_link_status:up") {
				return fmt.Errorf("the copy is not in step: %s", info)
			}
			return nil
		})
	}
	return r
}

// Addr is host:port.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// Dir is where it keeps its files.
func (r *Redis) Dir() string { return r.dir }

// AppendOnlyDir is where it keeps its append-only file.
func (r *Redis) AppendOnlyDir() string { return filepath.Join(r.dir, "appendonlydir") }

// CAFile is the file with the certificate that the server's is signed with.
func (r *Redis) CAFile() string { return r.pki.ca }

// TLSConfig is how a client reaches a server that speaks TLS; nil if it does not.
func (r *Redis) TLSConfig() *tls.Config {
	if r.pki == nil {
		return nil
	}
	return r.pki.client()
}

// PID is its process id while it runs.
func (r *Redis) PID() int { return r.p.pid() }

// Start starts it again where it was, and waits until it answers.
func (r *Redis) Start() {
	r.t.Helper()
	r.p.start()
	r.p.await(func() error {
		err := r.try("PING").Err()
		if err != nil && authError(err) {
			return nil // it answers, and asks who we are
		}
		return err
	})
}

// Stop ends it in order: what it has is on disk.
func (r *Redis) Stop() { r.p.end(syscall.SIGTERM) }

// Kill ends it at once.
func (r *Redis) Kill() { r.p.end(syscall.SIGKILL) }

// Pause stops it in its tracks; its connections stay open.
func (r *Redis) Pause() { r.p.signal(syscall.SIGSTOP) }

// Resume lets it go on.
func (r *Redis) Resume() { r.p.signal(syscall.SIGCONT) }

// Wipe removes everything that it holds.
func (r *Redis) Wipe() {
	r.t.Helper()
	r.Do("FLUSHALL")
}

// Do runs a command and returns its answer; an error fails the test.
func (r *Redis) Do(args ...any) any {
	r.t.Helper()
	v, err := r.try(args...).Result()
	if err != nil && err != redis.Nil {
		r.t.Fatalf("servers: redis %v: %v", args, err)
	}
	return v
}

func (r *Redis) info(section string) string {
	s, _ := r.try("INFO", section).Text()
	return s
}

func (r *Redis) try(args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), startTimeout)
	defer cancel()
	c := redis.NewClient(&redis.Options{Addr: r.Addr(), TLSConfig: r.TLSConfig(), MaxRetries: -1, PoolSize: 1, DialTimeout: startTimeout, ReadTimeout: startTimeout, WriteTimeout: startTimeout})
	defer c.Close()
	return c.Do(ctx, args...)
}
