package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/internal/server"
)

func (a *app) initCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the data folder, the keys, the store and the first admin token",
		Long: `Makes what is not there yet: the data folder, custody's own keys, the store and
the first admin token, whose file only its owner can read. It can be run again
and changes nothing that exists. An embedded signer does the same when it starts.

The token itself is not kept anywhere else. If its file is lost, stop the signer
and run init --new-admin-token: the old token ends.`,
		Example: `  signer init --data ./state
  signer init --config /etc/pact/signer.yaml --new-admin-token`,
		Args: cobra.NoArgs,
	}
	flags := a.configFlags(cmd)
	output := outputFlag(cmd)
	var options server.InitOptions
	cmd.Flags().BoolVar(&options.NewAdminToken, "new-admin-token", false, "replace the first admin token by a new one")
	cmd.Flags().BoolVar(&options.AcceptLostStore, "accept-lost-store", false, "make an empty store in place of a lost one, and close enrolment")
	cmd.Flags().BoolVar(&options.AcceptRolledBackStore, "accept-rolled-back-store", false, "take a store that is older than custody knows it, and close enrolment")
	cmd.Flags().BoolVar(&options.OpenEnrolment, "open-enrolment", false, "after either, go back to the configured enrolment mode")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := flags.load()
		if err != nil {
			return err
		}
		result, err := server.Init(cmd.Context(), cfg, options)
		if err != nil {
			return err
		}
		if *output == "json" {
			line, err := json.Marshal(result)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s\n", line)
			return err
		}
		state := "kept"
		if result.NewAdminToken {
			state = "new"
		}
		_, err = fmt.Fprintf(a.stdout, "Data folder:  %s\nAdmin token:  %s (%s)\n", result.Data, result.AdminTokenFile, state)
		if err == nil && result.EnrolmentClosed {
			_, err = fmt.Fprintf(a.stdout, "Enrolment:    closed, because the store was lost or went back; init --open-enrolment ends that\n")
		}
		if err == nil && result.Note != "" {
			_, err = fmt.Fprintf(a.stdout, "Note:         %s\n", result.Note)
		}
		return err
	}
	return cmd
}
