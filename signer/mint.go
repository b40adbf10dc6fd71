package signer

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/rotation"
)

// verifyEvery: once a signature of a key has verified, one in this many of its
// others is verified before it leaves.
const verifyEvery = 100

// mintingKey is what minting keeps of the key that signs.
type mintingKey struct {
	key    rotation.Key
	public crypto.PublicKey
	header string // the first part of its tokens, and the dot
	signed atomic.Uint64
	proven atomic.Bool // a signature of it has verified
}

// minted is what may be said of a token.
type minted struct {
	kid, jti string
	expires  time.Time
}

var errBadSignature = errors.New("custody returned a signature that does not verify")

// mint makes a PA-JWT (protocol.md) for a subject and an audience.
func (s *Service) mint(ctx context.Context, i *issuer, subject, audience string) (string, minted, error) {
	k, err := s.mintingKey(ctx, i)
	if err != nil {
		return "", minted{}, err
	}
	var random [16]byte
	rand.Read(random[:])
	now := s.cfg.Now()
	iat := now.Unix()
	exp := iat + int64(i.TokenTTL/time.Second)
	m := minted{kid: k.key.KID, jti: base64.RawURLEncoding.EncodeToString(random[:]), expires: time.Unix(exp, 0)}

	claims := make([]byte, 0, 256+len(i.URL)+len(subject)+len(audience))
	for _, c := range [][2]string{{`{"iss":`, i.URL}, {`,"sub":`, subject}, {`,"aud":`, audience}, {`,"jti":`, m.jti}} {
		claims = append(claims, c[0]...)
		if claims, err = jsontext.AppendQuote(claims, c[1]); err != nil {
			return "", minted{}, fmt.Errorf("write the claims: %w", err)
		}
	}
	claims = append(claims, `,"iat":`...)
	claims = strconv.AppendInt(claims, iat, 10)
	claims = append(claims, `,"exp":`...)
	claims = strconv.AppendInt(claims, exp, 10)
	claims = append(claims, '}')

	token := make([]byte, 0, len(k.header)+base64.RawURLEncoding.EncodedLen(len(claims))+1+344) // RS256: 256 bytes
	token = append(token, k.header...)
	token = base64.RawURLEncoding.AppendEncode(token, claims)
	digest := sha256.Sum256(token)
	signature, err := s.cfg.Keyring.Sign(ctx, k.key.Ref, digest[:])
	if err != nil {
		return "", minted{}, fmt.Errorf("sign with key %s: %w", k.key.KID, err)
	}
	if err := ctx.Err(); err != nil { // the schedule counts on the deadline
		return "", minted{}, fmt.Errorf("sign with key %s: %w", k.key.KID, err)
	}
	token = append(token, '.')
	token = base64.RawURLEncoding.AppendEncode(token, signature)
	if n := k.signed.Add(1); n%verifyEvery == 0 || !k.proven.Load() {
		t, err := jwks.ParseCompact(string(token), k.key.Algorithm)
		if err == nil {
			_, err = t.Verify(k.public)
		}
		k.proven.Store(err == nil)
		if err != nil {
			return "", minted{}, fmt.Errorf("key %s: %w: %w", k.key.KID, errBadSignature, err)
		}
	}
	return string(token), m, nil
}

// mintingKey returns the key that signs now.
func (s *Service) mintingKey(ctx context.Context, i *issuer) (*mintingKey, error) {
	key, err := i.Keys.Signing()
	if err != nil {
		return nil, err
	}
	if k := i.minting.Load(); k != nil && k.key.KID == key.KID {
		return k, nil
	}
	public, algorithm, err := s.cfg.Keyring.Public(ctx, key.Ref)
	if err != nil {
		return nil, fmt.Errorf("public half of key %s: %w", key.KID, err)
	}
	if kid, err := jwks.Thumbprint(public); err != nil || kid != key.KID || algorithm != key.Algorithm {
		return nil, fmt.Errorf("key %s: custody holds another key under its name", key.KID)
	}
	header := fmt.Sprintf(`{"alg":%q,"kid":%q,"typ":"JWT"}`, string(key.Algorithm), key.KID)
	k := &mintingKey{key: key, public: public, header: base64.RawURLEncoding.EncodeToString([]byte(header)) + "."}
	i.minting.Store(k)
	return k, nil
}
