package redis

import (
	"context"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// In the device's tag are
//
//	d<issuer>:<thumbprint>  a small hash of one-letter fields: s subject as packSubject
//	                        has it, p point, e time of enrolment in ms, l last
//	                        signature in s, x time of invalidation in ms, r its reason
//	i<issuer>               the index: a set sorted by thumbprint
//	n                       the names of the issuers that have devices here
//	u                       a list of who enrolled, oldest first: who may never
//	                        have signed
//	m                       counts devices in force in the field n<issuer>
//
// which is what a million devices must be small in.

func (s *Store) deviceKey(slot, issuer, thumbprint string) string {
	return s.key(slot, "d"+shortIssuer(issuer)+":"+thumbprint)
}

// maxName bounds what callers can make the store keep as a key.
const maxName = 1024

var issuerLen = strconv.Itoa(shortIssuerLen)

// luaSweep removes devices that have not signed within the time given to them,
// some at a time; those that are still there in_time takes out of a device's fields.
// Their subject is derived: enrolling again gives the same. ARGV[3] is that time in
// seconds, KEYS[2] the list of who enrolled. The keys that it makes are in the slot.
var luaSweep = `
local base = string.sub(KEYS[1], 1, -2)
local at = micros()
for _ = 1, 16 do
	local oldest = redis.call('LINDEX', KEYS[2], 0)
	if not oldest or at < (tonumber(string.sub(oldest, 1, 8), 16) + ARGV[3]) * 1000000 then break end
	local issuer, thumbprint = string.sub(oldest, 9, 8 + ` + issuerLen + `), string.sub(oldest, 9 + ` + issuerLen + `)
	local key = base .. 'd' .. issuer .. ':' .. thumbprint
	local d = redis.call('HMGET', key, 'e', 'l', 'x')
	local since = d[1] and math.floor(d[1] / 1000) + ARGV[3] <= at / 1000000
	if since and not d[2] and not d[3] then
		redis.call('DEL', key)
		redis.call('ZREM', base .. 'i' .. issuer, thumbprint)
		redis.call('HINCRBY', KEYS[1], 'n' .. issuer, -1)
	end
	redis.call('LPOP', KEYS[2])
end
local function in_time(d)
	if d[3] and not d[4] and not d[5] and math.floor(d[3] / 1000) + ARGV[3] <= at / 1000000 then
		return {false, false, false, false, false, false}
	end
	return d
end
`

// deviceFields are a device's fields in the order in which scripts return them.
const deviceFields = `'s', 'p', 'e', 'l', 'x', 'r'`

// getScript returns a device. KEYS: who enrolled, device.
var getScript = newScript(luaSweep + `return in_time(redis.call('HMGET', KEYS[3], ` + deviceFields + `))`)

// parseDevice reads a device's fields; found is false if there is none.
func parseDevice(issuer, thumbprint string, fields []any) (d signer.Device, found bool, err error) {
	if len(fields) != 6 {
		return d, false, errAnswer
	}
	if fields[0] == nil && fields[4] == nil {
		return d, false, nil
	}
	d = signer.Device{Issuer: issuer, Thumbprint: thumbprint, Subject: unpackSubject(text(fields[0])), Reason: text(fields[5])}
	if p := text(fields[1]); p != "" {
		d.Point = []byte(p)
	}
	for _, f := range []struct {
		to   *time.Time
		v    any
		unit time.Duration
	}{
		{&d.EnrolledAt, fields[2], time.Millisecond},
		{&d.LastSignedAt, fields[3], time.Second},
		{&d.InvalidatedAt, fields[4], time.Millisecond},
	} {
		if f.v == nil {
			continue
		}
		n, err := parseUint(f.v)
		if err != nil {
			return d, true, fmt.Errorf("store: a damaged device record: %w", err)
		}
		*f.to = time.Unix(0, int64(n)*int64(f.unit)).UTC()
	}
	return d, true, nil
}

// packSubject halves a derived subject, pa_ and 160 bits in base32, which is what
// makes a device's hash fit 128 bytes; others stay as they are.
func packSubject(subject string) string {
	if len(subject) != 35 || !strings.HasPrefix(subject, "pa_") {
		return subject
	}
	bits, err := subjectEncoding.DecodeString(subject[3:])
	if err != nil {
		return subject
	}
	return "\x01" + string(bits)
}

func unpackSubject(stored string) string {
	if len(stored) != 21 || stored[0] != 1 {
		return stored
	}
	var room [32]byte
	subjectEncoding.Encode(room[:], []byte(stored[1:]))
	return "pa_" + string(room[:])
}

var subjectEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// sweepArg is the first argument of every script with luaSweep.
func (s *Store) sweepArg() int64 { return int64(s.opts.NeverSigned / time.Second) }

// Device returns a device; ErrNotFound.
func (s *Store) Device(ctx context.Context, issuer, thumbprint string) (signer.Device, error) {
	slot := tagOf(issuer, thumbprint)
	fields, err := s.runList(ctx, getScript, slot, []string{s.key(slot, "u"), s.deviceKey(slot, issuer, thumbprint)}, s.sweepArg())
	if err != nil {
		return signer.Device{}, err
	}
	d, found, err := parseDevice(issuer, thumbprint, fields)
	if err == nil && !found {
		err = signer.ErrNotFound
	}
	return d, err
}

// listScript returns thumbprints and fields of the devices after one. KEYS: who
// enrolled, index. ARGV: sweep, after, how many.
var listScript = newScript(luaSweep + `
local from = '-'
if ARGV[4] ~= '' then from = '(' .. ARGV[4] end
local out = {}
for i, thumbprint in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], from, '+', 'LIMIT', 0, ARGV[5])) do
	out[2 * i - 1] = thumbprint
	out[2 * i] = in_time(redis.call('HMGET', base .. 'd' .. ARGV[6] .. ':' .. thumbprint, ` + deviceFields + `))
end
return out
`)

// shelf is the devices of one tag that a listing has fetched and not yet given.
type shelf struct {
	slot    string
	devices []signer.Device
	after   string // what to fetch next
	end     bool   // there are no more to fetch
}

// Devices lists devices by thumbprint: the tags' lists are merged, each fetched
// in small pieces.
func (s *Store) Devices(ctx context.Context, issuer string, p signer.Page) ([]signer.Device, string, error) {
	size := pageSize(p)
	shelves := make([]*shelf, tags)
	for i, slot := range tagNames {
		shelves[i] = &shelf{slot: slot, after: p.After}
	}
	// One more than the page tells whether there is a next one.
	var list []signer.Device
	piece := size/64 + 2
	for len(list) <= size {
		for { // also more than once, if an index holds what has no record
			var empty []*shelf
			for _, sh := range shelves {
				if len(sh.devices) == 0 && !sh.end {
					empty = append(empty, sh)
				}
			}
			if len(empty) == 0 {
				break
			}
			if err := s.fill(ctx, issuer, empty, piece); err != nil {
				return nil, "", err
			}
		}
		first := nearest(shelves)
		if first == nil {
			return list, "", nil
		}
		// As long as no shelf runs out, the order is known.
		for first != nil && len(list) <= size {
			list = append(list, first.devices[0])
			if first.devices = first.devices[1:]; len(first.devices) == 0 && !first.end {
				break
			}
			first = nearest(shelves)
		}
	}
	return list[:size], list[size-1].Thumbprint, nil
}

// nearest is the shelf with the first device.
func nearest(shelves []*shelf) *shelf {
	var best *shelf
	for _, sh := range shelves {
		if len(sh.devices) > 0 && (best == nil || sh.devices[0].Thumbprint < best.devices[0].Thumbprint) {
			best = sh
		}
	}
	return best
}

func (s *Store) fill(ctx context.Context, issuer string, shelves []*shelf, piece int) error {
	short := shortIssuer(issuer)
	asks := make([]invocation, len(shelves))
	for i, sh := range shelves {
		asks[i] = invocation{sh.slot, []string{s.key(sh.slot, "u"), s.key(sh.slot, "i"+short)}, []any{s.sweepArg(), sh.after, piece, short}}
	}
	answers, err := s.runEach(ctx, listScript, asks, false)
	if err != nil {
		return err
	}
	for i, sh := range shelves {
		found, err := list(answers[i])
		if err != nil {
			return err
		}
		sh.end = len(found) < 2*piece
		for j := 0; j+1 < len(found); j += 2 {
			fields, err := list(found[j+1])
			if err != nil {
				return err
			}
			d, known, err := parseDevice(issuer, text(found[j]), fields)
			if err != nil {
				return err
			}
			sh.after = text(found[j])
			if known {
				sh.devices = append(sh.devices, d)
			}
		}
	}
	return nil
}

func pageSize(p signer.Page) int {
	if p.Size <= 0 {
		return 100
	}
	return min(p.Size, 1000)
}

// invalidateScript ends a device, also one that never enrolled, and returns it.
// KEYS: device, index, names. ARGV: reason, thumbprint, issuer, its name. It writes
// also when there is nothing to change, see runAcked.
var invalidateScript = newScript(`
local d = redis.call('HMGET', KEYS[2], 's', 'x', 'r')
if d[2] then
	redis.call('HSET', KEYS[2], 'x', d[2])
else
	if d[1] then
		redis.call('HINCRBY', KEYS[1], 'n' .. ARGV[5], -1)
	else
		redis.call('ZADD', KEYS[3], 0, ARGV[4])
		redis.call('HSETNX', KEYS[4], ARGV[5], ARGV[6])
	end
	redis.call('HSET', KEYS[2], 'x', int(math.floor(micros() / 1000)), 'r', ARGV[3])
end
return redis.call('HMGET', KEYS[2], ` + deviceFields + `)
`)

// Invalidate ends a device key for good, also one that was never enrolled. With
// killswitch.ErrUnacknowledged it stands on the master.
func (s *Store) Invalidate(ctx context.Context, issuer, thumbprint, reason string, a audit.Entry) (signer.Device, error) {
	if len(thumbprint) > maxName {
		return signer.Device{}, fmt.Errorf("store: thumbprint is longer than %d bytes", maxName)
	}
	slot, short := tagOf(issuer, thumbprint), shortIssuer(issuer)
	var d signer.Device
	err := s.act(ctx, a, func(ctx context.Context) error {
		reply, acks := s.runAcked(ctx, invalidateScript, slot,
			[]string{s.deviceKey(slot, issuer, thumbprint), s.key(slot, "i"+short), s.namesKey(slot)}, reason, thumbprint, short, issuer)
		if acks != nil && !errors.Is(acks, ErrNotAcknowledged) {
			return acks
		}
		fields, err := list(reply)
		if err == nil {
			d, _, err = parseDevice(issuer, thumbprint, fields)
		}
		if err != nil {
			return err
		}
		if err := s.recount(ctx, issuer); err != nil {
			return err
		}
		return acks
	})
	if err != nil && !errors.Is(err, killswitch.ErrUnacknowledged) {
		return signer.Device{}, err
	}
	return d, err
}

// countScript returns how many devices of an issuer are in force in a tag.
var countScript = newScript(luaSweep + `return redis.call('HGET', KEYS[1], 'n' .. ARGV[4]) or '0'`)

// countDevices adds up the tags' counts.
func (s *Store) countDevices(ctx context.Context, issuer string) (uint64, error) {
	args := []any{s.sweepArg(), shortIssuer(issuer)}
	counts, err := s.runEach(ctx, countScript, everyTag(func(slot string) invocation {
		return invocation{slot, []string{s.key(slot, "u")}, args}
	}), false)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, c := range counts {
		n, err := parseInt(c)
		if err != nil {
			return 0, err
		}
		sum += max(n, 0)
	}
	return uint64(sum), nil
}

// Counts returns how many devices and credentials are in force: not invalidated
// and not revoked.
func (s *Store) Counts(ctx context.Context, issuer string) (devices, credentials uint64, err error) {
	if devices, err = s.countDevices(ctx, issuer); err != nil {
		return 0, 0, err
	}
	credentials, err = s.countCredentials(ctx, issuer)
	return devices, credentials, err
}
