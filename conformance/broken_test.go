package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/sandbox"
)

// broken says which faults of the sandbox each check must catch. A fault that the
// protocol allows says so in its About, and is not here.
var broken = map[string][]string{
	"card-served": {
		"card-status", "card-slow", "card-hang", "card-cut-headers", "card-garbage", "card-malformed", "card-oversize",
	},
	"card-redirects":     {"card-redirect", "card-redirect=http", "card-redirect=userinfo", "card-redirect=javascript", "card-redirect=many", "card-redirect=no-location"},
	"card-unknown-brand": {"brand-unknown-200"},
	"card-fields":        {"card-missing", "card-missing=name", "card-missing=version", "card-missing=skills", "card-skill-bare"},
	"card-interface":     {"card-no-interface", "card-interface-version", "card-interface-url", "card-two-interfaces"},
	"card-identity":      {"card-identity-basic", "card-identity-not-alone"},
	"card-capabilities":  {"card-streaming"},
	"card-delegation":    {"card-no-requirement", "card-no-scopes", "card-no-metadata-url"},
	"card-origins":       {"card-token-origin", "card-device-origin", "card-metadata-origin"},

	"auth-accepted":  {"identity-401", "replay-401", "strict-version"},
	"auth-rs256":     {"no-rs256"},
	"auth-missing":   {"lax-no-token"},
	"auth-malformed": {"lax-scheme"},
	"auth-signature": {"lax-signature"},
	"auth-algorithm": {"lax-algorithm"},
	"auth-kid":       {"lax-kid"},
	"auth-audience":  {"lax-audience", "lax-audience-prefix"},
	"auth-issuer":    {"lax-issuer"},
	"auth-subject":   {"lax-subject"},
	"auth-future":    {"lax-future"},
	"auth-expired":   {"lax-expired"},
	"auth-lifetime":  {"lax-lifetime", "lax-iat"},
	"auth-challenge": {"challenge-none", "challenge-realm", "challenge-body"},
	"auth-rotation":  {"jwks-sticky"},

	"route-unknown":       {"route-unknown-401", "route-unknown-body"},
	"route-method":        {"route-method-401"},
	"route-auth-first":    {"auth-late", "brand-early"},
	"route-unknown-brand": {"brand-unknown-400"},
	"route-tasks":         {"tasks-shape"},
	"route-page-size":     {"lax-page-size", "lax-page-size-digits"},
	"route-query":         {"strict-query"},
	"route-task":          {"lax-task"},
	"route-unsupported":   {"unsupported-501"},
	"route-push":          {"push-404"},
	"route-headers":       {"strict-content-type"},
	"route-type":          {"reply-json", "reply-content-type", "envelope-json"},

	"message-reply": {
		"redirect", "status", "drop-before", "hang-before", "no-reply", "drop-after", "cut-headers", "hang", "slow",
		"reply-role-user", "reply-no-context", "reply-garbage", "reply-malformed", "reply-oversize", "too-many",
	},
	"message-contexts":        {"reply-context", "reply-crossed", "context-fixed"},
	"message-repeat":          {"reply-previous", "run-again", "repeat-anywhere", "repeat-foreign"},
	"message-concurrent":      {"run-again"},
	"message-unknown-context": {"lax-context", "context-tells"},
	"message-schema":          {"lax-message-id", "lax-role", "lax-blank"},
	"message-parts":           {"lax-parts"},
	"message-part-members":    {"lax-part-members", "strict-part"},
	"message-members":         {"strict-members"},
	"message-task-id":         {"lax-task-id"},
	"message-errors":          {"envelope-bare", "envelope-code", "envelope-domain"},
	"message-closed":          {"closed-open", "still-running"},
	"message-retry-after":     {"no-retry-after"},

	"metadata-served": {
		"metadata-status", "metadata-redirect", "metadata-slow", "metadata-hang", "metadata-cut-headers",
		"metadata-garbage", "metadata-malformed", "metadata-content-type", "metadata-oversize",
	},
	"metadata-endpoints": {"metadata-missing", "metadata-missing=issuer", "metadata-token-slash", "metadata-device-other"},
	"metadata-issuer":    {"metadata-jwks-origin", "metadata-issuer-origin"},
	"metadata-keys": {
		"jwks-down", "jwks-status", "jwks-redirect", "jwks-slow", "jwks-hang", "jwks-cut-headers",
		"jwks-garbage", "jwks-malformed", "jwks-missing", "jwks-oversize", "jwks-private", "jwks-twice",
	},

	"oauth-auth":       {"lax-oauth-auth", "lax-refresh-auth"},
	"oauth-client":     {"lax-client", "lax-refresh-auth"},
	"oauth-scope":      {"lax-scope"},
	"oauth-grant-type": {"lax-grant-type"},
	"oauth-errors":     {"oauth-error-status"},
	"device-response": {
		"device-status", "device-redirect", "device-slow", "device-hang", "device-cut-headers", "device-garbage", "device-malformed",
		"device-missing", "device-content-type", "device-oversize", "device-uri", "device-complete-uri",
		"device-interval", "device-expires", "device-429", "device-error",
	},

	"signin-pages": {
		"page-status", "page-slow", "page-hang", "page-redirect", "page-cut-headers", "page-garbage", "device-foreign", "consent-missing-scope",
	},
	"signin-assertion":      {"assertion-reuse"},
	"signin-session":        {"session-reuse"},
	"signin-wrong-password": {"lax-password"},
	"signin-extra-scope":    {"lax-consent"},

	"token-pending": {"consent-skipped", "poll-429", "poll-status", "poll-error"},
	"token-pace":    {"poll-slow-down"},
	"token-denied":  {"denied-pending", "nothing-allowed"},
	"token-response": {
		"token-status", "token-redirect", "token-slow", "token-hang", "token-cut-headers", "token-garbage", "token-malformed",
		"token-missing", "token-content-type", "token-oversize", "token-type", "oauth-cacheable", "poll-pending",
	},
	"token-scope":   {"grant-extra", "grant-all", "grant-less"},
	"token-claims":  {"grant-aud", "grant-client-id", "grant-iss", "grant-scope", "grant-signature", "grant-no-id", "key-early", "key-dropped"},
	"token-used":    {"code-reuse"},
	"token-unknown": {"unknown-pending"},
	"token-foreign": {"lax-code"},
	"token-expired": {"code-immortal"},

	"refresh-works":   {"refresh-wide", "refresh-error", "refresh-grant"},
	"refresh-rotates": {"refresh-keep"},
	"refresh-reused":  {"refresh-reuse"},
	"refresh-unknown": {"lax-refresh"},
	"refresh-foreign": {"lax-refresh-party"},

	"delegation-accepted":  {"delegation-401"},
	"delegation-signature": {"lax-delegation", "delegation-challenge"},
	"delegation-foreign":   {"lax-delegation-party"},
	"delegation-alone":     {"lax-no-token"},
	"delegation-user":      {"lax-context-user", "reply-to-anyone"},
	"delegation-expired":   {"lax-delegation-expired"},

	"stepup-task":    {"step-up-no-message-id", "step-up-state", "step-up-unknown", "step-up-scopes-text", "scopes-unenforced"},
	"stepup-missing": {"step-up-more"},
	"stepup-link":    {"step-up-link", "step-up-foreign", "step-up-stale"},
	"stepup-done":    {"step-up-again", "step-up-loop", "step-up-creep"},

	"receipt-present":   {"receipt-none"},
	"receipt-form":      {"receipt-form", "receipt-no-claims"},
	"receipt-signature": {"receipt-bit", "receipt-unknown-kid"},
	"receipt-claims":    {"receipt-envelope"},
	"receipt-parties":   {"receipt-grant", "receipt-user", "receipt-pa", "receipt-brand"},
	"receipt-scopes":    {"receipt-scope"},
	"receipt-time":      {"receipt-late", "receipt-early"},
	"receipt-own":       {"receipt-replay"},
	"receipt-stored":    {"run-again"},
}

// allowed tells whether the protocol allows what a fault does.
func allowed(f sandbox.Fault) bool { return strings.HasSuffix(f.About, "(allowed)") }

// Every check has a fault that must fail it, and every fault a check that it fails,
// unless the protocol allows it.
func TestBrokenTable(t *testing.T) {
	listed := map[string]bool{}
	for _, specs := range broken {
		for _, spec := range specs {
			name, _, _ := strings.Cut(spec, "=")
			listed[name] = true
		}
	}
	known := map[string]bool{}
	for _, f := range sandbox.Faults() {
		known[f.Name] = true
		if listed[f.Name] == allowed(f) {
			t.Errorf("%s: it fails a check: %v; the protocol allows it: %v; must be one of the two", f.Name, listed[f.Name], allowed(f))
		}
	}
	for name := range listed {
		if !known[name] {
			t.Errorf("there is no fault %s", name)
		}
	}
	for _, c := range Checks() {
		if len(broken[c.ID]) == 0 {
			t.Errorf("no fault fails %s", c.ID)
		}
	}
	for id := range broken {
		if _, err := choose([]string{id}); err != nil {
			t.Errorf("there is no check %s", id)
		}
	}
}

// patience is how long answers are waited for at first: shortly with faults whose answers
// come too late or never, longer with those that lead to a host that is nowhere, and else
// as long as it takes.
func patience(spec string) time.Duration {
	name, _, _ := strings.Cut(spec, "=")
	ends := func(suffixes ...string) bool {
		return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })
	}
	switch {
	case ends("hang", "slow", "hang-before"):
		return 500 * time.Millisecond
	case ends("foreign"):
		return 5 * time.Second
	}
	return unhurried
}

const unhurried = time.Minute

// lateBy is how late answers are that a fault delays.
const lateBy = 15 * time.Second

// A sandbox that is broken in one way fails the check that it should.
func TestBroken(t *testing.T) {
	for _, c := range Checks() {
		for _, spec := range broken[c.ID] {
			t.Run(c.ID+" "+spec, func(t *testing.T) {
				t.Parallel()
				var r Result
				for timeout := patience(spec); ; timeout *= 4 {
					w := newWorld(t)
					if err := w.sandbox.SetFaults(spec); err != nil {
						t.Fatal(err)
					}
					w.cfg.Timeout, w.cfg.Slow = timeout, false
					results, _ := w.run(t, c.ID)
					// On a busy machine what leads to the check may take longer than that.
					if r = results[0]; r.Status != NotRun || 4*timeout >= lateBy {
						break
					}
				}
				if r.Status != Failed {
					t.Errorf("%s: %s: %s", r.ID, r.Status, r.Detail)
				} else if err := fit(r.Detail); err != nil {
					t.Errorf("%s: %v: %s", r.ID, err, r.Detail)
				}
			})
		}
	}
}

// What the protocol allows passes the whole suite, so that it is no stricter.
func TestAllowed(t *testing.T) {
	for _, f := range sandbox.Faults() {
		if !allowed(f) {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if err := w.sandbox.SetFaults(f.Name); err != nil {
				t.Fatal(err)
			}
			results, _ := w.run(t)
			for _, r := range results {
				if r.Status == Failed {
					t.Errorf("%s: %s", r.ID, r.Detail)
				}
			}
		})
	}
}

// fit tells whether a failure's detail is short, and without a secret.
func fit(detail string) error {
	const longest = 300
	for line := range strings.Lines(detail) {
		if n := len([]rune(line)); n > longest {
			return fmt.Errorf("a line has %d characters", n)
		}
	}
	if i := slices.IndexFunc(secretLooks, func(s string) bool { return strings.Contains(detail, s) }); i >= 0 {
		return fmt.Errorf("it holds %q", secretLooks[i])
	}
	return nil
}

// secretLooks is what tokens, codes and links of the sandbox begin with or hold.
var secretLooks = []string{"eyJ", "dc_", "rt_", "user_code", "return_to", testLogins[0].Password}
