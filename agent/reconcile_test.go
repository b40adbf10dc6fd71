package agent_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// loses makes the business carry messages that begin so out, once each, and drop
// the connection instead of answering; the same id again gets the stored reply.
// It returns how often each text was carried out.
func (b *business) loses(prefix string) (ran map[string]int) {
	ran = map[string]int{}
	stored := map[string]map[string]any{}
	b.set(func(b *business) {
		b.answer = func(u turn) (int, any) {
			if !strings.HasPrefix(u.text, prefix) {
				return 0, nil
			}
			if r := stored[u.id]; r != nil {
				return 200, r
			}
			ran[u.text]++
			stored[u.id] = b.normal(u)
			return 200, nil
		}
	})
	return ran
}

// lost is an agent with a grant, and a message of unknown outcome in a
// conversation that has a context.
func lost(w *world, req agent.SendRequest) (a *agent.Agent, r agent.Result, ran map[string]int) {
	w.t.Helper()
	a = granted(w, 50*time.Minute, req.Scopes...)
	first := w.send(a, w.person(), agent.SendRequest{Message: "Is it on time?"}, agent.StatusReplied, "")
	ran = w.biz.loses(req.Message)
	req.Conversation = first.Conversation
	return a, w.send(a, w.person(), req, agent.StatusUnknown, "network"), ran
}

// reconcile reconciles and expects a status and reason.
func (w *world) reconcile(a *agent.Agent, c agent.Caller, req agent.ReconcileRequest, status agent.Status, reason string) agent.Result {
	w.t.Helper()
	r, err := a.Reconcile(w.t.Context(), c, req)
	if err != nil {
		w.t.Fatalf("reconcile: %v", err)
	}
	if r.Status != status || r.Reason != reason {
		w.t.Errorf("reconcile: %s %q (%s); want %s %q", r.Status, r.Reason, r.Detail, status, reason)
	}
	return r
}

// stillUnknown checks that a message is of unknown outcome, for a reason, and so
// its conversation.
func (w *world) stillUnknown(a *agent.Agent, r agent.Result, reason string) {
	w.t.Helper()
	v, err := a.Conversation(w.t.Context(), owner(), r.Conversation)
	if err != nil {
		w.t.Fatal(err)
	}
	m := v.Messages[len(v.Messages)-1]
	if m.ID != r.Message || m.State != "outcome_unknown" || v.State != "outcome_unknown" || reason != "" && m.Reason != reason {
		w.t.Errorf("message %s %s (%s) in %s; want %s outcome_unknown (%s)", m.ID, m.State, m.Reason, v.State, r.Message, reason)
	}
}

// CV-14, CV-15, AP-1, EV-4: a stored reply ends the unknown outcome. The same id
// and bytes are sent, approved anew as what they are, and the receipt is judged by
// the time of the first send, long ago.
func TestReconcile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, r, ran := lost(w, cancelTrip)
		sent := w.calls(egress.Message)
		first := sent[len(sent)-1]
		time.Sleep(20 * time.Minute)
		var asked []agent.ApprovalRequest
		c := w.person()
		c.Approve = func(_ context.Context, q agent.ApprovalRequest) (bool, error) {
			asked = append(asked, q)
			w.stillUnknown(a, r, "network")
			return true, nil
		}
		got := w.reconcile(a, c, agent.ReconcileRequest{Conversation: r.Conversation}, agent.StatusReplied, "")
		if len(asked) != 1 || asked[0].Message != cancelTrip.Message || asked[0].SentBefore.Sub(first.at).Abs() > time.Millisecond || asked[0].Effect != agent.EffectChange ||
			len(asked[0].Scopes) != 1 || len(asked[0].Digest) != 64 || asked[0].Changed {
			t.Errorf("asked %+v", asked)
		}
		calls := w.calls(egress.Message)
		again := calls[len(calls)-1]
		if len(calls) != len(sent)+1 || again.body != first.body || again.url != first.url {
			t.Errorf("%d requests, the last %s %s", len(calls)-len(sent), again.url, again.body)
		}
		if ran[cancelTrip.Message] != 1 {
			t.Errorf("carried out %d times", ran[cancelTrip.Message])
		}
		if got.Message != r.Message || got.Conversation != r.Conversation || got.Reply != "Answer to: Cancel booking X1" ||
			got.Evidence == nil || got.Evidence.Verdict != agent.VerdictVerified {
			t.Errorf("got %+v, evidence %+v", got, got.Evidence)
		}
		v, err := a.Conversation(t.Context(), owner(), r.Conversation)
		if m := v.Messages[len(v.Messages)-1]; err != nil || v.State != "evidence_verified" || m.State != "replied" || m.Attempts != 2 {
			t.Errorf("conversation %s, message %+v, %v", v.State, m, err)
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Please cancel seat 3"}, agent.StatusReplied, "")
		w.reconcile(a, w.person(), agent.ReconcileRequest{Conversation: r.Conversation}, agent.StatusFailed, agent.ReasonNothingToReconcile)
	})
}

// EV-4: in a reconcile the window begins at the first send: a receipt from before
// it is no receipt of this message, and one from just now is.
func TestReconcileEvidenceWindow(t *testing.T) {
	for name, c := range map[string]struct {
		ts      time.Duration // from the first send
		verdict agent.Verdict
	}{
		"before it was sent": {-6 * time.Minute, agent.VerdictNeedsReview},
		"when it was sent":   {0, agent.VerdictVerified},
		"meanwhile":          {10 * time.Minute, agent.VerdictVerified},
		"later":              {26 * time.Minute, agent.VerdictNeedsReview},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.biz.receipt = func(claims, _ map[string]any) {
					claims["ts"] = time.Now().Add(c.ts).UTC().Format(time.RFC3339Nano)
				}
				a, _, _ := lost(w, cancelTrip)
				time.Sleep(20 * time.Minute)
				got := w.reconcile(a, w.person(), agent.ReconcileRequest{}, agent.StatusReplied, "")
				if got.Evidence == nil || got.Evidence.Verdict != c.verdict {
					t.Errorf("evidence %+v", got.Evidence)
				}
			})
		})
	}
}

// EV-4, GR-7: the receipt is judged by the scopes that the message was sent
// under, though a refresh has left fewer since.
func TestReconcileJudgesByWhatItWasSentUnder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:cancel", "trips:read")
		first := w.send(a, owner(), agent.SendRequest{Message: "Is it on time?"}, agent.StatusReplied, "")
		w.biz.receipt = func(claims, _ map[string]any) { claims["scopesUsed"] = []string{"trips:read"} }
		w.biz.loses("Cancel")
		req := cancelTrip
		req.Conversation = first.Conversation
		w.send(a, w.person(), req, agent.StatusUnknown, "network")
		w.biz.set(func(b *business) { b.scopes = []string{"trips:cancel"} })
		time.Sleep(55 * time.Minute)
		got := w.reconcile(a, w.person(), agent.ReconcileRequest{}, agent.StatusReplied, "")
		if w.biz.refreshed != 1 || got.Evidence == nil || got.Evidence.Verdict != agent.VerdictVerified {
			t.Errorf("%d refreshes, evidence %+v", w.biz.refreshed, got.Evidence)
		}
	})
}

// CV-15, CV-11, CV-9, CV-10, GR-8: while reconciling, whatever is not a reply
// leaves the outcome unknown, begins nothing and sends nothing else, of a change and of an
// inspection; a reply ends it after all.
func TestReconcileRefusals(t *testing.T) {
	t.Parallel()
	answers := func(status int, v any) func(*world) {
		return func(w *world) {
			w.biz.set(func(b *business) { b.answer = func(turn) (int, any) { return status, v } })
		}
	}
	for name, c := range map[string]struct {
		prepare  func(w *world)
		reason   string
		attempts int  // on the wire
		gone     bool // it can never be asked again
	}{
		"destination refused": {func(w *world) {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.hosts, provider)
		}, "destination_refused", 0, false},
		"connection lost":  {answers(200, nil), "network", 1, false},
		"unreadable":       {answers(200, "no JSON"), "invalid_reply", 1, false},
		"reply of a user":  {answers(200, map[string]any{"message": map[string]any{"role": "ROLE_USER", "parts": []any{}}}), "reply_not_from_agent", 1, false},
		"another context":  {answers(200, map[string]any{"message": map[string]any{"role": "ROLE_AGENT", "contextId": "x", "parts": []any{}}}), "reply_context_mismatch", 1, false},
		"401":              {answers(401, header("Www-Authenticate", "Bearer")), agent.ReasonIdentityRejected, 2, false},
		"401 of the token": {answers(401, header("Www-Authenticate", `Bearer error="invalid_token"`)), agent.ReasonDelegationGone, 1, true},
		"404":              {answers(404, "nothing"), "business_not_found", 1, false},
		"429":              {answers(429, header("Retry-After", "1")), "rate_limited", 4, false},
		"503":              {answers(503, "busy"), "http_503", 1, false},
		"418":              {answers(418, "tea"), "http_418", 1, false},
		"302":              {answers(302, header("Location", "/elsewhere")), "http_302", 1, false},
		"context closed":   {answers(400, a2aError(400, "UNSUPPORTED_OPERATION", "closed")), agent.ReasonContextClosed, 1, false},
		"foreign context":  {answers(400, a2aError(400, "INVALID_PARAMS", "unknown contextId")), "foreign_context", 1, false},
		"no reply yet":     {answers(400, a2aError(400, "INVALID_PARAMS", "no reply yet")), agent.ReasonStillProcessing, 6, false},
		"content type":     {answers(400, a2aError(400, "CONTENT_TYPE_NOT_SUPPORTED", "no")), "content_type_not_supported", 1, false},
		"task not found":   {answers(404, a2aError(404, "TASK_NOT_FOUND", "no")), "task_not_found", 1, false},
		"push":             {answers(400, a2aError(400, "PUSH_NOTIFICATION_NOT_SUPPORTED", "no")), "push_notification_not_supported", 1, false},
		"internal":         {answers(500, a2aError(500, "INTERNAL", "no")), "business_internal_error", 1, false},
		"unknown code":     {answers(400, a2aError(400, "OTHER", "no")), "business_error", 1, false},
		"step-up": {func(w *world) {
			w.biz.set(func(b *business) {
				b.answer = func(u turn) (int, any) { return 200, stepUp(u.context, "trips:history") }
			})
		}, "auth_required", 1, false},
		"no identity token": {func(w *world) {
			w.signer.set(func(s *signerStandIn) { s.change = func(claims, _ map[string]any) { claims["aud"] = "other" } })
			time.Sleep(4*time.Minute + 30*time.Second) // the cached one is too old
		}, agent.ReasonInvalidToken, 0, false},
		"no delegation token": {func(w *world) {
			w.biz.set(func(b *business) { b.failRefresh = 500 })
			time.Sleep(55 * time.Minute)
		}, agent.ReasonReconnect, 0, false},
	} {
		requests := []agent.SendRequest{cancelTrip}
		if slices.Contains([]string{"404", "503", "internal", "unknown code", "no reply yet", "step-up"}, name) { // TestClassify has them all
			requests = append(requests, readTrips)
		}
		for _, req := range requests {
			t.Run(name+"/"+req.Message, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := newWorld(t)
					a, r, _ := lost(w, req)
					remembers := w.biz.answer
					host := w.hosts[provider]
					c.prepare(w)
					turns := w.biz.sent()
					got := w.reconcile(a, w.person(), agent.ReconcileRequest{Business: cardURL}, agent.StatusUnknown, c.reason)
					if got.Message != r.Message || got.Conversation != r.Conversation || got.Evidence != nil {
						t.Errorf("got %+v", got)
					}
					w.stillUnknown(a, r, "network") // of the message the refusal says nothing
					now := w.biz.sent()[len(turns):]
					if len(now) != c.attempts || slices.ContainsFunc(now, func(u turn) bool { return u.id != turns[len(turns)-1].id || u.text != req.Message }) {
						t.Errorf("on the wire %+v", now)
					}
					if n := len(w.calls(egress.DeviceAuthorization)); n != 1 {
						t.Errorf("%d sign-ins", n)
					}
					if req.Message == cancelTrip.Message {
						w.send(a, w.person(), agent.SendRequest{Message: "Cancel all"}, agent.StatusBlocked, agent.ReasonUnresolved)
					}
					w.biz.set(func(b *business) { b.answer, b.failRefresh = remembers, 0 })
					w.signer.set(func(s *signerStandIn) { s.change = nil })
					w.mu.Lock()
					w.hosts[provider] = host
					w.mu.Unlock()
					if c.gone {
						w.reconcile(a, w.person(), agent.ReconcileRequest{}, agent.StatusUnknown, agent.ReasonAuthorityChanged)
						return
					}
					w.reconcile(a, w.person(), agent.ReconcileRequest{}, agent.StatusReplied, "")
				})
			})
		}
	}
}

// CV-15, CV-11: who leaves during the waits of a reconcile has learnt nothing.
func TestReconcileGivenUp(t *testing.T) {
	for name, answer := range map[string]any{
		"no reply yet": a2aError(400, "INVALID_PARAMS", "no reply yet"),
		"429":          http.Header{"Retry-After": {"60"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a, r, _ := lost(w, cancelTrip)
				w.biz.set(func(b *business) {
					b.answer = func(turn) (int, any) {
						if _, ok := answer.(http.Header); ok {
							return 429, answer
						}
						return 400, answer
					}
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				got, err := a.Reconcile(ctx, w.person(), agent.ReconcileRequest{})
				if err != nil || got.Status != agent.StatusUnknown || got.Reason != agent.ReasonUserCancelled {
					t.Errorf("got %+v, %v", got, err)
				}
				w.stillUnknown(a, r, "network")
			})
		})
	}
}

// CV-14, AD-2, AP-1, AP-4, PO-1, PO-5: what a reconcile needs. Nothing is sent
// without, and the outcome stays unknown.
func TestReconcileNeeds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(w *world, a *agent.Agent, r agent.Result)
		caller  func(c *agent.Caller)
		status  agent.Status
		reason  string
	}{
		"availability": {func(w *world, a *agent.Agent, _ agent.Result) {
			if err := a.SetPreference(w.t.Context(), owner(), agent.DisabledPACT); err != nil {
				w.t.Error(err)
			}
		}, nil, agent.StatusBlocked, agent.ReasonPACTDisabled},
		"the signer": {func(w *world, _ *agent.Agent, _ agent.Result) {
			w.signer.set(func(s *signerStandIn) { s.disabled = true })
			time.Sleep(2 * time.Minute)
		}, nil, agent.StatusBlocked, agent.ReasonSignerDisabled},
		"the owner": {nil, func(c *agent.Caller) { c.Origin, c.Network = agent.OriginBot, anywhere("bots") }, agent.StatusBlocked, agent.ReasonDelegationRequired},
		"an approval": {nil, func(c *agent.Caller) { c.Approve, c.Human = nil, agent.HumanNone },
			agent.StatusApprovalRequired, agent.ReasonApprovalRequired},
		"a yes": {nil, func(c *agent.Caller) {
			c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { return false, nil }
		}, agent.StatusDenied, agent.ReasonApprovalDenied},
		"the same card": {func(w *world, _ *agent.Agent, _ agent.Result) {
			w.biz.set(func(b *business) { b.describe("trips:read", "Read everything") })
			time.Sleep(6 * time.Minute)
		}, nil, agent.StatusUnknown, agent.ReasonAuthorityChanged},
		"the same provider settings": {func(w *world, a *agent.Agent, _ agent.Result) {
			if _, err := a.AddProvider(w.t.Context(), owner(), provider, "aud-new", ""); err != nil {
				w.t.Error(err)
			}
		}, nil, agent.StatusUnknown, agent.ReasonAuthorityChanged},
		"the same grant": {func(w *world, a *agent.Agent, _ agent.Result) {
			if _, err := a.Disconnect(w.t.Context(), owner(), onlyGrant(w.t, a).ID); err != nil {
				w.t.Error(err)
			}
			if _, err := a.Authorize(w.t.Context(), w.person(), agent.AuthorizeRequest{Business: cardURL, Scopes: cancelTrip.Scopes}); err != nil {
				w.t.Error(err)
			}
		}, nil, agent.StatusUnknown, agent.ReasonAuthorityChanged},
		"a grant that has not lapsed": {func(w *world, _ *agent.Agent, _ agent.Result) {
			time.Sleep(31 * 24 * time.Hour)
		}, nil, agent.StatusUnknown, agent.ReasonAuthorityChanged},
		"the bytes that were sent": {func(w *world, _ *agent.Agent, _ agent.Result) {
			w.edit(`UPDATE messages SET data = CAST(replace(CAST(data AS TEXT), 'booking X1', 'booking X2') AS BLOB)`)
		}, nil, agent.StatusUnknown, agent.ReasonReconcileImpossible},
		"the same subject": {func(w *world, a *agent.Agent, _ agent.Result) {
			w.signer.set(func(s *signerStandIn) { s.subject = "pa_other" })
			w.reconcile(a, w.person(), agent.ReconcileRequest{}, agent.StatusBlocked, agent.ReasonIdentityChanged)
		}, func(c *agent.Caller) {}, agent.StatusUnknown, agent.ReasonClosed},
		"an open conversation": {func(w *world, _ *agent.Agent, r agent.Result) {
			w.edit(fmt.Sprintf(`UPDATE conversations SET state = 'closed' WHERE id = '%s'`, r.Conversation))
		}, nil, agent.StatusUnknown, agent.ReasonClosed},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a, r, _ := lost(w, cancelTrip)
				if name == "the same subject" {
					time.Sleep(2 * time.Minute)
				}
				if c.prepare != nil {
					c.prepare(w, a, r)
				}
				turns := len(w.biz.sent())
				caller := w.person()
				if c.caller != nil {
					c.caller(&caller)
				}
				got := w.reconcile(a, caller, agent.ReconcileRequest{Conversation: r.Conversation}, c.status, c.reason)
				if c.reason != agent.ReasonPACTDisabled && c.reason != agent.ReasonSignerDisabled && (got.Message != r.Message || got.Conversation != r.Conversation) {
					t.Errorf("got %+v", got)
				}
				if (c.status == agent.StatusApprovalRequired) != (got.Approval != nil && !got.Approval.SentBefore.IsZero()) && c.reason != agent.ReasonApprovalDenied {
					t.Errorf("approval %+v", got.Approval)
				}
				if n := len(w.biz.sent()); n != turns {
					t.Errorf("%d turns were sent", n-turns)
				}
				v, err := a.Conversation(t.Context(), owner(), r.Conversation)
				if m := v.Messages[len(v.Messages)-1]; err != nil || m.State != "outcome_unknown" || m.Reason != "network" {
					t.Errorf("message %+v, %v", m, err)
				}
			})
		})
	}
}

// AP-5: --yes confirms a reconcile too, and says what.
func TestReconcilePreConfirmed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, _, _ := lost(w, cancelTrip)
		c := owner()
		shown := 0
		c.Confirmed = true
		c.Shown = func(q agent.ApprovalRequest) {
			if shown++; q.SentBefore.IsZero() || q.Message != cancelTrip.Message {
				t.Errorf("shown %+v", q)
			}
		}
		c.Actor = "token ops"
		r := w.reconcile(a, c, agent.ReconcileRequest{}, agent.StatusReplied, "")
		if shown != 1 {
			t.Errorf("shown %d times", shown)
		}
		v, err := a.Conversation(t.Context(), owner(), r.Conversation)
		if m := v.Messages[len(v.Messages)-1]; err != nil || m.ID != r.Message || m.ReconciledBy != "token ops" || !m.Reconciled.Equal(time.Now()) || m.Actor != "owner" {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

// CV-14: a message that was its conversation's first has no context to be asked
// about in. An inspection holds nothing back, and needs no approval.
func TestReconcileWithoutContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.loses("Show")
		r := w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusUnknown, "network")
		if strings.Contains(r.Detail, "pactctl reconcile") {
			t.Errorf("detail %q", r.Detail)
		}
		turns := len(w.biz.sent())
		w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusUnknown, "network")
		turns++
		again := w.reconcile(a, owner(), agent.ReconcileRequest{}, agent.StatusUnknown, agent.ReasonReconcileImpossible)
		if strings.Contains(again.Detail, "acknowledge") || !strings.Contains(again.Detail, "send it anew") {
			t.Errorf("detail %q", again.Detail)
		}
		if len(w.biz.sent()) != turns {
			t.Error("it was sent")
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusReplied, "")
	})
}

// CV-14, ID-7: which operation is meant: a named one, the business's, or the only
// one there is; one that may have changed something comes before lost
// inspections. Another principal's is none.
func TestReconcileFindsTheOperation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.reconcile(a, owner(), agent.ReconcileRequest{}, agent.StatusFailed, agent.ReasonNothingToReconcile)
		w.reconcile(a, owner(), agent.ReconcileRequest{Business: cardURL}, agent.StatusFailed, agent.ReasonNotFound)
		w.reconcile(a, owner(), agent.ReconcileRequest{Conversation: "c-none"}, agent.StatusFailed, agent.ReasonNotFound)
		one := w.send(a, owner(), agent.SendRequest{Message: "Is it on time?"}, agent.StatusReplied, "")
		two := w.send(a, owner(), agent.SendRequest{Message: "Is it on time?"}, agent.StatusReplied, "")
		w.reconcile(a, owner(), agent.ReconcileRequest{Business: cardURL}, agent.StatusFailed, agent.ReasonNothingToReconcile)
		w.reconcile(a, owner(), agent.ReconcileRequest{Conversation: one.Conversation}, agent.StatusFailed, agent.ReasonNothingToReconcile)
		w.biz.loses("")
		w.send(a, owner(), agent.SendRequest{Message: "Show 1", Conversation: one.Conversation}, agent.StatusUnknown, "network")
		w.send(a, owner(), agent.SendRequest{Message: "Show 2", Conversation: two.Conversation}, agent.StatusUnknown, "network")
		r := w.reconcile(a, owner(), agent.ReconcileRequest{}, agent.StatusFailed, agent.ReasonSeveralUnresolved)
		if !strings.Contains(r.Detail, one.Conversation) || !strings.Contains(r.Detail, two.Conversation) {
			t.Errorf("detail %q", r.Detail)
		}
		// A change in the second: it is the one that counts.
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel 2", Conversation: two.Conversation}, agent.StatusUnknown, "network")
		if r := w.reconcile(a, w.person(), agent.ReconcileRequest{Business: cardURL}, agent.StatusReplied, ""); r.Reply != "Answer to: Cancel 2" {
			t.Errorf("got %+v", r)
		}
		for _, n := range []string{"1", "2"} {
			id := map[string]string{"1": one.Conversation, "2": two.Conversation}[n]
			if r := w.reconcile(a, owner(), agent.ReconcileRequest{Conversation: id}, agent.StatusReplied, ""); r.Reply != "Answer to: Show "+n {
				t.Errorf("got %+v", r)
			}
		}
		bob := owner()
		bob.Principal = "bob"
		if _, err := a.Enroll(t.Context(), bob, agent.EnrollRequest{SignerURL: signerURL}); err != nil {
			t.Fatal(err)
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show 3", Conversation: one.Conversation}, agent.StatusUnknown, "network")
		w.reconcile(a, bob, agent.ReconcileRequest{}, agent.StatusFailed, agent.ReasonNothingToReconcile)
		w.reconcile(a, bob, agent.ReconcileRequest{Conversation: one.Conversation}, agent.StatusFailed, agent.ReasonNotFound)
	})
}

// CV-3, CV-12, CV-15, RS-1: a reconcile takes its conversation's turn; one that is
// killed leaves the outcome unknown, and is not taken up by itself.
func TestKilledWhileReconciling(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, r, _ := lost(w, cancelTrip)
		remembers := w.biz.answer
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		w.crashDuring(func(a *agent.Agent) {
			_, _ = a.Reconcile(ctx, w.person(), agent.ReconcileRequest{})
		})
		w.biz.set(func(b *business) { b.answer = remembers })
		turns := len(w.biz.sent())
		time.Sleep(10 * time.Second)
		b := w.open()
		w.stillUnknown(b, r, "network")
		w.reconcile(b, w.person(), agent.ReconcileRequest{}, agent.StatusBlocked, agent.ReasonBusy)
		w.send(b, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusBlocked, agent.ReasonUnresolved)
		if _, err := b.Acknowledge(t.Context(), owner(), r.Message); agent.ReasonOf(err) != agent.ReasonBusy {
			t.Errorf("acknowledge: %v", err)
		}
		time.Sleep(4 * time.Minute)
		w.stillUnknown(b, r, "network")
		if n := len(w.biz.sent()); n != turns {
			t.Errorf("%d turns by itself", n-turns)
		}
		w.reconcile(b, w.person(), agent.ReconcileRequest{}, agent.StatusReplied, "")
	})
}

// AP-3, PO-7: what changes while the owner is asked holds a reconcile back.
func TestReconcileChangesWhileAsked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world, a *agent.Agent)
		status agent.Status
		reason string
	}{
		"switched off": {func(w *world, a *agent.Agent) {
			if err := a.SetPreference(w.t.Context(), owner(), agent.DisabledPACT); err != nil {
				w.t.Error(err)
			}
		}, agent.StatusBlocked, agent.ReasonPACTDisabled},
		"another card": {func(w *world, _ *agent.Agent) {
			w.biz.set(func(b *business) { b.describe("trips:read", "Read everything") })
			time.Sleep(6 * time.Minute)
		}, agent.StatusUnknown, agent.ReasonAuthorityChanged},
		"no grant": {func(w *world, a *agent.Agent) {
			if _, err := a.Disconnect(w.t.Context(), owner(), onlyGrant(w.t, a).ID); err != nil {
				w.t.Error(err)
			}
		}, agent.StatusUnknown, agent.ReasonAuthorityChanged},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a, r, _ := lost(w, cancelTrip)
				turns := len(w.biz.sent())
				p := w.person()
				p.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { c.change(w, a); return true, nil }
				w.reconcile(a, p, agent.ReconcileRequest{}, c.status, c.reason)
				w.stillUnknown(a, r, "network")
				if len(w.biz.sent()) != turns {
					t.Error("it was sent")
				}
			})
		})
	}
}

// CV-14, EV-5, CV-4: a reconcile is held back neither by its own message nor by
// evidence that waits for the owner.
func TestReconcileIsNotHeldBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:cancel")
		first := w.send(a, owner(), agent.SendRequest{Message: "Is it on time?"}, agent.StatusReplied, "")
		w.biz.set(func(b *business) { b.receipt = func(_, e map[string]any) { e["none"] = true } })
		w.biz.loses("Show")
		lost := w.send(a, w.person(), agent.SendRequest{Message: "Show my seat", Scopes: cancelTrip.Scopes, Effect: "change", Conversation: first.Conversation},
			agent.StatusUnknown, "network")
		// It came before the evidence of this one.
		w.edit(`UPDATE messages SET state = 'failed' WHERE id = '` + lost.Message + `'`)
		w.send(a, w.person(), cancelTrip, agent.StatusReplied, "")
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusBlocked, agent.ReasonEvidenceReview)
		w.edit(`UPDATE messages SET state = 'outcome_unknown' WHERE id = '` + lost.Message + `'`)
		w.reconcile(a, w.person(), agent.ReconcileRequest{}, agent.StatusReplied, "")
	})
}

// AD-8, AD-9: what a reconcile may do beyond an inspection is asked as of a send, by all
// cards of the interface.
func TestReconcileExceedsElsewhere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, r, _ := lost(w, readTrips)
		turns := len(w.biz.sent())
		card := strings.Replace(string(marshal(w.biz.card)), "View your trips", "Cancel your trips", 1)
		w.intercept(provider, "/second.json", func(rw http.ResponseWriter, _ *http.Request) bool {
			respond(rw, 200, card)
			return true
		})
		second, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: provider + "/second.json"})
		if err != nil || !second.Supported {
			t.Fatalf("%+v, %v", second, err)
		}
		got := w.reconcile(a, ops(), agent.ReconcileRequest{Conversation: r.Conversation}, agent.StatusApprovalRequired, agent.ReasonTokenExceeds)
		if n := len(w.biz.sent()); n != turns || got.Approval == nil {
			t.Errorf("%+v; %d turns more", got, n-turns)
		}
	})
}

// CV-14, CV-15: a reconcile that the business answered counts as tried, though who asked has
// left meanwhile; one that the program broke off does not.
func TestReconcileOfWhoLeftIsTried(t *testing.T) {
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprint("stops ", stops), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a, r, _ := lost(w, cancelTrip)
				stays, stop := context.WithCancelCause(t.Context())
				caller, leave := context.WithCancel(stays)
				defer leave()
				goesOn := make(chan agent.Result, 1)
				ctx, end := agent.Leaving(stays, caller, func(r agent.Result) { goesOn <- r })
				defer end()
				w.intercept(provider, message, func(rw http.ResponseWriter, _ *http.Request) bool {
					leave()
					time.Sleep(time.Second)
					if stops {
						stop(agent.ErrStopping)
						time.Sleep(time.Second)
					}
					respond(rw, 503, "busy")
					return true
				})
				c := w.person()
				c.Confirmed = true
				got, err := a.Reconcile(ctx, c, agent.ReconcileRequest{Conversation: r.Conversation})
				told := <-goesOn
				if err != nil || got.Status != agent.StatusUnknown || told.Status != agent.StatusUnknown || told.Message != r.Message {
					t.Errorf("%+v, %v; told %+v", got, err, told)
				}
				tried := map[bool]string{false: "1", true: "0"}[stops]
				w.want(`SELECT count(*) FROM messages WHERE id = '`+r.Message+`' AND coalesce(data ->> 'Tried', '') > '0002'`, tried)
			})
		})
	}
}
