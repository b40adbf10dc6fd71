package probe_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/probe"
	"github.com/pactsigner/pactsigner/test/fleet"
	"github.com/pactsigner/pactsigner/test/servers"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := fleet.Clean(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// report is what pactctl probe -o json prints.
type report struct {
	OK     bool
	Checks []struct{ Check, Outcome, Detail, Remedy string }
}

func (r report) ended(outcome probe.Outcome) []string {
	list := []string{}
	for _, c := range r.Checks {
		if c.Outcome == string(outcome) {
			list = append(list, c.Check)
		}
	}
	return list
}

// Three replicas on a real Vault and a real Redis pass every check, while their key is
// rotated and revoked too; a replica that is stopped is found, and so is one that lost
// store and custody and did not hear of a change.
func TestFleet(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	v := servers.StartVault(t, servers.VaultOptions{})
	away := []*servers.Proxy{servers.NewProxy(t, redis.Addr()), servers.NewProxy(t, strings.TrimPrefix(v.Addr, "http://"))} // the third replica's ways to them
	backend := fleet.OnVault(t, v, "probe", false).With(fleet.OnRedis(redis.Addr(), 0))
	f := fleet.Start(t, fleet.Options{Replicas: 3, TimeScale: 4, Backend: backend, Each: func(i int) fleet.Settings {
		if i < 2 {
			return nil
		}
		return fleet.OnRedis(away[0].Addr(), 0).With(fleet.Settings{"custody.vault.addresses": []any{"http://" + away[1].Addr()}})
	}})
	a := f.Replicas[0]
	f.MustPactctl(t, a, "probe", "setup", "--issuer", f.Issuer)
	state := t.TempDir()
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	ask := func(more ...string) (report, error) {
		args := append([]string{
			"probe", "--issuer", f.Issuer, "--state", state, "--connect-to", a.Public, "--grpc", a.GRPC, "-o", "json", "--deadline", "20s", "--timeout", "20s",
			"--replicas", strings.Join([]string{f.Replicas[0].Public, f.Replicas[1].Public, f.Replicas[2].Public}, ","),
		}, more...)
		out, err := f.Pactctl(a, args...)
		var r report
		if wrong := json.Unmarshal([]byte(out), &r); wrong != nil {
			t.Fatalf("%v: %v: %s", err, wrong, out)
		}
		return r, err
	}
	healthy := func(when string) {
		t.Helper()
		r, err := ask()
		if err != nil || !r.OK || !slices.Equal(r.ended(probe.Passed), probe.Checks()) {
			t.Fatalf("%s: %v, %+v", when, err, r)
		}
		for _, c := range r.Checks {
			switch {
			case c.Check == probe.CheckReplicas && !strings.HasPrefix(c.Detail, "3 replicas agree"),
				// One that has just been killed counts for a while.
				c.Check == probe.CheckSchedule && !strings.Contains(c.Detail, "at 3 replicas") && !strings.Contains(c.Detail, "at 4 replicas"):
				t.Errorf("%s: %+v", when, c)
			}
		}
	}
	healthy("at first")
	if _, err := os.Stat(filepath.Join(state, "device.key")); err != nil {
		t.Error(err)
	}

	// No change of the keys is a false alarm, whenever a round falls into it.
	f.MustPactctl(t, a, "rotate", "--issuer", f.Issuer)
	healthy("just after a rotation began")
	emergency := func() {
		t.Helper()
		var list struct{ Keys []struct{ Kid, State string } }
		if err := json.Unmarshal([]byte(f.MustPactctl(t, a, "keys", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		for _, k := range list.Keys {
			if k.State == "signing" {
				f.MustPactctl(t, a, "rotate", "--emergency", "--compromised", k.Kid, "--reason", "test", "--issuer", f.Issuer)
			}
		}
	}
	emergency()
	healthy("just after an emergency")

	// A stopped replica does not answer.
	f.Replicas[1].Kill()
	r, err := ask("--settle", "1s")
	if err == nil || !strings.Contains(err.Error(), "exit status 4") || !slices.Contains(r.ended(probe.Failed), probe.CheckReplicas) {
		t.Errorf("with a replica stopped: %v %+v", err, r)
	}
	f.Replicas[1].Start(t)
	f.Replicas[1].WaitReady(t, 30*time.Second)
	healthy("with the replica back")

	// A replica that cannot hear of a change serves the old key set, until it is so
	// stale that it serves none; neither agrees. Of custody alone it would hear, in time.
	for _, way := range away {
		way.Cut()
	}
	emergency()
	r, err = ask("--settle", "1s")
	if err == nil || !slices.Contains(r.ended(probe.Failed), probe.CheckReplicas) {
		t.Errorf("with a replica cut off: %v %+v", err, r)
	}
	for _, c := range r.Checks {
		if c.Outcome == string(probe.Failed) && c.Check != probe.CheckReplicas && c.Check != probe.CheckSchedule {
			t.Errorf("with a replica cut off: %+v", c)
		}
	}
	for _, way := range away {
		way.Heal()
	}
	f.Replicas[2].WaitReady(t, 60*time.Second)
	healthy("with the replica connected again")
}
