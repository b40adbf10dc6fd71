package agent

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Policy is what the administrator allows; it can only narrow (PO-6).
type Policy struct {
	Enabled          bool     `json:"enabled"`
	AutoRoute        bool     `json:"autoRoute"`
	BlockedProviders []string `json:"blockedProviders"`
}

// DefaultPolicy narrows nothing.
func DefaultPolicy() Policy { return Policy{Enabled: true, AutoRoute: true} }

// blocks reports whether a provider's origin is on the block list (PR-5): an
// entry with :// is an origin, *.x a host that ends in .x, anything else a host.
// What cannot be parsed is blocked.
func (p *Policy) blocks(origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || Origin(u) == "" {
		return true
	}
	origin = Origin(u)
	o, _ := url.Parse(origin) // canonical, so it parses
	host := o.Hostname()
	return slices.ContainsFunc(p.BlockedProviders, func(entry string) bool {
		entry = strings.ToLower(strings.TrimSpace(entry))
		if strings.Contains(entry, "://") {
			return originOf(entry) == origin
		}
		if suffix, ok := strings.CutPrefix(entry, "*."); ok {
			return strings.HasSuffix(host, "."+suffix)
		}
		return host == strings.TrimSuffix(entry, ".")
	})
}

// availability is PO-1: the first reason why PACT cannot be used, in its order.
// It is a *Refusal.
func (a *Agent) availability(ctx context.Context, principal string) error {
	s := a.currentSettings()
	switch {
	case a.cfg.DisabledByEnv:
		return refuse(StatusBlocked, ReasonDisabledByEnv, "PACT_DISABLED=1 is set")
	case !a.cfg.Policy.Enabled:
		return refuse(StatusBlocked, ReasonDisabledByAdmin, "the administrator's policy switches PACT off")
	case !s.Enabled:
		return refuse(StatusBlocked, ReasonDisabledInSettings, "PACT is off in this profile: enrol with a signer first")
	}
	id, err := a.identityOf(ctx, principal)
	if err != nil {
		return err
	}
	if a.deployment(id) == DeploymentNone {
		return refuse(StatusBlocked, ReasonIdentityNotSet, "no signer is usable: enrol with one; a loopback signer counts only in development mode")
	}
	return nil
}

// deployment is ID-1: development counts as none outside development mode, and
// is never a fallback.
func (a *Agent) deployment(id *identity) Deployment {
	if id == nil || id.Deployment == DeploymentDevelopment && !a.rules().Development {
		return DeploymentNone
	}
	return id.Deployment
}

// preferred is PO-2: without a choice PACT is not used.
func (a *Agent) preferred() error {
	switch a.currentSettings().Preference {
	case PreferPACT, RequirePACT:
		return nil
	}
	return refuse(StatusBlocked, ReasonPACTDisabled, "the profile's preference is not to use PACT")
}

// identityOf is the principal's identity, or nil.
func (a *Agent) identityOf(ctx context.Context, principal string) (*identity, error) {
	var id *identity
	err := a.store.View(ctx, func(tx Tx) (err error) {
		id, err = get[identity](tx, principal, identityID)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the identity: %w", err)
	}
	return id, nil
}
