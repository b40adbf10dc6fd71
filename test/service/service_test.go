// Package service runs the personal agent as a service: built programs, real
// processes, sockets, terminals and signals.
package service

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("", "pact-service-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = filepath.Join(dir, "bin")
	if err := build(); err != nil { // not in the time of the first test
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if issuer.cmd != nil {
			_ = issuer.cmd.Process.Kill()
			_ = issuer.cmd.Wait()
		}
	}()
	return m.Run()
}

// programs is where the built ones are.
var programs string

// build makes them, as the tests are made.
func build() error {
	args := []string{"build"}
	if raced {
		args = append(args, "-race")
	}
	const module = "github.com/pactsigner/pactsigner/"
	out, err := exec.Command("go", append(args, "-o", programs+string(filepath.Separator), module+"cmd/signer", module+"cmd/pactctl")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, bytes.TrimSpace(out))
	}
	return nil
}

// program is a command of a built program. It has nothing of this process's
// environment but what is needed to run.
func program(ctx context.Context, home, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(programs, name), args...)
	cmd.Env = []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"), "TZ=UTC", "TERM=xterm", "PACT_KEYRING=off", "PACT_DEVELOPMENT=1",
		"GORACE=halt_on_error=1 atexit_sleep_ms=0",
	}
	return cmd
}

// issuer is the one signer of all tests.
var issuer struct {
	once sync.Once
	err  error
	cmd  *exec.Cmd

	URL   string `json:"public"`
	Admin string `json:"admin"`
	Token string `json:"adminTokenFile"`
}

// startSigner starts the signer, if it does not run yet.
func startSigner(t *testing.T) {
	t.Helper()
	issuer.once.Do(func() {
		const free = "127.0.0.1:0"
		home := filepath.Join(filepath.Dir(programs), "signer")
		cmd := program(context.Background(), home, "signer", "serve", "--data", home,
			"--public", free, "--grpc", free, "--admin", free, "--ops", free, "-o", "json", "--log-level", "error")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			issuer.err = err
			return
		}
		issuer.cmd = cmd
		line, err := bufio.NewReader(out).ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &issuer)
		}
		issuer.err = err
	})
	if issuer.err != nil {
		t.Fatal(issuer.err)
	}
}

// The permissions of the business.
const (
	mayRead   = "trips:read"
	mayCancel = "trips:cancel"
	mayPast   = "trips:history:read"
)

// timeScale divides the running agents' durations: a minute is six seconds.
const timeScale = 10

// patience is more than anything here takes.
const patience = 3 * time.Minute

// world is a business, and a person with an agent's profile that is enrolled at the
// signer.
type world struct {
	t       *testing.T
	home    string
	profile string
	box     *sandbox.Sandbox
	ready   sandbox.Ready
	card    string

	mu    sync.Mutex
	done  map[string]int    // turns with a permission that were carried out, by their text
	holds map[string]*pause // turns of this text stop at it
}

// pause holds turns up at the business.
type pause struct{ came, goOn chan struct{} }

// newHome is a person's who has nothing yet.
func newHome(t *testing.T) *world {
	t.Helper()
	home, err := os.MkdirTemp("", "pact") // the path of a socket must be short, and the test's name is long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	w := &world{t: t, home: home, done: map[string]int{}, holds: map[string]*pause{}}
	w.profile = filepath.Join(w.home, "agent")
	return w
}

func newWorld(t *testing.T) *world {
	t.Helper()
	startSigner(t)
	w := newHome(t)
	p := sandbox.Defaults()
	p.DeviceInterval = 10 * time.Millisecond
	p.DeviceLimit.Burst = 1000
	box, err := sandbox.New(sandbox.Config{PasswordMemory: 64, Params: p, Brands: []sandbox.Brand{{
		ID: "TRIPS", Name: "Trips", Description: "Trips.",
		Scopes: []sandbox.Scope{
			{ID: mayRead, Description: "View your trips"}, {ID: mayPast, Description: "View your past trips"},
			{ID: mayCancel, Description: "Cancel your trips"},
		},
		Respond: w.respond,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	w.box, w.ready = box, box.Ready()
	w.card = w.ready.Brands[0].Card
	w.faults()
	box.Start()
	t.Cleanup(func() { _ = box.Close() })
	w.here(func(a *agent.Agent) {
		if _, err := a.Enroll(t.Context(), w.owner(), agent.EnrollRequest{SignerURL: issuer.URL}); err != nil {
			t.Fatal(err)
		}
	})
	code, stdout, stderr := w.pactctl("audiences", "set", w.ready.Provider, w.ready.Audience, "--server", issuer.Admin, "--token-file", issuer.Token)
	if code != 0 {
		t.Fatalf("audiences set: exit %d\n%s%s", code, stdout, stderr)
	}
	return w
}

// faults are what the business does wrong from now on. Its sign-ins may always be
// polled at once.
func (w *world) faults(specs ...string) {
	w.t.Helper()
	if err := w.box.SetFaults(append(specs, "device-interval=0")...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) respond(ctx context.Context, turn sandbox.Turn) (sandbox.Reply, error) {
	w.mu.Lock()
	hold := w.holds[turn.Text]
	w.mu.Unlock()
	if hold != nil {
		hold.came <- struct{}{}
		<-hold.goOn
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if turn.User == "" {
		return sandbox.Reply{Text: "Hello."}, nil
	}
	w.done[turn.Text]++
	return sandbox.Reply{Text: "Done: " + turn.Text, Used: turn.Scopes[:1], Actions: []sandbox.Action{{Tool: "trips"}}}, nil
}

// hold has turns of a text wait at the business, until the test's end at the latest.
func (w *world) hold(text string) *pause {
	p := &pause{make(chan struct{}, 10), make(chan struct{})}
	w.mu.Lock()
	w.holds[text] = p
	w.mu.Unlock()
	w.t.Cleanup(p.release)
	return p
}

// comes waits until a turn is held.
func (p *pause) comes(t *testing.T) {
	t.Helper()
	select {
	case <-p.came:
	case <-time.After(patience):
		t.Fatal("the business is not asked")
	}
}

func (p *pause) release() {
	select {
	case <-p.goOn:
	default:
		close(p.goOn)
	}
}

// executed is how often the business did with a permission what a text asks for.
func (w *world) executed(text string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done[text]
}

// once fails the test unless the business carried a text out just once.
func (w *world) once(text string) {
	w.t.Helper()
	if n := w.executed(text); n != 1 {
		w.t.Errorf("the business carried %q out %d times, want once", text, n)
	}
}

// here does something with the profile in this process, as a program that does not
// know of running agents.
func (w *world) here(do func(*agent.Agent)) {
	w.t.Helper()
	if err := os.MkdirAll(w.profile, 0o700); err != nil {
		w.t.Fatal(err)
	}
	store, err := sqlite.Open(filepath.Join(w.profile, "agent.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	a, err := agent.Open(agent.Config{Dir: w.profile, Store: store, Key: agent.KeyFile, Scale: timeScale, Development: true})
	if err != nil {
		w.t.Fatal(err)
	}
	defer a.Close()
	do(a)
}

// owner is the profile's, at a command line where nobody is asked.
func (w *world) owner() agent.Caller {
	return agent.Caller{Principal: "owner", Origin: agent.OriginOwnerCLI, Human: agent.HumanNone}
}

// allows has the owner allow permissions, before there is anything that waits.
func (w *world) allows(scopes ...string) {
	w.t.Helper()
	w.here(func(a *agent.Agent) {
		c := w.owner()
		c.Human = agent.HumanInteractive
		c.SignIn = func(_ context.Context, s agent.SignIn) error { return w.signIn(s.Link.Reveal()) }
		r, err := a.Authorize(w.t.Context(), c, agent.AuthorizeRequest{Business: w.card, Scopes: scopes})
		if err != nil || r.Status != agent.StatusDone {
			w.t.Fatalf("allow %v: %+v, %v", scopes, r, err)
		}
	})
}

// signIn is the person in front of the business's pages.
func (w *world) signIn(link string) error {
	c, err := person.Person{Login: w.ready.Login}.AllowAll(w.t.Context(), link)
	if err == nil && !c.Approved {
		err = errors.New("the page does not say that it is allowed")
	}
	return err
}

// pactctl runs a command of the person's, off a terminal.
func (w *world) pactctl(args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	return w.pactctlWith(nil, args...)
}

func (w *world) pactctlWith(env []string, args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	cmd := program(ctx, w.home, "pactctl", args...)
	cmd.Env = append(append(cmd.Env, "PACT_PROFILE="+w.profile), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// does runs a command that must end with a code, and returns its JSON.
func (w *world) does(want int, args ...string) map[string]any {
	w.t.Helper()
	code, stdout, stderr := w.pactctl(append(args, "-o", "json")...)
	if code != want {
		w.t.Fatalf("pactctl %s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, stdout, stderr)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		w.t.Fatalf("pactctl %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return v
}

// output is what a process writes, for another goroutine to read.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

// serving is a running agent.
type serving struct {
	w      *world
	cmd    *exec.Cmd
	log    *output
	exited chan struct{}

	PID    int    `json:"pid"`
	Socket string `json:"socket"`
	Listen string `json:"listen"`
}

// serve starts an agent on the profile and returns once it is ready.
func (w *world) serve(args ...string) *serving {
	w.t.Helper()
	s := &serving{w: w, log: &output{}, exited: make(chan struct{})}
	s.cmd = program(context.Background(), w.home, "pactctl", append([]string{
		"agent", "serve", "--profile", w.profile, "--time-scale", fmt.Sprint(timeScale), "-o", "json",
	}, args...)...)
	s.cmd.Stderr = s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	line, err := lines.ReadBytes('\n')
	go func() {
		defer close(s.exited)
		_, _ = lines.WriteTo(s.log) // nothing more is expected there
		_ = s.cmd.Wait()            // how is in ProcessState
	}()
	if err == nil {
		err = json.Unmarshal(line, s)
	}
	if err != nil {
		s.kill()
		w.t.Fatalf("agent serve: %v: %s\n%s", err, line, s.log)
	}
	w.t.Cleanup(func() {
		s.kill()
		if w.t.Failed() {
			w.t.Logf("the agent's log:\n%s", s.log)
		}
		if strings.Contains(s.log.String(), "DATA RACE") {
			w.t.Errorf("the agent has a data race:\n%s", s.log)
		}
	})
	return s
}

// kill ends the process at once, as kill -9 does.
func (s *serving) kill() {
	_ = s.cmd.Process.Kill() // it may have ended before
	<-s.exited
}

// stop ends the process as a service manager does.
func (s *serving) stop() {
	s.w.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.w.t.Fatal(err)
	}
	select {
	case <-s.exited:
	case <-time.After(patience):
		_ = s.cmd.Process.Signal(syscall.SIGQUIT) // says where it hangs
		<-s.exited
		s.w.t.Fatalf("the agent does not stop:\n%s", s.log)
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		s.w.t.Errorf("the agent ended with %d:\n%s", code, s.log)
	}
}

// eventually asks every 20 ms until ok.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(patience)
	defer end.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end.C:
			w.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
