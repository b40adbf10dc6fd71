package assistant

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pactsigner/pactsigner/agent"
)

// The limits of a request (CP-3, DI-1).
const (
	maxID       = 200
	maxBusiness = 2048
	maxText     = 4000
	maxScopes   = 20
	maxList     = 200
	defaultList = 50
)

// object is the schema of a tool's arguments; what is not in it is refused.
func object(required []string, properties map[string]any) map[string]any {
	return map[string]any{"type": "object", "properties": properties, "required": list(required), "additionalProperties": false}
}

func text(most int, description string) map[string]any {
	return map[string]any{"type": "string", "minLength": 1, "maxLength": most, "description": description}
}

var (
	argBusiness = text(maxBusiness, "The business's id, its domain, or the https address of its agent card.")
	argMessage  = text(maxText, "What to say to the business, in the owner's name.")
	argScopes   = map[string]any{
		"type": "array", "maxItems": maxScopes, "uniqueItems": true, "items": text(maxID, "Id of a permission."),
		"description": "Ids of the permissions that it needs, of those that discover_business lists.",
	}
	argConversation = text(maxID, "Id of a conversation that you began, to go on with. Without it a new one begins. ask goes on only with one that has only looked, and whose business asked nothing last.")
	listArguments   = object(nil, map[string]any{
		"limit": map[string]any{"type": "integer", "minimum": 1, "maximum": maxList, "description": "How many, newest first; 50 if it is not said."},
	})
	sendArguments = object([]string{"business", "message"}, map[string]any{
		"business": argBusiness, "message": argMessage, "scopes": argScopes, "conversation": argConversation,
	})
)

type (
	businessArgs struct {
		Business string `json:"business"`
	}
	sendArgs struct {
		Business     string   `json:"business"`
		Message      string   `json:"message"`
		Scopes       []string `json:"scopes"`
		Conversation string   `json:"conversation"`
	}
	idArgs struct {
		ID string `json:"id"`
	}
	conversationArgs struct {
		Conversation string `json:"conversation"`
	}
	listArgs struct {
		Limit int `json:"limit"`
	}
)

var yes, no = true, false

// What a tool does, as its annotations say it.
var (
	// reads only what the agent has.
	reads = mcp.ToolAnnotations{ReadOnlyHint: true, DestructiveHint: &no, IdempotentHint: true, OpenWorldHint: &no}
	// looks at a business: a request goes out, and what the agent knows of it is new.
	looks = mcp.ToolAnnotations{ReadOnlyHint: false, DestructiveHint: &no, IdempotentHint: true, OpenWorldHint: &yes}
	// talks to a business, which is asked to look and not to change anything.
	talks = mcp.ToolAnnotations{ReadOnlyHint: false, DestructiveHint: &no, IdempotentHint: false, OpenWorldHint: &yes}
	// changes something at a business, once the owner approved it.
	changes = mcp.ToolAnnotations{ReadOnlyHint: false, DestructiveHint: &yes, IdempotentHint: false, OpenWorldHint: &yes}
)

// add adds a tool.
func add[In, Out any](s *Server, name, title, description string, does mcp.ToolAnnotations, arguments map[string]any,
	run func(context.Context, *mcp.CallToolRequest, In) (*mcp.CallToolResult, Out, error),
) {
	does.Title = title
	mcp.AddTool(s.mcp, &mcp.Tool{Name: name, Title: title, Description: description, Annotations: &does, InputSchema: arguments},
		func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
			res, out, err := run(ctx, req, in)
			if o, ok := any(&out).(*outcome); ok {
				o.Next = s.cfg.Commands(o.Next)
				if o.Receipt != nil {
					o.Receipt.Meaning = s.cfg.Commands(o.Receipt.Meaning)
				}
			}
			return res, out, err
		})
}

func (s *Server) addTools() {
	add(s, "discover_business", "Look a business up",
		"Fetches a business's agent card: whether the owner's agent can talk to it, what it offers, and the permissions that it knows. Changes nothing.",
		looks, object([]string{"business"}, map[string]any{"business": argBusiness}), s.discover)
	add(s, "ask", "Ask a business",
		"Sends a business one message that only looks: a status, a price, a list. What may change something is refused; use request_change for that. The owner may have to sign in at the business first.",
		talks, sendArguments, s.ask)
	add(s, "request_change", "Request a change at a business",
		"Asks the owner to approve one message that books, buys, cancels, pays or otherwise changes something at a business. It is sent only once they approved exactly this message, which you cannot do.",
		changes, sendArguments, s.requestChange)
	add(s, "follow_up", "Follow something up",
		"Tells how far something is: by the id of an approval, a conversation or a sign-in. Reads only: the state, the business's reply, and what its receipt is worth.",
		reads, object([]string{"id"}, map[string]any{"id": text(maxID, "Id of an approval, a conversation or a sign-in.")}), s.followUp)
	add(s, "reconcile", "Ask what became of a message",
		"Asks a business what became of a message whose outcome is unknown, by sending the same message again under its old id. A business that never got it carries it out now, so the owner approves that first if it may change something.",
		changes, object([]string{"conversation"}, map[string]any{"conversation": text(maxID, "Id of the conversation whose outcome is unknown.")}), s.reconcile)
	add(s, "list_businesses", "List businesses", "Lists the businesses that the owner's agent knows.", reads, listArguments, s.listBusinesses)
	add(s, "list_grants", "List permissions", "Lists what businesses allow the owner's agent to do. Which of them is used is not yours to choose.", reads, listArguments, s.listGrants)
	add(s, "list_receipts", "List receipts", "Lists the receipts that businesses signed, and what each is worth.", reads, listArguments, s.listReceipts)
	add(s, "list_approvals", "List open approvals", "Lists what waits for the owner's word. You cannot decide it.", reads, listArguments, s.listApprovals)
}

// business finds the business that the assistant named, and the task in which the
// assistant acts there.
func (s *Server) business(ctx context.Context, req *mcp.CallToolRequest, named string) (agent.BusinessView, agent.Caller, error) {
	b, err := s.cfg.Agent.Discover(ctx, s.caller(req.ClientInfo(), ""), agent.ParseBusiness(named))
	return b, s.caller(req.ClientInfo(), b.ID), before(err)
}

type businessDetail struct {
	businessSummary
	Profile     string          `json:"profile,omitzero" jsonschema:"delegated: it takes permissions; identity: it only learns who calls"`
	Description agent.Untrusted `json:"description"`
	Permissions []permission    `json:"permissions"`
	Skills      []skill         `json:"skills"`
}

type businessSummary struct {
	ID        string          `json:"id"`
	Name      agent.Untrusted `json:"name"`
	Domain    string          `json:"domain,omitzero"`
	CardURL   string          `json:"cardUrl"`
	Supported bool            `json:"supported"`
	Reason    string          `json:"reason,omitzero" jsonschema:"why it is not supported"`
}

type permission struct {
	ID          agent.Untrusted `json:"id" jsonschema:"its text is what scopes takes"`
	Effect      string          `json:"effect"`
	Description agent.Untrusted `json:"description"`
}

type skill struct {
	Name        agent.Untrusted `json:"name"`
	Description agent.Untrusted `json:"description"`
}

func summaryOf(b agent.BusinessView) businessSummary {
	return businessSummary{b.ID, words(b.Name), b.Domain, b.CardURL, b.Supported, b.Reason}
}

func (s *Server) discover(ctx context.Context, req *mcp.CallToolRequest, in businessArgs) (*mcp.CallToolResult, businessDetail, error) {
	b, _, err := s.business(ctx, req, in.Business)
	if err != nil {
		if err = told(err); s.unenrolled(ctx, req) {
			err = fmt.Errorf("%s %w", s.cfg.Commands(notEnrolled), err)
		}
		return nil, businessDetail{}, err
	}
	d := businessDetail{
		businessSummary: summaryOf(b), Profile: string(b.Profile), Description: words(b.Description),
		Permissions: []permission{}, Skills: []skill{},
	}
	for _, p := range b.Scopes {
		d.Permissions = append(d.Permissions, permission{words(p.ID), p.Effect().String(), words(p.Description)})
	}
	for _, k := range b.Skills {
		d.Skills = append(d.Skills, skill{words(k.Name), words(k.Description)})
	}
	return nil, d, nil
}

// ask sends an inspection. What is more than one is not sent: nothing that the
// assistant declares lowers what its words say (AD-5).
func (s *Server) ask(ctx context.Context, req *mcp.CallToolRequest, in sendArgs) (*mcp.CallToolResult, outcome, error) {
	return s.operate(ctx, req, in, func() (agent.Result, error) {
		b, c, err := s.business(ctx, req, in.Business)
		if err != nil {
			return agent.Result{}, err
		}
		var needed []agent.Scope
		for _, p := range b.Scopes {
			if slices.Contains(in.Scopes, p.ID) {
				needed = append(needed, p)
			}
		}
		e := agent.EffectOf(agent.EffectInspect.String(), in.Message, needed)
		if len(needed) > 0 {
			known, err := s.cfg.Agent.Businesses(ctx, c)
			if err != nil {
				return agent.Result{}, before(err)
			}
			e = max(e, b.EffectElsewhere(known, in.Scopes))
		}
		if e != agent.EffectInspect {
			return agent.Result{Status: agent.StatusBlocked, Reason: reasonChange, Effect: &e, Business: b.ID}, nil
		}
		var conversation *agent.ConversationView
		if in.Conversation != "" {
			v, err := s.cfg.Agent.Conversation(ctx, c, in.Conversation)
			if err != nil {
				return agent.Result{}, before(err)
			}
			conversation = &v
		}
		// As the agent computes it for a task, whose approval this would take.
		switch confirms := agent.MayConfirm(in.Message, conversation); {
		case conversation != nil && (confirms || !alone(c, *conversation)):
			return agent.Result{Status: agent.StatusBlocked, Reason: reasonElsewhere, Business: b.ID, Conversation: conversation.ID}, nil
		case confirms:
			e := agent.EffectUnknown
			return agent.Result{Status: agent.StatusBlocked, Reason: reasonChange, Effect: &e, Business: b.ID}, nil
		}
		return s.cfg.Agent.Send(ctx, c, in.request(b, agent.EffectInspect))
	})
}

// alone reports whether all that was said in a conversation is the caller's.
func alone(c agent.Caller, v agent.ConversationView) bool {
	task := " task " + strings.TrimPrefix(c.Task.ID, atOwners) // as a running agent records it
	return !slices.ContainsFunc(v.Messages, func(m agent.MessageView) bool {
		return m.Actor != c.Actor && !strings.HasSuffix(m.Actor, task)
	})
}

// requestChange asks for a change: declared as one it is never sent without the
// owner's approval (AD-5, AP-1).
func (s *Server) requestChange(ctx context.Context, req *mcp.CallToolRequest, in sendArgs) (*mcp.CallToolResult, outcome, error) {
	return s.operate(ctx, req, in, func() (agent.Result, error) {
		b, c, err := s.business(ctx, req, in.Business)
		if err != nil {
			return agent.Result{}, err
		}
		return s.cfg.Agent.Send(ctx, c, in.request(b, agent.EffectChange))
	})
}

func (a sendArgs) request(b agent.BusinessView, e agent.Effect) agent.SendRequest {
	return agent.SendRequest{Business: b.ID, Message: a.Message, Effect: e.String(), Scopes: a.Scopes, Conversation: a.Conversation}
}

func (s *Server) reconcile(ctx context.Context, req *mcp.CallToolRequest, in conversationArgs) (*mcp.CallToolResult, outcome, error) {
	return s.operate(ctx, req, in, func() (agent.Result, error) {
		c := s.caller(req.ClientInfo(), "")
		v, err := s.cfg.Agent.Conversation(ctx, c, in.Conversation)
		if err != nil {
			return agent.Result{}, before(err)
		}
		return s.cfg.Agent.Reconcile(ctx, s.caller(req.ClientInfo(), v.Business), agent.ReconcileRequest{Conversation: v.ID})
	})
}

// unenrolled reports an agent whose profile nobody has enrolled yet, which may well be
// another than its owner means.
func (s *Server) unenrolled(ctx context.Context, req *mcp.CallToolRequest) bool {
	a, ok := s.cfg.Agent.(interface {
		Policy(context.Context, agent.Caller) (agent.PolicyView, error)
	})
	if !ok {
		return false
	}
	v, err := a.Policy(ctx, s.caller(req.ClientInfo(), ""))
	return err == nil && (v.Reason == agent.ReasonIdentityNotSet || v.Reason == agent.ReasonDisabledInSettings && v.Preference == "" && v.By == "")
}

// notEnrolled is what to do about that.
const notEnrolled = "The profile of this agent is not enrolled with a signer, so nothing can be done by it. The owner enrols it (pactctl enroll), " +
	"or names one that is in the arguments by which the assistant's program starts this server: --profile DIR, or --remote TARGET."

// finished is an operation's outcome as the result of its tool.
func finished(o outcome, err error) (*mcp.CallToolResult, outcome, error) {
	return &mcp.CallToolResult{IsError: o.wrong()}, o, err
}

func signInOf(z agent.AuthorizationView) *signInState {
	return &signInState{z.ID, z.State, eachWords(z.Scopes), z.Deadline}
}

// newest is what a list tool gives of a list.
func newest[T any](l []T, limit int) (part []T, more bool) {
	if limit == 0 {
		limit = defaultList
	}
	return l[:min(limit, len(l))], len(l) > limit
}

type businessList struct {
	Businesses []businessSummary `json:"businesses"`
	More       bool              `json:"more" jsonschema:"there are more than these"`
	Next       string            `json:"next,omitzero" jsonschema:"what to do now: the agent's own words"`
}

func (s *Server) listBusinesses(ctx context.Context, req *mcp.CallToolRequest, in listArgs) (*mcp.CallToolResult, businessList, error) {
	all, err := s.cfg.Agent.Businesses(ctx, s.caller(req.ClientInfo(), ""))
	if err != nil {
		return nil, businessList{}, told(err)
	}
	part, more := newest(all, in.Limit)
	out := businessList{Businesses: []businessSummary{}, More: more}
	if len(part) == 0 && s.unenrolled(ctx, req) {
		out.Next = s.cfg.Commands(notEnrolled)
	}
	for _, b := range part {
		out.Businesses = append(out.Businesses, summaryOf(b))
	}
	return nil, out, nil
}

type grantSummary struct {
	ID           string            `json:"id"`
	Business     string            `json:"business"`
	BusinessName agent.Untrusted   `json:"businessName"`
	State        string            `json:"state"`
	Reason       string            `json:"reason,omitzero"`
	Permissions  []agent.Untrusted `json:"permissions"`
	Created      time.Time         `json:"created"`
	Expires      time.Time         `json:"expires"`
}

type grantList struct {
	Grants []grantSummary `json:"grants"`
	More   bool           `json:"more" jsonschema:"there are more than these"`
}

func (s *Server) listGrants(ctx context.Context, req *mcp.CallToolRequest, in listArgs) (*mcp.CallToolResult, grantList, error) {
	all, err := s.cfg.Agent.Grants(ctx, s.caller(req.ClientInfo(), ""))
	if err != nil {
		return nil, grantList{}, told(err)
	}
	part, more := newest(all, in.Limit)
	out := grantList{[]grantSummary{}, more}
	for _, g := range part {
		out.Grants = append(out.Grants, grantSummary{g.ID, g.Business, words(g.BusinessName), g.State, g.Reason, eachWords(g.Scopes), g.Created, g.Expires})
	}
	return nil, out, nil
}

type receiptSummary struct {
	ID           string            `json:"id"`
	Business     string            `json:"business"`
	BusinessName agent.Untrusted   `json:"businessName"`
	Conversation string            `json:"conversation"`
	Verdict      string            `json:"verdict"`
	Meaning      string            `json:"meaning"`
	Issues       []string          `json:"issues"`
	ScopesUsed   []agent.Untrusted `json:"scopesUsed"`
	Actions      []agent.Untrusted `json:"actions"`
	Signed       time.Time         `json:"signed,omitzero" jsonschema:"when, by the business's word"`
	Received     time.Time         `json:"received"`
}

func receiptSummaryOf(r agent.ReceiptView) receiptSummary {
	v := receiptSummary{
		r.ID, r.Business, words(r.BusinessName), r.Conversation, string(r.Verdict), meaning(r.Verdict, r.Issues), list(r.Issues),
		eachWords(r.ScopesUsed), []agent.Untrusted{}, r.Time, r.Received,
	}
	for _, a := range r.Actions {
		v.Actions = append(v.Actions, words(a.Tool))
	}
	return v
}

type receiptList struct {
	Receipts []receiptSummary `json:"receipts"`
	More     bool             `json:"more" jsonschema:"there are more than these"`
}

func (s *Server) listReceipts(ctx context.Context, req *mcp.CallToolRequest, in listArgs) (*mcp.CallToolResult, receiptList, error) {
	all, err := s.cfg.Agent.Receipts(ctx, s.caller(req.ClientInfo(), ""))
	if err != nil {
		return nil, receiptList{}, told(err)
	}
	part, more := newest(all, in.Limit)
	out := receiptList{[]receiptSummary{}, more}
	for _, r := range part {
		out.Receipts = append(out.Receipts, receiptSummaryOf(r))
	}
	return nil, out, nil
}

type approvalSummary struct {
	approvalState
	Business     string          `json:"business"`
	BusinessName agent.Untrusted `json:"businessName"`
	Effect       string          `json:"effect"`
	Message      agent.Untrusted `json:"message" jsonschema:"what an assistant or a program wants to say in the owner's name"`
	AskedBy      agent.Untrusted `json:"askedBy" jsonschema:"as whoever asked calls itself"`
}

type approvalList struct {
	Approvals []approvalSummary `json:"approvals"`
	More      bool              `json:"more" jsonschema:"there are more than these"`
}

func (s *Server) listApprovals(ctx context.Context, req *mcp.CallToolRequest, in listArgs) (*mcp.CallToolResult, approvalList, error) {
	all, err := s.cfg.Agent.Approvals(ctx, s.caller(req.ClientInfo(), ""), false)
	if err != nil {
		return nil, approvalList{}, told(err)
	}
	part, more := newest(all, in.Limit)
	out := approvalList{[]approvalSummary{}, more}
	for _, v := range part {
		out.Approvals = append(out.Approvals, approvalSummary{*approvalOf(v), v.Business, words(v.BusinessName), v.Effect.String(), words(v.Message), words(v.Actor)})
	}
	return nil, out, nil
}
