package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

// typing runs a command line on a terminal where somebody types text, and then ends the
// input.
func (b *bench) typing(text string, args ...string) (code int, stdout, stderr string) {
	b.t.Helper()
	var out, seen bytes.Buffer
	a := &app{stdin: strings.NewReader(text), stdout: &out, stderr: &seen, now: time.Now, zone: time.UTC, person: true}
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	code = a.run(ctx, append(args, "--profile", b.profile))
	return code, out.String(), seen.String()
}

// CL-2, AP-4: what an operation is refused for is in the JSON too; the end of the input is
// no yes; where nobody can be asked the whole of what would be asked is shown; a chat tells
// each failure once, loses no line silently and says how to go on.
func TestAnswersThatAreNone(t *testing.T) {
	b := newBench(t)
	air, books := b.box.Brands[0].Card, b.box.Brands[1].Card
	refusal := func(want string, args ...string) {
		t.Helper()
		if v := b.json(false, 1, args...); v["status"] == nil || v["reason"] != want || v["detail"] == nil {
			t.Errorf("%v: %v, want %s", args, v, want)
		}
	}
	refusal("signer_unavailable", "enroll", "--signer", "http://127.0.0.1:1")
	b.json(false, 0, "enroll", "--signer", b.signer)
	b.json(false, 0, "audiences", "set", b.box.Provider, b.box.Audience)
	if v := b.json(false, 1, "discover", b.box.Provider); v["reason"] != "not_found" || !strings.HasSuffix(v["detail"].(string), "ends in /.well-known/agent-card.json") {
		t.Errorf("no card's URL: %v", v)
	}
	refusal("invalid_input", "discover", "nosuchbusiness")
	refusal("not_found", "discover", "b-0000000000000000")
	refusal("invalid_input", "providers", "add", "nonsense", "--audience", "x")
	if code, stdout, stderr := b.run(false, "", "receipts", "show", "nope", "-o", "json"); code != 1 || stdout != "" || !strings.Contains(stderr, "pactctl receipts list lists them") {
		t.Errorf("receipts show: exit %d\n%s%s", code, stdout, stderr)
	}
	for args, list := range map[string]string{
		"conversations show nope": "conversations list", "authorization wait nope": "authorization list", "authorization cancel nope": "authorization list",
		"receipts verify r-aaaaaaaaaaaaaaaa": "receipts list", "disconnect nope": "grants",
	} {
		if code, stdout, stderr := b.run(false, "", strings.Fields(args)...); code != 1 || stdout != "" || !strings.Contains(stderr, "pactctl "+list+" list") {
			t.Errorf("%s: exit %d\n%s%s", args, code, stdout, stderr)
		}
	}
	known := b.json(false, 0, "discover", air)["id"].(string)
	if v := b.json(false, 0, "discover", known); v["name"] != "Larkline Air" {
		t.Errorf("by its id: %v", v)
	}

	// PO-1: what is not plainly no is yes.
	for value, off := range map[string]bool{"": false, "0": false, "false": false, "1": true, "yes": true, "no": true} {
		t.Setenv("PACT_DISABLED", value)
		code, stdout, _ := b.run(false, "", "policy", "show")
		if got := strings.HasPrefix(stdout, "PACT may not be used: disabled_by_env"); code != 0 || got != off || strings.Contains(stdout, "set: off") != off {
			t.Errorf("PACT_DISABLED=%s: exit %d\n%s", value, code, stdout)
		}
	}
	t.Setenv("PACT_DISABLED", "yes")
	refusal("disabled_by_env", "discover", air)
	t.Setenv("PACT_DISABLED", "")

	change := []string{"send", "--business", air, "--message", "Rebook me onto LK 318"}
	code, stdout, stderr := b.run(false, "", change...)
	for _, part := range []string{"Effect: change", "/message:send", "Permissions: none", "SHA-256: ", "  Rebook me onto LK 318"} {
		if !strings.Contains(stderr, part) {
			t.Errorf("%q is not shown:\n%s", part, stderr)
		}
	}
	if code != 3 || stdout != "" || !strings.HasSuffix(stderr, "repeat with --yes, or on a terminal\n") {
		t.Errorf("unasked: exit %d\n%s%s", code, stdout, stderr)
	}
	v := b.json(false, 3, append(change, "--scope", "flights:rebook")...)["approval"].(map[string]any)
	if p := v["permissions"].([]any)[0].(map[string]any); p["id"] != "flights:rebook" || p["description"] != "Rebook your flights" || v["businessName"] != "Larkline Air" {
		t.Errorf("approval %v", v)
	}
	if code, stdout, stderr := b.typing("", change...); code != 1 || stdout != "" || !strings.HasSuffix(stderr, "Send it? [y/N] \npactctl: denied: local_approval_denied: the owner declined\n") {
		t.Errorf("the input ends: exit %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, _ = b.typing("", append(change, "-o", "json")...)
	var denied map[string]any
	if err := json.Unmarshal([]byte(stdout), &denied); err != nil || code != 1 || denied["reason"] != "local_approval_denied" {
		t.Errorf("the input ends: exit %d\n%s", code, stdout)
	}
	long := strings.Repeat("x", maxLine+1)
	if code, _, stderr := b.run(false, long, "send", "--business", books, "--message", "-"); code != 1 || !strings.Contains(stderr, "message_too_long: message: it has more than 4000 characters") {
		t.Errorf("a long message: exit %d, %s", code, stderr)
	}

	if code, stdout, stderr := b.run(false, "", "chat", "nosuchbusiness"); code != 1 || stdout != "" || !strings.Contains(stderr, "invalid_input") {
		t.Errorf("chat: exit %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = b.run(false, "Rebook me onto LK 318\n"+long+"\nIs LK 204 on time?\n"+long, "chat", air)
	if code != 1 || strings.Count(stdout, "LK 204") != 1 || strings.Count(stderr, "local_approval_required") != 1 || strings.Contains(stderr, "repeat with") ||
		!strings.Contains(stderr, "by itself with pactctl send --yes") || strings.Count(stderr, "failed: message_too_long: message: it has more than 4000 characters") != 2 ||
		!strings.Contains(stderr, "Go on with: pactctl chat "+known+" --conversation c-") || strings.Contains(stderr, "pactctl: ") {
		t.Errorf("chat: exit %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, _ = b.run(false, long, "chat", air, "-o", "json")
	var unread map[string]any
	if err := json.Unmarshal([]byte(stdout), &unread); err != nil || code != 1 || unread["status"] != "failed" || unread["reason"] != "message_too_long" {
		t.Errorf("chat: exit %d\n%s", code, stdout)
	}
	code, stdout, stderr = b.typing("Rebook me onto LK 318\ny\n", "chat", air) // typed ahead is no answer
	if code != 1 || stdout != "" || strings.Count(stderr, "local_approval_denied") != 1 {
		t.Errorf("chat: exit %d\n%s%s", code, stdout, stderr)
	}

	// An interrupt off a terminal leaves the sign-in pending, and says so.
	b.json(false, 3, "authorize", air, "--scope", "flights:upcoming:read")
	id := b.json(false, 0, "authorization", "list")["authorizations"].([]any)[0].(map[string]any)["id"].(string)
	ctx, interrupt := context.WithTimeout(t.Context(), 2*time.Minute)
	defer interrupt()
	seen := &terminal{onWait: interrupt}
	a := &app{stdin: strings.NewReader(""), stdout: seen, stderr: seen, now: time.Now, zone: time.UTC}
	if code := a.run(ctx, []string{"authorization", "wait", id, "--profile", b.profile}); code != exitInterrupted || !strings.Contains(seen.String(), "stopped waiting; go on with: pactctl authorization wait --profile "+b.profile+" "+id) {
		t.Errorf("interrupted: exit %d\n%s", code, seen)
	}
	if v := b.json(false, 0, "authorization", "cancel", id); v["state"] != "cancelled" || v["businessName"] != "Larkline Air" {
		t.Errorf("cancelled: %v", v)
	}
}

// A business's id in place of its grant's is told which grants that has.
func TestDisconnectABusiness(t *testing.T) {
	list := []agent.GrantView{
		{ID: "grant-1", Business: "b-1", State: "active"}, {ID: "grant-2", Business: "b-1", State: "superseded"}, {ID: "grant-3", Business: "b-2", State: "active"},
	}
	if got := noGrant("b-1", list).Error(); got != "b-1 is a business: name its grant, grant-1" {
		t.Errorf("got %q", got)
	}
	if got := noGrant("b-3", list).Error(); got != `there is no grant "b-3": pactctl grants lists their ids` {
		t.Errorf("got %q", got)
	}
}

// CL-2: a profile's folder is its owner's alone, and one that cannot be opened is
// told by doctor.
func TestProfileFolder(t *testing.T) {
	b := newBench(t)
	code, _, stderr := b.run(false, "", "status")
	if code != 0 || !strings.Contains(stderr, "There was no profile: a new one is in "+b.profile) {
		t.Errorf("a new profile: exit %d, %s", code, stderr)
	}
	b.json(false, 0, "enroll", "--signer", b.signer)
	var names []string
	for _, c := range b.json(false, 0, "doctor")["checks"].([]any) {
		names = append(names, c.(map[string]any)["name"].(string))
	}
	if strings.Join(names, ",") != strings.Join(checkNames, ",") {
		t.Errorf("doctor checks %v", names)
	}
	t.Setenv("PACT_DISABLED", "1") // PR-1: what the signer does not say is not nothing
	code, stdout, stderr := b.run(false, "", "providers", "list")
	if code != 0 || strings.Contains(stdout, "No providers") || !strings.Contains(stdout, "not known now") {
		t.Errorf("providers: exit %d\n%s%s", code, stdout, stderr)
	}
	if v := b.json(false, 0, "providers", "list"); v["complete"] != false {
		t.Errorf("providers: %v", v)
	}
	t.Setenv("PACT_DISABLED", "")
	if err := os.Chmod(b.profile, 0o755); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = b.run(false, "", "status")
	if info, err := os.Stat(b.profile); code != 0 || err != nil || info.Mode().Perm() != 0o700 || !strings.Contains(stderr, "had mode 0755") {
		t.Errorf("open to others: exit %d, %v, %s", code, info.Mode(), stderr)
	}

	closed := func(check, fix string) {
		t.Helper()
		v := b.json(false, 1, "doctor")
		if v["ok"] != false {
			t.Errorf("%s: ok", check)
		}
		for _, c := range v["checks"].([]any) {
			c := c.(map[string]any)
			want := "unknown"
			if c["name"] == check {
				want = "failed"
			}
			if c["state"] != want || (want == "failed") != (c["fix"] != nil) {
				t.Errorf("%s: %v", check, c)
			}
			if text, _ := c["fix"].(string); want == "failed" && !strings.Contains(c["detail"].(string)+text, fix) {
				t.Errorf("%s: %v", check, c)
			}
		}
	}
	key, store := filepath.Join(b.profile, "profile.key"), filepath.Join(b.profile, "agent.db")
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	closed("profile key", "chmod 600 "+key)
	if err := errors.Join(os.Chmod(key, 0o600), os.WriteFile(key, []byte("short"), 0o600)); err != nil {
		t.Fatal(err)
	}
	closed("profile key", "is damaged")
	for _, tail := range []string{"-wal", "-shm"} {
		if err := os.Remove(store + tail); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(store, bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	closed("store", "from a backup")
	if code, stdout, _ := b.run(false, "", "doctor"); code != 1 || !strings.Contains(stdout, "failed   store") || !strings.Contains(stdout, "unknown  clock") {
		t.Errorf("doctor: exit %d\n%s", code, stdout)
	}

	// A folder that was made for something else is left as it is.
	b.profile = t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(b.profile, "notes.txt"), nil, 0o600), os.Chmod(b.profile, 0o755)); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = b.run(false, "", "enroll", "--signer", b.signer)
	if info, err := os.Stat(b.profile); code != 1 || stdout != "" || err != nil || info.Mode().Perm() != 0o755 || !strings.Contains(stderr, "chmod 700 "+b.profile) {
		t.Errorf("another's folder: exit %d, %v, %s", code, info.Mode(), stderr)
	}
}

// CV-14: what can not be reconciled any more without a grant is said before it is ended.
func TestDisconnectQuestion(t *testing.T) {
	g := agent.GrantView{ID: "grant-1", Business: "b-1", BusinessName: "Air", Scopes: []string{"a", "b"}, State: "active"}
	if got := (hints{}).disconnectQuestion(g, []agent.ReviewItem{
		{ID: "r-1", Kind: agent.ReviewEvidence, Business: "b-1"}, {ID: "m-2", Kind: agent.ReviewOperation, Business: "b-2"},
	}); got != "This ends grant-1 at b-1 Air: a b. End it?" {
		t.Errorf("got %q", got)
	}
	got := hints{}.disconnectQuestion(g, []agent.ReviewItem{{ID: "m-1", Kind: agent.ReviewOperation, Business: "b-1", Conversation: "c-1"}})
	if !strings.Contains(got, "The outcome of m-1 there is unknown") || !strings.Contains(got, "pactctl reconcile c-1") || !strings.HasSuffix(got, " End it?") {
		t.Errorf("got %q", got)
	}
}

// RD-4, EV-8, GR-11: two businesses of one name are told apart in every list, why a grant
// ended stands there, what no signature proves is marked, and all of it fits a terminal.
func TestListsTellBusinessesApart(t *testing.T) {
	var out bytes.Buffer
	pr := &printer{w: &out, now: testNow, zone: time.UTC, width: columns}
	const one, other, name = "b-cbf84d097f514748", "b-c746d3a4f2e81c01", "Larkline Air of Lisbon, Oslo and Reykjavík"
	long := testNow.Add(-12 * time.Minute)
	printed := func(what string, print func()) string {
		t.Helper()
		out.Reset()
		print()
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > columns {
				t.Errorf("%s: a line of %d columns: %s", what, n, line)
			}
		}
		if text := out.String(); !strings.Contains(text, one) || !strings.Contains(text, other) {
			t.Errorf("%s: they look alike:\n%s", what, text)
		}
		return strings.Join(strings.Fields(out.String()), " ")
	}
	text := printed("grants", func() {
		printGrants(pr, []agent.GrantView{
			{ID: "grant-siqlr6jtdlvmdpgg", State: "invalid", Reason: agent.ReasonRefreshWidened, Business: one, BusinessName: name, Scopes: []string{"flights:rebook"}, Ended: long},
			{ID: "grant-siqlr6jtdlvmdpgh", State: "disconnected", Reason: agent.ReasonOwnerEnded, Business: other, BusinessName: name, Scopes: []string{"flights:rebook"}, Ended: long},
		})
	})
	if !strings.Contains(text, "invalid (refresh_widened), ended 12m ago") || !strings.Contains(text, "disconnected, ended 12m ago") {
		t.Errorf("grants: %s", text)
	}
	text = printed("receipts", func() {
		printReceipts(pr, []agent.ReceiptView{
			{ID: "r-zrdl3gnw6lamu4yv", Verdict: agent.VerdictVerified, Business: one, BusinessName: name, Received: long, Actions: []agent.Action{{Tool: "rebook_flight"}}},
			{ID: "r-tjbl3rxjizb3227o", Verdict: agent.VerdictInvalid, Issues: []string{"bad_signature"}, Business: other, BusinessName: name, Received: long, Actions: []agent.Action{{Tool: "cancel_flight"}}},
			{ID: "r-tjbl3rxjizb3227p", Verdict: agent.VerdictMissing, Business: other, BusinessName: name, Received: long},
		})
	})
	if !strings.Contains(text, name+": rebook_flight") || !strings.Contains(text, "invalid (bad_signature), 12m ago") || !strings.Contains(text, "(unproven: cancel_flight)") {
		t.Errorf("receipts: %s", text)
	}
	for _, verdict := range []agent.Verdict{agent.VerdictInvalid, agent.VerdictUnverifiable, agent.VerdictNeedsReview} {
		printed("review", func() {
			printReviews(pr, []agent.ReviewItem{
				{ID: "r-tjbl3rxjizb3227o", Kind: agent.ReviewEvidence, Verdict: verdict, Business: one, BusinessName: name, Since: long, Open: true},
				{ID: "m-j6d6d3mlaykt4v62", Kind: agent.ReviewOperation, Business: other, BusinessName: name, Since: long},
			})
		})
	}
	printed("checks", func() {
		printChecks(pr, []agent.ReceiptView{
			{ID: "r-zrdl3gnw6lamu4yv", Verdict: agent.VerdictVerified, Business: one, Recheck: &agent.EvidenceView{Verdict: agent.VerdictVerified}},
			{ID: "r-tjbl3rxjizb3227o", Verdict: agent.VerdictNeedsReview, Business: other, Recheck: &agent.EvidenceView{Verdict: agent.VerdictUnverifiable, Issues: []string{"keys_unavailable"}}},
		})
	})
	printed("sign-ins", func() {
		printAuthorizations(pr, []agent.AuthorizationView{
			{ID: "signin-3f9k2m3f9k2m3f9k", State: "pending", Business: one, BusinessName: name, Scopes: []string{"flights:rebook", "flights:cancel"}, Deadline: testNow.Add(time.Minute)},
			{ID: "signin-3f9k2m3f9k2m3f9l", State: "failed", Reason: "grant_refused", Business: other, BusinessName: name, Settled: long},
		})
	})
	printed("conversations", func() {
		printConversations(pr, []agent.ConversationView{
			{ID: "c-zsjtodyajjqujhst", State: "awaiting_business_consent", Updated: long, Business: one, BusinessName: name},
			{ID: "c-zsjtodyajjqujhsu", State: "replied", Updated: long, Business: other, BusinessName: name},
		})
	})
	// One thing whole, with digests, which have 64 characters.
	digest := strings.Repeat("8f", 32)
	for _, verdict := range []agent.Verdict{agent.VerdictVerified, agent.VerdictInvalid} {
		printed("receipt", func() {
			printReceipt(pr, agent.ReceiptView{
				ID: "r-zrdl3gnw6lamu4yv", Verdict: verdict, Issues: []string{"bad_signature"}, Business: one, BusinessName: other + " " + name, Conversation: "c-zsjtodyajjqujhst",
				Message: "m-j6d6d3mlaykt4v62", Sent: long, Time: long, ScopesUsed: []string{"flights:rebook", "flights:upcoming:read", "flights:cancel"},
				Algorithm: "ES256", KeyID: strings.Repeat("k", 43), Digest: digest, Actions: []agent.Action{{Tool: "rebook_flight", ArgsHash: digest}},
				Problems: []agent.Problem{{Reason: "bad_signature", Detail: strings.Repeat("the signature does not verify ", 4)}},
			})
		})
	}
	printed("export", func() {
		printExportCheck(pr, exportView{"rebooked.json", agent.ExportCheck{
			Verdict: agent.VerdictVerified, Recorded: agent.VerdictVerified, Digest: digest, BodyDigest: digest, Thumbprint: strings.Repeat("k", 43),
			BusinessName: one + " " + other, InterfaceURL: "https://provider.example/a2a/air", Sent: long, Exported: long,
			Claims: &agent.ReceiptClaims{Time: long, ScopesUsed: []string{"flights:rebook"}},
		}})
	})
	for _, e := range []agent.EvidenceView{{Verdict: agent.VerdictMissing}, {Verdict: agent.VerdictUnverifiable}, {Verdict: agent.VerdictInvalid, Issues: []string{"bad_signature"}}, {Verdict: agent.VerdictVerified}} {
		e.Receipt = "r-zrdl3gnw6lamu4yv"
		printed("reply", func() {
			printReply(pr, agent.Result{Reply: one + "\n" + other, Evidence: &e, Conversation: "c-zsjtodyajjqujhst"})
		})
	}
}

// DA-12: what was allowed beyond what was asked for is marked.
func TestGrantedBeyondWhatWasAsked(t *testing.T) {
	g := &agent.GrantView{BusinessName: "Air", Scopes: []string{"a", "b", "c"}}
	for _, c := range []struct {
		r     agent.Result
		asked []string
		want  bool
	}{
		{agent.Result{Grant: g}, []string{"a", "b", "c"}, false},
		{agent.Result{Grant: g, Authorization: &agent.AuthorizationView{Scopes: []string{"a", "b", "c"}}}, []string{"a"}, false},
		{agent.Result{Grant: g, Authorization: &agent.AuthorizationView{Scopes: []string{"a", "b"}}}, nil, true},
	} {
		var out bytes.Buffer
		printGranted(&printer{w: &out, now: testNow, zone: time.UTC}, c.r, c.asked)
		if got := strings.Contains(out.String(), "Not asked for: c\n"); got != c.want || strings.Contains(out.String(), "Not asked for") != c.want {
			t.Errorf("%v:\n%s", c.asked, out.String())
		}
	}
}

// A line is read whole or told to be too long, with what follows it left in place.
func TestReadLines(t *testing.T) {
	most := strings.Repeat("é", maxLine/2)
	r := &lineReader{in: strings.NewReader(most + "\r\n" + most + "x\n\nlast")}
	for i, want := range []line{{text: most}, {err: errLongLine}, {}, {text: "last"}, {err: io.EOF}, {err: io.EOF}} {
		text, err := r.next(t.Context())
		if text != want.text || err != want.err {
			t.Errorf("line %d: %d bytes, %v", i, len(text), err)
		}
	}
}

// A profile's folder is held private too while the agent runs in another process.
func TestFolderOfARunningAgent(t *testing.T) {
	b := newBench(t)
	b.json(false, 0, "status")
	b.serve()
	if err := os.Chmod(b.profile, 0o755); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := b.run(false, "", "grants")
	if info, err := os.Stat(b.profile); code != 0 || err != nil || info.Mode().Perm() != 0o700 || !strings.Contains(stderr, "had mode 0755") {
		t.Errorf("exit %d, %v, %s", code, info.Mode(), stderr)
	}
}
