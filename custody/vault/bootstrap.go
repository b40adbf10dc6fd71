package vault

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/hashicorp/vault/api"
)

// BootstrapOptions are what an operator decides when Vault is set up.
type BootstrapOptions struct {
	// BackupFile is where the subject key's backup goes, encrypted to BackupTo. Both
	// are needed unless Vault has the key already.
	BackupFile string
	BackupTo   []age.Recipient
	// RestoreFile is a backup to make the subject key from instead, decrypted with
	// RestoreWith.
	RestoreFile string
	RestoreWith []age.Identity
	// Policy is the name of the policy; default: the prefix.
	Policy string
	// AppRole or Kubernetes, if set, get a role with that policy.
	AppRole    *AppRoleOptions
	Kubernetes *KubernetesOptions
}

// AppRoleOptions say how a signer logs in with AppRole.
type AppRoleOptions struct {
	Mount string // default: approle
	Role  string // default: the prefix
	// RoleIDFile and SecretIDFile are written with mode 0600 unless they exist, and
	// are what Auth names. The secret id is in no other place.
	RoleIDFile, SecretIDFile string
}

// KubernetesOptions say which service account logs in.
type KubernetesOptions struct {
	Mount string // default: kubernetes
	Role  string // default: the prefix
	// Host is the API server as Vault reaches it, for a mount that has none yet.
	// Default: https://kubernetes.default.svc.
	Host string
	// CA is the authority of the API server's certificate, in PEM, for such a mount.
	// Empty, Vault takes that of its own pod: it must run in the cluster.
	CA string
	// ReviewerToken is what Vault asks the API server about tokens with, for such a
	// mount: of a service account that is bound to system:auth-delegator. Empty, it
	// takes that of its own pod, and outside a cluster the very token in question,
	// which must be for the API server and allowed to do that then.
	ReviewerToken string
	// ServiceAccount and Namespace of the signer's pods.
	ServiceAccount, Namespace string
	// Audience of the service account's token; empty: any.
	Audience string
}

// BootstrapResult says what was there and what was made.
type BootstrapResult struct {
	Steps []BootstrapStep `json:"steps"`
	// SubjectCheck tells this subject key from others. It is not secret.
	SubjectCheck string `json:"subjectCheck"`
	Policy       string `json:"policy"`
	RoleID       string `json:"roleId,omitzero"`
	// Notes say what needs attention.
	Notes []string `json:"notes,omitempty"`
}

// BootstrapStep is one thing that the signer needs.
type BootstrapStep struct {
	What string `json:"what"`
	Done string `json:"done"` // made, found, updated, restored
}

const (
	stepMade     = "made"
	stepFound    = "found"
	stepUpdated  = "updated"
	stepRestored = "restored"

	// kvReadyTimeout bounds the wait for a KV mount that was just made.
	kvReadyTimeout = 30 * time.Second
	// tokenTTL and tokenMaxTTL of the roles that are made. The signer renews, and
	// logs in anew at the end.
	tokenTTL, tokenMaxTTL = "1h", "24h"
)

// Bootstrap sets up Vault for a signer: mounts, subject key with its backup,
// wrapping key in mode wrapped, policy, and a role if asked for. client is logged
// in as somebody who may do that, not as the signer.
//
// It can be run again at any time, also after it was interrupted at any point:
// what is there is checked and kept. It never makes a second subject key, never
// overwrites a backup, and refuses keys that could leave Vault.
func Bootstrap(ctx context.Context, client *api.Client, cfg Config, o BootstrapOptions) (BootstrapResult, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return BootstrapResult{}, err
	}
	if o.Policy == "" {
		o.Policy = cfg.Prefix
	}
	b := &bootstrap{client: client, cfg: cfg, o: o}
	b.result.Policy = o.Policy
	for _, step := range []func(context.Context) error{b.possible, b.mounts, b.neighbours, b.subjectKey, b.wrapKey, b.policy, b.appRole, b.kubernetes} {
		if err := step(ctx); err != nil {
			return b.result, err
		}
	}
	return b.result, nil
}

type bootstrap struct {
	client *api.Client
	cfg    Config
	o      BootstrapOptions
	result BootstrapResult
}

func (b *bootstrap) step(done, what string, args ...any) {
	b.result.Steps = append(b.result.Steps, BootstrapStep{What: fmt.Sprintf(what, args...), Done: done})
}

func (b *bootstrap) note(text string, args ...any) {
	b.result.Notes = append(b.result.Notes, fmt.Sprintf(text, args...))
}

// OptionsError says that BootstrapOptions do not fit what Vault has. Nothing was
// written.
type OptionsError struct{ Err error }

func (e *OptionsError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *OptionsError) Unwrap() error { return e.Err }

// possible refuses, before anything is made, what would end half-way: a backup that
// cannot be read, or a subject key that must be made and would have none.
func (b *bootstrap) possible(ctx context.Context) error {
	if b.o.RestoreFile != "" {
		key, err := readBackup(b.o.RestoreFile, b.cfg.Prefix, b.o.RestoreWith)
		clear(key)
		if err != nil {
			return &OptionsError{fmt.Errorf("restore the subject key: %w", err)}
		}
		return nil
	}
	if b.o.BackupFile != "" && len(b.o.BackupTo) > 0 {
		return nil
	}
	key, err := b.key(ctx, b.cfg.subjectKey())
	if err == nil && key == nil {
		err = &OptionsError{fmt.Errorf("the subject key %s must be made, once and for all: say where its backup goes and to whom it is encrypted (--backup FILE --backup-to RECIPIENT), or restore one (--restore-subject-key FILE --identity FILE)", b.cfg.subjectKey())}
	}
	return err
}

// mounts enables the two secrets engines.
func (b *bootstrap) mounts(ctx context.Context) error {
	m, done, err := b.mount(ctx, b.cfg.Transit, &api.MountInput{Type: "transit"})
	if err != nil {
		return fmt.Errorf("enable transit at %s: %w", b.cfg.Transit, err)
	}
	if m.Type != "transit" {
		return fmt.Errorf("the mount %s is of type %s, not transit: name another one", b.cfg.Transit, m.Type)
	}
	b.step(done, "transit at %s", b.cfg.Transit)
	m, done, err = b.mount(ctx, b.cfg.KV, &api.MountInput{Type: "kv", Options: map[string]string{"version": "2"}})
	if err != nil {
		return fmt.Errorf("enable KV version 2 at %s: %w", b.cfg.KV, err)
	}
	if m.Type != "kv" || m.Options["version"] != "2" {
		return fmt.Errorf("the mount %s is %s version %q, and documents need KV version 2: name another one, or upgrade it with vault kv enable-versioning %s", b.cfg.KV, m.Type, m.Options["version"], b.cfg.KV)
	}
	b.step(done, "KV version 2 at %s", b.cfg.KV)
	config, err := b.kvReady(ctx)
	if err != nil {
		return fmt.Errorf("read the configuration of %s: %w", b.cfg.KV, err)
	}
	if config.deletes() {
		return fmt.Errorf("the mount %s deletes what is older than %s, the signer's documents too: vault write %s/config delete_version_after=0s, or name another mount", b.cfg.KV, config.DeleteVersionAfter, b.cfg.KV)
	}
	return nil
}

// mount enables a secrets engine at a path that has none, and returns the one that is
// there then.
func (b *bootstrap) mount(ctx context.Context, path string, input *api.MountInput) (*api.MountOutput, string, error) {
	mounted, err := b.client.Sys().ListMountsWithContext(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("list the secrets engines: %w", err)
	}
	if m := mounted[path+"/"]; m != nil {
		return m, stepFound, nil
	}
	made := b.client.Sys().MountWithContext(ctx, path, input)
	if made != nil && !isInUse(made) {
		return nil, "", made
	}
	if mounted, err = b.client.Sys().ListMountsWithContext(ctx); err != nil {
		return nil, "", fmt.Errorf("list the secrets engines: %w", err)
	}
	switch m := mounted[path+"/"]; {
	case m == nil: // in use is a path above or below
		return nil, "", cmp.Or(made, errors.New("it is not there after it was enabled: run this again"))
	case made != nil: // another bootstrap was faster
		return m, stepFound, nil
	default:
		return m, stepMade, nil
	}
}

// isInUse tells Vault's words for a path that has a mount already.
func isInUse(err error) bool { return strings.Contains(err.Error(), "path is already in use") }

// kvReady waits until a KV mount is past its upgrade, and returns its configuration.
func (b *bootstrap) kvReady(ctx context.Context) (kvConfig, error) {
	ctx, cancel := context.WithTimeout(ctx, kvReadyTimeout)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		var config kvConfig
		secret, err := b.client.Logical().ReadWithContext(ctx, b.cfg.KV+"/config")
		if err == nil {
			return config, decode(secret, &config)
		}
		if !isUpgrading(err) {
			return config, err
		}
		select {
		case <-ctx.Done():
			return config, err
		case <-tick.C:
		}
	}
}

// neighbours refuses a prefix that another's rules would reach, or whose rules
// would reach another's keys, and keys of ours that could leave Vault.
func (b *bootstrap) neighbours(ctx context.Context) error {
	secret, err := b.client.Logical().ListWithContext(ctx, b.cfg.Transit+"/keys")
	if err != nil {
		return fmt.Errorf("list the transit keys: %w", err)
	}
	if secret == nil { // there is none
		return nil
	}
	var list struct {
		Keys []string `json:"keys"`
	}
	if err := decode(secret, &list); err != nil {
		return fmt.Errorf("list the transit keys: %w", err)
	}
	for _, name := range list.Keys {
		other, isSubject := strings.CutSuffix(name, "-subject")
		if isSubject && other != b.cfg.Prefix && (strings.HasPrefix(other, b.cfg.Prefix+"-") || strings.HasPrefix(b.cfg.Prefix, other+"-")) {
			return fmt.Errorf("the mount %s has a signer with prefix %s: neither that nor %s may be the other's beginning, because a policy for one would reach the other's keys", b.cfg.Transit, other, b.cfg.Prefix)
		}
		if !strings.HasPrefix(name, b.cfg.Prefix+"-") {
			continue
		}
		key, err := b.key(ctx, name)
		if err != nil {
			return err
		}
		if key == nil { // deleted meanwhile
			continue
		}
		if leak := key.leaks(); leak != "" {
			return fmt.Errorf("the transit key %s: %s; a signer must not use it: delete it, or choose another prefix", name, leak)
		}
	}
	return nil
}

// key reads a transit key; nil if it is not there.
func (b *bootstrap) key(ctx context.Context, name string) (*description, error) {
	secret, err := b.client.Logical().ReadWithContext(ctx, b.cfg.Transit+"/keys/"+name)
	if err != nil {
		return nil, fmt.Errorf("read the transit key %s: %w", name, err)
	}
	if secret == nil {
		return nil, nil
	}
	key := &description{}
	if err := decode(secret, key); err != nil {
		return nil, fmt.Errorf("read the transit key %s: %w", name, err)
	}
	return key, nil
}

// subjectKey makes the subject key and its backup, or finds it.
func (b *bootstrap) subjectKey(ctx context.Context) error {
	name := b.cfg.subjectKey()
	existing, err := b.key(ctx, name)
	if err != nil {
		return err
	}
	var want string // the check value that the key must have
	done := stepFound
	switch {
	case b.o.RestoreFile != "":
		key, err := readBackup(b.o.RestoreFile, b.cfg.Prefix, b.o.RestoreWith)
		if err != nil {
			return fmt.Errorf("restore the subject key: %w", err)
		}
		defer clear(key)
		want = checkValueOf(key)
		if existing == nil {
			if err := b.importKey(ctx, name, key); err != nil {
				return err
			}
			done = stepRestored
		}
	case existing == nil:
		if err := b.makeSubjectKey(ctx, name); err != nil {
			return err
		}
		done = stepMade
	}
	// Whoever made it: what Vault has decides.
	key, err := b.key(ctx, name)
	if err != nil {
		return err
	}
	if key == nil {
		return fmt.Errorf("the transit key %s is not there after it was imported: run this again", name)
	}
	if flaw := key.subjectFlaw(); flaw != "" {
		return fmt.Errorf("the transit key %s can not be the subject key: %s", name, flaw)
	}
	check, err := b.subjectCheck(ctx, name)
	if err != nil {
		return err
	}
	if want != "" && check != want {
		return fmt.Errorf("the transit key %s is another subject key (check value %s) than that in %s (%s): nothing was changed", name, check, b.o.RestoreFile, want)
	}
	b.result.SubjectCheck = check
	if key.Latest > 1 {
		b.note("%s has %d versions; subjects are derived with version 1", name, key.Latest)
	}
	return b.settle(name, check, done, key.Imported)
}

// settle sees to the backup of the key that Vault has.
func (b *bootstrap) settle(name, check, done string, imported bool) error {
	if b.o.BackupFile == "" {
		b.step(done, "subject key %s", name)
		return nil
	}
	settled, err := settleBackup(b.o.BackupFile, check)
	if err != nil {
		return fmt.Errorf("the subject key's backup: %w", err)
	}
	if done == stepMade && !settled {
		done = stepFound // another bootstrap made it at the same time
	}
	b.step(done, "subject key %s", name)
	switch {
	case settled:
		b.step(done, "its backup %s", b.o.BackupFile)
	case imported:
		b.note("the subject key was there before; its backup (check value %s) is where whoever made it put it, not in %s", check, b.o.BackupFile)
	default:
		b.note("the subject key was made in Vault, so that there is no backup of it: if Vault is lost, every subject changes")
	}
	left, err := unsettledBackups(b.o.BackupFile)
	if err != nil {
		return fmt.Errorf("the subject key's backup: %w", err)
	}
	for _, file := range left {
		b.note("%s is the backup of a key that this Vault does not have; delete it, unless another Vault has a key with that check value", file)
	}
	return nil
}

// makeSubjectKey generates the key, writes its backup, and imports it. A key that
// is imported meanwhile by somebody else stays.
func (b *bootstrap) makeSubjectKey(ctx context.Context, name string) error {
	if b.o.BackupFile == "" || len(b.o.BackupTo) == 0 {
		return fmt.Errorf("the subject key %s was deleted meanwhile", name)
	}
	if _, err := os.Lstat(b.o.BackupFile); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is there, and Vault has no subject key %s: if it is this deployment's backup, restore it; else name another file", b.o.BackupFile, name)
	}
	key := make([]byte, sha256.Size)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	defer clear(key)
	pending, err := writeBackup(b.o.BackupFile, b.cfg.Prefix, key, b.o.BackupTo)
	if err != nil {
		return fmt.Errorf("write the subject key's backup: %w", err)
	}
	importErr := b.importKey(ctx, name, key)
	if importErr == nil {
		return nil
	}
	// Lost is the answer, perhaps, and not the import.
	if now, err := b.key(ctx, name); err != nil || now == nil {
		return fmt.Errorf("%w (its backup %s stays until this is run again)", importErr, pending)
	}
	return nil
}

// importKey gives Vault a key under its wrapping key, so that the key is never in
// clear on the way.
func (b *bootstrap) importKey(ctx context.Context, name string, key []byte) error {
	secret, err := b.client.Logical().ReadWithContext(ctx, b.cfg.Transit+"/wrapping_key")
	if err != nil {
		return fmt.Errorf("read transit's wrapping key: %w", err)
	}
	var answer struct {
		PublicKey string `json:"public_key"`
	}
	if err := decode(secret, &answer); err != nil {
		return fmt.Errorf("read transit's wrapping key: %w", err)
	}
	block, _ := pem.Decode([]byte(answer.PublicKey))
	if block == nil {
		return errors.New("transit's wrapping key is no PEM")
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return fmt.Errorf("transit's wrapping key: %w", err)
	}
	to, ok := public.(*rsa.PublicKey)
	if !ok {
		return fmt.Errorf("transit's wrapping key is a %T, not RSA", public)
	}
	ephemeral := make([]byte, 32)
	if _, err := rand.Read(ephemeral); err != nil {
		return err
	}
	defer clear(ephemeral)
	wrappedKey, err := rsa.EncryptOAEP(sha256.New(), rand.Reader, to, ephemeral, nil)
	if err != nil {
		return fmt.Errorf("wrap the subject key: %w", err)
	}
	wrapped, err := wrapKWP(ephemeral, key)
	if err != nil {
		return fmt.Errorf("wrap the subject key: %w", err)
	}
	_, err = b.client.Logical().WriteWithContext(ctx, b.cfg.Transit+"/keys/"+name+"/import", map[string]any{
		"type":                   "hmac",
		"hash_function":          "SHA256",
		"ciphertext":             base64.StdEncoding.EncodeToString(slices.Concat(wrappedKey, wrapped)),
		"exportable":             false,
		"allow_plaintext_backup": false,
		"allow_rotation":         false,
	})
	if err != nil {
		return fmt.Errorf("import the subject key: %w", err)
	}
	return nil
}

func (b *bootstrap) subjectCheck(ctx context.Context, name string) (string, error) {
	secret, err := b.client.Logical().WriteWithContext(ctx, b.cfg.Transit+"/hmac/"+name, map[string]any{
		"input":       base64.StdEncoding.EncodeToString([]byte(checkInput)),
		"algorithm":   "sha2-256",
		"key_version": 1,
	})
	if err != nil {
		return "", fmt.Errorf("use the subject key: %w", err)
	}
	var answer struct {
		HMAC string `json:"hmac"`
	}
	if err := decode(secret, &answer); err != nil {
		return "", fmt.Errorf("use the subject key: %w", err)
	}
	encoded, ok := strings.CutPrefix(answer.HMAC, "vault:v1:")
	mac, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(mac) != sha256.Size {
		return "", errors.New("use the subject key: Vault's answer is no HMAC of version 1")
	}
	return checkValue(mac), nil
}

// wrapKey makes the key that wraps others, in mode wrapped.
func (b *bootstrap) wrapKey(ctx context.Context) error {
	if !b.cfg.Wrapped {
		return nil
	}
	name, done := b.cfg.wrapKey(), stepFound
	key, err := b.key(ctx, name)
	if err != nil {
		return err
	}
	if key == nil {
		// Vault makes it once, however often it is asked.
		if _, err := b.client.Logical().WriteWithContext(ctx, b.cfg.Transit+"/keys/"+name, map[string]any{
			"type": wrapType, "exportable": false, "allow_plaintext_backup": false,
		}); err != nil {
			return fmt.Errorf("make the transit key %s: %w", name, err)
		}
		if key, err = b.key(ctx, name); err != nil {
			return err
		}
		if key == nil {
			return fmt.Errorf("the transit key %s is not there after it was made: run this again", name)
		}
		done = stepMade
	}
	if flaw := key.wrapFlaw(); flaw != "" {
		return fmt.Errorf("the transit key %s can not be the wrapping key: %s", name, flaw)
	}
	b.step(done, "wrapping key %s", name)
	return nil
}

// policy writes the policy.
func (b *bootstrap) policy(ctx context.Context) error {
	want, err := Policy(b.cfg)
	if err != nil {
		return err
	}
	have, err := b.client.Sys().GetPolicyWithContext(ctx, b.o.Policy)
	if err != nil {
		return fmt.Errorf("read the policy %s: %w", b.o.Policy, err)
	}
	done := stepUpdated
	switch have {
	case want:
		b.step(stepFound, "policy %s", b.o.Policy)
		return nil
	case "":
		done = stepMade
	}
	if err := b.client.Sys().PutPolicyWithContext(ctx, b.o.Policy, want); err != nil {
		return fmt.Errorf("write the policy %s: %w", b.o.Policy, err)
	}
	b.step(done, "policy %s", b.o.Policy)
	return nil
}

// auth enables an auth method.
func (b *bootstrap) auth(ctx context.Context, mount, method string) error {
	mounted, err := b.client.Sys().ListAuthWithContext(ctx)
	if err != nil {
		return fmt.Errorf("list the auth methods: %w", err)
	}
	if mounted[mount+"/"] == nil {
		made := b.client.Sys().EnableAuthWithOptionsWithContext(ctx, mount, &api.EnableAuthOptions{Type: method})
		if made == nil {
			b.step(stepMade, "auth method %s at %s", method, mount)
			return nil
		}
		if isInUse(made) { // another bootstrap was faster
			if mounted, err = b.client.Sys().ListAuthWithContext(ctx); err != nil {
				return fmt.Errorf("list the auth methods: %w", err)
			}
		}
		if mounted[mount+"/"] == nil {
			return fmt.Errorf("enable %s at %s: %w", method, mount, made)
		}
	}
	if m := mounted[mount+"/"]; m.Type != method {
		return fmt.Errorf("the auth method at %s is %s, not %s: name another mount", mount, m.Type, method)
	}
	b.step(stepFound, "auth method %s at %s", method, mount)
	return nil
}

// role writes a role, which replaces what it was.
func (b *bootstrap) role(ctx context.Context, path string, more map[string]any) error {
	role := map[string]any{
		"token_policies": []string{b.o.Policy}, "token_no_default_policy": true,
		"token_ttl": tokenTTL, "token_max_ttl": tokenMaxTTL, "token_num_uses": 0,
	}
	for name, value := range more {
		role[name] = value
	}
	had, err := b.client.Logical().ReadWithContext(ctx, path)
	if err != nil {
		return fmt.Errorf("read the role %s: %w", path, err)
	}
	if _, err := b.client.Logical().WriteWithContext(ctx, path, role); err != nil {
		return fmt.Errorf("write the role %s: %w", path, err)
	}
	done := stepMade
	if had != nil {
		done = stepUpdated
	}
	b.step(done, "role %s", path)
	return nil
}

// appRole makes the role, and a secret id for all replicas. The secret id is drawn
// here and written before Vault gets it, so that an interruption leaves none that
// nobody has.
func (b *bootstrap) appRole(ctx context.Context) error {
	o := b.o.AppRole
	if o == nil {
		return nil
	}
	mount, role := orElse(o.Mount, methodAppRole), orElse(o.Role, b.cfg.Prefix)
	if err := b.auth(ctx, mount, methodAppRole); err != nil {
		return err
	}
	path := "auth/" + mount + "/role/" + role
	if err := b.role(ctx, path, map[string]any{"bind_secret_id": true, "secret_id_num_uses": 0, "secret_id_ttl": 0}); err != nil {
		return err
	}
	secret, err := b.client.Logical().ReadWithContext(ctx, path+"/role-id")
	var answer struct {
		RoleID string `json:"role_id"`
	}
	if err == nil {
		err = decode(secret, &answer)
	}
	if err != nil {
		return fmt.Errorf("read the role's id: %w", err)
	}
	b.result.RoleID = answer.RoleID
	if o.RoleIDFile != "" {
		switch text, err := readLimited(o.RoleIDFile); {
		case errors.Is(err, fs.ErrNotExist):
			if err := writeNew(o.RoleIDFile, []byte(answer.RoleID+"\n")); err != nil {
				return fmt.Errorf("write the role's id: %w", err)
			}
			b.step(stepMade, "role id in %s", o.RoleIDFile)
		case err != nil:
			return fmt.Errorf("read the role's id: %w", err)
		case strings.TrimSpace(string(text)) != answer.RoleID:
			return fmt.Errorf("%s holds another role's id: move it away", o.RoleIDFile)
		default:
			b.step(stepFound, "role id in %s", o.RoleIDFile)
		}
	}
	if o.SecretIDFile == "" {
		return nil
	}
	return b.secretID(ctx, path, o.SecretIDFile)
}

// ourSecretID is what a secret id that was drawn here looks like.
var ourSecretID = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (b *bootstrap) secretID(ctx context.Context, path, file string) error {
	text, err := readLimited(file)
	drawn := errors.Is(err, fs.ErrNotExist)
	if drawn {
		random := make([]byte, 32)
		if _, err := rand.Read(random); err != nil {
			return err
		}
		text = []byte(hex.EncodeToString(random) + "\n")
		err = writeNew(file, text)
	}
	if err != nil {
		return fmt.Errorf("the secret id: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if !drawn {
		known, err := b.client.Logical().WriteWithContext(ctx, path+"/secret-id/lookup", map[string]any{"secret_id": id})
		if err != nil {
			return fmt.Errorf("look up the secret id in %s: %w", file, err)
		}
		if known != nil && known.Data["secret_id_accessor"] != nil {
			b.step(stepFound, "secret id in %s", file)
			return nil
		}
		if !ourSecretID.MatchString(id) {
			return fmt.Errorf("%s holds something that is not a secret id of this role: move it away", file)
		}
	}
	if _, err := b.client.Logical().WriteWithContext(ctx, path+"/custom-secret-id", map[string]any{"secret_id": id}); err != nil {
		return fmt.Errorf("give the role its secret id: %w", err)
	}
	b.step(stepMade, "secret id in %s", file)
	return nil
}

// kubernetes makes the role for a service account.
func (b *bootstrap) kubernetes(ctx context.Context) error {
	o := b.o.Kubernetes
	if o == nil {
		return nil
	}
	if o.ServiceAccount == "" || o.Namespace == "" {
		return errors.New("name the service account and the namespace of the signer's pods")
	}
	mount, role := orElse(o.Mount, methodKubernetes), orElse(o.Role, b.cfg.Prefix)
	if err := b.auth(ctx, mount, methodKubernetes); err != nil {
		return err
	}
	config := "auth/" + mount + "/config"
	had, err := b.client.Logical().ReadWithContext(ctx, config)
	if err != nil {
		return fmt.Errorf("read %s: %w", config, err)
	}
	if had == nil || orElse(stringOf(had.Data["kubernetes_host"]), "") == "" {
		host := orElse(o.Host, "https://kubernetes.default.svc")
		data := map[string]any{"kubernetes_host": host}
		if o.CA != "" {
			data["kubernetes_ca_cert"] = o.CA
		}
		if o.ReviewerToken != "" {
			data["token_reviewer_jwt"] = o.ReviewerToken
		}
		if _, err := b.client.Logical().WriteWithContext(ctx, config, data); err != nil {
			if o.CA == "" && strings.Contains(err.Error(), "serviceaccount/ca.crt") {
				return fmt.Errorf("write %s: Vault runs in no pod, so tell it the authority of the API server (--kubernetes-ca-file): %w", config, err)
			}
			return fmt.Errorf("write %s: %w", config, err)
		}
		b.step(stepMade, "%s with host %s", config, host)
		if o.CA != "" && o.ReviewerToken == "" {
			b.note("unless Vault runs in the cluster, it has no token of its own to ask the API server with: give it one (token_reviewer_jwt of %s), or bind the signer's service account to system:auth-delegator and let its token be for the API server", config)
		}
	} else {
		b.step(stepFound, "%s with host %s", config, had.Data["kubernetes_host"])
		if o.Host != "" && o.Host != stringOf(had.Data["kubernetes_host"]) || o.CA != "" || o.ReviewerToken != "" {
			b.note("%s is there and was left as it is: host, authority and reviewer token that were given are not in it; `vault write %[1]s` replaces all of it", config)
		}
	}
	more := map[string]any{
		"bound_service_account_names":      []string{o.ServiceAccount},
		"bound_service_account_namespaces": []string{o.Namespace},
	}
	if o.Audience != "" {
		more["audience"] = o.Audience
	}
	return b.role(ctx, "auth/"+mount+"/role/"+role, more)
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func stringOf(v any) string {
	s, _ := v.(string)
	return s
}
