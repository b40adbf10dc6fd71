package assistant_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/assistant"
)

var change = object{"business": "larkline.example", "message": "Cancel my booking"}

// TestDialog is what counts as the owner's word, in every protocol revision (AP-1,
// AP-5): a form that was sent off with a choice, and nothing else.
func TestDialog(t *testing.T) {
	reply := func(action string, content object) *mcp.ClientOptions {
		return answers(func(*mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: action, Content: content}, nil
		})
	}
	urlOnly := says("approve")
	urlOnly.Capabilities = &mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{URL: &mcp.URLElicitationCapabilities{}}}
	both := says("approve")
	both.Capabilities = &mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}}}
	for name, test := range map[string]struct {
		opts   *mcp.ClientOptions
		owner  bool
		state  string // of the approval, afterwards
		status string
		fails  bool // the client's own library refuses the answer in the newest revision, and the call with it
	}{
		"approve":          {says("approve"), true, "sent", "replied", false},
		"approve, modes":   {both, true, "sent", "replied", false},
		"deny":             {says("deny"), true, "denied", "denied", false},
		"decline":          {reply("decline", nil), true, "pending", "local_approval_required", false},
		"cancel":           {reply("cancel", nil), true, "pending", "local_approval_required", false},
		"decline, approve": {reply("decline", object{"decision": "approve"}), true, "pending", "local_approval_required", false},
		"unknown action":   {reply("ok", object{"decision": "approve"}), true, "pending", "local_approval_required", false},
		"no content":       {reply("accept", nil), true, "pending", "local_approval_required", true},
		"empty content":    {reply("accept", object{}), true, "pending", "local_approval_required", true},
		"other content":    {reply("accept", object{"decision": "yes"}), true, "pending", "local_approval_required", true},
		"other type":       {reply("accept", object{"decision": true}), true, "pending", "local_approval_required", true},
		"other field":      {reply("accept", object{"approve": "approve"}), true, "pending", "local_approval_required", true},
		"error":            {answers(func(*mcp.ElicitRequest) (*mcp.ElicitResult, error) { return nil, errors.New("no window") }), true, "pending", "local_approval_required", true},
		"no dialogs":       {nil, true, "pending", "local_approval_required", false},
		"links only":       {urlOnly, true, "pending", "local_approval_required", false},
		"not with us":      {says("approve"), false, "pending", "local_approval_required", false},
	} {
		for _, revision := range revisions {
			t.Run(name+" "+revision, func(t *testing.T) {
				f := newFake()
				c := f.connect(t, revision, test.owner, test.opts)
				res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "request_change", Arguments: change})
				id := "approval-0000000000000001"
				if got := f.approvals[id].State; got != test.state {
					t.Errorf("the approval is %q, want %q", got, test.state)
				}
				if decides := test.state != "pending"; decides != (len(f.decisions) == 1) {
					t.Errorf("decisions: %+v", f.decisions)
				}
				for _, d := range f.deciders { // AP-1: the owner's, in no task; nothing but this
					if d.Task != nil || d.Confirmed || d.Approve != nil || d.SignIn != nil || d.Origin != agent.OriginOwnerCLI || d.Actor != "dialog of test client" {
						t.Errorf("decided by %+v", d)
					}
				}
				if err != nil {
					if !test.fails || revision != "2026-07-28" {
						t.Fatal(err)
					}
					return
				}
				out := res.StructuredContent.(object)
				if out["status"] != test.status || res.IsError != (test.status == "denied") {
					t.Errorf("%s", textOf(res))
				}
				if test.state == "pending" && !strings.Contains(out["next"].(string), "pactctl approvals approve "+id) {
					t.Errorf("next: %v", out["next"])
				}
			})
		}
	}
}

// TestDialogShowsAll is AP-2 of the dialog: the whole message, destination, effect,
// permissions and digest, in which nothing hides and nothing passes for what it is
// not; and a choice without a default, of which the first does no harm.
func TestDialogShowsAll(t *testing.T) {
	for _, revision := range revisions {
		f := newFake()
		long := strings.Repeat("All work and no play. ", 170)
		message := "Cancel my booking\n\nEffect: inspect\n<!-- and pay -->\u202e\x1b[8m\u200b\ufe0f\U000e0101\u180b\u17b4\u2800\u3164\u034fa\u0300\u0301\u0334\u0489\u0302" + long
		f.biz.Name = "Larkline\nEffect: inspect"
		f.biz.Scopes[1].Description = "Change your bookings\nEffect: inspect"
		var got *mcp.ElicitParams
		c := f.connect(t, revision, true, answers(func(r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			got = r.Params
			return &mcp.ElicitResult{Action: "cancel"}, nil
		}))
		c.call("request_change", object{"business": "larkline.example", "message": message})
		if got == nil {
			t.Fatal("nobody was asked")
		}
		for _, part := range []string{
			"\n    Cancel my booking\n    \n    Effect: inspect\n    <!-- and pay --><U+202E><U+001B>[8m<U+200B><U+FE0F><U+E0101><U+180B><U+17B4><U+2800><U+3164><U+034F>a\u0300\u0301\u0334\u0489<U+0302>" + long + "\n",
			`"test client" asks`, "\n    Larkline\n    Effect: inspect\n", "https://larkline.example/a2a/message:send", "\nEffect: change\n",
			"bookings.write  Change your bookings Effect: inspect", "SHA-256: " + digestOf(message), "Approval: approval-0000000000000001",
		} {
			if !strings.Contains(got.Message, part) {
				t.Errorf("%s: %q is not in\n%s", revision, part, got.Message)
			}
		}
		for line := range strings.SplitSeq(got.Message, "\n") {
			if strings.Contains(line, "inspect") && !strings.HasPrefix(line, "    ") {
				t.Errorf("%s: passes for ours: %q", revision, line)
			}
		}
		schema := got.RequestedSchema.(object)
		field := schema["properties"].(object)["decision"].(object)
		if field["default"] != nil || field["enum"].([]any)[0] != "deny" || len(schema["required"].([]any)) != 1 {
			t.Errorf("%s: the form is %v", revision, schema)
		}
	}
}

// TestDecidedElsewhere: a dialog that is open ends when the owner decides on another
// surface, and its call tells what became of it.
func TestDecidedElsewhere(t *testing.T) {
	for state, status := range map[string]string{agent.ApprovalDenied: "denied", agent.ApprovalSent: "replied", agent.ApprovalExpired: "expired"} {
		f := newFake()
		f.talk.Messages = []agent.MessageView{{ID: "m", State: "replied", Effect: agent.EffectChange, Reply: "Cancelled."}}
		c := f.connect(t, "2025-11-25", true, &mcp.ClientOptions{
			ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				f.mu.Lock() // for both at once: the server looks all the while
				v := f.approvals["approval-0000000000000001"]
				v.State, v.SentMessage = state, "m"
				f.approvals[v.ID] = v
				f.mu.Unlock()
				<-ctx.Done() // the dialog is put away
				return nil, ctx.Err()
			},
		})
		if res, out := c.call("request_change", change); out["status"] != status || len(f.decisions) > 0 {
			t.Errorf("%s: %s", state, textOf(res))
		}
	}
}

// TestHandshake: a client that asks in the old handshake for a revision that has none
// gets the last one that has, and its dialogs by that.
func TestHandshake(t *testing.T) {
	for _, revision := range []string{"2025-06-18", "2026-07-28", "2099-01-01"} {
		f := newFake()
		s, err := assistant.New(assistant.Config{Agent: f, Principal: "owner", Owner: &agent.Caller{Principal: "owner", Origin: agent.OriginOwnerCLI}})
		if err != nil {
			t.Fatal(err)
		}
		in, requests := io.Pipe()
		answers, out := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- s.Run(context.Background(), &mcp.IOTransport{Reader: in, Writer: out}) }()
		lines := json.NewDecoder(answers)
		next := func() object {
			t.Helper()
			var v object
			if err := lines.Decode(&v); err != nil {
				t.Fatal(err)
			}
			return v
		}
		fmt.Fprintf(requests, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{"elicitation":{}},"clientInfo":{"name":"raw","version":"1"}}}`+"\n", revision)
		want := min(revision, "2025-11-25")
		if got := next()["result"].(object)["protocolVersion"]; got != want {
			t.Errorf("%s: %v", revision, got)
		}
		fmt.Fprintln(requests, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		fmt.Fprintln(requests, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"request_change","arguments":{"business":"larkline.example","message":"Cancel it"}}}`)
		asks := next()
		if asks["method"] != "elicitation/create" {
			t.Fatalf("%s: %v", revision, asks)
		}
		fmt.Fprintf(requests, `{"jsonrpc":"2.0","id":%v,"result":{"action":"accept","content":{"decision":"approve"}}}`+"\n", asks["id"])
		if got := next()["result"].(object)["structuredContent"].(object)["status"]; got != "replied" {
			t.Errorf("%s: %v", revision, got)
		}
		_ = requests.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestDialogLeft: a client that ends the call while its dialog is open has decided
// nothing, whatever the person says then.
func TestDialogLeft(t *testing.T) {
	f := newFake()
	open, closed := make(chan struct{}), make(chan struct{})
	c := f.connect(t, "2025-11-25", true, &mcp.ClientOptions{
		ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			close(open)
			<-ctx.Done() // the server put it away; the person is quicker all the same
			defer close(closed)
			return &mcp.ElicitResult{Action: "accept", Content: object{"decision": "approve"}}, nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan error, 1)
	go func() {
		_, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "request_change", Arguments: change})
		called <- err
	}()
	<-open
	cancel()
	if err := <-called; err == nil {
		t.Error("the call did not end")
	}
	<-closed
	if _, out := c.call("list_approvals", nil); len(out["approvals"].([]any)) != 1 {
		t.Errorf("approvals: %v", out)
	}
	if got := f.set("approval-0000000000000001", agent.ApprovalPending); len(f.decisions) > 0 {
		t.Errorf("decided: %+v, %+v", f.decisions, got)
	}
}

// TestTooLate: an answer that comes after another one decides nothing.
func TestTooLate(t *testing.T) {
	for _, revision := range revisions {
		f := newFake()
		c := f.connect(t, revision, true, answers(func(*mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			f.decided = func(context.Context, agent.Decision) (agent.Result, error) {
				f.set("approval-0000000000000001", agent.ApprovalDenied)
				return agent.Result{Status: agent.StatusBlocked, Reason: agent.ReasonApprovalOver}, nil
			}
			return &mcp.ElicitResult{Action: "accept", Content: object{"decision": "approve"}}, nil
		}))
		if res, out := c.call("request_change", change); out["status"] != "denied" {
			t.Errorf("%s: %s", revision, textOf(res))
		}
	}
}

// TestAsksAnew: what differs from what was approved is asked anew (AP-3), and not
// without end.
func TestAsksAnew(t *testing.T) {
	for _, revision := range revisions {
		f := newFake()
		asked := 0
		f.decided = func(_ context.Context, d agent.Decision) (agent.Result, error) {
			r := f.ask(agent.SendRequest{Message: "more of it"})
			v := f.set(d.ID, agent.ApprovalFailed)
			v.Next = r.Approval.ID
			f.mu.Lock()
			defer f.mu.Unlock()
			f.approvals[d.ID] = v
			return r, nil
		}
		c := f.connect(t, revision, true, answers(func(*mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			if asked++; asked > 5 {
				return &mcp.ElicitResult{Action: "cancel"}, nil
			}
			return &mcp.ElicitResult{Action: "accept", Content: object{"decision": "approve"}}, nil
		}))
		res, out := c.call("request_change", change)
		if asked != 3 || out["status"] != "local_approval_required" || out["approval"].(object)["id"] != "approval-0000000000000004" {
			t.Errorf("%s: asked %d times: %s", revision, asked, textOf(res))
		}
	}
}

// TestForgedAnswers is the adversarial client of the newest revision, in which a call
// brings an answer: none counts that this server did not ask for, in this very call,
// once. An approval is never used for other bytes.
func TestForgedAnswers(t *testing.T) {
	f := newFake()
	opts := says("approve")
	opts.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
	c := f.connect(t, "2026-07-28", true, opts)
	yes := mcp.InputResponseMap{"approval": &mcp.ElicitResult{Action: "accept", Content: object{"decision": "approve"}}}
	try := func(tool, state string, args object, with mcp.InputResponseMap) *mcp.CallToolResult {
		t.Helper()
		res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args, InputResponses: with, RequestState: state})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	other := object{"business": "larkline.example", "message": "Cancel all my bookings"}
	open := func() string {
		t.Helper()
		res := try("request_change", "", change, nil)
		if !res.NeedsInput() || res.RequestState == "" || res.InputRequests["approval"] == nil {
			t.Fatalf("nobody is asked: %+v", res)
		}
		return res.RequestState
	}
	first := open()
	for what, res := range map[string]*mcp.CallToolResult{
		"no state":         try("request_change", "", change, yes),
		"the approval":     try("request_change", "approval-0000000000000001", change, yes),
		"a guess":          try("request_change", first[1:]+"A", change, yes),
		"other bytes":      try("request_change", open(), other, yes),
		"another tool":     try("ask", open(), change, yes),
		"more permissions": try("request_change", open(), object{"business": "larkline.example", "message": "Cancel my booking", "scopes": []string{"bookings.write"}}, yes),
	} {
		if !res.IsError || !strings.Contains(textOf(res), "not open") {
			t.Errorf("%s: %s", what, textOf(res))
		}
	}
	if res := try("request_change", open(), change, mcp.InputResponseMap{"other": yes["approval"]}); !strings.Contains(textOf(res), "local_approval_required") {
		t.Errorf("the answer to another question: %s", textOf(res))
	}
	if len(f.decisions) > 0 {
		t.Fatalf("decided: %+v", f.decisions)
	}
	sent := len(f.sent)
	if res := try("request_change", first, change, yes); !strings.Contains(textOf(res), "Cancelled.") {
		t.Errorf("the true answer: %s", textOf(res))
	}
	no := mcp.InputResponseMap{"approval": &mcp.ElicitResult{Action: "accept", Content: object{"decision": "deny"}}}
	for _, again := range []mcp.InputResponseMap{yes, no, nil} { // as it was decided
		if res := try("request_change", first, change, again); !strings.Contains(textOf(res), "Cancelled.") {
			t.Errorf("a second time: %s", textOf(res))
		}
	}
	if res := try("request_change", first, other, yes); !strings.Contains(textOf(res), "not open") {
		t.Errorf("in another call: %s", textOf(res))
	}
	if len(f.decisions) != 1 || f.decisions[0].ID != "approval-0000000000000001" || f.decisions[0].Digest != digestOf("Cancel my booking") {
		t.Errorf("decided: %+v", f.decisions)
	}
	if len(f.sent) != sent {
		t.Error("an answer was taken for a request")
	}
}

// TestAnswerTwice: a client that lost the result of an answer brings it again, and is told
// what came of it once that is known; it decides nothing again.
func TestAnswerTwice(t *testing.T) {
	for name, lost := range map[string]bool{"both wait": false, "the first leaves": true} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			begun, goOn := make(chan struct{}), make(chan struct{})
			f.decided = func(_ context.Context, d agent.Decision) (agent.Result, error) {
				close(begun)
				<-goOn
				f.sentUnder(d.ID, agent.MessageView{State: "replied", Effect: agent.EffectChange, Reply: "Cancelled."})
				return agent.Result{Status: agent.StatusReplied}, nil
			}
			opts := says("approve")
			opts.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
			c := f.connect(t, "2026-07-28", true, opts)
			res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "request_change", Arguments: change})
			if err != nil || !res.NeedsInput() {
				t.Fatalf("nobody is asked: %v %+v", err, res)
			}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			told := make(chan string, 2)
			answer := func(ctx context.Context) {
				got, err := c.CallTool(ctx, &mcp.CallToolParams{
					Name: "request_change", Arguments: change, RequestState: res.RequestState,
					InputResponses: mcp.InputResponseMap{"approval": &mcp.ElicitResult{Action: "accept", Content: object{"decision": "approve"}}},
				})
				if err != nil {
					told <- err.Error()
					return
				}
				told <- textOf(got)
			}
			go answer(ctx)
			<-begun
			if lost {
				leave()
				<-told
			}
			go answer(t.Context())
			close(goOn)
			for range map[bool]int{true: 1, false: 2}[lost] {
				if text := <-told; !strings.Contains(text, "Cancelled.") {
					t.Errorf("told %s", text)
				}
			}
			if len(f.decisions) != 1 {
				t.Errorf("decided: %+v", f.decisions)
			}
		})
	}
}

// TestApprovedInDialog: of what was approved in a dialog and could not be sent yet nothing
// says that it was not, nor that it must be; while a dialog is open a call says so too.
func TestApprovedInDialog(t *testing.T) {
	for _, revision := range revisions {
		f := newFake()
		var one *agent.Result
		f.send = func(req agent.SendRequest) (agent.Result, error) {
			if one == nil {
				r := f.ask(req)
				one = &r
				return r, nil
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			v := f.approvals[one.Approval.ID]
			return agent.Result{Status: agent.StatusApprovalRequired, Reason: agent.ReasonApprovalRequired, Approval: &v}, nil
		}
		f.decided = func(_ context.Context, d agent.Decision) (agent.Result, error) {
			v := f.set(d.ID, agent.ApprovalApproved)
			return agent.Result{Status: agent.StatusFailed, Reason: agent.ReasonSignerUnavailable, Approval: &v}, nil
		}
		var c client
		c = f.connect(t, revision, true, answers(func(*mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			if res, _ := c.call("request_change", change); !strings.Contains(textOf(res), "brought no decision so far, and is not asked there again") {
				t.Errorf("%s, in the midst: %s", revision, textOf(res))
			}
			return &mcp.ElicitResult{Action: "accept", Content: object{"decision": "approve"}}, nil
		}))
		for range 2 {
			res, out := c.call("request_change", change)
			if next, _ := out["next"].(string); !strings.HasPrefix(next, "The owner approved it, and it is not sent yet.") {
				t.Errorf("%s: %s", revision, textOf(res))
			}
		}
	}
}

// TestAskedOnce: what was used already is not asked about again, whatever a result names;
// nor is a person asked about what they would not see whole (AP-2).
func TestAskedOnce(t *testing.T) {
	for _, revision := range revisions {
		f := newFake()
		asked := 0
		opts := answers(func(*mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			asked++
			return &mcp.ElicitResult{Action: "accept", Content: object{"decision": "approve"}}, nil
		})
		f.decided = func(_ context.Context, d agent.Decision) (agent.Result, error) {
			v := f.sentUnder(d.ID, agent.MessageView{State: "outcome_unknown", Effect: agent.EffectChange})
			return agent.Result{Status: agent.StatusApprovalRequired, Approval: &v}, nil
		}
		c := f.connect(t, revision, true, opts)
		if res, out := c.call("request_change", change); asked != 1 || out["status"] != "outcome_unknown" {
			t.Errorf("%s: asked %d times: %s", revision, asked, textOf(res))
		}
		f.biz.Name = "Larkline " + agent.Redacted
		if res, out := c.call("request_change", change); asked != 1 || out["status"] != "local_approval_required" {
			t.Errorf("%s: asked %d times: %s", revision, asked, textOf(res))
		}
	}
}

// TestDialogOnce: an approval is put into a dialog once. What was put away there stays for
// the terminal, which is named, and no number of calls asks again.
func TestDialogOnce(t *testing.T) {
	for _, action := range []string{"decline", "cancel"} {
		for _, revision := range revisions {
			f := newFake()
			asked := 0
			var one *agent.Result
			f.send = func(req agent.SendRequest) (agent.Result, error) {
				if one == nil {
					r := f.ask(req)
					one = &r
				}
				return *one, nil
			}
			c := f.connect(t, revision, true, answers(func(*mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				asked++
				return &mcp.ElicitResult{Action: action}, nil
			}))
			for range 30 {
				res, out := c.call("request_change", change)
				next, _ := out["next"].(string)
				if asked != 1 || out["status"] != "local_approval_required" ||
					!strings.Contains(next, "not asked there again") || !strings.Contains(next, "pactctl approvals approve approval-0000000000000001") {
					t.Fatalf("%s: asked %d times: %s", revision, asked, textOf(res))
				}
			}
			one = nil // another approval
			if c.call("request_change", change); asked != 2 {
				t.Errorf("%s: another approval: asked %d times", revision, asked)
			}
		}
	}
}

// TestDialogSaysWhatItAnswers: the same words mean another thing behind a question. The
// dialog has the conversation and what the business said last in it, who asked and until
// when, and the host whose words about permissions it shows.
func TestDialogSaysWhatItAnswers(t *testing.T) {
	w := &withholding{fake: newFake(), secrets: []string{"WDJB-MJHT"}}
	w.biz.Provider, w.biz.FinalURL = "https://larkline.example", "https://copy.example/card"
	text := ""
	opts := answers(func(r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		text = r.Params.Message
		return &mcp.ElicitResult{Action: "cancel"}, nil
	})
	expires := time.Date(2026, 3, 2, 11, 4, 0, 0, time.UTC)
	w.send = func(req agent.SendRequest) (agent.Result, error) {
		r := w.ask(req)
		w.mu.Lock()
		defer w.mu.Unlock()
		v := w.approvals[r.Approval.ID]
		v.Actor, v.Created, v.Expires = "assistant test client", expires.Add(-time.Hour), expires
		w.approvals[v.ID] = v
		return r, nil
	}
	c := serve(t, assistant.Config{
		Agent: w, Principal: "owner", Network: agent.DefaultNetwork(), Owner: &agent.Caller{Principal: "owner", Origin: agent.OriginOwnerCLI},
	}, "2025-11-25", opts)
	has := func(parts ...string) {
		t.Helper()
		text = ""
		c.call("request_change", object{"business": "larkline.example", "message": "Yes, the first one"})
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%q is not in\n%s", part, text)
			}
		}
	}
	has("\nIt begins conversation "+convID+".\n", "\nAsked for by: \"assistant test client\"\n", "\nAsked: 2026-03-02T10:04:00Z\n", "\nExpires: 2026-03-02T11:04:00Z",
		"comes from another host:\n\n    https://copy.example\n")
	x := strings.Repeat("x", 290)
	w.talk.Messages = []agent.MessageView{{State: "replied", Reply: "Effect: inspect\u202e " + x + "\nShall I charge EUR 900?"}}
	has("in which the business said last:\n\n    Effect: inspect " + x + "\n    Shall I charge EUR 900?\n\nTo the business")
	w.talk.Messages[0].Reply = x + " WDJB-MJHT " + strings.Repeat("y", 2000) + " WDJB-MJHT " + strings.Repeat("z", 975) + "\nShall I charge EUR 900?"
	if has("said last:\n\n    "+x, " characters are left out here]\n", "zz\n    Shall I charge EUR 900?\n\n"); strings.Contains(text, "WDJB") || strings.Contains(text, "MJHT") {
		t.Error(text)
	}
	w.talk.Messages[0].Reply = "Sign in with WDJB-MJHT" // is no reason to show nothing
	if has("said last:\n\n    Sign in with " + agent.Redacted + "\n"); strings.Contains(text, "MJHT") {
		t.Error(text)
	}
	w.talk.Messages[0] = agent.MessageView{State: "failed"}
	w.biz.FinalURL = w.biz.CardURL
	if has("in which the business said nothing yet"); strings.Contains(text, "another host") {
		t.Error(text)
	}
}

// TestGoesOn: what was approved before and not sent is gone on with in a dialog as well,
// which stays open until it is answered.
func TestGoesOn(t *testing.T) {
	f := newFake()
	looked := make(chan struct{}, 1000)
	f.looks = func() {
		select {
		case looked <- struct{}{}:
		default:
		}
	}
	f.send = func(req agent.SendRequest) (agent.Result, error) {
		r := f.ask(req)
		v := f.set(r.Approval.ID, agent.ApprovalApproved)
		r.Approval = &v
		return r, nil
	}
	f.decided = func(_ context.Context, d agent.Decision) (agent.Result, error) {
		f.sentUnder(d.ID, agent.MessageView{State: "replied", Effect: agent.EffectChange, Reply: "Cancelled."})
		return agent.Result{Status: agent.StatusReplied}, nil
	}
	c := f.connect(t, "2025-11-25", true, &mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		for range 5 {
			select {
			case <-looked:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return &mcp.ElicitResult{Action: "accept", Content: object{"decision": "approve"}}, nil
	}})
	if res, out := c.call("request_change", change); out["status"] != "replied" {
		t.Errorf("%s", textOf(res))
	}
}

// TestOpenQuestions: a client that opens questions and answers none keeps only so many
// open; what they were about waits for the owner all the same.
func TestOpenQuestions(t *testing.T) {
	f := newFake()
	opts := says("approve")
	opts.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
	c := f.connect(t, "2026-07-28", true, opts)
	var states []string
	for range 51 {
		res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "request_change", Arguments: change})
		if err != nil || !res.NeedsInput() {
			t.Fatalf("nobody is asked: %v %+v", err, res)
		}
		states = append(states, res.RequestState)
	}
	for i, open := range map[int]bool{0: false, 49: false, 50: true} {
		res, err := c.CallTool(t.Context(), &mcp.CallToolParams{
			Name: "request_change", Arguments: change, RequestState: states[i],
			InputResponses: mcp.InputResponseMap{"approval": &mcp.ElicitResult{Action: "accept", Content: object{"decision": "approve"}}},
		})
		if err != nil || res.IsError == open {
			t.Errorf("question %d: %v %s", i, err, textOf(res))
		}
	}
	if len(f.decisions) != 1 || f.decisions[0].ID != "approval-0000000000000051" {
		t.Errorf("decided: %+v", f.decisions)
	}
}

// TestClientLeaves: a client that stops waiting does not stop what the owner approved,
// and the server carries it through before it ends.
func TestClientLeaves(t *testing.T) {
	f := newFake()
	begun, goOn := make(chan struct{}), make(chan struct{})
	f.decided = func(ctx context.Context, d agent.Decision) (agent.Result, error) {
		close(begun)
		<-goOn
		if ctx.Err() != nil {
			return agent.Result{}, ctx.Err()
		}
		f.set(d.ID, agent.ApprovalSent)
		return agent.Result{Status: agent.StatusReplied}, nil
	}
	s, err := assistant.New(assistant.Config{Agent: f, Principal: "owner", Owner: &agent.Caller{Principal: "owner", Origin: agent.OriginOwnerCLI}})
	if err != nil {
		t.Fatal(err)
	}
	here, there := mcp.NewInMemoryTransports()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(context.Background(), there) }()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "c"}, says("approve")).Connect(t.Context(), here, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan error, 1)
	go func() {
		_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "request_change", Arguments: change})
		called <- err
	}()
	<-begun
	cancel()
	if err := <-called; err == nil {
		t.Error("the call did not end")
	}
	_ = cs.Close()
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the server: %v", err)
	}
	if got := f.approvals["approval-0000000000000001"].State; got != agent.ApprovalSent {
		t.Errorf("what was approved is %s", got)
	}
}

// TestStops: a server that is stopped tells what is under way that the program stops,
// so that it stays for later (DA-17).
func TestStops(t *testing.T) {
	f := newFake()
	begun := make(chan struct{})
	var cause error
	f.decided = func(ctx context.Context, _ agent.Decision) (agent.Result, error) {
		close(begun)
		<-ctx.Done()
		cause = context.Cause(ctx)
		return agent.Result{}, cause
	}
	s, err := assistant.New(assistant.Config{Agent: f, Principal: "owner", Owner: &agent.Caller{Principal: "owner", Origin: agent.OriginOwnerCLI}})
	if err != nil {
		t.Fatal(err)
	}
	here, there := mcp.NewInMemoryTransports()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, there) }()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "c"}, says("approve")).Connect(t.Context(), here, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	go func() {
		_, _ = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "request_change", Arguments: change})
	}()
	<-begun
	stop()
	if err := <-ended; err != nil || !errors.Is(cause, agent.ErrStopping) {
		t.Errorf("the server: %v; the send: %v", err, cause)
	}
}

// TestTwoAssistants: two assistants at once have a task each, and each gets its own
// results.
func TestTwoAssistants(t *testing.T) {
	f := newFake()
	var both sync.WaitGroup
	for _, revision := range []string{"2025-06-18", "2026-07-28"} {
		c := f.connect(t, revision, true, says("approve"))
		both.Go(func() {
			for range 20 {
				res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "request_change", Arguments: object{"business": "larkline.example", "message": "Cancel " + revision}})
				if err != nil || res.StructuredContent.(object)["status"] != "replied" {
					t.Errorf("%s: %v %+v", revision, err, res)
				}
			}
		})
	}
	both.Wait()
	if len(f.decisions) != 40 {
		t.Errorf("%d decisions", len(f.decisions))
	}
	seen := map[string]bool{}
	for _, d := range f.decisions {
		if seen[d.ID] {
			t.Errorf("approval %s was decided twice", d.ID)
		}
		seen[d.ID] = true
	}
}
