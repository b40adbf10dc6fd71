package redis

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// A credential's record is in {g}, and what a call needs of it in the tag of its
// secret's hash:
//
//	{g}:k<issuer>       records by id: JSON with a version
//	{g}:kn<issuer>      by name: the id that has it
//	{g}:kh<issuer>      by hash: the id that has it
//	{g}:kp<issuer>      by id: the record as it is about to become
//	{g}:ki<issuer>      the index, sorted by id
//	c<issuer>:<hash>    i id, s subject, e expiry in ms, r revoked, v version
//
// An update first announces the new record, in kp, then ends the old hash, then
// writes the new one, then the record. Whoever finds an announced update finishes
// it before anything else, and every write of a hash carries the record's version,
// so that one that comes late changes nothing. A hash that was replaced stays, as
// one that nobody has.

// credentialRecord is a credential as it is stored.
type credentialRecord struct {
	Version uint64 `json:"version"`
	signer.Credential
}

func (s *Store) credentialKey(slot, issuer string, hash signer.Hash) string {
	return s.key(slot, "c"+shortIssuer(issuer)+":"+base64.RawURLEncoding.EncodeToString(hash[:]))
}

func (s *Store) credentialKeys(issuer string) []string {
	short := shortIssuer(issuer)
	return []string{
		s.key(globalSlot, "k"+short), s.key(globalSlot, "kn"+short), s.key(globalSlot, "kh"+short),
		s.key(globalSlot, "kp"+short), s.key(globalSlot, "ki"+short),
	}
}

// luaConflict says what another credential has that this one asks for. ARGV[3] is
// its id, ARGV[4] its name or ” if it asks for none, ARGV[5] its hash.
const luaConflict = `
local function conflict()
	if ARGV[4] ~= '' then
		local holder = redis.call('HGET', KEYS[3], ARGV[4])
		if holder and holder ~= ARGV[3] then
			for _, kind in ipairs({KEYS[2], KEYS[5]}) do
				local record = redis.call('HGET', kind, holder)
				if record then
					local c = cjson.decode(record)
					if c.name == ARGV[4] and not c.revokedAt and (not c.expiresMillis or c.expiresMillis > micros() / 1000) then return 'name' end
				end
			end
		end
	end
	local holder = redis.call('HGET', KEYS[4], ARGV[5])
	if holder and holder ~= ARGV[3] then return 'hash' end
	return nil
end
`

// putCredentialScript writes a new record. ARGV: id, name, hash, record, '1' if it
// counts, issuer, its name.
var putCredentialScript = newGrowingScript(luaConflict + `
if redis.call('HEXISTS', KEYS[2], ARGV[3]) == 1 then return 'id' end
local taken = conflict()
if taken then return taken end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[6])
redis.call('ZADD', KEYS[6], 0, ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[3], ARGV[4], ARGV[3]) end
redis.call('HSET', KEYS[4], ARGV[5], ARGV[3])
if ARGV[7] == '1' then redis.call('HINCRBY', KEYS[1], 'c' .. ARGV[8], 1) end
redis.call('HSETNX', KEYS[7], ARGV[8], ARGV[9])
return ''
`)

// announceScript announces an update. ARGV: id, name, hash, record as it was, as
// it becomes.
var announceScript = newScript(luaConflict + `
if redis.call('HGET', KEYS[2], ARGV[3]) ~= ARGV[6] or redis.call('HEXISTS', KEYS[5], ARGV[3]) == 1 then return 'moved' end
local taken = conflict()
if taken then return taken end
redis.call('HSET', KEYS[5], ARGV[3], ARGV[7])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[3], ARGV[4], ARGV[3]) end
redis.call('HSET', KEYS[4], ARGV[5], ARGV[3])
return ''
`)

// finishScript makes an announced update the record, unless somebody else has.
// ARGV: id, record as it becomes, hash that it no longer has or ”, change of the
// count, issuer.
var finishScript = newScript(`
if redis.call('HGET', KEYS[5], ARGV[3]) ~= ARGV[4] then return 0 end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('HDEL', KEYS[5], ARGV[3])
if ARGV[5] ~= '' then redis.call('HDEL', KEYS[4], ARGV[5]) end
if ARGV[6] ~= '0' then redis.call('HINCRBY', KEYS[1], 'c' .. ARGV[7], ARGV[6]) end
return 1
`)

// endHashScript ends a hash for good.
var endHashScript = newScript(`
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'v', 'ended')
return 1
`)

// putHashScript writes what calls need, unless a newer version is there. It writes
// something in any case, see runAcked. ARGV: version, id, subject, expiry or ”,
// '1' if revoked.
var putHashScript = newScript(`
local v = redis.call('HGET', KEYS[2], 'v')
if v == 'ended' or v and tonumber(v) >= tonumber(ARGV[3]) then
	redis.call('HSET', KEYS[2], 'v', v)
	return 0
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'v', ARGV[3], 'i', ARGV[4], 's', ARGV[5])
if ARGV[6] ~= '' then redis.call('HSET', KEYS[2], 'e', ARGV[6]) end
if ARGV[7] == '1' then redis.call('HSET', KEYS[2], 'r', '1') end
return 1
`)

// getCredentialScript returns a record and what it is about to become.
var getCredentialScript = newScript(`
return {redis.call('HGET', KEYS[2], ARGV[3]), redis.call('HGET', KEYS[5], ARGV[3])}
`)

// stored is a record with the form in which it is stored, which scripts compare.
type stored struct {
	credentialRecord
	raw string
}

func parseCredential(raw string) (stored, error) {
	r := stored{raw: raw}
	if err := json.Unmarshal([]byte(raw), &r.credentialRecord); err != nil {
		return r, fmt.Errorf("store: a damaged credential: %w", err)
	}
	return r, nil
}

func encodeCredential(version uint64, c signer.Credential) (stored, error) {
	r := credentialRecord{version, c}
	raw, err := json.Marshal(struct {
		credentialRecord
		ExpiresMillis int64 `json:"expiresMillis,omitempty"` // for scripts
	}{r, expiresMillis(c)})
	if err != nil {
		return stored{}, fmt.Errorf("store: encode a credential: %w", err)
	}
	return stored{r, string(raw)}, nil
}

func expiresMillis(c signer.Credential) int64 {
	if c.ExpiresAt.IsZero() {
		return 0
	}
	return max(c.ExpiresAt.UnixMilli(), 1)
}

// claims are the arguments of luaConflict.
func claims(c signer.Credential) []any {
	name := c.Name
	if !c.RevokedAt.IsZero() {
		name = "" // a revoked one holds its name no longer
	}
	return []any{c.ID, name, c.Hash[:]}
}

func conflict(c signer.Credential, what string) error {
	switch what {
	case "":
		return nil
	case "id":
		return fmt.Errorf("credential id %q: %w", c.ID, signer.ErrExists)
	case "name":
		return fmt.Errorf("credential name %q: %w", c.Name, signer.ErrExists)
	case "hash":
		return fmt.Errorf("credential hash: %w", signer.ErrExists)
	case "moved":
		return undone(errMoved)
	}
	return errAnswer
}

func checkCredential(c signer.Credential) error {
	if len(c.ID) > maxName || len(c.Name) > maxName || len(c.Subject) > maxName {
		return fmt.Errorf("store: id, name or subject of a credential is longer than %d bytes", maxName)
	}
	return nil
}

// putHash writes what calls need of a record.
func (s *Store) putHash(ctx context.Context, r credentialRecord) error {
	slot := tagOf(r.Issuer, string(r.Hash[:]))
	expires, revoked := "", "0"
	if ms := expiresMillis(r.Credential); ms != 0 {
		expires = strconv.FormatInt(ms, 10)
	}
	if !r.RevokedAt.IsZero() {
		revoked = "1"
	}
	_, err := s.runAcked(ctx, putHashScript, slot, []string{s.credentialKey(slot, r.Issuer, r.Hash)}, r.Version, r.ID, r.Subject, expires, revoked)
	return err
}

// PutCredential writes a new credential; ErrExists if its id is taken, or its
// name by an active credential, or its hash by any. If it is interrupted, the
// record may be there, and its secret not be accepted: rotating it helps.
func (s *Store) PutCredential(ctx context.Context, c signer.Credential, a audit.Entry) error {
	if err := checkCredential(c); err != nil {
		return err
	}
	r, err := encodeCredential(1, c)
	if err != nil {
		return err
	}
	return s.act(ctx, a, func(ctx context.Context) error {
		args := append(claims(c), r.raw, flag(c.RevokedAt.IsZero()), shortIssuer(c.Issuer), c.Issuer)
		reply, err := s.run(ctx, putCredentialScript, globalSlot, append(s.credentialKeys(c.Issuer), s.namesKey(globalSlot)), args...)
		if err != nil {
			return err
		}
		if err := conflict(c, text(reply)); err != nil {
			return err
		}
		if err := s.putHash(ctx, r.credentialRecord); !errors.Is(err, ErrNotAcknowledged) {
			return err
		}
		return nil // what gives access need not outlive a failover
	})
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// UpdateCredential changes a credential in place. What identifies it (issuer, id,
// principal, subject) cannot change. With killswitch.ErrUnacknowledged it stands on
// the master.
func (s *Store) UpdateCredential(ctx context.Context, issuer, id string, change func(*signer.Credential) error, a audit.Entry) (signer.Credential, error) {
	var c signer.Credential
	err := s.untilStill(ctx, func() error {
		old, err := s.credential(ctx, issuer, id)
		if err != nil {
			return err
		}
		c = old.Credential
		if err := change(&c); err != nil {
			return err
		}
		if c.Issuer != old.Issuer || c.ID != old.ID || c.Principal != old.Principal || c.Subject != old.Subject {
			return errors.New("store: issuer, id, principal and subject of a credential never change")
		}
		if err := checkCredential(c); err != nil {
			return err
		}
		next, err := encodeCredential(old.Version+1, c)
		if err != nil {
			return err
		}
		return s.act(ctx, a, func(ctx context.Context) error {
			reply, err := s.run(ctx, announceScript, globalSlot, s.credentialKeys(issuer), append(claims(c), old.raw, next.raw)...)
			if err != nil {
				return err
			}
			if err := conflict(c, text(reply)); err != nil {
				return err
			}
			return s.finish(ctx, old, next)
		})
	})
	if err != nil && !errors.Is(err, killswitch.ErrUnacknowledged) {
		return signer.Credential{}, err
	}
	return c, err
}

// finish does what an update has announced. Others may do the same at once.
func (s *Store) finish(ctx context.Context, old, next stored) error {
	var acks error
	ended := []byte(nil)
	if old.Hash != next.Hash {
		ended = old.Hash[:]
		slot := tagOf(old.Issuer, string(old.Hash[:]))
		if _, err := s.runAcked(ctx, endHashScript, slot, []string{s.credentialKey(slot, old.Issuer, old.Hash)}); errors.Is(err, ErrNotAcknowledged) {
			acks = err
		} else if err != nil {
			return err
		}
	}
	if err := s.putHash(ctx, next.credentialRecord); errors.Is(err, ErrNotAcknowledged) {
		acks = err
	} else if err != nil {
		return err
	}
	count := 0
	if was, is := old.RevokedAt.IsZero(), next.RevokedAt.IsZero(); was && !is {
		count = -1
	} else if !was && is {
		count = 1
	}
	if _, err := s.run(ctx, finishScript, globalSlot, s.credentialKeys(next.Issuer), next.ID, next.raw, ended, count, shortIssuer(next.Issuer)); err != nil {
		return err
	}
	return acks
}

// credential reads a record, once no update of it is announced.
func (s *Store) credential(ctx context.Context, issuer, id string) (stored, error) {
	for {
		reply, err := s.runList(ctx, getCredentialScript, globalSlot, s.credentialKeys(issuer), id)
		if err != nil {
			return stored{}, err
		}
		if len(reply) == 0 || reply[0] == nil {
			return stored{}, signer.ErrNotFound
		}
		now, err := parseCredential(text(reply[0]))
		if err != nil || len(reply) < 2 || reply[1] == nil {
			return now, err
		}
		next, err := parseCredential(text(reply[1]))
		if err != nil {
			return stored{}, err
		}
		if err := s.finish(ctx, now, next); err != nil && !errors.Is(err, ErrNotAcknowledged) {
			return stored{}, err
		}
	}
}

// Credential returns a credential by id; ErrNotFound.
func (s *Store) Credential(ctx context.Context, issuer, id string) (signer.Credential, error) {
	r, err := s.credential(ctx, issuer, id)
	return r.Credential, err
}

// Credentials lists credentials by id.
func (s *Store) Credentials(ctx context.Context, issuer string, p signer.Page) ([]signer.Credential, string, error) {
	keys := s.credentialKeys(issuer)
	var list []signer.Credential
	next, err := s.page(ctx, keys[4], keys[0], p, func(raw string) (string, error) {
		r, err := parseCredential(raw)
		list = append(list, r.Credential)
		return r.ID, err
	})
	return list, next, err
}

// pageScript returns the records after one, by the index. KEYS: index, records.
// ARGV: after, how many.
var pageScript = newScript(`
local from = '-'
if ARGV[3] ~= '' then from = '(' .. ARGV[3] end
local ids = redis.call('ZRANGEBYLEX', KEYS[2], from, '+', 'LIMIT', 0, ARGV[4])
if #ids == 0 then return {} end
local out = {}
for i, id in ipairs(ids) do out[i] = redis.call('HGET', KEYS[3], id) end
return out
`)

// page calls add with the records of {g} that p asks for, which returns their
// ids, and returns the key of the next page, "" if there is none.
func (s *Store) page(ctx context.Context, index, records string, p signer.Page, add func(raw string) (string, error)) (string, error) {
	size := pageSize(p)
	found, err := s.runList(ctx, pageScript, globalSlot, []string{index, records}, p.After, size+1)
	if err != nil {
		return "", err
	}
	last := ""
	for i, v := range found {
		if i == size {
			return last, nil
		}
		if last, err = add(text(v)); err != nil {
			return "", err
		}
	}
	return "", nil
}

var countCredentialsScript = newScript(`return redis.call('HGET', KEYS[1], 'c' .. ARGV[3]) or '0'`)

func (s *Store) countCredentials(ctx context.Context, issuer string) (uint64, error) {
	reply, err := s.run(ctx, countCredentialsScript, globalSlot, nil, shortIssuer(issuer))
	if err != nil {
		return 0, err
	}
	return parseUint(reply)
}

var nowScript = newBareScript(`
local sec, usec = now()
return {sec, usec}
`)

// Now returns the store's clock: that of the server that holds {g}.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	reply, err := s.runBare(ctx, nowScript, globalSlot, nil)
	if err != nil {
		return time.Time{}, err
	}
	t, err := list(reply)
	if err != nil || len(t) != 2 {
		return time.Time{}, errAnswer
	}
	return parseTime(t[0], t[1])
}
