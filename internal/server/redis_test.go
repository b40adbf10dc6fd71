package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/store/redis"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// Before there is a Redis everything is answered with 503; then it goes on by
// itself. An outage later is the same.
func TestRedisComesLater(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onRedis(t, redis.Addr())
	token := mustInit(t, c)
	redis.Stop()
	s := run(t, c)
	s.unreadyBecause(t, "kill switch: ")
	s.noTokens(t, "pact_nobody")
	if set := s.keySet(t); len(set.Keys) > 0 {
		t.Errorf("keys without a store: %v", set)
	}
	if code, _ := s.operate(t, token, "GET", "/v1/fleet", nil); code != 503 {
		t.Errorf("an operator is answered %d", code)
	}
	eventually(t, func() string { // the admin token's hash has to be read from custody first
		if code, state := s.operate(t, token, "GET", "/v1/state", nil); code != 200 || state["condition"] != "unknown" || state["problem"] == "" {
			return fmt.Sprintf("state: %d %v", code, state)
		}
		return ""
	})
	redis.Start()
	s.awaitReady(t)
	credential := s.letIn(t, token)
	first := s.signs(t, credential)
	verifies(t, first, s.keySet(t))

	redis.Kill()
	s.noTokens(t, credential)
	s.unreadyBecause(t, "kill switch: ")
	redis.Start()
	verifies(t, s.signs(t, credential), s.keySet(t))
	s.awaitReady(t)
}

// A Redis that would forget is not served from.
func TestRedisThatForgets(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{Args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}})
	c := onRedis(t, redis.Addr())
	if _, err := Init(t.Context(), c, InitOptions{}); err == nil || !strings.Contains(err.Error(), "maxmemory-policy") {
		t.Fatalf("init: %v", err)
	}
	redis.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	mustInit(t, c)
	redis.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	s := run(t, c)
	s.unreadyBecause(t, "maxmemory-policy")
	redis.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	s.awaitReady(t)
}

// TLS and a password, each from its file.
func TestRedisWithTLSAndPassword(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{TLS: true})
	redis.Do("ACL", "SETUSER", "signer", "on", ">correct horse", "~*", "&*", "+@all")
	c := onRedis(t, redis.Addr())
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("correct horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Store.Redis.Username, c.Store.Redis.PasswordFile = "signer", password
	c.Store.Redis.TLS = config.RedisTLS{Enabled: true, CAFile: redis.CAFile()}
	token := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	s.signs(t, s.letIn(t, token))

	for key, change := range map[string]func(*config.Redis){
		"store.redis.passwordFile": func(r *config.Redis) { r.PasswordFile = redis.CAFile() }, // more than a line
		"store.redis.tls.caFile":   func(r *config.Redis) { r.TLS.CAFile = password },
		"store.redis.tls: ":        func(r *config.Redis) { r.TLS.CertFile, r.TLS.KeyFile = password, password },
	} {
		wrong := c
		change(&wrong.Store.Redis)
		if _, err := openShared(wrong, killswitch.Defaults(), nil); err == nil || !strings.Contains(err.Error(), key) || strings.Contains(err.Error(), "horse") {
			t.Errorf("opened with %v, want %s named", err, key)
		}
	}
}

// A deployment whose Redis another one uses is not made.
func TestInitOnAnothersRedis(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	mustInit(t, onRedis(t, redis.Addr()))
	c := onRedis(t, redis.Addr())
	if _, err := Init(t.Context(), c, InitOptions{}); err == nil || !strings.Contains(err.Error(), "records of another deployment") {
		t.Fatalf("init: %v", err)
	}
	c.Store.Redis.Prefix = "other"
	mustInit(t, c)
	if _, err := Init(t.Context(), c, InitOptions{AcceptLostStore: true}); err == nil || !strings.Contains(err.Error(), "pactctl state") {
		t.Errorf("accepted by init: %v", err)
	}
}

// faulty fails, or seems to, once it has been counted down.
type faulty struct {
	keyring
	left  int  // calls that go well
	after bool // the failing call is done all the same
}

var errCut = errors.New("cut off")

func (f *faulty) Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error) {
	if f.left--; f.left >= 0 {
		return f.keyring.Swap(ctx, name, expect, data)
	}
	if f.after {
		_, _ = f.keyring.Swap(ctx, name, expect, data)
	}
	return 0, errCut
}

// halfMarked is a store whose marking is cut off.
type halfMarked struct {
	shared
	after bool
}

func (h *halfMarked) MarkEmpty(ctx context.Context, id string, _ ...string) error {
	return h.Mark(ctx, id)
}

func (h *halfMarked) Mark(ctx context.Context, id string) error {
	if h.after {
		_ = h.shared.Mark(ctx, id)
	}
	return errCut
}

// Interrupted anywhere, init is run again and comes to an end, and the token that
// it then names works.
func TestInitInterrupted(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	interrupt := map[string]func(k keyring, s shared) (custody.Keyring, shared){
		"before the first record": func(k keyring, s shared) (custody.Keyring, shared) { return &faulty{keyring: k}, s },
		"after the first record":  func(k keyring, s shared) (custody.Keyring, shared) { return &faulty{keyring: k, after: true}, s },
		"before the mark":         func(k keyring, s shared) (custody.Keyring, shared) { return k, &halfMarked{shared: s} },
		"after the mark":          func(k keyring, s shared) (custody.Keyring, shared) { return k, &halfMarked{shared: s, after: true} },
		"before ready":            func(k keyring, s shared) (custody.Keyring, shared) { return &faulty{keyring: k, left: 1}, s },
		"after ready": func(k keyring, s shared) (custody.Keyring, shared) {
			return &faulty{keyring: k, left: 1, after: true}, s
		},
	}
	for name, cut := range interrupt {
		t.Run(name, func(t *testing.T) {
			c := onRedis(t, redis.Addr())
			c.Store.Redis.Prefix = fmt.Sprintf("i%d", prefixes.Add(1))
			file := filepath.Join(t.TempDir(), "secrets", "admin-token")
			k, err := openKeyring(c, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			store, err := openShared(c, killswitch.Defaults(), nil)
			if err != nil {
				t.Fatal(err)
			}
			k2, store2 := cut(k, store)
			if _, err := initialise(t.Context(), c, k2, store2, InitOptions{AdminTokenFile: file}); !errors.Is(err, errCut) {
				t.Fatalf("interrupted with %v", err)
			}
			if err := errors.Join(store.Close(), k.Close()); err != nil {
				t.Fatal(err)
			}
			if name == "after the mark" { // a part of it, in truth
				redis.Do("DEL", c.Store.Redis.Prefix+":{g}:m", c.Store.Redis.Prefix+":{b7f}:m")
			}
			for range 2 { // the second changes nothing
				result, err := Init(t.Context(), c, InitOptions{AdminTokenFile: file})
				if err != nil {
					t.Fatal(err)
				}
				if result.AdminTokenFile != file || result.EnrolmentClosed || result.Note != "" {
					t.Errorf("%+v", result)
				}
			}
			info, err := os.Stat(file)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Fatalf("the token's file: %v, %v", info, err)
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := run(t, c)
			s.awaitReady(t)
			if state := s.mustOperate(t, strings.TrimSpace(string(content)), "GET", "/v1/state", nil); state["condition"] != "ok" {
				t.Errorf("state %v", state)
			}
		})
	}
}

// Who reads Redis finds no secret, whatever was made and revealed: hashes are there.
func TestRedisHoldsNoSecret(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onVault(t, onRedis(t, redis.Addr()), servers.StartVault(t, servers.VaultOptions{}), true)
	admin := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	credential := s.letIn(t, admin)
	secrets := map[string]string{
		"the admin token": admin, "a credential": credential, "a token": s.signs(t, credential),
		"an enrolment token": s.mustOperate(t, admin, "POST", "/v1/enrollment-tokens", map[string]any{"note": "a note"})["token"].(string),
	}
	read := map[string][]any{"string": {"GET"}, "hash": {"HGETALL"}, "set": {"SMEMBERS"}, "list": {"LRANGE", 0, -1}, "zset": {"ZRANGE", 0, -1}, "stream": {"XRANGE", "-", "+"}}
	var all strings.Builder
	for _, key := range redis.Do("KEYS", "*").([]any) {
		kind := fmt.Sprint(redis.Do("TYPE", key))
		if kind == "none" { // it has gone meanwhile
			continue
		}
		how, known := read[kind]
		if !known {
			t.Fatalf("%v is a %s", key, kind)
		}
		fmt.Fprintln(&all, key, redis.Do(slices.Insert(slices.Clone(how), 1, key)...))
	}
	if !strings.Contains(all.String(), "a note") {
		t.Error("not all was read")
	}
	for what, secret := range secrets {
		if strings.Contains(all.String(), secret) {
			t.Errorf("%s is in Redis", what)
		}
	}
}

// A replica whose clock is off by more than 5 s gets no traffic; by more than 20 s
// it does not sign.
func TestClockOffset(t *testing.T) {
	for _, c := range []struct {
		offset time.Duration
		signs  bool
		says   string
	}{
		{15 * time.Second, true, "s ahead of the store's"}, {-15 * time.Second, true, "s behind the store's"},
		{25 * time.Second, false, "s ahead of the store's"}, {-25 * time.Second, false, "s behind the store's"},
	} {
		t.Run(c.offset.String(), func(t *testing.T) {
			cfg := testConfig(t)
			is := config.DefaultIssuer()
			is.URL, is.Enrolment = fleetIssuer, "open"
			cfg.Issuers = []config.Issuer{is}
			cfg.Development.ClockOffset = c.offset
			s := run(t, cfg)
			s.unreadyBecause(t, c.says)
			content, err := os.ReadFile(s.Info().AdminTokenFile)
			if err != nil {
				t.Fatal(err)
			}
			credential := s.letIn(t, strings.TrimSpace(string(content)))
			if c.signs {
				s.signs(t, credential)
				s.unreadyBecause(t, c.says)
			} else {
				s.noTokens(t, credential)
			}
		})
	}
}

// An acceptance that was cut off is made again, under the id that custody knows by
// then: of a store that is gone, and of one that went back and bears its former mark.
func TestAcceptLossInterrupted(t *testing.T) {
	for name, lose := range map[string]func(*Server, *servers.Redis){
		"wiped": func(_ *Server, redis *servers.Redis) { redis.Wipe() },
		"rolled back": func(s *Server, _ *servers.Redis) { // custody knows more than the log has
			_, err := s.keeper.change(t.Context(), func(d *deployment) error {
				d.AuditHead = audit.Head{Seq: 1000, Hash: "of a lost entry"}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			redis := servers.StartRedis(t, servers.RedisOptions{})
			c := onRedis(t, redis.Addr())
			token := mustInit(t, c)
			s := run(t, c)
			s.awaitReady(t)
			s.letIn(t, token)
			lose(s, redis)
			state := s.operators.config.State.(*adminState)
			first, err := state.Status(t.Context())
			if err != nil || first.Condition == signer.StateOK {
				t.Fatalf("%+v, %v", first, err)
			}
			cut := *state
			cut.shared = &halfMarked{shared: state.shared}
			if err := cut.AcceptLoss(t.Context(), first.Store, "test", "lost"); !errors.Is(err, errCut) {
				t.Fatalf("interrupted with %v", err)
			}
			s.unreadyBecause(t, "kill switch: ")
			if !s.keeper.enrolmentClosed() {
				t.Error("enrolment is not closed")
			}
			second, err := state.Status(t.Context())
			if err != nil || second.Store == first.Store || second.Condition == signer.StateOK || !strings.Contains(second.Remedy, second.Store) {
				t.Fatalf("%+v, %v", second, err)
			}
			var refused *signer.StateError
			if err := state.AcceptLoss(t.Context(), first.Store, "test", "lost"); !errors.As(err, &refused) || refused.Reason != signer.StateOtherStore {
				t.Errorf("accepted under the former id: %v", err)
			}
			id := second.Store
			eventually(t, func() string {
				err := state.AcceptLoss(t.Context(), id, "test", "lost")
				if err == nil {
					return ""
				}
				if !late(err) {
					t.Fatal(err)
				}
				if now, unknown := state.Status(t.Context()); unknown == nil && now.Condition == signer.StateOK {
					return "" // cut off when it was done
				} else if unknown == nil {
					id = now.Store
				}
				return err.Error()
			})
			s.awaitReady(t)
			if third, err := state.Status(t.Context()); err != nil || third.Condition != signer.StateOK || !third.EnrolmentClosed {
				t.Errorf("%+v, %v", third, err)
			}
		})
	}
}

// A store that has lost a part, as a cluster can, is not taken for a whole one. What
// is left of it goes when the loss is accepted: without the rest nobody could see or
// revoke it.
func TestPartlyWiped(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onRedis(t, redis.Addr())
	token := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	credential := s.letIn(t, token)
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	mark := c.Store.Redis.Prefix + ":{b00}:m"
	if n := redis.Do("DEL", mark); n != int64(1) {
		t.Fatalf("%s: %v marks", mark, n)
	}
	s = run(t, c)
	s.unreadyBecause(t, "in whole or in part")
	s.noTokens(t, credential)
	s.acceptLoss(t, token, "a shard is gone")
	s.awaitReady(t)
	if code := s.answers(t, credential); code != 401 {
		t.Errorf("a credential of the lost store is answered %d", code)
	}
	s.signs(t, s.letIn(t, token))
}

// An act that a failover could undo is not recorded in custody: the store would count
// as rolled back after the failover.
func TestUnacknowledgedAct(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	copied := servers.StartRedis(t, servers.RedisOptions{ReplicaOf: redis})
	c := onRedis(t, redis.Addr())
	c.Store.Redis.Acks = 1
	var token string
	eventually(t, func() string { // a busy machine's copy may be late
		result, err := Init(t.Context(), c, InitOptions{ShowAdminToken: true})
		if err != nil {
			return err.Error()
		}
		token = result.AdminToken
		return ""
	})
	s := run(t, c)
	s.awaitReady(t)
	s.letIn(t, token)
	recorded := func() uint64 {
		d, _, err := loadDeployment(t.Context(), s.state.keyring)
		if err != nil {
			t.Fatal(err)
		}
		return d.AuditHead.Seq
	}
	var before uint64
	eventually(t, func() string { // the copy may be late with these too
		last, _, err := s.state.store.AuditHead(t.Context())
		if before = recorded(); err != nil || before == 0 || before != last.Seq {
			return fmt.Sprintf("of acknowledged acts %d are recorded, of %d, %v", before, last.Seq, err)
		}
		return ""
	})
	copied.Pause()
	h, acts := s.auditHead(), uint64(0)
	act := func() error {
		acts++
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.state.store.AppendAudit(ctx, audit.Entry{Action: "test"}); err != nil && !errors.Is(err, killswitch.ErrUnacknowledged) {
			t.Fatal(err)
		}
		return h.Record(ctx)
	}
	if err := act(); err == nil || recorded() != before {
		t.Errorf("recorded entry %d, was %d, with %v", recorded(), before, err)
	}
	copied.Resume()
	s.awaitReady(t)
	eventually(t, func() string {
		if err := act(); err != nil || recorded() != before+acts {
			return fmt.Sprintf("recorded entry %d, was %d, after %d acts, with %v", recorded(), before, acts, err)
		}
		return ""
	})
}

// wiped is a store without marks that counts how often it is looked at.
type wiped struct {
	shared
	looks atomic.Int64
}

func (w *wiped) AuditHead(context.Context) (last, written audit.Head, err error) {
	w.looks.Add(1)
	return last, written, redis.ErrUnmarked
}

func (w *wiped) Identity(context.Context) (redis.Identity, error) { return redis.Identity{}, nil }

func (w *wiped) CheckServer(context.Context) error { return nil }

// At a start the store is looked at once: after the guard has heard from which data it
// answers.
func TestGateLooksOnce(t *testing.T) {
	s := mustOpen(t, testConfig(t), openOptions{})
	store := &wiped{}
	g := &gate{HighWater: highWater(s.keyring), keeper: &keeper{keyring: s.keyring}, store: store}
	if _, err := g.Load(t.Context()); err != nil || store.looks.Load() != 0 {
		t.Fatalf("before the store was asked: %v, looked at it %d times", err, store.looks.Load())
	}
	if g.keeper.storeID() == "" {
		t.Error("it is not known which store is the right one")
	}
	var condition *conditionError
	if _, err := g.Load(t.Context()); !errors.As(err, &condition) || store.looks.Load() != 1 {
		t.Errorf("with a wiped store: %v, looked at it %d times", err, store.looks.Load())
	}
}

// A record is not raised over a log that lacks what was recorded before.
func TestRecordOnAnotherLog(t *testing.T) {
	ctx := t.Context()
	s := mustOpen(t, testConfig(t), openOptions{})
	d, rev, err := loadDeployment(ctx, s.keyring)
	if err != nil {
		t.Fatal(err)
	}
	d.AuditHead = audit.Head{Seq: 1, Hash: "of an entry that is gone"}
	if _, err := saveDeployment(ctx, s.keyring, rev, d); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.store.AppendAudit(ctx, audit.Entry{Action: "test"}); err != nil {
			t.Fatal(err)
		}
	}
	h := &auditHead{keyring: s.keyring, store: s.store}
	if err := h.Record(ctx); !errors.Is(err, errLogWentBack) {
		t.Errorf("recorded with %v", err)
	}
	if again, _, err := loadDeployment(ctx, s.keyring); err != nil || again.AuditHead != d.AuditHead {
		t.Errorf("%+v, %v", again, err)
	}
}

// A standby of custody's that answers from the past changes nothing.
func TestKeeperKeepsTheNewest(t *testing.T) {
	var told []string
	k := &keeper{expect: func(id string) { told = append(told, id) }}
	if !k.enrolmentClosed() {
		t.Error("enrolment is open before anything is known")
	}
	k.adopt(deployment{Store: "a"}, 1)
	k.adopt(deployment{Store: "b", EnrolmentClosed: true}, 3)
	if d, rev := k.adopt(deployment{Store: "a"}, 2); d.Store != "b" || rev != 3 {
		t.Errorf("went back to %+v of revision %d", d, rev)
	}
	if k.storeID() != "b" || !k.enrolmentClosed() || !slices.Equal(told, []string{"a", "b"}) {
		t.Errorf("%s, closed %v, told %v", k.storeID(), k.enrolmentClosed(), told)
	}
}
