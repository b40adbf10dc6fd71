package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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
	if at, err := p.place(); err == nil { // as it was a moment ago
		cfg.Commands = p.hintsElsewhere(at).text
	}
	if o.owner && !noDialog {
		cfg.Owner = &agent.Caller{Principal: o.caller.Principal, Origin: agent.OriginOwnerCLI}
	}
	s, err := assistant.New(cfg)
	if err != nil {
		return err
	}
	if o.local != nil { // nobody else tends what waits
		stays, stop := context.WithCancelCause(context.WithoutCancel(ctx))
		defer stop(nil)
		defer context.AfterFunc(ctx, func() { stop(agent.ErrStopping) })()
		here, leave := context.WithCancelCause(stays)
		tending, free := agent.Leaving(stays, here, func(agent.Result) {})
		defer free()
		var tended sync.WaitGroup
		tended.Go(func() {
			t := agent.Tending{Caller: agent.Caller{Principal: o.caller.Principal, Origin: agent.OriginOwnerCLI, Actor: "pactctl mcp"}}
			if err := o.local.Tend(tending, t); err != nil {
				cfg.Log.Error("what waits is not tended", "error", err)
			}
		})
		defer tended.Wait()
		defer leave(agent.ErrStopping) // by who is gone: what is on its way goes on without them
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
			taken, wrong := readMessages(bytes.TrimSpace(line), tooLong)
			if wrong != nil {
				if e := refuse(out, wrong); err == nil {
					err = e
				}
			}
			for _, m := range taken {
				if _, e := w.Write(append(bytes.Clone(m), '\n')); err == nil {
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

// readMessages gives the messages of JSON-RPC in a line: one, none, or several in a
// list, as clients before 2025-06-18 may send them; each of those is answered by itself.
// Of a list in which one is wrong none is taken; what must not be answered is left out.
// The error is the answer.
func readMessages(line []byte, tooLong bool) (taken []jsontext.Value, wrong *jsonrpc.Error) {
	v := jsontext.Value(line)
	var all []jsontext.Value
	switch {
	case tooLong:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: fmt.Sprintf("this line is longer than %d bytes, and was not read", maxMCPLine)}
	case len(line) == 0:
		return nil, nil
	case !v.IsValid():
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "this line is no JSON, is not UTF-8, or repeats a member"}
	case v.Kind() != '[':
		all = []jsontext.Value{v}
	default:
		if json.Unmarshal(v, &all) != nil || len(all) == 0 {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "this list holds no message"}
		}
	}
	for _, m := range all {
		switch ok, unanswerable := isMessage(m); {
		case unanswerable:
		case !ok:
			return nil, &jsonrpc.Error{
				Code:    jsonrpc.CodeInvalidRequest,
				Message: "this line is no message of JSON-RPC 2.0, or its id is neither a text nor a whole number; nothing of it was taken up",
			}
		default:
			taken = append(taken, m)
		}
	}
	return taken, nil
}

// isMessage reports a message of JSON-RPC, whose id the answer can bring back as it is.
// What tells of an error in something without an id is none, and must not be answered
// with another such error.
func isMessage(m jsontext.Value) (ok, unanswerable bool) {
	var head struct {
		ID     jsontext.Value `json:"id"`
		Method jsontext.Value `json:"method"`
		Error  jsontext.Value `json:"error"`
	}
	if json.Unmarshal(m, &head) != nil {
		return false, false
	}
	if head.Method == nil && head.Error != nil && (head.ID == nil || head.ID.Kind() == 'n') {
		return false, true
	}
	_, err := jsonrpc.DecodeMessage(m)
	switch {
	case err != nil || head.ID != nil && head.ID.Kind() == 'n':
		return false, false
	case head.ID != nil && head.ID.Kind() == '0':
		n, err := strconv.ParseInt(string(head.ID), 10, 64)
		return err == nil && n == int64(float64(n)), false // as the SDK reads it
	}
	return true, false
}

// refuse answers a line that is no message.
func refuse(out io.Writer, wrong *jsonrpc.Error) error {
	answer, err := json.Marshal(struct {
		Version string         `json:"jsonrpc"`
		ID      *string        `json:"id"`
		Error   *jsonrpc.Error `json:"error"`
	}{"2.0", nil, wrong})
	if err == nil {
		_, err = out.Write(append(answer, '\n'))
	}
	return err
}

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
