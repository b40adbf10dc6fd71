package agent_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// DI-1, DI-4: a business by its domain, through a redirect.
func TestDiscover(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		v, err := a.Discover(t.Context(), owner(), agent.ParseBusiness("Air.Example.COM."))
		if err != nil {
			t.Fatal(err)
		}
		if !v.Supported || v.CardURL != cardURL || v.Domain != "air.example.com" || v.InterfaceURL != iface || v.Provider != provider ||
			v.Issuer != oauthBase || len(v.Scopes) != 3 || v.Revision != 1 || strings.Join(v.Chain, " ") != "https://air.example.com "+provider {
			t.Errorf("got %+v", v)
		}
		for _, r := range append(w.calls(egress.Card), w.calls(egress.Metadata)...) { // TR-5
			if r.header.Get("Authorization") != "" {
				t.Error("discovery carries a credential")
			}
		}
		long := strings.Repeat("a", 64)
		for _, bad := range []agent.DiscoverRequest{
			{}, {Domain: "air.example.com", CardURL: cardURL}, {Domain: "localhost"}, {Domain: "a..com"}, {Domain: long + ".com"},
			{Domain: strings.Repeat("abc.", 64) + "com"}, {Domain: "air.example.com/x"}, {Domain: "user@example.com"}, {Domain: "10.0.0.1"},
			{CardURL: "http://air.example.com"}, {CardURL: cardURL + "#x"}, {CardURL: "https://air.example.com/" + strings.Repeat("x", 2048)},
		} {
			if _, err := a.Discover(t.Context(), owner(), bad); agent.ReasonOf(err) != agent.ReasonInvalidInput {
				t.Errorf("%.60v: %v", bad, err)
			}
		}
	})
}

// DI-2: what is there instead of a card.
func TestDiscoverFailures(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		reason  string
	}{
		"404":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, agent.ReasonNotFound},
		"403":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, agent.ReasonFetchFailed},
		"500":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, agent.ReasonFetchFailed},
		"html":      {func(w http.ResponseWriter, _ *http.Request) { respond(w, 200, "<html>") }, agent.ReasonInvalidJSON},
		"dropped":   {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, agent.ReasonFetchFailed},
		"no domain": {nil, "destination_refused"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				delete(w.hosts, "https://air.example.com")
				if c.handler != nil {
					w.hosts["https://air.example.com"] = c.handler
				}
				if _, err := a.Discover(t.Context(), owner(), agent.ParseBusiness(cardURL)); agent.ReasonOf(err) != c.reason {
					t.Errorf("got %v, want %s", err, c.reason)
				}
				w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusFailed, c.reason)
			})
		})
	}
}

// DI-3: how long a card is used, and that a send revalidates an old one.
func TestCardTTL(t *testing.T) {
	for control, want := range map[string]time.Duration{
		"": 5 * time.Minute, "public, max-age=300": 5 * time.Minute, "max-age=10": time.Minute, "max-age=86400": time.Hour,
		"max-age=1800, no-store": time.Minute, "max-age=x": 5 * time.Minute,
	} {
		t.Run(control, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				w.biz.cardHeader.Set("Cache-Control", control)
				start := time.Now()
				fetched := func(at time.Duration, n int) {
					t.Helper()
					time.Sleep(time.Until(start.Add(at)))
					w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
					if got := len(w.calls(egress.Metadata)); got != n {
						t.Errorf("at %v: %d fetches, want %d", at, got, n)
					}
				}
				fetched(0, 1)
				fetched(want-time.Second, 1)
				fetched(want, 2)
			})
		})
	}
}

// DI-5, DI-6: a change of what counts ends the grants, a cosmetic one does not.
func TestCardChanges(t *testing.T) {
	flow := func(b *business) map[string]any {
		return b.card["securitySchemes"].(map[string]any)["user"].(map[string]any)["oauth2SecurityScheme"].(map[string]any)["flows"].(map[string]any)["deviceCode"].(map[string]any)
	}
	for name, c := range map[string]struct {
		change   func(*business)
		revision int64
	}{
		"name":                    {func(b *business) { b.card["name"] = "New Air" }, 1},
		"skill":                   {func(b *business) { b.card["skills"] = []any{} }, 1},
		"what a permission means": {func(b *business) { flow(b)["scopes"].(map[string]any)["trips:read"] = "Cancel all trips" }, 2},
		"a new permission":        {func(b *business) { flow(b)["scopes"].(map[string]any)["trips:x"] = "View x" }, 2},
		"key set":                 {func(b *business) { b.metadata["jwks_uri"] = oauthBase + "/keys" }, 2},
		"interface": {func(b *business) {
			b.card["supportedInterfaces"].([]any)[0].(map[string]any)["url"] = iface + "2"
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 30*time.Minute, "trips:read")
				w.biz.set(c.change)
				v, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL, Refresh: true})
				if err != nil || v.Revision != c.revision {
					t.Fatalf("%+v, %v", v, err)
				}
				state, reason := "active", ""
				if c.revision > 1 {
					state, reason = "invalid", agent.ReasonCardSecurity
				}
				if g := onlyGrant(t, a); g.State != state || g.Reason != reason {
					t.Errorf("grant %+v", g)
				}
			})
		})
	}
}

// DI-10, DI-11, MD-4: a card that is broken for a while sends nothing and ends
// nothing.
func TestBrokenCardEndsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*business) (undo func(*business))
		status agent.Status
		reason string
	}{
		"unsupported": {func(b *business) func(*business) {
			old := b.card["supportedInterfaces"]
			b.card["supportedInterfaces"] = []any{}
			return func(b *business) { b.card["supportedInterfaces"] = old }
		}, agent.StatusUnsupported, agent.ReasonCardChanged},
		"metadata elsewhere": {func(b *business) func(*business) {
			b.metadata["jwks_uri"] = "https://evil.example.net/jwks"
			return func(b *business) { b.metadata["jwks_uri"] = oauthBase + "/jwks" }
		}, agent.StatusFailed, agent.ReasonMetadataInvalid},
		"token endpoint with a slash": {func(b *business) func(*business) {
			b.metadata["token_endpoint"] = oauthBase + "/token/"
			return func(b *business) { b.metadata["token_endpoint"] = oauthBase + "/token" }
		}, agent.StatusFailed, agent.ReasonMetadataInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 30*time.Minute, "trips:read") // the card is old by then
				var undo func(*business)
				w.biz.set(func(b *business) { undo = c.change(b) })
				w.send(a, owner(), readTrips, c.status, c.reason)
				if n := len(w.biz.sent()); n != 0 {
					t.Errorf("%d turns", n)
				}
				w.biz.set(undo)
				w.send(a, owner(), readTrips, agent.StatusReplied, "")
				if g := onlyGrant(t, a); g.State != "active" {
					t.Errorf("grant %+v", g)
				}
			})
		})
	}
}

// MD-1: delegation on another origin is unsupported, and nothing is sent.
func TestCrossOriginDelegation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		scheme := w.biz.card["securitySchemes"].(map[string]any)["user"].(map[string]any)["oauth2SecurityScheme"].(map[string]any)
		scheme["flows"].(map[string]any)["deviceCode"].(map[string]any)["tokenUrl"] = "https://evil.example.net/token"
		v, err := a.Discover(t.Context(), owner(), agent.ParseBusiness(cardURL))
		if err != nil || v.Supported || v.Reason != agent.ReasonDelegationCrossOrigin {
			t.Errorf("got %+v, %v", v, err)
		}
		w.send(a, owner(), readTrips, agent.StatusUnsupported, agent.ReasonDelegationCrossOrigin)
		if n := len(w.calls(egress.Message)) + len(w.calls(egress.Metadata)); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// DI-7, AD-8, AD-9, AP-2, DI-5: a description counts whole, however little of it is
// kept: what it says at its end decides on approval, and ends grants.
func TestLongDescription(t *testing.T) {
	describe := func(w *world, text string) {
		w.biz.set(func(b *business) {
			flow := b.card["securitySchemes"].(map[string]any)["user"].(map[string]any)["oauth2SecurityScheme"].(map[string]any)["flows"].(map[string]any)["deviceCode"].(map[string]any)
			flow["scopes"].(map[string]any)["trips:read"] = text
		})
	}
	long := "View your trips " + strings.Repeat("a", 600)
	show := agent.SendRequest{Message: "Show my trips", Scopes: []string{"trips:read"}}
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		describe(w, long)
		a := granted(w, 30*time.Minute, "trips:read")
		w.send(a, owner(), show, agent.StatusReplied, "")
		describe(w, long+" and cancel them")
		v, err := a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL, Refresh: true})
		if err != nil || v.Revision != 2 || slices.ContainsFunc(v.Scopes, func(s agent.Scope) bool { return len(s.Description) > 500 }) {
			t.Errorf("%+v, %v", v, err)
		}
		if g := onlyGrant(t, a); g.State != "invalid" || g.Reason != agent.ReasonCardSecurity {
			t.Errorf("grant %+v", g)
		}
		if strings.Contains(string(marshal(v)), "and cancel them") {
			t.Error("the view shows all of it")
		}
		r := w.send(a, owner(), show, agent.StatusApprovalRequired, agent.ReasonApprovalRequired)
		if got := r.Approval.Permissions; len(got) != 1 || got[0].Description != long+" and cancel them" { // AP-2
			t.Errorf("asked about %+v", got)
		}
	})
}
