package sandbox

import (
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// canonicalOrigin returns the one spelling of an http or https origin: in lower case,
// the host a name of ASCII letters, digits and hyphens (RFC 5890 for what is not
// ASCII) or an address as [netip.Addr] writes it, without a dot at the end and
// without the scheme's own port. It is "" for what is no origin at all.
//
// An issuer has this spelling only: limits and grants are per issuer, and people read
// who asks.
func canonicalOrigin(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || !strings.EqualFold(raw, u.Scheme+"://"+u.Host) {
		return ""
	}
	host := canonicalHost(u.Hostname())
	if host == "" {
		return ""
	}
	origin := u.Scheme + "://" + host
	if u.Port() == "" {
		return origin
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	switch {
	case err != nil || port == 0:
		return ""
	case u.Scheme == "http" && port == 80, u.Scheme == "https" && port == 443:
		return origin
	}
	return origin + ":" + strconv.FormatUint(port, 10)
}

var (
	hostName = regexp.MustCompile(`^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`)
	// numberLast is the end of a name that many programs read as an IPv4 address.
	numberLast = regexp.MustCompile(`(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)$`)
)

// hostNames maps names as resolvers do (RFC 5891 section 5), and leaves hyphens where
// they are: my--app.example is a name.
var hostNames = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.CheckHyphens(false))

// maxHostName is the length of a name in DNS.
const maxHostName = 253

// canonicalHost returns the one spelling of a host; "" for what is none.
func canonicalHost(host string) string {
	if addr, err := netip.ParseAddr(host); err == nil {
		switch addr = addr.Unmap(); {
		case addr.Zone() != "":
			return ""
		case addr.Is6():
			return "[" + addr.String() + "]"
		}
		return addr.String()
	}
	name, err := hostNames.ToASCII(strings.TrimSuffix(host, "."))
	if err != nil || len(name) > maxHostName || !hostName.MatchString(name) || numberLast.MatchString(name) {
		return ""
	}
	return name
}
