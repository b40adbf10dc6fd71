package agent_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// authorize asks for trips:read and expects a status and reason.
func (w *world) authorize(a *agent.Agent, c agent.Caller, status agent.Status, reason string) agent.Result {
	w.t.Helper()
	r, err := a.Authorize(w.t.Context(), c, agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}, Purpose: "to look"})
	if err != nil {
		w.t.Fatal(err)
	}
	if r.Status != status || r.Reason != reason {
		w.t.Errorf("authorize: %s %q (%s); want %s %q", r.Status, r.Reason, r.Detail, status, reason)
	}
	return r
}

// polls are the polls made so far.
func (w *world) polls() (out []request) {
	for _, r := range w.calls(egress.Token) {
		if strings.Contains(r.body, "device_code") {
			out = append(out, r)
		}
	}
	return out
}

func patient(w *world) agent.Caller {
	c := w.person()
	c.SignIn = func(context.Context, agent.SignIn) error { return nil }
	return c
}

// DA-3, DA-5, DA-6, DA-8: when the agent polls, and what it makes of each answer.
func TestPolling(t *testing.T) {
	t.Parallel()
	type answers []func(http.ResponseWriter)
	after := func(seconds string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", seconds)
			w.WriteHeader(429)
		}
	}
	pending, slow := oauthAnswer(400, "authorization_pending"), oauthAnswer(400, "slow_down")
	down, limited := oauthAnswer(500, "server_error"), oauthAnswer(429, "")
	for name, c := range map[string]struct {
		interval, expires any
		answers           answers
		waits             string // seconds between start and polls
		status            agent.Status
		reason            string
	}{
		"granted at once":               {5, 600, nil, "5", agent.StatusDone, ""},
		"no interval is 5":              {nil, 600, answers{pending}, "5 5", agent.StatusDone, ""},
		"interval 0 is 2":               {0, 600, answers{pending}, "2 2", agent.StatusDone, ""},
		"interval 1 is 2":               {1, 600, nil, "2", agent.StatusDone, ""},
		"interval 3":                    {3, 600, answers{pending}, "3 3", agent.StatusDone, ""},
		"interval 90 stays":             {90, 600, answers{slow}, "90 90", agent.StatusDone, ""},
		"slow_down is kept":             {5, 600, answers{slow, slow, pending}, "5 10 15 15", agent.StatusDone, ""},
		"the ceiling is 60":             {52, 1800, answers{slow, slow, slow}, "52 57 60 60", agent.StatusDone, ""},
		"429 without Retry-After is 10": {5, 600, answers{limited}, "5 10", agent.StatusDone, ""},
		"429 obeys 90":                  {5, 600, answers{after("90")}, "5 90", agent.StatusDone, ""},
		"429 obeys 300":                 {5, 600, answers{after("300"), pending}, "5 300 5", agent.StatusDone, ""},
		"5xx doubles":                   {5, 600, answers{down, down}, "5 10 20", agent.StatusDone, ""},
		"5xx a sixth time fails":        {2, 1800, answers{down, down, down, down, down, down}, "2 4 8 16 32 60", agent.StatusFailed, agent.ReasonPollFailed},
		"a success counts anew":         {2, 1800, answers{down, down, down, down, down, pending, down}, "2 4 8 16 32 60 60 60", agent.StatusDone, ""},
		"denied":                        {5, 600, answers{oauthAnswer(400, "access_denied")}, "5", agent.StatusDenied, agent.ReasonAccessDenied},
		"expired there":                 {5, 600, answers{oauthAnswer(400, "expired_token")}, "5", agent.StatusExpired, agent.ReasonConsentExpired},
		"another error":                 {5, 600, answers{oauthAnswer(400, "invalid_grant")}, "5", agent.StatusFailed, agent.ReasonConsentRejected},
		"expired here":                  {5, 12, answers{pending, pending, pending}, "5 5", agent.StatusExpired, agent.ReasonConsentExpired},
		"429 past the deadline":         {5, 60, answers{after("90")}, "5", agent.StatusExpired, agent.ReasonConsentExpired},
		"unreadable":                    {5, 600, answers{func(w http.ResponseWriter) { respond(w, 200, "<html>") }}, "5", agent.StatusFailed, agent.ReasonGrantRefused},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				delete(w.biz.device, "interval")
				if c.interval != nil {
					w.biz.device["interval"] = c.interval
				}
				w.biz.device["expires_in"] = c.expires
				w.biz.polls = c.answers
				r := w.authorize(a, w.person(), c.status, c.reason)
				at, waits := w.calls(egress.DeviceAuthorization)[0].at, []string{}
				for _, p := range w.polls() {
					waits = append(waits, fmt.Sprint(p.at.Sub(at).Seconds()))
					at = p.at
				}
				if got := strings.Join(waits, " "); got != c.waits {
					t.Errorf("polled after %s, want %s", got, c.waits)
				}
				// DA-10: settled once, and nothing but the outcome stays.
				if _, err := a.CancelAuthorization(t.Context(), owner(), r.Authorization.ID); err != nil {
					t.Fatal(err)
				}
				list, err := a.Authorizations(t.Context(), owner())
				if err != nil || len(list) != 1 || list[0].State != r.Authorization.State || list[0].State == "cancelled" {
					t.Errorf("it was settled again: %+v, %v", list, err)
				}
			})
		})
	}
}

// DA-3: a sign-in waits at most 30 minutes.
func TestConsentDeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.device["expires_in"], w.biz.device["interval"] = 7200, 50
		start := time.Now()
		w.authorize(a, patient(w), agent.StatusExpired, agent.ReasonConsentExpired)
		if took := time.Since(start); took > 30*time.Minute || took < 29*time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// DA-2, UR-6: what is refused before anything is shown.
func TestConsentStart(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		status agent.Status
		reason string
	}{
		"javascript link":       {func(w *world) { w.biz.device["verification_uri"] = "javascript:alert(1)" }, agent.StatusFailed, agent.ReasonConsentUnsafe},
		"http link":             {func(w *world) { w.biz.device["verification_uri"] = "http://login.air.example.com/" }, agent.StatusFailed, agent.ReasonConsentUnsafe},
		"private complete link": {func(w *world) { w.biz.device["verification_uri_complete"] = "https://10.0.0.1/" }, agent.StatusFailed, agent.ReasonConsentUnsafe},
		"loopback link":         {func(w *world) { w.biz.device["verification_uri_complete"] = "https://127.0.0.1:8443/" }, agent.StatusFailed, agent.ReasonConsentUnsafe},
		"no code":               {func(w *world) { delete(w.biz.device, "device_code") }, agent.StatusFailed, agent.ReasonConsentRejected},
		"no life":               {func(w *world) { w.biz.device["expires_in"] = "600" }, agent.StatusFailed, agent.ReasonConsentRejected},
		"no link needs complete": {func(w *world) { delete(w.biz.device, "verification_uri_complete") },
			agent.StatusDone, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				c.change(w)
				caller := w.person()
				shown := 0
				signIn := caller.SignIn
				caller.SignIn = func(ctx context.Context, s agent.SignIn) error { shown++; return signIn(ctx, s) }
				w.authorize(a, caller, c.status, c.reason)
				if (shown > 0) != (c.status == agent.StatusDone) {
					t.Errorf("shown %d times", shown)
				}
			})
		})
	}
}

// DA-1: what is asked for is what is required and what is granted already.
func TestConsentAsksForTheUnion(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.authorize(a, w.person(), agent.StatusDone, "")
		w.authorize(a, w.person(), agent.StatusDone, "") // covered already
		if n := len(w.calls(egress.DeviceAuthorization)); n != 1 {
			t.Errorf("%d sign-ins", n)
		}
		r := w.send(a, w.person(), agent.SendRequest{Message: "Show past trips", Scopes: []string{"trips:history"}}, agent.StatusReplied, "")
		if got := w.biz.deviceReqs[1].Get("scope"); got != "trips:history trips:read" {
			t.Errorf("asked for %q", got)
		}
		if got := w.biz.deviceReqs[1].Get("client_id"); got != signerURL {
			t.Errorf("client_id %q", got)
		}
		// GR-4: the newer grant covers the older of the same account.
		grants, err := a.Grants(t.Context(), owner())
		if err != nil || len(grants) != 2 || grants[0].State != "active" || grants[1].State != "superseded" {
			t.Errorf("grants %+v, %v", grants, err)
		}
		if r.Evidence.Verdict != agent.VerdictVerified {
			t.Errorf("evidence %+v", r.Evidence)
		}
	})
}

// DA-11, DA-10: a token that is not what was asked for: nothing is stored.
func TestGrantRefused(t *testing.T) {
	for name, change := range map[string]func(b *business){
		"aud":             func(b *business) { b.claims = func(c map[string]any) { c["aud"] = iface + "/" } },
		"client_id":       func(b *business) { b.claims = func(c map[string]any) { c["client_id"] = "https://other.example.com" } },
		"iss":             func(b *business) { b.claims = func(c map[string]any) { c["iss"] = provider } },
		"no grant_id":     func(b *business) { b.claims = func(c map[string]any) { delete(c, "grant_id") } },
		"another scope":   func(b *business) { b.claims = func(c map[string]any) { c["scope"] = "trips:read trips:cancel" } },
		"past":            func(b *business) { b.claims = func(c map[string]any) { c["exp"] = time.Now().Unix() } },
		"not a bearer":    func(b *business) { b.response = func(r map[string]any) { r["token_type"] = "mac" } },
		"no token":        func(b *business) { b.response = func(r map[string]any) { delete(r, "access_token") } },
		"another's key":   func(b *business) { k := newKey(b.t); b.response = resign(k) },
		"response's lies": func(b *business) { b.response = func(r map[string]any) { r["scope"] = "trips:read trips:history" } },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				w.biz.set(change)
				w.authorize(a, w.person(), agent.StatusFailed, agent.ReasonGrantRefused)
				if grants, err := a.Grants(t.Context(), owner()); err != nil || len(grants) != 0 {
					t.Errorf("stored %+v, %v", grants, err)
				}
				if len(w.polls()) != 1 {
					t.Errorf("%d polls", len(w.polls()))
				}
			})
		})
	}
}

func resign(k key) func(map[string]any) {
	return func(r map[string]any) {
		r["access_token"] = k.sign(map[string]any{
			"iss": oauthBase, "aud": iface, "sub": "cust-1", "client_id": signerURL, "scope": "trips:read",
			"grant_id": "g-1", "iat": time.Now().Unix(), "exp": time.Now().Unix() + 3600,
		})
	}
}

// DA-12: fewer permissions than needed is a denial; more are taken, and AD-9
// then asks.
func TestGrantedLessOrMore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		c := w.person()
		c.SignIn = func(context.Context, agent.SignIn) error { w.biz.allow("trips:read"); return nil }
		r := w.send(a, c, agent.SendRequest{Message: "Show past trips", Scopes: []string{"trips:history", "trips:read"}}, agent.StatusDenied, agent.ReasonInsufficient)
		if len(w.biz.sent()) != 0 {
			t.Error("it was sent")
		}
		if r.Authorization == nil || r.Authorization.State != "denied" {
			t.Errorf("sign-in %+v", r.Authorization)
		}
	})
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		c, asked := w.person(), []agent.ApprovalRequest(nil)
		c.SignIn = func(context.Context, agent.SignIn) error { w.biz.allow("trips:read", "trips:cancel"); return nil }
		c.Approve = func(_ context.Context, r agent.ApprovalRequest) (bool, error) {
			asked = append(asked, r)
			return len(asked) > 1, nil
		}
		req := agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}
		w.send(a, c, req, agent.StatusDenied, agent.ReasonApprovalDenied)
		if len(w.biz.sent()) != 0 || len(asked) != 1 || !asked[0].Exceeds || len(asked[0].TokenScopes) != 2 || asked[0].Effect != agent.EffectInspect {
			t.Errorf("asked %+v", asked)
		}
		w.send(a, c, req, agent.StatusReplied, "")
		w.send(a, owner(), req, agent.StatusApprovalRequired, agent.ReasonTokenExceeds)
	})
}

// DA-13, CL-3: whoever cannot show the link leaves the sign-in pending; it is
// taken up later, by another program, and not started twice.
func TestConsentLater(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		req := agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}
		r := w.send(a, owner(), req, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if r.Authorization == nil || r.Authorization.State != "pending" {
			t.Fatalf("got %+v", r)
		}
		if text := fmt.Sprintf("%+v %s", r, marshal(r)); strings.Contains(text, "ABCD") || strings.Contains(text, "login.air") || strings.Contains(text, "dc_") {
			t.Errorf("the result tells a secret: %s", text)
		}
		again := w.send(a, owner(), req, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
		if again.Authorization.ID != r.Authorization.ID || len(w.calls(egress.DeviceAuthorization)) != 1 {
			t.Error("a second sign-in was started")
		}
		b := w.open()
		got, err := b.WaitAuthorization(t.Context(), w.person(), r.Authorization.ID)
		if err != nil || got.Status != agent.StatusDone || got.Grant == nil || got.Grant.State != "active" {
			t.Fatalf("got %+v, %v", got, err)
		}
		w.send(a, owner(), req, agent.StatusReplied, "")
	})
}

// DA-17: a program that stops leaves the sign-in pending; an owner that gives up
// cancels it (DA-8).
func TestConsentInterrupted(t *testing.T) {
	for name, c := range map[string]struct {
		cause error
		state string
	}{"stopped": {context.Canceled, "pending"}, "given up": {agent.ErrAborted, "cancelled"}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(7*time.Second, func() { cancel(c.cause) })
				r, err := a.Authorize(ctx, patient(w), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
				if err != nil || r.Authorization.State != c.state {
					t.Fatalf("got %+v, %v", r, err)
				}
				if c.state == "pending" {
					if r.Status != agent.StatusNeedsUserAction {
						t.Errorf("status %s", r.Status)
					}
					// The next program waits on, and polls no sooner than is due.
					if _, err := w.open().WaitAuthorization(t.Context(), w.person(), r.Authorization.ID); err != nil {
						t.Fatal(err)
					}
					polls := w.polls()
					if gap := polls[len(polls)-1].at.Sub(polls[len(polls)-2].at); gap < 5*time.Second {
						t.Errorf("polled after %v", gap)
					}
				}
			})
		})
	}
}

// DA-8: an owner who gives up while the link is shown, before anything was polled,
// has given up; also one who does so where they attach.
func TestGivenUpAtTheLink(t *testing.T) {
	for name, cause := range map[string]error{"given up": agent.ErrAborted, "left": context.Canceled} {
		for _, returns := range []bool{true, false} {
			t.Run(fmt.Sprint(name, returns), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := newWorld(t)
					a := w.enrolled()
					for _, again := range []bool{false, true} {
						id := ""
						if again {
							id = w.begin(a, assistant("t-1"), "trips:read").Authorization.ID
						}
						ctx, cancel := context.WithCancelCause(t.Context())
						c := w.person()
						c.SignIn = func(ctx context.Context, _ agent.SignIn) error {
							cancel(cause)
							if returns {
								return nil
							}
							return context.Cause(ctx)
						}
						var r agent.Result
						var err error
						if again {
							r, err = a.WaitAuthorization(ctx, c, id)
						} else {
							r, err = a.Authorize(ctx, c, agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
						}
						status, state := agent.StatusNeedsUserAction, "pending"
						if cause == agent.ErrAborted {
							status, state = agent.StatusCancelled, "cancelled"
						}
						if err != nil || r.Status != status || r.Authorization.State != state || len(w.polls()) != 0 {
							t.Errorf("%+v, %v", r, err)
						}
					}
				})
			})
		}
	}
}

// DA-4: one runtime polls a code; whoever else waits sees the link, is told so, and
// gets what that one finds.
func TestConsentElsewhere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		done := make(chan agent.Result)
		go func() { done <- w.authorize(a, patient(w), agent.StatusDone, "") }()
		time.Sleep(61 * time.Second)
		list, err := a.Authorizations(t.Context(), owner())
		if err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string]*agent.Agent{"same program": a, "another": w.open()} {
			c, shown := patient(w), 0
			c.SignIn = func(_ context.Context, s agent.SignIn) error { shown++; return nil }
			var told []agent.Event
			c.Progress = func(e agent.Event) { told = append(told, e) }
			go func() {
				r, err := b.WaitAuthorization(t.Context(), c, list[0].ID)
				if err != nil {
					t.Error(err)
				}
				if shown != 1 || len(told) != 2 || told[1].Kind != agent.EventElsewhere || strings.Contains(told[1].Detail, agent.ReasonLeaseLost) {
					t.Errorf("%s: shown %d times, told %+v", name, shown, told)
				}
				done <- r
			}()
		}
		time.Sleep(61 * time.Second)
		w.biz.allow("trips:read")
		grant := (<-done).Grant.ID
		for range 2 {
			if r := <-done; r.Status != agent.StatusDone || r.Grant == nil || r.Grant.ID != grant {
				t.Errorf("a waiter: %+v", r)
			}
		}
		everyInterval(t, w)
	})
}

// everyInterval holds all polls to one interval of 5 s.
func everyInterval(t *testing.T, w *world) {
	t.Helper()
	polls := w.polls()
	for i := 1; i < len(polls); i++ {
		if d := polls[i].at.Sub(polls[i-1].at); d < 5*time.Second {
			t.Errorf("two polls within %v", d)
		}
	}
}

// DA-9, PO-7: what was true at the start is asked before every poll.
func TestConsentConditions(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world, a *agent.Agent)
		reason string
	}{
		"subject":    {func(w *world, _ *agent.Agent) { w.signer.set(func(s *signerStandIn) { s.subject = "other" }) }, agent.ReasonSubjectChanged},
		"disabled":   {func(w *world, _ *agent.Agent) { w.signer.set(func(s *signerStandIn) { s.disabled = true }) }, agent.ReasonSignerDisabled},
		"audience":   {func(w *world, _ *agent.Agent) { w.signer.set(func(s *signerStandIn) { clear(s.audiences) }) }, agent.ReasonNoAudience},
		"other card": {func(w *world, a *agent.Agent) { changeScopeText(w, a) }, agent.ReasonCardChanged},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				time.AfterFunc(61*time.Second, func() { c.change(w, a) })
				time.AfterFunc(150*time.Second, func() { w.biz.allow("trips:read") })
				w.authorize(a, patient(w), agent.StatusFailed, c.reason)
				if grants, err := a.Grants(t.Context(), owner()); err != nil || len(grants) != 0 {
					t.Errorf("stored %+v, %v", grants, err)
				}
			})
		})
	}
}

func changeScopeText(w *world, a *agent.Agent) {
	w.biz.set(func(b *business) {
		flow := b.card["securitySchemes"].(map[string]any)["user"].(map[string]any)["oauth2SecurityScheme"].(map[string]any)["flows"].(map[string]any)["deviceCode"].(map[string]any)
		flow["scopes"].(map[string]any)["trips:read"] = "Cancel all your trips"
	})
	if _, err := a.Discover(w.t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL, Refresh: true}); err != nil {
		w.t.Error(err)
	}
}

// DA-14: the coarse comparison of sites.
func TestSignInSite(t *testing.T) {
	for link, want := range map[string]bool{
		"https://login.example.com/":   true,
		"https://example.com/":         true,
		"https://provider.example.org": false,
		"https://example.com.evil.net": false,
	} {
		t.Run(link, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				w.biz.device["verification_uri_complete"] = strings.TrimSuffix(link, "/") + "/code"
				c := w.person()
				signIn := c.SignIn
				c.SignIn = func(ctx context.Context, s agent.SignIn) error {
					if s.Matches != want {
						t.Errorf("matches %v", s.Matches)
					}
					if text := fmt.Sprintf("%v %+v %s", s, s, marshal(s)); strings.Contains(text, "ABCD") || strings.Contains(text, "/code") {
						t.Errorf("printed: %s", text)
					}
					return signIn(ctx, s)
				}
				w.authorize(a, c, agent.StatusDone, "")
			})
		})
	}
}

// RS-4, DI-3: before the link of a pending sign-in is shown again, a card whose
// time is over is looked at again.
func TestWaitWithAnotherCard(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		r, err := a.Authorize(t.Context(), owner(), agent.AuthorizeRequest{Business: cardURL, Scopes: []string{"trips:read"}})
		if err != nil || r.Reason != agent.ReasonSignInPending {
			t.Fatalf("%+v, %v", r, err)
		}
		time.Sleep(6 * time.Minute)
		w.biz.set(func(b *business) { b.card["supportedInterfaces"].([]any)[0].(map[string]any)["tenant"] = "x" })
		c := w.person()
		c.SignIn = func(context.Context, agent.SignIn) error { t.Error("the link was shown"); return nil }
		r, err = a.WaitAuthorization(t.Context(), c, r.Authorization.ID)
		if err != nil || r.Status != agent.StatusFailed || r.Reason != agent.ReasonCardChanged || len(w.calls(egress.Token)) != 0 {
			t.Errorf("%+v, %v; %d polls", r, err, len(w.calls(egress.Token)))
		}
	})
}
