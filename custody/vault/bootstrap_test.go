package vault

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"
	"github.com/hashicorp/vault/api"

	"github.com/pactsigner/pactsigner/test/servers"
)

// dones counts the steps by what was done.
func dones(r BootstrapResult) map[string]int {
	counts := map[string]int{}
	for _, s := range r.Steps {
		counts[s.Done]++
	}
	return counts
}

// backupKey decrypts a deployment's backup.
func (d *deployment) backupKey(t *testing.T) []byte {
	t.Helper()
	key, err := readBackup(d.options.BackupFile, d.cfg.Prefix, []age.Identity{d.identity})
	if err != nil {
		t.Fatalf("the backup: %v", err)
	}
	return key
}

func macWith(key []byte, message string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(message))
	return h.Sum(nil)
}

func TestBootstrapIsIdempotent(t *testing.T) {
	v := sharedVault(t)
	for _, wrapped := range []bool{false, true} {
		d := deploy(t, v, fmt.Sprintf("%s%v", prefixFor(t), wrapped), wrapped)
		k := d.open(t)
		message := "subject of somebody"
		before, err := k.MAC(t.Context(), []byte(message))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before, macWith(d.backupKey(t), message)) {
			t.Error("the backup is not of the key in Vault")
		}
		if check, err := k.SubjectCheck(t.Context()); err != nil || check != d.bootstrap.SubjectCheck || check != checkValueOf(d.backupKey(t)) {
			t.Errorf("check value %s, %v, bootstrap says %s", check, err, d.bootstrap.SubjectCheck)
		}
		files := snapshot(t, d.dir)
		again, err := Bootstrap(t.Context(), v.Client(), d.cfg, d.options)
		if err != nil {
			t.Fatalf("again: %v", err)
		}
		// A role is written anew each time, which changes nothing.
		if counts := dones(again); counts[stepMade] != 0 || counts[stepUpdated] != 1 || len(again.Notes) != 0 || again.SubjectCheck != d.bootstrap.SubjectCheck {
			t.Errorf("again: %+v", again)
		}
		if now := snapshot(t, d.dir); fmt.Sprint(now) != fmt.Sprint(files) {
			t.Errorf("files changed: %v, then %v", files, now)
		}
		// Somebody who does not have the files.
		elsewhere, err := Bootstrap(t.Context(), v.Client(), d.cfg, BootstrapOptions{})
		if err != nil || dones(elsewhere)[stepMade] != 0 || elsewhere.SubjectCheck != d.bootstrap.SubjectCheck {
			t.Errorf("without files: %+v, %v", elsewhere, err)
		}
		options := d.options
		options.BackupFile, options.AppRole = filepath.Join(t.TempDir(), "backup"), nil
		elsewhere, err = Bootstrap(t.Context(), v.Client(), d.cfg, options)
		if err != nil || len(elsewhere.Notes) != 1 || !strings.Contains(elsewhere.Notes[0], "was there before") {
			t.Errorf("with another backup file: %+v, %v", elsewhere, err)
		}
		if _, err := os.Stat(options.BackupFile); !os.IsNotExist(err) {
			t.Errorf("a backup of what: %v", err)
		}
		after, err := k.MAC(t.Context(), []byte(message))
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("the subject key changed: %v", err)
		}
	}
}

// snapshot lists a folder's files with what they hold, and checks that nobody else
// can read them.
func snapshot(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", e.Name(), info.Mode().Perm())
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, fmt.Sprintf("%s %x", e.Name(), sha256.Sum256(text)))
	}
	return files
}

// failing is a client of Vault whose nth request fails, as does all after it: the
// process was killed there, before it sent the request or before it saw the answer.
func failing(t *testing.T, v *servers.Vault, n int, how loss) (*api.Client, *int) {
	t.Helper()
	count := 0
	config := api.DefaultConfig()
	config.Address, config.MaxRetries = v.Addr, 0
	config.HttpClient = &http.Client{Transport: &lossy{RoundTripper: http.DefaultTransport, lose: func(*http.Request) loss {
		count++
		switch {
		case count < n:
			return loseNothing
		case count == n:
			return how
		default:
			return loseRequest
		}
	}}}
	client, err := api.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	client.SetToken(v.RootToken)
	return client, &count
}

func TestBootstrapInterruptedAnywhere(t *testing.T) {
	v := sharedVault(t)
	deploy(t, v, prefixFor(t), false) // the mounts, of which transit's import key takes seconds to make
	for _, how := range []loss{loseRequest, loseAnswer} {
		for n := 1; ; n++ {
			prefix := fmt.Sprintf("s%dn%d", how, n)
			identity, err := age.GenerateX25519Identity()
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			role := &AppRoleOptions{Mount: "approle-" + prefix, RoleIDFile: filepath.Join(dir, "role"), SecretIDFile: filepath.Join(dir, "secret")}
			o := BootstrapOptions{BackupFile: filepath.Join(dir, "backup"), BackupTo: []age.Recipient{identity.Recipient()}, AppRole: role}
			cfg := Config{Addresses: []string{v.Addr}, Prefix: prefix, KV: "kv-" + prefix, Wrapped: true,
				Auth: Auth{Method: "approle", Mount: role.Mount, RoleIDFile: role.RoleIDFile, SecretIDFile: role.SecretIDFile}}
			client, count := failing(t, v, n, how)
			_, err = Bootstrap(t.Context(), client, cfg, o)
			if err == nil {
				if n < 15 || *count >= n {
					t.Fatalf("it did not fail at request %d of %d", n, *count)
				}
				break
			}
			result, err := Bootstrap(t.Context(), v.Client(), cfg, o)
			if err != nil {
				t.Fatalf("request %d, loss %d: run again: %v", n, how, err)
			}
			key, err := readBackup(o.BackupFile, prefix, []age.Identity{identity})
			if err != nil || checkValueOf(key) != result.SubjectCheck {
				t.Errorf("request %d, loss %d: the backup is not of the key in Vault (%v)", n, how, err)
			}
			for _, f := range Check(t.Context(), cfg) {
				if f.Severity != OK {
					t.Errorf("request %d, loss %d: %+v", n, how, f)
				}
			}
		}
	}
}

func TestBootstrapsAtTheSameTime(t *testing.T) {
	v := sharedVault(t)
	deploy(t, v, prefixFor(t), false) // the mounts, of which transit's import key takes seconds to make
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for round := range 5 {
		prefix := fmt.Sprintf("round%d", round)
		files := make([]string, 4)
		results := make([]BootstrapResult, len(files))
		var wg sync.WaitGroup
		for i := range files {
			files[i] = filepath.Join(t.TempDir(), "backup")
			wg.Go(func() {
				var err error
				results[i], err = Bootstrap(t.Context(), v.Client(), Config{Prefix: prefix}, BootstrapOptions{BackupFile: files[i], BackupTo: []age.Recipient{identity.Recipient()}})
				if err != nil {
					t.Errorf("Bootstrap: %v", err)
				}
			})
		}
		wg.Wait()
		backups := 0
		for i, file := range files {
			if results[i].SubjectCheck != results[0].SubjectCheck {
				t.Error("bootstraps found several subject keys")
			}
			key, err := readBackup(file, prefix, []age.Identity{identity})
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil || checkValueOf(key) != results[0].SubjectCheck {
				t.Errorf("a backup of another key (%v)", err)
			}
			backups++
		}
		if backups != 1 {
			t.Errorf("%d backups", backups)
		}
	}
}

// Before each mount that one bootstrap makes, another one has made it.
func TestBootstrapFindsWhatAnotherMountedMeanwhile(t *testing.T) {
	v := sharedVault(t)
	root := v.Client()
	mount := func(path string, what map[string]any) func(t *testing.T) {
		return func(t *testing.T) {
			if _, err := root.Logical().WriteWithContext(t.Context(), path, what); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	kv := map[string]any{"type": "kv", "options": map[string]any{"version": "2"}}
	for name, c := range map[string]struct {
		prefix    string
		meanwhile map[string]func(t *testing.T) // by the path of our request
		want      string                        // error; empty: none
	}{
		"the same": {"m1", map[string]func(t *testing.T){
			"sys/mounts/m1-transit": mount("sys/mounts/m1-transit", map[string]any{"type": "transit"}),
			"sys/mounts/m1-kv":      mount("sys/mounts/m1-kv", kv),
			"sys/auth/m1-auth":      mount("sys/auth/m1-auth", map[string]any{"type": "approle"}),
		}, ""},
		"another engine": {"m2", map[string]func(t *testing.T){
			"sys/mounts/m2-transit": mount("sys/mounts/m2-transit", kv),
		}, "of type kv, not transit"},
		"below ours": {"m3", map[string]func(t *testing.T){
			"sys/mounts/m3-transit": mount("sys/mounts/m3-transit/below", map[string]any{"type": "transit"}),
		}, "already in use"},
	} {
		t.Run(name, func(t *testing.T) {
			done := 0
			config := api.DefaultConfig()
			config.Address = v.Addr
			config.HttpClient = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				if f := c.meanwhile[strings.TrimPrefix(r.URL.Path, "/v1/")]; f != nil && r.Method != http.MethodGet {
					done++
					f(t)
				}
				return http.DefaultTransport.RoundTrip(r)
			})}
			client, err := api.NewClient(config)
			if err != nil {
				t.Fatal(err)
			}
			client.SetToken(v.RootToken)
			identity, err := age.GenerateX25519Identity()
			if err != nil {
				t.Fatal(err)
			}
			result, err := Bootstrap(t.Context(), client, Config{Prefix: c.prefix, Transit: c.prefix + "-transit", KV: c.prefix + "-kv"}, BootstrapOptions{
				BackupFile: filepath.Join(t.TempDir(), "backup"), BackupTo: []age.Recipient{identity.Recipient()},
				AppRole: &AppRoleOptions{Mount: c.prefix + "-auth"},
			})
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("Bootstrap: %v, want %q", err, c.want)
			}
			if done != len(c.meanwhile) {
				t.Errorf("%d mounts were made meanwhile, want %d", done, len(c.meanwhile))
			}
			if err == nil && dones(result)[stepFound] != 3 {
				t.Errorf("%+v, want three mounts that were found", result.Steps)
			}
		})
	}
}

func TestSubjectKeyIsRestored(t *testing.T) {
	old := servers.StartVault(t, servers.VaultOptions{})
	d := deploy(t, old, "signer", false)
	message := "subject of somebody"
	want, err := d.open(t).MAC(t.Context(), []byte(message))
	if err != nil {
		t.Fatal(err)
	}
	old.Kill()

	fresh := servers.StartVault(t, servers.VaultOptions{})
	restore := func(o BootstrapOptions) (BootstrapResult, error) {
		return Bootstrap(t.Context(), fresh.Client(), d.cfg, o)
	}
	stranger, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := restore(BootstrapOptions{RestoreFile: d.options.BackupFile, RestoreWith: []age.Identity{stranger}}); err == nil {
		t.Error("restored with another identity")
	}
	// The backup of a lost Vault is not overwritten by one of a new key.
	if _, err := restore(d.options); err == nil || !strings.Contains(err.Error(), "restore it") {
		t.Errorf("a new key over an old backup: %v", err)
	}
	o := BootstrapOptions{RestoreFile: d.options.BackupFile, RestoreWith: []age.Identity{d.identity}}
	for i, done := range []string{stepRestored, stepFound} {
		result, err := restore(o)
		if err != nil || result.SubjectCheck != d.bootstrap.SubjectCheck {
			t.Fatalf("restore: %+v, %v", result, err)
		}
		if !slices.ContainsFunc(result.Steps, func(s BootstrapStep) bool {
			return s.Done == done && strings.HasPrefix(s.What, "subject key")
		}) {
			t.Errorf("run %d: %+v", i, result)
		}
	}
	k := rootKeyring(t, fresh, func(c *Config) { c.Prefix = "signer" })
	if got, err := k.MAC(t.Context(), []byte(message)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("subjects changed: %v", err)
	}
	// Never over another key.
	other := deploy(t, fresh, "second", false)
	other.cfg.Prefix = "signer"
	second := d.options
	second.BackupFile = other.options.BackupFile
	if _, err := restore(second); err == nil || !strings.Contains(err.Error(), "another subject key") {
		t.Errorf("with the backup file of another key: %v", err)
	}
	o.RestoreFile = other.options.BackupFile
	o.RestoreWith = []age.Identity{other.identity}
	if _, err := restore(o); err == nil || !strings.Contains(err.Error(), "prefix second") {
		t.Errorf("the backup of another prefix: %v", err)
	}
	third := servers.StartVault(t, servers.VaultOptions{})
	made := deploy(t, third, "signer", false)
	if _, err := Bootstrap(t.Context(), third.Client(), made.cfg, BootstrapOptions{RestoreFile: d.options.BackupFile, RestoreWith: []age.Identity{d.identity}}); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("over another key: %v", err)
	}
}

func TestDamagedBackups(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "backup")
	key := bytes.Repeat([]byte{7}, 32)
	pending, err := writeBackup(file, "signer", key, []age.Recipient{identity.Recipient()})
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(pending)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(good, []byte(hex.EncodeToString(key))) {
		t.Error("the key is in clear")
	}
	if got, err := readBackup(pending, "signer", []age.Identity{identity}); err != nil || !bytes.Equal(got, key) {
		t.Fatalf("the backup: %v", err)
	}
	for name, text := range map[string][]byte{
		"cut":     good[:len(good)-100],
		"changed": bytes.Replace(good, []byte("AGE ENCRYPTED FILE-----\n"), []byte("AGE ENCRYPTED FILE-----\nAAAA"), 1),
		"empty":   nil,
	} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readBackup(file, "signer", []age.Identity{identity}); err == nil {
			t.Errorf("%s: it was read", name)
		}
		// It is not taken for the backup that waits for its name.
		if settled, err := settleBackup(file, checkValueOf(key)); err == nil || settled {
			t.Errorf("%s: settled: %v, %v", name, settled, err)
		}
		if _, err := os.Stat(pending); err != nil {
			t.Errorf("%s: the pending backup: %v", name, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if settled, err := settleBackup(file, checkValueOf(key)); err != nil || !settled {
			t.Errorf("settled: %v, %v", settled, err)
		}
	}
	if text, err := os.ReadFile(file); err != nil || !bytes.Equal(text, good) {
		t.Errorf("the backup is another: %v", err)
	}
}

func TestBootstrapRefuses(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{})
	root := v.Client()
	write := func(path string, data map[string]any) {
		t.Helper()
		if _, err := root.Logical().WriteWithContext(t.Context(), path, data); err != nil {
			t.Fatalf("write %s: %v", path, err)
		}
	}
	write("sys/mounts/transit", map[string]any{"type": "transit"})
	write("sys/mounts/secret", map[string]any{"type": "kv", "options": map[string]any{"version": "2"}})
	write("sys/mounts/old", map[string]any{"type": "kv"})
	write("sys/mounts/expiring", map[string]any{"type": "kv", "options": map[string]any{"version": "2"}})
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign")
	if err := os.WriteFile(foreign, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	try := func(cfg Config, o BootstrapOptions) error {
		_, err := Bootstrap(t.Context(), root, cfg, o)
		return err
	}
	backup := func(name string) BootstrapOptions {
		return BootstrapOptions{BackupFile: filepath.Join(dir, name), BackupTo: []age.Recipient{identity.Recipient()}}
	}
	eventually(t, "the mount expiring", func() bool {
		_, err := root.Logical().WriteWithContext(t.Context(), "expiring/config", map[string]any{"delete_version_after": "1h"})
		return err == nil
	})
	write("transit/keys/a-subject", map[string]any{"type": "hmac", "key_size": 32, "exportable": true})
	write("transit/keys/b-subject", map[string]any{"type": "aes256-gcm96"})
	write("transit/keys/c-1", map[string]any{"type": "ecdsa-p256", "allow_plaintext_backup": true})
	write("transit/keys/d-wrap", map[string]any{"type": "rsa-2048"})
	write("transit/keys/e-subject", map[string]any{"type": "hmac", "key_size": 32})
	write("transit/keys/f-subject", map[string]any{"type": "hmac", "key_size": 32})
	write("transit/keys/f-subject/rotate", nil)
	write("transit/keys/f-subject/config", map[string]any{"min_decryption_version": 2})
	for name, c := range map[string]struct {
		cfg  Config
		o    BootstrapOptions
		says string
	}{
		"an exportable subject key":      {Config{Prefix: "a"}, backup("a"), "exportable"},
		"a subject key of another type":  {Config{Prefix: "b"}, backup("b"), "not hmac"},
		"a signing key with a backup":    {Config{Prefix: "c"}, backup("c"), "plaintext backup"},
		"a wrapping key of another type": {Config{Prefix: "d", Wrapped: true}, backup("d"), "not aes256-gcm96"},
		"a longer prefix":                {Config{Prefix: "e-f"}, backup("ef"), "neither"},
		"a shorter prefix":               {Config{Prefix: "f", Transit: "transit"}, backup("f"), "below its floors"},
		"no backup":                      {Config{Prefix: "g"}, BootstrapOptions{}, "say where its backup goes"},
		"nobody to read the backup":      {Config{Prefix: "g"}, BootstrapOptions{BackupFile: filepath.Join(dir, "g")}, "say where its backup goes"},
		"a file in the backup's place":   {Config{Prefix: "g"}, BootstrapOptions{BackupFile: foreign, BackupTo: backup("").BackupTo}, "name another file"},
		"KV version 1":                   {Config{Prefix: "g", KV: "old"}, backup("g"), "version 2"},
		"a KV that deletes":              {Config{Prefix: "g", KV: "expiring"}, backup("g"), "delete_version_after=0s"},
		"transit that is none":           {Config{Prefix: "g", Transit: "old"}, backup("g"), "not transit"},
		"a prefix with a slash":          {Config{Prefix: "g/h"}, backup("g"), "prefix"},
		"a mount with a glob":            {Config{KV: "*"}, backup("g"), "kv mount"},
	} {
		if err := try(c.cfg, c.o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if text, err := os.ReadFile(foreign); err != nil || string(text) != "precious" {
		t.Errorf("the foreign file: %q, %v", text, err)
	}
	// d got a subject key before its wrapping key was looked at.
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 || left[0].Name() != "d" || left[1].Name() != "foreign" {
		t.Errorf("files were left: %v, %v", left, err)
	}
	// A key that somebody made in Vault works, but has no backup: it is said.
	result, err := Bootstrap(t.Context(), root, Config{Prefix: "e"}, backup("e"))
	if err != nil || len(result.Notes) != 1 || !strings.Contains(result.Notes[0], "no backup") {
		t.Errorf("a subject key made in Vault: %+v, %v", result, err)
	}
}

func TestBootstrapKeepsSecretIDs(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), false)
	if _, err := d.open(t).SubjectCheck(t.Context()); err != nil {
		t.Fatal(err)
	}
	for file, fix := range map[string]string{d.appRole.SecretIDFile: "move it away", d.appRole.RoleIDFile: "move it away"} {
		kept, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("something else\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = Bootstrap(t.Context(), v.Client(), d.cfg, d.options)
		if err == nil || !strings.Contains(err.Error(), fix) || strings.Contains(err.Error(), "something else") {
			t.Errorf("%s: %v", file, err)
		}
		if err := os.WriteFile(file, kept, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A lost file is replaced, by a new secret id.
	if err := os.Remove(d.appRole.SecretIDFile); err != nil {
		t.Fatal(err)
	}
	if _, err := Bootstrap(t.Context(), v.Client(), d.cfg, d.options); err != nil {
		t.Fatal(err)
	}
	if _, err := d.open(t).SubjectCheck(t.Context()); err != nil {
		t.Errorf("with the new secret id: %v", err)
	}
}

// kubernetesVault adds the auth method kubernetes, which the Vault of the tests is
// built without, to what a Vault answers.
type kubernetesVault struct {
	http.RoundTripper
	enabled bool
	data    map[string]map[string]any // written below auth/kubernetes
}

func (k *kubernetesVault) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int, v any) (*http.Response, error) {
		text, err := json.Marshal(map[string]any{"data": v})
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(text)), Request: r}, err
	}
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	switch {
	case path == "sys/auth" && k.enabled:
		return answer(200, map[string]any{"kubernetes/": map[string]any{"type": "kubernetes"}})
	case path == "sys/auth/kubernetes":
		k.enabled = true
		return answer(204, nil)
	case strings.HasPrefix(path, "auth/kubernetes/"):
		if r.Method == http.MethodGet {
			if k.data[path] == nil {
				return answer(404, nil)
			}
			return answer(200, k.data[path])
		}
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return nil, err
		}
		if path == "auth/kubernetes/config" && body["kubernetes_ca_cert"] == nil { // as outside a cluster
			text := `{"errors":["open /var/run/secrets/kubernetes.io/serviceaccount/ca.crt: no such file or directory"]}`
			return &http.Response{StatusCode: 400, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
		}
		k.data[path] = body
		return answer(204, nil)
	default:
		return k.RoundTripper.RoundTrip(r)
	}
}

func TestBootstrapKubernetes(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), false)
	fake := &kubernetesVault{RoundTripper: http.DefaultTransport, data: map[string]map[string]any{}}
	config := api.DefaultConfig()
	config.Address, config.HttpClient = v.Addr, &http.Client{Transport: fake}
	client, err := api.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	client.SetToken(v.RootToken)
	o := d.options
	o.AppRole = nil
	o.Kubernetes = &KubernetesOptions{ServiceAccount: "signer", Namespace: "pact", Audience: "vault", Host: "https://k8s.example.com"}
	if _, err := Bootstrap(t.Context(), client, d.cfg, o); err == nil || !strings.Contains(err.Error(), "--kubernetes-ca-file") {
		t.Errorf("Vault knows no authority of the API server: %v", err)
	}
	o.Kubernetes.CA, o.Kubernetes.ReviewerToken = "PEM", "reviewer"
	for n := range 2 {
		result, err := Bootstrap(t.Context(), client, d.cfg, o)
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(fmt.Sprint(result.Notes), "was left as it is"); said != (n > 0) {
			t.Errorf("round %d: %q", n, result.Notes)
		}
		o.Kubernetes.Host = "https://other.example.com" // is not taken: there is one
	}
	want := map[string]map[string]any{
		"auth/kubernetes/config": {"kubernetes_host": "https://k8s.example.com", "kubernetes_ca_cert": "PEM", "token_reviewer_jwt": "reviewer"},
		"auth/kubernetes/role/" + d.cfg.Prefix: {
			"bound_service_account_names": []any{"signer"}, "bound_service_account_namespaces": []any{"pact"}, "audience": "vault",
			"token_policies": []any{d.cfg.Prefix}, "token_no_default_policy": true, "token_ttl": "1h", "token_max_ttl": "24h", "token_num_uses": 0.,
		},
	}
	if !reflect.DeepEqual(fake.data, want) {
		t.Errorf("written: %v, want %v", fake.data, want)
	}
	o.Kubernetes = &KubernetesOptions{Namespace: "pact"}
	if _, err := Bootstrap(t.Context(), client, d.cfg, o); err == nil {
		t.Error("a role for any service account")
	}
}

// The vectors of RFC 5649, section 6.
func TestKWP(t *testing.T) {
	kek, _ := hex.DecodeString("5840df6e29b02af1ab493b705bf16ea1ae8338f4dcc176a8")
	for key, want := range map[string]string{
		"c37b7e6492584340bed12207808941155068f738": "138bdeaa9b8fa7fc61f97742e72248ee5ae6ae5360d1ae6a5f54f373fa543b6a",
		"466f7250617369": "afbeb0f07dfbf5419200f2ccb50bb24f",
	} {
		plain, _ := hex.DecodeString(key)
		if got, err := wrapKWP(kek, plain); err != nil || hex.EncodeToString(got) != want {
			t.Errorf("%s wraps to %x, %v, want %s", key, got, err, want)
		}
	}
	if _, err := wrapKWP([]byte("short"), nil); err == nil {
		t.Error("a key-encryption key of 5 bytes")
	}
}
