package agent_test

import (
	"net/http"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// PO-3, PO-4: preference, availability, identity, card and provider decide the
// way; none of it sends, asks or grants anything.
func TestRoute(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name   string
			change func(*testing.T, *world, *agent.Agent)
			reason string
		}{
			{"all is well", func(*testing.T, *world, *agent.Agent) {}, ""},
			{"switched off", func(t *testing.T, w *world, a *agent.Agent) {
				if err := a.SetEnabled(t.Context(), owner(), false); err != nil {
					t.Fatal(err)
				}
			}, agent.ReasonPACTDisabled},
			{"signer away", func(_ *testing.T, w *world, _ *agent.Agent) { w.signer.set(func(s *signerStandIn) { s.fail = 503 }) }, agent.ReasonIdentityNotReady},
			{"signer disabled", func(_ *testing.T, w *world, _ *agent.Agent) {
				w.signer.set(func(s *signerStandIn) { s.disabled = true })
			}, agent.ReasonIdentityNotReady},
			{"no card", func(_ *testing.T, w *world, _ *agent.Agent) {
				w.hosts["https://air.example.com"] = http.NotFoundHandler()
			}, agent.ReasonNotSupported},
			{"no host", func(_ *testing.T, w *world, _ *agent.Agent) { delete(w.hosts, "https://air.example.com") }, agent.ReasonNotSupported},
			{"another protocol", func(_ *testing.T, w *world, _ *agent.Agent) {
				w.biz.set(func(b *business) { b.card["securitySchemes"] = map[string]any{} })
			}, agent.ReasonNotSupported},
			{"a bad card", func(_ *testing.T, w *world, _ *agent.Agent) {
				w.biz.set(func(b *business) { b.card["skills"] = "none" })
			}, agent.ReasonCardRejected},
			{"bad metadata", func(_ *testing.T, w *world, _ *agent.Agent) {
				w.biz.set(func(b *business) { b.metadata["token_endpoint"] = oauthBase + "/token/" })
			}, agent.ReasonCardRejected},
			{"no audience", func(_ *testing.T, w *world, _ *agent.Agent) {
				w.signer.set(func(s *signerStandIn) { s.audiences = map[string]string{} })
			}, agent.ReasonProviderNotReady},
		} {
			for _, pref := range []agent.Preference{agent.PreferPACT, agent.RequirePACT, agent.DisabledPACT} {
				w := newWorld(t)
				a := w.enrolled()
				if err := a.SetPreference(t.Context(), owner(), pref); err != nil {
					t.Fatal(err)
				}
				c.change(t, w, a)
				want, reason := agent.RoutePACT, c.reason
				if pref == agent.DisabledPACT {
					reason = agent.ReasonPACTDisabled
				}
				if reason != "" {
					want = agent.RouteOther
					if pref == agent.RequirePACT {
						want = agent.RouteBlocked
					}
				}
				r, err := a.Route(t.Context(), owner(), cardURL)
				if err != nil || r.Result != want || r.Reason != reason {
					t.Errorf("%s, %s: %+v, %v; want %s %s", c.name, pref, r, err, want, reason)
				}
				if n := len(w.calls(egress.Message)) + len(w.calls(egress.DeviceAuthorization)) + len(w.calls(egress.Token)); n != 0 {
					t.Errorf("%s: %d requests", c.name, n)
				}
			}
		}
	})
}

// PO-3, PO-6: an administrator's autoRoute=false keeps tasks from PACT of their
// own accord; the owner's own surface may choose it, and a send is as before.
func TestRouteWithoutAutoRoute(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.config.Policy = fixed(agent.Policy{Enabled: true})
		a := w.enrolled()
		route := func(c agent.Caller, want agent.RouteResult, reason string) {
			t.Helper()
			if r, err := a.Route(t.Context(), c, cardURL); err != nil || r.Result != want || r.Reason != reason {
				t.Errorf("%+v, %v; want %s %s", r, err, want, reason)
			}
		}
		route(owner(), agent.RoutePACT, "")
		route(inTask("t-1", "work"), agent.RouteOther, agent.ReasonPACTDisabled)
		if err := a.SetPreference(t.Context(), owner(), agent.RequirePACT); err != nil {
			t.Fatal(err)
		}
		route(inTask("t-1", "work"), agent.RouteBlocked, agent.ReasonPACTDisabled)
		w.send(a, inTask("t-1", "work"), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
	})
}

// PO-4: the route is no permission: where it says pact, a send asks every gate.
func TestRouteGrantsNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		bot := agent.TaskCaller(alice, nil, anywhere("work"))
		for _, c := range []agent.Caller{bot, owner()} {
			if r, err := a.Route(t.Context(), c, cardURL); err != nil || r.Result != agent.RoutePACT || r.Business == "" {
				t.Errorf("%+v, %v", r, err)
			}
		}
		w.send(a, bot, agent.SendRequest{Message: "Show my trips"}, agent.StatusBlocked, agent.ReasonDelegationRequired)
		w.send(a, owner(), agent.SendRequest{Message: "Cancel booking X1"}, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
		// Another principal's record is not used for it (ID-7): they have no identity.
		other := owner()
		other.Principal = "bob"
		if r, err := a.Route(t.Context(), other, cardURL); err != nil || r.Result != agent.RouteOther || r.Reason != agent.ReasonIdentityNotReady || r.Business != "" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
