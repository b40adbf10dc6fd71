package agent_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/jwks"
)

// exchange is one of a recorded run against a running Provider.
type exchange struct {
	Name    string
	Request struct {
		Headers map[string]string
	}
	Response struct {
		Status  int
		Headers map[string]string
		Body    json.RawMessage
	}
}

// DA-15, CV-8: a code across the end of what a model may see of a reply is found, whenever
// the sign-in that it belongs to began.
func TestTranscriptWithholdsBeforeItCuts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(u turn) (int, any) {
			v := w.biz.normal(u)
			v["message"].(map[string]any)["parts"] = []any{map[string]any{"text": strings.Repeat("\u00e4", 7991) + " ABCD-EFGH"}}
			return 200, v
		}
		r := w.send(a, owner(), agent.SendRequest{Message: "Show my trips"}, agent.StatusReplied, "")
		w.begin(a, owner(), "trips:read")
		got, err := a.Transcript(t.Context(), owner(), r.Conversation)
		if err != nil {
			t.Fatal(err)
		}
		if text := got.Turns[0].Reply.Text; len([]rune(text)) != 8000 || strings.Contains(text, "ABCD") {
			t.Errorf("%d characters, %q", len([]rune(text)), text[len(text)-20:])
		}
	})
}

// TestTranscript reads a recorded run of another implementation's Provider: what
// it really sends is understood.
func TestTranscript(t *testing.T) {
	data, err := os.ReadFile("testdata/provider-run.json")
	if err != nil {
		t.Fatal(err)
	}
	var run struct{ Exchanges []exchange }
	if err := json.Unmarshal(data, &run); err != nil {
		t.Fatal(err)
	}
	by := map[string]exchange{}
	for _, x := range run.Exchanges {
		by[x.Name] = x
	}
	dev := agent.URLRules{Development: true}

	card := agent.ParseCard(by["card-delegated"].Response.Body, dev)
	if !card.Support || card.Profile != agent.ProfileDelegated || len(card.Scopes) != 3 {
		t.Fatalf("%+v", card)
	}
	if got := agent.EffectOfScopes(card.Scopes); got != agent.EffectChange {
		t.Errorf("scopes are %v", got)
	}
	if c := agent.ParseCard(by["card-identity"].Response.Body, dev); !c.Support || c.Profile != agent.ProfileIdentity {
		t.Errorf("%+v", c)
	}
	md, err := agent.CheckMetadata(by["metadata"].Response.Body, card, dev)
	if err != nil {
		t.Fatal(err)
	}
	set, err := jwks.Parse(by["provider-jwks"].Response.Body)
	if err != nil {
		t.Fatal(err)
	}
	keys := agent.SetKeys(set)

	var granted struct {
		Access string `json:"access_token"`
		Scope  string
	}
	if err := json.Unmarshal(by["token-granted-narrower"].Response.Body, &granted); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1795964303, 0)
	d, err := agent.CheckDelegationToken(t.Context(), granted.Access, agent.DelegationWant{
		Issuer: md.Issuer, InterfaceURL: card.InterfaceURL, ClientID: "http://127.0.0.1:4312", Scope: granted.Scope,
	}, keys, at)
	if err != nil {
		t.Fatal(err)
	}

	parse := func(name string) agent.Reply {
		r := by[name].Response
		if r.Status == 0 {
			t.Fatalf("no exchange %s", name)
		}
		return agent.ParseReply(r.Status, r.Headers["content-type"], r.Headers["www-authenticate"], r.Body)
	}
	for name, want := range map[string]agent.OutcomeState{
		"identity-turn": "replied", "same-message-again": "replied", "foreign-context": "not_executed", "wrong-role": "not_executed",
		"blank-text": "not_executed", "data-part": "not_executed", "task-id": "not_executed", "no-token": "not_executed",
		"stream": "restart", "push": "not_executed", "unknown-route": "not_executed", "step-up-without-token": "auth_required",
		"tasks-bad-page": "not_executed", "task": "not_executed", "wrong-audience": "not_executed",
		"delegated-turn-with-receipt": "replied", "step-up-scope-not-granted": "auth_required", "bad-delegation-token": "not_executed",
	} {
		if o := agent.Classify(parse(name), agent.Turn{Effect: agent.EffectChange, Delegated: true}); o.State != want {
			t.Errorf("%s: %+v, want %s", name, o, want)
		}
	}
	if o := agent.Classify(parse("bad-delegation-token"), agent.Turn{Delegated: true}); !o.InvalidateGrant {
		t.Errorf("bad delegation token: %+v", o)
	}
	for _, name := range []string{"foreign-context", "wrong-role", "blank-text", "data-part", "task-id", "stream", "push", "task", "tasks-bad-page"} {
		if _, problems := agent.CheckA2AError(by[name].Response.Body); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
	}
	if s := parse("step-up-scope-not-granted").StepUp; strings.Join(s.MissingScopes, " ") != "flights:rebook" {
		t.Errorf("%+v", s)
	}

	e := agent.VerifyReceipt(t.Context(), parse("delegated-turn-with-receipt").Message.Receipt, agent.ReceiptWant{
		Delegated: true, GrantID: d.GrantID, User: d.Subject, PA: "http://127.0.0.1:4312", Brand: card.InterfaceURL,
		GrantScopes: d.Scopes, SentAt: at, ReceivedAt: at.Add(time.Second),
	}, keys)
	if e.Verdict != agent.VerdictVerified {
		t.Errorf("%+v", e)
	}

	// The personal agent's own tokens verify by its key set.
	pa, err := jwks.Parse(by["pa-jwks"].Response.Body)
	if err != nil {
		t.Fatal(err)
	}
	verified := 0
	for name, x := range by {
		compact, ok := strings.CutPrefix(x.Request.Headers["Authorization"], "Bearer ")
		if !ok {
			continue
		}
		token, err := jwks.ParseCompact(compact, jose.ES256)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		k, ok := pa.Find(token.KeyID, token.Algorithm)
		if !ok {
			t.Fatalf("%s: no key %q", name, token.KeyID)
		}
		if _, err := token.Verify(k.Public); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		verified++
	}
	if verified < 20 {
		t.Errorf("only %d tokens", verified)
	}
}
