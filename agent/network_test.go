package agent_test

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// anywhere is a network profile without rules of its own.
func anywhere(name string) *agent.Network { return &agent.Network{Name: name, Allow: egress.AllowAll} }

// only allows some hosts.
func only(name string, hosts ...string) *agent.Network {
	return &agent.Network{Name: name, Allow: func(_ context.Context, u *url.URL) error {
		if slices.Contains(hosts, u.Hostname()) {
			return nil
		}
		return errors.New("not in the task's profile")
	}}
}

// inTask is the owner's own task, in a profile without rules.
func inTask(id, network string) agent.Caller {
	t := &agent.Task{ID: id, Source: agent.SourceOwner, Mode: agent.ModeAct, Human: agent.HumanInteractive}
	return agent.TaskCaller(alice, t, anywhere(network))
}

// TR-9: no network profile is no network: policy_denied, and nothing is sent.
func TestNoNetworkProfile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		show := agent.SendRequest{Message: "Show my trips"}
		w.send(a, owner(), show, agent.StatusReplied, "") // all is cached now
		w.mu.Lock()
		before := len(w.requests)
		w.mu.Unlock()
		none := inTask("t-1", "work")
		for name, n := range map[string]*agent.Network{"none": nil, "no name": anywhere(""), "no rules": {Name: "work"}} {
			none.Network = n
			w.send(a, none, show, agent.StatusBlocked, string(egress.PolicyDenied))
			if _, err := a.Discover(t.Context(), none, agent.DiscoverRequest{CardURL: cardURL, Refresh: true}); agent.ReasonOf(err) != string(egress.PolicyDenied) {
				t.Errorf("%s: discover: %v", name, err)
			}
			if s, err := a.Status(t.Context(), none); err != nil || s.Ready || s.Reason != string(egress.PolicyDenied) {
				t.Errorf("%s: status %+v, %v", name, s, err)
			}
		}
		bot := agent.Caller{Principal: alice, Origin: agent.OriginBot}
		w.send(a, bot, show, agent.StatusBlocked, string(egress.PolicyDenied))
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.requests) != before {
			t.Errorf("sent %+v", w.requests[before:])
		}
	})
}

// SG-7, SG-10, SG-12: signer calls obey the caller's profile, and neither a token
// nor a status that one profile fetched is another's.
func TestSignerUnderProfile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		show := agent.SendRequest{Message: "Show my trips"}
		counts := func(signed, asked int) {
			t.Helper()
			if s, n := w.signer.counts(); s != signed || n != asked {
				t.Errorf("%d signed, %d asked; want %d, %d", s, n, signed, asked)
			}
		}
		w.send(a, owner(), show, agent.StatusReplied, "")
		s, n := w.signer.counts()
		w.send(a, owner(), show, agent.StatusReplied, "")
		counts(s, n)
		w.send(a, inTask("t-1", "work"), show, agent.StatusReplied, "")
		counts(s+1, n+1)
		w.send(a, inTask("t-2", "work"), show, agent.StatusReplied, "") // the same profile
		w.send(a, owner(), show, agent.StatusReplied, "")
		counts(s+1, n+1)
		narrow := inTask("t-3", "")
		narrow.Network = only("narrow", "provider.example.com", "air.example.com")
		r := w.send(a, narrow, show, agent.StatusBlocked, string(egress.PolicyDenied))
		counts(s+1, n+1)
		if strings.Contains(r.Detail, "trips") {
			t.Errorf("detail %q", r.Detail)
		}
	})
}

// TR-1, TR-9: the profile is asked at every hop, redirects included.
func TestProfileAtEveryHop(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		c := inTask("t-1", "")
		c.Network = only("narrow", "pa.example.com", "air.example.com") // not where the card is redirected to
		w.send(a, c, agent.SendRequest{Message: "Show my trips"}, agent.StatusFailed, string(egress.PolicyDenied))
		for _, r := range w.calls(egress.Card) {
			if strings.HasPrefix(r.url, provider) {
				t.Errorf("asked %s", r.url)
			}
		}
		// A message that its own profile refuses was not sent.
		w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		sent := len(w.biz.sent())
		w.send(a, c, agent.SendRequest{Message: "Show my trips"}, agent.StatusFailed, string(egress.PolicyDenied))
		if len(w.biz.sent()) != sent {
			t.Error("it was sent")
		}
	})
}
