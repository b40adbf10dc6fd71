package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/test/servers"
)

// toldReady waits until the fleet is told, and tells, whether s is ready.
func (s *Server) toldReady(t *testing.T, token string, want bool) {
	t.Helper()
	eventually(t, func() string {
		beats, err := s.state.store.Replicas(t.Context(), time.Minute)
		if err != nil {
			return err.Error()
		}
		for _, r := range beats {
			if r.Replica == s.replica && r.Ready != want {
				return fmt.Sprintf("its beat says ready %v", r.Ready)
			}
		}
		fleet := s.mustOperate(t, token, "GET", "/v1/fleet", nil)
		for _, r := range fleet["replicas"].([]any) {
			if r := r.(map[string]any); r["id"] == s.replica && (r["ready"] == true) != want {
				return fmt.Sprintf("status says %v", r)
			}
		}
		if is := fleet["issuers"].([]any)[0].(map[string]any); (is["ready"] == true) != want || !want && is["why"] == "" {
			return fmt.Sprintf("status says %v", is)
		}
		return ""
	})
}

// A server whose settings change while replicas run makes them not ready, and says so
// to the fleet; signing goes on.
func TestRedisSettingsChange(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onRedis(t, redis.Addr())
	token := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	credential := s.letIn(t, token)
	s.toldReady(t, token, true)
	redis.Do("CONFIG", "SET", "appendonly", "no")
	redis.Do("CONFIG", "SET", "save", "")
	s.unreadyBecause(t, "appendonly")
	s.toldReady(t, token, false)
	s.signs(t, credential)
	redis.Do("CONFIG", "SET", "appendonly", "yes")
	s.awaitReady(t)
	s.toldReady(t, token, true)
}

// A replica that was stopped in order is no replica any more, for a kill neither.
func testStopped(t *testing.T, v *servers.Vault) {
	_, a, b, token := pair(t, v)
	if err := a.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if replicas := b.mustOperate(t, token, "GET", "/v1/fleet", nil)["replicas"].([]any); len(replicas) != 1 {
		t.Errorf("the fleet is %v", replicas)
	}
	kill := b.mustOperate(t, token, "POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "all"}, "reason": "drill"})
	if told := fmt.Sprint(kill["replicas"]); told != fmt.Sprintf("[%s]", b.replica) {
		t.Errorf("the kill is to be enforced by %s, want %s alone", told, b.replica)
	}
}

// Acts that custody could not record are recorded once it is back, without another.
func testRecordedAfterwards(t *testing.T, v *servers.Vault) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onVault(t, onRedis(t, redis.Addr()), v, false)
	token := mustInit(t, c)
	proxy := servers.NewProxy(t, strings.TrimPrefix(v.Addr, "http://"))
	c.Custody.Vault.Addresses = []string{"http://" + proxy.Addr()}
	s := run(t, c)
	s.awaitReady(t)
	s.letIn(t, token)
	proxy.Cut()
	path := "/v1/devices/" + strings.Repeat("A", 43) + ":invalidate"
	code, header, answer := ask(t, "POST", s.Info().Admin, path, "", token, map[string]any{"reason": "stolen"})
	if told := header.Get("Pact-Not-Durable"); code != 200 || !strings.Contains(told, "custody") {
		t.Fatalf("invalidated in an outage: %d %v, header %q", code, answer, told)
	}
	last, _, err := s.state.store.AuditHead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if known, _ := s.keeper.current(); known.AuditHead.Seq >= last.Seq {
		t.Fatalf("custody has entry %d of %d already", known.AuditHead.Seq, last.Seq)
	}
	proxy.Heal()
	eventually(t, func() string {
		switch d, _, err := loadDeployment(t.Context(), s.state.keyring); {
		case err != nil:
			return err.Error()
		case d.AuditHead.Seq < last.Seq:
			return fmt.Sprintf("custody has entry %d of %d", d.AuditHead.Seq, last.Seq)
		}
		return ""
	})
}

// Status says that custody lacks acts.
func TestBehind(t *testing.T) {
	s := launch(t, testConfig(t))
	state := s.operators.config.State
	status, err := state.Status(t.Context())
	if err != nil || status.Problem != "" {
		t.Fatalf("%+v, %v", status, err)
	}
	if err := s.state.store.AppendAudit(t.Context(), audit.Entry{Action: "test"}); err != nil {
		t.Fatal(err)
	}
	s.heads.behind.Store(true)
	if status, err = state.Status(t.Context()); err != nil || !strings.Contains(status.Problem, "last 1 of the audit log's entries") {
		t.Errorf("%+v, %v", status, err)
	}
	s.catchUp(t.Context())
	if status, err = state.Status(t.Context()); err != nil || status.Problem != "" || status.CustodyHead != status.StoreHead {
		t.Errorf("after it was recorded: %+v, %v", status, err)
	}
}

// With another subject key nobody gets a subject; those who have one go on.
func TestOtherSubjectKey(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onRedis(t, redis.Addr())
	token := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	credential := s.letIn(t, token)
	right, _ := s.keeper.current()
	if right.SubjectCheck == "" {
		t.Fatal("init recorded nothing of the subject key")
	}
	record := func(check string) {
		t.Helper()
		if _, err := s.keeper.change(t.Context(), func(d *deployment) error { d.SubjectCheck = check; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	record("another")
	s.unreadyBecause(t, "subject key")
	s.signs(t, credential)
	code, answer := s.operate(t, token, "POST", "/v1/credentials", map[string]any{"name": "wrong"})
	if code != 400 || !strings.Contains(fmt.Sprint(answer), "OTHER_SUBJECT_KEY") {
		t.Errorf("a credential is made: %d %v", code, answer)
	}
	record(right.SubjectCheck)
	s.awaitReady(t)
	record("") // as a version before this one left it
	eventually(t, func() string {
		if d, _ := s.keeper.current(); d.SubjectCheck != right.SubjectCheck {
			return "the record says " + d.SubjectCheck
		}
		return ""
	})
	s.mustOperate(t, token, "POST", "/v1/credentials", map[string]any{"name": "right"})
}

// An embedded signer with another subject key starts, and says so.
func TestEmbeddedOtherSubjectKey(t *testing.T) {
	c := testConfig(t)
	s := mustOpen(t, c, openOptions{})
	d, rev, err := loadDeployment(t.Context(), s.keyring)
	if err != nil {
		t.Fatal(err)
	}
	d.SubjectCheck = "another"
	if _, err := saveDeployment(t.Context(), s.keyring, rev, d); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	run(t, c).unreadyBecause(t, "subject key")
}

// What a kill says of tokens holds for those of a replica that makes them last longer.
func TestLongestToken(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onRedis(t, redis.Addr())
	c.Issuers[0].TokenTTL = time.Minute
	token := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	kill := s.mustOperate(t, token, "POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "all"}, "reason": "drill"})
	at := func(m map[string]any, member string) time.Time {
		t.Helper()
		when, err := time.Parse(time.RFC3339, m[member].(string))
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	thrown := at(kill["entry"].(map[string]any), "time")
	longest := 300 * time.Second / time.Duration(c.Development.TimeScale)
	if accepted := at(kill, "tokensAcceptedUntil").Sub(thrown); accepted < longest {
		t.Errorf("tokens are accepted for %v, and another replica's last %v", accepted, longest)
	}
}

// A mistyped issuer gets no keys: it is not ready until init was run for it.
func TestMistypedIssuer(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onRedis(t, redis.Addr())
	mustInit(t, c)
	c.Issuers[0].URL = "http://isuer.localhost"
	s := run(t, c)
	s.unreadyBecause(t, "no issuer http://isuer.localhost")
	if _, known := s.keeper.current(); known || s.issuers[0].keys.Revision() != 0 || redis.Do("HLEN", c.Store.Redis.Prefix+":{g}:revisions") != int64(0) {
		t.Error("it made a key schedule")
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	result, err := Init(t.Context(), c, InitOptions{ShowAdminToken: true})
	if err != nil || fmt.Sprint(result.AddedIssuers) != "[http://isuer.localhost]" || !strings.Contains(result.Note, "isuer") {
		t.Fatalf("init: %+v, %v", result, err)
	}
	if result, err = Init(t.Context(), c, InitOptions{ShowAdminToken: true}); err != nil || len(result.AddedIssuers) > 0 || result.Note != "" {
		t.Errorf("init again: %+v, %v", result, err)
	}
	run(t, c).awaitReady(t)
}

// How a Vault holds the keys is chosen once.
func testOtherMode(t *testing.T, v *servers.Vault) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onVault(t, onRedis(t, redis.Addr()), v, false)
	mustInit(t, c)
	c.Custody.Vault.Wrapped = true
	if _, err := Init(t.Context(), c, InitOptions{ShowAdminToken: true}); err == nil || !strings.Contains(err.Error(), "custody.vault.wrapped") {
		t.Errorf("init: %v", err)
	}
	run(t, c).unreadyBecause(t, "custody.vault.wrapped")
}

// A start with nothing wrong says nothing of the kind.
func TestQuietStart(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onRedis(t, redis.Addr())
	mustInit(t, c)
	var log lines
	s, err := New(c, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.awaitReady(t)
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if said := log.String(); strings.Contains(said, "key schedule") || strings.Contains(said, "mark") {
		t.Errorf("the log warns:\n%s", said)
	}
}

// lines is a log that is written by several at once.
type lines struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}

// A credential whose hash alone is left does not sign once the loss was accepted.
func TestListsWiped(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onRedis(t, redis.Addr())
	token := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	credential := s.letIn(t, token)
	s.signs(t, credential)
	for _, key := range redis.Do("KEYS", c.Store.Redis.Prefix+":{g}:*").([]any) {
		redis.Do("DEL", key)
	}
	s.unreadyBecause(t, "accept-loss")
	s.acceptLoss(t, token, "a shard is gone")
	s.awaitReady(t)
	s.letIn(t, token)
	if code := s.answers(t, credential); code != http.StatusUnauthorized {
		t.Errorf("a credential that nobody can revoke is answered %d", code)
	}
}
