package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// DiscoverRequest names a business: by exactly one of its domain and its card's
// URL (DI-1).
type DiscoverRequest struct {
	Domain  string // or the id of a business that is known
	CardURL string
	Refresh bool // fetch also if a stored card is still good
}

// ParseBusiness reads what a person typed: a URL if it has ://, else a domain.
func ParseBusiness(s string) DiscoverRequest {
	if strings.Contains(s, "://") {
		return DiscoverRequest{CardURL: s}
	}
	return DiscoverRequest{Domain: s}
}

const wellKnownCard = "/.well-known/agent-card.json"

// url is the card's URL (DI-1).
func (r DiscoverRequest) url(rules URLRules) (cardURL, domain string, err error) {
	if (r.Domain == "") == (r.CardURL == "") {
		return "", "", refuse(StatusFailed, ReasonInvalidInput, "name the business by its domain or by its card's URL, and by one of them alone")
	}
	if r.CardURL != "" {
		if len(r.CardURL) > maxURLInput {
			return "", "", refuse(StatusFailed, ReasonInvalidInput, "card URL: it is longer than %d characters", maxURLInput)
		}
		if _, err := rules.Check(r.CardURL); err != nil {
			return "", "", refuse(StatusFailed, ReasonInvalidInput, "card URL: %v", err)
		}
		return r.CardURL, "", nil
	}
	domain = strings.TrimSuffix(strings.ToLower(r.Domain), ".")
	labels := strings.Split(domain, ".")
	if len(domain) > 253 || len(labels) < 2 {
		return "", "", refuse(StatusFailed, ReasonInvalidInput, "business: it is named by its id, which a list of businesses tells, by its domain, or by the address of its card. A domain needs at least two labels and at most 253 characters")
	}
	for _, l := range labels {
		if l == "" || len(l) > 63 || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" && isASCII(l) {
			return "", "", refuse(StatusFailed, ReasonInvalidInput, "domain: %q is not a label of a host name", l)
		}
	}
	cardURL = "https://" + domain + wellKnownCard
	if _, err := rules.Check(cardURL); err != nil {
		return "", "", refuse(StatusFailed, ReasonInvalidInput, "domain: %v", err)
	}
	return cardURL, domain, nil
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0
}

// Discover fetches and judges a business's card, and its authorization server's
// metadata if it delegates (DI, MD). A stored card is used while it is good. The
// answer may be an unsupported business, which says why. Refusals are *Refusal.
func (a *Agent) Discover(ctx context.Context, c Caller, req DiscoverRequest) (BusinessView, error) {
	if err := c.check(); err != nil {
		return BusinessView{}, err
	}
	ctx = withNetwork(ctx, c)
	// DI-12: without an identity one may look, with PACT switched off not.
	err := a.availability(ctx, c.Principal)
	switch reason := ReasonOf(err); {
	case err == nil, reason == ReasonIdentityNotSet:
	case reason == ReasonDisabledInSettings && a.neverSet(): // off, and nobody switched it so
	default:
		return BusinessView{}, err
	}
	if a.currentSettings().Preference == DisabledPACT {
		return BusinessView{}, a.preferred(ctx)
	}
	b, err := a.discover(ctx, c, req)
	if err != nil {
		return BusinessView{}, err
	}
	return a.businessView(b), nil
}

// neverSet reports a profile whose settings nobody chose yet.
func (a *Agent) neverSet() bool {
	s := a.currentSettings()
	return s.Preference == "" && s.By == ""
}

func (a *Agent) discover(ctx context.Context, c Caller, req DiscoverRequest) (*business, error) {
	var b *business
	if id := req.Domain; !strings.Contains(id, ".") && req.CardURL == "" { // no domain: an id, if anything
		err := a.store.View(ctx, func(tx Tx) (err error) {
			b, err = get[business](tx, c.Principal, id)
			return err
		})
		switch {
		case err == nil:
			req.Domain, req.CardURL = "", b.Key
		case !errors.Is(err, ErrNotFound):
			return nil, fmt.Errorf("read the business: %w", err)
		case strings.HasPrefix(id, "b-"):
			return nil, refuse(StatusFailed, ReasonNotFound, "no business of the id %q is known here: discover it by its domain or its card's URL", truncate(id, maxScopeID))
		}
	}
	cardURL, domain, err := req.url(a.rules())
	if err != nil {
		return nil, err
	}
	err = a.store.View(ctx, func(tx Tx) (err error) {
		b, err = findOne[business](tx, Query{Principal: c.Principal, Key: cardURL})
		return err
	})
	switch {
	case errors.Is(err, ErrNotFound):
		b = &business{Head: Head{ID: businessID(cardURL), Principal: c.Principal, Key: cardURL}, Domain: domain}
	case err != nil:
		return nil, fmt.Errorf("read the business: %w", err)
	case !req.Refresh && b.State == businessSupported && a.now().Before(b.Expires): // DI-3
		return b, a.keep(ctx, c, b)
	}
	return a.fetchCard(ctx, c, b)
}

// keep takes down that the owner looked a business up, which is not forgotten then.
func (a *Agent) keep(ctx context.Context, c Caller, b *business) error {
	if !b.ByOther || !c.surface() {
		return nil
	}
	return a.store.Update(ctx, func(tx Tx) error {
		stored, err := get[business](tx, b.Principal, b.ID)
		switch {
		case errors.Is(err, ErrNotFound): // forgotten since it was read
			anew := *b
			stored, anew.Head.Revision = &anew, 0
		case err != nil:
			return err
		}
		stored.ByOther = false
		return put(tx, stored)
	})
}

// makeRoom forgets the oldest businesses that others than the owner discovered and
// nobody uses, so that one more of them has its place: a task makes no more of them.
func makeRoom(tx Tx, principal string) error {
	all, err := find[business](tx, Query{Principal: principal})
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(b *business) bool { return !b.ByOther })
	if len(all) < maxFound {
		return nil
	}
	used := map[string]bool{} // ids of businesses, and origins of providers
	for _, kind := range []Kind{KindConversation, KindMessage, KindGrant, KindAuthorization, KindApproval, KindReceipt, KindBlock} {
		records, err := tx.Find(kind, Query{Principal: principal})
		if err != nil {
			return err
		}
		for _, r := range records {
			used[r.Business] = true
		}
	}
	providers, err := find[provider](tx, Query{Principal: principal})
	if err != nil {
		return err
	}
	for _, p := range providers {
		used[p.Key] = used[p.Key] || p.Audience != ""
	}
	all = slices.DeleteFunc(all, func(b *business) bool { return used[b.ID] || used[b.Card.Origin] })
	slices.SortStableFunc(all, func(x, y *business) int { return x.Fetched.Compare(y.Fetched) })
	for _, b := range all[:max(0, len(all)-maxFound+1)] {
		if err := tx.Delete(KindBusiness, principal, b.ID); err != nil {
			return err
		}
	}
	return nil
}

// businessID names a business by where its card is.
func businessID(cardURL string) string {
	sum := sha256.Sum256([]byte(cardURL))
	return "b-" + hex.EncodeToString(sum[:8])
}

// fetchCard fetches a card anew and stores what it means (DI-6, DI-10, DI-11).
// If it cannot be had, or its metadata is invalid (MD-4), the stored record stays
// as it was.
func (a *Agent) fetchCard(ctx context.Context, c Caller, b *business) (*business, error) {
	c.tell(Event{Kind: EventDiscovering, Business: b.Card.Name, Detail: b.Key})
	rules := a.rules()
	resp, err := a.do(ctx, egress.Request{Purpose: egress.Card, Method: "GET", URL: b.Key})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // CV-16
	}
	if err != nil {
		return nil, refuseErr(StatusFailed, discoveryReason(err), err)
	}
	switch {
	case resp.Status == http.StatusNotFound:
		return nil, refuse(StatusFailed, ReasonNotFound, "there is no card at %s", b.Key)
	case resp.Status != http.StatusOK:
		return nil, refuse(StatusFailed, ReasonFetchFailed, "%s answers HTTP %d", b.Key, resp.Status)
	case !jsontext.Value(resp.Body).IsValid(jsontext.AllowDuplicateNames(true)):
		return nil, refuse(StatusFailed, ReasonInvalidJSON, "what is at %s is not JSON", b.Key)
	}
	card := ParseCard(resp.Body, rules)
	var md Metadata
	if card.Support && card.Profile == ProfileDelegated {
		if md, err = a.fetchMetadata(ctx, card, rules); err != nil {
			return nil, err
		}
	}
	now, by := a.now(), c.actor()
	next := *b
	next.Card, next.Metadata = card, md
	next.Chain, next.FinalURL = resp.Origins(), resp.FinalURL
	next.Fetched, next.Expires = now, now.Add(a.cardTTL(resp.Header.Values("Cache-Control")))
	next.FetchedBy = by
	next.State = businessUnsupported
	if card.Support {
		next.State = businessSupported
	}
	err = a.store.Update(ctx, func(tx Tx) error {
		old, err := get[business](tx, b.Principal, b.ID)
		switch {
		case errors.Is(err, ErrNotFound):
			next.Head.Revision, next.Created, next.CardRevision = 0, now, 0
			next.DiscoveredBy, next.ByOther = by, !c.surface()
			if next.ByOther {
				if err := makeRoom(tx, b.Principal); err != nil {
					return err
				}
			}
		case err != nil:
			return err
		default:
			next.Head.Revision, next.Created = old.Head.Revision, old.Created
			next.Security, next.CardRevision, next.DiscoveredBy = old.Security, old.CardRevision, old.DiscoveredBy
			next.ByOther = old.ByOther && !c.surface()
		}
		// DI-11: only a good card that differs ends grants.
		if card.Support {
			if s := SecurityFingerprint(card, md); s != next.Security {
				if next.Security != "" {
					if err := endGrantsOf(tx, b.Principal, b.ID, ReasonCardSecurity, now); err != nil {
						return err
					}
				}
				next.Security, next.CardRevision = s, next.CardRevision+1
			}
		}
		return put(tx, &next)
	})
	if err != nil {
		return nil, fmt.Errorf("store the business: %w", err)
	}
	return &next, nil
}

// discoveryReason keeps what DI-2 names and calls the rest fetch_failed.
func discoveryReason(err error) Reason {
	switch code := egress.CodeOf(err); code {
	case egress.PolicyDenied, egress.InvalidURL, egress.DestinationRefused, egress.Timeout, egress.TooLarge,
		egress.TooManyRedirects, egress.RedirectNotAllowed, egress.Aborted:
		return Reason(code)
	}
	return ReasonFetchFailed
}

func (a *Agent) fetchMetadata(ctx context.Context, card Card, rules URLRules) (Metadata, error) {
	resp, err := a.do(ctx, egress.Request{Purpose: egress.Metadata, Method: "GET", URL: card.MetadataURL})
	if ctx.Err() != nil {
		return Metadata{}, context.Cause(ctx)
	}
	if err != nil {
		return Metadata{}, refuseErr(StatusFailed, ReasonMetadataInvalid, err)
	}
	if resp.Status != http.StatusOK {
		return Metadata{}, refuse(StatusFailed, ReasonMetadataInvalid, "the authorization server's metadata answers HTTP %d", resp.Status)
	}
	md, err := CheckMetadata(resp.Body, card, rules)
	if err != nil {
		return Metadata{}, refuseErr(StatusFailed, ReasonMetadataInvalid, err)
	}
	return md, nil
}

// cardTTL is DI-3. Several header lines are one list (RFC 9110 section 5.2).
func (a *Agent) cardTTL(cacheControl []string) time.Duration {
	ttl := a.params.CardTTL
	for d := range strings.SplitSeq(strings.ToLower(strings.Join(cacheControl, ",")), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(d), "=")
		switch name {
		case "no-store":
			return a.params.CardTTLMin
		case "max-age":
			n, err := strconv.ParseInt(strings.Trim(value, `"`), 10, 64)
			if n >= 0 && (err == nil || errors.Is(err, strconv.ErrRange)) { // out of range it is the largest
				n = min(n, int64(maxWait/time.Second)) // no overflow below
				ttl = min(max(time.Duration(n)*time.Second, a.params.CardTTLMin), a.params.CardTTLMax)
			}
		}
	}
	return ttl
}

// findBusiness resolves what a caller calls a business: its id, its domain or
// its card's URL. A name is the business's own word and never chooses one.
func (a *Agent) findBusiness(ctx context.Context, c Caller, name string) (*business, error) {
	var b *business
	err := a.store.View(ctx, func(tx Tx) (err error) {
		b, err = get[business](tx, c.Principal, name)
		return err
	})
	if !errors.Is(err, ErrNotFound) {
		return b, err
	}
	if strings.HasPrefix(name, "b-") && !strings.ContainsAny(name, ".:/") {
		return nil, refuse(StatusFailed, ReasonNotFound, "there is no business %s", name)
	}
	return a.discover(ctx, c, ParseBusiness(name))
}

// currentBusiness is a business that may be talked to: known, its card in date
// (DI-3) and supported (DI-10). Errors are *Refusal or of the store.
func (a *Agent) currentBusiness(ctx context.Context, c Caller, name string) (*business, error) {
	b, err := a.findBusiness(ctx, c, name)
	if err != nil {
		return nil, err
	}
	if b.State != businessSupported || !a.now().Before(b.Expires) {
		if b, err = a.fetchCard(ctx, c, b); err != nil {
			return nil, err
		}
	}
	if b.State != businessSupported {
		reason := b.Card.Reason
		if b.Security != "" { // it was supported once
			reason = ReasonCardChanged
		}
		return b, refuse(StatusUnsupported, reason, "%s", problemText(b.Card.Problems))
	}
	return b, nil
}

// revalidate fetches a card again whose time is over (DI-3). One that cannot be
// fetched now changes nothing (DI-11); no send goes by it.
func (a *Agent) revalidate(ctx context.Context, c Caller, b *business) {
	if !a.now().Before(b.Expires) {
		_, _ = a.fetchCard(ctx, c, b)
	}
}

// BusinessView is a business as a surface shows it. Its texts are untrusted
// (RD-4).
type BusinessView struct {
	ID           string    `json:"id"`
	Name         string    `json:"name"`
	Description  string    `json:"description,omitzero"`
	Organization string    `json:"organization,omitzero"`
	Supported    bool      `json:"supported"`
	Reason       Reason    `json:"reason,omitzero"`
	Problems     []Problem `json:"problems,omitempty"`
	Profile      Profile   `json:"profile,omitzero"`
	Domain       string    `json:"domain,omitzero"`
	CardURL      string    `json:"cardUrl"`
	FinalURL     string    `json:"finalUrl"`
	Chain        []string  `json:"chain"` // origins passed through (DI-4)
	InterfaceURL string    `json:"interfaceUrl,omitzero"`
	Provider     string    `json:"provider,omitzero"` // origin
	Scopes       []Scope   `json:"scopes"`
	Skills       []Skill   `json:"skills"`
	Issuer       string    `json:"issuer,omitzero"` // of its authorization server
	Fingerprint  string    `json:"fingerprint"`
	Security     string    `json:"securityFingerprint,omitzero"`
	Revision     int64     `json:"revision"`
	Fetched      time.Time `json:"fetched"`
	Expires      time.Time `json:"expires"`
	DiscoveredBy string    `json:"discoveredBy,omitzero"` // who had it looked up first
	FetchedBy    string    `json:"fetchedBy,omitzero"`    // who had the card fetched
}

// CardElsewhere is the origin that the card came from, if that is not its interface's:
// then what the business says of itself, and of its permissions, are another host's
// words. Else it is empty.
func (b BusinessView) CardElsewhere() string {
	if from := originOf(b.FinalURL); b.Provider != "" && from != b.Provider {
		return from
	}
	return ""
}

func (a *Agent) businessView(b *business) BusinessView {
	return BusinessView{
		ID: b.ID, Name: b.Card.Name, Description: b.Card.Description, Organization: b.Card.Organization,
		Supported: b.State == businessSupported, Reason: b.Card.Reason, Problems: b.Card.Problems,
		Profile: b.Card.Profile, Domain: b.Domain, CardURL: b.Key, FinalURL: b.FinalURL, Chain: nonNil(b.Chain),
		InterfaceURL: b.Card.InterfaceURL, Provider: b.Card.Origin,
		Scopes: eachScope(b.Card.Scopes, Scope.short), Skills: nonNil(b.Card.Skills), Issuer: b.Metadata.Issuer,
		Fingerprint: b.Card.Fingerprint, Security: b.Security, Revision: b.CardRevision,
		Fetched: b.Fetched, Expires: b.Expires, DiscoveredBy: b.DiscoveredBy, FetchedBy: b.FetchedBy,
	}
}

// Businesses lists the businesses that were discovered.
func (a *Agent) Businesses(ctx context.Context, c Caller) ([]BusinessView, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	out := []BusinessView{}
	err := a.store.View(ctx, func(tx Tx) error {
		all, err := find[business](tx, Query{Principal: c.Principal})
		for _, b := range all {
			out = append(out, a.businessView(b))
		}
		return err
	})
	return out, err
}

func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
