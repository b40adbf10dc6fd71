package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/rotation"
)

// RetireOptions say which issuer is given up, and why.
type RetireOptions struct {
	// Issuer is its URL. Required, and Reason, which goes to the audit log.
	Issuer, Reason string
	// Confirmed: without it only what stands in the way is looked for.
	Confirmed bool
	// Version is that of this program, as replicas tell theirs; empty is "dev".
	Version string
}

// RetireResult is what became of it.
type RetireResult struct {
	Issuer string `json:"issuer"`
	// Retired: it is, and was on RetiredAt.
	Retired   bool      `json:"retired"`
	RetiredAt time.Time `json:"retiredAt,omitzero"`
	// Keys are its keys that custody has, all of them disabled.
	Keys int `json:"keys"`
}

// Retire gives an issuer up for good: its keys sign never again, no replica may have it
// configured any more, and imports leave its records out. Its records stay where they
// are, and so do its kill entries until somebody lifts them. It must be out of the
// configuration, and of every replica's. Interrupted, it is run again and goes on; the
// issuer is retired from the first thing that is written. No embedded signer may be
// running on the folder.
func Retire(ctx context.Context, cfg config.Config, o RetireOptions) (_ RetireResult, err error) {
	cfg, err = cfg.Complete()
	if err != nil {
		return RetireResult{}, err
	}
	configured := urls(cfg.Issuers)
	switch {
	case slices.Contains(configured, o.Issuer):
		return RetireResult{}, fmt.Errorf("issuer %s is in issuers of this configuration: take it out there first, and on every replica", o.Issuer)
	case slices.Contains(configured, ""):
		return RetireResult{}, errors.New("an issuer of this configuration has no URL, and might be the one to be retired: say issuers[].url")
	}
	log := slog.New(slog.DiscardHandler)
	if cfg.Embedded() {
		if there, err := exists(cfg.Store.Path); err != nil {
			return RetireResult{}, fmt.Errorf("store: %w", err)
		} else if !there {
			return RetireResult{}, fmt.Errorf("there is no store %s, so there was no issuer: say --data or --config as the signer has it", cfg.Store.Path)
		}
		s, err := openState(ctx, cfg, openOptions{}, log)
		if err != nil {
			return RetireResult{}, err
		}
		defer func() { err = errors.Join(err, s.close()) }()
		return retire(ctx, cfg, s.keyring, s.store, o)
	}
	keyring, err := openKeyring(cfg, log, nil)
	if err != nil {
		return RetireResult{}, err
	}
	defer func() { err = errors.Join(err, keyring.Close()) }()
	store, err := openShared(cfg, killswitch.Defaults(), log)
	if err != nil {
		return RetireResult{}, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	d, _, err := loadDeployment(ctx, keyring)
	if err != nil {
		return RetireResult{}, err
	}
	store.Expect(d.Store)
	return retire(ctx, cfg, keyring, store, o)
}

// retire writes that the issuer is retired, then disables its keys, then puts it into the
// audit log, and then writes that all of it is done.
func retire(ctx context.Context, cfg config.Config, keyring custody.Keyring, store records, o RetireOptions) (RetireResult, error) {
	result := RetireResult{Issuer: o.Issuer}
	k := &keeper{keyring: keyring}
	d, _, err := k.refresh(ctx)
	if err != nil {
		return result, err
	}
	if err := mayRetire(ctx, cfg, keyring, store, d, o); err != nil {
		return result, err
	}
	if !o.Confirmed {
		return result, nil
	}
	again := func(err error) error { return fmt.Errorf("%w; run `signer retire-issuer` again", err) }
	d, err = k.change(ctx, func(d *deployment) error {
		if d.retirement(o.Issuer) == nil {
			d.Issuers = slices.DeleteFunc(slices.Clone(d.Issuers), func(url string) bool { return url == o.Issuer })
			d.Retired = append(slices.Clip(d.Retired), retiredIssuer{URL: o.Issuer, At: time.Now().UTC().Truncate(time.Second)})
		}
		return nil
	})
	if err != nil {
		return result, again(err)
	}
	retired := d.retirement(o.Issuer)
	result.Retired, result.RetiredAt = true, retired.At
	// A replica that has begun meanwhile, on the record as it was, could make a key.
	if err := unserved(ctx, store, o.Issuer); err != nil {
		return result, again(err)
	}
	if result.Keys, err = rotation.Retire(ctx, keyring, o.Issuer); err != nil {
		return result, again(err)
	}
	if retired.Done {
		return result, nil
	}
	if err := store.AppendAudit(ctx, audit.Entry{
		Time: time.Now(), Actor: "signer retire-issuer", Action: "issuer.retire", Issuer: o.Issuer, Target: o.Issuer, Reason: o.Reason,
	}); err != nil {
		return result, again(fmt.Errorf("audit log: %w", err))
	}
	if _, err := k.change(ctx, func(d *deployment) error {
		d.Retired = slices.Clone(d.Retired)
		for i := range d.Retired {
			d.Retired[i].Done = d.Retired[i].Done || d.Retired[i].URL == o.Issuer
		}
		return nil
	}); err != nil {
		return result, again(err)
	}
	return result, nil
}

// mayRetire refuses what would retire an issuer by mistake, or one that is in use.
func mayRetire(ctx context.Context, cfg config.Config, keyring custody.Keyring, store records, d deployment, o RetireOptions) error {
	if err := d.holdsKeysAs(keysOf(cfg)); err != nil {
		return err
	}
	known := d.retirement(o.Issuer) != nil || slices.Contains(d.Issuers, o.Issuer)
	if !known && len(d.Issuers) == 0 { // it keeps no list: who had a schedule is one of its own
		name, err := rotation.DocumentName(o.Issuer)
		if err != nil {
			return err
		}
		switch _, err := keyring.Load(ctx, name); {
		case err == nil:
			known = true
		case !errors.Is(err, custody.ErrNotFound):
			return fmt.Errorf("look for the issuer's key schedule: %w", err)
		}
	}
	if !known {
		has := d.Issuers
		if len(has) == 0 {
			has = urls(cfg.Issuers)
		}
		return fmt.Errorf("this deployment never had an issuer %s: is it mistyped? It has %s", o.Issuer, strings.Join(has, ", "))
	}
	// The list stays one with issuers in it: without any it would let in every issuer.
	if unknown := d.unknownIssuers(urls(cfg.Issuers)); len(unknown) > 0 {
		return fmt.Errorf("this configuration has an issuer that the deployment has not, %s: correct it, or run `signer init` with it first, which adds it", strings.Join(unknown, ", "))
	}
	if err := unserved(ctx, store, o.Issuer); err != nil {
		return err
	}
	if len(d.Retired) > 0 {
		return nil
	}
	// The first one brings the record into a format that older versions do not read.
	replicas, err := store.Replicas(ctx, killswitch.Defaults().Registered)
	if err != nil {
		return err
	}
	version := o.Version
	if version == "" {
		version = "dev"
	}
	for _, r := range replicas {
		if r.Epoch != killswitch.Gone && r.Version != version {
			return fmt.Errorf("replica %s runs version %s, and this is %s: an older version could not read what is written here. Bring all replicas to one version first, and use the signer of that version", r.Replica, r.Version, version)
		}
	}
	return nil
}

// unserved refuses an issuer that a live replica has configured, or may have.
func unserved(ctx context.Context, store records, issuer string) error {
	replicas, err := store.Replicas(ctx, killswitch.Defaults().Registered)
	if err != nil {
		return err
	}
	for _, r := range replicas {
		_, serves := r.Revisions[issuer]
		if r.Epoch != killswitch.Gone && (serves || len(r.Revisions) == 0) {
			return fmt.Errorf("replica %s still serves issuer %s, or did within the last %s: take it out of its configuration and restart it", r.Replica, issuer, killswitch.Defaults().Registered)
		}
	}
	return nil
}
