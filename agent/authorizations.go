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
}

func (a *Agent) authorizationView(z *authorization, name string) AuthorizationView {
	return AuthorizationView{
		ID: z.ID, Business: z.Business, BusinessName: name, State: z.State, Reason: z.Reason,
		Scopes: nonNil(z.Scopes), Needed: nonNil(z.Needed), Purpose: z.Purpose, Grant: z.Grant, Task: z.Task, Network: z.Network,
		Created: z.Created, Deadline: z.Deadline, Settled: z.Settled,
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

// CancelAuthorization gives a pending sign-in up, as the owner does who dismisses
// its card (DA-13); one that ended stays as it ended. A task gives up its own, the
// owner outside any task all of them. Errors wrap ErrNotFound.
func (a *Agent) CancelAuthorization(ctx context.Context, c Caller, id string) (AuthorizationView, error) {
	if err := c.check(); err != nil {
		return AuthorizationView{}, err
	}
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
		z, err = a.settleOnce(ctx, c.Principal, id, authorizationCancelled, ReasonUserCancelled)
	}
	if err != nil {
		return AuthorizationView{}, fmt.Errorf("cancel the sign-in: %w", err)
	}
	return a.authorizationView(z, name), nil
}

// WaitAuthorization shows the link of a pending sign-in again, if the caller can
// show one, and waits until it ends. It goes on only for the task and under the
// network profile that it was begun for; what cannot go on any more is settled
// (RS-4, RS-5). Errors wrap ErrNotFound.
func (a *Agent) WaitAuthorization(ctx context.Context, c Caller, id string) (Result, error) {
	if err := c.check(); err != nil {
		return Result{}, err
	}
	ctx = withNetwork(ctx, c)
	op := &operation{caller: c}
	return op.finish(ctx, a.waitAgain(ctx, op, id))
}

func (a *Agent) waitAgain(ctx context.Context, op *operation, id string) error {
	if err := a.recover(ctx); err != nil {
		return err
	}
	var z *authorization
	err := a.store.View(ctx, func(tx Tx) (err error) {
		if z, err = get[authorization](tx, op.caller.Principal, id); err != nil {
			return err
		}
		op.business, err = get[business](tx, op.caller.Principal, z.Business)
		return err
	})
	if err != nil {
		return fmt.Errorf("sign-in: %w", err)
	}
	op.setAuthorization(a, z)
	if z.State == authorizationPending {
		if z, err = a.resume(ctx, op, z); z != nil {
			op.setAuthorization(a, z)
		}
		if err != nil {
			return err
		}
	}
	if z.State == authorizationPending {
		if op.caller.SignIn != nil && a.now().Before(z.Deadline) {
			if err := a.showSignIn(ctx, op.caller, z); err != nil {
				return err
			}
		}
		if z, err = a.waitFor(ctx, op, id); z != nil {
			op.setAuthorization(a, z)
		}
		if err != nil {
			return err
		}
	}
	if z.State != authorizationGranted {
		return a.settledRefusal(ctx, op, z)
	}
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
