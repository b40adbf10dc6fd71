package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// demoScale divides every duration of signer, business and agent: a minute takes
// a second.
const demoScale = 60

// The demo's own durations, which are real time.
const (
	demoStepLimit = 30 * time.Second // of a step that waits for no person
	demoStopLimit = 5 * time.Second  // of the signer's graceful stop
	demoPause     = 100 * time.Millisecond
)

// newDemoCmd shows the whole of the product at work, and proves each step.
func newDemoCmd(a *app) *cobra.Command {
	d := newDemo(a)
	verbose := false
	cmd := &cobra.Command{
		Use:     "demo",
		GroupID: groupTools,
		Short:   "Prove the whole product on this machine, in seconds",
		Long: `Start an embedded signer and a sandbox business on free loopback ports, and do
with a throw-away personal agent what the three are for, over real sockets:
enrol, register, discover, consent, inspect, step up, change, rotate the key,
throw the kill switch, resume. Each step says what it proved; if a proof fails,
the exit code is 1.

Every duration of the three is divided by 60: a minute takes a second. All data
is in a temporary folder that is removed at the end. A simulated user posts the
forms of the business's own sign-in and consent pages; with --browser that is
you, at your own pace.

With --remote the agent is a running one, in a process of its own and through
its control plane: pactctl agent serve --time-scale 60, with a profile that is
new. The profile then holds what the demo did, and is yours to remove. On its
address the demo needs a token of scope admin. PACT_REMOTE and contexts are for
other commands.

With -o json stdout has only {"ok", "steps": [{"name", "ok", "detail", "ms"}],
"receipts": [{"id", "verdict"}]}.`,
		Example: `  pactctl demo
  pactctl demo -o json
  pactctl demo --browser
  pactctl agent serve --profile DIR --time-scale 60  # in another terminal
  pactctl demo --remote unix:DIR/agent.sock`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&d.browser, "browser", false, "sign in and consent yourself, in your browser")
	cmd.Flags().StringVar(&d.remote, "remote", "", "`AGENT` that runs: unix:PATH, http://127.0.0.1:PORT or a context's name")
	cmd.Flags().StringVar(&d.tokenFile, "remote-token-file", "", "`FILE` with the token for --remote (or PACT_REMOTE_TOKEN_FILE)")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "log what signer and business do to stderr")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if d.browser && !a.person {
			return usagef("--browser hands you a sign-in link, and that goes to a terminal only")
		}
		if d.browser && d.remote != "" {
			return usagef("--browser and --remote do not go together: an agent that is %d times as fast gives a person no time to sign in", demoScale)
		}
		if d.remote == "" && d.tokenFile != "" {
			return usagef("--remote-token-file is for --remote")
		}
		if verbose {
			d.log = slog.New(slog.NewTextHandler(a.stderr, nil))
		}
		return d.run(cmd.Context())
	}
	return cmd
}

// demo is one run: three parties, what was seen of them, and how far it is.
type demo struct {
	app       *app
	browser   bool
	remote    string // where the running agent is; empty: the demo has one of its own
	tokenFile string // and the token for it, if it takes one
	log       *slog.Logger

	// What tests change, so that a proof fails: what the sandbox is made of, what the
	// agent's traffic passes, and who stands in for the agent.
	business sandbox.Config
	network  func(agent.Egress) agent.Egress
	standIn  func(personal) personal

	temp    string // where dir is made; empty: where the system has such folders
	dir     string
	signer  *server.Server
	issuer  string
	sandbox *sandbox.Sandbox
	front   *http.Server // before the business: what it is sent is seen there
	ready   sandbox.Ready
	agent   personal
	leave   func() error // ends what the agent was opened with

	wire  wire  // what came to the business
	turns turns // what its agents did

	conversation string // with the airline
	oldKey       string // kid that signs before the switch-over
	newKey       string // and after it
	switchOver   time.Time

	owned     sync.Mutex              // the owner may be asked on any goroutine
	approvals []agent.ApprovalRequest // that the owner was asked for
	decline   bool                    // what the owner says
	consents  []person.Consent        // that the simulated user gave

	report demoReport
	screen screen
	proved int
}

func newDemo(a *app) *demo {
	d := &demo{app: a, log: slog.New(slog.DiscardHandler), screen: screen{app: a}}
	d.report = demoReport{Steps: []stepReport{}, Receipts: []receiptLine{}}
	d.business.Brands = []sandbox.Brand{d.turns.watch(sandbox.Larkline(time.Now())), d.turns.watch(sandbox.Marrow())}
	return d
}

// demoStep is a step: what it proved, or why it did not.
type demoStep struct {
	name   string
	run    func(context.Context) (string, error)
	person bool // waits for one, with --browser
}

// steps are all of them, in order.
func (d *demo) steps() []demoStep {
	return []demoStep{
		{"start", d.start, false},
		{"enrol", d.enrol, false},
		{"register", d.register, false},
		{"discover", d.discover, false},
		{"identity", d.identity, false},
		{"consent", d.consent, true},
		{"inspect", d.inspect, false},
		{"step-up", d.stepUp, true},
		{"change", d.change, false},
		{"rotate", d.rotate, false}, // not earlier: a person, or a busy machine, takes longer than the lead
		{"before", d.before, false},
		{"after", d.after, false},
		{"kill", d.kill, false},
		{"resume", d.resume, false},
		{"audit", d.audit, false},
		{"receipts", d.receipts, false},
	}
}

// demoReport is the result of a demo for programs.
type demoReport struct {
	OK       bool          `json:"ok"`
	Steps    []stepReport  `json:"steps"`
	Receipts []receiptLine `json:"receipts"`
}

type stepReport struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"` // what was proved, or why not
	MS     int64  `json:"ms"`
}

type receiptLine struct {
	ID      string        `json:"id"`
	Verdict agent.Verdict `json:"verdict"`
}

// run does the steps up to the first that fails, reports, and leaves nothing
// behind.
func (d *demo) run(ctx context.Context) (err error) {
	if d.remote != "" {
		if err := d.checkRemote(ctx); err != nil {
			return err
		}
	}
	if d.dir, err = os.MkdirTemp(d.temp, "pactctl-demo-"); err != nil {
		return fmt.Errorf("make a temporary folder: %w", err)
	}
	began := time.Now()
	d.screen.intro()
	steps := d.steps()
	var failed error
	for _, s := range steps {
		if failed = d.take(ctx, s); failed != nil {
			break
		}
	}
	receipts := d.listReceipts(context.WithoutCancel(ctx))
	failed = errors.Join(failed, d.stop())
	d.report.OK = failed == nil
	took := time.Since(began)
	err = d.app.print(d.report, func(p *printer) {
		d.screen.listing(receipts, d.report.Receipts)
		notRun := plural(len(steps)-len(d.report.Steps), "step") + " not run"
		switch {
		case ctx.Err() != nil:
			p.line("Interrupted; %s. %s", notRun, d.removed())
		case failed != nil:
			p.line("A proof failed; %s. --verbose shows what signer and business logged.", notRun)
		default:
			d.screen.summary(d.proved, len(steps), len(receipts), took, d.removed())
		}
	})
	return errors.Join(failed, err, d.screen.err)
}

// take does one step.
func (d *demo) take(ctx context.Context, s demoStep) error {
	d.screen.begin(s.name)
	limit := demoStepLimit
	if d.browser && s.person {
		limit = agent.Defaults().ConsentMax
	}
	stepCtx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it took longer than %s", limit))
	defer cancel()
	began := time.Now()
	detail, err := s.run(stepCtx)
	took := time.Since(began)
	if err != nil {
		if stepCtx.Err() != nil {
			err = context.Cause(stepCtx)
		}
		detail = agent.RedactText(oneLine(err.Error()))
		err = fmt.Errorf("step %s: %w", s.name, err)
	}
	d.report.Steps = append(d.report.Steps, stepReport{s.name, err == nil, detail, took.Milliseconds()})
	d.screen.end(s.name, detail, took, err == nil)
	return err
}

// start starts the three parties.
func (d *demo) start(ctx context.Context) (string, error) {
	if err := d.startSigner(ctx); err != nil {
		return "", fmt.Errorf("signer: %w", err)
	}
	if err := d.startBusiness(); err != nil {
		return "", err
	}
	if err := d.openAgent(ctx); err != nil {
		return "", err
	}
	published, err := d.keySet(ctx)
	if err != nil {
		return "", err
	}
	keys, err := d.keys(ctx)
	if err != nil {
		return "", err
	}
	for kid, state := range keys {
		if state == "signing" {
			d.oldKey = kid
		}
	}
	return "a signer and a business run, on free ports", d.prove(
		claim{"one key signs, and it alone is published", len(published) == 1 && published[d.oldKey]},
		claim{"nobody but this machine can reach them", loopbackURL(d.issuer) && loopbackURL(d.ready.Provider)},
	)
}

// startSigner starts an embedded signer and waits until it may sign.
func (d *demo) startSigner(ctx context.Context) error {
	cfg := config.Default()
	cfg.Data = filepath.Join(d.dir, "signer")
	for _, l := range []*config.Listener{&cfg.Listeners.Public, &cfg.Listeners.GRPC, &cfg.Listeners.Admin, &cfg.Listeners.Ops} {
		l.Address = "127.0.0.1:0"
	}
	issuer := config.DefaultIssuer()
	issuer.Enrolment = "open"
	// Tokens say when they expire in whole seconds: the longest life leaves five.
	issuer.TokenTTL = 5 * time.Minute
	// As long as the business caches a key set.
	issuer.Rotation.Lead, issuer.Rotation.Overlap = sandbox.Defaults().KeySetTTL, sandbox.Defaults().KeySetTTL
	cfg.Issuers = []config.Issuer{issuer}
	cfg.Development.TimeScale = demoScale
	s, err := server.New(cfg, server.Options{Version: version, Log: d.log})
	if err != nil {
		return err
	}
	if err := s.Start(ctx); err != nil {
		return err
	}
	d.signer, d.issuer = s, s.Info().Issuers[0]
	select {
	case <-s.Ready():
		return nil
	case <-s.Failed():
		return errors.New("it failed; --verbose shows why")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// startBusiness starts the sandbox. Its provider is reached through what remembers
// the messages that come.
func (d *demo) startBusiness() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	cfg := d.business
	cfg.PublicURL = "http://" + l.Addr().String()
	cfg.Params = sandbox.Defaults().Scaled(demoScale)
	if d.browser { // what waits for a person
		full := sandbox.Defaults()
		cfg.Params.DeviceCodeTTL, cfg.Params.AssertionTTL, cfg.Params.SessionTTL = full.DeviceCodeTTL, full.AssertionTTL, full.SessionTTL
	}
	cfg.Log = d.log
	s, err := sandbox.New(cfg)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	d.front = &http.Server{
		Handler: d.wire.watch(s.Provider()), ReadHeaderTimeout: demoStopLimit,
		ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	}
	go func() { _ = d.front.Serve(l) }() // until it is closed
	s.Start()
	d.sandbox, d.ready = s, s.Ready()
	return nil
}

// openAgent opens the agent on its profile, as a program that starts, or goes to the
// running one.
func (d *demo) openAgent(ctx context.Context) (err error) {
	if d.remote != "" {
		err = d.dial(ctx)
	} else {
		err = d.openHere()
	}
	if err == nil && d.standIn != nil {
		d.agent = d.standIn(d.agent)
	}
	return err
}

// openHere opens the agent in this process.
func (d *demo) openHere() error {
	dir := filepath.Join(d.dir, "agent")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	store, err := sqlite.Open(filepath.Join(dir, "agent.db"))
	if err != nil {
		return err
	}
	params := agent.Defaults().Scaled(demoScale)
	if d.browser {
		params.ConsentMax = agent.Defaults().ConsentMax
	}
	a, err := agent.Open(agent.Config{
		Dir: dir, Store: store, Key: agent.KeyFile, Params: params, Scale: demoScale,
		Network: func(rules agent.URLRules, policy egress.Policy) agent.Egress {
			var n agent.Egress = egress.New(egress.Config{Rules: rules, Policy: policy, Scale: demoScale})
			if d.network != nil {
				n = d.network(n)
			}
			return n
		},
	})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	d.agent, d.leave = a, func() error {
		a.Close()
		return store.Close()
	}
	return nil
}

func (d *demo) closeAgent() error {
	if d.agent == nil {
		return nil
	}
	d.agent = nil
	return d.leave()
}

// stop ends the parties that the demo started and removes their data.
func (d *demo) stop() error {
	errs := []error{d.closeAgent()}
	if d.front != nil {
		errs = append(errs, d.front.Close())
	}
	if d.sandbox != nil {
		errs = append(errs, d.sandbox.Close())
	}
	if d.signer != nil {
		ctx, cancel := context.WithTimeout(context.Background(), demoStopLimit)
		defer cancel()
		errs = append(errs, d.signer.Shutdown(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}

// removed says what is left of the data.
func (d *demo) removed() string {
	if d.remote != "" {
		return "All data is removed but for the running agent's profile."
	}
	return "All data is removed."
}
