package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/jwks"
)

// CheckState is how a check went.
type CheckState string

// The states.
const (
	CheckOK      CheckState = "ok"
	CheckWarning CheckState = "warning" // it works, or some of it, and wants a look
	CheckFailed  CheckState = "failed"
	CheckUnknown CheckState = "unknown" // it cannot be looked at before another check is ok
)

// Check is one line of what Doctor found. It holds no secrets.
type Check struct {
	Name   string     `json:"name"`
	State  CheckState `json:"state"`
	Detail string     `json:"detail"`
	Fix    string     `json:"fix,omitzero"` // what to do; empty if ok or unknown
}

// How far this machine's clock may be from the signer's before Doctor speaks up.
// Beyond the second a token is refused (SG-6).
const (
	skewWarning = 5 * time.Second
	skewFailure = maxTokenSkew
)

// Doctor looks everything over that a send needs, and says what to do about what
// is not as it should be. It asks the signer and has it sign a token, which goes
// nowhere; it contacts no business, and changes no more than Status does (ID-4).
// Errors are the caller's or the context's: what else goes wrong is a finding.
func (a *Agent) Doctor(ctx context.Context, c Caller) ([]Check, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	ctx = withNetwork(ctx, c)
	d := &doctor{a: a, caller: c, principal: c.Principal}
	d.examine(ctx)
	var out []Check
	for _, look := range []struct {
		name string
		at   func(context.Context) Check
	}{
		{"policy", d.policy}, {"profile key", d.profileKey}, {"store", d.store},
		{"signer", d.signer}, {"identity", d.identity}, {"clock", d.clock}, {"key set", d.keySet},
		{"audiences", d.audiences}, {"approvals", d.approvals}, {"sign-ins", d.signIns}, {"evidence", d.evidence},
		{"operations", d.operations},
	} {
		check := look.at(ctx)
		check.Name = look.name
		out = append(out, check)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return out, nil
}

// doctor is one look. The checks speak of what examine found.
type doctor struct {
	a         *Agent
	caller    Caller
	principal string

	id        *identity
	available error // PO-1
	counts    Counts
	countsErr error

	answered  error // of the signer's status
	disabled  bool
	who       *acting
	whoErr    error
	origin    string // whose audience the token is for; empty: none is registered
	token     PAToken
	tokenErr  error
	skew      time.Duration // of the signer's clock, at least; behind us if negative
	skewKnown bool
}

// examine asks everything that more than one check speaks of.
func (d *doctor) examine(ctx context.Context) {
	a := d.a
	d.countsErr = a.counts(ctx, d.principal, &d.counts)
	if d.id, d.available = a.identityOf(ctx, d.principal); d.available == nil {
		d.available = a.availability(ctx, d.principal)
	}
	if d.available != nil {
		d.answered, d.whoErr, d.tokenErr = d.available, d.available, d.available
		return
	}
	client, err := a.signer(ctx, d.id)
	if err == nil {
		client.do = d.timed(client.do)
		var s signerStatus
		if s, err = client.status(ctx); err != nil {
			a.afterSignerError(err)
		}
		d.disabled = s.Disabled
	}
	if d.answered, d.whoErr, d.tokenErr = err, err, err; err != nil {
		return
	}
	if d.who, d.whoErr = a.identified(ctx, d.principal, true); d.whoErr != nil {
		d.tokenErr = d.whoErr
		return
	}
	for _, origin := range sortedKeys(d.who.status.Audiences) {
		if _, _, err := a.readyProvider(ctx, d.who, origin); err == nil {
			d.origin = origin
			break
		}
	}
	if d.origin == "" {
		return
	}
	// A token of its own, so that nothing cached is looked at.
	before := a.now()
	d.token, _, d.tokenErr = a.paToken(ctx, d.who, d.who.status.Audiences[d.origin], true)
	if d.tokenErr == nil && !d.skewKnown {
		d.clockAt(d.token.IssuedAt, before, a.now())
	}
}

// timed compares clocks by the Date of a signer's answers, whatever they say.
func (d *doctor) timed(do func(context.Context, egress.Request) (egress.Response, error)) func(context.Context, egress.Request) (egress.Response, error) {
	return func(ctx context.Context, req egress.Request) (egress.Response, error) {
		before := d.a.now()
		resp, err := do(ctx, req)
		if at, e := http.ParseTime(resp.Header.Get("Date")); err == nil && e == nil {
			d.clockAt(at, before, d.a.now())
		}
		return resp, err
	}
}

// clockAt takes a time that the signer's clock showed, in whole seconds, somewhen
// between two of ours. What the second and the way hide does not count as skew.
func (d *doctor) clockAt(theirs, before, after time.Time) {
	d.skewKnown = true
	least, most := theirs.Sub(after), theirs.Add(time.Second).Sub(before)
	switch {
	case least > 0:
		d.skew = least
	case most < 0:
		d.skew = most
	default:
		d.skew = 0
	}
}

func ok(format string, args ...any) Check {
	return Check{State: CheckOK, Detail: fmt.Sprintf(format, args...)}
}

func unknown(format string, args ...any) Check {
	return Check{State: CheckUnknown, Detail: fmt.Sprintf(format, args...)}
}

func warning(fix, format string, args ...any) Check {
	return Check{State: CheckWarning, Detail: fmt.Sprintf(format, args...), Fix: fix}
}

func failed(fix, format string, args ...any) Check {
	return Check{State: CheckFailed, Detail: fmt.Sprintf(format, args...), Fix: fix}
}

// because is the check of an error.
func (d *doctor) because(err error) Check {
	var r *Refusal
	if !errors.As(err, &r) {
		return failed("see the check of the store, and restore the profile's folder from a backup if it is damaged", "%s", RedactText(err.Error()))
	}
	text := r.Text()
	if text == "" {
		text = r.Reason
	}
	return failed(d.fix(r.Reason), "%s: %s", r.Reason, text)
}

func (d *doctor) enroll() string {
	if d.id == nil {
		return "pactctl enroll --signer URL"
	}
	return "pactctl enroll --signer " + d.id.SignerURL
}

func (d *doctor) fix(reason Reason) string {
	switch reason {
	case ReasonDisabledByEnv:
		return "unset PACT_DISABLED"
	case ReasonDisabledByAdmin:
		return "ask the administrator; pactctl policy show tells where it is said"
	case ReasonBlockedByAdmin, string(egress.PolicyDenied):
		return "the administrator's policy blocks that: ask them; pactctl policy show tells what it blocks"
	case ReasonDisabledInSettings:
		if d.id == nil {
			return d.enroll()
		}
		return "switch PACT on: pactctl policy on"
	case ReasonPACTDisabled:
		return "pactctl policy prefer prefer-pact, or require-pact"
	case ReasonIdentityNotSet:
		if d.id != nil {
			return "say --development or PACT_DEVELOPMENT=1, or enrol with a signer that is not on this machine"
		}
		return d.enroll()
	case ReasonSignerDisabled:
		return "its operator switches it on again: pactctl resume"
	case ReasonSignerUnavailable:
		return "see that the signer runs and can be reached, and that its URL is right"
	case ReasonIdentityChanged:
		return "if that was not meant, ask the signer's operator; else look again, and sign in at businesses anew"
	case ReasonInvalidToken:
		return "see the check of the clock; else ask the signer's operator"
	case ReasonAudienceUnknown:
		return "its operator registers the audience: pactctl audiences set"
	}
	return d.enroll() // the signer no longer knows us, or is another's
}

// policy is PO-1 and PO-2.
func (d *doctor) policy(ctx context.Context) Check {
	err := d.available
	if err == nil {
		err = d.a.preferred(ctx)
	}
	if err != nil {
		return d.because(err)
	}
	return ok("PACT may be used; the preference is %s", d.a.currentSettings().Preference)
}

// profileKey looks whether the next program that opens the profile will find the
// key.
func (d *doctor) profileKey(ctx context.Context) Check {
	a := d.a
	stored, err := a.freshSettings(ctx)
	s := &stored
	if err != nil {
		return unknown("the settings cannot be read: %s", RedactText(err.Error()))
	}
	if !a.box.fits(s) {
		return failed("end this program and start it again", "it was replaced while this program ran")
	}
	place := fmt.Sprintf("the key file %s, of mode 0600", filepath.Join(a.cfg.Dir, keyFile))
	restore := "restore the file from a backup before the profile is opened again: a new key would end all sign-ins and permissions"
	if s.KeySource == KeyKeyring {
		place = "the operating system's keyring, as " + s.KeyAccount
		restore = "restore the keyring's entry before the profile is opened again: a new key would end all sign-ins and permissions"
	}
	key, err := readKey(a.cfg.Dir, s)
	var now *box
	if err == nil {
		now, err = newBox(key)
	}
	switch {
	case errors.Is(err, errKeyAbsent):
		return failed(restore, "it is gone from %s", place)
	case errors.Is(err, ErrProfileKey):
		return failed("do what it says: nothing is lost yet", "%v", err)
	case err != nil:
		return failed(restore, "%v", err)
	case !now.fits(s):
		return failed(restore, "another key is in %s", place)
	}
	if l := s.lost(d.id); l != nil {
		return warning(d.enroll(), "in %s; the one before was lost at %s: %s", place, l.At.Format(time.RFC3339), l.text())
	}
	return ok("in %s", place)
}

// lost is what a principal has not yet made up for by enrolling again.
func (s *settings) lost(id *identity) *KeyLoss {
	if s.KeyLost != nil && (id == nil || !id.Registered.After(s.KeyLost.At)) {
		return s.KeyLost
	}
	return nil
}

func (d *doctor) store(ctx context.Context) Check {
	s, can := d.a.cfg.Store.(storeChecker)
	if !can {
		return unknown("this store cannot look itself over")
	}
	err := s.Check(ctx)
	if err == nil {
		err = d.a.store.View(ctx, readable)
	}
	if err != nil {
		return failed("end every program that uses the profile, keep a copy of its folder, and restore the folder from a backup", "%v", err)
	}
	return ok("sound, and durable")
}

// signer: it answers, and knows us.
func (d *doctor) signer(context.Context) Check {
	switch {
	case d.available != nil:
		return unknown("PACT is not available: see the check of the policy")
	case ReasonOf(d.answered) == ReasonIdentityKeyRejected:
		return unknown("it cannot be asked: see the check of the identity")
	case d.answered != nil:
		return d.because(d.answered)
	case d.disabled:
		return failed(d.fix(ReasonSignerDisabled), "%s: %s answers that it is switched off", ReasonSignerDisabled, d.id.SignerURL)
	}
	return ok("%s answers", d.id.SignerURL)
}

// identity: issuer and subject are those that this profile is bound to.
func (d *doctor) identity(context.Context) Check {
	switch {
	case d.available != nil:
		return unknown("PACT is not available: see the check of the policy")
	case ReasonOf(d.answered) == ReasonIdentityKeyRejected:
		return d.because(d.answered)
	case d.answered != nil || d.disabled:
		return unknown("the signer does not say: see its check")
	case d.whoErr != nil:
		return d.because(d.whoErr)
	}
	return ok("%s at %s (%s)", d.who.binding.Subject, d.id.Issuer, d.id.Deployment)
}

func (d *doctor) clock(context.Context) Check {
	switch {
	case d.available != nil:
		return unknown("PACT is not available: see the check of the policy")
	case !d.skewKnown:
		return unknown("the signer does not tell its time")
	}
	skew, side := d.skew.Round(time.Second), "behind"
	if skew < 0 {
		skew, side = -skew, "ahead of"
	}
	const fix = "set this machine's clock by the network (NTP), or ask the signer's operator to"
	switch {
	case d.skew.Abs() > skewFailure:
		return failed(fix, "this machine's clock is %v %s the signer's: its tokens are refused", skew, side)
	case d.skew.Abs() > skewWarning:
		return warning(fix, "this machine's clock is %v %s the signer's: beyond %v its tokens are refused", skew, side, skewFailure)
	}
	return ok("this machine's clock and the signer's agree")
}

// keySet is SG-13: what businesses verify the signer's tokens by is there, and
// fits what it signs.
func (d *doctor) keySet(ctx context.Context) Check {
	if d.available != nil {
		return unknown("PACT is not available: see the check of the policy")
	}
	const fix = "businesses refuse the signer's tokens until its operator publishes the keys that it signs with: pactctl keys list"
	u := d.id.Issuer + "/.well-known/jwks.json"
	resp, err := d.a.do(ctx, egress.Request{Purpose: egress.JWKS, Method: http.MethodGet, URL: u})
	switch {
	case egress.CodeOf(err) == egress.PolicyDenied:
		return failed(d.fix(string(egress.PolicyDenied)), "%s", RedactText(err.Error()))
	case err != nil:
		return failed("see that it can be reached: without it businesses refuse the signer's tokens", "%s", RedactText(err.Error()))
	case resp.Status != http.StatusOK:
		return failed(fix, "%s answers HTTP %d", u, resp.Status)
	case originOf(resp.FinalURL) != d.id.Issuer:
		return failed(fix, "%s leads to another origin", u)
	}
	set, err := jwks.Parse(resp.Body)
	switch {
	case err != nil:
		return failed(fix, "%s: %v", u, err)
	case len(set.Keys) == 0:
		return failed(fix, "%s has no usable key", u)
	}
	published := fmt.Sprintf("%s publishes usable keys (%d)", u, len(set.Keys))
	switch {
	case ReasonOf(d.tokenErr) == ReasonInvalidToken:
		return failed(d.fix(ReasonInvalidToken), "%s; the token that the signer makes is no good: %s", published, d.because(d.tokenErr).Detail)
	case d.tokenErr != nil:
		return unknown("%s; they were not tried, for the signer signs nothing now", published)
	case d.origin == "":
		return ok("%s; they were not tried, for the signer has no audience registered that is ready", published)
	}
	t, err := jwks.ParseCompact(d.token.Reveal(), tokenAlgorithms...)
	if err != nil {
		return failed(fix, "%s; the signer's token: %v", published, err)
	}
	key, found := set.Find(t.KeyID, t.Algorithm)
	if !found {
		return failed(fix, "%s; the key %q that the signer signs with is not among them", published, t.KeyID)
	}
	if _, err := t.Verify(key.Public); err != nil {
		return failed(fix, "%s; the key %q among them is not the one that the signer signs with", published, t.KeyID)
	}
	return ok("%s; they verify what the signer signs", published)
}

// audiences are PR-1, PR-3 and PR-6 of each provider, and of each known business.
func (d *doctor) audiences(ctx context.Context) Check {
	a := d.a
	switch {
	case d.available != nil:
		return unknown("PACT is not available: see the check of the policy")
	case d.answered != nil:
		return unknown("the signer does not say which are registered: see its check")
	}
	list, err := a.Providers(ctx, d.caller)
	var known []*business
	if err == nil {
		err = a.store.View(ctx, func(tx Tx) (err error) {
			known, err = find[business](tx, Query{Principal: d.principal})
			return err
		})
	}
	if err != nil {
		return unknown("they cannot be listed: %s", RedactText(err.Error()))
	}
	by, origins, ready := map[string]string{}, map[string]bool{}, 0
	var trouble, fixes []string
	add := func(fix, format string, args ...any) {
		trouble, fixes = append(trouble, fmt.Sprintf(format, args...)), append(fixes, fix)
	}
	state := CheckWarning
	for _, p := range list {
		origins[p.Origin] = true
		first, twice := by[p.Audience]
		switch {
		case twice:
			state = CheckFailed
			add("pactctl providers remove the one that is wrong", "%s and %s have the same audience, so nothing is sent to either", first, p.Origin)
		case p.State == ProviderBlocked:
			add("ask the administrator", "%s is blocked", p.Origin)
		case p.State != ProviderReady:
			add("pactctl providers add", "%s is not ready: %s", p.Origin, p.Reason)
		case d.who != nil && p.Source == SourceSettings && !d.signs(p.Audience):
			add("the signer's operator registers it: pactctl audiences set "+p.Origin+" AUDIENCE", "the signer does not sign for the audience of %s", p.Origin)
		default:
			ready++
		}
		by[p.Audience] = p.Origin
	}
	for _, b := range known {
		if o := b.Card.Origin; b.State == businessSupported && !origins[o] {
			origins[o] = true
			add(audienceFix(o), "%s, of a business that you know, has none", o)
		}
	}
	switch {
	case len(trouble) > 0:
		slices.Sort(fixes)
		return Check{State: state, Detail: strings.Join(trouble, "; "), Fix: strings.Join(slices.Compact(fixes), "; ")}
	case ready == 0:
		return warning(audienceFix("ORIGIN"), "no provider has one, so nothing can be sent")
	}
	return ok("ready at %d of %d", ready, len(list))
}

func (d *doctor) signs(audience string) bool {
	for _, a := range d.who.status.Audiences {
		if a == audience {
			return true
		}
	}
	return false
}

// open is the check of things that wait for the owner.
func (d *doctor) open(n int, fix, none, some string) Check {
	switch {
	case d.countsErr != nil:
		return unknown("the store cannot be read: %s", RedactText(d.countsErr.Error()))
	case n == 0:
		return ok("%s", none)
	}
	return warning(fix, "%d %s", n, some)
}

func (d *doctor) approvals(context.Context) Check {
	return d.open(d.counts.PendingApprovals, "pactctl approvals list, and approve or deny", "none waits for you", "not decided")
}

func (d *doctor) signIns(context.Context) Check {
	return d.open(d.counts.PendingAuthorizations, "pactctl authorization list, and wait or cancel", "none waits for you", "not finished")
}

func (d *doctor) evidence(context.Context) Check {
	return d.open(d.counts.EvidenceToReview, "pactctl review list", "nothing to look at", "to look at: changes at those businesses are held back")
}

func (d *doctor) operations(context.Context) Check {
	return d.open(d.counts.OutcomeUnknown, "pactctl reconcile; do not repeat them by another route", "the end of each is known",
		"of unknown outcome: nothing more is sent to those businesses")
}
