package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pactsigner/pactsigner/internal/build"
	"github.com/pactsigner/pactsigner/sandbox"
)

// version is what `pactctl version` prints and signers see.
var version = build.Version()

// app is what every command works with. Commands read and write nothing but
// through it, so that a test can stand in for the terminal and the clock.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	now            func() time.Time
	zone           *time.Location
	// person: somebody can be asked. True if stdin and stderr are terminals.
	person bool
	// width is the terminal's width, or 0 if stdout is not a terminal: then
	// nothing is ever shortened.
	width int
	// height is the height of the terminal on stderr, or 0 if that is none.
	height int
	// redraw is the width of the terminal on stderr, or 0 if that is none, or one whose
	// last line cannot be drawn over.
	redraw int

	output string // --output: text or json
	yes    bool   // --yes
	noAsk  bool   // --exit-on-input

	lines   *lineReader // of answers(), once somebody was asked
	hints   hints       // of the command that runs
	started bool        // a command's own code has begun; before that, errors are of usage
}

// newApp returns the app of the real process.
func newApp() *app {
	a := &app{
		stdin:  os.Stdin,
		stdout: os.Stdout,
		stderr: os.Stderr,
		now:    time.Now,
		zone:   time.Local,
		person: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd())),
	}
	if w, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		a.width = w
	}
	if _, h, err := term.GetSize(int(os.Stderr.Fd())); err == nil {
		a.height = h
	}
	a.redraw = redrawable(os.Stderr)
	return a
}

// The groups of `pactctl --help`. A command names its own with GroupID.
const (
	groupAgent    = "agent"
	groupOperator = "operator"
	groupTools    = "tools"
)

// newRootCmd builds the whole tree.
func newRootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "pactctl",
		Short: "Operate a PACT signer, and act as a personal agent",
		Long: `pactctl operates a PACT signer, and is a complete PACT personal agent.

Results go to stdout, all else to stderr. With -o json an operator command
prints the answer of the admin API (admin.proto): names in camel case, whole
numbers as numbers, times in RFC 3339 UTC, durations in seconds ("120s"), an
unset time left out. Lists are whole. "credentials create" and "rotate" print
the credential's members and "credential"; "enrollment-tokens create" the
token's and "token"; "kill" also "barrier".

Commands that stop, end or replace something for good ask first. Off a terminal
they do nothing and end with exit code 3 unless --yes is given. What can be done
again or undone does not ask: providers remove, policy off, context remove,
authorization cancel and approvals deny.

Exit codes: 0 done, 1 failed or declined (you were asked and did not say y), 2
wrong usage, 3 a person must act, 130 interrupted. A second Ctrl-C does not wait
for what the first one is ending.`,
		Example: `  pactctl fleet status
  pactctl credentials create --name laptop
  pactctl kill --all --reason "drill"`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.hints = hintsFor(cmd)
			if a.output != "text" && a.output != "json" {
				return usagef("--output %q is unknown: say text or json", a.output)
			}
			a.person = a.person && !a.noAsk // CL-3
			return nil
		},
	}
	root.SetUsageTemplate(strings.NewReplacer(
		".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", columns), "for more information about a command.", "for more about a command.",
	).Replace(root.UsageTemplate()))
	root.SetVersionTemplate("pactctl {{.Version}}\n")
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "text", "`format` of the result: text or json")
	root.PersistentFlags().BoolVarP(&a.yes, "yes", "y", false, "answer yes instead of asking")
	root.PersistentFlags().BoolVar(&a.noAsk, "exit-on-input", false, "end with exit code 3 where a person would be asked, or a link shown")
	root.AddGroup(
		&cobra.Group{ID: groupAgent, Title: "Personal agent:"},
		&cobra.Group{ID: groupOperator, Title: "Operate a signer:"},
		&cobra.Group{ID: groupTools, Title: "Tools:"},
	)
	root.SetHelpCommandGroupID(groupTools)
	root.SetCompletionCommandGroupID(groupTools)

	root.AddCommand(
		newEnrollCmd(a),
		newStatusCmd(a),
		newProvidersCmd(a),
		newDiscoverCmd(a),
		newAuthorizeCmd(a),
		newAuthorizationCmd(a),
		newSendCmd(a),
		newChatCmd(a),
		newReconcileCmd(a),
		newApprovalsCmd(a),
		newReviewCmd(a),
		newConversationsCmd(a),
		newGrantsCmd(a),
		newDisconnectCmd(a),
		newReceiptsCmd(a),
		newPolicyCmd(a),
		newDoctorCmd(a),
		newAgentCmd(a),
		newMCPCmd(a),
		newCheckCmd(a),
		newContextCmd(a),
		newFleetCmd(a),
		newTopCmd(a),
		newRotateCmd(a),
		newKeysCmd(a),
		newJWKSCmd(a),
		newKillCmd(a),
		newResumeCmd(a),
		newDevicesCmd(a),
		newCredentialsCmd(a),
		newAudiencesCmd(a),
		newRegisterCmd(a),
		newEnrollmentTokensCmd(a),
		newAuditCmd(a),
		newStateCmd(a),
		newProbeCmd(a),
		newSandboxCmd(a),
		newConformanceCmd(a),
		newDemoCmd(a),
		newVersionCmd(a),
	)
	return root
}

// newVersionCmd tells the version.
func newVersionCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		GroupID: groupTools,
		Short:   "Print the version",
		Example: "  pactctl version",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.print(object{{"version", version}}, func(p *printer) { p.line("%s", version) })
		},
	}
}

// newGroupCmd returns a command that only holds others: alone it prints its
// help, and with an unknown word it is an error.
func newGroupCmd(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  unknownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subs...)
	return cmd
}

// unknownCommand refuses arguments where only a command can stand.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		hint = fmt.Sprintf("; did you mean %s?", strings.Join(s, " or "))
	}
	return usagef("unknown command %q%s", args[0], hint)
}

// run executes a command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := newRootCmd(a)
	root.SetArgs(idsLast(root, args))
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	a.markStart(root)

	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var coded *codedError
	if !a.started && !errors.As(err, &coded) {
		err = usagef("%w", err) // cobra's own errors come before the command begins
	}
	var refusal *refusedError
	if errors.As(err, &refusal) {
		refusal.hint(a.hints)
	}
	if a.output == "json" && refusal != nil {
		if failed := a.print(refusal.view, nil); failed != nil {
			err = failed
		}
	}
	code := exitCode(ctx, err)
	var file *sandbox.FileError
	if errors.As(err, &file) { // what is to be mended is not the command line
		for _, mistake := range file.Mistakes {
			fmt.Fprintf(a.stderr, "pactctl: %s\n", withoutSecrets(oneLine(mistake), args))
		}
		return code
	}
	hint := ""
	if code == exitUsage {
		hint = fmt.Sprintf(" (see %s --help)", cmd.CommandPath())
	}
	if code == exitInterrupted && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	if errors.Is(err, errSaid) {
		return code
	}
	text := err.Error()
	var told *toldError
	if !errors.As(err, &told) {
		text = a.hints.text(text)
	}
	fmt.Fprintf(a.stderr, "pactctl: %s%s\n", withoutSecrets(oneLine(text), args), hint)
	return code
}

// thumbprintArg is a key's thumbprint that begins like a flag, as one in 64 does.
var thumbprintArg = regexp.MustCompile(`^-[A-Za-z0-9_-]{42}$`)

// idsLast moves thumbprints that would pass for flags behind a "--", so that nobody
// has to know of it. Values of flags stay where they are.
func idsLast(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil {
		return args
	}
	var first, ids []string
	for i, arg := range args {
		if arg == "--" {
			return append(append(append(first, "--"), ids...), args[i+1:]...)
		}
		value := false // of the flag before it
		if i > 0 && strings.HasPrefix(args[i-1], "--") {
			flag := cmd.Flag(args[i-1][2:])
			value = flag != nil && flag.NoOptDefVal == ""
		}
		if thumbprintArg.MatchString(arg) && !value {
			ids = append(ids, arg)
		} else {
			first = append(first, arg)
		}
	}
	if len(ids) == 0 {
		return args
	}
	return append(append(first, "--"), ids...)
}

// markStart makes every command record that its own code has begun, and name what is
// missing of its arguments.
func (a *app) markStart(cmd *cobra.Command) {
	if args := cmd.Args; args != nil {
		cmd.Args = func(cmd *cobra.Command, given []string) error { return namedArgs(cmd, given, args(cmd, given)) }
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.started = true
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		a.markStart(sub)
	}
}

// namedArgs says of what cobra counts which argument is missing, or one too many.
func namedArgs(cmd *cobra.Command, given []string, err error) error {
	if err == nil || !strings.HasPrefix(err.Error(), "accepts ") && !strings.HasPrefix(err.Error(), "requires ") {
		return err
	}
	var names []string
	for words := strings.Fields(cmd.Use)[1:]; len(words) > 0; words = words[1:] {
		if strings.HasPrefix(words[0], "--") && len(words) > 1 { // a flag and its value
			words = words[1:]
			continue
		}
		names = append(names, words[0])
	}
	usage := cmd.Parent().CommandPath() + " " + cmd.Use
	switch {
	case len(given) < len(names):
		return usagef("%s is missing: %s", names[len(given)], usage)
	case len(given) > len(names):
		return usagef("%q is one argument too many: %s", given[len(names)], usage)
	}
	return err
}
