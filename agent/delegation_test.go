package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/jwks"
)

var (
	delegationWant = agent.DelegationWant{
		Issuer: goodInterface + "/oauth", InterfaceURL: goodInterface, ClientID: "https://pa.example.com",
		Scope: "orders:cancel orders:read",
	}
	delegationClaims = map[string]any{
		"iss": goodInterface + "/oauth", "aud": goodInterface, "sub": "cust-1", "client_id": "https://pa.example.com",
		"scope": "orders:read orders:cancel", "grant_id": "g-1", "iat": 1795000000, "exp": 1795003600,
	}
)

// brokenKeys cannot say anything about any key.
type brokenKeys struct{ err error }

func (k brokenKeys) Key(context.Context, string, jose.SignatureAlgorithm) (jwks.Key, error) {
	return jwks.Key{}, k.err
}

// TestDelegationToken covers DA-11.
func TestDelegationToken(t *testing.T) {
	keys := agent.SetKeys(keySet())
	check := func(compact string, keys agent.KeyFinder) (agent.Delegation, error) {
		return agent.CheckDelegationToken(t.Context(), compact, delegationWant, keys, signNow)
	}
	for name, changes := range map[string]map[string]any{
		"as-is": nil, "scope-in-another-order": {"scope": "orders:cancel  orders:read orders:read"},
		"a-day-of-life": {"exp": 1795086400}, "extra-claims": {"x": 1, "jti": 7},
	} {
		for _, key := range []testKey{ecKey(), rsaKey()} {
			d, err := check(key.sign(t, map[string]any{"alg": key.alg, "kid": key.kid, "typ": "at+jwt"}, with(delegationClaims, changes)), keys)
			if err != nil || d.Subject != "cust-1" || d.GrantID != "g-1" || !slices.Equal(d.Scopes, []string{"orders:cancel", "orders:read"}) {
				t.Errorf("%s %s: %+v, %v", name, key.alg, d, err)
			}
		}
	}
	for name, changes := range map[string]map[string]any{
		"iss": {"iss": goodInterface}, "no-iss": {"iss": nil},
		"aud": {"aud": goodInterface + "/"}, "no-aud": {"aud": nil}, "aud-array": {"aud": []any{goodInterface}},
		"client": {"client_id": "https://other.example"}, "no-client": {"client_id": nil},
		"no-sub": {"sub": nil}, "empty-sub": {"sub": ""}, "no-grant": {"grant_id": nil}, "grant-a-number": {"grant_id": 1},
		"no-iat": {"iat": nil}, "no-exp": {"exp": nil}, "expired": {"exp": 1795000000, "iat": 1794990000},
		"exp-fractional": {"exp": json.RawMessage("1795003600.5")}, "from-the-future": {"iat": 1795000031},
		"fewer-scopes": {"scope": "orders:read"}, "more-scopes": {"scope": "orders:read orders:cancel x"},
		"no-scope": {"scope": nil}, "scope-array": {"scope": []any{"orders:read", "orders:cancel"}},
	} {
		_, err := check(ecKey().sign(t, nil, with(delegationClaims, changes)), keys)
		var e *agent.GrantRefusedError
		if !errors.As(err, &e) || !errors.Is(err, agent.ErrGrantRefused) || len(e.Problems) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}

	good := ecKey().sign(t, nil, delegationClaims)
	for name, compact := range map[string]string{
		"opaque": "at_12345", "empty": "", "one-bit": spoiled(good),
		"unknown-kid": ecKey().sign(t, map[string]any{"alg": "ES256", "kid": "x"}, delegationClaims),
		"other-alg":   ecKey().sign(t, map[string]any{"alg": "RS256", "kid": "ec"}, delegationClaims),
	} {
		if _, err := check(compact, keys); !errors.Is(err, agent.ErrGrantRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Keys that cannot be had are not the business's fault.
	for _, keys := range []agent.KeyFinder{nil, brokenKeys{jwks.ErrUnavailable}} {
		if _, err := check(good, keys); errors.Is(err, agent.ErrGrantRefused) || !errors.Is(err, jwks.ErrUnavailable) {
			t.Errorf("%v: %v", keys, err)
		}
	}
	if _, err := check(good, brokenKeys{context.Canceled}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
