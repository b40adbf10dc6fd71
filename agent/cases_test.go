package agent_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
)

// These are what a user must never lose money or trust by, each over real sockets
// against the sandbox. "No wire" is that no message, no sign-in and no refresh
// reaches the business.

// Input: "Cancel booking X1" declared inspect. AD-5, AD-6: its effect is change.
// AP-1, AP-2: the owner is asked once, with the whole text. AP-4, AP-6, PO-5:
// declined is denied, no wire, no sign-in. AP-3: approved is what is sent.
func TestCase01ChangeDeclaredInspect(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.enrolled()
	long := "Cancel booking X1, please: " + strings.Repeat("it rains. ", 395)
	for name, req := range map[string]agent.SendRequest{
		"no permission named":     {Message: "Cancel booking X1", Effect: "inspect"},
		"a permission to read":    {Message: "Cancel booking X1", Effect: "inspect", Scopes: []string{upcomingScope}},
		"the permission it needs": {Message: "Cancel booking X1", Effect: "inspect", Scopes: []string{cancelScope}},
		"nothing is left out":     {Message: long, Effect: "inspect"},
	} {
		s.run(name, func(t *testing.T) {
			c, asked := s.person(), []agent.ApprovalRequest(nil)
			c.Approve = func(_ context.Context, r agent.ApprovalRequest) (bool, error) {
				asked = append(asked, r)
				return false, nil
			}
			s.noWire(func() {
				r := s.send(a, c, req, agent.StatusDenied, agent.ReasonApprovalDenied)
				if r.Effect == nil || *r.Effect != agent.EffectChange || r.Authorization != nil {
					t.Errorf("got %+v", r)
				}
				for _, human := range []agent.HumanInput{agent.HumanNone, agent.HumanOutOfBand} {
					c := owner()
					c.Human = human
					s.send(a, c, req, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
				}
			})
			if len(asked) != 1 {
				t.Fatalf("asked %d times", len(asked))
			}
			q := asked[0]
			if q.Message != req.Message || q.Destination != s.iface+"/message:send" || q.Effect != agent.EffectChange ||
				!slices.Equal(ids(q.Scopes), req.Scopes) || len(q.Digest) != 64 {
				t.Errorf("asked %+v", q)
			}
			for _, scope := range q.Scopes {
				if scope.Description == "" {
					t.Errorf("%s is not described", scope.ID)
				}
			}
			if len(s.shown) != 0 {
				t.Error("a sign-in was shown")
			}
		})
	}
	s.run("approved", func(t *testing.T) {
		req := agent.SendRequest{Message: "Cancel my next flight", Effect: "inspect", Scopes: []string{cancelScope}}
		s.send(a, s.person(), req, agent.StatusReplied, "")
		sent := s.messages(req.Message)
		if len(sent) != 1 || len(s.asked) != 1 || s.executed(req.Message) != 1 {
			t.Fatalf("sent %d times, asked %d times", len(sent), len(s.asked))
		}
		m := sentMessage(t, sent[0])
		body, err := agent.BuildMessage(m.ID, "", req.Message)
		if sum := sha256.Sum256(body); err != nil || hex.EncodeToString(sum[:]) != s.asked[0].Digest {
			t.Errorf("what was sent is not what was approved: %v", err)
		}
	})
}

// Input: a card whose token or device endpoint is on another origin. MD-1, DI-8:
// delegation_cross_origin. DI-10: a later send is unsupported, no wire.
func TestCase02TokenEndpointElsewhere(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"card-token-origin", "card-device-origin"} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.faults(spec)
			a := s.enrolled()
			s.noWire(func() {
				if v := s.discover(a); v.Supported || v.Reason != agent.ReasonDelegationCrossOrigin {
					t.Errorf("got %+v", v)
				}
				for _, req := range []agent.SendRequest{showFlights, rebookFlight, {Message: "Is LK 204 on time?"}} {
					s.send(a, s.person(), req, agent.StatusUnsupported, agent.ReasonDelegationCrossOrigin)
				}
				s.authorize(a, s.person(), agent.StatusUnsupported, agent.ReasonDelegationCrossOrigin, upcomingScope)
			})
		})
		t.Run(spec+" of a business that was good", func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			a := s.granted(upcomingScope)
			s.send(a, s.person(), showFlights, agent.StatusReplied, "")
			s.faults(spec)
			s.noWire(func() {
				if v := s.discover(a); v.Supported || v.Reason != agent.ReasonDelegationCrossOrigin {
					t.Errorf("got %+v", v)
				}
				s.send(a, s.person(), showFlights, agent.StatusUnsupported, agent.ReasonCardChanged)
			})
			// DI-11: it may be a mistake, which ends no grant.
			s.faults()
			s.send(a, s.person(), showFlights, agent.StatusReplied, "")
			if g := s.grant(a); g.State != "active" {
				t.Errorf("grant %+v", g)
			}
		})
	}
}

// Input: metadata with jwks_uri or issuer on another origin, a token endpoint that
// differs by a trailing slash, or a status that is not 200. MD-2, MD-3, MD-4:
// metadata_invalid, and the record is as it was.
func TestCase03MetadataInvalid(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.granted(upcomingScope)
	for _, spec := range []string{"metadata-jwks-origin", "metadata-issuer-origin", "metadata-token-slash", "metadata-status=404", "metadata-status=500"} {
		s.run(spec, func(t *testing.T) {
			records := func() []agent.BusinessView {
				t.Helper()
				list, err := a.Businesses(t.Context(), owner())
				if err != nil {
					t.Fatal(err)
				}
				return list
			}
			before := records()
			s.faults(spec, "card-name=Another name")
			defer s.faults()
			s.noWire(func() {
				_, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: s.air, Refresh: true})
				if agent.ReasonOf(err) != agent.ReasonMetadataInvalid {
					t.Errorf("discover: %v", err)
				}
				// DI-3: a card out of date is not used, and this one cannot be had.
				s.jump.Add(int64(6 * time.Minute))
				s.send(a, s.person(), showFlights, agent.StatusFailed, agent.ReasonMetadataInvalid)
				s.jump.Store(0)
			})
			if after := records(); len(after) != 1 || !reflect.DeepEqual(before, after) {
				t.Errorf("the record was %+v\nand is %+v", before, after)
			}
			if g := s.grant(a); g.State != "active" {
				t.Errorf("grant %+v", g)
			}
			s.send(a, s.person(), showFlights, agent.StatusReplied, "") // by the record that is good still
		})
	}
	t.Run("of a business never seen", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		a := s.enrolled()
		s.faults("metadata-token-slash")
		s.noWire(func() { s.send(a, s.person(), showFlights, agent.StatusFailed, agent.ReasonMetadataInvalid) })
		if list, err := a.Businesses(t.Context(), owner()); err != nil || len(list) != 0 {
			t.Errorf("stored %+v, %v", list, err)
		}
	})
}

// Input: each signer answer of tokens.json during a send. SG-6: what is refused
// is refused before the wire; ID-5: another subject is identity_changed. The good
// ones go out as they are.
func TestCase04SignerTokens(t *testing.T) {
	t.Parallel()
	type signerCase struct {
		Name     string
		Response map[string]any
		Want     string
	}
	type file struct {
		Given struct {
			Issuer, Audience, Nonce, Subject string
			Now                              seconds
		}
		Cases []signerCase
	}
	vectors(t, "tokens.json", func(t *testing.T, f file) {
		atLeastOne(t, len(f.Cases))
		s := newSite(t, func(cfg *siteConfig) {
			cfg.signer.issuer, cfg.signer.subject = f.Given.Issuer, f.Given.Subject
			cfg.box.Audience = f.Given.Audience
			cfg.agent.Now = f.Given.Now.time // limits are of whole seconds: it stands still
			cfg.agent.Params.TokenReuse = 0
		})
		a := s.enrolled()
		s.discover(a)
		slices.SortStableFunc(f.Cases, func(x, y signerCase) int { // another subject ends what is
			return strings.Compare(strings.Repeat("x", strings.Count(x.Name, "subject")), strings.Repeat("x", strings.Count(y.Name, "subject")))
		})
		for _, c := range f.Cases {
			s.run(c.Name, func(t *testing.T) {
				s.mu.Lock()
				s.sign = func(nonce string) any {
					answer := map[string]any{}
					for k, v := range c.Response {
						answer[k] = v
					}
					if answer["nonce"] == f.Given.Nonce { // the vectors know their own only
						answer["nonce"] = nonce
					}
					return answer
				}
				s.mu.Unlock()
				req := agent.SendRequest{Message: "Is LK 204 on time?"}
				if c.Want == "ok" {
					before := len(s.messages(req.Message))
					// The sandbox cannot know the vectors' issuer, but it is asked.
					s.send(a, s.person(), req, agent.StatusBlocked, agent.ReasonIdentityRejected)
					sent := s.messages(req.Message)[before:]
					if len(sent) == 0 || sent[0].header.Get("Authorization") != "Bearer "+c.Response["token"].(string) {
						t.Errorf("sent %d times, or another token", len(sent))
					}
					return
				}
				reason := agent.ReasonInvalidToken
				if c.Name == "other-subject" {
					reason = agent.ReasonIdentityChanged
				}
				s.noWire(func() {
					s.send(a, s.person(), req, agent.StatusBlocked, reason)
					s.send(a, s.person(), rebookFlight, agent.StatusBlocked, reason)
				})
			})
		}
	})
}
