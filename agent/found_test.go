package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// UR-2: development mode comes with an identity at a loopback signer and goes with one
// elsewhere; an enrolment that fails leaves nothing behind.
func TestDevelopmentComesWithTheIdentity(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const local = "http://127.0.0.1:8787"
		a := w.open()
		development := func(want bool) {
			t.Helper()
			if a.Rules().Development != want || w.open().Rules().Development != want {
				t.Errorf("development mode, here and in the profile: want %v", want)
			}
		}
		if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: local}); agent.ReasonOf(err) != agent.ReasonSignerUnavailable {
			t.Fatalf("nothing listens there: %v", err)
		}
		development(false)
		if s, err := a.Policy(t.Context(), owner()); err != nil || s.By != "" {
			t.Errorf("what failed is in the settings: %+v, %v", s, err)
		}
		here := newSigner(t)
		here.url, here.issuer = local, local
		w.hosts[local] = here
		if v, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: local}); err != nil || !v.Development {
			t.Fatalf("%+v, %v", v, err)
		}
		development(true)
		if v, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL}); err != nil || v.Development {
			t.Fatalf("%+v, %v", v, err)
		}
		development(false)
	})
}

// SG-10, PR-4: what a kept status of the signer would refuse, the signer is asked anew
// first, and not with every call.
func TestSignerIsAskedBeforeARefusal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.signer.set(func(s *signerStandIn) { s.audiences = map[string]string{} })
		a := w.enrolled()
		show := agent.SendRequest{Message: "Show"}
		asked := func(n int) {
			t.Helper()
			if _, got := w.signer.counts(); got != n {
				t.Errorf("the signer was asked %d times, want %d", got, n)
			}
		}
		for range 5 { // it has just been asked
			w.send(a, owner(), show, agent.StatusBlocked, agent.ReasonNoAudience)
		}
		asked(1)
		time.Sleep(2 * time.Second)
		for range 5 {
			w.send(a, owner(), show, agent.StatusBlocked, agent.ReasonNoAudience)
		}
		asked(2)
		time.Sleep(2 * time.Second)
		w.signer.set(func(s *signerStandIn) { s.fail = 503 }) // it is not asked more often for that
		before := len(w.calls(egress.Signer))
		for range 5 {
			w.send(a, owner(), show, agent.StatusBlocked, agent.ReasonNoAudience)
		}
		if n := len(w.calls(egress.Signer)) - before; n != 1 {
			t.Errorf("a signer that fails was asked %d times", n)
		}
		time.Sleep(2 * time.Second)
		w.signer.set(func(s *signerStandIn) { s.fail = 0; s.audiences = map[string]string{provider: audience} })
		w.send(a, owner(), show, agent.StatusReplied, "")
		asked(3)
		time.Sleep(2 * time.Second)
		w.send(a, owner(), show, agent.StatusReplied, "")
		asked(3)

		// A subject that is refused may be the signer's earlier word.
		w.signer.set(func(s *signerStandIn) { s.subject = "" })
		if s, err := a.Status(t.Context(), owner()); err != nil || s.Reason != agent.ReasonIdentityNotReady {
			t.Errorf("%+v, %v", s, err)
		}
		w.signer.set(func(s *signerStandIn) { s.subject = "pa_alice" })
		time.Sleep(2 * time.Second)
		w.send(a, owner(), show, agent.StatusReplied, "")
	})
}

// DI-12, PO-2: what was switched off stays off in a profile that is not enrolled, and
// the view of the policy counts the preference.
func TestSwitchedOffBeforeEnrolling(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.open()
		look := func() error { return second(a.Discover(t.Context(), owner(), agent.ParseBusiness(cardURL))) }
		if err := look(); err != nil { // nobody chose anything
			t.Error(err)
		}
		if err := a.SetEnabled(t.Context(), owner(), false); err != nil {
			t.Fatal(err)
		}
		if err := look(); agent.ReasonOf(err) != agent.ReasonDisabledInSettings {
			t.Errorf("switched off: %v", err)
		}
		a = w.enrolled()
		if err := a.SetPreference(t.Context(), owner(), agent.DisabledPACT); err != nil {
			t.Fatal(err)
		}
		if v, err := a.Policy(t.Context(), owner()); err != nil || v.Available || v.Reason != agent.ReasonPACTDisabled || !v.Enabled {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

// What others than the owner discover and nobody uses is bounded, the oldest goes; what
// the owner discovered, or anybody uses, stays.
func TestDiscoveriesOfOthersAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const host = "https://many.example.com"
		w.hosts[host] = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			w.biz.mu.Lock()
			defer w.biz.mu.Unlock()
			respond(rw, 200, w.biz.card)
		})
		a := w.enrolled()
		task := agent.TaskCaller(alice, &agent.Task{ID: "t-1", Source: agent.SourceOwner, Mode: agent.ModeAct}, agent.DefaultNetwork())
		token := agent.Caller{Principal: alice, Origin: agent.OriginGateway, Actor: "token w", Network: agent.DefaultNetwork()}
		found := func(c agent.Caller, n int) string {
			t.Helper()
			time.Sleep(time.Millisecond)
			v, err := a.Discover(t.Context(), c, agent.DiscoverRequest{CardURL: fmt.Sprintf("%s/%d", host, n)})
			if err != nil {
				t.Fatal(err)
			}
			return v.ID
		}
		mine, used, looked, oldest := found(owner(), 1000), found(task, 1001), found(task, 1002), found(token, 1003)
		w.send(a, task, agent.SendRequest{Business: used, Message: "What is on?"}, agent.StatusReplied, "")
		if found(owner(), 1002) != looked { // as it is stored
			t.Fatal("another business")
		}
		ids := func() map[string]bool {
			t.Helper()
			all, err := a.Businesses(t.Context(), owner())
			if err != nil {
				t.Fatal(err)
			}
			m := map[string]bool{}
			for _, b := range all {
				m[b.ID] = true
			}
			return m
		}
		for n := range 199 {
			found([]agent.Caller{task, token}[n%2], n)
		}
		if got := ids(); len(got) != 203 || !got[oldest] {
			t.Fatalf("%d businesses: %v", len(got), got[oldest])
		}
		found(task, 2000)
		found(owner(), 2001) // takes nobody's place
		got := ids()
		if len(got) != 204 || got[oldest] || !got[mine] || !got[used] || !got[looked] {
			t.Errorf("%d businesses: oldest %v, the owner's %v and %v, used %v", len(got), got[oldest], got[mine], got[looked], got[used])
		}
	})
}

// AD-8: a card on another host makes no permission of an interface milder than the
// business's own card does, and it is told where it came from.
func TestCardOfAnotherHost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const host = "https://copy.example.com"
		const mild = "View your trips"
		card := string(marshal(w.biz.card))
		card = strings.Replace(card, "Cancel your trips", mild, 1)
		card = strings.ReplaceAll(card, "trips:cancel", "trips:manage")
		w.biz.set(func(b *business) {
			flows := b.card["securitySchemes"].(map[string]any)["user"].(map[string]any)["oauth2SecurityScheme"].(map[string]any)["flows"].(map[string]any)["deviceCode"].(map[string]any)
			scopes := flows["scopes"].(map[string]any)
			delete(scopes, "trips:cancel")
			scopes["trips:manage"] = "Manage your trips"
		})
		w.hosts[host] = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { respond(rw, 200, card) })
		a := w.enrolled()
		copied, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: host + "/card"})
		if err != nil || !copied.Supported || copied.CardElsewhere() != host {
			t.Fatalf("%+v, %v", copied, err)
		}
		i := slices.IndexFunc(copied.Scopes, func(s agent.Scope) bool { return s.ID == "trips:manage" })
		if i < 0 || copied.Scopes[i].Effect() != agent.EffectInspect {
			t.Fatalf("the copy says %+v", copied.Scopes)
		}
		ask := agent.SendRequest{Business: copied.ID, Message: "Show my trips", Scopes: []string{"trips:manage"}}
		r, err := a.Send(t.Context(), owner(), ask) // the own card is not known
		if err != nil || r.Effect == nil || *r.Effect != agent.EffectInspect {
			t.Errorf("%+v, %v", r, err)
		}
		own, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: iface + "/.well-known/agent-card.json"})
		if err != nil || own.CardElsewhere() != "" {
			t.Fatalf("%+v, %v", own, err)
		}
		if r, err = a.Send(t.Context(), owner(), ask); err != nil || r.Effect == nil || *r.Effect != agent.EffectUnknown {
			t.Errorf("%+v, %v", r, err)
		}
		if n := len(w.calls(egress.Message)); n != 0 {
			t.Errorf("%d messages were sent", n)
		}
	})
}

// AD-8: a card on another host makes no permission worse than the business's own card
// does, and another card of the business's host does.
func TestWorseCardOfAnotherHost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const host = "https://copy.example.com"
		card := strings.Replace(string(marshal(w.biz.card)), "View your trips", "Cancel your trips", 1)
		w.hosts[host] = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { respond(rw, 200, card) })
		a := granted(w, 30*time.Minute, "trips:read")
		copied, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: host + "/card"})
		i := slices.IndexFunc(copied.Scopes, func(s agent.Scope) bool { return s.ID == "trips:read" })
		if err != nil || copied.CardElsewhere() != host || i < 0 || copied.Scopes[i].Effect() != agent.EffectChange {
			t.Fatalf("%+v, %v", copied, err)
		}
		ask := agent.SendRequest{Business: cardURL, Message: "Show my trips", Scopes: []string{"trips:read"}}
		w.send(a, owner(), ask, agent.StatusReplied, "")

		own, err := a.Discover(t.Context(), owner(), agent.ParseBusiness(cardURL))
		if err != nil || own.CardElsewhere() != "" {
			t.Fatalf("%+v, %v", own, err)
		}
		second := copied
		second.ID, second.FinalURL = "b-second", own.FinalURL
		for name, c := range map[string]struct {
			of, other agent.BusinessView
			want      agent.Effect
		}{
			"another host's":       {own, copied, 0},
			"the same host's":      {own, second, agent.EffectChange},
			"the own, of a copy's": {copied, own, agent.EffectInspect},
			"itself":               {copied, copied, 0},
		} {
			if got := c.of.EffectElsewhere([]agent.BusinessView{c.other}, ask.Scopes); got != c.want {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
		unsupported, away := second, second
		unsupported.Supported, away.InterfaceURL = false, host
		if got := own.EffectElsewhere([]agent.BusinessView{unsupported, away}, ask.Scopes); got != 0 {
			t.Errorf("an unsupported card, or one of another interface: %v", got)
		}
	})
}

// What is forgotten, for others are discovered, while its owner looks it up, is known
// again, as the owner's.
func TestForgottenWhileLookedUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		task := agent.TaskCaller(alice, &agent.Task{ID: "t-1", Source: agent.SourceOwner, Mode: agent.ModeAct}, agent.DefaultNetwork())
		found, err := a.Discover(t.Context(), task, agent.ParseBusiness(cardURL))
		if err != nil {
			t.Fatal(err)
		}
		store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		cfg := w.config
		cfg.Dir, cfg.Store = w.dir, forgetful{store, found.ID}
		cfg.Network = func(rules agent.URLRules, policy egress.Policy) agent.Egress { return &wire{w, rules, policy} }
		b, err := agent.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		fetched := len(w.calls(egress.Card))
		v, err := b.Discover(t.Context(), owner(), agent.ParseBusiness(cardURL))
		if err != nil || v.ID != found.ID || len(w.calls(egress.Card)) != fetched {
			t.Errorf("%+v, %v", v, err)
		}
		err = store.View(t.Context(), func(tx agent.Tx) error {
			r, err := tx.Get(agent.KindBusiness, alice, found.ID)
			if err == nil && strings.Contains(string(r.Data), `"ByOther":true`) {
				t.Error("it is no business of the owner's")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// forgetful is a store in which a business is forgotten before each change.
type forgetful struct {
	agent.Store
	id string
}

func (f forgetful) Update(ctx context.Context, do func(agent.Tx) error) error {
	return f.Store.Update(ctx, func(tx agent.Tx) error {
		if err := tx.Delete(agent.KindBusiness, alice, f.id); err != nil && !errors.Is(err, agent.ErrNotFound) {
			return err
		}
		return do(tx)
	})
}

// What a business said last is told to who decides on what goes on with it: with its end,
// where a question stands, and what is hidden is so before anything is cut. That there
// was more than text is said.
func TestLastWords(t *testing.T) {
	long := strings.Repeat("a", 300) + strings.Repeat("b", 700) + strings.Repeat("c", 987) + " Cancel them?"
	for name, c := range map[string]struct {
		messages []agent.MessageView
		said     string
		goesOn   bool
	}{
		"nothing":         {nil, "", false},
		"introduced":      {[]agent.MessageView{{Introduction: true}}, "", false},
		"an introduction": {[]agent.MessageView{{Introduction: true, Reply: "Shall I?"}, {State: "step_up"}}, "Shall I?", true},
		"no reply":        {[]agent.MessageView{{State: "failed"}}, "", true},
		"the last":        {[]agent.MessageView{{Reply: "One"}, {Reply: "Shall I\u200b?"}, {}}, "Shall I?", true},
		"no text":         {[]agent.MessageView{{State: "replied", Reply: "One"}, {State: "replied"}}, "[an answer without text]", true},
		"as long":         {[]agent.MessageView{{Reply: long[700:]}}, long[700:], true},
		"long": {[]agent.MessageView{{Reply: long}},
			long[:300] + " …\n[700 characters are left out here]\n… " + long[1000:], true},
		"a secret where it is cut": {[]agent.MessageView{{Reply: long[:290] + "\u2068code KEPT-FROM-YOU\u2069" + long[300:]}},
			long[:290] + "code gone" + long[300:301] + " …\n[699 characters are left out here]\n… " + long[1000:], true},
		"all that is kept": {[]agent.MessageView{{Reply: strings.Repeat("x", 20000)}},
			strings.Repeat("x", 300) + " …\n[18700 characters are left out here]\n… " + strings.Repeat("x", 1000) + " …\n[more than this is not kept]", true},
		"a secret": {[]agent.MessageView{{Reply: "user_code=ABCDEFGH"}}, agent.RedactText("user_code=ABCDEFGH"), true},
	} {
		hide := func(text string) string { return strings.ReplaceAll(text, "KEPT-FROM-YOU", "gone") }
		if said, goesOn := agent.LastWords(agent.ConversationView{Messages: c.messages}, hide); said != c.said || goesOn != c.goesOn {
			t.Errorf("%s: %q, %v", name, said, goesOn)
		}
	}
}

// AD-2, AP-1: a question can stand in what is no text, so that a task's look behind such a
// reply takes the owner's word, who is told that there was more.
func TestReplyOfMoreThanText(t *testing.T) {
	data := map[string]any{"data": map[string]any{"question": "Cancel trip 7?", "options": []any{"go", "stay"}}}
	for name, c := range map[string]struct {
		parts []any
		said  string
	}{
		"beside text": {[]any{map[string]any{"text": "Trip 7 is there."}, data}, "Trip 7 is there.\n[parts that are not text are left out]"},
		"alone":       {[]any{data}, "[parts that are not text are left out]"},
		"much":        {[]any{map[string]any{"text": strings.Repeat("a", 20000)}, data}, "a\n[parts that are not text are left out] …\n[more than this is not kept]"},
		"no text":     {[]any{map[string]any{"text": "\u200b"}}, "[an answer without text]"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				look := agent.SendRequest{Message: "Show my trips", Effect: "inspect"}
				look.Conversation = w.send(a, assistant("t-1"), look, agent.StatusReplied, "").Conversation
				w.send(a, assistant("t-1"), look, agent.StatusReplied, "")
				w.biz.answer = func(u turn) (int, any) {
					v := w.biz.normal(u)
					v["message"].(map[string]any)["parts"] = c.parts
					return 200, v
				}
				w.send(a, assistant("t-1"), look, agent.StatusReplied, "")
				v, err := a.Conversation(t.Context(), owner(), look.Conversation)
				if said, _ := agent.LastWords(v, nil); err != nil || !strings.HasSuffix(said, c.said) || len(v.Messages[2].Reply) > 20000 {
					t.Errorf("%q, %v", said, err)
				}
				w.send(a, assistant("t-1"), look, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
			})
		})
	}
}
