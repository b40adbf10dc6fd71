package agent

import (
	"context"
	"fmt"
)

// TaskSource says what began a task (AD-3).
type TaskSource string

// The sources. Only a task that the owner began is the owner's.
const (
	SourceOwner    TaskSource = "owner"
	SourceHook     TaskSource = "hook"
	SourceAPI      TaskSource = "api"
	SourceSchedule TaskSource = "schedule"
)

// TaskMode says what a task is for (AD-4). Only in ModeAct may it send.
type TaskMode string

// The modes. One that is none of them may not send.
const (
	ModeAct     TaskMode = "act"
	ModePlan    TaskMode = "plan"
	ModeAnalyse TaskMode = "analyse"
)

// Task is the record of a task in the program that embeds the agent. It is that
// program's own: nothing in it comes from a model or from a tool's arguments
// (AD-3).
type Task struct {
	ID     string // required, at most 200 bytes
	Parent string // id of the task that began it; empty: a top-level task
	Source TaskSource
	Mode   TaskMode
	Human  HumanInput
	// Waiting tells, before each poll of a sign-in that the task began, whether it
	// still waits for it (DA-9). nil: it does.
	Waiting func(context.Context) bool
}

// TaskCaller is a task that acts for a principal, under a network profile. Origin
// and human mode are the record's (AD-3); no record is automation that can ask
// nobody, and no profile has no network (TR-9).
func TaskCaller(principal string, t *Task, n *Network) Caller {
	c := Caller{Principal: principal, Origin: OriginAutomation, Human: HumanNone, Task: t, Network: n}
	if t != nil {
		c.Origin, c.Human = t.origin(), t.human()
	}
	return c
}

// origin is AD-3.
func (t *Task) origin() CallerOrigin {
	switch {
	case t.Parent != "":
		return OriginSubAgent
	case t.Source == SourceOwner:
		return OriginOwner
	}
	return OriginAutomation
}

func (t *Task) human() HumanInput {
	switch t.Human {
	case HumanInteractive, HumanOutOfBand:
		return t.Human
	}
	return HumanNone
}

// Offered reports whether a model may be offered the tools that send, sign in and
// disconnect: only in the owner's top-level tasks (AD-4).
func (c Caller) Offered() bool { return c.Task != nil && c.Task.origin() == OriginOwner }

// taskID is the id that records keep of the caller's task.
func (c Caller) taskID() string {
	if c.Task == nil {
		return ""
	}
	return c.Task.ID
}

// mayAct is what of AD-2 and AD-4 hangs on the caller alone: the owner sends, in
// a task that is there to act. what is what is refused, for people.
func (c Caller) mayAct(what string) error {
	switch {
	case !c.owner():
		return refuse(StatusBlocked, ReasonDelegationRequired, "only the owner may %s; this call is by %q", what, c.Origin)
	case c.Task != nil && c.Task.Mode != ModeAct:
		return refuse(StatusBlocked, ReasonModeForbids, "a task in mode %q may not %s", c.Task.Mode, what)
	}
	return nil
}

// stillWaiting is DA-9 of the task that began a sign-in, as far as who waits for it
// knows that.
func (p *poller) stillWaiting(ctx context.Context, z *authorization) error {
	waits := true
	switch t := p.op.caller.Task; {
	case p.tending != nil:
		waits = z.Task == "" || p.tending.Waiting == nil || p.tending.Waiting(ctx, z.Task)
	case t != nil && t.Waiting != nil:
		waits = t.Waiting(ctx)
	}
	if waits {
		return nil
	}
	return refuse(StatusCancelled, ReasonTaskNotWaiting, "the task does not wait for this any more")
}

// sameNetwork holds the resumption of something to the profile that it was begun
// under, by name: a wider one is never used, and which of two is wider is nobody's
// guess (RS-5).
func (c Caller) sameNetwork(name string) error {
	if n := c.network(); n != nil && n.Name == name {
		return nil
	}
	was := "the default network profile"
	if name != "" {
		was = fmt.Sprintf("network profile %q", name)
	}
	return refuse(StatusBlocked, ReasonOtherNetwork, "it was begun under %s and goes on under no other", was)
}

// mayAttach holds who waits for a sign-in to the task that it was begun in, or to
// the owner's own surface: there they may finish what a task of theirs began, under
// the network profile of that (RS-5).
func (c Caller) mayAttach(z *authorization) error {
	if err := c.mayAct("go on with a sign-in"); err != nil {
		return err
	}
	switch {
	case z.Task == c.taskID():
		return nil
	case c.surface():
		return c.sameNetwork(z.Network)
	case z.Task == "":
		return refuse(StatusBlocked, ReasonOtherTask, "the sign-in was begun on the owner's command line and goes on there")
	}
	return refuse(StatusBlocked, ReasonOtherTask, "the sign-in was begun by task %q and goes on there", z.Task)
}

// resume looks whether a pending sign-in may go on (RS-4). What may not is
// settled, with the reason; what somebody else polls, they settle.
func (p *poller) resume(ctx context.Context, z *authorization) (*authorization, error) {
	a, c := p.a, p.op.caller
	if !a.now().Before(a.lasts(z)) {
		if a.held(&z.Head) {
			return z, nil
		}
		return p.settle(ctx, authorizationExpired, ReasonConsentExpired)
	}
	err := c.sameNetwork(z.Network)
	if err == nil {
		err = p.stillWaiting(ctx, z)
	}
	if err == nil {
		a.revalidate(ctx, c, p.op.business) // DI-3, before a link is shown
		_, err = p.stillWanted(ctx, z)
	}
	if err == nil || passing(ReasonOf(err)) || a.held(&z.Head) {
		return z, err
	}
	return p.unwanted(ctx, z, err)
}

// pendingInput refuses if the task of an operation waits for a sign-in.
func (a *Agent) pendingInput(tx Tx, op *operation) error {
	under, err := find[authorization](tx, Query{Principal: op.caller.Principal, States: []string{authorizationStarting, authorizationPending}})
	for _, z := range under {
		if z.Task != op.caller.taskID() || z.State == authorizationStarting && !a.held(&z.Head) || z.State == authorizationPending && !a.now().Before(z.Deadline) {
			continue
		}
		if z.State == authorizationPending {
			op.setAuthorization(a, z)
		}
		return refuse(StatusNeedsUserAction, ReasonInputPending, "the task waits for sign-in %s: finish or cancel that first", z.ID)
	}
	return err
}

// takeInput makes room for one question to the owner of a task, and release gives
// it back: a task waits for one thing at a time (DA-13). Outside tasks the person
// is at the terminal.
func (a *Agent) takeInput(ctx context.Context, op *operation) (release func(), err error) {
	key, inTask := op.caller.inputKey()
	if !inTask {
		return func() {}, nil
	}
	if _, taken := a.inputs.LoadOrStore(key, true); taken {
		return nil, errAsking
	}
	release = func() { a.inputs.Delete(key) }
	if err = a.store.View(ctx, func(tx Tx) error { return a.pendingInput(tx, op) }); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// noInput refuses the start of a sign-in in a task that waits for something.
func (a *Agent) noInput(tx Tx, op *operation) error {
	key, inTask := op.caller.inputKey()
	if !inTask {
		return nil
	}
	if _, taken := a.inputs.Load(key); taken {
		return errAsking
	}
	return a.pendingInput(tx, op)
}

// roomForSignIn bounds how many sign-ins all tasks of a principal begin: who makes up
// task after task wears neither the owner out nor the business.
func (a *Agent) roomForSignIn(tx Tx, op *operation) error {
	if op.caller.Task == nil {
		return nil
	}
	under, err := find[authorization](tx, Query{Principal: op.caller.Principal, States: []string{authorizationStarting, authorizationPending}})
	n := 0
	for _, z := range under {
		if z.Task != "" && (z.State == authorizationStarting && a.held(&z.Head) || z.State == authorizationPending && a.now().Before(z.Deadline)) {
			n++
		}
	}
	if err == nil && n >= maxSignIns {
		err = refuse(StatusBlocked, ReasonTooManySignIns, "%d sign-ins of tasks wait for the owner already: let them finish or cancel those first", n)
	}
	return err
}

var errAsking = refuse(StatusNeedsUserAction, ReasonInputPending, "the task asks its owner something already")

// inputKey names the caller's task among those that ask something.
func (c Caller) inputKey() (key string, inTask bool) {
	return c.Principal + "\x00" + c.taskID(), c.Task != nil
}

// SettledText is what a program may write into a task when a sign-in that the
// task waited for has ended, by the state and reason of its AuthorizationView. The
// wording is fixed: no word of it is the business's (DA-16).
func SettledText(state string, reason Reason) string {
	switch state {
	case authorizationGranted:
		return "The owner signed in and granted the permissions. Go on."
	case authorizationPending:
		return "The owner has not signed in yet."
	case authorizationExpired:
		return "The sign-in was not finished in time. Nothing was granted."
	case authorizationDenied:
		if reason == ReasonInsufficient {
			return "The owner signed in but did not grant all the permissions that are needed."
		}
		return "The owner declined at the business. Nothing was granted."
	case authorizationCancelled:
		if reason == ReasonTaskNotWaiting {
			return "The sign-in was given up, for the task did not wait for it any more. Nothing was granted."
		}
		return "The owner gave the sign-in up. Nothing was granted."
	}
	switch reason {
	case ReasonDisabledByEnv, ReasonDisabledByAdmin, ReasonDisabledInSettings, ReasonPACTDisabled, ReasonBlockedByAdmin:
		return "The sign-in ended, for PACT may not be used there. Nothing was granted."
	case ReasonSubjectChanged, ReasonIdentityChanged, ReasonIdentityNotReady, ReasonIdentityRejected, ReasonIdentityNotSet,
		ReasonSignerDisabled, ReasonCredentialRejected:
		return "The sign-in ended, for the owner's identity cannot be used now. Nothing was granted."
	case ReasonCardChanged:
		return "The sign-in ended, for the business changed what it offers. Nothing was granted."
	case ReasonGrantRefused:
		return "The sign-in ended, for what the business granted is not what was asked. Nothing was kept."
	case ReasonOtherNetwork:
		return "The sign-in ended, for the task's network rules are not those that it was begun under. Nothing was granted."
	}
	return "The sign-in failed. Nothing was granted."
}
