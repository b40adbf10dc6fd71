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
	"strconv"
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
	t.Run("slow link", func(t *testing.T) { testSlowLink(t, v) })
	t.Run("part unmarked", func(t *testing.T) { testPartUnmarked(t, v) })
	t.Run("schedule from the store", func(t *testing.T) { testScheduleFromStore(t, v) })
	t.Run("stopped", func(t *testing.T) { testStopped(t, v) })
	t.Run("recorded afterwards", func(t *testing.T) { testRecordedAfterwards(t, v) })
	t.Run("other mode", func(t *testing.T) { testOtherMode(t, v) })
	t.Run("hanging", func(t *testing.T) { testHanging(t, v) })
	t.Run("bolt", func(t *testing.T) { testVaultWithBolt(t, v) })
	t.Run("retired", func(t *testing.T) { testRetired(t, v) })
	t.Run("record gone", func(t *testing.T) { testRecordGone(t, v, false) })
	t.Run("record gone, wrapped", func(t *testing.T) { testRecordGone(t, v, true) })
	t.Run("sealed", func(t *testing.T) { testSealed(t, v) }) // the last ones
	t.Run("acts in an outage", func(t *testing.T) { testActsInOutage(t, v) })
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
	a.mustOperate(t, token, "POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "audience", "issuer": fleetIssuer, "value": "another"}, "reason": "drill"})
	redis.Wipe()
	for _, s := range []*Server{a, b} {
		s.noTokens(t, credential)
		s.unreadyBecause(t, "pactctl state accept-loss")
		eventually(t, func() string {
			if now := s.scrape(t); now.value("epoch_regressions_total", "") != 1 || now.value("store_went_back", "") != 1 || now.value("switch_entries", "audience") != 1 {
				return "the store has lost a kill, and the metrics do not say so"
			}
			return ""
		})
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

	a.acceptLoss(t, token, "the disk is gone")
	for _, s := range []*Server{a, b} {
		s.awaitReady(t)
		if mode := s.enrolment(t, token); mode != "closed" {
			t.Errorf("enrolment is %s", mode)
		}
	}
	if code, answer := a.operate(t, token, "POST", "/v1/state:accept-loss", map[string]any{"store": store, "reason": "again"}); code == 200 {
		t.Errorf("accepted twice: %v", answer)
	}
	if code := a.answers(t, credential); code != 401 {
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
	id := ""
	eventually(t, func() string { // it may not have missed its store yet
		code, answer := a.operate(t, token, "GET", "/v1/credentials", nil)
		if code != 200 {
			return fmt.Sprintf("credentials: %d %v", code, answer)
		}
		id = answer["credentials"].([]any)[0].(map[string]any)["id"].(string)
		return ""
	})
	a.awaitReady(t)
	a.mustOperate(t, token, "POST", "/v1/credentials/"+id+":revoke", map[string]any{"reason": "leaked"})
	killed := a.mustOperate(t, token, "POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "all"}, "reason": "leaked"})
	entry := killed["entry"].(map[string]any)
	epoch, err := strconv.ParseFloat(entry["epoch"].(string), 64)
	if err != nil {
		t.Fatal(err)
	}
	knows := func(regressions, lacking float64, replicas ...*Server) {
		t.Helper()
		for _, s := range replicas {
			eventually(t, func() string {
				switch now := s.scrape(t); {
				case now.value("switch_epoch", "") < epoch || now.value("switch_entries", "all") != 1:
					return fmt.Sprintf("it tells of epoch %v and %v entries for all", now.value("switch_epoch", ""), now.value("switch_entries", "all"))
				case now.value("epoch_regressions_total", "") != regressions || now.value("store_went_back", "") != lacking:
					return fmt.Sprintf("it tells of %v regressions, %v now", now.value("epoch_regressions_total", ""), now.value("store_went_back", ""))
				}
				return ""
			})
		}
	}
	knows(0, 0, a, b)
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
	knows(1, 1, a, b, late) // the kill, and that the store has forgotten it
	issuer := b.mustOperate(t, token, "POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "issuer", "value": fleetIssuer}, "reason": "leaked"})
	for _, s := range []*Server{a, b, late} {
		eventually(t, func() string { // custody tells
			if n := s.scrape(t).value("switch_entries", "issuer"); n != 1 {
				return fmt.Sprintf("it tells of %v entries for the issuer", n)
			}
			return ""
		})
	}
	state := b.mustOperate(t, token, "GET", "/v1/state", nil)
	if state["condition"] != "rolled_back" {
		t.Fatalf("state %v", state)
	}
	page := newVisitor(t)
	page.headed(page.signIn(b, token), "The store is rolled back: nothing is signed on it")
	b.acceptLoss(t, token, "no newer backup")
	for _, s := range []*Server{a, b, late} {
		s.awaitReady(t)
		if mode := s.enrolment(t, token); mode != "closed" {
			t.Errorf("enrolment is %s", mode)
		}
	}
	knows(1, 0, a, b, late) // that it was put back is no other regression
	for _, s := range []*Server{a, b, late} {
		if code := s.answers(t, credential); code != 403 {
			t.Errorf("killed, and answered %d", code)
		}
	}
	a.mustOperate(t, token, "POST", "/v1/resume", map[string]any{"scope": map[string]any{"kind": "all"}, "entryIds": []any{entry["id"], issuer["entry"].(map[string]any)["id"]}, "reason": "over"})
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
	k, err := openKeyring(c, nil, nil)
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

// An embedded signer's records move to a fleet that was just initialised; and later
// in the place of what the fleet's store holds, if that is given up.
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
	from := &adminState{keeper: old.keeper, kind: "bolt", store: old.state.store, issuers: old.info.Issuers, behind: old.heads.behind.Load, now: time.Now}
	if err := from.Export(t.Context(), &file); err != nil {
		t.Fatal(err)
	}

	_, a, b, token := pair(t, v)
	to := a.operators.config.State
	status, err := to.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var refused *signer.StateError
	if _, err := to.Import(t.Context(), bytes.NewReader(file.Bytes()), "test", ""); !errors.As(err, &refused) || refused.Reason != signer.StateOtherFile {
		t.Fatalf("another store's file: %v", err)
	}
	if _, err := to.Import(t.Context(), bytes.NewReader(file.Bytes()), "test", "another"); !errors.As(err, &refused) || refused.Reason != signer.StateOtherStore {
		t.Fatalf("another store given up: %v", err)
	}
	result, err := to.Import(t.Context(), bytes.NewReader(file.Bytes()), "test", status.Store)
	if err != nil {
		t.Fatal(err)
	}
	if result.Store == status.Store || !result.EnrolmentClosed { // who knows whether it is the newest
		t.Errorf("%+v", result)
	}
	a.mustOperate(t, token, "POST", "/v1/state:open-enrolment", map[string]any{})
	for _, s := range []*Server{a, b} {
		s.awaitReady(t)
		s.signs(t, credential)
	}
	if verified := b.mustOperate(t, token, "GET", "/v1/audit:verify", nil); verified["ok"] != true {
		t.Errorf("audit: %v", verified)
	}

	var own bytes.Buffer
	if err := to.Export(t.Context(), &own); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Import(t.Context(), bytes.NewReader(own.Bytes()), "test", ""); !errors.As(err, &refused) || refused.Reason != signer.StateNotEmpty || !strings.Contains(refused.Problem, "--accept-loss "+result.Store) {
		t.Errorf("imported over records: %v", err)
	}
	later := a.mustOperate(t, token, "POST", "/v1/credentials", map[string]any{"name": "later"})["credential"].(string)
	a.signs(t, later)
	again, err := to.Import(t.Context(), bytes.NewReader(own.Bytes()), "test", result.Store)
	if err != nil {
		t.Fatal(err)
	}
	if !again.EnrolmentClosed {
		t.Error("the file lacks an act, and enrolment is open")
	}
	for _, s := range []*Server{a, b} {
		s.awaitReady(t)
		s.signs(t, credential)
		if code := s.answers(t, later); code != 401 {
			t.Errorf("a credential that the file lacks is answered %d", code)
		}
	}
	if verified := b.mustOperate(t, token, "GET", "/v1/audit:verify", nil); verified["ok"] != true {
		t.Errorf("audit: %v", verified)
	}
}

// On a link with a round trip of 130 ms to Vault and to Redis a replica comes up, and
// stays.
func testSlowLink(t *testing.T, v *servers.Vault) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	vaultProxy := servers.NewProxy(t, strings.TrimPrefix(v.Addr, "http://"))
	redisProxy := servers.NewProxy(t, redis.Addr())
	c := onVault(t, onRedis(t, redisProxy.Addr()), v, false)
	c.Custody.Vault.Addresses = []string{"http://" + vaultProxy.Addr()}
	c.Development.TimeScale = 1
	token := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	credential := s.letIn(t, token)
	for _, p := range []*servers.Proxy{vaultProxy, redisProxy} {
		p.Delay(65 * time.Millisecond)
	}
	slow := &gate{HighWater: highWater(s.state.keyring), keeper: s.keeper, store: s.state.shared}
	slow.asked.Store(true)
	for tries := 3; ; tries-- { // the machine itself may hold it up
		ctx, cancel := context.WithTimeout(t.Context(), s.switchParams.Custody)
		_, err := slow.Load(ctx)
		cancel()
		if err == nil {
			break
		}
		if tries == 1 {
			t.Fatalf("the comparison with custody does not fit its bound: %v", err)
		}
	}
	late := run(t, c)
	late.awaitReady(t)
	late.signs(t, credential)
}

// A part of the store that loses its mark while replicas run is noticed by the first
// caller who belongs there.
func testPartUnmarked(t *testing.T, v *servers.Vault) {
	redis, a, _, token := pair(t, v)
	credential := a.letIn(t, token)
	a.signs(t, credential)
	for _, slot := range slots() { // wherever the credential is; not {g}, by which beats come
		redis.Do("HDEL", a.cfg.Store.Redis.Prefix+":{"+slot+"}:m", "id")
	}
	a.noTokens(t, credential)
	a.unreadyBecause(t, "in whole or in part")
	for _, slot := range slots() {
		redis.Do("HSET", a.cfg.Store.Redis.Prefix+":{"+slot+"}:m", "id", a.keeper.storeID())
	}
	a.awaitReady(t)
	a.signs(t, credential)
}

// A replica with its keys in memory takes over from the store what another has made
// of the schedule while it cannot reach Vault.
func testScheduleFromStore(t *testing.T, v *servers.Vault) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	proxy := servers.NewProxy(t, strings.TrimPrefix(v.Addr, "http://"))
	c := onVault(t, onRedis(t, redis.Addr()), v, true)
	token := mustInit(t, c)
	a := run(t, c)
	c.Custody.Vault.Addresses = []string{"http://" + proxy.Addr()}
	b := run(t, c)
	a.awaitReady(t)
	b.awaitReady(t)
	credential := a.letIn(t, token)
	b.signs(t, credential)
	before := b.issuers[0].keys.Revision()

	proxy.Cut()
	a.mustOperate(t, token, "POST", "/v1/keys:rotate", map[string]any{})
	eventually(t, func() string {
		if got := b.issuers[0].keys.Revision(); got <= before {
			return fmt.Sprintf("the cut off replica has revision %d", got)
		}
		return ""
	})
	if made, has := a.keySet(t), b.keySet(t); len(made.Keys) != 2 || len(has.Keys) != 2 {
		t.Errorf("%d keys are published where they were made, %d at the replica that is cut off", len(made.Keys), len(has.Keys))
	}
	verifies(t, b.signs(t, credential), a.keySet(t))
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
	transit.unreadyBecause(t, "custody does not answer: Vault is sealed")
	transit.toldReady(t, token, false)
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

// Whatever is away, an operator's act is done or answered with 503 and a reason; a
// kill is done without Vault.
func testActsInOutage(t *testing.T, v *servers.Vault) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	proxy := servers.NewProxy(t, redis.Addr())
	c := onVault(t, onRedis(t, proxy.Addr()), v, false)
	token := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	s.letIn(t, token)
	made := func(path, member string, body map[string]any) string {
		t.Helper()
		return s.mustOperate(t, token, "POST", path, body)["info"].(map[string]any)[member].(string)
	}
	reason := map[string]any{"reason": "drill"}
	for _, outage := range []struct {
		name            string
		begin, end      func()
		killed, revoked int
	}{
		{name: "Vault sealed", begin: v.Seal, end: v.Unseal, killed: 200, revoked: 200},
		{name: "Redis cut off", begin: proxy.Cut, end: proxy.Heal, killed: 503, revoked: 503},
		{name: "Redis hanging", begin: proxy.Hang, end: proxy.Heal, killed: 503, revoked: 503},
	} {
		t.Run(outage.name, func(t *testing.T) {
			s.awaitReady(t)
			name := strings.ReplaceAll(outage.name, " ", "-")
			revoke := made("/v1/credentials", "id", map[string]any{"name": name + "-1"})
			rotate := made("/v1/credentials", "id", map[string]any{"name": name + "-2"})
			enrol := made("/v1/enrollment-tokens", "id", map[string]any{})
			outage.begin()
			t.Cleanup(outage.end)
			for _, act := range []struct {
				method, path string
				body         any
				want         int // 0: done or 503
			}{
				{"POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "device", "value": strings.Repeat("E", 43)}, "reason": "drill"}, outage.killed},
				{"POST", "/v1/credentials/" + revoke + ":revoke", reason, outage.revoked},
				{"POST", "/v1/devices/" + strings.Repeat("A", 43) + ":invalidate", reason, outage.revoked},
				{"POST", "/v1/enrollment-tokens/" + enrol + ":revoke", reason, outage.revoked},
				{"POST", "/v1/credentials/" + rotate + ":rotate", map[string]any{}, outage.revoked},
				{"POST", "/v1/enrollment-tokens", map[string]any{}, outage.revoked},
				{"PUT", "/v1/audiences", map[string]any{"origin": "https://" + strings.ToLower(name) + ".example", "audience": name}, outage.revoked},
				{"POST", "/v1/credentials", map[string]any{"name": name + "-3"}, 503}, // needs both: its subject is derived in Vault
				{"POST", "/v1/keys:rotate", map[string]any{}, 503},
				{"POST", "/v1/state:accept-loss", map[string]any{"store": s.keeper.storeID(), "reason": "drill"}, 503},
				{"POST", "/v1/state:open-enrolment", map[string]any{}, 0},
				{"GET", "/v1/fleet", nil, 0},
				{"GET", "/v1/keys", nil, 0},
				{"GET", "/v1/kill", nil, outage.revoked},
				{"GET", "/v1/devices", nil, outage.revoked},
				{"GET", "/v1/credentials", nil, outage.revoked},
				{"GET", "/v1/audiences", nil, outage.revoked},
				{"GET", "/v1/enrollment-tokens", nil, outage.revoked},
				{"GET", "/v1/audit", nil, outage.revoked},
				{"GET", "/v1/audit:verify", nil, 503},
				{"GET", "/v1/state", nil, 200},
			} {
				t.Run(act.method+act.path, func(t *testing.T) {
					t.Parallel() // the outage ends when all are answered
					code, answer := s.operate(t, token, act.method, act.path, act.body)
					if code != act.want && !(act.want == 0 && (code == 200 || code == 503)) {
						t.Errorf("answered %d, want %d: %v", code, act.want, answer)
					}
					if message, _ := answer["message"].(string); code == 503 && message == "" {
						t.Errorf("503 without a word: %v", answer)
					}
				})
			}
		})
	}
	s.awaitReady(t)
	if verified := s.mustOperate(t, token, "GET", "/v1/audit:verify", nil); verified["ok"] != true {
		t.Errorf("audit: %v", verified)
	}
}
