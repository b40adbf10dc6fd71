package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/test/fleet"
	"github.com/pactsigner/pactsigner/test/servers"
)

var scenarios = []scenario{
	{"vault sealed", says("Vault is sealed for %v, then unsealed", 4*time.Second, 30*time.Second), vaultSealed, true},
	{"vault restarted", saysOnce("Vault is stopped, started again and unsealed"), vaultRestarted, true},
	{"vault token revoked", saysOnce("every token that Vault gave to a signer is revoked"), vaultTokenRevoked, true},
	{"vault paused", says("Vault stands still (SIGSTOP) for %v", 5*time.Second, 30*time.Second), vaultPaused, true},
	{"vault paused, wrapped custody", says("the same for %v, with the keys unwrapped in the signers' memory; then everything is killed", 5*time.Second, 30*time.Second), vaultPausedWrapped, true},
	{"redis killed", says("Redis is killed (SIGKILL) and started again after %v", 4*time.Second, 30*time.Second), redisKilled, false},
	{"redis failover that loses writes", saysOnce("the copies of Redis fall behind, everything is killed, the master dies with that write, Sentinel promotes a copy"), redisFailover, false},
	{"split brain", says("a copy of Redis is promoted, and one replica still reaches the old master, which takes itself for one; everything is killed; %v later the old master is demoted", 5*time.Second, 30*time.Second), splitBrain, false},
	{"redis wiped", says("Redis is wiped (FLUSHALL); %v later the loss is accepted", 4*time.Second, 30*time.Second), redisWiped, false},
	{"store rolled back", says("Redis is put back to an older copy; %v later that is accepted", 4*time.Second, 30*time.Second), storeRolledBack, false},
	{"replica paused in the middle of a kill", says("a replica stands still for %v, everything is killed, and it goes on in the middle of that", 3*time.Second, 60*time.Second), pausedInKill, false},
	{"replica starts in the middle of a kill", saysOnce("a replica stands still, everything is killed, and a fourth replica starts in the middle of that"), startsInKill, false},
	{"clock off by 15 s", says("the clock of a replica is 15 s ahead; everything is killed after %v", 2*time.Second, 20*time.Second), func(e *env) { clockOff(e, 15*time.Second) }, false},
	{"clock off by 25 s", says("the clock of a replica is 25 s ahead; everything is killed after %v", 2*time.Second, 20*time.Second), func(e *env) { clockOff(e, 25*time.Second) }, false},
	{"replica killed in a rotation", saysOnce("keys rotate every 5.5 s (times scaled by 150), and a replica is killed (SIGKILL) and started again around each change"), killedInRotation, false},
	{"network cut to redis", says("a replica is cut off from Redis for %v, then its packets are swallowed for as long", 4*time.Second, 30*time.Second), networkCut, false},
	{"kill under load", saysOnce("everything is killed and lifted, three times"), killUnderLoad, false},
}

func saysOnce(what string) func() string { return func() string { return what } }

func says(what string, short, long time.Duration) func() string {
	return func() string { return fmt.Sprintf(what, lasting(short, long)) }
}

func vaultSealed(e *env) {
	e.begin(fleet.Options{})
	e.load.Phase("sealed")
	e.vault.Seal()
	e.load.Stay(lasting(4*time.Second, 30*time.Second))
	e.load.Phase("unsealed")
	e.vault.Unseal()
	e.recover(time.Now())
}

func vaultRestarted(e *env) {
	e.begin(fleet.Options{})
	e.load.Phase("restarted")
	e.vault.Restart()
	from := time.Now()
	e.load.Phase("back")
	e.recover(from)
}

func vaultTokenRevoked(e *env) {
	e.begin(fleet.Options{})
	e.load.Phase("revoked")
	from := time.Now()
	if n := fleet.RevokeTokens(e.t, e.vault); n < 3 {
		e.t.Fatalf("%d tokens were revoked, want each replica's", n)
	}
	e.recover(from)
}

func vaultPaused(e *env) {
	e.begin(fleet.Options{})
	e.load.Phase("paused")
	e.vault.Pause()
	e.load.Stay(lasting(5*time.Second, 30*time.Second))
	e.load.Phase("resumed")
	e.vault.Resume()
	e.recover(time.Now())
}

// Keys that were unwrapped sign on without Vault.
func vaultPausedWrapped(e *env) {
	e.redis = servers.StartRedis(e.t, servers.RedisOptions{})
	var o fleet.Options
	e.through(e.redis, 0, &o)
	e.start(o, true)
	e.load.Phase("paused")
	e.vault.Pause()
	e.load.Stay(lasting(5*time.Second, 30*time.Second))
	seen := e.load.Last(lasting(4*time.Second, 29*time.Second))
	if seen[200] == 0 || len(seen) > 1 {
		e.t.Errorf("while Vault was away signs were answered %v, want 200 alone", seen)
	}
	e.load.Phase("killed")
	k := e.kill(e.fleet.Replicas[0], nil)
	if !strings.Contains(k.Output, "Not yet durable in custody") {
		e.t.Errorf("a kill while custody is away did not say so: %s", k.Output)
	}
	e.load.Stay(2 * time.Second)
	e.load.Phase("resumed")
	e.vault.Resume()
	from := time.Now()
	e.resume(e.fleet.Replicas[0])
	e.recover(from)
}

func redisKilled(e *env) {
	e.begin(fleet.Options{})
	e.load.Phase("killed")
	e.redis.Kill()
	e.load.Stay(lasting(4*time.Second, 30*time.Second))
	e.load.Phase("started")
	e.redis.Start()
	e.recover(time.Now())
}

// unconfirmed is how a kill says that the store's copies do not have it.
var unconfirmed = regexp.MustCompile(`(have|has) not\s+(acknowledged|confirmed)`)

// The copies are out of step when everything is killed: the write stands on the
// master alone, which dies. The kill must hold all the same, from custody.
func redisFailover(e *env) {
	e.redis = servers.StartRedis(e.t, servers.RedisOptions{})
	copies := []*servers.Redis{
		servers.StartRedis(e.t, servers.RedisOptions{ReplicaOf: e.redis}),
		servers.StartRedis(e.t, servers.RedisOptions{ReplicaOf: e.redis}),
	}
	e.inStep(e.redis, 2)
	sentinels := servers.StartSentinels(e.t, e.redis, 3)
	e.splits = true // what the dead master had is another store
	e.start(fleet.Options{Backend: fleet.OnSentinels(sentinels, 1)}, false)

	e.load.Phase("copies behind")
	for _, c := range copies { // a login that the master refuses keeps them from it
		c.Do("CONFIG", "SET", "masteruser", "nobody")
		c.Do("CONFIG", "SET", "masterauth", "wrong")
		c.Do("CLIENT", "KILL", "TYPE", "master")
	}
	before, dead := sentinels.MasterAddr(), false
	k := e.kill(e.fleet.Replicas[0], func(line string) {
		if dead || !strings.Contains(line, "is thrown") {
			return
		}
		dead = true
		e.load.Stay(time.Second) // the wait for effective has begun
		e.load.Phase("master dead")
		e.redis.Kill()
		for _, c := range copies {
			c.Do("CONFIG", "SET", "masteruser", "")
			c.Do("CONFIG", "SET", "masterauth", "")
		}
		sentinels.AwaitFailover(before)
		e.load.Phase("copy promoted")
	})
	if !unconfirmed.MatchString(k.Output) {
		e.t.Errorf("the kill did not say that the copies do not have it: %s", k.Output)
	}
	e.load.Phase("effective")
	e.eventually("every replica says again that everything is stopped", func() bool {
		last := e.load.Last(time.Second)
		return last[403] > 20 && last[403] > 9*last[503]
	})
	e.load.Phase("lifted")
	from := time.Now()
	e.resume(e.fleet.Replicas[0])
	e.recover(from)
}

// inStep waits until a master counts so many copies.
func (e *env) inStep(master *servers.Redis, copies int) {
	e.t.Helper()
	e.eventually("the copies are in step", func() bool {
		return strings.Count(fmt.Sprint(master.Do("INFO", "replication")), "state=online") == copies
	})
}

// Two replicas follow the promoted copy; the third still has the old master, which
// takes itself for one. Then it is demoted, and the third finds the new one.
func splitBrain(e *env) {
	old := servers.StartRedis(e.t, servers.RedisOptions{})
	next := servers.StartRedis(e.t, servers.RedisOptions{ReplicaOf: old})
	other := servers.StartRedis(e.t, servers.RedisOptions{ReplicaOf: old})
	e.inStep(old, 2)
	e.redis, e.splits = old, true
	var o fleet.Options
	e.through(old, 1, &o)
	e.start(o, false)

	e.load.Phase("split")
	// The old master keeps neither copy: it is alone on its side.
	next.Do("REPLICAOF", "NO", "ONE")
	host, port, _ := strings.Cut(next.Addr(), ":")
	other.Do("REPLICAOF", host, port)
	for _, p := range e.proxies[:2] {
		p.SetTarget(next.Addr())
		p.Cut() // what was connected finds the new way
		p.Heal()
	}
	e.kill(e.fleet.Replicas[0], nil)
	e.load.Phase("split, killed")
	e.load.Stay(lasting(5*time.Second, 30*time.Second))
	e.load.Phase("demoted")
	old.Do("REPLICAOF", host, port)
	e.load.Stay(2 * time.Second)
	e.proxies[2].SetTarget(next.Addr())
	e.load.Phase("lifted")
	from := time.Now()
	e.resume(e.fleet.Replicas[0])
	e.recover(from)
	e.redis = next
}

// stands503 waits until every answer is 503, stays, and returns what `pactctl state
// status` says meanwhile.
func (e *env) stands503(d time.Duration) string {
	e.t.Helper()
	fleet.Eventually(e.t, 15*time.Second, "every answer is 503", func() bool {
		last := e.load.Last(time.Second)
		return last[503] > 0 && len(last) == 1
	})
	e.load.Stay(d)
	if last := e.load.Last(d); len(last) > 1 || last[503] == 0 {
		e.t.Errorf("answers after the store was found wanting: %v, want 503 alone", last)
	}
	for _, r := range e.fleet.Replicas {
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "accept-loss") {
			e.t.Errorf("replica %d's /readyz does not say what to do: %v", r.Index, err)
		}
	}
	out, err := e.fleet.Pactctl(e.fleet.Replicas[1], "state", "status")
	if err == nil || !strings.Contains(out, "accept-loss") {
		e.t.Errorf("state status does not say what to do: %v %s", err, out)
	}
	return out
}

var storeOption = regexp.MustCompile(`--store\s+([A-Z0-9]+)`)

// acceptLoss does what state status says.
func (e *env) acceptLoss(status string) {
	e.t.Helper()
	m := storeOption.FindStringSubmatch(status)
	if m == nil {
		e.t.Fatalf("state status names no store: %s", status)
	}
	e.fleet.MustPactctl(e.t, e.fleet.Replicas[1], "state", "accept-loss", "--store", m[1], "--reason", "test")
}

// A wiped store is never taken for an empty one. Who enrols again has the same
// subject.
func redisWiped(e *env) {
	e.begin(fleet.Options{})
	e.load.Phase("wiped")
	e.redis.Wipe()
	status := e.stands503(lasting(4*time.Second, 30*time.Second))
	e.load.Phase("accepted", 401, 422)
	e.acceptLoss(status)
	e.lost = true
	e.eventually("callers are unknown", func() bool {
		last := e.load.Last(time.Second)
		return last[401] > 0 && last[503] == 0
	})
	f, via := e.fleet, e.fleet.Replicas[0]
	if rec := f.Ask(e.t, via, e.invalidated, "enroll"); rec.Status != 401 {
		e.t.Errorf("enrolment after an accepted loss: %d, want it closed (401)", rec.Status)
	}
	f.MustPactctl(e.t, via, "state", "open-enrolment")
	from := time.Now()
	f.MustPactctl(e.t, via, "audiences", "set", "https://provider.example", fleet.Audience)
	for i, c := range e.callers {
		if !c.Device() {
			e.replaceCredential(i)
			continue
		}
		e.eventually(c.Name+" enrols again", func() bool { return f.Ask(e.t, via, c, "enroll").Status == 200 })
	}
	f.Enrol(e.t, via, e.stopped) // its kill came back from custody
	e.load.Phase("enrolled again", 401, 422)
	e.recover(from)
}

// replaceCredential makes a new credential in the place of a lost one. Its principal
// is another, and so is its subject.
func (e *env) replaceCredential(i int) {
	e.t.Helper()
	via := e.fleet.Replicas[0]
	again := e.fleet.NewCredential(e.t, via, e.callers[i].Name+"-again")
	e.load.Replace(e.callers[i], again)
	e.callers[i] = again
	e.subjects[again.Name] = e.fleet.Ask(e.t, via, again, "status").Subject
}

// A store that is older than what custody has seen is not served from.
func storeRolledBack(e *env) {
	e.begin(fleet.Options{})
	e.load.Phase("going back")
	kept := filepath.Join(e.t.TempDir(), "appendonlydir")
	e.redis.Stop()
	e.copyTree(e.redis.AppendOnlyDir(), kept)
	e.redis.Start()
	e.load.Settle(e.t, time.Now(), fleet.Patience)
	late := e.fleet.NewCredential(e.t, e.fleet.Replicas[0], "made-later")
	e.fleet.MustPactctl(e.t, e.fleet.Replicas[0], "credentials", "revoke", late.ID, "--reason", "test")
	e.redis.Stop()
	if err := os.RemoveAll(e.redis.AppendOnlyDir()); err != nil {
		e.t.Fatal(err)
	}
	e.copyTree(kept, e.redis.AppendOnlyDir())
	e.load.Phase("rolled back")
	e.redis.Start()
	status := e.stands503(lasting(4*time.Second, 30*time.Second))
	e.load.Phase("accepted", 401) // enrolment is closed
	from := time.Now()
	e.acceptLoss(status)
	e.recover(from)
	e.fleet.MustPactctl(e.t, e.fleet.Replicas[0], "state", "open-enrolment")
}

func (e *env) copyTree(from, to string) {
	e.t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		e.t.Fatal(err)
	}
}

// The replica that stood still wakes up while the barrier waits for it, and again
// after the kill is effective.
func pausedInKill(e *env) {
	e.begin(fleet.Options{})
	frozen, via := e.fleet.Replicas[2], e.fleet.Replicas[0]
	for _, when := range []string{"in the middle", "after effective"} {
		e.load.Phase("paused, to wake " + when)
		frozen.Pause(e.t)
		e.load.Stay(lasting(3*time.Second, 60*time.Second))
		e.kill(via, func(line string) {
			if when == "in the middle" && strings.Contains(line, "is thrown") {
				frozen.Resume(e.t)
			}
		})
		e.load.Phase("effective, to wake " + when)
		if when == "after effective" {
			frozen.Resume(e.t)
		}
		e.load.Stay(3 * time.Second)
		e.load.Phase("lifted")
		from := time.Now()
		e.resume(via)
		e.recover(from)
	}
}

func startsInKill(e *env) {
	e.begin(fleet.Options{})
	frozen, via := e.fleet.Replicas[2], e.fleet.Replicas[0]
	fresh := e.fleet.Add(e.t)
	frozen.Pause(e.t)
	e.load.Phase("killing")
	e.kill(via, func(line string) {
		if strings.Contains(line, "is thrown") {
			fresh.Start(e.t)
			e.load.Join(e.t, fresh)
		}
	})
	e.load.Phase("effective")
	e.load.Stay(4 * time.Second)
	frozen.Resume(e.t)
	e.load.Stay(time.Second)
	e.load.Phase("lifted")
	from := time.Now()
	e.resume(via)
	e.recover(from)
}

// Up to 20 s off a replica signs, but is not ready; beyond it does not sign.
func clockOff(e *env, off time.Duration) {
	e.redis = servers.StartRedis(e.t, servers.RedisOptions{})
	o := fleet.Options{
		Each: func(i int) fleet.Settings {
			if i == 2 {
				return fleet.Settings{"development.clockOffset": off.String()}
			}
			return nil
		},
	}
	e.through(e.redis, 0, &o)
	e.prepare(o, false)
	for _, r := range e.fleet.Replicas {
		r.Start(e.t)
	}
	for _, r := range e.fleet.Replicas[:2] {
		r.WaitReady(e.t, fleet.Patience)
	}
	e.populate()
	e.load = e.fleet.StartLoad(e.t, fleet.LoadOptions{Rate: *rate, Callers: e.callers, Audience: fleet.Audience})
	e.load.Stay(lasting(2*time.Second, 20*time.Second))
	if err := e.fleet.Replicas[2].Ready(); err == nil {
		e.t.Errorf("a replica whose clock is %v off says that it is ready", off)
	}
	if beyond := off > 20*time.Second; !beyond {
		// It may have begun only now: nobody waited until it was ready.
		e.eventually(fmt.Sprintf("a replica whose clock is %v off signs", off), func() bool { return e.load.ByReplica(2)[200] > 0 })
	} else if signs := e.load.ByReplica(2); signs[200] > 0 {
		e.t.Errorf("a replica whose clock is %v off answers %v", off, signs)
	}
	e.load.Phase("killing")
	e.kill(e.fleet.Replicas[0], nil)
	e.load.Phase("effective")
	e.load.Stay(3 * time.Second)
	e.load.Phase("lifted")
	e.resume(e.fleet.Replicas[0])
	// Since the lift, that is: nobody signs under the kill.
	e.eventually("the others sign", func() bool { return e.load.Last(time.Second)[200] > 20 })
}

func killedInRotation(e *env) {
	const scale = 150
	rounds := 3
	if *full {
		rounds = 9
	}
	e.begin(fleet.Options{
		TimeScale: scale, TokenTTL: 300 * time.Second,
		Period: 825 * time.Second, Lead: 825 * time.Second, Overlap: 900 * time.Second,
	})
	e.load.Phase("killing")
	for n := range rounds {
		victim := e.fleet.Replicas[n%3]
		kids := len(e.load.KIDs())
		e.eventually("the next key signs", func() bool { return len(e.load.KIDs()) > kids })
		// The key after it is being made and published now.
		victim.Kill()
		e.load.Stay(time.Second)
		victim.Start(e.t)
	}
	e.load.Phase("left alone")
	kids := len(e.load.KIDs())
	e.eventually("keys rotate on", func() bool { return len(e.load.KIDs()) > kids })
	e.recover(time.Now())
}

func networkCut(e *env) {
	e.begin(fleet.Options{})
	d := lasting(4*time.Second, 30*time.Second)
	for _, how := range []struct {
		name  string
		spoil func(*servers.Proxy)
	}{{"cut", (*servers.Proxy).Cut}, {"swallowed", (*servers.Proxy).Hang}} {
		e.load.Phase(how.name)
		how.spoil(e.proxies[2])
		e.load.Stay(d)
		e.load.Phase("healed")
		e.proxies[2].Heal()
		e.recover(time.Now())
	}
}

func killUnderLoad(e *env) {
	e.begin(fleet.Options{})
	for range 3 {
		e.load.Phase("killing")
		k := e.kill(e.fleet.Replicas[0], nil)
		if k.Silent != 0 || k.Confirmed != 3 {
			e.t.Errorf("%d confirmed, %d silent", k.Confirmed, k.Silent)
		}
		e.load.Phase("effective")
		e.load.Stay(lasting(time.Second, 3*time.Second))
		e.load.Phase("lifted")
		from := time.Now()
		e.resume(e.fleet.Replicas[1])
		e.recover(from)
	}
}

func (e *env) eventually(what string, ok func() bool) {
	e.t.Helper()
	fleet.Eventually(e.t, fleet.Patience, what, ok)
}
