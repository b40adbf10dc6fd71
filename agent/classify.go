package agent

import (
	"errors"
	"fmt"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// Turn is what Classify must know of the attempt that an answer is for.
type Turn struct {
	Effect      Effect
	ContextID   string // held, and sent; empty if none
	Delegated   bool   // a delegation token was sent
	Reconciling bool   // CV-14: the same bytes again, to learn what became of them
}

func (t Turn) effectful() bool { return t.Effect != EffectInspect }

// OutcomeState says where an attempt leaves its message.
type OutcomeState string

// The outcomes of CV-11.
const (
	OutcomeReplied      OutcomeState = "replied"
	OutcomeAuthRequired OutcomeState = "auth_required"   // nothing ran; get consent (CV-13)
	OutcomeNotExecuted  OutcomeState = "not_executed"    // failed: refused, nothing ran
	OutcomeNotSent      OutcomeState = "not_sent"        // failed: nothing was sent
	OutcomeUnknown      OutcomeState = "outcome_unknown" // it may have run; never repeat by another route (CV-12)
	OutcomeCancelled    OutcomeState = "cancelled"       // by the user, before anything was sent
	OutcomeStillRunning OutcomeState = "no_reply_yet"    // same id and bytes again, after CV-9's waits
	OutcomeRateLimited  OutcomeState = "rate_limited"    // wait, then again (CV-10); in the end not executed
	OutcomeRestart      OutcomeState = "restart"         // the context is closed; one fresh one, authority rechecked
)

// Outcome is the judgement on one attempt.
type Outcome struct {
	State  OutcomeState
	Reason string // the code to show and to keep

	ClearTokens       bool // SG-8: drop the PA-JWT cache
	InvalidateGrant   bool // GR-8: the grant is invalid, reconnect
	CloseConversation bool // the business does not know the context
}

// Classify judges an answer to message:send by CV-11, CV-7 and CV-15. The
// caller counts retries (CV-9, CV-10) and restarts.
func Classify(reply Reply, turn Turn) Outcome {
	o := classify(reply, turn)
	if !turn.Reconciling {
		return o
	}
	// A refusal says nothing about the original; only a stored reply ends it.
	switch o.State {
	case OutcomeReplied, OutcomeUnknown, OutcomeStillRunning, OutcomeRateLimited:
		return o
	}
	if o.Reason == "" {
		o.Reason = string(o.State)
	}
	o.State, o.CloseConversation = OutcomeUnknown, false
	return o
}

func classify(reply Reply, turn Turn) Outcome {
	switch reply.Kind {
	case ReplyMessage:
		switch {
		case reply.Message.Role != roleAgent:
			return Outcome{State: OutcomeUnknown, Reason: "reply_not_from_agent"}
		case foreign(reply.Message.ContextID, turn):
			return Outcome{State: OutcomeUnknown, Reason: "reply_context_mismatch"}
		}
		return Outcome{State: OutcomeReplied}
	case ReplyAuthRequired:
		if foreign(reply.StepUp.ContextID, turn) {
			return Outcome{State: OutcomeUnknown, Reason: "reply_context_mismatch"}
		}
		return Outcome{State: OutcomeAuthRequired}
	case ReplyA2AError:
		return classifyA2A(reply, turn)
	case ReplyHTTP:
		return classifyHTTP(reply, turn)
	}
	return Outcome{State: OutcomeUnknown, Reason: reasonUnreadable}
}

func foreign(contextID string, turn Turn) bool {
	return contextID != "" && turn.ContextID != "" && contextID != turn.ContextID
}

func classifyA2A(reply Reply, turn Turn) Outcome {
	switch reply.ErrorReason {
	case A2AInvalidParams:
		switch {
		case reply.NoReplyYet:
			return Outcome{State: OutcomeStillRunning, Reason: "provider_still_processing"}
		case turn.ContextID != "":
			return Outcome{State: OutcomeNotExecuted, Reason: "foreign_context", CloseConversation: true}
		}
		return Outcome{State: OutcomeNotExecuted, Reason: "invalid_params"}
	case A2AUnsupportedOperation:
		return Outcome{State: OutcomeRestart, Reason: "context_closed", CloseConversation: true}
	case A2AContentType:
		return Outcome{State: OutcomeNotExecuted, Reason: "content_type_not_supported"}
	case A2ATaskNotFound:
		return Outcome{State: OutcomeNotExecuted, Reason: "task_not_found"}
	case A2APushNotSupported:
		return Outcome{State: OutcomeNotExecuted, Reason: "push_notification_not_supported"}
	}
	reason := "business_error"
	if reply.ErrorReason == A2AInternal {
		reason = "business_internal_error"
	}
	return mayHaveRun(turn, reason)
}

func classifyHTTP(reply Reply, turn Turn) Outcome {
	code := fmt.Sprintf("http_%d", reply.Status)
	switch {
	case reply.Status == 401 && reply.InvalidToken && turn.Delegated:
		return Outcome{State: OutcomeNotExecuted, Reason: "delegation_rejected", InvalidateGrant: true}
	case reply.Status == 401:
		return Outcome{State: OutcomeNotExecuted, Reason: "identity_rejected", ClearTokens: true}
	case reply.Status == 404:
		return Outcome{State: OutcomeNotExecuted, Reason: "business_not_found"}
	case reply.Status == 429:
		return Outcome{State: OutcomeRateLimited, Reason: "rate_limited"}
	case reply.Status >= 300 && reply.Status < 500:
		return Outcome{State: OutcomeNotExecuted, Reason: code}
	}
	return mayHaveRun(turn, code)
}

func mayHaveRun(turn Turn, reason string) Outcome {
	if turn.effectful() {
		return Outcome{State: OutcomeUnknown, Reason: reason}
	}
	return Outcome{State: OutcomeNotExecuted, Reason: reason}
}

// ClassifyError judges an attempt that egress could not finish (CV-11, CV-16):
// nothing was sent, or nobody knows. An error that is not of egress counts as
// unknown.
func ClassifyError(err error, turn Turn) Outcome {
	var e *egress.Error
	if !errors.As(err, &e) {
		return Outcome{State: OutcomeUnknown, Reason: "network"}
	}
	o := Outcome{State: OutcomeUnknown, Reason: string(e.Code)}
	switch {
	case turn.Reconciling: // the original may have run whatever becomes of this
	case e.Code == egress.RedirectNotAllowed: // answered, with a 3xx
		o.State = OutcomeNotExecuted
	case e.Sent:
	case e.Code == egress.Aborted:
		o.State = OutcomeCancelled
	default:
		o.State = OutcomeNotSent
	}
	return o
}
