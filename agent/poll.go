package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// errNotPending: the sign-in ended meanwhile, or another program waits for it.
var errNotPending = errors.New("the sign-in does not wait here any more")

// poller is one wait for one sign-in.
type poller struct {
	a       *Agent
	op      *operation
	id      string
	owner   string
	had     bool     // the lease
	tending *Tending // the wait is of Tend, which no caller waits in
}

func (a *Agent) poller(op *operation, id string) *poller {
	return &poller{a: a, op: op, id: id, owner: a.runtime + "/" + newID("poll")}
}

// wait waits for the end of a sign-in and returns it as it ended. One polls for it,
// and all others watch what comes of that, until that one is gone (DA-4). An error
// leaves it pending: the program stops (DA-17), or the store failed.
func (p *poller) wait(ctx context.Context) (*authorization, error) {
	for told := false; ; told = true {
		z, err := p.poll(ctx)
		var elsewhere *Refusal
		if !errors.As(err, &elsewhere) || elsewhere.Reason != ReasonConsentElsewhere {
			return z, err
		}
		if !told {
			e := Event{Kind: EventElsewhere, Business: p.op.business.Card.Name, Detail: elsewhere.Text()}
			if z != nil {
				e.Until = z.Deadline
			}
			p.op.caller.tell(e)
		}
		if z, err = p.watch(ctx); err != nil || z.State != authorizationPending {
			return z, err
		}
	}
}

// attend shows a sign-in to the owner, if the caller can, and waits for its end.
func (p *poller) attend(ctx context.Context, z *authorization) (*authorization, error) {
	c := p.op.caller
	if c.SignIn != nil && p.a.now().Before(z.Deadline) {
		err := p.a.showSignIn(ctx, c, z)
		if ReasonOf(err) != "" { // it may have ended meanwhile
			if now, e := p.read(ctx); e == nil && now.State != authorizationPending {
				return now, nil
			}
		}
		if err != nil {
			return p.ended(ctx, z, err)
		}
	}
	c.tell(Event{Kind: EventConsent, Business: p.op.business.Card.Name, Until: z.Deadline})
	return p.wait(ctx)
}

// poll polls until the sign-in ends (DA-3..DA-11). That somebody else does is a
// refusal.
func (p *poller) poll(ctx context.Context) (*authorization, error) {
	defer p.release()
	for {
		z, err := p.step(ctx)
		if err != nil {
			return p.ended(ctx, z, err)
		}
		if z.State != authorizationPending {
			return z, nil
		}
	}
}

// watch waits until a sign-in that somebody else polls has ended, or nobody polls
// it any more. The turn that waits for it is held meanwhile (CV-2).
func (p *poller) watch(ctx context.Context) (z *authorization, err error) {
	watch := func(ctx context.Context) error {
		return p.a.follow(ctx, KindAuthorization, p.op.caller.Principal, p.id, func() (bool, error) {
			z, err = p.read(ctx)
			return err == nil && (z.State != authorizationPending || !p.a.held(&z.Head)), err
		})
	}
	if p.op.conversation != nil {
		err = p.a.whileHeld(ctx, p.op, watch)
	} else {
		err = watch(ctx)
	}
	return p.ended(ctx, z, err)
}

// read reads the sign-in.
func (p *poller) read(ctx context.Context) (z *authorization, err error) {
	err = p.a.store.View(ctx, func(tx Tx) error {
		z, err = get[authorization](tx, p.op.caller.Principal, p.id)
		return err
	})
	return z, err
}

// step waits for the next poll's time and polls once.
func (p *poller) step(ctx context.Context) (*authorization, error) {
	a := p.a
	z, err := p.lease(ctx)
	if err != nil || z.State != authorizationPending {
		return z, err
	}
	if end := a.lasts(z); z.NextPoll.After(end) || a.now().After(end) { // DA-7
		return p.settle(ctx, authorizationExpired, ReasonConsentExpired)
	}
	// A wait may be longer than the lease: it is renewed on the way.
	for renew := a.params.PollLease / 2; z.NextPoll.Sub(a.now()) > renew; {
		if err := a.wait(ctx, a.now().Add(renew)); err != nil {
			return z, err
		}
		if z, err = p.lease(ctx); err != nil || z.State != authorizationPending {
			return z, err
		}
	}
	if err := a.wait(ctx, z.NextPoll); err != nil {
		return z, err
	}
	if z, err = p.lease(ctx); err != nil || z.State != authorizationPending {
		return z, err
	}
	return p.whileLeased(ctx, func() (*authorization, error) { return p.once(ctx, z) })
}

// whileLeased runs f with the lease renewed meanwhile. How the sign-in ended, if f
// ended it, counts more than that the lease was lost.
func (p *poller) whileLeased(ctx context.Context, f func() (*authorization, error)) (z *authorization, err error) {
	op := *p.op // f may change the other
	beside := *p
	beside.op = &op
	lost := whileLeased(context.WithoutCancel(ctx), p.a.params.PollLease, func(ctx context.Context) error {
		_, err := beside.lease(ctx)
		return err
	}, func(context.Context) error {
		z, err = f()
		return nil
	})
	if err == nil && z.State == authorizationPending {
		err = lost
	}
	return z, err
}

// once polls, if the sign-in is still wanted.
func (p *poller) once(ctx context.Context, z *authorization) (*authorization, error) {
	err := p.stillWaiting(ctx, z) // DA-9
	var b *business
	if err == nil {
		b, err = p.stillWanted(ctx, z)
	}
	if err != nil {
		return p.unwanted(ctx, z, err)
	}
	// What a poll brings is taken down, for the code may be spent by it; a caller
	// that leaves is heard after (DA-10, DA-17). Every request in it has a timeout.
	z, err = p.ask(context.WithoutCancel(ctx), z, b)
	if err == nil && z.State == authorizationPending && ctx.Err() != nil {
		return z, context.Cause(ctx)
	}
	return z, err
}

// unwanted ends a sign-in that may not go on, or counts what may pass.
func (p *poller) unwanted(ctx context.Context, z *authorization, err error) (*authorization, error) {
	reason := ReasonOf(err)
	switch {
	case reason == "" || ctx.Err() != nil:
		return z, err
	case passing(reason):
		return p.failed(ctx, err) // as a timeout
	case reason == ReasonTaskNotWaiting:
		return p.settle(ctx, authorizationCancelled, reason)
	}
	return p.settle(ctx, authorizationFailed, reason)
}

// passing reports that the signer, not the sign-in, is the trouble.
func passing(r Reason) bool { return r == ReasonSignerUnavailable }

// ended is how a wait ends by err. If that is the caller's leaving, either the owner
// gave up, or the program stops and the sign-in stays (DA-8, DA-17).
func (p *poller) ended(ctx context.Context, z *authorization, err error) (*authorization, error) {
	if err == nil || ctx.Err() == nil || ReasonOf(err) != "" {
		return z, err
	}
	if errors.Is(context.Cause(ctx), ErrAborted) && p.tending == nil {
		return p.a.giveUp(context.WithoutCancel(ctx), p.op.caller, p.id)
	}
	return z, context.Cause(ctx)
}

// lease takes or renews the lease of a pending sign-in (DA-4), and renews the one
// of the turn that waits for it (CV-2).
func (p *poller) lease(ctx context.Context) (*authorization, error) {
	return p.leaseFor(ctx, func(*authorization) {})
}

// leaseFor is lease together with a change of the sign-in.
func (p *poller) leaseFor(ctx context.Context, change func(*authorization)) (z *authorization, err error) {
	err = p.a.store.Update(quietly(ctx), func(tx Tx) error {
		if z, err = p.ours(tx); err != nil || z.State != authorizationPending {
			return err
		}
		p.had = true
		z.lease(p.owner, p.a.now().Add(p.a.params.PollLease))
		change(z)
		if err := put(tx, z); err != nil || p.op.conversation == nil {
			return err
		}
		return p.a.changeIn(tx, p.op, func(*conversation) {})
	})
	return z, err
}

// release gives the lease back; if that fails it ends by itself.
func (p *poller) release() {
	_ = p.a.store.Update(quietly(context.Background()), func(tx Tx) error {
		z, err := get[authorization](tx, p.op.caller.Principal, p.id)
		if err != nil || z.State != authorizationPending || z.LeaseOwner != p.owner {
			return err
		}
		z.release()
		return put(tx, z)
	})
}

// settle ends a sign-in that is pending and ours: to another program's, what went
// wrong for us says nothing (DA-4).
func (p *poller) settle(ctx context.Context, state string, reason Reason) (z *authorization, err error) {
	err = p.a.store.Update(ctx, func(tx Tx) error {
		if z, err = p.ours(tx); err != nil || z.State != authorizationPending {
			return err
		}
		return p.a.settle(tx, z, state, reason)
	})
	return z, err
}

// ours reads the sign-in, and refuses if it is pending and another program waits
// for it.
func (p *poller) ours(tx Tx) (*authorization, error) {
	z, err := get[authorization](tx, p.op.caller.Principal, p.id)
	if err == nil && z.State == authorizationPending && p.a.leased(&z.Head, p.owner) {
		text := "another program waits for this sign-in"
		if p.had {
			text += " (" + ReasonLeaseLost + ")"
		}
		return z, refuse(StatusNeedsUserAction, ReasonConsentElsewhere, "%s", text)
	}
	return z, err
}

// stillWanted asks again what was true when the sign-in began (DA-9, PO-7).
func (p *poller) stillWanted(ctx context.Context, z *authorization) (*business, error) {
	a, principal := p.a, p.op.caller.Principal
	if err := a.availability(ctx, principal); err != nil {
		return nil, err
	}
	if err := a.preferred(ctx); err != nil {
		return nil, err
	}
	who, err := a.identified(ctx, principal, false)
	if err != nil {
		return nil, err
	}
	if who.binding.ID != z.Binding {
		return nil, refuse(StatusBlocked, ReasonSubjectChanged, "the sign-in was begun as another identity")
	}
	p.op.who = who
	var b *business
	if err := a.store.View(ctx, func(tx Tx) (err error) { b, err = get[business](tx, principal, z.Business); return err }); err != nil {
		return nil, fmt.Errorf("read the business: %w", err)
	}
	if b.State != businessSupported || b.CardRevision != z.CardRevision {
		return nil, refuse(StatusUnsupported, ReasonCardChanged, "the business changed its card")
	}
	if _, _, err := a.readyProvider(ctx, who, b.Card.Origin); err != nil {
		return nil, err
	}
	return b, nil
}

// ask asks the token endpoint once.
func (p *poller) ask(ctx context.Context, z *authorization, b *business) (*authorization, error) {
	a := p.a
	var s authorizationSecret
	err := a.store.View(ctx, func(tx Tx) error { return a.box.get(tx, z.ID, authorizationPurpose(z), &s) })
	if errors.Is(err, errSecretLost) {
		return p.settle(ctx, authorizationFailed, ReasonSecretMissing)
	}
	if err != nil {
		return z, fmt.Errorf("read the sign-in: %w", err)
	}
	if s.Unchecked != nil { // the code is spent: what it brought comes first
		return p.granted(ctx, z, b, s.Unchecked)
	}
	if z, err = p.read(ctx); err != nil || z.State != authorizationPending {
		return z, err
	}
	p.op.caller.tell(Event{Kind: EventPolling, Business: b.Card.Name, Until: z.Deadline})
	form := url.Values{"grant_type": {grantTypeDevice}, "device_code": {s.DeviceCode}}
	resp, err := a.oauthIf(ctx, p.op.who, b, egress.Token, b.Card.TokenURL, form, func(ctx context.Context) error {
		// What happens next is on disk first: after a crash nobody polls too early, however
		// long the tokens that go with the poll took.
		z, err := p.leaseFor(ctx, func(z *authorization) { z.NextPoll = a.now().Add(z.interval()) })
		if err == nil && z.State != authorizationPending {
			return errNotPending
		}
		return err
	})
	switch {
	case errors.Is(err, errNotPending): // nothing was sent
		return p.next(ctx, func(*authorization) {})
	case err != nil && ReasonOf(err) == ReasonIdentityRejected:
		return p.settle(ctx, authorizationFailed, ReasonIdentityRejected)
	case err != nil:
		return p.failed(ctx, err)
	case resp.Status == http.StatusOK:
		s.Unchecked = &uncheckedTokens{Response: resp.Body, Received: a.now()}
		if z, err = p.keepUnchecked(ctx, s); err != nil || z.State != authorizationPending {
			return z, err
		}
		return p.granted(ctx, z, b, s.Unchecked)
	case resp.Status == http.StatusTooManyRequests: // DA-6: no cap but the deadline
		wait, ok := ParseRetryAfter(resp.Header.Get("Retry-After"), a.now(), 0)
		if !ok {
			wait = a.params.PollRetryAfter
		}
		return p.next(ctx, func(z *authorization) { z.NextPoll = a.now().Add(max(z.interval(), wait)) })
	case resp.Status >= 500:
		return p.failed(ctx, fmt.Errorf("the token endpoint answers HTTP %d", resp.Status))
	}
	switch code := oauthError(resp.Body); code {
	case oauthPending:
		return p.next(ctx, func(z *authorization) { z.Failures, z.NextPoll = 0, a.now().Add(z.interval()) })
	case oauthSlowDown: // DA-5
		return p.next(ctx, func(z *authorization) {
			z.Failures = 0
			z.setInterval(min(z.interval()+a.params.PollSlowDown, max(a.params.PollMax, z.interval())))
			z.NextPoll = a.now().Add(z.interval())
		})
	case oauthDenied:
		return p.settle(ctx, authorizationDenied, ReasonAccessDenied)
	case oauthExpired:
		return p.settle(ctx, authorizationExpired, ReasonConsentExpired)
	default:
		return p.settle(ctx, authorizationFailed, ReasonConsentRejected)
	}
}

func (z *authorization) interval() time.Duration     { return time.Duration(z.Interval) * time.Microsecond }
func (z *authorization) setInterval(d time.Duration) { z.Interval = d.Microseconds() }

// next changes a pending sign-in that is ours.
func (p *poller) next(ctx context.Context, change func(*authorization)) (z *authorization, err error) {
	err = p.a.store.Update(quietly(ctx), func(tx Tx) error {
		if z, err = p.ours(tx); err != nil || z.State != authorizationPending {
			return err
		}
		change(z)
		return put(tx, z)
	})
	return z, err
}

// failed is a poll that brought no answer (DA-6): the interval doubles, and the
// sixth in a row is a failure.
func (p *poller) failed(ctx context.Context, cause error) (*authorization, error) {
	a, giveUp := p.a, false
	z, err := p.next(ctx, func(z *authorization) {
		z.Failures++
		giveUp = z.Failures > maxPollFailures
		z.setInterval(min(2*z.interval(), max(a.params.PollMax, z.interval())))
		z.NextPoll = a.now().Add(z.interval())
	})
	if err != nil || z.State != authorizationPending || !giveUp {
		return z, err
	}
	p.op.caller.tell(Event{Kind: EventPolling, Detail: RedactText(cause.Error())})
	return p.settle(ctx, authorizationFailed, ReasonPollFailed)
}

// keepUnchecked seals what a code brought before it is checked: the keys for that
// may not be to be had now, and the code is spent.
func (p *poller) keepUnchecked(ctx context.Context, s authorizationSecret) (z *authorization, err error) {
	err = p.a.store.Update(quietly(ctx), func(tx Tx) error {
		if z, err = p.ours(tx); err != nil || z.State != authorizationPending {
			return err
		}
		z.Came = s.Unchecked.Received
		if err := p.a.box.put(tx, z.ID, authorizationPurpose(z), s); err != nil {
			return err
		}
		return put(tx, z)
	})
	return z, err
}

// lasts is until when something may come of a sign-in: what its code brought in time is
// checked for a while longer, if the keys for that were not to be had.
func (a *Agent) lasts(z *authorization) time.Time {
	if z.Came.IsZero() {
		return z.Deadline
	}
	return z.Deadline.Add(a.params.CheckLate)
}

// granted checks what was granted (DA-11, DA-12), as of when it came, and stores the
// grant and the end of the sign-in together.
func (p *poller) granted(ctx context.Context, z *authorization, b *business, unchecked *uncheckedTokens) (*authorization, error) {
	a, now := p.a, unchecked.Received
	t, err := readTokenResponse(unchecked.Response, z.Scopes)
	var d Delegation
	if err == nil {
		want := DelegationWant{Issuer: b.Metadata.Issuer, InterfaceURL: b.Card.InterfaceURL, ClientID: p.op.who.id.Issuer, Scope: t.Scope}
		d, err = CheckDelegationToken(ctx, t.AccessToken.Reveal(), want, CacheKeys(a.keys, b.Metadata.JWKSURI), now)
	}
	switch {
	case err == nil:
	case errors.Is(err, ErrGrantRefused):
		return p.settle(ctx, authorizationFailed, ReasonGrantRefused)
	default: // no keys to check it with: as a poll without an answer
		return p.failed(ctx, err)
	}
	a.revalidate(ctx, p.op.caller, b)         // what was consented to is what the card says
	switch _, err := p.stillWanted(ctx, z); { // PO-7: the owner took their time
	case err == nil || passing(ReasonOf(err)):
	case ReasonOf(err) == "":
		return z, err
	default:
		return p.settle(ctx, authorizationFailed, ReasonOf(err))
	}
	err = a.store.Update(ctx, func(tx Tx) error {
		if z, err = get[authorization](tx, p.op.caller.Principal, p.id); err != nil || z.State != authorizationPending {
			return err
		}
		if b, err = get[business](tx, z.Principal, z.Business); err != nil {
			return err
		}
		if b.State != businessSupported || b.CardRevision != z.CardRevision { // DI-6
			return a.settle(tx, z, authorizationFailed, ReasonCardChanged)
		}
		if len(d.Scopes) == 0 {
			return a.settle(tx, z, authorizationDenied, ReasonInsufficient)
		}
		g, err := a.storeGrant(tx, p.op.who, b, t, d, now)
		if err != nil {
			return err
		}
		z.Grant = g.ID
		if !covers(d.Scopes, z.Needed) { // kept all the same: the owner did grant it
			return a.settle(tx, z, authorizationDenied, ReasonInsufficient)
		}
		return a.settle(tx, z, authorizationGranted, "")
	})
	return z, err
}
