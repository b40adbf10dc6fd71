package conformance

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const fromReceipts = "Receipts"

var receiptChecks = []check{
	{Check{ID: "receipt-present", Requirement: "each reply under a delegation token has one", Source: fromReceipts}, eachTurn(checkReceiptPresent)},
	{Check{ID: "receipt-form", Requirement: "it is jws and claims, with every member", Source: fromReceipts}, eachReceipt(checkReceiptForm)},
	{Check{ID: "receipt-signature", Requirement: "it is signed with a key of jwks_uri", Source: fromReceipts}, eachReceipt(checkReceiptSignature)},
	{Check{ID: "receipt-claims", Requirement: "what is signed is the JSON of claims", Source: fromReceipts}, eachReceipt(checkReceiptClaims)},
	{Check{ID: "receipt-parties", Requirement: "it names grant, user, agent and brand", Source: fromReceipts}, eachReceipt(checkReceiptParties)},
	{Check{ID: "receipt-scopes", Requirement: "what was used is within the token's scope", Source: fromReceipts}, eachReceipt(checkReceiptScopes)},
	{Check{ID: "receipt-time", Requirement: "ts is the time of the turn, within 5 minutes", Source: fromReceipts}, eachReceipt(checkReceiptTime)},
	{Check{ID: "receipt-own", Requirement: "each turn has its own", Source: fromReceipts}, checkReceiptOwn},
	{Check{ID: "receipt-stored", Requirement: "a repeated message brings the same one", Source: fromReceipts}, checkReceiptStored},
}

// turn is a message that was answered under a delegation token.
type turn struct {
	what    string
	said    say
	reply   reply
	answer  *answer
	receipt jsontext.Value // nil: there is none
}

// turns are delegated turns of one grant: one that needs no permission, and one that
// does if any message does.
type turns struct {
	card  *card
	grant *grant
	at    time.Time
	all   []*turn
}

type turnsOrErr struct {
	turns *turns
	err   error
}

// delegatedTurns says something under a grant of all scopes, once.
func (r *run) delegatedTurns(ctx context.Context) (*turns, error) {
	if r.turns == nil {
		t, err := r.takeTurns(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.turns = &turnsOrErr{t, err}
	}
	return r.turns.turns, r.turns.err
}

func (r *run) takeTurns(ctx context.Context) (*turns, error) {
	c, g, err := r.granted(ctx)
	if err != nil {
		return nil, err
	}
	t := &turns{card: c, grant: g, at: r.cfg.Now()}
	for _, s := range []struct{ what, text string }{
		{"a greeting", greeting},
		{"a message that needs a permission", r.asks(c)[0].Text},
	} {
		said := say{text: s.text, messageID: newUUID()}
		if len(t.all) > 0 {
			said.contextID = t.all[0].reply.ContextID
		}
		a, err := r.delegatedSend(ctx, c, g, said)
		if err != nil {
			return nil, lacking("there is no delegated turn", err)
		}
		m, err := a.reply()
		if err != nil {
			return nil, lacking("there is no delegated turn", err)
		}
		t.all = append(t.all, &turn{s.what, said, m, a, m.Metadata["pact.receipt"]})
	}
	return t, nil
}

// eachTurn does a check for every delegated turn.
func eachTurn(do func(context.Context, *run, *turns, *turn) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		all, err := r.delegatedTurns(ctx)
		if err != nil {
			return err
		}
		var f findings
		for _, t := range all.all {
			f.add("the reply to "+t.what, do(ctx, r, all, t))
		}
		return f.err()
	}
}

func checkReceiptPresent(_ context.Context, _ *run, _ *turns, t *turn) error {
	if t.receipt == nil {
		return errors.New("metadata has no pact.receipt")
	}
	return nil
}

// eachReceipt does a check for every receipt that there is.
func eachReceipt(do func(context.Context, *run, *turns, receipt) error) func(context.Context, *run) error {
	return eachTurn(func(ctx context.Context, r *run, all *turns, t *turn) error {
		if t.receipt == nil {
			return notRun("there is no receipt: see receipt-present")
		}
		return do(ctx, r, all, readReceipt(t.receipt))
	})
}

// receipt is a pact.receipt as far as it can be read.
type receipt struct {
	raw    jsontext.Value
	JWS    string         `json:"jws"`
	Claims jsontext.Value `json:"claims"`
	// signed is what the JWS says, its signature not looked at; claims if there is no
	// such thing.
	signed jsontext.Value
}

func readReceipt(raw jsontext.Value) receipt {
	r := receipt{raw: raw}
	_ = json.Unmarshal(raw, &r) // what is there
	r.signed = r.Claims
	if parts := strings.Split(r.JWS, "."); len(parts) == 3 {
		if b, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil && jsontext.Value(b).Kind() == '{' && jsontext.Value(b).IsValid() {
			r.signed = b
		}
	}
	return r
}

// receiptClaims are what a receipt says, as far as it can be read.
type receiptClaims struct {
	GrantID    string   `json:"grantId"`
	User       string   `json:"user"`
	PA         string   `json:"pa"`
	Brand      string   `json:"brand"`
	ScopesUsed []string `json:"scopesUsed"`
	Time       string   `json:"ts"`
}

// says reads what was signed.
func (r receipt) says() (receiptClaims, error) {
	var c receiptClaims
	if r.signed.Kind() != '{' || json.Unmarshal(r.signed, &c) != nil {
		return c, notRun("the receipt's claims cannot be read: see receipt-form")
	}
	return c, nil
}

func checkReceiptForm(_ context.Context, _ *run, _ *turns, r receipt) error {
	return judgeReceiptForm(r.raw)
}

// judgeReceiptForm looks at the members of a receipt.
func judgeReceiptForm(raw jsontext.Value) error {
	m, err := readMembers(raw)
	if err != nil {
		return fmt.Errorf("pact.receipt is %w", err)
	}
	m.text("jws", true)
	if !m.has("claims") {
		m.wrong("claims", "is missing")
		return m.err()
	}
	claims, err := readMembers(m.all["claims"])
	if err != nil {
		m.wrong("claims", "is %w", err)
		return m.err()
	}
	for _, name := range []string{"grantId", "user", "pa", "brand"} {
		claims.text(name, true)
	}
	claims.texts("scopesUsed", true)
	claims.actions()
	if ts := claims.text("ts", true); ts != "" {
		if _, err := time.Parse(time.RFC3339, ts); err != nil {
			claims.wrong("ts", "is not a date and time of RFC 3339")
		}
	}
	m.add("claims", claims.err())
	return m.err()
}

// actions looks at what ran: an array of tools.
func (m *members) actions() {
	raw, ok := m.all["actions"]
	var list []jsontext.Value
	switch {
	case !ok:
		m.wrong("actions", "is missing")
	case raw.Kind() != '[' || json.Unmarshal(raw, &list) != nil:
		m.wrong("actions", "is not an array")
	}
	for i, item := range list {
		at := fmt.Sprintf("actions[%d]", i)
		action, err := readMembers(item)
		if err != nil {
			m.wrong(at, "is %w", err)
			continue
		}
		action.text("tool", true)
		action.text("argsHash", false)
		m.add(at, action.err())
	}
}

func checkReceiptSignature(ctx context.Context, r *run, _ *turns, got receipt) error {
	if got.JWS == "" {
		return notRun("the receipt has no jws: see receipt-form")
	}
	_, err := r.verify(ctx, got.JWS)
	return err
}

func checkReceiptClaims(_ context.Context, _ *run, _ *turns, r receipt) error {
	if r.Claims == nil || r.JWS == "" {
		return notRun("the receipt lacks jws or claims: see receipt-form")
	}
	if !sameJSON(r.Claims, r.signed) {
		return errors.New("the payload of jws and claims differ: must be the same JSON")
	}
	return nil
}

// sameJSON compares values, not their spelling (RFC 8785).
func sameJSON(a, b jsontext.Value) bool {
	a, b = bytes.Clone(a), bytes.Clone(b)
	return a.Canonicalize() == nil && b.Canonicalize() == nil && bytes.Equal(a, b)
}

func checkReceiptParties(_ context.Context, _ *run, all *turns, r receipt) error {
	got, err := r.says()
	if err != nil {
		return err
	}
	token := unverified(all.grant.Access)
	var f findings
	for _, m := range []struct{ name, got, want, what string }{
		{"grantId", got.GrantID, token.GrantID, "the delegation token's grant_id"},
		{"user", got.User, token.Subject, "the delegation token's sub"},
		{"pa", got.PA, all.grant.issuer.url, "the agent's issuer"},
		{"brand", got.Brand, all.card.interfaceURL, "the interface URL"},
	} {
		if m.got != m.want {
			f.add("", fmt.Errorf("%s is not %s", m.name, m.what))
		}
	}
	return f.err()
}

func checkReceiptScopes(_ context.Context, _ *run, all *turns, r receipt) error {
	got, err := r.says()
	if err != nil {
		return err
	}
	if more := beyond(got.ScopesUsed, scopeSet(all.grant.Scope)); len(more) > 0 {
		return fmt.Errorf("scopesUsed has %s, which the token has not", listed(more))
	}
	return nil
}

// receiptSkew is how far a receipt may be from the suite's time.
const receiptSkew = 5 * time.Minute

func checkReceiptTime(_ context.Context, r *run, all *turns, got receipt) error {
	c, err := got.says()
	if err != nil {
		return err
	}
	ts, err := time.Parse(time.RFC3339, c.Time)
	if err != nil {
		return notRun("the receipt has no ts that can be read: see receipt-form")
	}
	if off := ts.Sub(all.at).Round(time.Second); off.Abs() > receiptSkew {
		return fmt.Errorf("ts is %v from the suite's time: must be within %v", off, receiptSkew)
	}
	return nil
}

func checkReceiptOwn(ctx context.Context, r *run) error {
	all, err := r.delegatedTurns(ctx)
	if err != nil {
		return err
	}
	seen := map[string]string{}
	for _, t := range all.all {
		if t.receipt == nil {
			return notRun("there is no receipt: see receipt-present")
		}
		jws := readReceipt(t.receipt).JWS
		if jws == "" {
			return notRun("the receipt has no jws: see receipt-form")
		}
		if before, ok := seen[jws]; ok {
			return fmt.Errorf("the replies to %s and to %s have the same receipt", before, t.what)
		}
		seen[jws] = t.what
	}
	return nil
}

func checkReceiptStored(ctx context.Context, r *run) error {
	all, err := r.delegatedTurns(ctx)
	if err != nil {
		return err
	}
	t := all.all[len(all.all)-1]
	if t.receipt == nil {
		return notRun("there is no receipt: see receipt-present")
	}
	said := t.said
	said.contextID = t.reply.ContextID
	a, err := r.delegatedSend(ctx, all.card, all.grant, said)
	if err != nil {
		return err
	}
	m, err := a.reply()
	if err != nil {
		return err
	}
	if again := m.Metadata["pact.receipt"]; again == nil || !sameJSON(again, t.receipt) {
		return fmt.Errorf("%s: the same messageId again: the receipt is not the first one's: must be the stored reply", a.asked)
	}
	return nil
}
