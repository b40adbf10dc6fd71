package agent

import (
	"context"
	"reflect"
	"strings"
)

// approval is what the owner decided on. What is sent is held to it (AP-3).
type approval struct {
	ApprovalRequest
}

// approvalDigest is the SHA-256 of a message's body without its contextId: that
// one the business mints, later than the owner decides (PO-5), and it is no part
// of what is asked.
func approvalDigest(wireID, text string) (string, error) {
	body, err := BuildMessage(wireID, "", text)
	if err != nil {
		return "", err
	}
	return digest(body), nil
}

// askApproval asks the owner, if the operation changes something or its token
// could do more than it needs (AD-9, AP-1). A pre-confirmation covers the
// operation as it is the first time that this is asked, and is spent then, needed
// or not: what a step-up or a wider token makes of it is another operation. A task
// has none: who confirms is at the surface where the operation is asked for (AP-5).
func (a *Agent) askApproval(ctx context.Context, op *operation) error {
	confirmed := op.caller.Confirmed && op.caller.Task == nil && !op.asked
	op.asked = true
	if op.effect == EffectInspect && !op.exceeds {
		return nil
	}
	req, err := op.approvalRequest()
	if err != nil {
		return err
	}
	if op.approved != nil {
		if op.approved.same(req) {
			return nil
		}
		req.Changed = true // AP-3
	}
	decided, err := a.decide(ctx, op, req, confirmed)
	if err != nil {
		return err
	}
	if !decided {
		return refuse(StatusDenied, ReasonApprovalDenied, "the owner declined")
	}
	op.approved = &approval{req}
	op.result.Approval = nil
	return nil
}

// decide gets the one explicit decision (AP-1, AP-4, AP-5).
func (a *Agent) decide(ctx context.Context, op *operation, req ApprovalRequest, confirmed bool) (bool, error) {
	c := op.caller
	if confirmed {
		if c.Shown != nil {
			c.Shown(req)
		}
		return true, nil
	}
	op.result.Approval = req.view()
	if c.Approve == nil || c.Human != HumanInteractive {
		reason := ReasonApprovalRequired
		if req.Exceeds && req.Effect == EffectInspect { // AD-9: the token alone asks for it
			reason = ReasonTokenExceeds
		}
		if c.Human == HumanNone && c.Origin == OriginOwner {
			reason = ReasonApprovalUnavailable
		}
		why := "it may change something"
		if !req.SentBefore.IsZero() {
			why = "it asks what became of a message that may change something, and a business that never got it carries it out now"
		}
		if req.Exceeds {
			why = "the permission's token can do more than it needs"
		}
		if req.Changed {
			why = "it differs from what was approved: it now needs " + or(strings.Join(shown(ids(req.Scopes)), ", "), "no permission")
		}
		return false, refuse(StatusApprovalRequired, reason, "the owner must approve this: %s", why)
	}
	release, err := a.takeInput(ctx, op) // DA-13
	if err != nil {
		return false, err
	}
	defer release()
	if err := a.awaiting(ctx, op, conversationAwaitingLocal); err != nil {
		return false, err
	}
	c.tell(Event{Kind: EventApproval, Business: op.business.Card.Name})
	ok := false
	err = a.whileHeld(ctx, op, func(ctx context.Context) (err error) {
		ok, err = c.Approve(ctx, req)
		return err
	})
	if err != nil {
		return false, err
	}
	return ok, a.renewTurn(ctx, op)
}

// approvalRequest is the whole of what is decided (AP-2).
func (op *operation) approvalRequest() (ApprovalRequest, error) {
	d, err := approvalDigest(op.wireID, op.req.Message)
	if err != nil {
		return ApprovalRequest{}, refuse(StatusFailed, ReasonInvalidInput, "message: %v", err)
	}
	req := ApprovalRequest{
		Business: op.business.Card.Name, Destination: op.business.Card.SendURL(),
		Message: op.req.Message, Effect: op.effect, Scopes: eachScope(op.scopes(op.required), Scope.full),
		Exceeds: op.exceeds, Digest: d,
	}
	if op.reconciling {
		req.SentBefore = op.message.Sent
	}
	if op.exceeds {
		req.TokenScopes = eachScope(op.scopes(op.grant.Scopes), Scope.full)
	}
	return req, nil
}

func (p *approval) same(req ApprovalRequest) bool {
	old := p.ApprovalRequest
	old.Changed, req.Changed = false, false
	return reflect.DeepEqual(old, req)
}

func (r ApprovalRequest) view() *ApprovalView {
	return &ApprovalView{
		BusinessName: r.Business, Destination: r.Destination, Message: r.Message, Effect: r.Effect,
		Scopes: ids(r.Scopes), Permissions: r.Scopes, Digest: r.Digest, Exceeds: r.Exceeds, TokenPermissions: r.TokenScopes,
		Changed: r.Changed, SentBefore: r.SentBefore,
	}
}

func ids(scopes []Scope) []string {
	out := make([]string, len(scopes))
	for i, s := range scopes {
		out[i] = s.ID
	}
	return out
}
