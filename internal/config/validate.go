package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxTokenTTL is the longest life that a token may be given.
const MaxTokenTTL = 300 * time.Second

// Validate tells everything that is wrong with a completed configuration, each
// with its key and what would be right. It opens no file.
func (c Config) Validate() error {
	var v problems
	if c.Data == "" {
		v.add("data", "name a folder")
	}
	if c.Replica != "" && !nameForm.MatchString(c.Replica) {
		v.add("replica", "use 1 to 64 letters, digits, '.', '_' or '-'")
	}
	c.validateListeners(&v)
	for i, cidr := range c.TrustedProxies {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			v.add(fmt.Sprintf("trustedProxies.%d", i), "write a network such as 10.0.0.0/8 or fd00::/8")
		}
	}
	c.validateIssuers(&v)
	c.validateCustody(&v)
	c.validateStore(&v)
	names, hashes := map[string]bool{InitialToken: true}, map[string]bool{}
	for i, t := range c.Admin.Tokens {
		at := fmt.Sprintf("admin.tokens.%d.", i)
		if names[t.Name] {
			v.add(at+"name", "is used twice (%s is the first token's); choose another", InitialToken)
		}
		if hashes[t.Hash] {
			v.add(at+"hash", "is another token's too; make one for each")
		}
		names[t.Name], hashes[t.Hash] = true, true
		t.validate(&v, at)
	}
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "auto", "json", "text")
	c.Tracing.validate(&v)
	v.between("drainTimeout", c.DrainTimeout, time.Second, 5*time.Minute)
	return errors.Join(v...)
}

// Validate tells what is wrong with an item of admin.tokens.
func (t AdminToken) Validate() error {
	var v problems
	t.validate(&v, "")
	return errors.Join(v...)
}

func (t AdminToken) validate(v *problems, at string) {
	if !actorForm.MatchString(t.Name) || t.Name == "signer" {
		v.add(at+"name", "use 1 to 64 letters, digits, '.', '_', '@' or '-', and not the word signer")
	}
	v.oneOf(at+"role", t.Role, "viewer", "operator", "admin")
	if !hashForm.MatchString(t.Hash) {
		v.add(at+"hash", "write sha256: and 64 hexadecimal digits, as `signer token create` prints it")
	}
}

// InitialToken is the name of the admin token that `signer init` makes.
const InitialToken = "initial"

var (
	nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	// actorForm is what the audit log takes as an actor; see signer.AdminToken.
	actorForm = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,64}$`)
	hashForm  = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

func (c Config) validateListeners(v *problems) {
	type taken struct{ key, host string }
	seen := make(map[string][]taken) // by port
	for _, l := range []struct {
		key      string
		listener Listener
		insecure *bool // nil: TLS is up to the operator
	}{
		{"listeners.public", c.Listeners.Public, nil},
		{"listeners.grpc", c.Listeners.GRPC, &c.Insecure.GRPC},
		{"listeners.admin", c.Listeners.Admin, &c.Insecure.Admin},
		{"listeners.ops", c.Listeners.Ops, nil},
	} {
		host, port, err := net.SplitHostPort(l.listener.Address)
		if err != nil || !validPort(port, 0) || strings.ContainsAny(host, " /@") {
			v.add(l.key+".address", "write host:port, for example 127.0.0.1:8787; port 0 picks a free one")
			continue
		}
		for _, other := range seen[port] {
			if port != "0" && (host == other.host || everywhere(host) || everywhere(other.host)) {
				v.add(l.key+".address", "has the port of %s too; choose another", other.key)
				break
			}
		}
		seen[port] = append(seen[port], taken{l.key, host})
		if (l.listener.CertFile == "") != (l.listener.KeyFile == "") {
			v.add(l.key, "set certFile and keyFile, or neither")
		}
		if l.insecure != nil && !*l.insecure && !l.listener.TLS() && !l.listener.Loopback() {
			name := strings.TrimPrefix(l.key, "listeners.")
			v.add(l.key, "needs TLS beyond loopback: set certFile and keyFile, or insecure.%s (--insecure-%s) if something in front does it", name, name)
		}
	}
}

// everywhere tells whether a listener's host is every address of the machine.
func everywhere(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

func (c Config) validateIssuers(v *problems) {
	exposed := !c.Listeners.Public.Loopback() || !c.Listeners.GRPC.Loopback()
	if len(c.Issuers) == 0 {
		v.add("issuers", "name at least one")
	}
	loopbackOnly := true
	urls, hosts := make(map[string]bool), make(map[string]int)
	for i, is := range c.Issuers {
		at := fmt.Sprintf("issuers.%d.", i)
		if is.URL == "" {
			switch {
			case len(c.Issuers) > 1:
				v.add(at+"url", "is needed when there are several issuers")
			case !c.Embedded():
				v.add(at+"url", "is needed with store.kind %s, since its replicas share the issuer: an origin such as https://pa.example.com", c.Store.Kind)
			case !c.Listeners.Public.Loopback():
				v.add(at+"url", "is needed when the public listener is beyond loopback: an https origin such as https://pa.example.com")
			}
		} else {
			loopbackOnly = v.origin(at+"url", is.URL) && loopbackOnly
			if urls[is.URL] {
				v.add(at+"url", "is another issuer's too")
			}
			urls[is.URL] = true
		}
		for j, u := range is.SignerURLs {
			loopbackOnly = v.origin(fmt.Sprintf("%ssignerUrls.%d", at, j), u) && loopbackOnly
		}
		for _, u := range append([]string{is.URL}, is.SignerURLs...) {
			host := hostOf(u)
			if host == "" {
				continue
			}
			if other, taken := hosts[host]; taken && other != i {
				v.add(at+"url", "shares the host %s with issuer %d; requests are routed by host, so each host belongs to one issuer", host, other)
			}
			hosts[host] = i
		}
		v.oneOf(at+"algorithm", is.Algorithm, "ES256", "RS256")
		v.oneOf(at+"enrolment", is.Enrolment, "open", "token", "closed")
		if is.Enrolment == "open" && exposed && !c.Insecure.OpenEnrolment {
			v.add(at+"enrolment", "open lets anybody in who reaches a listener beyond loopback; use token, or set insecure.openEnrolment (--insecure-open-enrolment)")
		}
		v.between(at+"tokenTTL", is.TokenTTL, 60*time.Second, MaxTokenTTL)
		if is.TokenTTL%time.Second != 0 {
			v.add(at+"tokenTTL", "use whole seconds")
		}
		if scale := c.Development.TimeScale; scale > 1 && is.TokenTTL/time.Duration(scale) < time.Second {
			v.add("development.timeScale", "leaves issuer %d's tokens less than a second; use at most %d", i, is.TokenTTL/time.Second)
		}
		if is.MaxDevices < 0 {
			v.add(at+"maxDevices", "use 0 for no cap, or a positive number")
		}
		v.limit(at+"limits.caller", is.Limits.Caller)
		v.limit(at+"limits.enroll", is.Limits.Enroll)
		is.validateRotation(v, at+"rotation.", c.Development.TimeScale)
	}
	if c.Development.TimeScale < 1 {
		v.add("development.timeScale", "use 1, or a greater whole number in demonstrations")
	}
	if c.Development.TimeScale > 1 && !(loopbackOnly && c.Listeners.Public.Loopback()) {
		v.add("development.timeScale", "only goes with issuers, signer URLs and a public listener on loopback; remove it")
	}
	if c.Development.ClockOffset != 0 && !(loopbackOnly && c.Listeners.Public.Loopback()) {
		v.add("development.clockOffset", "only goes with issuers, signer URLs and a public listener on loopback; remove it")
	}
	v.between("development.clockOffset", c.Development.ClockOffset, -time.Hour, time.Hour)
}

// problems collects what is wrong.
type problems []error

func (v *problems) add(key, fix string, args ...any) {
	*v = append(*v, fmt.Errorf(key+": "+fix, args...))
}

func (v *problems) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.add(key, "use one of %s", strings.Join(allowed, ", "))
	}
}

func (v *problems) between(key string, d, low, high time.Duration) {
	if d < low || d > high {
		v.add(key, "use %v to %v", low, high)
	}
}

func (v *problems) limit(key string, l Limit) {
	if !(l.Rate >= 0 && l.Rate <= 1e6) {
		v.add(key+".rate", "use 0 for no limit, or at most 1000000 a second")
	}
	if l.Burst < 0 || l.Rate > 0 && l.Burst < 1 || l.Burst > 1e6 {
		v.add(key+".burst", "use 1 to 1000000")
	}
}

// origin checks an issuer's or signer's URL and reports whether it is on
// loopback.
func (v *problems) origin(key, raw string) bool {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Hostname() == "" || u.Scheme+"://"+u.Host != raw || strings.ToLower(raw) != raw ||
		strings.HasSuffix(u.Host, ":") || u.Port() != "" && !validPort(u.Port(), 1) ||
		u.Port() == map[string]string{"https": "443", "http": "80"}[u.Scheme] && u.Port() != "" {
		v.add(key, "write an origin in lower case, without path, trailing slash or default port: https://pa.example.com")
		return false
	}
	loopback := loopbackHost(u.Hostname())
	if u.Scheme != "https" && !(u.Scheme == "http" && loopback) {
		v.add(key, "use https (http only on loopback)")
	}
	return loopback
}

func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}

func validPort(port string, least int) bool {
	n, err := strconv.Atoi(port)
	return err == nil && n >= least && n <= 65535 && isNumber(port)
}

// loopbackHost reports whether a host is this machine only: localhost, a name
// below it, or a loopback address.
func loopbackHost(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() && addr.Zone() == ""
}
