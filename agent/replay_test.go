package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// recording is the Provider of a recorded run: it answers a request with the next
// exchange that the test expects, and holds the request to the recorded one.
type recording struct {
	t    *testing.T
	by   map[string]recorded
	used map[string]bool

	mu   sync.Mutex
	next []string
}

type recorded struct {
	Name    string
	Request struct {
		Method, URL string
		Headers     map[string]string
		Body        json.RawMessage
	}
	Response struct {
		Status  int
		Headers map[string]string
		Body    json.RawMessage
	}
}

func readRecording(t *testing.T) *recording {
	data, err := os.ReadFile("testdata/provider-run.json")
	if err != nil {
		t.Fatal(err)
	}
	var run struct{ Exchanges []recorded }
	if err := json.Unmarshal(data, &run); err != nil {
		t.Fatal(err)
	}
	p := &recording{t: t, by: map[string]recorded{}, used: map[string]bool{}}
	for _, x := range run.Exchanges {
		p.by[x.Name] = x
	}
	return p
}

// expect sets what is answered next, in order.
func (p *recording) expect(names ...string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.next) > 0 {
		p.t.Errorf("not asked for: %v", p.next)
	}
	p.next = names
}

func (p *recording) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	got := r.Method + " " + r.URL.String()
	if len(p.next) == 0 {
		p.t.Errorf("%s is not expected", got)
		w.WriteHeader(http.StatusTeapot)
		return
	}
	x, ok := p.by[p.next[0]]
	p.next = p.next[1:]
	if want := x.Request.Method + " " + x.Request.URL; !ok || got != want {
		p.t.Errorf("%s, want %s (%s)", got, want, x.Name)
	}
	p.used[x.Name] = true
	if x.Name != "no-token" { // ours always carries one
		p.compare(x, r)
	}
	for k, v := range x.Response.Headers {
		w.Header().Set(k, v)
	}
	w.WriteHeader(x.Response.Status)
	if body := x.Response.Body; len(body) > 0 && string(body) != `""` {
		_, _ = w.Write(body)
	}
}

// compare holds our request to the recorded one: the same headers, and the same
// members in a body, whatever their values.
func (p *recording) compare(x recorded, r *http.Request) {
	for k, v := range x.Request.Headers {
		scheme, _, _ := strings.Cut(v, " ")
		if got := r.Header.Get(k); !strings.HasPrefix(got, scheme) {
			p.t.Errorf("%s: header %s is %.20q, want %s …", x.Name, k, got, scheme)
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Error(err)
	}
	want := members(x.Request.Body)
	var got []string
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			p.t.Error(err)
		}
		for k := range form {
			// How a client says who it is: the recorded one by its client_id alone.
			if k != "client_assertion" && k != "client_assertion_type" {
				got = append(got, k)
			}
		}
		slices.Sort(got)
	} else {
		got = members(body)
	}
	if !slices.Equal(got, want) {
		p.t.Errorf("%s: the body has %v, the recorded one %v", x.Name, got, want)
	}
}

// members are the names in a JSON object, but for those that may be absent.
func members(raw json.RawMessage) (names []string) {
	var o map[string]json.RawMessage
	if len(bytes.TrimSpace(raw)) == 0 || json.Unmarshal(raw, &o) != nil {
		return nil
	}
	if m, ok := o["message"]; ok {
		return members(m)
	}
	for k := range o {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

const (
	recordedPA       = "http://127.0.0.1:4312"
	recordedProvider = "http://127.0.0.1:4310"
	skyline          = recordedProvider + "/a2a/01M3R53Q5SZQ6FQSMSDBSSREAA/.well-known/agent-card.json"
	loom             = recordedProvider + "/a2a/01M3R53Q5WKZ7A0GY4PZ8Y39TB/.well-known/agent-card.json"
	// recordedAt is the iat of the recorded run's first tokens.
	recordedAt = 1795964300
)

// recordedWorld is the recorded agent's: its signer, and the recording.
func recordedWorld(t *testing.T, p *recording) (*world, *agent.Agent) {
	time.Sleep(time.Until(time.Unix(recordedAt, 0)))
	w := newWorld(t)
	w.signer.url, w.signer.issuer, w.signer.subject = recordedPA, recordedPA, "user-7f3a"
	w.signer.audiences = map[string]string{recordedProvider: recordedProvider + "/a2a"}
	w.hosts = map[string]http.Handler{recordedPA: w.signer, recordedProvider: p}
	a := w.open()
	if _, err := a.Enroll(t.Context(), owner(), agent.EnrollRequest{SignerURL: recordedPA}); err != nil {
		t.Fatal(err)
	}
	return w, a
}

// The agent lives through a run that was recorded against a Provider of another
// make, in its time: discovery, an identity turn, a step-up on the first turn
// (DA-18, CV-13), a sign-in with interval 3 (DA-3, DA-5, DA-19), a narrower grant,
// a receipt that verifies (EV-1), a refused permission (DA-2), a refresh (GR-5), a
// delegation that is refused (GR-8) and one whose refresh token was used (GR-6).
func TestReplayRecordedRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := readRecording(t)
		w, a := recordedWorld(t, p)
		shown := []agent.SignIn{}
		c := w.person()
		c.SignIn = func(_ context.Context, s agent.SignIn) error { shown = append(shown, s); return nil }

		// The identity business.
		p.expect("card-identity", "identity-turn")
		first := w.send(a, c, agent.SendRequest{Business: loom, Message: "Where is my order?"}, agent.StatusReplied, "")
		if first.Evidence != nil || first.Reply != "(text)" {
			t.Errorf("identity turn: %+v", first)
		}
		p.expect("same-message-again")
		w.send(a, c, agent.SendRequest{Business: loom, Message: "Where is my order?", Conversation: first.Conversation}, agent.StatusReplied, "")
		p.expect("foreign-context")
		w.send(a, c, agent.SendRequest{Business: loom, Message: "Where is it now?", Conversation: first.Conversation}, agent.StatusFailed, "foreign_context")
		p.expect("no-token", "no-token")
		w.send(a, c, agent.SendRequest{Business: loom, Message: "Where is my order?"}, agent.StatusBlocked, agent.ReasonIdentityRejected)
		p.expect("card-unknown-brand")
		if _, err := a.Discover(t.Context(), c, agent.ParseBusiness(recordedProvider+"/a2a/nope/.well-known/agent-card.json")); agent.ReasonOf(err) != agent.ReasonNotFound {
			t.Errorf("unknown brand: %v", err)
		}

		// The airline: a step-up on the first turn, whose own link is ignored.
		p.expect("card-delegated", "metadata", "step-up-without-token", "device-authorization",
			"token-pending", "token-slow-down", "token-granted-narrower", "provider-jwks", "delegated-turn-with-receipt")
		begin := time.Now()
		trips := w.send(a, c, agent.SendRequest{Business: skyline, Message: "Can you check my upcoming flights?"}, agent.StatusReplied, "")
		if trips.Evidence == nil || trips.Evidence.Verdict != agent.VerdictVerified {
			t.Fatalf("delegated turn: %+v", trips)
		}
		// interval 3: 3 s to pending, 3 s to slow_down, 8 s to the grant
		if took := time.Since(begin); took != 14*time.Second {
			t.Errorf("the sign-in took %v, want 14 s", took)
		}
		if len(shown) != 1 || !strings.Contains(shown[0].Link.Reveal(), "QCBG-SSMX") || shown[0].UserCode.Reveal() != "QCBG-SSMX" {
			t.Errorf("shown %d links: not that of our own device flow", len(shown))
		}
		for _, r := range w.calls(egress.Message) {
			if strings.Contains(r.url, "01M3R53Q5SZQ6FQSMSDBSSREAA") && strings.Contains(r.body, "KFCN") {
				t.Error("the step-up's link was used")
			}
		}
		grants, err := a.Grants(t.Context(), c)
		if err != nil || len(grants) != 1 || !slices.Equal(grants[0].Scopes, []string{"flights:upcoming:read"}) {
			t.Fatalf("grants %+v, %v", grants, err)
		}

		// One more permission is needed; the business refuses to be asked for it.
		p.expect("step-up-scope-not-granted", "device-unknown-scope")
		w.send(a, c, agent.SendRequest{Business: skyline, Message: "Please rebook me onto SK 318", Effect: "change", Scopes: []string{"flights:upcoming:read"}, Conversation: trips.Conversation},
			agent.StatusFailed, agent.ReasonConsentScope)
		p.expect("device-wrong-client")
		r, err := a.Authorize(t.Context(), c, agent.AuthorizeRequest{Business: skyline, Scopes: []string{"flights:history:read"}})
		if err != nil || r.Reason != agent.ReasonConsentRejected {
			t.Errorf("a wrong client: %+v, %v", r, err)
		}
		p.expect("device-authorization", "token-used-code")
		r, err = a.Authorize(t.Context(), c, agent.AuthorizeRequest{Business: skyline, Scopes: []string{"flights:history:read"}})
		if err != nil || r.Status != agent.StatusFailed || r.Authorization.State != "failed" {
			t.Errorf("a used code: %+v, %v", r, err)
		}

		// Near the token's end it is refreshed; then the business drops it.
		time.Sleep(time.Until(time.Unix(recordedAt+3603-55, 0)))
		p.expect("card-delegated", "metadata", "refresh", "provider-jwks", "bad-delegation-token")
		w.send(a, c, agent.SendRequest{Business: skyline, Message: "Show my upcoming flights", Scopes: []string{"flights:upcoming:read"}},
			agent.StatusNeedsUserAction, agent.ReasonReconnect)
		if grants, err = a.Grants(t.Context(), c); err != nil || grants[0].State != "invalid" || grants[0].Reason != agent.ReasonDelegationGone {
			t.Errorf("grants %+v, %v", grants, err)
		}
		p.expect()
		// What an agent never asks for is understood by TestTranscript.
		never := []string{"wrong-role", "blank-text", "data-part", "task-id", "wrong-audience", "tasks", "tasks-bad-page", "task", "stream", "push", "unknown-route", "pa-jwks", "refresh-reused"}
		for name := range p.by {
			if p.used[name] == slices.Contains(never, name) {
				t.Errorf("exchange %s: used %v", name, p.used[name])
			}
		}
	})
}

// A refresh token that was used before is refused, as recorded (GR-5, GR-6): the
// grant ends and nothing is sent.
func TestReplayRefreshReused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := readRecording(t)
		w, a := recordedWorld(t, p)
		c := w.person()
		c.SignIn = func(context.Context, agent.SignIn) error { return nil }
		p.expect("card-delegated", "metadata", "device-authorization", "token-granted-narrower", "provider-jwks")
		if r, err := a.Authorize(t.Context(), c, agent.AuthorizeRequest{Business: skyline, Scopes: []string{"flights:upcoming:read"}}); err != nil || r.Status != agent.StatusDone {
			t.Fatalf("%+v, %v", r, err)
		}
		time.Sleep(time.Until(time.Unix(recordedAt+3603-55, 0)))
		p.expect("card-delegated", "metadata", "refresh-reused")
		w.send(a, c, agent.SendRequest{Business: skyline, Message: "Show my upcoming flights", Scopes: []string{"flights:upcoming:read"}},
			agent.StatusNeedsUserAction, agent.ReasonReconnect)
		p.expect()
		if g, err := a.Grants(t.Context(), c); err != nil || g[0].State != "invalid" || g[0].Reason != agent.ReasonRefreshRejected {
			t.Errorf("grants %+v, %v", g, err)
		}
	})
}
