package agent_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/agent"
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
	synctest.Test(t, func(t *testing.T) {
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
			if err != nil || v.Open || v.Verdict != agent.VerdictNeedsReview || v.By != string(agent.OriginOwnerCLI) || v.Acknowledged.Sub(at).Abs() > time.Millisecond || v.Next != "" {
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
	synctest.Test(t, func(t *testing.T) {
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
		if v, err = a.Acknowledge(t.Context(), owner(), r.Message); err != nil || v.Open || v.By != "owner_cli" || v.Acknowledged.IsZero() || v.Reason != "network" {
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
			synctest.Test(t, func(t *testing.T) {
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

// EV-7: what is nothing to review is not found.
func TestReviewOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
