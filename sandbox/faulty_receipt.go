package sandbox

import (
	"context"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
)

// receipt signs what a delegated turn did; nil if a fault holds it back.
func (s *Sandbox) receipt(ctx context.Context, b *business, who caller, user delegated, reply Reply) (*receipt, error) {
	if _, on := s.faults.take(ctx, "receipt-none"); on {
		return nil, nil
	}
	if s.faults.on(ctx, "receipt-replay") {
		last, found, err := s.store.lastReceipt(ctx, party{b.ID, who}, user.id)
		if err != nil {
			return nil, err
		}
		if found {
			if _, on := s.faults.take(ctx, "receipt-replay"); on {
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
	if _, on := s.faults.take(ctx, "receipt-unknown-kid"); on {
		if key, err = newASKey(); err != nil {
			return nil, err
		}
	}
	jws, err := signBytes(key.receipts, payload)
	if err != nil {
		return nil, err
	}
	r := &receipt{s.spoilSignature(ctx, "receipt-bit", jws), payload}
	if _, on := s.faults.take(ctx, "receipt-envelope"); on {
		claims.Actions = append(slices.Clone(claims.Actions), Action{Tool: "something_else"})
		if r.Claims, err = json.Marshal(claims); err != nil {
			return nil, err
		}
	}
	if _, on := s.faults.take(ctx, "receipt-no-claims"); on {
		r.Claims = nil
	}
	return r, nil
}

// receiptAhead is how far receipt-late and receipt-early date a receipt.
const receiptAhead = 6 * time.Minute

func (s *Sandbox) spoilReceiptClaims(ctx context.Context, c *receiptClaims, b *business, user delegated) {
	if _, on := s.faults.take(ctx, "receipt-scope"); on {
		outside := strangeScope
		for _, id := range b.scopeIDs() {
			if !slices.Contains(user.scopes, id) {
				outside = id
				break
			}
		}
		c.ScopesUsed = append(slices.Clone(c.ScopesUsed), outside)
	}
	if _, on := s.faults.take(ctx, "receipt-late"); on {
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
	if _, on := s.faults.take(ctx, "receipt-form"); on {
		c.Time = ""
	}
	if _, on := s.faults.take(ctx, "receipt-grant"); on {
		c.GrantID = "a2agrant_" + newULID(s.now())
	}
	if _, on := s.faults.take(ctx, "receipt-user"); on {
		c.User += "-other"
	}
}
