package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
)

// run runs one command line in this process.
func run(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs, environ: environ}
	code = a.run(context.Background(), args)
	return code, out.String(), errs.String()
}

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.yaml")
	bad := filepath.Join(dir, "bad.yaml")
	for file, content := range map[string]string{
		good: "issuers: [{url: https://pa.example.com}]\n",
		bad:  "issuers: [{url: https://pa.example.com, tokenTTL: 10s}]\nlog: {level: loud}\n",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	none := filepath.Join(dir, "none")
	missingFiles := []string{
		"--set", "custody.kind=vault", "--set", "custody.vault.addresses=https://vault:8200", "--set", "custody.vault.caFile=" + none,
		"--set", "custody.vault.auth.method=token", "--set", "custody.vault.auth.tokenFile=" + none,
		"--set", "store.kind=redis", "--set", "store.redis.addresses=redis:6379", "--set", "store.redis.passwordFile=" + none,
		"--set", "store.redis.tls.enabled=true", "--set", "store.redis.tls.caFile=" + good, "--set", "issuers.0.url=https://pa.example.com",
	}
	for name, c := range map[string]struct {
		environ []string
		args    []string
		code    int
		stdout  string // a regular expression
		stderr  string
	}{
		"no command":        {nil, []string{}, exitOK, `(?s)Usage:.*serve.*init.*config.*token.*version|(?s)config.*init.*serve.*token.*version`, `^$`},
		"unknown command":   {nil, []string{"sreve"}, exitUsage, `^$`, `unknown command "sreve"`},
		"unknown below":     {nil, []string{"config", "chekc"}, exitUsage, `^$`, `unknown command "chekc"`},
		"version":           {nil, []string{"version"}, exitOK, `^dev\n$`, `^$`},
		"help has examples": {nil, []string{"serve", "--help"}, exitOK, `(?s)Examples:.*signer serve --config`, `^$`},
		"check":             {nil, []string{"config", "check", "--config", good}, exitOK, `fine.*https://pa\.example\.com`, `^$`},
		"check tells where": {nil, []string{"config", "check", "--config", good}, exitOK, `(?s)Custody: local, .*custody\n +Store: +bolt, .*store\.db\n`, `^$`},
		"check Vault":       {nil, []string{"config", "check", "--set", "custody.kind=vault", "--set", "custody.vault.addresses=http://vault:8200", "--set", "custody.vault.auth.method=token", "--set", "custody.vault.auth.tokenFile=" + good, "--insecure-vault"}, exitOK, `Custody: vault, http://vault:8200; Vault signs`, `^$`},
		"check names files": {nil, append([]string{"config", "check"}, missingFiles...), exitUsage, `^$`, `(?s)custody\.vault\.caFile: .*custody\.vault\.auth\.tokenFile: .*store\.redis\.passwordFile: .*store\.redis\.tls\.caFile: .*no certificate`},
		"serve names files": {nil, append([]string{"serve"}, missingFiles...), exitUsage, `^$`, `(?s)custody\.vault\.caFile: .*store\.redis\.passwordFile: `},
		"init names files":  {nil, append([]string{"init"}, missingFiles...), exitUsage, `^$`, `store\.redis\.passwordFile: `},
		"init makes none":   {nil, []string{"init", "--admin-token-file", filepath.Join(dir, "no", "where")}, exitUsage, `^$`, `--admin-token-file: the folder .*no is not there`},
		"retire needs why":  {nil, []string{"retire-issuer", "https://old.example.com", "--config", good}, exitUsage, `^$`, `--reason is required`},
		"retire needs URL":  {nil, []string{"retire-issuer", "--config", good, "--reason", "x"}, exitUsage, `^$`, `accepts 1 arg`},
		"retire what is in": {nil, []string{"retire-issuer", "https://pa.example.com", "--config", good, "--reason", "x"}, exitFailure, `^$`, `is in issuers of this configuration`},
		"check elsewhere":   {nil, append([]string{"config", "check", "--no-files"}, missingFiles...), exitOK, `fine`, `^$`},
		"check by env":      {[]string{config.EnvFile + "=" + good}, []string{"config", "check"}, exitOK, `https://pa\.example\.com`, `^$`},
		"check names all":   {nil, []string{"config", "check", "--config", bad}, exitUsage, `^$`, `(?s)issuers\.0\.tokenTTL.*log\.level`},
		"check flag wins":   {[]string{"PACT_SIGNER_LOG_LEVEL=loud"}, []string{"config", "check", "--log-level", "warn"}, exitOK, `fine`, `^$`},
		"check no file":     {nil, []string{"config", "check", "--config", filepath.Join(dir, "none")}, exitUsage, `^$`, `none`},
		"set without value": {nil, []string{"config", "check", "--set", "data"}, exitUsage, `^$`, `PATH=VALUE`},
		"set keeps commas":  {nil, []string{"config", "show", "--set", "trustedProxies=10.0.0.0/8,fd00::/8"}, exitOK, `(?s)- 10\.0\.0\.0/8\n.*- fd00::/8`, `^$`},
		"show":              {nil, []string{"config", "show", "--config", good}, exitOK, `(?s)address: 127\.0\.0\.1:8787.*tokenTTL: 2m0s`, `^$`},
		"keys":              {nil, []string{"config", "keys"}, exitOK, `issuers\.#\.tokenTTL +PACT_SIGNER_ISSUERS_#_TOKEN_TTL\n`, `^$`},
		"redis acl":         {nil, []string{"redis", "acl", "--set", "store.redis.username=me", "--set", "store.redis.prefix=mine"}, exitOK, `^ACL SETUSER me on >PASSWORD resetkeys ~mine:\* resetchannels &mine:\* .*\+evalsha.*\n$`, `^$`},
		"redis acl no user": {nil, []string{"redis", "acl"}, exitUsage, `^$`, `store\.redis\.username`},
		"token":             {nil, []string{"token", "create", "--name", "ci", "--role", "viewer"}, exitOK, `(?s)pact_admin_[A-Z2-7]{52}\n.*name: ci\n +role: viewer\n +hash: sha256:[0-9a-f]{64}\n`, `^$`},
		"token role":        {nil, []string{"token", "create", "--name", "ci", "--role", "boss"}, exitUsage, `^$`, `role.*viewer, operator, admin`},
		"token name":        {nil, []string{"token", "create", "--role", "viewer"}, exitUsage, `^$`, `name`},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := run(t, c.environ, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !regexp.MustCompile(c.stdout).MatchString(stdout) {
				t.Errorf("printed %q, want %s", stdout, c.stdout)
			}
			if !regexp.MustCompile(c.stderr).MatchString(stderr) {
				t.Errorf("error %q, want %s", stderr, c.stderr)
			}
		})
	}
}

// Every page of help fits a terminal.
func TestHelpFits(t *testing.T) {
	a := &app{}
	pages := [][]string{nil}
	for i := 0; i < len(pages); i++ {
		cmd, _, err := a.rootCmd().Find(pages[i])
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range cmd.Commands() {
			pages = append(pages, append(slices.Clone(pages[i]), sub.Name()))
		}
		_, out, _ := run(t, nil, append(slices.Clone(pages[i]), "--help")...)
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%v: %d columns: %s", pages[i], n, line)
			}
		}
	}
}

// What token create prints is what the configuration takes.
func TestTokenForConfiguration(t *testing.T) {
	_, out, _ := run(t, nil, "token", "create", "--name", "ci", "--role", "operator")
	_, snippet, ok := strings.Cut(out, "For the configuration file:\n")
	if !ok {
		t.Fatalf("printed %q", out)
	}
	file := filepath.Join(t.TempDir(), "signer.yaml")
	if err := os.WriteFile(file, []byte(snippet), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Source{File: file})
	if err != nil || len(c.Admin.Tokens) != 1 || c.Admin.Tokens[0].Role != "operator" {
		t.Fatalf("%+v, %v", c.Admin.Tokens, err)
	}
}

func TestInit(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	initialise := func(args ...string) server.InitResult {
		t.Helper()
		code, out, errs := run(t, nil, append([]string{"init", "--data", data, "-o", "json"}, args...)...)
		var r server.InitResult
		if err := json.Unmarshal([]byte(out), &r, json.RejectUnknownMembers(true)); code != exitOK || err != nil {
			t.Fatalf("init %v: %d %s %s %v", args, code, out, errs, err)
		}
		return r
	}
	read := func(r server.InitResult) string {
		t.Helper()
		b, err := os.ReadFile(r.AdminTokenFile)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := initialise()
	if !first.NewAdminToken || first.Data != data || first.Note != "" {
		t.Errorf("first: %+v", first)
	}
	token := read(first)
	if second := initialise(); second.NewAdminToken || read(second) != token {
		t.Errorf("second: %+v", second)
	}
	if err := os.Remove(first.AdminTokenFile); err != nil {
		t.Fatal(err)
	}
	if gone := initialise(); gone.NewAdminToken || !strings.Contains(gone.Note, "--new-admin-token") {
		t.Errorf("file gone: %+v", gone)
	}
	if renewed := initialise("--new-admin-token"); !renewed.NewAdminToken || renewed.Note != "" || read(renewed) == token {
		t.Errorf("renewed: %+v", renewed)
	}
	// The text says the same.
	if code, out, _ := run(t, nil, "init", "--data", data); code != exitOK || !strings.Contains(out, "admin-token (kept)") {
		t.Errorf("%d %s", code, out)
	}
}

func TestNotice(t *testing.T) {
	var out bytes.Buffer
	err := printNotice(&out, server.Info{
		Public: "http://127.0.0.1:8787", GRPC: "127.0.0.1:8788", Admin: "http://127.0.0.1:8789", Ops: "http://127.0.0.1:8790",
		Issuers: []string{"http://127.0.0.1:8787"}, AdminTokenFile: "/data/admin-token", Notes: []string{"mind this"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `The signer is ready.

  Issuer           http://127.0.0.1:8787
  Key set          http://127.0.0.1:8787/.well-known/jwks.json
  Public           http://127.0.0.1:8787
  gRPC             127.0.0.1:8788
  Admin            http://127.0.0.1:8789
  Metrics, health  http://127.0.0.1:8790
  Admin token      /data/admin-token

  Note: mind this

Next:
  pactctl context set local --server http://127.0.0.1:8789 --token-file /data/admin-token
  pactctl audiences set https://provider.example AUDIENCE
  pactctl credentials create --name laptop
`
	if out.String() != want {
		t.Errorf("printed:\n%s", out.String())
	}
}
