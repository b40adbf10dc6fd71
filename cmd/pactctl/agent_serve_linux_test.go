package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is an agent that runs in a process of its own.
type process struct {
	servingAgent
	cmd *exec.Cmd
}

// startServing starts one, and waits until it says that it is ready.
func startServing(ctx context.Context, t *testing.T, profile string) *process {
	t.Helper()
	cmd := exec.CommandContext(ctx, "pactctl", "agent", "serve", "--profile", profile, "-o", "json", "--quiet")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // it may have ended
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.servingAgent)
	}
	if err != nil {
		t.Fatalf("agent serve: %v", err)
	}
	return p
}

// end sends a signal, and returns how the process ended.
func (p *process) end(t *testing.T, s syscall.Signal) *os.ProcessState {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.cmd.ProcessState
}

// A killed agent leaves a socket behind, by which nobody is misled: commands go on in their own
// process, and the next agent takes its place. A signal ends it well.
func TestServeSignals(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b := &bench{t: t, profile: filepath.Join(t.TempDir(), "p")}
	p := startServing(ctx, t, b.profile)
	if v := b.json(false, 0, "agent", "status"); v["pid"] != float64(p.cmd.Process.Pid) {
		t.Errorf("status %v, want pid %d", v, p.cmd.Process.Pid)
	}
	p.end(t, syscall.SIGKILL)
	if _, err := os.Lstat(p.Socket); err != nil {
		t.Fatalf("no socket is left: %v", err)
	}
	b.json(false, 0, "grants")
	b.json(false, 1, "agent", "status")
	if code, _, stderr := b.run(false, "", "grants", "--remote", "unix:"+p.Socket); code != 1 || !strings.Contains(stderr, "no agent answers at unix:") || !strings.Contains(stderr, "pactctl agent serve") {
		t.Errorf("--remote: exit %d\n%s", code, stderr)
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		p := startServing(ctx, t, b.profile)
		b.json(false, 0, "agent", "status")
		if state := p.end(t, s); state.ExitCode() != 0 {
			t.Errorf("%v: %v", s, state)
		}
		if _, err := os.Lstat(p.Socket); err == nil {
			t.Errorf("%v: the socket is left", s)
		}
	}
}

// stopped reports whether every thread of a process is.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d: %v", pid, err)
	}
	return !slices.ContainsFunc(threads, func(path string) bool {
		stat, err := os.ReadFile(path)
		return err == nil && !strings.Contains(string(stat), ") T ")
	})
}

// An agent that does not speak is told; a command does not hang on it, and does not go
// past it either.
func TestServeSilent(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b := &bench{t: t, profile: filepath.Join(t.TempDir(), "p")}
	p := startServing(ctx, t, b.profile)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for !stopped(t, p.cmd.Process.Pid) { // a signal takes its time
		if ctx.Err() != nil {
			t.Fatal(ctx.Err())
		}
		runtime.Gosched()
	}
	long := dialTimeout
	dialTimeout = 200 * time.Millisecond
	defer func() { dialTimeout = long }()
	if code, stdout, stderr := b.run(false, "", "grants"); code != 1 || stdout != "" || !strings.Contains(stderr, "something listens there and does not speak") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	if code, _, stderr := b.run(false, "", "agent", "status"); code != 1 || !strings.Contains(stderr, "does not speak") {
		t.Errorf("status: exit %d\n%s", code, stderr)
	}
	dialTimeout = long
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.json(false, 0, "grants")
}
