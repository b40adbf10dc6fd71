package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/rotation"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

const oldIssuer = "http://old.localhost"

// withOld adds an issuer to a configuration of one.
func withOld(c config.Config) config.Config {
	is := c.Issuers[0]
	is.URL, is.SignerURLs = oldIssuer, nil
	c.Issuers = append(slices.Clip(c.Issuers), is)
	return c
}

// retireNow gives the old issuer up.
var retireNow = RetireOptions{Issuer: oldIssuer, Reason: "moved", Confirmed: true, Version: "test"}

// openParts opens the custody and the store of a fleet, for what no replica does.
func openParts(t *testing.T, c config.Config) (_ keyring, _ shared, done func()) {
	t.Helper()
	k, err := openKeyring(c, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	store, err := openShared(c, killswitch.Defaults(), nil)
	if err != nil {
		t.Fatal(err)
	}
	done = sync.OnceFunc(func() {
		if err := errors.Join(store.Close(), k.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(done)
	d, _, err := loadDeployment(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	store.Expect(d.Store)
	return k, store, done
}

// scheduleOf is an issuer's schedule in custody.
func scheduleOf(t *testing.T, k custody.Keyring, issuer string) (keys []string) {
	t.Helper()
	name, err := rotation.DocumentName(issuer)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := k.Load(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(string(doc.Data), `"ref": "`) {
		if ref, _, found := strings.Cut(part, `"`); found && ref != "" && !strings.HasPrefix(part, "{") {
			keys = append(keys, ref)
		}
	}
	if len(keys) == 0 {
		t.Fatalf("the schedule of %s has no keys: %s", issuer, doc.Data)
	}
	return keys
}

func stop(t *testing.T, all ...*Server) {
	t.Helper()
	for _, s := range all {
		if err := s.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// An issuer is retired while its deployment serves another, and stays retired.
func testRetired(t *testing.T, v *servers.Vault) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	without := onVault(t, onRedis(t, redis.Addr()), v, false)
	with := withOld(without)
	token := mustInit(t, with)
	a, b := run(t, with), run(t, with)
	a.awaitReady(t)
	b.awaitReady(t)
	a.mustOperate(t, token, "PUT", "/v1/audiences", map[string]any{"issuer": fleetIssuer, "origin": fleetProvider, "audience": fleetAudience})
	a.mustOperate(t, token, "PUT", "/v1/audiences", map[string]any{"issuer": oldIssuer, "origin": fleetProvider, "audience": fleetAudience})
	credential := a.mustOperate(t, token, "POST", "/v1/credentials", map[string]any{"issuer": fleetIssuer, "name": "stays"})["credential"].(string)
	former := a.mustOperate(t, token, "POST", "/v1/credentials", map[string]any{"issuer": oldIssuer, "name": "goes"})["credential"].(string)
	a.signs(t, credential)
	eventually(t, func() string {
		code, _, _ := ask(t, "POST", b.Info().Public, "/pact/sign", "old.localhost", former, map[string]any{"audience": fleetAudience, "nonce": "n"})
		if code != 200 {
			return fmt.Sprintf("the old issuer answers %d", code)
		}
		return ""
	})
	scope := map[string]any{"kind": "issuer", "value": oldIssuer}
	entry := a.mustOperate(t, token, "POST", "/v1/kill", map[string]any{"scope": scope, "reason": "retired"})["entry"].(map[string]any)["id"].(string)
	var before bytes.Buffer
	if err := a.operators.config.State.Export(t.Context(), &before); err != nil {
		t.Fatal(err)
	}

	refused := func(c config.Config, o RetireOptions, want string) {
		t.Helper()
		if result, err := Retire(t.Context(), c, o); err == nil || !strings.Contains(err.Error(), want) || result.Retired {
			t.Errorf("%+v, %v; want %q", result, err, want)
		}
	}
	refused(with, retireNow, "take it out there first")
	refused(without, retireNow, "still serves issuer "+oldIssuer)
	refused(without, RetireOptions{Issuer: "http://odl.localhost", Confirmed: true, Version: "test"}, "is it mistyped")
	stop(t, a, b)
	a, b = run(t, without), run(t, without)
	a.awaitReady(t)
	b.awaitReady(t)
	otherVersion := retireNow
	otherVersion.Version = "other"
	refused(without, otherVersion, "Bring all replicas to one version first")
	unconfirmed := retireNow
	unconfirmed.Confirmed = false
	if result, err := Retire(t.Context(), without, unconfirmed); err != nil || result.Retired {
		t.Fatalf("unconfirmed: %+v, %v", result, err)
	}
	k, _, _ := openParts(t, without)
	if d, _, err := loadDeployment(t.Context(), k); err != nil || d.Format != firstFormat || len(d.Retired) > 0 || len(d.Issuers) != 2 {
		t.Fatalf("before it is confirmed: %+v, %v", d, err)
	}

	first, err := Retire(t.Context(), without, retireNow)
	if err != nil || !first.Retired || first.Keys == 0 || time.Since(first.RetiredAt) > time.Hour {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := Retire(t.Context(), without, retireNow); err != nil || again != first {
		t.Errorf("again: %+v, %v", again, err)
	}
	for _, ref := range scheduleOf(t, k, oldIssuer) {
		if _, err := k.Sign(t.Context(), ref, make([]byte, 32)); !errors.Is(err, custody.ErrDisabled) {
			t.Errorf("key %s of the retired issuer: %v", ref, err)
		}
	}
	if d, _, err := loadDeployment(t.Context(), k); err != nil || d.Format != retiredFormat || d.MinReader != retiredFormat || !slices.Equal(d.Issuers, []string{fleetIssuer}) || len(d.Retired) != 1 || !d.Retired[0].Done {
		t.Errorf("the record says %+v, %v", d, err)
	}
	told := func() (entries int) {
		for _, e := range a.mustOperate(t, token, "GET", "/v1/audit", nil)["entries"].([]any) {
			if e := e.(map[string]any); e["action"] == "issuer.retire" && e["issuer"] == oldIssuer && e["reason"] == "moved" {
				entries++
			}
		}
		return entries
	}
	if n := told(); n != 1 {
		t.Errorf("the audit log has %d entries of it", n)
	}

	// The others go on, and an operator lifts what is left of it.
	for _, s := range []*Server{a, b} {
		eventually(t, func() string {
			if d, _ := s.keeper.current(); d.retirement(oldIssuer) == nil {
				return "a replica does not know of it"
			}
			return ""
		})
		s.awaitReady(t)
		s.signs(t, credential)
	}
	if code, answer := a.operate(t, token, "POST", "/v1/kill", map[string]any{"scope": scope, "reason": "again"}); code != 400 {
		t.Errorf("a kill of it is answered %d %v", code, answer)
	}
	mistyped := map[string]any{"kind": "issuer", "value": "http://odl.localhost"}
	if code, answer := a.operate(t, token, "POST", "/v1/resume", map[string]any{"scope": mistyped, "entryIds": []string{entry}, "reason": "done"}); code != 404 {
		t.Errorf("a resume of a mistyped issuer is answered %d %v", code, answer)
	}
	a.mustOperate(t, token, "POST", "/v1/resume", map[string]any{"scope": scope, "entryIds": []string{entry}, "reason": "done"})

	// Exports from before and after go in, without its records.
	var after bytes.Buffer
	if err := b.operators.config.State.Export(t.Context(), &after); err != nil {
		t.Fatal(err)
	}
	for i, file := range []*bytes.Buffer{&before, &after} {
		d, _ := a.keeper.current()
		result, err := a.operators.config.State.Import(t.Context(), file, "test", d.Store)
		if err != nil {
			t.Fatal(err)
		}
		if result.LeftOut != 2 {
			t.Errorf("import %d left out %d records", i, result.LeftOut)
		}
		a.awaitReady(t)
		a.signs(t, credential)
	}
	if _, err := a.state.store.Credential(t.Context(), oldIssuer, "goes"); !errors.Is(err, signer.ErrNotFound) {
		t.Errorf("its credential is there: %v", err)
	}
	if n := told(); n != 1 {
		t.Errorf("after the import the audit log has %d entries of it", n)
	}

	// It does not come back.
	if _, err := Init(t.Context(), with, InitOptions{ShowAdminToken: true}); err == nil || !strings.Contains(err.Error(), "was retired on") {
		t.Errorf("init adds it again: %v", err)
	}
	again := run(t, with)
	again.unreadyBecause(t, "issuer "+oldIssuer+" was retired on")
	again.noTokens(t, credential)
}

// stubborn is a keyring that disables nothing.
type stubborn struct{ custody.Keyring }

func (stubborn) Disable(context.Context, string) error { return errCut }

// silent is a store whose audit log is cut off.
type silent struct {
	shared
	after bool
}

func (s silent) AppendAudit(ctx context.Context, e audit.Entry) error {
	if s.after {
		_ = s.shared.AppendAudit(ctx, e)
	}
	return errCut
}

// Interrupted anywhere, retiring is run again and comes to an end.
func TestRetireInterrupted(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	for name, cut := range map[string]func(k keyring, s shared) (custody.Keyring, shared){
		"before the record": func(k keyring, s shared) (custody.Keyring, shared) { return &faulty{keyring: k}, s },
		"after the record":  func(k keyring, s shared) (custody.Keyring, shared) { return &faulty{keyring: k, after: true}, s },
		"before the keys":   func(k keyring, s shared) (custody.Keyring, shared) { return stubborn{k}, s },
		"before the log":    func(k keyring, s shared) (custody.Keyring, shared) { return k, silent{shared: s} },
		"after the log":     func(k keyring, s shared) (custody.Keyring, shared) { return k, silent{shared: s, after: true} },
		"before the end":    func(k keyring, s shared) (custody.Keyring, shared) { return &faulty{keyring: k, left: 1}, s },
		"after the end": func(k keyring, s shared) (custody.Keyring, shared) {
			return &faulty{keyring: k, left: 1, after: true}, s
		},
	} {
		t.Run(name, func(t *testing.T) {
			without := onRedis(t, redis.Addr())
			without.Store.Redis.Prefix = fmt.Sprintf("r%d", prefixes.Add(1))
			with := withOld(without)
			mustInit(t, with)
			s := run(t, with)
			s.awaitReady(t)
			stop(t, s)
			k, store, done := openParts(t, without)
			// The list of issuers never becomes empty: that would let in any.
			foreign := without
			foreign.Issuers = slices.Clone(without.Issuers)
			foreign.Issuers[0].URL, foreign.Issuers[0].SignerURLs = "http://mistyped.localhost", nil
			if _, err := retire(t.Context(), foreign, k, store, retireNow); err == nil || !strings.Contains(err.Error(), "the deployment has not, http://mistyped.localhost") {
				t.Fatalf("with a configuration of another issuer: %v", err)
			}
			k2, store2 := cut(k, store)
			if _, err := retire(t.Context(), without, k2, store2, retireNow); !errors.Is(err, errCut) || !strings.Contains(err.Error(), "again") {
				t.Fatalf("interrupted with %v", err)
			}
			result, err := retire(t.Context(), without, k, store, retireNow)
			if err != nil || !result.Retired || result.Keys != 1 {
				t.Fatalf("again: %+v, %v", result, err)
			}
			if _, err := k.Sign(t.Context(), scheduleOf(t, k, oldIssuer)[0], make([]byte, 32)); !errors.Is(err, custody.ErrDisabled) {
				t.Errorf("its key: %v", err)
			}
			list, err := store.Audit(t.Context(), 0, 10)
			if err != nil || !slices.ContainsFunc(list, func(e audit.Entry) bool { return e.Action == "issuer.retire" }) {
				t.Errorf("the audit log: %v, %v", list, err)
			}
			if d, _, err := loadDeployment(t.Context(), k); err != nil || !d.retirement(oldIssuer).Done {
				t.Errorf("%+v, %v", d, err)
			}
			done()
			run(t, without).awaitReady(t)
		})
	}
}

// A replica that begins on an older record while its issuer is being retired keeps the
// keys from being disabled, and stops by itself.
func TestRetireMeetsAReplica(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	without := onRedis(t, redis.Addr())
	with := withOld(without)
	token := mustInit(t, with)
	s := run(t, with)
	s.awaitReady(t)
	s.mustOperate(t, token, "PUT", "/v1/audiences", map[string]any{"issuer": fleetIssuer, "origin": fleetProvider, "audience": fleetAudience})
	credential := s.mustOperate(t, token, "POST", "/v1/credentials", map[string]any{"issuer": fleetIssuer, "name": "batch"})["credential"].(string)
	s.signs(t, credential)
	if _, err := s.keeper.change(t.Context(), func(d *deployment) error {
		d.Issuers = []string{fleetIssuer}
		d.Retired = []retiredIssuer{{URL: oldIssuer, At: time.Now().UTC()}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.unreadyBecause(t, "was retired on")
	s.noTokens(t, credential)
	if _, err := retire(t.Context(), without, s.state.keyring, s.state.store, retireNow); err == nil || !strings.Contains(err.Error(), "still serves") {
		t.Fatalf("retired: %v", err)
	}
	if _, err := s.state.keyring.Sign(t.Context(), scheduleOf(t, s.state.keyring, oldIssuer)[0], make([]byte, 32)); err != nil {
		t.Errorf("its key was disabled under the replica: %v", err)
	}
	stop(t, s)
	k, store, done := openParts(t, without)
	if _, err := retire(t.Context(), without, k, &latecomer{shared: store}, retireNow); err == nil || !strings.Contains(err.Error(), "still serves") {
		t.Fatalf("retired beside a replica that has come since: %v", err)
	}
	if _, err := k.Sign(t.Context(), scheduleOf(t, k, oldIssuer)[0], make([]byte, 32)); err != nil {
		t.Errorf("its key was disabled under that replica: %v", err)
	}
	done()
	if result, err := Retire(t.Context(), without, retireNow); err != nil || result.Keys != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
}

// latecomer is a store that a replica with the old issuer comes to once it was looked at.
type latecomer struct {
	shared
	looked bool
}

func (l *latecomer) Replicas(context.Context, time.Duration) (list []killswitch.Replica, _ error) {
	if l.looked {
		list = []killswitch.Replica{{Beat: killswitch.Beat{Replica: "late", Version: "test", Revisions: map[string]uint64{oldIssuer: 0}}}}
	}
	l.looked = true
	return list, nil
}

// An embedded signer's issuer is retired while the signer is stopped.
func TestRetireEmbedded(t *testing.T) {
	c := testConfig(t)
	is := config.DefaultIssuer()
	is.URL, is.Enrolment = fleetIssuer, "open"
	if _, err := Retire(t.Context(), c, retireNow); err == nil || !strings.Contains(err.Error(), "has no URL") {
		t.Errorf("beside one without a URL: %v", err)
	}
	c.Issuers = []config.Issuer{is}
	if _, err := Retire(t.Context(), c, retireNow); err == nil || !strings.Contains(err.Error(), "there is no store") {
		t.Errorf("where nothing is: %v", err)
	}
	if _, err := os.Stat(c.Custody.Dir); err == nil {
		t.Error("it made a deployment")
	}
	s := launch(t, withOld(c))
	stop(t, s)
	mistyped := retireNow
	mistyped.Issuer = "http://odl.localhost"
	if _, err := Retire(t.Context(), c, mistyped); err == nil || !strings.Contains(err.Error(), "mistyped") {
		t.Errorf("mistyped: %v", err)
	}
	for range 2 {
		if result, err := Retire(t.Context(), c, retireNow); err != nil || !result.Retired || result.Keys != 1 {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	again, err := New(withOld(c), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "was retired on") {
		t.Errorf("started with it: %v", err)
	}
	launch(t, c)
}

// kvPath is where Vault has a deployment's record.
func kvPath(c config.Config, what string) string {
	return c.Custody.Vault.KV + "/" + what + "/" + c.Custody.Vault.Prefix + "/documents/" + deploymentName
}

// A replica whose deployment's record is gone from Vault, or is another's, is not ready and
// signs nothing, though it may have the keys in memory; once the record is back it goes on
// by itself. Keys stay published, and a kill is done, all the while.
func testRecordGone(t *testing.T, v *servers.Vault, wrapped bool) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	c := onVault(t, onRedis(t, redis.Addr()), v, wrapped)
	token := mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	credential := s.letIn(t, token)
	s.signs(t, credential)
	kv := v.Client().Logical()
	record, err := kv.Read(kvPath(c, "data"))
	if err != nil {
		t.Fatal(err)
	}
	data := record.Data["data"].(map[string]any)
	write := func(data map[string]any) {
		t.Helper()
		if _, err := kv.Write(kvPath(c, "data"), map[string]any{"data": data}); err != nil {
			t.Fatal(err)
		}
	}
	part := func(want float64) {
		t.Helper()
		eventually(t, func() string {
			if got := s.scrape(t).value("unready", partRecord); got != want {
				return fmt.Sprintf("pact_signer_unready says %v", got)
			}
			return ""
		})
	}
	stopped := func(why string) {
		t.Helper()
		s.unreadyBecause(t, why)
		s.noTokens(t, credential)
		part(1)
		if code, _ := s.operate(t, token, "POST", "/v1/credentials", map[string]any{"name": why}); code != 503 {
			t.Errorf("a credential is made: %d", code)
		}
		if len(s.keySet(t).Keys) == 0 {
			t.Error("no key is published")
		}
		scope := map[string]any{"kind": "audience", "value": "https://killed.example"}
		kill := s.mustOperate(t, token, "POST", "/v1/kill", map[string]any{"scope": scope, "reason": "drill"})["entry"].(map[string]any)
		s.mustOperate(t, token, "POST", "/v1/resume", map[string]any{"scope": scope, "entryIds": []any{kill["id"]}, "reason": "over"})
	}
	goesOn := func() {
		t.Helper()
		s.awaitReady(t)
		part(0)
		verifies(t, s.signs(t, credential), s.keySet(t))
		s.mustOperate(t, token, "POST", "/v1/credentials", map[string]any{"name": fmt.Sprint("later ", prefixes.Add(1))})
	}

	version := record.Data["metadata"].(map[string]any)["version"]
	if _, err := kv.Delete(kvPath(c, "data")); err != nil {
		t.Fatal(err)
	}
	stopped("was deleted in Vault")
	if _, err := kv.Write(kvPath(c, "undelete"), map[string]any{"versions": []any{version}}); err != nil {
		t.Fatal(err)
	}
	goesOn()

	if _, err := kv.Delete(kvPath(c, "metadata")); err != nil {
		t.Fatal(err)
	}
	stopped("the deployment's record is gone from custody")
	for range 20 { // a version of it may not be one that was seen before
		write(data)
	}
	goesOn()

	other := map[string]any{"format": 1, "minReader": 1, "write": "w", "data": []byte(`{"format":1,"minReader":1,"state":"ready","store":"ANOTHER"}`)}
	switches := func() any {
		t.Helper()
		path := strings.TrimSuffix(kvPath(c, "metadata"), deploymentName) + "kill-switch"
		doc, err := kv.Read(path)
		if err != nil || doc == nil {
			t.Fatalf("the switch's record in Vault: %v, %v", doc, err)
		}
		return doc.Data["current_version"]
	}
	write(other)
	s.unreadyBecause(t, "another deployment's")
	before := switches()
	stopped("another deployment's")
	if now := switches(); now != before {
		t.Errorf("a kill was written into another deployment's custody: version %v, then %v", before, now)
	}
	write(data)
	goesOn()
}

// hiccup is a keyring that once in a while has no deployment's record.
type hiccup struct {
	custody.Keyring
	without int
}

func (h *hiccup) Load(ctx context.Context, name string) (custody.Document, error) {
	if h.without > 0 && name == deploymentName {
		h.without--
		return custody.Document{}, custody.ErrNotFound
	}
	return h.Keyring.Load(ctx, name)
}

// One answer that the record is not there stops nobody, two in a row do.
func TestRecordGoneIsAskedTwice(t *testing.T) {
	c := testConfig(t)
	stop(t, launch(t, c))
	state, err := openState(t.Context(), c, openOptions{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := state.close(); err != nil {
			t.Error(err)
		}
	})
	h := &hiccup{Keyring: state.keyring}
	k := &keeper{keyring: h}
	looks := func(without int) error {
		t.Helper()
		h.without = without
		for range max(without, 1) {
			_, _, err := k.refresh(t.Context())
			if without > 0 != errors.Is(err, errRecordGone) {
				t.Fatalf("a look: %v", err)
			}
		}
		return k.usable()
	}
	for range 2 {
		for _, without := range []int{0, 1, 0} {
			if err := looks(without); err != nil {
				t.Errorf("after %d looks without it: %v", without, err)
			}
		}
		if err := looks(2); !errors.Is(err, errRecordGone) {
			t.Errorf("after two looks without it: %v", err)
		}
	}
}

// Custody that was away and comes back without the record is away until that is known:
// at no look in between is all well.
func TestBackWithoutTheRecord(t *testing.T) {
	s := launch(t, testConfig(t))
	h := &hiccup{Keyring: s.keeper.keyring}
	s.keeper.keyring = h
	for range downAfter {
		s.custodyHealth.note(custody.ErrUnavailable)
	}
	h.without = 2
	for range h.without {
		if err := s.look(t.Context()); !errors.Is(err, errRecordGone) {
			t.Fatalf("a look: %v", err)
		}
		if s.custodyHealth.down() == nil && s.keeper.usable() == nil {
			t.Errorf("all is well, with %d more answers that there is no record", h.without)
		}
	}
	if err := s.look(t.Context()); err != nil || s.custodyHealth.down() != nil || s.keeper.usable() != nil {
		t.Errorf("with the record: %v, %v, %v", err, s.custodyHealth.down(), s.keeper.usable())
	}
}

// Custody that is away is not custody without the record.
func TestAnswered(t *testing.T) {
	for err, want := range map[error]bool{
		nil: true, errRecordGone: true, errUninitialised: true, fmt.Errorf("x: %w", errRecordOther): true, &otherConfigError{}: true,
		custody.ErrUnavailable: false, context.DeadlineExceeded: false,
	} {
		if got := answered(err); got != want {
			t.Errorf("%v: answered %v", err, got)
		}
	}
}
