package sandbox

import (
	"context"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
)

// receipt signs what a delegated turn did; nil if a fault holds it back.
func (s *Sandbox) receipt(ctx context.Context, b *business, who caller, user delegated, reply Reply) (*receipt, error) {
	if s.faults.hit(ctx, "receipt-none") {
		return nil, nil
	}
	if s.faults.on(ctx, "receipt-replay") {
		last, found, err := s.store.lastReceipt(ctx, party{b.ID, who}, user.id)
		if err != nil {
			return nil, err
		}
		if found {
			if s.faults.hit(ctx, "receipt-replay") {
				return &last, nil
			}
		}
	}
	claims := b.receiptClaims(who, user, reply, s.now())
	s.spoilReceiptClaims(ctx, &claims, b, user)
	payload, err := json.Marshal(claims)
	if err != nil {
		return nil, err
	}
	key, err := s.signingKey(ctx, b)
	if err != nil {
		return nil, err
	}
	if s.faults.hit(ctx, "receipt-unknown-kid") {
		if key, err = newASKey(); err != nil {
			return nil, err
		}
	}
	jws, err := signBytes(key.receipts, payload)
	if err != nil {
		return nil, err
	}
	r := &receipt{s.spoilSignature(ctx, "receipt-bit", jws), payload}
	if s.faults.hit(ctx, "receipt-envelope") {
		claims.Actions = append(slices.Clone(claims.Actions), Action{Tool: "something_else"})
		if r.Claims, err = json.Marshal(claims); err != nil {
			return nil, err
		}
	}
	if s.faults.hit(ctx, "receipt-no-claims") {
		r.Claims = nil
	}
	return r, nil
}

// receiptAhead is how far receipt-late and receipt-early date a receipt.
const receiptAhead = 6 * time.Minute

func (s *Sandbox) spoilReceiptClaims(ctx context.Context, c *receiptClaims, b *business, user delegated) {
	if s.faults.hit(ctx, "receipt-scope") {
		outside := strangeScope
		for _, id := range b.scopeIDs() {
			if !slices.Contains(user.scopes, id) {
				outside = id
				break
			}
		}
		c.ScopesUsed = append(slices.Clone(c.ScopesUsed), outside)
	}
	if s.faults.hit(ctx, "receipt-late") {
		c.Time = receiptTime(s.now().Add(receiptAhead))
	}
	if s.faults.hit(ctx, "receipt-early") {
		c.Time = receiptTime(s.now().Add(-receiptAhead))
	}
	if s.faults.hit(ctx, "receipt-pa") {
		c.PA = elsewhereOrigin
	}
	if s.faults.hit(ctx, "receipt-brand") {
		c.Brand = elsewhereOrigin + "/a2a/" + b.ID
	}
	if s.faults.hit(ctx, "receipt-form") {
		c.Time = ""
	}
	if s.faults.hit(ctx, "receipt-grant") {
		c.GrantID = "a2agrant_" + newULID(s.now())
	}
	if s.faults.hit(ctx, "receipt-user") {
		c.User += "-other"
	}
}
