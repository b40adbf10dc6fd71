package agent_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// What the sandbox's airline can be asked, and the permissions for it.
const (
	upcomingScope = "flights:upcoming:read"
	pastScope     = "flights:history:read"
	rebookScope   = "flights:rebook"
	cancelScope   = "flights:cancel"
)

var (
	showFlights  = agent.SendRequest{Message: "Show my upcoming flights", Effect: "inspect", Scopes: []string{upcomingScope}}
	rebookFlight = agent.SendRequest{Message: "Rebook my next flight", Effect: "change", Scopes: []string{rebookScope}}
)

// in is the request in a conversation.
func in(req agent.SendRequest, conversation string) agent.SendRequest {
	req.Conversation = conversation
	return req
}

// site is a sandbox, a signer and an agent's profile, all on real sockets.
type site struct {
	t      *testing.T
	signer *signerStandIn
	pa     string // the signer's URL
	box    *sandbox.Sandbox
	ready  sandbox.Ready
	air    string // the airline's card
	iface  string // and interface
	dir    string
	config agent.Config
	jump   atomic.Int64 // how far all their clocks are ahead

	mu       sync.Mutex
	requests []request
	watch    func(egress.Request)   // sees each request before it is sent
	sign     func(nonce string) any // the signer's answer instead of the stand-in's
	asked    []agent.ApprovalRequest
	shown    []agent.SignIn
	events   []agent.Event
}

// siteConfig is what a test may change before a site is made.
type siteConfig struct {
	signer *signerStandIn
	box    sandbox.Config
	agent  agent.Config
	// front, if set, stands before the sandbox's Provider.
	front func(sandbox http.Handler) http.Handler
}

// siteScale is how much faster than the rules an agent waits.
const siteScale = 20

// scaled sets another scale. What the business states in seconds no scale changes,
// so neither the bounds that it is held to; leases are as long as ever, for a busy
// machine.
func scaled(n int) func(*siteConfig) {
	return func(c *siteConfig) {
		d := agent.Defaults()
		p := d.Scaled(n)
		p.ConsentMax, p.CardTTL, p.CardTTLMin, p.CardTTLMax = d.ConsentMax, d.CardTTL, d.CardTTLMin, d.CardTTLMax
		p.TurnLease, p.PollLease, p.RefreshLease = d.TurnLease, d.PollLease, d.RefreshLease
		c.agent.Params = p
	}
}

func newSite(t *testing.T, change ...func(*siteConfig)) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	signer := newSigner(t)
	cfg := siteConfig{signer: signer, box: sandbox.Config{PasswordMemory: 64, Params: sandbox.Defaults()}}
	cfg.box.Params.DeviceInterval = time.Millisecond
	cfg.box.Now = s.now
	signer.change = func(claims, _ map[string]any) { claims["iat"], claims["exp"] = s.now().Unix(), s.now().Unix()+120 }
	scaled(siteScale)(&cfg)
	pa := httptest.NewServer(http.HandlerFunc(s.serveSigner))
	t.Cleanup(pa.Close)
	signer.url, signer.issuer, signer.audiences = pa.URL, pa.URL, nil
	for _, f := range change {
		f(&cfg)
	}
	s.signer, s.pa, s.config = signer, pa.URL, cfg.agent
	if s.config.Now == nil {
		s.config.Now = s.now
	}
	s.config.Network = func(rules agent.URLRules, policy egress.Policy) agent.Egress {
		return &recorder{s, egress.New(egress.Config{Rules: rules, Policy: policy})}
	}
	var front *httptest.Server
	if cfg.front != nil {
		front = httptest.NewUnstartedServer(nil)
		cfg.box.PublicURL = "http://" + front.Listener.Addr().String()
	}
	var err error
	if s.box, err = sandbox.New(cfg.box); err != nil {
		t.Fatal(err)
	}
	s.box.Start()
	if front != nil {
		front.Config.Handler = cfg.front(s.box.Provider())
		front.Start()
		t.Cleanup(front.Close)
	}
	t.Cleanup(func() {
		if err := s.box.Close(); err != nil {
			t.Error(err)
		}
	})
	s.ready = s.box.Ready()
	s.air, s.iface = s.ready.Brands[0].Card, s.ready.Provider+"/a2a/"+s.ready.Brands[0].ID
	if err := os.WriteFile(filepath.Join(s.dir, "agent.db"), emptyStore(), 0o600); err != nil {
		t.Fatal(err)
	}
	s.faults()
	return s
}

// run runs a subtest on the site: making one takes longer than most tests.
func (s *site) run(name string, test func(t *testing.T)) {
	outer := s.t
	outer.Run(name, func(t *testing.T) {
		s.t = t
		defer func() { s.t = outer }()
		test(t)
	})
}

// now is the clock of all three.
func (s *site) now() time.Time { return time.Now().Add(time.Duration(s.jump.Load())) }

// faults replaces what faults the sandbox has. Sign-ins are polled as often as
// the agent is ready to, unless a spec says otherwise.
func (s *site) faults(specs ...string) {
	s.t.Helper()
	if !slices.ContainsFunc(specs, func(spec string) bool { return strings.HasPrefix(spec, "device-interval") }) {
		specs = append(slices.Clone(specs), "device-interval=0")
	}
	if err := s.box.SetFaults(specs...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) serveSigner(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	answer := s.sign
	s.mu.Unlock()
	if r.URL.Path != "/pact/sign" || answer == nil {
		s.signer.ServeHTTP(w, r)
		return
	}
	var req struct {
		Nonce string `json:"nonce"`
	}
	if err := json.UnmarshalRead(r.Body, &req); err != nil {
		s.t.Errorf("sign: %v", err)
	}
	respond(w, 200, answer(req.Nonce))
}

// recorder is the way to the network, and writes down what goes that way.
type recorder struct {
	s *site
	*egress.Client
}

func (r *recorder) Do(ctx context.Context, req egress.Request) (egress.Response, error) {
	s := r.s
	s.mu.Lock()
	s.requests = append(s.requests, request{req.Purpose, req.URL, req.Header.Clone(), string(req.Body), s.now()})
	watch := s.watch
	s.mu.Unlock()
	if watch != nil {
		watch(req)
	}
	return r.Client.Do(ctx, req)
}

// open opens an agent on the site's profile, as a program that starts.
func (s *site) open() *agent.Agent {
	s.t.Helper()
	return s.openIn(s.dir)
}

func (s *site) openIn(dir string) *agent.Agent {
	s.t.Helper()
	store, err := sqlite.Open(filepath.Join(dir, "agent.db"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := store.Close(); err != nil {
			s.t.Error(err)
		}
	})
	cfg := s.config
	cfg.Dir, cfg.Store = dir, store
	a, err := agent.Open(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(a.Close)
	return a
}

// enrolled is open with an identity, registered at the sandbox.
func (s *site) enrolled() *agent.Agent {
	s.t.Helper()
	a := s.open()
	if _, err := a.Enroll(s.t.Context(), owner(), agent.EnrollRequest{SignerURL: s.pa}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := a.AddProvider(s.t.Context(), owner(), s.ready.Provider, s.ready.Audience, "sandbox"); err != nil {
		s.t.Fatal(err)
	}
	return a
}

// granted is enrolled with a grant.
func (s *site) granted(scopes ...string) *agent.Agent {
	s.t.Helper()
	a := s.enrolled()
	s.authorize(a, s.person(), agent.StatusDone, "", scopes...)
	return a
}

// person is the owner at a terminal: approves everything, and signs in at once
// with all permissions.
func (s *site) person() agent.Caller {
	c := owner()
	c.Human = agent.HumanInteractive
	c.Approve = func(_ context.Context, r agent.ApprovalRequest) (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked = append(s.asked, r)
		return true, nil
	}
	c.SignIn = func(ctx context.Context, v agent.SignIn) error {
		s.saw(v)
		_, err := person.Person{Login: s.ready.Login}.AllowAll(ctx, v.Link.Reveal())
		return err
	}
	c.Progress = func(e agent.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, e)
	}
	return c
}

// hurried is the owner for whom it is at once, when they have signed in, so long
// after the sign-in began.
func (s *site) hurried(after time.Duration) agent.Caller {
	c := s.person()
	signIn := c.SignIn
	c.SignIn = func(ctx context.Context, v agent.SignIn) error {
		err := signIn(ctx, v)
		starts := s.calls(egress.DeviceAuthorization)
		if left := starts[len(starts)-1].at.Add(after).Sub(s.now()); left > 0 {
			s.jump.Add(int64(left))
		}
		return err
	}
	return c
}

// watchful has a wait for a poll look at the clock often, so that it notices a
// jump.
func watchful(c *siteConfig) { c.agent.Params.PollLease = 100 * time.Millisecond }

func (s *site) saw(v agent.SignIn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = append(s.shown, v)
}

// send sends and expects a status and reason.
func (s *site) send(a *agent.Agent, c agent.Caller, req agent.SendRequest, status agent.Status, reason string) agent.Result {
	s.t.Helper()
	if req.Business == "" {
		req.Business = s.air
	}
	r, err := a.Send(s.t.Context(), c, req)
	s.expect(req.Message, r, err, status, reason)
	return r
}

func (s *site) authorize(a *agent.Agent, c agent.Caller, status agent.Status, reason string, scopes ...string) agent.Result {
	s.t.Helper()
	r, err := a.Authorize(s.t.Context(), c, agent.AuthorizeRequest{Business: s.air, Scopes: scopes})
	s.expect("authorize", r, err, status, reason)
	return r
}

func (s *site) expect(what string, r agent.Result, err error, status agent.Status, reason string) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	if r.Status != status || r.Reason != reason {
		s.t.Errorf("%s: %s %q (%s); want %s %q", what, r.Status, r.Reason, r.Detail, status, reason)
	}
}

// discover fetches the airline's card anew.
func (s *site) discover(a *agent.Agent) agent.BusinessView {
	s.t.Helper()
	v, err := a.Discover(s.t.Context(), owner(), agent.DiscoverRequest{CardURL: s.air, Refresh: true})
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// calls are the requests made so far for some purposes.
func (s *site) calls(of ...egress.Purpose) (out []request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if slices.Contains(of, r.purpose) {
			out = append(out, r)
		}
	}
	return out
}

// messages are the attempts to send a text.
func (s *site) messages(text string) (out []request) {
	for _, r := range s.calls(egress.Message) {
		if strings.Contains(r.body, text) {
			out = append(out, r)
		}
	}
	return out
}

// polls are the polls of sign-ins, refreshes those of refresh tokens.
func (s *site) polls() []request     { return s.tokenCalls("device_code") }
func (s *site) refreshes() []request { return s.tokenCalls("refresh_token") }

func (s *site) tokenCalls(grant string) (out []request) {
	for _, r := range s.calls(egress.Token) {
		if strings.Contains(r.body, "grant_type=refresh_token") == (grant == "refresh_token") {
			out = append(out, r)
		}
	}
	return out
}

// noWire fails if do lets anything reach the business that is not discovery: a
// message, the start or a poll of a sign-in, a refresh.
func (s *site) noWire(do func()) {
	s.t.Helper()
	wire := []egress.Purpose{egress.Message, egress.DeviceAuthorization, egress.Token}
	before, ran := len(s.calls(wire...)), len(s.box.Executed())
	do()
	for _, r := range s.calls(wire...)[before:] {
		s.t.Errorf("on the wire: %s %s", r.purpose, r.url)
	}
	if n := len(s.box.Executed()); n != ran {
		s.t.Errorf("the business carried out %d turns", n-ran)
	}
}

// executed counts the turns of a text that the business carried out.
func (s *site) executed(text string) (n int) {
	for _, e := range s.box.Executed() {
		if e.Text == text {
			n++
		}
	}
	return n
}

// waited fails if two requests are closer together than a wait of the rules.
func (s *site) waited(what string, from, to request, atLeast time.Duration) {
	s.t.Helper()
	// Times are taken where the request leaves, up to a millisecond late.
	if gap := to.at.Sub(from.at); gap < atLeast-time.Millisecond {
		s.t.Errorf("%s after %v, want at least %v", what, gap, atLeast)
	}
}

// grant is the only grant.
func (s *site) grant(a *agent.Agent) agent.GrantView {
	s.t.Helper()
	return onlyGrant(s.t, a)
}

// snapshot copies the profile: what a kill at this moment leaves.
func (s *site) snapshot() (dir string) {
	s.t.Helper()
	dir = s.t.TempDir()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() || strings.HasSuffix(e.Name(), "-shm") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(s.dir, e.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, e.Name()), data, 0o600)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return dir
}

// sealed tells whether the store holds the secret of a record.
func (s *site) sealed(id string) bool {
	s.t.Helper()
	db, err := openDatabase(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRowContext(s.t.Context(), "SELECT count(*) FROM secrets WHERE id = ?", id).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n > 0
}

// sentMessage reads the body of a message:send.
func sentMessage(t *testing.T, r request) (m struct {
	ID      string `json:"messageId"`
	Context string `json:"contextId"`
	Role    string `json:"role"`
	Parts   []struct {
		Text string `json:"text"`
	} `json:"parts"`
}) {
	t.Helper()
	body := struct{ Message any }{&m}
	if err := json.UnmarshalRead(bytes.NewReader([]byte(r.body)), &body, json.MatchCaseInsensitiveNames(true)); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return m
}
