package signer

import (
	"net/netip"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// maxAddresses is how many addresses a limiter keeps; the least recently seen are
// forgotten.
const maxAddresses = 100_000

// addressLimiter holds a token bucket for each address, in memory.
type addressLimiter struct {
	now     func() time.Time
	buckets *lru.Cache[netip.Addr, *rate.Limiter]
}

func newAddressLimiter(now func() time.Time) *addressLimiter {
	buckets, err := lru.New[netip.Addr, *rate.Limiter](maxAddresses)
	if err != nil {
		panic("signer: " + err.Error()) // the size is positive
	}
	return &addressLimiter{now, buckets}
}

func (l *addressLimiter) bucket(a netip.Addr, limit Limit) *rate.Limiter {
	if b, ok := l.buckets.Get(a); ok {
		return b
	}
	b := rate.NewLimiter(rate.Limit(limit.Rate), limit.Burst)
	if old, ok, _ := l.buckets.PeekOrAdd(a, b); ok {
		return old
	}
	return b
}

// take charges one request, or says how long to wait.
func (l *addressLimiter) take(a netip.Addr, limit Limit) (time.Duration, bool) {
	if limit == (Limit{}) {
		return 0, true
	}
	now := l.now()
	b := l.bucket(a, limit)
	if b.AllowN(now, 1) {
		return 0, true
	}
	return untilAllowed(b, now), false
}

// untilAllowed is how long a bucket takes to have one token again.
func untilAllowed(b *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - b.TokensAt(now)
	return time.Duration(max(0, missing/float64(b.Limit())) * float64(time.Second))
}

// clientAddress is the address that limits are charged to: the peer, or behind
// trusted proxies the right-most hop that is not one. IPv6 counts by /64, which
// one subscriber has to itself.
func clientAddress(peer string, forwarded []string, trusted []netip.Prefix) netip.Addr {
	address := parseAddress(peer)
	hops := strings.Split(strings.Join(forwarded, ","), ",")
	for i := len(hops) - 1; i >= 0 && within(trusted, address); i-- {
		hop := parseAddress(strings.TrimSpace(hops[i]))
		if !hop.IsValid() {
			break
		}
		address = hop
	}
	if address.Is6() {
		if p, err := address.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return address
}

// parseAddress reads an address with or without a port; zones and IPv4-mapped
// forms are undone.
func parseAddress(s string) netip.Addr {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone("")
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap().WithZone("")
}

func within(networks []netip.Prefix, a netip.Addr) bool {
	for _, n := range networks {
		if n.Contains(a) {
			return true
		}
	}
	return false
}
