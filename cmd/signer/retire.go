package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/internal/server"
)

func (a *app) retireIssuerCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retire-issuer URL",
		Short: "Give an issuer up for good",
		Long: `Disables the issuer's keys in custody, for good, and writes into the
deployment's record that it is retired: no replica starts with it any more, and
imports leave its records out. There is no way back; a new issuer needs another
URL. What the audit log says of it stays, and so do the entries of the kill
switch, until pactctl resume lifts them.

Stop it first (pactctl kill --issuer URL --withdraw-keys), and take it out of
the configuration of every replica: while one has it, this is refused. With
store.kind redis replicas run on; an embedded signer is stopped for it.

Without --yes it changes nothing, and says whether anything stands in the way.
Interrupted, it is run again.`,
		Example: `  signer retire-issuer https://old.example.com --config signer.yaml \
    --reason moved
  signer retire-issuer https://old.example.com --config signer.yaml \
    --reason moved --yes`,
		Args: cobra.ExactArgs(1),
	}
	flags := a.configFlags(cmd)
	output := outputFlag(cmd)
	options := server.RetireOptions{Version: version}
	cmd.Flags().StringVar(&options.Reason, "reason", "", "why, for the audit log (required)")
	cmd.Flags().BoolVar(&options.Confirmed, "yes", false, "do it: there is no way back")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if strings.TrimSpace(options.Reason) == "" {
			return usageError{errors.New("--reason is required: it goes to the audit log")}
		}
		options.Issuer = args[0]
		cfg, err := flags.load()
		if err != nil {
			return err
		}
		if err := cfg.CheckFiles(true); err != nil {
			return usageError{err}
		}
		result, err := server.Retire(cmd.Context(), cfg, options)
		if err != nil {
			return err
		}
		if !result.Retired {
			return usageError{fmt.Errorf("nothing was changed: nothing stands in the way of retiring %s; say --yes to do it, for good", result.Issuer)}
		}
		if *output == "json" {
			return a.printJSON(result)
		}
		_, err = fmt.Fprintf(a.stdout, "Issuer %s is retired since %s. Keys of it that custody has: %d, all disabled.\n", result.Issuer, result.RetiredAt.Format(time.DateOnly), result.Keys)
		return err
	}
	return cmd
}
