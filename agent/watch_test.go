package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// watched is what a watcher was told.
type watched struct {
	mu      sync.Mutex
	changes []agent.Change
}

func (w *watched) all() []agent.Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.changes)
}

func (w *watched) of(kind agent.Kind, id, state string) (out []agent.Change) {
	for _, c := range w.all() {
		if c.Kind == kind && (id == "" || c.ID == id) && (state == "" || c.State == state) {
			out = append(out, c)
		}
	}
	return out
}

// watch watches from now on until the test ends.
func (w *world) watch(a *agent.Agent, c agent.Caller) *watched {
	w.t.Helper()
	got := &watched{}
	ctx, cancel := context.WithCancel(w.t.Context())
	began, ended := make(chan bool), make(chan error, 1)
	go func() {
		ended <- a.Watch(ctx, c, func(ch agent.Change) error {
			if ch.Kind == agent.KindWatching {
				close(began)
				return nil
			}
			got.mu.Lock()
			defer got.mu.Unlock()
			got.changes = append(got.changes, ch)
			return nil
		})
	}()
	<-began
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Errorf("watch: %v", err)
		}
	})
	return got
}

// What changes is told after it is on disk, in that order, with who did it; the
// renewal of leases and the times of polls are not, nor a sign-in that only starts.
func TestWatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		told := w.watch(a, owner())
		// A watcher that reads anew at each change finds what it was told of.
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- a.Watch(ctx, owner(), func(ch agent.Change) error {
				if ch.Kind != agent.KindAuthorization {
					return nil
				}
				v, err := a.Authorization(t.Context(), owner(), ch.ID)
				if err != nil || v.State != ch.State && ch.State != "pending" {
					t.Errorf("%+v: %+v, %v", ch, v, err)
				}
				return nil
			})
		}()
		synctest.Wait()
		service := owner()
		service.Actor = "service"
		w.tend(a, agent.Tending{Caller: service})
		c := assistant("t-1")
		c.Actor = "assistant Acme"
		id := w.begin(a, c, "trips:read").Authorization.ID
		time.Sleep(5 * time.Minute)
		w.biz.allow("trips:read")
		time.Sleep(6 * time.Second)
		synctest.Wait()
		signIn := told.of(agent.KindAuthorization, "", "")
		if len(signIn) != 2 || signIn[0].State != "pending" || signIn[0].Actor != c.Actor || signIn[1].State != "granted" || signIn[1].Actor != "service" || signIn[1].ID != id || signIn[1].Deleted {
			t.Errorf("%+v", signIn)
		}
		grants := told.of(agent.KindGrant, "", "")
		if len(grants) != 1 || grants[0].State != "active" || grants[0].Business != signIn[0].Business || grants[0].Business == "" {
			t.Errorf("%+v", grants)
		}
		before := len(told.all())
		r := w.send(a, c, agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusReplied, "")
		synctest.Wait()
		var states []string
		for _, ch := range told.all()[before:] {
			if ch.Kind == agent.KindMessage && ch.Conversation == r.Conversation && ch.ID == r.Message {
				states = append(states, ch.State)
			}
			if ch.Actor != c.Actor || ch.Time.IsZero() {
				t.Errorf("by nobody: %+v", ch)
			}
		}
		if states = slices.Compact(states); !slices.Equal(states, []string{"prepared", "sending", "replied"}) {
			t.Errorf("the message's states: %q", states)
		}
		if len(told.of(agent.KindReceipt, r.Evidence.Receipt, "verified")) == 0 {
			t.Error("no receipt is told of")
		}
		for _, ch := range told.all() { // only the verdict that stands is told
			if ch.State == "unverifiable" || ch.State == "evidence_invalid" || ch.Kind == agent.KindBlock && ch.State == "open" || ch.Kind == agent.KindProvider {
				t.Errorf("told of %+v", ch)
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// ID-7: a watcher is told of its own principal's records and of the settings, which
// are nobody's.
func TestWatchIsOnesOwn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		bob := owner()
		bob.Principal = "bob"
		bob.Actor = "bob's terminal"
		alices, bobs := w.watch(a, owner()), w.watch(a, bob)
		if _, err := a.AddProvider(t.Context(), bob, "https://other.example.com", "aud-other", ""); err != nil {
			t.Fatal(err)
		}
		if err := a.RemoveProvider(t.Context(), bob, "https://other.example.com"); err != nil {
			t.Fatal(err)
		}
		if err := a.SetPreference(t.Context(), bob, agent.RequirePACT); err != nil {
			t.Fatal(err)
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		synctest.Wait()
		if n := len(bobs.of(agent.KindMessage, "", "")) + len(bobs.of(agent.KindConversation, "", "")) + len(bobs.of(agent.KindBusiness, "", "")); n != 0 {
			t.Errorf("bob is told of %+v", bobs.all())
		}
		if p := bobs.of(agent.KindProvider, "", ""); len(p) != 2 || p[0].Deleted || !p[1].Deleted || p[0].ID != "https://other.example.com" || p[1].ID != p[0].ID || p[1].State != "" || p[0].Actor != bob.Actor || p[1].Actor != bob.Actor {
			t.Errorf("%+v", p)
		}
		for _, p := range alices.of(agent.KindProvider, "", "") {
			if p.Actor != "owner" {
				t.Errorf("alice is told of %+v", p)
			}
		}
		for _, told := range []*watched{alices, bobs} {
			if s := told.of(agent.KindSettings, "", ""); len(s) != 1 || s[0].Actor != bob.Actor {
				t.Errorf("settings: %+v", s)
			}
		}
	})
}

// All watchers are told the same in the same order, whoever changes what at once.
func TestWatchInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		one, other := w.watch(a, owner()), w.watch(a, owner())
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				origin := fmt.Sprintf("https://p%d.example.com", i)
				for n := range 6 {
					c := owner()
					c.Actor = fmt.Sprint(n)
					if _, err := a.AddProvider(t.Context(), c, origin, fmt.Sprintf("aud-%d-%d", i, n), ""); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if !slices.Equal(one.all(), other.all()) {
			t.Errorf("%+v\n%+v", one.all(), other.all())
		}
		next := map[string]int{}
		for _, ch := range one.of(agent.KindProvider, "", "") {
			if ch.Actor != fmt.Sprint(next[ch.ID]) {
				t.Errorf("%s: change %s after %d", ch.ID, ch.Actor, next[ch.ID])
			}
			next[ch.ID]++
		}
		if len(next) != 6 {
			t.Errorf("%+v", next)
		}
	})
}

// A watch ends with what its callback says, and by nothing else than its context.
func TestWatchEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		enough := errors.New("enough")
		if err := a.Watch(t.Context(), owner(), func(agent.Change) error { return enough }); !errors.Is(err, enough) {
			t.Error(err)
		}
		ended := make(chan error)
		go func() {
			ended <- a.Watch(t.Context(), owner(), func(c agent.Change) error {
				if c.Kind == agent.KindWatching {
					return nil
				}
				return enough
			})
		}()
		synctest.Wait()
		w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		if err := <-ended; !errors.Is(err, enough) {
			t.Error(err)
		}
		if err := a.Watch(t.Context(), agent.Caller{}, func(agent.Change) error { t.Error("told"); return nil }); err == nil {
			t.Error("nobody watches")
		}
	})
}
