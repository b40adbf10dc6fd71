package redis

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

var _ signer.StateStore = (*Store)(nil)

// exportScript returns the switch and the number of the newest audit entry, of one
// moment. KEYS: kills, resumes, log.
var exportScript = newScript(`
local last = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)
return {m[3] or '0', redis.call('HGET', KEYS[1], 'change') or '', redis.call('HVALS', KEYS[2]), redis.call('HVALS', KEYS[3]),
	last[1] and last[1][1] or '0-0'}
`)

// namesScript returns the issuers that have records in a slot.
var namesScript = newScript(`return redis.call('HVALS', KEYS[2])`)

// schedulesScript returns all mirrored schedules.
var schedulesScript = newScript(`return {redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3])}`)

// Export calls yield with everything that the store holds.
func (s *Store) Export(ctx context.Context, yield func(signer.Record) error) error {
	next := func(r signer.Record) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return yield(r)
	}
	if err := s.finishIntents(ctx); err != nil && !errors.Is(err, ErrNotAcknowledged) {
		return fmt.Errorf("export: %w", err)
	}
	reply, err := s.runList(ctx, exportScript, globalSlot, []string{s.key(globalSlot, "kills"), s.key(globalSlot, "resumes"), s.key(globalSlot, "log")})
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	state, err := parseState(reply)
	if err != nil {
		return err
	}
	if len(reply) != 5 {
		return errAnswer
	}
	last, err := streamSeq(reply[4])
	if err != nil {
		return err
	}
	if err := next(signer.Record{Switch: &state}); err != nil {
		return err
	}
	if err := s.exportSchedules(ctx, next); err != nil {
		return err
	}
	issuers, err := s.issuers(ctx)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	for _, issuer := range issuers {
		if err := s.exportIssuer(ctx, issuer, next); err != nil {
			return err
		}
	}
	return s.exportAudit(ctx, last, next)
}

func (s *Store) exportSchedules(ctx context.Context, next func(signer.Record) error) error {
	reply, err := s.runList(ctx, schedulesScript, globalSlot, s.scheduleKeys())
	if err != nil || len(reply) != 2 {
		return errors.Join(errors.New("export: the schedules"), err)
	}
	revisions, err1 := list(reply[0])
	documents, err2 := list(reply[1])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	document := make(map[string]string)
	for i := 0; i+1 < len(documents); i += 2 {
		document[text(documents[i])] = text(documents[i+1])
	}
	for i := 0; i+1 < len(revisions); i += 2 {
		m := signer.MirroredSchedule{Issuer: text(revisions[i])}
		if m.Revision, err = parseUint(revisions[i+1]); err != nil {
			return err
		}
		m.Document = []byte(document[m.Issuer])
		if err := next(signer.Record{Schedule: &m}); err != nil {
			return err
		}
	}
	return nil
}

// issuers are those that have records, in order.
func (s *Store) issuers(ctx context.Context) ([]string, error) {
	asks := everyTag(func(slot string) invocation { return invocation{slot: slot, keys: []string{s.namesKey(slot)}} })
	asks = append(asks, invocation{slot: globalSlot, keys: []string{s.namesKey(globalSlot)}})
	answers, err := s.runEach(ctx, namesScript, asks, false)
	if err != nil {
		return nil, err
	}
	var issuers []string
	for _, a := range answers {
		names, err := list(a)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			issuers = append(issuers, text(n))
		}
	}
	slices.Sort(issuers)
	return slices.Compact(issuers), nil
}

func (s *Store) exportIssuer(ctx context.Context, issuer string, next func(signer.Record) error) error {
	audiences, err := s.Audiences(ctx, issuer)
	if err != nil {
		return err
	}
	for _, a := range audiences {
		if err := next(signer.Record{Audience: &a}); err != nil {
			return err
		}
	}
	err = exportPages(func(p signer.Page) ([]signer.Credential, string, error) { return s.Credentials(ctx, issuer, p) },
		func(c signer.Credential) error { return next(signer.Record{Credential: &c}) })
	if err != nil {
		return err
	}
	err = exportPages(func(p signer.Page) ([]signer.EnrollmentToken, string, error) {
		return s.EnrollmentTokens(ctx, issuer, p)
	},
		func(t signer.EnrollmentToken) error { return next(signer.Record{EnrollmentToken: &t}) })
	if err != nil {
		return err
	}
	return exportPages(func(p signer.Page) ([]signer.Device, string, error) { return s.Devices(ctx, issuer, p) },
		func(d signer.Device) error { return next(signer.Record{Device: &d}) })
}

func exportPages[T any](page func(signer.Page) ([]T, string, error), next func(T) error) error {
	for after := ""; ; {
		records, following, err := page(signer.Page{Size: 1000, After: after})
		if err != nil {
			return err
		}
		for _, r := range records {
			if err := next(r); err != nil {
				return err
			}
		}
		if after = following; after == "" {
			return nil
		}
	}
}

func (s *Store) exportAudit(ctx context.Context, last uint64, next func(signer.Record) error) error {
	for seq := uint64(0); seq < last; {
		entries, err := s.Audit(ctx, seq, 500)
		if err == nil && len(entries) == 0 {
			err = fmt.Errorf("export: the audit log ends at entry %d, before %d", seq, last)
		}
		for _, e := range entries {
			if e.Seq != seq+1 {
				return fmt.Errorf("export: audit entry %d is missing", seq+1)
			}
			if seq = e.Seq; seq > last {
				return nil
			}
			if err := next(signer.Record{Audit: &e}); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// An import writes into slots without a marker, whose fields it uses for itself:
// `importing` names the import, in every slot, so that one which was given up for
// another writes nothing any more; in the end it is complete. Mark makes the records
// of a complete one visible, and removes those of another.
const complete = "complete"

// claimScript makes a slot the import's: it loses its marker, and keeps what is
// beside it until the slots are emptied. It returns the marker. ARGV: import; '1' if
// the slot must hold no record and no audit entry, but of another import; '1' if it is
// only looked at; the markers that it may bear, '*' if any.
var claimScript = newBareScript(`
local id = redis.call('HGET', KEYS[1], 'id')
local may = not id or ARGV[6] == '*'
for i = 6, #ARGV do may = may or id == ARGV[i] end
if not may then return {'marked', id} end
if ARGV[4] == '1' and (id or redis.call('HEXISTS', KEYS[1], 'importing') == 0) then
	local base = string.sub(KEYS[1], 1, -2)
	for _, name in ipairs({'n', 'kills', 'resumes', 'log', 'intents'}) do
		if redis.call('EXISTS', base .. name) == 1 then return {'records'} end
	end
end
if ARGV[5] ~= '1' then
	redis.call('HDEL', KEYS[1], 'id')
	redis.call('HSET', KEYS[1], 'importing', ARGV[3])
end
return {'', id or ''}
`)

// unclaimScript gives a slot back, with its marker. ARGV: import, marker or ”.
var unclaimScript = newBareScript(`
if redis.call('HGET', KEYS[1], 'importing') ~= ARGV[3] or redis.call('HEXISTS', KEYS[1], 'id') == 1 then return '' end
redis.call('HDEL', KEYS[1], 'importing')
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'id', ARGV[4]) end
return ''
`)

// importingScript returns the marker and the import of a slot.
var importingScript = newBareScript(`return redis.call('HMGET', KEYS[1], 'id', 'importing')`)

// keptScript is stateScript for a slot with any marker or none.
var keptScript = newBareScript(`
return {redis.call('HGET', KEYS[1], 'epoch') or '0', '', redis.call('HVALS', KEYS[2]), redis.call('HVALS', KEYS[3])}
`)

// luaImport begins the scripts of an import. ARGV[3] is its id.
const luaImport = `
if redis.call('HGET', KEYS[1], 'importing') ~= ARGV[3] or redis.call('HEXISTS', KEYS[1], 'id') == 1 then
	return redis.error_reply('ERR another import has begun')
end
`

// newImportScript makes a script that writes a record of an import.
func newImportScript(lua string) *script { return scriptOf(grows, luaImport+lua) }

var (
	// clearScript removes records that are not the import's. KEYS: them.
	clearScript = newBareScript(luaImport + `
for i = 2, #KEYS do redis.call('UNLINK', KEYS[i]) end
return ''
`)
	// stripScript removes what markers had beside them.
	stripScript = newBareScript(luaImport + `
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'importing', ARGV[3])
return ''
`)
	// KEYS: device, index, names, who enrolled. ARGV: thumbprint, issuer, its name,
	// when it enrolled in seconds as 8 digits or '' if it has no time to sign, '1' if
	// it counts, fields.
	importDeviceScript = newImportScript(`
if redis.call('EXISTS', KEYS[2]) == 1 then return 'twice' end
redis.call('HSET', KEYS[2], unpack(ARGV, 9))
redis.call('ZADD', KEYS[3], 0, ARGV[4])
redis.call('HSETNX', KEYS[4], ARGV[5], ARGV[6])
if ARGV[7] ~= '' then redis.call('RPUSH', KEYS[5], ARGV[7] .. ARGV[5] .. ARGV[4]) end
if ARGV[8] == '1' then redis.call('HINCRBY', KEYS[1], 'n' .. ARGV[5], 1) end
return ''
`)
	// KEYS: as credentialKeys, names. ARGV: id, name or '' if it holds none, hash,
	// record, '1' if it counts, issuer, its name.
	importCredentialScript = newImportScript(`
if redis.call('HEXISTS', KEYS[2], ARGV[4]) == 1 or redis.call('HEXISTS', KEYS[4], ARGV[6]) == 1 then return 'twice' end
redis.call('HSET', KEYS[2], ARGV[4], ARGV[7])
redis.call('ZADD', KEYS[6], 0, ARGV[4])
redis.call('HSET', KEYS[4], ARGV[6], ARGV[4])
redis.call('HSETNX', KEYS[7], ARGV[9], ARGV[10])
if ARGV[8] == '1' then redis.call('HINCRBY', KEYS[1], 'c' .. ARGV[9], 1) end
if ARGV[5] == '' then return '' end
-- Several may have had the name, one after the other.
local holder = redis.call('HGET', KEYS[3], ARGV[5])
if holder then
	local expires = cjson.decode(redis.call('HGET', KEYS[2], holder)).expiresMillis
	if not expires or expires > micros() / 1000 then return '' end
end
redis.call('HSET', KEYS[3], ARGV[5], ARGV[4])
return ''
`)
	// KEYS: credential. ARGV: fields.
	importHashScript = newImportScript(`
if redis.call('EXISTS', KEYS[2]) == 1 then return 'twice' end
redis.call('HSET', KEYS[2], unpack(ARGV, 4))
return ''
`)
	// KEYS: as tokenKeys, names. ARGV: id, hash, record, thumbprint or '', issuer, its name.
	importTokenScript = newImportScript(`
if redis.call('HEXISTS', KEYS[2], ARGV[4]) == 1 or redis.call('HEXISTS', KEYS[3], ARGV[5]) == 1 then return 'twice' end
redis.call('HSET', KEYS[2], ARGV[4], ARGV[6])
redis.call('HSET', KEYS[3], ARGV[5], ARGV[4])
redis.call('ZADD', KEYS[5], 0, ARGV[4])
if ARGV[7] ~= '' then redis.call('HSET', KEYS[4], ARGV[4], ARGV[7]) end
redis.call('HSETNX', KEYS[6], ARGV[8], ARGV[9])
return ''
`)
	// KEYS: registry, names. ARGV: origin, record, issuer, its name.
	importAudienceScript = newImportScript(`
if redis.call('HSETNX', KEYS[2], ARGV[4], ARGV[5]) == 0 then return 'twice' end
redis.call('HSETNX', KEYS[3], ARGV[6], ARGV[7])
return ''
`)
	// KEYS: revisions, documents. ARGV: issuer, revision, document.
	importScheduleScript = newImportScript(`
if redis.call('HSETNX', KEYS[2], ARGV[4], ARGV[5]) == 0 then return 'twice' end
redis.call('HSET', KEYS[3], ARGV[4], ARGV[6])
return ''
`)
	// KEYS: head, log. ARGV: number, entry, hash.
	importAuditScript = newImportScript(`
redis.call('XADD', KEYS[3], ARGV[4] .. '-0', 'e', ARGV[5])
redis.call('HSET', KEYS[2], 'seq', ARGV[4], 'hash', ARGV[6])
return ''
`)
	// KEYS: kills or resumes. ARGV: record.
	importChangeScript = newBareScript(luaImport + `
redis.call('HSET', KEYS[2], redis.sha1hex(ARGV[4]), ARGV[4])
return ''
`)
	// endImportScript gives a slot the epoch and the registries' revision, and puts who
	// enrolled in order. KEYS: who enrolled. ARGV: epoch, change's name, revision.
	endImportScript = newBareScript(luaImport + `
redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'reg', ARGV[6], 'importing', '` + complete + `')
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'change', ARGV[5]) end
local enrolled = redis.call('LRANGE', KEYS[2], 0, -1)
table.sort(enrolled)
redis.call('DEL', KEYS[2])
for _, e in ipairs(enrolled) do redis.call('RPUSH', KEYS[2], e) end
return ''
`)
)

// Import puts records into a store that has none, nor any audit entry:
// signer.ErrNotEmpty. It may bear the marker that is expected, as one does that was
// made and not used yet, and loses it; and it may have what an import left that did
// not end. The records become visible by Mark.
func (s *Store) Import(ctx context.Context, next func() (signer.Record, error)) error {
	in := importing{store: s, id: rand.Text()}
	if err := in.begin(ctx); err != nil {
		return err
	}
	return in.all(ctx, next)
}

// ImportOver is Import into a store that was given up. It may bear the marker id,
// besides the one that is expected, or none (""); with another one it is ErrForeign,
// and nothing is changed. Its records and its audit log are removed. Its kill switch
// is kept, and merged with the one that is imported. Once it has begun the store has
// lost its marker: if it fails, it is to be repeated.
func (s *Store) ImportOver(ctx context.Context, id string, next func() (signer.Record, error)) error {
	in := importing{store: s, id: rand.Text()}
	if err := in.beginOver(ctx, []string{id, *s.expect.Load()}); err != nil {
		return err
	}
	return in.all(ctx, next)
}

// MarkEmpty makes a store that was given up a new, empty one and gives it the marker
// id: records and the audit log are removed, also those that nobody could list any
// more, since what lists them was lost; the kill switch is kept, if it is there. Slots
// may bear no marker, id, the one that is expected, or one of former; with another one
// it is ErrForeign, and nothing is changed. If it fails, the store bears no marker, and
// it is to be repeated.
func (s *Store) MarkEmpty(ctx context.Context, id string, former ...string) error {
	if id == "" {
		return errors.New("store: redis: a marker needs an id")
	}
	in := importing{store: s, id: rand.Text()}
	if err := in.beginOver(ctx, append([]string{id, *s.expect.Load()}, former...)); err != nil {
		return err
	}
	if err := in.end(ctx); err != nil {
		return err
	}
	return s.Mark(ctx, id)
}

// importing is an import that is under way.
type importing struct {
	store *Store
	id    string
	batch map[*script][]invocation
	size  int
	kept  killswitch.State // that the store had
	kills killswitch.State // that are imported
	head  audit.Head
}

func (i *importing) all(ctx context.Context, next func() (signer.Record, error)) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		r, err := next()
		if errors.Is(err, io.EOF) {
			return i.end(ctx)
		}
		if err != nil {
			return err
		}
		if err := i.put(ctx, r); err != nil {
			return fmt.Errorf("store: import: %w", err)
		}
	}
}

// begin makes all slots of a store without records the import's.
func (i *importing) begin(ctx context.Context) error {
	s := i.store
	mark, before, err := s.importing(ctx)
	if err != nil {
		return err
	}
	may := claim{empty: true}
	switch expected := *s.expect.Load(); {
	case mark != "" && mark != expected:
		return fmt.Errorf("store: it bears the mark of %s: %w", mark, signer.ErrNotEmpty)
	case mark != "":
		may.marks = []string{expected}
		i.keep(ctx)
	case before == "":
		found, err := s.hasRecords(ctx)
		if err != nil {
			return err
		}
		if found {
			return fmt.Errorf("store: %w", signer.ErrNotEmpty)
		}
	case before != complete: // one that may not have come to all slots
		may.marks = []string{expected}
	}
	return i.claim(ctx, may)
}

// beginOver makes all slots of a store that was given up the import's.
func (i *importing) beginOver(ctx context.Context, marks []string) error {
	i.keep(ctx)
	return i.claim(ctx, claim{marks: marks, over: true})
}

// keep takes the store's kill switch along. One that cannot be read does not hinder
// the import: custody has the switch too, and replicas compare it before they go on.
func (i *importing) keep(ctx context.Context) {
	s := i.store
	reply, err := s.runBare(ctx, keptScript, globalSlot, []string{s.key(globalSlot, "kills"), s.key(globalSlot, "resumes")})
	if err == nil {
		var values []any
		if values, err = list(reply); err == nil {
			i.kept, err = parseState(values)
		}
	}
	if err == nil {
		err = i.kept.Check()
	}
	if err != nil {
		i.kept = killswitch.State{}
		s.log.Warn("the kill switch of the store that is given up cannot be read; custody's is merged into the new one", "err", err)
	}
}

// claim says which slots an import may take.
type claim struct {
	marks []string // that they may bear; "*" is any
	over  bool     // the store was given up
	empty bool     // they must hold no record, but of another import
}

// claim makes all slots the import's and empties them. {g} comes first: from then on
// a repetition knows what it finds.
func (i *importing) claim(ctx context.Context, may claim) error {
	both := []string{globalSlot}
	both = append(both, tagNames[:]...)
	if _, err := i.take(ctx, both, may, true); err != nil {
		return err
	}
	taken := make(map[string]string)
	for _, slots := range [][]string{both[:1], both[1:]} {
		was, err := i.take(ctx, slots, may, false)
		for slot, mark := range was {
			taken[slot] = mark
		}
		if err != nil {
			return errors.Join(err, i.giveBack(ctx, taken))
		}
	}
	if err := i.store.clear(ctx, i.id); err != nil {
		return err
	}
	bare := make([]invocation, len(both))
	for j, slot := range both {
		bare[j] = invocation{slot: slot, args: []any{i.id}}
	}
	return i.run(ctx, stripScript, bare)
}

// take makes slots the import's, or only looks whether it may, and returns the
// markers of those that it took.
func (i *importing) take(ctx context.Context, slots []string, may claim, look bool) (map[string]string, error) {
	asks := make([]invocation, len(slots))
	for j, slot := range slots {
		asks[j] = invocation{slot: slot, args: []any{i.id, flag(may.empty), flag(look)}}
		for _, mark := range may.marks {
			asks[j].args = append(asks[j].args, mark)
		}
	}
	replies, err := i.store.runWith(ctx, claimScript, "", asks, !look)
	if err != nil && !errors.Is(err, ErrNotAcknowledged) {
		return nil, err
	}
	was := make(map[string]string)
	err = nil
	for j, r := range replies {
		f, _ := r.value.([]any)
		switch {
		case r.err != nil:
			err = r.err
		case len(f) == 2 && text(f[0]) == "":
			was[slots[j]] = text(f[1])
		case len(f) == 2 && text(f[0]) == "marked" && may.over:
			err = fmt.Errorf("store: it bears the mark of %s: %w", text(f[1]), ErrForeign)
		default:
			err = fmt.Errorf("store: %w", signer.ErrNotEmpty)
		}
	}
	return was, err
}

// giveBack gives slots back that were taken before one was found that must not be.
func (i *importing) giveBack(ctx context.Context, taken map[string]string) error {
	var list []invocation
	for slot, mark := range taken {
		list = append(list, invocation{slot: slot, args: []any{i.id, mark}})
	}
	if len(list) == 0 {
		return nil
	}
	return i.run(ctx, unclaimScript, list)
}

// importing returns the mark and the import of {g}.
func (s *Store) importing(ctx context.Context) (mark, id string, err error) {
	reply, err := s.runBare(ctx, importingScript, globalSlot, nil)
	if err != nil {
		return "", "", err
	}
	f, err := list(reply)
	if err != nil || len(f) != 2 {
		return "", "", errAnswer
	}
	return text(f[0]), text(f[1]), nil
}

// dropUnfinished ends an import that is not complete and removes what it has
// written, and what it was to take the place of.
func (s *Store) dropUnfinished(ctx context.Context) error {
	mark, id, err := s.importing(ctx)
	if err != nil || mark != "" || id == "" || id == complete {
		return err
	}
	in := importing{store: s, id: rand.Text()}
	return in.claim(ctx, claim{marks: []string{"*"}})
}

// maxClear is how many keys are removed at once.
const maxClear = 10000

// clear removes everything under the prefix but the markers, as long as the slots
// are the import's: one that was overtaken removes nothing of the other's.
func (s *Store) clear(ctx context.Context, importing string) error {
	node := func(ctx context.Context, n *goredis.Client) error { return s.clearNode(ctx, n, importing) }
	if s.cluster != nil {
		return s.cluster.ForEachMaster(ctx, node)
	}
	return node(ctx, s.single)
}

func (s *Store) clearNode(ctx context.Context, n *goredis.Client, importing string) error {
	for cursor := uint64(0); ; {
		keys, next, err := n.Scan(ctx, cursor, globEscape(s.opts.Prefix)+":{*", maxClear).Result()
		if err != nil {
			return mapped(err)
		}
		bySlot := make(map[string][]string)
		for _, k := range keys {
			if slot, name, ok := strings.Cut(strings.TrimPrefix(k, s.opts.Prefix+":{"), "}:"); ok && name != "m" {
				bySlot[slot] = append(bySlot[slot], k)
			}
		}
		var removals []invocation
		for slot, keys := range bySlot {
			removals = append(removals, invocation{slot, keys, []any{importing}})
		}
		if len(removals) > 0 {
			replies, err := s.runWith(ctx, clearScript, "", removals, false)
			if err != nil {
				return err
			}
			for _, r := range replies {
				if r.err != nil {
					return r.err
				}
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// run runs the invocations of one script, which answers "" if all is well.
func (i *importing) run(ctx context.Context, sc *script, list []invocation) error {
	replies, err := i.store.runWith(ctx, sc, "", list, true)
	if err != nil && !errors.Is(err, ErrNotAcknowledged) { // copies that lag behind will have it
		return err
	}
	for _, r := range replies {
		if r.err != nil {
			return r.err
		}
		if text(r.value) == "twice" {
			return errors.New("one record comes twice")
		}
	}
	return nil
}

// maxImportBatch is how many records go to the servers at once.
const maxImportBatch = 500

// add puts a record on the way. Records of one kind stay in order.
func (i *importing) add(ctx context.Context, sc *script, slot string, keys []string, args ...any) error {
	if i.batch == nil {
		i.batch = make(map[*script][]invocation)
	}
	i.batch[sc] = append(i.batch[sc], invocation{slot, keys, append([]any{i.id}, args...)})
	if i.size++; i.size < maxImportBatch {
		return nil
	}
	return i.flush(ctx)
}

func (i *importing) flush(ctx context.Context) error {
	for sc, list := range i.batch {
		if err := i.run(ctx, sc, list); err != nil {
			return err
		}
	}
	i.batch, i.size = nil, 0
	return nil
}

func (i *importing) put(ctx context.Context, r signer.Record) error {
	s := i.store
	switch {
	case r.Device != nil:
		return i.device(ctx, *r.Device)
	case r.Credential != nil:
		return i.credential(ctx, *r.Credential)
	case r.EnrollmentToken != nil:
		t := *r.EnrollmentToken
		raw, err := encodeToken(t)
		if err != nil {
			return err
		}
		return i.add(ctx, importTokenScript, globalSlot, append(s.tokenKeys(t.Issuer), s.namesKey(globalSlot)),
			t.ID, t.Hash[:], raw, t.Thumbprint, shortIssuer(t.Issuer), t.Issuer)
	case r.Audience != nil:
		a := *r.Audience
		raw, err := json.Marshal(a)
		if err != nil {
			return err
		}
		return i.add(ctx, importAudienceScript, globalSlot, []string{s.audiencesKey(a.Issuer), s.namesKey(globalSlot)},
			a.Origin, raw, shortIssuer(a.Issuer), a.Issuer)
	case r.Switch != nil:
		if err := r.Switch.Check(); err != nil {
			return err
		}
		i.kills = killswitch.Merge(i.kills, *r.Switch)
		return nil
	case r.Schedule != nil:
		m := r.Schedule
		if m.Revision > maxExact {
			return fmt.Errorf("revision %d is too high", m.Revision)
		}
		return i.add(ctx, importScheduleScript, globalSlot, s.scheduleKeys(), m.Issuer, strconv.FormatUint(m.Revision, 10), m.Document)
	case r.Audit != nil:
		e := *r.Audit
		if e.Seq != i.head.Seq+1 || e.PreviousHash != i.head.Hash {
			return fmt.Errorf("audit entry %d does not follow entry %d", e.Seq, i.head.Seq)
		}
		i.head = audit.Head{Seq: e.Seq, Hash: e.Hash}
		raw, err := json.Marshal(e)
		if err != nil {
			return err
		}
		return i.add(ctx, importAuditScript, globalSlot, s.auditKeys()[:2], strconv.FormatUint(e.Seq, 10), raw, e.Hash)
	}
	return errors.New("a record is none")
}

func (i *importing) device(ctx context.Context, d signer.Device) error {
	if len(d.Subject) > maxName || len(d.Thumbprint) > maxName {
		return fmt.Errorf("thumbprint or subject is longer than %d bytes", maxName)
	}
	var fields []any
	if d.Subject != "" {
		fields = append(fields, "s", packSubject(d.Subject), "p", d.Point, "e", max(d.EnrolledAt.UnixMilli(), 1))
	}
	if !d.LastSignedAt.IsZero() {
		fields = append(fields, "l", d.LastSignedAt.Unix())
	}
	inForce := d.InvalidatedAt.IsZero()
	if !inForce {
		fields = append(fields, "x", d.InvalidatedAt.UnixMilli(), "r", d.Reason)
	} else if d.Subject == "" {
		return fmt.Errorf("device %s has no subject", d.Thumbprint)
	}
	enrolled := ""
	if inForce && d.LastSignedAt.IsZero() { // its time to sign goes on
		enrolled = fmt.Sprintf("%08x", max(d.EnrolledAt.Unix(), 0))
	}
	s, slot, short := i.store, tagOf(d.Issuer, d.Thumbprint), shortIssuer(d.Issuer)
	return i.add(ctx, importDeviceScript, slot,
		[]string{s.deviceKey(slot, d.Issuer, d.Thumbprint), s.key(slot, "i"+short), s.namesKey(slot), s.key(slot, "u")},
		append([]any{d.Thumbprint, short, d.Issuer, enrolled, flag(inForce)}, fields...)...)
}

func (i *importing) credential(ctx context.Context, c signer.Credential) error {
	if err := checkCredential(c); err != nil {
		return err
	}
	r, err := encodeCredential(1, c)
	if err != nil {
		return err
	}
	s := i.store
	args := append(claims(c), r.raw, flag(c.RevokedAt.IsZero()), shortIssuer(c.Issuer), c.Issuer)
	if err := i.add(ctx, importCredentialScript, globalSlot, append(s.credentialKeys(c.Issuer), s.namesKey(globalSlot)), args...); err != nil {
		return err
	}
	fields := []any{"v", r.Version, "i", c.ID, "s", c.Subject}
	if ms := expiresMillis(c); ms != 0 {
		fields = append(fields, "e", ms)
	}
	if !c.RevokedAt.IsZero() {
		fields = append(fields, "r", "1")
	}
	slot := tagOf(c.Issuer, string(c.Hash[:]))
	return i.add(ctx, importHashScript, slot, []string{s.credentialKey(slot, c.Issuer, c.Hash)}, fields...)
}

// end writes what was gathered, and what all slots have in common.
func (i *importing) end(ctx context.Context) error {
	s := i.store
	state, _ := i.kept.Absorb(i.kills)
	entries, resumes, err := missingRecords(killswitch.State{}, state)
	if err != nil {
		return err
	}
	for key, records := range map[string][]string{"kills": entries, "resumes": resumes} {
		for _, r := range records {
			if err := i.add(ctx, importChangeScript, globalSlot, []string{s.key(globalSlot, key)}, r); err != nil {
				return fmt.Errorf("store: import: %w", err)
			}
		}
	}
	if err := i.flush(ctx); err != nil {
		return fmt.Errorf("store: import: %w", err)
	}
	now, err := s.Now(ctx)
	if err != nil {
		return err
	}
	end := func(slot string) invocation {
		change := ""
		if slot == globalSlot && state.Epoch > 0 {
			change = newChange()
		}
		return invocation{slot, []string{s.key(slot, "u")}, []any{
			i.id, strconv.FormatUint(state.Epoch, 10), change, strconv.FormatInt(now.UnixMicro(), 10),
		}}
	}
	for _, list := range [][]invocation{everyTag(end), {end(globalSlot)}} { // Mark looks at {g}
		if err := i.run(ctx, endImportScript, list); err != nil {
			return fmt.Errorf("store: import: %w", err)
		}
	}
	s.notify()
	return nil
}
