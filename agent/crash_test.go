package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// market is what the processes under test talk to, over real sockets: a signer,
// and a business that counts what it carries out.
type market struct {
	t      *testing.T
	signer string
	ready  sandbox.Ready
	card   string
	params agent.Params

	mu    sync.Mutex
	done  map[string]int    // delegated turns carried out, by their text
	hold  map[string]*pause // turns of this text stop at it
	turns map[string]int    // all that came, by their text
}

// The permissions of the market's business.
const (
	mayRead   = "trips:read"
	mayCancel = "trips:cancel"
)

func newMarket(t *testing.T, change func(*sandbox.Params)) *market {
	m := &market{t: t, done: map[string]int{}, hold: map[string]*pause{}, turns: map[string]int{}}
	signer := newSigner(t)
	pa := httptest.NewServer(signer)
	t.Cleanup(pa.Close)
	signer.url, signer.issuer, signer.audiences = pa.URL, pa.URL, nil
	m.signer = pa.URL

	// The waits are short, and what things live is not: nothing here ends by its time, or
	// by a lease's, however busy the machine is.
	full := agent.Defaults()
	m.params = full.Scaled(30)
	m.params.TurnLease, m.params.PollLease, m.params.RefreshLease = full.TurnLease, 10*full.PollLease, full.RefreshLease
	m.params.ConsentMax, m.params.ApprovalLife = full.ConsentMax, full.ApprovalLife
	m.params.NoReplyWaits = append(m.params.NoReplyWaits, time.Minute)
	m.params.RefreshCheck = 10 * time.Millisecond

	p := sandbox.Defaults()
	p.DeviceInterval = 10 * time.Millisecond
	p.DeviceLimit.Burst = 1000
	if change != nil {
		change(&p)
	}
	box, err := sandbox.New(sandbox.Config{PasswordMemory: 64, Params: p, Brands: []sandbox.Brand{{
		ID: "TRIPS", Name: "Trips", Description: "Trips.",
		Scopes:  []sandbox.Scope{{ID: mayRead, Description: "View your trips"}, {ID: mayCancel, Description: "Cancel your trips"}},
		Respond: m.respond,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	box.Start()
	t.Cleanup(func() { _ = box.Close() })
	m.ready = box.Ready()
	m.card = m.ready.Brands[0].Card
	return m
}

// pause holds turns up at the business.
type pause struct{ came, goOn chan struct{} }

func (m *market) pause(text string) *pause {
	p := &pause{make(chan struct{}, 10), make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hold[text] = p
	return p
}

func (m *market) respond(ctx context.Context, turn sandbox.Turn) (sandbox.Reply, error) {
	m.mu.Lock()
	m.turns[turn.Text]++
	hold := m.hold[turn.Text]
	m.mu.Unlock()
	if hold != nil {
		hold.came <- struct{}{}
		<-hold.goOn
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if turn.User == "" {
		return sandbox.Reply{Text: "Hello."}, nil
	}
	m.done[turn.Text]++
	return sandbox.Reply{Text: "Done: " + turn.Text, Used: turn.Scopes[:1], Actions: []sandbox.Action{{Tool: "trips"}}}, nil
}

func (m *market) executed(text string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.done[text]
}

// profile makes an enrolled profile's folder.
func (m *market) profile(dir string) {
	m.t.Helper()
	a, done := m.open(dir)
	defer done()
	if _, err := a.Enroll(m.t.Context(), owner(), agent.EnrollRequest{SignerURL: m.signer}); err != nil {
		m.t.Fatal(err)
	}
	if _, err := a.AddProvider(m.t.Context(), owner(), m.ready.Provider, m.ready.Audience, "market"); err != nil {
		m.t.Fatal(err)
	}
}

// copyProfile copies a profile that nobody has open.
func copyProfile(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.IsDir() { // of locks
			continue
		}
		data, err := os.ReadFile(filepath.Join(from, f.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, f.Name()), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (m *market) open(dir string) (*agent.Agent, func()) {
	a, done, err := openProfile(dir, m.params, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return a, done
}

func openProfile(dir string, params agent.Params, e *events) (*agent.Agent, func(), error) {
	store, err := sqlite.Open(filepath.Join(dir, "agent.db"))
	if err != nil {
		return nil, nil, err
	}
	cfg := agent.Config{Dir: dir, Store: store, Key: agent.KeyFile, Params: params, Network: quickNetwork}
	if e != nil {
		cfg.Store = steppedStore{store, e}
		cfg.Network = func(rules agent.URLRules, policy egress.Policy) agent.Egress {
			return steppedNetwork{quickNetwork(rules, policy), e}
		}
	}
	a, err := agent.Open(cfg)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return a, func() { a.Close(); _ = store.Close() }, nil
}

// person is the owner at a terminal, who agrees to everything.
func signsIn(login person.Login) agent.Caller {
	c := owner()
	c.Human = agent.HumanInteractive
	c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { return true, nil }
	c.SignIn = func(ctx context.Context, s agent.SignIn) error {
		// A link that was used is no reason to stop: what counts is what polling brings.
		if _, err := (person.Person{Login: login}).AllowAll(ctx, s.Link.Reveal()); err != nil && !errors.Is(err, person.ErrPage) {
			return err
		}
		return nil
	}
	return c
}

// edit changes a profile's database behind its agents' backs.
func edit(t *testing.T, dir, statement string, args ...any) {
	t.Helper()
	db, err := openDatabase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement, args...); err != nil {
		t.Fatal(err)
	}
}

// secrets counts the secrets of sign-ins and of grants in a profile.
func secrets(t *testing.T, dir string) (signIns, grants int) {
	t.Helper()
	db, err := openDatabase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.QueryRow(`SELECT count(*) FILTER (WHERE id LIKE 'signin-%'), count(*) FILTER (WHERE id LIKE 'grant-%') FROM secrets`).Scan(&signIns, &grants)
	if err != nil {
		t.Fatal(err)
	}
	return signIns, grants
}

// walk runs a job in processes that kill themselves at their first, second …
// step, until one lives to its end, and looks at what each of them left: look
// goes on from there as the owner would. before makes the profile what the job needs.
func (m *market) walk(j job, before, look func(c *crashed)) {
	t := m.t
	root := t.TempDir()
	template := filepath.Join(root, "template")
	if err := os.Mkdir(template, 0o700); err != nil {
		t.Fatal(err)
	}
	m.profile(template)
	var next, ended atomic.Int64
	var mu sync.Mutex
	met := map[string]bool{}
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for ended.Load() == 0 && !t.Failed() {
				n := 1 + (next.Add(1)-1)*stride
				c := &crashed{market: m, t: t, n: n, text: fmt.Sprintf("Cancel booking X%d", n), dir: filepath.Join(root, fmt.Sprint(n)), met: map[string]bool{}}
				copyProfile(t, template, c.dir)
				if before != nil {
					before(c)
				}
				own := j
				own.Dir, own.Text, own.KillAt = c.dir, c.text, n
				p := m.start(own)
				killed := p.wait()
				if !killed {
					ended.Store(n)
					c.ended = true
				}
				c.agent, c.close = m.open(c.dir)
				look(c)
				c.close()
				mu.Lock()
				for k := range c.met {
					met[k] = true
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	t.Logf("%d steps", ended.Load()-1)
	for _, want := range j.meets {
		if !met[want] && stride == 1 {
			t.Errorf("no crash left %q; they left %v", want, met)
		}
	}
}

// crashed is what a killed process left.
type crashed struct {
	*market
	t     *testing.T
	n     int64
	text  string // of its change
	dir   string
	ended bool // it was not killed
	asked bool // its change waits for an approval, which outlives who asked
	agent *agent.Agent
	close func()
	met   map[string]bool
}

func (c *crashed) errorf(format string, args ...any) {
	c.t.Helper()
	c.t.Errorf("step %d: %s", c.n, fmt.Sprintf(format, args...))
}

// settled checks that the profile is as the rules want it at once, though no
// lease's time is over, and returns the journal's message of the change, if there is one.
func (c *crashed) settled() (change *agent.MessageView) {
	ctx := context.Background()
	list, err := c.agent.Conversations(ctx, owner())
	if err != nil {
		c.errorf("%v", err)
	}
	for _, v := range list {
		v, err := c.agent.Conversation(ctx, owner(), v.ID)
		if err != nil {
			c.errorf("%v", err)
		}
		if v.State == "sending" || v.State == "awaiting_local_authority" && !c.asked || v.State == "discovered" {
			c.errorf("the conversation is still %s", v.State)
		}
		for _, m := range v.Messages {
			kind := "change"
			if m.Introduction {
				kind = "introduction"
			}
			c.met[strings.TrimSpace(kind+" "+m.State+" "+m.Reason)] = true
			switch got := m.State + " " + m.Reason; got {
			case "replied ", "outcome_unknown interrupted_during_send", "cancelled never_sent": // CV-1, RS-1, RS-2
			default:
				c.errorf("%s is %s", kind, got)
			}
			if !m.Introduction {
				if change != nil {
					c.errorf("two messages of one change")
				}
				change = &m
			}
		}
	}
	pending := 0
	signIns, err := c.agent.Authorizations(ctx, owner())
	if err != nil {
		c.errorf("%v", err)
	}
	for _, z := range signIns {
		c.met["sign-in "+z.State] = true
		switch z.State {
		case "pending":
			pending++
		case "granted":
		default:
			c.errorf("the sign-in is %s %s", z.State, z.Reason)
		}
	}
	codes, tokens := secrets(c.t, c.dir)
	if codes != pending || pending > 1 { // DA-10, DA-17
		c.errorf("%d sign-ins are pending, and codes of %d are kept", pending, codes)
	}
	active := 0
	grants, err := c.agent.Grants(ctx, owner())
	if err != nil {
		c.errorf("%v", err)
	}
	for _, g := range grants {
		c.met["grant "+g.State] = true
		if g.State == "active" {
			active++
		}
	}
	if tokens != active { // GR-10
		c.errorf("%d grants are active, and tokens of %d are kept", active, tokens)
	}
	return change
}

// finish has the change carried out, as an owner who looks first would.
func (c *crashed) finish(change *agent.MessageView, scopes ...string) {
	ctx, who := context.Background(), signsIn(c.ready.Login)
	if n := c.executed(c.text); n > 0 && (change == nil || change.State == "cancelled") {
		c.errorf("carried out, and the journal says %+v", change)
	}
	send := func(text string) agent.Result {
		r, err := c.agent.Send(ctx, who, agent.SendRequest{Business: c.card, Message: text, Effect: "change", Scopes: scopes})
		if err != nil {
			c.errorf("send: %v", err)
		}
		return r
	}
	switch {
	case change != nil && change.State == "outcome_unknown":
		other := "Cancel booking Y" + fmt.Sprint(c.n)
		if r := send(other); r.Status != agent.StatusBlocked || r.Reason != agent.ReasonUnresolved || c.executed(other) != 0 { // CV-4
			c.errorf("a second change: %+v", r)
		}
		r, err := c.agent.Reconcile(ctx, who, agent.ReconcileRequest{Business: c.card})
		if err != nil || r.Status != agent.StatusReplied || r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
			c.errorf("reconcile: %+v, %v", r, err)
		}
	case change != nil && change.State == "replied":
		if change.Evidence.Verdict != agent.VerdictVerified { // it was not judged yet
			v, err := c.agent.VerifyStoredReceipt(ctx, owner(), change.Evidence.Receipt)
			if err != nil || v.Verdict != agent.VerdictVerified {
				c.errorf("its receipt: %+v, %v", v, err)
			}
		}
	default: // nothing ran
		// A sign-in or a refresh whose answer was lost can be spent: then the owner signs
		// in anew.
		var r agent.Result
		for range 3 {
			if r = send(c.text); r.Status == agent.StatusReplied {
				break
			}
			c.met["then "+r.Reason] = true
		}
		if r.Status != agent.StatusReplied || r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
			c.errorf("sent anew: %+v", r)
		}
	}
	if n := c.executed(c.text); n != 1 {
		c.errorf("carried out %d times", n)
	}
	if n, _ := secrets(c.t, c.dir); n != 0 {
		c.errorf("codes of %d sign-ins are left", n)
	}
}

// RS-1, RS-2, RS-3, CV-2, CV-4, CV-12, CV-14, DA-10, DA-17, GR-10: a process
// that introduces itself, gets consent and sends a change is killed at each of its
// steps. What it left is settled when the next one starts, and the business
// carries the change out once.
func TestKilledAtEveryStepOfAChange(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	m.walk(job{Do: "send", Scopes: []string{mayCancel}, meets: []string{
		"introduction cancelled never_sent", "introduction outcome_unknown interrupted_during_send", "introduction replied",
		"change cancelled never_sent", "change outcome_unknown interrupted_during_send", "change replied",
		"sign-in pending", "sign-in granted", "grant active",
	}}, nil, func(c *crashed) {
		change := c.settled()
		if c.ended && (change == nil || change.State != "replied") {
			c.errorf("the last one ended with %+v", change)
		}
		c.finish(change, mayCancel)
	})
}

// DA-10, DA-17, GR-10, RS-4: killed at each step of a sign-in, it is pending and
// can be resumed, or the grant is there; never are there two, nor codes of one
// that ended.
func TestKilledAtEveryStepOfASignIn(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	m.walk(job{Do: "authorize", Scopes: []string{mayRead}, meets: []string{"sign-in pending", "sign-in granted", "grant active", "resumed", "spent"}}, nil, func(c *crashed) {
		ctx, who := context.Background(), signsIn(c.ready.Login)
		c.settled()
		if c.ended && !c.met["grant active"] {
			c.errorf("the last one left %v", c.met)
		}
		signIns, _ := c.agent.Authorizations(ctx, owner())
		resumed := false
		for _, z := range signIns {
			if z.State != "pending" {
				continue
			}
			r, err := c.agent.WaitAuthorization(ctx, who, z.ID)
			switch {
			case err == nil && r.Status == agent.StatusDone:
				resumed = true
				c.met["resumed"] = true
			case err == nil && r.Reason == agent.ReasonConsentRejected: // what it brought was lost
				c.met["spent"] = true
			default:
				c.errorf("resumed: %+v, %v", r, err)
			}
		}
		r, err := c.agent.Authorize(ctx, who, agent.AuthorizeRequest{Business: c.card, Scopes: []string{mayRead}})
		if err != nil || r.Status != agent.StatusDone || resumed && r.Authorization != nil {
			c.errorf("in the end: %+v, %v", r, err)
		}
		if grants, err := c.agent.Grants(ctx, owner()); err != nil || len(grants) != 1 || grants[0].State != "active" {
			c.errorf("grants %+v, %v", grants, err)
		}
		if n, _ := secrets(c.t, c.dir); n != 0 {
			c.errorf("codes of %d sign-ins are left", n)
		}
	})
}

// RS-1, RS-2, GR-5, GR-6, GR-10: killed at each step of a change that is sent
// with a refreshed token.
func TestKilledAtEveryStepOfARefresh(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	m.params.RefreshAt = 24 * time.Hour // each attempt refreshes
	m.walk(job{Do: "send", Scopes: []string{mayCancel}, meets: []string{
		"change cancelled never_sent", "change outcome_unknown interrupted_during_send", "change replied", "grant active",
		"then " + agent.ReasonReconnect, // the refresh token was spent, and what it brought is lost
	}}, func(c *crashed) {
		a, done := m.open(c.dir)
		defer done()
		r, err := a.Authorize(context.Background(), signsIn(m.ready.Login), agent.AuthorizeRequest{Business: m.card, Scopes: []string{mayCancel}})
		if err != nil || r.Status != agent.StatusDone {
			c.errorf("authorize: %+v, %v", r, err)
		}
	}, func(c *crashed) {
		c.finish(c.settled(), mayCancel)
	})
}

// RS-1, CV-12, CV-14, CV-15: killed at each step of asking what became of a
// change, which the business did carry out: until its reply is known it stays of
// unknown outcome, and it is never carried out again.
func TestKilledAtEveryStepOfAReconcile(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	m.walk(job{Do: "reconcile", meets: []string{"change outcome_unknown interrupted_during_send", "change replied"}}, func(c *crashed) {
		hold := m.pause(c.text)
		p := m.start(job{Do: "send", Dir: c.dir, Text: c.text, Scopes: []string{mayCancel}})
		<-hold.came // the business is at it
		if err := p.cmd.Process.Kill(); err != nil {
			c.errorf("%v", err)
		}
		p.wait()
		close(hold.goOn)
	}, func(c *crashed) {
		change := c.settled()
		if change == nil || c.ended && change.State != "replied" {
			c.errorf("it left %+v", change)
		}
		c.finish(change, mayCancel)
	})
}

// AP-1, AP-3, CV-2, RS-1, RS-2, RS-3: killed at each step of what the owner approved by its
// record, from their word to the business's reply: it is pending, approved or sent when the
// next program starts, the owner can go on with what was not sent, and it is carried out once.
func TestKilledAtEveryStepOfAnApproval(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	ctx := context.Background()
	m.walk(job{Do: "decide", meets: []string{
		"approval pending", "approval approved", "approval sent",
		"change cancelled never_sent", "change outcome_unknown interrupted_during_send", "change replied",
	}}, func(c *crashed) {
		a, done := m.open(c.dir)
		defer done()
		r, err := a.Send(ctx, inAssistant("a"), agent.SendRequest{Business: m.card, Message: c.text, Effect: "change", Scopes: []string{mayCancel}})
		if err != nil || r.Status != agent.StatusApprovalRequired {
			c.errorf("ask: %+v, %v", r, err)
		}
		c.asked = true
	}, func(c *crashed) {
		change := c.settled()
		all, err := c.agent.Approvals(ctx, owner(), true)
		if err != nil || len(all) != 1 {
			c.errorf("approvals %+v, %v", all, err)
			return
		}
		p := all[0]
		c.met["approval "+p.State] = true
		sent := change != nil && change.State != "cancelled"
		switch {
		case sent != (p.State == agent.ApprovalSent), c.executed(c.text) > 0 && !sent, c.ended && !sent, sent && p.SentMessage != change.ID:
			c.errorf("the approval is %s, and the message %+v", p.State, change)
		case !sent:
			r, err := c.agent.Decide(ctx, signsIn(c.ready.Login), agent.Decision{ID: p.ID, Approve: true, Digest: p.Digest})
			if err == nil && r.Status == agent.StatusReplied {
				return
			}
			if err != nil || r.Approval == nil || r.Approval.State != agent.ApprovalFailed || r.Reason != agent.ReasonConsentRejected {
				c.errorf("gone on with: %+v, %v", r, err)
			}
			change = nil // what the sign-in brought was lost: it is asked for anew
		}
		c.finish(change, mayCancel)
	})
}

// The rest is what runs in the other processes.

// beAgent makes the test's own binary an agent: it is built once, and with the
// race detector if the tests are.
const beAgent = "AGENT_TEST_JOB"

func TestMain(m *testing.M) {
	if spec := os.Getenv(beAgent); spec != "" {
		if err := work(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// job is what a process does.
type job struct {
	Dir           string
	Do            string // send, reconcile, decide (the newest approval), authorize, wait, or tend until a line comes
	Business      string
	Text          string
	Scopes        []string
	Conversation  string
	Authorization string
	Times         int    // at once; 0 is 1
	Held          bool   // it waits for a line on its input before it begins
	HoldAt        string // and at each request of this kind: device, refresh or poll

	KillAt int64 // its own step
	Params agent.Params
	Login  struct{ Email, Password string }

	meets []string // what its crashes must leave, at one step or another
}

// report is a line that a process writes.
type report struct {
	Event  string // ready, ended, or a step that tests count
	Status agent.Status
	Reason agent.Reason
	What   string
	At     time.Time
	Wrote  time.Time // when the process last wrote something down, of a request
}

func work(spec string) error {
	var j job
	if err := json.Unmarshal([]byte(spec), &j); err != nil {
		return err
	}
	e := newEvents(j)
	a, done, err := openProfile(j.Dir, j.Params, e)
	if err != nil {
		return err
	}
	defer done()
	if j.Held {
		e.tell(report{Event: "ready"})
		e.line()
	}
	ctx, who := context.Background(), signsIn(person.Login{Email: j.Login.Email, Password: j.Login.Password})
	signIn := who.SignIn
	who.SignIn = func(ctx context.Context, s agent.SignIn) error {
		e.tell(report{Event: "shown", What: s.Authorization})
		if j.Login.Email == "" {
			return nil
		}
		return signIn(ctx, s)
	}
	who.Progress = func(ev agent.Event) {
		if ev.Kind == agent.EventElsewhere {
			e.tell(report{Event: "elsewhere"})
		}
	}
	var all sync.WaitGroup
	for range max(j.Times, 1) {
		all.Go(func() {
			var r agent.Result
			var err error
			switch j.Do {
			case "send":
				effect := "inspect"
				if strings.HasPrefix(j.Text, "Cancel") {
					effect = "change"
				}
				r, err = a.Send(ctx, who, agent.SendRequest{Business: j.Business, Message: j.Text, Effect: effect, Scopes: j.Scopes, Conversation: j.Conversation})
			case "reconcile":
				r, err = a.Reconcile(ctx, who, agent.ReconcileRequest{Business: j.Business})
			case "decide":
				var all []agent.ApprovalView
				if all, err = a.Approvals(ctx, who, true); err == nil {
					r, err = a.Decide(ctx, who, agent.Decision{ID: all[0].ID, Approve: true, Digest: all[0].Digest})
				}
			case "authorize":
				r, err = a.Authorize(ctx, who, agent.AuthorizeRequest{Business: j.Business, Scopes: j.Scopes})
			case "wait":
				r, err = a.WaitAuthorization(ctx, who, j.Authorization)
			case "tend":
				ctx, stop := context.WithCancel(ctx)
				go func() { e.line(); stop() }()
				err = a.Tend(ctx, agent.Tending{Caller: owner()})
			}
			if err != nil {
				r.Detail = err.Error()
			}
			e.tell(report{Event: "ended", Status: r.Status, Reason: r.Reason, What: r.Detail})
		})
	}
	all.Wait()
	return nil
}

// process is a process that works.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    interface{ Write([]byte) (int, error) }
	lines chan report
	errs  bytes.Buffer
}

func (m *market) start(j job) *process {
	m.t.Helper()
	if j.Business == "" {
		j.Business = m.card
	}
	if j.Params.TurnLease == 0 {
		j.Params = m.params
	}
	if j.Login.Email == "" && j.HoldAt != "device" && j.Do != "wait" && j.Do != "tend" {
		j.Login.Email, j.Login.Password = m.ready.Login.Email, m.ready.Login.Password
	}
	self, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	p := &process{t: m.t, cmd: exec.Command(self), lines: make(chan report, 10000)}
	spec, err := json.Marshal(j)
	if err != nil {
		m.t.Fatal(err)
	}
	p.cmd.Env = append(os.Environ(), beAgent+"="+string(spec))
	p.cmd.Stderr = &p.errs
	in, err := p.cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	p.in = in
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	go readReports(out, p.lines)
	return p
}

// wait waits for the process's end and tells whether it was killed.
func (p *process) wait() (killed bool) {
	for range p.lines { // until its output is closed
	}
	err := p.cmd.Wait()
	if err == nil {
		return false
	}
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() && s.Signal() == syscall.SIGKILL {
		return true
	}
	p.t.Errorf("the process: %v\n%s", err, p.errs.String())
	return false
}
