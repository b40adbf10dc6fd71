package redis

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pactsigner/pactsigner/signer"
)

// script is a Lua script that runs in one slot. KEYS[1] is the slot's marker,
// ARGV[1] the id that it must have, ARGV[2] what is added to the server's clock,
// in microseconds; KEYS[2] and ARGV[3] are the first of its own.
type script struct{ text, sha string }

// How a script begins: it is refused on a server that takes no writes (a master that
// was demoted, or has lost its copies or its disk), also if it would only read. The
// first write decides whether a server whose memory is full takes those that follow:
// it always takes writes, which is what kills, heartbeats and what ends somebody's
// access begin with; grows is refused then, with nothing changed.
const (
	writes = `local writable = redis.pcall('PERSIST', KEYS[1])
`
	grows = `local writable = redis.pcall('SETRANGE', string.sub(KEYS[1], 1, -2) .. 'z', 0, '') -- a key that never is
`
)

// prelude is the beginning of every script, after writes or grows. A script then has:
//
//	m           the marker's fields: id, minReader, epoch, registry
//	epoch       the slot's switch epoch
//	now()       the store's clock in seconds and microseconds
//	micros()    the same in microseconds
//	int(n)      a whole number as text, which tostring garbles above 10^14
const prelude = `if type(writable) == 'table' and writable.err then return writable end
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
func newScript(lua string) *script { return scriptOf(writes, demand+lua) }

// newGrowingScript makes one that is refused when the server's memory is full: of
// what comes in numbers, or gives access.
func newGrowingScript(lua string) *script { return scriptOf(grows, demand+lua) }

// newBareScript makes a script that does not demand the marker.
func newBareScript(lua string) *script { return scriptOf(writes, lua) }

// scriptOf puts a script together.
func scriptOf(first, lua string) *script {
	text := first + prelude + lua
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
	if errors.Is(err, redis.Nil) {
		return fmt.Errorf("store: redis: the sentinels know no master of the name store.redis.masterName: %w", err)
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
	case "OOM":
		return fmt.Errorf("store: redis: %w", ErrMemoryFull)
	case "WRONGPASS", "NOAUTH":
		return fmt.Errorf("store: redis: %w (%w)", ErrLogin, err)
	case "NOPERM":
		return fmt.Errorf("store: redis: %w (%w)", ErrForbidden, err)
	}
	if strings.HasPrefix(reply.Error(), "ERR AUTH ") || strings.Contains(reply.Error(), "unauthenticated") { // it asks for none, or gets none
		return fmt.Errorf("store: redis: %w (%w)", ErrLogin, err)
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

// maxRounds is how often a call is sent because servers said that they did not run
// it, as they have the slot no longer.
const maxRounds = 4

func (s *Store) runWith(ctx context.Context, sc *script, id string, list []invocation, acked bool) ([]reply, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, s.opts.timeouts.call)
	type outcome struct {
		replies []reply
		err     error
	}
	done := make(chan outcome, 1)
	go func() {
		defer cancel()
		replies, err := s.runRounds(bounded, sc, id, list, acked)
		done <- outcome{replies, err}
	}()
	select {
	case o := <-done:
		return o.replies, o.err
	case <-ctx.Done(): // the client waits for an answer that is on its way, bounded as it is
		return nil, ctx.Err()
	}
}

func (s *Store) runRounds(ctx context.Context, sc *script, id string, list []invocation, acked bool) ([]reply, error) {
	replies := make([]reply, len(list))
	todo := make([]int, len(list))
	for i := range todo {
		todo[i] = i
	}
	var short error
	for round := 0; len(todo) > 0; round++ {
		parts, err := s.byNode(ctx, list, todo)
		if err != nil {
			return nil, err
		}
		var running sync.WaitGroup
		for _, p := range parts[1:] {
			running.Go(func() { p.again, p.err = s.runOn(ctx, p, sc, id, list, replies, acked) })
		}
		p := parts[0]
		p.again, p.err = s.runOn(ctx, p, sc, id, list, replies, acked)
		running.Wait()
		todo = todo[:0:0]
		for _, p := range parts {
			if errors.Is(p.err, ErrNotAcknowledged) {
				short = p.err
			} else if p.err != nil {
				return nil, p.err
			}
			if round+1 < maxRounds {
				todo = append(todo, p.again...)
			}
		}
	}
	return replies, short
}

// part is the invocations that one server runs.
type part struct {
	node  *redis.Client
	which []int
	again []int // what it did not run
	err   error
}

func (s *Store) byNode(ctx context.Context, list []invocation, which []int) ([]*part, error) {
	if s.cluster == nil {
		return []*part{{node: s.single, which: which}}, nil
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

// runOn runs a part in one pipeline, and in a second one what the server did not
// know the script for. It returns what belongs to another server.
func (s *Store) runOn(ctx context.Context, p *part, sc *script, id string, list []invocation, replies []reply, acked bool) (again []int, err error) {
	unknown, again, short := s.runOnce(ctx, p.node, p.which, sc, id, list, replies, acked)
	if len(unknown) > 0 {
		if err := p.node.ScriptLoad(ctx, sc.text).Err(); err != nil {
			return nil, mapped(err)
		}
		_, more, err := s.runOnce(ctx, p.node, unknown, sc, id, list, replies, acked)
		again = append(again, more...)
		if err != nil {
			short = err
		}
	}
	if short != nil && !errors.Is(short, ErrNotAcknowledged) {
		return nil, short
	}
	if len(again) > 0 { // the cluster's new map is on its way
		s.lost()
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return again, short
}

// runOnce runs invocations in one pipeline, and returns those that the server did
// not run. With ErrNotAcknowledged too few copies have the others.
func (s *Store) runOnce(ctx context.Context, n *redis.Client, which []int, sc *script, id string, list []invocation, replies []reply, acked bool) (unknown, elsewhere []int, err error) {
	pipe := n.Pipeline()
	cmds := make([]*redis.Cmd, len(which))
	offset := s.offset()
	for j, i := range which {
		cmds[j] = s.evalsha(ctx, sc, id, offset, list[i].slot, list[i].keys, list[i].args)
		_ = pipe.Process(ctx, cmds[j])
	}
	var wait *redis.IntCmd
	if acked && s.opts.Acks > 0 {
		wait = redis.NewIntCmd(ctx, "wait", s.opts.Acks, s.opts.timeouts.ack.Milliseconds())
		_ = pipe.Process(ctx, wait)
	}
	_ = exec(ctx, pipe) // each command has its error
	for j, i := range which {
		value, err := cmds[j].Result()
		if err == redis.Nil { // itself: sentinels that know no master wrap it
			value, err = nil, nil
		}
		replies[i] = reply{value, mapped(err)}
		s.noMaster(err)
		switch what := notRun(err); {
		case what == noScript:
			unknown = append(unknown, i)
		case what == moved:
			elsewhere = append(elsewhere, i)
		case err != nil && !isReply(err):
			s.lost()
			return nil, nil, s.unreached(n, err)
		}
	}
	if wait == nil || len(unknown)+len(elsewhere) == len(which) {
		return unknown, elsewhere, nil
	}
	have, err := wait.Result()
	if err != nil && !isReply(err) {
		return nil, nil, mapped(err)
	}
	if err != nil || have < int64(s.opts.Acks) {
		return unknown, elsewhere, fmt.Errorf("%w: %d of %d", ErrNotAcknowledged, have, s.opts.Acks)
	}
	return unknown, elsewhere, nil
}

// lost makes a cluster's client look for the masters again.
func (s *Store) lost() {
	if s.cluster != nil {
		s.cluster.ReloadState(context.Background())
	}
}

// noMaster makes the store look for the master anew if a server says that it is
// none, or none yet: connections that were made before are not used again.
func (s *Store) noMaster(err error) {
	if err == nil || !isReply(err) {
		return
	}
	switch code, _, _ := strings.Cut(err.Error(), " "); code {
	case "READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN":
		s.lost()
		s.links.drop()
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

// unreached names a server that gave no answer, and the setting that may be why.
func (s *Store) unreached(n *redis.Client, err error) error {
	at := n.Options().Addr
	if s.opts.Mode == Sentinel { // the client finds it out for each connection
		at = "behind " + strings.Join(s.opts.Addrs, ", ")
	}
	var certificate *tls.CertificateVerificationError
	hint := ""
	switch {
	case errors.As(err, &certificate):
		hint = ": see store.redis.tls.caFile and store.redis.tls.serverName"
	case s.opts.TLS == nil && (errors.Is(err, errFrame) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		hint = ": it may want TLS, see store.redis.tls.enabled"
	case s.opts.TLS != nil && errors.Is(err, context.DeadlineExceeded):
		hint = ": it may have no TLS, see store.redis.tls.enabled"
	}
	return fmt.Errorf("store: redis %s: %w%s", at, err, hint)
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
