package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/vault"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/store/bolt"
	"github.com/pactsigner/pactsigner/killswitch"
)

// deploymentName is the custody document that says what belongs together.
const deploymentName = "deployment"

// The formats of the document. It is written in the oldest that can say what it says,
// so that only a deployment that has retired an issuer needs readers that know of that:
// others would serve the issuer again, and forget that it was retired.
const (
	firstFormat   = 1
	retiredFormat = 2
	newestFormat  = retiredFormat
)

// The states of a deployment. It is initialising while its store is made; once
// it is ready a store that is missing was lost.
const (
	initialising = "initialising"
	ready        = "ready"
)

// deployment lives as long as the keys do.
type deployment struct {
	Format    int    `json:"format"`
	MinReader int    `json:"minReader"`
	State     string `json:"state"`
	// Store is the id that the store bears, random. It changes when the loss of a
	// store is accepted: the lost one is not taken any more.
	Store string `json:"store,omitzero"`
	// AuditHead is an entry that the store's audit log must have: after every act
	// of an operator its newest one.
	AuditHead audit.Head `json:"auditHead,omitzero"`
	// EnrolmentClosed: the store was lost, or went back, and with it who was invalidated.
	// Every issuer's enrolment is closed until an operator opens it.
	EnrolmentClosed bool `json:"enrolmentClosed,omitzero"`
	// AdminToken is the first admin token's hash.
	AdminToken string `json:"adminToken,omitzero"`
	// GivenUp are the last ids that the store had before its loss was accepted,
	// newest first: a store that bears one of them was this deployment's.
	GivenUp [4]string `json:"givenUp,omitzero"`
	// SubjectCheck tells the subject key from others, see subjectCheck.
	SubjectCheck string `json:"subjectCheck,omitzero"`
	// Issuers are the URLs of those whose replicas share a store: one that is mistyped
	// on a replica gets no keys. Empty: any.
	Issuers []string `json:"issuers,omitempty"`
	// Keys is how a Vault holds the keys: transit or wrapped. Empty: not in a Vault, or
	// not known.
	Keys string `json:"keys,omitzero"`
	// Retired are the issuers that this deployment had and never has again.
	Retired []retiredIssuer `json:"retired,omitempty"`
}

// retiredIssuer is an issuer that was given up for good.
type retiredIssuer struct {
	URL string    `json:"url"`
	At  time.Time `json:"at"`
	// Done: its keys are disabled, and it is in the audit log.
	Done bool `json:"done"`
}

func (d deployment) equal(o deployment) bool { return reflect.DeepEqual(d, o) }

// otherConfigError: a configuration is not of this deployment.
type otherConfigError struct{ problem string }

func (e *otherConfigError) Error() string { return e.problem }

// keysOf is deployment.Keys for a configuration.
func keysOf(cfg config.Config) string {
	switch {
	case cfg.Custody.Kind != "vault":
		return ""
	case cfg.Custody.Vault.Wrapped:
		return "wrapped"
	}
	return "transit"
}

// holdsKeysAs refuses a configuration that would look for the keys elsewhere, and make
// others.
func (d deployment) holdsKeysAs(keys string) error {
	if d.Keys == "" || keys == d.Keys {
		return nil
	}
	words := map[string]string{"transit": "Vault signs with its own keys (custody.vault.wrapped: false)", "wrapped": "keys are wrapped by Vault (custody.vault.wrapped: true)"}
	return &otherConfigError{fmt.Sprintf("this deployment was initialised so that %s, and the configuration says that %s: say custody.vault.wrapped as it was, or use another custody.vault.prefix for a new deployment", words[d.Keys], words[keys])}
}

// retiredIssuers are the URLs of those that are retired.
func (d deployment) retiredIssuers() []string {
	urls := make([]string, len(d.Retired))
	for i, r := range d.Retired {
		urls[i] = r.URL
	}
	return urls
}

// retirement is what the record says of a retired issuer; nil if it is not retired.
func (d deployment) retirement(url string) *retiredIssuer {
	for _, r := range d.Retired {
		if r.URL == url {
			return &r
		}
	}
	return nil
}

// servesNone refuses a configuration that has a retired issuer. Its keys are disabled,
// and imports leave its records out: with new keys a device that was invalidated there
// could enrol again, and would get the subject that it had.
func (d deployment) servesNone(configured []string) error {
	for _, url := range configured {
		if r := d.retirement(url); r != nil {
			return &otherConfigError{fmt.Sprintf("issuer %s was retired on %s, for good: take it out of issuers in this configuration; a new issuer needs another URL", url, r.At.UTC().Format(time.DateOnly))}
		}
	}
	return nil
}

// unknownIssuers are those that the deployment does not have.
func (d deployment) unknownIssuers(configured []string) []string {
	var unknown []string
	for _, url := range configured {
		if len(d.Issuers) > 0 && !slices.Contains(d.Issuers, url) {
			unknown = append(unknown, url)
		}
	}
	return unknown
}

// fits refuses a replica's configuration that is not of this deployment.
func (d deployment) fits(issuers []string, keys string) error {
	if err := d.servesNone(issuers); err != nil {
		return err
	}
	if unknown := d.unknownIssuers(issuers); len(unknown) > 0 {
		return &otherConfigError{fmt.Sprintf("this deployment has no issuer %s, only %s: correct issuers in this replica's configuration; if it is a new one, run `signer init` with it, which adds it", strings.Join(unknown, ", "), strings.Join(d.Issuers, ", "))}
	}
	return d.holdsKeysAs(keys)
}

// give replaces the store's id, which gives the store up.
func (d *deployment) give(id string) {
	if d.Store != "" {
		copy(d.GivenUp[1:], d.GivenUp[:])
		d.GivenUp[0] = d.Store
	}
	d.Store = id
}

// loadDeployment returns the document and its revision, 0 if there is none.
func loadDeployment(ctx context.Context, k custody.Keyring) (deployment, uint64, error) {
	doc, err := k.Load(ctx, deploymentName)
	if errors.Is(err, custody.ErrNotFound) {
		return deployment{State: initialising}, 0, nil
	}
	if errors.Is(err, custody.ErrDeleted) {
		return deployment{}, 0, &recordError{fmt.Sprintf("the deployment's record is gone from custody: %v", err)}
	}
	if err != nil {
		return deployment{}, 0, fmt.Errorf("load the deployment's record: %w", err)
	}
	var d deployment
	if err := json.Unmarshal(doc.Data, &d); err != nil {
		return d, 0, &recordError{fmt.Sprintf("the deployment's record in custody cannot be read, restore custody from its backup: %v", err)}
	}
	if d.Format < firstFormat || d.Format > newestFormat || d.MinReader > newestFormat {
		return d, 0, &recordError{fmt.Sprintf("the deployment's record has format %d, for readers of %d on; this version knows %d: use a newer version", d.Format, d.MinReader, newestFormat)}
	}
	return d, doc.Revision, nil
}

func saveDeployment(ctx context.Context, k custody.Keyring, rev uint64, d deployment) (uint64, error) {
	d.Format = firstFormat
	if len(d.Retired) > 0 {
		d.Format = retiredFormat
	}
	d.MinReader = d.Format
	data, err := json.Marshal(d)
	if err != nil {
		return rev, fmt.Errorf("encode the deployment's record: %w", err)
	}
	rev, err = k.Swap(ctx, deploymentName, rev, data)
	if err != nil {
		return rev, fmt.Errorf("save the deployment's record: %w", err)
	}
	return rev, nil
}

// state is what a server keeps: keys and records.
type state struct {
	keyring    keyring
	store      records
	shared     shared     // the same store, if replicas share it
	deployment deployment // as it was opened; not of a shared store
	token      tokenState
}

func (s *state) close() error {
	var err error
	if s.store != nil {
		err = s.store.Close()
	}
	return errors.Join(err, s.keyring.Close())
}

// openOptions are what only `signer init` asks for.
type openOptions struct {
	vault                 vault.Observer
	store                 bolt.Options
	newAdminToken         bool
	acceptLostStore       bool
	acceptRolledBackStore bool
	openEnrolment         bool
}

// openState opens an embedded deployment's state, or makes it: first custody says that
// it is being made, then the store is, then custody says ready. Interrupted at
// any point, it goes on from there.
func openState(ctx context.Context, cfg config.Config, o openOptions, log *slog.Logger) (_ *state, err error) {
	storeThere, err := exists(cfg.Store.Path)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if storeThere && cfg.Custody.Kind == "local" {
		custodyThere, err := exists(cfg.Custody.Dir)
		if err != nil {
			return nil, fmt.Errorf("custody: %w", err)
		}
		if !custodyThere {
			return nil, fmt.Errorf("the store %s has records but the keys in %s are gone: restore that folder from its backup, since without it every subject would change", cfg.Store.Path, cfg.Custody.Dir)
		}
	}
	folders := []string{cfg.Data, filepath.Dir(cfg.Store.Path)}
	if cfg.Custody.Kind == "local" {
		folders = append(folders, cfg.Custody.Dir)
	}
	for _, dir := range folders {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the data folder: %w", err)
		}
	}
	keyring, err := openKeyring(cfg, log, o.vault)
	if err != nil {
		return nil, err
	}
	s := &state{keyring: keyring}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()

	d, rev, err := loadDeployment(ctx, keyring)
	if err != nil {
		return nil, err
	}
	if rev == 0 && storeThere {
		return nil, fmt.Errorf("the store %s belongs to other keys than those in %s: restore the folder that goes with it, or name the Vault that does, since without it every subject would change", cfg.Store.Path, keysPlace(cfg))
	}
	if err := d.holdsKeysAs(keysOf(cfg)); err != nil {
		return nil, err
	}
	lost := d.State == ready && !storeThere
	if d.State == ready && d.Store != "" && storeThere {
		o.store.ID = d.Store
		store, err := bolt.Open(cfg.Store.Path, o.store)
		lost = errors.Is(err, bolt.ErrUnmarked)
		switch {
		case err == nil:
			s.store = store
		case errors.Is(err, bolt.ErrForeign):
			return nil, fmt.Errorf("%w: restore the store that goes with the keys in %s. If that is lost, move this one away and run `signer init --accept-lost-store` with the same --data or --config", err, keysPlace(cfg))
		case !lost:
			return nil, err
		}
	}
	if lost && !o.acceptLostStore {
		return nil, fmt.Errorf("the store %s is gone or empty: restore it from its backup. If it is lost, `signer init --accept-lost-store`, with the same --data or --config, makes an empty one and closes enrolment: credentials, invalidations and audiences are forgotten, devices keep their subjects", cfg.Store.Path)
	}
	if rev == 0 || lost || d.Store == "" {
		d.State, d.Store, d.AuditHead = initialising, rand.Text(), audit.Head{}
		d.EnrolmentClosed = d.EnrolmentClosed || lost
		if rev, err = saveDeployment(ctx, keyring, rev, d); err != nil {
			return nil, err
		}
	}
	if s.store == nil {
		o.store.ID, o.store.Make = d.Store, true
		store, err := bolt.Open(cfg.Store.Path, o.store)
		if err != nil {
			return nil, err
		}
		s.store = store
	}
	before := d
	if err := checkAuditHead(ctx, s.store, &d, o.acceptRolledBackStore); err != nil {
		return nil, fmt.Errorf("the store %s %w", cfg.Store.Path, err)
	}
	if o.openEnrolment {
		d.EnrolmentClosed = false
	}
	d.State = ready
	if s.token, err = ensureAdminToken(adminTokenFile(cfg), &d, o.newAdminToken); err != nil {
		return nil, err
	}
	d.Keys = keysOf(cfg)
	if d.SubjectCheck == "" {
		if d.SubjectCheck, err = subjectCheck(ctx, keyring); err != nil {
			return nil, err
		}
	}
	if !d.equal(before) {
		if _, err := saveDeployment(ctx, keyring, rev, d); err != nil {
			return nil, err
		}
	}
	s.deployment = d
	return s, nil
}

// keysPlace says where the keys are.
func keysPlace(cfg config.Config) string {
	if cfg.Custody.Kind == "vault" {
		return "Vault under the prefix " + cfg.Custody.Vault.Prefix
	}
	return cfg.Custody.Dir
}

// exists reports whether there is something at path that is not empty.
func exists(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Size() > 0, err
}

// highWater keeps the switch's record in custody.
func highWater(k custody.Keyring) killswitch.HighWater {
	return killswitch.DocumentHighWater{
		Documents: documents{k},
		Name:      "kill-switch",
		NotFound:  custody.ErrNotFound,
		Conflict:  custody.ErrConflict,
	}
}

type documents struct{ custody.Keyring }

func (d documents) Load(ctx context.Context, name string) (uint64, []byte, error) {
	doc, err := d.Keyring.Load(ctx, name)
	return doc.Revision, doc.Data, err
}
