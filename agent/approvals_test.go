package agent_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// inAssistant is a task of the owner that can ask nobody now.
func inAssistant(id string) agent.Caller {
	c := agent.TaskCaller(alice, &agent.Task{ID: id, Source: agent.SourceOwner, Mode: agent.ModeAct, Human: agent.HumanOutOfBand}, agent.DefaultNetwork())
	c.Actor = "assistant " + id
	return c
}

// ops is the owner on a surface of theirs that shows no links.
func ops() agent.Caller {
	c := owner()
	c.Actor = "token ops"
	return c
}

var cancelX1 = agent.SendRequest{Message: "Cancel booking X1", Effect: "change"}

// ask has an assistant ask for a change, which becomes an approval.
func (w *world) ask(a *agent.Agent, c agent.Caller, req agent.SendRequest) agent.ApprovalView {
	w.t.Helper()
	r := w.send(a, c, req, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
	if r.Approval == nil || r.Approval.ID == "" {
		w.t.Fatalf("no approval: %+v", r)
	}
	return *r.Approval
}

func (w *world) decide(a *agent.Agent, c agent.Caller, p agent.ApprovalView, yes bool, status agent.Status, reason string) agent.Result {
	w.t.Helper()
	r, err := a.Decide(w.t.Context(), c, agent.Decision{ID: p.ID, Approve: yes, Digest: p.Digest})
	if err != nil {
		w.t.Fatalf("decide: %v", err)
	}
	if r.Status != status || r.Reason != reason || r.Approval == nil {
		w.t.Errorf("decide: %s %q (%s), %+v; want %s %q", r.Status, r.Reason, r.Detail, r.Approval, status, reason)
	}
	return r
}

func (w *world) approval(a *agent.Agent, id, state string) agent.ApprovalView {
	w.t.Helper()
	v, err := a.Approval(w.t.Context(), owner(), id)
	if err != nil || v.State != state {
		w.t.Errorf("approval: %+v, %v; want %s", v, err, state)
	}
	return v
}

// changed are the turns that the business got which are no introductions.
func (w *world) changed() (out []turn) {
	for _, u := range w.biz.sent() {
		if !strings.HasPrefix(u.text, "Hello.") {
			out = append(out, u)
		}
	}
	return out
}

// AP-1, AP-2, AP-3, AP-5, CV-2: what a task asks for waits, whole, and once the owner
// approves it on their surface exactly it is sent, once; the records say who asked,
// who decided, and what was sent.
func TestApprovedLater(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		if p.State != agent.ApprovalPending || p.Message != cancelX1.Message || p.Effect != agent.EffectChange || p.Digest == "" ||
			p.Destination != iface+"/message:send" || p.Task != "a" || p.Actor != "assistant a" || !p.Expires.Equal(p.Created.Add(time.Hour)) {
			t.Errorf("asked %+v", p)
		}
		if n := len(w.biz.sent()); n != 0 {
			t.Errorf("%d turns before it was approved", n)
		}
		status, err := a.Status(t.Context(), owner())
		if err != nil || status.Counts.PendingApprovals != 1 {
			t.Errorf("counts %+v, %v", status.Counts, err)
		}
		list, err := a.Approvals(t.Context(), owner(), false)
		if err != nil || len(list) != 1 || list[0].ID != p.ID {
			t.Errorf("list %+v, %v", list, err)
		}
		r := w.decide(a, ops(), p, true, agent.StatusReplied, "")
		sent := w.changed()
		if len(sent) != 1 || sent[0].text != cancelX1.Message || sent[0].context == "" {
			t.Fatalf("sent %+v", sent)
		}
		if got := bodyDigest(t, sent[0].id, sent[0].text); got != p.Digest { // AP-3
			t.Errorf("sent %s, approved %s", got, p.Digest)
		}
		q := w.approval(a, p.ID, agent.ApprovalSent)
		if q.SentMessage != r.Message || q.DecidedBy != "token ops" || q.Decided.IsZero() || q.Conversation != r.Conversation {
			t.Errorf("sent %+v as %+v", q, r)
		}
		c, err := a.Conversation(t.Context(), owner(), r.Conversation)
		if err != nil || len(c.Messages) != 2 || c.Messages[1].Actor != "assistant a" || c.Messages[1].Approval != p.ID {
			t.Errorf("conversation %+v, %v", c, err)
		}
		w.decide(a, ops(), p, true, agent.StatusBlocked, agent.ReasonApprovalOver)
		w.decide(a, ops(), p, false, agent.StatusBlocked, agent.ReasonApprovalOver)
		if n := len(w.changed()); n != 1 {
			t.Errorf("sent %d times", n)
		}
		if list, err := a.Approvals(t.Context(), owner(), false); err != nil || len(list) != 0 {
			t.Errorf("list %+v, %v", list, err)
		}
		if list, err := a.Approvals(t.Context(), owner(), true); err != nil || len(list) != 1 {
			t.Errorf("list of all %+v, %v", list, err)
		}
	})
}

// bodyDigest is the digest of a message's body without its context.
func bodyDigest(t *testing.T, id, text string) string {
	t.Helper()
	body, err := agent.BuildMessage(id, "", text)
	if err != nil {
		t.Fatal(err)
	}
	return sha(body)
}

// AP-1, AP-3, AP-4, AD-2, ID-7: nobody but the owner decides, on their own surface, with
// the digest that they saw; what was denied is never sent, and of another principal's
// nobody learns.
func TestDecideIsTheOwners(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		bot := owner()
		bot.Origin = agent.OriginBot
		for name, c := range map[string]agent.Caller{"the task": inAssistant("a"), "another task": inAssistant("b"), "a bot": bot} {
			for _, yes := range []bool{true, false} {
				if r := w.decide(a, c, p, yes, agent.StatusBlocked, agent.ReasonDelegationRequired); len(w.biz.sent()) != 0 {
					t.Errorf("%s: %+v", name, r)
				}
			}
		}
		for _, digest := range []string{"", strings.Repeat("0", 64), p.Digest[1:], strings.ToUpper(p.Digest)} {
			other := p
			other.Digest = digest
			w.decide(a, owner(), other, true, agent.StatusFailed, agent.ReasonInvalidInput)
		}
		bob := owner()
		bob.Principal = "bob"
		for _, err := range []error{
			errOf(a.Approval(t.Context(), bob, p.ID)),
			errOf(a.Decide(t.Context(), bob, agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})),
			errOf(a.Decide(t.Context(), bob, agent.Decision{ID: p.ID})),
			errOf(a.Decide(t.Context(), owner(), agent.Decision{ID: "approval-x", Approve: true})),
		} {
			if !errors.Is(err, agent.ErrNotFound) {
				t.Errorf("got %v", err)
			}
		}
		if list, err := a.Approvals(t.Context(), bob, true); err != nil || len(list) != 0 {
			t.Errorf("bob sees %+v, %v", list, err)
		}
		w.approval(a, p.ID, agent.ApprovalPending)
		w.decide(a, ops(), p, false, agent.StatusDone, "")
		w.decide(a, ops(), p, false, agent.StatusDone, "")
		w.decide(a, ops(), p, true, agent.StatusDenied, agent.ReasonApprovalDenied)
		if q := w.approval(a, p.ID, agent.ApprovalDenied); q.DecidedBy != "token ops" {
			t.Errorf("denied %+v", q)
		}
		if n := len(w.biz.sent()) + len(w.calls(egress.DeviceAuthorization)); n != 0 {
			t.Errorf("%d requests", n)
		}
		c, err := a.Conversation(t.Context(), owner(), p.Conversation)
		if err != nil || c.State != "denied" {
			t.Errorf("conversation %+v, %v", c, err)
		}
	})
}

func errOf[T any](_ T, err error) error { return err }

// AP-1: the same ask again is the same approval, of a task of its own; and there are at
// most 20 of all tasks, but for the owner who is there to answer.
func TestAsksAreCounted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		if q := w.ask(a, inAssistant("a"), cancelX1); q.ID != p.ID || q.Digest != p.Digest {
			t.Errorf("asked again: %+v", q)
		}
		if q := w.ask(w.open(), inAssistant("a"), cancelX1); q.ID != p.ID {
			t.Errorf("asked another program: %+v", q)
		}
		if list, err := a.Conversations(t.Context(), owner()); err != nil || len(list) != 1 || list[0].State != "awaiting_local_authority" {
			t.Errorf("conversations %+v, %v", list, err)
		}
		in := cancelX1
		in.Conversation = p.Conversation
		for name, c := range map[string]struct {
			c   agent.Caller
			req agent.SendRequest
		}{
			"another task":         {inAssistant("b"), cancelX1},
			"another text":         {inAssistant("a"), agent.SendRequest{Message: "Cancel booking X2", Effect: "change"}},
			"another permission":   {inAssistant("a"), agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}}},
			"another conversation": {inAssistant("a"), in},
			"the command line":     {owner(), cancelX1},
		} {
			if q := w.ask(a, c.c, c.req); q.ID == p.ID || q.Digest == p.Digest {
				t.Errorf("%s is no other: %+v", name, q)
			}
		}
		for i := range 15 {
			w.ask(a, inAssistant("a"), agent.SendRequest{Message: fmt.Sprintf("Cancel booking Y%d", i), Effect: "change"})
		}
		next := agent.SendRequest{Message: "Cancel booking Z", Effect: "change"}
		r := w.send(a, inAssistant("a"), next, agent.StatusBlocked, agent.ReasonTooManyApprovals)
		if r.Approval != nil {
			t.Errorf("got %+v", r.Approval)
		}
		w.ask(a, inAssistant("a"), cancelX1) // is one of them
		w.ask(a, owner(), next)              // tasks take no place of others
		w.send(a, w.person(), next, agent.StatusReplied, "")
		w.decide(a, owner(), p, false, agent.StatusDone, "")
		w.ask(a, inAssistant("a"), next)
	})
}

// AP-1, CV-16: nothing is sent that waited for its hour; what the owner approved and what
// waits for them to sign in has as long again.
func TestApprovalsExpire(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		time.Sleep(time.Hour - time.Second)
		w.approval(a, p.ID, agent.ApprovalPending)
		q := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X2", Effect: "change", Scopes: []string{"trips:cancel"}})
		time.Sleep(time.Second)
		w.decide(a, owner(), p, true, agent.StatusExpired, agent.ReasonApprovalExpired)
		w.approval(a, p.ID, agent.ApprovalExpired)
		time.Sleep(time.Hour - 2*time.Second)
		w.decide(a, owner(), q, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		v := w.approval(w.open(), q.ID, agent.ApprovalApproved)
		if !v.Expires.Equal(v.Decided.Add(time.Hour)) {
			t.Errorf("approved %+v", v)
		}
		if _, err := a.CancelAuthorization(t.Context(), owner(), v.Authorization); err != nil { // else it ends it sooner
			t.Fatal(err)
		}
		if v := w.approval(a, q.ID, agent.ApprovalFailed); v.Reason != agent.ReasonUserCancelled {
			t.Errorf("after the sign-in: %+v", v)
		}
		w.decide(a, owner(), q, true, agent.StatusBlocked, agent.ReasonApprovalOver)
		if n := len(w.biz.sent()); n != 0 {
			t.Errorf("%d turns", n)
		}
	})
}

// AP-1, CV-16: a question that somebody waits at has its hour too: then it is over, here and
// for every other program, and no answer counts any more.
func TestQuestionExpires(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				b := w.open()
				asked, gone := make(chan agent.ApprovalRequest, 1), make(chan error, 1)
				c := w.person()
				c.Approve = func(ctx context.Context, r agent.ApprovalRequest) (bool, error) {
					asked <- r
					<-ctx.Done()
					gone <- context.Cause(ctx)
					if late {
						time.Sleep(time.Minute)
						return true, nil
					}
					return false, context.Cause(ctx)
				}
				var ended sync.WaitGroup
				ended.Go(func() {
					r := w.send(a, c, cancelX1, agent.StatusExpired, agent.ReasonApprovalExpired)
					if r.Approval == nil || r.Approval.State != agent.ApprovalExpired {
						t.Errorf("got %+v", r.Approval)
					}
				})
				req := <-asked
				time.Sleep(time.Hour - time.Second)
				p := w.approval(b, req.ID, agent.ApprovalPending)
				if !late { // nobody looks
					time.Sleep(10 * time.Second)
					synctest.Wait()
					if len(gone) != 1 {
						t.Error("the question is still there")
					}
				}
				time.Sleep(time.Second + time.Millisecond)
				w.decide(b, ops(), p, true, agent.StatusExpired, agent.ReasonApprovalExpired)
				w.approval(b, req.ID, agent.ApprovalExpired)
				ended.Wait()
				v, err := a.Conversation(t.Context(), owner(), p.Conversation)
				if err != nil || v.State != "expired" || len(w.biz.sent()) != 0 {
					t.Errorf("%+v, %v after %d turns", v, err, len(w.biz.sent()))
				}
			})
		})
	}
}

// AP-1: what was approved and could not be sent is over after its hour, and is not sent then.
func TestApprovedExpires(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		w.signer.set(func(s *signerStandIn) { s.fail = 503 })
		r, err := a.Decide(t.Context(), owner(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
		if err != nil || r.Status == agent.StatusReplied {
			t.Fatalf("decide %+v, %v", r, err)
		}
		w.approval(a, p.ID, agent.ApprovalApproved)
		w.tend(a, agent.Tending{})
		time.Sleep(time.Hour)
		w.signer.set(func(s *signerStandIn) { s.fail = 0 })
		w.decide(a, w.person(), p, true, agent.StatusExpired, agent.ReasonApprovalExpired)
		w.approval(a, p.ID, agent.ApprovalExpired)
		if n := len(w.changed()); n != 0 {
			t.Errorf("%d turns", n)
		}
	})
}

// DA-13, RS-4: a task goes on with the conversations that it began and with no other; the
// owner goes on with any.
func TestConversationsOfTasks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		look := func(c agent.Caller, in string, status agent.Status, reason string) string {
			t.Helper()
			return w.send(a, c, agent.SendRequest{Message: "Show my trips", Conversation: in}, status, reason).Conversation
		}
		own := look(owner(), "", agent.StatusReplied, "")
		tasks := look(inAssistant("a"), "", agent.StatusReplied, "")
		look(inAssistant("a"), tasks, agent.StatusReplied, "")
		look(owner(), tasks, agent.StatusReplied, "")
		turns := len(w.biz.sent())
		look(inAssistant("a"), own, agent.StatusBlocked, agent.ReasonOtherTask)
		look(inAssistant("b"), tasks, agent.StatusBlocked, agent.ReasonOtherTask)
		if n := len(w.biz.sent()); n != turns {
			t.Errorf("%d turns more", n-turns)
		}
		// What the owner approved is sent, also if the conversation was kept before
		// tasks were noted on them.
		p := w.ask(a, inAssistant("a"), agent.SendRequest{Message: cancelX1.Message, Effect: "change", Conversation: tasks})
		w.edit(`UPDATE conversations SET data = CAST(json_set(CAST(data AS TEXT), '$.Task', '') AS BLOB)`)
		look(inAssistant("a"), tasks, agent.StatusBlocked, agent.ReasonOtherTask)
		w.decide(a, owner(), p, true, agent.StatusReplied, "")
	})
}

// AD-2, AP-1: no task gives the owner's word by an inspection, on whatever surface; what
// could be taken for it waits for theirs, and is sent once they gave it. They themselves
// say what they want.
func TestTaskConfirmsNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		says := func(text string) {
			w.biz.set(func(b *business) {
				b.answer = func(u turn) (int, any) {
					reply := b.normal(u)
					reply["message"].(map[string]any)["parts"] = []any{map[string]any{"text": text}}
					return 200, reply
				}
			})
		}
		say := func(c agent.Caller, text, in string, status agent.Status, reason string) agent.Result {
			t.Helper()
			return w.send(a, c, agent.SendRequest{Message: text, Effect: "inspect", Conversation: in}, status, reason)
		}
		const required, why = agent.StatusApprovalRequired, agent.ReasonApprovalRequired
		task := inAssistant("a")
		says("Two trips.")
		in := say(task, "Show my trips", "", agent.StatusReplied, "").Conversation
		say(task, "Show the next one", in, agent.StatusReplied, "")
		say(task, "Where is it?", in, required, why) // a question mark alone
		say(task, "Yes, I see", in, required, why)
		say(task, "yes?", "", required, why)
		says("Shall I cancel X1?")
		say(task, "Show X1", in, agent.StatusReplied, "")
		turns := len(w.biz.sent())
		say(task, "Show the next one", in, required, why)
		r := say(task, "See the one that I meant", in, required, why)
		if n := len(w.biz.sent()); n != turns {
			t.Errorf("%d turns more", n-turns)
		}
		if r.Approval == nil || r.Approval.Effect != agent.EffectUnknown || r.Effect == nil || *r.Effect != agent.EffectUnknown {
			t.Fatalf("%+v", r)
		}
		// The owner decides, and it stays what they decided on although the business asks
		// nothing any more.
		says("Cancelled.")
		say(owner(), "yes?", in, agent.StatusReplied, "")
		w.decide(a, owner(), *r.Approval, true, agent.StatusReplied, "")
		if sent := w.changed(); sent[len(sent)-1].text != "See the one that I meant" {
			t.Errorf("sent %+v", sent[len(sent)-1])
		}
		// Nor does a task go on with what was more than a look, or was somebody else's.
		say(task, "Show the next one", in, required, why)
		in = say(task, "Show my trips", "", agent.StatusReplied, "").Conversation
		say(owner(), "Show X1", in, agent.StatusReplied, "")
		say(task, "Show the next one", in, required, why)
	})
}

// DA-13: tasks, however many are made up, have at most 20 sign-ins that wait; the owner is
// not bound by that.
func TestSignInsOfTasksAreCounted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		for i := range 20 {
			w.send(a, inAssistant(fmt.Sprint("t-", i)), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		}
		w.send(a, inAssistant("t-20"), readTrips, agent.StatusBlocked, agent.ReasonTooManySignIns)
		w.send(a, inAssistant("t-0"), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending) // is one of them
		w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if n := len(w.calls(egress.DeviceAuthorization)); n != 21 {
			t.Errorf("%d sign-ins", n)
		}
		time.Sleep(31 * time.Minute)
		w.send(a, inAssistant("t-20"), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
	})
}

// DA-15: what a business says of itself is held to the sign-ins that wait when it is told.
func TestWithholder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		bob := owner()
		bob.Principal = "bob"
		hide := func(c agent.Caller) string {
			t.Helper()
			h, err := a.Withholder(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			return h("", "Air abcd\u200b efgh, login.air.example.com/device")
		}
		before := hide(inAssistant("a"))
		r := w.send(a, inAssistant("a"), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if got := hide(inAssistant("b")); got != "Air "+agent.Redacted+", "+agent.Redacted {
			t.Errorf("got %q", got)
		}
		if got := hide(bob); got != before || !strings.Contains(got, "abcd") {
			t.Errorf("without a sign-in: %q", got)
		}
		if _, err := a.CancelAuthorization(t.Context(), owner(), r.Authorization.ID); err != nil {
			t.Fatal(err)
		}
		if got := hide(inAssistant("b")); got != before {
			t.Errorf("after it: %q", got)
		}
	})
}

// AP-1: a live question takes the place of the same ask that waits, so that the same is
// never sent by both.
func TestLiveQuestionReplaces(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, owner(), cancelX1)
		w.send(a, w.person(), cancelX1, agent.StatusReplied, "")
		v := w.approval(a, p.ID, agent.ApprovalWithdrawn)
		if v.Reason != agent.ReasonApprovalReplaced || v.Next == "" {
			t.Errorf("got %+v", v)
		}
		w.decide(a, owner(), p, true, agent.StatusBlocked, agent.ReasonApprovalOver)
		c, err := a.Conversation(t.Context(), owner(), p.Conversation)
		if err != nil || c.State != "cancelled" || len(w.changed()) != 1 {
			t.Errorf("%+v, %v after %d turns", c, err, len(w.changed()))
		}
	})
}

// AP-1, DA-13: a question at one surface is answered at another, and the first one hears
// of it; whichever answer comes first is the only one. Another program's are heard too.
func TestDecidedElsewhere(t *testing.T) {
	for _, yes := range []bool{true, false} {
		for _, programs := range []int{1, 2} {
			t.Run(fmt.Sprint(yes, programs), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := newWorld(t)
					a := w.enrolled()
					b := a
					if programs == 2 {
						b = w.open()
					}
					asked := make(chan agent.ApprovalRequest, 1)
					c := w.person()
					var cause error
					c.Approve = func(ctx context.Context, r agent.ApprovalRequest) (bool, error) {
						asked <- r
						<-ctx.Done()
						cause = context.Cause(ctx)
						return !yes, ctx.Err() // counts for nothing
					}
					var ended sync.WaitGroup
					ended.Go(func() {
						if yes {
							r := w.send(a, c, cancelX1, agent.StatusReplied, "")
							if r.Approval != nil {
								t.Errorf("replied with %+v", r.Approval)
							}
						} else {
							w.send(a, c, cancelX1, agent.StatusDenied, agent.ReasonApprovalDenied)
						}
					})
					req := <-asked
					time.Sleep(10 * time.Minute) // longer than any lease
					p := w.approval(b, req.ID, agent.ApprovalPending)
					w.decide(b, ops(), p, yes, agent.StatusDone, "")
					ended.Wait()
					if !errors.Is(cause, agent.ErrDecided) {
						t.Errorf("the question ended for %v", cause)
					}
					state, turns := agent.ApprovalDenied, 0
					if yes {
						state, turns = agent.ApprovalSent, 1
					}
					if v := w.approval(b, p.ID, state); v.DecidedBy != "token ops" || len(w.changed()) != turns {
						t.Errorf("%+v after %d turns", v, len(w.changed()))
					}
				})
			})
		}
	}
}

// AP-1, AP-3: of many who decide at once, on whatever surface and in whatever program,
// one sends.
func TestDecidersAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		agents := []*agent.Agent{w.enrolled(), w.open()}
		p := w.ask(agents[0], inAssistant("a"), cancelX1)
		var mu sync.Mutex
		got := map[string]int{}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				r, err := agents[i%2].Decide(t.Context(), owner(), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				got[string(r.Status)+" "+r.Reason]++
			})
		}
		all.Wait()
		if got["replied "] != 1 || got["replied "]+got["done "]+got["blocked "+agent.ReasonApprovalOver] != 8 || len(w.changed()) != 1 {
			t.Errorf("got %v, and %d turns", got, len(w.changed()))
		}
	})
}

// AP-3, CV-13, CV-12: a step-up after an approval is another operation: it takes an approval
// of its own, of whatever program, and neither can be used for the other's message.
func TestStepUpAfterApproval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(u turn) (int, any) {
			if u.delegation == "" && !strings.HasPrefix(u.text, "Hello.") {
				return 200, stepUp(u.context, "trips:cancel")
			}
			return 0, nil
		}
		p := w.ask(a, inAssistant("a"), cancelX1)
		r := w.decide(a, owner(), p, true, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
		q := *r.Approval
		if q.ID == p.ID || q.Digest == p.Digest || !q.Changed || len(q.Scopes) != 1 || q.Actor != "assistant a" || q.Task != "a" || q.Conversation != p.Conversation {
			t.Errorf("then %+v", q)
		}
		if v := w.approval(a, p.ID, agent.ApprovalSent); v.Next != q.ID {
			t.Errorf("the first: %+v", v)
		}
		w.decide(a, owner(), agent.ApprovalView{ID: q.ID, Digest: p.Digest}, true, agent.StatusFailed, agent.ReasonInvalidInput)
		w.decide(w.open(), w.person(), q, true, agent.StatusReplied, "")
		sent := w.changed()
		if len(sent) != 2 || sent[1].delegation == "" || sent[1].id == sent[0].id || sent[1].context != sent[0].context || bodyDigest(t, sent[1].id, sent[1].text) != q.Digest {
			t.Errorf("sent %+v", sent)
		}
		for _, v := range []agent.ApprovalView{p, q} {
			w.decide(a, owner(), v, true, agent.StatusBlocked, agent.ReasonApprovalOver)
		}
	})
}

// AP-3, AD-9: where the token that came can do more than was approved, that is another
// question; the first approval is over.
func TestTokenExceedsTheApproval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}})
		// The same words at another card's description are another thing too (AP-2).
		r := w.decide(a, owner(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if r.Approval.State != agent.ApprovalApproved || r.Approval.Authorization != r.Authorization.ID {
			t.Errorf("got %+v", r.Approval)
		}
		w.biz.set(func(b *business) { b.card["name"] = "Air of today" })
		time.Sleep(6 * time.Minute) // the card is fetched anew
		r = w.decide(a, owner(), p, true, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
		if q := r.Approval; q.ID == p.ID || !q.Changed || q.BusinessName != "Air of today" {
			t.Errorf("got %+v", q)
		}
		if v := w.approval(a, p.ID, agent.ApprovalFailed); v.Reason != agent.ReasonApprovalReplaced || v.Next != r.Approval.ID {
			t.Errorf("the first: %+v", v)
		}
		w.decide(a, owner(), p, true, agent.StatusBlocked, agent.ReasonApprovalOver)
		if n := len(w.changed()); n != 0 {
			t.Errorf("%d turns", n)
		}
		w.decide(a, w.person(), *r.Approval, true, agent.StatusReplied, "")
	})
}

// AP-6, DA-13, DA-17: what was approved and needs a sign-in stays approved meanwhile, after a
// restart too; the owner goes on with it, without another question, or takes it back.
func TestApprovedWaitsForTheSignIn(t *testing.T) {
	for _, end := range []string{"goes on", "denied"} {
		t.Run(end, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				req := agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}}
				p := w.ask(a, inAssistant("a"), req)
				if n := len(w.calls(egress.DeviceAuthorization)); n != 0 { // AP-4, AP-6
					t.Errorf("%d sign-ins before it was approved", n)
				}
				r := w.decide(a, owner(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
				again := w.send(a, inAssistant("a"), req, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
				if again.Approval == nil || again.Approval.ID != p.ID || again.Authorization == nil || again.Authorization.ID != r.Authorization.ID {
					t.Errorf("asked again: %+v", again)
				}
				a = w.open()
				if v := w.approval(a, p.ID, agent.ApprovalApproved); v.Authorization != r.Authorization.ID {
					t.Errorf("after a restart: %+v", v)
				}
				if end == "denied" {
					w.decide(a, owner(), p, false, agent.StatusDone, "")
					w.decide(a, w.person(), p, true, agent.StatusDenied, agent.ReasonApprovalDenied)
					if n := len(w.biz.sent()); n != 0 {
						t.Errorf("%d turns", n)
					}
					return
				}
				c := w.person()
				c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
					t.Error("asked a second time")
					return false, nil
				}
				r = w.decide(a, c, p, true, agent.StatusReplied, "")
				if r.Approval.State != agent.ApprovalSent || len(w.changed()) != 1 || len(w.calls(egress.DeviceAuthorization)) != 1 {
					t.Errorf("%+v after %d turns", r.Approval, len(w.changed()))
				}
			})
		})
	}
}

// AP-1, DA-17: who asked and leaves takes the question back, also when it was approved and
// not sent; where the program stops it stays, and can be decided later.
func TestWithdrawn(t *testing.T) {
	for name, c := range map[string]struct {
		cause    error
		approved bool // it waits for a sign-in when the asker leaves
		state    string
		status   agent.Status

		conversation string
	}{
		"left the question":       {context.Canceled, false, agent.ApprovalWithdrawn, agent.StatusCancelled, "cancelled"},
		"stopped at the question": {agent.ErrStopping, false, agent.ApprovalPending, agent.StatusApprovalRequired, "awaiting_local_authority"},
		"left the sign-in":        {context.Canceled, true, agent.ApprovalWithdrawn, agent.StatusNeedsUserAction, "awaiting_business_consent"},
		"stopped at the sign-in":  {agent.ErrStopping, true, agent.ApprovalApproved, agent.StatusNeedsUserAction, "awaiting_business_consent"},
		"gave up at the sign-in":  {agent.ErrAborted, true, agent.ApprovalWithdrawn, agent.StatusCancelled, "cancelled"},
		"gave up at the question": {agent.ErrAborted, false, agent.ApprovalWithdrawn, agent.StatusCancelled, "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				ctx, leave := context.WithCancelCause(t.Context())
				p := w.person()
				p.Approve = func(ctx context.Context, _ agent.ApprovalRequest) (bool, error) {
					if c.approved {
						return true, nil
					}
					leave(c.cause)
					<-ctx.Done()
					return true, nil // nobody said so
				}
				p.SignIn = func(context.Context, agent.SignIn) error {
					time.AfterFunc(63*time.Second, func() { leave(c.cause) })
					return nil
				}
				r, err := a.Send(ctx, p, agent.SendRequest{Business: cardURL, Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}})
				if err != nil || r.Status != c.status {
					t.Errorf("got %+v, %v", r, err)
				}
				list, err := a.Approvals(t.Context(), owner(), true)
				if err != nil || len(list) != 1 || list[0].State != c.state {
					t.Fatalf("approvals %+v, %v", list, err)
				}
				if c.cause == agent.ErrStopping && (r.Approval == nil || r.Approval.ID != list[0].ID) {
					t.Errorf("got %+v", r)
				}
				if n := len(w.biz.sent()); n != 0 {
					t.Errorf("%d turns", n)
				}
				if v, err := a.Conversation(t.Context(), owner(), list[0].Conversation); err != nil || v.State != c.conversation {
					t.Errorf("conversation %+v, %v", v, err) // CV-1
				}
				a = w.open()
				if c.state == agent.ApprovalWithdrawn {
					w.decide(a, w.person(), list[0], true, agent.StatusBlocked, agent.ReasonApprovalOver)
					return
				}
				w.decide(a, w.person(), list[0], true, agent.StatusReplied, "")
				if n := len(w.changed()); n != 1 {
					t.Errorf("sent %d times", n)
				}
			})
		})
	}
}

// AP-1, RS-3: the question of a program that died can be decided in another one, at once.
func TestQuestionOfADeadProgram(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		asked, died := make(chan agent.ApprovalRequest), make(chan struct{})
		c := w.person()
		c.Approve = func(ctx context.Context, r agent.ApprovalRequest) (bool, error) {
			asked <- r
			<-died
			return true, nil // too late
		}
		var ended sync.WaitGroup
		ended.Go(func() {
			r, err := a.Send(t.Context(), c, agent.SendRequest{Business: cardURL, Message: "Cancel booking X1", Effect: "change"})
			if err != nil || r.Status == agent.StatusReplied {
				t.Errorf("the dead one: %+v, %v", r, err)
			}
		})
		p := <-asked
		w.dies() // as far as the others can tell
		b := w.open()
		w.decide(b, owner(), w.approval(b, p.ID, agent.ApprovalPending), true, agent.StatusReplied, "")
		close(died)
		ended.Wait()
		if n := len(w.changed()); n != 1 {
			t.Errorf("sent %d times", n)
		}
	})
}

// AP-1, CV-14, CV-15: asking what became of a change takes the owner's word, which can be
// had later; it is the same message, and the word is used once.
func TestReconcileByApproval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 55*time.Minute, "trips:cancel")
		lost := true
		w.biz.set(func(b *business) {
			b.answer = func(u turn) (int, any) {
				if lost && u.delegation != "" {
					return 200, nil
				}
				return 0, nil
			}
		})
		first := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}})
		sent := w.decide(a, owner(), first, true, agent.StatusUnknown, "network")
		// Another task may not, as it may not send there.
		r, err := a.Reconcile(t.Context(), inAssistant("b"), agent.ReconcileRequest{Conversation: sent.Conversation})
		if err != nil || r.Status != agent.StatusBlocked || r.Reason != agent.ReasonOtherTask || r.Approval != nil {
			t.Errorf("another task's: %+v, %v", r, err)
		}
		reconcile := func() agent.ApprovalView {
			t.Helper()
			r, err := a.Reconcile(t.Context(), inAssistant("a"), agent.ReconcileRequest{Conversation: sent.Conversation})
			if err != nil || r.Status != agent.StatusApprovalRequired || r.Approval == nil || r.Approval.SentBefore.IsZero() {
				t.Fatalf("reconcile %+v, %v", r, err)
			}
			return *r.Approval
		}
		p := reconcile()
		if q := reconcile(); q.ID != p.ID {
			t.Errorf("asked again: %+v", q)
		}
		w.decide(a, owner(), p, true, agent.StatusUnknown, "network") // no answer again
		if v := w.approval(a, p.ID, agent.ApprovalSent); v.SentMessage != sent.Message {
			t.Errorf("used %+v", v)
		}
		w.decide(a, owner(), p, true, agent.StatusBlocked, agent.ReasonApprovalOver)
		lost = false
		q := reconcile()
		if q.ID == p.ID || q.Digest != p.Digest {
			t.Errorf("asked anew: %+v", q)
		}
		w.decide(a, owner(), q, true, agent.StatusReplied, "")
		for _, u := range w.changed() {
			if u.id != w.changed()[0].id {
				t.Errorf("another message: %+v", u)
			}
		}
		if n := len(w.changed()); n != 3 {
			t.Errorf("%d turns", n)
		}
	})
}

// PO-5, PO-7, EV-5: what was true when it was asked is asked again when it is approved.
func TestApprovalGoesThroughTheGates(t *testing.T) {
	for name, c := range map[string]struct {
		before func(w *world, a *agent.Agent)
		status agent.Status
		reason string
	}{
		"switched off": {func(w *world, a *agent.Agent) { _ = a.SetEnabled(w.t.Context(), owner(), false) }, agent.StatusBlocked, agent.ReasonDisabledInSettings},
		"another subject": {func(w *world, _ *agent.Agent) {
			w.signer.set(func(s *signerStandIn) { s.subject = "someone" })
			time.Sleep(2 * time.Minute)
		}, agent.StatusBlocked, agent.ReasonIdentityChanged},
		"the card changed": {func(w *world, _ *agent.Agent) {
			w.biz.set(func(b *business) { b.card["supportedInterfaces"] = []any{} })
			time.Sleep(6 * time.Minute)
		}, agent.StatusUnsupported, agent.ReasonCardChanged},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				p := w.ask(a, inAssistant("a"), cancelX1)
				c.before(w, a)
				w.decide(a, w.person(), p, true, c.status, c.reason)
				if v := w.approval(a, p.ID, agent.ApprovalFailed); v.Reason != c.reason {
					t.Errorf("got %+v", v)
				}
				if n := len(w.biz.sent()); n != 0 {
					t.Errorf("%d turns", n)
				}
			})
		})
	}
}

// SG-12, RS-5: what a task asked for under a network profile of its own is not sent under
// another; where its program waits for the word, it goes on there.
func TestApprovalKeepsItsNetwork(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		c := inTask("t-1", "work")
		c.Human, c.Task.Human = agent.HumanOutOfBand, agent.HumanOutOfBand
		p := w.ask(a, c, cancelX1)
		w.decide(a, owner(), p, true, agent.StatusBlocked, agent.ReasonOtherNetwork)
		w.approval(a, p.ID, agent.ApprovalPending)
		// Nor is it tended under another one.
		c.Task.ID = "t-2"
		q := w.ask(a, c, agent.SendRequest{Message: "Cancel booking X2", Effect: "change", Scopes: []string{"trips:cancel"}})
		there := ops()
		there.Network = anywhere("work")
		r := w.decide(a, there, q, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		w.tend(a, agent.Tending{})
		w.biz.allow("trips:cancel")
		there.Human, there.SignIn = agent.HumanInteractive, w.person().SignIn
		if got, err := a.WaitAuthorization(t.Context(), there, r.Authorization.ID); err != nil || got.Authorization.State != "granted" {
			t.Fatalf("sign-in %+v, %v", got, err)
		}
		time.Sleep(time.Minute)
		w.approval(a, q.ID, agent.ApprovalApproved)
		if n := len(w.biz.sent()); n != 0 {
			t.Errorf("%d turns", n)
		}
	})
}

// AP-5: what is confirmed on the command line is not waiting for the owner elsewhere any
// more: else they might approve it a second time.
func TestConfirmedInstead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), cancelX1)
		other := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X2", Effect: "change"})
		c := owner()
		c.Confirmed = true
		w.send(a, c, cancelX1, agent.StatusReplied, "")
		if v := w.approval(a, p.ID, agent.ApprovalWithdrawn); v.Reason != agent.ReasonApprovalReplaced {
			t.Errorf("got %+v", v)
		}
		w.approval(a, other.ID, agent.ApprovalPending)
		w.decide(a, c, p, true, agent.StatusBlocked, agent.ReasonApprovalOver)
		if n := len(w.changed()); n != 1 {
			t.Errorf("sent %d times", n)
		}
	})
}

// DA-17, CV-1: what is confirmed elsewhere leaves a conversation that waits for a sign-in
// waiting, while the sign-in waits.
func TestConfirmedInsteadLeavesTheSignIn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		req := agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}}
		p := w.ask(a, inAssistant("a"), req)
		r := w.decide(a, owner(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		c := owner()
		c.Confirmed = true
		w.send(a, c, req, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if v := w.approval(a, p.ID, agent.ApprovalFailed); v.Reason != agent.ReasonApprovalReplaced {
			t.Errorf("got %+v", v)
		}
		z, err := a.Authorizations(t.Context(), owner())
		if err != nil || !slices.ContainsFunc(z, func(z agent.AuthorizationView) bool { return z.ID == r.Authorization.ID && z.State == "pending" }) {
			t.Errorf("sign-ins %+v, %v", z, err)
		}
		v, err := a.Conversation(t.Context(), owner(), p.Conversation)
		if err != nil || v.State != "awaiting_business_consent" {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

// AP-1: a question's time is over also if the clock is set back meanwhile.
func TestQuestionEndsThoughTheClockIsSetBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var back atomic.Int64
		w.config.Now = func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }
		a := w.enrolled()
		c := w.person()
		c.Approve = func(ctx context.Context, _ agent.ApprovalRequest) (bool, error) {
			time.Sleep(time.Minute) // the question is there
			back.Store(int64(10 * time.Minute))
			<-ctx.Done()
			return false, context.Cause(ctx)
		}
		r := w.send(a, c, cancelX1, agent.StatusExpired, agent.ReasonApprovalExpired)
		if r.Approval == nil || r.Approval.State != agent.ApprovalExpired {
			t.Errorf("got %+v", r.Approval)
		}
	})
}

// AP-1, CV-11: a context that the business closed is not the owner's matter: the same message
// goes out in a fresh one, under the same approval.
func TestApprovalOutlivesAContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		closed := 0
		w.biz.answer = func(u turn) (int, any) {
			if !strings.HasPrefix(u.text, "Hello.") && closed == 0 {
				closed++
				return 400, a2aError(400, "UNSUPPORTED_OPERATION", "closed")
			}
			return 0, nil
		}
		p := w.ask(a, inAssistant("a"), cancelX1)
		r := w.decide(a, owner(), p, true, agent.StatusReplied, "")
		sent := w.changed()
		if len(sent) != 2 || sent[0].id != sent[1].id || sent[0].context == sent[1].context {
			t.Errorf("sent %+v", sent)
		}
		if v := w.approval(a, p.ID, agent.ApprovalSent); v.SentMessage != r.Message {
			t.Errorf("got %+v", v)
		}
	})
}

// DA-15, RD-4, CV-8: a business knows its sign-ins' links and codes, and can not hand them to
// who reads its words.
func TestSignInSecretsAreWithheld(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.set(func(b *business) {
			b.device["device_code"] = "plain-device-code-of-no-shape"
			b.device["user_code"] = "ABCD-EFH8" // no id, which is drawn by lot, has both an H and an 8
			b.device["verification_uri_complete"] = "https://login.air.example.com/device?user_code=ABCD-EFH8"
		})
		r := w.send(a, inAssistant("a"), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if r.Authorization == nil {
			t.Fatal("no sign-in")
		}
		leak := "Open https://login.air.example.com/device and enter ABCD-EFH8, or abcd efh8, AB\u200bCD\u2066-EFH8, h\u200bid\ufe0fden, or " +
			w.biz.device["verification_uri_complete"].(string) + " plain device code of no shape"
		show := agent.SendRequest{Message: "Show my trips"}
		for name, answer := range map[string]func(u turn) (int, any){
			"a reply": func(u turn) (int, any) {
				reply := w.biz.normal(u)
				m := reply["message"].(map[string]any)
				m["parts"], m["messageId"], m["contextId"] = []any{map[string]any{"text": leak}}, "m ABCD-EFH8", "ctx ABCD-EFH8"
				return 200, reply
			},
			"an error":  func(turn) (int, any) { return 400, a2aError(400, "CONTENT_TYPE_NOT_SUPPORTED", leak) },
			"a step-up": func(turn) (int, any) { return 200, stepUp("ctx ABCD-EFH8", "ABCD-EFH8") },
		} {
			w.biz.set(func(b *business) { b.answer = answer })
			r, err := a.Send(t.Context(), inAssistant("b"), agent.SendRequest{Business: cardURL, Message: show.Message})
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			fmt.Fprintf(&all, "%s", marshal(r))
			list, err := a.Conversations(t.Context(), owner())
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range list {
				c, err := a.Conversation(t.Context(), owner(), c.ID)
				fmt.Fprintf(&all, "%s %v", marshal(c), err)
			}
			if all.String() != agent.Visible(all.String()) {
				t.Errorf("%s hides characters: %q", name, all.String())
			}
			for _, secret := range []string{"EFH8", "efh8", "login.air.example.com", "plain-device", "of no shape"} {
				if strings.Contains(all.String(), secret) {
					t.Errorf("%s tells %s: %s", name, secret, all.String())
				}
			}
			if name == "a reply" && !strings.Contains(all.String(), agent.Redacted) {
				t.Errorf("nothing is redacted: %s", all.String())
			}
		}
		// Were they another business's, its words would be kept whole.
		w.edit(`INSERT INTO businesses SELECT 'b-other', principal, business, conversation, 'https://other.example.com/card', state, revision, created,
			lease_owner, lease_until, CAST(json_set(CAST(data AS TEXT), '$.Card.origin', 'https://other.example.com') AS BLOB) FROM businesses`)
		w.edit(`UPDATE authorizations SET business = 'b-other'`)
		w.biz.set(func(b *business) {
			b.answer = func(u turn) (int, any) {
				reply := b.normal(u)
				reply["message"].(map[string]any)["parts"] = []any{map[string]any{"text": "ABCD-EFH8, or abcd efh8"}}
				return 200, reply
			}
		})
		r = w.send(a, owner(), show, agent.StatusReplied, "")
		if r.Reply != "ABCD-EFH8, or abcd efh8" {
			t.Errorf("another business's reply is kept as %q", r.Reply)
		}
		hide, err := a.Withholder(t.Context(), inAssistant("b"))
		if err != nil {
			t.Fatal(err)
		}
		if got := hide(r.Business, r.Reply); got != agent.Redacted+", or abcd efh8" {
			t.Errorf("a task is told %q", got)
		}
	})
}

// dies makes the programs of a profile dead to those that are opened from now on.
func (w *world) dies() {
	w.t.Helper()
	locks, err := filepath.Glob(filepath.Join(w.dir, "run", "*.lock"))
	if err != nil || len(locks) == 0 {
		w.t.Fatalf("locks: %v, %v", locks, err)
	}
	for _, l := range locks {
		if err := os.Remove(l); err != nil {
			w.t.Fatal(err)
		}
	}
}

func sha(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// AP-1, AP-6, RS-4: what was approved and waits for a sign-in is sent once that is granted, by
// whatever program tends the profile then, and never if it ends otherwise.
func TestApprovedIsTended(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		t.Run(fmt.Sprint(allowed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				p := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}})
				w.decide(a, ops(), p, true, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
				a = w.open()
				ctx, stop := context.WithCancel(t.Context())
				var tending sync.WaitGroup
				tending.Go(func() { _ = a.Tend(ctx, agent.Tending{Caller: ops()}) })
				time.Sleep(3 * time.Minute)
				w.approval(a, p.ID, agent.ApprovalApproved)
				state, turns := agent.ApprovalSent, 1
				if allowed {
					w.biz.allow("trips:cancel")
				} else {
					state, turns = agent.ApprovalFailed, 0
					w.biz.set(func(b *business) { b.denied = true })
				}
				time.Sleep(time.Minute)
				v := w.approval(a, p.ID, state)
				if len(w.changed()) != turns || !allowed && v.Reason != agent.ReasonAccessDenied {
					t.Errorf("%+v after %d turns", v, len(w.changed()))
				}
				time.Sleep(3 * time.Hour)
				if len(w.changed()) != turns {
					t.Errorf("%d turns", len(w.changed()))
				}
				stop()
				tending.Wait()
			})
		})
	}
}

// AP-1, EV-7, GR-9: the records say who did what.
func TestActorsAreRecorded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 55*time.Minute, "trips:cancel")
		w.biz.set(func(b *business) { b.receipt = func(_, envelope map[string]any) { envelope["none"] = true } })
		c := w.person()
		c.Actor = "token ops"
		r := w.send(a, c, agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}}, agent.StatusReplied, "")
		v, err := a.Conversation(t.Context(), owner(), r.Conversation)
		if err != nil || v.Messages[1].Actor != "token ops" || v.Messages[1].Approval == "" {
			t.Errorf("conversation %+v, %v", v, err)
		}
		if p := w.approval(a, v.Messages[1].Approval, agent.ApprovalSent); p.Actor != "token ops" || p.DecidedBy != "token ops" {
			t.Errorf("approval %+v", p)
		}
		item, err := a.Acknowledge(t.Context(), ops(), r.Evidence.Receipt)
		if err != nil || item.By != "token ops" {
			t.Errorf("acknowledged %+v, %v", item, err)
		}
		d, err := a.Disconnect(t.Context(), ops(), onlyGrant(t, a).ID)
		if err != nil || d.Grant.EndedBy != "token ops" || onlyGrant(t, a).EndedBy != "token ops" {
			t.Errorf("disconnected %+v, %v", d, err)
		}
		if err := a.SetPreference(t.Context(), ops(), agent.RequirePACT); err != nil {
			t.Fatal(err)
		}
		if v, err := a.Policy(t.Context(), owner()); err != nil || v.By != "token ops" {
			t.Errorf("policy %+v, %v", v, err)
		}
		found, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL})
		if err != nil || found.DiscoveredBy != "owner" || found.FetchedBy != "token ops" {
			t.Errorf("discovered %+v, %v", found, err)
		}
		desk := owner()
		desk.Actor = "token desk"
		found, err = a.Discover(t.Context(), desk, agent.DiscoverRequest{CardURL: cardURL, Refresh: true})
		list2, err2 := a.Businesses(t.Context(), owner())
		if err != nil || err2 != nil || found.DiscoveredBy != "owner" || found.FetchedBy != "token desk" || list2[0].FetchedBy != "token desk" {
			t.Errorf("looked up again %+v, %v, %v", found, err, err2)
		}
		for _, c := range []agent.Caller{ops(), desk} {
			v, err := a.VerifyStoredReceipt(t.Context(), c, r.Evidence.Receipt)
			if err != nil || v.RecheckedBy != c.Actor || !v.Rechecked.Equal(time.Now()) || v.Verdict != agent.VerdictMissing {
				t.Errorf("verified %+v, %v", v, err)
			}
		}
		if v, err := a.Receipt(t.Context(), owner(), r.Evidence.Receipt); err != nil || v.RecheckedBy != "token desk" {
			t.Errorf("receipt %+v, %v", v, err)
		}
		added, err := a.AddProvider(t.Context(), ops(), "https://other.example.com", "aud-other", "")
		list, err2 := a.Providers(t.Context(), owner())
		if err != nil || err2 != nil || added.By != "token ops" || !slices.ContainsFunc(list, func(v agent.ProviderView) bool { return v.By == "token ops" }) {
			t.Errorf("provider %+v, %+v, %v, %v", added, list, err, err2)
		}
		s, err := a.Status(t.Context(), owner())
		if err != nil || s.Identity == nil || s.Identity.By != "owner" {
			t.Errorf("identity %+v, %v", s.Identity, err)
		}
		w.want(`SELECT data ->> 'By' FROM settings`, "token ops")
		w.want(`SELECT data ->> 'By' FROM identities`, "owner")
	})
}

// RS-1, CV-9: a program that stops while a business has no answer yet leaves the outcome
// unknown, and nobody to have cancelled it.
func TestStoppedWithoutAReply(t *testing.T) {
	for cause, reason := range map[error]string{agent.ErrStopping: agent.ReasonInterrupted, context.Canceled: agent.ReasonUserCancelled} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := granted(w, 55*time.Minute, "trips:cancel")
			w.biz.set(func(b *business) {
				b.answer = func(u turn) (int, any) {
					if u.delegation == "" {
						return 0, nil
					}
					return 400, a2aError(400, "INVALID_PARAMS", "There is no reply yet")
				}
			})
			ctx, stop := context.WithCancelCause(t.Context())
			time.AfterFunc(5*time.Second, func() { stop(cause) })
			r, err := a.Send(ctx, w.person(), agent.SendRequest{Business: cardURL, Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}})
			if err != nil || r.Status != agent.StatusUnknown || r.Reason != reason {
				t.Errorf("%v: %+v, %v", cause, r, err)
			}
		})
	}
}

// AP-1, PO-7: what the owner takes back while they are asked to sign in is not sent, and the
// business does not even hear of it.
func TestTakenBackAtTheSignIn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		p := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}})
		c := w.person()
		signIn := c.SignIn
		c.SignIn = func(ctx context.Context, s agent.SignIn) error {
			w.decide(w.open(), ops(), p, false, agent.StatusDone, "")
			return signIn(ctx, s)
		}
		w.decide(a, c, p, true, agent.StatusDenied, agent.ReasonApprovalDenied)
		w.approval(a, p.ID, agent.ApprovalDenied)
		if n := len(w.biz.sent()); n != 0 {
			t.Errorf("%d turns", n)
		}
	})
}
