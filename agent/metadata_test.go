package agent_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
)

func TestMetadataVectors(t *testing.T) {
	type file struct {
		Development bool
		Given       struct {
			Card        json.RawMessage
			Development bool
		}
		Cases []struct {
			Name        string
			Metadata    json.RawMessage
			Development bool
			Want        string
		}
	}
	vectors(t, "metadata.json", func(t *testing.T, f file) {
		atLeastOne(t, len(f.Cases))
		for _, c := range f.Cases {
			t.Run(c.Name, func(t *testing.T) {
				rules := agent.URLRules{Development: f.Development || f.Given.Development || c.Development}
				card := agent.ParseCard(f.Given.Card, rules)
				if !card.Support {
					t.Fatal(card.Problems)
				}
				got := "ok"
				if _, err := agent.CheckMetadata(c.Metadata, card, rules); errors.Is(err, agent.ErrMetadataInvalid) {
					got = "metadata_invalid"
				} else if err != nil {
					t.Fatalf("untyped error %v", err)
				}
				if got != c.Want {
					t.Errorf("got %s, want %s", got, c.Want)
				}
			})
		}
	})
}

func goodMetadata() map[string]any {
	return map[string]any{
		"issuer": goodInterface + "/oauth", "jwks_uri": goodInterface + "/oauth/jwks.json",
		"device_authorization_endpoint": goodInterface + "/oauth/device", "token_endpoint": goodInterface + "/oauth/token",
		"scopes_supported": []any{"orders:read"}, "grant_types_supported": []any{"refresh_token"},
	}
}

// TestMetadata covers MD-2..MD-4 beyond the vectors.
func TestMetadata(t *testing.T) {
	card := parse(t, goodCard(), agent.URLRules{})
	for _, c := range []struct {
		name     string
		change   func(md map[string]any)
		problems int
	}{
		{"as-is", func(map[string]any) {}, 0},
		{"no-lists", func(md map[string]any) { delete(md, "scopes_supported"); delete(md, "grant_types_supported") }, 0},
		{"device-endpoint-missing", func(md map[string]any) { delete(md, "device_authorization_endpoint") }, 1},
		{"token-endpoint-in-another-case", func(md map[string]any) {
			md["token_endpoint"] = strings.ToUpper(goodInterface) + "/oauth/token"
		}, 1},
		{"issuer-missing", func(md map[string]any) { delete(md, "issuer") }, 1},
		{"issuer-a-number", func(md map[string]any) { md["issuer"] = 1 }, 1},
		{"issuer-with-fragment", func(md map[string]any) { md["issuer"] = goodInterface + "#x" }, 1},
		{"jwks-null", func(md map[string]any) { md["jwks_uri"] = nil }, 1},
		{"scopes-a-string", func(md map[string]any) { md["scopes_supported"] = "orders:read" }, 1},
		{"everything-is-listed", func(md map[string]any) {
			md["issuer"], md["jwks_uri"], md["token_endpoint"] = "x", "https://10.0.0.1/", goodInterface
		}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc := goodMetadata()
			c.change(doc)
			data, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			md, err := agent.CheckMetadata(data, card, agent.URLRules{})
			var e *agent.MetadataError
			if c.problems == 0 {
				if err != nil || md.Issuer != goodInterface+"/oauth" {
					t.Fatalf("%+v, %v", md, err)
				}
			} else if !errors.As(err, &e) || len(e.Problems) != c.problems {
				t.Fatalf("%v, want %d problems", err, c.problems)
			}
		})
	}
	for name, data := range map[string]string{"empty": "", "array": "[]", "repeated": `{"issuer":"a","issuer":"b"}`} {
		if _, err := agent.CheckMetadata([]byte(data), card, agent.URLRules{}); !errors.Is(err, agent.ErrMetadataInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	data, _ := json.Marshal(goodMetadata())
	if _, err := agent.CheckMetadata(data, agent.Card{}, agent.URLRules{}); !errors.Is(err, agent.ErrMetadataInvalid) {
		t.Errorf("metadata without a delegated card: %v", err)
	}
}

// TestRevocationEndpoint covers GR-9's endpoint: it is sent the refresh token,
// so only one on the same origin counts.
func TestRevocationEndpoint(t *testing.T) {
	card := parse(t, goodCard(), agent.URLRules{})
	for endpoint, want := range map[string]string{
		goodInterface + "/oauth/revoke": goodInterface + "/oauth/revoke",
		"https://evil.example/revoke":   "",
		"http://provider.example.com/r": "",
		"":                              "",
	} {
		doc := goodMetadata()
		doc["revocation_endpoint"] = endpoint
		data, _ := json.Marshal(doc)
		md, err := agent.CheckMetadata(data, card, agent.URLRules{})
		if err != nil || md.RevocationEndpoint != want {
			t.Errorf("%q: %q, %v", endpoint, md.RevocationEndpoint, err)
		}
	}
}

func FuzzMetadata(f *testing.F) {
	card := parse(f, goodCard(), agent.URLRules{})
	data, _ := json.Marshal(goodMetadata())
	f.Add(data)
	f.Add([]byte(`{"issuer":"https://provider.example.com","jwks_uri":"https://evil.example/"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		md, err := agent.CheckMetadata(data, card, agent.URLRules{})
		if err != nil {
			if !errors.Is(err, agent.ErrMetadataInvalid) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		for _, raw := range []string{md.Issuer, md.JWKSURI} {
			if u, err := (agent.URLRules{}).Check(raw); err != nil || agent.Origin(u) != card.Origin {
				t.Fatalf("%q passes: %v", raw, err)
			}
		}
	})
}
