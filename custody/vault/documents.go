package vault

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/vault/api"

	"github.com/pactsigner/pactsigner/custody"
)

// The folders below the prefix in KV.
const (
	documentsFolder = "documents"
	keysFolder      = "keys" // of mode wrapped
)

// format is the newest format of a stored document that this code knows; a
// document says in minReader what it takes to read it.
const format = 1

// maxDocument keeps a document, in base64 and encrypted by Vault, below the 512
// KiB that Consul stores under one key. Vault's other storages and its request
// limit (1 MiB for a string) take more.
const maxDocument = 380_000

// maxName is the longest name in KV that is not shortened: Vault encrypts it
// into a file name where its storage is files.
const maxName = 100

// documents are the secrets of one folder, each written with check-and-set. A
// document's revision is its version in KV, of which Vault keeps the last ten or
// more and never drops the newest.
type documents struct {
	client *client
	mount  *kvMount
	folder string // PREFIX/documents
}

// kvMount remembers that a mount was found to be KV version 2.
type kvMount struct {
	path string
	ok   atomic.Bool
}

// stored is a document as KV has it.
type stored struct {
	Format    int `json:"format"`
	MinReader int `json:"minReader"`
	// Write is drawn for each Swap, which so recognises what it wrote itself after
	// the answer was lost.
	Write string `json:"write"`
	Data  []byte `json:"data"`
}

// Load implements [custody.Keyring].
func (d *documents) Load(ctx context.Context, name string) (custody.Document, error) {
	doc, _, err := d.load(ctx, name)
	return doc, err
}

func (d *documents) load(ctx context.Context, name string) (custody.Document, string, error) {
	path, err := d.path(ctx, name)
	if err != nil {
		return custody.Document{}, "", err
	}
	secret, err := d.client.call(ctx, http.MethodGet, d.mount.path+"/data/"+path, nil)
	if err != nil && !errors.Is(err, custody.ErrNotFound) {
		return custody.Document{}, "", fmt.Errorf("document %s: %w", name, err)
	}
	if err != nil || secret == nil || secret.Data["data"] == nil {
		return custody.Document{}, "", d.missing(name, path, secret)
	}
	var read struct {
		Data     stored    `json:"data"`
		Metadata kvVersion `json:"metadata"`
	}
	if err := decode(secret, &read); err != nil || read.Metadata.Version == 0 {
		return custody.Document{}, "", fmt.Errorf("%w: %s/%s in Vault is no document of ours (%v)", custody.ErrUnavailable, d.mount.path, path, err)
	}
	if read.Data.MinReader > format || read.Data.Format == 0 {
		return custody.Document{}, "", fmt.Errorf("%w: %s/%s in Vault was written by a newer version (format %d, this one reads %d)", custody.ErrUnavailable, d.mount.path, path, read.Data.Format, format)
	}
	return custody.Document{Revision: read.Metadata.Version, Data: read.Data.Data}, read.Data.Write, nil
}

// kvVersion is what KV tells of a version.
type kvVersion struct {
	Version      uint64 `json:"version"`
	DeletionTime string `json:"deletion_time"`
	Destroyed    bool   `json:"destroyed"`
}

// missing tells a document that was never written from one that was deleted:
// Vault answers 404 for both, and only for the latter with what it remembers.
func (d *documents) missing(name, path string, answer *api.Secret) error {
	var remembered struct {
		Metadata kvVersion `json:"metadata"`
	}
	if answer != nil {
		if err := decode(answer, &remembered); err != nil {
			return fmt.Errorf("%w: document %s: %w", custody.ErrUnavailable, name, err)
		}
	}
	switch version := remembered.Metadata.Version; {
	case version == 0:
		return fmt.Errorf("%w: document %s", custody.ErrNotFound, name)
	case remembered.Metadata.Destroyed:
		return fmt.Errorf("%w: the newest version (%d) of document %s was destroyed in Vault; restore Vault from its snapshot, or go back to the newest version that `vault kv metadata get -mount=%s %s` shows intact with vault kv rollback -mount=%s -version=N %s",
			custody.ErrDeleted, version, name, d.mount.path, path, d.mount.path, path)
	default:
		return fmt.Errorf("%w: document %s was deleted in Vault; restore it: vault kv undelete -mount=%s -versions=%d %s",
			custody.ErrDeleted, name, d.mount.path, version, path)
	}
}

// Swap implements [custody.Keyring]. If the answer is lost it reads back what
// became of the write, and writes once more if it did not arrive: of both, check-
// and-set lets one through.
func (d *documents) Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error) {
	if len(data) > maxDocument {
		return 0, fmt.Errorf("%w: document %s has %d bytes, more than the %d that fit every storage of Vault's", custody.ErrInvalid, name, len(data), maxDocument)
	}
	path, err := d.path(ctx, name)
	if err != nil {
		return 0, err
	}
	if expect > 0 { // check-and-set alone would write over one that was deleted
		switch now, _, err := d.load(ctx, name); {
		case errors.Is(err, custody.ErrNotFound), err == nil && now.Revision != expect:
			return 0, fmt.Errorf("%w: %s is not at revision %d", custody.ErrConflict, name, expect)
		case err != nil:
			return 0, err
		}
	}
	body := map[string]any{
		"options": map[string]any{"cas": expect},
		"data":    stored{Format: format, MinReader: format, Write: rand.Text(), Data: data},
	}
	write := body["data"].(stored).Write
	revision, err := d.write(ctx, path, body)
	for again := true; err != nil; again = false {
		if errors.Is(err, custody.ErrInvalid) && !isMismatch(err) || ctx.Err() != nil {
			return 0, fmt.Errorf("document %s: %w", name, err)
		}
		now, by, loadErr := d.load(ctx, name)
		switch {
		case loadErr == nil && by == write:
			return now.Revision, nil
		case isMismatch(err) || loadErr == nil && now.Revision != expect:
			return 0, fmt.Errorf("%w: %s is not at revision %d", custody.ErrConflict, name, expect)
		case loadErr != nil && !(expect == 0 && errors.Is(loadErr, custody.ErrNotFound)), !again:
			return 0, fmt.Errorf("document %s: it is not known whether it was written: %w", name, err)
		}
		revision, err = d.write(ctx, path, body)
	}
	return revision, nil
}

func (d *documents) write(ctx context.Context, path string, body any) (uint64, error) {
	secret, err := d.client.call(ctx, http.MethodPost, d.mount.path+"/data/"+path, body)
	if err != nil {
		if isUpgrading(err) {
			err = fmt.Errorf("%w: %v", custody.ErrUnavailable, err)
		}
		return 0, err
	}
	var version kvVersion
	if err := decode(secret, &version); err != nil || version.Version == 0 {
		return 0, fmt.Errorf("%w: Vault wrote %s/%s without telling its version", custody.ErrUnavailable, d.mount.path, path)
	}
	if version.DeletionTime != "" {
		// Written, but not for good.
		return 0, fmt.Errorf("%w: Vault will delete %s/%s at %s; end that: vault write %s/config delete_version_after=0s, and vault kv metadata put -mount=%s -delete-version-after=0s %s",
			custody.ErrInvalid, d.mount.path, path, version.DeletionTime, d.mount.path, d.mount.path, path)
	}
	return version.Version, nil
}

// destroyBefore erases the versions of a document that are older than revision.
func (d *documents) destroyBefore(ctx context.Context, name string, revision uint64) error {
	path, err := d.path(ctx, name)
	if err != nil {
		return err
	}
	var versions []uint64
	for v := uint64(1); v < revision; v++ {
		versions = append(versions, v)
	}
	if len(versions) == 0 {
		return nil
	}
	if _, err := d.client.call(ctx, http.MethodPut, d.mount.path+"/destroy/"+path, map[string]any{"versions": versions}); err != nil {
		return fmt.Errorf("destroying old versions of %s: %w", name, err)
	}
	return nil
}

// path returns where a document is below the mount's data and metadata, once the
// mount is known to be KV version 2: version 1 would take a write and ignore its
// check-and-set.
func (d *documents) path(ctx context.Context, name string) (string, error) {
	if name == "" {
		return "", fmt.Errorf("%w: a document's name is required", custody.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("custody/vault: %w", err)
	}
	if !d.mount.ok.Load() {
		what, err := mountType(ctx, d.client, d.mount.path)
		if err != nil {
			return "", err
		}
		if what != kvVersion2 {
			return "", fmt.Errorf("%w: the mount %s in Vault is %s, and documents need KV version 2 for its check-and-set: name another mount (custody.vault.kv), or upgrade this one with vault kv enable-versioning %s",
				custody.ErrUnavailable, d.mount.path, what, d.mount.path)
		}
		d.mount.ok.Store(true)
	}
	return d.folder + "/" + kvName(name), nil
}

// kvVersion2 is what [mountType] says of a mount that takes documents.
const kvVersion2 = "KV version 2"

// mountType says what a mount is, to anybody who may do something in it.
func mountType(ctx context.Context, c *client, mount string) (string, error) {
	secret, err := c.call(ctx, http.MethodGet, "sys/internal/ui/mounts/"+mount, nil)
	switch {
	case isHidden(err):
		return "", fmt.Errorf("the mount %s is not there, or the policy gives nothing in it: %w", mount, err)
	case err != nil:
		return "", fmt.Errorf("look at the mount %s: %w", mount, err)
	}
	var m struct {
		Type    string            `json:"type"`
		Path    string            `json:"path"`
		Options map[string]string `json:"options"`
	}
	if err := decode(secret, &m); err != nil {
		return "", fmt.Errorf("%w: the mount %s: %w", custody.ErrUnavailable, mount, err)
	}
	switch {
	case m.Path != mount+"/":
		return "inside the mount " + m.Path, nil
	case m.Type == "kv" && m.Options["version"] == "2":
		return kvVersion2, nil
	case m.Type == "kv" || m.Type == "generic":
		return "KV version 1", nil
	default:
		return "of type " + m.Type, nil
	}
}

// kvName spells a name in lower-case letters, digits, "-", "_" and inner dots;
// other bytes become =XX. A long name is shortened, its hash keeps it apart.
func kvName(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_', c == '.' && i > 0 && i < len(name)-1:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02x", c)
		}
	}
	s := b.String()
	if len(s) > maxName {
		sum := sha256.Sum256([]byte(name))
		s = s[:maxName-40] + "=~" + hex.EncodeToString(sum[:16]) // no escape has "~"
	}
	return s
}

// isMismatch tells Vault's words for a check-and-set that was not met.
func isMismatch(err error) bool {
	return strings.Contains(err.Error(), "check-and-set parameter did not match")
}

// isUpgrading tells Vault's words for a KV mount that was made a moment ago.
func isUpgrading(err error) bool {
	return strings.Contains(err.Error(), "Upgrading from non-versioned to versioned") || strings.Contains(err.Error(), "Waiting for the primary to upgrade")
}

// isHidden tells Vault's words for a mount that is not there, or that the token may
// do nothing in. Another 403 is about the token itself.
func isHidden(err error) bool {
	return status(err) == http.StatusForbidden && strings.Contains(err.Error(), "preflight capability check")
}

// decode reads an answer's data into v.
func decode(secret *api.Secret, v any) error {
	if secret == nil {
		return errors.New("an empty answer")
	}
	text, err := json.Marshal(secret.Data)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}
