package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent/control"
	"github.com/pactsigner/pactsigner/agent/sqlite"
)

// newAgentCmd runs the personal agent as a process of its own.
func newAgentCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("agent", "Run the agent, and say who may use it",
		newAgentServeCmd(a), newAgentStatusCmd(a), newAgentTokensCmd(a))
	cmd.GroupID = groupAgent
	cmd.Long = `Run the personal agent as a process of its own, and say who may use it.

While one runs for a profile, every command on that profile goes through it, and
so does what else speaks its control plane: on its socket, which is yours alone,
or on a loopback address with a token. It keeps up what waits: a sign-in goes on
when the terminal that began it is closed.

Which agent a command works with is decided in this order: --remote; --profile;
PACT_REMOTE; PACT_PROFILE; the agent of the context that PACT_CONTEXT names, or
else of the current one; the default profile. For a profile that is the agent
that runs for it, or else one in the command's own process. Where PACT_DISABLED
switches PACT off, no running agent is used.`
	cmd.Example = `  pactctl agent serve
  pactctl agent status
  pactctl agent tokens create --name editor --scope assistant --out editor.token
  pactctl status --remote http://127.0.0.1:8795 --remote-token-file ops.token`
	return cmd
}

// serveOptions are the flags of agent serve.
type serveOptions struct {
	socket, listen string
	scale          int
	quiet          bool
}

// maxTimeScale is more than any demonstration needs.
const maxTimeScale = 3600

func newAgentServeCmd(a *app) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the agent of a profile until it is interrupted",
		Long: `Run the agent of a profile until it is interrupted (or gets SIGTERM or SIGHUP):
calls under way are ended as interrupted, and what waits stays as it is for the
next start.

It listens on a socket of mode 0600, where callers are you, and with --listen
also on a loopback address, where callers need a token. Only one runs for a
profile. Each call is logged to stderr: who, what and how it ended, never what
it said.

With -o json it prints one line when it is ready: {"pid", "version", "started",
"profile", "timeScale", "socket", "listen"}.`,
		Example: `  pactctl agent serve
  pactctl agent serve --listen 127.0.0.1:8795
  pactctl agent serve --socket /run/user/1000/pact.sock -o json`,
		Args: cobra.NoArgs,
	}
	p := &profile{app: a}
	p.folderFlag(cmd)
	p.developmentFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.socket, "socket", "", "`PATH` of the socket (default agent.sock in the profile's folder)")
	f.StringVar(&o.listen, "listen", "", "`HOST:PORT`, on loopback, to listen on too; port 0 picks a free one")
	f.IntVar(&o.scale, "time-scale", 1, "for demonstrations only: divide every duration by `N`")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "log nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := notEmpty(cmd, "socket", "listen"); err != nil {
			return err
		}
		if o.scale < 1 || o.scale > maxTimeScale {
			return usagef("--time-scale %d is not from 1 to %d", o.scale, maxTimeScale)
		}
		if host, _, err := net.SplitHostPort(o.listen); o.listen != "" && (err != nil || !loopback(host)) {
			return usagef("--listen %q: say a HOST:PORT of this machine's own, such as 127.0.0.1:0", o.listen)
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
		defer stop()
		return p.serve(ctx, o)
	}
	return cmd
}

// serve runs the agent of a profile until ctx ends, which is no failure.
func (p *profile) serve(ctx context.Context, o serveOptions) (err error) {
	dir, err := p.folder()
	if err != nil {
		return err
	}
	key, err := keySource()
	if err != nil {
		return err
	}
	if _, err := p.makeFolder(dir); err != nil {
		return err
	}
	lock, err := lockServe(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	self := servingAgent{PID: os.Getpid(), Version: version, Started: p.app.now().UTC(), Profile: dir, TimeScale: o.scale}
	if err := self.write(); err != nil { // what is there is of one that is gone
		return err
	}
	var h *here
	defer func() {
		if h == nil || h.store.InPlace() == nil { // else what is told there is another's
			err = errors.Join(err, self.forget())
		}
	}()

	if h, err = p.openHere(dir, key, o.scale); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	log := slog.New(slog.DiscardHandler)
	if !o.quiet {
		log = slog.New(slog.NewTextHandler(p.app.stderr, nil))
	}
	s, err := control.New(control.Config{
		Agent: h.agent, Store: h.store, Principal: principal, Version: version,
		Now: p.app.now, TimeScale: o.scale, Log: log,
	})
	if err != nil {
		return err
	}
	listeners, err := o.open(&self)
	if err == nil {
		err = self.write()
	}
	if err == nil {
		err = self.announce(p.app)
	}
	if err != nil {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
		return err
	}
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	go watchPlace(ctx, h.store, gone)
	// From the moment that it stops no command is to come here.
	defer context.AfterFunc(ctx, func() {
		if h.store.InPlace() == nil {
			_ = self.forget() // it is told at the end
		}
	})()
	err = s.Serve(ctx, listeners...)
	if cause := context.Cause(ctx); errors.Is(cause, sqlite.ErrGone) {
		err = errors.Join(fmt.Errorf("the agent stops: %w", cause), err)
	}
	return err
}

// lookEvery is how often a running agent looks whether its profile is still there.
const lookEvery = 2 * time.Second

// watchPlace says when the profile is not where it was any more: what is done then is
// written down where nobody finds it, and its tokens cannot be revoked.
func watchPlace(ctx context.Context, store *sqlite.Store, gone context.CancelCauseFunc) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := store.InPlace(); err != nil {
				gone(err)
				return
			}
		}
	}
}

// open listens, and says where.
func (o *serveOptions) open(self *servingAgent) (out []*control.Listener, err error) {
	l, err := control.ListenUnix(or(o.socket, filepath.Join(self.Profile, serveSocket)))
	if err != nil {
		return nil, err
	}
	out = append(out, l)
	self.Socket = strings.TrimPrefix(l.Target(), unixTarget)
	if o.listen == "" {
		return out, nil
	}
	if l, err = control.ListenLoopback(o.listen); err != nil {
		return out, fmt.Errorf("--listen: %w", err)
	}
	self.Listen = l.Target()
	return append(out, l), nil
}

// announce tells that it is ready: programs in one line, people with where.
func (s *servingAgent) announce(a *app) error {
	if a.output == "json" {
		line, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode the result: %w", err)
		}
		_, err = fmt.Fprintf(a.stdout, "%s\n", escaped(line))
		return err
	}
	pr := a.printer(a.stdout)
	pr.line("The agent is ready. Ctrl-C stops it.")
	s.fields(pr)
	return pr.err
}

// fields tells where it is, and what is unusual about it.
func (s *servingAgent) fields(p *printer) {
	p.fields("profile", s.Profile, "socket", s.Socket, "listening", s.Listen)
	if s.TimeScale > 1 {
		p.say(0, "Every duration is divided by %d: this is for demonstrations only.", s.TimeScale)
	}
}

// statusOfAgent is what agent status tells of the agent of a profile.
type statusOfAgent struct {
	Running      bool `json:"running"`
	servingAgent `json:",inline"`
}

func newAgentStatusCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell whether an agent runs, and where",
		Long: `Tell whether an agent runs for the profile, and where; or, with --remote,
whether that one answers. Exit code 1 if none does. Whether it can act tells
pactctl status.`,
		Example: `  pactctl agent status
  pactctl agent status -o json | jq -r .socket
  pactctl agent status --remote unix:/run/user/1000/pact.sock`,
		Args: cobra.NoArgs,
	}
	p := &profile{app: a}
	p.folderFlag(cmd)
	p.remoteFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.agentStatus(cmd.Context()) }
	return cmd
}

func (p *profile) agentStatus(ctx context.Context) error {
	at, err := p.place()
	if err != nil {
		return err
	}
	if at.target != "" {
		return p.remoteStatus(ctx, at)
	}
	s, err := serving(at.dir)
	if err != nil {
		return err
	}
	if s == nil || s.Socket == "" {
		view := object{{"running", false}, {"profile", at.dir}}
		if err := p.app.print(view, func(*printer) {}); err != nil {
			return err
		}
		return fmt.Errorf("no agent runs for the profile %s: start one with pactctl agent serve", at.dir)
	}
	c, err := dial(ctx, place{target: unixTarget + s.Socket})
	if err != nil {
		return fmt.Errorf("pid %d holds the profile %s: %w", s.PID, at.dir, err)
	}
	if err := c.Close(); err != nil {
		return err
	}
	return p.app.print(statusOfAgent{Running: true, servingAgent: *s}, func(pr *printer) {
		pr.line("The agent runs: pid %d, version %s, started %s.", s.PID, s.Version, pr.ago(s.Started))
		s.fields(pr)
	})
}

// remoteStatus asks an agent that was named what it is.
func (p *profile) remoteStatus(ctx context.Context, at place) error {
	c, err := dial(ctx, at)
	if err != nil {
		return err
	}
	defer c.Close()
	v, err := c.Process(ctx)
	if err != nil {
		return err
	}
	view := object{{"running", true}, {"target", at.target}, {"version", v.Version}, {"started", v.Started}, {"timeScale", v.TimeScale}}
	return p.app.print(view, func(pr *printer) {
		pr.line("The agent runs: version %s, started %s.", v.Version, pr.ago(v.Started))
		pr.fields("target", at.target)
		(&servingAgent{TimeScale: v.TimeScale}).fields(pr)
	})
}
