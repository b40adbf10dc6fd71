package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/jwks"
)

const (
	maxTokenLife = 300 * time.Second // exp - iat of a PA-JWT and of a registration JWT
	maxSubject   = 256               // characters
	maxBearer    = 16 << 10          // bytes
)

// caller is who a PA-JWT speaks for: a user of an issuer.
type caller struct{ issuer, subject string }

// identities verifies JWTs by personal agents' issuers.
type identities struct {
	now    func() time.Time
	leeway time.Duration
	keys   *jwks.Cache
	// allowed tells whether an issuer that is not registered may call; its keys
	// are at the well-known place.
	allowed func(issuer string) bool
	// registered returns the JWKS of a registered issuer.
	registered func(issuer string) (jwksURI string, ok bool)
}

// issuerClaims are the claims of a JWT by an issuer. Times are whole seconds.
type issuerClaims struct {
	Issuer   string `json:"iss"`
	Subject  string `json:"sub"`
	Audience string `json:"aud"` // one string: an array does not decode
	IssuedAt int64  `json:"iat"`
	Expires  int64  `json:"exp"`
	ID       string `json:"jti"`
}

// caller verifies the PA-JWT of a request. The error says why not, for the log;
// the caller of the Provider is never told.
func (v *identities) caller(ctx context.Context, h http.Header, audience string) (caller, error) {
	compact, _, err := bearer(h, "Authorization")
	if err != nil {
		return caller{}, err
	}
	token, claims, err := v.read(compact, audience, jose.ES256, jose.RS256)
	if err != nil {
		return caller{}, err
	}
	url, ok := v.registered(claims.Issuer)
	if !ok {
		if !v.allowed(claims.Issuer) {
			return caller{}, errors.New("iss may not call here")
		}
		url = claims.Issuer + jwks.WellKnownPath
	}
	if err := v.verify(ctx, token, url); err != nil {
		return caller{}, err
	}
	return caller{claims.Issuer, claims.Subject}, nil
}

// read checks everything about a JWT but its signature and whether its issuer is
// known.
func (v *identities) read(compact, audience string, algs ...jose.SignatureAlgorithm) (*jwks.Token, issuerClaims, error) {
	var c issuerClaims
	token, err := jwks.ParseCompact(compact, algs...)
	if err != nil {
		return nil, c, err
	}
	if token.KeyID == "" {
		return nil, c, errors.New("kid is missing")
	}
	if token.HasType && !strings.EqualFold(token.Type, "JWT") {
		return nil, c, errors.New("typ is not JWT")
	}
	if err := unmarshalClaims(token.Unverified(), &c); err != nil {
		return nil, c, err
	}
	now := v.now()
	switch issued, expires := time.Unix(c.IssuedAt, 0), time.Unix(c.Expires, 0); {
	case c.Issuer == "":
		err = errors.New("iss is missing")
	case c.Subject == "" || len([]rune(c.Subject)) > maxSubject:
		err = fmt.Errorf("sub is not 1 to %d characters", maxSubject)
	case c.Audience != audience:
		err = errors.New("aud is not the audience of this Provider")
	case c.ID == "":
		err = errors.New("jti is missing")
	case !expires.After(issued) || expires.Sub(issued) > maxTokenLife:
		err = fmt.Errorf("exp - iat is not within 1 s and %v", maxTokenLife)
	case issued.After(now.Add(v.leeway)):
		err = errors.New("iat is in the future")
	case !now.Before(expires.Add(v.leeway)):
		err = errors.New("exp has passed")
	}
	return token, c, err
}

func (v *identities) verify(ctx context.Context, token *jwks.Token, url string) error {
	key, err := v.keys.Key(ctx, url, token.KeyID, token.Algorithm)
	if err != nil {
		return err
	}
	_, err = token.Verify(key.Public)
	return err
}

// unmarshalClaims decodes a JWT's payload: a JSON object, no member twice. The
// error quotes nothing of it.
func unmarshalClaims(payload []byte, into any) error {
	if jsontext.Value(payload).Kind() != '{' || json.Unmarshal(payload, into) != nil {
		return errors.New("claims are not a JSON object with members of the right types")
	}
	return nil
}

// bearer returns the one bearer token of a header. Without the header, present
// is false.
func bearer(h http.Header, name string) (token string, present bool, err error) {
	values := h.Values(name)
	if len(values) == 0 {
		return "", false, fmt.Errorf("%s is missing", name)
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if len(values) != 1 || !ok || !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxBearer {
		return "", true, fmt.Errorf("%s is not one bearer token", name)
	}
	return token, true, nil
}
