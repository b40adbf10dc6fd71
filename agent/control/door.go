package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// door is a listener that any program of the machine reaches. It takes a number of
// connections at once, and keeps those on which nobody showed a token that counts from
// standing in the way of the others: each has a moment only, they have half of the
// places, and the oldest of them makes room for the next. The connections of one token
// have a quarter of the places: the one that was idle for longest makes room for its next.
// Those whose token is over go too, a moment after they became idle at the latest.
type door struct {
	net.Listener
	most   int                     // connections at once
	moment time.Duration           // for a caller to be let in on a connection
	stands func(token string) bool // whether a token that was accepted is still good

	mu        sync.Mutex
	freed     sync.Cond
	closed    bool
	known     []*visitor // connections on which a caller was let in, the one that became idle last behind
	strangers []*visitor // the others, the oldest first
}

// visitor is a connection through a door.
type visitor struct {
	net.Conn
	door  *door
	timer *time.Timer

	// Guarded by door.mu:
	known bool   // a caller was let in
	token string // theirs
	idle  bool   // no call is under way
	gone  bool   // it is counted no more
}

func newDoor(l net.Listener, most int, moment time.Duration, stands func(token string) bool) *door {
	d := &door{Listener: l, most: most, moment: moment, stands: stands}
	d.freed.L = &d.mu
	return d
}

// Accept implements [net.Listener].
func (d *door) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visitor{Conn: c, door: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.known) >= d.most && !d.closed {
		d.freed.Wait()
	}
	if d.closed {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	v.timer = time.AfterFunc(d.moment, v.tooLate)
	d.strangers = append(d.strangers, v)
	if n := len(d.strangers); n > max(1, d.most/2) || n > 1 && len(d.known)+n > d.most {
		d.showOut(d.strangers[0])
	}
	return v, nil
}

// Close implements [net.Listener].
func (d *door) Close() error {
	d.mu.Lock()
	d.closed = true
	d.freed.Broadcast()
	d.mu.Unlock()
	return d.Listener.Close()
}

// showOut ends a connection. It is called with d.mu held.
func (d *door) showOut(v *visitor) {
	d.forget(v)
	_ = v.Conn.Close()
}

// forget counts a connection no more. It is called with d.mu held.
func (d *door) forget(v *visitor) {
	if v.gone {
		return
	}
	v.gone = true
	v.timer.Stop()
	d.known, d.strangers = without(d.known, v), without(d.strangers, v)
	d.freed.Broadcast()
}

func without(all []*visitor, v *visitor) []*visitor {
	return slices.DeleteFunc(all, func(o *visitor) bool { return o == v })
}

// makeRoom ends the connection of a token that was idle for longest, if the token has as
// many as it may have; false: none of them is idle. It is called with d.mu held.
func (d *door) makeRoom(token string) bool {
	var theirs []*visitor
	for _, o := range d.known {
		if o.token == token {
			theirs = append(theirs, o)
		}
	}
	if len(theirs) < max(1, d.most/4) {
		return true
	}
	i := slices.IndexFunc(theirs, func(o *visitor) bool { return o.idle })
	if i >= 0 {
		d.showOut(theirs[i])
	}
	return i >= 0
}

func (v *visitor) tooLate() {
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	if !v.known && !v.gone {
		v.door.showOut(v)
	}
}

// look ends the connection of a caller whose token is over, unless a call is under way on
// it, whose end is told.
func (v *visitor) look() {
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	over := false
	if v.idle && !v.gone {
		v.door.mu.Unlock()
		over = !v.door.stands(v.token)
		v.door.mu.Lock()
	}
	switch {
	case v.gone:
	case v.idle && over:
		v.door.showOut(v)
	default:
		v.timer.Reset(v.door.moment)
	}
}

// errGone: the connection of a request was ended meanwhile.
var errGone = errors.New("the connection has ended")

// letIn notes that a caller's token counts. The error is errGone, or the refusal of one
// that has too many connections.
func (v *visitor) letIn(c caller) error {
	d := v.door
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case v.gone:
		return errGone
	case v.known:
	case !d.makeRoom(c.token):
		return tooManyConnections(c.actor, max(1, d.most/4))
	default:
		d.strangers, d.known = without(d.strangers, v), append(d.known, v)
		v.known, v.token = true, c.token
		v.timer.Stop()
		v.timer = time.AfterFunc(d.moment, v.look)
	}
	return nil
}

// noteState is the [http.Server.ConnState] of a server behind a door.
func noteState(c net.Conn, state http.ConnState) {
	v, ok := c.(*visitor)
	if !ok {
		return
	}
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	if v.idle = state == http.StateIdle; v.idle && v.known && !v.gone {
		v.door.known = append(without(v.door.known, v), v)
	}
}

// Close implements [net.Conn].
func (v *visitor) Close() error {
	v.door.mu.Lock()
	v.door.forget(v)
	v.door.mu.Unlock()
	return v.Conn.Close()
}

type visitorKey struct{}

// withVisitor keeps a connection through a door for the handler of its requests.
func withVisitor(ctx context.Context, c net.Conn) context.Context {
	if v, ok := c.(*visitor); ok {
		return context.WithValue(ctx, visitorKey{}, v)
	}
	return ctx
}

// letIn notes that the caller of a request is accepted, by its connection (visitor.letIn).
func letIn(ctx context.Context, c caller) error {
	if v, ok := ctx.Value(visitorKey{}).(*visitor); ok {
		return v.letIn(c)
	}
	return nil
}
