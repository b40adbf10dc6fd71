package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/rotation"
)

// A key set is right if it is what the schedule says, and has the key that signs.
func TestKeySetRight(t *testing.T) {
	published := time.Now().Add(-time.Hour)
	key := func() (jwks.Key, rotation.Key) {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		kid, err := jwks.Thumbprint(&private.PublicKey)
		if err != nil {
			t.Fatal(err)
		}
		return jwks.Key{ID: kid, Algorithm: jose.ES256, Public: &private.PublicKey},
			rotation.Key{KID: kid, Algorithm: jose.ES256, Ref: kid, PublishAt: published, SignAt: published}
	}
	signs, signsAt := key()
	old, oldAt := key()
	gone, goneAt := key()
	revoked, revokedAt := key()
	stranger, _ := key()
	goneAt.RemoveAt, revokedAt.RevokedAt = time.Now().Add(-time.Minute), time.Now().Add(-time.Minute)
	schedule := rotation.Schedule{Keys: []rotation.Key{oldAt, signsAt, goneAt, revokedAt}}
	fresh := wanted{schedule: schedule, published: []rotation.Key{oldAt, signsAt}, signing: signs.ID, fresh: true}
	stale := fresh
	stale.signing, stale.fresh = "", false
	other := jwks.Key{ID: signs.ID, Algorithm: jose.ES256, Public: stranger.Public}
	asRSA := signs
	asRSA.Algorithm = jose.RS256

	for name, c := range map[string]struct {
		want wanted
		keys []jwks.Key
		ok   bool
	}{
		"as it should be":            {fresh, []jwks.Key{old, signs}, true},
		"another order":              {fresh, []jwks.Key{signs, old}, true},
		"one missing":                {fresh, []jwks.Key{signs}, false},
		"without the one that signs": {fresh, []jwks.Key{old}, false},
		"none":                       {fresh, nil, false},
		"another under its name":     {fresh, []jwks.Key{old, other}, false},
		"for another algorithm":      {fresh, []jwks.Key{old, asRSA}, false},
		"one that has left":          {fresh, []jwks.Key{old, signs, gone}, false},
		"one that was revoked":       {fresh, []jwks.Key{old, signs, revoked}, false},
		"one of somebody else's":     {fresh, []jwks.Key{old, signs, stranger}, false},
		"stale":                      {stale, []jwks.Key{old, signs}, true},
		"stale, one stays":           {stale, []jwks.Key{old, signs, gone}, true},
		"stale, one revoked":         {stale, []jwks.Key{old, signs, revoked}, false},
		"stale, one missing":         {stale, []jwks.Key{signs}, false},
	} {
		if got := c.want.allows(jwks.Set{Keys: c.keys}); got != c.ok {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// What is looked at is the very answer of this replica.
func TestKeySetIsAsServed(t *testing.T) {
	s := launch(t, testConfig(t))
	is := s.issuers[0]
	if right, served := s.keySetRight(t.Context(), is); !right || !served {
		t.Fatalf("right %v, served %v", right, served)
	}
	elsewhere := is
	elsewhere.url = "http://elsewhere.localhost" // no issuer has that host: 404
	if _, served := s.keySetRight(t.Context(), elsewhere); served {
		t.Error("a key set was served under another host")
	}
}
