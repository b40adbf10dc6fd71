package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pactsigner/pactsigner/agent"
)

// taskHeader narrows a call to a task of the owner.
const taskHeader = "Pact-Task"

// dialogHeader tells of a decision that the owner gave it in a dialog of a program, and
// names that.
const dialogHeader = "Pact-Dialog"

// DialogActor is what the actor begins with who decides so; the program's name comes
// behind it.
const DialogActor = "dialog of "

// scopeKey is the header of an answer that tells what the caller may do.
const scopeKey = "pact-scope"

// maxName is how many bytes the name of a task or program has at most.
const maxName = 100

// caller is who makes a call, and with what authority.
type caller struct {
	actor string // as records keep it
	scope Scope
	token string // id of the token; empty: the owner, on their socket
	// inTask: the call acts as a task of the owner, and never as the owner.
	inTask bool
	task   string // as the caller names it
	dialog string // the program in whose dialog the owner decided, as it names itself
}

// may reports whether the caller may call a method.
func (c caller) may(m Method) bool {
	if c.inTask {
		return m.Task && (c.scope == ScopeAssistant || c.scope.rank() >= m.Scope.rank())
	}
	return c.scope.rank() >= m.Scope.rank()
}

// shown is the scope as it is told: what the caller may do in this call.
func (c caller) shown() Scope {
	if c.inTask && c.scope.rank() >= ScopeOperator.rank() {
		return ScopeAssistant
	}
	return c.scope
}

// confirms reports whether the caller's pre-confirmation counts (AP-5, CP-2).
func (c caller) confirms() bool { return c.scope == ScopeAdmin && !c.inTask }

// name is the caller in records and the log: who, and in which task.
func (c caller) name() string {
	switch {
	case c.dialog != "":
		return DialogActor + c.dialog
	case c.inTask && c.task != "":
		return c.actor + " task " + c.task
	}
	return c.actor
}

// identify says who makes a request. Only a request of the owner's socket that shows
// no token at all is the owner's. The error is the answer.
func (s *Server) identify(r *http.Request, owner bool) (caller, error) {
	if r.Header.Values("Origin") != nil {
		return caller{}, invalid("Origin", "pages in a browser are not served")
	}
	if !owner && !localHost(r.Host) {
		return caller{}, invalid("Host", "this is reached by a loopback address alone")
	}
	c, err := s.bearer(r.Context(), r.Header.Values("Authorization"), owner)
	if err != nil {
		return caller{}, err
	}
	if c.task, err = named(r, taskHeader); err != nil {
		return caller{}, err
	}
	if c.dialog, err = named(r, dialogHeader); err != nil {
		return caller{}, err
	}
	c.inTask = c.task != "" || c.scope == ScopeAssistant
	if c.dialog != "" && (c.inTask || c.token != "") {
		return caller{}, invalid(dialogHeader, "goes with no token and no %s: it is the owner who decides there", taskHeader)
	}
	return c, nil
}

// named is the name that a header gives; empty: it is not there.
func named(r *http.Request, header string) (string, error) {
	switch given := r.Header.Values(header); len(given) {
	case 0:
		return "", nil
	case 1:
		return readName(header, given[0])
	default:
		return "", checkName(header, "")
	}
}

// readName reads a name as headerName writes it. What is no such form stands for itself.
func readName(header, given string) (string, error) {
	if strings.ContainsFunc(given, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", invalid(header, "may hold only printable ASCII characters, others as the %%XX of their UTF-8")
	}
	name, err := url.PathUnescape(given)
	if err != nil {
		name = given
	}
	return name, checkName(header, name)
}

// headerName is a name as a header can hold it: what is not ASCII, and % itself, as the
// %XX of its UTF-8.
func headerName(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// checkName refuses what is no name for a header.
func checkName(header, name string) error {
	if len(name) < 1 || len(name) > maxName {
		return invalid(header, "must be one name of 1 to %d bytes", maxName)
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return invalid(header, "may hold only printable characters, those that are not ASCII as the %%XX of their UTF-8")
	}
	return nil
}

// bearer finds whose token a request shows.
func (s *Server) bearer(ctx context.Context, authorization []string, owner bool) (caller, error) {
	if authorization == nil && owner {
		return caller{actor: "owner", scope: ScopeAdmin}, nil
	}
	if len(authorization) != 1 {
		return caller{}, unauthenticated()
	}
	scheme, secret, ok := strings.Cut(authorization[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || !strings.HasPrefix(secret, TokenPrefix) {
		return caller{}, unauthenticated()
	}
	t, err := s.tokens.accept(ctx, secret)
	if errors.Is(err, errNoToken) {
		return caller{}, unauthenticated()
	}
	if err != nil {
		return caller{}, s.told(ctx, "", err)
	}
	return caller{actor: actorOf(t.Name), scope: t.Scope, token: t.ID}, nil
}

// localHost reports whether a Host header names this machine: another name that leads
// here is a page's that would act as its reader.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.IsLoopback()
}

type callerKey struct{}

// callerOf is who makes the call. What was not identified has no scope at all.
func callerOf(ctx context.Context) (caller, bool) {
	c, ok := ctx.Value(callerKey{}).(caller)
	return c, ok
}

// as is the agent's caller of a call: the owner on a surface of theirs for operators
// and admins, a task of the owner's for one that is narrowed, and for what only looks
// neither (AD-2, AD-3).
func (s *Server) as(ctx context.Context) agent.Caller {
	c, _ := callerOf(ctx)
	out := agent.Caller{
		Principal: s.cfg.Principal, Actor: c.name(), Origin: agent.OriginGateway, Human: agent.HumanOutOfBand,
		Network: agent.DefaultNetwork(),
	}
	if c.token != "" {
		out.Stands = func(tx agent.Tx) error { return s.tokens.standsIn(tx, c.token) }
	}
	switch {
	case c.inTask:
		out.Origin = agent.OriginOwner
		out.Task = &agent.Task{
			ID: "assistant:" + c.actor + ":" + c.task, Source: agent.SourceOwner, Mode: agent.ModeAct, Human: agent.HumanOutOfBand,
		}
	case c.scope.rank() >= ScopeOperator.rank():
		out.Origin = agent.OriginOwnerCLI
	}
	return out
}

// waits is the same caller, who stays while the owner decides.
func waits(c agent.Caller) agent.Caller {
	c.Human = agent.HumanInteractive
	if c.Task != nil {
		t := *c.Task
		t.Human = agent.HumanInteractive
		c.Task = &t
	}
	return c
}
