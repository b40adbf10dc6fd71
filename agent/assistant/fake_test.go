package assistant_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/assistant"
)

const (
	bizID  = "business-aaaaaaaaaaaaaaaa"
	convID = "conversation-aaaaaaaaaaaaaaaa"
)

// fake is an agent that does as a test says, and remembers who called it. What a test
// does not set is not to be called.
type fake struct {
	assistant.Agent // nil: anything else panics

	mu        sync.Mutex
	biz       agent.BusinessView
	others    []agent.BusinessView
	approvals map[string]agent.ApprovalView
	talk      agent.ConversationView
	signIns   []agent.AuthorizationView
	grants    []agent.GrantView
	receipts  []agent.ReceiptView
	sent      []agent.SendRequest
	callers   []agent.Caller // of Send and Reconcile
	decisions []agent.Decision
	deciders  []agent.Caller

	send    func(agent.SendRequest) (agent.Result, error)
	decided func(context.Context, agent.Decision) (agent.Result, error)

	reconciled func() (agent.Result, error)
	broken     error  // of the receipts
	looks      func() // is told of each look at an approval
}

// withholding is a fake that knows what must not be told.
type withholding struct {
	*fake
	secrets []string
	fails   error
}

func (w *withholding) Withholder(_ context.Context, c agent.Caller) (func(business, text string) string, error) {
	if c.Principal != "owner" {
		return nil, fmt.Errorf("secrets of %q", c.Principal)
	}
	return func(_, text string) string {
		for _, s := range w.secrets {
			text = strings.ReplaceAll(text, s, agent.Redacted)
		}
		return text
	}, w.fails
}

func newFake() *fake {
	return &fake{
		biz: agent.BusinessView{
			ID: bizID, Name: "Larkline", Domain: "larkline.example", CardURL: "https://larkline.example/.well-known/agent-card.json", Supported: true,
			Profile: agent.ProfileDelegated,
			Scopes:  []agent.Scope{{ID: "bookings.read", Description: "View your bookings"}, {ID: "bookings.write", Description: "Change your bookings"}},
			Skills:  []agent.Skill{{ID: "s", Name: "Bookings", Description: "Looks bookings up"}},
		},
		approvals: map[string]agent.ApprovalView{},
		talk:      agent.ConversationView{ID: convID, Business: bizID, BusinessName: "Larkline"},
	}
}

func digestOf(message string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(message))) }

// ask makes an approval, as Send does for what takes the owner's word.
func (f *fake) ask(req agent.SendRequest) agent.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := agent.ApprovalView{
		ID: fmt.Sprintf("approval-%016d", len(f.approvals)+1), State: agent.ApprovalPending, Business: bizID, BusinessName: f.biz.Name,
		Destination: "https://larkline.example/a2a/message:send", Message: req.Message, Effect: agent.EffectChange,
		Permissions: f.biz.Scopes[1:], Digest: digestOf(req.Message), Conversation: convID,
	}
	f.approvals[v.ID] = v
	return agent.Result{Status: agent.StatusApprovalRequired, Reason: agent.ReasonApprovalRequired, Business: bizID, Conversation: convID, Approval: &v}
}

func (f *fake) set(id, state string) agent.ApprovalView {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.approvals[id]
	v.State = state
	f.approvals[id] = v
	return v
}

// sentUnder is an approval under which a message went out.
func (f *fake) sentUnder(id string, m agent.MessageView) agent.ApprovalView {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.approvals[id]
	m.ID = "message of " + id
	f.talk.Messages = append(f.talk.Messages, m)
	v.State, v.SentMessage, v.Conversation = agent.ApprovalSent, m.ID, convID
	f.approvals[id] = v
	return v
}

func (f *fake) Discover(_ context.Context, _ agent.Caller, req agent.DiscoverRequest) (agent.BusinessView, error) {
	if req.Domain != f.biz.Domain && req.Domain != bizID && req.CardURL != f.biz.CardURL {
		return agent.BusinessView{}, &agent.Refusal{Status: agent.StatusFailed, Reason: agent.ReasonNotFound, Detail: "there is no card"}
	}
	return f.biz, nil
}

func (f *fake) Send(_ context.Context, c agent.Caller, req agent.SendRequest) (agent.Result, error) {
	f.mu.Lock()
	f.sent, f.callers = append(f.sent, req), append(f.callers, c)
	f.mu.Unlock()
	if f.send != nil {
		return f.send(req)
	}
	if req.Effect == "change" {
		return f.ask(req), nil
	}
	e := agent.EffectInspect
	return agent.Result{Status: agent.StatusReplied, Effect: &e, Business: bizID, Conversation: convID, Reply: "Two bookings."}, nil
}

func (f *fake) Reconcile(_ context.Context, c agent.Caller, req agent.ReconcileRequest) (agent.Result, error) {
	f.mu.Lock()
	f.callers = append(f.callers, c)
	f.mu.Unlock()
	if f.reconciled != nil {
		return f.reconciled()
	}
	return f.ask(agent.SendRequest{Message: "of " + req.Conversation}), nil
}

func (f *fake) Decide(ctx context.Context, c agent.Caller, d agent.Decision) (agent.Result, error) {
	f.mu.Lock()
	f.decisions, f.deciders = append(f.decisions, d), append(f.deciders, c)
	v := f.approvals[d.ID]
	f.mu.Unlock()
	switch {
	case f.decided != nil:
		return f.decided(ctx, d)
	case v.State != agent.ApprovalPending || d.Approve && d.Digest != v.Digest:
		return agent.Result{}, &agent.Refusal{Status: agent.StatusBlocked, Reason: agent.ReasonApprovalOver, Detail: "it is over"}
	case !d.Approve:
		v = f.set(d.ID, agent.ApprovalDenied)
		return agent.Result{Status: agent.StatusDone, Approval: &v}, nil
	}
	v = f.sentUnder(d.ID, agent.MessageView{
		State: "replied", Effect: agent.EffectChange, Reply: "Cancelled.", Evidence: &agent.EvidenceView{Verdict: agent.VerdictVerified},
	})
	return agent.Result{
		Status: agent.StatusReplied, Business: bizID, Conversation: convID, Reply: "Cancelled.", Approval: &v,
		Evidence: &agent.EvidenceView{Receipt: "receipt-aaaaaaaaaaaaaaaa", Verdict: agent.VerdictVerified},
	}, nil
}

func (f *fake) Approval(_ context.Context, _ agent.Caller, id string) (agent.ApprovalView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.looks != nil {
		f.looks()
	}
	if v, ok := f.approvals[id]; ok {
		return v, nil
	}
	return agent.ApprovalView{}, fmt.Errorf("approval: %w", agent.ErrNotFound)
}

func (f *fake) Approvals(_ context.Context, _ agent.Caller, all bool) ([]agent.ApprovalView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []agent.ApprovalView{}
	for _, v := range f.approvals {
		if all || v.State == agent.ApprovalPending || v.State == agent.ApprovalApproved {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b agent.ApprovalView) int {
		return cmp.Or(b.Created.Compare(a.Created), strings.Compare(b.ID, a.ID))
	})
	return out, nil
}

func (f *fake) Conversation(_ context.Context, _ agent.Caller, id string) (agent.ConversationView, error) {
	if id != f.talk.ID {
		return agent.ConversationView{}, fmt.Errorf("conversation: %w", agent.ErrNotFound)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.talk
	v.Messages = slices.Clone(v.Messages)
	return v, nil
}

func (f *fake) Conversations(context.Context, agent.Caller) ([]agent.ConversationView, error) {
	return []agent.ConversationView{f.talk}, nil
}

func (f *fake) Transcript(_ context.Context, _ agent.Caller, id string) (agent.Transcript, error) {
	if id != f.talk.ID {
		return agent.Transcript{}, fmt.Errorf("transcript: %w", agent.ErrNotFound)
	}
	t := agent.Transcript{Conversation: id, Business: bizID, BusinessName: agent.ForModel(f.talk.BusinessName)}
	for _, m := range f.talk.Messages {
		reply := agent.ForModel(m.Reply)
		t.Turns = append(t.Turns, agent.TranscriptTurn{Message: m.ID, State: m.State, Effect: m.Effect, Text: m.Text, Reply: &reply})
	}
	return t, nil
}

func (f *fake) Authorizations(context.Context, agent.Caller) ([]agent.AuthorizationView, error) {
	return f.signIns, nil
}

func (f *fake) Businesses(context.Context, agent.Caller) ([]agent.BusinessView, error) {
	return append([]agent.BusinessView{f.biz}, f.others...), nil
}

func (f *fake) Grants(context.Context, agent.Caller) ([]agent.GrantView, error) { return f.grants, nil }

func (f *fake) Receipts(context.Context, agent.Caller) ([]agent.ReceiptView, error) {
	return f.receipts, nil
}

func (f *fake) Receipt(_ context.Context, _ agent.Caller, id string) (agent.ReceiptView, error) {
	if f.broken != nil {
		return agent.ReceiptView{}, f.broken
	}
	for _, r := range f.receipts {
		if r.ID == id {
			return r, nil
		}
	}
	return agent.ReceiptView{}, fmt.Errorf("receipt: %w", agent.ErrNotFound)
}

// revisions are the protocol revisions that clients are of.
var revisions = []string{"2025-06-18", "2025-11-25", "2026-07-28"}

// client is an assistant's program.
type client struct {
	t *testing.T
	*mcp.ClientSession
}

// connect serves a client from the agent. opts may be nil; owner: dialogs are allowed.
func (f *fake) connect(t *testing.T, revision string, owner bool, opts *mcp.ClientOptions) client {
	t.Helper()
	cfg := assistant.Config{Agent: f, Principal: "owner", Network: agent.DefaultNetwork(), Version: "test", Look: time.Millisecond}
	if owner {
		cfg.Owner = &agent.Caller{Principal: "owner", Origin: agent.OriginOwnerCLI}
	}
	return serve(t, cfg, revision, opts)
}

func serve(t *testing.T, cfg assistant.Config, revision string, opts *mcp.ClientOptions) client {
	t.Helper()
	s, err := assistant.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	here, there := mcp.NewInMemoryTransports()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(context.Background(), there) }()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test client", Version: "1"}, opts).
		Connect(t.Context(), here, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cs.Close()
		if err := <-ended; err != nil {
			t.Errorf("the server ended: %v", err)
		}
	})
	return client{t, cs}
}

type object = map[string]any

// call calls a tool and returns its result, and what is structured of it.
func (c client) call(tool string, args object) (*mcp.CallToolResult, object) {
	c.t.Helper()
	res, err := c.CallTool(c.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		c.t.Fatalf("%s: %v", tool, err)
	}
	out, _ := res.StructuredContent.(object)
	return res, out
}

// textOf is all text of a result.
func textOf(res *mcp.CallToolResult) string {
	s := ""
	for _, c := range res.Content {
		s += c.(*mcp.TextContent).Text
	}
	return s
}

// answers is a client whose dialogs are answered so.
func answers(f func(*mcp.ElicitRequest) (*mcp.ElicitResult, error)) *mcp.ClientOptions {
	return &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) { return f(r) }}
}

func says(decision string) *mcp.ClientOptions {
	return answers(func(*mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: object{"decision": decision}}, nil
	})
}
