package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// maxAnswer bounds what the client takes: a conversation is whole.
const maxAnswer = 64 << 20

// Client is a running agent, reached through its control plane. It has the methods of
// an [agent.Agent] that surfaces use, which do the same and fail the same, with these
// differences:
//
// A call acts as what the connection is: the owner on the agent's own socket, or what
// its token may do. [agent.Caller.Actor] is the running agent's to say. A call of a
// task is narrowed to one, of the owner, top-level and under the default network
// profile; a task that is anything else is refused here.
//
// Approve and SignIn are the owner's answers, and take the connection's own authority,
// also in a task's call: admin for Approve, operator for SignIn. Where the connection
// has less (Decides, SignsIn), nobody is asked, and what takes their answer stays open
// for the owner.
//
// Safe for concurrent use.
type Client struct {
	target string
	bearer func() string // what authenticates the calls, or nothing; no printer calls it
	scope  Scope         // of the connection; empty: of an older agent, which does not say

	mu     sync.Mutex
	conns  []*conn // the last is used; others may have a last answer under way
	closed bool
}

// conn is a way to the agent, and how it was opened.
type conn struct {
	*grpc.ClientConn
	opened atomic.Int64          // how often: each time it may be another process
	failed atomic.Pointer[error] // why it could not be the last time; nil: it could
}

// Process tells of the running agent.
type Process struct {
	Version   string
	Started   time.Time
	TimeScale int   // durations are divided by it
	Scope     Scope // of the connection
}

// CheckTarget reports whether Dial knows the form of a target, and what is wrong.
func CheckTarget(target string) error {
	_, _, err := parseTarget(target)
	return err
}

// parseTarget reads unix:PATH, or http://HOST:PORT of this machine.
func parseTarget(target string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(target, "unix:"); ok {
		if path == "" {
			return "", "", fmt.Errorf("%q names no socket: say unix:PATH", target)
		}
		return "unix", path, nil
	}
	u, err := url.Parse(target)
	switch {
	case err != nil || u.Scheme != "http" || u.Port() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return "", "", fmt.Errorf("%q is no agent: say unix:PATH or http://127.0.0.1:PORT", withoutUser(target))
	case u.Hostname() == "localhost":
	default:
		if ip, err := netip.ParseAddr(u.Hostname()); err != nil || !ip.IsLoopback() {
			return "", "", fmt.Errorf("%q is not on this machine: an agent is reached by unix:PATH or http://127.0.0.1:PORT alone", target)
		}
	}
	return "tcp", u.Host, nil
}

// withoutUser is a target that may be shown: what stands before @ may be a secret.
func withoutUser(target string) string {
	if i := strings.LastIndex(target, "@"); i >= 0 {
		return "..." + target[i:]
	}
	return target
}

// Dial connects to the agent at a target: unix:PATH, or http://127.0.0.1:PORT, which
// takes a token. It returns once the agent has answered and accepts the caller, or ctx
// ends. Errors wrap [ErrUnreachable] if nothing answers.
func Dial(ctx context.Context, target string, token agent.Secret) (*Client, error) {
	network, address, err := parseTarget(target)
	if err == nil && network == "unix" {
		err = checkSocket(address)
	}
	if err != nil {
		return nil, err
	}
	c := &Client{target: target, bearer: func() string {
		if token == "" {
			return ""
		}
		return "Bearer " + token.Reveal()
	}}
	conn, err := c.conn()
	if err != nil {
		return nil, err
	}
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready && state != connectivity.TransientFailure; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			break
		}
	}
	if conn.GetState() != connectivity.Ready {
		err = c.unreachable(ctx, conn)
	} else { // the least that asks who calls
		var head metadata.MD
		_, err = invoke(ctx, c, metadata.MD{}, agentv1.AgentServiceClient.GetSettings, &agentv1.GetSettingsRequest{}, grpc.Header(&head))
		if said := head.Get(scopeKey); len(said) == 1 {
			c.scope = Scope(said[0])
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Target is what the client was dialled with.
func (c *Client) Target() string { return c.target }

// Scope is what the connection may do: admin on the owner's socket, else the token's.
// It is empty if the agent is an older one, which does not say.
func (c *Client) Scope() Scope { return c.scope }

// Decides reports whether the connection may decide approvals, and confirm.
func (c *Client) Decides() bool { return c.scope == "" || c.scope == ScopeAdmin }

// SignsIn reports whether the connection may be shown a sign-in's link.
func (c *Client) SignsIn() bool { return c.scope == "" || c.scope.rank() >= ScopeOperator.rank() }

// Close ends the connection. What is under way is given up.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	c.conns = nil
	return errors.Join(errs...)
}

// connectTimeout is how long an agent may take to begin to speak, if the caller's
// context does not end before.
const connectTimeout = 20 * time.Second

// keptConns is how many connections that failed are kept for what is still under way
// on them.
const keptConns = 4

// conn is the connection to use. One that failed is not waited for: a new one asks at
// once whether the agent is there again.
func (c *Client) conn() (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("the connection to the agent at %s is closed", c.target)
	}
	if n := len(c.conns); n > 0 && c.conns[n-1].failed.Load() == nil && c.conns[n-1].GetState() != connectivity.TransientFailure {
		return c.conns[n-1], nil
	}
	name := "localhost" // what the agent takes the call to be for
	if network, address, _ := parseTarget(c.target); network == "tcp" {
		name = address
	}
	next := new(conn)
	var err error
	next.ClientConn, err = grpc.NewClient("passthrough:///"+name,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // it stays on this machine
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			nc, err := dial(ctx, c.target)
			if err != nil {
				next.failed.Store(&err)
				return nil, err
			}
			next.failed.Store(nil)
			next.opened.Add(1)
			return nc, nil
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, MaxDelay: time.Minute},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fmt.Errorf("the agent at %s: %w", c.target, err)
	}
	c.conns = append(c.conns, next)
	if len(c.conns) > keptConns {
		err = c.conns[0].Close()
		c.conns = c.conns[1:]
	}
	return next, err
}

var errOthers = errors.New("another user's process listens there")

// dial opens one connection. What a name of this machine leads to must be on it, and
// who listens on a socket must be this user, who is to be told everything.
func dial(ctx context.Context, target string) (net.Conn, error) {
	network, address, err := parseTarget(target)
	if err != nil {
		return nil, err
	}
	nc, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if at, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		switch {
		case !at.IP.IsLoopback():
			return nil, errors.Join(fmt.Errorf("%s is not on this machine", at), nc.Close())
		case othersListen(nc): // before anything is sent
			return nil, errors.Join(errOthers, nc.Close())
		}
	}
	if uc, ok := nc.(*net.UnixConn); ok && !samePeer(uc) {
		return nil, errors.Join(errOthers, nc.Close())
	}
	return nc, nil
}

// unreachable is why no connection came about.
func (c *Client) unreachable(ctx context.Context, on *conn) error {
	const fix = "start it with pactctl agent serve"
	if err := on.failed.Load(); err != nil && errors.Is(*err, errOthers) {
		return fmt.Errorf("%w at %s: %w: start yours at another address", ErrUnreachable, c.target, *err)
	} else if err != nil {
		return fmt.Errorf("%w at %s: %s: %w", ErrUnreachable, c.target, fix, *err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w at %s: something listens there and does not speak: %w", ErrUnreachable, c.target, err)
	}
	return fmt.Errorf("%w at %s: something else listens there", ErrUnreachable, c.target)
}

// failed is a call's error as the caller gets it.
func (c *Client) failed(ctx context.Context, on *conn, err error) error {
	out := fromStatus(ctx, c.target, err)
	switch {
	case errors.Is(out, ErrUnreachable) && on.failed.Load() != nil:
		return c.unreachable(ctx, on)
	case status.Code(err) == codes.Unauthenticated && c.bearer() == "":
		return fmt.Errorf("the agent at %s takes a token: pactctl agent tokens create makes one", c.target)
	}
	return out
}

// task is the metadata that narrows a call to its caller's task. A caller whose
// authority the control plane cannot keep is refused: it has no more than the
// connection's, or a task's of the owner.
func (c *Client) task(who agent.Caller) (metadata.MD, error) {
	refused := func(why string) (metadata.MD, error) {
		return nil, &agent.Refusal{Status: agent.StatusBlocked, Reason: agent.ReasonDelegationRequired, Detail: why}
	}
	switch {
	case who.Principal == "":
		return nil, errors.New("caller: Principal is required: say on whose behalf the call is made")
	case who.Network != nil && who.Network != agent.DefaultNetwork():
		return refused("the running agent acts under the default network profile alone")
	case who.Task == nil && who.Origin != agent.OriginOwnerCLI:
		return refused(fmt.Sprintf("only the owner and tasks of theirs reach the running agent; this call is by %q", who.Origin))
	case who.Task == nil:
		return metadata.MD{}, nil
	case !who.Offered() || who.Task.Mode != agent.ModeAct:
		return refused("only a top-level task of the owner, which may act, reaches the running agent")
	case who.Network == nil:
		return refused("a task without a network profile has no network (TR-9)")
	}
	if err := checkName(taskHeader, who.Task.ID); err != nil {
		return nil, fromStatus(context.Background(), c.target, err)
	}
	return metadata.Pairs(taskHeader, headerName(who.Task.ID)), nil
}

// outgoing is ctx with what authenticates a call, and nothing of another's.
func (c *Client) outgoing(ctx context.Context, md metadata.MD) context.Context {
	md = md.Copy()
	if b := c.bearer(); b != "" {
		md.Set("authorization", b)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// method is a method of the generated client.
type method[Q, M proto.Message] = func(agentv1.AgentServiceClient, context.Context, Q, ...grpc.CallOption) (M, error)

// invoke makes one call with one answer.
func invoke[Q, M proto.Message](ctx context.Context, c *Client, md metadata.MD, do method[Q, M], req Q, opts ...grpc.CallOption) (M, error) {
	var none M
	if err := checkUTF8(req); err != nil { // no message may hold it
		return none, fromStatus(ctx, c.target, err)
	}
	on, err := c.conn()
	if err != nil {
		return none, err
	}
	m, err := do(agentv1.NewAgentServiceClient(on), c.outgoing(ctx, md), req, opts...)
	if err != nil {
		return none, c.failed(ctx, on, err)
	}
	return m, nil
}

// fetch makes one call of a caller, and gives its view.
func fetch[V any, Q, M proto.Message](ctx context.Context, c *Client, who agent.Caller, do method[Q, M], req Q) (V, error) {
	var none V
	md, err := c.task(who)
	if err != nil {
		return none, err
	}
	m, err := invoke(ctx, c, md, do, req)
	if err != nil {
		return none, err
	}
	return viewOf[V](m)
}

// page is one answer of a list.
type page interface {
	proto.Message
	GetNextPageToken() string
}

// maxRestarts is how often a list is begun anew because it changed meanwhile.
const maxRestarts = 5

// list reads a list to its end.
func list[V any, Q proto.Message, P page, M proto.Message](
	ctx context.Context, c *Client, who agent.Caller, do method[Q, P], ask func(token string) Q, items func(P) []M,
) ([]V, error) {
	md, err := c.task(who)
	if err != nil {
		return nil, err
	}
	out := []V{}
	for token, restarts := "", 0; ; {
		p, err := invoke(ctx, c, md, do, ask(token))
		if token != "" && agent.ReasonOf(err) == agent.ReasonInvalidInput && restarts < maxRestarts {
			token, out = "", out[:0] // where it stood is gone
			restarts++
			continue
		}
		if err != nil {
			return nil, err
		}
		views, err := viewsOf[V](items(p))
		if err != nil {
			return nil, err
		}
		out = append(out, views...)
		if token = p.GetNextPageToken(); token == "" {
			return out, nil
		}
	}
}

// Process tells of the running agent. It asks for the whole status.
func (c *Client) Process(ctx context.Context) (Process, error) {
	m, err := invoke(ctx, c, metadata.MD{}, agentv1.AgentServiceClient.GetStatus, &agentv1.GetStatusRequest{})
	if err != nil {
		return Process{}, err
	}
	p := m.GetProcess()
	return Process{Version: p.GetVersion(), Started: p.GetStarted().AsTime(), TimeScale: int(p.GetTimeScale()), Scope: Scope(p.GetScope())}, nil
}

// Watch is [agent.Agent.Watch].
func (c *Client) Watch(ctx context.Context, who agent.Caller, each func(agent.Change) error) error {
	md, err := c.task(who)
	if err != nil {
		return err
	}
	on, err := c.conn()
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	stream, err := agentv1.NewAgentServiceClient(on).WatchEvents(c.outgoing(ctx, md), &agentv1.WatchEventsRequest{})
	for err == nil {
		var m *agentv1.ChangeEvent
		if m, err = stream.Recv(); err != nil {
			break
		}
		change, err := viewOf[agent.Change](m)
		if err != nil {
			return err
		}
		if err := each(change); err != nil {
			return err
		}
	}
	if err == io.EOF {
		err = errors.New("the agent ended the watch")
	}
	return c.failed(ctx, on, err)
}
