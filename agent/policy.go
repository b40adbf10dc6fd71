package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Policy is what the administrator allows; it can only narrow (PO-6).
type Policy struct {
	// Enabled: PACT may be used at all.
	Enabled bool `json:"enabled"`
	// AutoRoute: a task may be routed by PACT without the owner's choosing it.
	AutoRoute bool `json:"autoRoute"`
	// BlockedProviders are not contacted: origins (with ://), hosts, and *.x for the
	// hosts that end in .x (PR-5).
	BlockedProviders []string `json:"blockedProviders"`
	// Sources is where it comes from; it allows and forbids nothing.
	Sources []PolicySource `json:"-"`
}

// PolicySource is a file that a policy may come from.
type PolicySource struct {
	Path string `json:"path"`
	Read bool   `json:"read"` // it is there, and counts
	// Problem is why it cannot be used; PACT is off then.
	Problem string `json:"problem,omitzero"`
}

// DefaultPolicy narrows nothing.
func DefaultPolicy() Policy { return Policy{Enabled: true, AutoRoute: true} }

// narrow is both policies at once.
func (p Policy) narrow(q Policy) Policy {
	p.Enabled = p.Enabled && q.Enabled
	p.AutoRoute = p.AutoRoute && q.AutoRoute
	p.BlockedProviders = union(p.BlockedProviders, q.BlockedProviders)
	return p
}

// blocks reports whether a provider's origin is on the block list (PR-5). What
// cannot be parsed is blocked.
func (p Policy) blocks(origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || Origin(u) == "" {
		return true
	}
	origin = Origin(u)
	o, _ := url.Parse(origin) // canonical, so it parses
	host := o.Hostname()
	return slices.ContainsFunc(p.BlockedProviders, func(entry string) bool {
		kind, name := blockEntry(entry)
		switch kind {
		case "origin":
			return name == origin
		case "suffix":
			return strings.HasSuffix(host, "."+name)
		case "host":
			return name == host
		}
		return true // of no form: it must not block less than was meant
	})
}

// blockEntry reads an entry of the block list: origin, suffix or host, and its
// canonical name. The kind is empty if it has none of the forms.
func blockEntry(entry string) (kind, name string) {
	entry = strings.TrimSpace(entry)
	if strings.Contains(entry, "://") {
		if name = originOf(entry); name == "" {
			return "", ""
		}
		return "origin", name
	}
	kind = "host"
	if suffix, ok := strings.CutPrefix(entry, "*."); ok {
		kind, entry = "suffix", suffix
	}
	if a, err := netip.ParseAddr(strings.Trim(entry, "[]")); err == nil && a.Is6() {
		entry = "[" + a.String() + "]"
	} else if strings.ContainsAny(entry, "/?#@:*\\[] ") {
		return "", ""
	}
	u, err := url.Parse(originOf("https://" + entry))
	if err != nil || u.Hostname() == "" {
		return "", ""
	}
	return kind, u.Hostname()
}

// policy is the administrator's, asked anew (PO-7). An error is a *Refusal: a
// policy that cannot be had switches PACT off.
func (a *Agent) policy() (Policy, error) {
	if a.cfg.Policy == nil {
		return DefaultPolicy(), nil
	}
	p, err := a.cfg.Policy()
	if err != nil {
		return p, refuse(StatusBlocked, ReasonDisabledByAdmin, "%v", err)
	}
	for _, entry := range p.BlockedProviders {
		if kind, _ := blockEntry(entry); kind == "" {
			return p, refuse(StatusBlocked, ReasonDisabledByAdmin, "the administrator's policy: blockedProviders: %q is no origin, host or *.host", entry)
		}
	}
	return p, nil
}

// switchedOn is what of PO-1 the environment and the administrator decide.
func (a *Agent) switchedOn() error {
	if a.cfg.DisabledByEnv {
		return refuse(StatusBlocked, ReasonDisabledByEnv, "PACT_DISABLED is set")
	}
	p, err := a.policy()
	if err != nil {
		return err
	}
	if !p.Enabled {
		return refuse(StatusBlocked, ReasonDisabledByAdmin, "the administrator's policy switches PACT off")
	}
	return nil
}

// availability is PO-1: the first reason why PACT cannot be used, in its order.
// Everything is asked anew (PO-7). It is a *Refusal, or an error of the store.
func (a *Agent) availability(ctx context.Context, principal string) error {
	if err := a.switchedOn(); err != nil {
		return err
	}
	s, err := a.freshSettings(ctx)
	if err != nil {
		return err
	}
	id, err := a.identityOf(ctx, principal)
	switch {
	case err != nil:
		return err
	case !s.Enabled && id == nil:
		return refuse(StatusBlocked, ReasonDisabledInSettings, "PACT is off in this profile: enrol with a signer first, or switch it on")
	case !s.Enabled:
		return refuse(StatusBlocked, ReasonDisabledInSettings, "PACT is off in this profile: switch it on with pactctl policy on")
	}
	if a.deployment(id) == DeploymentNone {
		return refuse(StatusBlocked, ReasonIdentityNotSet, "no signer is usable: enrol with one; a loopback signer counts only in development mode")
	}
	return nil
}

// freshSettings are the settings as stored: another process may have changed
// them (PO-7).
func (a *Agent) freshSettings(ctx context.Context) (settings, error) {
	err := a.store.View(ctx, func(tx Tx) error {
		s, err := get[settings](tx, "", settingsID)
		if err == nil {
			a.adopt(s)
		}
		return err
	})
	if err != nil {
		return settings{}, fmt.Errorf("read the settings: %w", err)
	}
	return a.currentSettings(), nil
}

// deployment is ID-1: development counts as none outside development mode, and
// is never a fallback.
func (a *Agent) deployment(id *identity) Deployment {
	if id == nil || id.Deployment == DeploymentDevelopment && !a.rules().Development {
		return DeploymentNone
	}
	return id.Deployment
}

// preferred is PO-2: without a choice PACT is not used. It is asked anew (PO-7).
func (a *Agent) preferred(ctx context.Context) error {
	s, err := a.freshSettings(ctx)
	if err != nil {
		return err
	}
	switch s.Preference {
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

// PolicyView is what decides whether PACT may be used at all, and what it comes
// to.
type PolicyView struct {
	// Available is PO-1 and PO-2; Reason is the first thing in the way.
	Available bool   `json:"available"`
	Reason    Reason `json:"reason,omitzero"`
	Detail    string `json:"detail,omitzero"`

	DisabledByEnv bool `json:"disabledByEnv"` // PACT_DISABLED=1
	// Policy is the administrator's; where it cannot be read nothing is allowed.
	Policy  Policy         `json:"policy"`
	Sources []PolicySource `json:"sources"`
	// The profile's own settings (PO-1, PO-2).
	Enabled    bool       `json:"enabled"`
	Preference Preference `json:"preference,omitzero"`
	By         string     `json:"by,omitzero"` // who changed them last
}

// Policy tells what the administrator and the settings allow now. It uses no
// network.
func (a *Agent) Policy(ctx context.Context, c Caller) (PolicyView, error) {
	if err := c.check(); err != nil {
		return PolicyView{}, err
	}
	s, err := a.freshSettings(ctx)
	if err != nil {
		return PolicyView{}, err
	}
	v := PolicyView{DisabledByEnv: a.cfg.DisabledByEnv, Enabled: s.Enabled, Preference: s.Preference, By: s.By}
	if v.Policy, err = a.policy(); err != nil {
		v.Policy.Enabled, v.Policy.AutoRoute = false, false
	}
	v.Policy.BlockedProviders, v.Sources = nonNil(v.Policy.BlockedProviders), nonNil(v.Policy.Sources)
	var r *Refusal
	if err = a.availability(ctx, c.Principal); err == nil {
		err = a.preferred(ctx)
	}
	switch {
	case err == nil:
		v.Available = true
	case errors.As(err, &r):
		v.Reason, v.Detail = r.Reason, r.Text()
	default:
		return PolicyView{}, err
	}
	return v, nil
}

// SettingsChange says which of a profile's settings to change, and to what; nil
// leaves one as it is.
type SettingsChange struct {
	Enabled    *bool
	Preference *Preference
}

// ChangeSettings changes settings of the profile, all that are named or none.
// Switching PACT on without a choice of preference prefers it (PO-2). Only on the
// owner's own surface.
func (a *Agent) ChangeSettings(ctx context.Context, c Caller, change SettingsChange) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := c.maySet(); err != nil {
		return err
	}
	if p := change.Preference; p != nil && *p != PreferPACT && *p != RequirePACT && *p != DisabledPACT {
		return refuse(StatusFailed, ReasonInvalidInput, "preference: say %s, %s or %s", PreferPACT, RequirePACT, DisabledPACT)
	}
	if change == (SettingsChange{}) {
		return nil
	}
	err := a.updateSettings(withActor(ctx, c), func(s *settings) {
		if change.Preference != nil {
			s.Preference = *change.Preference
		}
		if change.Enabled == nil {
			return
		}
		s.Enabled = *change.Enabled
		if s.Enabled && s.Preference == "" {
			s.Preference = PreferPACT
		}
	})
	if change.Enabled != nil { // SG-8
		a.tokens.clear()
		a.status.clear()
	}
	return err
}

// SetEnabled switches PACT on or off in the profile, as ChangeSettings does.
func (a *Agent) SetEnabled(ctx context.Context, c Caller, on bool) error {
	return a.ChangeSettings(ctx, c, SettingsChange{Enabled: &on})
}

// SetPreference chooses whether PACT is used (PO-2), as ChangeSettings does.
func (a *Agent) SetPreference(ctx context.Context, c Caller, p Preference) error {
	return a.ChangeSettings(ctx, c, SettingsChange{Preference: &p})
}

// maySet: settings are the owner's, on their own surface; no task changes what it
// may do.
func (c Caller) maySet() error {
	if c.surface() {
		return nil
	}
	return refuse(StatusBlocked, ReasonDelegationRequired, "only the owner may change settings, on their own command line; this call is by %q", c.Origin)
}
