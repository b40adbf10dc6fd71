package fleet

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"filippo.io/age"

	"github.com/pactsigner/pactsigner/test/servers"
)

// bootstrapping: one operator at a time prepares a Vault.
var bootstrapping sync.Mutex

// OnVault has the keys of a fleet in a Vault, under a prefix of its own. Mounts,
// subject key, policy and AppRole are made by `signer vault bootstrap`, so that the
// signers may do no more than their policy says.
func OnVault(t T, v *servers.Vault, prefix string, wrapped bool) Settings {
	t.Helper()
	dir := t.TempDir()
	s := Settings{
		"custody.kind":                    "vault",
		"custody.vault.addresses":         []any{v.Addr},
		"custody.vault.prefix":            prefix,
		"custody.vault.wrapped":           wrapped,
		"custody.vault.auth.method":       "approle",
		"custody.vault.auth.roleIdFile":   filepath.Join(dir, "role-id"),
		"custody.vault.auth.secretIdFile": filepath.Join(dir, "secret-id"),
	}
	config := filepath.Join(dir, "signer.yaml")
	writeSettings(t, config, s)
	backup, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatalf("a key for the backup: %v", err)
	}
	bootstrapping.Lock()
	defer bootstrapping.Unlock()
	cmd := exec.Command(built(t).Signer, "vault", "bootstrap", "--config", config, "--with-role",
		"--backup", filepath.Join(dir, "subject.age"), "--backup-to", backup.Recipient().String())
	cmd.Env = append(os.Environ(), "VAULT_ADDR="+v.Addr, "VAULT_TOKEN="+v.RootToken)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("signer vault bootstrap: %v\n%s", err, out)
	}
	return s
}

// RevokeTokens ends every token that AppRole has given out at a Vault, and returns
// how many there were.
func RevokeTokens(t T, v *servers.Vault) int {
	t.Helper()
	c := v.Client()
	list, err := c.Logical().List("auth/token/accessors")
	if err != nil {
		t.Fatalf("list the tokens: %v", err)
	}
	revoked := 0
	for _, accessor := range list.Data["keys"].([]any) {
		token, err := c.Auth().Token().LookupAccessor(accessor.(string))
		if err != nil || token.Data["path"] != "auth/approle/login" {
			continue // it has expired meanwhile, or is the root's
		}
		if err := c.Auth().Token().RevokeAccessor(accessor.(string)); err != nil {
			t.Fatalf("revoke a token: %v", err)
		}
		revoked++
	}
	return revoked
}

// OnRedis has the records of a fleet in one Redis.
func OnRedis(address string, acks int) Settings {
	return Settings{"store.kind": "redis", "store.redis.mode": "standalone", "store.redis.addresses": []any{address}, "store.redis.acks": acks}
}

// OnSentinels has the records where the Sentinels say that the master is.
func OnSentinels(s *servers.Sentinels, acks int) Settings {
	addresses := make([]any, 0, len(s.Addrs()))
	for _, a := range s.Addrs() {
		addresses = append(addresses, a)
	}
	return Settings{
		"store.kind": "redis", "store.redis.mode": "sentinel", "store.redis.masterName": servers.MasterName,
		"store.redis.addresses": addresses, "store.redis.acks": acks,
	}
}

// With are these settings and others, which win.
func (s Settings) With(others Settings) Settings {
	all := Settings{}
	for _, from := range []Settings{s, others} {
		for path, value := range from {
			all[path] = value
		}
	}
	return all
}
