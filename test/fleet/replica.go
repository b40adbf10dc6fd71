package fleet

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Replica is one signer process. Its addresses stay over restarts.
type Replica struct {
	Index                    int
	Public, GRPC, Admin, Ops string // host:port

	fleet  *Fleet
	dir    string
	config string

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended
	starts int

	mu   sync.Mutex
	away []span
}

// span is a time in which the test kept a replica from answering; no end yet is
// the zero time.
type span struct{ from, to time.Time }

// Start runs the process. It returns before the signer is ready or even listens.
func (r *Replica) Start(t T) {
	t.Helper()
	if r.starts == 0 {
		r.leave() // until it listens
	}
	r.starts++
	log, err := os.OpenFile(r.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatalf("replica %d: %v", r.Index, err)
	}
	defer log.Close() // the process has its own
	cmd := exec.Command(r.fleet.binaries.Signer, "serve", "--config", r.config, "-o", "json",
		"--set", fmt.Sprintf("replica=replica-%d.%d", r.Index, r.starts))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("replica %d: %v", r.Index, err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // how it ended is in its log
	}()
	r.cmd, r.exited = cmd, exited
	if r.starts == 1 {
		t.Cleanup(func() {
			r.Kill()
			if failed, ok := t.(interface{ Failed() bool }); ok && failed.Failed() {
				t.Logf("the end of replica %d's log:\n%s", r.Index, r.Log(40))
			}
		})
	}
	Eventually(t, Patience, fmt.Sprintf("replica %d listens", r.Index), func() bool {
		select {
		case <-exited:
			t.Fatalf("replica %d ended:\n%s", r.Index, r.Log(40))
		default:
		}
		for _, address := range []string{r.Public, r.GRPC} { // what the load uses
			conn, err := net.DialTimeout("tcp", address, time.Second)
			if err != nil {
				return false
			}
			conn.Close()
		}
		return true
	})
	r.back()
}

// Name is how operators see the running process.
func (r *Replica) Name() string { return fmt.Sprintf("replica-%d.%d", r.Index, r.starts) }

// PID is the process id of the running replica.
func (r *Replica) PID() int { return r.cmd.Process.Pid }

// Kill ends the process at once, as kill -9 does.
func (r *Replica) Kill() {
	r.leave()
	_ = r.cmd.Process.Kill() // it may have ended before
	<-r.exited
}

// Pause stops the process where it is (SIGSTOP).
func (r *Replica) Pause(t T) {
	t.Helper()
	r.leave()
	r.signal(t, syscall.SIGSTOP)
}

// Resume lets it go on (SIGCONT).
func (r *Replica) Resume(t T) {
	t.Helper()
	r.signal(t, syscall.SIGCONT)
	r.back()
}

func (r *Replica) signal(t T, s syscall.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		t.Fatalf("replica %d: %v: %v", r.Index, s, err)
	}
}

func (r *Replica) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.away); n == 0 || !r.away[n-1].to.IsZero() {
		r.away = append(r.away, span{from: time.Now()})
	}
}

func (r *Replica) back() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away[len(r.away)-1].to = time.Now()
}

// reconnect is how long a client may take to find a replica that is back.
const reconnect = time.Second

// wasAway tells whether the test kept the replica from answering at any time from
// a moment to another.
func (r *Replica) wasAway(from, to time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.away {
		if !to.Before(s.from) && (s.to.IsZero() || from.Before(s.to.Add(reconnect))) {
			return true
		}
	}
	return false
}

// Away tells whether the test keeps the replica from answering now.
func (r *Replica) Away() bool { return r.wasAway(time.Now(), time.Now()) }

// Ready asks /readyz, and returns why it is not ready.
func (r *Replica) Ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), Patience/4)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Ops+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%d %s", resp.StatusCode, strings.TrimSpace(string(body)))
	}
	return nil
}

// WaitReady waits until the replica says that it is ready.
func (r *Replica) WaitReady(t T, within time.Duration) {
	t.Helper()
	var why error
	defer func() {
		if why != nil {
			t.Logf("replica %d is not ready: %v", r.Index, why)
		}
	}()
	Eventually(t, within, fmt.Sprintf("replica %d is ready", r.Index), func() bool {
		why = r.Ready()
		return why == nil
	})
}

func (r *Replica) logFile() string { return filepath.Join(r.dir, "log") }

// Log returns the last lines of the process's log that are not about one request.
func (r *Replica) Log(lines int) string {
	data, err := os.ReadFile(r.logFile())
	if err != nil {
		return err.Error()
	}
	var kept []string
	for line := range strings.Lines(string(data)) {
		if !strings.Contains(line, "msg=issued") && !strings.Contains(line, "msg=refused") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[max(0, len(kept)-lines):], "")
}
