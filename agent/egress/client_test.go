package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// answers is a resolver that gives each name's answers in turn, the last one
// for ever.
type answers struct {
	mu    sync.Mutex
	of    map[string][][]string
	asked map[string]int
}

func (a *answers) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list, ok := a.of[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if a.asked == nil {
		a.asked = map[string]int{}
	}
	n := min(a.asked[host], len(list)-1)
	a.asked[host]++
	var out []netip.Addr
	for _, s := range list[n] {
		out = append(out, netip.MustParseAddr(s))
	}
	return out, nil
}

// world is a TLS server that every checked address leads to, and what was
// dialled on the way.
type world struct {
	client  *Client
	answers *answers
	mu      sync.Mutex
	dialled []string
}

// newWorld serves every name of of with handler; the request's Host tells which.
func newWorld(t *testing.T, of map[string][][]string, handler http.Handler) *world {
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	w := &world{answers: &answers{of: of}}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	w.client = New(Config{
		Policy: AllowAll, Resolver: w.answers,
		TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"},
	})
	w.client.dial.connect = func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
		w.mu.Lock()
		w.dialled = append(w.dialled, to.String())
		w.mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
	}
	t.Cleanup(w.client.Close)
	return w
}

func (w *world) get(t *testing.T, purpose Purpose, url string, header http.Header) (Response, error) {
	return w.client.Do(t.Context(), Request{Purpose: purpose, Method: "GET", URL: url, Header: header})
}

func wantCode(t *testing.T, err error, code Code, sent bool) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is not an *Error", err)
	}
	if e.Code != code || e.Sent != sent {
		t.Errorf("%s, sent %v (%v); want %s, sent %v", e.Code, e.Sent, err, code, sent)
	}
	return e
}

var public = map[string][][]string{
	"a.example": {{"93.184.216.34"}}, "b.example": {{"93.184.216.35"}}, "internal.example": {{"10.0.0.1"}},
	"mixed.example": {{"93.184.216.34", "192.168.0.1"}}, "mapped.example": {{"::ffff:169.254.169.254"}},
	"none.example": {{}}, "six.example": {{"2606:4700::1", "93.184.216.36"}},
}

// TestRebinding covers UR-5: a name that answers a public address first and a
// private one second is connected to the first and refused the second time.
func TestRebinding(t *testing.T) {
	of := map[string][][]string{"a.example": {{"93.184.216.34"}, {"127.0.0.1"}}}
	w := newWorld(t, of, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Connection", "close") // so that the second request must look up again
		fmt.Fprint(rw, "ok")
	}))
	if resp, err := w.get(t, Card, "https://a.example/", nil); err != nil || string(resp.Body) != "ok" {
		t.Fatalf("%q, %v", resp.Body, err)
	}
	_, err := w.get(t, Card, "https://a.example/", nil)
	wantCode(t, err, DestinationRefused, false)
	if !slices.Equal(w.dialled, []string{"93.184.216.34:443"}) {
		t.Errorf("dialled %v: not pinned to the checked answer", w.dialled)
	}
	if w.answers.asked["a.example"] != 2 {
		t.Errorf("asked %d times", w.answers.asked["a.example"])
	}
}

// TestRebindingAtARedirect covers UR-5: the second hop is checked as the first is.
func TestRebindingAtARedirect(t *testing.T) {
	w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, "https://internal.example/", http.StatusFound)
	}))
	_, err := w.get(t, Card, "https://a.example/", nil)
	e := wantCode(t, err, DestinationRefused, true)
	if e.Origin != "https://internal.example" || len(w.dialled) != 1 {
		t.Errorf("%v, dialled %v", err, w.dialled)
	}
}

// TestResolve covers UR-3 and UR-5 on what names answer, and TR-8's codes.
func TestResolve(t *testing.T) {
	w := newWorld(t, public, http.NotFoundHandler())
	for _, host := range []string{"internal.example", "mixed.example", "mapped.example", "none.example", "unknown.example",
		"224.0.0.1", "198.18.0.1", "[fec0::1]", "[100::1]", "[2001::1]"} { // these a URL may name (UR-3)
		_, err := w.client.Do(t.Context(), Request{Purpose: Message, Method: "POST", URL: "https://" + host + "/", Body: []byte("x")})
		wantCode(t, err, DestinationRefused, false)
	}
	if len(w.dialled) != 0 {
		t.Errorf("dialled %v", w.dialled)
	}
	if _, err := w.get(t, Card, "https://six.example:8443/", nil); err != nil || w.dialled[0] != "[2606:4700::1]:8443" {
		t.Errorf("%v, dialled %v", err, w.dialled)
	}
}

// TestSecondAddress: an address that does not answer is not the end.
func TestSecondAddress(t *testing.T) {
	w := newWorld(t, public, http.NotFoundHandler())
	connect := w.client.dial.connect
	w.client.dial.connect = func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
		if to.Addr().Is6() {
			return nil, errors.New("no route")
		}
		return connect(ctx, network, to)
	}
	if resp, err := w.get(t, Card, "https://six.example/", nil); err != nil || resp.Status != 404 {
		t.Errorf("%d, %v", resp.Status, err)
	}
}

// TestSocketGuard covers UR-5 below the resolver: the real socket refuses an internal address on its own.
func TestSocketGuard(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	to := netip.MustParseAddrPort(listener.Addr().String())
	d := &dialer{}
	if _, err := d.socket(t.Context(), "tcp", to); !errors.As(err, new(*refusedError)) {
		t.Errorf("production connects to %v: %v", to, err)
	}
	d.rules.Development = true
	conn, err := d.socket(t.Context(), "tcp", to)
	if err != nil {
		t.Fatalf("development: %v", err)
	}
	conn.Close()
	if _, err := d.socket(t.Context(), "tcp", netip.MustParseAddrPort("10.0.0.1:1")); !errors.As(err, new(*refusedError)) {
		t.Errorf("development connects to 10.0.0.1: %v", err)
	}
}

// TestRedirects covers TR-1..TR-3.
func TestRedirects(t *testing.T) {
	var seen sync.Map // host+path -> header
	w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen.Store(r.Host+r.URL.Path, r.Header.Clone())
		to := map[string]string{
			"/same": "/end", "/cross": "https://b.example/back", "/back": "https://a.example/end",
			"/down": "http://a.example/end", "/file": "file:///etc/passwd", "/ip": "https://10.0.0.1/",
			"/name": "https://metadata.google.internal/", "/user": "https://u:p@a.example/", "/loop": "/loop",
			"/fragment": "/end#x", "/broken": "https://a b/",
		}[r.URL.Path]
		var n int
		if _, err := fmt.Sscanf(r.URL.Path, "/count/%d", &n); err == nil && n > 0 {
			to = fmt.Sprintf("/count/%d", n-1)
		}
		if to != "" {
			rw.Header().Set("Location", to)
			rw.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
		fmt.Fprint(rw, "end")
	}))
	header := http.Header{"Accept": {"x/y"}, "Authorization": {"Bearer secret"}, "X-Other": {"1"}}

	resp, err := w.get(t, Card, "https://a.example/cross", header)
	if err != nil {
		t.Fatal(err)
	}
	hops := []string{"https://a.example/cross", "https://b.example/back", "https://a.example/end"}
	if !slices.Equal(resp.Hops, hops) || resp.FinalURL != hops[2] || string(resp.Body) != "end" {
		t.Errorf("%+v", resp)
	}
	if got := resp.Origins(); !slices.Equal(got, []string{"https://a.example", "https://b.example", "https://a.example"}) {
		t.Errorf("DI-4: %v", got)
	}
	for at, credential := range map[string]bool{"a.example/cross": true, "b.example/back": false, "a.example/end": false} {
		v, _ := seen.Load(at)
		h := v.(http.Header)
		if got := h.Get("Authorization") != "" && h.Get("X-Other") != ""; got != credential || h.Get("Accept") != "x/y" {
			t.Errorf("TR-2: %s was sent %v", at, h)
		}
		if h.Get("Cookie")+h.Get("Referer") != "" {
			t.Errorf("%s was sent %v", at, h)
		}
	}

	for url, code := range map[string]Code{
		"/down": RedirectNotAllowed, "/file": RedirectNotAllowed, "/ip": RedirectNotAllowed, "/name": RedirectNotAllowed,
		"/user": RedirectNotAllowed, "/broken": RedirectNotAllowed, "/loop": TooManyRedirects, "/count/11": TooManyRedirects,
	} {
		_, err := w.get(t, Card, "https://a.example"+url, nil)
		wantCode(t, err, code, true)
	}
	for _, url := range []string{"/count/10", "/fragment", "/same"} {
		if resp, err := w.get(t, Card, "https://a.example"+url, nil); err != nil || string(resp.Body) != "end" {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, purpose := range []Purpose{JWKS, Metadata} {
		if _, err := w.get(t, purpose, "https://a.example/same", nil); err != nil {
			t.Errorf("%s: %v", purpose, err)
		}
		_, err := w.get(t, purpose, "https://a.example/cross", nil)
		wantCode(t, err, RedirectNotAllowed, true)
	}

	// What is not a GET, or may not be redirected, is not.
	for _, purpose := range []Purpose{Card, DeviceAuthorization, Token, Message, Signer} {
		_, err := w.client.Do(t.Context(), Request{Purpose: purpose, Method: "POST", URL: "https://a.example/same", Body: []byte("x")})
		if e := wantCode(t, err, RedirectNotAllowed, true); e.Status != http.StatusTemporaryRedirect {
			t.Errorf("%s: status %d", purpose, e.Status)
		}
	}
	_, err = w.get(t, Signer, "https://a.example/same", nil)
	wantCode(t, err, RedirectNotAllowed, true)
}

// TestPolicy covers TR-9: without permission data nothing is sent, and every
// hop is asked about.
func TestPolicy(t *testing.T) {
	w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, "https://b.example/", http.StatusFound)
	}))
	w.client.cfg.Policy = nil
	_, err := w.get(t, Card, "https://a.example/", nil)
	wantCode(t, err, PolicyDenied, false)
	w.client.cfg.Policy = func(_ context.Context, u *url.URL) error {
		if u.Hostname() == "b.example" {
			return errors.New("not b")
		}
		return nil
	}
	_, err = w.get(t, Card, "https://a.example/", nil)
	wantCode(t, err, PolicyDenied, true)
	if len(w.dialled) != 1 {
		t.Errorf("dialled %v", w.dialled)
	}
}

// TestRequests covers TR-5 and what Do refuses outright.
func TestRequests(t *testing.T) {
	w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s %q %s %s", r.Method, r.Header.Get("Accept"), r.Header.Get("Accept-Encoding"), r.Header.Get("X-A"), body)
	}))
	resp, err := w.client.Do(t.Context(), Request{
		Purpose: Message, Method: "POST", URL: "https://a.example/x", Header: http.Header{"X-A": {"1"}}, Body: []byte("hello"),
	})
	if err != nil || string(resp.Body) != `POST application/json "" 1 hello` {
		t.Errorf("%q, %v", resp.Body, err)
	}
	for _, req := range []Request{
		{Purpose: "other", Method: "GET", URL: "https://a.example/"},
		{Purpose: Card, Method: "PUT", URL: "https://a.example/"},
		{Purpose: Card, Method: "GET", URL: "https://a.example/", Body: []byte("x")},
		{Purpose: Card, Method: "GET", URL: "http://a.example/"},
		{Purpose: Card, Method: "GET", URL: "https://127.0.0.1/"},
		{Purpose: Card, Method: "GET", URL: ""},
	} {
		_, err := w.client.Do(t.Context(), req)
		wantCode(t, err, InvalidURL, false)
	}
}

// TestBodyCap covers TR-4 for every purpose: the cap itself fits, one byte more
// does not, whatever length is declared.
func TestBodyCap(t *testing.T) {
	w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var n int
		fmt.Sscanf(r.URL.RawQuery, "%d", &n)
		if r.URL.Path == "/chunked" {
			rw.WriteHeader(http.StatusOK)
			rw.(http.Flusher).Flush()
		}
		rw.Write(make([]byte, n))
	}))
	for purpose, limit := range Limits {
		for _, path := range []string{"/declared", "/chunked"} {
			url := fmt.Sprintf("https://a.example%s?%d", path, limit.Body)
			if resp, err := w.get(t, purpose, url, nil); err != nil || int64(len(resp.Body)) != limit.Body {
				t.Errorf("%s %s: %d bytes, %v", purpose, path, len(resp.Body), err)
			}
			_, err := w.get(t, purpose, fmt.Sprintf("https://a.example%s?%d", path, limit.Body+1), nil)
			wantCode(t, err, TooLarge, true)
		}
	}
}

// TestLimits holds the table of section 5 to its numbers (TR-1, TR-3, TR-4, SG-5).
func TestLimits(t *testing.T) {
	for purpose, want := range map[Purpose]Limit{
		Card:                {262144, 10 * time.Second, 10, false},
		Metadata:            {65536, 10 * time.Second, 10, true},
		JWKS:                {65536, 10 * time.Second, 10, true},
		DeviceAuthorization: {32768, 15 * time.Second, 0, false},
		Token:               {65536, 15 * time.Second, 0, false},
		Message:             {524288, 120 * time.Second, 0, false},
		Signer:              {32768, 10 * time.Second, 0, false},
	} {
		if Limits[purpose] != want {
			t.Errorf("%s: %+v, want %+v", purpose, Limits[purpose], want)
		}
	}
	if len(Limits) != 7 {
		t.Errorf("%d purposes", len(Limits))
	}
}

// TestTimeouts covers each purpose's time limit in virtual time, scaled too:
// a connection that never answers ends exactly at the limit.
func TestTimeouts(t *testing.T) {
	for purpose, limit := range Limits {
		for scale, want := range map[int]time.Duration{
			0: limit.Timeout, 2: limit.Timeout / 2, 1000: 5 * time.Second,
		} {
			bubble.Test(t, func(t *testing.T) {
				c := New(Config{Policy: AllowAll, Resolver: &answers{of: public}, Scale: scale})
				defer c.Close()
				c.dial.connect = func(ctx context.Context, _ string, _ netip.AddrPort) (net.Conn, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				start := time.Now()
				_, err := c.Do(t.Context(), Request{Purpose: purpose, Method: "GET", URL: "https://a.example/"})
				wantCode(t, err, Timeout, false)
				if got := time.Since(start); got != want {
					t.Errorf("%s scaled by %d: %v, want %v", purpose, scale, got, want)
				}
			})
		}
	}
}

// TestAbort covers TR-10 and what Sent says before and after the wire.
func TestAbort(t *testing.T) {
	arrived := make(chan struct{})
	release := make(chan struct{})
	w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := w.client.Do(ctx, Request{Purpose: Message, Method: "POST", URL: "https://a.example/", Body: []byte("x")})
	wantCode(t, err, Aborted, true)
	_, err = w.client.Do(ctx, Request{Purpose: Message, Method: "POST", URL: "https://b.example/", Body: []byte("x")})
	wantCode(t, err, Aborted, false)
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	_, err = w.client.Do(late, Request{Purpose: Message, Method: "POST", URL: "https://b.example/", Body: []byte("x")})
	wantCode(t, err, Timeout, false)
}

// expiring is a context whose deadline passes when the test says so.
type expiring struct {
	context.Context
	passed chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.passed }

func (e expiring) Err() error {
	select {
	case <-e.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestSlowBody: time that runs out when an answer has begun.
func TestSlowBody(t *testing.T) {
	release := make(chan struct{})
	late := expiring{t.Context(), make(chan struct{})}
	w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Write([]byte("x"))
		rw.(http.Flusher).Flush()
		close(late.passed)
		<-release
	}))
	defer close(release)
	_, err := w.client.Do(late, Request{Purpose: Message, Method: "POST", URL: "https://a.example/", Body: []byte("x")})
	wantCode(t, err, Timeout, true)
}

// TestNetworkErrors tells a connection that was lost from one that never was.
func TestNetworkErrors(t *testing.T) {
	w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cut" {
			rw.Header().Set("Content-Length", "10")
			rw.Write([]byte("x"))
		}
		conn, _, err := rw.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	}))
	w.client.posts.ForceAttemptHTTP2 = false
	for _, path := range []string{"/drop?code=hunter2", "/cut?code=hunter2"} {
		_, err := w.client.Do(t.Context(), Request{Purpose: Message, Method: "POST", URL: "https://a.example" + path, Body: []byte("x")})
		wantCode(t, err, Network, true)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the URL: %v", err)
		}
	}
	w.client.dial.connect = func(context.Context, string, netip.AddrPort) (net.Conn, error) {
		return nil, errors.New("connection refused")
	}
	_, err := w.client.Do(t.Context(), Request{Purpose: Message, Method: "POST", URL: "https://b.example/?code=hunter2", Body: []byte("x")})
	wantCode(t, err, Network, false)
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error shows the URL: %v", err)
	}
	if CodeOf(fmt.Errorf("wrapped: %w", err)) != Network || CodeOf(io.EOF) != "" {
		t.Error("CodeOf")
	}
}

// TestCertificate: a certificate for somebody else ends the exchange before
// anything is said.
func TestCertificate(t *testing.T) {
	w := newWorld(t, public, http.NotFoundHandler())
	w.client.posts.TLSClientConfig.ServerName = ""
	_, err := w.client.Do(t.Context(), Request{Purpose: Message, Method: "POST", URL: "https://a.example/", Body: []byte("x")})
	wantCode(t, err, Network, false)
}

// TestNoAmbientProxy: the environment's proxy is not asked.
func TestNoAmbientProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://93.184.216.99:3128")
	w := newWorld(t, public, http.NotFoundHandler())
	if _, err := w.get(t, Card, "https://a.example/", nil); err != nil || w.dialled[0] != "93.184.216.34:443" {
		t.Errorf("%v, dialled %v", err, w.dialled)
	}
}

// TestDevelopment covers UR-2 on real sockets: loopback over http, by address
// and by name, and only then.
func TestDevelopment(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Host) }))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	noDNS := &answers{}
	dev := New(Config{Rules: Rules{Development: true}, Policy: AllowAll, Resolver: noDNS})
	defer dev.Close()
	for _, host := range []string{"127.0.0.1", "localhost", "brand.localhost", "127.1", "[::ffff:127.0.0.1]"} {
		resp, err := dev.Do(t.Context(), Request{Purpose: Card, Method: "GET", URL: "http://" + host + ":" + port + "/"})
		if err != nil || resp.Status != 200 {
			t.Errorf("%s: %v", host, err)
		}
	}
	if len(noDNS.asked) != 0 {
		t.Errorf("RFC 6761: localhost was asked for: %v", noDNS.asked)
	}
	prod := New(Config{Policy: AllowAll})
	defer prod.Close()
	_, err = prod.Do(t.Context(), Request{Purpose: Card, Method: "GET", URL: server.URL})
	wantCode(t, err, InvalidURL, false)
	if !dev.Rules().Development || prod.Rules().Development {
		t.Error("Rules")
	}
}
