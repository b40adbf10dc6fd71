package vault

import (
	_ "embed"
	"strings"
)

//go:embed policy.hcl
var transitPolicy string

//go:embed policy-wrapped.hcl
var wrappedPolicy string

// Policy returns the Vault policy that a signer of this configuration needs, and
// nothing beyond. It depends on the mode, the mounts and the prefix.
func Policy(cfg Config) (string, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return "", err
	}
	policy := transitPolicy
	if cfg.Wrapped {
		policy = wrappedPolicy
	}
	// All at once, because a prefix may have the name of a mount in it.
	names := strings.NewReplacer(
		`path "transit/`, `path "`+cfg.Transit+`/`,
		`path "secret/`, `path "`+cfg.KV+`/`,
		DefaultPrefix, cfg.Prefix,
	)
	return names.Replace(policy), nil
}

// grant is what the policy gives on a path.
type grant struct {
	path         string
	capabilities []string
}

// grants lists what the policy of this configuration gives, by example of one key
// where it gives the same for all.
func (c Config) grants() []grant {
	grants := []grant{
		{c.Transit + "/hmac/" + c.subjectKey(), []string{"update"}},
		{c.Transit + "/keys/" + c.subjectKey(), []string{"read"}},
		{c.KV + "/data/" + c.Prefix + "/" + documentsFolder + "/check", []string{"create", "read", "update"}},
		{c.KV + "/config", []string{"read"}},
		{"auth/token/lookup-self", []string{"read"}},
		{"auth/token/renew-self", []string{"update"}},
		{"sys/capabilities-self", []string{"update"}},
	}
	if c.Wrapped {
		return append(grants,
			grant{c.Transit + "/encrypt/" + c.wrapKey(), []string{"update"}},
			grant{c.Transit + "/decrypt/" + c.wrapKey(), []string{"update"}},
			grant{c.Transit + "/keys/" + c.wrapKey(), []string{"read"}},
			grant{c.KV + "/data/" + c.Prefix + "/" + keysFolder + "/check", []string{"create", "read", "update"}},
			grant{c.KV + "/destroy/" + c.Prefix + "/" + keysFolder + "/check", []string{"update"}},
		)
	}
	return append(grants,
		grant{c.Transit + "/keys/" + c.Prefix + "-check", []string{"create", "read", "update"}},
		grant{c.Transit + "/sign/" + c.Prefix + "-check", []string{"update"}},
		grant{c.KV + "/data/" + c.Prefix + "/" + publicFolder + "/check", []string{"create", "read", "update"}},
	)
}

// denials lists paths on which a signer has no business, in the order in which
// they matter.
func (c Config) denials() []string {
	paths := []string{
		c.Transit + "/export/signing-key/" + c.Prefix + "-check",
		c.Transit + "/export/hmac-key/" + c.subjectKey(),
		c.Transit + "/export/encryption-key/" + c.wrapKey(),
		c.Transit + "/byok-export/" + c.subjectKey() + "/" + c.Prefix + "-check",
		c.Transit + "/backup/" + c.Prefix + "-check",
		c.Transit + "/backup/" + c.subjectKey(),
		c.Transit + "/restore",
		c.Transit + "/keys/" + c.subjectKey() + "/config",
		c.Transit + "/keys/" + c.subjectKey() + "/rotate",
		c.Transit + "/keys/" + c.subjectKey() + "/trim",
		c.Transit + "/keys/" + c.subjectKey() + "/import_version",
		c.Transit + "/keys/" + c.wrapKey() + "/config",
		c.Transit + "/keys/" + c.wrapKey() + "/trim",
		c.Transit + "/keys/of-somebody-else",
		c.Transit + "/sign/of-somebody-else",
		c.Transit + "/hmac/of-somebody-else",
		c.Transit + "/encrypt/of-somebody-else",
		c.Transit + "/decrypt/of-somebody-else",
		c.Transit + "/config/keys",
		c.KV + "/data/of-somebody-else",
		c.KV + "/data/" + c.Prefix + "-2/" + documentsFolder + "/check",
		c.KV + "/delete/" + c.Prefix + "/" + documentsFolder + "/check",
		c.KV + "/destroy/" + c.Prefix + "/" + documentsFolder + "/check",
		c.KV + "/metadata/" + c.Prefix + "/" + documentsFolder + "/check",
		"sys/policies/acl/" + c.Prefix,
		"sys/mounts/" + c.KV,
		"sys/mounts/" + c.Transit,
		"sys/auth/token",
		"sys/audit/file",
		"sys/seal",
		"sys/raw/core",
		"auth/token/create",
		"auth/token/create-orphan",
		"identity/entity",
	}
	if c.Wrapped {
		return append(paths, c.Transit+"/keys/"+c.Prefix+"-check", c.Transit+"/sign/"+c.Prefix+"-check",
			c.KV+"/data/"+c.Prefix+"/"+publicFolder+"/check")
	}
	return append(paths, c.Transit+"/encrypt/"+c.wrapKey(), c.Transit+"/decrypt/"+c.wrapKey(),
		c.KV+"/data/"+c.Prefix+"/"+keysFolder+"/check", c.KV+"/destroy/"+c.Prefix+"/"+keysFolder+"/check")
}
