package agent_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

var cancelTrip = agent.SendRequest{Message: "Cancel booking X1", Effect: "change", Scopes: []string{"trips:cancel"}}

// changes counts the changes that reached the business.
func (w *world) changes() (n int) {
	for _, u := range w.biz.sent() {
		if strings.HasPrefix(u.text, "Cancel") {
			n++
		}
	}
	return n
}

// CV-4, AP-3: a change that meets another one in its last moment, after its own introduction,
// is not sent, and so told: it stays approved, and is sent once the other has ended.
func TestHeldBackInTheLastMoment(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		first := w.ask(a, inAssistant("a"), cancelX1)
		second := w.ask(a, inAssistant("a"), agent.SendRequest{Message: "Cancel booking X2", Effect: "change"})
		var n atomic.Int64
		w.around(provider, message, func(_ http.ResponseWriter, _ *http.Request, next func()) {
			switch n.Add(1) {
			case 1: // the introduction of the second
				time.Sleep(10 * time.Second)
			case 3: // the first change
				time.Sleep(30 * time.Second)
			}
			next()
		})
		var both sync.WaitGroup
		both.Go(func() { w.decide(a, ops(), second, true, agent.StatusBlocked, agent.ReasonBusy) })
		time.Sleep(2 * time.Second)
		both.Go(func() { w.decide(a, ops(), first, true, agent.StatusReplied, "") })
		both.Wait()
		w.approval(a, second.ID, agent.ApprovalApproved)
		w.want(`SELECT state FROM messages WHERE data ->> 'Text' = 'Cancel booking X2'`, "failed")
		w.tend(a, agent.Tending{})
		time.Sleep(5 * time.Minute)
		w.approval(a, second.ID, agent.ApprovalSent)
		if n := w.changes(); n != 2 {
			t.Errorf("%d changes", n)
		}
	})
}

// CV-4, RS-1, CV-12: a change whose sender was killed is not sent again in a
// new conversation, before its lease ends or after. Inspections pass until then.
func TestKilledChangeIsNotRepeatedElsewhere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.send(w.enrolled(), owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		w.crashDuring(func(a *agent.Agent) {
			_, _ = a.Send(ctx, w.person(), agent.SendRequest{Business: cardURL, Message: "Cancel booking X1", Conversation: first.Conversation})
		})
		time.Sleep(10 * time.Second)
		b := w.open()
		asked := w.person()
		asked.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
			t.Error("the owner is asked in vain")
			return true, nil
		}
		w.send(b, asked, agent.SendRequest{Message: "Cancel booking X1"}, agent.StatusBlocked, agent.ReasonBusy)
		w.send(b, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		time.Sleep(4 * time.Minute)
		if s, err := b.Status(t.Context(), owner()); err != nil || s.Counts.OutcomeUnknown != 1 {
			t.Errorf("status %+v, %v", s.Counts, err)
		}
		r := w.send(b, asked, agent.SendRequest{Message: "Cancel booking X1"}, agent.StatusBlocked, agent.ReasonUnresolved)
		if !strings.Contains(r.Detail, "pactctl reconcile "+first.Conversation) {
			t.Errorf("detail %q", r.Detail)
		}
		if n := w.changes(); n != 1 {
			t.Errorf("%d changes on the wire", n)
		}
	})
}

// CV-4, EV-6: what happened while the owner was asked holds the change back.
func TestHeldBackWhileAsked(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(b *business)
		inner   agent.Status
		reason  string // of the inner, then of the outer
		outer   string
	}{
		"a change of unknown outcome": {func(b *business) {
			b.answer = func(u turn) (int, any) {
				if u.text == "Cancel booking A" {
					return 200, nil
				}
				return 0, nil
			}
		}, agent.StatusUnknown, "network", agent.ReasonUnresolved},
		"missing evidence": {func(b *business) {
			b.receipt = func(_, e map[string]any) { e["none"] = true }
		}, agent.StatusReplied, "", agent.ReasonEvidenceReview},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 50*time.Minute, "trips:cancel")
				w.biz.set(c.prepare)
				outer := w.person()
				outer.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
					w.send(a, w.person(), agent.SendRequest{Message: "Cancel booking A", Scopes: []string{"trips:cancel"}}, c.inner, c.reason)
					return true, nil
				}
				w.send(a, outer, agent.SendRequest{Message: "Cancel booking B", Scopes: []string{"trips:cancel"}}, agent.StatusBlocked, c.outer)
				if n := w.changes(); n != 1 {
					t.Errorf("%d changes on the wire", n)
				}
			})
		})
	}
}

// CV-4: two changes at once: one is sent.
func TestOneChangeAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		other := w.open()
		w.biz.answer = func(u turn) (int, any) {
			if u.text == "Cancel booking A" {
				return 429, http.Header{"Retry-After": {"60"}}
			}
			return 0, nil
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = a.Send(t.Context(), w.person(), agent.SendRequest{Business: cardURL, Message: "Cancel booking A"})
		}()
		time.Sleep(10 * time.Second)
		w.send(other, w.person(), agent.SendRequest{Message: "Cancel booking B"}, agent.StatusBlocked, agent.ReasonBusy)
		<-done
		w.send(other, w.person(), agent.SendRequest{Message: "Cancel booking B"}, agent.StatusReplied, "")
	})
}

// CV-4: the interface that a message went to counts, also when the card by which
// it was sent is not supported any more.
func TestHeldBackByEachWayToTheInterface(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		other := iface + "/.well-known/agent-card.json"
		w.biz.answer = func(u turn) (int, any) {
			if strings.HasPrefix(u.text, "Cancel") {
				return 200, nil
			}
			return 0, nil
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel A"}, agent.StatusUnknown, "network")
		w.send(a, w.person(), agent.SendRequest{Business: other, Message: "Cancel A"}, agent.StatusBlocked, agent.ReasonUnresolved)
		w.mu.Lock()
		w.hosts["https://air.example.com"] = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			respond(rw, 200, map[string]any{"name": "Air"})
		})
		w.mu.Unlock()
		if v, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL, Refresh: true}); err != nil || v.Supported {
			t.Fatalf("%+v, %v", v, err)
		}
		w.send(a, w.person(), agent.SendRequest{Business: other, Message: "Cancel A"}, agent.StatusBlocked, agent.ReasonUnresolved)
		if n := w.changes(); n != 1 {
			t.Errorf("%d changes on the wire", n)
		}
	})
}

// CV-4, EV-6, UR-7: another spelling of the interface's URL, on another card, is no
// way around what is held back there. It is sent to as it is spelt.
func TestHeldBackByEachSpelling(t *testing.T) {
	t.Parallel()
	respell := func(w *world, url string) {
		w.biz.set(func(b *business) {
			b.card["supportedInterfaces"] = []any{map[string]any{"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}}
			b.card["securitySchemes"] = map[string]any{"pa": map[string]any{"httpAuthSecurityScheme": map[string]any{"scheme": "Bearer", "bearerFormat": "JWT"}}}
			b.card["securityRequirements"] = []any{map[string]any{"schemes": map[string]any{"pa": map[string]any{"list": []any{}}}}}
			b.answer, b.receipt = nil, nil
		})
	}
	for _, c := range []struct {
		url  string
		same bool
	}{
		{provider + ":443/a2a/air", true},
		{"https://Provider.Example.COM/a2a/air", true},
		{"https://provider.example.com./a2a/air", true},
		{provider + "/a2a/%61ir", true},
		{provider + "/a2a/air//", true},
		{provider + "/a2a//air", true},
		{provider + "/a2a/./air", true},
		{provider + "/a2a/x/../air", true},
		{provider + "/a2a/air?", true},
		{provider + "/a2a/Air", false},
		{provider + "/a2a/air2", false},
	} {
		for name, hold := range map[string]func(*world, *agent.Agent) (reason string){
			"unknown outcome": func(w *world, a *agent.Agent) string {
				w.biz.loses("Cancel")
				w.send(a, w.person(), cancelTrip, agent.StatusUnknown, "network")
				return agent.ReasonUnresolved
			},
			"evidence": func(w *world, a *agent.Agent) string {
				w.biz.set(func(b *business) { b.receipt = func(_, e map[string]any) { e["none"] = true } })
				w.send(a, w.person(), cancelTrip, agent.StatusReplied, "")
				return agent.ReasonEvidenceReview
			},
		} {
			t.Run(name+" "+c.url, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := newWorld(t)
					a := granted(w, 50*time.Minute, "trips:cancel")
					reason := hold(w, a)
					respell(w, c.url)
					w.hosts["https://air2.example.com"] = http.RedirectHandler(iface+"/.well-known/agent-card.json", http.StatusFound)
					req := agent.SendRequest{Business: "air2.example.com", Message: "Cancel booking X1"}
					turns := len(w.calls(egress.Message))
					if c.same {
						w.send(a, w.person(), req, agent.StatusBlocked, reason)
						if n := len(w.calls(egress.Message)); n != turns {
							t.Errorf("%d messages on the wire", n-turns)
						}
						return
					}
					if r, err := a.Send(t.Context(), w.person(), req); err != nil || r.Reason == reason {
						t.Errorf("another place: %+v, %v", r, err)
					}
					if sent := w.calls(egress.Message)[turns:]; len(sent) == 0 || sent[0].url != c.url+"/message:send" {
						t.Errorf("sent %+v", sent)
					}
				})
			})
		}
	}
}

// describe changes what a scope of the card means: another security fingerprint.
func (b *business) describe(scope, text string) {
	s := b.card["securitySchemes"].(map[string]any)["user"].(map[string]any)["oauth2SecurityScheme"].(map[string]any)
	scopes := s["flows"].(map[string]any)["deviceCode"].(map[string]any)["scopes"].(map[string]any)
	scopes[scope] = text
}

// DI-3: a card that expired while the owner was asked is fetched before the send.
func TestCardExpiresWhileAsked(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:cancel")
		c := w.person()
		c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
			time.Sleep(20 * time.Minute)
			return true, nil
		}
		w.send(a, c, cancelTrip, agent.StatusReplied, "")
		cards := w.calls(egress.Card)
		if age := w.calls(egress.Message)[0].at.Sub(cards[len(cards)-1].at); age > 5*time.Minute {
			t.Errorf("sent by a card that is %v old", age)
		}
	})
}

// DI-3, DI-6, AP-3: a card that changed while the owner was asked is asked about
// anew, and its grants are gone.
func TestCardChangesWhileAsked(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:cancel")
		c := w.person()
		var asked []agent.ApprovalRequest
		c.Approve = func(_ context.Context, r agent.ApprovalRequest) (bool, error) {
			asked = append(asked, r)
			if len(asked) == 1 {
				time.Sleep(20 * time.Minute)
				w.biz.set(func(b *business) { b.describe("trips:cancel", "Cancel everything") })
			}
			return true, nil
		}
		w.send(a, c, cancelTrip, agent.StatusReplied, "")
		if len(asked) != 2 || !asked[1].Changed || asked[1].Scopes[0].Description != "Cancel everything" {
			t.Errorf("asked %+v", asked)
		}
		if n := len(w.calls(egress.DeviceAuthorization)); n != 2 {
			t.Errorf("%d sign-ins", n)
		}
	})
}

// DI-3, DI-6: consent to a card that changed meanwhile is not kept.
func TestCardChangesDuringConsent(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.device["expires_in"] = 1800
		c := w.person()
		c.SignIn = func(context.Context, agent.SignIn) error {
			go func() {
				time.Sleep(20 * time.Minute)
				w.biz.set(func(b *business) { b.describe("trips:read", "Read everything") })
				w.biz.allow("trips:read")
			}()
			return nil
		}
		w.send(a, c, readTrips, agent.StatusFailed, agent.ReasonCardChanged)
		if g, err := a.Grants(t.Context(), owner()); err != nil || len(g) != 0 {
			t.Errorf("grants %+v, %v", g, err)
		}
		if len(w.biz.sent()) != 0 {
			t.Error("something was sent")
		}
	})
}

// PO-7: PACT that was switched off while the owner was asked is off.
func TestSwitchedOffWhileAsked(t *testing.T) {
	off := func(t *testing.T, a *agent.Agent) {
		if err := a.SetPreference(t.Context(), owner(), agent.DisabledPACT); err != nil {
			t.Error(err)
		}
	}
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:cancel")
		c := w.person()
		c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { off(t, a); return true, nil }
		r, err := a.Send(t.Context(), c, agent.SendRequest{Business: cardURL, Message: cancelTrip.Message, Scopes: cancelTrip.Scopes})
		if err != nil || r.Status != agent.StatusBlocked || len(w.biz.sent()) != 0 {
			t.Errorf("got %+v, %v; %d turns", r, err, len(w.biz.sent()))
		}
	})
	bubble.Test(t, func(t *testing.T) { // no sign-in begins
		w := newWorld(t)
		a := w.enrolled()
		c := w.person()
		c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { off(t, a); return true, nil }
		c.SignIn = func(context.Context, agent.SignIn) error { t.Error("a link was shown"); return nil }
		w.send(a, c, agent.SendRequest{Message: cancelTrip.Message, Scopes: cancelTrip.Scopes}, agent.StatusBlocked, agent.ReasonPACTDisabled)
		if len(w.calls(egress.DeviceAuthorization)) != 0 {
			t.Error("a sign-in was begun")
		}
	})
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		release := w.held("/oauth/token")
		go func() { // while the code is exchanged
			time.Sleep(6 * time.Second)
			off(t, a)
			release()
		}()
		r, err := a.Authorize(t.Context(), w.person(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
		if err != nil || r.Status != agent.StatusFailed || r.Reason != agent.ReasonPACTDisabled {
			t.Errorf("got %+v, %v", r, err)
		}
		if g, err := a.Grants(t.Context(), owner()); err != nil || len(g) != 0 {
			t.Errorf("grants %+v, %v", g, err)
		}
	})
}

// AP-3, PO-7, DI-3: a card that changes while the owner decides is decided on
// again, before any sign-in begins.
func TestCardChangedWhileAsked(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		c := w.person()
		var asked []agent.ApprovalRequest
		c.Approve = func(_ context.Context, r agent.ApprovalRequest) (bool, error) {
			if asked = append(asked, r); len(asked) == 1 {
				if len(w.calls(egress.DeviceAuthorization)) != 0 {
					t.Error("a sign-in was begun")
				}
				time.Sleep(6 * time.Minute)
				w.biz.set(func(b *business) {
					flow := b.card["securitySchemes"].(map[string]any)["user"].(map[string]any)["oauth2SecurityScheme"].(map[string]any)["flows"].(map[string]any)["deviceCode"].(map[string]any)
					flow["scopes"].(map[string]any)["trips:cancel"] = "Cancel all trips, for ever"
				})
			}
			return true, nil
		}
		w.send(a, c, cancelTrip, agent.StatusReplied, "")
		if len(asked) != 2 || !asked[1].Changed || asked[1].Scopes[0].Description != "Cancel all trips, for ever" {
			t.Errorf("asked %+v", asked)
		}
	})
}
