package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
)

// place is where the agent is that a command works with: the target of a running
// one, or the folder of a profile.
type place struct {
	target    string // unix:PATH or http://HOST:PORT; empty: the profile in dir
	tokenFile string // with the token that goes with it; empty: none
	by        string // what named the target, for people

	dir string
}

// owner reports whether calls have the owner's whole authority: on the socket of the
// owner, without a token.
func (at place) owner() bool { return strings.HasPrefix(at.target, unixTarget) && at.tokenFile == "" }

// unixTarget is what the target of a socket begins with.
const unixTarget = "unix:"

// place decides it, in the order that `pactctl agent --help` states.
func (p *profile) place() (place, error) {
	named, by, err := p.named()
	if err != nil {
		return place{}, err
	}
	if named != "" {
		at, err := findAgent(named, by, string(p.tokenFile))
		if err == nil {
			p.app.hints.serve = serveThere(at.target)
		}
		return at, err
	}
	if err := p.noToken(); err != nil {
		return place{}, err
	}
	dir, err := p.folder()
	return place{dir: dir}, err
}

// noToken refuses a token for an agent that nothing names: who meant to narrow a command
// must not get all that the owner may. What PACT_REMOTE names --profile sets aside, and
// its token with it.
func (p *profile) noToken() error {
	switch {
	case p.tokenFile != "":
		return usagef("--remote-token-file goes with --remote: the profile's own agent takes no token from you")
	case os.Getenv("PACT_REMOTE_TOKEN_FILE") != "" && os.Getenv("PACT_REMOTE") == "":
		return usagef("PACT_REMOTE_TOKEN_FILE is set, and nothing names the agent that it is for: set PACT_REMOTE or say --remote, or unset it")
	}
	return nil
}

// named is what names a running agent, and by what; empty: the profile is meant.
func (p *profile) named() (named, by string, err error) {
	switch {
	case p.remote != "" && p.dir != "":
		return "", "", usagef("--remote and --profile name two agents: say one")
	case p.remote != "":
		return string(p.remote), "--remote", nil
	case p.dir != "":
		return "", "", nil
	}
	if named := os.Getenv("PACT_REMOTE"); named != "" {
		return named, "PACT_REMOTE", nil
	}
	if os.Getenv("PACT_PROFILE") != "" {
		return "", "", nil
	}
	return contextWithAgent()
}

// onlyHere is what works on the profile itself, and was told of a running agent.
func onlyHere(by string) error {
	return usagef("this works on the profile itself, and %s names a running agent: run it on that machine with --profile DIR", by)
}

// contextWithAgent is the context in force, if it names an agent.
func contextWithAgent() (name, by string, err error) {
	c, err := loadContexts()
	if err != nil {
		return "", "", err
	}
	if name, by = os.Getenv("PACT_CONTEXT"), "PACT_CONTEXT"; name == "" {
		name, by = c.Current, "the current context"
	}
	if name == "" {
		return "", "", nil
	}
	s, err := c.get(name)
	if err != nil || s.Agent == "" {
		return "", "", err
	}
	return name, by, nil
}

// findAgent finds the running agent that a value of --remote names: a target, or a
// context that has one.
func findAgent(named, by, tokenFile string) (place, error) {
	at := place{target: named, tokenFile: tokenFile, by: by}
	if !strings.Contains(named, ":") {
		c, err := loadContexts()
		if err != nil {
			return at, err
		}
		s, err := c.get(named)
		switch {
		case err != nil:
			return at, usagef("%s %q is neither unix:PATH, http://127.0.0.1:PORT nor the name of a context: see pactctl context list", by, named)
		case s.Agent == "":
			return at, usagef("context %q names no agent: pactctl context set %[1]s --agent TARGET", named)
		}
		at.target, at.tokenFile = s.Agent, or(tokenFile, s.AgentTokenFile)
	}
	var err error
	if at.target, err = parseAgent(by, at.target); err != nil {
		return at, err
	}
	at.tokenFile = or(at.tokenFile, os.Getenv("PACT_REMOTE_TOKEN_FILE"))
	if at.tokenFile == "" && !strings.HasPrefix(at.target, unixTarget) {
		return at, usagef("which token? Say --remote-token-file FILE or set PACT_REMOTE_TOKEN_FILE; make one with: pactctl agent tokens create")
	}
	return at, nil
}

// parseAgent holds a target to its form, and makes the path of a socket absolute. by
// is what named it.
func parseAgent(by, target string) (string, error) {
	if path, ok := strings.CutPrefix(target, unixTarget); ok {
		if path = strings.TrimPrefix(path, "//"); path == "" {
			return "", usagef("%s %q has no path: say unix:PATH", by, target)
		}
		path, err := filepath.Abs(path)
		if err != nil {
			return "", fmt.Errorf("%s: %w", by, err)
		}
		if longest := control.MaxSocketPath(); len(path) > longest {
			return "", usagef("%s: no socket has a path of more than %d bytes, and %s has %d", by, longest, path, len(path))
		}
		return unixTarget + path, nil
	}
	if err := control.CheckTarget(target); err != nil {
		return "", usagef("%s %w", by, err)
	}
	return strings.TrimRight(target, "/"), nil
}

// dialTimeout bounds how long a running agent may take to answer at all. Tests shorten
// it.
var dialTimeout = 5 * time.Second

// dial connects to a running agent.
func dial(ctx context.Context, at place) (*control.Client, error) {
	var token agent.Secret
	if at.tokenFile != "" {
		s, err := readToken("remote token", at.tokenFile)
		if err != nil {
			return nil, err
		}
		token = agent.Secret(s)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return control.Dial(ctx, at.target, token)
}

// dialAgent connects to the running agent that a value of --remote names.
func (a *app) dialAgent(ctx context.Context, named, tokenFile string) (*control.Client, error) {
	at, err := findAgent(named, "--remote", tokenFile)
	if err != nil {
		return nil, err
	}
	return dial(ctx, at)
}
