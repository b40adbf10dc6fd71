package vault

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/jwks"
)

// Severity says what a [Finding] means for a signer.
type Severity string

// The severities: as it should be; it works, but mend it; it does not work, or is
// not safe.
const (
	OK      Severity = "ok"
	Warning Severity = "warning"
	Problem Severity = "problem"
)

// Finding is one thing that [Check] looked at.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	Detail   string   `json:"detail"`
	// Fix says what to do; empty if all is well.
	Fix string `json:"fix,omitzero"`
}

const (
	// clockWarning and clockProblem are how far clocks may be apart. Vault's clock
	// decides when the login ends, not what a token's iat is.
	clockWarning = 5 * time.Second
	clockProblem = 20 * time.Second
	// shortToken is a token's life below which a moment's outage ends it.
	shortToken = 5 * time.Minute
	// firstLogin is how long a Vault that is there may take to answer the login.
	firstLogin = 15 * time.Second
)

// Check logs in as the signer would and tells what is missing in Vault, what would
// lose data, and what the signer may do beyond its policy. It changes nothing. The
// restrictions that the policy puts on parameters can not be seen from there.
//
// schedules are the documents of the key schedules, whose keys it looks at too: the
// policy does not let a signer list keys.
func Check(ctx context.Context, cfg Config, schedules ...string) []Finding {
	cfg, err := cfg.complete()
	if err != nil {
		return []Finding{{"configuration", Problem, err.Error(), "mend custody.vault in the configuration"}}
	}
	// Not in mode wrapped, in which a keyring makes what it needs by itself.
	transit := cfg
	transit.Wrapped = false
	k, err := Open(transit)
	if err != nil {
		return []Finding{{"configuration", Problem, err.Error(), "mend custody.vault in the configuration"}}
	}
	defer k.Close()
	c := &checks{cfg: cfg, k: k}
	if !c.server(ctx) {
		return c.findings // nobody lets us in, whatever the login
	}
	c.awaitLogin(ctx)
	if c.login(ctx) {
		c.capabilities(ctx)
		c.mounts(ctx)
		c.subjectKey(ctx)
		if cfg.Wrapped {
			c.wrapKey(ctx)
		}
		c.document(ctx)
		if !cfg.Wrapped {
			for _, name := range schedules {
				c.schedule(ctx, name)
			}
		}
	}
	return c.findings
}

// checks collects findings.
type checks struct {
	cfg      Config
	k        *Keyring
	findings []Finding
}

func (c *checks) ok(check, detail string, args ...any) {
	c.findings = append(c.findings, Finding{Check: check, Severity: OK, Detail: fmt.Sprintf(detail, args...)})
}

func (c *checks) warn(check, detail, fix string) {
	c.findings = append(c.findings, Finding{check, Warning, detail, fix})
}

func (c *checks) problem(check, detail, fix string) {
	c.findings = append(c.findings, Finding{check, Problem, detail, fix})
}

// awaitLogin waits until Vault has let us in or said no. A login that a busy Vault does
// not answer at once is no finding.
func (c *checks) awaitLogin(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstLogin)
	defer cancel()
	again := time.NewTicker(firstPause)
	defer again.Stop()
	for {
		if _, err := c.k.client.login.session(ctx); err == nil || refusal(err) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// server looks at Vault itself, which needs no login. Every address is asked. It
// reports whether one of them is there.
func (c *checks) server(ctx context.Context) (there bool) {
	for _, s := range c.k.client.servers {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		asked := c.cfg.Now()
		health, err := s.api.Sys().HealthWithContext(bounded)
		answered := c.cfg.Now()
		cancel()
		switch {
		case err != nil:
			c.problem("server", fmt.Sprintf("%s does not answer: %v", s.address, err), "start Vault, or mend custody.vault.addresses, custody.vault.caFile, or the network between")
			continue
		case !health.Initialized:
			c.problem("server", s.address+" is not initialised", "vault operator init, and keep its keys")
			continue
		case health.Sealed:
			c.problem("server", s.address+" is sealed", "vault operator unseal; better, set up auto-unseal")
			continue
		}
		there = true
		if c.cfg.Namespace != "" && !health.Enterprise {
			c.warn("namespace", fmt.Sprintf("%s is Vault Community, which has no namespaces and ignores %s: everything is in the one that all share", s.address, c.cfg.Namespace),
				"unset custody.vault.namespace, or use Vault Enterprise; deployments are kept apart by custody.vault.prefix")
		}
		c.ok("server", "%s is Vault %s, unsealed", s.address, health.Version)
		// The answer has whole seconds.
		theirs := time.Unix(health.ServerTimeUTC, 0)
		apart := max(asked.Sub(theirs)-time.Second, theirs.Sub(answered), 0)
		fix := "set the clocks of both by NTP"
		switch detail := fmt.Sprintf("the clock of %s and this one are %v apart", s.address, apart.Round(time.Second)); {
		case apart > clockProblem:
			c.problem("clock", detail, fix)
		case apart > clockWarning:
			c.warn("clock", detail, fix)
		default:
			c.ok("clock", "agrees with %s", s.address)
		}
	}
	return there
}

// login looks at the signer's token, and reports whether there is one.
func (c *checks) login(ctx context.Context) bool {
	secret, err := c.k.client.call(ctx, http.MethodGet, "auth/token/lookup-self", nil)
	if err != nil {
		fix := map[string]string{
			"token":      "put a valid token of the signer's policy into custody.vault.auth.tokenFile",
			"approle":    "check the files of role id and secret id, and that the role is at custody.vault.auth.mount",
			"kubernetes": "check the role's service accounts and audience, custody.vault.auth.role and mount, and that the service account that Vault reviews tokens with is bound to system:auth-delegator",
		}[c.cfg.Auth.Method]
		c.problem("login", err.Error(), fix+"; `signer vault bootstrap` sets it up")
		return false
	}
	var token struct {
		Policies         []string `json:"policies"`
		IdentityPolicies []string `json:"identity_policies"`
		TTL              int64    `json:"ttl"`
		Renewable        bool     `json:"renewable"`
		NumUses          int      `json:"num_uses"`
		Orphan           bool     `json:"orphan"`
		Period           int64    `json:"period"`
	}
	if err := decode(secret, &token); err != nil {
		c.problem("login", "lookup-self: "+err.Error(), "look at what is between this process and Vault")
		return false
	}
	ttl := time.Duration(token.TTL) * time.Second
	life := "for ever"
	if ttl > 0 {
		life = "for " + ttl.String()
	}
	policies := slices.Concat(token.Policies, token.IdentityPolicies)
	c.ok("login", "by %s, with policies %s, valid %s", c.cfg.Auth.Method, strings.Join(policies, ", "), life)
	if slices.Contains(policies, "root") {
		c.problem("login", "the token is root's", "give the signer a token of its own policy; `signer vault bootstrap` writes that")
	}
	if token.NumUses > 0 {
		c.problem("login", fmt.Sprintf("the token ends after %d uses", token.NumUses), "make tokens without a limit of uses (token_num_uses=0)")
	}
	if ttl == 0 && c.cfg.Auth.Method != methodToken {
		c.warn("login", "the token never ends", "give the role a token_ttl")
	}
	if c.cfg.Auth.Method == methodToken {
		if !token.Renewable && ttl > 0 {
			c.warn("login", "the token can not be renewed: in "+ttl.String()+" the signer stops", "use a periodic token (vault token create -period=1h -orphan), or AppRole or Kubernetes")
		}
		if token.Renewable && token.Period == 0 {
			c.warn("login", "the token can be renewed only up to its maximum", "use a periodic token (vault token create -period=1h -orphan), or replace the file in time")
		}
		if !token.Orphan {
			c.warn("login", "the token ends with the token that made it", "make it with vault token create -orphan")
		}
	}
	if ttl > 0 && ttl < shortToken && c.cfg.Auth.Method != methodToken {
		c.warn("login", "a token lives "+ttl.String()+" at most: a short outage of Vault ends it", "give the role a token_ttl of an hour")
	}
	return true
}

// capabilities compares what the token may do with the policy.
func (c *checks) capabilities(ctx context.Context) {
	grants, denials := c.cfg.grants(), c.cfg.denials()
	var paths []string
	for _, g := range grants {
		paths = append(paths, g.path)
	}
	secret, err := c.k.client.call(ctx, http.MethodPost, "sys/capabilities-self", map[string]any{"paths": slices.Concat(paths, denials)})
	fix := "write the policy anew: signer vault policy | vault policy write NAME -"
	if err != nil {
		c.problem("policy", "sys/capabilities-self: "+err.Error(), fix)
		return
	}
	capabilities := map[string][]string{}
	for path, v := range secret.Data {
		list, _ := v.([]any)
		for _, one := range list {
			if s, ok := one.(string); ok && s != "deny" && !slices.Contains(capabilities[path], s) {
				capabilities[path] = append(capabilities[path], s)
			}
		}
	}
	if slices.Contains(capabilities[grants[0].path], "root") {
		return // said at the login
	}
	var missing, excess []string
	for _, g := range grants {
		have := capabilities[g.path]
		for _, need := range g.capabilities {
			if !slices.Contains(have, need) {
				missing = append(missing, need+" on "+g.path)
			}
		}
		for _, one := range have {
			if !slices.Contains(g.capabilities, one) {
				excess = append(excess, one+" on "+g.path)
			}
		}
	}
	for _, path := range denials {
		if have := capabilities[path]; len(have) > 0 {
			excess = append(excess, strings.Join(have, ", ")+" on "+path)
		}
	}
	if len(missing) > 0 {
		c.problem("policy", "the signer may not: "+strings.Join(missing, "; "), fix)
	}
	if len(excess) > 0 {
		c.warn("policy", "the signer may more than it should: "+strings.Join(excess, "; "), fix+"; remove other policies from its role (token_no_default_policy=true)")
	}
	if len(missing)+len(excess) == 0 {
		c.ok("policy", "the signer may do what it needs, and nothing else that was tried")
	}
}

// mounts looks at the two secrets engines.
func (c *checks) mounts(ctx context.Context) {
	what, err := mountType(ctx, c.k.client, c.cfg.Transit)
	switch fix := "vault secrets enable -path=" + c.cfg.Transit + " transit, or mend custody.vault.transit"; {
	case err != nil:
		c.problem("transit", err.Error(), fix)
	case what != "of type transit":
		c.problem("transit", fmt.Sprintf("the mount %s is %s", c.cfg.Transit, what), fix)
	default:
		c.ok("transit", "%s", c.cfg.Transit)
	}
	what, err = mountType(ctx, c.k.client, c.cfg.KV)
	fix := "vault secrets enable -path=" + c.cfg.KV + " -version=2 kv, or mend custody.vault.kv"
	switch {
	case err != nil:
		c.problem("kv", err.Error(), fix)
		return
	case what != kvVersion2:
		c.problem("kv", fmt.Sprintf("the mount %s is %s", c.cfg.KV, what), fix)
		return
	}
	secret, err := c.k.client.call(ctx, http.MethodGet, c.cfg.KV+"/config", nil)
	if err != nil {
		c.warn("kv", "whether the mount deletes by itself is not known: "+err.Error(), "allow read on "+c.cfg.KV+"/config")
		return
	}
	var config kvConfig
	if err := decode(secret, &config); err != nil {
		c.warn("kv", "whether the mount deletes by itself is not known: "+err.Error(), "look at vault read "+c.cfg.KV+"/config")
		return
	}
	if config.deletes() {
		c.problem("kv", fmt.Sprintf("the mount %s deletes what is older than %s, the signer's documents too", c.cfg.KV, config.DeleteVersionAfter),
			"vault write "+c.cfg.KV+"/config delete_version_after=0s")
		return
	}
	c.ok("kv", "%s is %s and deletes nothing by itself", c.cfg.KV, what)
}

// kvConfig is a KV mount's configuration.
type kvConfig struct {
	DeleteVersionAfter string `json:"delete_version_after"`
}

func (k kvConfig) deletes() bool {
	d, err := time.ParseDuration(k.DeleteVersionAfter)
	return k.DeleteVersionAfter != "" && (err != nil || d > 0)
}

// subjectFlaw says why a key can not be the subject key; empty: it can.
func (d description) subjectFlaw() string {
	switch leak := d.leaks(); {
	case d.Type != "hmac":
		return "its type is " + d.Type + ", not hmac"
	case leak != "":
		return leak
	case d.MinEncryption > 1 || d.MinDecryption > 1:
		return fmt.Sprintf("its version 1, which subjects are derived with, is below its floors (%d, %d): set min_encryption_version=0 and min_decryption_version=1", d.MinEncryption, d.MinDecryption)
	default:
		return ""
	}
}

// wrapFlaw is the same for the wrapping key.
func (d description) wrapFlaw() string {
	switch leak := d.leaks(); {
	case d.Type != wrapType:
		return "its type is " + d.Type + ", not " + wrapType
	case leak != "":
		return leak
	case d.Derived:
		return "it is derived, and needs a context that the signer does not send"
	default:
		return ""
	}
}

// wrapType of the wrapping key takes associated data.
const wrapType = "aes256-gcm96"

func (c *checks) key(ctx context.Context, check, name string) (description, bool) {
	secret, err := c.k.client.call(ctx, http.MethodGet, c.cfg.Transit+"/keys/"+name, nil)
	var key description
	if err == nil {
		err = decode(secret, &key)
	}
	if errors.Is(err, custody.ErrNotFound) {
		c.problem(check, "the transit key "+name+" is not there", "signer vault bootstrap")
	} else if err != nil {
		c.problem(check, err.Error(), "allow read on "+c.cfg.Transit+"/keys/"+name)
	}
	return key, err == nil
}

func (c *checks) subjectKey(ctx context.Context) {
	const check = "subject key"
	name := c.cfg.subjectKey()
	key, ok := c.key(ctx, check, name)
	if !ok {
		return
	}
	if flaw := key.subjectFlaw(); flaw != "" {
		c.problem(check, name+": "+flaw, "if the signer has never run, delete the key and run signer vault bootstrap; else restore it into a fresh Vault from its backup (--restore-subject-key)")
		return
	}
	value, err := c.k.SubjectCheck(ctx)
	if err != nil {
		c.problem(check, err.Error(), "allow update on "+c.cfg.Transit+"/hmac/"+name)
		return
	}
	c.ok(check, "%s is there; its check value is %s", name, value)
	if !key.Imported {
		c.warn(check, name+" was made in Vault, so that there is no backup of it: if Vault is lost, every subject changes", "if the signer has never run, delete the key and run signer vault bootstrap")
	}
	if key.Latest > 1 {
		c.warn(check, fmt.Sprintf("%s has %d versions; subjects are derived with version 1", name, key.Latest), "do not rotate it, and do not raise its floors")
	}
	if key.DeletionAllowed {
		c.warn(check, name+" may be deleted", "vault write "+c.cfg.Transit+"/keys/"+name+"/config deletion_allowed=false")
	}
}

func (c *checks) wrapKey(ctx context.Context) {
	const check = "wrapping key"
	name := c.cfg.wrapKey()
	key, ok := c.key(ctx, check, name)
	if !ok {
		return
	}
	if flaw := key.wrapFlaw(); flaw != "" {
		c.problem(check, name+": "+flaw, "if the signer has never run, delete the key and run signer vault bootstrap; else begin anew under another prefix")
		return
	}
	if key.DeletionAllowed {
		c.warn(check, name+" may be deleted", "vault write "+c.cfg.Transit+"/keys/"+name+"/config deletion_allowed=false")
	}
	c.ok(check, "%s, version %s", name, strconv.Itoa(key.Latest))
}

// document loads one, deleted or not.
func (c *checks) document(ctx context.Context) {
	_, err := c.k.Load(ctx, "deployment")
	switch {
	case errors.Is(err, custody.ErrNotFound):
		c.ok("documents", "can be read; the deployment is not initialised yet (signer init)")
	case err != nil:
		c.problem("documents", err.Error(), "restore what was deleted, as it says")
	default:
		c.ok("documents", "can be read")
	}
}

// schedule looks at the keys of a schedule that are not gone from it.
func (c *checks) schedule(ctx context.Context, document string) {
	const check = "signing key"
	doc, err := c.k.Load(ctx, document)
	if errors.Is(err, custody.ErrNotFound) {
		return // not made yet
	}
	var schedule struct {
		Keys []struct {
			KID       string    `json:"kid"`
			Ref       string    `json:"ref"`
			RemoveAt  time.Time `json:"removeAt"`
			RevokedAt time.Time `json:"revokedAt"`
		} `json:"keys"`
	}
	if err == nil {
		err = json.Unmarshal(doc.Data, &schedule)
	}
	if err != nil {
		c.problem(check, fmt.Sprintf("the schedule %s: %v", document, err), "restore the document, as it says")
		return
	}
	for _, key := range schedule.Keys {
		if !key.RevokedAt.IsZero() || !key.RemoveAt.IsZero() && key.RemoveAt.Before(c.cfg.Now()) {
			continue
		}
		name := c.cfg.Prefix + "-" + key.Ref
		d, err := c.k.transit.describe(ctx, name)
		var public crypto.PublicKey
		if err == nil {
			public, err = c.k.transit.publicHalf(ctx, name, d)
		}
		var kid string
		if err == nil {
			kid, err = jwks.Thumbprint(public)
		}
		another := "let another key take its place: pactctl rotate --emergency --compromised " + key.KID
		switch {
		case errors.Is(err, custody.ErrNotFound):
			c.problem(check, "the transit key "+name+" is not there", "restore Vault from its snapshot, or "+another)
		case err != nil:
			c.problem(check, name+": "+err.Error(), "allow read on "+c.cfg.Transit+"/keys/"+name)
		case kid != key.KID:
			c.problem(check, fmt.Sprintf("%s is another key than the schedule's: %s, not %s", name, kid, key.KID), another)
		case !d.disabled() && d.signingFlaw() != "":
			c.problem(check, name+": "+d.signingFlaw(), another)
		case d.DeletionAllowed:
			c.warn(check, name+" may be deleted", "vault write "+c.cfg.Transit+"/keys/"+name+"/config deletion_allowed=false")
		default:
			c.ok(check, "%s", name)
		}
	}
}
