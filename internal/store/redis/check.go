package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// ConfigError says which setting of a server makes it no store for a signer, and
// what to do.
type ConfigError struct {
	Server  string // its address
	Setting string // as redis.conf names it; "version" and "replicas" are no settings there
	Value   string
	Fix     string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("redis %s: %s is %q: %s", e.Server, e.Setting, e.Value, e.Fix)
}

// CheckServer refuses servers that would forget what they were told: a
// *ConfigError, joined with those of other masters of a cluster. It asks INFO, and
// CONFIG GET save of a server without an append-only file.
func (s *Store) CheckServer(ctx context.Context) error {
	if s.cluster == nil {
		return s.checkServer(ctx, s.single)
	}
	var (
		mu   sync.Mutex
		errs []error
	)
	err := s.cluster.ForEachMaster(ctx, func(ctx context.Context, c *goredis.Client) error {
		if err := s.checkServer(ctx, c); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func (s *Store) checkServer(ctx context.Context, c *goredis.Client) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info := make(map[string]string)
	var copies int
	for _, section := range []string{"server", "memory", "persistence", "replication"} {
		text, err := c.Info(ctx, section).Result()
		if err != nil {
			return fmt.Errorf("redis: read the server's settings: %w", err)
		}
		copies += readInfo(text, info)
	}
	refuse := func(setting, value, fix string) error {
		return &ConfigError{Server: c.Options().Addr, Setting: setting, Value: value, Fix: fix}
	}
	if v := info["redis_version"]; olderThan62(v) {
		return refuse("version", v, "use Redis 6.2 or later")
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" && info["maxmemory"] != "0" {
		return refuse("maxmemory-policy", policy, "it removes records when memory is full, among them devices, used proofs and kills: set it to noeviction, or maxmemory to 0")
	}
	if info["aof_enabled"] != "1" {
		const fix = "a restart would lose everything: set appendonly to yes"
		save, err := c.ConfigGet(ctx, "save").Result()
		if err != nil {
			return refuse("appendonly", "no", fix+", or let this user read whether it saves snapshots (+config|get)")
		}
		if save["save"] == "" {
			return refuse("appendonly", "no", fix)
		}
	}
	if copies < s.opts.Acks {
		return refuse("replicas", strconv.Itoa(copies), fmt.Sprintf("%d must acknowledge: attach replicas, or ask for fewer", s.opts.Acks))
	}
	return nil
}

// readInfo adds the fields of an INFO section and returns how many copies are
// online.
func readInfo(text string, fields map[string]string) (copies int) {
	for line := range strings.SplitSeq(text, "\n") {
		k, v, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		fields[k] = v
		if n, isCopy := strings.CutPrefix(k, "slave"); isCopy && n != "" && n[0] >= '0' && n[0] <= '9' && strings.Contains(v, "state=online") {
			copies++
		}
	}
	return copies
}

// olderThan62 says whether a version is known to be before 6.2.
func olderThan62(version string) bool {
	part := strings.SplitN(version, ".", 3)
	if len(part) < 2 {
		return true
	}
	major, err1 := strconv.Atoi(part[0])
	minor, err2 := strconv.Atoi(part[1])
	return err1 != nil || err2 != nil || major < 6 || major == 6 && minor < 2
}
