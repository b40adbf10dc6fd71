package redis

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// links marks the connections to a master, so that none is used any more that was
// made before its server said that it is no master. The client makes new ones, and
// asks the sentinels for each where to; by itself it does so only after READONLY. It
// is a hook of the client; a cluster's client has its own map of masters.
type links struct {
	drops   atomic.Int64 // how often connections were dropped
	dropped atomic.Int64 // when, in Unix milliseconds
}

var errDropped = errors.New("store: redis: the connection was given up, with its server")

// drop ends the use of all connections that there are, a few times a second at most.
func (l *links) drop() {
	now, last := time.Now().UnixMilli(), l.dropped.Load()
	if now-last >= 100 && l.dropped.CompareAndSwap(last, now) {
		l.drops.Add(1)
	}
}

// DialHook implements redis.Hook.
func (l *links) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		made := l.drops.Load()
		conn, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &link{conn, l, made}, nil
	}
}

// ProcessHook implements redis.Hook.
func (l *links) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (l *links) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// link is a connection that the client's pool asks, before each use, for what is
// below it.
type link struct {
	net.Conn
	of   *links
	made int64
}

// SyscallConn implements syscall.Conn.
func (l *link) SyscallConn() (syscall.RawConn, error) {
	if l.made != l.of.drops.Load() {
		return nil, errDropped
	}
	if c, ok := l.Conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return unread{}, nil
}

// unread stands for a TLS connection, whose bytes are not to be looked at.
type unread struct{}

func (unread) Control(func(fd uintptr)) error    { return nil }
func (unread) Read(func(fd uintptr) bool) error  { return nil }
func (unread) Write(func(fd uintptr) bool) error { return nil }
