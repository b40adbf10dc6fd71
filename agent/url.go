package agent

import (
	"net/netip"
	"net/url"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// URLRules says which URLs the agent may use: those of cards, metadata,
// interfaces and sign-in links (UR-1..UR-4). The zero value is the production
// rule set. Check returns a *URLError.
type URLRules = egress.Rules

// URLError says which rule a URL breaks; it never holds the URL itself.
type URLError = egress.RuleError

// ForbiddenAddr reports whether the agent must not connect to an address
// (UR-3, UR-5); loopback only with development.
func ForbiddenAddr(a netip.Addr, development bool) bool {
	return egress.ForbiddenAddr(a, development)
}

// Origin returns the origin of u in lower case, without default port (PR-1);
// empty if u has no usable host.
func Origin(u *url.URL) string { return egress.Origin(u) }

// originOf is Origin for text; empty if it does not parse.
func originOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return Origin(u)
}
