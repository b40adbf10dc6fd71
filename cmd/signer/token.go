package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/internal/server"
)

func (a *app) tokenCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make tokens for the admin listener",
		Args:  subcommandOnly,
		RunE:  showHelp,
	}
	cmd.AddCommand(a.tokenCreateCmd())
	return cmd
}

func (a *app) tokenCreateCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an admin token, and the configuration that lets it in",
		Long: `Makes an admin token and prints it this once, with the item for admin.tokens
that lets it in: the configuration holds only its hash. Nothing is changed until
the item is in the configuration and the signer was started again.

Roles: a viewer reads; an operator also kills, resumes, invalidates devices and
revokes credentials; an admin does everything.`,
		Example: "  signer token create --name ci --role viewer",
		Args:    cobra.NoArgs,
	}
	output := outputFlag(cmd)
	name := cmd.Flags().String("name", "", "`name` of who will act, for the audit log (required)")
	role := cmd.Flags().String("role", "", "`role`: viewer, operator or admin (required)")
	cmd.RunE = func(*cobra.Command, []string) error {
		token, item, err := server.NewAdminToken(*name, *role)
		if err != nil {
			return usageError{err}
		}
		if *output == "json" {
			line, err := json.Marshal(map[string]string{"name": item.Name, "role": item.Role, "token": token, "hash": item.Hash})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s\n", line)
			return err
		}
		_, err = fmt.Fprintf(a.stdout, `Token, shown this once:

  %s

For the configuration file:

admin:
  tokens:
    - name: %s
      role: %s
      hash: %s
`, token, item.Name, item.Role, item.Hash)
		return err
	}
	return cmd
}
