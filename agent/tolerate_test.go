package agent_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// What other providers do, and no send may break by.

var isOnTime = agent.SendRequest{Message: "Is LK 204 on time?", Effect: "inspect"}

// S18-1, MD-5, DA-14: the login page is on another origin than the provider: the
// link is shown, flagged, and works.
func TestToleratesLoginElsewhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	var consent atomic.Pointer[string]
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, *consent.Load(), http.StatusFound)
	}))
	defer login.Close()
	link := strings.Replace(login.URL, "127.0.0.1", "localhost", 1) + "/device"
	s.faults("device-uri="+link, "device-complete-uri="+link)
	c := s.person()
	signIn := c.SignIn
	c.SignIn = func(ctx context.Context, v agent.SignIn) error {
		real := s.iface + "/oauth/consent?user_code=" + url.QueryEscape(v.UserCode.Reveal())
		consent.Store(&real)
		return signIn(ctx, v)
	}
	s.send(a, c, showFlights, agent.StatusReplied, "")
	if v := s.shown[0]; v.Matches || v.LinkOrigin != strings.TrimSuffix(link, "/device") || v.InterfaceOrigin != s.ready.Provider {
		t.Errorf("shown from %s, matches %v", v.LinkOrigin, v.Matches)
	}
}

// S18-1, DA-19: an interval of 3 s is obeyed.
func TestToleratesIntervalOfThree(t *testing.T) {
	t.Parallel()
	s := newSite(t, watchful)
	a := s.enrolled()
	s.faults("device-interval=3")
	s.authorize(a, s.hurried(2500*time.Millisecond), agent.StatusDone, "", upcomingScope)
	s.waited("polled", s.calls(egress.DeviceAuthorization)[0], s.polls()[0], 3*time.Second)
}

// S18-1, DI-3: a card with max-age=300 is good for 300 s, and fetched anew then.
func TestToleratesCardOfFiveMinutes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	s.faults("card-max-age=300")
	v := s.discover(a)
	if life := v.Expires.Sub(v.Fetched); life != 300*time.Second {
		t.Errorf("good for %v", life)
	}
	for jump, fetches := range map[time.Duration]int{290 * time.Second: 1, 310 * time.Second: 2} {
		s.jump.Store(0)
		s.discover(a)
		before := len(s.calls(egress.Card)) - 1
		s.jump.Store(int64(jump))
		if _, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: s.air}); err != nil {
			t.Fatal(err)
		}
		if n := len(s.calls(egress.Card)) - before; n != fetches {
			t.Errorf("after %v: fetched %d times, want %d", jump, n, fetches)
		}
	}
}

// S18-2, CV-5, CV-6, CV-7: a contextId must be a UUID there, so only what the
// business minted is sent. TR-6: replies and step-ups as either media type.
func TestToleratesContextsAndMediaTypes(t *testing.T) {
	t.Parallel()
	for name, specs := range map[string][]string{"application/a2a+json": nil, "application/json": {"reply-json"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			a := s.enrolled()
			s.faults(specs...)
			r := s.send(a, s.person(), agent.SendRequest{Message: "Rebook my next flight", Effect: "change"}, agent.StatusReplied, "")
			s.send(a, s.person(), in(isOnTime, r.Conversation), agent.StatusReplied, "")
			if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
				t.Errorf("evidence %+v", r.Evidence)
			}
			v, err := a.Conversation(t.Context(), owner(), r.Conversation)
			if err != nil || uuid.Validate(v.ContextID) != nil {
				t.Errorf("context %q, %v", v.ContextID, err)
			}
			// The introduction, the change, the change with consent, the question.
			sent := s.calls(egress.Message)
			if len(sent) != 4 {
				t.Fatalf("%d messages", len(sent))
			}
			for i, m := range sent {
				want := v.ContextID
				if i == 0 {
					want = ""
				}
				if got := sentMessage(t, m).Context; got != want {
					t.Errorf("message %d: context %q, want %q", i, got, want)
				}
			}
		})
	}
}

// S18-3, DI-9: two bearer-JWT schemes on one card take the same token.
func TestToleratesTwoBearerSchemes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	s.faults("card-second-scheme")
	if v := s.discover(a); !v.Supported || v.Profile != agent.ProfileDelegated {
		t.Errorf("got %+v", v)
	}
	s.send(a, s.person(), showFlights, agent.StatusReplied, "")
	s.send(a, s.person(), rebookFlight, agent.StatusReplied, "")
}

// S18-4, CV-13, DA-18: a step-up on the very first, undelegated turn; without a
// messageId; without a link, or with a foreign one, which is never shown; with
// several permissions at once. The message goes again, as another one, in the same
// context.
func TestToleratesStepUps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		specs  []string
		scopes []string
	}{
		"first turn":    {[]string{"step-up-first*1"}, []string{upcomingScope}},
		"no message id": {[]string{"step-up-first*1", "step-up-no-message-id"}, []string{upcomingScope}},
		"no link":       {[]string{"step-up-first*1", "step-up-no-link"}, []string{upcomingScope}},
		"foreign link":  {[]string{"step-up-first*1", "step-up-link=https://evil.example/take-over"}, []string{upcomingScope}},
		"several":       {[]string{"step-up-first*1", "step-up-more=" + pastScope}, []string{pastScope, upcomingScope}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			a := s.enrolled()
			s.faults(c.specs...)
			r := s.send(a, s.person(), isOnTime, agent.StatusReplied, "")
			if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
				t.Errorf("evidence %+v", r.Evidence)
			}
			if g := s.grant(a); !slices.Equal(g.Scopes, c.scopes) {
				t.Errorf("granted %v, want %v", g.Scopes, c.scopes)
			}
			if len(s.shown) != 1 || s.shown[0].LinkOrigin != origin(s.air) {
				t.Errorf("shown %d times", len(s.shown))
			}
			sent := s.messages(isOnTime.Message)
			if len(sent) != 2 || s.executed(isOnTime.Message) != 1 {
				t.Fatalf("sent %d times, executed %d times", len(sent), s.executed(isOnTime.Message))
			}
			first, second := sentMessage(t, sent[0]), sentMessage(t, sent[1])
			v, err := a.Conversation(t.Context(), owner(), r.Conversation)
			if err != nil || first.ID == second.ID || first.Context != "" || second.Context == "" || second.Context != v.ContextID {
				t.Errorf("sent %+v, then %+v, in %q, %v", first, second, v.ContextID, err)
			}
			if name != "several" {
				return
			}
			// A change after it: its introduction is asked for permissions as well.
			s.faults(c.specs...)
			s.send(a, s.person(), agent.SendRequest{Message: "Rebook my next flight", Effect: "change"}, agent.StatusReplied, "")
			if n := s.executed("Rebook my next flight"); n != 1 {
				t.Errorf("the change was carried out %d times", n)
			}
		})
	}
}

// S18-5, DA-12, AD-9: a step-up adds permissions, so that the token holds more than
// was asked for: the owner is asked about that, and the turn goes on.
func TestToleratesMoreThanWasAsked(t *testing.T) {
	t.Parallel()
	t.Run("another grant", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		a := s.enrolled()
		s.faults("grant-extra=" + cancelScope)
		r := s.send(a, s.person(), agent.SendRequest{Message: "Show my upcoming flights", Effect: "inspect"}, agent.StatusReplied, "")
		if len(s.asked) != 1 || !s.asked[0].Exceeds || s.asked[0].Effect != agent.EffectInspect || !slices.Contains(ids(s.asked[0].TokenScopes), cancelScope) {
			t.Errorf("asked %+v", s.asked)
		}
		if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
			t.Errorf("evidence %+v", r.Evidence)
		}
	})
	t.Run("the same grant", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := w.enrolled()
			w.authorize(a, w.person(), agent.StatusDone, "")
			w.biz.answer = func(u turn) (int, any) {
				if slices.Contains(u.scopes, "trips:history") {
					return 0, nil
				}
				return 200, stepUp("ctx-9", "trips:history")
			}
			c, asked := w.person(), 0
			c.SignIn = func(context.Context, agent.SignIn) error {
				w.biz.allow("trips:read", "trips:history", "trips:cancel") // grant_id is g-1 as before
				return nil
			}
			c.Approve = func(_ context.Context, r agent.ApprovalRequest) (bool, error) { asked++; return r.Exceeds, nil }
			r := w.send(a, c, readTrips, agent.StatusReplied, "")
			if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified || asked != 1 {
				t.Errorf("evidence %+v, asked %d times", r.Evidence, asked)
			}
		})
	})
}

// S18-6, EV-8: a reply that says the work still runs is a reply. It is no evidence
// that anything was done, and another message may follow.
func TestToleratesStillRunning(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.granted(rebookScope)
	s.faults("still-running")
	plain := s.send(a, s.person(), isOnTime, agent.StatusReplied, "")
	if plain.Evidence != nil || !strings.Contains(plain.Reply, "still work") {
		t.Errorf("got %+v", plain)
	}
	change := s.send(a, s.person(), rebookFlight, agent.StatusReplied, "")
	if n := len(s.messages(rebookFlight.Message)); n != 1 || s.executed(rebookFlight.Message) != 0 {
		t.Errorf("sent %d times, executed %d times", n, s.executed(rebookFlight.Message))
	}
	v, err := a.Receipt(t.Context(), owner(), change.Evidence.Receipt)
	if err != nil || len(v.Actions) != 0 || len(v.ScopesUsed) != 0 {
		t.Errorf("receipt %+v, %v", v, err)
	}
	s.faults()
	s.send(a, s.person(), in(isOnTime, change.Conversation), agent.StatusReplied, "")
}

// S18-7, CV-9, CV-14, EV-2: a retry brings the stored reply with its original
// receipt, which is that message's own: after "no reply yet" by itself, after a
// lost connection when the owner reconciles.
func TestToleratesStoredReply(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.granted(upcomingScope, rebookScope)
	first := s.send(a, s.person(), showFlights, agent.StatusReplied, "")
	s.faults("no-reply*2")
	r := s.send(a, s.person(), in(rebookFlight, first.Conversation), agent.StatusReplied, "")
	if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
		t.Errorf("evidence %+v", r.Evidence)
	}
	sent := s.messages(rebookFlight.Message)
	if len(sent) != 3 || sent[0].body != sent[1].body || sent[1].body != sent[2].body || s.executed(rebookFlight.Message) != 1 {
		t.Errorf("sent %d times, executed %d times", len(sent), s.executed(rebookFlight.Message))
	}

	lost := agent.SendRequest{Message: "Cancel my next flight", Effect: "change", Scopes: []string{cancelScope}}
	s.authorize(a, s.person(), agent.StatusDone, "", cancelScope)
	s.faults("drop-after")
	s.send(a, s.person(), in(lost, first.Conversation), agent.StatusUnknown, string(egress.Network))
	s.faults()
	again, err := a.Reconcile(t.Context(), s.person(), agent.ReconcileRequest{Conversation: first.Conversation})
	s.expect("reconcile", again, err, agent.StatusReplied, "")
	if again.Evidence == nil || again.Evidence.Verdict != agent.VerdictVerified {
		t.Errorf("evidence %+v", again.Evidence)
	}
	sent = s.messages(lost.Message)
	if len(sent) != 2 || sent[0].body != sent[1].body || s.executed(lost.Message) != 1 {
		t.Errorf("sent %d times, executed %d times", len(sent), s.executed(lost.Message))
	}
}

// S18-8, DA-6, DA-8: pending after approval, while the grant is written; a 500
// with server_error.
func TestToleratesSlowGrants(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"poll-pending*2", "poll-status=500*2"} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			a := s.enrolled()
			s.faults(spec)
			s.send(a, s.person(), showFlights, agent.StatusReplied, "")
			if n := len(s.polls()); n != 3 {
				t.Errorf("%d polls", n)
			}
		})
	}
}

// S18-8, TR-7: a sign-in start is limited with Retry-After: 60. It is waited for,
// and the sign-in begins.
func TestToleratesLimitedStart(t *testing.T) {
	t.Parallel()
	t.Run("the wait", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, func(c *siteConfig) { c.agent.Params.RateWaitMax = agent.MaxRetryAfter })
		a := s.enrolled()
		s.faults("device-429=60*1")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		c, wait := s.person(), time.Duration(0)
		c.Progress = func(e agent.Event) {
			if e.Kind == agent.EventWaiting {
				wait = time.Until(e.Until)
				stop()
			}
		}
		req := showFlights
		req.Business = s.air
		r, err := a.Send(ctx, c, req)
		s.expect("send", r, err, agent.StatusCancelled, agent.ReasonUserCancelled)
		if wait < 50*time.Second || wait > 60*time.Second {
			t.Errorf("waits %v", wait)
		}
	})
	t.Run("the sign-in", func(t *testing.T) {
		t.Parallel()
		const most = 300 * time.Millisecond
		s := newSite(t, func(c *siteConfig) { c.agent.Params.RateWaitMax = most })
		a := s.enrolled()
		s.faults("device-429=60*1")
		s.send(a, s.person(), showFlights, agent.StatusReplied, "")
		starts := s.calls(egress.DeviceAuthorization)
		if len(starts) != 2 {
			t.Fatalf("%d starts", len(starts))
		}
		s.waited("started", starts[0], starts[1], most)
	})
}

// S18-8, GR-5: near the end of a grant a token lives shorter than what is refreshed
// at, and is good until it ends.
func TestToleratesShortTokens(t *testing.T) {
	t.Parallel()
	s := newSite(t, refreshSoon)
	s.faults("access-ttl=20")
	a := s.granted(upcomingScope)
	s.faults("access-ttl=20")
	for range 3 {
		r := s.send(a, s.person(), showFlights, agent.StatusReplied, "")
		if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
			t.Errorf("evidence %+v", r.Evidence)
		}
	}
	if g := s.grant(a); g.State != "active" {
		t.Errorf("grant %+v", g)
	}
}

// S18-9, CV-11: an error envelope without @type, without details, or with a status
// that is none of the four is an A2A error all the same. What names its reason is
// judged by it, and what does not is an unknown code.
func TestToleratesErrorEnvelopes(t *testing.T) {
	t.Parallel()
	const closed = `"reason": "UNSUPPORTED_OPERATION", "domain": "a2a-protocol.org"}`
	for name, c := range map[string]struct {
		status int
		body   string
		inspect,
		change agent.Status
	}{
		"no @type":     {400, `{"error": {"code": 400, "status": "FAILED_PRECONDITION", "message": "closed", "details": [{` + closed + `]}}`, agent.StatusReplied, agent.StatusReplied},
		"other status": {409, `{"error": {"code": 409, "status": "ABORTED", "message": "closed", "details": [{"@type": "x", ` + closed + `]}}`, agent.StatusReplied, agent.StatusReplied},
		"no details":   {400, `{"error": {"code": 400, "status": "FAILED_PRECONDITION", "message": "closed"}}`, agent.StatusFailed, agent.StatusUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var spoil atomic.Bool
			s := newSite(t, func(cfg *siteConfig) {
				cfg.front = func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if strings.HasSuffix(r.URL.Path, "/message:send") && spoil.CompareAndSwap(true, false) {
							_, _ = io.Copy(io.Discard, r.Body)
							respond(w, c.status, c.body)
							return
						}
						next.ServeHTTP(w, r)
					})
				}
			})
			a := s.granted(upcomingScope, rebookScope)
			first := s.send(a, s.person(), showFlights, agent.StatusReplied, "")
			for _, turn := range []struct {
				req  agent.SendRequest
				want agent.Status
			}{{showFlights, c.inspect}, {rebookFlight, c.change}} {
				spoil.Store(true)
				turn.req.Conversation, turn.req.Business = first.Conversation, s.air
				r, err := a.Send(t.Context(), s.person(), turn.req)
				if err != nil || r.Status != turn.want || spoil.Load() {
					t.Errorf("%s: %+v, %v; want %s", turn.req.Message, r, err, turn.want)
				}
			}
		})
	}
	t.Run("the sandbox's own", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		a := s.enrolled()
		bye := s.send(a, s.person(), agent.SendRequest{Message: "Goodbye", Effect: "inspect"}, agent.StatusReplied, "")
		s.faults("envelope-bare*1")
		s.send(a, s.person(), in(isOnTime, bye.Conversation), agent.StatusFailed, "business_error")
		s.send(a, s.person(), in(isOnTime, bye.Conversation), agent.StatusReplied, "") // a fresh context
	})
}

// S18-10, DI-4: a card without provider, by redirect from the brand, of the brand
// itself, and of a provider with one brand at its own well-known place.
func TestToleratesCards(t *testing.T) {
	t.Parallel()
	single := func(c *siteConfig) { c.box.Brands = []sandbox.Brand{sandbox.Larkline(time.Now())} }
	for name, c := range map[string]struct {
		change func(*siteConfig)
		specs  []string
		card   func(*site) string
		chain  func(*site, string) []string
	}{
		"no provider": {nil, []string{"card-no-provider"}, func(s *site) string { return s.air },
			func(s *site, card string) []string { return []string{origin(card), s.ready.Provider} }},
		"by redirect": {nil, nil, func(s *site) string { return s.air },
			func(s *site, card string) []string { return []string{origin(card), s.ready.Provider} }},
		"of the brand itself": {nil, nil, func(s *site) string {
			brand := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				resp, err := http.Get(s.iface + "/.well-known/agent-card.json")
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				_, _ = io.Copy(w, resp.Body)
			}))
			s.t.Cleanup(brand.Close)
			return brand.URL + "/.well-known/agent-card.json"
		}, func(_ *site, card string) []string { return []string{origin(card)} }},
		"of a provider with one brand": {single, nil, func(s *site) string { return s.ready.Provider + "/.well-known/agent-card.json" },
			func(s *site, _ string) []string { return []string{s.ready.Provider} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			change := c.change
			if change == nil {
				change = func(*siteConfig) {}
			}
			s := newSite(t, change)
			a := s.enrolled()
			s.faults(c.specs...)
			s.air = c.card(s)
			v := s.discover(a)
			if want := c.chain(s, s.air); !v.Supported || !slices.Equal(v.Chain, want) || v.InterfaceURL != s.iface {
				t.Errorf("got %+v, want the chain %v", v, want)
			}
			s.send(a, s.person(), showFlights, agent.StatusReplied, "")
			s.send(a, s.person(), rebookFlight, agent.StatusReplied, "")
			if got := s.shown[0]; !slices.Equal(got.CardChain, v.Chain) || got.CardURL != s.air {
				t.Errorf("shown with %v and %s", got.CardChain, got.CardURL)
			}
		})
	}
}

func origin(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return agent.Origin(u)
}

// S18-11, UR-2, UR-6: a consent page on the provider's own machine is shown in
// development mode only.
func TestToleratesConsentOnLoopback(t *testing.T) {
	t.Parallel()
	const link = "https://127.0.0.1:8443/consent?user_code=ABCD-EFGH"
	t.Run("development", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		a := s.enrolled()
		s.faults("device-uri=https://127.0.0.1:8443/consent", "device-complete-uri="+link)
		c := s.person()
		c.SignIn = func(ctx context.Context, v agent.SignIn) error {
			s.saw(v)
			// Nobody is there; the same code works at the page that is.
			_, err := person.Person{Login: s.ready.Login}.AllowAll(ctx, s.iface+"/oauth/consent?user_code="+url.QueryEscape(v.UserCode.Reveal()))
			return err
		}
		s.send(a, c, showFlights, agent.StatusReplied, "")
		if len(s.shown) != 1 || s.shown[0].Link.Reveal() != link {
			t.Errorf("shown %d times", len(s.shown))
		}
	})
	t.Run("production", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := w.enrolled()
			w.biz.device["verification_uri_complete"] = link
			c := w.person()
			c.SignIn = func(context.Context, agent.SignIn) error { t.Error("shown"); return nil }
			w.authorize(a, c, agent.StatusFailed, agent.ReasonConsentUnsafe)
		})
	})
}

// S18-12, EV-9: argsHash in any format is shown and never checked.
func TestToleratesArgsHashes(t *testing.T) {
	t.Parallel()
	hashes := []string{"sha256:00", "d41d8cd98f00b204e9800998ecf8427e", "not a hash", "{\"a\":1}", strings.Repeat("x", 150), ""}
	t.Run("text", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, func(c *siteConfig) {
			brand := sandbox.Larkline(time.Now())
			brand.Respond = func(_ context.Context, turn sandbox.Turn) (sandbox.Reply, error) {
				r := sandbox.Reply{Text: "Done.", Used: turn.Scopes}
				for _, h := range hashes {
					r.Actions = append(r.Actions, sandbox.Action{Tool: "tool", ArgsHash: h})
				}
				return r, nil
			}
			c.box.Brands = []sandbox.Brand{brand}
		})
		a := s.granted(upcomingScope)
		r := s.send(a, s.person(), showFlights, agent.StatusReplied, "")
		v, err := a.Receipt(t.Context(), owner(), r.Evidence.Receipt)
		if err != nil || v.Verdict != agent.VerdictVerified || len(v.Actions) != len(hashes) {
			t.Fatalf("receipt %+v, %v", v, err)
		}
		for i, h := range hashes {
			if v.Actions[i].ArgsHash != h {
				t.Errorf("shown %q, want %q", v.Actions[i].ArgsHash, h)
			}
		}
	})
	t.Run("not even text", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := granted(w, 30*time.Minute, "trips:read")
			w.biz.receipt = func(claims, _ map[string]any) {
				claims["actions"] = []any{
					map[string]any{"tool": "a", "argsHash": 12}, map[string]any{"tool": "b", "argsHash": map[string]any{"alg": "md5"}}, map[string]any{"tool": "c", "argsHash": nil},
				}
			}
			r := w.send(a, owner(), readTrips, agent.StatusReplied, "")
			v, err := a.Receipt(t.Context(), owner(), r.Evidence.Receipt)
			if err != nil || v.Verdict != agent.VerdictVerified || len(v.Actions) != 3 || v.Actions[0].ArgsHash != "12" {
				t.Errorf("receipt %+v, %v", v, err)
			}
		})
	})
}
