package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// authorizationPurpose is what a pending sign-in's secret is sealed for.
func authorizationPurpose(z *authorization) string {
	return "authorization\x00" + z.Principal + "\x00" + z.ID
}

// settle ends a sign-in, once, and deletes its codes whatever the result
// (DA-10). The conversations that wait for it, and in which nobody is at work, wait
// no more. The caller read z in the same transaction, pending.
func (a *Agent) settle(tx Tx, z *authorization, state string, reason Reason) error {
	z.State, z.Reason, z.Settled = state, reason, a.now()
	z.release()
	if err := put(tx, z); err != nil {
		return err
	}
	if err := tx.DeleteSecret(z.ID); err != nil {
		return err
	}
	waiting, err := find[conversation](tx, Query{Principal: z.Principal, Business: z.Business, States: []string{conversationAwaitingBusiness}})
	if err != nil {
		return err
	}
	for _, c := range waiting {
		if c.Authorization != z.ID || c.LeaseOwner != "" && a.alive(c.LeaseOwner) { // whose turn it is sees to it
			continue
		}
		c.release()
		c.signedIn(z)
		c.Updated = a.now()
		if err := put(tx, c); err != nil {
			return err
		}
	}
	return nil
}

// signedIn moves a conversation on that waited for a sign-in which has ended. Nothing
// was sent: it can be gone on with, or tells why it was not.
func (c *conversation) signedIn(z *authorization) {
	c.State, c.Reason = conversationReady, z.Reason
	switch z.State {
	case authorizationDenied:
		c.State = conversationDenied
	case authorizationExpired:
		c.State = conversationExpired
	case authorizationCancelled:
		c.State = conversationCancelled
	}
}

// settleOnce ends a sign-in if it is pending, and returns it as it ended.
func (a *Agent) settleOnce(ctx context.Context, principal, id, state string, reason Reason) (z *authorization, err error) {
	err = a.store.Update(ctx, func(tx Tx) error {
		if z, err = get[authorization](tx, principal, id); err != nil || z.State != authorizationPending {
			return err
		}
		return a.settle(tx, z, state, reason)
	})
	return z, err
}

// giveUp ends a sign-in for who gives it up, if it is pending, and returns it as it
// ended.
func (a *Agent) giveUp(ctx context.Context, c Caller, id string) (z *authorization, err error) {
	err = a.store.Update(ctx, func(tx Tx) error {
		if z, err = get[authorization](tx, c.Principal, id); err != nil || z.State != authorizationPending {
			return err
		}
		z.SettledBy = c.actor()
		return a.settle(tx, z, authorizationCancelled, ReasonUserCancelled)
	})
	return z, err
}

// AuthorizeRequest asks for permissions at a business.
type AuthorizeRequest struct {
	Business string   // id, domain or card URL
	Scopes   []string // at least one, all on the card
	Purpose  string   // for the owner; at most 500 characters
}

// Authorize gets the owner's consent at a business: it shows the sign-in link by
// the caller's SignIn and waits. Without SignIn it ends as needs_user_action, with
// the sign-in pending. A grant that covers the scopes already is taken as it is.
func (a *Agent) Authorize(ctx context.Context, c Caller, req AuthorizeRequest) (Result, error) {
	if err := c.check(); err != nil {
		return Result{}, err
	}
	ctx = withNetwork(ctx, c)
	op := &operation{caller: c}
	return op.finish(ctx, a.authorize(ctx, op, req))
}

func (a *Agent) authorize(ctx context.Context, op *operation, req AuthorizeRequest) error {
	op.ref, op.required = req.Business, ScopeSet(strings.Join(req.Scopes, " "))
	op.purpose = req.Purpose
	for _, gate := range []gate{a.isAvailable, a.isPreferred, a.isIdentified, a.hasBusiness, a.hasProvider} {
		if err := gate(ctx, op); err != nil {
			return err
		}
	}
	if err := a.recover(ctx); err != nil {
		return err
	}
	if err := op.caller.mayAct("ask a business for permissions"); err != nil { // AD-2, AD-4
		return err
	}
	switch {
	case len(op.required) == 0:
		return refuse(StatusFailed, ReasonInvalidInput, "scopes: name at least one permission")
	case !utf8.ValidString(req.Purpose):
		return refuse(StatusFailed, ReasonInvalidInput, "purpose: it is not valid UTF-8")
	case utf8.RuneCountInString(req.Purpose) > maxPurpose:
		return refuse(StatusFailed, ReasonInvalidInput, "purpose: it is longer than %d characters", maxPurpose)
	}
	if err := knownScopes(op); err != nil {
		return err
	}
	if err := a.coverScopes(ctx, op); err != nil {
		return err
	}
	if op.grant == nil {
		if err := a.getConsent(ctx, op); err != nil {
			return err
		}
	}
	if op.grant == nil {
		return refuse(StatusDenied, ReasonInsufficient, "the permission that was granted has ended")
	}
	op.result.Status = StatusDone
	v := a.grantView(op.grant, op.business.Card.Name)
	op.result.Grant = &v
	return nil
}

// getConsent gets a grant that covers op.required from the owner, by a sign-in
// that is pending already or a new one.
func (a *Agent) getConsent(ctx context.Context, op *operation) error {
	var z *authorization
	begin := func(ctx context.Context) (err error) {
		if z, err = a.claimSignIn(ctx, op); err == nil && z.State == authorizationStarting {
			z, err = a.startAuthorization(ctx, op, z)
		}
		return err
	}
	var err error
	if op.conversation != nil {
		err = a.whileHeld(ctx, op, begin)
	} else {
		err = begin(ctx)
	}
	if err != nil {
		return err
	}
	op.setAuthorization(a, z)
	if err := a.awaitSignIn(ctx, op, z); err != nil {
		return err
	}
	if !a.now().Before(a.lasts(z)) { // DA-10: its codes go now
		if z, err = a.settleOnce(ctx, z.Principal, z.ID, authorizationExpired, ReasonConsentExpired); err != nil {
			return err
		}
		op.setAuthorization(a, z)
		return a.settledRefusal(ctx, op, z)
	}
	if op.caller.SignIn == nil || op.caller.Human != HumanInteractive {
		return refuse(StatusNeedsUserAction, ReasonSignInPending, "the owner must sign in at the business: pactctl authorization wait %s", z.ID)
	}
	z, err = a.poller(op, z.ID).attend(ctx, z)
	if z != nil {
		op.setAuthorization(a, z)
	}
	if err != nil {
		return err
	}
	if z.Grant == "" {
		return a.settledRefusal(ctx, op, z)
	}
	// Granted is granted, whoever left; and what counts is what this operation needs, be
	// it less than what the sign-in was begun for, or more (DA-12).
	err = a.coverScopes(context.WithoutCancel(ctx), op)
	if err != nil || op.grant != nil {
		return err
	}
	covered := false
	err = a.store.View(context.WithoutCancel(ctx), func(tx Tx) (err error) {
		covered, err = broughtBy(tx, z, op.required)
		return err
	})
	if err == nil && !covered {
		err = a.partialRefusal(context.WithoutCancel(ctx), op, z, op.required)
	}
	return err // else it is another account's, or has ended meanwhile
}

// broughtBy reports whether what a sign-in that has ended brought covers what is
// required (DA-12).
func broughtBy(tx Tx, z *authorization, required []string) (bool, error) {
	if z.Grant == "" {
		return false, nil
	}
	g, err := get[grant](tx, z.Principal, z.Grant)
	if errors.Is(err, ErrNotFound) {
		return z.State == authorizationGranted, nil
	}
	return err == nil && covers(g.Scopes, required), err
}

func (op *operation) setAuthorization(a *Agent, z *authorization) {
	name := ""
	if op.business != nil {
		name = op.business.Card.Name
	}
	v := a.authorizationView(z, name)
	op.result.Authorization = &v
}

// settledRefusal is what a sign-in that brought no grant means to who needed it.
func (a *Agent) settledRefusal(ctx context.Context, op *operation, z *authorization) error {
	if z.Grant != "" { // DA-12
		return a.partialRefusal(ctx, op, z, z.Needed)
	}
	status := StatusFailed
	switch z.State {
	case authorizationDenied:
		status = StatusDenied
	case authorizationExpired:
		status = StatusExpired
	case authorizationCancelled:
		status = StatusCancelled
	}
	return refuse(status, z.Reason, "the sign-in ended: %s", or(signInEnds[z.Reason], z.State))
}

// signInEnds says why a sign-in brought nothing.
var signInEnds = map[Reason]string{
	ReasonGrantRefused:    "the token that came is not what was asked for, and was not kept",
	ReasonPollFailed:      "the business did not answer any more whether you had signed in",
	ReasonAccessDenied:    "it was not allowed there",
	ReasonConsentExpired:  "it was not finished in time",
	ReasonUserCancelled:   "it was given up",
	ReasonSecretMissing:   "its codes were lost with the profile's key",
	ReasonConsentRejected: "the business ended it with an error",
	ReasonCardChanged:     "the business's card changed meanwhile",
	ReasonSubjectChanged:  "the signer names you otherwise than before",
}

// partialRefusal tells what the owner granted at the business, when it is less
// than what was needed (DA-12).
func (a *Agent) partialRefusal(ctx context.Context, op *operation, z *authorization, needed []string) error {
	return a.store.View(ctx, func(tx Tx) error {
		g, err := get[grant](tx, z.Principal, z.Grant)
		if err != nil {
			return err
		}
		missing := slices.DeleteFunc(slices.Clone(needed), func(s string) bool { return slices.Contains(g.Scopes, s) })
		op.result.MissingScopes = shown(missing)
		v := a.grantView(g, op.business.Card.Name)
		op.result.Grant = &v
		return refuse(StatusDenied, ReasonInsufficient, "at the business only %s was granted, and %s is needed too; the smaller permission is kept",
			strings.Join(shown(g.Scopes), ", "), strings.Join(op.result.MissingScopes, ", "))
	})
}

// claimSignIn is a sign-in under way that asks for just what op would ask for (DA-1),
// or else the start of a new one: a record by which every other program and goroutine
// knows of it and waits, so that the owner is never shown two codes for one thing, and
// never asked for what others want.
func (a *Agent) claimSignIn(ctx context.Context, op *operation) (z *authorization, err error) {
	for {
		err := a.store.Update(ctx, func(tx Tx) error {
			z = nil
			under, err := find[authorization](tx, Query{Principal: op.who.principal, Business: op.business.ID, States: []string{authorizationStarting, authorizationPending}})
			if err != nil {
				return err
			}
			task, network := op.caller.taskID(), op.caller.networkName()
			under = slices.DeleteFunc(under, func(o *authorization) bool { return o.Task != task || o.Network != network }) // RS-4, RS-5
			for _, o := range under {
				if o.State == authorizationStarting && a.held(&o.Head) {
					return nil
				}
			}
			asked, err := a.toAsk(tx, op)
			if err != nil {
				return err
			}
			for _, o := range under {
				if o.State == authorizationPending && o.Binding == op.who.binding.ID && o.CardRevision == op.business.CardRevision &&
					a.now().Before(o.Deadline) && covers(o.Scopes, asked) && covers(asked, o.Scopes) {
					z = o
					return nil
				}
			}
			if err := a.noInput(tx, op); err != nil { // DA-13
				return err
			}
			if err := a.roomForSignIn(tx, op); err != nil {
				return err
			}
			z = &authorization{
				Task: task, Network: network, Actor: op.caller.actor(),
				Head:         Head{ID: newID("signin"), Principal: op.who.principal, Business: op.business.ID, State: authorizationStarting, Created: a.now()},
				Binding:      op.who.binding.ID,
				CardRevision: op.business.CardRevision,
				Needed:       op.required, Purpose: op.purpose,
			}
			z.lease(a.runtime+"/"+newID("start"), a.now().Add(a.params.PollLease))
			return put(tx, z)
		})
		if err != nil || z != nil {
			return z, err
		}
		if err := a.wait(ctx, a.now().Add(a.params.RefreshCheck)); err != nil {
			return nil, err
		}
	}
}

// toAsk are the permissions that a sign-in for an operation asks for: what it requires,
// and those of the active grants (DA-1).
func (a *Agent) toAsk(tx Tx, op *operation) ([]string, error) {
	active, err := activeGrants(tx, op.who, op.business, a.now())
	asked := op.required
	for _, g := range active {
		asked = union(asked, g.Scopes)
	}
	return slices.DeleteFunc(slices.Clone(asked), func(id string) bool {
		_, ok := op.business.Card.Scope(id) // an old grant may hold what the card has no more
		return !ok
	}), err
}

// startAuthorization asks the business for a device code (DA-1..DA-3) and keeps
// it, sealed, before anything is shown.
func (a *Agent) startAuthorization(ctx context.Context, op *operation, z *authorization) (_ *authorization, err error) {
	defer func() {
		if err != nil { // if that fails it is given up by its lease
			_ = a.store.Update(context.WithoutCancel(ctx), func(tx Tx) error {
				return errors.Join(tx.Delete(KindAuthorization, z.Principal, z.ID), tx.DeleteSecret(z.ID))
			})
		}
	}()
	b := op.business
	if b.Card.Profile != ProfileDelegated {
		return nil, refuse(StatusUnsupported, ReasonNotDelegated, "%s has no delegation", b.Card.Name)
	}
	var asked []string
	err = a.store.View(ctx, func(tx Tx) (err error) {
		asked, err = a.toAsk(tx, op)
		return err
	})
	if err != nil {
		return nil, err
	}
	resp, err := a.deviceRequest(ctx, op, z, asked)
	if err != nil {
		return nil, err
	}
	d, err := readDeviceResponse(resp.Body)
	if err != nil {
		return nil, err
	}
	for _, link := range []string{d.VerificationURI, d.VerificationURIComplete} { // UR-6
		if link == "" {
			continue
		}
		if _, err := a.rules().Check(link); err != nil {
			return nil, refuseErr(StatusFailed, ReasonConsentUnsafe, err)
		}
	}
	now := a.now()
	interval := a.params.PollDefault
	if d.HasInterval {
		interval = max(d.Interval, a.params.PollMin)
	}
	z.State, z.Created = authorizationPending, now
	z.release()
	z.Scopes, z.Interval = asked, interval.Microseconds()
	z.NextPoll = now.Add(interval) // first poll after one full interval
	z.Deadline = now.Add(min(d.ExpiresIn, a.params.ConsentMax))
	err = a.store.Update(ctx, func(tx Tx) error {
		if err := a.box.put(tx, z.ID, authorizationPurpose(z), d.authorizationSecret); err != nil {
			return err
		}
		return put(tx, z)
	})
	if err != nil {
		return nil, fmt.Errorf("keep the sign-in: %w", err)
	}
	return z, nil
}

// deviceRequest starts the device flow; a 429 is waited for as for a message
// (CV-10). Errors are *Refusal (DA-2).
func (a *Agent) deviceRequest(ctx context.Context, op *operation, z *authorization, scopes []string) (egress.Response, error) {
	b := op.business
	for tries := 0; ; tries++ {
		form := url.Values{"scope": {strings.Join(scopes, " ")}}
		resp, err := a.oauth(ctx, op.who, b, egress.DeviceAuthorization, b.Card.DeviceAuthorizationURL, form)
		if err != nil {
			if ReasonOf(err) != "" || ctx.Err() != nil {
				return resp, err
			}
			return resp, refuseErr(StatusFailed, ReasonConsentUnavailable, err)
		}
		code := oauthError(resp.Body)
		switch {
		case resp.Status == http.StatusOK:
			return resp, nil
		case resp.Status == http.StatusTooManyRequests && tries < maxRateRetries:
			at := a.now().Add(a.rateWait(resp.Header.Get("Retry-After")))
			op.caller.tell(Event{Kind: EventWaiting, Business: b.Card.Name, Detail: "the business limits requests", Until: at})
			err := a.store.Update(ctx, func(tx Tx) error {
				z.lease(z.LeaseOwner, at.Add(a.params.PollLease))
				return put(tx, z)
			})
			if err == nil {
				err = a.wait(ctx, at)
			}
			if err != nil {
				return resp, err
			}
		case resp.Status == http.StatusTooManyRequests, resp.Status >= 500:
			return resp, refuse(StatusFailed, ReasonConsentUnavailable, "the business starts no sign-in now (HTTP %d)", resp.Status)
		case code == oauthInvalidScope:
			return resp, refuse(StatusFailed, ReasonConsentScope, "the business does not know a permission of its card")
		default:
			return resp, refuse(StatusFailed, ReasonConsentRejected, "the business starts no sign-in (HTTP %d %s)", resp.Status, code)
		}
	}
}

// rateWait is the wait after a 429 on a turn (TR-7, CV-10).
func (a *Agent) rateWait(retryAfter string) time.Duration {
	if d, ok := ParseRetryAfter(retryAfter, a.now(), a.params.RateWaitMax); ok {
		return d
	}
	return a.params.RateWait
}
