package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// listener hears everything that the agent sends and gets, and may change the
// answers.
type listener struct {
	agent.Egress
	heard  *heard
	change func(egress.Request, *egress.Response)
}

func (l *listener) Do(ctx context.Context, req egress.Request) (egress.Response, error) {
	resp, err := l.Egress.Do(ctx, req)
	if l.change != nil && err == nil {
		l.change(req, &resp)
	}
	l.heard.request(req, resp)
	return resp, err
}

func (l *listener) Close() { l.Egress.(interface{ Close() }).Close() }

// heard collects secrets.
type heard struct {
	mu      sync.Mutex
	secrets map[string]string // by value: what it is
}

func (h *heard) request(req egress.Request, resp egress.Response) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.secrets == nil {
		h.secrets = map[string]string{}
	}
	for _, name := range []string{"Authorization", "X-A2A-User-Delegation"} {
		if _, token, ok := strings.Cut(req.Header.Get(name), " "); ok {
			h.secrets[token] = name
		}
	}
	var body map[string]any
	if json.Unmarshal(resp.Body, &body) != nil {
		return
	}
	for _, name := range []string{"token", "device_code", "user_code", "verification_uri_complete", "access_token", "refresh_token"} {
		if s, ok := body[name].(string); ok && s != "" {
			h.secrets[s] = name
		}
	}
}

// demoOnly is a demo without a terminal whose traffic is heard. At the test's end
// nothing of it may be left.
func demoOnly(t *testing.T, change func(egress.Request, *egress.Response)) (d *demo, h *heard, stdout, stderr *bytes.Buffer) {
	a, stdout, stderr := testApp("", false)
	a.now = time.Now
	d, h = newDemo(a), &heard{}
	d.network = func(n agent.Egress) agent.Egress { return &listener{n, h, change} }
	d.temp = t.TempDir()
	t.Cleanup(func() {
		if left, err := filepath.Glob(filepath.Join(d.temp, "*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return d, h, stdout, stderr
}

// readReport holds a demo's JSON to its shape.
func readReport(t *testing.T, stdout []byte) (r demoReport) {
	t.Helper()
	if err := json.Unmarshal(stdout, &r, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("stdout is not one JSON object: %v\n%s", err, stdout)
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal(stdout, &members); err != nil || len(members) != 3 {
		t.Fatalf("members: %v, %v", members, err)
	}
	return r
}

var demoNames = []string{
	"start", "enrol", "register", "discover", "identity", "consent", "inspect", "step-up", "change",
	"rotate", "before", "after", "kill", "resume", "audit", "receipts",
}

// The command, as a script uses it: everything is proved.
func TestDemo(t *testing.T) {
	t.Parallel()
	a, stdout, stderr := testApp("", false)
	if code := a.run(t.Context(), []string{"demo", "-o", "json"}); code != 0 {
		t.Fatalf("exit code %d: %s\n%s", code, stderr, stdout)
	}
	if stderr.Len() > 0 {
		t.Errorf("stderr: %s", stderr)
	}
	r := readReport(t, stdout.Bytes())
	var names []string
	for _, s := range r.Steps {
		names = append(names, s.Name)
		if !s.OK || s.Detail == "" || len([]rune(s.Detail)) > screenDetail || s.MS < 0 {
			t.Errorf("step %+v", s)
		}
	}
	if !r.OK || !slices.Equal(names, demoNames) {
		t.Errorf("ok %v, steps %v", r.OK, names)
	}
	if len(r.Receipts) < 3 {
		t.Errorf("%d receipts", len(r.Receipts))
	}
	for _, rec := range r.Receipts {
		if rec.Verdict != agent.VerdictVerified || rec.ID == "" {
			t.Errorf("receipt %+v", rec)
		}
	}
	// A short form of a key's thumbprint, of eight characters, may have such letters within it.
	for _, secret := range regexp.MustCompile(`(?:^|[^\w-])(?:eyJ|dc_|rt_|pact_admin_)|user_code|/oauth/`).FindAllString(stdout.String(), -1) {
		t.Errorf("stdout holds %q", secret)
	}
}

// What a person reads fits 80 columns and holds none of the secrets that were on
// the wire.
func TestDemoNarration(t *testing.T) {
	t.Parallel()
	d, h, stdout, stderr := demoOnly(t, nil)
	d.app.width = 80
	admin := ""
	network := d.network
	d.network = func(n agent.Egress) agent.Egress {
		token, err := readToken("admin token", d.signer.Info().AdminTokenFile)
		if err != nil {
			t.Error(err)
		}
		admin = token
		return network(n)
	}
	if err := d.run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, stdout)
	}
	h.secrets[admin], h.secrets[d.ready.Login.Password] = "admin token", "password"
	kinds := map[string]bool{}
	for value, what := range h.secrets {
		kinds[what] = true
		if value == "" || strings.Contains(stdout.String()+stderr.String(), value) {
			t.Errorf("the output holds a %s", what)
		}
	}
	for _, want := range []string{"Authorization", "X-A2A-User-Delegation", "device_code", "verification_uri_complete", "refresh_token", "admin token", "password"} {
		if !kinds[want] {
			t.Errorf("no %s was heard", want)
		}
	}
	for line := range strings.Lines(stdout.String()) {
		line = line[strings.LastIndex(line, "\x1b[K")+1:]
		line = strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "[K")
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{"✓ after ", "digest    ", "sign     key ", "RECEIPT", "6 receipts verified", "pactctl sandbox"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
}

// A demo whose business or network fails does too, and says where.
func TestDemoFails(t *testing.T) {
	t.Parallel()
	// forge changes receipts on their way.
	forge := func(part string) func(egress.Request, *egress.Response) {
		return func(req egress.Request, resp *egress.Response) {
			if req.Purpose == egress.Message {
				resp.Body = forgeReceipt(resp.Body, part)
			}
		}
	}
	// larkline is the airline with another mind.
	larkline := func(respond func(sandbox.Brand, sandbox.Turn) sandbox.Reply) func(*demo) {
		return func(d *demo) {
			inner := sandbox.Larkline(time.Now())
			b := inner
			b.Respond = func(_ context.Context, in sandbox.Turn) (sandbox.Reply, error) { return respond(inner, in), nil }
			d.business.Brands[0] = d.turns.watch(b)
		}
	}
	for name, c := range map[string]struct {
		change func(egress.Request, *egress.Response)
		spoil  func(*demo)
		step   string
		why    string
	}{
		"a receipt with another signature": {change: forge("signature"), step: "inspect", why: "bad_signature"},
		"a receipt with other claims":      {change: forge("claims"), step: "inspect", why: "claims_differ"},
		"no receipt":                       {change: forge("all"), step: "inspect", why: "missing"},
		"no such audience": {
			spoil: func(d *demo) { d.business.Audience = strings.Repeat("x", 5000) },
			step:  "register", why: "audience",
		},
		"a business that does what was not allowed": {
			spoil: larkline(func(_ sandbox.Brand, in sandbox.Turn) sandbox.Reply {
				return sandbox.Reply{Text: "Done.", Actions: []sandbox.Action{{Tool: "rebook_flight"}}}
			}),
			step: "step-up", why: "nothing ran before it was given",
		},
		"a signer that forgets its audiences": {
			change: func(req egress.Request, resp *egress.Response) {
				if strings.HasSuffix(req.URL, "/pact/status") {
					resp.Body = bytes.Replace(resp.Body, []byte(`"audiences":`), []byte(`"audiences":{},"others":`), 1)
				}
			},
			step: "register", why: "the agent hears of the audience",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _, stdout, _ := demoOnly(t, c.change)
			d.app.output = "json"
			if c.spoil != nil {
				c.spoil(d)
			}
			err := d.run(t.Context())
			if code := exitCode(t.Context(), err); code != exitFailed {
				t.Errorf("exit code %d: %v", code, err)
			}
			r := readReport(t, stdout.Bytes())
			last := r.Steps[len(r.Steps)-1]
			if r.OK || last.OK || last.Name != c.step || !strings.Contains(last.Detail, c.why) {
				t.Errorf("ok %v, last step %+v; want %s to fail by %q", r.OK, last, c.step, c.why)
			}
			for _, s := range r.Steps[:len(r.Steps)-1] {
				if !s.OK {
					t.Errorf("step %+v", s)
				}
			}
		})
	}
}

// liar is an agent whose sends are not what it says of them.
type liar struct {
	personal
	lie      func(ctx context.Context, honest personal, c agent.Caller, req agent.SendRequest) (agent.Result, error)
	receipts []agent.ReceiptView // that it made up
}

func (l liar) Send(ctx context.Context, c agent.Caller, req agent.SendRequest) (agent.Result, error) {
	if l.lie == nil {
		return l.personal.Send(ctx, c, req)
	}
	return l.lie(ctx, l.personal, c, req)
}

func (l liar) Receipts(ctx context.Context, c agent.Caller) ([]agent.ReceiptView, error) {
	all, err := l.personal.Receipts(ctx, c)
	return append(l.receipts, all...), err
}

// What the demo proves does not rest on what the agent says: the business was there
// too.
func TestDemoSeesThroughTheAgent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		liar liar
		step string
		why  string
	}{
		"it sends what was declined": {
			liar: liar{lie: func(ctx context.Context, honest personal, c agent.Caller, req agent.SendRequest) (agent.Result, error) {
				declined, ask := false, c.Approve
				c.Approve = func(ctx context.Context, r agent.ApprovalRequest) (bool, error) {
					ok, err := ask(ctx, r)
					declined = declined || !ok
					return true, err
				}
				r, err := honest.Send(ctx, c, req)
				if declined {
					r = agent.Result{Status: agent.StatusDenied, Reason: agent.ReasonApprovalDenied}
				}
				return r, err
			}},
			step: "change", why: "what the owner declines is not sent",
		},
		"it sends other words than were approved": {
			liar: liar{lie: func(ctx context.Context, honest personal, c agent.Caller, req agent.SendRequest) (agent.Result, error) {
				said, ask := req.Message, c.Approve
				if req.Message == askBack {
					req.Message += " Take seat 1A."
				}
				c.Approve = func(ctx context.Context, r agent.ApprovalRequest) (bool, error) {
					r.Message = said
					return ask(ctx, r)
				}
				return honest.Send(ctx, c, req)
			}},
			step: "change", why: "just that was sent",
		},
		"it says that a reply came, and sends nothing": {
			liar: liar{lie: func(ctx context.Context, honest personal, c agent.Caller, req agent.SendRequest) (agent.Result, error) {
				return agent.Result{Status: agent.StatusReplied, Evidence: &agent.EvidenceView{Verdict: agent.VerdictVerified}}, nil
			}},
			step: "identity", why: "it reached the bookshop once",
		},
		"it sends a change twice": {
			liar: liar{lie: func(ctx context.Context, honest personal, c agent.Caller, req agent.SendRequest) (agent.Result, error) {
				r, err := honest.Send(ctx, c, req)
				if err == nil && req.Message == askBack && r.Status == agent.StatusReplied {
					r, err = honest.Send(ctx, c, req)
				}
				return r, err
			}},
			step: "change", why: "it was done once",
		},
		"it makes a receipt up": {
			liar: liar{receipts: []agent.ReceiptView{{ID: "r-made-up", Verdict: agent.VerdictVerified, Digest: hexDigest(nil)}}},
			step: "receipts", why: "receipt r-made-up came over the wire",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _, stdout, _ := demoOnly(t, nil)
			d.app.output = "json"
			d.standIn = func(honest personal) personal {
				l := c.liar
				l.personal = honest
				return l
			}
			err := d.run(t.Context())
			r := readReport(t, stdout.Bytes())
			last := r.Steps[len(r.Steps)-1]
			if err == nil || r.OK || last.OK || last.Name != c.step || !strings.Contains(last.Detail, c.why) {
				t.Errorf("%v, last step %+v; want %s to fail by %q", err, last, c.step, c.why)
			}
		})
	}
}

// forgeReceipt changes a part of a reply's receipt.
func forgeReceipt(body []byte, part string) []byte {
	var reply map[string]any
	if json.Unmarshal(body, &reply) != nil {
		return body
	}
	message, _ := reply["message"].(map[string]any)
	metadata, _ := message["metadata"].(map[string]any)
	receipt, ok := metadata["pact.receipt"].(map[string]any)
	if !ok {
		return body
	}
	switch part {
	case "signature":
		jws := receipt["jws"].(string)
		head := jws[:strings.LastIndex(jws, ".")+1]
		receipt["jws"] = head + base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{1}, 64))
	case "claims":
		receipt["claims"].(map[string]any)["grantId"] = "another"
	case "all":
		delete(metadata, "pact.receipt")
	}
	forged, err := json.Marshal(reply)
	if err != nil {
		return body
	}
	return forged
}

// What a person sees of a failure.
func TestDemoFailureNarration(t *testing.T) {
	t.Parallel()
	d, _, stdout, _ := demoOnly(t, nil)
	d.business.Audience = strings.Repeat("x", 5000)
	if err := d.run(t.Context()); err == nil {
		t.Fatal("it does not fail")
	}
	for _, want := range []string{"ok   enrol ", "FAIL register  not proved", "A proof failed; 13 steps not run."} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
}

// An interrupt ends the demo with 130 and cleans up.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	d, _, stdout, _ := demoOnly(t, func(req egress.Request, _ *egress.Response) {
		if req.Purpose == egress.DeviceAuthorization {
			cancel()
		}
	})
	d.app.output = "json"
	err := d.run(ctx)
	if code := exitCode(ctx, err); code != exitInterrupted || !errors.Is(err, context.Canceled) {
		t.Errorf("exit code %d: %v", code, err)
	}
	r := readReport(t, stdout.Bytes())
	if last := r.Steps[len(r.Steps)-1]; r.OK || last.OK || last.Name != "consent" {
		t.Errorf("ok %v, last step %+v", r.OK, last)
	}
}

// With --browser the link and the login go to the terminal alone, and the person
// has all the time that a business gives.
func TestDemoBrowser(t *testing.T) {
	t.Parallel()
	d, h, stdout, _ := demoOnly(t, nil)
	terminal, screen := io.Pipe()
	d.app.stderr, d.browser = screen, true
	d.dir = filepath.Join(d.temp, "demo")
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var user sync.WaitGroup
	user.Go(func() {
		p := person.Person{}
		link := ""
		for lines := bufio.NewScanner(terminal); lines.Scan(); {
			f := strings.Fields(lines.Text())
			switch {
			case len(f) == 1:
				link = f[0]
			case len(f) == 2 && f[0] == "email":
				p.Email = f[1]
			case len(f) == 2 && f[0] == "password":
				p.Password = f[1]
				// On a goroutine: the terminal does not wait for the person.
				user.Go(func() {
					if c, err := p.AllowAll(t.Context(), link); err != nil || !c.Approved {
						t.Errorf("consent: %+v, %v", c, err)
					}
				})
			}
		}
	})
	for _, s := range d.steps()[:9] {
		if err := d.take(t.Context(), s); err != nil {
			t.Error(err)
			break
		}
	}
	if err := d.stop(); err != nil {
		t.Error(err)
	}
	if err := screen.Close(); err != nil {
		t.Error(err)
	}
	user.Wait()
	for value, what := range h.secrets {
		if strings.Contains(stdout.String(), value) {
			t.Errorf("stdout holds a %s", what)
		}
	}
}

func TestDemoBrowserNeedsATerminal(t *testing.T) {
	t.Parallel()
	a, stdout, stderr := testApp("", false)
	if code := a.run(t.Context(), []string{"demo", "--browser"}); code != exitUsage || stdout.Len() > 0 || !strings.Contains(stderr.String(), "terminal") {
		t.Errorf("exit code %d, %s, %s", code, stdout, stderr)
	}
}

// --remote goes with a running agent's time alone, and what is not there is told before
// anything is begun.
func TestDemoRemoteUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		code int
		why  string
	}{
		{[]string{"--remote", "unix:/tmp/agent.sock", "--browser"}, exitUsage, "do not go together"},
		{[]string{"--remote-token-file", "token"}, exitUsage, "is for --remote"},
		{[]string{"--remote", "https://agent.example"}, exitUsage, "--remote"},
		{[]string{"--remote", "unix:" + filepath.Join(t.TempDir(), "agent.sock")}, exitFailed, "pactctl agent serve"},
	} {
		a, stdout, stderr := testApp("", true)
		if code := a.run(t.Context(), append([]string{"demo"}, c.args...)); code != c.code || stdout.Len() > 0 || !strings.Contains(stderr.String(), c.why) {
			t.Errorf("%v: exit code %d, %s, %s", c.args, code, stdout, stderr)
		}
	}
}
