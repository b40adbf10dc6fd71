package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// acting is who a call acts as, once every question about it is answered.
type acting struct {
	principal string
	id        *identity
	binding   *binding
	status    signerStatus
}

// secretPurpose binds the signer secret to the signer and issuer that it was
// entered for (SG-4): under another it does not open.
func secretPurpose(principal, signerURL, issuer string) string {
	return "signer\x00" + principal + "\x00" + signerURL + "\x00" + issuer
}

// signerSecret is what proves an identity to its signer.
type signerSecret struct {
	DeviceKey  []byte `json:"deviceKey,omitzero"` // PKCS #8
	Credential string `json:"credential,omitzero"`
}

func (id *identity) cacheKey() string {
	return id.Principal + "\x00" + id.SignerURL + "\x00" + id.Issuer + "\x00" + id.SecretID
}

// signer is the client of an identity's signer.
func (a *Agent) signer(ctx context.Context, id *identity) (*signerClient, error) {
	var s signerSecret
	err := a.store.View(ctx, func(tx Tx) error {
		return a.box.get(tx, id.SecretID, secretPurpose(id.Principal, id.SignerURL, id.Issuer), &s)
	})
	if errors.Is(err, errSecretLost) {
		return nil, refuse(StatusBlocked, ReasonIdentityKeyRejected, "the signer's credential or device key is lost, or was entered for another signer: enrol again")
	}
	if err != nil {
		return nil, fmt.Errorf("read the signer secret: %w", err)
	}
	c := &signerClient{do: a.do, now: a.now, url: id.SignerURL, credential: Secret(s.Credential)}
	if id.Mode == modeDevice {
		if c.device, err = parseDeviceKey(s.DeviceKey); err != nil {
			return nil, refuseErr(StatusBlocked, ReasonIdentityKeyRejected, err)
		}
	}
	return c, nil
}

// identified answers who a principal is: the signer is asked (SG-10), its issuer
// and subject are those of the binding (SG-11, ID-4..ID-6). What an answer that was kept
// would refuse, the signer is asked anew first. Errors are *Refusal or of the store.
func (a *Agent) identified(ctx context.Context, principal string, refresh bool) (*acting, error) {
	id, err := a.identityOf(ctx, principal)
	if err != nil {
		return nil, err
	}
	if a.deployment(id) == DeploymentNone {
		return nil, refuse(StatusBlocked, ReasonIdentityNotSet, "no signer is usable: enrol with one")
	}
	status, err := a.signerStatusOf(ctx, id, refresh)
	if err != nil {
		return nil, err
	}
	switch {
	case status.Disabled:
		err = refuse(StatusBlocked, ReasonSignerDisabled, "the signer is disabled")
	case status.Issuer != id.Issuer:
		err = refuse(StatusBlocked, ReasonIdentityNotReady, "the signer is now for issuer %s, and %s is configured", status.Issuer, id.Issuer)
	case status.Subject == "":
		err = refuse(StatusBlocked, ReasonIdentityNotReady, "the signer gives this device no subject")
	}
	var b *binding
	if err == nil {
		if b, err = a.bindingOf(ctx, id, status.Subject); err != nil {
			return nil, err
		}
	}
	changed := b != nil && b.Subject != status.Subject
	if (err != nil || changed) && !refresh && a.mayAskAnew(ctx, id) {
		return a.identified(ctx, principal, true)
	}
	switch {
	case err != nil:
		return nil, err
	case changed: // ID-4
		if err := a.subjectChanged(ctx, principal, b.ID, status.Subject); err != nil {
			return nil, err
		}
		return nil, refuse(StatusBlocked, ReasonIdentityChanged, "the signer reports another subject than before: grants and conversations of the old one are ended")
	}
	return &acting{principal, id, b, status}, nil
}

// bindingKey is what there is one subject binding for (ID-3).
func bindingKey(id *identity) string { return string(id.Deployment) + " " + id.Issuer }

// bindingOf is the subject binding of an identity (ID-3); the first subject that
// the signer reports makes it.
func (a *Agent) bindingOf(ctx context.Context, id *identity, subject string) (b *binding, err error) {
	key := bindingKey(id)
	err = a.store.View(ctx, func(tx Tx) (err error) {
		b, err = findOne[binding](tx, Query{Principal: id.Principal, Key: key})
		return err
	})
	if !errors.Is(err, ErrNotFound) {
		return b, err
	}
	err = a.store.Update(ctx, func(tx Tx) (err error) {
		b, err = findOne[binding](tx, Query{Principal: id.Principal, Key: key})
		if errors.Is(err, ErrNotFound) {
			b = &binding{Head: Head{ID: newID("sub"), Principal: id.Principal, Key: key, Created: a.now()}, Subject: subject}
			err = put(tx, b)
		}
		return err
	})
	return b, err
}

// subjectChanged is ID-4: the binding moves on, and all that hung on the old
// subject ends.
func (a *Agent) subjectChanged(ctx context.Context, principal, bindingID, subject string) error {
	a.tokens.clear()
	a.status.clear()
	now := a.now()
	return a.store.Update(ctx, func(tx Tx) error {
		b, err := get[binding](tx, principal, bindingID)
		if err != nil || b.Subject == subject {
			return err
		}
		b.Subject, b.Changes = subject, b.Changes+1
		if err := put(tx, b); err != nil {
			return err
		}
		grants, err := find[grant](tx, Query{Principal: principal, States: []string{grantActive}})
		if err != nil {
			return err
		}
		for _, g := range grants {
			if g.Binding != bindingID {
				continue
			}
			if err := endGrant(tx, g, grantInvalid, ReasonSubjectChanged, now); err != nil {
				return err
			}
		}
		pending, err := find[authorization](tx, Query{Principal: principal, States: []string{authorizationPending}})
		if err != nil {
			return err
		}
		for _, z := range pending {
			if z.Binding != bindingID {
				continue
			}
			if err := a.settle(tx, z, authorizationFailed, ReasonSubjectChanged); err != nil {
				return err
			}
		}
		conversations, err := find[conversation](tx, Query{Principal: principal})
		if err != nil {
			return err
		}
		for _, c := range conversations {
			if c.Binding != bindingID || c.State == conversationClosed {
				continue
			}
			c.State, c.Reason, c.Updated = conversationClosed, ReasonSubjectChanged, now
			if err := put(tx, c); err != nil {
				return err
			}
		}
		return nil
	})
}

// EnrollRequest says which signer to enrol with, and how.
type EnrollRequest struct {
	SignerURL string
	// Issuer, if given, must be the one that the signer states (SG-11).
	Issuer string
	// Token is an enrolment token, if the signer wants one. Device mode.
	Token Secret
	// Credential, if given, is used instead of a device key (SG-3).
	Credential Secret
	// Deployment is managed or self_hosted; empty is self_hosted. A loopback signer
	// is always development (ID-1).
	Deployment Deployment
}

// IdentityView is an identity as a surface shows it.
type IdentityView struct {
	SignerURL   string     `json:"signerUrl"`
	Issuer      string     `json:"issuer"`
	Subject     string     `json:"subject,omitzero"`
	Deployment  Deployment `json:"deployment"`
	Mode        string     `json:"mode"` // device or credential
	Thumbprint  string     `json:"thumbprint,omitzero"`
	Development bool       `json:"development"`
	Enrolled    time.Time  `json:"enrolled"`
	By          string     `json:"by,omitzero"` // who enrolled it
}

// Enroll makes this profile's principal known to a signer, and remembers it: a
// device key is made here and kept encrypted (SG-14), and made no second time for
// the same signer. It switches PACT on, and with it the profile's development mode: on
// for a loopback signer, off for any other (UR-2). Only on the owner's own surface. Refusals are *Refusal.
func (a *Agent) Enroll(ctx context.Context, c Caller, req EnrollRequest) (IdentityView, error) {
	if err := c.check(); err != nil {
		return IdentityView{}, err
	}
	if err := c.maySet(); err != nil {
		return IdentityView{}, err
	}
	if err := a.switchedOn(); err != nil {
		return IdentityView{}, err
	}
	ctx = withNetwork(ctx, c)
	signerURL := strings.TrimRight(strings.TrimSpace(req.SignerURL), "/")
	u, err := (URLRules{Development: true}).Check(signerURL)
	if err != nil {
		return IdentityView{}, refuse(StatusFailed, ReasonInvalidInput, "signer URL: %v", err)
	}
	if u.RawQuery != "" {
		return IdentityView{}, refuse(StatusFailed, ReasonInvalidInput, "signer URL: it has a query")
	}
	if n := utf8.RuneCountInString(string(req.Credential)); req.Credential != "" && (n < minCredential || n > maxCredential) {
		return IdentityView{}, refuse(StatusFailed, ReasonInvalidInput, "credential: it must have %d to %d characters", minCredential, maxCredential)
	}
	deployment := req.Deployment
	_, production := (URLRules{}).Check(signerURL)
	switch {
	case production != nil: // a loopback signer
		deployment = DeploymentDevelopment
	case deployment == "":
		deployment = DeploymentSelfHosted
	case deployment != DeploymentManaged && deployment != DeploymentSelfHosted:
		return IdentityView{}, refuse(StatusFailed, ReasonInvalidInput, "deployment: say managed or self_hosted")
	}
	want := ""
	if req.Issuer != "" {
		if want = originOf(req.Issuer); want == "" {
			return IdentityView{}, refuse(StatusFailed, ReasonInvalidInput, "issuer: it is not an origin")
		}
	}
	rules, do := a.rules(), a.do
	if deployment == DeploymentDevelopment && !rules.Development { // as it is once it is enrolled
		rules.Development = true
		network := a.newNetwork(rules)
		defer closeNetwork(network)
		do = network.Do
	}
	client := &signerClient{do: do, now: a.now, url: signerURL, credential: req.Credential}
	id := &identity{SignerURL: signerURL, Deployment: deployment, Mode: modeCredential}
	secret := signerSecret{Credential: string(req.Credential)}
	subject, issuer := "", ""
	if req.Credential == "" {
		id.Mode = modeDevice
		if client.device, err = a.deviceKeyFor(ctx, c.Principal, signerURL); err != nil {
			return IdentityView{}, err
		}
		if secret.DeviceKey, err = client.device.pkcs8(); err != nil {
			return IdentityView{}, fmt.Errorf("device key: %w", err)
		}
		id.Thumbprint = client.device.thumbprint
		subject, issuer, err = client.enroll(ctx, req.Token)
	} else {
		var s signerStatus
		s, err = client.status(ctx)
		subject, issuer = s.Subject, s.Issuer
	}
	if err != nil {
		return IdentityView{}, err
	}
	if id.Issuer, err = issuerOrigin(rules, issuer); err != nil {
		return IdentityView{}, err
	}
	switch {
	case want != "" && want != id.Issuer:
		return IdentityView{}, refuse(StatusFailed, ReasonIssuerMismatch, "the signer is for issuer %s, not %s", id.Issuer, want)
	case subject == "" || utf8.RuneCountInString(subject) > maxSubject:
		return IdentityView{}, refuse(StatusFailed, ReasonIdentityNotReady, "the signer gives no usable subject")
	}
	return a.remember(ctx, c.Principal, id, secret, subject)
}

// issuerOrigin holds an issuer to ID-2 and the URL rules. PACT compares issuers
// byte for byte, so one that is not its own origin is of no use.
func issuerOrigin(rules URLRules, issuer string) (string, error) {
	if _, err := rules.Check(issuer); err != nil {
		return "", refuse(StatusFailed, ReasonIssuerMismatch, "the signer's issuer: %v", err)
	}
	if o := originOf(issuer); o != issuer {
		return "", refuse(StatusFailed, ReasonIssuerMismatch, "the signer's issuer is not an origin in its plain form, such as %s", o)
	}
	return issuer, nil
}

// deviceKeyFor is the key already enrolled there, or a new one.
func (a *Agent) deviceKeyFor(ctx context.Context, principal, signerURL string) (deviceKey, error) {
	id, err := a.identityOf(ctx, principal)
	if err != nil {
		return deviceKey{}, err
	}
	if id != nil && id.SignerURL == signerURL && id.Mode == modeDevice {
		if c, err := a.signer(ctx, id); err == nil {
			return c.device, nil
		}
	}
	return newDeviceKey()
}

// remember stores an identity, its secret first, in one transaction.
func (a *Agent) remember(ctx context.Context, principal string, id *identity, secret signerSecret, subject string) (IdentityView, error) {
	now := a.now()
	var changed *settings
	err := a.store.Update(ctx, func(tx Tx) error {
		old, err := get[identity](tx, principal, identityID)
		switch {
		case errors.Is(err, ErrNotFound):
			id.Head = Head{ID: identityID, Principal: principal, Created: now}
		case err != nil:
			return err
		default:
			id.Head = old.Head
			if err := tx.DeleteSecret(old.SecretID); err != nil {
				return err
			}
		}
		id.SecretID, id.Registered, id.By = newID("signer"), now, actorOf(ctx)
		if err := a.box.put(tx, id.SecretID, secretPurpose(principal, id.SignerURL, id.Issuer), secret); err != nil {
			return err
		}
		if err := put(tx, id); err != nil {
			return err
		}
		changed, err = a.changeSettings(tx, func(s *settings) {
			s.Enabled, s.By = true, actorOf(ctx)
			s.Development = id.Deployment == DeploymentDevelopment // UR-2
			if s.Preference == "" {
				s.Preference = PreferPACT // PO-2
			}
		})
		return err
	})
	if err != nil {
		return IdentityView{}, fmt.Errorf("remember the identity: %w", err)
	}
	a.adopt(changed)
	a.tokens.clear() // SG-8
	a.status.clear()
	b, err := a.bindingOf(ctx, id, subject)
	if err != nil {
		return IdentityView{}, fmt.Errorf("remember the subject: %w", err)
	}
	if b.Subject != subject {
		if err := a.subjectChanged(ctx, principal, b.ID, subject); err != nil {
			return IdentityView{}, err
		}
	}
	return a.identityView(id, subject), nil
}

func (a *Agent) updateSettings(ctx context.Context, change func(*settings)) error {
	var s *settings
	err := a.store.Update(ctx, func(tx Tx) (err error) {
		s, err = a.changeSettings(tx, func(s *settings) {
			change(s)
			s.By = actorOf(ctx)
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("change the settings: %w", err)
	}
	a.adopt(s)
	return nil
}

func (a *Agent) identityView(id *identity, subject string) IdentityView {
	return IdentityView{
		SignerURL: id.SignerURL, Issuer: id.Issuer, Subject: subject, Deployment: id.Deployment,
		Mode: id.Mode, Thumbprint: id.Thumbprint, Development: a.rules().Development, Enrolled: id.Registered, By: id.By,
	}
}
