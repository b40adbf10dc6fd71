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
	Setting string // as redis.conf names it, or the signer's; "version" and "replicas" are no settings
	Value   string
	Fix     string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("redis %s: %s is %q: %s", e.Server, e.Setting, e.Value, e.Fix)
}

// errNoMaster: what answered is no master: it may have been one until just now.
var errNoMaster = errors.New("store: redis: the server is a replica, not a master")

// CheckServer refuses servers that would forget what they were told: a
// *ConfigError, joined with those of other masters of a cluster.
func (s *Store) CheckServer(ctx context.Context) error {
	if s.cluster == nil {
		err := s.checkServer(ctx, s.single)
		if errors.Is(err, errNoMaster) { // on a connection from before, which is given up
			err = s.checkServer(ctx, s.single)
		}
		return err
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
	return errors.Join(append(errs, mapped(err))...)
}

func (s *Store) checkServer(ctx context.Context, c *goredis.Client) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.timeouts.call)
	defer cancel()
	pipe := c.Pipeline()
	var sections []*goredis.StringCmd
	for _, section := range []string{"server", "memory", "persistence", "replication"} {
		sections = append(sections, pipe.Info(ctx, section))
	}
	if err := exec(ctx, pipe); isReply(err) {
		return fmt.Errorf("read the server's settings: %w", mapped(err))
	} else if err != nil {
		return fmt.Errorf("read the server's settings: %w", s.unreached(c, err))
	}
	info := make(map[string]string)
	for _, section := range sections {
		readInfo(section.Val(), info)
	}
	if info["role"] != "master" {
		s.lost()
		s.links.drop()
		return fmt.Errorf("%w (%s)", errNoMaster, c.Options().Addr)
	}
	copies, online := copiesIn(info)
	refuse := func(setting, value, fix string) error {
		return &ConfigError{Server: c.Options().Addr, Setting: setting, Value: value, Fix: fix}
	}
	if v := info["redis_version"]; olderThan62(v) {
		return refuse("version", v, "use Redis 6.2 or later")
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" && info["maxmemory"] != "0" {
		return refuse("maxmemory-policy", policy, "it removes records when memory is full, among them devices, used proofs and kills: set it to noeviction, or maxmemory to 0")
	}
	// Snapshots lose what came after the last one, also if copies have it: they follow
	// their master when it comes back without it.
	if info["aof_enabled"] != "1" {
		return refuse("appendonly", "no", "a restart would lose what was acknowledged since the last snapshot, or everything: set it to yes")
	}
	if online < s.opts.Acks {
		return refuse("replicas", strconv.Itoa(online), fmt.Sprintf("%d must acknowledge: attach replicas, or lower store.redis.acks", s.opts.Acks))
	}
	// Those that are left, if a master goes with all that acknowledged, must not be able
	// to have another: 2·(acks+1) > 1+copies.
	if enough := (copies + 1) / 2; s.opts.Acks < enough {
		return refuse("store.redis.acks", strconv.Itoa(s.opts.Acks),
			fmt.Sprintf("the master has %d replicas, and others than it and those that acknowledge could go on without a kill: set it to %d", copies, enough))
	}
	return nil
}

// readInfo adds the fields of an INFO section.
func readInfo(text string, fields map[string]string) {
	for line := range strings.SplitSeq(text, "\n") {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[k] = v
		}
	}
}

// copiesIn counts a master's replicas, and those that are in step.
func copiesIn(info map[string]string) (all, online int) {
	for k, v := range info {
		n, isCopy := strings.CutPrefix(k, "slave")
		if _, err := strconv.Atoi(n); !isCopy || err != nil {
			continue
		}
		if all++; strings.Contains(v, "state=online") {
			online++
		}
	}
	return all, online
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
