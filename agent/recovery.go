package agent

import (
	"context"
	"errors"
	"fmt"
)

// recover settles what dead runtimes left behind (RS-1..RS-4). It is asked for
// when an agent is opened and wherever records are entered or listed, so that
// nothing stays busy or pending that nobody is at.
func (a *Agent) recover(ctx context.Context) error {
	var left []leftover
	look := func(tx Tx) (err error) {
		left, err = a.leftovers(tx)
		return err
	}
	if err := a.store.View(ctx, look); err != nil || len(left) == 0 {
		return err
	}
	return a.store.Update(byItself(ctx), func(tx Tx) error {
		if err := look(tx); err != nil { // others recover too
			return err
		}
		for range 3 { // what waited for a sign-in that ends so ends too
			for _, settle := range left {
				if err := settle(tx); err != nil {
					return err
				}
			}
			if err := look(tx); err != nil || len(left) == 0 {
				return err
			}
		}
		return nil
	})
}

// leftover settles one record.
type leftover func(Tx) error

// leftovers are what nobody works on any more and yet is not settled, in the
// order in which it is to be.
func (a *Agent) leftovers(tx Tx) (left []leftover, err error) {
	messages, err := find[message](tx, Query{AllPrincipals: true, States: []string{messagePrepared, messageSending}})
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if !a.held(&m.Head) {
			left = append(left, func(tx Tx) error { return a.interrupted(tx, m) })
		}
	}
	turns, err := find[conversation](tx, Query{AllPrincipals: true, States: []string{
		conversationDiscovered, conversationAwaitingLocal, conversationAwaitingBusiness, conversationSending,
	}})
	if err != nil {
		return nil, err
	}
	for _, c := range turns {
		// One whose lease is over is free as it is, and its turn goes on if the owner
		// decides late; only that of a dead one is over.
		if c.LeaseOwner != "" && !a.alive(c.LeaseOwner) {
			left = append(left, func(tx Tx) error { return a.abandonedTurn(tx, c.Principal, c.ID) })
		}
	}
	signIns, err := find[authorization](tx, Query{AllPrincipals: true, States: []string{authorizationStarting, authorizationPending}})
	if err != nil {
		return nil, err
	}
	for _, z := range signIns {
		if a.held(&z.Head) { // whoever is at it sees to it
			continue
		}
		if z.State == authorizationStarting {
			left = append(left, func(tx Tx) error { return tx.Delete(KindAuthorization, z.Principal, z.ID) })
			continue
		}
		state, reason, err := a.overtaken(tx, z)
		if err != nil {
			return nil, err
		}
		if state != "" {
			left = append(left, func(tx Tx) error { return a.settle(tx, z, state, reason) })
		}
	}
	approvals, err := a.lapsedApprovals(tx)
	return append(left, approvals...), err
}

// interrupted settles a message whose sender is gone: what may have been sent is
// of unknown outcome and never sent again (RS-1); what was only prepared was never
// sent (RS-2).
func (a *Agent) interrupted(tx Tx, m *message) error {
	state := conversationUnknown
	if m.State == messageSending {
		m.State, m.Reason = messageUnknown, ReasonInterrupted
	} else {
		m.State, m.Reason, state = messageCancelled, ReasonNeverSent, conversationCancelled
	}
	m.release()
	if err := put(tx, m); err != nil {
		return err
	}
	c, err := get[conversation](tx, m.Principal, m.Conversation)
	if err != nil || c.State == conversationClosed {
		return err
	}
	c.State, c.Reason, c.Updated = state, m.Reason, a.now()
	if m.Introduction { // a lost one is no operation (CV-4): what it was for was never sent
		c.State, c.Reason = conversationCancelled, ReasonNeverSent
	}
	if !a.held(&c.Head) {
		c.release()
	}
	return put(tx, c)
}

// abandonedTurn frees a conversation whose turn ended with its runtime (RS-3).
// Its own message was not sent: else interrupted has seen to the conversation.
func (a *Agent) abandonedTurn(tx Tx, principal, id string) error {
	c, err := get[conversation](tx, principal, id)
	if err != nil || c.LeaseOwner == "" {
		return err
	}
	c.release()
	c.Updated = a.now()
	switch c.State {
	case conversationDiscovered:
		if _, err := findOne[message](tx, Query{Principal: principal, Conversation: id}); errors.Is(err, ErrNotFound) {
			return tx.Delete(KindConversation, principal, id) // nothing came of it
		}
		c.State = conversationReady
	case conversationAwaitingBusiness:
		z, err := endedSignIn(tx, c)
		if err != nil {
			return err
		}
		if z != nil {
			c.signedIn(z)
			break
		}
		_, err = findOne[authorization](tx, Query{Principal: principal, Business: c.Business, States: []string{authorizationPending}})
		if err == nil { // it still does (DA-17)
			break
		}
		if !errors.Is(err, ErrNotFound) {
			return err
		}
		fallthrough
	case conversationAwaitingLocal, conversationSending:
		c.State, c.Reason = conversationCancelled, ReasonNeverSent
	}
	return put(tx, c)
}

// overtaken tells how a pending sign-in ends that cannot be resumed, and why
// (RS-4): its time is over, or what it was begun for is not what it was. Empty: it
// waits. What can come back, such as a signer that is away, is asked before each
// poll (DA-9).
func (a *Agent) overtaken(tx Tx, z *authorization) (state string, reason Reason, err error) {
	if !a.now().Before(a.lasts(z)) {
		return authorizationExpired, ReasonConsentExpired, nil
	}
	b, err := get[business](tx, z.Principal, z.Business)
	switch {
	case errors.Is(err, ErrNotFound):
		return authorizationFailed, ReasonCardChanged, nil
	case err != nil:
		return "", "", fmt.Errorf("read the business: %w", err)
	case b.State != businessSupported || b.CardRevision != z.CardRevision:
		return authorizationFailed, ReasonCardChanged, nil
	}
	id, err := get[identity](tx, z.Principal, identityID)
	if errors.Is(err, ErrNotFound) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	bound, err := findOne[binding](tx, Query{Principal: z.Principal, Key: bindingKey(id)})
	switch {
	case errors.Is(err, ErrNotFound): // the subject is not known yet
		return "", "", nil
	case err != nil:
		return "", "", err
	case bound.ID != z.Binding:
		return authorizationFailed, ReasonSubjectChanged, nil
	}
	return "", "", nil
}
