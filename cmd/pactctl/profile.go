package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/mdp/qrterminal/v3"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
)

// principal is the one user of a profile of pactctl (ID-7).
const principal = "owner"

// profile is the personal agent that a command works with.
type profile struct {
	app         *app
	dir         string
	development bool
	remote      filled // what --remote names
	tokenFile   filled // of --remote-token-file
	makes       bool   // the command is one that makes a profile, or sets something in it
	here        bool   // the command works on the profile itself, never through a running agent

	shown   string   // the approval that was shown last
	signIn  string   // the sign-in whose link was shown, and whose end is waited for
	waitFor string   // the sign-in that the command was told to wait for
	goOn    string   // the command to go on with after an interrupted sign-in; empty: authorization wait
	stopped string   // what became of the operation by the interruption; empty: it was not waited for
	limit   limit    // of the running agent that is open; nil: none
	waiting *waiting // while the agent is open
}

// newProfile adds the flags that choose a profile to a command and those below
// it.
func newProfile(a *app, cmd *cobra.Command) *profile {
	p := &profile{app: a}
	cmd.GroupID = groupAgent
	p.folderFlag(cmd)
	p.developmentFlag(cmd)
	p.remoteFlags(cmd)
	return p
}

// folderFlag adds the flag of a profile on this machine.
func (p *profile) folderFlag(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&p.dir, "profile", "", "`DIR` of the agent's profile (default pactctl/agent in the XDG data folder; or PACT_PROFILE)")
}

// developmentFlag adds the one of an agent in this process.
func (p *profile) developmentFlag(cmd *cobra.Command) {
	cmd.PersistentFlags().BoolVar(&p.development, "development", false, "allow businesses and signers on this machine (or PACT_DEVELOPMENT=1)")
}

// remoteFlags adds the flags that name a running agent.
func (p *profile) remoteFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.Var(&p.remote, "remote", "`AGENT` that runs: unix:PATH, http://127.0.0.1:PORT or a context's name (or PACT_REMOTE)")
	f.Var(&p.tokenFile, "remote-token-file", "`FILE` with the token for --remote (or PACT_REMOTE_TOKEN_FILE)")
}

// filled is the value of a flag that must not be given empty: left out it means
// something else.
type filled string

func (f *filled) String() string { return string(*f) }
func (f *filled) Type() string   { return "string" }
func (f *filled) Set(value string) error {
	if strings.TrimSpace(value) == "" {
		return errors.New("it is empty: give a value, or leave the flag out")
	}
	*f = filled(value)
	return nil
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
		yes, err := a.agrees(ctx, "Send it?")
		if errors.Is(err, agent.ErrDecided) {
			a.note("Decided elsewhere.")
		}
		return yes, err
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
		"card", s.CardURL+cardElsewhere(s),
		"found through", strings.Join(s.CardChain, " -> "),
	)
	pr.line("")
	p.showQR(s)
	pr.line("Open  %s", s.Link.Reveal())
	pr.line("Code  %s", s.UserCode.Reveal())
	pr.say(0, "Waiting until %s. Ctrl-C stops waiting; the sign-in stays open: pactctl authorization list", pr.clock(s.Expires, ofDay))
}

// cardElsewhere marks a card that another host than the business's agent gave.
func cardElsewhere(s agent.SignIn) string {
	from := s.CardURL
	if n := len(s.CardChain); n > 0 {
		from = s.CardChain[n-1]
	}
	u, err := url.Parse(from)
	if err == nil && u.Scheme+"://"+u.Host == s.InterfaceOrigin {
		return ""
	}
	return " (another host than the business's agent: what it says of permissions is that host's word)"
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
	return p.endedWith(r, p.resultErrorWith(r, p.remedy(r)), text)
}

func (p *profile) endedWith(r agent.Result, ended error, text func(*printer)) error {
	r.Detail = p.app.hints.detail(r)
	if p.app.output == "json" || r.Status == agent.StatusReplied || r.Status == agent.StatusDone {
		if err := p.app.print(r, text); err != nil {
			return err
		}
	}
	p.showUndecided(r)
	return ended
}

// showUndecided shows what nobody could be asked about, as it would be shown to who
// decides.
func (p *profile) showUndecided(r agent.Result) {
	v := r.Approval
	if v == nil || r.Status != agent.StatusApprovalRequired || p.app.output == "json" || v.ID != "" && v.ID == p.shown {
		return
	}
	p.showApproval(requestOf(*v))
}

// resultError is nil for what went well, and else carries the exit code.
func resultError(r agent.Result) error { return resultErrorWith(r, remedy(r)) }

// toldError is one whose text has the flags of the commands that it names, where it is
// ours.
type toldError struct{ error }

func (e *toldError) Unwrap() error { return e.error }

// detail is what a result says for people, with the flags of the commands in it. How a
// message failed a business may have said in its own words: those stay.
func (h hints) detail(r agent.Result) string {
	if r.Status == agent.StatusFailed {
		return r.Detail
	}
	return h.text(r.Detail)
}

// resultErrorWith is resultError with a remedy of one's own.
func (p *profile) resultErrorWith(r agent.Result, remedy string) error {
	r.Detail = p.app.hints.detail(r)
	if err := resultErrorWith(r, remedy); err != nil {
		return &toldError{err}
	}
	return nil
}

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
	return ": " + orApprove(r) + "repeat with " + flags + "--yes, or on a terminal"
}

// limit is what a token lets its holder do at a running agent.
type limit interface {
	Scope() control.Scope
	Decides() bool // give the owner's word
	SignsIn() bool // see a sign-in link
}

// remedy is what a person can do about a result with the authority that they have
// here.
func (p *profile) remedy(r agent.Result) string {
	z, v := r.Authorization, r.Approval
	switch {
	case p.limit == nil:
	case r.Status == agent.StatusApprovalRequired && !p.limit.Decides():
		if v == nil || v.ID == "" {
			return ": say it again" + p.notHere()
		}
		return ": go on with: pactctl approvals approve " + v.ID + p.notHere()
	case r.Status == agent.StatusNeedsUserAction && !p.limit.SignsIn() && r.Detail == "" && z != nil:
		return ": go on with: pactctl authorization wait " + z.ID + p.notHere()
	}
	return p.app.hints.text(remedy(r))
}

// notHere says that something takes more than the token in use. A command before it is
// the owner's to say where they are, so it gets no flags of this one.
func (p *profile) notHere() string {
	return fmt.Sprintf(", as the owner (the token used here has the scope %s)", p.limit.Scope())
}

// refusedError is an operation that was refused before it had a result. With
// --output json its view is what the command prints.
type refusedError struct {
	view agent.Result // of status, reason and detail
	err  error
}

// hint gives the commands that it names their flags.
func (e *refusedError) hint(h hints) {
	e.view.Detail = h.detail(e.view)
	e.err = &toldError{resultError(e.view)}
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
