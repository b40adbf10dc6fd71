package agent_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// PO-7, CV-10, CV-9, CV-15: policy and identity are asked again after each wait.
// A message that was refused so far is not sent then; one that may be worked on
// stays of unknown outcome.
func TestSwitchedOffDuringAWait(t *testing.T) {
	limited := func(turn) (int, any) { return 429, http.Header{"Retry-After": {"90"}} }
	silent := func(turn) (int, any) { return 400, a2aError(400, "INVALID_PARAMS", "no reply yet") }
	for name, c := range map[string]struct {
		answer  func(turn) (int, any)
		change  func(w *world, a *agent.Agent)
		status  agent.Status
		reason  string
		turns   int
		message string
	}{
		"preference, after a 429": {limited, func(w *world, a *agent.Agent) {
			if err := a.SetPreference(w.t.Context(), owner(), agent.DisabledPACT); err != nil {
				w.t.Error(err)
			}
		}, agent.StatusBlocked, agent.ReasonPACTDisabled, 1, "failed"},
		"identity, after a 429": {limited, func(w *world, _ *agent.Agent) {
			w.signer.set(func(s *signerStandIn) { s.disabled = true })
		}, agent.StatusBlocked, agent.ReasonSignerDisabled, 1, "failed"},
		"subject, after a 429": {limited, func(w *world, _ *agent.Agent) {
			w.signer.set(func(s *signerStandIn) { s.subject = "pa_other" })
		}, agent.StatusBlocked, agent.ReasonIdentityChanged, 1, "failed"},
		"preference, after no reply": {silent, func(w *world, a *agent.Agent) {
			if err := a.SetPreference(w.t.Context(), owner(), agent.DisabledPACT); err != nil {
				w.t.Error(err)
			}
		}, agent.StatusUnknown, agent.ReasonPACTDisabled, 3, "outcome_unknown"},
		"provider settings, after no reply": {silent, func(w *world, a *agent.Agent) {
			if _, err := a.AddProvider(w.t.Context(), owner(), provider, "aud-new", ""); err != nil {
				w.t.Error(err)
			}
		}, agent.StatusUnknown, agent.ReasonAuthorityChanged, 3, "outcome_unknown"},
		"the card, after no reply": {silent, func(w *world, _ *agent.Agent) {
			w.biz.set(func(b *business) { b.describe("trips:read", "Read everything") })
		}, agent.StatusUnknown, agent.ReasonAuthorityChanged, 3, "outcome_unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.biz.cardHeader.Set("Cache-Control", "max-age=60")
				a := w.enrolled()
				first := w.send(a, owner(), agent.SendRequest{Message: "Is it on time?"}, agent.StatusReplied, "")
				time.Sleep(50 * time.Second)
				w.biz.set(func(b *business) { b.answer = c.answer })
				go func() {
					time.Sleep(9 * time.Second) // the third wait for a reply ends after 14 s
					c.change(w, a)
				}()
				r := w.send(a, w.person(), agent.SendRequest{Message: "Cancel booking X1", Conversation: first.Conversation}, c.status, c.reason)
				if n := w.changes(); n != c.turns {
					t.Errorf("%d turns", n)
				}
				v, err := a.Conversation(t.Context(), owner(), r.Conversation)
				if m := v.Messages[len(v.Messages)-1]; err != nil || m.State != c.message || m.Reason != c.reason {
					t.Errorf("message %s (%s), %v", m.State, m.Reason, err)
				}
				if (v.State == "outcome_unknown") != (c.message == "outcome_unknown") || (v.State == "closed") != (c.reason == agent.ReasonIdentityChanged) {
					t.Errorf("conversation %s", v.State)
				}
			})
		})
	}
}

// PO-7, AP-3, DI-3: a card that changed while the business limited requests is
// asked about anew; the refused message is not sent under it.
func TestCardChangesDuringAWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.biz.cardHeader.Set("Cache-Control", "max-age=60")
		a := granted(w, 50*time.Minute, "trips:cancel")
		w.biz.set(func(b *business) {
			b.answer = func(u turn) (int, any) {
				if u.text == cancelTrip.Message && b.card["version"] == "1" {
					b.card["version"] = "2"
					b.describe("trips:cancel", "Cancel everything")
					return 429, http.Header{"Retry-After": {"90"}}
				}
				return 0, nil
			}
		})
		var asked []agent.ApprovalRequest
		c := w.person()
		c.Approve = func(_ context.Context, q agent.ApprovalRequest) (bool, error) {
			asked = append(asked, q)
			return true, nil
		}
		w.send(a, c, cancelTrip, agent.StatusReplied, "")
		if len(asked) != 2 || asked[0].Changed || !asked[1].Changed || asked[1].Scopes[0].Description != "Cancel everything" {
			t.Errorf("asked %+v", asked)
		}
		if n := len(w.calls(egress.DeviceAuthorization)); n != 2 {
			t.Errorf("%d sign-ins", n)
		}
	})
}

// CV-2, CV-3: a turn that waits for an approval keeps its conversation, however
// long the owner takes.
func TestConversationIsKeptDuringApproval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		b := w.open()
		first := w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		c := w.person()
		c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
			for range 4 {
				time.Sleep(5 * time.Minute)
				w.send(b, owner(), agent.SendRequest{Message: "Show status", Conversation: first.Conversation}, agent.StatusBlocked, agent.ReasonBusy)
			}
			return true, nil
		}
		w.send(a, c, agent.SendRequest{Message: "Cancel it", Conversation: first.Conversation}, agent.StatusReplied, "")
		w.send(b, owner(), agent.SendRequest{Message: "Show status", Conversation: first.Conversation}, agent.StatusReplied, "")
	})
}

// CV-3: a turn that was taken over while the owner was asked is over, and the
// question is withdrawn.
func TestTurnIsTakenOverDuringApproval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		first := w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		c := w.person()
		c.Approve = func(ctx context.Context, _ agent.ApprovalRequest) (bool, error) {
			w.edit(`UPDATE conversations SET lease_owner = 'run-other/turn-1', revision = revision + 1`)
			<-ctx.Done()
			return true, nil
		}
		w.send(a, c, agent.SendRequest{Message: "Cancel it", Conversation: first.Conversation}, agent.StatusBlocked, agent.ReasonBusy)
		if w.changes() != 0 {
			t.Error("it was sent")
		}
	})
}

// CV-1, ID-4: nothing more is sent in a conversation that was closed while the
// owner was asked.
func TestClosedDuringApproval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		first := w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		c := w.person()
		c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
			w.edit(`UPDATE conversations SET state = 'closed', revision = revision + 1`)
			return true, nil
		}
		w.send(a, c, agent.SendRequest{Message: "Cancel it", Conversation: first.Conversation}, agent.StatusBlocked, agent.ReasonClosed)
		if v, err := a.Conversation(t.Context(), owner(), first.Conversation); err != nil || v.State != "closed" || w.changes() != 0 {
			t.Errorf("conversation %s, %v; %d changes", v.State, err, w.changes())
		}
	})
}

// CV-16, TR-10: who leaves while the owner is asked has sent nothing.
func TestGivenUpDuringApproval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		c := w.person()
		c.Approve = func(ctx context.Context, _ agent.ApprovalRequest) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := a.Send(ctx, c, agent.SendRequest{Business: cardURL, Message: "Cancel it"})
		if err != nil || r.Status != agent.StatusCancelled || len(w.biz.sent()) != 0 {
			t.Errorf("got %+v, %v", r, err)
		}
	})
}

// CV-1, CV-4: that a lost inspection's outcome is unknown stays to be seen while
// the owner is asked about something else in its conversation, and declines.
func TestLostInspectionStaysUnknown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, r, _ := lost(w, readTrips)
		c := w.person()
		c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
			w.stillUnknown(a, r, "network")
			return false, nil
		}
		w.send(a, c, agent.SendRequest{Message: "Cancel it", Conversation: r.Conversation}, agent.StatusDenied, agent.ReasonApprovalDenied)
		w.stillUnknown(a, r, "network")
		c = w.person()
		c.SignIn = func(context.Context, agent.SignIn) error {
			w.stillUnknown(a, r, "network")
			w.biz.set(func(b *business) { b.denied = true })
			return nil
		}
		w.send(a, c, agent.SendRequest{Message: "Show more", Scopes: []string{"trips:history"}, Conversation: r.Conversation}, agent.StatusDenied, agent.ReasonAccessDenied)
		w.stillUnknown(a, r, "network")
		w.reconcile(a, w.person(), agent.ReconcileRequest{Conversation: r.Conversation}, agent.StatusReplied, "")
	})
}

// DA-12: of a consent that was given in part the owner is told what it brought,
// and that it is kept.
func TestPartialConsentIsToldAndKept(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		c := w.person()
		c.SignIn = func(context.Context, agent.SignIn) error { w.biz.allow("trips:read"); return nil }
		req := agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read", "trips:cancel"}}
		r, err := a.Authorize(t.Context(), c, req)
		if err != nil || r.Status != agent.StatusDenied || r.Reason != agent.ReasonInsufficient {
			t.Fatalf("got %+v, %v", r, err)
		}
		if !strings.Contains(r.Detail, "only trips:read was granted, and trips:cancel is needed") || !strings.Contains(r.Detail, "kept") ||
			len(r.MissingScopes) != 1 || r.MissingScopes[0] != "trips:cancel" || r.Grant == nil || r.Grant.ID != onlyGrant(t, a).ID {
			t.Errorf("got %+v", r)
		}
		w.send(a, owner(), readTrips, agent.StatusReplied, "") // by what is kept
		w.send(a, c, agent.SendRequest{Message: "Cancel booking X1", Scopes: []string{"trips:cancel"}}, agent.StatusDenied, agent.ReasonInsufficient)
		if w.changes() != 0 {
			t.Error("it was sent")
		}
	})
}

// CV-6, CV-7, RD-2: a contextId that looks like a secret is not kept, which is told at
// once: another introduction would bring no other.
func TestContextThatLooksLikeASecret(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.set(func(b *business) {
			b.answer = func(u turn) (int, any) {
				reply := b.normal(u)
				reply["message"].(map[string]any)["contextId"] = "at_0123456789abcdef"
				return 200, reply
			}
		})
		r := w.send(a, w.person(), agent.SendRequest{Message: "Cancel booking X1"}, agent.StatusFailed, agent.ReasonContextLimit)
		if len(w.biz.sent()) != 1 || !strings.Contains(r.Detail, "looks like a secret") {
			t.Errorf("%d turns, detail %q", len(w.biz.sent()), r.Detail)
		}
	})
}
