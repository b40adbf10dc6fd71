package agent_test

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// EV-1..EV-6: what a receipt is worth, and that everything but verified holds
// the next change back, also after a good inspection and in a new conversation.
func TestEvidence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		receipt func(w *world) func(claims, envelope map[string]any)
		verdict agent.Verdict
		issue   string
	}{
		"verified": {nil, agent.VerdictVerified, ""},
		"none":     {func(*world) func(c, e map[string]any) { return func(_, e map[string]any) { e["none"] = true } }, agent.VerdictMissing, ""},
		"one bit": {func(w *world) func(c, e map[string]any) {
			return func(c, e map[string]any) { e["jws"] = spoiled(w.biz.key.sign(c)) }
		}, agent.VerdictInvalid, agent.IssueSignature},
		"envelope differs": {func(*world) func(c, e map[string]any) {
			return func(_, e map[string]any) { e["claims"] = map[string]any{"grantId": "other"} }
		}, agent.VerdictInvalid, agent.IssueEnvelope},
		"unknown kid": {func(w *world) func(c, e map[string]any) {
			k := newKey(w.t)
			return func(c, e map[string]any) { e["jws"] = k.sign(c) }
		}, agent.VerdictInvalid, agent.IssueUnknownKey},
		"another user": {func(*world) func(c, e map[string]any) { return func(c, _ map[string]any) { c["user"] = "cust-9" } }, agent.VerdictInvalid, agent.IssueUser},
		"outside scope": {func(*world) func(c, e map[string]any) {
			return func(c, _ map[string]any) { c["scopesUsed"] = []string{"trips:history"} }
		}, agent.VerdictNeedsReview, agent.IssueScopes},
		"six minutes on": {func(*world) func(c, e map[string]any) {
			return func(c, _ map[string]any) { c["ts"] = time.Now().Add(6 * time.Minute).UTC().Format(time.RFC3339) }
		}, agent.VerdictNeedsReview, agent.IssueTime},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 30*time.Minute, "trips:read")
				if c.receipt != nil {
					w.biz.receipt = c.receipt(w)
				}
				r := w.send(a, owner(), readTrips, agent.StatusReplied, "")
				if r.Evidence == nil || r.Evidence.Verdict != c.verdict || (c.issue != "") != (len(r.Evidence.Issues) > 0) || c.issue != "" && r.Evidence.Issues[0] != c.issue {
					t.Fatalf("evidence %+v", r.Evidence)
				}
				state := "evidence_invalid"
				if c.verdict == agent.VerdictVerified {
					state = "evidence_verified"
				}
				if v, err := a.Conversation(t.Context(), owner(), r.Conversation); err != nil || v.State != state {
					t.Errorf("conversation %s, %v", v.State, err)
				}
				w.biz.set(func(b *business) { b.receipt = nil })
				w.send(a, owner(), readTrips, agent.StatusReplied, "") // inspection continues
				status, reason := agent.StatusReplied, ""
				if c.verdict != agent.VerdictVerified {
					status, reason = agent.StatusBlocked, agent.ReasonEvidenceReview
				}
				change := agent.SendRequest{Message: "Cancel booking X1", Effect: "inspect"}
				w.send(a, w.person(), change, status, reason)
				// EV-7: the owner has looked; the verdict stays.
				v, err := a.Acknowledge(t.Context(), owner(), r.Evidence.Receipt)
				if err != nil || v.Verdict != c.verdict {
					t.Errorf("acknowledged %+v, %v", v, err)
				}
				w.send(a, w.person(), change, agent.StatusReplied, "")
			})
		})
	}
}

// EV-2: the receipt of an earlier message is no receipt of this one.
func TestReplayedReceipt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Minute, "trips:read")
		var first map[string]any
		w.biz.receipt = func(claims, envelope map[string]any) {
			if first == nil {
				first = map[string]any{"claims": claims, "jws": w.biz.key.sign(claims)}
			}
			envelope["claims"], envelope["jws"] = first["claims"], first["jws"]
		}
		w.send(a, owner(), readTrips, agent.StatusReplied, "")
		r := w.send(a, owner(), readTrips, agent.StatusReplied, "")
		if r.Evidence.Verdict != agent.VerdictInvalid || r.Evidence.Issues[0] != agent.IssueReplayed {
			t.Errorf("evidence %+v", r.Evidence)
		}
		// The first stays what it was.
		list, err := a.Receipts(t.Context(), owner())
		if err != nil || len(list) != 2 || list[1].Verdict != agent.VerdictVerified {
			t.Errorf("receipts %+v, %v", list, err)
		}
	})
}

// EV-3: unverifiable while the keys cannot be had; verified later lifts the
// block. A kept key verifies without the network.
func TestVerifyStoredReceipt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 30*time.Minute, "trips:read")
		time.Sleep(11 * time.Minute) // the keys' cache is old
		w.biz.noKeys = true
		r := w.send(a, owner(), readTrips, agent.StatusReplied, "")
		if r.Evidence.Verdict != agent.VerdictUnverifiable {
			t.Fatalf("evidence %+v", r.Evidence)
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusBlocked, agent.ReasonEvidenceReview)
		w.biz.set(func(b *business) { b.noKeys = false })
		v, err := a.VerifyStoredReceipt(t.Context(), owner(), r.Evidence.Receipt)
		if err != nil || v.Verdict != agent.VerdictVerified {
			t.Fatalf("%+v, %v", v, err)
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusReplied, "")
		// Years later, with no network at all.
		w.mu.Lock()
		clear(w.hosts)
		w.mu.Unlock()
		time.Sleep(3 * 365 * 24 * time.Hour)
		b := w.open()
		if v, err = b.VerifyStoredReceipt(t.Context(), owner(), r.Evidence.Receipt); err != nil || v.Verdict != agent.VerdictVerified || len(v.Actions) != 1 {
			t.Errorf("%+v, %v", v, err)
		}
		// EV-9, CP-4: a view holds no user and no JWS.
		if v.KeyID != w.biz.key.kid {
			t.Errorf("kid %q", v.KeyID)
		}
		v.KeyID = "" // a thumbprint may spell anything
		if text := string(marshal(v)); strings.Contains(text, "cust-1") || strings.Contains(text, "eyJ") {
			t.Errorf("view %s", text)
		}
	})
}

// EV-1: a turn without delegation has no evidence, and a receipt on it is none.
func TestNoEvidenceWithoutDelegation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(u turn) (int, any) {
			v := w.biz.normal(u)
			v["message"].(map[string]any)["metadata"] = map[string]any{"pact.receipt": map[string]any{"jws": "x"}}
			return 200, v
		}
		if r := w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, ""); r.Evidence != nil {
			t.Errorf("evidence %+v", r.Evidence)
		}
		w.send(a, w.person(), agent.SendRequest{Message: "Cancel it"}, agent.StatusReplied, "")
	})
}

// EV-5, RS-1: a reply that is written down is told as that, with evidence that counts as
// unverifiable, if its receipt could not be judged.
func TestReplyIsToldUnjudged(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		granted(w, 30*time.Minute, "trips:cancel").Close()
		store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		var full atomic.Bool
		cfg := w.config
		cfg.Dir, cfg.Store = w.dir, fullDisk{store, &full}
		cfg.Network = func(rules agent.URLRules, policy egress.Policy) agent.Egress { return &wire{w, rules, policy} }
		a, err := agent.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		c := w.person()
		c.Progress = func(e agent.Event) {
			if e.Kind == agent.EventVerifying {
				full.Store(true)
			}
		}
		r := w.send(a, c, cancelTrip, agent.StatusReplied, "")
		full.Store(false)
		if r.Reply == "" || r.Evidence == nil || r.Evidence.Verdict != agent.VerdictUnverifiable || !strings.Contains(r.Detail, "disk full") ||
			!strings.Contains(r.Detail, "pactctl receipts verify "+r.Evidence.Receipt) {
			t.Fatalf("%+v, evidence %+v", r, r.Evidence)
		}
		v, err := a.Conversation(t.Context(), owner(), r.Conversation)
		if m := v.Messages[len(v.Messages)-1]; err != nil || v.State != "evidence_invalid" || m.State != "replied" || m.Evidence == nil || m.Evidence.Verdict != agent.VerdictUnverifiable {
			t.Errorf("%s, %+v, %v", v.State, m, err)
		}
		if v, err := a.VerifyStoredReceipt(t.Context(), owner(), r.Evidence.Receipt); err != nil || v.Verdict != agent.VerdictVerified {
			t.Errorf("%+v, %v", v, err)
		}
	})
}
