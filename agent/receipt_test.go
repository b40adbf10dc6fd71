package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/jwks"
)

func TestReceiptVectors(t *testing.T) {
	type file struct {
		Given struct {
			Expect struct {
				Brand, GrantID, PA, User string
				GrantScopes              []string
				SentAt, ReceivedAt       time.Time
			}
			JWKS json.RawMessage
		}
		Cases []struct {
			Name    string
			Receipt json.RawMessage
			Want    struct {
				Verdict agent.Verdict
				Issues  []string
			}
		}
	}
	vectors(t, "receipts.json", func(t *testing.T, f file) {
		atLeastOne(t, len(f.Cases))
		set, err := jwks.Parse(f.Given.JWKS)
		if err != nil {
			t.Fatal(err)
		}
		x := f.Given.Expect
		want := agent.ReceiptWant{
			Delegated: true, GrantID: x.GrantID, User: x.User, PA: x.PA, Brand: x.Brand,
			GrantScopes: x.GrantScopes, SentAt: x.SentAt, ReceivedAt: x.ReceivedAt,
		}
		cache := &jwks.Cache{Fetch: func(context.Context, string) ([]byte, error) { return f.Given.JWKS, nil }}
		for _, c := range f.Cases {
			t.Run(c.Name, func(t *testing.T) {
				for name, keys := range map[string]agent.KeyFinder{
					"offline": agent.SetKeys(set), "fetched": agent.CacheKeys(cache, "https://provider.example.com/jwks.json"),
				} {
					raw := []byte(c.Receipt)
					if string(raw) == "null" { // a case without a receipt, not one that is null
						raw = nil
					}
					e := agent.VerifyReceipt(t.Context(), raw, want, keys)
					if e.Verdict != c.Want.Verdict || c.Want.Issues != nil && !sameSet(e.Issues, c.Want.Issues) {
						t.Errorf("%s: got %s %v, want %+v; problems %v", name, e.Verdict, e.Issues, c.Want, e.Problems)
					}
				}
			})
		}
	})
}

// sameSet: the order in which issues are found is no promise.
func sameSet(a, b []string) bool {
	sorted := func(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }
	return slices.Equal(sorted(a), sorted(b))
}

var (
	sentAt      = time.Date(2026, 11, 18, 10, 26, 40, 0, time.UTC)
	receiptWant = agent.ReceiptWant{
		Delegated: true, GrantID: "g-1", User: "cust-1", PA: "https://pa.example.com", Brand: goodInterface,
		GrantScopes: []string{"orders:read"}, SentAt: sentAt, ReceivedAt: sentAt.Add(3 * time.Second),
	}
	receiptClaims = map[string]any{
		"grantId": "g-1", "user": "cust-1", "pa": "https://pa.example.com", "brand": goodInterface,
		"scopesUsed": []any{"orders:read"}, "actions": []any{map[string]any{"tool": "lookup"}}, "ts": "2026-11-18T10:26:41.5Z",
	}
)

// receipt signs claims and puts the envelope around them.
func receipt(t testing.TB, claims any) []byte {
	return envelope(t, ecKey().sign(t, map[string]any{"alg": "ES256", "kid": "ec", "typ": "pact-receipt+jws"}, claims), claims)
}

func envelope(t testing.TB, jws, claims any) []byte {
	data, err := json.Marshal(map[string]any{"jws": jws, "claims": claims})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestReceiptVerdicts covers EV-1..EV-4 beyond the vectors.
func TestReceiptVerdicts(t *testing.T) {
	keys := agent.SetKeys(keySet())
	want := func(change func(w *agent.ReceiptWant)) agent.ReceiptWant {
		w := receiptWant
		change(&w)
		return w
	}
	claims := func(changes map[string]any) []byte { return receipt(t, with(receiptClaims, changes)) }
	good := claims(nil)
	var doc struct{ JWS string }
	if err := json.Unmarshal(good, &doc); err != nil {
		t.Fatal(err)
	}
	ts := func(at time.Time) []byte { return claims(map[string]any{"ts": at.Format(time.RFC3339Nano)}) }

	for _, c := range []struct {
		name    string
		raw     []byte
		want    agent.ReceiptWant
		keys    agent.KeyFinder
		verdict agent.Verdict
		issues  string
	}{
		{"good", good, receiptWant, keys, "verified", ""},
		{"nothing-used", claims(map[string]any{"scopesUsed": []any{}, "actions": []any{}}), receiptWant, keys, "verified", ""}, // EV-10
		{"extra-members", claims(map[string]any{"x": 1}), receiptWant, keys, "verified", ""},
		{"args-hash-an-object", claims(map[string]any{"actions": []any{map[string]any{"tool": "t", "argsHash": map[string]any{"a": 1}}}}), receiptWant, keys, "verified", ""},

		{"not-delegated", nil, want(func(w *agent.ReceiptWant) { w.Delegated = false }), keys, "not_applicable", ""},
		{"not-delegated-and-unexpected", good, want(func(w *agent.ReceiptWant) { w.Delegated = false }), keys, "not_applicable", "unexpected_receipt"},
		{"missing", nil, receiptWant, keys, "missing", ""},

		// EV-2.
		{"null", []byte("null"), receiptWant, keys, "invalid", "receipt_malformed"},
		{"a-string", []byte(`"x"`), receiptWant, keys, "invalid", "receipt_malformed"},
		{"empty-object", []byte(`{}`), receiptWant, keys, "invalid", "receipt_malformed"},
		{"no-jws", envelope(t, nil, receiptClaims), receiptWant, keys, "invalid", "receipt_malformed"},
		{"no-claims", envelope(t, doc.JWS, nil), receiptWant, keys, "invalid", "receipt_malformed"},
		{"claims-a-list", envelope(t, doc.JWS, []any{}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"jws-a-number", envelope(t, 1, receiptClaims), receiptWant, keys, "invalid", "receipt_malformed"},
		{"jws-of-two-parts", envelope(t, "eyJhbGciOiJFUzI1NiJ9.e30", receiptClaims), receiptWant, keys, "invalid", "receipt_malformed"},
		{"repeated-member", []byte(strings.Replace(string(good), `"claims":`, `"claims":{},"claims":`, 1)), receiptWant, keys, "invalid", "receipt_malformed"},
		{"no-user", claims(map[string]any{"user": nil}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"no-scopes", claims(map[string]any{"scopesUsed": nil}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"no-actions", claims(map[string]any{"actions": nil}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"scopes-a-string", claims(map[string]any{"scopesUsed": "orders:read"}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"action-without-tool", claims(map[string]any{"actions": []any{map[string]any{}}}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"action-a-string", claims(map[string]any{"actions": []any{"lookup"}}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"ts-unparseable", claims(map[string]any{"ts": "yesterday"}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"ts-comma-fraction", claims(map[string]any{"ts": "2026-11-18T10:26:41,5Z"}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"ts-one-digit-hour", claims(map[string]any{"ts": "2026-11-18T9:26:41Z"}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"ts-offset-of-a-day", claims(map[string]any{"ts": "2026-11-19T10:26:41+24:00"}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"ts-offset-of-60-minutes", claims(map[string]any{"ts": "2026-11-18T11:26:41+00:60"}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"ts-60-seconds", claims(map[string]any{"ts": "2026-11-18T10:26:60Z"}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"ts-without-zone", claims(map[string]any{"ts": "2026-11-18T10:26:41"}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"ts-a-number", claims(map[string]any{"ts": 1795000000}), receiptWant, keys, "invalid", "receipt_malformed"},
		{"envelope-has-more", envelope(t, doc.JWS, with(receiptClaims, map[string]any{"x": 1})), receiptWant, keys, "invalid", "claims_differ_from_signed"},
		{"envelope-with-another-integer", []byte(strings.Replace(string(claims(map[string]any{"x": json.Number("9007199254740993")})), `0993}`, `0992}`, 1)), receiptWant, keys, "invalid", "claims_differ_from_signed"},
		{"envelope-in-other-actions", envelope(t, doc.JWS, with(receiptClaims, map[string]any{"actions": []any{}})), receiptWant, keys, "invalid", "claims_differ_from_signed"},
		{"grant", good, want(func(w *agent.ReceiptWant) { w.GrantID = "g-2" }), keys, "invalid", "grant_mismatch"},
		{"user", good, want(func(w *agent.ReceiptWant) { w.User = "cust-2" }), keys, "invalid", "user_mismatch"},
		{"pa", good, want(func(w *agent.ReceiptWant) { w.PA += "/" }), keys, "invalid", "pa_mismatch"},
		{"brand", good, want(func(w *agent.ReceiptWant) { w.Brand += "/" }), keys, "invalid", "brand_mismatch"},
		{"replayed", good, want(func(w *agent.ReceiptWant) { w.Seen = func(string) bool { return true } }), keys, "invalid", "replayed_receipt"},
		{"not-replayed", good, want(func(w *agent.ReceiptWant) { w.Seen = func(string) bool { return false } }), keys, "verified", ""},
		{"alg-none", envelope(t, "eyJhbGciOiJub25lIn0.e30.AA", receiptClaims), receiptWant, keys, "invalid", "receipt_malformed"},
		{"unknown-kid", envelope(t, ecKey().sign(t, map[string]any{"alg": "ES256", "kid": "x"}, receiptClaims), receiptClaims), receiptWant, keys, "invalid", "unknown_key"},
		{"no-kid-one-key", envelope(t, ecKey().sign(t, map[string]any{"alg": "ES256"}, receiptClaims), receiptClaims), receiptWant, keys, "verified", ""}, // MD-7
		{"other-signature", envelope(t, doc.JWS[:len(doc.JWS)-8]+"AAAAAAAA", receiptClaims), receiptWant, keys, "invalid", "bad_signature"},

		// EV-3.
		{"no-jwks-uri", good, receiptWant, nil, "unverifiable", "keys_unavailable"},
		{"jwks-unreachable", good, receiptWant, brokenKeys{jwks.ErrUnavailable}, "unverifiable", "keys_unavailable"},
		{"invalid-beats-unverifiable", good, want(func(w *agent.ReceiptWant) { w.User = "x" }), nil, "invalid", "user_mismatch keys_unavailable"},
		{"unverifiable-beats-review", claims(map[string]any{"scopesUsed": []any{"x"}}), receiptWant, nil, "unverifiable", "keys_unavailable scopes_outside_grant"},

		// EV-4.
		{"grant-unknown", good, want(func(w *agent.ReceiptWant) { w.GrantID = "" }), keys, "needs_review", "grant_binding_unknown"},
		{"user-unknown", good, want(func(w *agent.ReceiptWant) { w.User = "" }), keys, "needs_review", "grant_binding_unknown"},
		{"scopes-unknown", good, want(func(w *agent.ReceiptWant) { w.GrantScopes = nil }), keys, "needs_review", "grant_binding_unknown"},
		{"scopes-outside", good, want(func(w *agent.ReceiptWant) { w.GrantScopes = []string{} }), keys, "needs_review", "scopes_outside_grant"},
		{"5-minutes-early", ts(sentAt.Add(-5 * time.Minute)), receiptWant, keys, "verified", ""},
		{"later-than-5-minutes-early", ts(sentAt.Add(-5*time.Minute - time.Millisecond)), receiptWant, keys, "needs_review", "timestamp_outside_send_window"},
		{"5-minutes-late", ts(sentAt.Add(5*time.Minute + 3*time.Second)), receiptWant, keys, "verified", ""},
		{"more-than-5-minutes-late", ts(sentAt.Add(5*time.Minute + 3*time.Second + time.Millisecond)), receiptWant, keys, "needs_review", "timestamp_outside_send_window"},
		{"ts-lower-case", claims(map[string]any{"ts": "2026-11-18t10:26:41.5z"}), receiptWant, keys, "verified", ""},
		{"ts-leap-second", claims(map[string]any{"ts": "2016-12-31T23:59:60Z"}), receiptWant, keys, "needs_review", "timestamp_outside_send_window"},
		{"other-zone", claims(map[string]any{"ts": "2026-11-18T12:26:41+02:00"}), receiptWant, keys, "verified", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := agent.VerifyReceipt(t.Context(), c.raw, c.want, c.keys)
			if e.Verdict != c.verdict || strings.Join(e.Issues, " ") != c.issues {
				t.Errorf("got %s %v, want %s %s; problems %v", e.Verdict, e.Issues, c.verdict, c.issues, e.Problems)
			}
			if (e.Verdict == agent.VerdictVerified) != (len(e.Issues) == 0 && len(e.Problems) == 0 && c.want.Delegated && c.raw != nil) {
				t.Errorf("verdict %s with problems %v", e.Verdict, e.Problems)
			}
		})
	}
}

// TestReceiptEvidence covers what is kept and shown (EV-9).
func TestReceiptEvidence(t *testing.T) {
	long := strings.Repeat("ü", 500)
	raw := receipt(t, with(receiptClaims, map[string]any{"actions": []any{
		map[string]any{"tool": long, "argsHash": long}, map[string]any{"tool": "t", "argsHash": 17},
	}}))
	e := agent.VerifyReceipt(t.Context(), raw, receiptWant, agent.SetKeys(keySet()))
	if e.Verdict != agent.VerdictVerified || len(e.Digest) != 64 || e.KeyID != "ec" || e.Algorithm != "ES256" {
		t.Fatalf("%+v", e)
	}
	if a := e.Claims.Actions[0]; len([]rune(a.Tool)) != 120 || len([]rune(a.ArgsHash)) != 200 {
		t.Errorf("action of %d and %d characters", len([]rune(a.Tool)), len([]rune(a.ArgsHash)))
	}
	if e.Claims.Actions[1].ArgsHash != "17" || !e.Claims.Time.Equal(sentAt.Add(1500*time.Millisecond)) || e.Claims.User.Reveal() != "cust-1" {
		t.Errorf("%+v", e.Claims)
	}
	out, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out)+fmt.Sprintf("%+v %#v", e, e), "cust-1") {
		t.Errorf("the view shows the user: %s", out)
	}
	again := agent.VerifyReceipt(t.Context(), raw, receiptWant, nil)
	if again.Digest != e.Digest {
		t.Error("the digest depends on the verdict")
	}
}

func FuzzReceipt(f *testing.F) {
	f.Add(receipt(f, receiptClaims))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"jws":"a.b.c","claims":{}}`))
	keys := agent.SetKeys(keySet())
	genuine := func(e agent.Evidence) bool {
		return e.Claims != nil && e.Claims.GrantID == "g-1" && e.Claims.User.Reveal() == "cust-1" && e.KeyID != ""
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		e := agent.VerifyReceipt(t.Context(), raw, receiptWant, keys)
		switch e.Verdict {
		case agent.VerdictVerified:
			if !genuine(e) || len(e.Issues) > 0 {
				t.Fatalf("%s is verified", raw)
			}
		case agent.VerdictMissing:
			if raw != nil {
				t.Fatalf("%q is missing", raw)
			}
		case agent.VerdictInvalid, agent.VerdictNeedsReview:
			if len(e.Issues) == 0 {
				t.Fatalf("%s: %s without an issue", raw, e.Verdict)
			}
		default:
			t.Fatalf("%s: %s", raw, e.Verdict)
		}
	})
}
