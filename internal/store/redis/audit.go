package redis

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/signer"
)

// The audit log is the stream `{g}:log`, whose ids are the entries' numbers. Its
// newest entry ever is also named in `{g}:head`, since a stream cannot tell that
// entries were deleted from its end. Entries are chained here, and a script
// appends them if the head is still the one that they follow.
//
// An act that one script cannot write together with its entry, because the two
// live in different slots, leaves an intent in `{g}:intents` first. Whatever
// happens then, the log gets an entry: whoever finds an intent that nobody
// finishes writes it, saying that the outcome is not known.

// intentPatience is how old an intent is before others finish it. It is longer
// than any act takes.
const intentPatience = 10 * time.Second

// maxAuditBatch is how many entries one script appends.
const maxAuditBatch = 128

// luaAudit is what scripts know of the log. A log that is damaged, or is no log
// at all, fails no act.
const luaAudit = `
local function audit_head(head, log)
	local seq, hash = 0, ''
	local w = redis.pcall('HMGET', head, 'seq', 'hash')
	if not w.err and w[1] then
		seq, hash = tonumber(w[1]) or 0, w[2] or ''
	end
	local info = redis.pcall('XINFO', 'STREAM', log)
	if info.err then
		return seq, hash
	end
	local f = {}
	for i = 1, #info, 2 do
		f[info[i]] = info[i + 1]
	end
	local top = tonumber(string.match(f['last-generated-id'], '^%d+'))
	if top > seq then
		seq, hash = top, ''
		local last = f['last-entry']
		if last and last[1] == string.format('%.0f-0', top) then
			hash = string.match(last[2][2], '"hash":"(%x+)"}$') or ''
		end
	end
	return seq, hash
end

-- audit_append appends ARGV[from] and what follows, after the entry named by seq
-- and hash; the last argument is the hash of the newest. nil, or an error.
local function audit_append(head, log, seq, from)
	for i = from, #ARGV - 1 do
		seq = seq + 1
		local done = redis.pcall('XADD', log, string.format('%.0f-0', seq), 'e', ARGV[i])
		if type(done) == 'table' and done.err then
			return done
		end
	end
	local done = redis.pcall('HSET', head, 'seq', string.format('%.0f', seq), 'hash', ARGV[#ARGV])
	if type(done) == 'table' and done.err then -- it names nothing; the entries stand
		redis.call('DEL', head)
		redis.call('HSET', head, 'seq', string.format('%.0f', seq), 'hash', ARGV[#ARGV])
	end
end
`

// headScript returns the head and the store's clock.
var headScript = newScript(luaAudit + `
local seq, hash = audit_head(KEYS[2], KEYS[3])
local sec, usec = now()
return {string.format('%.0f', seq), hash, sec, usec}
`)

// appendScript appends entries if the head is the one expected, and removes the
// intent that they finish. ARGV: intent, seq, hash, entries..., hash of the
// newest.
var appendScript = newScript(luaAppend)

// appendFreeScript is appendScript for entries that no act waits for.
var appendFreeScript = newGrowingScript(luaAppend)

const luaAppend = luaAudit + `
local intent = ARGV[3]
if intent ~= '' and redis.call('HEXISTS', KEYS[4], intent) == 0 then
	return {'gone'}
end
local seq, hash = audit_head(KEYS[2], KEYS[3])
if string.format('%.0f', seq) ~= ARGV[4] or hash ~= ARGV[5] then
	local sec, usec = now()
	return {'moved', string.format('%.0f', seq), hash, sec, usec}
end
local err = audit_append(KEYS[2], KEYS[3], seq, 6)
if err then
	return err
end
if intent ~= '' then
	redis.call('HDEL', KEYS[4], intent)
end
return {'done'}
`

// intendScript writes an intent and returns the head as headScript does. ARGV:
// id, entry.
var intendScript = newScript(luaAudit + `
local sec, usec = now()
redis.call('HSET', KEYS[4], ARGV[3], sec .. ' act ' .. ARGV[4])
local seq, hash = audit_head(KEYS[2], KEYS[3])
return {string.format('%.0f', seq), hash, sec, usec}
`)

// forgetScript drops the intent of an act that was refused.
var forgetScript = newScript(`return redis.call('HDEL', KEYS[4], ARGV[3])`)

// intentsScript returns the intents that nobody else finishes: those of acts that
// are done, and those that are older than ARGV[3] seconds.
var intentsScript = newScript(`
local sec, usec = now()
local all, due = redis.call('HGETALL', KEYS[4]), {}
for i = 1, #all, 2 do
	local at, what = string.match(all[i + 1], '^(%d+) (%l+) ')
	if not at or what == 'done' or sec - at >= tonumber(ARGV[3]) then
		due[#due + 1] = all[i]
		due[#due + 1] = all[i + 1]
	end
end
return due
`)

// readScript returns entries after a number. ARGV: first id, count.
var readScript = newScript(`return redis.call('XRANGE', KEYS[3], ARGV[3], '+', 'COUNT', ARGV[4])`)

// endsScript returns the written head and the last entry that is there.
var endsScript = newScript(`
local w = redis.call('HMGET', KEYS[2], 'seq', 'hash')
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
if not last[1] then
	return {w[1] or '0', w[2] or '', '0-0', ''}
end
return {w[1] or '0', w[2] or '', last[1][1], last[1][2][2] or ''}
`)

// auditKeys are the keys of every script here.
func (s *Store) auditKeys() []string {
	return []string{s.key(globalSlot, "head"), s.key(globalSlot, "log"), s.key(globalSlot, "intents")}
}

// auditEnd is the entry that the next one follows, as a script saw it.
type auditEnd struct {
	head audit.Head
	now  time.Time
}

func parseAuditEnd(reply []any) (auditEnd, error) {
	if len(reply) != 4 {
		return auditEnd{}, fmt.Errorf("redis: a script returned %d values for the audit log's head", len(reply))
	}
	seq, err := parseUint(reply[0])
	if err != nil {
		return auditEnd{}, err
	}
	now, err := parseTime(reply[2], reply[3])
	return auditEnd{audit.Head{Seq: seq, Hash: text(reply[1])}, now}, err
}

func (s *Store) auditEnd(ctx context.Context) (auditEnd, error) {
	reply, err := s.runList(ctx, headScript, globalSlot, s.auditKeys())
	if err != nil {
		return auditEnd{}, err
	}
	return parseAuditEnd(reply)
}

// follow chains entries and returns them as arguments of audit_append, with the
// head that they lead to.
func (end auditEnd) follow(entries []audit.Entry) (args []any, err error) {
	args = []any{strconv.FormatUint(end.head.Seq, 10), end.head.Hash}
	head := end.head
	for _, e := range entries {
		if e.Time.IsZero() {
			e.Time = end.now
		}
		e = audit.Chain(head.Seq, head.Hash, e)
		head = audit.Head{Seq: e.Seq, Hash: e.Hash}
		data, err := json.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("encode an audit entry: %w", err)
		}
		args = append(args, string(data))
	}
	return append(args, head.Hash), nil
}

// errIntentGone: somebody else has finished the intent.
var errIntentGone = errors.New("redis: the intent was finished elsewhere")

// appendEntries appends entries after end, or after what others have appended
// meanwhile, and removes the intent that they finish. When it fails, they may
// stand: the chain shows which.
func (s *Store) appendEntries(ctx context.Context, sc *script, end auditEnd, intent string, entries ...audit.Entry) error {
	for {
		chained, err := end.follow(entries)
		if err != nil {
			return err
		}
		raw, ackErr := s.runAcked(ctx, sc, globalSlot, s.auditKeys(), append([]any{intent}, chained...)...)
		if ackErr != nil && !errors.Is(ackErr, ErrNotAcknowledged) {
			return fmt.Errorf("append to the audit log: %w", ackErr)
		}
		reply, err := listOf(1, raw)
		if err != nil {
			return err
		}
		switch text(reply[0]) {
		case "done":
			return ackErr
		case "gone":
			return errIntentGone
		}
		if end, err = parseAuditEnd(reply[1:]); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("append to the audit log: %w", err)
		}
	}
}

// act does what one script cannot do together with its audit entry. Its entry is
// in the store before do is called, and in the log when act returns nil; do is
// fail-closed in itself, for a crash may cut it short anywhere. If do fails with
// undone, or with one of the errors by which the stores' contract refuses an act,
// nothing is logged. After any other error the log says, in a while, that the
// outcome is not known.
func (s *Store) act(ctx context.Context, a audit.Entry, do func(context.Context) error) error {
	id := strings.ToLower(rand.Text()[:16])
	data, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode an audit entry: %w", err)
	}
	raw, err := s.runAcked(ctx, intendScript, globalSlot, s.auditKeys(), id, string(data))
	if err != nil && !errors.Is(err, ErrNotAcknowledged) {
		return fmt.Errorf("announce an act: %w", err)
	}
	reply, err := list(raw)
	if err != nil {
		return err
	}
	end, err := parseAuditEnd(reply)
	if err != nil {
		return err
	}
	doErr := do(ctx)
	var refused *refusedAct
	switch {
	case doErr == nil || errors.Is(doErr, ErrNotAcknowledged): // it stands
	case errors.As(doErr, &refused):
		s.forget(ctx, id)
		return refused.err
	case isRefusal(doErr):
		s.forget(ctx, id)
		return doErr
	default:
		return doErr
	}
	if a.Time.IsZero() {
		a.Time = end.now
	}
	err = s.appendEntries(ctx, appendScript, end, id, a)
	if errors.Is(err, errIntentGone) { // it took long, and the log says so
		err = s.appendEntries(ctx, appendScript, end, "", a)
	}
	if err != nil {
		return err
	}
	return doErr
}

// forget drops an intent. If that fails, the log gets an entry of an act that
// was not done, which says that its outcome is not known.
func (s *Store) forget(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := s.run(ctx, forgetScript, globalSlot, s.auditKeys(), id); err != nil {
		s.log.Warn("the intent of an act that was refused could not be removed", "err", err)
	}
}

// refusedAct is an error of an act that has changed nothing.
type refusedAct struct{ err error }

func (e *refusedAct) Error() string { return e.err.Error() }
func (e *refusedAct) Unwrap() error { return e.err }

// undone marks err as one after which nothing was changed.
func undone(err error) error { return &refusedAct{err} }

// isRefusal says whether the stores' contract promises that nothing was changed;
// when memory is full acts are refused at their first write.
func isRefusal(err error) bool {
	var refused *signer.RefusedError
	return errors.Is(err, signer.ErrNotFound) || errors.Is(err, signer.ErrExists) || errors.Is(err, signer.ErrFull) ||
		errors.Is(err, signer.ErrStaleEpoch) || errors.Is(err, ErrMemoryFull) || errors.As(err, &refused)
}

// finishIntents writes the entries of acts that nobody else finishes.
func (s *Store) finishIntents(ctx context.Context) error {
	due, err := s.runList(ctx, intentsScript, globalSlot, s.auditKeys(), int(intentPatience/time.Second))
	if err != nil || len(due) == 0 {
		return err
	}
	end, err := s.auditEnd(ctx)
	if err != nil {
		return err
	}
	for i := 0; i+1 < len(due); i += 2 {
		err := s.appendEntries(ctx, appendScript, end, text(due[i]), intendedEntry(text(due[i+1])))
		if err != nil && !errors.Is(err, errIntentGone) && !errors.Is(err, ErrNotAcknowledged) {
			return err
		}
	}
	return nil
}

// sweep finishes intents in the background, unless that is under way.
func (s *Store) sweep() {
	if !s.sw.sweeping.CompareAndSwap(false, true) {
		return
	}
	s.background(func(ctx context.Context) {
		defer s.sw.sweeping.Store(false)
		ctx, cancel := context.WithTimeout(ctx, intentPatience)
		defer cancel()
		if err := s.finishIntents(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("audit entries of acts cut short could not be written yet", "err", err)
		}
	})
}

// intendedEntry is the entry for an intent as it is stored.
func intendedEntry(stored string) audit.Entry {
	var e audit.Entry
	at, rest, _ := strings.Cut(stored, " ")
	what, data, _ := strings.Cut(rest, " ")
	if json.Unmarshal([]byte(data), &e) != nil {
		e = audit.Entry{Actor: "signer", Action: "unreadable", Reason: "the intent of an act is damaged"}
	}
	if sec, err := strconv.ParseInt(at, 10, 64); err == nil && e.Time.IsZero() {
		e.Time = time.Unix(sec, 0)
	}
	if what == "done" {
		return e
	}
	detail := map[string]string{"outcome": "interrupted"}
	for k, v := range e.Detail {
		detail[k] = v
	}
	e.Detail = detail
	return e
}

// auditQueue lets calls that append at the same time share a script.
type auditQueue struct {
	turn    chan struct{} // holds one token: the right to append
	mu      sync.Mutex
	waiting []*queuedEntry
}

func newAuditQueue() *auditQueue { return &auditQueue{turn: make(chan struct{}, 1)} }

type queuedEntry struct {
	entry audit.Entry
	done  chan struct{}
	err   error // once done is closed
}

func (q *auditQueue) add(e audit.Entry) *queuedEntry {
	w := &queuedEntry{entry: e, done: make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, w)
	return w
}

func (q *auditQueue) take() []*queuedEntry {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), maxAuditBatch)
	batch := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	return batch
}

// AppendAudit appends an entry that belongs to no other write. Entries that come
// at the same time share a script, since refusals come in numbers.
func (s *Store) AppendAudit(ctx context.Context, e audit.Entry) error {
	q := s.audits
	w := q.add(e)
	for {
		select {
		case <-w.done:
			return w.err
		case <-ctx.Done():
			return fmt.Errorf("append to the audit log: %w", ctx.Err()) // it may be appended with the next batch
		case q.turn <- struct{}{}:
		}
		s.appendQueued(ctx)
		<-q.turn
	}
}

// appendQueued appends the entries that wait. The caller that does it may leave;
// the others' entries are written all the same.
func (s *Store) appendQueued(ctx context.Context) {
	batch := s.audits.take()
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.timeouts.call)
	defer cancel()
	entries := make([]audit.Entry, len(batch))
	for i, w := range batch {
		entries[i] = w.entry
	}
	end, err := s.auditEnd(ctx)
	if err == nil {
		err = s.appendEntries(ctx, appendFreeScript, end, "", entries...)
	}
	for _, w := range batch {
		w.err = err
		close(w.done)
	}
}

// AuditHead returns the newest entry that the log has, with an empty hash if that
// one is damaged, and the newest that was ever appended. They are the same unless
// entries were deleted.
func (s *Store) AuditHead(ctx context.Context) (last, written audit.Head, err error) {
	reply, err := s.runList(ctx, endsScript, globalSlot, s.auditKeys())
	if err == nil && len(reply) != 4 {
		err = errAnswer
	}
	if err != nil {
		return last, written, fmt.Errorf("read the audit log's head: %w", err)
	}
	if written.Seq, err = parseUint(reply[0]); err != nil {
		return last, written, err
	}
	written.Hash = text(reply[1])
	if last.Seq, err = streamSeq(reply[2]); err != nil {
		return last, written, err
	}
	var e audit.Entry
	if json.Unmarshal([]byte(text(reply[3])), &e) == nil {
		last.Hash = e.Hash
	}
	return last, written, nil
}

// Audit returns at most size entries after number seq, oldest first. With a
// *audit.DamagedError it returns those before the damaged one.
func (s *Store) Audit(ctx context.Context, seq uint64, size int) ([]audit.Entry, error) {
	if size <= 0 {
		return nil, nil
	}
	reply, err := s.runList(ctx, readScript, globalSlot, s.auditKeys(), fmt.Sprintf("(%d-0", seq), size)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	var entries []audit.Entry
	for _, item := range reply {
		pair, err := list(item)
		if err != nil || len(pair) != 2 {
			return entries, fmt.Errorf("read the audit log: not an entry: %v", err)
		}
		at, err := streamSeq(pair[0])
		if err != nil {
			return entries, err
		}
		fields, _ := pair[1].([]any)
		var e audit.Entry
		if len(fields) != 2 || json.Unmarshal([]byte(text(fields[1])), &e) != nil {
			return entries, &audit.DamagedError{Seq: at}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// streamSeq is the number in a stream's id.
func streamSeq(v any) (uint64, error) {
	seq, _, _ := strings.Cut(text(v), "-")
	return parseUint(seq)
}
