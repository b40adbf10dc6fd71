package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// Resolver looks the addresses of a name up; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// refusedError is a destination that is not connected to.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// lookupError is why a name has no addresses. Its text leaves out which name server
// was asked, and the name, which the error around it has.
type lookupError struct{ err error }

func (e *lookupError) Error() string {
	text := e.err.Error()
	var dns *net.DNSError
	if errors.As(e.err, &dns) {
		text = dns.Err
	}
	if i := strings.LastIndex(text, ": "); i >= 0 { // a socket's error, with its addresses
		text = text[i+len(": "):]
	}
	return "name lookup: " + text
}

func (e *lookupError) Unwrap() error { return e.err }

// dialer connects to addresses that it has checked (UR-5).
type dialer struct {
	rules    Rules
	resolver Resolver
	// connect opens a socket; nil is the real thing. Tests stand in here for
	// addresses that they do not have.
	connect func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)
}

func (d *dialer) dialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, &refusedError{errors.New("no host and port")}
	}
	portNumber, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return nil, &refusedError{errors.New("no such port")}
	}
	addrs, err := d.resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	connect := d.connect
	if connect == nil {
		connect = d.socket
	}
	for i, a := range addrs {
		// An address that does not answer leaves time for the next.
		try, cancel := ctx, context.CancelFunc(func() {})
		if deadline, ok := ctx.Deadline(); ok && i < len(addrs)-1 {
			share := time.Until(deadline) / time.Duration(len(addrs)-i)
			try, cancel = context.WithTimeout(ctx, share)
		}
		var conn net.Conn
		conn, err = connect(try, network, netip.AddrPortFrom(a, uint16(portNumber)))
		cancel()
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

// resolve returns the addresses of a host, all of them checked: one that is
// forbidden refuses the host, since a name that answers both ways is an attack.
func (d *dialer) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	h, err := parseHost(&url.URL{Host: bracket(name)})
	if err != nil {
		return nil, &refusedError{err}
	}
	addrs := h.addrs
	switch {
	case len(addrs) > 1:
		return nil, &refusedError{errors.New("the address can be read in two ways")}
	case len(addrs) == 1:
	case h.loopback(): // never asked of a server (RFC 6761 section 6.3)
		addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	default:
		resolver := d.resolver
		if resolver == nil {
			resolver = net.DefaultResolver
		}
		addrs, err = resolver.LookupNetIP(ctx, "ip", h.name)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, &refusedError{&lookupError{err}}
		case len(addrs) == 0:
			return nil, &refusedError{errors.New("the name has no address")}
		}
	}
	out := make([]netip.Addr, len(addrs))
	for i, a := range addrs {
		if ForbiddenAddr(a, d.rules.Development) {
			return nil, &refusedError{errors.New("the host has an internal address")}
		}
		out[i] = embedded(a)
	}
	return out, nil
}

func bracket(name string) string {
	if a, err := netip.ParseAddr(name); err == nil && a.Is6() {
		return "[" + a.WithZone("").String() + "]"
	}
	return name
}

// socket connects to exactly that address. The guard looks once more at what
// the kernel is asked to connect to.
func (d *dialer) socket(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	options := []ssrf.Option{ssrf.WithAnyPort(), ssrf.WithNetworks("tcp4", "tcp6"), ssrf.WithAllowedV6Prefixes(nat64)}
	if d.rules.Development {
		options = append(options,
			ssrf.WithAllowedV4Prefixes(netip.MustParsePrefix("127.0.0.0/8")),
			ssrf.WithAllowedV6Prefixes(netip.MustParsePrefix("::1/128"), nat64))
	}
	guard := ssrf.New(options...)
	nd := net.Dialer{Control: func(network, address string, c syscall.RawConn) error {
		if err := guard.Safe(network, address, c); err != nil {
			return &refusedError{errors.New("the host has an internal address")}
		}
		return nil
	}}
	return nd.DialContext(ctx, network, to.String())
}
