package agent

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Why a card is not supported, in the order of DI-8: the first that applies is
// Card.Reason.
const (
	ReasonInvalidCard           = "invalid_card"
	ReasonNoInterface           = "no_http_json_1_0_interface"
	ReasonAmbiguousInterface    = "ambiguous_interface"
	ReasonTenant                = "interface_tenant_unsupported"
	ReasonInsecureURL           = "insecure_url"
	ReasonRequiredExtension     = "required_extension_unsupported"
	ReasonIdentityMissing       = "identity_scheme_missing"
	ReasonIdentityAmbiguous     = "identity_scheme_ambiguous" // never produced: DI-9
	ReasonIdentityNotAlone      = "identity_requirement_missing"
	ReasonDelegationAmbiguous   = "delegation_scheme_ambiguous"
	ReasonDelegationCrossOrigin = "delegation_cross_origin"
)

// The interface that PACT 1.0 speaks, and where in it messages go.
const (
	bindingHTTPJSON, version1 = "HTTP+JSON", "1.0"
	sendPath                  = "/message:send"
)

// What is kept of a card (DI-7): characters, but for the two numbers.
const (
	maxName         = 200
	maxDescription  = 2000
	maxOrganization = 200
	maxSkills       = 50
	maxSkillID      = 120
	maxSkillName    = 200
	maxSkillText    = 1000
	maxScopes       = 200
	maxScopeText    = 500
)

// cardReasons ranks the reasons.
var cardReasons = []string{
	ReasonInvalidCard, ReasonNoInterface, ReasonAmbiguousInterface, ReasonTenant, ReasonInsecureURL,
	ReasonRequiredExtension, ReasonIdentityMissing, ReasonIdentityAmbiguous, ReasonIdentityNotAlone,
	ReasonDelegationAmbiguous, ReasonDelegationCrossOrigin,
}

// Profile is what a business offers.
type Profile string

// The two profiles of PACT 1.0.
const (
	ProfileIdentity  Profile = "identity"  // who calls
	ProfileDelegated Profile = "delegated" // and what the user allowed
)

// Scope is a permission that a card advertises. Description is untrusted text.
type Scope struct {
	ID          string `json:"id"`
	Description string `json:"description"`
	// Cut is there if Description is not all of the card's: only its beginning (DI-7),
	// or redacted (RD-2).
	Cut *Cut `json:"cut,omitzero"`
}

// Cut is what counts of a description that is more than what is kept of it.
type Cut struct {
	Effect Effect `json:"effect"` // the scope's class by all of it (AD-8)
	Digest string `json:"sha256"` // of all of it, hex (DI-5)
	// Whole is all of it, redacted: for who decides on it (AP-2). Views leave it out.
	Whole string `json:"whole,omitzero"`
}

// short is the scope as views show it.
func (s Scope) short() Scope {
	if s.Cut != nil {
		s.Cut = &Cut{Effect: s.Cut.Effect, Digest: s.Cut.Digest}
	}
	return s
}

// full is the scope with all of its description.
func (s Scope) full() Scope {
	if s.Cut != nil && s.Cut.Whole != "" {
		s.Description, s.Cut = s.Cut.Whole, nil
	}
	return s
}

// eachScope applies one of them to a list.
func eachScope(scopes []Scope, f func(Scope) Scope) []Scope {
	out := make([]Scope, len(scopes))
	for i, s := range scopes {
		out[i] = f(s)
	}
	return out
}

// Effect is the class of the scope (AD-8).
func (s Scope) Effect() Effect {
	if s.Cut != nil {
		return s.Cut.Effect
	}
	return ClassifyScope(s.ID, s.Description)
}

// newScope keeps of a description what is shown of it.
func newScope(id, description string) Scope {
	s := Scope{ID: id, Description: safe(description, maxScopeText)}
	if whole := clean(description, len(description)); whole != s.Description {
		s.Cut = &Cut{ClassifyScope(id, description), digest([]byte(description)), safe(description, len(description))}
	}
	return s
}

// Skill is something a business says it can do. Untrusted text (RD-4).
type Skill struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description"`
}

// Card is what the agent takes from a business's Agent Card. Texts are cut to
// the lengths of DI-7 and are untrusted (RD-4). If Support is false only the
// texts, Reason, Problems and Fingerprint are set: nothing else in an
// unsupported card is trusted (DI-10).
type Card struct {
	Support  bool      `json:"support"`
	Reason   string    `json:"reason,omitempty"`   // DI-8; empty if supported
	Problems []Problem `json:"problems,omitempty"` // everything found, Reason's first
	// Advice is what breaks nothing here and should be looked at all the same.
	Advice []Problem `json:"advice,omitempty"`

	Name         string  `json:"name"`
	Description  string  `json:"description"`
	Version      string  `json:"version"`
	Organization string  `json:"organization,omitempty"`
	Skills       []Skill `json:"skills,omitempty"`

	Profile        Profile `json:"profile,omitempty"`
	InterfaceURL   string  `json:"interfaceUrl,omitempty"` // as the card states it (UR-7)
	Origin         string  `json:"origin,omitempty"`       // of InterfaceURL; the provider (PR-1)
	IdentityScheme string  `json:"identityScheme,omitempty"`

	// Of the delegated profile.
	DelegationScheme       string  `json:"delegationScheme,omitempty"`
	Scopes                 []Scope `json:"scopes,omitempty"` // in the card's order
	DeviceAuthorizationURL string  `json:"deviceAuthorizationUrl,omitempty"`
	TokenURL               string  `json:"tokenUrl,omitempty"`
	RefreshURL             string  `json:"refreshUrl,omitempty"` // TokenURL if the card has none (MD-1)
	MetadataURL            string  `json:"metadataUrl,omitempty"`

	Fingerprint string `json:"fingerprint,omitempty"` // SHA-256 of the canonical JSON (DI-5), hex
}

// Scope returns the advertised scope of that id.
func (c Card) Scope(id string) (Scope, bool) {
	i := slices.IndexFunc(c.Scopes, func(s Scope) bool { return s.ID == id })
	if i < 0 {
		return Scope{}, false
	}
	return c.Scopes[i], true
}

// SendURL is where messages go (UR-7); empty for an unsupported card.
func (c Card) SendURL() string {
	if c.InterfaceURL == "" {
		return ""
	}
	return strings.TrimRight(c.InterfaceURL, "/") + sendPath
}

// ParseCard reads an Agent Card (DI-7..DI-9, MD-1). It never fails: a document
// that cannot be used is an unsupported card that says why. Members that it
// does not know are ignored; repeated ones, and wrong types in those it knows,
// are not.
func ParseCard(data []byte, rules URLRules) Card {
	r := &cardReader{reader: reader{reason: ReasonInvalidCard, most: maxCardEntries}, rules: rules}
	card := r.card(data)
	card.Advice = r.advice.problems
	slices.SortStableFunc(r.problems, func(a, b Problem) int {
		return slices.Index(cardReasons, a.Reason) - slices.Index(cardReasons, b.Reason)
	})
	if len(r.problems) == 0 {
		card.Support = true
		return card
	}
	return Card{
		Reason: r.problems[0].Reason, Problems: r.problems, Advice: r.advice.problems,
		Name: card.Name, Description: card.Description, Version: card.Version,
		Organization: card.Organization, Skills: card.Skills, Fingerprint: card.Fingerprint,
	}
}

type cardReader struct {
	reader
	rules  URLRules
	advice reader
}

func (r *cardReader) advise(field, format string, args ...any) {
	r.advice.add("advice", field, format, args...)
}

func (r *cardReader) card(data []byte) Card {
	o, err := parseObject(data)
	if err != nil {
		r.add(ReasonInvalidCard, "", "is %v", err)
		return Card{}
	}
	canon, err := canonical(data)
	if err != nil {
		r.add(ReasonInvalidCard, "", "has no canonical form")
		return Card{}
	}
	card := Card{
		Fingerprint: digest(canon),
		Name:        safe(r.text(o, "", "name", true), maxName),
		Description: safe(r.text(o, "", "description", true), maxDescription),
		Version:     safe(r.text(o, "", "version", true), maxName),
	}
	if p, ok := r.object(o, "", "provider", false); ok {
		card.Organization = safe(r.text(p, "provider.", "organization", false), maxOrganization)
	}
	r.texts(o, "", "defaultInputModes", true)
	r.texts(o, "", "defaultOutputModes", true)
	card.Skills = r.skills(o)
	r.capabilities(o)
	if raw, ok := r.chooseInterface(o); ok {
		card.InterfaceURL = raw
		if u := r.checkURL("supportedInterfaces.url", raw); u != nil {
			card.Origin = Origin(u)
		}
	}
	r.security(o, &card)
	return card
}

func (r *cardReader) skills(o object) []Skill {
	var out []Skill
	found := 0
	for i, s := range r.objects(o, "", "skills", true) {
		if s == nil {
			continue
		}
		path := fmt.Sprintf("skills[%d].", i)
		r.texts(s, path, "tags", true)
		id, name, text := r.text(s, path, "id", true), r.text(s, path, "name", true), r.text(s, path, "description", true)
		if found++; found <= maxSkills {
			out = append(out, Skill{safe(id, maxSkillID), safe(name, maxSkillName), safe(text, maxSkillText)})
		}
	}
	if found > maxSkills {
		r.advise("skills", "only the first %d of %d are read", maxSkills, found)
	}
	return out
}

func (r *cardReader) capabilities(o object) {
	c, ok := r.object(o, "", "capabilities", true)
	if !ok {
		return
	}
	for _, name := range []string{"streaming", "pushNotifications", "extendedAgentCard"} {
		if r.flag(c, "capabilities.", name) {
			r.advise("capabilities."+name, "is true, and PACT agents never use it: PACT 1.0 has it false")
		}
	}
	for i, e := range r.objects(c, "capabilities.", "extensions", false) {
		path := fmt.Sprintf("capabilities.extensions[%d]", i)
		if r.flag(e, path+".", "required") {
			r.add(ReasonRequiredExtension, path, "the card requires an extension that this agent does not have")
		}
	}
}

// chooseInterface picks by binding and version, never by position. A URL that is
// there and empty is a URL, which the URL rules refuse.
func (r *cardReader) chooseInterface(o object) (string, bool) {
	var urls []string
	for i, in := range r.objects(o, "", "supportedInterfaces", true) {
		path := fmt.Sprintf("supportedInterfaces[%d].", i)
		binding := r.text(in, path, "protocolBinding", false)
		version := r.text(in, path, "protocolVersion", false)
		tenant := r.text(in, path, "tenant", false)
		if binding != bindingHTTPJSON || version != version1 {
			r.text(in, path, "url", false)
			continue
		}
		v, ok := r.member(in, path, "url", true, '"', "a string")
		if tenant != "" {
			r.add(ReasonTenant, path+"tenant", "interfaces with a tenant are not supported")
		}
		if raw := unquote(v); ok && !slices.Contains(urls, raw) {
			urls = append(urls, raw)
		}
	}
	switch len(urls) {
	case 1:
		return urls[0], true
	case 0:
		r.add(ReasonNoInterface, "supportedInterfaces", "none has protocolBinding %q and protocolVersion %q", bindingHTTPJSON, version1)
	default:
		r.add(ReasonAmbiguousInterface, "supportedInterfaces", "%d different URLs have protocolBinding %q and protocolVersion %q", len(urls), bindingHTTPJSON, version1)
	}
	return "", false
}

func (r *cardReader) url(field, raw string) *url.URL {
	if raw == "" {
		return nil // missing, and reported as that
	}
	return r.checkURL(field, raw)
}

func (r *cardReader) checkURL(field, raw string) *url.URL {
	u, err := r.rules.Check(raw)
	if err != nil {
		r.add(ReasonInsecureURL, field, "%v", err)
		return nil
	}
	return u
}

// SecurityFingerprint digests what grants depend on (DI-5): a change of it
// invalidates them, a change of names, skills or texts does not (DI-6). md is
// the zero Metadata for an identity card. The order of scopes does not count.
func SecurityFingerprint(card Card, md Metadata) string {
	scopes := slices.Clone(card.Scopes)
	slices.SortFunc(scopes, func(a, b Scope) int { return strings.Compare(a.ID, b.ID) })
	doc, err := json.Marshal([]any{
		"pact-card/1", card.InterfaceURL, card.Profile, card.IdentityScheme,
		card.DeviceAuthorizationURL, card.TokenURL, card.RefreshURL, card.MetadataURL,
		scopes, md.Issuer, md.JWKSURI,
	}, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		panic(err) // strings only
	}
	return digest(doc)
}
