package assistant_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/assistant"
)

// TestFollowUpTellsTheLast: an approval is followed to what took its place (AP-3, CV-13):
// what is told is how it really is, by whatever id the assistant holds, and no step of
// the way reads as an invitation to ask for the same again (CV-12).
func TestFollowUpTellsTheLast(t *testing.T) {
	type world func(*fake)
	approval := func(id, state string, change func(*agent.ApprovalView)) world {
		return func(f *fake) {
			v := agent.ApprovalView{ID: id, State: state, Business: bizID, Effect: agent.EffectChange, Conversation: convID}
			if change != nil {
				change(&v)
			}
			f.approvals[id] = v
		}
	}
	// The first approval was sent, and the business wanted more: another one has its place.
	stepped := approval("a-1", agent.ApprovalSent, func(v *agent.ApprovalView) { v.SentMessage, v.Next = "m-1", "a-2" })
	used := func(message string) func(*agent.ApprovalView) {
		return func(v *agent.ApprovalView) { v.SentMessage = message }
	}
	message := func(id, state string, at int) world {
		return func(f *fake) {
			f.talk.Messages = append(f.talk.Messages, agent.MessageView{
				ID: id, State: state, Effect: agent.EffectChange, Reply: "Rebooked.", Actor: "assistant test client", Created: time.Unix(int64(at), 0),
			})
		}
	}
	signIn := func(id, state, actor string) world {
		return func(f *fake) {
			f.signIns = append(f.signIns, agent.AuthorizationView{ID: id, State: state, Business: bizID, Actor: actor})
		}
	}
	waits := func(id, state, message string) world { // for the sign-in z-1
		return approval(id, state, func(v *agent.ApprovalView) { v.Authorization, v.SentMessage = "z-1", message })
	}
	talk := func(state string) world { return func(f *fake) { f.talk.State = state } }
	earlier := func(v *agent.ApprovalView) { v.SentBefore, v.Created = time.Unix(1, 0), time.Unix(9, 0) }
	for name, test := range map[string]struct {
		world  []world
		ask    string
		status string
		next   string // is in it
		not    string // is not
	}{
		"the next one waits":      {[]world{stepped, message("m-1", "auth_required", 1), approval("a-2", agent.ApprovalPending, nil)}, "a-1", "local_approval_required", "approvals approve a-2", "a-1"},
		"the next one was sent":   {[]world{stepped, message("m-1", "auth_required", 1), approval("a-2", agent.ApprovalSent, used("m-2")), message("m-2", "replied", 2)}, "a-1", "replied", "The business answered", "Nothing"},
		"and is not known":        {[]world{stepped, message("m-1", "auth_required", 1), approval("a-2", agent.ApprovalSent, used("m-2")), message("m-2", "outcome_unknown", 2)}, "a-1", "outcome_unknown", "Do not repeat it", "Nothing"},
		"and is being sent":       {[]world{stepped, message("m-1", "auth_required", 1), approval("a-2", agent.ApprovalSent, used("m-2")), message("m-2", "sending", 2)}, "a-1", "waiting", "do not request it again", "Nothing"},
		"the next one was denied": {[]world{stepped, message("m-1", "auth_required", 1), approval("a-2", agent.ApprovalDenied, nil)}, "a-1", "denied", "unless the owner asks", "Request it again"},
		"and expired":             {[]world{stepped, message("m-1", "auth_required", 1), approval("a-2", agent.ApprovalExpired, nil)}, "a-1", "expired", "Nothing was carried out", "sign-in"},
		"it must be signed in for": {[]world{stepped, message("m-1", "auth_required", 1), signIn("z-1", "pending", ""),
			approval("a-2", agent.ApprovalApproved, func(v *agent.ApprovalView) { v.Authorization = "z-1" })}, "a-1", "needs_user_action", "sent then by itself", "same call again"},
		"the next one is not kept":   {[]world{stepped, message("m-1", "auth_required", 1), talk("denied")}, "a-1", "denied", "Nothing was carried out", "sign in at"},
		"the talk went on since":     {[]world{approval("a-1", agent.ApprovalSent, used("m-1")), message("m-1", "auth_required", 1), message("m-2", "failed", 2), talk("denied")}, "a-1", "failed", "nothing waits for the owner now", "declined"},
		"replaced":                   {[]world{approval("a-1", agent.ApprovalWithdrawn, func(v *agent.ApprovalView) { v.Reason, v.Next = agent.ReasonApprovalReplaced, "a-2" }), approval("a-2", agent.ApprovalSent, used("m-2")), message("m-2", "replied", 2)}, "a-1", "replied", "The business answered", "given up"},
		"the owner did it instead":   {[]world{approval("a-1", agent.ApprovalWithdrawn, func(v *agent.ApprovalView) { v.Reason = agent.ReasonApprovalReplaced })}, "a-1", "cancelled", "may have been carried out", "Nothing"},
		"withdrawn":                  {[]world{approval("a-1", agent.ApprovalWithdrawn, func(v *agent.ApprovalView) { v.Reason = agent.ReasonUserCancelled })}, "a-1", "cancelled", "given up", "may have"},
		"a ring":                     {[]world{approval("a-1", agent.ApprovalWithdrawn, func(v *agent.ApprovalView) { v.Next = "a-2" }), approval("a-2", agent.ApprovalWithdrawn, func(v *agent.ApprovalView) { v.Next = "a-1" })}, "a-1", "cancelled", "given up", "ID"},
		"refused after it was sent":  {[]world{approval("a-1", agent.ApprovalSent, used("m-1")), message("m-1", "failed", 1)}, "a-1", "failed", "It was sent with the owner's approval, and refused", "before it was sent"},
		"it goes out in other form":  {[]world{approval("a-1", agent.ApprovalSent, used("m-1")), message("m-1", "superseded", 1)}, "a-1", "waiting", "ask the owner before you request it again", "given up"},
		"held back":                  {[]world{approval("a-1", agent.ApprovalFailed, func(v *agent.ApprovalView) { v.Reason = agent.ReasonUnresolved })}, "a-1", "failed", "reconcile asks", "Request it again"},
		"it goes on by its sign-in":  {[]world{signIn("z-1", "granted", ""), approval("a-1", agent.ApprovalSent, func(v *agent.ApprovalView) { v.SentMessage, v.Authorization = "m-1", "z-1" }), message("m-1", "replied", 1)}, "z-1", "replied", "The business answered", "Go on"},
		"one of its two was denied":  {[]world{signIn("z-1", "granted", ""), waits("a-9", agent.ApprovalDenied, ""), waits("a-1", agent.ApprovalSent, "m-1"), message("m-1", "replied", 1)}, "z-1", "replied", "The business answered", "Nothing"},
		"one of its two was sent":    {[]world{signIn("z-1", "granted", ""), waits("a-9", agent.ApprovalPending, ""), waits("a-1", agent.ApprovalSent, "m-1"), message("m-1", "outcome_unknown", 1)}, "z-1", "outcome_unknown", "Do not repeat it", "Nothing"},
		"one of its two still waits": {[]world{signIn("z-1", "granted", ""), waits("a-9", agent.ApprovalFailed, ""), waits("a-1", agent.ApprovalApproved, "")}, "z-1", "waiting", "follow_up with id a-1", "Request it again"},
		"an older one is not known":  {[]world{signIn("z-1", "granted", ""), waits("a-9", agent.ApprovalSent, "m-9"), message("m-9", "failed", 2), waits("a-1", agent.ApprovalSent, "m-1"), message("m-1", "outcome_unknown", 1)}, "z-1", "outcome_unknown", "Do not repeat it", "Request it again"},
		"the newest is to be sent":   {[]world{signIn("z-1", "granted", ""), waits("a-9", agent.ApprovalApproved, ""), waits("a-1", agent.ApprovalSent, "m-1"), message("m-1", "failed", 1)}, "z-1", "waiting", "follow_up with id a-9", "Request it again"},
		"the owner did one instead":  {[]world{signIn("z-1", "granted", ""), waits("a-9", agent.ApprovalFailed, ""), approval("a-1", agent.ApprovalWithdrawn, func(v *agent.ApprovalView) { v.Authorization, v.Reason = "z-1", agent.ReasonApprovalReplaced })}, "z-1", "cancelled", "may have been carried out", "Request it again"},
		"one asked what became":      {[]world{signIn("z-1", "granted", ""), waits("a-9", agent.ApprovalDenied, ""), approval("a-1", agent.ApprovalFailed, func(v *agent.ApprovalView) { v.Authorization, v.SentBefore = "z-1", time.Unix(1, 0) })}, "z-1", "failed", "may have been carried out", "Request it again"},
		"another assistant's": {[]world{signIn("z-1", "granted", ""),
			approval("a-9", agent.ApprovalDenied, func(v *agent.ApprovalView) {
				v.Authorization, v.Task = "z-1", "assistant:owner:assistant:test client "+bizID
			}),
			approval("a-1", agent.ApprovalSent, func(v *agent.ApprovalView) {
				v.Authorization, v.Task, v.SentMessage = "z-1", "assistant:owner:assistant:other "+bizID, "m-1"
			}),
			message("m-1", "replied", 1)}, "z-1", "denied", "unless the owner asks", "The business answered"},
		"both were denied":           {[]world{signIn("z-1", "granted", ""), waits("a-9", agent.ApprovalDenied, ""), waits("a-1", agent.ApprovalDenied, "")}, "z-1", "denied", "unless the owner asks", "Request it again"},
		"a sign-in by itself":        {[]world{signIn("z-1", "pending", "")}, "z-1", "needs_user_action", "authorization wait z-1", "same call again"},
		"the talk: what waits":       {[]world{stepped, message("m-1", "auth_required", 1), approval("a-2", agent.ApprovalPending, func(v *agent.ApprovalView) { v.Created = time.Unix(2, 0) })}, convID, "local_approval_required", "approvals approve a-2", "sign in at"},
		"the talk: nothing sent yet": {[]world{talk("awaiting_local_authority"), approval("a-1", agent.ApprovalPending, nil)}, convID, "local_approval_required", "approvals approve a-1", "under way"},
		"the talk: denied":           {[]world{talk("denied")}, convID, "denied", "Nothing was carried out", "under way"},
		"the talk: nothing waits":    {[]world{talk("ready")}, convID, "failed", "Nothing was carried out so far", "under way"},
		"the talk: it began":         {[]world{talk("discovered")}, convID, "waiting", "follow_up with id " + convID, "Nothing"},
		"the talk: it moved on":      {[]world{approval("a-1", agent.ApprovalPending, nil), message("m-1", "replied", 1)}, convID, "replied", "The business answered", "a-1"},
		"the talk: a sign-in": {[]world{talk("awaiting_business_consent"), message("m-1", "auth_required", 1), signIn("z-0", "pending", "else"), signIn("z-1", "pending", "assistant test client")},
			convID, "needs_user_action", "authorization wait z-1. You", "same call again"},
		"the talk: no sign-in":  {[]world{talk("awaiting_business_consent"), message("m-1", "auth_required", 1), signIn("z-1", "granted", "")}, convID, "failed", "nothing waits for the owner now", "authorization wait"},
		"the talk: unsupported": {[]world{talk("unsupported"), message("m-1", "auth_required", 1)}, convID, "unsupported", "Nothing was carried out", "sign in"},
		// Of what was sent before nothing but a reply tells anything (CV-15).
		"asking again waits":      {[]world{approval("a-1", agent.ApprovalPending, earlier)}, "a-1", "local_approval_required", "may have been carried out", "Nothing was carried out"},
		"asking again: denied":    {[]world{approval("a-1", agent.ApprovalDenied, earlier)}, "a-1", "denied", "may have been carried out", "Nothing was carried out"},
		"asking again: expired":   {[]world{approval("a-1", agent.ApprovalExpired, earlier)}, "a-1", "expired", "Do not repeat it", "Request it again"},
		"asking again: withdrawn": {[]world{approval("a-1", agent.ApprovalWithdrawn, earlier)}, "a-1", "cancelled", "Do not repeat it", "Nothing was carried out"},
		"asking again: failed":    {[]world{approval("a-1", agent.ApprovalFailed, earlier)}, "a-1", "failed", "Do not repeat it", "Request it again"},
		"asking again, by the talk": {[]world{message("m-1", "outcome_unknown", 1), approval("a-1", agent.ApprovalPending, earlier)},
			convID, "local_approval_required", "may have been carried out", "Nothing was carried out"},
	} {
		f := newFake()
		for _, w := range test.world {
			w(f)
		}
		_, out := f.connect(t, "2025-11-25", true, nil).call("follow_up", object{"id": test.ask})
		next, _ := out["next"].(string)
		if out["status"] != test.status || !strings.Contains(next, test.next) || strings.Contains(next, test.not) {
			t.Errorf("%s: %v: %s", name, out["status"], next)
		}
		if strings.Contains(next, "wait ID") || strings.Contains(next, "approve ID") || strings.Contains(next, "id ID") {
			t.Errorf("%s: an id of nothing: %s", name, next)
		}
		if len(f.sent)+len(f.decisions) > 0 {
			t.Errorf("%s: following up did something", name)
		}
	}
}

// TestReconcileTells: whatever keeps a business from being asked, what became of the
// message stays unknown (CV-15), and no result of reconcile says anything else.
func TestReconcileTells(t *testing.T) {
	for _, r := range []agent.Result{
		{Status: agent.StatusBlocked, Reason: agent.ReasonBusy},
		{Status: agent.StatusBlocked, Reason: agent.ReasonSignerUnavailable},
		{Status: agent.StatusFailed, Reason: agent.ReasonFetchFailed},
		{Status: agent.StatusUnsupported, Reason: agent.ReasonCardRejected},
		{Status: agent.StatusCancelled, Reason: agent.ReasonUserCancelled},
		{Status: agent.StatusUnknown, Reason: agent.ReasonStillProcessing},
		{Status: agent.StatusUnknown, Reason: agent.ReasonReconcileImpossible},
		{Status: agent.StatusApprovalRequired, Approval: &agent.ApprovalView{ID: "a-1", State: agent.ApprovalPending, SentBefore: time.Unix(1, 0)}},
	} {
		for _, fails := range []bool{false, true} {
			f := newFake()
			f.reconciled = func() (agent.Result, error) {
				if fails {
					return agent.Result{}, &agent.Refusal{Status: r.Status, Reason: r.Reason}
				}
				return r, nil
			}
			_, out := f.connect(t, "2025-11-25", true, nil).call("reconcile", object{"conversation": convID})
			next := out["next"].(string)
			if strings.Contains(next, "Nothing was carried out") || strings.Contains(next, "again if the owner") || !strings.Contains(next, "may have been carried out") {
				t.Errorf("%s %s: %s", r.Status, r.Reason, next)
			}
			if r.Reason == agent.ReasonReconcileImpossible && strings.Contains(next, "reconcile") {
				t.Errorf("%s: %s", r.Reason, next)
			}
		}
	}
}

// TestAskConfirmsNothing: by ask an assistant gives no word that a business asked of
// somebody (AP-1): not in a conversation of somebody else's, nor where something was
// to be changed, nor by a question mark behind it (AD-6).
func TestAskConfirmsNothing(t *testing.T) {
	const remote = "owner task assistant:test client " + bizID
	turn := func(actor string, e agent.Effect) []agent.MessageView {
		return []agent.MessageView{{ID: "m", State: "replied", Effect: e, Actor: actor, Reply: "You have two."}}
	}
	asked := turn("assistant test client", agent.EffectInspect)
	asked[0].Reply = "Shall I cancel both?"
	for name, test := range map[string]struct {
		messages []agent.MessageView
		says     string
		sent     bool
	}{
		"its own, a look":            {turn("assistant test client", agent.EffectInspect), "Show the second one?", true},
		"its own, by a running one":  {turn(remote, agent.EffectInspect), "Show the second one?", true},
		"its own, that asks":         {asked, "Show the second one?", false},
		"its own, a yes that looks":  {turn("assistant test client", agent.EffectInspect), "Yes, I see", false},
		"its own, a bare question":   {turn("assistant test client", agent.EffectInspect), "Yes, go ahead with it, ok?", false},
		"the owner's":                {turn("owner_cli", agent.EffectInspect), "Show the second one?", false},
		"another assistant's":        {turn("assistant other", agent.EffectInspect), "Show the second one?", false},
		"its own, that changes":      {turn("assistant test client", agent.EffectChange), "Show the second one?", false},
		"its own, after one of both": {append(turn("owner_cli", agent.EffectInspect), turn("assistant test client", agent.EffectInspect)...), "Show the second one?", false},
	} {
		f := newFake()
		f.talk.Messages = test.messages
		res, out := f.connect(t, "2025-11-25", true, nil).call("ask", object{"business": bizID, "message": test.says, "conversation": convID})
		if sent := len(f.sent) == 1; sent != test.sent || !sent && out["reason"] != "ask_elsewhere" {
			t.Errorf("%s: %s", name, textOf(res))
		}
	}
}

// TestWithheld: an agent that tells what must not be told is asked before every answer,
// and what it names is in none, wherever it comes from and behind whatever nobody
// sees (DA-15). If it cannot tell, nothing is told.
func TestWithheld(t *testing.T) {
	const link, code = "https://login.example/activate", "LXGM-QSTW"
	all := "Open " + link + " and type L\u2066X\u200bG\ufe0fM\U000e0041-QS\u0007TW or " + code
	f := newFake()
	f.biz.Name, f.biz.Description = all, all
	f.biz.Scopes[0].Description, f.biz.Skills[0].Name = all, all
	f.talk.BusinessName = all
	f.talk.Messages = []agent.MessageView{{ID: "m", State: "replied", Text: all, Reply: all}}
	f.receipts = []agent.ReceiptView{{ID: "receipt-1", BusinessName: all, ScopesUsed: []string{all}}}
	f.grants = []agent.GrantView{{ID: "g", BusinessName: all, Scopes: []string{code}}}
	f.signIns = []agent.AuthorizationView{{ID: "z", State: "pending", Scopes: []string{code}}}
	e := agent.EffectInspect
	f.send = func(req agent.SendRequest) (agent.Result, error) {
		if req.Effect == "change" {
			return f.ask(req), nil
		}
		return agent.Result{Status: agent.StatusReplied, Effect: &e, Reply: all, Detail: all, MissingScopes: []string{code}}, nil
	}
	asked := 0
	w := &withholding{fake: f, secrets: []string{link, code}}
	cfg := assistant.Config{Agent: w, Principal: "owner", Network: agent.DefaultNetwork(), Owner: &agent.Caller{Principal: "owner", Origin: agent.OriginOwnerCLI}}
	c := serve(t, cfg, "2025-11-25", answers(func(*mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		asked++
		return &mcp.ElicitResult{Action: "cancel"}, nil
	}))
	look := func(what string, v any) {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		for _, piece := range []string{link, code, "\u2066", "\u200b", "\ufe0f", "\U000e0041"} {
			if strings.Contains(string(data), piece) {
				t.Errorf("%s: %q in %s", what, piece, data)
			}
		}
	}
	everything := func() {
		for tool, args := range map[string]object{
			"discover_business": {"business": bizID}, "ask": {"business": bizID, "message": "What is booked?"}, "follow_up": {"id": convID},
			"request_change": {"business": bizID, "message": "Cancel it"}, "list_businesses": nil, "list_grants": nil, "list_receipts": nil, "list_approvals": nil,
		} {
			res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
			if w.fails != nil && err == nil {
				t.Errorf("%s tells something all the same: %s", tool, textOf(res))
			}
			look(tool, res)
			if err != nil {
				look(tool, err.Error())
			}
		}
		for _, uri := range []string{"pact://conversations/" + convID, "pact://receipts/receipt-1"} {
			res, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if w.fails != nil && err == nil {
				t.Errorf("%s tells something all the same", uri)
			}
			look(uri, res)
		}
	}
	everything()
	if asked > 0 {
		t.Error("a dialog shows what is no part of it to see") // it is decided on the terminal, whole (AP-2)
	}
	f.biz.Name, f.biz.Scopes[1].Description = "Larkline", "Change"
	if c.call("request_change", object{"business": bizID, "message": "Cancel all"}); asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	// A code that is a word of ours takes none of ours out.
	w.secrets = []string{"pactctl", "business", "approval"}
	f.biz.Name = "Shop approval"
	if res, _ := c.call("list_businesses", nil); strings.Contains(textOf(res), "Shop approval") || !strings.Contains(textOf(res), bizID) {
		t.Errorf("list_businesses: %s", textOf(res))
	}
	if _, out := c.call("follow_up", object{"id": "approval-0000000000000001"}); !strings.Contains(out["next"].(string), "pactctl approvals approve approval-0000000000000001") {
		t.Errorf("follow_up: %v", out)
	}
	w.secrets = []string{"T00:00", "signature"}
	f.receipts[0].Issues, f.grants[0].BusinessName = []string{"signature"}, "signature"
	f.receipts[0].Time = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	for tool, want := range map[string][]string{
		"list_receipts": {`"issues":["signature"]`, `"received":"0001-01-01T00:00:00Z"`, `"signed":"2026-03-02T00:00:00Z"`},
		"list_grants":   {`"created":"0001-01-01T00:00:00Z"`, `"expires":"0001-01-01T00:00:00Z"`, agent.Redacted},
	} {
		res, _ := c.call(tool, nil)
		for _, piece := range want {
			if !strings.Contains(textOf(res), piece) {
				t.Errorf("%s: no %s in %s", tool, piece, textOf(res))
			}
		}
	}
	w.fails = errors.New("the store is broken")
	everything()
}

// TestMarked: whatever others wrote is marked as such, and nothing that is not marked
// holds a word of it (RD-4): not an id of a permission either, nor a task's name.
func TestMarked(t *testing.T) {
	const word = "xyzzy"
	f := newFake()
	f.biz.Name, f.biz.Description = word, word
	f.biz.Scopes = []agent.Scope{{ID: word + ":read", Description: "Read " + word}}
	f.biz.Skills = []agent.Skill{{Name: word, Description: word}}
	f.signIns = []agent.AuthorizationView{{ID: "z", State: "pending", BusinessName: word, Scopes: []string{word}, Purpose: word}}
	f.grants = []agent.GrantView{{ID: "g", BusinessName: word, Scopes: []string{word}}}
	f.receipts = []agent.ReceiptView{{ID: "r", BusinessName: word, ScopesUsed: []string{word}, Actions: []agent.Action{{Tool: word, ArgsHash: word}}, KeyID: word}}
	f.talk.BusinessName, f.talk.Messages = word, []agent.MessageView{{ID: "m", State: "replied", Reply: word, MessageID: word}}
	f.approvals["a"] = agent.ApprovalView{ID: "a", State: agent.ApprovalPending, BusinessName: word, Message: word, Actor: "token x task " + word}
	e := agent.EffectInspect
	f.send = func(agent.SendRequest) (agent.Result, error) {
		return agent.Result{Status: agent.StatusNeedsUserAction, Effect: &e, Reply: word, Detail: word, MissingScopes: []string{word}, Authorization: &f.signIns[0]}, nil
	}
	c := f.connect(t, "2025-11-25", false, nil)
	marked := 0
	var look func(where string, v any)
	look = func(where string, v any) {
		switch v := v.(type) {
		case object:
			if v["untrusted"] == true {
				marked++
				return
			}
			for k, e := range v {
				look(where+"."+k, e)
			}
		case []any:
			for _, e := range v {
				look(where, e)
			}
		case string:
			if strings.Contains(v, word) {
				t.Errorf("%s: %s", where, v)
			}
		}
	}
	for tool, args := range map[string]object{
		"discover_business": {"business": bizID}, "ask": {"business": bizID, "message": "What is booked?"},
		"list_businesses": nil, "list_grants": nil, "list_receipts": nil, "list_approvals": nil,
	} {
		before := marked
		_, out := c.call(tool, args)
		if look(tool, out); marked == before {
			t.Errorf("%s: nothing is marked: %v", tool, out)
		}
	}
	for _, id := range []string{convID, "z", "a"} {
		_, out := c.call("follow_up", object{"id": id})
		look("follow_up "+id, out)
	}
	for _, uri := range []string{"pact://conversations/" + convID, "pact://receipts/r"} {
		res, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			t.Fatal(err)
		}
		var doc object
		if err := json.Unmarshal([]byte(res.Contents[0].Text), &doc); err != nil {
			t.Fatal(err)
		}
		look(uri, doc)
	}
}

// unready is an agent whose profile nobody enrolled.
type unready struct {
	*fake
	policy agent.PolicyView
}

func (u *unready) Policy(context.Context, agent.Caller) (agent.PolicyView, error) {
	return u.policy, nil
}

func (u *unready) Businesses(context.Context, agent.Caller) ([]agent.BusinessView, error) {
	return nil, nil
}

// TestUnenrolled: an agent that can do nothing for nobody enrolled its profile says so,
// for it may be another than its owner means; one that is switched off does not.
func TestUnenrolled(t *testing.T) {
	for name, test := range map[string]struct {
		policy agent.PolicyView
		says   bool
	}{
		"never enrolled": {agent.PolicyView{Reason: agent.ReasonDisabledInSettings}, true},
		"no signer":      {agent.PolicyView{Reason: agent.ReasonIdentityNotSet, Enabled: true, Preference: agent.PreferPACT}, true},
		"switched off":   {agent.PolicyView{Reason: agent.ReasonDisabledInSettings, By: "owner"}, false},
		"ready":          {agent.PolicyView{Available: true}, false},
	} {
		u := &unready{newFake(), test.policy}
		c := serve(t, assistant.Config{Agent: u, Principal: "owner", Network: agent.DefaultNetwork()}, "2025-11-25", nil)
		for tool, args := range map[string]object{
			"ask": {"business": "unknown.example", "message": "What is on?"}, "request_change": {"business": "b-1", "message": "Cancel it"},
			"discover_business": {"business": "unknown.example"}, "list_businesses": {},
		} {
			if res, _ := c.call(tool, args); strings.Contains(textOf(res), "not enrolled with a signer") != test.says {
				t.Errorf("%s: %s: %s", name, tool, textOf(res))
			}
		}
	}
}

// TestUnenrolledReconcile: of what may have been carried out it is not said that nothing
// was, because the profile is not enrolled (CV-15).
func TestUnenrolledReconcile(t *testing.T) {
	for name, refused := range map[string]error{"a result": nil, "a refusal": &agent.Refusal{Status: agent.StatusBlocked, Reason: agent.ReasonIdentityNotSet}} {
		u := &unready{newFake(), agent.PolicyView{Reason: agent.ReasonIdentityNotSet, Enabled: true, Preference: agent.PreferPACT}}
		u.reconciled = func() (agent.Result, error) {
			return agent.Result{Status: agent.StatusBlocked, Reason: agent.ReasonIdentityNotSet}, refused
		}
		c := serve(t, assistant.Config{Agent: u, Principal: "owner", Network: agent.DefaultNetwork()}, "2025-11-25", nil)
		res, out := c.call("reconcile", object{"conversation": convID})
		next, _ := out["next"].(string)
		if strings.Contains(next, "Nothing was carried out") || !strings.Contains(next, "it may have been carried out") || !strings.Contains(next, "not enrolled with a signer") {
			t.Errorf("%s: %s", name, textOf(res))
		}
	}
}

// gone is an agent that cannot be reached from some step on.
type gone struct {
	*fake
	discovers bool
}

func (g *gone) Discover(ctx context.Context, c agent.Caller, req agent.DiscoverRequest) (agent.BusinessView, error) {
	if g.discovers {
		return g.fake.Discover(ctx, c, req)
	}
	return agent.BusinessView{}, errors.New("no agent answers")
}

func (*gone) Send(context.Context, agent.Caller, agent.SendRequest) (agent.Result, error) {
	return agent.Result{}, errors.New("no agent answers")
}

func (*gone) Conversation(context.Context, agent.Caller, string) (agent.ConversationView, error) {
	return agent.ConversationView{}, errors.New("no agent answers")
}

// TestNothingRan: where the agent went before anything can have been sent, the assistant
// is told that nothing was; where it may have gone later, that nobody knows.
func TestNothingRan(t *testing.T) {
	for _, discovers := range []bool{false, true} {
		c := serve(t, assistant.Config{Agent: &gone{newFake(), discovers}, Principal: "owner", Network: agent.DefaultNetwork()}, "2025-11-25", nil)
		for tool, args := range map[string]object{
			"ask": {"business": "larkline.example", "message": "What is booked?"}, "request_change": {"business": "larkline.example", "message": "Cancel it"},
			"reconcile": {"conversation": convID},
		} {
			res, _ := c.call(tool, args)
			text, nothing := textOf(res), !discovers || tool == "reconcile"
			if strings.Contains(text, "nothing was sent") != nothing || strings.Contains(text, "not known how far") == nothing {
				t.Errorf("discovers %v: %s: %s", discovers, tool, text)
			}
		}
	}
}
