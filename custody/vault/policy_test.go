package vault

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/hashicorp/vault/api"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/custodytest"
	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/test/servers"
)

// signerClient is logged in with the policy alone.
func (d *deployment) signerClient(t *testing.T) *api.Client {
	t.Helper()
	role, err := os.ReadFile(d.appRole.RoleIDFile)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := os.ReadFile(d.appRole.SecretIDFile)
	if err != nil {
		t.Fatal(err)
	}
	client := d.Client()
	login, err := client.Logical().WriteWithContext(t.Context(), "auth/approle/login", map[string]any{
		"role_id": strings.TrimSpace(string(role)), "secret_id": strings.TrimSpace(string(secret)),
	})
	if err != nil {
		t.Fatal(err)
	}
	client.SetToken(login.Auth.ClientToken)
	return client
}

func TestPolicyIsEnough(t *testing.T) {
	v := sharedVault(t)
	n := 0 // a test may begin anew
	custodytest.Run(t, func(t *testing.T) func() custody.Keyring {
		n++
		d := deploy(t, v, fmt.Sprintf("%s%d", prefixFor(t), n), false)
		var last *Keyring
		return func() custody.Keyring {
			if last != nil {
				if err := last.Close(); err != nil {
					t.Fatal(err)
				}
			}
			last = d.open(t)
			return last
		}
	})
}

func TestPolicyDenies(t *testing.T) {
	v := sharedVault(t)
	root := v.Client()
	for _, wrapped := range []bool{false, true} {
		prefix := fmt.Sprintf("%s%v", prefixFor(t), wrapped)
		d := deploy(t, v, prefix, wrapped)
		k := d.open(t)
		create(t, k, "a")
		swap(t, k, "doc", 0, "x")
		deploy(t, v, "other"+prefix, !wrapped)
		for path, data := range map[string]map[string]any{
			"transit/keys/" + prefix + "-b":                 {"type": "ecdsa-p256"},
			"transit/keys/" + prefix + "-wrap":              {},
			"transit/keys/other":                            {"type": "ecdsa-p256"},
			"transit/keys/other-exportable":                 {"type": "ecdsa-p256", "exportable": true, "allow_plaintext_backup": true},
			"secret/data/other":                             {"data": map[string]any{"a": "b"}},
			"secret/data/other" + prefix + "/documents/doc": {"data": map[string]any{"a": "b"}},
		} {
			if _, err := root.Logical().WriteWithContext(t.Context(), path, data); err != nil {
				t.Fatalf("write %s: %v", path, err)
			}
		}
		signer := d.signerClient(t)
		key, subject, wrap := "transit/keys/"+prefix+"-b", "transit/keys/"+prefix+"-subject", "transit/keys/"+prefix+"-wrap"
		kv := "/" + prefix + "/documents/doc"
		ciphertext := "vault:v1:AAAA"
		type request struct {
			method, path string
			data         map[string]any
		}
		denied := []request{
			{"GET", "transit/export/signing-key/" + prefix + "-b", nil},
			{"GET", "transit/export/hmac-key/" + prefix + "-subject", nil},
			{"GET", "transit/export/encryption-key/" + prefix + "-wrap", nil},
			{"GET", "transit/export/signing-key/other-exportable", nil},
			{"GET", "transit/byok-export/" + prefix + "-b/" + prefix + "-subject", nil},
			{"GET", "transit/backup/" + prefix + "-b", nil},
			{"GET", "transit/backup/" + prefix + "-subject", nil},
			{"GET", "transit/backup/other-exportable", nil},
			{"PUT", "transit/restore", map[string]any{"backup": "x"}},
			{"LIST", "transit/keys", nil},
			{"GET", "transit/keys/other", nil},
			{"PUT", "transit/keys/new", map[string]any{"type": "ecdsa-p256"}},
			{"PUT", "transit/keys/" + prefix + "-new", map[string]any{"type": "ecdsa-p256", "exportable": true}},
			{"PUT", "transit/keys/" + prefix + "-new", map[string]any{"type": "ecdsa-p256", "exportable": "true"}},
			{"PUT", "transit/keys/" + prefix + "-new", map[string]any{"type": "ecdsa-p256", "exportable": 1}},
			{"PUT", "transit/keys/" + prefix + "-new", map[string]any{"type": "ecdsa-p256", "EXPORTABLE": true}},
			{"PUT", "transit/keys/" + prefix + "-new", map[string]any{"type": "ecdsa-p256", "allow_plaintext_backup": true}},
			{"PUT", "transit/keys/" + prefix + "-new", map[string]any{"type": "ecdsa-p256", "auto_rotate_period": "1h"}},
			{"PUT", "transit/keys/" + prefix + "-new", map[string]any{"type": "hmac"}},
			{"PUT", "transit/keys/" + prefix + "-new", map[string]any{"type": "ed25519"}},
			{"PUT", key + "/config", map[string]any{"deletion_allowed": true}},
			{"PUT", key + "/config", map[string]any{"exportable": true}},
			{"PUT", key + "/config", map[string]any{"allow_plaintext_backup": true}},
			{"PUT", key + "/config", map[string]any{"auto_rotate_period": "1h"}},
			{"PUT", key + "/config", map[string]any{"min_decryption_version": 1}},
			{"PUT", key + "/config", map[string]any{"min_decryption_version": "1"}},
			{"PUT", key + "/config", map[string]any{"min_encryption_version": 0}},
			{"PUT", key + "/config", map[string]any{"min_encryption_version": "0"}},
			{"PUT", key + "/config", map[string]any{"min_encryption_version": "2,0"}},
			{"PUT", key + "/config", map[string]any{"min_decryption_version": "2", "deletion_allowed": true}},
			{"PUT", key + "/trim", map[string]any{"min_available_version": 1}},
			{"PUT", key + "/import", map[string]any{"ciphertext": "x", "type": "ecdsa-p256"}},
			{"PUT", key + "/import_version", map[string]any{"ciphertext": "x"}},
			{"DELETE", key, nil},
			{"PUT", "transit/sign/other", map[string]any{"input": "AAAA"}},
			{"PUT", "transit/hmac/other", map[string]any{"input": "AAAA"}},
			{"PUT", "transit/hmac/" + prefix + "-b", map[string]any{"input": "AAAA"}},
			{"PUT", "transit/verify/" + prefix + "-b", map[string]any{"input": "AAAA"}},
			{"PUT", "transit/encrypt/" + prefix + "-new", map[string]any{"plaintext": "AAAA", "associated_data": "AAAA"}},
			{"PUT", "transit/encrypt/" + prefix + "-wrap", map[string]any{"plaintext": "AAAA"}},
			{"PUT", "transit/decrypt/" + prefix + "-wrap", map[string]any{"ciphertext": ciphertext}},
			{"PUT", "transit/decrypt/" + prefix + "-wrap", map[string]any{"associated_data": "", "batch_input": []any{map[string]any{"ciphertext": ciphertext}}}},
			{"PUT", "transit/rewrap/" + prefix + "-wrap", map[string]any{"ciphertext": ciphertext}},
			{"PUT", "transit/datakey/plaintext/" + prefix + "-wrap", nil},
			{"GET", "transit/datakey/plaintext/" + prefix + "-wrap", nil},
			{"PUT", "transit/config/keys", map[string]any{"disable_upsert": true}},
			{"PUT", "transit/cache-config", map[string]any{"size": 10}},
			{"GET", "transit/wrapping_key", nil},
			{"PUT", subject, map[string]any{"type": "ecdsa-p256"}},
			{"PUT", subject + "/rotate", nil},
			{"PUT", subject + "/config", map[string]any{"min_decryption_version": 2}},
			{"PUT", subject + "/trim", nil},
			{"DELETE", subject, nil},
			{"PUT", wrap, nil},
			{"PUT", wrap + "/rotate", nil},
			{"PUT", wrap + "/config", map[string]any{"min_decryption_version": 2}},
			{"DELETE", wrap, nil},
			{"DELETE", "secret/data" + kv, nil},
			{"PUT", "secret/delete" + kv, map[string]any{"versions": []int{1}}},
			{"PUT", "secret/undelete" + kv, map[string]any{"versions": []int{1}}},
			{"PUT", "secret/destroy" + kv, map[string]any{"versions": []int{1}}},
			{"GET", "secret/metadata" + kv, nil},
			{"PUT", "secret/metadata" + kv, map[string]any{"max_versions": 1}},
			{"DELETE", "secret/metadata" + kv, nil},
			{"LIST", "secret/metadata/" + prefix + "/documents", nil},
			{"LIST", "secret/metadata", nil},
			{"GET", "secret/data/other", nil},
			{"PUT", "secret/data/other", map[string]any{"data": map[string]any{}}},
			{"GET", "secret/data/other" + prefix + "/documents/doc", nil},
			{"PUT", "secret/config", map[string]any{"max_versions": 1}},
			{"GET", "sys/policies/acl/" + prefix, nil},
			{"PUT", "sys/policies/acl/" + prefix, map[string]any{"policy": "path \"*\" {\n capabilities = [\"sudo\"]\n}"}},
			{"GET", "sys/mounts", nil},
			{"PUT", "sys/mounts/more", map[string]any{"type": "kv"}},
			{"DELETE", "sys/mounts/transit", nil},
			{"PUT", "sys/auth/more", map[string]any{"type": "approle"}},
			{"GET", "sys/audit", nil},
			{"PUT", "sys/seal", nil},
			{"PUT", "sys/step-down", nil},
			{"PUT", "auth/token/create", map[string]any{}},
			{"PUT", "auth/token/create-orphan", map[string]any{}},
			{"PUT", "auth/token/lookup", map[string]any{"token": v.RootToken}},
			{"PUT", "auth/approle/role/" + prefix + "/secret-id", nil},
			{"GET", "auth/approle/role/" + prefix + "/role-id", nil},
			{"GET", "cubbyhole/a", nil},
		}
		if wrapped {
			denied = append(denied,
				request{"GET", key, nil},
				request{"PUT", key, map[string]any{"type": "ecdsa-p256"}},
				request{"PUT", key + "/rotate", nil},
				request{"PUT", "transit/sign/" + prefix + "-b", map[string]any{"input": "AAAA"}},
				request{"DELETE", "secret/data/" + prefix + "/keys/a", nil},
				request{"DELETE", "secret/metadata/" + prefix + "/keys/a", nil},
			)
		} else {
			denied = append(denied,
				request{"GET", wrap, nil},
				request{"PUT", "transit/encrypt/" + prefix + "-wrap", map[string]any{"plaintext": "AAAA", "associated_data": "AAAA"}},
				request{"PUT", "transit/decrypt/" + prefix + "-wrap", map[string]any{"ciphertext": ciphertext, "associated_data": "AAAA"}},
				request{"GET", "secret/data/" + prefix + "/keys/a", nil},
			)
		}
		for _, r := range denied {
			var err error
			switch logical := signer.Logical(); r.method {
			case "GET":
				_, err = logical.ReadWithContext(t.Context(), r.path)
			case "LIST":
				_, err = logical.ListWithContext(t.Context(), r.path)
			case "PUT":
				_, err = logical.WriteWithContext(t.Context(), r.path, r.data)
			case "DELETE":
				_, err = logical.DeleteWithContext(t.Context(), r.path)
			}
			var answer *api.ResponseError
			if !errors.As(err, &answer) || answer.StatusCode != http.StatusForbidden {
				t.Errorf("wrapped %v: %s %s %v: %v, want 403", wrapped, r.method, r.path, r.data, err)
			}
		}
		// All that did nothing.
		if _, err := k.SubjectCheck(t.Context()); err != nil {
			t.Errorf("the subject key: %v", err)
		}
		if pub, _, err := k.Public(t.Context(), "a"); err != nil || pub == nil {
			t.Errorf("the signing key: %v", err)
		}
		mustCreate(t, k, "c", jose.RS256)
	}
}

func TestPolicyHasTheNamesOfItsConfiguration(t *testing.T) {
	shipped, err := os.ReadFile("policy.hcl")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Policy(Config{}); err != nil || got != string(shipped) {
		t.Errorf("the policy of the defaults is not the shipped file (%v)", err)
	}
	for _, wrapped := range []bool{false, true} {
		got, err := Policy(Config{Transit: "secret/crypt", KV: "pact-signer/transit", Prefix: "mine", Wrapped: wrapped})
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(got, "\n") {
			path, ok := strings.CutPrefix(line, `path "`)
			if ok && !strings.HasPrefix(path, "secret/crypt/") && !strings.HasPrefix(path, "pact-signer/transit/") && !strings.HasPrefix(path, "auth/token/") && !strings.HasPrefix(path, "sys/") {
				t.Errorf("path %s", path)
			}
		}
		if n := strings.Count(got, "pact-signer"); n != strings.Count(got, "pact-signer/transit/") {
			t.Errorf("the default prefix is left:\n%s", got)
		}
		if (strings.Contains(got, "/sign/") || !strings.Contains(got, "/decrypt/mine-wrap")) == wrapped {
			t.Errorf("wrapped %v:\n%s", wrapped, got)
		}
	}
	if _, err := Policy(Config{Prefix: `x" {} path "*`}); err == nil {
		t.Error("a prefix that is more than a name")
	}
}

// finding returns the first finding about a check that is not as it should be.
func finding(findings []Finding, check string) Finding {
	for _, f := range findings {
		if f.Check == check && f.Severity != OK {
			return f
		}
	}
	return Finding{}
}

func TestCheckOfAGoodVault(t *testing.T) {
	v := sharedVault(t)
	for _, wrapped := range []bool{false, true} {
		d := deploy(t, v, fmt.Sprintf("%s%v", prefixFor(t), wrapped), wrapped)
		for range 2 {
			findings := Check(t.Context(), d.cfg)
			if made, err := v.Client().Logical().ListWithContext(t.Context(), "secret/metadata/"+d.cfg.Prefix); err != nil || made != nil {
				t.Errorf("the check wrote something: %v, %v", made, err)
			}
			if len(findings) < 8 {
				t.Errorf("only %d findings", len(findings))
			}
			for _, f := range findings {
				if f.Severity != OK || f.Fix != "" || f.Detail == "" {
					t.Errorf("wrapped %v: %+v", wrapped, f)
				}
			}
		}
	}
}

// A busy Vault that does not take the first login is no finding.
func TestCheckAwaitsLogin(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), false)
	target, err := url.Parse(v.Addr)
	if err != nil {
		t.Fatal(err)
	}
	var logins atomic.Int64
	forward := httputil.NewSingleHostReverseProxy(target)
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/login") && logins.Add(1) <= 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(busy.Close)
	cfg := d.cfg
	cfg.Addresses = []string{busy.URL}
	if f := finding(Check(t.Context(), cfg), "login"); f.Check != "" {
		t.Errorf("%+v", f)
	}
	if logins.Load() < 3 {
		t.Errorf("%d logins: this proves nothing", logins.Load())
	}
}

func TestCheckFinds(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{})
	root := v.Client()
	write := func(t *testing.T, path string, data map[string]any) {
		t.Helper()
		if _, err := root.Logical().WriteWithContext(t.Context(), path, data); err != nil {
			t.Fatalf("write %s: %v", path, err)
		}
	}
	for name, c := range map[string]struct {
		spoil       func(t *testing.T, d *deployment)
		check       string
		severity    Severity
		detail, fix string
	}{
		"no login": {func(t *testing.T, d *deployment) {
			write(t, "auth/approle/role/"+d.cfg.Prefix, map[string]any{"bind_secret_id": true, "secret_id_bound_cidrs": "10.0.0.1/32"})
		}, "login", Problem, "", "role"},
		"a root token": {func(t *testing.T, d *deployment) { d.token(t, v.RootToken) }, "login", Problem, "root", "policy"},
		"a token that ends": {func(t *testing.T, d *deployment) {
			d.newToken(t, map[string]any{"policies": []string{d.cfg.Prefix}, "no_default_policy": true, "ttl": "1h", "renewable": false, "no_parent": true})
		}, "login", Warning, "can not be renewed", "periodic"},
		"a token of somebody": {func(t *testing.T, d *deployment) {
			d.newToken(t, map[string]any{"policies": []string{d.cfg.Prefix}, "no_default_policy": true, "period": "1h"})
		}, "login", Warning, "ends with the token that made it", "-orphan"},
		"a token for some uses": {func(t *testing.T, d *deployment) {
			d.newToken(t, map[string]any{"policies": []string{d.cfg.Prefix}, "no_default_policy": true, "period": "1h", "num_uses": 100, "no_parent": true})
		}, "login", Problem, "uses", "token_num_uses=0"},
		"a clock that is off": {func(t *testing.T, d *deployment) {
			d.cfg.Now = func() time.Time { return time.Now().Add(-8 * time.Second) }
		}, "clock", Warning, "apart", "NTP"},
		"a clock that is far off": {func(t *testing.T, d *deployment) {
			d.cfg.Now = func() time.Time { return time.Now().Add(time.Minute) }
		}, "clock", Problem, "apart", "NTP"},
		"a policy that lacks something": {func(t *testing.T, d *deployment) {
			policy, err := Policy(d.cfg)
			if err != nil {
				t.Fatal(err)
			}
			write(t, "sys/policies/acl/"+d.cfg.Prefix, map[string]any{"policy": strings.Replace(policy, `"create", "read", "update"`, `"create", "read"`, 1)})
		}, "policy", Problem, "update on transit/keys/", "signer vault policy"},
		"a policy that allows export": {func(t *testing.T, d *deployment) {
			d.alsoAllowed(t, `path "transit/export/*" { capabilities = ["read"] }`)
		}, "policy", Warning, "read on transit/export/", "signer vault policy"},
		"a policy that allows deletion": {func(t *testing.T, d *deployment) {
			d.alsoAllowed(t, `path "secret/data/*" { capabilities = ["delete", "read"] }`)
		}, "policy", Warning, "secret/data/of-somebody-else", "signer vault policy"},
		"a policy for everything": {func(t *testing.T, d *deployment) {
			d.alsoAllowed(t, `path "sys/*" { capabilities = ["create", "read", "update", "sudo"] }`)
		}, "policy", Warning, "sudo", "signer vault policy"},
		"another transit mount": {func(t *testing.T, d *deployment) { d.cfg.Transit = "nowhere" }, "transit", Problem, "not there", "vault secrets enable"},
		"KV as transit":         {func(t *testing.T, d *deployment) { d.cfg.Transit, d.cfg.KV = "secret", "elsewhere" }, "transit", Problem, "KV version 2", "custody.vault.transit"},
		"KV that is not there":  {func(t *testing.T, d *deployment) { d.cfg.KV = "nowhere" }, "kv", Problem, "not there", "-version=2"},
		"KV that deletes": {func(t *testing.T, d *deployment) {
			write(t, "secret/config", map[string]any{"delete_version_after": "240h"})
			t.Cleanup(func() { root.Logical().Write("secret/config", map[string]any{"delete_version_after": "0s"}) })
		}, "kv", Problem, "240h", "delete_version_after=0s"},
		"a subject key that is gone": {func(t *testing.T, d *deployment) {
			write(t, "transit/keys/"+d.cfg.Prefix+"-subject/config", map[string]any{"deletion_allowed": true})
			if _, err := root.Logical().Delete("transit/keys/" + d.cfg.Prefix + "-subject"); err != nil {
				t.Fatal(err)
			}
		}, "subject key", Problem, "not there", "bootstrap"},
		"a subject key that may be deleted": {func(t *testing.T, d *deployment) {
			write(t, "transit/keys/"+d.cfg.Prefix+"-subject/config", map[string]any{"deletion_allowed": true})
		}, "subject key", Warning, "deleted", "deletion_allowed=false"},
		"a subject key that can be exported": {func(t *testing.T, d *deployment) {
			write(t, "transit/keys/"+d.cfg.Prefix+"-subject/config", map[string]any{"exportable": true})
		}, "subject key", Problem, "exportable", "--restore-subject-key"},
		"a deleted document": {func(t *testing.T, d *deployment) {
			swap(t, d.open(t), "deployment", 0, "x")
			if err := root.KVv2(DefaultKV).Delete(t.Context(), d.cfg.Prefix+"/documents/deployment"); err != nil {
				t.Fatal(err)
			}
		}, "documents", Problem, "vault kv undelete", "restore"},
		"a wrapping key that can be exported": {func(t *testing.T, d *deployment) {
			write(t, "transit/keys/"+d.cfg.Prefix+"-wrap/config", map[string]any{"allow_plaintext_backup": true})
		}, "wrapping key", Problem, "plaintext backup", "another prefix"},
		"a wrapping key that is not there": {func(t *testing.T, d *deployment) {
			write(t, "transit/keys/"+d.cfg.Prefix+"-wrap/config", map[string]any{"deletion_allowed": true})
			if _, err := root.Logical().Delete("transit/keys/" + d.cfg.Prefix + "-wrap"); err != nil {
				t.Fatal(err)
			}
		}, "wrapping key", Problem, "not there", "bootstrap"},
		"no Vault": {func(t *testing.T, d *deployment) {
			d.cfg.Addresses = []string{"http://127.0.0.1:1"}
		}, "server", Problem, "does not answer", "addresses"},
		"a namespace in Community": {func(t *testing.T, d *deployment) {
			d.cfg.Namespace = "team"
		}, "namespace", Warning, "ignores team", "custody.vault.namespace"},
		"a bad configuration": {func(t *testing.T, d *deployment) { d.cfg.Auth.Method = "password" }, "configuration", Problem, "password", "custody.vault"},
	} {
		t.Run(name, func(t *testing.T) {
			d := deploy(t, v, prefixFor(t), c.check == "wrapping key")
			c.spoil(t, d)
			findings := Check(t.Context(), d.cfg)
			f := finding(findings, c.check)
			if f.Severity != c.severity || !strings.Contains(f.Detail, c.detail) || !strings.Contains(f.Fix, c.fix) || f.Fix == "" {
				t.Errorf("%+v, want a %s of %s about %q, fixed by %q; all: %+v", f, c.severity, c.check, c.detail, c.fix, findings)
			}
			if strings.Contains(fmt.Sprint(findings), v.RootToken) {
				t.Error("a finding tells the token")
			}
		})
	}
	d := deploy(t, v, "sealed", false)
	v.Seal()
	findings := Check(t.Context(), d.cfg)
	if f := finding(findings, "server"); f.Severity != Problem || !strings.Contains(f.Detail, "sealed") || !strings.Contains(f.Fix, "unseal") || len(findings) != 1 {
		t.Errorf("a sealed Vault: %+v", findings)
	}
}

// A signing key of the schedule is looked at by the name that the schedule has.
func TestCheckOfSchedules(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), false)
	k := d.open(t)
	var keys []map[string]any
	for _, name := range []string{"good", "exportable", "deletable", "gone", "replaced", "removed", "revoked"} {
		kid, err := jwks.Thumbprint(create(t, k, name))
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, map[string]any{"kid": kid, "ref": name})
	}
	past := time.Now().Add(-time.Hour)
	keys[5]["removeAt"], keys[6]["revokedAt"] = past, past
	document, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	swap(t, k, "schedule-a", 0, string(document))
	root := v.Client().Logical()
	config := func(name string, data map[string]any) {
		t.Helper()
		if _, err := root.WriteWithContext(t.Context(), "transit/keys/"+d.cfg.Prefix+"-"+name+"/config", data); err != nil {
			t.Fatal(err)
		}
	}
	config("exportable", map[string]any{"exportable": true})
	for _, name := range []string{"deletable", "gone", "replaced", "removed", "revoked"} {
		config(name, map[string]any{"deletion_allowed": true})
		if name == "deletable" {
			continue
		}
		if _, err := root.DeleteWithContext(t.Context(), "transit/keys/"+d.cfg.Prefix+"-"+name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := root.WriteWithContext(t.Context(), "transit/keys/"+d.cfg.Prefix+"-replaced", map[string]any{"type": "ecdsa-p256"}); err != nil {
		t.Fatal(err)
	}

	var got []string
	for _, f := range Check(t.Context(), d.cfg, "schedule-a", "schedule-not-made-yet") {
		if f.Check == "signing key" {
			got = append(got, fmt.Sprintf("%s: %s", f.Severity, f.Detail))
		}
	}
	want := []string{
		"ok: " + d.cfg.Prefix + "-good",
		"problem: " + d.cfg.Prefix + "-exportable: it is exportable",
		"warning: " + d.cfg.Prefix + "-deletable may be deleted",
		"problem: the transit key " + d.cfg.Prefix + "-gone is not there",
		"problem: " + d.cfg.Prefix + "-replaced is another key",
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("findings:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// token makes the signer log in with a token.
func (d *deployment) token(t *testing.T, token string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	d.cfg.Auth = Auth{Method: "token", TokenFile: file}
}

// newToken makes it log in with a token that is made so.
func (d *deployment) newToken(t *testing.T, how map[string]any) {
	t.Helper()
	secret, err := d.Client().Logical().WriteWithContext(t.Context(), "auth/token/create", how)
	if err != nil {
		t.Fatal(err)
	}
	d.token(t, secret.Auth.ClientToken)
}

// alsoAllowed gives the signer a policy more.
func (d *deployment) alsoAllowed(t *testing.T, policy string) {
	t.Helper()
	for path, data := range map[string]map[string]any{
		"sys/policies/acl/" + d.cfg.Prefix + "-more": {"policy": policy},
		"auth/approle/role/" + d.cfg.Prefix:          {"token_policies": []string{d.cfg.Prefix, d.cfg.Prefix + "-more"}},
	} {
		if _, err := d.Client().Logical().WriteWithContext(t.Context(), path, data); err != nil {
			t.Fatal(err)
		}
	}
}
