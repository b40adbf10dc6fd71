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

// ReconcileRequest names an operation whose outcome is unknown: by its
// conversation, by its business, or, if there is only one, not at all.
type ReconcileRequest struct {
	Business     string // id, domain or card URL of one that is known
	Conversation string
}

// Reconcile asks a business what became of an operation whose outcome is unknown
// (CV-14): the same message is sent again, by the same id and the same bytes, to a
// business that answers a repeated id with the reply that it gave. One that never
// got the message carries it out now, so what may change something is approved
// anew (AP-1). Only a reply ends the unknown outcome; anything else leaves it as it
// is (CV-15). It can be asked for only under what the message was sent under:
// identity, card, provider and grant.
func (a *Agent) Reconcile(ctx context.Context, c Caller, req ReconcileRequest) (Result, error) {
	if err := c.check(); err != nil {
		return Result{}, err
	}
	ctx = withNetwork(ctx, c)
	op := &operation{
		caller: c, actor: c.actor(), task: c.taskID(), ref: req.Business, req: SendRequest{Conversation: req.Conversation},
		owner: a.runtime + "/" + newID("turn"), reconciling: true,
	}
	err := a.send(ctx, op)
	if op.unusable && ctx.Err() == nil {
		if e := a.tried(op); e != nil {
			err = e
		}
	}
	return op.finish(ctx, err)
}

// tried writes down that a message was to be asked about and could not be, for the
// business is not there. Of what another works on it writes nothing.
func (a *Agent) tried(op *operation) error {
	return a.store.Update(withActor(context.Background(), op.caller), func(tx Tx) error {
		m, err := get[message](tx, op.caller.Principal, op.message.ID)
		if err != nil {
			return err
		}
		c, err := get[conversation](tx, m.Principal, m.Conversation)
		if err != nil {
			return err
		}
		if m.State != messageUnknown || a.held(&m.Head) || a.leased(&c.Head, op.owner) ||
			op.caller.mayAct("") != nil || op.caller.sameNetwork(m.Network) != nil || op.othersTask(c) != nil {
			return nil
		}
		m.Tried = a.now()
		return put(tx, m)
	})
}

// settleFrom is when the owner may settle a message that the business does not
// answer about; zero while it was not asked.
func (a *Agent) settleFrom(m *message) time.Time {
	if m.Tried.IsZero() {
		return time.Time{}
	}
	return m.Sent.Add(a.params.SettleAfter)
}

// findUnresolved finds the message that a reconcile is about, and so its business
// and conversation. One that may have changed something comes before what was
// lost of inspections.
func (a *Agent) findUnresolved(ctx context.Context, op *operation) error {
	if err := a.recover(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	return a.store.View(ctx, func(tx Tx) error {
		principal := op.caller.Principal
		q := Query{Principal: principal, States: []string{messageUnknown}}
		if id := op.req.Conversation; id != "" {
			if _, err := get[conversation](tx, principal, id); errors.Is(err, ErrNotFound) {
				return refuse(StatusFailed, ReasonNotFound, "there is no conversation %s", truncate(id, maxScopeID))
			} else if err != nil {
				return err
			}
			q.Conversation = id
		}
		there := func(string, string) bool { return true }
		if op.ref != "" {
			b, err := a.knownBusiness(tx, principal, op.ref)
			if err == nil {
				there, err = sameBusiness(tx, b)
			}
			if err != nil {
				return err
			}
		}
		lost, err := find[message](tx, q)
		if err != nil {
			return err
		}
		lost = slices.DeleteFunc(lost, func(m *message) bool {
			return m.Introduction || !m.Acknowledged.IsZero() || !there(m.Business, m.SendURL) || op.only != "" && m.ID != op.only
		})
		if slices.ContainsFunc(lost, (*message).mayChange) {
			lost = slices.DeleteFunc(lost, func(m *message) bool { return !m.mayChange() })
		} else if slices.ContainsFunc(lost, (*message).inContext) { // inspections: those that can be asked about
			lost = slices.DeleteFunc(lost, func(m *message) bool { return !m.inContext() })
		} else if len(lost) > 1 {
			lost = lost[:1]
		}
		if len(lost) == 0 {
			return refuse(StatusFailed, ReasonNothingToReconcile, "no operation there has an unknown outcome")
		}
		var in []string // conversations
		for _, m := range lost {
			if !slices.Contains(in, m.Conversation) {
				in = append(in, m.Conversation)
			}
		}
		if len(in) > 1 {
			return refuse(StatusFailed, ReasonSeveralUnresolved, "%d conversations have an operation of unknown outcome: say which, of %s",
				len(in), strings.Join(in[:min(len(in), maxRequired)], ", "))
		}
		op.message = lost[0]
		op.ref, op.req.Conversation = lost[0].Business, lost[0].Conversation
		return nil
	})
}

// inContext reports a message that was not its conversation's first.
func (m *message) inContext() bool { return m.ContextID != "" }

// knownBusiness is the business that a caller names, without the network.
func (a *Agent) knownBusiness(tx Tx, principal, ref string) (*business, error) {
	b, err := get[business](tx, principal, ref)
	if errors.Is(err, ErrNotFound) {
		var cardURL string
		if cardURL, _, err = ParseBusiness(ref).url(a.rules()); err == nil {
			b, err = findOne[business](tx, Query{Principal: principal, Key: cardURL})
		}
		if err != nil && (ReasonOf(err) != "" || errors.Is(err, ErrNotFound)) {
			return nil, refuse(StatusFailed, ReasonNotFound, "no business %s is known here", truncate(ref, maxScopeID))
		}
	}
	return b, err
}

// mayReconcile asks whether CV-14 lets a message be asked about, and makes it the
// operation's.
func (a *Agent) mayReconcile(ctx context.Context, op *operation) error {
	if err := op.caller.mayAct("send to a business"); err != nil { // AD-2, AD-4
		return err
	}
	err := a.store.View(ctx, func(tx Tx) error {
		m, err := get[message](tx, op.who.principal, op.message.ID)
		if err != nil {
			return err
		}
		op.message = m
		if err := op.caller.sameNetwork(m.Network); err != nil { // RS-5
			return err
		}
		if m.State != messageUnknown || !m.Acknowledged.IsZero() {
			return refuse(StatusFailed, ReasonNothingToReconcile, "the outcome of message %s is settled", m.ID)
		}
		if err := a.reconcilable(tx, m); err != nil {
			return err
		}
		op.wireID, op.req.Message, op.required = m.WireID, m.Text, m.Scopes
		op.effect = m.Effect
		op.result.Effect = &op.effect
		op.grant, op.exceeds = nil, false
		if m.Grant != "" {
			op.grant, err = get[grant](tx, m.Principal, m.Grant)
		}
		return err
	})
	if err != nil || op.grant == nil {
		return err
	}
	elsewhere, err := a.scopesElsewhere(ctx, op)
	if err != nil {
		return err
	}
	op.exceeds = max(EffectOfScopes(op.scopes(op.grant.Scopes)), elsewhere(op.grant.Scopes)) > op.effect // AD-9
	return nil
}

// reconcilable asks whether a message of unknown outcome can still be asked about,
// by what is stored: a *Refusal says why it never can be again.
func (a *Agent) reconcilable(tx Tx, m *message) error {
	never := func(reason Reason, why string) error {
		text := fmt.Sprintf("it can not be asked what became of message %s: %s. ", m.ID, why)
		if !m.mayChange() {
			return refuse(StatusUnknown, reason, "%sIt can have changed nothing: send it anew", text)
		}
		return refuse(StatusUnknown, reason, "%sAsk the business in another way, without repeating it, and then settle it with pactctl review acknowledge %s", text, m.ID)
	}
	if !m.inContext() {
		return never(ReasonReconcileImpossible, "it was its conversation's first, and the business answers a repeated message only within one")
	}
	body, err := BuildMessage(m.WireID, m.ContextID, m.Text)
	if err != nil || digest([]byte(m.Body)) != m.BodyDigest || !sameJSON([]byte(m.Body), body) {
		return never(ReasonReconcileImpossible, "what is stored of it is not what was sent")
	}
	c, err := get[conversation](tx, m.Principal, m.Conversation)
	if err != nil {
		return err
	}
	if c.State == conversationClosed {
		return never(ReasonClosed, "its conversation is closed ("+c.Reason+")")
	}
	now, err := a.authorityNow(tx, m)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if err != nil || now != m.Authority {
		return never(ReasonAuthorityChanged, "the identity, the business's card or the provider's settings have changed since")
	}
	if m.Grant != "" {
		g, err := get[grant](tx, m.Principal, m.Grant)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err != nil || g.stateAt(a.now()) != grantActive {
			return never(ReasonAuthorityChanged, "the permission that it was sent under has ended")
		}
	}
	return nil
}

// authorityNow is what a message would be sent under, as stored. Errors wrap
// ErrNotFound if some of it is gone.
func (a *Agent) authorityNow(tx Tx, m *message) (string, error) {
	id, err := get[identity](tx, m.Principal, identityID)
	if err != nil {
		return "", err
	}
	sub, err := findOne[binding](tx, Query{Principal: m.Principal, Key: bindingKey(id)})
	if err != nil {
		return "", err
	}
	b, err := get[business](tx, m.Principal, m.Business)
	if err != nil {
		return "", err
	}
	if b.State != businessSupported {
		return "", fmt.Errorf("a supported card: %w", ErrNotFound)
	}
	p, err := findOne[provider](tx, Query{Principal: m.Principal, Key: b.Card.Origin})
	if err != nil {
		return "", err
	}
	return authority(m, sub.ID, id.Issuer, b, p.ConfigRevision), nil
}

// reconcile sends the message again and acts on what comes back. All that may
// have changed while the owner was asked is asked once more (PO-7).
func (a *Agent) reconcile(ctx context.Context, op *operation) error {
	err := inOrder(ctx, op, a.stillAllowed, a.mayReconcile)
	if errors.Is(err, errAgain) { // another card
		err = refuse(StatusUnknown, ReasonAuthorityChanged, "the business's card has changed since the message was sent")
	}
	if err != nil {
		return err
	}
	m := op.message
	if op.approved != nil {
		m.Approved = op.approved.Request.Digest
	}
	op.caller.tell(Event{Kind: EventSending, Business: op.business.Card.Name, Detail: "asks what became of an earlier message"})
	before := m.Attempts
	reply, o, err := a.attempts(ctx, op, m, true)
	switch {
	case err != nil:
	case o.State == OutcomeReplied:
		err = a.replied(ctx, op, m, reply)
	default:
		// An answer that cannot be read is one: it will not be another the next time.
		m.Refused = m.Refused || reply.Status != 0 || o.Reason == string(egress.TooLarge) || o.Reason == string(egress.RedirectNotAllowed)
		if seenThrough(ctx, m.Attempts > before) && o.Reason != string(egress.Aborted) { // nobody broke it off
			m.Tried = a.now()
		}
		err = a.unanswered(op, m, reply, o)
	}
	return op.written(takenOver(err))
}
