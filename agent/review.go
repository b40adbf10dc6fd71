package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ReviewKind says what the owner is to look at.
type ReviewKind string

// The kinds.
const (
	ReviewEvidence  ReviewKind = "evidence"  // of a reply; its ID is the receipt's (EV-5)
	ReviewOperation ReviewKind = "operation" // whose outcome is unknown; its ID is the message's (CV-4)
)

// ReviewItem is something that holds a business back until the owner has looked
// at it. Text is the owner's; BusinessName, Reply and Problems are the business's
// words, and untrusted (RD-4).
type ReviewItem struct {
	ID           string     `json:"id"`
	Kind         ReviewKind `json:"kind"`
	Business     string     `json:"business"`
	BusinessName string     `json:"businessName"`
	Conversation string     `json:"conversation"`
	Message      string     `json:"message"`
	Text         string     `json:"text"`
	Reply        string     `json:"reply,omitzero"`
	Effect       Effect     `json:"effect"`
	// Verdict, Issues and Problems are of evidence; Reason is an operation's.
	Verdict  Verdict   `json:"verdict,omitzero"`
	Reason   Reason    `json:"reason,omitzero"`
	Issues   []string  `json:"issues,omitempty"`
	Problems []Problem `json:"problems,omitempty"`
	Since    time.Time `json:"since"`
	// Open: it holds changes back (evidence) or everything (an operation).
	Open bool `json:"open"`
	// Settleable: Acknowledge would not be refused with reconcile_first.
	Settleable   bool      `json:"settleable"`
	Acknowledged time.Time `json:"acknowledged,omitzero"`
	By           string    `json:"by,omitzero"`
	Next         string    `json:"next,omitzero"` // what the owner can do
}

// Reviews lists what waits for the owner, newest first: evidence that is not
// verified, and operations whose outcome is unknown. all adds what they have
// settled.
func (a *Agent) Reviews(ctx context.Context, c Caller, all bool) ([]ReviewItem, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := a.recover(ctx); err != nil {
		return nil, err
	}
	out := []ReviewItem{}
	err := a.store.View(ctx, func(tx Tx) error {
		receipts, err := find[receipt](tx, Query{Principal: c.Principal})
		if err != nil {
			return err
		}
		open, err := find[block](tx, Query{Principal: c.Principal, States: []string{blockOpen}})
		if err != nil {
			return err
		}
		names := nameCache{}
		for _, r := range receipts {
			holds := slices.ContainsFunc(open, func(b *block) bool { return b.Key == r.ID })
			if !holds && (!all || Verdict(r.State) == VerdictVerified && r.Acknowledged.IsZero()) {
				continue
			}
			v, err := a.reviewEvidence(tx, r, holds, names)
			if err != nil {
				return err
			}
			out = append(out, v)
		}
		unknown, err := find[message](tx, Query{Principal: c.Principal, States: []string{messageUnknown}})
		if err != nil {
			return err
		}
		for _, m := range unknown {
			if !m.mayChange() || !all && !m.unresolved() {
				continue
			}
			v, err := a.reviewOperation(tx, c, m, names)
			if err != nil {
				return err
			}
			out = append(out, v)
		}
		return nil
	})
	slices.SortStableFunc(out, func(x, y ReviewItem) int { return y.Since.Compare(x.Since) })
	return out, err
}

// Review shows one item, settled or not: a receipt by its id, or an operation by
// that of its message. Errors wrap ErrNotFound.
func (a *Agent) Review(ctx context.Context, c Caller, id string) (v ReviewItem, err error) {
	if err := c.check(); err != nil {
		return v, err
	}
	if err := a.recover(ctx); err != nil {
		return v, err
	}
	err = a.store.View(ctx, func(tx Tx) error {
		v, err = a.reviewItem(tx, c, id)
		return err
	})
	if err != nil {
		return ReviewItem{}, fmt.Errorf("review %s: %w", truncate(id, maxScopeID), err)
	}
	return v, nil
}

// Acknowledge records that the owner has looked at an item, who and when, and
// lifts what it holds back; again, it changes nothing. It takes the owner. Evidence
// keeps its verdict (EV-7). An operation stays of unknown outcome and is never sent
// again; it can be acknowledged only once a reconcile can not tell any more, has
// been tried and refused, has been tried without an answer and Params.SettleAfter has
// passed, or is not this caller's to try (RS-5): reconcile_first otherwise. Errors
// wrap ErrNotFound.
func (a *Agent) Acknowledge(ctx context.Context, c Caller, id string) (v ReviewItem, err error) {
	if err := c.check(); err != nil {
		return v, err
	}
	if err := c.mustBeSurface("acknowledge what is to be reviewed"); err != nil {
		return v, err
	}
	if err := a.recover(ctx); err != nil {
		return v, err
	}
	err = a.store.Update(withActor(ctx, c), func(tx Tx) error {
		if v, err = a.reviewItem(tx, c, id); err != nil || !v.Open {
			return err
		}
		if v.Kind == ReviewEvidence {
			err = a.acknowledgeEvidence(tx, c, id)
		} else {
			err = a.acknowledgeOperation(tx, c, id)
		}
		if err == nil {
			v, err = a.reviewItem(tx, c, id)
		}
		return err
	})
	if err != nil {
		return ReviewItem{}, fmt.Errorf("acknowledge %s: %w", truncate(id, maxScopeID), err)
	}
	return v, nil
}

func (a *Agent) acknowledgeEvidence(tx Tx, c Caller, id string) error {
	r, err := get[receipt](tx, c.Principal, id)
	if err != nil {
		return err
	}
	b, err := findOne[block](tx, Query{Principal: c.Principal, Key: r.ID})
	if err != nil {
		return err
	}
	now := a.now()
	r.Acknowledged, r.By = now, c.actor()
	b.State, b.ClearedAt, b.By = blockCleared, now, c.actor()
	if err := put(tx, r); err != nil {
		return err
	}
	return put(tx, b)
}

func (a *Agent) acknowledgeOperation(tx Tx, c Caller, id string) error {
	m, err := get[message](tx, c.Principal, id)
	if err != nil {
		return err
	}
	t, err := get[conversation](tx, c.Principal, m.Conversation)
	if err != nil {
		return err
	}
	if a.held(&t.Head) || a.held(&m.Head) { // it may just be reconciled
		return refuse(StatusBlocked, ReasonBusy, "a turn of conversation %s is under way", t.ID)
	}
	if _, err := a.settleable(tx, c, m); err != nil {
		return err
	}
	m.Acknowledged, m.By = a.now(), c.actor()
	return put(tx, m)
}

// reviewItem reads an item by its id.
func (a *Agent) reviewItem(tx Tx, c Caller, id string) (ReviewItem, error) {
	r, err := get[receipt](tx, c.Principal, id)
	if err == nil {
		b, err := findOne[block](tx, Query{Principal: c.Principal, Key: r.ID})
		if err != nil && !errors.Is(err, ErrNotFound) {
			return ReviewItem{}, err
		}
		return a.reviewEvidence(tx, r, err == nil && b.State == blockOpen, nameCache{})
	}
	if !errors.Is(err, ErrNotFound) {
		return ReviewItem{}, err
	}
	m, err := get[message](tx, c.Principal, id)
	if err != nil {
		return ReviewItem{}, err
	}
	if m.State != messageUnknown || !m.mayChange() {
		return ReviewItem{}, fmt.Errorf("an operation of unknown outcome: %w", ErrNotFound)
	}
	return a.reviewOperation(tx, c, m, nameCache{})
}

func (a *Agent) reviewEvidence(tx Tx, r *receipt, open bool, names nameCache) (ReviewItem, error) {
	e, err := a.receiptView(tx, r, names)
	if err != nil {
		return ReviewItem{}, err
	}
	v := ReviewItem{
		ID: r.ID, Kind: ReviewEvidence, Business: r.Business, BusinessName: e.BusinessName,
		Conversation: r.Conversation, Message: r.Message,
		Verdict: e.Verdict, Issues: e.Issues, Problems: e.Problems,
		Since: r.Received, Open: open, Settleable: open, Acknowledged: r.Acknowledged, By: r.By,
	}
	switch {
	case !open:
	case v.Verdict == VerdictUnverifiable && !r.unreadable():
		v.Next = fmt.Sprintf("pactctl receipts verify %s tries again; or see for yourself that the business did what it says, and then pactctl review acknowledge %s", r.ID, r.ID)
	default:
		v.Next = fmt.Sprintf("see for yourself what the business did, and then pactctl review acknowledge %s; its verdict stays", r.ID)
	}
	m, err := get[message](tx, r.Principal, r.Message)
	if errors.Is(err, ErrNotFound) {
		return v, nil
	}
	if err == nil {
		v.Text, v.Reply, v.Effect = m.Text, m.Reply, m.Effect
	}
	return v, err
}

func (a *Agent) reviewOperation(tx Tx, c Caller, m *message, names nameCache) (ReviewItem, error) {
	v := ReviewItem{
		ID: m.ID, Kind: ReviewOperation, Business: m.Business, BusinessName: names.of(tx, m.Principal, m.Business),
		Conversation: m.Conversation, Message: m.ID, Text: m.Text, Effect: m.Effect, Reason: m.Reason,
		Since: m.Sent, Open: m.unresolved(), Acknowledged: m.Acknowledged, By: m.By,
	}
	if !v.Open {
		return v, nil
	}
	next, err := a.settleable(tx, c, m)
	if err != nil && ReasonOf(err) == "" {
		return v, err
	}
	v.Next, v.Settleable = next, err == nil
	return v, nil
}

// settleable tells what the owner can do about an operation of unknown outcome. The
// error is nil if they may settle it, reconcile_first if the business is to be asked
// first, or the store's.
func (a *Agent) settleable(tx Tx, c Caller, m *message) (next string, err error) {
	ask := "pactctl reconcile " + m.Conversation
	settle := "if you have learnt elsewhere what became of it, pactctl review acknowledge " + m.ID
	var never *Refusal
	from := a.settleFrom(m)
	switch gone := a.reconcilable(tx, m); {
	case errors.As(gone, &never):
		return never.Detail, nil
	case gone != nil:
		return "", gone
	case c.sameNetwork(m.Network) != nil:
		return "only who sent it, under the same network profile, can ask the business about it: " + settle, nil
	case m.Refused:
		return ask + " asks the business once more. It was asked and did not tell: " + settle, nil
	case from.IsZero():
		return ask + " asks the business what became of it. Do not repeat it by another route",
			refuse(StatusBlocked, ReasonReconcileFirst, "the business can still be asked what became of it: %s", ask)
	case a.now().Before(from):
		return ask + " asks the business once more. It was asked and did not answer: from " + atSecond(from) + " on it can be settled otherwise. Do not repeat it by another route",
			refuse(StatusBlocked, ReasonReconcileFirst, "the business did not answer what became of it: ask once more with %s, or settle it from %s on", ask, atSecond(from))
	}
	return ask + " asks the business once more. It was asked and did not answer: " + settle, nil
}

// atSecond is a time, for people.
func atSecond(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
