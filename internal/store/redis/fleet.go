package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/rotation"
)

var (
	_ rotation.Mirror = (*Store)(nil)
	_ rotation.Fleet  = (*Store)(nil)
)

// Heartbeats are in `{g}:beats` by replica, and in `{g}:seen` by the time of the
// last one, in microseconds. Every process has a name of its own, so what is left
// of those that ended is removed after forgotten.
const forgotten = 10 * time.Minute

// beatScript records a heartbeat and returns what a permit rests on: it writes, so
// it succeeds on a master only. Run id and replication id name the data that it
// answers from, see Grant.Lineage. ARGV: replica, heartbeat, how long it is kept
// in microseconds.
var beatScript = newScript(`
local sec, usec = now()
local at = string.format('%.0f', sec * 1000000 + usec)
redis.call('HSET', KEYS[2], ARGV[3], at .. ' ' .. ARGV[4])
redis.call('ZADD', KEYS[3], at, ARGV[3])
local gone = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('(%.0f', at - tonumber(ARGV[5])), 'LIMIT', 0, 64)
if gone[1] then
	redis.call('HDEL', KEYS[2], unpack(gone))
	redis.call('ZREM', KEYS[3], unpack(gone))
end
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local replication = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
if not run or not replication then
	return redis.error_reply('ERR INFO lacks run_id or master_replid')
end
return {m[3] or '0', redis.call('HGET', KEYS[1], 'change') or '', sec, usec, run .. ':' .. replication,
	redis.call('HGETALL', KEYS[4]), redis.call('HLEN', KEYS[5]), m[4] or '0'}
`)

// replicasScript lists heartbeats. ARGV: how old they may be in microseconds.
var replicasScript = newScript(luaReplicas + `
local sec, usec = now()
return replicas(KEYS[2], KEYS[3], sec * 1000000 + usec - tonumber(ARGV[3]))
`)

// mirrorScript keeps the newest schedule of an issuer. Revisions and documents are
// apart, since every beat returns the revisions. ARGV: issuer, revision, document,
// channel.
var mirrorScript = newScript(`
local have = tonumber(redis.call('HGET', KEYS[2], ARGV[3]) or '-1')
local revision = tonumber(ARGV[4])
if have > revision then
	return 0
end
redis.call('HSET', KEYS[3], ARGV[3], ARGV[5])
if have == revision then
	return 0
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.pcall('PUBLISH', ARGV[6], ARGV[4])
return 1
`)

// mirroredScript returns an issuer's schedule.
var mirroredScript = newScript(`
return {redis.call('HGET', KEYS[2], ARGV[3]) or '0', redis.call('HGET', KEYS[3], ARGV[3]) or ''}
`)

// heartbeat is a beat as it is stored under the replica's name.
type heartbeat struct {
	Version   string            `json:"version"`
	Epoch     uint64            `json:"epoch"`
	Revisions map[string]uint64 `json:"revisions,omitempty"`
	Ready     bool              `json:"ready"`
	Time      time.Time         `json:"time"`
}

// parseReplicas decodes pairs of names and heartbeats, by name. One that is
// damaged counts as a replica that has told nothing.
func parseReplicas(pairs []any) []killswitch.Replica {
	var found []killswitch.Replica
	for i := 0; i+1 < len(pairs); i += 2 {
		r := killswitch.Replica{Beat: killswitch.Beat{Replica: text(pairs[i])}}
		at, data, _ := strings.Cut(text(pairs[i+1]), " ")
		var h heartbeat
		if json.Unmarshal([]byte(data), &h) == nil {
			r.Version, r.Epoch, r.Revisions, r.Ready, r.Time = h.Version, h.Epoch, h.Revisions, h.Ready, h.Time
		}
		if micros, err := strconv.ParseInt(at, 10, 64); err == nil {
			r.Seen = time.UnixMicro(micros).UTC()
		}
		found = append(found, r)
	}
	slices.SortFunc(found, func(a, b killswitch.Replica) int { return strings.Compare(a.Replica, b.Replica) })
	return found
}

// Beat records the replica and returns what its permit rests on. It is one round
// trip to the master; without the acknowledgement of enough copies there is no
// grant, for a master that its copies have left may be one no longer.
func (s *Store) Beat(ctx context.Context, b killswitch.Beat) (killswitch.Grant, error) {
	if b.Replica == "" {
		return killswitch.Grant{}, errors.New("redis: a beat needs the replica's name")
	}
	data, err := json.Marshal(heartbeat{b.Version, b.Epoch, b.Revisions, b.Ready, b.Time})
	if err != nil {
		return killswitch.Grant{}, fmt.Errorf("encode a beat: %w", err)
	}
	keys := []string{s.key(globalSlot, "beats"), s.key(globalSlot, "seen"), s.key(globalSlot, "revisions"), s.key(globalSlot, "intents")}
	keep := max(forgotten, 2*s.opts.Registered)
	raw, err := s.runAcked(ctx, beatScript, globalSlot, keys, b.Replica, string(data), keep.Microseconds())
	switch {
	case errors.Is(err, ErrUnmarked) || errors.Is(err, ErrForeign):
		return killswitch.Grant{}, fmt.Errorf("%w: %w", killswitch.ErrUnknownStore, err)
	case err != nil:
		return killswitch.Grant{}, fmt.Errorf("beat: %w", err)
	}
	reply, err := list(raw)
	if err != nil {
		return killswitch.Grant{}, err
	}
	if len(reply) != 8 {
		return killswitch.Grant{}, fmt.Errorf("redis: a script returned %d values for a beat", len(reply))
	}
	g := killswitch.Grant{Change: text(reply[1]), Lineage: text(reply[4]), Revisions: make(map[string]uint64)}
	if g.Epoch, err = parseUint(reply[0]); err != nil {
		return killswitch.Grant{}, err
	}
	if g.Time, err = parseTime(reply[2], reply[3]); err != nil {
		return killswitch.Grant{}, err
	}
	revisions, err := list(reply[5])
	if err != nil {
		return killswitch.Grant{}, err
	}
	for i := 0; i+1 < len(revisions); i += 2 {
		if g.Revisions[text(revisions[i])], err = parseUint(revisions[i+1]); err != nil {
			return killswitch.Grant{}, err
		}
	}
	if text(reply[6]) != "0" {
		s.sweep()
	}
	registry, err := parseUint(reply[7])
	if err != nil {
		return killswitch.Grant{}, err
	}
	s.registry.seenGlobal(registry)
	return g, nil
}

// Replicas lists the replicas seen within the last liveFor.
func (s *Store) Replicas(ctx context.Context, liveFor time.Duration) ([]killswitch.Replica, error) {
	keys := []string{s.key(globalSlot, "beats"), s.key(globalSlot, "seen")}
	reply, err := s.runList(ctx, replicasScript, globalSlot, keys, liveFor.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("list the replicas: %w", err)
	}
	return parseReplicas(reply), nil
}

// Serving tells which live replicas serve at least that revision of an issuer's
// schedule, and which do not or have not said. Those that have ended serve none.
func (s *Store) Serving(ctx context.Context, issuer string, revision uint64) (confirmed, missing []string, err error) {
	replicas, err := s.Replicas(ctx, s.opts.Registered)
	for _, r := range replicas {
		if r.Epoch == killswitch.Gone {
			continue
		}
		if r.Revisions[issuer] >= revision {
			confirmed = append(confirmed, r.Replica)
		} else {
			missing = append(missing, r.Replica)
		}
	}
	return confirmed, missing, err
}

func (s *Store) scheduleKeys() []string {
	return []string{s.key(globalSlot, "revisions"), s.key(globalSlot, "schedules")}
}

// Mirror keeps the newest schedule of an issuer, whose revision each grant
// tells. An older one than is there changes nothing; of one revision the document
// that came last is kept. It is an error if not enough copies have it: a failover
// could make replicas forget that they are stale.
func (s *Store) Mirror(ctx context.Context, issuer string, revision uint64, doc []byte) error {
	if revision > maxExact {
		return fmt.Errorf("redis: revision %d is too high", revision)
	}
	newer, err := s.runAcked(ctx, mirrorScript, globalSlot, s.scheduleKeys(), issuer, strconv.FormatUint(revision, 10), string(doc), s.channel())
	if text(newer) == "1" {
		s.notify()
	}
	if err != nil {
		return fmt.Errorf("mirror a schedule: %w", err)
	}
	return nil
}

// Mirrored returns the newest schedule mirrored; revision 0 if there is none.
func (s *Store) Mirrored(ctx context.Context, issuer string) (revision uint64, doc []byte, err error) {
	reply, err := s.runList(ctx, mirroredScript, globalSlot, s.scheduleKeys(), issuer)
	if err == nil && len(reply) != 2 {
		err = errAnswer
	}
	if err != nil {
		return 0, nil, fmt.Errorf("read a mirrored schedule: %w", err)
	}
	if revision, err = parseUint(reply[0]); err != nil {
		return 0, nil, err
	}
	if d := text(reply[1]); d != "" {
		doc = []byte(d)
	}
	return revision, doc, nil
}
