package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/signer"
)

// An issuer's registry is the hash `{g}:a<issuer>`, from origin to the record's
// JSON. Every change of any registry moves the revision `reg` in {g}'s marker, and
// spreads it to all tags before it is acknowledged; each sign brings it back. A
// revision is the time of the change in microseconds, or one more than the last:
// it grows also after a failover that has lost some.

// registryRevision is how often this store has learnt that a registry changed.
type registryRevision struct {
	changes atomic.Uint64
	newest  atomic.Uint64 // revision that a tag told
	global  atomic.Uint64 // revision that {g} told last
}

// seen takes a revision from a tag, which may not have the newest.
func (r *registryRevision) seen(revision uint64) {
	for {
		newest := r.newest.Load()
		if revision <= newest {
			return
		}
		if r.newest.CompareAndSwap(newest, revision) {
			r.changes.Add(1)
			return
		}
	}
}

// seenGlobal takes the revision from {g}, where also a lower one is another state.
func (r *registryRevision) seenGlobal(revision uint64) {
	if r.global.Swap(revision) != revision {
		r.changes.Add(1)
	}
}

// AudiencesRevision changes with every change of a registry that this store has
// heard of, by a sign or a beat.
func (s *Store) AudiencesRevision() uint64 { return s.registry.changes.Load() }

func (s *Store) audiencesKey(issuer string) string {
	return s.key(globalSlot, "a"+shortIssuer(issuer))
}

// audiencesScript returns the revision and an issuer's registry.
var audiencesScript = newScript(`
local all = redis.call('HVALS', KEYS[2])
table.insert(all, 1, m[4])
return all
`)

func (s *Store) audiences(ctx context.Context, issuer string) (revision string, list []signer.Audience, err error) {
	values, err := s.runList(ctx, audiencesScript, globalSlot, []string{s.audiencesKey(issuer)})
	if err != nil {
		return "", nil, err
	}
	for i, v := range values {
		if i == 0 {
			revision = text(v)
			continue
		}
		var a signer.Audience
		if err := json.Unmarshal([]byte(text(v)), &a); err != nil {
			return "", nil, fmt.Errorf("store: a damaged audience: %w", err)
		}
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b signer.Audience) int { return strings.Compare(a.Origin, b.Origin) })
	return revision, list, nil
}

// Audiences lists the registry of an issuer by origin.
func (s *Store) Audiences(ctx context.Context, issuer string) ([]signer.Audience, error) {
	_, list, err := s.audiences(ctx, issuer)
	return list, err
}

// luaRegistry moves the revision on, if it is still ARGV[3].
const luaRegistry = `
if m[4] ~= ARGV[3] then return '' end
local revision = micros()
if revision <= tonumber(m[4]) then revision = m[4] + 1 end
redis.call('HSET', KEYS[1], 'reg', int(revision))
`

// setAudienceScript writes a record. ARGV: revision that the caller has seen,
// origin, record, issuer, its name.
var setAudienceScript = newGrowingScript(luaRegistry + `
redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
redis.call('HSETNX', KEYS[3], ARGV[6], ARGV[7])
return int(revision)
`)

// removeAudienceScript removes a record. ARGV: revision, origin.
var removeAudienceScript = newScript(luaRegistry + `
redis.call('HDEL', KEYS[2], ARGV[4])
return int(revision)
`)

// registryScript tells a tag the revision.
var registryScript = newScript(`
if tonumber(ARGV[3]) > tonumber(m[4]) then redis.call('HSET', KEYS[1], 'reg', ARGV[3]) end
return 1
`)

// errMoved: somebody else changed what an act was decided on; decide again.
var errMoved = errors.New("store: redis: changed meanwhile")

// SetAudience maps an origin; ErrExists if another origin has the audience.
func (s *Store) SetAudience(ctx context.Context, a signer.Audience, check func([]signer.Audience) error, e audit.Entry) error {
	record, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("store: encode an audience: %w", err)
	}
	return s.changeRegistry(ctx, a.Issuer, e, func(list []signer.Audience) (*script, []any, error) {
		for _, other := range list {
			if other.Audience == a.Audience && other.Origin != a.Origin {
				return nil, nil, fmt.Errorf("audience %q belongs to %s: %w", a.Audience, other.Origin, signer.ErrExists)
			}
		}
		if check != nil {
			at, found := findOrigin(list, a.Origin)
			if found {
				list[at] = a
			} else {
				list = slices.Insert(list, at, a)
			}
			if err := check(list); err != nil {
				return nil, nil, err
			}
		}
		return setAudienceScript, []any{a.Origin, record, shortIssuer(a.Issuer), a.Issuer}, nil
	})
}

// RemoveAudience forgets an origin; ErrNotFound.
func (s *Store) RemoveAudience(ctx context.Context, issuer, origin string, e audit.Entry) error {
	return s.changeRegistry(ctx, issuer, e, func(list []signer.Audience) (*script, []any, error) {
		if _, found := findOrigin(list, origin); !found {
			return nil, nil, signer.ErrNotFound
		}
		return removeAudienceScript, []any{origin}, nil
	})
}

func findOrigin(list []signer.Audience, origin string) (int, bool) {
	return slices.BinarySearchFunc(list, origin, func(x signer.Audience, origin string) int {
		return strings.Compare(x.Origin, origin)
	})
}

// changeRegistry runs the change that decide makes of the registry as it is, and
// returns once every sign that follows knows of it.
func (s *Store) changeRegistry(ctx context.Context, issuer string, e audit.Entry, decide func([]signer.Audience) (*script, []any, error)) error {
	return s.untilStill(ctx, func() error {
		seen, list, err := s.audiences(ctx, issuer)
		if err != nil {
			return err
		}
		change, args, err := decide(list)
		if err != nil {
			return err
		}
		return s.act(ctx, e, func(ctx context.Context) error {
			reply, err := s.run(ctx, change, globalSlot, []string{s.audiencesKey(issuer), s.namesKey(globalSlot)}, append([]any{seen}, args...)...)
			if err != nil {
				return err
			}
			if text(reply) == "" {
				return undone(errMoved)
			}
			return s.spreadRegistry(ctx, text(reply))
		})
	})
}

// spreadRegistry tells all tags the registries' revision.
func (s *Store) spreadRegistry(ctx context.Context, revision string) error {
	args := []any{revision}
	_, err := s.runEach(ctx, registryScript, everyTag(func(slot string) invocation { return invocation{slot: slot, args: args} }), false)
	if err != nil {
		return err
	}
	n, err := parseUint(revision)
	if err == nil {
		s.registry.seen(n)
	}
	return err
}

// untilStill repeats an act that others were faster than. Of those that run at
// the same time one gets through, so it ends.
func (s *Store) untilStill(ctx context.Context, act func() error) error {
	for {
		if err := act(); !errors.Is(err, errMoved) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
