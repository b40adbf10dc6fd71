package config

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
)

var (
	// mountForm is a path of Vault's, without slashes at its ends.
	mountForm = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`)
	// prefixForm keeps names of keys free of what Vault and Redis give a meaning.
	prefixForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
)

func (c Config) validateCustody(v *problems) {
	vault := c.Custody.Vault
	v.oneOf("custody.kind", c.Custody.Kind, "local", "vault")
	if c.Custody.Kind == "local" && len(vault.Addresses) > 0 {
		v.add("custody.kind", "say vault, or remove custody.vault.addresses, which local does not use")
	}
	if c.Custody.Kind != "vault" {
		return
	}
	if len(vault.Addresses) == 0 {
		v.add("custody.vault.addresses", "name Vault's URL, for example https://vault.example.com:8200")
	}
	for i, address := range vault.Addresses {
		v.vaultAddress(fmt.Sprintf("custody.vault.addresses.%d", i), address, c.Insecure.Vault)
	}
	for _, m := range []struct{ key, mount string }{
		{"transit", vault.Transit}, {"kv", vault.KV}, {"auth.mount", vault.Auth.Mount}, {"namespace", strings.TrimSuffix(vault.Namespace, "/")},
	} {
		optional := m.key == "auth.mount" || m.key == "namespace"
		if !mountForm.MatchString(m.mount) && !(optional && m.mount == "") {
			v.add("custody.vault."+m.key, "write a path without slashes at its ends, for example transit")
		}
	}
	if vault.Transit == vault.KV {
		v.add("custody.vault.kv", "is the mount of the transit engine too; name that of a KV version 2 engine")
	}
	v.prefix("custody.vault.prefix", vault.Prefix)
	vault.Auth.validate(v)
}

// validate tells what a method lacks.
func (a VaultAuth) validate(v *problems) {
	const at = "custody.vault.auth."
	need := func(key, value, what string) {
		if value == "" {
			v.add(at+key, "is needed with method %s: %s", a.Method, what)
		}
	}
	v.oneOf(at+"method", a.Method, "token", "approle", "kubernetes")
	switch a.Method {
	case "token":
		need("tokenFile", a.TokenFile, "the file that holds the token")
	case "approle":
		need("roleIdFile", a.RoleIDFile, "the file that holds the role id")
		need("secretIdFile", a.SecretIDFile, "the file that holds the secret id")
	case "kubernetes":
		need("role", a.Role, "the role that the service account is bound to")
		need("jwtFile", a.JWTFile, "the file that holds the service account's token")
	}
}

func (v *problems) vaultAddress(key, raw string, insecure bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" ||
		u.Scheme != "https" && u.Scheme != "http" || u.Port() != "" && !validPort(u.Port(), 1) {
		v.add(key, "write a URL without path and user, for example https://vault.example.com:8200")
		return
	}
	if u.Scheme == "http" && !insecure && !loopbackHost(u.Hostname()) {
		v.add(key, "needs https beyond loopback: use an https URL (custody.vault.caFile names its authority), or set insecure.vault (--insecure-vault) if something in between encrypts")
	}
}

func (c Config) validateStore(v *problems) {
	r := c.Store.Redis
	v.oneOf("store.kind", c.Store.Kind, "bolt", "redis")
	if c.Store.Kind == "bolt" && len(r.Addresses) > 0 {
		v.add("store.kind", "say redis, or remove store.redis.addresses, which bolt does not use")
	}
	if c.Store.Kind != "redis" {
		return
	}
	const at = "store.redis."
	v.oneOf(at+"mode", r.Mode, "standalone", "sentinel", "cluster")
	switch {
	case len(r.Addresses) == 0:
		v.add(at+"addresses", "name host:port, for example redis.example.com:6379")
	case r.Mode == "standalone" && len(r.Addresses) > 1:
		v.add(at+"addresses", "standalone has one; say mode sentinel or cluster, or keep one")
	}
	remote := false
	for i, address := range r.Addresses {
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" || !validPort(port, 1) || strings.ContainsAny(host, " /@") {
			v.add(fmt.Sprintf("%saddresses.%d", at, i), "write host:port, for example redis.example.com:6379")
			continue
		}
		remote = remote || !loopbackHost(host)
	}
	if remote && !r.TLS.Enabled && !c.Insecure.Redis {
		v.add(at+"tls.enabled", "is needed beyond loopback: set it (store.redis.tls.caFile names the authority), or insecure.redis (--insecure-redis) if something in between encrypts")
	}
	if (r.TLS.CertFile == "") != (r.TLS.KeyFile == "") {
		v.add(at+"tls", "set certFile and keyFile, or neither")
	}
	if !r.TLS.Enabled && r.TLS != (RedisTLS{}) {
		v.add(at+"tls.enabled", "say true, or remove the rest of store.redis.tls, which is not used without it")
	}
	if (r.Mode == "sentinel") != (r.MasterName != "") {
		v.add(at+"masterName", "is needed with mode sentinel, and only there: what the sentinels call the master")
	}
	if r.Mode != "sentinel" && (r.SentinelUsername != "" || r.SentinelPasswordFile != "") {
		v.add(at+"sentinelUsername", "and sentinelPasswordFile are for mode sentinel; remove them")
	}
	if r.Username != "" && r.PasswordFile == "" {
		v.add(at+"passwordFile", "is needed with a username: the file that holds its password")
	}
	if r.SentinelUsername != "" && r.SentinelPasswordFile == "" {
		v.add(at+"sentinelPasswordFile", "is needed with a sentinelUsername: the file that holds its password")
	}
	v.prefix(at+"prefix", r.Prefix)
	if r.Acks < 0 || r.Acks > 10 {
		v.add(at+"acks", "use 0 to 10: how many replicas must have a write before it counts")
	}
}

func (v *problems) prefix(key, prefix string) {
	if !prefixForm.MatchString(prefix) {
		v.add(key, "use 1 to 32 lower-case letters, digits or '-'")
	}
}

// Describe says in one line each who holds the keys and where the records are,
// without any secret.
func (c Config) Describe() (custody, store string) {
	custody = "local, " + c.Custody.Dir
	if v := c.Custody.Vault; c.Custody.Kind == "vault" {
		mode := "Vault signs"
		if v.Wrapped {
			mode = "keys wrapped by Vault, signed with here"
		}
		custody = fmt.Sprintf("vault, %s; %s; transit %s, kv %s, prefix %s; login by %s",
			strings.Join(v.Addresses, ", "), mode, v.Transit, v.KV, v.Prefix, v.Auth.Method)
	}
	store = "bolt, " + c.Store.Path
	if r := c.Store.Redis; c.Store.Kind == "redis" {
		protection := "no TLS"
		if r.TLS.Enabled {
			protection = "TLS"
		}
		store = fmt.Sprintf("redis %s, %s; %s; prefix %s; %d acknowledgements", r.Mode, strings.Join(r.Addresses, ", "), protection, r.Prefix, r.Acks)
	}
	return custody, store
}
