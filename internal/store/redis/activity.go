package redis

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/signer"
)

var _ signer.ActivityStore = (*Store)(nil)

// What replicas told of what they did is in `{g}:activity` by run, and in `{g}:told`
// by the time it came, in microseconds, so that what is too old is found. Versions
// from before this one leave both alone, and one that finds neither knows of no
// activity.

// putActivityScript keeps what a run told and removes what is too old. ARGV: run,
// data, how long it is kept in microseconds.
var putActivityScript = newGrowingScript(`
local at = micros()
redis.call('HSET', KEYS[2], ARGV[3], int(at) .. ' ' .. ARGV[4])
redis.call('ZADD', KEYS[3], int(at), ARGV[3])
local gone = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. int(at - tonumber(ARGV[5])), 'LIMIT', 0, 64)
if gone[1] then
	redis.call('HDEL', KEYS[2], unpack(gone))
	redis.call('ZREM', KEYS[3], unpack(gone))
end
return ''
`)

// activitiesScript returns what is kept, and the store's clock.
var activitiesScript = newScript(`
local sec, usec = now()
return {sec, usec, redis.call('HGETALL', KEYS[2])}
`)

// PutActivity keeps what a run of a replica told of what it did.
func (s *Store) PutActivity(ctx context.Context, run string, data []byte) error {
	keys := []string{s.key(globalSlot, "activity"), s.key(globalSlot, "told")}
	if _, err := s.run(ctx, putActivityScript, globalSlot, keys, run, string(data), signer.ActivityKept.Microseconds()); err != nil {
		return fmt.Errorf("put activity: %w", err)
	}
	return nil
}

// Activities returns what runs of replicas told, and the store's clock.
func (s *Store) Activities(ctx context.Context) ([]signer.ActivityRecord, time.Time, error) {
	reply, err := s.runList(ctx, activitiesScript, globalSlot, []string{s.key(globalSlot, "activity")})
	if err == nil && len(reply) != 3 {
		err = errAnswer
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read activities: %w", err)
	}
	now, err := parseTime(reply[0], reply[1])
	if err != nil {
		return nil, time.Time{}, err
	}
	pairs, err := list(reply[2])
	if err != nil {
		return nil, time.Time{}, err
	}
	var found []signer.ActivityRecord
	for i := 0; i+1 < len(pairs); i += 2 {
		at, data, _ := strings.Cut(text(pairs[i+1]), " ")
		micros, err := strconv.ParseInt(at, 10, 64)
		if err != nil { // damaged: it counts as not told
			continue
		}
		r := signer.ActivityRecord{Run: text(pairs[i]), At: time.UnixMicro(micros).UTC(), Data: []byte(data)}
		if now.Sub(r.At) <= signer.ActivityKept { // it is removed when somebody tells something
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b signer.ActivityRecord) int { return strings.Compare(a.Run, b.Run) })
	return found, now, nil
}
