// Package chaos breaks a fleet of signers in every way that design.md names, under
// load, and holds it to what is promised: what callers see, that a kill stops what
// it says, that no verifier fails, that it recovers by itself, and that what should
// survive does.
//
// `go test` runs the short form. `make chaos` runs it with -full, with the outages
// as long as they are in the field, and writes docs/chaos.md with -write.
package chaos

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/test/fleet"
	"github.com/pactsigner/pactsigner/test/servers"
)

var (
	full  = flag.Bool("full", false, "outages of the length that they have in the field")
	write = flag.Bool("write", false, "write the results to docs/chaos.md; with -full")
	rate  = flag.Int("rate", 60, "requests a second")
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := fleet.Clean(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// lasting is how long something lasts, in the short form and in the full one.
func lasting(short, long time.Duration) time.Duration {
	if *full {
		return long
	}
	return short
}

// scenario is one thing that goes wrong.
type scenario struct {
	name string
	// what is done, for the table.
	what func() string
	run  func(e *env)
	// ownVault: it does something to Vault.
	ownVault bool
}

// TestChaos runs every scenario on a fleet and a Redis of its own. Those that do
// nothing to Vault share one. The full form runs one after the other, so that the
// numbers are of an idle machine.
func TestChaos(t *testing.T) {
	fleet.Build(t)
	shared := servers.StartVault(t, servers.VaultOptions{})
	rows := make([]row, len(scenarios))
	t.Run("scenarios", func(t *testing.T) {
		for i, s := range scenarios {
			t.Run(s.name, func(t *testing.T) {
				if !*full {
					t.Parallel()
				}
				e := &env{t: t, vault: shared, prefix: fmt.Sprintf("chaos-%d", i), row: row{Name: s.name, What: s.what()}}
				if s.ownVault {
					e.vault = servers.StartVault(t, servers.VaultOptions{})
				}
				s.run(e)
				e.finish()
				rows[i] = e.row
			})
		}
	})
	var kills killTimes
	t.Run("kill to effective", func(t *testing.T) { kills = measureKills(t, shared) })
	if *write && *full && !t.Failed() {
		writeResults(t, rows, kills)
	}
}

// env is what a scenario runs on.
type env struct {
	t       *testing.T
	vault   *servers.Vault
	prefix  string // of this fleet's keys in Vault
	redis   *servers.Redis
	proxies []*servers.Proxy // between each replica and Redis
	fleet   *fleet.Fleet
	load    *fleet.Load
	row     row

	callers     []*fleet.Caller
	subjects    map[string]string // by caller
	invalidated *fleet.Caller     // a device
	revoked     *fleet.Caller     // a credential
	stopped     *fleet.Caller     // a device under a kill of its own; nil: lifted
	splits      bool              // the store is two for a while
	lost        bool              // the store was lost for good, by the operator's word
}

// begin starts a Redis behind a proxy for each replica, and a fleet of three, makes
// callers and what must outlive everything, and loads it.
func (e *env) begin(o fleet.Options) {
	e.t.Helper()
	e.redis = servers.StartRedis(e.t, servers.RedisOptions{})
	e.through(e.redis, 0, &o)
	e.start(o, false)
}

// through has every replica reach Redis through a proxy of its own; the last
// settings are for replicas that are added.
func (e *env) through(r *servers.Redis, acks int, o *fleet.Options) {
	for range 4 {
		e.proxies = append(e.proxies, servers.NewProxy(e.t, r.Addr()))
	}
	each := o.Each
	o.Each = func(i int) fleet.Settings {
		s := fleet.OnRedis(e.proxies[i].Addr(), acks)
		if each != nil {
			s = s.With(each(i))
		}
		return s
	}
}

func (e *env) start(o fleet.Options, wrapped bool) {
	e.t.Helper()
	e.prepare(o, wrapped)
	for _, r := range e.fleet.Replicas {
		r.Start(e.t)
	}
	for _, r := range e.fleet.Replicas {
		r.WaitReady(e.t, fleet.Patience)
	}
	e.populate()
	e.load = e.fleet.StartLoad(e.t, fleet.LoadOptions{Rate: *rate, Callers: e.callers, Audience: fleet.Audience, NoReplays: e.splits})
	e.load.Settle(e.t, time.Now(), fleet.Patience)
}

// prepare makes a fleet of three that does not run yet.
func (e *env) prepare(o fleet.Options, wrapped bool) {
	e.t.Helper()
	o.Replicas = 3
	o.Backend = fleet.OnVault(e.t, e.vault, e.prefix, wrapped).With(o.Backend)
	e.fleet = fleet.New(e.t, o)
}

// populate makes callers that load the fleet, and what design.md says survives.
func (e *env) populate() {
	e.t.Helper()
	f, via := e.fleet, e.fleet.Replicas[0]
	e.callers, _ = f.Populate(e.t, 3, 3)
	e.invalidated, e.stopped = fleet.NewDevice(e.t, "invalidated device"), fleet.NewDevice(e.t, "stopped device")
	f.Enrol(e.t, via, e.invalidated)
	f.Enrol(e.t, via, e.stopped)
	e.revoked = f.NewCredential(e.t, via, "revoked-credential")
	f.MustPactctl(e.t, via, "devices", "invalidate", "--reason", "test", "--", e.invalidated.ID) // an id may begin with a dash
	f.MustPactctl(e.t, via, "credentials", "revoke", e.revoked.ID, "--reason", "test")
	if _, err := f.ThrowKill(via, nil, "--device", e.stopped.ID); err != nil {
		e.t.Fatalf("%v", err)
	}
	e.subjects = map[string]string{}
	for _, c := range e.callers {
		rec := f.Ask(e.t, via, c, "status")
		if rec.Status != 200 || rec.Subject == "" {
			e.t.Fatalf("status of %s: %d %s", c.Name, rec.Status, rec.Problem)
		}
		e.subjects[c.Name] = rec.Subject
	}
}

// recover waits until every replica signs again, with nobody's help, and notes how
// long that took from a moment on.
func (e *env) recover(from time.Time) {
	e.t.Helper()
	e.row.Recovery = append(e.row.Recovery, e.load.Settle(e.t, from, lasting(40*time.Second, 90*time.Second)))
}

// kill throws a kill of everything, and lets callers try for a while.
func (e *env) kill(via *fleet.Replica, line func(string)) fleet.Kill {
	e.t.Helper()
	k := e.load.Kill(e.t, via, line)
	e.row.Kills = append(e.row.Kills, k)
	return k
}

// resume lifts everything, the stopped device too.
func (e *env) resume(via *fleet.Replica) {
	e.t.Helper()
	e.load.Resume(e.t, via)
	e.stopped = nil
}

// finish checks what had to survive, and what the load has seen.
func (e *env) finish() {
	e.t.Helper()
	if e.load == nil {
		return
	}
	e.survived()
	report := e.load.Stop()
	report.Check(e.t)
	e.row.Report = report
	for _, p := range report.Phases {
		e.t.Logf("%s", p)
	}
	for _, k := range e.row.Kills {
		e.t.Logf("effective %v after it was thrown, %d confirmed, %d silent", k.After, k.Confirmed, k.Silent)
	}
	e.t.Logf("longest %v, recovered after %v, %d tokens after effective, %d failed verifications",
		report.Longest.Round(time.Millisecond), e.row.Recovery, report.AfterEffective, report.FailedVerifications())
}

// survived asks every replica for what design.md says survives.
func (e *env) survived() {
	e.t.Helper()
	f := e.fleet
	want := func(r *fleet.Replica, c *fleet.Caller, op string, status int) {
		e.t.Helper()
		if rec := f.Ask(e.t, r, c, op); rec.Status != status || rec.Problem != "" {
			e.t.Errorf("%s of %s at replica %d: %d %s, want %d", op, c.Name, r.Index, rec.Status, rec.Problem, status)
		}
	}
	for _, r := range f.Replicas {
		if r.Away() || r.Ready() != nil {
			continue // one that is meant not to serve
		}
		for _, c := range e.callers {
			if rec := f.Ask(e.t, r, c, "status"); rec.Status != 200 || rec.Subject != e.subjects[c.Name] {
				e.t.Errorf("%s at replica %d: %d, subject %q, was %q", c.Name, r.Index, rec.Status, rec.Subject, e.subjects[c.Name])
			}
		}
		if !e.lost {
			want(r, e.invalidated, "sign", 401)
			want(r, e.invalidated, "enroll", 401)
			want(r, e.revoked, "sign", 401)
		}
		if e.stopped != nil {
			want(r, e.stopped, "sign", 403)
		}
	}
	via := f.Replicas[0]
	if out := f.MustPactctl(e.t, via, "audiences", "list"); !strings.Contains(out, fleet.Audience) {
		e.t.Errorf("the audience is gone: %s", out)
	}
	if out, err := f.Pactctl(via, "audit", "verify"); err != nil {
		e.t.Errorf("the audit log does not verify: %v %s", err, out)
	}
	e.row.Survived = "devices, credentials, subjects, audiences, audit chain"
	if !e.lost {
		e.row.Survived = "devices, credentials, subjects, invalidations, revocations, kills, audiences, audit chain"
	}
}
