package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// surface is what a surface does with an agent, wherever it runs: pactctl's commands
// use nothing else.
type surface interface {
	Acknowledge(context.Context, agent.Caller, string) (agent.ReviewItem, error)
	AddProvider(ctx context.Context, c agent.Caller, origin, audience, label string) (agent.ProviderView, error)
	Approval(context.Context, agent.Caller, string) (agent.ApprovalView, error)
	Approvals(ctx context.Context, c agent.Caller, all bool) ([]agent.ApprovalView, error)
	Authorization(context.Context, agent.Caller, string) (agent.AuthorizationView, error)
	Authorizations(context.Context, agent.Caller) ([]agent.AuthorizationView, error)
	Authorize(context.Context, agent.Caller, agent.AuthorizeRequest) (agent.Result, error)
	Businesses(context.Context, agent.Caller) ([]agent.BusinessView, error)
	CancelAuthorization(context.Context, agent.Caller, string) (agent.AuthorizationView, error)
	Conversation(context.Context, agent.Caller, string) (agent.ConversationView, error)
	Conversations(context.Context, agent.Caller) ([]agent.ConversationView, error)
	Decide(context.Context, agent.Caller, agent.Decision) (agent.Result, error)
	Disconnect(context.Context, agent.Caller, string) (agent.DisconnectView, error)
	Discover(context.Context, agent.Caller, agent.DiscoverRequest) (agent.BusinessView, error)
	Doctor(context.Context, agent.Caller) ([]agent.Check, error)
	Enroll(context.Context, agent.Caller, agent.EnrollRequest) (agent.IdentityView, error)
	Grants(context.Context, agent.Caller) ([]agent.GrantView, error)
	Policy(context.Context, agent.Caller) (agent.PolicyView, error)
	Providers(context.Context, agent.Caller) ([]agent.ProviderView, error)
	Receipt(context.Context, agent.Caller, string) (agent.ReceiptView, error)
	Receipts(context.Context, agent.Caller) ([]agent.ReceiptView, error)
	Reconcile(context.Context, agent.Caller, agent.ReconcileRequest) (agent.Result, error)
	RemoveProvider(ctx context.Context, c agent.Caller, origin string) error
	Review(context.Context, agent.Caller, string) (agent.ReviewItem, error)
	Reviews(ctx context.Context, c agent.Caller, all bool) ([]agent.ReviewItem, error)
	Send(context.Context, agent.Caller, agent.SendRequest) (agent.Result, error)
	SetEnabled(ctx context.Context, c agent.Caller, on bool) error
	SetPreference(context.Context, agent.Caller, agent.Preference) error
	Status(context.Context, agent.Caller) (agent.StatusView, error)
	Transcript(context.Context, agent.Caller, string) (agent.Transcript, error)
	VerifyStoredReceipt(context.Context, agent.Caller, string) (agent.ReceiptView, error)
	WaitAuthorization(context.Context, agent.Caller, string) (agent.Result, error)
	Watch(ctx context.Context, c agent.Caller, each func(agent.Change) error) error
}

var (
	_ surface = (*agent.Agent)(nil)
	_ surface = (*control.Client)(nil)
)

// scale divides the durations of all parties, but for what things live at a business.
const scale = 30

// The permissions of the airline.
const (
	upcoming = "flights:upcoming:read"
	rebook   = "flights:rebook"
)

// owner is the principal.
const owner = "owner"

// issuer is a signer, and its operator.
type issuer struct {
	url, admin, token string
}

// startSigner starts a signer that enrols whoever asks.
func startSigner(t *testing.T) *issuer {
	t.Helper()
	cfg := config.Default()
	cfg.Data = filepath.Join(t.TempDir(), "signer")
	for _, l := range []*config.Listener{&cfg.Listeners.Public, &cfg.Listeners.GRPC, &cfg.Listeners.Admin, &cfg.Listeners.Ops} {
		l.Address = "127.0.0.1:0"
	}
	one := config.DefaultIssuer()
	one.Enrolment = "open"
	one.Limits = config.Limits{} // the cases are many callers on one address
	cfg.Issuers = []config.Issuer{one}
	s, err := server.New(cfg, server.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case <-s.Failed():
		t.Fatal("the signer failed")
	}
	token, err := os.ReadFile(s.Info().AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{s.Info().Issuers[0], s.Info().Admin, strings.TrimSpace(string(token))}
}

// register has the signer sign for a provider, until the test ends.
func (i *issuer) register(t *testing.T, origin, audience string) {
	t.Helper()
	do := func(method, query, body string) error {
		req, err := http.NewRequest(method, i.admin+"/v1/audiences"+query, strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+i.token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s the audience: %s %s, %w", method, resp.Status, text, err)
		}
		return nil
	}
	body, err := json.Marshal(map[string]string{"issuer": i.url, "origin": origin, "audience": audience, "reason": "test"})
	if err == nil {
		err = do(http.MethodPut, "", string(body))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := do(http.MethodDelete, "?"+url.Values{"issuer": {i.url}, "origin": {origin}, "reason": {"test"}}.Encode(), ""); err != nil {
			t.Error(err)
		}
	})
}

// world is a profile and the businesses that it deals with.
type world struct {
	*testing.T
	signer *issuer
	box    *sandbox.Sandbox
	ready  sandbox.Ready

	dir   string
	store agent.Store
	local *agent.Agent
	// ag is the agent as the case has it: local, or the client of a server of it.
	ag surface

	running *running // nil: in process

	// arrived is told each change that the bookshop is asked for while hold is not nil:
	// it is answered when hold is closed.
	mu      sync.Mutex
	hold    chan struct{}
	arrived chan struct{}

	transcript strings.Builder
}

// running is the server of a world.
type running struct {
	*control.Server
	target string
	stop   func()
}

// newWorld makes a profile that is enrolled and knows the sandbox.
func newWorld(t *testing.T, signer *issuer, remote bool) *world {
	t.Helper()
	w := bareWorld(t)
	w.signer = signer
	signer.register(t, w.ready.Provider, w.ready.Audience)
	if remote {
		w.serve()
		w.ag = w.dial(w.running.target, "")
	}
	c := w.caller()
	if _, err := w.local.Enroll(t.Context(), c, agent.EnrollRequest{SignerURL: signer.url}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.local.AddProvider(t.Context(), c, w.ready.Provider, w.ready.Audience, "sandbox"); err != nil {
		t.Fatal(err)
	}
	return w
}

// bareWorld makes a new profile, and businesses that it does not know.
func bareWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, arrived: make(chan struct{}, 10)}
	shop := sandbox.Marrow()
	respond := shop.Respond
	shop.Respond = func(ctx context.Context, turn sandbox.Turn) (sandbox.Reply, error) {
		w.mu.Lock()
		hold := w.hold
		w.mu.Unlock()
		if hold != nil && turn.Text == w.change().Message {
			w.arrived <- struct{}{}
			<-hold
		}
		return respond(ctx, turn)
	}
	// The waits are short. What it takes of others lives as long as ever, for a busy machine.
	params, full := sandbox.Defaults().Scaled(scale), sandbox.Defaults()
	params.KeySetTTL, params.Leeway, params.MaxAge = full.KeySetTTL, full.Leeway, full.MaxAge
	params.DeviceCodeTTL, params.SessionTTL, params.AssertionTTL = full.DeviceCodeTTL, full.SessionTTL, full.AssertionTTL
	var err error
	w.box, err = sandbox.New(sandbox.Config{
		PasswordMemory: 64, Params: params, Brands: []sandbox.Brand{sandbox.Larkline(time.Now()), shop},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.box.Start()
	t.Cleanup(func() {
		if err := w.box.Close(); err != nil {
			t.Error(err)
		}
	})
	w.ready = w.box.Ready()
	w.dir = t.TempDir()
	w.open()
	return w
}

// hasty is an agent whose waits are short. Leases, and how long a request may take, are
// as ever, for a busy machine.
func hasty() agent.Params {
	p, full := agent.Defaults().Scaled(scale), agent.Defaults()
	p.TurnLease, p.PollLease, p.RefreshLease = full.TurnLease, full.PollLease, full.RefreshLease
	return p
}

// open opens the agent of the profile, as a program that starts.
func (w *world) open() {
	w.Helper()
	store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		if err := store.Close(); err != nil {
			w.Error(err)
		}
	})
	a, err := agent.Open(agent.Config{Dir: w.dir, Store: store, Key: agent.KeyFile, Params: hasty(), Development: true})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(a.Close)
	w.store, w.local, w.ag = store, a, a
}

// serve starts a server of the agent, on the same socket each time and on a loopback
// address.
func (w *world) serve() *control.Listener {
	w.Helper()
	s, err := control.New(control.Config{
		Agent: w.local, Store: w.store, Principal: owner, Version: "test", TimeScale: scale, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.Fatal(err)
	}
	socket, err := control.ListenUnix(w.socket())
	if err != nil {
		w.Fatal(err)
	}
	loopback, err := control.ListenLoopback("127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, socket, loopback) }()
	r := &running{Server: s, target: socket.Target()}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	})
	w.Cleanup(r.stop)
	w.running = r
	return loopback
}

// socket is a path that is short enough.
func (w *world) socket() string {
	w.Helper()
	if w.running != nil {
		return strings.TrimPrefix(w.running.target, "unix:")
	}
	dir, err := os.MkdirTemp("", "pact")
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "agent.sock")
}

func (w *world) dial(target string, token agent.Secret) *control.Client {
	w.Helper()
	c, err := control.Dial(w.Context(), target, token)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		if err := c.Close(); err != nil {
			w.Error(err)
		}
	})
	return c
}

// caller is the owner at their command line, who can be asked nothing.
func (w *world) caller() agent.Caller {
	return agent.Caller{Principal: owner, Origin: agent.OriginOwnerCLI, Human: agent.HumanNone}
}

// person is the owner at a terminal: approves everything, and signs in at once with
// all permissions.
func (w *world) person() agent.Caller {
	c := w.caller()
	c.Human = agent.HumanInteractive
	c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { return true, nil }
	c.SignIn = func(ctx context.Context, s agent.SignIn) error {
		_, err := w.user().AllowAll(ctx, s.Link.Reveal())
		return err
	}
	return c
}

// user plays the owner in front of the business's pages.
func (w *world) user() person.Person { return person.Person{Login: w.ready.Login} }

// air and shop are the businesses' cards.
func (w *world) air() string  { return w.ready.Brands[0].Card }
func (w *world) shop() string { return w.ready.Brands[1].Card }

// faults are the sandbox's from now on.
func (w *world) faults(specs ...string) {
	w.Helper()
	if err := w.box.SetFaults(specs...); err != nil {
		w.Fatal(err)
	}
}

// holdShop holds the bookshop's answers back until release is called.
func (w *world) holdShop() (release func()) {
	hold := make(chan struct{})
	w.mu.Lock()
	w.hold = hold
	w.mu.Unlock()
	release = sync.OnceFunc(func() {
		w.mu.Lock()
		w.hold = nil
		w.mu.Unlock()
		close(hold)
	})
	w.Cleanup(release)
	return release
}

// say writes down how a call ended, for the transcript that is the same wherever the
// agent runs.
func (w *world) say(what string, v any, err error) {
	w.Helper()
	fmt.Fprintf(&w.transcript, "%s: ", what)
	if err != nil {
		fmt.Fprintf(&w.transcript, "error %q", err)
		var r *agent.Refusal
		if errors.As(err, &r) {
			fmt.Fprintf(&w.transcript, " refusal %s %s %q", r.Status, r.Reason, r.Text())
		}
		for name, kind := range map[string]error{"not found": agent.ErrNotFound, "canceled": context.Canceled} {
			if errors.Is(err, kind) {
				fmt.Fprintf(&w.transcript, " is %q", name)
			}
		}
		w.transcript.WriteByte('\n')
		return
	}
	doc, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		w.Fatal(err)
	}
	fmt.Fprintf(&w.transcript, "%s\n", doc)
}

// ended is say for an operation's end, which is asserted too.
func (w *world) ended(what string, r agent.Result, err error, status agent.Status, reason agent.Reason) agent.Result {
	w.Helper()
	w.say(what, r, err)
	if err != nil || r.Status != status || r.Reason != reason {
		w.Errorf("%s: %s %q %q, %v; want %s %q", what, r.Status, r.Reason, r.Detail, err, status, reason)
	}
	return r
}

// What differs from run to run, or is told of who acts.
var varying = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`"(actor|settledBy|endedBy|decidedBy|discoveredBy|fetchedBy|recheckedBy|reconciledBy|by)":"[^"]*"`), ""},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)`), "time"},
	{regexp.MustCompile(`(in the key file) [^ ]*`), "file"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "host"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "uuid"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "digest"},
	{regexp.MustCompile(`\b(b|c|m|r|g|d|signin|approval|receipt|grant|business|conversation|message)-[a-z0-9]{6,}\b`), "id"},
	{regexp.MustCompile(`[A-Za-z0-9_-]{43}`), "thumbprint"},
	{regexp.MustCompile(`pa_[A-Za-z0-9_-]+`), "subject"},
	{regexp.MustCompile(`"contextId":"[^"]*"|"kid":"[^"]*"|ctx_[A-Za-z0-9]+`), ""},
}

// said is the transcript with what varies named by when it first came.
func (w *world) said() string {
	text := w.transcript.String()
	for _, v := range varying {
		seen := map[string]string{}
		text = v.pattern.ReplaceAllStringFunc(text, func(s string) string {
			if v.name == "time" {
				return "<time>"
			}
			if v.name == "" {
				key, _, _ := strings.Cut(s, ":")
				return key + ":<varies>"
			}
			if seen[s] == "" {
				seen[s] = fmt.Sprintf("<%s %d>", v.name, len(seen)+1)
			}
			return seen[s]
		})
	}
	return text
}
