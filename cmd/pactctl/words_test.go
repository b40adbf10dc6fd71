package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// A QR code is for a telephone, which cannot open a link to this machine, and for a
// terminal on which the link still shows beneath it.
func TestQR(t *testing.T) {
	for _, c := range []struct {
		origin string
		height int
		want   bool
	}{
		{"https://larkline.example", 0, true},
		{"https://larkline.example", 60, true},
		{"https://larkline.example", 10, false},
		{"http://127.0.0.1:8900", 60, false},
		{"http://[::1]:8900", 60, false},
	} {
		a, _, stderr := testApp("", true)
		a.height = c.height
		p := &profile{app: a}
		p.showSignIn(agent.SignIn{Link: agent.Secret(c.origin + "/login?code=ABCD"), LinkOrigin: c.origin, UserCode: "ABCD", Expires: testNow})
		before, _, _ := strings.Cut(stderr.String(), "Open  ")
		if got := strings.Contains(before, "█"); got != c.want || strings.Count(stderr.String(), "█") != strings.Count(before, "█") {
			t.Errorf("%s at %d lines: QR %v, want it %v and before the link:\n%s", c.origin, c.height, got, c.want, stderr)
		}
	}
}

// Lifting everything names what else it lifts.
func TestResumeQuestion(t *testing.T) {
	all := &signerv1.KillEntry{Id: "e1", Scope: &signerv1.Scope{Kind: "all"}}
	device := &signerv1.KillEntry{Id: "e2", Scope: &signerv1.Scope{Kind: "device", Value: testDevice}}
	for want, held := range map[string][]*signerv1.KillEntry{
		"Lift this entry at https://s?": {all},
		"This also lifts the stop of device " + testDevice + " (e2). Lift these 2 entries at https://s?": {all, device},
	} {
		if got := resumeQuestion(all.Scope, held, "https://s"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := resumeQuestion(device.Scope, []*signerv1.KillEntry{device}, "https://s"); got != "Lift this entry at https://s?" {
		t.Errorf("got %q", got)
	}
}

// limitOf is what a token of a scope may do.
type limitOf control.Scope

func (l limitOf) Scope() control.Scope { return control.Scope(l) }
func (l limitOf) Decides() bool        { return l.Scope() == control.ScopeAdmin }
func (l limitOf) SignsIn() bool        { return l.Decides() || l.Scope() == control.ScopeOperator }

// Errors that need the owner say how to go on.
func TestRemedy(t *testing.T) {
	r := agent.Result{Status: agent.StatusApprovalRequired, Reason: agent.ReasonApprovalRequired, Detail: "approve this"}
	if got := resultError(r).Error(); !strings.HasSuffix(got, "approve this: repeat with --yes, or on a terminal") {
		t.Errorf("got %q", got)
	}
	r.MissingScopes = []string{"flights:cancel"}
	if got := resultError(r).Error(); !strings.HasSuffix(got, ": repeat with --scope flights:cancel --yes, or on a terminal") {
		t.Errorf("got %q", got)
	}
	r.Approval = &agent.ApprovalView{ID: "approval-1"}
	if got := resultError(r).Error(); !strings.HasSuffix(got, ": approve it with pactctl approvals approve approval-1, or repeat with --scope flights:cancel --yes, or on a terminal") {
		t.Errorf("got %q", got)
	}
	// A token that cannot give the owner's word is not told to repeat it with --yes.
	for scope, held := range map[control.Scope]bool{control.ScopeOperator: true, control.ScopeAssistant: true, control.ScopeAdmin: false} {
		p := &profile{app: &app{}, limit: limitOf(scope)}
		for _, got := range []string{p.remedy(r), p.chatRemedy(r)} {
			if want := ": go on with: pactctl approvals approve approval-1, as the owner (the token used here has the scope " + string(scope) + ")"; (got == want) != held || strings.Contains(got, "--yes") == held {
				t.Errorf("%s: got %q", scope, got)
			}
		}
	}
	waits := agent.Result{Status: agent.StatusNeedsUserAction, Authorization: &agent.AuthorizationView{ID: "signin-1"}}
	for scope, want := range map[control.Scope]string{
		control.ScopeOperator:  ": go on with: pactctl authorization wait signin-1",
		control.ScopeAssistant: ": go on with: pactctl authorization wait signin-1, as the owner (the token used here has the scope assistant)",
	} {
		if got := (&profile{app: &app{}, limit: limitOf(scope)}).remedy(waits); got != want {
			t.Errorf("%s: got %q", scope, got)
		}
	}
	for reason, want := range map[string]string{
		agent.ReasonSignerUnavailable:  "http://127.0.0.1:8787",
		agent.ReasonCredentialRejected: "--token-file",
	} {
		if got := enrollHint(errors.New("x"), reason).Error(); !strings.HasPrefix(got, "x; ") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q", reason, got)
		}
	}
	if got := enrollHint(errors.New("connection refused"), agent.ReasonSignerUnavailable).Error(); !strings.Contains(got, "signer serve") {
		t.Errorf("got %q", got)
	}
}
