// Package jwks reads and publishes JSON Web Key Sets and reads the compact JWS
// that their keys verify.
//
// Publishing side: [Marshal] and [NewDocument] render a set once, [Handler]
// serves it without work per request. Verifying side: [Parse] keeps the keys of
// somebody else's set that may be used, [Cache] fetches sets as verifiers should
// (agent rule MD-7), [ParseCompact] and [Token.Verify] read and check a
// signature (MD-6).
//
// Keys are P-256 for ES256 and RSA of 2048 to 4096 bits for RS256; nothing else
// is ever accepted. The package judges keys and signatures only: what the claims
// say is the caller's to check.
package jwks

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MaxKeys is how many keys a set may have; a larger one is refused (MD-7).
const MaxKeys = 16

// minRSABits is the smallest RSA modulus that may verify or be published (MD-7).
const minRSABits = 2048

// ErrInvalid: a document is not a key set, or a token is not a compact JWS that
// may be looked at further.
var ErrInvalid = errors.New("jwks: invalid")

// Key is a public key of a set.
type Key struct {
	ID        string // kid; empty if the set gives none
	Algorithm jose.SignatureAlgorithm
	Public    crypto.PublicKey // *ecdsa.PublicKey on P-256, or *rsa.PublicKey
}

// Set holds the usable keys of a key set, in its order.
type Set struct {
	Keys []Key
}

// Thumbprint returns the RFC 7638 SHA-256 thumbprint of a public key in
// unpadded base64url.
func Thumbprint(pub crypto.PublicKey) (string, error) {
	if _, err := algorithmOf(pub); err != nil {
		return "", err
	}
	sum, err := (&jose.JSONWebKey{Key: pub}).Thumbprint(crypto.SHA256)
	if err != nil {
		return "", fmt.Errorf("jwks: thumbprint: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// algorithmOf tells the one algorithm that a public key is for, or why it is for
// none.
func algorithmOf(pub crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		if k == nil || k.Curve != elliptic.P256() {
			return "", errors.New("jwks: EC key is not on P-256")
		}
		return jose.ES256, nil
	case *rsa.PublicKey:
		if k == nil || k.N == nil || k.N.BitLen() < minRSABits {
			return "", fmt.Errorf("jwks: RSA key has less than %d bits", minRSABits)
		}
		return jose.RS256, nil
	default:
		return "", fmt.Errorf("jwks: %T is neither an EC nor an RSA public key", pub)
	}
}

// Marshal renders a key set: the public members, kid, alg and use=sig, in the
// order given. A key without id, of another kind than its algorithm, or an empty
// set is an error: a set that verifies nothing is never meant.
func Marshal(keys []Key) ([]byte, error) {
	if len(keys) == 0 {
		return nil, errors.New("jwks: a key set needs at least one key")
	}
	if len(keys) > MaxKeys {
		return nil, fmt.Errorf("jwks: %d keys are more than the %d that verifiers read", len(keys), MaxKeys)
	}
	set := jose.JSONWebKeySet{Keys: make([]jose.JSONWebKey, len(keys))}
	for i, k := range keys {
		alg, err := algorithmOf(k.Public)
		if err != nil {
			return nil, fmt.Errorf("jwks: key %q: %w", k.ID, err)
		}
		if k.ID == "" {
			return nil, fmt.Errorf("jwks: key %d has no id", i)
		}
		if k.Algorithm != alg {
			return nil, fmt.Errorf("jwks: key %q is for %s, not for %q", k.ID, alg, k.Algorithm)
		}
		set.Keys[i] = jose.JSONWebKey{Key: k.Public, KeyID: k.ID, Algorithm: string(alg), Use: "sig"}
	}
	doc, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("jwks: %w", err)
	}
	return doc, nil
}

// Parse reads a key set (RFC 7517 section 5). By MD-7 it takes at most [MaxKeys]
// keys and leaves out those that must not be used: with private members, with a
// use that is present and not "sig", for another algorithm, on a curve other
// than P-256, with an RSA modulus under 2048 bits, or malformed. A document that
// is no key set, or that repeats a member, is an error wrapping [ErrInvalid]. A
// set whose keys are all left out is empty and not an error.
func Parse(doc []byte) (Set, error) {
	var raw struct {
		Keys []jsontext.Value `json:"keys"`
	}
	if err := json.Unmarshal(doc, &raw); err != nil {
		return Set{}, fmt.Errorf("%w key set: %w", ErrInvalid, err)
	}
	if raw.Keys == nil {
		return Set{}, fmt.Errorf("%w key set: no member keys", ErrInvalid)
	}
	if len(raw.Keys) > MaxKeys {
		return Set{}, fmt.Errorf("%w key set: %d keys, at most %d are read", ErrInvalid, len(raw.Keys), MaxKeys)
	}
	var set Set
	for _, r := range raw.Keys {
		if k, ok := parseKey(r); ok {
			set.Keys = append(set.Keys, k)
		}
	}
	return set, nil
}

// material is what makes a public key; everything else in a JWK (certificates,
// URLs) is not looked at.
type material struct {
	Type string `json:"kty"`
	Crv  string `json:"crv,omitempty"`
	X    string `json:"x,omitempty"`
	Y    string `json:"y,omitempty"`
	N    string `json:"n,omitempty"`
	E    string `json:"e,omitempty"`
}

func parseKey(raw jsontext.Value) (Key, bool) {
	var members map[string]jsontext.Value
	if json.Unmarshal(raw, &members) != nil {
		return Key{}, false
	}
	for _, private := range []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"} {
		if _, ok := members[private]; ok {
			return Key{}, false
		}
	}
	var head struct {
		Use       *string `json:"use"`
		KeyID     *string `json:"kid"`
		Algorithm *string `json:"alg"`
		material
	}
	for _, name := range []string{"use", "kid", "alg"} {
		if v, ok := members[name]; ok && v.Kind() != '"' {
			return Key{}, false
		}
	}
	if json.Unmarshal(raw, &head) != nil {
		return Key{}, false
	}
	if head.Use != nil && *head.Use != "sig" {
		return Key{}, false
	}
	public, err := json.Marshal(head.material)
	if err != nil {
		return Key{}, false
	}
	var k jose.JSONWebKey
	if k.UnmarshalJSON(public) != nil {
		return Key{}, false
	}
	alg, err := algorithmOf(k.Key)
	if err != nil || head.Algorithm != nil && *head.Algorithm != string(alg) {
		return Key{}, false
	}
	key := Key{Algorithm: alg, Public: k.Key}
	if head.KeyID != nil {
		key.ID = *head.KeyID
	}
	return key, true
}

// Find returns the key of that id and algorithm. Without kid it returns the one
// key for the algorithm, if there is exactly one (MD-7).
func (s Set) Find(kid string, alg jose.SignatureAlgorithm) (Key, bool) {
	var found Key
	n := 0
	for _, k := range s.Keys {
		if k.Algorithm != alg || kid != "" && k.ID != kid {
			continue
		}
		if kid != "" {
			return k, true
		}
		found = k
		n++
	}
	return found, n == 1
}
