package agent_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

const signInSecrets = `SELECT COUNT(*) FROM secrets WHERE id LIKE 'signin-%'`

// DA-2, DA-10: each way in which a sign-in cannot start; none leaves a record or
// a code.
func TestConsentStartErrors(t *testing.T) {
	answer := func(status int, header http.Header, body string) func(w *world) {
		return func(w *world) {
			w.intercept(provider, "/oauth/device", func(rw http.ResponseWriter, _ *http.Request) bool {
				for k, v := range header {
					rw.Header()[k] = v
				}
				respond(rw, status, body)
				return true
			})
		}
	}
	for name, c := range map[string]struct {
		prepare func(w *world)
		status  agent.Status
		reason  string
		asked   int
	}{
		"invalid_scope":       {answer(400, nil, `{"error":"invalid_scope"}`), agent.StatusFailed, agent.ReasonConsentScope, 1},
		"invalid_client":      {answer(401, nil, `{"error":"invalid_client"}`), agent.StatusFailed, agent.ReasonConsentRejected, 1},
		"another OAuth error": {answer(400, nil, `{"error":"unauthorized_client"}`), agent.StatusFailed, agent.ReasonConsentRejected, 1},
		"404":                 {answer(404, nil, ``), agent.StatusFailed, agent.ReasonConsentRejected, 1},
		"unreadable":          {answer(200, nil, `<html>`), agent.StatusFailed, agent.ReasonConsentRejected, 1},
		"500":                 {answer(500, nil, `{"error":"server_error"}`), agent.StatusFailed, agent.ReasonConsentUnavailable, 1},
		"503":                 {answer(503, nil, ``), agent.StatusFailed, agent.ReasonConsentUnavailable, 1},
		"limited for ever":    {answer(429, http.Header{"Retry-After": {"60"}}, ``), agent.StatusFailed, agent.ReasonConsentUnavailable, 4},
		"dropped": {func(w *world) {
			w.intercept(provider, "/oauth/device", func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
		}, agent.StatusFailed, agent.ReasonConsentUnavailable, 1},
		"no delegation": {func(w *world) {
			w.biz.card["securityRequirements"] = w.biz.card["securityRequirements"].([]any)[:1]
		}, agent.StatusUnsupported, agent.ReasonNotDelegated, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				c.prepare(w)
				p := w.person()
				p.SignIn = func(context.Context, agent.SignIn) error { t.Error("a link is shown"); return nil }
				w.authorize(a, p, c.status, c.reason)
				if n := len(w.calls(egress.DeviceAuthorization)); n != c.asked {
					t.Errorf("asked %d times", n)
				}
				w.want(`SELECT COUNT(*) FROM authorizations`, "0")
				w.want(signInSecrets, "0")
			})
		})
	}
}

// DA-1: at least one permission, and of the card.
func TestConsentNeedsScopesOfTheCard(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		for reason, scopes := range map[string][]string{
			agent.ReasonInvalidInput: {}, agent.ReasonUnknownScope: {"trips:read", "trips:fly"},
		} {
			r, err := a.Authorize(t.Context(), w.person(), agent.AuthorizeRequest{Business: cardURL, Scopes: scopes})
			if err != nil || r.Reason != reason {
				t.Errorf("%v: %+v, %v", scopes, r, err)
			}
		}
		if n := len(w.calls(egress.DeviceAuthorization)); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// DA-3: a purpose of 500 characters, and no longer one.
func TestPurposeLength(t *testing.T) {
	for n, reason := range map[int]string{500: "", 501: agent.ReasonInvalidInput} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := w.enrolled()
			r, err := a.Authorize(t.Context(), w.person(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}, Purpose: strings.Repeat("ä", n)})
			if err != nil || r.Reason != reason {
				t.Errorf("%d: %+v, %v", n, r, err)
			}
		})
	}
}

// DA-6, DA-7, DA-8: what a poll meets that brings no answer, and when the wait is
// over.
func TestPollingMore(t *testing.T) {
	limited := func(after string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			if after != "" {
				w.Header().Set("Retry-After", after)
			}
			w.WriteHeader(429)
		}
	}
	drop := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	pending := oauthAnswer(400, "authorization_pending")
	for name, c := range map[string]struct {
		interval, expires int
		answers           []func(http.ResponseWriter)
		waits             string // seconds between start and polls
		took              time.Duration
		reason            string
	}{
		"dropped doubles":                {5, 600, []func(http.ResponseWriter){drop, drop, pending}, "5 10 20 20", 55 * time.Second, ""},
		"dropped six times":              {2, 1800, slices.Repeat([]func(http.ResponseWriter){drop}, 6), "2 4 8 16 32 60", 122 * time.Second, agent.ReasonPollFailed},
		"503 and 599 count":              {2, 600, []func(http.ResponseWriter){oauthAnswer(503, ""), oauthAnswer(599, "")}, "2 4 8", 14 * time.Second, ""},
		"429 keeps a longer interval":    {90, 600, []func(http.ResponseWriter){limited("")}, "90 90", 180 * time.Second, ""},
		"429 with less than an interval": {5, 600, []func(http.ResponseWriter){limited("1")}, "5 5", 10 * time.Second, ""},
		"429 changes no interval":        {5, 600, []func(http.ResponseWriter){limited("20"), pending}, "5 20 5", 30 * time.Second, ""},
		"the last poll is at the deadline": {5, 10, []func(http.ResponseWriter){pending, pending}, "5 5", 10 * time.Second,
			agent.ReasonConsentExpired},
		"none after the deadline":  {5, 14, []func(http.ResponseWriter){pending, pending}, "5 5", 10 * time.Second, agent.ReasonConsentExpired},
		"slow_down past it":        {5, 12, []func(http.ResponseWriter){oauthAnswer(400, "slow_down")}, "5", 5 * time.Second, agent.ReasonConsentExpired},
		"shorter than an interval": {5, 4, nil, "", 0, agent.ReasonConsentExpired},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				w.biz.device["interval"], w.biz.device["expires_in"] = c.interval, c.expires
				w.biz.polls = c.answers
				start := time.Now()
				r, err := a.Authorize(t.Context(), w.person(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
				if took := time.Since(start); err != nil || r.Reason != c.reason || took != c.took {
					t.Errorf("%s %q after %v, %v; want %q after %v", r.Status, r.Reason, took, err, c.reason, c.took)
				}
				at, waits := w.calls(egress.DeviceAuthorization)[0].at, []string{}
				for _, p := range w.polls() {
					waits = append(waits, fmt.Sprint(p.at.Sub(at).Seconds()))
					at = p.at
				}
				if got := strings.Join(waits, " "); got != c.waits {
					t.Errorf("polled after %s, want %s", got, c.waits)
				}
				w.want(signInSecrets, "0") // DA-10
			})
		})
	}
}

// DA-7: a sign-in that is taken up after its deadline is polled no more.
func TestNoPollAfterTheDeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		r := w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		w.biz.allow("trips:read")
		time.Sleep(601 * time.Second)
		got, err := a.WaitAuthorization(t.Context(), w.person(), r.Authorization.ID)
		if err != nil || got.Status != agent.StatusExpired || got.Reason != agent.ReasonConsentExpired {
			t.Errorf("got %+v, %v", got, err)
		}
		if n := len(w.polls()); n != 0 {
			t.Errorf("%d polls", n)
		}
		w.want(signInSecrets, "0")
	})
}

// DA-10: however a sign-in ends, it ends once, and its codes are gone.
func TestCodesAreDeleted(t *testing.T) {
	t.Parallel()
	for state, end := range map[string]func(w *world, a *agent.Agent, id string){
		"granted": func(w *world, a *agent.Agent, id string) { w.biz.allow("trips:read"); time.Sleep(6 * time.Second) },
		"denied": func(w *world, a *agent.Agent, id string) {
			w.biz.set(func(b *business) { b.denied = true })
			time.Sleep(6 * time.Second)
		},
		"expired": func(w *world, a *agent.Agent, id string) { time.Sleep(11 * time.Minute) },
		"cancelled": func(w *world, a *agent.Agent, id string) {
			_, _ = a.CancelAuthorization(w.t.Context(), owner(), id)
			time.Sleep(6 * time.Second)
		},
		"failed": func(w *world, a *agent.Agent, id string) {
			w.biz.set(func(b *business) { b.polls = append(b.polls, oauthAnswer(400, "invalid_request")) })
			time.Sleep(6 * time.Second)
		},
	} {
		t.Run(state, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				done := make(chan agent.Result, 1)
				go func() {
					r, _ := a.Authorize(t.Context(), patient(w), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
					done <- r
				}()
				synctest.Wait()
				w.want(signInSecrets, "1")
				list, err := a.Authorizations(t.Context(), owner())
				if err != nil || len(list) != 1 {
					t.Fatalf("%+v, %v", list, err)
				}
				end(w, a, list[0].ID)
				if r := <-done; r.Authorization.State != state {
					t.Errorf("got %+v", r.Authorization)
				}
				w.want(signInSecrets, "0")
				polls := len(w.polls())
				if v, err := a.CancelAuthorization(t.Context(), owner(), list[0].ID); err != nil || v.State != state {
					t.Errorf("settled again: %+v, %v", v, err)
				}
				time.Sleep(time.Minute)
				if len(w.polls()) != polls {
					t.Error("polled after its end")
				}
			})
		})
	}
}

// DA-14: the link is for the owner: nobody else is shown it, whatever they can
// show, nor is anybody once it is over.
func TestLinkIsForTheOwner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		r := w.send(a, owner(), readTrips, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		shown := 0
		show := func(origin agent.CallerOrigin) {
			c := patient(w)
			if c.Origin = origin; origin != agent.OriginOwnerCLI {
				c.Network = anywhere("work")
			}
			c.SignIn = func(context.Context, agent.SignIn) error { shown++; return nil }
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = a.WaitAuthorization(ctx, c, r.Authorization.ID)
			_, _ = a.Authorize(ctx, c, agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
			_, _ = a.Send(ctx, c, agent.SendRequest{Business: cardURL, Message: "Show my trips", Scopes: []string{"trips:read"}})
		}
		for _, origin := range []agent.CallerOrigin{agent.OriginSubAgent, agent.OriginBot, agent.OriginGateway, agent.OriginAutomation, ""} {
			if show(origin); shown != 0 {
				t.Fatalf("%q is shown the link", origin)
			}
		}
		if show(agent.OriginOwnerCLI); shown == 0 {
			t.Error("the owner is not shown the link")
		}
		shown = 0
		if _, err := a.CancelAuthorization(t.Context(), owner(), r.Authorization.ID); err != nil {
			t.Fatal(err)
		}
		c := w.person()
		c.SignIn = func(context.Context, agent.SignIn) error { shown++; return nil }
		if _, err := a.WaitAuthorization(t.Context(), c, r.Authorization.ID); err != nil || shown != 0 {
			t.Errorf("shown %d times after its end, %v", shown, err)
		}
	})
}

// DA-15, RD-1, RD-4, SG-14: nothing that a call returns or tells of holds a link, a
// code, a token or the user's id at the business.
func TestNoSecretInAnyView(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		var seen strings.Builder
		note := func(v any, err error) {
			fmt.Fprintf(&seen, "%+v %s %v\n", v, marshal(v), err)
		}
		c := w.person()
		c.Progress = func(e agent.Event) { note(e, nil) }
		c.Approve = func(_ context.Context, r agent.ApprovalRequest) (bool, error) { note(r, nil); return true, nil }
		signIn := c.SignIn
		c.SignIn = func(ctx context.Context, s agent.SignIn) error { note(s, nil); return signIn(ctx, s) }
		w.biz.answer = func(u turn) (int, any) {
			if u.text == "Show my trips" && u.delegation == "" {
				return 200, stepUp("ctx-9", "trips:read")
			}
			return 0, nil
		}
		ctx := t.Context()
		note(a.Send(ctx, owner(), agent.SendRequest{Business: cardURL, Message: "Show past trips", Scopes: []string{"trips:history"}}))
		note(a.Send(ctx, c, agent.SendRequest{Business: cardURL, Message: "Show my trips"}))
		note(a.Send(ctx, c, agent.SendRequest{Business: cardURL, Message: "Cancel trip 1", Scopes: []string{"trips:cancel"}}))
		w.biz.set(func(b *business) { b.refresh = "another" })
		time.Sleep(59*time.Minute + 30*time.Second)
		note(a.Send(ctx, c, agent.SendRequest{Business: cardURL, Message: "Show trips", Scopes: []string{"trips:cancel"}}))
		status, err := a.Status(ctx, c)
		note(status, err)
		note(a.Authorizations(ctx, c))
		note(a.Businesses(ctx, c))
		note(a.Providers(ctx, c))
		conversations, err := a.Conversations(ctx, c)
		note(conversations, err)
		for _, v := range conversations {
			note(a.Conversation(ctx, c, v.ID))
		}
		receipts, err := a.Receipts(ctx, c)
		note(receipts, err)
		for _, v := range receipts {
			note(a.Receipt(ctx, c, v.ID))
			note(a.VerifyStoredReceipt(ctx, c, v.ID))
		}
		grants, err := a.Grants(ctx, c)
		note(grants, err)
		for _, g := range grants {
			note(a.Disconnect(ctx, c, g.ID))
		}
		if len(receipts) < 2 || len(grants) < 2 {
			t.Fatalf("%d receipts, %d grants", len(receipts), len(grants))
		}
		// The keys' thumbprints are public, and may spell anything.
		told := strings.NewReplacer(w.biz.key.kid, "", status.Identity.Thumbprint, "").Replace(seen.String())
		for _, secret := range []string{"dc_secret", "ABCD-EFGH", "user_code", "login.air.example.com/", "eyJ", "rt_", "cust-1", "evil.example"} {
			if i := strings.Index(told, secret); i >= 0 {
				t.Errorf("%q is told: …%.200s", secret, told[max(0, i-100):])
			}
		}
		// DA-18: the step-up's own link was not even asked for.
		for _, r := range w.requests {
			if strings.Contains(r.url, "evil") {
				t.Errorf("asked %s", r.url)
			}
		}
	})
}

// DA-19: an authorization server may leave the complete link out, choose an
// interval of 3, and skip its page.
func TestWhatAServerMayLeaveOut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		delete(w.biz.device, "verification_uri_complete")
		w.biz.device["interval"] = 3
		c := w.person()
		signIn := c.SignIn
		c.SignIn = func(ctx context.Context, s agent.SignIn) error {
			if s.Link.Reveal() != "https://login.air.example.com/device" || s.UserCode.Reveal() != "ABCD-EFGH" {
				t.Errorf("shown %s, %s", s.Link.Reveal(), s.UserCode.Reveal())
			}
			return signIn(ctx, s)
		}
		w.authorize(a, c, agent.StatusDone, "")
		if polls := w.polls(); len(polls) != 1 || polls[0].at.Sub(w.calls(egress.DeviceAuthorization)[0].at) != 3*time.Second {
			t.Errorf("%d polls", len(polls))
		}
	})
}

// DA-11: what a token must say to be kept, each claim missing and of another kind.
func TestGrantedTokenClaims(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		for _, claim := range []string{"aud", "client_id", "iss", "sub", "grant_id", "iat", "exp", "scope"} {
			for _, value := range []any{nil, []any{"x"}, true} {
				w.biz.set(func(b *business) {
					b.claims = func(c map[string]any) {
						if c[claim] = value; value == nil {
							delete(c, claim)
						}
					}
				})
				w.authorize(a, w.person(), agent.StatusFailed, agent.ReasonGrantRefused)
			}
		}
		w.want(`SELECT COUNT(*) FROM grants`, "0")
		w.want(`SELECT COUNT(*) FROM secrets WHERE id LIKE 'grant-%' OR id LIKE 'signin-%'`, "0")
		w.biz.set(func(b *business) { b.claims = nil })
		w.authorize(a, w.person(), agent.StatusDone, "")
	})
}
