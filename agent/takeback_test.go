package agent_test

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

var cancelWithPermission = agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}}

// takeBack takes back what an actor approved, as another program does that revokes
// what they act by.
func (w *world) takeBack(actor string) (n int) {
	w.t.Helper()
	store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	err = store.Update(w.t.Context(), func(tx agent.Tx) (err error) {
		n, err = agent.TakeBack(tx, alice, actor, time.Now())
		return err
	})
	if err := errors.Join(err, store.Close()); err != nil {
		w.t.Error(err)
	}
	return n
}

// approvedAnew approves what was taken back, and expects that it is sent then, once.
func (w *world) approvedAnew(a *agent.Agent, p agent.ApprovalView) {
	w.t.Helper()
	v := w.approval(a, p.ID, agent.ApprovalPending)
	if v.Reason != agent.ReasonApproverRevoked || v.DecidedBy != "token ops" || v.Authorization != "" || len(w.changed()) != 0 {
		w.t.Errorf("taken back: %+v, sent %+v", v, w.changed())
	}
	w.want(`SELECT state FROM conversations WHERE id = '`+v.Conversation+`'`, "awaiting_local_authority")
	desk := w.person()
	desk.Actor = "token desk"
	w.decide(a, desk, v, true, agent.StatusReplied, "")
	v = w.approval(a, p.ID, agent.ApprovalSent)
	if sent := w.changed(); len(sent) != 1 || bodyDigest(w.t, sent[0].id, sent[0].text) != p.Digest || v.DecidedBy != "token desk" || v.Reason != "" {
		w.t.Errorf("sent %+v as %+v", sent, v)
	}
}

// AP-1, AP-3: what somebody approved and what is not sent waits for the owner's word
// again once they can give it no more; what others approved goes on.
func TestTakeBack(t *testing.T) {
	for name, signedIn := range map[string]bool{"before the sign-in": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				p := w.ask(a, inAssistant("a"), cancelWithPermission)
				w.decide(a, ops(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
				p = w.approval(a, p.ID, agent.ApprovalApproved)
				if n := w.takeBack("token desk"); n != 0 {
					t.Errorf("took back %d of nobody's", n)
				}
				if signedIn { // and nobody has gone on with it yet
					w.biz.allow("trips:cancel")
					w.wait(w.open(), w.person(), p.Authorization, agent.StatusDone, "")
				}
				if n := w.takeBack("token ops"); n != 1 {
					t.Errorf("took back %d", n)
				}
				if n := w.takeBack("token ops"); n != 0 {
					t.Errorf("took back %d again", n)
				}
				w.tend(a, agent.Tending{})
				w.biz.allow("trips:cancel")
				time.Sleep(30 * time.Minute)
				w.approvedAnew(a, p)
			})
		})
	}
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelWithPermission)
		w.decide(a, ops(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		w.takeBack("token ops")
		time.Sleep(time.Hour) // nobody approves it
		if v := w.approval(a, p.ID, agent.ApprovalExpired); v.Reason != agent.ReasonApprovalExpired {
			t.Errorf("%+v", v)
		}
	})
}

// AP-1, AP-3: also at the moment at which what was approved is about to be sent, by who
// tends the profile.
func TestTakenBackWhileItIsSent(t *testing.T) {
	for name, at := range map[string]struct{ host, path string }{
		"as the sign-in is granted":   {provider, "/oauth/token"},
		"as the grant is looked at":   {provider, "/oauth/jwks"},
		"as who we are is asked":      {signerURL, "/pact/status"},
		"as a token is signed":        {signerURL, "/pact/sign"},
		"as it is introduced":         {provider, "/message:send"},
		"as the card is fetched anew": {provider, "/.well-known/agent-card.json"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				p := w.ask(a, inAssistant("a"), cancelWithPermission)
				w.decide(a, ops(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
				a.Close()
				time.Sleep(6 * time.Minute) // what is cached is old
				a = w.open()
				var once sync.Once
				taken := -1
				w.around(at.host, at.path, func(_ http.ResponseWriter, _ *http.Request, next func()) {
					next()
					once.Do(func() { taken = w.takeBack("token ops") })
				})
				w.biz.allow("trips:cancel")
				stop := w.tend(a, agent.Tending{})
				time.Sleep(5 * time.Minute)
				stop()
				if taken != 1 {
					t.Errorf("took back %d", taken)
				}
				w.approvedAnew(a, p)
			})
		})
	}
}

// AP-1, AP-3: an operation that waited for the owner's word and had it does not send
// either. It is left to another to approve, also where that is done before it ends.
func TestTakenBackFromWhoWaits(t *testing.T) {
	for name, anew := range map[string]bool{"and left": false, "and approved anew": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				var p agent.ApprovalView
				c := w.person()
				c.Approve = func(ctx context.Context, r agent.ApprovalRequest) (bool, error) {
					p = w.approval(a, r.ID, agent.ApprovalPending)
					w.decide(w.open(), ops(), p, true, agent.StatusDone, "")
					<-ctx.Done()
					return false, context.Cause(ctx)
				}
				allow := c.SignIn
				c.SignIn = func(ctx context.Context, s agent.SignIn) error {
					if n := w.takeBack("token ops"); n != 1 {
						t.Errorf("took back %d", n)
					}
					if anew {
						w.decide(w.open(), owner(), p, true, agent.StatusDone, "")
					}
					return allow(ctx, s)
				}
				if anew {
					w.send(a, c, cancelWithPermission, agent.StatusReplied, "")
					if v := w.approval(a, p.ID, agent.ApprovalSent); v.DecidedBy != "owner" || len(w.changed()) != 1 {
						t.Errorf("%+v, sent %+v", v, w.changed())
					}
					return
				}
				r := w.send(a, c, cancelWithPermission, agent.StatusApprovalRequired, agent.ReasonApproverRevoked)
				if r.Approval == nil || r.Approval.ID != p.ID || r.Approval.State != agent.ApprovalPending {
					t.Errorf("%+v", r.Approval)
				}
				w.approvedAnew(a, p)
			})
		})
	}
	// Before who waits has heard of the decision.
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		var p agent.ApprovalView
		c := w.person()
		c.Approve = func(ctx context.Context, r agent.ApprovalRequest) (bool, error) {
			p = w.approval(a, r.ID, agent.ApprovalPending)
			w.decide(w.open(), ops(), p, true, agent.StatusDone, "")
			<-ctx.Done()
			w.takeBack("token ops")
			return false, context.Cause(ctx)
		}
		w.send(a, c, cancelWithPermission, agent.StatusApprovalRequired, agent.ReasonApproverRevoked)
		w.approvedAnew(a, p)
	})
}

// AP-1, CP-2: who may not decide any more in the moment in which their word is taken
// down decides and confirms nothing.
func TestStands(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		gone := errors.New("revoked a moment ago")
		c := ops()
		c.Stands = func(agent.Tx) error { return gone }
		for _, yes := range []bool{true, false} {
			if r, err := a.Decide(t.Context(), c, agent.Decision{ID: p.ID, Approve: yes, Digest: p.Digest}); !errors.Is(err, gone) {
				t.Errorf("decided: %+v, %v", r, err)
			}
		}
		c.Confirmed = true
		if r, err := a.Send(t.Context(), c, agent.SendRequest{Business: cardURL, Message: cancelX1.Message, Effect: "change"}); !errors.Is(err, gone) {
			t.Errorf("confirmed: %+v, %v", r, err)
		}
		w.approval(a, p.ID, agent.ApprovalPending)
		if n := len(w.biz.sent()); n != 0 {
			t.Errorf("%d turns", n)
		}
		c.Stands = func(agent.Tx) error { return nil }
		w.decide(a, c, p, true, agent.StatusReplied, "")
	})
}

// CV-1, DA-10: a conversation that waits for a sign-in, and in which nobody is at work,
// follows its end in the same moment, whoever waits for that.
func TestConversationFollowsTheSignIn(t *testing.T) {
	ends := func(a *agent.Agent, w *world, id string, status agent.Status, reason agent.Reason) {
		w.t.Helper()
		w.wait(a, patient(w), id, status, reason)
	}
	for name, c := range map[string]struct {
		end    func(w *world, a *agent.Agent, id string)
		state  string
		reason agent.Reason
	}{
		"granted": {func(w *world, a *agent.Agent, id string) {
			w.biz.allow("trips:read")
			ends(a, w, id, agent.StatusDone, "")
		}, "ready", ""},
		"denied": {func(w *world, a *agent.Agent, id string) {
			w.biz.set(func(b *business) { b.denied = true })
			ends(a, w, id, agent.StatusDenied, agent.ReasonAccessDenied)
		}, "denied", agent.ReasonAccessDenied},
		"expired": {func(w *world, a *agent.Agent, id string) {
			ends(a, w, id, agent.StatusExpired, agent.ReasonConsentExpired)
		}, "expired", agent.ReasonConsentExpired},
		"expired, and nobody waits": {func(w *world, a *agent.Agent, _ string) {
			time.Sleep(time.Hour)
			if _, err := a.Authorizations(w.t.Context(), owner()); err != nil {
				w.t.Error(err)
			}
		}, "expired", agent.ReasonConsentExpired},
		"given up": {func(w *world, a *agent.Agent, id string) {
			if _, err := a.CancelAuthorization(w.t.Context(), owner(), id); err != nil {
				w.t.Error(err)
			}
		}, "cancelled", agent.ReasonUserCancelled},
		"failed": {func(w *world, a *agent.Agent, id string) {
			w.biz.set(func(b *business) { b.polls = append(b.polls, oauthAnswer(400, "invalid_client")) })
			ends(a, w, id, agent.StatusFailed, agent.ReasonConsentRejected)
		}, "ready", agent.ReasonConsentRejected},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				other := w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
				r := w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
				state := `SELECT state FROM conversations WHERE id = '` + r.Conversation + `'`
				w.want(state, "awaiting_business_consent")
				c.end(w, w.open(), r.Authorization.ID)
				w.want(state, c.state)
				w.want(`SELECT data ->> 'Reason' FROM conversations WHERE id = '`+r.Conversation+`'`, c.reason)
				w.want(`SELECT state FROM conversations WHERE id = '`+other.Conversation+`'`, c.state)
			})
		})
	}
}
