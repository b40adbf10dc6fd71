package main

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

// refused starts the signer and expects that it says why it does not, and ends.
func refused(t *testing.T, data string, want ...string) {
	t.Helper()
	out, err := command(freePorts([]string{"--data", data})...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFailure {
		t.Fatalf("ended with %v: %s", err, out)
	}
	for _, w := range want {
		if !strings.Contains(string(out), w) {
			t.Errorf("said %s, not %q", out, w)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A store or a schedule that is not the newest never brings back what was ended.
func TestWhatWasEndedStaysEnded(t *testing.T) {
	data := t.TempDir()
	store, kept := filepath.Join(data, "store.db"), filepath.Join(t.TempDir(), "store.db")
	p := start(t, "--data", data)
	c, d := client{t: t, base: p.info.Public}, newDevice(t)
	c.enroll(d)
	credential := p.operator().must("POST", "/v1/credentials", map[string]any{"name": "laptop"})
	p.stop()
	copyFile(t, store, kept)

	p = start(t, "--data", data)
	o := p.operator()
	o.must("POST", "/v1/devices/"+d.thumbprint+":invalidate", map[string]any{"reason": "stolen"})
	o.must("POST", "/v1/credentials/"+text(t, credential["info"].(map[string]any), "id")+":revoke", map[string]any{"reason": "leaked"})
	p.kill() // what was acknowledged is recorded
	newest := filepath.Join(t.TempDir(), "store.db")
	copyFile(t, store, newest)

	copyFile(t, kept, store)
	refused(t, data, "went back", "--accept-rolled-back-store")
	if err := os.Truncate(store, 16384); err != nil {
		t.Fatal(err)
	}
	refused(t, data, store, "is damaged or truncated; restore it from its backup")
	if err := os.Truncate(store, 0); err != nil {
		t.Fatal(err)
	}
	refused(t, data, "--accept-lost-store")

	copyFile(t, newest, store)
	documents, err := filepath.Glob(filepath.Join(data, "custody", "documents", "schedule-*"))
	if err != nil || len(documents) != 1 {
		t.Fatalf("custody has %v, %v", documents, err)
	}
	schedule := filepath.Join(t.TempDir(), "schedule")
	copyFile(t, documents[0], schedule)
	if err := os.Remove(documents[0]); err != nil {
		t.Fatal(err)
	}
	refused(t, data, "the key schedule in custody went back", "restore custody")
	copyFile(t, schedule, documents[0])

	p = start(t, "--data", data)
	c.must(401, "/pact/enroll", "", c.enrolment(d))
	c.must(401, "/pact/status", "Bearer "+text(t, credential, "credential"), map[string]any{})
	p.stop()

	copyFile(t, kept, store)
	if code, out, errs := run(t, nil, "init", "--data", data, "--accept-rolled-back-store"); code != exitOK || !strings.Contains(out, "closed") {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	p = start(t, "--data", data)
	c.must(401, "/pact/enroll", "", c.enrolment(newDevice(t)))
	p.stop()
}

// A log whose end was deleted, or whose entry was damaged, does not verify.
func TestAuditVerifyAfterTampering(t *testing.T) {
	data := t.TempDir()
	p := start(t, "--data", data)
	c, d := client{t: t, base: p.info.Public}, newDevice(t)
	p.operator().setAudience()
	c.enroll(d)
	c.must(422, "/pact/sign", c.as(d, "/pact/sign"), map[string]any{"audience": "not registered", "nonce": "n"})
	eventually(t, "the refusal is in the audit log", func() bool {
		return p.operator().must("GET", "/v1/audit:verify", nil)["entries"] == "2"
	})
	p.stop()
	tamper := func(change func(b *bbolt.Bucket) error) {
		t.Helper()
		db, err := bbolt.Open(filepath.Join(data, "store.db"), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(func(tx *bbolt.Tx) error { return change(tx.Bucket([]byte("audit"))) }), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

	tamper(func(b *bbolt.Bucket) error { return b.Delete(number(2)) }) // no operator's act: custody does not have it
	p = start(t, "--data", data)
	if v := p.operator().must("GET", "/v1/audit:verify", nil); v["ok"] == true || v["firstBad"] != "2" {
		t.Errorf("the newest entry is gone: %v", v)
	}
	p.operator().must("PUT", "/v1/audiences", map[string]any{"origin": "https://b.example", "audience": "b"})
	p.stop()

	tamper(func(b *bbolt.Bucket) error { return b.Put(number(1), []byte("{")) })
	p = start(t, "--data", data)
	if v := p.operator().must("GET", "/v1/audit:verify", nil); v["ok"] == true || v["firstBad"] != "1" || !strings.Contains(text(t, v, "problem"), "entry 1 is damaged") {
		t.Errorf("an entry is damaged: %v", v)
	}
	if code, answer, err := p.operator().call("GET", "/v1/audit", nil); err != nil || code != 500 || !strings.Contains(text(t, answer, "message"), "entry 1") {
		t.Errorf("listing a damaged entry: %d %v %v", code, answer, err)
	}
	p.stop()

	tamper(func(b *bbolt.Bucket) error { return b.Delete(number(3)) }) // an act, which custody has
	refused(t, data, "went back", "entry 3")
}
