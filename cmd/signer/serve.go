package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
)

func (a *app) serveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the signer",
		Long: `Runs the signer until it is told to stop (SIGTERM, SIGINT): then it is not ready
any more, lets requests in flight finish, and exits. A second signal exits at
once.

Without arguments it runs embedded: on loopback, with keys and records in a data
folder that it makes itself, and with one issuer whose URL is the public
listener's. Everything can be set by a YAML file, by PACT_SIGNER_… variables and
by flags; see signer config keys.

With store.kind redis any number of replicas share the records; signer init
makes such a deployment once. A replica waits, not ready, for Vault, Redis and
init.

With -o json it prints one line on standard output when it is ready:
{"public", "grpc", "admin", "ops", "issuers", "adminTokenFile"}. Logs go to
standard error.`,
		Example: `  signer serve
  signer serve --data ./state --public 127.0.0.1:0 -o json
  signer serve --config /etc/pact/signer.yaml --log-level debug
  signer serve --set issuers.0.tokenTTL=60s --set issuers.0.enrolment=token`,
		Args: cobra.NoArgs,
	}
	flags := a.configFlags(cmd)
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := flags.load()
		if err != nil {
			return err
		}
		if err := cfg.CheckFiles(false); err != nil {
			return usageError{err}
		}
		return a.serve(cmd.Context(), cfg, *output)
	}
	return cmd
}

func (a *app) serve(ctx context.Context, cfg config.Config, output outputFormat) error {
	log := a.logger(cfg.Log)
	s, err := server.New(cfg, server.Options{Version: version, Log: log})
	if err != nil {
		return usageError{err}
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	defer onSignals(func(sig os.Signal) {
		log.Info("told to stop", "signal", sig.String())
		stop()
	})()
	if err := s.Start(running); err != nil {
		if running.Err() != nil {
			return nil // told to stop before it had begun
		}
		return err
	}
	var announced error
	for ready := s.Ready(); ; {
		select {
		case <-ready:
			ready = nil // once
			if announced = a.announce(s.Info(), output); announced == nil {
				continue
			}
		case <-running.Done():
		case <-s.Failed():
		}
		break
	}
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.DrainTimeout)
	defer cancel()
	return errors.Join(announced, s.Shutdown(draining))
}

// onSignals calls stop at the first SIGINT or SIGTERM and ends the process at
// the second. The returned function undoes that.
func onSignals(stop func(os.Signal)) (undo func()) {
	signals, done := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for first := true; ; first = false {
			select {
			case sig := <-signals:
				if !first {
					os.Exit(exitFailure)
				}
				stop(sig)
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// logger logs to standard error.
func (a *app) logger(c config.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo // validated before
	}
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "text" || c.Format == "auto" && a.stderrTerminal {
		return slog.New(slog.NewTextHandler(a.stderr, options))
	}
	return slog.New(slog.NewJSONHandler(a.stderr, options))
}

// announce tells that the signer is ready: to a program in one line, to a
// person with what to do next, to nobody otherwise.
func (a *app) announce(info server.Info, output outputFormat) error {
	if output == "json" {
		line, err := json.Marshal(info)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.stdout, "%s\n", line)
		return err
	}
	if !a.stdoutTerminal {
		return nil
	}
	return printNotice(a.stdout, info)
}

func printNotice(out io.Writer, info server.Info) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "The signer is ready.\n\n")
	for _, issuer := range info.Issuers {
		fmt.Fprintf(w, "  Issuer\t%s\n", issuer)
		fmt.Fprintf(w, "  Key set\t%s/.well-known/jwks.json\n", issuer)
	}
	fmt.Fprintf(w, "  Public\t%s\n", info.Public)
	fmt.Fprintf(w, "  gRPC\t%s\n", info.GRPC)
	fmt.Fprintf(w, "  Admin\t%s\n", info.Admin)
	fmt.Fprintf(w, "  Metrics, health\t%s\n", info.Ops)
	tokenFile := info.AdminTokenFile
	if tokenFile == "" {
		tokenFile = "FILE"
	} else {
		fmt.Fprintf(w, "  Admin token\t%s\n", tokenFile)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, note := range info.Notes {
		fmt.Fprintf(out, "\n  Note: %s\n", note)
	}
	_, err := fmt.Fprintf(out, `
Next:
  pactctl context set local --server %s --token-file %s
  pactctl audiences set https://provider.example AUDIENCE
  pactctl credentials create --name laptop
`, info.Admin, tokenFile)
	return err
}
