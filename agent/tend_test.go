package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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

// assistant is a task of the owner's that can ask nobody now, under the owner's own
// network profile.
func assistant(id string) agent.Caller {
	t := &agent.Task{ID: id, Source: agent.SourceOwner, Mode: agent.ModeAct, Human: agent.HumanOutOfBand}
	return agent.TaskCaller(alice, t, agent.DefaultNetwork())
}

// tend tends until stop, which waits for its end.
func (w *world) tend(a *agent.Agent, t agent.Tending) (stop func()) {
	if t.Caller.Principal == "" {
		t.Caller = owner()
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Tend(ctx, t) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// state is how a sign-in is.
func (w *world) state(a *agent.Agent, id string) agent.AuthorizationView {
	w.t.Helper()
	v, err := a.Authorization(w.t.Context(), owner(), id)
	if err != nil {
		w.t.Error(err)
	}
	return v
}

// RS-4, DA-17: a sign-in outlives the program that began it and the one that tended
// it: the next one goes on with the same code at the same interval, though nobody
// waits for it.
func TestTendAfterARestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		stop := w.tend(a, agent.Tending{})
		id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
		time.Sleep(21 * time.Second)
		if n := len(w.polls()); n != 4 {
			t.Errorf("%d polls", n)
		}
		stop()
		a.Close()
		time.Sleep(time.Minute)
		if n := len(w.polls()); n != 4 {
			t.Errorf("%d polls when nobody runs", n)
		}
		b := w.open()
		if v := w.state(b, id); v.State != "pending" {
			t.Errorf("%+v", v)
		}
		w.tend(b, agent.Tending{})
		time.Sleep(10 * time.Second)
		w.biz.allow("trips:read")
		time.Sleep(5 * time.Second)
		synctest.Wait() // the poll is due now
		if v := w.state(b, id); v.State != "granted" || v.Task != "t-1" || v.Network != "" || v.SettledBy != "" {
			t.Errorf("%+v", v)
		}
		everyInterval(t, w)
		if n := len(w.calls(egress.DeviceAuthorization)); n != 1 {
			t.Errorf("%d codes", n)
		}
		w.send(b, assistant("t-1"), agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusReplied, "")
	})
}

// DA-3, DA-4: what this program begins and what others begin is polled when it is
// due, many at once; one that an owner waits for is left to them.
func TestTendMany(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.biz.device["interval"] = 2
		a := w.enrolled()
		b := w.open()
		w.tend(a, agent.Tending{})
		w.tend(w.open(), agent.Tending{}) // a second one harms nobody
		var began []time.Time
		for i := range 12 {
			time.Sleep(300 * time.Millisecond)
			w.begin([]*agent.Agent{a, b}[i%2], assistant(fmt.Sprint("t-", i)), "trips:read")
			began = append(began, time.Now())
		}
		own := make(chan agent.Result)
		go func() {
			r, err := b.Authorize(t.Context(), patient(w), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
			if err != nil {
				t.Error(err)
			}
			own <- r
		}()
		time.Sleep(2100 * time.Millisecond)
		var polled []time.Time
		for _, p := range w.polls() {
			polled = append(polled, p.at)
		}
		for _, at := range began {
			if !slices.ContainsFunc(polled, func(p time.Time) bool { return p.Equal(at.Add(2 * time.Second)) }) {
				t.Errorf("what began at %v is polled at %v", at, polled)
			}
		}
		time.Sleep(28 * time.Second)
		w.biz.allow("trips:read")
		if r := <-own; r.Status != agent.StatusDone {
			t.Errorf("%+v", r)
		}
		time.Sleep(2 * time.Second)
		list, err := a.Authorizations(t.Context(), owner())
		for _, v := range list {
			if v.State != "granted" {
				t.Errorf("%+v", v)
			}
		}
		// 13 of them, each every 2 s in some 36 s.
		if polls := len(w.polls()); err != nil || len(list) != 13 || polls > 13*18 {
			t.Errorf("%d sign-ins, %d polls, %v", len(list), polls, err)
		}
	})
}

// DA-3: what another program begins is polled when it is due, though nothing tells
// of it.
func TestTendAnothersSignIn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.biz.device["interval"] = 2
		a, b := w.enrolled(), w.open()
		w.tend(a, agent.Tending{})
		time.Sleep(700 * time.Millisecond)
		w.begin(b, assistant("t-1"), "trips:read")
		began := time.Now()
		time.Sleep(2100 * time.Millisecond)
		if p := w.polls(); len(p) != 1 || p[0].at.Sub(began) != 2*time.Second {
			t.Errorf("%d polls after %v", len(p), time.Since(began))
		}
	})
}

// RS-4, DA-10, DA-16: what a sign-in was begun for is asked anew when it is resumed,
// each thing of it; what may not go on ends with its reason, unpolled, and whoever
// watches is told.
func TestTendAsksAnew(t *testing.T) {
	for name, c := range map[string]struct {
		change        func(t *testing.T, w *world)
		waiting       bool
		state, reason string
	}{
		"nothing":         {nil, true, "granted", ""},
		"unexpired":       {func(*testing.T, *world) { time.Sleep(10 * time.Minute) }, true, "expired", agent.ReasonConsentExpired},
		"switched off":    {func(_ *testing.T, w *world) { w.config.DisabledByEnv = true }, true, "failed", agent.ReasonDisabledByEnv},
		"off by admin":    {func(_ *testing.T, w *world) { w.config.Policy = policyOf(agent.Policy{}) }, true, "failed", agent.ReasonDisabledByAdmin},
		"off in settings": {func(t *testing.T, w *world) { w.switchOff() }, true, "failed", agent.ReasonDisabledInSettings},
		"same owner": {func(_ *testing.T, w *world) {
			w.edit(`UPDATE authorizations SET principal = 'bob'; UPDATE businesses SET principal = 'bob'`)
		}, true, "", ""},
		"task waits": {nil, false, "cancelled", agent.ReasonTaskNotWaiting},
		"business":   {func(t *testing.T, w *world) { unsupported(t, w) }, true, "failed", agent.ReasonCardChanged},
		"card": {func(_ *testing.T, w *world) { // DI-6
			w.edit(`UPDATE businesses SET data = CAST(json_set(data, '$.CardRevision', 7) AS BLOB)`)
		}, true, "failed", agent.ReasonCardChanged},
		"subject":         {func(_ *testing.T, w *world) { w.signer.set(func(s *signerStandIn) { s.subject = "other" }) }, true, "failed", agent.ReasonSubjectChanged},
		"signer disabled": {func(_ *testing.T, w *world) { w.signer.set(func(s *signerStandIn) { s.disabled = true }) }, true, "failed", agent.ReasonSignerDisabled},
		"provider":        {func(_ *testing.T, w *world) { w.signer.set(func(s *signerStandIn) { clear(s.audiences) }) }, true, "failed", agent.ReasonNoAudience},
		"provider blocked": {func(_ *testing.T, w *world) {
			w.config.Policy = policyOf(agent.Policy{Enabled: true, BlockedProviders: []string{provider}})
		}, true, "failed", agent.ReasonBlockedByAdmin},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
				a.Close()
				if c.change != nil {
					c.change(t, w)
				}
				w.biz.allow("trips:read")
				b := w.open()
				told := w.watch(b, owner())
				w.tend(b, agent.Tending{Waiting: func(_ context.Context, task string) bool { return c.waiting || task != "t-1" }})
				time.Sleep(11 * time.Second)
				polls := len(w.polls())
				if (polls == 1) != (c.state == "granted") || polls > 1 {
					t.Errorf("%d polls", polls)
				}
				if c.state == "" { // another's is left alone
					bob := owner()
					bob.Principal = "bob"
					if v, err := b.Authorization(t.Context(), bob, id); err != nil || v.State != "pending" {
						t.Errorf("%+v, %v", v, err)
					}
					return
				}
				if v := w.state(b, id); v.State != c.state || v.Reason != c.reason || v.Settled.IsZero() {
					t.Errorf("%+v", v)
				}
				codes, _ := secrets(t, w.dir)
				if codes != 0 {
					t.Errorf("%d codes are kept", codes)
				}
				// One that cannot go on for what is on disk ends as the program starts.
				atOpen := c.reason == agent.ReasonConsentExpired || name == "business" || name == "card"
				if n := len(told.of("authorizations", id, c.state)); n != 1 && !atOpen {
					t.Errorf("told %+v", told.all())
				}
			})
		})
	}
}

func policyOf(p agent.Policy) func() (agent.Policy, error) {
	return func() (agent.Policy, error) { return p, nil }
}

// switchOff switches PACT off in the settings.
func (w *world) switchOff() {
	w.t.Helper()
	a := w.open()
	if err := a.SetEnabled(w.t.Context(), owner(), false); err != nil {
		w.t.Error(err)
	}
	a.Close()
}

// unsupported makes the business's card one that is not supported.
func unsupported(t *testing.T, w *world) {
	t.Helper()
	a := w.open()
	w.biz.set(func(b *business) { delete(b.card, "securityRequirements") })
	discover(t, a)
	a.Close()
}

// DA-9, PO-7: and it is asked before each poll, not only where it is resumed.
func TestTendAsksBeforeEachPoll(t *testing.T) {
	for name, c := range map[string]struct {
		change        func(w *world, waits *atomic.Bool)
		state, reason string
	}{
		"task gone on":    {func(_ *world, waits *atomic.Bool) { waits.Store(false) }, "cancelled", agent.ReasonTaskNotWaiting},
		"switched off":    {func(w *world, _ *atomic.Bool) { w.switchOff() }, "failed", agent.ReasonDisabledInSettings},
		"another subject": {func(w *world, _ *atomic.Bool) { w.signer.set(func(s *signerStandIn) { s.subject = "other" }) }, "failed", agent.ReasonSubjectChanged},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				var waits atomic.Bool
				waits.Store(true)
				w.tend(a, agent.Tending{Waiting: func(context.Context, string) bool { return waits.Load() }})
				id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
				time.Sleep(58 * time.Second) // the next poll asks the signer anew (SG-10)
				c.change(w, &waits)
				polls := len(w.polls())
				w.biz.allow("trips:read")
				time.Sleep(10 * time.Second)
				if v := w.state(a, id); v.State != c.state || v.Reason != c.reason || len(w.polls()) != polls {
					t.Errorf("%+v, %d polls", v, len(w.polls())-polls)
				}
			})
		})
	}
}

// RS-4, RS-5: a sign-in of a task is polled under the task's network profile and no
// other. One whose profile there is no more has failed; a program that knows no
// profiles leaves it to those that do.
func TestTendUnderTheTasksNetwork(t *testing.T) {
	for name, c := range map[string]struct {
		network func(string) *agent.Network
		state   string
	}{
		"unknown here": {nil, "pending"},
		"gone":         {func(string) *agent.Network { return nil }, "failed"},
		"another":      {func(string) *agent.Network { return anywhere("wide") }, "failed"},
		"the default":  {func(string) *agent.Network { return agent.DefaultNetwork() }, "failed"},
		"without name": {func(string) *agent.Network { return anywhere("") }, "failed"},
		"its own": {func(name string) *agent.Network {
			if name != "work" {
				return nil
			}
			return only("work", "provider.example.com", "pa.example.com")
		}, "granted"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				id := w.begin(a, inTask("t-1", "work"), "trips:read").Authorization.ID
				own := w.begin(a, assistant("t-2"), "trips:read").Authorization.ID
				w.biz.allow("trips:read")
				w.tend(a, agent.Tending{Network: c.network})
				time.Sleep(30 * time.Second)
				v, polls := w.state(a, id), len(w.polls())
				if v.State != c.state || v.State == "failed" && v.Reason != agent.ReasonOtherNetwork || polls > 1 != (c.state == "granted") {
					t.Errorf("%+v, %d polls", v, polls)
				}
				if v := w.state(a, own); v.State != "granted" {
					t.Errorf("%+v", v)
				}
			})
		})
	}
}

// DA-6, DA-9: a signer that is away ends nothing while it counts as polls without an
// answer; the sign-in goes on when it is back.
func TestTendWithoutTheSigner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
		a.Close()
		var back atomic.Bool
		w.intercept(signerURL, "", func(rw http.ResponseWriter, _ *http.Request) bool {
			if !back.Load() {
				rw.WriteHeader(http.StatusServiceUnavailable)
			}
			return !back.Load()
		})
		b := w.open()
		w.tend(b, agent.Tending{})
		time.Sleep(30 * time.Second)
		if v := w.state(b, id); v.State != "pending" || len(w.polls()) != 0 {
			t.Errorf("%+v", v)
		}
		back.Store(true)
		w.biz.allow("trips:read")
		time.Sleep(2 * time.Minute)
		if v := w.state(b, id); v.State != "granted" {
			t.Errorf("%+v", v)
		}
	})
}

// DA-4, DA-14, DA-17: while a sign-in of a task is tended, its owner sees the link
// and waits for the end. That they leave changes nothing; that they give up ends it,
// and who did is kept.
func TestOwnerAttachesWhileTended(t *testing.T) {
	for name, same := range map[string]bool{"this program": true, "another": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				b := a
				if !same {
					b = w.open()
				}
				w.tend(a, agent.Tending{})
				id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
				time.Sleep(6 * time.Second)
				c := patient(w)
				c.Actor = "terminal"
				var links []string
				c.SignIn = func(_ context.Context, s agent.SignIn) error {
					links = append(links, s.Link.Reveal())
					return nil
				}
				var told []agent.Event
				c.Progress = func(e agent.Event) { told = append(told, e) }
				// The terminal is closed.
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				r, err := b.WaitAuthorization(ctx, c, id)
				if err != nil || r.Status != agent.StatusNeedsUserAction || r.Authorization.State != "pending" || len(links) != 1 || !strings.Contains(links[0], "ABCD") {
					t.Errorf("%+v, %v, %d links", r, err, len(links))
				}
				if len(told) != 2 || told[0].Kind != agent.EventConsent || told[1].Kind != agent.EventElsewhere {
					t.Errorf("told %+v", told)
				}
				// Another task is not let in, and its own sees the end too.
				w.wait(b, assistant("t-other"), id, agent.StatusBlocked, agent.ReasonOtherTask)
				time.AfterFunc(13*time.Second, func() { w.biz.allow("trips:read") })
				done := make(chan bool)
				go func() { w.wait(b, assistant("t-1"), id, agent.StatusDone, ""); done <- true }()
				if r := w.wait(b, c, id, agent.StatusDone, ""); r.Grant == nil || r.Authorization.State != "granted" {
					t.Errorf("%+v", r)
				}
				<-done
				everyInterval(t, w)
				// Given up.
				id = w.begin(a, assistant("t-1"), "trips:history").Authorization.ID
				time.Sleep(6 * time.Second)
				aborted, abort := context.WithCancelCause(t.Context())
				time.AfterFunc(7*time.Second, func() { abort(agent.ErrAborted) })
				r, err = b.WaitAuthorization(aborted, c, id)
				if v := w.state(a, id); err != nil || r.Status != agent.StatusCancelled || v.Reason != agent.ReasonUserCancelled || v.SettledBy != "terminal" || v.Actor != string(agent.OriginOwner) {
					t.Errorf("%+v, %v; %+v", r, err, v)
				}
				polls := len(w.polls())
				time.Sleep(time.Minute)
				if n := len(w.polls()); n > polls+1 {
					t.Errorf("%d polls of what was given up", n-polls)
				}
			})
		})
	}
}

// RS-4, RS-5: the owner takes over what a task of theirs began and nobody polls; who
// tends goes on where they leave.
func TestOwnerTakesATasksSignInOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		r, err := a.WaitAuthorization(ctx, patient(w), id)
		if err != nil || r.Status != agent.StatusNeedsUserAction || len(w.polls()) != 2 {
			t.Errorf("%+v, %v, %d polls", r, err, len(w.polls()))
		}
		w.tend(a, agent.Tending{})
		time.Sleep(12 * time.Second)
		if n := len(w.polls()); n != 4 {
			t.Errorf("%d polls", n)
		}
		w.wait(a, w.person(), id, agent.StatusDone, "")
		everyInterval(t, w)
		w.send(a, assistant("t-1"), agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusReplied, "")
		if v := w.state(a, id); v.Task != "t-1" || v.Actor != string(agent.OriginOwner) {
			t.Errorf("%+v", v)
		}
	})
}

// DA-4: of those who wait, the next goes on when the one who polls leaves.
func TestTheNextWaiterPolls(t *testing.T) {
	for name, cause := range map[string]error{"left": context.Canceled, "program stops": agent.ErrStopping} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				id := w.begin(a, owner(), "trips:read").Authorization.ID
				ctx, cancel := context.WithCancelCause(t.Context())
				first := make(chan agent.Result)
				go func() {
					r, err := a.WaitAuthorization(ctx, patient(w), id)
					if err != nil {
						t.Error(err)
					}
					first <- r
				}()
				time.Sleep(time.Second)
				rest := make(chan agent.Result)
				for _, b := range []*agent.Agent{a, w.open(), a} {
					go func() { rest <- w.wait(b, patient(w), id, agent.StatusDone, "") }()
				}
				time.Sleep(11 * time.Second)
				cancel(cause)
				if r := <-first; r.Status != agent.StatusNeedsUserAction || r.Authorization.State != "pending" {
					t.Errorf("%+v", r)
				}
				time.Sleep(10 * time.Second)
				if n := len(w.polls()); n != 4 {
					t.Errorf("%d polls", n)
				}
				w.biz.allow("trips:read")
				for range 3 {
					<-rest
				}
				everyInterval(t, w)
			})
		})
	}
}

// CV-2, DA-4: a send whose sign-in others poll holds its turn as long as that takes,
// and goes on by itself.
func TestSendWhileTended(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		first := w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		w.tend(w.open(), agent.Tending{})
		c, elsewhere := w.person(), false
		c.SignIn = func(context.Context, agent.SignIn) error {
			time.Sleep(3 * time.Second) // and who tends is at it
			time.AfterFunc(8*time.Minute, func() { w.biz.allow("trips:read") })
			time.AfterFunc(7*time.Minute, func() {
				w.send(a, owner(), agent.SendRequest{Message: "Show", Conversation: first.Conversation}, agent.StatusBlocked, agent.ReasonBusy)
			})
			return nil
		}
		c.Progress = func(e agent.Event) { elsewhere = elsewhere || e.Kind == agent.EventElsewhere }
		r := w.send(a, c, agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}, Conversation: first.Conversation}, agent.StatusReplied, "")
		if !elsewhere || r.Evidence == nil {
			t.Errorf("elsewhere %v: %+v", elsewhere, r)
		}
		everyInterval(t, w)
	})
}

// DA-14, DA-15, ID-7: to watch is to see how a sign-in ends, and no more: nothing is
// polled or shown, and who leaves, in whatever way, ends nothing.
func TestAwaitAuthorization(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
		gateway := agent.Caller{Principal: alice, Origin: agent.OriginGateway, Network: agent.DefaultNetwork()}
		readers := map[string]agent.Caller{"owner": patient(w), "its task": assistant("t-1"), "another task": assistant("t-2"), "gateway": gateway}
		for name, c := range readers {
			c.SignIn = func(context.Context, agent.SignIn) error { t.Errorf("%s: shown", name); return nil }
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Minute, func() { cancel(agent.ErrAborted) })
			r, err := a.AwaitAuthorization(ctx, c, id)
			if err != nil || r.Status != agent.StatusNeedsUserAction || r.Authorization.State != "pending" || r.Authorization.Settled.IsZero() == false {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
		}
		if n := len(w.polls()); n != 0 {
			t.Errorf("%d polls", n)
		}
		bob := owner()
		bob.Principal = "bob"
		if _, err := a.AwaitAuthorization(t.Context(), bob, id); !errors.Is(err, agent.ErrNotFound) {
			t.Errorf("another principal: %v", err)
		}
		if _, err := a.AwaitAuthorization(t.Context(), owner(), "signin-none"); !errors.Is(err, agent.ErrNotFound) {
			t.Errorf("none: %v", err)
		}
		// All of them see it end, polled by another program.
		ends := make(chan agent.Result)
		for name, c := range readers {
			go func() {
				r, err := a.AwaitAuthorization(t.Context(), c, id)
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				ends <- r
			}()
		}
		stop := w.tend(w.open(), agent.Tending{})
		time.Sleep(10 * time.Second)
		w.biz.allow("trips:read")
		for range readers {
			if r := <-ends; r.Status != agent.StatusDone || r.Grant == nil || r.Authorization.State != "granted" {
				t.Errorf("%+v", r)
			}
		}
		stop()
		// One that nobody polls ends by its time.
		id = w.begin(a, assistant("t-1"), "trips:history").Authorization.ID
		r, err := a.AwaitAuthorization(t.Context(), gateway, id)
		if err != nil || r.Status != agent.StatusExpired || r.Reason != agent.ReasonConsentExpired {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// DA-14, CP-4: the link alone, to the owner alone, only while the sign-in is pending.
func TestShowSignIn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
		s, err := a.ShowSignIn(t.Context(), owner(), id)
		if err != nil || !strings.Contains(s.Link.Reveal(), "ABCD") || s.UserCode.Reveal() != "ABCD-EFGH" || s.Authorization != id || s.LinkOrigin != "https://login.air.example.com" {
			t.Errorf("%+v, %v", s, err)
		}
		if text := fmt.Sprintf("%v %+v %#v %s", s, s, s, marshal(s)); strings.Contains(text, "ABCD") || strings.Contains(text, "dc_") {
			t.Errorf("printed: %s", text)
		}
		for name, c := range map[string]agent.Caller{
			"its task": assistant("t-1"), "another": assistant("t-2"),
			"gateway": {Principal: alice, Origin: agent.OriginGateway, Network: agent.DefaultNetwork()},
		} {
			if s, err := a.ShowSignIn(t.Context(), c, id); agent.ReasonOf(err) != agent.ReasonDelegationRequired || s.Link != "" {
				t.Errorf("%s: %v", name, err)
			}
		}
		wide := owner()
		wide.Network = anywhere("wide")
		if s, err := a.ShowSignIn(t.Context(), wide, id); agent.ReasonOf(err) != agent.ReasonOtherNetwork || s.Link != "" { // RS-5
			t.Errorf("%v", err)
		}
		if _, err := a.ShowSignIn(t.Context(), owner(), "signin-none"); !errors.Is(err, agent.ErrNotFound) {
			t.Errorf("none: %v", err)
		}
		if len(w.polls()) != 0 || w.state(a, id).State != "pending" {
			t.Error("it did more than show")
		}
		if _, err := a.CancelAuthorization(t.Context(), owner(), id); err != nil {
			t.Error(err)
		}
		if s, err := a.ShowSignIn(t.Context(), owner(), id); err == nil || s.Link != "" {
			t.Errorf("of one that is over: %v", err)
		}
	})
}

// DA-10, DA-14: the link of a sign-in that ends while it is looked up is not shown,
// and how it ended is what the waiter is told.
func TestItEndsBeforeItIsShown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.enrolled(), w.open()
		id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
		time.Sleep(61 * time.Second) // the signer's status is asked for anew
		var once sync.Once
		w.around(signerURL, "/pact/status", func(_ http.ResponseWriter, _ *http.Request, next func()) {
			once.Do(func() {
				if _, err := b.CancelAuthorization(t.Context(), owner(), id); err != nil {
					t.Error(err)
				}
			})
			next()
		})
		c := patient(w)
		c.SignIn = func(context.Context, agent.SignIn) error { t.Error("shown"); return nil }
		if r := w.wait(a, c, id, agent.StatusCancelled, agent.ReasonUserCancelled); r.Authorization.State != "cancelled" {
			t.Errorf("%+v", r)
		}
	})
}

// TR-9: the owner's own network profile is a task's if it is said, as it is and by
// nothing that looks like it.
func TestDefaultNetwork(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		show := agent.SendRequest{Message: "Show my trips"}
		w.send(a, assistant("t-1"), show, agent.StatusReplied, "")
		copied := *agent.DefaultNetwork()
		for name, n := range map[string]*agent.Network{"none": nil, "a copy": &copied, "a like": anywhere("")} {
			c := assistant("t-1")
			c.Network = n
			if r := w.send(a, c, show, agent.StatusBlocked, string(egress.PolicyDenied)); len(w.biz.sent()) != 1 {
				t.Errorf("%s: %+v", name, r)
			}
		}
	})
}

// DA-17: to stop waits for a poll under way, and takes down what it brings, for its
// code is spent; what still waits stays.
func TestTendStopsInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		asked := make(chan bool)
		w.around(provider, "/oauth/token", func(_ http.ResponseWriter, _ *http.Request, next func()) {
			asked <- true
			time.Sleep(7 * time.Second)
			next()
		})
		id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
		time.Sleep(2 * time.Second)
		other := w.begin(a, assistant("t-2"), "trips:read").Authorization.ID
		w.biz.allow("trips:read")
		ctx, stop := context.WithCancelCause(t.Context())
		ended := make(chan error)
		go func() { ended <- a.Tend(ctx, agent.Tending{Caller: owner()}) }()
		<-asked
		stop(agent.ErrAborted) // not even so is anything given up
		began := time.Now()
		if err := <-ended; err != nil || time.Since(began) > 8*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if v := w.state(a, id); v.State != "granted" {
			t.Errorf("%+v", v)
		}
		if v := w.state(a, other); v.State != "pending" || v.SettledBy != "" {
			t.Errorf("%+v", v)
		}
	})
}

// ErrDamaged is told and ends nothing: when the store can be read again, what waits
// goes on.
func TestTendOverTrouble(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		var told []string
		c := owner()
		c.Actor = "service"
		c.Progress = func(e agent.Event) {
			if e.Kind == agent.EventTending {
				told = append(told, e.Detail)
			}
		}
		w.tend(a, agent.Tending{Caller: c})
		id := w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if len(told) != 0 {
			t.Errorf("told %q", told)
		}
		w.edit(`UPDATE authorizations SET data = CAST('{"DeviceCode":"dc_secret_device_code"' || CAST(data AS TEXT) AS BLOB)`)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		polls := len(w.polls())
		if n := len(told); n < 2 || n > 40 || !strings.Contains(told[0], "doctor") || strings.Contains(strings.Join(told, " "), "dc_secret") {
			t.Errorf("told %d times %q", n, told)
		}
		w.edit(`UPDATE authorizations SET data = CAST(substr(CAST(data AS TEXT), length('{"DeviceCode":"dc_secret_device_code"') + 1) AS BLOB)`)
		w.biz.allow("trips:read")
		time.Sleep(46 * time.Second) // the lease could not be given back
		if v := w.state(a, id); v.State != "granted" || len(w.polls()) != polls+1 {
			t.Errorf("%+v, %d polls", v, len(w.polls())-polls)
		}
	})
}

// AD-2, ID-7: only the owner's surface tends, and for somebody.
func TestTendRefuses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		for name, c := range map[string]agent.Caller{
			"task": assistant("t-1"), "gateway": {Principal: alice, Origin: agent.OriginGateway}, "nobody": {Origin: agent.OriginOwnerCLI},
		} {
			if err := a.Tend(t.Context(), agent.Tending{Caller: c}); err == nil {
				t.Errorf("%s tends", name)
			}
		}
	})
}

// CP-2: who acts is said in a form that can be kept and shown.
func TestActor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		for _, actor := range []string{strings.Repeat("x", 201), "two\nlines", "\x1b[2J", "\xff", "\u202etxet", "nul\x00"} {
			c := owner()
			c.Actor = actor
			_, err := a.Authorizations(t.Context(), c)
			if err == nil || !strings.Contains(err.Error(), "Actor") || strings.Contains(err.Error(), actor) {
				t.Errorf("%q: %v", actor, err)
			}
		}
		c := assistant("t-1")
		c.Actor = strings.Repeat("é", 100)
		id := w.begin(a, c, "trips:read").Authorization.ID
		if v := w.state(a, id); v.Actor != c.Actor {
			t.Errorf("%+v", v)
		}
		c.Actor = ""
		v, err := a.CancelAuthorization(t.Context(), c, id)
		if err != nil || v.SettledBy != "owner" {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

// AP-2, RS-4: what the owner approved and that waits for the sign-in goes out, once
// and as approved, when the sign-in is granted, also after a restart in the wait.
func TestTendSendsWhatWasApproved(t *testing.T) {
	for name, restart := range map[string]bool{"same program": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				stop := w.tend(a, agent.Tending{})
				req := agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}}
				asked := w.send(a, assistant("t-1"), req, agent.StatusApprovalRequired, agent.ReasonApprovalRequired).Approval
				r, err := a.Decide(t.Context(), owner(), agent.Decision{ID: asked.ID, Approve: true, Digest: asked.Digest})
				if err != nil || r.Status != agent.StatusNeedsUserAction || r.Authorization == nil {
					t.Fatalf("%+v, %v", r, err)
				}
				time.Sleep(12 * time.Second)
				if restart {
					stop()
					a.Close()
					time.Sleep(10 * time.Second)
					a = w.open()
					w.tend(a, agent.Tending{})
				}
				w.biz.allow("trips:cancel")
				time.Sleep(15 * time.Second)
				v, err := a.Approval(t.Context(), owner(), asked.ID)
				if err != nil || v.State != agent.ApprovalSent || v.SentMessage == "" {
					t.Errorf("%+v, %v", v, err)
				}
				n := 0
				for _, u := range w.biz.sent() {
					if u.text == req.Message {
						n++
					}
				}
				if n != 1 {
					t.Errorf("it was sent %d times", n)
				}
				everyInterval(t, w)
			})
		})
	}
}

// CV-16, DA-17: who tends may leave (Leaving): nothing begins any more, and what the owner
// approved and is on its way goes on to its end, unless the program stops.
func TestTendLeaves(t *testing.T) {
	for name, stops := range map[string]bool{"who tends leaves": false, "and the program stops": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				req := agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}}
				reached, answer := make(chan bool), make(chan bool)
				n := 0
				w.around(provider, message, func(_ http.ResponseWriter, r *http.Request, next func()) {
					if n++; n == 2 { // the first is the introduction
						close(reached)
						select {
						case <-answer:
						case <-r.Context().Done():
							panic(http.ErrAbortHandler)
						}
					}
					next()
				})
				asked := w.send(a, assistant("t-1"), req, agent.StatusApprovalRequired, agent.ReasonApprovalRequired).Approval
				if r, err := a.Decide(t.Context(), owner(), agent.Decision{ID: asked.ID, Approve: true, Digest: asked.Digest}); err != nil || r.Authorization == nil {
					t.Fatalf("%+v, %v", r, err)
				}
				stays, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				here, leave := context.WithCancelCause(stays)
				ctx, free := agent.Leaving(stays, here, func(agent.Result) {})
				defer free()
				ended := make(chan error, 1)
				go func() { ended <- a.Tend(ctx, agent.Tending{Caller: owner()}) }()
				w.biz.allow("trips:cancel")
				<-reached
				waits := w.begin(a, assistant("t-2"), "trips:read").Authorization.ID
				polls := len(w.polls())
				leave(agent.ErrStopping)
				time.Sleep(20 * time.Second)
				if len(w.polls()) != polls || w.state(a, waits).State != "pending" {
					t.Errorf("%d polls since", len(w.polls())-polls)
				}
				want := "replied"
				if stops {
					want = "outcome_unknown"
					stop(agent.ErrStopping)
				} else {
					close(answer)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				p, err := a.Approval(t.Context(), owner(), asked.ID)
				if err != nil || p.State != agent.ApprovalSent {
					t.Errorf("%+v, %v", p, err)
				}
				v, err := a.Conversation(t.Context(), owner(), p.Conversation)
				if last := v.Messages[len(v.Messages)-1]; err != nil || last.ID != p.SentMessage || last.State != want {
					t.Errorf("%+v, %v", last, err)
				}
			})
		})
	}
}

// DA-15, CP-4: nothing that is told of a wait holds its secrets.
func TestNoSecretIsTold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		var events []agent.Event
		c := owner()
		c.Progress = func(e agent.Event) { events = append(events, e) }
		told := w.watch(a, owner())
		stop := w.tend(a, agent.Tending{Caller: c})
		w.begin(a, assistant("t-1"), "trips:read")
		time.Sleep(time.Minute)
		w.biz.allow("trips:read")
		time.Sleep(10 * time.Second)
		w.send(a, assistant("t-1"), agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}, agent.StatusReplied, "")
		stop()
		all, err := json.Marshal([]any{told.all(), events})
		if err != nil || len(events) == 0 || len(told.all()) < 5 {
			t.Fatalf("%d events, %d changes, %v", len(events), len(told.all()), err)
		}
		for _, secret := range []string{"ABCD", "dc_secret", "login.air", "eyJ", "Show my trips", w.biz.refresh} {
			if strings.Contains(string(all), secret) {
				t.Errorf("%q is told: %s", secret, all)
			}
		}
	})
}
