package control_test

import (
	"testing"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// AP-1: what a token approved and what waits for a sign-in is not sent once the token is
// revoked, however soon the sign-in is done, until somebody else approves it.
func TestRevokedAdminsWordIsTakenBack(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	owner := w.curl()
	admin := owner.with("Authorization", "Bearer "+w.token(control.ScopeAdmin).Reveal())
	asked := owner.with("Pact-Task", "trip").operate("/v1/conversations:send",
		`{"business":"`+w.air()+`","message":"Rebook my flight to the evening","effect":"change","scopes":["`+rebook+`"]}`, nil)
	p := asked.GetApproval()
	decided := admin.operate("/v1/approvals/"+p.GetId()+":decide", `{"decision":"approve","digest":"`+p.GetDigest()+`"}`, nil)
	if decided.Status != string(agent.StatusNeedsUserAction) || decided.Authorization == nil {
		t.Fatalf("decided: %+v", decided)
	}
	tokens := control.NewTokens(w.store, "owner", nil)
	approval := new(agentv1.Approval)
	if owner.do("GET", "/v1/approvals/"+p.GetId(), "", approval); approval.State != agent.ApprovalApproved || approval.DecidedBy != "token t-admin" {
		t.Errorf("approved: %+v", approval)
	}
	revoked, err := tokens.Revoke(t.Context(), "t-admin")
	if err != nil || revoked.TakenBack != 1 || revoked.State != control.TokenRevoked {
		t.Fatalf("revoked: %+v, %v", revoked, err)
	}
	if again, err := tokens.Revoke(t.Context(), "t-admin"); err != nil || again.TakenBack != 0 {
		t.Errorf("revoked again: %+v, %v", again, err)
	}
	approval = new(agentv1.Approval)
	if owner.do("GET", "/v1/approvals/"+p.GetId(), "", approval); approval.State != agent.ApprovalPending || approval.Reason != agent.ReasonApproverRevoked {
		t.Errorf("taken back: %+v", approval)
	}
	r, err := w.local.WaitAuthorization(t.Context(), w.person(), decided.Authorization.Id)
	w.ended("sign in", r, err, agent.StatusDone, "")
	talk, err := w.local.Conversation(t.Context(), w.caller(), approval.Conversation)
	if err != nil || talk.State != "awaiting_local_authority" || len(talk.Messages) != 0 {
		t.Errorf("conversation: %+v, %v", talk, err)
	}
	last := owner.operate("/v1/approvals/"+p.GetId()+":decide", `{"decision":"approve","digest":"`+p.GetDigest()+`"}`, nil)
	if last.Status != string(agent.StatusReplied) || last.Approval.GetDecidedBy() != "owner" {
		t.Errorf("approved anew: %+v", last)
	}
}
