package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// CV-3: of two clients at once in one conversation one sends and the other is told
// that it is busy; elsewhere they do not hinder each other. What a client that leaves
// had on its way is seen through, and no other's is ended.
func TestTwoClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allows(mayRead)
	s := w.serve()
	o := &office{world: w, serving: s, t: t, owner: s.owner()}
	other := s.restOwner()

	talk := o.ask().Conversation
	text := o.text("Show trip %d")
	hold := w.hold(text)
	req := &agentv1.SendMessageRequest{Business: w.card, Message: text, Effect: "inspect", Scopes: []string{mayRead}, Conversation: talk}
	first := begin(t, o.owner, "SendMessage", req)
	hold.comes(t)
	req = proto.CloneOf(req)
	req.Message = o.text("Show trip %d")
	busy, err := other.call(t.Context(), "SendMessage", req, nil)
	if reasonOf(err) != "conversation_busy" && (err != nil || lastReason(busy) != "conversation_busy") {
		t.Errorf("the other one in the conversation: %v, %v", busy, err)
	}
	req.Conversation, req.Scopes = "", nil // turns by one permission wait for each other at the business
	if r := result(t, other, "SendMessage", req); r.Status != "replied" {
		t.Errorf("the other one elsewhere: %v", r)
	}

	leaves := o.text("Show trip %d")
	away := w.hold(leaves)
	second := begin(t, other, "SendMessage", &agentv1.SendMessageRequest{Business: w.card, Message: leaves, Effect: "inspect"})
	away.comes(t)
	second.end()
	second.ended()
	away.release()
	o.eventually("what was left is replied to", func() bool { return o.last(o.talkOf(leaves)).State == "replied" })
	hold.release()
	if r := first.result(); r.Status != "replied" || r.Conversation != talk {
		t.Errorf("the first one: %v", r)
	}
	w.once(text)
}

func lastReason(all []proto.Message) string {
	if len(all) == 0 {
		return ""
	}
	u, _ := all[len(all)-1].(*agentv1.OperationUpdate)
	return u.GetResult().GetReason()
}

// Events tell two watchers, each over a face of its own, what changes and who did it,
// and nothing that is secret.
func TestEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.serve()
	o := &office{world: w, serving: s, t: t, owner: s.owner()}
	type watcher struct {
		name   string
		events chan *agentv1.ChangeEvent
		err    error // once events is closed
	}
	var watchers []*watcher
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, f := range map[string]face{"gRPC": o.owner, "REST": s.restOwner()} {
		v := &watcher{name: name, events: make(chan *agentv1.ChangeEvent, 1000)}
		watchers = append(watchers, v)
		go func() {
			defer close(v.events)
			_, v.err = f.call(ctx, "WatchEvents", &agentv1.WatchEventsRequest{}, func(m proto.Message) bool {
				v.events <- m.(*agentv1.ChangeEvent)
				return true
			})
		}()
		if e := <-v.events; e.GetKind() != "watching" {
			t.Fatalf("%s: the first event: %v", name, e)
		}
	}
	text := o.text("Cancel booking E%d")
	r := result(t, o.owner, "SendMessage", change(o, text))
	r = o.approve(r.Approval)
	link := one[*agentv1.SignIn](t, o.owner, "GetSignIn", &agentv1.GetSignInRequest{Id: r.GetAuthorization().GetId()})
	if err := w.signIn(link.Link); err != nil {
		t.Fatal(err)
	}
	for _, v := range watchers {
		seen := map[string]bool{}
		for !(seen["approvals sent"] && seen["authorizations granted"] && seen["grants active"] && seen["messages replied"] && seen["receipts "]) {
			e, ok := <-v.events
			if !ok {
				t.Fatalf("%s: the events ended; seen %v", v.name, seen)
			}
			state := e.State
			if e.Kind == "receipts" {
				state = ""
			}
			seen[e.Kind+" "+state] = true
			if e.Actor == "" {
				t.Errorf("%s: nobody did %v", v.name, e)
			}
			all := protojson.Format(e)
			for _, secret := range []string{link.Link, link.UserCode, text} {
				if strings.Contains(all, secret) {
					t.Errorf("%s: an event tells what is no event's: %s", v.name, all)
				}
			}
		}
	}
	w.once(text)
	s.stop() // whoever watches holds nothing up
	for _, v := range watchers {
		for range v.events {
		}
		if codeOf(v.err) != "STOPPING" {
			t.Errorf("%s: the events ended with %v", v.name, v.err)
		}
	}
}

// One agent serves a profile: a second one is refused and names the first. One that was
// killed leaves nothing in the way.
func TestServeTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.serve()
	if s.PID != s.cmd.Process.Pid {
		t.Errorf("the agent calls itself process %d, and is %d", s.PID, s.cmd.Process.Pid)
	}
	if info, err := os.Stat(s.Socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	code, stdout, stderr := w.pactctl("agent", "serve", "--profile", w.profile)
	if code != 1 || stdout != "" || !strings.Contains(stderr, fmt.Sprint(s.PID)) {
		t.Errorf("a second one: exit %d\n%s%s", code, stdout, stderr)
	}
	if v := w.does(0, "agent", "status"); v["running"] != true || v["pid"] != float64(s.PID) {
		t.Errorf("its status: %v", v)
	}
	if v := w.does(0, "status"); v["ready"] != true {
		t.Errorf("the profile's status: %v", v)
	}
	s.kill()
	if v := w.does(1, "agent", "status"); v["running"] != false {
		t.Errorf("its status once it is killed: %v", v)
	}
	if v := w.does(0, "status"); v["ready"] != true { // in the command's own process
		t.Errorf("the profile's status: %v", v)
	}
	s = w.serve()
	if v := w.does(0, "agent", "status"); v["pid"] != float64(s.PID) {
		t.Errorf("the next one's status: %v", v)
	}
	s.stop()
	if _, err := os.Stat(s.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// age is how long ago something was, or is to come, which changes while one looks; and
// with it the width of a column.
var (
	age    = regexp.MustCompile(`\bnow\b|\d+[smh] ago|in \d+[smhd]+`)
	blanks = regexp.MustCompile(` +`)
)

// Commands say the same, and end with the same code, whether they go through a running
// agent or do it themselves. It runs by itself, while no other test's business changes
// what the signer knows.
func TestSameOutput(t *testing.T) {
	w := newWorld(t)
	w.allows(mayRead)
	s := w.serve("--time-scale", "1") // what waits outlives all these commands, on a busy machine too
	w.faults("card-max-age=3600")
	w.does(0, "discover", w.card, "--refresh")
	o := &office{world: w, serving: s, t: t, owner: s.owner()}
	asked := o.ask()
	v := o.approval()
	signIn := o.pendingSignIn()
	commands := [][]string{
		{"status"}, {"policy", "show"}, {"providers", "list"}, {"discover", w.card}, {"conversations", "list"},
		{"conversations", "show", asked.Conversation}, {"conversations", "show", "no-such"}, {"authorization", "list"},
		{"authorization", "status", signIn}, {"grants", "list"}, {"receipts", "list"}, {"receipts", "show", asked.Evidence.Receipt},
		{"review", "list"}, {"review", "show", o.review().Id}, {"review", "show", "no-such"}, {"approvals", "list"}, {"approvals", "show", v.Id}, {"approvals", "approve", "no-such", "--yes"},
		{"send", "--business", w.card, "--message", "Cancel booking Z", "--conversation", "no-such"}, {"reconcile"}, {"doctor"},
	}
	type said struct {
		code           int
		stdout, stderr string
	}
	plain := func(s string) string { return blanks.ReplaceAllString(age.ReplaceAllString(s, "then"), " ") }
	runs := func(env ...string) (all []said) {
		for _, output := range []string{"text", "json"} {
			for _, c := range commands {
				code, stdout, stderr := w.pactctlWith(env, append(slices.Clone(c), "-o", output)...)
				all = append(all, said{code, plain(stdout), plain(stderr)})
			}
		}
		return all
	}
	named := runs("PACT_REMOTE=unix:" + s.Socket)
	found := runs()
	s.stop()
	alone := runs()
	for i, want := range alone {
		c := commands[i%len(commands)]
		if named[i] != want {
			t.Errorf("pactctl %v with --remote: exit %d\n%s%s\nby itself: exit %d\n%s%s", c, named[i].code, named[i].stdout, named[i].stderr, want.code, want.stdout, want.stderr)
		}
		if found[i] != want {
			t.Errorf("pactctl %v beside a running agent: exit %d\n%s%s\nby itself: exit %d\n%s%s", c, found[i].code, found[i].stdout, found[i].stderr, want.code, want.stdout, want.stderr)
		}
	}
}

// A program that opens the profile beside the running agent, and knows of none, shares
// its leases: one turn in a conversation (CV-3), one who polls a sign-in (DA-4), one
// word on an approval; and what it leaves waiting, the running agent tends.
func TestBeside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allows(mayRead)
	s := w.serve()
	o := &office{world: w, serving: s, t: t, owner: s.owner()}

	talk := o.ask().Conversation
	text := o.text("Show trip %d")
	hold := w.hold(text)
	under := begin(t, o.owner, "SendMessage", &agentv1.SendMessageRequest{
		Business: w.card, Message: text, Effect: "inspect", Scopes: []string{mayRead}, Conversation: talk,
	})
	hold.comes(t)
	w.here(func(a *agent.Agent) {
		r, err := a.Send(t.Context(), w.owner(), agent.SendRequest{Business: w.card, Message: "Show the list", Scopes: []string{mayRead}, Conversation: talk})
		if r.Reason != agent.ReasonBusy && agent.ReasonOf(err) != agent.ReasonBusy {
			t.Errorf("in the conversation: %+v, %v", r, err)
		}
		r, err = a.Send(t.Context(), w.owner(), agent.SendRequest{Business: w.card, Message: "Show the list"}) // turns by one permission wait for each other there
		if err != nil || r.Status != agent.StatusReplied {
			t.Errorf("in one of its own: %+v, %v", r, err)
		}
	})
	hold.release()
	if r := under.result(); r.Status != "replied" {
		t.Errorf("the running agent's turn: %v", r)
	}

	// The running agent polls; who waits beside it shows the link and hears of the end.
	id := o.pendingSignIn()
	w.here(func(a *agent.Agent) {
		c := w.owner()
		c.Human = agent.HumanInteractive
		c.SignIn = func(_ context.Context, s agent.SignIn) error { return w.signIn(s.Link.Reveal()) }
		if r, err := a.WaitAuthorization(t.Context(), c, id); err != nil || r.Status != agent.StatusDone {
			t.Errorf("a wait beside: %+v, %v", r, err)
		}
	})

	// What was begun beside it, by a program that is gone, the running agent polls.
	link := ""
	w.here(func(a *agent.Agent) {
		c := w.owner()
		c.Human = agent.HumanInteractive
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c.SignIn = func(_ context.Context, s agent.SignIn) error {
			link = s.Link.Reveal()
			cancel()
			return nil
		}
		r, err := a.Authorize(ctx, c, agent.AuthorizeRequest{Business: w.card, Scopes: []string{mayCancel}})
		if err != nil || r.Authorization == nil {
			t.Fatalf("%+v, %v", r, err)
		}
		id = r.Authorization.ID
	})
	if err := w.signIn(link); err != nil {
		t.Fatal(err)
	}
	o.eventually("the sign-in is granted", func() bool { return o.getAuthorization(id).State == "granted" })

	// An approval that was asked for on one side is decided on the other.
	text = o.text("Cancel booking B%d")
	w.here(func(a *agent.Agent) {
		r, err := a.Send(t.Context(), outOfBand(w), agent.SendRequest{Business: w.card, Message: text, Effect: "change", Scopes: []string{mayRead}})
		if err != nil || r.Approval == nil {
			t.Fatalf("%+v, %v", r, err)
		}
		id = r.Approval.ID
	})
	if r := o.approve(o.getApproval(id)); r.Status != "replied" {
		t.Errorf("approved at the running agent: %v", r)
	}
	w.once(text)

	text = o.text("Cancel booking B%d")
	req := change(o, text)
	req.WaitForApproval = true
	under = begin(t, o.owner, "SendMessage", req)
	v := under.until("the approval", func(u *agentv1.OperationUpdate) bool { return u.GetApproval() != nil }).GetApproval()
	w.here(func(a *agent.Agent) {
		if r, err := a.Decide(t.Context(), w.owner(), agent.Decision{ID: v.Id, Approve: true, Digest: v.Digest}); err != nil || r.Status != agent.StatusDone {
			t.Errorf("approved beside: %+v, %v", r, err)
		}
	})
	if r := under.result(); r.Status != "replied" {
		t.Errorf("the running agent's change: %v", r)
	}
	w.once(text)
}

// outOfBand is the owner's surface where nobody is asked now, but later.
func outOfBand(w *world) agent.Caller {
	c := w.owner()
	c.Human = agent.HumanOutOfBand
	return c
}
