package agent

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/jwks"
)

// Verdict is what a receipt is worth (EV-1).
type Verdict string

// The verdicts. Verified means that the business signed this claim: not that
// money moved, and it binds neither messageId nor contextId (EV-8).
const (
	VerdictNotApplicable Verdict = "not_applicable" // the turn carried no delegation
	VerdictMissing       Verdict = "missing"        // no pact.receipt at all
	VerdictInvalid       Verdict = "invalid"        // EV-2
	VerdictUnverifiable  Verdict = "unverifiable"   // EV-3
	VerdictNeedsReview   Verdict = "needs_review"   // EV-4
	VerdictVerified      Verdict = "verified"
)

// Why a verdict is not verified: Evidence.Issues.
const (
	IssueForm            = "receipt_malformed"
	IssueEnvelope        = "claims_differ_from_signed"
	IssueGrant           = "grant_mismatch"
	IssueUser            = "user_mismatch"
	IssuePA              = "pa_mismatch"
	IssueBrand           = "brand_mismatch"
	IssueReplayed        = "replayed_receipt"
	IssueUnknownKey      = "unknown_key"
	IssueSignature       = "bad_signature"
	IssueKeysUnavailable = "keys_unavailable"
	IssueBindingUnknown  = "grant_binding_unknown"
	IssueScopes          = "scopes_outside_grant"
	IssueTime            = "timestamp_outside_send_window"
	IssueUnexpected      = "unexpected_receipt" // with not_applicable: logged only
)

// receiptSlack is how far a receipt's time may be outside sending and receiving
// (EV-4).
const receiptSlack = 5 * time.Minute

// receiptMember is a receipt's name in a message's metadata.
const receiptMember = "pact.receipt"

// Action is something the business says it did under the grant. The hash
// format is undefined in PACT 1.0: ArgsHash is shown, never checked (EV-9).
type Action struct {
	Tool     string `json:"tool"`
	ArgsHash string `json:"argsHash,omitempty"`
}

// ReceiptClaims is what a receipt says. User is hidden from views (EV-9).
type ReceiptClaims struct {
	GrantID    string    `json:"grantId"`
	User       Secret    `json:"user"`
	PA         string    `json:"pa"`
	Brand      string    `json:"brand"`
	ScopesUsed []string  `json:"scopesUsed"`
	Actions    []Action  `json:"actions"`
	Time       time.Time `json:"ts"`
}

// redact makes what was compared fit to be shown and kept: a business may echo a
// token that it got (RD-2).
func (c *ReceiptClaims) redact() {
	c.GrantID, c.PA, c.Brand = safe(c.GrantID, maxURLInput), safe(c.PA, maxURLInput), safe(c.Brand, maxURLInput)
	for i, s := range c.ScopesUsed {
		c.ScopesUsed[i] = safe(s, maxScopeText)
	}
}

// ReceiptWant is what the agent knows of the turn that a receipt is for. An
// empty GrantID, User, PA or Brand, and a nil GrantScopes, is not known.
type ReceiptWant struct {
	Delegated   bool // the turn carried a delegation token
	GrantID     string
	User        string // the delegation token's sub
	PA          string // the PA issuer
	Brand       string // the interface URL as the card states it
	GrantScopes []string
	SentAt      time.Time // in a reconcile, of the original send
	ReceivedAt  time.Time
	// Seen reports whether a receipt of that digest is already attached to
	// another message; nil: none is.
	Seen func(digest string) bool
}

// Evidence is the verdict on a receipt, and why.
type Evidence struct {
	Verdict   Verdict        `json:"verdict"`
	Issues    []string       `json:"issues,omitempty"`
	Problems  []Problem      `json:"problems,omitempty"` // the issues in words
	Claims    *ReceiptClaims `json:"claims,omitempty"`   // as far as they could be read
	Digest    string         `json:"digest,omitempty"`   // SHA-256 of the JWS, hex
	KeyID     string         `json:"keyId,omitempty"`
	Algorithm string         `json:"algorithm,omitempty"`
}

// VerifyReceipt judges message.metadata["pact.receipt"] (EV-1..EV-4). raw is
// nil if the reply has no such member; JSON null is one, and invalid. keys is
// nil if the metadata names no jwks_uri. All that is wrong is listed, and the
// worst decides.
func VerifyReceipt(ctx context.Context, raw jsontext.Value, want ReceiptWant, keys KeyFinder) Evidence {
	if !want.Delegated {
		e := Evidence{Verdict: VerdictNotApplicable}
		if raw != nil {
			e.Issues = []string{IssueUnexpected}
		}
		return e
	}
	if raw == nil {
		return Evidence{Verdict: VerdictMissing}
	}
	r := &reader{reason: IssueForm, most: maxEntries}
	var e Evidence
	jws, payload := r.receiptForm(raw, &e)
	if e.Claims != nil {
		r.binding(*e.Claims, want)
	}
	if e.Digest != "" && want.Seen != nil && want.Seen(e.Digest) {
		r.add(IssueReplayed, "jws", "the same receipt is already attached to another message")
	}
	verdict := VerdictVerified
	if r.count > 0 {
		verdict = VerdictInvalid
	}
	if jws != nil {
		verdict = worst(verdict, r.signature(ctx, jws, payload, keys))
	}
	if e.Claims != nil && r.review(*e.Claims, want) {
		verdict = worst(verdict, VerdictNeedsReview)
	}
	if e.Claims != nil {
		e.Claims.redact()
	}
	e.Verdict, e.Problems = verdict, r.problems
	for _, p := range r.problems {
		if !slices.Contains(e.Issues, p.Reason) {
			e.Issues = append(e.Issues, p.Reason)
		}
	}
	return e
}

func worst(a, b Verdict) Verdict {
	rank := []Verdict{VerdictInvalid, VerdictUnverifiable, VerdictNeedsReview, VerdictVerified}
	return rank[min(slices.Index(rank, a), slices.Index(rank, b))]
}

// receiptForm reads {jws, claims} and compares the envelope's copy with the
// signed payload; neither the order of members nor how a number is written matters.
func (r *reader) receiptForm(raw jsontext.Value, e *Evidence) (*jwks.Token, []byte) {
	o, err := parseObject(raw)
	if err != nil {
		r.add(IssueForm, receiptMember, "is %v", err)
		return nil, nil
	}
	claims, haveClaims := r.member(o, "", "claims", true, '{', "an object")
	compact := r.text(o, "", "jws", true)
	if compact == "" {
		return nil, nil
	}
	e.Digest = digest([]byte(compact))
	jws, err := jwks.ParseCompact(compact, tokenAlgorithms...)
	if err != nil {
		r.add(IssueForm, "jws", "%v", err)
		return nil, nil
	}
	e.KeyID, e.Algorithm = safe(jws.KeyID, maxScopeID), string(jws.Algorithm)
	payload := jws.Unverified()
	signed, err := parseObject(payload)
	if err != nil {
		r.add(IssueForm, "jws", "its payload is %v", err)
		return jws, payload
	}
	e.Claims = r.claims(signed)
	if haveClaims {
		if !sameJSON(claims, payload) {
			r.add(IssueEnvelope, "claims", "are not what the business signed")
		}
	}
	return jws, payload
}

// claims reads the signed payload; nil if its form is wrong.
func (r *reader) claims(o object) *ReceiptClaims {
	before := r.count
	c := ReceiptClaims{
		GrantID: r.text(o, "claims.", "grantId", true),
		User:    Secret(r.text(o, "claims.", "user", true)),
		PA:      r.text(o, "claims.", "pa", true),
		Brand:   r.text(o, "claims.", "brand", true),
	}
	c.ScopesUsed = r.texts(o, "claims.", "scopesUsed", true)
	for _, a := range r.objects(o, "claims.", "actions", true) {
		if a == nil {
			continue
		}
		action := Action{Tool: safe(r.text(a, "claims.actions.", "tool", true), maxActionTool)}
		if h, ok := a.get("argsHash"); ok {
			text := string(h)
			if h.Kind() == '"' {
				text = unquote(h)
			}
			action.ArgsHash = safe(text, maxArgsHash)
		}
		c.Actions = append(c.Actions, action)
	}
	if ts := r.text(o, "claims.", "ts", true); ts != "" {
		var ok bool
		if c.Time, ok = parseTimestamp(ts); !ok {
			r.add(IssueForm, "claims.ts", "is not an RFC 3339 time")
		}
	}
	if r.count > before {
		return nil
	}
	return &c
}

// binding holds the claims to what is known (EV-2).
func (r *reader) binding(c ReceiptClaims, want ReceiptWant) {
	for _, b := range []struct{ issue, field, got, want string }{
		{IssueGrant, "claims.grantId", c.GrantID, want.GrantID},
		{IssueUser, "claims.user", string(c.User), want.User},
		{IssuePA, "claims.pa", c.PA, want.PA},
		{IssueBrand, "claims.brand", c.Brand, want.Brand},
	} {
		if b.want != "" && b.got != b.want {
			r.add(b.issue, b.field, "is not that of the turn")
		}
	}
}

// review finds what a person should look at (EV-4).
func (r *reader) review(c ReceiptClaims, want ReceiptWant) bool {
	before := r.count
	if want.GrantID == "" || want.User == "" || want.PA == "" || want.Brand == "" || want.GrantScopes == nil {
		r.add(IssueBindingUnknown, "", "the grant, its user or its permissions are not known here")
	}
	if want.GrantScopes != nil {
		for _, s := range c.ScopesUsed {
			if !slices.Contains(want.GrantScopes, s) {
				r.add(IssueScopes, "claims.scopesUsed", "%q is not in the grant", clean(s, maxScopeText))
			}
		}
	}
	if !want.SentAt.IsZero() && c.Time.Before(want.SentAt.Add(-receiptSlack)) ||
		!want.ReceivedAt.IsZero() && c.Time.After(want.ReceivedAt.Add(receiptSlack)) {
		r.add(IssueTime, "claims.ts", "is more than %v outside the time between sending and receiving", receiptSlack)
	}
	return r.count > before
}

func (r *reader) signature(ctx context.Context, jws *jwks.Token, payload []byte, keys KeyFinder) Verdict {
	if keys == nil {
		r.add(IssueKeysUnavailable, "jws", "the business publishes no keys")
		return VerdictUnverifiable
	}
	key, err := keys.Key(ctx, jws.KeyID, jws.Algorithm)
	switch {
	case errors.Is(err, jwks.ErrUnknownKey):
		r.add(IssueUnknownKey, "jws", "the business publishes no such key")
		return VerdictInvalid
	case err != nil:
		r.add(IssueKeysUnavailable, "jws", "the business's keys could not be had")
		return VerdictUnverifiable
	}
	got, err := jws.Verify(key.Public)
	if err != nil || !bytes.Equal(got, payload) {
		r.add(IssueSignature, "jws", "the signature does not verify")
		return VerdictInvalid
	}
	return VerdictVerified
}
