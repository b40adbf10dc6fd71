package agent_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// Input: a sign-in link that is no safe URL, as verification_uri or as
// verification_uri_complete. DA-2, UR-6: consent_unsafe_verification_uri; nothing
// is shown, kept or polled.
func TestCase05UnsafeSignInLink(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	for name, links := range map[string][]string{
		"script":          {"javascript:alert(1)"},
		"data":            {"data:text/html,<script>alert(1)</script>"},
		"file":            {"file:///etc/passwd"},
		"not encrypted":   {"http://login.larkline.example/device"},
		"private literal": {"https://10.0.0.1/device", "https://192.168.1.1/", "https://[fd00::1]/", "https://0xa000001/"},
		"metadata":        {"https://169.254.169.254/latest", "https://metadata.google.internal/"},
		"user-info":       {"https://larkline.example@evil.example/"},
	} {
		s.run(name, func(*testing.T) {
			for _, link := range links {
				for _, member := range []string{"device-uri=", "device-complete-uri="} {
					s.faults(member + link)
					s.unsafeLink(a, member+link)
				}
			}
		})
	}
}

// unsafeLink expects that a sign-in is refused for its link, and leaves nothing.
func (s *site) unsafeLink(a *agent.Agent, what string) {
	s.t.Helper()
	s.mu.Lock()
	before := len(s.shown)
	s.mu.Unlock()
	s.authorize(a, s.person(), agent.StatusFailed, agent.ReasonConsentUnsafe, upcomingScope)
	s.send(a, s.person(), showFlights, agent.StatusFailed, agent.ReasonConsentUnsafe)
	list, err := a.Authorizations(s.t.Context(), owner())
	kept := slices.ContainsFunc(list, func(z agent.AuthorizationView) bool { return z.State == "pending" })
	if err != nil || kept || len(s.shown) != before || len(s.polls()) != 0 || len(s.messages(showFlights.Message)) != 0 {
		s.t.Errorf("%s: shown %d times, polled %d times, kept %v, %v", what, len(s.shown)-before, len(s.polls()), kept, err)
	}
}

// Input: every URL of urls.json as the link. UR-1..UR-6 decide alike for cards and
// for links; development mode is what a loopback signer sets (UR-2).
func TestCase05LinkVectors(t *testing.T) {
	t.Parallel()
	type file struct {
		Cases []struct {
			URL         string
			Development bool
			Want        string
		}
	}
	vectors(t, "urls.json", func(t *testing.T, f file) {
		atLeastOne(t, len(f.Cases))
		s := newSite(t)
		a := s.enrolled()
		tried := 0
		for _, c := range f.Cases {
			// Development admits loopback in addition, and nothing else.
			_, loopback := (agent.URLRules{Development: true}).Check(c.URL)
			if c.URL == "" || !c.Development && c.Want == "refused" && loopback == nil {
				continue
			}
			tried++
			s.faults("device-complete-uri=" + c.URL)
			if c.Want == "refused" {
				s.unsafeLink(a, c.URL)
				continue
			}
			before := len(s.shown)
			person := s.person()
			person.SignIn = func(_ context.Context, v agent.SignIn) error { s.saw(v); return context.Canceled }
			if _, err := a.Authorize(t.Context(), person, agent.AuthorizeRequest{Business: s.air, Scopes: []string{pastScope}}); err == nil {
				t.Errorf("%s: it went on", c.URL)
			}
			if len(s.shown) != before+1 || s.shown[before].Link.Reveal() != c.URL {
				t.Errorf("%s: not shown", c.URL)
			}
			list, err := a.Authorizations(t.Context(), owner())
			if err != nil {
				t.Fatal(err)
			}
			for _, z := range list {
				if _, err := a.CancelAuthorization(t.Context(), owner(), z.ID); err != nil {
					t.Error(err)
				}
			}
		}
		atLeastOne(t, tried)
		for _, c := range f.Cases {
			if c.Development || c.URL == "" {
				continue
			}
			bubble.Test(t, func(t *testing.T) { // no socket leads to a public host
				w := newWorld(t)
				a := w.enrolled()
				w.biz.device["verification_uri_complete"] = c.URL
				person, shown := w.person(), 0
				signIn := person.SignIn
				person.SignIn = func(ctx context.Context, v agent.SignIn) error { shown++; return signIn(ctx, v) }
				status, reason := agent.StatusFailed, agent.ReasonConsentUnsafe
				if c.Want == "ok" {
					status, reason = agent.StatusDone, ""
				}
				w.authorize(a, person, status, reason)
				if (shown == 1) != (c.Want == "ok") {
					t.Errorf("%s: shown %d times", c.URL, shown)
				}
			})
		}
	})
}

// Input: intervals 0 and 1. DA-3: the first poll comes after 2 s at the least.
func TestCase06Interval(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"device-interval=0", "device-interval=1"} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, scaled(1), watchful) // an interval is stated in whole seconds
			a := s.enrolled()
			s.faults(spec)
			s.authorize(a, s.hurried(1500*time.Millisecond), agent.StatusDone, "", upcomingScope)
			polls := s.polls()
			if len(polls) != 1 {
				t.Fatalf("%d polls", len(polls))
			}
			s.waited("polled", s.calls(egress.DeviceAuthorization)[0], polls[0], 2*time.Second)
		})
	}
}

// Input: two slow_down. DA-5: 5 s more each, kept: 2, 7, 12 and 12 s.
func TestCase06SlowDown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	s.faults("poll-slow-down*2", "device-interval=0")
	s.authorize(a, s.person(), agent.StatusDone, "", upcomingScope)
	at, polls := s.calls(egress.DeviceAuthorization)[0], s.polls()
	if len(polls) != 3 {
		t.Fatalf("%d polls", len(polls))
	}
	for i, wait := range []time.Duration{2, 7, 12} {
		s.waited("polled", at, polls[i], wait*time.Second/siteScale)
		at = polls[i]
	}
}

// Input: 429 with Retry-After: 90. DA-6: no poll for 90 s, whatever the interval
// and whatever caps other waits.
func TestCase06RetryAfter(t *testing.T) {
	t.Parallel()
	s := newSite(t, watchful)
	a := s.enrolled()
	s.faults("poll-429=90*1", "device-interval=0")
	var once sync.Once
	s.watch = func(r egress.Request) {
		if r.Purpose == egress.Token {
			// Most of the 90 s pass at once, soon after the answer.
			once.Do(func() { time.AfterFunc(300*time.Millisecond, func() { s.jump.Store(int64(89 * time.Second)) }) })
		}
	}
	s.authorize(a, s.person(), agent.StatusDone, "", upcomingScope)
	polls := s.polls()
	if len(polls) != 2 {
		t.Fatalf("%d polls", len(polls))
	}
	s.waited("polled", polls[0], polls[1], 90*time.Second)
}

// Input: a granted token with another aud, client_id or iss, a scope that is not
// the response's, or another's signature. DA-11: grant_refused, nothing stored.
// DA-10: the device code is deleted, and the sign-in settled once.
func TestCase07GrantRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	for _, spec := range []string{
		"grant-aud=https://other.example/a2a/air", "grant-client-id=https://other.example", "grant-iss=https://other.example",
		"grant-scope", "grant-signature",
	} {
		s.run(spec, func(t *testing.T) {
			s.faults(spec)
			polls := len(s.polls())
			c := s.person()
			signIn := c.SignIn
			c.SignIn = func(ctx context.Context, v agent.SignIn) error {
				if !s.sealed(v.Authorization) {
					t.Error("the device code was not kept while it was needed")
				}
				return signIn(ctx, v)
			}
			r := s.send(a, c, showFlights, agent.StatusFailed, agent.ReasonGrantRefused)
			if grants, err := a.Grants(t.Context(), owner()); err != nil || len(grants) != 0 {
				t.Errorf("stored %+v, %v", grants, err)
			}
			if r.Authorization == nil || r.Authorization.State != "failed" || s.sealed(r.Authorization.ID) {
				t.Errorf("sign-in %+v; its code is kept: %v", r.Authorization, s.sealed(r.Authorization.ID))
			}
			if len(s.polls()) != polls+1 || len(s.calls(egress.Message)) != 0 {
				t.Errorf("%d polls, %d messages", len(s.polls())-polls, len(s.calls(egress.Message)))
			}
			// Neither the owner nor another wait settles it again.
			s.noWire(func() {
				if _, err := a.CancelAuthorization(t.Context(), owner(), r.Authorization.ID); err != nil {
					t.Error(err)
				}
				again, err := a.WaitAuthorization(t.Context(), s.person(), r.Authorization.ID)
				s.expect("wait", again, err, agent.StatusFailed, agent.ReasonGrantRefused)
			})
			list, err := a.Authorizations(t.Context(), owner())
			if err != nil || list[0].ID != r.Authorization.ID || list[0].State != "failed" || !list[0].Settled.Equal(r.Authorization.Settled) {
				t.Errorf("sign-ins %+v, %v", list, err)
			}
		})
	}
}

// Input: ten sends at once when the token has 30 s left. GR-5: exactly one
// refresh, and all go out under what it brought.
func TestCase08OneRefresh(t *testing.T) {
	t.Parallel()
	s := newSite(t, refreshSoon)
	s.faults("access-ttl=30")
	a := s.granted(upcomingScope)
	s.faults()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			r := s.send(a, s.person(), showFlights, agent.StatusReplied, "")
			if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
				t.Errorf("evidence %+v", r.Evidence)
			}
		})
	}
	wg.Wait()
	if n := len(s.refreshes()); n != 1 {
		t.Errorf("%d refreshes", n)
	}
	sent := s.messages(showFlights.Message)
	if len(sent) != 10 || s.executed(showFlights.Message) != 10 {
		t.Errorf("%d sent, %d executed", len(sent), s.executed(showFlights.Message))
	}
	for _, m := range sent {
		if token := m.header.Get("X-A2A-User-Delegation"); token == "" || token != sent[0].header.Get("X-A2A-User-Delegation") {
			t.Error("not all were sent under the one token that the refresh brought")
		}
	}
	if g := s.grant(a); g.State != "active" || time.Until(g.TokenExpires) < time.Minute {
		t.Errorf("grant %+v", g)
	}
}

// refreshSoon has a token of less than a minute refreshed, as the rules say, for
// its life is in the business's seconds.
func refreshSoon(c *siteConfig) { c.agent.Params.RefreshAt = agent.Defaults().RefreshAt }

// Input: a refresh that answers fewer scopes. GR-7: no turn goes out with a scope
// that is not covered; the owner is asked anew.
func TestCase08RefreshNarrows(t *testing.T) {
	t.Parallel()
	s := newSite(t, refreshSoon)
	s.faults("access-ttl=30")
	a := s.granted(upcomingScope, pastScope)
	s.faults("refresh-narrow=" + pastScope)
	past := agent.SendRequest{Message: "Show my past flights", Effect: "inspect", Scopes: []string{pastScope}}
	r := s.send(a, owner(), past, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
	if len(s.refreshes()) != 1 || len(s.messages(past.Message)) != 0 {
		t.Errorf("%d refreshes, %d messages", len(s.refreshes()), len(s.messages(past.Message)))
	}
	if g := s.grant(a); g.State != "active" || !slices.Equal(g.Scopes, []string{upcomingScope}) {
		t.Errorf("grant %+v", g)
	}
	// What is covered still goes out.
	s.send(a, owner(), showFlights, agent.StatusReplied, "")
	if r.Authorization == nil || !slices.Contains(r.Authorization.Needed, pastScope) {
		t.Errorf("sign-in %+v", r.Authorization)
	}
}

// Input: a refresh that answers more scopes. GR-7: refused, and the grant ends.
func TestCase08RefreshWidens(t *testing.T) {
	t.Parallel()
	s := newSite(t, refreshSoon)
	s.faults("access-ttl=30")
	a := s.granted(upcomingScope)
	s.faults("refresh-wide=" + cancelScope)
	s.send(a, s.person(), showFlights, agent.StatusNeedsUserAction, agent.ReasonRefreshWidened)
	if len(s.refreshes()) != 1 || len(s.calls(egress.Message)) != 0 {
		t.Errorf("%d refreshes, %d messages", len(s.refreshes()), len(s.calls(egress.Message)))
	}
	if g := s.grant(a); g.State != "invalid" || g.Reason != agent.ReasonRefreshWidened || s.sealed(g.ID) {
		t.Errorf("grant %+v", g)
	}
}

// Input: a refresh that brings no new refresh token. GR-7: the old one is kept,
// and used the next time.
func TestCase08RefreshKeeps(t *testing.T) {
	t.Parallel()
	s := newSite(t, refreshSoon)
	s.faults("access-ttl=30")
	a := s.granted(upcomingScope)
	s.faults("access-ttl=30", "refresh-keep")
	for range 2 {
		s.send(a, s.person(), showFlights, agent.StatusReplied, "")
	}
	got := s.refreshes()
	if len(got) != 2 || got[0].body != got[1].body {
		t.Errorf("%d refreshes, or not by the same token", len(got))
	}
	if g := s.grant(a); g.State != "active" {
		t.Errorf("grant %+v", g)
	}
}
