package service

import (
	"slices"
	"strings"
	"testing"

	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// wait is something that a running agent waits for when it ends.
type wait struct {
	name string
	// allowed are the permissions that the business's grant has before.
	allowed []string
	// enter leads the agent into the wait, with the message of its own.
	enter func(o *office, text string) *waited
	// holds is what must be so after a restart.
	holds func(o *office, w *waited)
}

// waited is what is known of a wait across the restart.
type waited struct {
	text     string
	killed   bool
	under    *operation // the operation under way, if there is one
	approval *agentv1.Approval
	signIn   string
	talk     string // the conversation
	hold     *pause
	begins   bool // the operation may not have begun when the agent stops
}

func change(o *office, text string) *agentv1.SendMessageRequest {
	return &agentv1.SendMessageRequest{Business: o.card, Message: text, Effect: "change", Scopes: []string{mayRead}}
}

// last is a conversation's last message.
func (o *office) last(conversation string) *agentv1.Message {
	o.t.Helper()
	c := one[*agentv1.Conversation](o.t, o.owner, "GetConversation", &agentv1.GetConversationRequest{Id: conversation})
	if len(c.Messages) == 0 {
		o.t.Fatalf("no messages in %v", c)
	}
	return c.Messages[len(c.Messages)-1]
}

func (o *office) getApproval(id string) *agentv1.Approval {
	o.t.Helper()
	return one[*agentv1.Approval](o.t, o.owner, "GetApproval", &agentv1.GetApprovalRequest{Id: id})
}

func (o *office) getAuthorization(id string) *agentv1.Authorization {
	o.t.Helper()
	return one[*agentv1.Authorization](o.t, o.owner, "GetAuthorization", &agentv1.GetAuthorizationRequest{Id: id})
}

// approve approves what is shown, and returns how that ended.
func (o *office) approve(v *agentv1.Approval) *agentv1.Result {
	o.t.Helper()
	return result(o.t, o.owner, "DecideApproval", &agentv1.DecideApprovalRequest{Id: v.Id, Decision: "approve", Digest: v.Digest})
}

// approvedOnce approves what waits, and then again: it is sent once, as it was shown.
func (o *office) approvedOnce(w *waited) {
	o.t.Helper()
	v := o.getApproval(w.approval.Id)
	if v.State != "pending" || v.Digest != w.approval.Digest || v.Message != w.text {
		o.t.Fatalf("the approval: %v, was %v", v, w.approval)
	}
	r := o.approve(v)
	if r.Status != "replied" || r.GetEvidence().GetVerdict() != "verified" {
		o.t.Fatalf("approved: %v", r)
	}
	ctx := o.t.Context()
	again, err := o.owner.call(ctx, "DecideApproval", &agentv1.DecideApprovalRequest{Id: v.Id, Decision: "approve", Digest: v.Digest}, nil)
	if len(again) > 0 && ended(again[len(again)-1], "replied") {
		o.t.Errorf("it is sent again: %v, %v", again, err)
	}
	v = o.getApproval(v.Id)
	m := o.last(r.Conversation)
	if v.State != "sent" || v.SentMessage != m.Id || m.Approval != v.Id || m.State != "replied" {
		o.t.Errorf("sent: %v as %v", v, m)
	}
	o.once(w.text)
}

// unknown checks that the outcome of what was under way is not known after a restart,
// that nothing repeats it, and that the business tells what became of it.
func (o *office) unknown(w *waited, reasons ...string) {
	o.t.Helper()
	m := o.last(w.talk)
	if m.State != "outcome_unknown" || !slices.Contains(reasons, m.Reason) || m.Text != w.text {
		o.t.Fatalf("what was under way: %v", m)
	}
	other := o.text("Cancel booking Y%d")
	r, err := o.owner.call(o.t.Context(), "SendMessage", &agentv1.SendMessageRequest{
		Business: o.card, Message: other, Effect: "change", Scopes: []string{mayRead}, Confirmed: true,
	}, nil)
	if err == nil && !(len(r) > 0 && ended(r[len(r)-1], "blocked")) || err != nil && reasonOf(err) != "unresolved_operation" { // CV-4
		o.t.Errorf("another change meanwhile: %v, %v", r, err)
	}
	if n := o.executed(other); n > 0 {
		o.t.Error("another change was carried out meanwhile")
	}
	v := result(o.t, o.owner, "Reconcile", &agentv1.ReconcileRequest{Business: o.card, Conversation: w.talk, Confirmed: true})
	if v.Status != "replied" || v.GetEvidence().GetVerdict() != "verified" {
		o.t.Errorf("reconciled: %v", v)
	}
	o.once(w.text)
}

func waits() []wait {
	return []wait{
		{
			name: "an approval that nobody waits for", allowed: []string{mayRead},
			enter: func(o *office, text string) *waited {
				r := result(o.t, o.owner, "SendMessage", change(o, text))
				if r.Status != "local_approval_required" {
					o.t.Fatalf("%v", r)
				}
				return &waited{approval: r.Approval}
			},
			holds: (*office).approvedOnce,
		},
		{
			name: "an approval that its asker waits for", allowed: []string{mayRead},
			enter: func(o *office, text string) *waited {
				req := change(o, text)
				req.WaitForApproval = true
				op := begin(o.t, o.owner, "SendMessage", req)
				u := op.until("the approval", func(u *agentv1.OperationUpdate) bool { return u.GetApproval() != nil })
				return &waited{under: op, approval: u.GetApproval()}
			},
			holds: (*office).approvedOnce,
		},
		{
			name: "a sign-in that what was approved waits for",
			enter: func(o *office, text string) *waited {
				r := result(o.t, o.owner, "SendMessage", change(o, text))
				if r.Status != "local_approval_required" {
					o.t.Fatalf("%v", r)
				}
				v := r.Approval
				r = o.approve(v)
				if r.Status != "needs_user_action" || r.GetAuthorization().GetState() != "pending" {
					o.t.Fatalf("approved without a permission: %v", r)
				}
				return &waited{approval: v, signIn: r.Authorization.Id}
			},
			holds: func(o *office, w *waited) {
				if v := o.getApproval(w.approval.Id); v.State != "approved" || v.Authorization != w.signIn {
					o.t.Errorf("the approval: %v", v)
				}
				o.allow(w.signIn)
				o.eventually("what was approved is sent", func() bool { return o.getApproval(w.approval.Id).State == "sent" })
				o.eventually("the business replied", func() bool { return o.last(o.talkOf(w.text)).State == "replied" })
				o.once(w.text)
			},
		},
		{
			name: "a sign-in",
			enter: func(o *office, text string) *waited {
				r := result(o.t, o.owner, "StartAuthorization", &agentv1.StartAuthorizationRequest{Business: o.card, Scopes: []string{mayRead}})
				if r.Status != "needs_user_action" {
					o.t.Fatalf("%v", r)
				}
				return &waited{signIn: r.Authorization.Id}
			},
			holds: signedIn,
		},
		{
			name: "a sign-in that its asker waits for",
			enter: func(o *office, text string) *waited {
				op := begin(o.t, o.owner, "StartAuthorization", &agentv1.StartAuthorizationRequest{Business: o.card, Scopes: []string{mayRead}, WaitForSignIn: true})
				u := op.until("the sign-in", func(u *agentv1.OperationUpdate) bool { return u.GetAuthorization() != nil })
				return &waited{under: op, signIn: u.GetAuthorization().Id}
			},
			holds: signedIn,
		},
		{
			name: "a sign-in that others attached to",
			enter: func(o *office, text string) *waited {
				r := result(o.t, o.owner, "StartAuthorization", &agentv1.StartAuthorizationRequest{Business: o.card, Scopes: []string{mayRead}})
				f := *o.serving.owner()
				f.sent = make(chan struct{})
				op := begin(o.t, &f, "WaitAuthorization", &agentv1.WaitAuthorizationRequest{Id: r.GetAuthorization().GetId()})
				<-f.sent
				f.sent = nil
				one[*agentv1.Authorization](o.t, &f, "GetAuthorization", &agentv1.GetAuthorizationRequest{Id: r.Authorization.Id}) // comes behind it
				return &waited{under: op, signIn: r.Authorization.Id, begins: true}
			},
			holds: signedIn,
		},
		{
			name: "the business limits requests", allowed: []string{mayRead},
			enter: func(o *office, text string) *waited {
				talk := o.ask().Conversation
				o.faults("too-many=60")
				req := change(o, text)
				req.Confirmed, req.Conversation = true, talk
				op := begin(o.t, o.owner, "SendMessage", req)
				op.until("its wait", waiting)
				return &waited{under: op, talk: talk}
			},
			holds: func(o *office, w *waited) {
				o.faults()
				m := o.last(w.talk)
				switch {
				case !w.killed && m.State == "cancelled": // CV-11
				case w.killed && m.State == "cancelled", w.killed && m.State == "failed": // nothing ran
				case w.killed && m.State == "outcome_unknown" && m.Reason == "interrupted_during_send": // RS-1
					o.unknown(w, m.Reason)
					return
				default:
					o.t.Errorf("what was under way: %v", m)
				}
				if n := o.executed(w.text); n != 0 {
					o.t.Errorf("the business carried it out %d times", n)
				}
				r := change(o, w.text)
				r.Confirmed, r.Conversation = true, w.talk
				if r := result(o.t, o.owner, "SendMessage", r); r.Status != "replied" {
					o.t.Errorf("and then: %v", r)
				}
				o.once(w.text)
			},
		},
		{
			name: "the business has no reply yet", allowed: []string{mayRead},
			enter: func(o *office, text string) *waited {
				talk := o.ask().Conversation
				o.faults("no-reply")
				req := change(o, text)
				req.Confirmed, req.Conversation = true, talk
				op := begin(o.t, o.owner, "SendMessage", req)
				op.until("its wait", waiting)
				return &waited{under: op, talk: talk}
			},
			holds: func(o *office, w *waited) {
				o.faults()
				o.unknown(w, "interrupted_during_send", "cancelled_by_user")
			},
		},
		{
			name: "the business works", allowed: []string{mayRead},
			enter: func(o *office, text string) *waited {
				talk := o.ask().Conversation
				hold := o.hold(text)
				req := change(o, text)
				req.Confirmed, req.Conversation = true, talk
				op := begin(o.t, o.owner, "SendMessage", req)
				hold.comes(o.t)
				return &waited{under: op, talk: talk, hold: hold}
			},
			holds: func(o *office, w *waited) {
				w.hold.release()
				o.unknown(w, "interrupted_during_send", "aborted")
			},
		},
	}
}

// talkOf is the conversation in which a text was sent.
func (o *office) talkOf(text string) string {
	o.t.Helper()
	for _, c := range one[*agentv1.ListConversationsResponse](o.t, o.owner, "ListConversations", &agentv1.ListConversationsRequest{}).Conversations {
		v := one[*agentv1.Conversation](o.t, o.owner, "GetConversation", &agentv1.GetConversationRequest{Id: c.Id})
		if slices.ContainsFunc(v.Messages, func(m *agentv1.Message) bool { return m.Text == text }) {
			return c.Id
		}
	}
	o.t.Fatalf("%q is in no conversation", text)
	return ""
}

// signedIn checks that a sign-in goes on: nobody waits for it but the agent.
func signedIn(o *office, w *waited) {
	if v := o.getAuthorization(w.signIn); v.State != "pending" {
		o.t.Fatalf("the sign-in: %v", v)
	}
	o.allow(w.signIn)
	o.eventually("the sign-in is granted", func() bool { return o.getAuthorization(w.signIn).State == "granted" })
	if r := result(o.t, o.owner, "WaitAuthorization", &agentv1.WaitAuthorizationRequest{Id: w.signIn}); r.Status != "done" {
		o.t.Errorf("who attaches then: %v", r)
	}
	if r := o.ask(); r.GetEvidence().GetVerdict() != "verified" {
		o.t.Errorf("an inspection by it: %v", r)
	}
}

// DA-17, RS-1, RS-4, CV-11, CV-12, AP-1: whatever a running agent waits for when it is
// stopped or killed goes on after a restart, or ends as what it is; and nothing is
// done twice.
func TestRestartInEveryWait(t *testing.T) {
	t.Parallel()
	for _, c := range waits() {
		for _, way := range []string{"stopped", "killed"} {
			t.Run(strings.ReplaceAll(c.name, " ", "-")+"/"+way, func(t *testing.T) {
				t.Parallel()
				world := newWorld(t)
				if c.allowed != nil {
					world.allows(c.allowed...)
				}
				s := world.serve()
				o := &office{world: world, serving: s, t: t, owner: s.owner()}
				text := o.text("Cancel booking R%d")
				w := c.enter(o, text)
				w.text, w.killed = text, way == "killed"
				if w.killed {
					s.kill()
				} else {
					s.stop()
				}
				if w.under != nil {
					r := w.under.ended()
					if r.GetStatus() == "replied" || r.GetStatus() == "done" {
						t.Fatalf("the operation under way: %v", r)
					}
					if begun := !w.begins || codeOf(w.under.err) != "STOPPING"; begun && !w.killed && r == nil {
						t.Errorf("the operation under way broke off without a result: %v", w.under.err)
					}
				}
				o.serving = world.serve()
				o.owner = o.serving.owner()
				c.holds(o, w)
			})
		}
	}
}
