package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// CallerOrigin says what acts through the agent (AD-2, AD-3). It comes from the
// record of the task or surface, never from what a model said.
type CallerOrigin string

// The origins. Only the owner may send. Without a task record there is no owner's
// task: what says so is automation (AD-3).
const (
	OriginOwner      CallerOrigin = "owner"     // the owner's own top-level task
	OriginOwnerCLI   CallerOrigin = "owner_cli" // the owner on their own command line
	OriginSubAgent   CallerOrigin = "sub_agent"
	OriginBot        CallerOrigin = "bot"
	OriginGateway    CallerOrigin = "gateway"
	OriginAutomation CallerOrigin = "automation"
)

// HumanInput says how the owner can be asked (AD-3).
type HumanInput string

// The modes. The empty mode is none.
const (
	HumanInteractive HumanInput = "interactive" // now, by the callbacks
	HumanOutOfBand   HumanInput = "out_of_band" // later, elsewhere
	HumanNone        HumanInput = "none"
)

// Caller is who acts, and how the owner can be reached. Every call takes one:
// there is no default principal (ID-7).
type Caller struct {
	Principal string // required
	// Actor names who acts, as records keep it: a surface and a name on it, such as
	// "token ops". At most 200 bytes, printable; empty is the origin, of the owner
	// "owner". It decides nothing.
	Actor  string
	Origin CallerOrigin
	Human  HumanInput
	// Task is the record of the task that acts. Origin and Human are what it says,
	// whatever they are here (AD-3). nil on the owner's own command line.
	Task *Task
	// Network is the profile that every request of the call obeys, the signer's
	// included (SG-12). nil is the default profile on the owner's command line, and
	// denies everything elsewhere (TR-9).
	Network *Network

	// Confirmed is a pre-confirmation of this one operation as it was asked for
	// (AP-5): the command line's --yes. It covers effect and permissions as they are
	// computed from the request alone; what a step-up or the token received makes of
	// them is asked (AP-1, AP-3).
	Confirmed bool
	// Shown is told what a pre-confirmation confirms. May be nil.
	Shown func(ApprovalRequest)
	// Approve asks the owner for one decision (AP-1). It must return when its context
	// ends, as it does when they decide elsewhere: its cause is ErrDecided then. nil:
	// nobody can be asked now.
	Approve func(context.Context, ApprovalRequest) (bool, error)
	// Stands is asked, in the transaction that takes down that this caller decides or
	// confirms something, whether they still may: an error refuses it. nil: they may.
	Stands func(Tx) error
	// SignIn shows a sign-in link to the owner, and to nobody else (DA-14); it does
	// not wait. nil: the link is not shown, and what needs one ends as
	// needs_user_action.
	SignIn func(context.Context, SignIn) error
	// Progress is told what is going on, from the calling goroutine. May be nil.
	Progress func(Event)
}

// ErrAborted is the cancellation cause by which a caller says that the owner
// gave up, rather than that the program stops: a sign-in then ends as cancelled
// and does not stay pending (DA-8, DA-17).
var ErrAborted = errors.New("given up by the owner")

// ErrStopping is the cancellation cause by which a program says that it stops: what
// waits for the owner then stays open, for another program to go on with.
var ErrStopping = errors.New("the program stops")

// check holds a caller to its form, and its origin and human mode to the task
// record (AD-3).
func (c *Caller) check() error {
	if c.Principal == "" {
		return errors.New("caller: Principal is required: say on whose behalf the call is made")
	}
	if len(c.Principal) > maxScopeID {
		return fmt.Errorf("caller: Principal is longer than %d bytes", maxScopeID)
	}
	if len(c.Actor) > maxScopeID || !utf8.ValidString(c.Actor) || strings.ContainsFunc(c.Actor, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("caller: Actor is longer than %d bytes, or not printable", maxScopeID)
	}
	switch t := c.Task; {
	case t == nil && (c.Origin == OriginOwner || c.Origin == ""):
		c.Origin = OriginAutomation
	case t == nil:
	case t.ID == "" || len(t.ID) > maxScopeID:
		return fmt.Errorf("caller: Task.ID is required, at most %d bytes", maxScopeID)
	default:
		c.Origin, c.Human = t.origin(), t.human()
	}
	return nil
}

// actor is who acts, as records keep it.
func (c Caller) actor() string {
	if c.Actor == "" && c.owner() { // on a command line or by a running agent
		return string(OriginOwner)
	}
	return cmp.Or(c.Actor, string(c.Origin))
}

func (c Caller) stands(tx Tx) error {
	if c.Stands == nil {
		return nil
	}
	return c.Stands(tx)
}

func (c Caller) owner() bool { return c.Origin == OriginOwner || c.Origin == OriginOwnerCLI }

// surface reports the owner on their own command line, in no task.
func (c Caller) surface() bool { return c.Task == nil && c.Origin == OriginOwnerCLI }

// mustBeSurface refuses what the owner does with their own hands alone, and no
// task in their name. what is what is refused, for people.
func (c Caller) mustBeSurface(what string) error {
	switch {
	case c.surface():
		return nil
	case c.owner():
		return refuse(StatusBlocked, ReasonDelegationRequired, "only the owner may %s, outside any task; this call is by task %q", what, c.taskID())
	}
	return refuse(StatusBlocked, ReasonDelegationRequired, "only the owner may %s; this call is by %q", what, c.Origin)
}

func (c Caller) tell(e Event) {
	if c.Progress != nil {
		c.Progress(e)
	}
}

// EventKind says what is going on.
type EventKind string

// The events.
const (
	EventDiscovering EventKind = "discovering"
	EventApproval    EventKind = "awaiting_local_approval"
	EventConsent     EventKind = "awaiting_business_consent"
	EventPolling     EventKind = "polling"
	EventElsewhere   EventKind = "consent_elsewhere" // another program or call polls; this one watches (DA-4)
	EventRefreshing  EventKind = "refreshing"
	EventIntroducing EventKind = "introducing"
	EventSending     EventKind = "sending"
	EventWaiting     EventKind = "waiting" // until Until, then again
	EventStepUp      EventKind = "step_up"
	EventVerifying   EventKind = "verifying"
	EventTending     EventKind = "tending" // Detail is what went wrong, of Tend; it goes on
)

// Event is a step of an operation. It holds no secrets.
type Event struct {
	Kind     EventKind `json:"kind"`
	Business string    `json:"business,omitzero"` // its name; untrusted (RD-4)
	Detail   string    `json:"detail,omitzero"`
	Until    time.Time `json:"until,omitzero"`
}

// ApprovalRequest is what the owner decides on, whole (AP-2).
type ApprovalRequest struct {
	// ID is of the record by which any surface of the owner can decide it (Decide);
	// empty for what is pre-confirmed.
	ID          string
	Business    string // its name; untrusted
	Destination string // where it goes
	Message     string // all of it
	Effect      Effect
	Scopes      []Scope // permissions that it is sent with; descriptions are untrusted
	// Exceeds: the grant's token can do more than this operation needs (AD-9);
	// TokenScopes says what.
	Exceeds     bool
	TokenScopes []Scope
	// Digest is the SHA-256, in hex, of the message's body as it will be sent, but
	// for the contextId, which the business mints.
	Digest string
	// Changed: something was approved before and this differs from it.
	Changed bool
	// SentBefore, if not zero, says that this very message was sent then and its
	// outcome is not known: it is asked for again, by the same id and bytes, to learn
	// what became of it (CV-14). A business that never got it carries it out now.
	SentBefore time.Time
}
