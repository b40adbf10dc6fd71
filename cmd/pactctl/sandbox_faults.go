package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/sandbox"
)

// newFaultsCmd lists in which ways a sandbox can fail.
func newFaultsCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "faults",
		Short: "List in which ways the sandbox can fail on demand",
		Long: `List in which ways the sandbox can break the protocol or fail on demand, to see
what an agent, or a conformance suite, makes of it.

A SPEC is NAME or NAME=ARG; with *N behind it, it happens the next N times only.
The list names the ARG in capitals, with what it is if left out in brackets.
SECONDS are of the wall clock. (allowed): the protocol allows it. With a lax-
fault the sandbox takes what it should refuse, with a strict- one it refuses
what it should take.

Where a KIND of redirect leads: 301, 302, 303, 307, 308 to another origin, with
that status; http to where there is no TLS; internal to an address of a private
network; many to an answer after twenty; and javascript, loop, no-location,
userinfo.

Say a SPEC at the start (pactctl sandbox --fault), while it runs (pactctl
sandbox faults set), or with --fault-header in a request, for this request:

  ` + sandbox.FaultHeader + `: SPEC`,
		Example: `  pactctl sandbox faults
  pactctl sandbox faults -o json
  pactctl sandbox --fault 'drop-after*1'`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all := sandbox.Faults()
			return a.print(all, func(p *printer) {
				var rows [][]string
				for _, f := range all {
					rows = append(rows, []string{f.Name, f.About})
				}
				p.table([]string{"NAME", "ABOUT"}, rows)
			})
		},
	}
	cmd.AddCommand(newFaultsSetCmd(a))
	return cmd
}

// newFaultsSetCmd sets the faults of a running sandbox.
func newFaultsSetCmd(a *app) *cobra.Command {
	var at, tokenFile string
	cmd := &cobra.Command{
		Use:   "set [SPEC...]",
		Short: "Set the faults of a running sandbox",
		Long: `Give a running sandbox the faults that the SPECs name, at once and in place of
what was on before. Without a SPEC it has none. For SPEC see pactctl sandbox
faults --help.`,
		Example: `  pactctl sandbox --control-file control.token
  pactctl sandbox faults set --token-file control.token 'drop-after*1'
  pactctl sandbox faults set --token-file control.token 'poll-429=9*1' jwks-down
  pactctl sandbox faults set --token-file control.token`,
		Args: cobra.ArbitraryArgs,
	}
	f := cmd.Flags()
	f.StringVar(&at, "url", "http://"+sandboxListen, "`URL` of the sandbox's provider")
	f.StringVar(&tokenFile, "token-file", "", "`FILE` with the control token, from sandbox --control-file (required)")
	cmd.RunE = func(cmd *cobra.Command, specs []string) error {
		control, err := sandboxControl(at, tokenFile)
		if err != nil {
			return err
		}
		active, err := control.SetFaults(cmd.Context(), specs...)
		var nobody *url.Error
		if errors.As(err, &nobody) {
			return fmt.Errorf("%w: say where it is with --url", err)
		}
		if err != nil {
			return err
		}
		return a.print(map[string]any{"active": active}, func(p *printer) {
			if len(active) == 0 {
				p.line("The sandbox has no fault.")
				return
			}
			p.line("The sandbox has these faults:")
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
