package signer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/local"
	"github.com/pactsigner/pactsigner/internal/store/bolt"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/rotation"
	"github.com/pactsigner/pactsigner/signer"
)

// adminWorld is an admin listener over a real store, keyring, switch and schedule.
type adminWorld struct {
	t       *testing.T
	store   *bolt.Store
	keyring *local.Keyring
	guard   *killswitch.Guard
	issuers []signer.Issuer
	state   *fakeState
	service *signer.Admin
	handler http.Handler
	url     string
	tokens  map[signer.Role]string
	log     *lockedBuffer
	ahead   atomic.Int64 // how far the store's clock is ahead, in nanoseconds
}

// lockedBuffer is a log that tests can search.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// keyringDocuments lets the switch's high-water record live in a keyring.
type keyringDocuments struct{ custody.Keyring }

func (k keyringDocuments) Load(ctx context.Context, name string) (uint64, []byte, error) {
	d, err := k.Keyring.Load(ctx, name)
	return d.Revision, d.Data, err
}

// newAdminWorld starts one with these issuers.
func newAdminWorld(t *testing.T, urls ...string) *adminWorld {
	t.Helper()
	return newAdminWorldWith(t, jose.ES256, urls...)
}

// newAdminWorldWith starts one whose issuers sign with alg.
func newAdminWorldWith(t *testing.T, alg jose.SignatureAlgorithm, urls ...string) *adminWorld {
	t.Helper()
	params := rotation.Defaults()
	params.Algorithm = alg
	w := &adminWorld{t: t, tokens: map[signer.Role]string{}, log: &lockedBuffer{}}
	dir := t.TempDir()
	var err error
	if w.keyring, err = local.Open(filepath.Join(dir, "custody"), local.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.keyring.Close() })
	if w.store, err = bolt.Open(filepath.Join(dir, "store.db"), bolt.Options{Now: func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.store.Close() })

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	log := slog.New(slog.NewTextHandler(w.log, nil))
	for _, url := range urls {
		keys, err := rotation.New(rotation.Config{Issuer: url, Params: params, Keyring: w.keyring, Mirror: w.store, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		if err := keys.Start(ctx); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = keys.Run(ctx) })
		w.issuers = append(w.issuers, signer.Issuer{URL: url, SignerURLs: []string{url}, Enrolment: "token", TokenTTL: 2 * time.Minute, Keys: keys})
	}
	high := killswitch.DocumentHighWater{Documents: keyringDocuments{w.keyring}, Name: "switch", NotFound: custody.ErrNotFound, Conflict: custody.ErrConflict}
	w.guard = killswitch.NewGuard(killswitch.GuardConfig{
		Store: w.store, HighWater: high, Replica: "r1", Version: "test",
		Revisions: func() map[string]uint64 {
			m := map[string]uint64{}
			for _, i := range w.issuers {
				m[i.URL] = i.Keys.Revision()
			}
			return m
		},
		OnGrant: func(g killswitch.Grant) {
			for _, i := range w.issuers {
				i.Keys.Observe(g.Revisions[i.URL])
			}
		},
	})
	if err := w.guard.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	running.Go(func() { _ = w.guard.Run(ctx) })

	w.state = &fakeState{store: w.store, issuers: urls, status: signer.StateStatus{Condition: signer.StateOK, Kind: "bolt", Store: "store-1", Found: "store-1"}}
	cfg := signer.AdminConfig{
		Store: w.store, Switch: killswitch.NewSwitch(killswitch.SwitchConfig{Store: w.store, HighWater: high}),
		Guard: w.guard, Fleet: w.store, Activities: w.store, State: w.state, Keyring: w.keyring, Issuers: w.issuers,
		Version: "test", Replica: "r1", Log: log,
	}
	for _, role := range []signer.Role{signer.RoleViewer, signer.RoleOperator, signer.RoleAdmin} {
		secret, hash := signer.NewAdminToken()
		w.tokens[role] = secret
		cfg.Tokens = append(cfg.Tokens, signer.AdminToken{Name: role.String() + "@test", Role: role, Hash: hash})
	}
	admin, err := signer.NewAdmin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.service, w.handler = admin, admin.Handler()
	w.serve(0)
	return w
}

// serve starts the listener, or another one in its place, whose requests and answers
// may take that long, 0 for ever.
func (w *adminWorld) serve(timeout time.Duration) {
	w.t.Helper()
	s := httptest.NewUnstartedServer(w.handler)
	s.Config.ReadTimeout, s.Config.WriteTimeout = timeout, timeout
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	w.t.Cleanup(s.Close)
	w.url = s.URL
}

// client is a gRPC client with a token, "" for none.
func (w *adminWorld) client(token string) signerv1.AdminServiceClient {
	w.t.Helper()
	with := func(ctx context.Context) context.Context {
		if token == "" {
			return ctx
		}
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	conn, err := grpc.NewClient(strings.TrimPrefix(w.url, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(with(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(with(ctx), desc, cc, method, opts...)
		}))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return signerv1.NewAdminServiceClient(conn)
}

// admin is a client that may do everything.
func (w *adminWorld) admin() signerv1.AdminServiceClient { return w.client(w.tokens[signer.RoleAdmin]) }

// rest sends a request with a token and returns status, header and body.
func (w *adminWorld) rest(token, method, path, body string, header ...string) (int, http.Header, []byte) {
	w.t.Helper()
	req, err := http.NewRequest(method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, b
}

// trail is the whole audit log, verified.
func (w *adminWorld) trail() []*signerv1.AuditEntry {
	w.t.Helper()
	v, err := w.admin().VerifyAudit(context.Background(), &signerv1.VerifyAuditRequest{})
	if err != nil || !v.Ok {
		w.t.Fatalf("audit: %v, %v", v, err)
	}
	var all []*signerv1.AuditEntry
	for req := (&signerv1.ListAuditRequest{PageSize: 3}); ; {
		resp, err := w.admin().ListAudit(context.Background(), req)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, resp.Entries...)
		if req.PageToken = resp.NextPageToken; req.PageToken == "" {
			return all
		}
	}
}

// lastAct is the newest audit entry.
func (w *adminWorld) lastAct() *signerv1.AuditEntry {
	w.t.Helper()
	all := w.trail()
	if len(all) == 0 {
		w.t.Fatal("the audit log is empty")
	}
	return all[len(all)-1]
}

// refusal is the ErrorInfo of an error, empty if it has none.
func refusal(err error) *errdetails.ErrorInfo {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == "signer.pact" {
			return info
		}
	}
	return &errdetails.ErrorInfo{}
}

// wait follows a kill to its end.
func (w *adminWorld) wait(epoch uint64) *signerv1.Barrier {
	w.t.Helper()
	stream, err := w.admin().WaitKill(context.Background(), &signerv1.WaitKillRequest{Epoch: epoch})
	if err != nil {
		w.t.Fatal(err)
	}
	var last *signerv1.Barrier
	for {
		b, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return last
		}
		if err != nil {
			w.t.Fatal(err)
		}
		last = b
	}
}

func killTarget(issuer string) killswitch.Target { return killswitch.Target{Issuer: issuer} }
