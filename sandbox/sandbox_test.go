package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// issuer is a personal agent's issuer with a JWKS of its own.
type issuer struct {
	url     string
	fetches atomic.Int64

	mu    sync.Mutex
	keys  []jose.JSONWebKey     // private
	serve map[string]func() any // by path; the rest is 404
}

// change alters what the issuer serves.
func (i *issuer) change(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	iss := &issuer{keys: []jose.JSONWebKey{newKey(t, jose.ES256)}}
	iss.serve = map[string]func() any{"/.well-known/jwks.json": iss.jwks}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		iss.fetches.Add(1)
		iss.mu.Lock()
		defer iss.mu.Unlock()
		doc, ok := iss.serve[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_ = json.MarshalWrite(w, doc())
	}))
	t.Cleanup(srv.Close)
	iss.url = srv.URL
	return iss
}

func (i *issuer) jwks() any {
	var set jose.JSONWebKeySet
	for _, k := range i.keys {
		set.Keys = append(set.Keys, k.Public())
	}
	return set
}

func newKey(t *testing.T, alg jose.SignatureAlgorithm) jose.JSONWebKey {
	t.Helper()
	var private crypto.Signer
	var err error
	if alg == jose.RS256 {
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	kid, err := jwks.Thumbprint(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: private, KeyID: kid, Algorithm: string(alg), Use: "sig"}
}

// sign makes a JWT with any claims and header members.
func sign(t *testing.T, key jose.JSONWebKey, claims any, header map[jose.HeaderKey]any) string {
	t.Helper()
	opts := &jose.SignerOptions{ExtraHeaders: map[jose.HeaderKey]any{"typ": "JWT"}}
	for k, v := range header {
		opts.ExtraHeaders[k] = v
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(key.Algorithm), Key: key}, opts)
	if err != nil {
		t.Fatal(err)
	}
	compact, err := signJSON(signer, claims)
	if err != nil {
		t.Fatal(err)
	}
	return compact
}

// world is a running sandbox, an issuer, and a clock.
type world struct {
	t       *testing.T
	clock   *clock
	sandbox *Sandbox
	issuer  *issuer
	ready   Ready
	client  *http.Client
	subject string
}

var testStart = time.Date(2026, 11, 29, 14, 58, 20, 945_000_000, time.UTC)

var testAccounts = []Account{
	{ID: "lark-4471", Name: "Robin", Login: person.Login{Email: "robin@example.com", Password: "correct horse"}},
	{ID: "lark-9000", Name: "Kim", Login: person.Login{Email: "kim@example.com", Password: "battery staple"}},
}

func newWorld(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	c := &clock{t: testStart}
	cfg := Config{Now: c.now, Accounts: testAccounts, PasswordMemory: 64}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	client := &http.Client{
		Timeout:       time.Minute,
		Transport:     &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(client.CloseIdleConnections)
	return &world{t: t, clock: c, sandbox: s, issuer: newIssuer(t), ready: s.Ready(), client: client, subject: "user-7f3a"}
}

// claims of a good PA-JWT.
func (w *world) claims() map[string]any {
	now := w.clock.now().Unix()
	return map[string]any{
		"iss": w.issuer.url, "sub": w.subject, "aud": w.ready.Audience,
		"iat": now, "exp": now + 120, "jti": newUUID(),
	}
}

func (w *world) token() string { return sign(w.t, w.issuer.keys[0], w.claims(), nil) }

func (w *world) url(brand, path string) string {
	return w.ready.Provider + "/a2a/" + brand + "/" + path
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("answer %d %q is not a JSON object: %v", a.status, a.body, err)
	}
	return v
}

// dig walks members of objects, and "0" into arrays.
func dig(t *testing.T, v any, path ...string) any {
	t.Helper()
	for _, p := range path {
		switch x := v.(type) {
		case map[string]any:
			v = x[p]
		case []any:
			if p != "0" || len(x) == 0 {
				t.Fatalf("no %q in %v", p, x)
			}
			v = x[0]
		default:
			t.Fatalf("no %q in %v", p, v)
		}
	}
	return v
}

func text(t *testing.T, v any, path ...string) string {
	t.Helper()
	s, ok := dig(t, v, path...).(string)
	if !ok {
		t.Fatalf("%v is not a string in %v", path, v)
	}
	return s
}

// do sends a request with headers given as "Name: value".
func (w *world) do(method, address, body string, headers ...string) answer {
	w.t.Helper()
	a, err := w.try(method, address, body, headers...)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// try is do for goroutines, which must not end the test.
func (w *world) try(method, address, body string, headers ...string) (answer, error) {
	return w.tryUntil(context.Background(), method, address, body, headers...)
}

// tryUntil is try for a client that leaves when ctx ends.
func (w *world) tryUntil(ctx context.Context, method, address, body string, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, got}, err
}

// together sends n requests at once.
func (w *world) together(n int, method, address string, body func(i int) string, headers ...string) []answer {
	w.t.Helper()
	answers, errs := make([]answer, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { answers[i], errs[i] = w.try(method, address, body(i), headers...) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		w.t.Fatal(err)
	}
	return answers
}

// call sends a request with a fresh PA-JWT.
func (w *world) call(method, address, body string, headers ...string) answer {
	w.t.Helper()
	return w.do(method, address, body, append(headers, "Authorization: Bearer "+w.token())...)
}

func (w *world) post(address string, form url.Values) answer {
	w.t.Helper()
	return w.do(http.MethodPost, address, form.Encode(), formType)
}

const formType = "Content-Type: application/x-www-form-urlencoded"

// say sends a text; contextID and delegation may be "".
func (w *world) say(brand, messageID, contextID, text, delegation string) answer {
	w.t.Helper()
	msg := map[string]any{"messageId": messageID, "role": "ROLE_USER", "parts": []any{map[string]any{"text": text}}}
	if contextID != "" {
		msg["contextId"] = contextID
	}
	body, err := json.Marshal(map[string]any{"message": msg})
	if err != nil {
		w.t.Fatal(err)
	}
	var headers []string
	if delegation != "" {
		headers = append(headers, "X-A2A-User-Delegation: Bearer "+delegation)
	}
	return w.call(http.MethodPost, w.url(brand, "message:send"), string(body), headers...)
}

// reply is what say got, which must be a message.
func (w *world) reply(a answer) (contextID, said string) {
	w.t.Helper()
	if a.status != http.StatusOK {
		w.t.Fatalf("status %d: %s", a.status, a.body)
	}
	v := a.json(w.t)
	return text(w.t, v, "message", "contextId"), text(w.t, v, "message", "parts", "0", "text")
}

// wantError checks an A2A error.
func (w *world) wantError(a answer, status int, reason, message string) {
	w.t.Helper()
	if a.status != status || a.header.Get("Content-Type") != typeA2A {
		w.t.Fatalf("got %d %s %s, want %d %s", a.status, a.header.Get("Content-Type"), a.body, status, reason)
	}
	v := a.json(w.t)
	if got := text(w.t, v, "error", "details", "0", "reason"); got != reason {
		w.t.Errorf("reason %s, want %s", got, reason)
	}
	if got := text(w.t, v, "error", "message"); message != "" && got != message {
		w.t.Errorf("message %q, want %q", got, message)
	}
}

func (w *world) oauth(endpoint string, form ...string) answer {
	w.t.Helper()
	values := url.Values{"client_id": {w.issuer.url}}
	for i := 0; i < len(form); i += 2 {
		values.Set(form[i], form[i+1])
	}
	return w.call(http.MethodPost, w.url(LarklineID, "oauth/"+endpoint), values.Encode(), formType)
}

func (w *world) wantOAuthError(a answer, status int, code string) {
	w.t.Helper()
	if a.status != status || a.header.Get("Cache-Control") != "no-store" {
		w.t.Fatalf("got %d %v %s, want %d %s", a.status, a.header, a.body, status, code)
	}
	if got := text(w.t, a.json(w.t), "error"); got != code {
		w.t.Fatalf("error %s, want %s", got, code)
	}
}

func (w *world) device(scopes string) map[string]any {
	w.t.Helper()
	a := w.oauth("device_authorization", "scope", scopes)
	if a.status != http.StatusOK {
		w.t.Fatalf("device authorization: %d %s", a.status, a.body)
	}
	return a.json(w.t)
}

func (w *world) poll(deviceCode any) answer {
	w.t.Helper()
	return w.oauth("token", "grant_type", grantDeviceCode, "device_code", deviceCode.(string))
}

func (w *world) person(n int) person.Person {
	return person.Person{Login: testAccounts[n].Login, Client: w.client}
}

// grant goes through the device flow and returns the token response.
func (w *world) grant(n int, scopes string) map[string]any {
	w.t.Helper()
	d := w.device(scopes)
	c, err := w.person(n).AllowAll(w.t.Context(), text(w.t, d, "verification_uri_complete"))
	if err != nil || !c.Approved {
		w.t.Fatalf("consent: %+v, %v", c, err)
	}
	a := w.poll(d["device_code"])
	if a.status != http.StatusOK {
		w.t.Fatalf("token: %d %s", a.status, a.body)
	}
	return a.json(w.t)
}

func TestReadySaysEverything(t *testing.T) {
	s, err := New(Config{PasswordMemory: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	line, err := json.Marshal(s.Ready())
	if err != nil {
		t.Fatal(err)
	}
	var r Ready
	if err := json.Unmarshal(line, &r, json.RejectUnknownMembers(true)); err != nil {
		t.Fatal(err)
	}
	if len(r.Brands) != 2 || r.Brands[0].ID != LarklineID || r.Brands[1].ID != MarrowID {
		t.Errorf("brands %+v", r.Brands)
	}
	if r.Audience != r.Provider+"/a2a" {
		t.Errorf("audience %q", r.Audience)
	}
	if r.Control.URL != r.Provider+"/sandbox/faults" || len(r.Control.Token) < 40 {
		t.Errorf("control at %q", r.Control.URL)
	}
	if len(r.Login.Password) < 16 || !bytes.Contains(line, []byte(r.Login.Password)) {
		t.Errorf("no password in %s", line)
	}
	for _, printed := range []string{
		fmt.Sprint(r.Login), fmt.Sprintf("%+v %#v %s", r, r.Login, person.Person{Login: r.Login}),
		r.Login.String(), r.Login.GoString(), r.Login.LogValue().String(),
		r.Control.String(), r.Control.GoString(), r.Control.LogValue().String(),
	} {
		if strings.Contains(printed, r.Login.Password) || strings.Contains(printed, r.Control.Token) {
			t.Errorf("the password or the control token prints: %s", printed)
		}
	}
}

func TestConfigNamesTheField(t *testing.T) {
	for name, cfg := range map[string]Config{
		"Listen":            {Listen: "nonsense"},
		"PublicURL":         {PublicURL: "http://provider.example/path"},
		"BrandURL":          {BrandURL: "ftp://x"},
		"Audience":          {PublicURL: "https://p.example", Audience: "https://p.example/a2a/" + LarklineID},
		"Brands":            {Brands: []Brand{{ID: "x y"}}},
		"Accounts":          {Accounts: []Account{{ID: "a", Login: person.Login{Email: "a@b.example", Password: "short"}}}},
		"Params.TokenTTL":   {Params: func() Params { p := Defaults(); p.TokenTTL = 2 * time.Hour; return p }()},
		"Params.Leeway":     {Params: func() Params { p := Defaults(); p.Leeway = 0; return p }()},
		"Params.LoginLimit": {Params: func() Params { p := Defaults(); p.LoginLimit.Burst = 0; return p }()},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.PasswordMemory = 64
			s, err := New(cfg)
			if err == nil {
				_ = s.Close()
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%v does not name %s", err, name)
			}
		})
	}
}

// New refuses the origins that agents would, and says why.
func TestOriginsThatAgentsRefuse(t *testing.T) {
	for origin, reason := range map[string]string{
		"https://provider.example": "", "https://provider.example:8443": "", "https://8.8.8.8": "",
		"http://127.0.0.1:8791": "", "https://127.0.0.1:8791": "", "http://localhost:8791": "", "http://air.localhost": "", "http://[::1]:8791": "",
		"http://provider.example": "it is http", "http://8.8.8.8:8791": "it is http", "http://sandbox:8791": "it is http",
		"https://10.0.0.1": "internal address", "http://192.168.1.5:8791": "internal address", "https://169.254.169.254": "internal address",
		"https://100.64.0.1": "internal address", "https://0.0.0.0": "internal address", "https://0.1.2.3": "internal address",
		"https://[fc00::1]": "internal address", "https://[fe80::1]": "internal address", "https://[::ffff:10.0.0.1]": "internal address",
		"https://metadata": "internal name", "https://sandbox.internal": "internal name",
	} {
		for field, cfg := range map[string]Config{"PublicURL": {PublicURL: origin}, "BrandURL": {BrandURL: origin}} {
			cfg.PasswordMemory = 64
			s, err := New(cfg)
			if err == nil {
				_ = s.Close()
			}
			if (err == nil) != (reason == "") || err != nil && (!strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), reason)) {
				t.Errorf("%s %s: %v, want %q", field, origin, err, reason)
			}
		}
	}
}

// Close waits for no connection that no request came on.
func TestCloseWithUnusedConnections(t *testing.T) {
	w := newWorld(t)
	for _, origin := range []string{w.ready.Provider, w.sandbox.brandURL} {
		used, err := net.Dial("tcp", strings.TrimPrefix(origin, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer used.Close()
		unused, err := net.Dial("tcp", strings.TrimPrefix(origin, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer unused.Close()
		fmt.Fprint(used, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(used), nil)
		if err != nil || resp.StatusCode != http.StatusNotFound {
			t.Fatal(resp, err)
		}
	}
	if err := w.sandbox.Close(); err != nil {
		t.Error(err)
	}
}

func TestScaledDividesEveryDuration(t *testing.T) {
	whole, tenth := Defaults(), Defaults().Scaled(10)
	parts := tenth.durations()
	for name, d := range whole.durations() {
		if got := *parts[name]; got != *d/10 {
			t.Errorf("%s is %v of %v", name, got, *d)
		}
	}
	if err := tenth.Validate(); err != nil {
		t.Error(err)
	}
}
