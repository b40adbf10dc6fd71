package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pactsigner/pactsigner/agent/egress"
)

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// adoptContext takes the context that the business minted, if none is held
// (CV-7). A secret that it echoes is none: it would be kept and shown (RD-2).
func (op *operation) adoptContext(id string) {
	if op.conversation.ContextID == "" && len(id) <= maxURLInput && RedactText(id) == id {
		op.conversation.ContextID = id
	}
}

// stateOf is the journal's state for an attempt that brought no reply.
func stateOf(o Outcome) string {
	switch o.State {
	case OutcomeUnknown:
		return messageUnknown
	case OutcomeCancelled:
		return messageCancelled
	}
	return messageFailed
}

// deliverMessage sends the message itself and acts on what comes back.
func (a *Agent) deliverMessage(ctx context.Context, op *operation) error {
	m := &message{WireID: op.wireID, Text: op.req.Message, Effect: op.effect, Scopes: op.required}
	if op.grant != nil {
		m.Grant = op.grant.ID
	}
	if op.approved != nil {
		m.Approved, m.Approval = op.approved.Request.Digest, op.approved.ID
	}
	op.caller.tell(Event{Kind: EventSending, Business: op.business.Card.Name})
	reply, o, err := a.transmit(ctx, op, m)
	if err != nil { // nothing was sent, or nothing that was carried out, unless it says so
		return op.written(err)
	}
	switch o.State {
	case OutcomeReplied:
		err = a.replied(ctx, op, m, reply)
	case OutcomeAuthRequired:
		err = a.stepUp(op, m, reply.StepUp)
	case OutcomeRestart:
		err = a.restart(op, m, o)
	default:
		err = a.unanswered(op, m, reply, o)
	}
	return op.written(takenOver(err))
}

// written notes that the end of what was sent is written down, unless err says that it
// could not be.
func (op *operation) written(err error) error {
	var r *Refusal
	if err == nil || errors.Is(err, errAgain) || errors.As(err, &r) {
		op.out = nil
	}
	return err
}

// takenOver is what it means that the end of what was sent could not be written
// down because the turn was taken over for dead: whoever did so counts it as
// unknown (RS-1).
func takenOver(err error) error {
	if ReasonOf(err) == ReasonBusy || errors.Is(err, ErrConflict) {
		return refuse(StatusUnknown, ReasonInterrupted, "the turn took longer than its lease: it is not known whether it was carried out")
	}
	return err
}

// transmit journals a message (CV-2) and sends it until its fate is known, with
// the same id and the same bytes every time. An error is a *Refusal that nothing
// was carried out, or that it is not known (takenOver), errAgain, or of the journal.
func (a *Agent) transmit(ctx context.Context, op *operation, m *message) (Reply, Outcome, error) {
	if err := a.stillAllowed(ctx, op); err != nil {
		return Reply{}, Outcome{}, err
	}
	if err := a.prepare(op, m); err != nil {
		return Reply{}, Outcome{}, err
	}
	return a.attempts(ctx, op, m, false)
}

// attempts sends a message that is written down until its fate is known. While
// reconciling nothing but a reply says anything about it (CV-15), and the error is
// nil.
func (a *Agent) attempts(ctx context.Context, op *operation, m *message, reconciling bool) (Reply, Outcome, error) {
	turn := Turn{Effect: m.Effect, ContextID: m.ContextID, Delegated: m.Grant != "", Reconciling: reconciling}
	rejected, waited, rated, silent := false, false, 0, 0
	var back error                // that nothing ran could not be written down
	stays, land := ctx, func() {} // once it is on its way: until it is known that nothing ran
	defer func() { land() }()
	flies := false
	for {
		token, reused, d, err := a.readyAgain(stays, op, m, rejected, waited)
		if err = cmp.Or(back, err); err == nil {
			err = a.markSending(op, m, turn.Reconciling)
		}
		switch {
		case err != nil && turn.Reconciling: // CV-15
			return Reply{}, Outcome{State: OutcomeUnknown, Reason: unknownBecause(stays, err, or(m.Reason, ReasonStillProcessing))}, nil
		case err != nil:
			return a.neverSent(stays, op, m, err)
		}
		if !flies {
			stays, land = op.outlast(ctx, m)
			flies = true
		}
		if !m.Introduction {
			op.out = m
		}
		reply, retryAfter, o := a.attempt(stays, op, m, turn, token, d)
		if (o.ClearTokens || o.State == OutcomeRateLimited) && !turn.Reconciling { // nothing ran
			op.out = nil
		}
		switch {
		case o.ClearTokens:
			a.tokenRefused(ctx, op.who, op.audience, reused)
			if !rejected { // nothing ran (SG-9)
				rejected = true
				back = a.takenBack(op, m, silent == 0)
				continue
			}
		case o.State == OutcomeRateLimited: // CV-10
			if rated++; rated > maxRateRetries {
				o.State = OutcomeNotExecuted
				if turn.Reconciling {
					o.State = OutcomeUnknown
				}
				return reply, o, nil
			}
			if !turn.Reconciling && ctx.Err() == nil { // nothing ran, and who asked is there
				land()
				stays, land, flies = ctx, func() {}, false
			}
			back = a.pause(stays, op, m, a.rateWait(retryAfter), "the business limits requests", silent == 0)
			if stays.Err() != nil {
				o = Outcome{State: OutcomeCancelled, Reason: unsentBecause(stays)}
				if turn.Reconciling {
					o.State = OutcomeUnknown
				}
				return reply, o, nil
			}
			waited = true
			continue
		case o.State == OutcomeStillRunning: // CV-9
			// From here on a refusal says nothing about the message (CV-15).
			turn.Reconciling = true
			if silent == len(a.params.NoReplyWaits) {
				return reply, Outcome{State: OutcomeUnknown, Reason: ReasonStillProcessing}, nil
			}
			if err := a.pause(stays, op, m, a.params.NoReplyWaits[silent], "the business has no answer yet", false); err != nil {
				return reply, Outcome{State: OutcomeUnknown, Reason: unknownBecause(stays, err, ReasonStillProcessing)}, nil
			}
			silent++
			waited = true
			continue
		}
		return reply, o, nil
	}
}

// readyAgain is what an attempt carries, if it may still be made: after a wait all
// that it was made under is asked again (PO-7).
func (a *Agent) readyAgain(ctx context.Context, op *operation, m *message, fresh, waited bool) (token PAToken, reused bool, d *delegation, err error) {
	if waited {
		if err = a.stillAllowed(ctx, op); err != nil {
			return token, false, nil, err
		}
	}
	if op.authority(m) != m.Authority {
		return token, false, nil, errAgain
	}
	return a.credentials(ctx, op, m, fresh)
}

// unknownBecause is the reason to keep with an unknown outcome when no attempt
// could be made for err.
func unknownBecause(ctx context.Context, err error, otherwise Reason) Reason {
	switch {
	case errors.Is(err, errAgain):
		return ReasonAuthorityChanged
	case ctx.Err() != nil:
		return whoLeft(ctx)
	}
	return or(ReasonOf(err), otherwise)
}

// whoLeft is why what may have been sent is not waited for any more.
func whoLeft(ctx context.Context) Reason {
	if errors.Is(context.Cause(ctx), ErrStopping) {
		return ReasonInterrupted
	}
	return ReasonUserCancelled
}

// credentials are what an attempt carries. A wait may have outlived the one
// before, so each attempt asks for them (GR-5, SG-7).
func (a *Agent) credentials(ctx context.Context, op *operation, m *message, fresh bool) (token PAToken, reused bool, d *delegation, err error) {
	if m.Grant != "" {
		if d, err = a.delegationFor(ctx, op.caller, op.who, op.business, m.Grant); err != nil {
			return token, false, nil, err
		}
		if !covers(d.grant.Scopes, m.Scopes) { // GR-7: it was narrowed
			return token, false, nil, errAgain
		}
		op.grant, op.sentUnder = d.grant, d
	}
	token, reused, err = a.paToken(ctx, op.who, op.audience, fresh)
	return token, reused, d, err
}

// takenBack renews the lease of a message that goes out again. If nothing ran of it
// (CV-10, SG-9), it is one that is not sent until then (RS-2), and so is what the owner
// approved: they may deny it meanwhile, and who gave the word may lose it.
func (a *Agent) takenBack(op *operation, m *message, nothingRan bool) error {
	return a.journal(op, m, func(tx Tx) error {
		if !nothingRan {
			return nil
		}
		if m.State == messageSending {
			m.State = messagePrepared
		}
		return a.unused(tx, op, m)
	})
}

// pause waits before the next attempt, the lease renewed. The error is that of the
// journal, or why ctx ended.
func (a *Agent) pause(ctx context.Context, op *operation, m *message, d time.Duration, why string, nothingRan bool) error {
	at := a.now().Add(d)
	op.caller.tell(Event{Kind: EventWaiting, Business: op.business.Card.Name, Detail: why, Until: at})
	if err := a.takenBack(op, m, nothingRan); err != nil {
		return err
	}
	return a.wait(ctx, at)
}

// prepare writes a message down before the network is used (CV-2).
func (a *Agent) prepare(op *operation, m *message) error {
	c := op.conversation
	body, err := BuildMessage(m.WireID, c.ContextID, m.Text)
	if err != nil {
		return refuse(StatusFailed, ReasonInvalidInput, "message: %v", err)
	}
	m.Head = Head{
		ID: newID("m"), Principal: op.who.principal, Business: op.business.ID, Conversation: c.ID,
		State: messagePrepared, Created: a.now(),
	}
	m.Task, m.Actor, m.Network = op.task, op.actor, op.caller.networkName()
	m.Body, m.BodyDigest, m.ContextID = string(body), digest(body), c.ContextID
	m.CardRevision, m.ProviderRevision, m.SendURL = op.business.CardRevision, op.provider, op.business.Card.SendURL()
	m.Authority = op.authority(m)
	if !m.Introduction {
		op.message = m
	}
	return a.journal(op, m, func(Tx) error { return nil })
}

// authority is the fingerprint of what a message would be sent under now (CV-2).
func (op *operation) authority(m *message) string {
	return authority(m, op.who.binding.ID, op.who.id.Issuer, op.business, op.provider)
}

func authority(m *message, binding, issuer string, b *business, provider int64) string {
	return digest(fmt.Appendf(nil, "pact-authority/1\n%s\n%s\n%s\n%d\n%d\n%s\n%s\n%s\n",
		binding, issuer, b.Card.SendURL(), b.CardRevision, provider, m.Grant, m.Effect, strings.Join(m.Scopes, " ")))
}

// markSending is the last thing before the network (CV-2): the approval and the
// bytes are checked once more (AP-3), and what holds the message back, in the
// transaction after which it holds others back (CV-4, EV-6). Asking again for the
// reply of what was sent is held back by nothing; a message whose outcome is
// unknown stays that (CV-15), whatever becomes of us.
func (a *Agent) markSending(op *operation, m *message, reconciling bool) error {
	if digest([]byte(m.Body)) != m.BodyDigest {
		return refuse(StatusFailed, ReasonInvalidInput, "the message changed after it was prepared")
	}
	if op.approved != nil && !m.Introduction {
		d, err := approvalDigest(m.WireID, m.Text)
		if err != nil || d != op.approved.Request.Digest || m.Approved != d {
			return refuse(StatusApprovalRequired, ReasonApprovalRequired, "the message is not the one that was approved")
		}
	}
	return a.journal(op, m, func(tx Tx) error {
		if err := a.useApproval(tx, op, m); err != nil {
			return err
		}
		if !reconciling {
			if op.conversation.State == conversationClosed {
				return refuse(StatusBlocked, ReasonClosed, "conversation %s is closed (%s): start a new one", op.conversation.ID, op.conversation.Reason)
			}
			if err := a.heldBack(tx, op, m.Effect, m.ID); err != nil {
				return err
			}
			if m.GrantScopes = nil; op.sentUnder != nil && m.Grant != "" {
				m.GrantScopes = op.sentUnder.grant.Scopes
			}
		}
		m.Attempts++
		if op.reconciling {
			m.Reconciled, m.ReconciledBy = a.now(), op.actor
			m.ReconciledConfirmed = op.approved != nil && op.approved.ID == ""
		}
		if m.State == messageUnknown {
			return nil
		}
		m.State = messageSending
		if m.Sent.IsZero() {
			m.Sent = a.now()
		}
		op.conversation.State, op.conversation.Reason, op.conversation.Authorization = conversationSending, "", ""
		return nil
	})
}

// journal changes a message and its conversation together, and renews both
// leases. It does not follow the caller's context: what happened is written down.
func (a *Agent) journal(op *operation, m *message, change func(Tx) error) error {
	return a.store.Update(withActor(context.Background(), op.caller), func(tx Tx) error {
		m.lease(op.owner, a.now().Add(a.params.TurnLease))
		return a.changeInWith(tx, op, func() error {
			if err := change(tx); err != nil {
				return err
			}
			return put(tx, m)
		})
	})
}

// changeInWith lets change work on op.conversation, as read in this transaction,
// and stores it.
func (a *Agent) changeInWith(tx Tx, op *operation, change func() error) error {
	var failed error
	err := a.changeIn(tx, op, func(c *conversation) {
		op.conversation = c
		failed = change()
	})
	if failed != nil {
		return failed
	}
	return err
}

// neverSent records that a prepared message was not sent, and why.
func (a *Agent) neverSent(ctx context.Context, op *operation, m *message, cause error) (Reply, Outcome, error) {
	state, reason := messageFailed, or(ReasonOf(cause), ReasonNeverSent)
	went := m.State == messageSending
	switch {
	case errors.Is(cause, errAgain):
		state, reason = messageSuperseded, ReasonInsufficient
	case ctx.Err() != nil:
		state, reason = messageCancelled, unsentBecause(ctx)
		cause = refuse(StatusCancelled, reason, "nothing was sent")
		if m.Attempts > 0 {
			cause = refuse(StatusCancelled, reason, "nothing was carried out")
		}
	}
	err := a.journal(op, m, func(tx Tx) error {
		if m.Attempts > 0 { // an attempt before this one was refused
			state = messageFailed
		}
		if err := a.unused(tx, op, m); err != nil {
			return err
		}
		m.State, m.Reason = state, reason
		m.release()
		if op.conversation.State == conversationSending {
			op.conversation.State = conversationReady
		}
		return nil
	})
	if went && !m.Introduction {
		err = takenOver(err)
	}
	if ReasonOf(err) == ReasonInterrupted || err != nil && ReasonOf(err) == "" {
		return Reply{}, Outcome{}, err
	}
	return Reply{}, Outcome{}, cause
}

// attempt is one request to the business.
func (a *Agent) attempt(ctx context.Context, op *operation, m *message, turn Turn, token PAToken, d *delegation) (Reply, string, Outcome) {
	header := http.Header{}
	header.Set("Authorization", "Bearer "+token.Reveal())
	header.Set("Content-Type", TypeJSON)
	header.Set("A2A-Version", version1)
	if d != nil {
		header.Set("X-A2A-User-Delegation", "Bearer "+d.token.Reveal())
	}
	resp, err := a.do(ctx, egress.Request{
		Purpose: egress.Message, Method: "POST", URL: m.SendURL, Header: header, Body: []byte(m.Body),
	})
	if err != nil {
		text := strings.Replace(err.Error(), ": "+string(egress.CodeOf(err))+": ", ": ", 1) // the reason stands beside it
		return Reply{ErrorText: RedactText(text)}, "", ClassifyError(err, turn)
	}
	reply := readReply(resp.Status, resp.Header.Get("Content-Type"), resp.Header.Get("WWW-Authenticate"), resp.Body)
	a.withhold(&reply, m.Principal, m.Business)
	return reply, resp.Header.Get("Retry-After"), Classify(reply, turn)
}

// unanswered records and reports an attempt that brought no reply.
func (a *Agent) unanswered(op *operation, m *message, reply Reply, o Outcome) error {
	err := a.journal(op, m, func(tx Tx) error {
		m.release()
		if op.reconciling { // CV-15: of the message it says nothing
			return nil
		}
		m.State, m.Reason = stateOf(o), o.Reason
		if m.State == messageCancelled || m.State == messageFailed && passes(refuse(StatusFailed, o.Reason, "nothing ran")) {
			if err := a.unused(tx, op, m); err != nil {
				return err
			}
		} else if m.State == messageFailed {
			if _, err := a.notRun(tx, op, m); err != nil {
				return err
			}
		}
		c := op.conversation
		c.Reason = o.Reason
		switch {
		case o.CloseConversation:
			c.State = conversationClosed
		case o.State == OutcomeUnknown:
			c.State = conversationUnknown
		case o.State == OutcomeCancelled:
			c.State = conversationCancelled
		default:
			c.State = conversationReady
		}
		return nil
	})
	if err != nil {
		return err
	}
	if o.State != OutcomeUnknown { // what is written down is known
		op.out = nil
	}
	if o.InvalidateGrant && op.grant != nil { // GR-8
		if err := a.endGrantByID(withActor(context.Background(), op.caller), op.who.principal, op.grant.ID, grantInvalid, ReasonDelegationGone); err != nil {
			return err
		}
		if o.State != OutcomeUnknown { // CV-15: of the message it may say nothing
			return refuse(StatusNeedsUserAction, ReasonReconnect, "the business does not accept the permission any more: sign in again")
		}
	}
	detail := reply.ErrorText
	if detail == "" && reply.Status != 0 {
		detail = "the business answers HTTP " + strconv.Itoa(reply.Status)
	}
	switch o.State {
	case OutcomeUnknown:
		text := "it is not known whether the business carried this out."
		if m.mayChange() { // CV-12
			text += " Do not repeat it by another route."
		}
		if m.ContextID != "" {
			text += " Ask what became of it with pactctl reconcile " + m.Conversation + "."
		}
		return refuse(StatusUnknown, o.Reason, "%s", text)
	case OutcomeCancelled:
		return refuse(StatusCancelled, o.Reason, "nothing was carried out")
	}
	switch o.Reason {
	case ReasonIdentityRejected:
		return refuse(StatusBlocked, o.Reason, "the business does not accept our identity for audience %q: is the issuer registered there?", op.audience)
	case string(egress.PolicyDenied), string(egress.DestinationRefused), string(egress.InvalidURL):
		return refuse(StatusFailed, o.Reason, "nothing was sent")
	}
	return refuse(StatusFailed, o.Reason, "%s", detail)
}

// stepUp answers a task that waits for consent (CV-13). Its own link is ignored
// (DA-18).
func (a *Agent) stepUp(op *operation, m *message, s StepUp) error {
	var denied *approval
	err := a.journal(op, m, func(tx Tx) (err error) {
		m.State = messageAuthRequired
		m.release()
		op.adoptContext(s.ContextID)
		op.conversation.State, op.conversation.Authorization = conversationAwaitingBusiness, ""
		if denied, err = a.notRun(tx, op, m); denied != nil {
			op.conversation.State = conversationReady
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case denied != nil:
		return denied.over()
	}
	missing := slices.Sorted(slices.Values(s.MissingScopes))
	op.result.MissingScopes = shown(missing)
	switch {
	case len(missing) == 0:
		return refuse(StatusUnsupported, ReasonStepUpUnsupported, "the business asks for permissions without naming them")
	case slices.ContainsFunc(missing, func(id string) bool { _, ok := op.business.Card.Scope(id); return !ok }):
		return refuse(StatusUnsupported, ReasonStepUpUnsupported, "the business asks for a permission that its card does not have")
	case op.grant != nil && covers(op.grant.Scopes, missing), op.stepUps > 0 && slices.Equal(missing, op.missing):
		return refuse(StatusDenied, ReasonInsufficient, "the business asks again for what was granted")
	case op.stepUps == maxStepUps:
		return refuse(StatusUnsupported, ReasonStepUpUnsupported, "the business asks for permissions a third time")
	}
	op.caller.tell(Event{Kind: EventStepUp, Business: op.business.Card.Name, Detail: strings.Join(op.result.MissingScopes, " ")})
	op.stepUps++
	op.missing = missing
	op.required = union(op.required, missing)
	op.wireID = uuid.NewString() // nothing ran: this is another message
	return errAgain
}

// shown is a list of the business's as it may be shown: short, and redacted.
func shown(names []string) []string {
	out := slices.Clone(names[:min(len(names), maxRequired)])
	for i, s := range out {
		out[i] = RedactText(truncate(s, maxScopeID))
	}
	return out
}

// restart begins a fresh context, once: the business closed the old one and ran
// nothing (CV-11).
func (a *Agent) restart(op *operation, m *message, o Outcome) error {
	if op.restarted {
		o.State = OutcomeNotExecuted
		return a.unanswered(op, m, Reply{ErrorText: "the business closed the conversation"}, o)
	}
	op.restarted = true
	err := a.journal(op, m, func(tx Tx) error {
		m.State, m.Reason = messageSuperseded, ReasonContextClosed
		m.release()
		op.conversation.ContextID, op.conversation.Account = "", ""
		return a.unused(tx, op, m)
	})
	if err != nil {
		return err
	}
	return errAgain
}
