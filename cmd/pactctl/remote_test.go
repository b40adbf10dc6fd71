package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adrg/xdg"
)

// contextsOf sets the contexts file of a test, and unsets what else says which agent is
// meant.
func contextsOf(t *testing.T, yaml string) {
	t.Helper()
	for _, name := range []string{"PACT_REMOTE", "PACT_REMOTE_TOKEN_FILE", "PACT_PROFILE", "PACT_CONTEXT", "PACT_DISABLED", "PACT_DEVELOPMENT"} {
		t.Setenv(name, "")
	}
	for _, name := range []string{"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"} {
		t.Setenv(name, filepath.Join(t.TempDir(), name))
	}
	xdg.Reload()
	t.Cleanup(xdg.Reload)
	if err := os.MkdirAll(filepath.Dir(contextsPath()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(contextsPath(), []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Which agent a command works with, in the order that the help states.
func TestPlace(t *testing.T) {
	dir := t.TempDir()
	contextsOf(t, `current: home
contexts:
  home: {agent: "unix:/run/home.sock"}
  net: {agent: "http://127.0.0.1:8795", agentTokenFile: /net.token}
  signer: {server: "http://127.0.0.1:8789", tokenFile: /t}
`)
	for name, c := range map[string]struct {
		remote, tokenFile, profile string // flags
		env                        map[string]string
		target, file, dir          string
		owner                      bool
		code                       int // of the error; 0: none
		says                       string
	}{
		"the current context":      {target: "unix:/run/home.sock", owner: true},
		"PACT_CONTEXT":             {env: map[string]string{"PACT_CONTEXT": "net"}, target: "http://127.0.0.1:8795", file: "/net.token"},
		"a context of a signer":    {env: map[string]string{"PACT_CONTEXT": "signer"}, dir: "default"},
		"PACT_CONTEXT of none":     {env: map[string]string{"PACT_CONTEXT": "none"}, code: exitFailed, says: `no context "none"`},
		"PACT_PROFILE":             {env: map[string]string{"PACT_PROFILE": dir}, dir: dir},
		"PACT_REMOTE":              {env: map[string]string{"PACT_PROFILE": dir, "PACT_REMOTE": "unix:/run/other.sock"}, target: "unix:/run/other.sock", owner: true},
		"--profile":                {profile: dir, env: map[string]string{"PACT_REMOTE": "unix:/run/other.sock", "PACT_PROFILE": "/p"}, dir: dir},
		"--remote":                 {remote: "unix:/run/flag.sock", env: map[string]string{"PACT_REMOTE": "unix:/run/other.sock", "PACT_PROFILE": dir}, target: "unix:/run/flag.sock", owner: true},
		"--remote's context":       {remote: "net", target: "http://127.0.0.1:8795", file: "/net.token"},
		"a token of its own":       {remote: "net", tokenFile: "/flag", env: map[string]string{"PACT_REMOTE_TOKEN_FILE": "/env"}, target: "http://127.0.0.1:8795", file: "/flag"},
		"the context's token":      {remote: "net", env: map[string]string{"PACT_REMOTE_TOKEN_FILE": "/env"}, target: "http://127.0.0.1:8795", file: "/net.token"},
		"PACT_REMOTE_TOKEN_FILE":   {remote: "http://[::1]:80", env: map[string]string{"PACT_REMOTE_TOKEN_FILE": "/env"}, target: "http://[::1]:80", file: "/env"},
		"a token on a socket":      {remote: "unix:/run/flag.sock", tokenFile: "/flag", target: "unix:/run/flag.sock", file: "/flag"},
		"a URL of a socket":        {remote: "unix:///run/flag.sock", target: "unix:/run/flag.sock", owner: true},
		"both":                     {remote: "net", profile: dir, code: exitUsage, says: "say one"},
		"a token without remote":   {profile: dir, tokenFile: "/flag", code: exitUsage, says: "goes with --remote"},
		"no token":                 {remote: "http://127.0.0.1:80", code: exitUsage, says: "which token?"},
		"no such context":          {remote: "nowhere", code: exitUsage, says: "nor the name of a context"},
		"a context without":        {remote: "signer", code: exitUsage, says: "names no agent"},
		"another machine":          {remote: "http://agent.example.com:80", tokenFile: "/t", code: exitUsage, says: "not on this machine"},
		"https":                    {remote: "https://127.0.0.1:80", tokenFile: "/t", code: exitUsage, says: "is no agent: say unix:PATH or http://"},
		"a path":                   {remote: "http://127.0.0.1:80/x", tokenFile: "/t", code: exitUsage, says: "is no agent: say unix:PATH or http://"},
		"no port":                  {remote: "http://127.0.0.1", tokenFile: "/t", code: exitUsage, says: "is no agent: say unix:PATH or http://"},
		"a name in it":             {remote: "http://ada@127.0.0.1:80", tokenFile: "/t", code: exitUsage, says: "is no agent: say unix:PATH or http://"},
		"no path":                  {remote: "unix:", code: exitUsage, says: "has no path"},
		"too long a path":          {remote: "unix:/" + strings.Repeat("x", 120), code: exitUsage, says: "no socket has a path of more than"},
		"PACT_REMOTE to elsewhere": {env: map[string]string{"PACT_REMOTE": "http://192.0.2.1:80"}, code: exitUsage, says: `PACT_REMOTE "http://192.0.2.1:80" is not on this machine`},
		"a token of no agent":      {profile: dir, env: map[string]string{"PACT_REMOTE_TOKEN_FILE": "/env"}, code: exitUsage, says: "set PACT_REMOTE"},
		"a token set aside":        {profile: dir, env: map[string]string{"PACT_REMOTE_TOKEN_FILE": "/env", "PACT_REMOTE": "http://127.0.0.1:80"}, dir: dir},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			p := &profile{app: &app{}, remote: filled(c.remote), tokenFile: filled(c.tokenFile), dir: c.profile}
			at, err := p.place()
			if c.code != 0 {
				if exitCode(context.Background(), err) != c.code || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want exit %d, %q", err, c.code, c.says)
				}
				return
			}
			if c.dir == "default" {
				if c.dir, err = p.folder(); err != nil {
					t.Fatal(err)
				}
			}
			if err != nil || at.target != c.target || at.tokenFile != c.file || at.dir != c.dir || at.target != "" && at.owner() != c.owner {
				t.Errorf("got %+v, %v", at, err)
			}
		})
	}
}

// An empty value is no way to mean another agent than one says.
func TestRemoteEmpty(t *testing.T) {
	contextsOf(t, "")
	for _, args := range [][]string{
		{"status", "--remote", ""}, {"status", "--remote= "}, {"grants", "--remote", "unix:/x", "--remote-token-file", ""},
	} {
		a, stdout, stderr := testApp("", false)
		if code := a.run(t.Context(), args); code != exitUsage || stdout.Len() > 0 || !strings.Contains(stderr.String(), "it is empty") {
			t.Errorf("%q: exit %d %s%s", args, code, stdout, stderr)
		}
	}
}

// A command that cannot be for the agent that is named says so, and opens nothing.
func TestRemoteRefused(t *testing.T) {
	contextsOf(t, "")
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		code int
		says string
	}{
		"nothing there":    {nil, []string{"status", "--remote", "unix:/nowhere/agent.sock"}, exitFailed, "there is no socket /nowhere/agent.sock: is the agent running?"},
		"a signed receipt": {nil, []string{"receipts", "export", "r-1", "--remote", "unix:/x"}, exitUsage, "works on the profile itself"},
		"tokens":           {map[string]string{"PACT_REMOTE": "unix:/x"}, []string{"agent", "tokens", "list"}, exitUsage, "PACT_REMOTE names a running agent"},
		"development":      {nil, []string{"status", "--development", "--remote", "unix:/x"}, exitUsage, "pactctl agent serve --socket /x --development"},
		"disabled here":    {map[string]string{"PACT_DISABLED": "1"}, []string{"status", "--remote", "unix:/x"}, exitFailed, "PACT_DISABLED is set"},
		"no token file":    {nil, []string{"status", "--remote", "http://127.0.0.1:1", "--remote-token-file", "/nowhere"}, exitFailed, "remote token: "},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			t.Setenv("PACT_PROFILE", filepath.Join(t.TempDir(), "profile"))
			a, stdout, stderr := testApp("", false)
			if code := a.run(t.Context(), c.args); code != c.code || stdout.Len() > 0 || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("exit %d, want %d and %q: %s%s", code, c.code, c.says, stdout, stderr)
			}
			if _, err := os.Stat(os.Getenv("PACT_PROFILE")); err == nil {
				t.Error("a profile was made")
			}
		})
	}
}

// An operator's commands pass a context over that is of an agent alone, and name what
// one lacks that was chosen.
func TestContextOfAnAgent(t *testing.T) {
	contextsOf(t, "current: home\ncontexts: {home: {agent: \"unix:/run/home.sock\"}}\n")
	for _, c := range []struct{ name, says string }{{"", "which signer?"}, {"home", `context "home" names no signer`}} {
		a, _, stderr := testApp("", false)
		args := []string{"keys"}
		if c.name != "" {
			args = append(args, "--context", c.name)
		}
		if code := a.run(t.Context(), args); code != exitUsage || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%q: exit %d %s", c.name, code, stderr)
		}
	}
}
