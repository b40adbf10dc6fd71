package signer

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/jwks"
)

// What a device assertion may be (protocol.md, Signer contract).
const (
	assertionType    = "pact-device+jwt"
	assertionLife    = 60 * time.Second
	assertionSkew    = 30 * time.Second
	maxJTI           = 256
	thumbprintLength = 43 // base64url of 32 bytes
)

// errAssertion is wrapped by everything that is wrong with an assertion. The
// caller is told none of it.
var errAssertion = errors.New("assertion")

// assertion is a device assertion whose form is right and whose signature is not
// yet checked.
type assertion struct {
	token      *jwks.Token
	thumbprint string // kid and iss
	audience   string
	jti        string
	issued     time.Time
	expires    time.Time
}

// parseAssertion reads the form of an assertion: what no key is needed for.
func parseAssertion(compact string) (*assertion, error) {
	t, err := jwks.ParseCompact(compact, jose.ES256)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errAssertion, err)
	}
	if !t.HasType || !strings.EqualFold(t.Type, assertionType) {
		return nil, fmt.Errorf("%w: typ is not %s", errAssertion, assertionType)
	}
	var c struct {
		Issuer   *string        `json:"iss"`
		Audience *string        `json:"aud"`
		Issued   jsontext.Value `json:"iat"`
		Expires  jsontext.Value `json:"exp"`
		JTI      *string        `json:"jti"`
	}
	// json's own errors would quote the claims.
	if payload := t.Unverified(); jsontext.Value(payload).Kind() != '{' || json.Unmarshal(payload, &c) != nil {
		return nil, fmt.Errorf("%w: its claims are not a JSON object with single strings for iss, aud and jti", errAssertion)
	}
	iat, iatOK := seconds(c.Issued)
	exp, expOK := seconds(c.Expires)
	switch {
	case c.Issuer == nil || c.Audience == nil || c.JTI == nil:
		return nil, fmt.Errorf("%w: iss, aud or jti is missing", errAssertion)
	case !t.HasKeyID || t.KeyID != *c.Issuer || len(t.KeyID) != thumbprintLength:
		return nil, fmt.Errorf("%w: kid and iss are not one thumbprint", errAssertion)
	case *c.JTI == "" || len(*c.JTI) > maxJTI:
		return nil, fmt.Errorf("%w: jti has not 1 to %d bytes", errAssertion, maxJTI)
	case !iatOK || !expOK:
		return nil, fmt.Errorf("%w: iat or exp is not in whole seconds", errAssertion)
	}
	return &assertion{
		token: t, thumbprint: t.KeyID, audience: *c.Audience, jti: *c.JTI,
		issued: time.Unix(iat, 0), expires: time.Unix(exp, 0),
	}, nil
}

// seconds reads an integer of seconds since 1970 that time arithmetic can bear.
func seconds(v jsontext.Value) (int64, bool) {
	if v.Kind() != '0' {
		return 0, false
	}
	var n int64
	if json.Unmarshal(v, &n) != nil || n < 0 || n > 1<<40 {
		return 0, false
	}
	return n, true
}

// verify checks everything else, for one of the URLs of an operation and at a
// time. Whether the jti is new is the store's to say.
func (a *assertion) verify(endpoints []string, key *ecdsa.PublicKey, now time.Time) error {
	switch life := a.expires.Sub(a.issued); {
	case !slices.Contains(endpoints, a.audience):
		return fmt.Errorf("%w: aud is not the URL of this operation", errAssertion)
	case life <= 0 || life > assertionLife:
		return fmt.Errorf("%w: it lives %v", errAssertion, life)
	case a.issued.After(now.Add(assertionSkew)):
		return fmt.Errorf("%w: it was issued in the future", errAssertion)
	case !now.Before(a.expires.Add(assertionSkew)):
		return fmt.Errorf("%w: it has expired", errAssertion)
	}
	if _, err := a.token.Verify(key); err != nil {
		return fmt.Errorf("%w: %w", errAssertion, err)
	}
	return nil
}

// jtiHash is what is stored of the jti.
func (a *assertion) jtiHash() Hash { return sha256.Sum256([]byte(a.jti)) }
