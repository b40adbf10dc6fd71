package agent

import (
	"context"
	"errors"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// RouteResult is the way that a request to a business should take (PO-3).
type RouteResult string

// The ways. None of them is a permission: a send asks every gate again, and another
// channel is used within the authority that is held there already (PO-4).
const (
	RoutePACT    RouteResult = "pact"
	RouteOther   RouteResult = "other"   // the preference allows another channel
	RouteBlocked RouteResult = "blocked" // it does not
)

// Route is which way, and why not by PACT.
type Route struct {
	Result RouteResult `json:"result"`
	// Reason is empty for pact, and else not_supported, identity_not_ready,
	// provider_not_ready, card_rejected or pact_disabled.
	Reason   Reason `json:"reason,omitzero"`
	Detail   string `json:"detail,omitzero"`   // for people
	Business string `json:"business,omitzero"` // its id, if it is known
}

// Route says which way to take to a business: its id, domain or card URL. What is
// stored counts while it is good, else the business is discovered. It allows
// nothing and sends nothing to the business's agent (PO-3, PO-4). Where the
// administrator forbids automatic routing it is never pact for a task; the owner's
// own surfaces choose for themselves. An error is of the store, or a malformed
// call.
func (a *Agent) Route(ctx context.Context, c Caller, business string) (Route, error) {
	if err := c.check(); err != nil {
		return Route{}, err
	}
	ctx = withNetwork(ctx, c)
	r := Route{Result: RoutePACT}
	reason, err := a.routeBy(ctx, c, business, &r)
	if err == nil {
		return r, nil
	}
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		return Route{}, err
	}
	r.Result, r.Reason, r.Detail = RouteOther, reason, RedactText(refusal.Error())
	if a.currentSettings().Preference == RequirePACT {
		r.Result = RouteBlocked
	}
	return r, nil
}

// routeBy asks the gates of a send that come before its message, in their order
// (PO-5). The reason is PO-3's.
func (a *Agent) routeBy(ctx context.Context, c Caller, name string, r *Route) (Reason, error) {
	switch err := a.availability(ctx, c.Principal); {
	case ReasonOf(err) == ReasonIdentityNotSet:
		return ReasonIdentityNotReady, err
	case err != nil:
		return ReasonPACTDisabled, err
	}
	if err := a.preferred(ctx); err != nil {
		return ReasonPACTDisabled, err
	}
	if p, err := a.policy(); err != nil {
		return ReasonPACTDisabled, err
	} else if !p.AutoRoute && !c.surface() {
		return ReasonPACTDisabled, refuse(StatusBlocked, ReasonPACTDisabled, "the administrator's policy forbids routing by PACT on its own: the owner may choose it")
	}
	who, err := a.identified(ctx, c.Principal, false)
	if err != nil {
		return ReasonIdentityNotReady, err
	}
	b, err := a.currentBusiness(ctx, c, name)
	if b != nil {
		r.Business = b.ID
	}
	if err != nil {
		return cardRoute(err), err
	}
	if _, _, err := a.readyProvider(ctx, who, b.Card.Origin); err != nil {
		return ReasonProviderNotReady, err
	}
	return "", nil
}

// cardRoute tells a business that does not speak PACT from one whose card breaks
// its rules, and from one that may not be asked.
func cardRoute(err error) Reason {
	switch ReasonOf(err) {
	case string(egress.PolicyDenied), ReasonBlockedByAdmin:
		return ReasonProviderNotReady
	case ReasonNotFound, ReasonFetchFailed, ReasonInvalidJSON, ReasonInvalidInput, ReasonNoInterface, ReasonIdentityMissing,
		ReasonRequiredExtension, ReasonTenant,
		string(egress.DestinationRefused), string(egress.Timeout), string(egress.Aborted):
		return ReasonNotSupported
	}
	return ReasonCardRejected
}
