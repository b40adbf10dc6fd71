package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pactsigner/pactsigner/signer"
)

// Enrolling touches two slots: {g} with the enrolment token and the cap, and the
// device's tag. The token is bound to the thumbprint first and the device made
// last, so that whoever is interrupted can do it again.
//
// The cap is never exceeded. {g} keeps, per issuer, an upper bound of how many
// devices there are: what was counted last, and every reservation since. The tags
// are counted again when that reaches the cap, but once a second at most, and after
// a minute, as there may have been no cap before. A reservation that is not yet
// counted is held until its device is made or can no longer be.

// reserved is how long a device may take to be made after its reservation, and
// held how long the reservation counts as on its way: longer, as the two slots'
// servers may differ in their clocks.
const (
	reserved = 5 * time.Second
	held     = 30 * time.Second
)

// lookScript looks whether a device may enrol, and returns it if it has. KEYS:
// who enrolled, device, jti. ARGV: sweep, epoch.
var lookScript = newScript(luaSweep + `
if not (tonumber(ARGV[4]) >= epoch) then ` + staleReply + ` end
if redis.call('EXISTS', KEYS[4]) == 1 then return 'replayed' end
return in_time(redis.call('HMGET', KEYS[3], ` + deviceFields + `))
`)

// makeScript makes a device, or returns the one there is. KEYS: who enrolled,
// device, jti, index, names. ARGV: sweep, epoch, replay window in ms, thumbprint, issuer,
// subject, point, time of enrolment in ms or 0, until when in microseconds or 0,
// issuer's name.
var makeScript = newGrowingScript(luaSweep + `
local enforced = tonumber(ARGV[4])
if not (enforced >= epoch) then ` + staleReply + ` end
local had = redis.call('HMGET', KEYS[3], ` + deviceFields + `)
local d = in_time(had)
if d[5] then return 'invalidated' end
if had[1] and not d[1] then
	redis.call('DEL', KEYS[3])
	redis.call('ZREM', KEYS[5], ARGV[6])
	redis.call('HINCRBY', KEYS[1], 'n' .. ARGV[7], -1)
end
if not d[1] and ARGV[11] ~= '0' and at > tonumber(ARGV[11]) then return 'late' end
if enforced > epoch then redis.call('HSET', KEYS[1], 'epoch', ARGV[4]) end
if not redis.call('SET', KEYS[4], '', 'PX', ARGV[5], 'NX') then return 'replayed' end
if d[1] then return d end
local since = ARGV[10]
if since == '0' then since = int(math.floor(at / 1000)) end
redis.call('HSET', KEYS[3], 's', ARGV[8], 'p', ARGV[9], 'e', since)
redis.call('ZADD', KEYS[5], 0, ARGV[6])
redis.call('RPUSH', KEYS[2], string.format('%08x', math.floor(at / 1000000)) .. ARGV[7] .. ARGV[6])
redis.call('HINCRBY', KEYS[1], 'n' .. ARGV[7], 1)
redis.call('HSETNX', KEYS[6], ARGV[7], ARGV[12])
return {ARGV[8], ARGV[9], since, false, false, false}
`)

// Enroll stores a device once. A known thumbprint gets its record back, whatever
// else the enrolment says; in mode token also then only with a token that is
// bound to it or to nobody.
func (s *Store) Enroll(ctx context.Context, e signer.Enrolment) (signer.Device, error) {
	d := e.Device
	if len(d.Subject) > maxName || len(d.Thumbprint) > maxName {
		return signer.Device{}, fmt.Errorf("store: thumbprint or subject is longer than %d bytes", maxName)
	}
	if d.Subject == "" {
		return signer.Device{}, errors.New("store: a device needs a subject")
	}
	known := false
	if e.NeedToken || e.Cap > 0 {
		var err error
		if known, err = s.look(ctx, e); err != nil {
			return signer.Device{}, err
		}
	}
	if e.NeedToken {
		if err := s.bindToken(ctx, d.Issuer, d.Thumbprint, e.Token); err != nil {
			return signer.Device{}, err
		}
	}
	var until int64
	if e.Cap > 0 && !known {
		var err error
		if until, err = s.reserve(ctx, d.Issuer, d.Thumbprint, e.Cap); err != nil {
			return signer.Device{}, err
		}
	}
	made, err := s.makeDevice(ctx, e, until)
	var refused *signer.RefusedError
	if until > 0 && (err == nil || errors.As(err, &refused) || errors.Is(err, signer.ErrStaleEpoch)) {
		s.settle(ctx, d.Issuer, d.Thumbprint)
	}
	return made, err
}

// look refuses early what makeDevice would refuse, before a token is bound.
func (s *Store) look(ctx context.Context, e signer.Enrolment) (known bool, err error) {
	d := e.Device
	place := placeOf(d.Issuer, d.Thumbprint)
	slot := tagNames[place[0]]
	reply, err := s.run(ctx, lookScript, slot,
		[]string{s.key(slot, "u"), s.deviceKey(slot, d.Issuer, d.Thumbprint), s.jtiKey(slot, &place, e.JTI)}, s.sweepArg(), e.Epoch)
	if err != nil {
		return false, err
	}
	if why, ok := reply.(string); ok {
		return false, refuse(why)
	}
	fields, err := list(reply)
	if err != nil {
		return false, err
	}
	stored, known, err := parseDevice(d.Issuer, d.Thumbprint, fields)
	if err == nil && !stored.InvalidatedAt.IsZero() {
		err = refuse("invalidated")
	}
	return known, err
}

func (s *Store) makeDevice(ctx context.Context, e signer.Enrolment, until int64) (signer.Device, error) {
	d := e.Device
	place := placeOf(d.Issuer, d.Thumbprint)
	slot, short := tagNames[place[0]], shortIssuer(d.Issuer)
	var since int64
	if !d.EnrolledAt.IsZero() {
		since = max(d.EnrolledAt.UnixMilli(), 1)
	}
	reply, err := s.run(ctx, makeScript, slot,
		[]string{s.key(slot, "u"), s.deviceKey(slot, d.Issuer, d.Thumbprint), s.jtiKey(slot, &place, e.JTI), s.key(slot, "i"+short), s.namesKey(slot)},
		s.sweepArg(), e.Epoch, s.opts.Replay.Milliseconds(), d.Thumbprint, short, packSubject(d.Subject), d.Point, since, until, d.Issuer)
	if err != nil {
		return signer.Device{}, err
	}
	switch why, _ := reply.(string); why {
	case "":
	case "late":
		return signer.Device{}, errors.New("store: redis: the enrolment took too long")
	default:
		return signer.Device{}, refuse(why)
	}
	fields, err := list(reply)
	if err != nil {
		return signer.Device{}, err
	}
	stored, _, err := parseDevice(d.Issuer, d.Thumbprint, fields)
	return stored, err
}

// The cap of an issuer: `{g}:c<issuer>` is a hash of base (the devices counted
// last), since (reservations given after that), and at (when they were counted);
// `{g}:h<issuer>` holds the reservations on their way, sorted by when they end.

func (s *Store) capKeys(issuer string) []string {
	short := shortIssuer(issuer)
	return []string{s.key(globalSlot, "c"+short), s.key(globalSlot, "h"+short)}
}

// reserveScript reserves room for a device. ARGV: thumbprint, cap, how long it
// may take to be made and how long it is held, in microseconds. It returns until
// when the device can be made, 'count' if the tags must be counted first, or
// 'full'.
var reserveScript = newGrowingScript(`
local at = micros()
local c = redis.call('HMGET', KEYS[2], 'base', 'since', 'at')
if not c[1] or math.abs(at - c[3]) > 60000000 then return 'count' end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', int(at))
if c[1] + c[2] >= tonumber(ARGV[4]) then
	if math.abs(at - c[3]) > 1000000 then return 'count' end
	return 'full'
end
redis.call('HINCRBY', KEYS[2], 'since', 1)
redis.call('ZADD', KEYS[3], int(at + ARGV[6]), ARGV[3])
return int(at + ARGV[5])
`)

// beginScript returns what a count starts from: reservations given and on their
// way. KEYS as above.
var beginScript = newScript(`
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', int(micros()))
local c = redis.call('HMGET', KEYS[2], 'since', 'round')
return {c[1] or '0', c[2] or '0', redis.call('ZCARD', KEYS[3])}
`)

// countedScript takes a count. ARGV: reservations given and round when it began,
// what was counted, with what was on its way.
var countedScript = newScript(`
local c = redis.call('HMGET', KEYS[2], 'since', 'round')
if (c[2] or '0') ~= ARGV[4] then return 0 end
redis.call('HSET', KEYS[2], 'base', ARGV[5], 'since', int((c[1] or 0) - ARGV[3]), 'round', int(ARGV[4] + 1), 'at', int(micros()))
return 1
`)

// settleScript ends a reservation whose device is there, or will not be.
var settleScript = newScript(`return redis.call('ZREM', KEYS[3], ARGV[3])`)

// recountScript forgets the count, since it has become less.
var recountScript = newScript(`return redis.call('HDEL', KEYS[2], 'base')`)

// reserve makes sure that there is room for one more device, and returns until
// when it can be made.
func (s *Store) reserve(ctx context.Context, issuer, thumbprint string, limit int) (until int64, err error) {
	for {
		reply, err := s.run(ctx, reserveScript, globalSlot, s.capKeys(issuer), thumbprint, limit, reserved.Microseconds(), held.Microseconds())
		if err != nil {
			return 0, err
		}
		switch what := text(reply); what {
		case "full":
			return 0, signer.ErrFull
		case "count":
			if err := s.countOnce(ctx, issuer); err != nil {
				return 0, err
			}
		default:
			return parseInt(what)
		}
	}
}

// countOnce is count for all who wait for it in this process: it asks every tag.
func (s *Store) countOnce(ctx context.Context, issuer string) error {
	counted := s.counting.DoChan(issuer, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*s.opts.timeouts.call)
		defer cancel()
		return nil, s.count(ctx, issuer)
	})
	select {
	case r := <-counted:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// count counts the tags. What was on its way when it began may be counted twice,
// never not at all.
func (s *Store) count(ctx context.Context, issuer string) error {
	began, err := s.runList(ctx, beginScript, globalSlot, s.capKeys(issuer))
	if err != nil {
		return err
	}
	if len(began) != 3 {
		return errAnswer
	}
	onTheirWay, err := parseUint(began[2])
	if err != nil {
		return err
	}
	n, err := s.countDevices(ctx, issuer)
	if err != nil {
		return err
	}
	_, err = s.run(ctx, countedScript, globalSlot, s.capKeys(issuer), text(began[0]), text(began[1]), n+onTheirWay)
	return err
}

// settle ends a reservation; if that fails it ends by itself.
func (s *Store) settle(ctx context.Context, issuer, thumbprint string) {
	if _, err := s.run(ctx, settleScript, globalSlot, s.capKeys(issuer), thumbprint); err != nil {
		s.log.DebugContext(ctx, "a reservation was not ended, and ends by itself", "err", err)
	}
}

// recount makes the next enrolment under a cap count the devices.
func (s *Store) recount(ctx context.Context, issuer string) error {
	_, err := s.run(ctx, recountScript, globalSlot, s.capKeys(issuer))
	return err
}
