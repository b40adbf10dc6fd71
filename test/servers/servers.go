// Package servers starts the real servers that the tests run against: Redis
// (alone, with copies and Sentinels, as a Cluster), Vault, and a proxy that cuts
// connections. Each stops with the test that started it.
//
// Vault, and the programs that check the chart, are built from their Go modules
// once, by `go run ./test/servers/get`, and kept in the user's cache; redis-server
// is the system's. A test that finds one missing fails and says what to do: none
// is skipped.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// T is what this package needs of a testing.TB, so that a program can have the
// servers too.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(f func())
	TempDir() string
	Context() context.Context
}

// startTimeout is how long a server may take to answer, on a busy machine.
const startTimeout = 60 * time.Second

// process is a server that can be stopped and started again.
type process struct {
	t    T
	name string
	path string
	args []string
	env  []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	log  *tail
}

// start runs the program. It does not wait until it answers.
func (p *process) start() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	p.log = &tail{}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = attributes()
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("servers: start %s: %v", p.name, err)
	}
	done := make(chan struct{})
	go func() {
		cmd.Wait() // how it ended says nothing: it is told to
		close(done)
	}()
	p.cmd, p.done = cmd, done
}

// signal sends a signal to the running program.
func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		p.cmd.Process.Signal(s) // of a program that has ended there is nothing to tell
	}
}

// end stops the program and waits until it is gone; one that is paused too.
func (p *process) end(s syscall.Signal) {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.cmd = nil
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	cmd.Process.Signal(s)
	cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		cmd.Process.Kill()
		<-done
	}
}

// pid is the running program's process id; 0 if it does not run.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// output is what the program last said.
func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// await calls ready until it returns nil, and fails the test when that takes too
// long or the program ends.
func (p *process) await(ready func() error) {
	p.t.Helper()
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	deadline := time.After(startTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil {
			return
		}
		select {
		case <-done:
			p.t.Fatalf("servers: %s ended at its start: %v\n%s", p.name, err, p.output())
		case <-deadline:
			p.t.Fatalf("servers: %s does not answer: %v\n%s", p.name, err, p.output())
		case <-tick.C:
		}
	}
}

// tail keeps the last of what a program writes.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(b)
	if n := l.buf.Len() - 1<<16; n > 0 {
		l.buf.Next(n)
	}
	return len(b), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// handed marks the ports that were given out, so that none is given twice before its
// server listens, or while that is down: not by this process, nor by those of other
// packages' tests, which run at the same time. A port's mark is the UDP port of the same
// number, which ends with the process.
var handed struct {
	sync.Mutex
	marks []net.PacketConn
}

// The ports that FreePort draws from. They, and those that far above them that a
// Cluster's bus takes, are below the ones that a system gives to whoever asks for any:
// no other test gets one before its server listens, or while that is down.
const firstPort, ports = 12000, 10000

// FreePort returns a loopback port that nobody listens on. room asks for another
// free one that far above it, as Redis Cluster's bus needs; 0 asks for none.
func FreePort(t T, room int) int {
	t.Helper()
	handed.Lock()
	defer handed.Unlock()
	var err error
	for range 200 {
		port := firstPort + rand.IntN(ports)
		numbers := []int{port}
		if room > 0 {
			numbers = append(numbers, port+room)
		}
		var marks []net.PacketConn
		if marks, err = take(numbers); err == nil {
			handed.marks = append(handed.marks, marks...)
			return port
		}
	}
	t.Fatalf("servers: no free port: %v", err)
	return 0
}

// take marks ports that nobody has marked, nor listens on.
func take(numbers []int) (marks []net.PacketConn, err error) {
	defer func() {
		if err != nil {
			for _, mark := range marks {
				mark.Close()
			}
		}
	}()
	for _, n := range numbers {
		mark, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", n))
		if err != nil {
			return marks, err
		}
		marks = append(marks, mark)
		if err := listenable(n); err != nil {
			return marks, err
		}
	}
	return marks, nil
}

func listenable(port int) error {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	return l.Close()
}

// find returns a program of the system, or fails with what to install.
func find(t T, program, install string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("servers: %s is not installed: run `go run ./test/servers/get` as root, or install %s", program, install)
	}
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	return path
}
