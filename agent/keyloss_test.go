package agent_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/zalando/go-keyring"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

func (w *world) keyPath() string { return filepath.Join(w.dir, "profile.key") }

// stored is what the profile's settings say of its key.
func (w *world) stored() (s struct{ KeySource, KeyAccount string }) {
	w.t.Helper()
	db, err := openDatabase(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	var data []byte
	if err := db.QueryRow("SELECT data FROM settings").Scan(&data); err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// used makes a profile that has something to lose: a grant, a receipt, a
// conversation as an account, and a pending sign-in.
func (w *world) used() (a *agent.Agent, conversation string) {
	w.t.Helper()
	a = w.enrolled()
	r := w.send(a, w.person(), agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusReplied, "")
	if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
		w.t.Fatalf("evidence %+v", r.Evidence)
	}
	p, err := a.Authorize(w.t.Context(), owner(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:history"}})
	if err != nil || p.Status != agent.StatusNeedsUserAction {
		w.t.Fatalf("%+v, %v", p, err)
	}
	time.Sleep(time.Second)
	return a, r.Conversation
}

// lost expects an agent to have found its key lost, and all that hung on it to
// say so.
func (w *world) lost(a *agent.Agent, conversation string) {
	t := w.t
	t.Helper()
	if n := a.Notices(); len(n) != 1 || !strings.Contains(n[0], "permissions ended: 1, sign-ins ended: 1, receipts that cannot be verified again: 1") {
		t.Errorf("notices %q", n)
	}
	grants, err := a.Grants(t.Context(), owner())
	if err != nil || len(grants) != 1 || grants[0].State != "invalid" || grants[0].Reason != agent.ReasonSecretMissing {
		t.Errorf("grants %+v, %v", grants, err)
	}
	signIns, err := a.Authorizations(t.Context(), owner())
	if err != nil || len(signIns) != 2 || signIns[0].State != "failed" || signIns[0].Reason != agent.ReasonSecretMissing || signIns[1].State != "granted" {
		t.Errorf("sign-ins %+v, %v", signIns, err)
	}
	receipts, err := a.Receipts(t.Context(), owner())
	if err != nil || len(receipts) != 1 || receipts[0].Verdict != agent.VerdictVerified || !slices.Contains(receipts[0].Issues, agent.IssueSecretMissing) {
		t.Fatalf("receipts %+v, %v", receipts, err)
	}
	r, err := a.VerifyStoredReceipt(t.Context(), owner(), receipts[0].ID)
	if err != nil || r.Verdict != agent.VerdictVerified || r.Recheck.Verdict != agent.VerdictUnverifiable || !slices.Contains(r.Recheck.Issues, agent.IssueSecretMissing) {
		t.Errorf("verified again: %+v, %v", r, err)
	}
	c, err := a.Conversation(t.Context(), owner(), conversation)
	if err != nil || c.State != "closed" || c.Reason != agent.ReasonSecretMissing || len(c.Messages) == 0 {
		t.Errorf("conversation %+v, %v", c, err)
	}
	w.status(a)
}

// status expects that the signer configuration is there and its key is not.
func (w *world) status(a *agent.Agent) {
	w.t.Helper()
	v, err := a.Status(w.t.Context(), owner())
	if err != nil || v.Ready || v.Reason != agent.ReasonIdentityKeyRejected || v.KeyLost == nil || v.KeyLost.Grants != 1 || v.KeyLost.SignIns != 1 || v.KeyLost.Receipts != 1 || v.KeyLost.At.IsZero() {
		w.t.Errorf("status %+v %+v, %v", v, v.KeyLost, err)
	}
	if id := v.Identity; id == nil || id.SignerURL != signerURL || id.Issuer != signerURL || id.Mode != "device" || id.Deployment != agent.DeploymentSelfHosted {
		w.t.Errorf("identity %+v", id)
	}
}

// recovered enrols again and expects everything to work.
func (w *world) recovered(a *agent.Agent) {
	w.t.Helper()
	time.Sleep(time.Second)
	if _, err := a.Enroll(w.t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL}); err != nil {
		w.t.Fatal(err)
	}
	if v, err := a.Status(w.t.Context(), owner()); err != nil || !v.Ready || v.KeyLost != nil {
		w.t.Errorf("status after enrolling again: %+v, %v", v, err)
	}
	w.send(a, w.person(), agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusReplied, "")
}

// GR-6, GR-10, GR-11, RS-4, SG-14: a profile whose key file is gone, or another's, opens with
// what is there; all that is lost says so, once on opening and then in each view;
// the signer configuration stays, and enrolling again repairs the rest.
func TestKeyFileLost(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"missing": os.Remove,
		"another": func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte{7}, 32), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				_, c := w.used()
				if err := lose(w.keyPath()); err != nil {
					t.Fatal(err)
				}
				a := w.open()
				w.lost(a, c)
				if info, err := os.Stat(w.keyPath()); err != nil || info.Mode().Perm() != 0o600 || info.Size() != 32 {
					t.Errorf("key file %v, %v", info, err)
				}
				again := w.open()
				if n := again.Notices(); len(n) != 0 {
					t.Errorf("told twice: %q", n)
				}
				w.status(again)
				// CV-4, GR-1: the account is no longer recognized, so the conversation is over.
				w.send(again, w.person(), agent.SendRequest{Message: "Show", Conversation: c}, agent.StatusBlocked, agent.ReasonIdentityKeyRejected)
				w.recovered(again)
				w.send(again, w.person(), agent.SendRequest{Message: "Show", Conversation: c}, agent.StatusFailed, agent.ReasonClosed)
				if n := w.open().Notices(); len(n) != 0 {
					t.Errorf("told again: %q", n)
				}
			})
		})
	}
}

// A profile with nothing to lose has lost nothing.
func TestKeyOfNothingLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open()
		must(t, os.Remove(w.keyPath()))
		a := w.open()
		if v, err := a.Status(t.Context(), owner()); err != nil || v.KeyLost != nil || len(a.Notices()) != 0 {
			t.Errorf("status %+v, %v; notices %q", v, err, a.Notices())
		}
		w.enrolled()
	})
}

// GR-2: what had ended by itself is not counted as lost with the key.
func TestKeyLostAfterEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.used()
		time.Sleep(31 * 24 * time.Hour)
		if err := os.Remove(w.keyPath()); err != nil {
			t.Fatal(err)
		}
		a := w.open()
		grants, err := a.Grants(t.Context(), owner())
		if err != nil || grants[0].State != "expired" || grants[0].Reason != agent.ReasonLapsed {
			t.Errorf("grants %+v, %v", grants, err)
		}
		signIns, err := a.Authorizations(t.Context(), owner())
		if err != nil || signIns[0].State != "expired" || signIns[0].Reason != agent.ReasonConsentExpired {
			t.Errorf("sign-ins %+v, %v", signIns, err)
		}
		if v, err := a.Status(t.Context(), owner()); err != nil || v.KeyLost == nil || v.KeyLost.Grants != 0 || v.KeyLost.SignIns != 0 {
			t.Errorf("status %+v, %v", v.KeyLost, err)
		}
	})
}

// SG-14: a key that others can read is not used, and one that cannot be a key is
// not replaced: nothing is lost before the owner says so.
func TestKeyFileUnusable(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.used()
		good, err := os.ReadFile(w.keyPath())
		if err != nil {
			t.Fatal(err)
		}
		restore := func() error { return errors.Join(os.WriteFile(w.keyPath(), good, 0o600), os.Chmod(w.keyPath(), 0o600)) }
		for name, test := range map[string]struct {
			change func() error
			want   string
		}{
			"of the group": {func() error { return os.Chmod(w.keyPath(), 0o640) }, "chmod 600 " + w.keyPath()},
			"of others":    {func() error { return os.Chmod(w.keyPath(), 0o604) }, "chmod 600 " + w.keyPath()},
			"short":        {func() error { return os.WriteFile(w.keyPath(), good[:31], 0o600) }, "damaged"},
			"long":         {func() error { return os.WriteFile(w.keyPath(), append(good, 1), 0o600) }, "damaged"},
			"empty":        {func() error { return os.WriteFile(w.keyPath(), nil, 0o600) }, "damaged"},
			"a folder":     {func() error { return errors.Join(os.Remove(w.keyPath()), os.Mkdir(w.keyPath(), 0o700)) }, "no regular file"},
		} {
			if err := test.change(); err != nil {
				t.Fatal(err)
			}
			if _, err := w.tryOpen(); !errors.Is(err, agent.ErrProfileKey) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v", name, err)
			}
			if name == "a folder" {
				if err := os.Remove(w.keyPath()); err != nil {
					t.Fatal(err)
				}
			}
			if err := restore(); err != nil {
				t.Fatal(err)
			}
		}
		a := w.open()
		if v, err := a.Status(t.Context(), owner()); err != nil || !v.Ready || v.Counts.ActiveGrants != 1 || v.Counts.PendingAuthorizations != 1 || v.KeyLost != nil {
			t.Errorf("status %+v, %v", v, err)
		}
		if n := a.Notices(); len(n) != 0 {
			t.Errorf("notices %q", n)
		}
	})
}

// withKeyring runs a test, in virtual time, in a world with a keyring of its own.
func withKeyring(t *testing.T, test func(*testing.T, *world)) {
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nonexistent") // is not connected to
	keyring.MockInit()
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.Key = agent.KeyAuto
		test(t, w)
	})
}

const keyringService = "pactsigner-agent"

func (w *world) noKeyFile() {
	w.t.Helper()
	if _, err := os.Stat(w.keyPath()); !errors.Is(err, fs.ErrNotExist) {
		w.t.Errorf("there is a key file (%v)", err)
	}
}

// SG-14: a new profile's key goes to the keyring where there is one, by a name
// that is not the folder's; a keyring that cannot be reached loses nothing, and
// one that has the key no more, or another, is a loss that is told.
func TestKeyring(t *testing.T) { withKeyring(t, testKeyring) }

func testKeyring(t *testing.T, w *world) {
	a, c := w.used()
	a.Close()
	w.noKeyFile()
	s := w.stored()
	key, err := keyring.Get(keyringService, s.KeyAccount)
	if err != nil || s.KeySource != "keyring" || strings.Contains(s.KeyAccount, filepath.Base(w.dir)) || len(key) < 40 {
		t.Fatalf("settings %+v, %v", s, err)
	}
	moved := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Rename(w.dir, moved); err != nil {
		t.Fatal(err)
	}
	w.dir = moved
	ready := func() {
		t.Helper()
		a := w.open()
		if v, err := a.Status(t.Context(), owner()); err != nil || !v.Ready || v.KeyLost != nil || v.Counts.ActiveGrants != 1 || len(a.Notices()) != 0 {
			t.Errorf("status %+v, %v", v, err)
		}
	}
	ready()

	keyring.MockInitWithError(errors.New("it is locked"))
	if _, err := w.tryOpen(); !errors.Is(err, agent.ErrProfileKey) || !strings.Contains(err.Error(), "it is locked") || !strings.Contains(err.Error(), "unlock") {
		t.Errorf("locked: %v", err)
	}
	keyring.MockInit()
	w.config.Key = agent.KeyFile
	if _, err := w.tryOpen(); !errors.Is(err, agent.ErrProfileKey) {
		t.Errorf("switched off: %v", err)
	}
	w.config.Key = agent.KeyAuto
	set := func(text string) {
		t.Helper()
		if err := keyring.Set(keyringService, s.KeyAccount, text); err != nil {
			t.Fatal(err)
		}
	}
	set("short")
	if _, err := w.tryOpen(); !errors.Is(err, agent.ErrProfileKey) || !strings.Contains(err.Error(), s.KeyAccount) {
		t.Errorf("damaged: %v", err)
	}
	w.noKeyFile()
	set(key)
	ready()

	another := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32))
	set(another)
	w.lost(w.open(), c)
	if now := w.stored(); now != s {
		t.Errorf("settings %+v", now)
	}

	keyring.MockInit() // a new keyring
	b := w.open()
	if n := b.Notices(); len(n) != 1 || !strings.Contains(n[0], "is gone") {
		t.Errorf("notices %q", n)
	}
	now := w.stored()
	if text, err := keyring.Get(keyringService, now.KeyAccount); err != nil || now.KeySource != "keyring" || now.KeyAccount == s.KeyAccount || text == another || text == key {
		t.Errorf("settings %+v, %v", now, err)
	}
	w.noKeyFile()
	w.recovered(b)
}

// SG-14: without a keyring a new profile uses a key file, unless that is ruled
// out; a profile with a key file keeps it.
func TestNoKeyring(t *testing.T) { withKeyring(t, testNoKeyring) }

func testNoKeyring(t *testing.T, w *world) {
	keyring.MockInitWithError(errors.New("no such service"))
	w.config.Key = agent.KeyKeyring
	if _, err := w.tryOpen(); !errors.Is(err, agent.ErrProfileKey) || !strings.Contains(err.Error(), "no such service") {
		t.Errorf("keyring or nothing: %v", err)
	}
	w.noKeyFile()
	w.config.Key = agent.KeyAuto
	w.enrolled()
	if s := w.stored(); s.KeySource != "file" || s.KeyAccount != "" {
		t.Errorf("settings %+v", s)
	}
	keyring.MockInit()
	w.config.Key = agent.KeyKeyring
	if _, err := w.tryOpen(); !errors.Is(err, agent.ErrProfileKey) {
		t.Errorf("a file where only a keyring may be: %v", err)
	}
	w.config.Key = agent.KeyAuto
	w.edit(`UPDATE settings SET data = CAST(json_remove(data, '$.KeySource', '$.KeyAccount') AS BLOB)`) // an older profile
	if v, err := w.open().Status(t.Context(), owner()); err != nil || !v.Ready {
		t.Errorf("status %+v, %v", v, err)
	}
	// Where the library would have to start a bus, there is none.
	if runtime.GOOS == "linux" {
		w := newWorld(t)
		w.config.Key = agent.KeyAuto
		must(t, os.Setenv("DBUS_SESSION_BUS_ADDRESS", "autolaunch:")) // withKeyring resets it
		w.open()
		if s := w.stored(); s.KeySource != "file" {
			t.Errorf("settings %+v", s)
		}
	}
}

// ID-7: a key is the profile's, so that many processes that find it gone at once
// agree on one, and one of them tells.
func TestKeyLostTogether(t *testing.T) {
	w := newWorld(t)
	w.enrolled()
	if err := os.Remove(w.keyPath()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	agents := make([]*agent.Agent, 4)
	for i := range agents {
		store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		wg.Go(func() {
			a, err := agent.Open(agent.Config{Dir: w.dir, Store: store, Key: agent.KeyFile})
			if err != nil {
				t.Error(err)
				return
			}
			agents[i] = a
		})
	}
	wg.Wait()
	told := 0
	for _, a := range agents {
		if a == nil {
			t.FailNow()
		}
		defer a.Close()
		told += len(a.Notices())
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}

// racing lets another program run before the first write.
type racing struct {
	agent.Store
	once  sync.Once
	other func()
}

func (r *racing) Update(ctx context.Context, fn func(agent.Tx) error) error {
	r.once.Do(r.other)
	return r.Store.Update(ctx, fn)
}

// Of two programs that find the keyring's key gone, or make the profile, the first
// to write wins: the other takes its key, and its own is removed.
func TestKeyringTwoAtOnce(t *testing.T) {
	for _, fresh := range []bool{true, false} {
		withKeyring(t, func(t *testing.T, w *world) { testTwoAtOnce(t, w, fresh) })
	}
}

func testTwoAtOnce(t *testing.T, w *world, fresh bool) {
	if !fresh {
		w.enrolled()
		keyring.MockInit()
	}
	store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var first *agent.Agent
	network := func(rules agent.URLRules, policy egress.Policy) agent.Egress { return &wire{w, rules, policy} }
	second, err := agent.Open(agent.Config{Dir: w.dir, Network: network, Store: &racing{Store: store, other: func() { first = w.open() }}})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	want := 1
	if fresh {
		want = 0
	}
	if len(first.Notices()) != want || len(second.Notices()) != 0 {
		t.Errorf("fresh %v: notices %q and %q", fresh, first.Notices(), second.Notices())
	}
	if _, err := keyring.Get(keyringService, w.stored().KeyAccount); err != nil {
		t.Errorf("fresh %v: %v", fresh, err)
	}
	for _, a := range []*agent.Agent{first, second} {
		for _, c := range check(t, a, owner()) {
			if c.Name == "profile key" && c.State != agent.CheckOK && (fresh || c.State != agent.CheckWarning) {
				t.Errorf("fresh %v: %+v", fresh, c)
			}
		}
	}
}

// GR-6: a program that runs on with a key that was replaced says so; what it
// cannot open is not lost, and it keeps nothing that nobody can open.
func TestKeyReplacedMeanwhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		old, _ := w.used()
		if err := os.Remove(w.keyPath()); err != nil {
			t.Fatal(err)
		}
		w.recovered(w.open())
		if _, err := old.Send(t.Context(), w.person(), agent.SendRequest{Business: cardURL, Message: "Show", Scopes: []string{"trips:read"}}); !errors.Is(err, agent.ErrProfileKey) {
			t.Errorf("send: %v", err)
		}
		if _, err := old.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL}); !errors.Is(err, agent.ErrProfileKey) {
			t.Errorf("enrol: %v", err)
		}
		if v, err := w.open().Status(t.Context(), owner()); err != nil || !v.Ready || v.Counts.ActiveGrants != 1 {
			t.Errorf("status %+v, %v", v, err)
		}
	})
}
