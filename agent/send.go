package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// SendRequest is one message to a business.
type SendRequest struct {
	Business string   // id, domain or card URL
	Message  string   // at most 4000 characters
	Effect   string   // declared: inspect or change; it never lowers what the text says (AD-5)
	Scopes   []string // permissions that it needs, ids of the card
	// Conversation continues one; empty starts one.
	Conversation string
}

// operation is one send on its way through the gates.
type operation struct {
	caller  Caller
	actor   string // who asked for it, and in which task: of an approval not the caller
	task    string
	ref     string // what the caller calls the business
	req     SendRequest
	purpose string // of a sign-in

	who      *acting
	business *business
	audience string
	provider int64 // its config revision

	sends       bool   // req is a new message
	reconciling bool   // CV-14: message is one that was sent before
	only        string // id of the message to reconcile, if not any
	unusable    bool   // the business's card or provider: it cannot even be asked

	conversation *conversation
	owner        string // of the conversation's lease

	required []string
	grant    *grant // nil: none needed, or none yet
	effect   Effect
	exceeds  bool      // AD-9
	wireID   string    // messageId
	approved *approval // what it is held to (AP-3); without an ID it was pre-confirmed
	asking   *approval // the record by which the owner was asked last
	asked    bool      // whether to approve was asked: a pre-confirmation is spent (AP-1)
	decides  bool      // it goes on with what the owner approved by its record
	tends    bool      // nobody waits for it
	repeats  bool      // it asks what is asked already

	stepUps   int
	missing   []string // of the last step-up
	restarted bool     // CV-11: one fresh context
	rounds    int

	message   *message
	out       *message    // that has gone out, and whose end is not written down
	open      *message    // another one, whose unknown outcome holds this one back (CV-4)
	sentUnder *delegation // what its last attempt carried; nil: nothing
	result    Result
}

// gate is one question of PO-5. A *Refusal stops the operation.
type gate func(context.Context, *operation) error

// errAgain sends an operation back to the first question of authority: what it
// is sent under has changed.
var errAgain = errors.New("authority is asked again")

// maxRounds bounds how often that can happen: two step-ups, a restart, and
// refreshes that narrowed a grant.
const maxRounds = 6

// Send sends a message to a business and judges what comes back. How it ended
// is in the Result; an error means that the journal itself or a callback of the
// caller failed, or that the call was malformed.
func (a *Agent) Send(ctx context.Context, c Caller, req SendRequest) (Result, error) {
	if err := c.check(); err != nil {
		return Result{}, err
	}
	ctx = withNetwork(ctx, c)
	op := &operation{
		caller: c, actor: c.actor(), task: c.taskID(), ref: req.Business, req: req, purpose: truncate(req.Message, maxPurpose),
		owner: a.runtime + "/" + newID("turn"), wireID: uuid.NewString(), sends: true,
		required: ScopeSet(strings.Join(req.Scopes, " ")),
	}
	return op.finish(ctx, a.send(ctx, op))
}

// send is one send, to its end.
func (a *Agent) send(ctx context.Context, op *operation) error {
	return a.leaveApproval(ctx, op, a.sendInOrder(ctx, op))
}

// sendInOrder is PO-5, the order of one send.
func (a *Agent) sendInOrder(ctx context.Context, op *operation) error {
	for _, ask := range []gate{
		a.isAvailable,       // availability (PO-1)
		a.isPreferred,       // preference (PO-2)
		a.isIdentified,      // identity (SG-10, SG-11, ID-4, ID-6)
		a.hasBusiness,       // load or revalidate the business (DI-3, DI-10)
		a.hasProvider,       // provider ready (PR-3)
		a.enterConversation, // conversation (CV-3, CV-4)
	} {
		if err := ask(ctx, op); err != nil {
			return a.refused(op, err)
		}
	}
	defer a.leaveConversation(op)
	if op.reconciling { // reconcile branch (CV-14)
		return inOrder(ctx, op, a.mayReconcile, a.askApproval, a.reconcile)
	}
	for {
		err := inOrder(ctx, op,
			a.coverScopes,    // scopes and covering grant (GR-3)
			a.computeEffect,  // computed effect (AD-5)
			a.checkHolds,     // evidence gate (EV-5, EV-6), and CV-4 by the effect
			a.admit,          // admission (AD-1, AD-2)
			a.askApproval,    // local approval (AP), with AD-9
			a.askConsent,     // business consent (DA), then AD-9 with the token received
			a.openContext,    // open context (CV-6); this and the next ask stillAllowed first
			a.deliverMessage, // send (CV-2, CV-11)
		)
		if !errors.Is(err, errAgain) {
			return a.refused(op, err)
		}
		// The same questions in the same order: after a step-up (CV-13), a refresh that
		// left fewer scopes (GR-7), or with a fresh context (CV-11).
		if op.rounds++; op.rounds > maxRounds {
			return a.refused(op, refuse(StatusFailed, ReasonContextLimit, "the business keeps asking for something else"))
		}
		if err := inOrder(ctx, op, a.isAvailable, a.isPreferred, a.isSameIdentity, a.hasProvider, a.renewTurn); err != nil { // PO-7
			return a.refused(op, err)
		}
	}
}

func inOrder(ctx context.Context, op *operation, gates ...gate) error {
	for _, ask := range gates {
		if err := ask(ctx, op); err != nil {
			return err
		}
	}
	return nil
}

// finish turns how an operation ended into its result.
func (op *operation) finish(ctx context.Context, err error) (Result, error) {
	r := &op.result
	if op.business != nil {
		r.Business = op.business.ID
	}
	if op.conversation != nil {
		r.Conversation = op.conversation.ID
	}
	if op.asking.waits() {
		r.Approval = op.asking.view()
	}
	if p := r.Approval; p != nil {
		r.Business, r.Conversation = or(r.Business, p.Business), or(r.Conversation, p.Conversation)
	}
	if op.message != nil {
		r.Message, r.Conversation, r.Reply = op.message.ID, op.message.Conversation, op.message.Reply
	}
	var refusal *Refusal
	switch {
	case err == nil:
	case errors.As(err, &refusal):
		r.Status, r.Reason, r.Detail = refusal.Status, refusal.Reason, truncate(RedactText(refusal.Text()), maxDescription)
		if op.open != nil && r.Reason == ReasonUnresolved { // what is to be reconciled first
			r.Message, r.Conversation = op.open.ID, op.open.Conversation
		}
	case op.out != nil: // what it came to is not in the journal: whoever recovers it counts it as unknown (RS-1)
		r.Status, r.Reason, r.Detail = StatusUnknown, ReasonInterrupted, truncate(RedactText("it was sent, and what came of it could not be written down ("+err.Error()+
			"): it is not known whether it was carried out. Do not repeat it by another route"), maxDescription)
		r.Approval = nil
	case ctx.Err() == nil:
		return *r, err
	case r.Authorization != nil && r.Authorization.State == authorizationPending: // DA-17
		r.Status, r.Reason = StatusNeedsUserAction, ReasonSignInPending
	case op.asking.waits(): // the program stops, and the question stays
		r.Status, r.Reason, r.Detail = StatusApprovalRequired, ReasonApprovalRequired, "the program stopped before it was sent: it waits for the owner"
		r.Approval = op.asking.view()
	default: // CV-16
		r.Status, r.Reason = StatusCancelled, unsentBecause(ctx)
	}
	return *r, nil
}

// unsentBecause is why what was not sent is not sent any more by a caller who left.
func unsentBecause(ctx context.Context) Reason {
	if errors.Is(context.Cause(ctx), ErrStopping) {
		return ReasonNeverSent
	}
	return ReasonUserCancelled
}

func (a *Agent) isAvailable(ctx context.Context, op *operation) error {
	return a.availability(ctx, op.caller.Principal)
}

func (a *Agent) isPreferred(ctx context.Context, _ *operation) error { return a.preferred(ctx) }

func (a *Agent) isIdentified(ctx context.Context, op *operation) error {
	who, err := a.identified(ctx, op.caller.Principal, false)
	if err == nil {
		op.who = who
	}
	return err
}

// isSameIdentity asks who we are again: a turn goes on as whom it was begun (ID-5).
func (a *Agent) isSameIdentity(ctx context.Context, op *operation) error {
	if err := a.isIdentified(ctx, op); err != nil {
		return err
	}
	if op.who.binding.ID != op.conversation.Binding {
		return refuse(StatusBlocked, ReasonIdentityChanged, "the profile acts as another identity than when this conversation was begun")
	}
	return nil
}

func (a *Agent) hasBusiness(ctx context.Context, op *operation) error {
	if op.reconciling {
		if err := a.findUnresolved(ctx, op); err != nil {
			return err
		}
	}
	b, err := a.currentBusiness(ctx, op.caller, op.ref)
	op.unusable = ReasonOf(err) != ""
	if b != nil {
		op.business = b
	}
	var r *Refusal
	if op.sends && errors.As(err, &r) && r.Status == StatusUnsupported { // AD-1 has more to say before that
		if err := admitText(op); err != nil {
			return err
		}
	}
	return err
}

// stillAllowed asks again, right before the network, what may have changed while
// a person was asked or something was waited for (PO-7, DI-3).
func (a *Agent) stillAllowed(ctx context.Context, op *operation) error {
	return inOrder(ctx, op, a.isAvailable, a.isPreferred, a.isSameIdentity, a.isCurrent, a.hasProvider, a.isApproved, a.renewTurn)
}

// isCurrent revalidates a card whose time is over (DI-3). Another revision of it
// is something else to ask about: its grants have ended (DI-6).
func (a *Agent) isCurrent(ctx context.Context, op *operation) error {
	revision := op.business.CardRevision
	b, err := a.currentBusiness(ctx, op.caller, op.business.ID)
	op.unusable = ReasonOf(err) != ""
	if b != nil {
		op.business = b
	}
	if err == nil && b.CardRevision != revision {
		return errAgain
	}
	return err
}

func (a *Agent) hasProvider(ctx context.Context, op *operation) (err error) {
	op.audience, op.provider, err = a.readyProvider(ctx, op.who, op.business.Card.Origin)
	op.unusable = ReasonOf(err) != ""
	return err
}

// coverScopes finds the grant for the required scopes (GR-3). Without required
// scopes the turn carries no delegation.
func (a *Agent) coverScopes(ctx context.Context, op *operation) error {
	op.grant = nil
	if len(op.required) == 0 {
		return nil
	}
	account := ""
	if op.conversation != nil {
		account = op.conversation.Account
	}
	return a.store.View(ctx, func(tx Tx) error {
		active, err := activeGrants(tx, op.who, op.business, a.now())
		op.grant = covering(active, op.required, account)
		return err
	})
}

// scopes are the card's scopes of these ids; one that the card does not have
// has no description.
func (op *operation) scopes(ids []string) []Scope {
	out := []Scope{}
	for _, id := range ids {
		s, ok := op.business.Card.Scope(id)
		if !ok {
			s.ID = id
		}
		out = append(out, s)
	}
	return out
}

// computeEffect is AD-5 and AD-9. What a task says that a business could take for the
// owner's word is no inspection, whatever it reads as (AD-2).
func (a *Agent) computeEffect(ctx context.Context, op *operation) error {
	elsewhere, err := a.scopesElsewhere(ctx, op)
	if err != nil {
		return err
	}
	op.effect = max(EffectOf(op.req.Effect, op.req.Message, op.scopes(op.required)), elsewhere(op.required))
	if op.effect == EffectInspect && op.task != "" {
		confirms, err := a.mayConfirm(ctx, op)
		if err != nil {
			return err
		}
		if confirms {
			op.effect = EffectUnknown
		}
	}
	op.result.Effect = &op.effect
	op.exceeds = op.grant != nil && max(EffectOfScopes(op.scopes(op.grant.Scopes)), elsewhere(op.grant.Scopes)) > op.effect
	return nil
}

// mayConfirm is MayConfirm of a task's operation in the conversation that it goes on
// with. What others sent there counts as more than a look, and what the owner was asked
// about as such stays so.
func (a *Agent) mayConfirm(ctx context.Context, op *operation) (confirms bool, err error) {
	p := op.approved
	switch {
	case p != nil && p.Request.Effect == EffectUnknown:
		return true, nil
	case op.req.Conversation == "" || p != nil && p.Fresh:
		return MayConfirm(op.req.Message, nil), nil
	}
	err = a.store.View(ctx, func(tx Tx) error {
		sent, err := find[message](tx, Query{Principal: op.who.principal, Conversation: op.conversation.ID})
		var in ConversationView
		for _, m := range slices.Backward(sent) {
			confirms = confirms || m.Task != op.task
			in.Messages = append(in.Messages, messageView(m))
		}
		confirms = confirms || MayConfirm(op.req.Message, &in)
		return err
	})
	return confirms, err
}

// admit is AD-1, in its order.
func (a *Agent) admit(_ context.Context, op *operation) error {
	if err := admitText(op); err != nil {
		return err
	}
	if op.business.State != businessSupported {
		return refuse(StatusUnsupported, op.business.Card.Reason, "the business is not supported")
	}
	return knownScopes(op)
}

// admitText is what of AD-1 does not hang on the business.
func admitText(op *operation) error {
	text := op.req.Message
	if err := op.caller.mayAct("send to a business"); err != nil { // AD-2, AD-4
		return err
	}
	if p := CheckText(text); p != nil { // AD-10 among others
		status := StatusFailed
		if p.Reason == ReasonSensitiveContent {
			status = StatusBlocked
		}
		return refuse(status, p.Reason, "message: it %s", p.Detail)
	}
	if !utf8.ValidString(text) {
		return refuse(StatusFailed, ReasonInvalidInput, "message: it is not valid UTF-8")
	}
	return nil
}

// knownScopes holds the required scopes to the card (AD-1, AD-4).
func knownScopes(op *operation) error {
	if len(op.required) > maxRequired {
		return refuse(StatusFailed, ReasonTooManyScopes, "scopes: %d are required, and %d are the most", len(op.required), maxRequired)
	}
	for _, id := range op.required {
		if _, ok := op.business.Card.Scope(id); ok {
			continue
		}
		if op.business.Card.Profile != ProfileDelegated {
			return refuse(StatusUnsupported, ReasonNotDelegated, "%s has no delegation, so no permission %q", op.business.Card.Name, truncate(id, maxScopeID))
		}
		return refuse(StatusFailed, ReasonUnknownScope, "scopes: the card has no %q", truncate(id, maxScopeID))
	}
	return nil
}

// askConsent gets the owner's consent at the business where no grant covers the
// scopes, and then asks AD-9 with the token received.
func (a *Agent) askConsent(ctx context.Context, op *operation) error {
	if len(op.required) == 0 || op.grant != nil {
		return nil
	}
	// The owner may have taken their time to approve (PO-7).
	if err := a.stillAllowed(ctx, op); err != nil {
		return err
	}
	if err := a.awaiting(ctx, op, conversationAwaitingBusiness); err != nil {
		return err
	}
	if err := a.getConsent(ctx, op); err != nil {
		return err
	}
	if op.grant == nil { // another account's, or it ended meanwhile
		return refuse(StatusDenied, ReasonInsufficient, "the permission that was granted is not one for this conversation")
	}
	if err := a.renewTurn(ctx, op); err != nil {
		return err
	}
	return inOrder(ctx, op, a.computeEffect, a.askApproval)
}
