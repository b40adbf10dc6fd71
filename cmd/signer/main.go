// Command signer mints PA-JWTs for enrolled personal agents, publishes the
// issuer's key set, and stops at once when the kill switch is thrown.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pactsigner/pactsigner/internal/build"
)

// version is what `signer version` prints and the metrics and the fleet tell.
var version = build.Version()

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2 // wrong usage or configuration
)

func main() {
	a := &app{stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ()}
	a.stdoutTerminal = term.IsTerminal(int(os.Stdout.Fd()))
	a.stderrTerminal = term.IsTerminal(int(os.Stderr.Fd()))
	os.Exit(a.run(context.Background(), os.Args[1:]))
}

// app is the world that the commands work in, so that a test can stand in for
// it.
type app struct {
	stdout, stderr                 io.Writer
	stdoutTerminal, stderrTerminal bool
	environ                        []string

	started bool // a command's own code has begun; before that, errors are of usage
}

// run runs one command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCmd()
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(a.stderr, "signer: %v\n", err)
	var usage usageError
	if !a.started || errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

// usageError marks an error that the caller mends by calling otherwise.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func (a *app) rootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "signer",
		Short: "Sign PA-JWTs for personal agents",
		Long: `signer mints short-lived PA-JWTs for enrolled devices and credentials, publishes
the issuer's key set across rotations, and stops at once when the kill switch is
thrown. Operate it with pactctl.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.`,
		Example: `  signer serve
  signer serve --config /etc/pact/signer.yaml
  signer config check --config /etc/pact/signer.yaml`,
		Version:           version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRun:  func(*cobra.Command, []string) { a.started = true },
		Args:              subcommandOnly,
		RunE:              showHelp,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", ".FlagUsagesWrapped 80 "))
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(a.serveCmd(), a.initCmd(), a.retireIssuerCmd(), a.configCmd(), a.tokenCmd(), a.vaultCmd(), a.redisCmd(), a.versionCmd())
	return root
}

// subcommandOnly refuses a word that is no subcommand.
func subcommandOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unknown command %q; see %s --help", args[0], cmd.CommandPath())
	}
	return nil
}

func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  signer version",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.stdout, version)
			return err
		},
	}
}

// outputFlag adds -o, and returns where it ends up.
func outputFlag(cmd *cobra.Command) *outputFormat {
	format := outputFormat("text")
	cmd.Flags().VarP(&format, "output", "o", "`format` of the result: text or json")
	return &format
}

// outputFormat is text or json.
type outputFormat string

func (f *outputFormat) String() string { return string(*f) }
func (f *outputFormat) Type() string   { return "string" }

func (f *outputFormat) Set(s string) error {
	if s != "text" && s != "json" {
		return errors.New("say text or json")
	}
	*f = outputFormat(s)
	return nil
}
