package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pactsigner/pactsigner/signer"
)

// script is a Lua script that runs in one slot. KEYS[1] is the slot's marker,
// ARGV[1] the id that it must have, ARGV[2] what is added to the server's clock,
// in microseconds; KEYS[2] and ARGV[3] are the first of its own.
type script struct{ text, sha string }

// prelude is the beginning of every script. It refuses on a server that takes no
// writes (a master that was demoted, or has lost its copies or its disk), also for
// those that would only read. A script then has:
//
//	m           the marker's fields: id, minReader, epoch, registry
//	epoch       the slot's switch epoch
//	now()       the store's clock in seconds and microseconds
//	micros()    the same in microseconds
//	int(n)      a whole number as text, which tostring garbles above 10^14
const prelude = `
local writable = redis.pcall('PERSIST', KEYS[1])
if type(writable) == 'table' and writable.err then return writable end
local function int(n) return string.format('%.0f', n) end
local function micros()
	local t = redis.call('TIME')
	return t[1] * 1000000 + t[2] + tonumber(ARGV[2])
end
local function now()
	local us = micros()
	return math.floor(us / 1000000), us % 1000000
end
`

// demand is what follows the prelude, but in scripts that make or read markers.
const demand = `
local m = redis.call('HMGET', KEYS[1], 'id', 'minReader', 'epoch', 'reg')
if not m[1] then return redis.error_reply('UNMARKED the slot has no marker') end
if m[1] ~= ARGV[1] then return redis.error_reply('FOREIGN the slot has the marker of another deployment') end
if tonumber(m[2]) > ` + formatText + ` then return redis.error_reply('FORMAT the slot is of a newer format') end
local epoch = tonumber(m[3])
`

// newScript makes a script that demands the slot's marker.
func newScript(lua string) *script { return newBareScript(demand + lua) }

// newBareScript makes a script that does not.
func newBareScript(lua string) *script {
	text := prelude + lua
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

// staleReply is what a script returns to a caller whose epoch is too low.
const staleReply = `return redis.error_reply('STALE the kill switch has moved on')
`

var errUnmarked = fmt.Errorf("store: redis: %w", ErrUnmarked)

// mapped names the errors of the server that mean something to callers.
func mapped(err error) error {
	if err == nil {
		return nil
	}
	var reply redis.Error
	if !errors.As(err, &reply) {
		return fmt.Errorf("store: redis: %w", err)
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	switch code {
	case "UNMARKED":
		return errUnmarked
	case "FOREIGN":
		return fmt.Errorf("store: redis: %w", ErrForeign)
	case "FORMAT":
		return fmt.Errorf("store: redis: %w: use a newer version", ErrFormat)
	case "STALE":
		return signer.ErrStaleEpoch
	}
	return fmt.Errorf("store: redis: %w", err)
}

func (s *Store) offset() int64 {
	if s.opts.Offset == nil {
		return 0
	}
	return s.opts.Offset().Microseconds()
}

// evalsha is the command that runs a script.
func (s *Store) evalsha(ctx context.Context, sc *script, id string, offset int64, slot string, keys []string, args []any) *redis.Cmd {
	all := make([]any, 0, 6+len(keys)+len(args))
	all = append(all, "evalsha", sc.sha, 1+len(keys), s.markerKey(slot))
	for _, k := range keys {
		all = append(all, k)
	}
	all = append(all, id, offset)
	all = append(all, args...)
	cmd := redis.NewCmd(ctx, all...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// run runs a script in a slot, once: it is sent again only if the server has
// said that it did not run it.
func (s *Store) run(ctx context.Context, sc *script, slot string, keys []string, args ...any) (any, error) {
	replies, err := s.runIn(ctx, sc, []invocation{{slot, keys, args}}, false)
	if err != nil {
		return nil, err
	}
	return replies[0].value, replies[0].err
}

// runAcked is run, and then waits for Acks copies, on the same connection. If
// fewer acknowledge in time, the result comes with ErrNotAcknowledged. The script
// must write something, also if there is nothing to change: what is waited for is
// the last write of the connection.
func (s *Store) runAcked(ctx context.Context, sc *script, slot string, keys []string, args ...any) (any, error) {
	replies, err := s.runIn(ctx, sc, []invocation{{slot, keys, args}}, true)
	if err != nil && !errors.Is(err, ErrNotAcknowledged) {
		return nil, err
	}
	if replies[0].err != nil {
		return nil, replies[0].err
	}
	return replies[0].value, err
}

// runBare is run for a script made by newBareScript, with any marker.
func (s *Store) runBare(ctx context.Context, sc *script, slot string, keys []string, args ...any) (any, error) {
	replies, err := s.runWith(ctx, sc, "", []invocation{{slot, keys, args}}, false)
	if err != nil {
		return nil, err
	}
	return replies[0].value, replies[0].err
}

// invocation is one run of a script.
type invocation struct {
	slot string
	keys []string
	args []any
}

// reply is what one run returned.
type reply struct {
	value any
	err   error
}

// everyTag makes one invocation for each tag.
func everyTag(f func(slot string) invocation) []invocation {
	list := make([]invocation, tags)
	for i, slot := range tagNames {
		list[i] = f(slot)
	}
	return list
}

// runEach is run in several slots at once. It returns all values, in order, or the
// first error.
func (s *Store) runEach(ctx context.Context, sc *script, list []invocation, acked bool) ([]any, error) {
	replies, err := s.runIn(ctx, sc, list, acked)
	if err != nil && !errors.Is(err, ErrNotAcknowledged) {
		return nil, err
	}
	values := make([]any, len(replies))
	for i, r := range replies {
		if r.err != nil {
			return nil, r.err
		}
		values[i] = r.value
	}
	return values, err
}

func (s *Store) runIn(ctx context.Context, sc *script, list []invocation, acked bool) ([]reply, error) {
	id := *s.expect.Load()
	if id == "" {
		return nil, errUnmarked
	}
	return s.runWith(ctx, sc, id, list, acked)
}

// maxRounds is how often a call is sent because the server said that it did not
// run it: it knew the script not yet, or the slot no longer.
const maxRounds = 4

func (s *Store) runWith(ctx context.Context, sc *script, id string, list []invocation, acked bool) ([]reply, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	replies := make([]reply, len(list))
	todo := make([]int, len(list))
	for i := range todo {
		todo[i] = i
	}
	var short error
	for round := 0; len(todo) > 0; round++ {
		byNode, err := s.byNode(ctx, list, todo)
		if err != nil {
			return nil, err
		}
		todo = todo[:0:0]
		for _, part := range byNode {
			again, err := s.runOn(ctx, part, sc, id, list, replies, acked)
			if errors.Is(err, ErrNotAcknowledged) {
				short = err
			} else if err != nil {
				return nil, err
			}
			if round+1 < maxRounds {
				todo = append(todo, again...)
			}
		}
	}
	return replies, short
}

// part is the invocations that one server runs.
type part struct {
	node  *redis.Client
	which []int
}

func (s *Store) byNode(ctx context.Context, list []invocation, which []int) ([]*part, error) {
	if s.cluster == nil {
		return []*part{{s.single, which}}, nil
	}
	var parts []*part
	of := make(map[*redis.Client]*part)
	for _, i := range which {
		n, err := s.node(ctx, list[i].slot)
		if err != nil {
			return nil, err
		}
		p := of[n]
		if p == nil {
			p = &part{node: n}
			of[n] = p
			parts = append(parts, p)
		}
		p.which = append(p.which, i)
	}
	return parts, nil
}

// runOn runs a part in one pipeline and returns what the server did not run.
func (s *Store) runOn(ctx context.Context, p *part, sc *script, id string, list []invocation, replies []reply, acked bool) (again []int, err error) {
	pipe := p.node.Pipeline()
	cmds := make([]*redis.Cmd, len(p.which))
	offset := s.offset()
	for j, i := range p.which {
		cmds[j] = s.evalsha(ctx, sc, id, offset, list[i].slot, list[i].keys, list[i].args)
		_ = pipe.Process(ctx, cmds[j])
	}
	var wait *redis.IntCmd
	if acked && s.opts.Acks > 0 {
		wait = redis.NewIntCmd(ctx, "wait", s.opts.Acks, ackTimeout.Milliseconds())
		_ = pipe.Process(ctx, wait)
	}
	_, execErr := pipe.Exec(ctx)
	load := false
	for j, i := range p.which {
		value, err := cmds[j].Result()
		if errors.Is(err, redis.Nil) {
			value, err = nil, nil
		}
		replies[i] = reply{value, mapped(err)}
		switch what := notRun(err); {
		case what == noScript:
			load = true
			again = append(again, i)
		case what == moved:
			s.cluster.ReloadState(ctx)
			again = append(again, i)
		case err != nil && !isReply(err):
			s.lost()
			return nil, mapped(err)
		}
	}
	if load {
		if err := p.node.ScriptLoad(ctx, sc.text).Err(); err != nil {
			return nil, mapped(err)
		}
	} else if len(again) > 0 {
		if err := pause(ctx, 100*time.Millisecond); err != nil { // the cluster's new map is on its way
			return nil, err
		}
	}
	if wait != nil && len(again) == 0 {
		n, err := wait.Result()
		if err != nil && !isReply(err) {
			return nil, mapped(execErr)
		}
		if err != nil || n < int64(s.opts.Acks) {
			return nil, fmt.Errorf("%w: %d of %d", ErrNotAcknowledged, n, s.opts.Acks)
		}
	}
	return again, nil
}

// lost makes a cluster's client look for the masters again.
func (s *Store) lost() {
	if s.cluster != nil {
		s.cluster.ReloadState(context.Background())
	}
}

// Why the server did not run a command.
const (
	ran = iota
	noScript
	moved
)

func notRun(err error) int {
	if err == nil || !isReply(err) {
		return ran
	}
	switch code, _, _ := strings.Cut(err.Error(), " "); code {
	case "NOSCRIPT":
		return noScript
	case "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN":
		return moved
	}
	return ran
}

// isReply says whether err is the server's answer, and not the lack of one.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func parseInt(v any) (int64, error) {
	n, err := strconv.ParseInt(text(v), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("store: redis: a script returned %q, not a number", text(v))
	}
	return n, nil
}
