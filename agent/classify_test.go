package agent_test

import (
	"errors"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
)

// TestClassify walks the table of CV-11, with CV-7 and CV-15.
func TestClassify(t *testing.T) {
	const a2a = "application/a2a+json"
	inspect := agent.Turn{Effect: agent.EffectInspect}
	type outcome = agent.Outcome
	for _, c := range []struct {
		name                          string
		status                        int
		challenge, body               string
		delegated                     bool
		context                       string
		inspect, effectful, reconcile outcome
	}{
		{name: "reply", status: 200, body: reply(nil),
			inspect: outcome{State: "replied"}, effectful: outcome{State: "replied"}, reconcile: outcome{State: "replied"}},
		{name: "reply-in-my-context", status: 200, body: reply(nil), context: "c-1",
			inspect: outcome{State: "replied"}, effectful: outcome{State: "replied"}, reconcile: outcome{State: "replied"}},
		{name: "reply-without-context", status: 200, body: reply(map[string]any{"contextId": nil}), context: "c-1",
			inspect: outcome{State: "replied"}, effectful: outcome{State: "replied"}, reconcile: outcome{State: "replied"}},
		{name: "reply-in-another-context", status: 200, body: reply(nil), context: "c-2",
			inspect:   outcome{State: "outcome_unknown", Reason: "reply_context_mismatch"},
			effectful: outcome{State: "outcome_unknown", Reason: "reply_context_mismatch"},
			reconcile: outcome{State: "outcome_unknown", Reason: "reply_context_mismatch"}},
		{name: "reply-by-the-user", status: 200, body: reply(map[string]any{"role": "ROLE_USER"}),
			inspect:   outcome{State: "outcome_unknown", Reason: "reply_not_from_agent"},
			effectful: outcome{State: "outcome_unknown", Reason: "reply_not_from_agent"},
			reconcile: outcome{State: "outcome_unknown", Reason: "reply_not_from_agent"}},
		{name: "step-up", status: 200, body: task(nil),
			inspect: outcome{State: "auth_required"}, effectful: outcome{State: "auth_required"}, reconcile: outcome{State: "outcome_unknown", Reason: "auth_required"}},
		{name: "step-up-in-another-context", status: 200, body: task(nil), context: "c-2",
			inspect:   outcome{State: "outcome_unknown", Reason: "reply_context_mismatch"},
			effectful: outcome{State: "outcome_unknown", Reason: "reply_context_mismatch"},
			reconcile: outcome{State: "outcome_unknown", Reason: "reply_context_mismatch"}},
		{name: "unreadable", status: 200, body: "<html>",
			inspect:   outcome{State: "outcome_unknown", Reason: "invalid_reply"},
			effectful: outcome{State: "outcome_unknown", Reason: "invalid_reply"},
			reconcile: outcome{State: "outcome_unknown", Reason: "invalid_reply"}},
		{name: "401-plain", status: 401, challenge: `Bearer realm="a2a"`, delegated: true,
			inspect:   outcome{State: "not_executed", Reason: "identity_rejected", ClearTokens: true},
			effectful: outcome{State: "not_executed", Reason: "identity_rejected", ClearTokens: true},
			reconcile: outcome{State: "outcome_unknown", Reason: "identity_rejected", ClearTokens: true}},
		{name: "401-invalid-token", status: 401, challenge: `Bearer error="invalid_token"`, delegated: true,
			inspect:   outcome{State: "not_executed", Reason: "delegation_rejected", InvalidateGrant: true},
			effectful: outcome{State: "not_executed", Reason: "delegation_rejected", InvalidateGrant: true},
			reconcile: outcome{State: "outcome_unknown", Reason: "delegation_rejected", InvalidateGrant: true}},
		{name: "401-invalid-token-and-none-sent", status: 401, challenge: `Bearer error="invalid_token"`,
			inspect:   outcome{State: "not_executed", Reason: "identity_rejected", ClearTokens: true},
			effectful: outcome{State: "not_executed", Reason: "identity_rejected", ClearTokens: true},
			reconcile: outcome{State: "outcome_unknown", Reason: "identity_rejected", ClearTokens: true}},
		{name: "404", status: 404,
			inspect:   outcome{State: "not_executed", Reason: "business_not_found"},
			effectful: outcome{State: "not_executed", Reason: "business_not_found"},
			reconcile: outcome{State: "outcome_unknown", Reason: "business_not_found"}},
		{name: "429", status: 429,
			inspect:   outcome{State: "rate_limited", Reason: "rate_limited"},
			effectful: outcome{State: "rate_limited", Reason: "rate_limited"},
			reconcile: outcome{State: "rate_limited", Reason: "rate_limited"}},
		{name: "503", status: 503,
			inspect:   outcome{State: "not_executed", Reason: "http_503"},
			effectful: outcome{State: "outcome_unknown", Reason: "http_503"},
			reconcile: outcome{State: "outcome_unknown", Reason: "http_503"}},
		{name: "405", status: 405,
			inspect:   outcome{State: "not_executed", Reason: "http_405"},
			effectful: outcome{State: "not_executed", Reason: "http_405"},
			reconcile: outcome{State: "outcome_unknown", Reason: "http_405"}},
		{name: "302", status: 302,
			inspect:   outcome{State: "not_executed", Reason: "http_302"},
			effectful: outcome{State: "not_executed", Reason: "http_302"},
			reconcile: outcome{State: "outcome_unknown", Reason: "http_302"}},
		{name: "unsupported-operation", status: 400, body: envelopeOf("UNSUPPORTED_OPERATION"), context: "c-1",
			inspect:   outcome{State: "restart", Reason: "context_closed", CloseConversation: true},
			effectful: outcome{State: "restart", Reason: "context_closed", CloseConversation: true},
			reconcile: outcome{State: "outcome_unknown", Reason: "context_closed"}},
		{name: "invalid-params-in-a-context", status: 400, body: envelopeOf("INVALID_PARAMS"), context: "c-1",
			inspect:   outcome{State: "not_executed", Reason: "foreign_context", CloseConversation: true},
			effectful: outcome{State: "not_executed", Reason: "foreign_context", CloseConversation: true},
			reconcile: outcome{State: "outcome_unknown", Reason: "foreign_context"}},
		{name: "invalid-params", status: 400, body: envelopeOf("INVALID_PARAMS"),
			inspect:   outcome{State: "not_executed", Reason: "invalid_params"},
			effectful: outcome{State: "not_executed", Reason: "invalid_params"},
			reconcile: outcome{State: "outcome_unknown", Reason: "invalid_params"}},
		{name: "no-reply-yet", status: 400, context: "c-1",
			body:      `{"error":{"message":"no reply yet","details":[{"reason":"INVALID_PARAMS"}]}}`,
			inspect:   outcome{State: "no_reply_yet", Reason: "provider_still_processing"},
			effectful: outcome{State: "no_reply_yet", Reason: "provider_still_processing"},
			reconcile: outcome{State: "no_reply_yet", Reason: "provider_still_processing"}},
		{name: "content-type", status: 400, body: envelopeOf("CONTENT_TYPE_NOT_SUPPORTED"),
			inspect:   outcome{State: "not_executed", Reason: "content_type_not_supported"},
			effectful: outcome{State: "not_executed", Reason: "content_type_not_supported"},
			reconcile: outcome{State: "outcome_unknown", Reason: "content_type_not_supported"}},
		{name: "task-not-found", status: 404, body: envelopeOf("TASK_NOT_FOUND"),
			inspect:   outcome{State: "not_executed", Reason: "task_not_found"},
			effectful: outcome{State: "not_executed", Reason: "task_not_found"},
			reconcile: outcome{State: "outcome_unknown", Reason: "task_not_found"}},
		{name: "push", status: 400, body: envelopeOf("PUSH_NOTIFICATION_NOT_SUPPORTED"),
			inspect:   outcome{State: "not_executed", Reason: "push_notification_not_supported"},
			effectful: outcome{State: "not_executed", Reason: "push_notification_not_supported"},
			reconcile: outcome{State: "outcome_unknown", Reason: "push_notification_not_supported"}},
		{name: "internal", status: 500, body: envelopeOf("INTERNAL"),
			inspect:   outcome{State: "not_executed", Reason: "business_internal_error"},
			effectful: outcome{State: "outcome_unknown", Reason: "business_internal_error"},
			reconcile: outcome{State: "outcome_unknown", Reason: "business_internal_error"}},
		{name: "unknown-code", status: 400, body: envelopeOf("NEVER_HEARD_OF"),
			inspect:   outcome{State: "not_executed", Reason: "business_error"},
			effectful: outcome{State: "outcome_unknown", Reason: "business_error"},
			reconcile: outcome{State: "outcome_unknown", Reason: "business_error"}},
		{name: "no-code", status: 400, body: `{"error":{}}`,
			inspect:   outcome{State: "not_executed", Reason: "business_error"},
			effectful: outcome{State: "outcome_unknown", Reason: "business_error"},
			reconcile: outcome{State: "outcome_unknown", Reason: "business_error"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := agent.ParseReply(c.status, a2a, c.challenge, []byte(c.body))
			turn := inspect
			turn.ContextID, turn.Delegated = c.context, c.delegated
			if got := agent.Classify(r, turn); got != c.inspect {
				t.Errorf("inspect: %+v, want %+v", got, c.inspect)
			}
			for _, e := range []agent.Effect{agent.EffectChange, agent.EffectUnknown, 0} {
				turn.Effect = e
				if got := agent.Classify(r, turn); got != c.effectful {
					t.Errorf("%v: %+v, want %+v", e, got, c.effectful)
				}
			}
			turn.Reconciling = true
			if got := agent.Classify(r, turn); got != c.reconcile {
				t.Errorf("reconcile: %+v, want %+v", got, c.reconcile)
			}
		})
	}
}

// TestClassifyError covers the rows of CV-11 without an answer, and CV-16.
func TestClassifyError(t *testing.T) {
	for _, c := range []struct {
		code egress.Code
		sent bool
		want agent.OutcomeState
	}{
		{egress.PolicyDenied, false, "not_sent"},
		{egress.InvalidURL, false, "not_sent"},
		{egress.DestinationRefused, false, "not_sent"},
		{egress.Network, false, "not_sent"}, // never connected
		{egress.Network, true, "outcome_unknown"},
		{egress.Timeout, true, "outcome_unknown"},
		{egress.TooLarge, true, "outcome_unknown"},
		{egress.Aborted, true, "outcome_unknown"},
		{egress.Aborted, false, "cancelled"},
		{egress.RedirectNotAllowed, true, "not_executed"},
	} {
		err := &egress.Error{Code: c.code, Sent: c.sent, Err: errors.New("x")}
		for _, e := range []agent.Effect{agent.EffectInspect, agent.EffectChange} {
			if got := agent.ClassifyError(err, agent.Turn{Effect: e}); got.State != c.want || got.Reason != string(c.code) {
				t.Errorf("%s sent %v: %+v, want %s", c.code, c.sent, got, c.want)
			}
		}
		if got := agent.ClassifyError(err, agent.Turn{Reconciling: true}); got.State != agent.OutcomeUnknown {
			t.Errorf("CV-15: %s sent %v: %+v", c.code, c.sent, got)
		}
	}
	if got := agent.ClassifyError(errors.New("x"), agent.Turn{}); got.State != agent.OutcomeUnknown {
		t.Errorf("an unknown failure: %+v", got)
	}
}
