package agent_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// CV-5, TR-5: an inspection without permissions is one identity turn.
func TestInspectWithoutScopes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		r := w.send(a, owner(), agent.SendRequest{Message: "Is LK 204 on time?", Effect: "inspect"}, agent.StatusReplied, "")
		if r.Reply != "Answer to: Is LK 204 on time?" || r.Evidence != nil {
			t.Errorf("got %+v", r)
		}
		turns := w.biz.sent()
		if len(turns) != 1 || turns[0].delegation != "" || turns[0].context != "" {
			t.Fatalf("turns %+v", turns)
		}
		h := w.calls(egress.Message)[0].header
		if h.Get("A2A-Version") != "1.0" || h.Get("Content-Type") != "application/json" || h.Get("Cookie") != "" {
			t.Errorf("headers %v", h)
		}
		// The next turn of the conversation continues its context (CV-7).
		w.send(a, owner(), agent.SendRequest{Message: "And LK 318?", Effect: "inspect", Conversation: r.Conversation}, agent.StatusReplied, "")
		if got := w.biz.sent()[1].context; got != "ctx-1" {
			t.Errorf("context %q", got)
		}
	})
}

// PO-5, AP-1, AP-2, AP-6, CV-6: a change is approved, consented to, introduced
// and then sent, in that order.
func TestChangeInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		var order []string
		c := w.person()
		c.Approve = func(_ context.Context, req agent.ApprovalRequest) (bool, error) {
			order = append(order, "approve")
			if req.Message != "Cancel booking X1" || req.Destination != iface+"/message:send" || req.Effect != agent.EffectChange ||
				len(req.Digest) != 64 || len(req.Scopes) != 1 || req.Scopes[0].Description != "Cancel your trips" || req.Changed {
				t.Errorf("asked %+v", req)
			}
			if len(w.biz.sent()) != 0 || len(w.calls(egress.DeviceAuthorization)) != 0 {
				t.Error("something was sent before the approval")
			}
			return true, nil
		}
		signIn := c.SignIn
		c.SignIn = func(ctx context.Context, s agent.SignIn) error {
			order = append(order, "sign in")
			if s.Link.Reveal() != "https://login.air.example.com/device?user_code=ABCD-EFGH" || s.LinkOrigin != "https://login.air.example.com" || !s.Matches ||
				len(s.CardChain) != 2 || s.CardChain[0] != "https://air.example.com" || s.ASOrigin != provider {
				t.Errorf("sign-in %+v", s)
			}
			return signIn(ctx, s)
		}
		// Declaring inspect lowers nothing (AD-5).
		r := w.send(a, c, agent.SendRequest{Message: "Cancel booking X1", Effect: "inspect", Scopes: []string{"trips:cancel"}}, agent.StatusReplied, "")
		if strings.Join(order, ", ") != "approve, sign in" {
			t.Errorf("order %v", order)
		}
		if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
			t.Errorf("evidence %+v", r.Evidence)
		}
		turns := w.biz.sent()
		if len(turns) != 2 || turns[0].delegation != "" || turns[0].context != "" || strings.Contains(turns[0].text, "X1") {
			t.Fatalf("introduction %+v", turns)
		}
		if turns[1].delegation == "" || turns[1].context != "ctx-1" || turns[1].text != "Cancel booking X1" {
			t.Errorf("the change %+v", turns[1])
		}
		v, err := a.Conversation(t.Context(), owner(), r.Conversation)
		if err != nil || v.State != "evidence_verified" || len(v.Messages) != 2 || !v.Messages[0].Introduction {
			t.Errorf("conversation %+v, %v", v, err)
		}
	})
}

// AP-4: declined, nothing is sent and no consent is started.
func TestDeclined(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		c := w.person()
		c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { return false, nil }
		r := w.send(a, c, agent.SendRequest{Message: "Cancel booking X1", Scopes: []string{"trips:cancel"}}, agent.StatusDenied, agent.ReasonApprovalDenied)
		if len(w.biz.sent()) != 0 || len(w.calls(egress.DeviceAuthorization)) != 0 {
			t.Error("something was sent")
		}
		if v, err := a.Conversation(t.Context(), owner(), r.Conversation); err != nil || v.State != "denied" {
			t.Errorf("conversation %+v, %v", v, err)
		}
	})
}

// AP-4, AP-5: without anybody to ask a change needs --yes, which covers it.
func TestPreConfirmation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		r := w.send(a, owner(), agent.SendRequest{Message: "Please cancel it"}, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
		if r.Approval == nil || r.Approval.Message != "Please cancel it" || r.Approval.Destination != iface+"/message:send" || len(r.Approval.Digest) != 64 {
			t.Errorf("approval %+v", r.Approval)
		}
		if len(w.biz.sent()) != 0 {
			t.Error("something was sent")
		}
		c := owner()
		c.Confirmed = true
		w.send(a, c, agent.SendRequest{Message: "Please cancel it"}, agent.StatusReplied, "")
	})
}

// AP-3, CV-13: a step-up changes what was approved, so a pre-confirmation does
// not cover it.
func TestPreConfirmationDoesNotCoverAStepUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(u turn) (int, any) {
			if u.text == "Please cancel it" && u.delegation == "" {
				return 200, stepUp(u.context, "trips:cancel")
			}
			return 0, nil
		}
		c := w.person()
		c.Confirmed, c.Approve = true, nil
		r := w.send(a, c, agent.SendRequest{Message: "Please cancel it"}, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
		if len(r.MissingScopes) != 1 || r.Approval == nil || len(r.Approval.Scopes) != 1 {
			t.Errorf("got %+v", r)
		}
		if len(w.calls(egress.DeviceAuthorization)) != 0 {
			t.Error("consent was started without an approval")
		}
	})
}

// CV-13, DA-18: a step-up is consented to at the card's endpoint and sent again
// as another message in the same context, approved anew.
func TestStepUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(u turn) (int, any) {
			if u.delegation == "" {
				return 200, stepUp("ctx-7", "trips:read", "trips:cancel")
			}
			return 0, nil
		}
		approvals := 0
		c := w.person()
		c.Approve = func(_ context.Context, req agent.ApprovalRequest) (bool, error) {
			approvals++
			if !req.Exceeds && len(req.Scopes) != 2 {
				t.Errorf("asked %+v", req)
			}
			return true, nil
		}
		r := w.send(a, c, agent.SendRequest{Message: "Show my trips", Effect: "inspect"}, agent.StatusReplied, "")
		turns := w.biz.sent()
		if len(turns) != 2 || turns[0].id == turns[1].id || turns[1].context != "ctx-7" || len(turns[1].scopes) != 2 {
			t.Errorf("turns %+v", turns)
		}
		if approvals != 1 { // trips:cancel makes it a change
			t.Errorf("%d approvals", approvals)
		}
		if *r.Effect != agent.EffectChange || r.Evidence.Verdict != agent.VerdictVerified {
			t.Errorf("got %+v", r)
		}
	})
}

// CV-13: the limits of step-ups.
func TestStepUpLimits(t *testing.T) {
	for name, c := range map[string]struct {
		missing func(n int) []string
		status  agent.Status
		reason  string
		turns   int
	}{
		"a scope that the card does not have": {func(int) []string { return []string{"trips:read", "other"} }, agent.StatusUnsupported, agent.ReasonStepUpUnsupported, 1},
		"no scope":                            {func(int) []string { return []string{} }, agent.StatusUnsupported, agent.ReasonStepUpUnsupported, 1},
		"the same again after a grant":        {func(int) []string { return []string{"trips:read"} }, agent.StatusDenied, agent.ReasonInsufficient, 2},
		"a third one": {func(n int) []string {
			return []string{[]string{"trips:read", "trips:history", "trips:cancel"}[n]}
		}, agent.StatusUnsupported, agent.ReasonStepUpUnsupported, 3},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				w.biz.answer = func(u turn) (int, any) { return 200, stepUp("ctx", c.missing(u.n)...) }
				w.send(a, w.person(), agent.SendRequest{Message: "Show my trips"}, c.status, c.reason)
				if n := len(w.biz.sent()); n != c.turns {
					t.Errorf("%d turns, want %d", n, c.turns)
				}
			})
		})
	}
}

// AD-1, AD-2: admission refuses in its order and nothing is sent.
func TestAdmission(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		bot := w.person()
		bot.Origin, bot.Network = agent.OriginSubAgent, anywhere("bots")
		many := make([]string, 21)
		for i := range many {
			many[i] = "s" + strings.Repeat("x", i)
		}
		for _, c := range []struct {
			caller agent.Caller
			req    agent.SendRequest
			status agent.Status
			reason string
		}{
			{bot, agent.SendRequest{Message: " "}, agent.StatusBlocked, agent.ReasonDelegationRequired},
			{w.person(), agent.SendRequest{Message: " \n"}, agent.StatusFailed, agent.ReasonBlankMessage},
			{w.person(), agent.SendRequest{Message: strings.Repeat("é", 4001)}, agent.StatusFailed, agent.ReasonMessageTooLong},
			{w.person(), agent.SendRequest{Message: "my card is 4111 1111 1111 1111"}, agent.StatusBlocked, agent.ReasonSensitiveContent},
			{w.person(), agent.SendRequest{Message: "Show", Scopes: []string{"nope"}}, agent.StatusFailed, agent.ReasonUnknownScope},
			{w.person(), agent.SendRequest{Message: "Show", Scopes: many}, agent.StatusFailed, agent.ReasonTooManyScopes},
		} {
			w.send(a, c.caller, c.req, c.status, c.reason)
		}
		if n := len(w.biz.sent()) + len(w.calls(egress.DeviceAuthorization)); n != 0 {
			t.Errorf("%d requests reached the business", n)
		}
		if v, err := a.Conversations(t.Context(), owner()); err != nil || len(v) != 0 {
			t.Errorf("refused sends left %d conversations, %v", len(v), err)
		}
	})
}

// CV-4, CV-12, CV-11: a change whose connection drops is of unknown outcome, is
// never sent again and blocks the next operation, in a new conversation too.
func TestLostChangeBlocks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(u turn) (int, any) {
			if strings.Contains(u.text, "Cancel") {
				return 1, nil
			}
			return 0, nil
		}
		r := w.send(a, w.person(), agent.SendRequest{Message: "Cancel booking X1"}, agent.StatusUnknown, "network")
		if !strings.Contains(r.Detail, "Do not repeat") {
			t.Errorf("detail %q", r.Detail)
		}
		before := len(w.biz.sent())
		for _, req := range []agent.SendRequest{
			{Message: "Cancel booking X2"}, {Message: "Show my trips"}, {Message: "Show it", Conversation: r.Conversation},
			{Message: "Show it", Business: iface + "/.well-known/agent-card.json"}, // another way to the same interface
		} {
			w.send(a, w.person(), req, agent.StatusBlocked, agent.ReasonUnresolved)
		}
		if len(w.biz.sent()) != before {
			t.Error("something was sent")
		}
	})
}

// CV-4: a lost inspection blocks nothing.
func TestLostInspectionDoesNotBlock(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(u turn) (int, any) {
			if u.n == 0 {
				return 1, nil
			}
			return 0, nil
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusUnknown, "network")
		w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
	})
}

// CV-9: the same message again after 2, 4, 8, 16 and 30 s, then unknown.
func TestNoReplyYet(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(turn) (int, any) { return 400, a2aError(400, "INVALID_PARAMS", "There is no reply yet") }
		w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusUnknown, agent.ReasonStillProcessing)
		calls := w.calls(egress.Message)
		if len(calls) != 6 {
			t.Fatalf("%d attempts", len(calls))
		}
		for i, want := range []time.Duration{2, 4, 8, 16, 30} {
			if got := calls[i+1].at.Sub(calls[i].at); got != want*time.Second {
				t.Errorf("wait %d is %v", i, got)
			}
			if calls[i+1].body != calls[0].body {
				t.Error("another body")
			}
		}
	})
}

// CV-10: at most three retries after a 429; a Retry-After is obeyed to 120 s.
func TestRateLimited(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		after := []string{"7", "", "999", "1"}
		w.biz.answer = func(u turn) (int, any) { return 429, http.Header{"Retry-After": {after[u.n]}} }
		w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusFailed, "rate_limited")
		calls := w.calls(egress.Message)
		if len(calls) != 4 {
			t.Fatalf("%d attempts", len(calls))
		}
		for i, want := range []time.Duration{7, 5, 120} {
			if got := calls[i+1].at.Sub(calls[i].at); got != want*time.Second {
				t.Errorf("wait %d is %v", i, got)
			}
		}
	})
}

// SG-9: after a plain 401 once more with a fresh token; that provider gets fresh
// ones from then on.
func TestSingleUseTokens(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.biz.singleUse = true
		a := w.enrolled()
		for range 5 {
			w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		}
		// first: 1; second: the cached one is refused, a fresh one; after that a fresh
		// one each, and none is kept to be refused again
		if n := len(w.calls(egress.Message)); n != 6 {
			t.Errorf("%d requests", n)
		}
		if signed, _ := w.signer.counts(); signed != 5 {
			t.Errorf("%d signed", signed)
		}
	})
}

// SG-9, CV-11: a second plain 401 is identity_rejected.
func TestIdentityRejected(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(turn) (int, any) { return 401, http.Header{"Www-Authenticate": {`Bearer realm="a2a"`}} }
		w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusBlocked, agent.ReasonIdentityRejected)
		if n := len(w.biz.sent()); n != 2 {
			t.Errorf("%d attempts", n)
		}
	})
}

// CV-11: a closed context is left for a fresh one, once.
func TestClosedContextRestartsOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		r := w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		w.biz.set(func(b *business) {
			b.answer = func(u turn) (int, any) {
				if u.context == "ctx-1" {
					return 400, a2aError(400, "UNSUPPORTED_OPERATION", "closed")
				}
				return 0, nil
			}
		})
		w.send(a, owner(), agent.SendRequest{Message: "Show them again", Conversation: r.Conversation}, agent.StatusReplied, "")
		turns := w.biz.sent()
		if len(turns) != 3 || turns[2].context != "" || turns[1].id != turns[2].id {
			t.Errorf("turns %+v", turns)
		}
		w.biz.set(func(b *business) {
			b.answer = func(turn) (int, any) { return 400, a2aError(400, "UNSUPPORTED_OPERATION", "closed") }
		})
		w.send(a, owner(), agent.SendRequest{Message: "Show them again", Conversation: r.Conversation}, agent.StatusFailed, agent.ReasonContextClosed)
		if n := len(w.biz.sent()); n != 5 {
			t.Errorf("%d turns", n)
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show", Conversation: r.Conversation}, agent.StatusFailed, agent.ReasonClosed)
	})
}

// CV-6: at most three introductions. Replies without a context are why it failed; of a
// business that did not answer it is told that, for it may later.
func TestIntroductionLimit(t *testing.T) {
	for reason, answer := range map[agent.Reason]func(b *business, u turn) (int, any){
		"network": func(*business, turn) (int, any) { return 1, nil },
		agent.ReasonContextLimit: func(b *business, u turn) (int, any) {
			reply := b.normal(u)
			delete(reply["message"].(map[string]any), "contextId")
			return 200, reply
		},
	} {
		t.Run(reason, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				w.biz.answer = func(u turn) (int, any) { return answer(w.biz, u) }
				r := w.send(a, w.person(), agent.SendRequest{Message: "Cancel booking X1"}, agent.StatusFailed, reason)
				if n := len(w.biz.sent()); n != 3 || !strings.Contains(r.Detail, "no conversation in 3 attempts") {
					t.Errorf("%d introductions, %q", n, r.Detail)
				}
				w.biz.set(func(b *business) { b.answer = nil })
				w.send(a, w.person(), agent.SendRequest{Message: "Cancel booking X1"}, agent.StatusReplied, "")
			})
		})
	}
}

// CV-6, AP-1: a business that is away behind a connection that is taken passes too: what was
// approved stays so, and is sent, once, when it is there again.
func TestIntroductionsCutOff(t *testing.T) {
	for _, code := range []egress.Code{egress.Network, egress.Timeout} {
		t.Run(string(code), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.enrolled().Close()
				away := true
				a := w.openHooked(func(_ context.Context, req egress.Request) (egress.Response, error, bool) {
					return egress.Response{}, &egress.Error{Code: code, Purpose: egress.Message, Sent: true, Err: errors.New("x")}, away && req.Purpose == egress.Message
				})
				p := w.ask(a, inAssistant("a"), cancelX1)
				w.decide(a, ops(), p, true, agent.StatusFailed, string(code))
				w.approval(a, p.ID, agent.ApprovalApproved)
				away = false
				w.tend(a, agent.Tending{})
				time.Sleep(20 * time.Minute)
				if v := w.approval(a, p.ID, agent.ApprovalSent); v.DecidedBy != "token ops" || len(w.changed()) != 1 {
					t.Errorf("%+v, sent %+v", v, w.changed())
				}
			})
		})
	}
}

// SG-7: ten sends at once share one signature.
func TestConcurrentSendsShareOneSign(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "") // the card is known
		time.Sleep(5 * time.Minute)                                                     // virtual: every cache is old
		before, _ := w.signer.counts()
		hold := make(chan struct{})
		w.signer.set(func(s *signerStandIn) { s.hold = hold })
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "") })
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		if after, _ := w.signer.counts(); after != before+1 {
			t.Errorf("%d signatures", after-before)
		}
		if n := len(w.biz.sent()); n != 11 {
			t.Errorf("%d turns", n)
		}
	})
}

// CV-3: one turn at a time in a conversation, whoever asks.
func TestConversationBusy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, other := w.enrolled(), (*agent.Agent)(nil)
		r := w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		other = w.open() // as another process
		c := w.person()
		c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
			for _, b := range []*agent.Agent{a, other} {
				w.send(b, owner(), agent.SendRequest{Message: "Show", Conversation: r.Conversation}, agent.StatusBlocked, agent.ReasonBusy)
			}
			return true, nil
		}
		w.send(a, c, agent.SendRequest{Message: "Cancel it", Conversation: r.Conversation}, agent.StatusReplied, "")
		w.send(other, owner(), agent.SendRequest{Message: "Show", Conversation: r.Conversation}, agent.StatusReplied, "")
	})
}

// CV-16, CV-11: the owner leaves during a wait.
func TestLeaving(t *testing.T) {
	for name, c := range map[string]struct {
		answer any
		code   int
		status agent.Status
	}{
		"while rate limited": {http.Header{"Retry-After": {"60"}}, 429, agent.StatusCancelled},
		"while no reply yet": {a2aError(400, "INVALID_PARAMS", "no reply yet"), 400, agent.StatusUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				w.biz.answer = func(turn) (int, any) { return c.code, c.answer }
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				r, err := a.Send(ctx, owner(), agent.SendRequest{Business: cardURL, Message: "Show my trips"})
				if err != nil || r.Status != c.status {
					t.Errorf("got %+v, %v", r, err)
				}
			})
		})
	}
}

// ID-7: another principal sees nothing.
func TestPrincipalsAreApart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		r := w.send(a, w.person(), agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusReplied, "")
		bob := owner()
		bob.Principal = "bob"
		if _, err := a.Conversation(t.Context(), bob, r.Conversation); err == nil {
			t.Error("bob reads alice's conversation")
		}
		if _, err := a.Receipt(t.Context(), bob, r.Evidence.Receipt); err == nil {
			t.Error("bob reads alice's receipt")
		}
		grants, err := a.Grants(t.Context(), bob)
		if err != nil || len(grants) != 0 {
			t.Errorf("bob sees %v, %v", grants, err)
		}
		w.send(a, bob, agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonIdentityNotSet)
		if _, err := a.Send(t.Context(), agent.Caller{Origin: agent.OriginOwner}, agent.SendRequest{Business: cardURL, Message: "Show"}); err == nil {
			t.Error("a call without principal")
		}
	})
}

// AD-1: who sends and what are asked before whether the business is supported.
func TestAdmissionBeforeUnsupported(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.set(func(b *business) { b.card["supportedInterfaces"].([]any)[0].(map[string]any)["tenant"] = "x" })
		bot := owner()
		bot.Origin = agent.OriginBot
		bot.Network = anywhere("bots")
		w.send(a, bot, agent.SendRequest{Message: " "}, agent.StatusBlocked, agent.ReasonDelegationRequired)
		w.send(a, owner(), agent.SendRequest{Message: " "}, agent.StatusFailed, agent.ReasonBlankMessage)
		w.send(a, owner(), agent.SendRequest{Message: strings.Repeat("x", 4001)}, agent.StatusFailed, agent.ReasonMessageTooLong)
		w.send(a, owner(), agent.SendRequest{Message: "password: x"}, agent.StatusBlocked, agent.ReasonSensitiveContent)
		w.send(a, owner(), agent.SendRequest{Message: "Show", Scopes: []string{"no:such"}}, agent.StatusUnsupported, agent.ReasonTenant)
	})
}
