package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/pactsigner/pactsigner/custody/vault"
	"github.com/pactsigner/pactsigner/test/servers"
)

// A Vault is lost, and another is prepared in its place: what the runbook lost-vault says
// brings everything back but the keys. What was stopped after the last export is stopped
// still, for running replicas told the new Vault; and since nobody knows what else was
// done after it, nobody enrols before somebody has looked.
func TestLostVault(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	first, second := servers.StartVault(t, servers.VaultOptions{}), servers.StartVault(t, servers.VaultOptions{})
	proxy := servers.NewProxy(t, strings.TrimPrefix(first.Addr, "http://"))
	c := onVault(t, onRedis(t, redis.Addr()), first, false)
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	backup := filepath.Join(t.TempDir(), "subject.backup")
	c.Custody.Vault.Prefix = "lost" // onVault keeps no backup
	bootstrap(t, c, first, vault.BootstrapOptions{BackupFile: backup, BackupTo: []age.Recipient{identity.Recipient()}})
	c.Custody.Vault.Addresses = []string{"http://" + proxy.Addr()}
	token := mustInit(t, c)
	a, b := run(t, c), run(t, c)
	a.awaitReady(t)
	b.awaitReady(t)
	credential := a.letIn(t, token)
	a.signs(t, credential)
	old := a.keySet(t)
	before, _ := a.keeper.current()
	var file bytes.Buffer
	if err := a.operators.config.State.Export(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	stolen := map[string]any{"kind": "device", "value": "hkwVu1nVfLNKQVkbX6JXbZBdeiNWcXFeSn-S4OVSOsM"}
	a.mustOperate(t, token, "POST", "/v1/kill", map[string]any{"scope": stolen, "reason": "stolen"})

	first.Kill()
	proxy.SetTarget(strings.TrimPrefix(second.Addr, "http://"))
	if err := os.WriteFile(c.Custody.Vault.Auth.TokenFile, []byte(second.RootToken), 0o600); err != nil {
		t.Fatal(err)
	}
	bootstrap(t, c, second, vault.BootstrapOptions{RestoreFile: backup, RestoreWith: []age.Identity{identity}})
	a.unreadyBecause(t, "the deployment's record is gone")
	a.noTokens(t, credential)
	kv := second.Client().Logical()
	eventually(t, func() string {
		if doc, err := kv.Read(strings.Replace(kvPath(c, "data"), deploymentName, "kill-switch", 1)); err != nil || doc == nil {
			return fmt.Sprintf("the new Vault has no kill switch: %v", err)
		}
		return ""
	})
	stop(t, a, b)

	c.Store.Redis.Prefix = "pact2"
	token = mustInit(t, c)
	s := run(t, c)
	s.awaitReady(t)
	now, _ := s.keeper.current()
	if now.Store == before.Store || now.SubjectCheck != before.SubjectCheck {
		t.Errorf("the deployment was %+v and is %+v", before, now)
	}
	result, err := s.operators.config.State.Import(t.Context(), &file, "test", now.Store)
	if err != nil {
		t.Fatal(err)
	}
	s.awaitReady(t)
	verifies(t, s.signs(t, credential), s.keySet(t))
	if s.keySet(t).Keys[0].KeyID == old.Keys[0].KeyID {
		t.Error("it signs with the lost key")
	}
	if mode := s.enrolment(t, token); !result.EnrolmentClosed || mode != "closed" {
		t.Errorf("enrolment is %s after %+v", mode, result)
	}
	entries, _ := s.mustOperate(t, token, "GET", "/v1/kill", nil)["entries"].([]any)
	if len(entries) != 1 || entries[0].(map[string]any)["reason"] != "stolen" {
		t.Errorf("stopped is %v", entries)
	}
	s.mustOperate(t, token, "POST", "/v1/state:open-enrolment", map[string]any{})
	if mode := s.enrolment(t, token); mode != "open" {
		t.Errorf("enrolment is %s", mode)
	}
}
