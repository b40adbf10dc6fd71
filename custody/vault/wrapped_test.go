package vault

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/custodytest"
	"github.com/pactsigner/pactsigner/test/servers"
)

// deployment is a signer's place in a Vault, set up by Bootstrap.
type deployment struct {
	*servers.Vault
	cfg       Config
	dir       string
	identity  *age.X25519Identity
	options   BootstrapOptions
	appRole   AppRoleOptions
	bootstrap BootstrapResult
}

// deploy sets a signer up under a prefix of its own, with AppRole.
func deploy(t *testing.T, v *servers.Vault, prefix string, wrapped bool) *deployment {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d := &deployment{Vault: v, dir: dir, identity: identity,
		appRole: AppRoleOptions{RoleIDFile: filepath.Join(dir, "role-id"), SecretIDFile: filepath.Join(dir, "secret-id")}}
	d.options = BootstrapOptions{
		BackupFile: filepath.Join(dir, "subject.backup"), BackupTo: []age.Recipient{identity.Recipient()},
		AppRole: &d.appRole,
	}
	d.cfg = Config{
		Addresses: []string{v.Addr}, Prefix: prefix, Wrapped: wrapped,
		Auth: Auth{Method: "approle", RoleIDFile: d.appRole.RoleIDFile, SecretIDFile: d.appRole.SecretIDFile},
	}
	d.bootstrap, err = Bootstrap(t.Context(), v.Client(), d.cfg, d.options)
	if err != nil {
		t.Fatalf("Bootstrap: %v", err)
	}
	return d
}

// open opens a keyring that is closed with the test, and waits for its login: on a
// busy machine that takes longer than a call may.
func (d *deployment) open(t *testing.T) *Keyring {
	t.Helper()
	k := d.openAtOnce(t)
	eventually(t, "the login", func() bool {
		_, err := k.SubjectCheck(t.Context())
		return err == nil
	})
	return k
}

// openAtOnce does not wait.
func (d *deployment) openAtOnce(t *testing.T) *Keyring {
	t.Helper()
	k, err := Open(d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within a minute", what)
		case <-tick.C:
		}
	}
}

// prefixFor makes a prefix of a test's name.
func prefixFor(t *testing.T) string {
	sum := sha256.Sum256([]byte(t.Name()))
	return "t" + hex.EncodeToString(sum[:8])
}

func TestWrappedConformance(t *testing.T) {
	v := sharedVault(t)
	n := 0 // a test may begin anew
	custodytest.Run(t, func(t *testing.T) func() custody.Keyring {
		n++
		d := deploy(t, v, prefixFor(t)+strconv.Itoa(n), true)
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

func create(t *testing.T, k *Keyring, name string) crypto.PublicKey {
	t.Helper()
	public, err := k.Create(t.Context(), name, jose.ES256)
	if err != nil {
		t.Fatalf("Create %s: %v", name, err)
	}
	return public
}

// record reads a wrapped key's record as Vault has it.
func (d *deployment) record(t *testing.T, name string) map[string]any {
	t.Helper()
	secret, err := d.Client().Logical().ReadWithContext(t.Context(), d.kv("data/"+d.cfg.Prefix+"/keys/"+name))
	if err != nil || secret == nil {
		t.Fatalf("read the record of %s: %v", name, err)
	}
	return secret.Data["data"].(map[string]any)
}

// write writes a secret by hand, over whatever is there.
func (d *deployment) write(t *testing.T, path string, data map[string]any) {
	t.Helper()
	if _, err := d.Client().Logical().WriteWithContext(t.Context(), d.kv(path), data); err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
}

func (d *deployment) kv(path string) string { return DefaultKV + "/" + path }

func TestWrappedSignsWithoutVault(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{})
	d := deploy(t, v, "signer", true)
	digest := sha256.Sum256([]byte("x"))
	maker := d.open(t)
	public := create(t, maker, "a")

	// A replica that has only been asked for the public half.
	k := d.open(t)
	if got, alg, err := k.Public(t.Context(), "a"); err != nil || alg != jose.ES256 || !equalKeys(got, public) {
		t.Fatalf("Public: %v, %s, %v", got, alg, err)
	}
	var sealed []byte
	eventually(t, "the mirror's key", func() bool {
		sealed = k.SealMirror([]byte("schedule"))
		return sealed != nil
	})
	eventually(t, "the maker's mirror key", func() bool { return maker.SealMirror(nil) != nil })

	v.Stop()
	signature, err := k.Sign(t.Context(), "a", digest[:])
	if err != nil || !verifySignature(public, digest[:], signature) {
		t.Errorf("Sign while Vault is away: %v", err)
	}
	if doc, err := maker.OpenMirror(sealed); err != nil || string(doc) != "schedule" {
		t.Errorf("OpenMirror while Vault is away: %q, %v", doc, err)
	}
	if _, err := k.Sign(t.Context(), "b", digest[:]); !errors.Is(err, custody.ErrUnavailable) {
		t.Errorf("Sign with a key that is not in memory: %v", err)
	}
	if _, err := k.MAC(t.Context(), nil); !errors.Is(err, custody.ErrUnavailable) {
		t.Errorf("MAC: %v", err)
	}
	// A process that starts now has nothing, and says so.
	late := d.openAtOnce(t)
	if _, err := late.OpenMirror(sealed); !errors.Is(err, custody.ErrUnavailable) {
		t.Errorf("OpenMirror of a process that never reached Vault: %v", err)
	}
	if late.SealMirror(nil) != nil {
		t.Error("SealMirror without a key")
	}
	v.Start()
	eventually(t, "the late process's key", func() bool {
		signature, err := late.Sign(t.Context(), "a", digest[:])
		return err == nil && verifySignature(public, digest[:], signature)
	})
	eventually(t, "the late process's mirror", func() bool {
		doc, err := late.OpenMirror(sealed)
		return err == nil && string(doc) == "schedule"
	})
}

func TestMirrorOfOthersIsRefused(t *testing.T) {
	v := sharedVault(t)
	ours, theirs := deploy(t, v, prefixFor(t)+"a", true).open(t), deploy(t, v, prefixFor(t)+"b", true).open(t)
	var sealed, foreign []byte
	eventually(t, "the mirrors' keys", func() bool {
		sealed, foreign = ours.SealMirror([]byte("doc")), theirs.SealMirror([]byte("doc"))
		return sealed != nil && foreign != nil
	})
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if doc, err := ours.OpenMirror(changed); !errors.Is(err, ErrMirror) {
			t.Errorf("byte %d changed: %q, %v", i, doc, err)
		}
	}
	for name, b := range map[string][]byte{"another deployment's": foreign, "nothing": nil, "cut": sealed[:len(sealed)-1], "head only": sealed[:len(mirrorMagic)]} {
		if doc, err := ours.OpenMirror(b); !errors.Is(err, ErrMirror) {
			t.Errorf("%s: %q, %v", name, doc, err)
		}
	}
	if doc, err := ours.OpenMirror(sealed); err != nil || string(doc) != "doc" {
		t.Errorf("its own: %q, %v", doc, err)
	}
}

// recordText is a record's JSON inside its document.
func recordText(t *testing.T, data map[string]any) keyRecord {
	t.Helper()
	text, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	var s stored
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	var r keyRecord
	if err := json.Unmarshal(s.Data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// wrapFor wraps a new private key as whoever may use the wrapping key could.
func wrapFor(t *testing.T, d *deployment, binding []byte) string {
	t.Helper()
	signer, err := custody.GenerateKey(jose.ES256)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := d.Client().Logical().WriteWithContext(t.Context(), "transit/encrypt/"+d.cfg.Prefix+"-wrap", map[string]any{
		"plaintext": private, "associated_data": binding,
	})
	if err != nil {
		t.Fatal(err)
	}
	return secret.Data["ciphertext"].(string)
}

func TestWrappedRecordsCannotBeSwapped(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), true)
	other := deploy(t, v, prefixFor(t)+"o", true)
	digest := sha256.Sum256(nil)
	k := d.open(t)
	create(t, k, "a")
	create(t, k, "b")
	create(t, other.open(t), "a")
	a, b, foreign := d.record(t, "a"), d.record(t, "b"), other.record(t, "a")
	if text, err := json.Marshal(a); err != nil || bytes.Contains(text, []byte("PRIVATE")) || recordText(t, a).Wrapped == "" {
		t.Fatalf("the record of a key: %s, %v", text, err)
	}
	put := func(r keyRecord) map[string]any {
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return map[string]any{"data": stored{Format: 1, MinReader: 1, Write: "x", Data: text}}
	}
	mixed := recordText(t, a)
	mixed.Wrapped = recordText(t, b).Wrapped
	renamed := recordText(t, a)
	renamed.KID = recordText(t, b).KID
	algorithm := recordText(t, a)
	algorithm.Algorithm = jose.RS256
	foreignKey := recordText(t, a)
	foreignKey.Wrapped = wrapFor(t, d, k.wrapped.binding("a", foreignKey))
	for name, data := range map[string]map[string]any{
		"a foreign key, wrapped for it": put(foreignKey),
		"another key's record":          {"data": b},
		"another key's ciphertext":      put(mixed),
		"another key's thumbprint":      put(renamed),
		"another algorithm":             put(algorithm),
		"another prefix's record":       {"data": foreign},
		"something that is no key":      {"data": map[string]any{"hello": "world"}},
		"a record of a newer format":    {"data": map[string]any{"format": 2, "minReader": 2, "data": a["data"]}},
	} {
		d.write(t, "data/"+d.cfg.Prefix+"/keys/a", data)
		fresh := d.open(t)
		if _, err := fresh.Sign(t.Context(), "a", digest[:]); !errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("%s: Sign: %v", name, err)
		}
		if _, err := fresh.Create(t.Context(), "a", jose.ES256); !errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("%s: Create: %v", name, err)
		}
	}
	// Without its private half it is believed even less.
	d.write(t, "data/"+d.cfg.Prefix+"/keys/a", put(renamed))
	if _, _, err := d.open(t).Public(t.Context(), "a"); !errors.Is(err, custody.ErrUnavailable) {
		t.Errorf("Public of a record with another thumbprint: %v", err)
	}
	// Not deleted: a process that has the key goes on.
	if _, err := k.Sign(t.Context(), "a", digest[:]); err != nil {
		t.Errorf("a process that has the key: %v", err)
	}
	d.write(t, "data/"+d.cfg.Prefix+"/keys/a", map[string]any{"data": a})
	if _, err := d.open(t).Sign(t.Context(), "a", digest[:]); err != nil {
		t.Errorf("the record put back: %v", err)
	}
}

func TestWrappedDisable(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), true)
	digest := sha256.Sum256(nil)
	k, other := d.open(t), d.open(t)
	public := create(t, k, "a")
	if _, err := other.Sign(t.Context(), "a", digest[:]); err != nil {
		t.Fatal(err)
	}
	if err := k.Disable(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	// No version of the record has the private half any more.
	for _, version := range []string{"1", "2"} {
		secret, err := v.Client().Logical().ReadWithDataWithContext(t.Context(), d.kv("data/"+d.cfg.Prefix+"/keys/a"), map[string][]string{"version": {version}})
		if err != nil || secret == nil {
			t.Fatalf("version %s: %v", version, err)
		}
		data, _ := secret.Data["data"].(map[string]any)
		if version == "1" && data != nil {
			t.Errorf("version 1 can still be read")
		}
		if version == "2" && (!recordText(t, data).Disabled || recordText(t, data).Wrapped != "") {
			t.Errorf("version 2 is %v", recordText(t, data))
		}
	}
	// Another replica sees it when it compares, and then forgets the key.
	if err := other.wrapped.tendOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Sign(t.Context(), "a", digest[:]); !errors.Is(err, custody.ErrDisabled) {
		t.Errorf("another replica's Sign: %v", err)
	}
	if other.wrapped.keys["a"].signer != nil {
		t.Error("another replica keeps the private half")
	}
	if got, _, err := other.Public(t.Context(), "a"); err != nil || !equalKeys(got, public) {
		t.Errorf("its public half: %v", err)
	}

	// It sees it too if another key's record is damaged, and says both.
	for _, name := range []string{"damaged", "later"} {
		create(t, k, name)
		if _, err := other.Sign(t.Context(), name, digest[:]); err != nil {
			t.Fatal(err)
		}
	}
	d.write(t, "data/"+d.cfg.Prefix+"/keys/damaged", map[string]any{"data": map[string]any{"hello": "world"}})
	if err := k.Disable(t.Context(), "later"); err != nil {
		t.Fatal(err)
	}
	if err := other.wrapped.tendOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a record that is damaged: %v", err)
	}
	if _, err := other.Sign(t.Context(), "later", digest[:]); !errors.Is(err, custody.ErrDisabled) {
		t.Errorf("another replica's Sign beside a damaged record: %v", err)
	}

	// Interrupted before the destruction: the next call destroys.
	create(t, k, "b")
	doc, err := k.wrapped.records.Load(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := readRecord("b", doc.Data)
	if err != nil {
		t.Fatal(err)
	}
	r.Disabled, r.Wrapped = true, ""
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.wrapped.records.Swap(t.Context(), "b", doc.Revision, text); err != nil {
		t.Fatal(err)
	}
	if err := k.Disable(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	secret, err := v.Client().Logical().ReadWithDataWithContext(t.Context(), d.kv("data/"+d.cfg.Prefix+"/keys/b"), map[string][]string{"version": {"1"}})
	if err != nil || secret == nil || secret.Data["data"] != nil {
		t.Errorf("version 1 after a disabling that was interrupted: %v, %v", secret, err)
	}
}

// Before each write of one replica, another one disables the same key.
func TestReplicasDisableTheSameKey(t *testing.T) {
	v := sharedVault(t)
	for _, wrapped := range []bool{false, true} {
		d := deploy(t, v, fmt.Sprintf("%s%t", prefixFor(t), wrapped), wrapped)
		cfg, err := d.cfg.complete()
		if err != nil {
			t.Fatal(err)
		}
		other := d.open(t)
		for at := 1; ; at++ {
			name := fmt.Sprintf("key%d", at)
			public := create(t, other, name)
			transport, err := newTransport(cfg)
			if err != nil {
				t.Fatal(err)
			}
			writes := 0
			client, err := newClientOver(cfg, &lossy{RoundTripper: transport, lose: func(r *http.Request) loss {
				if r.Method == http.MethodGet || !strings.HasSuffix(r.URL.Path, name) && !strings.Contains(r.URL.Path, name+"/") {
					return loseNothing
				}
				if writes++; writes == at {
					if err := other.Disable(t.Context(), name); err != nil {
						t.Errorf("the first: %v", err)
					}
				}
				return loseNothing
			}})
			if err != nil {
				t.Fatal(err)
			}
			mount := &kvMount{path: cfg.KV}
			var disable func(context.Context, string) error
			if wrapped {
				w := newWrapped(cfg, client, mount)
				defer w.close()
				disable = w.Disable
			} else {
				tr := newTransit(cfg, client, mount)
				defer tr.close()
				disable = tr.Disable
			}
			eventually(t, "the login", func() bool { return client.tokenExpires() != time.Time{} })
			if err := disable(t.Context(), name); err != nil {
				t.Errorf("wrapped %t, before write %d: %v", wrapped, at, err)
			}
			client.close()
			digest := sha256.Sum256(nil)
			if _, err := other.Sign(t.Context(), name, digest[:]); !errors.Is(err, custody.ErrDisabled) && writes >= at {
				t.Errorf("wrapped %t, before write %d: Sign: %v, want ErrDisabled", wrapped, at, err)
			}
			if got, _, err := d.open(t).Public(t.Context(), name); err != nil || !equalKeys(got, public) {
				t.Errorf("wrapped %t, before write %d: Public: %v", wrapped, at, err)
			}
			if writes < at {
				if at < 3 {
					t.Errorf("wrapped %t: only %d writes: this proves nothing", wrapped, writes)
				}
				break
			}
		}
	}
}

func TestWrappedReplicasMakeOneKey(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), true)
	publics := make(chan crypto.PublicKey)
	for range 4 {
		k := d.open(t)
		go func() {
			public, err := k.Create(t.Context(), "a", jose.ES256)
			if err != nil {
				t.Errorf("Create: %v", err)
			}
			publics <- public
		}()
	}
	first := <-publics
	for range 3 {
		if !equalKeys(first, <-publics) {
			t.Error("replicas made several keys")
		}
	}
}

func TestWrappedKeepsNothingInClear(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), true)
	id, err := os.ReadFile(d.appRole.SecretIDFile)
	if err != nil {
		t.Fatal(err)
	}
	k := d.open(t)
	create(t, k, "a")
	record := recordText(t, d.record(t, "a"))
	if !strings.HasPrefix(record.Wrapped, "vault:v1:") {
		t.Errorf("wrapped is %q", record.Wrapped)
	}
	for _, b := range []string{strings.TrimSpace(string(id))} {
		if strings.Contains(record.Wrapped, b) || strings.Contains(strings.Join(stepTexts(d.bootstrap), "\n"), b) {
			t.Error("the secret id is told")
		}
	}
}

func stepTexts(r BootstrapResult) []string {
	texts := append([]string{r.SubjectCheck, r.RoleID, r.Policy}, r.Notes...)
	for _, s := range r.Steps {
		texts = append(texts, s.What, s.Done)
	}
	return texts
}
