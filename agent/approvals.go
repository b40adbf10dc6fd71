package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/agent/egress"
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
// here, whoever asked: else they might approve the same a second time. What they approved
// and something is at already is refused here instead.
func (a *Agent) confirmedInstead(ctx context.Context, op *operation, req ApprovalRequest) error {
	return a.store.Update(ctx, func(tx Tx) error {
		if err := op.caller.stands(tx); err != nil {
			return err
		}
		open, err := find[approval](tx, Query{Principal: op.who.principal, Business: op.business.ID, States: openApprovals})
		if err != nil {
			return err
		}
		for _, p := range open {
			held, err := a.atWork(tx, p)
			switch {
			case err != nil:
				return err
			case !p.Request.sameAsk(req):
				continue
			case held && p.State == ApprovalApproved: // it is about to be sent
				return a.approvedAlready(tx, op, p)
			case held: // who asked it waits for the answer
				continue
			case p.State == ApprovalPending: // they decided it, where they confirmed
				p.Decided, p.DecidedBy = a.now(), op.caller.actor()
			}
			if err := a.replace(tx, p, ""); err != nil {
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
		return refuse(StatusApprovalRequired, ReasonApprovalRequired, "the same was %s", p.stays())
	}
	z, err := get[authorization](tx, p.Principal, p.Authorization)
	switch {
	case err != nil && !errors.Is(err, ErrNotFound):
		return err
	case err != nil || z.State != authorizationPending:
		return refuse(StatusApprovalRequired, ReasonApprovalRequired, "the same was %s", p.stays())
	}
	op.setAuthorization(a, z)
	return refuse(StatusNeedsUserAction, ReasonSignInPending, "the same was approved, and waits for the owner to sign in at the business")
}

// sender is who sends an approval that was left approved: the running agent knows one
// network profile alone.
func (p *approval) sender() string {
	if p.Network != "" {
		return "the program that asked"
	}
	return "the running agent"
}

// stays is what comes of an approval that was left approved, for people.
func (p *approval) stays() string {
	text := "approved and is not sent yet: " + p.sender() + " sends it when it can"
	if p.Network == "" {
		text += ", or pactctl approvals approve " + p.ID
	}
	return text
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
			brought := false
			switch {
			case errors.Is(err, ErrNotFound):
				state, reason = ApprovalFailed, ReasonConsentUnavailable
			case err == nil && z.State != authorizationPending:
				brought, err = broughtBy(tx, z, p.Required)
			}
			switch {
			case err != nil && !errors.Is(err, ErrNotFound):
				return nil, err
			case err == nil && z.State != authorizationPending && !brought:
				state, reason = ApprovalFailed, or(z.Reason, ReasonInsufficient)
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
		ApprovalDenied: conversationDenied, ApprovalExpired: conversationExpired, ApprovalWithdrawn: conversationCancelled,
	}[p.State]
	if p.State == ApprovalFailed {
		switch p.Reason {
		case ReasonAccessDenied, ReasonInsufficient:
			state = conversationDenied
		case ReasonConsentExpired:
			state = conversationExpired
		case ReasonApprovalReplaced, ReasonUserCancelled, ReasonNeverSent:
			state = conversationCancelled
		default: // nothing was sent: it can be gone on with
			state = conversationReady
		}
	}
	c, err := get[conversation](tx, p.Principal, p.Conversation)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil || state == "" || a.held(&c.Head) || c.State != conversationAwaitingLocal && !c.waitsFor(p) {
		return err
	}
	c.State, c.Reason, c.Updated = state, p.Reason, a.now()
	return put(tx, c)
}

// waitsFor reports a conversation that waits for the sign-in which an approval waits
// for, or did and was not gone on with.
func (c *conversation) waitsFor(p *approval) bool {
	return c.State == conversationAwaitingBusiness || c.State == conversationReady && p.Authorization != "" && c.Authorization == p.Authorization
}

// TakeBack puts what an actor approved and what is not sent yet back to wait for the
// owner's word, and returns how many that are: for the transaction of the profile's store
// in which it is noted that the actor can give it no more. What is about to be sent is
// not sent then, until it is approved anew. What is on its way, which does not count, goes
// back too if nothing ran of it.
func TakeBack(tx Tx, principal, actor string, now time.Time) (n int, err error) {
	approved, err := find[approval](tx, Query{Principal: principal, States: []string{ApprovalApproved, ApprovalSent}})
	if err != nil {
		return 0, err
	}
	for _, p := range approved {
		if p.DecidedBy != actor {
			continue
		}
		if p.State == ApprovalSent {
			flies, err := p.onItsWay(tx)
			if flies && !p.TakenBack {
				p.TakenBack = true
				err = put(tx, p)
			}
			if err != nil {
				return 0, err
			}
			continue
		}
		c, err := get[conversation](tx, p.Principal, p.Conversation)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return 0, err
		case c.LeaseOwner == "" && c.waitsFor(p): // else whose turn it is tells it
			c.State, c.Reason, c.Updated = conversationAwaitingLocal, "", now
			if err := put(tx, c); err != nil {
				return 0, err
			}
		}
		p.waitAnew()
		if err := put(tx, p); err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// waitAnew has an approval wait for the owner's word again, for who gave it may no more.
func (p *approval) waitAnew() {
	p.State, p.Reason, p.Authorization = ApprovalPending, ReasonApproverRevoked, ""
	p.Failures, p.NextTry = 0, time.Time{}
}

// onItsWay reports an approval whose message has gone out, and of which nothing is written
// down yet of how that ends.
func (p *approval) onItsWay(tx Tx) (bool, error) {
	if p.State != ApprovalSent || p.LeaseOwner == "" {
		return false, nil
	}
	m, err := get[message](tx, p.Principal, p.SentMessage)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil && m.LeaseOwner == p.LeaseOwner && (m.State == messageSending || m.State == messageUnknown), err // CV-14
}

// over is what it means to who would go on with an approval that it is over, or was
// taken back.
func (p *approval) over() error {
	if p.State == ApprovalPending && p.Reason == ReasonApproverRevoked {
		return refuse(StatusApprovalRequired, p.Reason, "what %s was approved by is revoked: it waits to be approved anew", p.ID)
	}
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
// denied; of what is on its way that is refused, but kept for if nothing runs of it: then
// it is not sent again. Who leaves before it is sent takes their word back, and it waits
// for it again; where the program stops (ErrStopping) it stays approved, and is sent by
// Tend.
// Only on the owner's own surface, in no task. Errors wrap ErrNotFound.
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
	goOn, already, flies := false, false, false
	err := a.store.Update(ctx, func(tx Tx) (err error) {
		if err := c.stands(tx); err != nil {
			return err
		}
		if p, err = get[approval](tx, c.Principal, d.ID); err != nil {
			return fmt.Errorf("approval %s: %w", truncate(d.ID, maxScopeID), err)
		}
		held, err := a.atWork(tx, p)
		if err != nil {
			return err
		}
		if flies, err = p.onItsWay(tx); err != nil {
			return err
		}
		switch {
		case !d.Approve && p.State == ApprovalDenied:
			return nil
		case flies && !d.Approve:
			if p.Denied.IsZero() {
				p.Denied, p.DeniedBy = a.now(), c.actor()
			}
			return put(tx, p)
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
	if flies {
		return refuse(StatusBlocked, ReasonApprovalOver, "message %s is on its way under approval %s, and may be carried out; "+
			"if the business does not take it, it is denied, and not sent again", p.SentMessage, p.ID)
	}
	if !goOn {
		op.result.Status, op.result.Approval = StatusDone, p.view()
		switch {
		case already:
			op.result.Detail = "it was approved already and is about to be sent, unless it is denied or refused before: look at the approval"
		case d.Approve:
			op.result.Detail = "the operation that asked goes on; if that ends before it is sent, " + p.sender() + " sends it"
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

// approvedToGoOn are the approvals that nobody is at, whose sign-in has ended if they wait
// for one, and that are due to be tried again if they could not be sent.
func (a *Agent) approvedToGoOn(tx Tx, principal string) (due []*approval, err error) {
	open, err := find[approval](tx, Query{Principal: principal, States: []string{ApprovalApproved}})
	if err != nil {
		return nil, err
	}
	for _, p := range open {
		if wait := p.NextTry.Sub(a.now()); wait > 0 && wait <= a.params.PollMax { // longer is of a clock that was wrong
			continue
		}
		held, err := a.atWork(tx, p)
		if err != nil {
			return nil, err
		}
		if p.Authorization != "" {
			z, err := get[authorization](tx, principal, p.Authorization)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return nil, err
			}
			held = held || err == nil && z.State == authorizationPending
		}
		if !held {
			due = append(due, p)
		}
	}
	return due, nil
}

// continueApproved goes on with what the owner approved and nobody is at, for Tend. The
// error is a *Refusal if it was not sent, or none is due.
func (a *Agent) continueApproved(ctx context.Context, c Caller, id string) error {
	if err := a.recover(ctx); err != nil { // ends it if the sign-in brought nothing
		return fmt.Errorf("recover: %w", err)
	}
	op := &operation{caller: c, owner: a.runtime + "/" + newID("turn"), tends: true}
	var p *approval
	err := a.store.Update(ctx, func(tx Tx) error {
		due, err := a.approvedToGoOn(tx, c.Principal)
		i := slices.IndexFunc(due, func(o *approval) bool { return o.ID == id })
		if p = nil; err != nil || i < 0 {
			return err
		}
		if err := c.sameNetwork(due[i].Network); err != nil { // there is none of its name any more (RS-4, RS-5)
			if err := a.endApproval(tx, due[i], ApprovalFailed, ReasonOtherNetwork); err != nil {
				return err
			}
			return a.settleConversation(tx, due[i])
		}
		p = due[i]
		p.lease(op.owner, a.now().Add(a.params.TurnLease))
		return put(tx, p)
	})
	if err != nil || p == nil {
		return err
	}
	return a.goOn(ctx, op, p)
}

// isApproved asks whether what was approved still is: the owner may take it back, here
// or elsewhere, until it is sent, and so does who revokes what they approved by.
func (a *Agent) isApproved(ctx context.Context, op *operation) error {
	if op.approved == nil || op.approved.ID == "" {
		return nil
	}
	return a.store.View(ctx, func(tx Tx) error {
		p, err := get[approval](tx, op.who.principal, op.approved.ID)
		if err == nil && p.State != ApprovalApproved && p.State != ApprovalSent {
			err = p.over()
		}
		return err
	})
}

// useApproval notes on the approval of a message that the message goes out, in the
// transaction after which it does. Nothing goes out that was denied or withdrawn
// meanwhile, that another operation goes on with, or whose approval was used: but
// for the same message again, to hear its reply (CV-9).
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
	case p.State != ApprovalApproved:
		return p.over()
	}
	p.State, p.SentMessage = ApprovalSent, m.ID
	return put(tx, p)
}

// unused makes the approval of a message one that is not sent yet again, in the transaction
// in which it is written down that nothing ran of the message and that it may go out anew:
// the business did not take it, or was not reached (CV-10, CV-11). What was denied meanwhile
// is so from then on, and what was taken back waits to be approved anew.
func (a *Agent) unused(tx Tx, op *operation, m *message) error {
	p, err := a.sentAs(tx, op, m)
	if p == nil {
		return err
	}
	p.State, p.SentMessage = ApprovalApproved, ""
	if !p.deniedMeanwhile() && p.TakenBack {
		p.waitAnew()
	}
	p.TakenBack = false
	return put(tx, p)
}

// notRun ends the approval of a message that was denied meanwhile, in the transaction in
// which it is written down that nothing ran of the message, and that it does not go out
// anew. It reports whether there is such a one.
func (a *Agent) notRun(tx Tx, op *operation, m *message) (denied *approval, err error) {
	p, err := a.sentAs(tx, op, m)
	if p == nil || !p.deniedMeanwhile() {
		return nil, err
	}
	p.SentMessage = ""
	return p, put(tx, p)
}

// sentAs is the approval of an operation under which a message went out, nil if none.
func (a *Agent) sentAs(tx Tx, op *operation, m *message) (*approval, error) {
	if op.approved == nil || op.approved.ID == "" || m.Introduction {
		return nil, nil
	}
	p, err := get[approval](tx, op.who.principal, op.approved.ID)
	if err != nil || p.LeaseOwner != op.owner || p.State != ApprovalSent || p.SentMessage != m.ID {
		return nil, err
	}
	return p, nil
}

// deniedMeanwhile makes an approval denied if it was while its message was on its way, and
// reports that.
func (p *approval) deniedMeanwhile() bool {
	if p.Denied.IsZero() {
		return false
	}
	p.State, p.Reason, p.Decided, p.DecidedBy = ApprovalDenied, ReasonApprovalDenied, p.Denied, p.DeniedBy
	p.Denied, p.DeniedBy = time.Time{}, ""
	return true
}

// awaitSignIn notes which sign-in an operation waits for, whatever becomes of us: on its
// conversation, which follows how that ends, and on its approval, so that it goes on
// once that is granted (Tend).
func (a *Agent) awaitSignIn(ctx context.Context, op *operation, z *authorization) error {
	if op.conversation == nil {
		return nil
	}
	return a.store.Update(ctx, func(tx Tx) error {
		err := a.changeIn(tx, op, func(c *conversation) { c.Authorization = z.ID })
		if err != nil || op.approved == nil || op.approved.ID == "" {
			return err
		}
		p, err := get[approval](tx, op.who.principal, op.approved.ID)
		if err != nil || p.LeaseOwner != op.owner || p.State != ApprovalApproved || p.Authorization == z.ID {
			return err
		}
		p.Authorization = z.ID
		return put(tx, p)
	})
}

// leaveApproval gives up what an operation that ends holds of the approval that it
// asked for last, and returns what it ends with.
//
// A question that was asked and left is withdrawn, unless the program stops. What was
// approved and is not sent stays approved, for whatever goes on with it first: the
// owner (Decide) or Tend. It is over if it was refused for what does not pass by
// itself; and who gave the word takes it back by leaving: what they asked themselves is
// withdrawn, and what they approved by Decide waits again, but while they are to sign in.
func (a *Agent) leaveApproval(ctx context.Context, op *operation, ended error) error {
	if op.asking == nil {
		return ended
	}
	result := ended
	err := a.store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		p, err := get[approval](tx, op.asking.Principal, op.asking.ID)
		if err != nil {
			return err
		}
		var r *Refusal
		refused, left := errors.As(ended, &r), ctx.Err() != nil
		stops := left && (op.tends || errors.Is(context.Cause(ctx), ErrStopping))
		if op.asking = p; p.LeaseOwner != op.owner {
			if ended != nil && op.out == nil && (refused && r.Status == StatusCancelled || !refused && left) { // it is not given up
				result = p.elsewhere(ended)
			}
			return nil
		}
		switch {
		case !p.waits():
		case p.State == ApprovalPending && (stops || op.decides):
		case p.State == ApprovalPending && !left && (p.Reason == ReasonApproverRevoked || refused && r.Reason == ReasonApproverRevoked):
		case p.State == ApprovalPending && left:
			return a.withdraw(tx, op, p, ReasonUserCancelled)
		case p.State == ApprovalPending: // it could not be asked
			return a.withdraw(tx, op, p, or(ReasonOf(ended), ReasonNeverSent))
		case left && op.decides && op.signingIn(p.Authorization): // it goes on after that, whoever closed their terminal
		case left && !stops && op.decides:
			p.State, p.Decided, p.DecidedBy, p.Authorization = ApprovalPending, time.Time{}, "", ""
			p.Failures, p.NextTry = 0, time.Time{}
			result = refuse(StatusCancelled, ReasonUserCancelled, "it was not sent, and the word is taken back: %s waits to be approved again, or denied", p.ID)
		case left && !stops && (p.DecidedBy == op.caller.actor() || errors.Is(context.Cause(ctx), ErrAborted)):
			return a.withdraw(tx, op, p, ReasonUserCancelled)
		case left:
			result = refuse(StatusApprovalRequired, ReasonApprovalRequired, "it was left before it was sent: it is %s", p.stays())
		case refused && r.Status == StatusNeedsUserAction && op.signingIn(p.Authorization): // it goes on after that
		case refused && r.Reason == ReasonApproverRevoked: // and it was approved anew since
			result = refuse(StatusApprovalRequired, ReasonApprovalRequired, "it was taken back before it was sent, and then approved anew: it is %s", p.stays())
		case !refused || passes(ended):
			p.Failures++
			p.NextTry = a.now().Add(min(a.params.PollMin<<min(p.Failures, maxDoublings), a.params.PollMax))
			if refused {
				result = &Refusal{r.Status, r.Reason, r.Text() + " (it is " + p.stays() + ")", r.Err}
			}
		default:
			if err := a.endApproval(tx, p, ApprovalFailed, or(ReasonOf(ended), ReasonNeverSent)); err != nil {
				return err
			}
			return a.settleConversation(tx, p)
		}
		if left && op.signsIn() || refused && r.Status == StatusUnknown { // what it waits for is that; and CV-15
			result = ended
		}
		p.release()
		if err := put(tx, p); err != nil {
			return err
		}
		return a.waitsStill(tx, p)
	})
	if err != nil && ended != nil && op.out == nil && ctx.Err() != nil {
		return refuse(StatusApprovalRequired, ReasonApprovalRequired,
			"it could not be written down that it was left: see pactctl approvals show %s, and deny what is not to be sent", op.asking.ID)
	}
	return result
}

// elsewhere is how an operation ends that was left, and whose approval something else has.
func (p *approval) elsewhere(ended error) error {
	switch {
	case p.State == ApprovalPending:
		return refuse(StatusApprovalRequired, ReasonApprovalRequired, "it was left before it was sent: %s waits for the owner's word", p.ID)
	case p.State == ApprovalApproved:
		return refuse(StatusApprovalRequired, ReasonBusy, "something else goes on with it: see pactctl approvals show %s, and deny it if it is not to be sent", p.ID)
	case p.State == ApprovalSent:
		return p.over()
	}
	return ended
}

// maxDoublings bounds how far a pause grows.
const maxDoublings = 16

// passes reports a refusal that may pass by itself, of what was not sent: the card, the
// metadata, the signer or the business is away, or busy.
func passes(err error) bool {
	var r *Refusal
	if !errors.As(err, &r) || r.Status != StatusFailed && r.Status != StatusBlocked {
		return false
	}
	switch r.Reason {
	case ReasonSignerUnavailable, ReasonBusy, ReasonFetchFailed, ReasonInvalidJSON, ReasonConsentUnavailable, ReasonReconnect,
		string(egress.Network), string(egress.Timeout), string(egress.DestinationRefused), string(egress.RateLimited):
		return true
	case ReasonMetadataInvalid: // unless it was there to be read
		var invalid *MetadataError
		return !errors.As(err, &invalid)
	}
	return strings.HasPrefix(r.Reason, "http_5")
}

// waitsStill notes on a conversation in which nobody is at work that an approval was left
// open in it.
func (a *Agent) waitsStill(tx Tx, p *approval) error {
	if !p.waits() {
		return nil
	}
	c, err := get[conversation](tx, p.Principal, p.Conversation)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil || a.held(&c.Head) {
		return err
	}
	switch c.State {
	case conversationAwaitingBusiness:
		if z, err := get[authorization](tx, p.Principal, c.Authorization); err == nil && z.State == authorizationPending {
			return nil
		}
	case conversationDiscovered, conversationReady, conversationSending, conversationCancelled:
	default:
		return nil
	}
	c.State, c.Reason, c.Updated = conversationAwaitingLocal, "", a.now()
	return put(tx, c)
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
	return op.signsIn() && op.result.Authorization.ID == id
}

// signsIn reports whether an operation ended with a sign-in pending.
func (op *operation) signsIn() bool {
	z := op.result.Authorization
	return z != nil && z.State == authorizationPending
}
