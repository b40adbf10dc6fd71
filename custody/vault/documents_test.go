package vault

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/test/servers"
)

// rootKeyring opens a keyring with the root token, on a Vault that nobody
// prepared.
func rootKeyring(t *testing.T, v *servers.Vault, change func(*Config)) *Keyring {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(v.RootToken), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Addresses: []string{v.Addr}, Auth: Auth{Method: "token", TokenFile: file}}
	if change != nil {
		change(&cfg)
	}
	k, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func swap(t *testing.T, k custody.Keyring, name string, expect uint64, data string) uint64 {
	t.Helper()
	revision, err := k.Swap(t.Context(), name, expect, []byte(data))
	if err != nil {
		t.Fatalf("Swap %s: %v", name, err)
	}
	return revision
}

func TestDeletedDocumentIsNotANewOne(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), false)
	k := d.open(t)
	root := v.Client()
	kv := root.KVv2(DefaultKV)
	path := d.cfg.Prefix + "/documents/doc"
	swap(t, k, "doc", 0, "one")
	swap(t, k, "doc", 1, "two")

	if err := kv.Delete(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	_, err := k.Load(t.Context(), "doc")
	if !errors.Is(err, custody.ErrUnavailable) || errors.Is(err, custody.ErrNotFound) ||
		!strings.Contains(err.Error(), "vault kv undelete -mount=secret -versions=2 "+path) {
		t.Errorf("Load of a deleted document: %v", err)
	}
	if _, err := k.Swap(t.Context(), "doc", 0, nil); !errors.Is(err, custody.ErrConflict) {
		t.Errorf("Swap that makes a deleted document: %v", err)
	}
	for revision := range uint64(3) {
		if _, err := k.Swap(t.Context(), "doc", revision+1, nil); !errors.Is(err, custody.ErrUnavailable) || !strings.Contains(err.Error(), "vault kv undelete") {
			t.Errorf("Swap over revision %d of a deleted document: %v", revision+1, err)
		}
	}
	if err := kv.Undelete(t.Context(), path, []int{2}); err != nil {
		t.Fatal(err)
	}
	if doc, err := k.Load(t.Context(), "doc"); err != nil || doc.Revision != 2 || string(doc.Data) != "two" {
		t.Errorf("after it was restored: %v, %v", doc, err)
	}

	if err := kv.Destroy(t.Context(), path, []int{2}); err != nil {
		t.Fatal(err)
	}
	_, err = k.Load(t.Context(), "doc")
	if !errors.Is(err, custody.ErrUnavailable) || errors.Is(err, custody.ErrNotFound) || !strings.Contains(err.Error(), "rollback") {
		t.Errorf("Load of a destroyed document: %v", err)
	}
	if _, err := k.Swap(t.Context(), "doc", 0, nil); !errors.Is(err, custody.ErrConflict) {
		t.Errorf("Swap that makes a destroyed document: %v", err)
	}
	if _, err := kv.Rollback(t.Context(), path, 1); err != nil {
		t.Fatal(err)
	}
	if doc, err := k.Load(t.Context(), "doc"); err != nil || doc.Revision != 3 || string(doc.Data) != "one" {
		t.Errorf("after it was rolled back: %v, %v", doc, err)
	}

	// Metadata alone is no document.
	if _, err := root.Logical().WriteWithContext(t.Context(), "secret/metadata/"+d.cfg.Prefix+"/documents/bare", map[string]any{"max_versions": 5}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Load(t.Context(), "bare"); !errors.Is(err, custody.ErrNotFound) {
		t.Errorf("Load of a document that has only metadata: %v", err)
	}
	if revision := swap(t, k, "bare", 0, "x"); revision != 1 {
		t.Errorf("its first revision is %d", revision)
	}
}

func TestDocumentsNeedVersion2(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{})
	root := v.Client()
	for path, kind := range map[string]string{"old": "kv", "cipher": "transit"} {
		if _, err := root.Logical().WriteWithContext(t.Context(), "sys/mounts/"+path, map[string]any{"type": kind}); err != nil {
			t.Fatal(err)
		}
	}
	for mount, says := range map[string]string{"old": "is KV version 1", "cipher": "is of type transit", "none": "is not there", "old/inner": "is inside the mount old/"} {
		k := rootKeyring(t, v, func(c *Config) { c.KV, c.Transit = mount, "other" })
		_, load := k.Load(t.Context(), "doc")
		_, swapped := k.Swap(t.Context(), "doc", 0, []byte("x"))
		for name, err := range map[string]error{"Load": load, "Swap": swapped} {
			if !errors.Is(err, custody.ErrUnavailable) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s in %s: %v, want %q", name, mount, err, says)
			}
		}
	}
	if secret, err := root.Logical().ListWithContext(t.Context(), "old"); err != nil || secret != nil {
		t.Errorf("something was written to version 1: %v, %v", secret, err)
	}
}

func TestDocumentsKeepTheNewest(t *testing.T) {
	v := servers.StartVault(t, servers.VaultOptions{})
	d := deploy(t, v, "signer", false)
	k := d.open(t)
	root := v.Client()
	if _, err := root.Logical().WriteWithContext(t.Context(), "secret/config", map[string]any{"max_versions": 1}); err != nil {
		t.Fatal(err)
	}
	var revision uint64
	for i := range uint64(15) {
		if revision = swap(t, k, "doc", revision, "x"); revision != i+1 {
			t.Fatalf("revision %d after %d swaps", revision, i+1)
		}
	}
	if doc, err := k.Load(t.Context(), "doc"); err != nil || doc.Revision != 15 {
		t.Errorf("Load: %v, %v", doc.Revision, err)
	}

	large := bytes.Repeat([]byte{0xff}, maxDocument)
	if _, err := k.Swap(t.Context(), "large", 0, large); err != nil {
		t.Errorf("a document of %d bytes: %v", len(large), err)
	}
	if doc, err := k.Load(t.Context(), "large"); err != nil || !bytes.Equal(doc.Data, large) {
		t.Errorf("Load of it: %v", err)
	}
	if _, err := k.Swap(t.Context(), "larger", 0, append(large, 0)); !errors.Is(err, custody.ErrInvalid) {
		t.Errorf("one more byte: %v", err)
	}

	// A mount that deletes by itself gives nothing durable.
	if _, err := root.Logical().WriteWithContext(t.Context(), "secret/config", map[string]any{"delete_version_after": "1h"}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Swap(t.Context(), "doc", 15, []byte("y")); err == nil || !strings.Contains(err.Error(), "delete_version_after=0s") {
		t.Errorf("Swap where versions expire: %v", err)
	}
}

func TestDocumentOfANewerVersionIsRefused(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), false)
	k := d.open(t)
	for name, data := range map[string]map[string]any{
		"newer":   {"format": 2, "minReader": 2, "write": "x", "data": "eA=="},
		"foreign": {"password": "hunter2"},
		"garbled": {"format": 1, "minReader": 1, "write": "x", "data": "%"},
	} {
		d.write(t, "data/"+d.cfg.Prefix+"/documents/"+name, map[string]any{"data": data})
		if _, err := k.Load(t.Context(), name); !errors.Is(err, custody.ErrUnavailable) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	d.write(t, "data/"+d.cfg.Prefix+"/documents/readable", map[string]any{"data": map[string]any{"format": 2, "minReader": 1, "write": "x", "data": "eA=="}})
	if doc, err := k.Load(t.Context(), "readable"); err != nil || string(doc.Data) != "x" {
		t.Errorf("a newer format that we may read: %v", err)
	}
}

// What is wrong with the mount is said if that is what is wrong, and not otherwise.
func TestMountIsBlamedRightly(t *testing.T) {
	f := startFixture(t, servers.VaultOptions{TLS: true})
	for _, test := range []struct {
		name  string
		spoil func(t *testing.T, cfg *Config)
		blame bool
		says  string
	}{
		{"no mount", func(t *testing.T, cfg *Config) { cfg.KV = "nowhere" }, true, "nowhere"},
		{"no policy", func(t *testing.T, cfg *Config) {
			f.write(t, "sys/policies/acl/"+cfg.Prefix, map[string]any{"policy": `path "x" { capabilities = ["read"] }`})
		}, true, "secret"},
		{"wrong CA", func(t *testing.T, cfg *Config) { cfg.CAFile = "" }, false, "certificate"},
		{"no role id", func(t *testing.T, cfg *Config) { cfg.Auth.RoleIDFile += "-gone" }, false, "no such file"},
		{"bad token", func(t *testing.T, cfg *Config) {
			cfg.Auth = Auth{Method: methodToken, TokenFile: cfg.Auth.RoleIDFile}
		}, false, "logging in to Vault"},
		{"sealed", func(*testing.T, *Config) { f.Seal() }, false, "sealed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := f.deployment(t, nil)
			test.spoil(t, &cfg)
			_, err := openKeyring(t, cfg).Load(t.Context(), "deployment")
			blamed := err != nil && strings.Contains(err.Error(), "is not there, or the policy gives nothing in it")
			if !errors.Is(err, custody.ErrUnavailable) || blamed != test.blame || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want ErrUnavailable about %q, the mount blamed: %t", err, test.says, test.blame)
			}
		})
	}
}

// A token that was revoked gets the same status as a mount that is not there.
func TestMountIsNotBlamedForARevokedToken(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), false)
	token, err := v.Client().Auth().Token().Create(&api.TokenCreateRequest{Policies: []string{d.cfg.Prefix}, TTL: "1h"})
	if err != nil {
		t.Fatal(err)
	}
	d.token(t, token.Auth.ClientToken)
	k := d.open(t)
	if err := v.Client().Auth().Token().RevokeTree(token.Auth.ClientToken); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Load(t.Context(), "deployment"); !errors.Is(err, custody.ErrUnavailable) || strings.Contains(err.Error(), "is not there") || !strings.Contains(err.Error(), "403") {
		t.Errorf("%v, want ErrUnavailable with Vault's 403 and no word of a mount that is not there", err)
	}
}

// lossy is a network that loses requests or answers.
type lossy struct {
	http.RoundTripper
	// lose says what becomes of a request: sent and answered, sent only, not sent.
	lose func(*http.Request) loss
	then func() // after a lost answer
}

type loss int

const (
	loseNothing loss = iota
	loseAnswer
	loseRequest
)

var errLost = errors.New("lost on the way")

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	switch l.lose(r) {
	case loseRequest:
		return nil, errLost
	case loseAnswer:
		resp, err := l.RoundTripper.RoundTrip(r)
		if err == nil {
			err = resp.Body.Close()
		}
		if l.then != nil {
			l.then()
		}
		return nil, errors.Join(errLost, err)
	default:
		return l.RoundTripper.RoundTrip(r)
	}
}

func TestLostAnswersOfSwapAreFoundOut(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), false)
	other := d.open(t)
	for name, c := range map[string]struct {
		writes  []loss // what becomes of the first writes
		reads   loss
		then    func(name string) // after a lost answer
		want    error
		version uint64 // in Vault afterwards
	}{
		"answer lost":           {writes: []loss{loseAnswer}, version: 1},
		"request lost":          {writes: []loss{loseRequest}, version: 1},
		"request, then answer":  {writes: []loss{loseRequest, loseAnswer}, version: 1},
		"answer and reads lost": {writes: []loss{loseAnswer}, reads: loseAnswer, want: custody.ErrUnavailable, version: 1},
		"all requests lost":     {writes: []loss{loseRequest, loseRequest, loseRequest, loseRequest}, want: custody.ErrUnavailable},
		"answer lost, and then overwritten": {
			writes: []loss{loseAnswer}, want: custody.ErrConflict, version: 2,
			then: func(name string) { swap(t, other, name, 1, "theirs") },
		},
		"request lost, and others were first": {
			writes: []loss{loseRequest}, want: custody.ErrConflict, version: 1,
			then: func(name string) { swap(t, other, name, 0, "ours") }, // the same bytes
		},
	} {
		t.Run(name, func(t *testing.T) {
			doc := strings.ReplaceAll(name, " ", "-")
			transport, err := newTransport(d.cfg)
			if err != nil {
				t.Fatal(err)
			}
			network := &lossy{RoundTripper: transport}
			written := 0
			network.lose = func(r *http.Request) loss {
				if !strings.Contains(r.URL.Path, "/data/") {
					return loseNothing
				}
				if r.Method == http.MethodGet {
					return c.reads
				}
				written++
				if written > len(c.writes) {
					return loseNothing
				}
				if c.writes[written-1] == loseRequest && c.then != nil {
					c.then(doc)
				}
				return c.writes[written-1]
			}
			if c.then != nil {
				network.then = func() { c.then(doc) }
			}
			cfg, err := d.cfg.complete()
			if err != nil {
				t.Fatal(err)
			}
			client, err := newClientOver(cfg, network)
			if err != nil {
				t.Fatal(err)
			}
			defer client.close()
			docs := &documents{client: client, mount: &kvMount{path: cfg.KV}, folder: cfg.Prefix + "/" + documentsFolder}
			revision, err := docs.Swap(t.Context(), doc, 0, []byte("ours"))
			if !errors.Is(err, c.want) || err == nil && revision != 1 {
				t.Errorf("Swap: %d, %v, want %v", revision, err, c.want)
			}
			now, err := other.Load(t.Context(), doc)
			if now.Revision != c.version || err != nil && !errors.Is(err, custody.ErrNotFound) {
				t.Errorf("Vault has revision %d, %v, want %d", now.Revision, err, c.version)
			}
		})
	}
}

func TestSwapEndsWithItsCaller(t *testing.T) {
	v := sharedVault(t)
	d := deploy(t, v, prefixFor(t), false)
	transport, err := newTransport(d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	network := &lossy{RoundTripper: transport, lose: func(r *http.Request) loss {
		if strings.Contains(r.URL.Path, "/data/") {
			asked++
			cancel()
			return loseRequest
		}
		return loseNothing
	}}
	cfg, err := d.cfg.complete()
	if err != nil {
		t.Fatal(err)
	}
	client, err := newClientOver(cfg, network)
	if err != nil {
		t.Fatal(err)
	}
	defer client.close()
	docs := &documents{client: client, mount: &kvMount{path: cfg.KV}, folder: cfg.Prefix + "/" + documentsFolder}
	if _, err := docs.Swap(ctx, "doc", 0, nil); !errors.Is(err, context.Canceled) || asked != 1 {
		t.Errorf("Swap: %v after %d requests", err, asked)
	}
}

func TestKVNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"a", "A", ".", "..", "...", "a.", ".a", "a/b", "a=2fb", "a%2fb", "ü", "a b", "a\n", "=~", "~",
		strings.Repeat("a", maxName), strings.Repeat("a", maxName+1), strings.Repeat("a", maxName+2), strings.Repeat("/", 50), strings.Repeat("/", 51)} {
		spelt := kvName(name)
		if strings.Trim(spelt, "abcdefghijklmnopqrstuvwxyz0123456789-_.=~") != "" || strings.Contains("/"+spelt+"/", "/.") || strings.HasSuffix(spelt, ".") || len(spelt) > maxName {
			t.Errorf("%q is spelt %q", name, spelt)
		}
		if other, ok := seen[spelt]; ok {
			t.Errorf("%q and %q are both spelt %q", name, other, spelt)
		}
		seen[spelt] = name
	}
}
