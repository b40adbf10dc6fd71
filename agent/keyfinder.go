package agent

import (
	"context"
	"fmt"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/jwks"
)

// KeyFinder finds the key that a signature names. Its errors wrap
// jwks.ErrUnknownKey (no such key, after the refetch that was permitted),
// jwks.ErrUnavailable or the context's.
type KeyFinder interface {
	Key(ctx context.Context, kid string, alg jose.SignatureAlgorithm) (jwks.Key, error)
}

// CacheKeys finds keys in the set at url, through a shared cache (MD-7).
func CacheKeys(cache *jwks.Cache, url string) KeyFinder { return cacheKeys{cache, url} }

type cacheKeys struct {
	cache *jwks.Cache
	url   string
}

func (k cacheKeys) Key(ctx context.Context, kid string, alg jose.SignatureAlgorithm) (jwks.Key, error) {
	return k.cache.Key(ctx, k.url, kid, alg)
}

// SetKeys finds keys in a set at hand, to verify offline.
func SetKeys(set jwks.Set) KeyFinder { return setKeys(set) }

type setKeys jwks.Set

func (k setKeys) Key(_ context.Context, kid string, alg jose.SignatureAlgorithm) (jwks.Key, error) {
	key, ok := jwks.Set(k).Find(kid, alg)
	if !ok {
		return jwks.Key{}, fmt.Errorf("%w: kid %q, %s", jwks.ErrUnknownKey, kid, alg)
	}
	return key, nil
}

// tokenAlgorithms are the only ones that PACT signs with (MD-6, SG-6).
var tokenAlgorithms = []jose.SignatureAlgorithm{jose.ES256, jose.RS256}
