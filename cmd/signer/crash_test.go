package main

import (
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// promised is what the signer has acknowledged.
type promised struct {
	mu          sync.Mutex
	devices     map[*device]string // subject
	credentials map[string]string  // secret: subject
	audiences   map[string]string
	invalidated []*device
	spent       []string        // assertions, for status
	killed      map[string]bool // entry id: in force; false: lifted
	keys        map[string]bool // kids
}

// TestKilledAtAnyMoment kills the process with SIGKILL while clients enrol and
// operators act, after a random number of acknowledgements, and starts it again:
// everything acknowledged is there.
func TestKilledAtAnyMoment(t *testing.T) {
	const rounds = 6
	seed := mathrand.Uint64()
	t.Logf("seed %d", seed)
	random := mathrand.New(mathrand.NewPCG(seed, 0))
	dir := t.TempDir()
	file := filepath.Join(dir, "signer.yaml")
	if err := os.WriteFile(file, []byte(`
issuers:
  - enrolment: open
    limits: {caller: {rate: 0}, enroll: {rate: 0}}
development: {timeScale: 60}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	was := &promised{
		devices: make(map[*device]string), credentials: make(map[string]string), audiences: make(map[string]string),
		killed: make(map[string]bool), keys: make(map[string]bool),
	}
	args := []string{"--config", file, "--data", filepath.Join(dir, "data"), "--public", ownAddress()}
	little := func() bool {
		return len(was.devices) < rounds || len(was.credentials) < rounds || len(was.killed) < rounds || len(was.keys) < 2
	}
	for n := 0; n < rounds || n < 5*rounds && little(); n++ { // a process may die too young, again and again
		p := start(t, args...)
		was.check(t, p)
		was.hammer(t, p, 10+random.Int64N(60))
	}
	p := start(t, args...)
	was.check(t, p)
	if little() {
		t.Errorf("too little was acknowledged: %d devices, %d credentials, %d kills, %d keys",
			len(was.devices), len(was.credentials), len(was.killed), len(was.keys))
	}
	if audit := p.operator().must("GET", "/v1/audit:verify", nil); audit["ok"] != true {
		t.Errorf("audit log: %v", audit)
	}
	p.stop()
}

// hammer acts from several sides at once and kills the process after so many
// acknowledgements.
func (was *promised) hammer(t *testing.T, p *process, acknowledgements int64) {
	var count atomic.Int64
	// A client whose connection breaks ends; what was answered before counts.
	acknowledged := func(record func()) {
		was.mu.Lock()
		record()
		was.mu.Unlock()
		if count.Add(1) == acknowledgements {
			p.cmd.Process.Kill()
		}
	}
	o, c := p.operator(), client{t: t, base: p.info.Public}
	var clients sync.WaitGroup
	loop := func(act func(i int) bool) {
		clients.Go(func() {
			for i := 0; act(i); i++ {
			}
		})
	}
	for range 2 {
		loop(func(int) bool {
			d := newDevice(t)
			code, answer, err := c.post("/pact/enroll", "", c.enrolment(d))
			if err == nil && code == 503 { // the switch moved twice meanwhile
				return true
			}
			if err != nil || code != 200 {
				return unexpected(t, "enroll", code, answer, err)
			}
			subject, _ := answer["subject"].(string)
			acknowledged(func() { was.devices[d] = subject })
			return true
		})
	}
	loop(func(i int) bool {
		name := fmt.Sprintf("%d-%d", p.cmd.Process.Pid, i)
		code, answer, err := o.call("POST", "/v1/credentials", map[string]any{"name": name})
		if err != nil || code != 200 {
			return unexpected(t, "create credential", code, answer, err)
		}
		secret, _ := answer["credential"].(string)
		subject, _ := answer["info"].(map[string]any)["subject"].(string)
		acknowledged(func() { was.credentials[secret] = subject })
		origin := "https://" + name + ".example"
		code, answer, err = o.call("PUT", "/v1/audiences", map[string]any{"origin": origin, "audience": name})
		if err != nil || code != 200 {
			return unexpected(t, "set audience", code, answer, err)
		}
		acknowledged(func() { was.audiences[origin] = name })
		return i < 40 // the registry has a cap
	})
	loop(func(int) bool {
		was.mu.Lock()
		var caller *device
		for caller = range was.devices {
			break
		}
		was.mu.Unlock()
		if caller == nil {
			return count.Load() < acknowledgements
		}
		assertion := c.as(caller, "/pact/status")
		code, answer, err := c.post("/pact/status", assertion, map[string]any{})
		if err == nil && code == 503 {
			return true
		}
		if err != nil || code != 200 {
			return unexpected(t, "status", code, answer, err)
		}
		acknowledged(func() { was.spent = append(was.spent, assertion) })
		return true
	})
	loop(func(i int) bool {
		d := newDevice(t)
		code, answer, err := o.call("POST", "/v1/devices/"+d.thumbprint+":invalidate", map[string]any{"reason": "drill"})
		if err != nil || code != 200 {
			return unexpected(t, "invalidate", code, answer, err)
		}
		acknowledged(func() { was.invalidated = append(was.invalidated, d) })
		return true
	})
	loop(func(i int) bool {
		scope := map[string]any{"kind": "subject", "value": fmt.Sprintf("pa_%d_%d", p.cmd.Process.Pid, i)}
		code, answer, err := o.call("POST", "/v1/kill", map[string]any{"scope": scope, "reason": "drill"})
		if err != nil || code != 200 {
			return unexpected(t, "kill", code, answer, err)
		}
		id, _ := answer["entry"].(map[string]any)["id"].(string)
		acknowledged(func() { was.killed[id] = true })
		if i%2 == 0 {
			return true
		}
		// From here until it is acknowledged the entry may be lifted or not.
		was.mu.Lock()
		delete(was.killed, id)
		was.mu.Unlock()
		code, answer, err = o.call("POST", "/v1/resume", map[string]any{"scope": scope, "reason": "over", "entryIds": []string{id}})
		if err != nil || code != 200 {
			return unexpected(t, "resume", code, answer, err)
		}
		acknowledged(func() { was.killed[id] = false })
		return true
	})
	loop(func(int) bool {
		current, err := currentKey(o)
		if err != nil || current == "" {
			return err == nil // the new key does not sign yet: ask again
		}
		code, answer, err := o.call("POST", "/v1/keys:rotate", map[string]any{"emergency": true, "compromisedKid": current, "reason": "drill"})
		if err != nil || code != 200 {
			return unexpected(t, "rotate", code, answer, err)
		}
		kid, _ := answer["kid"].(string)
		acknowledged(func() { was.keys[kid] = true })
		return true
	})
	clients.Wait()
	p.wait()
}

// unexpected ends a client whose connection broke, and fails the test for an
// answer that should not be.
func unexpected(t *testing.T, what string, code int, answer map[string]any, err error) bool {
	if err == nil {
		t.Errorf("%s: %d %v", what, code, answer)
	}
	return false
}

// currentKey is the kid that signs now.
func currentKey(o operator) (string, error) {
	_, answer, err := o.call("GET", "/v1/keys", nil)
	if err != nil {
		return "", err
	}
	for _, k := range list(o.t, answer, "keys") {
		if k["state"] == "signing" {
			return k["kid"].(string), nil
		}
	}
	return "", nil
}

// check holds the signer to what was acknowledged.
func (was *promised) check(t *testing.T, p *process) {
	t.Helper()
	o, c := p.operator(), client{t: t, base: p.info.Public}
	// Permits are short here: 503 says nothing, and is asked again with a new assertion.
	must := func(want int, path string, request func() (authorization string, body any)) (answer map[string]any) {
		t.Helper()
		eventually(t, path, func() bool {
			authorization, body := request()
			code, got, err := c.post(path, authorization, body)
			if err != nil || code != want && code != 503 {
				t.Fatalf("POST %s: %d %v %v, want %d", path, code, got, err, want)
			}
			answer = got
			return code == want
		})
		return answer
	}
	with := func(authorization string) func() (string, any) {
		return func() (string, any) { return authorization, map[string]any{} }
	}
	for d, subject := range was.devices {
		if answer := must(200, "/pact/status", func() (string, any) { return c.as(d, "/pact/status"), map[string]any{} }); answer["subject"] != subject {
			t.Errorf("device %s has subject %v, was acknowledged %s", d.thumbprint, answer["subject"], subject)
		}
	}
	for secret, subject := range was.credentials {
		if answer := must(200, "/pact/status", with("Bearer "+secret)); answer["subject"] != subject {
			t.Errorf("a credential has subject %v, was acknowledged %s", answer["subject"], subject)
		}
	}
	for _, d := range was.invalidated {
		must(401, "/pact/enroll", func() (string, any) { return "", c.enrolment(d) })
	}
	for _, assertion := range was.spent {
		must(401, "/pact/status", with(assertion))
	}
	registry := make(map[string]string)
	for _, a := range list(t, o.must("GET", "/v1/audiences", nil), "audiences") {
		registry[a["origin"].(string)] = a["audience"].(string)
	}
	for origin, audience := range was.audiences {
		if registry[origin] != audience {
			t.Errorf("audience of %s is %q, was acknowledged %s", origin, registry[origin], audience)
		}
	}
	var live []string
	for _, e := range list(t, o.must("GET", "/v1/kill", nil), "entries") {
		live = append(live, e["id"].(string))
	}
	for id, inForce := range was.killed {
		if slices.Contains(live, id) != inForce {
			t.Errorf("kill switch entry %s in force: %v, was acknowledged %v", id, !inForce, inForce)
		}
	}
	known := make(map[string]bool)
	for _, k := range list(t, o.must("GET", "/v1/keys", nil), "keys") {
		known[k["kid"].(string)] = true
	}
	for kid := range was.keys {
		if !known[kid] {
			t.Errorf("key %s was acknowledged and is gone", kid)
		}
	}
}
