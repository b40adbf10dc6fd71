package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// travelled are the words of how a call was answered, to a client that leaves as soon as
// the answer is held back.
func (m *faulty) travelled(method, address, body string, headers ...string) string {
	ctx, leave := context.WithCancel(m.t.Context())
	defer leave()
	m.leaving(leave)
	defer m.leaving(nil)
	a, err := m.tryUntil(ctx, method, address, body, headers...)
	if err != nil {
		return fmt.Sprint(a.status, " and nothing after the headers ", len(a.body))
	}
	said := words(a)
	if location := a.header.Get("Location"); location != "" {
		said += "to " + location
	}
	blanks := len(a.body) - len(bytes.TrimLeft(a.body, " "))
	said += fmt.Sprint(" after ", blanks, " blanks ")
	var members map[string]jsontext.Value
	switch {
	case len(a.body) == 0:
		return said + "nothing"
	case json.Unmarshal(a.body, &members) == nil:
		return said + fmt.Sprint(slices.Sorted(maps.Keys(members)))
	case bytes.HasPrefix(a.body, []byte("<!doctype html><title>It works!")):
		return said + "somebody's " + a.header.Get("Content-Type")
	case bytes.HasPrefix(a.body, []byte("<!doctype html>")):
		return said + "a page"
	case a.body[blanks] == '{':
		return said + "half an object"
	}
	return said + "something"
}

// routesOfFaults are the routes whose answers travel under faults of their own.
var routesOfFaults = []struct {
	carriage
	member string // of the answer
	probe  func(*faulty) string
}{
	{cardCarriage, "skills", func(m *faulty) string {
		return m.travelled(http.MethodGet, m.url(LarklineID, ".well-known/agent-card.json"), "")
	}},
	{metadataCarriage, "issuer", func(m *faulty) string {
		return m.travelled(http.MethodGet, m.url(LarklineID, "oauth/.well-known/oauth-authorization-server"), "")
	}},
	{keysCarriage, "keys", func(m *faulty) string { return m.travelled(http.MethodGet, m.url(LarklineID, "oauth/jwks.json"), "") }},
	{deviceCarriage, "interval", func(m *faulty) string {
		form := "client_id=" + m.issuer.url + "&scope=" + scopeUpcoming
		return m.travelled(http.MethodPost, m.url(LarklineID, "oauth/device_authorization"), form, formType, "Authorization: Bearer "+m.token())
	}},
	{tokenCarriage, "scope", func(m *faulty) string {
		d := m.device(scopeUpcoming)
		if _, err := m.person(0).AllowAll(m.t.Context(), text(m.t, d, "verification_uri_complete")); err != nil {
			m.t.Fatal(err)
		}
		form := "client_id=" + m.issuer.url + "&grant_type=" + grantDeviceCode + "&device_code=" + d["device_code"].(string)
		return m.travelled(http.MethodPost, m.url(LarklineID, "oauth/token"), form, formType, "Authorization: Bearer "+m.token())
	}},
	{messageCarriage, "", (*faulty).greet},
	{pageCarriage, "", func(m *faulty) string {
		return m.travelled(http.MethodGet, m.sandbox.signInLink(m.sandbox.business(LarklineID), ""), "")
	}},
}

// greet sends a message.
func (m *faulty) greet() string {
	body := `{"message":{"messageId":"` + newUUID() + `","role":"ROLE_USER","parts":[{"text":"hello"}]}}`
	return m.travelled(http.MethodPost, m.url(LarklineID, "message:send"), body, "Authorization: Bearer "+m.token())
}

// transportRows are the faults in how answers travel, of each route.
func transportRows() []faultRow {
	var rows []faultRow
	add := func(name, arg, want string, probe func(*faulty) string) {
		if slices.ContainsFunc(faultTable, func(f Fault) bool { return f.Name == name }) {
			rows = append(rows, faultRow{name + arg, probe, want})
		}
	}
	for _, route := range routesOfFaults {
		add(route.replies+"status", "=418", "418  after 0 blanks nothing", route.probe)
		add(route.replies+"redirect", "=javascript", "to javascript:alert(1)", route.probe)
		add(route.replies+"hang", "", "0 and nothing after the headers 0", route.probe)
		add(route.replies+"cut-headers", "", "200 and nothing after the headers 0", route.probe)
		add(route.bodies+"garbage", "", "somebody's text/html; charset=utf-8", route.probe)
		add(route.bodies+"malformed", "", "half an object", route.probe)
		add(route.bodies+"content-type", "=image/png", "Content-Type:image/png", route.probe)
		add(route.bodies+"oversize", "=70000", "after 70000 blanks", route.probe)
		if f := route.bodies + "missing"; route.member != "" {
			add(f, "="+route.member, "without "+route.member, func(m *faulty) string {
				said := route.probe(m)
				if !strings.Contains(said, route.member) {
					said += " without " + route.member
				}
				return said
			})
		}
		if route.replies != "" { // that it ends is seen of messages
			add(route.replies+"slow", "=1", "0 and nothing after the headers 0", route.probe)
		}
	}
	return append(rows,
		faultRow{"slow=1", (*faulty).send, "late true ran 1"},
		faultRow{"hang-before", (*faulty).greet, "0 and nothing after the headers 0"})
}

// A fault that holds an answer back ends with the client, and with the sandbox.
func TestHeldBackEnds(t *testing.T) {
	for _, spec := range []string{"card-hang*1", "card-slow=1000*1"} {
		for _, who := range []string{"client", "sandbox"} {
			t.Run(spec+" "+who, func(t *testing.T) {
				s, err := New(Config{PasswordMemory: 64})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = s.Close() }()
				ended := make(chan struct{})
				front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer close(ended)
					s.Provider().ServeHTTP(w, r)
				}))
				defer front.Close()
				if err := s.SetFaults(spec); err != nil {
					t.Fatal(err)
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL+"/a2a/"+LarklineID+"/.well-known/agent-card.json", nil)
				if err != nil {
					t.Fatal(err)
				}
				answered := make(chan error, 1)
				go func() {
					resp, err := http.DefaultClient.Do(req)
					if err == nil {
						_ = resp.Body.Close()
					}
					answered <- err
				}()
				for len(s.faults.active()) > 0 { // until it is held back
					select {
					case err := <-answered:
						t.Fatal("answered: ", err)
					case <-time.After(time.Millisecond):
					}
				}
				if who == "client" {
					leave()
				} else if err := s.Close(); err != nil {
					t.Error(err)
				}
				select {
				case <-ended:
				case <-time.After(time.Minute):
					t.Fatal("it is held back still")
				}
				if err := <-answered; err == nil {
					t.Error("answered")
				}
			})
		}
	}
}

// Where each KIND of redirect leads, and what a client that follows it gets.
func TestRedirects(t *testing.T) {
	m := newFaulty(t)
	follows := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	follows.CheckRedirect = func(_ *http.Request, via []*http.Request) error {
		if len(via) > redirects+5 {
			return fmt.Errorf("%d redirects", len(via))
		}
		return nil
	}
	t.Cleanup(follows.CloseIdleConnections)
	site, ours := m.sandbox.brandURL, m.ready.Provider
	user := strings.Replace(ours, "http://", "http://user:password@", 1)
	for kind, want := range map[string]struct {
		to   string // Location begins so
		gets int    // who follows it; 0: not followed here
	}{
		"301": {site, 200}, "302": {site, 200}, "303": {site, 200}, "307": {site, 200}, "308": {site, 200},
		"http": {"http://elsewhere.example/a2a/", 0}, "internal": {"https://10.0.0.1/a2a/", 0}, "javascript": {"javascript:alert(1)", 0},
		"loop": {ours, -1}, "many": {ours, 200}, "no-location": {"", 0}, "userinfo": {user, 200},
	} {
		for _, route := range []struct{ fault, method, path, body string }{
			{"card-redirect", http.MethodGet, ".well-known/agent-card.json", ""},
			{"redirect", http.MethodPost, "message:send", `{"message":{"messageId":"` + newUUID() + `","role":"ROLE_USER","parts":[{"text":"hello"}]}}`},
		} {
			t.Run(route.fault+" "+kind, func(t *testing.T) {
				m.t = t
				auth := "Authorization: Bearer " + m.token()
				m.on(route.fault + "=" + kind)
				ran := len(m.sandbox.Executed())
				a := m.do(route.method, m.url(LarklineID, route.path), route.body, auth)
				status := map[string]string{http.MethodGet: "302", http.MethodPost: "307"}[route.method]
				if kind[0] == '3' {
					status = kind
				}
				if fmt.Sprint(a.status) != status || !strings.HasPrefix(a.header.Get("Location"), want.to) || want.to == "" && a.header.Values("Location") != nil {
					t.Errorf("%d to %q", a.status, a.header.Get("Location"))
				}
				if len(m.sandbox.Executed()) > ran {
					t.Error("the message ran")
				}
				if want.gets == 0 {
					return
				}
				req, err := http.NewRequestWithContext(t.Context(), route.method, m.url(LarklineID, route.path), strings.NewReader(route.body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", strings.TrimPrefix(auth, "Authorization: "))
				resp, err := follows.Do(req)
				if err != nil {
					if want.gets > 0 {
						t.Error(err)
					}
					return
				}
				defer resp.Body.Close()
				turned := route.method == http.MethodPost && (kind == "301" || kind == "302" || kind == "303") // into GET
				user := route.method == http.MethodPost && kind == "userinfo"                                  // Basic then
				if !turned && !user && resp.StatusCode != want.gets || want.gets < 0 {
					t.Errorf("who follows gets %d", resp.StatusCode)
				}
				if turned && resp.StatusCode != http.StatusMethodNotAllowed {
					t.Errorf("a POST that became a GET gets %d", resp.StatusCode)
				}
			})
		}
	}
	m.on()
	// Nobody makes up an address of the other origin that we serve.
	if a := m.do(http.MethodGet, site+"/a2a/"+LarklineID+"/.well-known/agent-card.json?redirected=x.many.3", ""); a.status != http.StatusNotFound {
		t.Errorf("%d", a.status)
	}
}

// A login that redirects keeps what it was asked for.
func TestLoginRedirects(t *testing.T) {
	m := newFaulty(t)
	follows := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	follows.CheckRedirect = func(_ *http.Request, via []*http.Request) error {
		if len(via) > redirects+5 {
			return http.ErrUseLastResponse
		}
		return nil
	}
	t.Cleanup(follows.CloseIdleConnections)
	link := m.sandbox.signInLink(m.sandbox.business(LarklineID), "")
	for kind, want := range map[string]struct {
		at     string
		status int
	}{
		"302": {m.ready.Provider, http.StatusOK}, "307": {m.ready.Provider, http.StatusOK}, "many": {m.sandbox.brandURL, http.StatusOK},
		"loop": {m.sandbox.brandURL, http.StatusFound},
	} {
		m.on("page-redirect=" + kind)
		resp, err := follows.Get(link)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if at := resp.Request.URL.String(); !strings.HasPrefix(at, want.at+loginPath+"?") || resp.StatusCode != want.status {
			t.Errorf("%s: %d at %s", kind, resp.StatusCode, at)
		}
	}
	m.on()
	// Without a fault the Provider has no login.
	if a := m.do(http.MethodGet, m.ready.Provider+strings.TrimPrefix(link, m.sandbox.brandURL)+"&redirected=x.302.1", ""); a.status != http.StatusNotFound {
		t.Errorf("%d", a.status)
	}
}

// A request's own faults are for it alone and go before those for all; without
// Config.FaultHeader the header means nothing.
func TestFaultHeader(t *testing.T) {
	name := func(w *world, headers ...string) string {
		a := w.do(http.MethodGet, w.url(LarklineID, ".well-known/agent-card.json"), "", headers...)
		if a.status != http.StatusOK {
			return words(a, string(a.body))
		}
		return text(w.t, a.json(w.t), "name")
	}
	w := newWorld(t, func(c *Config) { c.FaultHeader = true })
	if got := name(w, "X-Sandbox-Fault: card-name=A, B", "X-Sandbox-Fault: card-no-provider"); got != "A, B" {
		t.Errorf("got %s", got)
	}
	if got := name(w); got != "Larkline Air" {
		t.Errorf("the next one got %s", got)
	}
	if got := w.sandbox.faults.active(); len(got) > 0 {
		t.Errorf("on for all: %q", got)
	}
	if err := w.sandbox.SetFaults("card-name=All*1"); err != nil {
		t.Fatal(err)
	}
	if got := name(w, "X-Sandbox-Fault: card-name=Mine"); got != "Mine" {
		t.Errorf("got %s", got)
	}
	if got := name(w); got != "All" {
		t.Errorf("the one for all was used up: %s", got)
	}
	if got := name(w, "X-Sandbox-Fault: card-nme"); !strings.HasPrefix(got, "400 ") || !strings.Contains(got, "did you mean card-name?") {
		t.Errorf("a bad one: %s", got)
	}
	if got := name(w, "X-Sandbox-Fault: card-name", "X-Sandbox-Fault: card-name"); !strings.Contains(got, "keep one") {
		t.Errorf("twice: %s", got)
	}
	// In a turn, which does not run in the request's own context.
	a := w.say(LarklineID, newUUID(), "", "hello", "")
	context, _ := w.reply(a)
	body := `{"message":{"messageId":"m1","contextId":"` + context + `","role":"ROLE_USER","parts":[{"text":"hello"}]}}`
	got, _ := w.reply(w.call(http.MethodPost, w.url(LarklineID, "message:send"), body, "X-Sandbox-Fault: reply-context"))
	again, _ := w.reply(w.call(http.MethodPost, w.url(LarklineID, "message:send"), body))
	if got == context || again != context {
		t.Errorf("context %s, then %s, of %s", got, again, context)
	}
	// On the brands' own domain.
	if a := w.do(http.MethodGet, w.sandbox.signInLink(w.sandbox.business(LarklineID), ""), "", "X-Sandbox-Fault: page-status=503"); a.status != http.StatusServiceUnavailable {
		t.Errorf("login: %d", a.status)
	}

	off := newWorld(t)
	for _, spec := range []string{"card-name=A", "nonsense"} {
		if got := name(off, "X-Sandbox-Fault: "+spec); got != "Larkline Air" {
			t.Errorf("switched off, %s: %s", spec, got)
		}
	}
}
