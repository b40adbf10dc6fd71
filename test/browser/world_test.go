package browser

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/sandbox"
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

// The airline's permissions, by id and in the words of the consent page.
const (
	scopeUpcoming, sayUpcoming = "flights:upcoming:read", "View your upcoming flights"
	scopeHistory, sayHistory   = "flights:history:read", "View your past flights"
	scopeRebook, sayRebook     = "flights:rebook", "Rebook your flights"
	scopeCancel, sayCancel     = "flights:cancel", "Cancel your flights"
	everything                 = scopeUpcoming + " " + scopeHistory + " " + scopeRebook + " " + scopeCancel
)

// consentHeading is what the consent page is headed.
const consentHeading = "Allow access?"

const ownerPassword = "the owner's own words"

var robin = sandbox.Account{ID: "lark-4471", Name: "Robin", Login: person.Login{Email: "robin@example.com", Password: "correct horse"}}

// world is a sandbox, and a personal agent that talks to it.
type world struct {
	t       *testing.T
	clock   *clock
	sandbox *sandbox.Sandbox
	ready   sandbox.Ready
	issuer  string // of the agent
	key     jose.Signer
	client  *http.Client
}

func newWorld(t *testing.T, change ...func(*sandbox.Config)) *world {
	t.Helper()
	w := &world{t: t, clock: &clock{t: time.Date(2026, 11, 29, 14, 58, 20, 0, time.UTC)}}
	cfg := sandbox.Config{
		Now: w.clock.now, Accounts: []sandbox.Account{robin}, OwnerPassword: ownerPassword,
		PasswordMemory: 64,
	}
	for _, f := range change {
		if f != nil {
			f(&cfg)
		}
	}
	var err error
	if w.sandbox, err = sandbox.New(cfg); err != nil {
		t.Fatal(err)
	}
	w.sandbox.Start()
	w.ready = w.sandbox.Ready()
	w.client = &http.Client{Timeout: stepTimeout, Transport: &http.Transport{}}
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		if err := w.sandbox.Close(); err != nil {
			t.Errorf("close the sandbox: %v", err)
		}
	})
	w.openIssuer()
	return w
}

// openIssuer serves the key set of the agent's issuer.
func (w *world) openIssuer() {
	w.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	kid, err := jwks.Thumbprint(private.Public())
	if err != nil {
		w.t.Fatal(err)
	}
	key := jose.JSONWebKey{Key: private, KeyID: kid, Algorithm: string(jose.ES256), Use: "sig"}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	if err != nil {
		w.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/jwks.json", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(set) })
	srv := httptest.NewServer(mux)
	w.t.Cleanup(srv.Close)
	w.issuer = srv.URL
	w.key, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		w.t.Fatal(err)
	}
}

// token is a fresh JWT of the agent's issuer.
func (w *world) token(subject, audience string) string {
	w.t.Helper()
	now := w.clock.now().Unix()
	claims, err := json.Marshal(map[string]any{
		"iss": w.issuer, "sub": subject, "aud": audience, "iat": now, "exp": now + 120, "jti": uuid.NewString(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	signed, err := w.key.Sign(claims)
	if err != nil {
		w.t.Fatal(err)
	}
	compact, err := signed.CompactSerialize()
	if err != nil {
		w.t.Fatal(err)
	}
	return compact
}

// register has the issuer introduce itself to the Provider by a name.
func (w *world) register(name string) {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"name": name, "jwksUri": w.issuer + "/.well-known/jwks.json"})
	if err != nil {
		w.t.Fatal(err)
	}
	address := w.ready.Provider + "/api/platforms"
	if status := w.post(address, w.token(w.issuer, address), "application/json", body, "", new(any)); status != http.StatusCreated {
		w.t.Fatalf("register: status %d", status)
	}
}

// call sends what the agent sends to the airline, and reads the answer into out.
func (w *world) call(path, contentType string, body []byte, delegation string, out any) int {
	w.t.Helper()
	return w.post(w.ready.Provider+"/a2a/"+sandbox.LarklineID+"/"+path, w.token("user-7f3a", w.ready.Audience), contentType, body, delegation, out)
}

func (w *world) post(address, token, contentType string, body []byte, delegation string, out any) int {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Authorization", "Bearer "+token)
	if delegation != "" {
		req.Header.Set("X-A2A-User-Delegation", "Bearer "+delegation)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(answer) > 0 {
		if err := json.Unmarshal(answer, out); err != nil {
			w.t.Fatalf("%s: %d %s: %v", address, resp.StatusCode, answer, err)
		}
	}
	return resp.StatusCode
}

func (w *world) postForm(path string, form url.Values, out any) int {
	w.t.Helper()
	form.Set("client_id", w.issuer)
	return w.call(path, "application/x-www-form-urlencoded", []byte(form.Encode()), "", out)
}

// request is what the agent waits for a person to answer.
type request struct {
	DeviceCode string `json:"device_code"`
	UserCode   string `json:"user_code"`
	Page       string `json:"verification_uri"`
	Link       string `json:"verification_uri_complete"`
}

// ask asks for permissions.
func (w *world) ask(scopes string) request {
	w.t.Helper()
	var r request
	if status := w.postForm("oauth/device_authorization", url.Values{"scope": {scopes}}, &r); status != http.StatusOK {
		w.t.Fatalf("device authorization: status %d", status)
	}
	return r
}

// tokens is what the agent gets for a request that was answered: Scope is what was
// allowed, Error why there is nothing.
type tokens struct {
	AccessToken  string `json:"access_token"`
	RefreshToken string `json:"refresh_token"`
	Scope        string `json:"scope"`
	Error        string `json:"error"`
}

// poll asks once what became of a request. It never asks too early.
func (w *world) poll(r request) tokens {
	w.t.Helper()
	w.clock.advance(10 * time.Second)
	var got tokens
	w.postForm("oauth/token", url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {r.DeviceCode},
	}, &got)
	return got
}

// wantGranted fails the test unless a request got exactly these permissions.
func (w *world) wantGranted(r request, scopes string) tokens {
	w.t.Helper()
	got := w.poll(r)
	if got.Scope != scopes || got.AccessToken == "" {
		w.t.Fatalf("the agent got %q (error %q), want %q", got.Scope, got.Error, scopes)
	}
	return got
}

// wantRefused fails the test unless a request got this error.
func (w *world) wantRefused(r request, code string) {
	w.t.Helper()
	if got := w.poll(r); got.Error != code || got.AccessToken != "" {
		w.t.Fatalf("the agent got error %q, scope %q; want error %q", got.Error, got.Scope, code)
	}
}

// say sends the airline a message under a delegation, and returns the status and
// what it said.
func (w *world) say(text, delegation string) (status int, said string) {
	w.t.Helper()
	body, err := json.Marshal(map[string]any{"message": map[string]any{
		"messageId": uuid.NewString(), "role": "ROLE_USER", "parts": []any{map[string]any{"text": text}},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	var reply struct {
		Message struct {
			Parts []struct {
				Text string `json:"text"`
			} `json:"parts"`
		} `json:"message"`
	}
	status = w.call("message:send", "application/json", body, delegation, &reply)
	for _, p := range reply.Message.Parts {
		said += p.Text
	}
	return status, strings.TrimSpace(said)
}

// signIn goes from a sign-in link to the page behind the login.
func (w *world) signIn(b *tab, link string) {
	w.t.Helper()
	b.visit(link)
	w.finishSignIn(b)
}

// finishSignIn goes on from the login.
func (w *world) finishSignIn(b *tab) {
	w.t.Helper()
	b.at("Sign in")
	b.write("Email", robin.Email)
	b.write("Password", robin.Password)
	b.press("Sign in")
	b.at("You are signed in")
}

// open goes from a sign-in link to the consent page.
func (w *world) open(b *tab, link string) {
	w.t.Helper()
	w.signIn(b, link)
	b.press("Continue")
	b.at(consentHeading)
}
