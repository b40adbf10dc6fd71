package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

// deciding is an agent that has one approval, and takes the word on it.
type deciding struct {
	personal
	view   agent.ApprovalView
	result agent.Result
	err    error
	taken  []agent.Decision
	caller agent.Caller
}

func (d *deciding) Approval(_ context.Context, _ agent.Caller, id string) (agent.ApprovalView, error) {
	if id != d.view.ID {
		return agent.ApprovalView{}, fmt.Errorf("%w: %s", agent.ErrNotFound, id)
	}
	return d.view, nil
}

func (d *deciding) Decide(_ context.Context, c agent.Caller, decision agent.Decision) (agent.Result, error) {
	d.taken, d.caller = append(d.taken, decision), c
	return d.result, d.err
}

func (d *deciding) Businesses(context.Context, agent.Caller) ([]agent.BusinessView, error) {
	return []agent.BusinessView{
		{ID: "b-1", Provider: "https://other.example", FinalURL: "https://card.example/card"},
		{ID: d.view.Business, Provider: "https://provider.example", FinalURL: "https://cards.example/card"},
	}, nil
}

func (d *deciding) Conversation(_ context.Context, _ agent.Caller, id string) (agent.ConversationView, error) {
	if id != d.view.Conversation {
		return agent.ConversationView{}, agent.ErrNotFound
	}
	return agent.ConversationView{ID: id, Messages: []agent.MessageView{{Text: "What is there?", Reply: "LK 318 is EUR 900.\n\n\n\n\nShall I charge it?"}}}, nil
}

// anApproval is one that an assistant asked for.
func anApproval() agent.ApprovalView {
	return agent.ApprovalView{
		ID: "approval-4d2f6k7m3q5s2t4v", State: agent.ApprovalPending, Business: "b-cbf84d097f514748", BusinessName: "Larkline Air",
		Destination: "https://provider.example/a2a/01M8F2XW4QK7Z3V9TB5RC0HARK/message:send",
		Message:     "Rebook me onto LK 318, and if that is full onto LK 322,\nand tell me the seat", Effect: agent.EffectChange,
		Scopes: []string{"flights:rebook"}, Permissions: []agent.Scope{{ID: "flights:rebook", Description: "Rebook your flights"}},
		Digest: strings.Repeat("0123456789abcdef", 4), Conversation: "c-2fg3rwqfhqrey3up",
		Actor: "assistant desk\u202e", Created: testNow.Add(-2 * time.Minute), Expires: testNow.Add(58 * time.Minute),
	}
}

// AP-1, AP-2, AP-3, CL-2: what is decided is shown whole and asked about, once; the word is
// given with the digest that was shown; --yes answers that question and no other.
func TestApprove(t *testing.T) {
	sent := agent.Result{Status: agent.StatusReplied, Reply: "Rebooked.", Conversation: "c-2fg3rwqfhqrey3up", Evidence: &agent.EvidenceView{Receipt: "r-1", Verdict: agent.VerdictVerified}}
	waits := agent.Result{Status: agent.StatusNeedsUserAction, Reason: agent.ReasonSignInPending, Detail: "the owner must sign in", Authorization: &agent.AuthorizationView{ID: "signin-1"}}
	more := anApproval()
	more.ID, more.Changed = "approval-2", true
	cases := []struct {
		name      string
		input     string
		person    bool
		yes       bool
		state     string
		result    agent.Result
		err       error
		code      int
		decided   bool
		asked     bool
		out, last string
	}{
		{name: "yes", input: "y\n", person: true, result: sent, decided: true, asked: true, out: "  Rebooked.\n\nThe business signed for what it says it did. (receipt r-1)\nconversation c-2fg3rwqfhqrey3up\n"},
		{name: "no", input: "n\n", person: true, code: 1, asked: true, last: "declined: nothing was done"},
		{name: "the input ends", person: true, code: 1, asked: true, last: "declined: nothing was done"},
		{name: "nobody there", code: 3, last: "Send it? Nothing was done: answer with --yes, or run it on a terminal"},
		{name: "--yes", yes: true, result: sent, decided: true, out: "  Rebooked.\n\nThe business signed for what it says it did. (receipt r-1)\nconversation c-2fg3rwqfhqrey3up\n"},
		{name: "left to who asked", yes: true, result: agent.Result{Status: agent.StatusDone, Detail: "the operation that asked goes on"}, decided: true,
			out: "approval-4d2f6k7m3q5s2t4v is approved: the operation that asked goes on.\n"},
		{name: "a sign-in is missing", yes: true, result: waits, code: 3, decided: true,
			last: "needs_user_action: business_consent_required: go on with: pactctl approvals approve approval-4d2f6k7m3q5s2t4v"},
		{name: "more is asked for", yes: true, result: agent.Result{Status: agent.StatusApprovalRequired, Reason: agent.ReasonApprovalRequired, Detail: "it differs", Approval: &more}, code: 3, decided: true,
			last: "local_approval_required: it differs: go on with: pactctl approvals approve approval-2"},
		{name: "approved before", person: true, state: agent.ApprovalApproved, result: sent, decided: true, out: "  Rebooked.\n\nThe business signed for what it says it did. (receipt r-1)\nconversation c-2fg3rwqfhqrey3up\n"},
		{name: "too late", yes: true, state: agent.ApprovalExpired, err: &agent.Refusal{Status: agent.StatusExpired, Reason: "expired", Detail: "it expired"}, code: 1, decided: true, last: "expired: it expired"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a, stdout, stderr := testApp(c.input, c.person)
			a.yes = c.yes
			d := &deciding{view: anApproval(), result: c.result, err: c.err}
			if c.state != "" {
				d.view.State = c.state
			}
			p := &profile{app: a}
			p.waiting = newWaiting(a)
			defer p.waiting.close()
			err := refused(p.approve(t.Context(), d, p.caller(), d.view.ID))
			if got := exitCode(t.Context(), err); got != c.code || stdout.String() != c.out || c.last != "" && (err == nil || err.Error() != c.last) {
				t.Errorf("exit %d, %v\n%s", got, err, stdout)
			}
			if len(d.taken) > 1 || (len(d.taken) == 1) != c.decided {
				t.Fatalf("decided %v", d.taken)
			}
			if c.decided {
				if want := (agent.Decision{ID: d.view.ID, Approve: true, Digest: d.view.Digest}); d.taken[0] != want || d.caller.Confirmed {
					t.Errorf("decided %+v, confirmed %v", d.taken[0], d.caller.Confirmed)
				}
			}
			whole := strings.Contains(stderr.String(), "asked for by  assistant \"desk<U+202E>\"\n") && strings.Contains(stderr.String(), "\n  and tell me the seat\n") && strings.Contains(stderr.String(), "SHA-256: "+d.view.Digest)
			around := strings.Contains(stderr.String(), "comes from another host:\nhttps://cards.example\n") || strings.Contains(stderr.String(), "comes from another host: https://cards.example\n")
			around = around && strings.Contains(stderr.String(), "the business said last:\n  LK 318 is EUR 900.\n  <4 empty lines>\n  Shall I charge it?\n")
			if around != whole {
				t.Errorf("what it answers, and whose words the permissions are:\n%s", stderr)
			}
			if whole != (c.state == "") || strings.Contains(stderr.String(), "Send it? [y/N]") != c.asked {
				t.Errorf("shown\n%s", stderr)
			}
		})
	}
	a, _, _ := testApp("", false)
	p := &profile{app: a}
	if err := p.approve(t.Context(), &deciding{}, p.caller(), "nope"); !strings.Contains(fmt.Sprint(err), "pactctl approvals list --all lists them") || errors.Is(err, agent.ErrNotFound) {
		t.Errorf("an id that is none: %v", err)
	}
}

// What is printed of approvals, on 80 columns and where nothing is shortened.
func TestApprovalsPrinted(t *testing.T) {
	sent := anApproval()
	sent.ID, sent.State, sent.Actor = "approval-7x2b4n5p6r3w4y5z", agent.ApprovalSent, "owner"
	sent.Decided, sent.DecidedBy, sent.SentMessage = testNow.Add(-time.Minute), "token desk", "m-powzqokocexst73y"
	over := anApproval()
	over.ID, over.State, over.Reason, over.Message = "approval-3c5e7g2j4l6n2q4s", agent.ApprovalFailed, agent.ReasonApprovalRequired, "Cancel LK 204"
	over.Decided, over.Next, over.Effect = testNow.Add(-time.Hour), "approval-4d2f6k7m3q5s2t4v", agent.EffectChange
	missing := anApproval()
	missing.ID, missing.State, missing.Decided, missing.Authorization = "approval-5e7g2j4l6n2q4s6u", agent.ApprovalApproved, testNow.Add(-time.Minute), "signin-3f9k2mzzzzzzzzzz"
	all := []agent.ApprovalView{anApproval(), sent, over, missing}
	var b bytes.Buffer
	for _, width := range []int{80, 0} {
		p := &printer{w: &b, now: testNow, zone: time.UTC, width: width}
		printApprovals(p, all, false)
		p.line("")
		for _, v := range all {
			printAsked(p, v)
			printApproval(p, requestOf(v), width)
			p.line("")
		}
		printApprovals(p, nil, false)
		p.line("")
	}
	golden(t, "approvals.txt", b.Bytes())
	free := missing
	free.Authorization = ""
	for running, want := range map[bool]string{true: "the running agent sends it when it can\n", false: "send it with: pactctl approvals approve " + free.ID + "\n"} {
		var b bytes.Buffer
		if printApprovals(&printer{w: &b, now: testNow, zone: time.UTC}, []agent.ApprovalView{free}, running); !strings.Contains(b.String(), "    "+want) {
			t.Errorf("running %v:\n%s", running, &b)
		}
	}
	wide, _, _ := strings.Cut(b.String(), "Nothing waits")
	for line := range strings.Lines(wide) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// Who acted is named where it was not the owner with pactctl, and no name steers a terminal.
func TestByAnother(t *testing.T) {
	for actor, want := range map[string]string{
		"": "", "owner_cli": "", "owner": "", "token desk": "token desk", "agent": "agent",
		"owner task trip": `task "trip"`, "token desk task x, approved by the owner already": `token desk task "x, approved by the owner already"`,
		"assistant a\x1b[2Jb": `assistant "a<U+001B>[2Jb"`, `assistant a" and the owner`: `assistant "a' and the owner"`,
		"assistant a task b": `assistant "a task b"`, "dialog of a": `you in a dialog of "a"`, "token a b task c": "token a b task c",
	} {
		if got := byAnother(actor); got != want {
			t.Errorf("%q: %q", actor, got)
		}
	}
	var b bytes.Buffer
	p := &printer{w: &b, now: testNow, zone: time.UTC, width: 80}
	printConversation(p, agent.ConversationView{ID: "c-1", Business: "b-1", State: "ready", Messages: []agent.MessageView{
		{ID: "m-1", Effect: agent.EffectChange, State: "succeeded", Created: testNow, Text: "Rebook me", Actor: "assistant desk", Approval: "approval-1"},
		{ID: "m-2", State: "succeeded", Created: testNow, Text: "Where is it?", Actor: "owner_cli"},
	}})
	printAuthorizations(p, []agent.AuthorizationView{{ID: "signin-1", State: "pending", Business: "b-1", Deadline: testNow, Actor: "token desk"}})
	printAuthorization(p, agent.AuthorizationView{ID: "signin-1", State: "cancelled", Actor: "token desk", SettledBy: "owner"})
	printGrants(p, []agent.GrantView{
		{ID: "grant-1", Business: "b-1", State: "disconnected", Ended: testNow, EndedBy: "token desk"},
		{ID: "grant-2", Business: "b-1", State: "disconnected", Ended: testNow, EndedBy: "owner_cli"},
	})
	printIdentity(p, agent.IdentityView{Issuer: "https://signer.example", Mode: "device", By: "token ops"})
	printPolicy(p, agent.PolicyView{Available: true, Enabled: true, Preference: agent.PreferPACT, By: "token ops"})
	printProviders(p, []agent.ProviderView{{Origin: "https://a.example", Source: agent.SourceSettings, State: "ready", Audience: "aud", By: "token ops"}})
	golden(t, "actors.txt", b.Bytes())
}

// AP-1, AP-3, AP-4, CL-2, CL-3: what was asked for where nobody could be asked is approved or
// denied later, once, in another command; nothing else is sent, and no link shows.
func TestApprovalsOverTheAgent(t *testing.T) {
	b := newBench(t)
	air := b.box.Brands[0].Card
	b.json(false, 0, "enroll", "--signer", b.signer)
	b.json(false, 0, "audiences", "set", b.box.Provider, b.box.Audience)
	b.json(true, 0, "authorize", air, "--scope", "flights:upcoming:read")
	ask := func(message, scope string) string {
		t.Helper()
		v := b.json(false, 3, "send", "--business", air, "--scope", scope, "--message", message)
		approval, _ := v["approval"].(map[string]any)
		if v["status"] != "local_approval_required" || approval["state"] != "pending" || approval["message"] != message || approval["actor"] != "owner" {
			t.Fatalf("asked: %v", v)
		}
		return approval["id"].(string)
	}
	list := func(want int, more ...string) []any {
		t.Helper()
		all := b.json(false, 0, append([]string{"approvals", "list"}, more...)...)["approvals"].([]any)
		if len(all) != want {
			t.Errorf("approvals list %v: %v, want %d", more, all, want)
		}
		return all
	}
	state := func(id, want string) map[string]any {
		t.Helper()
		v := b.json(false, 0, "approvals", "show", id)
		if v["state"] != want {
			t.Errorf("%s is %v, want %s: %v", id, v["state"], want, v)
		}
		return v
	}
	sent := func(want int) {
		t.Helper()
		if got := b.json(false, 0, "receipts", "list")["receipts"].([]any); len(got) != want {
			t.Errorf("%d receipts, want %d", len(got), want)
		}
	}

	// The business asks for more: that is another approval, and --yes was no word on it.
	narrow := ask("Rebook me onto LK 318", "flights:upcoming:read")
	v := b.json(false, 3, "approvals", "approve", narrow, "--yes")
	wider, _ := v["approval"].(map[string]any)
	if v["status"] != "local_approval_required" || wider["changed"] != true || wider["id"] == narrow {
		t.Fatalf("step-up: %v", v)
	}
	if v := state(narrow, "sent"); v["next"] != wider["id"] {
		t.Errorf("what took its place: %v", v)
	}
	sent(0)
	code, stdout, stderr := b.run(true, "", "approvals", "approve", wider["id"].(string))
	if code != 0 || strings.Count(stderr, "Send it? [y/N]") != 1 || !strings.Contains(stderr, "This differs from what was approved before.") || !strings.Contains(stderr, "Open  http") {
		t.Errorf("step-up: exit %d\n%s%s", code, stdout, stderr)
	}
	sent(1)

	list(0)
	first := ask("Rebook me onto LK 318", "flights:rebook")
	if again := ask("Rebook me onto LK 318", "flights:rebook"); again != first {
		t.Errorf("asked again it is %s, not %s", again, first)
	}
	list(1)
	if n := b.json(false, 0, "status")["counts"].(map[string]any)["pendingApprovals"]; n != 1.0 {
		t.Errorf("%v approvals are pending", n)
	}
	if code, stdout, _ := b.run(false, "", "status"); code != 0 || !strings.Contains(stdout, "\n1 approval pending: pactctl approvals list\n") {
		t.Errorf("status: exit %d\n%s", code, stdout)
	}
	if code, stdout, _ := b.run(false, "", "doctor"); code != 0 || !strings.Contains(stdout, "approvals    1 not decided\n") || !strings.Contains(stdout, "fix: pactctl approvals list, and approve or deny\n") {
		t.Errorf("doctor: exit %d\n%s", code, stdout)
	}
	code, stdout, stderr = b.run(false, "", "send", "--business", air, "--scope", "flights:rebook", "--message", "Rebook me onto LK 318")
	if code != 3 || stdout != "" || !strings.HasSuffix(stderr, ": approve it with pactctl approvals approve "+first+", or repeat with --yes, or on a terminal\n") {
		t.Errorf("send: exit %d\n%s%s", code, stdout, stderr)
	}

	code, stdout, stderr = b.run(false, "", "approvals", "approve", first)
	if code != 3 || stdout != "" || !strings.Contains(stderr, "  Rebook me onto LK 318\n") || !strings.Contains(stderr, "answer with --yes") {
		t.Errorf("nobody there: exit %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := b.typing("n\n", "approvals", "approve", first); code != 1 || stdout != "" || !strings.Contains(stderr, "declined: nothing was done") {
		t.Errorf("declined: exit %d\n%s%s", code, stdout, stderr)
	}
	digest := state(first, "pending")["digest"]
	sent(1)
	v = b.json(false, 0, "approvals", "approve", first, "--yes")
	if v["status"] != "replied" || v["evidence"].(map[string]any)["verdict"] != "verified" {
		t.Errorf("approved: %v", v)
	}
	if after := state(first, "sent"); after["sentMessage"] != v["message"] || after["digest"] != digest || after["decidedBy"] != "owner" {
		t.Errorf("sent: %v", after)
	}
	turns := b.json(false, 0, "conversations", "show", v["conversation"].(string))["messages"].([]any)
	if turn := turns[len(turns)-1].(map[string]any); turn["approval"] != first || turn["text"] != "Rebook me onto LK 318" {
		t.Errorf("turn %v", turn)
	}
	list(0)
	list(3, "--all")
	sent(2)

	second := ask("Rebook me onto LK 204", "flights:rebook")
	if v := b.json(false, 0, "approvals", "deny", second); v["status"] != "done" || v["approval"].(map[string]any)["state"] != "denied" {
		t.Errorf("denied: %v", v)
	}
	for over, want := range map[string]string{"approve " + first: "approval_over", "deny " + first: "approval_over", "approve " + second: "local_approval_denied"} {
		if v := b.json(true, 1, append([]string{"approvals"}, strings.Fields(over)...)...); v["reason"] != want || v["detail"] == nil {
			t.Errorf("%s, which is over: %v", over, v)
		}
	}
	for _, word := range []string{"show", "approve", "deny"} {
		if code, stdout, stderr := b.run(false, "", "approvals", word, "nope"); code != 1 || stdout != "" || !strings.Contains(stderr, "pactctl approvals list --all lists them") {
			t.Errorf("%s nope: exit %d\n%s%s", word, code, stdout, stderr)
		}
	}
	sent(2)

	// A sign-in is missing: the word stays given, and nothing is asked twice.
	third := ask("Cancel my next flight", "flights:cancel")
	code, stdout, stderr = b.run(false, "", "approvals", "approve", third, "--yes", "-o", "json")
	if code != 3 || !strings.Contains(stdout, `"needs_user_action"`) || strings.Contains(stdout+stderr, "login?") || strings.Contains(stdout+stderr, "user_code") || !strings.Contains(stderr, "pactctl approvals approve "+third) {
		t.Errorf("without a sign-in: exit %d\n%s%s", code, stdout, stderr)
	}
	if v := state(third, "approved"); v["authorization"] == nil {
		t.Errorf("approved: %v", v)
	}
	// Who stops waiting for the sign-in does not take the word back.
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	seen := &terminal{onLink: func(string) { interrupt() }}
	left := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: seen, now: time.Now, zone: time.UTC, person: true}
	if code := left.run(ctx, []string{"approvals", "approve", third, "--profile", b.profile}); code != 130 || !strings.HasSuffix(unhinted(seen.String(), []string{"--profile", b.profile}), "go on with: pactctl approvals approve "+third+"\n") {
		t.Errorf("interrupted: exit %d\n%s", code, seen)
	}
	state(third, "approved")
	code, stdout, stderr = b.run(true, "", "approvals", "approve", third)
	if code != 0 || !strings.Contains(stdout, "The business signed for what it says it did.") || strings.Contains(stderr, "[y/N]") || !strings.Contains(stderr, "Open  http") {
		t.Errorf("with it: exit %d\n%s%s", code, stdout, stderr)
	}
	state(third, "sent")
	sent(3)
}
