package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/pactsigner/pactsigner/custody/vault"
	"github.com/pactsigner/pactsigner/rotation"
	"github.com/pactsigner/pactsigner/test/servers"
)

// vaultOperator is somebody who prepares a Vault with the command line.
type vaultOperator struct {
	config, backup, identity, secretID string
	recipient                          string
}

func newVaultOperator(t *testing.T, v *servers.Vault) vaultOperator {
	t.Helper()
	t.Setenv("VAULT_ADDR", v.Addr)
	t.Setenv("VAULT_TOKEN", v.RootToken)
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	o := vaultOperator{
		config: filepath.Join(dir, "signer.yaml"), backup: filepath.Join(dir, "subject.backup"), identity: filepath.Join(dir, "offline.key"),
		secretID: filepath.Join(dir, "secret-id"), recipient: identity.Recipient().String(),
	}
	for file, content := range map[string]string{
		o.identity: identity.String() + "\n",
		o.config: `custody:
  kind: vault
  vault:
    addresses: ["` + v.Addr + `"]
    prefix: mine
    auth: {method: approle, roleIdFile: ` + filepath.Join(dir, "role-id") + `, secretIdFile: ` + o.secretID + `}
`,
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func TestVaultCommands(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{})
	o := newVaultOperator(t, v)

	code, out, errs := run(t, nil, "vault", "check", "--config", o.config)
	if code != exitFailure || !strings.Contains(out, "problem  login") || !strings.Contains(out, "signer vault bootstrap --config "+o.config) || !strings.Contains(errs, "are problems") {
		t.Errorf("check of a Vault that nobody prepared: %d\n%s%s", code, out, errs)
	}
	code, out, errs = run(t, nil, "vault", "bootstrap", "--config", o.config, "--with-role")
	if code != exitUsage || !strings.Contains(errs, "--backup FILE --backup-to RECIPIENT") || out != "" {
		t.Errorf("bootstrap without a backup: %d\n%s%s", code, out, errs)
	}
	if mounts, err := v.Client().Sys().ListMountsWithContext(t.Context()); err != nil || mounts["transit/"] != nil {
		t.Errorf("it made mounts all the same: %v %v", mounts, err)
	}
	bootstrap := []string{"vault", "bootstrap", "--config", o.config, "--backup", o.backup, "--backup-to", o.recipient, "--with-role"}
	code, out, errs = run(t, nil, bootstrap...)
	if code != exitOK || !strings.Contains(out, "made  subject key mine-subject") || !strings.Contains(out, "Check value") || errs != "" {
		t.Fatalf("bootstrap: %d\n%s%s", code, out, errs)
	}
	secretID, err := os.ReadFile(o.secretID)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, strings.TrimSpace(string(secretID))) || strings.Contains(out, v.RootToken) {
		t.Errorf("a secret is printed:\n%s", out)
	}
	code, out, _ = run(t, nil, append(bootstrap, "-o", "json")...)
	var result vault.BootstrapResult
	if err := json.Unmarshal([]byte(out), &result); err != nil || code != exitOK || result.SubjectCheck == "" || result.RoleID == "" {
		t.Errorf("bootstrap as JSON: %d, %v\n%s", code, err, out)
	}

	code, out, errs = run(t, nil, "vault", "check", "--config", o.config)
	if code != exitOK || strings.Contains(out, "problem") || strings.Contains(out, "warning") {
		t.Errorf("check: %d\n%s%s", code, out, errs)
	}
	code, out, _ = run(t, nil, "vault", "check", "--config", o.config, "-o", "json")
	var checked struct{ Findings []vault.Finding }
	if err := json.Unmarshal([]byte(out), &checked); err != nil || code != exitOK || len(checked.Findings) < 8 {
		t.Errorf("check as JSON: %d, %v\n%s", code, err, out)
	}
	// The issuer's schedule has a key that may have left Vault.
	const issuer = "https://pa.example.com"
	keyring, err := vault.Open(vault.Config{Addresses: []string{v.Addr}, Prefix: "mine", Auth: vault.Auth{
		Method: "approle", RoleIDFile: filepath.Join(filepath.Dir(o.secretID), "role-id"), SecretIDFile: o.secretID,
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer keyring.Close()
	document, err := rotation.DocumentName(issuer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.Swap(t.Context(), document, 0, []byte(`{"keys":[{"kid":"x","ref":"leaky"}]}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Client().Logical().WriteWithContext(t.Context(), "transit/keys/mine-leaky", map[string]any{"type": "ecdsa-p256", "exportable": true}); err != nil {
		t.Fatal(err)
	}
	code, out, errs = run(t, nil, "vault", "check", "--config", o.config, "--set", "issuers.0.url="+issuer)
	if code != exitFailure || !strings.Contains(out, "problem  signing key") || !strings.Contains(out, "mine-leaky") || !strings.Contains(errs, "are problems") {
		t.Errorf("check of a schedule with a bad key: %d\n%s%s", code, out, errs)
	}
	if out, err := v.Client().Sys().GetPolicyWithContext(context.Background(), "mine"); err != nil {
		t.Error(err)
	} else if _, printed, _ := run(t, nil, "vault", "policy", "--config", o.config); printed != out {
		t.Errorf("the policy in Vault is not what is printed:\n%s", printed)
	}

	fresh := servers.StartVault(t, servers.VaultOptions{})
	t.Setenv("VAULT_ADDR", fresh.Addr)
	t.Setenv("VAULT_TOKEN", fresh.RootToken)
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(t.TempDir(), "other.key")
	if err := os.WriteFile(wrong, []byte(other.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs = run(t, nil, "vault", "bootstrap", "--config", o.config, "--restore-subject-key", o.backup, "--identity", wrong)
	if mounts, err := fresh.Client().Sys().ListMountsWithContext(t.Context()); code != exitUsage || !strings.Contains(errs, "restore the subject key") || out != "" || err != nil || mounts["transit/"] != nil {
		t.Errorf("restore with another identity: %d\n%s%s%v %v", code, out, errs, mounts, err)
	}
	code, out, errs = run(t, nil, "vault", "bootstrap", "--config", o.config, "--restore-subject-key", o.backup, "--identity", o.identity)
	if code != exitOK || !strings.Contains(out, "restored  subject key") || !strings.Contains(out, result.SubjectCheck) {
		t.Errorf("restore: %d\n%s%s", code, out, errs)
	}
}

func TestVaultUsage(t *testing.T) {
	t.Setenv("VAULT_ADDR", "")
	t.Setenv("VAULT_TOKEN", "")
	notIdentity := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(notIdentity, []byte("AGE-SECRET-KEY-1hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := "--set=custody.vault.addresses.0=http://127.0.0.1:1"
	approle := []string{"--set=custody.kind=vault", address, "--set=custody.vault.auth.method=approle",
		"--set=custody.vault.auth.roleIdFile=/r", "--set=custody.vault.auth.secretIdFile=/s"}
	kubernetes := []string{"--set=custody.kind=vault", address, "--set=custody.vault.auth.method=kubernetes", "--set=custody.vault.auth.role=r"}
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"a word that is no command":  {[]string{"vault", "bootsrap"}, `unknown command "bootsrap"`},
		"check without Vault":        {[]string{"vault", "check"}, "custody.kind is local"},
		"no address":                 {[]string{"vault", "bootstrap"}, "VAULT_ADDR"},
		"no token":                   {append([]string{"vault", "bootstrap"}, approle...), "VAULT_TOKEN"},
		"a backup for nobody":        {[]string{"vault", "bootstrap", "--backup", "f"}, "backup-to"},
		"a backup for a wrong one":   {[]string{"vault", "bootstrap", "--backup", "f", "--backup-to", "age1nobody"}, "--backup-to"},
		"no identity":                {[]string{"vault", "bootstrap", "--restore-subject-key", "f"}, "identity"},
		"a file without an identity": {[]string{"vault", "bootstrap", "--restore-subject-key", "f", "--identity", notIdentity}, "holds no age identity"},
		"a role for no method":       {[]string{"vault", "bootstrap", "--with-role"}, "custody.vault.auth.method"},
		"no file of an authority": {append([]string{"vault", "bootstrap", "--with-role", "--service-account", "pact/signer",
			"--kubernetes-ca-file", "/nowhere"}, kubernetes...), "--kubernetes-ca-file"},
		"no token of a reviewer": {append([]string{"vault", "bootstrap", "--with-role", "--service-account", "pact/signer",
			"--kubernetes-reviewer-token-file", "/nowhere"}, kubernetes...), "--kubernetes-reviewer-token-file"},
		"a prefix that Vault refuses": {[]string{"vault", "policy", "--set", "custody.vault.prefix=a*"}, "prefix"},
	} {
		code, _, errs := run(t, nil, c.args...)
		if code != exitUsage || !strings.Contains(errs, c.says) || strings.Contains(errs, "hunter2") {
			t.Errorf("%s: %d, %s", name, code, errs)
		}
	}
	code, out, _ := run(t, nil, "vault", "policy", "-o", "json", "--set", "custody.vault.wrapped=true")
	var policy struct{ Policy string }
	if err := json.Unmarshal([]byte(out), &policy); err != nil || code != exitOK || !strings.Contains(policy.Policy, "decrypt") {
		t.Errorf("policy as JSON: %d, %v\n%s", code, err, out)
	}
}

// A deployment that is made before Vault is prepared says what comes first.
func TestInitBeforeBootstrap(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{})
	redis := servers.StartRedis(t, servers.RedisOptions{})
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(v.RootToken), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := run(t, nil, "init", "--insecure-vault", "--insecure-redis", "--show-admin-token", "--set", "custody.kind=vault",
		"--set", "custody.vault.addresses="+v.Addr, "--set", "custody.vault.auth.method=token", "--set", "custody.vault.auth.tokenFile="+token,
		"--set", "store.kind=redis", "--set", "store.redis.addresses="+redis.Addr(), "--set", "issuers.0.url=https://pa.example.com")
	if code != exitFailure || !strings.Contains(errs, "if nobody has prepared it yet, `signer vault bootstrap` does") {
		t.Errorf("%d: %s", code, errs)
	}
}
