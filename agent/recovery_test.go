package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// crash stops an agent's world at a moment: its network never answers again and
// its store is no longer written, as if the process were gone.
func (w *world) crashDuring(send func(*agent.Agent)) *agent.Agent {
	w.t.Helper()
	a := w.open()
	hold := make(chan struct{})
	w.biz.set(func(b *business) { b.hold = hold })
	go send(a)
	synctest.Wait() // it hangs on the wire
	w.biz.set(func(b *business) { b.hold = nil })
	w.t.Cleanup(func() { close(hold) })
	return a
}

// RS-1, RS-3, CV-4: killed while sending: never sent again, of unknown outcome
// once the lease is over, and the conversation is free then.
func TestKilledWhileSending(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.send(w.enrolled(), owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		w.crashDuring(func(a *agent.Agent) {
			_, _ = a.Send(ctx, w.person(), agent.SendRequest{Business: cardURL, Message: "Cancel booking X1", Conversation: first.Conversation})
		})
		turns := len(w.biz.sent())
		time.Sleep(10 * time.Second)
		b := w.open()
		state := func(want string) {
			t.Helper()
			v, err := b.Conversation(t.Context(), owner(), first.Conversation)
			if m := v.Messages[len(v.Messages)-1]; err != nil || m.State != want || m.Text != "Cancel booking X1" {
				t.Errorf("message %+v, %v; want %s", m, err, want)
			}
		}
		state("sending")
		w.send(b, owner(), agent.SendRequest{Message: "Show", Conversation: first.Conversation}, agent.StatusBlocked, agent.ReasonBusy)
		time.Sleep(3 * time.Minute)
		w.send(b, w.person(), agent.SendRequest{Message: "Show", Conversation: first.Conversation}, agent.StatusBlocked, agent.ReasonUnresolved)
		state("outcome_unknown")
		if v, _ := b.Conversation(t.Context(), owner(), first.Conversation); v.Reason != agent.ReasonInterrupted || v.State != "outcome_unknown" {
			t.Errorf("conversation %+v", v)
		}
		if len(w.biz.sent()) != turns {
			t.Error("it was sent again")
		}
	})
}

// RS-1, RS-3: the message of a process that is proven dead is of unknown outcome
// at once. Where nothing proves it, for want of locks, the lease's time counts, and
// so it does for a lease that an earlier version took.
func TestKilledWhileSendingIsKnownAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		before func(t *testing.T, w *world)
		after  func(w *world)
		atOnce bool
	}{
		"proven dead": {atOnce: true},
		"no locks": {before: func(t *testing.T, w *world) {
			if err := os.WriteFile(filepath.Join(w.dir, "run"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		"an earlier version's": {after: func(w *world) {
			w.edit(`UPDATE messages SET lease_owner = 'run-abc/turn-abc' WHERE lease_owner <> ''`)
			w.edit(`UPDATE conversations SET lease_owner = 'run-abc/turn-abc' WHERE lease_owner <> ''`)
		}},
		"a lock file that is gone": {after: func(w *world) {
			w.edit(`UPDATE messages SET lease_owner = 'live-abc/turn-abc' WHERE lease_owner <> ''`)
			w.edit(`UPDATE conversations SET lease_owner = 'live-abc/turn-abc' WHERE lease_owner <> ''`)
		}, atOnce: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if c.before != nil {
					c.before(t, w)
				}
				first := w.send(w.enrolled(), owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				req := agent.SendRequest{Business: cardURL, Message: "Cancel booking X1", Conversation: first.Conversation}
				w.crashDuring(func(a *agent.Agent) { _, _ = a.Send(ctx, w.person(), req) }).Close()
				if c.after != nil {
					c.after(w)
				}
				turns := len(w.biz.sent())
				b := w.open()
				reason := agent.ReasonBusy
				if c.atOnce {
					reason = agent.ReasonUnresolved
				}
				w.send(b, w.person(), req, agent.StatusBlocked, reason)
				v, err := b.Conversation(t.Context(), owner(), first.Conversation)
				if m := v.Messages[len(v.Messages)-1]; err != nil || (m.State == "outcome_unknown" && m.Reason == agent.ReasonInterrupted) != c.atOnce {
					t.Errorf("message %+v, %v", m, err)
				}
				time.Sleep(3 * time.Minute)
				w.send(b, w.person(), req, agent.StatusBlocked, agent.ReasonUnresolved)
				if len(w.biz.sent()) != turns {
					t.Error("it was sent again")
				}
			})
		})
	}
}

// RS-3: a turn that ended with its process, before anything was sent, leaves a
// conversation that can be used, and none where nothing was said.
func TestKilledBeforeSending(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.send(w.enrolled(), owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		hold := make(chan struct{})
		t.Cleanup(func() { close(hold) })
		asked := w.person()
		asked.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { <-hold; return false, nil }
		for _, id := range []string{"", first.Conversation} {
			a := w.open()
			go func() {
				_, _ = a.Send(context.Background(), asked, agent.SendRequest{Business: cardURL, Message: "Cancel booking X1", Conversation: id})
			}()
			synctest.Wait() // it asks
			a.Close()
		}
		b := w.open()
		list, err := b.Conversations(t.Context(), owner())
		if err != nil || len(list) != 2 {
			t.Errorf("%+v, %v", list, err)
		}
		for _, v := range list {
			if v.State != "cancelled" || v.Reason != agent.ReasonNeverSent {
				t.Errorf("%+v", v)
			}
			w.send(b, w.person(), agent.SendRequest{Message: "Cancel booking X1", Conversation: v.ID}, agent.StatusReplied, "")
		}
	})
}

// RS-3, CV-2: an owner who takes longer to decide than a lease lasts is not dead
// to another program that looks meanwhile.
func TestASlowDecisionIsWaitedFor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.enrolled(), w.open()
		slow := w.person()
		slow.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
			time.Sleep(10 * time.Minute)
			if list, err := b.Conversations(t.Context(), owner()); err != nil || len(list) != 1 || list[0].State != "awaiting_local_authority" {
				t.Errorf("%+v, %v", list, err)
			}
			return true, nil
		}
		w.send(a, slow, agent.SendRequest{Message: "Cancel booking X1"}, agent.StatusReplied, "")
	})
}

// RS-4, DA-10: a pending sign-in that cannot be resumed is settled with its
// reason, and its codes are gone, when an agent starts and wherever sign-ins are
// listed, though nobody waits for it. One that can be resumed is (DA-17).
func TestPendingSignInsAreSettled(t *testing.T) {
	for name, c := range map[string]struct {
		change        func(t *testing.T, w *world, a *agent.Agent)
		state, reason string
	}{
		"its time is over": {func(*testing.T, *world, *agent.Agent) { time.Sleep(10 * time.Minute) }, "expired", agent.ReasonConsentExpired},
		"another card": {func(t *testing.T, w *world, a *agent.Agent) {
			w.biz.set(func(b *business) {
				b.metadata["issuer"] = oauthBase + "/other"
			})
			discover(t, a)
		}, "failed", agent.ReasonCardChanged},
		"an unsupported card": {func(t *testing.T, w *world, a *agent.Agent) {
			w.biz.set(func(b *business) { delete(b.card, "securityRequirements") })
			discover(t, a)
		}, "failed", agent.ReasonCardChanged},
		"another subject": {func(t *testing.T, w *world, a *agent.Agent) {
			w.edit(`UPDATE authorizations SET data = CAST(replace(CAST(data AS TEXT), '"Binding":"', '"Binding":"x') AS BLOB)`)
		}, "failed", agent.ReasonSubjectChanged},
		"nothing": {func(*testing.T, *world, *agent.Agent) { time.Sleep(9 * time.Minute) }, "pending", ""},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := newWorld(t)
					a := w.enrolled()
					r, err := a.Authorize(t.Context(), owner(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
					if err != nil || r.Reason != agent.ReasonSignInPending {
						t.Fatalf("%+v, %v", r, err)
					}
					c.change(t, w, a)
					if restart {
						a.Close()
						a = w.open()
					} else if _, err := a.Authorizations(t.Context(), owner()); err != nil {
						t.Error(err)
					}
					codes, _ := secrets(t, w.dir)
					if (codes == 1) != (c.state == "pending") {
						t.Errorf("%d codes are kept", codes)
					}
					if s, err := a.Status(t.Context(), owner()); err != nil || (s.Counts.PendingAuthorizations == 1) != (c.state == "pending") {
						t.Errorf("%+v, %v", s.Counts, err)
					}
					list, err := a.Authorizations(t.Context(), owner())
					if err != nil || len(list) != 1 || list[0].State != c.state || list[0].Reason != c.reason || list[0].Settled.IsZero() != (c.state == "pending") {
						t.Errorf("%+v, %v", list, err)
					}
					if n := len(w.calls(egress.Token)); n != 0 {
						t.Errorf("%d polls", n)
					}
					r, err = a.WaitAuthorization(t.Context(), w.person(), list[0].ID)
					switch {
					case err != nil:
						t.Error(err)
					case c.state == "pending" && r.Status != agent.StatusDone, c.state != "pending" && r.Reason != c.reason:
						t.Errorf("waited for: %+v", r)
					}
				})
			})
		}
	}
}

func discover(t *testing.T, a *agent.Agent) {
	t.Helper()
	req := agent.ParseBusiness(cardURL)
	req.Refresh = true
	if _, err := a.Discover(t.Context(), owner(), req); err != nil {
		t.Error(err)
	}
}

// RS-2: killed after it was written down and before it was sent: never sent.
func TestKilledWhilePrepared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		r := w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		w.edit(`UPDATE messages SET state = 'prepared', lease_owner = 'gone', lease_until = 1`)
		v, err := w.open().Conversation(t.Context(), owner(), r.Conversation)
		if err != nil || v.Messages[0].State != "cancelled" || v.Messages[0].Reason != agent.ReasonNeverSent {
			t.Errorf("got %+v, %v", v, err)
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel it", Conversation: r.Conversation}, agent.StatusReplied, "")
	})
}

// CV-2: the exact message is on disk before it is on the wire.
func TestJournalBeforeWire(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		b := w.open()
		checked := 0
		w.biz.answer = func(u turn) (int, any) {
			list, err := b.Conversations(t.Context(), owner())
			if err != nil || len(list) != 1 {
				t.Errorf("%+v, %v", list, err)
				return 0, nil
			}
			v, err := b.Conversation(t.Context(), owner(), list[0].ID)
			m := v.Messages[len(v.Messages)-1]
			if err != nil || m.State != "sending" || m.MessageID != u.id || m.Text != u.text || len(m.Digest) != 64 || v.State != "sending" {
				t.Errorf("journal %+v, %v", m, err)
			}
			checked++
			return 0, nil
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel booking X1"}, agent.StatusReplied, "")
		if checked != 2 {
			t.Errorf("%d looks", checked)
		}
	})
}

// Every duration of the rules scales.
func TestParamsScaled(t *testing.T) {
	full, scaled := reflect.ValueOf(agent.Defaults()), reflect.ValueOf(agent.Defaults().Scaled(10))
	for i := range full.NumField() {
		name, a, b := full.Type().Field(i).Name, full.Field(i), scaled.Field(i)
		if a.Kind() == reflect.Slice {
			for j := range a.Len() {
				if a.Index(j).Int() != 10*b.Index(j).Int() {
					t.Errorf("%s[%d]: %v and %v", name, j, a.Index(j), b.Index(j))
				}
			}
			continue
		}
		if a.Int() != 10*b.Int() || a.Int() == 0 {
			t.Errorf("%s: %v and %v", name, a, b)
		}
	}
	if d := agent.Defaults(); d.Scaled(1).PollMin != d.PollMin {
		t.Error("a scale of 1 changes something")
	}
}
