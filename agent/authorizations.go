package agent

import (
	"context"
	"fmt"
	"time"
)

// AuthorizationView is a sign-in as a surface shows it: no code and no link.
type AuthorizationView struct {
	ID           string    `json:"id"`
	Business     string    `json:"business"`
	BusinessName string    `json:"businessName"` // untrusted
	State        string    `json:"state"`
	Reason       Reason    `json:"reason,omitzero"`
	Scopes       []string  `json:"scopes"`
	Needed       []string  `json:"needed"`
	Purpose      string    `json:"purpose,omitzero"`
	Task         string    `json:"task,omitzero"`    // that asked for it
	Network      string    `json:"network,omitzero"` // the profile that it was begun under
	Grant        string    `json:"grant,omitzero"`
	Created      time.Time `json:"created"`
	Deadline     time.Time `json:"deadline"`
	Settled      time.Time `json:"settled,omitzero"`
	Actor        string    `json:"actor,omitzero"`     // who asked for it
	SettledBy    string    `json:"settledBy,omitzero"` // who gave it up
}

func (a *Agent) authorizationView(z *authorization, name string) AuthorizationView {
	return AuthorizationView{
		ID: z.ID, Business: z.Business, BusinessName: name, State: z.State, Reason: z.Reason,
		Scopes: nonNil(z.Scopes), Needed: nonNil(z.Needed), Purpose: z.Purpose, Grant: z.Grant, Task: z.Task, Network: z.Network,
		Created: z.Created, Deadline: z.Deadline, Settled: z.Settled, Actor: z.Actor, SettledBy: z.SettledBy,
	}
}

// Authorizations lists a principal's sign-ins, newest first.
func (a *Agent) Authorizations(ctx context.Context, c Caller) ([]AuthorizationView, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := a.recover(ctx); err != nil {
		return nil, err
	}
	out := []AuthorizationView{}
	err := a.store.View(ctx, func(tx Tx) error {
		all, err := find[authorization](tx, Query{Principal: c.Principal})
		names := nameCache{}
		for _, z := range all {
			if z.State == authorizationStarting {
				continue
			}
			out = append(out, a.authorizationView(z, names.of(tx, z.Principal, z.Business)))
		}
		return err
	})
	return out, err
}

// Authorization shows one sign-in. Errors wrap ErrNotFound.
func (a *Agent) Authorization(ctx context.Context, c Caller, id string) (AuthorizationView, error) {
	op, z, err := a.signIn(ctx, c, id)
	if err != nil {
		return AuthorizationView{}, err
	}
	return a.authorizationView(z, op.business.Card.Name), nil
}

// signIn is one sign-in of a caller's, and an operation at its business.
func (a *Agent) signIn(ctx context.Context, c Caller, id string) (*operation, *authorization, error) {
	op := &operation{caller: c}
	if err := op.caller.check(); err != nil {
		return nil, nil, err
	}
	if err := a.recover(ctx); err != nil {
		return nil, nil, err
	}
	var z *authorization
	err := a.store.View(ctx, func(tx Tx) (err error) {
		if z, err = get[authorization](tx, c.Principal, id); err == nil && z.State == authorizationStarting { // never shown
			err = ErrNotFound
		}
		if err == nil {
			op.business, err = get[business](tx, c.Principal, z.Business)
		}
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("sign-in: %w", err)
	}
	op.setAuthorization(a, z)
	return op, z, nil
}

// CancelAuthorization gives a pending sign-in up, as the owner does who dismisses
// its card (DA-13); one that ended stays as it ended. A task gives up its own, the
// owner outside any task all of them. Errors wrap ErrNotFound.
func (a *Agent) CancelAuthorization(ctx context.Context, c Caller, id string) (AuthorizationView, error) {
	if err := c.check(); err != nil {
		return AuthorizationView{}, err
	}
	ctx = withActor(ctx, c)
	if !c.owner() {
		return AuthorizationView{}, refuse(StatusBlocked, ReasonDelegationRequired, "only the owner may cancel a sign-in; this call is by %q", c.Origin)
	}
	var z *authorization
	name := ""
	err := a.store.View(ctx, func(tx Tx) (err error) {
		if z, err = get[authorization](tx, c.Principal, id); err == nil {
			name = nameCache{}.of(tx, z.Principal, z.Business)
		}
		return err
	})
	if err == nil && !c.surface() && z.Task != c.taskID() {
		return AuthorizationView{}, refuse(StatusBlocked, ReasonOtherTask, "a task may cancel no sign-in but its own")
	}
	if err == nil {
		z, err = a.giveUp(ctx, c, id)
	}
	if err != nil {
		return AuthorizationView{}, fmt.Errorf("cancel the sign-in: %w", err)
	}
	return a.authorizationView(z, name), nil
}

// WaitAuthorization shows the link of a pending sign-in again, if the caller can
// show one, and waits until it ends. It polls for that, unless somebody else does:
// then it waits for what they find, and takes over from them when they are gone
// (DA-4). It goes on only for the task that it was begun for, or on the owner's own
// surface, and under the network profile that it was begun under; what cannot go on
// any more is settled (RS-4, RS-5). That the call ends does not end the sign-in,
// except by ErrAborted (DA-17). Errors wrap ErrNotFound.
func (a *Agent) WaitAuthorization(ctx context.Context, c Caller, id string) (Result, error) {
	return a.atSignIn(ctx, c, id, a.waitAgain)
}

// AwaitAuthorization waits until a sign-in ends, and does no more: it polls nothing,
// shows no link, and never ends the sign-in, whatever ctx ends of. Whoever may read
// may wait. Errors wrap ErrNotFound.
func (a *Agent) AwaitAuthorization(ctx context.Context, c Caller, id string) (Result, error) {
	return a.atSignIn(ctx, c, id, a.watchOnly)
}

// ShowSignIn returns what the owner needs to sign in, of a sign-in that is pending,
// and does not wait. Only on the owner's own surface (DA-14). Errors wrap
// ErrNotFound.
func (a *Agent) ShowSignIn(ctx context.Context, c Caller, id string) (s SignIn, err error) {
	c.SignIn = func(_ context.Context, shown SignIn) error {
		s = shown
		return nil
	}
	op, z, err := a.signIn(ctx, c, id)
	if err == nil {
		err = op.caller.mustBeSurface("see a sign-in link")
	}
	if err == nil {
		err = op.caller.mayAttach(z)
	}
	if err == nil && z.State == authorizationPending {
		z, err = a.poller(op, id).resume(withNetwork(ctx, op.caller), z)
	}
	if err == nil {
		err = a.showSignIn(ctx, op.caller, z)
	}
	return s, err
}

func (a *Agent) atSignIn(ctx context.Context, c Caller, id string, wait func(context.Context, *operation, *authorization) (*authorization, error)) (Result, error) {
	op, z, err := a.signIn(ctx, c, id)
	if err != nil {
		return Result{}, err
	}
	ctx = withNetwork(ctx, op.caller)
	if z.State == authorizationPending {
		if z, err = wait(ctx, op, z); z != nil {
			op.setAuthorization(a, z)
		}
	}
	if err == nil && z.State == authorizationGranted {
		err = a.signedIn(ctx, op, z)
	} else if err == nil {
		err = a.settledRefusal(context.WithoutCancel(ctx), op, z)
	}
	return op.finish(ctx, err)
}

// waitAgain waits for a sign-in and returns it as it ended.
func (a *Agent) waitAgain(ctx context.Context, op *operation, z *authorization) (*authorization, error) {
	if err := op.caller.mayAttach(z); err != nil {
		return z, err
	}
	p := a.poller(op, z.ID)
	z, err := p.resume(ctx, z)
	if err != nil || z.State != authorizationPending {
		return z, err
	}
	return p.attend(ctx, z)
}

// watchOnly waits until a sign-in has ended. One that nobody polls ends by its time
// all the same.
func (a *Agent) watchOnly(ctx context.Context, op *operation, z *authorization) (*authorization, error) {
	p := a.poller(op, z.ID)
	op.caller.tell(Event{Kind: EventElsewhere, Business: op.business.Card.Name, Until: z.Deadline})
	err := a.follow(ctx, KindAuthorization, z.Principal, z.ID, func() (bool, error) {
		now, err := p.read(ctx)
		if err == nil && now.State == authorizationPending && !a.now().Before(now.Deadline) {
			if err = a.recover(ctx); err == nil {
				now, err = p.read(ctx)
			}
		}
		if err == nil {
			z = now
		}
		return z.State != authorizationPending, err
	})
	return z, err
}

// signedIn is the result of a sign-in that was granted.
func (a *Agent) signedIn(ctx context.Context, op *operation, z *authorization) error {
	op.result.Status = StatusDone
	return a.store.View(context.WithoutCancel(ctx), func(tx Tx) error {
		g, err := get[grant](tx, op.caller.Principal, z.Grant)
		if err == nil {
			v := a.grantView(g, op.business.Card.Name)
			op.result.Grant = &v
		}
		return err
	})
}
