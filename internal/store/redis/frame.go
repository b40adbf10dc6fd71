package redis

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"syscall"
	"time"
)

// What a reply may hold. The client makes room for as much as a reply announces,
// and descends as deep, before it has come.
const (
	maxReplyBytes = 64 << 20
	maxReplyItems = 1 << 20
	maxReplyDepth = 32
	maxReplyLine  = 64 << 10
)

var errFrame = errors.New("store: redis: what answers is no Redis, or answers too much")

// dialer makes the connections to servers and sentinels.
func dialer(config *tls.Config, timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: timeout}
	dial := plain.DialContext
	if config != nil {
		dial = (&tls.Dialer{NetDialer: plain, Config: config}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &framed{Conn: conn}, nil
	}
}

// framed is a connection that ends where a reply is not well formed or too large.
type framed struct {
	net.Conn
	replies frames
}

// Read implements net.Conn.
func (f *framed) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if bad := f.replies.take(b[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

// SyscallConn implements syscall.Conn, see link.
func (f *framed) SyscallConn() (syscall.RawConn, error) {
	if c, ok := f.Conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return unread{}, nil
}

// frames follows what a server sends, in RESP2, and a sentinel, which the client talks
// RESP3 with.
type frames struct {
	err  error
	line []byte // the beginning of one that is not whole
	rest int    // bytes of a string that are to come, with its line end
	open []int  // how many elements of each array that has begun are to come
	// Of the reply that has begun:
	bytes, items int
}

// take judges what comes next.
func (f *frames) take(b []byte) error {
	for len(b) > 0 && f.err == nil {
		if f.rest > 0 {
			n := min(f.rest, len(b))
			b = b[n:]
			if f.rest -= n; f.rest == 0 {
				f.element()
			}
			continue
		}
		end := bytes.IndexByte(b, '\n') + 1
		part := b
		if end > 0 {
			part = b[:end]
		}
		b = b[len(part):]
		if f.line = append(f.line, part...); len(f.line) > maxReplyLine {
			f.err = errFrame
		} else if end > 0 {
			f.err = f.begin(bytes.TrimRight(f.line, "\r\n"))
			f.line = f.line[:0]
		}
	}
	return f.err
}

// begin takes the line that an element begins with.
func (f *frames) begin(line []byte) error {
	if len(line) == 0 {
		return errFrame
	}
	n := 0
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		f.element()
		return nil
	case '$', '*', '=', '!', '%', '~', '>':
		var err error
		if n, err = strconv.Atoi(string(line[1:])); err != nil || n < -1 {
			return errFrame
		}
	default:
		return errFrame
	}
	blob := bytes.IndexByte([]byte("$=!"), line[0]) >= 0
	if line[0] == '%' { // keys and values
		n = min(n, maxReplyItems) * 2
	}
	switch {
	case n < 0 || !blob && n == 0:
		f.element()
	case blob:
		if n > maxReplyBytes-f.bytes {
			return errFrame
		}
		f.bytes += n
		f.rest = n + 2
	case n > maxReplyItems-f.items || len(f.open) == maxReplyDepth:
		return errFrame
	default:
		f.items += n
		f.open = append(f.open, n)
	}
	return nil
}

// element ends an element, and the arrays whose last one it is.
func (f *frames) element() {
	for last := len(f.open) - 1; last >= 0; last-- {
		if f.open[last]--; f.open[last] > 0 {
			return
		}
		f.open = f.open[:last]
	}
	f.bytes, f.items = 0, 0
}
