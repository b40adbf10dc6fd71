package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/internal/config"
)

// configFlags are the flags that make up a configuration.
type configFlags struct {
	app  *app
	cmd  *cobra.Command
	file string
	set  []string
}

// namedFlags are the flags for single keys, besides --set.
var namedFlags = []struct {
	name, key, usage string
	boolean          bool
}{
	{name: "data", key: "data", usage: "`folder` of keys, records and the admin token (default: pact-signer in the XDG state home)"},
	{name: "public", key: "listeners.public.address", usage: "`host:port` of the contract's REST face (default 127.0.0.1:8787; port 0 picks a free one)"},
	{name: "grpc", key: "listeners.grpc.address", usage: "`host:port` of the contract's gRPC face (default 127.0.0.1:8788)"},
	{name: "admin", key: "listeners.admin.address", usage: "`host:port` for operators (default 127.0.0.1:8789)"},
	{name: "ops", key: "listeners.ops.address", usage: "`host:port` of metrics and health (default 127.0.0.1:8790)"},
	{name: "log-level", key: "log.level", usage: "`level`: debug, info, warn or error (default info)"},
	{name: "log-format", key: "log.format", usage: "`format`: json, text or auto, which is text on a terminal (default auto)"},
	{name: "insecure-admin", key: "insecure.admin", usage: "allow the admin listener beyond loopback without TLS", boolean: true},
	{name: "insecure-grpc", key: "insecure.grpc", usage: "allow the gRPC listener beyond loopback without TLS", boolean: true},
	{name: "insecure-vault", key: "insecure.vault", usage: "allow Vault beyond loopback without TLS", boolean: true},
	{name: "insecure-redis", key: "insecure.redis", usage: "allow Redis beyond loopback without TLS", boolean: true},
	{name: "insecure-open-enrolment", key: "insecure.openEnrolment", usage: "allow enrolment mode open on a listener beyond loopback", boolean: true},
}

func (a *app) configFlags(cmd *cobra.Command) *configFlags {
	f := &configFlags{app: a, cmd: cmd}
	flags := cmd.Flags()
	flags.StringVar(&f.file, "config", "", "YAML `file` (default: the one that "+config.EnvFile+" names, or none)")
	flags.StringArrayVar(&f.set, "set", nil, "set any key, `path=value`; repeat it for more (signer config keys lists them)")
	for _, n := range namedFlags {
		if n.boolean {
			flags.Bool(n.name, false, n.usage)
		} else {
			flags.String(n.name, "", n.usage)
		}
	}
	return f
}

// load reads the configuration that the command line asks for. Every error is
// one of usage.
func (f *configFlags) load() (config.Config, error) {
	src := config.Source{File: f.file, Environ: f.app.environ}
	for _, s := range f.set {
		path, value, ok := strings.Cut(s, "=")
		if !ok {
			path = ""
		}
		src.Flags = append(src.Flags, config.Setting{Path: path, Value: value})
	}
	for _, n := range namedFlags {
		if flag := f.cmd.Flags().Lookup(n.name); flag.Changed {
			src.Flags = append(src.Flags, config.Setting{Path: n.key, Value: flag.Value.String()})
		}
	}
	c, err := config.Load(src)
	if err != nil {
		return c, usageError{err}
	}
	return c, nil
}

func (a *app) configCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration",
		Args:  subcommandOnly,
		RunE:  showHelp,
	}
	cmd.AddCommand(a.configCheckCmd(), a.configShowCmd(), a.configKeysCmd())
	return cmd
}

func (a *app) configCheckCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether serve would take this configuration",
		Long: `Reads the configuration as serve does, from file, environment and flags, and
names everything that is wrong with it, and with the files of secrets and
certificates that it names. Opens no socket and no store, and shows no secret.

With --no-files it does not look for those files, which may be elsewhere: in a
pod's Secrets.`,
		Example: `  signer config check --config signer.yaml
  signer config check --config signer.yaml --no-files
  signer config check --config signer.yaml --set issuers.0.tokenTTL=90s`,
		Args: cobra.NoArgs,
	}
	flags := a.configFlags(cmd)
	noFiles := cmd.Flags().Bool("no-files", false, "do not look for the files that it names")
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := flags.load()
		if err != nil {
			return err
		}
		if !*noFiles {
			if err := c.CheckFiles(true); err != nil {
				return usageError{err}
			}
		}
		names := make([]string, len(c.Issuers))
		for i, is := range c.Issuers {
			names[i] = is.URL
			if is.URL == "" {
				names[i] = "the public listener's URL"
			}
		}
		custody, store := c.Describe()
		if _, err := fmt.Fprintf(a.stdout, "The configuration is fine. Issuers: %s\n  Custody: %s\n  Store:   %s\n", strings.Join(names, ", "), custody, store); err != nil {
			return err
		}
		for i, is := range c.Issuers {
			p := is.RotationParams()
			if _, err := fmt.Fprintf(a.stdout, "  %s\n    rotation.lead     %v, at least %v\n    rotation.overlap  %v, at least %v\n",
				names[i], p.Lead, p.MinLead(), p.Overlap, p.MinOverlap()); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

func (a *app) configShowCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Print the configuration in effect, defaults included",
		Long:    "Prints the configuration in effect as YAML, defaults included, token hashes\nredacted.",
		Example: "  signer config show --config signer.yaml",
		Args:    cobra.NoArgs,
	}
	flags := a.configFlags(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := flags.load()
		if err != nil {
			return err
		}
		out, err := c.YAML()
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(out)
		return err
	}
	return cmd
}

func (a *app) configKeysCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "keys",
		Short: "List every key and its environment variable",
		Long: `Lists every key as it stands in the file and in --set, and its environment
variable. "#" is the number of a list's item, from 0. A flag goes before the
environment, the environment before the file.`,
		Example: "  signer config keys",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			keys := config.Keys()
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			for _, key := range slices.Sorted(maps.Keys(keys)) {
				fmt.Fprintf(w, "%s\t%s\n", key, keys[key])
			}
			return w.Flush()
		},
	}
}
