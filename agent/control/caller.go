package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/pactsigner/pactsigner/agent"
)

// taskHeader narrows a call to a task of the owner.
const taskHeader = "Pact-Task"

// scopeKey is the header of an answer that tells what the caller may do.
const scopeKey = "pact-scope"

// maxTaskName is how many characters Pact-Task has at most.
const maxTaskName = 100

// caller is who makes a call, and with what authority.
type caller struct {
	actor string // as records keep it
	scope Scope
	token string // id of the token; empty: the owner, on their socket
	// inTask: the call acts as a task of the owner, and never as the owner.
	inTask bool
	task   string // as the caller names it
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
	if c.inTask && c.task != "" {
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
	given := r.Header.Values(taskHeader)
	if given == nil && c.scope != ScopeAssistant {
		return c, nil
	}
	c.inTask = true
	switch {
	case given == nil:
		return c, nil
	case len(given) > 1 || len(given[0]) < 1 || len(given[0]) > maxTaskName:
		return caller{}, invalid(taskHeader, "must be one name of 1 to %d characters", maxTaskName)
	}
	for _, b := range []byte(given[0]) {
		if b < ' ' || b > '~' {
			return caller{}, invalid(taskHeader, "may hold only printable ASCII characters")
		}
	}
	c.task = given[0]
	return c, nil
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
	return caller{actor: "token " + t.Name, scope: t.Scope, token: t.ID}, nil
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
