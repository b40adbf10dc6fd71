package control

import (
	"context"
	"errors"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// AP-1, CP-2: whether a token still counts is asked as a decision by it is taken down, so
// that none is taken down after it was revoked.
func TestTokenStandsAsItDecides(t *testing.T) {
	w := newFuzzServer(t)
	view, _, err := w.server.tokens.Create(t.Context(), CreateToken{Name: "x", Scope: ScopeAdmin})
	if err != nil {
		t.Fatal(err)
	}
	decide := func(who caller) error {
		ctx := context.WithValue(t.Context(), callerKey{}, who)
		_, err := w.agent.Decide(ctx, w.server.as(ctx), agent.Decision{ID: "approval-none", Approve: true})
		return err
	}
	token := caller{actor: actorOf("x"), scope: ScopeAdmin, token: view.ID}
	if err := decide(token); !errors.Is(err, agent.ErrNotFound) {
		t.Errorf("decides: %v", err)
	}
	if _, err := w.server.tokens.Revoke(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if err := decide(token); !errors.Is(err, errNoToken) {
		t.Errorf("decides revoked: %v", err)
	}
	if err := decide(caller{actor: "owner", scope: ScopeAdmin}); !errors.Is(err, agent.ErrNotFound) {
		t.Errorf("the owner decides: %v", err)
	}
}

// Both settings of a request are changed at once.
func TestSettingsAreChangedAtOnce(t *testing.T) {
	w := newFuzzServer(t)
	ctx := context.WithValue(t.Context(), callerKey{}, caller{actor: "owner", scope: ScopeAdmin})
	revision := func() (n int64) {
		err := w.store.View(t.Context(), func(tx agent.Tx) error {
			r, err := tx.Get(agent.KindSettings, "", "settings")
			n = r.Revision
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, on, bad, require := revision(), true, "sometimes", string(agent.RequirePACT)
	if v, err := w.server.UpdateSettings(ctx, &agentv1.UpdateSettingsRequest{Enabled: &on, Preference: &bad}); err == nil || revision() != before {
		t.Errorf("changed to %v, %v", v, err)
	}
	v, err := w.server.UpdateSettings(ctx, &agentv1.UpdateSettingsRequest{Enabled: &on, Preference: &require})
	if err != nil || !v.Enabled || v.Preference != require || revision() != before+1 {
		t.Errorf("changed to %v, %v: revision %d after %d", v, err, revision(), before)
	}
	if v, err := w.server.UpdateSettings(ctx, &agentv1.UpdateSettingsRequest{}); err != nil || !v.Enabled || revision() != before+1 {
		t.Errorf("changed by nothing to %v, %v", v, err)
	}
}
