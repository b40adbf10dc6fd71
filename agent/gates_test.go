package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// CV-3: a conversation with one business is not gone on with at another, and nobody hears
// of the attempt.
func TestConversationOfAnotherBusiness(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		other := w.other()
		a := w.enrolled()
		show := agent.SendRequest{Message: "Show my trips"}
		c := w.send(a, owner(), show, agent.StatusReplied, "").Conversation
		there := show
		there.Business = otherCard
		w.send(a, owner(), there, agent.StatusReplied, "")
		here := len(w.biz.sent())
		before := len(other.sent())
		there.Conversation = c
		w.send(a, owner(), there, agent.StatusFailed, agent.ReasonNotThisBusiness)
		if len(w.biz.sent()) != here || len(other.sent()) != before {
			t.Errorf("sent %+v and %+v", w.biz.sent()[here:], other.sent()[before:])
		}
		show.Conversation = c
		w.send(a, owner(), show, agent.StatusReplied, "")
	})
}

// ID-4, ID-5: a conversation that was begun as another identity is not gone on with, though
// nothing has closed it, be that so before a turn of it or while the owner is asked.
func TestConversationOfAnotherIdentity(t *testing.T) {
	const rebind = `UPDATE conversations SET data = CAST(json_set(CAST(data AS TEXT), '$.Binding', 'binding-other') AS BLOB)`
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		show := agent.SendRequest{Message: "Show my trips"}
		show.Conversation = w.send(a, owner(), show, agent.StatusReplied, "").Conversation
		w.edit(rebind)
		sent := len(w.biz.sent())
		w.send(a, owner(), show, agent.StatusFailed, agent.ReasonClosed)
		show.Conversation = ""
		change := agent.SendRequest{Message: "Cancel booking X1", Conversation: w.send(a, owner(), show, agent.StatusReplied, "").Conversation}
		sent++
		c := w.person()
		c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
			w.edit(rebind)
			time.Sleep(2 * time.Minute) // the turn is renewed meanwhile
			return true, nil
		}
		w.send(a, c, change, agent.StatusBlocked, agent.ReasonIdentityChanged)
		if n := len(w.biz.sent()); n != sent {
			t.Errorf("%d turns, want %d", n, sent)
		}
	})
}

// DA-9, ID-5: a sign-in that was begun as another identity is not polled for, though
// nothing has ended it.
func TestSignInOfAnotherIdentity(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		time.AfterFunc(7*time.Second, func() {
			w.edit(`UPDATE authorizations SET data = CAST(json_set(CAST(data AS TEXT), '$.Binding', 'binding-other') AS BLOB)`)
			w.biz.allow("trips:read")
		})
		w.authorize(a, patient(w), agent.StatusFailed, agent.ReasonSubjectChanged)
		if n := len(w.polls()); n != 1 {
			t.Errorf("%d polls", n)
		}
	})
}

// AP-1, AP-3: a question that somebody waits at is theirs to be answered: neither the same
// from elsewhere, nor its confirmation there, takes it away from them.
func TestLiveQuestionStays(t *testing.T) {
	for name, confirmed := range map[string]bool{"asked elsewhere": false, "confirmed elsewhere": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a, b := w.enrolled(), w.open()
				first := w.person()
				first.Approve = func(ctx context.Context, p agent.ApprovalRequest) (bool, error) {
					again := w.person()
					if confirmed {
						again = owner()
						again.Confirmed = true
					}
					w.send(b, again, cancelX1, agent.StatusReplied, "")
					w.approval(b, p.ID, agent.ApprovalPending)
					if ctx.Err() != nil {
						t.Errorf("the question ended: %v", context.Cause(ctx))
					}
					return false, nil
				}
				r := w.send(a, first, cancelX1, agent.StatusDenied, agent.ReasonApprovalDenied)
				if r.Message != "" || len(w.changed()) != 1 {
					t.Errorf("%+v after %d turns", r, len(w.changed()))
				}
			})
		})
	}
}

// AP-1, TR-9: the same words under another network profile are another thing to approve.
func TestSameAskUnderAnotherNetwork(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		var asked []agent.ApprovalView
		for _, network := range []string{"work", "wide", "work"} {
			c := inTask("t-1", network)
			c.Human, c.Task.Human = agent.HumanOutOfBand, agent.HumanOutOfBand
			asked = append(asked, w.ask(a, c, cancelX1))
		}
		if asked[0].ID == asked[1].ID || asked[0].ID != asked[2].ID {
			t.Errorf("approvals %s, %s and %s", asked[0].ID, asked[1].ID, asked[2].ID)
		}
	})
}

// AP-1, CV-12: who asks for what is about to be sent is told that it is under way, and the
// owner is asked for it no second time.
func TestAskedWhileItIsSent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		time.Sleep(6 * time.Minute) // no signature is cached
		var once sync.Once
		w.around(signerURL, "/pact/sign", func(_ http.ResponseWriter, _ *http.Request, next func()) {
			once.Do(func() {
				r := w.send(a, inAssistant("a"), cancelX1, agent.StatusBlocked, agent.ReasonBusy)
				if r.Approval == nil || r.Approval.ID != p.ID || r.Approval.State != agent.ApprovalApproved {
					t.Errorf("asked again: %+v", r.Approval)
				}
			})
			next()
		})
		w.decide(a, owner(), p, true, agent.StatusReplied, "")
		if list, err := a.Approvals(t.Context(), owner(), true); err != nil || len(list) != 1 || len(w.changed()) != 1 {
			t.Errorf("%+v, %v after %d turns", list, err, len(w.changed()))
		}
	})
}

// CV-2, AP-3: an operation that another one has taken its approval from writes nothing
// more on it, whatever it comes to then.
func TestApprovalTakenOver(t *testing.T) {
	const owned = `SELECT lease_owner || ' ' || coalesce(json_extract(CAST(data AS TEXT), '$.Next'), '') || coalesce(json_extract(CAST(data AS TEXT), '$.Authorization'), '') FROM approvals WHERE id = '`
	t.Run("at a step-up", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := w.enrolled()
			w.biz.answer = func(u turn) (int, any) {
				if u.text == cancelX1.Message {
					w.stolen("approvals", time.Now().Add(time.Minute))
					return 200, stepUp(u.context, "trips:cancel")
				}
				return 0, nil
			}
			p := w.ask(a, inAssistant("a"), cancelX1)
			w.decide(a, owner(), p, true, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
			w.want(owned+p.ID+"'", "run-other/x ")
		})
	})
	t.Run("at a sign-in", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := w.enrolled()
			w.around(provider, "/oauth/device", func(_ http.ResponseWriter, _ *http.Request, next func()) {
				w.stolen("approvals", time.Now().Add(time.Minute))
				next()
			})
			p := w.ask(a, inAssistant("a"), cancelTrip)
			w.decide(a, owner(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
			w.want(owned+p.ID+"'", "run-other/x ")
		})
	})
}

// AP-3, AP-6: what the owner denies while the sign-in for it begins stays denied as it is:
// it waits for no sign-in, and nothing is sent when that is granted.
func TestDeniedAsTheSignInBegins(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelTrip)
		w.around(provider, "/oauth/device", func(_ http.ResponseWriter, _ *http.Request, next func()) {
			w.decide(w.open(), ops(), p, false, agent.StatusDone, "")
			next()
		})
		if r, err := a.Decide(t.Context(), owner(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest}); err != nil || r.Status == agent.StatusReplied {
			t.Errorf("%+v, %v", r, err)
		}
		w.tend(a, agent.Tending{})
		w.biz.allow("trips:cancel")
		time.Sleep(5 * time.Minute)
		if v := w.approval(a, p.ID, agent.ApprovalDenied); v.Authorization != "" || len(w.changed()) != 0 {
			t.Errorf("%+v after %d turns", v, len(w.changed()))
		}
	})
}

// blind is a store that cannot be read for a moment.
type blind struct {
	agent.Store
	until atomic.Int64 // so many reads fail
}

var errBlind = errors.New("disk I/O error")

func (b *blind) View(ctx context.Context, fn func(agent.Tx) error) error {
	if b.until.Add(-1) >= 0 {
		return errBlind
	}
	return b.Store.View(ctx, fn)
}

// AP-1, AP-3: what the owner approved outlives what keeps it from being sent for a moment:
// a disk that cannot be read, or another turn of its conversation.
func TestApprovedOutlivesTrouble(t *testing.T) {
	t.Run("disk", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			p := w.ask(w.enrolled(), inAssistant("a"), cancelX1)
			time.Sleep(6 * time.Minute) // who we are is asked anew
			store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			disk := &blind{Store: store}
			cfg := w.config
			cfg.Dir, cfg.Store = w.dir, disk
			cfg.Network = func(rules agent.URLRules, policy egress.Policy) agent.Egress { return &wire{w, rules, policy} }
			a, err := agent.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(a.Close)
			w.around(signerURL, "/pact/status", func(_ http.ResponseWriter, _ *http.Request, next func()) {
				next()
				disk.until.Store(1)
			})
			r, err := a.Decide(t.Context(), owner(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
			if !errors.Is(err, errBlind) {
				t.Errorf("%+v, %v", r, err)
			}
			w.approval(w.open(), p.ID, agent.ApprovalApproved)
			if n := len(w.changed()); n != 0 {
				t.Errorf("%d turns", n)
			}
		})
	})
	t.Run("busy", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := w.enrolled()
			first := w.send(a, inAssistant("a"), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
			p := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Conversation: first.Conversation})
			w.stolen("conversations", time.Now().Add(time.Minute))
			w.decide(a, owner(), p, true, agent.StatusBlocked, agent.ReasonBusy)
			w.approval(a, p.ID, agent.ApprovalApproved)
			w.tend(a, agent.Tending{})
			time.Sleep(5 * time.Minute)
			w.approval(a, p.ID, agent.ApprovalSent)
			if n := len(w.changed()); n != 2 { // the look among them
				t.Errorf("%d turns", n)
			}
		})
	})
}

// AP-6, DA-3: while the sign-in for what was approved is open, who tends the profile asks
// for that and begins nothing else, however often they look.
func TestNothingBeginsBeforeTheSignIn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelTrip)
		w.decide(a, owner(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		revision := w.value(`SELECT revision FROM approvals`)
		kinds := map[string]int{}
		c := owner()
		c.Progress = func(e agent.Event) { kinds[fmt.Sprint(e.Kind)]++ }
		stop := w.tend(a, agent.Tending{Caller: c})
		time.Sleep(time.Minute)
		stop()
		if polled := kinds[fmt.Sprint(agent.EventPolling)]; polled == 0 || len(kinds) != 1 {
			t.Errorf("told of %v", kinds)
		}
		w.want(`SELECT revision FROM approvals`, revision)
		if n := len(w.calls(egress.DeviceAuthorization)); n != 1 || len(w.biz.sent()) != 0 {
			t.Errorf("%d sign-ins, %d turns", n, len(w.biz.sent()))
		}
	})
}

// AP-3, AP-5, AD-2: who tends asks nobody, whatever its caller could: what takes another
// word waits for the owner.
func TestTendAsksNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(u turn) (int, any) {
			if u.text == cancelTrip.Message {
				return 200, stepUp(u.context, "trips:read")
			}
			return 0, nil
		}
		p := w.ask(a, inAssistant("a"), cancelTrip)
		w.decide(a, ops(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		c := w.person()
		c.Confirmed = true
		c.Shown = func(agent.ApprovalRequest) { t.Error("it is taken for confirmed") }
		c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
			t.Error("the caller is asked")
			return true, nil
		}
		c.SignIn = func(context.Context, agent.SignIn) error {
			t.Error("the caller is shown a link")
			return nil
		}
		stop := w.tend(a, agent.Tending{Caller: c})
		w.biz.allow("trips:cancel")
		time.Sleep(5 * time.Minute)
		stop()
		next := w.approval(a, p.ID, agent.ApprovalSent).Next
		if q := w.approval(a, next, agent.ApprovalPending); !q.Changed || len(w.changed()) != 1 {
			t.Errorf("then %+v after %d turns", q, len(w.changed()))
		}
	})
}

// DA-10: a sign-in that ends while its poll is being signed is not polled for.
func TestEndsBeforeThePoll(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.enrolled(), w.open()
		id := w.begin(a, owner(), "trips:read").Authorization.ID
		w.edit(fmt.Sprintf(`UPDATE authorizations SET data = CAST(json_set(CAST(data AS TEXT), '$.NextPoll', '%s') AS BLOB)`,
			time.Now().Add(5*time.Minute).UTC().Format(time.RFC3339))) // no cached signature
		w.around(signerURL, "/pact/sign", func(_ http.ResponseWriter, _ *http.Request, next func()) {
			next()
			if _, err := b.CancelAuthorization(t.Context(), owner(), id); err != nil {
				t.Error(err)
			}
		})
		w.wait(a, owner(), id, agent.StatusCancelled, agent.ReasonUserCancelled)
		if n := len(w.polls()); n != 0 {
			t.Errorf("%d polls", n)
		}
	})
}

// DA-7: nor is one that another program held until its deadline, though its next poll was
// due before that.
func TestTakenOverAfterTheDeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		id := w.begin(a, owner(), "trips:read").Authorization.ID
		time.Sleep(590 * time.Second)
		w.edit(fmt.Sprintf(`UPDATE authorizations SET data = CAST(json_set(CAST(data AS TEXT), '$.NextPoll', '%s') AS BLOB)`,
			time.Now().Add(3*time.Second).UTC().Format(time.RFC3339)))
		w.stolen("authorizations", time.Now().Add(30*time.Second))
		w.biz.allow("trips:read")
		w.wait(a, owner(), id, agent.StatusExpired, agent.ReasonConsentExpired)
		if n := len(w.polls()); n != 0 {
			t.Errorf("%d polls", n)
		}
	})
}

// DA-10, DA-14: the link of a sign-in that has ended is shown to nobody, though its codes
// are still there.
func TestNoLinkOfWhatIsOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		id := w.begin(a, owner(), "trips:read").Authorization.ID
		for _, state := range []string{"denied", "expired", "cancelled", "failed", "granted"} {
			w.edit(`UPDATE authorizations SET state = '` + state + `'`)
			if s, err := a.ShowSignIn(t.Context(), owner(), id); err == nil || s.Link != "" || s.UserCode != "" {
				t.Errorf("%s: shown, %v", state, err)
			}
			w.want(signInSecrets, "1")
		}
	})
}

// DI-3, RS-4: before a link is looked up, a card whose time is over is looked at again.
func TestNoLinkOfAnotherCard(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		id := w.begin(a, owner(), "trips:read").Authorization.ID
		time.Sleep(6 * time.Minute)
		w.biz.set(func(b *business) { b.card["supportedInterfaces"].([]any)[0].(map[string]any)["tenant"] = "x" })
		if s, err := a.ShowSignIn(t.Context(), owner(), id); err == nil || s.Link != "" || s.UserCode != "" {
			t.Errorf("shown, %v", err)
		}
		if v := w.state(a, id); v.State != "failed" || v.Reason != agent.ReasonCardChanged {
			t.Errorf("%+v", v)
		}
	})
}

// DA-4: a sign-in that somebody waits for is left to them: who tends does not even look
// whether it may go on.
func TestTendLeavesWhatIsHeld(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.biz.cardHeader.Set("Cache-Control", "max-age=60")
		a, b := w.enrolled(), w.open()
		id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
		var waits sync.WaitGroup
		waits.Go(func() { w.wait(b, patient(w), id, agent.StatusDone, "") })
		time.Sleep(time.Second)
		w.tend(a, agent.Tending{})
		cards := len(w.calls(egress.Card))
		time.Sleep(130 * time.Second)
		if n := len(w.calls(egress.Card)) - cards; n != 0 {
			t.Errorf("the card was looked at %d times", n)
		}
		w.biz.allow("trips:read")
		waits.Wait()
		everyInterval(t, w)
	})
}

// DA-9, DI-6: under another card a sign-in is not polled for, and what a poll brings as the
// card changes is no grant, though nothing else has ended it.
func TestPollUnderAnotherCard(t *testing.T) {
	const (
		revised     = `UPDATE businesses SET data = CAST(json_set(data, '$.CardRevision', 7) AS BLOB)`
		unsupported = `UPDATE businesses SET state = 'unsupported'`
	)
	for name, c := range map[string]struct {
		during bool
		change string
		alone  bool // the signer is away by then
	}{
		"another before a poll":          {false, revised, false},
		"another during a poll":          {true, revised, false},
		"another without the signer":     {true, revised, true},
		"unsupported before a poll":      {false, unsupported, false},
		"unsupported during a poll":      {true, unsupported, false},
		"unsupported without the signer": {true, unsupported, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a, who := w.enrolled(), patient(w)
				if c.during {
					who = w.person() // who signs in at once
					w.around(provider, "/oauth/token", func(_ http.ResponseWriter, _ *http.Request, next func()) {
						w.edit(c.change)
						if c.alone {
							w.signer.set(func(s *signerStandIn) { s.fail = 503 })
							time.Sleep(61 * time.Second) // what it said is old (SG-10)
						}
						next()
					})
				} else {
					time.AfterFunc(7*time.Second, func() { w.edit(c.change) })
				}
				w.authorize(a, who, agent.StatusFailed, agent.ReasonCardChanged)
				if n := len(w.polls()); n != 1 {
					t.Errorf("%d polls", n)
				}
				if list, err := a.Grants(t.Context(), owner()); err != nil || len(list) != 0 {
					t.Errorf("granted %+v, %v", list, err)
				}
			})
		})
	}
}
