package signer

import (
	"encoding/base64"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pactsigner/pactsigner/internal/gateway"
)

// The bounds of what an operator may send.
const (
	adminMaxBody     = 64 << 10
	adminMaxReason   = 1024
	adminMaxName     = 128
	adminMaxNote     = 256
	adminMaxAudience = 256
	adminMaxIssuer   = 512
	adminMaxPage     = 1000
	adminPage        = 100

	enrollmentTokenTTL    = 24 * time.Hour
	enrollmentTokenMaxTTL = 30 * 24 * time.Hour
)

// adminText checks free text: at most limit bytes, without control characters.
func adminText(field, s string, limit int, required bool) error {
	switch {
	case required && strings.TrimSpace(s) == "":
		return adminInvalid(field, "is required")
	case len(s) > limit:
		return adminInvalid(field, "is longer than %d bytes", limit)
	case strings.ContainsFunc(s, unicode.IsControl):
		return adminInvalid(field, "holds a control character or line break")
	}
	return nil
}

// adminThumbprint checks the form of an RFC 7638 SHA-256 thumbprint: 43 characters
// of unpadded base64url that encode 32 bytes.
func adminThumbprint(field, s string) error {
	if b, err := base64.RawURLEncoding.Strict().DecodeString(s); err != nil || len(b) != 32 {
		return adminInvalid(field, "%q is not a key's thumbprint: 43 characters of base64url (RFC 7638, SHA-256)", adminShorten(s, 64))
	}
	return nil
}

// adminShorten keeps a refused value from filling the message.
func adminShorten(s string, n int) string { return gateway.Shorten(s, n) }

// adminDuration reads an optional duration: unset or zero is 0, else positive and
// at most limit.
func adminDuration(field string, d *durationpb.Duration, limit time.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() < 0 {
		return 0, adminInvalid(field, "must be a positive duration")
	}
	if d.AsDuration() > limit {
		return 0, adminInvalid(field, "is longer than %d days", limit/(24*time.Hour))
	}
	return d.AsDuration(), nil
}

// adminMaxDuration bounds kills and credentials that end by themselves.
const adminMaxDuration = 10 * 365 * 24 * time.Hour

// adminPageSize reads a page size: 0 is 100.
func adminPageSize(n uint32) (int, error) {
	switch {
	case n == 0:
		return adminPage, nil
	case n > adminMaxPage:
		return 0, adminInvalid("page_size", "%d is more than %d", n, adminMaxPage)
	}
	return int(n), nil
}

// adminPageOf reads a page request. The token is the store's key of the last record.
func adminPageOf(size uint32, token string) (Page, error) {
	n, err := adminPageSize(size)
	if err != nil {
		return Page{}, err
	}
	if len(token) > 256 {
		return Page{}, adminInvalid("page_token", "is not one that this signer gave out")
	}
	return Page{Size: n, After: token}, nil
}

// adminOrigin reads a Provider's origin and returns it in the one form that is
// stored: lower case, without a default port or final slash. https, or http on
// loopback.
func adminOrigin(field, s string) (string, error) {
	u, err := adminProviderURL(field, s)
	if err != nil {
		return "", err
	}
	if strings.Trim(u.Path, "/") != "" {
		return "", adminInvalid(field, "%q has a path: give only scheme, host and port", adminShorten(s, 128))
	}
	return u.Scheme + "://" + u.Host, nil
}

// adminProviderURL reads a URL without query, fragment or user, https or http on
// loopback, and puts its host into lower case without a default port.
func adminProviderURL(field, s string) (*url.URL, error) {
	shown := adminShorten(s, 128)
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Opaque != "" || len(s) > 512 {
		return nil, adminInvalid(field, "%q is not a URL like https://provider.example.com", shown)
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(s, "#") || u.User != nil {
		return nil, adminInvalid(field, "%q must have no query, fragment or user", shown)
	}
	host := strings.ToLower(u.Hostname())
	ip, ipErr := netip.ParseAddr(host)
	switch {
	case ipErr == nil && ip.Zone() != "":
		return nil, adminInvalid(field, "%q has an address with a zone", shown)
	case ipErr != nil && !adminHostName(host):
		return nil, adminInvalid(field, "%q has a host that is not a DNS name in ASCII or an address", shown)
	case u.Scheme == "http" && (host == "localhost" || ipErr == nil && ip.IsLoopback()):
	case u.Scheme != "https":
		return nil, adminInvalid(field, "%q must be https (http only for this machine)", shown)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	port := u.Port()
	u.Host = host
	if strings.HasSuffix(s, ":") {
		return nil, adminInvalid(field, "%q has an empty port", shown)
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return nil, adminInvalid(field, "%q has no valid port", shown)
		}
		if !(u.Scheme == "https" && n == 443 || u.Scheme == "http" && n == 80) {
			u.Host = host + ":" + strconv.FormatUint(n, 10)
		}
	}
	return u, nil
}

// adminHostName says whether s is a DNS name of letters, digits and hyphens.
func adminHostName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// adminStamp is a time as messages carry it; zero is unset.
func adminStamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
