package assistant

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pactsigner/pactsigner/agent"
)

// maxChain is how far it is followed what took an approval's place.
const maxChain = 20

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
		return s.followConversation(ctx, c, conversation)
	}
	if !errors.Is(err, agent.ErrNotFound) {
		return outcome{}, told(err)
	}
	return s.followSignIn(ctx, c, id)
}

// followSignIn tells how a sign-in ended. What was approved and waited for it is sent
// by itself, so that one is told then and not the sign-in: it is nothing to ask anew.
func (s *Server) followSignIn(ctx context.Context, c agent.Caller, id string) (outcome, error) {
	z, err := s.signIn(ctx, c, func(z agent.AuthorizationView) bool { return z.ID == id })
	if err == nil && z == nil {
		err = agent.ErrNotFound
	}
	if err != nil {
		return outcome{}, told(err)
	}
	approvals, err := s.cfg.Agent.Approvals(ctx, c, true)
	if err != nil {
		return outcome{}, told(err)
	}
	waited := slices.DeleteFunc(approvals, func(v agent.ApprovalView) bool { return v.Authorization != id })
	own := func(v agent.ApprovalView) bool { return strings.HasSuffix(v.Task, c.Task.ID+" "+v.Business) }
	if slices.ContainsFunc(waited, own) { // another assistant's are another matter
		waited = slices.DeleteFunc(waited, func(v agent.ApprovalView) bool { return !own(v) })
	}
	var worst outcome
	for i, v := range waited {
		o, err := s.followApproval(ctx, c, v)
		if err != nil {
			return outcome{}, err
		}
		if i == 0 || o.standing() > worst.standing() {
			worst = o
		}
	}
	if len(waited) > 0 {
		return worst, nil
	}
	o := outcome{Status: statusWaiting, Reason: z.Reason, Business: z.Business, SignIn: signInOf(*z), Next: agent.SettledText(z.State, z.Reason)}
	switch z.State { // of AuthorizationView
	case "pending":
		o.Status, o.Next = string(agent.StatusNeedsUserAction), o.mustSignIn()+followAgain
	case "granted":
		o.Status = string(agent.StatusDone)
	case "denied", "expired", "cancelled", "failed":
		o.Status = z.State
	}
	return o, nil
}

// standing orders what became of several approvals of one sign-in, of which one is told:
// what may have been carried out, then what may still be, then what was. Only where all
// else came to nothing may it be said that nothing was carried out.
func (o outcome) standing() int {
	switch o.Status {
	case statusWaiting, string(agent.StatusNeedsUserAction):
		return 4
	case string(agent.StatusReplied):
		return 3
	case string(agent.StatusUnknown):
		return 5
	}
	switch {
	case o.before, o.Reason == agent.ReasonApprovalReplaced:
		return 5
	case o.Status == string(agent.StatusApprovalRequired):
		return 2
	case o.Status == string(agent.StatusFailed):
		return 0
	}
	return 1
}

// signIn is the newest sign-in of a kind; nil if there is none.
func (s *Server) signIn(ctx context.Context, c agent.Caller, is func(agent.AuthorizationView) bool) (*agent.AuthorizationView, error) {
	all, err := s.cfg.Agent.Authorizations(ctx, c)
	if i := slices.IndexFunc(all, is); err == nil && i >= 0 {
		return &all[i], nil
	}
	return nil, err
}

// followApproval tells what became of an approval: by the message that went out under
// it, if one did, and by the approval that took its place, if one did, for the business
// wanted more or something has changed.
func (s *Server) followApproval(ctx context.Context, c agent.Caller, v agent.ApprovalView) (outcome, error) {
	for range maxChain {
		if v.Next == "" {
			break
		}
		next, err := s.cfg.Agent.Approval(ctx, c, v.Next)
		if errors.Is(err, agent.ErrNotFound) { // the oldest are not kept
			break
		}
		if err != nil {
			return outcome{}, told(err)
		}
		v = next
	}
	if v.State == agent.ApprovalSent && v.Conversation != "" && v.SentMessage != "" {
		conversation, err := s.cfg.Agent.Conversation(ctx, c, v.Conversation)
		if err != nil {
			return outcome{}, told(err)
		}
		for i, m := range conversation.Messages {
			if m.ID == v.SentMessage {
				return s.followMessage(ctx, c, conversation, i, &v)
			}
		}
	}
	o := outcome{Effect: v.Effect.String(), Business: v.Business, Conversation: v.Conversation}
	if v.State == agent.ApprovalApproved && v.Authorization != "" {
		z, err := s.signIn(ctx, c, func(z agent.AuthorizationView) bool { return z.ID == v.Authorization })
		if err != nil {
			return outcome{}, told(err)
		}
		if z != nil {
			o.SignIn = signInOf(*z)
		}
	}
	return o.of(v), nil
}

// followConversation tells what came of the last thing in a conversation: a message,
// or what waits for the owner's word since.
func (s *Server) followConversation(ctx context.Context, c agent.Caller, v agent.ConversationView) (outcome, error) {
	last := len(v.Messages) - 1
	for last >= 0 && v.Messages[last].Introduction {
		last--
	}
	open, err := s.openApproval(ctx, c, v.ID)
	switch {
	case err != nil:
		return outcome{}, err
	case open != nil && (last < 0 || !open.Created.Before(v.Messages[last].Created)):
		return s.followApproval(ctx, c, *open)
	case last < 0:
		return s.ended(ctx, c, v, outcome{Business: v.Business, Conversation: v.ID}, "")
	}
	return s.followMessage(ctx, c, v, last, nil)
}

// openApproval is the newest approval in a conversation that something may come of.
func (s *Server) openApproval(ctx context.Context, c agent.Caller, conversation string) (*agent.ApprovalView, error) {
	open, err := s.cfg.Agent.Approvals(ctx, c, false)
	if err != nil {
		return nil, told(err)
	}
	for _, v := range open {
		if v.Conversation == conversation {
			return &v, nil
		}
	}
	return nil, nil
}

// followMessage tells what became of a message of a conversation, which went out
// under an approval unless that is nil.
func (s *Server) followMessage(ctx context.Context, c agent.Caller, v agent.ConversationView, i int, under *agent.ApprovalView) (outcome, error) {
	m := v.Messages[i]
	o := outcome{Status: statusWaiting, Reason: m.Reason, Effect: m.Effect.String(), Business: v.Business, Conversation: v.ID}
	if under != nil {
		o.Approval = approvalOf(*under)
	}
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
	case "auth_required": // nothing ran, for the business wants more (CV-13)
		if slices.ContainsFunc(v.Messages[i+1:], func(later agent.MessageView) bool { return !later.Introduction }) {
			v.State, v.Reason = "", "" // which are of what came later
		}
		return s.ended(ctx, c, v, o, m.Actor)
	case "superseded":
		o.Next = "Nothing was carried out so far: it has to go out in another form, which the agent sees to if it still can. " +
			"Call follow_up again later; if this stays so, ask the owner before you request it again."
		return o, nil
	}
	o.Next = o.next()
	return o, nil
}

// followAgain is what is to be done about a sign-in that something waits for which may
// go on by itself.
const followAgain = " When they say it is done, call follow_up again."

// ended tells of a conversation in which nothing was carried out, and in which no
// approval is open: by the sign-in that it waits for, or else by how it ended. actor is
// who asked for it, if that is known.
func (s *Server) ended(ctx context.Context, c agent.Caller, v agent.ConversationView, o outcome, actor string) (outcome, error) {
	switch v.State { // CV-1
	case "awaiting_business_consent":
		waits := func(z agent.AuthorizationView) bool { return z.State == "pending" && z.Business == v.Business }
		z, err := s.signIn(ctx, c, func(z agent.AuthorizationView) bool { return waits(z) && z.Actor == actor })
		if z == nil && err == nil {
			z, err = s.signIn(ctx, c, waits)
		}
		if err != nil {
			return outcome{}, told(err)
		}
		if z != nil {
			o.Status, o.SignIn = string(agent.StatusNeedsUserAction), signInOf(*z)
			o.Next = o.mustSignIn() + followAgain
			return o, nil
		}
	case "denied", "expired", "cancelled", "unsupported":
		o.Status, o.Reason = v.State, v.Reason
		o.Next = o.next()
		return o, nil
	case "discovered", "sending":
		o.Status = statusWaiting
		o.Next = o.next()
		return o, nil
	}
	o.Status = string(agent.StatusFailed)
	o.Next = "Nothing was carried out so far, and nothing waits for the owner now. Call follow_up again; if this stays so, request it again if the owner still wants it."
	return o, nil
}
