package vault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/pactsigner/pactsigner/custody"
)

const (
	// callTimeout bounds every call to Vault, whatever the caller's own deadline.
	callTimeout = 2 * time.Second
	// dialTimeout leaves a call time for another address.
	dialTimeout = time.Second
	// maxResponse is far above what Vault answers to any of our calls, an error too.
	maxResponse = 4 << 20
	// maxReason keeps a proxy's error page out of our errors.
	maxReason = 512
)

// client calls Vault as whoever is logged in. Every error of its methods wraps one
// of custody's or the context's.
type client struct {
	servers []server
	current atomic.Int64 // index of the server that is asked first
	login   *login
	log     *slog.Logger
	told    Observer
	sealed  atomic.Bool // said the last answer

	transport http.RoundTripper
}

// server is one address of Vault.
type server struct {
	address string
	api     *api.Client // holds no token: each call brings its own
}

// newClient makes a client and starts to log in. It does not wait for Vault.
func newClient(cfg Config) (*client, error) {
	transport, err := newTransport(cfg)
	if err != nil {
		return nil, err
	}
	return newClientOver(cfg, transport)
}

func newTransport(cfg Config) (*http.Transport, error) {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("custody/vault: reading the CA file: %w", err)
		}
		tlsConfig.RootCAs = x509.NewCertPool()
		if !tlsConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("custody/vault: %s holds no certificate", cfg.CAFile)
		}
	}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		// All signing calls at once, and some for the rest.
		MaxIdleConns:        4 * maxInFlight,
		MaxIdleConnsPerHost: 2 * maxInFlight,
		IdleConnTimeout:     90 * time.Second,
		// Without pings, HTTP/2 goes on using a connection whose other end is gone.
		HTTP2: &http.HTTP2Config{SendPingTimeout: callTimeout, PingTimeout: callTimeout},
	}, nil
}

// newClientOver is newClient with its transport given, for tests.
func newClientOver(cfg Config, transport http.RoundTripper) (*client, error) {
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("custody/vault: no address of Vault")
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &client{log: log, transport: transport, told: cfg.Observer}
	if c.told == nil {
		c.told = silent{}
	}
	for _, address := range cfg.Addresses {
		a, err := newAPI(address, cfg.Namespace, bounded{transport})
		if err != nil {
			return nil, fmt.Errorf("custody/vault: address %q: %w", address, err)
		}
		c.servers = append(c.servers, server{address, a})
	}
	l, err := newLogin(cfg.Auth, log, c.send)
	if err != nil {
		return nil, err
	}
	c.login = l
	l.start()
	return c, nil
}

// bounded ends every answer after maxResponse bytes: the library reads the body of
// an error to its end, however far that is.
type bounded struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxResponse)
	}
	return resp, err
}

// newAPI makes the library's client for one address. What the library would take
// from the environment (token, namespace, headers, limits) is taken away again:
// our configuration alone counts. Its retries are off, because they turn a sealed
// Vault into a stall of seconds; so are its rate limiter, and its timeout, which
// would keep a timer of its own for every call.
func newAPI(address, namespace string, transport http.RoundTripper) (*api.Client, error) {
	a, err := api.NewClient(&api.Config{
		Address: address,
		HttpClient: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		CheckRetry: func(context.Context, *http.Response, error) (bool, error) { return false, nil },
	})
	if err != nil {
		return nil, err
	}
	headers := http.Header{}
	headers.Set(api.RequestHeaderName, "true")
	a.SetHeaders(headers)
	a.ClearToken()
	a.SetWrappingLookupFunc(func(string, string) string { return "" })
	if namespace != "" {
		a.SetNamespace(namespace)
	}
	return a, nil
}

// close ends the login and gives the connections back.
func (c *client) close() {
	c.login.close()
	if t, ok := c.transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

func (c *client) tokenExpires() time.Time {
	s, _ := c.login.state()
	return s.expires
}

func (c *client) tokenLease() time.Duration {
	s, _ := c.login.state()
	return s.lease
}

// call sends one request and decodes the answer, which is nil if Vault has nothing
// to say. body is sent as JSON; nil: none. A 404 that still has data (a deleted
// version of a document) comes with its data and [custody.ErrNotFound].
func (c *client) call(ctx context.Context, method, path string, body any) (*api.Secret, error) {
	var encoded []byte
	if body != nil {
		var err error
		if encoded, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("%w: %s %s: %w", custody.ErrInvalid, method, path, err)
		}
	}
	answer, _, err := c.request(ctx, method, path, encoded)
	if err != nil {
		var failed *callError
		if errors.As(err, &failed) && failed.status == http.StatusNotFound && errors.Is(err, custody.ErrNotFound) {
			secret, _ := parseSecret(failed.body) // a 404 usually has nothing
			return secret, err
		}
		return nil, err
	}
	secret, err := parseSecret(answer)
	if err != nil {
		return nil, fmt.Errorf("%w: %s %s: Vault's answer: %w", custody.ErrUnavailable, method, path, err)
	}
	return secret, nil
}

func parseSecret(answer []byte) (*api.Secret, error) {
	if len(answer) == 0 {
		return nil, nil
	}
	return api.ParseSecret(strings.NewReader(string(answer)))
}

// request sends one request with the current token, within 2 s of its own, and
// returns the body of the answer and the number of the login that it was made
// under. After a 403 it logs in anew, if that is not too soon, and asks once more.
func (c *client) request(ctx context.Context, method, path string, body []byte) ([]byte, uint64, error) {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, login, err := c.authorized(bounded, method, path, body)
	if err != nil && ctx.Err() != nil {
		err = contextError(ctx)
	}
	return answer, login, err
}

func (c *client) authorized(ctx context.Context, method, path string, body []byte) ([]byte, uint64, error) {
	s, err := c.login.session(ctx)
	if err != nil {
		return nil, 0, err
	}
	answer, err := c.send(ctx, method, path, s.token, body)
	if status(err) == http.StatusForbidden {
		if newer, again := c.login.again(ctx, s); again == nil {
			s = newer
			answer, err = c.send(ctx, method, path, s.token, body)
		}
	}
	if status(err) == http.StatusForbidden && s.uses > 0 {
		err = fmt.Errorf("%w; %s", err, limited(s.uses))
	}
	return answer, s.number, err
}

// contextError says that the caller's context ended first. A deadline that Vault
// let pass is also an unavailable custody; a caller that left is no news of Vault.
func contextError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: Vault did not answer in time: %w", custody.ErrUnavailable, ctx.Err())
	}
	return fmt.Errorf("custody/vault: %w", ctx.Err())
}

// send asks the servers in turn, beginning with the one that answered last, until
// one of them has an answer. It does not ask a second one what the first may have
// done already, unless doing it twice is harmless.
func (c *client) send(ctx context.Context, method, path, token string, body []byte) ([]byte, error) {
	var err error
	first := c.current.Load()
	for i := range int64(len(c.servers)) {
		asked := (first + i) % int64(len(c.servers))
		var answer []byte
		answer, err = c.observed(ctx, c.servers[asked], method, path, token, body)
		if !elsewhere(err) {
			if i > 0 {
				c.current.CompareAndSwap(first, asked)
			}
			return answer, err
		}
		if errors.Is(ctx.Err(), context.Canceled) { // no fault of the server's
			return nil, err
		}
		if ctx.Err() != nil || !harmlessTwice(method, path) && !untouched(err) {
			c.current.CompareAndSwap(first, (asked+1)%int64(len(c.servers)))
			return nil, err
		}
	}
	return nil, err
}

// observed is ask, with the observer told.
func (c *client) observed(ctx context.Context, s server, method, path, token string, body []byte) ([]byte, error) {
	ctx, ended := c.told.Call(ctx, operationOf(path))
	answer, err := c.ask(ctx, s, method, path, token, body)
	result := resultOf(ctx, err)
	ended(result)
	if result != resultUnreachable && result != resultCancelled {
		c.sealed.Store(result == resultSealed)
	}
	return answer, err
}

// ask sends one request to one server.
func (c *client) ask(ctx context.Context, s server, method, path, token string, body []byte) ([]byte, error) {
	logical := s.api.WithRequestCallbacks(func(r *api.Request) { r.ClientToken = token }).Logical()
	var resp *api.Response
	var err error
	switch method {
	case http.MethodGet:
		resp, err = logical.ReadRawWithContext(ctx, path)
	case "LIST":
		resp, err = logical.ReadRawWithDataWithContext(ctx, path, map[string][]string{"list": {"true"}})
	case http.MethodPost, http.MethodPut:
		resp, err = logical.WriteRawWithContext(ctx, path, body)
	case http.MethodDelete:
		resp, err = logical.DeleteRawWithContext(ctx, path)
	default:
		return nil, fmt.Errorf("%w: method %s", custody.ErrInvalid, method)
	}
	if resp != nil {
		defer resp.Body.Close()
	}
	if err != nil {
		return nil, newCallError(method, path, resp, err)
	}
	if resp.StatusCode >= 300 { // the library follows one redirect, and takes a second one for success
		return nil, &callError{method: method, path: path, status: resp.StatusCode, kind: custody.ErrUnavailable, reason: "look elsewhere"}
	}
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, newCallError(method, path, nil, err)
	}
	return answer, nil
}

// callError is a call that brought no answer (status 0), or one that is an error.
type callError struct {
	method, path string
	status       int
	kind         error  // custody's error that it counts as
	reason       string // Vault's words, or the connection's
	cause        error  // of the connection; nil if Vault answered
	body         []byte // of a 404
}

func newCallError(method, path string, resp *api.Response, err error) *callError {
	e := &callError{method: method, path: path, kind: custody.ErrUnavailable}
	var answer *api.ResponseError
	if !errors.As(err, &answer) {
		e.cause, e.reason = err, err.Error()
		var long *http.MaxBytesError
		if errors.As(err, &long) { // its words are about a request
			e.reason = fmt.Sprintf("the answer is longer than %d bytes", long.Limit)
		}
		return e
	}
	e.status = answer.StatusCode
	reason := strings.Join(answer.Errors, "; ")
	e.reason = strings.Join(strings.Fields(reason[:min(len(reason), maxReason)]), " ") // Vault lists over several lines
	if answer.RawError {
		e.reason = "not an answer of Vault's"
	}
	switch e.status {
	case http.StatusBadRequest:
		e.kind = custody.ErrInvalid
	case http.StatusNotFound:
		// With words, it is the mount or the namespace that is not there.
		if e.reason != "" {
			break
		}
		e.body, _ = io.ReadAll(resp.Body) // the library left it in memory
		var shape struct {
			Errors *[]string       `json:"errors"`
			Data   json.RawMessage `json:"data"`
		}
		if json.Unmarshal(e.body, &shape) != nil || shape.Errors == nil && shape.Data == nil { // a proxy's
			e.reason = "not an answer of Vault's"
			break
		}
		e.kind = custody.ErrNotFound
	}
	return e
}

func (e *callError) Error() string {
	if e.status == 0 {
		return fmt.Sprintf("%v: %s %s: %s", e.kind, e.method, e.path, e.reason)
	}
	return fmt.Sprintf("%v: %s %s: Vault says %d: %s", e.kind, e.method, e.path, e.status, e.reason)
}

// Unwrap gives the error's kind. The cause is left out: the context that ended in
// it may be ours, not the caller's.
func (e *callError) Unwrap() error { return e.kind }

// status is the HTTP status that Vault answered, 0 if it did not.
func status(err error) int {
	var e *callError
	if errors.As(err, &e) {
		return e.status
	}
	return 0
}

// elsewhere reports whether another server might do better: this one is out of
// reach, sealed, or a standby that does not forward.
func elsewhere(err error) bool {
	var e *callError
	if !errors.As(err, &e) {
		return false
	}
	switch e.status {
	case 0, http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	case http.StatusInternalServerError: // so a standby that does not know the active node
		return strings.Contains(e.reason, "not active") || strings.Contains(e.reason, "standby")
	default:
		return false
	}
}

// untouched reports whether a server that has no answer certainly did nothing.
// Behind a gateway's 502 or 504 it may have.
func untouched(err error) bool {
	var e *callError
	if !errors.As(err, &e) {
		return false
	}
	var op *net.OpError
	switch e.status {
	case 0:
		return errors.As(e.cause, &op) && op.Op == "dial"
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return false
	default:
		return true
	}
}

// harmlessTwice reports whether a request may be repeated without knowing whether
// it was carried out.
func harmlessTwice(method, path string) bool {
	if method == http.MethodGet || method == "LIST" {
		return true
	}
	for _, part := range []string{"/sign/", "/hmac/", "/login", "/renew-self"} {
		if strings.Contains(path, part) {
			return true
		}
	}
	return false
}

// transient reports whether the same call may well succeed in a moment.
func transient(err error) bool {
	var e *callError
	if !errors.As(err, &e) {
		return false
	}
	return e.status == 0 || e.status == http.StatusTooManyRequests || e.status == http.StatusServiceUnavailable
}
