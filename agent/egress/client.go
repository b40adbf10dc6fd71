// Package egress is the one way from the agent to the network.
//
// Every connection that the agent opens is a Request with a Purpose, and the
// purpose fixes how long it may take, how much may come back and whether it may
// be redirected (agent rules, section 5). Every URL, of each hop, passes the URL
// rules (UR-1..UR-4) and the caller's Policy; every name is resolved here, its
// answers are checked, and the socket goes to a checked answer and nowhere else
// (UR-5). There is no ambient proxy, no cookie and no transparent retry of what
// may have arrived.
//
// An Error says in its Code what happened and in Sent whether the other side
// can have seen anything of the request.
package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"
)

// Policy decides whether a caller may talk to a URL at all; an error refuses.
// It is asked at every hop.
type Policy func(ctx context.Context, u *url.URL) error

// AllowAll is the policy of a caller without restrictions of its own.
func AllowAll(context.Context, *url.URL) error { return nil }

// Config says what a Client may do.
type Config struct {
	Rules  Rules
	Policy Policy // nil denies everything (TR-9)
	// Resolver looks names up; nil is the system's.
	Resolver Resolver
	// TLS is cloned; nil is the system's trust store. TLS 1.2 is the least.
	TLS *tls.Config
	// Scale divides every time limit, for demonstrations and tests; below 2 it
	// does nothing. A limit never falls below five seconds: real sockets do not
	// get faster, nor does a busy machine.
	Scale int
}

// Client sends requests. Safe for concurrent use.
type Client struct {
	cfg  Config
	gets *http.Transport
	// posts makes a connection for each request: whether one that lies idle is still
	// open shows only when something was written to it, and a POST is not sent twice.
	posts *http.Transport
	dial  dialer
}

// New returns a client; Close releases its idle connections.
func New(cfg Config) *Client {
	c := &Client{cfg: cfg, dial: dialer{rules: cfg.Rules, resolver: cfg.Resolver}}
	tlsConfig := cfg.TLS.Clone()
	if tlsConfig == nil {
		tlsConfig = &tls.Config{}
	}
	tlsConfig.MinVersion = max(tlsConfig.MinVersion, tls.VersionTLS12)
	// The transport alone: a http.Client would follow redirects and keep cookies.
	c.gets = &http.Transport{
		Proxy:                  nil,
		DialContext:            c.dial.dialContext,
		TLSClientConfig:        tlsConfig,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // the cap is on what arrives and on what is read alike
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
	c.posts = c.gets.Clone()
	c.posts.DisableKeepAlives = true
	return c
}

// Close closes idle connections.
func (c *Client) Close() { c.gets.CloseIdleConnections() }

// Rules returns the URL rules that the client holds everything to.
func (c *Client) Rules() Rules { return c.cfg.Rules }

// Request is one exchange.
type Request struct {
	Purpose Purpose
	Method  string // GET or POST
	URL     string
	// Header is sent to the first origin only; beyond it Accept alone survives
	// (TR-2). Without Accept it is application/json (TR-5).
	Header http.Header
	Body   []byte
}

// Response is the last hop's answer, whatever its status.
type Response struct {
	Status   int
	Header   http.Header
	Body     []byte
	FinalURL string
	Hops     []string // every URL asked, FinalURL last
}

// Origins returns the chain of origins passed through, each once in a row (DI-4).
func (r Response) Origins() []string {
	var out []string
	for _, hop := range r.Hops {
		u, err := url.Parse(hop)
		if err != nil {
			continue
		}
		if o := Origin(u); len(out) == 0 || out[len(out)-1] != o {
			out = append(out, o)
		}
	}
	return out
}

// userAgent is all that a request says of who sends it, beside its tokens.
const userAgent = "pactsigner-agent"

// Do sends a request and reads the whole answer within the purpose's limits.
// Any HTTP status is an answer; errors are *Error.
func (c *Client) Do(ctx context.Context, req Request) (Response, error) {
	limit, ok := Limits[req.Purpose]
	if !ok {
		return Response{}, &Error{Code: InvalidURL, Purpose: req.Purpose, Err: errors.New("no such purpose")}
	}
	if req.Method != http.MethodGet && req.Method != http.MethodPost || req.Method == http.MethodGet && len(req.Body) > 0 {
		return Response{}, &Error{Code: InvalidURL, Purpose: req.Purpose, Err: errors.New("the method must be GET without a body, or POST")}
	}
	timeout := limit.Timeout
	if c.cfg.Scale > 1 {
		timeout = min(timeout, max(timeout/time.Duration(c.cfg.Scale), 5*time.Second))
	}
	hopCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	x := &exchange{client: c, caller: ctx, req: req, limit: limit, header: req.Header.Clone()}
	if x.header == nil {
		x.header = http.Header{}
	}
	if x.header.Get("Accept") == "" {
		x.header.Set("Accept", "application/json")
	}
	return x.run(hopCtx)
}

// exchange is one Do.
type exchange struct {
	client *Client
	caller context.Context
	req    Request
	limit  Limit
	header http.Header
	origin string
	hops   []string
	sent   atomic.Bool // some byte of a request may have left
}

func (x *exchange) run(ctx context.Context) (Response, error) {
	raw := x.req.URL
	for {
		u, err := x.admit(ctx, raw)
		if err != nil {
			return Response{}, err
		}
		x.hops = append(x.hops, raw)
		resp, err := x.hop(ctx, u)
		if err != nil {
			return Response{}, err
		}
		location := resp.Header.Get("Location")
		if !redirects(resp.Status) || location == "" {
			return *resp, nil
		}
		if raw, err = x.next(u, location, resp.Status); err != nil {
			return Response{}, err
		}
	}
}

func redirects(status int) bool {
	switch status {
	case 301, 302, 303, 307, 308:
		return true
	}
	return false
}

// admit holds a hop's URL to the rules and the policy (TR-1, TR-3), and drops
// the headers that do not leave their origin (TR-2).
func (x *exchange) admit(ctx context.Context, raw string) (*url.URL, error) {
	first := len(x.hops) == 0
	u, err := x.client.cfg.Rules.Check(raw)
	if err != nil {
		if first {
			return nil, x.fail(InvalidURL, "", err)
		}
		return nil, x.fail(RedirectNotAllowed, "", fmt.Errorf("redirect target: %w", err))
	}
	origin := Origin(u)
	switch {
	case first:
		x.origin = origin
	case origin != x.origin && x.limit.SameOrigin:
		return nil, x.fail(RedirectNotAllowed, origin, errors.New("a redirect leaves the origin"))
	case origin != x.origin:
		x.header = http.Header{"Accept": x.header.Values("Accept")}
	}
	if x.client.cfg.Policy == nil {
		return nil, x.fail(PolicyDenied, origin, errors.New("no network permission is configured"))
	}
	if err := x.client.cfg.Policy(ctx, u); err != nil {
		return nil, x.fail(PolicyDenied, origin, err)
	}
	return u, nil
}

// next resolves a redirect, if this exchange may follow it at all.
func (x *exchange) next(u *url.URL, location string, status int) (string, error) {
	refuse := func(code Code, why string) (string, error) {
		e := x.fail(code, Origin(u), errors.New(why))
		e.Status = status
		return "", e
	}
	switch {
	case x.req.Method != http.MethodGet || x.limit.Redirects == 0:
		return refuse(RedirectNotAllowed, "the answer is a redirect, which this request does not follow")
	case len(x.hops) > x.limit.Redirects:
		return refuse(TooManyRedirects, fmt.Sprintf("more than %d redirects", x.limit.Redirects))
	}
	ref, err := url.Parse(location)
	if err != nil {
		return refuse(RedirectNotAllowed, "the redirect's target does not parse")
	}
	target := u.ResolveReference(ref)
	target.Fragment, target.RawFragment = "", "" // never sent; a redirect may have one
	return target.String(), nil
}

func (x *exchange) hop(ctx context.Context, u *url.URL) (*Response, error) {
	origin := Origin(u)
	var reached atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// From here on bytes of the request may leave.
		GotConn: func(httptrace.GotConnInfo) { reached.Store(true); x.sent.Store(true) },
	})
	req, err := http.NewRequestWithContext(ctx, x.req.Method, u.String(), bytes.NewReader(x.req.Body))
	if err != nil {
		return nil, x.fail(InvalidURL, origin, errors.New("the request cannot be made"))
	}
	req.GetBody = nil // the transport cannot send it again
	transport := x.client.posts
	if x.req.Method == http.MethodGet {
		req.Body, req.ContentLength = http.NoBody, 0
		transport = x.client.gets
	}
	for k, v := range x.header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", userAgent)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, x.fail(x.codeOf(err, reached.Load()), origin, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 { // a change of protocols; its body hears no context
		return nil, x.fail(Network, origin, fmt.Errorf("HTTP %d is no answer", resp.StatusCode))
	}
	// The declared length is not trusted (TR-4).
	body, err := io.ReadAll(io.LimitReader(resp.Body, x.limit.Body+1))
	if int64(len(body)) > x.limit.Body {
		e := x.fail(TooLarge, origin, fmt.Errorf("the answer is longer than %d bytes", x.limit.Body))
		e.Status = resp.StatusCode
		return nil, e
	}
	if err != nil {
		e := x.fail(x.codeOf(err, true), origin, err)
		e.Status = resp.StatusCode
		return nil, e
	}
	return &Response{
		Status: resp.StatusCode, Header: resp.Header, Body: body,
		FinalURL: x.hops[len(x.hops)-1], Hops: x.hops,
	}, nil
}

// codeOf tells whose fault a failed hop is. What the caller's context says
// comes first: an abort looks like any other broken connection.
func (x *exchange) codeOf(err error, reached bool) Code {
	var refused *refusedError
	switch {
	case errors.Is(x.caller.Err(), context.Canceled):
		return Aborted
	case x.caller.Err() != nil, errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return Timeout
	case !reached && errors.As(err, &refused):
		return DestinationRefused
	case errors.Is(err, context.Canceled):
		return Aborted
	}
	return Network
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

func (x *exchange) fail(code Code, origin string, err error) *Error {
	return &Error{Code: code, Purpose: x.req.Purpose, Origin: origin, Sent: x.sent.Load(), Err: err}
}
