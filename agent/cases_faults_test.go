package agent_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// CV-11, CV-7, CV-10, GR-8, SG-9: what an inspection and a change end as when the
// business answers so, in a conversation that has a context.
func TestTurnFaults(t *testing.T) {
	t.Parallel()
	type end struct {
		status agent.Status
		reason string
	}
	same := func(status agent.Status, reason string) [2]end {
		return [2]end{{status, reason}, {status, reason}}
	}
	fast := func(c *siteConfig) { c.agent.Params.RateWaitMax = 20 * time.Millisecond }
	s := newSite(t, fast)
	a := s.granted(upcomingScope, rebookScope)
	for spec, want := range map[string][2]end{
		"identity-401":     same(agent.StatusBlocked, agent.ReasonIdentityRejected),
		"replay-401":       same(agent.StatusReplied, ""),
		"delegation-401":   same(agent.StatusNeedsUserAction, agent.ReasonReconnect),
		"status=503":       {{agent.StatusFailed, "http_503"}, {agent.StatusUnknown, "http_503"}},
		"status=404":       same(agent.StatusFailed, "business_not_found"),
		"status=307":       same(agent.StatusFailed, "http_307"),
		"too-many=1":       same(agent.StatusFailed, "rate_limited"),
		"too-many=1*3":     same(agent.StatusReplied, ""),
		"reply-role-user":  same(agent.StatusUnknown, "reply_not_from_agent"),
		"reply-context":    same(agent.StatusUnknown, "reply_context_mismatch"),
		"reply-no-context": same(agent.StatusReplied, ""),
		"reply-garbage":    same(agent.StatusUnknown, "invalid_reply"),
	} {
		for i, req := range []agent.SendRequest{showFlights, rebookFlight} {
			s.run(spec+" "+req.Effect, func(t *testing.T) {
				s, a := s, a
				if want[i].status == agent.StatusUnknown && req.Effect == "change" { // it holds all else back
					s = newSite(t, fast)
					a = s.granted(upcomingScope, rebookScope)
				}
				ran := s.executed(req.Message)
				first := s.send(a, s.person(), isOnTime, agent.StatusReplied, "")
				s.faults(spec)
				s.send(a, s.person(), in(req, first.Conversation), want[i].status, want[i].reason)
				if n := s.executed(req.Message) - ran; n > 1 {
					t.Errorf("carried out %d times", n)
				}
				s.faults()
				switch {
				case want[i].status != agent.StatusUnknown:
					s.send(a, s.person(), in(req, first.Conversation), agent.StatusReplied, "") // nothing is in the way
				case req.Effect == "change": // CV-4, CV-12
					s.noWire(func() { s.send(a, s.person(), req, agent.StatusBlocked, agent.ReasonUnresolved) })
				}
			})
		}
	}
}

// CV-11, CV-16, TR-10: whoever gives up while the business works on a message does
// not know whether it ran.
func TestLeavingInFlight(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	var works atomic.Bool
	s := newSite(t, func(cfg *siteConfig) {
		cfg.front = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/message:send") || !works.Load() {
					next.ServeHTTP(w, r)
					return
				}
				next.ServeHTTP(httptest.NewRecorder(), r)
				leave() // while it has no answer
				<-r.Context().Done()
				panic(http.ErrAbortHandler)
			})
		}
	})
	a := s.granted(rebookScope)
	first := s.send(a, s.person(), isOnTime, agent.StatusReplied, "")
	works.Store(true)
	req := in(rebookFlight, first.Conversation)
	req.Business = s.air
	r, err := a.Send(ctx, s.person(), req)
	s.expect("send", r, err, agent.StatusUnknown, string(egress.Aborted))
	if n := len(s.messages(rebookFlight.Message)); n != 1 {
		t.Errorf("sent %d times", n)
	}
	if n := s.executed(rebookFlight.Message); n != 1 {
		t.Errorf("carried out %d times", n)
	}
	works.Store(false)
	s.noWire(func() { s.send(a, s.person(), rebookFlight, agent.StatusBlocked, agent.ReasonUnresolved) })
}

// CV-13: a business that asks right again for what was granted is denied.
func TestStepUpAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	s.faults("step-up-again")
	s.send(a, s.person(), agent.SendRequest{Message: "Show my past flights", Effect: "inspect"}, agent.StatusDenied, agent.ReasonInsufficient)
	if n := len(s.calls(egress.DeviceAuthorization)); n != 1 || s.executed("Show my past flights") != 0 {
		t.Errorf("%d sign-ins, executed %d times", n, s.executed("Show my past flights"))
	}
}

// EV-2, EV-5: receipts that are of another form, grant or user, or alone, are
// invalid and hold changes back.
func TestReceiptFaults(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.granted(upcomingScope, rebookScope)
	for spec, issue := range map[string]string{
		"receipt-form": agent.IssueForm, "receipt-no-claims": agent.IssueForm,
		"receipt-grant": agent.IssueGrant, "receipt-user": agent.IssueUser,
	} {
		s.run(spec, func(t *testing.T) {
			s.faults(spec)
			r := s.send(a, s.person(), showFlights, agent.StatusReplied, "")
			if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictInvalid || len(r.Evidence.Issues) == 0 || r.Evidence.Issues[0] != issue {
				t.Errorf("evidence %+v", r.Evidence)
			}
			s.faults()
			s.noWire(func() { s.send(a, s.person(), rebookFlight, agent.StatusBlocked, agent.ReasonEvidenceReview) })
			if _, err := a.Acknowledge(t.Context(), owner(), r.Evidence.Receipt); err != nil {
				t.Error(err)
			}
			s.send(a, s.person(), rebookFlight, agent.StatusReplied, "")
		})
	}
}

// DA-2, DA-3, DA-6, DA-8, DA-19: how a sign-in ends when the business answers so.
func TestSignInFaults(t *testing.T) {
	t.Parallel()
	s := newSite(t, scaled(200), func(c *siteConfig) { c.agent.Params.RateWaitMax = 20 * time.Millisecond })
	a := s.enrolled()
	for spec, want := range map[string]struct {
		status agent.Status
		reason string
		polls  int
	}{
		"device-error=invalid_scope":  {agent.StatusFailed, agent.ReasonConsentScope, 0},
		"device-error=invalid_client": {agent.StatusFailed, agent.ReasonConsentRejected, 0},
		"device-429=1":                {agent.StatusFailed, agent.ReasonConsentUnavailable, 0},
		"device-no-complete":          {agent.StatusDone, "", 1},
		"device-expires=0":            {agent.StatusExpired, agent.ReasonConsentExpired, 0},
		"poll-error=access_denied":    {agent.StatusDenied, agent.ReasonAccessDenied, 1},
		"poll-error=expired_token":    {agent.StatusExpired, agent.ReasonConsentExpired, 1},
		"poll-error=invalid_grant":    {agent.StatusFailed, agent.ReasonConsentRejected, 1},
		"poll-status=503":             {agent.StatusFailed, agent.ReasonPollFailed, 6},
		"poll-status=503*5":           {agent.StatusDone, "", 6},
		"poll-429=1*2":                {agent.StatusDone, "", 3},
	} {
		s.run(spec, func(t *testing.T) {
			s.faults(spec)
			polls := len(s.polls())
			c := s.person()
			if spec == "device-no-complete" || spec == "device-expires=0" {
				c.SignIn = func(ctx context.Context, v agent.SignIn) error {
					s.saw(v)
					_, err := person.Person{Login: s.ready.Login}.AllowAll(ctx, s.iface+"/oauth/consent?user_code="+v.UserCode.Reveal())
					return err
				}
			}
			r := s.authorize(a, c, want.status, want.reason, upcomingScope)
			if r.Grant != nil {
				if _, err := a.Disconnect(t.Context(), owner(), r.Grant.ID); err != nil {
					t.Error(err)
				}
			}
			if n := len(s.polls()) - polls; n != want.polls {
				t.Errorf("%d polls, want %d", n, want.polls)
			}
			if z := r.Authorization; z != nil && s.sealed(z.ID) { // DA-10: at once
				t.Error("its codes are kept")
			}
			list, err := a.Authorizations(t.Context(), owner())
			if err != nil {
				t.Fatal(err)
			}
			for _, z := range list { // DA-10
				if z.State == "pending" || s.sealed(z.ID) {
					t.Errorf("%+v after %s; its codes are kept: %v", z, r.Status, s.sealed(z.ID))
				}
			}
		})
	}
}

// GR-6: a refresh that is rejected ends the grant, another failure keeps it.
func TestRefreshFaults(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]struct {
		status agent.Status
		state  string
	}{
		"refresh-error=invalid_grant": {agent.StatusNeedsUserAction, "invalid"},
		"refresh-error=slow_down":     {agent.StatusFailed, "active"},
	} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, refreshSoon)
			s.faults("access-ttl=30")
			a := s.granted(upcomingScope)
			s.faults(spec)
			s.send(a, s.person(), showFlights, want.status, agent.ReasonReconnect)
			if g := s.grant(a); g.State != want.state || len(s.calls(egress.Message)) != 0 {
				t.Errorf("grant %+v", g)
			}
		})
	}
}

// DI-2, DI-3, DI-11: a card that is cut off destroys nothing; one that may not be
// kept is good for a minute.
func TestCardFaults(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.granted(upcomingScope)
	s.faults("card-malformed")
	_, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: s.air, Refresh: true})
	if agent.ReasonOf(err) != agent.ReasonInvalidJSON {
		t.Errorf("discover: %v", err)
	}
	if g := s.grant(a); g.State != "active" {
		t.Errorf("grant %+v", g)
	}
	s.faults("card-no-store")
	if v := s.discover(a); v.Expires.Sub(v.Fetched) != time.Minute {
		t.Errorf("good for %v", v.Expires.Sub(v.Fetched))
	}
	s.send(a, s.person(), showFlights, agent.StatusReplied, "")
}

// Whatever is wrong with a business, an agent ends each thing it is asked for, carries
// a change out once at most, and calls nobody that the owner does not know: TR-3, UR-1,
// CV-12. What else is right for a fault has a test of its own.
func TestEveryFault(t *testing.T) {
	t.Parallel()
	for _, f := range sandbox.Faults() {
		// What a Provider takes or refuses of others' calls is nothing to an agent that calls well.
		if strings.HasPrefix(f.Name, "lax-") {
			continue
		}
		// An exchange goes on when its caller leaves, as long as its calls may take.
		if slices.Contains([]string{"token-hang", "token-slow", "jwks-hang", "jwks-slow"}, f.Name) {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, func(c *siteConfig) { c.agent.Params.RateWaitMax = 20 * time.Millisecond })
			a := s.enrolled()
			s.faults(f.Name)
			ctx, leave := context.WithTimeout(t.Context(), time.Second) // some faults hang
			defer leave()
			_, _ = a.Discover(ctx, owner(), agent.DiscoverRequest{CardURL: s.air})
			_, _ = a.Authorize(ctx, s.person(), agent.AuthorizeRequest{Business: s.air, Scopes: []string{upcomingScope, rebookScope}})
			for _, req := range []agent.SendRequest{showFlights, rebookFlight, rebookFlight} {
				req.Business = s.air
				r, err := a.Send(ctx, s.person(), req)
				if err == nil && r.Status == "" {
					t.Errorf("%s ended as nothing", req.Message)
				}
			}
			if sent, ran := len(s.messages(rebookFlight.Message)), s.executed(rebookFlight.Message); ran > 2 || ran > sent {
				t.Errorf("sent %d times, carried out %d times", sent, ran)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, req := range s.requests {
				known := func(origin string) bool { return strings.HasPrefix(req.url, origin+"/") }
				if !known(s.pa) && !known(s.ready.Provider) && !known(strings.TrimSuffix(s.air, "/.well-known/agent-card.json")) {
					t.Errorf("called %s", req.url)
				}
			}
		})
	}
}

// TR-1, TR-3, UR-1..UR-3: a card is not followed to where none may be, or without an end; to
// another origin it is, and what that origin serves counts.
func TestRedirectedCard(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	for kind, reason := range map[string]string{
		"301": "", "302": "", "303": "", "307": "", "308": "",
		"http": "redirect_not_allowed", "internal": "redirect_not_allowed", "javascript": "redirect_not_allowed", "userinfo": "redirect_not_allowed",
		"loop": "too_many_redirects", "many": "too_many_redirects", "no-location": agent.ReasonFetchFailed,
	} {
		s.run(kind, func(t *testing.T) {
			s.faults("card-redirect=" + kind)
			defer s.faults()
			v, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: s.air, Refresh: true})
			if agent.ReasonOf(err) != reason || reason == "" && !v.Supported {
				t.Errorf("%+v, %q %v", v.Chain, agent.ReasonOf(err), err)
			}
		})
	}
}

// TR-1, CV-11: a message is never sent again to where a redirect leads, and so nothing runs.
func TestRedirectedMessage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.granted(rebookScope)
	for _, kind := range []string{"301", "302", "303", "307", "308", "http", "internal", "javascript", "loop", "many", "no-location", "userinfo"} {
		s.run(kind, func(t *testing.T) {
			s.faults("redirect=" + kind)
			reason := "redirect_not_allowed"
			if kind == "no-location" {
				reason = "http_307"
			}
			s.send(a, s.person(), rebookFlight, agent.StatusFailed, reason)
			if n := s.executed(rebookFlight.Message); n != 0 {
				t.Errorf("carried out %d times", n)
			}
		})
	}
	s.faults()
	s.send(a, s.person(), rebookFlight, agent.StatusReplied, "") // nothing is in the way
}

// MD-1, TR-3: metadata and keys are read where they are said to be, and nowhere else.
func TestRedirectedMetadata(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"302", "http", "internal", "javascript", "loop", "many", "no-location", "userinfo"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			a := s.enrolled()
			s.faults("metadata-redirect=" + kind)
			s.authorize(a, s.person(), agent.StatusFailed, agent.ReasonMetadataInvalid, upcomingScope)
		})
	}
	t.Run("keys", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		a := s.enrolled()
		s.faults("jwks-redirect=302")
		s.authorize(a, s.person(), agent.StatusFailed, agent.ReasonPollFailed, upcomingScope) // a grant that cannot be verified is none
	})
}
