package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os/signal"
	"sync"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/assistant"
)

// newMCPCmd is the face of the agent for AI assistants.
func newMCPCmd(a *app) *cobra.Command {
	var noDialog bool
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Let an AI assistant use your agent",
		Long: `Speak MCP on stdin and stdout, for the program of an AI assistant, which starts
this command itself: docs/assistants.md shows its three lines of configuration.

The assistant can look businesses up, ask them, and request changes. It cannot
approve anything, sign in, or see a sign-in link. You approve what it requests
on a terminal of yours (pactctl approvals), or in a dialog of the assistant's
program if that has one. With --no-dialog there is the terminal alone: say it if
you do not trust that program to show its dialogs to you.

It works with the running agent (pactctl agent serve) if there is one, and else
holds the profile itself as long as the assistant's program runs.`,
		Example: `  pactctl mcp
  pactctl mcp --no-dialog`,
		Args: cobra.NoArgs,
	}
	p := newProfile(a, cmd)
	cmd.Flags().BoolVar(&noDialog, "no-dialog", false, "never ask for an approval in a dialog of the assistant's program")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if a.yes {
			return usagef("--yes: what an assistant requests is approved one by one: leave it out")
		}
		if a.person {
			a.note("This speaks MCP on stdin and stdout, and is for the program of an assistant to start. Ctrl-C ends it.")
		}
		a.person = false // nobody is asked here, and no link is shown: stdin and stdout are the assistant's
		return serveAssistant(cmd.Context(), a, p, noDialog)
	}
	return cmd
}

// serveAssistant serves one assistant until it leaves.
func serveAssistant(ctx context.Context, a *app, p *profile, noDialog bool) (err error) {
	o, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	cfg := assistant.Config{
		Agent: o.agent, Principal: o.caller.Principal, Network: agent.DefaultNetwork(), Version: version,
		Log: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if o.owner && !noDialog {
		cfg.Owner = &agent.Caller{Principal: o.caller.Principal, Origin: agent.OriginOwnerCLI}
	}
	s, err := assistant.New(cfg)
	if err != nil {
		return err
	}
	if o.local != nil { // nobody else tends what waits
		tending, stop := context.WithCancelCause(context.WithoutCancel(ctx))
		var tended sync.WaitGroup
		tended.Go(func() {
			t := agent.Tending{Caller: agent.Caller{Principal: o.caller.Principal, Origin: agent.OriginOwnerCLI, Actor: "pactctl mcp"}}
			if err := o.local.Tend(tending, t); err != nil {
				cfg.Log.Error("what waits is not tended", "error", err)
			}
		})
		defer tended.Wait()
		defer stop(agent.ErrStopping)
		defer context.AfterFunc(ctx, func() { stop(agent.ErrStopping) })()
	}
	signal.Ignore(syscall.SIGPIPE) // a client that is gone must not end what the owner approved
	out := &unclosed{w: a.stdout}
	return s.Run(ctx, &mcp.IOTransport{Reader: messages(a.stdin, out), Writer: out})
}

// maxMCPLine is the longest message that is read.
const maxMCPLine = 1 << 20

// messages gives the lines of in that are messages. One that is none is answered as
// such, and ends nothing.
func messages(in io.Reader, out io.Writer) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		lines := bufio.NewReaderSize(in, maxMCPLine)
		for {
			line, err := lines.ReadSlice('\n')
			tooLong := errors.Is(err, bufio.ErrBufferFull)
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			if line = bytes.TrimSpace(line); tooLong || len(line) > 0 && !isMessage(line) {
				if _, e := io.WriteString(out, notAMessage); err == nil {
					err = e
				}
			} else if len(line) > 0 {
				if _, e := w.Write(append(bytes.Clone(line), '\n')); err == nil {
					err = e
				}
			}
			if err != nil {
				w.CloseWithError(err)
				return
			}
		}
	}()
	return r
}

// isMessage reports a message of JSON-RPC, or several in a list.
func isMessage(line []byte) bool {
	if line[0] == '[' {
		return json.Valid(line)
	}
	_, err := jsonrpc.DecodeMessage(line)
	return err == nil && json.Valid(line)
}

const notAMessage = `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"this line is no message of JSON-RPC"}}` + "\n"

// unclosed is stdout, which stays open when a connection ends. A message is one Write,
// and none gets into another.
type unclosed struct {
	mu sync.Mutex
	w  io.Writer
}

func (u *unclosed) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.w.Write(p)
}

func (*unclosed) Close() error { return nil }
