package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// States of an approval.
const (
	ApprovalPending   = "pending"
	ApprovalApproved  = "approved"  // and not sent yet
	ApprovalDenied    = "denied"    // by the owner
	ApprovalExpired   = "expired"   // nobody decided in time, or it was not sent in time
	ApprovalWithdrawn = "withdrawn" // who asked does not want it any more
	ApprovalSent      = "sent"      // SentMessage tells what became of it
	ApprovalFailed    = "failed"    // approved, and refused before anything was sent
)

// ErrDecided is the cancellation cause of an approval callback whose question was
// answered elsewhere (Decide).
var ErrDecided = errors.New("the approval was decided elsewhere")

// Decision is the owner's word on an approval.
type Decision struct {
	ID      string
	Approve bool
	// Digest is the approval's, as it was shown to who decides; required to approve.
	Digest string
}

// Approvals lists what waits for the owner: their word, or what it takes to send
// what they approved; newest first. all adds what is over.
func (a *Agent) Approvals(ctx context.Context, c Caller, all bool) ([]ApprovalView, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := a.recover(ctx); err != nil {
		return nil, err
	}
	q := Query{Principal: c.Principal, States: openApprovals}
	if all {
		q.States = nil
	}
	out := []ApprovalView{}
	err := a.store.View(ctx, func(tx Tx) error {
		found, err := find[approval](tx, q)
		for _, p := range found {
			out = append(out, *p.view())
		}
		return err
	})
	return out, err
}

// Approval shows one approval. Errors wrap ErrNotFound.
func (a *Agent) Approval(ctx context.Context, c Caller, id string) (v ApprovalView, err error) {
	if err := c.check(); err != nil {
		return v, err
	}
	if err := a.recover(ctx); err != nil {
		return v, err
	}
	err = a.store.View(ctx, func(tx Tx) error {
		p, err := get[approval](tx, c.Principal, id)
		if err == nil {
			v = *p.view()
		}
		return err
	})
	return v, err
}

// openApprovals are the states of an approval that something may come of.
var openApprovals = []string{ApprovalPending, ApprovalApproved}

// waits reports an approval that something may come of. nil is none.
func (p *approval) waits() bool { return p != nil && slices.Contains(openApprovals, p.State) }

// atWork reports whether an operation holds an approval: the one that asked, or one
// that goes on with it. It does as long as it has its turn.
func (a *Agent) atWork(tx Tx, p *approval) (bool, error) {
	if p.LeaseOwner == "" || a.held(&p.Head) {
		return p.LeaseOwner != "", nil
	}
	c, err := get[conversation](tx, p.Principal, p.Conversation)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil && c.LeaseOwner == p.LeaseOwner && a.held(&c.Head), err
}

// openApproval writes down what the owner is asked. Where nobody can be asked now, a
// repeated ask is one; where somebody is, it takes the place of the earlier ask, so
// that the same is never sent by both.
func (a *Agent) openApproval(ctx context.Context, op *operation, req ApprovalRequest, asks bool) (p *approval, err error) {
	err = a.store.Update(ctx, func(tx Tx) error {
		c, now := op.conversation, a.now()
		p = &approval{
			Head: Head{ID: newID("approval"), Principal: op.who.principal, Business: op.business.ID, Conversation: c.ID,
				State: ApprovalPending, Created: now},
			Request: req, WireID: op.wireID, Declared: op.req.Effect, Required: op.required,
			Fresh:   op.req.Conversation == "" && c.State == conversationDiscovered,
			StepUps: op.stepUps, Missing: op.missing,
			Task: op.task, Actor: op.actor, Network: op.caller.networkName(),
			Expires: now.Add(a.params.ApprovalLife),
		}
		p.Request.ID = p.ID
		if op.reconciling {
			p.Reconcile = op.message.ID
		}
		if asks {
			p.lease(op.owner, now.Add(a.params.TurnLease))
		}
		open, err := find[approval](tx, Query{Principal: p.Principal, States: openApprovals})
		if err != nil {
			return err
		}
		pending, there := 0, (*approval)(nil)
		for _, o := range open {
			held, err := a.atWork(tx, o)
			if err != nil {
				return err
			}
			if a.lapsed(o, held) {
				continue
			}
			if o.State == ApprovalPending && (o.Task == "") == (p.Task == "") { // tasks take no place of the owner's
				pending++
			}
			switch {
			case op.approved != nil && o.ID == op.approved.ID, !o.sameAsk(p):
			case !asks:
				there = o
			case !held:
				if err := a.replace(tx, o, p.ID); err != nil {
					return err
				}
			}
		}
		switch {
		case there != nil && there.State == ApprovalApproved:
			op.repeats = true
			return a.approvedAlready(tx, op, there)
		case there != nil:
			op.repeats = there.Fresh && there.Conversation != c.ID
			p = there
			return a.replaceApproved(tx, op, p.ID)
		case pending >= maxPending && !(asks && op.caller.surface()): // who is here decides now
			return refuse(StatusBlocked, ReasonTooManyApprovals, "%d operations wait for the owner's word already: let them decide on those first", pending)
		}
		if err := a.replaceApproved(tx, op, p.ID); err != nil {
			return err
		}
		if err := a.forgetApprovals(tx, p.Principal); err != nil {
			return err
		}
		if asks || !op.reconciling {
			err = a.changeIn(tx, op, func(c *conversation) {
				if c.State != conversationUnknown && c.State != conversationClosed {
					c.State, c.Reason = conversationAwaitingLocal, ""
				}
			})
			if err != nil {
				return err
			}
		}
		return put(tx, p)
	})
	return p, err
}

// confirmedInstead withdraws what the owner was asked elsewhere and has confirmed
// here, whoever asked: else they might approve the same a second time.
func (a *Agent) confirmedInstead(ctx context.Context, op *operation, req ApprovalRequest) error {
	return a.store.Update(ctx, func(tx Tx) error {
		open, err := find[approval](tx, Query{Principal: op.who.principal, Business: op.business.ID, States: openApprovals})
		if err != nil {
			return err
		}
		for _, p := range open {
			held, err := a.atWork(tx, p)
			if err == nil && !held && p.Request.sameAsk(req) {
				err = a.replace(tx, p, "")
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// sameAsk reports whether two approvals are of the same ask of the same task.
func (p *approval) sameAsk(o *approval) bool {
	return p.Business == o.Business && p.Task == o.Task && p.Network == o.Network && p.Reconcile == o.Reconcile &&
		p.Fresh == o.Fresh && (p.Fresh || p.Conversation == o.Conversation) && p.Request.sameAsk(o.Request)
}

// approvedAlready refuses to ask what the owner has approved and what is not sent yet.
func (a *Agent) approvedAlready(tx Tx, op *operation, p *approval) error {
	op.result.Approval = p.view()
	switch held, err := a.atWork(tx, p); {
	case err != nil:
		return err
	case held:
		return refuse(StatusBlocked, ReasonBusy, "the same was approved, and is under way")
	case p.Authorization == "":
		return refuse(StatusApprovalRequired, ReasonApprovalRequired, "the same was approved and not sent: the owner can go on with it")
	}
	z, err := get[authorization](tx, p.Principal, p.Authorization)
	if err != nil {
		return err
	}
	op.setAuthorization(a, z)
	return refuse(StatusNeedsUserAction, ReasonSignInPending, "the same was approved, and waits for the owner to sign in at the business")
}

// replace ends an approval whose place another one takes.
func (a *Agent) replace(tx Tx, p *approval, by string) error {
	state := ApprovalWithdrawn
	if p.State == ApprovalApproved {
		state = ApprovalFailed
	}
	p.Next = by
	if err := a.endApproval(tx, p, state, ReasonApprovalReplaced); err != nil {
		return err
	}
	if p.Authorization != "" { // as in withdraw
		z, err := get[authorization](tx, p.Principal, p.Authorization)
		if err != nil && !errors.Is(err, ErrNotFound) || err == nil && z.State == authorizationPending {
			return err
		}
	}
	return a.settleConversation(tx, p)
}

// replaceApproved notes on the approval that an operation was under which one took
// its place, and ends it if it was not sent (AP-3).
func (a *Agent) replaceApproved(tx Tx, op *operation, by string) error {
	if op.approved == nil || op.approved.ID == "" {
		return nil
	}
	p, err := get[approval](tx, op.who.principal, op.approved.ID)
	if err != nil || p.LeaseOwner != op.owner {
		return err
	}
	if p.State == ApprovalApproved {
		return a.replace(tx, p, by)
	}
	p.Next = by
	p.release()
	return put(tx, p)
}

// endApproval ends an approval. The caller read it in the same transaction, open.
func (a *Agent) endApproval(tx Tx, p *approval, state string, reason Reason) error {
	p.State, p.Reason = state, reason
	p.release()
	return put(tx, p)
}

// forgetApprovals deletes what is over, beyond what is kept.
func (a *Agent) forgetApprovals(tx Tx, principal string) error {
	old, err := find[approval](tx, Query{Principal: principal, Offset: maxApprovals - 1})
	for _, p := range old {
		if !p.waits() {
			if err := tx.Delete(KindApproval, p.Principal, p.ID); err != nil {
				return err
			}
		}
	}
	return err
}

// overdue reports an approval whose time is over.
func (a *Agent) overdue(p *approval) bool { return !a.now().Before(p.Expires) }

// lapsed reports an approval that nothing may come of any more: nobody decided in
// time, whoever waits for it, or what was approved was not sent in time and nothing
// is about to.
func (a *Agent) lapsed(p *approval, held bool) bool {
	return a.overdue(p) && (!held || p.State == ApprovalPending)
}

// lapsedApprovals settle the approvals that wait for nothing any more.
func (a *Agent) lapsedApprovals(tx Tx) (left []leftover, err error) {
	open, err := find[approval](tx, Query{AllPrincipals: true, States: openApprovals})
	if err != nil {
		return nil, err
	}
	for _, p := range open {
		held, err := a.atWork(tx, p)
		if err != nil {
			return nil, err
		}
		state, reason := "", ""
		if !held && p.State == ApprovalApproved && p.Authorization != "" {
			z, err := get[authorization](tx, p.Principal, p.Authorization)
			switch {
			case err != nil && !errors.Is(err, ErrNotFound):
				return nil, err
			case err != nil:
				state, reason = ApprovalFailed, ReasonConsentUnavailable
			case z.State != authorizationPending && z.State != authorizationGranted:
				state, reason = ApprovalFailed, z.Reason
			}
		}
		if state == "" && a.lapsed(p, held) {
			state, reason = ApprovalExpired, ReasonApprovalExpired
		}
		if state != "" {
			left = append(left, func(tx Tx) error {
				if err := a.endApproval(tx, p, state, reason); err != nil {
					return err
				}
				return a.settleConversation(tx, p)
			})
		}
	}
	return left, nil
}

// settleConversation tells a conversation that waited for an approval, and in which
// nobody is at work, how that ended.
func (a *Agent) settleConversation(tx Tx, p *approval) error {
	state := map[string]string{
		ApprovalDenied: conversationDenied, ApprovalExpired: conversationExpired, ApprovalFailed: conversationDenied,
		ApprovalWithdrawn: conversationCancelled,
	}[p.State]
	if p.Reason == ReasonApprovalReplaced {
		state = conversationCancelled
	}
	c, err := get[conversation](tx, p.Principal, p.Conversation)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil || state == "" || a.held(&c.Head) || c.State != conversationAwaitingLocal && c.State != conversationAwaitingBusiness {
		return err
	}
	c.State, c.Reason, c.Updated = state, p.Reason, a.now()
	return put(tx, c)
}

// over is what it means to who would go on with an approval that it is over.
func (p *approval) over() error {
	next := ""
	if p.Next != "" {
		next = "; " + p.Next + " took its place"
	}
	switch p.State {
	case ApprovalDenied:
		return refuse(StatusDenied, ReasonApprovalDenied, "approval %s was denied", p.ID)
	case ApprovalExpired:
		return refuse(StatusExpired, ReasonApprovalExpired, "the time of approval %s is over: ask for it anew", p.ID)
	case ApprovalSent:
		return refuse(StatusBlocked, ReasonApprovalOver, "approval %s was used: message %s went out under it%s", p.ID, p.SentMessage, next)
	case ApprovalWithdrawn, ApprovalFailed:
		return refuse(StatusBlocked, ReasonApprovalOver, "approval %s is %s (%s)%s", p.ID, p.State, or(p.Reason, "never_sent"), next)
	}
	return refuse(StatusBlocked, ReasonApprovalOver, "approval %s is %s", p.ID, p.State)
}

// Decide takes the owner's word on an approval, and if they approve sends exactly
// what they approved, once: every gate of Send is asked again, and what differs from
// what was approved takes another approval (AP-3). An operation that holds the
// approval goes on by itself. What is approved already and could not be sent, for
// want of a sign-in say, is gone on with. What is approved and not sent may still be
// denied. Only on the owner's own surface, in no task. Errors wrap ErrNotFound.
func (a *Agent) Decide(ctx context.Context, c Caller, d Decision) (Result, error) {
	if err := c.check(); err != nil {
		return Result{}, err
	}
	ctx = withNetwork(ctx, c)
	op := &operation{caller: c, owner: a.runtime + "/" + newID("turn")}
	return a.finishDecision(ctx, op, d.ID, a.takeWord(ctx, op, d))
}

// takeWord writes the owner's word down, and goes on with what they approved if
// nobody else does.
func (a *Agent) takeWord(ctx context.Context, op *operation, d Decision) error {
	c := op.caller
	if err := c.mustBeSurface("approve or deny"); err != nil {
		return err
	}
	if err := a.recover(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	var p *approval
	goOn, already := false, false
	err := a.store.Update(ctx, func(tx Tx) (err error) {
		if p, err = get[approval](tx, c.Principal, d.ID); err != nil {
			return fmt.Errorf("approval %s: %w", truncate(d.ID, maxScopeID), err)
		}
		held, err := a.atWork(tx, p)
		if err != nil {
			return err
		}
		switch {
		case !d.Approve && p.State == ApprovalDenied:
			return nil
		case !p.waits():
			return p.over()
		case a.lapsed(p, held): // since a moment
			return refuse(StatusExpired, ReasonApprovalExpired, "the time of approval %s is over: ask for it anew", p.ID)
		case !d.Approve:
			a.decided(p, false, c)
			p.Reason = ReasonApprovalDenied
			if !held {
				p.release()
			}
			if err := put(tx, p); err != nil {
				return err
			}
			return a.settleConversation(tx, p)
		case d.Digest != p.Request.Digest:
			return refuse(StatusFailed, ReasonInvalidInput, "digest: it is not that of approval %s: look at it again", p.ID)
		case held:
			if already = p.State == ApprovalApproved; already {
				return nil
			}
		default:
			if err := c.sameNetwork(p.Network); err != nil { // as RS-5
				return err
			}
			goOn = true
			p.lease(op.owner, a.now().Add(a.params.TurnLease))
		}
		if p.State == ApprovalPending {
			a.decided(p, true, c)
		}
		return put(tx, p)
	})
	if err != nil {
		return err
	}
	if !goOn {
		op.result.Status, op.result.Approval = StatusDone, p.view()
		switch {
		case already:
			op.result.Detail = "it was approved already and is about to be sent, unless it is denied or refused before: look at the approval"
		case d.Approve:
			op.result.Detail = "the operation that asked goes on"
		}
		return nil
	}
	return a.goOn(ctx, op, p)
}

// goOn sends what was approved, through every gate of Send. The approval's lease is
// the operation's.
func (a *Agent) goOn(ctx context.Context, op *operation, p *approval) error {
	op.actor, op.task, op.decides = p.Actor, p.Task, true
	op.approved, op.asking, op.asked = p, p, true
	op.ref, op.req = p.Business, SendRequest{Business: p.Business, Message: p.Request.Message, Effect: p.Declared, Conversation: p.Conversation}
	op.purpose, op.wireID, op.required = truncate(p.Request.Message, maxPurpose), p.WireID, p.Required
	op.stepUps, op.missing = p.StepUps, p.Missing
	op.sends, op.reconciling, op.only = p.Reconcile == "", p.Reconcile != "", p.Reconcile
	if op.reconciling {
		op.ref = ""
	}
	return a.send(ctx, op)
}

// finishDecision is finish, with the approval as it is then.
func (a *Agent) finishDecision(ctx context.Context, op *operation, id string, err error) (Result, error) {
	if op.result.Approval == nil {
		_ = a.store.View(context.WithoutCancel(ctx), func(tx Tx) error {
			p, err := get[approval](tx, op.caller.Principal, id)
			if err == nil {
				op.result.Approval = p.view()
			}
			return err
		})
	}
	return op.finish(ctx, err)
}

// approvedToGoOn are the approvals that nobody is at and whose sign-in has ended.
func (a *Agent) approvedToGoOn(tx Tx, principal string) ([]string, error) {
	open, err := find[approval](tx, Query{Principal: principal, States: []string{ApprovalApproved}})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range open {
		if p.Authorization == "" || p.Network != "" { // another program's network (RS-5)
			continue
		}
		held, err := a.atWork(tx, p)
		if err != nil {
			return nil, err
		}
		z, err := get[authorization](tx, principal, p.Authorization)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		if !held && (err != nil || z.State != authorizationPending) {
			out = append(out, p.ID)
		}
	}
	return out, nil
}

// continueApproved goes on with what the owner approved, once the sign-in that it
// waited for has ended. The error is a *Refusal if it was not sent, or none is due.
func (a *Agent) continueApproved(ctx context.Context, t Tending, id string) error {
	if err := a.recover(ctx); err != nil { // ends it if the sign-in brought nothing
		return fmt.Errorf("recover: %w", err)
	}
	op := &operation{caller: t.Caller, owner: a.runtime + "/" + newID("turn")}
	var p *approval
	err := a.store.Update(ctx, func(tx Tx) (err error) {
		due, err := a.approvedToGoOn(tx, op.caller.Principal)
		if err != nil {
			return err
		}
		if !slices.Contains(due, id) {
			p = nil
			return nil
		}
		if p, err = get[approval](tx, op.caller.Principal, id); err != nil {
			return err
		}
		p.lease(op.owner, a.now().Add(a.params.TurnLease))
		return put(tx, p)
	})
	if err != nil || p == nil {
		return err
	}
	return a.goOn(ctx, op, p)
}

// isApproved asks whether what was approved still is: the owner may take it back, here
// or elsewhere, until it is sent.
func (a *Agent) isApproved(ctx context.Context, op *operation) error {
	if op.approved == nil || op.approved.ID == "" {
		return nil
	}
	return a.store.View(ctx, func(tx Tx) error {
		p, err := get[approval](tx, op.who.principal, op.approved.ID)
		if err == nil && !p.waits() && p.State != ApprovalSent {
			err = p.over()
		}
		return err
	})
}

// useApproval notes on the approval of a message that the message goes out, in the
// transaction after which it does. Nothing goes out that was denied or withdrawn
// meanwhile, that another operation goes on with, or whose approval was used: but
// for the same message again, of which nothing ran before (CV-11).
func (a *Agent) useApproval(tx Tx, op *operation, m *message) error {
	if op.approved == nil || op.approved.ID == "" || m.Introduction {
		return nil
	}
	p, err := get[approval](tx, op.who.principal, op.approved.ID)
	if err != nil {
		return err
	}
	if p.LeaseOwner != op.owner {
		return refuse(StatusBlocked, ReasonBusy, "something else goes on with approval %s", p.ID)
	}
	switch {
	case p.State == ApprovalSent && p.SentMessage == m.ID:
		return nil
	case p.State == ApprovalSent:
		last, err := get[message](tx, p.Principal, p.SentMessage)
		if err != nil {
			return err
		}
		if last.WireID != m.WireID || last.State != messageSuperseded && last.State != messageFailed {
			return p.over()
		}
	case p.State != ApprovalApproved:
		return p.over()
	}
	p.State, p.SentMessage = ApprovalSent, m.ID
	return put(tx, p)
}

// awaitSignIn notes on the approval of an operation which sign-in it waits for, so
// that it goes on once that is granted (Tend), whatever becomes of us.
func (a *Agent) awaitSignIn(ctx context.Context, op *operation, z *authorization) error {
	if op.approved == nil || op.approved.ID == "" {
		return nil
	}
	return a.store.Update(ctx, func(tx Tx) error {
		p, err := get[approval](tx, op.who.principal, op.approved.ID)
		if err != nil || p.LeaseOwner != op.owner || p.State != ApprovalApproved || p.Authorization == z.ID {
			return err
		}
		p.Authorization = z.ID
		return put(tx, p)
	})
}

// leaveApproval gives up what an operation that ends holds of the approval that it
// asked for last. One that was asked and left is withdrawn, unless the program
// stops; one that was approved and was not sent is over, unless it still can be.
func (a *Agent) leaveApproval(ctx context.Context, op *operation, ended error) {
	if op.asking == nil {
		return
	}
	_ = a.store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		p, err := get[approval](tx, op.asking.Principal, op.asking.ID)
		if err != nil {
			return err
		}
		if op.asking = p; p.LeaseOwner != op.owner {
			return nil
		}
		stopping := ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrStopping)
		var r *Refusal
		refused := errors.As(ended, &r)
		switch {
		case !p.waits(), stopping, op.decides && (ctx.Err() != nil || p.State == ApprovalPending):
		case ctx.Err() != nil:
			return a.withdraw(tx, op, p, ReasonUserCancelled)
		case p.State == ApprovalPending: // it could not be asked
			return a.withdraw(tx, op, p, or(ReasonOf(ended), ReasonNeverSent))
		case refused && r.Status == StatusNeedsUserAction && op.signingIn(p.Authorization): // it goes on after that
		case op.decides && (!refused || r.Reason == ReasonBusy || passing(r.Reason)):
		default:
			return a.endApproval(tx, p, ApprovalFailed, or(ReasonOf(ended), ReasonNeverSent))
		}
		p.release()
		return put(tx, p)
	})
}

// withdraw takes an approval back for who asked, who has left the turn. A sign-in
// that waits stays (DA-17), and so does a conversation that waits for it.
func (a *Agent) withdraw(tx Tx, op *operation, p *approval, reason Reason) error {
	if err := a.endApproval(tx, p, ApprovalWithdrawn, reason); err != nil {
		return err
	}
	if z := op.result.Authorization; z != nil && z.State == authorizationPending {
		return nil
	}
	return a.settleConversation(tx, p)
}

// signingIn reports whether an operation ended with this sign-in pending.
func (op *operation) signingIn(id string) bool {
	z := op.result.Authorization
	return z != nil && z.ID == id && z.State == authorizationPending
}
