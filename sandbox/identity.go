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

// nobody tells whether it is one whom a fault let in without a PA-JWT.
func (c caller) nobody() bool { return c == caller{} }

// identities verifies JWTs by personal agents' issuers.
type identities struct {
	now    func() time.Time
	leeway time.Duration
	keys   *jwks.Cache
	// issuers says which may call.
	issuers *Issuers
	// registered returns the JWKS of a registered issuer, "" of another.
	registered func(ctx context.Context, issuer string) (jwksURI string, err error)
	// lax tells whether a fault is on that lets a caller pass.
	lax func(ctx context.Context, fault string) bool
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
	compact, present, err := bearer(h, "Authorization")
	if err != nil && present && v.lax(ctx, "lax-scheme") {
		_, compact, _ = strings.Cut(h.Get("Authorization"), " ")
		err = nil
	}
	if err != nil {
		return caller{}, err
	}
	token, claims, err := v.read(ctx, compact, audience, jose.ES256, jose.RS256)
	if err != nil {
		return caller{}, err
	}
	if token != nil && token.Algorithm == jose.RS256 && v.lax(ctx, "no-rs256") {
		return caller{}, errToldTo
	}
	registered, err := v.registered(ctx, claims.Issuer)
	if err != nil {
		return caller{}, err
	}
	url, err := v.issuers.keys(claims.Issuer, registered)
	if err != nil {
		if v.lax(ctx, "lax-issuer") {
			return caller{claims.Issuer, claims.Subject}, nil
		}
		return caller{}, err
	}
	if err := v.verify(ctx, token, url); err != nil {
		return caller{}, err
	}
	return caller{claims.Issuer, claims.Subject}, nil
}

// read checks everything about a JWT but its signature and whether its issuer is
// known. The token is nil without an error if a fault lets it pass whatever its
// signature is.
func (v *identities) read(ctx context.Context, compact, audience string, algs ...jose.SignatureAlgorithm) (*jwks.Token, issuerClaims, error) {
	var c issuerClaims
	unsigned := false
	token, err := jwks.ParseCompact(compact, algs...)
	if err != nil {
		odd, oddErr := parseOddAlgorithm(compact)
		if oddErr != nil || !v.lax(ctx, "lax-algorithm") {
			return nil, c, err
		}
		token, err, unsigned = odd, nil, true
	}
	if token.KeyID == "" {
		if !v.lax(ctx, "lax-kid") {
			return nil, c, errors.New("kid is missing")
		}
		unsigned = true
	}
	if token.HasType && !strings.EqualFold(token.Type, "JWT") && !v.lax(ctx, "lax-type") {
		return nil, c, errors.New("typ is not JWT")
	}
	now := v.now()
	if err := unmarshalClaims(token.Unverified(), &c); err != nil || c.IssuedAt == 0 {
		issued, ok := issuedNow(token.Unverified(), now)
		switch {
		case ok && v.lax(ctx, "lax-iat"):
			c = issued
		case err != nil:
			return nil, c, err
		}
	}
	switch issued, expires := time.Unix(c.IssuedAt, 0), time.Unix(c.Expires, 0); {
	case c.Issuer == "":
		err = errors.New("iss is missing")
	case (c.Subject == "" || len([]rune(c.Subject)) > maxSubject) && !v.lax(ctx, "lax-subject"):
		err = fmt.Errorf("sub is not 1 to %d characters", maxSubject)
	case c.Audience != audience && !v.lax(ctx, "lax-audience") &&
		!((strings.HasPrefix(c.Audience, audience) || c.Audience != "" && strings.HasPrefix(audience, c.Audience)) && v.lax(ctx, "lax-audience-prefix")):
		err = errors.New("aud is not the audience of this Provider")
	case c.ID == "":
		err = errors.New("jti is missing")
	case !expires.After(issued) || expires.Sub(issued) > maxTokenLife && !v.lax(ctx, "lax-lifetime"):
		err = fmt.Errorf("exp - iat is not within 1 s and %v", maxTokenLife)
	case issued.After(now.Add(v.leeway)) && !v.lax(ctx, "lax-future"):
		err = errors.New("iat is in the future")
	case !now.Before(expires.Add(v.leeway)) && !v.lax(ctx, "lax-expired"):
		err = errors.New("exp has passed")
	}
	if unsigned {
		token = nil
	}
	return token, c, err
}

// verify checks the signature of what read returned.
func (v *identities) verify(ctx context.Context, token *jwks.Token, url string) error {
	if token == nil {
		return nil
	}
	key, err := v.keys.Key(ctx, url, token.KeyID, token.Algorithm)
	if errors.Is(err, jwks.ErrUnknownKey) && v.lax(ctx, "lax-kid") {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err = token.Verify(key.Public); err != nil && v.lax(ctx, "lax-signature") {
		return nil
	}
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
