package redis

import (
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
)

var _ killswitch.Store = (*Store)(nil)

// The switch is in `{g}`: its epoch and the random name of its last change are
// fields of the slot's marker; entries and resumes are in the hashes `{g}:kills`
// and `{g}:resumes`, each under the hash of what is stored, so that what is there
// is never written again. What is stored is "epoch seconds nanoseconds JSON",
// since only the script knows epoch and time.

// maxExact is the highest number that scripts count exactly.
const maxExact = 1 << 52

// epochCeiling is above every epoch that is believed, see killswitch.NextEpoch.
var epochCeiling = strconv.FormatUint(killswitch.EpochCeiling, 10)

// luaReplicas returns the heartbeats of those seen at a time, in microseconds, or
// later. A damaged heartbeat fails no kill: who is not known is waited for in full.
const luaReplicas = `
local function replicas(beats, seen, since)
	local names, found = redis.pcall('ZRANGEBYSCORE', seen, string.format('%.0f', since), '+inf'), {}
	if names.err then
		return found
	end
	for _, name in ipairs(names) do
		local beat = redis.pcall('HGET', beats, name)
		if type(beat) == 'string' then
			found[#found + 1] = name
			found[#found + 1] = beat
		end
	end
	return found
end
`

// changeScript writes an entry or a resume. It never fails over the audit log: if
// the head is another than the one that the audit entry follows, or the log is
// damaged, it leaves the audit entry as the intent of an act that is done.
// ARGV: the epoch that the caller has seen, or "" if any will do; floor; what to
// store; the change's name; channel; how long a replica counts in microseconds;
// intent; audit entry; head; audit entry chained to it; its hash.
var changeScript = newScript(luaAudit + luaReplicas + `
local old = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0') or 0
if ARGV[3] ~= '' and tonumber(ARGV[3]) ~= old then
	return {'changed'}
end
if not (old >= 0 and old < ` + epochCeiling + `) then old = 0 end -- a damaged one: this leads out of it
local sec, usec = now()
local epoch = string.format('%.0f', math.max(old + 1, tonumber(ARGV[4])))
local record = epoch .. ' ' .. sec .. ' ' .. string.format('%06d000', usec) .. ' ' .. ARGV[5]
redis.call('HSET', KEYS[1], 'epoch', epoch, 'change', ARGV[6])
redis.call('HSET', KEYS[7], redis.sha1hex(record), record)

local audited = 'yes'
local seq, hash = audit_head(KEYS[2], KEYS[3])
if string.format('%.0f', seq) ~= ARGV[11] or hash ~= ARGV[12] or audit_append(KEYS[2], KEYS[3], seq, 13) then
	audited = 'no'
	redis.pcall('HSET', KEYS[4], ARGV[9], sec .. ' done ' .. ARGV[10])
end
redis.pcall('PUBLISH', ARGV[7], epoch)
return {'done', record, audited, replicas(KEYS[5], KEYS[6], sec * 1000000 + usec - tonumber(ARGV[8]))}
`)

// stateScript returns the switch as it is at one moment.
var stateScript = newScript(`
local m = redis.call('HMGET', KEYS[1], 'epoch', 'change')
return {m[1] or '0', m[2] or '', redis.call('HVALS', KEYS[2]), redis.call('HVALS', KEYS[3])}
`)

// mergeScript adds entries and resumes if the switch is still the one that they
// were found missing in. It writes also if nothing was missing, see runAcked. ARGV:
// epoch, change; new epoch, new change; channel; how many of the records that
// follow are entries; records.
var mergeScript = newScript(`
local m = redis.call('HMGET', KEYS[1], 'epoch', 'change')
if tonumber(m[1] or '0') ~= tonumber(ARGV[3]) or (m[2] or '') ~= ARGV[4] then
	return {'changed'}
end
for i = 9, #ARGV do
	local where = i - 9 < tonumber(ARGV[8]) and KEYS[2] or KEYS[3]
	redis.call('HSET', where, redis.sha1hex(ARGV[i]), ARGV[i])
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[5])
if ARGV[6] ~= ARGV[4] then
	redis.call('HSET', KEYS[1], 'change', ARGV[6])
	redis.pcall('PUBLISH', ARGV[7], ARGV[5])
end
return {'done'}
`)

func (s *Store) channel() string { return s.opts.Prefix + ":changed" }

func newChange() string { return strings.ToLower(rand.Text()[:16]) }

// record is an entry or a resume as it is stored.
func record(epoch uint64, at time.Time, data []byte) string {
	return fmt.Sprintf("%d %d %09d %s", epoch, at.Unix(), at.Nanosecond(), data)
}

func recordField(record string) string {
	sum := sha1.Sum([]byte(record)) // what Lua has; it only has to tell records apart
	return hex.EncodeToString(sum[:])
}

// parseRecord decodes what is stored into v and returns the rest.
func parseRecord(stored string, v any) (epoch uint64, at time.Time, err error) {
	part := strings.SplitN(stored, " ", 4)
	if len(part) != 4 {
		return 0, at, errors.New("redis: a damaged switch record")
	}
	epoch, err = strconv.ParseUint(part[0], 10, 64)
	sec, err2 := strconv.ParseInt(part[1], 10, 64)
	nsec, err3 := strconv.ParseInt(part[2], 10, 64)
	if err := errors.Join(err, err2, err3, json.Unmarshal([]byte(part[3]), v)); err != nil {
		return 0, at, fmt.Errorf("redis: a damaged switch record: %w", err)
	}
	return epoch, time.Unix(sec, nsec).UTC(), nil
}

func entryRecord(e killswitch.Entry) (string, error) {
	epoch, at := e.Epoch, e.Time
	e.Epoch, e.Time = 0, time.Time{}
	data, err := json.Marshal(e)
	return record(epoch, at, data), err
}

func parseEntry(stored string) (e killswitch.Entry, err error) {
	e.Epoch, e.Time, err = parseRecord(stored, &e)
	return e, err
}

func resumeRecord(r killswitch.Resume) (string, error) {
	epoch, at := r.Epoch, r.Time
	r.Epoch, r.Time = 0, time.Time{}
	data, err := json.Marshal(r)
	return record(epoch, at, data), err
}

func parseResume(stored string) (r killswitch.Resume, err error) {
	r.Epoch, r.Time, err = parseRecord(stored, &r)
	return r, err
}

// State returns the whole switch.
func (s *Store) State(ctx context.Context) (killswitch.State, error) {
	reply, err := s.runList(ctx, stateScript, globalSlot, []string{s.key(globalSlot, "kills"), s.key(globalSlot, "resumes")})
	if err != nil {
		return killswitch.State{}, fmt.Errorf("read the switch: %w", err)
	}
	return parseState(reply)
}

func parseState(reply []any) (state killswitch.State, err error) {
	if len(reply) < 4 {
		return killswitch.State{}, fmt.Errorf("redis: a script returned %d values for the switch", len(reply))
	}
	if state.Epoch, err = parseUint(reply[0]); err != nil {
		return killswitch.State{}, err
	}
	kills, err1 := list(reply[2])
	resumes, err2 := list(reply[3])
	if err := errors.Join(err1, err2); err != nil {
		return killswitch.State{}, err
	}
	for _, v := range kills {
		e, err := parseEntry(text(v))
		if err != nil {
			return killswitch.State{}, err
		}
		state.Entries = append(state.Entries, e)
	}
	for _, v := range resumes {
		r, err := parseResume(text(v))
		if err != nil {
			return killswitch.State{}, err
		}
		state.Resumes = append(state.Resumes, r)
	}
	state = killswitch.Merge(state, killswitch.State{}) // in order
	state.Change = text(reply[1])
	return state, nil
}

// change writes an entry or a resume, data, and returns what is stored of it and
// the replicas registered at that moment; with ErrNotAcknowledged too. seen is as
// for changeScript.
func (s *Store) change(ctx context.Context, records string, data []byte, seen string, floor uint64, a audit.Entry) (string, []any, error) {
	end, endErr := s.auditEnd(ctx)
	if endErr != nil {
		// The script says whether that stops the change.
		end = auditEnd{head: audit.Head{Hash: "unknown"}, now: time.Now()}
	}
	if a.Time.IsZero() {
		a.Time = end.now
	}
	chained, err := end.follow([]audit.Entry{a})
	if err != nil {
		return "", nil, err
	}
	plain, err := json.Marshal(a)
	if err != nil {
		return "", nil, fmt.Errorf("encode an audit entry: %w", err)
	}
	intent := newChange()
	keys := append(s.auditKeys(), s.key(globalSlot, "beats"), s.key(globalSlot, "seen"), s.key(globalSlot, records))
	args := []any{
		seen, strconv.FormatUint(floor, 10), string(data), newChange(), s.channel(), s.opts.Registered.Microseconds(), intent, string(plain),
	}
	raw, ackErr := s.runAcked(ctx, changeScript, globalSlot, keys, append(args, chained...)...)
	if ackErr != nil && !errors.Is(ackErr, ErrNotAcknowledged) {
		return "", nil, ackErr
	}
	reply, err := listOf(1, raw)
	if err != nil {
		return "", nil, err
	}
	if text(reply[0]) == "changed" {
		return "", nil, killswitch.ErrChanged
	}
	if len(reply) != 4 {
		return "", nil, errAnswer
	}
	s.notify()
	if text(reply[2]) == "no" {
		// The change stands and its audit entry is in the store; who finds it
		// there writes it if this fails.
		finish := func(ctx context.Context) {
			err := s.appendEntries(ctx, appendScript, end, intent, a)
			if err != nil && !errors.Is(err, errIntentGone) && !errors.Is(err, ErrNotAcknowledged) && ctx.Err() == nil {
				s.log.Error("a change of the kill switch is not in the audit log yet", "err", err)
			}
		}
		if ackErr == nil {
			finish(ctx)
		} else { // nobody waits for absent copies twice
			s.background(finish)
		}
	}
	beats, err := list(reply[3])
	if err != nil {
		return "", nil, err
	}
	return text(reply[1]), beats, ackErr
}

// Kill adds an entry and returns the replicas registered when it was written.
// Nothing that is wrong with the audit log stops it.
func (s *Store) Kill(ctx context.Context, e killswitch.Entry, floor uint64, a audit.Entry) (killswitch.Entry, []killswitch.Replica, error) {
	if e.ID == "" {
		return e, nil, errors.New("redis: a kill needs an id")
	}
	e.Epoch, e.Time, e.Expires = 0, time.Time{}, e.Expires.UTC().Round(0)
	data, err := json.Marshal(e)
	if err != nil {
		return killswitch.Entry{}, nil, fmt.Errorf("encode a kill: %w", err)
	}
	stored, beats, ackErr := s.change(ctx, "kills", data, "", floor, a)
	if ackErr != nil && !errors.Is(ackErr, ErrNotAcknowledged) {
		return killswitch.Entry{}, nil, fmt.Errorf("kill: %w", ackErr)
	}
	if e, err = parseEntry(stored); err != nil {
		return killswitch.Entry{}, nil, err
	}
	return e, parseReplicas(beats), ackErr
}

// Resume adds a resume; killswitch.ErrChanged if the epoch is not seen.
func (s *Store) Resume(ctx context.Context, r killswitch.Resume, seen, floor uint64, a audit.Entry) (killswitch.Resume, error) {
	if r.ID == "" {
		return r, errors.New("redis: a resume needs an id")
	}
	r.Epoch, r.Time, r.Entries = 0, time.Time{}, slices.Compact(slices.Sorted(slices.Values(r.Entries)))
	data, err := json.Marshal(r)
	if err != nil {
		return killswitch.Resume{}, fmt.Errorf("encode a resume: %w", err)
	}
	stored, _, ackErr := s.change(ctx, "resumes", data, strconv.FormatUint(seen, 10), floor, a)
	if ackErr != nil && !errors.Is(ackErr, ErrNotAcknowledged) {
		return killswitch.Resume{}, fmt.Errorf("resume: %w", ackErr)
	}
	if r, err = parseResume(stored); err != nil {
		return killswitch.Resume{}, err
	}
	return r, ackErr
}

// Merge adds what other holds and the store lacks. It writes, and waits for the
// copies, also if that is nothing: a master that its copies have left would say so
// of a change that they never had.
func (s *Store) Merge(ctx context.Context, other killswitch.State) (killswitch.State, error) {
	for {
		old, err := s.State(ctx)
		if err != nil {
			return killswitch.State{}, err
		}
		next, changed := old.Absorb(other)
		if next.Change = old.Change; changed {
			next.Change = newChange()
		}
		if next.Epoch >= killswitch.EpochCeiling {
			return killswitch.State{}, fmt.Errorf("merge into the switch: %w: it would be of epoch %d", killswitch.ErrDamaged, next.Epoch)
		}
		done, ackErr := s.merge(ctx, old, next)
		if ackErr != nil && !errors.Is(ackErr, ErrNotAcknowledged) {
			return killswitch.State{}, fmt.Errorf("merge into the switch: %w", ackErr)
		}
		if done && changed {
			s.notify()
		}
		if done {
			return next, ackErr
		}
		if err := ctx.Err(); err != nil {
			return killswitch.State{}, fmt.Errorf("merge into the switch: %w", err)
		}
	}
}

// merge writes next if the switch is still old.
func (s *Store) merge(ctx context.Context, old, next killswitch.State) (done bool, err error) {
	entries, resumes, err := missingRecords(old, next)
	if err != nil {
		return false, err
	}
	args := []any{
		strconv.FormatUint(old.Epoch, 10), old.Change, strconv.FormatUint(next.Epoch, 10), next.Change, s.channel(), len(entries),
	}
	for _, r := range append(entries, resumes...) {
		args = append(args, r)
	}
	keys := []string{s.key(globalSlot, "kills"), s.key(globalSlot, "resumes")}
	raw, ackErr := s.runAcked(ctx, mergeScript, globalSlot, keys, args...)
	if ackErr != nil && !errors.Is(ackErr, ErrNotAcknowledged) {
		return false, ackErr
	}
	reply, err := listOf(1, raw)
	if err != nil {
		return false, err
	}
	return text(reply[0]) == "done", ackErr
}

// missingRecords is what next holds and old does not, as it is stored.
func missingRecords(old, next killswitch.State) (entries, resumes []string, err error) {
	have := make(map[string]bool)
	for _, e := range old.Entries {
		r, err := entryRecord(e)
		if err != nil {
			return nil, nil, err
		}
		have[recordField(r)] = true
	}
	for _, x := range old.Resumes {
		r, err := resumeRecord(x)
		if err != nil {
			return nil, nil, err
		}
		have[recordField(r)] = true
	}
	for _, e := range next.Entries {
		r, err := entryRecord(e)
		if err != nil {
			return nil, nil, err
		}
		if !have[recordField(r)] {
			entries = append(entries, r)
		}
	}
	for _, x := range next.Resumes {
		r, err := resumeRecord(x)
		if err != nil {
			return nil, nil, err
		}
		if !have[recordField(r)] {
			resumes = append(resumes, r)
		}
	}
	return entries, resumes, nil
}

// watcher is what a store keeps beside its connections: who waits on Changed, the
// listener that tells them, and what runs in the background.
type watcher struct {
	mu      sync.Mutex
	changed chan struct{}
	sub     *goredis.PubSub // from the first call of Changed on
	closed  bool

	sweeping atomic.Bool
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// watch makes the watcher ready.
func (s *Store) watch() {
	s.sw.changed = make(chan struct{})
	s.sw.ctx, s.sw.cancel = context.WithCancel(context.Background())
}

// unwatch ends what runs in the background.
func (s *Store) unwatch() {
	w := &s.sw
	w.mu.Lock()
	w.closed = true
	w.cancel()
	if w.sub != nil {
		w.sub.Close()
	}
	w.mu.Unlock()
	w.running.Wait()
}

// notify tells everybody who waits on Changed.
func (s *Store) notify() {
	w := &s.sw
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// background runs do unless the store is closed.
func (s *Store) background(do func(ctx context.Context)) {
	w := &s.sw
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.running.Go(func() { do(w.ctx) })
	}
}

// Changed is closed when the switch or a schedule changes, and when the connection
// that would have told was made anew.
func (s *Store) Changed() <-chan struct{} {
	w := &s.sw
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == nil && !w.closed {
		if s.cluster != nil {
			w.sub = s.cluster.Subscribe(w.ctx, s.channel())
		} else {
			w.sub = s.single.Subscribe(w.ctx, s.channel())
		}
		sub := w.sub
		w.running.Go(func() { s.listen(sub) })
	}
	return w.changed
}

// listen tells of every message and of every subscription: what came while there
// was none is not known. The channel connects again by itself and ends with Close.
func (s *Store) listen(sub *goredis.PubSub) {
	for m := range sub.ChannelWithSubscriptions() {
		switch m.(type) {
		case *goredis.Message, *goredis.Subscription:
			s.notify()
		}
	}
}
