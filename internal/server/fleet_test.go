package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/internal/config"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// What replicas do on one Vault and, each test, a Redis of its own.
func TestFleet(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{})
	t.Run("two replicas", func(t *testing.T) { testTwoReplicas(t, v) })
	t.Run("wiped", func(t *testing.T) { testWiped(t, v) })
	t.Run("rolled back", func(t *testing.T) { testRolledBack(t, v) })
	t.Run("foreign", func(t *testing.T) { testForeign(t, v) })
	t.Run("not initialised", func(t *testing.T) { testNotInitialised(t, v) })
	t.Run("moved", func(t *testing.T) { testMoved(t, v) })
	t.Run("hanging", func(t *testing.T) { testHanging(t, v) })
	t.Run("bolt", func(t *testing.T) { testVaultWithBolt(t, v) })
	t.Run("sealed", func(t *testing.T) { testSealed(t, v) }) // the last one
}

// pair starts two replicas of a new deployment.
func pair(t *testing.T, v *servers.Vault) (redis *servers.Redis, a, b *Server, token string) {
	t.Helper()
	redis = servers.StartRedis(t, servers.RedisOptions{})
	c := onVault(t, onRedis(t, redis.Addr()), v, false)
	token = mustInit(t, c)
	a, b = run(t, c), run(t, c)
	a.awaitReady(t)
	b.awaitReady(t)
	return redis, a, b, token
}

func testTwoReplicas(t *testing.T, v *servers.Vault) {
	_, a, b, token := pair(t, v)
	credential := a.letIn(t, token)
	verifies(t, a.signs(t, credential), b.keySet(t))
	verifies(t, b.signs(t, credential), a.keySet(t))
	if set := a.keySet(t); len(set.Keys) != 1 {
		t.Errorf("the key set has %d keys", len(set.Keys))
	}
	replicas := b.mustOperate(t, token, "GET", "/v1/fleet", nil)["replicas"].([]any)
	if len(replicas) != 2 {
		t.Errorf("the fleet has %d replicas", len(replicas))
	}
	metrics := func() string { _, body := fetch(t, http.DefaultClient, a.Info().Ops+"/metrics"); return body }
	eventually(t, func() string {
		body := metrics()
		for _, want := range []string{"pact_signer_custody_up 1", "pact_signer_store_up 1", "pact_signer_ready 1"} {
			if !strings.Contains(body, want) {
				return want + " is not in the metrics"
			}
		}
		return ""
	})
	// A new first token ends the old one on both, without a restart.
	c := a.cfg
	result, err := Init(t.Context(), c, InitOptions{ShowAdminToken: true, NewAdminToken: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Server{a, b} {
		eventually(t, func() string {
			if code, _ := s.operate(t, token, "GET", "/v1/fleet", nil); code != 401 {
				return fmt.Sprintf("the old token is answered %d", code)
			}
			return ""
		})
		s.mustOperate(t, result.AdminToken, "GET", "/v1/fleet", nil)
	}
}

// A store that was wiped is not served from, until its loss was accepted on one of
// the replicas; then all serve again, with enrolment closed on all until one opens
// it.
func testWiped(t *testing.T, v *servers.Vault) {
	redis, a, b, token := pair(t, v)
	credential := a.letIn(t, token)
	a.signs(t, credential)
	redis.Wipe()
	for _, s := range []*Server{a, b} {
		s.noTokens(t, credential)
		s.unreadyBecause(t, "pactctl state accept-loss")
	}
	state := b.mustOperate(t, token, "GET", "/v1/state", nil)
	store, _ := state["store"].(string)
	if state["condition"] != "lost" || store == "" || !strings.Contains(fmt.Sprint(state["remedy"]), store) {
		t.Errorf("state %v", state)
	}
	if code, answer := a.operate(t, token, "POST", "/v1/state:accept-loss", map[string]any{"store": "another", "reason": "r"}); code == 200 {
		t.Fatalf("accepted the loss of another store: %v", answer)
	}
	a.noTokens(t, credential)

	a.mustOperate(t, token, "POST", "/v1/state:accept-loss", map[string]any{"store": store, "reason": "the disk is gone"})
	for _, s := range []*Server{a, b} {
		s.awaitReady(t)
		if mode := s.enrolment(t, token); mode != "closed" {
			t.Errorf("enrolment is %s", mode)
		}
	}
	if code, answer := a.operate(t, token, "POST", "/v1/state:accept-loss", map[string]any{"store": store, "reason": "again"}); code == 200 {
		t.Errorf("accepted twice: %v", answer)
	}
	if code, _, _ := a.sign(t, credential); code != 401 {
		t.Errorf("a credential of the lost store is answered %d", code)
	}
	again := b.letIn(t, token)
	verifies(t, b.signs(t, again), a.keySet(t))
	if verified := a.mustOperate(t, token, "GET", "/v1/audit:verify", nil); verified["ok"] != true {
		t.Errorf("audit: %v", verified)
	}
	b.mustOperate(t, token, "POST", "/v1/state:open-enrolment", map[string]any{})
	for _, s := range []*Server{a, b} {
		eventually(t, func() string {
			if mode := s.enrolment(t, token); mode != "open" {
				return "enrolment is " + mode
			}
			return ""
		})
	}
	// A start finds it as it is.
	c := run(t, a.cfg)
	c.awaitReady(t)
	c.signs(t, again)
}

func testRolledBack(t *testing.T, v *servers.Vault) {
	redis, a, b, token := pair(t, v)
	credential := a.letIn(t, token)
	a.signs(t, credential)
	kept := filepath.Join(t.TempDir(), "kept")
	redis.Stop()
	copyFolder(t, redis.AppendOnlyDir(), kept)
	redis.Start()
	a.awaitReady(t)
	id := a.mustOperate(t, token, "GET", "/v1/credentials", nil)["credentials"].([]any)[0].(map[string]any)["id"].(string)
	a.mustOperate(t, token, "POST", "/v1/credentials/"+id+":revoke", map[string]any{"reason": "leaked"})
	redis.Stop()
	if err := os.RemoveAll(redis.AppendOnlyDir()); err != nil {
		t.Fatal(err)
	}
	copyFolder(t, kept, redis.AppendOnlyDir())
	redis.Start()
	for _, s := range []*Server{a, b} {
		s.unreadyBecause(t, "the store went back")
		s.noTokens(t, credential) // it was revoked
	}
	late := run(t, a.cfg) // nor does one that starts now
	late.unreadyBecause(t, "pactctl state accept-loss --store")
	late.noTokens(t, credential)
	state := b.mustOperate(t, token, "GET", "/v1/state", nil)
	if state["condition"] != "rolled_back" {
		t.Fatalf("state %v", state)
	}
	b.mustOperate(t, token, "POST", "/v1/state:accept-loss", map[string]any{"store": state["store"], "reason": "no newer backup"})
	for _, s := range []*Server{a, b, late} {
		s.awaitReady(t)
		if mode := s.enrolment(t, token); mode != "closed" {
			t.Errorf("enrolment is %s", mode)
		}
	}
	a.signs(t, credential) // as the copy has it: the operator revokes it again
	if state := a.mustOperate(t, token, "GET", "/v1/state", nil); state["condition"] != "ok" {
		t.Errorf("state %v", state)
	}
}

func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Chmod(path, 0o600)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func testForeign(t *testing.T, v *servers.Vault) {
	redis, a, _, token := pair(t, v)
	credential := a.letIn(t, token)
	a.signs(t, credential)
	remark := func(id any) {
		for _, slot := range append(slots(), "g") {
			redis.Do("HSET", a.cfg.Store.Redis.Prefix+":{"+slot+"}:m", "id", id)
		}
	}
	ours := a.keeper.storeID()
	remark("ANOTHER")
	a.noTokens(t, credential)
	a.unreadyBecause(t, "another mark")
	state := a.mustOperate(t, token, "GET", "/v1/state", nil)
	if state["condition"] != "foreign" || state["found"] != "ANOTHER" {
		t.Errorf("state %v", state)
	}
	if code, answer := a.operate(t, token, "POST", "/v1/state:accept-loss", map[string]any{"store": ours, "reason": "mine now"}); code == 200 {
		t.Fatalf("another deployment's store was taken over: %v", answer)
	}
	remark(ours)
	a.awaitReady(t)
	a.signs(t, credential)
}

// slots are the 256 tags.
func slots() []string {
	var list []string
	for i := range 256 {
		list = append(list, fmt.Sprintf("b%02x", i))
	}
	return list
}

// A replica that starts before init says what to do, makes nothing, and goes on
// once it was done.
func testNotInitialised(t *testing.T, v *servers.Vault) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onVault(t, onRedis(t, redis.Addr()), v, false)
	s := run(t, c)
	s.unreadyBecause(t, "run `signer init`")
	s.noTokens(t, "pact_nobody")
	if code, answer := s.operate(t, "pact_admin_nobody", "GET", "/v1/fleet", nil); code != 503 || !strings.Contains(fmt.Sprint(answer["message"]), "signer init") {
		t.Errorf("an operator is answered %d %v", code, answer)
	}
	conn, err := grpc.NewClient(hostPort(s.Info().Admin), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = signerv1.NewAdminServiceClient(conn).FleetStatus(t.Context(), &signerv1.FleetStatusRequest{})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "signer init") {
		t.Errorf("on gRPC: %v", err)
	}
	if n := redis.Do("DBSIZE"); n != int64(0) {
		t.Errorf("Redis has %v keys", n)
	}
	k, err := openKeyring(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if _, rev, err := loadDeployment(t.Context(), k); rev != 0 || err != nil {
		t.Errorf("custody has a record: %d, %v", rev, err)
	}
	token := mustInit(t, c)
	s.awaitReady(t)
	s.signs(t, s.letIn(t, token))
}

// An embedded signer's records move to a fleet, whose store is emptied for it.
func testMoved(t *testing.T, v *servers.Vault) {
	embedded := testConfig(t)
	is := config.DefaultIssuer()
	is.URL, is.Enrolment = fleetIssuer, "open"
	embedded.Issuers = []config.Issuer{is}
	old := launch(t, embedded)
	content, err := os.ReadFile(old.Info().AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	credential := old.letIn(t, strings.TrimSpace(string(content)))
	var file bytes.Buffer
	from := &adminState{keeper: old.keeper, kind: "bolt", store: old.state.store, issuers: old.info.Issuers, now: time.Now}
	if err := from.Export(t.Context(), &file); err != nil {
		t.Fatal(err)
	}

	redis, a, b, token := pair(t, v)
	to := a.operators.config.State
	status, err := to.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var refused *signer.StateError
	if _, err := to.Import(t.Context(), bytes.NewReader(file.Bytes()), "test", ""); !errors.As(err, &refused) || refused.Reason != signer.StateOtherFile {
		t.Fatalf("another store's file: %v", err)
	}
	if _, err := to.Import(t.Context(), bytes.NewReader(file.Bytes()), "test", status.Store); !errors.As(err, &refused) || refused.Reason != signer.StateNotEmpty {
		t.Errorf("imported into a store in use: %v", err)
	}
	redis.Wipe()
	result, err := to.Import(t.Context(), bytes.NewReader(file.Bytes()), "test", status.Store)
	if err != nil {
		t.Fatal(err)
	}
	if result.Store == status.Store || result.EnrolmentClosed {
		t.Errorf("%+v", result)
	}
	for _, s := range []*Server{a, b} {
		s.awaitReady(t)
		s.signs(t, credential)
	}
	if verified := b.mustOperate(t, token, "GET", "/v1/audit:verify", nil); verified["ok"] != true {
		t.Errorf("audit: %v", verified)
	}
	if _, err := to.Import(t.Context(), bytes.NewReader(file.Bytes()), "test", result.Store); !errors.As(err, &refused) || refused.Reason != signer.StateNotEmpty {
		t.Errorf("imported over records: %v", err)
	}
}

// One signer may have its keys in Vault and its records in a file.
func testVaultWithBolt(t *testing.T, v *servers.Vault) {
	c := testConfig(t)
	is := config.DefaultIssuer()
	is.URL, is.Enrolment = fleetIssuer, "open"
	c.Issuers = []config.Issuer{is}
	c = onVault(t, c, v, false)
	s := launch(t, c)
	content, err := os.ReadFile(s.Info().AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	verifies(t, s.signs(t, s.letIn(t, strings.TrimSpace(string(content)))), s.keySet(t))
	if _, err := os.Stat(c.Custody.Dir); err == nil {
		t.Error("there is a folder for keys too")
	}
}

// A custody and a store that hang do not hold up the end.
func testHanging(t *testing.T, v *servers.Vault) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	vaultProxy := servers.NewProxy(t, strings.TrimPrefix(v.Addr, "http://"))
	redisProxy := servers.NewProxy(t, redis.Addr())
	c := onVault(t, onRedis(t, redisProxy.Addr()), v, false)
	c.Custody.Vault.Addresses = []string{"http://" + vaultProxy.Addr()}
	token := mustInit(t, c)
	s, err := New(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.awaitReady(t)
	credential := s.letIn(t, token)
	s.signs(t, credential)
	vaultProxy.Hang()
	redisProxy.Hang()
	s.noTokens(t, credential)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if ctx.Err() != nil {
		t.Error("the end was held up")
	}
}

// While Vault is sealed nobody signs with it and the replica is not ready; who has
// the keys in memory signs on. Unsealed it goes on by itself, also from a start
// while it was sealed.
func testSealed(t *testing.T, v *servers.Vault) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onVault(t, onRedis(t, redis.Addr()), v, false)
	token := mustInit(t, c)
	transit := run(t, c)
	transit.awaitReady(t)
	credential := transit.letIn(t, token)
	transit.signs(t, credential)

	c2 := onRedis(t, redis.Addr())
	c2.Store.Redis.Prefix = "wrapped"
	c2 = onVault(t, c2, v, true)
	token2 := mustInit(t, c2)
	wrapped := run(t, c2)
	wrapped.awaitReady(t)
	credential2 := wrapped.letIn(t, token2)
	wrapped.signs(t, credential2)

	v.Seal()
	transit.noTokens(t, credential)
	transit.unreadyBecause(t, "custody does not answer")
	eventually(t, func() string {
		if wrapped.custodyHealth.down() == nil {
			return "the outage was not seen"
		}
		return ""
	})
	wrapped.signs(t, credential2)
	if why := wrapped.unready(); why != nil {
		t.Errorf("not ready: %v", why)
	}
	late := run(t, c)
	late.unreadyBecause(t, "kill switch: ")
	late.noTokens(t, credential)
	if code, _ := late.operate(t, token, "GET", "/v1/fleet", nil); code != 503 {
		t.Errorf("an operator is answered %d", code)
	}
	v.Unseal()
	for _, s := range []*Server{transit, late} {
		verifies(t, s.signs(t, credential), transit.keySet(t))
		s.awaitReady(t)
	}
}
