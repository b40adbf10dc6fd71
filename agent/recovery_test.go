package agent_test

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

// crash stops an agent's world at a moment: its network never answers again and
// its store is no longer written, as if the process were gone.
func (w *world) crashDuring(send func(*agent.Agent)) {
	w.t.Helper()
	a := w.open()
	hold := make(chan struct{})
	w.biz.set(func(b *business) { b.hold = hold })
	go send(a)
	synctest.Wait() // it hangs on the wire
	w.biz.set(func(b *business) { b.hold = nil })
	w.t.Cleanup(func() { close(hold) })
}

// RS-1, RS-3, CV-4: killed while sending: never sent again, of unknown outcome
// once the lease is over, and the conversation is free then.
func TestKilledWhileSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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

// RS-2: killed after it was written down and before it was sent: never sent.
func TestKilledWhilePrepared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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
