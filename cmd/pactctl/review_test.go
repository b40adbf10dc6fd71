package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
)

// CL-1: every command and flag of the list is there.
func TestAgentCommandList(t *testing.T) {
	a, _, _ := testApp("", false)
	root := newRootCmd(a)
	for _, line := range []string{
		"status", "enroll", "providers list", "providers add", "providers remove", "discover", "authorize --scope --purpose --timeout",
		"send --business --message --effect --scope --conversation --yes --exit-on-input", "reconcile --business --yes --exit-on-input",
		"approvals list --all", "approvals show", "approvals approve --yes --exit-on-input", "approvals deny",
		"review list --all", "review show", "review acknowledge --yes", "chat", "grants", "disconnect",
		"authorization list", "authorization status", "authorization wait --timeout", "authorization cancel",
		"conversations list", "conversations show", "receipts list", "receipts show", "receipts verify --keys", "receipts export --file --force",
		"policy show", "policy prefer", "policy on", "policy off", "doctor",
	} {
		words := strings.Fields(line)
		path := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.HasPrefix(w, "-") })
		cmd, rest, err := root.Find(path)
		if err != nil || len(rest) > 0 {
			t.Errorf("pactctl %s: %v", strings.Join(path, " "), err)
			continue
		}
		for _, flag := range append(words[len(path):], "--output", "--profile") {
			if name := strings.TrimPrefix(flag, "--"); cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
				t.Errorf("pactctl %s has no %s", strings.Join(path, " "), flag)
			}
		}
		if strings.HasPrefix(line, "send ") && cmd.Flags().Lookup("effect").DefValue != "inspect" {
			t.Error("--effect is not inspect by default")
		}
		for c := cmd; c.HasParent(); c = c.Parent() {
			if c.GroupID != "" && c.GroupID != groupAgent {
				t.Errorf("pactctl %s is in group %s", line, c.GroupID)
			}
		}
	}
}

// CL-2, CV-14, EV-5, EV-7, AP-4: reconcile and review in JSON, with their exit codes; what
// is to be decided is asked for, and nothing is done without.
func TestReconcileAndReview(t *testing.T) {
	b := newBench(t)
	air := b.box.Brands[0].Card
	b.json(false, 0, "enroll", "--signer", b.signer)
	b.json(false, 0, "audiences", "set", b.box.Provider, b.box.Audience)
	faults := func(specs ...string) {
		t.Helper()
		if _, err := b.box.Control.SetFaults(t.Context(), specs...); err != nil {
			t.Fatal(err)
		}
	}
	change := func(person bool, want int, number string, more ...string) map[string]any {
		t.Helper()
		return b.json(person, want, append([]string{"send", "--business", air, "--scope", "flights:rebook", "--message", "Rebook me onto " + number}, more...)...)
	}
	waits := func(want int, more ...string) []any {
		t.Helper()
		list := b.json(false, 0, append([]string{"review", "list"}, more...)...)["reviews"].([]any)
		if len(list) != want {
			t.Errorf("review list %v: %v, want %d", more, list, want)
		}
		return list
	}
	if v := b.json(false, 1, "reconcile"); v["reason"] != "nothing_to_reconcile" {
		t.Errorf("reconcile: %v", v)
	}
	conversation := change(true, 0, "LK 318")["conversation"].(string)
	waits(0)

	faults("drop-after*1")
	if v := change(false, 1, "LK 204", "--yes", "--conversation", conversation); v["status"] != "outcome_unknown" {
		t.Errorf("lost: %v", v)
	}
	if v := change(false, 1, "LK 204", "--yes"); v["status"] != "blocked" || v["reason"] != "unresolved_operation" {
		t.Errorf("after it: %v", v)
	}
	operation := waits(1)[0].(map[string]any)
	if v := change(false, 1, "LK 204", "--yes"); v["message"] != operation["id"] || v["conversation"] != conversation {
		t.Errorf("what is to be reconciled first: %v, want %v of %s", v, operation["id"], conversation)
	}
	grant := b.json(false, 0, "grants")["grants"].([]any)[0].(map[string]any)["id"].(string)
	if code, stdout, stderr := b.run(false, "", "disconnect", grant, "-o", "json"); code != 3 || stdout != "" || !strings.Contains(stderr, "can not be reconciled after that (before: pactctl reconcile "+conversation+")") {
		t.Errorf("disconnect: exit %d, %s", code, stderr)
	}
	if operation["kind"] != "operation" || operation["open"] != true {
		t.Errorf("review %v", operation)
	}
	var code int
	var stdout, stderr string
	for _, person := range []bool{false, true} { // what can not be settled yet is not asked about
		code, stdout, stderr = b.run(person, "", "review", "acknowledge", operation["id"].(string))
		if code != 1 || stdout != "" || strings.Contains(stderr, "[y/N]") || !strings.Contains(stderr, "reconcile_first") || !strings.Contains(stderr, "pactctl reconcile "+conversation) {
			t.Errorf("acknowledge: exit %d\n%s%s", code, stdout, stderr)
		}
	}
	if v := b.json(false, 3, "reconcile"); v["reason"] != "local_approval_required" || v["approval"].(map[string]any)["sentBefore"] == nil {
		t.Errorf("reconcile: %v", v)
	}
	if v := b.json(false, 1, "review", "acknowledge", operation["id"].(string), "--yes"); v["status"] != "blocked" || v["reason"] != "reconcile_first" || v["detail"] == nil {
		t.Errorf("acknowledge: %v", v)
	}
	code, stdout, stderr = b.run(false, "", "reconcile")
	if code != 3 || stdout != "" || !strings.Contains(stderr, "This was sent ") || !strings.Contains(stderr, "  Rebook me onto LK 204") || !strings.Contains(stderr, "SHA-256: ") {
		t.Errorf("reconcile unasked: exit %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = b.run(true, "", "reconcile", conversation, "-o", "json")
	if code != 0 || !strings.Contains(stdout, `"replied"`) || !strings.Contains(stderr, "This was sent ") || !strings.Contains(stderr, "Send it? [y/N]") {
		t.Errorf("reconcile: exit %d\n%s%s", code, stdout, stderr)
	}
	waits(0)
	if v := b.json(false, 1, "reconcile", "--business", air); v["reason"] != "nothing_to_reconcile" {
		t.Errorf("reconcile: %v", v)
	}
	if v := b.json(false, 1, "reconcile", "c-0"); v["reason"] != "not_found" {
		t.Errorf("reconcile: %v", v)
	}

	faults("receipt-bit*1")
	v := change(false, 0, "LK 318", "--yes")
	evidence := v["evidence"].(map[string]any)
	id := evidence["receipt"].(string)
	if evidence["verdict"] != "invalid" || waits(1)[0].(map[string]any)["id"] != id {
		t.Errorf("evidence %v", v)
	}
	if v := change(false, 1, "LK 204", "--yes"); v["reason"] != "evidence_review_required" {
		t.Errorf("after it: %v", v)
	}
	if v := b.json(false, 0, "review", "show", id); v["kind"] != "evidence" || v["text"] != "Rebook me onto LK 318" || v["next"] == nil {
		t.Errorf("show: %v", v)
	}
	if code, stdout, stderr := b.run(false, "", "review", "acknowledge", id, "-o", "json"); code != 3 || stdout != "" || !strings.Contains(stderr, "Rebook me onto LK 318") {
		t.Errorf("acknowledge: exit %d\n%s%s", code, stdout, stderr)
	}
	waits(1)
	if v := b.json(false, 0, "review", "acknowledge", id, "--yes"); v["open"] != false || v["verdict"] != "invalid" || v["by"] != "owner" {
		t.Errorf("acknowledge: %v", v)
	}
	waits(0)
	if v := waits(1, "--all")[0].(map[string]any); v["acknowledged"] == nil {
		t.Errorf("settled: %v", v)
	}
	if v := change(false, 0, "LK 204", "--yes"); v["status"] != "replied" {
		t.Errorf("after acknowledging: %v", v)
	}
	code, stdout, stderr = b.run(false, "", "review", "show", "r-0")
	if code != 1 || stdout != "" || !strings.Contains(stderr, `nothing to review by the id "r-0"`) {
		t.Errorf("show: exit %d\n%s%s", code, stdout, stderr)
	}

	// Exported receipts are verified without a profile.
	exportReceipts(t, b, id)
}

// EV-8: an export is one private file, and is verified offline.
func exportReceipts(t *testing.T, b *bench, invalid string) {
	t.Helper()
	dir := t.TempDir()
	file, keys := filepath.Join(dir, "receipt.json"), filepath.Join(dir, "keys.json")
	good := b.json(false, 0, "receipts", "list")["receipts"].([]any)[0].(map[string]any)["id"].(string)
	if v := b.json(false, 0, "receipts", "export", good, "-f", file); v["file"] != file || v["verdict"] != "verified" {
		t.Errorf("export: %v", v)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if code, stdout, stderr := b.run(false, "", "receipts", "export", good, "-f", file, "-o", "json"); code != 1 || stdout != "" || !strings.Contains(stderr, "--force") {
		t.Errorf("again: exit %d, %s", code, stderr)
	}
	b.json(false, 0, "receipts", "export", good, "-f", file, "--force")
	code, document, _ := b.run(false, "", "receipts", "export", good, "-f", "-")
	if code != 0 || !strings.HasPrefix(document, "{") {
		t.Errorf("to stdout: exit %d, %s", code, document)
	}
	if code, _, stderr := b.run(false, "", "receipts", "export", "r-aaaaaaaaaaaaaaaa", "-f", "-"); code != 1 || !strings.Contains(stderr, "there is no receipt") {
		t.Errorf("none: exit %d, %s", code, stderr)
	}

	// Without the profile, which must not even be made.
	b.profile = filepath.Join(dir, "nowhere")
	v := b.json(false, 0, "receipts", "verify", file)["exports"].([]any)[0].(map[string]any)
	if v["verdict"] != "verified" || v["keysFrom"] != "file" || v["kid"] == nil || v["thumbprint"] == nil {
		t.Errorf("verify: %v", v)
	}
	code, stdout, _ := b.run(false, document, "receipts", "verify", "-")
	if code != 0 || !strings.HasPrefix(stdout, "-: verified\n") || !strings.Contains(stdout, "the file's own") {
		t.Errorf("from stdin: exit %d\n%s", code, stdout)
	}
	if err := os.WriteFile(keys, []byte(`{"keys":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if v := b.json(false, 1, "receipts", "verify", file, "--keys", keys)["exports"].([]any)[0].(map[string]any); v["verdict"] == "verified" || v["keysFrom"] != "given" {
		t.Errorf("by other keys: %v", v)
	}
	// EV-8: only what a verified signature covers is told as the business's word.
	code, stdout, _ = b.run(false, "", "receipts", "verify", file, "--keys", keys)
	if code != 1 || strings.Contains(stdout, "\nsigned") || strings.Contains(stdout, "actions") || strings.Contains(stdout, "What is signed is") ||
		!strings.Contains(stdout, "No signature was verified") || !strings.Contains(stdout, "unknown_key: jws: the key set has no such key") {
		t.Errorf("by other keys: exit %d\n%s", code, stdout)
	}
	code, stdout, _ = b.run(false, "", "receipts", "verify", file)
	if code != 0 || !strings.Contains(stdout, `What is signed is "signed", "permissions" and "actions"; the rest`) {
		t.Errorf("by its own keys: exit %d\n%s", code, stdout)
	}
	var bare map[string]any
	if err := json.Unmarshal([]byte(document), &bare); err != nil {
		t.Fatal(err)
	}
	delete(bare, "keys")
	keyless := filepath.Join(dir, "keyless.json")
	if data, err := json.Marshal(bare); err != nil || os.WriteFile(keyless, data, 0o600) != nil {
		t.Fatal(err)
	}
	code, stdout, _ = b.run(false, "", "receipts", "verify", keyless)
	if code != 1 || strings.Contains(stdout, "the file's own") || strings.Contains(stdout, "\nsigned") || !strings.Contains(stdout, "keys_unavailable") {
		t.Errorf("without keys: exit %d\n%s", code, stdout)
	}
	// One that cannot be read hides none of the others.
	code, stdout, stderr := b.run(false, "", "receipts", "verify", file, filepath.Join(dir, "missing.json"), keys)
	if code != 1 || !strings.HasPrefix(stdout, file+": verified\n") || !strings.Contains(stderr, "missing.json: no such file") || !strings.Contains(stderr, "keys.json: export: ") {
		t.Errorf("with a missing one: exit %d\n%s%s", code, stdout, stderr)
	}
	for _, args := range [][]string{{"--keys", keys}, {good, "--keys", keys}, {good, file}} {
		if code, stdout, _ := b.run(false, "", append([]string{"receipts", "verify"}, args...)...); code != 2 || stdout != "" {
			t.Errorf("verify %v: exit %d, %s", args, code, stdout)
		}
	}
	changed := filepath.Join(dir, "changed.json")
	if err := os.WriteFile(changed, []byte(strings.Replace(document, `"verified"`, `"invalid"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := b.run(false, "", "receipts", "verify", changed); code != 1 || !strings.Contains(stderr, "1 of 1 receipt not verified") {
		t.Errorf("changed: exit %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := b.run(false, "", "receipts", "verify", keys, "-o", "json"); code != 1 || stdout != "" || !strings.Contains(stderr, "keys.json: export: ") {
		t.Errorf("no export: exit %d, %s", code, stderr)
	}
	if _, err := os.Stat(b.profile); !os.IsNotExist(err) {
		t.Errorf("a profile was made: %v", err)
	}
}

// PO-1, PO-2: the owner's own part of the policy.
func TestPolicyCommands(t *testing.T) {
	b := newBench(t)
	policy := func(want int, args ...string) map[string]any {
		t.Helper()
		return b.json(false, want, append([]string{"policy"}, args...)...)
	}
	if v := policy(0, "show"); v["available"] != false || v["reason"] != "disabled_in_settings" || !strings.Contains(v["detail"].(string), "enrol with a signer first") {
		t.Errorf("show %v", v)
	}
	b.json(false, 0, "enroll", "--signer", b.signer)
	if v := policy(0, "show"); v["available"] != true || v["preference"] != "prefer-pact" {
		t.Errorf("show %v", v)
	}
	if v := policy(0, "off"); v["available"] != false || v["enabled"] != false || v["detail"] != "PACT is off in this profile: switch it on with pactctl policy on" {
		t.Errorf("off %v", v)
	}
	if v := policy(0, "on"); v["available"] != true {
		t.Errorf("on %v", v)
	}
	if v := policy(0, "prefer", "require-pact"); v["preference"] != "require-pact" {
		t.Errorf("prefer %v", v)
	}
	if code, stdout, stderr := b.run(false, "", "policy", "prefer", "nothing"); code != 2 || stdout != "" || !strings.Contains(stderr, "say prefer-pact, require-pact or disabled") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	if err := os.WriteFile(filepath.Join(b.profile, "policies.json"), []byte(`{"pact.enabled": "no"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, _ := b.run(false, "", "policy", "show")
	if code != 0 || !strings.HasPrefix(stdout, "PACT may not be used: disabled_by_admin: ") || !strings.Contains(stdout, "policies.json: pact.enabled: ") {
		t.Errorf("exit %d\n%s", code, stdout)
	}
	if err := os.WriteFile(filepath.Join(b.profile, "policies.json"), []byte(`{"pact": {"blockedProviders": ["127.0.0.1"]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	blocked := b.json(false, 1, "doctor")["checks"].([]any)
	for _, c := range blocked {
		if fix, _ := c.(map[string]any)["fix"].(string); strings.Contains(fix, "enroll") {
			t.Errorf("where the policy blocks the signer: %v", c)
		}
	}
	if !strings.Contains(fmt.Sprint(blocked), "pactctl policy show tells what it blocks") {
		t.Errorf("where the policy blocks the signer: %v", blocked)
	}
	if err := os.WriteFile(filepath.Join(b.profile, "policies.json"), []byte(`{"pact.enabled": "no"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	// A check that failed is exit code 1; a profile that is not enrolled is one.
	v := b.json(false, 1, "doctor")
	first := v["checks"].([]any)[0].(map[string]any)
	if v["ok"] != false || first["name"] != "policy" || first["state"] != "failed" || first["fix"] == nil {
		t.Errorf("doctor %v", v)
	}
}

// Doctor has a line for each check, and the fix below it.
func TestDoctorLines(t *testing.T) {
	var out bytes.Buffer
	printChecked(&printer{w: &out}, []agent.Check{
		{Name: "policy", State: agent.CheckOK, Detail: "PACT may be used"},
		{Name: "clock", State: agent.CheckWarning, Detail: "9s ahead", Fix: "set it"},
	})
	want := "ok       policy  PACT may be used\nwarning  clock   9s ahead\n                 fix: set it\n"
	if out.String() != want {
		t.Errorf("got\n%s", out.String())
	}
}
