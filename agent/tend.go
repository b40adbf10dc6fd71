package agent

import (
	"context"
	"sync"
	"time"
)

// Tending is what Tend must know of the program that it runs in.
type Tending struct {
	// Caller is the owner's surface in whose name waits go on: its Principal and Actor.
	// Its Progress is told what happens, by one goroutine at a time. Nobody can be
	// asked.
	Caller Caller
	// Waiting tells whether a task still waits for the sign-in that it began (DA-9, RS-4).
	// nil: every one does.
	Waiting func(ctx context.Context, task string) bool
	// Network is the network profile of a name, for the sign-ins and approvals of tasks
	// that run under one: each goes on under its own, and one that there is no more has
	// failed (RS-4, RS-5). nil: this program knows the default profile alone, and leaves the others to
	// those that do.
	Network func(name string) *Network
}

// Tend keeps going what waits, until ctx ends: it polls pending sign-ins that
// nobody else polls, those of before a restart too (RS-4), and sends what was
// approved, is not sent, and is nobody's at work: once the sign-in that it waited for
// is granted, and again, with a pause that grows, if it could not be sent. What goes
// wrong is told by Progress and tried again. It returns when what it began has ended: a poll under
// way is finished, for its code may be spent by it, and what waits stays pending
// (DA-17); a message on its way is given up, unless ctx is of Leaving. The error is that
// of a malformed caller, or a *Refusal of one that is not the owner's surface.
func (a *Agent) Tend(ctx context.Context, t Tending) error {
	c := &t.Caller
	c.Human, c.Confirmed, c.Shown, c.Approve, c.SignIn = HumanNone, false, nil, nil, nil
	if err := c.check(); err != nil {
		return err
	}
	if err := c.mustBeSurface("tend what waits"); err != nil {
		return err
	}
	w := &tender{a: a, at: map[string]bool{}}
	if tell := c.Progress; tell != nil {
		c.Progress = func(e Event) {
			w.telling.Lock()
			defer w.telling.Unlock()
			tell(e)
		}
	}
	w.Tending = t
	defer w.all.Wait()
	// What nobody is at any more, or not yet, says so by having no lease.
	free, stop := a.changes.poke(func(ch change) bool {
		return (ch.kind == KindAuthorization || ch.kind == KindApproval) && ch.Principal == c.Principal && ch.LeaseOwner == ""
	})
	defer stop()
	// Of what other programs begin, no poll is due sooner than that (DA-3).
	look := time.NewTicker(max(a.params.PollMin, 1))
	defer look.Stop()
	for {
		if err := w.look(ctx); err != nil {
			w.tell(ctx, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-free:
		case <-look.C:
		}
	}
}

// tender is one Tend.
type tender struct {
	Tending
	a       *Agent
	all     sync.WaitGroup
	telling sync.Mutex

	mu sync.Mutex
	at map[string]bool // what it is at, by id
}

// look begins to tend what waits and nobody is at.
func (w *tender) look(ctx context.Context) error {
	if err := w.a.recover(ctx); err != nil {
		return err
	}
	var signIns []*authorization
	var approvals []*approval
	err := w.a.store.View(ctx, func(tx Tx) (err error) {
		signIns, err = find[authorization](tx, Query{Principal: w.Caller.Principal, States: []string{authorizationPending}})
		if err == nil {
			approvals, err = w.a.approvedToGoOn(tx, w.Caller.Principal)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, z := range signIns {
		if c, ok := w.callerOf(z.Network); ok && !w.a.held(&z.Head) {
			w.begin(ctx, z.ID, func(ctx context.Context) error { return w.signIn(ctx, c, z.ID) })
		}
	}
	for _, p := range approvals {
		if c, ok := w.callerOf(p.Network); ok {
			w.begin(ctx, p.ID, func(ctx context.Context) error { return w.a.continueApproved(withNetwork(ctx, c), c, p.ID) })
		}
	}
	return nil
}

// callerOf is the caller under the network profile of a name, and whether this
// program can tell what that is.
func (w *tender) callerOf(network string) (c Caller, ok bool) {
	c = w.Caller
	switch {
	case c.networkName() == network:
	case network == "":
		c.Network = defaultNetwork
	case w.Network == nil:
		return c, false
	default:
		if c.Network = w.Network(network); c.Network == nil {
			c.Network = &Network{} // not nil, which is the default one here
		}
	}
	return c, true
}

// begin does one thing, unless it is being done. What goes wrong is told, and left
// alone for a while.
func (w *tender) begin(ctx context.Context, id string, do func(context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at[id] {
		return
	}
	w.at[id] = true
	w.all.Go(func() {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			if ReasonOf(err) != ReasonConsentElsewhere {
				w.tell(ctx, err)
			}
			_ = w.a.wait(ctx, w.a.now().Add(w.a.params.PollMin))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.at, id)
	})
}

// signIn goes on with a sign-in, if it still may, until it ends or somebody else
// polls it.
func (w *tender) signIn(ctx context.Context, c Caller, id string) error {
	op, z, err := w.a.signIn(ctx, c, id)
	if err != nil || z.State != authorizationPending {
		return err
	}
	ctx = withNetwork(ctx, c)
	p := w.a.poller(op, id)
	p.tending = &w.Tending
	if z, err = p.resume(ctx, z); err != nil && !passing(ReasonOf(err)) || z.State != authorizationPending { // what passes counts as a poll without an answer (DA-6)
		return err
	}
	_, err = p.poll(ctx)
	return err
}

func (w *tender) tell(ctx context.Context, err error) {
	if ctx.Err() == nil {
		w.Caller.tell(Event{Kind: EventTending, Detail: truncate(RedactText(err.Error()), maxDescription)})
	}
}
