package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// format is the format of documents and scripts that this version writes;
// minReader is the oldest format whose readers understand it.
const (
	format     = 1
	minReader  = 1
	formatText = "1"
)

// Each slot's marker `m` is a hash: id (of the deployment), format, minReader,
// epoch (of the kill switch, as the slot enforces it), reg (the revision of the
// audience registries), and counters that scripts keep beside them.

// Expect names the deployment whose marker every script demands. Until it is
// called, or with "", every call fails with ErrUnmarked.
func (s *Store) Expect(id string) { s.expect.Store(&id) }

// Identity is what a store says of itself.
type Identity struct {
	ID        string // "" if it bears no marker
	Tags      int    // how many of the 256 tags bear the same
	Records   bool   // whether there is anything under the prefix
	Format    int
	MinReader int
}

var identityScript = newBareScript(`
return redis.call('HMGET', KEYS[1], 'id', 'format', 'minReader')
`)

// Identity reads what the store says of itself, whatever is expected.
func (s *Store) Identity(ctx context.Context) (Identity, error) {
	list := everyTag(func(slot string) invocation { return invocation{slot: slot} })
	list = append(list, invocation{slot: globalSlot})
	replies, err := s.runWith(ctx, identityScript, "", list, false)
	if err != nil {
		return Identity{}, err
	}
	ids := make([]string, len(replies))
	for i, r := range replies {
		if r.err != nil {
			return Identity{}, r.err
		}
		f, _ := r.value.([]any)
		if len(f) != 3 {
			return Identity{}, errors.New("store: redis: a marker has another form")
		}
		ids[i] = text(f[0])
		if i == tags {
			ident := Identity{ID: ids[i]}
			ident.Format, _ = strconv.Atoi(text(f[1]))
			ident.MinReader, _ = strconv.Atoi(text(f[2]))
			for _, id := range ids[:tags] {
				if id != "" && id == ident.ID {
					ident.Tags++
				}
			}
			if ident.Records = ident.ID != "" || ident.Tags > 0; !ident.Records {
				ident.Records, err = s.hasRecords(ctx)
			}
			return ident, err
		}
	}
	return Identity{}, nil
}

// hasRecords says whether anything at all is under the prefix.
func (s *Store) hasRecords(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	found := errors.New("found")
	look := func(ctx context.Context, n *redis.Client) error {
		for cursor := uint64(0); ; {
			keys, next, err := n.Scan(ctx, cursor, globEscape(s.opts.Prefix)+":{*", 1000).Result()
			if err != nil {
				return mapped(err)
			}
			if len(keys) > 0 {
				return found
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	var err error
	if s.cluster != nil {
		err = s.cluster.ForEachMaster(ctx, look)
	} else {
		err = look(ctx, s.single)
	}
	if errors.Is(err, found) {
		return true, nil
	}
	return false, err
}

// globEscape makes a pattern that matches only text itself.
func globEscape(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "^", `\^`).Replace(text)
}

// markScript writes over any other marker, but for one of a format that this
// version does not know, and keeps what else is beside it.
var markScript = newBareScript(`
local reader = redis.call('HGET', KEYS[1], 'minReader')
if reader and tonumber(reader) > tonumber(ARGV[4]) then return redis.error_reply('FORMAT the slot is of a newer format') end
redis.call('HSET', KEYS[1], 'id', ARGV[3], 'format', ARGV[4], 'minReader', ARGV[5])
redis.call('HDEL', KEYS[1], 'importing') -- see transfer.go
redis.call('HSETNX', KEYS[1], 'epoch', '0')
redis.call('HSETNX', KEYS[1], 'reg', '0')
return 1
`)

// Mark gives every slot the marker of deployment id, also over another one, and
// {g} last: a store that was marked in part does not pass for a whole one. It can
// be repeated. Records that lie there stay, under whatever marker they were or under
// none, and are the deployment's from then on; only what an import has left that did
// not end is removed.
func (s *Store) Mark(ctx context.Context, id string) error {
	if id == "" {
		return errors.New("store: redis: a marker needs an id")
	}
	if err := s.dropUnfinished(ctx); err != nil {
		return err
	}
	args := []any{id, format, minReader}
	acks := error(nil)
	for _, list := range [][]invocation{
		everyTag(func(slot string) invocation { return invocation{slot: slot, args: args} }),
		{{slot: globalSlot, args: args}},
	} {
		replies, err := s.runWith(ctx, markScript, "", list, true)
		if errors.Is(err, ErrNotAcknowledged) {
			acks = err
		} else if err != nil {
			return err
		}
		for _, r := range replies {
			if r.err != nil {
				return r.err
			}
		}
	}
	return acks
}

// enforceScript raises the slot's epoch, or leads it out of a damaged one, which
// refuses every sign.
var enforceScript = newScript(`
if not (epoch and epoch >= tonumber(ARGV[3]) and epoch < ` + epochCeiling + `) then redis.call('HSET', KEYS[1], 'epoch', ARGV[3]) end
return 1
`)

// Enforce raises the epoch of every tag: once it has returned nil, no sign with an
// older one succeeds. Copies need not have it: whoever holds a permit of an older
// epoch has lost it before the kill counts as effective.
func (s *Store) Enforce(ctx context.Context, epoch uint64) error {
	args := []any{epoch}
	_, err := s.runEach(ctx, enforceScript, everyTag(func(slot string) invocation { return invocation{slot: slot, args: args} }), false)
	return err
}
