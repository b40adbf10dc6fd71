package signer_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// What status says, and what sign does, under a kill of each scope and after the
// resume (design.md, Order of refusals; protocol.md, Signer contract).
func TestStatusUnderKills(t *testing.T) {
	const second = "aud-2"
	eachFaceAndCaller(t, asIs, func(t *testing.T, w *contractWorld, call face, c caller) {
		if err := w.store.SetAudience(t.Context(), signer.Audience{Issuer: w.issuer, Origin: "https://two.example.com", Audience: second},
			nil, audit.Entry{Action: "test"}); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			name      string
			scopes    []killswitch.Scope
			disabled  bool
			audiences []string
		}{
			{"nothing", nil, false, []string{second, providerAudience}},
			{"all", []killswitch.Scope{{Kind: killswitch.All}}, true, []string{second, providerAudience}},
			{"issuer", []killswitch.Scope{{Kind: killswitch.Issuer}}, true, []string{second, providerAudience}},
			{"subject", []killswitch.Scope{{Kind: killswitch.Subject, Value: c.subject}}, true, []string{second, providerAudience}},
			{"caller", []killswitch.Scope{{Kind: c.kind, Value: c.id}}, true, []string{second, providerAudience}},
			{"another caller", []killswitch.Scope{{Kind: c.kind, Value: "x" + c.id}}, false, []string{second, providerAudience}},
			{"audience", []killswitch.Scope{{Kind: killswitch.Audience, Value: providerAudience}}, false, []string{second}},
			{"audience and all", []killswitch.Scope{{Kind: killswitch.Audience, Value: providerAudience}, {Kind: killswitch.All}}, true, []string{second}},
		} {
			var ids []string
			for _, s := range test.scopes {
				if s.Kind != killswitch.All {
					s.Issuer = w.issuer
				}
				r, err := w.kills.Kill(t.Context(), killswitch.Entry{Scope: s, Reason: "test", Actor: "test"})
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, r.Entry.ID)
			}
			w.refresh()
			r := call("/pact/status", "{}", c.auth("/pact/status"))
			var got struct {
				Issuer, Subject string
				Disabled        bool
				Audiences       map[string]string
			}
			if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.status != http.StatusOK {
				t.Fatalf("%s: %+v, %v", test.name, r, err)
			}
			audiences := slices.Sorted(maps.Values(got.Audiences))
			if got.Issuer != w.issuer || got.Subject != c.subject || got.Disabled != test.disabled || !slices.Equal(audiences, test.audiences) {
				t.Errorf("%s: %+v, want disabled %v and audiences %q", test.name, got, test.disabled, test.audiences)
			}
			sign := call("/pact/sign", goodSign, c.auth("/pact/sign"))
			if stopped := test.disabled || len(test.audiences) == 1; stopped {
				sign.refused(t, 403, "disabled")
			} else if sign.status != http.StatusOK {
				t.Errorf("%s: %+v", test.name, sign)
			}
			other := call("/pact/sign", `{"audience":"`+second+`","nonce":"n"}`, c.auth("/pact/sign"))
			if test.disabled {
				other.refused(t, 403, "disabled")
			} else if other.status != http.StatusOK {
				t.Errorf("%s, another audience: %+v", test.name, other)
			}
			if ids == nil {
				continue
			}
			if _, err := w.kills.Resume(t.Context(), killswitch.ResumeRequest{Scope: killswitch.Scope{Kind: killswitch.All}, EntryIDs: ids, Reason: "over", Actor: "test"}); err != nil {
				t.Fatal(err)
			}
			w.refresh()
			if r := call("/pact/sign", goodSign, c.auth("/pact/sign")); r.status != http.StatusOK {
				t.Errorf("%s, resumed: %+v", test.name, r)
			}
		}
	})
}
