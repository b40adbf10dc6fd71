package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/agent/sqlite"
)

// serverWorld is a control plane on a new profile that no signer knows: what a method
// does is its own matter, and who may call it is the same there.
type serverWorld struct {
	t        testing.TB
	store    *sqlite.Store
	agent    *agent.Agent
	server   *Server
	unix     *Listener
	loopback *Listener
	log      *logText
	secrets  map[Scope]string // of a token of each scope, named as the scope
	stop     context.CancelFunc
	served   chan error
	clients  map[*Listener]*http.Client
	ahead    atomic.Int64 // how far the server's clock is
}

// noNetwork is the way to a network where nothing answers.
type noNetwork struct{}

func (noNetwork) Do(context.Context, egress.Request) (egress.Response, error) {
	return egress.Response{}, errors.New("there is no network here")
}

// logText is a log's text.
type logText struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

// newFuzzServer makes one that listens nowhere.
func newFuzzServer(t testing.TB) *serverWorld {
	t.Helper()
	w := &serverWorld{t: t, log: new(logText), secrets: map[Scope]string{}, served: make(chan error, 1)}
	dir := t.TempDir()
	var err error
	if w.store, err = sqlite.Open(filepath.Join(dir, "agent.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	w.agent, err = agent.Open(agent.Config{
		Dir: dir, Store: w.store, Key: agent.KeyFile, Development: true,
		Network: func(agent.URLRules, egress.Policy) agent.Egress { return noNetwork{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.agent.Close)
	w.server, err = New(Config{
		Agent: w.agent, Store: w.store, Principal: "owner", Version: "test",
		Now: func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) },
		Log: slog.New(slog.NewTextHandler(w.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Scopes() {
		_, secret, err := w.server.tokens.Create(t.Context(), CreateToken{Name: string(s), Scope: s})
		if err != nil {
			t.Fatal(err)
		}
		w.secrets[s] = secret.Reveal()
	}
	return w
}

// newServer serves one on a socket and on loopback.
func newServer(t testing.TB) *serverWorld {
	t.Helper()
	w := newFuzzServer(t)
	var err error
	if w.unix, err = ListenUnix(filepath.Join(socketDir(t), "s")); err != nil {
		t.Fatal(err)
	}
	if w.loopback, err = ListenLoopback("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.serve()
	return w
}

// serve serves on the listeners until the test ends.
func (w *serverWorld) serve() {
	var ctx context.Context
	t := w.t
	ctx, w.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { w.served <- w.server.Serve(ctx, w.unix, w.loopback) }()
	t.Cleanup(func() {
		w.stop()
		if err := <-w.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		w.served <- nil
	})
}

// end ends the server, as the program's end does.
func (w *serverWorld) end() {
	w.t.Helper()
	w.stop()
	err := <-w.served
	w.served <- nil
	if err != nil {
		w.t.Errorf("Serve: %v", err)
	}
}

// socketDir is a folder with a short path: a socket's is.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pact")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// conn is a connection of gRPC to one of the listeners.
func (w *serverWorld) conn(l *Listener) *grpc.ClientConn {
	w.t.Helper()
	c, err := grpc.NewClient("passthrough:///127.0.0.1", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.dial(ctx) }))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// http is a client of REST on one of the listeners. The host of its URLs is 127.0.0.1.
func (w *serverWorld) http(l *Listener) *http.Client {
	if w.clients == nil {
		w.clients = map[*Listener]*http.Client{}
	}
	if w.clients[l] == nil {
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx) }}
		w.t.Cleanup(transport.CloseIdleConnections)
		w.clients[l] = &http.Client{Transport: transport}
	}
	return w.clients[l]
}

// dial connects to where l listens.
func (l *Listener) dial(ctx context.Context) (net.Conn, error) {
	if path, ok := strings.CutPrefix(l.target, "unix:"); ok {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(l.target, "http://"))
}

// rest makes a REST request. headers are pairs of name and value.
func (w *serverWorld) rest(l *Listener, method, path, body string, headers ...string) (int, http.Header, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://127.0.0.1"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" && !slices.Contains(headers, "Content-Type") {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if strings.EqualFold(headers[i], "Host") {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := w.http(l).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}
