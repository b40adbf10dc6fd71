package person

import (
	"net"
	"net/netip"
	"net/url"
	"strings"

	"code.dny.dev/ssrf"
)

// RefuseURL says why nobody is sent to a URL that a business names; empty if they
// are. It must be absolute, without user-info, and https, or http on loopback in
// development. What it says does not hold the URL, which may be a sign-in link.
func RefuseURL(raw string, development bool) string {
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		return "is missing"
	case err != nil:
		return "does not parse"
	case u.Host == "" || u.Opaque != "":
		return "is not absolute"
	case u.User != nil:
		return "has user-info"
	case u.Scheme == "https":
		return ""
	case u.Scheme != "http":
		return "is not https"
	case !development || !Loopback(u.Hostname()):
		return "is http (that is for loopback in development)"
	}
	return ""
}

// Loopback tells whether a host is this machine by its name or address: nothing is
// looked up.
func Loopback(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && addr.Unmap().IsLoopback()
}

// Local tells whether an address is not one of the internet: of this machine, of a
// private network, or for some special purpose.
func Local(addr netip.Addr) bool {
	network := "tcp6"
	if addr = addr.WithZone("").Unmap(); addr.Is4() {
		network = "tcp4"
	}
	return internet.Safe(network, netip.AddrPortFrom(addr, 443).String(), nil) != nil
}

var internet = ssrf.New(ssrf.WithAnyPort())

// local tells the same of a host, if it is an address or a name of this machine.
func local(host string) bool {
	addr, err := netip.ParseAddr(host)
	return Loopback(host) || err == nil && Local(addr)
}

// refuse says why somebody at one address, nil for whoever has a link, does not go on
// to the next; empty if they do. A page of the internet has no reason to send them to
// their own machine or network, where others may listen than it says.
func (p Person) refuse(from *url.URL, next string) string {
	if reason := RefuseURL(next, p.Development); reason != "" {
		return reason
	}
	to, err := url.Parse(next)
	if err == nil && from != nil && !p.Development && local(to.Hostname()) && !local(from.Hostname()) {
		return "is on this machine or its network, where no page of the internet leads"
	}
	return ""
}

// origin is scheme, host and port of a URL: who gets what is sent there.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}
