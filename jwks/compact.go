package jwks

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ErrSignature: the signature is not one by that key.
var ErrSignature = errors.New("jwks: signature does not verify")

// Token is a compact JWS whose form is right and whose signature is not yet
// checked. It prints as "[redacted]": a token is a secret.
type Token struct {
	Algorithm jose.SignatureAlgorithm
	KeyID     string // kid; empty if HasKeyID is false
	HasKeyID  bool
	Type      string // typ, as written; empty if HasType is false
	HasType   bool

	signed    string // what the signature is over: the first two parts as received
	payload   []byte
	signature []byte
}

// ParseCompact reads a compact JWS (RFC 7515 section 7.1) by MD-6: exactly three
// non-empty parts of unpadded, canonical base64url; a JSON object without
// repeated members as header; alg one of algs; crit refused; kid and typ strings
// if present. jwk, jku, x5c and x5u are never looked at, and without crit b64
// means nothing. Without algs nothing is accepted. Errors wrap [ErrInvalid] and
// hold no part of the token.
func ParseCompact(compact string, algs ...jose.SignatureAlgorithm) (*Token, error) {
	if strings.Count(compact, ".") != 2 {
		return nil, fmt.Errorf("%w token: not three parts", ErrInvalid)
	}
	end := strings.LastIndexByte(compact, '.')
	first, second, _ := strings.Cut(compact[:end], ".")
	header, err := decodePart("header", first)
	if err != nil {
		return nil, err
	}
	t := &Token{signed: compact[:end]}
	if t.payload, err = decodePart("payload", second); err != nil {
		return nil, err
	}
	if t.signature, err = decodePart("signature", compact[end+1:]); err != nil {
		return nil, err
	}
	if err := t.readHeader(header, algs); err != nil {
		return nil, err
	}
	return t, nil
}

// strictBase64 refuses padding and stray bits in the last character.
var strictBase64 = base64.RawURLEncoding.Strict()

func decodePart(name, part string) ([]byte, error) {
	// The decoder skips line breaks; a token has none.
	if part == "" || strings.ContainsAny(part, "\r\n") {
		return nil, fmt.Errorf("%w token: %s is empty or holds a line break", ErrInvalid, name)
	}
	b, err := strictBase64.DecodeString(part)
	if err != nil {
		return nil, fmt.Errorf("%w token: %s is not unpadded base64url", ErrInvalid, name)
	}
	return b, nil
}

func (t *Token) readHeader(header []byte, algs []jose.SignatureAlgorithm) error {
	var h struct {
		Algorithm jsontext.Value `json:"alg"`
		KeyID     jsontext.Value `json:"kid"`
		Type      jsontext.Value `json:"typ"`
		Critical  jsontext.Value `json:"crit"`
	}
	// The decoder's own error would quote the header.
	if jsontext.Value(header).Kind() != '{' || json.Unmarshal(header, &h) != nil {
		return fmt.Errorf("%w token: header is not a JSON object without repeated members", ErrInvalid)
	}
	if h.Critical != nil {
		return fmt.Errorf("%w token: header has crit, and no extension is understood", ErrInvalid)
	}
	alg, ok := stringMember(h.Algorithm)
	if !ok || !slices.Contains(algs, jose.SignatureAlgorithm(alg)) {
		return fmt.Errorf("%w token: alg is not one of %v", ErrInvalid, algs)
	}
	t.Algorithm = jose.SignatureAlgorithm(alg)
	if h.KeyID != nil {
		if t.KeyID, t.HasKeyID = stringMember(h.KeyID); !t.HasKeyID {
			return fmt.Errorf("%w token: kid is not a string", ErrInvalid)
		}
	}
	if h.Type != nil {
		if t.Type, t.HasType = stringMember(h.Type); !t.HasType {
			return fmt.Errorf("%w token: typ is not a string", ErrInvalid)
		}
	}
	return nil
}

func stringMember(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	b, err := jsontext.AppendUnquote(nil, v)
	return string(b), err == nil
}

// Unverified returns the payload with the signature not checked. It may choose a
// key by it and decide nothing else.
func (t *Token) Unverified() []byte { return t.payload }

// Verify checks the signature under a key that the caller trusts and returns the
// payload. The key must be of the algorithm's kind (P-256, or RSA of at least
// 2048 bits). Errors wrap [ErrSignature].
//
// The signature is checked over the bytes as they came, which go-jose would
// encode anew and, for a b64 header, otherwise.
func (t *Token) Verify(pub crypto.PublicKey) ([]byte, error) {
	alg, err := algorithmOf(pub)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	if alg != t.Algorithm {
		return nil, fmt.Errorf("%w: token says %s, key is for %s", ErrSignature, t.Algorithm, alg)
	}
	digest := sha256.Sum256([]byte(t.signed))
	good := false
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		// RFC 7518 section 3.4: R || S, 32 bytes each.
		if len(t.signature) == 64 {
			r, s := new(big.Int).SetBytes(t.signature[:32]), new(big.Int).SetBytes(t.signature[32:])
			good = ecdsa.Verify(k, digest[:], r, s)
		}
	case *rsa.PublicKey:
		good = rsa.VerifyPKCS1v15(k, crypto.SHA256, digest[:], t.signature) == nil
	}
	if !good {
		return nil, ErrSignature
	}
	return t.payload, nil
}

const redacted = "[redacted]"

// String hides the token.
func (t *Token) String() string { return redacted }

// GoString hides the token.
func (t *Token) GoString() string { return redacted }

// Format hides the token for every verb.
func (t *Token) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText hides the token from JSON and structured logs.
func (t *Token) MarshalText() ([]byte, error) { return []byte(redacted), nil }
