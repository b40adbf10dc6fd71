package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"syscall"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/sandbox"
)

// Where a sandbox is found that was told nothing: beside the signer's ports.
const (
	sandboxListen      = sandbox.DefaultListen
	sandboxBrandListen = "127.0.0.1:8792"
)

// newSandboxCmd runs a business to try agents and signers against.
func newSandboxCmd(a *app) *cobra.Command {
	var said sandbox.Config
	var specs []string
	var config, ownerFile, controlFile string
	var check, quiet bool
	cmd := &cobra.Command{
		Use:     "sandbox",
		GroupID: groupTools,
		Short:   "Run a PACT business to try agents and signers against",
		Long: `Run a complete PACT business until it is interrupted: a provider with an airline
that has delegation and a bookshop that has not, their login and consent pages,
and the airline's own domain; or, with --config, the brands, users and issuers
of a file, whose keys docs/sandbox.md tells. What a flag says goes before the
file. Without --state its state is in memory and ends with it.

It is for development: every issuer on this machine may call, and others after
they register, unless a file says otherwise. Why a caller was refused is logged
to stderr.

With -o json it prints one line when it is ready: {"provider", "audience",
"brands": [{"id", "name", "card", "asks": [{"scope", "text"}], "closes"}],
"login": {"email", "password"}, "others": [{"email", "password"}],
"owner": {"url", "password"}, "control": {"url", "token"}}. Passwords that
nobody set and the token are drawn at each start; the token lets its bearer set
the sandbox's faults while it runs.`,
		Example: `  pactctl sandbox
  pactctl sandbox --config sandbox.yaml --state sandbox.db
  pactctl sandbox --config sandbox.yaml --check
  pactctl sandbox --fault 'drop-after*1' --control-file control.token
  pactctl sandbox --listen 127.0.0.1:0 -o json
  pactctl sandbox --listen :8443 --public-url https://provider.test \
      --brand-listen :8444 --brand-url https://air.test`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "`FILE` of the brands, users and issuers, in YAML or JSON")
	f.BoolVar(&check, "check", false, "check the file of --config and the flags, and run nothing")
	f.StringVar(&said.Listen, "listen", "", "`HOST:PORT` of the provider; port 0 picks a free one (default where --public-url is, if on this machine, or "+sandboxListen+")")
	f.StringVar(&said.BrandListen, "brand-listen", "", "`HOST:PORT` of the airline's own domain (default "+sandboxBrandListen+"; with --listen, a free port of the same host)")
	f.StringVar(&said.PublicURL, "public-url", "", "`ORIGIN` under which others reach the provider (default http:// and its address)")
	f.StringVar(&said.BrandURL, "brand-url", "", "`ORIGIN` of the airline's own domain (default http:// and its address)")
	f.StringVar(&said.Audience, "audience", "", "`AUDIENCE` that callers' tokens must have (default the provider's origin and /a2a)")
	f.StringVar(&said.State, "state", "", "keep the state in `FILE`, an SQLite database")
	f.StringVar(&said.OwnerListen, "owner-listen", "", "`HOST:PORT`, on loopback, of the owner's page (default the provider's, if --public-url is http on loopback, else a free port)")
	f.StringVar(&ownerFile, "owner-password-file", "", "`FILE` with the password of the owner's page (default drawn at random)")
	f.StringArrayVar(&specs, "fault", nil, "`NAME[=ARG]` of a fault, as pactctl sandbox faults lists them; can be repeated")
	f.BoolVar(&said.FaultHeader, "fault-header", false, "let a request name its own faults: "+sandbox.FaultHeader+": NAME[=ARG]")
	f.StringVar(&controlFile, "control-file", "", "write the control token to `FILE`, of mode 0600")
	f.BoolVarP(&quiet, "quiet", "q", false, "log nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var log *slog.Logger
		if !quiet {
			log = slog.New(slog.NewTextHandler(a.stderr, nil))
		}
		cfg := sandbox.Config{Log: log}
		switch {
		case config != "":
			load := sandbox.LoadConfig
			if check && !f.Changed("state") {
				load = sandbox.CheckConfig
			}
			var err error
			if cfg, err = load(config, log); err != nil {
				return usagef("--config: %w", err)
			}
		case check:
			return usagef("--check is for a file: name it with --config")
		}
		if err := overrideSandbox(&cfg, said, f.Changed); err != nil {
			return err
		}
		if ownerFile != "" {
			var err error
			if cfg.OwnerPassword, err = sandbox.ReadPassword(ownerFile); err != nil {
				return usagef("--owner-password-file: %w", err)
			}
		}
		if f.Changed("fault") {
			cfg.Faults = nil
		}
		if check {
			if err := checkSandbox(cfg, specs); err != nil {
				return err
			}
			return a.print(object{{"file", config}, {"sound", true}}, func(p *printer) { p.line("%s is sound.", config) })
		}
		return runSandbox(cmd.Context(), a, cfg, specs, controlFile)
	}
	cmd.AddCommand(newFaultsCmd(a))
	return cmd
}

// overrideSandbox puts what flags say over cfg, and decides where it listens.
func overrideSandbox(cfg *sandbox.Config, said sandbox.Config, changed func(flag string) bool) error {
	for flag, value := range map[string][2]*string{
		"listen": {&cfg.Listen, &said.Listen}, "brand-listen": {&cfg.BrandListen, &said.BrandListen},
		"public-url": {&cfg.PublicURL, &said.PublicURL}, "brand-url": {&cfg.BrandURL, &said.BrandURL},
		"audience": {&cfg.Audience, &said.Audience}, "state": {&cfg.State, &said.State},
		"owner-listen": {&cfg.OwnerListen, &said.OwnerListen},
	} {
		if changed(flag) {
			*value[0] = *value[1]
		}
	}
	if changed("fault-header") {
		cfg.FaultHeader = said.FaultHeader
	}
	cfg.OneOrigin = cfg.OneOrigin && cfg.BrandListen == "" && cfg.BrandURL == ""

	cfg.Listen = cmp.Or(cfg.Listen, listenOf(cfg.PublicURL), sandboxListen)
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return usagef("--listen %q is not HOST:PORT, such as %s", cfg.Listen, sandboxListen)
	}
	if everywhere(cfg.Listen) && cfg.PublicURL == "" {
		return usagef("--listen %q names no host: say with --public-url how others reach it", cfg.Listen)
	}
	if cfg.OneOrigin {
		return nil
	}
	beside := sandboxBrandListen
	if changed("listen") {
		beside = net.JoinHostPort(host, "0")
	}
	cfg.BrandListen = cmp.Or(cfg.BrandListen, listenOf(cfg.BrandURL), beside)
	if _, _, err := net.SplitHostPort(cfg.BrandListen); err != nil {
		return usagef("--brand-listen %q is not HOST:PORT, such as %s", cfg.BrandListen, sandboxBrandListen)
	}
	if everywhere(cfg.BrandListen) && cfg.BrandURL == "" {
		return usagef("the airline's own domain listens on %q, which names no host: say with --brand-url how others reach it", cfg.BrandListen)
	}
	return nil
}

// listenOf is the address of an origin that is served here, without anything between:
// http on this machine, which New holds it to. Others are "".
func listenOf(origin string) string {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80"))
}

// everywhere: the address is of no host in particular.
func everywhere(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// checkSandbox makes a sandbox of what file and flags say, but on ports of its own and
// without the state, and serves nothing.
func checkSandbox(cfg sandbox.Config, specs []string) error {
	if cfg.State != "" {
		if err := sandbox.CheckState(cfg.State); err != nil {
			return usagef("--state: %w", err)
		}
	}
	cfg.PublicURL = cmp.Or(cfg.PublicURL, originAt(cfg.Listen))
	if !cfg.OneOrigin {
		cfg.BrandURL = cmp.Or(cfg.BrandURL, originAt(cfg.BrandListen))
	}
	if host, _, err := net.SplitHostPort(cfg.OwnerListen); err == nil {
		cfg.OwnerListen = net.JoinHostPort(host, "0")
	}
	cfg.Listen, cfg.BrandListen, cfg.State = "", "", ""
	cfg.PasswordMemory = 64 // KiB: nobody signs in
	s, err := sandbox.New(cfg)
	if err != nil {
		return usagef("%w", err)
	}
	defer func() { _ = s.Close() }() // it has served nothing
	if len(specs) > 0 {
		err = s.SetFaults(specs...)
	}
	if err != nil {
		return usagef("--fault: %w", err)
	}
	return nil
}

// originAt is the origin of who listens at an address; "" if the port is a free one.
func originAt(address string) string {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "0" {
		return ""
	}
	return "http://" + address
}

// runSandbox serves until ctx ends, which is no failure.
func runSandbox(ctx context.Context, a *app, cfg sandbox.Config, specs []string, controlFile string) error {
	s, err := sandbox.New(cfg)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: end what listens there, or say another with --listen or --brand-listen, or in the file", err)
	}
	if err != nil {
		return err
	}
	if len(specs) > 0 {
		err = s.SetFaults(specs...)
	}
	if err != nil {
		err = usagef("--fault: %w", err)
	} else if controlFile != "" {
		err = replaceFile(controlFile, []byte(s.Ready().Control.Token+"\n"))
		if err != nil {
			err = fmt.Errorf("--control-file: %w", err)
		}
	}
	if err == nil {
		s.Start()
		err = announceSandbox(a, s.Ready(), len(cfg.Accounts) == 0, cfg.OwnerPassword == "")
	}
	if err != nil {
		_ = s.Close() // the first error is the one to tell
		return err
	}
	<-ctx.Done()
	return s.Close()
}

// announceSandbox tells where the sandbox is: programs in one line, people with
// what to do next, and of the passwords only those that it drew itself.
func announceSandbox(a *app, r sandbox.Ready, drewLogins, drewOwner bool) error {
	if a.output == "json" {
		line, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode the result: %w", err)
		}
		_, err = fmt.Fprintf(a.stdout, "%s\n", line)
		return err
	}
	password := func(drew bool, password string) string {
		if drew {
			return password
		}
		return "as configured"
	}
	p := a.printer(a.stdout)
	p.line("The sandbox is ready. Ctrl-C stops it.")
	p.line("")
	pairs := []string{"  provider", r.Provider, "  audience", r.Audience}
	for _, b := range r.Brands {
		pairs = append(pairs, "  "+b.Name, b.Card)
	}
	pairs = append(pairs, "  sign in as", r.Login.Email, "  password", password(drewLogins, r.Login.Password))
	for _, other := range r.Others {
		pairs = append(pairs, "  or as", other.Email, "  password", password(drewLogins, other.Password))
	}
	pairs = append(pairs, "  owner's page", r.Owner.URL, "  password", password(drewOwner, r.Owner.Password))
	p.fields(pairs...)
	p.line("")
	p.line("Next, with a signer (signer serve) on this machine:")
	p.line("")
	p.line("  pactctl audiences set %s %s", r.Provider, r.Audience)
	p.line("  pactctl enroll --signer http://127.0.0.1:8787")
	if len(r.Brands) == 0 {
		return p.err
	}
	first, say := r.Brands[0], "Hello."
	if len(first.Asks) > 0 {
		say = first.Asks[0].Text
		p.line("  pactctl authorize %s --scope %s", first.Card, first.Asks[0].Scope)
	}
	p.line("  pactctl send --business %s --message %q", first.Card, say)
	return p.err
}
