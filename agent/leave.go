package agent

import (
	"context"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// Leaving returns ctx for an operation whose caller may leave before it ends, as left
// ends then: what is not on its way by then is given up with them. A message that is
// goes on without them, to its own limits or until ctx ends, and its end is written
// down; goesOn is told at once what who left can be told of it. The function that is
// returned frees what this takes, once the operation has ended.
func Leaving(ctx, left context.Context, goesOn func(Result)) (context.Context, context.CancelFunc) {
	out, stop := context.WithCancelCause(context.WithValue(ctx, leavingKey{}, leaving{ctx, goesOn}))
	unhook := context.AfterFunc(left, func() { stop(context.Cause(left)) })
	return out, func() {
		unhook()
		stop(nil)
	}
}

type leavingKey struct{}

// leaving is what Leaving was given.
type leaving struct {
	stays  context.Context
	goesOn func(Result)
}

// outlast returns the context of a message that is about to go out: it does not end
// with ctx if who asked may leave (Leaving). An introduction says nothing, and goes with
// them.
func (op *operation) outlast(ctx context.Context, m *message) (_ context.Context, end func()) {
	l, ok := ctx.Value(leavingKey{}).(leaving)
	if !ok || m.Introduction || ctx.Err() != nil {
		return ctx, func() {}
	}
	out, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	staying := context.AfterFunc(l.stays, func() { stop(context.Cause(l.stays)) })
	r := op.goingOn(m)
	with := context.AfterFunc(ctx, func() {
		if l.stays.Err() == nil {
			l.goesOn(r)
		}
	})
	return out, func() {
		staying()
		with()
		stop(nil)
	}
}

// seenThrough reports that nobody has ended the context that a message had: if it was on
// its way, that is not who asked for it, if they may leave.
func seenThrough(ctx context.Context, onItsWay bool) bool {
	if l, ok := ctx.Value(leavingKey{}).(leaving); ok && onItsWay {
		ctx = l.stays
	}
	return ctx.Err() == nil
}

// goingOn is what can be told of a message on its way, and not how it ends.
func (op *operation) goingOn(m *message) Result {
	r := op.result
	if r.Effect != nil { // the operation's own, which it may compute anew while this is told
		e := *r.Effect
		r.Effect = &e
	}
	r.Status, r.Reason = StatusUnknown, string(egress.Aborted)
	r.Detail = "it is on its way, and the agent waits by itself for how it ends: look with pactctl conversations show " + m.Conversation + " before you repeat it"
	r.Business, r.Conversation, r.Message = m.Business, m.Conversation, m.ID
	if p := op.approved; op.decides && p != nil {
		r.Approval = p.view()
		r.Approval.State, r.Approval.SentMessage = ApprovalSent, m.ID
	}
	return r
}
