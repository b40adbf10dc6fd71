package signer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/pactsigner/pactsigner/jwks"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

var strictBase64 = base64.RawURLEncoding.Strict()

// pointOf reads a device's public key (RFC 7517, RFC 7518 section 6.2.1) and
// returns its point, X || Y. Errors say which member is wrong.
func pointOf(k *signerv1.PublicJwk) ([]byte, *ecdsa.PublicKey, error) {
	switch {
	case k == nil:
		return nil, nil, errors.New("publicJwk: is missing")
	case k.Kty != "EC":
		return nil, nil, errors.New("publicJwk.kty: must be EC")
	case k.Crv != "P-256":
		return nil, nil, errors.New("publicJwk.crv: must be P-256")
	case k.Alg != nil && *k.Alg != "ES256":
		return nil, nil, errors.New("publicJwk.alg: must be ES256 if present")
	case k.Use != nil && *k.Use != "sig":
		return nil, nil, errors.New("publicJwk.use: must be sig if present")
	}
	point := make([]byte, 0, 64)
	for _, c := range []struct{ name, value string }{{"x", k.X}, {"y", k.Y}} {
		b, err := strictBase64.DecodeString(c.value)
		if err != nil || len(b) != 32 || len(c.value) != thumbprintLength {
			return nil, nil, fmt.Errorf("publicJwk.%s: must be 32 bytes in unpadded base64url", c.name)
		}
		point = append(point, b...)
	}
	pub, err := publicKey(point)
	if err != nil {
		return nil, nil, fmt.Errorf("publicJwk: %w", err)
	}
	thumbprint, err := jwks.Thumbprint(pub)
	if err != nil {
		return nil, nil, fmt.Errorf("publicJwk: %w", err)
	}
	if k.Kid != thumbprint {
		return nil, nil, errors.New("publicJwk.kid: must be the key's RFC 7638 SHA-256 thumbprint")
	}
	return point, pub, nil
}

// publicKey makes a key of a point, X || Y, that is on the curve.
func publicKey(point []byte) (*ecdsa.PublicKey, error) {
	pub, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append([]byte{4}, point...))
	if err != nil {
		return nil, errors.New("the point is not on P-256")
	}
	return pub, nil
}
