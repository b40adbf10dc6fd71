package agent

import (
	"context"
	"errors"
)

// StatusView is what a profile is, and whether it can act.
type StatusView struct {
	// Ready: a send would get past availability, preference and identity.
	Ready    bool          `json:"ready"`
	Reason   Reason        `json:"reason,omitzero"` // the first thing in the way
	Detail   string        `json:"detail,omitzero"`
	Identity *IdentityView `json:"identity,omitzero"`
	// SignerDisabled: the signer answers that its switch is on.
	SignerDisabled bool              `json:"signerDisabled"`
	Audiences      map[string]string `json:"audiences"` // of the signer's registry, by provider
	Preference     Preference        `json:"preference,omitzero"`
	Development    bool              `json:"development"`
	Counts         Counts            `json:"counts"`
	// KeyLost is what was lost with the profile's key, until the owner has enrolled
	// again: Reason is signer_key_unusable then, if nothing else comes first.
	KeyLost *KeyLoss `json:"keyLost,omitzero"`
}

// Counts is how much a principal has. A lapsed grant counts as expired (GR-2).
type Counts struct {
	PendingApprovals      int `json:"pendingApprovals"`
	Businesses            int `json:"businesses"`
	ActiveGrants          int `json:"activeGrants"`
	ExpiredGrants         int `json:"expiredGrants"`
	PendingAuthorizations int `json:"pendingAuthorizations"`
	Conversations         int `json:"conversations"`
	OutcomeUnknown        int `json:"outcomeUnknown"` // operations whose fate is not known
	EvidenceToReview      int `json:"evidenceToReview"`
}

// Status asks the signer anew (SG-10) and tells what stands in the way.
func (a *Agent) Status(ctx context.Context, c Caller) (StatusView, error) {
	if err := c.check(); err != nil {
		return StatusView{}, err
	}
	ctx = withNetwork(ctx, c)
	s, err := a.freshSettings(ctx)
	if err != nil {
		return StatusView{}, err
	}
	v := StatusView{Preference: s.Preference, Development: a.rules().Development, Audiences: map[string]string{}}
	if err := a.counts(ctx, c.Principal, &v.Counts); err != nil {
		return StatusView{}, err
	}
	id, err := a.identityOf(ctx, c.Principal)
	if err != nil {
		return StatusView{}, err
	}
	if id != nil {
		view := a.identityView(id, "")
		v.Identity = &view
	}
	v.KeyLost = s.lost(id)
	err = a.availability(ctx, c.Principal)
	if err == nil {
		err = a.preferred(ctx)
	}
	if err == nil {
		var who *acting
		if who, err = a.identified(ctx, c.Principal, true); err == nil {
			v.Ready = true
			v.Identity.Subject = who.binding.Subject
			v.Audiences = who.status.Audiences
		}
	}
	var r *Refusal
	switch {
	case errors.As(err, &r):
		v.Reason, v.Detail = r.Reason, r.Text()
		v.SignerDisabled = r.Reason == ReasonSignerDisabled
	case err != nil:
		return StatusView{}, err
	}
	return v, nil
}

func (a *Agent) counts(ctx context.Context, principal string, n *Counts) error {
	if err := a.recover(ctx); err != nil {
		return err
	}
	now := a.now()
	return a.store.View(ctx, func(tx Tx) error {
		businesses, err := find[business](tx, Query{Principal: principal})
		if err != nil {
			return err
		}
		grants, err := find[grant](tx, Query{Principal: principal, States: []string{grantActive, grantExpired}})
		if err != nil {
			return err
		}
		pending, err := find[authorization](tx, Query{Principal: principal, States: []string{authorizationPending}})
		if err != nil {
			return err
		}
		conversations, err := find[conversation](tx, Query{Principal: principal})
		if err != nil {
			return err
		}
		approvals, err := find[approval](tx, Query{Principal: principal, States: []string{ApprovalPending}})
		if err != nil {
			return err
		}
		unknown, err := find[message](tx, Query{Principal: principal, States: []string{messageUnknown}})
		if err != nil {
			return err
		}
		blocks, err := find[block](tx, Query{Principal: principal, States: []string{blockOpen}})
		if err != nil {
			return err
		}
		n.PendingApprovals = len(approvals)
		n.Businesses, n.Conversations, n.EvidenceToReview = len(businesses), len(conversations), len(blocks)
		for _, g := range grants {
			if g.stateAt(now) == grantActive {
				n.ActiveGrants++
			} else {
				n.ExpiredGrants++
			}
		}
		for _, z := range pending {
			if now.Before(z.Deadline) {
				n.PendingAuthorizations++
			}
		}
		for _, m := range unknown {
			if m.unresolved() {
				n.OutcomeUnknown++
			}
		}
		return nil
	})
}
