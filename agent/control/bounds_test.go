package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/bubble"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// What one token can use of the agent is bounded, and the owner's socket is not.
func TestCallsOfAToken(t *testing.T) {
	w := newServer(t)
	ctx := withHeaders(t.Context(), "authorization", "Bearer "+w.secrets[ScopeRead])
	watch := func(ctx context.Context, l *Listener) (context.CancelFunc, error) {
		ctx, leave := context.WithCancel(ctx)
		t.Cleanup(leave)
		events, err := agentv1.NewAgentServiceClient(w.conn(l)).WatchEvents(ctx, &agentv1.WatchEventsRequest{})
		if err == nil {
			_, err = events.Recv()
		}
		return leave, err
	}
	var leave context.CancelFunc
	for i := range maxCalls {
		var err error
		if leave, err = watch(ctx, w.loopback); err != nil {
			t.Fatalf("call %d: %v", i+1, err)
		}
	}
	_, err := watch(ctx, w.unix)
	if st := status.Convert(err); st.Code() != codes.ResourceExhausted || reasonOf(st) != codeTooMany || !strings.Contains(st.Message(), "token read") {
		t.Errorf("one call more: %v", err)
	}
	if code, _, body := w.rest(w.loopback, "GET", "/v1/events", "", "Authorization", "Bearer "+w.secrets[ScopeRead]); code != http.StatusTooManyRequests {
		t.Errorf("one call more over REST: %d %s", code, body)
	}
	// What ends a wait, or tells of it, goes on.
	if code, _, body := w.rest(w.loopback, "GET", "/v1/grants", "", "Authorization", "Bearer "+w.secrets[ScopeRead]); code != 200 {
		t.Errorf("a call that is no stream: %d %s", code, body)
	}
	if code, _, body := w.rest(w.loopback, "GET", "/v1/grants", "", "Authorization", "Bearer "+w.secrets[ScopeWrite]); code != 200 {
		t.Errorf("a call by another: %d %s", code, body)
	}
	for i := range maxCalls + 1 {
		if _, err := watch(t.Context(), w.unix); err != nil {
			t.Fatalf("call %d of the owner: %v", i+1, err)
		}
	}
	leave()
	for { // until the server has seen that
		if _, err := watch(ctx, w.loopback); err == nil {
			break
		} else if status.Code(err) != codes.ResourceExhausted {
			t.Fatal(err)
		}
	}
}

// counting counts how often a connection was asked for.
type counting struct {
	net.Listener
	begun atomic.Int32
}

func (c *counting) Accept() (net.Conn, error) {
	c.begun.Add(1)
	return c.Listener.Accept()
}

// listening is newServer before it serves.
func listening(t *testing.T) *serverWorld {
	t.Helper()
	w := newFuzzServer(t)
	var err error
	if w.unix, err = ListenUnix(filepath.Join(socketDir(t), "s")); err != nil {
		t.Fatal(err)
	}
	if w.loopback, err = ListenLoopback("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.server.moment = time.Hour // what is not waited for
	return w
}

// connect opens a connection of the test's own.
func (w *serverWorld) connect(l *Listener) net.Conn {
	w.t.Helper()
	c, err := l.dial(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask makes a request of HTTP/1.1 on a connection, which goes on.
func ask(t *testing.T, c net.Conn, headers ...string) *bufio.Reader {
	t.Helper()
	if _, err := io.WriteString(c, strings.Join(append([]string{"GET /v1/settings HTTP/1.1", "Host: 127.0.0.1"}, headers...), "\r\n")+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(c)
}

// answered reads the answer.
func answered(t *testing.T, r *bufio.Reader, want int) {
	t.Helper()
	a, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, a.Body)
	if err = errors.Join(err, a.Body.Close()); err != nil || a.StatusCode != want {
		t.Errorf("%d, %v; want %d", a.StatusCode, err, want)
	}
}

// The loopback address has so many connections at once, idle ones among them, and takes
// the next when one has ended. The owner's socket does not wait for that.
func TestConnections(t *testing.T) {
	w := listening(t)
	taken := &counting{Listener: w.loopback.Listener}
	w.loopback.Listener = taken
	w.serve()
	tokens := []string{}
	for _, s := range Scopes() {
		tokens = append(tokens, "Authorization: Bearer "+w.secrets[s])
	}
	first := w.connect(w.loopback)
	answered(t, ask(t, first, tokens[0]), http.StatusOK)
	for i := range maxConns - 1 {
		answered(t, ask(t, w.connect(w.loopback), tokens[(i+1)%4]), http.StatusOK)
	}
	next := ask(t, w.connect(w.loopback), tokens[4])
	for range maxConns + 1 { // meanwhile the next would have been taken, if it could be
		answered(t, ask(t, w.connect(w.unix)), http.StatusOK)
	}
	if n := taken.begun.Load(); n > maxConns+1 { // the next waits at the door
		t.Errorf("%d connections are taken", n)
	}
	_ = first.Close()
	answered(t, next, http.StatusOK)
}

// A token has a quarter of the address's connections: the one that was idle for longest ends
// for its next, and where none is, that one. Another token's go on.
func TestConnectionsOfAToken(t *testing.T) {
	w := listening(t)
	w.server.maxConns = 8
	w.serve()
	mine, other := "Authorization: Bearer "+w.secrets[ScopeRead], "Authorization: Bearer "+w.secrets[ScopeWrite]
	watch := func(c net.Conn) {
		_, err := io.WriteString(c, "GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"+mine+"\r\n\r\n")
		if a, e := http.ReadResponse(bufio.NewReader(c), nil); err != nil || e != nil || a.StatusCode != http.StatusOK {
			t.Fatal(a, err, e)
		}
	}
	theirs, busy, idle := w.connect(w.loopback), w.connect(w.loopback), w.connect(w.loopback)
	answered(t, ask(t, theirs, other), http.StatusOK)
	watch(busy)
	answered(t, ask(t, idle, mine), http.StatusOK)
	var next net.Conn
	for code := 0; code != http.StatusOK; { // until the server has seen that it is idle
		next = w.connect(w.loopback)
		a, err := http.ReadResponse(ask(t, next, mine), nil)
		if err != nil || a.StatusCode != http.StatusOK && a.StatusCode != http.StatusTooManyRequests {
			t.Fatal(a, err)
		}
		_, _ = io.Copy(io.Discard, a.Body)
		code = a.StatusCode
	}
	_, _ = io.Copy(io.Discard, idle) // until it has ended
	watch(next)
	refused := ask(t, w.connect(w.loopback), mine)
	answered(t, refused, http.StatusTooManyRequests)
	if _, err := refused.ReadByte(); err != io.EOF {
		t.Errorf("it goes on: %v", err)
	}
	answered(t, ask(t, theirs, other), http.StatusOK)
	answered(t, ask(t, w.connect(w.unix), mine), http.StatusOK)
}

// late is a body that has not come yet.
type late struct{ begun, comes chan struct{} }

func (l late) Read([]byte) (int, error) {
	l.begun <- struct{}{}
	<-l.comes
	return 0, io.EOF
}

// The requests of a token are bounded also while they have not come whole.
func TestRequestsOfAToken(t *testing.T) {
	w := newFuzzServer(t)
	begun, comes := make(chan struct{}), make(chan struct{})
	request := func(s Scope, body io.Reader) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/pact.agent.v1.AgentService/GetStatus", body)
		r.ProtoMajor, r.Host = 2, "127.0.0.1"
		r.Header.Set("Content-Type", "application/grpc")
		r.Header.Set("Authorization", "Bearer "+w.secrets[s])
		out := httptest.NewRecorder()
		w.server.Handler(false).ServeHTTP(out, r)
		return out
	}
	const tooMany = "8"
	var all sync.WaitGroup
	for range maxRequests {
		all.Go(func() { request(ScopeRead, late{begun, comes}) })
		<-begun
	}
	if got := request(ScopeRead, nil).Header().Get("Grpc-Status"); got != tooMany {
		t.Errorf("one more: %s", got)
	}
	if got := request(ScopeWrite, nil).Header().Get("Grpc-Status"); got == tooMany {
		t.Error("another token has no place")
	}
	close(comes)
	all.Wait()
	if got := request(ScopeRead, nil).Header().Get("Grpc-Status"); got == tooMany {
		t.Error("they keep their places")
	}
}

// Connections on which nobody showed a token that counts keep nobody else out, however
// many there are, whatever they say: the oldest of them end.
func TestStrangers(t *testing.T) {
	for name, says := range map[string]string{
		"silent": "", "slow": "GET /v1/settings HTTP/1.1\r\n", "calls without a token and a message": callHead(t),
	} {
		t.Run(name, func(t *testing.T) {
			w := listening(t)
			w.serve()
			var conns []net.Conn
			for range maxConns + 10 {
				c := w.connect(w.loopback)
				_, _ = io.WriteString(c, says) // unless it has ended
				conns = append(conns, c)
			}
			token := "Authorization: Bearer " + w.secrets[ScopeRead]
			answered(t, ask(t, w.connect(w.loopback), token), http.StatusOK)
			_, _ = io.Copy(io.Discard, conns[0]) // until the oldest has ended
		})
	}
}

// A connection on which no caller was let in ends after a moment, and one of a caller
// does not.
func TestStrangersEnd(t *testing.T) {
	w := listening(t)
	w.server.moment = 20 * time.Millisecond
	w.serve()
	for _, says := range []string{"", "GET /v1/settings HTTP/1.1\r\n"} {
		c := w.connect(w.loopback)
		if _, err := io.WriteString(c, says); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, c) // until it ends
	}
	c := w.connect(w.unix)
	for range 2 { // the owner's has no such end, as the one below has none
		answered(t, ask(t, c), http.StatusOK)
	}
}

// A connection of a caller whose token is revoked, by whatever process, ends too.
func TestConnectionsOfARevokedToken(t *testing.T) {
	w := listening(t)
	w.server.moment = 500 * time.Millisecond
	w.serve()
	var c net.Conn
	for let := false; !let; { // in a moment, unless the machine is slow
		c = w.connect(w.loopback)
		a, err := http.ReadResponse(ask(t, c, "Authorization: Bearer "+w.secrets[ScopeRead]), nil)
		if let = err == nil; let && a.StatusCode != http.StatusOK {
			t.Fatal(a)
		}
	}
	if _, err := NewTokens(w.store, "owner", nil).Revoke(t.Context(), "read"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute)) // rather than until it is idle for long
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Errorf("it goes on: %v", err)
	}
}

// A door counts whom it lets in, whoever goes first.
func TestDoor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := make(pipes, 10)
		var over atomic.Bool
		d := newDoor(l, 4, time.Second, func(token string) bool { return token == "a" && !over.Load() })
		visit := func() (*visitor, net.Conn) {
			mine, theirs := net.Pipe()
			l <- theirs
			c, err := d.Accept()
			if err != nil {
				t.Fatal(err)
			}
			return c.(*visitor), mine
		}
		ended := func(c net.Conn) bool {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := c.Read(make([]byte, 1))
			return err == io.EOF
		}
		a, far := visit()
		who := caller{actor: "token a", token: "a"}
		if err := errors.Join(letIn(withVisitor(t.Context(), a), who), a.letIn(who)); err != nil {
			t.Errorf("not let in: %v", err)
		}
		time.Sleep(time.Minute)
		if ended(far) || len(d.known) != 1 {
			t.Error("a caller's connection ended")
		}
		b, farB := visit()
		_, farC := visit()
		_, farD := visit() // a third stranger, where two may be
		if !ended(farB) || ended(farC) || ended(farD) || b.letIn(who) != errGone {
			t.Error("not the oldest made room")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !ended(farC) || !ended(farD) || len(d.strangers) != 0 {
			t.Error("strangers stay")
		}
		e, farE := visit()
		if err := e.letIn(who); reasonOf(status.Convert(err)) != codeTooMany || ended(farE) {
			t.Errorf("a second connection, where one may be: %v", err)
		}
		noteState(a, http.StateIdle)
		if err := e.letIn(who); err != nil || !ended(far) || ended(farE) || len(d.known) != 1 {
			t.Errorf("an idle one made no room: %v; %d are known", err, len(d.known))
		}
		if err := errors.Join(a.Close(), e.Close(), e.Close(), b.Close()); err != nil && !errors.Is(err, net.ErrClosed) || len(d.known) != 0 {
			t.Errorf("%v; %d are known", err, len(d.known))
		}
		if letIn(t.Context(), who) != nil {
			t.Error("the owner's socket has no door")
		}
		f, farF := visit()
		if err := f.letIn(who); err != nil {
			t.Fatal(err)
		}
		over.Store(true)
		time.Sleep(time.Minute)
		if ended(farF) {
			t.Error("a connection ended whose call has not")
		}
		noteState(f, http.StateIdle)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !ended(farF) || len(d.known) != 0 {
			t.Errorf("a connection whose token is over stays; %d are known", len(d.known))
		}
	})
}

// What is refused has its answer at once, on gRPC before its message too, and a body that
// never comes keeps neither that nor the connection, of whoever it is, nor the agent's end.
func TestRefusedAtOnce(t *testing.T) {
	w := listening(t)
	w.server.bodyTimeout = time.Hour
	var err error
	if w.server.rest, err = w.server.newREST(); err != nil {
		t.Fatal(err)
	}
	w.serve()
	for name, headers := range map[string][]string{
		"no token": nil, "unknown": {"authorization", "Bearer " + TokenPrefix + "x"}, "a page": {"origin", "http://127.0.0.1"},
	} {
		st, status, open := w.halfCall(t, w.loopback, false, headers...)
		if want := codes.Unauthenticated; name != "a page" && st.Code() != want || reasonOf(st) == "" || status != "200" || open {
			t.Errorf("%s: HTTP %s, %s; open %v", name, status, st, open)
		}
	}
	c := w.connect(w.loopback)
	r := ask(t, c)
	answered(t, r, http.StatusUnauthorized)
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("it goes on: %v", err)
	}
	if text := w.log.String(); !strings.Contains(text, "actor=nobody method=GetStatus code=Unauthenticated") {
		t.Errorf("the log: %s", text)
	}

	mine := "Authorization: Bearer " + w.secrets[ScopeRead]
	refused := map[net.Conn]int{} // with what
	for _, l := range []*Listener{w.unix, w.loopback} {
		for request, code := range map[string]int{
			"POST /v1/settings HTTP/1.1\r\nContent-Type: text/plain\r\n" + mine:             http.StatusBadRequest,
			"POST /v1/settings?x=1 HTTP/1.1\r\nContent-Type: application/json\r\n" + mine:   http.StatusBadRequest,
			"GET /v1/settings HTTP/1.1\r\n" + mine:                                          http.StatusBadRequest,
			"POST /v1/nothing HTTP/1.1\r\nContent-Type: application/json\r\n" + mine:        http.StatusNotFound,
			"POST /v1/settings HTTP/1.1\r\nAuthorization: Bearer x":                         http.StatusUnauthorized,
			"POST /v1/settings HTTP/1.1\r\nOrigin: http://127.0.0.1\r\n" + mine:             http.StatusBadRequest,
			"POST /v1/settings HTTP/1.1\r\nPact-Task: \x01\r\n" + mine:                      http.StatusBadRequest,
			"PATCH /v1/settings HTTP/1.1\r\nContent-Type: application/grpc\r\n" + mine:      http.StatusMethodNotAllowed,
			"POST /v1/settings HTTP/1.1\r\nContent-Type: application/grpc+proto\r\n" + mine: http.StatusBadRequest,
		} {
			c := w.connect(l)
			answered(t, ask(t, c, mine), http.StatusOK) // it is let in
			if _, err := io.WriteString(c, request+"\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			refused[c] = code
		}
	}
	ever := time.Now().Add(time.Minute)
	for c, code := range refused {
		_ = c.SetReadDeadline(ever)
		r := bufio.NewReader(c)
		answered(t, r, code)
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("%d: it goes on: %v", code, err)
		}
	}
}

// The message of a call comes in time, also a caller's.
func TestMessageInTime(t *testing.T) {
	w := listening(t)
	w.server.bodyTimeout = 20 * time.Millisecond
	w.serve()
	st, _, _ := w.halfCall(t, w.loopback, true, "authorization", "Bearer "+w.secrets[ScopeRead])
	if reason, meta := infoOf(st); st.Code() != codes.InvalidArgument || reason != codeInvalid || meta["field"] != "body" {
		t.Errorf("%v", st)
	}
}

// callHead is what begins a call of gRPC on a new connection; its message does not follow.
func callHead(t *testing.T, headers ...string) string {
	t.Helper()
	head, out := new(bytes.Buffer), new(bytes.Buffer)
	fields := hpack.NewEncoder(head)
	all := append([]string{
		":method", "POST", ":scheme", "http", ":path", "/pact.agent.v1.AgentService/GetStatus", ":authority", "127.0.0.1",
		"content-type", "application/grpc", "te", "trailers",
	}, headers...)
	for i := 0; i < len(all); i += 2 {
		if err := fields.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(out, nil)
	err := framer.WriteSettings()
	if err = errors.Join(err, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true})); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// halfCall makes a call whose message does not come, and tells its end: its status, that
// of HTTP, and whether the connection stays open, whose end is read unless it stays.
func (w *serverWorld) halfCall(t *testing.T, l *Listener, stays bool, headers ...string) (st *status.Status, code string, open bool) {
	t.Helper()
	c := w.connect(l)
	if _, err := io.WriteString(c, callHead(t, headers...)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	told := map[string]string{}
	for open = true; ; {
		f, err := framer.ReadFrame()
		if err != nil {
			break
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.GoAwayFrame:
			open = false
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				told[h.Name] = h.Value
			}
		}
		if _, done := told["grpc-status"]; done && stays {
			break
		}
	}
	s := new(spb.Status)
	if raw, err := base64.RawStdEncoding.DecodeString(told["grpc-status-details-bin"]); err != nil || proto.Unmarshal(raw, s) != nil {
		t.Fatalf("%v, %v", told, err)
	}
	if told["grpc-status"] != strconv.Itoa(int(s.Code)) {
		t.Errorf("%v", told)
	}
	return status.FromProto(s), told[":status"], open
}

// Streams of a token that wait keep nobody from deciding, or from asking how they ended.
func TestPools(t *testing.T) {
	w := newFuzzServer(t)
	who := caller{actor: "token x", scope: ScopeAdmin, token: "t"}
	ctx := context.WithValue(t.Context(), callerKey{}, who)
	asks := metadata.NewIncomingContext(ctx, metadata.Pairs(outcomeKey, "x"))
	begin := func(ctx context.Context, method string) error {
		_, end, err := w.server.begin(ctx, agentv1.AgentService_ServiceDesc.ServiceName+"/"+method)
		if err == nil {
			t.Cleanup(end)
		}
		return err
	}
	for _, c := range []struct {
		ctx    context.Context
		method string
	}{{ctx, "SendMessage"}, {ctx, "GetStatus"}, {asks, "SendMessage"}} {
		for range maxCalls {
			if err := begin(c.ctx, c.method); err != nil {
				t.Fatal(c.method, err)
			}
		}
		if err := begin(c.ctx, c.method); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one %s more: %v", c.method, err)
		}
	}
	if err := begin(ctx, "DecideApproval"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one decision more: %v", err)
	}

	// A stream that has no outcome is none that asks for one.
	who.token = "u"
	asks = context.WithValue(asks, callerKey{}, who)
	for range maxCalls {
		if err := begin(asks, "WatchEvents"); err != nil {
			t.Fatal(err)
		}
	}
	for method, want := range map[string]codes.Code{
		"WatchEvents": codes.ResourceExhausted, "WaitAuthorization": codes.ResourceExhausted,
		"SendMessage": codes.OK, "Reconcile": codes.OK, "StartAuthorization": codes.OK, "DecideApproval": codes.OK,
	} {
		if err := begin(asks, method); status.Code(err) != want {
			t.Errorf("%s, where as many watch as may: %v", method, err)
		}
	}
}

// An operation's caller may tell late, and an operation may panic: neither ends the
// agent, and nothing of them stays.
func TestOperationThatPanics(t *testing.T) {
	w := newFuzzServer(t)
	bubble.Test(t, func(t *testing.T) { // which fails if a goroutine stays
		var c agent.Caller
		told := 0
		func() {
			defer func() {
				if recover() == nil {
					t.Error("it did not panic")
				}
			}()
			ctx := context.WithValue(context.Background(), callerKey{}, caller{actor: "owner", scope: ScopeAdmin})
			_ = w.server.run(ctx, teller{send: func(*agentv1.OperationUpdate) error { told++; return nil }}, asked{}, func(_ context.Context, of agent.Caller) (agent.Result, error) {
				c = of
				c.Progress(agent.Event{Kind: agent.EventSending})
				panic("odd")
			})
		}()
		c.Progress(agent.Event{Kind: agent.EventSending})
		if told != 1 {
			t.Errorf("%d updates are told", told)
		}
	})
}

// An operation does not wait for who reads its updates: one that does not read is left,
// and what it waits for ends.
func TestSlowReader(t *testing.T) {
	w := newFuzzServer(t)
	ctx, stop := context.WithCancelCause(t.Context())
	read := make(chan struct{})
	var told []*agentv1.OperationUpdate
	u := w.server.newUpdates(ctx, stop, func(m *agentv1.OperationUpdate) error {
		<-read
		told = append(told, m)
		return nil
	})
	var err error
	for range maxUnread + 2 { // one is being sent
		if err = u.tell(progressUpdate()); err != nil {
			break
		}
	}
	if !errors.Is(err, errSlow) || !errors.Is(context.Cause(ctx), errSlow) || reasonOf(status.Convert(err)) != codeLagging {
		t.Errorf("told %v; the operation ends because %v", err, context.Cause(ctx))
	}
	close(read)
	if err := u.end(resultUpdate("cancelled")); err != nil || told[len(told)-1].GetResult() == nil {
		t.Errorf("the result: %v, %v", told[len(told)-1], err)
	}

	// One that cannot be told anything is left too, and its result is kept (outcomes).
	gone := errors.New("gone")
	ctx, stop = context.WithCancelCause(t.Context())
	results := 0
	u = w.server.newUpdates(ctx, stop, func(m *agentv1.OperationUpdate) error {
		if m.GetResult() != nil {
			results++
		}
		return gone
	})
	if err := u.tell(progressUpdate()); err != nil {
		t.Error(err)
	}
	<-ctx.Done()
	if err := u.end(resultUpdate("cancelled")); err != gone || context.Cause(ctx) != gone || results != 1 {
		t.Errorf("%v, %v, %d results", err, context.Cause(ctx), results)
	}
}

// The way of a network that is in this process, whose clock is the test's.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, more := <-p
	if !more {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A reader that takes nothing of an answer holds it for writeTimeout, and not longer;
// one that takes all in time has as long as it likes.
func TestPatience(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const part = 64 << 10
		wrote := make(chan error, 1)
		l := make(pipes, 1)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p := &patient{w, http.NewResponseController(w)}
			defer p.end()
			if r.URL.Path == "/short" {
				_, _ = p.Write([]byte("short"))
				return
			}
			_, err := p.Write(make([]byte, part))
			p.Flush()
			time.Sleep(10 * writeTimeout) // nothing to say
			if err == nil {
				_, err = p.Write(make([]byte, part))
			}
			wrote <- err
		})}
		go func() { _ = server.Serve(l) }()
		for _, reads := range []bool{true, false} {
			mine, theirs := net.Pipe()
			l <- theirs
			if _, err := io.WriteString(mine, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if reads {
				go func() { _, _ = io.Copy(io.Discard, mine) }()
			}
			begun := time.Now()
			if err := <-wrote; (err == nil) != reads {
				t.Errorf("reads %v: %v after %s", reads, err, time.Since(begun))
			}
			_ = mine.Close()
		}
		// An answer that is written when the handler has returned is one too.
		mine, theirs := net.Pipe()
		l <- theirs
		if _, err := io.WriteString(mine, "GET /short HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * writeTimeout)
		if n, err := io.Copy(io.Discard, mine); n != 0 || err != nil {
			t.Errorf("an answer that nobody read: %d bytes of it, %v", n, err)
		}
		// One that is read is the first of many.
		mine, theirs = net.Pipe()
		l <- theirs
		answers := bufio.NewReader(mine)
		for range 2 {
			if _, err := io.WriteString(mine, "GET /short HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			answered(t, answers, http.StatusOK)
			time.Sleep(2 * writeTimeout)
		}
		_ = mine.Close()
		close(l)
		_ = server.Close()
	})
}

// Over HTTP/2 too, where a peer may have asked for more than it reads.
func TestPatienceHTTP2(t *testing.T) {
	w := newFuzzServer(t)
	bubble.Test(t, func(t *testing.T) {
		wrote := make(chan error, 1)
		server := w.server.httpServer(false)
		server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			p := &patient{w, http.NewResponseController(w)}
			var err error
			for err == nil {
				_, err = p.Write(make([]byte, 64<<10))
			}
			wrote <- err
		})
		l := make(pipes, 1)
		go func() { _ = server.Serve(l) }()
		mine, theirs := net.Pipe()
		l <- theirs
		go func() { // reads what the server says first, and nothing of the answer
			buf := make([]byte, 16)
			for range 2 {
				_, _ = mine.Read(buf)
			}
		}()
		head := new(bytes.Buffer)
		fields := hpack.NewEncoder(head)
		for _, f := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/"}, {Name: ":authority", Value: "localhost"}} {
			if err := fields.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
		const window = 1 << 30
		_, err := io.WriteString(mine, http2.ClientPreface)
		framer := http2.NewFramer(mine, mine)
		err = errors.Join(err,
			framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}), framer.WriteWindowUpdate(0, window),
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true}))
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if err := <-wrote; time.Since(begun) > 2*writeTimeout {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		_ = mine.Close()
		close(l)
		_ = server.Close()
	})
}

// A token that is revoked or over ends its calls, also one that is told nothing: what
// waits stays as when the agent stops.
func TestTokenThatEndsEndsItsCalls(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *serverWorld){
		"revoked by another process": func(t *testing.T, w *serverWorld) {
			if _, err := NewTokens(w.store, "owner", nil).Revoke(t.Context(), "read"); err != nil {
				t.Fatal(err)
			}
		},
		"over": func(_ *testing.T, w *serverWorld) {
			w.ahead.Store(int64(maxTokenLife))
		},
	} {
		w := newServer(t)
		events, err := agentv1.NewAgentServiceClient(w.conn(w.loopback)).WatchEvents(
			withHeaders(t.Context(), "authorization", "Bearer "+w.secrets[ScopeRead]), &agentv1.WatchEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := events.Recv(); err != nil {
			t.Fatal(err)
		}
		end(t, w)
		if e, err := events.Recv(); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	if !errors.Is(errTokenOver, agent.ErrStopping) {
		t.Error("what waits for the owner is withdrawn")
	}
}

// A token is looked at again before an answer, and before an operation goes on.
func TestTokenIsLookedAtAgain(t *testing.T) {
	w := newFuzzServer(t)
	view, _, err := w.server.tokens.Create(t.Context(), CreateToken{Name: "x", Scope: ScopeOperator})
	if err != nil {
		t.Fatal(err)
	}
	who := caller{actor: "token x", scope: ScopeOperator, token: view.ID}
	ctx, stop := context.WithCancelCause(context.WithValue(t.Context(), callerKey{}, who))
	u := w.server.newUpdates(ctx, stop, func(*agentv1.OperationUpdate) error { return nil })
	if err := u.tell(progressUpdate()); err != nil {
		t.Fatal(err)
	}
	resp, err := w.server.unary(ctx, &agentv1.ListGrantsRequest{}, unaryInfo("ListGrants"), func(context.Context, any) (any, error) {
		_, err := w.server.tokens.Revoke(t.Context(), "x")
		return &agentv1.ListGrantsResponse{}, err
	})
	if status.Code(err) != codes.Unauthenticated || resp != nil {
		t.Errorf("answered %v, %v", resp, err)
	}
	if _, err := w.server.unary(ctx, &agentv1.ListGrantsRequest{}, unaryInfo("ListGrants"), func(context.Context, any) (any, error) {
		return nil, errors.New("of which it hears nothing")
	}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("refused by %v", err)
	}
	sending := u.caller(agent.Caller{}, asked{}).Progress
	sending(agent.Event{Kind: agent.EventSending})
	if !errors.Is(context.Cause(ctx), errTokenOver) {
		t.Error("it is sent")
	}
	_ = u.end(nil)
}
