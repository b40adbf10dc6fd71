// Package soak turns keys over every few seconds under load, and has every token
// verified by verifiers that cache the key set as real ones do.
//
// `go test` sees a few rotations, `make soak` many.
package soak

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/test/fleet"
	"github.com/pactsigner/pactsigner/test/servers"
)

var (
	rotations = flag.Int("rotations", 4, "how many rotations to see")
	rate      = flag.Int("rate", 60, "requests a second")
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := fleet.Clean(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// All times are divided by one factor, the verifiers' too, so that a rotation comes
// every 5.5 s. Lead is what the slowest of the verifiers needs, one that keeps a key
// set for 10 minutes: 13 m 45 s.
const (
	scale   = 150
	lead    = 825 * time.Second
	overlap = 900 * time.Second
)

// TestRotationUnderLoad: no verifier ever refuses a token, whatever key it was signed
// with and whichever replicas it asked for the key set.
func TestRotationUnderLoad(t *testing.T) {
	vault := servers.StartVault(t, servers.VaultOptions{})
	redis := servers.StartRedis(t, servers.RedisOptions{})
	f := fleet.Start(t, fleet.Options{
		Replicas: 3, TimeScale: scale, TokenTTL: 300 * time.Second, Period: lead, Lead: lead, Overlap: overlap,
		Backend: fleet.OnVault(t, vault, "soak", false).With(fleet.OnRedis(redis.Addr(), 0)),
	})
	callers, audience := f.Populate(t, 3, 3)
	load := f.StartLoad(t, fleet.LoadOptions{Rate: *rate, Callers: callers, Audience: audience})
	began := time.Now()
	within := 2*lead/scale + time.Duration(*rotations)*2*lead/scale
	fleet.Eventually(t, within, fmt.Sprintf("%d rotations", *rotations), func() bool { return len(load.KIDs()) > *rotations })
	report := load.Stop()
	report.Check(t)
	for _, p := range report.Phases {
		t.Logf("%s", p)
	}
	for name, v := range report.Verified {
		t.Logf("the verifier that %s: %d verified, %d refused, %d without a key set", name, v.Tokens, v.Failed, v.Undecided)
		if v.Tokens == 0 {
			t.Errorf("the verifier that %s has verified nothing", name)
		}
	}
	t.Logf("%d rotations in %v, longest request %v", len(load.KIDs())-1, time.Since(began).Round(time.Second), report.Longest)
}
