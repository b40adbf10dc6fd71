package signer_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/local"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/store/bolt"
	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/rotation"
	"github.com/pactsigner/pactsigner/signer"
)

// What the worlds register.
const (
	providerOrigin   = "https://provider.example.com"
	providerAudience = "https://provider.example.com/a2a"
)

// standingClock stands still until it is moved, so that no permit runs out and no
// bucket fills while a test thinks.
type standingClock struct {
	start  time.Time
	offset atomic.Int64
}

func (c *standingClock) now() time.Time { return c.start.Add(time.Duration(c.offset.Load())) }

// watchedKeyring is a keyring with something happening around its signatures.
type watchedKeyring struct {
	custody.Keyring
	// onSign, if set, signs.
	onSign atomic.Pointer[func(ctx context.Context, name string, digest []byte) ([]byte, error)]
}

func (k *watchedKeyring) Sign(ctx context.Context, name string, digest []byte) ([]byte, error) {
	if f := k.onSign.Load(); f != nil {
		return (*f)(ctx, name, digest)
	}
	return k.Keyring.Sign(ctx, name, digest)
}

func (k *watchedKeyring) watch(f func(ctx context.Context, name string, digest []byte) ([]byte, error)) {
	k.onSign.Store(&f)
}

// brokenStore fails on demand, as a store out of reach would.
type brokenStore struct {
	*bolt.Store
	broken atomic.Bool
}

func (s *brokenStore) Authorize(ctx context.Context, a signer.Authorization) (signer.Authorized, error) {
	if s.broken.Load() {
		return signer.Authorized{}, errors.New("the store is out of reach")
	}
	return s.Store.Authorize(ctx, a)
}

func (s *brokenStore) Enroll(ctx context.Context, e signer.Enrolment) (signer.Device, error) {
	if s.broken.Load() {
		return signer.Device{}, errors.New("the store is out of reach")
	}
	return s.Store.Enroll(ctx, e)
}

// contractWorld is the service on both faces over a real store, keyring, switch
// and schedule.
type contractWorld struct {
	t       testing.TB
	clock   *standingClock
	store   *brokenStore
	keyring *watchedKeyring
	guard   *killswitch.Guard
	kills   *killswitch.Switch
	service *signer.Service
	issuer  string // the first
	keys    *rotation.Controller
	base    string // of the first issuer's contract
	http    *http.Client
	grpc    signerv1.SignerServiceClient
	address string // of the HTTP face
	rpcs    string // address of the gRPC face
	log     *lockedBuffer
}

// worldConfig is what a test may want otherwise.
type worldConfig struct {
	issuers   []signer.Issuer // URLs of "" get the listener's address, as do SignerURLs
	algorithm jose.SignatureAlgorithm
	deadline  time.Duration
	start     time.Time
	proxies   string
	proofs    signer.Limit
	stats     stats.Handler
	log       *slog.Logger
	observer  signer.Observer
	dir       string // of custody and store; a new one if empty
}

// newContractWorld starts one. change may adjust the configuration; hosts that
// issuers name must resolve to loopback, with PORT for the listener's port.
func newContractWorld(t testing.TB, change ...func(*worldConfig)) *contractWorld {
	t.Helper()
	cfg := worldConfig{
		issuers: []signer.Issuer{{URL: "http://127.0.0.1:PORT", Enrolment: signer.EnrolOpen}}, algorithm: jose.ES256, start: time.Now(),
	}
	for _, f := range change {
		f(&cfg)
	}
	w := &contractWorld{t: t, clock: &standingClock{start: cfg.start}, log: &lockedBuffer{}, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	t.Cleanup(w.http.CloseIdleConnections)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	w.address = listener.Addr().String()
	_, port, err := net.SplitHostPort(w.address)
	must(err)

	dir := cfg.dir
	if dir == "" {
		dir = t.TempDir()
	}
	keyring, err := local.Open(filepath.Join(dir, "custody"), local.Options{})
	must(err)
	t.Cleanup(func() { keyring.Close() })
	w.keyring = &watchedKeyring{Keyring: keyring}
	store, err := bolt.Open(filepath.Join(dir, "store.db"), bolt.Options{Now: w.clock.now})
	must(err)
	t.Cleanup(func() { store.Close() })
	w.store = &brokenStore{Store: store}

	log := cfg.log
	if log == nil {
		log = slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	params := rotation.Defaults()
	params.Algorithm = cfg.algorithm
	var issuers []signer.Issuer
	for _, i := range cfg.issuers {
		i.URL = strings.ReplaceAll(i.URL, "PORT", port)
		if i.SignerURLs == nil {
			i.SignerURLs = []string{i.URL}
		}
		for n, u := range i.SignerURLs {
			i.SignerURLs[n] = strings.ReplaceAll(u, "PORT", port)
		}
		if i.TokenTTL == 0 {
			i.TokenTTL = 2 * time.Minute
		}
		i.Keys, err = rotation.New(rotation.Config{Issuer: i.URL, Params: params, Keyring: w.keyring, Mirror: w.store, Now: w.clock.now, Log: log})
		must(err)
		must(i.Keys.Start(t.Context()))
		must(w.store.SetAudience(t.Context(), signer.Audience{Issuer: i.URL, Origin: providerOrigin, Audience: providerAudience},
			func([]signer.Audience) error { return nil }, audit.Entry{Action: "test"}))
		issuers = append(issuers, i)
	}
	w.keys = issuers[0].Keys
	w.issuer, w.base = issuers[0].URL, issuers[0].SignerURLs[0]
	high := killswitch.DocumentHighWater{Documents: keyringDocuments{w.keyring}, Name: "switch", NotFound: custody.ErrNotFound, Conflict: custody.ErrConflict}
	w.guard = killswitch.NewGuard(killswitch.GuardConfig{
		Store: w.store, HighWater: high, Replica: "r1", Version: "test", Now: w.clock.now, Log: log,
		OnGrant: func(g killswitch.Grant) {
			for _, i := range issuers {
				i.Keys.Observe(g.Revisions[i.URL])
			}
		},
	})
	w.refresh()
	w.kills = killswitch.NewSwitch(killswitch.SwitchConfig{Store: w.store, HighWater: high})

	sc := signer.Config{
		Store: w.store, Guard: w.guard, Keyring: w.keyring, Issuers: issuers, SignDeadline: cfg.deadline,
		FailedProofs: cfg.proofs, Now: w.clock.now, Log: log, Observer: cfg.observer,
	}
	if cfg.proxies != "" {
		sc.TrustedProxies = prefixes(t, cfg.proxies)
	}
	w.service, err = signer.New(sc)
	must(err)
	server := httptest.NewUnstartedServer(w.service.Handler())
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)

	options := w.service.ServerOptions()
	if cfg.stats != nil {
		options = append(options, grpc.StatsHandler(cfg.stats))
	}
	rpc := grpc.NewServer(options...)
	w.service.Register(rpc)
	rpcListener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = rpc.Serve(rpcListener) }) // ends with Stop
	t.Cleanup(func() { rpc.Stop(); serving.Wait() })
	w.rpcs = rpcListener.Addr().String()
	w.grpc = w.dial()
	return w
}

// dial is a gRPC client.
func (w *contractWorld) dial(options ...grpc.DialOption) signerv1.SignerServiceClient {
	w.t.Helper()
	conn, err := grpc.NewClient(w.rpcs, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return signerv1.NewSignerServiceClient(conn)
}

// refresh learns the switch's state and takes a new permit.
func (w *contractWorld) refresh() {
	w.t.Helper()
	if err := w.guard.Refresh(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// advance moves the clock, and keeps the permit alive.
func (w *contractWorld) advance(d time.Duration) {
	w.t.Helper()
	w.clock.offset.Add(int64(d))
	w.refresh()
}

// kill throws the switch; the replica hears of it when it asks.
func (w *contractWorld) kill(kind killswitch.Kind, value string) uint64 {
	w.t.Helper()
	s := killswitch.Scope{Kind: kind}
	if kind != killswitch.All {
		s.Issuer, s.Value = w.issuer, value
	}
	r, err := w.kills.Kill(context.Background(), killswitch.Entry{Scope: s, Reason: "test", Actor: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Entry.Epoch
}

// device is a device's key.
type device struct {
	key        *ecdsa.PrivateKey
	thumbprint string
}

func newDevice(t testing.TB) device {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	thumbprint, err := jwks.Thumbprint(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return device{key, thumbprint}
}

// jwk is its publicJwk as clients send it.
func (d device) jwk(t testing.TB) map[string]any {
	t.Helper()
	point, err := d.key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"kty": "EC", "crv": "P-256", "kid": d.thumbprint, "alg": "ES256", "use": "sig",
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
	}
}

// assertion makes a fresh assertion for a URL; change may spoil its claims.
func (d device) assertion(t testing.TB, url string, now time.Time, change ...func(claims map[string]any)) string {
	t.Helper()
	claims := map[string]any{"iss": d.thumbprint, "aud": url, "iat": now.Unix(), "exp": now.Unix() + 60, "jti": rand.Text()}
	for _, f := range change {
		f(claims)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: d.key},
		new(jose.SignerOptions).WithType("pact-device+jwt").WithHeader("kid", d.thumbprint))
	if err != nil {
		t.Fatal(err)
	}
	jws, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	compact, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return compact
}

// caller authenticates: it makes the Authorization value for a path.
type caller struct {
	kind    killswitch.Kind
	id      string
	subject string
	auth    func(path string) string
}

// callers are one of each kind, enrolled and created in w.
func (w *contractWorld) callers() map[string]caller {
	return map[string]caller{"device": w.deviceCaller(), "credential": w.credentialCaller()}
}

func (w *contractWorld) deviceCaller() caller {
	w.t.Helper()
	d := newDevice(w.t)
	r := w.rest("/pact/enroll", w.enrolment(d), "")
	if r.status != http.StatusOK {
		w.t.Fatalf("enrol: %+v", r)
	}
	return caller{killswitch.Device, d.thumbprint, r.text("subject"), func(path string) string {
		return "PACT-Device " + d.assertion(w.t, w.base+path, w.clock.now())
	}}
}

func (w *contractWorld) credentialCaller() caller {
	w.t.Helper()
	secret := signer.NewCredential()
	subject, err := signer.DeriveSubject(w.t.Context(), w.keyring, signer.CredentialCaller, w.issuer, "principal-1")
	if err != nil {
		w.t.Fatal(err)
	}
	c := signer.Credential{
		Issuer: w.issuer, ID: "c-" + strings.ToLower(rand.Text()), Name: rand.Text(), Principal: "principal-1", Subject: subject,
		Hash: secret.Hash(), CreatedAt: w.clock.now(),
	}
	if err := w.store.PutCredential(w.t.Context(), c, audit.Entry{Action: "test"}); err != nil {
		w.t.Fatal(err)
	}
	return caller{killswitch.Credential, c.ID, subject, func(string) string { return "Bearer " + secret.Reveal() }}
}

// enrolment is the body that enrols a device.
func (w *contractWorld) enrolment(d device) string {
	w.t.Helper()
	return object(w.t, map[string]any{"publicJwk": d.jwk(w.t), "proof": d.assertion(w.t, w.base+"/pact/enroll", w.clock.now())})
}

func object(t testing.TB, m map[string]any) string {
	t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const (
	goodSign   = `{"audience":"` + providerAudience + `","nonce":"n-1"}`
	goodStatus = `{}`
)

// reply is what either face answered.
type reply struct {
	status int
	word   string // the error's, "" for 200
	retry  int    // Retry-After in seconds
	body   string
	header http.Header
}

func (r reply) text(member string) string {
	var m map[string]any
	if json.Unmarshal([]byte(r.body), &m) != nil {
		return ""
	}
	s, _ := m[member].(string)
	return s
}

// face calls the contract. auth "" sends none.
type face func(path, body, auth string) reply

// faces are both of them.
func (w *contractWorld) faces() map[string]face {
	return map[string]face{"rest": w.plainREST, "grpc": w.rpc}
}

func (w *contractWorld) plainREST(path, body, auth string) reply { return w.rest(path, body, auth) }

// rest calls over a socket. header holds names and values, "Host" too.
func (w *contractWorld) rest(path, body, auth string, header ...string) reply {
	w.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://"+w.address+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Host = strings.TrimPrefix(strings.TrimPrefix(w.issuer, "http://"), "https://")
	req.Header.Set("Content-Type", "application/json")
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1])
	}
	return w.send(req)
}

func (w *contractWorld) send(req *http.Request) reply {
	w.t.Helper()
	resp, err := w.http.Do(req)
	if err != nil {
		w.t.Error(err)
		return reply{}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Error(err)
	}
	r := reply{status: resp.StatusCode, body: string(b), header: resp.Header}
	if resp.StatusCode != http.StatusOK {
		r.word = r.text("error")
	}
	if s := resp.Header.Get("Retry-After"); s != "" {
		if r.retry, err = strconv.Atoi(s); err != nil || r.retry < 1 {
			w.t.Errorf("Retry-After %q", s)
		}
	}
	return r
}

// grpcStatuses is what protocol.md has for each code.
var grpcStatuses = map[codes.Code]int{
	codes.OK: 200, codes.InvalidArgument: 400, codes.Unauthenticated: 401, codes.PermissionDenied: 403,
	codes.FailedPrecondition: 422, codes.ResourceExhausted: 429, codes.Unavailable: 503,
}

// rpc calls over gRPC, and writes the answer as REST has it.
func (w *contractWorld) rpc(path, body, auth string) reply {
	w.t.Helper()
	ctx := context.Background()
	if auth != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", auth)
	}
	read := func(m proto.Message) {
		if err := protojson.Unmarshal([]byte(body), m); err != nil {
			w.t.Fatal(err)
		}
	}
	var (
		m   proto.Message
		err error
	)
	switch path {
	case "/pact/sign":
		var req signerv1.SignRequest
		read(&req)
		m, err = w.grpc.Sign(ctx, &req)
	case "/pact/status":
		m, err = w.grpc.Status(ctx, &signerv1.StatusRequest{})
	case "/pact/enroll":
		var req signerv1.EnrollRequest
		read(&req)
		m, err = w.grpc.Enroll(ctx, &req)
	}
	return rpcReply(w.t, m, err)
}

func rpcReply(t testing.TB, m proto.Message, err error) reply {
	t.Helper()
	if err == nil {
		b, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return reply{status: http.StatusOK, body: string(b)}
	}
	s := status.Convert(err)
	r := reply{status: grpcStatuses[s.Code()], body: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.Domain != "signer.pact" {
				t.Errorf("domain %q", d.Domain)
			}
			r.word = strings.ToLower(d.Reason)
		case *errdetails.RetryInfo:
			r.retry = int(math.Ceil(d.RetryDelay.AsDuration().Seconds()))
		}
	}
	if r.word == "" {
		t.Errorf("no ErrorInfo: %v", err)
	}
	return r
}

// token reads a token that w issued, its signature verified with the published
// key set.
func (w *contractWorld) token(compact string) (header, claims map[string]any) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+w.address+"/.well-known/jwks.json", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Host = strings.TrimPrefix(strings.TrimPrefix(w.issuer, "http://"), "https://")
	set, err := jwks.Parse([]byte(w.send(req).body))
	if err != nil {
		w.t.Fatal(err)
	}
	tok, err := jwks.ParseCompact(compact, jose.ES256, jose.RS256)
	if err != nil {
		w.t.Fatal(err)
	}
	key, ok := set.Find(tok.KeyID, tok.Algorithm)
	if !ok {
		w.t.Fatalf("kid %s is not published", tok.KeyID)
	}
	payload, err := tok.Verify(key.Public)
	if err != nil {
		w.t.Fatal(err)
	}
	h, _, _ := strings.Cut(compact, ".")
	raw, err := base64.RawURLEncoding.DecodeString(h)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range []struct {
		data []byte
		into *map[string]any
	}{{raw, &header}, {payload, &claims}} {
		d := json.NewDecoder(bytes.NewReader(p.data))
		d.UseNumber()
		if err := d.Decode(p.into); err != nil {
			w.t.Fatal(err)
		}
	}
	return header, claims
}

// refused fails unless r is exactly this refusal.
func (r reply) refused(t testing.TB, status int, word string) {
	t.Helper()
	if r.status != status || r.word != word {
		t.Errorf("got %d %q, want %d %q (%s)", r.status, r.word, status, word, r.body)
	}
	if r.header != nil {
		if want := fmt.Sprintf(`{"error":%q}`, word); r.body != want {
			t.Errorf("body %q, want %q", r.body, want)
		}
		if ct := r.header.Get("Content-Type"); ct != "application/json" {
			t.Errorf("Content-Type %q", ct)
		}
	}
	if wants := status == 429 || status == 503; wants != (r.retry > 0) {
		t.Errorf("%d with Retry-After %d", status, r.retry)
	}
	if status == 503 && r.retry > 5 {
		t.Errorf("503 with Retry-After %d", r.retry)
	}
}
