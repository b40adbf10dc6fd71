package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// DA-10, DA-11: that a sign-in brought nothing is said with why, in our own words.
func TestSignInEndsInWords(t *testing.T) {
	for reason, want := range map[Reason]string{
		ReasonGrantRefused: "the sign-in ended: the token that came is not what was asked for, and was not kept",
		ReasonAccessDenied: "the sign-in ended: it was not allowed there",
		"something_else":   "the sign-in ended: failed",
	} {
		err := new(Agent).settledRefusal(t.Context(), &operation{}, &authorization{Head: Head{State: authorizationFailed}, Reason: reason})
		var r *Refusal
		if !errors.As(err, &r) || r.Reason != reason || r.Detail != want {
			t.Errorf("%s: %v", reason, err)
		}
	}
}

// DI-2, TR-8: a refusal says its reason once.
func TestReasonIsSaidOnce(t *testing.T) {
	err := &egress.Error{Code: egress.DestinationRefused, Purpose: egress.Card, Origin: "https://a.example", Err: errors.New("no such host")}
	for reason, want := range map[Reason]string{
		"destination_refused": "destination_refused: card https://a.example: no such host",
		"metadata_invalid":    "metadata_invalid: card https://a.example: destination_refused: no such host",
	} {
		if got := refuseErr(StatusFailed, reason, err).Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// AP-2, AP-4: where nobody can be asked, all that would be asked is told, permissions in
// words.
func TestUndecidedIsTold(t *testing.T) {
	op := &operation{caller: Caller{Origin: OriginOwner, Human: HumanNone}} // leaves no record
	req := ApprovalRequest{
		Business: "Air", Destination: "https://air.example/message:send", Message: "Cancel it", Effect: EffectChange, Changed: true,
		Scopes:  []Scope{{ID: "flights:cancel", Description: "Cancel your flights"}, {ID: "flights:rebook", Description: "Rebook your flights"}},
		Exceeds: false, TokenScopes: []Scope{{ID: "flights:all", Description: "All of it"}},
	}
	_, err := new(Agent).decide(t.Context(), op, req)
	if err == nil || !strings.HasSuffix(err.Error(), "it now needs flights:cancel, flights:rebook") {
		t.Errorf("got %v", err)
	}
	v := op.result.Approval
	if v == nil || v.BusinessName != "Air" || len(v.Permissions) != 2 || v.Permissions[0].Description != "Cancel your flights" ||
		len(v.TokenPermissions) != 1 || !v.Changed || v.Message != "Cancel it" {
		t.Errorf("got %+v", v)
	}
}
