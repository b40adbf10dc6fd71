package agent

import (
	"context"

	"github.com/google/uuid"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// introductionText opens a context (CV-6). It asks for nothing.
const introductionText = "Hello. I am a personal agent writing for one of your customers. My question follows."

// openContext gets a context before anything effectful is sent: a change is
// never a context's first turn (CV-6). The introduction carries no delegation.
func (a *Agent) openContext(ctx context.Context, op *operation) error {
	if op.effect == EffectInspect || op.conversation.ContextID != "" {
		return nil
	}
	var last Outcome
	for range maxIntroductions {
		op.caller.tell(Event{Kind: EventIntroducing, Business: op.business.Card.Name})
		m := &message{Introduction: true, WireID: uuid.NewString(), Text: introductionText, Effect: EffectInspect}
		reply, o, err := a.transmit(ctx, op, m)
		if err != nil {
			return err
		}
		if err := a.settleIntroduction(op, m, reply, o); err != nil {
			return err
		}
		if op.conversation.ContextID != "" {
			return nil
		}
		if reply.Message.ContextID != "" || reply.StepUp.ContextID != "" { // it would be no other the next time
			return refuse(StatusFailed, ReasonContextLimit, "the business's contextId cannot be kept: it is too long, or looks like a secret")
		}
		switch o.State {
		case OutcomeReplied, OutcomeAuthRequired, OutcomeUnknown: // lost, or without a context: again
		case OutcomeCancelled:
			return refuse(StatusCancelled, unsentBecause(ctx), "nothing was sent but an introduction")
		default:
			return refuse(StatusFailed, or(o.Reason, ReasonContextLimit), "the business did not open a conversation")
		}
		if ctx.Err() != nil {
			return refuse(StatusCancelled, unsentBecause(ctx), "nothing was sent but an introduction")
		}
		last = o
	}
	why := or(last.Reason, "no contextId")
	reason := ReasonContextLimit
	if why == string(egress.Network) || why == string(egress.Timeout) { // it did not answer: it may later
		reason = why
	}
	return refuse(StatusFailed, reason, "the business opened no conversation in %d attempts (%s)", maxIntroductions, why)
}

func (a *Agent) settleIntroduction(op *operation, m *message, reply Reply, o Outcome) error {
	return a.journal(op, m, func(Tx) error {
		m.Reason = o.Reason
		switch o.State {
		case OutcomeReplied:
			m.State, m.Reply, m.ReplyID = messageReplied, reply.Message.kept(), reply.Message.MessageID
			op.adoptContext(reply.Message.ContextID)
		case OutcomeAuthRequired:
			m.State = messageAuthRequired
			op.adoptContext(reply.StepUp.ContextID)
		default:
			m.State = stateOf(o)
		}
		m.release()
		return nil
	})
}
