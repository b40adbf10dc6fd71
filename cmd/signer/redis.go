package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/internal/store/redis"
)

func (a *app) redisCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "redis",
		Short: "Prepare Redis for a signer",
		Args:  subcommandOnly,
		RunE:  showHelp,
	}
	cmd.AddCommand(a.redisACLCmd())
	return cmd
}

func (a *app) redisACLCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "acl",
		Short: "Print the Redis user that a signer needs",
		Long: `Prints the command that makes the user store.redis.username, with access to
what is under store.redis.prefix and nothing that a signer can do without. Put
the password in PASSWORD's place, and run it on every server, copies too. It
talks to nobody.`,
		Example: `  signer redis acl --config signer.yaml
  signer redis acl --set store.redis.username=signer -o json`,
		Args: cobra.NoArgs,
	}
	flags := a.configFlags(cmd)
	output := outputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		cfg, err := flags.load()
		if err != nil {
			return err
		}
		user, rule := cfg.Store.Redis.Username, redis.ACLFor(cfg.Store.Redis.Prefix)
		if user == "" {
			return usageError{errors.New("store.redis.username: set it to the user's name")}
		}
		if *output == "json" {
			return a.printJSON(map[string]string{"user": user, "rule": rule})
		}
		_, err = fmt.Fprintf(a.stdout, "ACL SETUSER %s on >PASSWORD %s\n", user, rule)
		return err
	}
	return cmd
}
