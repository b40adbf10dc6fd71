package sandbox

import (
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// elsewhere is where an "-origin" switch moves a URL of ours: to its value, else
// to the brands' own domain.
func (s *Sandbox) elsewhere(value, address string) string {
	if value != "" {
		return value
	}
	other := s.brandURL
	if other == s.publicURL {
		other = "https://elsewhere.example"
	}
	return other + strings.TrimPrefix(address, s.publicURL)
}

// cardOf is a brand's card and how long it may be kept.
func (s *Sandbox) cardOf(b *business) (body []byte, maxAge time.Duration, err error) {
	if !s.faults.on("card-") {
		return b.cardBody, s.params.MaxAge, nil
	}
	c := b.card(s.publicURL)
	if d := c.SecuritySchemes.Delegation; d != nil {
		flow := &d.OAuth2.Flows.DeviceCode
		if v, on := s.faults.take("card-token-origin"); on {
			flow.TokenURL = s.elsewhere(v, flow.TokenURL)
		}
		if v, on := s.faults.take("card-device-origin"); on {
			flow.DeviceAuthorizationURL = s.elsewhere(v, flow.DeviceAuthorizationURL)
		}
		if v, on := s.faults.take("card-scope-text"); on {
			id, text, _ := s.scopeText(v)
			flow.Scopes = slices.Clone(flow.Scopes)
			for i := range flow.Scopes {
				if flow.Scopes[i].ID == id {
					flow.Scopes[i].Description = text
				}
			}
		}
	}
	if v, on := s.faults.take("card-name"); on {
		c.Name = v
	}
	if _, on := s.faults.take("card-second-scheme"); on {
		c.SecuritySchemes.Second = &c.SecuritySchemes.Identity
		c.Requirements = slices.Insert(c.Requirements, 1, securityRequirement{Schemes: orderedSchemes{secondScheme}})
	}
	if _, on := s.faults.take("card-no-provider"); on {
		c.Provider = nil
	}
	if body, err = json.Marshal(c); err != nil {
		return nil, 0, err
	}
	if _, on := s.faults.take("card-malformed"); on {
		body = body[:len(body)/2]
	}
	maxAge = s.params.MaxAge
	if n, on := s.faults.number("card-max-age"); on {
		maxAge = time.Duration(n) * time.Second
	}
	if _, on := s.faults.take("card-no-store"); on {
		maxAge = -1
	}
	return body, maxAge, nil
}

// metadataOf is a brand's OAuth metadata, nil if it is as always.
func (s *Sandbox) metadataOf(b *business) *metadata {
	if !s.faults.on("metadata-") {
		return nil
	}
	m := b.metadata()
	if v, on := s.faults.take("metadata-jwks-origin"); on {
		m.JWKSURI = s.elsewhere(v, m.JWKSURI)
	}
	if v, on := s.faults.take("metadata-issuer-origin"); on {
		m.Issuer = s.elsewhere(v, m.Issuer)
	}
	if _, on := s.faults.take("metadata-token-slash"); on {
		m.TokenEndpoint += "/"
	}
	return &m
}

// refuseSignIn answers a sign-in start by switch.
func (s *Sandbox) refuseSignIn(w http.ResponseWriter) bool {
	if n, on := s.faults.number("device-429"); on {
		tooMany(w, time.Duration(n)*time.Second)
		return true
	}
	if code, on := s.faults.take("device-error"); on {
		oauthFail(code, "The sandbox was told so").write(w)
		return true
	}
	return false
}

// deviceAnswer is the answer to a sign-in start (RFC 8628 section 3.2).
type deviceAnswer struct {
	DeviceCode      string `json:"device_code"`
	UserCode        string `json:"user_code"`
	Verification    string `json:"verification_uri"`
	VerificationAll string `json:"verification_uri_complete,omitempty"`
	ExpiresIn       int    `json:"expires_in"`
	Interval        int    `json:"interval"`
}

func (s *Sandbox) spoilDevice(d *deviceAnswer) {
	if v, on := s.faults.take("device-uri"); on {
		d.Verification = v
	}
	if v, on := s.faults.take("device-complete-uri"); on {
		d.VerificationAll = v
	}
	if _, on := s.faults.take("device-no-complete"); on {
		d.VerificationAll = ""
	}
	if n, on := s.faults.number("device-expires"); on {
		d.ExpiresIn = n
	}
}

// refuseToken answers the token endpoint by switch.
func (s *Sandbox) refuseToken(w http.ResponseWriter, grantType string) bool {
	var code string
	on := false
	switch grantType {
	case grantRefresh:
		code, on = s.faults.take("refresh-error")
	case grantDeviceCode:
		if n, on := s.faults.number("poll-429"); on {
			tooMany(w, time.Duration(n)*time.Second)
			return true
		}
		if n, on := s.faults.number("poll-status"); on {
			w.Header().Set("Cache-Control", "no-store")
			writeJSON(w, n, typeJSON, oauthFail("server_error", "The sandbox was told so"))
			return true
		}
		if _, on = s.faults.take("poll-slow-down"); on {
			code = "slow_down"
		} else if _, on = s.faults.take("poll-pending"); on {
			code = "authorization_pending"
		} else {
			code, on = s.faults.take("poll-error")
		}
	}
	if on {
		oauthFail(code, "The sandbox was told so").write(w)
	}
	return on
}

// tokenLife is how long a delegation token lives.
func (s *Sandbox) tokenLife() time.Duration {
	if n, on := s.faults.number("access-ttl"); on {
		return time.Duration(n) * time.Second
	}
	return s.params.TokenTTL
}

// spoilScopes changes what the answer of the token endpoint, and the token, give.
func (s *Sandbox) spoilScopes(scopes []string, refreshed bool) []string {
	extra, narrow := "grant-extra", ""
	if refreshed {
		extra, narrow = "refresh-wide", "refresh-narrow"
	}
	if v, on := s.faults.take(narrow); on {
		scopes = slices.DeleteFunc(slices.Clone(scopes), func(id string) bool { return id == v })
	}
	if v, on := s.faults.take(extra); on && !slices.Contains(scopes, v) {
		scopes = append(slices.Clone(scopes), v)
	}
	return scopes
}

// spoilClaims changes what the token alone says.
func (s *Sandbox) spoilClaims(c *tokenClaims) {
	if v, on := s.faults.take("grant-aud"); on {
		c.Audience = v
	}
	if v, on := s.faults.take("grant-client-id"); on {
		c.ClientID = v
	}
	if v, on := s.faults.take("grant-iss"); on {
		c.Issuer = v
	}
	if _, on := s.faults.take("grant-scope"); on {
		scopes := strings.Fields(c.Scope)
		if len(scopes) > 1 {
			scopes = scopes[:len(scopes)-1]
		} else {
			scopes = append(scopes, strangeScope)
		}
		c.Scope = strings.Join(scopes, " ")
	}
}

// strangeScope is a scope that no brand has.
const strangeScope = "sandbox:not-asked-for"

// spoilSignature flips the last bit of a JWS's signature if the switch is on.
func (s *Sandbox) spoilSignature(name, compact string) string {
	if _, on := s.faults.take(name); !on {
		return compact
	}
	at := strings.LastIndexByte(compact, '.') + 1
	sig, _ := base64.RawURLEncoding.DecodeString(compact[at:]) // we made it
	sig[len(sig)-1] ^= 1
	return compact[:at] + base64.RawURLEncoding.EncodeToString(sig)
}

var errToldTo = errors.New("the sandbox was told to refuse it")

// refuseIdentity refuses a good PA-JWT by switch.
func (s *Sandbox) refuseIdentity(h http.Header) error {
	if _, on := s.faults.take("identity-401"); on {
		return errToldTo
	}
	if s.faults.on("replay-401") {
		token, _, _ := bearer(h, "Authorization") // it was good
		if s.faults.replayed(token) {
			if _, on := s.faults.take("replay-401"); on {
				return errToldTo
			}
		}
	}
	return nil
}
