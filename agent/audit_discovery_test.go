package agent_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/jwks"
)

// DI-1: each limit at its edge, and how a domain is read.
func TestDiscoverInput(t *testing.T) {
	label := strings.Repeat("a", 63)
	domain := strings.Join([]string{label, label, label, strings.Repeat("b", 61)}, ".") // 253
	long := func(n int) string { return provider + "/" + strings.Repeat("x", n-len(provider)-1) }
	for _, c := range []struct {
		req agent.DiscoverRequest
		url string // that is asked; empty: refused
	}{
		{agent.DiscoverRequest{Domain: "Shop.Example"}, "https://shop.example/.well-known/agent-card.json"},
		{agent.DiscoverRequest{Domain: "shop.example."}, "https://shop.example/.well-known/agent-card.json"},
		{agent.DiscoverRequest{Domain: "shop.example.."}, ""},
		{agent.DiscoverRequest{Domain: "shop"}, ""},
		{agent.DiscoverRequest{Domain: domain}, "https://" + domain + "/.well-known/agent-card.json"},
		{agent.DiscoverRequest{Domain: domain + "."}, "https://" + domain + "/.well-known/agent-card.json"},
		{agent.DiscoverRequest{Domain: domain + "b"}, ""},
		{agent.DiscoverRequest{Domain: label + ".example"}, "https://" + label + ".example/.well-known/agent-card.json"},
		{agent.DiscoverRequest{Domain: label + "a.example"}, ""},
		{agent.DiscoverRequest{Domain: "shop.example:8443"}, ""},
		{agent.DiscoverRequest{CardURL: long(2048)}, long(2048)},
		{agent.DiscoverRequest{CardURL: long(2049)}, ""},
		{agent.DiscoverRequest{Domain: "shop.example", CardURL: long(100)}, ""},
		{agent.DiscoverRequest{}, ""},
	} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			_, err := w.enrolled().Discover(t.Context(), owner(), c.req)
			asked := ""
			for _, r := range w.calls(egress.Card) {
				asked = r.url
			}
			if asked != c.url || (agent.ReasonOf(err) == agent.ReasonInvalidInput) != (c.url == "") {
				t.Errorf("%.80v asks %.80q: %v", c.req, asked, err)
			}
		})
	}
}

// DI-3: an unsupported card is not used from the store, and a forced fetch is one.
func TestCachedCard(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		discover := func(refresh bool, n int) {
			t.Helper()
			if err := second(a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL, Refresh: refresh})); err != nil {
				t.Fatal(err)
			}
			if got := len(w.calls(egress.Card)); got != 2*n { // each by one redirect
				t.Errorf("%d requests, want %d", got, 2*n)
			}
		}
		discover(false, 1)
		discover(false, 1)
		discover(true, 2)
		w.biz.set(func(b *business) { b.card["supportedInterfaces"] = []any{} })
		discover(true, 3)
		discover(false, 4)
	})
}

// DI-8: of two things that are wrong with a card the earlier one decides, whichever
// two they are.
func TestFirstReasonApplies(t *testing.T) {
	api := map[string]any{"apiKeySecurityScheme": map[string]any{"name": "x", "location": "header"}}
	changes := []struct {
		reason string
		change func(card map[string]any)
	}{
		{agent.ReasonInvalidCard, func(c map[string]any) { delete(c, "name") }},
		{agent.ReasonNoInterface, func(c map[string]any) { at(c, "supportedInterfaces", 0)["protocolVersion"] = "0.3" }},
		{agent.ReasonAmbiguousInterface, func(c map[string]any) {
			in := maps.Clone(at(c, "supportedInterfaces", 0))
			in["url"] = "https://provider.example.com/second"
			c["supportedInterfaces"] = append(c["supportedInterfaces"].([]any), in)
		}},
		{agent.ReasonTenant, func(c map[string]any) { at(c, "supportedInterfaces", 0)["tenant"] = "t" }},
		{agent.ReasonInsecureURL, func(c map[string]any) { at(c, "supportedInterfaces", 0)["url"] = "http://provider.example.com/a2a/B1" }},
		{agent.ReasonRequiredExtension, func(c map[string]any) {
			at(c, "capabilities")["extensions"] = []any{map[string]any{"uri": "x", "required": true}}
		}},
		{agent.ReasonIdentityMissing, func(c map[string]any) { at(c, "securitySchemes")["pa"] = api }},
		{agent.ReasonIdentityNotAlone, func(c map[string]any) {
			c["securityRequirements"] = c["securityRequirements"].([]any)[1:]
		}},
		{agent.ReasonDelegationAmbiguous, func(c map[string]any) {
			at(c, "securitySchemes")["user2"] = at(c, "securitySchemes", "user")
			both := map[string]any{"schemes": map[string]any{"pa": nil, "user": nil, "user2": nil}}
			c["securityRequirements"] = append(c["securityRequirements"].([]any), both)
		}},
		{agent.ReasonDelegationCrossOrigin, func(c map[string]any) { at(c, deviceCode...)["tokenUrl"] = "https://evil.example/t" }},
	}
	for i, first := range changes {
		for _, other := range changes[i:] {
			doc := goodCard()
			other.change(doc) // the later one first: a second interface must be one by what the first left
			first.change(doc)
			switch first.reason + " " + other.reason {
			case agent.ReasonNoInterface + " " + agent.ReasonAmbiguousInterface, agent.ReasonNoInterface + " " + agent.ReasonTenant,
				agent.ReasonIdentityMissing + " " + agent.ReasonDelegationAmbiguous, agent.ReasonIdentityMissing + " " + agent.ReasonDelegationCrossOrigin:
				continue // the one is there only without the other
			}
			if card := parse(t, doc, agent.URLRules{}); card.Reason != first.reason || card.Support {
				t.Errorf("%s and %s: %q (%v)", first.reason, other.reason, card.Reason, card.Problems)
			}
		}
	}
}

// DI-8: the characters of a scope id, at each edge of their ranges.
func TestScopeCharacters(t *testing.T) {
	for c := range rune(0x100) {
		doc := goodCard()
		at(doc, append(deviceCode, "scopes")...)["a"+string(c)] = "x"
		good := c == 0x21 || c >= 0x23 && c <= 0x5b || c >= 0x5d && c <= 0x7e
		card := parse(t, doc, agent.URLRules{})
		if card.Support != good || !good && card.Reason != agent.ReasonInvalidCard {
			t.Errorf("%#x: support %v %s", c, card.Support, card.Reason)
		}
	}
}

// DI-11, DI-2: a fetch that brings no card at all ends no grant, and the next
// good one is sent by.
func TestBrokenFetchEndsNothing(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"truncated": func(rw http.ResponseWriter, _ *http.Request) bool {
			respond(rw, 200, `{"name":"Air","supp`)
			return true
		},
		"empty":     func(rw http.ResponseWriter, _ *http.Request) bool { respond(rw, 200, ``); return true },
		"an object": func(rw http.ResponseWriter, _ *http.Request) bool { respond(rw, 200, `{}`); return true },
		"404":       func(rw http.ResponseWriter, _ *http.Request) bool { rw.WriteHeader(404); return true },
		"500":       func(rw http.ResponseWriter, _ *http.Request) bool { rw.WriteHeader(500); return true },
		"dropped":   func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := granted(w, 30*time.Minute, "trips:read")
				broken := true
				w.intercept(provider, "agent-card.json", func(rw http.ResponseWriter, r *http.Request) bool { return broken && answer(rw, r) })
				r, err := a.Send(t.Context(), owner(), agent.SendRequest{Business: cardURL, Message: "Show"})
				if err != nil || r.Status != agent.StatusFailed && r.Status != agent.StatusUnsupported || len(w.biz.sent()) != 0 {
					t.Errorf("got %+v, %v", r, err)
				}
				if g := onlyGrant(t, a); g.State != "active" {
					t.Errorf("grant %+v", g)
				}
				broken = false
				w.send(a, owner(), readTrips, agent.StatusReplied, "")
			})
		})
	}
}

// DI-10: of an unsupported card the texts are kept, and nothing else.
func TestUnsupportedBusiness(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.card["supportedInterfaces"] = []any{}
		v, err := a.Discover(t.Context(), owner(), agent.ParseBusiness(cardURL))
		if err != nil || v.Supported || v.Reason != agent.ReasonNoInterface || v.Name != "Air" || len(v.Skills) != 1 ||
			v.InterfaceURL+v.Provider+v.Issuer != "" || len(v.Scopes) != 0 {
			t.Errorf("got %+v, %v", v, err)
		}
		w.send(a, w.person(), readTrips, agent.StatusUnsupported, agent.ReasonNoInterface)
		if n := len(w.calls(egress.Metadata)) + len(w.calls(egress.Message)) + len(w.calls(egress.DeviceAuthorization)); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// DI-12, PO-1, PO-2: nothing is looked up while PACT is switched off.
func TestNoDiscoveryWhileDisabled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		if err := a.SetPreference(t.Context(), owner(), agent.DisabledPACT); err != nil {
			t.Fatal(err)
		}
		if err := second(a.Discover(t.Context(), owner(), agent.ParseBusiness(cardURL))); agent.ReasonOf(err) != agent.ReasonPACTDisabled {
			t.Errorf("discover: %v", err)
		}
		if n := len(w.calls(egress.Card)); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// PO-2: a preference that was never chosen is as disabled.
func TestUnsetPreference(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.enrolled()
		w.edit(`UPDATE settings SET data = CAST(json_set(CAST(data AS TEXT), '$.Preference', '') AS BLOB)`)
		a := w.open()
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusBlocked, agent.ReasonPACTDisabled)
		// Switching on without a choice prefers PACT.
		if err := a.SetEnabled(t.Context(), owner(), true); err != nil {
			t.Fatal(err)
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
	})
}

// MD-4: whatever is wrong with metadata, the record stays as it was, to the byte.
func TestBadMetadataLeavesTheRecord(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"404":      func(rw http.ResponseWriter, _ *http.Request) bool { rw.WriteHeader(404); return true },
		"204":      func(rw http.ResponseWriter, _ *http.Request) bool { rw.WriteHeader(204); return true },
		"html":     func(rw http.ResponseWriter, _ *http.Request) bool { respond(rw, 200, "<html>"); return true },
		"no issue": func(rw http.ResponseWriter, _ *http.Request) bool { respond(rw, 200, "{}"); return true },
		"dropped":  func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.enrolled()
				if err := second(a.Discover(t.Context(), owner(), agent.ParseBusiness(cardURL))); err != nil {
					t.Fatal(err)
				}
				const record = `SELECT revision || CAST(data AS TEXT) FROM businesses`
				before := w.value(record)
				w.intercept(provider, "/oauth/metadata", answer)
				w.biz.set(func(b *business) { b.card["name"] = "Changed" })
				time.Sleep(time.Minute)
				err := second(a.Discover(t.Context(), owner(), agent.DiscoverRequest{CardURL: cardURL, Refresh: true}))
				if agent.ReasonOf(err) != agent.ReasonMetadataInvalid {
					t.Errorf("got %v", err)
				}
				w.want(record, before)
			})
		})
	}
}

// MD-1: each of the four URLs must be on the interface's origin: another port,
// scheme or host is another origin.
func TestDelegationOrigin(t *testing.T) {
	for _, c := range []struct {
		path []any
		name string
	}{{deviceCode, "deviceAuthorizationUrl"}, {deviceCode, "tokenUrl"}, {deviceCode, "refreshUrl"}, {oauth, "oauth2MetadataUrl"}} {
		for elsewhere, good := range map[string]bool{
			"https://provider.example.com/elsewhere": true, "https://provider.example.com:443/x": true,
			"https://provider.example.com:444/x": false, "https://login.provider.example.com/x": false, "https://example.com/x": false,
		} {
			doc := goodCard()
			at(doc, c.path...)[c.name] = elsewhere
			card := parse(t, doc, agent.URLRules{})
			if card.Support != good || !good && card.Reason != agent.ReasonDelegationCrossOrigin {
				t.Errorf("%s %s: %s", c.name, elsewhere, card.Reason)
			}
		}
	}
}

// MD-5, DA-14, S18-1: a login page on another site is shown, and flagged as one.
func TestForeignLoginPage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.device["verification_uri"] = "https://id.bank.example.net/d"
		w.biz.device["verification_uri_complete"] = "https://id.bank.example.net/d?user_code=ABCD-EFGH"
		c := w.person()
		signIn, shown := c.SignIn, 0
		c.SignIn = func(ctx context.Context, s agent.SignIn) error {
			shown++
			if s.Matches || s.LinkOrigin != "https://id.bank.example.net" || s.InterfaceOrigin != provider || s.ASOrigin != provider || s.CardURL != cardURL {
				t.Errorf("shown %+v", s)
			}
			return signIn(ctx, s)
		}
		w.authorize(a, c, agent.StatusDone, "")
		if shown != 1 {
			t.Errorf("shown %d times", shown)
		}
	})
}

// MD-6: the forms of a signature that nothing is verified by.
func TestSignatureForms(t *testing.T) {
	good := ecKey().sign(t, nil, receiptClaims)
	head := func(h map[string]any) string { return ecKey().sign(t, h, receiptClaims) }
	parts := strings.Split(good, ".")
	for name, compact := range map[string]string{
		"two parts": parts[0] + "." + parts[1], "four parts": good + ".x", "empty payload": parts[0] + ".." + parts[2], "no signature": parts[0] + "." + parts[1] + ".",
		"padded": good + "=", "crit": head(map[string]any{"alg": "ES256", "kid": "ec", "crit": []string{"b64"}, "b64": true}),
		"kid a number": head(map[string]any{"alg": "ES256", "kid": 7}), "kid null": head(map[string]any{"alg": "ES256", "kid": nil}),
		"none": head(map[string]any{"alg": "none"}), "HS256": head(map[string]any{"alg": "HS256", "kid": "ec"}), "ES384": head(map[string]any{"alg": "ES384", "kid": "ec"}),
		"RS256 of an EC key": head(map[string]any{"alg": "RS256", "kid": "ec"}),
	} {
		raw := envelope(t, compact, receiptClaims)
		if e := agent.VerifyReceipt(t.Context(), raw, receiptWant, agent.SetKeys(keySet())); e.Verdict != agent.VerdictInvalid {
			t.Errorf("%s: %s %v", name, e.Verdict, e.Issues)
		}
	}
	// A key in the header is nobody's: the signature of another key stays bad.
	jwk := jose.JSONWebKey{Key: rsaKey().priv.Public(), KeyID: "rsa"}
	for _, extra := range []string{"jwk", "jku", "x5u"} {
		h := map[string]any{"alg": "RS256", "kid": "ec", extra: jwk}
		raw := envelope(t, rsaKey().sign(t, h, receiptClaims), receiptClaims)
		set := keySet()
		set.Keys = set.Keys[:1] // not rsa
		if e := agent.VerifyReceipt(t.Context(), raw, receiptWant, agent.SetKeys(set)); e.Verdict != agent.VerdictInvalid {
			t.Errorf("%s: %s", extra, e.Verdict)
		}
	}
}

// MD-7: 64 sets are kept, and the one that was used longest ago leaves.
func TestKeySetsKept(t *testing.T) {
	fetches := map[string]int{}
	doc := newKey(t).set()
	cache := &jwks.Cache{Fetch: func(_ context.Context, u string) ([]byte, error) { fetches[u]++; return doc, nil }}
	look := func(n int) {
		if err := second(cache.Key(t.Context(), fmt.Sprint(n), "", jose.ES256)); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 64 {
		look(n)
	}
	look(0)
	if fetches["0"] != 1 {
		t.Error("64 sets are not kept")
	}
	look(64)
	look(0)
	look(1)
	if fetches["0"] != 1 || fetches["1"] != 2 {
		t.Errorf("the first was fetched %d times, the second %d times", fetches["0"], fetches["1"])
	}
}

// MD-7, EV-2: receipts of a key that is not there make one fetch in 30 s, however
// many there are.
func TestUnknownKeysAreLookedForRarely(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := granted(w, 50*time.Minute, "trips:read")
		other := newKey(t)
		w.send(a, owner(), readTrips, agent.StatusReplied, "") // the set is in date
		w.biz.set(func(b *business) {
			b.receipt = func(claims, envelope map[string]any) { envelope["jws"] = other.sign(claims) }
		})
		base := len(w.calls(egress.JWKS))
		for i, n := range []int{1, 1, 2} {
			r := w.send(a, owner(), readTrips, agent.StatusReplied, "")
			if r.Evidence.Issues[0] != agent.IssueUnknownKey {
				t.Errorf("%v", r.Evidence)
			}
			if got := len(w.calls(egress.JWKS)) - base; got != n {
				t.Errorf("look %d: %d fetches, want %d", i, got, n)
			}
			time.Sleep(15 * time.Second)
		}
	})
}

// UR-6, DA-2: each of the two links, if it is there, must pass the URL rules, and
// neither is shown if one does not.
func TestUnsafeLinks(t *testing.T) {
	var links [][2]string
	for _, field := range []string{"verification_uri", "verification_uri_complete"} {
		for _, link := range []string{
			"javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "http://login.air.example.com/", "//login.air.example.com/", "/device",
			"https://10.0.0.1/", "https://0x0a000001/", "https://[fd00::1]/", "https://metadata.google.internal/", "https://127.0.0.1:8443/", "http://127.0.0.1:8443/",
			"https://user@login.air.example.com/", "https://login.air.example.com/#x", "https:login.air.example.com",
		} {
			links = append(links, [2]string{field, link})
		}
	}
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		for _, l := range links {
			field, good := l[0], w.biz.device[l[0]]
			w.biz.device[field] = l[1]
			c := w.person()
			c.SignIn = func(context.Context, agent.SignIn) error { t.Errorf("%s %s is shown", field, l[1]); return nil }
			w.authorize(a, c, agent.StatusFailed, agent.ReasonConsentUnsafe)
			w.biz.device[field] = good
		}
		w.want(`SELECT COUNT(*) FROM authorizations`, "0")
		w.authorize(a, w.person(), agent.StatusDone, "")
	})
}

// UR-6, S18-11: a page on the provider's own machine is shown in development
// mode, over either scheme; what is no loopback is refused there as well.
func TestLoopbackLinkInDevelopment(t *testing.T) {
	for link, good := range map[string]bool{
		"https://127.0.0.1:8443/d": true, "http://localhost:8443/d": true, "http://login.air.example.com/d": false, "https://192.168.0.1/d": false,
	} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.config.Development = true
			a := w.enrolled()
			w.biz.device["verification_uri"], w.biz.device["verification_uri_complete"] = link, link
			if good {
				w.authorize(a, w.person(), agent.StatusDone, "")
			} else {
				w.authorize(a, w.person(), agent.StatusFailed, agent.ReasonConsentUnsafe)
			}
		})
	}
}

// UR-7, DA-11: messages go to the interface URL without its last slashes, and
// tokens are for it as the card states it.
func TestInterfaceWithASlash(t *testing.T) {
	for claim, good := range map[string]bool{iface + "/": true, iface: false} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			a := w.enrolled()
			w.biz.card["supportedInterfaces"].([]any)[0].(map[string]any)["url"] = iface + "/"
			w.biz.claims = func(c map[string]any) { c["aud"] = claim }
			w.biz.receipt = func(c, _ map[string]any) { c["brand"] = iface + "/" }
			if !good {
				w.authorize(a, w.person(), agent.StatusFailed, agent.ReasonGrantRefused)
				return
			}
			r := w.send(a, w.person(), readTrips, agent.StatusReplied, "")
			if got := w.calls(egress.Message)[0].url; got != iface+"/message:send" || r.Evidence.Verdict != agent.VerdictVerified {
				t.Errorf("sent to %s, evidence %+v", got, r.Evidence)
			}
		})
	}
}

// TR-5: what the requests of a whole delegated turn carry.
func TestRequestHeaders(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.send(a, w.person(), readTrips, agent.StatusReplied, "")
		credential := map[egress.Purpose]bool{
			egress.Card: false, egress.Metadata: false, egress.JWKS: false,
			egress.DeviceAuthorization: true, egress.Token: true, egress.Message: true, egress.Signer: true,
		}
		for purpose, want := range credential {
			calls := w.calls(purpose)
			if len(calls) == 0 {
				t.Errorf("no request for %s", purpose)
			}
			for _, r := range calls {
				if strings.HasSuffix(r.url, "/pact/enroll") {
					continue // its proof is in the body
				}
				if (r.header.Get("Authorization") != "") != want || r.header.Get("Cookie") != "" {
					t.Errorf("%s %s carries %v", purpose, r.url, r.header)
				}
				if delegated := r.header.Get("X-A2A-User-Delegation") != ""; delegated != (purpose == egress.Message) {
					t.Errorf("%s: delegation %v", purpose, delegated)
				}
			}
		}
		h := w.calls(egress.Message)[0].header
		if h.Get("A2A-Version") != "1.0" || h.Get("Content-Type") != "application/json" ||
			!strings.HasPrefix(h.Get("Authorization"), "Bearer eyJ") || !strings.HasPrefix(h.Get("X-A2A-User-Delegation"), "Bearer eyJ") {
			t.Errorf("message headers %v", h)
		}
	})
}

// TR-10: the caller's abort ends whatever call is under way, discovery included.
func TestAbortReachesEveryCall(t *testing.T) {
	for _, purpose := range []egress.Purpose{egress.Card, egress.Metadata, egress.DeviceAuthorization, egress.Message, egress.Signer} {
		t.Run(string(purpose), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.enrolled()
				w.enrolled() // its status is of another agent
				stuck, reached := false, make(chan struct{}, 1)
				a := w.openHooked(func(ctx context.Context, req egress.Request) (egress.Response, error, bool) {
					if !stuck || req.Purpose != purpose {
						return egress.Response{}, nil, false
					}
					reached <- struct{}{}
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Second): // what others wait for too is bounded by its own limit
					}
					return egress.Response{}, &egress.Error{Code: egress.Aborted, Purpose: purpose, Err: context.Canceled}, true
				})
				stuck = true
				ctx, cancel := context.WithCancel(t.Context())
				var r agent.Result
				done := make(chan time.Duration)
				start := time.Now()
				go func() {
					r, _ = a.Send(ctx, w.person(), agent.SendRequest{Business: cardURL, Message: "Show my trips", Scopes: []string{"trips:read"}})
					done <- time.Since(start)
				}()
				<-reached
				start = time.Now()
				cancel()
				if took := <-done; took != 0 {
					t.Errorf("it took %v", took)
				}
				if len(w.biz.sent()) != 0 || r.Status == agent.StatusReplied {
					t.Errorf("got %+v", r)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// TR-7, CV-10, DA-6: a date in Retry-After is obeyed as seconds are.
func TestRetryAfterDate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.enrolled()
		w.biz.answer = func(u turn) (int, any) {
			if u.n == 0 {
				return 429, http.Header{"Retry-After": {time.Now().Add(42 * time.Second).UTC().Format(http.TimeFormat)}}
			}
			return 0, nil
		}
		w.send(a, owner(), agent.SendRequest{Message: "Show"}, agent.StatusReplied, "")
		calls := w.calls(egress.Message)
		if got := calls[1].at.Sub(calls[0].at); got != 42*time.Second {
			t.Errorf("waited %v", got)
		}
		if u, err := url.Parse(calls[0].url); err != nil || u.Path != "/a2a/air/message:send" {
			t.Errorf("%v, %v", u, err)
		}
	})
}
