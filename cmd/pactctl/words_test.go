package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
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
