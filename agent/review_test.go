package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// reviews lists what waits for the owner.
func (w *world) reviews(a *agent.Agent, all bool) []agent.ReviewItem {
	w.t.Helper()
	list, err := a.Reviews(w.t.Context(), owner(), all)
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

// EV-5, EV-6, EV-7: evidence that waits for the owner is listed with all that
// the owner needs to judge it; acknowledging lifts the block, keeps the verdict and
// is recorded. Only the owner can, and a second time changes nothing.
func TestReviewEvidence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:read", "trips:cancel")
		w.biz.set(func(b *business) {
			b.receipt = func(c, _ map[string]any) { c["scopesUsed"] = []string{"trips:history"} }
		})
		bad := w.send(a, w.person(), cancelTrip, agent.StatusReplied, "")
		w.biz.set(func(b *business) { b.receipt = nil })
		w.send(a, w.person(), readTrips, agent.StatusReplied, "")
		blocked := w.send(a, w.person(), cancelTrip, agent.StatusBlocked, agent.ReasonEvidenceReview)
		if !strings.Contains(blocked.Detail, "pactctl review show "+bad.Evidence.Receipt) {
			t.Errorf("detail %q", blocked.Detail)
		}
		list := w.reviews(a, false)
		if len(list) != 1 {
			t.Fatalf("reviews %+v", list)
		}
		v, err := a.Review(t.Context(), owner(), bad.Evidence.Receipt)
		if err != nil || v.ID != list[0].ID || v.Kind != agent.ReviewEvidence || !v.Open || v.Business != bad.Business || v.BusinessName != "Air" ||
			v.Conversation != bad.Conversation || v.Message != bad.Message || v.Text != cancelTrip.Message || v.Reply != bad.Reply || v.Effect != agent.EffectChange ||
			v.Verdict != agent.VerdictNeedsReview || len(v.Issues) != 1 || v.Issues[0] != agent.IssueScopes || len(v.Problems) != 1 || v.Since.IsZero() ||
			!strings.Contains(v.Next, "pactctl review acknowledge "+v.ID) {
			t.Errorf("review %+v, %v", v, err)
		}
		for _, origin := range []agent.CallerOrigin{agent.OriginBot, agent.OriginAutomation, agent.OriginSubAgent, agent.OriginGateway} {
			c := owner()
			c.Origin = origin
			if _, err := a.Acknowledge(t.Context(), c, v.ID); agent.ReasonOf(err) != agent.ReasonDelegationRequired {
				t.Errorf("%s: %v", origin, err)
			}
		}
		bob := owner()
		bob.Principal = "bob"
		if _, err := a.Acknowledge(t.Context(), bob, v.ID); !errors.Is(err, agent.ErrNotFound) {
			t.Errorf("another principal: %v", err)
		}
		if list, err := a.Reviews(t.Context(), bob, true); err != nil || len(list) != 0 {
			t.Errorf("another principal sees %+v, %v", list, err)
		}
		time.Sleep(time.Minute)
		at := time.Now()
		for range 2 {
			v, err = a.Acknowledge(t.Context(), owner(), bad.Evidence.Receipt)
			if err != nil || v.Open || v.Verdict != agent.VerdictNeedsReview || v.By != "owner" || v.Acknowledged.Sub(at).Abs() > time.Millisecond || v.Next != "" {
				t.Errorf("acknowledged %+v, %v", v, err)
			}
			time.Sleep(time.Minute)
		}
		if list := w.reviews(a, false); len(list) != 0 {
			t.Errorf("still open %+v", list)
		}
		if list := w.reviews(a, true); len(list) != 1 || list[0].ID != bad.Evidence.Receipt {
			t.Errorf("all %+v", list)
		}
		if r, err := a.Receipt(t.Context(), owner(), bad.Evidence.Receipt); err != nil || r.Verdict != agent.VerdictNeedsReview || r.Acknowledged.IsZero() {
			t.Errorf("receipt %+v, %v", r, err)
		}
		w.send(a, w.person(), cancelTrip, agent.StatusReplied, "")
	})
}

// CV-4, CV-12, CV-14: an operation of unknown outcome is asked about first. Once
// the business has refused to tell, the owner can settle it: its outcome stays
// unknown, it holds nothing back any more, and it is never sent again.
func TestReviewOperation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, r, _ := lost(w, cancelTrip)
		v, err := a.Review(t.Context(), owner(), r.Message)
		if list := w.reviews(a, false); err != nil || len(list) != 1 || list[0].ID != r.Message || v.Kind != agent.ReviewOperation || !v.Open ||
			v.Text != cancelTrip.Message || v.Effect != agent.EffectChange || v.Reason != "network" || v.Conversation != r.Conversation || v.Verdict != "" ||
			v.Next != "pactctl reconcile "+r.Conversation+" asks the business what became of it. Do not repeat it by another route" {
			t.Errorf("review %+v, %v; %d items", v, err, len(list))
		}
		refused := func() {
			t.Helper()
			_, err := a.Acknowledge(t.Context(), owner(), r.Message)
			if agent.ReasonOf(err) != agent.ReasonReconcileFirst || !strings.Contains(err.Error(), "pactctl reconcile "+r.Conversation) {
				t.Errorf("acknowledge: %v", err)
			}
		}
		refused()
		w.biz.set(func(b *business) { b.answer = func(turn) (int, any) { return 200, nil } })
		w.reconcile(a, w.person(), agent.ReconcileRequest{}, agent.StatusUnknown, "network")
		refused() // no answer is no refusal
		w.biz.set(func(b *business) {
			b.answer = func(turn) (int, any) { return 400, a2aError(400, "INVALID_PARAMS", "no reply yet") }
		})
		w.reconcile(a, w.person(), agent.ReconcileRequest{}, agent.StatusUnknown, agent.ReasonStillProcessing)
		if v, err = a.Review(t.Context(), owner(), r.Message); err != nil || !strings.Contains(v.Next, "pactctl review acknowledge "+r.Message) || !strings.Contains(v.Next, "pactctl reconcile") {
			t.Errorf("next %q, %v", v.Next, err)
		}
		c := owner()
		c.Origin = agent.OriginBot
		if _, err := a.Acknowledge(t.Context(), c, r.Message); agent.ReasonOf(err) != agent.ReasonDelegationRequired {
			t.Errorf("a bot: %v", err)
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusBlocked, agent.ReasonUnresolved)
		turns := len(w.biz.sent())
		if v, err = a.Acknowledge(t.Context(), owner(), r.Message); err != nil || v.Open || v.By != "owner" || v.Acknowledged.IsZero() || v.Reason != "network" {
			t.Errorf("acknowledged %+v, %v", v, err)
		}
		w.stillUnknown(a, r, "network")
		w.biz.set(func(b *business) { b.answer = nil })
		// It may have been carried out: what was settled is never asked for again.
		w.reconcile(a, w.person(), agent.ReconcileRequest{Conversation: r.Conversation}, agent.StatusFailed, agent.ReasonNothingToReconcile)
		if n := len(w.biz.sent()); n != turns {
			t.Errorf("%d turns", n-turns)
		}
		if s, err := a.Status(t.Context(), owner()); err != nil || s.Counts.OutcomeUnknown != 0 {
			t.Errorf("status %+v, %v", s.Counts, err)
		}
		if open, all := w.reviews(a, false), w.reviews(a, true); len(open) != 0 || len(all) != 1 || all[0].ID != r.Message {
			t.Errorf("open %+v, all %+v", open, all)
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusReplied, "")
		for _, u := range w.biz.sent()[turns:] {
			if u.text == cancelTrip.Message {
				t.Error("it was sent again")
			}
		}
	})
}

// CV-4, CV-14, EV-7: what a business never answers about, or that is not there any
// more to be asked, does not hold it back for ever: once it was asked, and a day after
// the message was sent, the owner can settle it. Before that, or unasked, not.
func TestReviewOperationThatIsNeverAnswered(t *testing.T) {
	var blocked []string
	for name, c := range map[string]struct {
		silence func(w *world)
		reason  string // of the reconcile
		status  agent.Status
	}{
		"connection lost": {func(w *world) {
			w.biz.set(func(b *business) { b.answer = func(turn) (int, any) { return 200, nil } })
		}, "network", agent.StatusUnknown},
		"its card is gone": {func(w *world) {
			w.mu.Lock()
			delete(w.hosts, "https://air.example.com")
			w.mu.Unlock()
		}, "destination_refused", agent.StatusFailed},
		"its provider is blocked": {func(*world) { blocked = []string{"provider.example.com"} }, "policy_denied", agent.StatusFailed},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				blocked = nil
				w.config.Policy = func() (agent.Policy, error) {
					return agent.Policy{Enabled: true, AutoRoute: true, BlockedProviders: blocked}, nil
				}
				a, r, _ := lost(w, cancelTrip)
				sent := time.Now()
				refused := func(next string) {
					t.Helper()
					if _, err := a.Acknowledge(t.Context(), owner(), r.Message); agent.ReasonOf(err) != agent.ReasonReconcileFirst {
						t.Errorf("acknowledge: %v", err)
					}
					v, err := a.Review(t.Context(), owner(), r.Message)
					if err != nil || !v.Open || !strings.Contains(v.Next, next) || !strings.Contains(v.Next, "pactctl reconcile "+r.Conversation) || strings.Contains(v.Next, "acknowledge") {
						t.Errorf("next %q, %v", v.Next, err)
					}
				}
				time.Sleep(23 * time.Hour)
				c.silence(w)
				ctx, cancel := context.WithCancel(t.Context())
				person := w.person()
				person.Progress = func(e agent.Event) {
					if e.Kind == agent.EventSending {
						cancel()
					}
				}
				if name == "connection lost" {
					got, err := a.Reconcile(ctx, person, agent.ReconcileRequest{}) // broken off
					if err != nil || got.Status != agent.StatusUnknown || ctx.Err() == nil {
						t.Errorf("broken off: %+v, %v", got, err)
					}
					refused("asks the business what became of it")
					declined := w.person()
					declined.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { return false, nil }
					w.reconcile(a, declined, agent.ReconcileRequest{}, agent.StatusDenied, agent.ReasonApprovalDenied)
					refused("asks the business what became of it")
				}
				w.reconcile(a, w.person(), agent.ReconcileRequest{}, c.status, c.reason)
				from := sent.Add(24 * time.Hour).UTC().Format("2006-01-02 15:04")
				refused("did not answer: from " + from)
				time.Sleep(50 * time.Minute)
				refused("did not answer: from " + from)
				time.Sleep(15 * time.Minute)
				if v, err := a.Review(t.Context(), owner(), r.Message); err != nil || !strings.Contains(v.Next, "pactctl review acknowledge "+r.Message) {
					t.Errorf("next %q, %v", v.Next, err)
				}
				w.stillUnknown(a, r, "network")
				if v, err := a.Acknowledge(t.Context(), owner(), r.Message); err != nil || v.Open || v.Acknowledged.IsZero() {
					t.Errorf("acknowledge: %+v, %v", v, err)
				}
			})
		})
	}
	t.Run("unasked", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a, r, _ := lost(w, cancelTrip)
			w.mu.Lock()
			delete(w.hosts, "https://air.example.com")
			w.mu.Unlock()
			time.Sleep(7 * 24 * time.Hour)
			// Asked by who may not, or under another profile, it is not asked.
			for _, c := range []agent.Caller{inTask("t-1", "work"), agent.TaskCaller(alice, nil, anywhere("work"))} {
				_, _ = a.Reconcile(t.Context(), c, agent.ReconcileRequest{})
			}
			if _, err := a.Acknowledge(t.Context(), owner(), r.Message); agent.ReasonOf(err) != agent.ReasonReconcileFirst {
				t.Errorf("acknowledge: %v", err)
			}
		})
	})
}

// CV-4, EV-7, TR-4: an answer that is too large to be read is an answer without the
// reply, and will not be another: it can be settled at once.
func TestReviewOperationThatIsAnsweredTooLarge(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, r, _ := lost(w, cancelTrip)
		w.biz.set(func(b *business) { b.answer = func(turn) (int, any) { return 200, strings.Repeat(" ", 513<<10) } })
		w.reconcile(a, w.person(), agent.ReconcileRequest{}, agent.StatusUnknown, "too_large")
		if v, err := a.Acknowledge(t.Context(), owner(), r.Message); err != nil || v.Open {
			t.Errorf("acknowledge: %+v, %v", v, err)
		}
	})
}

// CV-4, CV-14: an operation that can not be asked about any more says why, and can
// be settled.
func TestReviewOperationThatCannotBeReconciled(t *testing.T) {
	for name, prepare := range map[string]func(w *world, a *agent.Agent, r agent.Result){
		"its grant ended": func(w *world, a *agent.Agent, _ agent.Result) {
			if _, err := a.Disconnect(w.t.Context(), owner(), onlyGrant(w.t, a).ID); err != nil {
				w.t.Error(err)
			}
		},
		"the card changed": func(w *world, a *agent.Agent, _ agent.Result) {
			w.biz.set(func(b *business) { b.describe("trips:read", "Read everything") })
			if _, err := a.Discover(w.t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL, Refresh: true}); err != nil {
				w.t.Error(err)
			}
		},
		"the card is not supported": func(w *world, a *agent.Agent, _ agent.Result) {
			w.biz.set(func(b *business) {
				b.card["capabilities"].(map[string]any)["extensions"] = []any{map[string]any{"uri": "https://x.example/ext", "required": true}}
			})
			if v, err := a.Discover(w.t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL, Refresh: true}); err != nil || v.Supported {
				w.t.Errorf("%+v, %v", v, err)
			}
			w.biz.set(func(b *business) { delete(b.card["capabilities"].(map[string]any), "extensions") })
		},
		"its conversation is closed": func(w *world, _ *agent.Agent, r agent.Result) {
			w.edit(`UPDATE conversations SET state = 'closed' WHERE id = '` + r.Conversation + `'`)
		},
		"it had no context": func(w *world, _ *agent.Agent, r agent.Result) {
			w.edit(`UPDATE messages SET data = CAST(replace(CAST(data AS TEXT), '"ContextID":"ctx-1"', '"ContextID":""') AS BLOB) WHERE id = '` + r.Message + `'`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a, r, _ := lost(w, cancelTrip)
				prepare(w, a, r)
				v, err := a.Review(t.Context(), owner(), r.Message)
				if err != nil || !v.Open || !strings.Contains(v.Next, "pactctl review acknowledge "+r.Message) || strings.Contains(v.Next, "pactctl reconcile") {
					t.Errorf("review %+v, %v", v, err)
				}
				if _, err := a.Acknowledge(t.Context(), owner(), r.Message); err != nil {
					t.Errorf("acknowledge: %v", err)
				}
				w.biz.set(func(b *business) { b.answer = nil })
				w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusReplied, "")
			})
		})
	}
}

// EV-7, EV-9, AD-2, AD-4, DA-13: no task acknowledges or exports, none that is not
// there to act disconnects, and none gives up another's sign-in. The owner's own
// surface does all of it.
func TestWhatNoTaskMayDo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:read")
		w.biz.receipt = func(claims, _ map[string]any) { claims["user"] = "somebody else" }
		r := w.send(a, w.person(), readTrips, agent.StatusReplied, "")
		id := r.Evidence.Receipt
		pending, err := a.Authorize(t.Context(), owner(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:cancel"}})
		if err != nil || pending.Authorization == nil {
			t.Fatalf("%+v, %v", pending, err)
		}
		z, g := pending.Authorization.ID, onlyGrant(t, a).ID
		for _, mode := range []agent.TaskMode{agent.ModePlan, agent.ModeAnalyse, agent.ModeAct, ""} {
			c := agent.TaskCaller(alice, &agent.Task{ID: "t-1", Source: agent.SourceOwner, Mode: mode}, nil)
			if v, err := a.Acknowledge(t.Context(), c, id); agent.ReasonOf(err) != agent.ReasonDelegationRequired {
				t.Errorf("%s acknowledges: %+v, %v", mode, v, err)
			}
			if x, err := a.ExportReceipt(t.Context(), c, id); agent.ReasonOf(err) != agent.ReasonDelegationRequired || len(x.Document()) != 0 {
				t.Errorf("%s exports: %v", mode, err)
			}
			if v, err := a.CancelAuthorization(t.Context(), c, z); agent.ReasonOf(err) != agent.ReasonOtherTask {
				t.Errorf("%s cancels: %+v, %v", mode, v, err)
			}
			if mode == agent.ModeAct {
				continue
			}
			if v, err := a.Disconnect(t.Context(), c, g); agent.ReasonOf(err) != agent.ReasonModeForbids {
				t.Errorf("%s disconnects: %+v, %v", mode, v, err)
			}
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel booking X1"}, agent.StatusBlocked, agent.ReasonEvidenceReview)
		own, err := a.Authorize(t.Context(), inTask("t-1", "work"), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:history"}})
		if err != nil || own.Authorization == nil {
			t.Fatalf("%+v, %v", own, err)
		}
		if _, err := a.CancelAuthorization(t.Context(), inTask("t-2", "work"), own.Authorization.ID); agent.ReasonOf(err) != agent.ReasonOtherTask {
			t.Errorf("another task's: %v", err)
		}
		if v, err := a.CancelAuthorization(t.Context(), inTask("t-1", "work"), own.Authorization.ID); err != nil || v.State != "cancelled" {
			t.Errorf("its own: %+v, %v", v, err)
		}
		if v, err := a.CancelAuthorization(t.Context(), owner(), z); err != nil || v.State != "cancelled" {
			t.Errorf("the owner cancels: %+v, %v", v, err)
		}
		if _, err := a.ExportReceipt(t.Context(), owner(), id); err != nil {
			t.Errorf("the owner exports: %v", err)
		}
		if v, err := a.Acknowledge(t.Context(), owner(), id); err != nil || v.Open {
			t.Errorf("the owner acknowledges: %+v, %v", v, err)
		}
		if v, err := a.Disconnect(t.Context(), inTask("t-1", "work"), g); err != nil || v.Grant.State != "disconnected" {
			t.Errorf("a task that acts disconnects: %+v, %v", v, err)
		}
	})
}

// EV-7: what is nothing to review is not found.
func TestReviewOfNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		r := w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		for _, id := range []string{"", "r-none", r.Message, r.Conversation} {
			if _, err := a.Review(t.Context(), owner(), id); !errors.Is(err, agent.ErrNotFound) {
				t.Errorf("review %q: %v", id, err)
			}
			if _, err := a.Acknowledge(t.Context(), owner(), id); !errors.Is(err, agent.ErrNotFound) {
				t.Errorf("acknowledge %q: %v", id, err)
			}
		}
	})
}
