package redis

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// lanes lets the calls of signs share connections and system calls. A lane takes
// all that wait, up to a batch, sends them in one pipeline and answers them. There
// are a few lanes to each server, so that the next batch gathers while others are
// on their way; a call that finds a lane free waits for nobody. With 64 callers
// that is twice the calls of a connection for each (BenchmarkAuthorize).
type lanes struct {
	store *Store
	mu    sync.RWMutex
	to    map[*redis.Client]*queue
	idle  time.Duration // after which lanes end
	quit  chan struct{}
	once  sync.Once
	done  sync.WaitGroup
}

const (
	lanesPerNode = 3
	laneBatch    = 64
	laneQueue    = 1024
)

// queue is what the lanes to one server share.
type queue struct {
	calls chan *call
	ended chan struct{} // closed once nobody can put a call there any more
}

// call is one run of a script in a lane.
type call struct {
	script *script
	cmd    *redis.Cmd
	state  atomic.Int32  // waiting, taken or left
	done   chan struct{} // receives once when cmd has its reply
}

const (
	waiting = iota
	taken
	left
)

func (l *lanes) start(s *Store) {
	l.store, l.to, l.idle, l.quit = s, make(map[*redis.Client]*queue), time.Minute, make(chan struct{})
}

func (l *lanes) stop() {
	l.once.Do(func() { close(l.quit) })
	l.done.Wait()
}

// put gives a call to a server's lanes.
func (l *lanes) put(n *redis.Client, c *call) error {
	l.mu.RLock()
	if q := l.to[n]; q != nil {
		defer l.mu.RUnlock() // so long the lanes do not end
		return q.put(c)
	}
	l.mu.RUnlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.quit:
		return ErrClosed
	default:
	}
	q := l.to[n]
	if q == nil {
		q = &queue{make(chan *call, laneQueue), make(chan struct{})}
		l.to[n] = q
		for range lanesPerNode {
			l.done.Go(func() { l.drive(n, q) })
		}
	}
	return q.put(c)
}

func (q *queue) put(c *call) error {
	select {
	case q.calls <- c:
		return nil
	default:
		return ErrBusy
	}
}

// end ends the lanes to a server that nobody calls any more: it may have left its
// cluster. A call that comes after all makes new ones.
func (l *lanes) end(n *redis.Client, q *queue) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(q.calls) > 0 {
		return false
	}
	if l.to[n] == q {
		delete(l.to, n)
		close(q.ended)
	}
	return true
}

// do runs one script in a slot and returns its reply. The call leaves with its
// context; if it was sent by then, what it does stands.
func (l *lanes) do(ctx context.Context, slot string, sc *script, cmd *redis.Cmd) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	for round := 1; ; round++ {
		n, err := l.store.node(ctx, slot)
		if err != nil {
			return "", err
		}
		c := &call{script: sc, cmd: cmd, done: make(chan struct{}, 1)}
		if err := l.put(n, c); err != nil {
			return "", err
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			c.state.CompareAndSwap(waiting, left)
			return "", ctx.Err()
		case <-l.quit:
			return "", ErrClosed
		}
		text, err := cmd.Text()
		if err == nil {
			return text, nil
		}
		if notRun(err) != moved || round == maxRounds {
			return "", mapped(err)
		}
		l.store.lost()
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return "", err
		}
		cmd = redis.NewCmd(ctx, cmd.Args()...)
	}
}

func (l *lanes) drive(n *redis.Client, q *queue) {
	batch := make([]*call, 0, laneBatch)
	idle := time.NewTicker(l.idle)
	defer idle.Stop()
	used := true
	for {
		select {
		case <-l.quit:
			return
		case <-q.ended:
			return
		case <-idle.C:
			if !used && l.end(n, q) {
				return
			}
			used = false
			continue
		case c := <-q.calls:
			used = true
			batch = append(batch[:0], c)
		}
		// Who is about to ask is let go first, for as long as more do; when nobody
		// is, that takes no time.
		for before := 0; before < len(batch) && len(batch) < cap(batch); {
			before = len(batch)
			runtime.Gosched()
			batch = take(q.calls, batch)
		}
		l.send(n, batch)
		clear(batch)
	}
}

// take appends the calls that wait, as far as there is room.
func take(q chan *call, batch []*call) []*call {
	for len(batch) < cap(batch) {
		select {
		case c := <-q:
			batch = append(batch, c)
		default:
			return batch
		}
	}
	return batch
}

// send runs the calls in one pipeline, and in a second one those whose script the
// server did not know.
func (l *lanes) send(n *redis.Client, batch []*call) {
	ctx, cancel := context.WithTimeout(context.Background(), l.store.opts.timeouts.call)
	defer cancel()
	pipe := n.Pipeline()
	live := batch[:0]
	for _, c := range batch {
		if c.state.CompareAndSwap(waiting, taken) {
			live = append(live, c)
			_ = pipe.Process(ctx, c.cmd)
		}
	}
	if len(live) == 0 {
		return
	}
	err := exec(ctx, pipe)
	if err != nil && !isReply(err) {
		l.store.lost()
	}
	var again []*call
	for _, c := range live {
		l.store.noMaster(c.cmd.Err())
		if notRun(c.cmd.Err()) == noScript {
			again = append(again, c)
		} else {
			c.done <- struct{}{}
		}
	}
	if len(again) == 0 {
		return
	}
	loaded := make(map[*script]error)
	pipe = n.Pipeline()
	for _, c := range again {
		if _, known := loaded[c.script]; !known {
			loaded[c.script] = n.ScriptLoad(ctx, c.script.text).Err()
		}
		c.cmd.SetErr(errors.Join(loaded[c.script]))
		if loaded[c.script] == nil {
			_ = pipe.Process(ctx, c.cmd)
		}
	}
	_ = exec(ctx, pipe)
	for _, c := range again {
		l.store.noMaster(c.cmd.Err())
		c.done <- struct{}{}
	}
}
