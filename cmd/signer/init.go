package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/server"
)

func (a *app) initCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a deployment: its keys, its store and the first admin token",
		Long: `Makes what is not there yet: the data folder, custody's own keys, the store and
the first admin token, whose file only its owner can read. It can be run again
and changes nothing that exists. An embedded signer does the same when it
starts.

With store.kind redis it is run once, before the first replica starts or while
replicas wait for it: it writes into custody that the deployment is being made,
marks the store, and writes that it is ready. Interrupted, it is run again. It
refuses a Redis that forgets, or that holds another deployment's records.

Where something runs init by itself, as the Helm chart does, --no-admin-token
leaves operating to the tokens of admin.tokens, and --keep-issuers refuses a
mistyped issuer, which would get keys of its own.

The token itself is not kept anywhere else. If its file is lost, run init
--new-admin-token (an embedded signer is stopped for that): the old token ends.`,
		Example: `  signer init --data ./state
  signer init --config /etc/pact/signer.yaml --admin-token-file ./admin-token
  signer init --config /etc/pact/signer.yaml --show-admin-token
  signer init --config /etc/pact/signer.yaml --new-admin-token`,
		Args: cobra.NoArgs,
	}
	flags := a.configFlags(cmd)
	output := outputFlag(cmd)
	var options server.InitOptions
	cmd.Flags().BoolVar(&options.NewAdminToken, "new-admin-token", false, "replace the first admin token by a new one")
	cmd.Flags().StringVar(&options.AdminTokenFile, "admin-token-file", "", "with store.kind redis: `file` that a new admin token is written to (default admin-token in the data folder)")
	cmd.Flags().BoolVar(&options.ShowAdminToken, "show-admin-token", false, "with store.kind redis: print a new admin token, this once, and write it to no file")
	cmd.Flags().BoolVar(&options.NoAdminToken, "no-admin-token", false, "with store.kind redis: make no first admin token; admin.tokens says who operates")
	cmd.MarkFlagsMutuallyExclusive("admin-token-file", "show-admin-token", "no-admin-token")
	cmd.MarkFlagsMutuallyExclusive("new-admin-token", "no-admin-token")
	cmd.Flags().BoolVar(&options.KeepIssuers, "keep-issuers", false, "with store.kind redis: refuse issuers that the deployment does not have yet, instead of adding them")
	cmd.Flags().BoolVar(&options.AcceptLostStore, "accept-lost-store", false, "make an empty store in place of a lost one, and close enrolment")
	cmd.Flags().BoolVar(&options.AcceptRolledBackStore, "accept-rolled-back-store", false, "take a store that is older than custody knows it, and close enrolment")
	cmd.Flags().BoolVar(&options.OpenEnrolment, "open-enrolment", false, "after either, go back to the configured enrolment mode")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := flags.load()
		if err != nil {
			return err
		}
		if err := cfg.CheckFiles(true); err != nil {
			return usageError{err}
		}
		if err := folderThere(options.AdminTokenFile); err != nil {
			return usageError{err}
		}
		result, err := server.Init(cmd.Context(), cfg, options)
		if cfg.Custody.Kind == "vault" && (errors.Is(err, custody.ErrInvalid) || errors.Is(err, custody.ErrUnavailable)) {
			return fmt.Errorf("%w; `signer vault check` says what is wrong in Vault, and if nobody has prepared it yet, `signer vault bootstrap` does", err)
		}
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
		return printInit(a.stdout, result)
	}
	return cmd
}

// folderThere refuses a file in a folder that is not there: it was hardly meant.
func folderThere(file string) error {
	if file == "" {
		return nil
	}
	dir := filepath.Dir(file)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("--admin-token-file: the folder %s is not there: make it, or name another", dir)
	}
	return nil
}

func printInit(out io.Writer, r server.InitResult) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+":\t"+format+"\n", args...) }
	if r.Data != "" {
		line("Data folder", "%s", r.Data)
	}
	if r.Store != "" {
		line("Store", "%s", r.Store)
	}
	switch {
	case r.AdminToken != "":
		line("Admin token", "%s (new, shown this once)", r.AdminToken)
	case r.NewAdminToken:
		line("Admin token", "%s (new)", r.AdminTokenFile)
	case r.AdminTokenFile != "":
		line("Admin token", "%s (kept)", r.AdminTokenFile)
	case r.NoAdminToken:
		line("Admin token", "none; admin.tokens says who operates")
	default:
		line("Admin token", "kept; init --new-admin-token makes another")
	}
	switch {
	case r.EnrolmentClosed && r.Data != "":
		line("Enrolment", "closed, because the store was lost or went back; init --open-enrolment ends that")
	case r.EnrolmentClosed:
		line("Enrolment", "closed, because the store was lost or went back; pactctl state open-enrolment ends that")
	}
	if r.Note != "" {
		line("Note", "%s", r.Note)
	}
	return w.Flush()
}
