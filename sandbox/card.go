package sandbox

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The keys of the security schemes on our cards. Readers find a scheme by its
// type; published suites know these names.
const (
	identityScheme   = "platformJwt"
	delegationScheme = "userDelegation"
	secondScheme     = "platformJwtToo" // of card-second-scheme
)

// card is an A2A 1.0 Agent Card, in the members that PACT uses.
type card struct {
	Name                string                `json:"name"`
	Description         string                `json:"description"`
	SupportedInterfaces []cardInterface       `json:"supportedInterfaces"`
	Provider            *cardProvider         `json:"provider,omitzero"`
	Version             string                `json:"version"`
	Capabilities        cardCapabilities      `json:"capabilities"`
	SecuritySchemes     cardSchemes           `json:"securitySchemes"`
	Requirements        []securityRequirement `json:"securityRequirements"`
	DefaultInputModes   []string              `json:"defaultInputModes"`
	DefaultOutputModes  []string              `json:"defaultOutputModes"`
	Skills              []Skill               `json:"skills"`
}

type cardInterface struct {
	URL             string `json:"url"`
	ProtocolBinding string `json:"protocolBinding"`
	ProtocolVersion string `json:"protocolVersion"`
	Tenant          string `json:"tenant,omitempty"` // of card-tenant
}

type cardProvider struct {
	URL          string `json:"url"`
	Organization string `json:"organization"`
}

type cardCapabilities struct {
	Streaming         bool `json:"streaming"`
	PushNotifications bool `json:"pushNotifications"`
	ExtendedAgentCard bool `json:"extendedAgentCard"`

	Extensions []cardExtension `json:"extensions,omitempty"` // of card-extension
}

type cardExtension struct {
	URI      string `json:"uri"`
	Required bool   `json:"required"`
}

type cardSchemes struct {
	Identity   cardIdentity    `json:"platformJwt"`
	Second     *cardIdentity   `json:"platformJwtToo,omitempty"`
	Delegation *cardDelegation `json:"userDelegation,omitempty"`
}

type cardIdentity struct {
	HTTPAuth struct {
		Scheme       string `json:"scheme"`
		BearerFormat string `json:"bearerFormat"`
		Description  string `json:"description"`
	} `json:"httpAuthSecurityScheme"`
}

type cardDelegation struct {
	OAuth2 struct {
		Description string `json:"description"`
		Flows       struct {
			DeviceCode struct {
				DeviceAuthorizationURL string        `json:"deviceAuthorizationUrl"`
				TokenURL               string        `json:"tokenUrl"`
				Scopes                 orderedScopes `json:"scopes"`
			} `json:"deviceCode"`
		} `json:"flows"`
		MetadataURL string `json:"oauth2MetadataUrl,omitempty"`
	} `json:"oauth2SecurityScheme"`
}

// securityRequirement names schemes that are needed together.
type securityRequirement struct {
	Schemes orderedSchemes `json:"schemes"`
}

// orderedScopes is an object {id: description} in the brand's order.
type orderedScopes []Scope

// MarshalJSONTo writes the object.
func (s orderedScopes) MarshalJSONTo(enc *jsontext.Encoder) error {
	return writeObject(enc, len(s), func(i int) (string, any) { return s[i].ID, s[i].Description })
}

// orderedSchemes is an object {name: {"list": []}} in the order given.
type orderedSchemes []string

// MarshalJSONTo writes the object.
func (s orderedSchemes) MarshalJSONTo(enc *jsontext.Encoder) error {
	return writeObject(enc, len(s), func(i int) (string, any) {
		return s[i], struct {
			List []string `json:"list"`
		}{}
	})
}

func writeObject(enc *jsontext.Encoder, n int, member func(int) (string, any)) error {
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for i := range n {
		name, value := member(i)
		if err := enc.WriteToken(jsontext.String(name)); err != nil {
			return err
		}
		if err := json.MarshalEncode(enc, value); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}

// card describes a brand's agent as served from publicURL.
func (b *business) card(publicURL string) card {
	c := card{
		Name:        b.Name,
		Description: b.Description,
		SupportedInterfaces: []cardInterface{
			{URL: b.interfaceURL, ProtocolBinding: "HTTP+JSON", ProtocolVersion: "1.0"},
		},
		Provider:           &cardProvider{URL: publicURL, Organization: "pactsigner sandbox"},
		Version:            "0.1.0",
		Requirements:       []securityRequirement{{Schemes: orderedSchemes{identityScheme}}},
		DefaultInputModes:  []string{"text/plain"},
		DefaultOutputModes: []string{"text/plain"},
		Skills:             b.Skills,
	}
	id := &c.SecuritySchemes.Identity.HTTPAuth
	id.Scheme, id.BearerFormat = "Bearer", "JWT"
	id.Description = "A PA-JWT signed by the personal agent's issuer, for the audience this Provider assigned to it."
	if b.delegated() {
		d := &cardDelegation{}
		d.OAuth2.Description = "What the user allowed, as a delegation token in X-A2A-User-Delegation beside the PA-JWT."
		d.OAuth2.Flows.DeviceCode.DeviceAuthorizationURL = b.deviceURL()
		d.OAuth2.Flows.DeviceCode.TokenURL = b.tokenURL()
		d.OAuth2.Flows.DeviceCode.Scopes = b.Scopes
		d.OAuth2.MetadataURL = b.metadataURL()
		c.SecuritySchemes.Delegation = d
		c.Requirements = append(c.Requirements, securityRequirement{Schemes: orderedSchemes{identityScheme, delegationScheme}})
	}
	return c
}

// metadata is a brand's authorization server metadata (RFC 8414 section 2).
type metadata struct {
	Issuer         string   `json:"issuer"`
	DeviceEndpoint string   `json:"device_authorization_endpoint"`
	TokenEndpoint  string   `json:"token_endpoint"`
	JWKSURI        string   `json:"jwks_uri"`
	Scopes         []string `json:"scopes_supported"`
	GrantTypes     []string `json:"grant_types_supported"`
	AuthMethods    []string `json:"token_endpoint_auth_methods_supported"`
}

func (b *business) metadata() metadata {
	return metadata{
		Issuer:         b.asIssuer(),
		DeviceEndpoint: b.deviceURL(),
		TokenEndpoint:  b.tokenURL(),
		JWKSURI:        b.jwksURL(),
		Scopes:         b.scopeIDs(),
		GrantTypes:     []string{grantDeviceCode, grantRefresh},
		AuthMethods:    []string{"private_key_jwt"},
	}
}
