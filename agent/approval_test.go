package agent_test

import (
	"context"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// AP-1, AP-3, AP-5: a pre-confirmation covers the request as it was first
// computed. Not needed then, it is spent all the same.
func TestPreConfirmationCoversTheRequestAlone(t *testing.T) {
	for name, c := range map[string]struct {
		req    agent.SendRequest
		stepUp bool     // the business asks for trips:cancel
		grants []string // instead of what is asked
		asked  func(agent.ApprovalRequest) bool
	}{
		"a step-up makes an inspection a change": {agent.SendRequest{Message: "Show my trips"}, true, nil,
			func(r agent.ApprovalRequest) bool { return r.Effect == agent.EffectChange && len(r.Scopes) == 1 }},
		"the token received exceeds it": {readTrips, false, []string{"trips:read", "trips:cancel"},
			func(r agent.ApprovalRequest) bool { return r.Effect == agent.EffectInspect && r.Exceeds }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				for _, human := range []agent.HumanInput{agent.HumanInteractive, agent.HumanNone} {
					w := newWorld(t)
					a := w.enrolled()
					w.biz.answer = func(u turn) (int, any) {
						if c.stepUp && u.delegation == "" {
							return 200, stepUp("ctx-7", "trips:cancel")
						}
						return 0, nil
					}
					p := w.person()
					p.Confirmed = true
					p.Shown = func(r agent.ApprovalRequest) { t.Errorf("confirmed without asking: %+v", r) }
					asked := 0
					p.Approve = func(_ context.Context, r agent.ApprovalRequest) (bool, error) {
						if asked++; !c.asked(r) {
							t.Errorf("asked %+v", r)
						}
						return false, nil
					}
					if human == agent.HumanNone {
						p.Approve = nil
					}
					if c.grants != nil {
						p.SignIn = func(context.Context, agent.SignIn) error { w.biz.allow(c.grants...); return nil }
					}
					if human == agent.HumanInteractive {
						w.send(a, p, c.req, agent.StatusDenied, agent.ReasonApprovalDenied)
						if asked != 1 {
							t.Errorf("asked %d times", asked)
						}
					} else {
						reason := agent.ReasonApprovalRequired
						if !c.stepUp { // AD-9: the token alone asks for it
							reason = agent.ReasonTokenExceeds
						}
						w.send(a, p, c.req, agent.StatusApprovalRequired, reason)
					}
					for _, u := range w.biz.sent() {
						if u.delegation != "" {
							t.Errorf("sent %+v", u)
						}
					}
					if c.stepUp && len(w.calls(egress.DeviceAuthorization)) != 0 {
						t.Error("consent was started without an approval")
					}
				}
			})
		})
	}
}

// RD-4: a business's names are short and redacted where they are shown.
func TestStepUpNamesAreShown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		names := []string{strings.Repeat("x", 400000), "eyJhbGciOiJFUzI1NiJ9.eyJhIjoxfQ.AAAA"}
		for i := range 100 {
			names = append(names, strings.Repeat("y", i+1))
		}
		w.biz.answer = func(turn) (int, any) { return 200, stepUp("c", names...) }
		c := w.person()
		var events strings.Builder
		c.Progress = func(e agent.Event) { events.WriteString(e.Detail) }
		r := w.send(a, c, agent.SendRequest{Message: "Show my trips"}, agent.StatusUnsupported, agent.ReasonStepUpUnsupported)
		for what, text := range map[string]string{"result": strings.Join(r.MissingScopes, " "), "events": events.String()} {
			if len(text) > 21*201 || strings.Contains(text, "eyJ") {
				t.Errorf("%s: %d bytes, %.80s", what, len(text), text)
			}
		}
	})
}
