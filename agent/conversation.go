package agent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// enterConversation finds or starts the conversation and takes its turn (CV-3).
// An operation of unknown outcome at the business refuses it (CV-4), except to
// ask what became of it; whether that can be done, mayReconcile says.
func (a *Agent) enterConversation(ctx context.Context, op *operation) error {
	if err := a.recover(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	now := a.now()
	var c *conversation
	err := a.store.Update(ctx, func(tx Tx) error {
		if op.req.Conversation == "" {
			c = &conversation{
				Head:    Head{ID: newID("c"), Principal: op.who.principal, Business: op.business.ID, State: conversationDiscovered, Created: now},
				Binding: op.who.binding.ID, Task: op.task,
			}
		} else {
			var err error
			if c, err = get[conversation](tx, op.who.principal, op.req.Conversation); errors.Is(err, ErrNotFound) {
				return refuse(StatusFailed, ReasonNotFound, "there is no conversation %s", truncate(op.req.Conversation, maxScopeID))
			} else if err != nil {
				return err
			}
			if err := op.othersTask(c); err != nil {
				return err
			}
			switch {
			case c.Business != op.business.ID:
				return refuse(StatusFailed, ReasonNotThisBusiness, "conversation %s is with another business", c.ID)
			case !op.reconciling && (c.State == conversationClosed || c.Binding != op.who.binding.ID):
				return refuse(StatusFailed, ReasonClosed, "conversation %s is closed (%s): start a new one", c.ID, c.Reason)
			case a.leased(&c.Head, op.owner):
				return refuse(StatusBlocked, ReasonBusy, "another turn of conversation %s is under way", c.ID)
			}
		}
		if !op.reconciling {
			if err := a.unresolved(tx, op, EffectInspect, ""); err != nil { // whatever its effect will be
				return err
			}
		}
		c.lease(op.owner, now.Add(a.params.TurnLease))
		c.Updated = now
		return put(tx, c)
	})
	if err != nil {
		return err
	}
	op.conversation = c
	return nil
}

// othersTask refuses a task what it did not begin. To send what the owner approved
// begins nothing new.
func (op *operation) othersTask(c *conversation) error {
	if op.task == "" || c.Task == op.task || op.decides {
		return nil
	}
	return refuse(StatusBlocked, ReasonOtherTask, "conversation %s was not begun by this task, and a task goes on with its own only", c.ID)
}

// leaveConversation gives the turn back; if that fails the lease ends by itself.
// A conversation that was begun for an operation that nothing came of is no
// conversation.
func (a *Agent) leaveConversation(op *operation) {
	ctx := quietly(withActor(context.Background(), op.caller), KindApproval)
	_ = a.store.Update(ctx, func(tx Tx) error {
		c := op.conversation
		if err := a.keepApproval(tx, op); err != nil {
			return err
		}
		if op.req.Conversation == "" && c.State == conversationDiscovered {
			if _, err := findOne[message](tx, Query{Principal: c.Principal, Conversation: c.ID}); errors.Is(err, ErrNotFound) {
				op.conversation = nil
				return tx.Delete(KindConversation, c.Principal, c.ID)
			}
		}
		z, err := endedSignIn(tx, c)
		if err != nil {
			return err
		}
		return a.changeIn(tx, op, func(c *conversation) {
			c.release()
			switch {
			case c.State == conversationDiscovered, c.State == conversationSending && op.out == nil: // an introduction that failed
				c.State = conversationReady
			case z != nil: // from here on it follows by itself
				c.signedIn(z)
			}
		})
	})
}

// keepApproval renews the lease of the approval that an operation holds, for until it is
// given up (leaveApproval): nobody else is to take it in between.
func (a *Agent) keepApproval(tx Tx, op *operation) error {
	if op.asking == nil {
		return nil
	}
	p, err := get[approval](tx, op.asking.Principal, op.asking.ID)
	if errors.Is(err, ErrNotFound) || err == nil && p.LeaseOwner != op.owner {
		return nil
	}
	if err != nil {
		return err
	}
	p.lease(op.owner, a.now().Add(a.params.TurnLease))
	return put(tx, p)
}

// endedSignIn is the sign-in that a conversation waits for, if it has ended; else nil.
func endedSignIn(tx Tx, c *conversation) (*authorization, error) {
	if c.State != conversationAwaitingBusiness || c.Authorization == "" {
		return nil, nil
	}
	z, err := get[authorization](tx, c.Principal, c.Authorization)
	if err != nil || z.State == authorizationPending {
		return nil, err
	}
	return z, nil
}

// renewTurn renews the turn's lease (CV-2). If somebody else took it meanwhile,
// the turn is over.
func (a *Agent) renewTurn(ctx context.Context, op *operation) error {
	return a.changeConversation(quietly(ctx), op, func(c *conversation) {})
}

// awaiting moves the conversation on to waiting for the owner, unless the wire left
// something that says more.
func (a *Agent) awaiting(ctx context.Context, op *operation, state string) error {
	return a.changeConversation(ctx, op, func(c *conversation) {
		if c.State != conversationUnknown && c.State != conversationClosed {
			c.State, c.Reason, c.Authorization = state, "", ""
		}
	})
}

// whileHeld runs f, which may take long, with the turn's lease renewed meanwhile
// (CV-2). If somebody else takes the turn over, f's context ends.
func (a *Agent) whileHeld(ctx context.Context, op *operation, f func(context.Context) error) error {
	return whileLeased(ctx, a.params.TurnLease, func(ctx context.Context) error { return a.renewTurn(ctx, op) }, f)
}

// whileLeased runs f with a lease renewed meanwhile, by another goroutine. A renewal
// that ends with a *Refusal says that the lease is lost: then f's context ends, and
// that is the error.
func whileLeased(ctx context.Context, lease time.Duration, renew, f func(context.Context) error) error {
	held, stop := context.WithCancelCause(ctx)
	var lost error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(max(lease/3, 1))
		defer t.Stop()
		for {
			select {
			case <-held.Done():
				return
			case <-t.C:
			}
			// A store that fails now may work the next time; whoever goes on asks anew.
			if err := renew(held); ReasonOf(err) != "" {
				lost = err
				stop(err)
				return
			}
		}
	}()
	err := func() error {
		defer func() { <-ended }()
		defer stop(nil)
		return f(held)
	}()
	if lost != nil {
		return lost
	}
	return err
}

func (a *Agent) changeConversation(ctx context.Context, op *operation, change func(*conversation)) error {
	return a.store.Update(ctx, func(tx Tx) error { return a.changeIn(tx, op, change) })
}

// changeIn changes the conversation of a turn inside a transaction, if the turn
// is still ours.
func (a *Agent) changeIn(tx Tx, op *operation, change func(*conversation)) error {
	now := a.now()
	c, err := get[conversation](tx, op.who.principal, op.conversation.ID)
	if err != nil {
		return err
	}
	if c.LeaseOwner != op.owner {
		return refuse(StatusBlocked, ReasonBusy, "another turn of conversation %s is under way", c.ID)
	}
	c.lease(op.owner, now.Add(a.params.TurnLease))
	c.Updated = now
	change(c)
	if err := put(tx, c); err != nil {
		return err
	}
	op.conversation = c
	return nil
}

// refused records on the conversation why an operation stopped before it was
// sent; what happened on the wire is recorded where it happens.
func (a *Agent) refused(op *operation, err error) error {
	var r *Refusal
	if err == nil || op.conversation == nil || op.reconciling || op.repeats || !errors.As(err, &r) {
		return err
	}
	state := ""
	switch r.Status {
	case StatusDenied:
		state = conversationDenied
	case StatusExpired:
		state = conversationExpired
	case StatusCancelled:
		state = conversationCancelled
	case StatusUnsupported:
		state = conversationUnsupported
	case StatusApprovalRequired:
		state = conversationAwaitingLocal
	case StatusNeedsUserAction:
		state = conversationAwaitingBusiness
	default:
		if c := op.conversation; c.State != conversationAwaitingBusiness || c.Reason != "" || c.Authorization != "" {
			return err
		}
		state = conversationReady // no sign-in came of it
	}
	switch op.conversation.State {
	case conversationClosed, conversationUnknown: // what the wire left says more
		return err
	}
	e := a.changeConversation(withActor(context.Background(), op.caller), op, func(c *conversation) {
		c.State, c.Reason = state, r.Reason
		if z := op.result.Authorization; z == nil || z.ID != c.Authorization { // of an earlier turn
			c.Authorization = ""
		}
	})
	if e != nil && ReasonOf(e) == "" {
		return e
	}
	return err
}

// ConversationView is a conversation as a surface shows it.
type ConversationView struct {
	ID           string        `json:"id"`
	Business     string        `json:"business"`
	BusinessName string        `json:"businessName"` // untrusted
	State        string        `json:"state"`
	Reason       Reason        `json:"reason,omitzero"`
	ContextID    string        `json:"contextId,omitzero"`
	Created      time.Time     `json:"created"`
	Updated      time.Time     `json:"updated"`
	Messages     []MessageView `json:"messages,omitempty"` // oldest first; only of one conversation
}

// MessageView is one turn. Reply is untrusted data (RD-4).
type MessageView struct {
	ID           string        `json:"id"`
	State        string        `json:"state"`
	Reason       Reason        `json:"reason,omitzero"`
	Introduction bool          `json:"introduction,omitzero"`
	MessageID    string        `json:"messageId"`
	Text         string        `json:"text"`
	Effect       Effect        `json:"effect"`
	Scopes       []string      `json:"scopes"`
	Digest       string        `json:"digest"` // SHA-256 of the exact body
	Attempts     int           `json:"attempts"`
	Created      time.Time     `json:"created"`
	Sent         time.Time     `json:"sent,omitzero"`
	Received     time.Time     `json:"received,omitzero"`
	Reply        string        `json:"reply,omitzero"`
	Evidence     *EvidenceView `json:"evidence,omitzero"`
	Actor        string        `json:"actor,omitzero"`    // who asked for it
	Approval     string        `json:"approval,omitzero"` // that it was sent under
	// Reconciled is when the business was last asked what became of it, ReconciledBy who
	// had it asked, and ReconciledConfirmed that they confirmed it themselves, without an
	// approval.
	Reconciled          time.Time `json:"reconciled,omitzero"`
	ReconciledBy        string    `json:"reconciledBy,omitzero"`
	ReconciledConfirmed bool      `json:"reconciledConfirmed,omitzero"`
}

func conversationView(c *conversation, name string) ConversationView {
	return ConversationView{
		ID: c.ID, Business: c.Business, BusinessName: name, State: c.State, Reason: c.Reason,
		ContextID: c.ContextID, Created: c.Created, Updated: c.Updated,
	}
}

// Conversations lists a principal's conversations, newest first.
func (a *Agent) Conversations(ctx context.Context, c Caller) ([]ConversationView, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := a.recover(ctx); err != nil {
		return nil, err
	}
	out := []ConversationView{}
	err := a.store.View(ctx, func(tx Tx) error {
		all, err := find[conversation](tx, Query{Principal: c.Principal})
		names := nameCache{}
		for _, v := range all {
			out = append(out, conversationView(v, names.of(tx, v.Principal, v.Business)))
		}
		return err
	})
	return out, err
}

// Conversation shows one conversation with its turns. Errors wrap ErrNotFound.
func (a *Agent) Conversation(ctx context.Context, c Caller, id string) (v ConversationView, err error) {
	if err := c.check(); err != nil {
		return v, err
	}
	if err := a.recover(ctx); err != nil {
		return v, err
	}
	err = a.store.View(ctx, func(tx Tx) error {
		got, err := get[conversation](tx, c.Principal, id)
		if err != nil {
			return err
		}
		v = conversationView(got, nameCache{}.of(tx, got.Principal, got.Business))
		messages, err := find[message](tx, Query{Principal: c.Principal, Conversation: id})
		v.Messages = make([]MessageView, len(messages))
		for i, m := range messages {
			v.Messages[len(messages)-1-i] = messageView(m)
		}
		return err
	})
	return v, err
}

func messageView(m *message) MessageView {
	v := MessageView{
		ID: m.ID, State: m.State, Reason: m.Reason, Introduction: m.Introduction, MessageID: m.WireID,
		Text: m.Text, Effect: m.Effect, Scopes: nonNil(m.Scopes), Digest: m.BodyDigest, Attempts: m.Attempts,
		Created: m.Created, Sent: m.Sent, Received: m.Received, Reply: m.Reply, Actor: m.Actor, Approval: m.Approval,
		Reconciled: m.Reconciled, ReconciledBy: m.ReconciledBy, ReconciledConfirmed: m.ReconciledConfirmed,
	}
	if m.Verdict != "" {
		v.Evidence = &EvidenceView{Receipt: m.Receipt, Verdict: m.Verdict}
	}
	return v
}
