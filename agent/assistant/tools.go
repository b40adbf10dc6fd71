package assistant

import (
	"context"
	"errors"
	"slices"
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
	argConversation = text(maxID, "Id of a conversation to go on with. Without it a new one begins.")
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
	mcp.AddTool(s.mcp, &mcp.Tool{Name: name, Title: title, Description: description, Annotations: &does, InputSchema: arguments}, run)
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
	return b, s.caller(req.ClientInfo(), b.ID), err
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
	ID          string          `json:"id"`
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
		return nil, businessDetail{}, told(err)
	}
	d := businessDetail{
		businessSummary: summaryOf(b), Profile: string(b.Profile), Description: words(b.Description),
		Permissions: []permission{}, Skills: []skill{},
	}
	for _, p := range b.Scopes {
		d.Permissions = append(d.Permissions, permission{p.ID, p.Effect().String(), words(p.Description)})
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
		if e := agent.EffectOf(agent.EffectInspect.String(), in.Message, needed); e != agent.EffectInspect {
			return agent.Result{Status: agent.StatusBlocked, Reason: reasonChange, Effect: &e, Business: b.ID}, nil
		}
		return s.cfg.Agent.Send(ctx, c, in.request(b, agent.EffectInspect))
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
			return agent.Result{}, err
		}
		return s.cfg.Agent.Reconcile(ctx, s.caller(req.ClientInfo(), v.Business), agent.ReconcileRequest{Conversation: v.ID})
	})
}

// finished is an operation's outcome as the result of its tool.
func finished(o outcome, err error) (*mcp.CallToolResult, outcome, error) {
	return &mcp.CallToolResult{IsError: o.wrong()}, o, err
}

func (s *Server) followUp(ctx context.Context, req *mcp.CallToolRequest, in idArgs) (*mcp.CallToolResult, outcome, error) {
	o, err := s.follow(ctx, s.caller(req.ClientInfo(), ""), in.ID)
	return nil, o, err
}

// follow tells how far it is with an approval, a conversation or a sign-in.
func (s *Server) follow(ctx context.Context, c agent.Caller, id string) (outcome, error) {
	v, err := s.cfg.Agent.Approval(ctx, c, id)
	if err == nil {
		return s.followApproval(ctx, c, v)
	}
	if !errors.Is(err, agent.ErrNotFound) {
		return outcome{}, told(err)
	}
	conversation, err := s.cfg.Agent.Conversation(ctx, c, id)
	if err == nil {
		return s.followMessage(ctx, c, conversation, "")
	}
	if !errors.Is(err, agent.ErrNotFound) {
		return outcome{}, told(err)
	}
	z, err := s.signIn(ctx, c, id)
	if err != nil {
		return outcome{}, told(err)
	}
	o := outcome{Status: statusWaiting, Reason: z.Reason, Business: z.Business, SignIn: signInOf(z), Next: agent.SettledText(z.State, z.Reason)}
	switch z.State { // of AuthorizationView
	case "pending":
		o.Status = string(agent.StatusNeedsUserAction)
		o.Next = o.next()
	case "granted":
		o.Status = string(agent.StatusDone)
	case "denied", "expired", "cancelled", "failed":
		o.Status = z.State
	}
	return o, nil
}

func (s *Server) signIn(ctx context.Context, c agent.Caller, id string) (agent.AuthorizationView, error) {
	all, err := s.cfg.Agent.Authorizations(ctx, c)
	if err != nil {
		return agent.AuthorizationView{}, err
	}
	for _, z := range all {
		if z.ID == id {
			return z, nil
		}
	}
	return agent.AuthorizationView{}, agent.ErrNotFound
}

func (s *Server) followApproval(ctx context.Context, c agent.Caller, v agent.ApprovalView) (outcome, error) {
	o := outcome{Effect: v.Effect.String(), Business: v.Business, Conversation: v.Conversation}
	switch {
	case v.State == agent.ApprovalSent && v.Conversation != "" && v.SentMessage != "":
		conversation, err := s.cfg.Agent.Conversation(ctx, c, v.Conversation)
		if err != nil {
			return outcome{}, told(err)
		}
		o, err = s.followMessage(ctx, c, conversation, v.SentMessage)
		o.Approval = approvalOf(v)
		return o, err
	case v.State == agent.ApprovalFailed && v.Next != "": // asked anew, for it differs now
		next, err := s.cfg.Agent.Approval(ctx, c, v.Next)
		if err != nil {
			return outcome{}, told(err)
		}
		return s.followApproval(ctx, c, next)
	}
	o = o.of(v)
	if v.State == agent.ApprovalApproved && v.Authorization != "" {
		z, err := s.signIn(ctx, c, v.Authorization)
		if err != nil {
			return outcome{}, told(err)
		}
		o.SignIn = signInOf(z)
		if z.State == "pending" {
			o.Status = string(agent.StatusNeedsUserAction)
		}
		o.Next = o.next()
	}
	return o, nil
}

// followMessage tells what became of one message of a conversation, the last one if
// none is named.
func (s *Server) followMessage(ctx context.Context, c agent.Caller, v agent.ConversationView, id string) (outcome, error) {
	o := outcome{Status: statusWaiting, Reason: v.Reason, Business: v.Business, Conversation: v.ID}
	for _, m := range slices.Backward(v.Messages) {
		if m.Introduction || id != "" && m.ID != id {
			continue
		}
		o.Reason, o.Effect = m.Reason, m.Effect.String()
		switch m.State { // CV-1
		case "replied":
			o.Status = string(agent.StatusReplied)
			reply := words(m.Reply)
			o.Reply = &reply
			e := m.Evidence
			if e != nil && e.Receipt != "" { // why stands with the receipt
				r, err := s.cfg.Agent.Receipt(ctx, c, e.Receipt)
				switch {
				case err == nil:
					e = &agent.EvidenceView{Receipt: r.ID, Verdict: r.Verdict, Issues: r.Issues}
				case !errors.Is(err, agent.ErrNotFound): // the oldest are not kept
					return outcome{}, told(err)
				}
			}
			o.Receipt = receiptOf(e)
		case "outcome_unknown", "failed", "cancelled":
			o.Status = m.State
		case "auth_required":
			o.Status = string(agent.StatusNeedsUserAction)
		case "superseded":
			o.Status = string(agent.StatusCancelled)
		}
		break
	}
	o.Next = o.next()
	return o, nil
}

func signInOf(z agent.AuthorizationView) *signInState {
	return &signInState{z.ID, z.State, list(z.Scopes), z.Deadline}
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
}

func (s *Server) listBusinesses(ctx context.Context, req *mcp.CallToolRequest, in listArgs) (*mcp.CallToolResult, businessList, error) {
	all, err := s.cfg.Agent.Businesses(ctx, s.caller(req.ClientInfo(), ""))
	if err != nil {
		return nil, businessList{}, told(err)
	}
	part, more := newest(all, in.Limit)
	out := businessList{[]businessSummary{}, more}
	for _, b := range part {
		out.Businesses = append(out.Businesses, summaryOf(b))
	}
	return nil, out, nil
}

type grantSummary struct {
	ID           string          `json:"id"`
	Business     string          `json:"business"`
	BusinessName agent.Untrusted `json:"businessName"`
	State        string          `json:"state"`
	Reason       string          `json:"reason,omitzero"`
	Permissions  []string        `json:"permissions"`
	Created      time.Time       `json:"created"`
	Expires      time.Time       `json:"expires"`
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
		out.Grants = append(out.Grants, grantSummary{g.ID, g.Business, words(g.BusinessName), g.State, g.Reason, list(g.Scopes), g.Created, g.Expires})
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
		[]agent.Untrusted{}, []agent.Untrusted{}, r.Time, r.Received,
	}
	for _, scope := range r.ScopesUsed {
		v.ScopesUsed = append(v.ScopesUsed, words(scope))
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
	AskedBy      string          `json:"askedBy"`
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
		out.Approvals = append(out.Approvals, approvalSummary{*approvalOf(v), v.Business, words(v.BusinessName), v.Effect.String(), words(v.Message), v.Actor})
	}
	return nil, out, nil
}
