package agent_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// What the owner, the tasks and time do to approvals.
type move struct {
	do    string
	which int    // of the approvals that there are
	signs bool   // they sign in, if they are asked to
	fault string // of the business
	at    int    // at its n-th write or request …
	then  string // … the program dies, or another one does something; empty: neither
}

func (m move) String() string {
	s := m.do
	if m.which > 0 {
		s += fmt.Sprint(" ", m.which)
	}
	if m.signs {
		s += " signing in"
	}
	if m.fault != "" {
		s += " " + m.fault
	}
	if m.then != "" {
		s += fmt.Sprintf(" (at %d %s)", m.at, m.then)
	}
	return s
}

var moves = rapid.Custom(func(t *rapid.T) move {
	m := move{do: rapid.SampledFrom([]string{
		"ask", "ask", "ask with permission", "ask again", "ask to reconcile", "approve", "approve", "approve", "approve in vain", "deny",
		"approve in an outage", "confirm the same",
		"approve twice at once", "approve and deny at once",
		"live: yes", "live: no", "live: leave", "live: stop", "live: elsewhere yes", "live: elsewhere no",
		"tend", "tend", "wait", "wait long", "restart",
	}).Draw(t, "do")}
	m.which = rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "which")
	m.signs = rapid.Bool().Draw(t, "signs in")
	m.fault = rapid.SampledFrom([]string{"", "", "", "step up", lostAfter, limits, closes}).Draw(t, "fault")
	m.then = rapid.SampledFrom([]string{"", "", diesBefore, diesAfter, denies, approves, takesOver, revokes, leaves, stops}).Draw(t, "then")
	if m.fault == limits && (m.then == approves || m.then == takesOver) { // which would wait inside a write
		m.fault = ""
	}
	if m.then == revokes && strings.HasSuffix(m.do, "at once") { // the other's word may come before it, or after
		m.then = ""
	}
	if m.then != "" {
		m.at = rapid.IntRange(1, 24).Draw(t, "at")
	}
	return m
})

// What happens between two steps of a program.
const (
	diesBefore = "it dies before it is written"
	diesAfter  = "it dies"
	denies     = "another one denies"
	approves   = "another one approves"
	takesOver  = "another one takes it for dead and approves"
	revokes    = "what was approved by is revoked"
	leaves     = "who is there leaves"
	stops      = "it is stopped"
)

// What a business does to a message of which nothing runs, the first time in a move.
const (
	limits = "limits requests"
	closes = "closes the context"
)

var errCrashed = errors.New("the program is dead")

// mortal is the way of a program to its disk and its network, until it dies.
type mortal struct {
	agent.Store
	net agent.Egress

	mu    sync.Mutex
	left  int    // events until something happens; 0: nothing does
	then  string // what
	other func() // what another program does
	dead  bool
}

// event is one step, after which something may happen. dead is whether the program was
// dead before it, or dies at it.
func (m *mortal) event() (dead bool, after func() error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	after = func() error { return nil }
	if m.dead {
		return true, nil
	}
	if m.left == 0 {
		return false, after
	}
	if m.left--; m.left > 0 {
		return false, after
	}
	switch m.then {
	case diesBefore:
		m.dead = true
		return true, nil
	case diesAfter:
		m.dead = true
		return false, func() error { return errCrashed }
	}
	return false, func() error { m.other(); return nil }
}

func (m *mortal) gone() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.dead }

func (m *mortal) View(ctx context.Context, fn func(agent.Tx) error) error {
	if m.gone() {
		return errCrashed
	}
	return m.Store.View(ctx, fn)
}

func (m *mortal) Update(ctx context.Context, fn func(agent.Tx) error) error {
	dead, after := m.event()
	if dead {
		return errCrashed
	}
	return cmp.Or(m.Store.Update(ctx, fn), after())
}

func (m *mortal) Do(ctx context.Context, req egress.Request) (egress.Response, error) {
	if m.gone() {
		return egress.Response{}, &egress.Error{Code: egress.Aborted, Purpose: req.Purpose, Err: errCrashed}
	}
	if req.Purpose != egress.Message {
		return m.net.Do(ctx, req)
	}
	dead, after := m.event()
	if dead {
		return egress.Response{}, &egress.Error{Code: egress.Network, Purpose: req.Purpose, Err: errCrashed}
	}
	resp, err := m.net.Do(ctx, req)
	if after() != nil {
		return egress.Response{}, &egress.Error{Code: egress.Network, Purpose: req.Purpose, Sent: true, Err: errCrashed}
	}
	return resp, err
}

// approvalWalk is a model of what the owner said, beside the agent.
type approvalWalk struct {
	w    *world
	a, b *agent.Agent // b is another program
	life *mortal
	ctx  context.Context
	n    int

	asked string                  // by the question of this move, last
	leave context.CancelCauseFunc // of who makes a move alone

	mu     sync.Mutex
	move   move
	digest map[string]string // by approval
	yes    map[string]bool   // the owner said so, or is saying it now
	no     map[string]bool   // they have said so
	used   map[string]int    // turns that came under it
	again  bool              // the business has refused one in this move
	same   string            // what is confirmed, and has not come
	before map[string]int    // used, when it came
	states map[string]string
	broken string
}

func newApprovalWalk(t *testing.T) *approvalWalk {
	m := &approvalWalk{
		w: newWorld(t), ctx: t.Context(),
		digest: map[string]string{}, yes: map[string]bool{}, no: map[string]bool{}, used: map[string]int{}, states: map[string]string{},
	}
	m.open()
	if _, err := m.a.Enroll(m.ctx, owner(), agent.EnrollRequest{SignerURL: signerURL}); err != nil {
		t.Fatal(err)
	}
	m.w.biz.set(func(b *business) { b.answer = m.answer })
	return m
}

func (m *approvalWalk) open() {
	w := m.w
	store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = store.Close() })
	life := &mortal{Store: store, other: m.meanwhile}
	cfg := w.config
	cfg.Dir, cfg.Store = w.dir, life
	cfg.Network = func(rules agent.URLRules, policy egress.Policy) agent.Egress {
		life.net = &wire{w, rules, policy}
		return life
	}
	if m.a, err = agent.Open(cfg); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(m.a.Close)
	m.life = life
	m.b = w.open()
}

// meanwhile is what another program does.
func (m *approvalWalk) meanwhile() {
	m.mu.Lock()
	s, b, leave := m.move, m.b, m.leave
	m.mu.Unlock()
	switch s.then {
	case leaves:
		leave(context.Canceled)
		return
	case stops:
		leave(agent.ErrStopping)
		return
	}
	if s.then == takesOver {
		m.w.dies()
		b = m.w.open() // it has a lock
	}
	if s.then == revokes {
		m.w.takeBack("token ops")
	}
	known, err := b.Approvals(m.ctx, owner(), true)
	if s.then == revokes {
		for _, v := range known {
			if v.State == agent.ApprovalPending && v.Reason == agent.ReasonApproverRevoked {
				m.takesBack(v.ID)
			}
		}
		return
	}
	if err != nil || s.which >= len(known) {
		return
	}
	if _, err := m.decide(m.ctx, b, known[s.which].ID, s.then != denies, ops()); err != nil {
		m.w.t.Errorf("another program: %v", err)
	}
}

// answer is the business's, which holds each change to what the owner approved.
func (m *approvalWalk) answer(u turn) (int, any) {
	if strings.HasPrefix(u.text, "Hello.") {
		return 0, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.again && (m.move.fault == limits || m.move.fault == closes) { // nothing runs
		m.again = true
		if m.move.fault == limits {
			return 429, http.Header{"Retry-After": {"30"}}
		}
		return 400, a2aError(400, "UNSUPPORTED_OPERATION", "closed")
	}
	d, under := bodyDigest(m.w.t, u.id, u.text), ""
	for id, digest := range m.digest {
		if digest == d && m.yes[id] && !m.no[id] && m.used[id] == 0 {
			under = id
		}
	}
	if under == "" && u.text == m.same {
		m.same, m.before = "", maps.Clone(m.used)
		return 0, nil
	}
	if under == "" {
		m.broken = fmt.Sprintf("%q came as %s, which no approval covers", u.text, d)
		return 500, http.Header{}
	}
	m.used[under]++
	switch {
	case m.move.fault == "step up" && u.delegation == "":
		return 200, stepUp(u.context, "trips:cancel")
	case m.move.fault == lostAfter:
		return 200, nil
	}
	return 0, nil
}

func (m *approvalWalk) says(id, digest string, yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.digest[id] = digest
	if yes {
		m.yes[id] = true
	} else {
		m.no[id] = true
	}
}

// person answers yes to what is asked beside the first thing, or no.
func (m *approvalWalk) person(leave func(error)) agent.Caller {
	c := ops()
	if m.move.signs {
		c.Human = agent.HumanInteractive
		c.SignIn = func(_ context.Context, s agent.SignIn) error { m.w.biz.allow(ids(s.Scopes)...); return nil }
		if leave == nil {
			c.Approve = func(_ context.Context, r agent.ApprovalRequest) (bool, error) {
				m.says(r.ID, r.Digest, true)
				return true, nil
			}
		}
	}
	return c
}

// takesBack is the owner's word that counts no more: they believe that it is cancelled.
func (m *approvalWalk) takesBack(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used[id] == 0 {
		delete(m.yes, id)
	}
}

func (m *approvalWalk) decide(ctx context.Context, a *agent.Agent, id string, yes bool, c agent.Caller) (agent.Result, error) {
	v, err := a.Approval(m.ctx, owner(), id)
	if err != nil {
		return agent.Result{}, err
	}
	if yes && (v.State == agent.ApprovalPending || v.State == agent.ApprovalApproved) {
		m.says(v.ID, v.Digest, true)
	}
	r, err := a.Decide(ctx, c, agent.Decision{ID: v.ID, Approve: yes, Digest: v.Digest})
	if yes && err == nil && (r.Status == agent.StatusCancelled || r.Approval != nil && r.Approval.State == agent.ApprovalPending && ctx.Err() != nil) {
		m.takesBack(v.ID)
	}
	if !yes && err == nil && r.Status == agent.StatusDone {
		m.says(v.ID, v.Digest, false)
	}
	return r, err
}

// take makes a move. What the agent answers is its matter here: what counts is what
// comes to the business, and what is on record.
func (m *approvalWalk) take(s move) string {
	m.mu.Lock()
	m.move, m.again, m.same = s, false, ""
	m.mu.Unlock()
	m.life.mu.Lock()
	m.life.left, m.life.then = s.at, s.then
	m.life.mu.Unlock()
	if err := m.do(s); err != nil && !m.life.gone() && s.then != takesOver { // which lets a program find its things gone
		return err.Error()
	}
	m.life.mu.Lock()
	m.life.left = 0
	m.life.mu.Unlock()
	if m.life.gone() || s.then == takesOver {
		m.w.dies()
		m.open()
	}
	return m.check()
}

func (m *approvalWalk) do(s move) error {
	known, err := m.a.Approvals(m.ctx, owner(), true)
	if err != nil {
		return err
	}
	id := ""
	if s.which < len(known) {
		id = known[s.which].ID
	}
	ctx, leave := context.WithCancelCause(m.ctx)
	defer leave(nil)
	m.mu.Lock()
	m.leave = leave
	m.mu.Unlock()
	send := func(ctx context.Context, c agent.Caller, scopes ...string) error {
		r, err := m.a.Send(ctx, c, agent.SendRequest{Business: cardURL, Message: fmt.Sprintf("Cancel booking %d", m.n), Effect: "change", Scopes: scopes})
		if err == nil && r.Status == agent.StatusCancelled && m.asked != "" {
			m.takesBack(m.asked)
		}
		return err
	}
	m.asked = ""
	switch what, how, _ := strings.Cut(s.do, ": "); what {
	case "ask", "ask with permission":
		m.n++
		if s.do == "ask" {
			return send(ctx, inAssistant("a"))
		}
		return send(ctx, inAssistant("a"), "trips:cancel")
	case "ask again":
		return send(ctx, inAssistant("a"))
	case "ask to reconcile":
		_, err := m.a.Reconcile(ctx, inAssistant("a"), agent.ReconcileRequest{})
		return err
	case "approve", "deny":
		if id != "" {
			_, err = m.decide(ctx, m.a, id, s.do == "approve", m.person(nil))
		}
		return err
	case "approve in an outage": // no sign-in is missing, and it is not sent
		m.w.signer.set(func(p *signerStandIn) { p.fail = 503 })
		defer m.w.signer.set(func(p *signerStandIn) { p.fail = 0 })
		time.Sleep(5 * time.Minute) // nothing is cached
		if id != "" {
			_, err = m.decide(ctx, m.a, id, true, m.person(nil))
		}
		return err
	case "confirm the same":
		if id == "" {
			return nil
		}
		return m.confirm(ctx, known[s.which])
	case "approve in vain":
		if id != "" {
			_, err = m.a.Decide(m.ctx, owner(), agent.Decision{ID: id, Approve: true, Digest: sha([]byte(id))})
		}
		return err
	case "approve twice at once", "approve and deny at once":
		if id == "" {
			return nil
		}
		other := s.do == "approve twice at once"
		errs := make(chan error, 2)
		for _, yes := range []bool{true, other} {
			go func() {
				_, err := m.decide(m.ctx, m.a, id, yes, m.person(nil))
				errs <- err
			}()
		}
		return errors.Join(<-errs, <-errs)
	case "live":
		m.n++
		return m.live(ctx, how, send)
	case "tend":
		m.w.biz.allow("trips:cancel")
		ctx, stop := context.WithTimeout(ctx, time.Minute)
		defer stop()
		m.a.Tend(ctx, agent.Tending{Caller: ops()})
	case "wait":
		time.Sleep(10 * time.Minute)
	case "wait long":
		time.Sleep(2 * time.Hour)
	case "restart":
		m.open()
	}
	return nil
}

// confirm sends what was asked, confirmed, while what was approved is tended. Once it came so
// it does not come under the approval.
func (m *approvalWalk) confirm(ctx context.Context, p agent.ApprovalView) error {
	tended, stop := context.WithCancel(m.ctx)
	var tending sync.WaitGroup
	tending.Go(func() { m.b.Tend(tended, agent.Tending{Caller: owner()}) })
	time.Sleep(3 * time.Second) // what was approved is on its way
	m.mu.Lock()
	m.same = p.Message
	m.mu.Unlock()
	c := ops()
	c.Confirmed = true
	_, err := m.a.Send(ctx, c, agent.SendRequest{Business: cardURL, Message: p.Message, Effect: "change", Scopes: p.Scopes})
	time.Sleep(5 * time.Minute)
	stop()
	tending.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.same == "" && m.used[p.ID] > m.before[p.ID] {
		m.broken = fmt.Sprintf("%q came as it was confirmed, and as %s", p.Message, p.ID)
	}
	m.same = ""
	return err
}

// live is a question that is asked while its operation waits.
func (m *approvalWalk) live(ctx context.Context, how string, send func(context.Context, agent.Caller, ...string) error) error {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	c := m.person(func(error) {})
	c.Human = agent.HumanInteractive
	if c.SignIn == nil { // they look at the link, and go
		c.SignIn = func(context.Context, agent.SignIn) error {
			time.AfterFunc(7*time.Second, func() { leave(agent.ErrStopping) })
			return nil
		}
	}
	var elsewhere sync.WaitGroup
	defer elsewhere.Wait()
	first := true
	c.Approve = func(ctx context.Context, r agent.ApprovalRequest) (bool, error) {
		m.asked = r.ID
		if !first { // what a step-up makes of it
			m.says(r.ID, r.Digest, true)
			return true, nil
		}
		first = false
		switch how {
		case "yes":
			m.says(r.ID, r.Digest, true)
			return true, nil
		case "no": // unless another one was faster
			return false, nil
		case "leave":
			leave(context.Canceled)
		case "stop":
			leave(agent.ErrStopping)
		default:
			elsewhere.Go(func() {
				if _, err := m.decide(m.ctx, m.a, r.ID, how == "elsewhere yes", ops()); err != nil {
					leave(agent.ErrStopping)
				}
			})
		}
		<-ctx.Done()
		return false, ctx.Err()
	}
	return send(ctx, c, "trips:cancel")
}

// over are the states that nothing comes of any more.
var over = []string{agent.ApprovalDenied, agent.ApprovalExpired, agent.ApprovalWithdrawn, agent.ApprovalSent, agent.ApprovalFailed}

// check holds the records to what the owner said and what came to the business.
func (m *approvalWalk) check() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != "" {
		return m.broken
	}
	list, err := m.a.Approvals(m.ctx, owner(), true)
	if err != nil {
		return err.Error()
	}
	pending := 0
	for _, v := range list {
		was, used := m.states[v.ID], m.used[v.ID]
		m.states[v.ID], m.digest[v.ID] = v.State, v.Digest
		if v.State == agent.ApprovalPending {
			pending++
		}
		switch {
		case used > 1:
			return fmt.Sprintf("%s was used %d times", v.ID, used)
		case used > 0 && v.State != agent.ApprovalSent:
			return fmt.Sprintf("%s was used, and is %s", v.ID, v.State)
		case (v.State == agent.ApprovalSent || v.State == agent.ApprovalApproved) && !m.yes[v.ID]:
			return fmt.Sprintf("%s is %s, and nobody said so", v.ID, v.State)
		case (v.State == agent.ApprovalSent || v.State == agent.ApprovalApproved) && m.no[v.ID]:
			return fmt.Sprintf("%s is %s, and was denied", v.ID, v.State)
		case slices.Contains(over, was) && v.State != was:
			return fmt.Sprintf("%s was %s and is %s", v.ID, was, v.State)
		case was == agent.ApprovalApproved && v.State == agent.ApprovalPending && m.yes[v.ID]: // unless it was taken back
			return fmt.Sprintf("%s was approved and is pending", v.ID)
		case v.State == agent.ApprovalSent != (v.SentMessage != ""):
			return fmt.Sprintf("%s is %s, sent as %q", v.ID, v.State, v.SentMessage)
		}
	}
	if pending > 20 {
		return fmt.Sprintf("%d are pending", pending)
	}
	return ""
}

// AP-1, AP-3, AP-6, CV-2, RS-1, RS-2, RS-3: in whatever order tasks ask, owners decide here,
// there and at once, sign in or leave, businesses answer, and programs stop and die between
// any two steps: a change goes out only as it was approved, once for each approval, and never
// after it was denied, withdrawn or over.
func TestApprovalWalk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		taken := rapid.SliceOfN(moves, 2, 9).Draw(rt, "moves")
		if rapid.IntRange(1, stride).Draw(rt, "of a stride") != stride { // they take long here
			return
		}
		broken := ""
		bubble.Test(t, func(t *testing.T) {
			m := newApprovalWalk(t)
			for i, s := range taken {
				if broken = m.take(s); broken != "" {
					broken = fmt.Sprintf("%v: move %d: %s", taken, i, broken)
					return
				}
			}
		})
		if broken != "" {
			rt.Fatal(broken)
		}
	})
}
