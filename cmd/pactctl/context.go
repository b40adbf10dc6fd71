package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// contextView is a context as --output json shows it.
type contextView struct {
	Name      string `json:"name"`
	Current   bool   `json:"current"`
	Server    string `json:"server"`
	TokenFile string `json:"tokenFile"`
	Issuer    string `json:"issuer,omitempty"`
	CAFile    string `json:"caFile,omitempty"`
	Insecure  bool   `json:"insecure"`

	Agent          string `json:"agent,omitempty"`
	AgentTokenFile string `json:"agentTokenFile,omitempty"`
}

func (c *contexts) view(name string) contextView {
	s := c.Contexts[name]
	return contextView{name, name == c.Current, s.Server, s.TokenFile, s.Issuer, s.CAFile, s.Insecure, s.Agent, s.AgentTokenFile}
}

// newContextCmd remembers signers and running agents by name.
func newContextCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("context", "Remember signers and agents by name, and choose one",
		newContextListCmd(a), newContextUseCmd(a), newContextSetCmd(a), newContextShowCmd(a), newContextRemoveCmd(a))
	cmd.GroupID = groupOperator
	cmd.Long = `Remember signers and running agents by name, and choose the ones that commands
talk to.

A context holds the URL of a signer's admin listener, the file that holds an
admin token, and the issuer to work on if the signer has several; or where a
personal agent runs, and the file that holds a token for it; or both. The file
is pactctl/contexts.yaml in the XDG configuration folder; it holds no secrets.

What an operator command talks to is decided in this order: --server and
--token-file; --context; PACT_SERVER and PACT_TOKEN_FILE; PACT_CONTEXT; the
current context; an embedded signer on this machine, with its default data
folder. What a personal agent's command works with: --remote; --profile;
PACT_REMOTE; PACT_PROFILE; the agent of PACT_CONTEXT or else of the current
context; the default profile. A current context that names no signer, and any
that names no agent, is passed over. The token for a running agent is that of
--remote-token-file, else of the context that names it, else of
PACT_REMOTE_TOKEN_FILE. Naming another agent in a context forgets the token file
of the one before; with a socket, say --agent-token-file too, '' for none.`
	cmd.Example = `  pactctl context set prod --server https://signer.example.com:8789 \
      --token-file ~/prod.token
  pactctl context use prod
  pactctl context set home --agent unix:/run/user/1000/pact.sock
  pactctl context list`
	return cmd
}

func newContextListCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the contexts",
		Example: `  pactctl context list
  pactctl context list -o json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := loadContexts()
			if err != nil {
				return err
			}
			views := []contextView{}
			var rows [][]string
			head, agents := []string{"CURRENT", "NAME", "SERVER", "ISSUER"}, false
			for _, name := range c.names() {
				v := c.view(name)
				views = append(views, v)
				mark := ""
				if v.Current {
					mark = "*"
				}
				rows, agents = append(rows, []string{mark, v.Name, v.Server, v.Issuer, v.Agent}), agents || v.Agent != ""
			}
			if agents {
				head = append(head, "AGENT")
			}
			return a.print(map[string]any{"contexts": views}, func(p *printer) {
				if len(rows) == 0 {
					p.line("No contexts. Make one with: pactctl context set NAME --server URL --token-file FILE")
					return
				}
				for i := range rows {
					rows[i] = rows[i][:len(head)]
				}
				p.table(head, rows)
			})
		},
	}
}

func newContextUseCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "use NAME",
		Short:   "Make a context the current one",
		Example: `  pactctl context use prod`,
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := loadContexts()
			if err != nil {
				return err
			}
			if _, err := c.get(args[0]); err != nil {
				return err
			}
			c.Current = args[0]
			if err := c.save(); err != nil {
				return err
			}
			return a.print(c.view(args[0]), func(p *printer) { p.line("Now using context %s.", args[0]) })
		},
	}
}

func newContextSetCmd(a *app) *cobra.Command {
	var set signerContext
	cmd := &cobra.Command{
		Use:     "set NAME",
		Aliases: []string{"add"},
		Short:   "Make a context, or change what its flags name",
		Long:    "Make a context, or change what its flags name. The first context becomes the\ncurrent one.",
		Example: `  pactctl context set prod --server https://signer.example.com:8789 \
      --token-file ~/prod.token
  pactctl context set prod --issuer https://pa.example.com
  pactctl context set home --agent http://127.0.0.1:8795 \
      --agent-token-file ~/agent.token`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadContexts()
			if err != nil {
				return err
			}
			name := args[0]
			s := c.Contexts[name]
			changed := cmd.Flags().Changed
			if changed("server") {
				s.Server = set.Server
			}
			if changed("token-file") {
				s.TokenFile = set.TokenFile
			}
			if changed("issuer") {
				s.Issuer = set.Issuer
			}
			if changed("ca-file") {
				s.CAFile = set.CAFile
			}
			if changed("insecure-http") {
				s.Insecure = set.Insecure
			}
			if changed("agent") {
				if err := s.name(set.Agent, changed("agent-token-file")); err != nil {
					return err
				}
			}
			if changed("agent-token-file") {
				s.AgentTokenFile = set.AgentTokenFile
			}
			if err := s.check(); err != nil {
				return err
			}
			for _, file := range []*string{&s.TokenFile, &s.CAFile, &s.AgentTokenFile} {
				if *file == "" {
					continue
				}
				if *file, err = filepath.Abs(*file); err != nil {
					return err
				}
			}
			c.Contexts[name] = s
			if c.Current == "" {
				c.Current = name
			}
			if err := c.save(); err != nil {
				return err
			}
			return a.print(c.view(name), func(p *printer) {
				p.line("Context %s is set.", name)
				if c.Current != name {
					p.line("Choose it with: pactctl context use %s", shellQuoted(name))
				}
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&set.Server, "server", "", "`URL` of the admin listener")
	f.StringVar(&set.TokenFile, "token-file", "", "`FILE` that holds an admin token")
	f.StringVar(&set.Issuer, "issuer", "", "issuer `URL` to work on, if the signer has several")
	f.StringVar(&set.CAFile, "ca-file", "", "`FILE` of PEM certificates to trust instead of the system's")
	f.BoolVar(&set.Insecure, "insecure-http", false, "allow plain http to a host that is not this machine")
	f.StringVar(&set.Agent, "agent", "", "`TARGET` of a running agent: unix:PATH or http://127.0.0.1:PORT")
	f.StringVar(&set.AgentTokenFile, "agent-token-file", "", "`FILE` that holds a token of that agent")
	return cmd
}

// name sets the agent, empty for none, and forgets the token of another. On a socket that
// would leave the context the owner's whole authority, which must be said: token reports
// whether a token, or none, is named too.
func (s *signerContext) name(target string, token bool) (err error) {
	if target != "" {
		if target, err = parseAgent("--agent", target); err != nil {
			return err
		}
	}
	if before, _ := parseAgent("--agent", s.Agent); before != target && s.AgentTokenFile != "" {
		if strings.HasPrefix(target, unixTarget) && !token {
			return usagef("the context's token is for %s: say --agent-token-file FILE for %s, or --agent-token-file '' to act as its owner", s.Agent, target)
		}
		s.AgentTokenFile = ""
	}
	s.Agent = target
	return nil
}

// check refuses a context that could not be used, and puts its agent's target into its
// plain form.
func (s *signerContext) check() (err error) {
	signer := s.Server != "" || s.TokenFile != "" || s.Issuer != "" || s.CAFile != "" || s.Insecure
	if (signer || s.Agent == "" && s.AgentTokenFile == "") && (s.Server == "" || s.TokenFile == "") {
		return usagef("a context needs --server URL and --token-file FILE, or --agent TARGET")
	}
	if signer {
		if _, err := parseServer(s.Server, s.Insecure); err != nil {
			return err
		}
	}
	switch {
	case s.Agent == "" && s.AgentTokenFile == "":
		return nil
	case s.Agent == "":
		return usagef("--agent-token-file goes with --agent TARGET")
	}
	if s.Agent, err = parseAgent("--agent", s.Agent); err != nil {
		return err
	}
	if s.AgentTokenFile == "" && !strings.HasPrefix(s.Agent, unixTarget) {
		return usagef("--agent %s needs --agent-token-file FILE; make a token with: pactctl agent tokens create", s.Agent)
	}
	return nil
}

func newContextShowCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show [NAME]",
		Aliases: []string{"current"},
		Short:   "Show a context, by default the current one",
		Example: `  pactctl context show
  pactctl context show prod -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := loadContexts()
			if err != nil {
				return err
			}
			name := c.Current
			if len(args) > 0 {
				name = args[0]
			}
			if name == "" {
				return actf("no context is current: choose one with pactctl context use NAME")
			}
			if _, err := c.get(name); err != nil {
				return err
			}
			v := c.view(name)
			return a.print(v, func(p *printer) {
				p.fields("name", v.Name, "server", v.Server, "token file", v.TokenFile, "issuer", v.Issuer, "CA file", v.CAFile,
					"agent", v.Agent, "its token", v.AgentTokenFile)
			})
		},
	}
}

func newContextRemoveCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME",
		Aliases: []string{"rm", "delete"},
		Short:   "Forget a context; its token file stays",
		Example: `  pactctl context remove old`,
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := loadContexts()
			if err != nil {
				return err
			}
			if _, err := c.get(args[0]); err != nil {
				return err
			}
			v := c.view(args[0])
			delete(c.Contexts, args[0])
			if c.Current == args[0] {
				c.Current = ""
			}
			if err := c.save(); err != nil {
				return err
			}
			return a.print(v, func(p *printer) { p.line("Context %s is forgotten.", args[0]) })
		},
	}
}
