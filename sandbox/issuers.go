package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/pactsigner/pactsigner/jwks"
)

// Issuers says which personal agents' issuers may call. The zero value takes those
// that register, over https. At most one of Any, Registered and Listed may be set.
type Issuers struct {
	// Any takes every https issuer at a public address that serves a JWKS, at the
	// well-known place or where its OpenID configuration says.
	Any bool
	// Registered has issuers on this machine register too, before they call.
	Registered bool
	// Listed, if there are any, are the only ones that may call or register.
	Listed []Issuer
	// Local allows issuers on this machine, with http too: origins whose host is
	// localhost or a loopback address. They may call without registering, unless
	// Registered or Listed says who may.
	Local bool
}

// Issuer is an issuer and where its JWKS is: at the well-known place, or where its
// OpenID configuration says, if JWKSURI is empty.
type Issuer struct {
	Issuer, JWKSURI string
}

var (
	errNotListed     = errors.New("iss is not one of the issuers that may call")
	errNotRegistered = errors.New("iss may not call before it registers")
	errNotLocal      = errors.New("iss is on this machine, and issuers on this machine may not call")
	errLocalHTTP     = errors.New("http issuers on this machine must be allowed first")
	errNotOrigin     = errors.New("iss is not an https origin, or an http one on this machine, in its one spelling")
)

func (is *Issuers) validate() error {
	if is.Any && is.Registered || (is.Any || is.Registered) && len(is.Listed) > 0 {
		return errors.New("only one of Any, Registered and Listed can be set")
	}
	seen := map[string]bool{}
	for _, i := range is.Listed {
		if err := i.validate(is.Local); err != nil {
			return err
		}
		if seen[i.Issuer] {
			return fmt.Errorf("%q appears twice", i.Issuer)
		}
		seen[i.Issuer] = true
	}
	return nil
}

func (i *Issuer) validate(local bool) error {
	switch canonical := canonicalOrigin(i.Issuer); canonical {
	case i.Issuer:
	case "":
		return fmt.Errorf("%q: use an origin such as https://pa.example.com, without a path or trailing slash", i.Issuer)
	default:
		return fmt.Errorf("%q: write %s, the one spelling of it that may call", i.Issuer, canonical)
	}
	if i.JWKSURI != "" && originOf(i.JWKSURI) == "" {
		return fmt.Errorf("%q: its JWKS %q is not an absolute URL without user-info and fragment", i.Issuer, i.JWKSURI)
	}
	for _, raw := range []string{i.Issuer, cmp.Or(i.JWKSURI, i.Issuer)} {
		switch {
		case strings.HasPrefix(raw, "https://"):
		case !onLoopback(raw):
			return fmt.Errorf("%q: use https; http is for issuers on this machine", raw)
		case !local:
			return fmt.Errorf("%q: %w", raw, errLocalHTTP)
		}
	}
	return nil
}

// keys returns where the JWKS of an issuer is that may call. registered is where it
// is by the issuer's registration, "" if it has none. The error says why it may not,
// for the log. Nobody has verified the issuer yet.
func (is *Issuers) keys(issuer, registered string) (jwksURI string, err error) {
	wellKnown := cmp.Or(registered, issuer+jwks.WellKnownPath)
	if len(is.Listed) > 0 {
		for _, i := range is.Listed {
			if i.Issuer == issuer {
				return cmp.Or(i.JWKSURI, wellKnown), nil
			}
		}
		return "", errNotListed
	}
	if err := is.reachable(issuer); err != nil {
		return "", err
	}
	if registered == "" && !is.Any && (is.Registered || !onLoopback(issuer)) {
		return "", errNotRegistered
	}
	return wellKnown, nil
}

// mayRegister tells why an issuer may not even register; nil if it may.
func (is *Issuers) mayRegister(issuer string) error {
	if len(is.Listed) > 0 {
		_, err := is.keys(issuer, "")
		return err
	}
	return is.reachable(issuer)
}

// listedKeys is where a list says that the JWKS of an issuer is; "" if it does not.
func (is *Issuers) listedKeys(issuer string) string {
	for _, i := range is.Listed {
		if i.Issuer == issuer {
			return i.JWKSURI
		}
	}
	return ""
}

// reachable: it is an origin that the sandbox is willing to call for keys.
func (is *Issuers) reachable(issuer string) error {
	switch {
	case issuer == "" || canonicalOrigin(issuer) != issuer:
		return errNotOrigin
	case onLoopback(issuer):
		if !is.Local {
			return errNotLocal
		}
	case !strings.HasPrefix(issuer, "https://"):
		return errNotOrigin
	}
	return nil
}

// onLoopback tells whether a URL's host is this machine.
func onLoopback(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && loopbackHost(u.Hostname())
}
