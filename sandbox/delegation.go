package sandbox

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/jwks"
)

// asKey is the key of a brand's authorization server: it signs delegation tokens
// and receipts.
type asKey struct {
	id       string
	public   *ecdsa.PublicKey
	tokens   jose.Signer // typ at+jwt
	receipts jose.Signer // typ pact-receipt+jws
	document jwks.Document
}

const (
	typToken   = "at+jwt"
	typReceipt = "pact-receipt+jws"
)

// newASKey makes a key that nobody keeps.
func newASKey() (*asKey, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return asKeyOf(private)
}

func asKeyOf(private *ecdsa.PrivateKey) (_ *asKey, err error) {
	k := &asKey{public: &private.PublicKey}
	if k.id, err = jwks.Thumbprint(k.public); err != nil {
		return nil, err
	}
	signing := jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: private, KeyID: k.id}}
	for typ, signer := range map[jose.ContentType]*jose.Signer{typToken: &k.tokens, typReceipt: &k.receipts} {
		if *signer, err = jose.NewSigner(signing, (&jose.SignerOptions{}).WithType(typ)); err != nil {
			return nil, err
		}
	}
	k.document, err = jwks.NewDocument([]jwks.Key{{ID: k.id, Algorithm: jose.ES256, Public: k.public}})
	return k, err
}

func signJSON(signer jose.Signer, claims any) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	return signBytes(signer, payload)
}

func signBytes(signer jose.Signer, payload []byte) (string, error) {
	jws, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return jws.CompactSerialize()
}

// tokenClaims are the claims of a delegation token.
type tokenClaims struct {
	ClientID string `json:"client_id"` // the personal agent's issuer
	Scope    string `json:"scope"`
	GrantID  string `json:"grant_id,omitempty"`
	Issuer   string `json:"iss"`
	Audience string `json:"aud"`
	Subject  string `json:"sub"` // the user's id at the brand
	IssuedAt int64  `json:"iat"`
	Expires  int64  `json:"exp"`
}

// tokenClaims are those of a delegation token under a grant, good for ttl but
// never longer than the grant.
func (b *business) tokenClaims(g grant, scopes []string, now time.Time, ttl time.Duration) tokenClaims {
	return tokenClaims{
		ClientID: g.party.issuer, Scope: strings.Join(scopes, " "), GrantID: g.id,
		Issuer: b.asIssuer(), Audience: b.interfaceURL, Subject: g.user,
		IssuedAt: now.Unix(), Expires: min(now.Add(ttl).Unix(), g.expires.Unix()),
	}
}

// delegated is the user on whose behalf a turn runs, as their token says; zero
// without one.
type delegated struct {
	id      string
	grantID string
	scopes  []string
	expires time.Time // of the token; zero: not looked at again
}

// errEnded refuses a turn whose grant was revoked or whose token expired while it
// waited.
var errEnded = errors.New("the grant or its token has ended")

// delegation verifies the delegation token of a request, if it has one.
func (s *Sandbox) delegation(ctx context.Context, h http.Header, b *business, who caller) (delegated, error) {
	compact, present, err := bearer(h, "X-A2A-User-Delegation")
	if !present {
		return delegated{}, nil
	}
	if err != nil {
		return delegated{}, err
	}
	if !b.delegated() {
		return delegated{}, errors.New("this brand gives no delegation tokens")
	}
	payload, err := b.opened(compact)
	if err != nil && s.faults.hit(ctx, "lax-delegation") {
		payload, err = unverifiedPayload(compact)
	}
	if err != nil {
		return delegated{}, err
	}
	var c tokenClaims
	if err := unmarshalClaims(payload, &c); err != nil {
		return delegated{}, err
	}
	now := s.now()
	g, ok, err := s.store.grant(ctx, c.GrantID, now)
	if err != nil {
		return delegated{}, err
	}
	user := delegated{c.Subject, g.id, strings.Fields(c.Scope), time.Unix(c.Expires, 0)}
	expired := !now.Before(user.expires)
	switch {
	case c.Issuer != b.asIssuer() || c.Audience != b.interfaceURL:
		return delegated{}, errors.New("the token is for another brand")
	case !ok:
		return delegated{}, errors.New("the grant has ended")
	case (c.ClientID != who.issuer || g.party != party{b.ID, who}) && !who.nobody() && !s.faults.hit(ctx, "lax-delegation-party"):
		return delegated{}, errors.New("the token is another caller's")
	case expired && !s.faults.hit(ctx, "lax-delegation-expired"):
		return delegated{}, errors.New("the token has expired")
	case g.user != c.Subject || !containsAll(g.scopes, user.scopes) && !s.faults.on(ctx, "grant-scope"):
		return delegated{}, errors.New("the grant is another user's, or gives less")
	}
	if expired { // the fault let it pass, for the whole turn
		user.expires = time.Time{}
	}
	return user, nil
}

// opened verifies that the brand signed a delegation token, and returns its claims.
func (b *business) opened(compact string) ([]byte, error) {
	token, err := jwks.ParseCompact(compact, jose.ES256)
	if err != nil {
		return nil, err
	}
	key := b.key
	if spare := b.spare.Load(); spare != nil && token.KeyID == spare.id {
		key = spare
	}
	if token.KeyID != key.id || !strings.EqualFold(token.Type, typToken) {
		return nil, errors.New("kid or typ is not that of our delegation tokens")
	}
	return token.Verify(key.public)
}

// receipt is the brand's signed statement about a delegated turn: claims are the
// signed bytes.
type receipt struct {
	JWS    string         `json:"jws"`
	Claims jsontext.Value `json:"claims,omitempty"`
}

type receiptClaims struct {
	GrantID    string   `json:"grantId"`
	User       string   `json:"user"`
	PA         string   `json:"pa"`
	Brand      string   `json:"brand"`
	ScopesUsed []string `json:"scopesUsed"`
	Actions    []Action `json:"actions"`
	Time       string   `json:"ts,omitempty"`
}

func receiptTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

func (b *business) receiptClaims(who caller, user delegated, reply Reply, now time.Time) receiptClaims {
	return receiptClaims{
		GrantID: user.grantID, User: user.id, PA: who.issuer, Brand: b.interfaceURL,
		ScopesUsed: reply.Used, Actions: reply.Actions,
		Time: receiptTime(now),
	}
}
