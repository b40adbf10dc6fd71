package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
	"github.com/pactsigner/pactsigner/jwks"
)

// newReceiptsCmd shows what businesses signed.
func newReceiptsCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("receipts", "Show, verify and export what businesses signed for")
	cmd.Long = `Show, verify and export what businesses signed for.

Verified means that the business signed this claim about a turn. It does not
mean that money moved, and it does not name the message.`
	cmd.Example = `  pactctl receipts list
  pactctl receipts show r-3f9k2m
  pactctl receipts verify
  pactctl receipts export r-3f9k2m`
	p := newProfile(a, cmd)
	cmd.AddCommand(newReceiptsListCmd(p), newReceiptsShowCmd(p), newReceiptsVerifyCmd(p), newReceiptsExportCmd(p))
	return cmd
}

func newReceiptsListCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List receipts, newest first",
		Example: `  pactctl receipts list
  pactctl receipts list -o json | jq '.receipts[].verdict'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				list, err := ag.Receipts(ctx, c)
				if err != nil {
					return err
				}
				return p.app.print(map[string]any{"receipts": list}, func(pr *printer) { printReceipts(pr, list) })
			})
		},
	}
}

func printReceipts(p *printer, list []agent.ReceiptView) {
	if len(list) == 0 {
		p.line("No receipts.")
		return
	}
	for _, r := range list {
		p.labelled(r.ID+"  ", because(string(r.Verdict), strings.Join(r.Issues, ", "))+", "+p.ago(r.Received))
		actions := actionNames(r.Actions)
		switch {
		case actions == "":
			p.say(4, "%s", businessOf(r.Business, r.BusinessName))
		case r.Verdict != agent.VerdictVerified:
			p.say(4, "%s: (unproven: %s)", businessOf(r.Business, r.BusinessName), actions)
		default:
			p.say(4, "%s: %s", businessOf(r.Business, r.BusinessName), actions)
		}
	}
}

// printChecks lists receipts with their verdict on record and the new one.
func printChecks(p *printer, list []agent.ReceiptView) {
	if len(list) == 0 {
		p.line("No receipts.")
		return
	}
	var rows [][]string
	for _, r := range list {
		issues := slices.Concat(r.Issues, r.Recheck.Issues)
		slices.Sort(issues)
		rows = append(rows, []string{r.ID, string(r.Verdict), string(r.Recheck.Verdict), r.Business, strings.Join(slices.Compact(issues), ", ")})
	}
	p.table([]string{"ID", "VERDICT", "NOW", "BUSINESS", "ISSUES"}, rows)
}

func actionNames(actions []agent.Action) string {
	names := make([]string, len(actions))
	for i, a := range actions {
		names[i] = a.Tool
	}
	return strings.Join(names, ", ")
}

func newReceiptsShowCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one receipt",
		Example: `  pactctl receipts show r-3f9k2m
  pactctl receipts show r-3f9k2m -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				r, err := ag.Receipt(ctx, c, args[0])
				if err != nil {
					return notThere(err, "receipt", args[0], "receipts list")
				}
				return p.app.print(r, func(pr *printer) { printReceipt(pr, r) })
			})
		},
	}
}

func printReceipt(p *printer, r agent.ReceiptView) {
	signed, claim := "signed", func(s string) string { return s }
	if r.Verdict != agent.VerdictVerified { // EV-8
		signed, claim = "time", func(s string) string {
			if s != "" {
				s = "(unproven) " + s
			}
			return s
		}
	}
	pairs := []string{
		"receipt", r.ID,
		"verdict", string(r.Verdict),
		"issues", strings.Join(r.Issues, ", "),
		"business", businessOf(r.Business, r.BusinessName),
		"conversation", r.Conversation,
		"message", r.Message,
		"sent", p.at(r.Sent),
		signed, claim(p.at(r.Time)),
		"permissions", claim(strings.Join(r.ScopesUsed, " ")),
		"key", strings.TrimSpace(r.Algorithm + " " + r.KeyID),
		"JWS SHA-256", r.Digest,
		"rechecked", p.at(r.Rechecked),
		"by", byAnother(r.RecheckedBy),
	}
	for _, a := range r.Actions {
		text := claim(a.Tool)
		if a.ArgsHash != "" {
			text += " (arguments not checked: " + a.ArgsHash + ")"
		}
		pairs = append(pairs, "action", text)
	}
	p.fields(pairs...)
	for _, problem := range r.Problems {
		p.say(0, "problem: %s", problem)
	}
	if r.Verdict == agent.VerdictVerified { // EV-8
		p.line("")
		p.say(0, "Verified: the business signed this claim. It does not mean that money moved, and it names no message.")
	}
}

func newReceiptsVerifyCmd(p *profile) *cobra.Command {
	keysFile := ""
	cmd := &cobra.Command{
		Use:   "verify [ID|FILE...]",
		Short: "Verify receipts again, by default all of the profile",
		Long: `Verify receipts again, by default all of the profile.

An ID is one of the profile: it is verified by the keys that were kept with it,
without the network; a receipt for which no key could be had is tried with the
business's keys of today. VERDICT is the one on record, by which changes are
held back, and NOW what this check finds; a check that finds better changes the
record only of a receipt that was unverifiable.

A FILE (or - for stdin) is what "receipts export" wrote: it is verified offline,
without any profile, by the keys in it. That proves that those keys signed it;
whose they are, the file cannot prove. --keys verifies with a key set that you
had from the business another way.

Exit code 1 unless each is verified, and on record so.`,
		Example: `  pactctl receipts verify
  pactctl receipts verify r-3f9k2m -o json
  pactctl receipts verify receipt.json --keys jwks.json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, files := receiptIDs(args)
			if keysFile != "" && (len(files) == 0 || len(ids) > 0) {
				return usagef("--keys goes with FILEs alone: receipts of the profile are verified by the keys that were kept with them")
			}
			if len(files) == 0 {
				return p.verifyStored(cmd.Context(), ids)
			}
			if len(ids) > 0 {
				return usagef("give IDs or FILEs, not both")
			}
			return p.app.verifyFiles(files, keysFile)
		},
	}
	cmd.Flags().StringVar(&keysFile, "keys", "", "`FILE` with a key set to verify exported receipts by")
	return cmd
}

// receiptID is the id of a receipt of a profile.
var receiptID = regexp.MustCompile(`^r-[a-z2-7]{16}$`)

// receiptIDs tells ids from files.
func receiptIDs(args []string) (ids, files []string) {
	for _, arg := range args {
		if receiptID.MatchString(arg) {
			ids = append(ids, arg)
		} else {
			files = append(files, arg)
		}
	}
	return ids, files
}

func (p *profile) verifyStored(ctx context.Context, ids []string) error {
	return p.with(ctx, func(ctx context.Context, ag personal, c agent.Caller) error {
		if len(ids) == 0 {
			all, err := ag.Receipts(ctx, c)
			if err != nil {
				return err
			}
			for _, r := range all {
				ids = append(ids, r.ID)
			}
		}
		list, bad := []agent.ReceiptView{}, 0
		var missing []error
		for _, id := range ids {
			r, err := ag.VerifyStoredReceipt(ctx, c, id)
			if errors.Is(err, agent.ErrNotFound) {
				missing = append(missing, notThere(err, "receipt", id, "receipts list"))
				continue
			}
			if err != nil {
				return err
			}
			if r.Verdict != agent.VerdictVerified || r.Recheck.Verdict != agent.VerdictVerified {
				bad++
			}
			list = append(list, r)
		}
		if len(list) > 0 || len(missing) == 0 {
			if err := p.app.print(map[string]any{"receipts": list}, func(pr *printer) { printChecks(pr, list) }); err != nil {
				return err
			}
		}
		return notVerified(bad, len(list), missing)
	})
}

// notVerified tells how many receipts were not verified, and what could not be read.
func notVerified(bad, of int, unread []error) error {
	if bad > 0 {
		unread = append(unread, fmt.Errorf("%d of %s not verified", bad, plural(of, "receipt")))
	}
	if len(unread) == 0 {
		return nil
	}
	texts := make([]string, len(unread))
	for i, err := range unread {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// exportView is an exported receipt, and what it is worth.
type exportView struct {
	File string `json:"file"`
	agent.ExportCheck
}

// verifyFiles verifies exported receipts. It opens no profile and no connection.
func (a *app) verifyFiles(files []string, keysFile string) error {
	check := agent.VerifyExport
	if keysFile != "" {
		data, err := a.readFile(keysFile)
		if err != nil {
			return fmt.Errorf("--keys: %w", err)
		}
		set, err := jwks.Parse(data)
		if err != nil {
			return fmt.Errorf("--keys %s: %w", keysFile, err)
		}
		check = func(data []byte) (agent.ExportCheck, error) { return agent.VerifyExportWith(data, set) }
	}
	list, bad := []exportView{}, 0
	var unread []error
	for _, file := range files {
		data, err := a.readFile(file)
		if err != nil {
			unread = append(unread, fmt.Errorf("%w (the ids of receipts are in: pactctl receipts list)", err))
			continue
		}
		v, err := check(data)
		if err != nil {
			unread = append(unread, fmt.Errorf("%s: %w", file, err))
			continue
		}
		if v.Verdict != agent.VerdictVerified || !v.Agrees {
			bad++
		}
		list = append(list, exportView{file, v})
	}
	if len(list) == 0 {
		return notVerified(0, 0, unread)
	}
	err := a.print(map[string]any{"exports": list}, func(pr *printer) {
		for i, v := range list {
			if i > 0 {
				pr.line("")
			}
			printExportCheck(pr, v)
		}
	})
	if err != nil {
		return err
	}
	return notVerified(bad, len(list), unread)
}

// maxExportFile is more than an export or a key set ever has, in bytes.
const maxExportFile = 2 << 20

// readFile reads a file, or stdin for -.
func (a *app) readFile(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(a.stdin, maxExportFile))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxExportFile))
}

// signed reports an export whose signature verified, whatever else is wrong with it.
func (v exportView) signed() bool {
	return v.Claims != nil && v.Thumbprint != "" && !slices.Contains(v.Issues, agent.IssueSignature)
}

func printExportCheck(p *printer, v exportView) {
	keys := ""
	switch {
	case v.KeysFrom == agent.KeysFromGiven:
		keys = "your own copy of the key set"
	case v.Thumbprint != "": // else it has none, or none of these
		keys = "the file's own: that they are the business's, it cannot prove. Compare the thumbprint with the business's key set, or give that with --keys"
	}
	p.line("%s: %s", v.File, v.Verdict)
	pairs := []string{"issues", strings.Join(v.Issues, ", "), "on record", string(v.Recorded)}
	var proven []string
	if v.signed() {
		claims := []string{"signed", p.at(v.Claims.Time), "permissions", strings.Join(v.Claims.ScopesUsed, " "), "actions", actionNames(v.Claims.Actions)}
		for i := 0; i < len(claims); i += 2 {
			if claims[i+1] != "" {
				proven = append(proven, `"`+claims[i]+`"`)
			}
		}
		pairs = append(pairs, claims...)
	}
	p.fields(append(pairs,
		"key", strings.TrimSpace(v.Algorithm+" "+v.KeyID),
		"thumbprint", v.Thumbprint,
		"keys from", keys,
		"JWS SHA-256", v.Digest,
		"business", v.InterfaceURL,
		"by its name", v.BusinessName,
		"message", v.MessageID,
		"its SHA-256", v.BodyDigest,
		"sent", p.at(v.Sent),
		"exported", p.at(v.Exported),
	)...)
	if len(proven) > 0 {
		p.say(0, "What is signed is %s; the rest is the word of who exported it.", listed(proven))
	} else {
		p.say(0, "No signature was verified: all of it is the word of who exported it.")
	}
	for _, problem := range v.Problems {
		p.say(0, "problem: %s", problem)
	}
}

// listed is "a", "a and b" or "a, b and c".
func listed(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

func newReceiptsExportCmd(p *profile) *cobra.Command {
	path, force := "", false
	cmd := &cobra.Command{
		Use:   "export ID",
		Short: "Write a receipt to a file that can be verified without us",
		Long: `Write a receipt to a file that can be verified without this profile or any
network, years later: the signed receipt, the key that it was verified with,
what it was held to, and the verdict.

The file is of mode 0600: it names you as the business knows you.`,
		Example: `  pactctl receipts export r-3f9k2m
  pactctl receipts export r-3f9k2m -f flight.json
  pactctl receipts verify flight.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.here = true // CP-4: a running agent gives no signed receipt away
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				local, ok := ag.(control.Checked)
				if !ok {
					return errors.New("a signed receipt leaves the profile on its own machine only: run this there, without --remote")
				}
				x, err := local.ExportReceipt(ctx, c, args[0])
				if err != nil {
					return notThere(err, "receipt", args[0], "receipts list")
				}
				if path == "-" {
					_, err := p.app.stdout.Write(x.Document())
					return err
				}
				file := or(path, x.ID+".json")
				if err := writeExport(file, x.Document(), force); err != nil {
					return err
				}
				view := object{{"id", x.ID}, {"verdict", x.Verdict}, {"file", file}}
				return p.app.print(view, func(pr *printer) {
					pr.say(0, "Receipt %s, %s, is in %s. Check it with: pactctl receipts verify %s", x.ID, x.Verdict, file, shellQuoted(file))
				})
			})
		},
	}
	cmd.Flags().StringVarP(&path, "file", "f", "", "`FILE` to write, - for stdout (default ID.json)")
	cmd.Flags().BoolVar(&force, "force", false, "replace the file if it exists")
	return cmd
}

// writeExport writes a file of mode 0600, whole or not at all.
func writeExport(path string, data []byte, force bool) error {
	if _, err := os.Lstat(path); err == nil && !force {
		return fmt.Errorf("%s exists: name another with -f, or replace it with --force", path)
	}
	if err := replaceFile(path, data); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
