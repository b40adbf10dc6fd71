package redis

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pactsigner/pactsigner/signer"
)

// The scripts of a sign answer with one string, whose first byte says what was
// decided, and whose parts end with NUL:
//
//	E                               the caller's epoch is too low
//	R why                           refused
//	A registry, id, subject         accepted
//	L registry, wait, id, subject   accepted, and must wait so many microseconds

// luaEpoch refuses an epoch that is too low, ARGV[3], and takes over one that is
// higher: callers have theirs from the switch, so the slot is what is behind.
const luaEpoch = `
local enforced = tonumber(ARGV[3])
if not (enforced >= epoch) then return 'E' end -- as for a damaged one
if enforced > epoch then redis.call('HSET', KEYS[1], 'epoch', ARGV[3]) end
`

// luaAccept charges the caller's bucket by the generic cell rate algorithm: its
// key holds when the bucket will be full again, and is gone once it is. ARGV[4]
// is what one call costs and ARGV[5] what a full bucket holds, in microseconds.
const luaAccept = `
local function accept(bucket, id, subject)
	local who = '\0' .. id .. '\0' .. subject
	local each = tonumber(ARGV[4])
	if each > 0 then
		local at = micros()
		local full = tonumber(redis.call('GET', bucket) or 0)
		if full < at then full = at end
		full = full + each
		local wait = full - at - tonumber(ARGV[5])
		if wait > 0 then return 'L' .. m[4] .. '\0' .. int(wait) .. who end
		redis.call('SET', bucket, int(full), 'PX', int(math.ceil((full - at) / 1000)))
	end
	return 'A' .. m[4] .. who
end
`

// deviceScript authorizes a device. KEYS: device, jti, bucket. ARGV: epoch, cost,
// burst, replay window in ms, 1 to sign, thumbprint, how long one has to sign first
// in seconds. A device that has not is refused as it will be once it is swept.
var deviceScript = newGrowingScript(luaEpoch + luaAccept + `
local d = redis.call('HMGET', KEYS[2], 's', 'x', 'l', 'e')
if d[2] then return 'Rinvalidated' end
if not d[1] then return 'Runknown' end
if not d[3] and d[4] and (now()) >= math.floor(d[4] / 1000) + ARGV[9] then return 'Runknown' end
if not redis.call('SET', KEYS[3], '', 'PX', ARGV[6], 'NX') then return 'Rreplayed' end
local answer = accept(KEYS[4], ARGV[8], d[1])
if ARGV[7] == '1' then
	local at = (now())
	if not d[3] or at >= d[3] + 60 then redis.call('HSET', KEYS[2], 'l', int(at)) end
end
return answer
`)

// credentialScript authorizes a credential. KEYS: credential, bucket. ARGV: epoch,
// cost, burst.
var credentialScript = newGrowingScript(luaEpoch + luaAccept + `
local c = redis.call('HMGET', KEYS[2], 'i', 's', 'e', 'r')
if not c[1] then return 'Runknown' end
if c[4] then return 'Rrevoked' end
if c[3] and micros() >= c[3] * 1000 then return 'Rexpired' end
return accept(KEYS[3], c[1], c[2])
`)

// Authorize decides on one authenticated call, in one command.
func (s *Store) Authorize(ctx context.Context, a signer.Authorization) (signer.Authorized, error) {
	id := *s.expect.Load()
	if id == "" {
		return signer.Authorized{}, errUnmarked
	}
	each, burst := bucketOf(a.Limit)
	var (
		sc   *script
		slot string
		args []any
	)
	switch a.Kind {
	case signer.DeviceCaller:
		sc = deviceScript
		place := placeOf(a.Issuer, a.Thumbprint)
		slot = tagNames[place[0]]
		sign := "0"
		if a.Sign {
			sign = "1"
		}
		args = []any{"evalsha", sc.sha, 4,
			s.markerKey(slot), s.deviceKey(slot, a.Issuer, a.Thumbprint), s.jtiKey(slot, &place, a.JTI), s.bucketKey(slot, &place),
			id, s.offset(), a.Epoch, each, burst, s.opts.Replay.Milliseconds(), sign, a.Thumbprint, s.sweepArg()}
	case signer.CredentialCaller:
		sc = credentialScript
		secret := string(a.Secret[:])
		place := placeOf(a.Issuer, secret)
		slot = tagNames[place[0]]
		args = []any{"evalsha", sc.sha, 3,
			s.markerKey(slot), s.credentialKey(slot, a.Issuer, a.Secret), s.bucketKey(slot, &place),
			id, s.offset(), a.Epoch, each, burst}
	default:
		return signer.Authorized{}, refuse("unknown")
	}
	answer, err := s.lanes.do(ctx, slot, sc, redis.NewCmd(ctx, args...))
	if err != nil {
		return signer.Authorized{}, err
	}
	return s.authorized(a.Kind, answer)
}

// authorized reads the answer of a sign's script.
func (s *Store) authorized(kind signer.CallerKind, answer string) (signer.Authorized, error) {
	if answer == "" {
		return signer.Authorized{}, errAnswer
	}
	what, rest := answer[0], answer[1:]
	switch what {
	case 'E':
		return signer.Authorized{}, signer.ErrStaleEpoch
	case 'R':
		return signer.Authorized{}, refuse(rest)
	case 'A', 'L':
		registry, rest, _ := strings.Cut(rest, "\x00")
		revision, err := strconv.ParseUint(registry, 10, 64)
		if err != nil {
			return signer.Authorized{}, errAnswer
		}
		var wait int64
		if what == 'L' {
			var text string
			text, rest, _ = strings.Cut(rest, "\x00")
			if wait, err = strconv.ParseInt(text, 10, 64); err != nil {
				return signer.Authorized{}, errAnswer
			}
		}
		id, subject, ok := strings.Cut(rest, "\x00")
		if !ok {
			return signer.Authorized{}, errAnswer
		}
		s.registry.seen(revision)
		who := signer.Authorized{Kind: kind, ID: id, Subject: unpackSubject(subject)}
		if what == 'L' {
			return who, &signer.LimitedError{RetryAfter: time.Duration(wait) * time.Microsecond}
		}
		return who, nil
	}
	return signer.Authorized{}, errAnswer
}

var errAnswer = errors.New("store: redis: a script answered in another form")

func refuse(why string) error { return &signer.RefusedError{Why: why} }

// bucketOf returns what one call costs and a full bucket holds, in microseconds;
// a cost of 0 is no limit.
func bucketOf(l signer.Limit) (each, burst int64) {
	if l.Rate <= 0 || l.Burst <= 0 {
		return 0, 0
	}
	each = max(int64(1e6/l.Rate), 1)
	return each, each * int64(l.Burst)
}

// jtiKey is under which a jti is remembered. 128 bits suffice: who finds two of a
// kind has made both with one key, and gets one of them refused.
func (s *Store) jtiKey(slot string, place *[sha256.Size]byte, jti signer.Hash) string {
	var b [2 * sha256.Size]byte
	copy(b[:], place[:])
	copy(b[sha256.Size:], jti[:])
	sum := sha256.Sum256(b[:])
	return s.shortKey(slot, 'j', sum[:16])
}

// bucketKey is where a caller's rate limit is kept.
func (s *Store) bucketKey(slot string, place *[sha256.Size]byte) string {
	return s.shortKey(slot, 'l', place[1:17])
}

// shortKey is the key of a kind in a slot, with 16 bytes that tell it apart.
func (s *Store) shortKey(slot string, kind byte, id []byte) string {
	var room [128]byte
	b := append(room[:0], s.opts.Prefix...)
	b = append(b, ":{"...)
	b = append(b, slot...)
	b = append(b, '}', ':', kind)
	return string(base64.RawURLEncoding.AppendEncode(b, id))
}
