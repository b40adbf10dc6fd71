package vault

import (
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/hashicorp/vault/api"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/custodytest"
	"github.com/pactsigner/pactsigner/test/servers"
)

// fixture is a Vault with the mounts, and AppRole to log in with.
type fixture struct {
	*servers.Vault
	root *api.Client
}

var prefixCount atomic.Uint64

func startFixture(t testing.TB, o servers.VaultOptions) *fixture {
	t.Helper()
	v := servers.StartVault(t, o)
	f := &fixture{v, v.Client()}
	f.write(t, "sys/mounts/transit", map[string]any{"type": "transit"})
	f.write(t, "sys/mounts/secret", map[string]any{"type": "kv", "options": map[string]any{"version": "2"}})
	f.write(t, "sys/auth/approle", map[string]any{"type": "approle"})
	awaitSuccess(t, "KV is ready", func() error {
		_, err := f.root.Logical().Read("secret/config")
		return err
	})
	return f
}

func (f *fixture) write(t testing.TB, path string, data map[string]any) *api.Secret {
	t.Helper()
	secret, err := f.root.Logical().Write(path, data)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return secret
}

func (f *fixture) read(t testing.TB, path string) map[string]any {
	t.Helper()
	secret, err := f.root.Logical().Read(path)
	if err != nil || secret == nil {
		t.Fatalf("%s: %v, %v", path, secret, err)
	}
	return secret.Data
}

// deployment makes a subject key under a prefix of its own, and a role with the
// policy that we ship, and returns how to use them.
func (f *fixture) deployment(t testing.TB, role map[string]any) Config {
	t.Helper()
	cfg := Config{Addresses: []string{f.Addr}, CAFile: f.CAFile(), Prefix: fmt.Sprintf("t%d", prefixCount.Add(1))}
	f.write(t, "transit/keys/"+cfg.Prefix+"-subject", map[string]any{"type": "hmac", "key_size": 32})
	policy, err := Policy(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.write(t, "sys/policies/acl/"+cfg.Prefix, map[string]any{"policy": policy})
	settings := map[string]any{"token_policies": cfg.Prefix, "token_ttl": "1h"}
	for k, v := range role {
		settings[k] = v
	}
	path := "auth/approle/role/" + cfg.Prefix
	f.write(t, path, settings)
	dir := t.TempDir()
	cfg.Auth = Auth{Method: "approle", RoleIDFile: filepath.Join(dir, "role"), SecretIDFile: filepath.Join(dir, "secret")}
	write(t, cfg.Auth.RoleIDFile, f.read(t, path+"/role-id")["role_id"].(string))
	write(t, cfg.Auth.SecretIDFile, f.write(t, path+"/secret-id", map[string]any{}).Data["secret_id"].(string))
	return cfg
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func openKeyring(t testing.TB, cfg Config) *Keyring {
	t.Helper()
	k, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

// awaitSuccess waits until try succeeds.
func awaitSuccess(t testing.TB, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: still %v", what, err)
		}
	}
}

// signOnce signs within a second and checks that a failure is one that a caller
// may see, and that it is not late.
func signOnce(t testing.TB, k *Keyring, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	started := time.Now()
	digest := sha256.Sum256([]byte(name))
	_, err := k.Sign(ctx, name, digest[:])
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("Sign took %v with a deadline of 1 s", took)
	}
	if err != nil && !errors.Is(err, custody.ErrUnavailable) {
		t.Errorf("Sign: %v, want ErrUnavailable", err)
	}
	return err
}

// loggedIn waits for a keyring's login: on a busy machine that takes longer than a call may.
func loggedIn(t testing.TB, k *Keyring) {
	t.Helper()
	awaitSuccess(t, "the login", func() error { _, err := k.client.login.state(); return err })
}

// signsWell signs where Vault answers, however busy the machine is.
func signsWell(t testing.TB, k *Keyring, name string) error {
	t.Helper()
	digest := sha256.Sum256([]byte(name))
	_, err := k.Sign(t.Context(), name, digest[:])
	return err
}

func mustCreate(t testing.TB, k *Keyring, name string, alg jose.SignatureAlgorithm) crypto.PublicKey {
	t.Helper()
	public, err := k.Create(t.Context(), name, alg)
	for n := 0; n < 9 && errors.Is(err, custody.ErrUnavailable); n++ { // an RSA key may take a busy Vault longer than a call is given
		public, err = k.Create(t.Context(), name, alg)
	}
	if err != nil {
		t.Fatalf("Create(%s): %v", name, err)
	}
	return public
}

func TestTransit(t *testing.T) {
	f := startFixture(t, servers.VaultOptions{})

	t.Run("Conformance", func(t *testing.T) {
		custodytest.Run(t, func(t *testing.T) func() custody.Keyring {
			cfg := f.deployment(t, nil)
			return func() custody.Keyring { return openKeyring(t, cfg) }
		})
	})

	t.Run("RefusesKeysThatMayBeElsewhere", func(t *testing.T) {
		cfg := f.deployment(t, nil)
		k := openKeyring(t, cfg)
		for name, made := range map[string]map[string]any{
			"exportable": {"type": "ecdsa-p256", "exportable": true},
			"backup":     {"type": "ecdsa-p256", "allow_plaintext_backup": true},
			"encrypting": {"type": "aes256-gcm96"},
			"derived":    {"type": "aes256-gcm96", "derived": true},
			"edwards":    {"type": "ed25519"},
			"other":      {"type": "ecdsa-p384"},
			"large":      {"type": "rsa-4096"},
		} {
			f.write(t, "transit/keys/"+cfg.Prefix+"-"+name, made)
			digest := sha256.Sum256(nil)
			for range 2 { // also once it is known
				if _, err := k.Sign(t.Context(), name, digest[:]); !errors.Is(err, custody.ErrMismatch) {
					t.Errorf("Sign with a key that is %s: %v, want ErrMismatch", name, err)
				}
			}
			if _, err := k.Create(t.Context(), name, jose.ES256); !errors.Is(err, custody.ErrMismatch) {
				t.Errorf("Create adopts a key that is %s: %v, want ErrMismatch", name, err)
			}
		}
		f.write(t, "transit/keys/"+cfg.Prefix+"-rsa3072", map[string]any{"type": "rsa-3072"})
		mustCreate(t, k, "rsa3072", jose.RS256)
		if err := signsWell(t, k, "rsa3072"); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"subject", "wrap", "a/b", "..", "a b", "-a", strings.Repeat("a", 201)} {
			if _, err := k.Create(t.Context(), name, jose.ES256); !errors.Is(err, custody.ErrInvalid) {
				t.Errorf("Create(%q): %v, want ErrInvalid", name, err)
			}
		}
	})

	t.Run("KeyThatBecomesExportable", func(t *testing.T) {
		cfg := f.deployment(t, nil)
		log := &safeBuffer{}
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
		k := openKeyring(t, cfg)
		public := mustCreate(t, k, "a", jose.ES256)
		k.transit.reviewOnce(t.Context())
		if log.contains("level=ERROR") {
			t.Error("an alarm about a good key")
		}
		f.write(t, "transit/keys/"+cfg.Prefix+"-a/config", map[string]any{"exportable": true})
		for range 3 {
			k.transit.reviewOnce(t.Context())
		}
		if n := log.count("level=ERROR"); n != 1 || !log.contains("exportable") || !log.contains("signs=true") {
			t.Errorf("%d alarms, want one", n)
		}
		if err := signsWell(t, k, "a"); err != nil {
			t.Errorf("the process that has it in use: %v", err)
		}
		// A process that meets it so does not use it. Its public half, which callers
		// still verify with, is given out.
		digest := sha256.Sum256(nil)
		fresh := openKeyring(t, cfg)
		if got, _, err := fresh.Public(t.Context(), "a"); err != nil || !equalKeys(got, public) {
			t.Errorf("Public after a restart: %v", err)
		}
		if _, err := fresh.Sign(t.Context(), "a", digest[:]); !errors.Is(err, custody.ErrMismatch) {
			t.Errorf("Sign after a restart: %v, want ErrMismatch", err)
		}
		if n := log.count("signs=false"); n != 1 {
			t.Errorf("%d alarms after the restart, want one", n)
		}
		if err := fresh.Disable(t.Context(), "a"); err != nil {
			t.Errorf("Disable: %v", err)
		}
		k.transit.reviewOnce(t.Context())
		calls := k.transit.calls.Load()
		if _, err := k.Sign(t.Context(), "a", digest[:]); !errors.Is(err, custody.ErrDisabled) || k.transit.calls.Load() != calls {
			t.Errorf("Sign after another process disabled it: %v", err)
		}
	})

	t.Run("SignsWithVersionOneAlone", func(t *testing.T) {
		cfg := f.deployment(t, nil)
		k := openKeyring(t, cfg)
		for _, alg := range []jose.SignatureAlgorithm{jose.ES256, jose.RS256} {
			name := strings.ToLower(string(alg))
			public := mustCreate(t, k, name, alg)
			f.write(t, "transit/keys/"+cfg.Prefix+"-"+name+"/rotate", nil)
			k := openKeyring(t, cfg)
			digest := sha256.Sum256([]byte("x"))
			signature, err := k.Sign(t.Context(), name, digest[:])
			if err != nil || !verifySignature(public, digest[:], signature) {
				t.Errorf("%s after a rotation: %v, or the signature is by another version", alg, err)
			}
			if again, _, err := k.Public(t.Context(), name); err != nil || !equalKeys(again, public) {
				t.Errorf("%s after a rotation: Public is of another version (error %v)", alg, err)
			}
		}
		before, err := k.MAC(t.Context(), []byte("x"))
		f.write(t, "transit/keys/"+cfg.Prefix+"-subject/rotate", nil)
		after, err2 := k.MAC(t.Context(), []byte("x"))
		if err != nil || err2 != nil || string(before) != string(after) {
			t.Errorf("MAC changed with a rotation of the subject key (errors %v, %v)", err, err2)
		}
	})

	t.Run("DisableGoesOnAfterAnInterruption", func(t *testing.T) {
		cfg := f.deployment(t, nil)
		for name, interrupted := range map[string]func(path string){
			"never":   func(string) {},
			"rotated": func(path string) { f.write(t, path+"/rotate", nil) },
			"rotated-thrice": func(path string) {
				f.write(t, path+"/rotate", nil)
				f.write(t, path+"/rotate", nil)
				f.write(t, path+"/rotate", nil)
			},
			"one-floor": func(path string) {
				f.write(t, path+"/rotate", nil)
				f.write(t, path+"/config", map[string]any{"min_encryption_version": 2})
			},
		} {
			k, other := openKeyring(t, cfg), openKeyring(t, cfg)
			public := mustCreate(t, k, name, jose.ES256)
			if err := errors.Join(signsWell(t, k, name), signsWell(t, other, name)); err != nil {
				t.Fatal(err)
			}
			path := "transit/keys/" + cfg.Prefix + "-" + name
			interrupted(path)
			latest := f.read(t, path)["latest_version"]
			for range 2 {
				if err := k.Disable(t.Context(), name); err != nil {
					t.Fatalf("%s: Disable: %v", name, err)
				}
			}
			d := f.read(t, path)
			if fmt.Sprintf("%v %v", d["min_decryption_version"], d["min_encryption_version"]) != "2 2" {
				t.Errorf("%s: floors %v and %v, want 2", name, d["min_decryption_version"], d["min_encryption_version"])
			}
			if name != "never" && d["latest_version"] != latest || name == "never" && fmt.Sprint(d["latest_version"]) != "2" {
				t.Errorf("%s: version %v after %v", name, d["latest_version"], latest)
			}
			digest := sha256.Sum256(nil)
			// The other replica learns it from Vault.
			for range 2 {
				if _, err := other.Sign(t.Context(), name, digest[:]); !errors.Is(err, custody.ErrDisabled) {
					t.Errorf("%s: another replica signs: %v, want ErrDisabled", name, err)
				}
			}
			if got, alg, err := openKeyring(t, cfg).Public(t.Context(), name); err != nil || alg != jose.ES256 || !equalKeys(got, public) {
				t.Errorf("%s: Public: %s, %v", name, alg, err)
			}
		}
	})

	t.Run("KeyGoneOrReplaced", func(t *testing.T) {
		cfg := f.deployment(t, nil)
		log := &safeBuffer{}
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
		k := openKeyring(t, cfg)
		mustCreate(t, k, "a", jose.ES256)
		if err := signsWell(t, k, "a"); err != nil {
			t.Fatal(err)
		}
		path := "transit/keys/" + cfg.Prefix + "-a"
		f.write(t, path+"/config", map[string]any{"deletion_allowed": true})
		if _, err := f.root.Logical().Delete(path); err != nil {
			t.Fatal(err)
		}
		digest := sha256.Sum256(nil)
		if _, err := k.Sign(t.Context(), "a", digest[:]); !errors.Is(err, custody.ErrNotFound) {
			t.Errorf("Sign with a deleted key: %v, want ErrNotFound", err)
		}
		f.write(t, path, map[string]any{"type": "ecdsa-p256"})
		var calls uint64
		for i := range 200 {
			if _, err := k.Sign(t.Context(), "a", digest[:]); !errors.Is(err, custody.ErrUnavailable) {
				t.Fatalf("Sign with a key that was replaced: %v, want ErrUnavailable", err)
			}
			if i == 0 {
				calls = k.transit.calls.Load()
			}
		}
		if n := k.transit.calls.Load() - calls; n > 0 {
			t.Errorf("Vault was asked %d times more for signatures by a key that was replaced", n)
		}
		if _, _, err := k.Public(t.Context(), "a"); !errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("Public of a key that was replaced: %v, want ErrUnavailable", err)
		}
		if n := log.count("another key than before"); n != 1 {
			t.Errorf("%d alarms, want one", n)
		}
	})

	t.Run("KeyReplacedUnseen", func(t *testing.T) {
		cfg := f.deployment(t, nil)
		k := openKeyring(t, cfg)
		mustCreate(t, k, "a", jose.ES256)
		if err := signsWell(t, k, "a"); err != nil {
			t.Fatal(err)
		}
		path := "transit/keys/" + cfg.Prefix + "-a"
		f.write(t, path+"/config", map[string]any{"deletion_allowed": true})
		if _, err := f.root.Logical().Delete(path); err != nil {
			t.Fatal(err)
		}
		f.write(t, path, map[string]any{"type": "ecdsa-p256"})
		k.transit.reviewOnce(t.Context())
		digest := sha256.Sum256(nil)
		if _, err := k.Sign(t.Context(), "a", digest[:]); !errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("Sign after the review: %v, want ErrUnavailable", err)
		}
	})

	t.Run("NoSubjectKey", func(t *testing.T) {
		cfg := f.deployment(t, nil)
		f.write(t, "transit/keys/"+cfg.Prefix+"-subject/config", map[string]any{"deletion_allowed": true})
		if _, err := f.root.Logical().Delete("transit/keys/" + cfg.Prefix + "-subject"); err != nil {
			t.Fatal(err)
		}
		if _, err := openKeyring(t, cfg).MAC(t.Context(), nil); !errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("MAC without a subject key: %v, want ErrUnavailable", err)
		}
	})

	t.Run("NoMount", func(t *testing.T) {
		cfg := f.deployment(t, nil)
		cfg.Auth = Auth{Method: "token", TokenFile: filepath.Join(t.TempDir(), "token")}
		write(t, cfg.Auth.TokenFile, f.RootToken)
		cfg.Transit = "nowhere"
		if _, _, err := openKeyring(t, cfg).Public(t.Context(), "a"); !errors.Is(err, custody.ErrUnavailable) || errors.Is(err, custody.ErrNotFound) {
			t.Errorf("Public on a mount that does not exist: %v, want ErrUnavailable and not ErrNotFound", err)
		}
	})

	t.Run("Coalesces", func(t *testing.T) {
		k := openKeyring(t, f.deployment(t, nil))
		public := mustCreate(t, k, "a", jose.ES256)
		before := k.transit.calls.Load()
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				digest := sha256.Sum256(fmt.Append(nil, i))
				signature, err := k.Sign(t.Context(), "a", digest[:])
				if err != nil || !verifySignature(public, digest[:], signature) {
					t.Errorf("caller %d: %v, or somebody else's signature", i, err)
				}
			})
		}
		wg.Wait()
		if calls := k.transit.calls.Load() - before; calls > 100 {
			t.Errorf("%d calls for 500 signatures", calls)
		}
	})
}
