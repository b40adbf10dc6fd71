package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"filippo.io/age"
	"github.com/hashicorp/vault/api"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/custody/vault"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
	"github.com/pactsigner/pactsigner/rotation"
)

func (a *app) vaultCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vault",
		Short: "Prepare HashiCorp Vault for a signer, and check it",
		Long: `With custody.kind vault, keys, and what must live as long as they do, are in
HashiCorp Vault. bootstrap prepares it, as an operator of Vault; check looks at
it as the signer; policy prints what the signer may do there.`,
		Args: subcommandOnly,
		RunE: showHelp,
	}
	cmd.AddCommand(a.vaultBootstrapCmd(), a.vaultCheckCmd(), a.vaultPolicyCmd())
	return cmd
}

func (a *app) vaultPolicyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Print the Vault policy that a signer needs",
		Long: `Prints the policy, with mounts, prefix and mode (custody.vault.wrapped) as
configured, and nothing that a signer can do without. It talks to nobody.`,
		Example: `  signer vault policy --config signer.yaml | vault policy write pact-signer -
  signer vault policy --set custody.vault.wrapped=true`,
		Args: cobra.NoArgs,
	}
	flags := a.configFlags(cmd)
	output := outputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		cfg, err := flags.load()
		if err != nil {
			return err
		}
		policy, err := vault.Policy(server.VaultConfig(cfg, nil))
		if err != nil {
			return usageError{err}
		}
		if *output == "json" {
			return a.printJSON(map[string]string{"policy": policy})
		}
		_, err = io.WriteString(a.stdout, policy)
		return err
	}
	return cmd
}

func (a *app) vaultCheckCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what is missing in Vault, and what is too much",
		Long: `Logs in to Vault as the signer would and looks at the server, the login, what
the policy allows and what it should not, the mounts, the subject key, the key
schedules' keys and, in mode wrapped instead of these, the wrapping key. Each
finding says what to do. It changes nothing.

Exit code 1 if there is a problem; warnings alone are 0.`,
		Example: `  signer vault check --config /etc/pact/signer.yaml
  signer vault check --config /etc/pact/signer.yaml -o json`,
		Args: cobra.NoArgs,
	}
	flags := a.configFlags(cmd)
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := flags.load()
		if err != nil {
			return err
		}
		if cfg.Custody.Kind != "vault" {
			return usageError{fmt.Errorf("custody.kind is %s: there is no Vault to check", cfg.Custody.Kind)}
		}
		var schedules []string
		for _, is := range cfg.Issuers {
			if is.URL == "" { // told only when it listens
				continue
			}
			name, err := rotation.DocumentName(is.URL)
			if err != nil {
				return usageError{err}
			}
			schedules = append(schedules, name)
		}
		findings := vault.Check(cmd.Context(), server.VaultConfig(cfg, nil), schedules...)
		with := strings.NewReplacer()
		if flags.file != "" { // the commands that they name want it too
			with = strings.NewReplacer("signer vault bootstrap", "signer vault bootstrap --config "+flags.file, "signer vault policy", "signer vault policy --config "+flags.file)
		}
		for i := range findings {
			findings[i].Fix, findings[i].Detail = with.Replace(findings[i].Fix), oneLine(findings[i].Detail)
		}
		if *output == "json" {
			err = a.printJSON(map[string]any{"findings": findings})
		} else {
			err = printFindings(a.stdout, findings)
		}
		if err != nil {
			return err
		}
		problems := 0
		for _, f := range findings {
			if f.Severity == vault.Problem {
				problems++
			}
		}
		if problems > 0 {
			return fmt.Errorf("%d of %d findings are problems", problems, len(findings))
		}
		return nil
	}
	return cmd
}

func printFindings(out io.Writer, findings []vault.Finding) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Severity, f.Check, f.Detail)
		if f.Fix != "" {
			fmt.Fprintf(w, "\t\tfix: %s\n", f.Fix)
		}
	}
	return w.Flush()
}

// oneLine keeps what Vault says from breaking a table.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func (a *app) vaultBootstrapCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Prepare Vault: mounts, subject key with its backup, policy, role",
		Long: `Prepares the Vault that VAULT_ADDR names (default: the configured address), with
the token in VAULT_TOKEN, an operator's, and the other variables of the vault
command (VAULT_CACERT, VAULT_NAMESPACE, VAULT_SKIP_VERIFY, …), for a signer of
this configuration. It alone reads these: serve, init and check go by the
configuration. It makes:

  transit and KV version 2 at their mounts
  the subject key, which every caller's subject is derived from. It is made here
    and imported, so that it has a backup: --backup, encrypted to --backup-to.
    Vault never gives it out again. Keep the backup: without it, losing Vault
    changes every subject
  in mode wrapped (custody.vault.wrapped) the wrapping key
  the policy
  with --with-role the role that custody.vault.auth logs in with: an AppRole,
    whose role id and secret id are written to roleIdFile and secretIdFile, or a
    Kubernetes role for --service-account

It can be run again at any time, and after an interruption at any point. What is
there is checked and kept: it never makes a second subject key, never overwrites
a backup, and refuses keys that could leave Vault.

For a fresh Vault in place of a lost one: --restore-subject-key.`,
		Example: `  age-keygen -o offline.key
  signer vault bootstrap --config signer.yaml --with-role \
    --backup subject.backup --backup-to age1…
  signer vault bootstrap --config signer.yaml --with-role \
    --service-account pact/pact-signer --kubernetes-audience vault
  signer vault bootstrap --config signer.yaml \
    --restore-subject-key subject.backup --identity offline.key`,
		Args: cobra.NoArgs,
	}
	flags := a.configFlags(cmd)
	output := outputFlag(cmd)
	var o vault.BootstrapOptions
	cmd.Flags().StringVar(&o.BackupFile, "backup", "", "`file` for the subject key's backup")
	recipients := cmd.Flags().StringArray("backup-to", nil, "`recipient` of the backup, age1…, or a file of them; repeat it for more")
	cmd.Flags().StringVar(&o.RestoreFile, "restore-subject-key", "", "`file` with a backup to make the subject key from")
	identity := cmd.Flags().String("identity", "", "`file` with the age identity that opens that backup")
	cmd.Flags().StringVar(&o.Policy, "policy", "", "`name` of the policy (default: the prefix)")
	withRole := cmd.Flags().Bool("with-role", false, "make the role that custody.vault.auth logs in with")
	account := cmd.Flags().String("service-account", "", "`namespace/name` of the signer's service account (kubernetes)")
	host := cmd.Flags().String("kubernetes-host", "", "`URL` of the API server, for an auth method that has none yet (default https://kubernetes.default.svc)")
	ca := cmd.Flags().String("kubernetes-ca-file", "", "`file` with the authority of the API server's certificate, for such a method of a Vault outside the cluster")
	reviewer := cmd.Flags().String("kubernetes-reviewer-token-file", "", "`file` with the token of a service account that may review tokens (system:auth-delegator), for the same")
	audience := cmd.Flags().String("kubernetes-audience", "", "`audience` that the service account's token must be for (default: any)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := flags.load()
		if err != nil {
			return err
		}
		if (o.BackupFile == "") != (len(*recipients) == 0) || (o.RestoreFile == "") != (*identity == "") {
			return usageError{errors.New("--backup goes with --backup-to, --restore-subject-key with --identity")}
		}
		if o.BackupTo, err = ageRecipients(*recipients); err != nil {
			return usageError{err}
		}
		if o.RestoreWith, err = ageIdentities(*identity); err != nil {
			return usageError{err}
		}
		if *withRole {
			if err := roleOptions(&o, cfg.Custody.Vault.Auth, *account, *host, *audience); err != nil {
				return usageError{err}
			}
			if o.Kubernetes != nil {
				if o.Kubernetes.CA, err = contentOf("--kubernetes-ca-file", *ca); err != nil {
					return usageError{err}
				}
				if o.Kubernetes.ReviewerToken, err = contentOf("--kubernetes-reviewer-token-file", *reviewer); err != nil {
					return usageError{err}
				}
			}
		}
		client, err := operatorClient(cfg)
		if err != nil {
			return usageError{err}
		}
		result, err := vault.Bootstrap(cmd.Context(), client, server.VaultConfig(cfg, nil), o)
		var wrong *vault.OptionsError
		if errors.As(err, &wrong) {
			return usageError{err}
		}
		if err != nil { // Vault's client writes over several lines
			err = errors.New(oneLine(err.Error()))
		}
		if *output == "json" {
			return errors.Join(err, a.printJSON(result))
		}
		return errors.Join(printBootstrap(a.stdout, client.Address(), result, err == nil), err)
	}
	return cmd
}

// operatorClient talks to Vault as the operator, by the environment.
func operatorClient(cfg config.Config) (*api.Client, error) {
	c := api.DefaultConfig()
	if c.Error != nil {
		return nil, fmt.Errorf("the environment's VAULT_… variables: %w", c.Error)
	}
	if os.Getenv(api.EnvVaultAddress) == "" {
		if len(cfg.Custody.Vault.Addresses) == 0 {
			return nil, errors.New("set VAULT_ADDR, or custody.vault.addresses")
		}
		c.Address = cfg.Custody.Vault.Addresses[0]
		if ca := cfg.Custody.Vault.CAFile; ca != "" && os.Getenv(api.EnvVaultCACert) == "" {
			if err := c.ConfigureTLS(&api.TLSConfig{CACert: ca}); err != nil {
				return nil, fmt.Errorf("custody.vault.caFile: %w", err)
			}
		}
	}
	client, err := api.NewClient(c)
	if err != nil {
		return nil, err
	}
	if client.Token() == "" {
		return nil, errors.New("set VAULT_TOKEN to the token of an operator of Vault")
	}
	if namespace := cfg.Custody.Vault.Namespace; namespace != "" {
		client.SetNamespace(namespace)
	}
	return client, nil
}

// roleOptions asks for the role that a signer with this configuration needs.
func roleOptions(o *vault.BootstrapOptions, auth config.VaultAuth, account, host, audience string) error {
	switch auth.Method {
	case "approle":
		if auth.RoleIDFile == "" || auth.SecretIDFile == "" {
			return errors.New("--with-role needs custody.vault.auth.roleIdFile and secretIdFile, where the ids are written to")
		}
		o.AppRole = &vault.AppRoleOptions{Mount: auth.Mount, RoleIDFile: auth.RoleIDFile, SecretIDFile: auth.SecretIDFile}
	case "kubernetes":
		namespace, name, ok := strings.Cut(account, "/")
		if !ok || namespace == "" || name == "" {
			return errors.New("--with-role needs --service-account namespace/name")
		}
		o.Kubernetes = &vault.KubernetesOptions{
			Mount: auth.Mount, Role: auth.Role, Host: host, ServiceAccount: name, Namespace: namespace, Audience: audience,
		}
	default:
		return errors.New("--with-role needs custody.vault.auth.method approle or kubernetes")
	}
	return nil
}

// contentOf reads the file of a flag, if it is given.
func contentOf(flag, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	text := strings.TrimSpace(string(content))
	if text == "" {
		return "", fmt.Errorf("%s: %s is empty", flag, file)
	}
	return text, nil
}

func ageRecipients(given []string) ([]age.Recipient, error) {
	var all []age.Recipient
	for _, g := range given {
		text := g
		if !strings.HasPrefix(g, "age1") {
			b, err := os.ReadFile(g)
			if err != nil {
				return nil, fmt.Errorf("--backup-to: neither a recipient (age1…) nor a file of them: %w", err)
			}
			text = string(b)
		}
		recipients, err := age.ParseRecipients(strings.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("--backup-to: %w", err)
		}
		all = append(all, recipients...)
	}
	return all, nil
}

func ageIdentities(file string) ([]age.Identity, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--identity: %w", err)
	}
	defer f.Close()
	identities, err := age.ParseIdentities(f)
	if err != nil {
		// The cause could quote the file.
		return nil, fmt.Errorf("--identity: %s holds no age identity", file)
	}
	return identities, nil
}

func printBootstrap(out io.Writer, address string, r vault.BootstrapResult, done bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "Vault at %s\n", address)
	for _, s := range r.Steps {
		fmt.Fprintf(w, "  %s\t%s\n", s.Done, s.What)
	}
	if r.SubjectCheck != "" {
		fmt.Fprintf(w, "Check value of the subject key: %s\n", r.SubjectCheck)
	}
	if r.RoleID != "" {
		fmt.Fprintf(w, "Role id: %s\n", r.RoleID)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "Note: %s\n", note)
	}
	if done {
		fmt.Fprint(w, "Next: signer vault check, and then signer init, with the same configuration\n")
	}
	return w.Flush()
}

// printJSON prints a result as one line.
func (a *app) printJSON(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s\n", line)
	return err
}
