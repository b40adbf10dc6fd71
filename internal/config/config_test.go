package config

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const hash = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// vault is a configuration with Vault, one item of which is another.
func vault(item string) string {
	return with("custody", "kind: vault", "addresses: ['https://v.example:8200']", "auth: {method: token, tokenFile: t}", item, "vault")
}

// redis is the same with Redis.
func redis(item string) string {
	return "issuers: [{url: https://pa.example.com}]\n" + with("store", "kind: redis", "addresses: ['127.0.0.1:6379']", "", item, "redis")
}

func with(section, kind, address, more, item, below string) string {
	items := []string{item}
	for _, i := range []string{address, more} {
		if name, _, _ := strings.Cut(i, ":"); i != "" && !strings.HasPrefix(item, name+":") {
			items = append(items, i)
		}
	}
	return section + ": {" + kind + ", " + below + ": {" + strings.Join(items, ", ") + "}}\n"
}

func write(t testing.TB, yaml string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "signer.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestDefaults(t *testing.T) {
	c, err := Load(Source{})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Listeners.Public.Address; got != "127.0.0.1:8787" {
		t.Errorf("public = %q", got)
	}
	if len(c.Issuers) != 1 || c.Issuers[0].URL != "" || c.Issuers[0].Enrolment != "open" || c.Issuers[0].TokenTTL != 120*time.Second {
		t.Errorf("issuers = %+v", c.Issuers)
	}
	if !filepath.IsAbs(c.Data) || filepath.Base(c.Data) != "pact-signer" {
		t.Errorf("data = %q", c.Data)
	}
	if c.Custody.Dir != filepath.Join(c.Data, "custody") || c.Store.Path != filepath.Join(c.Data, "store.db") {
		t.Errorf("custody %q, store %q", c.Custody.Dir, c.Store.Path)
	}
}

func TestPrecedence(t *testing.T) {
	file := write(t, `
data: /from/file
trustedProxies: [10.0.0.0/8, 192.0.2.0/24]
issuers:
  - url: https://a.example
    enrolment: open
  - url: https://b.example
    limits: {caller: {rate: 0.5}}
insecure: {openEnrolment: false}
log: {level: debug, format: text}
`)
	c, err := Load(Source{
		File: file,
		Environ: []string{
			"HOME=/home/somebody",
			"PACT_SIGNER_LOG_LEVEL=warn",
			"PACT_SIGNER_LOG_FORMAT=json",
			"PACT_SIGNER_ISSUERS_2_URL=https://c.example",
			"PACT_SIGNER_ISSUERS_1_TOKEN_TTL=90s",
			"PACT_SIGNER_ISSUERS_1_LIMITS_CALLER_BURST=7",
			"PACT_SIGNER_INSECURE_OPEN_ENROLMENT=true",
			"PACT_SIGNER_TRUSTED_PROXIES_1=198.51.100.0/24",
			"PACT_SIGNER_REPLICA=", // empty is not set
			"PACT_SIGNER_SERVICE_HOST=10.1.2.3",
			"PACT_SIGNER_PORT_8787_TCP_ADDR=10.1.2.3",
			"PACT_SIGNER_ADMIN_SERVICE_PORT_HTTPS=8789",
		},
		Flags: []Setting{
			{"log.format", "text"}, {"log.format", "auto"},
			{"issuers.2.signerUrls", "https://c1.example, https://c2.example"},
			{"issuers.2.maxDevices", "10"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, got := range map[string][2]any{
		"file":               {c.Data, "/from/file"},
		"env over file":      {c.Log.Level, "warn"},
		"last flag over env": {c.Log.Format, "auto"},
		"file item kept":     {c.Issuers[0].URL, "https://a.example"},
		"item default":       {c.Issuers[0].TokenTTL, 120 * time.Second},
		"item env":           {c.Issuers[1].TokenTTL, 90 * time.Second},
		"item deep file":     {c.Issuers[1].Limits.Caller, Limit{Rate: 0.5, Burst: 7}},
		"item other default": {c.Issuers[1].Limits.Enroll, Limit{Rate: 1, Burst: 30}},
		"item appended":      {c.Issuers[2].URL, "https://c.example"},
		"appended default":   {c.Issuers[2].Enrolment, "token"},
		"list by commas":     {strings.Join(c.Issuers[2].SignerURLs, " "), "https://c1.example https://c2.example"},
		"number from flag":   {c.Issuers[2].MaxDevices, 10},
		"bool from env":      {c.Insecure.OpenEnrolment, true},
		"list item by env":   {strings.Join(c.TrustedProxies, " "), "10.0.0.0/8 198.51.100.0/24"},
		"empty env":          {c.Replica, ""},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %v, want %v", what, got[0], got[1])
		}
	}
}

func TestEnvNamesTheFile(t *testing.T) {
	file := write(t, "data: /named/by/env\n")
	c, err := Load(Source{Environ: []string{EnvFile + "=" + file}})
	if err != nil || c.Data != "/named/by/env" {
		t.Fatalf("data %q, error %v", c.Data, err)
	}
	other := write(t, "data: /named/by/flag\n")
	c, err = Load(Source{File: other, Environ: []string{EnvFile + "=" + file}})
	if err != nil || c.Data != "/named/by/flag" {
		t.Fatalf("data %q, error %v", c.Data, err)
	}
}

// Every key can be set by file, environment and flag, and no two keys have the
// same variable.
func TestEveryKeyEveryWay(t *testing.T) {
	keys := Keys()
	if len(keys) < 40 {
		t.Fatalf("only %d keys", len(keys))
	}
	owner := make(map[string]string)
	for path, env := range keys {
		if owner[env] != "" {
			t.Errorf("%s and %s share %s", path, owner[env], env)
		}
		owner[env] = path
		if injected.MatchString(strings.TrimPrefix(env, EnvPrefix)) {
			t.Errorf("%s looks like a variable that Kubernetes injects", env)
		}
	}
	value := func(path string) string {
		typ := reflect.TypeFor[Config]()
		for part := range strings.SplitSeq(strings.ReplaceAll(path, "#", "0"), ".") {
			typ, _ = fieldType(typ, part)
		}
		switch typ.Kind() {
		case reflect.String, reflect.Slice:
			return "abc"
		case reflect.Bool:
			return "true"
		case reflect.Int64:
			return "7s"
		}
		return "7"
	}
	for _, path := range slices.Sorted(maps.Keys(keys)) {
		at := strings.ReplaceAll(path, "#", "0")
		name := strings.ReplaceAll(keys[path], "#", "0")
		settings, _, err := readEnviron([]string{name + "=" + value(path)})
		if err != nil || len(settings) != 1 || settings[0].Path != at {
			t.Errorf("%s: %v %v", name, settings, err)
			continue
		}
		// Whatever is wrong with the value, the key is known and the type fits.
		_, err = Load(Source{Flags: settings})
		if err != nil && (strings.Contains(err.Error(), "unknown") || strings.Contains(err.Error(), "wants")) {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// SG-13: among others, an issuer that is no https origin.
func TestRefused(t *testing.T) {
	issuer := "issuers: [{url: https://pa.example.com}]\n"
	for name, c := range map[string]struct {
		yaml string
		env  []string
		set  []Setting
		want []string // all of these are in the error
	}{
		"unknown key":            {yaml: "lissteners: {}\n", want: []string{"signer.yaml", "unknown key lissteners", "listeners"}},
		"unknown nested":         {yaml: "issuers: [{url: https://a.example, ttl: 3}]\n", want: []string{"issuers.0.ttl"}},
		"wrong case":             {yaml: "issuers: [{URL: https://a.example}]\n", want: []string{"issuers.0.URL", "did you mean url?"}},
		"duplicate":              {yaml: "data: /a\ndata: /b\n", want: []string{"data", "already defined"}},
		"duplicate in item":      {yaml: "issuers: [{url: https://a.example, url: https://b.example}]\n", want: []string{"url", "already defined"}},
		"two documents":          {yaml: "data: /a\n---\ndata: /b\n", want: []string{"more than one YAML document"}},
		"not a mapping":          {yaml: "- a\n", want: []string{"signer.yaml"}},
		"broken":                 {yaml: "data: [\n", want: []string{"signer.yaml"}},
		"list for mapping":       {yaml: "listeners: [a]\n", want: []string{"listeners is not a list"}},
		"mapping for list":       {yaml: "issuers: {url: https://a.example}\n", want: []string{"issuers.url", "by number"}},
		"number keys":            {yaml: "issuers: {0: {url: https://a.example}}\n", want: []string{"issuers"}},
		"text for mapping":       {yaml: "listeners: abc\n", want: []string{"listeners: wants a mapping"}},
		"bare duration":          {yaml: "issuers: [{tokenTTL: 120}]\n", want: []string{"issuers.0.tokenTTL", "120s"}},
		"bad duration":           {yaml: "drainTimeout: soon\n", want: []string{"drainTimeout", "120s"}},
		"bad bool":               {yaml: "insecure: {admin: maybe}\n", want: []string{"insecure.admin"}},
		"number for text":        {yaml: "replica: 7\n", want: []string{"replica", "quotes"}},
		"unknown env":            {env: []string{"PACT_SIGNER_DATTA=/x"}, want: []string{"PACT_SIGNER_DATTA"}},
		"env index without item": {env: []string{"PACT_SIGNER_ISSUERS_4_URL=https://a.example"}, want: []string{"issuers.4", "append"}},
		"unknown set":            {set: []Setting{{"issuers.0.colour", "red"}}, want: []string{"issuers.0.colour"}},
		"set below a value":      {set: []Setting{{"data.x", "red"}}, want: []string{"data.x"}},
		"set nothing":            {set: []Setting{{"", "red"}}, want: []string{"--set PATH=VALUE"}},
		"whole and item":         {set: []Setting{{"trustedProxies", "10.0.0.0/8"}, {"trustedProxies.0", "10.0.0.0/8"}}, want: []string{"trustedProxies", "whole"}},

		"empty data":            {set: []Setting{{"data", ""}}, want: []string{"data: name a folder"}},
		"address":               {set: []Setting{{"listeners.public.address", "8787"}}, want: []string{"listeners.public.address", "host:port"}},
		"port":                  {set: []Setting{{"listeners.ops.address", "127.0.0.1:70000"}}, want: []string{"listeners.ops.address"}},
		"same address":          {set: []Setting{{"listeners.ops.address", "127.0.0.1:8787"}}, want: []string{"listeners.ops.address", "listeners.public"}},
		"same port":             {yaml: issuer, set: []Setting{{"listeners.public.address", ":8790"}}, want: []string{"listeners.ops.address", "port of listeners.public"}},
		"admin beyond":          {yaml: issuer, set: []Setting{{"listeners.admin.address", "0.0.0.0:8789"}}, want: []string{"listeners.admin", "--insecure-admin"}},
		"grpc beyond":           {yaml: issuer, set: []Setting{{"listeners.grpc.address", ":8788"}}, want: []string{"listeners.grpc", "--insecure-grpc"}},
		"half a certificate":    {set: []Setting{{"listeners.public.certFile", "a.pem"}}, want: []string{"listeners.public", "keyFile"}},
		"beyond, no issuer":     {set: []Setting{{"listeners.public.address", "0.0.0.0:8787"}}, want: []string{"issuers.0.url", "https"}},
		"open beyond":           {yaml: "issuers: [{url: https://a.example, enrolment: open}]\n", set: []Setting{{"listeners.public.address", "0.0.0.0:8787"}}, want: []string{"issuers.0.enrolment", "--insecure-open-enrolment"}},
		"http issuer":           {yaml: "issuers: [{url: http://pa.example.com}]\n", want: []string{"issuers.0.url", "https"}},
		"issuer path":           {yaml: "issuers: [{url: https://pa.example.com/x}]\n", want: []string{"issuers.0.url", "origin"}},
		"issuer slash":          {yaml: "issuers: [{url: https://pa.example.com/}]\n", want: []string{"issuers.0.url"}},
		"issuer case":           {yaml: "issuers: [{url: https://PA.example.com}]\n", want: []string{"issuers.0.url"}},
		"issuer port":           {yaml: "issuers: [{url: 'https://pa.example.com:443'}]\n", want: []string{"issuers.0.url"}},
		"issuer user":           {yaml: "issuers: [{url: 'https://u@pa.example.com'}]\n", want: []string{"issuers.0.url"}},
		"issuer twice":          {yaml: "issuers: [{url: https://a.example}, {url: https://a.example}]\n", want: []string{"issuers.1.url"}},
		"issuer without url":    {yaml: "issuers: [{url: https://a.example}, {}]\n", want: []string{"issuers.1.url", "several"}},
		"signer host shared":    {yaml: "issuers: [{url: https://a.example, signerUrls: [https://s.example]}, {url: https://b.example, signerUrls: [https://s.example]}]\n", want: []string{"issuers.1", "s.example"}},
		"ttl low":               {yaml: "issuers: [{tokenTTL: 59s}]\n", want: []string{"issuers.0.tokenTTL", "1m0s to 5m0s"}},
		"ttl high":              {yaml: "issuers: [{tokenTTL: 301s}]\n", want: []string{"issuers.0.tokenTTL"}},
		"ttl broken":            {yaml: "issuers: [{tokenTTL: 90500ms}]\n", want: []string{"issuers.0.tokenTTL", "whole seconds"}},
		"algorithm":             {yaml: "issuers: [{algorithm: HS256}]\n", want: []string{"issuers.0.algorithm", "ES256"}},
		"enrolment":             {yaml: "issuers: [{enrolment: maybe}]\n", want: []string{"issuers.0.enrolment", "closed"}},
		"rate":                  {yaml: "issuers: [{limits: {caller: {rate: -1}}}]\n", want: []string{"issuers.0.limits.caller.rate"}},
		"rate nan":              {yaml: "issuers: [{limits: {caller: {rate: .nan}}}]\n", want: []string{"issuers.0.limits.caller.rate"}},
		"burst":                 {yaml: "issuers: [{limits: {enroll: {burst: 0}}}]\n", want: []string{"issuers.0.limits.enroll.burst"}},
		"devices":               {yaml: "issuers: [{maxDevices: -1}]\n", want: []string{"issuers.0.maxDevices"}},
		"lead":                  {yaml: "issuers: [{rotation: {lead: 10s}}]\n", want: []string{"issuers.0.rotation", "lead"}},
		"overlap":               {yaml: "issuers: [{rotation: {overlap: 10s}}]\n", want: []string{"issuers.0.rotation", "overlap"}},
		"custody":               {yaml: "custody: {kind: cloud}\n", want: []string{"custody.kind"}},
		"store":                 {yaml: "store: {kind: cloud}\n", want: []string{"store.kind"}},
		"proxy":                 {yaml: "trustedProxies: [10.0.0.1]\n", want: []string{"trustedProxies.0"}},
		"token role":            {yaml: "admin: {tokens: [{name: a, role: boss, hash: '" + hash + "'}]}\n", want: []string{"admin.tokens.0.role"}},
		"token hash":            {yaml: "admin: {tokens: [{name: a, role: admin, hash: hunter2hunter2}]}\n", want: []string{"admin.tokens.0.hash"}},
		"token twice":           {yaml: "admin: {tokens: [{name: a, role: admin, hash: '" + hash + "'}, {name: a, role: viewer, hash: '" + hash + "'}]}\n", want: []string{"admin.tokens.1.name"}},
		"token initial":         {yaml: "admin: {tokens: [{name: initial, role: admin, hash: '" + hash + "'}]}\n", want: []string{"admin.tokens.0.name"}},
		"log level":             {yaml: "log: {level: loud}\n", want: []string{"log.level"}},
		"log format":            {yaml: "log: {format: xml}\n", want: []string{"log.format"}},
		"drain":                 {yaml: "drainTimeout: 1h\n", want: []string{"drainTimeout"}},
		"overlap at a scale":    {yaml: "issuers: [{rotation: {overlap: 225s}}]\ndevelopment: {timeScale: 60}\n", want: []string{"issuers.0.rotation.overlap", "timeScale 60"}},
		"scale zero":            {yaml: "development: {timeScale: 0}\n", want: []string{"development.timeScale"}},
		"scale too far":         {set: []Setting{{"development.timeScale", "121"}}, want: []string{"development.timeScale", "at most 120"}},
		"skew":                  {yaml: "issuers: [{rotation: {skew: 1h}}]\n", want: []string{"issuers.0.rotation.skew"}},
		"period":                {yaml: "issuers: [{rotation: {period: 10m}}]\n", want: []string{"issuers.0.rotation.period"}},
		"negative period":       {yaml: "issuers: [{rotation: {period: -1h}}]\n", want: []string{"issuers.0.rotation.period", "0s"}},
		"offset on a real host": {yaml: issuer + "development: {clockOffset: 15s}\n", want: []string{"development.clockOffset", "loopback"}},
		"offset too far":        {set: []Setting{{"development.clockOffset", "-2h"}}, want: []string{"development.clockOffset", "-1h0m0s to 1h0m0s"}},
		"vault, not said":       {yaml: "custody: {vault: {addresses: [https://v.example:8200]}}\n", want: []string{"custody.kind", "say vault"}},
		"vault, nothing":        {yaml: "custody: {kind: vault}\n", want: []string{"custody.vault.addresses", "custody.vault.auth.method"}},
		"vault, plain":          {yaml: vault("addresses: ['http://v.example:8200', 'http://127.0.0.1:8200']"), want: []string{"custody.vault.addresses.0", "--insecure-vault"}},
		"vault, user":           {yaml: vault("addresses: ['https://root:hunter2@v.example:8200']"), want: []string{"custody.vault.addresses.0", "without path and user"}},
		"vault, path":           {yaml: vault("addresses: ['https://v.example:8200/v1']"), want: []string{"custody.vault.addresses.0"}},
		"vault, no token":       {yaml: vault("auth: {method: token}"), want: []string{"custody.vault.auth.tokenFile"}},
		"vault, token inline":   {yaml: vault("auth: {method: token, token: hunter2}"), want: []string{"unknown key custody.vault.auth.token", "tokenFile"}},
		"vault, no ids":         {yaml: vault("auth: {method: approle}"), want: []string{"custody.vault.auth.roleIdFile", "custody.vault.auth.secretIdFile"}},
		"vault, no role":        {yaml: vault("auth: {method: kubernetes, jwtFile: ''}"), want: []string{"custody.vault.auth.role", "custody.vault.auth.jwtFile"}},
		"vault, method":         {yaml: vault("auth: {method: userpass}"), want: []string{"custody.vault.auth.method", "approle"}},
		"vault, mount":          {yaml: vault("transit: /transit/"), want: []string{"custody.vault.transit", "slashes"}},
		"vault, one mount":      {yaml: vault("kv: transit"), want: []string{"custody.vault.kv"}},
		"vault, prefix":         {yaml: vault("prefix: a/b"), want: []string{"custody.vault.prefix"}},
		"redis, not said":       {yaml: "store: {redis: {addresses: ['r.example:6379']}}\n", want: []string{"store.kind", "say redis"}},
		"redis, nothing":        {yaml: issuer + "store: {kind: redis}\n", want: []string{"store.redis.addresses"}},
		"redis, no issuer":      {yaml: "store: {kind: redis, redis: {addresses: ['127.0.0.1:6379']}}\n", want: []string{"issuers.0.url", "replicas share"}},
		"redis, plain":          {yaml: issuer + "store: {kind: redis, redis: {addresses: ['r.example:6379']}}\n", want: []string{"store.redis.tls.enabled", "--insecure-redis"}},
		"redis, inline":         {yaml: redis("password: hunter2"), want: []string{"unknown key store.redis.password", "passwordFile"}},
		"redis, mode":           {yaml: redis("mode: ring"), want: []string{"store.redis.mode", "cluster"}},
		"redis, two":            {yaml: redis("addresses: ['127.0.0.1:1', '127.0.0.1:2']"), want: []string{"store.redis.addresses", "sentinel or cluster"}},
		"redis, address":        {yaml: redis("addresses: ['redis://:hunter2@r.example']"), want: []string{"store.redis.addresses.0", "host:port"}},
		"redis, no master":      {yaml: redis("mode: sentinel"), want: []string{"store.redis.masterName"}},
		"redis, a master":       {yaml: redis("masterName: pact"), want: []string{"store.redis.masterName"}},
		"redis, sentinel user":  {yaml: redis("sentinelPasswordFile: f"), want: []string{"store.redis.sentinelUsername"}},
		"redis, no password":    {yaml: redis("username: signer"), want: []string{"store.redis.passwordFile"}},
		"redis, half a cert":    {yaml: redis("tls: {enabled: true, certFile: a}"), want: []string{"store.redis.tls", "keyFile"}},
		"redis, tls not said":   {yaml: redis("tls: {caFile: a}"), want: []string{"store.redis.tls.enabled"}},
		"redis, prefix":         {yaml: redis("prefix: 'a{b}'"), want: []string{"store.redis.prefix"}},
		"redis, acks":           {yaml: redis("acks: -1"), want: []string{"store.redis.acks"}},
		"tracing, protocol":     {yaml: "tracing: {protocol: udp}\n", want: []string{"tracing.protocol", "http"}},
		"tracing, ratio":        {yaml: "tracing: {sampleRatio: 1.5}\n", want: []string{"tracing.sampleRatio", "0 for none"}},
		"tracing, ratio nan":    {yaml: "tracing: {sampleRatio: .nan}\n", want: []string{"tracing.sampleRatio"}},
		"tracing, not said":     {yaml: "tracing: {caFile: a}\n", want: []string{"tracing.endpoint", "not used"}},
		"tracing, scheme":       {yaml: "tracing: {endpoint: 'https://c.example:4317'}\n", want: []string{"tracing.endpoint", "without a scheme"}},
		"tracing, no port":      {yaml: "tracing: {endpoint: c.example}\n", want: []string{"tracing.endpoint", "host:port"}},
		"tracing, user":         {yaml: "tracing: {endpoint: 'u:hunter2@c.example:4317'}\n", want: []string{"tracing.endpoint"}},
		"tracing, grpc path":    {yaml: "tracing: {endpoint: 'c.example:4317/v1/traces'}\n", want: []string{"tracing.endpoint", "protocol http"}},
		"tracing, query":        {yaml: "tracing: {endpoint: 'c.example:4318/v1?key=hunter2', protocol: http}\n", want: []string{"tracing.endpoint"}},
		"tracing, bad path":     {yaml: "tracing: {endpoint: 'c.example:4318/%zz', protocol: http}\n", want: []string{"tracing.endpoint", "/v1/traces"}},
		"tracing, both":         {yaml: "tracing: {endpoint: 'c.example:4317', insecure: true, caFile: a}\n", want: []string{"tracing.caFile", "insecure"}},
		"tracing, inline":       {yaml: "tracing: {endpoint: 'c.example:4317', headers: hunter2}\n", want: []string{"unknown key tracing.headers", "headersFile"}},
		"scale on a real host":  {yaml: issuer + "development: {timeScale: 60}\n", want: []string{"development.timeScale", "loopback"}},
	} {
		t.Run(name, func(t *testing.T) {
			src := Source{Environ: c.env, Flags: c.set}
			if c.yaml != "" {
				src.File = write(t, c.yaml)
			}
			_, err := Load(src)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %q quotes a value", err)
			}
		})
	}
	if _, err := Load(Source{File: filepath.Join(t.TempDir(), "none.yaml")}); err == nil {
		t.Error("a file that is not there was accepted")
	}
}

func TestAccepted(t *testing.T) {
	for name, yaml := range map[string]string{
		"empty file":      "",
		"comment":         "# nothing\n",
		"null section":    "listeners:\nissuers:\n",
		"overlap":         "issuers: [{rotation: {overlap: 225s}}]\n",
		"scaled overlap":  "issuers: [{rotation: {overlap: 5m}}]\ndevelopment: {timeScale: 60}\n",
		"scale":           "development: {timeScale: 60}\n",
		"loopback names":  "issuers: [{url: 'http://a.localhost:8787'}, {url: 'http://127.0.0.2:8787'}, {url: 'http://[::1]:8787'}]\n",
		"insecure admin":  "listeners: {admin: {address: '0.0.0.0:8789'}}\ninsecure: {admin: true}\n",
		"tls admin":       "listeners: {admin: {address: '0.0.0.0:8789', certFile: a, keyFile: b}}\n",
		"several zeros":   "listeners: {public: {address: '127.0.0.1:0'}, grpc: {address: '127.0.0.1:0'}}\n",
		"other hosts":     "listeners: {ops: {address: '10.0.0.1:8787'}}\n",
		"no period":       "issuers: [{rotation: {period: 0s}}]\n",
		"no period, bare": "issuers: [{rotation: {period: 0}}]\n",
		"no limit":        "issuers: [{limits: {caller: {rate: 0, burst: 0}}}]\n",
		"one issuer bare": "issuers: [{tokenTTL: 60s}]\n",
		"vault":           vault("wrapped: true"),
		"vault, approle":  vault("auth: {method: approle, roleIdFile: r, secretIdFile: s}"),
		"vault, pod":      vault("auth: {method: kubernetes, role: signer}"),
		"vault, space":    vault("namespace: teams/agents/"),
		"vault, loopback": vault("addresses: ['http://127.0.0.1:8200', 'http://[::1]:8200', 'https://v.example']"),
		"vault, insecure": vault("addresses: ['http://vault:8200']") + "insecure: {vault: true}\n",
		"redis":           redis("acks: 1"),
		"redis, tls":      "issuers: [{url: https://pa.example.com}]\nstore: {kind: redis, redis: {addresses: ['r.example:6379'], tls: {enabled: true, certFile: a, keyFile: b}, username: u, passwordFile: p}}\n",
		"redis, sentinel": redis("mode: sentinel, masterName: pact, sentinelUsername: s, sentinelPasswordFile: f"),
		"redis, cluster":  "issuers: [{url: https://pa.example.com}]\nstore: {kind: redis, redis: {mode: cluster, addresses: ['a:6379', 'b:6379']}}\ninsecure: {redis: true}\n",
		"offset":          "development: {clockOffset: -15s}\n",
		"tracing":         "tracing: {endpoint: 'c.example:4317', caFile: a, headersFile: b, sampleRatio: 0, trustParent: true}\n",
		"tracing, http":   "tracing: {endpoint: '[::1]:4318/otlp/v1/traces', protocol: http, insecure: true, sampleRatio: 1}\n",
		"token":           "admin: {tokens: [{name: ci, role: viewer, hash: '" + hash + "'}]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Load(Source{File: write(t, yaml)}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// What is shown can be read again and is the same, but for what is redacted.
func TestShowRoundTrip(t *testing.T) {
	c, err := Load(Source{File: write(t, "issuers: [{url: https://a.example}]\nadmin: {tokens: [{name: ci, role: viewer, hash: '"+hash+"'}]}\n")})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(shown), hash) || c.Admin.Tokens[0].Hash != hash {
		t.Errorf("the hash is shown, or was lost:\n%s", shown)
	}
	again, err := Load(Source{File: write(t, strings.ReplaceAll(string(shown), "'"+Redacted+"'", hash))})
	if err != nil {
		t.Fatal(err)
	}
	shownAgain, err := again.YAML()
	if err != nil || string(shownAgain) != string(shown) {
		t.Errorf("read again: %s\nwas: %s\n%v", shownAgain, shown, err)
	}
	if again.Admin.Tokens[0].Hash != hash {
		t.Errorf("hash = %q", again.Admin.Tokens[0].Hash)
	}
}

// What is told of the backends names them, and no file of a secret.
func TestDescribe(t *testing.T) {
	c := Default()
	if custody, store := c.Describe(); !strings.HasPrefix(custody, "local") || !strings.HasPrefix(store, "bolt") {
		t.Errorf("%s; %s", custody, store)
	}
	c.Custody = Custody{Kind: "vault", Vault: Vault{Addresses: []string{"https://v.example:8200"}, Wrapped: true, Auth: VaultAuth{Method: "token", TokenFile: "/run/secret"}}}
	c.Store = Store{Kind: "redis", Redis: Redis{Mode: "sentinel", Addresses: []string{"r.example:26379"}, PasswordFile: "/run/secret", TLS: RedisTLS{Enabled: true}, Acks: 1}}
	custody, store := c.Describe()
	for _, want := range []string{"https://v.example:8200", "wrapped", "token", "sentinel", "r.example:26379", "TLS", "1 ack"} {
		if !strings.Contains(custody+store, want) {
			t.Errorf("%s; %s do not tell %s", custody, store, want)
		}
	}
	if strings.Contains(custody+store, "secret") {
		t.Errorf("%s; %s", custody, store)
	}
}

func FuzzYAML(f *testing.F) {
	f.Add([]byte("data: /a\nissuers: [{url: https://a.example, tokenTTL: 60s}]\n"))
	f.Add([]byte("issuers: {0: {}}\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("<<: {data: /x}\n"))
	f.Add([]byte("listeners: null\ntrustedProxies: 10.0.0.0/8,fd00::/8\n"))
	f.Add([]byte("? [a]\n: b\n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(dir, "fuzz.yaml")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(Source{File: file})
		if err != nil {
			return
		}
		shown, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(shown), Redacted, hash)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(Source{File: file}); err != nil {
			t.Fatalf("what is shown cannot be read: %v\n%s", err, shown)
		}
	})
}
