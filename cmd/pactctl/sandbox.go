package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/sandbox"
)

// Where a sandbox is found that was told nothing: beside the signer's ports.
const (
	sandboxListen      = "127.0.0.1:8791"
	sandboxBrandListen = "127.0.0.1:8792"
)

// newSandboxCmd runs a business to try agents and signers against.
func newSandboxCmd(a *app) *cobra.Command {
	var cfg sandbox.Config
	var specs []string
	controlFile, quiet := "", false
	cmd := &cobra.Command{
		Use:     "sandbox",
		GroupID: groupTools,
		Short:   "Run a PACT business to try agents and signers against",
		Long: `Run a complete PACT business until it is interrupted: a provider with an airline
that has delegation and a bookshop that has not, their login and consent pages,
and the airline's own domain. Its state is in memory and ends with it.

It is for development: every issuer on this machine may call, and others after
they register. Why a caller was refused is logged to stderr.

With -o json it prints one line when it is ready: {"provider", "audience",
"brands": [{"id", "name", "card"}], "login": {"email", "password"}, "control":
{"url", "token"}}. Password and token are drawn at each start; the token lets
its bearer make the sandbox misbehave while it runs.`,
		Example: `  pactctl sandbox
  pactctl sandbox --misbehave 'drop-after*1' --control-file control.token
  pactctl sandbox --listen 127.0.0.1:0 -o json
  pactctl sandbox --listen :8443 --public-url https://provider.test \
      --brand-listen :8444 --brand-url https://air.test`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", sandboxListen, "`HOST:PORT` of the provider; port 0 picks a free one")
	f.StringVar(&cfg.BrandListen, "brand-listen", "", "`HOST:PORT` of the airline's own domain (default "+sandboxBrandListen+"; with --listen, a free port of the same host)")
	f.StringVar(&cfg.PublicURL, "public-url", "", "`ORIGIN` under which others reach the provider (default http:// and its address)")
	f.StringVar(&cfg.BrandURL, "brand-url", "", "`ORIGIN` of the airline's own domain (default http:// and its address)")
	f.StringVar(&cfg.Audience, "audience", "", "`AUDIENCE` that callers' tokens must have (default the provider's origin and /a2a)")
	f.StringArrayVar(&specs, "misbehave", nil, "`SPEC` of how to misbehave, as in pactctl sandbox misbehave; can be repeated")
	f.StringVar(&controlFile, "control-file", "", "write the control token to `FILE`, of mode 0600")
	f.BoolVarP(&quiet, "quiet", "q", false, "log nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		host, _, err := net.SplitHostPort(cfg.Listen)
		if err != nil {
			return usagef("--listen %q is not HOST:PORT, such as %s", cfg.Listen, sandboxListen)
		}
		switch {
		case f.Changed("brand-listen"):
			if _, _, err := net.SplitHostPort(cfg.BrandListen); err != nil {
				return usagef("--brand-listen %q is not HOST:PORT, such as %s", cfg.BrandListen, sandboxBrandListen)
			}
		case f.Changed("listen"):
			cfg.BrandListen = net.JoinHostPort(host, "0")
		default:
			cfg.BrandListen = sandboxBrandListen
		}
		if everywhere(cfg.Listen) && cfg.PublicURL == "" {
			return usagef("--listen %q names no host: say with --public-url how others reach it", cfg.Listen)
		}
		if everywhere(cfg.BrandListen) && cfg.BrandURL == "" {
			return usagef("the airline's own domain listens on %q, which names no host: say with --brand-url how others reach it", cfg.BrandListen)
		}
		if !quiet {
			cfg.Log = slog.New(slog.NewTextHandler(a.stderr, nil))
		}
		return runSandbox(cmd.Context(), a, cfg, specs, controlFile)
	}
	cmd.AddCommand(newMisbehaveCmd(a))
	return cmd
}

// everywhere: the address is of no host in particular.
func everywhere(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// runSandbox serves until ctx ends, which is no failure.
func runSandbox(ctx context.Context, a *app, cfg sandbox.Config, specs []string, controlFile string) error {
	s, err := sandbox.New(cfg)
	if err != nil {
		return err
	}
	err = s.Misbehave(specs...)
	if err != nil {
		err = usagef("--misbehave: %w", err)
	} else if controlFile != "" {
		err = replaceFile(controlFile, []byte(s.Ready().Control.Token+"\n"))
		if err != nil {
			err = fmt.Errorf("--control-file: %w", err)
		}
	}
	if err == nil {
		s.Start()
		err = announceSandbox(a, s.Ready())
	}
	if err != nil {
		_ = s.Close() // the first error is the one to tell
		return err
	}
	<-ctx.Done()
	return s.Close()
}

// announceSandbox tells where the sandbox is: programs in one line, people with
// what to do next.
func announceSandbox(a *app, r sandbox.Ready) error {
	if a.output == "json" {
		line, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode the result: %w", err)
		}
		_, err = fmt.Fprintf(a.stdout, "%s\n", line)
		return err
	}
	p := a.printer(a.stdout)
	p.line("The sandbox is ready. Ctrl-C stops it.")
	p.line("")
	pairs := []string{"  provider", r.Provider, "  audience", r.Audience}
	for _, b := range r.Brands {
		pairs = append(pairs, "  "+b.Name, b.Card)
	}
	p.fields(append(pairs, "  sign in as", r.Login.Email, "  password", r.Login.Password)...)
	p.line("")
	p.line("Next, with a signer (signer serve) on this machine:")
	p.line("")
	p.line("  pactctl audiences set %s %s", r.Provider, r.Audience)
	p.line("  pactctl enroll --signer http://127.0.0.1:8787")
	if len(r.Brands) > 0 {
		p.line("  pactctl authorize %s --scope %s", r.Brands[0].Card, readFlights)
		p.line("  pactctl send --business %s --message %q", r.Brands[0].Card, askFlights)
	}
	return p.err
}
