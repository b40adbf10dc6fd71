package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/store/redis"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// InitResult is what Init found or made.
type InitResult struct {
	Data string `json:"data,omitzero"` // of an embedded signer
	// Store is the id that the store bears, of a store that replicas share.
	Store string `json:"store,omitzero"`
	// AdminTokenFile is where the first admin token is.
	AdminTokenFile string `json:"adminTokenFile,omitzero"`
	// AdminToken is the token itself, if it was to be shown.
	AdminToken string `json:"adminToken,omitzero"`
	// NewAdminToken: the token was made just now.
	NewAdminToken bool `json:"newAdminToken"`
	// NoAdminToken: the deployment has no first admin token.
	NoAdminToken bool `json:"noAdminToken,omitzero"`
	// EnrolmentClosed: every issuer's enrolment is closed, after a store that was lost or went back.
	EnrolmentClosed bool `json:"enrolmentClosed"`
	// AddedIssuers are those that a deployment that was initialised before did not have.
	AddedIssuers []string `json:"addedIssuers,omitempty"`
	// Note says what needs attention.
	Note string `json:"note,omitzero"`
}

// InitOptions are what an operator decides about a deployment's state. The zero
// value makes what is missing and changes nothing else.
type InitOptions struct {
	NewAdminToken bool // replace the first admin token
	// AdminTokenFile is where the first admin token is written, with a store that
	// replicas share. Default: admin-token in the data folder, where an embedded
	// signer has it. ShowAdminToken returns a new one in the result instead, and
	// keeps it nowhere.
	AdminTokenFile string
	ShowAdminToken bool
	// NoAdminToken makes no first admin token, with a store that replicas share: the
	// configuration names who operates.
	NoAdminToken bool
	// KeepIssuers refuses issuers that a deployment that was initialised before does
	// not have, with a store that replicas share.
	KeepIssuers bool
	// These are for an embedded signer; with replicas `pactctl state` does it.
	AcceptLostStore       bool // make an empty store in place of one that is gone
	AcceptRolledBackStore bool // take a store that is older than custody knows it
	OpenEnrolment         bool // after either, go back to the configured mode
}

// Init makes what a deployment lacks: the data folder, custody's own keys, the
// store or its mark, and the first admin token. It can be run again, and goes on
// where it was interrupted. No embedded signer may be running on the folder;
// replicas may.
func Init(ctx context.Context, cfg config.Config, o InitOptions) (InitResult, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return InitResult{}, err
	}
	if !cfg.Embedded() {
		o.AdminTokenFile = cmp.Or(o.AdminTokenFile, adminTokenFile(cfg))
		return initShared(ctx, cfg, o)
	}
	if o.AdminTokenFile != "" || o.ShowAdminToken || o.NoAdminToken {
		return InitResult{}, fmt.Errorf("an embedded signer has its first admin token in %s and nowhere else: leave --admin-token-file, --show-admin-token and --no-admin-token away", adminTokenFile(cfg))
	}
	if o.KeepIssuers {
		return InitResult{}, errors.New("an embedded signer keeps no list of its issuers: leave --keep-issuers away")
	}
	s, err := openState(ctx, cfg, openOptions{
		newAdminToken: o.NewAdminToken, acceptLostStore: o.AcceptLostStore,
		acceptRolledBackStore: o.AcceptRolledBackStore, openEnrolment: o.OpenEnrolment,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		return InitResult{}, err
	}
	return InitResult{
		Data:            cfg.Data,
		AdminTokenFile:  adminTokenFile(cfg),
		NewAdminToken:   s.token == tokenMade,
		EnrolmentClosed: s.deployment.EnrolmentClosed,
		Note:            s.token.note(),
	}, s.close()
}

// initShared makes the record of a deployment whose replicas share a store, and
// gives the store its mark.
func initShared(ctx context.Context, cfg config.Config, o InitOptions) (_ InitResult, err error) {
	if o.AcceptLostStore || o.AcceptRolledBackStore || o.OpenEnrolment {
		return InitResult{}, errors.New("with store.kind redis a loss is accepted on any running replica: `pactctl state status` tells how the store is, `pactctl state accept-loss` gives it up, `pactctl state open-enrolment` opens enrolment again")
	}
	log := slog.New(slog.DiscardHandler)
	keyring, err := openKeyring(cfg, log, nil)
	if err != nil {
		return InitResult{}, err
	}
	defer func() { err = errors.Join(err, keyring.Close()) }()
	store, err := openShared(cfg, killswitch.Defaults(), log)
	if err != nil {
		return InitResult{}, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.CheckServer(ctx); err != nil {
		return InitResult{}, fmt.Errorf("store: %w", err)
	}
	return initialise(ctx, cfg, keyring, store, o)
}

// initialise says in custody that a store is being made, marks it, and says that
// the deployment is ready.
func initialise(ctx context.Context, cfg config.Config, keyring custody.Keyring, store shared, o InitOptions) (InitResult, error) {
	d, rev, err := loadDeployment(ctx, keyring)
	if err != nil {
		return InitResult{}, err
	}
	found, err := store.Identity(ctx)
	if err != nil {
		return InitResult{}, fmt.Errorf("store: %w", err)
	}
	if err := mayMark(d, rev, found); err != nil {
		return InitResult{}, err
	}
	if err := d.holdsKeysAs(keysOf(cfg)); err != nil {
		return InitResult{}, err
	}
	if err := d.servesNone(urls(cfg.Issuers)); err != nil {
		return InitResult{}, err
	}
	if err := mayOperate(cfg, d, o); err != nil {
		return InitResult{}, err
	}
	if o.KeepIssuers && d.State == ready {
		if err := d.fits(urls(cfg.Issuers), keysOf(cfg)); err != nil {
			return InitResult{}, err
		}
	}
	if rev == 0 {
		d.Store, d.Keys = rand.Text(), keysOf(cfg)
		if rev, err = saveDeployment(ctx, keyring, rev, d); err != nil {
			return InitResult{}, err
		}
	}
	if d.State != ready {
		if err := store.Mark(ctx, d.Store); err != nil {
			return InitResult{}, fmt.Errorf("mark the store: %w; run `signer init` again", err)
		}
	}
	before := d
	d.State = ready
	result := InitResult{Store: d.Store, AdminTokenFile: o.AdminTokenFile, EnrolmentClosed: d.EnrolmentClosed}
	if result.AddedIssuers, err = d.complete(ctx, cfg, keyring); err != nil {
		return InitResult{}, err
	}
	var token tokenState
	switch {
	case o.NoAdminToken:
		result.AdminTokenFile = ""
	case o.ShowAdminToken:
		result.AdminTokenFile = ""
		if o.NewAdminToken || d.AdminToken == "" {
			var hash signer.Hash
			result.AdminToken, hash = signer.NewAdminToken()
			d.AdminToken, token = signer.FormatAdminTokenHash(hash), tokenMade
		}
	default:
		if err := os.MkdirAll(filepath.Dir(o.AdminTokenFile), 0o700); err != nil {
			return InitResult{}, fmt.Errorf("admin token: %w", err)
		}
		if token, err = ensureAdminToken(o.AdminTokenFile, &d, o.NewAdminToken); err != nil {
			return InitResult{}, err
		}
	}
	if !d.equal(before) {
		if _, err := saveDeployment(ctx, keyring, rev, d); err != nil {
			return InitResult{}, fmt.Errorf("%w; run `signer init` again", err)
		}
	}
	if token == tokenGone {
		result.AdminTokenFile = ""
	}
	result.NoAdminToken = d.AdminToken == ""
	result.NewAdminToken, result.Note = token == tokenMade, token.noteShared()
	if len(result.AddedIssuers) > 0 {
		result.Note = strings.TrimSpace(fmt.Sprintf("The deployment has a new issuer now: %s. If it is mistyped, correct the configuration and run init again: the wrong one stays listed, without keys, until it is retired. %s", strings.Join(result.AddedIssuers, ", "), result.Note))
	}
	return result, nil
}

// complete writes into d what a replica compares itself with, and returns the issuers
// that a deployment did not have before.
func (d *deployment) complete(ctx context.Context, cfg config.Config, keyring custody.Keyring) (added []string, err error) {
	check, err := subjectCheck(ctx, keyring)
	if err != nil {
		return nil, err
	}
	if d.SubjectCheck == "" {
		d.SubjectCheck = check
	}
	if d.SubjectCheck != check {
		return nil, signer.ErrOtherSubjectKey
	}
	d.Keys = keysOf(cfg)
	configured := urls(cfg.Issuers)
	if slices.Contains(configured, "") { // that of the public listener, which only a replica knows
		return nil, nil
	}
	if len(d.Issuers) == 0 {
		d.Issuers = configured
		return nil, nil
	}
	added = d.unknownIssuers(configured)
	d.Issuers = append(slices.Clip(d.Issuers), added...)
	return added, nil
}

// urls are the configured URLs of issuers.
func urls(issuers []config.Issuer) []string {
	urls := make([]string, len(issuers))
	for i, is := range issuers {
		urls[i] = is.URL
	}
	return urls
}

// mayOperate refuses a deployment that nobody could operate.
func mayOperate(cfg config.Config, d deployment, o InitOptions) error {
	administers := func(t config.AdminToken) bool { return t.Role == signer.RoleAdmin.String() }
	if o.NoAdminToken && d.AdminToken == "" && !slices.ContainsFunc(cfg.Admin.Tokens, administers) {
		return errors.New("without a first admin token nobody could operate the deployment: put a token of role admin into admin.tokens, as `signer token create --role admin` prints it, or leave --no-admin-token away")
	}
	return nil
}

// storeTags is in how many places a store that is whole bears its mark.
const storeTags = 256

// mayMark refuses a store that is somebody else's, and says so of one that
// replicas would not serve from.
func mayMark(d deployment, rev uint64, found redis.Identity) error {
	switch {
	case rev == 0 && (found.ID != "" || found.Records):
		return errors.New("the store has records of another deployment, or of this one with another custody: use an empty Redis or another store.redis.prefix, or the custody that goes with it")
	case d.State == ready:
		if found.ID == "" || found.ID == d.Store && found.Tags < storeTags {
			return storeCondition(d, redis.ErrUnmarked)
		}
		if found.ID != d.Store {
			return storeCondition(d, redis.ErrForeign)
		}
	case rev != 0 && found.ID != "" && found.ID != d.Store:
		return errors.New("another deployment has marked the store meanwhile: use an empty Redis or another store.redis.prefix")
	}
	return nil
}
