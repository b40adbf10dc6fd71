package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http/httptrace"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
)

// events counts the steps of a process, kills it at one, and writes reports.
type events struct {
	job   job
	steps atomic.Int64
	wrote atomic.Pointer[time.Time] // when the last transaction began
	in    *bufio.Reader

	mu sync.Mutex
}

func newEvents(j job) *events { return &events{job: j, in: bufio.NewReader(os.Stdin)} }

// step is a moment at which a process can die.
func (e *events) step() {
	if e.steps.Add(1) != e.job.KillAt {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (e *events) tell(r report) {
	r.At = time.Now()
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = os.Stdout.Write(append(line, '\n'))
}

// line waits for one on the process's input.
func (e *events) line() { _, _ = e.in.ReadString('\n') }

func readReports(out io.Reader, to chan<- report) {
	defer close(to)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r report
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			to <- r
		}
	}
}

// steppedStore is a store whose process can die before and after a transaction
// is committed.
type steppedStore struct {
	agent.Store
	e *events
}

func (s steppedStore) Update(ctx context.Context, fn func(agent.Tx) error) error {
	err := s.Store.Update(ctx, func(tx agent.Tx) error {
		now := time.Now()
		s.e.wrote.Store(&now)
		err := fn(tx)
		s.e.step()
		return err
	})
	s.e.step()
	return err
}

// quick is the real network, but for the polling interval of sign-ins: businesses
// say it in whole seconds, and these say the least (DA-3).
type quick struct{ *egress.Client }

func quickNetwork(rules agent.URLRules, policy egress.Policy) agent.Egress {
	return quick{egress.New(egress.Config{Rules: rules, Policy: policy})}
}

func (n quick) Do(ctx context.Context, req egress.Request) (egress.Response, error) {
	resp, err := n.Client.Do(ctx, req)
	if req.Purpose == egress.DeviceAuthorization {
		resp.Body = bytes.Replace(resp.Body, []byte(`"interval":1`), []byte(`"interval":0`), 1)
	}
	return resp, err
}

// steppedNetwork is a network whose process can die before a request, after it
// was written and after its answer.
type steppedNetwork struct {
	agent.Egress
	e *events
}

func (n steppedNetwork) Do(ctx context.Context, req egress.Request) (egress.Response, error) {
	e := n.e
	form, _ := url.ParseQuery(string(req.Body))
	event := ""
	switch {
	case req.Purpose == egress.DeviceAuthorization:
		event = "device"
	case req.Purpose == egress.Token && form.Get("grant_type") == "refresh_token":
		event = "refresh"
	case req.Purpose == egress.Token:
		event = "poll"
	}
	if event != "" {
		e.tell(report{Event: event, Wrote: *e.wrote.Load()})
		if e.job.HoldAt == event {
			e.line()
		}
	}
	e.step()
	if req.Method == "POST" {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { e.step() }})
	}
	resp, err := n.Egress.Do(ctx, req)
	e.step()
	return resp, err
}

// heard is a report and the process that wrote it.
type heard struct {
	by *process
	report
}

// hear merges the reports of processes; the last one of each is "gone".
func hear(t *testing.T, ps ...*process) func() heard {
	all := make(chan heard)
	for _, p := range ps {
		go func() {
			for r := range p.lines {
				select {
				case all <- heard{p, r}:
				case <-t.Context().Done():
					return
				}
			}
			select {
			case all <- heard{p, report{Event: "gone"}}:
			case <-t.Context().Done():
			}
		}()
	}
	return func() heard {
		t.Helper()
		select {
		case h := <-all:
			return h
		case <-time.After(2 * time.Minute):
			t.Fatal("the processes say nothing more")
			panic("not reached")
		}
	}
}

func (p *process) goOn() {
	p.t.Helper()
	if _, err := p.in.Write([]byte("\n")); err != nil {
		p.t.Fatal(err)
	}
}

// both starts a job in two processes, which begin at the same time.
func (m *market) both(j job) (next func() heard) {
	m.t.Helper()
	j.Held = true
	ps := []*process{m.start(j), m.start(j)}
	for _, p := range ps {
		if r := <-p.lines; r.Event != "ready" {
			m.t.Fatalf("a process is not ready: %+v %s", r, p.errs.String())
		}
	}
	for _, p := range ps {
		p.goOn()
	}
	return hear(m.t, ps...)
}

// oneAt waits until one of the processes is held at an event, and sees to it that
// no other comes to anything meanwhile. The reports after that are rest's.
func oneAt(t *testing.T, event string, next func() heard) (first heard, rest func() heard) {
	t.Helper()
	if first = next(); first.Event != event {
		t.Fatalf("%+v", first.report)
	}
	other := make(chan heard, 1)
	go func() { other <- next() }()
	select {
	case h := <-other:
		t.Fatalf("while one is at its %s: %+v", event, h.report)
	case <-time.After(300 * time.Millisecond): // they wait
	}
	early := true
	return first, func() heard {
		if early {
			early = false
			return <-other
		}
		return next()
	}
}

// newProfile is an enrolled profile and its open agent.
func (m *market) newProfile() (string, *agent.Agent) {
	m.t.Helper()
	dir := filepath.Join(m.t.TempDir(), "profile")
	if err := os.Mkdir(dir, 0o700); err != nil {
		m.t.Fatal(err)
	}
	m.profile(dir)
	a, done := m.open(dir)
	m.t.Cleanup(done)
	return dir, a
}

// CV-3: ten sends in one conversation, by two processes at once: one turn, and
// nine are told that it is busy.
func TestProcessesShareAConversation(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	dir, a := m.newProfile()
	first, err := a.Send(t.Context(), owner(), agent.SendRequest{Business: m.card, Message: "Show my trips"})
	if err != nil || first.Status != agent.StatusReplied {
		t.Fatalf("%+v, %v", first, err)
	}
	const text = "Show the list"
	hold := m.pause(text)
	release := sync.OnceFunc(func() { close(hold.goOn) })
	t.Cleanup(release)
	next := m.both(job{Do: "send", Dir: dir, Text: text, Conversation: first.Conversation, Times: 5})
	ended := func() heard {
		for {
			if h := next(); h.Event == "ended" {
				return h
			}
		}
	}
	for range 9 {
		if r := ended(); r.Status != agent.StatusBlocked || r.Reason != agent.ReasonBusy {
			t.Errorf("while one turn is under way: %+v", r.report)
		}
	}
	release()
	if r := ended(); r.Status != agent.StatusReplied {
		t.Errorf("the one turn: %+v", r.report)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.turns[text] != 1 {
		t.Errorf("the business got %d turns", m.turns[text])
	}
}

// DA-4, RS-3: of two processes that wait for one sign-in one polls, at its
// interval, and the other watches. When the first is killed, the other takes over
// at once and not when the lease ends.
func TestProcessesShareASignIn(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	dir, a := m.newProfile()
	begun, err := a.Authorize(t.Context(), owner(), agent.AuthorizeRequest{Business: m.card, Scopes: []string{mayRead}})
	if err != nil || begun.Reason != agent.ReasonSignInPending {
		t.Fatalf("%+v, %v", begun, err)
	}
	next := m.both(job{Do: "wait", Dir: dir, Authorization: begun.Authorization.ID})
	var polls []heard
	var watching *process
	for len(polls) < 3 || watching == nil {
		switch h := next(); h.Event {
		case "poll":
			if polls = append(polls, h); h.by != polls[0].by {
				t.Fatal("both poll")
			}
		case "elsewhere":
			watching = h.by
		case "ended":
			t.Fatalf("a wait ended: %+v", h.report)
		}
	}
	poller := polls[0].by
	if watching == poller {
		t.Fatal("who polls is told that another does")
	}
	if err := poller.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = poller.cmd.Wait()
	killed := time.Now()
	m.signsInAt(a, begun.Authorization.ID)
	for {
		h := next()
		if h.Event == "poll" {
			polls = append(polls, h)
		}
		if h.Event == "ended" {
			if h.by != watching || h.Status != agent.StatusDone || h.At.Sub(killed) > agent.Defaults().PollLease/2 {
				t.Errorf("the one who took over, after %v: %+v", h.At.Sub(killed), h.report)
			}
			break
		}
	}
	m.atIntervals(polls)
}

// signsInAt signs in at the business with the link that the owner's surface shows.
func (m *market) signsInAt(a *agent.Agent, id string) {
	m.t.Helper()
	s, err := a.ShowSignIn(m.t.Context(), owner(), id)
	if err == nil {
		err = signsIn(m.ready.Login).SignIn(m.t.Context(), s)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// atIntervals holds polls, whoever made them and whoever was heard first, to the
// sign-in's interval. Of a process that was killed in the middle of a poll the next one
// knows what it wrote down just before that.
func (m *market) atIntervals(polls []heard) {
	m.t.Helper()
	polls = slices.SortedFunc(slices.Values(polls), func(a, b heard) int { return a.At.Compare(b.At) })
	for i := 1; i < len(polls); i++ {
		from := polls[i-1].At
		if polls[i].by != polls[i-1].by {
			from = polls[i-1].Wrote
		}
		if d := polls[i].At.Sub(from); d < m.params.PollMin-5*time.Millisecond {
			m.t.Errorf("two polls within %v", d)
		}
	}
}

// RS-3, RS-4, DA-4, DA-17: a sign-in outlives whoever polls it. A process that tends
// is killed and another goes on; an owner's terminal that waits for it is closed,
// and nothing changes; it is granted when the owner has signed in.
func TestProcessesTendASignIn(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	dir, a := m.newProfile()
	tend := job{Do: "tend", Dir: dir}
	first := m.start(tend)
	begun, err := a.Authorize(t.Context(), owner(), agent.AuthorizeRequest{Business: m.card, Scopes: []string{mayRead}})
	if err != nil || begun.Reason != agent.ReasonSignInPending {
		t.Fatalf("%+v, %v", begun, err)
	}
	terminal := m.start(job{Do: "wait", Dir: dir, Authorization: begun.Authorization.ID})
	second := m.start(tend)
	next := hear(t, first, terminal, second)
	var polls []heard
	poll := func(by *process, n int) {
		t.Helper()
		for n > 0 {
			h := next()
			switch {
			case h.Event == "ended":
				t.Fatalf("a wait ended: %+v", h.report)
			case h.Event == "poll":
				polls = append(polls, h)
				if by == nil || h.by == by {
					n--
				}
			}
		}
	}
	kill := func(p *process) {
		t.Helper()
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = p.cmd.Wait()
	}
	poll(nil, 2)
	kill(terminal) // whether it polls or watches
	poll(nil, 2)
	kill(first)
	poll(second, 2)
	second.goOn() // it ends in order
	for h := next(); h.Event != "ended"; h = next() {
		if h.Event == "poll" {
			polls = append(polls, h)
		}
	}
	v, err := a.Authorization(t.Context(), owner(), begun.Authorization.ID)
	if err != nil || v.State != "pending" {
		t.Fatalf("%+v, %v", v, err)
	}
	m.signsInAt(a, v.ID)
	next = hear(t, m.start(tend))
	r, err := a.AwaitAuthorization(t.Context(), owner(), v.ID)
	if err != nil || r.Status != agent.StatusDone || r.Grant == nil {
		t.Errorf("%+v, %v", r, err)
	}
	polls = append(polls, next())
	m.atIntervals(polls)
	if list, err := a.Authorizations(t.Context(), owner()); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// GR-5: two processes, four sends each, and a token with 30 s left: one refresh,
// and all of them use what it brought.
func TestProcessesShareARefresh(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	m.params.RefreshAt = agent.Defaults().RefreshAt
	dir, a := m.newProfile()
	if r, err := a.Authorize(t.Context(), signsIn(m.ready.Login), agent.AuthorizeRequest{Business: m.card, Scopes: []string{mayRead}}); err != nil || r.Status != agent.StatusDone {
		t.Fatalf("%+v, %v", r, err)
	}
	edit(t, dir, `UPDATE grants SET data = CAST(json_set(CAST(data AS TEXT), '$.TokenExpires', ?) AS BLOB)`, time.Now().Add(30*time.Second).UTC().Format(time.RFC3339Nano))
	next := m.both(job{Do: "send", Dir: dir, Text: "Show my trips", Scopes: []string{mayRead}, Times: 4, HoldAt: "refresh"})
	first, rest := oneAt(t, "refresh", next)
	first.by.goOn()
	refreshes := 1
	for gone := 0; gone < 2; {
		switch h := rest(); h.Event {
		case "gone":
			gone++
		case "refresh":
			refreshes++
		case "ended":
			if h.Status != agent.StatusReplied {
				t.Errorf("a send: %+v", h.report)
			}
		}
	}
	if n := m.executed("Show my trips"); refreshes != 1 || n != 8 {
		t.Errorf("%d refreshes, %d turns", refreshes, n)
	}
}

// DA-4, DA-13: two processes that ask for the same permissions at once ask the
// business for one code, and the owner sees one sign-in.
func TestProcessesStartOneSignIn(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	dir, a := m.newProfile()
	if _, err := a.Discover(t.Context(), owner(), agent.ParseBusiness(m.card)); err != nil {
		t.Fatal(err)
	}
	next := m.both(job{Do: "authorize", Dir: dir, Scopes: []string{mayRead}, HoldAt: "device"})
	first, rest := oneAt(t, "device", next)
	if list, err := a.Authorizations(t.Context(), owner()); err != nil || len(list) != 0 {
		t.Errorf("before there is a code: %+v, %v", list, err)
	}
	first.by.goOn()
	shown := map[string]bool{}
	for h := rest(); ; h = rest() {
		switch h.Event {
		case "device":
			t.Error("a second code was asked for")
		case "shown":
			shown[h.What] = true
		}
		if h.Event == "elsewhere" { // the other polls
			break
		}
		if h.Event == "ended" {
			t.Fatalf("%+v", h.report)
		}
	}
	if list, err := a.Authorizations(t.Context(), owner()); err != nil || len(list) != 1 || len(shown) != 1 || !shown[list[0].ID] {
		t.Errorf("shown %v of %+v, %v", shown, list, err)
	}
}

// DA-4, RS-3: the start of a sign-in whose process is killed holds nobody up.
func TestAKilledStartHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	m := newMarket(t, nil)
	dir, a := m.newProfile()
	p := m.start(job{Do: "authorize", Dir: dir, Scopes: []string{mayRead}, HoldAt: "device"})
	if h := hear(t, p)(); h.Event != "device" {
		t.Fatalf("%+v", h.report)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
	began := time.Now()
	r, err := a.Authorize(t.Context(), signsIn(m.ready.Login), agent.AuthorizeRequest{Business: m.card, Scopes: []string{mayRead}})
	if took := time.Since(began); err != nil || r.Status != agent.StatusDone || took > agent.Defaults().PollLease/2 {
		t.Errorf("after %v: %+v, %v", took, r, err)
	}
	if list, err := a.Authorizations(t.Context(), owner()); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}
