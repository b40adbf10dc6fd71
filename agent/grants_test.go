package agent_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// granted is an agent with a grant for scopes, whose token has left.
func granted(w *world, left time.Duration, scopes ...string) *agent.Agent {
	w.t.Helper()
	a := w.enrolled()
	r, err := a.Authorize(w.t.Context(), w.person(), agent.AuthorizeRequest{Business: cardURL, Scopes: scopes})
	if err != nil || r.Status != agent.StatusDone {
		w.t.Fatalf("authorize: %+v, %v", r, err)
	}
	time.Sleep(time.Until(r.Grant.TokenExpires.Add(-left)))
	return a
}

func onlyGrant(t *testing.T, a *agent.Agent) agent.GrantView {
	t.Helper()
	grants, err := a.Grants(t.Context(), owner())
	if err != nil || len(grants) != 1 {
		t.Fatalf("grants %+v, %v", grants, err)
	}
	return grants[0]
}

var readTrips = agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}

// GR-5: ten sends at once with 30 s left refresh once; a spent refresh token is
// never sent again.
func TestConcurrentSendsShareOneRefresh(t *testing.T) {
	for name, agents := range map[string]int{"one program": 1, "two programs": 2} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				as := []*agent.Agent{granted(w, 30*time.Second, "trips:read")}
				for len(as) < agents {
					as = append(as, w.open())
				}
				var wg sync.WaitGroup
				for i := range 10 {
					wg.Go(func() {
						if r := w.send(as[i%agents], owner(), readTrips, agent.StatusReplied, ""); r.Evidence.Verdict != agent.VerdictVerified {
							t.Errorf("evidence %+v", r.Evidence)
						}
					})
				}
				wg.Wait()
				if w.biz.refreshed != 1 {
					t.Errorf("%d refreshes", w.biz.refreshed)
				}
				if g := onlyGrant(t, as[0]); g.State != "active" || time.Until(g.TokenExpires) < 59*time.Minute {
					t.Errorf("grant %+v", g)
				}
			})
		})
	}
}

// GR-5: with more than 60 s left nothing is refreshed.
func TestNoRefreshTooEarly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 61*time.Second, "trips:read")
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		if w.biz.refreshed != 0 {
			t.Error("refreshed")
		}
		time.Sleep(time.Second)
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		if w.biz.refreshed != 1 {
			t.Error("not refreshed")
		}
	})
}

// GR-6, GR-7: what a refresh may bring.
func TestRefresh(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*business)
		status agent.Status
		reason string
		state  string // of the grant
		why    string
	}{
		"no new refresh token": {func(b *business) { b.noRefresh = true }, agent.StatusReplied, "", "active", ""},
		"spent":                {func(b *business) { b.refresh = "another" }, agent.StatusNeedsUserAction, agent.ReasonReconnect, "invalid", agent.ReasonRefreshRejected},
		"wider":                {func(b *business) { b.scopes = []string{"trips:cancel", "trips:history", "trips:read"} }, agent.StatusNeedsUserAction, agent.ReasonRefreshWidened, "invalid", agent.ReasonRefreshWidened},
		"another user":         {func(b *business) { b.user = "cust-2" }, agent.StatusNeedsUserAction, agent.ReasonGrantRefused, "invalid", agent.ReasonGrantRefused},
		"another grant":        {func(b *business) { b.claims = func(c map[string]any) { c["grant_id"] = "g-2" } }, agent.StatusNeedsUserAction, agent.ReasonGrantRefused, "invalid", agent.ReasonGrantRefused},
		"another audience":     {func(b *business) { b.claims = func(c map[string]any) { c["aud"] = provider } }, agent.StatusNeedsUserAction, agent.ReasonGrantRefused, "invalid", agent.ReasonGrantRefused},
		"server error":         {func(b *business) { b.failRefresh = 500 }, agent.StatusFailed, agent.ReasonReconnect, "active", ""},
		// Near the end of the grant a token lives less than the 60 s of GR-5.
		"short life": {func(b *business) { b.tokenLife = 40 * time.Second }, agent.StatusReplied, "", "active", ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 30*time.Second, "trips:history", "trips:read")
				w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "") // the card is in date
				w.biz.set(c.change)
				w.send(a, owner(), readTrips, c.status, c.reason)
				if n := w.biz.refreshed; n != 1 {
					t.Errorf("%d refreshes", n)
				}
				if g := onlyGrant(t, a); g.State != c.state || g.Reason != c.why {
					t.Errorf("grant %+v", g)
				}
				if c.status != agent.StatusReplied && len(w.biz.sent()) != 1 {
					t.Error("it was sent")
				}
			})
		})
	}
}

// GR-7: with no new refresh token the old one is kept and works again.
func TestRefreshTokenIsKept(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Second, "trips:read")
		w.biz.set(func(b *business) { b.noRefresh = true })
		for range 3 {
			w.send(a, owner(), readTrips, agent.StatusReplied, "")
			time.Sleep(time.Hour - 30*time.Second)
		}
		if w.biz.refreshed != 3 {
			t.Errorf("%d refreshes", w.biz.refreshed)
		}
	})
}

// GR-7: after a refresh that narrowed the grant no turn goes out with a
// permission that is not covered: consent is asked for instead.
func TestRefreshNarrower(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Second, "trips:history", "trips:read")
		w.biz.set(func(b *business) { b.scopes = []string{"trips:history"} })
		w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if len(w.biz.sent()) != 0 {
			t.Error("it was sent")
		}
		if g := onlyGrant(t, a); !slices.Equal(g.Scopes, []string{"trips:history"}) {
			t.Errorf("grant %+v", g)
		}
		w.send(a, w.person(), readTrips, agent.StatusReplied, "")
		for _, u := range w.biz.sent() {
			if !slices.Contains(u.scopes, "trips:read") {
				t.Errorf("sent with %v", u.scopes)
			}
		}
	})
}

// GR-3: the grant that covers all with the fewest permissions.
func TestGrantSelection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		for i, scopes := range [][]string{{"trips:history", "trips:read"}, {"trips:read"}} {
			// Another account each time, so that none supersedes another.
			w.biz.set(func(b *business) { b.user = []string{"cust-a", "cust-b"}[i] })
			c := w.person()
			if i == 1 {
				w.edit(`UPDATE grants SET state = 'parked'`)
			}
			if r, err := a.Authorize(t.Context(), c, agent.AuthorizeRequest{Business: cardURL, Scopes: scopes}); err != nil || r.Status != agent.StatusDone {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		w.edit(`UPDATE grants SET state = 'active'`)
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		w.send(a, owner(), agent.SendRequest{Message: "Show past trips", Scopes: []string{"trips:history"}}, agent.StatusReplied, "")
		turns := w.biz.sent()
		if len(turns[0].scopes) != 1 || len(turns[1].scopes) != 2 {
			t.Errorf("sent with %v and %v", turns[0].scopes, turns[1].scopes)
		}
	})
}

// GR-8: a delegation token that the business refuses ends the grant; no other is
// tried.
func TestDelegationRejected(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Minute, "trips:read")
		w.biz.answer = func(u turn) (int, any) {
			return 401, header("Www-Authenticate", `Bearer realm="a2a", error="invalid_token"`)
		}
		w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonReconnect)
		if g := onlyGrant(t, a); g.State != "invalid" || g.Reason != agent.ReasonDelegationGone || len(w.biz.sent()) != 1 {
			t.Errorf("grant %+v after %d turns", g, len(w.biz.sent()))
		}
	})
}

// GR-2: a grant lives 30 days; a lapsed one counts as expired before any sweep.
func TestGrantLapses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Minute, "trips:read")
		time.Sleep(30 * 24 * time.Hour)
		if g := onlyGrant(t, a); g.State != "expired" {
			t.Errorf("grant %+v", g)
		}
		if s, err := a.Status(t.Context(), owner()); err != nil || s.Counts.ActiveGrants != 0 || s.Counts.ExpiredGrants != 1 {
			t.Errorf("status %+v, %v", s, err)
		}
		w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
	})
}

// GR-6, GR-10: a row without its secret is unusable.
func TestGrantWithoutSecret(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Minute, "trips:read")
		w.edit(`DELETE FROM secrets WHERE id LIKE 'grant-%'`)
		w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonReconnect)
		if g := onlyGrant(t, a); g.State != "invalid" || g.Reason != agent.ReasonSecretMissing {
			t.Errorf("grant %+v", g)
		}
	})
}

// GR-9: disconnect deletes here and revokes there, if there is a way, and says
// which.
func TestDisconnect(t *testing.T) {
	for name, revocable := range map[string]bool{"with a revocation endpoint": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if revocable {
					w.biz.metadata["revocation_endpoint"] = oauthBase + "/revoke"
				}
				a := granted(w, 30*time.Minute, "trips:read")
				v, err := a.Disconnect(t.Context(), owner(), onlyGrant(t, a).ID)
				if err != nil || v.RevokedAtBusiness != revocable || (v.Detail == "") != revocable || v.Grant.State != "disconnected" {
					t.Errorf("got %+v, %v", v, err)
				}
				want := ""
				if revocable {
					want = "refresh_token access_token"
				}
				if got := strings.Join(w.biz.revoked, " "); got != want {
					t.Errorf("revoked %q", got)
				}
				w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
			})
		})
	}
}

// MD-2, GR-5: the refresh goes where the card says.
func TestRefreshURL(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Second, "trips:read")
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		calls := w.calls(egress.Token)
		last := calls[len(calls)-1]
		if last.url != oauthBase+"/token" || !strings.Contains(last.body, "grant_type=refresh_token") || !strings.Contains(last.body, "client_id=https%3A%2F%2Fpa.example.com") || last.header.Get("Authorization") == "" {
			t.Errorf("got %s", last.url)
		}
	})
}
