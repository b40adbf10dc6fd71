package custody

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"fmt"

	"github.com/go-jose/go-jose/v4"
)

// RSABits is the size of the RSA keys that we make.
const RSABits = 2048

// GenerateKey makes a private key for alg, for keyrings that hold keys in this
// process. It wraps [ErrInvalid] unless alg is ES256 or RS256.
func GenerateKey(alg jose.SignatureAlgorithm) (crypto.Signer, error) {
	switch alg {
	case jose.ES256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case jose.RS256:
		return rsa.GenerateKey(rand.Reader, RSABits)
	default:
		return nil, fmt.Errorf("%w: algorithm %q is neither ES256 nor RS256", ErrInvalid, alg)
	}
}

// SignDigest signs a SHA-256 digest with a private key in this process, in the
// form of [Keyring.Sign].
func SignDigest(key crypto.Signer, digest []byte) ([]byte, error) {
	if len(digest) != sha256.Size {
		return nil, fmt.Errorf("%w: a digest has %d bytes, not %d", ErrInvalid, sha256.Size, len(digest))
	}
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, key, digest)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		// RFC 7518 section 3.4: both numbers in 32 bytes.
		signature := make([]byte, 64)
		r.FillBytes(signature[:32])
		s.FillBytes(signature[32:])
		return signature, nil
	case *rsa.PrivateKey:
		signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return signature, nil
	default:
		return nil, fmt.Errorf("%w: no signing with a %T", ErrInvalid, key)
	}
}
