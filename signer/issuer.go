package signer

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pactsigner/pactsigner/rotation"
)

// Mode says who may enrol a device.
type Mode string

// The enrolment modes.
const (
	EnrolOpen   Mode = "open"   // whoever reaches the signer
	EnrolToken  Mode = "token"  // with a single-use enrolment token
	EnrolClosed Mode = "closed" // nobody
)

// Issuer is one issuer that a deployment serves. URL, SignerURLs, TokenTTL,
// Enrolment and Keys are required.
type Issuer struct {
	// URL is the iss of its tokens, byte for byte: an origin.
	URL string
	// SignerURLs are the base URLs that clients call. Device assertions name one
	// of them.
	SignerURLs []string
	// TokenTTL is exp - iat, in whole seconds.
	TokenTTL time.Duration
	// Enrolment says who may enrol.
	Enrolment Mode
	// Closed is asked at every enrolment: while it says so nobody enrols, whatever
	// Enrolment says. Nil: never.
	Closed func() bool
	// CallerLimit is per device or credential, over sign and status.
	CallerLimit Limit
	// EnrollLimit is per address, on enrol.
	EnrollLimit Limit
	// DeviceCap is the most devices that may be enrolled; 0 is no cap.
	DeviceCap int
	// Keys is its key schedule.
	Keys *rotation.Controller
	// KeySetMaxAge is how long a copy of its key set may be kept. Default: 300 s.
	KeySetMaxAge time.Duration
}

func (i Issuer) validate() error {
	switch {
	case i.URL == "":
		return errors.New("an issuer has no URL")
	case len(i.SignerURLs) == 0:
		return fmt.Errorf("issuer %s: has no SignerURLs", i.URL)
	case i.TokenTTL < time.Second || i.TokenTTL > maxTokenLife:
		return fmt.Errorf("issuer %s: TokenTTL %v: must be 1 s to %v", i.URL, i.TokenTTL, maxTokenLife)
	case i.Enrolment != EnrolOpen && i.Enrolment != EnrolToken && i.Enrolment != EnrolClosed:
		return fmt.Errorf("issuer %s: Enrolment %q: must be open, token or closed", i.URL, i.Enrolment)
	case i.Keys == nil:
		return fmt.Errorf("issuer %s: has no Keys", i.URL)
	case !i.CallerLimit.valid():
		return fmt.Errorf("issuer %s: CallerLimit: Rate and Burst must both be positive, or both 0 for no limit", i.URL)
	case !i.EnrollLimit.valid():
		return fmt.Errorf("issuer %s: EnrollLimit: Rate and Burst must both be positive, or both 0 for no limit", i.URL)
	}
	return nil
}

// mode is who may enrol now.
func (i Issuer) mode() Mode {
	if i.Closed != nil && i.Closed() {
		return EnrolClosed
	}
	return i.Enrolment
}

func (l Limit) valid() bool { return l == Limit{} || l.Rate > 0 && l.Burst > 0 }

// maxTokenLife is the longest life that Providers accept.
const maxTokenLife = 300 * time.Second

// operation is a call of the contract; its path follows the signer's URL.
type operation string

const (
	opSign   operation = "/pact/sign"
	opStatus operation = "/pact/status"
	opEnroll operation = "/pact/enroll"
)

// issuer is an issuer as the service works with it.
type issuer struct {
	Issuer
	endpoints map[operation][]string // the URLs that an assertion may be for
	audiences registry
	minting   atomic.Pointer[mintingKey]
}

func newIssuer(i Issuer, store Store) *issuer {
	if i.KeySetMaxAge == 0 {
		i.KeySetMaxAge = 300 * time.Second
	}
	is := &issuer{Issuer: i, endpoints: map[operation][]string{}}
	is.audiences = registry{store: store, issuer: i.URL}
	for _, op := range []operation{opSign, opStatus, opEnroll} {
		for _, base := range i.SignerURLs {
			is.endpoints[op] = append(is.endpoints[op], strings.TrimSuffix(base, "/")+string(op))
		}
	}
	return is
}

// hosts are the Host values under which requests for the issuer come: with and
// without the default port.
func (i *issuer) hosts() ([]string, error) {
	var hosts []string
	for _, raw := range append([]string{i.URL}, i.SignerURLs...) {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("issuer %s: %q is not a URL", i.URL, raw)
		}
		host := strings.ToLower(u.Host)
		hosts = append(hosts, host)
		defaultPort := map[string]string{"https": "443", "http": "80"}[u.Scheme]
		if name, port, err := net.SplitHostPort(host); err == nil && port == defaultPort {
			hosts = append(hosts, unbracketless(name))
		} else if err != nil {
			hosts = append(hosts, host+":"+defaultPort)
		}
	}
	return hosts, nil
}

// unbracketless writes an IPv6 host as Host headers do.
func unbracketless(name string) string {
	if strings.Contains(name, ":") {
		return "[" + name + "]"
	}
	return name
}
