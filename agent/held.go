package agent

import (
	"cmp"
	"context"
	"net/url"
	"path"
	"slices"
	"strings"
)

// mayChange reports a message that may have an effect at its business.
// Introductions and inspections have none (CV-4).
func (m *message) mayChange() bool { return !m.Introduction && m.Effect != EffectInspect }

// unresolved reports a message that may have changed something, nobody knows.
func (m *message) unresolved() bool {
	return m.State == messageUnknown && m.mayChange() && m.Acknowledged.IsZero()
}

// checkHolds asks what holds an operation back before the owner is asked about
// it. markSending asks it again in its transaction: others may have sent meanwhile.
func (a *Agent) checkHolds(ctx context.Context, op *operation) error {
	return a.store.View(ctx, func(tx Tx) error { return a.heldBack(tx, op, op.effect, "") })
}

// heldBack is what holds an operation of an effect back: an operation whose end
// is open (CV-4), and, if it may change something, evidence that waits for the
// owner (EV-5, EV-6). self is the id of the operation's own message.
func (a *Agent) heldBack(tx Tx, op *operation, effect Effect, self string) error {
	if err := a.unresolved(tx, op, effect, self); err != nil || effect == EffectInspect {
		return err
	}
	there, err := sameBusiness(tx, op.business)
	if err != nil {
		return err
	}
	open, err := find[block](tx, Query{Principal: op.who.principal, States: []string{blockOpen}})
	if err != nil {
		return err
	}
	for _, b := range open {
		if there(b.Business, b.InterfaceURL) {
			return refuse(StatusBlocked, ReasonEvidenceReview, "changes here are held back: the verdict on the evidence of an earlier turn is %s. "+
				"Look at it with pactctl review show %s. Inspections still work", b.Reason, b.Key)
		}
	}
	return nil
}

// unresolved is CV-4, for each way to the business. What is being sent this
// moment lets an inspection pass.
func (a *Agent) unresolved(tx Tx, op *operation, effect Effect, self string) error {
	there, err := sameBusiness(tx, op.business)
	if err != nil {
		return err
	}
	open, err := find[message](tx, Query{Principal: op.who.principal, States: []string{messagePrepared, messageSending, messageUnknown}})
	if err != nil {
		return err
	}
	for _, m := range open {
		switch {
		case m.ID == self || !m.mayChange() || !m.Acknowledged.IsZero() || !there(m.Business, m.SendURL):
		case m.State == messagePrepared && (m.Attempts == 0 || !a.held(&m.Head)): // unless it goes out again (CV-10)
		case m.State == messageUnknown || !a.held(&m.Head): // RS-1
			op.open = m
			return refuse(StatusBlocked, ReasonUnresolved, "it is not known whether message %s was carried out, so nothing more is sent there. "+
				"See what it was with pactctl review show %s, and ask what became of it with pactctl reconcile %s. Do not repeat it by another route", m.ID, m.ID, m.Conversation)
		case effect != EffectInspect:
			return refuse(StatusBlocked, ReasonBusy, "message %s is being sent there: wait until its end is known", m.ID)
		}
	}
	return nil
}

// sameBusiness tells whether something belongs to a business, by whichever of
// its cards: what holds one way to an interface back holds them all, however they
// spell it. What was sent is known by where it went, for a card may change or turn
// unsupported: to is an interface URL, or one that messages go to.
func sameBusiness(tx Tx, b *business) (func(id, to string) bool, error) {
	all, err := find[business](tx, Query{Principal: b.Principal})
	if err != nil {
		return nil, err
	}
	at, ids := place(b.Card.InterfaceURL), []string{b.ID}
	for _, o := range all {
		if at != "" && place(o.Card.InterfaceURL) == at {
			ids = append(ids, o.ID)
		}
	}
	return func(id, to string) bool {
		return slices.Contains(ids, id) || at != "" && place(to) == at
	}, nil
}

// place is one spelling of an interface URL, or of the URL that messages go to
// there, to tell whether two are the same place. It is not for the wire (UR-7).
func place(raw string) string {
	raw = strings.TrimSuffix(raw, sendPath)
	u, err := url.Parse(raw)
	if raw == "" || err != nil {
		return raw
	}
	at := cmp.Or(Origin(u), u.Scheme+"://"+u.Host) + strings.TrimRight(path.Clean("/"+u.Path), "/")
	if u.RawQuery != "" {
		at += "?" + strings.TrimRight(u.RawQuery, "/")
	}
	return at
}
