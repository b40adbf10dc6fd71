package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxBody bounds what is read of an answer. The contract's are at most 32 KiB, and
// a key set at most 64 KiB.
const maxBody = 64 << 10

// target is where sockets go instead of to a URL's own host. Zero: to the host.
type target struct {
	scheme  string // http or https; empty: that of the URL
	address string // host:port
}

// parseTarget reads [SCHEME://]HOST:PORT. The scheme says whether TLS is spoken
// there, where that is not what the URL says: behind an ingress that ends TLS,
// replicas listen with plain http.
func parseTarget(s string) (target, error) {
	var t target
	rest := s
	if scheme, after, ok := strings.Cut(s, "://"); ok {
		if scheme != "http" && scheme != "https" {
			return t, fmt.Errorf("%q: the scheme can be http or https", s)
		}
		t.scheme, rest = scheme, after
	}
	host, port, err := net.SplitHostPort(rest)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || n == 0 {
		return t, fmt.Errorf("%q is not HOST:PORT", s)
	}
	t.address = net.JoinHostPort(host, port)
	return t, nil
}

// each is the target once for every address of its name.
func (t target) each(ctx context.Context, lookup func(context.Context, string) ([]string, error)) ([]target, error) {
	host, port, err := net.SplitHostPort(t.address)
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host) != nil {
		return []target{t}, nil
	}
	addresses, err := lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("find the replicas: %w", err)
	}
	slices.Sort(addresses)
	var all []target
	for _, a := range slices.Compact(addresses) {
		all = append(all, target{t.scheme, net.JoinHostPort(a, port)})
	}
	return all, nil
}

// way is how requests get to a target. Every request has a connection of its own,
// as those of different clients have: a balancer may send each to another replica.
type way struct {
	target
	client *http.Client
}

func newWay(t target, roots *x509.CertPool, timeout time.Duration) *way {
	transport := &http.Transport{
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: maxBody,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		Proxy:                  http.ProxyFromEnvironment,
	}
	if t.address != "" {
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, t.address)
		}
	}
	return &way{t, &http.Client{
		Transport:     transport,
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the contract has none
	}}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// do sends a request. An error means that there was no answer.
func (w *way) do(ctx context.Context, method, address string, header http.Header, body []byte) (answer, error) {
	u, err := url.Parse(address)
	if err != nil {
		return answer{}, err
	}
	if w.scheme != "" {
		u.Scheme = w.scheme
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), strings.NewReader(string(body)))
	if err != nil {
		return answer{}, err
	}
	if header != nil {
		req.Header = header
	}
	req.Header.Set("User-Agent", "pactctl-probe")
	resp, err := w.client.Do(req)
	if err != nil {
		return answer{}, noAnswer(err, w.client.Timeout)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return answer{}, noAnswer(err, w.client.Timeout)
	}
	if len(content) > maxBody {
		return answer{}, fmt.Errorf("an answer of more than %d KiB", maxBody>>10)
	}
	return answer{resp.StatusCode, resp.Header, content}, nil
}

// noAnswer puts the transport's error into fewer words, which hold nothing of the
// request.
func noAnswer(err error, timeout time.Duration) error {
	var network net.Error
	if errors.As(err, &network) && network.Timeout() {
		return fmt.Errorf("no answer within %v", timeout)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var wrongTLS *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &wrongTLS):
		return fmt.Errorf("its certificate does not verify: %w", wrongTLS.Err)
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("no TLS is spoken there")
	}
	return fmt.Errorf("no answer: %w", err)
}
