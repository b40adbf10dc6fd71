package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/internal/bubble"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// deadlines is an answer's writer that notes the read deadlines that are set.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// A body has its time to come, and an operation takes longer: the deadline is lifted
// before the service is called. A caller that is not admitted is answered before that.
func TestBodyTimeout(t *testing.T) {
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	called, refuse := 0, false
	h := handler(t, time.Minute, func(*http.Request) bool { return !refuse }, func() {
		called++
		if n := len(w.set); n != 2 || w.set[0].IsZero() || !w.set[1].IsZero() {
			t.Errorf("the deadlines are %v when the service is called", w.set)
		}
	})
	post := func() {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/providers", strings.NewReader(`{"origin":"https://p.example.com"}`))
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(w, r)
	}
	post()
	if called != 1 || w.Code != 200 {
		t.Errorf("called %d times: %d %s", called, w.Code, w.Body)
	}

	w, refuse = &deadlines{ResponseRecorder: httptest.NewRecorder()}, true
	post()
	if n := len(w.set); called != 1 || w.Code != 401 || n == 0 || w.set[n-1].IsZero() || w.Header().Get("WWW-Authenticate") != `Bearer realm="test"` {
		t.Errorf("called %d times: %d %v, deadlines %v", called, w.Code, w.Header(), w.set)
	}
}

// handler serves an agent's service whose calls are all answered alike.
func handler(t *testing.T, bodyTimeout time.Duration, admits func(*http.Request) bool, called func()) http.Handler {
	t.Helper()
	h, err := REST{
		Service: &Service{
			Desc: &agentv1.AgentService_ServiceDesc, Impl: agentv1.UnimplementedAgentServiceServer{},
			Unary: func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
				called()
				return new(agentv1.Provider), nil
			},
			Invalid: func(field, format string, args ...any) error {
				return status.Error(codes.InvalidArgument, field+": "+fmt.Sprintf(format, args...))
			},
		},
		Register: func(ctx context.Context, mux *Mux, conn grpc.ClientConnInterface) error {
			return agentv1.RegisterAgentServiceHandlerClient(ctx, mux, agentv1.NewAgentServiceClient(conn))
		},
		Admit: func(r *http.Request) error {
			if !admits(r) {
				return status.Error(codes.Unauthenticated, "who are you?")
			}
			return nil
		},
		Realm: "test", MaxBody: 100, BodyTimeout: bodyTimeout,
	}.Handler()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// pipes is a listener of this process, whose clock may be the test's.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, more := <-p; more {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A refused request has its answer though its body never comes, and its connection ends
// with that, also where the server has no timeout for either. One whose body was read goes
// on.
func TestRefusedBodies(t *testing.T) {
	const (
		asJSON  = "Content-Type: application/json\r\n"
		longest = "Content-Length: 100\r\n"
	)
	for name, c := range map[string]struct {
		request string
		in      time.Duration // BodyTimeout
		code    int
		goesOn  bool
	}{
		"a stranger":         {"POST /v1/providers HTTP/1.1\r\nX-Stranger: yes\r\n" + asJSON + longest + "\r\n", 0, 401, false},
		"no JSON":            {"POST /v1/providers HTTP/1.1\r\nContent-Type: text/plain\r\n" + longest + "\r\n", 0, 400, false},
		"no JSON, in chunks": {"POST /v1/providers HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 0, 400, false},
		"a query":            {"POST /v1/providers?x=1 HTTP/1.1\r\n" + asJSON + longest + "\r\n", time.Minute, 400, false},
		"no path":            {"POST /v1/nothing HTTP/1.1\r\n" + asJSON + longest + "\r\n", 0, 404, false},
		"no method":          {"DELETE /v1/providers HTTP/1.1\r\n" + longest + "\r\n", 0, 405, false},
		"not in time":        {"POST /v1/providers HTTP/1.1\r\n" + asJSON + longest + "\r\n{", time.Minute, 400, false},
		"too large":          {"POST /v1/providers HTTP/1.1\r\n" + asJSON + "Content-Length: 1000\r\n\r\n" + strings.Repeat(" ", 101), time.Minute, 400, false},
		"an unknown member":  {"POST /v1/providers HTTP/1.1\r\n" + asJSON + "Content-Length: 7\r\n\r\n" + `{"x":1}`, 0, 400, true},
		"no body":            {"DELETE /v1/providers HTTP/1.1\r\n\r\n", 0, 405, true},
	} {
		bubble.Test(t, func(t *testing.T) { // where what never ends fails
			server := &http.Server{Handler: handler(t, c.in, func(r *http.Request) bool { return r.Header.Get("X-Stranger") == "" }, func() {
				if !c.goesOn {
					t.Errorf("%s: the service is called", name)
				}
			})}
			l := make(pipes, 1)
			go func() { _ = server.Serve(l) }()
			mine, theirs := net.Pipe()
			l <- theirs
			answers := bufio.NewReader(mine)
			ask := func(request string, want int) {
				t.Helper()
				head, rest, _ := strings.Cut(request, "\r\n")
				if _, err := io.WriteString(mine, head+"\r\nHost: localhost\r\n"+rest); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				a, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if _, err := io.Copy(io.Discard, a.Body); err != nil || a.StatusCode != want {
					t.Errorf("%s: %d, %v; want %d", name, a.StatusCode, err, want)
				}
			}
			begun := time.Now()
			ask(c.request, c.code)
			if waited := time.Since(begun); waited > 0 && name != "not in time" {
				t.Errorf("%s: answered after %s", name, waited)
			}
			if c.goesOn {
				ask("POST /v1/providers HTTP/1.1\r\n"+asJSON+"Content-Length: 2\r\n\r\n{}", 200)
			} else if _, err := answers.ReadByte(); err != io.EOF {
				t.Errorf("%s: the connection goes on: %v", name, err)
			}
			_ = mine.Close()
			close(l)
			_ = server.Close()
		})
	}
}
