package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Where a provider's audience comes from (PR-1).
const (
	SourceSettings = "settings" // the owner entered it
	SourceSigner   = "signer"   // the signer's registration
)

// ProviderView is a provider as a surface shows it.
type ProviderView struct {
	Origin   string `json:"origin"`
	Audience string `json:"audience"`
	Label    string `json:"label,omitzero"`
	Source   string `json:"source"`
	State    string `json:"state"` // ready, not_ready or blocked (PR-3)
	Reason   Reason `json:"reason,omitzero"`
	By       string `json:"by,omitzero"` // who entered it
}

// Readiness of a provider (PR-3).
const (
	ProviderReady    = "ready"
	ProviderNotReady = "not_ready"
	ProviderBlocked  = "blocked"
)

// AddProvider enters the audience that a provider assigned to our issuer (PR-1,
// PR-2); it replaces an earlier entry for the origin. The same audience for two
// origins is refused: one could replay our tokens at the other (PR-6).
func (a *Agent) AddProvider(ctx context.Context, c Caller, origin, audience, label string) (ProviderView, error) {
	if err := c.check(); err != nil {
		return ProviderView{}, err
	}
	if err := c.maySet(); err != nil {
		return ProviderView{}, err
	}
	o, err := a.providerOrigin(origin)
	if err != nil {
		return ProviderView{}, err
	}
	audience, label = strings.TrimSpace(audience), strings.TrimSpace(label)
	switch {
	case !utf8.ValidString(audience):
		return ProviderView{}, refuse(StatusFailed, ReasonInvalidInput, "audience: it is not valid UTF-8")
	case !utf8.ValidString(label):
		return ProviderView{}, refuse(StatusFailed, ReasonInvalidInput, "label: it is not valid UTF-8")
	case audience == "":
		return ProviderView{}, refuse(StatusFailed, ReasonInvalidInput, "audience: it is empty; the provider tells it when it registers the issuer")
	case utf8.RuneCountInString(audience) > maxAudience:
		return ProviderView{}, refuse(StatusFailed, ReasonInvalidInput, "audience: it is longer than %d characters", maxAudience)
	case utf8.RuneCountInString(label) > maxLabel:
		return ProviderView{}, refuse(StatusFailed, ReasonInvalidInput, "label: it is longer than %d characters", maxLabel)
	}
	registered := a.knownAudiences(withNetwork(ctx, c), c.Principal)
	err = a.store.Update(withActor(ctx, c), func(tx Tx) error {
		all, err := find[provider](tx, Query{Principal: c.Principal})
		if err != nil {
			return err
		}
		p, entries := &provider{}, 0
		own := map[string]bool{}
		for _, q := range all {
			if q.Key == o {
				p = q
				continue
			}
			if q.Audience == "" {
				continue
			}
			entries++
			own[q.Key] = true
			if q.Audience == audience {
				return refuse(StatusFailed, ReasonInvalidInput, "audience: it is configured for %s already, and one audience for two providers lets one replay our tokens at the other", q.Key)
			}
		}
		for other, aud := range registered {
			if other != o && aud == audience && !own[other] {
				return refuse(StatusFailed, ReasonInvalidInput, "audience: the signer has it registered for %s, and one audience for two providers lets one replay our tokens at the other", other)
			}
		}
		if entries >= maxProviders {
			return refuse(StatusFailed, ReasonInvalidInput, "providers: there are %d already; remove one first", maxProviders)
		}
		if p.ID == "" {
			p.Head = Head{ID: newID("provider"), Principal: c.Principal, Key: o, Created: a.now()}
		}
		p.Audience, p.Label, p.By, p.State = audience, label, c.actor(), ""
		return put(tx, p)
	})
	if err != nil {
		return ProviderView{}, err
	}
	id, err := a.identityOf(ctx, c.Principal)
	if err != nil {
		return ProviderView{}, err
	}
	v := ProviderView{Origin: o, Audience: audience, Label: label, Source: SourceSettings, By: c.actor()}
	v.State, v.Reason = a.readiness(o, audience, a.deployment(id) != DeploymentNone)
	return v, nil
}

// RemoveProvider removes the owner's entry for an origin; the signer's
// registration, if there is one, counts again. Errors wrap ErrNotFound.
func (a *Agent) RemoveProvider(ctx context.Context, c Caller, origin string) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := c.maySet(); err != nil {
		return err
	}
	o, err := a.providerOrigin(origin)
	if err != nil {
		return err
	}
	return a.store.Update(withActor(ctx, c), func(tx Tx) error {
		p, err := findOne[provider](tx, Query{Principal: c.Principal, Key: o})
		if err != nil || p.Audience == "" {
			return fmt.Errorf("provider %s: %w", o, errors.Join(err, ErrNotFound))
		}
		p.Audience, p.Label, p.By, p.State = "", "", c.actor(), providerRemoved
		return put(tx, p)
	})
}

// Providers lists the owner's entries and the signer's registrations, as last
// known.
func (a *Agent) Providers(ctx context.Context, c Caller) ([]ProviderView, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	id, err := a.identityOf(ctx, c.Principal)
	if err != nil {
		return nil, err
	}
	registered := a.knownAudiences(withNetwork(ctx, c), c.Principal)
	var all []*provider
	err = a.store.View(ctx, func(tx Tx) (err error) {
		all, err = find[provider](tx, Query{Principal: c.Principal})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list providers: %w", err)
	}
	out := []ProviderView{}
	add := func(v ProviderView) {
		v.State, v.Reason = a.readiness(v.Origin, v.Audience, a.deployment(id) != DeploymentNone)
		out = append(out, v)
	}
	for _, p := range all {
		if p.Audience == "" {
			continue
		}
		delete(registered, p.Key)
		add(ProviderView{Origin: p.Key, Audience: p.Audience, Label: p.Label, Source: SourceSettings, By: p.By})
	}
	for _, origin := range sortedKeys(registered) {
		add(ProviderView{Origin: origin, Audience: registered[origin], Source: SourceSigner})
	}
	return out, nil
}

// providerOrigin reads an origin that a person typed.
func (a *Agent) providerOrigin(raw string) (string, error) {
	u, err := a.rules().Check(strings.TrimRight(strings.TrimSpace(raw), "/"))
	if err != nil {
		return "", refuse(StatusFailed, ReasonInvalidInput, "provider: %v", err)
	}
	if u.Path != "" || u.RawQuery != "" {
		return "", refuse(StatusFailed, ReasonInvalidInput, "provider: give its origin alone, %s", Origin(u))
	}
	return Origin(u), nil
}

// knownAudiences is the signer's registration list, if the signer can be asked.
func (a *Agent) knownAudiences(ctx context.Context, principal string) map[string]string {
	out := map[string]string{}
	id, err := a.identityOf(ctx, principal)
	if err != nil || a.deployment(id) == DeploymentNone {
		return out
	}
	s, err := a.signerStatusOf(ctx, id, false)
	if err != nil {
		return out
	}
	for o, aud := range s.Audiences {
		out[o] = aud
	}
	return out
}

// audienceFix says who gives a provider without an audience one.
func audienceFix(origin string) string {
	return fmt.Sprintf("the signer's operator registers it with pactctl audiences set %[1]s AUDIENCE, or you enter it with pactctl providers add %[1]s --audience AUDIENCE", origin)
}

// readiness is PR-3 as it is now, and why.
func (a *Agent) readiness(origin, audience string, identified bool) (string, Reason) {
	p, err := a.policy()
	switch {
	case err != nil || p.blocks(origin):
		return ProviderBlocked, ReasonBlockedByAdmin
	case audience == "":
		return ProviderNotReady, ReasonNoAudience
	case !identified:
		return ProviderNotReady, ReasonIdentityNotSet
	}
	return ProviderReady, ""
}

// readyProvider is PR-3 at the time of a send, a poll or a refresh: the audience
// to use at an origin, and the revision of that configuration (PR-4). Errors are
// *Refusal or of the store. A registration that is missing from what is kept of the
// signer's is asked for anew first.
func (a *Agent) readyProvider(ctx context.Context, who *acting, origin string) (audience string, revision int64, err error) {
	audience, revision, err = a.providerNow(ctx, who, origin)
	if ReasonOf(err) != ReasonNoAudience || !a.mayAskAnew(ctx, who.id) {
		return audience, revision, err
	}
	s, failed := a.signerStatusOf(ctx, who.id, true)
	if failed != nil || s.Disabled || s.Issuer != who.status.Issuer || s.Subject != who.status.Subject { // who we are is asked elsewhere
		return audience, revision, err
	}
	who.status = s
	return a.providerNow(ctx, who, origin)
}

// providerNow is readyProvider by what is known of the signer.
func (a *Agent) providerNow(ctx context.Context, who *acting, origin string) (audience string, revision int64, err error) {
	p, err := a.policy()
	if err != nil {
		return "", 0, err
	}
	if p.blocks(origin) {
		return "", 0, refuse(StatusBlocked, ReasonBlockedByAdmin, "the administrator blocks %s", origin)
	}
	err = a.store.Update(quietly(ctx), func(tx Tx) error { // no surface shows what changes
		all, err := find[provider](tx, Query{Principal: who.principal})
		if err != nil {
			return err
		}
		p := &provider{Head: Head{ID: newID("provider"), Principal: who.principal, Key: origin, Created: a.now()}}
		effective := map[string]string{}
		for o, aud := range who.status.Audiences {
			effective[o] = aud
		}
		for _, q := range all {
			if q.Key == origin {
				p = q
			}
			if q.Audience != "" {
				effective[q.Key] = q.Audience
			}
		}
		if audience = effective[origin]; audience == "" {
			return refuse(StatusBlocked, ReasonNoAudience, "no audience is known for %s: %s", origin, audienceFix(origin))
		}
		for o, aud := range effective {
			if o != origin && aud == audience {
				return refuse(StatusBlocked, ReasonNoAudience, "%s and %s have the same audience: one could replay our tokens at the other", origin, o)
			}
		}
		if p.UsedAudience != audience || p.UsedIssuer != who.id.Issuer {
			p.UsedAudience, p.UsedIssuer, p.ConfigRevision = audience, who.id.Issuer, p.ConfigRevision+1
			if err := put(tx, p); err != nil {
				return err
			}
		}
		revision = p.ConfigRevision
		return nil
	})
	return audience, revision, err
}
