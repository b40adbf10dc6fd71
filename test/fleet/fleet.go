// Package fleet runs a fleet of signers for tests: real processes on a real Vault
// and a real Redis, callers that load them, and a checker that sees every request
// and every answer.
//
// The checker is written against the contract alone (docs/contract.md): it imports
// nothing of the signer but the generated gRPC client. It holds the fleet to this:
//
//   - every answer is one that the contract documents, with its body and headers;
//   - no request is open longer than the deadline;
//   - no 200 for a request in scope that was sent after a kill was printed effective;
//   - every token verifies, now and until it expires, for three verifiers that cache
//     the key set as real ones do;
//   - no jti is issued twice, and a caller's sub never changes;
//   - a device's assertion is good for one request, at whichever replica.
//
// What is out of reach because the test itself paused or killed it is told apart
// from what hangs.
package fleet

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/test/servers"
)

// T is what the harness needs of a test.
type T = servers.T

// Settings are a signer's configuration: a dotted path and its value.
type Settings map[string]any

// Options say what fleet to run. The zero value is one embedded signer.
type Options struct {
	// Replicas is how many run; 0 is one.
	Replicas int
	// TokenTTL, Period, Lead and Overlap are the issuer's; zero is the signer's
	// default. TimeScale divides them.
	TokenTTL, Period, Lead, Overlap time.Duration
	TimeScale                       int
	// Backend has the settings of custody and store that all replicas have, as
	// OnVault and OnRedis make them; empty is embedded.
	Backend Settings
	// Each has the settings of one replica, over all others. nil: none.
	Each func(replica int) Settings
}

// Fleet is a running fleet.
type Fleet struct {
	// Issuer is the issuer's URL; nobody listens there. Clients dial a replica and
	// send its host.
	Issuer   string
	Replicas []*Replica
	// Deadline is after how long a request is answered, at the latest.
	Deadline time.Duration
	Scale    int

	dir       string
	options   Options
	binaries  Binaries
	tokenFile string // of an admin token that every replica accepts
	token     string
	tokenHash string
}

// Patience is how long a test waits for what comes by itself, on a busy machine.
const Patience = time.Minute

// slack is what a busy machine may add to a deadline.
const slack = 3 * time.Second

// Start runs a fleet and waits until every replica is ready. It ends with the test.
func Start(t T, o Options) *Fleet {
	t.Helper()
	f := New(t, o)
	for i := range f.Replicas {
		f.Replicas[i].Start(t)
	}
	for _, r := range f.Replicas {
		r.WaitReady(t, Patience)
	}
	return f
}

// New prepares a fleet and initialises its deployment, but starts no replica.
func New(t T, o Options) *Fleet {
	t.Helper()
	o.Replicas = max(o.Replicas, 1)
	o.TimeScale = max(o.TimeScale, 1)
	if o.TokenTTL == 0 {
		o.TokenTTL = 120 * time.Second
	}
	f := &Fleet{
		Issuer:   fmt.Sprintf("http://issuer.localhost:%d", servers.FreePort(t, 0)),
		Deadline: 5 * time.Second,
		Scale:    o.TimeScale,
		dir:      t.TempDir(),
		options:  o,
		binaries: built(t),
	}
	if o.TimeScale > 1 {
		f.Deadline = max(f.Deadline/time.Duration(o.TimeScale), time.Second)
	}
	f.makeAdminToken(t)
	for range o.Replicas {
		f.Add(t)
	}
	if len(o.Backend) > 0 {
		if out, err := Signer(t, "init", "--config", f.Replicas[0].config); err != nil {
			t.Fatalf("signer init: %v\n%s", err, out)
		}
	}
	return f
}

// Add adds a replica, which does not run yet.
func (f *Fleet) Add(t T) *Replica {
	t.Helper()
	i := len(f.Replicas)
	dir := filepath.Join(f.dir, fmt.Sprintf("replica-%d", i))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatalf("replica %d: %v", i, err)
	}
	var faces [4]string
	for n := range faces {
		faces[n] = fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t, 0))
	}
	r := &Replica{
		Index: i, Public: faces[0], GRPC: faces[1], Admin: faces[2], Ops: faces[3],
		fleet: f, dir: dir, config: filepath.Join(dir, "signer.yaml"),
	}
	settings := Settings{
		"data":                     filepath.Join(dir, "data"),
		"listeners.public.address": r.Public,
		"listeners.grpc.address":   r.GRPC,
		"listeners.admin.address":  r.Admin,
		"listeners.ops.address":    r.Ops,
		"log.format":               "text",
		"drainTimeout":             "2s",
		"development.timeScale":    f.Scale,
		"admin.tokens":             []any{map[string]any{"name": "tests", "role": "admin", "hash": f.tokenHash}},
		"issuers":                  []any{f.issuer()},
	}
	settings = settings.With(f.options.Backend)
	if f.options.Each != nil {
		settings = settings.With(f.options.Each(i))
	}
	writeSettings(t, r.config, settings)
	f.Replicas = append(f.Replicas, r)
	return r
}

// issuer is the item of the configuration. Nobody is limited: the load is.
func (f *Fleet) issuer() map[string]any {
	o := f.options
	rotation := map[string]any{}
	for name, d := range map[string]time.Duration{"period": o.Period, "lead": o.Lead, "overlap": o.Overlap} {
		if d != 0 {
			rotation[name] = d.String()
		}
	}
	generous := map[string]any{"rate": 100000, "burst": 100000}
	return map[string]any{
		"url": f.Issuer, "enrolment": "open", "tokenTTL": o.TokenTTL.String(), "rotation": rotation,
		"limits": map[string]any{"caller": generous, "enroll": generous},
	}
}

// writeSettings writes a configuration file; JSON is YAML too.
func writeSettings(t T, file string, all Settings) {
	t.Helper()
	root := map[string]any{}
	for path, value := range all {
		at, parts := root, strings.Split(path, ".")
		for _, part := range parts[:len(parts)-1] {
			below, ok := at[part].(map[string]any)
			if !ok {
				below = map[string]any{}
				at[part] = below
			}
			at = below
		}
		at[parts[len(parts)-1]] = value
	}
	data, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		t.Fatalf("configuration: %v", err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatalf("configuration: %v", err)
	}
}

// Eventually asks every 20 ms until ok, and fails the test when time is up.
func Eventually(t T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(within)
	defer end.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}
