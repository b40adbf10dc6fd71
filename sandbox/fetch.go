package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
	"github.com/go-json-experiment/json"
	"github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/pactsigner/pactsigner/jwks"
)

const (
	fetchTimeout     = 10 * time.Second // of one key set, discovery included
	fetchLimit       = 64 << 10         // bytes
	fetchHeaderLimit = 16 << 10         // bytes
	// fetchesAtOnce and fetchesOfOrigin are how many key sets are read at one time.
	fetchesAtOnce   = 16
	fetchesOfOrigin = 2
	// keptSets is how many key sets are kept. No more than three quarters as many
	// fetches begin within Params.KeySetRefetch, so that none has to leave so early,
	// whoever calls.
	keptSets = 512
	// failedSets is how many key sets that could not be had are remembered.
	failedSets = 1024
)

// keyFetcher reads the JWKS of issuers, whoever they say they are: it follows no
// redirect, connects to loopback for a URL that says loopback, and otherwise by
// https to public addresses only. A key set that could not be had is not asked for
// again for a while. Whom it is asked about has not proved anything yet, so it reads
// few at a time, and not too many in a row: what it has no room for it does not queue.
type keyFetcher struct {
	loopback, public *http.Client
	now              func() time.Time
	retry            time.Duration
	failed           *lru.Cache[string, failedFetch]
	begun            *rate.Limiter

	closed context.Context
	end    context.CancelFunc

	mu      sync.Mutex
	running int
	of      map[string]int // by origin
}

// errBusy says that a key set was not asked for.
var errBusy = fmt.Errorf("sandbox: too many key sets are being read: %w", jwks.ErrNotAsked)

type failedFetch struct {
	at  time.Time
	err error
}

func newKeyFetcher(now func() time.Time, p Params) *keyFetcher {
	client := func(control func(network, address string, c syscall.RawConn) error) *http.Client {
		return &http.Client{
			Timeout:       fetchTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				DialContext:     (&net.Dialer{Timeout: fetchTimeout, Control: control}).DialContext,
				IdleConnTimeout: fetchTimeout,
				MaxIdleConns:    fetchesAtOnce,

				MaxResponseHeaderBytes: fetchHeaderLimit,
			},
		}
	}
	onlyLoopback := func(_, address string, _ syscall.RawConn) error {
		addr, err := netip.ParseAddrPort(address)
		if err != nil || !addr.Addr().Unmap().IsLoopback() {
			return fmt.Errorf("sandbox: %s is not loopback", address)
		}
		return nil
	}
	failed, _ := lru.New[string, failedFetch](failedSets) // fails only for a size under one
	closed, end := context.WithCancel(context.Background())
	return &keyFetcher{
		now: now, retry: p.KeySetRetry, failed: failed,
		begun:  rate.NewLimiter(rate.Every(p.KeySetRefetch/(keptSets/4)), keptSets/2),
		closed: closed, end: end, of: map[string]int{},
		loopback: client(onlyLoopback),
		public:   client(ssrf.New(ssrf.WithAnyPort()).Safe),
	}
}

// close ends the fetches there are.
func (f *keyFetcher) close() {
	f.end()
	f.loopback.CloseIdleConnections()
	f.public.CloseIdleConnections()
}

// keySet reads the JWKS at a URL, or repeats why it could not a moment ago.
func (f *keyFetcher) keySet(ctx context.Context, rawURL string) ([]byte, error) {
	if last, ok := f.failed.Get(rawURL); ok {
		if since := f.now().Sub(last.at); since >= 0 && since < f.retry {
			return nil, fmt.Errorf("sandbox: %v ago: %w", since.Round(time.Millisecond), last.err)
		}
	}
	origin := originOf(rawURL)
	if !f.enter(origin) {
		return nil, errBusy
	}
	defer f.leave(origin)
	limited, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	defer context.AfterFunc(f.closed, cancel)()
	body, err := f.find(limited, rawURL)
	switch {
	case err == nil:
		f.failed.Remove(rawURL)
	default:
		f.failed.Add(rawURL, failedFetch{f.now(), err})
	}
	return body, err
}

// enter tells whether there is room to read a key set of an origin; leave makes it.
func (f *keyFetcher) enter(origin string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running >= fetchesAtOnce || f.of[origin] >= fetchesOfOrigin || !f.begun.AllowN(f.now(), 1) {
		return false
	}
	f.running++
	f.of[origin]++
	return true
}

func (f *keyFetcher) leave(origin string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running--
	if f.of[origin]--; f.of[origin] == 0 {
		delete(f.of, origin)
	}
}

// find reads the JWKS at a URL. Where an issuer has none at the well-known place, its
// OpenID configuration may name one on the same origin.
func (f *keyFetcher) find(ctx context.Context, rawURL string) ([]byte, error) {
	body, err := f.get(ctx, rawURL)
	if err == nil {
		_, err = jwks.Parse(body)
	}
	issuer, wellKnown := strings.CutSuffix(rawURL, jwks.WellKnownPath)
	if err == nil || !wellKnown {
		return body, err
	}
	doc, derr := f.get(ctx, issuer+jwks.DiscoveryPath)
	if derr != nil {
		return nil, errors.Join(err, derr)
	}
	var conf struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(doc, &conf); err != nil {
		return nil, fmt.Errorf("sandbox: openid-configuration of %s: %w", issuer, err)
	}
	if conf.Issuer != issuer || originOf(conf.JWKSURI) != issuer {
		return nil, fmt.Errorf("sandbox: openid-configuration of %s is of another issuer, or its jwks_uri on another origin", issuer)
	}
	return f.get(ctx, conf.JWKSURI)
}

func (f *keyFetcher) get(ctx context.Context, rawURL string) ([]byte, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	client := f.loopback
	if !loopbackHost(u.Hostname()) {
		if client = f.public; u.Scheme != "https" {
			return nil, fmt.Errorf("sandbox: %s: only https beyond loopback", u.Redacted())
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rawURL, nil)
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("sandbox: %s answers %s", u.Redacted(), resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, fetchLimit+1))
	if err != nil {
		return nil, fmt.Errorf("sandbox: %s: %w", u.Redacted(), err)
	}
	if len(body) > fetchLimit {
		return nil, fmt.Errorf("sandbox: %s is larger than %d bytes", u.Redacted(), fetchLimit)
	}
	return body, nil
}

// loopbackHost tells whether a host name is this machine: localhost or a
// loopback address.
func loopbackHost(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// internalNetworks are those that no agent takes a URL of, beside what netip knows
// as private, link-local and unspecified.
var internalNetworks = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10")}

// agentsRefuse says why personal agents would not use a URL of this origin; "" if
// they would, those in development mode at least. It looks through no odd spelling
// of an address: nobody hides their own.
func agentsRefuse(u *url.URL) string {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if loopbackHost(host) || strings.HasSuffix(host, ".localhost") {
		return ""
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.WithZone("").Unmap()
		if addr.IsPrivate() || addr.IsLinkLocalUnicast() || addr.IsUnspecified() ||
			slices.ContainsFunc(internalNetworks, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return "the host is an internal address"
		}
	}
	switch {
	case host == "metadata", host == "instance-data", strings.HasSuffix(host, ".internal"):
		return "the host is an internal name"
	case u.Scheme != "https":
		return "it is http, and the host is not loopback"
	}
	return ""
}

// originOf returns scheme://host[:port] of an absolute http or https URL that
// has no user-info and no fragment; else "".
func originOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.Contains(raw, "#") {
		return ""
	}
	return u.Scheme + "://" + u.Host
}
