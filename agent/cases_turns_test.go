package agent_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
)

// Input: a change whose connection drops after the request was written, the
// business having carried it out or not. CV-11: outcome_unknown. CV-4: a second
// change is blocked, in this and in a new conversation, after a restart and after
// every lease. CV-12: it is never sent again.
func TestCase09ConnectionLost(t *testing.T) {
	t.Parallel()
	for spec, ran := range map[string]int{"drop-before": 0, "drop-after": 1} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			a := s.granted(upcomingScope, rebookScope)
			first := s.send(a, s.person(), showFlights, agent.StatusReplied, "")
			s.faults(spec)
			r := s.send(a, s.person(), in(rebookFlight, first.Conversation), agent.StatusUnknown, string(egress.Network))
			if !strings.Contains(r.Detail, "Do not repeat it by another route") {
				t.Errorf("detail %q", r.Detail)
			}
			s.faults()
			if n := s.executed(rebookFlight.Message); n != ran {
				t.Errorf("carried out %d times", n)
			}
			another := agent.SendRequest{Message: "Cancel my next flight", Effect: "change", Scopes: []string{cancelScope}}
			blocked := func(a *agent.Agent) {
				t.Helper()
				s.noWire(func() {
					for _, req := range []agent.SendRequest{rebookFlight, another, {Message: "Buy a seat"}} {
						s.send(a, s.person(), in(req, first.Conversation), agent.StatusBlocked, agent.ReasonUnresolved)
						s.send(a, s.person(), req, agent.StatusBlocked, agent.ReasonUnresolved)
					}
				})
			}
			blocked(a)
			s.jump.Add(int64(4 * time.Minute)) // beyond every lease
			b := s.open()
			if _, err := b.Status(t.Context(), owner()); err != nil {
				t.Fatal(err)
			}
			blocked(b)
			blocked(a)
			if n := len(s.messages(rebookFlight.Message)); n != 1 {
				t.Errorf("sent %d times", n)
			}
			v, err := b.Conversation(t.Context(), owner(), first.Conversation)
			if m := v.Messages[len(v.Messages)-1]; err != nil || v.State != "outcome_unknown" || m.State != "outcome_unknown" || m.Attempts != 1 {
				t.Errorf("conversation %+v, %v", v, err)
			}
		})
	}
}

// Input: a kill in sending, a start 10 s and 4 min later. RS-1, RS-3, CV-12:
// outcome_unknown in both, never sent again. A kill in prepared. RS-2: never_sent.
func TestCase10Killed(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *siteConfig) {
		c.agent.Params.TokenReuse = 1 // the signer is asked between prepared and sending
	})
	a := s.granted(upcomingScope, rebookScope)
	first := s.send(a, s.person(), showFlights, agent.StatusReplied, "")
	snapshots := map[string][]string{} // by the state of the message
	s.mu.Lock()
	s.watch = func(r egress.Request) {
		list, err := a.Conversations(t.Context(), owner())
		if err != nil || len(list) == 0 {
			return
		}
		v, err := a.Conversation(t.Context(), owner(), first.Conversation)
		if err != nil {
			t.Error(err)
			return
		}
		m := v.Messages[len(v.Messages)-1]
		if m.Text == rebookFlight.Message && len(snapshots[m.State]) == 0 {
			snapshots[m.State] = []string{s.snapshot(), s.snapshot()}
		}
	}
	s.mu.Unlock()
	s.send(a, s.person(), in(rebookFlight, first.Conversation), agent.StatusReplied, "")
	s.mu.Lock()
	s.watch = nil
	s.mu.Unlock()
	if len(snapshots["prepared"]) != 2 || len(snapshots["sending"]) != 2 {
		t.Fatalf("killed in %v", snapshots)
	}
	for i, after := range []time.Duration{10 * time.Second, 4 * time.Minute} {
		for state, want := range map[string]struct{ state, reason string }{
			"sending":  {"outcome_unknown", agent.ReasonInterrupted},
			"prepared": {"cancelled", agent.ReasonNeverSent},
		} {
			t.Run(state+" "+after.String(), func(t *testing.T) {
				s.jump.Store(int64(after))
				defer s.jump.Store(0)
				var b *agent.Agent
				s.noWire(func() {
					b = s.openIn(snapshots[state][i])
					v, err := b.Conversation(t.Context(), owner(), first.Conversation)
					m := v.Messages[len(v.Messages)-1]
					if err != nil || m.State != want.state || m.Reason != want.reason || m.Attempts > 1 {
						t.Errorf("message %+v, %v", m, err)
					}
					if state == "sending" {
						s.send(b, s.person(), rebookFlight, agent.StatusBlocked, agent.ReasonUnresolved)
						s.send(b, s.person(), in(rebookFlight, first.Conversation), agent.StatusBlocked, agent.ReasonUnresolved)
					}
				})
				if state == "prepared" { // nothing is in the way of doing it now
					s.send(b, s.person(), in(rebookFlight, first.Conversation), agent.StatusReplied, "")
				}
			})
		}
	}
}

// Input: a shutdown during consent. DA-17: the sign-in is pending after the next
// start, and goes on.
func TestCase10ShutdownDuringConsent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	ctx, stop := context.WithCancel(t.Context())
	c := s.person()
	c.SignIn = func(context.Context, agent.SignIn) error { stop(); return nil }
	r, err := a.Authorize(ctx, c, agent.AuthorizeRequest{Business: s.air, Scopes: []string{upcomingScope}})
	s.expect("authorize", r, err, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
	a.Close()
	b := s.open()
	list, err := b.Authorizations(t.Context(), owner())
	if err != nil || len(list) != 1 || list[0].State != "pending" || list[0].ID != r.Authorization.ID {
		t.Fatalf("sign-ins %+v, %v", list, err)
	}
	got, err := b.WaitAuthorization(t.Context(), s.person(), list[0].ID)
	s.expect("wait", got, err, agent.StatusDone, "")
	if len(s.calls(egress.DeviceAuthorization)) != 1 {
		t.Error("a second sign-in was started")
	}
	s.send(b, owner(), showFlights, agent.StatusReplied, "")
}

// Input: "no reply yet" for ever. CV-9: the same id and bytes after 2, 4, 8, 16 and
// 30 s, then provider_still_processing. CV-4, CV-12: a change is not repeated.
func TestCase11NoReplyYet(t *testing.T) {
	t.Parallel()
	const scale = 40
	for _, req := range []agent.SendRequest{showFlights, rebookFlight} {
		t.Run(req.Effect, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, scaled(scale))
			a := s.granted(upcomingScope, rebookScope)
			first := s.send(a, s.person(), agent.SendRequest{Message: "Is LK 204 on time?"}, agent.StatusReplied, "")
			s.faults("no-reply")
			s.send(a, s.person(), in(req, first.Conversation), agent.StatusUnknown, agent.ReasonStillProcessing)
			sent := s.messages(req.Message)
			if len(sent) != 6 {
				t.Fatalf("%d attempts", len(sent))
			}
			for i, wait := range []time.Duration{2, 4, 8, 16, 30} {
				s.waited("asked again", sent[i], sent[i+1], wait*time.Second/scale)
				if sent[i+1].body != sent[0].body {
					t.Errorf("attempt %d: %s is not %s", i+2, sent[i+1].body, sent[0].body)
				}
			}
			if n := s.executed(req.Message); n > 1 {
				t.Errorf("carried out %d times", n)
			}
			s.faults()
			if req.Effect == "change" {
				s.noWire(func() {
					s.send(a, s.person(), req, agent.StatusBlocked, agent.ReasonUnresolved)
					s.send(a, s.person(), in(req, first.Conversation), agent.StatusBlocked, agent.ReasonUnresolved)
				})
			} else {
				s.send(a, s.person(), in(req, first.Conversation), agent.StatusReplied, "") // CV-4: an inspection may be lost
			}
		})
	}
}

// Input: nine receipts on a delegated change. EV-1..EV-4: the verdicts. EV-5, EV-6:
// each but the first holds the next change back, in this and in a new conversation,
// also after a good inspection. EV-7: the owner's acknowledgement lifts that, and
// the verdict stays.
func TestCase12Receipts(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(cfg *siteConfig) { cfg.agent.Params.KeysTTL = 1 }) // so that keys-down is felt
	a := s.granted(upcomingScope, rebookScope)
	for _, c := range []struct {
		name, spec string
		verdict    agent.Verdict
		issue      string
	}{
		{"valid", "", agent.VerdictVerified, ""},
		{"one bit", "receipt-bit", agent.VerdictInvalid, agent.IssueSignature},
		{"envelope", "receipt-envelope", agent.VerdictInvalid, agent.IssueEnvelope},
		{"the previous message's", "receipt-replay", agent.VerdictInvalid, agent.IssueReplayed},
		{"scope outside the grant", "receipt-scope", agent.VerdictNeedsReview, agent.IssueScopes},
		{"six minutes late", "receipt-late", agent.VerdictNeedsReview, agent.IssueTime},
		{"keys unreachable", "jwks-down", agent.VerdictUnverifiable, agent.IssueKeysUnavailable},
		{"unknown kid", "receipt-unknown-kid", agent.VerdictInvalid, agent.IssueUnknownKey},
		{"none", "receipt-none", agent.VerdictMissing, ""},
	} {
		s.run(c.name, func(t *testing.T) {
			first := s.send(a, s.person(), showFlights, agent.StatusReplied, "")
			if c.spec != "" {
				s.faults(c.spec)
			}
			r := s.send(a, s.person(), in(rebookFlight, first.Conversation), agent.StatusReplied, "")
			s.faults()
			if r.Evidence == nil || r.Evidence.Verdict != c.verdict || c.issue != "" && !slices.Contains(r.Evidence.Issues, c.issue) {
				t.Fatalf("evidence %+v", r.Evidence)
			}
			good := s.send(a, s.person(), in(showFlights, first.Conversation), agent.StatusReplied, "")
			if good.Evidence.Verdict != agent.VerdictVerified {
				t.Errorf("the inspection: %+v", good.Evidence)
			}
			change := agent.SendRequest{Message: "Rebook me onto LK 204", Effect: "change", Scopes: []string{rebookScope}}
			if c.verdict == agent.VerdictVerified {
				s.send(a, s.person(), in(change, first.Conversation), agent.StatusReplied, "")
				s.send(a, s.person(), change, agent.StatusReplied, "")
				return
			}
			blocked := func(a *agent.Agent) {
				t.Helper()
				s.noWire(func() {
					s.send(a, s.person(), in(change, first.Conversation), agent.StatusBlocked, agent.ReasonEvidenceReview)
					s.send(a, s.person(), change, agent.StatusBlocked, agent.ReasonEvidenceReview)
					// AD-5: what counts is the effect as it is, not as it is declared.
					s.send(a, s.person(), agent.SendRequest{Message: "Rebook me", Effect: "inspect"}, agent.StatusBlocked, agent.ReasonEvidenceReview)
				})
			}
			blocked(a)
			if c.verdict == agent.VerdictMissing {
				blocked(s.open()) // it is on disk
			}
			list, err := a.Reviews(t.Context(), owner(), false)
			if err != nil || len(list) != 1 || !list[0].Open || list[0].Verdict != c.verdict || list[0].Message != r.Message {
				t.Fatalf("reviews %+v, %v", list, err)
			}
			bot := owner()
			bot.Origin = agent.OriginBot
			if _, err := a.Acknowledge(t.Context(), bot, list[0].ID); agent.ReasonOf(err) != agent.ReasonDelegationRequired {
				t.Errorf("a bot acknowledges: %v", err)
			}
			blocked(a)
			if got, err := a.Acknowledge(t.Context(), owner(), list[0].ID); err != nil || got.Open || got.Verdict != c.verdict {
				t.Errorf("acknowledged %+v, %v", got, err)
			}
			v, err := a.Receipt(t.Context(), owner(), r.Evidence.Receipt)
			if err != nil || v.Verdict != c.verdict || v.Acknowledged.IsZero() {
				t.Errorf("receipt %+v, %v", v, err)
			}
			s.send(a, s.person(), in(change, first.Conversation), agent.StatusReplied, "")
			s.send(a, s.person(), change, agent.StatusReplied, "")
		})
	}
}

// Input: a permission's description changes from "View orders" to "Cancel orders".
// DI-5, DI-6, GR-11: revision + 1, the grants end. A name that changes ends none.
func TestCase13DescriptionChanges(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	view := "card-scope-text=" + upcomingScope + ":View orders"
	s.faults(view)
	s.authorize(a, s.person(), agent.StatusDone, "", upcomingScope)
	before := s.discover(a)
	s.send(a, s.person(), showFlights, agent.StatusReplied, "")

	s.faults(view, "card-name=Larkline Airways")
	cosmetic := s.discover(a)
	if cosmetic.Name != "Larkline Airways" || cosmetic.Fingerprint == before.Fingerprint || cosmetic.Security != before.Security || cosmetic.Revision != before.Revision {
		t.Errorf("was %+v\nis  %+v", before, cosmetic)
	}
	if g := s.grant(a); g.State != "active" {
		t.Errorf("grant %+v", g)
	}
	s.send(a, owner(), showFlights, agent.StatusReplied, "")

	s.faults("card-scope-text="+upcomingScope+":Cancel orders", "card-name=Larkline Airways")
	after := s.discover(a)
	if after.Revision != before.Revision+1 || after.Security == before.Security {
		t.Errorf("was %+v\nis  %+v", before, after)
	}
	if g := s.grant(a); g.State != "invalid" || g.Reason != agent.ReasonCardSecurity || s.sealed(g.ID) {
		t.Errorf("grant %+v", g)
	}
	// AD-8: the permission is to change something now, so the owner decides, and
	// then consents anew.
	sent := len(s.calls(egress.Message))
	s.send(a, owner(), showFlights, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
	c := s.person()
	c.SignIn = nil
	s.send(a, c, showFlights, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
	if len(s.calls(egress.Message)) != sent {
		t.Error("it was sent under what has ended")
	}
}
