package sandbox

import (
	"slices"
	"time"

	"github.com/go-json-experiment/json"
)

// receiptOwner is whose receipts follow each other.
type receiptOwner struct {
	party party
	user  string
}

// lastReceipt is the receipt that a user got last.
func (s *store) lastReceipt(o receiptOwner) (receipt, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.receipts[o]
	return r, ok
}

func (s *store) keepReceipt(o receiptOwner, r receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receipts[o] = r
}

// receipt signs what a delegated turn did; nil if a switch holds it back.
func (s *Sandbox) receipt(b *business, who caller, user delegated, reply Reply) (*receipt, error) {
	if _, on := s.faults.take("receipt-none"); on {
		return nil, nil
	}
	owner := receiptOwner{party{b.ID, who}, user.id}
	if last, ok := s.store.lastReceipt(owner); ok {
		if _, on := s.faults.take("receipt-replay"); on {
			return &last, nil
		}
	}
	claims := b.receiptClaims(who, user, reply, s.now())
	s.spoilReceiptClaims(&claims, b, user)
	payload, err := json.Marshal(claims)
	if err != nil {
		return nil, err
	}
	key := b.key
	if _, on := s.faults.take("receipt-unknown-kid"); on {
		if key, err = newASKey(); err != nil {
			return nil, err
		}
	}
	jws, err := signBytes(key.receipts, payload)
	if err != nil {
		return nil, err
	}
	r := &receipt{s.spoilSignature("receipt-bit", jws), payload}
	if _, on := s.faults.take("receipt-envelope"); on {
		claims.Actions = append(slices.Clone(claims.Actions), Action{Tool: "something_else"})
		if r.Claims, err = json.Marshal(claims); err != nil {
			return nil, err
		}
	}
	if _, on := s.faults.take("receipt-no-claims"); on {
		r.Claims = nil
	}
	s.store.keepReceipt(owner, *r)
	return r, nil
}

// receiptAhead is how far receipt-late dates a receipt.
const receiptAhead = 6 * time.Minute

func (s *Sandbox) spoilReceiptClaims(c *receiptClaims, b *business, user delegated) {
	if _, on := s.faults.take("receipt-scope"); on {
		outside := strangeScope
		for _, id := range b.scopeIDs() {
			if !slices.Contains(user.scopes, id) {
				outside = id
				break
			}
		}
		c.ScopesUsed = append(slices.Clone(c.ScopesUsed), outside)
	}
	if _, on := s.faults.take("receipt-late"); on {
		c.Time = receiptTime(s.now().Add(receiptAhead))
	}
	if _, on := s.faults.take("receipt-form"); on {
		c.Time = ""
	}
	if _, on := s.faults.take("receipt-grant"); on {
		c.GrantID = "a2agrant_" + newULID(s.now())
	}
	if _, on := s.faults.take("receipt-user"); on {
		c.User += "-other"
	}
}
