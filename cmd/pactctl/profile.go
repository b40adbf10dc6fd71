package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/adrg/xdg"
	"github.com/mdp/qrterminal/v3"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/sqlite"
)

// principal is the one user of a profile of pactctl (ID-7).
const principal = "owner"

// profile is the personal agent that a command works with.
type profile struct {
	app         *app
	dir         string
	development bool
	makes       bool // the command is one that makes a profile, or sets something in it

	signIn  string   // the sign-in whose link was shown, and whose end is waited for
	waitFor string   // the sign-in that the command was told to wait for
	waiting *waiting // while the agent is open
}

// newProfile adds the flags that choose a profile to a command and those below
// it.
func newProfile(a *app, cmd *cobra.Command) *profile {
	p := &profile{app: a}
	cmd.GroupID = groupAgent
	f := cmd.PersistentFlags()
	f.StringVar(&p.dir, "profile", "", "`DIR` of the agent's profile (default pactctl/agent in the XDG data folder; or PACT_PROFILE)")
	f.BoolVar(&p.development, "development", false, "allow businesses and signers on this machine (or PACT_DEVELOPMENT=1)")
	return p
}

// openError is why a profile cannot be opened, and which check of doctor tells that.
type openError struct {
	check string
	err   error
}

func (e *openError) Error() string { return e.err.Error() }
func (e *openError) Unwrap() error { return e.err }

// with opens the agent for one piece of work. What that is refused for is the
// command's JSON result. Errors of opening it are *openError, if a check tells them.
func (p *profile) with(ctx context.Context, work func(context.Context, *agent.Agent, agent.Caller) error) (err error) {
	dir := p.dir
	if dir == "" {
		dir = os.Getenv("PACT_PROFILE")
	}
	if dir == "" {
		dir = filepath.Join(xdg.DataHome, "pactctl", "agent")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	key, err := keySource()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	file := filepath.Join(dir, "agent.db")
	_, err = os.Stat(file)
	made := errors.Is(err, fs.ErrNotExist)
	if err := p.keepPrivate(dir, made); err != nil {
		return err
	}
	store, err := sqlite.Open(file)
	if err != nil {
		return &openError{"store", err}
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	a, err := agent.Open(agent.Config{
		Dir: dir, Store: store, Key: key, Now: p.app.now,
		Development:   p.development || os.Getenv("PACT_DEVELOPMENT") == "1",
		DisabledByEnv: disables(os.Getenv("PACT_DISABLED")),
		Policy:        policyFiles(dir),
	})
	switch {
	case errors.Is(err, agent.ErrProfileKey):
		return &openError{"profile key", err}
	case err != nil:
		return &openError{"store", err}
	}
	defer a.Close()
	if made && !p.makes {
		p.app.note("There was no profile: a new one is in %s.", dir)
	}
	for _, notice := range a.Notices() {
		p.app.note("%s", notice)
	}
	p.waiting = newWaiting(p.app)
	defer p.waiting.close()
	err = refused(work(ctx, a, p.caller()))
	if id := or(p.signIn, p.waitFor); err != nil && ctx.Err() != nil && id != "" { // the text stays, the kind "interrupted" would hide it
		return fmt.Errorf("stopped waiting; go on with: pactctl authorization wait %s", id)
	}
	return err
}

// keepPrivate holds a profile's folder to mode 0700. One of somebody else's, or one
// that was made for something else, is not changed.
func (p *profile) keepPrivate(dir string, made bool) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	mode := info.Mode().Perm()
	if mode&0o077 == 0 || runtime.GOOS == "windows" {
		return nil
	}
	refusal := fmt.Errorf("--profile: %s has mode %04o, so others than you can use what is in it: chmod 700 %[1]s, or name another folder", dir, mode)
	if made {
		if inside, err := os.ReadDir(dir); err != nil || len(inside) > 0 {
			return refusal
		}
	}
	if !ours(info) || info.Mode()&fs.ModeSticky != 0 || os.Chmod(dir, 0o700) != nil {
		return refusal
	}
	p.app.note("The profile's folder %s had mode %04o, by which others could use it: it is 0700 now.", dir, mode)
	return nil
}

// disables reads PACT_DISABLED: what is not plainly no switches PACT off.
func disables(value string) bool {
	return value != "" && value != "0" && !strings.EqualFold(value, "false")
}

// keySource reads PACT_KEYRING: where a new profile's key goes, and whether the
// keyring may be asked.
func keySource() (agent.KeySource, error) {
	switch v := os.Getenv("PACT_KEYRING"); v {
	case "":
		return agent.KeyAuto, nil
	case "on":
		return agent.KeyKeyring, nil
	case "off":
		return agent.KeyFile, nil
	default:
		return "", usagef("PACT_KEYRING: %q is unknown: say on or off", v)
	}
}

// caller is the owner on their own command line.
func (p *profile) caller() agent.Caller {
	a := p.app
	c := agent.Caller{Principal: principal, Origin: agent.OriginOwnerCLI, Human: agent.HumanNone, Progress: p.progress}
	c.Confirmed = a.yes // AP-5
	c.Shown = func(req agent.ApprovalRequest) {
		p.showApproval(req)
		a.note("Confirmed by --yes.")
	}
	if !a.person {
		return c
	}
	c.Human = agent.HumanInteractive
	c.Approve = func(ctx context.Context, req agent.ApprovalRequest) (bool, error) {
		p.showApproval(req)
		p.idle()
		return a.agrees(ctx, "Send it?")
	}
	c.SignIn = func(_ context.Context, s agent.SignIn) error {
		p.showSignIn(s)
		return nil
	}
	return c
}

// showSignIn shows a sign-in link to the owner on their terminal, the one place
// where it may appear (CL-3, DA-14).
func (p *profile) showSignIn(s agent.SignIn) {
	p.signIn = s.Authorization
	p.idle()
	pr := p.app.aside()
	pr.line("")
	pr.say(0, "%s wants you to sign in and choose what to allow.", s.Business)
	printScopes(pr, "Asked for:", s.Scopes)
	site := "the same site as the business"
	if !s.Matches {
		site = "another site than the business: look closely before you sign in"
	}
	pr.fields(
		"link goes to", s.LinkOrigin+" ("+site+")",
		"business's agent", s.InterfaceOrigin,
		"authorization server", s.ASOrigin,
		"card", s.CardURL,
		"found through", strings.Join(s.CardChain, " -> "),
	)
	pr.line("")
	p.showQR(s)
	pr.line("Open  %s", s.Link.Reveal())
	pr.line("Code  %s", s.UserCode.Reveal())
	pr.say(0, "Waiting until %s. Ctrl-C stops waiting; the sign-in stays open: pactctl authorization list", pr.clock(s.Expires, ofDay))
}

// besideQR is how many lines of a terminal stand below a QR code.
const besideQR = 6

// maxQR is how long a link may be that becomes a QR code: a longer one is too fine for
// a terminal, and beyond 2953 bytes there is none.
const maxQR = 1000

// showQR shows a link to a telephone, if that could open it and the terminal is high
// enough.
func (p *profile) showQR(s agent.SignIn) {
	if u, err := url.Parse(s.LinkOrigin); err != nil || loopback(u.Hostname()) {
		return
	}
	if len(s.Link.Reveal()) > maxQR {
		return
	}
	var b bytes.Buffer
	qrterminal.GenerateHalfBlock(s.Link.Reveal(), qrterminal.L, &b)
	if p.app.height > 0 && bytes.Count(b.Bytes(), []byte("\n"))+besideQR > p.app.height {
		return
	}
	_, _ = b.WriteTo(p.app.stderr)
}

// ask asks the person one line on stderr.
func (p *profile) ask(ctx context.Context, question string) (string, error) {
	p.idle()
	fmt.Fprint(p.app.stderr, question)
	return p.app.answers().next(ctx)
}

// ended prints how an operation ended and returns the error that it ends the
// program with (CL-2).
func (p *profile) ended(r agent.Result, text func(*printer)) error {
	if p.app.output == "json" || r.Status == agent.StatusReplied || r.Status == agent.StatusDone {
		if err := p.app.print(r, text); err != nil {
			return err
		}
	}
	p.showUndecided(r)
	return resultError(r)
}

// showUndecided shows what nobody could be asked about, as it would be shown to who
// decides.
func (p *profile) showUndecided(r agent.Result) {
	v := r.Approval
	if v == nil || r.Status != agent.StatusApprovalRequired || p.app.output == "json" {
		return
	}
	p.showApproval(agent.ApprovalRequest{
		Business: v.BusinessName, Destination: v.Destination, Message: v.Message, Effect: v.Effect, Scopes: v.Permissions,
		Exceeds: v.Exceeds, TokenScopes: v.TokenPermissions, Digest: v.Digest, Changed: v.Changed, SentBefore: v.SentBefore,
	})
}

// resultError is nil for what went well, and else carries the exit code.
func resultError(r agent.Result) error { return resultErrorWith(r, remedy(r)) }

func resultErrorWith(r agent.Result, remedy string) error {
	text := string(r.Status)
	if r.Reason != "" && r.Reason != string(r.Status) {
		text += ": " + r.Reason
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	text += remedy
	switch r.Status {
	case agent.StatusReplied, agent.StatusDone:
		return nil
	case agent.StatusNeedsUserAction, agent.StatusApprovalRequired:
		return actf("%s", text)
	}
	return errors.New(text)
}

// remedy is what a person can do about a result, if its text does not say.
func remedy(r agent.Result) string {
	if z := r.Authorization; r.Status == agent.StatusNeedsUserAction && r.Detail == "" && z != nil {
		return ": go on with: pactctl authorization wait " + z.ID
	}
	if r.Status != agent.StatusApprovalRequired {
		return ""
	}
	flags := ""
	for _, id := range r.MissingScopes { // --yes covers what is asked for at first, and nothing that comes up later
		flags += "--scope " + id + " "
	}
	return ": repeat with " + flags + "--yes, or on a terminal"
}

// refusedError is an operation that was refused before it had a result. With
// --output json its view is what the command prints.
type refusedError struct {
	view agent.Result // of status, reason and detail
	err  error
}

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// refused gives a library error its exit code, and its result.
func refused(err error) error {
	var done *refusedError
	var r *agent.Refusal
	if errors.As(err, &done) || !errors.As(err, &r) {
		return err
	}
	v := agent.Result{Status: r.Status, Reason: r.Reason, Detail: r.Text()}
	return &refusedError{v, resultError(v)}
}

func stamp(p *printer, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return p.clock(t, toMinute)
}
