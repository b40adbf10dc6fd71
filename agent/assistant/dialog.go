package assistant

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pactsigner/pactsigner/agent"
)

// maxDialogs is how often one call asks: what was approved may have to be asked anew,
// because a business wants more for it.
const maxDialogs = 3

// maxShown is how many approvals are put to the person in all. Beyond it the terminal is
// left: who has asked so much wears a person down.
const maxShown = 1000

// maxPending is how many questions are kept for a client that brings the answer back in
// a call of its own, those among them that were answered.
const maxPending = 50

// multiRound is the first protocol revision in which a server does not ask the client
// in the midst of a call, but ends the call with its question, which the client answers
// in the same call anew.
const multiRound = "2026-07-28"

// lastHandshake is the last revision before it.
const lastHandshake = "2025-11-25"

// handshake holds what a client says of itself in an initialize to the revisions that
// have one: by a newer one the answer is lastHandshake all the same, and the client goes
// on under that.
func handshake(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if p, ok := req.GetParams().(*mcp.InitializeParams); ok && p != nil && p.ProtocolVersion >= multiRound {
			p.ProtocolVersion = lastHandshake
		}
		return next(ctx, method, req)
	}
}

// question is one that was put to the person at the client.
type question struct {
	approval, digest string
	call             string // the tool and its arguments
	round            int
	taken            bool          // an answer has come
	ended            chan struct{} // is closed when all is done that the answer asks for
}

// choice is what the person answered.
type choice int

const (
	undecided choice = iota // it stays for the owner's other surfaces
	approve
	deny
)

// operate carries an operation out, and has its approvals decided in a dialog if the
// client offers one. begin is not run if the call brings an answer: what is decided is
// what was asked about, whatever the call says. What came of an answer the assistant is
// told as it stands in the records that it may read: the answer was the owner's, and so
// is the result of it.
func (s *Server) operate(ctx context.Context, req *mcp.CallToolRequest, in any, begin func() (agent.Result, error)) (*mcp.CallToolResult, outcome, error) {
	call, err := json.Marshal([]any{req.Params.Name, in})
	if err != nil {
		return nil, outcome{}, fmt.Errorf("the call: %w", err)
	}
	var q question
	var r agent.Result
	if req.Params.RequestState == "" && len(req.Params.InputResponses) == 0 {
		r, err = begin()
	} else {
		var first bool
		if q, first = s.take(req.Params.RequestState, string(call)); q.approval == "" {
			return nil, outcome{}, errors.New("that question is not open, and nothing is decided by this: list_approvals tells what waits for the owner")
		}
		if !first { // the client lost the result: it is told again, once there is one
			return s.decidedAlready(ctx, req, q)
		}
		answer, _ := req.Params.InputResponses[asked].(*mcp.ElicitResult)
		r, err = s.decide(ctx, req, q, chosen(answer))
	}
	for err == nil && r.Status == agent.StatusApprovalRequired && r.Approval != nil && r.Approval.ID != "" && q.round < maxDialogs && s.asks(req) {
		v, text, whole := s.dialog(ctx, req, r.Approval.ID)
		if !whole || !s.first(v.ID) {
			break
		}
		q = question{approval: v.ID, digest: v.Digest, call: string(call), round: q.round + 1, ended: make(chan struct{})}
		if req.Session.InitializeParams().ProtocolVersion >= multiRound {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{asked: form(text)}, RequestState: s.put(q)}, outcome{}, nil
		}
		r, err = s.decide(ctx, req, q, s.elicit(ctx, req, v, text))
	}
	earlier := req.Params.Name == "reconcile" // it is about a message that was sent before
	switch {
	case q.approval != "":
		return s.answered(ctx, req, q, err)
	case err != nil:
		o, err := outcomeOfError(err, earlier)
		if err == nil {
			o = s.ready(ctx, req, o)
		}
		return finished(o, err)
	}
	return finished(s.ready(ctx, req, s.afterDialog(outcomeOf(r, earlier))), nil)
}

// answered tells what came of a person's answer, which err ended, if that is not nil.
func (s *Server) answered(ctx context.Context, req *mcp.CallToolRequest, q question, err error) (*mcp.CallToolResult, outcome, error) {
	o, lost := s.follow(ctx, s.caller(req.ClientInfo(), ""), q.approval)
	if lost != nil {
		s.cfg.Log.Info("what came of an approval cannot be told", "approval", q.approval, "error", errors.Join(err, lost))
		lost = fmt.Errorf("it is not known what came of the owner's answer. Call follow_up with id %s; do not request it again", q.approval)
	}
	return finished(s.afterDialog(o), lost)
}

// decidedAlready tells what came of an answer that has come before: it decides nothing
// again.
func (s *Server) decidedAlready(ctx context.Context, req *mcp.CallToolRequest, q question) (*mcp.CallToolResult, outcome, error) {
	select {
	case <-q.ended:
		return s.answered(ctx, req, q, nil)
	case <-ctx.Done():
		return nil, outcome{}, context.Cause(ctx)
	}
}

// ready tells of an agent that can do nothing yet that it is so.
func (s *Server) ready(ctx context.Context, req *mcp.CallToolRequest, o outcome) outcome {
	switch agent.Status(o.Status) {
	case agent.StatusBlocked, agent.StatusFailed:
		if s.unenrolled(ctx, req) {
			if !o.before { // else it may have been
				o.Next = "Nothing was carried out."
			}
			o.Next += " " + notEnrolled
		}
	}
	return o
}

// afterDialog tells of an approval that waits although a dialog was shown for it.
func (s *Server) afterDialog(o outcome) outcome {
	if o.Status == string(agent.StatusApprovalRequired) && o.Approval != nil && o.Approval.State != agent.ApprovalApproved && s.wasShown(o.Approval.ID) {
		o.Next = "The owner was asked in a dialog, which has brought no decision so far, and is not asked there again. " + o.Next
	}
	return o
}

// first reports whether an approval was not put into a dialog yet, and takes down that
// it is now: a person is asked once about one, and a program that calls again and again
// wears nobody down.
func (s *Server) first(approval string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown[approval] || len(s.shown) >= maxShown {
		return false
	}
	s.shown[approval] = true
	return true
}

func (s *Server) wasShown(approval string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown[approval]
}

// dialog is what the person is to decide, as the assistant may read it, for its program
// shows the dialog; and whether that is all of it. Where it is not, for something in
// it belongs to a sign-in, the owner's own terminal shows it.
func (s *Server) dialog(ctx context.Context, req *mcp.CallToolRequest, id string) (v agent.ApprovalView, text string, whole bool) {
	v, err := s.cfg.Agent.Approval(ctx, s.caller(req.ClientInfo(), ""), id)
	if err != nil || v.State != agent.ApprovalPending && v.State != agent.ApprovalApproved {
		return v, "", false
	}
	hide, err := s.withholder(ctx)
	if err != nil {
		return v, "", false
	}
	card, err := s.cardElsewhere(ctx, req, v.Business)
	if err != nil {
		return v, "", false
	}
	var in agent.ConversationView
	if v.Conversation != "" {
		in, err = s.cfg.Agent.Conversation(ctx, s.caller(req.ClientInfo(), ""), v.Conversation)
		if err != nil && !errors.Is(err, agent.ErrNotFound) {
			return v, "", false
		}
	}
	said, goesOn := agent.LastWords(in, func(text string) string { return cleaner(hide).text(v.Business, text) })
	name := clientName(req.ClientInfo())
	text = approvalText(name, v, card, "", goesOn)
	whole = hide(v.Business, text) == text && !strings.Contains(text, agent.Redacted)
	return v, approvalText(name, v, card, said, goesOn), whole
}

// cardElsewhere is the host that a business's card came from, if it is another one than
// the message goes to.
func (s *Server) cardElsewhere(ctx context.Context, req *mcp.CallToolRequest, id string) (string, error) {
	all, err := s.cfg.Agent.Businesses(ctx, s.caller(req.ClientInfo(), ""))
	if i := slices.IndexFunc(all, func(b agent.BusinessView) bool { return b.ID == id }); i >= 0 {
		return all[i].CardElsewhere(), err
	}
	return "", err
}

// asks reports whether the person can be asked at the client.
func (s *Server) asks(req *mcp.CallToolRequest) bool {
	if s.cfg.Owner == nil || req.Session.InitializeParams() == nil {
		return false
	}
	caps := req.ClientCapabilities()
	// A client that names no mode has forms, as all had before there were modes.
	return caps != nil && caps.Elicitation != nil && (caps.Elicitation.Form != nil || caps.Elicitation.URL == nil)
}

// put keeps a question for the answer that the client brings, under a state that nobody
// can guess. Those that were answered go first, if there are too many; questions of a
// client that leaves so many open are not open any more.
func (s *Server) put(q question) (state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) >= maxPending {
		maps.DeleteFunc(s.pending, func(_ string, q *question) bool { return q.taken })
	}
	if len(s.pending) >= maxPending {
		clear(s.pending)
	}
	state = rand.Text()
	s.pending[state] = &q
	return state
}

// take gives a question out to the very call that it was put in, or none. first tells
// whether this is its first answer, which alone counts; one to another call is that too.
func (s *Server) take(state, call string) (q question, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := s.pending[state]
	if open == nil {
		return question{}, false
	}
	if open.call != call {
		if !open.taken {
			delete(s.pending, state)
		}
		return question{}, false
	}
	first, open.taken = !open.taken, true
	return *open, first
}

// asked names the one question of a call.
const asked = "approval"

// decide gives the person's answer to the agent, as the owner's and for exactly what
// was shown. A client that stops waiting does not stop what the person approved.
func (s *Server) decide(ctx context.Context, req *mcp.CallToolRequest, q question, w choice) (agent.Result, error) {
	if w == undecided {
		close(q.ended)
		return agent.Result{}, nil
	}
	c := agent.Caller{
		Principal: s.cfg.Owner.Principal, Origin: s.cfg.Owner.Origin, Human: agent.HumanNone, Network: s.cfg.Owner.Network,
		Actor: "dialog of " + clientName(req.ClientInfo()),
	}
	type end struct {
		r   agent.Result
		err error
	}
	ended := make(chan end, 1)
	s.work.Go(func() {
		defer close(q.ended)
		r, err := s.cfg.Agent.Decide(s.life, c, agent.Decision{ID: q.approval, Approve: w == approve, Digest: q.digest})
		ended <- end{r, err}
	})
	select {
	case e := <-ended:
		if e.err != nil || e.r.Reason == agent.ReasonApprovalOver {
			s.cfg.Log.Info("a dialog's answer came too late, or does not count", "approval", q.approval, "error", e.err)
		}
		return e.r, e.err
	case <-ctx.Done():
		return agent.Result{}, context.Cause(ctx)
	}
}

// elicit asks the person in the midst of a call, as clients before multiRound have
// it. It ends early if the approval is decided elsewhere.
func (s *Server) elicit(ctx context.Context, req *mcp.CallToolRequest, v agent.ApprovalView, text string) choice {
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watch(ctx, req, v)
		cancel()
	}()
	answer, err := req.Session.Elicit(ctx, form(text))
	cancel()
	<-watched
	if err != nil {
		s.cfg.Log.Info("a dialog ended without an answer", "approval", v.ID, "error", err)
		return undecided
	}
	return chosen(answer)
}

// alive is after how many looks a client is told that the call goes on, so that it does
// not take it for lost.
const alive = 10

// watch returns when an approval is no longer as it was shown, or ctx ends.
func (s *Server) watch(ctx context.Context, req *mcp.CallToolRequest, shown agent.ApprovalView) {
	tick := time.NewTicker(s.cfg.Look)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if v, err := s.cfg.Agent.Approval(ctx, s.caller(req.ClientInfo(), ""), shown.ID); err == nil && v.State != shown.State {
			return
		}
		if token := req.Params.GetProgressToken(); token != nil && n%alive == 0 {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(n), Message: "The owner is asked."})
		}
	}
}

// chosen reads the person's answer. Only a form that was sent off with a choice made
// in it is one: nothing that a program fills in by itself approves, and a dialog that was
// put away denies nothing.
func chosen(answer *mcp.ElicitResult) choice {
	if answer == nil || answer.Action != "accept" {
		return undecided
	}
	switch answer.Content["decision"] {
	case "approve":
		return approve
	case "deny":
		return deny
	}
	return undecided
}

// form is the dialog: all that is decided (AP-2), and a choice without a default.
func form(text string) *mcp.ElicitParams {
	return &mcp.ElicitParams{
		Mode:    "form",
		Message: text,
		RequestedSchema: map[string]any{
			"type": "object",
			"properties": map[string]any{"decision": map[string]any{
				"type": "string", "title": "Your decision", "enum": []any{"deny", "approve"},
				"description": "approve sends exactly this message, once; deny ends it. Close the dialog to decide later.",
			}},
			"required": []any{"decision"},
		},
	}
}

// approvalText is the whole of what is decided (AP-2): nothing is shortened and no
// character hides. What others wrote is indented, so that it neither passes for this
// text nor counts as markup. card is another host than the destination's that the
// business's card came from, said what the business said last in the conversation that
// it goes on with, which alone may be cut (agent.LastWords).
func approvalText(client string, v agent.ApprovalView, card, said string, goesOn bool) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	quote := func(text string) {
		say("")
		for _, line := range agent.WrittenOutLines(text) {
			say("    %s", line)
		}
		say("")
	}
	say("%q asks to send this message in your name. It is sent only if you approve it.", client)
	if !v.SentBefore.IsZero() {
		say("It was sent before, at %s, and what became of it is not known: a business that never got it carries it out now.", v.SentBefore.UTC().Format(time.RFC3339))
	}
	if v.Changed {
		say("It differs from what was approved before.")
	}
	say("The whole message:")
	quote(v.Message)
	switch {
	case v.Conversation == "":
	case !goesOn:
		say("It begins conversation %s.", v.Conversation)
	case said == "":
		say("It goes on with conversation %s, in which the business said nothing yet.", v.Conversation)
	default:
		say("It goes on with conversation %s, in which the business said last:", v.Conversation)
		quote(said)
	}
	say("To the business that calls itself:")
	quote(v.BusinessName)
	say("At:")
	quote(v.Destination)
	if card != "" {
		say("What it says of itself and of its permissions comes from another host:")
		quote(card)
	}
	say("Effect: %s", v.Effect)
	permissions := func(title string, scopes []agent.Scope) {
		if len(scopes) == 0 {
			say("%s none", title)
			return
		}
		say("%s", title)
		var lines []string
		for _, p := range scopes {
			lines = append(lines, p.ID+"  "+strings.ReplaceAll(whole(p), "\n", " "))
		}
		quote(strings.Join(lines, "\n"))
	}
	permissions("Permissions:", v.Permissions)
	if v.Exceeds {
		permissions("The token that goes with it can do more than this needs:", v.TokenPermissions)
	}
	if v.State != agent.ApprovalPending {
		say("State: %s already, and not sent yet", v.State)
	}
	if v.Reason != "" {
		say("Reason: %s", v.Reason)
	}
	say("Asked for by: %q", v.Actor)
	at := func(what string, t time.Time) {
		if !t.IsZero() {
			say("%s: %s", what, t.UTC().Format(time.RFC3339))
		}
	}
	at("Asked", v.Created)
	at("Expires", v.Expires)
	if v.DecidedBy != "" {
		at("Decided", v.Decided)
		say("Decided by: %q", v.DecidedBy)
	}
	if v.Authorization != "" {
		say("It waits for the sign-in: %s", v.Authorization)
	}
	say("SHA-256: %s", v.Digest)
	say("Approval: %s", v.ID)
	return strings.TrimSuffix(b.String(), "\n")
}

// whole is all that a card says about a permission, as far as it is known.
func whole(p agent.Scope) string {
	switch {
	case p.Cut == nil:
		return p.Description
	case p.Cut.Whole != "":
		return p.Cut.Whole
	}
	return p.Description + " … (the card says more)"
}
