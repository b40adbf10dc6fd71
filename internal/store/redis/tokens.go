package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/signer"
)

// Enrolment tokens are in {g}: `t<issuer>` has the records by id, as JSON, `th<issuer>`
// the ids by hash, `tb<issuer>` by id the thumbprint that a token is bound to, and
// `ti<issuer>` the index, sorted by id. Records are small: who revokes one writes
// it whole, and who binds one writes only the binding.

func (s *Store) tokenKeys(issuer string) []string {
	short := shortIssuer(issuer)
	return []string{
		s.key(globalSlot, "t"+short), s.key(globalSlot, "th"+short), s.key(globalSlot, "tb"+short), s.key(globalSlot, "ti"+short),
	}
}

// tokenRecord is an enrolment token as it is stored; the thumbprint is apart.
type tokenRecord struct {
	signer.EnrollmentToken
	ExpiresMillis int64 `json:"expiresMillis"` // for scripts
}

func encodeToken(t signer.EnrollmentToken) ([]byte, error) {
	t.Thumbprint = ""
	raw, err := json.Marshal(tokenRecord{t, t.ExpiresAt.UnixMilli()})
	if err != nil {
		return nil, fmt.Errorf("store: encode an enrolment token: %w", err)
	}
	return raw, nil
}

func parseToken(raw, thumbprint string) (signer.EnrollmentToken, error) {
	var r tokenRecord
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		return signer.EnrollmentToken{}, fmt.Errorf("store: a damaged enrolment token: %w", err)
	}
	r.Thumbprint = thumbprint
	return r.EnrollmentToken, nil
}

// putTokenScript writes a new token. ARGV: id, hash, record, thumbprint or ”,
// issuer, its name.
var putTokenScript = newGrowingScript(`
if redis.call('HEXISTS', KEYS[2], ARGV[3]) == 1 or redis.call('HEXISTS', KEYS[3], ARGV[4]) == 1 then return 0 end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[5])
redis.call('HSET', KEYS[3], ARGV[4], ARGV[3])
redis.call('ZADD', KEYS[5], 0, ARGV[3])
if ARGV[6] ~= '' then redis.call('HSET', KEYS[4], ARGV[3], ARGV[6]) end
redis.call('HSETNX', KEYS[6], ARGV[7], ARGV[8])
return 1
`)

// PutEnrollmentToken writes a new token; ErrExists if its id or hash is taken.
func (s *Store) PutEnrollmentToken(ctx context.Context, t signer.EnrollmentToken, a audit.Entry) error {
	raw, err := encodeToken(t)
	if err != nil {
		return err
	}
	return s.act(ctx, a, func(ctx context.Context) error {
		made, err := s.run(ctx, putTokenScript, globalSlot, append(s.tokenKeys(t.Issuer), s.namesKey(globalSlot)),
			t.ID, t.Hash[:], raw, t.Thumbprint, shortIssuer(t.Issuer), t.Issuer)
		if err == nil && text(made) != "1" {
			err = fmt.Errorf("enrolment token %q: %w", t.ID, signer.ErrExists)
		}
		return err
	})
}

// tokensScript is pageScript, with the thumbprints. KEYS: as tokenKeys.
var tokensScript = newScript(`
local from = '-'
if ARGV[3] ~= '' then from = '(' .. ARGV[3] end
local out = {}
for i, id in ipairs(redis.call('ZRANGEBYLEX', KEYS[5], from, '+', 'LIMIT', 0, ARGV[4])) do
	out[2 * i - 1] = redis.call('HGET', KEYS[2], id)
	out[2 * i] = redis.call('HGET', KEYS[4], id) or ''
end
return out
`)

// EnrollmentTokens lists tokens by id.
func (s *Store) EnrollmentTokens(ctx context.Context, issuer string, p signer.Page) ([]signer.EnrollmentToken, string, error) {
	size := pageSize(p)
	found, err := s.runList(ctx, tokensScript, globalSlot, s.tokenKeys(issuer), p.After, size+1)
	if err != nil {
		return nil, "", err
	}
	var list []signer.EnrollmentToken
	for i := 0; i+1 < len(found); i += 2 {
		if len(list) == size {
			return list, list[size-1].ID, nil
		}
		t, err := parseToken(text(found[i]), text(found[i+1]))
		if err != nil {
			return nil, "", err
		}
		list = append(list, t)
	}
	return list, "", nil
}

var getTokenScript = newScript(`
return {redis.call('HGET', KEYS[2], ARGV[3]), redis.call('HGET', KEYS[4], ARGV[3])}
`)

// replaceScript writes a record if it is still what it was. ARGV: id, record as
// it was, as it becomes. It writes something in any case, see runAcked.
var replaceScript = newScript(`
local was = redis.call('HGET', KEYS[2], ARGV[3])
if not was then return 0 end
if was ~= ARGV[4] then
	redis.call('HSET', KEYS[2], ARGV[3], was)
	return 0
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[5])
return 1
`)

// RevokeEnrollmentToken ends a token. Idempotent; ErrNotFound.
func (s *Store) RevokeEnrollmentToken(ctx context.Context, issuer, id string, at time.Time, a audit.Entry) (signer.EnrollmentToken, error) {
	var t signer.EnrollmentToken
	err := s.untilStill(ctx, func() error {
		found, err := s.runList(ctx, getTokenScript, globalSlot, s.tokenKeys(issuer), id)
		if err != nil {
			return err
		}
		if len(found) == 0 || found[0] == nil {
			return signer.ErrNotFound
		}
		thumbprint := ""
		if len(found) > 1 {
			thumbprint = text(found[1])
		}
		old := text(found[0])
		if t, err = parseToken(old, thumbprint); err != nil {
			return err
		}
		if t.RevokedAt.IsZero() {
			t.RevokedAt = at
		}
		raw, err := encodeToken(t)
		if err != nil {
			return err
		}
		return s.act(ctx, a, func(ctx context.Context) error {
			done, err := s.runAcked(ctx, replaceScript, globalSlot, s.tokenKeys(issuer), id, old, raw)
			if text(done) == "0" {
				return undone(errMoved)
			}
			return err
		})
	})
	return t, err
}

// bindScript binds a token to a thumbprint, unless that is refused. One that is
// bound to it does even after its expiry: what expires is the right to enrol a
// first time. ARGV: hash, thumbprint.
var bindScript = newGrowingScript(`
local id = redis.call('HGET', KEYS[3], ARGV[3])
local record = id and redis.call('HGET', KEYS[2], id)
if not record then return 'token_unknown' end
local t = cjson.decode(record)
if t.revokedAt then return 'token_revoked' end
local bound = redis.call('HGET', KEYS[4], id)
if bound == ARGV[4] then return '' end
if bound then return 'token_spent' end
if t.expiresMillis * 1000 <= micros() then return 'token_expired' end
redis.call('HSET', KEYS[4], id, ARGV[4])
return ''
`)

// bindToken binds an enrolment token to a device, or refuses.
func (s *Store) bindToken(ctx context.Context, issuer, thumbprint string, hash signer.Hash) error {
	if hash == (signer.Hash{}) {
		return refuse("token_missing")
	}
	reply, err := s.run(ctx, bindScript, globalSlot, s.tokenKeys(issuer), hash[:], thumbprint)
	if err != nil {
		return err
	}
	if why := text(reply); why != "" {
		return refuse(why)
	}
	return nil
}
