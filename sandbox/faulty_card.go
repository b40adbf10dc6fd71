package sandbox

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// elsewhere is where an "-origin" fault moves a URL of ours: to its ARG, else to
// the brands' own domain.
func (s *Sandbox) elsewhere(value, address string) string {
	if value != "" {
		return value
	}
	other := s.brandURL
	if other == s.publicURL {
		other = elsewhereOrigin
	}
	return other + strings.TrimPrefix(address, s.publicURL)
}

// cardOf is a brand's card and how long it may be kept.
func (s *Sandbox) cardOf(ctx context.Context, b *business) (body []byte, maxAge time.Duration, err error) {
	if !s.faults.on(ctx, "card-") {
		return b.cardBody, s.params.MaxAge, nil
	}
	c := b.card(s.publicURL)
	s.spoilCard(ctx, &c)
	s.spoilInterfaces(ctx, &c)
	s.spoilIdentity(ctx, &c)
	if c.SecuritySchemes.Delegation != nil {
		s.spoilDelegation(ctx, b, &c)
	}
	if body, err = json.Marshal(c); err != nil {
		return nil, 0, err
	}
	maxAge = s.params.MaxAge
	if n, on := s.faults.number(ctx, "card-max-age"); on {
		maxAge = time.Duration(n) * time.Second
	}
	if s.faults.hit(ctx, "card-no-store") {
		maxAge = -1
	}
	return body, maxAge, nil
}

// spoilCard changes what a card says about the business.
func (s *Sandbox) spoilCard(ctx context.Context, c *card) {
	if v, on := s.faults.take(ctx, "card-name"); on {
		c.Name = v
	}
	if s.faults.hit(ctx, "card-no-provider") {
		c.Provider = nil
	}
	if s.faults.hit(ctx, "card-no-skills") {
		c.Skills = nil
	}
	if s.faults.hit(ctx, "card-skill-bare") {
		c.Skills = []Skill{{ID: "talk"}}
	}
	if s.faults.hit(ctx, "card-streaming") {
		c.Capabilities.Streaming = true
	}
	if s.faults.hit(ctx, "card-extension") {
		c.Capabilities.Extensions = []cardExtension{{elsewhereOrigin + "/extension", true}}
	}
}

func (s *Sandbox) spoilInterfaces(ctx context.Context, c *card) {
	ours := &c.SupportedInterfaces[0]
	if s.faults.hit(ctx, "card-two-interfaces") {
		other := *ours
		other.URL += "/v2"
		c.SupportedInterfaces = append(c.SupportedInterfaces, other)
		ours = &c.SupportedInterfaces[0]
	}
	if v, on := s.faults.take(ctx, "card-interface-url"); on {
		ours.URL = v
	}
	if v, on := s.faults.take(ctx, "card-interface-version"); on {
		ours.ProtocolVersion = v
	}
	if s.faults.hit(ctx, "card-tenant") {
		ours.Tenant = "tenant"
	}
	if s.faults.hit(ctx, "card-no-interface") {
		c.SupportedInterfaces = nil
	}
}

func (s *Sandbox) spoilIdentity(ctx context.Context, c *card) {
	if s.faults.hit(ctx, "card-identity-basic") {
		c.SecuritySchemes.Identity.HTTPAuth.Scheme = "Basic"
	}
	if s.faults.hit(ctx, "card-second-scheme") {
		c.SecuritySchemes.Second = &c.SecuritySchemes.Identity
		c.Requirements = slices.Insert(c.Requirements, 1, securityRequirement{Schemes: orderedSchemes{secondScheme}})
	}
	if s.faults.hit(ctx, "card-identity-not-alone") {
		c.Requirements = []securityRequirement{{Schemes: orderedSchemes{identityScheme, "another"}}}
	}
}

// spoilDelegation changes a card that has delegation.
func (s *Sandbox) spoilDelegation(ctx context.Context, b *business, c *card) {
	oauth := &c.SecuritySchemes.Delegation.OAuth2
	flow := &oauth.Flows.DeviceCode
	if v, on := s.faults.take(ctx, "card-token-origin"); on {
		flow.TokenURL = s.elsewhere(v, flow.TokenURL)
	}
	if v, on := s.faults.take(ctx, "card-device-origin"); on {
		flow.DeviceAuthorizationURL = s.elsewhere(v, flow.DeviceAuthorizationURL)
	}
	if v, on := s.faults.take(ctx, "card-metadata-origin"); on {
		oauth.MetadataURL = s.elsewhere(v, oauth.MetadataURL)
	}
	if s.faults.hit(ctx, "card-no-metadata-url") {
		oauth.MetadataURL = ""
	}
	if v, on := s.faults.take(ctx, "card-scope-text"); on {
		id, text, ok := s.scopeText(v)
		if !ok {
			id, text = b.Scopes[0].ID, "Cancel all your bookings"
		}
		flow.Scopes = slices.Clone(flow.Scopes)
		for i := range flow.Scopes {
			if flow.Scopes[i].ID == id {
				flow.Scopes[i].Description = text
			}
		}
	}
	if s.faults.hit(ctx, "card-no-scopes") {
		flow.Scopes = nil
	}
	if s.faults.hit(ctx, "card-no-requirement") {
		c.Requirements = c.Requirements[:1]
	}
}

// metadataOf is a brand's OAuth metadata, nil if it is as always.
func (s *Sandbox) metadataOf(ctx context.Context, b *business) *metadata {
	if !s.faults.on(ctx, "metadata-") {
		return nil
	}
	m := b.metadata()
	if v, on := s.faults.take(ctx, "metadata-jwks-origin"); on {
		m.JWKSURI = s.elsewhere(v, m.JWKSURI)
	}
	if v, on := s.faults.take(ctx, "metadata-issuer-origin"); on {
		m.Issuer = s.elsewhere(v, m.Issuer)
	}
	if s.faults.hit(ctx, "metadata-token-slash") {
		m.TokenEndpoint += "/"
	}
	if s.faults.hit(ctx, "metadata-device-other") {
		m.DeviceEndpoint += "/v2"
	}
	return &m
}

// signingKey is the key that signs delegation tokens and receipts.
func (s *Sandbox) signingKey(ctx context.Context, b *business) (*asKey, error) {
	if s.faults.hit(ctx, "key-early") || s.faults.hit(ctx, "key-rollover") {
		return b.spareKey()
	}
	return b.key, nil
}

// spareKey is the other key of the key- faults, the same while the sandbox runs.
func (b *business) spareKey() (*asKey, error) {
	if key := b.spare.Load(); key != nil {
		return key, nil
	}
	key, err := newASKey()
	if err != nil {
		return nil, err
	}
	b.spare.CompareAndSwap(nil, key)
	return b.spare.Load(), nil
}

// keysOf is a brand's JWKS, nil if it is as always.
func (s *Sandbox) keysOf(ctx context.Context, b *business) ([]byte, error) {
	spare, err := b.spareKey()
	if err != nil {
		return nil, err
	}
	published := b.key
	// A count of key-rollover is of signatures.
	changed := s.faults.on(ctx, "key-rollover") || s.faults.hit(ctx, "key-dropped")
	if changed {
		published = spare
	}
	var set struct {
		Keys []map[string]jsontext.Value `json:"keys"`
	}
	if err := json.Unmarshal(published.document.Body, &set); err != nil {
		return nil, err
	}
	if s.faults.hit(ctx, "jwks-private") {
		set.Keys[0]["d"], changed = jsontext.Value(`"`+newSecret("")+`"`), true // made up
	}
	if s.faults.hit(ctx, "jwks-twice") {
		other := map[string]jsontext.Value{}
		for name, value := range set.Keys[0] {
			other[name] = value
		}
		var others struct {
			Keys []map[string]jsontext.Value `json:"keys"`
		}
		if err := json.Unmarshal(spare.document.Body, &others); err != nil {
			return nil, err
		}
		other["x"], other["y"] = others.Keys[0]["x"], others.Keys[0]["y"]
		set.Keys, changed = append(set.Keys, other), true
	}
	if !changed {
		return nil, nil
	}
	return json.Marshal(set, json.Deterministic(true))
}
