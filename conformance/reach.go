package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

// reach is how near to this machine a run goes: as near as the cards that it was
// given are. A business on the internet has no reason to send anybody to an address
// of this machine or of its network, and somebody else may listen there.
type reach struct {
	mu      sync.Mutex
	named   map[string]bool // hosts of the cards: whether they were dialled
	proxies map[string]bool // host:port
	local   bool            // a card is on this machine or its network
}

// tooNearError: a name or an address leads to this machine or its network.
type tooNearError struct{ host string }

func (e *tooNearError) Error() string {
	return fmt.Sprintf("%s is on this machine or its network, and the card is not: --development goes there", clip(e.host))
}

// limit makes a transport keep to the reach of these cards.
func limit(t *http.Transport, cards []string) {
	r := &reach{named: map[string]bool{}, proxies: map[string]bool{}}
	for _, card := range cards {
		if u, err := url.Parse(card); err == nil {
			r.named[strings.ToLower(u.Hostname())] = false
		}
	}
	t.DialContext = r.dial
	if proxy := t.Proxy; proxy != nil {
		t.Proxy = func(req *http.Request) (*url.URL, error) {
			u, err := proxy(req)
			if u != nil {
				r.admit(u)
			}
			return u, err
		}
	}
}

// admit notes a proxy, which the user chose: it may be anywhere.
func (r *reach) admit(proxy *url.URL) {
	port := proxy.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[proxy.Scheme]
	}
	if port == "" {
		port = "1080" // of SOCKS
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proxies[net.JoinHostPort(proxy.Hostname(), port)] = true
}

// dial looks at the addresses that are really connected to. The first time, a card's own
// host may be anywhere, and how near it is says how near others may be.
func (r *reach) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("conformance: %w", err)
	}
	r.mu.Lock()
	dialled, named := r.named[strings.ToLower(host)]
	first, proxy := named && !dialled, r.proxies[address]
	r.mu.Unlock()
	d := net.Dialer{Timeout: 30 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("conformance: %w", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if first { // it was found, and is what it is
			r.named[strings.ToLower(host)] = true
		}
		if proxy || !person.Local(to.Addr()) {
			return nil
		}
		if r.local = r.local || first; !r.local {
			return &tooNearError{host}
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}

// tooNear is why nothing was asked, if an error is of that.
func tooNear(err error) error {
	var near *tooNearError
	if errors.As(err, &near) {
		return notRun("%v", near)
	}
	return nil
}
