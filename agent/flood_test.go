package agent_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// repeat is a JSON array of n times v.
func repeat(n int, v any) json.RawMessage {
	list := make([]any, n)
	for i := range list {
		list[i] = v
	}
	return marshal(list)
}

// numbered is a JSON array of n different texts.
func numbered(n int) json.RawMessage {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%x", i)
	}
	return marshal(list)
}

// TR-4, CV-7, CV-11, CV-13: a reply within the size of replies, and full of entries.
func TestReplyFlood(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		body   string
		list   json.RawMessage
		kind   agent.ReplyKind
	}{
		"1000 parts":      {200, `{"message":{"role":"ROLE_AGENT","parts":%s}}`, repeat(1000, map[string]any{"text": "a"}), agent.ReplyMessage},
		"1001 parts":      {200, `{"message":{"role":"ROLE_AGENT","parts":%s}}`, repeat(1001, map[string]any{"text": "a"}), agent.ReplyUnreadable},
		"numbers":         {200, `{"message":{"role":"ROLE_AGENT","parts":%s}}`, repeat(1000, 1), agent.ReplyUnreadable},
		"many numbers":    {200, `{"message":{"role":"ROLE_AGENT","parts":%s}}`, repeat(240000, 1), agent.ReplyUnreadable},
		"missing scopes":  {200, `{"task":{"status":{"state":"TASK_STATE_AUTH_REQUIRED"},"metadata":{"pact.missingScopes":%s}}}`, numbered(70000), agent.ReplyUnreadable},
		"missing numbers": {200, `{"task":{"status":{"state":"TASK_STATE_AUTH_REQUIRED"},"metadata":{"pact.missingScopes":%s}}}`, repeat(1000, 1), agent.ReplyUnreadable},
		"details":         {500, `{"error":{"code":500,"message":"x","details":%s}}`, repeat(240000, 1), agent.ReplyA2AError},
	} {
		t.Run(name, func(t *testing.T) {
			r := agent.ParseReply(c.status, "application/json", "", fmt.Appendf(nil, c.body, c.list))
			if r.Kind != c.kind || len(r.Problems) > 60 || (c.kind == agent.ReplyUnreadable) != (len(r.Problems) > 0) {
				t.Errorf("%s, %d problems, the first %+v", r.Kind, len(r.Problems), slices.Concat(r.Problems, []agent.Problem{{}})[0])
			}
		})
	}
}

// EV-2, EV-4: a receipt with more entries than 1000 is malformed; of what is wrong
// with one, no more is listed than somebody reads, and no kind of it is left out.
func TestReceiptFlood(t *testing.T) {
	t.Parallel()
	keys := agent.SetKeys(keySet())
	late := receiptWant
	late.ReceivedAt = sentAt.Add(-time.Hour)
	late.SentAt = late.ReceivedAt
	for name, c := range map[string]struct {
		claims  map[string]any
		want    agent.ReceiptWant
		verdict agent.Verdict
		issues  []string
	}{
		"1000 scopes":     {map[string]any{"scopesUsed": numbered(1000)}, late, agent.VerdictNeedsReview, []string{agent.IssueScopes, agent.IssueTime}},
		"1001 scopes":     {map[string]any{"scopesUsed": numbered(1001)}, receiptWant, agent.VerdictInvalid, []string{agent.IssueForm}},
		"many scopes":     {map[string]any{"scopesUsed": numbered(22000)}, receiptWant, agent.VerdictInvalid, []string{agent.IssueForm}},
		"numbers":         {map[string]any{"scopesUsed": repeat(1000, 1)}, receiptWant, agent.VerdictInvalid, []string{agent.IssueForm}},
		"1000 actions":    {map[string]any{"actions": repeat(1000, map[string]any{"tool": "a"})}, receiptWant, agent.VerdictVerified, nil},
		"1001 actions":    {map[string]any{"actions": repeat(1001, map[string]any{"tool": "a"})}, receiptWant, agent.VerdictInvalid, []string{agent.IssueForm}},
		"many of numbers": {map[string]any{"actions": repeat(80000, 1)}, receiptWant, agent.VerdictInvalid, []string{agent.IssueForm}},
	} {
		t.Run(name, func(t *testing.T) {
			e := agent.VerifyReceipt(t.Context(), receipt(t, with(receiptClaims, c.claims)), c.want, keys)
			if e.Verdict != c.verdict || !sameSet(e.Issues, c.issues) || len(e.Problems) > 60 {
				t.Errorf("%s %v, %d problems", e.Verdict, e.Issues, len(e.Problems))
			}
			if name == "1000 scopes" && !slices.ContainsFunc(e.Problems, func(p agent.Problem) bool { return p.Detail == "950 more problems are not listed" }) {
				t.Errorf("it does not say how many more: %+v", e.Problems[len(e.Problems)-2:])
			}
		})
	}
}

// DI-7, DI-8, TR-4: of long lists in a card as much is kept as is shown; lists that no
// card has make it invalid, whatever else it says.
func TestCardFlood(t *testing.T) {
	t.Parallel()
	skill := map[string]any{"id": "a", "name": "b", "description": "c", "tags": []string{"d"}}
	names := func(n int, v any) map[string]any {
		out := map[string]any{}
		for i := range n {
			out[fmt.Sprintf("s%d", i)] = v
		}
		return out
	}
	scheme := map[string]any{"httpAuthSecurityScheme": map[string]any{"scheme": "Bearer", "bearerFormat": "JWT"}}
	for name, c := range map[string]struct {
		change  func(card map[string]any)
		support bool
	}{
		"2000 skills":  {func(c map[string]any) { c["skills"] = repeat(2000, skill) }, true},
		"2001 skills":  {func(c map[string]any) { c["skills"] = repeat(2001, skill) }, false},
		"numbers":      {func(c map[string]any) { c["skills"] = repeat(120000, 1) }, false},
		"empty skills": {func(c map[string]any) { c["skills"] = repeat(2000, map[string]any{}) }, false},
		"tags": {func(c map[string]any) {
			c["skills"] = []any{map[string]any{"id": "a", "name": "b", "description": "c", "tags": repeat(2001, "x")}}
		}, false},
		"input modes":  {func(c map[string]any) { c["defaultInputModes"] = repeat(2001, "text/plain") }, false},
		"requirements": {func(c map[string]any) { c["securityRequirements"] = repeat(2001, map[string]any{}) }, false},
		"2000 scopes": {func(c map[string]any) {
			at(c, "securitySchemes", "user", "oauth2SecurityScheme", "flows", "deviceCode")["scopes"] = names(2000, "")
		}, true},
		"2001 scopes": {func(c map[string]any) {
			at(c, "securitySchemes", "user", "oauth2SecurityScheme", "flows", "deviceCode")["scopes"] = names(2001, "")
		}, false},
		"schemes": {func(c map[string]any) { c["securitySchemes"] = names(2001, scheme) }, false},
		"schemes of a requirement": {func(c map[string]any) {
			c["securityRequirements"] = append(c["securityRequirements"].([]any), map[string]any{"schemes": names(2001, map[string]any{})})
		}, false},
		"many of both": {func(c map[string]any) {
			c["securitySchemes"] = names(2000, scheme)
			c["securityRequirements"] = []any{map[string]any{"schemes": names(2000, map[string]any{})}, map[string]any{"schemes": names(2000, map[string]any{})}, map[string]any{"schemes": map[string]any{"s1": map[string]any{}}}}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			doc := goodCard()
			c.change(doc)
			card := agent.ParseCard(marshal(doc), agent.URLRules{})
			if card.Support != c.support || !c.support && card.Reason != agent.ReasonInvalidCard ||
				len(card.Problems) > 60 || len(card.Advice) > 60 || len(card.Skills) > 50 || len(card.Scopes) > 200 {
				t.Errorf("%v %s; %d problems, %d of advice, %d skills, %d scopes", card.Support, card.Reason, len(card.Problems), len(card.Advice), len(card.Skills), len(card.Scopes))
			}
		})
	}
	// What decides is listed also after many of another kind.
	doc := goodCard()
	at(doc, "capabilities")["extensions"] = repeat(2000, map[string]any{"required": true})
	at(doc, "supportedInterfaces", 0)["url"] = "http://provider.example.com/a2a/B1"
	card := agent.ParseCard(marshal(doc), agent.URLRules{})
	if card.Reason != agent.ReasonInsecureURL || len(card.Problems) > 60 {
		t.Errorf("%s, %d problems", card.Reason, len(card.Problems))
	}
}

// EV-9: keeping a receipt reads none of those that stay.
func TestKeptReceiptsAreNotRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:read")
		w.send(a, w.person(), readTrips, agent.StatusReplied, "")
		w.edit(`UPDATE receipts SET data = X'7B'`)
		r := w.send(a, w.person(), readTrips, agent.StatusReplied, "")
		if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
			t.Errorf("evidence %+v", r.Evidence)
		}
	})
}

// clear is all that is in the clear in the world's database.
func (w *world) clear() string {
	var all strings.Builder
	for _, name := range []string{"agent.db", "agent.db-wal"} {
		data, err := os.ReadFile(filepath.Join(w.dir, name))
		if err != nil {
			w.t.Error(err)
		}
		all.Write(data)
	}
	return all.String()
}

// RD-2..RD-4, SG-14, CV-7: a business that echoes what secret it got, in each place
// where its words are kept, does not bring it to a view or to the disk.
func TestEchoedSecrets(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:read")
		secrets := map[string]string{"device code": "dc_secret_device_code", "refresh token": "rt_abcdefghijklmnopqrst"}
		w.biz.answer = func(u turn) (int, any) {
			secrets["PA token"] = u.token
			if u.delegation != "" {
				secrets["delegation"] = u.delegation
			}
			w.biz.key.kid = "Bearer " + u.token
			w.biz.receipt = func(claims, _ map[string]any) {
				claims["scopesUsed"] = []string{"Bearer " + u.delegation}
				claims["grantId"] = u.delegation
				claims["actions"] = []any{map[string]any{"tool": "dc_secret_device_code", "argsHash": u.token}}
			}
			m := w.biz.normal(u)
			m["message"].(map[string]any)["messageId"] = u.token
			m["message"].(map[string]any)["contextId"] = u.token
			return 200, m
		}
		r := w.send(a, w.person(), readTrips, agent.StatusReplied, "")
		if r.Evidence == nil || !slices.Contains(r.Evidence.Issues, agent.IssueScopes) || !slices.Contains(r.Evidence.Issues, agent.IssueGrant) {
			t.Errorf("evidence %+v", r.Evidence)
		}
		w.biz.set(func(b *business) {
			b.card["name"] = "Air Bearer rt_abcdefghijklmnopqrst"
			b.card["description"] = "device_code=dc_secret_device_code"
			b.card["version"] = secrets["PA token"]
			b.card["provider"] = map[string]any{"organization": secrets["delegation"], "url": "https://air.example.com"}
			b.card["skills"] = []any{map[string]any{"id": "rt_abcdefghijklmnopqrst", "name": secrets["PA token"], "description": secrets["delegation"], "tags": []string{}}}
			b.describe("trips:read", "Read trips as "+secrets["PA token"])
		})
		card, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL, Refresh: true})
		if err != nil || card.Name != "Air Bearer [redacted]" || card.Skills[0].ID != "[redacted]" {
			t.Errorf("card %+v, %v", card, err)
		}
		receipts, err := a.Receipts(t.Context(), owner())
		if err != nil || len(receipts) != 1 || len(receipts[0].ScopesUsed) > 1 {
			t.Fatalf("receipts %+v, %v", receipts, err)
		}
		x, err := a.ExportReceipt(t.Context(), owner(), receipts[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		check, err := agent.VerifyExport(x.Document())
		if err != nil {
			t.Fatal(err)
		}
		v, err := a.Conversation(t.Context(), owner(), r.Conversation)
		if err != nil || v.ContextID != "" || v.Messages[0].Reply == "" {
			t.Errorf("conversation %+v, %v", v, err)
		}
		review, err := a.Review(t.Context(), owner(), receipts[0].ID)
		if err != nil {
			t.Error(err)
		}
		shown := string(marshal([]any{r, card, receipts, v, review, check}))
		for name, secret := range secrets {
			if strings.Contains(shown, secret) {
				t.Errorf("%s is shown", name)
			}
			if strings.Contains(w.clear(), secret) {
				t.Errorf("%s is on disk in the clear", name)
			}
		}
	})
}
