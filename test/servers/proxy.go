package servers

import (
	"io"
	"net"
	"sync"
	"time"
)

// Proxy stands between a client and a server and can cut them off.
type Proxy struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	mode  mode
	delay time.Duration
	conns map[net.Conn]bool
	flow  chan struct{} // closed while data may flow, or answers
}

type mode int

const (
	healed mode = iota
	cut
	hung
	muted
)

// NewProxy forwards connections to target.
func NewProxy(t T, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("servers: proxy: %v", err)
	}
	p := &Proxy{listener: l, target: target, conns: map[net.Conn]bool{}, flow: make(chan struct{})}
	close(p.flow)
	t.Cleanup(func() {
		l.Close()
		p.Cut()
	})
	go p.accept()
	return p
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetTarget makes new connections go elsewhere.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Cut drops all connections and refuses new ones.
func (p *Proxy) Cut() { p.set(cut) }

// Hang lets connections stand and be made, but nothing pass: a network that
// swallows packets.
func (p *Proxy) Hang() { p.set(hung) }

// Mute lets what clients say pass, and holds every answer up.
func (p *Proxy) Mute() { p.set(muted) }

// Heal lets everything pass again. What was held up arrives late.
func (p *Proxy) Heal() { p.set(healed) }

// Delay holds each piece of data up for so long, in each direction.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

func (p *Proxy) set(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, is := p.mode == hung || p.mode == muted, m == hung || m == muted
	if was && !is {
		close(p.flow)
	}
	if !was && is {
		p.flow = make(chan struct{})
	}
	p.mode = m
	if m == cut {
		for c := range p.conns {
			c.Close()
		}
		clear(p.conns)
	}
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.serve(c)
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	if !p.keep(client) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.keep(server) {
		return
	}
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			io.Copy(slowly{way[1], p, way[1] == client}, way[0])
			done <- struct{}{}
		}()
	}
	<-done // one direction has ended: so does the other
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, client)
	delete(p.conns, server)
}

// keep remembers a connection, unless connections are cut.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == cut {
		return false
	}
	p.conns[c] = true
	return true
}

// slowly is a connection whose writes wait as the proxy says.
type slowly struct {
	net.Conn
	p       *Proxy
	answers bool
}

// Write hides the connection's ReadFrom too, which would not wait.
func (s slowly) Write(b []byte) (int, error) {
	s.p.mu.Lock()
	flow, delay, passes := s.p.flow, s.p.delay, s.p.mode == muted && !s.answers
	s.p.mu.Unlock()
	if !passes {
		<-flow
	}
	if delay > 0 {
		<-time.After(delay)
	}
	return s.Conn.Write(b)
}

// ReadFrom copies piece by piece through Write.
func (s slowly) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{r})
}
