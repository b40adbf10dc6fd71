package agent

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// SignIn is what the owner needs to sign in at a business and grant permissions
// there (DA-14). Link and UserCode are for the owner's eyes only.
type SignIn struct {
	Authorization string
	Business      string // its name; untrusted
	Link          Secret
	UserCode      Secret
	LinkOrigin    string
	// Matches: the link is on the same site as the business, coarsely.
	Matches         bool
	CardURL         string
	CardChain       []string // origins that the card came through
	InterfaceOrigin string
	ASOrigin        string
	Scopes          []Scope
	Purpose         string
	Expires         time.Time
}

// showSignIn gives the link of a pending sign-in to the owner (DA-14).
func (a *Agent) showSignIn(ctx context.Context, c Caller, z *authorization) error {
	if !c.owner() {
		return refuse(StatusBlocked, ReasonDelegationRequired, "a sign-in link is for the owner alone; this call is by %q", c.Origin)
	}
	var s authorizationSecret
	var b *business
	err := a.store.View(ctx, func(tx Tx) (err error) {
		if z, err = get[authorization](tx, c.Principal, z.ID); err != nil { // others may have settled it
			return err
		}
		if z.State != authorizationPending || !a.now().Before(z.Deadline) {
			return refuse(StatusExpired, ReasonConsentExpired, "the sign-in is over: start a new one")
		}
		if b, err = get[business](tx, c.Principal, z.Business); err != nil {
			return err
		}
		return a.box.get(tx, z.ID, authorizationPurpose(z), &s)
	})
	switch {
	case errors.Is(err, errSecretLost):
		return refuse(StatusFailed, ReasonSecretMissing, "the sign-in's codes are lost: start a new one")
	case err != nil && ReasonOf(err) == "":
		return fmt.Errorf("read the sign-in: %w", err)
	case err != nil:
		return err
	}
	link := s.VerificationURIComplete
	if link == "" {
		link = s.VerificationURI
	}
	v := SignIn{
		Authorization: z.ID, Business: b.Card.Name, Link: Secret(link), UserCode: Secret(s.UserCode),
		LinkOrigin: originOf(link), Matches: sameSite(link, b.Card.InterfaceURL),
		CardURL: b.Key, CardChain: nonNil(b.Chain), InterfaceOrigin: b.Card.Origin, ASOrigin: originOf(b.Metadata.Issuer),
		Purpose: z.Purpose, Expires: z.Deadline,
	}
	for _, id := range z.Scopes {
		if scope, ok := b.Card.Scope(id); ok {
			v.Scopes = append(v.Scopes, scope.short())
		}
	}
	return c.SignIn(ctx, v)
}

// sameSite compares two URLs' sites coarsely (DA-14): the last two labels of the
// host, three under a country's second level.
func sameSite(a, b string) bool {
	sa, sb := site(a), site(b)
	return sa != "" && sa == sb
}

func site(raw string) string {
	u, err := url.Parse(originOf(raw))
	if err != nil {
		return ""
	}
	host := u.Hostname()
	labels := strings.Split(host, ".")
	n := len(labels)
	if n < 2 || strings.Trim(host, "0123456789.") == "" || strings.Contains(host, ":") {
		return host // an address, or a name like localhost
	}
	keep := 2
	if n > 2 && len(labels[n-1]) == 2 && slices.Contains([]string{"co", "com", "net", "org", "gov", "ac", "edu", "ne", "or"}, labels[n-2]) {
		keep = 3
	}
	return strings.Join(labels[n-keep:], ".")
}
