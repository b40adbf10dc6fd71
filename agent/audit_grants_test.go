package agent_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

const grantSecrets = `SELECT COUNT(*) FROM secrets WHERE id LIKE 'grant-%'`

// grantFor gets a grant of exactly the scopes, of an account.
func (w *world) grantFor(a *agent.Agent, user string, scopes ...string) agent.GrantView {
	w.t.Helper()
	w.biz.set(func(b *business) { b.user = user })
	c := w.person()
	c.SignIn = func(context.Context, agent.SignIn) error { w.biz.allow(scopes...); return nil }
	r, err := a.Authorize(w.t.Context(), c, agent.AuthorizeRequest{Business: cardURL, Scopes: scopes})
	if err != nil || r.Status != agent.StatusDone {
		w.t.Fatalf("authorize: %+v, %v", r, err)
	}
	return *r.Grant
}

// states are the grants' states by id.
func states(t *testing.T, a *agent.Agent) map[string]string {
	t.Helper()
	grants, err := a.Grants(t.Context(), owner())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, g := range grants {
		out[g.ID] = strings.TrimSpace(g.State + " " + g.Reason)
	}
	return out
}

// GR-1: an account is known by a hash that only this profile can make.
func TestAccountHash(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const account = `SELECT json_extract(CAST(data AS TEXT), '$.Account') FROM grants ORDER BY created LIMIT 1`
		var hashes []string
		for range 2 {
			w := newWorld(t)
			a := w.enrolled()
			w.grantFor(a, "cust-1", "trips:read")
			w.grantFor(a, "cust-1", "trips:history")
			w.want(`SELECT COUNT(DISTINCT json_extract(CAST(data AS TEXT), '$.Account')) FROM grants`, "1")
			w.grantFor(a, "cust-2", "trips:cancel")
			w.want(`SELECT COUNT(DISTINCT json_extract(CAST(data AS TEXT), '$.Account')) FROM grants`, "2")
			hashes = append(hashes, w.value(account))
		}
		if hashes[0] == hashes[1] || len(hashes[0]) < 32 {
			t.Errorf("two profiles call one account %s and %s", hashes[0], hashes[1])
		}
	})
}

// GR-1, GR-3: a grant of another interface, issuer or subject binding is none.
func TestGrantKey(t *testing.T) {
	for _, field := range []string{"Binding", "InterfaceURL", "ASIssuer"} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := granted(w, 50*time.Minute, "trips:read")
			w.edit(`UPDATE grants SET data = CAST(json_set(CAST(data AS TEXT), '$.` + field + `', 'https://another.example.com') AS BLOB)`)
			w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
			if len(w.biz.sent()) != 0 {
				t.Errorf("%s: it was sent", field)
			}
		})
	}
}

// GR-2: a grant is good for 30 days, and not a second longer.
func TestGrantLife(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.biz.tokenLife = 60 * 24 * time.Hour
		a := w.enrolled()
		g := w.grantFor(a, "cust-1", "trips:read")
		if life := g.Expires.Sub(g.Created); life != 30*24*time.Hour {
			t.Errorf("it lives %v", life)
		}
		time.Sleep(time.Until(g.Expires.Add(-time.Second)))
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		time.Sleep(time.Second)
		w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if got := states(t, a)[g.ID]; got != "expired" {
			t.Errorf("listed as %s", got)
		}
	})
}

// GR-3: of grants with as many permissions the newest is used.
func TestNewestGrantOnATie(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.grantFor(a, "cust-1", "trips:read", "trips:history")
		time.Sleep(time.Minute)
		w.edit(`UPDATE grants SET state = 'parked'`)
		w.grantFor(a, "cust-2", "trips:read", "trips:cancel")
		w.edit(`UPDATE grants SET state = 'active'`)
		c := w.person()
		w.send(a, c, readTrips, agent.StatusReplied, "")
		if got := strings.Join(w.biz.sent()[0].scopes, " "); !strings.Contains(got, "trips:cancel") {
			t.Errorf("sent with %s", got)
		}
	})
}

// GR-4: of its account a new grant ends what it covers, tokens included; another
// account's grant and one that it does not cover stay.
func TestSuperseding(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		// Another account's, of what the new one covers: out of sight while the others
		// are got.
		foreign := w.grantFor(a, "cust-2", "trips:read")
		w.edit(`UPDATE grants SET state = 'parked'`)
		read := w.grantFor(a, "cust-1", "trips:read")
		history := w.grantFor(a, "cust-1", "trips:history") // covers not the other
		w.edit(`UPDATE grants SET state = 'active'`)
		w.want(grantSecrets, "3")
		for id, state := range states(t, a) {
			if state != "active" {
				t.Errorf("%s is %s", id, state)
			}
		}
		both := w.grantFor(a, "cust-1", "trips:history", "trips:read")
		want := map[string]string{read.ID: "superseded superseded", history.ID: "superseded superseded", foreign.ID: "active", both.ID: "active"}
		for id, got := range states(t, a) {
			if got != want[id] {
				t.Errorf("%s is %s, want %s", id, got, want[id])
			}
		}
		w.want(grantSecrets, "2")
	})
}

// GR-6: a grant without refresh token is used to its end, and is expired then.
func TestNoRefreshToken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.biz.noRefresh = true
		a := granted(w, time.Second, "trips:read")
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		time.Sleep(time.Second)
		w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonReconnect)
		if g := onlyGrant(t, a); g.State != "expired" || w.biz.refreshed != 0 {
			t.Errorf("grant %+v after %d refreshes", g, w.biz.refreshed)
		}
	})
}

// GR-8: a refused token ends its grant, and no other grant is tried for the
// message, though one would cover it.
func TestNoOtherGrantIsTried(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		wide := w.grantFor(a, "cust-1", "trips:read", "trips:history")
		w.edit(`UPDATE grants SET state = 'parked'`)
		narrow := w.grantFor(a, "cust-2", "trips:read")
		w.edit(`UPDATE grants SET state = 'active'`)
		w.biz.answer = func(turn) (int, any) {
			return 401, header("Www-Authenticate", `Bearer realm="a2a", error="invalid_token"`)
		}
		signed, _ := w.signer.counts()
		w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonReconnect)
		got := states(t, a)
		if n := len(w.biz.sent()); n != 1 || got[narrow.ID] != "invalid "+agent.ReasonDelegationGone || got[wide.ID] != "active" {
			t.Errorf("%d turns, grants %v", n, got)
		}
		if after, _ := w.signer.counts(); after > signed+1 {
			t.Error("the identity was blamed")
		}
	})
}

// GR-9: a revocation that fails is not passed off as one, and the tokens are gone
// here all the same.
func TestFailedRevocation(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"500":     func(rw http.ResponseWriter, _ *http.Request) bool { rw.WriteHeader(500); return true },
		"400":     func(rw http.ResponseWriter, _ *http.Request) bool { respond(rw, 400, `{"error":"x"}`); return true },
		"dropped": func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.biz.metadata["revocation_endpoint"] = oauthBase + "/revoke"
				a := granted(w, 50*time.Minute, "trips:read")
				w.intercept(provider, "/oauth/revoke", answer)
				v, err := a.Disconnect(t.Context(), owner(), onlyGrant(t, a).ID)
				if err != nil || v.RevokedAtBusiness || v.Detail == "" || v.Grant.State != "disconnected" {
					t.Errorf("got %+v, %v", v, err)
				}
				if text := string(marshal(v)); !strings.Contains(text, `"revokedAtBusiness":false`) {
					t.Errorf("view %s", text)
				}
				w.want(grantSecrets, "0")
			})
		})
	}
}

// GR-11, GR-2, GR-4, GR-6, GR-8, GR-9, DI-6, ID-4: each ending, with its state, its
// reason, and the tokens gone.
func TestGrantEndings(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(w *world, a *agent.Agent)
		state string
		kept  string // secrets
	}{
		"the subject changes": {func(w *world, a *agent.Agent) {
			w.signer.set(func(s *signerStandIn) { s.subject = "pa_new" })
			_, _ = a.Status(w.t.Context(), owner())
		}, "invalid " + agent.ReasonSubjectChanged, "0"},
		"the card changes": {changeScopeText, "invalid " + agent.ReasonCardSecurity, "0"},
		"the refresh is rejected": {func(w *world, a *agent.Agent) {
			w.biz.set(func(b *business) { b.refresh = "another" })
			time.Sleep(50 * time.Minute)
			_, _ = a.Send(w.t.Context(), owner(), agent.SendRequest{Business: cardURL, Message: "Show my trips", Scopes: []string{"trips:read"}})
		}, "invalid " + agent.ReasonRefreshRejected, "0"},
		"the delegation is rejected": {func(w *world, a *agent.Agent) {
			w.biz.set(func(b *business) { b.answer = func(turn) (int, any) { return 401, invalidToken } })
			_, _ = a.Send(w.t.Context(), owner(), agent.SendRequest{Business: cardURL, Message: "Show my trips", Scopes: []string{"trips:read"}})
		}, "invalid " + agent.ReasonDelegationGone, "0"},
		"30 days":       {func(w *world, _ *agent.Agent) { time.Sleep(30 * 24 * time.Hour) }, "expired", "1"},
		"disconnected":  {func(w *world, a *agent.Agent) { _, _ = a.Disconnect(w.t.Context(), owner(), onlyGrant(w.t, a).ID) }, "disconnected " + agent.ReasonOwnerEnded, "0"},
		"a newer grant": {func(w *world, a *agent.Agent) { w.grantFor(a, "cust-1", "trips:read", "trips:history") }, "superseded " + agent.ReasonNewerGrant, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 50*time.Minute, "trips:read")
				id := onlyGrant(t, a).ID
				w.want(grantSecrets, "1")
				c.end(w, a)
				if got := states(t, a)[id]; got != c.state {
					t.Errorf("it is %s, want %s", got, c.state)
				}
				w.want(grantSecrets, c.kept)
			})
		})
	}
}

// GR-7, PO-5: what a refresh brings is covered anew before the turn, and the
// narrower set is the one on record.
func TestRefreshSetIsTheStoredOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 60*time.Second, "trips:history", "trips:read")
		w.biz.set(func(b *business) { b.scopes = []string{"trips:read"} })
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		if g := onlyGrant(t, a); len(g.Scopes) != 1 || w.biz.refreshed != 1 {
			t.Errorf("grant %+v after %d refreshes", g, w.biz.refreshed)
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show past trips", Scopes: []string{"trips:history"}}, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if n := len(w.calls(egress.Message)); n != 1 {
			t.Errorf("%d turns", n)
		}
	})
}
