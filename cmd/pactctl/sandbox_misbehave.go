package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/sandbox"
)

// newMisbehaveCmd makes a running sandbox break the protocol on demand.
func newMisbehaveCmd(a *app) *cobra.Command {
	var at, tokenFile string
	var list bool
	cmd := &cobra.Command{
		Use:   "misbehave [SPEC...]",
		Short: "Make a running sandbox misbehave, to see what an agent does",
		Long: `Make a running sandbox misbehave as the SPECs say, at once and in place of what
was on before. Without a SPEC it behaves again.

A SPEC is NAME or NAME=VALUE; with *N behind it, it happens the next N times
only. SECONDS are of the wall clock. --list shows the names.`,
		Example: `  pactctl sandbox misbehave --list
  pactctl sandbox --control-file control.token
  pactctl sandbox misbehave --token-file control.token 'drop-after*1'
  pactctl sandbox misbehave --token-file control.token 'poll-429=90*1' jwks-down
  pactctl sandbox misbehave --token-file control.token`,
		Args: cobra.ArbitraryArgs,
	}
	f := cmd.Flags()
	f.StringVar(&at, "url", "http://"+sandboxListen, "`URL` of the sandbox's provider")
	f.StringVar(&tokenFile, "token-file", "", "`FILE` with the control token, from sandbox --control-file (required)")
	f.BoolVar(&list, "list", false, "list what can be said, and do nothing")
	cmd.RunE = func(cmd *cobra.Command, specs []string) error {
		if list {
			if len(specs) > 0 {
				return usagef("--list does nothing; leave the SPECs out")
			}
			all := sandbox.Misbehaviours()
			return a.print(map[string]any{"switches": all}, func(p *printer) { printMisbehaviours(p, all) })
		}
		control, err := sandboxControl(at, tokenFile)
		if err != nil {
			return err
		}
		active, err := control.Misbehave(cmd.Context(), specs...)
		var nobody *url.Error
		if errors.As(err, &nobody) {
			return fmt.Errorf("%w: say where it is with --url", err)
		}
		if err != nil {
			return err
		}
		return a.print(map[string]any{"active": active}, func(p *printer) {
			if len(active) == 0 {
				p.line("The sandbox behaves.")
				return
			}
			p.line("The sandbox misbehaves:")
			for _, spec := range active {
				p.line("  %s", spec)
			}
		})
	}
	return cmd
}

// sandboxControl is what the flags name. The token does not leave in the clear.
func sandboxControl(at, tokenFile string) (sandbox.Control, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		strings.Trim(u.Path, "/") != "" && u.Path != sandbox.ControlPath {
		return sandbox.Control{}, usagef("--url %q is not a URL like http://%s", at, sandboxListen)
	}
	if u.Scheme == "http" && !loopback(u.Hostname()) {
		return sandbox.Control{}, usagef("--url %q would send the control token in the clear: use https", at)
	}
	if tokenFile == "" {
		return sandbox.Control{}, usagef("which control token? Say --token-file FILE, with the file that pactctl sandbox --control-file wrote")
	}
	token, err := readToken("control token", tokenFile)
	if err != nil {
		return sandbox.Control{}, err
	}
	u.Path = sandbox.ControlPath
	return sandbox.Control{URL: u.String(), Token: token}, nil
}

func printMisbehaviours(p *printer, all []sandbox.Misbehaviour) {
	var rows [][]string
	for _, m := range all {
		name := m.Name
		switch {
		case strings.HasPrefix(m.Value, "["):
			name += "[=" + m.Value[1:]
		case m.Value != "":
			name += "=" + m.Value
		}
		rows = append(rows, []string{name, m.Does})
	}
	p.table([]string{"SPEC", "WHAT HAPPENS"}, rows)
}
