package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/jwks"
)

func receiptPurpose(r *receipt) string { return "receipt\x00" + r.Principal + "\x00" + r.ID }

// replied records a reply, and judges its receipt if the turn was delegated. The
// reply and the receipt as it came are on disk before the business's keys are
// asked for: until they are, the evidence counts as unverifiable. What then fails takes
// nothing of the reply.
func (a *Agent) replied(ctx context.Context, op *operation, m *message, reply Reply) error {
	op.result.Status = StatusReplied
	var r *receipt
	var s receiptSecret
	received := a.now()
	d := op.sentUnder
	if m.Grant != "" {
		// What was sent counts, whatever became of the grant since (EV-4, GR-4).
		s.User, s.Want.GrantID, s.Want.GrantScopes = d.subject.Reveal(), d.grant.GrantID, nonNil(m.GrantScopes)
		s.Receipt = reply.Message.Receipt
		s.Want.PA, s.Want.Brand = op.who.id.Issuer, op.business.Card.InterfaceURL
		s.Want.SentAt, s.Want.ReceivedAt = m.Sent, received
		r = &receipt{
			Head: Head{ID: newID("r"), Principal: op.who.principal, Business: op.business.ID, Conversation: op.conversation.ID,
				State: string(VerdictUnverifiable), Created: received},
			Message: m.ID, Sent: m.Sent, Received: received,
		}
	}
	saved := context.WithoutCancel(ctx)
	if r != nil { // a verdict that stands for a moment is not told
		saved = quietly(saved, KindReceipt, KindBlock, KindConversation)
	}
	err := a.store.Update(saved, func(tx Tx) error {
		return a.changeInWith(tx, op, func() error {
			m.State, m.Reason, m.Received = messageReplied, "", received
			m.Reply, m.ReplyID = reply.Message.kept(), reply.Message.MessageID
			m.release()
			op.adoptContext(reply.Message.ContextID)
			op.conversation.State, op.conversation.Reason = conversationReplied, ""
			if r != nil {
				op.conversation.Account = d.grant.Account
				m.Receipt, m.Verdict = r.ID, VerdictUnverifiable
				op.conversation.State = conversationInvalid
				if err := a.keepReceipt(tx, op, r, s); err != nil {
					return err
				}
			}
			return put(tx, m)
		})
	})
	if err != nil || r == nil {
		return err
	}
	op.result.Evidence = &EvidenceView{Receipt: r.ID, Verdict: VerdictUnverifiable}
	op.caller.tell(Event{Kind: EventVerifying, Business: op.business.Card.Name})
	if err := a.judgeReply(context.WithoutCancel(ctx), op, m, r, s); err != nil { // it stays so until it is verified again
		op.result.Detail = truncate(RedactText("the receipt could not be judged ("+err.Error()+"): verify it with pactctl receipts verify "+r.ID), maxDescription)
		a.tellAgain(ctx, r)
	}
	return nil
}

// judgeReply judges the receipt of a reply and records the verdict.
func (a *Agent) judgeReply(ctx context.Context, op *operation, m *message, r *receipt, s receiptSecret) error {
	e, keys, err := a.judge(ctx, r, s, a.businessKeys(op.business))
	if err != nil {
		return err
	}
	s.Keys = keys
	withheld, err := a.withholdClaims(ctx, r, &s, e)
	if err != nil {
		return err
	}
	err = a.store.Update(ctx, func(tx Tx) error {
		return a.changeInWith(tx, op, func() error {
			if err := a.recordVerdict(tx, r, s, e, withheld); err != nil {
				return err
			}
			m.Verdict = Verdict(r.State)
			op.conversation.State = conversationInvalid
			if m.Verdict == VerdictVerified {
				op.conversation.State = conversationVerified
			}
			return put(tx, m)
		})
	})
	if err == nil {
		op.result.Evidence = &EvidenceView{Receipt: r.ID, Verdict: m.Verdict, Issues: r.Issues}
	}
	return err
}

// tellAgain tells those who watch what stands of a receipt that was not judged.
func (a *Agent) tellAgain(ctx context.Context, r *receipt) {
	_ = a.store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
		r, err := get[receipt](tx, r.Principal, r.ID)
		if err != nil {
			return err
		}
		b, err := findOne[block](tx, Query{Principal: r.Principal, Key: r.ID})
		if err != nil {
			return err
		}
		c, err := get[conversation](tx, r.Principal, r.Conversation)
		if err != nil {
			return err
		}
		return errors.Join(put(tx, r), put(tx, b), put(tx, c))
	})
}

// businessKeys are the keys that a business signs with; nil if it names none.
func (a *Agent) businessKeys(b *business) KeyFinder {
	if b.Metadata.JWKSURI == "" {
		return nil
	}
	return CacheKeys(a.keys, b.Metadata.JWKSURI)
}

// keepReceipt stores a receipt that is not judged yet, and blocks changes at the
// business until it is (EV-5, EV-6). The oldest beyond 2000 goes (EV-9), unless the owner
// has yet to look at it.
func (a *Agent) keepReceipt(tx Tx, op *operation, r *receipt, s receiptSecret) error {
	if err := a.box.put(tx, r.ID, receiptPurpose(r), s); err != nil {
		return err
	}
	if err := put(tx, r); err != nil {
		return err
	}
	old, err := find[receipt](tx, Query{Principal: r.Principal, Offset: maxReceipts})
	if err != nil {
		return err
	}
	for _, o := range old {
		b, err := findOne[block](tx, Query{Principal: r.Principal, Key: o.ID})
		switch {
		case err == nil && b.State == blockOpen:
			continue
		case err != nil && !errors.Is(err, ErrNotFound):
			return err
		}
		if err := errors.Join(tx.Delete(KindReceipt, r.Principal, o.ID), tx.DeleteSecret(o.ID)); err != nil {
			return err
		}
	}
	return put(tx, &block{
		Head: Head{ID: newID("block"), Principal: r.Principal, Business: r.Business, Key: r.ID,
			State: blockOpen, Created: r.Created},
		InterfaceURL: op.business.Card.InterfaceURL, Reason: string(VerdictUnverifiable),
	})
}

// judge verifies a receipt (EV-1..EV-4) and returns the key that it was judged
// by as a key set. The error is the store's.
func (a *Agent) judge(ctx context.Context, r *receipt, s receiptSecret, keys KeyFinder) (Evidence, []byte, error) {
	var seen error
	want := ReceiptWant{
		Delegated: true, GrantID: s.Want.GrantID, User: s.User, PA: s.Want.PA, Brand: s.Want.Brand,
		GrantScopes: s.Want.GrantScopes, SentAt: s.Want.SentAt, ReceivedAt: s.Want.ReceivedAt,
		Seen: func(digest string) bool {
			var other *receipt
			err := a.store.View(ctx, func(tx Tx) (err error) {
				other, err = findOne[receipt](tx, Query{Principal: r.Principal, Key: digest})
				return err
			})
			if err != nil && !errors.Is(err, ErrNotFound) {
				seen = err
			}
			return err == nil && other.Message != r.Message
		},
	}
	rec := &recordingKeys{KeyFinder: keys}
	var finder KeyFinder
	if keys != nil {
		finder = rec
	}
	e := VerifyReceipt(ctx, jsontext.Value(s.Receipt), want, finder)
	return e, rec.doc, seen
}

// recordingKeys remembers the key that it found, for later.
type recordingKeys struct {
	KeyFinder
	doc []byte
}

func (k *recordingKeys) Key(ctx context.Context, kid string, alg jose.SignatureAlgorithm) (jwks.Key, error) {
	key, err := k.KeyFinder.Key(ctx, kid, alg)
	if err != nil {
		return key, err
	}
	kept := key
	if kept.ID == "" {
		if kept.ID, err = jwks.Thumbprint(key.Public); err != nil {
			return jwks.Key{}, err
		}
	}
	k.doc, err = jwks.Marshal([]jwks.Key{kept})
	return key, err
}

// recordVerdict writes a verdict down: r holds the one that counts, which a
// receipt attached elsewhere meanwhile makes worse (EV-2). Verified evidence lifts the block that
// waited for it; nothing else but the owner does. s is by withholdClaims, and so is withheld.
func (a *Agent) recordVerdict(tx Tx, r *receipt, s receiptSecret, e Evidence, withheld signIns) error {
	now := a.now()
	r.State, r.Issues = string(e.Verdict), e.Issues
	r.Digest, r.KeyID, r.Algorithm = e.Digest, e.KeyID, e.Algorithm
	if e.Claims != nil {
		r.Time = e.Claims.Time
	}
	if err := a.withholdSince(tx, r, &s, withheld); err != nil {
		return err
	}
	if r.Key == "" && r.Digest != "" {
		if _, err := findOne[receipt](tx, Query{Principal: r.Principal, Key: r.Digest}); errors.Is(err, ErrNotFound) {
			r.Key = r.Digest
		} else if err != nil {
			return err
		} else if !slices.Contains(r.Issues, IssueReplayed) { // attached elsewhere a moment ago
			r.Issues = append(slices.Clone(r.Issues), IssueReplayed)
			if e.Verdict == VerdictVerified || e.Verdict == VerdictNeedsReview {
				r.State = string(VerdictInvalid)
			}
		}
	}
	if err := a.box.put(tx, r.ID, receiptPurpose(r), s); err != nil {
		return err
	}
	if err := put(tx, r); err != nil {
		return err
	}
	b, err := findOne[block](tx, Query{Principal: r.Principal, Key: r.ID})
	if err != nil {
		return err
	}
	if b.State != blockOpen {
		return nil
	}
	b.Reason = r.State
	if Verdict(r.State) == VerdictVerified {
		b.State, b.ClearedAt = blockCleared, now
	}
	return put(tx, b)
}

// ReceiptView is a receipt as a surface shows it: no JWS, and not the user (EV-9).
// Verified means that the business signed this claim, not that money moved
// (EV-8).
type ReceiptView struct {
	ID           string    `json:"id"`
	Verdict      Verdict   `json:"verdict"`
	Issues       []string  `json:"issues"`
	Problems     []Problem `json:"problems,omitempty"`
	Business     string    `json:"business"`
	BusinessName string    `json:"businessName"` // untrusted
	Conversation string    `json:"conversation"`
	Message      string    `json:"message"`
	ScopesUsed   []string  `json:"scopesUsed"`
	Actions      []Action  `json:"actions"` // untrusted; argsHash is not checked
	Time         time.Time `json:"ts,omitzero"`
	KeyID        string    `json:"kid,omitzero"`
	Algorithm    string    `json:"alg,omitzero"`
	Digest       string    `json:"digest,omitzero"` // SHA-256 of the JWS
	Sent         time.Time `json:"sent"`
	Received     time.Time `json:"received"`
	Acknowledged time.Time `json:"acknowledged,omitzero"`
	// Rechecked is when it was last verified again, and RecheckedBy who did.
	Rechecked   time.Time `json:"rechecked,omitzero"`
	RecheckedBy string    `json:"recheckedBy,omitzero"`
	// Recheck is what VerifyStoredReceipt found now. Verdict, Issues and Problems
	// stay those on record.
	Recheck *EvidenceView `json:"recheck,omitzero"`
}

// receiptView shows a receipt. What it says is empty if that was lost with the
// profile's key.
func (a *Agent) receiptView(tx Tx, r *receipt, names nameCache) (ReceiptView, error) {
	var s receiptSecret
	if err := a.box.get(tx, r.ID, receiptPurpose(r), &s); err != nil && !errors.Is(err, errSecretLost) {
		return ReceiptView{}, err
	}
	return ReceiptView{
		ID: r.ID, Verdict: Verdict(r.State), Issues: nonNil(r.Issues), Problems: s.Problems,
		Business: r.Business, BusinessName: names.of(tx, r.Principal, r.Business), Conversation: r.Conversation, Message: r.Message,
		ScopesUsed: nonNil(s.ScopesUsed), Actions: nonNil(s.Actions), Time: r.Time,
		KeyID: r.KeyID, Algorithm: r.Algorithm, Digest: r.Digest, Sent: r.Sent, Received: r.Received, Acknowledged: r.Acknowledged,
		Rechecked: r.Rechecked, RecheckedBy: r.RecheckedBy,
	}, nil
}

// Receipts lists a principal's receipts, newest first.
func (a *Agent) Receipts(ctx context.Context, c Caller) ([]ReceiptView, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	out := []ReceiptView{}
	err := a.store.View(ctx, func(tx Tx) error {
		all, err := find[receipt](tx, Query{Principal: c.Principal})
		names := nameCache{}
		for _, r := range all {
			v, err := a.receiptView(tx, r, names)
			if err != nil {
				return err
			}
			out = append(out, v)
		}
		return err
	})
	return out, err
}

// Receipt shows one receipt. Errors wrap ErrNotFound.
func (a *Agent) Receipt(ctx context.Context, c Caller, id string) (v ReceiptView, err error) {
	if err := c.check(); err != nil {
		return v, err
	}
	err = a.store.View(ctx, func(tx Tx) error {
		r, err := get[receipt](tx, c.Principal, id)
		if err == nil {
			v, err = a.receiptView(tx, r, nameCache{})
		}
		return err
	})
	return v, err
}

// VerifyStoredReceipt judges a stored receipt again, by the key that was kept
// with it, without the network; one for which no key was kept is judged by the
// business's keys of today. The view tells the verdict on record, and apart from
// it, in Recheck, the new one. A receipt that was unverifiable when it came may
// become verified so, and then no longer blocks (EV-5). One whose signed form was
// lost is unverifiable now, for IssueSecretMissing. Who verified it last is kept with
// it. Errors wrap ErrNotFound.
func (a *Agent) VerifyStoredReceipt(ctx context.Context, c Caller, id string) (ReceiptView, error) {
	if err := c.check(); err != nil {
		return ReceiptView{}, err
	}
	ctx = withActor(ctx, c)
	var r *receipt
	var b *business
	var s receiptSecret
	var v ReceiptView
	err := a.store.View(ctx, func(tx Tx) (err error) {
		if r, err = get[receipt](tx, c.Principal, id); err != nil {
			return err
		}
		if b, err = get[business](tx, c.Principal, r.Business); err != nil {
			return err
		}
		if v, err = a.receiptView(tx, r, nameCache{}); err != nil {
			return err
		}
		return a.box.get(tx, r.ID, receiptPurpose(r), &s)
	})
	lost := errors.Is(err, errSecretLost)
	if err != nil && !lost {
		return ReceiptView{}, fmt.Errorf("receipt %s: %w", truncate(id, maxScopeID), err)
	}
	e := Evidence{Verdict: VerdictUnverifiable, Issues: []string{IssueSecretMissing}}
	var withheld signIns
	if !lost {
		if e, err = a.judgeAgain(withNetwork(ctx, c), r, &s, b); err == nil {
			withheld, err = a.withholdClaims(ctx, r, &s, e)
		}
		if err != nil {
			return ReceiptView{}, fmt.Errorf("receipt %s: %w", r.ID, err)
		}
	}
	err = a.store.Update(ctx, func(tx Tx) error {
		fresh, err := get[receipt](tx, c.Principal, id)
		if err != nil {
			return err
		}
		r = fresh
		r.Rechecked, r.RecheckedBy = a.now(), c.actor()
		// The verdict changes only where there was none on the signature yet.
		if lost || Verdict(r.State) != VerdictUnverifiable {
			err = put(tx, r)
		} else {
			err = a.recordRecheck(tx, r, s, e, withheld)
		}
		if err != nil {
			return err
		}
		v, err = a.receiptView(tx, r, nameCache{})
		return err
	})
	if err != nil {
		return ReceiptView{}, fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	v.Recheck = &EvidenceView{Verdict: e.Verdict, Issues: e.Issues}
	return v, nil
}

// judgeAgain judges a stored receipt, by the key that was kept with it if one was, and
// else by the business's keys of today, which s has then.
func (a *Agent) judgeAgain(ctx context.Context, r *receipt, s *receiptSecret, b *business) (Evidence, error) {
	keys := a.businessKeys(b)
	if s.Keys != nil {
		set, err := jwks.Parse(s.Keys)
		if err != nil {
			return Evidence{}, fmt.Errorf("its kept keys: %w", err)
		}
		keys = SetKeys(set)
	}
	e, found, err := a.judge(ctx, r, *s, keys)
	if s.Keys == nil {
		s.Keys = found
	}
	return e, err
}

// recordRecheck writes the verdict of a receipt down that was judged again, with its
// message.
func (a *Agent) recordRecheck(tx Tx, r *receipt, s receiptSecret, e Evidence, withheld signIns) error {
	if err := a.recordVerdict(tx, r, s, e, withheld); err != nil {
		return err
	}
	m, err := get[message](tx, r.Principal, r.Message)
	if err != nil {
		return err
	}
	m.Verdict = Verdict(r.State)
	return put(tx, m)
}
