package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
)

func TestTargets(t *testing.T) {
	for _, good := range []string{
		"unix:/run/agent.sock", "unix:agent.sock", "http://127.0.0.1:8080", "http://127.0.0.1:8080/", "http://[::1]:8080", "http://localhost:8080",
	} {
		if err := control.CheckTarget(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "unix:", "/run/agent.sock", "127.0.0.1:8080", "https://127.0.0.1:8080", "http://127.0.0.1", "http://example.com:8080", "http://10.0.0.1:8080",
		"http://0.0.0.0:8080", "http://[::]:8080", "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080?a=b", "http://user:hunter2@127.0.0.1:8080", "http://127.0.0.1.example.com:80",
	} {
		err := control.CheckTarget(bad)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", bad, err)
		}
		if _, dialled := control.Dial(t.Context(), bad, ""); dialled == nil {
			t.Errorf("%q was dialled", bad)
		}
	}
}

// TestNobodyThere: that nothing answers is told before a command begins, with where it
// should and what to do.
func TestNobodyThere(t *testing.T) {
	held := nobodyListens(t)
	rude := listen(t, func(c net.Conn) { _ = c.Close() })
	other := listen(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "220 mail.example.com ESMTP\r\n")
		_ = c.Close()
	})
	for target, text := range map[string]string{
		"unix:" + t.TempDir() + "/no.sock": "pactctl agent serve",
		held:                               "pactctl agent serve",
		rude:                               "something else",
		other:                              "something else",
	} {
		_, err := control.Dial(t.Context(), target, "")
		if !errors.Is(err, control.ErrUnreachable) || !strings.Contains(err.Error(), target) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", target, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	silent := listen(t, func(c net.Conn) {
		cancel()
		_, _ = io.Copy(io.Discard, c)
	})
	if _, err := control.Dial(ctx, silent, ""); !errors.Is(err, control.ErrUnreachable) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// nobodyListens is a loopback port that nobody listens on, nor will while the test runs: it
// is taken, by the near end of a connection.
func nobodyListens(t *testing.T) (target string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return "http://" + c.LocalAddr().String()
}

// listen serves connections on a loopback port.
func listen(t *testing.T, each func(net.Conn)) (target string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { each(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		work.Wait()
	})
	return "http://" + l.Addr().String()
}

// token makes a token of a scope.
func (w *world) token(scope control.Scope) agent.Secret {
	w.Helper()
	_, secret, err := control.NewTokens(w.store, owner, nil).Create(w.Context(), control.CreateToken{Name: "t-" + string(scope), Scope: scope})
	if err != nil {
		w.Fatal(err)
	}
	return secret
}

func TestTokens(t *testing.T) {
	w := bareWorld(t)
	loopback := w.serve().Target()
	const wrong = "pact_agent_WRONGWRONGWRONGWRONGWRONG"
	for _, c := range []struct {
		target string
		token  agent.Secret
		text   string
	}{
		{loopback, "", "takes a token"},
		{loopback, wrong, "does not accept the token"},
		{loopback, "x\r\nX: y", ""},
		{w.running.target, wrong, "does not accept the token"},
	} {
		_, err := control.Dial(t.Context(), c.target, c.token)
		if err == nil || errors.Is(err, control.ErrUnreachable) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), c.target) || c.token != "" && strings.Contains(err.Error(), c.token.Reveal()) {
			t.Errorf("%s: %v", c.target, err)
		}
	}
	token := w.token(control.ScopeRead)
	client := w.dial(loopback, token)
	if _, err := client.Policy(t.Context(), w.caller()); err != nil {
		t.Error(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("connected", "client", client)
	for _, shown := range []string{fmt.Sprint(client), fmt.Sprintf("%+v", client), fmt.Sprintf("%#v", client), log.String()} {
		if strings.Contains(shown, token.Reveal()) {
			t.Errorf("a client prints its token: %s", shown)
		}
	}
	if client.Target() != loopback {
		t.Error(client.Target())
	}
}

// TestScopeTooSmall: what a token may not do is refused, as a result where there is
// one, and the refusal says which scope it takes.
func TestScopeTooSmall(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	loopback := w.serveAgain()
	ctx := t.Context()
	reads := w.dial(loopback, w.token(control.ScopeRead))
	operates := w.dial(loopback, w.token(control.ScopeOperator))
	refused := func(what string, err error, scope control.Scope) {
		t.Helper()
		if agent.ReasonOf(err) != control.ReasonScopeRequired || !strings.Contains(err.Error(), string(scope)) {
			t.Errorf("%s: %v; want scope_required, %s", what, err, scope)
		}
	}
	_, err := reads.Discover(ctx, w.caller(), agent.ParseBusiness(w.shop()))
	refused("discover", err, control.ScopeWrite)
	_, err = reads.CancelAuthorization(ctx, w.caller(), "signin-000000")
	refused("cancel", err, control.ScopeOperator)
	refused("switch", operates.SetEnabled(ctx, w.caller(), false), control.ScopeAdmin)
	refused("forget", operates.RemoveProvider(ctx, w.caller(), w.ready.Provider), control.ScopeAdmin)

	for c, want := range map[*control.Client]control.Scope{reads: control.ScopeRead, operates: control.ScopeOperator} {
		p, err := c.Process(ctx)
		if err != nil || p.Scope != want || c.Scope() != want || c.Decides() || c.SignsIn() != (want == control.ScopeOperator) {
			t.Errorf("the connection has %s, and says %s: %v", p.Scope, c.Scope(), err)
		}
	}

	r, err := reads.Send(ctx, w.caller(), w.change())
	refused("send", asRefusal(r, err), control.ScopeOperator)
	confirmed := w.caller()
	confirmed.Confirmed = true
	r, err = operates.Send(ctx, confirmed, w.change()) // CP-2
	refused("confirmed", asRefusal(r, err), control.ScopeAdmin)
	r, err = operates.Decide(ctx, w.caller(), agent.Decision{ID: "approval-000000"})
	refused("decide", asRefusal(r, err), control.ScopeAdmin)
	if got := w.box.Executed(); len(got) != 0 {
		t.Errorf("carried out: %+v", got)
	}

	// Who may send and not approve is not asked, and what asks stays for the owner.
	person := w.person()
	person.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
		t.Error("who cannot approve is asked")
		return true, nil
	}
	r, err = operates.Send(ctx, person, w.change())
	w.ended("send", r, err, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
	if list, err := w.local.Approvals(ctx, w.caller(), true); err != nil || len(list) != 1 || list[0].State != agent.ApprovalPending || r.Approval == nil || list[0].ID != r.Approval.ID {
		t.Errorf("approvals %+v, %v", list, err)
	}
	if got := w.box.Executed(); len(got) != 0 {
		t.Errorf("carried out: %+v", got)
	}

	// Who may only read waits for a sign-in without its link.
	r, err = operates.Authorize(ctx, w.caller(), w.authorize())
	if err != nil || r.Authorization == nil {
		t.Fatalf("%+v, %v", r, err)
	}
	c := w.person()
	c.SignIn = func(context.Context, agent.SignIn) error {
		t.Error("the link was shown")
		return nil
	}
	signedIn := make(chan struct{})
	go func() {
		defer close(signedIn)
		if r, err := operates.WaitAuthorization(ctx, w.person(), r.Authorization.ID); err != nil || r.Status != agent.StatusDone {
			t.Errorf("%+v, %v", r, err)
		}
	}()
	if r, err = reads.WaitAuthorization(ctx, c, r.Authorization.ID); err != nil || r.Status != agent.StatusDone {
		t.Errorf("%+v, %v", r, err)
	}
	<-signedIn
}

// asRefusal is the refusal that a result tells.
func asRefusal(r agent.Result, err error) error {
	if err != nil {
		return err
	}
	return &agent.Refusal{Status: r.Status, Reason: r.Reason, Detail: r.Detail}
}

// serveAgain starts the server anew, and returns its loopback target.
func (w *world) serveAgain() string {
	w.Helper()
	w.running.stop()
	return w.serve().Target()
}

// serveBeside starts another server, and returns its loopback target.
func (w *world) serveBeside() string {
	w.Helper()
	w.running = nil // it has a socket of its own
	return w.serve().Target()
}

// TestLongLists: a list is whole, however many pages it takes.
func TestLongLists(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	ctx, c := t.Context(), w.caller()
	if r, err := w.local.Send(ctx, c, agent.SendRequest{Business: w.shop(), Message: "Do you have anything by Woolf?", Effect: "inspect"}); err != nil || r.Status != agent.StatusReplied {
		t.Fatalf("%+v, %v", r, err)
	}
	const n = 405
	err := w.store.Update(ctx, func(tx agent.Tx) error {
		have, err := tx.Find(agent.KindConversation, agent.Query{Principal: owner})
		for i := 1; i < n && err == nil; i++ {
			more := have[0]
			more.ID, more.Revision = fmt.Sprintf("c-%06d", i), 0
			more.Created = more.Created.Add(-time.Duration(i/3) * time.Minute) // some at the same time
			err = tx.Put(agent.KindConversation, more)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	here, err := w.local.Conversations(ctx, c)
	if err != nil || len(here) != n {
		t.Fatalf("%d, %v", len(here), err)
	}
	there, err := w.ag.Conversations(ctx, c)
	w.say("here", here, nil)
	if want := w.said(); err != nil || len(there) != n {
		t.Errorf("%d of %d, %v", len(there), n, err)
	} else {
		w.transcript.Reset()
		w.say("here", there, nil)
		if got := w.said(); got != want {
			t.Error("the lists differ")
		}
	}
}

// TestServerRestarts: a client goes on with the agent that is there, and tells when
// none is.
func TestServerRestarts(t *testing.T) {
	w := bareWorld(t)
	w.serve()
	client := w.dial(w.running.target, "")
	ctx, c := t.Context(), w.caller()
	ask := func() error {
		_, err := client.Policy(ctx, c)
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	w.serveAgain()
	if err := ask(); err != nil {
		t.Errorf("after a restart between calls: %v", err)
	}
	for range 6 { // more often than connections are kept
		w.running.stop()
		if err := ask(); !errors.Is(err, control.ErrUnreachable) || !strings.Contains(err.Error(), "pactctl agent serve") || !strings.Contains(err.Error(), client.Target()) {
			t.Errorf("with no agent there: %v", err)
		}
		w.serve()
		if err := ask(); err != nil {
			t.Errorf("once it is there again: %v", err)
		}
	}
	p, err := client.Process(ctx)
	if err != nil || p.Version != "test" || p.TimeScale != scale || p.Started.IsZero() {
		t.Errorf("process %+v, %v", p, err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if err := ask(); err == nil || errors.Is(err, control.ErrUnreachable) {
		t.Errorf("after Close: %v", err)
	}
}

// link is a way to an agent that can be cut, as when its process is killed.
type link struct {
	target string

	mu    sync.Mutex
	to    string
	conns []net.Conn
}

func newLink(t *testing.T, to string) *link {
	l := &link{}
	l.lead(to)
	l.target = listen(t, func(near net.Conn) {
		l.mu.Lock()
		to := l.to
		l.mu.Unlock()
		far, err := net.Dial("tcp", to)
		if err != nil {
			_ = near.Close()
			return
		}
		l.mu.Lock()
		l.conns = append(l.conns, near, far)
		l.mu.Unlock()
		go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
		_, _ = io.Copy(near, far)
		_ = near.Close()
	})
	t.Cleanup(l.cut)
	return l
}

// lead has new connections lead to a target.
func (l *link) lead(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = strings.TrimPrefix(target, "http://")
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// TestAgentGoneMidCall: what an agent did not tell before it ended is an error, which
// promises nothing, and never a result.
func TestAgentGoneMidCall(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	l := newLink(t, w.serveAgain())
	client := w.dial(l.target, w.token(control.ScopeAdmin))
	release := w.holdShop()
	go func() {
		<-w.arrived
		l.cut()
	}()
	c := w.caller()
	c.Confirmed = true
	r, err := client.Send(t.Context(), c, w.change())
	if !errors.Is(err, control.ErrUnreachable) || !strings.Contains(err.Error(), l.target) || r.Status != "" {
		t.Errorf("%+v, %v", r, err)
	}
	release()
	if _, err := client.Conversations(t.Context(), c); err != nil { // which is there again
		t.Error(err)
	}

	// While it is asked, too: and then the owner is asked no more.
	c = w.person()
	c.Approve = func(ctx context.Context, _ agent.ApprovalRequest) (bool, error) {
		l.cut()
		<-ctx.Done()
		return true, nil
	}
	r, err = client.Send(t.Context(), c, agent.SendRequest{Business: w.air(), Message: "Cancel my flight", Effect: "change"})
	if !errors.Is(err, control.ErrUnreachable) || r.Status != "" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestInterruptedAtARestart (CV-16): an agent that is another process by now cannot
// tell that nothing was sent, and nobody says so.
func TestInterruptedAtARestart(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	l := newLink(t, w.serveAgain())
	token := w.token(control.ScopeAdmin)
	client := w.dial(l.target, token)
	release := w.holdShop()
	defer release()
	ctx, interrupt := context.WithCancel(t.Context())
	first, beside := w.running, w.serveBeside()
	go func() {
		<-w.arrived
		l.lead(beside)
		interrupt()
		l.cut()
	}()
	c := w.caller()
	c.Confirmed = true
	r, err := client.Send(ctx, c, w.change())
	if r.Status == agent.StatusCancelled || err == nil && r.Status != agent.StatusUnknown {
		t.Errorf("%+v, %v", r, err)
	}
	release()
	first.stop()
}

// TestSendGoesOn: what is on its way to a business when its caller leaves, or is killed, is
// waited for by the agent, and its end written down. It is given up when the token is not
// good any more.
func TestSendGoesOn(t *testing.T) {
	interrupts := func(_ *world, _ *link, interrupt func()) { interrupt() }
	revoke := func(w *world) {
		if _, err := control.NewTokens(w.store, owner, nil).Revoke(w.Context(), "t-admin"); err != nil {
			w.Error(err)
		}
	}
	for name, c := range map[string]struct {
		leave func(w *world, l *link, interrupt func())
		then  func(w *world)
		end   string // of the message
		told  agent.Status
	}{
		"who stops waiting":                 {interrupts, nil, "replied", agent.StatusUnknown},
		"who is killed":                     {func(_ *world, l *link, _ func()) { l.cut() }, nil, "replied", ""},
		"whose token is revoked":            {func(w *world, _ *link, _ func()) { revoke(w) }, nil, "outcome_unknown", ""},
		"whose token is revoked after that": {interrupts, revoke, "outcome_unknown", agent.StatusUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, startSigner(t), true)
			l := newLink(t, w.serveAgain())
			client := w.dial(l.target, w.token(control.ScopeAdmin))
			release := w.holdShop()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			watching, ended := make(chan struct{}), make(chan agent.Change, 1)
			go func() {
				<-w.arrived
				_ = w.local.Watch(t.Context(), w.caller(), func(e agent.Change) error {
					switch {
					case e.Kind == agent.KindWatching:
						close(watching)
					case e.Kind == agent.KindMessage && e.State != "sending":
						ended <- e
						return errTerminal
					}
					return nil
				})
			}()
			go func() {
				<-watching
				c.leave(w, l, interrupt)
			}()
			who := w.caller()
			who.Confirmed = true
			r, err := client.Send(ctx, who, w.change())
			if r.Status != c.told || (err == nil) != (c.told != "") {
				t.Errorf("told %+v, %v", r, err)
			}
			if c.told != "" && (r.Conversation == "" || !strings.Contains(r.Detail, "pactctl conversations show "+r.Conversation)) {
				t.Errorf("told %+v", r)
			}
			if c.then != nil {
				c.then(w)
			}
			if c.end == "replied" {
				release()
			}
			e := <-ended
			if e.State != c.end || r.Message != "" && e.ID != r.Message {
				t.Errorf("ended as %+v; want %s", e, c.end)
			}
			release()
			if got := w.box.Executed(); c.end == "replied" && (len(got) != 2 || got[1].Text != w.change().Message) { // after the introduction
				t.Errorf("carried out: %+v", got)
			}
		})
	}
}

// TestAgentStops: an agent that is told to stop ends what is under way, tells how, and
// leaves open what waits.
func TestAgentStops(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	c := w.person()
	c.Approve = func(ctx context.Context, _ agent.ApprovalRequest) (bool, error) {
		go w.running.stop()
		<-ctx.Done()
		return false, ctx.Err()
	}
	r, err := w.ag.Send(t.Context(), c, w.change())
	if err != nil || r.Status == agent.StatusReplied || r.Status == "" {
		t.Errorf("%+v, %v", r, err)
	}
	if list, err := w.local.Approvals(t.Context(), c, true); err != nil || len(list) != 1 || list[0].State != agent.ApprovalPending {
		t.Errorf("approvals %+v, %v", list, err)
	}
	w.serveAgain()
	c.SignIn = func(context.Context, agent.SignIn) error {
		go w.running.stop()
		return nil
	}
	r, err = w.ag.Authorize(t.Context(), c, w.authorize())
	if err != nil || r.Status != agent.StatusNeedsUserAction || r.Authorization == nil { // DA-17
		t.Fatalf("%+v, %v", r, err)
	}
	w.serveAgain()
	if r, err = w.ag.WaitAuthorization(t.Context(), w.person(), r.Authorization.ID); err != nil || r.Status != agent.StatusDone {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestCallersWithoutAWayThere (AD-2, TR-9): what the control plane cannot keep of a
// caller's limits is refused, and not widened.
func TestCallersWithoutAWayThere(t *testing.T) {
	w := bareWorld(t)
	w.serve()
	client := w.dial(w.running.target, "")
	task := func(change func(*agent.Task)) agent.Caller {
		t := &agent.Task{ID: "task-1", Source: agent.SourceOwner, Mode: agent.ModeAct, Human: agent.HumanOutOfBand}
		change(t)
		return agent.TaskCaller(owner, t, agent.DefaultNetwork())
	}
	good := task(func(*agent.Task) {})
	if _, err := client.Grants(t.Context(), good); err != nil {
		t.Errorf("a task of the owner's: %v", err)
	}
	offline := good
	offline.Network = nil
	elsewhere := w.caller()
	elsewhere.Network = &agent.Network{Name: "office"}
	for name, c := range map[string]agent.Caller{
		"a hook's task":         task(func(t *agent.Task) { t.Source = agent.SourceHook }),
		"a sub-task":            task(func(t *agent.Task) { t.Parent = "task-0" }),
		"a task that plans":     task(func(t *agent.Task) { t.Mode = agent.ModePlan }),
		"no task":               agent.TaskCaller(owner, nil, agent.DefaultNetwork()),
		"a gateway":             {Principal: owner, Origin: agent.OriginGateway},
		"a task of no network":  offline,
		"another network":       elsewhere,
		"a task without a name": task(func(t *agent.Task) { t.ID = "" }),
		"a task of a long name": task(func(t *agent.Task) { t.ID = strings.Repeat("a", 101) }),
		"a task of two lines":   task(func(t *agent.Task) { t.ID = "a\nb" }),
	} {
		if list, err := client.Grants(t.Context(), c); err == nil {
			t.Errorf("%s: %v", name, list)
		}
		if r, err := client.Send(t.Context(), c, w.change()); err == nil && r.Status != agent.StatusBlocked && r.Status != agent.StatusFailed {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if _, err := client.Grants(t.Context(), agent.Caller{Origin: agent.OriginOwnerCLI}); err == nil {
		t.Error("ID-7: no principal is one")
	}
}

// TestDialogIsRecorded: what the owner decided in a dialog of a program is recorded so by
// their socket, and by that alone. What is no name of a program is nobody's.
func TestDialogIsRecorded(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	loopback := w.serveAgain()
	desk, cafe, bad := control.DialogActor+"desk", control.DialogActor+"caf\u00e9 100%", control.DialogActor+strings.Repeat("x", 101)
	for _, c := range []struct {
		by          *control.Client
		actor, want string
	}{
		{w.dial("unix:"+w.socket(), ""), desk, desk},
		{w.dial("unix:"+w.socket(), ""), cafe, cafe},
		{w.dial("unix:"+w.socket(), ""), bad, "owner"},
		{w.dial("unix:"+w.socket(), ""), control.DialogActor, "owner"},
		{w.dial(loopback, w.token(control.ScopeAdmin)), desk, "token "},
	} {
		r, err := c.by.Send(t.Context(), w.caller(), w.change())
		if err != nil || r.Approval == nil {
			t.Fatalf("%+v, %v", r, err)
		}
		who := w.caller()
		who.Actor = c.actor
		decided, err := c.by.Decide(t.Context(), who, agent.Decision{ID: r.Approval.ID})
		if err != nil || decided.Approval == nil || !strings.HasPrefix(decided.Approval.DecidedBy, c.want) || decided.Approval.Actor == desk {
			t.Errorf("by %q: %+v, %v; want %q", c.actor, decided.Approval, err, c.want)
		}
	}
}

// TestTaskNames: tasks whose names differ, in whatever script, are different tasks, and
// records have the names as they are.
func TestTaskNames(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	began := map[string]string{} // conversations, by who began them
	for _, name := range []string{"desk", "\u65e5\u672c\u8a9e", "\u52a9\u624b\u541b", "???", "100% caf\u00e9", "%41"} {
		c := agent.TaskCaller(owner, &agent.Task{ID: name, Source: agent.SourceOwner, Mode: agent.ModeAct, Human: agent.HumanOutOfBand}, agent.DefaultNetwork())
		req := w.change()
		r, err := w.ag.Send(t.Context(), c, req)
		if err != nil || r.Approval == nil || r.Approval.Task != "assistant:owner:"+name || r.Approval.Actor != "owner task "+name {
			t.Fatalf("%q: %+v, %v", name, r, err)
		}
		for other, conversation := range began {
			req.Conversation = conversation
			if r, err := w.ag.Send(t.Context(), c, req); err != nil || r.Reason != agent.ReasonOtherTask {
				t.Errorf("%q goes on with what %q began: %+v, %v", name, other, r, err)
			}
		}
		began[name] = r.Conversation
	}
}

// TestTaskIsNarrowed (AD-2, AP-5): a task asks, and neither confirms nor decides; what
// the owner answers is the owner's.
func TestTaskIsNarrowed(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	ctx := t.Context()
	c := agent.TaskCaller(owner, &agent.Task{ID: "helper shop", Source: agent.SourceOwner, Mode: agent.ModeAct, Human: agent.HumanOutOfBand}, agent.DefaultNetwork())
	c.Confirmed = true
	r, err := w.ag.Send(ctx, c, w.change())
	if err != nil || r.Status != agent.StatusApprovalRequired || r.Approval == nil || !strings.Contains(r.Approval.Task, "helper shop") {
		t.Fatalf("%+v, %v", r, err)
	}
	decided, err := w.ag.Decide(ctx, c, agent.Decision{ID: r.Approval.ID, Approve: true, Digest: r.Approval.Digest})
	if agent.ReasonOf(asRefusal(decided, err)) != control.ReasonScopeRequired {
		t.Errorf("a task decided: %+v, %v", decided, err)
	}
	if err := w.ag.SetEnabled(ctx, c, false); agent.ReasonOf(err) != control.ReasonScopeRequired {
		t.Errorf("a task changed the settings: %v", err)
	}
	decided, err = w.ag.Decide(ctx, w.caller(), agent.Decision{ID: r.Approval.ID})
	if err != nil || decided.Approval == nil || decided.Approval.DecidedBy != "owner" {
		t.Errorf("the owner decides: %+v, %v", decided, err)
	}
	if got := w.box.Executed(); len(got) != 0 {
		t.Errorf("carried out: %+v", got)
	}

	// The same task, with the owner at its side.
	c.Confirmed = false
	c.Task.Human = agent.HumanInteractive
	asked := 0
	c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) {
		asked++
		return true, nil
	}
	r, err = w.ag.Send(ctx, c, w.change())
	if err != nil || r.Status != agent.StatusReplied || asked != 1 {
		t.Errorf("%+v, %v after %d questions", r, err, asked)
	}
}
