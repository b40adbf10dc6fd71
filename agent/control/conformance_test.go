package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pactsigner/pactsigner/agent"
)

// TestConformance runs the same cases with an agent in this process and with the
// client of one behind its control plane: what a surface gets and prints is the same.
func TestConformance(t *testing.T) {
	signer := startSigner(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var said [2]string
			for i, where := range []string{"in process", "behind the control plane"} {
				t.Run(where, func(t *testing.T) {
					w := newWorld(t, signer, i == 1)
					c.run(w)
					said[i] = w.said()
				})
			}
			here, there := strings.Split(said[0], "\n"), strings.Split(said[1], "\n")
			if said[0] == "" || said[1] == "" {
				return // only one was asked for
			}
			for i := range max(len(here), len(there)) {
				if i >= len(here) || i >= len(there) || here[i] != there[i] {
					t.Fatalf("the first difference:\n%s\n%s", at(here, i), at(there, i))
				}
			}
		})
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(nothing)"
}

var cases = []struct {
	name string
	run  func(*world)
}{
	{"what a new profile has", newProfile},
	{"settings", settings},
	{"providers", providers},
	{"identity", identity},
	{"discovery", discovery},
	{"nothing of that id", nothingThere},
	{"input that nothing takes", odd},
	{"an inspection", inspection},
	{"messages that are refused", refusedMessages},
	{"approved by who is asked", approved},
	{"declined by who is asked", declined},
	{"who is asked fails", approvalFails},
	{"approved elsewhere", approvedElsewhere},
	{"declined elsewhere", declinedElsewhere},
	{"interrupted while asked", interruptedApproval},
	{"nobody to ask", nobodyToAsk},
	{"decisions that are refused", refusedDecisions},
	{"pre-confirmed", preConfirmed},
	{"a step-up", stepUp},
	{"a sign-in", signIn},
	{"a sign-in that is denied", signInDenied},
	{"a sign-in that nobody can be shown", signInNotShown},
	{"a sign-in that cannot be shown", signInFails},
	{"an interrupted sign-in", signInInterrupted},
	{"a sign-in that is given up", signInGivenUp},
	{"interrupted before it begins", interruptedBefore},
	{"interrupted while sending", interruptedSending},
	{"an unknown outcome", unknownOutcome},
	{"evidence", evidence},
	{"disconnecting", disconnecting},
	{"a watch", watching},
}

func newProfile(w *world) {
	ctx, c := w.Context(), w.caller()
	status, err := w.ag.Status(ctx, c)
	w.say("status", status, err)
	policy, err := w.ag.Policy(ctx, c)
	w.say("policy", policy, err)
	businesses, err := w.ag.Businesses(ctx, c)
	w.say("businesses", businesses, err)
	conversations, err := w.ag.Conversations(ctx, c)
	w.say("conversations", conversations, err)
	authorizations, err := w.ag.Authorizations(ctx, c)
	w.say("authorizations", authorizations, err)
	grants, err := w.ag.Grants(ctx, c)
	w.say("grants", grants, err)
	receipts, err := w.ag.Receipts(ctx, c)
	w.say("receipts", receipts, err)
	for _, all := range []bool{false, true} {
		reviews, err := w.ag.Reviews(ctx, c, all)
		w.say("reviews", reviews, err)
		approvals, err := w.ag.Approvals(ctx, c, all)
		w.say("approvals", approvals, err)
	}
	checks, err := w.ag.Doctor(ctx, c)
	w.say("doctor", checks, err)
	if !status.Ready || businesses == nil || grants == nil || len(checks) == 0 {
		w.Errorf("ready %v, businesses %v, grants %v, %d checks", status.Ready, businesses, grants, len(checks))
	}
}

func settings(w *world) {
	ctx, c := w.Context(), w.caller()
	for _, on := range []bool{false, true} {
		w.say("switch", nil, w.ag.SetEnabled(ctx, c, on))
		v, err := w.ag.Policy(ctx, c)
		w.say("policy", v, err)
		if v.Enabled != on {
			w.Errorf("switched to %v: %+v", on, v)
		}
	}
	for _, p := range []agent.Preference{agent.DisabledPACT, agent.RequirePACT, agent.PreferPACT} {
		w.say("prefer", nil, w.ag.SetPreference(ctx, c, p))
		if v, err := w.ag.Policy(ctx, c); err != nil || v.Preference != p {
			w.Errorf("preference %+v, %v; want %s", v, err, p)
		}
	}
	err := w.ag.SetPreference(ctx, c, "sometimes")
	w.say("prefer", nil, err)
	if agent.ReasonOf(err) != agent.ReasonInvalidInput {
		w.Errorf("an unknown preference: %v", err)
	}
}

func providers(w *world) {
	ctx, c := w.Context(), w.caller()
	const origin = "https://provider.example.com"
	v, err := w.ag.AddProvider(ctx, c, origin, "aud-1", "")
	w.say("add", v, err)
	v, err = w.ag.AddProvider(ctx, c, "https://other.example.com", "aud-1", "Other")
	w.say("the same audience again", v, err)
	if agent.ReasonOf(err) == "" {
		w.Errorf("PR-6: %v", err)
	}
	v, err = w.ag.AddProvider(ctx, c, "http://provider.example.com", "aud-2", "")
	w.say("an origin that is none", v, err)
	v, err = w.ag.AddProvider(ctx, c, origin, "aud-3", "Provider")
	w.say("replace", v, err)
	list, err := w.ag.Providers(ctx, c)
	w.say("list", list, err)
	w.say("remove", nil, w.ag.RemoveProvider(ctx, c, origin))
	err = w.ag.RemoveProvider(ctx, c, origin)
	w.say("remove again", nil, err)
	if !errors.Is(err, agent.ErrNotFound) {
		w.Errorf("removed twice: %v", err)
	}
}

func identity(w *world) {
	ctx, c := w.Context(), w.caller()
	v, err := w.ag.Enroll(ctx, c, agent.EnrollRequest{SignerURL: w.signer.url, Deployment: agent.Deployment("self_hosted")})
	w.say("again", v, err)
	v, err = w.ag.Enroll(ctx, c, agent.EnrollRequest{SignerURL: w.signer.url, Issuer: "https://other.example.com"})
	w.say("another issuer", v, err)
	if agent.ReasonOf(err) == "" {
		w.Errorf("SG-11: %v", err)
	}
	v, err = w.ag.Enroll(ctx, c, agent.EnrollRequest{SignerURL: w.signer.url, Credential: "pact_cred_that_is_none"})
	w.say("a credential that is none", v, err)
	if agent.ReasonOf(err) == "" || strings.Contains(err.Error(), "pact_cred") {
		w.Errorf("a wrong credential: %v", err)
	}
	v, err = w.ag.Enroll(ctx, c, agent.EnrollRequest{SignerURL: "ftp://signer.example.com"})
	w.say("no URL of a signer", v, err)
	status, err := w.ag.Status(ctx, c)
	w.say("status", status, err)
}

func discovery(w *world) {
	ctx, c := w.Context(), w.caller()
	for _, card := range []string{w.air(), w.shop()} {
		v, err := w.ag.Discover(ctx, c, agent.ParseBusiness(card))
		w.say("discover", v, err)
		if err != nil || !v.Supported {
			w.Fatalf("%+v, %v", v, err)
		}
		v, err = w.ag.Discover(ctx, c, agent.DiscoverRequest{Domain: v.ID})
		w.say("by its id", v, err)
	}
	for _, req := range []agent.DiscoverRequest{
		{},
		{Domain: "shop.example", CardURL: w.air()},
		{Domain: "not a domain"},
		{CardURL: "http://shop.example/card"},
		{CardURL: "http://127.0.0.1:1/card"},
	} {
		v, err := w.ag.Discover(ctx, c, req)
		w.say("refused", v, err)
		if agent.ReasonOf(err) == "" {
			w.Errorf("%+v: %+v, %v", req, v, err)
		}
	}
	w.faults("card-no-interface")
	v, err := w.ag.Discover(ctx, c, agent.DiscoverRequest{CardURL: w.air(), Refresh: true})
	w.say("unsupported", v, err)
	w.faults("card-status=503")
	v, err = w.ag.Discover(ctx, c, agent.DiscoverRequest{CardURL: w.shop(), Refresh: true})
	w.say("not to be had", v, err)
	w.faults()
	list, err := w.ag.Businesses(ctx, c)
	w.say("list", list, err)
}

func nothingThere(w *world) {
	ctx, c := w.Context(), w.person()
	for _, id := range []string{"x-nothing0", ""} {
		for _, call := range []struct {
			name string
			do   func() (any, error)
		}{
			{"conversation", func() (any, error) { return w.ag.Conversation(ctx, c, id) }},
			{"transcript", func() (any, error) { return w.ag.Transcript(ctx, c, id) }},
			{"authorization", func() (any, error) { return w.ag.Authorization(ctx, c, id) }},
			{"cancel", func() (any, error) { return w.ag.CancelAuthorization(ctx, c, id) }},
			{"wait", func() (any, error) { return w.ag.WaitAuthorization(ctx, c, id) }},
			{"disconnect", func() (any, error) { return w.ag.Disconnect(ctx, c, id) }},
			{"receipt", func() (any, error) { return w.ag.Receipt(ctx, c, id) }},
			{"verify", func() (any, error) { return w.ag.VerifyStoredReceipt(ctx, c, id) }},
			{"review", func() (any, error) { return w.ag.Review(ctx, c, id) }},
			{"acknowledge", func() (any, error) { return w.ag.Acknowledge(ctx, c, id) }},
			{"approval", func() (any, error) { return w.ag.Approval(ctx, c, id) }},
			{"decide", func() (any, error) { return w.ag.Decide(ctx, c, agent.Decision{ID: id}) }},
			{"remove provider", func() (any, error) { return nil, w.ag.RemoveProvider(ctx, c, "https://nobody.example.com") }},
		} {
			v, err := call.do()
			if id != "" { // CP-3 says it in other words
				w.say(call.name, v, err)
			}
			if !errors.Is(err, agent.ErrNotFound) {
				w.Errorf("%s %q: %v, %v", call.name, id, v, err)
			}
		}
	}
	r, err := w.ag.Reconcile(ctx, c, agent.ReconcileRequest{})
	w.ended("reconcile", r, err, agent.StatusFailed, agent.ReasonNothingToReconcile)
	r, err = w.ag.Send(ctx, c, agent.SendRequest{Business: w.shop(), Message: "Hello?", Effect: "inspect", Conversation: "c-nothing0"})
	w.say("send in no conversation", r, err)
}

// watched collects the kinds of events, each once in a row: how often is asked again
// is a matter of time, and so is who asks.
func watched(c *agent.Caller) *[]agent.EventKind {
	var kinds []agent.EventKind
	c.Progress = func(e agent.Event) {
		if e.Kind != agent.EventPolling && e.Kind != agent.EventElsewhere && (len(kinds) == 0 || kinds[len(kinds)-1] != e.Kind) {
			kinds = append(kinds, e.Kind)
		}
	}
	return &kinds
}

func inspection(w *world) {
	ctx, c := w.Context(), w.caller()
	kinds := watched(&c)
	req := agent.SendRequest{Business: w.shop(), Message: "Do you have anything by Woolf?", Effect: "inspect"}
	r, err := w.ag.Send(ctx, c, req)
	w.ended("send", r, err, agent.StatusReplied, "")
	req.Business, req.Conversation, req.Message = r.Business, r.Conversation, "And by Baldwin?"
	r, err = w.ag.Send(ctx, c, req)
	w.ended("send again", r, err, agent.StatusReplied, "")
	w.say("progress", *kinds, nil)
	if !slices.Contains(*kinds, agent.EventSending) {
		w.Errorf("events %v", *kinds)
	}
	list, err := w.ag.Conversations(ctx, c)
	w.say("list", list, err)
	v, err := w.ag.Conversation(ctx, c, r.Conversation)
	w.say("show", v, err)
	text, err := w.ag.Transcript(ctx, c, r.Conversation)
	w.say("transcript", text, err)
	if len(list) != 1 || len(v.Messages) == 0 || len(text.Turns) != 2 {
		w.Errorf("%d conversations, %d messages, %d turns", len(list), len(v.Messages), len(text.Turns))
	}
	status, err := w.ag.Status(ctx, c)
	w.say("status", status, err)
}

func refusedMessages(w *world) {
	ctx, c := w.Context(), w.caller()
	for _, req := range []agent.SendRequest{
		{Business: w.shop(), Message: "My card is 4111 1111 1111 1111", Effect: "inspect"},
		{Business: w.shop(), Message: "Cancel it", Effect: "nonsense"},
		{Business: w.shop(), Message: "Hello?", Effect: "inspect", Scopes: []string{"no:such"}},
		{Business: "not a domain", Message: "Hello?", Effect: "inspect"},
		{Message: "Hello?", Effect: "inspect"},
	} {
		r, err := w.ag.Send(ctx, c, req)
		w.say("send", r, err)
		if err != nil || r.Status == agent.StatusReplied || r.Reason == "" {
			w.Errorf("%+v: %+v, %v", req, r, err)
		}
	}
	r, err := w.ag.Send(ctx, c, agent.SendRequest{Business: w.shop(), Message: strings.Repeat("a", 4001), Effect: "inspect"})
	if err != nil || r.Status != agent.StatusFailed || r.Reason != agent.ReasonMessageTooLong { // CP-3 says it in other words
		w.Errorf("a long message: %+v, %v", r, err)
	}
	r, err = w.ag.Send(ctx, c, agent.SendRequest{Business: w.shop(), Message: " ", Effect: "inspect"})
	if err != nil || r.Status != agent.StatusFailed || r.Reason != agent.ReasonBlankMessage || r.Detail != "message: it is blank" { // and this before the business
		w.Errorf("a blank message: %+v, %v", r, err)
	}
	w.faults("status=503")
	r, err = w.ag.Send(ctx, c, agent.SendRequest{Business: w.shop(), Message: "Hello?", Effect: "inspect"})
	w.say("a business that is down", r, err)
	w.faults("identity-401")
	r, err = w.ag.Send(ctx, c, agent.SendRequest{Business: w.shop(), Message: "Hello?", Effect: "inspect"})
	w.ended("a business that refuses us", r, err, agent.StatusBlocked, agent.ReasonIdentityRejected)
	w.faults()
	if err := w.ag.SetPreference(ctx, c, agent.DisabledPACT); err != nil {
		w.Fatal(err)
	}
	r, err = w.ag.Send(ctx, c, agent.SendRequest{Business: w.shop(), Message: "Hello?", Effect: "inspect"})
	w.say("disabled", r, err)
	if r.Status != agent.StatusBlocked {
		w.Errorf("disabled: %+v", r)
	}
}

// change is what the bookshop answers, and what takes the owner's word.
func (w *world) change() agent.SendRequest {
	return agent.SendRequest{Business: w.shop(), Message: "Cancel my order of Orlando", Effect: "change"}
}

// approvals writes down all approvals and returns them.
func (w *world) approvals() []agent.ApprovalView {
	w.Helper()
	list, err := w.ag.Approvals(w.Context(), w.caller(), true)
	w.say("approvals", list, err)
	if err != nil {
		w.Fatal(err)
	}
	return list
}

// state asserts the state of the only approval.
func (w *world) state(want string) agent.ApprovalView {
	w.Helper()
	list := w.approvals()
	if len(list) != 1 || list[0].State != want {
		w.Fatalf("approvals %+v; want one that is %s", list, want)
	}
	v, err := w.ag.Approval(w.Context(), w.caller(), list[0].ID)
	w.say("approval", v, err)
	return v
}

func approved(w *world) {
	ctx, c := w.Context(), w.person()
	kinds := watched(&c)
	var asked []agent.ApprovalRequest
	c.Approve = func(_ context.Context, req agent.ApprovalRequest) (bool, error) {
		asked = append(asked, req)
		return true, nil
	}
	r, err := w.ag.Send(ctx, c, w.change())
	w.ended("send", r, err, agent.StatusReplied, "")
	w.say("asked", asked, nil)
	w.say("progress", *kinds, nil)
	v := w.state(agent.ApprovalSent)
	if len(asked) != 1 || asked[0].ID != v.ID || asked[0].Message != w.change().Message || asked[0].Digest == "" {
		w.Errorf("AP-2: asked %+v", asked)
	}
	conversation, err := w.ag.Conversation(ctx, c, r.Conversation)
	w.say("conversation", conversation, err)
}

func declined(w *world) {
	ctx, c := w.Context(), w.person()
	c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { return false, nil }
	r, err := w.ag.Send(ctx, c, w.change())
	w.ended("send", r, err, agent.StatusDenied, agent.ReasonApprovalDenied)
	w.state(agent.ApprovalDenied)
	if got := w.box.Executed(); len(got) != 0 {
		w.Errorf("it was carried out: %+v", got)
	}
}

var errTerminal = errors.New("the terminal is gone")

func approvalFails(w *world) {
	ctx, c := w.Context(), w.person()
	c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { return false, errTerminal }
	_, err := w.ag.Send(ctx, c, w.change())
	if !errors.Is(err, errTerminal) {
		w.Errorf("send: %v", err)
	}
	w.say("send", nil, err)
	if got := w.box.Executed(); len(got) != 0 {
		w.Errorf("it was carried out: %+v", got)
	}
}

// elsewhere decides on another surface while the caller asks.
func (w *world) elsewhere(approve bool) (agent.Result, error) {
	c := w.person()
	c.Approve = func(ctx context.Context, req agent.ApprovalRequest) (bool, error) {
		other := w.caller()
		other.Actor = "another surface"
		r, err := w.local.Decide(ctx, other, agent.Decision{ID: req.ID, Approve: approve, Digest: req.Digest})
		if err != nil || r.Status != agent.StatusDone {
			w.Errorf("decide elsewhere: %+v, %v", r, err)
		}
		<-ctx.Done()
		return false, ctx.Err()
	}
	return w.ag.Send(w.Context(), c, w.change())
}

func approvedElsewhere(w *world) {
	r, err := w.elsewhere(true)
	w.ended("send", r, err, agent.StatusReplied, "")
	if v := w.state(agent.ApprovalSent); v.DecidedBy != "another surface" {
		w.Errorf("decided by %q", v.DecidedBy)
	}
}

func declinedElsewhere(w *world) {
	r, err := w.elsewhere(false)
	w.ended("send", r, err, agent.StatusDenied, agent.ReasonApprovalDenied)
	w.state(agent.ApprovalDenied)
}

func interruptedApproval(w *world) {
	ctx, interrupt := context.WithCancel(w.Context())
	c := w.person()
	c.Approve = func(ctx context.Context, _ agent.ApprovalRequest) (bool, error) {
		interrupt()
		<-ctx.Done()
		return false, ctx.Err()
	}
	r, err := w.ag.Send(ctx, c, w.change())
	w.ended("send", r, err, agent.StatusCancelled, agent.ReasonUserCancelled)
	w.state(agent.ApprovalWithdrawn)
}

func nobodyToAsk(w *world) {
	ctx, c := w.Context(), w.caller()
	r, err := w.ag.Send(ctx, c, w.change())
	w.ended("send", r, err, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
	v := w.state(agent.ApprovalPending)
	if r.Approval == nil || r.Approval.ID != v.ID {
		w.Fatalf("approval %+v; want %s", r.Approval, v.ID)
	}
	status, err := w.ag.Status(ctx, c)
	w.say("status", status, err)
	r, err = w.ag.Decide(ctx, c, agent.Decision{ID: v.ID, Approve: true, Digest: v.Digest})
	w.ended("decide", r, err, agent.StatusReplied, "")
	w.state(agent.ApprovalSent)
	if got := w.box.Executed(); len(got) != 2 || got[1].Text != w.change().Message { // after the introduction
		w.Errorf("carried out: %+v", got)
	}
}

func refusedDecisions(w *world) {
	ctx, c := w.Context(), w.caller()
	r, err := w.ag.Send(ctx, c, w.change())
	w.ended("send", r, err, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
	v := w.state(agent.ApprovalPending)
	for _, digest := range []string{"", strings.Repeat("0", 64)} {
		r, err = w.ag.Decide(ctx, c, agent.Decision{ID: v.ID, Approve: true, Digest: digest})
		if digest != "" { // CP-3 says it in other words
			w.say("another digest", r, err)
		}
		if r.Status == agent.StatusDone || r.Status == agent.StatusReplied {
			w.Errorf("approved with digest %q: %+v", digest, r)
		}
	}
	w.state(agent.ApprovalPending)
	r, err = w.ag.Decide(ctx, c, agent.Decision{ID: v.ID})
	w.say("deny", r, err)
	w.state(agent.ApprovalDenied)
	r, err = w.ag.Decide(ctx, c, agent.Decision{ID: v.ID, Approve: true, Digest: v.Digest})
	w.say("approve what was denied", r, err)
	w.state(agent.ApprovalDenied)
	if got := w.box.Executed(); len(got) != 0 {
		w.Errorf("it was carried out: %+v", got)
	}
}

func preConfirmed(w *world) {
	ctx, c := w.Context(), w.caller()
	var shown []agent.ApprovalRequest
	c.Confirmed = true
	c.Shown = func(req agent.ApprovalRequest) { shown = append(shown, req) }
	r, err := w.ag.Send(ctx, c, w.change())
	w.ended("send", r, err, agent.StatusReplied, "")
	w.say("shown", shown, nil)
	if len(shown) != 1 || shown[0].Message != w.change().Message {
		w.Errorf("AP-5: shown %+v", shown)
	}
	w.approvals()
}

func stepUp(w *world) {
	ctx, c := w.Context(), w.person()
	kinds := watched(&c)
	var asked []agent.ApprovalRequest
	c.Approve = func(_ context.Context, req agent.ApprovalRequest) (bool, error) {
		asked = append(asked, req)
		return true, nil
	}
	var shown []string
	signIn := c.SignIn
	c.SignIn = func(ctx context.Context, s agent.SignIn) error {
		shown = append(shown, fmt.Sprintf("%s %s %v", s.Business, s.LinkOrigin, s.Scopes))
		return signIn(ctx, s)
	}
	r, err := w.ag.Send(ctx, c, agent.SendRequest{Business: w.air(), Message: "Rebook me onto LK 318", Effect: "change"})
	w.ended("send", r, err, agent.StatusReplied, "")
	w.say("asked", asked, nil)
	w.say("signed in", shown, nil)
	w.say("progress", *kinds, nil)
	if len(asked) < 2 || !asked[len(asked)-1].Changed || len(shown) == 0 || !slices.Contains(*kinds, agent.EventStepUp) {
		w.Errorf("AP-3: asked %+v, signed in %v, %v", asked, shown, *kinds)
	}
	if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
		w.Errorf("evidence %+v", r.Evidence)
	}
	w.approvals()
}

func (w *world) authorize() agent.AuthorizeRequest {
	return agent.AuthorizeRequest{Business: w.air(), Scopes: []string{upcoming}, Purpose: "my Friday flight"}
}

func signIn(w *world) {
	ctx, c := w.Context(), w.person()
	kinds := watched(&c)
	shown := 0
	signIn := c.SignIn
	c.SignIn = func(ctx context.Context, s agent.SignIn) error {
		shown++
		v, err := w.ag.Authorization(ctx, w.caller(), s.Authorization)
		w.say("while pending", v, err)
		w.say("shown", s, nil)
		return signIn(ctx, s)
	}
	r, err := w.ag.Authorize(ctx, c, w.authorize())
	w.ended("authorize", r, err, agent.StatusDone, "")
	w.say("progress", *kinds, nil)
	if shown != 1 || r.Grant == nil || r.Authorization == nil {
		w.Fatalf("shown %d times: %+v", shown, r)
	}
	r, err = w.ag.Authorize(ctx, c, w.authorize()) // which is there already
	w.ended("again", r, err, agent.StatusDone, "")
	list, err := w.ag.Authorizations(ctx, c)
	w.say("list", list, err)
	grants, err := w.ag.Grants(ctx, c)
	w.say("grants", grants, err)
	if len(list) != 1 || len(grants) != 1 {
		w.Fatalf("%d sign-ins, %d grants", len(list), len(grants))
	}
	r, err = w.ag.WaitAuthorization(ctx, c, list[0].ID)
	w.ended("wait for what is granted", r, err, agent.StatusDone, "")
	v, err := w.ag.CancelAuthorization(ctx, c, list[0].ID)
	w.say("cancel what is granted", v, err)
	if shown != 1 {
		w.Errorf("shown %d times", shown)
	}
}

func signInDenied(w *world) {
	c := w.person()
	c.SignIn = func(ctx context.Context, s agent.SignIn) error {
		_, err := w.user().Deny(ctx, s.Link.Reveal())
		return err
	}
	r, err := w.ag.Authorize(w.Context(), c, w.authorize())
	w.ended("authorize", r, err, agent.StatusDenied, agent.ReasonAccessDenied)
}

func signInNotShown(w *world) {
	ctx, c := w.Context(), w.caller()
	r, err := w.ag.Authorize(ctx, c, w.authorize())
	w.ended("authorize", r, err, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
	if r.Authorization == nil {
		w.Fatal("no sign-in")
	}
	r, err = w.ag.WaitAuthorization(ctx, w.person(), r.Authorization.ID)
	w.ended("wait", r, err, agent.StatusDone, "")
	for _, req := range []agent.AuthorizeRequest{
		{Business: w.air()},
		{Business: w.air(), Scopes: []string{"no:such"}},
		{Business: w.shop(), Scopes: []string{"no:such"}},
	} {
		r, err = w.ag.Authorize(ctx, c, req)
		if len(req.Scopes) > 0 { // CP-3 asks for one before the business
			w.say("refused", r, err)
		}
		if err != nil || r.Status == agent.StatusDone || r.Reason == "" {
			w.Errorf("%+v: %+v, %v", req, r, err)
		}
	}
}

func signInFails(w *world) {
	ctx, c := w.Context(), w.person()
	c.SignIn = func(context.Context, agent.SignIn) error { return errTerminal }
	_, err := w.ag.Authorize(ctx, c, w.authorize())
	if !errors.Is(err, errTerminal) {
		w.Errorf("authorize: %v", err)
	}
	list, err := w.ag.Authorizations(ctx, c)
	w.say("list", list, err)
}

func signInInterrupted(w *world) {
	ctx, interrupt := context.WithCancel(w.Context())
	c := w.person()
	c.SignIn = func(context.Context, agent.SignIn) error {
		interrupt()
		return nil
	}
	r, err := w.ag.Authorize(ctx, c, w.authorize())
	w.ended("authorize", r, err, agent.StatusNeedsUserAction, agent.ReasonSignInPending) // DA-17
	if r.Authorization == nil {
		w.Fatal("no sign-in")
	}
	id := r.Authorization.ID
	ctx, interrupt = context.WithCancel(w.Context()) // by c.SignIn
	defer interrupt()
	r, err = w.ag.WaitAuthorization(ctx, c, id)
	w.ended("wait", r, err, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
	v, err := w.ag.Authorization(w.Context(), c, id)
	w.say("still there", v, err)
	r, err = w.ag.WaitAuthorization(w.Context(), w.person(), id)
	w.ended("wait again", r, err, agent.StatusDone, "")
}

func signInGivenUp(w *world) {
	ctx, abort := context.WithCancelCause(w.Context())
	c := w.person()
	c.SignIn = func(context.Context, agent.SignIn) error {
		abort(agent.ErrAborted)
		return nil
	}
	r, err := w.ag.Authorize(ctx, c, w.authorize())
	w.ended("authorize", r, err, agent.StatusCancelled, agent.ReasonUserCancelled) // DA-8
	r, err = w.ag.Authorize(w.Context(), w.caller(), w.authorize())
	w.ended("authorize", r, err, agent.StatusNeedsUserAction, agent.ReasonSignInPending)
	v, err := w.ag.CancelAuthorization(w.Context(), w.caller(), r.Authorization.ID)
	w.say("cancel", v, err)
	r, err = w.ag.WaitAuthorization(w.Context(), w.person(), v.ID)
	w.ended("wait", r, err, agent.StatusCancelled, agent.ReasonUserCancelled)
}

// odd is input that is no text, or too long: it is refused for the same reason, and what
// would name a record names none.
func odd(w *world) {
	ctx, c := w.Context(), w.caller()
	bad, long := "gr\xfc\xdfe", strings.Repeat("x", 201)
	because := func(what string, r agent.Result, err error, want agent.Reason) {
		w.Helper()
		if err != nil || r.Reason != want || r.Status != agent.StatusFailed {
			w.Errorf("%s: %s %s %q, %v; want %s", what, r.Status, r.Reason, r.Detail, err, want)
		}
		if !utf8.ValidString(r.Detail) {
			w.Errorf("%s: %q", what, r.Detail)
		}
		fmt.Fprintf(&w.transcript, "%s: %s %s\n", what, r.Status, r.Reason)
	}
	sends := func(what string, req agent.SendRequest, want agent.Reason) {
		w.Helper()
		r, err := w.ag.Send(ctx, c, req)
		because(what, r, err, want)
	}
	look := agent.SendRequest{Business: w.air(), Message: "Show my trips", Effect: "inspect"}
	with := func(change func(*agent.SendRequest)) agent.SendRequest {
		r := look
		change(&r)
		return r
	}
	sends("message", with(func(r *agent.SendRequest) { r.Message = bad }), agent.ReasonInvalidInput)
	sends("long message", with(func(r *agent.SendRequest) { r.Message = strings.Repeat("x", 4001) }), agent.ReasonMessageTooLong)
	sends("many permissions", with(func(r *agent.SendRequest) {
		for i := range 21 {
			r.Scopes = append(r.Scopes, fmt.Sprintf("flights:%d", i))
		}
	}), agent.ReasonTooManyScopes)
	sends("permission", with(func(r *agent.SendRequest) { r.Scopes = []string{bad} }), agent.ReasonUnknownScope)
	sends("long permission", with(func(r *agent.SendRequest) { r.Scopes = []string{long} }), agent.ReasonUnknownScope)
	sends("conversation", with(func(r *agent.SendRequest) { r.Conversation = "c-" + bad }), agent.ReasonNotFound)
	sends("long conversation", with(func(r *agent.SendRequest) { r.Conversation = "c-" + long }), agent.ReasonNotFound)
	for _, id := range []string{"c-" + bad, "c-" + long} {
		r, err := w.ag.Reconcile(ctx, c, agent.ReconcileRequest{Conversation: id})
		because("reconcile", r, err, agent.ReasonNotFound)
	}
	r, err := w.ag.Authorize(ctx, c, agent.AuthorizeRequest{Business: w.air(), Scopes: []string{upcoming}, Purpose: bad})
	because("purpose", r, err, agent.ReasonInvalidInput)
	for what, p := range map[string][2]string{"audience": {bad, ""}, "label": {"https://x.example", bad}} {
		if _, err := w.ag.AddProvider(ctx, c, "https://x.example", p[0], p[1]); err == nil || err.Error() != "invalid_input: "+what+": it is not valid UTF-8" {
			w.Errorf("%s: %v", what, err)
		}
	}
	for _, id := range []string{bad, long, "r-" + bad, "signin-" + long} {
		for what, err := range map[string]error{
			"receipt": second(w.ag.Receipt(ctx, c, id)), "approval": second(w.ag.Approval(ctx, c, id)), "sign-in": second(w.ag.Authorization(ctx, c, id)),
			"wait": second(w.ag.WaitAuthorization(ctx, c, id)), "conversation": second(w.ag.Conversation(ctx, c, id)),
			"transcript": second(w.ag.Transcript(ctx, c, id)), "grant": second(w.ag.Disconnect(ctx, c, id)),
			"decision": second(w.ag.Decide(ctx, c, agent.Decision{ID: id})), "review": second(w.ag.Review(ctx, c, id)),
		} {
			if !errors.Is(err, agent.ErrNotFound) {
				w.Errorf("%s %q: %v", what, id, err)
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }

func interruptedBefore(w *world) {
	ctx, interrupt := context.WithCancel(w.Context())
	interrupt()
	c := w.person()
	r, err := w.ag.Send(ctx, c, w.change())
	w.ended("send", r, err, agent.StatusCancelled, agent.ReasonUserCancelled)
	r, err = w.ag.Authorize(ctx, c, w.authorize())
	w.ended("authorize", r, err, agent.StatusCancelled, agent.ReasonUserCancelled)
	r, err = w.ag.Reconcile(ctx, c, agent.ReconcileRequest{Business: w.shop()})
	w.ended("reconcile", r, err, agent.StatusCancelled, agent.ReasonUserCancelled)
	if list, err := w.ag.Grants(ctx, c); !errors.Is(err, context.Canceled) {
		w.Errorf("grants: %v, %v", list, err)
	}
}

func interruptedSending(w *world) {
	ctx, interrupt := context.WithCancel(w.Context())
	defer interrupt()
	c := w.person()
	release := w.holdShop()
	go func() {
		<-w.arrived
		interrupt()
	}()
	r, err := w.ag.Send(ctx, c, w.change())
	if r.Detail == "" || r.Message == "" {
		w.Errorf("send: %+v", r)
	}
	r.Detail = "" // a running agent waits for its end (TestSendGoesOn)
	w.ended("send", r, err, agent.StatusUnknown, "aborted")
	release()
}

func unknownOutcome(w *world) {
	ctx, c := w.Context(), w.person()
	r, err := w.ag.Send(ctx, c, agent.SendRequest{Business: w.shop(), Message: "Do you have anything by Woolf?", Effect: "inspect"})
	w.ended("begin", r, err, agent.StatusReplied, "")
	w.faults("drop-after")
	change := w.change()
	change.Conversation = r.Conversation
	r, err = w.ag.Send(ctx, c, change)
	w.say("send", r, err)
	if r.Status != agent.StatusUnknown {
		w.Fatalf("send: %+v, %v", r, err)
	}
	lost := r
	r, err = w.ag.Send(ctx, c, w.change())
	w.ended("another", r, err, agent.StatusBlocked, agent.ReasonUnresolved)
	reviews, err := w.ag.Reviews(ctx, c, false)
	w.say("reviews", reviews, err)
	if len(reviews) != 1 {
		w.Fatalf("reviews %+v", reviews)
	}
	review, err := w.ag.Review(ctx, c, reviews[0].ID)
	w.say("review", review, err)
	review, err = w.ag.Acknowledge(ctx, c, reviews[0].ID)
	w.say("acknowledge", review, err)
	if agent.ReasonOf(err) != agent.ReasonReconcileFirst {
		w.Errorf("acknowledge: %v", err)
	}
	r, err = w.ag.Reconcile(ctx, w.caller(), agent.ReconcileRequest{Conversation: lost.Conversation})
	w.say("reconcile without asking", r, err)
	if r.Status != agent.StatusApprovalRequired {
		w.Errorf("AP-1: %+v", r)
	}
	w.faults()
	var asked []agent.ApprovalRequest
	c.Approve = func(_ context.Context, req agent.ApprovalRequest) (bool, error) {
		asked = append(asked, req)
		return true, nil
	}
	r, err = w.ag.Reconcile(ctx, c, agent.ReconcileRequest{Conversation: lost.Conversation})
	w.ended("reconcile", r, err, agent.StatusReplied, "")
	w.say("asked", asked, nil)
	if len(asked) != 1 || asked[0].SentBefore.IsZero() {
		w.Errorf("CV-14: asked %+v", asked)
	}
	reviews, err = w.ag.Reviews(ctx, c, true)
	w.say("all reviews", reviews, err)
}

func evidence(w *world) {
	ctx, c := w.Context(), w.person()
	req := agent.SendRequest{Business: w.air(), Message: "Show my upcoming flights", Effect: "inspect", Scopes: []string{upcoming}}
	r, err := w.ag.Send(ctx, c, req)
	w.ended("send", r, err, agent.StatusReplied, "")
	w.faults("receipt-none")
	r, err = w.ag.Send(ctx, c, req)
	w.ended("no receipt", r, err, agent.StatusReplied, "")
	w.faults("receipt-bit")
	r, err = w.ag.Send(ctx, c, req)
	w.ended("a receipt that is none", r, err, agent.StatusReplied, "")
	w.faults()
	r, err = w.ag.Send(ctx, c, agent.SendRequest{Business: w.air(), Message: "Rebook me onto LK 318", Effect: "change", Scopes: []string{rebook}})
	w.ended("held back", r, err, agent.StatusBlocked, agent.ReasonEvidenceReview) // EV-5
	list, err := w.ag.Receipts(ctx, c)
	w.say("receipts", list, err)
	for _, v := range list {
		one, err := w.ag.Receipt(ctx, c, v.ID)
		w.say("receipt", one, err)
		one, err = w.ag.VerifyStoredReceipt(ctx, c, v.ID)
		w.say("verify", one, err)
	}
	reviews, err := w.ag.Reviews(ctx, c, false)
	w.say("reviews", reviews, err)
	if len(list) != 3 || len(reviews) != 2 {
		w.Fatalf("%d receipts, %d reviews", len(list), len(reviews))
	}
	for _, v := range reviews {
		one, err := w.ag.Acknowledge(ctx, c, v.ID)
		w.say("acknowledge", one, err)
		if err != nil || one.Open || one.By == "" {
			w.Errorf("EV-7: %+v, %v", one, err)
		}
	}
	reviews, err = w.ag.Reviews(ctx, c, true)
	w.say("all reviews", reviews, err)
}

func disconnecting(w *world) {
	ctx, c := w.Context(), w.person()
	r, err := w.ag.Authorize(ctx, c, w.authorize())
	w.ended("authorize", r, err, agent.StatusDone, "")
	v, err := w.ag.Disconnect(ctx, c, r.Grant.ID)
	w.say("disconnect", v, err)
	v, err = w.ag.Disconnect(ctx, c, r.Grant.ID)
	w.say("again", v, err)
	grants, err := w.ag.Grants(ctx, c)
	w.say("grants", grants, err)
	if len(grants) != 1 || grants[0].EndedBy == "" {
		w.Errorf("grants %+v", grants)
	}
}

var errEnough = errors.New("enough")

func watching(w *world) {
	ctx, c := w.Context(), w.caller()
	var kinds []agent.Kind
	err := w.ag.Watch(ctx, c, func(e agent.Change) error {
		kinds = append(kinds, e.Kind)
		switch {
		case len(kinds) == 1:
			return w.ag.SetPreference(ctx, c, agent.RequirePACT)
		case e.Kind == agent.KindSettings:
			return errEnough
		}
		return nil
	})
	w.say("watched", kinds, nil)
	if !errors.Is(err, errEnough) || kinds[0] != agent.KindWatching {
		w.Errorf("watched %v: %v", kinds, err)
	}
}
