package control_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
	"github.com/pactsigner/pactsigner/agent/egress"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// curl calls a control plane by REST, as a program does that has nothing of ours.
type curl struct {
	*testing.T
	client  *http.Client
	headers []string // pairs
	heard   *heard
}

// heard is all that was answered.
type heard struct {
	mu   sync.Mutex
	text strings.Builder
}

func (h *heard) add(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text.WriteString(text)
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

// curl is the owner at their socket.
func (w *world) curl() *curl {
	path := w.socket()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	w.Cleanup(transport.CloseIdleConnections)
	return &curl{w.T, &http.Client{Transport: transport}, nil, new(heard)}
}

// with is the same with headers.
func (c *curl) with(headers ...string) *curl {
	d := *c
	d.headers = headers
	return &d
}

func (c *curl) open(ctx context.Context, method, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(c.headers); i += 2 {
		req.Header.Set(c.headers[i], c.headers[i+1])
	}
	return c.client.Do(req)
}

// try makes a call and reads its answer to the end.
func (c *curl) try(method, path, body string) (code int, answer string, err error) {
	resp, err := c.open(c.Context(), method, path, body)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	c.heard.add(string(text))
	return resp.StatusCode, string(text), err
}

// do makes a call that is answered at once. The answer is read into m, unless nil.
func (c *curl) do(method, path, body string, m proto.Message) int {
	c.Helper()
	code, text, err := c.try(method, path, body)
	if err != nil {
		c.Fatal(err)
	}
	if m != nil {
		if code != http.StatusOK {
			c.Fatalf("%s %s: %d %s", method, path, code, text)
		}
		if err := protojson.Unmarshal([]byte(text), m); err != nil {
			c.Fatal(err)
		}
	}
	return code
}

// stream makes a call that is answered by a stream, of which each gives the next.
func (c *curl) stream(ctx context.Context, method, path, body string) (next func(proto.Message) bool) {
	c.Helper()
	resp, err := c.open(ctx, method, path, body)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		c.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, text)
	}
	lines := bufio.NewReader(resp.Body)
	return func(m proto.Message) bool {
		line, err := lines.ReadString('\n')
		c.heard.add(line)
		if err != nil {
			return false
		}
		var chunk struct {
			Result jsontext.Value `json:"result"`
			Error  jsontext.Value `json:"error"`
		}
		if err := json.Unmarshal([]byte(line), &chunk); err != nil || chunk.Error != nil {
			c.Errorf("%s: %s, %v", path, line, err)
			return false
		}
		proto.Reset(m)
		if err := protojson.Unmarshal(chunk.Result, m); err != nil {
			c.Error(err)
		}
		return true
	}
}

// operate is an operation: each update of it is given to see, its result is returned.
func (c *curl) operate(path, body string, see func(*agentv1.OperationUpdate)) *agentv1.Result {
	c.Helper()
	next := c.stream(c.Context(), http.MethodPost, path, body)
	var result *agentv1.Result
	for u := new(agentv1.OperationUpdate); next(u); {
		if result != nil {
			c.Errorf("after the result: %v", u)
		}
		if result = u.GetResult(); result == nil && see != nil {
			see(u)
		}
	}
	if result == nil {
		c.Fatal("the operation has no result")
	}
	return proto.CloneOf(result)
}

// tap remembers the secrets of what goes over an agent's wire.
type tap struct {
	agent.Egress
	mu      sync.Mutex
	secrets map[string]string // and what each is
}

// Do implements [agent.Egress].
func (w *tap) Do(ctx context.Context, req egress.Request) (egress.Response, error) {
	resp, err := w.Egress.Do(ctx, req)
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, token, ok := strings.Cut(req.Header.Get("Authorization"), " "); ok {
		w.secrets[token] = "a PA-JWT"
	}
	for name := range req.Header {
		if strings.EqualFold(name, "X-A2A-User-Delegation") {
			w.secrets[req.Header.Get(name)] = "a delegation token"
		}
	}
	w.note("", resp.Body)
	return resp, err
}

// note finds the secrets in a document.
func (w *tap) note(name string, doc jsontext.Value) {
	switch doc.Kind() {
	case '{':
		var members map[string]jsontext.Value
		if json.Unmarshal(doc, &members) == nil {
			for name, v := range members {
				w.note(name, v)
			}
		}
	case '[':
		var items []jsontext.Value
		if json.Unmarshal(doc, &items) == nil {
			for _, v := range items {
				w.note(name, v)
			}
		}
	case '"':
		var s string
		if json.Unmarshal(doc, &s) != nil || len(s) < 6 {
			return
		}
		switch name {
		case "access_token", "refresh_token", "device_code", "user_code", "verification_uri_complete", "jws", "token":
			w.secrets[s] = "the " + name
		}
	}
}

// tapped opens the profile's agent anew, with its wire tapped.
func (w *world) tapped() *tap {
	w.Helper()
	t := &tap{secrets: map[string]string{}}
	a, err := agent.Open(agent.Config{
		Dir: w.dir, Store: w.store, Key: agent.KeyFile, Params: hasty(), Development: true,
		Network: func(rules agent.URLRules, policy egress.Policy) agent.Egress {
			t.Egress = egress.New(egress.Config{Rules: rules, Policy: policy})
			return t
		},
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(a.Close)
	w.local, w.ag = a, a
	return t
}

// CP-4: the whole of what can be done, by every method, for the owner and for a task:
// no answer and no event holds a token, a device code, a credential, a receipt's
// signed form, or a link; GetSignIn alone has that and the code to type.
func TestNoSecretInAnyAnswer(t *testing.T) {
	w := bareWorld(t)
	wire := w.tapped()
	w.signer = startSigner(t)
	w.signer.register(t, w.ready.Provider, w.ready.Audience)
	w.serve()
	owner := w.curl()
	task := owner.with("Pact-Task", "trip")
	links := w.curl() // its answers are apart: those of GetSignIn

	watching, ended := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kinds := map[string]bool{}
	next := owner.stream(ctx, http.MethodGet, "/v1/events", "")
	go func() {
		defer close(ended)
		for e := new(agentv1.ChangeEvent); next(e); {
			if e.Kind == string(agent.KindWatching) {
				close(watching)
			}
			kinds[e.Kind] = true
			if e.Kind == string(agent.KindGrant) && e.State == "disconnected" { // the last thing done
				cancel()
			}
		}
	}()
	<-watching

	owner.do("POST", "/v1/identity:deviceKey", `{"signerUrl":"`+w.signer.url+`"}`, new(agentv1.Identity))
	owner.do("POST", "/v1/providers", `{"origin":"`+w.ready.Provider+`","audience":"`+w.ready.Audience+`","label":"sandbox"}`, new(agentv1.Provider))
	owner.do("POST", "/v1/settings", `{"preference":"prefer-pact"}`, new(agentv1.Settings))
	owner.do("POST", "/v1/businesses:discover", `{"cardUrl":"`+w.air()+`"}`, new(agentv1.Business))

	// The owner signs in: who asked stays, and is told that it waits, without a link.
	var authorization string
	granted := owner.operate("/v1/authorizations:start", `{"business":"`+w.air()+`","scopes":["`+upcoming+`"],"purpose":"test","waitForSignIn":true}`, func(u *agentv1.OperationUpdate) {
		z := u.GetAuthorization()
		if z == nil {
			return
		}
		authorization = z.Id
		for _, method := range []string{"GET ", "GET :status", "GET :wait"} {
			verb, suffix, _ := strings.Cut(method, " ")
			if suffix != ":wait" {
				owner.do(verb, "/v1/authorizations/"+z.Id+suffix, "", nil)
				task.do(verb, "/v1/authorizations/"+z.Id+suffix, "", nil)
			}
		}
		owner.do("GET", "/v1/authorizations", "", nil)
		if code := task.do("POST", "/v1/authorizations/"+z.Id+":signIn", `{}`, nil); code != 403 {
			t.Errorf("a task gets a link: %d", code)
		}
		in := new(agentv1.SignIn)
		links.do("POST", "/v1/authorizations/"+z.Id+":signIn", `{}`, in)
		if in.Link == "" || in.UserCode == "" {
			t.Fatalf("a sign-in without a link or a code")
		}
		if _, err := w.user().AllowAll(t.Context(), in.Link); err != nil {
			t.Fatal(err)
		}
	})
	if granted.Status != string(agent.StatusDone) || granted.Grant == nil {
		t.Fatalf("the sign-in: %v", granted)
	}

	// A task asks for an inspection, which the grant covers, and for a change, which
	// the owner approves, to whom the step-up's sign-in is shown.
	read := task.operate("/v1/conversations:send", `{"business":"`+w.air()+`","message":"Show my upcoming flights","effect":"inspect","scopes":["`+upcoming+`"]}`, nil)
	if read.Status != string(agent.StatusReplied) || read.Evidence.GetVerdict() != string(agent.VerdictVerified) {
		t.Fatalf("the inspection: %v", read)
	}
	change := task.operate("/v1/conversations:send", `{"business":"`+w.air()+`","message":"Rebook me onto LK 318","effect":"change","scopes":["`+rebook+`"],"conversation":"`+read.Conversation+`"}`, nil)
	if change.Status != string(agent.StatusApprovalRequired) || change.Approval.GetId() == "" {
		t.Fatalf("the change: %v", change)
	}
	approval := new(agentv1.Approval)
	owner.do("GET", "/v1/approvals/"+change.Approval.Id, "", approval)
	if approval.Actor != "owner task trip" || approval.Message != "Rebook me onto LK 318" {
		t.Errorf("the approval: %v", approval)
	}
	done := owner.operate("/v1/approvals/"+approval.Id+":decide", `{"decision":"approve","digest":"`+approval.Digest+`","waitForSignIn":true,"waitForApproval":true}`, func(u *agentv1.OperationUpdate) {
		if z := u.GetAuthorization(); z != nil {
			in := new(agentv1.SignIn)
			links.do("POST", "/v1/authorizations/"+z.Id+":signIn", `{}`, in)
			if _, err := w.user().AllowAll(t.Context(), in.Link); err != nil {
				t.Error(err)
			}
		}
	})
	if done.Status != string(agent.StatusReplied) || done.Evidence.GetVerdict() != string(agent.VerdictVerified) {
		t.Fatalf("the change: %v", done)
	}
	owner.do("GET", "/v1/approvals/"+approval.Id, "", approval)
	if approval.State != agent.ApprovalSent || approval.DecidedBy != "owner" || approval.SentMessage != done.Message {
		t.Errorf("the approval afterwards: %v", approval)
	}

	// Everything that can be read, by both.
	for _, c := range []*curl{owner, task} {
		for _, path := range []string{
			"/v1/status", "/v1/settings", "/v1/providers", "/v1/businesses", "/v1/conversations", "/v1/conversations/" + done.Conversation,
			"/v1/conversations/" + done.Conversation + ":transcript", "/v1/authorizations", "/v1/authorizations/" + authorization,
			"/v1/authorizations/" + authorization + ":status?wait=1s", "/v1/authorizations/" + authorization + ":wait", "/v1/grants", "/v1/receipts",
			"/v1/receipts/" + done.Evidence.Receipt, "/v1/reviews?all=true", "/v1/approvals?all=true", "/v1/approvals/" + approval.Id,
		} {
			if code := c.do("GET", path, "", nil); code != 200 {
				t.Errorf("GET %s: %d", path, code)
			}
		}
	}
	owner.do("POST", "/v1/receipts/"+done.Evidence.Receipt+":verify", `{}`, new(agentv1.Receipt))
	owner.do("POST", "/v1/doctor", `{}`, new(agentv1.RunDoctorResponse))
	// What is over has no link any more, and what the agent refuses says none either.
	owner.do("POST", "/v1/authorizations/"+authorization+":signIn", `{}`, nil)
	owner.do("POST", "/v1/authorizations/"+authorization+":cancel", `{}`, nil)
	owner.do("POST", "/v1/approvals/"+approval.Id+":decide", `{"decision":"approve","digest":"`+approval.Digest+`"}`, nil)
	// Once the grant that was used has ended, the watch has.
	owner.do("POST", "/v1/grants/"+grantOf(owner)+":disconnect", `{}`, new(agentv1.Disconnection))
	<-ended
	for _, kind := range []agent.Kind{agent.KindIdentity, agent.KindProvider, agent.KindBusiness, agent.KindAuthorization, agent.KindGrant, agent.KindApproval, agent.KindConversation, agent.KindMessage, agent.KindReceipt} {
		if !kinds[string(kind)] {
			t.Errorf("no event tells of %s", kind)
		}
	}

	text := owner.heard.String()
	wire.mu.Lock() // the agent still tends
	defer wire.mu.Unlock()
	if len(wire.secrets) < 8 {
		t.Errorf("the wire had only %d secrets", len(wire.secrets))
	}
	for secret, what := range wire.secrets {
		if strings.Contains(text, secret) {
			t.Errorf("an answer has %s", what)
		}
		shown := what == "the user_code" || what == "the verification_uri_complete"
		if !shown && strings.Contains(links.heard.String(), secret) {
			t.Errorf("GetSignIn has %s", what)
		}
	}
	if strings.Contains(text, w.ready.Login.Password) {
		t.Error("an answer has the password")
	}
}

// grantOf is the id of the active grant.
func grantOf(c *curl) string {
	c.Helper()
	list := new(agentv1.ListGrantsResponse)
	c.do("GET", "/v1/grants", "", list)
	for _, g := range list.Grants {
		if g.State == "active" {
			return g.Id
		}
	}
	c.Fatalf("no grant is active: %v", list)
	return ""
}

// AP-1, AP-3: who asks cannot decide, and an approval is good for one sending of what
// was approved, whoever tries it how often.
func TestTaskCannotDecide(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	owner := w.curl()
	assistant := owner.with("Authorization", "Bearer "+w.token(control.ScopeAssistant).Reveal())
	ask := func(c *curl) *agentv1.Approval {
		t.Helper()
		r := c.operate("/v1/conversations:send", `{"business":"`+w.shop()+`","message":"`+w.change().Message+`","effect":"inspect"}`, nil)
		if r.Status != string(agent.StatusApprovalRequired) || r.Approval.GetId() == "" || r.Approval.Effect != string(agent.EffectChange.String()) {
			t.Fatalf("%v", r)
		}
		return r.Approval
	}
	first := ask(assistant)
	if first.Actor != "token t-assistant" {
		t.Errorf("asked by %q", first.Actor)
	}
	decide := func(c *curl, id, decision, digest string) int {
		t.Helper()
		return c.do("POST", "/v1/approvals/"+id+":decide", `{"decision":"`+decision+`","digest":"`+digest+`"}`, nil)
	}
	operator := owner.with("Authorization", "Bearer "+w.token(control.ScopeOperator).Reveal())
	for name, c := range map[string]*curl{"the assistant": assistant, "a task of the owner": owner.with("Pact-Task", "x"), "an operator": operator} {
		for _, decision := range []string{"approve", "deny"} {
			if code := decide(c, first.Id, decision, first.Digest); code != 403 {
				t.Errorf("%s decides (%s): %d", name, decision, code)
			}
		}
	}
	// Without the digest that was shown, or with another's, it is not approved.
	if code := decide(owner, first.Id, "approve", ""); code != 400 {
		t.Errorf("approved without a digest: %d", code)
	}
	for _, digest := range []string{strings.Repeat("0", 64), first.Digest[:63]} {
		r := owner.operate("/v1/approvals/"+first.Id+":decide", `{"decision":"approve","digest":"`+digest+`"}`, nil)
		if r.Status == string(agent.StatusReplied) || r.Status == string(agent.StatusDone) {
			t.Errorf("approved with the digest %q: %v", digest, r)
		}
	}
	if got := w.box.Executed(); len(got) != 0 {
		t.Fatalf("carried out: %+v", got)
	}
	// Who asks and waits hears the owner's word, and gives none.
	denied := assistant.operate("/v1/conversations:send", `{"business":"`+w.shop()+`","message":"`+w.change().Message+` today","effect":"change","waitForApproval":true}`, func(u *agentv1.OperationUpdate) {
		if p := u.GetApproval(); p != nil {
			now := new(agentv1.Approval)
			if owner.do("GET", "/v1/approvals/"+p.Id, "", now); now.State != agent.ApprovalPending {
				t.Errorf("the owner is asked, and it is %s", now.State)
			}
			if code := decide(owner, p.Id, "deny", ""); code != 200 {
				t.Errorf("the owner denies: %d", code)
			}
		}
	})
	if denied.Status != string(agent.StatusDenied) || len(w.box.Executed()) != 0 {
		t.Errorf("denied: %v", denied)
	}
	// Many approve at once: it is sent once.
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			code, text, err := owner.try("POST", "/v1/approvals/"+first.Id+":decide", `{"decision":"approve","digest":"`+first.Digest+`"}`)
			if err != nil || code != 200 {
				t.Errorf("%d %s, %v", code, text, err)
			}
		})
	}
	all.Wait()
	times := 0
	for _, e := range w.box.Executed() {
		if e.Text == w.change().Message {
			times++
		}
	}
	if times != 1 {
		t.Errorf("carried out %d times", times)
	}
}

// A caller that leaves ends what it asked for; its sign-in goes on without it, and
// whoever may read sees how that ends.
func TestCallerThatLeaves(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	owner := w.curl()
	reader := owner.with("Authorization", "Bearer "+w.token(control.ScopeRead).Reveal())

	// While the owner is asked: nobody wants it any more.
	ctx, leave := context.WithCancel(t.Context())
	next := owner.stream(ctx, http.MethodPost, "/v1/conversations:send", `{"business":"`+w.shop()+`","message":"`+w.change().Message+`","effect":"change","waitForApproval":true}`)
	u := new(agentv1.OperationUpdate)
	for next(u) && u.GetApproval() == nil {
	}
	approval := proto.CloneOf(u.GetApproval())
	if approval.GetState() != agent.ApprovalPending || approval.Message != w.change().Message {
		t.Fatalf("asked for %v", approval)
	}
	changed := owner.stream(t.Context(), http.MethodGet, "/v1/events", "")
	e := new(agentv1.ChangeEvent)
	changed(e)
	leave()
	for changed(e) && (e.Id != approval.Id || e.State != agent.ApprovalWithdrawn) {
	}
	if code := owner.do("POST", "/v1/approvals/"+approval.Id+":decide", `{"decision":"approve","digest":"`+approval.Digest+`"}`, nil); code != 200 {
		t.Errorf("to decide what is over: %d", code)
	}
	if got := w.box.Executed(); len(got) != 0 {
		t.Errorf("carried out: %+v", got)
	}

	// While the owner signs in: the agent waits on.
	ctx, leave = context.WithCancel(t.Context())
	next = owner.stream(ctx, http.MethodPost, "/v1/authorizations:start", `{"business":"`+w.air()+`","scopes":["`+upcoming+`"],"waitForSignIn":true}`)
	for next(u) && u.GetAuthorization() == nil {
	}
	id := u.GetAuthorization().GetId()
	in := new(agentv1.SignIn)
	owner.do("POST", "/v1/authorizations/"+id+":signIn", `{}`, in)
	leave()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		code, text, err := reader.try("GET", "/v1/authorizations/"+id+":wait", "")
		if err != nil || code != 200 || !strings.Contains(text, `"status":"done"`) {
			t.Errorf("the sign-in: %d %s, %v", code, text, err)
		}
	})
	if _, err := w.user().AllowAll(t.Context(), in.Link); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
	if grantOf(reader) == "" {
		t.Error("there is no grant")
	}
}

// CP-2, AP-5: what an admin confirms is told whole as it is sent.
func TestConfirmedIsTold(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	admin := w.curl().with("Authorization", "Bearer "+w.token(control.ScopeAdmin).Reveal())
	var told []*agentv1.Approval
	r := admin.operate("/v1/conversations:send", `{"business":"`+w.shop()+`","message":"`+w.change().Message+`","effect":"change","confirmed":true}`, func(u *agentv1.OperationUpdate) {
		if u.GetConfirmed() != nil {
			told = append(told, proto.CloneOf(u.GetConfirmed()))
		}
		if u.GetApproval() != nil {
			t.Errorf("asked for %v", u)
		}
	})
	if r.Status != string(agent.StatusReplied) || len(told) != 1 || told[0].Message != w.change().Message || told[0].Digest == "" || told[0].Destination == "" {
		t.Errorf("%v, told %v", r, told)
	}
	conversation := new(agentv1.Conversation)
	admin.do("GET", "/v1/conversations/"+r.Conversation, "", conversation)
	if m := conversation.Messages; len(m) != 2 || m[1].Actor != "token t-admin" || m[1].Text != w.change().Message { // an introduction first
		t.Errorf("recorded as %v", m)
	}
}

// Who waits for a sign-in's end by its status is answered when it has ended, and not
// before the time is over.
func TestStatusWaits(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	owner := w.curl()
	r := owner.operate("/v1/authorizations:start", `{"business":"`+w.air()+`","scopes":["`+upcoming+`"]}`, nil)
	if r.Status != string(agent.StatusNeedsUserAction) || r.Authorization == nil {
		t.Fatalf("%v", r)
	}
	path := "/v1/authorizations/" + r.Authorization.Id
	st := new(agentv1.AuthorizationStatus)
	owner.do("GET", path+":status?wait=0.001s", "", st)
	if st.State != "pending" || st.Text != agent.SettledText("pending", "") || st.Deadline == nil {
		t.Errorf("%v", st)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		code, text, err := owner.try("GET", path+":status?wait=60s", "")
		if err != nil || code != 200 || protojson.Unmarshal([]byte(text), st) != nil {
			t.Errorf("%d %s, %v", code, text, err)
		}
	}()
	owner.do("POST", path+":cancel", `{}`, new(agentv1.Authorization))
	<-answered
	if st.State != "cancelled" || st.Reason != agent.ReasonUserCancelled || st.Text != agent.SettledText(st.State, st.Reason) {
		t.Errorf("%v", st)
	}
	z := new(agentv1.Authorization)
	owner.do("GET", path, "", z)
	if z.SettledBy != "owner" || z.Actor != "owner" {
		t.Errorf("recorded as %v", z)
	}
}
