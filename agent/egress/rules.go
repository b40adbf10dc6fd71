package egress

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Rules says which URLs the agent may use at all (UR-1..UR-4). The zero value
// is the production rule set; package agent exports it as agent.URLRules.
type Rules struct {
	// Development admits loopback hosts, over http or https (UR-2). It is an
	// explicit setting of the profile, never guessed.
	Development bool
}

// RuleError says which rule a URL breaks. It never holds the URL: a sign-in
// link is a secret.
type RuleError struct {
	Rule   string // UR-1 .. UR-4
	Reason string // what is wrong, for people
}

func (e *RuleError) Error() string { return fmt.Sprintf("%s (%s)", e.Reason, e.Rule) }

// maxURL bounds what is worth parsing; browsers stop near it too.
const maxURL = 8192

// Check parses raw and holds it to UR-1..UR-4. What it returns is raw as
// parsed, with nothing rewritten. The error is a *RuleError.
func (r Rules) Check(raw string) (*url.URL, error) {
	if raw == "" {
		return nil, &RuleError{"UR-1", "the URL is empty"}
	}
	if len(raw) > maxURL {
		return nil, &RuleError{"UR-1", fmt.Sprintf("the URL is longer than %d bytes", maxURL)}
	}
	// Browsers strip or reinterpret these, Go does not: two readers would see
	// two URLs.
	if i := strings.IndexFunc(raw, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\\' }); i >= 0 {
		return nil, &RuleError{"UR-1", "the URL has a space, a control character or a backslash"}
	}
	if strings.Contains(raw, "#") {
		return nil, &RuleError{"UR-1", "the URL has a fragment"}
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, &RuleError{"UR-1", "the URL does not parse"}
	}
	switch {
	case u.Scheme == "":
		return nil, &RuleError{"UR-1", "the URL is not absolute"}
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, &RuleError{"UR-1", "the scheme is not https"}
	case u.Opaque != "" || u.Host == "":
		return nil, &RuleError{"UR-1", "the URL has no host after //"}
	case u.User != nil:
		return nil, &RuleError{"UR-1", "the URL has user information"}
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return nil, &RuleError{"UR-1", "the port is not 1-65535"}
		}
	}
	h, err := parseHost(u)
	if err != nil {
		return nil, &RuleError{"UR-1", err.Error()}
	}
	if h.loopback() {
		if !r.Development {
			return nil, &RuleError{"UR-2", "loopback hosts are for development mode only: enrol at a signer on this machine, or say --development"}
		}
		return u, nil
	}
	if u.Scheme != "https" {
		return nil, &RuleError{"UR-1", "the scheme is not https"}
	}
	for _, a := range h.addrs {
		if internalAddr(a, r.Development) {
			return nil, &RuleError{"UR-3", "the host is an internal address"}
		}
	}
	if forbiddenName(h.name) {
		return nil, &RuleError{"UR-4", "the host is an internal name"}
	}
	return u, nil
}

// Origin returns the origin of u: scheme, host and port in lower case, one
// trailing dot and a default port dropped, address spellings and international
// names in their canonical form. It is empty if u has no usable host.
func Origin(u *url.URL) string {
	if u == nil || u.Host == "" {
		return ""
	}
	h, err := parseHost(u)
	if err != nil {
		return ""
	}
	host := h.name
	if len(h.addrs) > 0 {
		host = h.addrs[0].String()
		if h.addrs[0].Is6() {
			host = "[" + host + "]"
		}
	}
	scheme := strings.ToLower(u.Scheme)
	if p := u.Port(); p != "" {
		n, err := strconv.Atoi(p)
		if err != nil {
			return ""
		}
		if !(scheme == "https" && n == 443) && !(scheme == "http" && n == 80) {
			host += ":" + strconv.Itoa(n)
		}
	}
	return scheme + "://" + host
}

// host is the host of a URL: a name, or an address. An IPv4 spelling that
// readers understand differently (a leading zero is octal to most, decimal to
// some) has every address it can mean, the most common reading first.
type host struct {
	name  string
	addrs []netip.Addr
}

func (h host) loopback() bool {
	if h.name != "" {
		return h.name == "localhost" || strings.HasSuffix(h.name, ".localhost")
	}
	return embedded(h.addrs[0]).IsLoopback()
}

type hostError string

func (e hostError) Error() string { return string(e) }

// toASCII maps a host name as browsers do (UTS #46): full-width digits and
// dots, among others, become plain ones.
var toASCII = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.StrictDomainName(false))

func parseHost(u *url.URL) (host, error) {
	name := u.Hostname()
	if strings.HasPrefix(u.Host, "[") {
		a, err := netip.ParseAddr(name)
		if err != nil || !a.Is6() {
			return host{}, hostError("the host in brackets is not an IPv6 address")
		}
		return host{addrs: []netip.Addr{a.WithZone("")}}, nil
	}
	ascii := true
	for i := range len(name) {
		if name[i] >= 0x80 {
			ascii = false
			break
		}
	}
	if !ascii {
		mapped, err := toASCII.ToASCII(name)
		if err != nil {
			return host{}, hostError("the host is not a valid international name")
		}
		name = mapped
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" {
		return host{}, hostError("the URL has no host after //")
	}
	if len(name) > 253 {
		return host{}, hostError("the host name is longer than 253 characters")
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 {
			return host{}, hostError("the host name has an empty or overlong label")
		}
		for i := range len(l) {
			c := l[i]
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
				return host{}, hostError("the host name has a character that host names do not have")
			}
		}
	}
	// What ends in a number is an address or nothing (WHATWG URL, "ends in a
	// number checker"): resolvers would read it as one.
	last := labels[len(labels)-1]
	if _, _, ok := ipv4Number(last); !ok && !digits(last) {
		return host{name: name}, nil
	}
	addrs := ipv4(labels)
	if len(addrs) == 0 {
		return host{}, hostError("the host looks like an address but is not one")
	}
	return host{addrs: addrs}, nil
}

func digits(s string) bool {
	return strings.Trim(s, "0123456789") == ""
}

// ipv4 reads 1-4 parts as inet_aton does, each decimal, octal or hex; a
// leading zero is read as octal and as decimal. Every reading must be valid.
func ipv4(parts []string) []netip.Addr {
	if len(parts) > 4 {
		return nil
	}
	var out []netip.Addr
	for _, decimal := range []bool{false, true} {
		var v uint64
		for i, p := range parts {
			n, dec, ok := ipv4Number(p)
			if !ok {
				return nil
			}
			if decimal {
				n = dec
			}
			if i == len(parts)-1 {
				if n >= 1<<(8*(5-len(parts))) {
					return nil
				}
				v += n
				break
			}
			if n > 255 {
				return nil
			}
			v |= n << (8 * (3 - i))
		}
		a := netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
		if len(out) == 0 || out[0] != a {
			out = append(out, a)
		}
	}
	return out
}

// ipv4Number reads one part; decimal is its other reading if it has a leading
// zero.
func ipv4Number(s string) (n, decimal uint64, ok bool) {
	var err error
	switch {
	case s == "0x":
		return 0, 0, true
	case strings.HasPrefix(s, "0x"):
		n, err = strconv.ParseUint(s[2:], 16, 64)
		return n, n, err == nil && n < 1<<32
	case !digits(s) || s == "":
		return 0, 0, false
	}
	decimal, err = strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	n = decimal
	if len(s) > 1 && s[0] == '0' {
		if n, err = strconv.ParseUint(s, 8, 64); err != nil {
			return 0, 0, false
		}
	}
	return n, decimal, n < 1<<32 && decimal < 1<<32
}

// forbiddenName holds the names of UR-4.
func forbiddenName(name string) bool {
	return name == "metadata" || name == "instance-data" || strings.HasSuffix(name, ".internal")
}

// internal are UR-3's classes, which no URL may name. unconnected are others that
// are never a business: multicast, reserved, benchmarking, local translation, an
// incomplete Teredo. A URL may name them, and nothing connects to them.
var (
	internal = prefixes(
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
		"::/128", "fc00::/7", "fe80::/10",
	)
	unconnected = prefixes(
		"192.0.0.0/24", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
		"64:ff9b:1::/48", "100::/64", "2001::/64", "fec0::/10", "ff00::/8",
	)
)

func prefixes(s ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(s))
	for i := range s {
		out[i] = netip.MustParsePrefix(s[i])
	}
	return out
}

// ForbiddenAddr reports whether the agent must not connect to a (UR-5): UR-3's
// classes, and others that are never a business. Loopback is forbidden unless
// development. Zones are ignored. IPv6 that carries an IPv4 address (mapped,
// compatible, NAT64, 6to4, Teredo, ISATAP) is forbidden if that address is.
func ForbiddenAddr(a netip.Addr, development bool) bool {
	return within(a, development, internal, unconnected)
}

// internalAddr reports whether a URL must not name a (UR-3).
func internalAddr(a netip.Addr, development bool) bool {
	return within(a, development, internal)
}

func within(a netip.Addr, development bool, classes ...[]netip.Prefix) bool {
	if !a.IsValid() {
		return true
	}
	a = embedded(a)
	if a.IsLoopback() {
		return !development
	}
	for _, class := range classes {
		for _, p := range class {
			if p.Contains(a) {
				return true
			}
		}
	}
	for _, v4 := range tunnelled(a) {
		// Tunnels never lead to loopback, not even in development.
		if within(v4, false, classes...) {
			return true
		}
	}
	return false
}

// embedded unmaps IPv4-mapped IPv6.
func embedded(a netip.Addr) netip.Addr { return a.WithZone("").Unmap() }

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
	compatible = netip.MustParsePrefix("::/96")
)

// tunnelled returns the IPv4 addresses that a transition mechanism hides in a.
func tunnelled(a netip.Addr) []netip.Addr {
	if !a.Is6() {
		return nil
	}
	b := a.As16()
	v4 := func(i int, mask byte) netip.Addr {
		return netip.AddrFrom4([4]byte{b[i] ^ mask, b[i+1] ^ mask, b[i+2] ^ mask, b[i+3] ^ mask})
	}
	switch {
	case nat64.Contains(a), compatible.Contains(a):
		return []netip.Addr{v4(12, 0)}
	case sixToFour.Contains(a):
		return []netip.Addr{v4(2, 0)}
	case teredo.Contains(a):
		client, server := v4(12, 0xff), v4(4, 0)
		if server.IsUnspecified() { // not a tunnel
			return nil
		}
		return []netip.Addr{server, client}
	case b[8]&^3 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP, RFC 5214
		return []netip.Addr{v4(12, 0)}
	}
	return nil
}
