package agent_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/jwks"
)

const (
	signerURL = "https://pa.example.com"
	provider  = "https://provider.example.com"
	iface     = provider + "/a2a/air"
	cardURL   = "https://air.example.com/.well-known/agent-card.json"
	oauthBase = iface + "/oauth"
	audience  = "aud-air"
	alice     = "alice"
)

// world is a signer, a provider and a network without sockets, so that it runs
// in virtual time.
type world struct {
	t      *testing.T
	signer *signerStandIn
	biz    *business
	dir    string
	config agent.Config

	mu       sync.Mutex
	requests []request
	hosts    map[string]http.Handler
}

type request struct {
	purpose egress.Purpose
	url     string
	header  http.Header
	body    string
	at      time.Time
}

// emptyStore is a new store's file: making one takes longer than most tests.
var emptyStore = sync.OnceValue(func() []byte {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "agent.db")
	store, err := sqlite.Open(path)
	if err == nil {
		err = store.Close()
	}
	if err != nil {
		panic(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return file
})

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir()}
	w.config.Key = agent.KeyFile // no test but of the keyring asks for one
	if err := os.WriteFile(filepath.Join(w.dir, "agent.db"), emptyStore(), 0o600); err != nil {
		t.Fatal(err)
	}
	w.signer = newSigner(t)
	w.biz = newBusiness(t)
	w.hosts = map[string]http.Handler{
		signerURL:                 w.signer,
		provider:                  w.biz,
		"https://air.example.com": http.RedirectHandler(iface+"/.well-known/agent-card.json", http.StatusFound),
	}
	return w
}

// open opens an agent on the world's profile, as a program that starts.
func (w *world) open() *agent.Agent {
	w.t.Helper()
	a, err := w.tryOpen()
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func (w *world) tryOpen() (*agent.Agent, error) {
	w.t.Helper()
	store, err := sqlite.Open(filepath.Join(w.dir, "agent.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := store.Close(); err != nil {
			w.t.Error(err)
		}
	})
	cfg := w.config
	cfg.Dir, cfg.Store = w.dir, store
	cfg.Network = func(rules agent.URLRules, policy egress.Policy) agent.Egress { return &wire{w, rules, policy} }
	a, err := agent.Open(cfg)
	if err == nil {
		w.t.Cleanup(a.Close)
	}
	return a, err
}

// openDatabase opens a profile's database beside its agents, whose transactions it waits
// for.
func openDatabase(dir string) (*sql.DB, error) {
	return sql.Open("sqlite", filepath.Join(dir, "agent.db")+"?_pragma=busy_timeout(60000)")
}

// edit changes the database behind the agent's back.
func (w *world) edit(statement string) {
	w.t.Helper()
	db, err := openDatabase(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		w.t.Fatal(err)
	}
}

// enrolled is open with an identity.
func (w *world) enrolled() *agent.Agent {
	w.t.Helper()
	a := w.open()
	if _, err := a.Enroll(w.t.Context(), owner(), agent.EnrollRequest{SignerURL: signerURL}); err != nil {
		w.t.Fatal(err)
	}
	return a
}

// owner is the owner at their command line, who can be asked nothing.
func owner() agent.Caller {
	return agent.Caller{Principal: alice, Origin: agent.OriginOwnerCLI, Human: agent.HumanNone}
}

// person is the owner at a terminal: approves everything, and signs in at once
// with all scopes.
func (w *world) person() agent.Caller {
	c := owner()
	c.Human = agent.HumanInteractive
	c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { return true, nil }
	c.SignIn = func(_ context.Context, s agent.SignIn) error {
		w.biz.allow(ids(s.Scopes)...)
		return nil
	}
	return c
}

func ids(scopes []agent.Scope) (out []string) {
	for _, s := range scopes {
		out = append(out, s.ID)
	}
	return out
}

// calls are the requests made so far for a purpose.
func (w *world) calls(p egress.Purpose) (out []request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.requests {
		if r.purpose == p {
			out = append(out, r)
		}
	}
	return out
}

// wire is the network.
type wire struct {
	w      *world
	rules  agent.URLRules
	policy egress.Policy
}

func (n *wire) Do(ctx context.Context, req egress.Request) (egress.Response, error) {
	fail := func(code egress.Code, sent bool) (egress.Response, error) {
		return egress.Response{}, &egress.Error{Code: code, Purpose: req.Purpose, Sent: sent, Err: errors.New("test network")}
	}
	header, raw := req.Header.Clone(), req.URL
	var hops []string
	for {
		u, err := n.rules.Check(raw)
		if err != nil {
			return fail(egress.InvalidURL, false)
		}
		if err := n.policy(ctx, u); err != nil {
			return fail(egress.PolicyDenied, false)
		}
		if ctx.Err() != nil {
			return fail(egress.Aborted, false)
		}
		n.w.mu.Lock()
		n.w.requests = append(n.w.requests, request{req.Purpose, raw, header, string(req.Body), time.Now()})
		h := n.w.hosts[agent.Origin(u)]
		n.w.mu.Unlock()
		if h == nil {
			return fail(egress.DestinationRefused, false)
		}
		hops = append(hops, raw)
		r := httptest.NewRequestWithContext(ctx, req.Method, raw, bytes.NewReader(req.Body))
		r.Header = header.Clone()
		rec := httptest.NewRecorder()
		if lost := serve(h, rec, r); lost {
			return fail(egress.Network, true)
		}
		if req.Purpose == egress.Message && rec.Body.Len() > 512<<10 {
			return fail(egress.TooLarge, true)
		}
		if to := rec.Header().Get("Location"); to != "" && req.Method == "GET" {
			raw, header = to, nil
			continue
		}
		return egress.Response{Status: rec.Code, Header: rec.Header(), Body: rec.Body.Bytes(), FinalURL: raw, Hops: hops}, nil
	}
}

// serve reports whether the handler dropped the connection.
func serve(h http.Handler, w http.ResponseWriter, r *http.Request) (lost bool) {
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler {
				panic(p)
			}
			lost = true
		}
	}()
	h.ServeHTTP(w, r)
	return false
}

// key signs as somebody.
type key struct {
	private *ecdsa.PrivateKey
	kid     string
}

func newKey(t *testing.T) key {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	kid, err := jwks.Thumbprint(&k.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return key{k, kid}
}

func (k key) sign(claims any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: k.private, KeyID: k.kid}}, nil)
	if err != nil {
		panic(err)
	}
	jws, err := signer.Sign(marshal(claims))
	if err != nil {
		panic(err)
	}
	s, err := jws.CompactSerialize()
	if err != nil {
		panic(err)
	}
	return s
}

// spoiled is a JWS with another signature.
func spoiled(jws string) string {
	at, c := len(jws)-8, "A"
	if jws[at:at+1] == c {
		c = "B"
	}
	return jws[:at] + c + jws[at+1:]
}

func (k key) set() []byte {
	doc, err := jwks.Marshal([]jwks.Key{{ID: k.kid, Algorithm: jose.ES256, Public: &k.private.PublicKey}})
	if err != nil {
		panic(err)
	}
	return doc
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func respond(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if s, ok := v.(string); ok {
		_, _ = w.Write([]byte(s))
		return
	}
	_, _ = w.Write(marshal(v))
}

// send sends and expects a status and reason.
func (w *world) send(a *agent.Agent, c agent.Caller, req agent.SendRequest, status agent.Status, reason string) agent.Result {
	w.t.Helper()
	if req.Business == "" {
		req.Business = cardURL
	}
	r, err := a.Send(w.t.Context(), c, req)
	if err != nil {
		w.t.Fatalf("send %q: %v", req.Message, err)
	}
	if r.Status != status || r.Reason != reason {
		w.t.Errorf("send %q: %s %q (%s); want %s %q", req.Message, r.Status, r.Reason, r.Detail, status, reason)
	}
	return r
}
