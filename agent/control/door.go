package control

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// door is a listener that any program of the machine reaches. It takes a number of
// connections at once, and keeps those on which nobody showed a token that counts from
// standing in the way of the others: each has a moment only, they have half of the
// places, and the oldest of them makes room for the next.
type door struct {
	net.Listener
	most   int           // connections at once
	moment time.Duration // for a caller to be let in on a connection

	mu        sync.Mutex
	freed     sync.Cond
	closed    bool
	known     int        // connections on which a caller was let in
	strangers []*visitor // the others, the oldest first
}

// visitor is a connection through a door.
type visitor struct {
	net.Conn
	door  *door
	known bool // a caller was let in; guarded by door.mu
	gone  bool // it is counted no more; guarded by door.mu
	timer *time.Timer
}

func newDoor(l net.Listener, most int, moment time.Duration) *door {
	d := &door{Listener: l, most: most, moment: moment}
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
	for d.known >= d.most && !d.closed {
		d.freed.Wait()
	}
	if d.closed {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	v.timer = time.AfterFunc(d.moment, v.tooLate)
	d.strangers = append(d.strangers, v)
	if n := len(d.strangers); n > max(1, d.most/2) || n > 1 && d.known+n > d.most {
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

// showOut ends a connection on which nobody was let in. It is called with d.mu held.
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
	if v.known {
		d.known--
	} else {
		d.strangers = slices.DeleteFunc(d.strangers, func(s *visitor) bool { return s == v })
	}
	d.freed.Broadcast()
}

func (v *visitor) tooLate() {
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	if !v.known && !v.gone {
		v.door.showOut(v)
	}
}

// letIn notes that a caller's token counts; false: the connection was ended.
func (v *visitor) letIn() bool {
	d := v.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.gone || v.known {
		return !v.gone
	}
	d.strangers = slices.DeleteFunc(d.strangers, func(s *visitor) bool { return s == v })
	d.known++
	v.known = true
	v.timer.Stop()
	return true
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

// letIn notes that the caller of a request is accepted; false: its connection was ended.
func letIn(ctx context.Context) bool {
	v, ok := ctx.Value(visitorKey{}).(*visitor)
	return !ok || v.letIn()
}
