package agent

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

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
		if op.approved.Request.same(req) {
			return nil
		}
		req.Changed = true // AP-3
	}
	if confirmed {
		if op.caller.Shown != nil {
			op.caller.Shown(req)
		}
		op.approved = &approval{Request: req}
		return a.confirmedInstead(ctx, op, req)
	}
	p, err := a.decide(ctx, op, req)
	if err != nil {
		return err
	}
	op.approved = p
	op.result.Approval = nil
	return nil
}

// decide gets the one explicit decision (AP-1, AP-4): now, or later by the record
// that it leaves. The error is a *Refusal unless the owner approved.
func (a *Agent) decide(ctx context.Context, op *operation, req ApprovalRequest) (*approval, error) {
	c := op.caller
	asks := c.Approve != nil && c.Human == HumanInteractive
	if c.Human == HumanNone && c.Origin == OriginOwner { // and nobody looks later
		op.result.Approval = req.view()
		return nil, refuse(StatusApprovalRequired, ReasonApprovalUnavailable, "the owner must approve this: %s", req.why())
	}
	if asks {
		release, err := a.takeInput(ctx, op) // DA-13
		if err != nil {
			op.result.Approval = req.view()
			return nil, err
		}
		defer release()
	}
	p, err := a.openApproval(ctx, op, req, asks)
	if err != nil {
		return nil, err
	}
	op.result.Approval = p.view()
	if !asks {
		op.asking = nil // another one has its place
		reason := ReasonApprovalRequired
		if req.Exceeds && req.Effect == EffectInspect { // AD-9: the token alone asks for it
			reason = ReasonTokenExceeds
		}
		return nil, refuse(StatusApprovalRequired, reason, "the owner must approve this: %s", req.why())
	}
	op.asking = p
	c.tell(Event{Kind: EventApproval, Business: op.business.Card.Name})
	if p, err = a.askOwner(ctx, op, p); err != nil {
		return nil, err
	}
	op.result.Approval = p.view()
	switch p.State {
	case ApprovalApproved:
		return p, a.renewTurn(ctx, op)
	case ApprovalDenied:
		return nil, refuse(StatusDenied, ReasonApprovalDenied, "the owner declined")
	}
	return nil, p.over()
}

// askOwner asks by the caller's callback, and at the same time looks whether a
// decision is made elsewhere (Decide): that one counts, and ends the callback's
// context. It returns the record as it is then.
func (a *Agent) askOwner(ctx context.Context, op *operation, p *approval) (*approval, error) {
	yes, late := false, false // late: by the timer, which setting the clock back does not reach
	err := a.whileHeld(ctx, op, func(ctx context.Context) (err error) {
		asking, stop := context.WithCancelCause(ctx)
		var watching sync.WaitGroup
		watching.Go(func() {
			if a.untilDecided(asking, p) {
				stop(ErrDecided)
			}
		})
		watching.Go(func() {
			if late = a.wait(asking, p.Expires) == nil; late {
				stop(errOverdue)
			}
		})
		defer func() { stop(nil); watching.Wait() }()
		yes, err = op.caller.Approve(asking, p.Request)
		return err
	})
	heard := a.store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		q, e := get[approval](tx, p.Principal, p.ID)
		if e != nil {
			return e
		}
		p = q
		switch {
		case p.State != ApprovalPending: // decided elsewhere
			return nil
		case late || a.overdue(p):
			return a.endApproval(tx, p, ApprovalExpired, ReasonApprovalExpired)
		case errors.Is(err, ErrDecided): // and taken back since
			return p.over()
		case err != nil:
			return err
		case ctx.Err() != nil: // who left did not answer
			return context.Cause(ctx)
		case p.LeaseOwner != op.owner:
			return refuse(StatusBlocked, ReasonBusy, "another turn of conversation %s is under way", p.Conversation)
		}
		a.decided(p, yes, op.caller)
		return put(tx, p)
	})
	return p, heard
}

// errOverdue ends a question to which nobody gave an answer in time.
var errOverdue = errors.New("the time to approve it is over")

// untilDecided waits until an approval is not pending any more, or ctx ends, and
// tells which.
func (a *Agent) untilDecided(ctx context.Context, p *approval) (decided bool) {
	return nil == a.follow(ctx, KindApproval, p.Principal, p.ID, func() (done bool, _ error) {
		_ = a.store.View(ctx, func(tx Tx) error { // if it fails now it may work the next time
			now, err := get[approval](tx, p.Principal, p.ID)
			done = err == nil && now.State != ApprovalPending
			return err
		})
		return done, nil
	})
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

// same reports whether what was approved is what is asked (AP-3).
func (r ApprovalRequest) same(other ApprovalRequest) bool {
	return r.Digest == other.Digest && r.sameAsk(other)
}

// sameAsk is same but for the message's id.
func (r ApprovalRequest) sameAsk(other ApprovalRequest) bool {
	form := func(r ApprovalRequest) []byte {
		r.ID, r.Digest, r.Changed, r.SentBefore = "", "", false, r.SentBefore.UTC()
		b, err := json.Marshal(r, json.Deterministic(true))
		if err != nil { // it holds text, booleans and a time
			return nil
		}
		return b
	}
	x, y := form(r), form(other)
	return x != nil && bytes.Equal(x, y)
}

// why is why the owner is asked.
func (r ApprovalRequest) why() string {
	switch {
	case r.Changed:
		return "it differs from what was approved: it now needs " + or(strings.Join(shown(ids(r.Scopes)), ", "), "no permission")
	case r.Exceeds:
		return "the permission's token can do more than it needs"
	case !r.SentBefore.IsZero():
		return "it asks what became of a message that may change something, and a business that never got it carries it out now"
	}
	return "it may change something"
}

func (r ApprovalRequest) view() *ApprovalView {
	return &ApprovalView{
		ID: r.ID, BusinessName: r.Business, Destination: r.Destination, Message: r.Message, Effect: r.Effect,
		Scopes: ids(r.Scopes), Permissions: nonNil(r.Scopes), Digest: r.Digest, Exceeds: r.Exceeds, TokenPermissions: r.TokenScopes,
		Changed: r.Changed, SentBefore: r.SentBefore,
	}
}

// view is the approval as a surface shows it.
func (p *approval) view() *ApprovalView {
	v := p.Request.view()
	v.State, v.Reason, v.Business, v.Conversation = p.State, p.Reason, p.Business, p.Conversation
	v.Task, v.Actor, v.Created, v.Expires = p.Task, p.Actor, p.Created, p.Expires
	v.Decided, v.DecidedBy, v.SentMessage, v.Authorization, v.Next = p.Decided, p.DecidedBy, p.SentMessage, p.Authorization, p.Next
	return v
}

func ids(scopes []Scope) []string {
	out := make([]string, len(scopes))
	for i, s := range scopes {
		out[i] = s.ID
	}
	return out
}

// decided takes down the owner's word.
func (a *Agent) decided(p *approval, yes bool, by Caller) {
	p.Decided, p.DecidedBy = a.now(), by.actor()
	p.State, p.Reason = ApprovalDenied, ReasonApprovalDenied
	if yes {
		p.State, p.Reason, p.Expires = ApprovalApproved, "", latest(p.Expires, a.now().Add(a.params.ApprovalLife))
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
