package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	commandTimeout    = 10 * time.Second
	maxCommandTimeout = 5 * time.Minute
	maxCommandsAtOnce = 16                  // of one brand
	maxCommandStdout  = maxBody + maxMemory // bytes
	maxCommandStderr  = 4 << 10
	commandDrain      = time.Second // for output of processes that a command left behind
)

// command is a program that answers turns: it runs once for each, without a shell,
// gets the turn as JSON on stdin and answers as JSON on stdout.
type command struct {
	brand   string
	argv    []string
	dir     string
	timeout time.Duration
	log     *slog.Logger
	running chan struct{} // bounds how many run at once

	closed context.Context // done once none may run any more
	end    context.CancelFunc
	once   sync.Once
}

// commandEnv is what a command gets of our environment.
var commandEnv = []string{"PATH", "HOME", "LANG", "TMPDIR", "SystemRoot"}

// command makes the command. A program that is not there is a problem now rather
// than at the first turn.
func (f *fileCommand) command(brand, dir string, log *slog.Logger) *command {
	c := &command{
		brand: brand, argv: slices.Clone(f.Argv), dir: inDir(dir, f.Dir),
		timeout: cmp.Or(f.Timeout, commandTimeout),
		log:     log.With("brand", brand), running: make(chan struct{}, maxCommandsAtOnce),
	}
	c.closed, c.end = context.WithCancel(context.Background())
	if c.timeout > maxCommandTimeout {
		f.At.key("timeout").fail("may be at most %v", maxCommandTimeout)
	}
	if info, err := os.Stat(c.dir); err != nil || !info.IsDir() {
		f.At.key("dir").fail("%q is not a directory", c.dir)
		return c
	}
	if len(f.Argv) == 0 || f.Argv[0] == "" {
		f.At.key("argv").fail("name the program and its arguments, such as [./answer]")
		return c
	}
	program := f.Argv[0]
	if bytes.ContainsAny([]byte(program), `/\`) {
		program = inDir(c.dir, program)
	}
	path, err := exec.LookPath(program)
	if err != nil {
		f.At.key("argv").item(0).fail("%s", noProgram(f.Argv[0], c.dir, err))
		return c
	}
	c.argv[0] = path
	return c
}

// noProgram says why there is no such program, and what to do.
func noProgram(name, dir string, err error) string {
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Sprintf("there is no program %q in PATH: name a file, such as ./answer", name)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("there is no file %q in %s: name one that is there", name, dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("%q is not executable: chmod +x it", name)
	}
	return fmt.Sprintf("%v: name a file that is executable", err)
}

// respond runs the command for a turn. It is an error if it fails, takes too long or
// answers something else than a reply.
func (c *command) respond(ctx context.Context, t Turn) (Reply, error) {
	in, err := json.Marshal(commandTurn{
		Brand: c.brand, Issuer: t.Issuer, Subject: t.Subject, ContextID: t.ContextID, Text: t.Text,
		User: t.User, Scopes: t.Scopes, At: t.At.UTC().Format(time.RFC3339), Memory: t.Memory,
	})
	if err != nil {
		return Reply{}, fmt.Errorf("sandbox: the turn does not encode: %w", err)
	}
	answer, err := c.run(ctx, in)
	if err != nil {
		return Reply{}, fmt.Errorf("sandbox: command %s: %w", c.argv[0], err)
	}
	reply, err := parseCommandReply(answer)
	if err != nil {
		return Reply{}, fmt.Errorf("sandbox: command %s: %w", c.argv[0], err)
	}
	return reply, nil
}

// close ends the runs there are, and waits until they have.
func (c *command) close() {
	c.once.Do(func() {
		c.end()
		for range cap(c.running) {
			c.running <- struct{}{}
		}
	})
}

var (
	errCommandTime   = errors.New("its time was up")
	errCommandOutput = fmt.Errorf("it answered more than %d bytes", maxCommandStdout)
	errCommandClosed = errors.New("the sandbox was closed")
)

// run starts the program and returns what it says on stdout. Its process group ends
// with it: whatever it started and left there. A process that made a group or session
// of its own (setsid) is not ended, nor waited for.
func (c *command) run(ctx context.Context, stdin []byte) ([]byte, error) {
	ctx, stop := context.WithTimeoutCause(ctx, c.timeout, errCommandTime)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closed, func() { cancel(errCommandClosed) })()
	select {
	case c.running <- struct{}{}:
		defer func() { <-c.running }()
	case <-ctx.Done():
		return nil, fmt.Errorf("others of this brand still run: %w", context.Cause(ctx))
	}
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Dir, cmd.WaitDelay = c.dir, commandDrain
	cmd.Env = []string{} // nil would be all of ours
	for _, name := range commandEnv {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	stdout := &boundedBuffer{limit: maxCommandStdout, full: func() { cancel(errCommandOutput) }}
	stderr := &boundedBuffer{limit: maxCommandStderr}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(stdin, '\n')), stdout, stderr
	endGroup := asGroup(cmd)
	err := cmd.Run()
	endGroup()
	if len(stderr.kept) > 0 {
		c.log.Info("command said on stderr", "text", string(stderr.kept), "cut", stderr.cut)
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay): // it exited well; what it left behind did not
		err = nil
	}
	return stdout.kept, err
}

// boundedBuffer keeps what is written up to a limit, and says when there is more.
type boundedBuffer struct {
	kept  []byte
	limit int
	full  func() // nil: the rest is dropped
	cut   bool
}

// Write never fails.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	room := b.limit - len(b.kept)
	if len(p) > room && !b.cut {
		if b.cut = true; b.full != nil {
			b.full()
		}
	}
	b.kept = append(b.kept, p[:min(room, len(p))]...)
	return len(p), nil
}
