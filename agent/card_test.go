package agent_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/agent"
)

func TestCardVectors(t *testing.T) {
	type file struct {
		Cases []struct {
			Name        string
			Card        json.RawMessage
			Development bool
			Want        struct{ Support, Reason, Profile, InterfaceURL string }
		}
	}
	vectors(t, "cards.json", func(t *testing.T, f file) {
		atLeastOne(t, len(f.Cases))
		for _, c := range f.Cases {
			t.Run(c.Name, func(t *testing.T) {
				card := agent.ParseCard(c.Card, agent.URLRules{Development: c.Development})
				support := "unsupported"
				if card.Support {
					support = "supported"
				}
				if support != c.Want.Support || card.Reason != c.Want.Reason ||
					string(card.Profile) != c.Want.Profile || card.InterfaceURL != c.Want.InterfaceURL {
					t.Errorf("got %s %q %q %q, want %+v; problems %v", support, card.Reason, card.Profile, card.InterfaceURL, c.Want, card.Problems)
				}
			})
		}
	})
}

const goodInterface = "https://provider.example.com/a2a/B1"

// goodCard returns a delegated card as decoded JSON, to be changed.
func goodCard() map[string]any {
	var card map[string]any
	if err := json.Unmarshal([]byte(`{
		"name": "Example Co. Support", "description": "Orders and returns.", "version": "1.0.0",
		"capabilities": {"streaming": false, "pushNotifications": false, "extendedAgentCard": false},
		"defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
		"skills": [{"id": "orders", "name": "Orders", "description": "Order status.", "tags": ["orders"]}],
		"supportedInterfaces": [{"protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "url": "`+goodInterface+`"}],
		"securitySchemes": {
			"pa": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}},
			"user": {"oauth2SecurityScheme": {
				"flows": {"deviceCode": {
					"deviceAuthorizationUrl": "`+goodInterface+`/oauth/device", "tokenUrl": "`+goodInterface+`/oauth/token",
					"scopes": {"orders:read": "Look up your orders", "orders:cancel": "Cancel an order"}}},
				"oauth2MetadataUrl": "`+goodInterface+`/oauth/metadata"}}},
		"securityRequirements": [
			{"schemes": {"pa": {"list": []}}},
			{"schemes": {"pa": {"list": []}, "user": {"list": []}}}]
	}`), &card); err != nil {
		panic(err)
	}
	return card
}

// at walks decoded JSON by member names and indexes.
func at(v any, path ...any) map[string]any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			v = v.(map[string]any)[p]
		case int:
			v = v.([]any)[p]
		}
	}
	return v.(map[string]any)
}

func parse(t testing.TB, card any, rules agent.URLRules) agent.Card {
	t.Helper()
	data, err := json.Marshal(card)
	if err != nil {
		t.Fatal(err)
	}
	return agent.ParseCard(data, rules)
}

var (
	deviceCode = []any{"securitySchemes", "user", "oauth2SecurityScheme", "flows", "deviceCode"}
	oauth      = []any{"securitySchemes", "user", "oauth2SecurityScheme"}
)

// TestCardReasons covers DI-8, DI-9 and MD-1 beyond the vectors. reason "" is
// supported; profile then says how.
func TestCardReasons(t *testing.T) {
	other := map[string]any{"protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "url": "https://provider.example.com/x"}
	scheme := func(s, format any) map[string]any {
		return map[string]any{"httpAuthSecurityScheme": map[string]any{"scheme": s, "bearerFormat": format}}
	}
	requirement := func(names ...string) map[string]any {
		m := map[string]any{}
		for _, n := range names {
			m[n] = map[string]any{"list": []any{}}
		}
		return map[string]any{"schemes": m}
	}
	for _, c := range []struct {
		name    string
		change  func(card map[string]any)
		reason  string
		profile agent.Profile
	}{
		{"as-is", func(map[string]any) {}, "", agent.ProfileDelegated},
		{"unknown-members", func(c map[string]any) { c["x"] = 1; at(c, "skills", 0)["y"] = []any{1} }, "", agent.ProfileDelegated},
		{"provider-null", func(c map[string]any) { c["provider"] = nil }, "", agent.ProfileDelegated},
		{"provider-a-string", func(c map[string]any) { c["provider"] = "x" }, "invalid_card", ""},
		{"no-skills", func(c map[string]any) { c["skills"] = []any{} }, "", agent.ProfileDelegated},
		{"skills-missing", func(c map[string]any) { delete(c, "skills") }, "invalid_card", ""},
		{"skill-without-tags", func(c map[string]any) { delete(at(c, "skills", 0), "tags") }, "invalid_card", ""},
		{"skill-a-number", func(c map[string]any) { c["skills"] = []any{1} }, "invalid_card", ""},
		{"description-missing", func(c map[string]any) { delete(c, "description") }, "invalid_card", ""},
		{"version-missing", func(c map[string]any) { delete(c, "version") }, "invalid_card", ""},
		{"version-a-number", func(c map[string]any) { c["version"] = 1 }, "invalid_card", ""},
		{"capabilities-missing", func(c map[string]any) { delete(c, "capabilities") }, "invalid_card", ""},
		{"streaming-a-string", func(c map[string]any) { at(c, "capabilities")["streaming"] = "no" }, "invalid_card", ""},
		{"modes-missing", func(c map[string]any) { delete(c, "defaultInputModes") }, "invalid_card", ""},
		{"mode-a-number", func(c map[string]any) { c["defaultOutputModes"] = []any{1} }, "invalid_card", ""},
		{"Name-in-upper-case", func(c map[string]any) { c["Name"] = c["name"]; delete(c, "name") }, "invalid_card", ""},
		{"scope-id-with-space", func(c map[string]any) { at(c, append(deviceCode, "scopes")...)["a b"] = "x" }, "invalid_card", ""},
		{"scope-id-with-quote", func(c map[string]any) { at(c, append(deviceCode, "scopes")...)[`a"`] = "x" }, "invalid_card", ""},
		{"scope-id-empty", func(c map[string]any) { at(c, append(deviceCode, "scopes")...)[""] = "x" }, "invalid_card", ""},
		{"scope-id-not-ascii", func(c map[string]any) { at(c, append(deviceCode, "scopes")...)["ä"] = "x" }, "invalid_card", ""},
		{"scope-description-a-number", func(c map[string]any) { at(c, append(deviceCode, "scopes")...)["x"] = 1 }, "invalid_card", ""},
		{"device-url-missing", func(c map[string]any) { delete(at(c, deviceCode...), "deviceAuthorizationUrl") }, "invalid_card", ""},
		{"metadata-url-missing", func(c map[string]any) { delete(at(c, oauth...), "oauth2MetadataUrl") }, "invalid_card", ""},
		{"invalid-card-comes-first", func(c map[string]any) { delete(c, "name"); c["supportedInterfaces"] = []any{} }, "invalid_card", ""},

		{"no-interfaces", func(c map[string]any) { c["supportedInterfaces"] = []any{} }, "no_http_json_1_0_interface", ""},
		{"interfaces-missing", func(c map[string]any) { delete(c, "supportedInterfaces") }, "invalid_card", ""},
		{"version-1.0.0", func(c map[string]any) { at(c, "supportedInterfaces", 0)["protocolVersion"] = "1.0.0" }, "no_http_json_1_0_interface", ""},
		{"binding-in-lower-case", func(c map[string]any) { at(c, "supportedInterfaces", 0)["protocolBinding"] = "http+json" }, "no_http_json_1_0_interface", ""},
		{"same-interface-twice", func(c map[string]any) {
			c["supportedInterfaces"] = append(c["supportedInterfaces"].([]any), at(c, "supportedInterfaces", 0))
		}, "", agent.ProfileDelegated},
		{"ambiguous-before-tenant", func(c map[string]any) {
			at(c, "supportedInterfaces", 0)["tenant"] = "t"
			c["supportedInterfaces"] = append(c["supportedInterfaces"].([]any), other)
		}, "ambiguous_interface", ""},
		{"empty-tenant", func(c map[string]any) { at(c, "supportedInterfaces", 0)["tenant"] = "" }, "", agent.ProfileDelegated},
		{"tenant-before-insecure", func(c map[string]any) {
			at(c, "supportedInterfaces", 0)["tenant"] = "t"
			at(c, "supportedInterfaces", 0)["url"] = "http://provider.example.com/"
		}, "interface_tenant_unsupported", ""},
		{"interface-url-empty", func(c map[string]any) { at(c, "supportedInterfaces", 0)["url"] = "" }, "insecure_url", ""},
		{"interface-url-blank", func(c map[string]any) { at(c, "supportedInterfaces", 0)["url"] = " " }, "insecure_url", ""},
		{"interface-url-missing", func(c map[string]any) { delete(at(c, "supportedInterfaces", 0), "url") }, "invalid_card", ""},
		{"interface-url-relative", func(c map[string]any) { at(c, "supportedInterfaces", 0)["url"] = "/a2a" }, "insecure_url", ""},
		{"interface-internal", func(c map[string]any) { at(c, "supportedInterfaces", 0)["url"] = "https://10.0.0.1/" }, "insecure_url", ""},
		{"token-url-http", func(c map[string]any) {
			at(c, deviceCode...)["tokenUrl"] = "http://provider.example.com/token"
		}, "insecure_url", ""},
		{"refresh-url-userinfo", func(c map[string]any) {
			at(c, deviceCode...)["refreshUrl"] = "https://u@provider.example.com/token"
		}, "insecure_url", ""},
		{"insecure-before-extension", func(c map[string]any) {
			at(c, "capabilities")["extensions"] = []any{map[string]any{"uri": "x", "required": true}}
			at(c, "supportedInterfaces", 0)["url"] = "http://provider.example.com/"
		}, "insecure_url", ""},
		{"extension-not-required", func(c map[string]any) {
			at(c, "capabilities")["extensions"] = []any{map[string]any{"uri": "x"}, map[string]any{"uri": "y", "required": false}}
		}, "", agent.ProfileDelegated},
		{"extension-before-identity", func(c map[string]any) {
			at(c, "capabilities")["extensions"] = []any{map[string]any{"uri": "x", "required": true}}
			delete(at(c, "securitySchemes"), "pa")
		}, "required_extension_unsupported", ""},

		{"schemes-missing", func(c map[string]any) { delete(c, "securitySchemes") }, "identity_scheme_missing", ""},
		{"basic", func(c map[string]any) { at(c, "securitySchemes")["pa"] = scheme("Basic", "JWT") }, "identity_scheme_missing", ""},
		{"opaque-bearer", func(c map[string]any) { at(c, "securitySchemes")["pa"] = scheme("Bearer", "opaque") }, "identity_scheme_missing", ""},
		{"no-bearer-format", func(c map[string]any) { at(c, "securitySchemes")["pa"] = scheme("Bearer", nil) }, "identity_scheme_missing", ""},
		{"scheme-a-string", func(c map[string]any) { at(c, "securitySchemes")["z"] = "x" }, "invalid_card", ""},
		{"two-names-of-one-scheme", func(c map[string]any) {
			at(c, "securitySchemes")["b"] = scheme("bearer", "JWT")
			c["securityRequirements"] = append(c["securityRequirements"].([]any), requirement("b"))
		}, "", agent.ProfileDelegated},
		{"delegation-with-the-other-name", func(c map[string]any) {
			at(c, "securitySchemes")["b"] = scheme("bearer", "JWT")
			c["securityRequirements"] = []any{requirement("pa"), requirement("b", "user")}
		}, "", agent.ProfileDelegated},
		{"requirements-missing", func(c map[string]any) { delete(c, "securityRequirements") }, "identity_requirement_missing", ""},
		{"identity-with-an-api-key", func(c map[string]any) {
			at(c, "securitySchemes")["k"] = map[string]any{"apiKeySecurityScheme": map[string]any{"name": "x", "location": "header"}}
			c["securityRequirements"] = []any{requirement("pa", "k")}
		}, "identity_requirement_missing", ""},
		{"delegation-not-required-anywhere", func(c map[string]any) { c["securityRequirements"] = []any{requirement("pa")} }, "", agent.ProfileIdentity},
		{"delegation-without-identity", func(c map[string]any) {
			c["securityRequirements"] = []any{requirement("pa"), requirement("user")}
		}, "", agent.ProfileIdentity},
		{"delegation-needs-an-api-key-too", func(c map[string]any) {
			at(c, "securitySchemes")["k"] = map[string]any{"apiKeySecurityScheme": map[string]any{}}
			c["securityRequirements"] = []any{requirement("pa"), requirement("pa", "user", "k")}
		}, "", agent.ProfileIdentity},
		{"two-delegations", func(c map[string]any) {
			at(c, "securitySchemes")["user2"] = at(c, "securitySchemes", "user")
			c["securityRequirements"] = append(c["securityRequirements"].([]any), requirement("pa", "user2"))
		}, "delegation_scheme_ambiguous", ""},
		{"two-delegations-at-once", func(c map[string]any) {
			at(c, "securitySchemes")["user2"] = at(c, "securitySchemes", "user")
			c["securityRequirements"] = []any{requirement("pa"), requirement("pa", "user", "user2")}
		}, "delegation_scheme_ambiguous", ""},
		{"one-delegation-in-two-requirements", func(c map[string]any) {
			c["securityRequirements"] = append(c["securityRequirements"].([]any), requirement("pa", "user"))
		}, "", agent.ProfileDelegated},
		{"authorization-code-beside-device-code", func(c map[string]any) {
			at(c, append(oauth, "flows")...)["authorizationCode"] = map[string]any{"tokenUrl": "x"}
		}, "", agent.ProfileDelegated},

		{"device-url-elsewhere", func(c map[string]any) { at(c, deviceCode...)["deviceAuthorizationUrl"] = "https://evil.example/d" }, "delegation_cross_origin", ""},
		{"metadata-url-elsewhere", func(c map[string]any) { at(c, oauth...)["oauth2MetadataUrl"] = "https://evil.example/d" }, "delegation_cross_origin", ""},
		{"refresh-url-elsewhere", func(c map[string]any) { at(c, deviceCode...)["refreshUrl"] = "https://evil.example/d" }, "delegation_cross_origin", ""},
		{"token-url-on-another-port", func(c map[string]any) { at(c, deviceCode...)["tokenUrl"] = "https://provider.example.com:8443/t" }, "delegation_cross_origin", ""},
		{"token-url-with-default-port", func(c map[string]any) { at(c, deviceCode...)["tokenUrl"] = "https://PROVIDER.example.com:443/t" }, "", agent.ProfileDelegated},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc := goodCard()
			c.change(doc)
			card := parse(t, doc, agent.URLRules{})
			if card.Reason != c.reason || card.Profile != c.profile || card.Support != (c.reason == "") {
				t.Errorf("reason %q profile %q, want %q %q: %v", card.Reason, card.Profile, c.reason, c.profile, card.Problems)
			}
			if !card.Support && (card.InterfaceURL+card.Origin+card.TokenURL+card.DeviceAuthorizationURL+card.MetadataURL != "" || card.Scopes != nil) {
				t.Errorf("DI-10: an unsupported card carries something to trust: %+v", card)
			}
		})
	}
}

// TestCardParts covers what is taken from a good card.
func TestCardParts(t *testing.T) {
	doc := goodCard()
	doc["provider"] = map[string]any{"organization": "Example\x1b[31m Provider\u202e", "url": "https://provider.example.com"}
	card := parse(t, doc, agent.URLRules{})
	if !card.Support {
		t.Fatal(card.Problems)
	}
	if card.Organization != "Example [31m Provider" {
		t.Errorf("RD-4: organization %q may move a terminal", card.Organization)
	}
	if card.RefreshURL != card.TokenURL { // MD-1
		t.Errorf("refresh %q, token %q", card.RefreshURL, card.TokenURL)
	}
	if card.IdentityScheme != "pa" || card.DelegationScheme != "user" || card.Origin != "https://provider.example.com" {
		t.Errorf("%+v", card)
	}
	if s, ok := card.Scope("orders:read"); !ok || s.Description != "Look up your orders" {
		t.Errorf("scopes %v", card.Scopes)
	}
	if _, ok := card.Scope("orders"); ok {
		t.Error("a scope that is not advertised is found")
	}
	if got := card.SendURL(); got != goodInterface+"/message:send" {
		t.Errorf("UR-7: %q", got)
	}
	at(doc, "supportedInterfaces", 0)["url"] = goodInterface + "//"
	if card := parse(t, doc, agent.URLRules{}); card.SendURL() != goodInterface+"/message:send" || card.InterfaceURL != goodInterface+"//" {
		t.Errorf("UR-7: %q %q", card.SendURL(), card.InterfaceURL)
	}
	if (agent.Card{}).SendURL() != "" {
		t.Error("an unsupported card can be sent to")
	}

	at(doc, deviceCode...)["refreshUrl"] = goodInterface + "/oauth/refresh"
	if card := parse(t, doc, agent.URLRules{}); card.RefreshURL != goodInterface+"/oauth/refresh" {
		t.Errorf("refresh %q", card.RefreshURL)
	}
}

// TestCardListsEverything: a developer sees all problems at once, the one that
// decides first.
func TestCardListsEverything(t *testing.T) {
	doc := goodCard()
	delete(doc, "version")
	at(doc, deviceCode...)["tokenUrl"] = "https://evil.example/t"
	at(doc, deviceCode...)["deviceAuthorizationUrl"] = "http://provider.example.com/d"
	at(doc, "capabilities")["extensions"] = []any{map[string]any{"required": true}}
	card := parse(t, doc, agent.URLRules{})
	var got []string
	for _, p := range card.Problems {
		got = append(got, p.Reason)
	}
	want := []string{"invalid_card", "insecure_url", "required_extension_unsupported", "delegation_cross_origin"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if card.Name == "" || card.Fingerprint == "" {
		t.Error("DI-10: nothing is left to display")
	}
}

// TestCardAdvice: what a developer should look at does not make a card unusable.
func TestCardAdvice(t *testing.T) {
	if card := parse(t, goodCard(), agent.URLRules{}); len(card.Advice) != 0 {
		t.Errorf("advice on a good card: %v", card.Advice)
	}
	doc := goodCard()
	at(doc, "capabilities")["streaming"] = true
	at(doc, append(deviceCode, "scopes")...)["acct"] = "Your account"
	at(doc, append(deviceCode, "scopes")...)["silent"] = ""
	at(doc, "securitySchemes")["user2"] = at(doc, "securitySchemes", "user")
	card := parse(t, doc, agent.URLRules{})
	if !card.Support {
		t.Fatal(card.Problems)
	}
	var got []string
	for _, a := range card.Advice {
		got = append(got, a.Field[strings.LastIndex(a.Field, ".")+1:])
	}
	slices.Sort(got)
	// user2's scopes are user's, once more.
	if want := []string{"acct", "acct", "securityRequirements", "silent", "silent", "streaming"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestCardDevelopment covers UR-2 in a card.
func TestCardDevelopment(t *testing.T) {
	data, err := json.Marshal(goodCard())
	if err != nil {
		t.Fatal(err)
	}
	local := []byte(strings.ReplaceAll(string(data), "https://provider.example.com", "http://127.0.0.1:4310"))
	if card := agent.ParseCard(local, agent.URLRules{}); card.Reason != agent.ReasonInsecureURL {
		t.Errorf("production: %q", card.Reason)
	}
	if card := agent.ParseCard(local, agent.URLRules{Development: true}); !card.Support {
		t.Errorf("development: %v", card.Problems)
	}
}

// TestCardTruncation covers DI-7.
func TestCardTruncation(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 3000)
	doc := goodCard()
	doc["name"], doc["description"] = long, long
	doc["provider"] = map[string]any{"organization": long}
	var skills []any
	for range 60 {
		skills = append(skills, map[string]any{"id": long, "name": long, "description": long, "tags": []any{}})
	}
	doc["skills"] = skills
	scopes := at(doc, append(deviceCode, "scopes")...)
	for i := range 300 {
		scopes[fmt.Sprintf("s%03d", i)] = long
	}
	card := parse(t, doc, agent.URLRules{})
	if !card.Support {
		t.Fatal(card.Problems)
	}
	runes := func(s string) int { return len([]rune(s)) }
	got := []int{runes(card.Name), runes(card.Description), runes(card.Organization), len(card.Skills),
		runes(card.Skills[0].ID), runes(card.Skills[0].Name), runes(card.Skills[0].Description), len(card.Scopes), runes(card.Scopes[9].Description)}
	if want := []int{200, 2000, 200, 50, 120, 200, 1000, 200, 500}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestCardMalformed: duplicates and broken JSON are invalid_card, not a guess.
func TestCardMalformed(t *testing.T) {
	good, err := json.Marshal(goodCard())
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"empty": "", "null": "null", "truncated": string(good[:len(good)/2]), "trailing": string(good) + "{}",
		"repeated-name":        strings.Replace(string(good), `"name":`, `"name":"Evil","name":`, 1),
		"repeated-deep-inside": strings.Replace(string(good), `"tokenUrl":`, `"tokenUrl":"https://evil.example","tokenUrl":`, 1),
		"invalid-utf-8":        strings.Replace(string(good), "Orders", "Ord\xffers", 1),
		"deep":                 strings.Repeat("[", 200000),
	} {
		if card := agent.ParseCard([]byte(data), agent.URLRules{}); card.Reason != agent.ReasonInvalidCard {
			t.Errorf("%s: %q", name, card.Reason)
		}
	}
}

// TestFingerprints covers DI-5 and DI-6: what is cosmetic and what is not.
func TestFingerprints(t *testing.T) {
	md := agent.Metadata{Issuer: "https://provider.example.com", JWKSURI: "https://provider.example.com/jwks"}
	base := parse(t, goodCard(), agent.URLRules{})
	if base.Fingerprint == "" || len(base.Fingerprint) != 64 {
		t.Fatalf("fingerprint %q", base.Fingerprint)
	}
	for _, c := range []struct {
		name     string
		change   func(card map[string]any)
		security bool
	}{
		{"name", func(c map[string]any) { c["name"] = "New" }, false},
		{"skill", func(c map[string]any) { at(c, "skills", 0)["description"] = "New" }, false},
		{"interface", func(c map[string]any) { at(c, "supportedInterfaces", 0)["url"] = "https://provider.example.com/x" }, true},
		{"profile", func(c map[string]any) { c["securityRequirements"] = c["securityRequirements"].([]any)[:1] }, true},
		{"token", func(c map[string]any) { at(c, deviceCode...)["tokenUrl"] = goodInterface + "/t" }, true},
		{"device", func(c map[string]any) { at(c, deviceCode...)["deviceAuthorizationUrl"] = goodInterface + "/t" }, true},
		{"refresh", func(c map[string]any) { at(c, deviceCode...)["refreshUrl"] = goodInterface + "/t" }, true},
		{"metadata", func(c map[string]any) { at(c, oauth...)["oauth2MetadataUrl"] = goodInterface + "/t" }, true},
		{"scope-added", func(c map[string]any) { at(c, append(deviceCode, "scopes")...)["x"] = "" }, true},
		{"scope-description", func(c map[string]any) {
			at(c, append(deviceCode, "scopes")...)["orders:read"] = "Look up and cancel"
		}, true},
		{"identity-scheme", func(c map[string]any) {
			at(c, "securitySchemes")["p2"] = at(c, "securitySchemes", "pa")
			delete(at(c, "securitySchemes"), "pa")
			c["securityRequirements"] = []any{
				map[string]any{"schemes": map[string]any{"p2": nil}}, map[string]any{"schemes": map[string]any{"p2": nil, "user": nil}}}
		}, true},
	} {
		doc := goodCard()
		c.change(doc)
		card := parse(t, doc, agent.URLRules{})
		if !card.Support {
			t.Fatalf("%s: %v", c.name, card.Problems)
		}
		if card.Fingerprint == base.Fingerprint {
			t.Errorf("%s: the fingerprint did not change", c.name)
		}
		if changed := agent.SecurityFingerprint(card, md) != agent.SecurityFingerprint(base, md); changed != c.security {
			t.Errorf("%s: security fingerprint changed %v, want %v", c.name, changed, c.security)
		}
	}
	for _, other := range []agent.Metadata{{}, {Issuer: "https://x", JWKSURI: md.JWKSURI}, {Issuer: md.Issuer, JWKSURI: "https://x"}} {
		if agent.SecurityFingerprint(base, other) == agent.SecurityFingerprint(base, md) {
			t.Errorf("metadata %+v does not count", other)
		}
	}
}

// TestFingerprintOrder: how a provider orders and spaces its JSON changes no
// fingerprint.
func TestFingerprintOrder(t *testing.T) {
	base := parse(t, goodCard(), agent.URLRules{})
	rapid.Check(t, func(t *rapid.T) {
		var write func(v any) string
		write = func(v any) string {
			space := rapid.SampledFrom([]string{"", " ", "\n\t"}).Draw(t, "space")
			switch v := v.(type) {
			case map[string]any:
				var parts []string
				for k, e := range v {
					parts = append(parts, fmt.Sprintf("%q:%s%s", k, space, write(e)))
				}
				slices.Sort(parts)
				return "{" + space + strings.Join(rapid.Permutation(parts).Draw(t, "order"), space+",") + "}"
			case []any:
				var parts []string
				for _, e := range v {
					parts = append(parts, write(e))
				}
				return "[" + strings.Join(parts, ","+space) + space + "]"
			}
			data, _ := json.Marshal(v)
			return string(data)
		}
		card := agent.ParseCard([]byte(write(goodCard())), agent.URLRules{})
		if card.Fingerprint != base.Fingerprint || agent.SecurityFingerprint(card, agent.Metadata{}) != agent.SecurityFingerprint(base, agent.Metadata{}) {
			t.Fatal("order or space changes a fingerprint")
		}
	})
}

func FuzzCard(f *testing.F) {
	good, err := json.Marshal(goodCard())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`[1,2]`))
	f.Add([]byte(`{"name":1,"name":2}`))
	f.Add([]byte(strings.ReplaceAll(string(good), "provider.example.com", "10.0.0.1")))
	f.Fuzz(func(t *testing.T, data []byte) {
		rules := agent.URLRules{}
		card := agent.ParseCard(data, rules)
		if card.Support != (card.Reason == "") || card.Support != (len(card.Problems) == 0) {
			t.Fatalf("support %v, reason %q, problems %v", card.Support, card.Reason, card.Problems)
		}
		if !card.Support {
			return
		}
		urls := []string{card.InterfaceURL}
		if card.Profile == agent.ProfileDelegated {
			urls = append(urls, card.DeviceAuthorizationURL, card.TokenURL, card.RefreshURL, card.MetadataURL)
		}
		for _, raw := range urls {
			u, err := rules.Check(raw)
			if err != nil || agent.Origin(u) != card.Origin {
				t.Fatalf("%q is in a supported card of %q: %v", raw, card.Origin, err)
			}
		}
		if again := agent.ParseCard(data, rules); again.Fingerprint != card.Fingerprint {
			t.Fatal("not deterministic")
		}
	})
}
